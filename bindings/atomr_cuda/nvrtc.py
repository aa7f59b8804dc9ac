"""The run-time compiler (NVRTC) as a ctypes table.

Names, numbers and layouts are those of ``nvrtc.h`` 13.5; every function of 12.x is here, except the deprecated
``nvrtcGetNVVM``, which 13 has removed. A function that is newer than 12.0 has its version (``since``); calling it on an
older library raises ``SymbolMissing``. NVRTC needs neither a GPU nor a driver.

This file declares, and does nothing else: no library is loaded before the first call.
"""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_size_t, c_uint, c_void_p
from enum import IntEnum
from typing import Final

from ._library import Function, Library, ValueFunction

nvrtcProgram = c_void_p

# int callback(void *payload, void *reserved): 1 cancels the compilation, 0 lets it go on. The caller keeps the object
# alive while the program compiles; it is called from compiler threads.
nvrtcFlowCallback: Final = CFUNCTYPE(c_int, c_void_p, c_void_p)

NVRTC_INSTALL_HEADERS_SKIP_IF_EXISTS = 0x0
NVRTC_INSTALL_HEADERS_FORCE_OVERWRITE = 0x1
NVRTC_INSTALL_HEADERS_NO_WAIT = 0x2


class nvrtcResult(IntEnum):
    """The status that an NVRTC function returns; 0 is success."""

    NVRTC_SUCCESS = 0
    NVRTC_ERROR_OUT_OF_MEMORY = 1
    NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2
    NVRTC_ERROR_INVALID_INPUT = 3
    NVRTC_ERROR_INVALID_PROGRAM = 4
    NVRTC_ERROR_INVALID_OPTION = 5
    NVRTC_ERROR_COMPILATION = 6
    NVRTC_ERROR_BUILTIN_OPERATION_FAILURE = 7
    NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION = 8
    NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION = 9
    NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID = 10
    NVRTC_ERROR_INTERNAL_ERROR = 11
    NVRTC_ERROR_TIME_FILE_WRITE_FAILED = 12
    NVRTC_ERROR_NO_PCH_CREATE_ATTEMPTED = 13
    NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED = 14
    NVRTC_ERROR_PCH_CREATE = 15
    NVRTC_ERROR_CANCELLED = 16
    NVRTC_ERROR_TIME_TRACE_FILE_WRITE_FAILED = 17
    NVRTC_ERROR_BUSY = 18


class nvrtcBundledHeadersInfo(Structure):
    """The state of the headers that the library carries."""

    _fields_ = [
        ("available", c_int),
        ("compressedSize", c_size_t),
        ("uncompressedSize", c_size_t),
        ("cudaVersionMajor", c_int),
        ("cudaVersionMinor", c_int),
        ("numFiles", c_uint),
    ]


def _describe(status: int) -> tuple[str, str]:
    """Return NVRTC's own text for a status, which is its name; NVRTC has no longer text."""
    answer = nvrtcGetErrorString(status)
    text = answer.decode(errors="replace") if answer else "unknown status"
    known = {int(member): member.name for member in nvrtcResult}
    return known.get(status, text), text


_nvrtc = Library(
    "nvrtc",
    pathfinder_name="nvrtc",
    sonames=("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"),
    extra="cu13",
    extra_without_gpu="sim",
    describe=_describe,
    companions="libnvrtc-builtins.so.*",  # 13.0 searches for it by the loader's path alone
)
library: Library = _nvrtc

# The library itself.
nvrtcGetErrorString: ValueFunction = _nvrtc.value("nvrtcGetErrorString", c_int, restype=c_char_p)
nvrtcVersion: Function = _nvrtc("nvrtcVersion", POINTER(c_int), POINTER(c_int))
nvrtcGetNumSupportedArchs: Function = _nvrtc("nvrtcGetNumSupportedArchs", POINTER(c_int))
nvrtcGetSupportedArchs: Function = _nvrtc("nvrtcGetSupportedArchs", POINTER(c_int))

# A program: source, headers, options.
nvrtcCreateProgram: Function = _nvrtc(
    "nvrtcCreateProgram",
    *(POINTER(nvrtcProgram), c_char_p, c_char_p, c_int, POINTER(c_char_p), POINTER(c_char_p)),
)
nvrtcDestroyProgram: Function = _nvrtc("nvrtcDestroyProgram", POINTER(nvrtcProgram))
nvrtcCompileProgram: Function = _nvrtc("nvrtcCompileProgram", nvrtcProgram, c_int, POINTER(c_char_p))
nvrtcSetFlowCallback: Function = _nvrtc(
    "nvrtcSetFlowCallback", nvrtcProgram, nvrtcFlowCallback, c_void_p, since=(12, 8)
)
nvrtcAddNameExpression: Function = _nvrtc("nvrtcAddNameExpression", nvrtcProgram, c_char_p)
nvrtcGetLoweredName: Function = _nvrtc("nvrtcGetLoweredName", nvrtcProgram, c_char_p, POINTER(c_char_p))
nvrtcGetProgramLogSize: Function = _nvrtc("nvrtcGetProgramLogSize", nvrtcProgram, POINTER(c_size_t))
nvrtcGetProgramLog: Function = _nvrtc("nvrtcGetProgramLog", nvrtcProgram, c_void_p)

# The results of compiling a program.
nvrtcGetPTXSize: Function = _nvrtc("nvrtcGetPTXSize", nvrtcProgram, POINTER(c_size_t))
nvrtcGetPTX: Function = _nvrtc("nvrtcGetPTX", nvrtcProgram, c_void_p)
nvrtcGetCUBINSize: Function = _nvrtc("nvrtcGetCUBINSize", nvrtcProgram, POINTER(c_size_t))
nvrtcGetCUBIN: Function = _nvrtc("nvrtcGetCUBIN", nvrtcProgram, c_void_p)
nvrtcGetLTOIRSize: Function = _nvrtc("nvrtcGetLTOIRSize", nvrtcProgram, POINTER(c_size_t))
nvrtcGetLTOIR: Function = _nvrtc("nvrtcGetLTOIR", nvrtcProgram, c_void_p)
nvrtcGetOptiXIRSize: Function = _nvrtc("nvrtcGetOptiXIRSize", nvrtcProgram, POINTER(c_size_t))
nvrtcGetOptiXIR: Function = _nvrtc("nvrtcGetOptiXIR", nvrtcProgram, c_void_p)
nvrtcGetTileIRSize: Function = _nvrtc("nvrtcGetTileIRSize", nvrtcProgram, POINTER(c_size_t), since=(13, 3))
nvrtcGetTileIR: Function = _nvrtc("nvrtcGetTileIR", nvrtcProgram, c_void_p, since=(13, 3))

# Precompiled headers.
nvrtcGetPCHHeapSize: Function = _nvrtc("nvrtcGetPCHHeapSize", POINTER(c_size_t), since=(12, 8))
nvrtcSetPCHHeapSize: Function = _nvrtc("nvrtcSetPCHHeapSize", c_size_t, since=(12, 8))
nvrtcGetPCHCreateStatus: Function = _nvrtc("nvrtcGetPCHCreateStatus", nvrtcProgram, since=(12, 8))
nvrtcGetPCHHeapSizeRequired: Function = _nvrtc(
    "nvrtcGetPCHHeapSizeRequired", nvrtcProgram, POINTER(c_size_t), since=(12, 8)
)

# The CUDA headers that the library carries with it.
nvrtcInstallBundledHeaders: Function = _nvrtc(
    "nvrtcInstallBundledHeaders", c_char_p, c_uint, POINTER(c_char_p), since=(13, 3)
)
nvrtcGetBundledHeadersInfo: Function = _nvrtc(
    "nvrtcGetBundledHeadersInfo", POINTER(nvrtcBundledHeadersInfo), POINTER(c_char_p), since=(13, 3)
)
nvrtcRemoveBundledHeaders: Function = _nvrtc("nvrtcRemoveBundledHeaders", c_char_p, POINTER(c_char_p), since=(13, 3))
