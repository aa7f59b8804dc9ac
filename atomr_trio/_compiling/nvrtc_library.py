"""The installed NVRTC, and its failures as exceptions of this package.

This file queries the library itself. It does not depend on what is compiled.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

from atomr_cuda import CudaError, LibraryMissing, nvrtc
from atomr_trio._values.errors import CompileError, ErrorContext, LibraryNotFound

__all__ = ["error_context", "not_found", "nvrtc_errors", "nvrtc_version", "supported_architectures"]


@contextlib.contextmanager
def nvrtc_errors() -> Iterator[None]:
    """Raise a failure of the NVRTC library as an exception of this package. This is the only place that does so."""
    try:
        yield
    except LibraryMissing as error:
        raise not_found(error, library="nvrtc", operation="nvrtc.compile") from error
    except CudaError as error:
        raise CompileError(f"{error.function} failed", **error_context(error)) from error


def not_found(error: LibraryMissing, *, library: str, operation: str) -> LibraryNotFound:
    """Return the exception for a library that was not found. Elsewhere than on Linux, there is none to install."""
    if sys.platform != "linux":
        return LibraryNotFound(
            f"{library} is loaded on Linux alone, and this is {sys.platform}",
            library=library,
            operation=operation,
            advice="run the program on Linux; on Windows, in WSL2",
        )
    return LibraryNotFound(str(error), library=library, operation=operation)


def error_context(error: CudaError) -> ErrorContext:
    """Return the exception for a status of NVRTC."""
    return {"status": error.status, "status_name": error.name, "library": "nvrtc", "operation": "nvrtc.compile"}


def nvrtc_version() -> tuple[int, int]:
    """Return the compiler's version, major and minor."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def supported_architectures() -> list[int]:
    """Return the numbers of the architectures that this NVRTC compiles for, ascending: 75, 80, ..."""
    count = ctypes.c_int()
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(numbers)
    return sorted(numbers)
