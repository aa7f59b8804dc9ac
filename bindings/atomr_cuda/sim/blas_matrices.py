"""What the matrices of BLAS are: transposed, symmetric, triangular, or of a band, from how they lie in memory.

What a matrix does not have is never looked at: the other triangle, or the corners of a band's storage, may hold
anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .dense import triangle

if TYPE_CHECKING:
    from .memory import Array


def scaled(factor: Any, values: Array) -> Array:
    """A product that leaves infinities of complex numbers alone where the factor is one, and only there.

    A real factor is a complex one to the library, as seen on an H200: an infinity gives NaN beside itself.
    """
    if factor == 1:
        return values
    product: Array = factor * values
    return product


def combined(alpha: Any, product: Callable[[], Array], beta: Any, target: Callable[[], Array]) -> Any:
    """alpha product + beta target. A factor of zero means that what it stands before is not even read."""
    first = scaled(alpha, product()) if alpha != 0 else 0
    return first + scaled(beta, target()) if beta != 0 else first


def transposed(values: Array, word: int) -> Array:
    """A matrix as it is (0), transposed (1), or transposed and conjugated (2)."""
    return (values, values.T, values.conj().T)[word]


def symmetric(values: Array, lower: bool, hermitian: bool = False) -> Array:
    """The whole of a matrix of which one triangle is given. The diagonal of a Hermitian one is taken to be real."""
    whole = np.where(triangle(len(values), lower), values, values.conj().T if hermitian else values.T)
    return real_diagonal(whole) if hermitian else whole


def real_diagonal(values: Array) -> Array:
    """A square matrix without the imaginary parts of its diagonal, in its place."""
    np.fill_diagonal(values, np.diagonal(values).real.copy())
    return values


def from_band(stored: Array, rows: int, below: int, above: int) -> Array:
    """A matrix of whose diagonals those are stored, each in a row: the highest is the first."""
    columns = stored.shape[1]
    whole = np.zeros((rows, columns), stored.dtype)
    for offset in range(-below, above + 1):
        first = max(0, offset)
        count = min(rows + offset, columns) - first
        if count > 0:
            place = np.arange(first, first + count)
            whole[place - offset, place] = stored[above - offset, place]
    return whole
