"""Fourier transforms: the verbs, with the names, the arguments and the defaults of ``numpy.fft``.

`axes` reads the arguments, `programs` says what is called, `layouts` how cuFFT sees arrays, `plan` has the plans that
users hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from ..._arrays.arrays import DeviceArray, check_shape, check_usable
from ..._arrays.ownership import check_own
from ..._calls.apart import check_apart
from ..._calls.library_types import name_of
from ..._calls.linear import check_array
from ..._calls.verbs import Awaited, Batched, Library, Operands, Recorded, verb
from ..._values.dtypes import check_dtype
from ..._values.errors import InvalidArgument
from ..._values.util import shown
from ..._wire.programs import Program
from . import frequencies
from .axes import Kind as FftKind, Norm as FftNorm, Transform, axes_of, check_kind, transform_of
from .convolution import Mode as ConvolutionMode, dtype_of, shapes_of
from .plan import FftPlan
from .programs import convolution_program, shift_program, transform_program
from .records import FFT, Convolution, Problem, Shift, Side

__all__ = ["BatchFft", "ConvolutionMode", "Fft", "FftKind", "FftNorm", "FftPlan", "RecordedFft"]


class _FftVerbs(Library):
    """The verbs of cuFFT."""

    __slots__ = ()

    _table = FFT

    @verb
    def fft(
        self,
        x: DeviceArray,
        n: SupportsIndex | None = None,
        axis: SupportsIndex = -1,
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The transform of `x` along one axis (``cufftExecC2C``).

        `x` is an array of any numbers, of any shape and strides. `n` is the number of points, by default as many as the
        axis has elements; `x` is cropped, or padded with zeros, to that. `axis` is the number of the axis.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. It may be `x` itself, if that has the dtype and the lengths of the result. `overwrite_x` allows to destroy
        `x`, and has no effect.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("fft", x, n, axis, norm, out, overwrite_x)

    @verb
    def ifft(
        self,
        x: DeviceArray,
        n: SupportsIndex | None = None,
        axis: SupportsIndex = -1,
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The inverse transform of `x` along one axis (``cufftExecC2C``).

        `x` is an array of any numbers, of any shape and strides. `n` is the number of points, by default as many as the
        axis has elements; `x` is cropped, or padded with zeros, to that. `axis` is the number of the axis.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. It may be `x` itself, if that has the dtype and the lengths of the result. `overwrite_x` allows to destroy
        `x`, and has no effect.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("ifft", x, n, axis, norm, out, overwrite_x)

    @verb
    def fft2(
        self,
        x: DeviceArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = (-2, -1),
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The transform of `x` along two axes (``cufftExecC2C``).

        `x` is an array of any numbers, of any shape and strides. `s` has the number of points along each axis, by
        default the lengths of `x`, and -1 means the length of `x`; `x` is cropped, or padded with zeros. `axes` are the
        axes, the last two by default; one that is named twice is transformed twice.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. It may be `x` itself, if that has the dtype and the lengths of the result. `overwrite_x` allows to destroy
        `x`, and has no effect.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("fft2", x, s, axes, norm, out, overwrite_x)

    @verb
    def ifft2(
        self,
        x: DeviceArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = (-2, -1),
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The inverse transform of `x` along two axes (``cufftExecC2C``).

        `x` is an array of any numbers, of any shape and strides. `s` has the number of points along each axis, by
        default the lengths of `x`, and -1 means the length of `x`; `x` is cropped, or padded with zeros. `axes` are the
        axes, the last two by default; one that is named twice is transformed twice.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. It may be `x` itself, if that has the dtype and the lengths of the result. `overwrite_x` allows to destroy
        `x`, and has no effect.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("ifft2", x, s, axes, norm, out, overwrite_x)

    @verb
    def fftn(
        self,
        x: DeviceArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = None,
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The transform of `x` along several axes (``cufftExecC2C``).

        `x` is an array of any numbers, of any shape and strides. `s` has the number of points along each axis, by
        default the lengths of `x`, and -1 means the length of `x`; `x` is cropped, or padded with zeros. `axes` are the
        axes, by default all of them, or the last ones, as many as `s` has; one that is named twice is transformed
        twice.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. It may be `x` itself, if that has the dtype and the lengths of the result. `overwrite_x` allows to destroy
        `x`, and has no effect.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("fftn", x, s, axes, norm, out, overwrite_x)

    @verb
    def ifftn(
        self,
        x: DeviceArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = None,
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The inverse transform of `x` along several axes (``cufftExecC2C``).

        `x` is an array of any numbers, of any shape and strides. `s` has the number of points along each axis, by
        default the lengths of `x`, and -1 means the length of `x`; `x` is cropped, or padded with zeros. `axes` are the
        axes, by default all of them, or the last ones, as many as `s` has; one that is named twice is transformed
        twice.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. It may be `x` itself, if that has the dtype and the lengths of the result. `overwrite_x` allows to destroy
        `x`, and has no effect.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("ifftn", x, s, axes, norm, out, overwrite_x)

    @verb
    def rfft(
        self,
        x: DeviceArray,
        n: SupportsIndex | None = None,
        axis: SupportsIndex = -1,
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The transform of real numbers along one axis (``cufftExecR2C``): the first half, ``n // 2 + 1`` elements.

        `x` is an array of real numbers, of any shape and strides. `n` is the number of points, by default as many as
        the axis has elements; `x` is cropped, or padded with zeros, to that. `axis` is the number of the axis.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. `overwrite_x` allows to destroy `x`, and has no effect.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("rfft", x, n, axis, norm, out, overwrite_x)

    @verb
    def irfft(
        self,
        x: DeviceArray,
        n: SupportsIndex | None = None,
        axis: SupportsIndex = -1,
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The inverse of `rfft`, from half a spectrum to `n` real numbers (``cufftExecC2R``).

        `x` is an array half a spectrum, of any numbers, of any shape and strides. `n` is the number of points, by
        default one less than the axis has elements, times 2; `x` is cropped, or padded with zeros, to ``n // 2 + 1``
        elements. `axis` is the number of the axis.

        The result has dtype float32 or float64, in the precision of `x` (see `Fft`). `norm` says what is multiplied by
        1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is new. With
        `overwrite_x` the contents of `x` may be destroyed, which saves a copy.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("irfft", x, n, axis, norm, out, overwrite_x)

    @verb
    def rfft2(
        self,
        x: DeviceArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = (-2, -1),
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The transform of real numbers along two axes: half of it along the last (``cufftExecR2C``).

        `x` is an array of real numbers, of any shape and strides. `s` has the number of points along each axis, by
        default the lengths of `x`, and -1 means the length of `x`; `x` is cropped, or padded with zeros. `axes` are the
        axes, the last two by default; one that is named twice is transformed twice.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. `overwrite_x` allows to destroy `x`, and has no effect.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("rfft2", x, s, axes, norm, out, overwrite_x)

    @verb
    def irfft2(
        self,
        x: DeviceArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = (-2, -1),
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The inverse of `rfft2`, from half a spectrum to real numbers (``cufftExecC2R``).

        `x` is an array that is half a spectrum, of any numbers, of any shape and strides. `s` has the number of points
        along each axis, by default the lengths of `x`, and along the last axis one less, times 2, and -1 means the
        length of `x`; `x` is cropped, or padded with zeros. `axes` are the axes, the last two by default; one that is
        named twice is transformed twice.

        The result has dtype float32 or float64, in the precision of `x` (see `Fft`). `norm` says what is multiplied by
        1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is new. With
        `overwrite_x` the contents of `x` may be destroyed, which saves a copy.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("irfft2", x, s, axes, norm, out, overwrite_x)

    @verb
    def rfftn(
        self,
        x: DeviceArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = None,
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The transform of real numbers along several axes: half of it along the last (``cufftExecR2C``).

        `x` is an array of real numbers, of any shape and strides. `s` has the number of points along each axis, by
        default the lengths of `x`, and -1 means the length of `x`; `x` is cropped, or padded with zeros. `axes` are the
        axes, by default all of them, or the last ones, as many as `s` has; one that is named twice is transformed
        twice.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. `overwrite_x` allows to destroy `x`, and has no effect.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("rfftn", x, s, axes, norm, out, overwrite_x)

    @verb
    def irfftn(
        self,
        x: DeviceArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = None,
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The inverse of `rfftn`, from half a spectrum to real numbers (``cufftExecC2R``).

        `x` is an array that is half a spectrum, of any numbers, of any shape and strides. `s` has the number of points
        along each axis, by default the lengths of `x`, and along the last axis one less, times 2, and -1 means the
        length of `x`; `x` is cropped, or padded with zeros. `axes` are the axes, by default all of them, or the last
        ones, as many as `s` has; one that is named twice is transformed twice.

        The result has dtype float32 or float64, in the precision of `x` (see `Fft`). `norm` says what is multiplied by
        1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is new. With
        `overwrite_x` the contents of `x` may be destroyed, which saves a copy.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("irfftn", x, s, axes, norm, out, overwrite_x)

    @verb
    def hfft(
        self,
        x: DeviceArray,
        n: SupportsIndex | None = None,
        axis: SupportsIndex = -1,
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The transform of a signal x[-t] = conj(x[t]), given by its first half (``cufftExecC2R``).

        `x` is an array that is half a signal, of any numbers, of any shape and strides. `n` is the number of points, by
        default one less than the axis has elements, times 2; `x` is cropped, or padded with zeros, to ``n // 2 + 1``
        elements. `axis` is the number of the axis.

        The result has dtype float32 or float64, in the precision of `x` (see `Fft`). `norm` says what is multiplied by
        1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is new. With
        `overwrite_x` the contents of `x` may be destroyed, which saves a copy.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("hfft", x, n, axis, norm, out, overwrite_x)

    @verb
    def ihfft(
        self,
        x: DeviceArray,
        n: SupportsIndex | None = None,
        axis: SupportsIndex = -1,
        norm: FftNorm | None = None,
        out: DeviceArray | None = None,
        *,
        overwrite_x: bool = False,
    ) -> DeviceArray:
        """The inverse of `hfft`: the first half of a signal, ``n // 2 + 1`` elements (``cufftExecR2C``).

        `x` is an array of real numbers, of any shape and strides. `n` is the number of points, by default as many as
        the axis has elements; `x` is cropped, or padded with zeros, to that. `axis` is the number of the axis.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. `overwrite_x` allows to destroy `x`, and has no effect.

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("ihfft", x, n, axis, norm, out, overwrite_x)

    @verb
    def run(self, plan: FftPlan, x: DeviceArray, out: DeviceArray | None = None) -> DeviceArray:
        """Do what a `plan` of `dev.fft.plan` describes, with the array `x` (``cufftExecC2C`` and its like).

        ``await plan(x, out)`` does the same.

        `x` and `out` have the shape, dtype and strides that the plan names; the result is `out`, or a new array.

        Raises `InvalidArgument` for other arrays, and for a plan of another device.
        """
        if not isinstance(plan, FftPlan):
            raise InvalidArgument(f"plan is made by dev.fft.plan, it is not {shown(plan)}")
        check_own(self._device, plan)
        check_usable(self._device, check_array(x, "x"))
        transform = plan._check(x, None if out is None else check_array(out, "out"))
        return self._done(transform, x, out, overwrites=plan.overwrite_x)

    @verb
    def fftshift(self, x: DeviceArray, axes: SupportsIndex | Sequence[SupportsIndex] | None = None) -> DeviceArray:
        """A copy of `x` with the frequency 0 in the middle of the given `axes`, by default of all (``cuLaunchKernel``).

        `x` has any shape, dtype and strides.

        Raises `InvalidArgument` for axes that `x` does not have.
        """
        return self._shifted(x, axes, lambda length: length - length // 2)

    @verb
    def ifftshift(self, x: DeviceArray, axes: SupportsIndex | Sequence[SupportsIndex] | None = None) -> DeviceArray:
        """A copy of `x` with what `fftshift` did undone along `axes`, by default along all (``cuLaunchKernel``).

        `x` has any shape, dtype and strides.

        Raises `InvalidArgument` for axes that `x` does not have.
        """
        return self._shifted(x, axes, lambda length: length // 2)

    @verb
    def fftconvolve(
        self,
        a: DeviceArray,
        b: DeviceArray,
        mode: ConvolutionMode = "full",
        axes: SupportsIndex | Sequence[SupportsIndex] | None = None,
    ) -> DeviceArray:
        """The convolution of `a` and `b` along `axes`, by default all, by transforms (``cufftExecC2C`` and its like).

        `a` and `b` are arrays of as many axes, of any strides and of any dtypes that are transformed. Along other axes
        than `axes` they have the same shape, or length 1. `mode` is "full" for all of the convolution, "same" for its
        middle, of the shape of `a`, or "valid" for what depends on no padding. The result has the larger precision of
        both, and is real if both are. The rules are those of ``scipy.signal.fftconvolve``.

        Raises `InvalidArgument` for shapes that do not fit together, for empty arrays and for dtypes that are not
        supported.
        """
        for array, name in ((a, "a"), (b, "b")):
            check_usable(self._device, check_array(array, name))
        dtype = dtype_of(a, b)
        shapes = shapes_of(a.shape, b.shape, mode, axes)
        result = self._empty(shapes.shape, dtype)
        problem = Convolution(
            _broadcast_side(a, shapes.first),
            _broadcast_side(b, shapes.second),
            _side(result),
            shapes.axes,
            shapes.lengths,
            shapes.starts,
        )
        operands = self._operands()
        operands.reads(a, b)
        operands.writes(result, keeps=False)
        self._plan_execution(problem, convolution_program(problem), (a, b, result), operands, "fftconvolve")
        return result

    # How they are planned.

    def _transformed(
        self, name: str, x: object, lengths: Any, axes: Any, norm: object, out: object, overwrite_x: object
    ) -> DeviceArray:
        array = check_array(x, "x")
        check_usable(self._device, array)
        transform = transform_of(name, name_of(array.dtype), array.shape, lengths, axes, norm)
        return self._done(transform, array, out, overwrites=_checked_flag(overwrite_x))

    def _done(self, transform: Transform, x: DeviceArray, out: object, *, overwrites: bool) -> DeviceArray:
        in_place = False
        if out is None:
            target = self._empty(transform.shape, transform.dtype)
        else:
            target = check_array(out, "out")
            check_usable(self._device, target)
            _check_out(target, transform)
            in_place = _is_same(target, x) and transform.is_complex
            if not in_place:
                check_apart(target, x)
        if not target.size:
            return target
        overwrites = overwrites and transform.reads_half
        problem = Problem(
            transform.operations,
            _side(x),
            _side(target),
            transform.scale,
            transform.conjugated,
            in_place,
            overwrites,
        )
        operands = self._operands()
        if overwrites:
            operands.writes(x)
        else:
            operands.reads(x)
        operands.writes(target, keeps=False)
        self._plan_execution(problem, transform_program(problem), (x, target), operands, transform.name)
        return target

    def _shifted(self, x: object, axes: object, distance: Callable[[int], int]) -> DeviceArray:
        array = check_array(x, "x")
        check_usable(self._device, array)
        shifts = [0] * array.ndim
        for axis in axes_of(axes, array.shape):
            shifts[axis] += distance(array.shape[axis])
        result = self._empty(array.shape, array.dtype)
        if not array.size:
            return result
        source, target = (_side(each)._replace(dtype=f"bits{each.itemsize}") for each in (array, result))
        moved = (shift % length for shift, length in zip(shifts, array.shape, strict=True))
        problem = Shift(source, target, tuple(moved))
        operands = self._operands()
        operands.reads(array)
        operands.writes(result, keeps=False)
        self._plan_execution(problem, shift_program(problem), (array, result), operands, "shift")
        return result

    def _plan_execution(
        self,
        problem: Problem | Shift | Convolution,
        program: Program,
        arrays: Sequence[DeviceArray],
        operands: Operands,
        operation: str,
    ) -> None:
        addresses = [array.address - _side(array).base for array in arrays]
        request = self._execution(problem, lambda: program, addresses, b"", operands, operation=operation)
        self._requests.append(request)


def _checked_flag(overwrite_x: object) -> bool:
    if not isinstance(overwrite_x, bool | np.bool_):
        raise InvalidArgument(f"overwrite_x is True or False, not {shown(overwrite_x)}")
    return bool(overwrite_x)


def _side(array: DeviceArray) -> Side:
    axes = list(zip(array.shape, array.strides, strict=True))
    strides = tuple(stride if length > 1 else 0 for length, stride in axes)
    base = -sum((length - 1) * stride for length, stride in axes if stride < 0 < length)
    granule = _GRANULES.get(name_of(array.dtype), 1)
    return Side(name_of(array.dtype), array.shape, strides, base, array.address % granule == 0)


_GRANULES = {"float32": 8, "complex64": 8, "float64": 16, "complex128": 16}
"""The alignment that cuFFT wants, in bytes: that of a complex number, for real ones too."""


def _broadcast_side(array: DeviceArray, shape: tuple[int, ...]) -> Side:
    """Return an array repeated along axes of length 1."""
    return _side(array)._replace(shape=shape)


def _is_same(first: DeviceArray, second: DeviceArray) -> bool:
    return (
        first._block is second._block
        and (first.address, first.shape, first.strides) == (second.address, second.shape, second.strides)
        and first.dtype == second.dtype
    )


def _check_out(out: DeviceArray, transform: Transform) -> None:
    """Raise `InvalidArgument` unless the result can be written to an array."""
    if out.shape != transform.shape or name_of(out.dtype) != transform.dtype:
        raise InvalidArgument(
            f"out has shape {out.shape} and dtype {name_of(out.dtype)}, and the result has {transform.shape} and "
            f"{transform.dtype}"
        )


class Fft(_FftVerbs, Awaited):
    """Fourier transforms on the device's compute lane: `dev.fft`.

    The functions are those of ``numpy.fft``, with their names, arguments and defaults. The precision is that of `x`:
    float32 and complex64 are transformed in single precision, float64 and complex128 in double. bool and integers are
    converted to float64, as by numpy, and float16 and bfloat16 to float32. `norm` is None or "backward" to multiply the
    inverse transform by 1/n, "forward" to multiply the other, and "ortho" to multiply both by the square root of that.

    Inputs are only read. The same transform of the same numbers has the same bits each time.
    """

    __slots__ = ()

    def plan(
        self,
        kind: FftKind,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: npt.DTypeLike,
        *,
        n: SupportsIndex | None = None,
        axis: SupportsIndex | None = None,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = None,
        norm: FftNorm | None = None,
        overwrite_x: bool = False,
        strides: Sequence[SupportsIndex] | None = None,
        out_strides: Sequence[SupportsIndex] | None = None,
    ) -> FftPlan:
        """Return a plan: a transform of arrays of one layout, which is called like a verb.

        `shape` has the lengths of the input, and `dtype` is its dtype. `kind` is the name of the verb, and `n` with
        `axis`, or `s` with `axes`, `norm` and `overwrite_x` are what they are there. `strides` and `out_strides` are
        those of the input and of the output in bytes, by default those of contiguous arrays. Nothing is sent: cuFFT
        plans at the first call.

        Raises `InvalidArgument` as the verb does.
        """
        several = check_kind(kind)
        unused = {"n": n, "axis": axis} if several else {"s": s, "axes": axes}
        for name, value in unused.items():
            if value is not None:
                raise InvalidArgument(
                    f"{kind} has no argument {name}: give {'s and axes' if several else 'n and axis'}"
                )
        checked = check_dtype(dtype)
        lengths = check_shape(shape, checked.itemsize)
        if not several:
            transform = transform_of(kind, name_of(checked), lengths, n, -1 if axis is None else axis, norm)
        else:
            default = (-2, -1) if kind.endswith("2") else None
            transform = transform_of(kind, name_of(checked), lengths, s, default if axes is None else axes, norm)
        return FftPlan._create(self, transform, lengths, checked, strides, out_strides, _checked_flag(overwrite_x))

    def fftfreq(self, n: SupportsIndex, d: float = 1.0) -> npt.NDArray[np.float64]:
        """The frequencies of `fft` in its order, for `n` elements, as a numpy array of shape (n,) and dtype float64.

        `d` is the distance of two elements in any unit, such as seconds; the frequencies are in cycles per unit.

        Raises `InvalidArgument` for an `n` below 1.
        """
        return frequencies.fftfreq(n, d)

    def rfftfreq(self, n: SupportsIndex, d: float = 1.0) -> npt.NDArray[np.float64]:
        """The frequencies of `rfft` for `n` elements, as a numpy array of shape (n // 2 + 1,) and dtype float64.

        `d` is the distance of two elements in any unit, such as seconds; the frequencies are in cycles per unit.

        Raises `InvalidArgument` for an `n` below 1.
        """
        return frequencies.rfftfreq(n, d)

    def next_fast_len(self, n: SupportsIndex) -> int:
        """The smallest number of elements from `n` on for which cuFFT is fast: one of the factors 2, 3, 5 and 7 alone.

        Raises `InvalidArgument` for an `n` below 1.
        """
        return frequencies.next_fast_len(n)


class BatchFft(_FftVerbs, Batched):
    """The verbs of `Fft` in a batch, without ``await``: `batch.fft`."""

    __slots__ = ()


class RecordedFft(_FftVerbs, Recorded):
    """The verbs of `Fft` as nodes of a graph: `graph.fft` of a `GraphRecorder`."""

    __slots__ = ()
