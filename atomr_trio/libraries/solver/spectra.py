"""Eigenvalues of symmetric and Hermitian matrices, and singular values, under LAPACK's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..._arrays.arrays import DeviceArray
from ..._calls.apart import check_apart
from ..._calls.library_types import letter_of
from ..._calls.linear import Matrix
from ..._calls.verbs import Scalar, verb
from ..._values.errors import InvalidArgument
from .plans import SolverPlans, check_number, chunks, lines, places, values_of
from .types import INDEX_RANGE, JACOBI_BATCH, LOWER, MAX_SWEEPS, UPPER, Kind, Look, PairOut, TripleOut

_ALL, _SOME, _NONE = (ord(letter) for letter in "ASN")
"""LAPACK's letters for the singular vectors to compute."""


class SpectrumVerbs(SolverPlans):
    """Verbs that compute eigenvalues and singular values.

    All take stacks, whose leading axes come before the matrix's two.
    """

    __slots__ = ()

    # --- eigenvalues --------------------------------------------------------------------------------------------------

    @verb
    def syevd(
        self,
        a: DeviceArray,
        *,
        lower: bool = True,
        vectors: bool = True,
        overwrite_a: bool = False,
        deterministic: bool = True,
        out: PairOut | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray, DeviceArray | None]:
        """Eigenvalues of symmetric or Hermitian matrices of shape (..., n, n) (``cusolverDnXsyevd``).

        `a` is of dtype float32, float64, complex64 or complex128. Returns the eigenvalues, of shape (..., n), real and
        ascending, and the eigenvectors as columns, of shape (..., n, n), or None without `vectors`. Only the lower
        triangle is read, or the upper one without `lower`. `overwrite_a` writes the vectors over `a`, which must then
        lie column by column. Without `deterministic` it is faster, and the bits may differ from run to run. `out` takes
        both results, but not the vectors with `overwrite_a`. `check_finite` reads the triangle once more beside the
        call.

        Raises `ConvergenceError` when the iteration fails, `NotFiniteError`, which is one, for NaN and infinities in
        the triangle, `InvalidArgument` for other arrays.
        """
        given = self._given(a, "a", square=True)
        outs = values_out, vectors_out = self._pair_outs(out, given, vectors=vectors)
        work = self._used_up(given, "a", overwrite_a, vectors_out)
        look = self._look("syevd", "a", work, check_finite, lower=bool(lower))
        options = {"lower": lower, "vectors": vectors, "deterministic": deterministic}
        values = self._eigenvalues(work, values_out, look, **options)
        return self._deliver_pair(values, work.array if vectors else None, outs)

    def _pair_outs(
        self, out: object, *given: DeviceArray, vectors: bool, count: int | None = None
    ) -> tuple[DeviceArray | None, DeviceArray | None]:
        """Return the checked `out` of eigenvalues and eigenvectors: of all, or of `count` each."""
        first = given[0]
        vector_kind = ((*first.shape[:-1], first.shape[-1] if count is None else count), first.dtype)
        values_out, vectors_out = self._outs(out, (values_of(first, count), vector_kind if vectors else None), given)
        return values_out, vectors_out

    def _deliver_pair(
        self, values: DeviceArray, vectors: DeviceArray | None, outs: PairOut
    ) -> tuple[DeviceArray, DeviceArray | None]:
        values_out, vectors_out = outs
        return self._deliver(values, values_out), self._deliver(vectors, vectors_out)

    def _eigenvalues(
        self,
        work: Matrix,
        out: DeviceArray | None,
        look: Look | None,
        *,
        lower: bool,
        vectors: bool,
        deterministic: bool = True,
    ) -> DeviceArray:
        """Overwrite matrices by their eigenvectors; returns the eigenvalues."""
        array, order = work.array, work.rows
        values = self._lines(values_of(array), out)
        operands = self._operands()
        operands.writes(array)
        operands.writes(values, keeps=work.count > 1)
        words = {"jobz": int(bool(vectors)), "uplo": _triangle(lower), "n": order, "lda": work.leading}
        if array.size:
            options: dict[str, Any] = {"order": order, "deterministic": deterministic, "looks": (look,)}
            with self._routine("Xsyevd", array, operands, **options) as decompose:
                decompose.each(A=places(work), W=lines(values), **words)
        return values

    @verb
    def syevdx(
        self,
        a: DeviceArray,
        first: int,
        last: int,
        *,
        lower: bool = True,
        vectors: bool = True,
        overwrite_a: bool = False,
        deterministic: bool = True,
        out: PairOut | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray, DeviceArray | None]:
        """Return only the eigenvalues ``[first:last]``, in the order of `syevd` (``cusolverDnXsyevdx``).

        `first` is the index of the first of them, and `last` the index behind the last, counted from 0. For `a` of
        shape (..., n, n), of dtype float32, float64, complex64 or complex128, the eigenvalues are of shape (..., last -
        first), and the vectors, which are columns, of shape (..., n, last - first), or None without `vectors`. Only the
        lower triangle is read, or the upper one without `lower`. `overwrite_a` destroys `a`, which must then lie column
        by column. Without `deterministic` it is faster, and the bits may differ from run to run. `out` and
        `check_finite` are as for `syevd`.

        Raises `ConvergenceError` when the iteration fails, `NotFiniteError`, which is one, for NaN and infinities in
        the triangle, `InvalidArgument` for other arrays and for other bounds than ``0 <= first <
        last <= n``.
        """
        given = self._given(a, "a", square=True)
        order = given.shape[-1]
        last = check_number(last, "last", order)
        first = check_number(first, "first", last - 1, least=0)
        count = last - first
        outs = values_out, vectors_out = self._pair_outs(out, given, vectors=vectors, count=count)
        work = self._used_up(given, "a", overwrite_a, vectors_out)
        array = work.array
        values = self._lines(values_of(array), values_out)
        real = values.dtype
        operands = self._operands()
        operands.writes(array, values)
        words: dict[str, Any] = {
            "jobz": int(bool(vectors)),
            "range": INDEX_RANGE,
            "uplo": _triangle(lower),
            "n": order,
            "lda": work.leading,
            "vl": Scalar.of(0, real),
            "vu": Scalar.of(0, real),
            "il": first + 1,
            "iu": last,
        }
        if array.size:
            look = self._look("syevdx", "a", work, check_finite, lower=bool(lower))
            options: dict[str, Any] = {"order": order, "deterministic": deterministic, "looks": (look,)}
            with self._routine("Xsyevdx", array, operands, **options) as decompose:
                decompose.each(A=places(work), W=lines(values), **words)
        return self._deliver_pair(values[..., :count], array[..., :count] if vectors else None, outs)

    @verb
    def syevj(
        self,
        a: DeviceArray,
        *,
        lower: bool = True,
        vectors: bool = True,
        max_sweeps: int | None = None,
        overwrite_a: bool = False,
        out: PairOut | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray, DeviceArray | None]:
        """Return the same as `syevd` by the Jacobi method (``cusolverDnSsyevj``, ``cusolverDnCheevj``).

        `a`, of shape (..., n, n), is of dtype float32, float64, complex64 or complex128; the results, `lower`,
        `vectors`, `overwrite_a`, `out` and `check_finite` are as for `syevd`. A stack is one call
        (``cusolverDnSsyevjBatched``), which makes it the right verb for many small matrices. `max_sweeps` is the
        number of sweeps that the method may make: up to 10,000, and 100 for None.

        Raises `ConvergenceError` when the sweeps are not enough, except for a stack in one call, whose functions do
        not report it, `NotFiniteError`, which is one, for NaN and infinities in the triangle, and `InvalidArgument` for
        other arrays.
        """
        setting = 0 if max_sweeps is None else check_number(max_sweeps, "max_sweeps", MAX_SWEEPS)
        given = self._given(a, "a", square=True)
        outs = values_out, vectors_out = self._pair_outs(out, given, vectors=vectors)
        work = self._used_up(given, "a", overwrite_a, vectors_out)
        array, order = work.array, work.rows
        values = self._lines(values_of(array), values_out)
        operands = self._operands()
        operands.writes(array)
        operands.writes(values, keeps=work.count > 1)
        words: dict[str, Any] = {
            "jobz": int(bool(vectors)),
            "uplo": _triangle(lower),
            "n": order,
            "lda": work.leading,
            "syevj": setting,
        }
        starts, ends = places(work), lines(values)
        look = self._look("syevj", "a", work, check_finite, lower=bool(lower))
        if array.size and _is_dense(work):
            with self._routine("syevjBatched", array, operands, order=order, looks=(look,)) as decompose:
                for index, count in chunks(work.count):
                    decompose.many(index, count, A=starts[index], W=ends[index], batch=count, **words)
        elif array.size:
            with self._routine("syevj", array, operands, order=order, looks=(look,)) as decompose:
                decompose.each(A=starts, W=ends, **words)
        return self._deliver_pair(values, array if vectors else None, outs)

    @verb
    def sygvd(
        self,
        a: DeviceArray,
        b: DeviceArray,
        *,
        kind: Literal[1, 2, 3] = 1,
        lower: bool = True,
        vectors: bool = True,
        overwrite_a: bool = False,
        overwrite_b: bool = False,
        out: PairOut | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray, DeviceArray | None]:
        """Return generalized eigenvalues of pairs of matrices (``cusolverDnSsygvd``, ``cusolverDnChegvd``).

        `a` is symmetric or Hermitian, `b` positive definite, of one shape (..., n, n) and one dtype. `kind` is 1 for
        ``a @ x = w * b @ x``, 2 for ``a @ b @ x = w * x``, 3 for ``b @ a @ x = w * x``. The results, `lower`,
        `vectors`, `overwrite_a` and `out` are as for `syevd`; `overwrite_b` writes the Cholesky factor of `b` over
        it. `check_finite` reads the triangles of both once more beside the call.

        Raises `NotPositiveDefiniteError` for `b`, `ConvergenceError` when the iteration fails, `NotFiniteError`, which
        is one, for NaN and infinities in a triangle, `InvalidArgument` for arrays that do not fit together.
        """
        first, second = self._given(a, "a", square=True), self._given(b, "b", square=True)
        letter_of(first, second)
        if first.shape != second.shape:
            raise InvalidArgument(f"a has shape {first.shape} and b has {second.shape}: they must be the same")
        itype = check_number(kind, "kind", 3)
        if overwrite_a or overwrite_b:
            check_apart(first, second)
        outs = values_out, vectors_out = self._pair_outs(out, first, second, vectors=vectors)
        work = self._used_up(first, "a", overwrite_a, vectors_out)
        factor = self._used_up(second, "b", overwrite_b)
        values = self._lines(values_of(first), values_out)
        operands = self._operands()
        operands.writes(work.array, factor.array, values)
        words = {
            "itype": itype,
            "jobz": int(bool(vectors)),
            "uplo": _triangle(lower),
            "n": work.rows,
            "lda": work.leading,
            "ldb": factor.leading,
        }
        looks = [
            self._look("sygvd", name, matrices, check_finite, lower=bool(lower))
            for name, matrices in (("a", work), ("b", factor))
        ]
        if values.size:
            with self._routine("sygvd", work.array, operands, order=work.rows, looks=looks) as decompose:
                decompose.each(A=places(work), B=places(factor), W=lines(values), **words)
        return self._deliver_pair(values, work.array if vectors else None, outs)

    # --- singular values ----------------------------------------------------------------------------------------------

    @verb
    def gesvd(
        self,
        a: DeviceArray,
        *,
        full_matrices: bool = True,
        compute_uv: bool = True,
        overwrite_a: bool = False,
        deterministic: bool = True,
        out: TripleOut | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray | None, DeviceArray, DeviceArray | None]:
        """Singular values of matrices of shape (..., m, n) with m >= n (``cusolverDnXgesvd``).

        `a` is of dtype float32, float64, complex64 or complex128. Returns u, s and v^H with ``a = u @ diag(s) @ vh``: s
        real and descending, of shape (..., n), vh of shape (..., n, n) and u of shape (..., m, m), or (..., m, n)
        without `full_matrices`. Without `compute_uv` u and vh are None. `overwrite_a` destroys `a`, which must then lie
        column by column. Without `deterministic` it is faster, and the bits may differ from run to run. `out` takes all
        three results. `check_finite` reads `a` once more beside the call.

        Raises `ConvergenceError` when the iteration fails, `NotFiniteError`, which is one, for NaN and infinities,
        `InvalidArgument` for other arrays; `svd` takes m < n, too.
        """
        given = self._given(a, "a")
        if given.shape[-2] < given.shape[-1]:
            raise InvalidArgument(f"gesvd takes matrices with m >= n, not of shape {given.shape}; `svd` takes others")
        outs = self._vector_outs(out, given, full=full_matrices, vectors=compute_uv)
        work = self._used_up(given, "a", overwrite_a)
        look = self._look("gesvd", "a", work, check_finite)
        options = {"full": full_matrices, "vectors": compute_uv, "deterministic": deterministic}
        return self._deliver_all(self._singular_values(work, outs, look, **options), outs)

    def _vector_outs(
        self, out: object, given: DeviceArray, *, full: bool, vectors: bool, adjoint: bool = True
    ) -> TripleOut:
        """Return the checked `out` of left vectors, singular values and right vectors, which are rows if `adjoint`."""
        kinds = _vector_kinds(given, full, adjoint)
        left, right = kinds if vectors else (None, None)
        u, values, v = self._outs(out, (left, values_of(given), right), (given,))
        return u, values, v

    def _singular_values(
        self,
        work: Matrix,
        outs: TripleOut,
        look: Look | None,
        *,
        full: bool,
        vectors: bool,
        deterministic: bool = True,
    ) -> tuple[DeviceArray | None, DeviceArray, DeviceArray | None]:
        """Decompose matrices with at least as many rows as columns, which are destroyed."""
        array, rows, columns = work.array, work.rows, work.columns
        u_out, values_out, vh_out = outs
        values = self._lines(values_of(array), values_out)
        operands = self._operands()
        operands.writes(array)
        operands.writes(values, keeps=work.count > 1)
        u = vh = None
        words = {"m": rows, "n": columns, "lda": work.leading, "ldu": max(rows, 1), "ldvt": max(columns, 1)}
        words |= {"jobu": _NONE, "jobvt": _NONE}
        lefts: Sequence[int] = [0] * work.count
        rights = lefts
        if vectors:
            u_kind, vh_kind = _vector_kinds(array, full)
            u, vh = self._columns(u_kind, u_out), self._columns(vh_kind, vh_out)
            operands.writes(u, vh, keeps=work.count > 1)
            seen_u, seen_vh = self._seen(u), self._seen(vh)
            lefts, rights = places(seen_u), places(seen_vh)
            words |= {"jobu": _ALL if full else _SOME, "jobvt": _ALL if full else _SOME}
            words |= {"ldu": seen_u.leading, "ldvt": seen_vh.leading}
        if array.size:
            options: dict[str, Any] = {"order": columns, "deterministic": deterministic, "looks": (look,)}
            with self._routine("Xgesvd", array, operands, **options) as decompose:
                decompose.each(A=places(work), S=lines(values), U=lefts, VT=rights, **words)
        elif u is not None:
            self._make_identity(u)
        return u, values, vh

    @verb
    def gesvdj(
        self,
        a: DeviceArray,
        *,
        full_matrices: bool = True,
        compute_uv: bool = True,
        max_sweeps: int | None = None,
        overwrite_a: bool = False,
        deterministic: bool = True,
        out: TripleOut | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray | None, DeviceArray, DeviceArray | None]:
        """Singular values of matrices of shape (..., m, n) by the Jacobi method (``cusolverDnSgesvdj``).

        `a` is of dtype float32, float64, complex64 or complex128. Returns u, s and v (not its transpose) with ``a = u @
        diag(s) @ v^H``: s real and descending, of shape (..., k) with k = min(m, n), u and v of shapes (..., m, m) and
        (..., n, n), or (..., m, k) and (..., n, k) without `full_matrices`. Without `compute_uv` they are None. A stack
        of matrices up to 32 x 32 is one call (``cusolverDnSgesvdjBatched``). `max_sweeps` is the number of sweeps that
        the method may make: up to 10,000, and 100 for None. `overwrite_a` destroys `a`, which must then lie column by
        column. Without `deterministic` it is faster, and the bits may differ from run to run. `out` takes all three
        results. `check_finite` reads `a` once more beside the call.

        Raises `ConvergenceError` when the sweeps are not enough, except for a stack in one call, whose functions do not
        report it, `NotFiniteError`, which is one, for NaN and infinities, and `InvalidArgument` for other arrays.
        """
        setting = 0 if max_sweeps is None else check_number(max_sweeps, "max_sweeps", MAX_SWEEPS)
        given = self._given(a, "a")
        outs = self._vector_outs(out, given, full=full_matrices, vectors=compute_uv, adjoint=False)
        work = self._used_up(given, "a", overwrite_a)
        array, rows, columns = work.array, work.rows, work.columns
        smaller = min(rows, columns)
        batched = max(rows, columns) <= JACOBI_BATCH and _is_dense(work)
        full = full_matrices or batched  # for a stack the library computes all vectors
        u_kind, v_kind = _vector_kinds(array, full, adjoint=False)
        u_out, values_out, v_out = outs
        takes = _is_dense if batched else None
        u, v = self._columns(u_kind, u_out, takes), self._columns(v_kind, v_out, takes)
        values = self._lines(values_of(array), values_out)
        if not array.size:
            for each in (u, v):
                self._make_identity(each)
            return self._deliver_all((u, values, v) if compute_uv else (None, values, None), outs)
        operands = self._operands()
        operands.writes(array, u, v, values)
        left, right = self._seen(u), self._seen(v)
        words: dict[str, Any] = {
            "jobz": int(bool(compute_uv)),
            "m": rows,
            "n": columns,
            "lda": work.leading,
            "ldu": left.leading,
            "ldv": right.leading,
            "gesvdj": setting,
        }
        places_of_each = {"A": places(work), "S": lines(values), "U": places(left), "V": places(right)}
        name = "gesvdjBatched" if batched else "gesvdj"
        look = self._look("gesvdj", "a", work, check_finite)
        options: dict[str, Any] = {"order": smaller, "deterministic": deterministic, "looks": (look,)}
        with self._routine(name, array, operands, **options) as decompose:
            if batched:
                for index, count in chunks(work.count):
                    starts = {word: of_each[index] for word, of_each in places_of_each.items()}
                    decompose.many(index, count, batch=count, **starts, **words)
            else:
                decompose.each(econ=int(not full), **places_of_each, **words)
        if not compute_uv:
            return self._deliver_all((None, values, None), outs)
        if not full_matrices:
            u, v = u[..., :smaller], v[..., :smaller]
        return self._deliver_all((u, values, v), outs)

    @verb
    def gesvda(
        self,
        a: DeviceArray,
        rank: int,
        *,
        compute_uv: bool = True,
        out: TripleOut | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray | None, DeviceArray, DeviceArray | None]:
        """Return the largest singular values of tall matrices, approximately (``cusolverDnSgesvdaStridedBatched``).

        `rank` is their number. For `a` of shape (..., m, n) with m >= n, of dtype float32, float64, complex64 or
        complex128, which is kept: u of shape (..., m, rank), s of shape (..., rank), real and descending, and v (not
        its transpose) of shape (..., n, rank). Without `compute_uv` u and v are None. It works by the eigenvalues of
        ``a^H @ a``, so singular values below the square root of the type's epsilon, relative to the largest, have
        no correct digits. `out` takes all three results. `check_finite` reads `a` once more beside the call.

        Raises `ConvergenceError` when the iteration fails, `NotFiniteError`, which is one, for NaN and infinities,
        `InvalidArgument` for other arrays.
        """
        given = self._given(a, "a")
        stack, (rows, columns) = given.shape[:-2], given.shape[-2:]
        if rows < columns:
            raise InvalidArgument(f"gesvda takes matrices with m >= n, not of shape {given.shape}")
        rank = check_number(rank, "rank", columns)
        kinds: tuple[Kind, Kind] = ((*stack, rows, rank), given.dtype), ((*stack, columns, rank), given.dtype)
        left, right = kinds if compute_uv else (None, None)
        outs = u_out, values_out, v_out = self._outs(out, (left, values_of(given, rank), right), (given,))
        work = self._by_columns(given)
        if not _is_even(work):
            work = self._copied(given)
        places_of_both = zip(kinds, (u_out, v_out), strict=True)
        u, v = (self._seen(self._columns(kind, each, _is_even)) for kind, each in places_of_both)
        values = self._lines(values_of(given, rank), values_out)
        operands = self._operands()
        operands.reads(work.array)
        operands.writes(u.array, v.array, values)
        words = {
            "jobz": int(bool(compute_uv)),
            "rank": rank,
            "m": rows,
            "n": columns,
            "lda": work.leading,
            "strideA": _distance(work),
            "strideS": rank,
            "ldu": u.leading,
            "strideU": _distance(u),
            "ldv": v.leading,
            "strideV": _distance(v),
        }
        places_of_each = {"A": places(work), "S": lines(values), "U": places(u), "V": places(v)}
        look = self._look("gesvda", "a", work, check_finite)
        with self._routine("gesvdaStridedBatched", given, operands, order=columns, looks=(look,)) as decompose:
            for index, count in chunks(work.count):
                starts = {word: of_each[index] for word, of_each in places_of_each.items()}
                decompose.many(index, count, residuals=count, batch=count, **starts, **words)
        return self._deliver_all((u.array, values, v.array) if compute_uv else (None, values, None), outs)


def _triangle(lower: bool) -> int:
    return LOWER if lower else UPPER


def _vector_kinds(matrices: DeviceArray, full: bool, adjoint: bool = True) -> tuple[Kind, Kind]:
    """Return the shapes and dtypes of left and right singular vectors: all, or min(m, n); rows if `adjoint`."""
    *stack, rows, columns = matrices.shape
    left, right = (rows, columns) if full else (min(rows, columns),) * 2
    right_shape = (right, columns) if adjoint else (columns, right)
    return ((*stack, rows, left), matrices.dtype), ((*stack, *right_shape), matrices.dtype)


def _is_dense(matrices: Matrix) -> bool:
    """Return whether several matrices are contiguous, as the batched functions need them."""
    return matrices.count > 1 and matrices.distance == matrices.leading * matrices.columns


def _is_even(matrices: Matrix) -> bool:
    """Return whether they are at equal positive distances."""
    return matrices.count <= 1 or (matrices.distance or 0) >= matrices.leading * matrices.columns


def _distance(matrices: Matrix) -> int:
    """Return the distance from one matrix to the next, in elements; for a single one a value that the library takes."""
    return matrices.distance or matrices.leading * matrices.columns
