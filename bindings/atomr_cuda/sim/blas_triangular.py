"""Triangular matrices of BLAS, by scipy's: the one part of the products that numpy does not have."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .memory import Array


@cache
def _routine(name: str, kind: str) -> Any:
    # Imported where it is needed: a worker that multiplies no triangular matrix starts sooner.
    from scipy.linalg import blas  # type: ignore[import-untyped, unused-ignore]

    return blas.get_blas_funcs(name, dtype=kind)


def triangular(
    routine: str, matrix: Array, values: Array, lower: bool, word: int, unit: bool, *, right: bool = False
) -> Array:
    """op(matrix) values ("trmm") or the solution of op(matrix) X = values ("trsm"); ``right``: the matrix stands there.

    Only its triangle is read, without the diagonal where that is taken to be ones (``unit``). What cannot be solved
    gives infinities, as from the library: no status says so.
    """
    if values.size == 0:
        return values
    compute = _routine(routine, values.dtype.char)
    result: Array = compute(1, matrix, values, side=right, lower=lower, trans_a=word, diag=unit)
    return result
