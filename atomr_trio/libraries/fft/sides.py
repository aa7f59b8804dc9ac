"""Arrays as plans see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..._arrays.arrays import DeviceArray
from ..._calls.library_types import name_of
from ..._values.errors import InvalidArgument
from .axes import COMPLEX, Transform
from .records import Side

if TYPE_CHECKING:
    from ..._generation.core import DeviceCore

_GRANULES: Final = {
    "float32": 8,
    "complex64": 8,
    "float64": 16,
    "complex128": 16,
    "float16": 4,
    "bfloat16": 4,
    "complex_float16": 4,
    "complex_bfloat16": 4,
}
"""The alignment that cuFFT wants, in bytes: that of a complex number, for real ones too."""
_CAPABILITY_OF_BFLOAT16: Final = (8, 0)
_HALF: Final = 2
"""The bytes of a half."""


def side(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], *, aligned: bool = True) -> Side:
    """Return an array of this layout."""
    axes = list(zip(shape, strides, strict=True))
    seen = tuple(stride if length > 1 else 0 for length, stride in axes)
    base = -sum((length - 1) * stride for length, stride in axes if stride < 0 < length)
    return Side(dtype, shape, seen, base, aligned)


def side_of(array: DeviceArray) -> Side:
    """Return an array that is there."""
    dtype = name_of(array.dtype)
    return side(dtype, array.shape, array.strides, aligned=array.address % _GRANULES.get(dtype, 1) == 0)


def paired(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], what: str) -> Side:
    """Return an array of pairs along its last axis, each of which is one element. Raises `InvalidArgument`."""
    if strides[-1] != _HALF:
        raise InvalidArgument(f"the two parts of a number lie side by side, and {what} has strides of {strides} bytes")
    return side(COMPLEX[dtype], shape[:-1], strides[:-1])


def paired_side_of(array: DeviceArray, what: str) -> Side:
    """Return an array of pairs that is there. Raises `InvalidArgument`."""
    found = paired(name_of(array.dtype), array.shape, array.strides, what)
    return found._replace(aligned=array.address % _GRANULES[found.dtype] == 0)


def check_supported(device: DeviceCore, transform: Transform) -> None:
    """Raise `InvalidArgument` for a precision that the GPU does not have."""
    if transform.precision == "bfloat16" and device.info.capability < _CAPABILITY_OF_BFLOAT16:
        raise InvalidArgument(
            f"cuFFT transforms bfloat16 on GPUs of capability 8.0 and newer; this one has {device.info.capability}"
        )


def broadcast_side(array: DeviceArray, shape: tuple[int, ...]) -> Side:
    """Return an array repeated along axes of length 1."""
    return side_of(array)._replace(shape=shape)
