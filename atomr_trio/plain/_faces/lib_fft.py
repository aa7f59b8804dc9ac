"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Awaits, Enqueues
from .lib_fft_verbs import FftVerbs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    import numpy as np
    import numpy.typing as npt

    import atomr_trio

    from ..._arrays.access import Marked
    from ..._compiling.options import NvrtcOptions
    from ...libraries.fft.axes import Kind as FftKind, Norm as FftNorm
    from ...libraries.fft.callbacks import FftCallback
    from .._types import AnyArray
    from .plans import FftPlan


class BatchFft(Enqueues, FftVerbs):
    """The verbs of `Fft` in a batch, without waiting: `batch.fft`."""

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.BatchFft:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.BatchFft = self._awaited
        return value


class Fft(Awaits, FftVerbs):
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

    @property
    def awaited(self) -> atomr_trio.Fft:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Fft = self._awaited
        return value

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
        load_info: AnyArray | Marked | None = None,
        store_info: AnyArray | Marked | None = None,
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
        result: FftPlan = self._enqueue(
            self._awaited.plan,
            (kind, shape, dtype),
            {
                "n": n,
                "axis": axis,
                "s": s,
                "axes": axes,
                "norm": norm,
                "overwrite_x": overwrite_x,
                "strides": strides,
                "out_strides": out_strides,
                "pairs": pairs,
                "load": load,
                "store": store,
                "load_info": load_info,
                "store_info": store_info,
            },
        )
        return result

    def callback(self, source: str, name: str, options: NvrtcOptions | None = None) -> FftCallback:
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
        result: FftCallback = self._wait(self._awaited.callback, (source, name, options))
        return result

    def fftfreq(self, n: SupportsIndex, d: float = 1.0) -> npt.NDArray[np.float64]:
        """The frequencies of `fft` in its order, for `n` elements, as a numpy array of shape (n,) and dtype float64.

        `d` is the distance of two elements in any unit, such as seconds; the frequencies are in cycles per unit.

        Raises `InvalidArgument` for an `n` below 1.
        """
        result: npt.NDArray[np.float64] = self._read(self._awaited.fftfreq, (n, d))
        return result

    def rfftfreq(self, n: SupportsIndex, d: float = 1.0) -> npt.NDArray[np.float64]:
        """The frequencies of `rfft` for `n` elements, as a numpy array of shape (n // 2 + 1,) and dtype float64.

        `d` is the distance of two elements in any unit, such as seconds; the frequencies are in cycles per unit.

        Raises `InvalidArgument` for an `n` below 1.
        """
        result: npt.NDArray[np.float64] = self._read(self._awaited.rfftfreq, (n, d))
        return result

    def next_fast_len(self, n: SupportsIndex) -> int:
        """The smallest number of elements from `n` on for which cuFFT is fast: one of the factors 2, 3, 5 and 7 alone.

        Raises `InvalidArgument` for an `n` below 1.
        """
        result: int = self._read(self._awaited.next_fast_len, (n,))
        return result


class RecordedFft(Enqueues, FftVerbs):
    """The verbs of `Fft` as nodes of a graph: `graph.fft` of a `GraphRecorder`."""

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.RecordedFft:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.RecordedFft = self._awaited
        return value
