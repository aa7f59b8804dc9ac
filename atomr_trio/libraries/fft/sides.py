"""Arrays as plans see them."""

from __future__ import annotations

from typing import Final

from ..._arrays.arrays import DeviceArray
from ..._calls.library_types import name_of
from .records import Side

_GRANULES: Final = {"float32": 8, "complex64": 8, "float64": 16, "complex128": 16}
"""The alignment that cuFFT wants, in bytes: that of a complex number, for real ones too."""


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


def broadcast_side(array: DeviceArray, shape: tuple[int, ...]) -> Side:
    """Return an array repeated along axes of length 1."""
    return side_of(array)._replace(shape=shape)
