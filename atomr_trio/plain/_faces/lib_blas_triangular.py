"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..._calls.linear import Operation
    from ...libraries.blas.types import MathMode
    from .._types import AnyArray
    from .arrays import DeviceArray


class TriangularVerbs(Verbs):
    """Verbs of `dev.blas`, in all forms."""

    __slots__ = ()

    def trmm(
        self,
        a: AnyArray,
        b: AnyArray,
        *,
        left: bool = True,
        lower: bool = True,
        op_a: Operation = "N",
        unit_diagonal: bool = False,
        alpha: complex = 1,
        out: AnyArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """``alpha * op_a(a) @ b`` for a triangular `a`, or ``b @ op_a(a)`` if it is not `left` (``cublasStrmm``).

        `a` is of shape (m, m), or (n, n) on the right; only its `lower` triangle is read, or else the upper one. With
        `unit_diagonal` its diagonal is not read, and taken to be ones. `op_a` is "N", "T" for transposed, or "C" for
        transposed and conjugated. `b` and `out` are of shape (m, n); `out` may be `b` itself, and is a new array if it
        is not given. All are of one dtype, float32, float64, complex64 or complex128; `alpha` is a number of it. A `b`
        whose order is not that of `out` is copied, and so is a complex `a` that would have to be conjugated without
        being transposed.

        `compute` selects the arithmetic: with "tf32" the tensor cores multiply float32 and complex64 numbers rounded to
        10 bits of mantissa; "pedantic" disables all such optimisations (``cublasSetMathMode``).

        Raises `InvalidArgument` for shapes or dtypes that do not fit together, for an `out` that shares memory with an
        input and is not `b`, and for a `compute` that the dtype does not support.
        """
        result: DeviceArray = self._do(
            self._awaited.trmm,
            (a, b),
            {
                "left": left,
                "lower": lower,
                "op_a": op_a,
                "unit_diagonal": unit_diagonal,
                "alpha": alpha,
                "out": out,
                "compute": compute,
            },
        )
        return result

    def trsm(
        self,
        a: AnyArray,
        b: AnyArray,
        *,
        left: bool = True,
        lower: bool = True,
        op_a: Operation = "N",
        unit_diagonal: bool = False,
        alpha: complex = 1,
        out: AnyArray | None = None,
        compute: MathMode | None = None,
    ) -> DeviceArray:
        """Return the x of ``op_a(a) @ x == alpha * b``, or of ``x @ op_a(a) == alpha * b`` (``cublasStrsm``).

        `a`, `b`, `left`, `lower`, `op_a`, `unit_diagonal`, `alpha`, `out`, `compute` and the dtype are those of `trmm`.
        An array of a shape with more axes is a stack of matrices, which are broadcast as numpy does, and solved in one
        call (``cublasStrsmBatched``). Zeros on the diagonal raise no error: there the result is infinite, or not a
        number. If `out` is not `b`, `b` is copied to it first.

        Raises as `trmm` does, and `InvalidArgument` for stacks that do not fit together.
        """
        result: DeviceArray = self._do(
            self._awaited.trsm,
            (a, b),
            {
                "left": left,
                "lower": lower,
                "op_a": op_a,
                "unit_diagonal": unit_diagonal,
                "alpha": alpha,
                "out": out,
                "compute": compute,
            },
        )
        return result

    def trsm_batched(
        self,
        a: Sequence[AnyArray],
        b: Sequence[AnyArray],
        *,
        left: bool = True,
        lower: bool = True,
        op_a: Operation = "N",
        unit_diagonal: bool = False,
        alpha: complex = 1,
        out: Sequence[AnyArray] | None = None,
        compute: MathMode | None = None,
    ) -> list[DeviceArray]:
        """Return the solutions of `trsm` for two lists of matrices of one length, in one call (``cublasStrsmBatched``).

        All of `a` are of one shape, and so are all of `b`; the dtype, `left`, `lower`, `op_a`, `unit_diagonal`, `alpha`
        and `compute` are those of `trsm`, for all alike. `out` is a list of as many arrays, which have the same
        strides, and may be those of `b`; without it the results are the parts of one new array. Those of `a` are copied
        if they lie differently.

        Raises `InvalidArgument` as `trsm` does, for lists of different lengths, and for arrays of different shapes or
        dtypes in a list.
        """
        result: list[DeviceArray] = self._do(
            self._awaited.trsm_batched,
            (a, b),
            {
                "left": left,
                "lower": lower,
                "op_a": op_a,
                "unit_diagonal": unit_diagonal,
                "alpha": alpha,
                "out": out,
                "compute": compute,
            },
        )
        return result
