"""The verbs of ``numpy.linalg``, made of those with LAPACK's names.

Each works on stacks, over all leading axes, and keeps its inputs.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..._arrays.arrays import DeviceArray
from ..._calls.library_types import LETTERS
from ..._calls.linear import OPERATIONS, Matrix, broadcast
from ..._calls.verbs import Argument, Scalar, verb
from ..._values.errors import InvalidArgument, SingularMatrixError
from ..._values.util import named, shown
from ..blas.records import BLAS
from .factorizations import FactorizationVerbs, matching
from .plans import Sides, places, swapped, turned, values_of
from .records_finite import INFINITY, NAN
from .spectra import SpectrumVerbs
from .types import LEFT, REAL, UPPER, Look, PairOut, TripleOut

_QR_MODES = dict.fromkeys(("reduced", "complete", "r"), True)

_NOT_UNIT = 0
"""``CUBLAS_DIAG_NON_UNIT``."""


class Determinants:
    """Determinants, from the signs of the row exchanges and the diagonals of U."""

    def __init__(self, stack: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._stack = stack
        self._dtype = dtype
        self.into: tuple[npt.NDArray[Any], ...] = self.new()
        """Where the next ones are told."""

    def new(self) -> tuple[npt.NDArray[Any], ...]:
        """Return arrays for more, which are those of matrices of no elements."""
        return (np.ones(self._stack, self._dtype),)

    def tell(self, signs: npt.NDArray[Any], factors: npt.NDArray[Any]) -> None:
        """Write them."""
        (result,) = self.into
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            result[...] = signs * factors.prod(axis=-1)


class Logarithms(Determinants):
    """The signs of determinants, and the logarithms of their absolute values."""

    def __init__(self, stack: tuple[int, ...], dtype: np.dtype[Any], real: np.dtype[Any]) -> None:
        self._real = real
        super().__init__(stack, dtype)

    def new(self) -> tuple[npt.NDArray[Any], ...]:
        """Return arrays for more."""
        return np.ones(self._stack, self._dtype), np.zeros(self._stack, self._real)

    def tell(self, exchanges: npt.NDArray[Any], factors: npt.NDArray[Any]) -> None:
        """Write them."""
        signs, logarithms = self.into
        sizes = np.abs(factors)
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithms[...] = np.log(sizes).sum(axis=-1)
            directions = exchanges * (factors / sizes).prod(axis=-1)
            signs[...] = np.where((sizes == 0).any(axis=-1), 0, directions)


class NumpyVerbs(FactorizationVerbs, SpectrumVerbs):
    """Verbs with numpy's names."""

    __slots__ = ()

    # --- linear systems -----------------------------------------------------------------------------------------------

    @verb
    def solve(
        self, a: DeviceArray, b: DeviceArray, *, out: DeviceArray | None = None, check_finite: bool = True
    ) -> DeviceArray:
        """Solve ``a @ x = b`` by LU factorization, as ``numpy.linalg.solve`` does.

        `a` is of shape (..., n, n), of dtype float32, float64, complex64 or complex128. `b` is of that dtype and of
        shape (n,), which is one vector for all matrices, or (..., n, k); leading axes are broadcast. The result has
        numpy's shape. `out` takes it; without `out` its matrices lie column by column (``cusolverDnXgetrf``,
        ``cusolverDnXgetrs``; for several matrices up to 256 x 256 ``cublasSgetrfBatched`` and
        ``cublasSgetrsBatched``). A matrix with NaN has solutions of NaN alone: `check_finite` has `a` read once more
        beside the call, and without it they may be finite.

        Raises `SingularMatrixError` when a pivot is zero, `InvalidArgument` for arrays that do not fit together.
        """
        given = self._given(a, "a", square=True)
        sides = self._right_sides(b, "b", given, given.shape[-1])
        target = self._out(out, sides.solution(given.shape[-1]), given, b)
        if not given.size or not math.prod(sides.array.shape[:-2]):
            return self._deliver(sides.result(self._copied(sides.array, target).array), target)
        factors, transposed, source = self._used_up_anyhow(given, looks=check_finite)
        options: dict[str, Any] = {"spoils": NAN, "refuses": False, "spreads": True, "source": source}
        look = self._look("solve", "a", factors, check_finite, **options)
        pivots = self._factor_lu(factors, look=look)
        kept = self._keep(target, factors)
        solution = self._copied(sides.array, target)
        self._solve_lu(factors, pivots, solution, OPERATIONS["T" if transposed else "N"])
        is_one_each = factors.array.shape[:-2] == solution.array.shape[:-2]
        self._taint(look, solution, None if is_one_each else matching(factors, solution))
        result = self._deliver(sides.result(solution.array), target)
        self._restore(kept, look)
        return result

    @verb
    def inv(self, a: DeviceArray, *, out: DeviceArray | None = None, check_finite: bool = True) -> DeviceArray:
        """Return the inverse of matrices of shape (..., n, n), as ``numpy.linalg.inv``.

        `a` is of dtype float32, float64, complex64 or complex128, and kept; `out` takes the result
        (``cusolverDnXgetrf``, ``cusolverDnXgetrs``; for several matrices up to 256 x 256 ``cublasSgetrfBatched`` and
        ``cublasSgetrsBatched``). The inverse of a matrix with NaN is NaN throughout: `check_finite` has `a` read once
        more beside the call, and without it the inverse may be finite.

        Raises `SingularMatrixError` when a pivot is zero, `InvalidArgument` for other arrays.
        """
        given = self._given(a, "a", square=True)
        kind = (given.shape, given.dtype)
        target = self._out(out, kind, given)
        factors, transposed, source = self._used_up_anyhow(given, looks=check_finite)
        options: dict[str, Any] = {"spoils": NAN, "refuses": False, "spreads": True, "source": source}
        look = self._look("inv", "a", factors, check_finite, **options)
        pivots = self._factor_lu(factors, look=look)
        kept = self._keep(target, factors)
        inverse = self._columns(kind, turned(target, transposed))
        self._make_identity(inverse)
        self._solve_lu(factors, pivots, self._seen(inverse), OPERATIONS["N"])
        self._taint(look, self._seen(inverse))
        result = self._deliver(swapped(inverse) if transposed else inverse, target)
        self._restore(kept, look)
        return result

    @verb
    def lstsq(
        self, a: DeviceArray, b: DeviceArray, *, out: DeviceArray | None = None, check_finite: bool = True
    ) -> DeviceArray:
        """Solve ``a @ x = b`` in the sense of least squares, by a QR factorization.

        `a` is of shape (..., m, n), `b` of shape (m,) or (..., m, k), of one dtype; leading axes are broadcast. If
        there are more columns than rows, the solution is that of least norm. Unlike ``numpy.linalg.lstsq`` it returns x
        alone, and the rank of `a` must be full: min(m, n). `out` takes x (``cusolverDnXgeqrf``, ``cusolverDnSormqr``,
        ``cublasStrsm``). `check_finite` reads `a` once more beside the call.

        Raises `SingularMatrixError` when an element of R's diagonal is negligible beside the largest, by the type's
        epsilon times the larger of m and n; `NotFiniteError` for NaN and infinities in `a`, where numpy says that the
        SVD did not converge; `InvalidArgument` for arrays that do not fit together.
        """
        given = self._given(a, "a")
        rows, columns = given.shape[-2:]
        sides = self._right_sides(b, "b", given, rows)
        target = self._out(out, sides.solution(columns), given, b)
        self._spared = target
        *stack, _, count = sides.array.shape
        if min(rows, columns) and sides.array.size:
            solve = self._least_squares if rows >= columns else self._least_norm
            solution = solve(broadcast(given, (*stack, rows, columns)), sides, target, check_finite)
        else:
            solution = self._columns(((*stack, columns, count), given.dtype), target)
            self._fill(solution, 0)
        return self._deliver(sides.result(solution), target)

    def _least_squares(self, a: DeviceArray, sides: Sides, out: DeviceArray | None, check_finite: bool) -> DeviceArray:
        """Return the solution R^-1 Q^H b, the first rows of the transformed b."""
        work = self._copied(a)
        look = self._look("lstsq", "a", work, check_finite)
        scales = self._factor_qr(work, look=look)
        self._check_rank(work, look)
        solution = self._copied(sides.array, out)
        self._multiply_q(work, scales, solution, self._adjoint_word(work))
        self._solve_triangular(work, solution, OPERATIONS["N"])
        return solution.array[..., : work.columns, :]

    def _least_norm(self, a: DeviceArray, sides: Sides, out: DeviceArray | None, check_finite: bool) -> DeviceArray:
        """Return the solution Q R^-H b, by the factors of a^H."""
        work = self._adjoint(a)
        look = self._look("lstsq", "a", work, check_finite)
        scales = self._factor_qr(work, look=look)
        self._check_rank(work, look)
        top = self._copied(sides.array)
        self._solve_triangular(work, top, self._adjoint_word(work))
        *stack, rows, count = sides.array.shape
        solution = self._columns(((*stack, work.rows, count), work.array.dtype), out)
        self._fill(solution, 0)
        self._copy(top.array, solution[..., :rows, :])
        self._multiply_q(work, scales, self._seen(solution), OPERATIONS["N"])
        return solution

    def _adjoint(self, array: DeviceArray) -> Matrix:
        """Return matrices transposed and conjugated, column by column."""
        if not _is_complex(array):
            return self._copied(swapped(array))
        adjoint = self._seen(self._new_columns(swapped(array).shape, array.dtype))
        self._turn(self._by_columns(array), adjoint, conjugated=True)
        return adjoint

    def _adjoint_word(self, work: Matrix) -> int:
        return OPERATIONS["C" if _is_complex(work.array) else "T"]

    def _solve_triangular(self, triangles: Matrix, sides: Matrix, word: int) -> None:
        """Overwrite the first rows of right-hand sides by solutions for an upper triangle (``cublasStrsm``)."""
        dtype = sides.array.dtype
        operands = self._operands()
        operands.reads(triangles.array)
        operands.writes(sides.array)
        starts, ends = places(triangles), places(sides)
        sizes = (triangles.columns, sides.columns, Scalar.of(1, dtype))

        def arguments(index: int) -> tuple[Argument, ...]:
            return (LEFT, UPPER, word, _NOT_UNIT, *sizes, starts[index], triangles.leading, ends[index], sides.leading)

        name = f"cublas{LETTERS[dtype.name]}trsm_64"
        self._call_each(len(starts), name, arguments, operation="lstsq", operands=operands, table=BLAS)

    def _check_rank(self, work: Matrix, look: Look | None) -> None:
        """Plan the check of the rank, which raises `SingularMatrixError`, behind the factorization."""
        precision = float(np.finfo(REAL[work.array.dtype.name]).eps) * max(work.rows, work.columns)
        sight, count, device = None if look is None else look.sight, work.count, self._device.index

        def check(diagonals: npt.NDArray[Any]) -> Exception | None:
            sizes = np.abs(diagonals)
            is_negligible = sizes <= precision * sizes.max(axis=-1, keepdims=True)
            if sight is not None:
                is_negligible[sight.spoilt(0, count).reshape(is_negligible.shape[:-1])] = False
            negligible = np.argwhere(is_negligible)
            if not len(negligible):
                return None
            *matrix, pivot = (int(number) for number in negligible[0])
            return SingularMatrixError(
                f"the matrix is not of full rank: element {pivot} of R's diagonal is negligible",
                pivot=pivot,
                matrix=tuple(matrix) or None,
                device=device,
                operation="solver.lstsq",
            )

        self._read_diagonals(work, check)

    # --- factorizations -----------------------------------------------------------------------------------------------

    @verb
    def cholesky(
        self, a: DeviceArray, *, upper: bool = False, out: DeviceArray | None = None, check_finite: bool = True
    ) -> DeviceArray:
        """Return the lower Cholesky factor of Hermitian positive definite matrices, as ``numpy.linalg.cholesky``.

        Only the lower triangle of `a`, of shape (..., n, n) and of dtype float32, float64, complex64 or complex128, is
        read; with `upper` only the upper one, and the factor is the upper one. `out` takes the result, whose other
        triangle is zero (``cusolverDnXpotrf``; for several matrices up to 256 x 256 ``cusolverDnSpotrfBatched``). With
        NaN in the triangle that is read, the factor's is NaN throughout, and nothing is raised: `check_finite` has it
        read once more beside the call, and without it the factor may be anything.

        Raises `NotPositiveDefiniteError` with the first minor that is not positive, `InvalidArgument` for other
        arrays.
        """
        given = self._given(a, "a", square=True)
        target = self._out(out, (given.shape, given.dtype), given)
        work, transposed, source = self._used_up_anyhow(given, target, looks=check_finite)
        # The library sees a matrix that lies row by row as its conjugate, and its factor as the other triangle.
        lower = bool(upper) == transposed
        options: dict[str, Any] = {"spoils": NAN, "lower": lower, "refuses": False, "spreads": True, "source": source}
        look = self._look("cholesky", "a", work, check_finite, **options)
        self._factor_positive(work, lower, look)
        factor = swapped(work.array) if transposed else work.array
        self._clear_below(factor if upper else swapped(factor), look)
        return self._deliver(factor, target)

    @verb
    def qr(
        self,
        a: DeviceArray,
        *,
        mode: Literal["reduced", "complete", "r"] = "reduced",
        out: PairOut | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray | None, DeviceArray]:
        """Factor matrices of shape (..., m, n) as ``q @ r``, as ``numpy.linalg.qr``.

        `a` is of dtype float32, float64, complex64 or complex128. With k = min(m, n), q is of shape (..., m, k) and r
        of shape (..., k, n); (..., m, m) and (..., m, n) if `mode` is "complete". For "r" q is None, and not computed.
        `out` takes both; without `out` the matrices lie column by column (``cusolverDnXgeqrf``,
        ``cusolverDnSorgqr``). Of a matrix with NaN, or of more than one row with an infinity, q and the upper triangle
        of r are NaN throughout: `check_finite` reads `a` once more beside the call.

        Raises `InvalidArgument` for another mode, and for other arrays.
        """
        if named(_QR_MODES, mode) is None:
            raise InvalidArgument(f'mode is "reduced", "complete" or "r", not {shown(mode)}')
        given = self._given(a, "a")
        *stack, rows, columns = given.shape
        smaller = min(rows, columns)
        height = rows if mode == "complete" else smaller
        kind_of_q, kind_of_r = ((*stack, rows, height), given.dtype), ((*stack, height, columns), given.dtype)
        q_out, r_out = self._outs(out, (None if mode == "r" else kind_of_q, kind_of_r), (given,))
        work = self._copied(given)
        # The norm of a column with an infinity is infinite, and numpy divides by that; a single row is not touched.
        options: dict[str, Any] = {"spoils": NAN | INFINITY if rows > 1 else NAN, "refuses": False, "spreads": True}
        look = self._look("qr", "a", work, check_finite, **options)
        scales = self._factor_qr(work, look=look)
        self._taint(look, work)
        r = self._columns(kind_of_r, r_out)
        self._copy(work.array[..., :height, :], r)
        self._clear_below(r[..., :smaller])
        if mode == "r":
            return None, self._deliver(r, r_out)
        q = self._columns(kind_of_q, q_out)
        self._copy(work.array[..., :smaller], q[..., :smaller])
        self._make_q(self._seen(q), scales)
        self._taint(look, self._seen(q))
        return self._deliver(q, q_out), self._deliver(r, r_out)

    # --- eigenvalues and singular values ------------------------------------------------------------------------------

    @verb
    def eigh(
        self, a: DeviceArray, *, lower: bool = True, out: PairOut | None = None, check_finite: bool = True
    ) -> tuple[DeviceArray, DeviceArray]:
        """Return eigenvalues and eigenvectors of symmetric or Hermitian matrices, as ``numpy.linalg.eigh``.

        Only the lower triangle of `a`, of shape (..., n, n) and of dtype float32, float64, complex64 or complex128, is
        read, or without `lower` the upper one. The eigenvalues, of shape (..., n), are real and ascending; the vectors
        are columns, of the shape of `a`. `out` takes both (``cusolverDnXsyevd``). `check_finite` has the triangle read
        once more beside the call.

        Raises `ConvergenceError` when the iteration fails, `NotFiniteError`, which is one, for NaN and infinities in
        the triangle, `InvalidArgument` for other arrays.
        """
        given = self._given(a, "a", square=True)
        values_out, vectors_out = self._outs(out, (values_of(given), (given.shape, given.dtype)), (given,))
        work = self._copied(given, vectors_out)
        look = self._look("eigh", "a", work, check_finite, lower=bool(lower))
        values = self._eigenvalues(work, values_out, look, lower=lower, vectors=True)
        return self._deliver(values, values_out), self._deliver(work.array, vectors_out)

    @verb
    def eigvalsh(
        self, a: DeviceArray, *, lower: bool = True, out: DeviceArray | None = None, check_finite: bool = True
    ) -> DeviceArray:
        """Return only the eigenvalues, as ``numpy.linalg.eigvalsh``.

        `a` is of shape (..., n, n) and of dtype float32, float64, complex64 or complex128; `lower`, `check_finite` and
        the eigenvalues, of shape (..., n), are as for `eigh`. `out` takes them (``cusolverDnXsyevd``).

        Raises `ConvergenceError` when the iteration fails, `NotFiniteError`, which is one, for NaN and infinities in
        the triangle, `InvalidArgument` for other arrays.
        """
        given = self._given(a, "a", square=True)
        target = self._out(out, values_of(given), given)
        work = self._copied(given)
        look = self._look("eigvalsh", "a", work, check_finite, lower=bool(lower))
        return self._deliver(self._eigenvalues(work, target, look, lower=lower, vectors=False), target)

    @verb
    def svd(
        self,
        a: DeviceArray,
        *,
        full_matrices: bool = True,
        compute_uv: bool = True,
        out: TripleOut | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray | None, DeviceArray, DeviceArray | None]:
        """Return the singular value decomposition ``a = u @ diag(s) @ vh`` of matrices, as ``numpy.linalg.svd``.

        For `a` of shape (..., m, n), of dtype float32, float64, complex64 or complex128, and k = min(m, n), u is of
        shape (..., m, m) and vh of shape (..., n, n), or (..., m, k) and (..., k, n) without `full_matrices`; s, of
        shape (..., k), is real and descending. Without `compute_uv` u and vh are None. `out` takes all three
        (``cusolverDnXgesvd``). `check_finite` reads `a` once more beside the call.

        Raises `ConvergenceError` when the iteration fails, `NotFiniteError`, which is one, for NaN and infinities,
        `InvalidArgument` for other arrays.
        """
        given = self._given(a, "a")
        outs = self._vector_outs(out, given, full=full_matrices, vectors=compute_uv)
        options = {"full": full_matrices, "vectors": compute_uv}
        if given.shape[-2] >= given.shape[-1]:
            work = self._copied(given)
            results = self._singular_values(work, outs, self._look("svd", "a", work, check_finite), **options)
            return self._deliver_all(results, outs)
        # The decomposition of the transpose, in reverse order: no conjugation is needed.
        work, (u, s, vh) = self._copied(swapped(given)), outs
        outs_of_it = (turned(vh), s, turned(u))
        look = self._look("svd", "a", work, check_finite)
        left, values, right = self._singular_values(work, outs_of_it, look, **options)
        return self._deliver_all((turned(right), values, turned(left)), outs)

    # --- determinants -------------------------------------------------------------------------------------------------

    @verb
    def det(self, a: DeviceArray, *, check_finite: bool = True) -> npt.NDArray[Any]:
        """Return the determinants of matrices of shape (..., n, n), as ``numpy.linalg.det``: a numpy array (...).

        `a` is of dtype float32, float64, complex64 or complex128, as the result is. It is computed on the host, from
        the diagonal of the LU factors (``cusolverDnXgetrf``; for several matrices up to 256 x 256
        ``cublasSgetrfBatched``); in a batch the numbers are valid at its end. A singular matrix has the determinant 0,
        and one with NaN has NaN: `check_finite` reads `a` once more beside the call, and without it the determinant
        may be finite.

        Raises `InvalidArgument` for other arrays.
        """
        given = self._given(a, "a", square=True)
        return self._factor_and_tell("det", given, check_finite, Determinants(given.shape[:-2], given.dtype))[0]

    @verb
    def slogdet(self, a: DeviceArray, *, check_finite: bool = True) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the sign and the logarithm of the absolute value of determinants, as ``numpy.linalg.slogdet``.

        For `a` of shape (..., n, n), of dtype float32, float64, complex64 or complex128, both are numpy arrays of shape
        (...), the logarithms real; see `det` (``cusolverDnXgetrf``). A singular matrix has the sign 0 and the logarithm
        minus infinity; with NaN in the matrix both are NaN. `check_finite` is as for `det`.

        Raises `InvalidArgument` for other arrays.
        """
        given = self._given(a, "a", square=True)
        kinds = (given.shape[:-2], given.dtype, np.dtype(REAL[given.dtype.name]))
        signs, logarithms = self._factor_and_tell("slogdet", given, check_finite, Logarithms(*kinds))
        return signs, logarithms

    def _factor_and_tell(
        self, verb: str, a: DeviceArray, check_finite: bool, told: Determinants
    ) -> tuple[npt.NDArray[Any], ...]:
        """Factor matrices, and tell the determinants, of which those of matrices without U are NaN."""
        if not a.size:
            return told.into
        self._told = told
        work, _, source = self._used_up_anyhow(a, looks=check_finite)
        look = self._look(verb, "a", work, check_finite, spoils=NAN, refuses=False, source=source)
        pivots = self._factor_lu(work, tolerant=True, look=look)
        rows: npt.NDArray[Any] = np.empty(pivots.shape, pivots.dtype)
        unmoved, sight, count = np.arange(1, work.rows + 1), None if look is None else look.sight, work.count

        def finish(diagonals: npt.NDArray[Any]) -> None:
            exchanges = np.count_nonzero(rows != unmoved, axis=-1)
            if sight is not None:
                diagonals[sight.spoilt(0, count).reshape(diagonals.shape[:-1])] = np.nan
            told.tell(1 - 2 * (np.asarray(exchanges) % 2), diagonals)

        self._read(pivots, rows)
        self._read_diagonals(work, finish)
        return told.into


def _is_complex(array: DeviceArray) -> bool:
    return array.dtype.kind == "c"
