"""Faults of the simulated driver, asked for by the name of a C function."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from atomr_cuda.injection import FAULTS_VARIABLE, Action, Injection

from .. import InvalidArgument
from ..worker.launcher import WorkerProcess
from ._faults import Fault
from ._workers import generation_of

if TYPE_CHECKING:
    from .. import Device


def inject(dev: Device, function: str, action: Action, *, call: int = 1, times: float = 1) -> None:
    """Make calls of a driver function fail, in the simulated worker in service.

    `function` is the C name, for example ``"cuMemCreate"``, with or without its version. `action` says what the calls
    do: `ReturnStatus`, `Poison`, `Hang`, `Crash`, `Exit`, `Delay` or `NoHostMemory`. It is for `times` calls in a row
    (`math.inf` for all that follow) from the `call`-th on, counted from 1 from the moment at which the worker reads
    this. The worker reads it before every request that is sent later; what was sent before may still be making calls.
    The next worker knows nothing of it: for that, use `inject_at_start`.

    Synchronous, and waits for nothing. Raises `InvalidArgument` for a function that the table does not have, for
    numbers that cannot be, and on a GPU, where faults are caused (`cause`) and not injected; `trio.WouldBlock` while
    the device is being rebuilt; `DeviceClosed` or `DeviceFailed` once it has ended.
    """
    if dev.backend != "sim":
        raise InvalidArgument(
            f"faults are injected into the simulator, and this device is a GPU: {function} cannot be made to fail",
            device=dev.index,
            operation="inject",
            advice=f"cause a real fault by `cause(dev, Fault....)`: {', '.join(fault.name for fault in Fault)}",
        )
    injection = _injection(function, action, call, times)
    generation_of(dev).request_faults(str(injection))


@contextlib.contextmanager
def inject_at_start(
    function: str, action: Action, *, call: int = 1, times: float = 1, workers: float = math.inf
) -> Iterator[None]:
    """Make calls of a driver function fail in the simulated workers that are started while the block runs.

    `workers` says how many of them, in the order of their start: 1 for the next one alone, `math.inf` for all.
    `function`, `action`, `call` and `times` are those of `inject`; calls are counted in each worker from its start,
    and the first of all is that of ``cuInit``. A worker that was started before the block, one that stands by for
    example, is not touched, and neither is a GPU. Blocks can be nested.

    Raises `InvalidArgument` as `inject` does.
    """
    first = WorkerProcess.started + 1
    last = WorkerProcess.started + workers
    injection = _injection(function, action, call, times, first_worker=first, last_worker=last)
    before = os.environ.get(FAULTS_VARIABLE)
    os.environ[FAULTS_VARIABLE] = ",".join(filter(None, (before, str(injection))))
    try:
        yield
    finally:
        if before is None:
            del os.environ[FAULTS_VARIABLE]
        else:
            os.environ[FAULTS_VARIABLE] = before


def _injection(
    function: str,
    action: Action,
    call: int,
    times: float,
    *,
    first_worker: int | None = None,
    last_worker: float = math.inf,
) -> Injection:
    """An injection that the worker will accept."""
    try:
        injection = Injection(function, action, call, times, first_worker, last_worker)
        injection.declared()
    except ValueError as error:
        raise InvalidArgument(str(error), operation="inject") from None
    return injection
