"""The engine of cuBLASLt: that of every library that plans, with one handle for all lanes."""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING, Any

from ..._worker.base.calls import Handles
from ..._worker.base.plans import PlanEngine
from .records import BLASLT

if TYPE_CHECKING:
    from ..._worker.base.lanes import Lane, WorkerServices


class _Handles(Handles):
    def __init__(self, cublaslt: Any) -> None:
        self._cublaslt = cublaslt

    def create(self, lane: Lane) -> Any:
        handle = self._cublaslt.cublasLtHandle_t()
        self._cublaslt.cublasLtCreate(byref(handle))
        return handle

    def destroy(self, handle: Any) -> None:
        self._cublaslt.cublasLtDestroy(handle)


def blaslt_engine(services: WorkerServices) -> PlanEngine:
    """The engine of cuBLASLt. Nothing is loaded before its first plan."""
    from atomr_cuda import cublaslt

    return PlanEngine(services, BLASLT, cublaslt, _Handles(cublaslt), shared=True)
