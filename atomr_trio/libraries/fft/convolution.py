"""The arguments of a convolution, with the rules of ``scipy.signal.fftconvolve``."""

from __future__ import annotations

from typing import Literal

import attrs

from ..._arrays.arrays import DeviceArray
from ..._calls.library_types import name_of
from ..._values.errors import InvalidArgument
from ..._values.util import shown
from .axes import COMPLEX, axes_of, precision_of
from .frequencies import next_fast_len

Mode = Literal["full", "valid", "same"]
"""The part of a convolution: all of it, what is computed without padding, or the middle, of the first array's shape."""


@attrs.frozen
class Shapes:
    """The shapes of a convolution."""

    first: tuple[int, ...]
    """The shape of the first array, repeated along the axes that are not convolved."""
    second: tuple[int, ...]
    axes: tuple[int, ...]
    lengths: tuple[int, ...]
    """The points of the transforms along these axes."""
    starts: tuple[int, ...]
    """The first index of the result in the whole convolution."""
    shape: tuple[int, ...]
    """That of the result."""


def shapes_of(first: tuple[int, ...], second: tuple[int, ...], mode: object, axes: object) -> Shapes:
    """Return the shapes of a convolution. Raises `InvalidArgument`."""
    if not isinstance(mode, str) or mode not in ("full", "valid", "same"):
        raise InvalidArgument(f'mode is "full", "valid" or "same", not {shown(mode)}')
    if len(first) != len(second) or not first:
        raise InvalidArgument(f"a and b have as many axes, at least 1; their shapes are {first} and {second}")
    if 0 in first or 0 in second:
        raise InvalidArgument(f"a and b have elements; their shapes are {first} and {second}")
    wanted = axes_of(axes, first)
    if len(set(wanted)) < len(wanted) or not wanted:
        raise InvalidArgument(f"axes names at least 1 axis, and each once, not {shown(axes)}")
    convolved = tuple(sorted(axis for axis in wanted if first[axis] != 1 and second[axis] != 1))
    for axis, (one, other) in enumerate(zip(first, second, strict=True)):
        if axis not in convolved and one != other and 1 not in (one, other):
            raise InvalidArgument(
                f"a and b have shapes {first} and {second}: along axis {axis}, which is not convolved, the lengths "
                "must be equal, or one of them 1"
            )
    whole = tuple(
        one + other - 1 if axis in convolved else max(one, other)
        for axis, (one, other) in enumerate(zip(first, second, strict=True))
    )
    shape = whole
    if mode == "same":
        shape = first
    elif mode == "valid":
        longer = [first[axis] >= second[axis] for axis in convolved if first[axis] != second[axis]]
        if len(set(longer)) > 1:
            raise InvalidArgument(
                f'with mode "valid", one of a and b is at least as long along every axis; they have {first}, {second}'
            )
        shape = tuple(
            abs(first[axis] - second[axis]) + 1 if axis in convolved else length for axis, length in enumerate(whole)
        )
    return Shapes(
        tuple(length if axis in convolved else whole[axis] for axis, length in enumerate(first)),
        tuple(length if axis in convolved else whole[axis] for axis, length in enumerate(second)),
        convolved,
        tuple(next_fast_len(whole[axis]) for axis in convolved),
        tuple((length - part) // 2 for length, part in zip(whole, shape, strict=True)),
        shape,
    )


def dtype_of(first: DeviceArray, second: DeviceArray) -> str:
    """Return the dtype of a convolution. Raises `InvalidArgument` for a dtype that is not supported."""
    names = name_of(first.dtype), name_of(second.dtype)
    real = "float64" if "float64" in map(precision_of, names) else "float32"
    return COMPLEX[real] if any(name.startswith("complex") for name in names) else real
