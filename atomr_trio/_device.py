"""`open_device`, `Device`, and the supervision of its generations.

This is the only file that opens a nursery. `async with open_device()` raises:

- the body's own exception, the same object, never wrapped;
- `Cancelled`, when the scope around it was cancelled, after a bounded cleanup;
- `DeviceFailed`, when the supervision gave up; a body exception is its context;
- the error of the first start, plain, before the body ran;
- `AtomrInternalError` for an internal error.

It never raises an exception group of its own. The body runs in the caller's task. The supervisor is a child task in a
shielded scope, so that a cancellation from outside ends the body first and the body's ``finally`` can still use the
device. The shield ends when the body does, and everything after that is bounded by `close_timeout`.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import math
import os
import platform
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, SupportsIndex, final

import numpy as np
import numpy.typing as npt
import outcome
import trio

from ._arrays.arrays import DeviceArray, Storage, as_host, contiguous
from ._arrays.checked_memory import CheckedArena, make_array
from ._arrays.ownership import foreign
from ._calls.known import KnownCalls
from ._calls.launching import AwaitedLaunches
from ._calls.shortcut import Shortcut
from ._compiling.service import CompileService
from ._generation.actor import Actor
from ._generation.adoption import reap
from ._generation.generation import Generation
from ._generation.loss import BEING_REBUILT, Loss, LossKind, MakeError, StartFailed
from ._generation.process import WorkerProcess, address_range
from ._generation.standby import Standbys
from ._generation.timeline import ORPHANS_AT_ONCE, LaneBook
from ._libraries import LIBRARIES, DeviceLibraries
from ._memory.arena import MAX_CHUNKS, Arena, ArenaFull, Block, Bound, Recipe
from ._memory.map import Drawing, MemoryMap, map_of
from ._supervision.closing import close_in_thread, closed
from ._supervision.home import Home, check_can_open
from ._supervision.mailbox import Mailbox, Request
from ._supervision.policy import GiveUp, LoseContext, Rebuild, RestartActor, RestartPolicy, Supervision
from ._supervision.realtime import RealTimer
from ._transfers.batch_areas import BatchAreas
from ._transfers.crew import Crew
from ._transfers.pinned import PinnedMemory
from ._transfers.staging import STAGING_BYTES, Slot, StagingPool
from ._transfers.trim import Trim
from ._values.backends import chosen_backend
from ._values.dtypes import check_dtype
from ._values.errors import (
    AtomrInternalError,
    ContextLost,
    DeviceClosed,
    DeviceError,
    DeviceFailed,
    InvalidArgument,
    OutOfDeviceMemory,
    OutOfHostMemory,
    fresh,
)
from ._values.events import (
    ActorRestarted,
    ContextRebuilt,
    ContextWasLost,
    DeviceGaveUp,
    EventHub,
    Subscription,
    WorkerReaped,
)
from ._values.findings import Check, chosen_checks
from ._values.info import DeviceInfo
from ._values.shortage import shortage_of
from ._values.state import DeviceState
from ._values.statistics import DeviceStatistics, LaneStatistics, MemoryStatistics
from ._values.util import Living, NoPublicConstructor, check_seconds, known, shown
from ._wire.backends import Backend, BackendName
from ._wire.limits import raise_descriptor_limit, reason_of
from ._wire.protocol import LANE_NAMES, Verb

if TYPE_CHECKING:
    from ._arrays.dlpack import SupportsCudaArray, SupportsDLPack
    from ._arrays.interop import Interop
    from ._batch import Batch
    from .libraries.graphs.graph import Graph, GraphRecorder
    from .libraries.lanes.verbs import Lane
    from .libraries.modules.module import Module, ModuleLoader, Program
    from .libraries.nvrtc.verbs import Nvrtc

log = logging.getLogger("atomr_trio.device")

OnFault = Literal["survive", "stale"]

ACTORS = ("memory", "module", "nvrtc", *LIBRARIES)
MAILBOX_CAPACITY = 256
DEFAULT_MEMORY_SHARE = 0.95
MAX_DEVICES = 14
RESTARTER = "the caller of restart()"
"""The reporter of a deliberate restart."""
MAX_STANDBYS = 4
DEFAULT_SPIN: Final[Mapping[Backend, float]] = MappingProxyType({"cuda": 1e-3, "sim": 1e-4})
STANDBY_BYTES = 768 << 20
"""Device memory set aside for the context of each standby; one takes about 600 MiB on an H200."""


class WorkerSource(Protocol):
    """A source of worker processes, which takes them back after a clean end."""

    def take(self, backend: Backend, index: int) -> WorkerProcess:
        """Return a worker process that no device has adopted. Raises `OSError` when the system has no room for one."""

    def give_back(self, process: WorkerProcess) -> None:
        """Take back a worker process that has released everything but its context, and can be adopted again."""


_FEWER_GUARDED = "free arrays, or make fewer guarded ones: each of those takes a chunk and addresses of its own"
_SHORT_OF: Final[Mapping[Bound, tuple[str, str]]] = MappingProxyType(
    {
        "memory": ("the limit is {limit:,}", "free arrays, or raise memory_limit= of open_device"),
        "chunks": ("a device may have no more chunks", _FEWER_GUARDED),
        "addresses": ("no free range of addresses is long enough", _FEWER_GUARDED),
    }
)
"""For what an arena has run out of: how `OutOfDeviceMemory` says so, and what helps."""

_open_devices: Living[Device] = Living()


@final
class Device(DeviceLibraries, metaclass=NoPublicConstructor):
    """An open GPU. Made by `open_device`; everything a program does with the GPU goes through it.

    Every request may also raise errors that the docstrings of the single verbs do not repeat. These are `DeviceFailed`
    or `DeviceClosed` once the device takes no requests; `OutsideRun` when the call does not come from the trio run that
    opened the device; and `ActorCrashed`, an internal error of this library.
    """

    nvrtc: Nvrtc
    """The compiler."""
    module: ModuleLoader
    """Loads images that were compiled elsewhere."""
    compute_lane: Lane
    """The lane of every kernel launch that names no other."""

    _made_by = "`async with atomr_trio.open_device()`"

    def __init__(
        self,
        index: int,
        backend: Backend,
        *,
        on_fault: OnFault,
        hang_timeout: float | None,
        close_timeout: float,
        memory_limit: int | None,
        restart_policy: RestartPolicy,
        standby: int,
        guarded: bool,
        workers: WorkerSource | None,
        spin: float,
        checks: tuple[str, ...],
    ) -> None:
        from .libraries.lanes.verbs import Lanes
        from .libraries.modules.module import ModuleLoader
        from .libraries.nvrtc.verbs import Nvrtc

        self._index = index
        self._backend: Backend = backend
        self._strict = on_fault == "stale"
        self._hang_timeout = hang_timeout
        self._close_timeout = close_timeout
        self._memory_limit = memory_limit
        self._guarded = guarded
        self._workers = workers
        self._checks = checks
        self._make_array = make_array if checks else DeviceArray._create
        self._process_id = os.getpid()
        self._closed_as: DeviceError | None = None
        self._home = Home(self)
        self._supervision = Supervision(restart_policy, actor_policy=restart_policy)
        self._events = EventHub(index, self._home)
        self._last_error: str | None = None
        self._standbys = Standbys(standby, restart_policy, self._events)
        # For the actors and their mailboxes.
        gate = _QuarantineGate(self)
        self._actors = tuple(Actor(name, Mailbox(name, MAILBOX_CAPACITY, gate)) for name in ACTORS)
        memory, module, nvrtc, *libraries = self._actors
        for actor in (memory, module, *libraries):
            actor.mailbox.shortcut = Shortcut(self, actor)
        self._module_actor = module
        self._memory_mailbox = memory.mailbox
        self._module_mailbox = module.mailbox
        self._nvrtc_mailbox = nvrtc.mailbox
        self._compiler = CompileService.of_this_run()
        self._compiling: set[Request] = set()
        self._modules: Living[Module] = Living()
        self._programs: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()
        """The shared module of each compiled program, by the program's identity."""
        self._orphan_modules: collections.deque[int] = collections.deque()
        self._graphs: Living[Graph] = Living()
        self._orphan_graphs: collections.deque[int] = collections.deque()
        self._recording: list[trio.lowlevel.Task] = []
        """The tasks that record a graph."""
        self._numbers = itertools.count(1)
        # Memory.
        self._info: DeviceInfo | None = None
        self._arena: Arena | None = None
        self._arena_orphans: collections.deque[Block] = collections.deque()
        self._interop: Interop | None = None
        self._staging = StagingPool()
        self._pinned = PinnedMemory(lambda: self._generation)
        self._batch_areas = BatchAreas(self._staging, self._pinned, lambda: self._generation)
        self._crew = Crew()
        # Lanes.
        self._spin = spin
        self._lanes = Lanes(self)
        self.compute_lane = self._lanes.compute
        self._launches = AwaitedLaunches(self)
        self._known_calls = KnownCalls()
        # Generations, and the end.
        self._generation: Generation | None = None
        self._generation_changed = trio.Event()
        self._generation_started = 0.0
        self._rebuild_scope: trio.CancelScope | None = None
        self._background: trio.Nursery | None = None
        self._dying: set[Generation] = set()
        self._standby_scope = trio.CancelScope()
        self._closing = trio.Event()
        self._close_deadline = math.inf
        self._body_scope = trio.CancelScope()
        self._failure: Exception | None = None
        self.nvrtc = Nvrtc(self)
        self.module = ModuleLoader(self)

    def __repr__(self) -> str:
        name = self._info.name if self._info is not None else self._backend
        return f"<Device {self._index} ({name}), {self.state.value}, generation {self.generation}>"

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def index(self) -> int:
        """The index that `open_device` was given."""
        return self._index

    @property
    def backend(self) -> Backend:
        """The backend: `"cuda"` for a GPU, however it was named, and `"sim"` for the simulator."""
        return self._backend

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that the simulator makes of each kernel, as given to `open_device`; empty for none."""
        return self._checks

    @property
    def info(self) -> DeviceInfo:
        """Facts about the device."""
        return known(self._info, "a device that is open has its facts")

    @property
    def state(self) -> DeviceState:
        """The state of the device."""
        return self._supervision.state

    @property
    def generation(self) -> int:
        """The number of the newest generation. The first is 1; each context that had to be rebuilt adds 1."""
        return self._supervision.generation

    @trio.lowlevel.enable_ki_protection
    async def wait_generation(self, *, after: int) -> int:
        """Wait until a generation newer than `after` is running, and return its number.

        Raises `InvalidArgument` if `after` is not a generation's number, `DeviceFailed` or `DeviceClosed` if there will
        be no such generation.
        """
        self._home.check_task()
        await trio.lowlevel.checkpoint()
        if type(after) is not int:
            raise InvalidArgument(f"after is the number of a generation, not {shown(after)}", device=self._index)
        while self.generation <= after or self.state is not DeviceState.RUNNING:
            self._check_open()
            await self._generation_changed.wait()
        return self.generation

    @trio.lowlevel.enable_ki_protection
    async def wait_standby(self, count: int | None = None) -> None:
        """Wait until `count` standby workers are ready to take over; by default all that `open_device` starts.

        Standbys are started in the background, after opening and after each takeover.

        Raises `InvalidArgument` for more than `open_device` starts, `DeviceFailed` or `DeviceClosed` once the
        device takes no requests.
        """
        self._home.check_task()
        await trio.lowlevel.checkpoint()
        wanted = self._standbys.count if count is None else count
        if type(wanted) is not int or not 0 <= wanted <= self._standbys.count:
            raise InvalidArgument(
                f"count is an int from 0 to standby={self._standbys.count}, not {count!r}", device=self._index
            )
        self._check_open()
        while self._standbys.ready < wanted:
            await self._standbys.wait_changed()
            self._check_open()

    @trio.lowlevel.enable_ki_protection
    async def restart(self, reason: str) -> int:
        """Give the context up deliberately and wait for the next generation; returns its number.

        Use it for a kernel that is known to hang, or to discard the state that a library keeps. It is a loss like any
        other, with `reason` in every error, but it does not count against the `restart_policy`. Started requests get
        `ContextLost`, queued requests run in the next generation. While a rebuild is under way, this waits for it.

        Raises `DeviceFailed` or `DeviceClosed` if there will be no next generation.
        """
        self._home.check_task()
        await trio.lowlevel.checkpoint()
        self._check_open()
        lost = self.generation
        if self.state is DeviceState.RUNNING and self._generation is not None:
            loss = Loss(LossKind.RESTART, f"restarted: {reason}", reported_by=RESTARTER)
            self._generation.lose(loss)
        return await self.wait_generation(after=lost)

    def events(self, *, buffer: int = 64) -> Subscription:
        """Return the device's events as an async iterator: `async with dev.events() as events: async for event in`.

        A subscriber that is more than `buffer` events behind loses the newest, and gets `EventsDropped`.

        Raises `InvalidArgument` for a buffer that is not an int of at least 1.
        """
        return self._events.subscribe(buffer)

    @trio.lowlevel.enable_ki_protection
    def statistics(self) -> DeviceStatistics:
        """Return the present values of the device's counters."""
        self._home.check_thread()
        generation = self._generation
        lanes = []
        for index, name in (
            *enumerate(LANE_NAMES),
            *((each._number, each.name) for each in self._lanes.opened.values()),
        ):
            book = generation.timeline.book(index) if generation is not None else LaneBook(index)
            lanes.append(
                LaneStatistics(
                    name=name,
                    submitted=book.issued,
                    finished=book.issued - book.unfinished,
                    waiting=0 if generation is None else generation.admission.waiting(index),
                    waits=book.waited,
                )
            )
        launched = {} if generation is None else generation.timeline.launched()
        now = trio.current_time()
        running = generation is not None and self.state is DeviceState.RUNNING
        return DeviceStatistics(
            device=self._index,
            generation=self.generation,
            state=self.state,
            uptime=now - self._generation_started if running else 0.0,
            lanes=tuple(lanes),
            actors=tuple(actor.mailbox.statistics(launched.get(actor.name, 0)) for actor in self._actors),
            memory=self._memory_statistics(),
            standbys=self._standbys.ready,
            restarts_left=self._supervision.restarts_left(now),
            last_error=self._last_error,
        )

    def _memory_statistics(self) -> MemoryStatistics:
        arena = known(self._arena, "a device that is open has an arena")
        runs, longest = arena.free_runs()
        torn, lost = arena.damage()
        return MemoryStatistics(
            in_use=arena.in_use,
            cached=arena.free_bytes,
            reserved=arena.reserved,
            largest_free=longest,
            free_runs=runs,
            torn=torn,
            lost=lost,
            limit=arena.limit,
            staging=STAGING_BYTES + self._batch_areas.size,
            waiting=0 if self._generation is None else self._generation.sender.outbox_bytes,
        )

    @trio.lowlevel.enable_ki_protection
    def memory_map(self) -> MemoryMap:
        """Return where the arrays lie in device memory at this moment: a value that prints as a picture.

        It takes about 3 us for an array, and no other task runs meanwhile: for thousands use `await map_memory()`.
        """
        self._home.check_thread()
        return map_of(self._index, known(self._arena, "a device that is open has an arena"))

    @trio.lowlevel.enable_ki_protection
    async def map_memory(self) -> MemoryMap:
        """Return the same as `memory_map`, with other tasks running meanwhile.

        The places are those at the moment of the call. An array's state is read later, and may be torn or lost by then.
        """
        self._home.check_task()
        drawing = Drawing(self._index, known(self._arena, "a device that is open has an arena"))
        await trio.lowlevel.checkpoint()
        for _ in drawing:
            await trio.lowlevel.checkpoint()
        return known(drawing.picture, "it is drawn to its end")

    @trio.lowlevel.enable_ki_protection
    async def trim(self, keep: int = 0) -> int:
        """Give memory that no array holds back to the GPU (``cuMemUnmap``, ``cuMemRelease``); returns the bytes.

        Whole chunks go back, after the work that still runs on them; arrays are never moved. At least `keep` bytes of
        such chunks stay for later arrays, if there are so many. Arrays of this device never need this call: it is for
        other programs on the GPU. Pinned host memory that large batches needed beyond the staging area goes back to
        the system, and does not count here.

        Raises `InvalidArgument` for a `keep` that is not a number of bytes, `ContextLost` if the context is lost
        meanwhile, `DeviceClosed` or `DeviceFailed` once the device takes no requests.
        """
        self._home.check_task()
        if type(keep) is not int or keep < 0:
            raise InvalidArgument(f"keep is a number of bytes, 0 or more, not {shown(keep)}", device=self._index)
        self._check_open()
        freed: int = await self._memory_mailbox.ask(Trim(keep))
        self._batch_areas.trim()
        return freed

    # --- arrays -------------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    def empty(
        self,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: npt.DTypeLike = np.float64,
        *,
        guarded: bool | None = None,
    ) -> DeviceArray:
        """Return a new array whose elements are not set. Sends nothing and never blocks.

        `shape` is a length or a sequence of lengths, in elements. `dtype` is a numpy number or bool in native byte
        order, or bfloat16, float8_e4m3fn or float8_e5m2 of ml_dtypes; names are accepted too. The GPU's memory is taken
        (``cuMemCreate``, ``cuMemMap``) with the first use, which raises the error if there is none left.
        A `guarded` array has its own memory between unmapped addresses. An access past its end (beyond the next
        multiple of 16 bytes) faults, instead of reaching another array. It takes at least 2 MiB. The default is
        `open_device`'s.

        Raises `InvalidArgument` for an invalid shape or dtype, `OutOfDeviceMemory` when the device's
        `memory_limit` does not allow it, `LibraryNotFound` for a dtype of ml_dtypes that is not installed, and
        `DeviceClosed` or `DeviceFailed` once the device takes no requests.
        """
        self._check_open()
        checked_dtype = check_dtype(dtype)
        checked_shape, strides, nbytes = contiguous(shape, checked_dtype.itemsize)
        block = self._allocate(nbytes, self._guarded if guarded is None else guarded)
        return self._make_array(Storage(self, block), 0, checked_shape, strides, checked_dtype)

    def zeros(
        self,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: npt.DTypeLike = np.float64,
        *,
        guarded: bool | None = None,
    ) -> DeviceArray:
        """Return a new array of zeros. Sends nothing: the zeros are written with its first use (``cuMemsetD32Async``).

        `shape`, `dtype` and `guarded` are those of `empty`.

        Raises as `empty` does.
        """
        checked = check_dtype(dtype)
        return self._filled(shape, checked, bytes(checked.itemsize), guarded)

    @trio.lowlevel.enable_ki_protection
    def full(
        self,
        shape: SupportsIndex | Sequence[SupportsIndex],
        value: complex | np.generic,
        dtype: npt.DTypeLike | None = None,
        *,
        guarded: bool | None = None,
    ) -> DeviceArray:
        """Return a new array with every element set to `value`, a Python or numpy number.

        `shape`, `dtype` and `guarded` are those of `empty`; without a `dtype` it is numpy's for the value. Sends
        nothing: the elements are written with the array's first use (``cuMemsetD32Async`` and its kin).

        Raises as `empty` does, and `InvalidArgument` for a value that the dtype cannot hold.
        """
        from ._transfers.memory import pattern_of

        checked = check_dtype(as_host(value).dtype if dtype is None else dtype)
        return self._filled(shape, checked, pattern_of(value, checked), guarded)

    @trio.lowlevel.enable_ki_protection
    def _filled(
        self,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: np.dtype[Any],
        pattern: bytes,
        guarded: bool | None,
    ) -> DeviceArray:
        """Return a new array whose elements are set to `pattern` when a command first touches it."""
        array = self.empty(shape, dtype, guarded=guarded)
        if array.size:
            array._block.recipe = Recipe(dtype.itemsize, array.size, pattern)
        return array

    async def to_device(self, source: npt.ArrayLike | DeviceArray | SupportsDLPack | SupportsCudaArray) -> DeviceArray:
        """Return a new array with a copy of `source`: a numpy array, or anything that numpy converts to one.

        It has the shape and the dtype of that array, and is C-contiguous; the copy is ``cuMemcpyHtoDAsync``. An array
        of this device is copied as by `DeviceArray.copy_from`. An array of another library on the same GPU is copied
        on the GPU (``cuMemcpyDtoDAsync``, in this process), after that library's pending work on it. It is found by
        ``__dlpack__`` or ``__cuda_array_interface__``.

        Raises as `empty` does, `OutOfDeviceMemory` too if the GPU has no more memory, `ContextLost` if the context
        is lost meanwhile, `StaleArray` for an array of this device that is torn or lost, and `InvalidArgument` for one
        that was freed, one of another device, and memory of another GPU.
        """
        self._home.check_task()
        if isinstance(source, DeviceArray):
            self._check_usable(source)
        elif not isinstance(source, np.ndarray):
            from ._arrays.interop import copy_foreign, from_host, is_foreign

            await trio.lowlevel.checkpoint_if_cancelled()  # converting the source may run the caller's code
            if is_foreign(source):
                return await copy_foreign(self, source)
            source = from_host(source)
        given = source if isinstance(source, DeviceArray) else as_host(source)  # type: ignore[arg-type]
        array = self.empty(given.shape, given.dtype)
        try:
            await array.copy_from(given)
        except BaseException:
            array.free()
            raise
        return array

    async def share(self, array: DeviceArray) -> DeviceArray:
        """Make an array ready for another library of this process, and return it: `torch.from_dlpack(await ...)`.

        The `array` is of this device, of any shape and dtype, and the same object is returned. Waits until its memory
        exists, its initial contents are written, and all commands submitted on it are done. An array that an awaited
        command has written, and that no other command uses, needs no `share`. The first call on a device makes a
        context in this process too (``cuDevicePrimaryCtxRetain``), which other libraries then use.

        Raises `InvalidArgument` for an array of another device or one that was freed, `StaleArray` for one that is torn
        or lost, `OutOfDeviceMemory` if the GPU has no more memory, `ContextLost` if the context is lost meanwhile, and
        `LibraryNotFound` or `CommandFailed` if this process cannot reach the GPU.
        """
        from ._arrays.interop import share

        self._home.check_task()
        await share(self, array)
        return array

    def _shared(self) -> Interop:
        """Return what shares arrays with other libraries. Once it is made, every generation keeps order with them."""
        self._check_open()
        if self._interop is None:
            from ._arrays.interop import Interop

            self._interop = Interop(self, cuda=self._backend == "cuda")
            for generation in self._all_generations():
                generation.interop = self._interop
        return self._interop

    # --- graphs -------------------------------------------------------------------------------------------------------

    async def capture(self, record: Callable[[GraphRecorder], object]) -> Graph:
        """Record launches, copies and fills and build one graph of them (``cuGraphInstantiateWithFlags``).

        `record` is a function that is called once, at once, with a `GraphRecorder`; nothing runs before the graph is
        launched. The order of recording matters only between nodes that touch the same array, if one of them writes it.
        A node costs about 10 us of its caller, and no other task runs meanwhile. To record thousands, give an async
        function with a checkpoint now and then (``await trio.lowlevel.checkpoint()``).

        Raises what the recorder's verbs and `record` itself raise; `InvalidArgument` for a generator and for a
        recording without nodes; `OutOfDeviceMemory` if this is the first use of an array's memory and the GPU has no
        more; `StaleKernel` for a kernel of a lost generation if the device was opened with ``on_fault="stale"``;
        `ContextLost` if the context is lost while the graph is built.
        """
        from .libraries.graphs.graph import capture

        self._home.check_task()
        return await capture(self, record)

    @trio.lowlevel.enable_ki_protection
    def pinned_empty(
        self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike = np.float64
    ) -> npt.NDArray[Any]:
        """Return a new numpy array, whose elements are not set, in host memory that the GPU reads and writes directly.

        `shape` and `dtype` are those of `empty`. Copies from and to the array, or a C-contiguous part of it, run at the
        speed of the link. A copy is one command, which touches the array until it is done, even if the caller is
        cancelled meanwhile. A copy that a fault cuts off may touch it until `WorkerReaped`. The first copy of each
        generation registers the memory (``cuMemHostRegister``), which takes longer than the copy: up to 0.4 ms for a
        MiB. The memory lasts as long as the last view of the array, also after the device is closed. To another device
        it is ordinary memory.

        Raises `InvalidArgument` for an invalid shape or dtype, `LibraryNotFound` for a dtype of ml_dtypes that is
        not installed, `OutOfHostMemory` if the system has too little memory or no file descriptor left, and
        `DeviceClosed` or `DeviceFailed` once the device takes no requests.
        """
        self._check_open()
        checked_dtype = check_dtype(dtype)
        checked_shape, _, nbytes = contiguous(shape, checked_dtype.itemsize)
        return self._pinned.empty(checked_shape, checked_dtype, nbytes)

    # --- batches and lanes --------------------------------------------------------------------------------------------

    def batch(self, *, lane: Lane | None = None) -> Batch:
        """Return a batch, many calls and one wait: `async with dev.batch() as batch: batch.launch(...)`; see `Batch`.

        Its kernels, and its copies and fills on the device, run on `lane`; by default the compute lane.

        Raises `InvalidArgument` for a lane of another device, or one that was closed.
        """
        from ._batch import Batch

        return Batch._create(self, self._lanes.chosen(lane))

    def lane(self, *, priority: int = 0, ordered: bool = True) -> Lane:
        """Return a new lane: `async with dev.lane() as lane: await kernel.launch(..., lane=lane)`.

        Its work runs beside that of other lanes. `priority` is the CUDA stream's: among lanes with work that could run,
        the GPU prefers those with the lower number (``cuStreamCreateWithPriority``), from `DeviceInfo.highest_priority`
        to `DeviceInfo.lowest_priority`. With `ordered`, work on the same arrays is in order across lanes, at the cost
        of an event for each wait that is needed (`LaneStatistics.waits` counts them). Without it, only `Lane.wait_for`
        makes order; even then memory is given to another array only when no work runs on it. The lane exists in every
        generation.

        Raises `InvalidArgument` for a priority that the device does not have, or when 13 lanes are open.
        """
        self._check_open()
        return self._lanes.open(priority, ordered=ordered)

    @trio.lowlevel.enable_ki_protection
    async def _running_generation(self) -> Generation:
        """Wait for a generation in service, and return it."""
        self._home.check_task()
        await trio.lowlevel.checkpoint()
        while self.state is not DeviceState.RUNNING or self._generation is None or self._generation.refusing:
            self._check_open()
            await self._generation_changed.wait()
        self._check_open()
        return self._generation

    def _actor_of(self, verb: Verb) -> Actor:
        """Return the actor that a verb of a batch belongs to."""
        return next((actor for actor in self._actors if actor.name == verb.engine), self._module_actor)

    def _lost_error(self, generation: int, operation: str) -> DeviceError:
        return ContextLost(
            f"generation {generation} was lost",
            reason=f"generation {generation} was lost",
            device=self._index,
            generation=generation,
            operation=operation,
        )

    def _allocate(self, nbytes: int, guarded: bool) -> Block:
        if self._interop is not None:
            self._interop.collect()
        arena = self._arena or known(self._arena, "a device that is open has an arena")
        try:
            return arena.allocate(nbytes, guarded=guarded)
        except ArenaFull as full:
            text, advice = _SHORT_OF[full.bound]
            raise OutOfDeviceMemory(
                f"{full.requested:,} bytes do not fit: {text.format(limit=full.limit)}, arrays hold {full.in_use:,} "
                f"and {full.reserved:,} are reserved in {full.chunks} chunks of {MAX_CHUNKS}",
                device=self._index,
                generation=self.generation,
                operation="empty",
                advice=advice,
            ) from None

    @trio.lowlevel.enable_ki_protection
    def _free(self, block: Block) -> None:
        if self._closed_as is None and not self._home.here():
            raise self._home.error()
        if os.getpid() == self._process_id and not (self._interop is not None and self._interop.hold(block)):
            (self._arena or known(self._arena, "a block has an arena")).free(block)

    def _free_now(self, block: Block) -> None:
        known(self._arena, "a block has an arena").free(block)

    # --- checks for the actors ----------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        """Raise the error of a closed, failed or forked device, or of a call from another thread or run."""
        if self._closed_as is not None:
            raise fresh(self._closed_as)
        if not self._home.here():
            raise self._home.error()

    def _check_running(self) -> None:
        """Raise `trio.WouldBlock` unless requests can be taken right now."""
        self._check_open()
        if self._recording and trio.lowlevel.current_task() in self._recording:
            raise InvalidArgument("launch_nowait cannot be captured: call launch of the recorder", device=self._index)
        if self.state is not DeviceState.RUNNING:
            raise trio.WouldBlock(BEING_REBUILT)

    def _check_usable(self, array: DeviceArray) -> None:
        """Raise `InvalidArgument` unless this is an array of this device that was not freed."""
        self._check_open()
        if not isinstance(array, DeviceArray):
            raise InvalidArgument(f"expected a device array, not {type(array).__name__}", device=self._index)
        storage = array._storage
        if storage.device is not self:
            raise foreign(self, array)
        if storage.block.freed:
            raise InvalidArgument(f"the array was freed: {array!r}", device=self._index, generation=self.generation)

    def _next_number(self) -> int:
        return next(self._numbers)

    def _unload_orphans(self, generation: Generation) -> None:
        """Tell the worker which graphs and modules are not referenced any more, at most `ORPHANS_AT_ONCE` at a time."""
        from .libraries.modules.module import publish_unload

        # A lost generation without a successor yet has no worker to tell.
        everybody = {generation, self._generation or generation, *self._standbys.generations}
        holders = [holder for holder in everybody if holder.loss is None]
        for _ in range(min(len(self._orphan_graphs), ORPHANS_AT_ONCE)):
            from .libraries.graphs.graph import publish_destroy  # loaded already, since there were graphs

            number = self._orphan_graphs.popleft()
            for holder in holders:
                if holder.graphs.pop(number, None) is not None:
                    publish_destroy(holder, number)
        for _ in range(min(len(self._orphan_modules), ORPHANS_AT_ONCE)):
            number = self._orphan_modules.popleft()
            for holder in holders:
                if holder.drop_module(number):
                    publish_unload(holder, number)

    # --- generations --------------------------------------------------------------------------------------------------

    def _spawn(self) -> WorkerProcess:
        """Take a worker process from the pool, or start one. Raises `StartFailed` when the system has no room."""
        try:
            if self._workers is not None:
                return self._checked_alike(self._workers.take(self._backend, self._index))
            return WorkerProcess(self._backend, self._index, self._checks)
        except DeviceError as refused:
            raise StartFailed(refused, gone=True) from None
        except (OSError, MemoryError) as error:
            raise self._not_started(error) from error

    def _not_started(self, error: Exception) -> StartFailed:
        """Return the error of a start that failed because the system had no room; the next start may find room."""
        text = f"a worker for the device could not be started: {reason_of(error)}"
        return StartFailed(DeviceFailed(text, device=self._index), gone=False)

    def _checked_alike(self, process: WorkerProcess) -> WorkerProcess:
        """Return a worker of the pool if it makes the checks of this device; else raise `InvalidArgument`."""
        if process.checks == self._checks:
            return process
        known(self._workers, "it came from there").give_back(process)
        has, wants = (", ".join(checks) or "nothing" for checks in (process.checks, self._checks))
        raise InvalidArgument(
            f"the device was opened with check={wants}, and the workers of its pool with check={has}",
            device=self._index,
            advice="give the same `check` to open_device and to the WorkerPool.",
        )

    @trio.lowlevel.enable_ki_protection
    async def _build(
        self, process: WorkerProcess | None = None, show: Callable[[Generation], None] | None = None
    ) -> Generation:
        """Make a process, started or not, the next generation, or a standby, which is given to `show`.

        Raises `StartFailed`; the process is then reaped. If this is cancelled, the process goes back to the pool.
        """
        try:
            process = process or self._spawn()
            generation = Generation(
                self._index,
                self._supervision.next_generation,
                process,
                self._arena,
                self._staging.memory,
                self._hang_timeout,
                self._standbys.generations,
                lane_options=self._lanes.options,
                spin=self._spin,
            )
        except BaseException as error:
            if process is not None:
                await self._put_back(process)
            if not isinstance(error, OSError | MemoryError):
                raise
            raise self._not_started(error) from error
        try:
            await generation.start(show)
        except StartFailed:
            await self._discard(process)
            generation.close()
            raise
        except BaseException as error:
            await self._dismiss(generation)
            if not isinstance(error, Exception) or shortage_of(error) is None:
                raise
            raise self._not_started(error) from error
        return generation

    @trio.lowlevel.enable_ki_protection
    async def _discard(self, process: WorkerProcess) -> None:
        """End a worker that never served."""
        with trio.CancelScope(shield=True):  # bounded by `reap` itself
            await reap(process)
        process.close()

    async def _put_back(self, process: WorkerProcess) -> None:
        """Give back or end a worker that was never adopted."""
        if self._workers is None:
            await self._discard(process)
        else:
            self._workers.give_back(process)

    @trio.lowlevel.enable_ki_protection
    async def _dismiss(self, generation: Generation) -> None:
        """Give back or end a worker that is not needed and that no task watches."""
        with trio.CancelScope(shield=True):  # bounded by `close_timeout` and by `reap` itself
            if await self._give_back(generation):
                return
            await reap(generation.process)
        generation.close()

    async def _give_back(self, generation: Generation) -> bool:
        """Give a healthy worker that came from a pool back to it. Returns whether it was given back."""
        if self._workers is None or generation.loss is not None:
            return False
        if not await generation.adoption.reset(min(self._close_deadline, time.monotonic() + self._close_timeout)):
            return False
        if isinstance(self._arena, CheckedArena) and generation is self._generation:
            self._arena.dismiss()
        generation.let_worker_go()
        self._workers.give_back(generation.process)
        return True

    def _begin_generation(self, generation: Generation) -> None:
        self._info = self._info or generation.info
        if self._arena is None:
            base, extent = address_range(self._index)
            limit = self._memory_limit
            if limit is None:
                free = self.info.free_memory - self._standbys.count * STANDBY_BYTES
                limit = max(0, int(free * DEFAULT_MEMORY_SHARE))
            self._arena = (CheckedArena if self._checks else Arena)(base, extent, limit)
            self._arena.orphans = self._arena_orphans
            generation.arena = self._arena
        if isinstance(self._arena, CheckedArena):
            folder = known(generation.process.check_folder, "a checked device has checked workers")
            self._arena.serve(folder, generation.timeline)
        self._supervision.started(trio.current_time())
        self._generation = generation
        for module in self._modules:
            module._settle_in(generation)
        self._generation_started = trio.current_time()
        generation.interop = self._interop
        generation.serve()
        self._announce_generation()

    @trio.lowlevel.enable_ki_protection
    async def _begin_first_generation(self) -> None:
        try:
            generation = await self._build()
        except StartFailed as failed:
            raise failed.error from None
        info = generation.info
        if self._standbys.count and info is not None and info.compute_mode != "default":
            await self._dismiss(generation)
            raise InvalidArgument(
                f"standby={self._standbys.count} needs several processes on the GPU, and its compute mode is "
                f"{info.compute_mode}",
                device=self._index,
                advice="open it with standby=0, or have its compute mode set to default",
            )
        self._begin_generation(generation)

    def _announce_generation(self) -> None:
        changed, self._generation_changed = self._generation_changed, trio.Event()
        changed.set()
        self._standbys.announce()

    @trio.lowlevel.enable_ki_protection
    async def _supervise(self) -> None:
        """Run the generations one after the other until the device is closed or given up, with standbys beside them."""
        with trio.CancelScope(shield=True):
            try:
                async with trio.open_nursery() as self._background:
                    await self._serve_generations(self._background)
                    self._standby_scope.cancel(reason=f"device {self._index} has ended")
            except Exception as bug:
                if self._home.over:  # trio itself has failed, and its tasks are being collected
                    raise
                log.critical("the supervisor of device %d crashed", self._index, exc_info=True)
                await self._fail_by_bug(_alone(bug))
            finally:
                for generation in self._all_generations():
                    generation.process.kill()

    def _all_generations(self) -> list[Generation]:
        """Return every generation that may still have a worker process."""
        serving = [] if self._generation is None else [self._generation]
        return [*serving, *self._standbys.generations, *self._dying]

    @trio.lowlevel.enable_ki_protection
    async def _serve_generations(self, background: trio.Nursery) -> None:
        self._watch(background, known(self._generation, "the first generation has begun"))
        background.start_soon(self._keep_standbys, name=f"atomr_trio.device{self._index}.standbys")
        while self._generation is not None:
            generation = self._generation
            await generation.over.wait()
            await trio.lowlevel.checkpoint_if_cancelled()  # it ended by an internal error: so does the supervision
            if generation.loss is None:
                await self._close_worker(generation)
                self._generation = None
            else:
                self._generation = await self._recover(generation, background)

    def _watch(self, background: trio.Nursery, generation: Generation) -> None:
        background.start_soon(self._run_generation, generation, name=f"atomr_trio.device{self._index}.generation")

    @trio.lowlevel.enable_ki_protection
    async def _run_generation(self, generation: Generation) -> None:
        """Run one generation in one nursery: the tasks that watch its worker and, once it is in service, its actors."""
        try:
            with generation.scope:
                async with trio.open_nursery() as nursery:
                    for task in generation.tasks:
                        nursery.start_soon(task)
                    await generation.in_service.wait()
                    name = f"atomr_trio.device{self._index}.generation{generation.number}"
                    for actor in self._actors:
                        nursery.start_soon(self._run_actor, generation, actor, name=f"{name}.{actor.name}")
                    nursery.start_soon(self._watch_closing, generation, name=f"{name}.closing")
        finally:
            generation.over.set()

    @trio.lowlevel.enable_ki_protection
    async def _run_actor(self, generation: Generation, actor: Actor) -> None:
        """Run one actor, and start it again after an internal error as long as the context is healthy."""
        while True:
            with trio.CancelScope() as actor.scope:
                try:
                    await actor.run(generation)
                    return
                except Exception as bug:
                    crash = bug
                    actor.scope.cancel(reason=f"the {actor.name} actor crashed: {bug!r}")
            log.error("the %s actor of device %d crashed", actor.name, self._index, exc_info=crash)
            self._last_error = f"the {actor.name} actor crashed: {crash!r}"
            await generation.inbox.probe()
            decision = self._supervision.actor_crashed(actor.name, trio.current_time(), repr(crash))
            if isinstance(decision, LoseContext):
                generation.lose(Loss(LossKind.ACTORS, decision.reason, reported_by="the supervision"))
                await trio.sleep_forever()
            if not isinstance(decision, RestartActor):
                return
            actor.mailbox.restarts += 1
            self._events.publish(ActorRestarted(actor=actor.name, error=crash))
            del crash  # its traceback holds the request, and so the arrays

    @trio.lowlevel.enable_ki_protection
    async def _watch_closing(self, generation: Generation) -> None:
        """After the body, let started work finish, for `close_timeout` at most; then end the generation."""
        await self._closing.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_in_time, generation)
            await generation.settler.wait_idle()
            generation.scope.cancel(reason=f"device {self._index} is closed")

    @trio.lowlevel.enable_ki_protection
    async def _end_in_time(self, generation: Generation) -> None:
        with RealTimer(self._close_timeout) as timer:
            await timer.tick()
        generation.scope.cancel(reason=f"device {self._index} is closed, and close_timeout is over")

    @trio.lowlevel.enable_ki_protection
    async def _close_worker(self, generation: Generation) -> None:
        """End the worker cleanly: nothing is running, so it may release everything itself."""
        if generation.timeline.idle:
            if await self._give_back(generation):
                return
            if self._workers is None:
                await generation.adoption.end(self._close_deadline)
        await self._fence(generation, self._closed_error)

    @trio.lowlevel.enable_ki_protection
    async def _fence(self, generation: Generation, make_error: MakeError) -> None:
        """Kill, reap, read the counters one last time, settle the rest, unmap."""
        await reap(generation.process)
        await generation.output.rest()
        generation.settle_reaped(make_error)
        generation.close()

    @trio.lowlevel.enable_ki_protection
    async def _recover(self, generation: Generation, background: trio.Nursery) -> Generation | None:
        """Handle a loss: decide, run the fence, and return the next generation, or None if there will be none."""
        loss = known(generation.loss, "nothing was lost")
        noticed = time.monotonic()
        generation.process.kill()
        self._last_error = loss.reason
        self._events.publish(
            ContextWasLost(
                generation=generation.number,
                reason=loss.reason,
                status=loss.status,
                reported_by=loss.reported_by,
                in_flight=generation.timeline.in_flight(),
                actors=generation.timeline.busy_engines(),
                findings=loss.findings,
            )
        )
        # What checks find is what they were asked for, and ends a healthy context, like a restart by the program.
        deliberate = loss.kind is LossKind.RESTART or bool(loss.findings)
        decision = self._supervision.lost(trio.current_time(), loss.reason, gone=loss.gone, deliberate=deliberate)

        def lost() -> DeviceError:
            return loss.error(self._index, generation.number)

        if isinstance(decision, GiveUp):
            error = lost()
            await self._fence(generation, lambda: self._give_up(decision.reason, error))
            self._give_up(decision.reason, error)  # also when no running request could raise it
            return None
        if not isinstance(decision, Rebuild) or self._closing.is_set():
            await self._fence(generation, lost)
            return None
        # The pending writes are known only when the driver itself has reported the loss. After a hang or a kill from
        # outside, nothing may run before the reap.
        if loss.kind is LossKind.FAULT and self.info.durable and self._standbys.ready:
            self._bury(background, generation, lost, noticed)
            process = None
        else:
            process = await self._fence_while_starting(generation, lost, noticed)
        self._announce_generation()
        return await self._rebuild(process, noticed, background)

    def _bury(self, background: trio.Nursery, generation: Generation, lost: MakeError, noticed: float) -> None:
        """Settle a lost generation at once, and touch none of the memory that it was working on until it is reaped."""
        with self._staging.hold_back() as slots:
            reached = generation.settle_faulted(lost)
        arena = generation.arena
        arena.begin_quarantine(generation.number, reached)
        self._forget_generation(generation)
        self._dying.add(generation)
        background.start_soon(self._finish_burial, generation, slots, noticed)

    @trio.lowlevel.enable_ki_protection
    async def _finish_burial(self, generation: Generation, slots: list[Slot], noticed: float) -> None:
        await reap(generation.process)
        await generation.output.rest()
        generation.close()
        generation.arena.end_quarantine(generation.number)
        for slot in slots:
            slot.release()
        self._dying.discard(generation)
        self._announce_reaped(generation, noticed)
        if self._generation is not None:
            self._generation.admission.wake()
        self._announce_generation()

    @trio.lowlevel.enable_ki_protection
    async def _fence_while_starting(
        self, generation: Generation, lost: MakeError, noticed: float
    ) -> WorkerProcess | None:
        """Run the fence. Returns the process that is started meanwhile, if there is to be one.

        The next process touches no memory before it is told to adopt.
        """
        process = None
        if not self._standbys.expected and self.info.compute_mode == "default":
            with contextlib.suppress(StartFailed):  # `_rebuild` tries again, and counts it
                process = self._spawn()
        try:
            await self._fence(generation, lost)
        except BaseException:
            if process is not None:
                await self._discard(process)
            raise
        self._announce_reaped(generation, noticed)
        self._forget_generation(generation)
        return process

    def _announce_reaped(self, generation: Generation, noticed: float) -> None:
        self._events.publish(WorkerReaped(generation=generation.number, seconds=time.monotonic() - noticed))

    def _forget_generation(self, generation: Generation) -> None:
        """Decide which memory survives the generation. All of its commands are settled."""
        durable, number = self.info.durable, generation.number
        close_in_thread(generation.arena.generation_lost(durable=durable, strict=self._strict, number=number), [])
        self._launches.generation_lost()
        for module in self._modules:
            module._generation_lost(generation.number)

    @trio.lowlevel.enable_ki_protection
    async def _load_variables(self, generation: Generation) -> None:
        """Load the modules with variables in a generation before it serves: the variables have new addresses."""
        moving = [module for module in self._modules if module._begins_anew(generation)]
        try:
            for module in moving:
                if module._number not in generation.modules:
                    module._load(generation)
            while generation.loss is None and any(generation.modules.get(module._number) for module in moving):
                await generation.admission.wait_room(None)
        except BaseException as error:
            await self._retire(generation)
            if isinstance(error, OutOfHostMemory):
                raise StartFailed(error, gone=False) from None
            raise

    @trio.lowlevel.enable_ki_protection
    async def _rebuild(
        self, process: WorkerProcess | None, noticed: float, background: trio.Nursery
    ) -> Generation | None:
        """Let a standby take over, or start workers until one serves, the budget is spent, or the device is closed."""
        while not self._closing.is_set():
            with trio.CancelScope() as self._rebuild_scope:
                try:
                    generation = await self._standbys.take() if process is None else None
                    by_standby = generation is not None
                    if generation is None:
                        started, process = process, None
                        generation = await self._build(started)
                        self._watch(background, generation)
                    else:
                        generation.take_over(self._supervision.next_generation)
                    await self._load_variables(generation)
                    if self._closing.is_set():
                        await self._retire(generation)
                        return None
                    try:
                        self._begin_generation(generation)
                    except OSError as error:  # the disk has no room for the files of the checks
                        await self._retire(generation)
                        raise self._not_started(error) from error
                    seconds = time.monotonic() - noticed
                    self._events.publish(
                        ContextRebuilt(generation=generation.number, seconds=seconds, by_standby=by_standby)
                    )
                    return generation
                except StartFailed as failed:
                    self._last_error = str(failed)
                    decision = self._supervision.start_failed(trio.current_time(), str(failed), gone=failed.gone)
                    if isinstance(decision, GiveUp):
                        self._give_up(decision.reason, failed.error)
                        return None
                    if isinstance(decision, Rebuild):
                        await trio.sleep(decision.delay)
                finally:
                    self._rebuild_scope = None
        if process is not None:
            await self._put_back(process)
        return None

    @trio.lowlevel.enable_ki_protection
    async def _retire(self, generation: Generation) -> None:
        """End a generation that never served."""
        generation.scope.cancel(reason=f"generation {generation.number} of device {self._index} is not needed any more")
        with trio.CancelScope(shield=True):  # its tasks end at once
            await generation.over.wait()
        await self._dismiss(generation)

    # --- standbys -----------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def _keep_standbys(self) -> None:
        with self._standby_scope:
            async with trio.open_nursery() as nursery:
                for _ in range(self._standbys.count):
                    nursery.start_soon(self._standbys.keep_one, self._settled, self._start_standby, self._retire)

    @trio.lowlevel.enable_ki_protection
    async def _settled(self) -> None:
        """Wait until a generation is in service and no lost generation's worker is on the GPU any more."""
        while self._dying or self.state is not DeviceState.RUNNING:
            await self._generation_changed.wait()

    @trio.lowlevel.enable_ki_protection
    async def _start_standby(self, show: Callable[[Generation], None]) -> Generation:
        standby = await self._build(show=show)
        self._watch(known(self._background, "a standby is started while the device is supervised"), standby)
        for module in self._modules:
            module._warm(standby)
        for graph in self._graphs:
            graph._warm(standby)
        for opening in () if self._generation is None else tuple(self._generation.opened):
            standby.open_library(opening)
        return standby

    # --- the end ------------------------------------------------------------------------------------------------------

    def _closed_error(self) -> DeviceError:
        return DeviceClosed("the device was closed", device=self._index, generation=self.generation)

    def _give_up(self, reason: str, cause: BaseException) -> DeviceError:
        """Fail the device for good; returns a fresh error for one request."""
        if self._closed_as is None:
            failure = DeviceFailed(
                f"the device is given up: {reason}",
                device=self._index,
                generation=self.generation,
                status=getattr(cause, "status", None),
                status_name=getattr(cause, "status_name", None),
            )
            failure.__cause__ = cause
            self._events.publish(DeviceGaveUp(reason=reason))
            self._fail(failure, cause)
        return self._end_error()

    def _fail(self, failure: Exception, cause: BaseException) -> None:
        self._failure = failure
        failure.__cause__ = cause
        if self._closed_as is None:
            shown = failure
            if not isinstance(shown, DeviceError):
                shown = DeviceFailed(str(failure), device=self._index, generation=self.generation)
                shown.__cause__ = cause
            self._closed_as = shown
        self._settle_queued()
        self._announce_generation()
        self._body_scope.cancel(reason=f"device {self._index} failed: {failure}")

    async def _fail_by_bug(self, bug: Exception) -> None:
        """End the device after an internal error of the supervision, so that no task waits for ever."""
        reason = f"the supervisor of device {self._index} crashed: {bug!r}"
        if self.state in (DeviceState.RUNNING, DeviceState.REBUILDING):
            self._supervision.fail(reason)
        self._last_error = reason
        self._events.publish(DeviceGaveUp(reason=reason))
        self._fail(AtomrInternalError(reason), bug)
        for generation in self._all_generations():
            try:
                with trio.move_on_after(self._close_timeout):
                    await reap(generation.process)
                    await generation.output.rest()
                generation.settle_reaped(self._end_error)
                generation.close()
            except Exception:
                text = "generation %d of device %d was not settled"
                log.critical(text, generation.number, self._index, exc_info=True)

    def _end_error(self) -> DeviceError:
        """Return a fresh copy of the error of a device that takes no requests any more."""
        return fresh(known(self._closed_as, "a device that has ended has a reason"))

    def _begin_closing(self) -> None:
        """Begin the end after the body: refuse new requests, settle queued ones, let started ones finish."""
        if self._closed_as is None:
            self._closed_as = self._closed_error()
        self._settle_queued()
        if self.state in (DeviceState.RUNNING, DeviceState.REBUILDING):
            self._supervision.closing()
        for generation in self._all_generations():
            generation.sender.refuse()
        self._close_deadline = time.monotonic() + self._close_timeout
        self._closing.set()
        self._standby_scope.cancel(reason="the device is closed")
        self._announce_generation()
        if self._rebuild_scope is not None:
            self._rebuild_scope.cancel(reason="the device is closed")

    def _settle_queued(self) -> None:
        for actor in self._actors:
            actor.close(outcome.Error(self._end_error()))
            actor.mailbox.close(self._end_error)
        for request in list(self._compiling):
            request.settle(outcome.Error(self._end_error()))

    async def _give_memory_back(self) -> None:
        """Give the memory of arrays, and of pinned arrays that were collected, back to the system."""
        self._pinned.collect(tell=False)
        if self._arena is not None:
            with trio.CancelScope(shield=True):  # for as long as the system takes
                await closed(self._arena.part_with_descriptors())

    def _release(self) -> None:
        """Close the resources that outlive the generations."""
        self._home.leave()
        if self.state is not DeviceState.CLOSED:
            self._supervision.closed()
        self._events.close()
        self._staging.close()
        self._pinned.close()
        self._batch_areas.close()
        for module in self._modules:
            module._forget()
        if self._interop is not None:
            self._interop.close()
        if self._arena is not None:
            self._arena.close()
        _open_devices.discard(self)

    def _abandon(self) -> None:
        """End the device, whose run has ended before the block was left, by a misuse of trio. It answers no request."""
        self._closed_as = DeviceClosed(
            "the trio run that opened the device has ended before the block of open_device was left",
            device=self._index,
            generation=self.generation,
            advice="open the device again, by `async with` in the run that uses it",
        )
        if self.state is not DeviceState.CLOSED:
            self._supervision.closed()
        for generation in self._all_generations():
            generation.sender.refuse()
            generation.process.kill()

    def _forget_in_child(self) -> None:
        """End the device in a forked child: it belongs to the parent. Close the child's descriptors, settle nothing."""
        self._closed_as = DeviceFailed(
            "this process was forked from the one that opened the device",
            device=self._index,
            generation=self.generation,
            advice="open the device in the child, or start children with the spawn method",
        )
        self._home.desert()
        if self.state is not DeviceState.CLOSED:
            self._supervision.closed()
        for generation in self._all_generations():
            generation.forget()
        for module in self._modules:
            module._forget()
        self._staging.close()
        self._pinned.close()
        self._batch_areas.close()
        if self._arena is not None:
            self._arena.close()


class _QuarantineGate:
    """Keeps requests out of the mailboxes while a lost worker may still touch their memory."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def shut(self, request: Request) -> bool:
        arena = self._device._arena
        return arena is not None and bool(arena.quarantine) and any(map(arena.quarantined, request.blocks()))

    async def wait(self) -> None:
        await self._device._generation_changed.wait()


def _alone(error: Exception) -> Exception:
    """Return the single exception that a nursery has wrapped, or `error` itself."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _forget_devices_in_child() -> None:
    for device in _open_devices:
        device._forget_in_child()


if hasattr(os, "register_at_fork"):  # not on every system that can import this package
    os.register_at_fork(after_in_child=_forget_devices_in_child)


def _check_platform() -> None:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
        raise DeviceFailed(
            f"devices can be opened on Linux, x86-64 or aarch64, and this is {sys.platform} on {machine}",
            advice="run the program on Linux; on Windows, in WSL2",
        )


def _check_options(
    index: object,
    standby: object,
    on_fault: object,
    hang_timeout: object,
    close_timeout: object,
    memory_limit: object,
    restart_policy: object,
) -> None:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < MAX_DEVICES:
        raise InvalidArgument(f"a device's index is an int from 0 to {MAX_DEVICES - 1}, not {index!r}")
    if isinstance(standby, bool) or not isinstance(standby, int) or not 0 <= standby <= MAX_STANDBYS:
        raise InvalidArgument(f"standby is an int from 0 to {MAX_STANDBYS}, not {standby!r}")
    if on_fault not in ("survive", "stale"):
        raise InvalidArgument(f'on_fault is "survive" or "stale", not {on_fault!r}')
    if hang_timeout is not None:
        check_seconds("hang_timeout", hang_timeout)
    check_seconds("close_timeout", close_timeout)
    if memory_limit is not None and (type(memory_limit) is not int or memory_limit <= 0):
        raise InvalidArgument(f"memory_limit is a number of bytes, not {memory_limit!r}")
    if restart_policy is not None and not isinstance(restart_policy, RestartPolicy):
        raise InvalidArgument(f"restart_policy is a RestartPolicy, not {restart_policy!r}")


def _check_spin(spin: object) -> None:
    number = isinstance(spin, int | float) and not isinstance(spin, bool)
    if spin is not None and not (number and 0 <= spin < math.inf):  # type: ignore[operator]
        raise InvalidArgument(f"spin is a number of seconds, 0 or more, not {spin!r}")


def _check_workers(workers: object) -> None:
    if workers is not None and not (hasattr(workers, "take") and hasattr(workers, "give_back")):
        raise InvalidArgument(f"workers is a WorkerPool or has its methods take and give_back, not {shown(workers)}")


@contextlib.asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def open_device(
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
) -> AsyncIterator[Device]:
    """Open a GPU: the work of `_open.open_device` once this module and its imports are loaded."""
    check_can_open(index)
    _check_platform()
    _check_options(index, standby, on_fault, hang_timeout, close_timeout, memory_limit, restart_policy)
    _check_spin(spin)
    _check_workers(workers)
    chosen = chosen_backend(backend)
    checks = chosen_checks(check, chosen)
    raise_descriptor_limit()
    try:
        device = Device._create(
            index,
            chosen,
            on_fault=on_fault,
            hang_timeout=hang_timeout,
            close_timeout=close_timeout,
            memory_limit=memory_limit,
            restart_policy=restart_policy or RestartPolicy(),
            standby=standby,
            guarded=guarded,
            workers=workers,
            spin=DEFAULT_SPIN[chosen] if spin is None else float(spin),
            checks=checks,
        )
    except (OSError, MemoryError) as error:
        raise DeviceFailed(f"the device could not be opened: {reason_of(error)}", device=index) from error
    _open_devices.add(device)
    device._home.enter()
    body_error: BaseException | None = None
    try:
        await device._begin_first_generation()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(device._supervise, name=f"atomr_trio.device{index}.supervisor")
                try:
                    with device._body_scope:
                        yield device
                except BaseException as error:
                    body_error = error
                device._begin_closing()
                # Shielded from every cancellation: the supervisor ends by itself, in bounded time.
                nursery.cancel_scope.shield = True
        except BaseExceptionGroup as group:
            interrupts, others = group.split(KeyboardInterrupt)
            if others is not None:
                raise AtomrInternalError("a task of the device raised") from group
            body_error = KeyboardInterrupt()
            body_error.__cause__ = interrupts
    finally:
        try:
            await device._give_memory_back()
        finally:
            device._release()
    if device._failure is not None and not isinstance(body_error, KeyboardInterrupt):
        if body_error is not None:
            device._failure.__context__ = body_error
        raise device._failure
    if body_error is not None:
        raise body_error
