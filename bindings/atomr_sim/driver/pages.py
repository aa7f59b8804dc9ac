"""Pages of this process and memory files, by the calls of the C library.

Simulated device memory is ordinary memory: anonymous pages, or a memory file that several processes can map. This file
only uses the operating system, and does not depend on devices.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

PAGE = mmap.PAGESIZE

_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_NO_ACCESS = 0  # PROT_NONE, which the mmap module does not define
_FIXED = 0x10
_NORESERVE = 0x4000
_HUGE_PAGES = 14  # MADV_HUGEPAGE
_FIXED_NOREPLACE = 0x100000
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_mmap.restype = ctypes.c_void_p
_munmap = _libc.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_munmap.restype = ctypes.c_int
_msync = _libc.msync
_msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_msync.restype = ctypes.c_int
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_madvise.restype = ctypes.c_int

_FAILED = ctypes.c_void_p(-1).value


def _map(address: int, size: int, protection: int, flags: int, descriptor: int = -1, offset: int = 0) -> int:
    result: int | None = _mmap(address or None, size, protection, flags, descriptor, offset)
    if result is None or result == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap of {size} bytes at {address:#x}: {os.strerror(number)}")
    return result


def up(size: int, granularity: int = PAGE) -> int:
    """Return the next multiple of the granularity."""
    return -(-size // granularity) * granularity


def allocate(size: int) -> int:
    """Allocate zeroed private pages. A page without access follows, so that neighbours in memory never touch.

    Large pages are requested, as numpy does for its own arrays: a process that has filled many small ones ends more
    slowly.
    """
    length = up(size)
    address = _map(0, length + PAGE, _READ_WRITE, _ANONYMOUS)
    _madvise(address, length, _HUGE_PAGES)  # a kernel without them refuses, which changes nothing
    _map(address + length, PAGE, _NO_ACCESS, _ANONYMOUS | _FIXED | _NORESERVE)
    return address


def free(address: int, size: int) -> None:
    """Give back the memory of ``allocate`` with this size."""
    release(address, up(size) + PAGE)


def reserve(hint: int, size: int, alignment: int) -> int:
    """Reserve addresses without memory: at the hint if all of them are free there, else elsewhere."""
    flags = _ANONYMOUS | _NORESERVE
    if hint and hint % alignment == 0:
        try:
            address = _map(hint, size, _NO_ACCESS, flags | _FIXED_NOREPLACE)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOMEM, errno.EPERM, errno.EINVAL):
                raise
        else:
            if address == hint:
                return address
            release(address, size)  # a kernel without MAP_FIXED_NOREPLACE takes the hint only as a preference
    start = _map(0, size + alignment, _NO_ACCESS, flags)
    address = up(start, alignment)
    if address > start:
        release(start, address - start)
    if start + alignment > address:
        release(address + size, start + alignment - address)
    return address


def release(address: int, size: int) -> None:
    """Unmap pages."""
    if _munmap(address, size) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"munmap of {size} bytes at {address:#x}: {os.strerror(number)}")


def place_file(address: int, size: int, descriptor: int, offset: int) -> None:
    """Map a part of a memory file over reserved addresses."""
    _map(address, size, _READ_WRITE, mmap.MAP_SHARED | _FIXED, descriptor, offset)


def take_file_away(address: int, size: int) -> None:
    """Make addresses reserved again, without memory."""
    _map(address, size, _NO_ACCESS, _ANONYMOUS | _FIXED | _NORESERVE)


def mapped(address: int, size: int) -> bool:
    """Tell whether every page of this range is mapped."""
    start = address // PAGE * PAGE
    asynchronous = 1  # MS_ASYNC: nothing is written, but a hole in the range is an error
    return bool(_msync(start, up(address + size - start), asynchronous) == 0)
