"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Verbs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from ...libraries.fft.axes import Norm as FftNorm
    from ...libraries.fft.convolution import Mode as ConvolutionMode
    from .._types import AnyArray
    from .arrays import DeviceArray
    from .plans import FftPlan


class FftVerbs(Verbs):
    """Verbs of `dev.fft`, in all forms."""

    __slots__ = ()

    def fft(
        self,
        x: AnyArray,
        n: SupportsIndex | None = None,
        axis: SupportsIndex = -1,
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        `x`, and has no effect. With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see
        `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.fft, (x, n, axis, norm, out), {"overwrite_x": overwrite_x, "pairs": pairs}
        )
        return result

    def ifft(
        self,
        x: AnyArray,
        n: SupportsIndex | None = None,
        axis: SupportsIndex = -1,
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        `x`, and has no effect. With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see
        `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.ifft, (x, n, axis, norm, out), {"overwrite_x": overwrite_x, "pairs": pairs}
        )
        return result

    def fft2(
        self,
        x: AnyArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = (-2, -1),
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        `x`, and has no effect. With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see
        `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.fft2, (x, s, axes, norm, out), {"overwrite_x": overwrite_x, "pairs": pairs}
        )
        return result

    def ifft2(
        self,
        x: AnyArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = (-2, -1),
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        `x`, and has no effect. With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see
        `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.ifft2, (x, s, axes, norm, out), {"overwrite_x": overwrite_x, "pairs": pairs}
        )
        return result

    def fftn(
        self,
        x: AnyArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = None,
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        `x`, and has no effect. With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see
        `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.fftn, (x, s, axes, norm, out), {"overwrite_x": overwrite_x, "pairs": pairs}
        )
        return result

    def ifftn(
        self,
        x: AnyArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = None,
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        `x`, and has no effect. With `pairs`, `x` and the result are in half precision, complex numbers as pairs (see
        `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.ifftn, (x, s, axes, norm, out), {"overwrite_x": overwrite_x, "pairs": pairs}
        )
        return result

    def rfft(
        self,
        x: AnyArray,
        n: SupportsIndex | None = None,
        axis: SupportsIndex = -1,
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
        *,
        overwrite_x: bool = False,
        pairs: bool = False,
    ) -> DeviceArray:
        """The transform of real numbers along one axis (``cufftExecR2C``): the first half, ``n // 2 + 1`` elements.

        `x` is an array of real numbers, of any shape and strides. `n` is the number of points, by default as many as
        the axis has elements; `x` is cropped, or padded with zeros, to that. `axis` is the number of the axis.

        The result has dtype complex64 or complex128, in the precision of `x` (see `Fft`). `norm` says what is
        multiplied by 1/n. `out` is an array of the shape and dtype of the result, which is returned; by default it is
        new. `overwrite_x` allows to destroy `x`, and has no effect. With `pairs`, `x` and the result are in half
        precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.rfft, (x, n, axis, norm, out), {"overwrite_x": overwrite_x, "pairs": pairs}
        )
        return result

    def irfft(
        self,
        x: AnyArray,
        n: SupportsIndex | None = None,
        axis: SupportsIndex = -1,
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        `overwrite_x` the contents of `x` may be destroyed, which saves a copy. With `pairs`, `x` and the result are in
        half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.irfft, (x, n, axis, norm, out), {"overwrite_x": overwrite_x, "pairs": pairs}
        )
        return result

    def rfft2(
        self,
        x: AnyArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = (-2, -1),
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        new. `overwrite_x` allows to destroy `x`, and has no effect. With `pairs`, `x` and the result are in half
        precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.rfft2, (x, s, axes, norm, out), {"overwrite_x": overwrite_x, "pairs": pairs}
        )
        return result

    def irfft2(
        self,
        x: AnyArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = (-2, -1),
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        `overwrite_x` the contents of `x` may be destroyed, which saves a copy. With `pairs`, `x` and the result are in
        half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.irfft2, (x, s, axes, norm, out), {"overwrite_x": overwrite_x, "pairs": pairs}
        )
        return result

    def rfftn(
        self,
        x: AnyArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = None,
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        new. `overwrite_x` allows to destroy `x`, and has no effect. With `pairs`, `x` and the result are in half
        precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.rfftn, (x, s, axes, norm, out), {"overwrite_x": overwrite_x, "pairs": pairs}
        )
        return result

    def irfftn(
        self,
        x: AnyArray,
        s: Sequence[SupportsIndex] | None = None,
        axes: Sequence[SupportsIndex] | None = None,
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        `overwrite_x` the contents of `x` may be destroyed, which saves a copy. With `pairs`, `x` and the result are in
        half precision, complex numbers as pairs (see `Fft`).

        Raises `InvalidArgument` for axes that `x` does not have, for numbers of points below 1, for dtypes that are not
        supported, and for an `out` that does not fit or shares memory with `x`.
        """
        result: DeviceArray = self._do(
            self._awaited.irfftn, (x, s, axes, norm, out), {"overwrite_x": overwrite_x, "pairs": pairs}
        )
        return result

    def hfft(
        self,
        x: AnyArray,
        n: SupportsIndex | None = None,
        axis: SupportsIndex = -1,
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        result: DeviceArray = self._do(self._awaited.hfft, (x, n, axis, norm, out), {"overwrite_x": overwrite_x})
        return result

    def ihfft(
        self,
        x: AnyArray,
        n: SupportsIndex | None = None,
        axis: SupportsIndex = -1,
        norm: FftNorm | None = None,
        out: AnyArray | None = None,
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
        result: DeviceArray = self._do(self._awaited.ihfft, (x, n, axis, norm, out), {"overwrite_x": overwrite_x})
        return result

    def run(self, plan: FftPlan, x: AnyArray, out: AnyArray | None = None) -> DeviceArray:
        """Do what a `plan` of `dev.fft.plan` describes, with the array `x` (``cufftExecC2C`` and its like).

        ``plan(x, out)`` does the same.

        `x` and `out` have the shape, dtype and strides that the plan names; the result is `out`, or a new array.

        Raises `InvalidArgument` for other arrays, and for a plan of another device.
        """
        result: DeviceArray = self._do(self._awaited.run, (plan, x, out))
        return result

    def fftshift(self, x: AnyArray, axes: SupportsIndex | Sequence[SupportsIndex] | None = None) -> DeviceArray:
        """A copy of `x` with the frequency 0 in the middle of the given `axes`, by default of all (``cuLaunchKernel``).

        `x` has any shape, dtype and strides.

        Raises `InvalidArgument` for axes that `x` does not have.
        """
        result: DeviceArray = self._do(self._awaited.fftshift, (x, axes))
        return result

    def ifftshift(self, x: AnyArray, axes: SupportsIndex | Sequence[SupportsIndex] | None = None) -> DeviceArray:
        """A copy of `x` with what `fftshift` did undone along `axes`, by default along all (``cuLaunchKernel``).

        `x` has any shape, dtype and strides.

        Raises `InvalidArgument` for axes that `x` does not have.
        """
        result: DeviceArray = self._do(self._awaited.ifftshift, (x, axes))
        return result

    def fftconvolve(
        self,
        a: AnyArray,
        b: AnyArray,
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
        result: DeviceArray = self._do(self._awaited.fftconvolve, (a, b, mode, axes))
        return result
