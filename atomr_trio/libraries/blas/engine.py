"""Dense linear algebra by cuBLAS: its functions by name, and the settings of its handles."""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING, Any

from ..._worker.base.calls import CallEngine, Handles
from .records import BLAS, MODES, unit

if TYPE_CHECKING:
    from ..._worker.base.lanes import Lane, WorkerServices


class _Handles(Handles):
    captured_room_bytes = 32 << 20
    """The size that NVIDIA recommends for Hopper, the largest of all. Without a workspace cuBLAS captures allocations,
    and the driver takes no child graph that allocates."""

    def __init__(self, cublas: Any) -> None:
        self._cublas = cublas
        self._flags: dict[int, int] = {}
        """The settings of each handle. A setting that failed halfway is missing, because it is unknown."""

    def create(self, lane: Lane) -> Any:
        handle = self._cublas.cublasHandle_t()
        self._cublas.cublasCreate(byref(handle))
        try:
            self._cublas.cublasSetStream(handle, lane.stream)
        except BaseException:
            self._cublas.cublasDestroy.status(handle)
            raise
        self._flags[handle.value] = 0
        return handle

    def configure(self, handle: Any, flags: int) -> None:
        before = self._flags.pop(handle.value, ~flags)
        for setter, bits in MODES.items():
            if (before ^ flags) & bits:
                getattr(self._cublas, setter)(handle, (flags & bits) // unit(bits))
        self._flags[handle.value] = flags

    def lend(self, handle: Any, address: int, size: int) -> None:
        self._cublas.cublasSetWorkspace(handle, address, size)

    def destroy(self, handle: Any) -> None:
        self._flags.pop(handle.value, None)
        self._cublas.cublasDestroy(handle)


def blas_engine(services: WorkerServices) -> CallEngine:
    """The engine of cuBLAS. Nothing is loaded before its first call."""
    from atomr_cuda import cublas

    return CallEngine(services, BLAS, cublas, _Handles(cublas))
