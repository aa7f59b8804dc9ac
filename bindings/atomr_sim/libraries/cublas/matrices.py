"""The matrices of BLAS, from their storage: transposed, symmetric, triangular, or banded.

Storage that is not part of the matrix is never used: the other triangle, or the corners of a band's storage, may have
any content.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dense import triangle

if TYPE_CHECKING:
    from ...engine.memory import Array


def scaled(factor: Any, values: Array) -> Array:
    """A product that leaves complex infinities unchanged if the factor is one, and only then.

    For the library a real factor is a complex one, as seen on an H200: an infinity then becomes a NaN in the other
    part.
    """
    if factor == 1:
        return values
    product: Array = factor * values
    return product


def by_parts(factor: Any, values: Array) -> Array:
    """The product with a real number, which leaves the parts of complex numbers apart: rotations, as on an H200."""
    if not np.iscomplexobj(values):
        product: Array = factor * values
        return product
    parts = np.ascontiguousarray(values)
    result: Array = (factor * parts.view(parts.real.dtype)).view(parts.dtype)
    return result


def combined(alpha: Any, product: Callable[[], Array], beta: Any, target: Callable[[], Array]) -> Any:
    """Return alpha product + beta target. If a factor is zero, its operand is not read."""
    first = scaled(alpha, product()) if alpha != 0 else 0
    return first + scaled(beta, target()) if beta != 0 else first


def transposed(values: Array, word: int) -> Array:
    """Return a matrix unchanged (0), transposed (1), or transposed and conjugated (2)."""
    return (values, values.T, values.conj().T)[word]


def symmetric(values: Array, lower: bool, hermitian: bool = False) -> Array:
    """Return the whole matrix from one triangle. The diagonal of a Hermitian one is assumed to be real."""
    whole = np.where(triangle(len(values), lower), values, values.conj().T if hermitian else values.T)
    return real_diagonal(whole) if hermitian else whole


def real_diagonal(values: Array) -> Array:
    """Clear the imaginary parts of the diagonal of a square matrix, in place."""
    np.fill_diagonal(values, np.diagonal(values).real.copy())
    return values


def from_band(stored: Array, rows: int, below: int, above: int) -> Array:
    """Return a matrix from the storage of its diagonals, each in a row: the highest is the first."""
    columns = stored.shape[1]
    whole = np.zeros((rows, columns), stored.dtype)
    for offset in range(-below, above + 1):
        first = max(0, offset)
        count = min(rows + offset, columns) - first
        if count > 0:
            place = np.arange(first, first + count)
            whole[place - offset, place] = stored[above - offset, place]
    return whole
