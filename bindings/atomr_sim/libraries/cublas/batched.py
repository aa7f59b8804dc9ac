"""Factorizations of many small matrices in the simulated cuBLAS. Signatures are described in ``calls``.

An info is that of LAPACK: 0, or the place, from 1, of the first zero on the diagonal of U.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.memory import ILLEGAL_ADDRESS, DeviceFault
from .calls import operation
from .handle import counterpart, require
from .triangular import triangular

if TYPE_CHECKING:
    from ...engine.memory import Array

_LARGEST_INVERSE = 32


@cache
def _routine(name: str, kind: str) -> Any:
    # Imported where it is needed: a worker that factorizes nothing starts faster.
    from scipy.linalg import lapack  # type: ignore[import-untyped, unused-ignore]

    return lapack.get_lapack_funcs(name, dtype=kind)


def _lapack(name: str, *arguments: Any, **options: Any) -> Any:
    """Return a function of LAPACK for the element type of its first argument."""
    return _routine(name, arguments[0].dtype.char)(*arguments, **options)


def _first_zero(factors: Array) -> int:
    """Return the info of a factorization."""
    zeros = np.flatnonzero(np.diagonal(factors) == 0)
    return int(zeros[0]) + 1 if zeros.size else 0


def _factorized(values: Array) -> tuple[Array, Array]:
    """Return L U in one matrix, and for each row the row, from 0, with which it was exchanged."""
    if not values.size:
        return values, np.zeros(0, np.int32)
    factors, rows, _ = _lapack("getrf", values)
    return factors, rows


def _factorized_as_it_is(values: Array) -> Array:
    """Return L U in one matrix, without exchanging rows. A zero on the diagonal stays."""
    for at in range(len(values) - 1):
        if values[at, at] != 0:
            values[at + 1 :, at] /= values[at, at]
        values[at + 1 :, at + 1 :] -= np.outer(values[at + 1 :, at], values[at, at + 1 :])
    return values


@operation("cublas{}getrfBatched", "S D C Z", "n A*(n,n) P#(n):I info#(1):I batch")
def _getrf(call: Any) -> None:
    if call.P.is_null:
        factors = _factorized_as_it_is(call.A.read())
    else:
        factors, rows = _factorized(call.A.read())
        call.P.write(rows + 1)
    call.A.write(factors)
    call.info.write(_first_zero(factors))


def _rows(pivots: Any) -> Array:
    """Return for each row the row, from 0, with which it was exchanged; without pivots the row itself."""
    (order,) = pivots.shape
    result: Array = np.arange(order, dtype=np.int32) if pivots.is_null else pivots.read() - 1
    if not ((result >= 0) & (result < order)).all():
        raise DeviceFault(ILLEGAL_ADDRESS, "a pivot is not the number of a row of the matrix")
    return result


def _solved(factors: Array, rows: Array, values: Array, word: int) -> Array:
    """Return the X of op(A) X = values; infinities where A is singular."""
    order = np.arange(len(rows))
    for at, other in enumerate(rows):
        order[[at, other]] = order[[other, at]]
    if word == 0:
        below = triangular("trsm", factors, values[order], True, 0, True)
        return triangular("trsm", factors, below, False, 0, False)
    above = triangular("trsm", factors, values, False, word, False)
    solution = np.empty_like(values)
    solution[order] = triangular("trsm", factors, above, True, word, True)
    return solution


@operation("cublas{}getrsBatched", "S D C Z", "trans n nrhs A*(n,n) P#(n):I B*(n,nrhs) info^ batch")
def _getrs(call: Any) -> None:
    call.B.write(_solved(call.A.read(), _rows(call.P), call.B.read(), call.trans))


@operation("cublas{}getriBatched", "S D C Z", "n A*(n,n) P#(n):I C*(n,n) info#(1):I batch")
def _getri(call: Any) -> None:
    _write_inverse(call, call.A.read(), _rows(call.P))


def _check_inverse(given: Any) -> None:
    require(given.n <= _LARGEST_INVERSE)


@operation("cublas{}matinvBatched", "S D C Z", "n A*(n,n) C*(n,n) info#(1):I batch", check=_check_inverse)
def _matinv(call: Any) -> None:
    _write_inverse(call, *_factorized(call.A.read()))


def _write_inverse(call: Any, factors: Array, rows: Array) -> None:
    """A singular matrix has no inverse: C is not changed, and info is its first zero pivot."""
    info = _first_zero(factors)
    if not info:
        call.C.write(_solved(factors, rows, np.eye(len(rows), dtype=factors.dtype), 0))
    call.info.write(info)


@operation("cublas{}geqrfBatched", "S D C Z", "m n A*(m,n) tau*(min(m,n)) info^ batch")
def _geqrf(call: Any) -> None:
    if call.m and call.n:
        factors, reflectors, _, _ = _lapack("geqrf", call.A.read())
        call.A.write(factors)
        call.tau.write(reflectors)


def _check_least_squares(given: Any) -> None:
    require(given.trans == 0 and given.m >= given.n, counterpart.statuses.not_supported)


@operation(
    "cublas{}gelsBatched",
    "S D C Z",
    "trans m n nrhs A*(m,n) C*(m,nrhs) info^ status#(1):I batch",
    check=_check_least_squares,
)
def _gels(call: Any) -> None:
    info = 0
    if call.n and call.m:
        factors, solution, info = _lapack("gels", call.A.read(), call.C.read())
        call.A.write(factors)
        call.C.write(solution)
    if not call.status.is_null:
        call.status.write(info)
