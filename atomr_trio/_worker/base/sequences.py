"""Sequences of calls: verbs of several calls, each prepared once for a lane and then made with the words of a record.

See ``_wire/records/sequences.py`` for what crosses. A step of a library's calls is prepared by its engine; any other is
made as if it had come by itself.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from typing import TYPE_CHECKING, Any

from ..._wire.records.calls import HEAD, STAGING_AT, WORD
from ..._wire.records.memory import BOX, COPY
from ..._wire.records.sequences import Content, SequenceTable, Step, unpack_words
from .calls import CallEngine, Handles, PreparedStep, made_ready, no_status
from .lanes import Command
from .native_calls import NativeStep, Word, native_call, native_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .lanes import Lane, NativeCall, Ready, WorkerServices

_WORD = struct.Struct("<Q")


class LeftOut(Exception):
    """The rest of a sequence is not to be done: its matrices hold what it would never come to an end with."""


class _Sequence:
    """One sequence on one lane. Its steps are prepared when it is made for the first time, by a standby before that."""

    __slots__ = ("_answered", "_content", "_entries", "_made", "may_be_hot")

    def __init__(self, content: Content) -> None:
        self.may_be_hot: bool = False
        """True once it was made ready to be made again."""
        self._content = content
        self._made: list[PreparedStep] = []
        self._entries = 0
        self._answered = max(map(_answered, content), default=0)
        """The bytes that its calls answer."""

    def prepare(self, engine: SequenceEngine, lane: Lane) -> None:
        """Prepare its steps before it is made. Raises the error of the first that cannot be."""
        for content in self._content[len(self._made) :]:
            step = engine.prepared_step(content, lane)
            self._made.append(step)
            self._entries += step.entries

    def make(self, engine: SequenceEngine, words: Sequence[int], ticket: int, lane: Lane) -> None:
        """Make its calls. The error of one that is refused has its number as `part`; those behind it are not made."""
        made = self._made
        try:
            number = 0
            lane.weigh(ticket, self._entries)
            for step in made:
                step.make(words, ticket)
                number += 1
            for content in self._content[number:]:
                step = engine.prepared_step(content, lane)
                lane.weigh(ticket, step.entries)
                made.append(step)
                self._entries += step.entries
                step.make(words, ticket)
                number += 1
        except LeftOut:
            pass
        except Exception as error:
            error.part = number  # type: ignore[attr-defined]
            raise
        if self._answered:
            engine.fetch(words[0], self._answered, lane)

    def native(
        self, engine: SequenceEngine, words: Sequence[int], places: Mapping[int, int], lane: Lane
    ) -> NativeCall | None:
        """Return the same for native code, once it was made; None if that cannot make one of its steps.

        `places` has the words that differ each time, with their numbers in the record.
        """
        if len(self._made) < len(self._content):
            return None
        steps: list[NativeStep] = []
        for number, step in enumerate(self._made):
            call = None if step.native is None else step.native()
            if call is None:
                return None
            steps.append(NativeStep(call, functools.partial(self.refused, number)))
        if self._answered:
            fetch = engine.native_fetch(0, engine.answers_of(lane), self._answered, lane)
            if fetch is None or 0 not in places:
                return None
            steps.append(fetch)
        return native_steps(steps, words, places, self._entries)

    def refused(self, number: int, status: int) -> Exception:
        """Return the error of a step that was refused."""
        error = self._made[number].refused(status)
        error.part = number  # type: ignore[attr-defined]
        return error


def _answered(step: Step) -> int:
    """Return where the answer of a step ends in the slot; 0 if it has none."""
    return next((hole.more + HEAD.unpack_from(step.payload)[4] for hole in step.holes if hole.offset == STAGING_AT), 0)


class SequenceEngine(CallEngine):
    """An engine of calls that also makes sequences of them."""

    def __init__(self, services: WorkerServices, table: SequenceTable, bindings: Any, handles: Handles) -> None:
        super().__init__(services, table, bindings, handles)
        self._of_sequences = table
        self._sequences: dict[tuple[int, int], _Sequence] = {}
        """By lane and number."""
        self.calls.update(
            {
                table.define.number: self._define,
                table.first_execute.number: self._execute,
                table.execute.number: self._execute,
                table.enqueue.number: self._execute,
                table.drop.number: self._drop,
            }
        )

    def prepared_step(self, step: Step, lane: Lane) -> PreparedStep:
        """Return a step that is ready to be made."""
        engine: Any = self._services.engines[step.engine]
        call: Callable[[Command, Lane], Any] = engine.calls[step.verb]
        if isinstance(engine, CallEngine) and step.verb == engine.table.call.number:
            is_answered = any(hole.offset == STAGING_AT for hole in step.holes)
            return engine.prepared(step, lane, self.answers_of(lane) if is_answered else 0)
        verb = engine.table.verbs[step.verb]
        if verb is COPY and BOX.unpack(step.payload)[-2:] == (1, 1) and len(step.holes) == 2:
            return self._copying(step, lane)

        def make(words: Sequence[int], ticket: int) -> None:
            payload = bytearray(step.payload)
            for offset, word, more in step.holes:
                _WORD.pack_into(payload, offset, words[word] + more)
            call(Command(verb, call, ticket, (), bytes(payload), []), lane)

        return PreparedStep(make, no_status)

    def _copying(self, step: Step, lane: Lane) -> PreparedStep:
        """Return the copy of one run of bytes on the device."""
        (_, to, _), (_, origin, _) = step.holes
        size, function, stream = BOX.unpack(step.payload)[-3], self._driver.cuMemcpyDtoDAsync, lane.stream
        copy = function.bind()

        def make(words: Sequence[int], ticket: int) -> None:
            status = copy(words[to], words[origin], size, stream)
            if status:
                raise refused(status)

        def refused(status: int) -> Exception:
            error: Exception = function.library.error(status, function.symbol)
            return error

        def native() -> NativeCall | None:
            arguments = Word(to), Word(origin), size, stream.value
            return native_call(function, arguments, None, self._services.give_up)

        return PreparedStep(make, refused, native=native)

    def fetch(self, slot: int, size: int, lane: Lane) -> None:
        """Copy what the calls of a sequence have answered to the host, to a slot."""
        self._driver.cuMemcpyDtoHAsync(self._services.staged(slot), self.answers_of(lane), size, lane.stream)

    def _define(self, command: Command, lane: Lane) -> None:
        number, _, length = self._of_sequences.define.struct.unpack_from(command.payload)
        size = self._of_sequences.define.struct.size
        sequence = _Sequence(Content.read(command.payload[size : size + length]))
        self._sequences[lane.index, number] = sequence
        if self._services.rehearses:
            with contextlib.suppress(
                self._services.cuda_error, self._services.library_missing
            ):  # its first call says so
                sequence.prepare(self, lane)

    def _execute(self, command: Command, lane: Lane) -> None:
        head = self._of_sequences.execute.struct
        (number,) = head.unpack_from(command.payload)
        words = unpack_words(command.payload, head.size)
        with lane.calling:
            self._sequences[lane.index, number].make(self, words, command.ticket, lane)

    def _drop(self, command: Command, lane: Lane) -> None:
        (number,) = self._of_sequences.drop.struct.unpack(command.payload)
        sequence = self._sequences.pop((lane.index, number), None)
        if sequence is not None and sequence.may_be_hot:
            self._services.forget_hot()

    def hot_call(self, verb: int, payload: bytes, lane: Lane, places: Sequence[int] = ()) -> Ready | None:
        """Return a sequence that was made before, ready to be made with other words; see `RepeatingEngine`."""
        if verb != self._of_sequences.enqueue.number:
            return super().hot_call(verb, payload, lane, places) if verb == self.table.call.number else None
        head = self._of_sequences.enqueue.struct
        (number,) = head.unpack_from(payload)
        sequence = self._sequences.get((lane.index, number))
        numbers = [divmod(place - head.size, WORD) for place in places]
        if sequence is None or any(rest or word < 0 for word, rest in numbers):
            return None
        sequence.may_be_hot = True
        words = list(unpack_words(payload, head.size))

        def call(given: Sequence[int]) -> int:
            for (word, _), value in zip(numbers, given, strict=True):
                words[word] = value
            sequence.make(self, words, lane.made_now, lane)
            return 0

        def native() -> NativeCall | None:
            numbered = {word: number for number, (word, _) in enumerate(numbers)}
            return sequence.native(self, words, numbered, lane)

        ready = made_ready(lambda: None, call, functools.partial(sequence.refused, 0), alone=True)
        return ready._replace(native=native, bounded=True)

    def forget_lane(self, index: int) -> list[Callable[[], object]]:
        """Forget the objects of a lane that is closed, and return the calls that give them back."""
        self._sequences = {place: each for place, each in self._sequences.items() if place[0] != index}
        return super().forget_lane(index)
