"""Faults of the simulated driver, by the name of a C function."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from atomr_cuda.injection import FAULTS_VARIABLE, Action, Injection

from .. import InvalidArgument
from .._generation.process import WorkerProcess
from ..plain._twins import Twin
from ._faults import Fault
from ._workers import generation_of

if TYPE_CHECKING:
    from ._workers import AnyDevice


def inject(dev: AnyDevice, function: str, action: Action, *, call: int = 1, times: float = 1) -> None:
    """Make calls of a driver function fail, in the simulated worker in service.

    `dev` is a device of either face. `function` is the C name, for example ``"cuMemCreate"``, with or without its
    version. `action` is what the calls do: `ReturnStatus`, `Poison`, `Hang`, `Crash`, `Exit`, `Delay` or
    `NoHostMemory`. It applies to `times` calls in a row (`math.inf`: to all), from the `call`-th on. Calls are counted
    from 1, from the moment at which the worker reads this. The worker reads it before every request that is sent later;
    earlier requests may still be making calls. It does not apply to the next worker: for that, use `inject_at_start`.

    Synchronous; it does not wait. Raises `InvalidArgument` for an unknown function, for numbers out of range, and on a
    GPU: use `cause` there. Raises `trio.WouldBlock` while the device is being rebuilt, and `DeviceClosed` or
    `DeviceFailed` once it has ended.
    """
    if dev.backend != "sim":
        raise InvalidArgument(
            f"cannot make {function} fail: this device is a GPU, and faults can be injected only into the simulator",
            device=dev.index,
            operation="inject",
            advice=f"cause a real fault with `cause(dev, Fault....)`: {', '.join(fault.name for fault in Fault)}",
        )
    injection = _injection(function, action, call, times)
    if isinstance(dev, Twin):
        dev._enqueue(inject, (dev, function, action), {"call": call, "times": times})
        return
    generation_of(dev).request_faults(str(injection))


@contextlib.contextmanager
def inject_at_start(
    function: str, action: Action, *, call: int = 1, times: float = 1, workers: float = math.inf
) -> Iterator[None]:
    """Make calls of a driver function fail in the simulated workers that are started while the block runs.

    `workers` is the number of workers, in the order of their start: 1 for the next one alone, `math.inf` for all.
    `function`, `action`, `call` and `times` are those of `inject`; calls are counted in each worker from its start,
    where ``cuInit`` is the first. Workers that were started before the block, such as a standby worker, are not
    affected. A GPU is not affected either. Blocks can be nested.

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
    """Return an injection that the worker will accept."""
    try:
        injection = Injection(function, action, call, times, first_worker, last_worker)
        injection.declared()
    except ValueError as error:
        raise InvalidArgument(str(error), operation="inject") from None
    return injection
