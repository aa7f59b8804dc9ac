"""Records of verbs that are several calls, one after the other: a sequence is defined once, and then made by number.

What a verb of several calls does depends on its arguments, and not on where its arrays lie. So a sequence is the
payloads of its calls with holes for the addresses, and each time it is made, the addresses come as words. The calls may
be of several engines. It is one command with one ticket, and has all answers of its calls in one slot.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..protocol import Mode, Verb
from .calls import WORD, CallTable, Option, Workspace

_PLAN = {"plan": "Q"}
_COUNT = struct.Struct("<H")
_STEP = struct.Struct("<BBHI")
"""The engine, the verb, the number of holes, and the bytes of the payload."""
_HOLE = struct.Struct("<HHI")


class Hole(NamedTuple):
    """Eight bytes of a payload that differ each time."""

    offset: int
    """Its place in the payload."""
    word: int
    """The number of the word that it takes. The first is the place of the slot for answers."""
    more: int
    """What is added to the word."""


class Step(NamedTuple):
    """One command of a sequence."""

    engine: int
    verb: int
    payload: bytes
    """With zeros in the holes."""
    holes: tuple[Hole, ...]


class SequenceTable(CallTable):
    """The table of a library whose verbs are several calls, with the verbs that define, make and drop sequences.

    The tail of a definition has the sequence, which is `program` bytes long. That of an execution has the words.
    """

    def __init__(
        self,
        engine: str,
        number: int,
        functions: tuple[str, ...],
        *,
        workspaces: Mapping[str, Workspace] | None = None,
        options: Mapping[str, Option] | None = None,
    ) -> None:
        super().__init__(engine, number, functions, mode=Mode.BLOCKS, workspaces=workspaces, options=options)
        self.define: Verb = self.verb("define", Mode.BLOCKS, {"plan": "Q", "allowed": "Q", "program": "I"})
        self.first_execute: Verb = self.verb("first_execute", Mode.BLOCKS, _PLAN)
        self.execute: Verb = self.verb("execute", Mode.BLOCKS, _PLAN)
        self.enqueue: Verb = self.verb("enqueue", Mode.ENQUEUES, _PLAN, shares=True)
        """The same as `execute`, of calls that never wait for what runs, and only put a few entries into the stream."""
        self.drop: Verb = self.verb("drop", Mode.BLOCKS, _PLAN)


class Content(tuple[Step, ...]):
    """The steps of a sequence, as a value."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Return the sequence as it crosses. Equal sequences are equal bytes."""
        pieces = [_COUNT.pack(len(self))]
        for step in self:
            pieces.append(_STEP.pack(step.engine, step.verb, len(step.holes), len(step.payload)))
            pieces += [_HOLE.pack(*hole) for hole in step.holes]
            pieces.append(step.payload)
        return b"".join(pieces)

    @classmethod
    def read(cls, data: bytes) -> Content:
        """Return what `encode` wrote. Raises `ValueError` for anything else."""
        try:
            (count,) = _COUNT.unpack_from(data)
            at, steps = _COUNT.size, []
            for _ in range(count):
                engine, verb, holes, size = _STEP.unpack_from(data, at)
                at += _STEP.size
                found = tuple(Hole(*_HOLE.unpack_from(data, at + index * _HOLE.size)) for index in range(holes))
                at += holes * _HOLE.size
                payload, at = data[at : at + size], at + size
                if len(payload) != size or any(hole.offset + WORD > size for hole in found):
                    raise ValueError("a payload is too short")
                steps.append(Step(engine, verb, payload, found))
        except struct.error as error:
            raise ValueError(f"not a sequence: {error}") from None
        if at != len(data):
            raise ValueError(f"{len(data) - at} bytes follow a sequence")
        return cls(steps)


def pack_words(words: Sequence[int]) -> bytes:
    """Return words as they are written."""
    return struct.pack(f"<{len(words)}Q", *words)


def unpack_words(payload: bytes, place: int) -> tuple[int, ...]:
    """Return the words from a place on."""
    return struct.unpack_from(f"<{(len(payload) - place) // WORD}Q", payload, place)
