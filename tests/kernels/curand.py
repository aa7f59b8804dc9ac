"""References of `curand.cu`: the three generators written down anew, from their papers, in whole numbers of Python.

- Philox 4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011.
- XORWOW: Marsaglia, "Xorshift RNGs", 2003.
- MRG32k3a: L'Ecuyer, "Good parameters and implementations for combined multiple recursive generators", 1999.

What cuRAND adds is how a seed makes the first state, and how far apart subsequences are.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .case import Arguments, Family, Launch, Result, anything, equals, near

Generator = np.random.Generator

family = Family("curand.cu", headers=True, curand=True, slow=True)

WORD = (1 << 32) - 1
SEED = 0x1234_5678_9ABC_DEF0
COUNT = 8
THREADS = 48


# --- Philox -----------------------------------------------------------------------------------------------------------


def philox_block(counter: int, key: int) -> tuple[int, ...]:
    """Ten rounds: four words from a counter of 128 bits and a key of 64."""
    c0, c1, c2, c3 = (counter >> 32 * at & WORD for at in range(4))
    low, high = key & WORD, key >> 32
    for _ in range(10):
        one, other = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = other >> 32 ^ c1 ^ low, other & WORD, one >> 32 ^ c3 ^ high, one & WORD
        low, high = low + 0x9E3779B9 & WORD, high + 0xBB67AE85 & WORD
    return c0, c1, c2, c3


def philox(seed: int, subsequence: int, offset: int) -> Iterator[int]:
    """Subsequences are 2**66 words apart."""
    blocks = (philox_block(subsequence << 64 | at, seed) for at in itertools.count(offset // 4))
    return itertools.islice(itertools.chain.from_iterable(blocks), offset % 4, None)


# --- XORWOW -----------------------------------------------------------------------------------------------------------


def xorwow_step(v: int) -> int:
    """The next state of the five words, the oldest of which is in the lowest bits."""
    oldest, newest = v & WORD, v >> 128
    mixed = oldest ^ oldest >> 2
    return v >> 32 | (newest ^ newest << 4 ^ mixed ^ mixed << 1) % (1 << 32) << 128


def times_bits(matrix: Sequence[int], v: int) -> int:
    """A matrix of bits, whose columns are numbers, by a vector of bits."""
    return functools.reduce(int.__xor__, (column for at, column in enumerate(matrix) if v >> at & 1), 0)


@functools.cache
def xorwow_jump() -> list[int]:
    """The matrix of 2**67 steps, by which subsequences are apart."""
    matrix = [xorwow_step(1 << at) for at in range(160)]
    for _ in range(67):
        matrix = [times_bits(matrix, column) for column in matrix]
    return matrix


def xorwow(seed: int, subsequence: int, offset: int) -> Iterator[int]:
    """The sum of five words that are shifted, and of one that counts in large steps."""
    t0, t1 = 1099087573 * (seed & WORD ^ 0xAAD26B49), 2591861531 * (seed >> 32 ^ 0xF7DCEFDD)
    words = 123456789 + t0, 362436069 ^ t0 & WORD, 521288629 + t1, 88675123 ^ t1 & WORD, 5783321 + t0
    v, d = sum((word & WORD) << 32 * at for at, word in enumerate(words)), 6615241 + t0 + t1
    for _ in range(subsequence):
        v = times_bits(xorwow_jump(), v)
    for steps in itertools.count(1):
        v = xorwow_step(v)
        if steps > offset:
            yield (v >> 128) + d + 362437 * steps & WORD


# --- MRG32k3a ---------------------------------------------------------------------------------------------------------

M1, M2 = 4294967087, 4294944443
A1 = ((0, 1, 0), (0, 0, 1), (-810728, 1403580, 0))
A2 = ((0, 1, 0), (0, 0, 1), (-1370589, 0, 527612))
Matrix = tuple[tuple[int, ...], ...]


def product(a: Matrix, b: Matrix, modulus: int) -> Matrix:
    columns = tuple(zip(*b, strict=True))
    return tuple(tuple(sum(map(int.__mul__, row, column)) % modulus for column in columns) for row in a)


def power(a: Matrix, exponent: int, modulus: int) -> Matrix:
    result: Matrix = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    while exponent:
        if exponent & 1:
            result = product(result, a, modulus)
        a, exponent = product(a, a, modulus), exponent >> 1
    return result


def mrg32k3a(seed: int, subsequence: int, offset: int) -> Iterator[int]:
    """Numbers from 1 to M1; subsequences are 2**76 steps apart."""
    x, y = seed & WORD ^ 0x55555555, seed >> 32 ^ 0xAAAAAAAA
    steps = (subsequence << 76) + offset
    s1 = product(power(A1, steps, M1), tuple((12345 * factor % M1,) for factor in (x, y, x)), M1)
    s2 = product(power(A2, steps, M2), tuple((12345 * factor % M2,) for factor in (y, x, y)), M2)
    while True:
        s1, s2 = product(A1, s1, M1), product(A2, s2, M2)
        yield (s1[2][0] - s2[2][0] - 1) % M1 + 1


# --- what is made of the draws ----------------------------------------------------------------------------------------


def uniform_of_words(words: np.ndarray) -> np.ndarray:
    """In (0, 1], as floats."""
    return words.astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)


def angles_of_words(words: np.ndarray) -> np.ndarray:
    return words * (2 * np.pi * 2.0**-32)


def uniform_of_residues(draws: np.ndarray) -> np.ndarray:
    return (draws * 2.3283065498378288e-10).astype(np.float32)


def angles_of_residues(draws: np.ndarray) -> np.ndarray:
    return uniform_of_residues(draws) * (2 * np.pi)


def bits_of_residues(draws: np.ndarray) -> np.ndarray:
    return (draws * 1.000000048662).astype(np.uint32)


Forms = tuple[Callable[[np.ndarray], np.ndarray], ...]

WORDS: Forms = (lambda words: words.astype(np.uint32), uniform_of_words, angles_of_words)
RESIDUES: Forms = (bits_of_residues, uniform_of_residues, angles_of_residues)

GENERATORS: dict[str, tuple[Callable[[int, int, int], Iterator[int]], Forms, str]] = {
    "philox": (philox, WORDS, "curandStatePhilox4_32_10_t"),
    "xorwow": (xorwow, WORDS, "curandStateXORWOW_t"),
    "mrg32k3a": (mrg32k3a, RESIDUES, "curandStateMRG32k3a_t"),
}


def drawn(name: str, seed: int, offset: int, count: int, threads: int = THREADS) -> np.ndarray:
    """What the threads draw, each from the subsequence of its number."""
    generator = GENERATORS[name][0]
    return np.array([list(itertools.islice(generator(seed, i, offset), count)) for i in range(threads)], np.int64)


def box_muller(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Pairs of normal numbers from pairs of uniform ones."""
    lengths = np.sqrt(-2 * np.log(radius.astype(np.float64)))
    return np.stack([lengths * np.sin(angle), lengths * np.cos(angle)], axis=-1).reshape(len(radius), -1)


def add_draws(name: str, seed: int, offset: int) -> None:
    _, (bits, uniform, angles), state = GENERATORS[name]

    @family.case(grid=3, block=THREADS // 3, kernel=family.instance(f"draws<{state}>"), name=f"{name}_{offset}")
    def draws(rng: Generator) -> Arguments:
        first, second, third = np.split(drawn(name, seed, offset, 3 * COUNT), 3, axis=1)
        normal = box_muller(uniform(third[:, ::2]), angles(third[:, 1::2]))
        empty = np.zeros((THREADS, COUNT), np.float32)
        why = "the fast sine of an angle up to 2 pi is off by some 2**-19, and is multiplied by less than 7"
        return (
            *(np.uint64(seed), np.uint64(offset), Result(empty.astype(np.uint32), equals(bits(first)))),
            *(Result(empty, equals(uniform(second))), Result(empty, near(normal, absolute=2e-5, why=why)), COUNT),
        )


for _name in GENERATORS:
    add_draws(_name, SEED, 0)
add_draws("philox", SEED, 4_000_000_007)
add_draws("xorwow", 7, 1000)
add_draws("mrg32k3a", 7, 123_456_789)


def add_continued(name: str, state: str, size: int) -> None:
    seeded, continued = (family.instance(f"{kernel}<{state}>") for kernel in ("seeded", "continued"))

    def build(rng: Generator) -> Sequence[Launch]:
        states = Result(np.zeros((32, size), np.uint8), anything)
        bits = Result(np.zeros((32, 12), np.uint32), equals(drawn(name, SEED, 0, 12, 32).astype(np.uint32)))
        parts = [Launch(continued, 1, 32, [states, bits, first, count, 12]) for first, count in ((0, 5), (5, 7))]
        return [Launch(seeded, 1, 32, [np.uint64(SEED), states]), *parts]

    family.add(f"{name}_continued", build)


add_continued("xorwow", "curandStateXORWOW_t", 48)
add_continued("philox", "curandStatePhilox4_32_10_t", 64)


def poisson(words: Iterator[int], mean: float) -> int:
    """How many uniform numbers can be multiplied before the product is below exp(-mean)."""
    left, count = math.exp(mean), 0
    while True:
        left *= (next(words) + 0.5) / 2**32
        assert abs(left - 1) > 1e-4, "too close for floats to tell"
        if left <= 1:
            return count
        count += 1


@family.case(grid=2, block=32)
def philox_forms(rng: Generator) -> Arguments:
    words, mean = drawn("philox", SEED, 0, 8, 64), 5.5
    counts = [[poisson(rest, mean) for _ in range(4)] for rest in (philox(SEED, i, 8) for i in range(64))]
    return (
        *(np.uint64(SEED), Result(np.zeros((64, 4), np.uint32), equals(words[:, :4].astype(np.uint32)))),
        Result(np.zeros((64, 4)), equals((words[:, 4:] + 1) / 2**32)),
        *(Result(np.full((64, 4), 99, np.uint32), equals(np.array(counts, np.uint32))), np.float32(mean)),
    )


@family.case(grid=2, block=32)
def points_in_circle(rng: Generator) -> Arguments:
    points = drawn("xorwow", SEED, 0, 32, 64).reshape(64, 16, 2)
    distances = (uniform_of_words(points).astype(np.float64) ** 2).sum(axis=2)
    assert (np.abs(distances - 1) > 1e-6).all(), "too close for floats to tell"
    return np.uint64(SEED), 16, Result(np.zeros(1, np.uint32), equals([np.count_nonzero(distances <= 1)]))
