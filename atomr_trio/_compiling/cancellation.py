"""Ends a compile from another thread."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable

from atomr_cuda import LibraryMissing, nvrtc

__all__ = ["Cancellation"]


class Cancellation:
    """Ends a compile from another thread, if NVRTC supports it.

    NVRTC calls a C function some ten thousand times in a compile, from its own threads, to ask whether to stop. A
    Python function would need the interpreter's lock for each call, and would slow down the program's loop. So the
    function is `atoi`, and it reads a text in this object: "0", or "1" to stop.
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(b"0")
        self._attached = False

    @property
    def requested(self) -> bool:
        return self._text.value != b"0"

    @property
    def may_have_ended(self) -> bool:
        """Whether a compile may have been cut short."""
        return self._attached and self.requested

    def request(self) -> None:
        """Have the compile end soon. May be called from any thread, at any time."""
        self._text.value = b"1"

    def attach(self, program: ctypes.c_void_p) -> None:
        """Use it for an NVRTC program, if this NVRTC supports it; `self` must live as long as the program."""
        with contextlib.suppress(LibraryMissing):
            nvrtc.nvrtcSetFlowCallback(program, _atoi(), ctypes.addressof(self._text))
            self._attached = True


@functools.cache
def _atoi() -> Callable[..., int]:
    address = ctypes.cast(ctypes.CDLL(None).atoi, ctypes.c_void_p).value
    assert address is not None
    return nvrtc.nvrtcFlowCallback(address)
