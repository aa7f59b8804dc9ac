"""The engine of cuRAND: that of every library that plans. A generator is an object of its own, without a handle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._worker.base.plans import PlanEngine
from .engine_kernels import KERNELS
from .records import RANDOM

if TYPE_CHECKING:
    from ..._worker.base.lanes import WorkerServices


def random_engine(services: WorkerServices) -> PlanEngine:
    """The engine of cuRAND. Nothing is loaded before its first plan."""
    from atomr_cuda import curand

    return PlanEngine(services, RANDOM, curand, kernels=KERNELS)
