"""References of `warp.cu`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .case import Arguments, Family, Given, Result, equals, near, same_items, satisfies

Generator = np.random.Generator

family = Family("warp.cu")

THREADS = 64
T = np.arange(THREADS)
LANE = T % 32


def integers(rng: Generator, low: int, high: int, n: int = THREADS) -> np.ndarray:
    return rng.integers(low, high, n).astype(np.int32)


def bits(mask: np.ndarray) -> int:
    """The mask of a warp in which these lanes are set."""
    return int(sum(1 << int(lane) for lane in np.flatnonzero(mask)))


def shuffled(rng: Generator, source: Callable[[int, int], np.ndarray]) -> Arguments:
    """The reference of a shuffle; `source` is the place in a segment that a width and a delta lead to.

    A place outside of the segment gives the lane its own value.
    """
    x = integers(rng, -1000, 1000)
    rows = []
    for width in (2, 4, 8, 16, 32):
        for delta in range(width):
            place = source(width, delta)
            inside = (place >= 0) & (place < width)
            rows.append(x[np.where(inside, T // width * width + place, T)])
    return Given(x), Result(np.zeros((len(rows), THREADS), np.int32), equals(np.stack(rows)))


@family.case(grid=1, block=THREADS)
def shuffle_up(rng: Generator) -> Arguments:
    return shuffled(rng, lambda width, delta: T % width - delta)


@family.case(grid=1, block=THREADS)
def shuffle_down(rng: Generator) -> Arguments:
    return shuffled(rng, lambda width, delta: T % width + delta)


@family.case(grid=1, block=THREADS)
def shuffle_xor(rng: Generator) -> Arguments:
    return shuffled(rng, lambda width, delta: T % width ^ delta)


@family.case(grid=1, block=THREADS)
def shuffle_index(rng: Generator) -> Arguments:
    return shuffled(rng, lambda width, delta: (delta * 3 + T) % width)


@family.case(grid=1, block=32)
def shuffle_wide(rng: Generator) -> Arguments:
    t = np.arange(32)
    x, y = rng.standard_normal(32), rng.integers(-(2**62), 2**62, 32)
    down = np.where(t % 16 + 5 < 16, t + 5, t)
    pairs = np.stack([31.0 - t, -(t * t % 32)], axis=1).astype(np.float32)
    return (
        *(Given(x), Given(y)),
        Result(np.zeros(32), equals(x[t ^ 9])),
        Result(np.zeros(32, np.int64), equals(y[down])),
        Result(np.zeros((32, 2), np.float32), equals(pairs)),
    )


@family.case(grid=1, block=THREADS)
def votes(rng: Generator) -> Arguments:
    x = integers(rng, -8, 9)
    expected = np.zeros((THREADS, 4), np.uint32)
    for start in range(0, THREADS, 16):
        half, upper = x[start : start + 16], start % 32 > 0
        ballot = bits(half < 0) << 16 if upper else bits(half > 0)
        every = (half < 8).all() if upper else (half > -8).all()
        expected[start : start + 16] = [ballot, (half == (-7 if upper else 7)).any(), every, 1]
    return Given(x), Result(np.zeros_like(expected), equals(expected))


@family.case(grid=1, block=THREADS)
def matches(rng: Generator) -> Arguments:
    x, y = integers(rng, 0, 5), rng.integers(0, 3, THREADS) << 40
    any_same = np.zeros((THREADS, 2), np.uint32)
    for t in range(THREADS):
        warp = slice(t // 32 * 32, t // 32 * 32 + 32)
        any_same[t] = bits(x[warp] == x[t]), bits(y[warp] == y[t])
    agree = T < 32  # thread 40 differs from its warp
    return (
        *(Given(x), Given(y), Result(np.zeros_like(any_same), equals(any_same))),
        Result(np.ones(THREADS, np.uint32), equals(np.where(agree, 0xFFFFFFFF, 0).astype(np.uint32))),
        Result(np.full(THREADS, 7, np.int32), equals(agree.astype(np.int32))),
    )


@family.case(grid=1, block=THREADS)
def active_mask(rng: Generator) -> Arguments:
    mine = np.where(LANE < 20, np.uint32(1) << LANE.astype(np.uint32), np.uint32(0))
    check = satisfies(
        "its own bit, and none of a lane that left", lambda mask: ((mask & mine) == mine) & (mask >> 20 == 0)
    )
    return (Result(np.zeros(THREADS, np.uint32), check),)


@family.case(grid=4, block=128)
def warp_sum(rng: Generator) -> Arguments:
    x = rng.standard_normal(500).astype(np.float32)
    exact = np.pad(x, (0, 12)).astype(np.float64).reshape(16, 32).sum(axis=1)
    check = near(exact, absolute=2e-5, why="five roundings of sums below 32")
    return Given(x), Result(np.zeros(16, np.float32), check), 500


@family.case(grid=1, block=THREADS, since=(8, 0))
def warp_reductions(rng: Generator) -> Arguments:
    x = integers(rng, -(2**31), 2**31)
    expected = np.zeros((THREADS, 8), np.int64)
    for t in range(THREADS):
        warp = x[t // 32 * 32 :][:32]
        natural, parity = warp.view(np.uint32), warp.view(np.uint32)[t % 2 :: 2]
        odd = np.bitwise_and.reduce(parity), np.bitwise_or.reduce(parity)
        even = np.bitwise_xor.reduce(parity), parity.sum()
        expected[t] = [
            *(warp.sum(), warp.min(), warp.max(), natural.max()),
            *(odd if t % 2 else even),
            *(natural.min(), 32 if t < 32 else -32),
        ]
    return Given(x), Result(np.zeros((THREADS, 8), np.int32), equals(expected.astype(np.int32)))


@family.case(grid=1, block=THREADS)
def warp_scan(rng: Generator) -> Arguments:
    x = integers(rng, -99, 99)
    sums = x.reshape(-1, 32).cumsum(axis=1, dtype=np.int32).reshape(-1)
    empty = np.zeros_like(x)
    return Given(x), Result(empty, equals(sums)), Result(empty, equals(sums - x))


@family.case(grid=4, block=96)
def compact(rng: Generator) -> Arguments:
    x = integers(rng, 0, 10_000, 370)
    kept = x[x % 3 == 0]
    padding = np.full(370 - kept.size, -1, np.int32)
    out = Result(np.full(370, -1, np.int32), same_items(np.append(kept, padding)))
    return Given(x), x.size, out, Result(np.zeros(1, np.int32), equals([kept.size]))


@family.case(grid=1, block=THREADS)
def warp_sort(rng: Generator) -> Arguments:
    x = integers(rng, -50, 50)
    return Given(x), Result(np.zeros_like(x), equals(np.sort(x.reshape(2, 32), axis=1)))


@family.case(grid=1, block=THREADS)
def warp_exchange(rng: Generator) -> Arguments:
    x = integers(rng, -50, 50)
    v = x.reshape(2, 32)
    for k in range(9):
        v = np.roll(v, 1, axis=1) * np.int32(5) + np.int32(k)
    return Given(x), Result(np.zeros_like(x), equals(v)), 9


@family.case(grid=3, block=64)
def aggregated_count(rng: Generator) -> Arguments:
    n, keys = 170, integers(rng, 0, 6, 170)

    def check(places: np.ndarray) -> None:
        for key in range(6):
            np.testing.assert_array_equal(np.sort(places[keys == key]), np.arange((keys == key).sum()))

    counts = np.bincount(keys, minlength=6).astype(np.int32)
    return Given(keys), Result(np.zeros(6, np.int32), equals(counts)), Result(np.full(n, -1, np.int32), check), n
