"""CUDA status codes and what they mean for the device, as data.

Both sides of the process boundary import this file: the worker to decide whether it may go on after a failing call, the
trio side to choose the exception and to inform the supervision. This file has the driver's numbers only. The worker
sends the class, the name and the text of a status with it, so the trio side needs no table of any other library, and
nobody one of names. Imports the standard library alone.

Sources: `enum cudaError_enum` of cuda.h, CUDA 12.0 to 13.3, and what was measured on hardware.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["CUDA_SUCCESS", "STATUS_CLASSES", "StatusClass", "classify", "describe"]

CUDA_SUCCESS: Final = 0


@enum.unique
class StatusClass(enum.Enum):
    """The consequence of a failing status for other work on the same device."""

    REQUEST = "request"
    """Only this request failed. The context works on."""

    OUT_OF_MEMORY = "out of memory"
    """Only this request failed, because memory was short. Releasing caches and trying again may help."""

    UNCERTAIN = "uncertain"
    """Only this request failed, unless the driver reports a fault when it is asked."""

    POISONS = "poisons"
    """The context, and with it the worker process, is lost. A new worker can go on."""

    GONE = "gone"
    """The hardware or the driver cannot be used. No restart helps."""


# The driver reports faults late: a status that poisons tells which call *reported* the fault, not which caused it.
_CODES: Final[Mapping[StatusClass, tuple[int, ...]]] = {
    StatusClass.REQUEST: (
        1,  # INVALID_VALUE
        *(5, 6, 7, 8),  # PROFILER_*
        36,  # CALL_REQUIRES_NEWER_DRIVER
        200,  # INVALID_IMAGE
        202,  # CONTEXT_ALREADY_CURRENT
        *(205, 206, 207, 208),  # MAP_FAILED, UNMAP_FAILED, ARRAY_IS_MAPPED, ALREADY_MAPPED
        209,  # NO_BINARY_FOR_GPU
        *(210, 211, 212, 213),  # ALREADY_ACQUIRED, NOT_MAPPED, NOT_MAPPED_AS_ARRAY, NOT_MAPPED_AS_POINTER
        *(215, 216, 217),  # UNSUPPORTED_LIMIT, CONTEXT_ALREADY_IN_USE, PEER_ACCESS_UNSUPPORTED
        *(218, 219),  # INVALID_PTX, INVALID_GRAPHICS_CONTEXT
        *(221, 222, 223),  # JIT_COMPILER_NOT_FOUND, UNSUPPORTED_PTX_VERSION, JIT_COMPILATION_DISABLED
        *(224, 225),  # UNSUPPORTED_EXEC_AFFINITY, UNSUPPORTED_DEVSIDE_SYNC
        *(300, 301, 302, 303, 304),  # INVALID_SOURCE, FILE_NOT_FOUND, SHARED_OBJECT_*, OPERATING_SYSTEM
        *(400, 401, 402),  # INVALID_HANDLE, ILLEGAL_STATE, LOSSY_QUERY
        500,  # NOT_FOUND
        600,  # NOT_READY
        *(701, 703),  # LAUNCH_OUT_OF_RESOURCES, LAUNCH_INCOMPATIBLE_TEXTURING
        *(704, 705, 708),  # PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED, PRIMARY_CONTEXT_ACTIVE
        *(711, 712, 713),  # TOO_MANY_PEERS, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED
        720,  # COOPERATIVE_LAUNCH_TOO_LARGE
        *(800, 801),  # NOT_PERMITTED, NOT_SUPPORTED
        *(811, 812),  # CDP_NOT_SUPPORTED, CDP_VERSION_MISMATCH
        *range(900, 910),  # STREAM_CAPTURE_*, CAPTURED_EVENT, TIMEOUT
        910,  # GRAPH_EXEC_UPDATE_FAILURE
        *(912, 913, 914, 915),  # INVALID_CLUSTER_SIZE, FUNCTION_NOT_LOADED, INVALID_RESOURCE_*
        *(917, 918),  # STREAM_DETACHED, GRAPH_RECAPTURE_FAILURE
    ),
    StatusClass.OUT_OF_MEMORY: (2,),
    StatusClass.POISONS: (
        4,  # DEINITIALIZED: the worker's driver is shutting down
        *(201, 709),  # INVALID_CONTEXT, CONTEXT_IS_DESTROYED: not faults, but signs that the context no longer exists
        *(220, 226),  # NVLINK_UNCORRECTABLE, CONTAINED
        *(700, 702),  # ILLEGAL_ADDRESS, LAUNCH_TIMEOUT
        710,  # ASSERT
        *(714, 715, 716, 717, 718, 719),  # HARDWARE_STACK_ERROR ... LAUNCH_FAILED
        721,  # TENSOR_MEMORY_LEAK
        *(805, 806, 807, 808, 809, 810),  # MPS_*: the service lost this client, or has no room for it now
        911,  # EXTERNAL_DEVICE
        916,  # KEY_ROTATION
        999,  # UNKNOWN
    ),
    StatusClass.GONE: (
        3,  # NOT_INITIALIZED
        *(34, 46),  # STUB_LIBRARY, DEVICE_UNAVAILABLE
        *(100, 101, 102),  # NO_DEVICE, INVALID_DEVICE, DEVICE_NOT_LICENSED
        214,  # ECC_UNCORRECTABLE
        *(802, 803, 804),  # SYSTEM_NOT_READY, SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED_ON_DEVICE
    ),
}

STATUS_CLASSES: Final[Mapping[int, StatusClass]] = MappingProxyType(
    {code: status_class for status_class, codes in _CODES.items() for code in codes}
)
"""The class of every known status of the CUDA driver API, by its number."""


_TABLES: Final[dict[str, Mapping[int, StatusClass]]] = {"cuda": STATUS_CLASSES}


def describe(library: str, codes_of: Mapping[StatusClass, tuple[int, ...]]) -> None:
    """Say what the statuses of a library mean. The worker does so for each that is registered."""
    _TABLES[library] = {code: status_class for status_class, codes in codes_of.items() for code in codes}


# These compile on the host and use no context, so only the request can have failed.
_HOST_ONLY: Final = frozenset({"nvrtc", "nvjitlink"})


def classify(status: int, library: str = "cuda") -> StatusClass:
    """Return the class of a failing status of `library`; "cuda" is the driver API.

    An unknown status counts as poison, and so does every status of a library without a table. If this is wrong, it
    costs a rebuild; the opposite error would return wrong results.

    Raises:
        ValueError: `status` is success, which has no class.
    """
    if status == CUDA_SUCCESS:
        raise ValueError("status 0 is success; only a failing status has a class")
    if library in _HOST_ONLY:
        return StatusClass.REQUEST
    return _TABLES.get(library, {}).get(status, StatusClass.POISONS)
