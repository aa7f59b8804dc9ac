"""Strided arrays cut into pieces that a copy engine can copy: boxes of bytes, whose rows are a pitch apart.

Pure arithmetic on shapes and strides (in bytes); numpy is used for its rules of indexing and reshaping, on arrays that
have a shape and strides and are never read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

Shape = tuple[int, ...]

MAX_AXES = 64
"""The limit of numpy."""
MAX_PITCH = 2**31 - 1
"""The widest pitch that the driver's copies and fills of rows take."""


@attrs.frozen(cache_hash=True)
class Box:
    """`depth` planes of `height` rows of `width` bytes; each side has its own offset and its own steps between them."""

    width: int
    height: int
    depth: int
    offset: int
    pitch: int
    plane: int
    """Bytes from one plane to the next: a multiple of the pitch, as the copy engine requires."""
    other_offset: int
    other_pitch: int
    other_plane: int

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return self.width * self.height * self.depth

    def side(self, base: int) -> tuple[int, int, int]:
        """Return the address of the first byte, the pitch, and the rows from one plane to the next."""
        return base + self.offset, self.pitch, self.plane // self.pitch

    def other_side(self, base: int) -> tuple[int, int, int]:
        """Return the same of the other side."""
        return base + self.other_offset, self.other_pitch, self.other_plane // self.other_pitch


def run(size: int) -> Box:
    """Return a box of the bytes of a contiguous array."""
    return Box(size, 1, 1, 0, size, size, 0, size, size)


@attrs.frozen
class Piece:
    """Boxes that are copied together. On the other side, which is packed, they are contiguous."""

    start: int
    """The offset of the first of them in the packed bytes."""
    size: int
    boxes: tuple[Box, ...]


def contiguous_strides(shape: Shape, itemsize: int) -> Shape:
    """Return the strides of a C-contiguous array, in bytes."""
    strides = []
    step = itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Shape, itemsize: int) -> bool:
    """Return whether the elements are contiguous in C order."""
    expected = itemsize
    axis = len(shape)
    while axis:
        axis -= 1
        length = shape[axis]
        if length != 1:
            if strides[axis] != expected:
                return 0 in shape
            expected *= length
    return True


def indexed(shape: Shape, strides: Shape, index: tuple[object, ...]) -> tuple[int, Shape, Shape] | None:
    """Return the offset, shape and strides of the view that ints, slices, ``...`` and ``None`` pick, as numpy does.

    Returns None for an index that has other parts, or that numpy refuses: it says how.
    """
    axes = len(shape)
    offset = axis = 0
    seen = False
    lengths: list[int] = []
    steps: list[int] = []
    for part in index:
        if part is None:
            lengths.append(1)
            steps.append(0)
            continue
        if part is Ellipsis:
            left = axes - sum(each is not None and each is not Ellipsis for each in index)
            if left < 0 or seen:
                return None
            lengths += shape[axis : axis + left]
            steps += strides[axis : axis + left]
            axis += left
            seen = True
            continue
        if axis == axes:
            return None
        length, stride = shape[axis], strides[axis]
        axis += 1
        if type(part) is slice:
            if part.start is part.stop is part.step is None:
                lengths.append(length)
                steps.append(stride)
                continue
            start, stop, step = part.indices(length)
            count = stop - start if step == 1 else len(range(start, stop, step))
            if count <= 0:
                start, count, step = 0, 0, 1
            offset += start * stride
            lengths.append(count)
            steps.append(step * stride)
        elif type(part) is int and -length <= part < length:
            offset += (part + length if part < 0 else part) * stride
        else:
            return None
    if axis == axes and len(lengths) <= MAX_AXES:
        return offset, tuple(lengths), tuple(steps)
    if len(lengths) + axes - axis > MAX_AXES:
        return None
    return offset, (*lengths, *shape[axis:]), (*steps, *strides[axis:])


def reshaped(size: int, wanted: Iterable[object]) -> Shape | None:
    """Return `wanted`, with -1 replaced, as the shape of `size` elements; None if numpy has to decide."""
    lengths: list[int] = []
    rest = None
    product = 1
    for length in wanted:
        if type(length) is int and length > 0:
            product *= length
        elif type(length) is int and length == -1 and rest is None:
            rest = len(lengths)
        else:
            return None
        lengths.append(length)
    if rest is not None:
        lengths[rest] = size // product
        product *= lengths[rest]
    return tuple(lengths) if size and product == size and len(lengths) <= MAX_AXES else None


def shadow(shape: Shape, strides: Shape, itemsize: int) -> npt.NDArray[Any]:
    """Return a numpy array with this shape and these strides, which must never be read or written.

    Its elements are plain bytes, since numpy does not support strides for every type of ml_dtypes.
    """
    return np.lib.stride_tricks.as_strided(np.empty(1, f"V{itemsize}"), shape, strides)


def offset_of(view: npt.NDArray[Any], base: npt.NDArray[Any]) -> int:
    """Return the bytes from the first element of `base` to that of `view`."""
    return int(view.__array_interface__["data"][0] - base.__array_interface__["data"][0])


@attrs.frozen
class Packing:
    """The order in which the elements of a strided array are packed: longest stride first, none of them negative."""

    order: Shape
    """The axes, outermost first."""
    flipped: tuple[bool, ...]
    """For each of the ordered axes, true if it runs backwards in the array."""
    shape: Shape
    """The shape in that order."""
    strides: Shape
    """The array's strides in that order, all made positive."""
    offset: int
    """Bytes from the array's first element to the one that is packed first."""
    is_plain: bool = attrs.field(init=False)
    """True if the packing order is that of the array."""

    @is_plain.default
    def _is_plain(self) -> bool:
        return self.order == tuple(range(len(self.order))) and not any(self.flipped)

    def apply(self, host: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a view of a host array of the original shape, in packing order."""
        index = (*(slice(None, None, -1 if flip else None) for flip in self.flipped), Ellipsis)
        return host.transpose(self.order)[index]

    def undo(self, packed: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a view of a packed host array, in the original order of the axes."""
        index = (*(slice(None, None, -1 if flip else None) for flip in self.flipped), Ellipsis)
        return packed[index].transpose(np.argsort(self.order))

    def follow(self, shape: Shape, strides: Shape) -> tuple[Shape, int]:
        """Return the strides, and the first offset, of an array of the same original shape in packing order.

        Such strides may be negative.
        """
        walk = tuple(
            -strides[axis] if flip else strides[axis] for axis, flip in zip(self.order, self.flipped, strict=True)
        )
        flips = (axis for axis, flip in zip(self.order, self.flipped, strict=True) if flip)
        return walk, sum((shape[axis] - 1) * strides[axis] for axis in flips if shape[axis] > 0)


def packing(shape: Shape, strides: Shape) -> Packing:
    """Return the packing of an array of this shape and these strides."""
    order = tuple(sorted(range(len(shape)), key=lambda axis: (-abs(strides[axis]), axis)))
    flipped = tuple(strides[axis] < 0 for axis in order)
    offset = sum((shape[axis] - 1) * strides[axis] for axis in order if strides[axis] < 0 and shape[axis] > 0)
    return Packing(
        order, flipped, tuple(shape[axis] for axis in order), tuple(abs(strides[axis]) for axis in order), offset
    )


def boxes(shape: Shape, itemsize: int, strides: Shape, other_strides: Shape) -> Iterator[Box]:
    """Cut the copy between two arrays of one shape into boxes. Strides of the same axis may differ in sign."""
    if math.prod(shape) == 0:
        return
    axes = _joined_axes(shape, strides, other_strides)
    width = itemsize
    if axes and axes[-1][1:] == (width, width):
        width *= axes.pop()[0]
    height, pitch, other_pitch = axes.pop() if axes and _are_rows(axes[-1], width) else (1, width, width)
    depth, plane, other_plane = 1, height * pitch, height * other_pitch
    if axes and height > 1 and _are_planes(axes[-1], height, pitch, other_pitch):
        depth, plane, other_plane = axes.pop()
    for index in itertools.product(*(range(length) for length, _, _ in axes)):
        offset = sum(at * stride for at, (_, stride, _) in zip(index, axes, strict=True))
        other = sum(at * stride for at, (_, _, stride) in zip(index, axes, strict=True))
        yield Box(width, height, depth, offset, pitch, plane, other, other_pitch, other_plane)


def _are_rows(axis: tuple[int, int, int], width: int) -> bool:
    """Return whether a copy of two dimensions can walk this axis."""
    return all(width <= stride <= MAX_PITCH for stride in axis[1:])


def _are_planes(axis: tuple[int, int, int], height: int, *pitches: int) -> bool:
    """Return whether a copy of three dimensions can walk this axis: its step is a number of rows on either side."""
    steps = zip(axis[1:], pitches, strict=True)
    return all(stride >= height * pitch and stride % pitch == 0 for stride, pitch in steps)


def _joined_axes(shape: Shape, strides: Shape, other_strides: Shape) -> list[tuple[int, int, int]]:
    """Return length and both strides of each axis longer than 1; neighbours are joined if both sides allow it."""
    axes: list[tuple[int, int, int]] = []
    for length, stride, other in zip(shape, strides, other_strides, strict=True):
        if length == 1:
            continue
        if axes and axes[-1][1:] == (length * stride, length * other):
            axes[-1] = (axes[-1][0] * length, stride, other)
        else:
            axes.append((length, stride, other))
    return axes


def cut(box: Box, limit: int) -> Iterator[Box]:
    """Cut a box into boxes of at most `limit` bytes each, in order: whole planes if they fit, else rows, else bytes."""
    if box.size <= limit:
        yield box
        return
    if box.depth > 1:
        axis, length, size, step, other_step = "depth", box.depth, box.width * box.height, box.plane, box.other_plane
    elif box.height > 1:
        axis, length, size, step, other_step = "height", box.height, box.width, box.pitch, box.other_pitch
    else:
        axis, length, size, step, other_step = "width", box.width, 1, 1, 1
    count = max(1, limit // size)
    for first in range(0, length, count):
        offsets = {"offset": box.offset + first * step, "other_offset": box.other_offset + first * other_step}
        yield from cut(attrs.evolve(box, **offsets, **{axis: min(count, length - first)}), limit)


def rows(shape: Shape, itemsize: int, strides: Shape, other_strides: Shape) -> Iterator[Box]:
    """Yield the same boxes, cut into single planes."""
    for box in boxes(shape, itemsize, strides, other_strides):
        yield from cut(box, box.width * box.height)


def gather(parts: Iterable[Box], limit: int, most: int) -> Iterator[Piece]:
    """Join neighbouring boxes into pieces of at most `most` boxes and `limit` bytes. The other side must be packed."""
    held: list[Box] = []
    size = 0
    for box in parts:
        if held and (size + box.size > limit or len(held) == most):
            yield Piece(held[0].other_offset, size, tuple(held))
            held, size = [], 0
        held.append(box)
        size += box.size
    if held:
        yield Piece(held[0].other_offset, size, tuple(held))


def spans(shape: Shape, first: int, last: int) -> Iterator[tuple[int | slice, ...]]:
    """Yield a few indices, each of a whole view, that cover the elements `first` to `last` in C order."""
    if len(shape) == 1:
        yield (slice(first, last),)
        return
    inner = math.prod(shape[1:])
    (begin, head), (end, tail) = divmod(first, inner), divmod(last, inner)
    if begin == end:
        yield from ((begin, *rest) for rest in spans(shape[1:], head, tail))
        return
    if head:
        yield from ((begin, *rest) for rest in spans(shape[1:], head, inner))
        begin += 1
    if begin < end:
        yield (slice(begin, end),)
    if tail:
        yield from ((end, *rest) for rest in spans(shape[1:], 0, tail))
