"""References of `cub.cu`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .case import Arguments, Family, Given, Launch, Result, anything, equals

Generator = np.random.Generator

family = Family("cub.cu", headers=True, slow=True)


def integers(rng: Generator, *shape: int) -> np.ndarray:
    return rng.integers(-500, 500, shape).astype(np.int32)


@family.case(grid=3, block=128)
def reduce(rng: Generator) -> Arguments:
    x, valid = integers(rng, 3, 128), 77
    expected = np.stack([x.sum(axis=1), x.max(axis=1), x[:, :valid].sum(axis=1)], axis=1).astype(np.int32)
    return Given(x), valid, Result(np.zeros((3, 3), np.int32), equals(expected))


@family.case(grid=2, block=64)
def scan(rng: Generator) -> Arguments:
    x = integers(rng, 2, 256)
    most = np.maximum.accumulate(np.pad(x[:, :-1], ((0, 0), (1, 0)), constant_values=-1000), axis=1)
    expected = (x.cumsum(axis=1), most, x.sum(axis=1))
    results = (Result(np.zeros(values.shape, np.int32), equals(values.astype(np.int32))) for values in expected)
    return Given(x), *results


@family.case(grid=2, block=64)
def radix_sort(rng: Generator) -> Arguments:
    keys = (rng.integers(-40, 40, (2, 256)) / 4).astype(np.float32)
    values = np.tile(np.arange(256, dtype=np.int32), (2, 1))
    order = np.argsort(keys, axis=1, kind="stable")
    return (
        Result(keys, equals(np.take_along_axis(keys, order, axis=1))),
        Result(values, equals(order.astype(np.int32))),
    )


@family.case(grid=2, block=64)
def merge_sort(rng: Generator) -> Arguments:
    keys = integers(rng, 2, 256)
    return (Result(keys, equals(np.sort(keys, axis=1))),)


@family.case(grid=2, block=64)
def histogram(rng: Generator) -> Arguments:
    x = rng.integers(0, 16, (2, 256)).astype(np.uint8)
    counts = np.stack([np.bincount(row, minlength=16) for row in x]).astype(np.uint32)
    return Given(x), Result(np.zeros((2, 16), np.uint32), equals(counts))


@family.case(grid=1, block=64)
def exchange(rng: Generator) -> Arguments:
    """Striped: a thread's four values are then 64 places apart."""
    x, valid = integers(rng, 256), 200
    turned = np.where(np.arange(256) < valid, x, -1)[::-1]
    striped = turned.reshape(4, 64).T.reshape(-1)
    return Given(x), valid, Result(np.zeros(256, np.int32), equals(striped.astype(np.int32)))


@family.case(grid=1, block=128)
def neighbours(rng: Generator) -> Arguments:
    x = np.sort(rng.integers(0, 50, 128)).astype(np.int32)
    changes = np.diff(x) != 0
    expected = (
        np.append(True, changes),
        np.append(changes, True),
        np.append(x[0], np.diff(x)),
        np.append(x[3:], [-1] * 3),
    )
    return Given(x), *(Result(np.full(128, -9, np.int32), equals(values.astype(np.int32))) for values in expected)


@family.case(grid=1, block=32)
def run_length_decode(rng: Generator) -> Arguments:
    values, lengths = integers(rng, 64), rng.integers(1, 9, 64).astype(np.int32)
    runs = np.repeat(values, lengths)
    out = Result(np.zeros_like(runs), equals(runs))
    return Given(values), Given(lengths), out, Result(np.zeros(1, np.uint32), equals([runs.size]))


@family.case(grid=1, block=128)
def warps(rng: Generator) -> Arguments:
    x, flags = integers(rng, 128), (rng.random(128) < 0.2).astype(np.int32)
    rows = x.reshape(4, 32)
    begins = np.flatnonzero(flags | (np.arange(128) % 32 == 0))
    segments = np.zeros(128, np.int32)
    segments[begins] = np.add.reduceat(x, begins)
    expected = (x.reshape(16, 8).sum(axis=1), rows.cumsum(axis=1) - rows, segments)
    results = (Result(np.zeros(values.size, np.int32), equals(values.ravel().astype(np.int32))) for values in expected)
    return Given(x), Given(flags), *results


@family.case(grid=2, block=64)
def warp_merge_sort(rng: Generator) -> Arguments:
    keys = rng.integers(-(2**62), 2**62, (8, 64))
    return (Result(keys, equals(np.sort(keys, axis=1))),)


@family.program
def device_scan(rng: Generator) -> Sequence[Launch]:
    tiles = 12
    x = integers(rng, tiles * 128)
    memory = Result(np.zeros(4096, np.uint64), anything)
    out = Result(np.zeros_like(x), equals(x.cumsum(dtype=np.int32)))
    tickets = Result(np.zeros(1, np.uint32), equals([tiles]))
    return [
        Launch("prepare_tiles", 1, 128, [memory, tiles]),
        Launch("device_scan", tiles, 128, [Given(x), out, memory, tiles, tickets]),
    ]
