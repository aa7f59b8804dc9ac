"""`open_device`, as far as it can go without the rest of the library, which it imports in another thread.

Importing takes as long as dozens of milliseconds, and nobody else would run meanwhile. What opening itself needs comes
first; what verbs need that are called later comes while the worker starts, which takes longer.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio

from .worker.limits import occupy_standard_streams

if TYPE_CHECKING:
    from ._device import Device, OnFault, WorkerSource
    from ._findings import Check
    from ._supervision import RestartPolicy
    from .worker.backends import BackendName

_TO_OPEN = ("_device", "_lanes", "actors.module", "actors.nvrtc")
_TO_USE = (
    "_batch",
    "_compiling.linker",
    "_interop",
    "actors.blas",
    "actors.blaslt",
    "actors.copies",
    "actors.graph",
    "actors.memory",
    "actors.solver",
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
) -> AbstractAsyncContextManager[Device]:
    """Open a GPU for the length of an ``async with`` block.

    The context lives in a worker process, so a fault costs a `ContextLost` for what was running, and the device goes on
    as the next generation with its arrays intact.

    - `index`: the number of the device, counted as the CUDA driver counts.
    - `backend`: `"cuda"`, which may be called `"gpu"` too, or `"sim"` for the simulator, which needs no GPU; by default
      what ``ATOMR_TRIO_BACKEND`` says, else `"cuda"`.
    - `standby`: how many workers are kept ready beside the one in service, 0 to 4. After a fault one of them takes over
      in a few milliseconds, instead of the tenths of a second that a new worker takes to start. Each costs a context,
      about 0.6 GiB of device memory, and is started in the background.
    - `on_fault`: `"survive"`, or `"stale"`: then no array and no kernel survives a lost context, and using one raises
      `StaleArray` or `StaleKernel`.
    - `hang_timeout`: seconds that one command may run before its worker is killed; None for no limit. They count from
      when nothing else can hold it up any more, and for lanes that only wait for each other. It does not count for a
      copy of more than 4 MiB of ordinary memory, which the host has a part in.
    - `close_timeout`: seconds that leaving the block waits for what was started, before it kills the worker.
    - `memory_limit`: bytes that the arrays' chunks may take; by default 95 % of what was free at opening.
    - `restart_policy`: how many lost contexts are too many; by default 3 within a minute.
    - `guarded`: whether arrays lie between unmapped addresses unless they are made otherwise (see `Device.empty`).
    - `workers`: where worker processes come from and go back to, for example an `atomr_trio.testing.WorkerPool`; by
      default each is started when it is needed.
    - `spin`: seconds that a worker with nothing to do looks for more before it sleeps. Looking takes a processor, gives
      way to every other thread, and saves the time that waking takes; 0 is never. By default 0.001, or 0.0001 for the
      simulator.
    - `check`: what the simulator looks for in every access and barrier of a kernel: `"bounds"` (outside of arrays, and
      in freed ones), `"initialised"` (reads of what nobody wrote), `"races"` (of threads, in global and shared memory),
      `"barriers"` (that not all threads of a block reach), several of these words, or `"all"`. A kernel with a finding
      ends as one with a fault does: by a `ContextLost` that has `ContextLost.findings`. By default what
      ``ATOMR_TRIO_CHECK`` says, words with commas between them, else nothing. For a GPU NVIDIA has compute-sanitizer.

    Entering makes the device's primary context in the worker (``cuDevicePrimaryCtxRetain``) and is a checkpoint. It
    raises this process's soft limit of file descriptors to the hard one, where that is allowed.
    Leaving always waits, is bounded by `close_timeout`, and raises no `Cancelled` of its own.

    The device belongs to the trio run that opens it, and to its thread: a verb that is called from elsewhere raises
    `OutsideRun`, and nothing has happened.

    Raises `InvalidArgument` for an argument that cannot be, `LibraryNotFound` when there is no driver on this machine,
    `OutsideRun` outside of trio's tasks, and `DeviceFailed` when the device could not be opened, or from the block when
    its supervision gave up.
    """
    return _Opening(
        lambda device: device.open_device(
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
        )
    )


class _Opening(AbstractAsyncContextManager["Device"]):
    """The block of one device. `enter` makes what opens it, given the module that does."""

    def __init__(self, enter: Callable[[Any], AbstractAsyncContextManager[Device]]) -> None:
        self._enter = enter

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Device:
        with contextlib.suppress(OSError):  # no descriptor left: whoever needs one will say so
            occupy_standard_streams()  # before a thread imports, whose files would come and go under these numbers
        if not trio.lowlevel.in_trio_task():  # which is refused, by what is imported at once then
            self._inner = self._enter(importlib.import_module("._device", __package__))
            return await self._inner.__aenter__()
        await _Import(_TO_OPEN).done()
        using = _Import(_TO_USE)
        self._inner = self._enter(importlib.import_module("._device", __package__))
        device = await self._inner.__aenter__()
        with trio.CancelScope(shield=True):  # for what is left of an import
            await using.done()
        return device

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, traceback)


class _Import:
    """Modules of ours, being imported in another thread, unless they were."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._done: trio.Event | None = None
        if modules in _imported:
            return
        self._done = done = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def told(_outcome: object) -> None:
            with contextlib.suppress(trio.RunFinishedError):  # opening has failed, and nobody waits
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
    """One thread at a time, so that two need not wait for each other. Who uses a module hears of its errors."""
    with _importing:
        for name in modules:
            importlib.import_module(f".{name}", __package__)
        _imported.add(modules)
