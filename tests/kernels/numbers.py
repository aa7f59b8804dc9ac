"""References of `numbers.cu`: Python's own integers, which are as long as they need to be."""

from __future__ import annotations

import itertools
import math

import numpy as np

from .case import Arguments, Family, Given, Result, equals

Generator = np.random.Generator

family = Family("numbers.cu")


def is_prime(n: int) -> bool:
    return n > 1 and all(n % k for k in range(2, math.isqrt(n) + 1))


@family.case(grid=4, block=64)
def sieve(rng: Generator) -> Arguments:
    prime = np.array([is_prime(n) for n in range(1, 4 * 2048, 2)])
    words = np.packbits(prime, bitorder="little").view(np.uint32)
    small = np.array([n for n in range(3, 91) if is_prime(n)], np.int32)
    return Result(np.zeros(128, np.uint32), equals(words)), Given(small), small.size


@family.case(grid=2, block=64)
def modular_power(rng: Generator) -> Arguments:
    base, exponent = (rng.integers(0, 2**64, 128, dtype=np.uint64) for _ in range(2))
    modulus = rng.integers(1, 2**63, 128, dtype=np.uint64) | np.uint64(1)
    exponent[:2] = 0, 1
    triples = zip(base.tolist(), exponent.tolist(), modulus.tolist(), strict=True)
    expected = np.array([pow(*triple) for triple in triples], np.uint64)
    return Given(base), Given(exponent), Given(modulus), Result(np.zeros(128, np.uint64), equals(expected))


@family.case(grid=1, block=64)
def miller_rabin(rng: Generator) -> Arguments:
    primes = [3, 37, 41, 65537, 2**31 - 1, 2**61 - 1, 10**18 + 9, 999999999989]
    composites = [9, 561, 2047, 1373653, 25326001, 3215031751, 3825123056546413051, (2**31 - 1) ** 2]
    some = [(n, is_prime(n)) for n in rng.integers(1, 10**5, 64 - 16).tolist() for n in [2 * n + 1]]
    numbers = [*((n, True) for n in primes), *((n, False) for n in composites), *some]
    given, expected = (np.array(column) for column in zip(*numbers, strict=True))
    out = Result(np.full(64, -1, np.int32), equals(expected.astype(np.int32)))
    return Given(given.astype(np.uint64)), out


def integers(words: np.ndarray) -> list[int]:
    """The number in each row, its lowest word first."""
    return [int.from_bytes(row.tobytes(), "little") for row in words]


@family.case(grid=2, block=32)
def long_product(rng: Generator) -> Arguments:
    a, b = (rng.integers(0, 2**64, (64, 4), dtype=np.uint64) for _ in range(2))
    a[0] = b[0] = 2**64 - 1
    products = b"".join((x * y).to_bytes(64, "little") for x, y in zip(integers(a), integers(b), strict=True))
    expected = np.frombuffer(products, np.uint64)
    return Given(a), Given(b), Result(np.zeros((64, 8), np.uint64), equals(expected))


@family.case(grid=1, block=64)
def decimal_digits(rng: Generator) -> Arguments:
    numbers = rng.integers(0, 2**32, (64, 4), dtype=np.uint32)
    numbers[0], numbers[1] = 0, 2**32 - 1
    text = "".join(f"{n:040}"[::-1] for n in integers(numbers))
    return Given(numbers), Result(np.zeros((64, 40), np.uint8), equals(np.frombuffer(text.encode(), np.uint8)))


@family.case(grid=2, block=128)
def collatz(rng: Generator) -> Arguments:
    n, steps = np.arange(1, 257), np.zeros(256, np.int32)
    while (n > 1).any():
        steps += n > 1
        n = np.where(n > 1, np.where(n % 2, 3 * n + 1, n // 2), 1)
    return (Result(np.full(256, -1, np.int32), equals(steps)),)


@family.case(grid=1, block=49)
def queens(rng: Generator) -> Arguments:
    n = 7
    boards = itertools.permutations(range(n))
    ways = sum(len({c + r for r, c in enumerate(b)}) == len({c - r for r, c in enumerate(b)}) == n for b in boards)
    return n, Result(np.zeros(1, np.uint32), equals([ways]))


PRIME = 998244353
"""119 * 2 ** 23 + 1; 3 generates its group."""


@family.case(grid=2, block=128)
def number_transform(rng: Generator) -> Arguments:
    x = rng.integers(0, PRIME, (2, 256))
    root = pow(3, (PRIME - 1) // 256, PRIME)
    powers = np.array([pow(root, k, PRIME) for k in range(256)])
    k = np.arange(256)
    expected = np.array([(row * powers[np.outer(k, k) % 256] % PRIME).sum(axis=1) % PRIME for row in x])
    return Given(x.astype(np.uint32)), Result(np.zeros((2, 256), np.uint32), equals(expected.astype(np.uint32))), root


@family.case(grid=1, block=256)
def knapsack(rng: Generator) -> Arguments:
    weights, values = (rng.integers(1, 60, 20).astype(np.int32) for _ in range(2))
    best = np.zeros(256, np.int32)
    for weight, value in zip(weights, values, strict=True):
        best[weight:] = np.maximum(best[weight:], best[:-weight] + value)
    return Given(weights), Given(values), 20, Result(np.full(256, -1, np.int32), equals(best))


@family.case(grid=6, block=120)
def permutations(rng: Generator) -> Arguments:
    expected = np.array(list(itertools.permutations(range(6))), np.int32)
    return (Result(np.zeros((720, 6), np.int32), equals(expected)),)


@family.case(grid=1, block=32)
def compensated_sum(rng: Generator) -> Arguments:
    """The large numbers cancel: what is left would be lost in a plain sum."""
    large = rng.standard_normal((32, 20)) * 1e12
    x = np.concatenate([large, rng.standard_normal((32, 21)), -large], axis=1)
    for row in x:
        rng.shuffle(row)
    exact = np.array([math.fsum(row) for row in x])
    plain = x.sum(axis=1)

    def check(got: np.ndarray) -> None:
        """As if it had been summed with twice the digits, and rounded once."""
        np.testing.assert_allclose(got, exact, rtol=1e-14, atol=1e-13)
        assert np.abs(plain - exact).max() > 1e-6

    return Given(x), x.shape[1], Result(np.zeros(32), check)


@family.case(grid=1, block=32)
def find_word(rng: Generator) -> Arguments:
    text, word = rng.choice(np.frombuffer(b"ab", np.int8), 600), np.frombuffer(b"abaab", np.int8)
    windows = np.lib.stride_tricks.sliding_window_view(text, word.size)
    found = np.pad((windows == word).all(axis=1), (0, word.size - 1)).astype(np.int32)
    return Given(text), text.size, Given(word), word.size, 20, Result(np.zeros(600, np.int32), equals(found))
