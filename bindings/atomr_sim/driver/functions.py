"""The simulated driver: streams, events and memory, and the function that installs it instead of libcuda.

Devices and contexts are in ``device``, copies in ``transfers``, modules and launches in ``launches``, graphs in
``graphs``. ``install`` puts them all into the table of ``atomr_cuda.driver``; from then on that table works as on a
machine with a GPU. There is one simulated driver in a process, as there is one libcuda.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
import sys
import threading
from typing import Any

from atomr_cuda import driver
from atomr_cuda._library import LibraryMissing, Table, stand_in
from atomr_cuda.driver import (
    CUmemAccess_flags,
    CUmemAllocationHandleType,
    CUmemAllocationType,
    CUmemLocationType,
    CUmemorytype,
    CUpointer_attribute,
)
from atomr_cuda.injection import ANY, SIMULATED, Injection, asked_for, parse

from .._status import INVALID_DEVICE, INVALID_HANDLE, NOT_READY, NOT_SUPPORTED, Refused, require
from . import device as _device, graphs as _graphs, launches as _launches, table, transfers as _transfers
from .captures import CAPTURED_EVENT, ISOLATION, UNSUPPORTED
from .process import Process
from .regions import GRANULARITY, Kind, Region
from .streams import DefaultStream, Event, Stream
from .table import Needs, entry, give

# These modules fill the table when they are imported.
_PARTS = (_device, _transfers, _launches, _graphs)

_STREAM_FLAGS = driver.CU_STREAM_NON_BLOCKING
_EVENT_FLAGS = driver.CU_EVENT_BLOCKING_SYNC | driver.CU_EVENT_DISABLE_TIMING


# Streams.


@entry(driver.cuStreamCreate)
def _stream_create(process: Process, result: Any, flags: int) -> None:
    _new_stream(process, result, flags)


@entry(driver.cuStreamCreateWithPriority)
def _stream_create_with_priority(process: Process, result: Any, flags: int, priority: int) -> None:
    # All streams share the same processors and threads here, so a priority has no effect.
    _new_stream(process, result, flags)


def _new_stream(process: Process, result: Any, flags: int) -> None:
    require(result and flags & ~_STREAM_FLAGS == 0)
    context = process.current()
    blocking = not flags & driver.CU_STREAM_NON_BLOCKING
    give(result, process.handles.add(context.new_stream(blocking=blocking), context.handle))


@entry(driver.cuStreamDestroy)
def _stream_destroy(process: Process, handle: int | None) -> None:
    stream = process.handles.get(handle, Stream)
    process.captures.destroyed(stream)
    stream.close()
    process.handles.pop(handle)


@entry(driver.cuStreamGetCtx)
def _stream_get_ctx(process: Process, handle: int | None, context: Any) -> None:
    process.handles.get(handle, Stream)
    give(context, process.handles.owner(handle or 0))


@entry(driver.cuStreamQuery)
def _stream_query(process: Process, handle: int | None) -> int:
    stream = process.stream(handle)
    process.enter(stream)
    process.captures.forbid([stream], UNSUPPORTED)
    return stream.query()


@entry(driver.cuStreamSynchronize)
def _stream_synchronize(process: Process, handle: int | None) -> int:
    context, stream = process.current(), process.stream(handle)
    process.enter(stream)
    process.captures.forbid([stream], UNSUPPORTED)
    status = stream.synchronize()
    if not status:
        context.flush_output()
    return status


@entry(driver.cuStreamWaitEvent)
def _stream_wait_event(process: Process, handle: int | None, event: int | None, flags: int) -> None:
    require(flags == driver.CU_EVENT_WAIT_DEFAULT)
    waited, stream = process.handles.get(event, Event), process.stream(handle)
    if waited.captured is not None:
        capture, nodes = waited.captured
        require(not capture.ended, CAPTURED_EVENT)
        require(not isinstance(stream, DefaultStream), UNSUPPORTED)
        capture.wait(stream, nodes)
        return
    if waited.recorded:
        process.captures.forbid([stream], ISOLATION)
    waited.hold(stream)


# Events.


@entry(driver.cuEventCreate)
def _event_create(process: Process, result: Any, flags: int) -> None:
    require(result and flags & ~_EVENT_FLAGS & ~driver.CU_EVENT_INTERPROCESS == 0)
    require(not flags & driver.CU_EVENT_INTERPROCESS, NOT_SUPPORTED)
    event = Event(timed=not flags & driver.CU_EVENT_DISABLE_TIMING)
    give(result, process.handles.add(event, process.current().handle))


@entry(driver.cuEventDestroy)
def _event_destroy(process: Process, handle: int | None) -> None:
    process.handles.get(handle, Event)
    process.handles.pop(handle)


@entry(driver.cuEventRecord)
def _event_record(process: Process, handle: int | None, stream_handle: int | None) -> None:
    event = process.handles.get(handle, Event)
    stream = process.stream(stream_handle)
    if stream.capture is None:
        process.enter(stream)
        process.current().hold_back(stream)
    event.record(stream)


def _uncaptured(process: Process, handle: int | None) -> Event:
    """Return an event; refuse one of a capture, of which nobody can ask whether it was passed."""
    event = process.handles.get(handle, Event)
    if event.captured is not None:
        event.captured[0].valid = False
        raise Refused(CAPTURED_EVENT)
    return event


@entry(driver.cuEventQuery, unsafe=True)
def _event_query(process: Process, handle: int | None) -> int | None:
    return None if _uncaptured(process, handle).done else NOT_READY


@entry(driver.cuEventSynchronize, unsafe=True)
def _event_synchronize(process: Process, handle: int | None) -> int:
    return _uncaptured(process, handle).synchronize(process.fate)


@entry(driver.cuEventElapsedTime)
def _event_elapsed_time(process: Process, result: Any, start: int | None, end: int | None) -> int | None:
    require(result)
    first, last = _uncaptured(process, start), _uncaptured(process, end)
    require(first.timed and last.timed and first.recorded and last.recorded, INVALID_HANDLE)
    if not (first.done and last.done):
        return NOT_READY
    give(result, first.milliseconds_until(last))
    return None


entry(driver.cuEventElapsedTime_v2)(_event_elapsed_time)


# Plain memory, and memory of the host.


@entry(driver.cuMemGetInfo)
def _mem_get_info(process: Process, free: Any, total: Any) -> None:
    ordinal = process.current().device
    give(free, process.regions.free_bytes(ordinal))
    give(total, process.regions.totals[ordinal])


@entry(driver.cuMemAlloc, unsafe=True)
def _mem_alloc(process: Process, result: Any, size: int) -> None:
    require(result)
    context = process.current()
    give(result, process.regions.allocate(Kind.DEVICE, size, context.device, context.handle))


@entry(driver.cuMemFree, unsafe=True)
def _mem_free(process: Process, address: int) -> int | None:
    return _give_back(process, Kind.DEVICE, address) if address else None


@entry(driver.cuMemAllocHost, unsafe=True)
def _mem_alloc_host(process: Process, result: Any, size: int) -> None:
    require(result)
    context = process.current()
    give(result, process.regions.allocate(Kind.HOST, size, context.device, context.handle))


@entry(driver.cuMemHostAlloc, unsafe=True)
def _mem_host_alloc(process: Process, result: Any, size: int, flags: int) -> None:
    _mem_alloc_host(process, result, size)


@entry(driver.cuMemFreeHost, unsafe=True)
def _mem_free_host(process: Process, address: int | None) -> int | None:
    return _give_back(process, Kind.HOST, address or 0)


def _give_back(process: Process, kind: Kind, address: int) -> int | None:
    """Free memory when no queued work can use it any more."""
    region = process.regions.find(address)
    require(region is not None and region.kind is kind and region.address == address)
    status = process.current().synchronize()
    if not status:
        process.regions.free(kind, address)
    return status


@entry(driver.cuMemHostRegister, unsafe=True)
def _mem_host_register(process: Process, address: int | None, size: int, flags: int) -> None:
    require(not flags & driver.CU_MEMHOSTREGISTER_IOMEMORY, NOT_SUPPORTED)
    context = process.current()
    process.regions.register(address or 0, size, context.device, context.handle)


@entry(driver.cuMemHostUnregister, unsafe=True)
def _mem_host_unregister(process: Process, address: int | None) -> int | None:
    status = process.current().synchronize()
    if not status:
        process.regions.unregister(address or 0)
    return status


@entry(driver.cuMemHostGetDevicePointer)
def _mem_host_get_device_pointer(process: Process, result: Any, address: int | None, flags: int) -> None:
    require(flags == 0)
    region = process.regions.find(address or 0)
    require(region is not None and region.kind in (Kind.HOST, Kind.REGISTERED))
    give(result, address)


# The width of each answer, and its source.
_ON_HOST = (Kind.HOST, Kind.REGISTERED)
_POINTER_ATTRIBUTES: dict[int, tuple[Any, Any]] = {
    CUpointer_attribute.CU_POINTER_ATTRIBUTE_CONTEXT: (ctypes.c_uint64, lambda region, _: region.owner),
    CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE: (
        ctypes.c_uint,
        lambda region, _: int(
            CUmemorytype.CU_MEMORYTYPE_HOST if region.kind in _ON_HOST else CUmemorytype.CU_MEMORYTYPE_DEVICE
        ),
    ),
    CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_POINTER: (ctypes.c_uint64, lambda _, address: address),
    CUpointer_attribute.CU_POINTER_ATTRIBUTE_HOST_POINTER: (
        ctypes.c_uint64,
        lambda region, address: address if region.kind in _ON_HOST else None,
    ),
    CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED: (ctypes.c_uint, lambda *_: 0),
    CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: (ctypes.c_int, lambda region, _: region.device),
    CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: (ctypes.c_uint64, lambda region, _: region.address),
    CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE: (ctypes.c_size_t, lambda region, _: region.size),
    CUpointer_attribute.CU_POINTER_ATTRIBUTE_MAPPED: (ctypes.c_uint, lambda region, _: int(bool(region.devices))),
}


@entry(driver.cuPointerGetAttribute)
def _pointer_get_attribute(process: Process, result: int | None, attribute: int, address: int) -> None:
    require(attribute in _POINTER_ATTRIBUTES, NOT_SUPPORTED)
    region: Region | None = process.regions.find(address)
    if region is None or not result:
        raise Refused(driver.CUresult.CUDA_ERROR_INVALID_VALUE)
    width, answer = _POINTER_ATTRIBUTES[attribute]
    value = answer(region, address)
    require(value is not None)
    width.from_address(result).value = value


# Virtual memory.


def _check_properties(process: Process, properties: Any) -> tuple[int, bool]:
    """Return the device for which memory is requested, and whether its descriptor can be exported."""
    require(properties)
    wanted = properties[0]
    handles = CUmemAllocationHandleType
    require(wanted.type == CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED)
    require(wanted.location.type == CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, NOT_SUPPORTED)
    require(0 <= wanted.location.id < process.device_count, INVALID_DEVICE)
    shareable = wanted.requestedHandleTypes == handles.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    require(shareable or wanted.requestedHandleTypes == handles.CU_MEM_HANDLE_TYPE_NONE, NOT_SUPPORTED)
    return wanted.location.id, shareable


@entry(driver.cuMemGetAllocationGranularity, Needs.LIFE)
def _mem_granularity(process: Process, result: Any, properties: Any, option: int) -> None:
    _check_properties(process, properties)
    give(result, GRANULARITY)


@entry(driver.cuMemCreate, Needs.LIFE)
def _mem_create(process: Process, result: Any, size: int, properties: Any, flags: int) -> None:
    require(result and flags == 0)
    ordinal, shareable = _check_properties(process, properties)
    give(result, process.regions.create(size, ordinal, shareable))


@entry(driver.cuMemRelease, Needs.LIFE)
def _mem_release(process: Process, handle: int) -> None:
    process.regions.release(handle)


@entry(driver.cuMemAddressReserve, Needs.LIFE)
def _mem_address_reserve(process: Process, result: Any, size: int, alignment: int, hint: int, flags: int) -> None:
    require(result and flags == 0)
    give(result, process.regions.reserve(hint, size, alignment))


@entry(driver.cuMemAddressFree, Needs.LIFE)
def _mem_address_free(process: Process, address: int, size: int) -> None:
    process.regions.free_reservation(address, size)


@entry(driver.cuMemMap, Needs.LIFE)
def _mem_map(process: Process, address: int, size: int, offset: int, handle: int, flags: int) -> None:
    require(flags == 0)
    process.regions.map(address, size, offset, handle)


@entry(driver.cuMemUnmap, Needs.LIFE)
def _mem_unmap(process: Process, address: int, size: int) -> int | None:
    status = process.synchronize_all()
    if not status:
        process.regions.unmap(address, size)
    return status


@entry(driver.cuMemSetAccess, Needs.LIFE)
def _mem_set_access(process: Process, address: int, size: int, descriptions: Any, count: int) -> None:
    require(descriptions and count > 0)
    for number in range(count):
        wanted = descriptions[number]
        require(wanted.location.type == CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, NOT_SUPPORTED)
        require(0 <= wanted.location.id < process.device_count, INVALID_DEVICE)
        readable = bool(wanted.flags & CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ)
        writable = wanted.flags == CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        process.regions.set_access(address, size, wanted.location.id, readable, writable)


@entry(driver.cuMemGetAccess, Needs.LIFE)
def _mem_get_access(process: Process, flags: Any, location: Any, address: int) -> None:
    region = process.regions.find(address)
    if region is None or not location:
        raise Refused(driver.CUresult.CUDA_ERROR_INVALID_VALUE)
    asked = location[0]
    require(asked.type == CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, NOT_SUPPORTED)
    require(0 <= asked.id < process.device_count, INVALID_DEVICE)
    access = CUmemAccess_flags
    allowed = asked.id in region.devices
    give(flags, access.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if allowed else access.CU_MEM_ACCESS_FLAGS_PROT_NONE)


@entry(driver.cuMemExportToShareableHandle, Needs.LIFE)
def _mem_export(process: Process, result: int | None, handle: int, kind: int, flags: int) -> None:
    require(result and flags == 0)
    require(kind == CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    ctypes.c_int.from_address(result or 0).value = process.regions.export(handle)


@entry(driver.cuMemImportFromShareableHandle, Needs.LIFE)
def _mem_import(process: Process, result: Any, descriptor: int | None, kind: int) -> None:
    require(result)
    require(kind == CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    give(result, process.regions.import_descriptor(descriptor or 0))


# Replacing libcuda.

_ON_SCIPY = ("cufft", "cusolver")
"""The simulated libraries that can do nothing without scipy."""
_process: Process | None = None
_lock = threading.Lock()


def install() -> None:
    """Replace libcuda by the simulator in this process; a second call changes nothing.

    The environment gives the number of devices (``ATOMR_TRIO_SIM_DEVICES``), the bytes of memory of each
    (``ATOMR_TRIO_SIM_MEMORY``), their compute capability (``ATOMR_TRIO_SIM_CAPABILITY``), the pairs of devices that can
    access each other's memory (``ATOMR_TRIO_SIM_PEERS``), the faults to inject (``ATOMR_TRIO_SIM_FAULTS``, in the form
    of ``injection``), and the checks of launches (``ATOMR_TRIO_SIM_CHECK`` and ``ATOMR_TRIO_SIM_CHECK_FOLDER``, see
    ``checks``).
    """
    global _process
    with _lock:
        if _process is not None:
            return
        process = Process.from_environment()
        injections = asked_for(os.environ)
        driver.library.replace(table.build(process), found_by="simulator")
        for name in SIMULATED:  # imported with its first call
            stand_in(name, functools.partial(_table_of, name, process))
        for injection in injections:
            _inject(process, injection)
        _process = process


def inject(text: str) -> None:
    """Inject faults into this process, in the form of ``atomr_cuda.injection``; calls are counted from now on.

    ``inject("cuMemAlloc:2:3")`` makes the third call of ``cuMemAlloc`` return status 2 and do nothing else. Raises
    ``ValueError`` for text of another form and for a function that is not in the table. Raises ``RuntimeError`` if the
    simulator is not installed.
    """
    if _process is None:
        raise RuntimeError("the simulated driver is not installed in this process; call atomr_sim.install() first")
    for injection in parse(text):
        _inject(_process, injection)


def withdraw() -> None:
    """Withdraw every fault that was injected into this process, including those of the environment."""
    if _process is not None:
        _process.faults.withdraw()


def _table_of(name: str, process: Process) -> Table:
    if name in _ON_SCIPY and importlib.util.find_spec("scipy") is None:
        raise LibraryMissing("scipy", "sim", (f"the modules that {sys.executable} finds",))
    counterpart = importlib.import_module(f"atomr_sim.libraries.{name}.functions").counterpart
    table: Table = counterpart.table(process)
    return table


def calls() -> dict[str, int]:
    """Return how often each function of the libraries besides the driver was called in this process, by its C symbol.

    Raises ``RuntimeError`` if the simulator is not installed.
    """
    if _process is None:
        raise RuntimeError("the simulated driver is not installed in this process; call atomr_sim.install() first")
    return dict(_process.calls)


def _inject(process: Process, injection: Injection) -> None:
    if injection.function == ANY:
        process.faults.add(ANY, injection)
        return
    function = injection.declared()
    # The thunk is bound once and kept, so every caller of the function passes this check from now on.
    function.bind().errcheck = process.faults.raise_pending  # type: ignore[attr-defined]
    process.faults.add(function.symbol, injection)
