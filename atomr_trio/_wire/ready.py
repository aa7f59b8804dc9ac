"""Ready records: calls that differ from each other in a few words, so the worker prepares them once.

A record of the ring whose verb has the flag `REPEATED` describes itself completely; the worker needs no definition
ahead, and any worker can take any of them. It has no waits. Behind the header come

1. `READY`: the identity of the call, and the places of its words, as offsets in the payload, zeros behind the last;
2. the words, 8 bytes each, whose number is where other records have the number of their waits;
3. the payload of the verb, with zeros at the places of the words.

The length in the header counts 1 and 3. A word is all that may change from one call to the next: the address of an
array, a number, the place of an answer on the host. A call that repeats exactly needs no words.

**How the worker finds the call that it has prepared.** By the rest of the header and by `READY`: together they are as
long as what is the same in each record of one launch, so the loop of the worker looks both up in the same way. And the
words lie where the parameters of a launch lie. The sender gives an identity once for all that is constant in a record:
records with the same identity and header have the same places and payload. So the payload is read once in the life of
a prepared call, and after that only the words.

**The general way** puts the words into the payload and goes on as with any other record. It is taken when the call
cannot be prepared (now), and it has the same effect.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Final

from .protocol import HEADER
from .ring import MAX_RECORD

MOST_WORDS: Final = 16
WORD: Final = struct.Struct("<Q")
READY: Final = struct.Struct(f"<Q{MOST_WORDS}H")
WORDS_AT: Final = HEADER.size + READY.size
"""The offset of the words in a record."""

_numbers = itertools.count(1)


def new_identity() -> int:
    """Return a number that no call of this process had before."""
    return next(_numbers)


def has_room(words: int, payload: int) -> bool:
    """Return whether a call with so many words, and so many bytes of payload, can be a ready record."""
    return words <= MOST_WORDS and WORDS_AT + WORD.size * words + payload <= MAX_RECORD


def ready_head(identity: int, places: Sequence[int]) -> bytes:
    """Return what is in front of the words."""
    return READY.pack(identity, *places, *(0,) * (MOST_WORDS - len(places)))


def with_holes(payload: bytes, places: Sequence[int]) -> bytes:
    """Return a payload with zeros at the places of the words, as the record has it."""
    return filled(payload, places, (0,) * len(places))


def filled(payload: bytes, places: Sequence[int], words: Sequence[int]) -> bytes:
    """Return a payload with these words at their places."""
    content = bytearray(payload)
    for place, word in zip(places, words, strict=True):
        WORD.pack_into(content, place, word)
    return bytes(content)


class ReadyRecord:
    """What is constant in a ready record, taken apart."""

    __slots__ = ("count", "payload", "places", "words")

    def __init__(self, behind: bytes, count: int) -> None:
        """Read what is behind the header of a record with `count` words. Raises `ValueError` if it is corrupt."""
        begin = READY.size + WORD.size * count
        if count > MOST_WORDS or len(behind) < begin:
            raise ValueError(f"a ready record with {count} words has {len(behind)} bytes")
        _, *places = READY.unpack_from(behind)
        self.count: int = count
        self.places: tuple[int, ...] = tuple(places[:count])
        self.payload: bytes = behind[begin:]
        self.words: struct.Struct = struct.Struct(f"<{count}Q")
        """Reads the words."""
        if any(places[count:]) or any(place > len(self.payload) - WORD.size for place in self.places):
            raise ValueError(f"a ready record with {count} words has places {places} in {len(self.payload)} bytes")
        if any(next_ - place < WORD.size for place, next_ in itertools.pairwise(sorted(self.places))):
            raise ValueError(f"the words of a ready record overlap: {self.places}")

    def filled(self, words: Sequence[int]) -> bytes:
        """Return the payload that the general way reads."""
        return filled(self.payload, self.places, words) if self.count else self.payload


def general_payload(behind: bytes, count: int) -> bytes:
    """Return the payload of a ready record, which the general way reads. Raises `ValueError` if it is corrupt."""
    record = ReadyRecord(behind, count)
    return record.filled(record.words.unpack_from(behind, READY.size))
