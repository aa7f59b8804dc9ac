"""`open_device` and `open_devices`, which import the rest of the library in another thread.

Importing takes dozens of milliseconds, and no other task would run meanwhile. What starts a worker comes first, and the
worker is started. The modules for opening itself and those for later verbs come while it starts, which takes longer.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

import trio

from .._wire.backends import backend_of_environment, named_backend
from .._wire.limits import occupy_standard_streams, raise_descriptor_limit
from ..libraries.registered import HOMES

if TYPE_CHECKING:
    from .._generation.core import WorkerSource
    from .._generation.process import WorkerProcess
    from .._supervision.groups import OnDeviceFailed, Strategy
    from .._supervision.policy import RestartPolicy
    from .._values.findings import Check
    from .._wire.backends import BackendName
    from .device import Device
    from .group import Devices
    from .lifetime import OnFault

Face = TypeVar("Face")
"""What a block yields."""

_TO_START = ("_generation.process",)
_TO_OPEN = ("_device.lifetime", "libraries.lanes.verbs", "libraries.modules.module", "libraries.nvrtc.verbs")
_TO_OPEN_SEVERAL = ("_device.group", *_TO_OPEN)
_TO_USE = (
    "_device.batch",
    "_compiling.linker",
    "_arrays.sharing.foreign",
    "_arrays.sharing.protocols",
    "_transfers.copies",
    "libraries.graphs.graph",
    "_transfers.memory",
    *HOMES,
)
_importing = threading.Lock()
_imported: set[tuple[str, ...]] = set()


def open_device(
    index: int = 0,
    *,
    backend: BackendName | None = None,
    standby: int = 0,
    on_fault: OnFault = "survive",
    hang_timeout: float | None = None,
    close_timeout: float = 2.0,
    memory_limit: int | None = None,
    restart_policy: RestartPolicy | None = None,
    guarded: bool = False,
    workers: WorkerSource | None = None,
    spin: float | None = None,
    check: Check | Collection[Check] | None = None,
    plan_cache: int = 256,
) -> AbstractAsyncContextManager[Device]:
    """Open a GPU for the length of an ``async with`` block.

    The context lives in a worker process. After a fault, the running requests get `ContextLost`, and the device goes on
    as the next generation with its arrays intact.

    - `index`: the number of the device, counted as the CUDA driver counts.
    - `backend`: `"cuda"` (`"gpu"` means the same), or `"sim"` for the simulator, which needs no GPU; the default is the
      value of ``ATOMR_TRIO_BACKEND``, else `"cuda"`.
    - `standby`: the number of workers that are kept ready beside the one in service, 0 to 4. After a fault one of them
      takes over in a few milliseconds; a new worker takes tenths of a second to start. Each needs a context, about
      0.6 GiB of device memory, and is started in the background.
    - `on_fault`: `"survive"`, or `"stale"`. With `"stale"` no array and no kernel survives a lost context, and using
      one raises `StaleArray` or `StaleKernel`.
    - `hang_timeout`: seconds that one command may run before its worker is killed; None for no limit. They count
      from when no other command can delay it any more, and for lanes that only wait for each other. The limit does not
      apply to a copy of more than 4 MiB of ordinary memory, in which the host takes part.
    - `close_timeout`: seconds that leaving the block waits for started work, before it kills the worker.
    - `memory_limit`: bytes that the arrays' chunks and the workspaces of plans and graphs may take; by default 95 % of
      the memory that was free at opening, without 0.75 GiB for each standby.
    - `restart_policy`: the number of lost contexts that is tolerated; by default 3 within a minute.
    - `guarded`: the default for arrays: true puts each between unmapped addresses (see `Device.empty`).
    - `workers`: a source of worker processes, which takes them back, for example an `atomr_trio.testing.WorkerPool`; by
      default each is started when it is needed.
    - `spin`: seconds that an idle worker polls for work before it sleeps, at most: less while work comes further
      apart. Polling uses a processor, yields to every other thread, and saves the time of waking; 0 is never. The
      default is 0.001, and 0.0001 for the simulator and for a program that may use fewer than 4 processors.
    - `check`: the simulator's checks of every access and barrier of a kernel: `"bounds"` (outside of arrays, and in
      freed ones), `"initialised"` (reads of memory that was never written), `"races"` (of threads, in global and shared
      memory), `"barriers"` (that not all threads of a block reach), several of these, or `"all"`. A kernel with a
      finding ends like one with a fault, by a `ContextLost` that has `ContextLost.findings`. The default is the value
      of ``ATOMR_TRIO_CHECK``, names with commas between them, else none. For a GPU use NVIDIA's compute-sanitizer.
    - `plan_cache`: the number of plans of libraries that workers keep. The one that was not used for longest is given
      up, and made again when it is used.

    Entering makes the device's primary context in the worker (``cuDevicePrimaryCtxRetain``) and is a checkpoint. It
    raises this process's soft limit of file descriptors to the hard one, where that is allowed.
    Leaving always waits, is bounded by `close_timeout`, and raises no `Cancelled` of its own.

    The device belongs to the trio run that opens it, and to its thread: a verb that is called from elsewhere raises
    `OutsideRun`, and has no effect.

    Raises `InvalidArgument` for an invalid argument, `LibraryNotFound` when there is no driver on this machine,
    `OutsideRun` outside of trio's tasks, and `DeviceFailed` when the device could not be opened, or from the block when
    its supervision gave up.
    """
    ahead = [] if workers is not None or check is not None else [index]
    return _Opening(
        lambda lifetime, processes: lifetime.open_device(
            index,
            backend=backend,
            standby=standby,
            on_fault=on_fault,
            hang_timeout=hang_timeout,
            close_timeout=close_timeout,
            memory_limit=memory_limit,
            restart_policy=restart_policy,
            guarded=guarded,
            workers=workers,
            spin=spin,
            check=check,
            plan_cache=plan_cache,
            process=next(iter(processes.values()), None),
        ),
        _TO_OPEN,
        ahead,
        backend,
    )


def open_devices(
    devices: Sequence[int | str] | Literal["all"] = "all",
    *,
    count: int | None = None,
    strategy: Strategy = "one_for_one",
    on_device_failed: OnDeviceFailed = "end",
    group_policy: RestartPolicy | None = None,
    peers: bool = False,
    backend: BackendName | None = None,
    standby: int = 0,
    on_fault: OnFault = "survive",
    hang_timeout: float | None = None,
    close_timeout: float = 2.0,
    memory_limit: int | None = None,
    restart_policy: RestartPolicy | None = None,
    guarded: bool = False,
    workers: WorkerSource | None = None,
    spin: float | None = None,
    check: Check | Collection[Check] | None = None,
    plan_cache: int = 256,
) -> AbstractAsyncContextManager[Devices]:
    """Open several GPUs as one group, for the length of an ``async with`` block.

    Each is a device like that of `open_device`, with a worker of its own: a fault of one costs the others nothing. They
    are opened side by side. If one cannot be opened, the others are closed, and its error is raised.

    - `devices`: a sequence of indices, counted as the CUDA driver counts, and of UUIDs, ``"GPU-..."``, of which the
      beginning is enough; of a part of a divided GPU ``"MIG-..."``. The default is `"all"`. With
      ``CUDA_VISIBLE_DEVICES`` set, only the devices that it shows count, in its order.
    - `count`: the number of devices to open, the first ones of `devices`; by default all of those.
    - `strategy`: what is restarted when one device loses its context: `"one_for_one"` that device alone,
      `"all_for_one"` every device, `"rest_for_one"` that one and those named after it. A restart ordered so raises
      `ContextLost` where work was running, like every loss, and costs that device nothing of its `restart_policy`.
    - `on_device_failed`: what happens when the supervision gives a device up. With `"end"` its `DeviceFailed` leaves
      the block. With `"drop"` the device is closed, its arrays are lost, and the others go on; the failure of the last
      one leaves the block.
    - `group_policy`: the failures of all devices together, losses and failed starts, that are tolerated; by default
      3 for each device within a minute. When it is spent the block ends, with `"drop"` too. Of the policy only
      `intensity` and `period` count.
    - `peers`: true lets kernels of one device use arrays of another.
    - `backend`: `"cuda"`, which may be called `"gpu"` too, or `"sim"`; the default is that of `open_device`.
    - `standby`: the number of workers kept ready for each device, 0 to 4.
    - `restart_policy`: the number of lost contexts that is tolerated of each device; by default 3 within a minute.
    - `memory_limit`: bytes that each device's arrays and workspaces may take; the default is that of `open_device`.
    - `workers`: a source of worker processes of every device, for example an `atomr_trio.testing.WorkerPools`.
    - `hang_timeout` and `close_timeout` (seconds), `on_fault`, `guarded`, `spin` (seconds), `check` and `plan_cache`
      (a number of plans): those of `open_device`, for each device.

    Entering raises this process's soft limit of file descriptors to the hard one, where that is allowed. Where that is
    not enough for 128 chunks of memory a device, each device may have fewer. To name devices by anything but indices,
    or all of them, takes the time of one more process, which asks the driver for them (``cuDeviceGetUuid``).

    Raises `InvalidArgument` for an invalid argument: an unknown strategy, a device that is named twice or is not there,
    or more devices than there are. Raises `LibraryNotFound` and `OutsideRun` as `open_device` does, and `DeviceFailed`
    when a device could not be opened, or from the block when the supervision has ended it.
    """
    usual = workers is None and check is None and isinstance(devices, list | tuple)
    return _Opening(
        lambda group, processes: group.open_devices(
            devices,
            count=count,
            strategy=strategy,
            on_device_failed=on_device_failed,
            group_policy=group_policy,
            peers=peers,
            backend=backend,
            standby=standby,
            on_fault=on_fault,
            hang_timeout=hang_timeout,
            close_timeout=close_timeout,
            memory_limit=memory_limit,
            restart_policy=restart_policy,
            guarded=guarded,
            workers=workers,
            spin=spin,
            check=check,
            plan_cache=plan_cache,
            processes=processes,
        ),
        _TO_OPEN_SEVERAL,
        devices if usual and count is None and all(type(name) is int for name in devices) else [],
        backend,
    )


class _Opening(AbstractAsyncContextManager[Face], Generic[Face]):
    """The block of one device or of several.

    `enter` returns the context manager that opens them, given the module that does, the first of `modules`, and the
    workers that were started ahead, by their indices. `ahead` are the indices of such workers and `backend` is theirs,
    as the caller gave them.
    """

    def __init__(
        self,
        enter: Callable[[Any, dict[int, WorkerProcess]], AbstractAsyncContextManager[Face]],
        modules: tuple[str, ...],
        ahead: Sequence[object],
        backend: object,
    ) -> None:
        self._enter = enter
        self._modules = modules
        self._home = modules[0]
        self._ahead = ahead
        self._backend = backend

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Face:
        with contextlib.suppress(OSError):  # no descriptor left: whoever needs one will say so
            occupy_standard_streams()  # before a thread imports, whose files would come and go under these numbers
        if not trio.lowlevel.in_trio_task():  # it is refused, by the module that is imported here
            self._inner = self._enter(importlib.import_module(f"..{self._home}", __package__), {})
            return await self._inner.__aenter__()
        processes: dict[int, WorkerProcess] = {}
        if self._ahead and f"{__package__}.lifetime" not in sys.modules:
            await _Import(_TO_START).done()
            processes = _started(self._ahead, self._backend)
        try:
            await _Import(self._modules).done()
            using = _Import(_TO_USE)
            self._inner = self._enter(importlib.import_module(f"..{self._home}", __package__), processes)
            face = await self._inner.__aenter__()
        except BaseException:
            if processes:
                with trio.CancelScope(shield=True):
                    await _Import(_TO_OPEN).done()
                    from .._generation.adoption import discard

                    for process in processes.values():
                        await discard(process)
            raise
        with trio.CancelScope(shield=True):  # for the rest of an import
            await using.done()
        return face

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, traceback)

    if not TYPE_CHECKING:  # for the error alone

        def __enter__(self) -> NoReturn:
            raise TypeError(
                "a device is opened by `async with` in a trio program; a program without trio uses "
                "`atomr_trio.start`, or `atomr_trio.start_devices` for several"
            )

        def __exit__(self, *_exc_info: object) -> None: ...


def _started(indices: Sequence[object], backend: object) -> dict[int, WorkerProcess]:
    """Start the first worker of each device before the options are checked. Returns none if any is not as usual.

    Whatever is wrong is reported when it is started again.
    """
    from .._generation.process import MAX_DEVICES, WorkerProcess
    from .._wire.checking import DEFAULT_VARIABLE

    started: dict[int, WorkerProcess] = {}
    if sys.platform != "linux" or os.environ.get(DEFAULT_VARIABLE):
        return started
    usual = [index for index in indices if type(index) is int and 0 <= index < MAX_DEVICES]
    if len(set(usual)) != len(indices):
        return started
    with contextlib.suppress(OSError, ValueError, MemoryError):
        chosen = backend_of_environment() or "cuda" if backend is None else named_backend(backend)
        raise_descriptor_limit()
        for index in usual:
            started[index] = WorkerProcess(chosen, index)
    return started


class _Import:
    """The import of modules of this library in another thread, unless they are imported already."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._done: trio.Event | None = None
        if modules in _imported:
            return
        self._done = done = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def told(_outcome: object) -> None:
            with contextlib.suppress(trio.RunFinishedError):  # opening has failed, and no task waits
                token.run_sync_soon(done.set)

        try:
            trio.lowlevel.start_thread_soon(lambda: _import(modules), told, "atomr_trio import")
        except RuntimeError:  # the system has no thread
            _import(modules)
            done.set()

    async def done(self) -> None:
        """Wait until they are imported."""
        if self._done is not None:
            await self._done.wait()


def _import(modules: tuple[str, ...]) -> None:
    """Import modules, one thread at a time, so that two do not wait for each other. Later imports raise the errors."""
    with _importing:
        for name in modules:
            importlib.import_module(f"..{name}", __package__)
        _imported.add(modules)
