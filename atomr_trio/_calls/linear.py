"""Arrays as the libraries of linear algebra see them: vectors with a stride, and column-major matrices.

numpy's arrays are row-major, those libraries' matrices are column-major. A row-major array is the transpose of a
column-major one in the same place. So nothing is moved, and each call says which of the two an operand is. All of that
is in this file alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal, cast

import attrs
import numpy as np
import numpy.typing as npt

from .._arrays import layout as _layout
from .._arrays.arrays import DeviceArray
from .._values.errors import InvalidArgument
from .._values.packing import TO_DEVICE
from .._values.util import named, shown

Operation = Literal["N", "T", "C"]
"""The operation on a matrix before it is used: none, transposition, transposition with conjugation."""

OPERATIONS: Final = {"N": 0, "T": 1, "C": 2}
"""``cublasOperation_t``."""


def check_operation(value: object, name: str) -> Operation:
    """Return an operation. Raises `InvalidArgument` for anything else."""
    if named(OPERATIONS, value) is None:
        raise InvalidArgument(f'{name} is "N", "T" or "C", not {shown(value)}')
    return cast("Operation", value)


def check_array(array: object, name: str, *axes: int) -> DeviceArray:
    """Return an array whose number of axes is one of `axes`. Raises `InvalidArgument` for anything else."""
    if not isinstance(array, DeviceArray):
        on_host = isinstance(array, np.ndarray | np.generic | list | tuple)
        advice = f"{TO_DEVICE}." if on_host else None
        raise InvalidArgument(f"{name} is an array on the device, not {shown(array)}", advice=advice)
    if axes and array.ndim not in axes:
        wanted = " or ".join(map(str, axes))
        raise InvalidArgument(f"{name} has {wanted} axes, not {array.ndim}: its shape is {array.shape}")
    return array


@attrs.frozen
class Vector:
    """An array of one axis: its start, the number of its elements, and their distance."""

    array: DeviceArray
    length: int
    increment: int
    """The distance in elements. To BLAS, a negative one means that the vector is read from its end."""

    @property
    def address(self) -> int:
        """The lowest address, which BLAS takes even for a vector that is read backwards."""
        if self.increment >= 0 or not self.length:
            return self.array.address
        return self.array.address + (self.length - 1) * self.array.strides[0]


def vector(array: object, name: str) -> Vector:
    """Return an array of one axis as a vector. Raises `InvalidArgument` for anything else."""
    checked = check_array(array, name, 1)
    stride, itemsize = checked.strides[0], checked.itemsize
    if stride % itemsize:
        raise InvalidArgument(
            f"{name} has elements {stride} bytes apart, which is not a multiple of their size: copy it first"
        )
    increment = stride // itemsize
    return Vector(checked, checked.shape[0], increment if checked.shape[0] > 1 else 1)


def is_spread(array: DeviceArray) -> bool:
    """Return whether the distance of a vector's elements is a multiple of their size, and not 0."""
    return array.strides[0] % array.itemsize == 0 and (array.strides[0] != 0 or array.size <= 1)


@attrs.frozen
class Matrix:
    """An array of two axes, or a stack of matrices, as a library sees it in its place."""

    array: DeviceArray
    rows: int
    """The rows of the array as numpy has it."""
    columns: int
    by_rows: bool
    """True if it is row-major, so that a library sees its transpose."""
    leading: int
    """The elements from one row to the next if it is row-major, else from one column to the next."""
    count: int = 1
    """The number of matrices in the stack."""
    distance: int | None = 0
    """The elements from one matrix to the next; None if that differs."""
    listed: tuple[DeviceArray, ...] = ()
    """The matrices, if they are separate arrays and not a stack; `array` is the first of them."""

    @property
    def address(self) -> int:
        """The address of its first element."""
        return self.array.address

    @property
    def seen(self) -> tuple[int, int]:
        """The rows and columns of the matrix as a library sees it."""
        return (self.columns, self.rows) if self.by_rows else (self.rows, self.columns)

    @property
    def arrays(self) -> tuple[DeviceArray, ...]:
        """The arrays that own its memory."""
        return self.listed or (self.array,)

    @property
    def addresses(self) -> npt.NDArray[np.int64]:
        """Return the address of the first element of each matrix."""
        if self.listed:
            return np.array([array.address for array in self.listed], np.int64)
        addresses = np.full((), self.address, np.int64)
        for length, stride in zip(self.array.shape[:-2], self.array.strides[:-2], strict=True):
            addresses = addresses[..., np.newaxis] + np.arange(length) * stride
        return addresses.reshape(-1)

    def operation(self, wanted: Operation, by_rows: bool) -> int | None:
        """Return the library's operation on the matrix as it sees it, for a result that is row-major or not.

        A row-major result is computed as its transpose. Returns None if no call has the operation: a conjugation
        without transposition.
        """
        transposed = (wanted != "N") ^ self.by_rows ^ by_rows
        if wanted == "C":
            return OPERATIONS["C"] if transposed else None
        return OPERATIONS["T" if transposed else "N"]


def matrix(array: object, name: str, *, axes: tuple[int, ...] = (2,)) -> Matrix | None:
    """Return an array as a matrix, or a stack; None if its strides are such that no library takes it in its place.

    Raises `InvalidArgument` for another number of axes.
    """
    return matrix_of(check_array(array, name, *axes))


def matrix_of(array: DeviceArray, by_rows: bool | None = None) -> Matrix | None:
    """Return a checked array as a matrix, or a stack; None, too, if it is not row-major, or is, against `by_rows`."""
    if any(stride % array.itemsize for stride in array.strides):
        return None
    for way in (True, False) if by_rows is None else (by_rows,):
        leading = _leading_of(array, way)
        if leading is not None:
            rows, columns = array.shape[-2:]
            return Matrix(array, rows, columns, way, leading, *_stack_of(array))
    return None


def _leading_of(array: DeviceArray, by_rows: bool) -> int | None:
    """Return its leading dimension as a row-major or a column-major matrix; None if it is not such a matrix."""
    (lines, line), (length, step) = zip(array.shape[-2:], array.strides[-2:], strict=True)
    if not by_rows:
        (lines, line), (length, step) = (length, step), (lines, line)
    line, step = line // array.itemsize, step // array.itemsize
    least = max(length, 1)
    if (step == 1 or length <= 1) and (line >= least or lines <= 1):
        return max(line, least) if lines > 1 else least
    return None


def _stack_of(array: DeviceArray) -> tuple[int, int | None]:
    """Return the number of matrices, and the elements between them; None if that differs."""
    count, distance = 1, 0
    for length, stride in zip(reversed(array.shape[:-2]), reversed(array.strides[:-2]), strict=True):
        if length == 1:
            continue
        if count == 1:
            count, distance = length, stride
        elif stride == distance * count:
            count *= length
        else:
            return math.prod(array.shape[:-2]), None
    return count, distance // array.itemsize if distance >= 0 else None


def broadcast(array: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
    """Return a view of a stack of matrices, broadcast to this shape as by numpy."""
    shadow = np.broadcast_to(_layout.shadow(array.shape, array.strides, array.itemsize), shape)
    return DeviceArray._create(array._storage, array._offset, shadow.shape, shadow.strides, array.dtype)


def as_list(matrices: Sequence[Matrix]) -> Matrix | None:
    """Return matrices of one shape as one `Matrix`; None if their layouts differ."""
    first = matrices[0]
    if any((each.by_rows, each.leading) != (first.by_rows, first.leading) for each in matrices):
        return None
    arrays = tuple(each.array for each in matrices)
    return attrs.evolve(first, count=len(arrays), distance=None, listed=arrays)


def strides_text(array: DeviceArray) -> str:
    """Return an array's shape and strides as a text for messages."""
    return f"shape {array.shape}, strides {array.strides} bytes"


def layout_refusal(array: DeviceArray, needed: str, *, written: bool) -> str:
    """Say how an array lies, and what a library needs instead; of one that runs backwards, say that and what to do.

    `needed` is for all others; `written` says that the library was to write the array.
    """
    lengths_and_strides = enumerate(zip(array.shape, array.strides, strict=True))
    backwards = [str(axis) for axis, (length, stride) in lengths_and_strides if length > 1 and stride < 0]
    if backwards:
        axes = f"axis {backwards[0]} is" if len(backwards) == 1 else f"axes {' and '.join(backwards)} are"
        remedy = (
            "have it written to a new array, and copy that here, `await array.copy_from(result)`"
            if written
            else "give a copy, `await dev.to_device(array)`"
        )
        needed = f"the stride of {axes} negative, which the library does not take: {remedy}"
    return f"{strides_text(array)}; {needed}"
