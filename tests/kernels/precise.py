"""Reference values to more digits than a double has, and sums and products that are rounded once."""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

_DIGITS = decimal.Context(prec=120)
_PI = Decimal("3.1415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170679")


def _of_arrays(function: Callable[[Decimal], Decimal]) -> Callable[[np.ndarray], np.ndarray]:
    """Apply a function of decimals to each double of an array; the results are numpy's longest type."""

    @functools.wraps(function)
    def apply(x: np.ndarray) -> np.ndarray:
        with decimal.localcontext(_DIGITS):
            return np.array([_longest(function(Decimal(float(value)))) for value in x])

    return apply


def _longest(value: Decimal) -> np.longdouble:
    """The sum of two doubles holds more digits than the type does."""
    high = float(value)
    return np.longdouble(high) + np.longdouble(float(value - Decimal(high)))


def _erf(x: Decimal) -> Decimal:
    """The power series. Its terms grow before they shrink; 120 digits outlast that up to 9."""
    term = total = x
    k = 0
    while term and abs(term) > Decimal(10) ** -80:
        k += 1
        term = -term * x * x / k
        total += term / (2 * k + 1)
    return 2 * total / _PI.sqrt()


@functools.cache
def _bernoulli(n: int) -> Fraction:
    if n == 0:
        return Fraction(1)
    return -sum((math.comb(n + 1, k) * _bernoulli(k) for k in range(n)), Fraction(0)) / (n + 1)


def _log_gamma(x: Decimal) -> Decimal:
    """Of positive numbers: Stirling's series far out, and the recurrence back."""
    far, product = x, Decimal(1)
    while far < 40:
        product *= far
        far += 1
    total = (far - Decimal("0.5")) * far.ln() - far + (2 * _PI).ln() / 2
    for k in range(1, 16):
        number = _bernoulli(2 * k)
        total += Decimal(number.numerator) / number.denominator / (2 * k * (2 * k - 1)) / far ** (2 * k - 1)
    return total - product.ln()


erf = _of_arrays(_erf)
erfc = _of_arrays(lambda x: 1 - _erf(x))
log_gamma = _of_arrays(_log_gamma)
gamma = _of_arrays(lambda x: _log_gamma(x).exp())


def rounded(value: Fraction, dtype: Any, mode: str = "rn") -> Any:
    """The fraction as a float of that type: to the nearest (rn), toward zero (rz), up (ru) or down (rd)."""
    with np.errstate(all="ignore"):
        return _rounded(value, dtype, mode)


def _rounded(value: Fraction, dtype: Any, mode: str) -> Any:
    try:
        guess = dtype(float(value))
    except OverflowError:
        guess = dtype(math.inf if value > 0 else -math.inf)
    below, above = (np.nextafter(guess, dtype(end)) for end in (-np.inf, np.inf))
    fits = [one for one in (below, guess, above) if np.isfinite(one)]
    if mode == "rn":
        return _nearest(value, guess, fits, dtype)
    downward = mode == "rd" or (mode == "rz" and value > 0)
    chosen = [one for one in fits if (Fraction(float(one)) <= value if downward else Fraction(float(one)) >= value)]
    edge = -np.inf if downward else np.inf
    return (max(chosen, default=dtype(edge)) if downward else min(chosen, default=dtype(edge))) + dtype(0)


def _nearest(value: Fraction, guess: Any, fits: list[Any], dtype: Any) -> Any:
    """Halves go to the even one. From half a unit beyond the largest number on, it is infinity."""
    largest = np.finfo(dtype).max
    unit = Fraction(float(largest)) - Fraction(float(np.nextafter(largest, dtype(0))))
    if abs(value) >= Fraction(float(largest)) + unit / 2:
        return dtype(math.inf if value > 0 else -math.inf)
    bits = f"u{np.dtype(dtype).itemsize}"
    return min(fits, key=lambda one: (abs(Fraction(float(one)) - value), int(one.view(bits)) & 1))


def fused(a: Any, b: Any, c: Any, dtype: Any, mode: str = "rn") -> Any:
    """a * b + c, rounded once; a sum of zero is positive, as it is for operands of different signs."""
    return rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)), dtype, mode)
