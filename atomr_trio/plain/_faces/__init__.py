"""The blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .arrays import DeviceArray as DeviceArray
    from .batches import Batch as Batch
    from .devices import Device as Device, Devices as Devices, Reservation as Reservation
    from .events import Subscription as Subscription
    from .generators import RandomGenerator as RandomGenerator
    from .graphs import Graph as Graph, GraphRecorder as GraphRecorder
    from .kernels import Kernel as Kernel, PreparedLaunch as PreparedLaunch
    from .lanes import Event as Event, Lane as Lane
    from .lib_blas import BatchBlas as BatchBlas, Blas as Blas, RecordedBlas as RecordedBlas
    from .lib_blaslt import BatchBlasLt as BatchBlasLt, BlasLt as BlasLt, RecordedBlasLt as RecordedBlasLt
    from .lib_fft import BatchFft as BatchFft, Fft as Fft, RecordedFft as RecordedFft
    from .lib_random import BatchRandom as BatchRandom, Random as Random, RecordedRandom as RecordedRandom
    from .lib_solver import BatchSolver as BatchSolver, Solver as Solver
    from .modules import Module as Module, ModuleLoader as ModuleLoader, Nvrtc as Nvrtc, Program as Program
    from .plans import FftPlan as FftPlan
    from .retries import Attempt as Attempt, Retry as Retry
    from .worlds import Sharded as Sharded, World as World, WorldBatch as WorldBatch

__all__ = [
    "Attempt",
    "Batch",
    "BatchBlas",
    "BatchBlasLt",
    "BatchFft",
    "BatchRandom",
    "BatchSolver",
    "Blas",
    "BlasLt",
    "Device",
    "DeviceArray",
    "Devices",
    "Event",
    "Fft",
    "FftPlan",
    "Graph",
    "GraphRecorder",
    "Kernel",
    "Lane",
    "Module",
    "ModuleLoader",
    "Nvrtc",
    "PreparedLaunch",
    "Program",
    "Random",
    "RandomGenerator",
    "RecordedBlas",
    "RecordedBlasLt",
    "RecordedFft",
    "RecordedRandom",
    "Reservation",
    "Retry",
    "Sharded",
    "Solver",
    "Subscription",
    "World",
    "WorldBatch",
]

HOMES: Final[dict[str, str]] = {
    "Attempt": "retries",
    "Batch": "batches",
    "BatchBlas": "lib_blas",
    "BatchBlasLt": "lib_blaslt",
    "BatchFft": "lib_fft",
    "BatchRandom": "lib_random",
    "BatchSolver": "lib_solver",
    "Blas": "lib_blas",
    "BlasLt": "lib_blaslt",
    "Device": "devices",
    "DeviceArray": "arrays",
    "Devices": "devices",
    "Event": "lanes",
    "Fft": "lib_fft",
    "FftPlan": "plans",
    "Graph": "graphs",
    "GraphRecorder": "graphs",
    "Kernel": "kernels",
    "Lane": "lanes",
    "Module": "modules",
    "ModuleLoader": "modules",
    "Nvrtc": "modules",
    "PreparedLaunch": "kernels",
    "Program": "modules",
    "Random": "lib_random",
    "RandomGenerator": "generators",
    "RecordedBlas": "lib_blas",
    "RecordedBlasLt": "lib_blaslt",
    "RecordedFft": "lib_fft",
    "RecordedRandom": "lib_random",
    "Reservation": "devices",
    "Retry": "retries",
    "Sharded": "worlds",
    "Solver": "lib_solver",
    "Subscription": "events",
    "World": "worlds",
    "WorldBatch": "worlds",
}
"""The file of each class."""
