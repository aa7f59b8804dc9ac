"""The combinations of dtypes and the epilogues of cuBLASLt.

The tables of ``cublasLtMatmul`` in NVIDIA's documentation, as data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Literal

import attrs

from atomr_cuda.constants import cublas, cublaslt as lt

from ..._values.errors import InvalidArgument
from ..._values.util import named, shown
from ..blas import types as blas

Compute = Literal["pedantic", "tf32", "fast_float16", "fast_bfloat16", "emulated", "float16"]
"""The arithmetic of a product, if it is not the default of its dtypes."""

Epilogue = Literal[
    "relu",
    "gelu",
    "bias",
    "relu_bias",
    "gelu_bias",
    "relu_aux",
    "gelu_aux",
    "relu_aux_bias",
    "gelu_aux_bias",
    "drelu",
    "dgelu",
    "drelu_bgrad",
    "dgelu_bgrad",
    "bgrada",
    "bgradb",
]
"""The operation on a product before it is stored."""

FLOAT8: Final = ("float8_e4m3fn", "float8_e5m2")

OUTPUTS: Final[Mapping[str, str]] = MappingProxyType({**blas.OUTPUTS, **dict.fromkeys(FLOAT8, "bfloat16")})
"""The dtype of a new output, where it is not that of the inputs."""

TRANSFORM_SCALES: Final[Mapping[str, str]] = MappingProxyType(
    {"float16": "float32", "bfloat16": "float32", "int8": "int32"}
)
"""The dtype of the factor when matrices are copied to another layout, where it is not that of the matrices."""


# --- dtypes -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Product:
    """The arithmetic for one combination of dtypes."""

    computes: Mapping[str | None, tuple[int, str]]
    """``cublasComputeType_t``, and the dtype of alpha and beta, by the caller's `compute`."""
    bias: str | None
    """The dtype of a bias and of its gradient; None if there are no epilogues."""
    granule: int = 1
    """The multiple that addresses, distances and contiguous axes must be.

    It is more than 1 for elements of 8 bits. Their kernels need both inputs contiguous along the axis that is
    summed."""
    granule_in_bytes: bool = False
    """True if the multiple is in bytes, not in elements."""


def _computes(scale: str, **numbers: int) -> dict[str | None, tuple[int, str]]:
    """Return the table of `computes`. The first of the numbers is the default."""
    first, *_ = numbers.values()
    return {None: (first, scale), **{name: (number, scale) for name, number in list(numbers.items())[1:]}}


def _single(scale: str) -> dict[str | None, tuple[int, str]]:
    return _computes(scale, default=cublas.CUBLAS_COMPUTE_32F, pedantic=cublas.CUBLAS_COMPUTE_32F_PEDANTIC)


def _fast(scale: str) -> dict[str | None, tuple[int, str]]:
    return _computes(
        scale,
        default=cublas.CUBLAS_COMPUTE_32F,
        pedantic=cublas.CUBLAS_COMPUTE_32F_PEDANTIC,
        fast_float16=cublas.CUBLAS_COMPUTE_32F_FAST_16F,
        fast_bfloat16=cublas.CUBLAS_COMPUTE_32F_FAST_16BF,
        tf32=cublas.CUBLAS_COMPUTE_32F_FAST_TF32,
        emulated=cublas.CUBLAS_COMPUTE_32F_EMULATED_16BFX9,
    )


def _double(scale: str) -> dict[str | None, tuple[int, str]]:
    return _computes(
        scale,
        default=cublas.CUBLAS_COMPUTE_64F,
        pedantic=cublas.CUBLAS_COMPUTE_64F_PEDANTIC,
        emulated=cublas.CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT,
    )


def _integer(scale: str) -> dict[str | None, tuple[int, str]]:
    return _computes(scale, default=cublas.CUBLAS_COMPUTE_32I, pedantic=cublas.CUBLAS_COMPUTE_32I_PEDANTIC)


_HALF: Final = {**_single("float32"), "float16": (cublas.CUBLAS_COMPUTE_16F, "float16")}

_Row = tuple[str, str, Product]
_REGULAR: Final[tuple[_Row, ...]] = (
    ("float16", "float16", Product(_HALF, "float16")),
    ("float16", "float32", Product(_single("float32"), "float32")),
    ("bfloat16", "bfloat16", Product(_single("float32"), "bfloat16")),
    ("bfloat16", "float32", Product(_single("float32"), "float32")),
    ("float32", "float32", Product(_fast("float32"), "float32")),
    ("float64", "float64", Product(_double("float64"), "float64")),
    ("complex64", "complex64", Product(_fast("complex64"), None)),
    ("complex128", "complex128", Product(_double("complex128"), None)),
    ("int8", "int32", Product(_integer("int32"), None, granule=4)),
    ("int8", "int8", Product(_integer("float32"), None, granule=4)),
    ("int8", "float32", Product(_single("float32"), None)),
)
"""The dtypes of both inputs, and of what is added and the output."""

_NARROW: Final = (
    ("float8_e4m3fn", "float8_e4m3fn", ("float8_e4m3fn",)),
    ("float8_e4m3fn", "float8_e5m2", FLOAT8),
    ("float8_e5m2", "float8_e4m3fn", FLOAT8),
)
"""Inputs of 8 bits, and the outputs of 8 bits that they support."""

Dtypes = tuple[str, str, str, str]


def _products() -> Iterator[tuple[Dtypes, Product]]:
    for inputs, output, product in _REGULAR:
        yield (inputs, inputs, output, output), product
    for a, b, outputs in _NARROW:
        for bias, addend in (("bfloat16", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16")):
            product = Product(
                _computes("float32", default=cublas.CUBLAS_COMPUTE_32F), bias, granule=16, granule_in_bytes=True
            )
            yield (a, b, addend, addend), product
            if addend != "float32":
                yield from (((a, b, addend, output), product) for output in outputs)


PRODUCTS: Final[Mapping[Dtypes, Product]] = MappingProxyType(dict(_products()))
"""The products by the dtypes of `a`, `b`, the added matrix and the output."""


def product_of(dtypes: Dtypes) -> Product:
    """Return the product for these dtypes. Raises `InvalidArgument` if there is none."""
    product = PRODUCTS.get(dtypes)
    if product is None:
        a, b, addend, output = dtypes
        known = (f"{third} to {fourth}" for first, second, third, fourth in PRODUCTS if (first, second) == (a, b))
        listed = ", ".join(known) or "nothing at all"
        raise InvalidArgument(
            f"a product of {a} and {b} plus {addend} to {output} is not supported; these inputs support {listed}"
        )
    return product


def compute_of(product: Product, dtypes: Dtypes, compute: object) -> tuple[int, str]:
    """Return ``cublasComputeType_t`` and the dtype of alpha and beta. Raises `InvalidArgument` if not supported."""
    found = named(product.computes, compute)
    if found is None:
        known = [f'"{each}"' for each in product.computes if each is not None]
        raise InvalidArgument(
            f"compute={shown(compute)}: products of {dtypes[0]} to {dtypes[3]} support {', '.join([*known, 'None'])}"
        )
    return found


# --- epilogues --------------------------------------------------------------------------------------------------------

RELU, BIAS, DRELU, BGRAD, DGELU, AUX, BGRADA, BGRADB = 2, 4, 8, 16, 64, 128, 256, 512
"""The bits of ``cublasLtEpilogue_t``."""
NOTHING: Final = lt.CUBLASLT_EPILOGUE_DEFAULT

EPILOGUES: Final[Mapping[str | None, int]] = MappingProxyType(
    {
        None: NOTHING,
        "relu": lt.CUBLASLT_EPILOGUE_RELU,
        "gelu": lt.CUBLASLT_EPILOGUE_GELU,
        "bias": lt.CUBLASLT_EPILOGUE_BIAS,
        "relu_bias": lt.CUBLASLT_EPILOGUE_RELU_BIAS,
        "gelu_bias": lt.CUBLASLT_EPILOGUE_GELU_BIAS,
        "relu_aux": lt.CUBLASLT_EPILOGUE_RELU_AUX,
        "gelu_aux": lt.CUBLASLT_EPILOGUE_GELU_AUX,
        "relu_aux_bias": lt.CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
        "gelu_aux_bias": lt.CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        "drelu": lt.CUBLASLT_EPILOGUE_DRELU,
        "dgelu": lt.CUBLASLT_EPILOGUE_DGELU,
        "drelu_bgrad": lt.CUBLASLT_EPILOGUE_DRELU_BGRAD,
        "dgelu_bgrad": lt.CUBLASLT_EPILOGUE_DGELU_BGRAD,
        "bgrada": lt.CUBLASLT_EPILOGUE_BGRADA,
        "bgradb": lt.CUBLASLT_EPILOGUE_BGRADB,
    }
)
"""``cublasLtEpilogue_t`` by name."""

MIRRORED: Final[Mapping[int, int]] = MappingProxyType({BGRADA: BGRADB, BGRADB: BGRADA})
"""Epilogues that are others when the transposed product is computed, as it is for an output that lies by rows."""


def epilogue_of(name: object) -> int:
    """Return ``cublasLtEpilogue_t``. Raises `InvalidArgument` for an unknown name."""
    number = named(EPILOGUES, name)
    if number is None:
        known = ", ".join(f'"{each}"' for each in EPILOGUES if each is not None)
        raise InvalidArgument(f"epilogue={shown(name)} is not supported; use {known}, or None")
    return number
