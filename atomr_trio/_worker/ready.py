"""Calls that are ready to be made again, from the ring or by the thread of a lane that has others before them.

What is the same in every record of one launch, or in every ready record of one call (``_wire/ready.py``), is looked at
once. The function that makes the call is found by those bytes, 48 of them in both cases. It holds what it needs,
addresses of workspaces too, so all are forgotten when something of that changes; and nothing is made ready while a
command that may change it is pending.

A call that is queued is looked up when its turn comes, since a command before it may have changed what it needs. The
loop thread reads as little of it as it can: while that reads, the lane's thread waits for the interpreter.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from .._wire.protocol import HEADER, REPEATED, UNSIGNED, VERB_NUMBERS, Verb
from .._wire.ready import READY, WORDS_AT, ReadyRecord
from .._wire.records.module import LAUNCH
from .._wire.ring import MAX_RECORD, NUMBER
from .base.lanes import Command, Engine, HotCall, Lane, NativeLaunch, RepeatingEngine

_LONGEST_PAYLOAD: Final = MAX_RECORD - HEADER.size
_LAUNCH = (LAUNCH.engine_number, LAUNCH.number)
_TICKET_BYTES = 8
"""The ticket is the first of a record's header, and all that differs from one launch to the next like it."""
LAUNCH_RECORD: Final = struct.Struct(f"<QQ{HEADER.size - _TICKET_BYTES + LAUNCH.struct.size}s")
"""The record's number, its ticket, and what is the same in every record of one launch, or of one ready call."""
BEHIND: Final = LAUNCH_RECORD.size
"""Where in a slot the parameters of a launch begin, and the words of a ready record."""
if LAUNCH.struct.size != READY.size or NUMBER.size + WORDS_AT != BEHIND:
    raise AssertionError("a launch and a ready record are looked up by as many bytes")
_KEY: Final = slice(NUMBER.size + _TICKET_BYTES, BEHIND)
_MOST: Final = 8192
"""Launches and calls that are kept ready; each takes 2 to 3 KB."""

CallOf = Callable[[Command, Lane], Any]


class LaunchingEngine(Protocol):
    """The engine whose launches can be made ready."""

    def hot_launch(
        self, fields: bytes, length: int, lane: Lane
    ) -> tuple[Callable[[int], int], NativeLaunch | None] | None:
        """Return a function that launches with the parameter block at an address, and the same for native code; None if
        that cannot be."""

    def launch_error(self, status: int) -> Exception:
        """Return the error of a launch that was refused."""


class _Known:
    """One ready call: what is constant in its records, and what makes it in the general way."""

    __slots__ = ("call", "record", "verb")

    def __init__(self, record: ReadyRecord, verb: Verb, call: CallOf) -> None:
        self.record: ReadyRecord = record
        self.verb: Verb = verb
        self.call: CallOf = call


class ReadyCalls:
    """The calls that one set of engines has made ready."""

    def __init__(
        self,
        engines: Mapping[int, Engine],
        modules: LaunchingEngine,
        verbs: Mapping[tuple[int, int], tuple[Verb, CallOf]],
    ) -> None:
        self.calls: Final[dict[bytes, HotCall]] = {}
        """By what is the same in each of their records."""
        self._alone: dict[bytes, HotCall] = {}
        """Those that are made one by one, because each has to note what it puts into the stream."""
        self._engines = engines
        self._modules = modules
        self._verbs = verbs
        self._known: dict[bytes, _Known] = {}

    def forget(self) -> None:
        """Some of them are not valid any more."""
        self.calls.clear()
        self._alone.clear()
        self._known.clear()

    def of_record(self, slots: memoryview, at: int, lanes: Mapping[int, Lane]) -> HotCall | None:
        """Return the call of the record in a slot, ready to be made; None if the record must be read each time.

        Raises `ValueError` for a corrupt record.
        """
        _, index, engine, verb, count, length = HEADER.unpack_from(slots, at + NUMBER.size)
        lane = lanes.get(index)
        if lane is None or lane.stream is None or lane.pending:
            return None
        if verb & REPEATED:
            key = bytes(slots[at + _KEY.start : at + _KEY.stop])
            return self.calls.get(key) or self._alone.get(key) or self._make(key, self._of(key, slots, at), lane)
        if count or length > _LONGEST_PAYLOAD or (engine, verb & VERB_NUMBERS) != _LAUNCH:
            return None
        launch = bytes(slots[at + _KEY.start : at + _KEY.stop])
        made = self._modules.hot_launch(launch[HEADER.size - _TICKET_BYTES :], length, lane)
        if made is None:
            return None
        call, native = made
        error = self._modules.launch_error
        return self._keep(launch, HotCall(LAUNCH, lane, call, error, unsigned=_unsigned(launch), native=lambda: native))

    def holds(self, key: bytes, hot: HotCall) -> bool:
        """Return whether a call is still ready."""
        return (self.calls.get(key) or self._alone.get(key)) is hot

    def queued(self, slots: memoryview, at: int, lanes: Mapping[int, Lane]) -> tuple[Lane, Command] | None:
        """Return a ready record as a command for a lane that has others before it; None for any other record.

        Raises `ValueError` for a corrupt record.
        """
        ticket, index, _, verb, _, _ = HEADER.unpack_from(slots, at + NUMBER.size)
        lane = lanes.get(index)
        if not verb & REPEATED or lane is None or not lane.pending:
            return None
        key = bytes(slots[at + _KEY.start : at + _KEY.stop])
        known = self._of(key, slots, at)
        words = known.record.words.unpack_from(slots, at + BEHIND)
        again = functools.partial(self._call, key, known, words)
        return lane, Command(known.verb, again, ticket, (), b"", [], unsigned=bool(verb & UNSIGNED))

    def _of(self, key: bytes, slots: memoryview, at: int) -> _Known:
        """Return what is constant in the ready record in a slot."""
        known = self._known.get(key)
        if known is None:
            _, _, engine, verb, count, length = HEADER.unpack_from(slots, at + NUMBER.size)
            size = HEADER.size + 8 * count + length
            if size > MAX_RECORD:
                raise ValueError(f"a record of {size} bytes has no place in a slot of the ring")
            begin = at + NUMBER.size + HEADER.size
            record = ReadyRecord(bytes(slots[begin : at + NUMBER.size + size]), count)
            if len(self._known) >= _MOST:
                self._known.clear()
            known = self._known[key] = _Known(record, *self._verbs[engine, verb & VERB_NUMBERS])
        return known

    def _call(self, key: bytes, known: _Known, words: tuple[int, ...], command: Command, lane: Lane) -> Any:
        hot = self.calls.get(key) or self._alone.get(key) or self._make(key, known, lane)
        if hot is not None:
            return lane.repeat(command.ticket, hot, words)
        command.payload = known.record.filled(words)
        return known.call(command, lane)

    def _make(self, key: bytes, known: _Known, lane: Lane) -> HotCall | None:
        engine, record = self._engines[known.verb.engine_number], known.record
        if not isinstance(engine, RepeatingEngine):
            return None
        ready = engine.hot_call(known.verb.number, record.payload, lane, record.places)
        if ready is None:
            return None
        words = record.words.unpack_from if record.count else None
        unsigned = _unsigned(key)
        call, error, alone, native, again, bounded = ready
        native = None if alone and not bounded else native
        hot = HotCall(known.verb, lane, call, error, unsigned=unsigned, words=words, native=native, again=again)
        return self._keep(key, hot, alone=alone)

    def _keep(self, key: bytes, hot: HotCall, *, alone: bool = False) -> HotCall:
        if len(self.calls) + len(self._alone) >= _MOST:
            self.forget()
        (self._alone if alone else self.calls)[key] = hot
        return hot


def _unsigned(key: bytes) -> bool:
    return bool(key[2] & UNSIGNED)
