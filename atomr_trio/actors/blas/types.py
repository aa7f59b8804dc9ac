"""What cuBLAS computes with: its element types, and the combinations that a product of matrices has."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

import attrs
import numpy as np
import numpy.typing as npt

from ..._arrays import DeviceArray
from ..._errors import InvalidArgument
from ..._matrices import Vector, strides_text
from ..._util import shown
from ..memory import overlap, reach

LETTERS: Final[Mapping[str, str]] = MappingProxyType(
    {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}
)
"""By the name of a dtype, what the functions of that type have in their names."""

REAL_LETTERS: Final[Mapping[str, str]] = MappingProxyType({"S": "S", "D": "D", "C": "Sc", "Z": "Dz"})
"""The same for functions whose result is real."""

DATA_TYPES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "float32": 0,
        "float64": 1,
        "float16": 2,
        "int8": 3,
        "complex64": 4,
        "complex128": 5,
        "int32": 10,
        "bfloat16": 14,
    }
)
"""``cudaDataType`` by the name of a dtype."""

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


@functools.cache
def name_of(dtype: np.dtype[Any]) -> str:
    """The name of a dtype, which numpy puts together anew each time."""
    return dtype.name


def letter_of(*arrays: DeviceArray) -> str:
    """The letter of the arrays' one dtype. Raises `InvalidArgument` if they differ, or cuBLAS has none for it."""
    names = {name_of(array.dtype) for array in arrays}
    if len(names) > 1:
        raise InvalidArgument(f"the arrays have different dtypes: {', '.join(sorted(names))}")
    (name,) = names
    if name not in LETTERS:
        raise InvalidArgument(f"there is no such operation on {name}, but on {', '.join(LETTERS)}")
    return LETTERS[name]


def check_lengths(first: Vector, second: Vector) -> None:
    if first.length != second.length:
        raise InvalidArgument(f"x has {first.length} elements and y has {second.length}")


def check_apart(output: DeviceArray, *inputs: DeviceArray) -> None:
    """Refuse an output that shares memory with an input, which the library would read while it writes."""
    for array in inputs:
        if array._block is output._block and overlap(array, output) and _meet(array, output):
            raise InvalidArgument(f"the output ({strides_text(output)}) shares memory with an input")


def check_all_apart(outputs: Sequence[DeviceArray], inputs: Sequence[DeviceArray]) -> None:
    """The same for many: no output may share memory with an input, nor with another output."""
    seen = {id(array): array for array in (*outputs, *inputs)}
    written = {id(array) for array in outputs}
    if len(written) < len(outputs) or any(id(array) in written for array in inputs):
        raise InvalidArgument("an array is there twice among the outputs, or an input, too")
    waiting: list[tuple[int, DeviceArray]] = []
    for (begin, end), array in sorted(((reach(array), array) for array in seen.values()), key=lambda each: each[0]):
        waiting = [(limit, earlier) for limit, earlier in waiting if limit > begin]
        for _, earlier in waiting:
            if id(array) in written or id(earlier) in written:
                check_apart(array, earlier)
        waiting.append((end, array))


_MEETING_WORK = 10_000
"""How long numpy may look for an element that two arrays share, before they are taken to share one."""


def _meet(first: DeviceArray, second: DeviceArray) -> bool:
    """Whether two views of one block share an element: columns of one matrix, say, do not."""
    try:
        # numpy's own annotations know the two extremes of max_work alone.
        return np.shares_memory(_Place.of(first), _Place.of(second), max_work=_MEETING_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


@attrs.frozen
class _Place:
    """What numpy needs to know of memory that it must never read."""

    __array_interface__: Mapping[str, object]

    @classmethod
    def of(cls, array: DeviceArray) -> npt.NDArray[Any]:
        """An array of numpy's with the address, shape and strides of one on the device."""
        place = {"data": (array.address, True), "shape": array.shape, "strides": array.strides}
        return np.asarray(cls({**place, "typestr": f"|V{array.itemsize}", "version": 3}))


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
