"""The ring: records in memory that the user's process and its worker share.

A record in the ring costs the sender two stores and no system call, and a worker that is awake sees it at once. Every
record has a slot, so the ring's order is the order of submission. A record that carries a descriptor, or is too large
for a slot, goes through the socket, and its slot says so. (A worker without a ring gets everything through the socket.
That is the case on processors that may show stores in another order than they were made.)

**The writers.** The user's process alone writes the slots and ``RECORDS_SENT`` (how many records there are so far), by
one thread. The worker alone writes ``RECORDS_READ``, by its loop thread. Record number n, counted from 1, lies in slot
n - 1, modulo the number of slots, and begins with n.

**The order of the stores, and why it is safe.**

1. The sender writes a slot only while ``sent - read < SLOTS``. The worker counts a record as read when it has copied or
   executed the content of the slot, so the slot is not overwritten before that.
2. The sender writes the slot first and ``RECORDS_SENT`` last; the worker reads ``RECORDS_SENT`` first. x86 makes stores
   visible in the order in which they were made, and does not read ahead of an earlier read, so a counted record is
   complete. Each word is stored whole (through a view of 64-bit words) and has a cache line of its own.
3. Sleeping. The worker sets ``WORKER_ASLEEP``, then reads ``RECORDS_SENT`` once more, and sleeps on its doorbell only
   if nothing came; the sender stores ``RECORDS_SENT``, then reads ``WORKER_ASLEEP``, and rings if it is set. x86 may
   delay a store past a later load. If both sides did that at the same time, each would miss the other. So each executes
   a locked instruction (`fence`) between its store and its load; x86 orders it with everything. In a batch only every
   16th launch executes one, and the mark at the end: a launch that the worker misses waits for the next of these. In
   any case the worker looks again after `NET_SECONDS`.
4. A lost worker damages nothing: it only reads slots, and each generation has its own ring.

**A corrupt ring** is a worker fault, never a wild call. The worker checks that the slot has the expected number and
that the lengths fit, and ends if they do not. The arguments of a call are checked like those of a record of the socket.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Callable, Collection
from typing import Final

from .channel import SharedMemory
from .protocol import HEADER, MAX_LANES, WORKER_ASLEEP_WORD

SLOT_BYTES: Final = 512
"""The bytes of a slot: enough for a launch of fifty arguments, and for the longest record of a library's call."""
SLOTS: Final = 8192
SLOT_SHIFT: Final = SLOT_BYTES.bit_length() - 1
SLOT_MASK: Final = SLOTS - 1

NUMBER: Final = struct.Struct("<Q")
NUMBERED_HEADER: Final = struct.Struct("<Q" + HEADER.format[1:])
"""The record's number, then the header that every record has."""
NEW_IN_EACH: Final = "<QQ"
"""The format of what is new in each record: its number, and its ticket."""
SAME_IN_ALL: Final = struct.Struct("<" + HEADER.format[2:])
"""The header without the ticket. It is the same in all records of one launch, whose sender makes it once."""
MAX_RECORD: Final = SLOT_BYTES - NUMBER.size


def record_struct(form: str) -> struct.Struct:
    """Return the `struct` of records of a little-endian format, in the form that packs 64-bit words fastest.

    Python packs an address as ``N``, a word of the machine's size, in half the time that it takes as ``Q``. Only native
    formats have an ``N``. They may add padding, and may have larger fields, but no smaller ones. So a native format of
    the same size has the same layout.
    """
    exact, native = struct.Struct(form), struct.Struct("@" + form.removeprefix("<").replace("Q", "N"))
    is_same = native.size == exact.size and sys.byteorder == "little" and sys.maxsize > 1 << 32
    return native if is_same else exact


GROUPS: Final = 8192
_GROUPS_OFFSET: Final = SLOTS * SLOT_BYTES
RING_BYTES: Final = _GROUPS_OFFSET + MAX_LANES * GROUPS

NET_SECONDS: Final = 0.1
"""Seconds after which a sleeping worker looks again, unless it was woken."""
LATER_NET_SECONDS: Final = 1.0
"""Seconds between the looks after that: by then the sender has seen that the worker sleeps."""

ORDERED_STORES: Final = sys.platform == "linux" and os.uname().machine == "x86_64"
"""True if this processor keeps the order of stores that the ring relies on."""

_LOCK: Final = threading.Lock()


def fence() -> None:
    """Prevent later loads from being executed before earlier stores are visible."""
    # An uncontended lock is a locked compare-and-exchange.
    _LOCK.acquire()
    _LOCK.release()


def announcer(words: memoryview[int], bell: int) -> Callable[[], None]:
    """Return the sender's last step after it has counted a record: a fence, and the doorbell if the worker sleeps.

    `words` are those of the page, and `bell` is the descriptor of the doorbell.
    """
    acquire, release, ring = _LOCK.acquire, _LOCK.release, os.eventfd_write

    def announce() -> None:
        acquire()  # a fence, without the call of one
        release()
        if words[WORKER_ASLEEP_WORD]:
            ring(bell, 1)

    return announce


class Ring(SharedMemory):
    """The slots, as both sides see them, and the sizes of the groups that share a ticket."""

    def __init__(self, descriptor: int, size: int = RING_BYTES) -> None:
        super().__init__(descriptor, size)
        self.slots: memoryview[int] = self.bytes[:_GROUPS_OFFSET]
        self.groups: memoryview[int] = self.bytes[_GROUPS_OFFSET:]

    @classmethod
    def new(cls) -> Ring:
        """Make an empty ring for a new generation."""
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
    """Return the offset of the size of the group whose first ticket is `first`. The worker writes it when it signs the
    group."""
    return lane * GROUPS + first % GROUPS
