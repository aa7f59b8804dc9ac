"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    from ..._calls.linear import Operation
    from .._types import AnyArray
    from .arrays import DeviceArray


class FactorizationVerbs(Verbs):
    """Verbs of `dev.solver`, in all forms."""

    __slots__ = ()

    def getrf(
        self, a: AnyArray, *, overwrite_a: bool = False, check_finite: bool = True
    ) -> tuple[DeviceArray, DeviceArray]:
        """Factor matrices of shape (..., m, n) as P L U with row exchanges.

        By ``cusolverDnXgetrf``, and several square matrices up to 256 x 256 in one call of ``cublasSgetrfBatched``. `a`
        is of dtype float32, float64, complex64 or complex128. Returns the factors in one array of that shape, L without
        its unit diagonal, and the pivots: int64 of shape (..., min(m, n)), counted from 1 as LAPACK has them.
        `overwrite_a` writes the factors over `a`, which must lie column by column. `check_finite` reads `a` once more
        beside the call, for NaN: the library makes finite factors of it.

        Raises `SingularMatrixError` when a pivot is zero (the factors are complete then), `NotFiniteError` for NaN,
        `InvalidArgument` for other arrays.
        """
        result: tuple[DeviceArray, DeviceArray] = self._do(
            self._awaited.getrf, (a,), {"overwrite_a": overwrite_a, "check_finite": check_finite}
        )
        return result

    def getrs(
        self, lu: AnyArray, pivots: AnyArray, b: AnyArray, *, op: Operation = "N", overwrite_b: bool = False
    ) -> DeviceArray:
        """Solve ``op(a) @ x = b`` by the factors and pivots of `getrf`.

        By ``cusolverDnXgetrs``, and several systems of up to 256 equations in one call of ``cublasSgetrsBatched``. `lu`
        is of shape (..., n, n), `b` of shape (n,) or (..., n, k) and of its dtype; `pivots` are int64. `op` is "N", "T"
        for transposed or "C" for transposed and conjugated. `overwrite_b` writes the solution over `b`.

        Raises `InvalidArgument` for arrays that do not fit together.
        """
        result: DeviceArray = self._do(self._awaited.getrs, (lu, pivots, b), {"op": op, "overwrite_b": overwrite_b})
        return result

    def getri(self, lu: AnyArray, pivots: AnyArray, *, out: AnyArray | None = None) -> DeviceArray:
        """Return the inverse of matrices by the factors and pivots of `getrf`, which are kept.

        By ``cusolverDnXgetrs``, and of several matrices up to 256 x 256 in one call of ``cublasSgetrsBatched``. `lu` is
        of shape (..., n, n), as the result is, `pivots` of shape (..., n) and of dtype int64. `out` takes the result.

        Raises `InvalidArgument` for arrays that do not fit together.
        """
        result: DeviceArray = self._do(self._awaited.getri, (lu, pivots), {"out": out})
        return result

    def potrf(
        self, a: AnyArray, *, lower: bool = True, overwrite_a: bool = False, check_finite: bool = True
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
        result: DeviceArray = self._do(
            self._awaited.potrf, (a,), {"lower": lower, "overwrite_a": overwrite_a, "check_finite": check_finite}
        )
        return result

    def potrs(self, factor: AnyArray, b: AnyArray, *, lower: bool = True, overwrite_b: bool = False) -> DeviceArray:
        """Solve ``a @ x = b`` by the Cholesky factor that `potrf` made with the same `lower` (``cusolverDnXpotrs``).

        `factor` is of shape (..., n, n), `b` of shape (n,) or (..., n, k), of one dtype. `overwrite_b` writes the
        solution over `b`.

        Raises `InvalidArgument` for arrays that do not fit together.
        """
        result: DeviceArray = self._do(self._awaited.potrs, (factor, b), {"lower": lower, "overwrite_b": overwrite_b})
        return result

    def potri(self, factor: AnyArray, *, lower: bool = True, overwrite_factor: bool = False) -> DeviceArray:
        """Return the inverse of matrices by the Cholesky factor of `potrf` (``cusolverDnSpotri``).

        `factor` is of shape (..., n, n); the inverse, of its shape and dtype, is written to the triangle that `lower`
        selects, and the other triangle is that of `factor`. `overwrite_factor` writes it over `factor`, which must lie
        column by column. A factor with a zero on its diagonal, which `potrf` does not give, gives NaN.

        Raises `InvalidArgument` for other arrays.
        """
        result: DeviceArray = self._do(
            self._awaited.potri, (factor,), {"lower": lower, "overwrite_factor": overwrite_factor}
        )
        return result

    def geqrf(
        self, a: AnyArray, *, overwrite_a: bool = False, deterministic: bool = True, check_finite: bool = True
    ) -> tuple[DeviceArray, DeviceArray]:
        """Factor matrices of shape (..., m, n) as Q R, Q as reflectors (``cusolverDnXgeqrf``).

        `a` is of dtype float32, float64, complex64 or complex128. Returns R in the upper triangle of an array of that
        shape, with the reflectors below, and their scales, of shape (..., min(m, n)); `orgqr` and `ormqr` take both.
        `overwrite_a` writes the first over `a`, which must lie column by column. Without `deterministic` it is faster,
        and the bits may differ from run to run. `check_finite` reads `a` once more beside the call, for NaN.

        Raises `NotFiniteError` for NaN, `InvalidArgument` for other arrays.
        """
        result: tuple[DeviceArray, DeviceArray] = self._do(
            self._awaited.geqrf,
            (a,),
            {"overwrite_a": overwrite_a, "deterministic": deterministic, "check_finite": check_finite},
        )
        return result

    def orgqr(self, qr: AnyArray, tau: AnyArray, *, overwrite_qr: bool = False) -> DeviceArray:
        """Return the first columns of Q, by the reflectors of `geqrf` (``cusolverDnSorgqr``, ``cusolverDnCungqr``).

        `qr` is of shape (..., m, n) with m >= n, which is that of the result; `tau` of shape (..., k) with k <= n, and
        of the same dtype. To have all of Q, put the reflectors into the first columns of a square array. `overwrite_qr`
        writes Q over `qr`, which must lie column by column.

        Raises `InvalidArgument` for arrays that do not fit together.
        """
        result: DeviceArray = self._do(self._awaited.orgqr, (qr, tau), {"overwrite_qr": overwrite_qr})
        return result

    def ormqr(
        self,
        qr: AnyArray,
        tau: AnyArray,
        c: AnyArray,
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
        result: DeviceArray = self._do(
            self._awaited.ormqr, (qr, tau, c), {"left": left, "op": op, "overwrite_c": overwrite_c}
        )
        return result

    def gels(self, a: AnyArray, b: AnyArray, *, out: AnyArray | None = None, check_finite: bool = True) -> DeviceArray:
        """Return the least-squares solution of ``a @ x = b`` for matrices of full rank (``cusolverDnDDgels``).

        `a` is of shape (..., m, n) with m >= n, `b` of shape (m,) or (..., m, k), of one dtype. The library may refine
        its result; `lstsq` is a QR factorization without refinement, and takes m < n, too. `out` takes the result.
        `check_finite` reads `a` once more beside the call, for NaN.

        Raises `SingularMatrixError` when the rank is not full, `NotFiniteError` for NaN in `a`, `InvalidArgument` for
        arrays that do not fit together.
        """
        result: DeviceArray = self._do(self._awaited.gels, (a, b), {"out": out, "check_finite": check_finite})
        return result
