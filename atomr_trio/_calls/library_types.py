"""Element types as the mathematical libraries name them: by a letter, and by a number."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from atomr_cuda.constants import library_types

from .._arrays.arrays import DeviceArray
from .._values.dtypes import check_dtype
from .._values.errors import InvalidArgument

LETTERS: Final[Mapping[str, str]] = MappingProxyType(
    {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}
)
"""The letter in the names of a type's functions, by the name of the dtype."""

DATA_TYPES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "float32": library_types.CUDA_R_32F,
        "float64": library_types.CUDA_R_64F,
        "float16": library_types.CUDA_R_16F,
        "int8": library_types.CUDA_R_8I,
        "complex64": library_types.CUDA_C_32F,
        "complex128": library_types.CUDA_C_64F,
        "int32": library_types.CUDA_R_32I,
        "bfloat16": library_types.CUDA_R_16BF,
        "float8_e4m3fn": library_types.CUDA_R_8F_E4M3,
        "float8_e5m2": library_types.CUDA_R_8F_E5M2,
    }
)
"""``cudaDataType`` by the name of a dtype."""


@functools.cache
def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype, from a cache: numpy builds it anew each time."""
    return dtype.name


def letter_of(*arrays: DeviceArray) -> str:
    """Return the letter of the arrays' common dtype. Raises `InvalidArgument` if they differ or it is not supported."""
    names = {name_of(array.dtype) for array in arrays}
    if len(names) > 1:
        raise InvalidArgument(f"the arrays have different dtypes: {', '.join(sorted(names))}")
    (name,) = names
    if name not in LETTERS:
        raise InvalidArgument(f"{name} is not supported; use {', '.join(LETTERS)}")
    return LETTERS[name]


def check_output_dtype(output: DeviceArray, dtype: npt.DTypeLike | None) -> None:
    """Raise `InvalidArgument` if the output's dtype is not the requested one."""
    if dtype is not None and output.dtype != check_dtype(dtype):
        raise InvalidArgument(
            f"out has dtype {output.dtype.name}, and dtype= is {check_dtype(dtype).name}: give only one of the two"
        )
