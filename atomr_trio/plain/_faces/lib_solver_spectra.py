"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    from typing import Literal

    from .._types import AnyArray
    from .arrays import DeviceArray


class SpectrumVerbs(Verbs):
    """Verbs of `dev.solver`, in all forms."""

    __slots__ = ()

    def syevd(
        self,
        a: AnyArray,
        *,
        lower: bool = True,
        vectors: bool = True,
        overwrite_a: bool = False,
        deterministic: bool = True,
        out: tuple[AnyArray | None, AnyArray | None] | None = None,
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
        result: tuple[DeviceArray, DeviceArray | None] = self._do(
            self._awaited.syevd,
            (a,),
            {
                "lower": lower,
                "vectors": vectors,
                "overwrite_a": overwrite_a,
                "deterministic": deterministic,
                "out": out,
                "check_finite": check_finite,
            },
        )
        return result

    def syevdx(
        self,
        a: AnyArray,
        first: int,
        last: int,
        *,
        lower: bool = True,
        vectors: bool = True,
        overwrite_a: bool = False,
        deterministic: bool = True,
        out: tuple[AnyArray | None, AnyArray | None] | None = None,
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
        the triangle, `InvalidArgument` for other arrays and for other bounds than ``0 <= first < last <= n``.
        """
        result: tuple[DeviceArray, DeviceArray | None] = self._do(
            self._awaited.syevdx,
            (a, first, last),
            {
                "lower": lower,
                "vectors": vectors,
                "overwrite_a": overwrite_a,
                "deterministic": deterministic,
                "out": out,
                "check_finite": check_finite,
            },
        )
        return result

    def syevj(
        self,
        a: AnyArray,
        *,
        lower: bool = True,
        vectors: bool = True,
        max_sweeps: int | None = None,
        overwrite_a: bool = False,
        out: tuple[AnyArray | None, AnyArray | None] | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray, DeviceArray | None]:
        """Return the same as `syevd` by the Jacobi method (``cusolverDnSsyevj``, ``cusolverDnCheevj``).

        `a`, of shape (..., n, n), is of dtype float32, float64, complex64 or complex128; the results, `lower`,
        `vectors`, `overwrite_a`, `out` and `check_finite` are as for `syevd`. A stack is one call
        (``cusolverDnSsyevjBatched``), which makes it the right verb for many small matrices. `max_sweeps` is the number
        of sweeps that the method may make: up to 10,000, and 100 for None.

        Raises `ConvergenceError` when the sweeps are not enough, except for a stack in one call, whose functions do not
        report it, `NotFiniteError`, which is one, for NaN and infinities in the triangle, and `InvalidArgument` for
        other arrays.
        """
        result: tuple[DeviceArray, DeviceArray | None] = self._do(
            self._awaited.syevj,
            (a,),
            {
                "lower": lower,
                "vectors": vectors,
                "max_sweeps": max_sweeps,
                "overwrite_a": overwrite_a,
                "out": out,
                "check_finite": check_finite,
            },
        )
        return result

    def sygvd(
        self,
        a: AnyArray,
        b: AnyArray,
        *,
        kind: Literal[1, 2, 3] = 1,
        lower: bool = True,
        vectors: bool = True,
        overwrite_a: bool = False,
        overwrite_b: bool = False,
        out: tuple[AnyArray | None, AnyArray | None] | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray, DeviceArray | None]:
        """Return generalized eigenvalues of pairs of matrices (``cusolverDnSsygvd``, ``cusolverDnChegvd``).

        `a` is symmetric or Hermitian, `b` positive definite, of one shape (..., n, n) and one dtype. `kind` is 1 for
        ``a @ x = w * b @ x``, 2 for ``a @ b @ x = w * x``, 3 for ``b @ a @ x = w * x``. The results, `lower`,
        `vectors`, `overwrite_a` and `out` are as for `syevd`; `overwrite_b` writes the Cholesky factor of `b` over it.
        `check_finite` reads the triangles of both once more beside the call.

        Raises `NotPositiveDefiniteError` for `b`, `ConvergenceError` when the iteration fails, `NotFiniteError`, which
        is one, for NaN and infinities in a triangle, `InvalidArgument` for arrays that do not fit together.
        """
        result: tuple[DeviceArray, DeviceArray | None] = self._do(
            self._awaited.sygvd,
            (a, b),
            {
                "kind": kind,
                "lower": lower,
                "vectors": vectors,
                "overwrite_a": overwrite_a,
                "overwrite_b": overwrite_b,
                "out": out,
                "check_finite": check_finite,
            },
        )
        return result

    def gesvd(
        self,
        a: AnyArray,
        *,
        full_matrices: bool = True,
        compute_uv: bool = True,
        overwrite_a: bool = False,
        deterministic: bool = True,
        out: tuple[AnyArray | None, AnyArray | None, AnyArray | None] | None = None,
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
        result: tuple[DeviceArray | None, DeviceArray, DeviceArray | None] = self._do(
            self._awaited.gesvd,
            (a,),
            {
                "full_matrices": full_matrices,
                "compute_uv": compute_uv,
                "overwrite_a": overwrite_a,
                "deterministic": deterministic,
                "out": out,
                "check_finite": check_finite,
            },
        )
        return result

    def gesvdj(
        self,
        a: AnyArray,
        *,
        full_matrices: bool = True,
        compute_uv: bool = True,
        max_sweeps: int | None = None,
        overwrite_a: bool = False,
        deterministic: bool = True,
        out: tuple[AnyArray | None, AnyArray | None, AnyArray | None] | None = None,
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
        result: tuple[DeviceArray | None, DeviceArray, DeviceArray | None] = self._do(
            self._awaited.gesvdj,
            (a,),
            {
                "full_matrices": full_matrices,
                "compute_uv": compute_uv,
                "max_sweeps": max_sweeps,
                "overwrite_a": overwrite_a,
                "deterministic": deterministic,
                "out": out,
                "check_finite": check_finite,
            },
        )
        return result

    def gesvda(
        self,
        a: AnyArray,
        rank: int,
        *,
        compute_uv: bool = True,
        out: tuple[AnyArray | None, AnyArray | None, AnyArray | None] | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray | None, DeviceArray, DeviceArray | None]:
        """Return the largest singular values of tall matrices, approximately (``cusolverDnSgesvdaStridedBatched``).

        `rank` is their number. For `a` of shape (..., m, n) with m >= n, of dtype float32, float64, complex64 or
        complex128, which is kept: u of shape (..., m, rank), s of shape (..., rank), real and descending, and v (not
        its transpose) of shape (..., n, rank). Without `compute_uv` u and v are None. It works by the eigenvalues of
        ``a^H @ a``, so singular values below the square root of the type's epsilon, relative to the largest, have no
        correct digits. `out` takes all three results. `check_finite` reads `a` once more beside the call.

        Raises `ConvergenceError` when the iteration fails, `NotFiniteError`, which is one, for NaN and infinities,
        `InvalidArgument` for other arrays.
        """
        result: tuple[DeviceArray | None, DeviceArray, DeviceArray | None] = self._do(
            self._awaited.gesvda, (a, rank), {"compute_uv": compute_uv, "out": out, "check_finite": check_finite}
        )
        return result
