"""What cuBLAS computes with: its element types, and the combinations that a product of matrices has."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

import attrs

from ..._arrays import DeviceArray
from ..._errors import InvalidArgument
from ..._library_types import name_of
from ..._matrices import Vector
from ..._util import shown

REAL_LETTERS: Final[Mapping[str, str]] = MappingProxyType({"S": "S", "D": "D", "C": "Sc", "Z": "Dz"})
"""The same for functions whose result is real."""

Compute = Literal["pedantic", "tf32", "fast_float16", "fast_bfloat16", "emulated"]
"""How a product is computed, where that is not what the types say by themselves."""


@attrs.frozen
class Product:
    """What `gemm` does for one type of inputs and outputs."""

    scalar: str
    """The dtype of alpha and beta."""
    compute: Mapping[str | None, int]
    """``cublasComputeType_t`` by what the caller asks for."""


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
"""By the dtypes of the inputs and of the output; the table of ``cublasGemmEx``."""

OUTPUTS: Final[Mapping[str, str]] = MappingProxyType({"int8": "int32"})
"""The dtype of a new output, where it is not that of the inputs."""

DEFAULT_ALGORITHM: Final = -1
"""``CUBLAS_GEMM_DEFAULT``: there has been no other choice since the Ampere generation."""


def check_lengths(first: Vector, second: Vector) -> None:
    if first.length != second.length:
        raise InvalidArgument(f"x has {first.length} elements and y has {second.length}")


def product_of(left: DeviceArray, right: DeviceArray, output: DeviceArray, compute: str | None) -> tuple[Product, int]:
    if left.dtype != right.dtype:
        raise InvalidArgument(f"a has dtype {left.dtype.name} and b {right.dtype.name}")
    product = PRODUCTS.get((name_of(left.dtype), name_of(output.dtype)))
    if product is None:
        known = ", ".join(f"{first} to {second}" for first, second in PRODUCTS)
        raise InvalidArgument(f"there is no product of {left.dtype.name} to {output.dtype.name}; there are: {known}")
    if compute not in product.compute:
        known = ", ".join(f'"{each}"' for each in product.compute if each is not None)
        raise InvalidArgument(f"compute={shown(compute)}: products of {left.dtype.name} have {known}, or None")
    return product, product.compute[compute]
