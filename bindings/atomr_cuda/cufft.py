"""The Fourier transforms of CUDA (cuFFT) as a ctypes table.

Names and numbers are those of ``cufft.h`` and ``cufftXt.h`` 12.5, of CUDA 13. Every function for one GPU of 11.2, which
CUDA 12.4 has, is here. What is left out: the functions for several GPUs (``cufftXtSetGPUs``, ``cufftXtMalloc`` and
their like), and the older callbacks (``cufftXtSetCallback``), which only the static library has. A function that is
newer than 11.2 has its version (``since``); calling it on an older library raises ``SymbolMissing``.

The letters of a transform are the types of its input and of its output: R and C are float32 and complex64, D and Z
float64 and complex128. The functions whose name begins with ``cufftXt`` take the types as arguments, and half precision
too. No transform is scaled.

A plan describes a transform. It is a number, and is made in two steps: ``cufftCreate`` gives the number, and one of the
functions ``cufftMakePlan`` the transform. ``cufftPlan1d`` and its like do both.

In 11.3 and 11.4 the header maps ``cufftXtSetJITCallback`` to a symbol of its version. Every library also exports the
plain name, and the table binds that.

This file declares, and does nothing else: no library is loaded before the first call.
"""

from __future__ import annotations

from ctypes import POINTER, c_char_p, c_int, c_longlong, c_size_t, c_void_p
from enum import IntEnum

from ._library import Function, Library

cufftHandle = c_int
cudaStream_t = c_void_p  # a CUstream of the driver

CUFFT_PLAN_NULL = -1
"""A number that no plan has. The headers of 13 have this name."""
CUFFT_FORWARD = -1
CUFFT_INVERSE = 1


class cufftResult(IntEnum):
    """The status that a cuFFT function returns; 0 is success."""

    CUFFT_SUCCESS = 0x0
    CUFFT_INVALID_PLAN = 0x1
    CUFFT_ALLOC_FAILED = 0x2
    CUFFT_INVALID_TYPE = 0x3
    CUFFT_INVALID_VALUE = 0x4
    CUFFT_INTERNAL_ERROR = 0x5
    CUFFT_EXEC_FAILED = 0x6
    CUFFT_SETUP_FAILED = 0x7
    CUFFT_INVALID_SIZE = 0x8
    CUFFT_UNALIGNED_DATA = 0x9
    CUFFT_INCOMPLETE_PARAMETER_LIST = 0xA
    CUFFT_INVALID_DEVICE = 0xB
    CUFFT_PARSE_ERROR = 0xC
    CUFFT_NO_WORKSPACE = 0xD
    CUFFT_NOT_IMPLEMENTED = 0xE
    CUFFT_LICENSE_ERROR = 0xF
    CUFFT_NOT_SUPPORTED = 0x10
    CUFFT_MISSING_DEPENDENCY = 0x11
    CUFFT_NVRTC_FAILURE = 0x12
    CUFFT_NVJITLINK_FAILURE = 0x13
    CUFFT_NVSHMEM_FAILURE = 0x14


class cufftType(IntEnum):
    """The types of a transform's input and output."""

    CUFFT_R2C = 0x2A
    CUFFT_C2R = 0x2C
    CUFFT_C2C = 0x29
    CUFFT_D2Z = 0x6A
    CUFFT_Z2D = 0x6C
    CUFFT_Z2Z = 0x69


class cufftProperty(IntEnum):
    """A property of a plan, for ``cufftSetPlanPropertyInt64``."""

    NVFFT_PLAN_PROPERTY_INT64_PATIENT_JIT = 0x1
    NVFFT_PLAN_PROPERTY_INT64_MAX_NUM_HOST_THREADS = 0x2
    NVFFT_PLAN_PROPERTY_INT64_BLUESTEIN_ONLY = 0x3
    NVFFT_PLAN_PROPERTY_INT64_DISABLE_FMA = 0x4


class cufftXtCallbackType(IntEnum):
    """The kind of a callback: it loads (LD) or stores (ST) elements of this type."""

    CUFFT_CB_LD_COMPLEX = 0x0
    CUFFT_CB_LD_COMPLEX_DOUBLE = 0x1
    CUFFT_CB_LD_REAL = 0x2
    CUFFT_CB_LD_REAL_DOUBLE = 0x3
    CUFFT_CB_ST_COMPLEX = 0x4
    CUFFT_CB_ST_COMPLEX_DOUBLE = 0x5
    CUFFT_CB_ST_REAL = 0x6
    CUFFT_CB_ST_REAL_DOUBLE = 0x7
    CUFFT_CB_UNDEFINED = 0x8


class cufftXtWorkAreaPolicy(IntEnum):
    """How large a work area may be, for ``cufftXtSetWorkAreaPolicy``."""

    CUFFT_WORKAREA_MINIMAL = 0
    CUFFT_WORKAREA_USER = 1
    CUFFT_WORKAREA_PERFORMANCE = 2


_TEXTS = {
    cufftResult.CUFFT_SUCCESS: "no error",
    cufftResult.CUFFT_INVALID_PLAN: "there is no such plan, it has no transform yet, or it has one already",
    cufftResult.CUFFT_ALLOC_FAILED: "the library got no memory, of the host or of the device",
    cufftResult.CUFFT_INVALID_TYPE: "the plan is not of this type, or the library has no such type",
    cufftResult.CUFFT_INVALID_VALUE: "an argument is not valid, or an array is not aligned to a complex element",
    cufftResult.CUFFT_INTERNAL_ERROR: "an internal error of the library or of the driver",
    cufftResult.CUFFT_EXEC_FAILED: "the transform failed on the GPU",
    cufftResult.CUFFT_SETUP_FAILED: "the library could not be initialized",
    cufftResult.CUFFT_INVALID_SIZE: "a length or a number of transforms is not supported",
    cufftResult.CUFFT_UNALIGNED_DATA: "an array is not aligned as its elements must be",
    cufftResult.CUFFT_INCOMPLETE_PARAMETER_LIST: "an argument is missing",
    cufftResult.CUFFT_INVALID_DEVICE: "the plan was made on another device",
    cufftResult.CUFFT_PARSE_ERROR: "the library could not read its own list of plans",
    cufftResult.CUFFT_NO_WORKSPACE: "the plan needs a work area and has none",
    cufftResult.CUFFT_NOT_IMPLEMENTED: "the library does not have this function for these arguments",
    cufftResult.CUFFT_LICENSE_ERROR: "the license of the library is missing",
    cufftResult.CUFFT_NOT_SUPPORTED: "the library does not support these arguments",
    cufftResult.CUFFT_MISSING_DEPENDENCY: "a library that cuFFT loads is missing, such as nvJitLink",
    cufftResult.CUFFT_NVRTC_FAILURE: "NVRTC could not compile a kernel of the plan",
    cufftResult.CUFFT_NVJITLINK_FAILURE: "nvJitLink could not link the kernels of the plan",
    cufftResult.CUFFT_NVSHMEM_FAILURE: "NVSHMEM failed",
}


def describe_status(status: int) -> tuple[str, str]:
    """Return the name of a status and its meaning; the library has no function for either."""
    if status not in _TEXTS:
        return "CUFFT_UNKNOWN", "unknown status"
    return cufftResult(status).name, _TEXTS[cufftResult(status)]


_cufft = Library(
    "cufft",
    pathfinder_name="cufft",
    sonames=("libcufft.so.12", "libcufft.so.11", "libcufft.so"),
    extra="cu13",
    describe=describe_status,
)
library: Library = _cufft

# The library itself.
cufftGetVersion: Function = _cufft("cufftGetVersion", POINTER(c_int))
cufftGetProperty: Function = _cufft("cufftGetProperty", c_int, POINTER(c_int))

# A plan, and what is set before its transform.
cufftCreate: Function = _cufft("cufftCreate", POINTER(cufftHandle))
cufftDestroy: Function = _cufft("cufftDestroy", cufftHandle)
cufftSetAutoAllocation: Function = _cufft("cufftSetAutoAllocation", cufftHandle, c_int)
cufftSetPlanPropertyInt64: Function = _cufft("cufftSetPlanPropertyInt64", cufftHandle, c_int, c_longlong)
cufftGetPlanPropertyInt64: Function = _cufft("cufftGetPlanPropertyInt64", cufftHandle, c_int, POINTER(c_longlong))
cufftResetPlanProperty: Function = _cufft("cufftResetPlanProperty", cufftHandle, c_int)
cufftXtSetJITCallback: Function = _cufft(
    "cufftXtSetJITCallback", cufftHandle, c_char_p, c_void_p, c_size_t, c_int, POINTER(c_void_p), since=(11, 3)
)

# The transform of a plan. Lengths; type; number of transforms (of 1-D ones); bytes of the work area.
_work = POINTER(c_size_t)
_1d = (c_int, c_int, c_int)
_2d = (c_int, c_int, c_int)
_3d = (c_int, c_int, c_int, c_int)

# Rank, lengths; embedding lengths, stride and distance of the input, and of the output; type; number of transforms.
_side = (POINTER(c_int), c_int, c_int)
_many = (c_int, POINTER(c_int), *_side, *_side, c_int, c_int)
_side64 = (POINTER(c_longlong), c_longlong, c_longlong)
_many64 = (c_int, POINTER(c_longlong), *_side64, *_side64, c_int, c_longlong)

# The same with the type of the input, that of the output, and behind the work area that of the computation.
_xt_many = (c_int, POINTER(c_longlong), *_side64, c_int, *_side64, c_int, c_longlong, _work, c_int)

cufftMakePlan1d: Function = _cufft("cufftMakePlan1d", cufftHandle, *_1d, _work)
cufftMakePlan2d: Function = _cufft("cufftMakePlan2d", cufftHandle, *_2d, _work)
cufftMakePlan3d: Function = _cufft("cufftMakePlan3d", cufftHandle, *_3d, _work)
cufftMakePlanMany: Function = _cufft("cufftMakePlanMany", cufftHandle, *_many, _work)
cufftMakePlanMany64: Function = _cufft("cufftMakePlanMany64", cufftHandle, *_many64, _work)
cufftXtMakePlanMany: Function = _cufft("cufftXtMakePlanMany", cufftHandle, *_xt_many)

# A plan with its transform, in one step.
cufftPlan1d: Function = _cufft("cufftPlan1d", POINTER(cufftHandle), *_1d)
cufftPlan2d: Function = _cufft("cufftPlan2d", POINTER(cufftHandle), *_2d)
cufftPlan3d: Function = _cufft("cufftPlan3d", POINTER(cufftHandle), *_3d)
cufftPlanMany: Function = _cufft("cufftPlanMany", POINTER(cufftHandle), *_many)

# The bytes of the work area: of any transform, of one that this plan would have, of the one that it has.
cufftEstimate1d: Function = _cufft("cufftEstimate1d", *_1d, _work)
cufftEstimate2d: Function = _cufft("cufftEstimate2d", *_2d, _work)
cufftEstimate3d: Function = _cufft("cufftEstimate3d", *_3d, _work)
cufftEstimateMany: Function = _cufft("cufftEstimateMany", *_many, _work)
cufftGetSize1d: Function = _cufft("cufftGetSize1d", cufftHandle, *_1d, _work)
cufftGetSize2d: Function = _cufft("cufftGetSize2d", cufftHandle, *_2d, _work)
cufftGetSize3d: Function = _cufft("cufftGetSize3d", cufftHandle, *_3d, _work)
cufftGetSizeMany: Function = _cufft("cufftGetSizeMany", cufftHandle, *_many, _work)
cufftGetSizeMany64: Function = _cufft("cufftGetSizeMany64", cufftHandle, *_many64, _work)
cufftXtGetSizeMany: Function = _cufft("cufftXtGetSizeMany", cufftHandle, *_xt_many)
cufftGetSize: Function = _cufft("cufftGetSize", cufftHandle, _work)
cufftXtSetWorkAreaPolicy: Function = _cufft("cufftXtSetWorkAreaPolicy", cufftHandle, c_int, _work)

# What an execution uses.
cufftSetStream: Function = _cufft("cufftSetStream", cufftHandle, cudaStream_t)
cufftSetWorkArea: Function = _cufft("cufftSetWorkArea", cufftHandle, c_void_p)

# Executions: input, output, and the direction of a complex transform.
cufftExecC2C: Function = _cufft("cufftExecC2C", cufftHandle, c_void_p, c_void_p, c_int)
cufftExecR2C: Function = _cufft("cufftExecR2C", cufftHandle, c_void_p, c_void_p)
cufftExecC2R: Function = _cufft("cufftExecC2R", cufftHandle, c_void_p, c_void_p)
cufftExecZ2Z: Function = _cufft("cufftExecZ2Z", cufftHandle, c_void_p, c_void_p, c_int)
cufftExecD2Z: Function = _cufft("cufftExecD2Z", cufftHandle, c_void_p, c_void_p)
cufftExecZ2D: Function = _cufft("cufftExecZ2D", cufftHandle, c_void_p, c_void_p)
cufftXtExec: Function = _cufft("cufftXtExec", cufftHandle, c_void_p, c_void_p, c_int)
