"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ..._calls.linear import Operation
    from ...libraries.blas.types import Compute
    from .._types import AnyArray
    from .arrays import DeviceArray


class ProductVerbs(Verbs):
    """Verbs of `dev.blas`, in all forms."""

    __slots__ = ()

    def gemm(
        self,
        a: AnyArray,
        b: AnyArray,
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: AnyArray | None = None,
        op_a: Operation = "N",
        op_b: Operation = "N",
        dtype: npt.DTypeLike | None = None,
        compute: Compute | None = None,
    ) -> DeviceArray:
        """``alpha * op_a(a) @ op_b(b) + beta * out``, the product of two matrices (``cublasGemmEx``).

        `a` and `b` are of shape (m, k) and (k, n) after `op_a` and `op_b`, which are "N", "T" for transposed, or "C"
        for transposed and conjugated; of one dtype, float32, float64, complex64, complex128, float16, bfloat16 or int8.
        `out` is of shape (m, n), and a new array of `dtype` if it is not given: by default the dtype of the inputs, and
        int32 for int8; sums of float16 and bfloat16 are computed, and may be kept, in float32. `alpha` and `beta` are
        of the dtype of the sums. `compute` selects the arithmetic: "tf32" and the fast ones round the inputs first,
        "pedantic" disables all such optimisations, "emulated" uses the tensor cores for all digits (CUDA 13).

        Further axes in front make stacks of matrices, which are broadcast as `numpy.matmul` does; that is one call
        (``cublasGemmStridedBatchedEx``, or ``cublasGemmBatchedEx`` where the matrices are not equally far apart).

        Arrays may have any strides. Arrays that cuBLAS does not take are copied first; so are complex arrays that would
        have to be conjugated without being transposed, and int8 arrays whose sizes or leading dimensions are not
        multiples of 4.

        Raises `InvalidArgument` for shapes, dtypes or an `out` that do not fit together, for an `out` that shares
        memory with an input, and for a `compute` that the dtypes do not support.
        """
        result: DeviceArray = self._do(
            self._awaited.gemm,
            (a, b),
            {"alpha": alpha, "beta": beta, "out": out, "op_a": op_a, "op_b": op_b, "dtype": dtype, "compute": compute},
        )
        return result

    def gemm_batched(
        self,
        a: Sequence[AnyArray],
        b: Sequence[AnyArray],
        *,
        alpha: complex = 1,
        beta: complex = 0,
        out: Sequence[AnyArray] | None = None,
        op_a: Operation = "N",
        op_b: Operation = "N",
        dtype: npt.DTypeLike | None = None,
        compute: Compute | None = None,
    ) -> list[DeviceArray]:
        """Return the products of the matrices of two lists of one length, in one call (``cublasGemmBatchedEx``).

        All of `a` are of one shape, and so are all of `b`; dtypes, `alpha`, `beta`, `op_a`, `op_b`, `dtype` and
        `compute` are those of `gemm`, for all products alike. `out` is a list of as many arrays, which have the same
        strides; without it the results are the parts of one new array. Inputs that lie differently are copied first.

        Raises `InvalidArgument` as `gemm` does, for lists of different lengths, and for arrays of different shapes or
        dtypes in a list.
        """
        result: list[DeviceArray] = self._do(
            self._awaited.gemm_batched,
            (a, b),
            {"alpha": alpha, "beta": beta, "out": out, "op_a": op_a, "op_b": op_b, "dtype": dtype, "compute": compute},
        )
        return result
