"""References of `scan.cu`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .case import Arguments, Family, Given, Launch, Result, anything, equals, near

Generator = np.random.Generator

family = Family("scan.cu")

THREADS = 256


def integers(rng: Generator, n: int, low: int = -99, high: int = 99) -> np.ndarray:
    return rng.integers(low, high, n).astype(np.int32)


@family.case(grid=5, block=THREADS)
def block_sum(rng: Generator) -> Arguments:
    n, stride = 4001, 5 * THREADS
    x = rng.standard_normal(n).astype(np.float32)
    blocks = np.pad(x, (0, 4 * stride - n)).astype(np.float64).reshape(4, 5, THREADS).sum(axis=(0, 2))
    check = near(blocks, absolute=1e-4, why="11 roundings on the way of every value, of sums below 100")
    return Given(x), Result(np.zeros(5, np.float32), check), n


@family.case(grid=6, block=THREADS)
def block_argmin(rng: Generator) -> Arguments:
    x = integers(rng, 6 * THREADS).reshape(6, THREADS)
    least = np.stack([x.min(axis=1), x.argmin(axis=1)], axis=1).astype(np.int32)
    return Given(x), Result(np.zeros_like(least), equals(least))


@family.case(grid=4, block=THREADS)
def block_moments(rng: Generator) -> Arguments:
    x = rng.uniform(-1, 3, (4, THREADS)).astype(np.float32)
    wide = x.astype(np.float64)
    moments = np.stack([wide.mean(axis=1), wide.var(axis=1)], axis=1)
    check = near(moments, absolute=1e-5, why="a dozen roundings of means of squares below 9")
    return Given(x), Result(np.zeros((4, 2), np.float32), check)


@family.case(grid=5, block=96)
def block_votes(rng: Generator) -> Arguments:
    x = integers(rng, 5 * 96).reshape(5, 96)
    x[3] = 5
    votes = np.stack([(x > 0).sum(axis=1), (x > -90).all(axis=1), (x > 90).any(axis=1)], axis=1).astype(np.int32)
    everywhere = np.repeat(votes[:, None], 96, axis=1)
    return Given(x), Result(np.zeros_like(everywhere), equals(everywhere))


@family.program
def dot_by_the_last_block(rng: Generator) -> Sequence[Launch]:
    n = 5000
    x, y = Given(rng.uniform(0, 1, n).astype(np.float32)), Given(rng.uniform(0, 1, n).astype(np.float32))
    exact = x.values.astype(np.float64) @ y.values
    out = Result(np.zeros(1, np.float32), near([exact], relative=3e-6, why="some 20 roundings of positive sums"))
    partial, done = Result(np.zeros(7, np.float32), anything), Result(np.zeros(1, np.uint32), equals([0]))
    return [Launch("dot", 7, THREADS, [x, y, n, partial, done, out])] * 2


@family.case(grid=1, block=THREADS)
def scan_hillis_steele(rng: Generator) -> Arguments:
    x = integers(rng, THREADS)
    return Given(x), Result(np.zeros_like(x), equals(x.cumsum(dtype=np.int32)))


@family.case(grid=1, block=THREADS)
def scan_blelloch(rng: Generator) -> Arguments:
    x = integers(rng, 2 * THREADS)
    sums = x.cumsum(dtype=np.int32)
    return Given(x), Result(np.zeros_like(x), equals(sums - x)), Result(np.zeros(1, np.int32), equals(sums[-1:]))


@family.program
def scan_in_two_passes(rng: Generator) -> Sequence[Launch]:
    n, blocks = 3900, 16
    x = integers(rng, n)
    sums = Result(np.zeros(n, np.int32), equals(x.cumsum(dtype=np.int32)))
    of_blocks = np.pad(x, (0, blocks * THREADS - n)).reshape(blocks, THREADS).sum(axis=1, dtype=np.int32)
    totals = Result(np.zeros(blocks, np.int32), equals(of_blocks))
    offsets = Result(np.zeros(blocks, np.int32), equals(of_blocks.cumsum(dtype=np.int32)))
    whole = Result(np.zeros(1, np.int32), equals([x.sum()]))
    return [
        Launch("scan_warps", blocks, THREADS, [Given(x), sums, totals, n]),
        Launch("scan_warps", 1, 32, [totals, offsets, whole, blocks]),
        Launch("add_offsets", blocks, THREADS, [sums, offsets, n]),
    ]


@family.case(grid=20, block=128)
def scan_look_back(rng: Generator) -> Arguments:
    n = 2500
    x = integers(rng, n)
    return (
        *(Given(x), Result(np.zeros(n, np.int32), equals(x.cumsum(dtype=np.int32))), n),
        *(Result(np.zeros(1, np.uint32), equals([20])), Result(np.zeros(20, np.uint64), anything)),
    )


@family.case(grid=1, block=THREADS)
def segmented_scan(rng: Generator) -> Arguments:
    x, begins = integers(rng, THREADS), (rng.random(THREADS) < 0.08).astype(np.int32)
    begins[0] = 1
    pieces = np.split(x, np.flatnonzero(begins)[1:])
    return Given(x), Given(begins), Result(np.zeros_like(x), equals(np.concatenate([np.cumsum(p) for p in pieces])))


@family.case(grid=4, block=128)
def histogram(rng: Generator) -> Arguments:
    x = np.clip(rng.normal(100, 40, 9999), 0, 255).astype(np.uint8)
    return Given(x), x.size, Result(np.zeros(256, np.uint32), equals(np.bincount(x, minlength=256)))
