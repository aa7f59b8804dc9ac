"""Products of a matrix and a vector in the simulated cuBLAS. Signatures are described in ``calls``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..dense import triangle
from .calls import operation
from .matrices import combined, from_band, real_diagonal, scaled, symmetric, transposed
from .triangular import triangular

if TYPE_CHECKING:
    from ...engine.memory import Array


def _product(call: Any, matrix: Any) -> None:
    """y = alpha matrix x + beta y; the matrix is made when it is needed."""
    call.y.write(combined(call.alpha, lambda: matrix() @ call.x.read(), call.beta, call.y.read))


_X_AND_Y = "x(n/m@trans) beta y(m/n@trans)"


@operation("cublas{}gemv_64", "S D C Z", f"trans m n alpha A(m,n) {_X_AND_Y}")
def _gemv(call: Any) -> None:
    if call.m and call.n:
        _product(call, lambda: transposed(call.A.read(), call.trans))


@operation("cublas{}gbmv_64", "S D C Z", f"trans m n kl ku alpha A(kl+ku+1,n) {_X_AND_Y}")
def _gbmv(call: Any) -> None:
    if call.m and call.n:
        _product(call, lambda: transposed(from_band(call.A.read(), call.m, call.kl, call.ku), call.trans))


@operation("cublas{}symv_64", "S D C Z", "uplo n alpha A(n,n) x(n) beta y(n)")
@operation("cublas{}hemv_64", "C Z", "uplo n alpha A(n,n) x(n) beta y(n)", hermitian=True)
def _symv(call: Any, hermitian: bool = False) -> None:
    _product(call, lambda: symmetric(call.A.read(), call.uplo == 0, hermitian))


@operation("cublas{}sbmv_64", "S D", "uplo n k alpha A(k+1,n) x(n) beta y(n)")
@operation("cublas{}hbmv_64", "C Z", "uplo n k alpha A(k+1,n) x(n) beta y(n)", hermitian=True)
def _sbmv(call: Any, hermitian: bool = False) -> None:
    _product(call, lambda: symmetric(_triangle_of_band(call), call.uplo == 0, hermitian))


def _triangle_of_band(call: Any) -> Array:
    lower = call.uplo == 0
    return from_band(call.A.read(), call.n, call.k if lower else 0, 0 if lower else call.k)


# Updates of a matrix by vectors.


@operation("cublas{}ger_64", "S D", "m n alpha x(m) y(n) A(m,n)")
@operation("cublas{}geru_64", "C Z", "m n alpha x(m) y(n) A(m,n)")
@operation("cublas{}gerc_64", "C Z", "m n alpha x(m) y(n) A(m,n)", conjugate=True)
def _ger(call: Any, conjugate: bool = False) -> None:
    if call.alpha != 0:
        y = call.y.read()
        call.A.write(np.outer(scaled(call.alpha, call.x.read()), y.conj() if conjugate else y) + call.A.read())


@operation("cublas{}syr_64", "S D C Z", "uplo n alpha x(n) A(n,n)")
@operation("cublas{}her_64", "C Z", "uplo n alpha:R x(n) A(n,n)", hermitian=True)
def _syr(call: Any, hermitian: bool = False) -> None:
    if call.alpha != 0:
        x = call.x.read()
        _add(call, scaled(call.alpha, np.outer(x, x.conj() if hermitian else x)), hermitian)


@operation("cublas{}syr2_64", "S D C Z", "uplo n alpha x(n) y(n) A(n,n)")
@operation("cublas{}her2_64", "C Z", "uplo n alpha x(n) y(n) A(n,n)", hermitian=True)
def _syr2(call: Any, hermitian: bool = False) -> None:
    if call.alpha != 0:
        x, y = call.x.read(), call.y.read()
        half = scaled(call.alpha, np.outer(x, y.conj() if hermitian else y))
        _add(call, half + transposed(half, 2 if hermitian else 1), hermitian)


def _add(call: Any, update: Array, hermitian: bool) -> None:
    """Add to one triangle of A; the diagonal of a Hermitian matrix becomes real."""
    total = update + (real_diagonal(call.A.read()) if hermitian else call.A.read())
    call.A.write(real_diagonal(total) if hermitian else total, triangle(call.n, call.uplo == 0))


# Triangular matrices.


@operation("cublas{}trmv_64", "S D C Z", "uplo trans diag n A(n,n) x(n)", routine="trmm")
@operation("cublas{}trsv_64", "S D C Z", "uplo trans diag n A(n,n) x(n)", routine="trsm")
def _trmv(call: Any, routine: str) -> None:
    _in_place(call, call.A.read(), routine)


@operation("cublas{}tbmv_64", "S D C Z", "uplo trans diag n k A(k+1,n) x(n)", routine="trmm")
@operation("cublas{}tbsv_64", "S D C Z", "uplo trans diag n k A(k+1,n) x(n)", routine="trsm")
def _tbmv(call: Any, routine: str) -> None:
    _in_place(call, _triangle_of_band(call), routine)


def _in_place(call: Any, matrix: Array, routine: str) -> None:
    column = call.x.read()[:, np.newaxis]
    call.x.write(triangular(routine, matrix, column, call.uplo == 0, call.trans, call.diag == 1)[:, 0])
