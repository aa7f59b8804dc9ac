"""The words that the ring's loop shares with other threads of the worker, and with native code.

Each is a 64-bit word of memory that stays in its place. It is read and written whole, through a view of such words or
by native code, so that it is seen whether the loop of Python or the native loop runs. Only the words that are named
here are shared; ``native_layout.py`` makes the offsets of the native code from the same names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final

# --- of a lane --------------------------------------------------------------------------------------------------------

LANE_WORDS: Final = (
    "accepted",
    "submitted",
    "signed",
    "pending",
    "waiters",
    "surplus",
    "stream",
    "counter",
    "counter_on_device",
    "groups",
    "unsigned_entries",
)
"""See `Lane`: three tickets, the number of commands in the queue, the number of threads in `wait_submitted`, the
entries of the stream's queue beyond one for each command, the stream (0 if there is none), the addresses of its counter
for this process and for the device, the address of the sizes of its groups (0 if there are none), and the entries that
commands without a ticket of their own have made beyond one each."""
(
    ACCEPTED,
    SUBMITTED,
    SIGNED,
    PENDING,
    WAITERS,
    SURPLUS,
    STREAM,
    COUNTER,
    COUNTER_ON_DEVICE,
    LANE_GROUPS,
    UNSIGNED_ENTRIES,
) = range(len(LANE_WORDS))

# --- of the loop ------------------------------------------------------------------------------------------------------

LOOP_WORDS: Final = (
    "turns",
    "poisoned",
    "stale",
    "slots",
    "page",
    "table",
    "table_mask",
    "launch",
    "write_value",
    "sched_yield",
    "clock_gettime",
    "most",
    "patience",
    "told",
    "status",
    "entry",
    "part",
)
"""A number that goes on while the loop lives; 1 when the context is lost; 1 when some of the table's entries are not
valid any more; the addresses of the ring's slots, the timeline page and the table; the number of the table's places
less one; the addresses of four functions; the most records of a call; the nanoseconds that it waits for a record; the
sum of the counters of which the user's process was told. The native code writes the last three: the status of a call
that was refused, the address of its entry, and 1 if it was the second call of a record."""
(
    TURNS,
    POISONED,
    STALE,
    SLOTS_ADDRESS,
    PAGE_ADDRESS,
    TABLE,
    TABLE_MASK,
    LAUNCH,
    WRITE_VALUE,
    SCHED_YIELD,
    CLOCK_GETTIME,
    MOST,
    PATIENCE,
    TOLD,
    STATUS,
    ENTRY,
    PART,
) = range(len(LOOP_WORDS))


MOST_ARGUMENTS: Final = 24
"""The most arguments of a function that native code calls: those of the largest of cuBLAS."""


class Words:
    """Words in memory of their own."""

    __slots__ = ("_array", "address", "view")

    def __init__(self, count: int) -> None:
        self._array: Any = (ctypes.c_uint64 * count)()
        self.address: int = ctypes.addressof(self._array)
        self.view: memoryview[int] = memoryview(self._array).cast("B").cast("Q")

    def set(self, words: Sequence[int]) -> None:
        """Set the first words; a negative number becomes the word with the same bits."""
        for place, word in enumerate(words):
            self.view[place] = word % (1 << 64)


def address_of(memory: memoryview[int]) -> int:
    """Return the address of shared memory, which must not be unmapped while that is used."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
