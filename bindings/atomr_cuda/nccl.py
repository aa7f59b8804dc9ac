"""The collectives of several GPUs (NCCL) as a ctypes table.

Names and numbers are those of ``nccl.h`` 2.32. The oldest version is 2.21; what came later says so (``since``), and is
a ``SymbolMissing`` in an older library. What is left out: memory that NCCL allocates, registers or gives windows on,
the functions for one process with several GPUs, one-sided signals, the collectives with a configuration of their own,
what grows or suspends a communicator, and the library's parameters.

A communicator is one rank's part of a clique of processes. All ranks call the same collectives in the same order, each
on a stream of its own device; a call enqueues, and returns. In a group, between ``ncclGroupStart`` and
``ncclGroupEnd`` of one thread, nothing is enqueued before the end.

This file declares, and says which layout of the configuration a version has. No library is loaded before the first
call.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import Final

from ._library import Function, Library, ValueFunction

ncclComm_t = c_void_p
cudaStream_t = c_void_p  # a CUstream of the driver

NCCL_UNIQUE_ID_BYTES = 128
NCCL_SPLIT_NOCOLOR = -1
NCCL_CONFIG_UNDEF_INT = -(1 << 31)
NCCL_SHRINK_DEFAULT = 0
NCCL_SHRINK_ABORT = 1
NCCL_REVOKE_DEFAULT = 0
NCCL_API_MAGIC = 0xCAFEBEEF


class ncclResult_t(IntEnum):
    """The status that an NCCL function returns; 0 is success."""

    ncclSuccess = 0
    ncclUnhandledCudaError = 1
    ncclSystemError = 2
    ncclInternalError = 3
    ncclInvalidArgument = 4
    ncclInvalidUsage = 5
    ncclRemoteError = 6
    ncclInProgress = 7
    ncclTimeout = 8


class ncclDataType_t(IntEnum):
    """The types of elements."""

    ncclInt8 = 0
    ncclChar = 0
    ncclUint8 = 1
    ncclInt32 = 2
    ncclInt = 2
    ncclUint32 = 3
    ncclInt64 = 4
    ncclUint64 = 5
    ncclFloat16 = 6
    ncclHalf = 6
    ncclFloat32 = 7
    ncclFloat = 7
    ncclFloat64 = 8
    ncclDouble = 8
    ncclBfloat16 = 9
    ncclFloat8e4m3 = 10
    ncclFloat8e5m2 = 11


class ncclRedOp_t(IntEnum):
    """The operations of reductions. One that ``ncclRedOpCreatePreMulSum`` makes has a number from 5 on."""

    ncclSum = 0
    ncclProd = 1
    ncclMax = 2
    ncclMin = 3
    ncclAvg = 4
    ncclNumOps = 5
    ncclMaxRedOp = 0x7FFFFFFF


class ncclScalarResidence_t(IntEnum):
    """Where the factor of an operation lies, and so when it is read: with each collective, or when it is given."""

    ncclScalarDevice = 0
    ncclScalarHostImmediate = 1


class ncclCommMemStat_t(IntEnum):
    """What ``ncclCommMemStats`` can be asked, in bytes of GPU memory; ``Suspended`` is 0 or 1."""

    ncclStatGpuMemSuspend = 0
    ncclStatGpuMemSuspended = 1
    ncclStatGpuMemPersist = 2
    ncclStatGpuMemTotal = 3


class ncclUniqueId(Structure):
    """What the ranks of a new communicator have in common; it is passed by value."""

    _fields_ = [("internal", c_ubyte * NCCL_UNIQUE_ID_BYTES)]


class ncclConfig_t(Structure):
    """The settings of a communicator, in the layout of 2.32; see ``new_config``."""

    _grows_ = True
    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("blocking", c_int),
        ("cgaClusterSize", c_int),
        ("minCTAs", c_int),
        ("maxCTAs", c_int),
        ("netName", c_char_p),
        ("splitShare", c_int),
        ("trafficClass", c_int),
        ("commName", c_char_p),
        ("collnetEnable", c_int),
        ("CTAPolicy", c_int),
        ("shrinkShare", c_int),
        ("nvlsCTAs", c_int),
        ("nChannelsPerNetPeer", c_int),
        ("nvlinkCentricSched", c_int),
        ("graphUsageMode", c_int),
        ("numRmaCtx", c_int),
        ("maxP2pPeers", c_int),
        ("graphStreamOrdering", c_int),
        ("launchOrderImplicit", c_int),
        ("numRmaSig", c_int),
        ("rmaEagerInit", c_int),
        ("hostCftMode", c_int),
        ("nvlsHostMode", c_int),
    ]


# A newer version appends members, and a library takes the layout of every older one: a program says with which header
# it was compiled. These are the headers that the tests hold; each is the code of its version, and its last member.
_LAYOUTS: Final = ((22105, "splitShare"), (22809, "nvlinkCentricSched"), (23203, "nvlsHostMode"))


def new_config(version: int) -> ncclConfig_t:
    """Return a configuration in which nothing is set, for a library whose ``ncclGetVersion`` says `version`.

    Its layout is the newest that is known here and not newer than the library; members behind it mean nothing.

    Raises ``ValueError`` for a version before 2.21.5.
    """
    layouts = [layout for layout in _LAYOUTS if layout[0] <= version]
    if not layouts:
        raise ValueError(f"NCCL {version_text(version)} is older than {version_text(_LAYOUTS[0][0])}, the oldest one")
    known, last = layouts[-1]
    end = getattr(ncclConfig_t, last).offset + getattr(ncclConfig_t, last).size
    alignment = ctypes.alignment(ncclConfig_t)
    config = ncclConfig_t(-(-end // alignment) * alignment, NCCL_API_MAGIC, known)
    for name, *kind in ncclConfig_t._fields_:
        if kind == [c_int]:
            setattr(config, name, NCCL_CONFIG_UNDEF_INT)
    return config


def version_text(version: int) -> str:
    """The words for what ``ncclGetVersion`` gives: 22809 is 2.28.9."""
    return f"{version // 10000}.{version % 10000 // 100}.{version % 100}"


_TEXTS = {
    ncclResult_t.ncclSuccess: "no error",
    ncclResult_t.ncclUnhandledCudaError: "a call of CUDA failed",
    ncclResult_t.ncclSystemError: "a call of the operating system failed",
    ncclResult_t.ncclInternalError: "an internal error of the library",
    ncclResult_t.ncclInvalidArgument: "an argument is invalid",
    ncclResult_t.ncclInvalidUsage: "the call is not allowed here, or the ranks disagree",
    ncclResult_t.ncclRemoteError: "another rank has failed or is gone",
    ncclResult_t.ncclInProgress: "the operation is still in progress",
    ncclResult_t.ncclTimeout: "the operation took too long",
}


def describe_status(status: int) -> tuple[str, str]:
    """Return the name of a status and its meaning, without asking the library."""
    if status not in _TEXTS:
        return "ncclUnknownResult", "unknown status"
    return ncclResult_t(status).name, _TEXTS[ncclResult_t(status)]


_nccl = Library(
    "nccl",
    pathfinder_name="nccl",
    sonames=("libnccl.so.2", "libnccl.so"),
    extra="nccl-cu13",
    describe=describe_status,
)
library: Library = _nccl

# The library itself. A text is the address of its first character: a Python function in the place of the C function
# cannot return a text. That of the last error is one for the whole process, whatever communicator is given.
ncclGetVersion: Function = _nccl("ncclGetVersion", POINTER(c_int))
ncclGetErrorString: ValueFunction = _nccl.value("ncclGetErrorString", c_int, restype=c_void_p)
ncclGetLastError: ValueFunction = _nccl.value("ncclGetLastError", ncclComm_t, restype=c_void_p)

# Communicators from an id. The process that asks for the id listens for the other ranks from then on.
_config = POINTER(ncclConfig_t)
ncclGetUniqueId: Function = _nccl("ncclGetUniqueId", POINTER(ncclUniqueId))
ncclCommInitRank: Function = _nccl("ncclCommInitRank", POINTER(ncclComm_t), c_int, ncclUniqueId, c_int)
ncclCommInitRankConfig: Function = _nccl(
    "ncclCommInitRankConfig", POINTER(ncclComm_t), c_int, ncclUniqueId, c_int, _config
)
ncclCommInitRankScalable: Function = _nccl(
    "ncclCommInitRankScalable",
    *(POINTER(ncclComm_t), c_int, c_int, c_int, POINTER(ncclUniqueId), _config),
    since=(2, 23),
)

# Communicators from another one: by color and key, or without some ranks (the list, its length, the result, the
# configuration, an NCCL_SHRINK flag).
ncclCommSplit: Function = _nccl("ncclCommSplit", ncclComm_t, c_int, c_int, POINTER(ncclComm_t), _config)
ncclCommShrink: Function = _nccl(
    "ncclCommShrink",
    *(ncclComm_t, POINTER(c_int), c_int, POINTER(ncclComm_t), _config, c_int),
    since=(2, 27),
)

# The end of a communicator. Only an abort returns when a rank is gone; the revoke came with 2.28.7.
ncclCommFinalize: Function = _nccl("ncclCommFinalize", ncclComm_t)
ncclCommDestroy: Function = _nccl("ncclCommDestroy", ncclComm_t)
ncclCommAbort: Function = _nccl("ncclCommAbort", ncclComm_t)
ncclCommRevoke: Function = _nccl("ncclCommRevoke", ncclComm_t, c_int, since=(2, 28))

# What is known of a communicator. The asynchronous error is an ncclResult_t.
ncclCommGetAsyncError: Function = _nccl("ncclCommGetAsyncError", ncclComm_t, POINTER(c_int))
ncclCommCount: Function = _nccl("ncclCommCount", ncclComm_t, POINTER(c_int))
ncclCommCuDevice: Function = _nccl("ncclCommCuDevice", ncclComm_t, POINTER(c_int))
ncclCommUserRank: Function = _nccl("ncclCommUserRank", ncclComm_t, POINTER(c_int))
ncclCommMemStats: Function = _nccl("ncclCommMemStats", ncclComm_t, c_int, POINTER(c_uint64), since=(2, 29))

# A sum whose inputs are multiplied first: the operation, the factor, its ncclDataType_t and ncclScalarResidence_t.
ncclRedOpCreatePreMulSum: Function = _nccl(
    "ncclRedOpCreatePreMulSum", POINTER(c_int), c_void_p, c_int, c_int, ncclComm_t
)
ncclRedOpDestroy: Function = _nccl("ncclRedOpDestroy", c_int, ncclComm_t)

# Collectives: what is sent, what is received, the count of elements and their ncclDataType_t; then the operation, the
# root, or both. The count is that of one rank: of what is received in ncclReduceScatter and ncclScatter, of what is
# sent in ncclAllGather and ncclGather, and of what goes from one rank to one other in ncclAlltoAll.
_place = (c_void_p, c_void_p, c_size_t, c_int)
_where = (ncclComm_t, cudaStream_t)
ncclAllReduce: Function = _nccl("ncclAllReduce", *_place, c_int, *_where)
ncclReduceScatter: Function = _nccl("ncclReduceScatter", *_place, c_int, *_where)
ncclReduce: Function = _nccl("ncclReduce", *_place, c_int, c_int, *_where)
ncclBroadcast: Function = _nccl("ncclBroadcast", *_place, c_int, *_where)
ncclAllGather: Function = _nccl("ncclAllGather", *_place, *_where)
ncclAlltoAll: Function = _nccl("ncclAlltoAll", *_place, *_where, since=(2, 28))
ncclGather: Function = _nccl("ncclGather", *_place, c_int, *_where, since=(2, 28))
ncclScatter: Function = _nccl("ncclScatter", *_place, c_int, *_where, since=(2, 28))

# From one rank to another: what is sent or received, the count, the type, the other rank.
_peer = (c_void_p, c_size_t, c_int, c_int)
ncclSend: Function = _nccl("ncclSend", *_peer, *_where)
ncclRecv: Function = _nccl("ncclRecv", *_peer, *_where)

# Groups of calls of one thread; they nest.
ncclGroupStart: Function = _nccl("ncclGroupStart")
ncclGroupEnd: Function = _nccl("ncclGroupEnd")
