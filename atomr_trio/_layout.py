"""How strided arrays are cut into what a copy engine can do: rows of bytes, a pitch apart.

Pure arithmetic on shapes and strides (in bytes); numpy is used for its rules of indexing and reshaping, on arrays that
have a shape and strides and are never read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

Shape = tuple[int, ...]

MAX_PITCH = 2**31 - 1
"""The widest pitch that the driver's two-dimensional copies and fills take."""


@attrs.frozen
class Rows:
    """`height` rows of `width` bytes, at an offset and a pitch on each side."""

    width: int
    height: int
    offset: int
    pitch: int
    other_offset: int
    other_pitch: int


def contiguous_strides(shape: Shape, itemsize: int) -> Shape:
    """The strides of a C-contiguous array, in bytes."""
    strides = []
    step = itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Whether the elements lie one behind the other in C order."""
    if 0 in shape:
        return True
    expected = itemsize
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def shadow(shape: Shape, strides: Shape, itemsize: int) -> npt.NDArray[Any]:
    """A numpy array with this shape and these strides that must never be read or written.

    Its elements are plain bytes, since numpy does not stride over every type that ml_dtypes adds to it.
    """
    return np.lib.stride_tricks.as_strided(np.empty(1, f"V{itemsize}"), shape, strides)


def offset_of(view: npt.NDArray[Any], base: npt.NDArray[Any]) -> int:
    """Bytes from the first element of `base` to that of `view`."""
    return int(view.__array_interface__["data"][0] - base.__array_interface__["data"][0])


@attrs.frozen
class Packing:
    """The order in which the elements of a strided array are packed: longest stride first, none of them negative."""

    order: Shape
    """The axes, outermost first."""
    flipped: tuple[bool, ...]
    """Which of the ordered axes run backwards in the array."""
    shape: Shape
    """The shape in that order."""
    strides: Shape
    """The array's strides in that order, all made positive."""
    offset: int
    """Bytes from the array's first element to the one that is packed first."""

    def apply(self, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See a host array of the original shape in packing order."""
        index = (*(slice(None, None, -1 if flip else None) for flip in self.flipped), Ellipsis)
        return host.transpose(self.order)[index]

    def undo(self, packed: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See a packed host array in the original order of the axes."""
        index = (*(slice(None, None, -1 if flip else None) for flip in self.flipped), Ellipsis)
        return packed[index].transpose(np.argsort(self.order))

    def follow(self, shape: Shape, strides: Shape) -> tuple[Shape, int]:
        """How an array of the same original shape is walked in packing order: its strides, and the offset to begin at.

        Its strides may be negative.
        """
        walk = tuple(
            -strides[axis] if flip else strides[axis] for axis, flip in zip(self.order, self.flipped, strict=True)
        )
        flips = (axis for axis, flip in zip(self.order, self.flipped, strict=True) if flip)
        return walk, sum((shape[axis] - 1) * strides[axis] for axis in flips if shape[axis] > 0)


def packing(shape: Shape, strides: Shape) -> Packing:
    """How to pack an array of this shape and these strides."""
    order = tuple(sorted(range(len(shape)), key=lambda axis: (-abs(strides[axis]), axis)))
    flipped = tuple(strides[axis] < 0 for axis in order)
    offset = sum((shape[axis] - 1) * strides[axis] for axis in order if strides[axis] < 0 and shape[axis] > 0)
    return Packing(
        order, flipped, tuple(shape[axis] for axis in order), tuple(abs(strides[axis]) for axis in order), offset
    )


def rows(shape: Shape, itemsize: int, strides: Shape, other_strides: Shape) -> Iterator[Rows]:
    """Cut the pairwise copy of two equally shaped arrays into rows. Strides of the same axis may differ in sign."""
    if math.prod(shape) == 0:
        return
    axes = _joined_axes(shape, strides, other_strides)
    width = itemsize
    if axes and axes[-1][1] == width and axes[-1][2] == width:
        width *= axes.pop()[0]
    height, pitch, other_pitch = 1, width, width
    # The innermost axis left is walked by a two-dimensional copy. On a packed side its rows lie one behind the other.
    if axes and width <= axes[-1][1] <= MAX_PITCH and width <= axes[-1][2] <= MAX_PITCH:
        height, pitch, other_pitch = axes.pop()
    for index in itertools.product(*(range(length) for length, _, _ in axes)):
        offset = sum(at * stride for at, (_, stride, _) in zip(index, axes, strict=True))
        other = sum(at * stride for at, (_, _, stride) in zip(index, axes, strict=True))
        yield Rows(width, height, offset, pitch, other, other_pitch)


def _joined_axes(shape: Shape, strides: Shape, other_strides: Shape) -> list[tuple[int, int, int]]:
    """Length and both strides of each axis longer than 1, neighbours joined where both sides walk them as one axis."""
    axes: list[tuple[int, int, int]] = []
    for length, stride, other in zip(shape, strides, other_strides, strict=True):
        if length == 1:
            continue
        if axes and axes[-1][1:] == (length * stride, length * other):
            axes[-1] = (axes[-1][0] * length, stride, other)
        else:
            axes.append((length, stride, other))
    return axes


def cut(piece: Rows, limit: int) -> Iterator[Rows]:
    """Cut rows into pieces of at most `limit` bytes each."""
    if piece.width > limit:
        for row in range(piece.height):
            for at in range(0, piece.width, limit):
                width = min(limit, piece.width - at)
                yield Rows(
                    width,
                    1,
                    piece.offset + row * piece.pitch + at,
                    width,
                    piece.other_offset + row * piece.other_pitch + at,
                    width,
                )
        return
    step = limit // piece.width
    for row in range(0, piece.height, step):
        yield attrs.evolve(
            piece,
            height=min(step, piece.height - row),
            offset=piece.offset + row * piece.pitch,
            other_offset=piece.other_offset + row * piece.other_pitch,
        )
