"""Tools for testing: faults on request, and a check of what every call promises its caller.

It uses the public interface, and a few private attributes where a test needs more than a program does. The files, in
reading order:

- ``_workers``: end a worker's process, stop it, or hold back its successor;
- ``_faults``: faults that a device really has, on a GPU and on the simulator;
- ``_injection``: faults of the simulated driver, by the name of a C function;
- ``_conformance``: `check_actor`;
- ``_pool``: workers that are kept from one `trio.run` to the next.
"""

from __future__ import annotations

from atomr_cuda.injection import (
    Action as Action,
    Crash as Crash,
    Delay as Delay,
    Exit as Exit,
    Hang as Hang,
    NoHostMemory as NoHostMemory,
    Poison as Poison,
    ReturnStatus as ReturnStatus,
)

from ._conformance import check_actor as check_actor, launch_once as launch_once
from ._faults import (
    EndlessKernel as EndlessKernel,
    Fault as Fault,
    FaultSigns as FaultSigns,
    cause as cause,
    endless_kernel as endless_kernel,
)
from ._injection import inject as inject, inject_at_start as inject_at_start
from ._pool import PoolStatistics as PoolStatistics, WorkerPool as WorkerPool, WorkerPools as WorkerPools
from ._workers import (
    hold_rebuild as hold_rebuild,
    hold_worker as hold_worker,
    kill_worker as kill_worker,
    worker_pid as worker_pid,
)

__all__ = [
    "Action",
    "Crash",
    "Delay",
    "EndlessKernel",
    "Exit",
    "Fault",
    "FaultSigns",
    "Hang",
    "NoHostMemory",
    "Poison",
    "PoolStatistics",
    "ReturnStatus",
    "WorkerPool",
    "WorkerPools",
    "cause",
    "check_actor",
    "endless_kernel",
    "hold_rebuild",
    "hold_worker",
    "inject",
    "inject_at_start",
    "kill_worker",
    "launch_once",
    "worker_pid",
]

# Tracebacks and docs show the public name.
for _name in __all__:
    if getattr(globals()[_name], "__module__", "").startswith(f"{__name__}."):
        globals()[_name].__module__ = __name__
del _name
