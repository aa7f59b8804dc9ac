"""Enumerations of the driver API about streams and their capture."""

from __future__ import annotations

from enum import IntEnum


class CUstreamBatchMemOpType(IntEnum):
    """The kind of an operation of ``cuStreamBatchMemOp``."""

    CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1
    CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2
    CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES = 3
    CU_STREAM_MEM_OP_WAIT_VALUE_64 = 4
    CU_STREAM_MEM_OP_WRITE_VALUE_64 = 5
    CU_STREAM_MEM_OP_BARRIER = 6
    CU_STREAM_MEM_OP_ATOMIC_REDUCTION = 8


class CUstreamMemoryBarrier_flags(IntEnum):
    """The reach of a memory barrier in ``cuStreamBatchMemOp``."""

    CU_STREAM_MEMORY_BARRIER_TYPE_SYS = 0
    CU_STREAM_MEMORY_BARRIER_TYPE_GPU = 1


class CUstreamAtomicReductionOpType(IntEnum):
    """The operation of an atomic reduction in ``cuStreamBatchMemOp``; since 13.1."""

    CU_STREAM_ATOMIC_REDUCTION_OP_ADD = 0
    CU_STREAM_ATOMIC_REDUCTION_OP_AND = 5
    CU_STREAM_ATOMIC_REDUCTION_OP_OR = 6


class CUstreamAtomicReductionDataType(IntEnum):
    """The element type of an atomic reduction in ``cuStreamBatchMemOp``; since 13.1."""

    CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_32 = 14
    CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_64 = 22


class CUstreamCaptureMode(IntEnum):
    """The scope in which a capture forbids unsafe calls."""

    CU_STREAM_CAPTURE_MODE_GLOBAL = 0
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1
    CU_STREAM_CAPTURE_MODE_RELAXED = 2


class CUstreamCaptureStatus(IntEnum):
    """The state of the capture of a stream."""

    CU_STREAM_CAPTURE_STATUS_NONE = 0
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2


class CUstreamUpdateCaptureDependencies_flags(IntEnum):
    """Add dependencies to those of a capture, or replace them."""

    CU_STREAM_ADD_CAPTURE_DEPENDENCIES = 0
    CU_STREAM_SET_CAPTURE_DEPENDENCIES = 1


class CUsynchronizationPolicy(IntEnum):
    """The way the host waits for a stream."""

    CU_SYNC_POLICY_AUTO = 1
    CU_SYNC_POLICY_SPIN = 2
    CU_SYNC_POLICY_YIELD = 3
    CU_SYNC_POLICY_BLOCKING_SYNC = 4
