"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    from typing import Any, Literal

    import numpy.typing as npt

    from .._types import AnyArray
    from .arrays import DeviceArray


class NumpyVerbs(Verbs):
    """Verbs of `dev.solver`, in all forms."""

    __slots__ = ()

    def solve(self, a: AnyArray, b: AnyArray, *, out: AnyArray | None = None, check_finite: bool = True) -> DeviceArray:
        """Solve ``a @ x = b`` by LU factorization, as ``numpy.linalg.solve`` does.

        `a` is of shape (..., n, n), of dtype float32, float64, complex64 or complex128. `b` is of that dtype and of
        shape (n,), which is one vector for all matrices, or (..., n, k); leading axes are broadcast. The result has
        numpy's shape. `out` takes it; without `out` its matrices lie column by column (``cusolverDnXgetrf``,
        ``cusolverDnXgetrs``; for several matrices up to 256 x 256 ``cublasSgetrfBatched`` and ``cublasSgetrsBatched``).
        A matrix with NaN has solutions of NaN alone: `check_finite` has `a` read once more beside the call, and without
        it they may be finite.

        Raises `SingularMatrixError` when a pivot is zero, `InvalidArgument` for arrays that do not fit together.
        """
        result: DeviceArray = self._do(self._awaited.solve, (a, b), {"out": out, "check_finite": check_finite})
        return result

    def inv(self, a: AnyArray, *, out: AnyArray | None = None, check_finite: bool = True) -> DeviceArray:
        """Return the inverse of matrices of shape (..., n, n), as ``numpy.linalg.inv``.

        `a` is of dtype float32, float64, complex64 or complex128, and kept; `out` takes the result
        (``cusolverDnXgetrf``, ``cusolverDnXgetrs``; for several matrices up to 256 x 256 ``cublasSgetrfBatched`` and
        ``cublasSgetrsBatched``). The inverse of a matrix with NaN is NaN throughout: `check_finite` has `a` read once
        more beside the call, and without it the inverse may be finite.

        Raises `SingularMatrixError` when a pivot is zero, `InvalidArgument` for other arrays.
        """
        result: DeviceArray = self._do(self._awaited.inv, (a,), {"out": out, "check_finite": check_finite})
        return result

    def lstsq(self, a: AnyArray, b: AnyArray, *, out: AnyArray | None = None, check_finite: bool = True) -> DeviceArray:
        """Solve ``a @ x = b`` in the sense of least squares, by a QR factorization.

        `a` is of shape (..., m, n), `b` of shape (m,) or (..., m, k), of one dtype; leading axes are broadcast. If
        there are more columns than rows, the solution is that of least norm. Unlike ``numpy.linalg.lstsq`` it returns x
        alone, and the rank of `a` must be full: min(m, n). `out` takes x (``cusolverDnXgeqrf``, ``cusolverDnSormqr``,
        ``cublasStrsm``). `check_finite` reads `a` once more beside the call.

        Raises `SingularMatrixError` when an element of R's diagonal is negligible beside the largest, by the type's
        epsilon times the larger of m and n; `NotFiniteError` for NaN and infinities in `a`, where numpy says that the
        SVD did not converge; `InvalidArgument` for arrays that do not fit together.
        """
        result: DeviceArray = self._do(self._awaited.lstsq, (a, b), {"out": out, "check_finite": check_finite})
        return result

    def cholesky(
        self, a: AnyArray, *, upper: bool = False, out: AnyArray | None = None, check_finite: bool = True
    ) -> DeviceArray:
        """Return the lower Cholesky factor of Hermitian positive definite matrices, as ``numpy.linalg.cholesky``.

        Only the lower triangle of `a`, of shape (..., n, n) and of dtype float32, float64, complex64 or complex128, is
        read; with `upper` only the upper one, and the factor is the upper one. `out` takes the result, whose other
        triangle is zero (``cusolverDnXpotrf``; for several matrices up to 256 x 256 ``cusolverDnSpotrfBatched``). With
        NaN in the triangle that is read, the factor's is NaN throughout, and nothing is raised: `check_finite` has it
        read once more beside the call, and without it the factor may be anything.

        Raises `NotPositiveDefiniteError` with the first minor that is not positive, `InvalidArgument` for other arrays.
        """
        result: DeviceArray = self._do(
            self._awaited.cholesky, (a,), {"upper": upper, "out": out, "check_finite": check_finite}
        )
        return result

    def qr(
        self,
        a: AnyArray,
        *,
        mode: Literal["reduced", "complete", "r"] = "reduced",
        out: tuple[AnyArray | None, AnyArray | None] | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray | None, DeviceArray]:
        """Factor matrices of shape (..., m, n) as ``q @ r``, as ``numpy.linalg.qr``.

        `a` is of dtype float32, float64, complex64 or complex128. With k = min(m, n), q is of shape (..., m, k) and r
        of shape (..., k, n); (..., m, m) and (..., m, n) if `mode` is "complete". For "r" q is None, and not computed.
        `out` takes both; without `out` the matrices lie column by column (``cusolverDnXgeqrf``, ``cusolverDnSorgqr``).
        Of a matrix with NaN, or of more than one row with an infinity, q and the upper triangle of r are NaN
        throughout: `check_finite` reads `a` once more beside the call.

        Raises `InvalidArgument` for another mode, and for other arrays.
        """
        result: tuple[DeviceArray | None, DeviceArray] = self._do(
            self._awaited.qr, (a,), {"mode": mode, "out": out, "check_finite": check_finite}
        )
        return result

    def eigh(
        self,
        a: AnyArray,
        *,
        lower: bool = True,
        out: tuple[AnyArray | None, AnyArray | None] | None = None,
        check_finite: bool = True,
    ) -> tuple[DeviceArray, DeviceArray]:
        """Return eigenvalues and eigenvectors of symmetric or Hermitian matrices, as ``numpy.linalg.eigh``.

        Only the lower triangle of `a`, of shape (..., n, n) and of dtype float32, float64, complex64 or complex128, is
        read, or without `lower` the upper one. The eigenvalues, of shape (..., n), are real and ascending; the vectors
        are columns, of the shape of `a`. `out` takes both (``cusolverDnXsyevd``). `check_finite` has the triangle read
        once more beside the call.

        Raises `ConvergenceError` when the iteration fails, `NotFiniteError`, which is one, for NaN and infinities in
        the triangle, `InvalidArgument` for other arrays.
        """
        result: tuple[DeviceArray, DeviceArray] = self._do(
            self._awaited.eigh, (a,), {"lower": lower, "out": out, "check_finite": check_finite}
        )
        return result

    def eigvalsh(
        self, a: AnyArray, *, lower: bool = True, out: AnyArray | None = None, check_finite: bool = True
    ) -> DeviceArray:
        """Return only the eigenvalues, as ``numpy.linalg.eigvalsh``.

        `a` is of shape (..., n, n) and of dtype float32, float64, complex64 or complex128; `lower`, `check_finite` and
        the eigenvalues, of shape (..., n), are as for `eigh`. `out` takes them (``cusolverDnXsyevd``).

        Raises `ConvergenceError` when the iteration fails, `NotFiniteError`, which is one, for NaN and infinities in
        the triangle, `InvalidArgument` for other arrays.
        """
        result: DeviceArray = self._do(
            self._awaited.eigvalsh, (a,), {"lower": lower, "out": out, "check_finite": check_finite}
        )
        return result

    def svd(
        self,
        a: AnyArray,
        *,
        full_matrices: bool = True,
        compute_uv: bool = True,
        out: tuple[AnyArray | None, AnyArray | None, AnyArray | None] | None = None,
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
        result: tuple[DeviceArray | None, DeviceArray, DeviceArray | None] = self._do(
            self._awaited.svd,
            (a,),
            {"full_matrices": full_matrices, "compute_uv": compute_uv, "out": out, "check_finite": check_finite},
        )
        return result

    def det(self, a: AnyArray, *, check_finite: bool = True) -> npt.NDArray[Any]:
        """Return the determinants of matrices of shape (..., n, n), as ``numpy.linalg.det``: a numpy array (...).

        `a` is of dtype float32, float64, complex64 or complex128, as the result is. It is computed on the host, from
        the diagonal of the LU factors (``cusolverDnXgetrf``; for several matrices up to 256 x 256
        ``cublasSgetrfBatched``); in a batch the numbers are valid at its end. A singular matrix has the determinant 0,
        and one with NaN has NaN: `check_finite` reads `a` once more beside the call, and without it the determinant may
        be finite.

        Raises `InvalidArgument` for other arrays.
        """
        result: npt.NDArray[Any] = self._do(self._awaited.det, (a,), {"check_finite": check_finite})
        return result

    def slogdet(self, a: AnyArray, *, check_finite: bool = True) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the sign and the logarithm of the absolute value of determinants, as ``numpy.linalg.slogdet``.

        For `a` of shape (..., n, n), of dtype float32, float64, complex64 or complex128, both are numpy arrays of shape
        (...), the logarithms real; see `det` (``cusolverDnXgetrf``). A singular matrix has the sign 0 and the logarithm
        minus infinity; with NaN in the matrix both are NaN. `check_finite` is as for `det`.

        Raises `InvalidArgument` for other arrays.
        """
        result: tuple[npt.NDArray[Any], npt.NDArray[Any]] = self._do(
            self._awaited.slogdet, (a,), {"check_finite": check_finite}
        )
        return result
