"""The simulated device, and the driver's functions for initialisation, errors, devices and contexts.

The device has compute capability 8.0, or that of the environment, and the limits of an A100. This file does not depend
on memory or modules, except that a context owns them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from atomr_cuda import driver
from atomr_cuda.driver import CUdevice_attribute as A, CUdevice_P2PAttribute as P, CUlimit, CUresult

from .._status import INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, UNSUPPORTED_LIMIT, require, text_of
from ..engine.shared import RESERVED_SHARED
from .process import PRINTF_BYTES, Context, Process
from .table import Needs, entry, give

DRIVER_VERSION = 13050
NAME = "atomr simulated GPU"
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_THREADS_PER_BLOCK = 1024
SHARED_PER_BLOCK = 49152
SHARED_PER_BLOCK_OPTIN = 166912
SHARED_PER_MULTIPROCESSOR = 167936
REGISTERS = 65536
THREADS_PER_MULTIPROCESSOR = 2048
BLOCKS_PER_MULTIPROCESSOR = 32
MULTIPROCESSORS = 1

# Attributes that are not named here are 0: the device does not have them.
ATTRIBUTES: dict[int, int] = {
    A.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: MAX_THREADS_PER_BLOCK,
    A.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: MAX_BLOCK[0],
    A.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: MAX_BLOCK[1],
    A.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: MAX_BLOCK[2],
    A.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: MAX_GRID[0],
    A.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: MAX_GRID[1],
    A.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: MAX_GRID[2],
    A.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: SHARED_PER_BLOCK,
    A.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: SHARED_PER_BLOCK_OPTIN,
    A.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: SHARED_PER_MULTIPROCESSOR,
    A.CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: RESERVED_SHARED,
    A.CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: 65536,
    A.CU_DEVICE_ATTRIBUTE_WARP_SIZE: 32,
    A.CU_DEVICE_ATTRIBUTE_MAX_PITCH: 2**31 - 1,
    A.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: REGISTERS,
    A.CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: REGISTERS,
    A.CU_DEVICE_ATTRIBUTE_CLOCK_RATE: 1_000_000,
    A.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: 1_000_000,
    A.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: 64,
    A.CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: 512,
    A.CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT: 32,
    A.CU_DEVICE_ATTRIBUTE_GPU_OVERLAP: 1,
    A.CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: 2,
    A.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: MULTIPROCESSORS,
    A.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: 1,
    A.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: THREADS_PER_MULTIPROCESSOR,
    A.CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: BLOCKS_PER_MULTIPROCESSOR,
    A.CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: 1,
    A.CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: 1,
    A.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: 1,
    A.CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: 1,
    A.CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: 1,
    A.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1: 1,
    A.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1: 1,
    A.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1: 1,
    A.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: 1,
    A.CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR: 1,
    A.CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: 1,
    A.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: 1,
    A.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: 1,
    A.CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: 0,
    A.CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: 0,
    A.CU_DEVICE_ATTRIBUTE_NUMA_ID: -1,
    A.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: -1,
}
_OF_PROCESS: dict[int, Callable[[Process, int], int]] = {
    A.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: lambda process, device: device,
    A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: lambda process, device: process.capability[0],
    A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: lambda process, device: process.capability[1],
    A.CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: lambda process, device: int(process.has_clusters),
}
_KNOWN_ATTRIBUTES = frozenset(map(int, A))

_LIMITS = {
    CUlimit.CU_LIMIT_STACK_SIZE: 1024,
    CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE: PRINTF_BYTES,
    CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE: 8 << 20,
}

# C strings that the driver returns live as long as the process.
_strings: dict[str, ctypes.Array[ctypes.c_char]] = {}


def c_string(text: str) -> int:
    """Return the address of a C string that is never freed."""
    if text not in _strings:
        _strings[text] = ctypes.create_string_buffer(text.encode())
    return ctypes.addressof(_strings[text])


def give_string(pointer: Any, text: str) -> None:
    """Write the address of a C string through a ``char **`` argument."""
    require(pointer)
    ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] = c_string(text)


def _give_text(address: int | None, room: int, text: str) -> None:
    """Write text into a caller's buffer, cut to its size, as the driver does."""
    require(address and room > 0)
    data = text.encode()[: room - 1] + b"\0"
    ctypes.memmove(address or 0, data, len(data))


# Initialisation and errors.


@entry(driver.cuInit, Needs.NOTHING)
def _init(process: Process, flags: int) -> int | None:
    require(flags == 0)
    if process.device_count == 0:
        return NO_DEVICE
    process.initialised = True
    return None


@entry(driver.cuDriverGetVersion, Needs.NOTHING)
def _driver_get_version(process: Process, version: Any) -> None:
    give(version, DRIVER_VERSION)


@entry(driver.cuGetErrorName, Needs.NOTHING)
def _get_error_name(process: Process, status: int, name: Any) -> int | None:
    return _explain(status, name, lambda known: known.name)


@entry(driver.cuGetErrorString, Needs.NOTHING)
def _get_error_string(process: Process, status: int, text: Any) -> int | None:
    return _explain(status, text, text_of)


def _explain(status: int, pointer: Any, words: Any) -> int | None:
    require(pointer)
    try:
        known = CUresult(status)
    except ValueError:
        pointer[0] = None
        return INVALID_VALUE
    give_string(pointer, words(known))
    return None


# Devices.


def _check_device(process: Process, device: int) -> int:
    require(0 <= device < process.device_count, INVALID_DEVICE)
    return device


@entry(driver.cuDeviceGet, Needs.INIT)
def _device_get(process: Process, device: Any, ordinal: int) -> None:
    give(device, _check_device(process, ordinal))


@entry(driver.cuDeviceGetCount, Needs.INIT)
def _device_get_count(process: Process, count: Any) -> None:
    give(count, process.device_count)


@entry(driver.cuDeviceGetName, Needs.INIT)
def _device_get_name(process: Process, name: int | None, room: int, device: int) -> None:
    _check_device(process, device)
    _give_text(name, room, NAME)


@entry(driver.cuDeviceTotalMem, Needs.INIT)
def _device_total_mem(process: Process, size: Any, device: int) -> None:
    give(size, process.regions.totals[_check_device(process, device)])


@entry(driver.cuDeviceGetAttribute, Needs.INIT)
def _device_get_attribute(process: Process, value: Any, attribute: int, device: int) -> None:
    _check_device(process, device)
    require(attribute in _KNOWN_ATTRIBUTES)
    answer = _OF_PROCESS.get(attribute)
    give(value, answer(process, device) if answer else ATTRIBUTES.get(attribute, 0))


@entry(driver.cuDeviceGetUuid_v2, Needs.INIT)
def _device_get_uuid(process: Process, uuid: Any, device: int) -> None:
    require(uuid)
    name = b"atomr-simulated" + bytes([_check_device(process, device)])
    uuid[0].bytes[:] = list(name)


@entry(driver.cuDeviceGetPCIBusId, Needs.INIT)
def _device_get_pci_bus_id(process: Process, name: int | None, room: int, device: int) -> None:
    _give_text(name, room, _bus_id(_check_device(process, device)))


def _bus_id(ordinal: int) -> str:
    return f"0000:{ordinal:02X}:00.0"


@entry(driver.cuDeviceGetByPCIBusId, Needs.INIT)
def _device_get_by_pci_bus_id(process: Process, device: Any, name: bytes | None) -> None:
    ordinals = [ordinal for ordinal in range(process.device_count) if name == _bus_id(ordinal).encode()]
    require(ordinals, INVALID_DEVICE)
    give(device, ordinals[0])


# Pairs of devices.

# Of a pair that has access. Kernels of two devices run in two processes, where no lock makes atomics what they are, and
# there are no CUDA arrays.
_LINK: dict[int, int] = {
    P.CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: 0,
    P.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED: 1,
    P.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: 0,
    P.CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: 0,
    P.CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED: 0,
}
_NO_LINK = dict.fromkeys(_LINK, 0) | {P.CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: 1}  # a larger rank is a slower link


@entry(driver.cuDeviceCanAccessPeer, Needs.INIT)
def _device_can_access_peer(process: Process, result: Any, device: int, peer: int) -> None:
    for each in (device, peer):
        _check_device(process, each)
    give(result, int(process.can_access(device, peer)))


@entry(driver.cuDeviceGetP2PAttribute, Needs.INIT)
def _device_get_p2p_attribute(process: Process, value: Any, attribute: int, source: int, target: int) -> None:
    for each in (source, target):
        _check_device(process, each)
    require(source != target, INVALID_DEVICE)
    link = _LINK if process.can_access(source, target) else _NO_LINK
    require(attribute in link)
    give(value, link[attribute])


# Contexts.


@entry(driver.cuDevicePrimaryCtxRetain, Needs.LIFE)
def _primary_retain(process: Process, result: Any, device: int) -> None:
    require(result)
    context = process.primary(device)
    with context.lifetime:
        context.retained += 1
        context.active = True
    give(result, context.handle)


@entry(driver.cuDevicePrimaryCtxRelease, Needs.LIFE)
def _primary_release(process: Process, device: int) -> None:
    context = process.primary(device)
    with context.lifetime:
        require(context.retained, INVALID_CONTEXT)
        context.retained -= 1
        if context.retained == 0:
            context.end()


@entry(driver.cuDevicePrimaryCtxReset, Needs.LIFE)
def _primary_reset(process: Process, device: int) -> None:
    context = process.primary(device)
    with context.lifetime:
        context.end()
        context.active = context.retained > 0


@entry(driver.cuDevicePrimaryCtxGetState, Needs.INIT)
def _primary_get_state(process: Process, device: int, flags: Any, active: Any) -> None:
    context = process.primary(device)
    give(flags, context.flags)
    give(active, int(context.active))


@entry(driver.cuDevicePrimaryCtxSetFlags, Needs.LIFE)
def _primary_set_flags(process: Process, device: int, flags: int) -> None:
    process.primary(device).flags = flags


@entry(driver.cuCtxCreate_v2, Needs.LIFE)
def _context_create(process: Process, result: Any, flags: int, device: int) -> None:
    require(result)
    context = process.create_context(_check_device(process, device))
    context.flags = flags
    process.stack.append(context)
    give(result, context.handle)


def _context(process: Process, handle: int | None) -> Context:
    return process.handles.get(handle, Context, INVALID_CONTEXT)


@entry(driver.cuCtxDestroy, Needs.LIFE)
def _context_destroy(process: Process, handle: int | None) -> None:
    context = _context(process, handle)
    require(not context.primary, INVALID_CONTEXT)
    context.end()
    process.handles.pop(handle)
    if process.stack and process.stack[-1] is context:
        process.stack.pop()


@entry(driver.cuCtxSetCurrent, Needs.INIT)
def _context_set_current(process: Process, handle: int | None) -> None:
    context = _context(process, handle) if handle else None
    if process.stack:
        process.stack.pop()
    if context is not None:
        process.stack.append(context)


@entry(driver.cuCtxGetCurrent, Needs.INIT)
def _context_get_current(process: Process, result: Any) -> None:
    give(result, process.stack[-1].handle if process.stack else None)


@entry(driver.cuCtxPushCurrent, Needs.INIT)
def _context_push(process: Process, handle: int | None) -> None:
    process.stack.append(_context(process, handle))


@entry(driver.cuCtxPopCurrent, Needs.INIT)
def _context_pop(process: Process, result: Any) -> None:
    require(process.stack, INVALID_CONTEXT)
    context = process.stack.pop()
    if result:
        give(result, context.handle)


@entry(driver.cuCtxGetDevice)
def _context_get_device(process: Process, device: Any) -> None:
    give(device, process.current().device)


@entry(driver.cuCtxSynchronize)
def _context_synchronize(process: Process) -> int:
    return process.synchronize_context()


@entry(driver.cuCtxGetStreamPriorityRange)
def _context_priorities(process: Process, least: Any, greatest: Any) -> None:
    for pointer, value in ((least, 0), (greatest, -5)):
        if pointer:
            give(pointer, value)


@entry(driver.cuCtxGetLimit)
def _context_get_limit(process: Process, value: Any, limit: int) -> None:
    require(limit in _LIMITS, UNSUPPORTED_LIMIT)
    give(value, process.current().limits.get(limit, _LIMITS[CUlimit(limit)]))


@entry(driver.cuCtxSetLimit)
def _context_set_limit(process: Process, limit: int, value: int) -> None:
    require(limit in _LIMITS, UNSUPPORTED_LIMIT)
    process.current().limits[limit] = value
