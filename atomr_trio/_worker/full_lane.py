"""What the loop's thread does while a lane's stream is full, and the next record is a call that is ready for it.

A ready call that is queued is read by one thread and made by another, and costs several times what it costs the loop
that makes it straight from the ring. So the loop's thread waits until the stream has room again, as long as that keeps
nobody else waiting. Meanwhile it reads ahead: the records of other lanes are taken from behind the one that waits, as
far as their lanes can make them without waiting for a record that was left. These keep their slots, and are passed over
when their turn comes.

Lanes may overtake each other anyway: what one needs of another is among the waits of its record. A record of the worker
itself, or one that comes by the socket, is overtaken by none. If there is one, or if the ring is full and nobody knows
what waits behind it, the call goes to its lane's queue, and the records behind it are read as they come. So it is, too,
if nothing has finished on the lane for `STALLED_SECONDS`: what takes so long gains nothing, and the user's process
takes a worker for stopped that reads nothing at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from .._wire.protocol import (
    CONTROL_LANE,
    GROUP_LIMIT,
    HEADER,
    RECORDS_SENT_WORD,
    REPEATED,
    SENDER_WAITS_WORD,
    SOCKET_LANE,
    decode_wait,
)
from .._wire.ring import NUMBER, SLOT_MASK, SLOT_SHIFT
from .base.lanes import Lane, sign_for_room

STALLED_SECONDS = 0.05
MUCH_ROOM: Final = 2 * GROUP_LIMIT
"""Commands that must fit into a stream that was full before the loop's thread goes on: many at once, not one by one."""
_OF_NO_LANE = (CONTROL_LANE, SOCKET_LANE)


class FullLane:
    """The loop's thread while a lane is full, and the records that it has taken before their turn."""

    def __init__(
        self,
        words: memoryview[int],
        slots: memoryview,
        lanes: Callable[[], Mapping[int, Lane]],
        poisoned: Callable[[], bool],
        take: Callable[[memoryview, int], object],
        turn: Callable[[], None],
        patience: float,
        period: float,
    ) -> None:
        """`poisoned` tells whether the context is lost; `take` reads the record in a slot and does what it says.

        `turn` is called again and again during the wait, without a pause for `patience` and then every `period`, in
        seconds.
        """
        self._words = words
        self._slots = slots
        self._lanes = lanes
        self._poisoned = poisoned
        self._take = take
        self._turn = turn
        self._patience = patience
        self._period = period
        self._taken: set[int] = set()
        self._seen = 0
        """The number of the last record that was looked at. Those before it were read, or taken, or left."""
        self._left: set[int] = set()
        """The lanes of the records that were left. No other record of them is taken before these are read."""

    def has_taken(self, number: int) -> bool:
        """Return whether this record, which is the next one, was taken before its turn."""
        if number not in self._taken:
            return False
        self._taken.remove(number)
        return True

    def wait(self, lane: Lane, ticket: int, number: int) -> bool:
        """Wait until a lane has room for the ready call of the next record, and return whether it has.

        If not, the lane's queue must take it.
        """
        if number > self._seen:
            self._seen, self._left = number, {lane.index}
        words, clock = self._words, time.perf_counter
        now = clock()
        until, stalled, finished = now + self._patience, now + STALLED_SECONDS, lane.finished
        while not (lane.takes_at_once(ticket) and ticket + MUCH_ROOM <= lane.room_until):
            if (
                not self._lacks_room_alone(lane, ticket)
                or words[SENDER_WAITS_WORD]
                or not self._read_ahead(words[RECORDS_SENT_WORD])
            ):
                return False
            sign_for_room(lane)
            self._turn()
            now = clock()
            if lane.finished != finished:
                stalled, finished = now + STALLED_SECONDS, lane.finished
            elif now >= stalled:
                return False
            if now > until:
                time.sleep(self._period)
        return True

    def _lacks_room_alone(self, lane: Lane, ticket: int) -> bool:
        """Return whether the lane can make the call with this ticket, its next one, once it has room."""
        in_turn = ticket == lane.accepted + 1 and not lane.pending
        return in_turn and lane.stream is not None and not self._poisoned()

    def _read_ahead(self, sent: int) -> bool:
        """Take the records of other lanes; false if there is a record that none overtakes."""
        slots = self._slots
        while self._seen < sent:
            at = (self._seen & SLOT_MASK) << SLOT_SHIFT
            (number,) = NUMBER.unpack_from(slots, at)
            _, index, _, verb, count, _ = HEADER.unpack_from(slots, at + NUMBER.size)
            if index in _OF_NO_LANE or number != self._seen + 1:
                return False
            self._seen = number
            if index in self._left:
                continue
            if verb & REPEATED or self._are_submitted(at + NUMBER.size + HEADER.size, count):
                self._taken.add(number)
                self._take(slots, at)
            else:
                self._left.add(index)
        return True

    def _are_submitted(self, at: int, count: int) -> bool:
        """Return whether all that a record waits for was given to the driver. Its waits begin at this place."""
        lanes = self._lanes()
        for place in range(at, at + 8 * count, 8):
            index, ticket, _ = decode_wait(int.from_bytes(self._slots[place : place + 8], "little"))
            lane = lanes.get(index)
            if lane is None or lane.submitted < ticket:
                return False
        return True
