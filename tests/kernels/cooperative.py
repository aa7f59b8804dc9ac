"""References of `cooperative.cu`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .case import Arguments, Family, Given, Launch, Result, equals, same_items

Generator = np.random.Generator

family = Family("cooperative.cu", headers=True, slow=True)


def add_tiles(size: int) -> None:
    @family.case(grid=2, block=64, kernel=family.instance(f"tiles<{size}>"), name=f"tiles_of_{size}")
    def tiles(rng: Generator) -> Arguments:
        x = rng.integers(-100, 100, 128).astype(np.int32)
        rows = x.reshape(-1, size)
        rank = np.arange(rows.shape[0]) % (64 // size)
        sums = np.repeat(rows.sum(axis=1) + rank * 1000000, size)
        over = (rows > 95).any(axis=1, keepdims=True)
        shuffled = rows[:, ::-1] + over * 1000 + size
        expected = (sums, np.maximum.accumulate(rows, axis=1), shuffled)
        return Given(x), *(Result(np.zeros(128, np.int32), equals(values.astype(np.int32))) for values in expected)


for _size in (4, 16, 32):
    add_tiles(_size)


@family.case(grid=3, block=64)
def coalesced(rng: Generator) -> Arguments:
    x = rng.integers(0, 1000, 180).astype(np.int32)
    kept = x[x % 2 == 0]
    padding = np.full(180 - kept.size, -1, np.int32)
    out = Result(np.full(180, -1, np.int32), same_items(np.append(kept, padding)))
    return Given(x), x.size, out, Result(np.zeros(1, np.int32), equals([kept.size]))


@family.case(grid=2, block=(32, 4))
def block_group(rng: Generator) -> Arguments:
    x = rng.integers(0, 99, (2, 128)).astype(np.int32)
    return Given(x), Result(np.zeros_like(x), equals(x[:, ::-1] * 2 + np.arange(128, dtype=np.int32) // 32))


@family.program
def whole_grid(rng: Generator) -> Sequence[Launch]:
    x = rng.integers(-99, 99, (4, 64)).astype(np.int32)
    sums = Result(np.zeros(4, np.int32), equals(np.full(4, x.sum(), np.int32)))
    out = Result(np.zeros_like(x), equals(x.sum(dtype=np.int32) - x + np.int32(256)))
    return [Launch("whole_grid", 4, 64, [Given(x), sums, out], cooperative=True)]


@family.case(grid=1, block=64)
def partitions(rng: Generator) -> Arguments:
    x = rng.integers(0, 5, 64).astype(np.int32)
    lanes, rows = np.arange(64).reshape(2, 32), x.reshape(2, 32)
    same = rows[:, :, None] == rows[:, None, :]
    labelled = (same * lanes[:, None, :]).sum(axis=2) * 100 + same.sum(axis=2)
    halves = np.stack([h[:, :1] + h.cumsum(axis=1) - h for h in (rows[:, ::2], rows[:, 1::2])], axis=2)
    results = (Result(np.zeros(64, np.int32), equals(v.ravel().astype(np.int32))) for v in (labelled, halves))
    return Given(x), *results
