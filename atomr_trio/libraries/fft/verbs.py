"""Fourier transforms: the verbs, with the names, the arguments and the defaults of ``numpy.fft``.

`axes` reads the arguments, `programs` says what is called, `layouts` how cuFFT sees arrays, `plan` has the plans that
users hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from ..._arrays.access import Marked
from ..._arrays.arrays import DeviceArray, check_shape, check_usable
from ..._arrays.ownership import check_own
from ..._calls.apart import check_apart
from ..._calls.library_types import name_of
from ..._calls.linear import check_array
from ..._calls.recorded import Recorded
from ..._calls.verbs import Awaited, Batched, Library, Operands, verb
from ..._compiling.options import NvrtcOptions
from ..._values.dtypes import check_dtype
from ..._values.errors import InvalidArgument
from ..._values.util import shown
from ..._wire.programs import Program
from ..._wire.protocol import Role
from . import frequencies
from .axes import Kind as FftKind, Norm as FftNorm, Transform, axes_of, check_kind, transform_of
from .callbacks import CallbackKind, FftCallback, Hook, check_hooks, described, make_callback
from .convolution import Mode as ConvolutionMode, dtype_of, shapes_of
from .plan import FftPlan
from .programs import convolution_program, shift_program, transform_program
from .records import FFT, Convolution, Problem, Shift
from .sides import broadcast_side, check_supported, paired_side_of, side_of

__all__ = ["BatchFft", "ConvolutionMode", "Fft", "FftCallback", "FftKind", "FftNorm", "FftPlan", "RecordedFft"]


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
        pairs: bool = False,
    ) -> DeviceArray:
        """The transform of `x` along one axis (``cufftExecC2C``).

        `x` is an array of any numbers, of any shape and strides. `n` is the number of points, by default as many as the
        axis has elements; `x` is cropped, or padded with zeros, to that. `axis` is the number of the axis.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. It may be `x` itself, if that has the dtype and the lengths of the result. `overwrite_x` allows to destroy
        `x`, and has no effect.
        With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("fft", x, n, axis, norm, out, overwrite_x, pairs)

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
        pairs: bool = False,
    ) -> DeviceArray:
        """The inverse transform of `x` along one axis (``cufftExecC2C``).

        `x` is an array of any numbers, of any shape and strides. `n` is the number of points, by default as many as the
        axis has elements; `x` is cropped, or padded with zeros, to that. `axis` is the number of the axis.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. It may be `x` itself, if that has the dtype and the lengths of the result. `overwrite_x` allows to destroy
        `x`, and has no effect.
        With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("ifft", x, n, axis, norm, out, overwrite_x, pairs)

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
        pairs: bool = False,
    ) -> DeviceArray:
        """The transform of `x` along two axes (``cufftExecC2C``).

        `x` is an array of any numbers, of any shape and strides. `s` has the number of points along each axis, by
        default the lengths of `x`, and -1 means the length of `x`; `x` is cropped, or padded with zeros. `axes` are the
        axes, the last two by default; one that is named twice is transformed twice.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. It may be `x` itself, if that has the dtype and the lengths of the result. `overwrite_x` allows to destroy
        `x`, and has no effect.
        With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("fft2", x, s, axes, norm, out, overwrite_x, pairs)

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
        pairs: bool = False,
    ) -> DeviceArray:
        """The inverse transform of `x` along two axes (``cufftExecC2C``).

        `x` is an array of any numbers, of any shape and strides. `s` has the number of points along each axis, by
        default the lengths of `x`, and -1 means the length of `x`; `x` is cropped, or padded with zeros. `axes` are the
        axes, the last two by default; one that is named twice is transformed twice.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. It may be `x` itself, if that has the dtype and the lengths of the result. `overwrite_x` allows to destroy
        `x`, and has no effect.
        With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("ifft2", x, s, axes, norm, out, overwrite_x, pairs)

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
        pairs: bool = False,
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
        With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("fftn", x, s, axes, norm, out, overwrite_x, pairs)

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
        pairs: bool = False,
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
        With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("ifftn", x, s, axes, norm, out, overwrite_x, pairs)

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
        pairs: bool = False,
    ) -> DeviceArray:
        """The transform of real numbers along one axis (``cufftExecR2C``): the first half, ``n // 2 + 1`` elements.

        `x` is an array of real numbers, of any shape and strides. `n` is the number of points, by default as many as
        the axis has elements; `x` is cropped, or padded with zeros, to that. `axis` is the number of the axis.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. `overwrite_x` allows to destroy `x`, and has no effect.
        With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("rfft", x, n, axis, norm, out, overwrite_x, pairs)

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
        pairs: bool = False,
    ) -> DeviceArray:
        """The inverse of `rfft`, from half a spectrum to `n` real numbers (``cufftExecC2R``).

        `x` is an array half a spectrum, of any numbers, of any shape and strides. `n` is the number of points, by
        default one less than the axis has elements, times 2; `x` is cropped, or padded with zeros, to ``n // 2 + 1``
        elements. `axis` is the number of the axis.

        The result has dtype float32 or float64, in the precision of `x` (see `Fft`). `norm` says what is multiplied by
        1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is new. With
        `overwrite_x` the contents of `x` may be destroyed, which saves a copy.
        With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("irfft", x, n, axis, norm, out, overwrite_x, pairs)

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
        pairs: bool = False,
    ) -> DeviceArray:
        """The transform of real numbers along two axes: half of it along the last (``cufftExecR2C``).

        `x` is an array of real numbers, of any shape and strides. `s` has the number of points along each axis, by
        default the lengths of `x`, and -1 means the length of `x`; `x` is cropped, or padded with zeros. `axes` are the
        axes, the last two by default; one that is named twice is transformed twice.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. `overwrite_x` allows to destroy `x`, and has no effect.
        With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("rfft2", x, s, axes, norm, out, overwrite_x, pairs)

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
        pairs: bool = False,
    ) -> DeviceArray:
        """The inverse of `rfft2`, from half a spectrum to real numbers (``cufftExecC2R``).

        `x` is an array that is half a spectrum, of any numbers, of any shape and strides. `s` has the number of points
        along each axis, by default the lengths of `x`, and along the last axis one less, times 2, and -1 means the
        length of `x`; `x` is cropped, or padded with zeros. `axes` are the axes, the last two by default; one that is
        named twice is transformed twice.

        The result has dtype float32 or float64, in the precision of `x` (see `Fft`). `norm` says what is multiplied by
        1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is new. With
        `overwrite_x` the contents of `x` may be destroyed, which saves a copy.
        With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("irfft2", x, s, axes, norm, out, overwrite_x, pairs)

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
        pairs: bool = False,
    ) -> DeviceArray:
        """The transform of real numbers along several axes: half of it along the last (``cufftExecR2C``).

        `x` is an array of real numbers, of any shape and strides. `s` has the number of points along each axis, by
        default the lengths of `x`, and -1 means the length of `x`; `x` is cropped, or padded with zeros. `axes` are the
        axes, by default all of them, or the last ones, as many as `s` has; one that is named twice is transformed
        twice.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. `overwrite_x` allows to destroy `x`, and has no effect.
        With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("rfftn", x, s, axes, norm, out, overwrite_x, pairs)

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
        pairs: bool = False,
    ) -> DeviceArray:
        """The inverse of `rfftn`, from half a spectrum to real numbers (``cufftExecC2R``).

        `x` is an array that is half a spectrum, of any numbers, of any shape and strides. `s` has the number of points
        along each axis, by default the lengths of `x`, and along the last axis one less, times 2, and -1 means the
        length of `x`; `x` is cropped, or padded with zeros. `axes` are the axes, by default all of them, or the last
        ones, as many as `s` has; one that is named twice is transformed twice.

        The result has dtype float32 or float64, in the precision of `x` (see `Fft`). `norm` says what is multiplied by
        1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is new. With
        `overwrite_x` the contents of `x` may be destroyed, which saves a copy.
        With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        return self._transformed("irfftn", x, s, axes, norm, out, overwrite_x, pairs)

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
        return self._done(transform, x, out, overwrites=plan.overwrite_x, hooks=plan._hooks)

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
            broadcast_side(a, shapes.first),
            broadcast_side(b, shapes.second),
            side_of(result),
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
        self,
        name: str,
        x: object,
        lengths: Any,
        axes: Any,
        norm: object,
        out: object,
        overwrite_x: object,
        pairs: object = False,
    ) -> DeviceArray:
        array = check_array(x, "x")
        check_usable(self._device, array)
        is_half = _checked_flag(pairs, "pairs")
        transform = transform_of(name, name_of(array.dtype), array.shape, lengths, axes, norm, pairs=is_half)
        return self._done(transform, array, out, overwrites=_checked_flag(overwrite_x, "overwrite_x"))

    def _done(
        self,
        transform: Transform,
        x: DeviceArray,
        out: object,
        *,
        overwrites: bool,
        hooks: Mapping[CallbackKind, Hook] = MappingProxyType({}),
    ) -> DeviceArray:
        check_supported(self._device, transform)
        in_place = False
        if out is None:
            target = self._empty(transform.array_shape, transform.array_dtype)
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
            paired_side_of(x, "x") if transform.takes_pairs else side_of(x),
            paired_side_of(target, "out") if transform.makes_pairs else side_of(target),
            transform.scale,
            transform.conjugated,
            in_place,
            overwrites,
            *described(hooks),
        )
        operands = self._operands()
        for hook in hooks.values():
            _add_info(operands, hook, x, target)
        if overwrites:
            operands.writes(x)
        else:
            operands.reads(x)
        operands.writes(target, keeps=False)
        infos = [callback.info for callback in (problem.load, problem.store) if callback is not None]
        self._plan_execution(problem, transform_program(problem), (x, target), operands, transform.name, infos)
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
        source, target = (side_of(each)._replace(dtype=f"bits{each.itemsize}") for each in (array, result))
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
        more: Sequence[int] = (),
    ) -> None:
        addresses = [*(array.address - side_of(array).base for array in arrays), *more]
        request = self._execution(problem, lambda: program, addresses, b"", operands, operation=operation)
        self._requests.append(request)


def _checked_flag(flag: object, name: str) -> bool:
    if not isinstance(flag, bool | np.bool_):
        raise InvalidArgument(f"{name} is True or False, not {shown(flag)}")
    return bool(flag)


def _add_info(operands: Operands, hook: Hook, x: DeviceArray, target: DeviceArray) -> None:
    """Note the array that a callback is given."""
    info = hook.info
    if info is None:
        return
    check_apart(target, info)
    if hook.role is Role.READ:
        operands.reads(info)
    else:
        check_apart(info, x)
        operands.writes(info, keeps=hook.role is not Role.OVERWRITE)


def _is_same(first: DeviceArray, second: DeviceArray) -> bool:
    return (
        first._block is second._block
        and (first.address, first.shape, first.strides) == (second.address, second.shape, second.strides)
        and first.dtype == second.dtype
    )


def _check_out(out: DeviceArray, transform: Transform) -> None:
    """Raise `InvalidArgument` unless the result can be written to an array."""
    shape, dtype = transform.array_shape, transform.array_dtype
    if out.shape != shape or name_of(out.dtype) != dtype:
        raise InvalidArgument(
            f"out has shape {out.shape} and dtype {name_of(out.dtype)}, and the result has {shape} and {dtype}"
        )


class Fft(_FftVerbs, Awaited):
    """Fourier transforms on the device's compute lane: `dev.fft`.

    The functions are those of ``numpy.fft``, with their names, arguments and defaults. The precision is that of `x`:
    float32 and complex64 are transformed in single precision, float64 and complex128 in double. bool and integers are
    converted to float64, as by numpy, and float16 and bfloat16 to float32. `norm` is None or "backward" to multiply the
    inverse transform by 1/n, "forward" to multiply the other, and "ortho" to multiply both by the square root of that.

    With ``pairs=True`` a transform is in half precision: `x` and the result are float16, or both bfloat16. A complex
    number is a pair of them, so a complex array has one more axis behind all others, of length 2; it has no number
    among `axes`. All lengths are powers of two then. A factor of `norm` is multiplied before the transform.

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
        pairs: bool = False,
        load: FftCallback | None = None,
        store: FftCallback | None = None,
        load_info: DeviceArray | Marked | None = None,
        store_info: DeviceArray | Marked | None = None,
    ) -> FftPlan:
        """Return a plan: a transform of arrays of one layout, which is called like a verb.

        `shape` has the lengths of the input, and `dtype` is its dtype. `kind` is the name of the verb, and `n` with
        `axis`, or `s` with `axes`, `norm`, `overwrite_x` and `pairs` are what they are there. `strides` and
        `out_strides` are those of the input and of the output in bytes, by default those of contiguous arrays. Nothing
        is sent: cuFFT plans at the first call.

        `load` is a callback through which cuFFT reads the input, and `store` one through which it writes the output
        (``cufftXtSetJITCallback``); see `callback`. `load_info` and `store_info` are the arrays whose addresses they
        get as `info`, of any shape and dtype. The plan keeps them. They are only read, unless they are marked by
        `writes` or `overwrites`. A plan with callbacks is one execution of cuFFT on the arrays themselves.

        Raises `InvalidArgument` as the verb does; for callbacks of another kind or dtype, for two that define the same
        names, and for a transform that cuFFT cannot do in one, from where `x` lies to where the result lies; and on the
        simulator, which has no callbacks. The first call raises `CommandFailed` for callbacks that cuFFT cannot link,
        and `LibraryNotFound` for a cuFFT before 11.3 and without nvJitLink.
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
        points: Any = s if several else n
        along: Any = axes if several else axis
        if along is None:
            along = -1 if not several else (-2, -1) if kind.endswith("2") else None
        is_half = _checked_flag(pairs, "pairs")
        transform = transform_of(kind, name_of(checked), lengths, points, along, norm, pairs=is_half)
        check_supported(self._device, transform)
        hooks = check_hooks(
            self._device,
            {"load": (load, load_info), "store": (store, store_info)},
            {"load": name_of(checked), "store": transform.dtype},
        )
        if hooks and is_half:
            raise InvalidArgument("cuFFT has no callbacks in half precision: do without pairs, or without callbacks")
        overwrites = _checked_flag(overwrite_x, "overwrite_x")
        return FftPlan._create(self, transform, lengths, checked, strides, out_strides, overwrites, hooks)

    async def callback(self, source: str, name: str, options: NvrtcOptions | None = None) -> FftCallback:
        """Compile a function in CUDA C++ that cuFFT calls for each element, for `plan` (``nvrtcCompileProgram``).

        `source` has a function called `name`, with a plain C++ name: neither ``extern "C"`` nor static, a template or
        in a namespace. `options` say how to compile it, by default for the open device. What it does is told by its
        type, where ``T`` is ``float``, ``double``, ``float2`` or ``double2``, for an element of dtype float32, float64,
        complex64 or complex128:

        - ``__device__ T name(void *data, unsigned long long offset, void *info, void *shared)`` returns the element of
          the input that lies `offset` elements behind `data`, the address of the input;
        - ``__device__ void name(void *data, unsigned long long offset, T element, void *info, void *shared)`` writes an
          element of the output there.

        The source is compiled to LTO-IR, and once or twice more to learn the types; all of it is kept on disk.

        Raises `CompileError` with the compiler's log, `InvalidArgument` for a function that is not there or is no
        callback, and `LibraryNotFound` when there is no NVRTC.
        """
        return await make_callback(self._device, source, name, options)

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
