"""What goes to the worker: the ring, the socket, and the outbox of records that have no room in either yet.

Every record is counted, in the order of submission. A record goes into the ring; one that carries descriptors, or does
not fit in a slot, goes through the socket, and the ring has its place. Without a ring all of them go by the socket.

A short way (``_calls/launching.py``) writes its records into the ring itself. It binds this object, counts in `sent`,
and ends with `announce`. It may do so only while nothing waits in the outbox, which it would overtake: whoever puts
something there calls `close_short_ways`.
"""

from __future__ import annotations

import collections
import errno
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import trio

from .._memory.arena import Ticket
from .._values.util import Living
from .._wire import channel
from .._wire.channel import TimelinePage
from .._wire.limits import shortage
from .._wire.protocol import (
    CONTROL_LANE,
    HEADER,
    RECORDS_READ_WORD,
    RECORDS_SENT_WORD,
    SENDER_WAITS_WORD,
    SOCKET_LANE,
    Verb,
)
from .._wire.ring import MAX_RECORD, NUMBER, SLOT_MASK, SLOT_SHIFT, SLOTS, Ring, announcer, fence
from .life import Life
from .loss import Loss, LossKind
from .process import WorkerProcess
from .services import ShortPath

DRAINED_AT_ONCE = 1024
"""The number of waiting records that are sent in one turn, which takes a few milliseconds."""

_BY_SOCKET = HEADER.pack(0, SOCKET_LANE, 0, 0, 0, 0)


class Sender:
    """The way of records to one worker."""

    def __init__(self, life: Life, process: WorkerProcess, page: TimelinePage, ring: Ring | None, bell: int) -> None:
        self.sent: int = 0
        """The number of records that were sent."""
        self.ring: Ring | None = ring
        self.words: memoryview[int] = page.words
        """The words of the page, which both sides see."""
        self.announce: Callable[[], None] = announcer(page.words, bell)
        """Make the worker see the records that were counted so far, and wake it if it sleeps."""
        self.refusing: bool = False
        """True if no request may begin any more; short ways look at it before each launch that others may follow."""
        self.outbox: collections.deque[tuple[bytes, Sequence[int]]] = collections.deque()
        """Records that did not fit in the ring or the socket, with their descriptors, in order."""
        self.outbox_bytes: int = 0
        """The bytes of those records."""
        self.short_ways: Living[ShortPath] = Living()
        """The short ways into the ring, which are told of modules that are unloaded."""
        self._life = life
        self._sock = process.sock
        self._has_work = trio.Event()
        self._cut_off = False
        """True if the socket cannot be written any more."""
        life.tell(self.refuse)

    def __repr__(self) -> str:
        return f"<Sender: {self.sent} records sent, {len(self.outbox)} wait>"

    def refuse(self) -> None:
        """Take no launch by the short ways any more."""
        self.refusing = True
        self.close_short_ways()

    def close_short_ways(self) -> None:
        """Make every short way check again before its next launch, which must not overtake the work that waits here."""
        for path in self.short_ways:
            path.last_record = 0

    def room(self, counter: int, issued: int, limit: int) -> int:
        """Return the number of records that a short way may send now to a lane.

        It is the lane whose counter has this index, and which has so many tickets; `limit` is the most unfinished
        commands that it takes.
        """
        if self.refusing:
            return 0
        if self.outbox:  # sent first, so that the room that it frees counts for the next record
            self.drain()
            return 0
        words = self.words
        return min(words[counter] + limit - issued, words[RECORDS_READ_WORD] + SLOTS - self.sent)

    def copies_of(self, descriptors: Sequence[int], operation: str) -> list[int]:
        """Return copies of the descriptors that a record will carry: their owner may close them before it is sent.

        They are made before the command has a ticket, because a command with a ticket must be sent. Raises
        `OutOfHostMemory`.
        """
        copies: list[int] = []
        try:
            with self._life.host_limits("a descriptor cannot be handed to the worker", operation):
                copies.extend(map(os.dup, descriptors))
        except BaseException:
            close_all(copies)
            raise
        return copies

    def send(self, record: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a record, or let it wait for room; the descriptors are closed when it is sent."""
        if (not self.outbox or self.drain()) and self._sent_now(record, descriptors):
            if descriptors:
                close_all(descriptors)
            return
        self.outbox.append((record, descriptors))
        self.outbox_bytes += len(record)
        self.close_short_ways()
        self.drain()

    def send_control(self, verb: Verb, payload: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        """Send a record of the worker itself, which has no ticket."""
        header = HEADER.pack(0, CONTROL_LANE, verb.engine_number, verb.number, 0, len(payload))
        self.send(header + payload, descriptors)

    def drain(self) -> bool:
        """Send waiting records, in order, as far as there is room. Returns whether none waits any more."""
        until = self.sent + DRAINED_AT_ONCE
        while self.outbox:
            record, descriptors = self.outbox[0]
            if self.sent >= until:  # the writer goes on, after other tasks have run
                self._has_work.set()
                return False
            if not self._sent_now(record, descriptors):
                if not self._may_have_room():
                    return False
                continue
            self.outbox.popleft()
            self.outbox_bytes -= len(record)
            close_all(descriptors)
        return True

    def places_of(self, launches: Collection[Ticket]) -> Mapping[Ticket, int]:
        """The numbers of the records of launches that went the short way, which leads into the ring."""
        return {} if self.ring is None else self.ring.places_of(launches, self.sent)

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Send records that did not fit in the socket. For those of the ring, the worker tells when there is room."""
        while not self._cut_off:
            await self._has_work.wait()
            await trio.lowlevel.wait_writable(self._sock)
            self._has_work = trio.Event()
            self.drain()

    def close(self) -> None:
        """Drop what waits: there is no worker any more."""
        while self.outbox:
            close_all(self.outbox.popleft()[1])

    def _may_have_room(self) -> bool:
        """Ask to be told when there is room again. Returns whether there is room already."""
        words = self.words
        if self.ring is None or self.sent - words[RECORDS_READ_WORD] < SLOTS:
            self._has_work.set()
            return False
        words[SENDER_WAITS_WORD] = 1
        fence()  # as in ``ring.py``: the worker publishes what it has read, and then checks who waits
        return self.sent - words[RECORDS_READ_WORD] < SLOTS

    def _sent_now(self, record: bytes, descriptors: Sequence[int]) -> bool:
        """Send a record, if there is room for it. A record that can never be sent loses the generation."""
        ring = self.ring
        if ring is None:
            sent = self._sent_by_socket(record, descriptors)
            self.sent += sent
            return sent
        if self.sent - self.words[RECORDS_READ_WORD] >= SLOTS:
            return False
        if descriptors or len(record) > MAX_RECORD:
            if not self._sent_by_socket(record, descriptors):
                return False
            record = _BY_SOCKET
        at = (self.sent & SLOT_MASK) << SLOT_SHIFT
        NUMBER.pack_into(ring.slots, at, self.sent + 1)
        ring.slots[at + NUMBER.size : at + NUMBER.size + len(record)] = record
        self.sent += 1
        self.words[RECORDS_SENT_WORD] = self.sent
        self.announce()
        return True

    def _sent_by_socket(self, record: bytes, descriptors: Sequence[int]) -> bool:
        try:
            channel.send_bytes(self._sock, record, descriptors)
        except OSError as error:
            if shortage(error) is not None:  # the socket is full, or the system is short of memory: it may pass
                return False
            self._send_failed(error)
        return True

    def _send_failed(self, error: OSError) -> None:
        """Lose the generation: a record that cannot be sent has a ticket already."""
        self._cut_off = True
        # When the worker is gone, its exit is the reason.
        if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN):
            reason = f"a record could not be sent to the worker: {error}"
            self._life.lose(Loss(LossKind.EXIT, reason, reported_by="the writer"))


def close_all(descriptors: Iterable[int]) -> None:
    """Close file descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)
