"""References of `wide.cu`: Python's own integers, cut to 128 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .case import Arguments, Family, Given, Result, equals
from .integers import signed, toward_zero

Generator = np.random.Generator

family = Family("wide.cu", {"extra_options": ["--device-int128"]})

THREADS = 128
TYPES = {"s128": True, "u128": False}
"""The types by their names in the file, and whether they have a sign."""
EDGES = [0, 1, 2, 2**127 - 1, 2**127, 2**127 + 1, 2**128 - 1, 2**128 - 2, 2**64 - 1, 2**64, 2**64 + 1, 2**63]


def numbers(rng: Generator, *, zero: bool = True) -> list[int]:
    """Words of 128 bits and of fewer, the extremes among them."""
    drawn = [int.from_bytes(rng.bytes(16), "little") >> int(shift) for shift in rng.integers(0, 128, THREADS)]
    drawn[: THREADS // 3] = [EDGES[at] for at in rng.integers(0, len(EDGES), THREADS // 3)]
    mixed = [drawn[at] for at in rng.permutation(THREADS)]
    return mixed if zero else [value or 3 for value in mixed]


def words(values: list[int]) -> np.ndarray:
    """Two words for each, the lower one first."""
    return np.frombuffer(b"".join((value % 2**128).to_bytes(16, "little") for value in values), np.uint64)


def read(value: int, *, has_sign: bool) -> int:
    return signed(value, 128) if has_sign else value


def result(values: list[int]) -> Result:
    expected = words(values)
    return Result(np.zeros_like(expected), equals(expected))


def add(kernel: str, type_name: str, arguments: Callable[[Generator], Arguments]) -> None:
    """One kernel of one type."""
    name = family.instance(f"{kernel}<{type_name}>")
    family.case(grid=2, block=THREADS // 2, kernel=name, name=f"{kernel}_{type_name}")(arguments)


def _add_all(type_name: str, has_sign: bool) -> None:
    def products(rng: Generator) -> Arguments:
        a, b = numbers(rng), numbers(rng)
        rows = [(x * y, x + y, x - y, -x) for x, y in zip(a, b, strict=True)]
        return Given(words(a)), Given(words(b)), result([each for row in rows for each in row])

    def quotients(rng: Generator) -> Arguments:
        a, b = numbers(rng), numbers(rng, zero=False)
        values = []
        for x, y in zip(a, b, strict=True):
            x, y = read(x, has_sign=has_sign), read(y, has_sign=has_sign)
            quotient = toward_zero(x, y)
            values += [quotient, x - quotient * y]
        return Given(words(a)), Given(words(b)), result(values)

    def shifts(rng: Generator) -> Arguments:
        a, by = numbers(rng), rng.integers(0, 128, THREADS).astype(np.int32)
        by[:4] = 0, 63, 64, 127
        pairs = [(read(x, has_sign=has_sign), count) for x, count in zip(a, by.tolist(), strict=True)]
        return Given(words(a)), Given(by), result([each for x, count in pairs for each in (x >> count, x << count)])

    def comparisons(rng: Generator) -> Arguments:
        a, b = numbers(rng), numbers(rng)
        b[::5] = a[::5]
        codes = []
        for x, y in zip(a, b, strict=True):
            x, y = read(x, has_sign=has_sign), read(y, has_sign=has_sign)
            facts = (x < y, x <= y, x == y, x != y, x > y, x >= y)
            codes.append(sum(fact << place for place, fact in enumerate(facts)))
        return Given(words(a)), Given(words(b)), Result(np.zeros(THREADS, np.int32), equals(np.array(codes, np.int32)))

    for kernel, arguments in (
        ("wide_products", products),
        ("wide_quotients", quotients),
        ("wide_shifts", shifts),
        ("wide_comparisons", comparisons),
    ):
        add(kernel, type_name, arguments)


for _name, _has_sign in TYPES.items():
    _add_all(_name, _has_sign)
