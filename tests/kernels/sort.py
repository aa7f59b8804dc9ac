"""References of `sort.cu`."""

from __future__ import annotations

import numpy as np

from .case import Arguments, Family, Given, Result, equals

Generator = np.random.Generator

family = Family("sort.cu")


@family.case(grid=3, block=256)
def bitonic_sort(rng: Generator) -> Arguments:
    keys = rng.standard_normal((3, 512)).astype(np.float32)
    return (Result(keys, equals(np.sort(keys, axis=1))),)


@family.case(grid=1, block=64, shared=100 * 4)
def odd_even_sort(rng: Generator) -> Arguments:
    keys = rng.integers(-50, 50, 100).astype(np.int32)
    row, rounds, changed = keys.copy(), 0, True
    while changed:
        before = row.copy()
        for parity in (0, 1):
            pairs = row[parity : parity + (row.size - parity) // 2 * 2].reshape(-1, 2)
            pairs.sort(axis=1)
        changed, rounds = not np.array_equal(before, row), rounds + 1
    return Result(keys, equals(row)), keys.size, Result(np.zeros(1, np.int32), equals([rounds]))


@family.case(grid=1, block=256)
def radix_sort(rng: Generator) -> Arguments:
    keys = (rng.integers(0, 2**32, 256) >> rng.integers(0, 32, 256)).astype(np.uint32)
    order = np.argsort(keys, kind="stable")
    return Result(keys, equals(keys[order])), Result(np.zeros(256, np.uint32), equals(order.astype(np.uint32)))


@family.case(grid=4, block=64)
def rank_sort(rng: Generator) -> Arguments:
    keys = rng.integers(-20, 20, 230) / 4
    return Given(keys), Result(np.full(230, np.nan), equals(np.sort(keys))), 230


@family.case(grid=3, block=64)
def binary_search(rng: Generator) -> Arguments:
    rows, wanted = np.sort(rng.integers(0, 60, 99) << 33), rng.integers(-2, 62, 170) << 33
    places = [np.searchsorted(rows, wanted, side).astype(np.int32) for side in ("left", "right")]
    found = (Result(np.full(170, -1, np.int32), equals(place)) for place in places)
    return Given(rows), rows.size, Given(wanted), *found, wanted.size


@family.case(grid=2, block=16)
def quicksort(rng: Generator) -> Arguments:
    rows = rng.integers(-99, 99, (32, 40)).astype(np.int32)
    rows[0], rows[1], rows[2] = np.arange(40), np.arange(40)[::-1], 7
    return Result(rows, equals(np.sort(rows, axis=1))), 40


@family.case(grid=2, block=32)
def merge(rng: Generator) -> Arguments:
    a, b = (np.sort(rng.integers(0, 200, n)).astype(np.int32) for n in (301, 177))
    merged = np.sort(np.concatenate([a, b]))
    return Given(a), a.size, Given(b), b.size, Result(np.zeros_like(merged), equals(merged)), 8
