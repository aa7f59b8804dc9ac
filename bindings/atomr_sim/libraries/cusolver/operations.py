"""The computations of the dense solver library, by LAPACK.

An operation gets a ``Call``, refuses what cannot be, names its operands, and returns what is run on the stream for each
problem of a batch. It is written once for all data types and for all functions that differ in their arguments only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atomr_cuda.cusolver import cusolverEigRange_t

from ...engine.memory import ILLEGAL_ADDRESS, DeviceFault
from ..dense import triangle

if TYPE_CHECKING:
    from ...engine.memory import Array
    from .call import Argument, Call, Run

    Prepare = Callable[[Call], Run]

_TRANSPOSED = ("N", "T", "C")


@dataclass(frozen=True)
class Operation:
    """An operation, and how many square matrices its workspace holds."""

    prepare: Prepare
    squares: int


OPERATIONS: dict[str, Operation] = {}
"""The operations by LAPACK's name; ``Batched`` and such are further names of the same."""


def _operation(*names: str, squares: int = 0) -> Callable[[Prepare], Prepare]:
    def mark(prepare: Prepare) -> Prepare:
        OPERATIONS.update(dict.fromkeys(names, Operation(prepare, squares)))
        return prepare

    return mark


# Cholesky.


@_operation("potrf")
def _potrf(call: Call) -> Run:
    a = call.matrix("A", call.n, call.n)
    return lambda i: _factor_positive(call, a, i)


@_operation("potrfBatched")
def _potrf_batched(call: Call) -> Run:
    """The other triangle is room to work in: the library says that it is destroyed."""
    a = call.matrix("A", call.n, call.n)

    def run(i: int) -> int:
        info = _factor_positive(call, a, i)
        a.write(i, np.full((call.n, call.n), np.nan), ~triangle(call.n, call.lower))
        return info

    return run


def _factor_positive(call: Call, a: Argument, i: int) -> int:
    """Replace one triangle by the Cholesky factor; the other stays as it is."""
    factor, info = call.lapack("potrf")(a.read(i), lower=call.lower, clean=False)
    a.write(i, factor, triangle(call.n, call.lower))
    return int(info)


@_operation("potrs", "potrsBatched")
def _potrs(call: Call) -> Run:
    a, b = call.matrix("A", call.n, call.n), call.matrix("B", call.n, call.nrhs)
    call.require("B" not in call.pointers or call.nrhs == 1)

    def run(i: int) -> int:
        solution, info = call.lapack("potrs")(a.read(i), b.read(i), lower=call.lower)
        b.write(i, solution)
        return int(info)

    return run


@_operation("potri", squares=1)
def _potri(call: Call) -> Run:
    a = call.matrix("A", call.n, call.n)

    def run(i: int) -> int:
        inverse, info = call.lapack("potri")(a.read(i), lower=call.lower)
        # The library does not say that there is a zero on the diagonal, as seen on an H200: the result does.
        a.write(i, np.full_like(inverse, np.nan) if info else inverse, triangle(call.n, call.lower))
        return 0

    return run


@_operation("trtri")
def _trtri(call: Call) -> Run:
    a = call.matrix("A", call.n, call.n)

    def run(i: int) -> int:
        inverse, info = call.lapack("trtri")(a.read(i), lower=call.lower, unitdiag=call.diag)
        a.write(i, inverse, triangle(call.n, call.lower))
        return int(info)

    return run


# LU.


@_operation("getrf")
def _getrf(call: Call) -> Run:
    m, n = call.m, call.n
    a, pivots = call.matrix("A", m, n), call.vector("ipiv", min(m, n), call.index)

    def run(i: int) -> int:
        numbers = a.read(i)
        # The factors of a matrix with NaN are finite, as seen on an H200, and mean nothing.
        numbers[np.isnan(numbers)] = 1
        if not call.ipiv:
            factors, info = _lu_without_pivoting(numbers)
        else:
            factors, swaps, info = call.lapack("getrf")(numbers)
            pivots.write(i, swaps + 1)
        a.write(i, factors)
        return int(info)

    return run


def _lu_without_pivoting(a: Array) -> tuple[Array, int]:
    """L and U in one matrix, and the first pivot that is zero, counted from 1."""
    info = 0
    for k in range(min(a.shape)):
        if a[k, k] == 0:
            info = info or k + 1
            continue
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a, info


@_operation("getrs")
def _getrs(call: Call) -> Run:
    n = call.n
    a, b = call.matrix("A", n, n), call.matrix("B", n, call.nrhs)
    pivots = call.vector("ipiv", n, call.index)

    def run(i: int) -> int:
        swaps = pivots.read(i) - 1 if call.ipiv else np.arange(n)
        _check_pivots(swaps, n)
        solution, info = call.lapack("getrs")(a.read(i), swaps.astype(np.int32), b.read(i), trans=call.trans)
        b.write(i, solution)
        return int(info)

    return run


def _check_pivots(swaps: Array, order: int) -> None:
    """A pivot that names no row leads outside of the matrix, on a GPU as in LAPACK."""
    if not ((swaps >= 0) & (swaps < order)).all():
        raise DeviceFault(ILLEGAL_ADDRESS, "a pivot is not the number of a row of the matrix")


@_operation("gesv", squares=1)
def _gesv(call: Call) -> Run:
    """Refinement is left out: the factorization is that of the outer precision from the start."""
    n, nrhs = call.n, call.nrhs
    a, pivots = call.matrix("A", n, n), call.vector("ipiv", n, call.index)
    b, x = call.matrix("B", n, nrhs), call.matrix("X", n, nrhs)
    call.asks_for("niter")

    def run(i: int) -> int:
        factors, swaps, solution, info = call.lapack("gesv")(a.read(i), b.read(i))
        pivots.write(i, swaps + 1)
        if info:
            call.tell("niter", -3)  # the factorization failed, and is left to be looked at
            a.write(i, factors)
        else:
            x.write(i, solution)
        return int(info)

    return run


# Symmetric, indefinite.


@_operation("sytrf")
def _sytrf(call: Call) -> Run:
    n = call.n
    a, pivots = call.matrix("A", n, n), call.vector("ipiv", n, call.index)

    def run(i: int) -> int:
        factors, swaps, info = call.lapack("sytrf")(a.read(i), lower=call.lower)
        pivots.write(i, swaps)
        a.write(i, factors, triangle(n, call.lower))
        return int(info)

    return run


@_operation("sytri")
def _sytri(call: Call) -> Run:
    n = call.n
    a, pivots = call.matrix("A", n, n), call.vector("ipiv", n, call.index)

    def run(i: int) -> int:
        swaps = pivots.read(i)
        _check_pivots(abs(swaps) - 1, n)
        inverse, info = call.lapack("sytri")(a.read(i), swaps.astype(np.int32), lower=call.lower)
        a.write(i, inverse, triangle(n, call.lower))
        return int(info)

    return run


@_operation("sytrs")
def _sytrs(call: Call) -> Run:
    n = call.n
    a, b = call.matrix("A", n, n), call.matrix("B", n, call.nrhs)
    pivots = call.vector("ipiv", n, call.index)

    def run(i: int) -> int:
        swaps = pivots.read(i)
        _check_pivots(abs(swaps) - 1, n)
        solution, info = call.lapack("sytrs")(a.read(i), swaps.astype(np.int32), b.read(i), lower=call.lower)
        b.write(i, solution)
        return int(info)

    return run


# QR and least squares.


@_operation("geqrf")
def _geqrf(call: Call) -> Run:
    m, n = call.m, call.n
    a, tau = call.matrix("A", m, n), call.vector("tau", min(m, n))

    def run(i: int) -> int:
        factors, scales, _, info = call.lapack("geqrf")(a.read(i))
        a.write(i, factors)
        tau.write(i, scales)
        return int(info)

    return run


@_operation("orgqr")
def _orgqr(call: Call) -> Run:
    m, n, k = call.m, call.n, call.k
    call.require(m >= n >= k)
    a, tau = call.matrix("A", m, n), call.vector("tau", k)

    def run(i: int) -> int:
        if k == 0:
            a.write(i, np.eye(m, n))
            return 0
        q, _, info = call.lapack("orgqr")(a.read(i), tau.read(i))
        a.write(i, q)
        return int(info)

    return run


@_operation("ormqr")
def _ormqr(call: Call) -> Run:
    m, n, k = call.m, call.n, call.k
    order = n if call.side else m
    a, tau, c = call.matrix("A", order, k), call.vector("tau", k), call.matrix("C", m, n)
    call.require(k <= order and _TRANSPOSED[call.trans] in ("N", "C" if call.element.is_complex else "T"))

    def run(i: int) -> int:
        if k:
            arguments = ("LR"[call.side], _TRANSPOSED[call.trans], a.read(i), tau.read(i), c.read(i))
            product, _, _ = call.lapack("ormqr")(*arguments, lwork=max(m, n))
            c.write(i, product)
        return 0

    return run


@_operation("gels", squares=1)
def _gels(call: Call) -> Run:
    """As for ``gesv``, without refinement."""
    m, n, nrhs = call.m, call.n, call.nrhs
    call.require(m >= n)
    a, b, x = call.matrix("A", m, n), call.matrix("B", m, nrhs), call.matrix("X", n, nrhs)
    call.asks_for("niter")

    def run(i: int) -> int:
        matrix, sides = a.read(i), b.read(i)
        if not _is_finite(matrix, sides):
            x.write(i, np.nan)
            return 0
        _, solution, info = call.lapack("gels")(matrix, sides)
        if info:
            call.tell("niter", -3)
        else:
            x.write(i, solution[:n])
        return int(info)

    return run


# Singular values. LAPACK's iterations on NaN and infinities may take minutes, or for ever: it does not see them.


def _is_finite(*matrices: Array) -> bool:
    return all(np.isfinite(matrix).all() for matrix in matrices)


def _not_converged(call: Call, order: int) -> int:
    """The info of an iteration on NaN or infinities, which have left NaN in all results.

    A batched Jacobi method does not tell.
    """
    if call.jacobi is None:
        return max(order - 1, 1)
    call.jacobi.batched = "batch" in call.given
    return 0 if call.jacobi.batched else order + 1


_ALL, _SOME, _OVERWRITE, _NONE = b"ASON"


@_operation("gesvd", squares=2)
def _gesvd(call: Call) -> Run:
    m, n = call.m, call.n
    jobs = (call.jobu, call.jobvt)
    call.require(m >= n and jobs != (_OVERWRITE, _OVERWRITE))
    full = call.jobu == _ALL
    a, s = call.matrix("A", m, n), call.vector("S", n, call.real)
    u, vt = call.matrix("U", m, m if full else n), call.matrix("VT", n, n)

    def run(i: int) -> int:
        matrix = a.read(i)
        if not _is_finite(matrix):
            a.spoil(i)
            s.write(i, np.nan)
            for job, operand in zip(jobs, (u, vt), strict=True):
                if job not in (_OVERWRITE, _NONE):
                    operand.spoil(i)
            return _not_converged(call, n)
        left, values, right, info = call.lapack("gesvd")(matrix, compute_uv=jobs != (_NONE, _NONE), full_matrices=full)
        matrix[:] = np.nan  # but for what is overwritten with vectors, A is used up
        s.write(i, values)
        for job, vectors, operand in zip(jobs, (left, right), (u, vt), strict=True):
            if job == _OVERWRITE:
                matrix[: len(vectors)] = vectors
            elif job != _NONE:
                operand.write(i, vectors)
        a.write(i, matrix)
        return int(info)

    return run


@_operation("gesvdj", "gesvdp", squares=2)
def _gesvdj(call: Call) -> Run:
    smaller = min(call.m, call.n)
    call.asks_for("error", 0.0)
    shapes = (smaller, smaller) if call.econ else (call.m, call.n)
    return _svd(call, *shapes, smaller)


@_operation("gesvdjBatched", squares=2)
def _gesvdj_batched(call: Call) -> Run:
    call.require(max(call.m, call.n) <= 32)
    return _svd(call, call.m, call.n, min(call.m, call.n))


@_operation("gesvda", squares=2)
def _gesvda(call: Call) -> Run:
    call.require(1 <= call.rank <= min(call.m, call.n))
    return _svd(call, call.rank, call.rank, call.rank, uses_up=False)


@_operation("gesvdr", squares=2)
def _gesvdr(call: Call) -> Run:
    call.require(call.k + call.p <= min(call.m, call.n) and call.jobu in (_SOME, _NONE))
    return _svd(call, call.k, call.k, call.k)


def _svd(call: Call, lefts: int, rights: int, count: int, *, uses_up: bool = True) -> Run:
    """The first ``count`` singular values, with so many left and right vectors; these are V, not its transpose."""
    m, n = call.m, call.n
    wants_u, wants_v = _wanted(call)
    a, s = call.matrix("A", m, n), call.vector("S", count, call.real)
    u, v = call.matrix("U", m, lefts), call.matrix("V", n, rights)
    call.asks_for("residuals", 0.0)

    def run(i: int) -> int:
        matrix = a.read(i)
        if uses_up:
            a.spoil(i)
        if not _is_finite(matrix):
            spoilt = (s, *((u,) if wants_u else ()), *((v,) if wants_v else ()))
            for operand in spoilt:
                operand.spoil(i)
            call.tell("residuals", np.nan, i)
            return _not_converged(call, min(m, n))
        left, values, right, info = call.lapack("gesvd")(matrix, full_matrices=max(lefts, rights) > min(m, n))
        s.write(i, values[:count])
        if wants_u:
            u.write(i, left[:, :lefts])
        if wants_v:
            v.write(i, right[:rights].conj().T)
        residual = _norm(matrix - (left[:, :count] * values[:count]) @ right[:count])
        call.tell("residuals", residual, i)
        return int(info) or _jacobi_info(call, lambda: (_gram(matrix), residual))

    return run


def _wanted(call: Call) -> tuple[bool, bool]:
    """Tell whether left and right singular vectors are requested."""
    if call.jobz is None:
        return call.jobu == _SOME, call.jobv == _SOME
    return bool(call.jobz), bool(call.jobz)


def _norm(matrix: Array) -> float:
    return float(np.linalg.norm(matrix))


def _gram(matrix: Array) -> Array:
    """The products of the columns with each other, or of the rows where these are fewer."""
    m, n = matrix.shape
    product: Array = matrix.conj().T @ matrix if m >= n else matrix @ matrix.conj().T
    return product


def _jacobi_info(call: Call, problem: Callable[[], tuple[Array, float]]) -> int:
    """The info of a Jacobi method: one more than the order where it ran out of sweeps. 0 for every other method.

    The batched functions do not tell: so it was on an H200, by cuSOLVER 12.0.
    ``problem`` gives the Hermitian matrix that the method makes diagonal, and the residual of the result.
    """
    if call.jacobi is None:
        return 0
    matrix, residual = problem()
    order, norm = len(matrix), _norm(matrix)
    coupling = _norm(matrix - np.diag(np.diag(matrix))) / norm if norm else 0.0
    call.jacobi.batched = "batch" in call.given
    converged = call.jacobi.run(coupling, order, residual, call.element)
    return 0 if converged or call.jacobi.batched else order + 1


# Eigenvalues.


@_operation("syevd", "syevdx", "syevj", "syevBatched", "syevjBatched", squares=2)
def _syevd(call: Call) -> Run:
    a = call.matrix("A", call.n, call.n)
    write = _eigenpairs(call, a)

    def run(i: int) -> int:
        matrix = a.read(i)
        if not _is_finite(matrix[triangle(call.n, call.lower)]):
            write(i, np.full(call.n, np.nan), np.full_like(matrix, np.nan))
            return _not_converged(call, call.n)
        values, vectors, info = call.lapack("syevd")(matrix, compute_v=call.jobz, lower=call.lower)
        write(i, values, vectors)
        return int(info) or _jacobi_info(call, lambda: _turned(call, matrix, None, values, vectors))

    return run


@_operation("sygvd", "sygvdx", "sygvj", squares=3)
def _sygvd(call: Call) -> Run:
    """An info beyond the order is that of B's Cholesky factorization."""
    a, b = call.matrix("A", call.n, call.n), call.matrix("B", call.n, call.n)
    write = _eigenpairs(call, a)

    def run(i: int) -> int:
        first, second = a.read(i), b.read(i)
        minor = _factor_positive(call, b, i)
        if minor:
            return int(call.n) + minor
        part = triangle(call.n, call.lower)
        if not _is_finite(first[part], second[part]):
            write(i, np.full(call.n, np.nan), np.full_like(first, np.nan))
            return _not_converged(call, call.n)
        options = {"itype": call.itype, "jobz": "NV"[call.jobz], "uplo": "LU"[call.uplo]}
        values, vectors, info = call.lapack("sygvd")(first, second, **options)
        write(i, values, vectors)
        return int(info) or _jacobi_info(call, lambda: _turned(call, first, second, values, vectors))

    return run


def _turned(call: Call, a: Array, b: Array | None, values: Array, vectors: Array) -> tuple[Array, float]:
    """The whole of A, and how far the result is from solving the problem; that is not known without vectors."""
    whole = _hermitian(a, call.lower)
    if not call.jobz:
        return whole, 0.0
    one = np.eye(call.n)
    other = one if b is None else _hermitian(b, call.lower)
    left, right = {1: (whole, other), 2: (whole @ other, one), 3: (other @ whole, one)}[call.itype]
    return whole, _norm(left @ vectors - right @ vectors * values)


def _hermitian(matrix: Array, lower: bool) -> Array:
    """The whole matrix, from one triangle."""
    half = np.where(triangle(len(matrix), lower), matrix, 0)
    whole: Array = half + half.conj().T
    np.fill_diagonal(whole, half.diagonal().real)
    return whole


def _eigenpairs(call: Call, a: Argument) -> Callable[[int, Array, Array], None]:
    """Return a function that writes the requested eigenvalues to the front of W, and their vectors to the first columns
    of A.

    The rest of A is used up.
    """
    n, w = call.n, call.vector("W", call.n, call.real)
    selected = _selection(call)
    call.asks_for("meig")

    def write(i: int, values: Array, vectors: Array) -> None:
        wanted = np.flatnonzero(selected(values))
        kept: Array = np.full((n, n), np.nan, vectors.dtype)
        if call.jobz:
            kept[:, : len(wanted)] = vectors[:, wanted]
        a.write(i, kept)
        w.write(i, np.resize(values[wanted], n), np.arange(n) < len(wanted))
        call.tell("meig", len(wanted))

    return write


def _selection(call: Call) -> Callable[[Array], Array]:
    """Return a mask of the requested ones of the ascending eigenvalues: all, those of a range of indices counted from
    1, or those in an interval that is open at its lower end."""
    if call.range == cusolverEigRange_t.CUSOLVER_EIG_RANGE_I:
        call.require(call.n == 0 or 1 <= call.il <= call.iu <= call.n)
        numbers = np.arange(1, call.n + 1)
        return lambda values: (numbers >= call.il) & (numbers <= call.iu)
    if call.range == cusolverEigRange_t.CUSOLVER_EIG_RANGE_V:
        low, high = call.bound("vl"), call.bound("vu")
        call.require(low < high)
        return lambda values: (values > low) & (values <= high)
    return lambda values: np.ones(len(values), bool)
