"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Self

from .._twins import Twin

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, ClassVar, Unpack

    import numpy as np
    import numpy.typing as npt

    import atomr_trio

    from ..._values.parameters import Dimensions
    from .._types import AnyArray, PlainLaunchKeywords
    from .arrays import DeviceArray
    from .graphs import Graph
    from .kernels import Kernel, PreparedLaunch
    from .lanes import Event
    from .lib_blas import BatchBlas
    from .lib_blaslt import BatchBlasLt
    from .lib_fft import BatchFft
    from .lib_random import BatchRandom
    from .lib_solver import BatchSolver


class Batch(Twin):
    """Many calls and one wait for all of them, made by `Device.batch`.

    The verbs are those of the device, its kernels and arrays, without waiting: each checks its arguments, is sent at
    once, and is in order with everything else. Results are valid when the block has been left, or `flush` has returned.
    An error that only the worker can find is raised there too, and names the call.
    """

    _made_by: ClassVar[str] = "`with dev.batch()`"

    @property
    def awaited(self) -> atomr_trio.Batch:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Batch = self._awaited
        return value

    def flush(self) -> None:
        """Wait until every call sent so far is done, and there is room for more.

        Raises the first error of a call that failed, which names it; `ContextLost` if the generation was lost. Each
        error is raised once.
        """
        self._wait(self._awaited.flush)

    def launch(
        self,
        kernel: Kernel | PreparedLaunch,
        grid: Dimensions = 0,
        block: Dimensions = 0,
        *arguments: object,
        shared_bytes: int = 0,
        **options: Unpack[PlainLaunchKeywords],
    ) -> None:
        """Launch a `kernel`, or a prepared launch, which takes no further arguments (``cuLaunchKernelEx``).

        `grid`, `block`, `arguments`, `shared_bytes` and the `options`, which are `touches`, `hang_timeout`,
        `cooperative`, `cluster`, `programmatic` and `priority`, are those of `Kernel.launch`; a cooperative grid is
        checked as by `Kernel.launch_nowait`. Up to 16 launches in quick succession may share the ticket that reports
        their end. Only between those can a programmatic launch begin early. A launch with a `hang_timeout` has its own
        ticket. Launches with attributes are fastest when they are prepared.

        Raises `InvalidArgument` and `StaleArray` as `Kernel.launch` does, before anything is sent; `ContextLost` when
        the batch's generation is lost; `trio.WouldBlock` when 4096 calls are unfinished: `batch.flush()`.
        """
        self._enqueue(
            self._awaited.launch, (kernel, grid, block, *arguments), {"shared_bytes": shared_bytes, **options}
        )

    def launch_graph(self, graph: Graph) -> None:
        """Launch a `graph`, always on the compute lane, whatever the batch's lane is (``cuGraphLaunch``).

        Raises as `Graph.launch` does, and as `launch`.
        """
        self._enqueue(self._awaited.launch_graph, (graph,))

    def fill(self, array: AnyArray, value: complex | np.generic) -> None:
        """Set every element of `array`, of any shape and dtype, to `value` (``cuMemsetD32Async`` and its kin).

        Raises as `DeviceArray.fill` does, and as `launch`; `InvalidArgument` for an array of another device.
        """
        self._enqueue(self._awaited.fill, (array, value))

    def copy_from(self, array: AnyArray, source: npt.ArrayLike | AnyArray) -> None:
        """Overwrite `array` with `source`, of the same shape and dtype, on the host or on a device of the same group.

        Host memory is read now, unless it is pinned memory, which the GPU reads when it reaches the copy. Reading
        blocks the device: some 0.2 ms for a MiB, or 3 to 8 ms if the two memory orders differ. `DeviceArray.copy_from`,
        outside of the batch or in its block, reads in several threads.

        Raises as `DeviceArray.copy_from` does, and as `launch`; `trio.WouldBlock` too when 96 MiB of copies with the
        host are unfinished, and when the source is of another device that still writes it; `OutOfHostMemory`. Raises
        `InvalidArgument` for an array of a device that is not of the group; for one copy with the host above 96 MiB,
        unless the memory is pinned; and for arrays whose copy has to go through the host. Use those verbs outside of
        the batch.
        """
        self._enqueue(self._awaited.copy_from, (array, source))

    def copy_to(self, array: AnyArray, out: npt.NDArray[Any]) -> None:
        """Copy `array` into the writable numpy array `out`, of the same shape and dtype. `out` is valid at the end.

        The end is that of the block, or of the next `flush`. Raises as `DeviceArray.copy_to` does, and as `copy_from`.
        """
        self._enqueue(self._awaited.copy_to, (array, out))

    def to_host(self, array: AnyArray) -> npt.NDArray[Any]:
        """Return a new numpy array of the shape and dtype of `array`. It is valid at the end; see `copy_to`.

        Raises as `DeviceArray.to_host` does, and as `copy_from`.
        """
        result: npt.NDArray[Any] = self._enqueue(self._awaited.to_host, (array,))
        return result

    def to_device(self, source: npt.ArrayLike | AnyArray) -> DeviceArray:
        """Return a new device array with a copy of `source`, of its shape and dtype; see `Device.to_device`.

        A source on the host is read now, at the cost that `copy_from` gives; ``dev.to_device(source)`` reads in
        threads. Arrays of other libraries on the GPU are only taken by that.

        Raises as `Device.to_device` does, and as `copy_from`.
        """
        result: DeviceArray = self._enqueue(self._awaited.to_device, (source,))
        return result

    def record(self) -> Event:
        """Return an event behind all work that the batch's lane has so far. Raises as `Lane.record` does."""
        result: Event = self._enqueue(self._awaited.record)
        return result

    @functools.cached_property
    def blas(self) -> BatchBlas:
        """Dense linear algebra (cuBLAS): `batch.blas.gemm(a, b)`, done at the end of the batch."""
        value: BatchBlas = self._enqueue(lambda: self._awaited.blas)
        return value

    @functools.cached_property
    def blaslt(self) -> BatchBlasLt:
        """Products of matrices with epilogues (cuBLASLt): `batch.blaslt.matmul(a, b, ...)`, done at the end of the
        batch.
        """
        value: BatchBlasLt = self._enqueue(lambda: self._awaited.blaslt)
        return value

    @functools.cached_property
    def fft(self) -> BatchFft:
        """Fourier transforms (cuFFT): `batch.fft.rfft(x)`, done at the end of the batch."""
        value: BatchFft = self._enqueue(lambda: self._awaited.fft)
        return value

    @functools.cached_property
    def random(self) -> BatchRandom:
        """Random numbers (cuRAND): `batch.random.normal(size=1000)`, done at the end of the batch."""
        value: BatchRandom = self._enqueue(lambda: self._awaited.random)
        return value

    @functools.cached_property
    def solver(self) -> BatchSolver:
        """Factorizations, linear systems, eigenvalues, singular values (cuSOLVER): `batch.solver.solve(a, b)`, done at
        the end of the batch.
        """
        value: BatchSolver = self._enqueue(lambda: self._awaited.solver)
        return value

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(kind, error, traceback)
