"""Level 1: vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..._arrays.arrays import DeviceArray
from ..._calls.apart import check_apart
from ..._calls.library_types import letter_of
from ..._calls.linear import Vector, check_array
from ..._calls.verbs import Answer, Argument, Verdict, verb
from ..._transfers.memory import plan_fill
from ..._values.errors import InvalidArgument
from .records import flags
from .types import REAL_LETTERS, check_lengths
from .vectors import DTYPES, MIXED_LETTERS, PARTS, Number, VectorOperands, check_real, check_scalars_apart, is_complex

_PARAMETERS = 5
"""Elements that describe a modified rotation: a flag, then h11, h21, h12 and h22."""


class VectorVerbs(VectorOperands):
    """Verbs on vectors, which take time proportional to their length.

    A vector is an array of one axis and of any stride, even a negative one: it is used in place. The dtypes are
    float32, float64, complex64 and complex128. A scalar is a number, or an array without axes on the device.
    """

    __slots__ = ()

    # Vectors to vectors.

    @verb
    def axpy(self, x: DeviceArray, y: DeviceArray, alpha: Number = 1) -> DeviceArray:
        """Add ``alpha * x`` to `y` in its place, and return `y` (``cublasSaxpy``).

        `x` and `y` are vectors of shape (n,) and of one dtype; `alpha` is a scalar of that dtype, which may be on the
        device.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory.
        """
        first, second, letter = self._pair(x, y, writes_y=True)
        (scalar,), where = self._scalars(alpha=(alpha, x.dtype), written=(y,))
        if first.length:
            function = f"cublas{letter}axpy_64"
            self._run("axpy", function, first.length, scalar, first, second, writes=(second,), flags=where)
        return y

    @verb
    def copy(self, x: DeviceArray, y: DeviceArray) -> DeviceArray:
        """Copy `x` to `y`, and return `y` (``cublasScopy``).

        `x` and `y` are vectors of shape (n,) and of one dtype.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory.
        """
        first, second, _ = self._pair(x, y, writes_y=True)
        if first.length:
            self._move(first, second)
        return y

    @verb
    def swap(self, x: DeviceArray, y: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        """Exchange the elements of `x` and `y` in their places, and return both (``cublasSswap``).

        `x` and `y` are vectors of shape (n,) and of one dtype.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory.
        """
        first, second, letter = self._pair(x, y, writes_x=True, writes_y=True)
        if first.length:
            self._run("swap", f"cublas{letter}swap_64", first.length, first, second, writes=(first, second))
        return x, y

    @verb
    def scal(self, x: DeviceArray, alpha: Number) -> DeviceArray:
        """Multiply `x` by `alpha` in its place, and return `x` (``cublasSscal``; ``cublasCsscal`` for a real `alpha`).

        `x` is a vector of shape (n,); `alpha` is a scalar of its dtype or of that of its real parts, which may be on
        the device.

        Raises `InvalidArgument` for a dtype that cuBLAS does not support, and an `alpha` that does not fit `x`.
        """
        upwards = self._upwards(x, "x")
        vector, letter = self._target(upwards, "x"), letter_of(upwards)
        form, dtype = (letter, x.dtype) if is_complex(alpha) else (MIXED_LETTERS[letter], DTYPES[PARTS[letter]])
        (scalar,), where = self._scalars(alpha=(alpha, dtype), written=(x,))
        if vector.length:
            self._run("scal", f"cublas{form}scal_64", vector.length, scalar, vector, writes=(vector,), flags=where)
        return x

    # Vectors to a number.

    @verb
    def dot(self, x: DeviceArray, y: DeviceArray, *, conjugate: bool = False, out: DeviceArray | None = None) -> Any:
        """Return the sum of the products of the elements of `x` and `y` (``cublasSdot``, ``cublasCdotu``).

        `x` and `y` are vectors of shape (n,) and of one dtype. With `conjugate` the elements of `x` are conjugated
        (``cublasCdotc``). The result is a numpy array without axes, whose value is set when the call is done. With
        `out`, an array without axes and of that dtype on the device, it is written there.

        Raises `InvalidArgument` for arrays that do not fit together, and an `out` that shares memory with an input.
        """
        first, second, letter = self._pair(x, y)
        variant = "" if letter in "SD" else "c" if conjugate else "u"
        function = f"cublas{letter}dot{variant}_64"
        return self._reduce("dot", function, first.length, first, second, dtype=x.dtype, out=out)

    @verb
    def nrm2(self, x: DeviceArray, *, out: DeviceArray | None = None) -> Any:
        """Return the Euclidean norm of `x`: the root of the sum of its elements' absolute squares (``cublasSnrm2``).

        `x` is a vector of shape (n,). The result is a numpy array without axes, of the dtype of the real parts, whose
        value is set when the call is done. With `out`, such an array on the device, it is written there.

        Raises `InvalidArgument` for a dtype that cuBLAS does not support, and an `out` that does not fit.
        """
        return self._sum("nrm2", x, out)

    @verb
    def asum(self, x: DeviceArray, *, out: DeviceArray | None = None) -> Any:
        """Return the sum of the absolute values of the elements of `x` (``cublasSasum``).

        `x` is a vector of shape (n,); the absolute value of a complex element is here that of its real part plus that
        of its imaginary part. The result is a numpy array without axes, of the dtype of the real parts, whose
        value is set when the call is done. With `out`, such an array on the device, it is written there.

        Raises `InvalidArgument` for a dtype that cuBLAS does not support, and an `out` that does not fit.
        """
        return self._sum("asum", x, out)

    @verb
    def iamax(self, x: DeviceArray, *, out: DeviceArray | None = None) -> Any:
        """Return the index of the first element of `x` with the largest absolute value, from 0 (``cublasIsamax``).

        `x` is a vector of shape (n,) with one element at least; absolute values are those of `asum`. The result is a
        numpy array without axes, of dtype int64, whose value is set when the call is done. With `out`, such an array
        on the device, the index is written there, and cuBLAS counts it **from 1**.

        Raises `InvalidArgument` for an empty vector, as numpy does, for a dtype that cuBLAS does not support, and for
        an `out` that does not fit.
        """
        return self._extreme("amax", x, out)

    @verb
    def iamin(self, x: DeviceArray, *, out: DeviceArray | None = None) -> Any:
        """Return the index of the first element of `x` with the smallest absolute value, from 0 (``cublasIsamin``).

        `x` is a vector of shape (n,) with one element at least; absolute values are those of `asum`. The result is a
        numpy array without axes, of dtype int64, whose value is set when the call is done. With `out`, such an array
        on the device, the index is written there, and cuBLAS counts it **from 1**.

        Raises `InvalidArgument` for an empty vector, as numpy does, for a dtype that cuBLAS does not support, and for
        an `out` that does not fit.
        """
        return self._extreme("amin", x, out)

    # Rotations.

    @verb
    def rot(self, x: DeviceArray, y: DeviceArray, c: Number, s: Number) -> tuple[DeviceArray, DeviceArray]:
        """Rotate `x` and `y` in their places to ``c * x + s * y`` and ``c * y - conj(s) * x`` (``cublasSrot``).

        `x` and `y` are vectors of shape (n,) and of one dtype; both are returned. `c` is a real scalar; `s` is one of
        their dtype, or a real one too (``cublasCsrot``). Both scalars are numbers, or both are on the device, where
        `rotg` puts them.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory, and for scalars that do not
        fit them.
        """
        first, second, letter = self._pair(x, y, writes_x=True, writes_y=True)
        real = DTYPES[PARTS[letter]]
        form, dtype = (letter, x.dtype) if is_complex(s) else (MIXED_LETTERS[letter], real)
        scalars, where = self._scalars(c=(c, real), s=(s, dtype), written=(x, y))
        self._rotate("rot", f"cublas{form}rot_64", first, second, scalars, where)
        return x, y

    @verb
    def rotg(self, a: DeviceArray, b: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        """Return the rotation that takes ``(a, b)`` to ``(r, 0)``: new arrays c and s, for `rot` (``cublasSrotg``).

        `a` and `b` are arrays without axes, of shape () and one dtype. `a` is overwritten by r. A real `b` is
        overwritten by the number z from which c and s can be made again; the contents of a complex `b` are undefined.
        The c has the dtype of the real parts. All of it is on the device.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory.
        """
        letter = letter_of(check_array(a, "a", 0), check_array(b, "b", 0))
        dtypes = DTYPES[letter], DTYPES[PARTS[letter]]
        given = self._device_scalar(a, "a", dtypes[0]), self._device_scalar(b, "b", dtypes[0])
        check_apart(*given)
        c, s = self._empty((), dtypes[1]), self._empty((), dtypes[0])
        scalars, on_device = (*given, c, s), flags(device_scalars=True)
        self._run("rotg", f"cublas{letter}rotg", *scalars, writes=scalars, flags=on_device)
        return c, s

    @verb
    def rotm(self, x: DeviceArray, y: DeviceArray, param: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        """Apply the modified rotation that `param` describes to `x` and `y` in their places (``cublasSrotm``).

        `x` and `y` are vectors of shape (n,) and of one dtype, float32 or float64; both are returned. They become
        ``h11 * x + h12 * y`` and ``h21 * x + h22 * y``. `param` is an array of shape (5,) and of that dtype on the
        device, as `rotmg` makes it: a flag, then h11, h21, h12 and h22.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory.
        """
        first, second, letter = self._pair(x, y, writes_x=True, writes_y=True)
        check_real(letter)
        parameters = self._device_scalar(param, "param", x.dtype, (_PARAMETERS,))
        check_scalars_apart([parameters], x, y)
        self._rotate("rotm", f"cublas{letter}rotm_64", first, second, [parameters], flags(device_scalars=True))
        return x, y

    @verb
    def rotmg(self, d1: DeviceArray, d2: DeviceArray, x1: DeviceArray, y1: DeviceArray) -> DeviceArray:
        """Return the modified rotation that makes ``sqrt(d2) * y1`` zero: a new `param` of `rotm` (``cublasSrotmg``).

        `d1`, `d2`, `x1` and `y1` are arrays without axes, of shape () and one dtype, float32 or float64, on the device;
        `d1`, `d2` and `x1` are overwritten by their values after the rotation. The elements of the result that its flag
        makes unnecessary are zero.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory.
        """
        names = ("d1", "d2", "x1", "y1")
        checked = [check_array(each, name, 0) for each, name in zip((d1, d2, x1, y1), names, strict=True)]
        letter = letter_of(*checked)
        check_real(letter)
        for number, (array, name) in enumerate(zip(checked, names, strict=True)):
            self._device_scalar(array, name, DTYPES[letter])
            check_apart(array, *checked[:number])
        param = self._empty((_PARAMETERS,), DTYPES[letter])
        self._requests += plan_fill(param, 0, self._lane)
        written, on_device = (d1, d2, x1, param), flags(device_scalars=True)
        self._run("rotmg", f"cublas{letter}rotmg", *checked, param, writes=written, flags=on_device)
        return param

    # Shared by the verbs.

    def _pair(
        self, x: DeviceArray, y: DeviceArray, *, writes_x: bool = False, writes_y: bool = False
    ) -> tuple[Vector, Vector, str]:
        """Return two vectors of one length and dtype, and the dtype's letter. A written vector must share no memory."""
        letter = letter_of(check_array(x, "x", 1), check_array(y, "y", 1))
        first = (self._target if writes_x else self._source)(x, "x")
        second = (self._target if writes_y else self._source)(y, "y")
        check_lengths(first, second)
        if writes_y:
            check_apart(y, x)
        return first, second, letter

    def _rotate(
        self,
        operation: str,
        function: str,
        x: Vector,
        y: Vector,
        scalars: list[Argument | DeviceArray],
        where: int,
    ) -> None:
        if x.length:
            self._run(operation, function, x.length, x, y, *scalars, writes=(x, y), flags=where)

    def _sum(self, name: str, x: DeviceArray, out: DeviceArray | None) -> Any:
        """Return a sum of terms that are not negative, in any order."""
        upwards = self._upwards(x, "x")
        vector, letter = self._source(upwards, "x"), letter_of(upwards)
        function = f"cublas{REAL_LETTERS[letter]}{name}_64"
        return self._reduce(name, function, vector.length, vector, dtype=DTYPES[PARTS[letter]], out=out)

    def _extreme(self, name: str, x: DeviceArray, out: DeviceArray | None) -> Any:
        """Return the index of the first extreme. A vector with a negative stride is copied first."""
        vector, letter = self._source(x, "x"), letter_of(x)
        if not vector.length:
            raise InvalidArgument("x is empty, and has no largest or smallest element: give at least one element")
        if vector.increment < 0:
            vector = self._copied(vector)
        function = f"cublasI{letter.lower()}{name}_64"
        return self._reduce(
            f"i{name}", function, vector.length, vector, dtype=np.int64, out=out, check=_count_from_zero
        )

    def _reduce(
        self,
        operation: str,
        function: str,
        length: int,
        *vectors: Vector,
        dtype: npt.DTypeLike,
        out: DeviceArray | None,
        check: Verdict | None = None,
    ) -> Any:
        """Call a function that answers one number, to the host or to an array on the device."""
        if out is None:
            answer: npt.NDArray[Any] = np.empty((), dtype)
            self._run(operation, function, length, *vectors, Answer(), answer=answer, check=check)
            return answer
        result, on_device = self._device_scalar(out, "out", dtype), flags(device_scalars=True)
        check_apart(result, *(each.array for each in vectors))
        self._run(operation, function, length, *vectors, result, writes=(result,), keeps=False, flags=on_device)
        return out


def _count_from_zero(index: npt.NDArray[Any]) -> None:
    """Change an index of cuBLAS, which counts from 1, to one that counts from 0."""
    index -= 1
