"""Operands of levels 1 and 2 as cuBLAS takes them, copied or conjugated first where necessary.

cuBLAS reads a vector with a negative increment from its end, as numpy does. If the library sees the transpose of a
matrix (see ``_calls/linear.py``) and needs its conjugate, no function does that. Then the vectors are conjugated
instead, which is little work compared to the matrix, and the result is conjugated back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..._arrays.arrays import DeviceArray, check_usable
from ..._calls.apart import check_apart
from ..._calls.library_types import LETTERS, letter_of
from ..._calls.linear import Matrix, Vector, check_array, is_spread, strides_text, vector
from ..._calls.verbs import Address, Argument, Library, Scalar, Verdict
from ..._transfers.memory import plan_fill
from ..._values.errors import InvalidArgument
from .records import flags

DTYPES: Final = {letter: name for name, letter in LETTERS.items()}
"""The name of the dtype by its letter."""

PARTS: Final = {"S": "S", "D": "D", "C": "S", "Z": "D"}
"""The letter of the real parts by the letter of the elements."""

MIXED_LETTERS: Final = {"S": "S", "D": "D", "C": "Cs", "Z": "Zd"}
"""The letters in names of functions with a real scalar, by the letter of the elements."""

Number = complex | DeviceArray
"""A scalar: a number of the host, or an array without axes on the device."""


def is_complex(scalar: Number) -> bool:
    """Return whether a scalar, on the host or on the device, is of a complex type."""
    return scalar.dtype.kind == "c" if isinstance(scalar, DeviceArray) else np.iscomplexobj(scalar)


def factor(value: complex, dtype: npt.DTypeLike, *, conjugate: bool = False) -> Scalar:
    """Return a scalar of the host as a call has it. Raises `InvalidArgument` if `dtype` cannot hold it."""
    given = Scalar.of(value, dtype)
    return Scalar(np.frombuffer(given.content, dtype).conj().tobytes()) if conjugate else given


def check_real(letter: str) -> None:
    """Raise `InvalidArgument` for complex elements."""
    if letter in "CZ":
        raise InvalidArgument(f"{DTYPES[letter]} is not supported; use float32, float64")


def check_scalars_apart(scalars: Sequence[DeviceArray], *written: DeviceArray) -> None:
    """Raise `InvalidArgument` for scalars on the device that share memory with an output."""
    for array in written:
        check_apart(array, *scalars)


def _words(argument: Argument | Vector | Matrix | DeviceArray) -> tuple[Argument, ...]:
    """Return an argument as the C function takes it."""
    if isinstance(argument, Vector):
        return Address(argument.address), argument.increment
    if isinstance(argument, Matrix):
        return Address(argument.address), argument.leading
    if isinstance(argument, DeviceArray):
        return (Address(argument.address),)
    return (argument,)


class VectorOperands(Library):
    """The base of the verbs that take vectors."""

    __slots__ = ()

    # Operands.

    def _taken(self, array: object, name: str, *axes: int) -> DeviceArray:
        """Return an array of this device whose number of axes is one of `axes`."""
        taken = check_array(array, name, *axes)
        check_usable(self._device, taken)
        return taken

    def _source(self, array: object, name: str) -> Vector:
        """Return a vector that is read. It is copied first if cuBLAS does not take its stride."""
        given = self._taken(array, name, 1)
        if is_spread(given):
            return vector(given, name)
        copy = self._empty(given.shape, given.dtype)
        self._copy(given, copy)
        return vector(copy, name)

    def _target(self, array: object, name: str) -> Vector:
        """Return a vector that is written."""
        given = self._taken(array, name, 1)
        if not is_spread(given):
            raise InvalidArgument(f"{name} cannot be written (overlapping or misaligned): {strides_text(given)}")
        return vector(given, name)

    def _upwards(self, array: object, name: str) -> DeviceArray:
        """Return the vector from its lowest address up, for functions that do not depend on the order.

        Those functions treat a vector with a negative increment as empty.
        """
        given = self._taken(array, name, 1)
        return given[::-1] if given.strides[0] < 0 else given

    def _product_target(self, out: object, length: int, beta: complex, *inputs: DeviceArray) -> Vector:
        """Return the vector that a product is written to; a new one if none is given."""
        factor(beta, inputs[0].dtype)  # refuses a value that cannot be compared with 0
        if out is None:
            if beta != 0:
                raise InvalidArgument("beta is a factor of out, which is not given: give out, or leave beta out")
            return vector(self._empty((length,), inputs[0].dtype), "out")
        target = self._target(out, "out")
        if target.length != length:
            raise InvalidArgument(f"out has {target.length} elements, and the result has {length}")
        letter_of(*inputs, target.array)
        check_apart(target.array, *inputs)
        return target

    # Calls.

    def _run(
        self,
        operation: str,
        function: str,
        *arguments: Argument | Vector | Matrix | DeviceArray,
        writes: tuple[Vector | Matrix | DeviceArray, ...] = (),
        keeps: bool = True,
        flags: int = 0,
        answer: npt.NDArray[Any] | None = None,
        check: Verdict | None = None,
    ) -> None:
        """Plan a call of a function that reads all its operands, except those that it `writes`."""
        operands = self._operands()
        for each in arguments:
            if isinstance(each, Vector | Matrix | DeviceArray):
                array = each if isinstance(each, DeviceArray) else each.array
                if any(each is written for written in writes):
                    operands.writes(array, keeps=keeps)
                else:
                    operands.reads(array)
        words = [word for each in arguments for word in _words(each)]
        self._call(function, *words, operation=operation, operands=operands, flags=flags, answer=answer, check=check)

    def _scalars(
        self, *, written: tuple[DeviceArray, ...], **scalars: tuple[Number, npt.DTypeLike]
    ) -> tuple[list[Argument | DeviceArray], int]:
        """Return scalars, each with its dtype, as a call takes them, and the flags that the call needs for them."""
        places = {isinstance(value, DeviceArray) for value, _ in scalars.values()}
        if places == {True, False}:
            raise InvalidArgument(f"{' and '.join(scalars)} must all be numbers, or all be arrays on the device")
        if places == {False}:
            return [Scalar.of(value, dtype) for value, dtype in scalars.values()], 0
        arrays = [self._device_scalar(value, name, dtype) for name, (value, dtype) in scalars.items()]
        check_scalars_apart(arrays, *written)
        return [*arrays], flags(device_scalars=True)

    def _device_scalar(
        self, value: object, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...] = ()
    ) -> DeviceArray:
        """Return a scalar that is on the device, or a few of them."""
        array = self._taken(value, name, len(shape))
        if array.shape != shape or array.dtype != dtype or not array.contiguous:
            raise InvalidArgument(
                f"{name} is a contiguous array of shape {shape} and dtype {np.dtype(dtype).name}, "
                f"not of {array.dtype.name} with {strides_text(array)}"
            )
        return array

    def _scale(self, target: Vector, beta: complex) -> None:
        """Plan the multiplication of a vector by a factor. If the factor is zero, the vector is not read."""
        if beta == 0:
            self._requests += plan_fill(target.array, 0, self._lane)
            return
        up = vector(self._upwards(target.array, "out"), "out")
        number = Scalar.of(beta, up.array.dtype)
        self._run("scal", f"cublas{letter_of(up.array)}scal_64", up.length, number, up, writes=(up,))

    # Copies and conjugates.

    def _move(self, source: Vector, target: Vector) -> None:
        """Plan the copy of a vector."""
        function = f"cublas{letter_of(source.array)}copy_64"
        self._run("copy", function, source.length, source, target, writes=(target,), keeps=False)

    def _copied(self, source: Vector) -> Vector:
        """Return a new vector with its elements, in ascending order of addresses."""
        copy = self._like(source)
        self._move(source, copy)
        return copy

    def _like(self, source: Vector) -> Vector:
        return vector(self._empty((source.length,), source.array.dtype), "copy")

    def _conjugated(self, source: Vector, when: bool = True) -> Vector:
        """Return the vector; or, if `when`, a new one with its conjugates."""
        if not when:
            return source
        copy = self._copied(source)
        self._conjugate(copy)
        return copy

    def _conjugate(self, target: Vector) -> None:
        """Plan the negation of a contiguous complex vector's imaginary parts: they are a real vector of increment 2."""
        part = PARTS[letter_of(target.array)]
        scalar, middle = Scalar.of(-1, DTYPES[part]), target.address + target.array.itemsize // 2
        operands = self._operands()
        operands.writes(target.array)
        words = (target.length, scalar, middle, 2)
        self._call(f"cublas{part}scal_64", *words, operation="conjugate", operands=operands)

    @contextmanager
    def _through_conjugate(self, target: Vector, *, keeps: bool, when: bool) -> Iterator[Vector]:
        """Yield the vector that a call must write in place of `target`, if it computes the conjugate."""
        if not when:
            yield target
            return
        stand_in = self._conjugated(target) if keeps else self._like(target)
        yield stand_in
        self._conjugate(stand_in)
        self._move(stand_in, target)
