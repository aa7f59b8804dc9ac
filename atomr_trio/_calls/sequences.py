"""Verbs of several calls as one command.

What such a verb plans is folded: the calls, the copies and the fills that follow each other on one lane are one
`SequenceRequest`, which has one ticket and one slot for all answers. What the sequence does is a plan of its library
(``plans.py``), whose key is the payloads of the calls with holes for the addresses. The worker is told of it once; what
crosses with each call is its number and the addresses. So a verb is one record and one wait, however many calls it is.

``known_sequences.py`` has the repetitions.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, cast

import attrs
import numpy as np
import numpy.typing as npt

from .._generation.requests import CallKind, CommandRequest, Rehearsal, Series
from .._generation.timeline import Command, Operand
from .._memory.arena import Block
from .._transfers.memory import tear_halves
from .._transfers.staging import Slot
from .._values.errors import DeviceError
from .._wire.protocol import Role
from .._wire.records.calls import ANSWER_BYTES, STAGING_AT, WORD
from .._wire.records.memory import COPY, FILL
from .._wire.records.sequences import Content, Hole, SequenceTable, Step, pack_words
from .plans import PlanKind, Plans
from .verbs import CallRequest, JoinedRequest, Library, SlotRequest, Verdict, merged_roles

if TYPE_CHECKING:
    from .._generation.generation import Generation

T = TypeVar("T")

_MOST_STEPS: Final = 48
"""Of one sequence. The rest of a verb is another one."""
_ANSWER: Final = 16
"""The alignment of each answer in bytes."""
_ADDRESSES: Final = {COPY: (0, 3 * WORD), FILL: (0,)}
"""Where the payloads of commands on device memory have addresses."""


class _Part(NamedTuple):
    """A command that can be a step of a sequence."""

    request: CommandRequest
    payload: bytes
    addresses: tuple[tuple[int, int], ...]
    """The places of the addresses in the payload, and the addresses."""


class _Answer(NamedTuple):
    """What one step answers: where it lies in the slot, where it goes, and what judges it."""

    offset: int
    target: npt.NDArray[Any]
    check: Verdict | None


class _Kind(PlanKind):
    """The kind of a sequence. One of calls that never wait is made by the thread that serves all lanes."""

    __slots__ = ()

    def __init__(self, of: PlanKind, table: SequenceTable, *, quick: bool) -> None:
        super().__init__(of.plans, of.plan)
        self.later = table.enqueue if quick else table.execute


@attrs.define(eq=False)
class CallSequence:
    """What a sequence and its repetitions have in common."""

    kind: _Kind
    kinds: tuple[CallKind, ...]
    """The kinds of its calls."""
    operation: str
    operations: tuple[str, ...]
    """The names of the steps, for errors."""
    accesses: tuple[tuple[tuple[int, Role], ...], ...]
    """The access of each step to memory; an operand of the sequence by its number."""
    answers: tuple[_Answer, ...]
    answer_bytes: int
    _passed: bytes | None = attrs.field(default=None, init=False)
    """The answers that are in the targets, if nothing came of them."""

    def fetch(self, slot: Slot, *, tells: bool) -> Exception | None:
        """Copy the answers from a slot to their targets. Returns the first error that one of them reports.

        What judges answers only looks at them, unless the verb `tells` of them. So answers that are those of last time,
        as a rule zeros, are not judged again.
        """
        content = slot.bytes[: self.answer_bytes].tobytes()
        if content == self._passed:
            return None
        self._passed = None
        for offset, target, _ in self.answers:
            target[...] = np.frombuffer(content, target.dtype, target.size, offset).reshape(target.shape)
        for _, target, check in self.answers:
            error = None if check is None else check(target)
            if error is not None:
                return error
        if not tells:
            self._passed = content
        return None

    def note_failed(self, error: DeviceError, blocks: Sequence[Block]) -> None:
        """Complete the error of a call that was refused, and mark what those before it have left half written.

        `blocks` are the operands.
        """
        number = error.part
        error.operation = self.operations[number]
        steps = [
            _Begun([(blocks[place], role) for place, role in access], sent=index <= number)
            for index, access in enumerate(self.accesses)
        ]
        tear_halves(cast("list[CommandRequest | Series]", steps), error, cast("CommandRequest", steps[number]))


@attrs.define(eq=False)
class _Begun:
    """A step as `tear_halves` sees it."""

    operands: Sequence[Operand]
    sent: bool


class Told(Protocol):
    """What a verb tells of its answers, in arrays on the host. It keeps no array of the device alive."""

    into: tuple[npt.NDArray[Any], ...]
    """The arrays into which the checks of the next answers write."""

    def new(self) -> tuple[npt.NDArray[Any], ...]:
        """Return new arrays."""


class SequenceRequest(SlotRequest):
    """A sequence of calls, as one command. Its words begin with the place of the slot, which is known when it starts.

    With `decides`, an answer may refuse what follows of the same verb.
    """

    __slots__ = ("_blocks", "_calls", "_decides", "into", "sequence", "told", "words")

    def __init__(
        self,
        sequence: CallSequence,
        words: list[int],
        operands: Sequence[Operand],
        *,
        lane: int,
        keep: object,
        decides: bool = False,
        blocks: Sequence[Block] | None = None,
        calls: Sequence[CallRequest] = (),
    ) -> None:
        super().__init__(sequence.kind.later, operands, lane=lane, operation=sequence.operation, keep=keep)
        self.sequence: CallSequence = sequence
        self._blocks = [block for block, _ in operands] if blocks is None else blocks
        self.words: list[int] = words
        self._decides = decides
        self._calls = calls
        """The calls that were planned; none for a repetition."""
        self.told: Told | None = None
        self.into: tuple[npt.NDArray[Any], ...] = ()
        """The arrays that are told into, for a repetition."""

    def rehearsals(self) -> Iterable[tuple[Hashable, Callable[[], Rehearsal]]]:
        """Return the calls that were planned, each by itself."""
        for call in self._calls:
            yield from call.rehearsals()

    @property
    def decides(self) -> bool:
        return self._decides

    @property
    def slot_bytes(self) -> int:
        return self.sequence.answer_bytes

    def start(self, generation: Generation) -> None:
        """Publish the record, after the definition of the sequence where that is missing."""
        kind, lane = self.sequence.kind, self.lane
        kind.precede(generation, lane)
        self._verb = kind.verb(generation, lane)
        if self._slot is not None:
            self.words[0] = self._slot.place
        self._payload = kind.later.struct.pack(kind.plan.number) + pack_words(self.words)
        super().start(generation)
        if self._verb is not kind.later:
            for each in (*self.sequence.kinds, kind):
                each.begun(generation, lane)

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Settle; and after a failure, mark what the steps before it have left half written."""
        if error is not None:
            self.sequence.note_failed(error, self._blocks)
        super().command_finished(command, error, value)

    def ended(self, *, delivered: bool) -> None:
        if not delivered:
            self.release()

    def take(self) -> None:
        """Copy the answers to their targets. Raises the first error that one of them reports."""
        if self._slot is not None:
            if self.told is not None:
                self.told.into = self.into
            error = self.sequence.fetch(self._slot, tells=self.told is not None)
            self.release()
            if error is not None:
                raise error


# --- folding ----------------------------------------------------------------------------------------------------------


class SequenceFolding:
    """Makes sequences of the commands of a verb that follow each other.

    The array `spared` is not written before all answers that may refuse it are known.
    """

    def __init__(self, library: Library, spared: Block | None, told: Told | None) -> None:
        self.held: collections.deque[CommandRequest] = collections.deque()
        self._library = library
        self._spared = spared
        self._told = told
        self._run: list[_Part] = []
        """The steps of the next sequence."""
        self._folds = 0
        """How many of those that are held they are."""
        self._answered = 0
        """The bytes of their answers."""

    def folded(self, planned: Iterator[CommandRequest | Series]) -> Iterator[CommandRequest]:
        """Yield the commands as they are sent."""
        spared = self._spared
        for request in _one_by_one(planned):
            if isinstance(request, Series):
                yield from self._ended()
                yield from request
                continue
            self.held.append(request)
            parts = _parts_of(request)
            if parts is None:
                yield from self._ended()
                yield self.held.popleft()
                continue
            answered = sum(map(_answered, parts))
            if len(self._run) + len(parts) > _MOST_STEPS or self._answered + answered > ANSWER_BYTES:
                yield from self._ended()
            elif spared is not None and any(part.request.decides for part in self._run) and _writes(parts, spared):
                yield from self._ended(decides=True)
            self._run += parts
            self._folds += 1
            self._answered += answered
        yield from self._ended()

    def _ended(self, *, decides: bool = False) -> Iterator[CommandRequest]:
        """End a sequence, and yield it."""
        run, folds, self._run, self._folds, self._answered = self._run, self._folds, [], 0, 0
        if not any(each.takes_slot for each in itertools.islice(self.held, folds)):
            for _ in range(folds):  # there is nothing to gain for a copy alone
                yield self.held.popleft()
            return
        sequence = _made_of(self._library, run, decides=decides)
        if self._told is not None:
            sequence.told, sequence.into = self._told, self._told.into
        for _ in range(folds):
            self.held.popleft()
        yield sequence


def _one_by_one(planned: Iterable[CommandRequest | Series]) -> Iterator[CommandRequest | Series]:
    for each in planned:
        if isinstance(each, Series) and each.folds:
            yield from each
        else:
            yield each


def _answered(part: _Part) -> int:
    return -(-part.request.slot_bytes // _ANSWER) * _ANSWER


def _writes(parts: Sequence[_Part], block: Block) -> bool:
    return any(each is block and role is not Role.READ for part in parts for each, role in part.request.operands)


def _parts_of(request: CommandRequest) -> list[_Part] | None:
    """Return the steps that a command is; None if it is to be sent by itself."""
    if isinstance(request, JoinedRequest):
        parts = [_part_of_call(each) for each in request.parts]
        return None if None in parts else cast("list[_Part]", parts)
    if isinstance(request, CallRequest):
        part = _part_of_call(request)
        return None if part is None else [part]
    if request.verb in _ADDRESSES and not request.takes_slot:
        payload = request.payload
        places = _ADDRESSES[request.verb]
        addresses = tuple((place, int.from_bytes(payload[place : place + WORD], "little")) for place in places)
        return [_Part(request, payload, addresses)]
    return None


def _part_of_call(request: CallRequest) -> _Part | None:
    addresses = request.addresses()
    return None if addresses is None else _Part(request, request.payload, addresses)


def _made_of(library: Library, parts: Sequence[_Part], *, decides: bool) -> SequenceRequest:
    words = [0]
    numbers: dict[int, int] = {}
    steps, kinds = [], []
    answers: list[_Answer] = []
    answered = 0
    for part in parts:
        request, payload, addresses = part
        holes = []
        for place, address in addresses:
            if address not in numbers:
                numbers[address] = len(words)
                words.append(address)
            holes.append(Hole(place, numbers[address], 0))
        if isinstance(request, CallRequest):
            kinds.append(request.kind)
            if request.answer is None and request.reads_answer:
                holes.append(Hole(STAGING_AT, 0, answers[-1].offset))
            if request.answer is not None:
                holes.append(Hole(STAGING_AT, 0, answered))
                answers.append(_Answer(answered, request.answer, request.check))
                answered += _answered(part)
        steps.append(Step(request.verb.engine_number, request.verb.number, _without(payload, holes), tuple(holes)))
    operands = merged_roles([part.request for part in parts])
    numbered = {block: number for number, (block, _) in enumerate(operands)}
    calls = [part.request for part in parts if isinstance(part.request, CallRequest)]
    main = next((call for call in calls if call.check is not None), calls[0])
    content = Content(steps)
    table = cast("SequenceTable", library._table)
    kind = library._device.part(Plans).plan(table, content, lambda: content, (), main.operation)
    sequence = CallSequence(
        _Kind(kind, table, quick=all(call.is_quick for call in calls)),
        tuple(kinds),
        main.operation,
        tuple(part.request.operation for part in parts),
        tuple(tuple((numbered[block], role) for block, role in part.request.operands) for part in parts),
        tuple(answers),
        answered,
    )
    keep = [part.request.keep for part in parts]
    lane = calls[0].lane
    return SequenceRequest(sequence, words, operands, lane=lane, keep=keep, decides=decides, calls=calls)


def _without(payload: bytes, holes: Sequence[Hole]) -> bytes:
    """Return a payload with zeros in the holes."""
    content = bytearray(payload)
    for hole in holes:
        content[hole.offset : hole.offset + WORD] = bytes(WORD)
    return bytes(content)
