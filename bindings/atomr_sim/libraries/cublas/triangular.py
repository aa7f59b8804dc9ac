"""Triangular matrices of BLAS, by scipy: numpy does not have these functions."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...engine.memory import Array


@cache
def _routine(name: str, kind: str) -> Any:
    # Imported where it is needed: a worker that multiplies no triangular matrix starts faster.
    from scipy.linalg import blas  # type: ignore[import-untyped, unused-ignore]

    return blas.get_blas_funcs(name, dtype=kind)


def triangular(
    routine: str, matrix: Array, values: Array, lower: bool, word: int, unit: bool, *, right: bool = False
) -> Array:
    """Return op(matrix) values ("trmm") or the solution of op(matrix) X = values ("trsm"); with ``right`` the matrix is
    on the right.

    Only its triangle is read, without the diagonal if that is assumed to be ones (``unit``). A singular system gives
    infinities, as from the library: there is no status for it.
    """
    if values.size == 0:
        return values
    compute = _routine(routine, values.dtype.char)
    result: Array = compute(1, matrix, values, side=right, lower=lower, trans_a=word, diag=unit)
    return result
