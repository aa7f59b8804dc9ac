"""How cuFFT sees arrays: its advanced layout, and the copies that turn one layout into another.

Element (x, y, z) of transform b lies at ``b * distance + ((x * embedding[1] + y) * embedding[2] + z) * stride``,
counted in elements. So cuFFT takes up to three axes that nest, and one more for the batch, with positive strides. The
halved axis of a real transform is the innermost, and in half precision the real numbers along it lie side by side.
`fit` finds such a layout for both arrays. What is left of the batch is done by several executions, from other
addresses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ..._values.errors import InvalidArgument
from ..._wire.programs import Address, Arrange, RoomOf
from .axes import HALVES
from .records import Operation, Side

SIZES: Final = {
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "float16": 2,
    "bfloat16": 2,
    "complex_float16": 4,
    "complex_bfloat16": 4,
}
"""The bytes of an element, of the dtypes in which is computed."""

MOST_EXECUTIONS: Final = 16
_BYTES_OF_AN_EXECUTION: Final = 4 << 20
"""An execution more costs as much as copying so many bytes to another layout and back."""

_MOST_COPIED_AXES: Final = 8
"""The most axes of one copy of the engine."""
_MOST_COPIES: Final = 256


class Buffer(NamedTuple):
    """An array of a plan: one that it is given, or a piece of its workspace."""

    place: Address | RoomOf
    """Where its first element is."""
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    aligned: bool = True
    owned: bool = True
    """True if its contents may be lost."""

    @classmethod
    def given(cls, number: int, side: Side, *, owned: bool) -> Buffer:
        """Return the array of an address."""
        return cls(Address(number, side.base), side.dtype, side.shape, side.strides, side.aligned, owned)

    @classmethod
    def packed(cls, place: RoomOf, dtype: str, shape: Sequence[int], order: Sequence[int]) -> Buffer:
        """Return a piece of a workspace, whose axes lie in this order, the innermost last."""
        strides, step = [0] * len(shape), SIZES[dtype]
        for axis in reversed(order):
            strides[axis] = step
            step *= shape[axis]
        return cls(place, dtype, tuple(shape), tuple(strides))

    def lies_at(self, other: Buffer) -> bool:
        """Return whether both begin at one place. An `Address` equals a `RoomOf` of the same numbers."""
        return type(self.place) is type(other.place) and self.place == other.place

    @property
    def bytes(self) -> int:
        """Those of its elements."""
        return math.prod(self.shape) * SIZES[self.dtype]

    def cropped(self, shape: Sequence[int]) -> Buffer:
        """Return the part of it that is inside of another shape."""
        return self._replace(shape=tuple(map(min, self.shape, shape)))

    def at(self, offset: int) -> Address | RoomOf:
        """Return the place so many bytes behind its first element."""
        return self.place._replace(offset=self.place.offset + offset)


class Layout(NamedTuple):
    """What a plan of cuFFT is made of, beside its types."""

    lengths: tuple[int, ...]
    source_embedding: tuple[int, ...]
    source_stride: int
    source_distance: int
    target_embedding: tuple[int, ...]
    target_stride: int
    target_distance: int
    batch: int


class Fit(NamedTuple):
    """A layout, and the offsets in bytes of source and target of each execution."""

    layout: Layout
    offsets: tuple[tuple[int, int], ...]
    axes: tuple[int, ...]
    """The transformed axes, the innermost last."""


class _Batch(NamedTuple):
    """Axes that are not transformed: the number of indices, and the strides on both sides."""

    size: int
    source: int
    target: int


def fit(source: Buffer, target: Buffer, operations: Sequence[Operation]) -> Fit | None:
    """Return the layout of transforms that are done in one; None if cuFFT has none, or it takes too many executions."""
    if not (source.aligned and target.aligned):
        return None
    halved = [each for each in operations if each.kind != "c"]
    for order in itertools.permutations([each for each in operations if each.kind == "c"]):
        together = [*order, *halved]
        axes = tuple(each.axis for each in together)
        read, written = _nested(source, axes), _nested(target, axes)
        if read is not None and written is not None:
            break
    else:
        return None
    batches = [
        _Batch(source.shape[axis], source.strides[axis], target.strides[axis])
        for axis in range(len(source.shape))
        if axis not in axes and source.shape[axis] > 1
    ]
    if any(not _is_step(step, side) for each in batches for step, side in ((each[1], source), (each[2], target))):
        return None
    if any(side.dtype in HALVES and stride != 1 for side, (_, stride) in ((source, read), (target, written))):
        return None
    batch, rest = _collapsed(batches)
    executions = math.prod(each.size for each in rest)
    if executions > min(MOST_EXECUTIONS, 2 + max(source.bytes, target.bytes) // _BYTES_OF_AN_EXECUTION):
        return None
    offsets = tuple(_offsets(rest))
    granule = max(SIZES[source.dtype], SIZES[target.dtype])
    if any(offset % granule for pair in offsets for offset in pair):
        return None
    layout = Layout(
        tuple(each.length for each in together),
        *read,
        batch.source // SIZES[source.dtype] or math.prod(read[0]) * read[1],
        *written,
        batch.target // SIZES[target.dtype] or math.prod(written[0]) * written[1],
        batch.size,
    )
    return Fit(layout, offsets, axes)


def _is_step(step: int, buffer: Buffer) -> bool:
    return step > 0 and step % SIZES[buffer.dtype] == 0


def _nested(buffer: Buffer, axes: tuple[int, ...]) -> tuple[tuple[int, ...], int] | None:
    """Return the embedding lengths and the stride of these axes, the innermost last; None if they do not nest."""
    strides = [buffer.strides[axis] for axis in axes]
    if not all(_is_step(stride, buffer) for stride in strides):
        return None
    embedding = [buffer.shape[axes[0]]]
    for (outer, inner), axis in zip(itertools.pairwise(strides), axes[1:], strict=True):
        if outer % inner or outer // inner < buffer.shape[axis]:
            return None
        embedding.append(outer // inner)
    return tuple(embedding), strides[-1] // SIZES[buffer.dtype]


def _collapsed(batches: list[_Batch]) -> tuple[_Batch, list[_Batch]]:
    """Return as many indices as one distance on each side has room for, and the axes that are left."""
    best, left = _Batch(1, 0, 0), batches
    for first in batches:
        done, rest = first, [each for each in batches if each is not first]
        while True:
            wanted = done.source * done.size, done.target * done.size
            found = next((each for each in rest if each[1:] == wanted), None)
            if found is None:
                break
            rest = [each for each in rest if each is not found]
            done = done._replace(size=done.size * found.size)
        if done.size > best.size:
            best, left = done, rest
    return best, left


def _offsets(rest: list[_Batch]) -> Iterator[tuple[int, int]]:
    for index in itertools.product(*(range(each.size) for each in rest)):
        yield (
            sum(at * each.source for at, each in zip(index, rest, strict=True)),
            sum(at * each.target for at, each in zip(index, rest, strict=True)),
        )


# --- copies -----------------------------------------------------------------------------------------------------------


class _Axis(NamedTuple):
    """One axis of a copy."""

    extent: int
    inside: int
    source: int
    target: int
    shift: int


def copies(
    source: Buffer,
    target: Buffer,
    *,
    scale: float = 1.0,
    conjugate: bool = False,
    shifts: Sequence[int] | None = None,
    starts: Sequence[int] | None = None,
) -> Iterator[Arrange]:
    """Yield the steps that copy the source to the target, padded with zeros or cropped to its shape.

    The source is read from the indices `starts` on. Raises `InvalidArgument` for arrays of so many axes that there are
    too many steps.
    """
    start = sum(map(math.prod, zip(starts or (), source.strides, strict=False)))
    shape = tuple(map(int.__sub__, source.shape, starts)) if starts else source.shape
    axes = [
        _Axis(extent, min(extent, length), step, other, shift)
        for extent, length, step, other, shift in zip(
            target.shape, shape, source.strides, target.strides, shifts or [0] * len(shape), strict=True
        )
        if extent > 1
    ]
    axes = _merged(sorted(axes, key=lambda axis: -abs(axis.target)))
    looped = max(len(axes) - _MOST_COPIED_AXES, 0)
    # Those of few indices are looped over, but a shift is left to the engine.
    outer = sorted((axis for axis in axes if not axis.shift), key=lambda axis: axis.extent)[:looped]
    inner = [axis for axis in axes if axis not in outer]
    if len(inner) > _MOST_COPIED_AXES or math.prod(axis.extent for axis in outer) > _MOST_COPIES:
        raise InvalidArgument(
            f"arrays of shape {source.shape} and {target.shape} have too many axes to be copied, which their strides "
            f"{source.strides} and {target.strides} make necessary: give contiguous arrays"
        )
    for index in itertools.product(*(range(axis.extent) for axis in outer)):
        is_inside = all(at < axis.inside for at, axis in zip(index, outer, strict=True))
        read = start + sum(at * axis.source for at, axis in zip(index, outer, strict=True)) if is_inside else 0
        written = sum(at * axis.target for at, axis in zip(index, outer, strict=True))
        yield Arrange(
            source.at(read),
            target.at(written),
            (
                source.dtype,
                target.dtype,
                tuple(axis.extent for axis in inner) or (1,),
                tuple(axis.inside if is_inside else 0 for axis in inner) or (int(is_inside),),
                tuple(axis.source for axis in inner) or (0,),
                tuple(axis.target for axis in inner) or (0,),
                tuple(axis.shift if is_inside else 0 for axis in inner) or (0,),
                scale,
                conjugate,
            ),
        )


def _merged(axes: list[_Axis]) -> list[_Axis]:
    """Return fewer axes for the same copy: see ``_worker/base/arrange.py``, which does so again."""
    merged: list[_Axis] = []
    for axis in axes:
        outer = merged[-1] if merged else None
        if (
            outer is not None
            and (axis.inside, axis.shift) == (axis.extent, 0)
            and outer.source == axis.source * axis.extent
            and outer.target == axis.target * axis.extent
        ):
            merged[-1] = _Axis(
                outer.extent * axis.extent,
                outer.inside * axis.extent,
                axis.source,
                axis.target,
                outer.shift * axis.extent,
            )
        else:
            merged.append(axis)
    return merged
