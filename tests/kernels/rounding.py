"""References of `rounding.cu`: exact fractions, rounded once.

What becomes of NaN as an integer is what the PTX ISA (version 9.0, `cvt`) says: 0, and where either side has 64 bits
the smallest signed number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from . import precise
from .case import Arguments, Family, Given, Result, equals, identical
from .functions import points, special_pairs

Generator = np.random.Generator

family = Family("rounding.cu")
flushing = Family("rounding.cu", {"ftz": True}, "rounding-ftz")

MODES = ("rn", "rz", "ru", "rd")
N = 256


# --- sums, products, quotients and roots ------------------------------------------------------------------------------


def root(value: Fraction, dtype: Any, mode: str) -> Any:
    """The square root, by comparing squares with the value."""
    guess = np.sqrt(dtype(float(value)))
    near = [np.nextafter(guess, dtype(0)), guess, np.nextafter(guess, dtype(np.inf))]
    below = max(one for one in near if Fraction(float(one)) ** 2 <= value)
    above = min(one for one in near if Fraction(float(one)) ** 2 >= value)
    if mode != "rn":
        return above if mode == "ru" else below
    middle = (Fraction(float(below)) + Fraction(float(above))) / 2
    return above if middle**2 < value else below


def operations(x: Any, y: Any, dtype: Any, mode: str) -> list[Any]:
    a, b = Fraction(float(x)), Fraction(float(y))
    exact = [a + b, a - b, a * b, a / b, a * b + a]
    return [*(precise.rounded(value, dtype, mode) for value in exact), root(abs(a), dtype, mode)]


def add_arithmetic(name: str, dtype: Any, mode: str) -> None:
    @family.case(grid=2, block=128, name=f"{name}_{mode}", kernel=f"{name}_{mode}")
    def arithmetic(rng: Generator) -> Arguments:
        a, b = (points(rng, (-1e4, 1e4), dtype, N) for _ in range(2))
        expected = np.array([operations(x, y, dtype, mode) for x, y in zip(a, b, strict=True)])
        return Given(a), Given(b), Result(np.zeros((N, 6), dtype), equals(expected))


# --- floats to integers -----------------------------------------------------------------------------------------------

ROUND: dict[str, Callable[[Fraction], int]] = {"rn": round, "rz": math.trunc, "ru": math.ceil, "rd": math.floor}


def clamped(value: float, mode: str, target: Any, source: Any) -> int:
    limits = np.iinfo(target)
    if math.isnan(value):
        wide = source is np.float64 or limits.bits == 64
        return (1 << (limits.bits - 1)) * (1 if limits.min == 0 else -1) if wide else 0
    if math.isinf(value):
        return limits.max if value > 0 else limits.min
    return max(limits.min, min(limits.max, ROUND[mode](Fraction(value))))


def add_to_integer(name: str, dtype: Any, mode: str) -> None:
    @family.case(grid=2, block=128, name=f"{name}_to_integer_{mode}", kernel=f"{name}_to_integer_{mode}")
    def to_integer(rng: Generator) -> Arguments:
        edges = [2.0**31, 2.0**32, 2.0**63, 2.0**64]
        special = [
            math.nan,
            math.inf,
            -math.inf,
            0.0,
            -0.0,
            0.5,
            1.5,
            -0.5,
            2.5,
            -2.5,
            1e-40,
            2147483647.5,
            -2147483648.5,
        ]
        special += [
            sign * np.nextafter(edge, toward) for edge in edges for toward in (0, edge, np.inf) for sign in (1, -1)
        ]
        x = np.array(special).astype(dtype)
        x = np.append(x, points(rng, (-1e10, 1e10), dtype, N - x.size)).astype(dtype)
        results = []
        for target in (np.int32, np.uint32, np.int64, np.uint64):
            expected = np.array([clamped(float(value), mode, target, dtype) for value in x], target)
            results.append(Result(np.zeros(N, target), equals(expected)))
        return Given(x), *results


# --- integers and doubles to floats -----------------------------------------------------------------------------------


def whole_numbers(rng: Generator, dtype: Any) -> np.ndarray:
    limits = np.iinfo(dtype)
    drawn = rng.integers(limits.min, limits.max, N, dtype, endpoint=True) >> rng.integers(0, limits.bits, N).astype(
        dtype
    )
    drawn[:4] = limits.min, limits.max, 0, 1
    return drawn


def converted(columns: list[np.ndarray], dtype: Any, mode: str) -> np.ndarray:
    exact = [[Fraction(value) for value in column.tolist()] for column in columns]
    return np.array([[precise.rounded(value, dtype, mode) for value in row] for row in zip(*exact, strict=True)])


def add_to_float(mode: str) -> None:
    @family.case(grid=2, block=128, name=f"to_float_{mode}", kernel=f"to_float_{mode}")
    def to_float(rng: Generator) -> Arguments:
        columns = [whole_numbers(rng, dtype) for dtype in (np.int32, np.uint32, np.int64, np.uint64)]
        doubles = points(rng, (-1e30, 1e30), np.float64, N)
        doubles[:40] *= 1e-70  # below the normal floats
        columns.append(doubles)
        check = equals(converted(columns, np.float32, mode))
        return *map(Given, columns), Result(np.zeros((N, 5), np.float32), check)

    @family.case(grid=2, block=128, name=f"to_double_{mode}", kernel=f"to_double_{mode}")
    def to_double(rng: Generator) -> Arguments:
        columns = [whole_numbers(rng, dtype) for dtype in (np.int64, np.uint64)]
        return *map(Given, columns), Result(np.zeros((N, 2)), equals(converted(columns, np.float64, mode)))


for _mode in MODES:
    for _name, _dtype in (("single", np.float32), ("double", np.float64)):
        add_arithmetic(_name, _dtype, _mode)
    for _name, _dtype in (("float", np.float32), ("double", np.float64)):
        add_to_integer(_name, _dtype, _mode)
    add_to_float(_mode)


# --- into a range, and subnormal numbers ------------------------------------------------------------------------------


@family.case(grid=2, block=128)
def saturating(rng: Generator) -> Arguments:
    x = points(rng, (-1e5, 1e5), np.float32, N)
    x[:8] = np.nan, np.inf, -np.inf, 0.5, 1.5, 127.5, -128.5, 65535.5
    n = whole_numbers(rng, np.int32)
    known = np.where(np.isnan(x), np.float32(0), x).astype(np.float64)
    columns = [
        *(np.clip(np.trunc(known), -128, 127), np.clip(np.rint(known), 0, 65535)),
        *(np.clip(n, 0, 255), np.clip(n, -(2**15), 2**15 - 1)),
    ]
    whole = Result(np.zeros((N, 4), np.int32), equals(np.stack(columns, axis=1).astype(np.int32)))
    return Given(x), Given(n), whole, Result(np.zeros(N, np.float32), equals(np.clip(known, 0, 1).astype(np.float32)))


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def arithmetic_of_specials(keep: Callable[[np.ndarray], np.ndarray], dtype: Any) -> Arguments:
    a, b = special_pairs(dtype)
    u, v = keep(a), keep(b)
    results = [u + v, u - v, u * v, u / v, dtype(1) / v, np.sqrt(u)]
    columns = [*map(keep, results), (np.abs(u) < np.abs(v)).astype(dtype)]
    check = identical(np.stack(columns, axis=1))
    return Given(a), Given(b), Result(np.zeros((a.size, 7), dtype), check), a.size


@family.case(grid=6, block=128)
def arithmetic(rng: Generator) -> Arguments:
    return arithmetic_of_specials(lambda x: x, np.float32)


@family.case(grid=6, block=128)
def arithmetic_of_doubles(rng: Generator) -> Arguments:
    return arithmetic_of_specials(lambda x: x, np.float64)


@flushing.case(grid=6, block=128, kernel="arithmetic")
def arithmetic_without_subnormals(rng: Generator) -> Arguments:
    return arithmetic_of_specials(flushed, np.float32)


@flushing.case(grid=6, block=128, kernel="arithmetic_of_doubles")
def doubles_keep_their_subnormals(rng: Generator) -> Arguments:
    return arithmetic_of_specials(lambda x: x, np.float64)
