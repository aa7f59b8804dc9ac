"""References of `half.cu`: numpy's float16, and bfloat16 as the upper halves of floats."""

from __future__ import annotations

import numpy as np

from .case import Arguments, Family, Given, Result, equals

Generator = np.random.Generator

family = Family("half.cu")

N = 256


def halves(rng: Generator, n: int = N) -> np.ndarray:
    """Numbers of moderate size: an exact product plus a third number is exact in a double."""
    return (rng.standard_normal(n) * 2.0 ** rng.integers(-6, 6, n)).astype(np.float16)


def bits(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).view(np.uint16)


def brain(x: np.ndarray, cut: bool = False) -> np.ndarray:
    """The bits of doubles as bfloat16, rounded to nearest even or cut off; none of them is subnormal."""
    wide = x.astype(np.float64).view(np.uint64)
    dropped = np.uint64(45)
    up = np.uint64(0) if cut else ((np.uint64(1) << np.uint64(44)) - np.uint64(1)) + (wide >> dropped & np.uint64(1))
    rounded = ((wide + up) >> dropped << dropped).view(np.float64).astype(np.float32)
    return (rounded.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def value(brain_bits: np.ndarray) -> np.ndarray:
    """The numbers that bfloat16 bits stand for, as doubles."""
    return (brain_bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


@family.case(grid=2, block=128, since=(8, 0))
def scalars(rng: Generator) -> Arguments:
    a, b, c = (halves(rng) for _ in range(3))
    a[:4], b[:4] = (0, 65504, 1, np.nan), (np.float16(6e-8), 65504, -1, 2)
    x, y, z = (h.astype(np.float64) for h in (a, b, c))
    columns = [x + y, x - y, x * y, x * y + z, np.fmin(x, y), np.fmax(x, y), -x, np.abs(x)]
    expected = np.stack([column.astype(np.float16) for column in columns], axis=1)
    return Given(a), Given(b), Given(c), Result(np.zeros((N, 8), np.float16), equals(expected))


@family.case(grid=2, block=64, since=(8, 0))
def pairs(rng: Generator) -> Arguments:
    a, b, c = (halves(rng).reshape(-1, 2) for _ in range(3))
    a[:5] = b[:5]
    x, y, z = (h.astype(np.float64) for h in (a, b, c))
    columns = [x + y, x - y, x * y, x * y + z, np.fmax(x, y), x < y, None, np.clip(x + y, 0, 1)]
    masks = np.where(x >= y, np.uint16(0xFFFF), np.uint16(0))
    expected = np.stack([masks if column is None else bits(column) for column in columns], axis=1)
    return *(Given(h.view(np.uint32)) for h in (a, b, c)), Result(np.zeros((128, 8, 2), np.uint16), equals(expected))


def directed(x: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Numbers as float16, rounded up where `up` is true, and down elsewhere."""
    near = x.astype(np.float16)
    wide = near.astype(np.float64)
    above, below = np.nextafter(near, np.float16(np.inf)), np.nextafter(near, np.float16(-np.inf))
    return np.where(up & (wide < x), above, np.where(~up & (wide > x), below, near))


@family.case(grid=2, block=128)
def conversions(rng: Generator) -> Arguments:
    x = (rng.standard_normal(N) * 10.0 ** rng.uniform(-8, 5, N)).astype(np.float32)
    x[:6] = 0, -0.0, 65520, -65519, 1e-9, 2049
    n = (rng.integers(-(2**31), 2**31, N) >> rng.integers(0, 31, N)).astype(np.int32)
    wide = x.astype(np.float64)
    near = wide.astype(np.float16)
    columns = [near, directed(wide, x < 0), directed(wide, x == x), directed(wide, x != x), n.astype(np.float64)]
    expected = np.stack([bits(column) for column in columns], axis=1)
    back = near.astype(np.float32)
    whole = np.clip(np.rint(back.astype(np.float64)), -(2.0**31), 2**31 - 1)
    return (
        *(Given(x), Given(n), Result(np.zeros((N, 5), np.uint16), equals(expected))),
        Result(np.zeros(N, np.float32), equals(back)),
        Result(np.zeros(N, np.int32), equals(whole.astype(np.int32))),
    )


@family.case(grid=2, block=128, since=(8, 0))
def brain_floats(rng: Generator) -> Arguments:
    x, y, z = ((rng.standard_normal(N) * 2.0 ** rng.integers(-9, 9, N)).astype(np.float32) for _ in range(3))
    a, b, c = (brain(h) for h in (x, y, z))
    fused = value(a) * value(b) + value(c)  # exact
    columns = [
        a,
        brain(fused),
        brain(np.maximum(fused, 0)),
        brain(np.maximum(value(a), value(b))),
        a & 0x7FFF,
        brain(x, True),
    ]
    both = np.stack([b, a, brain(value(b) ** 2 + value(b)), brain(value(a) ** 2 + value(a))], axis=1)
    return (
        *(Given(x), Given(y), Given(z)),
        Result(np.zeros((N, 6), np.uint16), equals(np.stack(columns, axis=1).astype(np.uint16))),
        Result(np.zeros((N, 4), np.uint16), equals(both)),
        Result(np.zeros(N, np.float32), equals(value(a).astype(np.float32))),
    )


@family.case(grid=2, block=64)
def atomic_pairs(rng: Generator) -> Arguments:
    x = rng.integers(0, 16, (128, 2)).astype(np.float16)  # small whole numbers: sums below 2048 are exact
    sums = np.stack([x[k::4].sum(axis=0, dtype=np.float64) for k in range(4)])
    return (
        *(Given(x.view(np.uint32)), Result(np.zeros((4, 2), np.float16), equals(sums.astype(np.float16)))),
        Result(np.zeros(1, np.float16), equals(x[:, :1].sum(axis=0, dtype=np.float64).astype(np.float16))),
    )
