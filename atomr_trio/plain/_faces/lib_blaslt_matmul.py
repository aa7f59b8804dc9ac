"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..._calls.linear import Operation
    from ...libraries.blaslt.types import Compute, Epilogue
    from .._types import AnyArray
    from .arrays import DeviceArray


class MatmulVerbs(Verbs):
    """Verbs of `dev.blaslt`, in all forms."""

    __slots__ = ()

    def matmul(
        self,
        a: AnyArray,
        b: AnyArray,
        *,
        c: AnyArray | None = None,
        out: AnyArray | None = None,
        alpha: complex = 1,
        beta: complex = 0,
        op_a: Operation = "N",
        op_b: Operation = "N",
        dtype: npt.DTypeLike | None = None,
        compute: Compute | None = None,
        epilogue: Epilogue | None = None,
        bias: AnyArray | None = None,
        aux: AnyArray | None = None,
        bias_gradient: AnyArray | None = None,
        scale_a: AnyArray | None = None,
        scale_b: AnyArray | None = None,
        scale_c: AnyArray | None = None,
        scale_out: AnyArray | None = None,
        amax: AnyArray | None = None,
    ) -> DeviceArray:
        """``epilogue(alpha * op_a(a) @ op_b(b) + beta * c)``, a product of matrices or of stacks (``cublasLtMatmul``).

        `a` and `b` are of shape (..., m, k) and (..., k, n) after `op_a` and `op_b`, which are "N", "T" for transposed,
        or "C" for transposed and conjugated; their leading axes broadcast as those of ``numpy.matmul`` do. `out` is of
        shape (..., m, n), and a new array of `dtype` if it is not given: by default the dtype of the inputs, int32 for
        int8, bfloat16 for float8. `c` is of the same shape, and is `out` itself if it is not given; it is not read if
        `beta` is 0. `alpha` and `beta` are numbers of the dtype of the sums.

        Supported dtypes are: both inputs float32, float64, complex64 or complex128, and the output the same; float16
        and bfloat16, with the same output or float32; int8, with the output int32, int8 or float32; float8_e4m3fn and
        float8_e5m2, at most one input the latter, with the output float32, bfloat16, float16, or 8 bits where `c` has
        16. Inputs of 8 bits must be contiguous along the axis that is summed, `b` for example as the transpose of an
        array of shape (n, k). Addresses, distances between rows, k, and n (m for an `out` that lies column by column)
        must be multiples of 16 bytes with float8, and of 4 elements with int8 to int32 or int8. For other dtypes arrays
        may have any strides; those that the library does not take are copied first. `compute` selects the arithmetic:
        "tf32" and the fast ones round the inputs first, "pedantic" disables all such optimisations, "emulated" uses the
        tensor cores for all digits (CUDA 13), "float16" computes sums of float16 in float16.

        `epilogue` is made of these parts; x is the product with the added terms:

        - "bias": `bias`, of shape (n,) or (..., 1, n), is added to each row.
        - "relu": ``max(x, 0)``; "gelu": ``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``.
        - "aux": `aux` is written for the gradient. For "gelu" it is x, of the shape and dtype of `out`, its rows
          multiples of 8 elements apart. For "relu" it says where x is positive, a bit for each element, the lowest bit
          of a byte first: uint8 or int8 of shape (..., m, 16 * ceil(n / 128)).
        - "drelu", "dgelu": x times the derivative of the function, at the `aux` of the forward product.
        - "bgrad": the sums of the columns of `out` are written to `bias_gradient`, of shape (..., n).
        - "bgrada", "bgradb": the sums of `a` or `b` along the axis that is summed are written to `bias_gradient`, of
          shape (..., m) or (..., n). An `a` that lies row by row is copied for that, and so is a `b` that does not.

        With a bias, an `aux` or "bgrad", `out` must lie row by row: otherwise the library would apply them along the
        other axis. A bias has the dtype of the output; for float8 it has that of `c`, or bfloat16 if that is float32.
        Integers and complex numbers have no epilogues.

        `scale_a`, `scale_b`, `scale_c` and `scale_out` are float32 arrays without axes on the device, with which
        elements of 8 bits are multiplied as they are read, and results as they are stored; `amax` is one to which the
        largest absolute value of a result of 8 bits is written, before it is scaled.

        Raises `InvalidArgument` for shapes, dtypes, strides or alignments that do not fit together, for an epilogue
        without its arrays or arrays without their epilogue, and for outputs that share memory with anything else but
        `c` with `out`; `CommandFailed` with the status 15, "not supported", if the library has no algorithm for the
        combination on this GPU.
        """
        result: DeviceArray = self._do(
            self._awaited.matmul,
            (a, b),
            {
                "c": c,
                "out": out,
                "alpha": alpha,
                "beta": beta,
                "op_a": op_a,
                "op_b": op_b,
                "dtype": dtype,
                "compute": compute,
                "epilogue": epilogue,
                "bias": bias,
                "aux": aux,
                "bias_gradient": bias_gradient,
                "scale_a": scale_a,
                "scale_b": scale_b,
                "scale_c": scale_c,
                "scale_out": scale_out,
                "amax": amax,
            },
        )
        return result
