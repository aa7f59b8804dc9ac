"""References of `pipelines.cu`."""

from __future__ import annotations

import numpy as np

from .case import Arguments, Family, Given, Result, equals

Generator = np.random.Generator

family = Family("pipelines.cu", headers=True, slow=True)

T = np.arange(64)


def integers(rng: Generator, *shape: int) -> np.ndarray:
    return rng.integers(-99, 99, shape).astype(np.int32)


def add_staged_sums(stages: int, tiles: int) -> None:
    @family.case(grid=2, block=64, kernel=family.instance(f"staged_sums<{stages}>"), name=f"{stages}_stages")
    def case(rng: Generator) -> Arguments:
        x, total = integers(rng, 2, tiles, 64), np.zeros((2, 64), np.int32)
        for tile in range(tiles):
            total = total * np.int32(3) + x[:, tile, (T + tile) % 64]
        return Given(x), tiles, Result(np.zeros((2, 64), np.int32), equals(total))


for _stages, _tiles in ((1, 3), (2, 7), (4, 6)):
    add_staged_sums(_stages, _tiles)


@family.case(grid=1, block=96)
def parted(rng: Generator) -> Arguments:
    x, total = integers(rng, 5, 64), np.zeros(64, np.int32)
    for row in x:
        total = total * np.int32(5) + row[::-1]
    return Given(x), 5, Result(np.zeros(64, np.int32), equals(total))


@family.case(grid=1, block=48)
def copied_behind_a_barrier(rng: Generator) -> Arguments:
    x = rng.standard_normal((3, 128))
    return Given(x), Result(np.zeros_like(x), equals(x[:, ::-1] - x[:, :1]))


@family.case(grid=1, block=64)
def copied_by_the_group(rng: Generator) -> Arguments:
    x = rng.integers(-9999, 9999, (2, 77)).astype(np.int16)
    return Given(x), Result(np.zeros_like(x), equals(x[:, ::-1])), 77


@family.case(grid=2, block=96, since=(9, 0))
def in_bulk(rng: Generator) -> Arguments:
    x = rng.integers(-99, 99, (2, 5, 96)).astype(np.float32)
    return Given(x), Result(np.zeros_like(x), equals(2 * x + x[:, :, ::-1])), 5


@family.case(grid=2, block=64, since=(9, 0))
def with_transactions(rng: Generator) -> Arguments:
    x = integers(rng, 2, 256)
    return Given(x), Result(np.zeros_like(x), equals(x[:, ::-1] + x[:, np.arange(256) ^ 1]))


@family.case(grid=1, block=128)
def produced_and_consumed(rng: Generator) -> Arguments:
    x = integers(rng, 6, 64)
    total = (x * np.arange(1, 7)[:, None]).sum(axis=0)[::-1] * (T + 1)
    return Given(x), Result(np.zeros(64, np.int32), equals(total.astype(np.int32))), 6


@family.case(grid=2, block=128)
def wide_tiles(rng: Generator) -> Arguments:
    x = rng.integers(0, 99, (4, 64)).astype(np.int32)
    counted = 64 * np.count_nonzero((x > 95).any(axis=1))
    each = (np.repeat(values[:, None], 64, axis=1) for values in (x.sum(axis=1), (x % 10).max(axis=1)))
    return (
        *(Given(x), *(Result(np.full((4, 64), -1, np.int32), equals(values.astype(np.int32))) for values in each)),
        Result(np.zeros(1, np.int32), equals([counted])),
    )
