"""Numbers about transforms, computed on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, SupportsIndex

import numpy as np
import numpy.typing as npt

from ..._values.errors import InvalidArgument
from .axes import integer

_ODD_FACTORS: Final = (3, 5, 7)


def _points(n: object) -> int:
    points = integer(n, "n")
    if not 1 <= points < 1 << 63:
        raise InvalidArgument(f"n is a number of points from 1 to 2**63 - 1, not {points}")
    return points


def _distance(d: object) -> float:
    try:
        return float(d)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidArgument(f"d is the distance of samples, a number, not {d!r}") from None


def fftfreq(n: SupportsIndex, d: float) -> npt.NDArray[np.float64]:
    """Return the frequencies of ``fft``, in its order."""
    return np.fft.fftfreq(_points(n), _distance(d)).astype(np.float64, copy=False)


def rfftfreq(n: SupportsIndex, d: float) -> npt.NDArray[np.float64]:
    """Return the frequencies of ``rfft``."""
    return np.fft.rfftfreq(_points(n), _distance(d)).astype(np.float64, copy=False)


def next_fast_len(n: SupportsIndex) -> int:
    """Return the smallest number from `n` on that has no prime factors but 2, 3, 5 and 7."""
    points = _points(n)
    odd = {1}
    for factor in _ODD_FACTORS:
        odd = {product * power for product in odd for power in _powers(factor, points)}
    # The power of two by which each of them reaches n.
    return min(product << (-(-points // product) - 1).bit_length() for product in odd)


def _powers(factor: int, most: int) -> Iterator[int]:
    """Yield the powers of a factor, up to the first that reaches `most`."""
    power = 1
    while power < most:
        yield power
        power *= factor
    yield power
