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
    "notes",
    "noted",
    "noted_entries",
    "counted",
    "counted_entries",
)
"""See `Lane`: three tickets, the number of commands in the queue, the number of threads in `wait_submitted`, the
entries of the stream's queue beyond one for each command, the stream (0 if there is none), the addresses of its counter
for this process and for the device, the address of the sizes of its groups (0 if there are none), and the entries that
commands without a ticket of their own have made beyond one each.

Then the notes of native code, each a ticket and the entries beyond one: the address of a ring of `NOTES` of them, how
many were written, and the sum of their entries. Native code alone writes both numbers. The last two are how many of
these notes Python has counted, because their tickets are reached, and the sum of the entries in them."""
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
    NOTES_ADDRESS,
    NOTED,
    NOTED_ENTRIES,
    COUNTED,
    COUNTED_ENTRIES,
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
that was refused, the address of its entry, and the number of the function among those of its record."""
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


NOTES: Final = 256
"""A power of two. Native code makes no call that needs a note while so many are not counted."""
MOST_ARGUMENTS: Final = 24
"""The most arguments of a function that native code calls: those of the largest of cuBLAS."""
MOST_FLOATS: Final = 4
"""The most arguments besides these that are floating-point numbers by value: those of cuRAND are two."""


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


class Arguments(Words):
    """The arguments of a function for native code: integers and addresses, behind them floating-point numbers."""

    __slots__ = ()

    def __init__(self, words: Sequence[int], floats: Sequence[int] = ()) -> None:
        """A number of `floats` is the bits of a floating-point number, of 32 bits or of 64."""
        super().__init__(MOST_ARGUMENTS + MOST_FLOATS)
        self.set(words)
        for place, bits in enumerate(floats):
            self.view[MOST_ARGUMENTS + place] = bits


def address_of(memory: memoryview[int]) -> int:
    """Return the address of shared memory, which must not be unmapped while that is used."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
