"""Values that are affine in the coordinates of a lane, kept as a base and strides instead of an array.

The lanes of a chunk have coordinates: their block's in the chunk, and their own in the block. Thread numbers, block
numbers and most of what kernels make of them, addresses above all, are a base plus a stride for each coordinate. Sums
and multiples of such values are such values again. A comparison cuts the lanes along one axis. Memory at such addresses
is a strided view. So `Affine`, `Cut` and `Box` stand for arrays of integers, of predicates and of lanes, and become an
array (`array`) for every other operation. Their values never change.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class Lazy(NDArrayOperatorsMixin):
    """A value that represents an array of one dimension. An operation that does not support it gets the array."""

    __slots__ = ("_array", "shape")

    ndim = 1

    def __init__(self, shape: Shape) -> None:
        self.shape: Shape = shape
        """The number of lanes along each axis; the array has them all in a row."""
        self._array: Array | None = None

    @property
    def size(self) -> int:
        """The number of lanes."""
        return math.prod(self.shape)

    def written(self) -> Array:
        """Return a new array with its values."""
        raise NotImplementedError

    @property
    def array(self) -> Array:
        """Return the array with its values, which must not be changed."""
        if self._array is None:
            self._array = self.written()
            self._array.flags.writeable = False
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.array, dtype, copy=copy)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)

    def __getitem__(self, places: Any) -> Any:
        return self.array[places]

    def __len__(self) -> int:
        return self.size

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__" and not options:
            known = _OPERATIONS.get(ufunc)
            result = known(*inputs) if known else None
            if result is not None:
                return result
            if all(map(_one_value, inputs)):
                return _of_one_value(self.shape, ufunc(*map(_plain, inputs)))
        return getattr(ufunc, method)(*map(_plain, inputs), **options)


class Affine(Lazy):
    """Integers: a base, and for each axis the stride along it, modulo 2 to the width of the type.

    A value without strides may be a predicate, too.
    """

    __slots__ = ("base", "dtype", "strides")

    def __init__(self, shape: Shape, base: int, strides: Shape, dtype: Any) -> None:
        self.shape = shape
        self._array = None
        self.base: int = base
        self.strides: Shape = strides
        self.dtype: np.dtype[Any] = np.dtype(dtype)

    @classmethod
    def same(cls, shape: Shape, value: Any, dtype: Any) -> Affine:
        """One value in all lanes."""
        return cls(shape, int(value), (0,) * len(shape), dtype)

    def written(self) -> Array:
        if self.uniform:
            return np.full(self.size, self.value)
        bits = 8 * self.dtype.itemsize
        unsigned = np.dtype(f"u{bits // 8}").type
        total: Any = unsigned(self.base % 2**bits)
        for count, stride in zip(self.shape, self.strides, strict=True):
            steps = np.arange(count, dtype=unsigned) * unsigned(stride % 2**bits)
            total = np.add.outer(total, steps) if stride else np.repeat(total[..., np.newaxis], count, -1)
        result: Array = total.reshape(-1).view(self.dtype)
        return result

    @property
    def uniform(self) -> bool:
        """Tell whether it is known to be the same in all lanes."""
        return not any(self.strides)

    @property
    def value(self) -> Any:
        """The value of the first lane, and of all if they have the same."""
        width = 2 ** (8 * self.dtype.itemsize)
        number = self.base % width
        return self.dtype.type(number - width if self.dtype.kind == "i" and number >= width // 2 else number)

    def any(self) -> bool:
        """Tell whether it is nonzero in some lane."""
        return bool(self.base) if self.uniform else bool(self.array.any())

    def copy(self) -> Affine:
        """Itself, since it never changes."""
        return self

    def view(self, dtype: Any) -> Any:
        """The same bits as another type."""
        if np.dtype(dtype).kind in "iu" and np.dtype(dtype).itemsize == self.dtype.itemsize:
            return Affine(self.shape, self.base, self.strides, dtype)
        return self.written().view(dtype)

    def astype(self, dtype: Any) -> Any:
        """The same numbers in another type."""
        to = np.dtype(dtype)
        if to.kind in "iu" and self.dtype.kind in "iu":
            if to.itemsize <= self.dtype.itemsize:
                return Affine(self.shape, self.base, self.strides, to)
            within = self.within()
            if within is not None:
                return Affine(self.shape, within.base, self.strides, to)
        return self.array.astype(to)

    def span(self) -> tuple[int, int]:
        """Return the smallest and the largest of the integers, if none of them wraps."""
        low = high = self.base
        for stride, count in zip(self.strides, self.shape, strict=True):
            if stride > 0:
                high += stride * (count - 1)
            elif stride:
                low += stride * (count - 1)
        return low, high

    def within(self) -> Affine | None:
        """Return the same with a base for which none of the integers wraps; None if there is no such base."""
        width = 2 ** (8 * self.dtype.itemsize)
        smallest = -(width // 2) if self.dtype.kind == "i" else 0
        low, high = self.span()
        down = (low - smallest) // width * width
        if high - down >= smallest + width:
            return None
        return Affine(self.shape, self.base - down, self.strides, self.dtype) if down else self

    def part(self, box: Box) -> Affine:
        """Return the values of some of the lanes."""
        base = self.base + sum(map(operator.mul, self.strides, box.starts))
        return Affine(box.shape, base, self.strides, self.dtype)

    def distinct(self, size: int) -> bool:
        """Tell whether items of `size` bytes at these addresses are known not to overlap."""
        steps = sorted((abs(stride), count) for stride, count in zip(self.strides, self.shape, strict=True))
        for stride, count in steps:
            if count > 1 and stride < size:
                return False
            size += stride * (count - 1)
        return True

    @property
    def low_bits(self) -> int:
        """Return the bits that are set in the distance of any two of the integers."""
        return functools.reduce(operator.or_, map(abs, self.strides), 0)

    def window(self, memory: Array, offset: int, dtype: np.dtype[Any]) -> Array:
        """Return the items of `memory` at these offsets, all inside of it and aligned: a view of many dimensions."""
        return np.ndarray(self.shape, dtype, memory, offset + self.base, self.strides)

    def read(self, window: Array) -> Any:
        """Return the items of a window, in the order of the lanes."""
        if self.uniform and window.dtype.kind in "iu":
            return Affine.same(self.shape, window.item(0), window.dtype)
        return window.flatten()


class Cut(Lazy):
    """Predicates that are true from `start` up to `stop` along one axis and false elsewhere, or, inverted, the
    opposite."""

    __slots__ = ("axis", "inverted", "start", "stop")

    def __init__(self, shape: Shape, axis: int, start: int, stop: int, *, inverted: bool) -> None:
        super().__init__(shape)
        self.axis: int = axis
        self.start: int = start
        self.stop: int = stop
        self.inverted: bool = inverted

    def written(self) -> Array:
        held: Array = np.full(self.shape, self.inverted)
        held[(slice(None),) * self.axis + (slice(self.start, self.stop),)] = not self.inverted
        return held.reshape(-1)

    def flipped(self) -> Cut:
        """The opposite predicates."""
        return Cut(self.shape, self.axis, self.start, self.stop, inverted=not self.inverted)

    def boxes(self, box: Box) -> tuple[list[Box], list[Box]]:
        """Return the lanes of the box in which it is true, and the others."""
        ends = (0, self.start), (self.stop, self.shape[self.axis])
        outside = [box.between(self.axis, *bounds) for bounds in ends if bounds[0] < bounds[1]]
        inside = [box.between(self.axis, self.start, self.stop)]
        return (outside, inside) if self.inverted else (inside, outside)


class Box(Lazy):
    """The lanes between certain coordinates of a chunk: their numbers, in order."""

    __slots__ = ("starts", "whole")

    def __init__(self, whole: Shape, starts: Shape, shape: Shape) -> None:
        super().__init__(shape)
        self.whole: Shape = whole
        self.starts: Shape = starts

    def written(self) -> Array:
        return np.ascontiguousarray(self.of(np.arange(math.prod(self.whole))))

    def of(self, values: Array) -> Array:
        """Return the values of these lanes in an array over all lanes, which may be a view of it."""
        return self._places(values).reshape(-1)

    def put(self, values: Array, mine: Any) -> None:
        """Set the values of these lanes in an array over all lanes."""
        self._places(values)[...] = laid_out(mine, self.shape)

    def _places(self, values: Array) -> Array:
        ranges = zip(self.starts, self.shape, strict=True)
        return values.reshape(self.whole)[tuple(slice(start, start + count) for start, count in ranges)]

    def between(self, axis: int, start: int, stop: int) -> Box:
        """Return the lanes from one coordinate along an axis up to another, counted from the box's own beginning."""
        starts, shape = list(self.starts), list(self.shape)
        starts[axis] += start
        shape[axis] = stop - start
        return Box(self.whole, tuple(starts), tuple(shape))


def laid_out(value: Any, shape: Shape) -> Any:
    """Return an array over the lanes with one axis for each of theirs; a scalar if there is one value."""
    plain = _plain(value)
    return plain.reshape(shape) if np.ndim(plain) else plain


def _plain(value: Any) -> Any:
    """Return a value that numpy can compute with: a scalar if there is one value, else an array."""
    if isinstance(value, Affine) and value.uniform:
        return value.value
    return value.array if isinstance(value, Lazy) else value


def _one_value(value: Any) -> bool:
    return value.uniform if isinstance(value, Affine) else isinstance(value, np.generic | int | float)


def _of_one_value(shape: Shape, value: Any) -> Any:
    """The same value in all lanes."""
    if value.dtype.kind in "iub":
        return Affine.same(shape, value, value.dtype)
    return np.full(math.prod(shape), value)


def _number(value: Any, dtype: np.dtype[Any]) -> int | None:
    """Return the one integer that an operand of this type is in all lanes, if it is."""
    if isinstance(value, Affine):
        return value.base if value.uniform and value.dtype == dtype else None
    if isinstance(value, int) or (isinstance(value, np.integer) and value.dtype == dtype):
        return int(value)
    return None


def _counts(value: Any) -> bool:
    return isinstance(value, Affine) and value.dtype.kind in "iu"


def _multiple(value: Affine, factor: int) -> Affine:
    return Affine(value.shape, value.base * factor, tuple([stride * factor for stride in value.strides]), value.dtype)


def _sum(a: Any, b: Any) -> Affine | None:
    if not _counts(a):
        a, b = b, a
    if not _counts(a):
        return None
    number = _number(b, a.dtype)
    if number is not None:
        return Affine(a.shape, a.base + number, a.strides, a.dtype)
    if not _counts(b) or a.dtype != b.dtype:
        return None
    return Affine(a.shape, a.base + b.base, tuple(map(operator.add, a.strides, b.strides)), a.dtype)


def _difference(a: Any, b: Any) -> Affine | None:
    if _counts(b):
        return _sum(a, _multiple(b, -1))
    number = _number(b, a.dtype)
    return None if number is None else _sum(a, -number)


def _product(a: Any, b: Any) -> Affine | None:
    for value, other in ((a, b), (b, a)):
        if _counts(value):
            factor = _number(other, value.dtype)
            if factor is not None:
                return _multiple(value, factor)
    return None


def _shifted(a: Any, b: Any) -> Affine | None:
    count = _number(b, a.dtype) if _counts(a) else None
    return None if count is None or not 0 <= count < 8 * a.dtype.itemsize else _multiple(a, 1 << count)


def _negative(value: Any) -> Affine | None:
    return _multiple(value, -1) if _counts(value) else None


def _inverse(value: Any) -> Cut | None:
    return value.flipped() if isinstance(value, Cut) else None


def _compared(kind: str, inverted: bool, a: Any, b: Any) -> Cut | Affine | None:
    """`a < b`, `a <= b` or `a == b`, or, inverted, the opposite predicate."""
    if _one_value(a) and _one_value(b):
        return None
    first, second = (value.within() if isinstance(value, Affine) else value for value in (a, b))
    if first is None or second is None:
        return None
    difference = _difference(first, second)
    if difference is None:
        return None
    low, high = difference.span()
    axes = [axis for axis, stride in enumerate(difference.strides) if stride and difference.shape[axis] > 1]
    if kind == "equal":
        decided = False if low > 0 or high < 0 else None if axes else True
    else:
        limit = 1 if kind == "less_equal" else 0
        decided = True if high < limit else False if low >= limit else None
    if decided is not None:
        return Affine.same(difference.shape, decided != inverted, np.bool_)
    if len(axes) != 1:
        return None
    (axis,) = axes
    base, stride, count = difference.base, difference.strides[axis], difference.shape[axis]
    if kind == "equal":
        start, stop = (-base // stride, -base // stride + 1) if base % stride == 0 else (0, 0)
    elif stride > 0:
        start, stop = 0, -((base - limit) // stride)
    else:
        start, stop = (base - limit) // -stride + 1, count
    if start == stop:
        return Affine.same(difference.shape, inverted, np.bool_)
    return Cut(difference.shape, axis, start, stop, inverted=inverted)


_OPERATIONS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: _sum,
    np.subtract: _difference,
    np.multiply: _product,
    np.left_shift: _shifted,
    np.negative: _negative,
    np.invert: _inverse,
    np.less: lambda a, b: _compared("less", False, a, b),
    np.less_equal: lambda a, b: _compared("less_equal", False, a, b),
    np.greater: lambda a, b: _compared("less_equal", True, a, b),
    np.greater_equal: lambda a, b: _compared("less", True, a, b),
    np.equal: lambda a, b: _compared("equal", False, a, b),
    np.not_equal: lambda a, b: _compared("equal", True, a, b),
}
"""The functions on affine values; None means that the function takes the arrays."""
