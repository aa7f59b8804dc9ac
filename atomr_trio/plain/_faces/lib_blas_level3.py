"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    from ..._calls.linear import Operation
    from ...libraries.blas.types import MathMode
    from .._types import AnyArray
    from .arrays import DeviceArray


class MatrixVerbs(Verbs):
    """Verbs of `dev.blas`, in all forms."""

    __slots__ = ()

    def symm(
        self,
        a: AnyArray,
        b: AnyArray,
        *,
        left: bool = True,
        lower: bool = True,
        alpha: complex = 1,
        beta: complex = 0,
        out: AnyArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``alpha * a @ b + beta * out`` for a symmetric `a`, or ``b @ a`` if it is not `left` (``cublasSsymm``).

        `a` is of shape (m, m), or (n, n) on the right; only its `lower` triangle is read, or else the upper one. `b`
        and `out` are of shape (m, n), `out` a new array if it is not given. All are of one dtype, float32, float64,
        complex64 or complex128; `alpha` and `beta` are numbers of it. A `b` in another order than `out` is copied.

        `compute` selects the arithmetic: with "tf32" the tensor cores multiply float32 and complex64 numbers rounded to
        10 bits of mantissa; "pedantic" disables all such optimisations (``cublasSetMathMode``).

        Raises `InvalidArgument` for shapes or dtypes that do not fit together, for an `out` that shares memory with an
        input, and for a `compute` that the dtype does not support.
        """
        result: DeviceArray = self._do(
            self._awaited.symm,
            (a, b),
            {"left": left, "lower": lower, "alpha": alpha, "beta": beta, "out": out, "compute": compute},
        )
        return result

    def hemm(
        self,
        a: AnyArray,
        b: AnyArray,
        *,
        left: bool = True,
        lower: bool = True,
        alpha: complex = 1,
        beta: complex = 0,
        out: AnyArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``alpha * a @ b + beta * out`` for a Hermitian `a`, or ``b @ a`` if it is not `left` (``cublasChemm``).

        `a`, `b`, `left`, `lower`, `alpha`, `beta`, `out` and `compute` are those of `symm`, of the same shapes, and of
        dtype complex64 or complex128. The imaginary parts of the diagonal of `a` are taken to be zero. An `a` or `b`
        whose order is not that of `out` is copied.

        Raises as `symm` does.
        """
        result: DeviceArray = self._do(
            self._awaited.hemm,
            (a, b),
            {"left": left, "lower": lower, "alpha": alpha, "beta": beta, "out": out, "compute": compute},
        )
        return result

    def syrk(
        self,
        a: AnyArray,
        *,
        lower: bool = True,
        op: Operation = "N",
        alpha: complex = 1,
        beta: complex = 0,
        out: AnyArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``alpha * op(a) @ op(a).T + beta * out``, a symmetric matrix, one triangle of it (``cublasSsyrk``).

        `op` is "N", for `a` of shape (n, k), or "T", for (k, n). `out` is of shape (n, n). Only its `lower` triangle is
        read and written, or else the upper one; a new array, if `out` is not given, has zeros in the other one. All are
        of one dtype, float32, float64, complex64 or complex128; `alpha` and `beta` are numbers of it. `compute` is that
        of `symm`.

        Raises `InvalidArgument` for shapes or dtypes that do not fit together, for another `op`, for an `out` that
        shares memory with an input, and for a `compute` that the dtype does not support.
        """
        result: DeviceArray = self._do(
            self._awaited.syrk,
            (a,),
            {"lower": lower, "op": op, "alpha": alpha, "beta": beta, "out": out, "compute": compute},
        )
        return result

    def herk(
        self,
        a: AnyArray,
        *,
        lower: bool = True,
        op: Operation = "N",
        alpha: float = 1,
        beta: float = 0,
        out: AnyArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``alpha * op(a) @ op(a).conj().T + beta * out``, a Hermitian matrix, one triangle of it (``cublasCherk``).

        `op` is "N", for `a` of shape (n, k), or "C", for (k, n). `lower`, `out` and `compute` are those of `syrk`, of
        dtype complex64 or complex128; `alpha` and `beta` are real numbers. The diagonal of the result is real. An `a`
        whose order is not that of `out` is copied.

        Raises as `syrk` does.
        """
        result: DeviceArray = self._do(
            self._awaited.herk,
            (a,),
            {"lower": lower, "op": op, "alpha": alpha, "beta": beta, "out": out, "compute": compute},
        )
        return result

    def syr2k(
        self,
        a: AnyArray,
        b: AnyArray,
        *,
        lower: bool = True,
        op: Operation = "N",
        alpha: complex = 1,
        beta: complex = 0,
        out: AnyArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``alpha * (op(a) @ op(b).T + op(b) @ op(a).T) + beta * out``, one triangle of it (``cublasSsyr2k``).

        `a` and `b` are of one shape, and lie in one order: otherwise `b` is copied. `lower`, `op`, `alpha`, `beta`,
        `out`, `compute` and the dtype are those of `syrk`.

        Raises as `syrk` does.
        """
        result: DeviceArray = self._do(
            self._awaited.syr2k,
            (a, b),
            {"lower": lower, "op": op, "alpha": alpha, "beta": beta, "out": out, "compute": compute},
        )
        return result

    def her2k(
        self,
        a: AnyArray,
        b: AnyArray,
        *,
        lower: bool = True,
        op: Operation = "N",
        alpha: complex = 1,
        beta: float = 0,
        out: AnyArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``h + h.conj().T + beta * out``, h being ``alpha * op(a) @ op(b).conj().T``, one triangle (``cublasCher2k``).

        `a` and `b` are of one shape; `lower`, `op`, `beta`, `out`, `compute` and the dtype are those of `herk`; `alpha`
        may be complex. The diagonal of the result is real. An `a` or `b` whose order is not that of `out` is copied.

        Raises as `syrk` does.
        """
        result: DeviceArray = self._do(
            self._awaited.her2k,
            (a, b),
            {"lower": lower, "op": op, "alpha": alpha, "beta": beta, "out": out, "compute": compute},
        )
        return result

    def geam(
        self,
        a: AnyArray,
        b: AnyArray | None = None,
        *,
        alpha: complex = 1,
        beta: complex = 1,
        op_a: Operation = "N",
        op_b: Operation = "N",
        out: AnyArray | None = None,
    ) -> DeviceArray:
        """``alpha * op_a(a) + beta * op_b(b)``, or without `b` only the first term (``cublasSgeam``).

        `a`, `b` and `out` are of shape (m, n) after `op_a` and `op_b`, which are "N", "T" for transposed, or "C" for
        transposed and conjugated; of one dtype, float32, float64, complex64 or complex128. `alpha` and `beta` are
        numbers of it. `out` may be `a` or `b` itself if its operation is "N", and is a new array if it is not given.
        Complex arrays that would have to be conjugated without being transposed are copied first.

        Raises `InvalidArgument` for shapes or dtypes that do not fit together, and for an `out` that shares memory with
        an input that it is not.
        """
        result: DeviceArray = self._do(
            self._awaited.geam, (a, b), {"alpha": alpha, "beta": beta, "op_a": op_a, "op_b": op_b, "out": out}
        )
        return result

    def dgmm(self, a: AnyArray, x: AnyArray, *, left: bool = False, out: AnyArray | None = None) -> DeviceArray:
        """``a * x``, each column times a number, or on the `left` ``x[:, None] * a``, each row (``cublasSdgmm``).

        `a` and `out` are of shape (m, n), `x` of shape (n,), or (m,) on the `left`; all of one dtype, float32, float64,
        complex64 or complex128. `out` may be `a` itself, and is a new array if it is not given. An `a` whose order is
        not that of `out` is copied.

        Raises `InvalidArgument` for shapes or dtypes that do not fit together, and for an `out` that shares memory with
        an input and is not `a`.
        """
        result: DeviceArray = self._do(self._awaited.dgmm, (a, x), {"left": left, "out": out})
        return result
