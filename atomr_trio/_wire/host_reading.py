"""Whether a worker may read the memory of the user's process, and how it does: ``process_vm_readv``.

The kernel copies between two processes as fast as memcpy does, without the interpreter of either. It allows that to
whoever may trace the other process. A worker is a child that runs as the same user, so it may, unless the system has
closed that to children (``kernel.yama.ptrace_scope`` is 1 on many desktops), or the process has changed its user. So a
worker tries it once, with bytes that are in the user's process alone, and says what came of it.

A worker never writes there: an array of a copy that was given up belongs to its owner again.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

from .backends import READ_VARIABLE, reading_wanted

_BEACON_BYTES = 16


class Span(ctypes.Structure):
    """``struct iovec``: a run of bytes in memory."""

    _fields_ = (("begin", ctypes.c_void_p), ("size", ctypes.c_size_t))


@functools.cache
def reader() -> Any:
    """Return ``process_vm_readv`` of the C library. Raises `AttributeError` where there is none."""
    function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    spans = ctypes.POINTER(Span)
    function.argtypes = [ctypes.c_int, spans, ctypes.c_ulong, spans, ctypes.c_ulong, ctypes.c_ulong]
    function.restype = ctypes.c_ssize_t
    return function


class Beacon:
    """Bytes by which a worker knows that it reads the memory of this process."""

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(os.urandom(_BEACON_BYTES), _BEACON_BYTES)

    def described(self) -> tuple[int, str]:
        """Return their address, and what they are."""
        return ctypes.addressof(self._bytes), self._bytes.raw.hex()


@functools.cache
def beacon() -> Beacon:
    """Return those of this process."""
    return Beacon()


def read(process: int, address: int, to: int, size: int) -> None:
    """Copy bytes of another process to an address here. Raises `OSError` if not all of them could be read."""
    here, there = Span(to, size), Span(address, size)
    count = reader()(process, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if count != size:
        number = ctypes.get_errno() if count < 0 else 0
        raise OSError(number, os.strerror(number) if number else f"{count} of {size} bytes could be read")


def reason_against(process: int, address: int, content: str) -> str | None:
    """Try to read the beacon of another process. Return why its memory cannot be read; None if it can."""
    if not reading_wanted():
        return f"{READ_VARIABLE}=0"
    found = ctypes.create_string_buffer(_BEACON_BYTES)
    try:
        read(process, address, ctypes.addressof(found), _BEACON_BYTES)
    except AttributeError:
        return "the C library has no process_vm_readv"
    except OSError as error:
        return f"the system does not allow it: {error.strerror or error}"
    return None if found.raw.hex() == content else "what it read is not what is there"
