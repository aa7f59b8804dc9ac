"""`open_device`, which imports the rest of the library in another thread.

Importing takes dozens of milliseconds, and no other task would run meanwhile. What starts a worker comes first, and the
worker is started. The modules for opening itself and those for later verbs come while it starts, which takes longer.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio

from .._wire.backends import backend_of_environment, named_backend
from .._wire.limits import occupy_standard_streams, raise_descriptor_limit
from ..libraries.registered import HOMES

if TYPE_CHECKING:
    from .._generation.core import WorkerSource
    from .._generation.process import WorkerProcess
    from .._supervision.policy import RestartPolicy
    from .._values.findings import Check
    from .._wire.backends import BackendName
    from .device import Device
    from .lifetime import OnFault

_TO_START = ("_generation.process",)
_TO_OPEN = ("_device.lifetime", "libraries.lanes.verbs", "libraries.modules.module", "libraries.nvrtc.verbs")
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
      the memory that was free at opening.
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
    ahead = None if workers is not None or check is not None else (index, backend)
    return _Opening(
        lambda lifetime, process: lifetime.open_device(
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
            process=process,
        ),
        ahead,
    )


class _Opening(AbstractAsyncContextManager["Device"]):
    """The block of one device.

    `enter` returns the context manager that opens it, given the module that does, and a worker that was started ahead,
    or None. `ahead` are the index and the backend of such a worker, as the caller gave them; None if there is to be
    none.
    """

    def __init__(
        self,
        enter: Callable[[Any, WorkerProcess | None], AbstractAsyncContextManager[Device]],
        ahead: tuple[object, object] | None,
    ) -> None:
        self._enter = enter
        self._ahead = ahead

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Device:
        with contextlib.suppress(OSError):  # no descriptor left: whoever needs one will say so
            occupy_standard_streams()  # before a thread imports, whose files would come and go under these numbers
        if not trio.lowlevel.in_trio_task():  # it is refused, by the module that is imported here
            self._inner = self._enter(importlib.import_module(".lifetime", __package__), None)
            return await self._inner.__aenter__()
        process: WorkerProcess | None = None
        if self._ahead is not None and f"{__package__}.lifetime" not in sys.modules:
            await _Import(_TO_START).done()
            process = _started(*self._ahead)
        try:
            await _Import(_TO_OPEN).done()
            using = _Import(_TO_USE)
            self._inner = self._enter(importlib.import_module(".lifetime", __package__), process)
            device = await self._inner.__aenter__()
        except BaseException:
            if process is not None:
                with trio.CancelScope(shield=True):
                    await _Import(_TO_OPEN).done()
                    from .._generation.adoption import discard

                    await discard(process)
            raise
        with trio.CancelScope(shield=True):  # for the rest of an import
            await using.done()
        return device

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, traceback)


def _started(index: object, backend: object) -> WorkerProcess | None:
    """Start the first worker of a device before its options are checked. Returns None for any that is not as usual.

    Whatever is wrong is reported when it is started again.
    """
    from .._generation.process import MAX_DEVICES, WorkerProcess
    from .._wire.checking import DEFAULT_VARIABLE

    if sys.platform != "linux" or os.environ.get(DEFAULT_VARIABLE):
        return None
    if type(index) is not int or not 0 <= index < MAX_DEVICES:
        return None
    try:
        chosen = backend_of_environment() or "cuda" if backend is None else named_backend(backend)
        raise_descriptor_limit()
        return WorkerProcess(chosen, index)
    except (OSError, ValueError, MemoryError):
        return None


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
