"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    from typing import Any

    from .._types import AnyArray
    from .arrays import DeviceArray


class VectorVerbs(Verbs):
    """Verbs of `dev.blas`, in all forms."""

    __slots__ = ()

    def axpy(self, x: AnyArray, y: AnyArray, alpha: complex | AnyArray = 1) -> DeviceArray:
        """Add ``alpha * x`` to `y` in its place, and return `y` (``cublasSaxpy``).

        `x` and `y` are vectors of shape (n,) and of one dtype; `alpha` is a scalar of that dtype, which may be on the
        device.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory.
        """
        result: DeviceArray = self._do(self._awaited.axpy, (x, y, alpha))
        return result

    def copy(self, x: AnyArray, y: AnyArray) -> DeviceArray:
        """Copy `x` to `y`, and return `y` (``cublasScopy``).

        `x` and `y` are vectors of shape (n,) and of one dtype.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory.
        """
        result: DeviceArray = self._do(self._awaited.copy, (x, y))
        return result

    def swap(self, x: AnyArray, y: AnyArray) -> tuple[DeviceArray, DeviceArray]:
        """Exchange the elements of `x` and `y` in their places, and return both (``cublasSswap``).

        `x` and `y` are vectors of shape (n,) and of one dtype.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory.
        """
        result: tuple[DeviceArray, DeviceArray] = self._do(self._awaited.swap, (x, y))
        return result

    def scal(self, x: AnyArray, alpha: complex | AnyArray) -> DeviceArray:
        """Multiply `x` by `alpha` in its place, and return `x` (``cublasSscal``; ``cublasCsscal`` for a real `alpha`).

        `x` is a vector of shape (n,); `alpha` is a scalar of its dtype or of that of its real parts, which may be on
        the device.

        Raises `InvalidArgument` for a dtype that cuBLAS does not support, and an `alpha` that does not fit `x`.
        """
        result: DeviceArray = self._do(self._awaited.scal, (x, alpha))
        return result

    def dot(self, x: AnyArray, y: AnyArray, *, conjugate: bool = False, out: AnyArray | None = None) -> Any:
        """Return the sum of the products of the elements of `x` and `y` (``cublasSdot``, ``cublasCdotu``).

        `x` and `y` are vectors of shape (n,) and of one dtype. With `conjugate` the elements of `x` are conjugated
        (``cublasCdotc``). The result is a numpy array without axes, whose value is set when the call is done. With
        `out`, an array without axes and of that dtype on the device, it is written there.

        Raises `InvalidArgument` for arrays that do not fit together, and an `out` that shares memory with an input.
        """
        return self._do(self._awaited.dot, (x, y), {"conjugate": conjugate, "out": out})

    def nrm2(self, x: AnyArray, *, out: AnyArray | None = None) -> Any:
        """Return the Euclidean norm of `x`: the root of the sum of its elements' absolute squares (``cublasSnrm2``).

        `x` is a vector of shape (n,). The result is a numpy array without axes, of the dtype of the real parts, whose
        value is set when the call is done. With `out`, such an array on the device, it is written there.

        Raises `InvalidArgument` for a dtype that cuBLAS does not support, and an `out` that does not fit.
        """
        return self._do(self._awaited.nrm2, (x,), {"out": out})

    def asum(self, x: AnyArray, *, out: AnyArray | None = None) -> Any:
        """Return the sum of the absolute values of the elements of `x` (``cublasSasum``).

        `x` is a vector of shape (n,); the absolute value of a complex element is here that of its real part plus that
        of its imaginary part. The result is a numpy array without axes, of the dtype of the real parts, whose value is
        set when the call is done. With `out`, such an array on the device, it is written there.

        Raises `InvalidArgument` for a dtype that cuBLAS does not support, and an `out` that does not fit.
        """
        return self._do(self._awaited.asum, (x,), {"out": out})

    def iamax(self, x: AnyArray, *, out: AnyArray | None = None) -> Any:
        """Return the index of the first element of `x` with the largest absolute value, from 0 (``cublasIsamax``).

        `x` is a vector of shape (n,) with one element at least; absolute values are those of `asum`. The result is a
        numpy array without axes, of dtype int64, whose value is set when the call is done. With `out`, such an array on
        the device, the index is written there, and cuBLAS counts it **from 1**.

        Raises `InvalidArgument` for an empty vector, as numpy does, for a dtype that cuBLAS does not support, and for
        an `out` that does not fit.
        """
        return self._do(self._awaited.iamax, (x,), {"out": out})

    def iamin(self, x: AnyArray, *, out: AnyArray | None = None) -> Any:
        """Return the index of the first element of `x` with the smallest absolute value, from 0 (``cublasIsamin``).

        `x` is a vector of shape (n,) with one element at least; absolute values are those of `asum`. The result is a
        numpy array without axes, of dtype int64, whose value is set when the call is done. With `out`, such an array on
        the device, the index is written there, and cuBLAS counts it **from 1**.

        Raises `InvalidArgument` for an empty vector, as numpy does, for a dtype that cuBLAS does not support, and for
        an `out` that does not fit.
        """
        return self._do(self._awaited.iamin, (x,), {"out": out})

    def rot(
        self, x: AnyArray, y: AnyArray, c: complex | AnyArray, s: complex | AnyArray
    ) -> tuple[DeviceArray, DeviceArray]:
        """Rotate `x` and `y` in their places to ``c * x + s * y`` and ``c * y - conj(s) * x`` (``cublasSrot``).

        `x` and `y` are vectors of shape (n,) and of one dtype; both are returned. `c` is a real scalar; `s` is one of
        their dtype, or a real one too (``cublasCsrot``). Both scalars are numbers, or both are on the device, where
        `rotg` puts them.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory, and for scalars that do not
        fit them.
        """
        result: tuple[DeviceArray, DeviceArray] = self._do(self._awaited.rot, (x, y, c, s))
        return result

    def rotg(self, a: AnyArray, b: AnyArray) -> tuple[DeviceArray, DeviceArray]:
        """Return the rotation that takes ``(a, b)`` to ``(r, 0)``: new arrays c and s, for `rot` (``cublasSrotg``).

        `a` and `b` are arrays without axes, of shape () and one dtype. `a` is overwritten by r. A real `b` is
        overwritten by the number z from which c and s can be made again; the contents of a complex `b` are undefined.
        The c has the dtype of the real parts. All of it is on the device.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory.
        """
        result: tuple[DeviceArray, DeviceArray] = self._do(self._awaited.rotg, (a, b))
        return result

    def rotm(self, x: AnyArray, y: AnyArray, param: AnyArray) -> tuple[DeviceArray, DeviceArray]:
        """Apply the modified rotation that `param` describes to `x` and `y` in their places (``cublasSrotm``).

        `x` and `y` are vectors of shape (n,) and of one dtype, float32 or float64; both are returned. They become ``h11
        * x + h12 * y`` and ``h21 * x + h22 * y``. `param` is an array of shape (5,) and of that dtype on the device, as
        `rotmg` makes it: a flag, then h11, h21, h12 and h22.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory.
        """
        result: tuple[DeviceArray, DeviceArray] = self._do(self._awaited.rotm, (x, y, param))
        return result

    def rotmg(self, d1: AnyArray, d2: AnyArray, x1: AnyArray, y1: AnyArray) -> DeviceArray:
        """Return the modified rotation that makes ``sqrt(d2) * y1`` zero: a new `param` of `rotm` (``cublasSrotmg``).

        `d1`, `d2`, `x1` and `y1` are arrays without axes, of shape () and one dtype, float32 or float64, on the device;
        `d1`, `d2` and `x1` are overwritten by their values after the rotation. The elements of the result that its flag
        makes unnecessary are zero.

        Raises `InvalidArgument` for arrays that do not fit together or that share memory.
        """
        result: DeviceArray = self._do(self._awaited.rotmg, (d1, d2, x1, y1))
        return result
