"""References of `integers.cu`: Python's own integers, cut to the width."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .case import Arguments, Family, Given, Result, equals

Generator = np.random.Generator

family = Family("integers.cu")

NAMES = {
    "signed char": np.int8, "unsigned char": np.uint8, "short": np.int16, "unsigned short": np.uint16,
    "int": np.int32, "unsigned": np.uint32, "long long": np.int64, "unsigned long long": np.uint64,
}  # fmt: skip


def numbers(rng: Generator, dtype: Any, n: int = 256) -> np.ndarray:
    """Numbers of all sizes, the extremes among them."""
    limits = np.iinfo(dtype)
    drawn = rng.integers(limits.min, limits.max, n, dtype, endpoint=True)
    drawn = drawn >> rng.integers(0, limits.bits, n).astype(dtype)
    extremes = np.array([limits.min, limits.max, 0, 1, limits.max - 1, limits.min + 1], dtype)
    drawn[: n // 4] = extremes[rng.integers(0, extremes.size, n // 4)]
    return rng.permutation(drawn)


def cut(values: Iterable[Any], dtype: Any) -> np.ndarray:
    """Whole numbers as a type that may be too narrow for them."""
    bits = np.iinfo(dtype).bits
    flat = np.array([int(value) % 2**bits for value in np.ravel(np.array(values, object))], f"u{bits // 8}")
    return flat.view(dtype)


def rows(dtype: Any, row: Callable[..., list[int]], *columns: np.ndarray) -> Result:
    """A result of which each row is a function of one element of each input."""
    each = zip(*(column.tolist() for column in columns), strict=True)
    expected = cut([row(*values) for values in each], dtype)
    return Result(np.zeros_like(expected), equals(expected))


def signed(value: int, bits: int) -> int:
    """The lower bits of a number, read as two's complement."""
    value %= 2**bits
    return value - (value >> (bits - 1) << bits)


def toward_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# --- templates, for each type -----------------------------------------------------------------------------------------


def add_templates(name: str, dtype: Any) -> None:
    limits = np.iinfo(dtype)
    divisors = (3, 7, 16, 32, 1000000007, 10)

    def instance(template: str) -> dict[str, Any]:
        return {
            "grid": 2,
            "block": 128,
            "kernel": family.instance(f"{template}<{name}>"),
            "name": f"{template}_{np.dtype(dtype).name}",
        }

    @family.case(**instance("quotients"))
    def quotients(rng: Generator) -> Arguments:
        a, b = numbers(rng, dtype), numbers(rng, dtype)
        b[(b == 0) | ((b == -1) & (a == limits.min))] = 3  # these two are undefined
        quotient = rows(dtype, lambda x, y: [toward_zero(x, y)], a, b)
        return Given(a), Given(b), quotient, rows(dtype, lambda x, y: [x - y * toward_zero(x, y)], a, b)

    @family.case(**instance("known_divisors"))
    def known_divisors(rng: Generator) -> Arguments:
        def row(x: int) -> list[int]:
            parts = [(toward_zero(x, d), x - d * toward_zero(x, d)) for d in divisors]
            return [part[k % 2] for k, part in enumerate(parts)]

        a = numbers(rng, dtype)
        return Given(a), rows(dtype, row, a)

    @family.case(**instance("shifts"))
    def shifts(rng: Generator) -> Arguments:
        a, by = numbers(rng, dtype), rng.integers(0, 200, 256).astype(np.uint32)
        left = rows(dtype, lambda x, s: [x << s % limits.bits], a, by)
        return Given(a), Given(by), left, rows(dtype, lambda x, s: [x >> s % limits.bits], a, by)


for _name, _dtype in NAMES.items():
    add_templates(_name, _dtype)


# --- products and shifts ----------------------------------------------------------------------------------------------


@family.case(grid=2, block=128)
def wide_products(rng: Generator) -> Arguments:
    def row(x: int, y: int) -> list[int]:
        sx, sy, wide, other = signed(x, 32), signed(y, 32), x << 32 | y, y << 32 | x
        low24 = signed(x, 24) * signed(y, 24) % 2**32
        return [
            *(x * y, sx * sy, x * y >> 32, sx * sy >> 32),
            *(wide * other >> 64, signed(wide, 64) * signed(other, 64) >> 64),
            ((x % 2**24) * (y % 2**24) % 2**32) << 32 | low24,
            wide * other + x,
        ]

    a, b = numbers(rng, np.uint32), numbers(rng, np.uint32)
    return Given(a), Given(b), rows(np.uint64, row, a, b)


@family.case(grid=2, block=128)
def shifts_beyond(rng: Generator) -> Arguments:
    def row(x: int, by: int) -> list[int]:
        out, both, most = by > 31, (x ^ 0xFFFFFFFF) << 32 | x, min(by, 32)
        return [
            *(0 if out else x << by, 0 if out else x >> by, signed(x, 32) >> min(by, 31)),
            *(both << most >> 32, both >> most),
        ]

    a, by = numbers(rng, np.uint32), rng.integers(0, 70, 256).astype(np.uint32)
    return Given(a), Given(by), rows(np.uint32, row, a, by)


@family.case(grid=2, block=128)
def funnels(rng: Generator) -> Arguments:
    def row(low: int, high: int, by: int) -> list[int]:
        both = high << 32 | low
        return [both << by % 32 >> 32, both >> by % 32, (low << 13 | low >> 19)]

    low, high, by = numbers(rng, np.uint32), numbers(rng, np.uint32), rng.integers(0, 99, 256).astype(np.uint32)
    return Given(low), Given(high), Given(by), rows(np.uint32, row, low, high, by)


# --- bits and bytes ---------------------------------------------------------------------------------------------------


def reverse(value: int, bits: int) -> int:
    return int(format(value, f"0{bits}b")[::-1], 2)


def first_set(value: int) -> int:
    return (value & -value).bit_length()


def parts(value: int, bits: int) -> list[int]:
    """A 32-bit word as numbers of so many bits, the lowest first."""
    return [value >> at & (1 << bits) - 1 for at in range(0, 32, bits)]


def joined(values: Iterable[int], bits: int) -> int:
    return sum((value & (1 << bits) - 1) << at for at, value in zip(range(0, 32, bits), values, strict=True))


@family.case(grid=2, block=128)
def bits(rng: Generator) -> Arguments:
    def row(v: int) -> list[int]:
        w = v % 2**32
        order = [v >> 8 * at & 255 for at in (5, 1, 7, 2)]
        return [
            *(w.bit_count(), v.bit_count(), 32 - w.bit_length(), 64 - v.bit_length()),
            *(first_set(w), first_set(v), reverse(w, 32), joined(order, 8)),
        ]

    a = numbers(rng, np.uint64)
    return Given(a), rows(np.int32, row, a), rows(np.uint64, lambda v: [reverse(v, 64)], a)


@family.case(grid=2, block=128)
def bytes_in_words(rng: Generator) -> Arguments:
    def row(x: int, y: int, selector: int) -> list[int]:
        u, v = parts(x, 8), parts(y, 8)
        pairs = list(zip(u, v, strict=True))
        halves = zip(parts(x, 16), parts(y, 16), strict=True)
        return [
            joined([(u + v)[nibble & 7] for nibble in parts(selector, 4)[:4]], 8),
            joined([a + b for a, b in pairs], 8),
            joined([abs(a - b) for a, b in pairs], 8),
            joined([max(signed(a, 8), signed(b, 8)) for a, b in pairs], 8),
            joined([255 * (a > b) for a, b in pairs], 8),
            joined([(a + b + 1) // 2 for a, b in halves], 16),
            sum(abs(a - b) for a, b in pairs),
            sum(a * b for a, b in pairs) + 77 + sum(signed(a, 8) * signed(b, 8) for a, b in pairs) - 5,
        ]

    a, b, selector = (numbers(rng, np.uint32) for _ in range(3))
    return Given(a), Given(b), Given(selector), rows(np.uint32, row, a, b, selector)


@family.case(grid=2, block=128)
def careful(rng: Generator) -> Arguments:
    def row(x: int, y: int) -> list[int]:
        u, v = x % 2**32, y % 2**32
        return [
            *((x + y) >> 1, (x + y + 1) >> 1, (u + v) >> 1, abs(x - y) + 10, abs(u - v) + 10),
            *(min(max(x, -1000), y & 0xFFFF), abs(x >> 1) - abs(y >> 1)),
            max(-(2**31), min(2**31 - 1, x + y)),
        ]

    a, b = numbers(rng, np.int32), numbers(rng, np.int32)
    return Given(a), Given(b), rows(np.int32, row, a, b)


@family.case(grid=1, block=64)
def carries(rng: Generator) -> Arguments:
    a, b = (numbers(rng, np.uint32).reshape(64, 4) for _ in range(2))

    def whole(words: np.ndarray) -> int:
        return sum(int(word) << 32 * k for k, word in enumerate(words))

    def result(operation: Callable[[int, int], int], words: int) -> Result:
        totals = [operation(whole(x[:words]), whole(y[:words])) for x, y in zip(a, b, strict=True)]
        expected = cut([[total >> 32 * k for k in range(4)] for total in totals], np.uint32)
        return Result(np.zeros_like(expected), equals(expected))

    return (
        *(Given(a), Given(b), result(lambda x, y: x + y, 4), result(lambda x, y: x - y, 4)),
        result(lambda x, y: x * y, 2),
    )


@family.case(grid=2, block=128)
def bit_fields_by_instruction(rng: Generator) -> Arguments:
    def row(x: int, y: int, at: int) -> list[int]:
        start, length = at & 31, at >> 8 & 31
        mask = ((1 << length) - 1) << start
        # Bits above the top are copies of the topmost one.
        extended = signed(x, 32) >> start
        return [
            *((x & mask) >> start, signed(extended, length) if length else 0),
            *(y & ~mask | x << start & mask, x.bit_length() - 1),
            (x & y) ^ at,
        ]

    a, b, at = (numbers(rng, np.uint32) for _ in range(3))
    return Given(a), Given(b), Given(at), rows(np.uint32, row, a, b, at)


# --- what is built from them ------------------------------------------------------------------------------------------

PRIMES = [n for n in range(2, 1100) if all(n % d for d in range(2, math.isqrt(n) + 1))]


@family.case(grid=2, block=64)
def is_prime(rng: Generator) -> Arguments:
    known = [2**31 - 1, 2**32 - 5, 1_000_000_007, 4_294_967_279, 61, 7]
    products = [46337**2, 65521 * 65519, 2047, 3_215_031_751, 25_326_001, 2**32 - 1, 2**31]
    small = [*range(60), *range(1000, 1055)]
    tests = np.array(known + products + small, np.uint32)
    prime = [True] * len(known) + [False] * len(products) + [n in PRIMES for n in small]
    assert tests.size == 128
    return Given(tests), Result(np.zeros(128, np.bool_), equals(np.array(prime)))


@family.case(grid=2, block=128)
def greatest_common_divisor(rng: Generator) -> Arguments:
    a, b = numbers(rng, np.uint32), numbers(rng, np.uint32)
    return Given(a), Given(b), Result(np.zeros(256, np.uint32), equals(np.gcd(a, b)))


@family.case(grid=2, block=32)
def crc32(rng: Generator) -> Arguments:
    data = rng.integers(0, 256, (64, 50)).astype(np.uint8)
    sums = np.array([zlib.crc32(row.tobytes()) for row in data], np.uint32)
    return Given(data), 50, Result(np.zeros(64, np.uint32), equals(sums))


@family.case(grid=2, block=16)
def sha256(rng: Generator) -> Arguments:
    cubes = [_integer_root(p << 96, 3) % 2**32 for p in PRIMES[:64]]
    squares = [_integer_root(p << 64, 2) % 2**32 for p in PRIMES[:8]]
    texts = [rng.bytes(int(length)) for length in rng.integers(0, 56, 32)]
    padded = b"".join((t + b"\x80").ljust(56, b"\0") + (8 * len(t)).to_bytes(8, "big") for t in texts)
    digests = np.frombuffer(b"".join(hashlib.sha256(t).digest() for t in texts), ">u4").astype(np.uint32)
    inputs = (Given(np.array(values, np.uint32)) for values in (cubes, squares))
    return *inputs, Given(np.frombuffer(padded, np.uint8)), Result(np.zeros(256, np.uint32), equals(digests))


def _integer_root(value: int, degree: int) -> int:
    """The largest integer whose power is not above the value."""
    low, high = 0, 1 << value.bit_length() // degree + 1
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle)
    return low
