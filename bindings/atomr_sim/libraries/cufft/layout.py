"""A transform as a caller of cuFFT describes it, and the places of its elements in memory.

A transform has up to three axes, and a plan computes a batch of transforms. Element (x, y, z) of transform b lies at
``b * distance + ((x * embedding[1] + y) * embedding[2] + z) * stride``, counted in elements of its side. The first
embedding length has no effect. Of the complex side of a real transform, the last axis has the first ``n // 2 + 1``
elements alone.

Without embedding lengths both sides are packed. Then the stride and the distance that the caller gives have no effect
either, and the real side depends on the execution: in place, each of its rows has room for the complex ones.

Real numbers are the unit of memory here: a complex element is two, in an axis of its own. numpy has no complex half.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from atomr_cuda.cufft import cufftResult, cufftType
from atomr_cuda.library_types import cudaDataType as Type

from ..._status import require
from ..dense import ELEMENTS, Element, Operand

INVALID_TYPE = int(cufftResult.CUFFT_INVALID_TYPE)
INVALID_VALUE = int(cufftResult.CUFFT_INVALID_VALUE)
INVALID_SIZE = int(cufftResult.CUFFT_INVALID_SIZE)
NOT_SUPPORTED = int(cufftResult.CUFFT_NOT_SUPPORTED)

Types = tuple[int, int]
"""The data types of a transform's input and output."""

TYPES: dict[int, Types] = {
    cufftType.CUFFT_C2C: (Type.CUDA_C_32F, Type.CUDA_C_32F),
    cufftType.CUFFT_R2C: (Type.CUDA_R_32F, Type.CUDA_C_32F),
    cufftType.CUFFT_C2R: (Type.CUDA_C_32F, Type.CUDA_R_32F),
    cufftType.CUFFT_Z2Z: (Type.CUDA_C_64F, Type.CUDA_C_64F),
    cufftType.CUFFT_D2Z: (Type.CUDA_R_64F, Type.CUDA_C_64F),
    cufftType.CUFFT_Z2D: (Type.CUDA_C_64F, Type.CUDA_R_64F),
}

# The real type of each complex one.
_REAL: dict[int, int] = {
    Type.CUDA_C_16F: Type.CUDA_R_16F,
    Type.CUDA_C_16BF: Type.CUDA_R_16BF,
    Type.CUDA_C_32F: Type.CUDA_R_32F,
    Type.CUDA_C_64F: Type.CUDA_R_64F,
}
_HALF = (Type.CUDA_C_16F, Type.CUDA_C_16BF)

_RANKS = (1, 2, 3)
_MOST_BYTES = 1 << 63
_MOST_HALF_ELEMENTS = 1 << 32

# Larger lengths need a second kernel and room between both. A larger prime factor needs room for a convolution.
_IN_ONE_KERNEL = 256
_LARGEST_FACTOR = 127
_CONVOLUTION = 4

Given = tuple[tuple[int, ...] | None, int, int]
"""A side as the caller gives it: embedding lengths or None, stride, distance."""


@dataclass(frozen=True)
class Side:
    """The input or the output: its elements along each axis, and the distances between them, in its own elements."""

    element: Element
    complex: bool
    lengths: tuple[int, ...]
    embedding: tuple[int, ...]
    stride: int
    distance: int

    def operand(self, address: int, batch: int) -> Operand:
        """The real numbers of all elements. The axes are the batch, those of the transform, and a complex element."""
        unit = 2 if self.complex else 1
        steps = [self.stride * unit]
        for length in self.embedding[:0:-1]:
            steps.insert(0, steps[0] * length)
        shape, strides = (batch, *self.lengths), (self.distance * unit, *steps)
        if self.complex:
            shape, strides = (*shape, 2), (*strides, 1)
        return Operand(self.element, address, shape, strides)

    def bytes(self, batch: int) -> int:
        """Bytes from the first element to the end of the last one."""
        operand = self.operand(0, batch)
        steps = ((length - 1) * step for length, step in zip(operand.shape, operand.strides, strict=True))
        return (sum(steps) + 1) * self.element.size


@dataclass(frozen=True)
class Transform:
    """A transform that a plan computes."""

    types: Types
    lengths: tuple[int, ...]
    batch: int
    source: Side
    target: Side
    packed: bool
    """Both sides are packed, because the caller gave no embedding lengths."""

    @property
    def is_real(self) -> bool:
        """Tell whether one side is real."""
        return self.source.complex is not self.target.complex

    @property
    def granule(self) -> int:
        """Bytes of a complex element: both addresses must be multiples of it, that of the real side too."""
        return 2 * self.source.element.size

    def sides(self, in_place: bool) -> tuple[Side, Side]:
        """Input and output for an execution."""
        if not (in_place and self.packed and self.is_real):
            return self.source, self.target
        source, target = (side if side.complex else self._padded(side) for side in (self.source, self.target))
        return source, target

    def _padded(self, side: Side) -> Side:
        embedding = (*side.lengths[:-1], 2 * (side.lengths[-1] // 2 + 1))
        return replace(side, embedding=embedding, distance=math.prod(embedding))

    @property
    def is_convolution(self) -> bool:
        """Tell whether a length has a large prime factor."""
        return not all(map(_has_small_factors, self.lengths))

    @cached_property
    def work_bytes(self) -> int:
        """Bytes of the work area.

        The library's own sizes are known for a few lengths only (H200: none for 1024 and 128 x 128 x 128, one copy of
        the data for 2**20, four for the prime 100003). This is like them, but not the same.
        """
        elements = self.batch * math.prod((self.source if self.source.complex else self.target).lengths)
        if self.is_convolution:
            return _CONVOLUTION * elements * self.granule
        return elements * self.granule if max(self.lengths) > _IN_ONE_KERNEL else 0


def _has_small_factors(length: int) -> bool:
    for factor in range(2, _LARGEST_FACTOR + 1):
        while length % factor == 0:
            length //= factor
    return length == 1


@dataclass(frozen=True)
class Wanted:
    """A transform as a caller asks for it. Lengths are those of the transform, not of a half."""

    lengths: tuple[int, ...]
    types: Types
    batch: int = 1
    given: tuple[Given, Given] = ((None, 1, 1), (None, 1, 1))
    computed: int | None = None
    """The data type of the computation, where the caller says it."""

    def checked(self) -> Transform:
        """Return the transform, or refuse it."""
        source, target = self.types
        wide = source if source in _REAL else target
        require(wide in _REAL and {source, target} <= {wide, _REAL[wide]}, INVALID_TYPE)
        require(self.computed in (None, wide), INVALID_TYPE)
        require(min(*self.lengths, self.batch) >= 1, INVALID_SIZE)
        embeddings = [embedding for embedding, _, _ in self.given]
        packed = None in embeddings
        require(not packed or embeddings == [None, None], INVALID_VALUE)
        sides = [self._side(number, real=_REAL[wide], half=source != target) for number in (0, 1)]
        transform = Transform(self.types, self.lengths, self.batch, sides[0], sides[1], packed)
        if wide in _HALF:
            _check_half(transform)
        largest = max(transform.work_bytes, *(side.bytes(self.batch) for side in sides))
        require(largest < _MOST_BYTES, INVALID_SIZE)
        return transform

    def _side(self, number: int, *, real: int, half: bool) -> Side:
        is_complex = self.types[number] != real
        lengths = self.lengths
        if is_complex and half:
            lengths = (*lengths[:-1], lengths[-1] // 2 + 1)
        embedding, stride, distance = self.given[number]
        if embedding is None:
            embedding, stride, distance = lengths, 1, math.prod(lengths)
        require(stride >= 1 and distance >= 1, INVALID_VALUE)
        require(all(room >= length for room, length in zip(embedding[1:], lengths[1:], strict=True)), INVALID_SIZE)
        return Side(ELEMENTS[real], is_complex, lengths, embedding, stride, distance)


def _check_half(transform: Transform) -> None:
    """Refuse what half precision does not have: other lengths than powers of two, and steps on the real side."""
    require(all(length & (length - 1) == 0 for length in transform.lengths), INVALID_SIZE)
    require(all(side.complex or side.stride == 1 for side in (transform.source, transform.target)), NOT_SUPPORTED)
    require(transform.batch * math.prod(transform.lengths) <= _MOST_HALF_ELEMENTS, NOT_SUPPORTED)


def check_rank(rank: int) -> None:
    """Refuse a rank that the library does not have."""
    require(rank in _RANKS, INVALID_VALUE)


def as_given(rank: int, embedding: Sequence[int] | None, stride: int, distance: int) -> Given:
    """A side from the arguments of a function, of which the first is a pointer that may be null."""
    return tuple(embedding[:rank]) if embedding else None, stride, distance
