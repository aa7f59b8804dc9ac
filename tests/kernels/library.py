"""References of `library.cu`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .case import Arguments, Family, Given, Result, equals, near, satisfies

Generator = np.random.Generator

family = Family("library.cu", headers=True, slow=True)


@family.case(grid=2, block=64)
def atomic_refs(rng: Generator) -> Arguments:
    x = rng.integers(-1000, 1000, 128).astype(np.int32)
    expected = [x.sum(), x.min(), x.max(), np.bitwise_or.reduce(x), np.bitwise_xor.reduce(x)]
    product = math.prod((2 * x + 1).tolist()) % 2**32
    return (
        *(Given(x), Result(np.zeros(5, np.int32), equals(np.array(expected, np.int32)))),
        *(Result(np.zeros(1), equals([x.sum() / 2])), Result(np.ones(1, np.uint32), equals([product]))),
    )


@family.case(grid=2, block=32)
def small_atomics(rng: Generator) -> Arguments:
    x = rng.integers(0, 256, 64).astype(np.uint8)
    words = np.bitwise_or.reduce((1 << x.reshape(16, 4).astype(np.int64) % 16), axis=0).astype(np.uint16)
    return (
        *(Given(x), Result(np.zeros(8, np.uint8), equals(x.reshape(8, 8).sum(axis=0, dtype=np.uint8)))),
        Result(np.zeros(4, np.uint16), equals(words)),
    )


@family.case(grid=6, block=32)
def relay(rng: Generator) -> Arguments:
    values = [1]
    for block in range(6):
        values.append(values[-1] * 3 + block)
    start = np.array([1] + [0] * 6, np.int32)
    return Result(np.zeros(1, np.int32), equals([6])), Result(start, equals(np.array(values, np.int32)))


@family.case(grid=1, block=64)
def split_barrier(rng: Generator) -> Arguments:
    x = rng.integers(-99, 99, 64).astype(np.int32)
    return Given(x), Result(np.zeros(64, np.int32), equals(3 * x[::-1] + 3 + 3 * x))


@family.case(grid=2, block=16)
def semaphore_and_latch(rng: Generator) -> Arguments:
    return (
        Result(np.zeros(2, np.int32), satisfies("one or two were inside", lambda most: (most > 0) & (most < 3))),
        Result(np.zeros(32, np.int32), equals(np.full(32, 16, np.int32))),
    )


def add_complex(kind: str, real: Any, complex_: Any, bound: float) -> None:
    @family.case(grid=1, block=64, kernel=family.instance(f"complex_numbers<{kind}>"), name=f"complex_of_{kind}")
    def case(rng: Generator) -> Arguments:
        x, y = ((rng.standard_normal(64) + 1j * rng.standard_normal(64)).astype(complex_) for _ in range(2))
        y[np.abs(y) < 0.1] = 1
        a, b = x.astype(np.complex128), y.astype(np.complex128)
        columns = [a * b, a / b, np.exp(a), np.sqrt(a), np.abs(a) + 1j * np.angle(a), a.conj() + 2 * np.exp(1j)]
        exact = np.stack(columns, axis=1).view(np.float64)
        check = near(exact, absolute=bound, why="some ten roundings of numbers below 30")
        return Given(x), Given(y), Result(np.zeros((64, 12), real), check)


add_complex("float", np.float32, np.complex64, 5e-5)
add_complex("double", np.float64, np.complex128, 1e-13)


@family.case(grid=1, block=64)
def bits(rng: Generator) -> Arguments:
    x = (rng.integers(0, 2**32, 64) >> rng.integers(0, 32, 64)).astype(np.uint32)
    x[:4] = 0, 1, 2**31, 2**32 - 1
    rows = [
        (
            *(n.bit_count(), 32 - n.bit_length(), f"0{n:032b}"[::-1].index("0") if n < 2**32 - 1 else 32),
            *(n.bit_length(), 1 << n.bit_length() - 1 if n else 0),
            *((n << 11 | n >> 21) % 2**32, n.bit_count() == 1),
        )
        for n in x.tolist()
    ]
    expected = np.array(rows, np.int64).astype(np.uint32).view(np.int32)
    return Given(x), Result(np.full((64, 7), -1, np.int32), equals(expected))


@family.case(grid=1, block=64)
def numbers(rng: Generator) -> Arguments:
    x, y = rng.integers(-5000, 5000, (2, 64)).astype(np.int32)
    x[:3], y[:3] = (0, 12, -2147483647), (5, 18, -2147483647)
    below = np.fmod(x, 100), np.fmod(y, 100)
    middles = [a + int((b - a) / 2) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    columns = [np.gcd(x, y), np.lcm(*below), middles, 2**31 - 1 - np.abs(x.astype(np.int64))]
    return (
        *(Given(x), Given(y)),
        Result(np.full((64, 4), -1, np.int32), equals(np.stack(columns, axis=1).astype(np.int32))),
    )


@family.case(grid=1, block=32)
def containers(rng: Generator) -> Arguments:
    x = rng.integers(0, 100, (32, 8)).astype(np.int32)

    def of_row(row: list[int]) -> tuple[int, ...]:
        sums = [sum(row[k::3]) for k in range(3)]
        least = min((sums[k] % 2, sums[(k + 1) % 3] % 3, k) for k in range(3))
        return next((value for value in row[2:] if value > 80), -1), *least, sum(row)

    expected = np.array([of_row(row) for row in x.tolist()], np.int32)
    return Given(x), Result(np.full((32, 5), -9, np.int32), equals(expected))


@family.case(grid=1, block=64)
def views(rng: Generator) -> Arguments:
    x = rng.integers(-99, 99, (9, 14)).astype(np.float32)
    return Given(x), Result(np.zeros((14, 9), np.float32), equals(np.ascontiguousarray(x.T * np.float32(9)))), 9, 14
