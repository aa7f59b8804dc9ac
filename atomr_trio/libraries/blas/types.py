"""The element types of cuBLAS, and the combinations that a product of matrices supports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import attrs
import numpy as np

from atomr_cuda.constants.cublas import CUBLAS_GEMM_DEFAULT

from ..._arrays.arrays import DeviceArray
from ..._calls.library_types import name_of
from ..._calls.linear import Vector
from ..._values.errors import InvalidArgument
from ..._values.util import shown
from .records import flags

REAL_LETTERS: Final[Mapping[str, str]] = MappingProxyType({"S": "S", "D": "D", "C": "Sc", "Z": "Dz"})
"""The same for functions whose result is real."""

Compute = Literal["pedantic", "tf32", "fast_float16", "fast_bfloat16", "emulated"]
"""The arithmetic of a product, if it is not the default of its types."""

MathMode = Literal["pedantic", "tf32"]
"""The same for the verbs of level 3 whose functions follow the mode of the handle."""


@attrs.frozen
class Product:
    """The arithmetic of `gemm` for one combination of input and output types."""

    scalar: str
    """The dtype of alpha and beta."""
    compute: Mapping[str | None, int]
    """``cublasComputeType_t`` by the caller's `compute`."""


_HALF: Final = MappingProxyType({None: 68, "pedantic": 69})
PRODUCTS: Final[Mapping[tuple[str, str], Product]] = MappingProxyType(
    {
        ("float32", "float32"): Product(
            "float32",
            {None: 68, "pedantic": 69, "fast_float16": 74, "fast_bfloat16": 75, "tf32": 77, "emulated": 78},
        ),
        ("float64", "float64"): Product("float64", {None: 70, "pedantic": 71, "emulated": 79}),
        ("complex64", "complex64"): Product("complex64", {None: 68, "pedantic": 69, "tf32": 77}),
        ("complex128", "complex128"): Product("complex128", {None: 70, "pedantic": 71}),
        ("float16", "float16"): Product("float32", _HALF),
        ("float16", "float32"): Product("float32", _HALF),
        ("bfloat16", "bfloat16"): Product("float32", _HALF),
        ("bfloat16", "float32"): Product("float32", _HALF),
        ("int8", "int32"): Product("int32", {None: 72, "pedantic": 73}),
        ("int8", "float32"): Product("float32", _HALF),
    }
)
"""The products by the dtypes of the inputs and of the output; the table of ``cublasGemmEx``."""

_SINGLE: Final = (None, "pedantic", "tf32")
_DOUBLE: Final = (None, "pedantic")
_MATH_MODES: Final[Mapping[str, tuple[str | None, ...]]] = MappingProxyType(
    {"float32": _SINGLE, "float64": _DOUBLE, "complex64": _SINGLE, "complex128": _DOUBLE}
)
"""The modes of ``cublasSetMathMode`` by the dtype."""

OUTPUTS: Final[Mapping[str, str]] = MappingProxyType({"int8": "int32"})
"""The dtype of a new output, where it is not that of the inputs."""

DEFAULT_ALGORITHM: Final = CUBLAS_GEMM_DEFAULT
"""There has been no other choice since the Ampere generation."""


def check_lengths(first: Vector, second: Vector) -> None:
    if first.length != second.length:
        raise InvalidArgument(f"x has {first.length} elements and y has {second.length}")


def product_of(left: DeviceArray, right: DeviceArray, output: DeviceArray, compute: str | None) -> tuple[Product, int]:
    if left.dtype != right.dtype:
        raise InvalidArgument(f"a has dtype {left.dtype.name} and b has {right.dtype.name}: convert one of them")
    product = PRODUCTS.get((name_of(left.dtype), name_of(output.dtype)))
    if product is None:
        known = ", ".join(f"{first} to {second}" for first, second in PRODUCTS)
        raise InvalidArgument(f"a product of {left.dtype.name} to {output.dtype.name} is not supported; use {known}")
    _check_compute(compute, product.compute, left.dtype)
    return product, product.compute[compute]


def math_flags(compute: MathMode | None, dtype: np.dtype[Any]) -> int:
    """Return the flags of a call with that arithmetic. Raises `InvalidArgument` if the dtype does not support it."""
    _check_compute(compute, _MATH_MODES[dtype.name], dtype)
    return flags(math=compute or "default")


def _check_compute(compute: object, known: Collection[str | None], dtype: np.dtype[Any]) -> None:
    if not isinstance(compute, str | None) or compute not in known:
        names = ", ".join(f'"{each}"' for each in known if each is not None)
        raise InvalidArgument(f"compute={shown(compute)}: products of {dtype.name} support {names}, or None")
