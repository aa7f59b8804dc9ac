"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from .._access import DeviceAccess, GroupAccess
from .._twins import Twin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Any, ClassVar, SupportsIndex

    import numpy.typing as npt

    import atomr_trio

    from ..._arrays.sharing.dlpack import SupportsCudaArray, SupportsDLPack
    from ..._memory.map import MemoryMap
    from ..._supervision.groups import Strategy
    from ..._values.info import DeviceInfo
    from ..._values.placement import Placement
    from ..._values.state import DeviceState
    from ..._values.statistics import DeviceStatistics, GroupStatistics
    from ..._wire.backends import Backend
    from .._types import AnyArray
    from .arrays import DeviceArray
    from .batches import Batch
    from .events import Subscription
    from .lanes import Lane
    from .lib_blas import Blas
    from .lib_blaslt import BlasLt
    from .lib_fft import Fft
    from .lib_random import Random
    from .lib_solver import Solver
    from .modules import ModuleLoader, Nvrtc
    from .worlds import World


class Device(DeviceAccess, Twin):
    """An open GPU. Made by `start` or `start_devices`; everything a program does with the GPU goes through it.

    Every request may also raise errors that the docstrings of the single verbs do not repeat. These are `DeviceFailed`
    or `DeviceClosed` once the device takes no requests; `OutsideRun` in a task of trio; and `ActorCrashed`, an internal
    error of this library.
    """

    _made_by: ClassVar[str] = "`with atomr_trio.start()`"

    @property
    def awaited(self) -> atomr_trio.Device:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Device = self._awaited
        return value

    @property
    def nvrtc(self) -> Nvrtc:
        """The compiler."""
        value: Nvrtc = self._seen(self._awaited.nvrtc)
        return value

    @property
    def module(self) -> ModuleLoader:
        """Loads images that were compiled elsewhere."""
        value: ModuleLoader = self._seen(self._awaited.module)
        return value

    @property
    def compute_lane(self) -> Lane:
        """The lane of every kernel launch that names no other."""
        value: Lane = self._seen(self._awaited.compute_lane)
        return value

    def _repr_html_(self) -> str:
        """Return a table of what is known of the device, for a notebook. It asks no worker."""
        result: str = self._read(self._awaited._repr_html_)
        return result

    @property
    def index(self) -> int:
        """The index that `start` was given."""
        value: int = self._awaited.index
        return value

    @property
    def backend(self) -> Backend:
        """The backend: `"cuda"` for a GPU, however it was named, and `"sim"` for the simulator."""
        value: Backend = self._awaited.backend
        return value

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that the simulator makes of each kernel, as given to `start`; empty for none."""
        value: tuple[str, ...] = self._awaited.checks
        return value

    @property
    def info(self) -> DeviceInfo:
        """Facts about the device."""
        value: DeviceInfo = self._awaited.info
        return value

    @property
    def state(self) -> DeviceState:
        """The state of the device."""
        value: DeviceState = self._awaited.state
        return value

    @property
    def generation(self) -> int:
        """The number of the newest generation. The first is 1; each context that had to be rebuilt adds 1."""
        value: int = self._awaited.generation
        return value

    def wait_generation(self, *, after: int) -> int:
        """Wait until a generation newer than `after` is running, and return its number.

        Raises `InvalidArgument` if `after` is not a generation's number, `DeviceFailed` or `DeviceClosed` if there will
        be no such generation.
        """
        result: int = self._wait(self._awaited.wait_generation, (), {"after": after})
        return result

    def wait_standby(self, count: int | None = None) -> None:
        """Wait until `count` standby workers are ready to take over; by default all that `start` starts.

        Standbys are started in the background, after opening and after each takeover.

        Raises `InvalidArgument` for more than `start` starts, `DeviceFailed` or `DeviceClosed` once the device takes no
        requests.
        """
        self._wait(self._awaited.wait_standby, (count,))

    def restart(self, reason: str) -> int:
        """Give the context up deliberately and wait for the next generation; returns its number.

        Use it for a kernel that is known to hang, or to discard the state that a library keeps. It is a loss like any
        other, with `reason` in every error, but it does not count against the `restart_policy`. Started requests get
        `ContextLost`, queued requests run in the next generation. While a rebuild is under way, this waits for it. In a
        group, the strategy of `start_devices` may restart other devices with it.

        Raises `DeviceFailed` or `DeviceClosed` if there will be no next generation.
        """
        result: int = self._wait(self._awaited.restart, (reason,))
        return result

    def events(self, *, buffer: int = 64) -> Subscription:
        """Return the device's events as an iterator: `with dev.events() as events: for event in`.

        A subscriber that is more than `buffer` events behind loses the newest, and gets `EventsDropped`.

        Raises `InvalidArgument` for a buffer that is not an int of at least 1.
        """
        result: Subscription = self._enqueue(self._awaited.events, (), {"buffer": buffer})
        return result

    def statistics(self) -> DeviceStatistics:
        """Return the present values of the device's counters."""
        result: DeviceStatistics = self._enqueue(self._awaited.statistics)
        return result

    def memory_map(self) -> MemoryMap:
        """Return where the arrays lie in device memory at this moment: a value that prints as a picture.

        It takes about 3 us for an array. `map_memory` lets others use the device meanwhile.
        """
        result: MemoryMap = self._enqueue(self._awaited.memory_map)
        return result

    def map_memory(self) -> MemoryMap:
        """Return the same as `memory_map`, with other threads using the device meanwhile.

        The places are those at the moment of the call. An array's state is read later, and may be torn or lost by then.
        """
        result: MemoryMap = self._wait(self._awaited.map_memory)
        return result

    def trim(self, keep: int = 0) -> int:
        """Give memory that no array holds back to the GPU (``cuMemUnmap``, ``cuMemRelease``); returns the bytes.

        Whole chunks go back, after the work that still runs on them; arrays are never moved. At least `keep` bytes of
        such chunks stay for later arrays, if there are so many. Arrays of this device never need this call: it is for
        other programs on the GPU. Pinned host memory that large batches needed beyond the staging area goes back to the
        system, and does not count here.

        Raises `InvalidArgument` for a `keep` that is not a number of bytes, `ContextLost` if the context is lost
        meanwhile, `DeviceClosed` or `DeviceFailed` once the device takes no requests.
        """
        result: int = self._wait(self._awaited.trim, (keep,))
        return result

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
        (``cuMemCreate``, ``cuMemMap``) with the first use, which raises the error if there is none left. A `guarded`
        array has its own memory between unmapped addresses. An access past its end (beyond the next multiple of 16
        bytes) faults, instead of reaching another array. It takes at least 2 MiB. The default is `start`'s.

        Raises `InvalidArgument` for an invalid shape or dtype, `OutOfDeviceMemory` when the device's `memory_limit`
        does not allow it, `LibraryNotFound` for a dtype of ml_dtypes that is not installed, and `DeviceClosed` or
        `DeviceFailed` once the device takes no requests.
        """
        result: DeviceArray = self._enqueue(self._awaited.empty, (shape, dtype), {"guarded": guarded})
        return result

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
        result: DeviceArray = self._enqueue(self._awaited.zeros, (shape, dtype), {"guarded": guarded})
        return result

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
        result: DeviceArray = self._enqueue(self._awaited.full, (shape, value, dtype), {"guarded": guarded})
        return result

    def to_device(self, source: npt.ArrayLike | AnyArray | SupportsDLPack | SupportsCudaArray) -> DeviceArray:
        """Return a new array with a copy of `source`: a numpy array, or anything that numpy converts to one.

        It has the shape and the dtype of that array, and is C-contiguous; the copy is ``cuMemcpyHtoDAsync``. An array
        of this device, or of one of its group, is copied as by `DeviceArray.copy_from`. An array of another library on
        the same GPU is copied on the GPU (``cuMemcpyDtoDAsync``, in this process), after that library's pending work on
        it. It is found by ``__dlpack__`` or ``__cuda_array_interface__``.

        Raises as `empty` does, `OutOfDeviceMemory` too if the GPU has no more memory, `ContextLost` if the context is
        lost meanwhile, `StaleArray` for an array of the group that is torn or lost, and `InvalidArgument` for one that
        was freed, one of a device that is not of the group, and memory of another GPU.
        """
        result: DeviceArray = self._wait(self._awaited.to_device, (source,))
        return result

    def share(self, array: AnyArray, *, stream: object = None) -> DeviceArray:
        """Make an array ready for another library of this process, and return it: `torch.from_dlpack(...)`.

        The `array` is of this device, of any shape and dtype, and the same object is returned. Waits until its memory
        exists, its initial contents are written, and all commands submitted on it are done. An array that a command
        that was waited for has written, and that no other command uses, needs no `share`. The first call on a device
        makes a context in this process too (``cuDevicePrimaryCtxRetain``), which other libraries then use.

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
        result: DeviceArray = self._wait(self._awaited.share, (array,), {"stream": stream})
        return result

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

        Raises `InvalidArgument` for an invalid shape or dtype, `LibraryNotFound` for a dtype of ml_dtypes that is not
        installed, `OutOfHostMemory` if the system has too little memory or no file descriptor left, and `DeviceClosed`
        or `DeviceFailed` once the device takes no requests.
        """
        result: npt.NDArray[Any] = self._enqueue(self._awaited.pinned_empty, (shape, dtype))
        return result

    def batch(self, *, lane: Lane | None = None) -> Batch:
        """Return a batch, many calls and one wait: `with dev.batch() as batch: batch.launch(...)`; see `Batch`.

        Its kernels, and its copies and fills on the device, run on `lane`; by default the compute lane.

        Raises `InvalidArgument` for a lane of another device, or one that was closed.
        """
        result: Batch = self._enqueue(self._awaited.batch, (), {"lane": lane})
        return result

    def lane(self, *, priority: int = 0, ordered: bool = True) -> Lane:
        """Return a new lane: `with dev.lane() as lane: kernel.launch(..., lane=lane)`.

        Its work runs beside that of other lanes. `priority` is the CUDA stream's: among lanes with work that could run,
        the GPU prefers those with the lower number (``cuStreamCreateWithPriority``), from `DeviceInfo.highest_priority`
        to `DeviceInfo.lowest_priority`. With `ordered`, work on the same arrays is in order across lanes, at the cost
        of an event for each wait that is needed (`LaneStatistics.waits` counts them). Without it, only `Lane.wait_for`
        makes order; even then memory is given to another array only when no work runs on it. The lane exists in every
        generation.

        Raises `InvalidArgument` for a priority that the device does not have, or when 13 lanes are open.
        """
        result: Lane = self._enqueue(self._awaited.lane, (), {"priority": priority, "ordered": ordered})
        return result

    @functools.cached_property
    def blas(self) -> Blas:
        """Dense linear algebra (cuBLAS): `dev.blas.gemm(a, b)`."""
        value: Blas = self._enqueue(lambda: self._awaited.blas)
        return value

    @functools.cached_property
    def blaslt(self) -> BlasLt:
        """Products of matrices with epilogues (cuBLASLt): `dev.blaslt.matmul(a, b, ...)`."""
        value: BlasLt = self._enqueue(lambda: self._awaited.blaslt)
        return value

    @functools.cached_property
    def fft(self) -> Fft:
        """Fourier transforms (cuFFT): `dev.fft.rfft(x)`."""
        value: Fft = self._enqueue(lambda: self._awaited.fft)
        return value

    @functools.cached_property
    def random(self) -> Random:
        """Random numbers (cuRAND): `dev.random.normal(size=1000)`."""
        value: Random = self._enqueue(lambda: self._awaited.random)
        return value

    @functools.cached_property
    def solver(self) -> Solver:
        """Factorizations, linear systems, eigenvalues, singular values (cuSOLVER): `dev.solver.solve(a, b)`."""
        value: Solver = self._enqueue(lambda: self._awaited.solver)
        return value


class Devices(GroupAccess, Twin):
    """The devices of a group, in the order in which they were named. Made by `start_devices`.

    A device that has failed keeps its place, and `devices[i]` still returns it; `alive` leaves it out. Every method may
    raise `OutsideRun` in a task of trio, and those that pick a device raise `DeviceClosed` or `DeviceFailed` once no
    device of the group takes requests.
    """

    __slots__ = ()

    _made_by: ClassVar[str] = "`with atomr_trio.starts()`"

    @property
    def awaited(self) -> atomr_trio.Devices:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Devices = self._awaited
        return value

    def _repr_html_(self) -> str:
        """Return the tables of the devices, for a notebook."""
        result: str = self._read(self._awaited._repr_html_)
        return result

    def __len__(self) -> int:
        """Return the number of devices, failed ones included."""
        result: int = self._read(self._awaited.__len__)
        return result

    @property
    def alive(self) -> tuple[Device, ...]:
        """The devices that take requests: all of them, less those that have failed or were closed."""
        value: tuple[Device, ...] = self._seen(self._awaited.alive)
        return value

    @property
    def strategy(self) -> Strategy:
        """The strategy, as given to `start_devices`."""
        value: Strategy = self._awaited.strategy
        return value

    @property
    def peers(self) -> bool:
        """True if kernels of one device may use arrays of another, as given to `start_devices`."""
        value: bool = self._awaited.peers
        return value

    def events(self, *, buffer: int = 64) -> Subscription:
        """Return the events of all devices, as `Device.events` does for one. Each of these comes as a `MemberEvent`.

        Worlds tell of their epochs, by `EpochBegan` and `EpochEnded`.

        A subscriber that is more than `buffer` events behind loses the newest, and gets `EventsDropped`.

        Raises `InvalidArgument` for a buffer that is not an int of at least 1.
        """
        result: Subscription = self._enqueue(self._awaited.events, (), {"buffer": buffer})
        return result

    def statistics(self) -> GroupStatistics:
        """Return the present values of the counters of all devices, and of the group."""
        result: GroupStatistics = self._enqueue(self._awaited.statistics)
        return result

    def pick(
        self,
        policy: Placement | None = None,
        *,
        min_free_bytes: int = 0,
        min_compute_capability: tuple[int, int] = (0, 0),
        near: AnyArray | Device | None = None,
    ) -> Device:
        """Return the device to use next. Asks no worker: it is a function of what this process knows anyway.

        - `policy`: `RoundRobin()`, `LeastLoaded()`, `MostFree()`, or another `Placement`; by default `LeastLoaded()`.
        - `min_free_bytes`: bytes that arrays must still be able to take on the device, by its `memory_limit`.
        - `min_compute_capability`: the least compute capability, major and minor.
        - `near`: an array of the group, of any shape and dtype, whose device goes before all others if it runs and has
          what is asked for; or that device.

        A device that is being rebuilt is picked only if no other one has what is asked for: its requests wait. A choice
        is not a promise: another thread may take the memory. `reserve` keeps it.

        Raises `OutOfDeviceMemory` if no device has so much memory left, `InvalidArgument` if none has the capability,
        or for arguments that are not valid.
        """
        result: Device = self._enqueue(
            self._awaited.pick,
            (policy,),
            {"min_free_bytes": min_free_bytes, "min_compute_capability": min_compute_capability, "near": near},
        )
        return result

    def reserve(
        self,
        nbytes: int,
        policy: Placement | None = None,
        *,
        min_compute_capability: tuple[int, int] = (0, 0),
        near: AnyArray | Device | None = None,
    ) -> Reservation:
        """Return a context manager that picks a device and sets `nbytes` bytes of its memory aside for this thread.

        `with devices.reserve(1 << 30) as dev:` picks as `pick` does, with `nbytes` as `min_free_bytes`; see
        `Reservation` for what is promised. Nothing is sent, and no memory of the GPU is taken.

        - `nbytes`: bytes, 1 or more.
        - `policy`: as for `pick`.
        - `min_compute_capability`: the least compute capability, as for `pick`.
        - `near`: an array of any shape and dtype, or a device, as for `pick`.

        Raises `InvalidArgument` for arguments that are not valid; entering raises what `pick` raises.
        """
        result: Reservation = self._enqueue(
            self._awaited.reserve, (nbytes, policy), {"min_compute_capability": min_compute_capability, "near": near}
        )
        return result

    def world(
        self,
        members: Iterable[Device | int] | None = None,
        *,
        deterministic: bool = True,
        nccl: Mapping[str, str | int] | None = None,
    ) -> World:
        """Return a world of devices, which compute together by NCCL, once all are there (``ncclCommInitRankConfig``).

        - `members`: devices of the group, or the index of each, each once; by default all that are alive. Their order
          is that of the ranks.
        - `deterministic`: pin the algorithm and the protocol of NCCL (``NCCL_ALGO=Ring``, ``NCCL_PROTO=Simple``), so
          that a sum of floats has the same bits each time. With False NCCL chooses, by sizes and connections.
        - `nccl`: variables of the environment for NCCL, by their names without the prefix, such as `{"SOCKET_IFNAME":
          "eth0"}`. Without it ``NCCL_RAS_ENABLE`` and ``NCCL_RUNTIME_CONNECT`` are 0.

        NCCL reads its environment once in the life of a worker, so all worlds of a device have the same settings. The
        world is closed by `World.close`, by `with`, or with the block of the group.

        Raises `InvalidArgument` for arguments that are not valid, `LibraryNotFound` if NCCL is not installed,
        `CommandFailed` for what NCCL refuses, `DeviceClosed` or `DeviceFailed` if a member takes no requests.
        """
        result: World = self._wait(self._awaited.world, (members,), {"deterministic": deterministic, "nccl": nccl})
        return result


class Reservation(Twin):
    """Bytes of the memory of one device, from entering the `with` block to leaving it. Made by `Devices.reserve`.

    Entering picks the device and returns it. Arrays that the thread makes in the block are taken off the reservation,
    and so are those of functions that it runs there; freed, they come back to it. Others cannot have these bytes, and
    `Devices.pick` counts them as taken. It reserves bytes of the device's `memory_limit`, each array rounded up to 512,
    and not one run of addresses. The workspaces of libraries do not respect it, and neither do other programs on the
    GPU. Arrays of the block live on when it is left.
    """

    __slots__ = ()

    _made_by: ClassVar[str] = "devices.reserve(nbytes)"

    @property
    def awaited(self) -> atomr_trio.Reservation:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Reservation = self._awaited
        return value

    @property
    def nbytes(self) -> int:
        """The reserved bytes, as asked for."""
        value: int = self._awaited.nbytes
        return value

    @property
    def left(self) -> int:
        """The reserved bytes that no array has taken; all of them before entering, 0 after leaving."""
        value: int = self._awaited.left
        return value

    def __enter__(self) -> Device:
        result: Device = self._enter_at_once()
        return result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._enqueue(self._awaited.__exit__, (kind, error, traceback))
