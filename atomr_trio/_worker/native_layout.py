"""The numbers that the native loop is made with, from the definitions that the loop of Python uses.

The code of ``native_code.py`` was made with such numbers, and brings them along. A worker whose numbers differ runs the
loop of Python. Standard library alone.
"""

from __future__ import annotations

import enum
import time
from typing import Final

from atomr_cuda.constants import driver as cuda

from .._wire import protocol
from .._wire.records.module import LAUNCH
from .._wire.ring import GROUPS, NUMBER, SLOT_MASK, SLOT_SHIFT
from .base.lanes import GROUP_ENTRIES
from .base.shared_words import LANE_WORDS, LOOP_WORDS, MOST_ARGUMENTS, MOST_FLOATS, NOTES

_WORD = 8
_TICKET_BYTES = 8

KEY_OFFSET: Final = NUMBER.size + _TICKET_BYTES
"""The offset in a slot of the bytes that are the same in every record of one launch."""
KEY_BYTES: Final = protocol.HEADER.size - _TICKET_BYTES + LAUNCH.struct.size
KEY_WORDS: Final = KEY_BYTES // _WORD

ENTRY_WORDS: Final = (
    *(f"key_{index}" for index in range(KEY_WORDS)),
    "lane",
    "signs",
    "call",
    "config",
    "function",
    "size",
)
"""The words of an entry of the table: the key; the address of the lane's words; 1 if the launch asks for its ticket at
once; the address of a library's call, or 0; the arguments of ``cuLaunchKernelEx``; the size of the parameter block. An
entry without a lane is free."""
LINK_WORDS: Final = ("function", "arguments", "then", "guard", "expected", "returns")
"""The words of each function of a library's call: the addresses of the function, of its arguments, and of the same
words of the function that is called next, or 0; the address of a setting, or 0, and the number that it must be; what
the function returns unless it is refused."""
CALL_WORDS: Final = (*LINK_WORDS, "entries", "targets")
"""The words of a library's call: those of its first function; the entries of the stream's queue beyond one, and the
number of the words that follow in groups, as in `TARGET_WORDS`."""
TARGET_WORDS: Final = ("from", "most", "base", "place")
"""The words of each place for a word of the record: where among the record's words that is, in bytes; the most that it
may be; what is added to it; the address where the sum belongs."""
ENTRY_STRIDE: Final = 16
"""The words from one entry to the next."""
HASH_FACTOR: Final = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: the usual factor of multiplicative hashing."""
HASH_SHIFT: Final = 29


class Reason(enum.IntEnum):
    """The reasons for which the native loop returns."""

    EMPTY = 0
    """It has looked for a record in vain."""
    RECORD = 1
    """The next record is one for Python: it is not in the table, its lane cannot take it, or it is not as expected."""
    FAILED = 2
    """The call of the next record was refused. The record is not counted as read."""
    UNSIGNED = 3
    """The ticket of the next record was refused. Its call was made."""
    WAITERS = 4
    """A thread waits for the lane. The record is counted as read."""
    TELL = 5
    """The user's process sleeps, and a counter has grown."""
    MOST = 6
    """So many records were read, as many as one call may."""


def _numbers() -> dict[str, int]:
    cells = {
        "RECORDS_READ": protocol.RECORDS_READ_WORD,
        "RECORDS_SENT": protocol.RECORDS_SENT_WORD,
        "ASLEEP": protocol.ASLEEP_WORD,
        "FIRST_COUNTER": protocol.counter_word(0),
    }
    return {
        "KEY_OFFSET": KEY_OFFSET,
        "KEY_WORDS": KEY_WORDS,
        "TICKET_OFFSET": NUMBER.size,
        "PARAMETERS_OFFSET": NUMBER.size + protocol.HEADER.size + LAUNCH.struct.size,
        "SLOT_SHIFT": SLOT_SHIFT,
        "SLOT_MASK": SLOT_MASK,
        "GROUPS": GROUPS,
        "GROUP_LIMIT": protocol.GROUP_LIMIT,
        "GROUP_ENTRIES": GROUP_ENTRIES,
        "INLINE_LIMIT": protocol.INLINE_LIMIT,
        "MOST_ARGUMENTS": MOST_ARGUMENTS,
        "MOST_FLOATS": MOST_FLOATS,
        "NOTES": NOTES,
        "FIRST_TARGET": len(CALL_WORDS) * _WORD,
        "TARGET_STRIDE": len(TARGET_WORDS) * _WORD,
        "COUNTERS": protocol.MAX_LANES,
        "CELL": protocol.CELL,
        "ENTRY_STRIDE": ENTRY_STRIDE * _WORD,
        "HASH_FACTOR": HASH_FACTOR,
        "HASH_SHIFT": HASH_SHIFT,
        "BUFFER_POINTER": cuda.CU_LAUNCH_PARAM_BUFFER_POINTER,
        "BUFFER_SIZE": cuda.CU_LAUNCH_PARAM_BUFFER_SIZE,
        "CLOCK_MONOTONIC": time.CLOCK_MONOTONIC,
        **{f"PAGE_{name}": word * _WORD for name, word in cells.items()},
        **{f"LANE_{name.upper()}": index * _WORD for index, name in enumerate(LANE_WORDS)},
        **{f"LOOP_{name.upper()}": index * _WORD for index, name in enumerate(LOOP_WORDS)},
        **{f"ENTRY_{name.upper()}": index * _WORD for index, name in enumerate(ENTRY_WORDS)},
        **{f"CALL_{name.upper()}": index * _WORD for index, name in enumerate(CALL_WORDS)},
        **{f"TARGET_{name.upper()}": index * _WORD for index, name in enumerate(TARGET_WORDS)},
        **{f"REASON_{reason.name}": reason.value for reason in Reason},
    }


NUMBERS: Final = _numbers()
"""Every number in the source of the native loop, by its name."""
LAYOUT: Final = " ".join(f"{name}={number}" for name, number in NUMBERS.items())
"""The same as text, to be compared whole."""


def hash_of(words: tuple[int, ...]) -> int:
    """Return the hash of a key, as the native code makes it."""
    result = 0
    for word in words:
        result = (result ^ word) * HASH_FACTOR % (1 << 64)
        result ^= result >> HASH_SHIFT
    return result
