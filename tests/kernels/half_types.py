"""References of `half_types.cu`, for `__half` and `__nv_bfloat16`.

`Kind` is what the two types differ in; an array of bfloat16 goes to the device as 16-bit words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import half
from .case import Arguments, Check, Family, Given, Result, equals, satisfies

Generator = np.random.Generator

family = Family("half_types.cu", headers=True)

N = 128


@dataclass(frozen=True)
class Kind:
    """A 16-bit float: its name in C++, the bits of a number, the number of bits, and the bits of its significand."""

    name: str
    bits: Callable[[np.ndarray], np.ndarray]
    value: Callable[[np.ndarray], np.ndarray]
    precision: int

    def rounded(self, x: np.ndarray) -> np.ndarray:
        return self.value(self.bits(x))

    def near(self, exact: np.ndarray, ulps: int) -> Check:
        """Within so many units in the last place, or so many of those of 1 below it."""

        def close(got: np.ndarray) -> np.ndarray:
            unit = np.maximum(np.abs(exact), 1) * 2.0 ** (1 - self.precision)
            return np.abs(self.value(got.reshape(exact.shape)) - exact) <= ulps * unit

        return satisfies(f"within {ulps} units of the reference", close)


KINDS = (
    Kind("__half", half.bits, lambda b: b.view(np.float16).astype(np.float64), 11),
    Kind("__nv_bfloat16", half.brain, half.value, 8),
)


def numbers(rng: Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 4, shape)).astype(np.float32)


def add_kind(kind: Kind) -> None:
    def case(template: str, **shape: Any) -> Any:
        instance = family.instance(f"{template}<{kind.name}>")
        return family.case(**shape, kernel=instance, name=f"{template}_{kind.name.strip('_')}")

    def result(expected: np.ndarray) -> Result:
        words = kind.bits(expected)
        return Result(np.zeros_like(words), equals(words))

    @case("arithmetic", grid=2, block=64)
    def arithmetic(rng: Generator) -> Arguments:
        x, y, z = (numbers(rng, N) for _ in range(3))
        a, b, c = (kind.rounded(v) for v in (x, y, z))
        sums = kind.rounded(-a) - b  # exact, rounded below
        columns = [a, a + b, a * b, a * b + c, a / b, np.sqrt(np.abs(a)), sums, np.maximum(a, np.minimum(b, c))]
        words = np.stack([kind.bits(column) for column in columns], axis=1)
        quotients = kind.near(columns[4], 1)

        def check(got: np.ndarray) -> None:
            exact = [0, 1, 2, 3, 5, 6, 7]
            np.testing.assert_array_equal(got[:, exact], words[:, exact])
            quotients(got[:, 4])

        return Given(x), Given(y), Given(z), Result(np.zeros((N, 8), np.uint16), check)

    @case("comparisons", grid=2, block=64)
    def comparisons(rng: Generator) -> Arguments:
        values = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1.001, 65504, 3], np.float32)
        x, y = (rng.choice(values, N) for _ in range(2))
        a, b = (np.where(np.isfinite(v), kind.rounded(np.where(np.isfinite(v), v, 0)), v) for v in (x, y))
        ordered = ~(np.isnan(a) | np.isnan(b))
        flags = [a == b, (a != b) & ordered, a < b, a <= b, a > b, a >= b, np.isnan(a), np.isinf(b)]
        masks = sum(flag.astype(np.int32) << np.int32(at) for at, flag in enumerate(flags))
        return Given(x), Given(y), Result(np.zeros(N, np.int32), equals(masks))

    @case("pairs", grid=2, block=64)
    def pairs(rng: Generator) -> Arguments:
        x = numbers(rng, N, 4)
        x[::3, 2:] = x[::3, :2]
        a, b = kind.rounded(x[:, :2]), kind.rounded(x[:, 2:])
        columns = [a + b, a * b + a, np.maximum(a, b), (a < b).astype(np.float64), a[:, ::-1]]
        equal = 1 | (a == b).all(axis=1) << 1 | 1 << 2
        expected = np.stack(columns, axis=1)
        return Given(x), result(expected), Result(np.zeros(N, np.int32), equals(equal.astype(np.int32)))

    @case("functions", grid=2, block=64)
    def functions(rng: Generator) -> Arguments:
        x = rng.uniform(0.25, 6, N).astype(np.float32)
        a = kind.rounded(x)
        columns = [np.exp(a), np.log(a), np.sin(a), 1 / np.sqrt(a), np.floor(a), np.exp2(a)]
        return Given(x), Result(np.zeros((N, 6), np.uint16), kind.near(np.stack(columns, axis=1), 2))

    @case("integers", grid=2, block=64)
    def integers(rng: Generator) -> Arguments:
        x, n = rng.uniform(-3000, 3000, N).astype(np.float32), rng.integers(-30000, 30000, N).astype(np.int32)
        whole = np.trunc(kind.rounded(x)).astype(np.int32)
        rest = np.fmod(n, 100).astype(np.float64)
        halves = np.stack([n.astype(np.float64), kind.rounded(rest) + 1], axis=1)
        return (
            Given(x),
            Given(n),
            Result(np.zeros((N, 2), np.int32), equals(np.stack([whole] * 2, axis=1))),
            result(halves),
        )

    @case("product", grid=1, block=(16, 16))
    def product(rng: Generator) -> Arguments:
        a, b = (rng.integers(-8, 9, (16, 16)).astype(np.float64) for _ in range(2))  # exact throughout
        c = Result(np.zeros((16, 16), np.float32), equals((a @ b).astype(np.float32)))
        return Given(kind.bits(a)), Given(kind.bits(b)), c, 16

    @case("atomic_sums", grid=1, block=64)
    def atomic_sums(rng: Generator) -> Arguments:
        x = rng.integers(0, 4, 64).astype(np.float64)  # sums below 256 are exact, in any order
        return Given(kind.bits(x)), result(np.array([x.sum()])), result(np.array([x.sum(), x.sum()]))


for _kind in KINDS:
    add_kind(_kind)
