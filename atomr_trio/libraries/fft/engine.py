"""The engine of cuFFT: that of every library that plans. A plan of cuFFT is an object of its own, without a handle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._worker.base.plans import PlanEngine
from .engine_kernels import KERNELS
from .records import FFT

if TYPE_CHECKING:
    from ..._worker.base.lanes import WorkerServices


def fft_engine(services: WorkerServices) -> PlanEngine:
    """The engine of cuFFT. Nothing is loaded before its first plan."""
    from atomr_cuda import cufft, nvjitlink

    companions = {"cufftXtSetJITCallback": nvjitlink.library}
    return PlanEngine(services, FFT, cufft, kernels=KERNELS, companions=companions)
