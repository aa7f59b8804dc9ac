"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    from typing import SupportsIndex

    from ..._calls.linear import Operation
    from .._types import AnyArray
    from .arrays import DeviceArray


class MatrixVectorVerbs(Verbs):
    """Verbs of `dev.blas`, in all forms."""

    __slots__ = ()

    def gemv(
        self,
        a: AnyArray,
        x: AnyArray,
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: AnyArray | None = None,
        op_a: Operation = "N",
    ) -> DeviceArray:
        """``alpha * op_a(a) @ x + beta * out``, the product of a matrix and a vector (``cublasSgemv``).

        `a` is of shape (m, n) after `op_a`, which is "N", "T" for transposed, or "C" for transposed and conjugated; `x`
        is of shape (n,), and `out` of shape (m,), a new array if it is not given. All are of one dtype, which is that
        of the scalars `alpha` and `beta` too. A `beta` of zero means that `out` is not read.

        Raises `InvalidArgument` for arrays and scalars that do not fit together, for a `beta` without `out`, and for an
        `out` that shares memory with an input.
        """
        result: DeviceArray = self._do(
            self._awaited.gemv, (a, x), {"alpha": alpha, "beta": beta, "out": out, "op_a": op_a}
        )
        return result

    def gbmv(
        self,
        ab: AnyArray,
        x: AnyArray,
        kl: SupportsIndex,
        ku: SupportsIndex,
        *,
        rows: SupportsIndex | None = None,
        alpha: complex = 1,
        beta: complex = 0,
        out: AnyArray | None = None,
        op_a: Operation = "N",
    ) -> DeviceArray:
        """``alpha * op_a(a) @ x + beta * out`` for a band matrix (``cublasSgbmv``).

        `ab` holds the diagonals of a matrix of any shape (m, n), as `scipy.linalg.solve_banded` takes them: it is of
        shape (kl + ku + 1, n), with ``a[i, j]`` in ``ab[ku + i - j, j]``; the numbers of diagonals below and above the
        main one are `kl` and `ku`, and the number m of `rows` is n by default. An array that lies row by row is copied
        first. `x`, `alpha`, `beta`, `out`, `op_a` and the dtype are those of `gemv`.

        Raises `InvalidArgument` for an invalid number and a band of another width, and as `gemv` does.
        """
        result: DeviceArray = self._do(
            self._awaited.gbmv, (ab, x, kl, ku), {"rows": rows, "alpha": alpha, "beta": beta, "out": out, "op_a": op_a}
        )
        return result

    def symv(
        self,
        a: AnyArray,
        x: AnyArray,
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: AnyArray | None = None,
        lower: bool = True,
        deterministic: bool = True,
    ) -> DeviceArray:
        """``alpha * a @ x + beta * out`` for a symmetric matrix (``cublasSsymv``).

        `a` is of shape (n, n); only its `lower` triangle is read, or else the upper one. `x` is of shape (n,), and so
        is `out`, a new array if it is not given. All are of one dtype, which is that of the scalars `alpha` and `beta`
        too. A `beta` of zero means that `out` is not read. Without `deterministic` it is faster, and the bits may
        differ from call to call (``cublasSetAtomicsMode``).

        Raises `InvalidArgument` for arrays and scalars that do not fit together, for a `beta` without `out`, and for an
        `out` that shares memory with an input.
        """
        result: DeviceArray = self._do(
            self._awaited.symv,
            (a, x),
            {"alpha": alpha, "beta": beta, "out": out, "lower": lower, "deterministic": deterministic},
        )
        return result

    def hemv(
        self,
        a: AnyArray,
        x: AnyArray,
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: AnyArray | None = None,
        lower: bool = True,
        deterministic: bool = True,
    ) -> DeviceArray:
        """``alpha * a @ x + beta * out`` for a Hermitian matrix (``cublasChemv``).

        `a`, `x`, `alpha`, `beta`, `out`, `lower`, `deterministic`, their shapes and the dtype are those of `symv`. For
        a real dtype it is the same. The imaginary parts of the diagonal of `a` are taken to be zero.

        Raises as `symv` does.
        """
        result: DeviceArray = self._do(
            self._awaited.hemv,
            (a, x),
            {"alpha": alpha, "beta": beta, "out": out, "lower": lower, "deterministic": deterministic},
        )
        return result

    def sbmv(
        self,
        ab: AnyArray,
        x: AnyArray,
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: AnyArray | None = None,
        lower: bool = True,
    ) -> DeviceArray:
        """``alpha * a @ x + beta * out`` for a symmetric band matrix of a real dtype (``cublasSsbmv``).

        `ab` holds the diagonals of one triangle, as `scipy.linalg.solveh_banded` takes them: it is of shape (k + 1, n),
        with ``a[i, j]`` of the `lower` triangle in ``ab[i - j, j]``, or else of the upper one in ``ab[k + i - j, j]``.
        An array that lies row by row is copied first. `x`, `alpha`, `beta` and `out` are those of `symv`, and the dtype
        is float32 or float64.

        Raises as `symv` does.
        """
        result: DeviceArray = self._do(
            self._awaited.sbmv, (ab, x), {"alpha": alpha, "beta": beta, "out": out, "lower": lower}
        )
        return result

    def hbmv(
        self,
        ab: AnyArray,
        x: AnyArray,
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: AnyArray | None = None,
        lower: bool = True,
    ) -> DeviceArray:
        """``alpha * a @ x + beta * out`` for a Hermitian band matrix (``cublasChbmv``).

        `ab`, `x`, `alpha`, `beta`, `out`, `lower` and their shapes are those of `sbmv`. For a real dtype it is the
        same; the dtype may be complex64 or complex128, too. The imaginary parts of the diagonal are taken to be zero.

        Raises as `symv` does.
        """
        result: DeviceArray = self._do(
            self._awaited.hbmv, (ab, x), {"alpha": alpha, "beta": beta, "out": out, "lower": lower}
        )
        return result

    def ger(self, x: AnyArray, y: AnyArray, a: AnyArray, alpha: complex = 1, *, conjugate: bool = False) -> DeviceArray:
        """Add ``alpha * outer(x, y)`` to `a` in its place, and return `a` (``cublasSger``, ``cublasCgeru``).

        `x` is of shape (m,), `y` of shape (n,) and `a` of shape (m, n), all of one dtype, which is that of the scalar
        `alpha` too. With `conjugate` the elements of `y` are conjugated (``cublasCgerc``).

        Raises `InvalidArgument` for arrays and scalars that do not fit together, and for an `a` that shares memory with
        an input or has no contiguous axis.
        """
        result: DeviceArray = self._do(self._awaited.ger, (x, y, a, alpha), {"conjugate": conjugate})
        return result

    def syr(self, x: AnyArray, a: AnyArray, alpha: complex = 1, *, lower: bool = True) -> DeviceArray:
        """Add ``alpha * outer(x, x)`` to one triangle of `a` in its place, and return `a` (``cublasSsyr``).

        `x` is of shape (n,) and `a` of shape (n, n), of one dtype, which is that of the scalar `alpha` too. It is the
        `lower` triangle, or else the upper one; the rest of `a` stays as it is.

        Raises `InvalidArgument` for arrays and scalars that do not fit together, and for an `a` that shares memory with
        an input or has no contiguous axis.
        """
        result: DeviceArray = self._do(self._awaited.syr, (x, a, alpha), {"lower": lower})
        return result

    def her(self, x: AnyArray, a: AnyArray, alpha: float = 1, *, lower: bool = True) -> DeviceArray:
        """Add ``alpha * outer(x, conj(x))`` to one triangle of `a` in its place, and return `a` (``cublasCher``).

        `x`, `a`, `lower`, their shapes and the dtype are those of `syr`. For a real dtype it is the same. The scalar
        `alpha` is a real number. The resulting diagonal is real.

        Raises as `syr` does.
        """
        result: DeviceArray = self._do(self._awaited.her, (x, a, alpha), {"lower": lower})
        return result

    def syr2(self, x: AnyArray, y: AnyArray, a: AnyArray, alpha: complex = 1, *, lower: bool = True) -> DeviceArray:
        """Add ``alpha * (outer(x, y) + outer(y, x))`` to one triangle of `a`, and return `a` (``cublasSsyr2``).

        `x` and `y` are of shape (n,); `a`, `alpha`, `lower` and the dtype are those of `syr`.

        Raises as `syr` does.
        """
        result: DeviceArray = self._do(self._awaited.syr2, (x, y, a, alpha), {"lower": lower})
        return result

    def her2(self, x: AnyArray, y: AnyArray, a: AnyArray, alpha: complex = 1, *, lower: bool = True) -> DeviceArray:
        """Add ``alpha * outer(x, conj(y))`` and its adjoint to one triangle of `a`, and return `a` (``cublasCher2``).

        `x`, `y`, `a`, `alpha`, `lower`, their shapes and the dtype are those of `syr2`. For a real dtype it is the
        same. The resulting diagonal is real.

        Raises as `syr` does.
        """
        result: DeviceArray = self._do(self._awaited.her2, (x, y, a, alpha), {"lower": lower})
        return result

    def trmv(
        self,
        a: AnyArray,
        x: AnyArray,
        *,
        lower: bool = True,
        op_a: Operation = "N",
        unit_diagonal: bool = False,
        out: AnyArray | None = None,
    ) -> DeviceArray:
        """``op_a(a) @ x``, the product of a triangular matrix and a vector (``cublasStrmv``).

        `a` is of shape (n, n); only its `lower` triangle is read, or else the upper one. With `unit_diagonal` its
        diagonal is not read, and taken to be ones. `op_a` is "N", "T" for transposed, or "C" for transposed and
        conjugated. `x` and `out` are of shape (n,); `out` may be `x` itself, and is a new array if it is not given. All
        are of one dtype.

        Raises `InvalidArgument` for arrays that do not fit together, and for an `out` that shares memory with an input
        and is not `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.trmv, (a, x), {"lower": lower, "op_a": op_a, "unit_diagonal": unit_diagonal, "out": out}
        )
        return result

    def trsv(
        self,
        a: AnyArray,
        x: AnyArray,
        *,
        lower: bool = True,
        op_a: Operation = "N",
        unit_diagonal: bool = False,
        out: AnyArray | None = None,
    ) -> DeviceArray:
        """The z of ``op_a(a) @ z == x`` for a triangular matrix (``cublasStrsv``).

        `a`, `x`, `lower`, `op_a`, `unit_diagonal`, `out`, their shapes and the dtype are those of `trmv`. Zeros on the
        diagonal raise no error: there the result is infinite, or not a number.

        Raises as `trmv` does.
        """
        result: DeviceArray = self._do(
            self._awaited.trsv, (a, x), {"lower": lower, "op_a": op_a, "unit_diagonal": unit_diagonal, "out": out}
        )
        return result
