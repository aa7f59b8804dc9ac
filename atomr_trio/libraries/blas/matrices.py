"""Operands of level 3: matrices as cuBLAS takes them, in the order that a call needs.

A call whose result lies row by row computes its transpose (see ``_calls/linear.py``). Most operands are used in place,
whatever their order; the others are copied to the needed order first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..._arrays.arrays import DeviceArray, check_usable
from ..._calls.apart import check_all_apart
from ..._calls.library_types import LETTERS, letter_of, name_of
from ..._calls.linear import (
    OPERATIONS,
    Matrix,
    Operation,
    as_list,
    broadcast,
    check_array,
    check_operation,
    layout_refusal,
    matrix_of,
)
from ..._calls.verbs import Scalar
from ..._values.errors import InvalidArgument
from ..._values.util import known, shown
from .vectors import VectorOperands, factor


def word(is_first: object, turned: bool) -> int:
    """Return a word of cuBLAS, 0 or 1, for left or right, lower or upper; the other one if the transpose is seen."""
    return int(bool(is_first) == turned)


def check_same(array: DeviceArray, shape: tuple[int, ...], name: str) -> None:
    """Raise `InvalidArgument` for an array of another shape."""
    if array.shape != shape:
        raise InvalidArgument(f"{name} has shape {array.shape}, which must be {shape}")


def check_sides(special: DeviceArray, other: DeviceArray, left: bool) -> None:
    """Raise `InvalidArgument` unless the order of a square matrix fits the other matrix on that side."""
    if special.shape[-1] != other.shape[-2 if left else -1]:
        side = "left" if left else "right"
        raise InvalidArgument(f"a of shape {special.shape} cannot be on the {side} of b, of shape {other.shape}")


def check_factor(beta: complex, out: object) -> None:
    """Raise `InvalidArgument` for a factor other than 0 of an `out` that is not given."""
    if out is None and beta != 0:
        raise InvalidArgument("beta is a factor of out, which is not given: give out, or leave beta out")


def common_stack(*arrays: DeviceArray) -> tuple[int, ...]:
    """Return the leading axes of stacks of matrices, broadcast as by numpy."""
    try:
        return np.broadcast_shapes(*(array.shape[:-2] for array in arrays))
    except ValueError:
        shapes = " and ".join(str(array.shape) for array in arrays)
        raise InvalidArgument(f"stacks of shapes {shapes} do not fit together") from None


def is_same_place(first: DeviceArray, second: DeviceArray) -> bool:
    """Return whether two arrays have each element in the same place."""
    return (first.address, first.shape, first.strides) == (second.address, second.shape, second.strides)


def repeated(matrix: Matrix, stack: tuple[int, ...]) -> Matrix:
    """Return a matrix, or a stack, broadcast to these leading axes."""
    if matrix.array.shape[:-2] == stack:
        return matrix
    shape = (*stack, matrix.rows, matrix.columns)
    return known(matrix_of(broadcast(matrix.array, shape), matrix.by_rows), "the matrices lie as they did")


class MatrixOperands(VectorOperands):
    """The base of the verbs that take matrices."""

    __slots__ = ()

    # Arguments.

    def _stack(self, array: object, name: str) -> DeviceArray:
        """Return an array of two or more axes. Raises `InvalidArgument`."""
        given = check_array(array, name)
        if given.ndim < 2:
            raise InvalidArgument(f"{name} has two axes or more, not {given.ndim}: its shape is {given.shape}")
        check_usable(self._device, given)
        return given

    def _list(self, arrays: object, name: str) -> list[DeviceArray]:
        """Return a list of at least one array of two axes, all of one shape and dtype. Raises `InvalidArgument`."""
        if not isinstance(arrays, list | tuple) or not arrays:
            raise InvalidArgument(f"{name} is a list of arrays on the device, not {shown(arrays)}")
        given = [self._taken(array, f"{name}[{index}]", 2) for index, array in enumerate(arrays)]
        for index, array in enumerate(given):
            check_same(array, given[0].shape, f"{name}[{index}]")
            if array.dtype != given[0].dtype:
                raise InvalidArgument(f"{name}[{index}] has dtype {array.dtype.name}, not {given[0].dtype.name}")
        return given

    def _square(self, array: object, name: str, *, stacked: bool = False) -> DeviceArray:
        """Return a matrix with as many rows as columns. Raises `InvalidArgument`."""
        given = self._stack(array, name) if stacked else self._taken(array, name, 2)
        if given.shape[-1] != given.shape[-2]:
            raise InvalidArgument(f"{name} is square, not of shape {given.shape}")
        return given

    # Outputs.

    def _output(self, out: object, shape: tuple[int, ...], dtype: npt.DTypeLike, *, zeros: bool = False) -> Matrix:
        """Return the target of a result: the given array, or new memory, of zeros if the call writes only a part."""
        if out is None:
            make = self._zeroed if zeros else self._empty
            return self._target_matrix(make(shape, dtype), "out")
        given = check_array(out, "out")
        check_usable(self._device, given)
        check_same(given, shape, "out")
        return self._target_matrix(given, "out")

    def _target_matrix(self, array: DeviceArray, name: str) -> Matrix:
        seen = matrix_of(array)
        if seen is None:
            text = layout_refusal(array, "one of its axes must be contiguous", written=True)
            raise InvalidArgument(f"{name} is not a matrix that BLAS takes: {text}")
        return seen

    def _output_list(self, out: object, count: int, shape: tuple[int, int], dtype: npt.DTypeLike) -> Matrix:
        """Return the targets of a list of results; new ones are parts of one array."""
        if out is None:
            stack = self._empty((count, *shape), dtype)
            given = [stack[index] for index in range(count)]
        else:
            given = self._list(out, "out")
            if len(given) != count:
                raise InvalidArgument(f"out has {len(given)} arrays, and there are {count} results")
            check_same(given[0], shape, "out[0]")
        seen = as_list([self._target_matrix(array, f"out[{index}]") for index, array in enumerate(given)])
        if seen is None:
            raise InvalidArgument("the arrays of out have different strides: all need the same")
        check_all_apart(given, ())
        return seen

    # Inputs.

    def _operand(self, array: DeviceArray, wanted: Operation, by_rows: bool) -> tuple[Matrix, int]:
        """Return an input, and the library's operation on it for a result in that order. Copied if there is none.

        The library has no operation for a conjugation without transposition.
        """
        wanted = _of_real(wanted, array)
        seen = matrix_of(array)
        operation = None if seen is None else seen.operation(wanted, by_rows)
        if seen is None or operation is None:
            seen = self._reordered(array, by_rows)
            operation = known(seen.operation(wanted, by_rows), "transposing is what is wanted, or neither of the two")
        return seen, operation

    def _operand_list(self, arrays: list[DeviceArray], wanted: Operation, by_rows: bool) -> tuple[Matrix, int]:
        """Return the same for a list of inputs, which must have the same layout for a call."""
        wanted = _of_real(wanted, arrays[0])
        seen = [each for each in map(matrix_of, arrays) if each is not None]
        alike = as_list(seen) if len(seen) == len(arrays) else None
        operation = None if alike is None else alike.operation(wanted, by_rows)
        if alike is None or operation is None:
            alike = self._new_matrix((len(arrays), *arrays[0].shape), arrays[0].dtype, by_rows)
            for index, array in enumerate(arrays):
                self._transfer(array, alike.array[index])
            operation = known(alike.operation(wanted, by_rows), "transposing is what is wanted, or neither of the two")
        return alike, operation

    def _anyhow(self, array: DeviceArray) -> Matrix:
        """Return an input that may lie row by row or column by column."""
        return matrix_of(array) or self._reordered(array, True)

    def _ordered(self, array: DeviceArray, by_rows: bool) -> Matrix:
        """Return an input that must lie row by row, or column by column."""
        return matrix_of(array, by_rows) or self._reordered(array, by_rows)

    def _new_matrix(
        self, shape: tuple[int, ...], dtype: npt.DTypeLike, by_rows: bool, *, zeros: bool = False
    ) -> Matrix:
        """Return new memory in that order."""
        make = self._memory.zeros if zeros else self._empty
        *stack, rows, columns = shape
        array = make(shape if by_rows else (*stack, columns, rows), dtype)
        if not by_rows:
            axes = range(array.ndim)
            array = array.transpose(*axes[:-2], axes[-1], axes[-2])
        return known(matrix_of(array, by_rows), "it was made so")

    def _reordered(self, array: DeviceArray, by_rows: bool) -> Matrix:
        copy = self._new_matrix(array.shape, array.dtype, by_rows)
        self._transfer(array, copy.array)
        return copy

    def _transfer(self, source: DeviceArray, target: DeviceArray) -> None:
        """Plan a copy of a matrix, or of a stack, to memory in another order."""
        seen, place = matrix_of(source), known(matrix_of(target), "it was checked, or made so")
        if not target.size:
            return
        # The copy engine cannot transpose efficiently.
        is_hard = matrix_of(source, place.by_rows) is None or source._block is target._block
        if source.ndim > 2 and (is_hard or 0 in source.strides[:-2]):
            for index in np.ndindex(source.shape[:-2]):
                self._transfer(source[index], target[index])
        elif seen is not None and is_hard and name_of(source.dtype) in LETTERS:
            operation = OPERATIONS["N" if seen.by_rows == place.by_rows else "T"]
            one, none = ((factor(number, source.dtype), seen, operation) for number in (1, 0))
            self._add(place, one, none, keeps=False, operation="copy")
        else:
            self._copy(source, target)

    def _add(
        self,
        target: Matrix,
        first: tuple[Scalar, Matrix, int],
        second: tuple[Scalar, Matrix, int],
        *,
        keeps: bool,
        operation: str = "geam",
    ) -> None:
        """Plan the sum of two matrices, each with its factor and its operation."""
        (alpha, a, op_a), (beta, b, op_b) = first, second
        function = f"cublas{letter_of(target.array)}geam_64"
        arguments = (op_a, op_b, *target.seen, alpha, a, beta, b, target)
        self._run(operation, function, *arguments, writes=(target,), keeps=keeps)

    def _addresses(self, *matrices: Matrix) -> tuple[DeviceArray, list[int]]:
        """Return a device array of the matrices' addresses, and the addresses of each argument's part of it."""
        table = self._upload(np.stack([matrix.addresses for matrix in matrices]))
        return table, [table.address + index * table.strides[0] for index in range(len(matrices))]


def items(matrix: Matrix) -> Iterator[Matrix]:
    """Yield each matrix of a stack or a list."""
    indices = np.ndindex(matrix.array.shape[:-2])
    for array in matrix.listed or (matrix.array[index] for index in indices):
        yield known(matrix_of(array, matrix.by_rows), "it lies as all of them do")


def _of_real(wanted: Operation, array: DeviceArray) -> Operation:
    """Return the operation without conjugation for a real matrix."""
    check_operation(wanted, "an operation")
    return "T" if wanted == "C" and array.dtype.kind != "c" else wanted
