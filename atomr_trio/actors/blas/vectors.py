"""What levels 1 and 2 are planned with: operands as cuBLAS takes them, copied or conjugated first where it must be.

cuBLAS reads a vector with a negative increment from its end, as numpy does. Where the library sees the transpose of a
matrix (see ``_matrices.py``) and the conjugate of it is meant, no function says that; there the vectors are conjugated
instead, which is little beside the matrix, and the result is conjugated back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..._apart import check_apart
from ..._arrays import DeviceArray
from ..._calls import Address, Argument, Library, Scalar, Verdict, check_usable
from ..._errors import InvalidArgument
from ..._library_types import LETTERS, letter_of
from ..._matrices import Matrix, Vector, check_array, is_spread, strides_text, vector
from ...worker.engines.blas import flags
from ..memory import plan_fill

DTYPES: Final = {letter: name for name, letter in LETTERS.items()}
"""By a letter, the name of its dtype."""

PARTS: Final = {"S": "S", "D": "D", "C": "S", "Z": "D"}
"""By a letter, that of the real parts of such elements."""

MIXED_LETTERS: Final = {"S": "S", "D": "D", "C": "Cs", "Z": "Zd"}
"""What stands for a letter where the elements may be complex and the scalar is real."""

Number = complex | DeviceArray
"""A scalar: a number of the host, or an array without axes on the device."""


def is_complex(scalar: Number) -> bool:
    """Whether a scalar is of a complex type, wherever it is."""
    return scalar.dtype.kind == "c" if isinstance(scalar, DeviceArray) else np.iscomplexobj(scalar)


def factor(value: complex, dtype: npt.DTypeLike, *, conjugate: bool = False) -> Scalar:
    """A scalar of the host as a call has it. Raises `InvalidArgument` for what `dtype` cannot hold."""
    given = Scalar.of(value, dtype)
    return Scalar(np.frombuffer(given.content, dtype).conj().tobytes()) if conjugate else given


def check_real(letter: str) -> None:
    """Refuse complex elements."""
    if letter in "CZ":
        raise InvalidArgument(f"there is no such operation on {DTYPES[letter]}, but on float32, float64")


def check_scalars_apart(scalars: Sequence[DeviceArray], *written: DeviceArray) -> None:
    """Refuse scalars on the device that would change while they are read."""
    for array in written:
        check_apart(array, *scalars)


def _words(argument: Argument | Vector | Matrix | DeviceArray) -> tuple[Argument, ...]:
    """An argument as the C function takes it."""
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
        """An array of this device with so many axes."""
        taken = check_array(array, name, *axes)
        check_usable(self._device, taken)
        return taken

    def _source(self, array: object, name: str) -> Vector:
        """A vector that is read; copied first if its elements are no whole number of elements apart, or all in one."""
        given = self._taken(array, name, 1)
        if is_spread(given):
            return vector(given, name)
        copy = self._empty(given.shape, given.dtype)
        self._copy(given, copy)
        return vector(copy, name)

    def _target(self, array: object, name: str) -> Vector:
        """A vector that is written."""
        given = self._taken(array, name, 1)
        if not is_spread(given):
            raise InvalidArgument(f"{name} cannot be written: {strides_text(given)}")
        return vector(given, name)

    def _upwards(self, array: object, name: str) -> DeviceArray:
        """The vector from its lowest address up, for functions to which the order says nothing.

        They take a vector that is read backwards for an empty one.
        """
        given = self._taken(array, name, 1)
        return given[::-1] if given.strides[0] < 0 else given

    def _product_target(self, out: object, length: int, beta: complex, *inputs: DeviceArray) -> Vector:
        """The vector that a product is written to, new if none is given."""
        factor(beta, inputs[0].dtype)  # refuses what cannot be compared with 0
        if out is None:
            if beta != 0:
                raise InvalidArgument("beta is a factor of out, which is not given")
            return vector(self._empty((length,), inputs[0].dtype), "out")
        target = self._target(out, "out")
        if target.length != length:
            raise InvalidArgument(f"out has {target.length} elements, and the result {length}")
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
        """Have a function called that reads all its operands, but for those that it `writes`."""
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
        """Scalars by name, each with its dtype, as a call takes them, and the flags that this needs of it."""
        places = {isinstance(value, DeviceArray) for value, _ in scalars.values()}
        if places == {True, False}:
            raise InvalidArgument(f"{' and '.join(scalars)} are either numbers or arrays on the device, all of them")
        if places == {False}:
            return [Scalar.of(value, dtype) for value, dtype in scalars.values()], 0
        arrays = [self._device_scalar(value, name, dtype) for name, (value, dtype) in scalars.items()]
        check_scalars_apart(arrays, *written)
        return [*arrays], flags(device_scalars=True)

    def _device_scalar(
        self, value: object, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...] = ()
    ) -> DeviceArray:
        """A scalar that is on the device, or a few of them."""
        array = self._taken(value, name, len(shape))
        if array.shape != shape or array.dtype != dtype or not array.contiguous:
            raise InvalidArgument(
                f"{name} is a contiguous array of shape {shape} and dtype {np.dtype(dtype).name}, "
                f"not of {array.dtype.name} with {strides_text(array)}"
            )
        return array

    def _scale(self, target: Vector, beta: complex) -> None:
        """Have a vector multiplied by a factor, and not read if that is zero."""
        if beta == 0:
            self._requests += plan_fill(target.array, 0, self._lane)
            return
        up = vector(self._upwards(target.array, "out"), "out")
        number = Scalar.of(beta, up.array.dtype)
        self._run("scal", f"cublas{letter_of(up.array)}scal_64", up.length, number, up, writes=(up,))

    # Copies and conjugates.

    def _move(self, source: Vector, target: Vector) -> None:
        """Have a vector copied."""
        function = f"cublas{letter_of(source.array)}copy_64"
        self._run("copy", function, source.length, source, target, writes=(target,), keeps=False)

    def _copied(self, source: Vector) -> Vector:
        """A new vector with its elements, which runs forwards."""
        copy = self._like(source)
        self._move(source, copy)
        return copy

    def _like(self, source: Vector) -> Vector:
        return vector(self._empty((source.length,), source.array.dtype), "copy")

    def _conjugated(self, source: Vector, when: bool = True) -> Vector:
        """The vector; or, `when` so, a new one with its conjugates."""
        if not when:
            return source
        copy = self._copied(source)
        self._conjugate(copy)
        return copy

    def _conjugate(self, target: Vector) -> None:
        """Have the imaginary parts of a contiguous complex vector negated: they are a real one of increment 2."""
        part = PARTS[letter_of(target.array)]
        scalar, middle = Scalar.of(-1, DTYPES[part]), target.address + target.array.itemsize // 2
        operands = self._operands()
        operands.writes(target.array)
        words = (target.length, scalar, middle, 2)
        self._call(f"cublas{part}scal_64", *words, operation="conjugate", operands=operands)

    @contextmanager
    def _through_conjugate(self, target: Vector, *, keeps: bool, when: bool) -> Iterator[Vector]:
        """What to have written instead of `target` by a call that computes its conjugate, `when` it does."""
        if not when:
            yield target
            return
        stand_in = self._conjugated(target) if keeps else self._like(target)
        yield stand_in
        self._conjugate(stand_in)
        self._move(stand_in, target)
