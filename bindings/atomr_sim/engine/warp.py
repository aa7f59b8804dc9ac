"""Instructions in which the lanes of a warp exchange values: shuffles, votes, matches and reductions.

Lanes are given as indices into a chunk. The scheduler makes sure that all lanes that take part are there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import Array

_REDUCE = {
    "add": (np.add, 0, 0),
    "min": (np.minimum, 0xFFFFFFFF, 0x7FFFFFFF),
    "max": (np.maximum, 0, -0x80000000),
    "and": (np.bitwise_and, 0xFFFFFFFF, -1),
    "or": (np.bitwise_or, 0, 0),
    "xor": (np.bitwise_xor, 0, 0),
}
"""The operation, and its neutral element for unsigned and for signed numbers."""


class Warps:
    """The warps of a chunk: the warp of each lane, and its place there."""

    def __init__(self, index: Array, place: Array, count: int) -> None:
        self.index: Array = index.astype(np.int64)
        self.place: Array = place.astype(np.int64)
        self.count = count
        self.full: Array = self.bits(np.arange(self.index.size))
        """A mask of all lanes of each warp."""

    def bits(self, lanes: Array) -> Array:
        """Return for each warp a mask of the given lanes."""
        weights = (1 << self.place[lanes]).astype(np.float64)
        return np.bincount(self.index[lanes], weights, self.count).astype(np.uint32)

    def shuffle(self, mode: str, lanes: Array, value: Any, lane: Any, clamp: Any) -> tuple[Array, Array]:
        """`shfl`: the value of another lane of the warp, and whether that lane is in range."""
        place = self.place[lanes]
        step = np.asarray(lane).astype(np.int64) & 31
        segment = (np.asarray(clamp).astype(np.int64) >> 8) & 31
        bound = np.asarray(clamp).astype(np.int64) & 31
        top = (place & segment) | (bound & ~segment)
        source = {
            "up": lambda: place - step,
            "down": lambda: place + step,
            "bfly": lambda: place ^ step,
            "idx": lambda: (place & segment) | (step & ~segment),
        }[mode]()
        inside = source >= top if mode == "up" else source <= top
        source = np.where(inside, source, place)
        base = self.index[lanes] * 32
        board = np.zeros(self.count * 32, np.uint32)
        board[base + place] = value
        return board[base + source], inside

    def vote(self, mode: str, lanes: Array, predicate: Any, mask: Any) -> Array:
        """`vote`: over the lanes of the mask that take part."""
        held: Array = np.broadcast_to(predicate, lanes.shape)
        index = self.index[lanes]
        true = self.bits(lanes[held])[index] & mask
        if mode == "ballot":
            return true
        present = self.bits(lanes)[index] & mask
        return {"any": true != 0, "all": true == present, "uni": (true == 0) | (true == present)}[mode]

    def match(self, mode: str, lanes: Array, value: Any, mask: Any) -> tuple[Array, Array]:
        """`match`: the lanes that hold the same value; for `all`, the whole mask or nothing."""
        values: Array = np.broadcast_to(value, lanes.shape)
        base, place = self.index[lanes], self.place[lanes]
        board = np.zeros((self.count, 32), values.dtype)
        board[base, place] = values
        present = self.bits(lanes)[base] & mask
        same: Array = np.zeros(lanes.size, np.uint32)
        for other in range(32):
            same |= (board[base, other] == values).astype(np.uint32) << np.uint32(other)
        same &= present
        if mode == "any":
            return same, same != 0
        agreed = same == present
        return np.where(agreed, present, np.uint32(0)), agreed

    def reduce(self, mode: str, lanes: Array, value: Any, mask: Any) -> Array:
        """`redux`: over the lanes of each mask."""
        values: Array = np.broadcast_to(value, lanes.shape)
        masks: Array = np.broadcast_to(mask, lanes.shape)
        keys = self.index[lanes] << 32 | masks.astype(np.int64)
        _, group = np.unique(keys, return_inverse=True)
        operation, unsigned, signed = _REDUCE[mode]
        neutral = signed if values.dtype.kind == "i" else unsigned
        results = np.full(int(group.max()) + 1, neutral, values.dtype)
        operation.at(results, group, values)
        return results[group]
