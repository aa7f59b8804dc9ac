"""The CUDA driver API (libcuda) as a ctypes table.

Names are those of ``cuda.h``. The header maps some names to versioned symbols (``cuMemAlloc`` to ``cuMemAlloc_v2``).
Here the plain name is used, and its line has the symbol. If the headers of 12 and 13 map a name to different symbols,
each symbol has its own name (``cuCtxCreate_v2``, ``cuCtxCreate_v4``). Both libraries export all of them.

Numbers and layouts are those of 13.5, and agree with 12.9 in everything that both have; ``tests/abi`` holds both
headers against this table. A function that is newer than 12.0 has its version (``since``); calling it on an older
driver raises ``SymbolMissing``.

This file declares, and does nothing else: no call is made at import, and no library is loaded before the first call.

Pointers to plain values (``int *``, ``size_t *``) are declared with their type, so that ctypes checks the arguments.
Arrays of addresses and buffers are ``c_void_p``: they also take a plain integer address, which is the fastest form.
"""

from __future__ import annotations

import importlib
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_float,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint32,
    c_uint64,
    c_ulonglong,
    c_ushort,
    c_void_p,
)
from typing import TYPE_CHECKING, Any

from ._driver_types import *
from ._library import Function, Library

# The enumerations are made by topic, at the first use of one (PEP 562): see _driver_enums.
if TYPE_CHECKING:
    from ._driver_enums import *
else:
    from . import _driver_enums

    def __getattr__(name: str) -> Any:
        file = _driver_enums.FILES.get(name)
        if file is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"{_driver_enums.__name__}.{file}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_driver_enums.FILES})


# Constants -----------------------------------------------------------------------------------------------------------

CUDA_SUCCESS = 0

CU_CTX_SCHED_AUTO = 0x00
CU_CTX_SCHED_SPIN = 0x01
CU_CTX_SCHED_YIELD = 0x02
CU_CTX_SCHED_BLOCKING_SYNC = 0x04
CU_CTX_MAP_HOST = 0x08
CU_CTX_LMEM_RESIZE_TO_MAX = 0x10
CU_CTX_COREDUMP_ENABLE = 0x20
CU_CTX_USER_COREDUMP_ENABLE = 0x40
CU_CTX_SYNC_MEMOPS = 0x80

CU_STREAM_DEFAULT = 0x0
CU_STREAM_NON_BLOCKING = 0x1
CU_STREAM_LEGACY = 0x1
CU_STREAM_PER_THREAD = 0x2

CU_STREAM_WAIT_VALUE_GEQ = 0x0
CU_STREAM_WAIT_VALUE_EQ = 0x1
CU_STREAM_WAIT_VALUE_AND = 0x2
CU_STREAM_WAIT_VALUE_NOR = 0x3
CU_STREAM_WAIT_VALUE_FLUSH = 1 << 30
CU_STREAM_WRITE_VALUE_DEFAULT = 0x0
CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER = 0x1

CU_EVENT_DEFAULT = 0x0
CU_EVENT_BLOCKING_SYNC = 0x1
CU_EVENT_DISABLE_TIMING = 0x2
CU_EVENT_INTERPROCESS = 0x4
CU_EVENT_RECORD_DEFAULT = 0x0
CU_EVENT_RECORD_EXTERNAL = 0x1
CU_EVENT_WAIT_DEFAULT = 0x0
CU_EVENT_WAIT_EXTERNAL = 0x1

CU_MEMHOSTALLOC_PORTABLE = 0x01
CU_MEMHOSTALLOC_DEVICEMAP = 0x02
CU_MEMHOSTALLOC_WRITECOMBINED = 0x04
CU_MEMHOSTREGISTER_PORTABLE = 0x01
CU_MEMHOSTREGISTER_DEVICEMAP = 0x02
CU_MEMHOSTREGISTER_IOMEMORY = 0x04
CU_MEMHOSTREGISTER_READ_ONLY = 0x08
CU_MEM_ATTACH_GLOBAL = 0x1
CU_MEM_ATTACH_HOST = 0x2
CU_MEM_ATTACH_SINGLE = 0x4
CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 0x1

CU_LAUNCH_PARAM_END = 0x00
CU_LAUNCH_PARAM_BUFFER_POINTER = 0x01
CU_LAUNCH_PARAM_BUFFER_SIZE = 0x02

CU_OCCUPANCY_DEFAULT = 0x0
CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE = 0x1

CU_GRAPH_KERNEL_NODE_PORT_DEFAULT = 0
CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1
CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER = 2

CU_COREDUMP_DEFAULT_FLAGS = 0x00
CU_COREDUMP_SKIP_NONRELOCATED_ELF_IMAGES = 0x01
CU_COREDUMP_SKIP_GLOBAL_MEMORY = 0x02
CU_COREDUMP_SKIP_SHARED_MEMORY = 0x04
CU_COREDUMP_SKIP_LOCAL_MEMORY = 0x08
CU_COREDUMP_SKIP_ABORT = 0x10
CU_COREDUMP_SKIP_CONSTBANK_MEMORY = 0x20

# The library ---------------------------------------------------------------------------------------------------------


def _describe(status: int) -> tuple[str, str]:
    """Return the driver's own name and text for a status; the name in the table when the driver does not know it."""
    from ._driver_enums.status import CUresult

    words = []
    for ask in (cuGetErrorName, cuGetErrorString):
        answer = c_char_p()
        if ask.status(status, byref(answer)) == CUDA_SUCCESS and answer.value is not None:
            words.append(answer.value.decode(errors="replace"))
    if len(words) == 2:
        return words[0], words[1]
    known = {int(member): member.name for member in CUresult}
    return known.get(status, "unknown status"), "the driver has no text for this status"


_driver = Library(
    "cuda",
    sonames=("libcuda.so.1",),
    known_files=("/usr/lib/wsl/lib/libcuda.so.1",),
    describe=_describe,
)
library: Library = _driver

# Initialisation and errors.
cuInit: Function = _driver("cuInit", c_uint)
cuDriverGetVersion: Function = _driver("cuDriverGetVersion", POINTER(c_int))
cuGetErrorName: Function = _driver("cuGetErrorName", c_int, POINTER(c_char_p))
cuGetErrorString: Function = _driver("cuGetErrorString", c_int, POINTER(c_char_p))
cuGetProcAddress: Function = _driver(
    "cuGetProcAddress_v2", c_char_p, POINTER(c_void_p), c_int, c_uint64, POINTER(c_int)
)

# Devices. cuDeviceGetUuid_v2 tells the parts of a divided GPU (MIG) from each other.
cuDeviceGet: Function = _driver("cuDeviceGet", POINTER(CUdevice), c_int)
cuDeviceGetCount: Function = _driver("cuDeviceGetCount", POINTER(c_int))
cuDeviceGetName: Function = _driver("cuDeviceGetName", c_void_p, c_int, CUdevice)
cuDeviceTotalMem: Function = _driver("cuDeviceTotalMem_v2", POINTER(c_size_t), CUdevice)
cuDeviceGetAttribute: Function = _driver("cuDeviceGetAttribute", POINTER(c_int), c_int, CUdevice)
cuDeviceGetUuid_v2: Function = _driver("cuDeviceGetUuid_v2", POINTER(CUuuid), CUdevice)
cuDeviceGetByPCIBusId: Function = _driver("cuDeviceGetByPCIBusId", POINTER(CUdevice), c_char_p)
cuDeviceGetPCIBusId: Function = _driver("cuDeviceGetPCIBusId", c_void_p, c_int, CUdevice)
cuDeviceCanAccessPeer: Function = _driver("cuDeviceCanAccessPeer", POINTER(c_int), CUdevice, CUdevice)
cuDeviceGetP2PAttribute: Function = _driver("cuDeviceGetP2PAttribute", POINTER(c_int), c_int, CUdevice, CUdevice)

# Contexts.
cuDevicePrimaryCtxRetain: Function = _driver("cuDevicePrimaryCtxRetain", POINTER(CUcontext), CUdevice)
cuDevicePrimaryCtxRelease: Function = _driver("cuDevicePrimaryCtxRelease_v2", CUdevice)
cuDevicePrimaryCtxReset: Function = _driver("cuDevicePrimaryCtxReset_v2", CUdevice)
cuDevicePrimaryCtxGetState: Function = _driver("cuDevicePrimaryCtxGetState", CUdevice, POINTER(c_uint), POINTER(c_int))
cuDevicePrimaryCtxSetFlags: Function = _driver("cuDevicePrimaryCtxSetFlags_v2", CUdevice, c_uint)
cuCtxCreate_v2: Function = _driver("cuCtxCreate_v2", POINTER(CUcontext), c_uint, CUdevice)
cuCtxCreate_v4: Function = _driver(
    "cuCtxCreate_v4", POINTER(CUcontext), POINTER(CUctxCreateParams), c_uint, CUdevice, since=(12, 5)
)
cuCtxDestroy: Function = _driver("cuCtxDestroy_v2", CUcontext)
cuCtxSetCurrent: Function = _driver("cuCtxSetCurrent", CUcontext)
cuCtxGetCurrent: Function = _driver("cuCtxGetCurrent", POINTER(CUcontext))
cuCtxPushCurrent: Function = _driver("cuCtxPushCurrent_v2", CUcontext)
cuCtxPopCurrent: Function = _driver("cuCtxPopCurrent_v2", POINTER(CUcontext))
cuCtxGetDevice: Function = _driver("cuCtxGetDevice", POINTER(CUdevice))
cuCtxGetId: Function = _driver("cuCtxGetId", CUcontext, POINTER(c_ulonglong))
cuCtxGetApiVersion: Function = _driver("cuCtxGetApiVersion", CUcontext, POINTER(c_uint))
cuCtxGetFlags: Function = _driver("cuCtxGetFlags", POINTER(c_uint))
cuCtxSetFlags: Function = _driver("cuCtxSetFlags", c_uint, since=(12, 1))
cuCtxSynchronize: Function = _driver("cuCtxSynchronize")
cuCtxGetStreamPriorityRange: Function = _driver("cuCtxGetStreamPriorityRange", POINTER(c_int), POINTER(c_int))
cuCtxGetLimit: Function = _driver("cuCtxGetLimit", POINTER(c_size_t), c_int)
cuCtxSetLimit: Function = _driver("cuCtxSetLimit", c_int, c_size_t)
cuCtxGetCacheConfig: Function = _driver("cuCtxGetCacheConfig", POINTER(c_int))
cuCtxSetCacheConfig: Function = _driver("cuCtxSetCacheConfig", c_int)
cuCtxResetPersistingL2Cache: Function = _driver("cuCtxResetPersistingL2Cache")
cuCtxEnablePeerAccess: Function = _driver("cuCtxEnablePeerAccess", CUcontext, c_uint)
cuCtxDisablePeerAccess: Function = _driver("cuCtxDisablePeerAccess", CUcontext)

# Streams.
cuStreamCreate: Function = _driver("cuStreamCreate", POINTER(CUstream), c_uint)
cuStreamCreateWithPriority: Function = _driver("cuStreamCreateWithPriority", POINTER(CUstream), c_uint, c_int)
cuStreamDestroy: Function = _driver("cuStreamDestroy_v2", CUstream)
cuStreamGetPriority: Function = _driver("cuStreamGetPriority", CUstream, POINTER(c_int))
cuStreamGetFlags: Function = _driver("cuStreamGetFlags", CUstream, POINTER(c_uint))
cuStreamGetCtx: Function = _driver("cuStreamGetCtx", CUstream, POINTER(CUcontext))
cuStreamGetDevice: Function = _driver("cuStreamGetDevice", CUstream, POINTER(CUdevice), since=(12, 8))
cuStreamGetId: Function = _driver("cuStreamGetId", CUstream, POINTER(c_ulonglong))
cuStreamGetAttribute: Function = _driver("cuStreamGetAttribute", CUstream, c_int, POINTER(CUlaunchAttributeValue))
cuStreamSetAttribute: Function = _driver("cuStreamSetAttribute", CUstream, c_int, POINTER(CUlaunchAttributeValue))
cuStreamCopyAttributes: Function = _driver("cuStreamCopyAttributes", CUstream, CUstream)
cuStreamQuery: Function = _driver("cuStreamQuery", CUstream)
cuStreamSynchronize: Function = _driver("cuStreamSynchronize", CUstream)
cuStreamWaitEvent: Function = _driver("cuStreamWaitEvent", CUstream, CUevent, c_uint)
cuStreamWriteValue32: Function = _driver("cuStreamWriteValue32_v2", CUstream, CUdeviceptr, c_uint32, c_uint)
cuStreamWriteValue64: Function = _driver("cuStreamWriteValue64_v2", CUstream, CUdeviceptr, c_uint64, c_uint)
cuStreamWaitValue32: Function = _driver("cuStreamWaitValue32_v2", CUstream, CUdeviceptr, c_uint32, c_uint)
cuStreamWaitValue64: Function = _driver("cuStreamWaitValue64_v2", CUstream, CUdeviceptr, c_uint64, c_uint)
cuStreamBatchMemOp: Function = _driver(
    "cuStreamBatchMemOp_v2", CUstream, c_uint, POINTER(CUstreamBatchMemOpParams), c_uint
)
cuLaunchHostFunc: Function = _driver("cuLaunchHostFunc", CUstream, CUhostFn, c_void_p)

# Events. cuEventElapsedTime_v2 also takes events recorded in graphs.
cuEventCreate: Function = _driver("cuEventCreate", POINTER(CUevent), c_uint)
cuEventDestroy: Function = _driver("cuEventDestroy_v2", CUevent)
cuEventRecord: Function = _driver("cuEventRecord", CUevent, CUstream)
cuEventRecordWithFlags: Function = _driver("cuEventRecordWithFlags", CUevent, CUstream, c_uint)
cuEventQuery: Function = _driver("cuEventQuery", CUevent)
cuEventSynchronize: Function = _driver("cuEventSynchronize", CUevent)
cuEventElapsedTime: Function = _driver("cuEventElapsedTime", POINTER(c_float), CUevent, CUevent)
cuEventElapsedTime_v2: Function = _driver("cuEventElapsedTime_v2", POINTER(c_float), CUevent, CUevent, since=(12, 8))

# Handles for other processes: events and plain allocations.
cuIpcGetEventHandle: Function = _driver("cuIpcGetEventHandle", POINTER(CUipcEventHandle), CUevent)
cuIpcOpenEventHandle: Function = _driver("cuIpcOpenEventHandle", POINTER(CUevent), CUipcEventHandle)
cuIpcGetMemHandle: Function = _driver("cuIpcGetMemHandle", POINTER(CUipcMemHandle), CUdeviceptr)
cuIpcOpenMemHandle: Function = _driver("cuIpcOpenMemHandle_v2", POINTER(CUdeviceptr), CUipcMemHandle, c_uint)
cuIpcCloseMemHandle: Function = _driver("cuIpcCloseMemHandle", CUdeviceptr)

# Memory: plain, pitched, host, registered, and attributes of an address.
cuMemGetInfo: Function = _driver("cuMemGetInfo_v2", POINTER(c_size_t), POINTER(c_size_t))
cuMemAlloc: Function = _driver("cuMemAlloc_v2", POINTER(CUdeviceptr), c_size_t)
cuMemAllocPitch: Function = _driver(
    "cuMemAllocPitch_v2", POINTER(CUdeviceptr), POINTER(c_size_t), c_size_t, c_size_t, c_uint
)
cuMemFree: Function = _driver("cuMemFree_v2", CUdeviceptr)
cuMemGetAddressRange: Function = _driver(
    "cuMemGetAddressRange_v2", POINTER(CUdeviceptr), POINTER(c_size_t), CUdeviceptr
)
cuMemAllocHost: Function = _driver("cuMemAllocHost_v2", POINTER(c_void_p), c_size_t)
cuMemHostAlloc: Function = _driver("cuMemHostAlloc", POINTER(c_void_p), c_size_t, c_uint)
cuMemFreeHost: Function = _driver("cuMemFreeHost", c_void_p)
cuMemHostRegister: Function = _driver("cuMemHostRegister_v2", c_void_p, c_size_t, c_uint)
cuMemHostUnregister: Function = _driver("cuMemHostUnregister", c_void_p)
cuMemHostGetDevicePointer: Function = _driver("cuMemHostGetDevicePointer_v2", POINTER(CUdeviceptr), c_void_p, c_uint)
cuMemHostGetFlags: Function = _driver("cuMemHostGetFlags", POINTER(c_uint), c_void_p)
cuPointerGetAttribute: Function = _driver("cuPointerGetAttribute", c_void_p, c_int, CUdeviceptr)
cuPointerGetAttributes: Function = _driver(
    "cuPointerGetAttributes", c_uint, POINTER(c_int), POINTER(c_void_p), CUdeviceptr
)
cuPointerSetAttribute: Function = _driver("cuPointerSetAttribute", c_void_p, c_int, CUdeviceptr)

# Managed memory. The first forms name a device, the second a location.
cuMemAllocManaged: Function = _driver("cuMemAllocManaged", POINTER(CUdeviceptr), c_size_t, c_uint)
cuStreamAttachMemAsync: Function = _driver("cuStreamAttachMemAsync", CUstream, CUdeviceptr, c_size_t, c_uint)
cuMemPrefetchAsync: Function = _driver("cuMemPrefetchAsync", CUdeviceptr, c_size_t, CUdevice, CUstream)
cuMemPrefetchAsync_v2: Function = _driver(
    "cuMemPrefetchAsync_v2", CUdeviceptr, c_size_t, CUmemLocation, c_uint, CUstream, since=(12, 2)
)
cuMemAdvise: Function = _driver("cuMemAdvise", CUdeviceptr, c_size_t, c_int, CUdevice)
cuMemAdvise_v2: Function = _driver("cuMemAdvise_v2", CUdeviceptr, c_size_t, c_int, CUmemLocation, since=(12, 2))

# Memory in the order of a stream, and its pools.
cuMemAllocAsync: Function = _driver("cuMemAllocAsync", POINTER(CUdeviceptr), c_size_t, CUstream)
cuMemFreeAsync: Function = _driver("cuMemFreeAsync", CUdeviceptr, CUstream)
cuMemAllocFromPoolAsync: Function = _driver(
    "cuMemAllocFromPoolAsync", POINTER(CUdeviceptr), c_size_t, CUmemoryPool, CUstream
)
cuDeviceGetDefaultMemPool: Function = _driver("cuDeviceGetDefaultMemPool", POINTER(CUmemoryPool), CUdevice)
cuDeviceGetMemPool: Function = _driver("cuDeviceGetMemPool", POINTER(CUmemoryPool), CUdevice)
cuDeviceSetMemPool: Function = _driver("cuDeviceSetMemPool", CUdevice, CUmemoryPool)
cuMemPoolCreate: Function = _driver("cuMemPoolCreate", POINTER(CUmemoryPool), POINTER(CUmemPoolProps))
cuMemPoolDestroy: Function = _driver("cuMemPoolDestroy", CUmemoryPool)
cuMemPoolTrimTo: Function = _driver("cuMemPoolTrimTo", CUmemoryPool, c_size_t)
cuMemPoolGetAttribute: Function = _driver("cuMemPoolGetAttribute", CUmemoryPool, c_int, c_void_p)
cuMemPoolSetAttribute: Function = _driver("cuMemPoolSetAttribute", CUmemoryPool, c_int, c_void_p)
cuMemPoolGetAccess: Function = _driver("cuMemPoolGetAccess", POINTER(c_int), CUmemoryPool, POINTER(CUmemLocation))
cuMemPoolSetAccess: Function = _driver("cuMemPoolSetAccess", CUmemoryPool, POINTER(CUmemAccessDesc), c_size_t)
cuMemPoolExportToShareableHandle: Function = _driver(
    "cuMemPoolExportToShareableHandle", c_void_p, CUmemoryPool, c_int, c_ulonglong
)
cuMemPoolImportFromShareableHandle: Function = _driver(
    "cuMemPoolImportFromShareableHandle", POINTER(CUmemoryPool), c_void_p, c_int, c_ulonglong
)
cuMemPoolExportPointer: Function = _driver("cuMemPoolExportPointer", POINTER(CUmemPoolPtrExportData), CUdeviceptr)
cuMemPoolImportPointer: Function = _driver(
    "cuMemPoolImportPointer", POINTER(CUdeviceptr), CUmemoryPool, POINTER(CUmemPoolPtrExportData)
)

# Virtual memory.
cuMemGetAllocationGranularity: Function = _driver(
    "cuMemGetAllocationGranularity", POINTER(c_size_t), POINTER(CUmemAllocationProp), c_int
)
cuMemCreate: Function = _driver(
    "cuMemCreate", POINTER(CUmemGenericAllocationHandle), c_size_t, POINTER(CUmemAllocationProp), c_ulonglong
)
cuMemRelease: Function = _driver("cuMemRelease", CUmemGenericAllocationHandle)
cuMemAddressReserve: Function = _driver(
    "cuMemAddressReserve", POINTER(CUdeviceptr), c_size_t, c_size_t, CUdeviceptr, c_ulonglong
)
cuMemAddressFree: Function = _driver("cuMemAddressFree", CUdeviceptr, c_size_t)
cuMemMap: Function = _driver("cuMemMap", CUdeviceptr, c_size_t, c_size_t, CUmemGenericAllocationHandle, c_ulonglong)
cuMemUnmap: Function = _driver("cuMemUnmap", CUdeviceptr, c_size_t)
cuMemSetAccess: Function = _driver("cuMemSetAccess", CUdeviceptr, c_size_t, POINTER(CUmemAccessDesc), c_size_t)
cuMemGetAccess: Function = _driver("cuMemGetAccess", POINTER(c_ulonglong), POINTER(CUmemLocation), CUdeviceptr)
cuMemExportToShareableHandle: Function = _driver(
    "cuMemExportToShareableHandle", c_void_p, CUmemGenericAllocationHandle, c_int, c_ulonglong
)
cuMemImportFromShareableHandle: Function = _driver(
    "cuMemImportFromShareableHandle", POINTER(CUmemGenericAllocationHandle), c_void_p, c_int
)
cuMemGetAllocationPropertiesFromHandle: Function = _driver(
    "cuMemGetAllocationPropertiesFromHandle", POINTER(CUmemAllocationProp), CUmemGenericAllocationHandle
)
cuMemRetainAllocationHandle: Function = _driver(
    "cuMemRetainAllocationHandle", POINTER(CUmemGenericAllocationHandle), c_void_p
)

# Copies. A batch takes the targets, the sources, the sizes and their number. Then come the attributes, the index of the
# first copy of each, and their number. The first form also tells which copy failed.
_BATCH = (
    *(POINTER(CUdeviceptr), POINTER(CUdeviceptr), POINTER(c_size_t), c_size_t),
    *(POINTER(CUmemcpyAttributes), POINTER(c_size_t), c_size_t),
)
cuMemcpy: Function = _driver("cuMemcpy", CUdeviceptr, CUdeviceptr, c_size_t)
cuMemcpyHtoD: Function = _driver("cuMemcpyHtoD_v2", CUdeviceptr, c_void_p, c_size_t)
cuMemcpyDtoH: Function = _driver("cuMemcpyDtoH_v2", c_void_p, CUdeviceptr, c_size_t)
cuMemcpyDtoD: Function = _driver("cuMemcpyDtoD_v2", CUdeviceptr, CUdeviceptr, c_size_t)
cuMemcpyPeer: Function = _driver("cuMemcpyPeer", CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, c_size_t)
cuMemcpyAsync: Function = _driver("cuMemcpyAsync", CUdeviceptr, CUdeviceptr, c_size_t, CUstream)
cuMemcpyHtoDAsync: Function = _driver("cuMemcpyHtoDAsync_v2", CUdeviceptr, c_void_p, c_size_t, CUstream)
cuMemcpyDtoHAsync: Function = _driver("cuMemcpyDtoHAsync_v2", c_void_p, CUdeviceptr, c_size_t, CUstream)
cuMemcpyDtoDAsync: Function = _driver("cuMemcpyDtoDAsync_v2", CUdeviceptr, CUdeviceptr, c_size_t, CUstream)
cuMemcpyPeerAsync: Function = _driver(
    "cuMemcpyPeerAsync", CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, c_size_t, CUstream
)
cuMemcpy2D: Function = _driver("cuMemcpy2D_v2", POINTER(CUDA_MEMCPY2D))
cuMemcpy2DUnaligned: Function = _driver("cuMemcpy2DUnaligned_v2", POINTER(CUDA_MEMCPY2D))
cuMemcpy2DAsync: Function = _driver("cuMemcpy2DAsync_v2", POINTER(CUDA_MEMCPY2D), CUstream)
cuMemcpy3D: Function = _driver("cuMemcpy3D_v2", POINTER(CUDA_MEMCPY3D))
cuMemcpy3DAsync: Function = _driver("cuMemcpy3DAsync_v2", POINTER(CUDA_MEMCPY3D), CUstream)
cuMemcpy3DPeer: Function = _driver("cuMemcpy3DPeer", POINTER(CUDA_MEMCPY3D_PEER))
cuMemcpy3DPeerAsync: Function = _driver("cuMemcpy3DPeerAsync", POINTER(CUDA_MEMCPY3D_PEER), CUstream)
cuMemcpyBatchAsync: Function = _driver("cuMemcpyBatchAsync", *_BATCH, POINTER(c_size_t), CUstream, since=(12, 8))
cuMemcpyBatchAsync_v2: Function = _driver("cuMemcpyBatchAsync_v2", *_BATCH, CUstream, since=(13, 0))

# Filling.
cuMemsetD8: Function = _driver("cuMemsetD8_v2", CUdeviceptr, c_ubyte, c_size_t)
cuMemsetD16: Function = _driver("cuMemsetD16_v2", CUdeviceptr, c_ushort, c_size_t)
cuMemsetD32: Function = _driver("cuMemsetD32_v2", CUdeviceptr, c_uint, c_size_t)
cuMemsetD8Async: Function = _driver("cuMemsetD8Async", CUdeviceptr, c_ubyte, c_size_t, CUstream)
cuMemsetD16Async: Function = _driver("cuMemsetD16Async", CUdeviceptr, c_ushort, c_size_t, CUstream)
cuMemsetD32Async: Function = _driver("cuMemsetD32Async", CUdeviceptr, c_uint, c_size_t, CUstream)
cuMemsetD2D8: Function = _driver("cuMemsetD2D8_v2", CUdeviceptr, c_size_t, c_ubyte, c_size_t, c_size_t)
cuMemsetD2D16: Function = _driver("cuMemsetD2D16_v2", CUdeviceptr, c_size_t, c_ushort, c_size_t, c_size_t)
cuMemsetD2D32: Function = _driver("cuMemsetD2D32_v2", CUdeviceptr, c_size_t, c_uint, c_size_t, c_size_t)
cuMemsetD2D8Async: Function = _driver("cuMemsetD2D8Async", CUdeviceptr, c_size_t, c_ubyte, c_size_t, c_size_t, CUstream)
cuMemsetD2D16Async: Function = _driver(
    "cuMemsetD2D16Async", CUdeviceptr, c_size_t, c_ushort, c_size_t, c_size_t, CUstream
)
cuMemsetD2D32Async: Function = _driver(
    "cuMemsetD2D32Async", CUdeviceptr, c_size_t, c_uint, c_size_t, c_size_t, CUstream
)

# Modules and their functions. Options for the compiler are given by their number, their names and their values.
_JIT_OPTIONS = (c_uint, POINTER(c_int), POINTER(c_void_p))
cuModuleLoadData: Function = _driver("cuModuleLoadData", POINTER(CUmodule), c_void_p)
cuModuleLoadDataEx: Function = _driver("cuModuleLoadDataEx", POINTER(CUmodule), c_void_p, *_JIT_OPTIONS)
cuModuleLoadFatBinary: Function = _driver("cuModuleLoadFatBinary", POINTER(CUmodule), c_void_p)
cuModuleUnload: Function = _driver("cuModuleUnload", CUmodule)
cuModuleGetLoadingMode: Function = _driver("cuModuleGetLoadingMode", POINTER(c_int))
cuModuleGetFunction: Function = _driver("cuModuleGetFunction", POINTER(CUfunction), CUmodule, c_char_p)
cuModuleGetFunctionCount: Function = _driver("cuModuleGetFunctionCount", POINTER(c_uint), CUmodule, since=(12, 4))
cuModuleEnumerateFunctions: Function = _driver(
    "cuModuleEnumerateFunctions", POINTER(CUfunction), c_uint, CUmodule, since=(12, 4)
)
cuModuleGetGlobal: Function = _driver(
    "cuModuleGetGlobal_v2", POINTER(CUdeviceptr), POINTER(c_size_t), CUmodule, c_char_p
)
cuFuncGetAttribute: Function = _driver("cuFuncGetAttribute", POINTER(c_int), c_int, CUfunction)
cuFuncSetAttribute: Function = _driver("cuFuncSetAttribute", CUfunction, c_int, c_int)
cuFuncSetCacheConfig: Function = _driver("cuFuncSetCacheConfig", CUfunction, c_int)
cuFuncGetModule: Function = _driver("cuFuncGetModule", POINTER(CUmodule), CUfunction)
cuFuncGetName: Function = _driver("cuFuncGetName", POINTER(c_char_p), CUfunction, since=(12, 3))
cuFuncGetParamInfo: Function = _driver(
    "cuFuncGetParamInfo", CUfunction, c_size_t, POINTER(c_size_t), POINTER(c_size_t), since=(12, 4)
)
cuFuncGetParamCount: Function = _driver("cuFuncGetParamCount", CUfunction, POINTER(c_size_t), since=(13, 2))
cuFuncIsLoaded: Function = _driver("cuFuncIsLoaded", POINTER(c_int), CUfunction, since=(12, 4))
cuFuncLoad: Function = _driver("cuFuncLoad", CUfunction, since=(12, 4))

# Libraries, which are modules without a context, and their kernels.
cuLibraryLoadData: Function = _driver(
    "cuLibraryLoadData",
    *(POINTER(CUlibrary), c_void_p),
    *(POINTER(c_int), POINTER(c_void_p), c_uint),  # options for the compiler
    *(POINTER(c_int), POINTER(c_void_p), c_uint),  # options of the library
)
cuLibraryUnload: Function = _driver("cuLibraryUnload", CUlibrary)
cuLibraryGetKernel: Function = _driver("cuLibraryGetKernel", POINTER(CUkernel), CUlibrary, c_char_p)
cuLibraryGetKernelCount: Function = _driver("cuLibraryGetKernelCount", POINTER(c_uint), CUlibrary, since=(12, 4))
cuLibraryEnumerateKernels: Function = _driver(
    "cuLibraryEnumerateKernels", POINTER(CUkernel), c_uint, CUlibrary, since=(12, 4)
)
cuLibraryGetModule: Function = _driver("cuLibraryGetModule", POINTER(CUmodule), CUlibrary)
cuLibraryGetGlobal: Function = _driver(
    "cuLibraryGetGlobal", POINTER(CUdeviceptr), POINTER(c_size_t), CUlibrary, c_char_p
)
cuLibraryGetManaged: Function = _driver(
    "cuLibraryGetManaged", POINTER(CUdeviceptr), POINTER(c_size_t), CUlibrary, c_char_p
)
cuLibraryGetUnifiedFunction: Function = _driver("cuLibraryGetUnifiedFunction", POINTER(c_void_p), CUlibrary, c_char_p)
cuKernelGetFunction: Function = _driver("cuKernelGetFunction", POINTER(CUfunction), CUkernel)
cuKernelGetLibrary: Function = _driver("cuKernelGetLibrary", POINTER(CUlibrary), CUkernel, since=(12, 5))
cuKernelGetName: Function = _driver("cuKernelGetName", POINTER(c_char_p), CUkernel, since=(12, 3))
cuKernelGetAttribute: Function = _driver("cuKernelGetAttribute", POINTER(c_int), c_int, CUkernel, CUdevice)
cuKernelSetAttribute: Function = _driver("cuKernelSetAttribute", c_int, c_int, CUkernel, CUdevice)
cuKernelSetCacheConfig: Function = _driver("cuKernelSetCacheConfig", CUkernel, c_int, CUdevice)
cuKernelGetParamInfo: Function = _driver(
    "cuKernelGetParamInfo", CUkernel, c_size_t, POINTER(c_size_t), POINTER(c_size_t), since=(12, 4)
)
cuKernelGetParamCount: Function = _driver("cuKernelGetParamCount", CUkernel, POINTER(c_size_t), since=(13, 2))

# The linker.
cuLinkCreate: Function = _driver("cuLinkCreate_v2", c_uint, POINTER(c_int), POINTER(c_void_p), POINTER(CUlinkState))
cuLinkAddData: Function = _driver("cuLinkAddData_v2", CUlinkState, c_int, c_void_p, c_size_t, c_char_p, *_JIT_OPTIONS)
cuLinkAddFile: Function = _driver("cuLinkAddFile_v2", CUlinkState, c_int, c_char_p, *_JIT_OPTIONS)
cuLinkComplete: Function = _driver("cuLinkComplete", CUlinkState, POINTER(c_void_p), POINTER(c_size_t))
cuLinkDestroy: Function = _driver("cuLinkDestroy", CUlinkState)

# Launching: a shape is the grid, the block and the dynamic shared memory. The address arguments (config, kernelParams,
# extra) take plain integers, see the top of this file.
_SHAPE = (c_uint,) * 7
cuLaunchKernel: Function = _driver("cuLaunchKernel", CUfunction, *_SHAPE, CUstream, c_void_p, c_void_p)
cuLaunchKernelEx: Function = _driver("cuLaunchKernelEx", c_void_p, CUfunction, c_void_p, c_void_p)
cuLaunchCooperativeKernel: Function = _driver("cuLaunchCooperativeKernel", CUfunction, *_SHAPE, CUstream, c_void_p)

# Occupancy. The potential block size has two results, for the grid and for the block, and takes their limits.
_POTENTIAL = (POINTER(c_int), POINTER(c_int), CUfunction, CUoccupancyB2DSize, c_size_t, c_int)
cuOccupancyMaxActiveBlocksPerMultiprocessor: Function = _driver(
    "cuOccupancyMaxActiveBlocksPerMultiprocessor", POINTER(c_int), CUfunction, c_int, c_size_t
)
cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags: Function = _driver(
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", POINTER(c_int), CUfunction, c_int, c_size_t, c_uint
)
cuOccupancyMaxPotentialBlockSize: Function = _driver("cuOccupancyMaxPotentialBlockSize", *_POTENTIAL)
cuOccupancyMaxPotentialBlockSizeWithFlags: Function = _driver(
    "cuOccupancyMaxPotentialBlockSizeWithFlags", *_POTENTIAL, c_uint
)
cuOccupancyAvailableDynamicSMemPerBlock: Function = _driver(
    "cuOccupancyAvailableDynamicSMemPerBlock", POINTER(c_size_t), CUfunction, c_int, c_int
)
cuOccupancyMaxPotentialClusterSize: Function = _driver(
    "cuOccupancyMaxPotentialClusterSize", POINTER(c_int), CUfunction, POINTER(CUlaunchConfig)
)
cuOccupancyMaxActiveClusters: Function = _driver(
    "cuOccupancyMaxActiveClusters", POINTER(c_int), CUfunction, POINTER(CUlaunchConfig)
)

# Capture. Nodes and edges are arrays, here and below; an edge has a kind.
_NODES = POINTER(CUgraphNode)
_EDGES = POINTER(CUgraphEdgeData)
_CAPTURE = (CUstream, POINTER(c_int), POINTER(c_uint64), POINTER(CUgraph), POINTER(_NODES))
cuStreamBeginCapture: Function = _driver("cuStreamBeginCapture_v2", CUstream, c_int)
cuStreamBeginCaptureToGraph: Function = _driver(
    "cuStreamBeginCaptureToGraph", CUstream, CUgraph, _NODES, _EDGES, c_size_t, c_int, since=(12, 3)
)
cuStreamEndCapture: Function = _driver("cuStreamEndCapture", CUstream, POINTER(CUgraph))
cuStreamIsCapturing: Function = _driver("cuStreamIsCapturing", CUstream, POINTER(c_int))
cuStreamGetCaptureInfo_v2: Function = _driver("cuStreamGetCaptureInfo_v2", *_CAPTURE, POINTER(c_size_t))
cuStreamGetCaptureInfo_v3: Function = _driver(
    "cuStreamGetCaptureInfo_v3", *_CAPTURE, POINTER(_EDGES), POINTER(c_size_t), since=(12, 3)
)
cuStreamUpdateCaptureDependencies: Function = _driver(
    "cuStreamUpdateCaptureDependencies", CUstream, _NODES, c_size_t, c_uint
)
cuStreamUpdateCaptureDependencies_v2: Function = _driver(
    "cuStreamUpdateCaptureDependencies_v2", CUstream, _NODES, _EDGES, c_size_t, c_uint, since=(12, 3)
)
cuThreadExchangeStreamCaptureMode: Function = _driver("cuThreadExchangeStreamCaptureMode", POINTER(c_int))

# Graphs. Without edges (_v2), all of them are of the default kind.
cuGraphCreate: Function = _driver("cuGraphCreate", POINTER(CUgraph), c_uint)
cuGraphClone: Function = _driver("cuGraphClone", POINTER(CUgraph), CUgraph)
cuGraphDestroy: Function = _driver("cuGraphDestroy", CUgraph)
cuGraphGetNodes: Function = _driver("cuGraphGetNodes", CUgraph, _NODES, POINTER(c_size_t))
cuGraphGetRootNodes: Function = _driver("cuGraphGetRootNodes", CUgraph, _NODES, POINTER(c_size_t))
cuGraphGetEdges: Function = _driver("cuGraphGetEdges", CUgraph, _NODES, _NODES, POINTER(c_size_t))
cuGraphGetEdges_v2: Function = _driver(
    "cuGraphGetEdges_v2", CUgraph, _NODES, _NODES, _EDGES, POINTER(c_size_t), since=(12, 3)
)
cuGraphAddDependencies: Function = _driver("cuGraphAddDependencies", CUgraph, _NODES, _NODES, c_size_t)
cuGraphAddDependencies_v2: Function = _driver(
    "cuGraphAddDependencies_v2", CUgraph, _NODES, _NODES, _EDGES, c_size_t, since=(12, 3)
)
cuGraphRemoveDependencies: Function = _driver("cuGraphRemoveDependencies", CUgraph, _NODES, _NODES, c_size_t)
cuGraphRemoveDependencies_v2: Function = _driver(
    "cuGraphRemoveDependencies_v2", CUgraph, _NODES, _NODES, _EDGES, c_size_t, since=(12, 3)
)
cuGraphDebugDotPrint: Function = _driver("cuGraphDebugDotPrint", CUgraph, c_char_p, c_uint)

# Nodes: adding one takes its address, the graph, the nodes before it and their number.
_ADD_NODE = (_NODES, CUgraph, _NODES, c_size_t)
cuGraphAddKernelNode: Function = _driver("cuGraphAddKernelNode_v2", *_ADD_NODE, POINTER(CUDA_KERNEL_NODE_PARAMS))
cuGraphAddMemcpyNode: Function = _driver("cuGraphAddMemcpyNode", *_ADD_NODE, POINTER(CUDA_MEMCPY3D), CUcontext)
cuGraphAddMemsetNode: Function = _driver(
    "cuGraphAddMemsetNode", *_ADD_NODE, POINTER(CUDA_MEMSET_NODE_PARAMS), CUcontext
)
cuGraphAddHostNode: Function = _driver("cuGraphAddHostNode", *_ADD_NODE, POINTER(CUDA_HOST_NODE_PARAMS))
cuGraphAddChildGraphNode: Function = _driver("cuGraphAddChildGraphNode", *_ADD_NODE, CUgraph)
cuGraphAddEmptyNode: Function = _driver("cuGraphAddEmptyNode", *_ADD_NODE)
cuGraphAddEventRecordNode: Function = _driver("cuGraphAddEventRecordNode", *_ADD_NODE, CUevent)
cuGraphAddEventWaitNode: Function = _driver("cuGraphAddEventWaitNode", *_ADD_NODE, CUevent)
cuGraphAddBatchMemOpNode: Function = _driver(
    "cuGraphAddBatchMemOpNode", *_ADD_NODE, POINTER(CUDA_BATCH_MEM_OP_NODE_PARAMS)
)
cuGraphAddMemAllocNode: Function = _driver("cuGraphAddMemAllocNode", *_ADD_NODE, POINTER(CUDA_MEM_ALLOC_NODE_PARAMS))
cuGraphAddMemFreeNode: Function = _driver("cuGraphAddMemFreeNode", *_ADD_NODE, CUdeviceptr)

# Nodes: their kinds, and their place in the graph.
cuGraphDestroyNode: Function = _driver("cuGraphDestroyNode", CUgraphNode)
cuGraphNodeGetType: Function = _driver("cuGraphNodeGetType", CUgraphNode, POINTER(c_int))
cuGraphNodeFindInClone: Function = _driver("cuGraphNodeFindInClone", _NODES, CUgraphNode, CUgraph)
cuGraphNodeGetDependencies: Function = _driver("cuGraphNodeGetDependencies", CUgraphNode, _NODES, POINTER(c_size_t))
cuGraphNodeGetDependencies_v2: Function = _driver(
    "cuGraphNodeGetDependencies_v2", CUgraphNode, _NODES, _EDGES, POINTER(c_size_t), since=(12, 3)
)
cuGraphNodeGetDependentNodes: Function = _driver("cuGraphNodeGetDependentNodes", CUgraphNode, _NODES, POINTER(c_size_t))
cuGraphNodeGetDependentNodes_v2: Function = _driver(
    "cuGraphNodeGetDependentNodes_v2", CUgraphNode, _NODES, _EDGES, POINTER(c_size_t), since=(12, 3)
)

# Nodes: their parameters.
cuGraphKernelNodeGetParams: Function = _driver(
    "cuGraphKernelNodeGetParams_v2", CUgraphNode, POINTER(CUDA_KERNEL_NODE_PARAMS)
)
cuGraphKernelNodeSetParams: Function = _driver(
    "cuGraphKernelNodeSetParams_v2", CUgraphNode, POINTER(CUDA_KERNEL_NODE_PARAMS)
)
cuGraphKernelNodeGetAttribute: Function = _driver(
    "cuGraphKernelNodeGetAttribute", CUgraphNode, c_int, POINTER(CUlaunchAttributeValue)
)
cuGraphKernelNodeSetAttribute: Function = _driver(
    "cuGraphKernelNodeSetAttribute", CUgraphNode, c_int, POINTER(CUlaunchAttributeValue)
)
cuGraphKernelNodeCopyAttributes: Function = _driver("cuGraphKernelNodeCopyAttributes", CUgraphNode, CUgraphNode)
cuGraphMemcpyNodeGetParams: Function = _driver("cuGraphMemcpyNodeGetParams", CUgraphNode, POINTER(CUDA_MEMCPY3D))
cuGraphMemcpyNodeSetParams: Function = _driver("cuGraphMemcpyNodeSetParams", CUgraphNode, POINTER(CUDA_MEMCPY3D))
cuGraphMemsetNodeGetParams: Function = _driver(
    "cuGraphMemsetNodeGetParams", CUgraphNode, POINTER(CUDA_MEMSET_NODE_PARAMS)
)
cuGraphMemsetNodeSetParams: Function = _driver(
    "cuGraphMemsetNodeSetParams", CUgraphNode, POINTER(CUDA_MEMSET_NODE_PARAMS)
)
cuGraphHostNodeGetParams: Function = _driver("cuGraphHostNodeGetParams", CUgraphNode, POINTER(CUDA_HOST_NODE_PARAMS))
cuGraphHostNodeSetParams: Function = _driver("cuGraphHostNodeSetParams", CUgraphNode, POINTER(CUDA_HOST_NODE_PARAMS))
cuGraphChildGraphNodeGetGraph: Function = _driver("cuGraphChildGraphNodeGetGraph", CUgraphNode, POINTER(CUgraph))
cuGraphEventRecordNodeGetEvent: Function = _driver("cuGraphEventRecordNodeGetEvent", CUgraphNode, POINTER(CUevent))
cuGraphEventRecordNodeSetEvent: Function = _driver("cuGraphEventRecordNodeSetEvent", CUgraphNode, CUevent)
cuGraphEventWaitNodeGetEvent: Function = _driver("cuGraphEventWaitNodeGetEvent", CUgraphNode, POINTER(CUevent))
cuGraphEventWaitNodeSetEvent: Function = _driver("cuGraphEventWaitNodeSetEvent", CUgraphNode, CUevent)
cuGraphBatchMemOpNodeGetParams: Function = _driver(
    "cuGraphBatchMemOpNodeGetParams", CUgraphNode, POINTER(CUDA_BATCH_MEM_OP_NODE_PARAMS)
)
cuGraphBatchMemOpNodeSetParams: Function = _driver(
    "cuGraphBatchMemOpNodeSetParams", CUgraphNode, POINTER(CUDA_BATCH_MEM_OP_NODE_PARAMS)
)
cuGraphMemAllocNodeGetParams: Function = _driver(
    "cuGraphMemAllocNodeGetParams", CUgraphNode, POINTER(CUDA_MEM_ALLOC_NODE_PARAMS)
)
cuGraphMemFreeNodeGetParams: Function = _driver("cuGraphMemFreeNodeGetParams", CUgraphNode, POINTER(CUdeviceptr))

# Instantiated graphs.
cuGraphInstantiate: Function = _driver("cuGraphInstantiateWithFlags", POINTER(CUgraphExec), CUgraph, c_ulonglong)
cuGraphInstantiateWithParams: Function = _driver(
    "cuGraphInstantiateWithParams", POINTER(CUgraphExec), CUgraph, POINTER(CUDA_GRAPH_INSTANTIATE_PARAMS)
)
cuGraphExecDestroy: Function = _driver("cuGraphExecDestroy", CUgraphExec)
cuGraphExecGetFlags: Function = _driver("cuGraphExecGetFlags", CUgraphExec, POINTER(c_uint64))
cuGraphUpload: Function = _driver("cuGraphUpload", CUgraphExec, CUstream)
cuGraphLaunch: Function = _driver("cuGraphLaunch", CUgraphExec, CUstream)
cuGraphExecUpdate: Function = _driver(
    "cuGraphExecUpdate_v2", CUgraphExec, CUgraph, POINTER(CUgraphExecUpdateResultInfo)
)
cuGraphNodeGetEnabled: Function = _driver("cuGraphNodeGetEnabled", CUgraphExec, CUgraphNode, POINTER(c_uint))
cuGraphNodeSetEnabled: Function = _driver("cuGraphNodeSetEnabled", CUgraphExec, CUgraphNode, c_uint)

# Instantiated graphs: the parameters of their nodes.
cuGraphExecKernelNodeSetParams: Function = _driver(
    "cuGraphExecKernelNodeSetParams_v2", CUgraphExec, CUgraphNode, POINTER(CUDA_KERNEL_NODE_PARAMS)
)
cuGraphExecMemcpyNodeSetParams: Function = _driver(
    "cuGraphExecMemcpyNodeSetParams", CUgraphExec, CUgraphNode, POINTER(CUDA_MEMCPY3D), CUcontext
)
cuGraphExecMemsetNodeSetParams: Function = _driver(
    "cuGraphExecMemsetNodeSetParams", CUgraphExec, CUgraphNode, POINTER(CUDA_MEMSET_NODE_PARAMS), CUcontext
)
cuGraphExecHostNodeSetParams: Function = _driver(
    "cuGraphExecHostNodeSetParams", CUgraphExec, CUgraphNode, POINTER(CUDA_HOST_NODE_PARAMS)
)
cuGraphExecChildGraphNodeSetParams: Function = _driver(
    "cuGraphExecChildGraphNodeSetParams", CUgraphExec, CUgraphNode, CUgraph
)
cuGraphExecEventRecordNodeSetEvent: Function = _driver(
    "cuGraphExecEventRecordNodeSetEvent", CUgraphExec, CUgraphNode, CUevent
)
cuGraphExecEventWaitNodeSetEvent: Function = _driver(
    "cuGraphExecEventWaitNodeSetEvent", CUgraphExec, CUgraphNode, CUevent
)
cuGraphExecBatchMemOpNodeSetParams: Function = _driver(
    "cuGraphExecBatchMemOpNodeSetParams", CUgraphExec, CUgraphNode, POINTER(CUDA_BATCH_MEM_OP_NODE_PARAMS)
)

# The memory that graphs allocate.
cuDeviceGetGraphMemAttribute: Function = _driver("cuDeviceGetGraphMemAttribute", CUdevice, c_int, c_void_p)
cuDeviceSetGraphMemAttribute: Function = _driver("cuDeviceSetGraphMemAttribute", CUdevice, c_int, c_void_p)
cuDeviceGraphMemTrim: Function = _driver("cuDeviceGraphMemTrim", CUdevice)

# Diagnosis: core dumps of the GPU, the profiler's range, the driver's log.
cuCoredumpGetAttribute: Function = _driver("cuCoredumpGetAttribute", c_int, c_void_p, POINTER(c_size_t), since=(12, 1))
cuCoredumpSetAttribute: Function = _driver("cuCoredumpSetAttribute", c_int, c_void_p, POINTER(c_size_t), since=(12, 1))
cuCoredumpGetAttributeGlobal: Function = _driver(
    "cuCoredumpGetAttributeGlobal", c_int, c_void_p, POINTER(c_size_t), since=(12, 1)
)
cuCoredumpSetAttributeGlobal: Function = _driver(
    "cuCoredumpSetAttributeGlobal", c_int, c_void_p, POINTER(c_size_t), since=(12, 1)
)
cuProfilerStart: Function = _driver("cuProfilerStart")
cuProfilerStop: Function = _driver("cuProfilerStop")
cuLogsCurrent: Function = _driver("cuLogsCurrent", POINTER(CUlogIterator), c_uint, since=(12, 9))
cuLogsDumpToFile: Function = _driver("cuLogsDumpToFile", POINTER(CUlogIterator), c_char_p, c_uint, since=(12, 9))
cuLogsDumpToMemory: Function = _driver(
    "cuLogsDumpToMemory", POINTER(CUlogIterator), c_void_p, POINTER(c_size_t), c_uint, since=(12, 9)
)
