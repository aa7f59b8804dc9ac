"""Tests of random words: each looks at a block of them and tells what it found.

They are classical ones. K is Knuth, The Art of Computer Programming, volume 2, section 3.3.2; M is Marsaglia's Diehard
(1995); N is NIST's SP 800-22 (2010); L is L'Ecuyer and Simard's TestU01 (2007). The distributions here are exact, or
limits whose error is far below what so many words can show, also where the original has an approximation.

The words are uint32, at least 2^16 of them, a power of two. Bits come from the least to the most significant, word by
word. Tests that take long look at the first part of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

import numpy as np
from evidence import Array, Cells, Events, Evidence, Halves, Powers
from scipy import special, stats

_WORD: Final = 32
_ONES: Final = np.array([number.bit_count() for number in range(1 << 16)], np.uint8)


def ones(words: Array) -> Array:
    """Return the numbers of ones, of each word."""
    found: Array = _ONES[words & 0xFFFF] + _ONES[words >> 16]
    return found


def bits(words: Array) -> Array:
    """Return the bits of words, along one more axis."""
    return np.unpackbits(words.astype("<u4")[..., None].view(np.uint8), axis=-1, bitorder="little")


def _binomial(trials: int) -> Array:
    return np.asarray(stats.binom.pmf(np.arange(trials + 1), trials, 0.5))


def _counted(values: Array, chances: Array) -> Cells:
    """Values from 0 on, by how often each of them comes. The last cell has what is larger, too."""
    return Cells(np.bincount(np.minimum(values, len(chances) - 1).ravel(), minlength=len(chances)), chances)


def _even(values: Array, cells: int) -> Cells:
    """Values from 0 up to `cells`, all equally likely."""
    return Cells(np.bincount(values.ravel(), minlength=cells), np.full(cells, 1 / cells))


# --- bits -------------------------------------------------------------------------------------------------------------


def monobit(words: Array) -> Halves:
    """The ones of all bits (N 2.1)."""
    return Halves(np.array([ones(words).sum(dtype=np.int64)]), np.array([words.size * _WORD]))


def places(words: Array) -> Halves:
    """The ones at each place of the word."""
    hits = [np.count_nonzero(words & np.uint32(1 << place)) for place in range(_WORD)]
    return Halves(np.array(hits), np.full(_WORD, words.size))


def block_frequency(words: Array) -> Cells:
    """The ones in 1,024 bits (N 2.2)."""
    return _counted(ones(words).reshape(-1, 32).sum(axis=1, dtype=np.int64), _binomial(1024))


def weights(words: Array) -> Cells:
    """The ones of a word beside those of the next, in nine classes each (L, HammingIndep)."""
    edges = np.array([12, 13, 14, 15, 16, 17, 18, 19])
    classes = np.searchsorted(edges, ones(words), side="right").reshape(-1, 2)
    each = np.add.reduceat(_binomial(_WORD), [0, *edges])
    pairs = classes[:, 0] * len(each) + classes[:, 1]
    return Cells(np.bincount(pairs, minlength=len(each) ** 2), np.outer(each, each).ravel())


def runs(words: Array) -> Halves:
    """The places where a bit differs from the one before, so the number of runs (N 2.3)."""
    inside = ones((words ^ (words >> 1)) & 0x7FFFFFFF).sum(dtype=np.int64)
    between = np.count_nonzero((words[:-1] >> 31) ^ (words[1:] & 1))
    return Halves(np.array([inside + between]), np.array([words.size * _WORD - 1]))


@cache
def _longest_chances() -> Array:
    """By the numbers of words of 32 bits whose runs of ones are no longer than each length."""
    up_to = []
    for most in range(_WORD + 1):
        words = [1]
        for length in range(1, _WORD + 1):
            # A word begins with up to `most` ones and a zero, or is all of ones.
            words.append(sum(words[length - 1 - run] for run in range(min(most, length - 1) + 1)) + (length <= most))
        up_to.append(words[-1])
    return np.diff([0, *up_to]) / 2.0**_WORD


def longest_run(words: Array) -> Cells:
    """The longest run of ones in a word (N 2.4)."""
    left = words[: 1 << 22].copy()
    longest = np.zeros(left.size, np.int64)
    while left.any():
        longest += left != 0
        left &= left << 1
    return _counted(longest, _longest_chances())


def lags(words: Array) -> Halves:
    """The bits in which words differ that are 1 to 64 apart, or 128 and so on up to 8,192 (L, AutoCor)."""
    words = words[: 1 << 21]
    distances = [*range(1, 65), *(1 << power for power in range(7, 14))]
    hits = [ones(words[distance:] ^ words[:-distance]).sum(dtype=np.int64) for distance in distances]
    return Halves(np.array(hits), (words.size - np.array(distances)) * _WORD)


def random_walk(words: Array) -> Cells:
    """The highest place of a walk of 1,024 steps, up or down by a bit each (N 2.13; L, RandomWalk1)."""
    steps = bits(words[: 1 << 19].reshape(-1, 32)).reshape(-1, 1024).astype(np.int8) * 2 - 1
    highest = np.maximum(np.cumsum(steps, axis=1, dtype=np.int16).max(axis=1), 0)
    ends = _binomial(1024)  # at 2 k - 1024, for k ones
    # By the principle of reflection, the highest is r as often as the end is r or r + 1, whichever is even.
    return _counted(highest, ends[512 + (np.arange(1025) + 1) // 2])


# --- words ------------------------------------------------------------------------------------------------------------


def serial_high(words: Array) -> Cells:
    """Pairs of the upper bytes of neighbours (K, serial test)."""
    return _even(((words[::2] >> 24) << 8 | words[1::2] >> 24).astype(np.int64), 1 << 16)


def serial_low(words: Array) -> Cells:
    """Pairs of the lower bytes of neighbours (K, serial test)."""
    return _even(((words[::2] & 0xFF) << 8 | words[1::2] & 0xFF).astype(np.int64), 1 << 16)


def serial_blocks(words: Array) -> Cells:
    """Pairs of the upper bytes of words that are four apart: of the same place in neighbouring blocks of Philox."""
    pairs = words.reshape(-1, 2, 4) >> 24
    return _even((pairs[:, 0] << 8 | pairs[:, 1]).astype(np.int64), 1 << 16)


def frequencies(words: Array) -> Cells:
    """The lower halves of words (K, frequency test)."""
    return _even((words & 0xFFFF).astype(np.int64), 1 << 16)


def _gaps(digits: Array) -> Cells:
    found = np.flatnonzero(digits == 0)
    chances = (7 / 8) ** np.arange(80) / 8
    return _counted(np.diff(found) - 1, np.append(chances, (7 / 8) ** 80))


def gaps_high(words: Array) -> Cells:
    """How far it is from one word whose upper three bits are 0 to the next (K, gap test)."""
    return _gaps(words >> 29)


def gaps_low(words: Array) -> Cells:
    """How far it is from one word whose lower three bits are 0 to the next (K, gap test)."""
    return _gaps(words & 7)


def permutations(words: Array) -> Cells:
    """The order of four neighbours (K, permutation test)."""
    order = np.argsort(words.reshape(-1, 4), axis=1, kind="stable")
    names = (order * np.array([64, 16, 4, 1])).sum(axis=1)
    _, found = np.unique(names, return_counts=True)
    return Cells(np.append(found, np.zeros(24 - len(found), np.int64)), np.full(24, 1 / 24))


def maxima(words: Array) -> Cells:
    """The largest of eight neighbours (K, maximum-of-t test)."""
    largest = (words.reshape(-1, 8).max(axis=1) + 0.5) / 2.0**_WORD
    return _even((largest**8 * 128).astype(np.int64), 128)


def birthdays(words: Array) -> Events:
    """Equal spacings between 2^14 birthdays, sorted, in a year of 2^40 days (K and M, birthday spacings)."""
    pairs = words[: 1 << 22].reshape(-1, 1 << 14, 2).astype(np.uint64)
    days = np.sort(pairs[..., 0] << np.uint64(8) | pairs[..., 1] >> np.uint64(24), axis=1)
    spacings = np.sort(np.diff(days, axis=1), axis=1)
    equal = int(np.count_nonzero(np.diff(spacings, axis=1) == 0))
    return Events(equal, len(days) * 2.0 ** (3 * 14 - 40 - 2))


def _collisions(urns: Array) -> Events:
    groups = np.sort(urns[: 1 << 22].reshape(-1, 1 << 14), axis=1)
    hits = int(np.count_nonzero(np.diff(groups, axis=1) == 0))
    balls, number = 1 << 14, 1 << 22
    expected = balls + number * math.expm1(balls * math.log1p(-1 / number))
    return Events(hits, len(groups) * expected)


def collisions_high(words: Array) -> Events:
    """Words of 2^14 whose upper 22 bits came before (K, collision test)."""
    return _collisions(words >> 10)


def collisions_low(words: Array) -> Events:
    """Words of 2^14 whose lower 22 bits came before (K, collision test)."""
    return _collisions(words & 0x3FFFFF)


# --- linear structure -------------------------------------------------------------------------------------------------


def _rank_chances(size: int, most_lost: int) -> Array:
    """The probabilities that a square matrix of bits has full rank, one less, and so on, and of all lower ranks."""
    chances = []
    for lost in range(most_lost):
        rank = size - lost
        powers = np.arange(rank)
        factors = (1 - 2.0 ** (powers - size)) ** 2 / (1 - 2.0 ** (powers - rank))
        chances.append(2.0 ** (-lost * lost) * factors.prod())
    return np.append(chances, 1 - sum(chances))


def _ranks(rows: Array, columns: int) -> Array:
    """Return the ranks of matrices of bits, of shape (matrices, rows, words)."""
    rows, rank = rows.copy(), np.zeros(len(rows), np.int64)
    every = np.arange(len(rows))
    numbers = np.arange(rows.shape[1])
    for column in range(columns):
        word, place = divmod(column, _WORD)
        has = (rows[:, :, word] >> np.uint32(place)) & np.uint32(1)
        has &= numbers >= rank[:, None]
        pivot = has.argmax(axis=1)
        found = has[every, pivot] == 1
        at = np.minimum(rank, rows.shape[1] - 1)
        chosen = rows[every, pivot]
        rows[every[found], pivot[found]] = rows[every[found], at[found]]
        rows[every[found], at[found]] = chosen[found]
        has = (rows[:, :, word] >> np.uint32(place)) & np.uint32(1)
        has &= (numbers > at[:, None]) & found[:, None]
        rows ^= has[:, :, None] * chosen[:, None, :]
        rank += found
    return rank


def ranks_small(words: Array) -> Cells:
    """The ranks of matrices of 32 words (M; N 2.5)."""
    lost = 32 - _ranks(words[: 1 << 18].reshape(-1, 32, 1), 32)
    return _counted(lost, _rank_chances(32, 2))


def ranks_large(words: Array) -> Cells:
    """The ranks of matrices of 256 by 256 bits (M; L, MatrixRank)."""
    lost = 256 - _ranks(words[: 1 << 18].reshape(-1, 256, 8), 256)
    return _counted(lost, _rank_chances(256, 2))


def _complexity(sequence: Array) -> int:
    """Return the length of the shortest linear feedback register that makes the bits (Massey, 1969)."""
    current, before, length, since = 1, 1, 0, 1
    seen = 0
    for number, bit in enumerate(sequence.tolist()):
        seen = seen << 1 | bit
        if (seen & current).bit_count() & 1:
            kept = current
            current ^= before << since
            if 2 * length <= number:
                length, before, since = number + 1 - length, kept, 0
        since += 1
    return length


def linear_complexity(words: Array) -> Cells:
    """The linear complexities of sequences of 512 bits (N 2.10)."""
    size = 512
    sequences = bits(words[: 1 << 13].reshape(-1, size // _WORD)).reshape(-1, size)
    lengths = np.arange(size + 1, dtype=float)
    chances = 2.0 ** (np.minimum(2 * (size - lengths), 2 * lengths - 1) - size)
    chances[0] = 2.0**-size
    return _counted(np.array([_complexity(each) for each in sequences]), chances)


def lowest_complexity(words: Array) -> Cells:
    """The linear complexities of sequences of the lowest bits of 512 words (L, LinearComp)."""
    return linear_complexity(np.packbits(words[: 1 << 16] & 1, bitorder="little").view("<u4"))


# --- frequencies ------------------------------------------------------------------------------------------------------

_LENGTH: Final = 1 << 12


def _spectra(words: Array) -> Array:
    """The powers at each frequency of segments of normal numbers, each of which is exponential of mean 1."""
    normal = special.ndtri((words[: 1 << 21].reshape(-1, _LENGTH) + 0.5) / 2.0**_WORD)
    return np.square(np.abs(np.fft.rfft(normal, axis=1)[:, 1 : _LENGTH // 2])) / _LENGTH


def spectral(words: Array) -> Cells:
    """The powers of all frequencies, in 64 classes (N 2.6, of normal numbers)."""
    return _even(np.minimum((-np.expm1(-_spectra(words)) * 64).astype(np.int64), 63), 64)


def periods(words: Array) -> Powers:
    """The power of each frequency, over all segments."""
    spectra = _spectra(words)
    return Powers(spectra.sum(axis=0), len(spectra))


TESTS: Final[Mapping[str, Callable[[Array], Evidence]]] = MappingProxyType(
    {
        test.__name__.replace("_", " "): test
        for test in (
            *(monobit, places, block_frequency, weights, runs, longest_run, lags, random_walk),
            *(serial_high, serial_low, serial_blocks, frequencies, gaps_high, gaps_low, permutations, maxima),
            *(birthdays, collisions_high, collisions_low),
            *(ranks_small, ranks_large, linear_complexity, lowest_complexity, spectral, periods),
        )
    }
)
"""The tests by name."""
