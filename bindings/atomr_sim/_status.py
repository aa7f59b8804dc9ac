"""The statuses of the simulated driver, and the error with which its functions refuse.

This file does not depend on devices, memory or streams.
"""

from __future__ import annotations

from atomr_cuda.driver import CUresult

SUCCESS = int(CUresult.CUDA_SUCCESS)
INVALID_VALUE = int(CUresult.CUDA_ERROR_INVALID_VALUE)
OUT_OF_MEMORY = int(CUresult.CUDA_ERROR_OUT_OF_MEMORY)
OPERATING_SYSTEM = int(CUresult.CUDA_ERROR_OPERATING_SYSTEM)
NOT_INITIALIZED = int(CUresult.CUDA_ERROR_NOT_INITIALIZED)
NO_DEVICE = int(CUresult.CUDA_ERROR_NO_DEVICE)
INVALID_DEVICE = int(CUresult.CUDA_ERROR_INVALID_DEVICE)
INVALID_CONTEXT = int(CUresult.CUDA_ERROR_INVALID_CONTEXT)
NO_BINARY_FOR_GPU = int(CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU)
UNSUPPORTED_LIMIT = int(CUresult.CUDA_ERROR_UNSUPPORTED_LIMIT)
INVALID_PTX = int(CUresult.CUDA_ERROR_INVALID_PTX)
INVALID_HANDLE = int(CUresult.CUDA_ERROR_INVALID_HANDLE)
NOT_FOUND = int(CUresult.CUDA_ERROR_NOT_FOUND)
NOT_READY = int(CUresult.CUDA_ERROR_NOT_READY)
OUT_OF_RESOURCES = int(CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)
CONTEXT_IS_DESTROYED = int(CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED)
ALREADY_REGISTERED = int(CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
NOT_REGISTERED = int(CUresult.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
COOPERATIVE_TOO_LARGE = int(CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
INVALID_CLUSTER_SIZE = int(CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE)
NOT_SUPPORTED = int(CUresult.CUDA_ERROR_NOT_SUPPORTED)
UNKNOWN = int(CUresult.CUDA_ERROR_UNKNOWN)

# The texts of cuGetErrorString where the name alone is not enough.
_TEXTS = {
    SUCCESS: "no error",
    INVALID_VALUE: "invalid argument",
    NOT_INITIALIZED: "the driver was not initialised: cuInit comes first",
    OPERATING_SYSTEM: "the operating system has no file descriptor or thread left",
    NO_DEVICE: "no simulated GPU: ATOMR_TRIO_SIM_DEVICES is 0",
    INVALID_DEVICE: "invalid device ordinal",
    INVALID_CONTEXT: "no context is current in this thread, or it is not a context",
    NO_BINARY_FOR_GPU: "the image holds no code that the simulated GPU can run: it takes PTX",
    INVALID_PTX: "the PTX could not be read",
    INVALID_HANDLE: "invalid handle",
    NOT_FOUND: "the name was not found",
    NOT_READY: "work is still pending",
    int(CUresult.CUDA_ERROR_ILLEGAL_ADDRESS): "an illegal memory access was encountered",
    COOPERATIVE_TOO_LARGE: "too many blocks in a cooperative launch",
    INVALID_CLUSTER_SIZE: "a cluster has more blocks than the function may have",
    OUT_OF_RESOURCES: "too many resources requested for the launch",
    int(CUresult.CUDA_ERROR_ASSERT): "an assertion failed in device code",
    int(CUresult.CUDA_ERROR_MISALIGNED_ADDRESS): "a misaligned address was accessed",
    int(CUresult.CUDA_ERROR_LAUNCH_FAILED): "the launch failed: a trap, or an error in device code",
    NOT_SUPPORTED: "the simulated driver does not support this",
    UNKNOWN: "an error inside the simulated driver",
}


def text_of(status: CUresult) -> str:
    """Return a sentence for a status."""
    return _TEXTS.get(int(status)) or status.name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()


class Refused(Exception):
    """Raised inside the simulated driver: the function ends here and returns ``status``."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def require(condition: object, status: int = INVALID_VALUE) -> None:
    """Refuse with a status unless the condition holds."""
    if not condition:
        raise Refused(status)
