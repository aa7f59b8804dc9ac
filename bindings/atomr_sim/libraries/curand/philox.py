"""The library's Philox4x32-10 in numpy: the numbers of its host API, in the order in which it gives them.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw: Parallel Random Numbers: As Easy as 1, 2, 3 (2011).

There are 65,536 threads. Each draws from blocks of its own, of four words x, y, z, w: block b of thread t has the
counter (b mod 2^32, b div 2^32, t, 0), and the key is the seed. A thread has four slots, and the slots of all threads
are taken in turn: number n of a call belongs to slot (q + n) mod 262,144. In each round a thread uses one block for its
four slots, or two where a number needs two words: the first block serves the slots 0 and 1, the second one 2 and 3. It
goes on to its next block when its last slot is taken.

Words, uniforms and their order are exactly the library's. Normal numbers differ from those of a processor or of a GPU
in their last bits, as these do from each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from ...engine.memory import Array
    from .kinds import Draw, Settings

THREADS: Final = 65_536
SLOTS: Final = 4 * THREADS

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def blocks(numbers: Array, threads: Array, seed: int) -> Array:
    """The words x, y, z, w of blocks, as an array of shape (n, 4) and dtype uint32.

    ``numbers`` and ``threads`` are arrays of shape (n,) and dtype uint64: the first two words of each counter, and the
    third.
    """
    return philox((numbers & _LOW, numbers >> _HALF, threads, np.zeros_like(threads)), seed)


def philox(counter: tuple[Array, Array, Array, Array], seed: int) -> Array:
    """Philox4x32-10 of counters. Their four words are arrays of uint64 below 2^32; the key is a number of 64 bits."""
    x, y, z, w = counter
    first, second = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(_ROUNDS):
        a, b = x * _MULTIPLIERS[0], z * _MULTIPLIERS[1]
        x, y, z, w = (b >> _HALF) ^ y ^ np.uint64(first), b & _LOW, (a >> _HALF) ^ w ^ np.uint64(second), a & _LOW
        first, second = (first + _WEYL[0]) & 0xFFFFFFFF, (second + _WEYL[1]) & 0xFFFFFFFF
    return np.stack((x, y, z, w), axis=-1).astype(np.uint32)


# Numbers from words. The argument has the shape (threads, 4) or, where a number needs two words, (threads, 8).

_INV32 = np.float32(2.0**-32)
_ANGLE32 = np.float32(2.0**-32) * np.float32(6.2831855)


def _words(words: Array) -> Array:
    return words


def uniform32(words: Array) -> Array:
    """Numbers in (0, 1] from words of 32 bits."""
    return words.astype(np.float32) * _INV32 + _INV32 / np.float32(2)


def _joined(words: Array) -> Array:
    """Numbers of 53 bits from pairs of words: the second one is shifted onto the first."""
    wide = words.astype(np.uint64)
    joined: Array = wide[..., 0::2] ^ (wide[..., 1::2] << np.uint64(21))
    return joined


def _uniform64(words: Array) -> Array:
    return _joined(words) * 2.0**-53 + 2.0**-54


def _paired(first: Array, second: Array) -> Array:
    """Two arrays of one shape, their elements in turn."""
    return np.stack((first, second), axis=-1).reshape(len(first), -1)


def _normal32(words: Array) -> Array:
    """Box-Muller, of each two words."""
    radius = np.sqrt(np.float32(-2) * np.log(uniform32(words[:, 0::2])))
    angle = words[:, 1::2].astype(np.float32) * _ANGLE32 + _ANGLE32 / np.float32(2)
    return _paired(radius * np.sin(angle), radius * np.cos(angle))


def _normal64(words: Array) -> Array:
    """Box-Muller, of each four words."""
    joined = _joined(words)
    radius = np.sqrt(-2.0 * np.log(joined[:, 0::2] * 2.0**-53 + 2.0**-54))
    angle = (joined[:, 1::2] * 2.0**-52 + 2.0**-53) * np.pi
    return _paired(radius * np.sin(angle), radius * np.cos(angle))


_FORMULAS: dict[str, tuple[int, Callable[[Array], Array]]] = {
    "curandGenerate": (1, _words),
    "curandGenerateUniform": (1, uniform32),
    "curandGenerateUniformDouble": (2, _uniform64),
    "curandGenerateNormal": (1, _normal32),
    "curandGenerateNormalDouble": (2, _normal64),
    "curandGenerateLogNormal": (1, _normal32),
    "curandGenerateLogNormalDouble": (2, _normal64),
}
"""The words that a number needs, and how it is made of them."""


def scaled(draw: Draw, normal: Array, parameters: tuple[float, ...]) -> Array:
    """Normal or lognormal numbers of a mean and a standard deviation, from standard normal ones; others as they are."""
    if not draw.is_normal:
        return normal
    mean, deviation = (draw.dtype.type(each) for each in parameters)
    numbers = normal * deviation + mean
    return np.exp(numbers) if "LogNormal" in draw.name else numbers


class PhiloxModel:
    """A generator."""

    def __init__(self, settings: Settings) -> None:
        rounds, self._slot = divmod(settings.offset, SLOTS)
        self._seed = settings.seed
        self._threads: Array = np.arange(THREADS, dtype=np.uint64)
        self._blocks: Array = np.full(THREADS, rounds, np.uint64)
        """The number of each thread's next block."""
        self._blocks[: self._slot // 4] += np.uint64(1)

    @staticmethod
    def draws(draw: Draw) -> bool:
        """Tell whether the model has a function."""
        return draw.name in _FORMULAS

    def draw(self, draw: Draw, count: int, parameters: tuple[float, ...]) -> Array:
        """The next numbers, as an array of shape (count,)."""
        words, formula = _FORMULAS[draw.name]
        result: Array = np.empty(count, draw.dtype)
        done = 0
        with np.errstate(all="ignore"):
            while done < count:
                taken = min(count - done, SLOTS - self._slot)
                result[done : done + taken] = scaled(draw, self._of_round(taken, words, formula), parameters)
                done += taken
        return result

    def _of_round(self, count: int, words: int, formula: Callable[[Array], Array]) -> Array:
        """The numbers of the next slots, which are of one round."""
        begin, end = self._slot, self._slot + count
        threads = slice(begin // 4, -(-end // 4))
        first = self._blocks[threads]
        used = [blocks(first + np.uint64(each), self._threads[threads], self._seed) for each in range(words)]
        numbers = formula(np.concatenate(used, axis=1)).reshape(-1)
        self._blocks[begin // 4 : end // 4] += np.uint64(words)
        self._slot = end % SLOTS
        skipped = begin % 4
        part: Array = numbers[skipped : skipped + count]
        return part

    def close(self) -> None:
        """It owns nothing."""
