"""Calls that are ready to be made again, from the ring or by the thread of a lane that has others before them.

What is the same in every record of one launch, or of one repeated call of a library, is looked at once. The function
that makes the call is found by those bytes. It holds what it needs, addresses of workspaces too, so all are forgotten
when something of that changes; and nothing is made ready while a command that may change it is pending.

A call that is queued is looked up when its turn comes, since a command before it may have changed what it needs. The
loop thread reads as little of it as it can: while that reads, the lane's thread waits for the interpreter.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from .._wire.protocol import HEADER, REPEATED, UNSIGNED, VERB_NUMBERS, Verb
from .._wire.records.module import LAUNCH
from .._wire.ring import MAX_RECORD, NUMBER
from .base.lanes import Command, Engine, HotCall, Lane, NativeLaunch, Ready, RepeatingEngine

_LONGEST_PAYLOAD: Final = MAX_RECORD - HEADER.size
_LAUNCH = (LAUNCH.engine_number, LAUNCH.number)
_TICKET_BYTES = 8
"""The ticket is the first of a record's header, and all that differs from one launch to the next like it."""
LAUNCH_RECORD: Final = struct.Struct(f"<QQ{HEADER.size - _TICKET_BYTES + LAUNCH.struct.size}s")
"""The record's number, its ticket, and what is the same in every record of one launch."""
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
        self._engines = engines
        self._modules = modules
        self._verbs = verbs
        self._queued: dict[bytes, tuple[Verb, CallOf, bytes]] = {}
        """For such records in queues: the verb, the function that makes the call, and the payload."""

    def forget(self) -> None:
        """Some of them are not valid any more."""
        self.calls.clear()

    def of_record(self, slots: memoryview, at: int, lanes: Mapping[int, Lane]) -> HotCall | None:
        """Return the call of the record in a slot, ready to be made; None if the record must be read each time."""
        _, index, engine, verb, waits, length = HEADER.unpack_from(slots, at + NUMBER.size)
        lane = lanes.get(index)
        if waits or lane is None or lane.stream is None or lane.pending or length > _LONGEST_PAYLOAD:
            return None
        first = at + NUMBER.size + _TICKET_BYTES
        if verb & REPEATED:
            record = bytes(slots[first : at + NUMBER.size + HEADER.size + length])
            return self.calls.get(record) or self._make(record, lane, engine, verb)
        if (engine, verb & VERB_NUMBERS) != _LAUNCH:
            return None
        launch = bytes(slots[first : at + LAUNCH_RECORD.size])
        made = self._modules.hot_launch(launch[HEADER.size - _TICKET_BYTES :], length, lane)
        if made is None:
            return None
        call, native = made
        return self._keep(launch, LAUNCH, lane, (call, self._modules.launch_error), verb, native)

    def queued(self, slots: memoryview, at: int, lanes: Mapping[int, Lane]) -> tuple[Lane, Command] | None:
        """Return a repeated call as a command for a lane that has others before it; None for any other record."""
        ticket, index, engine, verb, waits, length = HEADER.unpack_from(slots, at + NUMBER.size)
        lane = lanes.get(index)
        if waits or not verb & REPEATED or lane is None or not lane.pending or length > _LONGEST_PAYLOAD:
            return None
        first = at + NUMBER.size + _TICKET_BYTES
        record = bytes(slots[first : at + NUMBER.size + HEADER.size + length])
        known = self._queued.get(record)
        if known is None:
            if len(self._queued) >= _MOST:
                self._queued.clear()
            of, call = self._verbs[engine, verb & VERB_NUMBERS]
            again = functools.partial(self._call, record, engine, verb, call)
            known = self._queued[record] = (of, again, record[HEADER.size - _TICKET_BYTES :])
        return lane, Command(known[0], known[1], ticket, (), known[2], [], unsigned=bool(verb & UNSIGNED))

    def _call(self, record: bytes, engine: int, verb: int, call: CallOf, command: Command, lane: Lane) -> Any:
        hot = self.calls.get(record) or self._make(record, lane, engine, verb)
        return call(command, lane) if hot is None else lane.repeat(command.ticket, hot)

    def _make(self, record: bytes, lane: Lane, engine_number: int, verb: int) -> HotCall | None:
        engine, number = self._engines[engine_number], verb & VERB_NUMBERS
        if not isinstance(engine, RepeatingEngine):
            return None
        call = engine.hot_call(number, record[HEADER.size - _TICKET_BYTES :], lane)
        return None if call is None else self._keep(record, engine.table.verbs[number], lane, call, verb)

    def _keep(
        self, record: bytes, verb: Verb, lane: Lane, call: Ready, number: int, native: NativeLaunch | None = None
    ) -> HotCall:
        if len(self.calls) >= _MOST:
            self.calls.clear()
        hot = self.calls[record] = HotCall(verb, lane, *call, unsigned=bool(number & UNSIGNED), native=native)
        return hot
