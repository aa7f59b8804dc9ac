"""The types of the driver API: handles, callbacks and structures, with the names and layouts of ``cuda.h``.

Layouts are those of 13.5. In 12.x a structure of the same name has the same size, and its fields are the same or fewer.
An enumeration is an ``int``. A field whose type the header declares in place is declared in place here too.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_char,
    c_float,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint32,
    c_uint64,
    c_ushort,
    c_void_p,
)
from typing import Final

from ._library import nested

# Numbers and handles -------------------------------------------------------------------------------------------------

CUdevice = c_int
CUdeviceptr = c_uint64
CUmemGenericAllocationHandle = c_uint64
CUlogIterator = c_uint

CUcontext = c_void_p
CUstream = c_void_p
CUevent = c_void_p
CUmodule = c_void_p
CUfunction = c_void_p
CUlibrary = c_void_p
CUkernel = c_void_p
CUlinkState = c_void_p
CUarray = c_void_p
CUmemoryPool = c_void_p
CUgraph = c_void_p
CUgraphNode = c_void_p
CUgraphExec = c_void_p
CUgraphDeviceNode = c_void_p

# Callbacks. The caller keeps the object alive for as long as the driver may call it.
CUhostFn: Final = CFUNCTYPE(None, c_void_p)
CUoccupancyB2DSize: Final = CFUNCTYPE(c_size_t, c_int)

# Devices and contexts ------------------------------------------------------------------------------------------------


class CUuuid(Structure):
    """The identity of a device: 16 bytes."""

    _fields_ = [("bytes", c_ubyte * 16)]


class CUexecAffinitySmCount(Structure):
    """A number of multiprocessors."""

    _fields_ = [("val", c_uint)]


class CUexecAffinityParam(Structure):
    """A limit of a context; ``type`` is a ``CUexecAffinityType``."""

    _fields_ = [("type", c_int), ("param", nested(Union, smCount=CUexecAffinitySmCount))]


class CUctxCigParam(Structure):
    """The data that a context shares with a graphics library; ``sharedDataType`` is a ``CUcigDataType``."""

    _fields_ = [("sharedDataType", c_int), ("sharedData", c_void_p)]


class CUctxCreateParams(Structure):
    """The parameters of ``cuCtxCreate_v4``; one of the two pointers is null."""

    _fields_ = [
        ("execAffinityParams", POINTER(CUexecAffinityParam)),
        ("numExecAffinityParams", c_int),
        ("cigParams", POINTER(CUctxCigParam)),
    ]


# Memory --------------------------------------------------------------------------------------------------------------


class CUmemLocation(Structure):
    """A location of memory; ``type`` is a ``CUmemLocationType``."""

    _fields_ = [("type", c_int), ("id", c_int)]

    # Since 13.4 ``id`` is a union with another view of it, a device and a part of that; ctypes passes no structure with
    # a union in it by value.
    _left_out_ = ("localized.deviceId", "localized.localityDomainId")


class CUmemAllocationProp(Structure):
    """The kind and location of the physical memory that ``cuMemCreate`` makes."""

    _fields_ = [
        ("type", c_int),
        ("requestedHandleTypes", c_int),
        ("location", CUmemLocation),
        ("win32HandleMetaData", c_void_p),
        (
            "allocFlags",
            nested(
                Structure,
                compressionType=c_ubyte,
                gpuDirectRDMACapable=c_ubyte,
                usage=c_ushort,
                reserved=c_ubyte * 4,
            ),
        ),
    ]


class CUmemAccessDesc(Structure):
    """The access of a location to memory; ``flags`` is a ``CUmemAccess_flags``."""

    _fields_ = [("location", CUmemLocation), ("flags", c_int)]


class CUmemPoolProps(Structure):
    """The kind of memory of a pool."""

    _fields_ = [
        ("allocType", c_int),
        ("handleTypes", c_int),
        ("location", CUmemLocation),
        ("win32SecurityAttributes", c_void_p),
        ("maxSize", c_size_t),
        ("usage", c_ushort),
        ("gpuDirectRDMACapable", c_ubyte),  # since 13.4; reserved before
        ("reserved", c_ubyte * 53),
    ]


class CUmemPoolPtrExportData(Structure):
    """The data with which another process uses an allocation of an exported pool."""

    _fields_ = [("reserved", c_ubyte * 64)]


class CUipcEventHandle(Structure):
    """The data with which another process opens an event."""

    _fields_ = [("reserved", c_char * 64)]


class CUipcMemHandle(Structure):
    """The data with which another process opens an allocation of ``cuMemAlloc``."""

    _fields_ = [("reserved", c_char * 64)]


# Copies --------------------------------------------------------------------------------------------------------------


class CUDA_MEMCPY2D(Structure):
    """A copy of rows. The memory types are ``CUmemorytype``; they select one of the three addresses."""

    _fields_ = [
        ("srcXInBytes", c_size_t),
        ("srcY", c_size_t),
        ("srcMemoryType", c_int),
        ("srcHost", c_void_p),
        ("srcDevice", CUdeviceptr),
        ("srcArray", CUarray),
        ("srcPitch", c_size_t),
        ("dstXInBytes", c_size_t),
        ("dstY", c_size_t),
        ("dstMemoryType", c_int),
        ("dstHost", c_void_p),
        ("dstDevice", CUdeviceptr),
        ("dstArray", CUarray),
        ("dstPitch", c_size_t),
        ("WidthInBytes", c_size_t),
        ("Height", c_size_t),
    ]


class CUDA_MEMCPY3D(Structure):
    """A copy of a box. The memory types are ``CUmemorytype``; they select one of the three addresses."""

    _fields_ = [
        ("srcXInBytes", c_size_t),
        ("srcY", c_size_t),
        ("srcZ", c_size_t),
        ("srcLOD", c_size_t),
        ("srcMemoryType", c_int),
        ("srcHost", c_void_p),
        ("srcDevice", CUdeviceptr),
        ("srcArray", CUarray),
        ("reserved0", c_void_p),
        ("srcPitch", c_size_t),
        ("srcHeight", c_size_t),
        ("dstXInBytes", c_size_t),
        ("dstY", c_size_t),
        ("dstZ", c_size_t),
        ("dstLOD", c_size_t),
        ("dstMemoryType", c_int),
        ("dstHost", c_void_p),
        ("dstDevice", CUdeviceptr),
        ("dstArray", CUarray),
        ("reserved1", c_void_p),
        ("dstPitch", c_size_t),
        ("dstHeight", c_size_t),
        ("WidthInBytes", c_size_t),
        ("Height", c_size_t),
        ("Depth", c_size_t),
    ]


_CONTEXTS = {"reserved0": ("srcContext", CUcontext), "reserved1": ("dstContext", CUcontext)}


class CUDA_MEMCPY3D_PEER(Structure):
    """A ``CUDA_MEMCPY3D`` between two contexts, which are in its reserved fields."""

    _fields_ = [_CONTEXTS.get(field[0], field) for field in CUDA_MEMCPY3D._fields_]


class CUmemcpyAttributes(Structure):
    """The attributes of copies in a batch; ``srcAccessOrder`` is a ``CUmemcpySrcAccessOrder``."""

    _fields_ = [
        ("srcAccessOrder", c_int),
        ("srcLocHint", CUmemLocation),
        ("dstLocHint", CUmemLocation),
        ("flags", c_uint),
    ]


# Operations on words in memory ---------------------------------------------------------------------------------------

_wait_or_write = nested(
    Structure,
    operation=c_int,
    address=CUdeviceptr,
    _=nested(Union, value=c_uint32, value64=c_uint64),
    flags=c_uint,
    alias=CUdeviceptr,
)
_flush_or_barrier = nested(Structure, operation=c_int, flags=c_uint)
_reduction = nested(
    Structure,
    operation=c_int,
    flags=c_uint,
    reductionOp=c_int,
    dataType=c_int,
    address=CUdeviceptr,
    value=c_uint64,
    alias=CUdeviceptr,
)


class CUstreamBatchMemOpParams(Union):
    """One operation of ``cuStreamBatchMemOp``; its ``CUstreamBatchMemOpType`` selects one of the members."""

    _fields_ = [
        ("operation", c_int),
        ("waitValue", _wait_or_write),
        ("writeValue", _wait_or_write),
        ("flushRemoteWrites", _flush_or_barrier),
        ("memoryBarrier", _flush_or_barrier),
        ("atomicReduction", _reduction),
        ("pad", c_uint64 * 6),
    ]


# Launches ------------------------------------------------------------------------------------------------------------


class CUaccessPolicyWindow(Structure):
    """The treatment of a range of memory by L2; the two properties are ``CUaccessProperty``."""

    _fields_ = [
        ("base_ptr", c_void_p),
        ("num_bytes", c_size_t),
        ("hitRatio", c_float),
        ("hitProp", c_int),
        ("missProp", c_int),
    ]


class CUlaunchMemSyncDomainMap(Structure):
    """The physical domain of each ``CUlaunchMemSyncDomain``."""

    _fields_ = [("default_", c_ubyte), ("remote", c_ubyte)]


_dim3 = nested(Structure, x=c_uint, y=c_uint, z=c_uint)


class CUlaunchAttributeValue(Union):
    """The value of an attribute of a launch, a kernel node or a stream; always 64 bytes."""

    _fields_ = [
        ("pad", c_char * 64),
        ("accessPolicyWindow", CUaccessPolicyWindow),
        ("cooperative", c_int),
        ("syncPolicy", c_int),
        ("clusterDim", _dim3),
        ("clusterSchedulingPolicyPreference", c_int),
        ("programmaticStreamSerializationAllowed", c_int),
        ("programmaticEvent", nested(Structure, event=CUevent, flags=c_int, triggerAtBlockStart=c_int)),
        ("launchCompletionEvent", nested(Structure, event=CUevent, flags=c_int)),
        ("priority", c_int),
        ("memSyncDomainMap", CUlaunchMemSyncDomainMap),
        ("memSyncDomain", c_int),
        ("preferredClusterDim", _dim3),
        ("deviceUpdatableKernelNode", nested(Structure, deviceUpdatable=c_int, devNode=CUgraphDeviceNode)),
        ("sharedMemCarveout", c_uint),
        ("nvlinkUtilCentricScheduling", c_uint),
        ("portableClusterSizeMode", c_int),
        ("sharedMemoryMode", c_int),
    ]


class CUlaunchAttribute(Structure):
    """An attribute of a launch; ``id`` is a ``CUlaunchAttributeID``."""

    _fields_ = [("id", c_int), ("pad", c_char * 4), ("value", CUlaunchAttributeValue)]


class CUlaunchConfig(Structure):
    """A launch without its kernel and arguments."""

    _fields_ = [
        ("gridDimX", c_uint),
        ("gridDimY", c_uint),
        ("gridDimZ", c_uint),
        ("blockDimX", c_uint),
        ("blockDimY", c_uint),
        ("blockDimZ", c_uint),
        ("sharedMemBytes", c_uint),
        ("hStream", CUstream),
        ("attrs", POINTER(CUlaunchAttribute)),
        ("numAttrs", c_uint),
    ]


# Graphs --------------------------------------------------------------------------------------------------------------


class CUgraphEdgeData(Structure):
    """An edge; ``type`` is a ``CUgraphDependencyType``, the ports are ``CU_GRAPH_KERNEL_NODE_PORT_*``."""

    _fields_ = [("from_port", c_ubyte), ("to_port", c_ubyte), ("type", c_ubyte), ("reserved", c_ubyte * 5)]


class CUDA_KERNEL_NODE_PARAMS(Structure):
    """A kernel node; either ``func`` or ``kern`` is the kernel, and ``ctx`` is for the latter."""

    _fields_ = [
        ("func", CUfunction),
        ("gridDimX", c_uint),
        ("gridDimY", c_uint),
        ("gridDimZ", c_uint),
        ("blockDimX", c_uint),
        ("blockDimY", c_uint),
        ("blockDimZ", c_uint),
        ("sharedMemBytes", c_uint),
        ("kernelParams", c_void_p),
        ("extra", c_void_p),
        ("kern", CUkernel),
        ("ctx", CUcontext),
    ]


class CUDA_MEMSET_NODE_PARAMS(Structure):
    """A memset node; ``width`` counts elements, ``pitch`` bytes."""

    _fields_ = [
        ("dst", CUdeviceptr),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("elementSize", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


class CUDA_HOST_NODE_PARAMS(Structure):
    """A node that calls a function of the host."""

    _fields_ = [("fn", CUhostFn), ("userData", c_void_p)]


class CUDA_BATCH_MEM_OP_NODE_PARAMS(Structure):
    """A node with the operations of ``cuStreamBatchMemOp``."""

    _fields_ = [
        ("ctx", CUcontext),
        ("count", c_uint),
        ("paramArray", POINTER(CUstreamBatchMemOpParams)),
        ("flags", c_uint),
    ]


class CUDA_MEM_ALLOC_NODE_PARAMS(Structure):
    """A node that allocates; ``dptr`` is filled in when it is added."""

    _fields_ = [
        ("poolProps", CUmemPoolProps),
        ("accessDescs", POINTER(CUmemAccessDesc)),
        ("accessDescCount", c_size_t),
        ("bytesize", c_size_t),
        ("dptr", CUdeviceptr),
    ]


class CUDA_GRAPH_INSTANTIATE_PARAMS(Structure):
    """The parameters of ``cuGraphInstantiateWithParams``; ``result_out`` is a ``CUgraphInstantiateResult``."""

    _fields_ = [
        ("flags", c_uint64),
        ("hUploadStream", CUstream),
        ("hErrNode_out", CUgraphNode),
        ("result_out", c_int),
    ]


class CUgraphExecUpdateResultInfo(Structure):
    """The reason why a graph could not be updated; ``result`` is a ``CUgraphExecUpdateResult``."""

    _fields_ = [("result", c_int), ("errorNode", CUgraphNode), ("errorFromNode", CUgraphNode)]
