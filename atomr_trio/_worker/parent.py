"""What a child process of this package asks of the kernel: an end with its parent, and sleeps that end in time.

Imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import signal

from .._wire.protocol import EXIT_ORPHANED

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when the process `parent` ends; end it now if `parent` has ended."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_ORPHANED)


def sleep_precisely() -> None:
    """Have the kernel wake this thread when a sleep is over, and not up to 50 us later together with others."""
    _prctl(_PR_SET_TIMERSLACK, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
    libc.prctl.restype = ctypes.c_int
    libc.prctl(option, value, 0, 0, 0)
