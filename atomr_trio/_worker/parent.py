"""The tie between a child process of this package and its parent, which the child must not outlive.

Imports the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import signal

from .._wire.protocol import EXIT_ORPHANED

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when the process `parent` ends; end it now if `parent` has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
    libc.prctl.restype = ctypes.c_int
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(EXIT_ORPHANED)
