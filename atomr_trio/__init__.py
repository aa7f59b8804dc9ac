"""Use NVIDIA GPUs from trio: a CUDA runtime that a program can crash without being hurt.

The folders, in the order in which they can be read:

- ``_wire/``: what both processes know: records, the ring, the channel, the shared page, the limits of the machine;
- ``_values/``: plain data: errors, dtypes, events, statistics, what a kernel takes;
- ``_compiling/``: CUDA C++ to images, and the cache that keeps compiled images for later processes;
- ``_memory/``: addresses, chunks and blocks, seen from this process;
- ``_supervision/``: the state machine of a device, mailboxes, timers in real time, whose run a device belongs to;
- ``_generation/``: one worker's life, seen from here: its process, its tickets, its output, requests, the standbys;
- ``_arrays/``: arrays, their layout, and how they are shared with other libraries of this process;
- ``_transfers/``: copies and fills, the host memory that they use, and the threads that fill it;
- ``_calls/``: verbs of the libraries, awaited and in a batch; the short way of an ordinary launch into the ring;
- ``libraries/``: what a user calls, one folder for each library;
- ``_device/``: the device that outlives its workers, and how it is opened, supervised and closed;
- ``plain/``: the same verbs for programs without trio, blocking;
- ``_worker/``: the other side of the process boundary;
- ``testing/``: for tests of programs that use all this. Nothing else imports it.

Names are exported lazily, so that a worker, which imports this package too, loads neither trio nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .libraries.registered import HOMES as _LIBRARIES

if TYPE_CHECKING:
    from ._arrays.access import (
        Marked as Marked,
        Overwrites as Overwrites,
        ReadOnly as ReadOnly,
        Strided as Strided,
        Writes as Writes,
        overwrites as overwrites,
        read_only as read_only,
        strided as strided,
        writes as writes,
    )
    from ._arrays.arrays import DeviceArray as DeviceArray
    from ._compiling.architectures import SmArch as SmArch
    from ._compiling.cache import CachedKernel as CachedKernel, NvrtcCache as NvrtcCache, NvrtcCacheKey as NvrtcCacheKey
    from ._compiling.compiler import (
        compile_to_cubin as compile_to_cubin,
        compile_to_ltoir as compile_to_ltoir,
        compile_to_ptx as compile_to_ptx,
    )
    from ._compiling.images import ImageKind as ImageKind
    from ._compiling.link_options import LinkInput as LinkInput, LinkOptions as LinkOptions
    from ._compiling.linker import link as link
    from ._compiling.options import NvrtcOptions as NvrtcOptions
    from ._compiling.service import CompileStatistics as CompileStatistics
    from ._device.batch import Batch as Batch
    from ._device.device import Device as Device
    from ._device.group import Devices as Devices
    from ._device.open import open_device as open_device, open_devices as open_devices
    from ._device.reservation import Reservation as Reservation
    from ._device.retry import Attempt as Attempt, Retry as Retry
    from ._memory.map import MemoryChunk as MemoryChunk, MemoryMap as MemoryMap, MemoryPiece as MemoryPiece
    from ._supervision.policy import RestartPolicy as RestartPolicy
    from ._values.errors import (
        ActorCrashed as ActorCrashed,
        AtomrInternalError as AtomrInternalError,
        CommandFailed as CommandFailed,
        CompileError as CompileError,
        ContextLost as ContextLost,
        ConvergenceError as ConvergenceError,
        DeviceClosed as DeviceClosed,
        DeviceError as DeviceError,
        DeviceFailed as DeviceFailed,
        InvalidArgument as InvalidArgument,
        ItemsLost as ItemsLost,
        LibraryNotFound as LibraryNotFound,
        NotFiniteError as NotFiniteError,
        NotPositiveDefiniteError as NotPositiveDefiniteError,
        OutOfDeviceMemory as OutOfDeviceMemory,
        OutOfHostMemory as OutOfHostMemory,
        OutsideRun as OutsideRun,
        RequestError as RequestError,
        SingularMatrixError as SingularMatrixError,
        StaleArray as StaleArray,
        StaleKernel as StaleKernel,
        WorldLost as WorldLost,
    )
    from ._values.events import (
        ActorRestarted as ActorRestarted,
        CompileFinished as CompileFinished,
        CompileStarted as CompileStarted,
        ContextRebuilt as ContextRebuilt,
        ContextWasLost as ContextWasLost,
        CopyProgress as CopyProgress,
        DeviceEvent as DeviceEvent,
        DeviceGaveUp as DeviceGaveUp,
        EpochBegan as EpochBegan,
        EpochEnded as EpochEnded,
        EventsDropped as EventsDropped,
        MemberEvent as MemberEvent,
        StandbyLost as StandbyLost,
        StandbyReady as StandbyReady,
        Subscription as Subscription,
        WorkerReaped as WorkerReaped,
    )
    from ._values.findings import (
        Check as Check,
        Finding as Finding,
        OtherThread as OtherThread,
        kept_findings as kept_findings,
    )
    from ._values.info import DeviceInfo as DeviceInfo, KernelAttributes as KernelAttributes, Occupancy as Occupancy
    from ._values.parameters import (
        Elements as Elements,
        Parameter as Parameter,
        ParameterKind as ParameterKind,
    )
    from ._values.placement import (
        DeviceSnapshot as DeviceSnapshot,
        LeastLoaded as LeastLoaded,
        MostFree as MostFree,
        Placement as Placement,
        RoundRobin as RoundRobin,
    )
    from ._values.signatures import KernelSignature as KernelSignature
    from ._values.state import DeviceState as DeviceState
    from ._values.statistics import (
        ActorStatistics as ActorStatistics,
        DeviceStatistics as DeviceStatistics,
        GroupStatistics as GroupStatistics,
        LaneStatistics as LaneStatistics,
        MemoryStatistics as MemoryStatistics,
    )
    from .libraries.fft.callbacks import FftCallback as FftCallback
    from .libraries.fft.plan import FftPlan as FftPlan
    from .libraries.graphs.graph import Graph as Graph, GraphRecorder as GraphRecorder
    from .libraries.graphs.nodes import GraphNode as GraphNode
    from .libraries.lanes.verbs import Event as Event, Lane as Lane
    from .libraries.modules.kernel import Kernel as Kernel, PreparedLaunch as PreparedLaunch
    from .libraries.modules.module import Module as Module, ModuleLoader as ModuleLoader, Program as Program
    from .libraries.nccl.arguments import (
        PremultipliedSum as PremultipliedSum,
        premultiplied_sum as premultiplied_sum,
    )
    from .libraries.nccl.sharded import Sharded as Sharded
    from .libraries.nccl.world import World as World, WorldBatch as WorldBatch
    from .libraries.nvrtc.declared import DeclaredKernel as DeclaredKernel, kernel as kernel
    from .libraries.nvrtc.verbs import Nvrtc as Nvrtc
    from .libraries.random.generator import RandomGenerator as RandomGenerator
    from .libraries.registered import *
    from .plain._faces.starts import start as start, start_devices as start_devices
    from .plain._retry import retry as retry

__version__ = "0.1.0"

_HOMES = {
    "_arrays.access": (
        *("Marked", "Overwrites", "ReadOnly", "Strided", "Writes"),
        *("overwrites", "read_only", "strided", "writes"),
    ),
    "_arrays.arrays": ("DeviceArray",),
    "_device.batch": ("Batch",),
    "_compiling.architectures": ("SmArch",),
    "_compiling.cache": ("CachedKernel", "NvrtcCache", "NvrtcCacheKey"),
    "_compiling.compiler": ("compile_to_cubin", "compile_to_ltoir", "compile_to_ptx"),
    "_compiling.images": ("ImageKind",),
    "_compiling.link_options": ("LinkInput", "LinkOptions"),
    "_compiling.linker": ("link",),
    "_compiling.options": ("NvrtcOptions",),
    "_compiling.service": ("CompileStatistics",),
    "_device.device": ("Device",),
    "_values.errors": (
        "ActorCrashed",
        "AtomrInternalError",
        "CommandFailed",
        "CompileError",
        "ContextLost",
        "ConvergenceError",
        "DeviceClosed",
        "DeviceError",
        "DeviceFailed",
        "InvalidArgument",
        "ItemsLost",
        "LibraryNotFound",
        "NotFiniteError",
        "NotPositiveDefiniteError",
        "OutOfDeviceMemory",
        "OutOfHostMemory",
        "OutsideRun",
        "RequestError",
        "SingularMatrixError",
        "StaleArray",
        "StaleKernel",
        "WorldLost",
    ),
    "_values.events": (
        "ActorRestarted",
        "CompileFinished",
        "CompileStarted",
        "ContextRebuilt",
        "ContextWasLost",
        "CopyProgress",
        "DeviceEvent",
        "DeviceGaveUp",
        "EpochBegan",
        "EpochEnded",
        "EventsDropped",
        "MemberEvent",
        "StandbyLost",
        "StandbyReady",
        "Subscription",
        "WorkerReaped",
    ),
    "_values.findings": ("Check", "Finding", "OtherThread", "kept_findings"),
    "_values.info": ("DeviceInfo", "KernelAttributes", "Occupancy"),
    "libraries.lanes.verbs": ("Event", "Lane"),
    "_memory.map": ("MemoryChunk", "MemoryMap", "MemoryPiece"),
    "_device.group": ("Devices",),
    "_device.open": ("open_device", "open_devices"),
    "_device.reservation": ("Reservation",),
    "_device.retry": ("Attempt", "Retry"),
    "_values.parameters": ("Elements", "Parameter", "ParameterKind"),
    "_values.placement": ("DeviceSnapshot", "LeastLoaded", "MostFree", "Placement", "RoundRobin"),
    "_values.signatures": ("KernelSignature",),
    "_values.statistics": (
        "ActorStatistics",
        "DeviceStatistics",
        "GroupStatistics",
        "LaneStatistics",
        "MemoryStatistics",
    ),
    "_values.state": ("DeviceState",),
    "_supervision.policy": ("RestartPolicy",),
    "libraries.fft.callbacks": ("FftCallback",),
    "libraries.fft.plan": ("FftPlan",),
    "libraries.graphs.graph": ("Graph", "GraphRecorder"),
    "libraries.graphs.nodes": ("GraphNode",),
    "libraries.modules.kernel": ("Kernel", "PreparedLaunch"),
    "libraries.modules.module": ("Module", "ModuleLoader", "Program"),
    "libraries.nccl.arguments": ("PremultipliedSum", "premultiplied_sum"),
    "libraries.nccl.sharded": ("Sharded",),
    "libraries.nccl.world": ("World", "WorldBatch"),
    "libraries.nvrtc.declared": ("DeclaredKernel", "kernel"),
    "libraries.nvrtc.verbs": ("Nvrtc",),
    "libraries.random.generator": ("RandomGenerator",),
    "plain._faces.starts": ("start", "start_devices"),
    "plain._retry": ("retry",),
}

_HOME_OF = {name: home for home, names in (_HOMES | _LIBRARIES).items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_instead(name)}")
    value = getattr(importlib.import_module(f".{home}", __name__), name)
    value.__module__ = __name__  # tracebacks, docs and pickles show the public name
    globals()[name] = value
    return value


def _instead(name: str) -> str:
    """Return what to write instead of a name that modules of other libraries have."""
    if name.startswith("_"):  # which tools ask for
        return ""
    from ._device.device import Device
    from ._values.habits import DEVICE

    if name in DEVICE:
        return f": {DEVICE[name]}"
    return f": it is one of a device, `dev.{name}`" if name in dir(Device) else ""


def __dir__() -> list[str]:
    return [*globals(), *__all__]
