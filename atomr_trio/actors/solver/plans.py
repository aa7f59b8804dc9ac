"""What the verbs of the solver are planned with: matrices column by column, and the calls on each of a stack.

LAPACK wants matrices that lie column by column. What lies row by row is turned round by cuBLAS on the way into the copy
that most functions need anyway, since they use up what they are given.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from ..._apart import check_apart
from ..._arrays import DeviceArray
from ..._calls import Answer, Argument, Check, Library, Operands, Scalar, check_usable
from ..._errors import InvalidArgument
from ..._library_types import LETTERS, letter_of
from ..._matrices import OPERATIONS, Matrix, broadcast, check_array, matrix_of, strides_text
from ..._util import known, shown
from ...worker.engines.blas import BLAS
from ...worker.engines.calls import ANSWER_BYTES
from ...worker.engines.solver import FUNCTIONS, NONDETERMINISTIC, symbol
from ..copies import plan_copy
from ..memory import plan_fill
from .types import INFOS, arguments_of, error_of


def swapped(array: DeviceArray) -> DeviceArray:
    """A view of a stack whose matrices are transposed."""
    return array.transpose(*range(array.ndim - 2), array.ndim - 1, array.ndim - 2)


def lines(vectors: DeviceArray) -> list[int]:
    """Where each vector of a stack of such begins, that lie one behind the other."""
    step = vectors.shape[-1] * vectors.itemsize
    return [vectors.address + index * step for index in range(math.prod(vectors.shape[:-1]))]


def places(matrices: Matrix) -> list[int]:
    """Where each matrix of a stack begins."""
    addresses: list[int] = matrices.addresses.tolist()
    return addresses


def check_square(array: DeviceArray, name: str) -> None:
    """Refuse a matrix that is not square."""
    if array.shape[-1] != array.shape[-2]:
        raise InvalidArgument(f"{name} is square, not of shape {array.shape}")


def check_number(value: object, name: str, most: int) -> int:
    """Return a number from 1 to `most`. Raises `InvalidArgument` for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidArgument(f"{name} is a number from 1 to {most}, not {shown(value)}")
    return value


@attrs.frozen
class Routine:
    """A function of the library, to be called for the matrices of a stack."""

    call: Callable[..., None]
    """`Library._call`."""
    device: int
    name: str
    """As ``worker/engines/solver.py`` has it."""
    dtype: np.dtype[Any]
    operands: Operands
    order: int
    """Of the matrix, for what an info says."""
    stack: tuple[int, ...]
    flags: int
    infos: DeviceArray | None
    """Where the infos of a stack are collected, which are read once; None where each call answers its own."""
    tolerant: bool
    """Whether an info is no error."""

    def __call__(self, index: int, **values: Argument) -> None:
        """Call it for the matrix of this number, with values for its words."""
        if self.infos is None:
            self.many(index, 1, **values)
        else:
            self._call({"info": self.infos.address + index * self.infos.itemsize, **values})

    def many(self, first: int, count: int, **values: Argument) -> None:
        """Call it for so many matrices at once, from this number on."""
        check = None if self.tolerant else functools.partial(self.check, first)
        self._call(values, answer=np.empty(count, np.int32), check=check)

    def _call(self, values: Mapping[str, Argument], **answer: Any) -> None:
        function = FUNCTIONS[symbol(self.name, LETTERS[self.dtype.name])]
        self.call(
            function.name,
            *arguments_of(function, self.dtype, values),
            operation=self._operation,
            operands=self.operands,
            flags=self.flags,
            **answer,
        )

    @property
    def _operation(self) -> str:
        return self.name.removeprefix("X")

    def check(self, first: int, infos: npt.NDArray[Any]) -> Exception | None:
        """What infos say, of which the first is that of the matrix of this number."""
        wrong = np.flatnonzero(infos)
        if not wrong.size:
            return None
        number = first + int(wrong[0])
        matrix = tuple(int(index) for index in np.unravel_index(number, self.stack)) if self.stack else None
        return error_of(self._operation, int(infos[wrong[0]]), self.order, matrix=matrix, device=self.device)


class SolverPlans(Library):
    """The base of the solver's verbs."""

    __slots__ = ()

    # What is given.

    def _given(self, array: object, name: str, *, square: bool = False) -> DeviceArray:
        """A matrix, or a stack of such, of a type that the library has."""
        given = check_array(array, name)
        check_usable(self._device, given)
        letter_of(given)
        if given.ndim < 2:
            raise InvalidArgument(f"{name} has two axes or more, not {given.ndim}: its shape is {given.shape}")
        if square:
            check_square(given, name)
        return given

    def _vectors(self, array: object, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Vectors of this shape, one behind the other: pivots, or the scales of reflectors."""
        given = check_array(array, name)
        check_usable(self._device, given)
        if given.shape != shape or given.dtype != dtype:
            raise InvalidArgument(
                f"{name} has shape {given.shape} and dtype {given.dtype.name}, which must be {shape} and "
                f"{np.dtype(dtype).name}"
            )
        if given.contiguous:
            return given
        packed = self._empty(shape, dtype)
        self._copy(given, packed)
        return packed

    def _by_columns(self, array: DeviceArray) -> Matrix:
        """The matrices of an array column by column, copied where they do not lie so."""
        return matrix_of(array, by_rows=False) or self._copied(array)

    def _copied(self, array: DeviceArray) -> Matrix:
        copy = self._new_columns(array.shape, array.dtype)
        self._transfer(array, copy)
        return self._seen(copy)

    def _used_up(self, array: DeviceArray, name: str, overwrite: bool) -> Matrix:
        """The matrices of an array, to be overwritten by a call: a copy, or the array itself if that is asked for."""
        if not overwrite:
            return self._copied(array)
        seen = matrix_of(array, by_rows=False)
        if seen is None or (seen.count > 1 and 0 in array.strides[:-2]):
            raise InvalidArgument(
                f"{name} cannot be overwritten: the library wants matrices that lie column by column, as `a.T` of an "
                f"array of numpy's order does, not {strides_text(array)}"
            )
        return seen

    def _used_up_anyhow(self, array: DeviceArray) -> tuple[Matrix, bool]:
        """A copy in the order that the array has, and whether the library sees transposes there."""
        seen = matrix_of(array)
        if seen is None or not seen.by_rows:
            return self._copied(array), False
        copy = self._empty(array.shape, array.dtype)
        self._copy(array, copy)
        return self._seen(swapped(copy)), True

    def _right_sides(
        self, b: object, name: str, a: DeviceArray, rows: int, *, overwrite: bool = False
    ) -> tuple[Matrix, DeviceArray]:
        """Right-hand sides for matrices `a`, to be overwritten by the solution, and the array that has its shape.

        What has one axis is a vector, as numpy takes it; leading axes are broadcast.
        """
        given = check_array(b, name)
        check_usable(self._device, given)
        letter_of(a, given)
        is_vector = given.ndim == 1
        if not given.ndim:
            raise InvalidArgument(f"{name} has one axis or more, not 0")
        sides = broadcast(given, (1, *given.shape)).T if is_vector else given
        if sides.shape[-2] != rows:
            raise InvalidArgument(f"{name} has {sides.shape[-2]} rows, not {rows}: its shape is {given.shape}")
        try:
            stack = np.broadcast_shapes(a.shape[:-2], sides.shape[:-2])
        except ValueError:
            raise InvalidArgument(f"stacks of shapes {a.shape} and {given.shape} do not fit together") from None
        shape = (*stack, *sides.shape[-2:])
        if overwrite:
            if sides.shape != shape:
                raise InvalidArgument(f"{name} cannot be overwritten by a solution of shape {shape}")
            check_apart(given, a)
            return self._used_up(sides, name, overwrite), given
        work = self._copied(broadcast(sides, shape))
        return work, work.array[..., 0] if is_vector else work.array

    # New memory.

    def _new_columns(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """New matrices that lie column by column."""
        return swapped(self._empty((*shape[:-2], shape[-1], shape[-2]), dtype))

    def _seen(self, columns: DeviceArray) -> Matrix:
        return known(matrix_of(columns, by_rows=False), "the matrices lie column by column")

    def _identities(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Matrix:
        """New matrices with ones on the diagonal, column by column."""
        array = self._new_columns(shape, dtype)
        self._make_identity(array)
        return self._seen(array)

    # What is done besides.

    def _fill(self, array: DeviceArray, value: complex) -> None:
        self._requests += plan_fill(array, value, self._lane)

    def _make_identity(self, array: DeviceArray) -> None:
        self._fill(array, 0)
        self._fill(_diagonal(array), 1)

    def _clear_below(self, array: DeviceArray) -> None:
        """Write zeros below the diagonal."""
        for part in _below_diagonal(array):
            self._fill(part, 0)

    def _copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Have matrices copied: in parts, where they are too scattered or too many to be copied at once."""
        requests = plan_copy(source, target, self._lane)
        if requests is not None:
            self._requests += requests
        elif target.ndim > 2:
            for index in range(len(target)):
                self._copy(source[index], target[index])
        elif target.ndim == 2:
            for column in range(target.shape[1]):
                self._copy(source[:, column], target[:, column])
        else:
            super()._copy(source, target)

    def _transfer(self, source: DeviceArray, target: DeviceArray) -> None:
        """Have matrices copied to others that lie column by column."""
        seen = matrix_of(source, by_rows=True)
        rows, columns = source.shape[-2:]
        if seen is None or min(rows, columns) <= 1 or not source.size or matrix_of(source, by_rows=False) is not None:
            self._copy(source, target)
        elif seen.count <= columns:
            self._turn(seen, self._seen(target))
        else:
            for column in range(columns):
                self._copy(source[..., column], target[..., column])

    def _turn(self, source: Matrix, target: Matrix, *, conjugated: bool = False) -> None:
        """Transpose what a library sees of matrices into others (``cublasSgeam``)."""
        operands = self._operands()
        operands.reads(source.array)
        operands.writes(target.array, keeps=target.count > 1)
        dtype, word = source.array.dtype, OPERATIONS["C" if conjugated else "T"]
        one, zero = Scalar.of(1, dtype), Scalar.of(0, dtype)
        rows, columns = target.seen
        for origin, to in zip(places(source), places(target), strict=True):
            first = (origin, source.leading)
            arguments = (word, word, rows, columns, one, *first, zero, *first, to, target.leading)
            name = f"cublas{LETTERS[dtype.name]}geam_64"
            self._call(name, *arguments, operation="transpose", operands=operands, table=BLAS)

    def _read(
        self, array: DeviceArray, out: npt.NDArray[Any], check: Check | None = None, *, increment: int = 1
    ) -> None:
        """Have elements that are `increment` apart brought to a host array; `check` is asked when all are there.

        cuBLAS's copy moves them to where the lane has its answers, whatever the bits mean.
        """
        flat, step = out.reshape(-1), ANSWER_BYTES // out.itemsize
        operands = self._operands()
        operands.reads(array)
        for first in range(0, flat.size, step):
            part = flat[first : first + step]
            self._call(
                f"cublas{_MOVED_AS[out.itemsize]}copy_64",
                part.size,
                array.address + first * increment * out.itemsize,
                increment,
                Answer(),
                1,
                operation="read",
                operands=operands,
                answer=part,
                check=None if check is None or first + step < flat.size else lambda _: check(out),
                table=BLAS,
            )

    def _read_diagonals(self, work: Matrix, check: Check) -> None:
        """Have `check` asked about the diagonals of matrices, of shape (..., k)."""
        array, order = work.array, min(work.rows, work.columns)
        out: npt.NDArray[Any] = np.empty((*array.shape[:-2], order), array.dtype)
        if work.count == 1:
            self._read(array, out, check, increment=work.leading + 1)
            return
        packed = self._empty(out.shape, out.dtype)
        operands = self._operands()
        operands.reads(array)
        operands.writes(packed)
        function = f"cublas{LETTERS[out.dtype.name]}copy_64"
        for origin, to in zip(places(work), lines(packed), strict=True):
            arguments = (order, origin, work.leading + 1, to, 1)
            self._call(function, *arguments, operation="read", operands=operands, table=BLAS)
        self._read(packed, out, check)

    @contextlib.contextmanager
    def _routine(
        self,
        name: str,
        array: DeviceArray,
        operands: Operands,
        *,
        order: int = 0,
        deterministic: bool = True,
        tolerant: bool = False,
    ) -> Iterator[Routine]:
        """A function to be called for the matrices of an array; what its infos say is read at the end of the block."""
        stack = array.shape[:-2]
        infos = None
        if math.prod(stack) > 1 and "Batched" not in name:
            infos = self._empty((math.prod(stack),), np.int32)
            operands.writes(infos)
        flags = 0 if deterministic else NONDETERMINISTIC
        index = self._device.index
        routine = Routine(self._call, index, name, array.dtype, operands, order, stack, flags, infos, tolerant)
        yield routine
        if infos is not None and not tolerant:
            self._read(infos, np.empty(infos.shape, np.int32), functools.partial(routine.check, 0))


_MOVED_AS = {4: "S", 8: "D", 16: "Z"}
"""The letters of cuBLAS's types by their sizes in bytes."""


def chunks(count: int) -> Iterator[tuple[int, int]]:
    """The parts of a stack that one call answers for: the first of each, and how many."""
    for first in range(0, count, INFOS):
        yield first, min(INFOS, count - first)


def _view(array: DeviceArray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> DeviceArray:
    """Elements of an array whose leading axes stay, from `offset` bytes behind the first."""
    leading = array.ndim - 2
    return DeviceArray._create(
        array._storage,
        array._offset + offset,
        (*array.shape[:leading], *shape),
        (*array.strides[:leading], *strides),
        array.dtype,
    )


def _diagonal(array: DeviceArray) -> DeviceArray:
    """A view of the diagonals of a stack of matrices."""
    row, column = array.strides[-2:]
    return _view(array, 0, (min(array.shape[-2:]),), (row + column,))


def _below_diagonal(array: DeviceArray) -> Iterator[DeviceArray]:
    """Views that cover what is below the diagonal of matrices with at least as many rows as columns.

    Each view is filled by one command: those of a single matrix are about three times the root of its order, those of a
    stack as many as the matrices have columns.
    """
    rows, columns = array.shape[-2:]
    if rows > columns:
        yield array[..., columns:, :]
    count = math.prod(array.shape[:-2])
    yield from _lines_below(array) if columns < 9 * count**2 and count > 1 else _squares_below(array)


def _lines_below(array: DeviceArray) -> Iterator[DeviceArray]:
    """What is below the diagonal of each column, or of each row where the rows lie one behind the other."""
    order = array.shape[-1]
    for index in range(1, order):
        if array.strides[-1] == array.itemsize:
            yield array[..., index, :index]
        else:
            yield array[..., index:order, index - 1]


def _squares_below(array: DeviceArray) -> Iterator[DeviceArray]:
    """Squares that make up the triangle below the diagonal.

    The triangle of a square is a square and two triangles of half its size, so all squares of one size lie along the
    diagonal at equal steps.
    """
    order = array.shape[-1]
    row, column = array.strides[-2:]
    size = 1
    while size < order:
        step = 2 * size
        whole = order // step
        if whole <= size:
            for index in range(whole):
                yield _view(array, index * step * (row + column) + size * row, (size, size), (row, column))
        else:
            for index in range(size):
                yield _view(array, size * row + index * column, (whole, size), (step * (row + column), row))
        rest = order - whole * step - size
        if rest > 0:
            yield _view(array, whole * step * (row + column) + size * row, (rest, size), (row, column))
        size = step
