"""Floating point formats of 8 bits as tables of numbers: widening a code, and rounding a number to one."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

_SIGN = np.uint8(0x80)


class Format:
    """A format by the width of its mantissa and the bias of its exponent.

    ``largest`` is the code of its largest finite number, ``beyond`` are the values of the codes above it, ``nan`` is
    the code of the NaN that rounding makes.
    """

    def __init__(self, mantissa: int, bias: int, largest: int, beyond: list[float], nan: int) -> None:
        codes = np.arange(largest + 1)
        exponent, fraction = codes >> mantissa, (codes & ((1 << mantissa) - 1)) / (1 << mantissa)
        normal = exponent > 0
        finite = np.ldexp(fraction + normal, np.where(normal, exponent, 1) - bias)
        positive = np.concatenate([finite, beyond])
        self._numbers = np.concatenate([positive, -positive]).astype(np.float32)
        self._midpoints = (finite[1:] + finite[:-1]) / 2
        self._nan = np.uint8(nan)

    def widen(self, codes: Array) -> Array:
        return self._numbers[codes]

    def round(self, numbers: Array) -> Array:
        size = np.abs(numbers.astype(np.float64))
        below = np.searchsorted(self._midpoints, size, side="left")
        above = np.searchsorted(self._midpoints, size, side="right")
        code = np.where(below % 2, above, below).astype(np.uint8)  # they differ only in a tie
        code = np.where(np.isnan(size), self._nan, code)
        return np.where(np.signbit(numbers), code | _SIGN, code)


E4M3: Format = Format(3, 7, 0x7E, [np.nan], 0x7F)
E5M2: Format = Format(2, 15, 0x7B, [np.inf, np.nan, np.nan, np.nan], 0x7F)
