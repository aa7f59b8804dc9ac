"""`Device`: the face of an open GPU. What it does is done by the layers below; here are its words and its checks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, final

import numpy as np
import numpy.typing as npt
import trio

from .._arrays.arrays import DeviceArray, as_host, contiguous
from .._arrays.memory import DeviceMemory
from .._arrays.peers import check_of_group
from .._calls.short_transfers import ShortTransfers
from .._generation.core import DeviceCore
from .._generation.loss import Loss, LossKind
from .._generation.timeline import LaneBook
from .._memory.map import Drawing, MemoryMap, map_of
from .._transfers.staging import STAGING_BYTES
from .._transfers.transfers import Transfers
from .._transfers.trim import Trim
from .._values.dtypes import check_dtype
from .._values.errors import InvalidArgument
from .._values.events import Subscription
from .._values.habits import DEVICE, refuse_habits
from .._values.html import sized, table
from .._values.info import DeviceInfo
from .._values.state import DeviceState
from .._values.statistics import DeviceStatistics, LaneStatistics, MemoryStatistics
from .._values.util import NoPublicConstructor, known, shown
from .._wire.backends import Backend
from .._wire.protocol import LANE_NAMES
from ..libraries.lanes.verbs import Lane, Lanes
from ..libraries.modules.module import ModuleLoader
from ..libraries.nvrtc.verbs import Nvrtc
from ..libraries.registered import DeviceLibraries

if TYPE_CHECKING:
    from .._arrays.sharing.dlpack import SupportsCudaArray, SupportsDLPack
    from ..libraries.graphs.graph import Graph, GraphRecorder
    from .batch import Batch


RESTARTER = "the caller of restart()"
"""The reporter of a deliberate restart."""


@functools.cache
def _batch_class() -> type[Batch]:
    """Return the class of batches, which most programs import only with their first one."""
    from .batch import Batch

    return Batch


@final
class Device(DeviceLibraries, metaclass=NoPublicConstructor):
    """An open GPU. Made by `open_device` or `open_devices`; everything a program does with the GPU goes through it.

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

    def __init__(self, core: DeviceCore) -> None:
        core.face = self
        self._core = core
        self._memory = core.part(DeviceMemory)
        self._transfers = core.part(Transfers)
        self._memory.transfers = core.part(ShortTransfers)
        self.nvrtc = Nvrtc(core)
        self.module = ModuleLoader(core)
        self.compute_lane = core.part(Lanes).compute

    def __repr__(self) -> str:
        info = self._core.known_info
        name = self._core.backend if info is None else info.name
        return f"<Device {self._core.index} ({name}), {self.state.value}, generation {self.generation}>"

    def _repr_html_(self) -> str:
        """Return a table of what is known of the device, for a notebook. It asks no worker."""
        core, info, arena = self._core, self._core.known_info, self._memory.arena
        standbys = f"{core.standbys.ready} of {core.standbys.count} ready" if core.standbys.count else None
        memory = f"{sized(arena.in_use)} in use, {sized(arena.reserved)} reserved, at most {sized(arena.limit)}"
        rows = (
            ("name", None if info is None else info.name),
            ("compute capability", None if info is None else "{}.{}".format(*info.capability)),
            *(("backend", self.backend), ("state", self.state.value), ("generation", self.generation)),
            *(("memory of arrays", memory), ("standbys", standbys), ("last error", core.last_error)),
        )
        return table(f"Device {core.index}", rows)

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def index(self) -> int:
        """The index that `open_device` was given."""
        return self._core.index

    @property
    def backend(self) -> Backend:
        """The backend: `"cuda"` for a GPU, however it was named, and `"sim"` for the simulator."""
        return self._core.backend

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that the simulator makes of each kernel, as given to `open_device`; empty for none."""
        return self._core.options.checks

    @property
    def info(self) -> DeviceInfo:
        """Facts about the device."""
        return self._core.info

    @property
    def state(self) -> DeviceState:
        """The state of the device."""
        return self._core.state

    @property
    def generation(self) -> int:
        """The number of the newest generation. The first is 1; each context that had to be rebuilt adds 1."""
        return self._core.generation

    @trio.lowlevel.enable_ki_protection
    async def wait_generation(self, *, after: int) -> int:
        """Wait until a generation newer than `after` is running, and return its number.

        Raises `InvalidArgument` if `after` is not a generation's number, `DeviceFailed` or `DeviceClosed` if there will
        be no such generation.
        """
        self._core.home.check_task()
        await trio.lowlevel.checkpoint()
        if type(after) is not int:
            raise InvalidArgument(f"after is the number of a generation, not {shown(after)}", device=self._core.index)
        while self.generation <= after or self.state is not DeviceState.RUNNING:
            self._core.check_open()
            await self._core.changed.wait()
        return self.generation

    @trio.lowlevel.enable_ki_protection
    async def wait_standby(self, count: int | None = None) -> None:
        """Wait until `count` standby workers are ready to take over; by default all that `open_device` starts.

        Standbys are started in the background, after opening and after each takeover.

        Raises `InvalidArgument` for more than `open_device` starts, `DeviceFailed` or `DeviceClosed` once the
        device takes no requests.
        """
        self._core.home.check_task()
        await trio.lowlevel.checkpoint()
        wanted = self._core.standbys.count if count is None else count
        if type(wanted) is not int or not 0 <= wanted <= self._core.standbys.count:
            raise InvalidArgument(
                f"count is an int from 0 to standby={self._core.standbys.count}, not {count!r}", device=self._core.index
            )
        self._core.check_open()
        while self._core.standbys.ready < wanted:
            await self._core.standbys.wait_changed()
            self._core.check_open()

    @trio.lowlevel.enable_ki_protection
    async def restart(self, reason: str) -> int:
        """Give the context up deliberately and wait for the next generation; returns its number.

        Use it for a kernel that is known to hang, or to discard the state that a library keeps. It is a loss like any
        other, with `reason` in every error, but it does not count against the `restart_policy`. Started requests get
        `ContextLost`, queued requests run in the next generation. While a rebuild is under way, this waits for it.
        In a group, the strategy of `open_devices` may restart other devices with it.

        Raises `DeviceFailed` or `DeviceClosed` if there will be no next generation.
        """
        self._core.home.check_task()
        await trio.lowlevel.checkpoint()
        self._core.check_open()
        lost = self.generation
        if self.state is DeviceState.RUNNING and self._core.current is not None:
            loss = Loss(LossKind.RESTART, f"restarted: {reason}", reported_by=RESTARTER)
            self._core.current.lose(loss)
        return await self.wait_generation(after=lost)

    def events(self, *, buffer: int = 64) -> Subscription:
        """Return the device's events as an async iterator: `async with dev.events() as events: async for event in`.

        A subscriber that is more than `buffer` events behind loses the newest, and gets `EventsDropped`.

        Raises `InvalidArgument` for a buffer that is not an int of at least 1.
        """
        return self._core.events.subscribe(buffer)

    @trio.lowlevel.enable_ki_protection
    def statistics(self) -> DeviceStatistics:
        """Return the present values of the device's counters."""
        self._core.home.check_thread()
        generation = self._core.current
        lanes = []
        for index, name in (
            *enumerate(LANE_NAMES),
            *((each._number, each.name) for each in self._core.part(Lanes).opened.values()),
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
            device=self._core.index,
            generation=self.generation,
            state=self.state,
            uptime=now - self._core.serving_since if running else 0.0,
            lanes=tuple(lanes),
            actors=tuple(actor.mailbox.statistics(launched.get(actor.name, 0)) for actor in self._core.actors),
            memory=self._memory_statistics(),
            standbys=self._core.standbys.ready,
            restarts_left=self._core.supervision.restarts_left(now),
            last_error=self._core.last_error,
        )

    def _memory_statistics(self) -> MemoryStatistics:
        arena = self._memory.arena
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
            workspaces=arena.workspaces,
            staging=STAGING_BYTES + self._transfers.batch_areas.size,
            waiting=0 if self._core.current is None else self._core.current.sender.outbox_bytes,
        )

    @trio.lowlevel.enable_ki_protection
    def memory_map(self) -> MemoryMap:
        """Return where the arrays lie in device memory at this moment: a value that prints as a picture.

        It takes about 3 us for an array, and no other task runs meanwhile: for thousands use `await map_memory()`.
        """
        self._core.home.check_thread()
        return map_of(self._core.index, self._memory.arena)

    @trio.lowlevel.enable_ki_protection
    async def map_memory(self) -> MemoryMap:
        """Return the same as `memory_map`, with other tasks running meanwhile.

        The places are those at the moment of the call. An array's state is read later, and may be torn or lost by then.
        """
        self._core.home.check_task()
        drawing = Drawing(self._core.index, self._memory.arena)
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
        self._core.home.check_task()
        if type(keep) is not int or keep < 0:
            raise InvalidArgument(f"keep is a number of bytes, 0 or more, not {shown(keep)}", device=self._core.index)
        self._core.check_open()
        freed: int = await self._core.memory_actor.mailbox.ask(Trim(keep))
        self._transfers.batch_areas.trim()
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
        return self._memory.empty(shape, dtype, guarded)

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
        return self._memory.zeros(shape, dtype, guarded)

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
        from .._transfers.memory import pattern_of

        checked = check_dtype(as_host(value).dtype if dtype is None else dtype)
        return self._memory.filled(shape, checked, pattern_of(value, checked), guarded)

    @trio.lowlevel.enable_ki_protection
    async def to_device(self, source: npt.ArrayLike | DeviceArray | SupportsDLPack | SupportsCudaArray) -> DeviceArray:
        """Return a new array with a copy of `source`: a numpy array, or anything that numpy converts to one.

        It has the shape and the dtype of that array, and is C-contiguous; the copy is ``cuMemcpyHtoDAsync``. An array
        of this device, or of one of its group, is copied as by `DeviceArray.copy_from`. An array of another library on
        the same GPU is copied on the GPU (``cuMemcpyDtoDAsync``, in this process), after that library's pending work on
        it. It is found by ``__dlpack__`` or ``__cuda_array_interface__``.

        Raises as `empty` does, `OutOfDeviceMemory` too if the GPU has no more memory, `ContextLost` if the context
        is lost meanwhile, `StaleArray` for an array of the group that is torn or lost, and `InvalidArgument` for one
        that was freed, one of a device that is not of the group, and memory of another GPU.
        """
        self._core.home.check_task()
        given: npt.NDArray[Any] | DeviceArray
        if isinstance(source, np.ndarray):
            given = as_host(source)
        elif isinstance(source, DeviceArray):
            check_of_group(self._core, source)
            given = source
        else:
            from .._arrays.sharing.foreign import copy_foreign, from_host, is_foreign

            await trio.lowlevel.checkpoint_if_cancelled()  # converting the source may run the caller's code
            if is_foreign(source):
                return await copy_foreign(self._memory, source)
            given = as_host(from_host(source))
        array = self._memory.empty(given.shape, given.dtype)
        try:
            if isinstance(given, np.ndarray):
                await self._memory.transfers.copy_in(array, given)
            else:
                await array.copy_from(given)
        except BaseException:
            array.free()
            raise
        return array

    async def share(self, array: DeviceArray, *, stream: object = None) -> DeviceArray:
        """Make an array ready for another library of this process, and return it: `torch.from_dlpack(await ...)`.

        The `array` is of this device, of any shape and dtype, and the same object is returned. Waits until its memory
        exists, its initial contents are written, and all commands submitted on it are done. An array that an awaited
        command has written, and that no other command uses, needs no `share`. The first call on a device makes a
        context in this process too (``cuDevicePrimaryCtxRetain``), which other libraries then use.

        With a `stream` of this process, all further commands on the array and that stream's work run in order, as long
        as the array or a view of it exists: for a library that takes arrays by ``__cuda_array_interface__``, which
        cannot name a stream. It is an object that has ``__cuda_stream__``, which is kept meanwhile, or a number as
        `DeviceArray.__dlpack__` takes it, of a stream that you keep. The simulator has no streams, and takes no notice
        of it.

        Raises `InvalidArgument` for an array of another device, one that was freed, and what is no stream; `StaleArray`
        for an array that is torn or lost, `OutOfDeviceMemory` if the GPU has no more memory, `ContextLost` if the
        context is lost meanwhile, `LibraryNotFound` or `CommandFailed` if this process cannot reach the GPU, and
        `BufferError` if the device is in order with too many streams.
        """
        from .._arrays.sharing.protocols import share

        self._core.home.check_task()
        await share(self._memory, array, stream)
        return array

    # --- graphs -------------------------------------------------------------------------------------------------------

    async def capture(self, record: Callable[[GraphRecorder], object]) -> Graph:
        """Record launches, copies, fills and calls of cuBLAS, and build one graph (``cuGraphInstantiateWithFlags``).

        `record` is a function that is called once, at once, with a `GraphRecorder`; nothing runs before the graph is
        launched. The order of recording matters only between nodes that touch the same array, if one of them writes it.
        A node costs about 10 us of its caller, and no other task runs meanwhile. To record thousands, give an async
        function with a checkpoint now and then (``await trio.lowlevel.checkpoint()``).

        Raises what the recorder's verbs and `record` itself raise; `InvalidArgument` for a generator and for a
        recording without nodes; `OutOfDeviceMemory` if this is the first use of an array's memory and the GPU has no
        more, also for the workspace of calls; `LibraryNotFound` for calls of a library that is not installed;
        `CommandFailed` for a call that the library does not let be captured; `StaleKernel` for a kernel of a lost
        generation if the device was opened with ``on_fault="stale"``; `ContextLost` if the context is lost while the
        graph is built.
        """
        from ..libraries.graphs.graph import capture

        self._core.home.check_task()
        return await capture(self._core, record)

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
        self._core.check_open()
        checked_dtype = check_dtype(dtype)
        checked_shape, _, nbytes = contiguous(shape, checked_dtype.itemsize)
        return self._transfers.pinned.empty(checked_shape, checked_dtype, nbytes)

    # --- batches and lanes --------------------------------------------------------------------------------------------

    def batch(self, *, lane: Lane | None = None) -> Batch:
        """Return a batch, many calls and one wait: `async with dev.batch() as batch: batch.launch(...)`; see `Batch`.

        Its kernels, and its copies and fills on the device, run on `lane`; by default the compute lane.

        Raises `InvalidArgument` for a lane of another device, or one that was closed.
        """
        return _batch_class()._create(self._core, self._core.part(Lanes).chosen(lane))

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
        self._core.check_open()
        return self._core.part(Lanes).open(priority, ordered=ordered)


refuse_habits(Device, DEVICE)


def core_of(device: Device) -> DeviceCore:
    """Return what the layers below know of a device, for `atomr_trio.testing` and this library's own tests."""
    return device._core
