"""The ring: records in memory that the user's process and its worker share.

A record in the ring costs the sender two stores and no system call, and a worker that is awake sees it at once. Every
record has its place here, so the ring's order is the order of submission; one that carries a descriptor, or is too
large for a slot, goes by the socket, and a slot that says so stands where it belongs. (A worker without a ring gets
everything by the socket. That is so on processors whose stores may be seen in another order than they were made.)

**Who writes what.** The user's process alone writes the slots and ``RECORDS_SENT`` (how many records there are so
far), by one thread. The worker alone writes ``RECORDS_READ``, by its loop thread. Record number n, counted from 1, lies
in slot n - 1, modulo the number of slots, and begins with n.

**In what order, and why that is safe.**

1. The sender writes a slot only while ``sent - read < SLOTS``. The worker counts a record as read when it has copied
   or carried out what the slot held, so a slot is not written again before.
2. The sender writes the slot first and ``RECORDS_SENT`` last; the worker reads ``RECORDS_SENT`` first. x86 makes stores
   visible in the order in which they were made, and does not read ahead of an earlier read, so a counted record is
   complete. Each word is stored whole (through a view of 64-bit words) and has a cache line of its own.
3. Sleeping. The worker sets ``WORKER_ASLEEP``, then reads ``RECORDS_SENT`` once more, and sleeps on its doorbell only
   if nothing came; the sender stores ``RECORDS_SENT``, then reads ``WORKER_ASLEEP``, and rings if it is set. x86 may
   make a store wait while a later load goes ahead, and if both sides did that at once both would miss the other. So
   each executes a locked instruction between its store and its load (`fence`), which x86 orders with everything. Of a
   batch's launches only every sixteenth does, and the mark at its end: one that is missed waits for the next of those.
   The worker looks again after `NET_SECONDS` all the same.
4. A lost worker takes nothing along: slots are read, never written, by it, and each generation has a ring of its own.

**A corrupt ring** is a worker fault, never a wild call: the worker checks that the slot has the number it expects and
that the lengths fit, and ends if they do not; what it is told to call with is checked like a record of the socket.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Collection
from typing import Final

from .channel import SharedMemory
from .protocol import HEADER, MAX_LANES

SLOT_BYTES: Final = 512
"""Enough for a launch of fifty arguments, and for the longest record of a library's call."""
SLOTS: Final = 8192
SLOT_SHIFT: Final = SLOT_BYTES.bit_length() - 1
SLOT_MASK: Final = SLOTS - 1

NUMBER: Final = struct.Struct("<Q")
NUMBERED_HEADER: Final = struct.Struct("<Q" + HEADER.format[1:])
"""The record's number, then the header that every record has."""
MAX_RECORD: Final = SLOT_BYTES - NUMBER.size

GROUPS: Final = 8192
_GROUPS_OFFSET: Final = SLOTS * SLOT_BYTES
RING_BYTES: Final = _GROUPS_OFFSET + MAX_LANES * GROUPS

NET_SECONDS: Final = 0.1
"""How long after it has gone to sleep a worker looks again, unless it was woken."""
LATER_NET_SECONDS: Final = 1.0
"""And then: who sends now has long seen that it is asleep."""

ORDERED_STORES: Final = sys.platform == "linux" and os.uname().machine == "x86_64"
"""Whether this processor keeps the promises that the ring relies on."""

_LOCK: Final = threading.Lock()


def fence() -> None:
    """Let no load behind it be done before the stores ahead of it are seen."""
    # An uncontended lock is a locked compare-and-exchange.
    _LOCK.acquire()
    _LOCK.release()


class Ring(SharedMemory):
    """The slots, as both sides see them, and the sizes of the groups that share a ticket."""

    def __init__(self, descriptor: int, size: int = RING_BYTES) -> None:
        super().__init__(descriptor, size)
        self.slots: memoryview[int] = self.bytes[:_GROUPS_OFFSET]
        self.groups: memoryview[int] = self.bytes[_GROUPS_OFFSET:]

    @classmethod
    def new(cls) -> Ring:
        """An empty ring for a new generation."""
        ring = cls.create("atomr-trio-ring", RING_BYTES)
        assert isinstance(ring, Ring)
        return ring

    def places_of(self, tickets: Collection[tuple[int, int]], sent: int) -> dict[tuple[int, int], int]:
        """The numbers of records, given lane and ticket of each, of those that still have their slots.

        For the sender, who has `sent` so many. It looks at all slots, which takes some milliseconds.
        """
        left, places = set(tickets), {}
        for number in range(sent, max(0, sent - SLOTS), -1):
            if not left:
                break
            _, ticket, lane, *_ = NUMBERED_HEADER.unpack_from(self.slots, (number - 1 & SLOT_MASK) << SLOT_SHIFT)
            if (lane, ticket) in left:
                left.remove((lane, ticket))
                places[lane, ticket] = number
        return places

    def close(self) -> None:
        """Unmap the ring."""
        if self.descriptor >= 0:
            self.slots.release()
            self.groups.release()
        super().close()


def group_index(lane: int, first: int) -> int:
    """Where the size of the group lies whose first ticket is `first`. The worker writes it when it signs the group."""
    return lane * GROUPS + first % GROUPS
