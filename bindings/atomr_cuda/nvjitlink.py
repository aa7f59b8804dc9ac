"""The linker of device code (nvJitLink) as a ctypes table.

Names and numbers are those of ``nvJitLink.h`` 13.5; every function of 12.x is here. A function that is newer than 12.4
has its version (``since``); calling it on an older library raises ``SymbolMissing``. nvJitLink needs neither a GPU nor
a driver.

The inline functions of the header map each name to a symbol of its own version (``nvJitLinkCreate`` to
``__nvJitLinkCreate_13_5``), so that a program keeps the behaviour that it was compiled for. Every library from 12.4 to
13.5 also exports the plain names, for its own version. The table binds the plain names.

This file declares, and does nothing else: no library is loaded before the first call.
"""

from __future__ import annotations

from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p
from enum import IntEnum

from ._library import Function, Library

nvJitLinkHandle = c_void_p


class nvJitLinkResult(IntEnum):
    """The status that an nvJitLink function returns; 0 is success."""

    NVJITLINK_SUCCESS = 0
    NVJITLINK_ERROR_UNRECOGNIZED_OPTION = 1
    NVJITLINK_ERROR_MISSING_ARCH = 2
    NVJITLINK_ERROR_INVALID_INPUT = 3
    NVJITLINK_ERROR_PTX_COMPILE = 4
    NVJITLINK_ERROR_NVVM_COMPILE = 5
    NVJITLINK_ERROR_INTERNAL = 6
    NVJITLINK_ERROR_THREADPOOL = 7
    NVJITLINK_ERROR_UNRECOGNIZED_INPUT = 8
    NVJITLINK_ERROR_FINALIZE = 9
    NVJITLINK_ERROR_NULL_INPUT = 10
    NVJITLINK_ERROR_INCOMPATIBLE_OPTIONS = 11
    NVJITLINK_ERROR_INCORRECT_INPUT_TYPE = 12
    NVJITLINK_ERROR_ARCH_MISMATCH = 13
    NVJITLINK_ERROR_OUTDATED_LIBRARY = 14
    NVJITLINK_ERROR_MISSING_FATBIN = 15
    NVJITLINK_ERROR_UNRECOGNIZED_ARCH = 16
    NVJITLINK_ERROR_UNSUPPORTED_ARCH = 17
    NVJITLINK_ERROR_LTO_NOT_ENABLED = 18


class nvJitLinkInputType(IntEnum):
    """The kind of an input."""

    NVJITLINK_INPUT_NONE = 0
    NVJITLINK_INPUT_CUBIN = 1
    NVJITLINK_INPUT_PTX = 2
    NVJITLINK_INPUT_LTOIR = 3
    NVJITLINK_INPUT_FATBIN = 4
    NVJITLINK_INPUT_OBJECT = 5
    NVJITLINK_INPUT_LIBRARY = 6
    NVJITLINK_INPUT_INDEX = 7
    NVJITLINK_INPUT_ANY = 10


def _describe(status: int) -> tuple[str, str]:
    """Return the name of a status; the library has no function for it."""
    known = {int(member): member.name for member in nvJitLinkResult}
    name = known.get(status, "NVJITLINK_ERROR_UNKNOWN")
    return name, name.removeprefix("NVJITLINK_").removeprefix("ERROR_").replace("_", " ").lower()


_nvjitlink = Library(
    "nvjitlink",
    pathfinder_name="nvJitLink",
    sonames=("libnvJitLink.so.13", "libnvJitLink.so.12", "libnvJitLink.so"),
    extra="cu13",
    extra_without_gpu="sim",
    describe=_describe,
)
library: Library = _nvjitlink

# The library itself.
nvJitLinkVersion: Function = _nvjitlink("nvJitLinkVersion", POINTER(c_uint), POINTER(c_uint))

# A link: options, inputs, the work itself.
nvJitLinkCreate: Function = _nvjitlink("nvJitLinkCreate", POINTER(nvJitLinkHandle), c_uint, POINTER(c_char_p))
nvJitLinkDestroy: Function = _nvjitlink("nvJitLinkDestroy", POINTER(nvJitLinkHandle))
nvJitLinkAddData: Function = _nvjitlink("nvJitLinkAddData", nvJitLinkHandle, c_int, c_void_p, c_size_t, c_char_p)
nvJitLinkAddFile: Function = _nvjitlink("nvJitLinkAddFile", nvJitLinkHandle, c_int, c_char_p)
nvJitLinkComplete: Function = _nvjitlink("nvJitLinkComplete", nvJitLinkHandle)

# The results of a link.
nvJitLinkGetLinkedCubinSize: Function = _nvjitlink("nvJitLinkGetLinkedCubinSize", nvJitLinkHandle, POINTER(c_size_t))
nvJitLinkGetLinkedCubin: Function = _nvjitlink("nvJitLinkGetLinkedCubin", nvJitLinkHandle, c_void_p)
nvJitLinkGetLinkedPtxSize: Function = _nvjitlink("nvJitLinkGetLinkedPtxSize", nvJitLinkHandle, POINTER(c_size_t))
nvJitLinkGetLinkedPtx: Function = _nvjitlink("nvJitLinkGetLinkedPtx", nvJitLinkHandle, c_void_p)
nvJitLinkGetLinkedLTOIRSize: Function = _nvjitlink(
    "nvJitLinkGetLinkedLTOIRSize", nvJitLinkHandle, POINTER(c_size_t), since=(13, 2)
)
nvJitLinkGetLinkedLTOIR: Function = _nvjitlink("nvJitLinkGetLinkedLTOIR", nvJitLinkHandle, c_void_p, since=(13, 2))

# The messages.
nvJitLinkGetErrorLogSize: Function = _nvjitlink("nvJitLinkGetErrorLogSize", nvJitLinkHandle, POINTER(c_size_t))
nvJitLinkGetErrorLog: Function = _nvjitlink("nvJitLinkGetErrorLog", nvJitLinkHandle, c_void_p)
nvJitLinkGetInfoLogSize: Function = _nvjitlink("nvJitLinkGetInfoLogSize", nvJitLinkHandle, POINTER(c_size_t))
nvJitLinkGetInfoLog: Function = _nvjitlink("nvJitLinkGetInfoLog", nvJitLinkHandle, c_void_p)
