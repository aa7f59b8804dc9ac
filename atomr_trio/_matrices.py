"""Arrays as the libraries of linear algebra see them: vectors with a stride, and matrices column by column.

numpy's arrays lie row by row, those libraries' matrices column by column. An array that lies row by row is the
transpose of one that lies column by column, in the same place; so nothing is moved, and it is said with each call which
of the two an operand is. All of that is here, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal, cast

import attrs
import numpy as np
import numpy.typing as npt

from . import _layout
from ._arrays import DeviceArray
from ._errors import InvalidArgument
from ._util import named, shown

Operation = Literal["N", "T", "C"]
"""What is done to a matrix before it is used: nothing, transposed, transposed and conjugated."""

OPERATIONS: Final = {"N": 0, "T": 1, "C": 2}
"""``cublasOperation_t``."""


def check_operation(value: object, name: str) -> Operation:
    """Return an operation. Raises `InvalidArgument` for anything else."""
    if named(OPERATIONS, value) is None:
        raise InvalidArgument(f'{name} is "N", "T" or "C", not {shown(value)}')
    return cast("Operation", value)


def check_array(array: object, name: str, *axes: int) -> DeviceArray:
    """Return an array with one of so many axes. Raises `InvalidArgument` for anything else."""
    if not isinstance(array, DeviceArray):
        raise InvalidArgument(f"{name} is an array on the device, not {shown(array)}")
    if axes and array.ndim not in axes:
        wanted = " or ".join(map(str, axes))
        raise InvalidArgument(f"{name} has {wanted} axes, not {array.ndim}: its shape is {array.shape}")
    return array


@attrs.frozen
class Vector:
    """An array of one axis: where it begins, how many elements it has, and how far they are apart."""

    array: DeviceArray
    length: int
    increment: int
    """In elements. A negative one means, to BLAS, that the vector is read from its end."""

    @property
    def address(self) -> int:
        """The lowest address, which is what BLAS wants of a vector that is read backwards, too."""
        if self.increment >= 0 or not self.length:
            return self.array.address
        return self.array.address + (self.length - 1) * self.array.strides[0]


def vector(array: object, name: str) -> Vector:
    """Return an array of one axis as a vector. Raises `InvalidArgument` for anything else."""
    checked = check_array(array, name, 1)
    stride, itemsize = checked.strides[0], checked.itemsize
    if stride % itemsize:
        raise InvalidArgument(f"{name} has elements {stride} bytes apart, which is no multiple of their size")
    increment = stride // itemsize
    return Vector(checked, checked.shape[0], increment if checked.shape[0] > 1 else 1)


def is_spread(array: DeviceArray) -> bool:
    """Whether the elements of a vector are a whole number of elements apart, and no two in one place."""
    return array.strides[0] % array.itemsize == 0 and (array.strides[0] != 0 or array.size <= 1)


@attrs.frozen
class Matrix:
    """An array of two axes, or a stack of such, as a library sees it in its place."""

    array: DeviceArray
    rows: int
    """Of the array as numpy has it."""
    columns: int
    by_rows: bool
    """Whether it lies row by row, so that a library sees its transpose there."""
    leading: int
    """Elements from one row to the next where it lies row by row, and else from one column to the next."""
    count: int = 1
    """How many matrices there are in the stack."""
    distance: int | None = 0
    """Elements from one to the next; None where that differs."""
    listed: tuple[DeviceArray, ...] = ()
    """The matrices, where they are not a stack but so many arrays, of which `array` is the first."""

    @property
    def address(self) -> int:
        """Where its first element is."""
        return self.array.address

    @property
    def seen(self) -> tuple[int, int]:
        """Rows and columns of what a library sees there."""
        return (self.columns, self.rows) if self.by_rows else (self.rows, self.columns)

    @property
    def arrays(self) -> tuple[DeviceArray, ...]:
        """The arrays whose memory it is."""
        return self.listed or (self.array,)

    @property
    def addresses(self) -> npt.NDArray[np.int64]:
        """Where the first element of each matrix is."""
        if self.listed:
            return np.array([array.address for array in self.listed], np.int64)
        addresses = np.full((), self.address, np.int64)
        for length, stride in zip(self.array.shape[:-2], self.array.strides[:-2], strict=True):
            addresses = addresses[..., np.newaxis] + np.arange(length) * stride
        return addresses.reshape(-1)

    def operation(self, wanted: Operation, by_rows: bool) -> int | None:
        """What the library must do to what it sees there, for a result that it writes row by row or not.

        A result that lies row by row is computed as its transpose. None where no call says it: a matrix that would be
        conjugated, and not transposed.
        """
        transposed = (wanted != "N") ^ self.by_rows ^ by_rows
        if wanted == "C":
            return OPERATIONS["C"] if transposed else None
        return OPERATIONS["T" if transposed else "N"]


def matrix(array: object, name: str, *, axes: tuple[int, ...] = (2,)) -> Matrix | None:
    """Return an array as a matrix, or a stack; None if it lies so that no library takes it where it is.

    Raises `InvalidArgument` for what has not so many axes.
    """
    return matrix_of(check_array(array, name, *axes))


def matrix_of(array: DeviceArray, by_rows: bool | None = None) -> Matrix | None:
    """The same for an array that was checked; None, too, if it does not lie row by row, or not, as asked."""
    if any(stride % array.itemsize for stride in array.strides):
        return None
    for way in (True, False) if by_rows is None else (by_rows,):
        leading = _leading_of(array, way)
        if leading is not None:
            rows, columns = array.shape[-2:]
            return Matrix(array, rows, columns, way, leading, *_stack_of(array))
    return None


def _leading_of(array: DeviceArray, by_rows: bool) -> int | None:
    """Its leading dimension, if it lies row by row, or if it lies column by column."""
    (lines, line), (length, step) = zip(array.shape[-2:], array.strides[-2:], strict=True)
    if not by_rows:
        (lines, line), (length, step) = (length, step), (lines, line)
    line, step = line // array.itemsize, step // array.itemsize
    least = max(length, 1)
    if (step == 1 or length <= 1) and (line >= least or lines <= 1):
        return max(line, least) if lines > 1 else least
    return None


def _stack_of(array: DeviceArray) -> tuple[int, int | None]:
    """How many matrices there are, and how many elements they are apart; None where that differs."""
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
    """A view of a stack of matrices that is repeated to have this shape, as numpy would."""
    shadow = np.broadcast_to(_layout.shadow(array.shape, array.strides, array.itemsize), shape)
    return DeviceArray._create(array._storage, array._offset, shadow.shape, shadow.strides, array.dtype)


def as_list(matrices: Sequence[Matrix]) -> Matrix | None:
    """Matrices of one shape as one thing; None if they lie differently."""
    first = matrices[0]
    if any((each.by_rows, each.leading) != (first.by_rows, first.leading) for each in matrices):
        return None
    arrays = tuple(each.array for each in matrices)
    return attrs.evolve(first, count=len(arrays), distance=None, listed=arrays)


def strides_text(array: DeviceArray) -> str:
    """Say how an array lies, for messages."""
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
