"""LU, Cholesky and QR factorizations, and the systems solved by them, under LAPACK's names."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..._arrays.arrays import DeviceArray
from ..._calls.apart import check_apart
from ..._calls.library_types import LETTERS, letter_of
from ..._calls.linear import OPERATIONS, Matrix, Operation, broadcast, check_array, check_operation
from ..._calls.verbs import verb
from ..._values.errors import InvalidArgument
from .plans import SolverPlans, lines, places
from .records_finite import NAN
from .types import FACTOR_BATCH, LEFT, LOWER, RIGHT, UPPER, Look


class FactorizationVerbs(SolverPlans):
    """Verbs that factor matrices, and that use the factors.

    All take stacks, whose leading axes come before the matrix's two.
    """

    __slots__ = ()

    # --- LU -----------------------------------------------------------------------------------------------------------

    @verb
    def getrf(
        self, a: DeviceArray, *, overwrite_a: bool = False, check_finite: bool = True
    ) -> tuple[DeviceArray, DeviceArray]:
        """Factor matrices of shape (..., m, n) as P L U with row exchanges.

        By ``cusolverDnXgetrf``, and several square matrices up to 256 x 256 in one call of ``cublasSgetrfBatched``. `a`
        is of dtype float32, float64, complex64 or complex128. Returns the factors in one array of that shape, L
        without its unit diagonal, and the pivots: int64 of shape (..., min(m, n)), counted from 1 as LAPACK has them.
        `overwrite_a` writes the factors over `a`, which must lie column by column. `check_finite` reads `a`
        once more beside the call, for NaN: the library makes finite factors of it.

        Raises `SingularMatrixError` when a pivot is zero (the factors are complete then), `NotFiniteError` for NaN,
        `InvalidArgument` for other arrays.
        """
        work = self._used_up(self._given(a, "a"), "a", overwrite_a)
        pivots = self._factor_lu(work, look=self._look("getrf", "a", work, check_finite, spoils=NAN))
        return work.array, self._widened(pivots) if pivots.dtype == np.int32 else pivots

    def _factor_lu(self, work: Matrix, *, tolerant: bool = False, look: Look | None = None) -> DeviceArray:
        """Overwrite matrices by their factors. Returns the pivots, of 32 bits if one call factors many."""
        array = work.array
        many = work.count > 1 and work.rows == work.columns and _are_small(work)
        pivots = self._empty((*array.shape[:-2], min(work.rows, work.columns)), np.int32 if many else np.int64)
        operands = self._operands()
        operands.writes(array)
        operands.writes(pivots, keeps=work.count > 1)
        if many:
            self._factor_many("getrfBatched", work, operands, tolerant=tolerant, looks=(look,), ipiv=pivots)
        elif array.size:
            options: dict[str, Any] = {"order": work.columns, "tolerant": tolerant, "looks": (look,)}
            with self._routine("Xgetrf", array, operands, **options) as factor:
                factor.each(m=work.rows, n=work.columns, A=places(work), lda=work.leading, ipiv=lines(pivots))
        return pivots

    def _widened(self, pivots: DeviceArray) -> DeviceArray:
        """Return pivots of 32 bits as pivots of 64 bits, of which they are the low halves."""
        wide = self._empty(pivots.shape, np.int64)
        self._fill(wide, 0)
        self._copy_spread(pivots, 1, wide, 2)
        return wide

    def _narrowed(self, pivots: DeviceArray) -> DeviceArray:
        narrow = self._empty(pivots.shape, np.int32)
        self._copy_spread(pivots, 2, narrow, 1)
        return narrow

    @verb
    def getrs(
        self,
        lu: DeviceArray,
        pivots: DeviceArray,
        b: DeviceArray,
        *,
        op: Operation = "N",
        overwrite_b: bool = False,
    ) -> DeviceArray:
        """Solve ``op(a) @ x = b`` by the factors and pivots of `getrf`.

        By ``cusolverDnXgetrs``, and several systems of up to 256 equations in one call of ``cublasSgetrsBatched``. `lu`
        is of shape (..., n, n), `b` of shape (n,) or (..., n, k) and of its dtype; `pivots` are int64. `op` is
        "N", "T" for transposed or "C" for transposed and conjugated. `overwrite_b` writes the solution over `b`.

        Raises `InvalidArgument` for arrays that do not fit together.
        """
        factors = self._given(lu, "lu", square=True)
        word = OPERATIONS[check_operation(op, "op")]
        exchanges = self._vectors(pivots, "pivots", factors.shape[:-1], np.int64)
        sides = self._right_sides(b, "b", factors, factors.shape[-1])
        work, result = self._overwritten_sides(b, "b", sides, overwrite_b, factors, pivots)
        self._solve_lu(self._by_columns(factors), exchanges, work, word)
        return result

    def _solve_lu(self, factors: Matrix, pivots: DeviceArray, sides: Matrix, word: int) -> None:
        """Overwrite right-hand sides by solutions; one matrix may be used for several of a stack."""
        if not sides.array.size:
            return
        many = sides.count > 1 and _are_small(factors)
        exchanges = self._exchanges_of_many(pivots, sides) if many else pivots
        operands = self._operands()
        operands.reads(factors.array, exchanges)
        operands.writes(sides.array)
        which, ends = matching(factors, sides), places(sides)
        starts = places(factors).of(which)
        words = {"trans": word, "n": factors.rows, "nrhs": sides.columns, "lda": factors.leading, "ldb": sides.leading}
        if many:
            table, first, second = self._upload_pairs(starts, ends)
            operands.reads(table)
            with self._routine("getrsBatched", sides.array, operands) as solve:
                solve.many(0, 1, A=first, ipiv=exchanges.address, B=second, batch=len(ends), **words)
            return
        with self._routine("Xgetrs", sides.array, operands) as solve:
            solve.each(A=starts, ipiv=lines(exchanges).of(which), B=ends, **words)

    def _exchanges_of_many(self, pivots: DeviceArray, sides: Matrix) -> DeviceArray:
        """Return the pivots for each of many right-hand sides, contiguous and of 32 bits."""
        narrow = pivots if pivots.dtype == np.int32 else self._narrowed(pivots)
        shape = (*sides.array.shape[:-2], pivots.shape[-1])
        if narrow.shape == shape:
            return narrow
        repeated = self._empty(shape, np.int32)
        self._copy(broadcast(narrow, shape), repeated)
        return repeated

    @verb
    def getri(self, lu: DeviceArray, pivots: DeviceArray, *, out: DeviceArray | None = None) -> DeviceArray:
        """Return the inverse of matrices by the factors and pivots of `getrf`, which are kept.

        By ``cusolverDnXgetrs``, and of several matrices up to 256 x 256 in one call of ``cublasSgetrsBatched``. `lu` is
        of shape (..., n, n), as the result is, `pivots` of shape (..., n) and of dtype int64. `out` takes the result.

        Raises `InvalidArgument` for arrays that do not fit together.
        """
        factors = self._given(lu, "lu", square=True)
        exchanges = self._vectors(pivots, "pivots", factors.shape[:-1], np.int64)
        kind = (factors.shape, factors.dtype)
        target = self._out(out, kind, factors, pivots)
        inverse = self._columns(kind, target)
        self._make_identity(inverse)
        self._solve_lu(self._by_columns(factors), exchanges, self._seen(inverse), OPERATIONS["N"])
        return self._deliver(inverse, target)

    # --- Cholesky -----------------------------------------------------------------------------------------------------

    @verb
    def potrf(
        self, a: DeviceArray, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True
    ) -> DeviceArray:
        """Factor Hermitian positive definite matrices of shape (..., n, n) as L L^H (``cusolverDnXpotrf``).

        `a` is of dtype float32, float64, complex64 or complex128. Only the lower triangle is read, and overwritten by
        L; without `lower` the upper one, by the factor U of U^H U. The other triangle stays as it is, except where
        several matrices up to 256 x 256 are factored in one call (``cusolverDnSpotrfBatched``): that leaves undefined
        values there; `cholesky` clears it. `overwrite_a` writes the factor over `a`, which must lie column by column.
        `check_finite` reads the triangle once more beside the call, for NaN.

        Raises `NotPositiveDefiniteError` with the first minor that is not positive, `NotFiniteError` for NaN in the
        triangle, `InvalidArgument` for other arrays.
        """
        work = self._used_up(self._given(a, "a", square=True), "a", overwrite_a)
        self._factor_positive(work, lower, self._look("potrf", "a", work, check_finite, spoils=NAN, lower=bool(lower)))
        return work.array

    def _factor_positive(self, work: Matrix, lower: bool, look: Look | None) -> None:
        """Overwrite one triangle of matrices by their factor: of several small ones in one call."""
        array = work.array
        operands = self._operands()
        operands.writes(array)
        uplo = LOWER if lower else UPPER
        if work.count > 1 and _are_small(work):
            self._factor_many("potrfBatched", work, operands, looks=(look,), uplo=uplo)
        elif array.size:
            with self._routine("Xpotrf", array, operands, order=work.rows, looks=(look,)) as factor:
                factor.each(uplo=uplo, n=work.rows, A=places(work), lda=work.leading)

    @verb
    def potrs(
        self, factor: DeviceArray, b: DeviceArray, *, lower: bool = True, overwrite_b: bool = False
    ) -> DeviceArray:
        """Solve ``a @ x = b`` by the Cholesky factor that `potrf` made with the same `lower` (``cusolverDnXpotrs``).

        `factor` is of shape (..., n, n), `b` of shape (n,) or (..., n, k), of one dtype. `overwrite_b` writes the
        solution over `b`.

        Raises `InvalidArgument` for arrays that do not fit together.
        """
        given = self._given(factor, "factor", square=True)
        sides = self._right_sides(b, "b", given, given.shape[-1])
        work, result = self._overwritten_sides(b, "b", sides, overwrite_b, given)
        if work.array.size:
            self._solve_positive(self._by_columns(given), work, LOWER if lower else UPPER)
        return result

    def _solve_positive(self, factors: Matrix, sides: Matrix, uplo: int) -> None:
        """Overwrite right-hand sides by solutions: those of several small matrices in one call."""
        operands = self._operands()
        operands.reads(factors.array)
        operands.writes(sides.array)
        starts, ends = places(factors).of(matching(factors, sides)), places(sides)
        words = {"uplo": uplo, "n": factors.rows, "nrhs": sides.columns, "lda": factors.leading, "ldb": sides.leading}
        if len(ends) > 1 and sides.columns == 1 and _are_small(factors):
            table, first, second = self._upload_pairs(starts, ends)
            operands.reads(table)
            with self._routine("potrsBatched", sides.array, operands) as solve:
                solve.many(0, 1, A=first, B=second, batch=len(ends), **words)
            return
        with self._routine("Xpotrs", sides.array, operands) as solve:
            solve.each(A=starts, B=ends, **words)

    @verb
    def potri(self, factor: DeviceArray, *, lower: bool = True, overwrite_factor: bool = False) -> DeviceArray:
        """Return the inverse of matrices by the Cholesky factor of `potrf` (``cusolverDnSpotri``).

        `factor` is of shape (..., n, n); the inverse, of its shape and dtype, is written to the triangle that
        `lower` selects, and the other triangle is that of `factor`. `overwrite_factor` writes it over `factor`, which
        must lie column by column. A factor with a zero on its diagonal, which `potrf` does not give, gives NaN.

        Raises `InvalidArgument` for other arrays.
        """
        work = self._used_up(self._given(factor, "factor", square=True), "factor", overwrite_factor)
        operands = self._operands()
        operands.writes(work.array)
        if work.array.size:
            with self._routine("potri", work.array, operands, order=work.rows) as invert:
                uplo = LOWER if lower else UPPER
                invert.each(uplo=uplo, n=work.rows, A=places(work), lda=work.leading)
        return work.array

    # --- QR -----------------------------------------------------------------------------------------------------------

    @verb
    def geqrf(
        self, a: DeviceArray, *, overwrite_a: bool = False, deterministic: bool = True, check_finite: bool = True
    ) -> tuple[DeviceArray, DeviceArray]:
        """Factor matrices of shape (..., m, n) as Q R, Q as reflectors (``cusolverDnXgeqrf``).

        `a` is of dtype float32, float64, complex64 or complex128. Returns R in the upper triangle of an array of that
        shape, with the reflectors below, and their scales, of shape (..., min(m, n)); `orgqr` and `ormqr` take both.
        `overwrite_a` writes the first over `a`, which must lie column by column. Without `deterministic` it
        is faster, and the bits may differ from run to run. `check_finite` reads `a` once more beside the call, for NaN.

        Raises `NotFiniteError` for NaN, `InvalidArgument` for other arrays.
        """
        work = self._used_up(self._given(a, "a"), "a", overwrite_a)
        look = self._look("geqrf", "a", work, check_finite, spoils=NAN)
        return work.array, self._factor_qr(work, deterministic=deterministic, look=look)

    def _factor_qr(self, work: Matrix, *, deterministic: bool = True, look: Look | None = None) -> DeviceArray:
        """Overwrite matrices by R and reflectors; returns the scales of these."""
        array = work.array
        scales = self._empty((*array.shape[:-2], min(work.rows, work.columns)), array.dtype)
        operands = self._operands()
        operands.writes(array)
        operands.writes(scales, keeps=work.count > 1)
        if array.size:
            with self._routine("Xgeqrf", array, operands, deterministic=deterministic, looks=(look,)) as factor:
                factor.each(m=work.rows, n=work.columns, A=places(work), lda=work.leading, tau=lines(scales))
        return scales

    @verb
    def orgqr(self, qr: DeviceArray, tau: DeviceArray, *, overwrite_qr: bool = False) -> DeviceArray:
        """Return the first columns of Q, by the reflectors of `geqrf` (``cusolverDnSorgqr``, ``cusolverDnCungqr``).

        `qr` is of shape (..., m, n) with m >= n, which is that of the result; `tau` of shape (..., k) with k <= n, and
        of the same dtype. To have all of Q, put the reflectors into the first columns of a square array. `overwrite_qr`
        writes Q over `qr`, which must lie column by column.

        Raises `InvalidArgument` for arrays that do not fit together.
        """
        given = self._given(qr, "qr")
        rows, columns = given.shape[-2:]
        count = _scales_of(tau)
        if rows < columns or count > columns:
            raise InvalidArgument(f"qr has shape {given.shape} and tau {count} elements: it must be m >= n >= k")
        scales = self._vectors(tau, "tau", (*given.shape[:-2], count), given.dtype)
        work = self._used_up(given, "qr", overwrite_qr)
        self._make_q(work, scales)
        return work.array

    def _make_q(self, work: Matrix, scales: DeviceArray) -> None:
        """Overwrite reflectors by columns of Q."""
        if not work.array.size:
            return
        if not scales.shape[-1]:
            self._make_identity(work.array)
            return
        operands = self._operands()
        operands.reads(scales)
        operands.writes(work.array)
        with self._routine("orgqr", work.array, operands) as make:
            words = {"m": work.rows, "n": work.columns, "k": scales.shape[-1], "lda": work.leading}
            make.each(A=places(work), tau=lines(scales), **words)

    @verb
    def ormqr(
        self,
        qr: DeviceArray,
        tau: DeviceArray,
        c: DeviceArray,
        *,
        left: bool = True,
        op: Operation = "N",
        overwrite_c: bool = False,
    ) -> DeviceArray:
        """``op(Q) @ c``, or ``c @ op(Q)`` if not `left`, by reflectors (``cusolverDnSormqr``, ``cusolverDnCunmqr``).

        `qr` and `tau` are those of `geqrf`, of shapes (..., order, n) and (..., k) with k <= n; `c`, of the same dtype,
        is a matrix with as many rows, or columns if not `left`, as `qr` has rows, for each of `qr`. `op` is "N" or "C",
        and for real matrices "T". `overwrite_c` writes the product over `c`, which must lie column by column.

        Raises `InvalidArgument` for arrays that do not fit together.
        """
        given, target = self._given(qr, "qr"), self._given(c, "c")
        letter_of(given, target)
        order = target.shape[-2] if left else target.shape[-1]
        count = _scales_of(tau)
        if given.shape[-2] != order or not count <= min(given.shape[-2:]):
            raise InvalidArgument(f"qr has shape {given.shape}, tau {count} elements and c shape {target.shape}")
        if given.shape[:-2] != target.shape[:-2]:
            raise InvalidArgument(f"stacks of shapes {given.shape} and {target.shape} do not fit together")
        scales = self._vectors(tau, "tau", (*given.shape[:-2], count), given.dtype)
        word = _factor_operation(check_operation(op, "op"), LETTERS[given.dtype.name])
        if overwrite_c:
            check_apart(target, given, tau)
        work = self._used_up(target, "c", overwrite_c)
        self._multiply_q(self._by_columns(given), scales, work, word, left=left)
        return work.array

    def _multiply_q(
        self, reflectors: Matrix, scales: DeviceArray, work: Matrix, word: int, *, left: bool = True
    ) -> None:
        """Overwrite matrices by their products with Q."""
        count = scales.shape[-1]
        if not (work.array.size and count):
            return
        operands = self._operands()
        operands.reads(reflectors.array, scales)
        operands.writes(work.array)
        words = {
            "side": LEFT if left else RIGHT,
            "trans": word,
            "m": work.rows,
            "n": work.columns,
            "k": count,
            "lda": reflectors.leading,
            "ldc": work.leading,
        }
        with self._routine("ormqr", work.array, operands) as multiply:
            multiply.each(A=places(reflectors), tau=lines(scales), C=places(work), **words)

    @verb
    def gels(
        self, a: DeviceArray, b: DeviceArray, *, out: DeviceArray | None = None, check_finite: bool = True
    ) -> DeviceArray:
        """Return the least-squares solution of ``a @ x = b`` for matrices of full rank (``cusolverDnDDgels``).

        `a` is of shape (..., m, n) with m >= n, `b` of shape (m,) or (..., m, k), of one dtype. The library may refine
        its result; `lstsq` is a QR factorization without refinement, and takes m < n, too. `out` takes the result.
        `check_finite` reads `a` once more beside the call, for NaN.

        Raises `SingularMatrixError` when the rank is not full, `NotFiniteError` for NaN in `a`, `InvalidArgument` for
        arrays that do not fit together.
        """
        given = self._given(a, "a")
        rows, columns = given.shape[-2:]
        if rows < columns:
            raise InvalidArgument(f"gels takes matrices with m >= n, not of shape {given.shape}; `lstsq` takes others")
        sides = self._right_sides(b, "b", given, rows)
        target = self._out(out, sides.solution(columns), given, b)
        *stack, _, count = sides.array.shape
        solution = self._columns(((*stack, columns, count), given.dtype), target)
        if solution.size:
            # It destroys the matrix, so each right-hand side of a stack needs its own copy.
            work = self._copied(broadcast(given, (*stack, rows, columns)))
            look = self._look("gels", "a", work, check_finite, spoils=NAN)
            self._solve_by_library(work, self._copied(sides.array), self._seen(solution), look)
        return self._deliver(sides.result(solution), target)

    def _solve_by_library(self, work: Matrix, sides: Matrix, solution: Matrix, look: Look | None) -> None:
        """Write least-squares solutions; the matrices and right-hand sides are destroyed."""
        operands = self._operands()
        operands.writes(work.array, sides.array)
        operands.writes(solution.array, keeps=solution.count > 1)
        words = {
            "m": work.rows,
            "n": work.columns,
            "nrhs": sides.columns,
            "lda": work.leading,
            "ldb": sides.leading,
            "ldx": solution.leading,
        }
        with self._routine("gels", solution.array, operands, order=work.columns, looks=(look,)) as solve:
            solve.each(A=places(work), B=places(sides), X=places(solution), **words)


def _are_small(matrices: Matrix) -> bool:
    """Return whether one call for several of them is faster."""
    return 0 < matrices.rows <= FACTOR_BATCH


def matching(matrices: Matrix, sides: Matrix) -> npt.NDArray[np.int64]:
    """Return the number of the matrix for each right-hand side, as they are broadcast together."""
    numbers = np.arange(matrices.count).reshape(matrices.array.shape[:-2])
    return np.broadcast_to(numbers, sides.array.shape[:-2]).reshape(-1)


def _scales_of(tau: object) -> int:
    """Return the number of reflectors for each matrix."""
    return check_array(tau, "tau").shape[-1] if check_array(tau, "tau").ndim else 0


def _factor_operation(op: Operation, letter: str) -> int:
    """Return the word for a product with Q. The transpose is "T" for real matrices and "C" for complex ones."""
    if op == "T" and letter in "CZ":
        raise InvalidArgument('op is "N" or "C" for complex matrices, not "T"')
    return OPERATIONS["T" if op == "C" and letter in "SD" else op]
