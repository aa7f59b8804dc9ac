"""A timer of the operating system that a trio task can wait for.

Faults and hangs are detected in real time, whatever clock the trio run uses: a test with a mock clock must not make a
healthy worker look dead. ``timerfd`` comes from libc; this is no CUDA call.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
from typing import Self

import trio

_CLOCK_MONOTONIC = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.timerfd_create.argtypes = [ctypes.c_int, ctypes.c_int]
    libc.timerfd_create.restype = ctypes.c_int
    libc.timerfd_settime.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.POINTER(_TimerSpec), ctypes.c_void_p]
    libc.timerfd_settime.restype = ctypes.c_int
    return libc


def _error() -> OSError:
    """What the last call of libc failed by."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


class RealTimer:
    """A periodic timer. Close it, or use it in a ``with`` statement."""

    def __init__(self, period: float) -> None:
        libc = _libc()
        self._descriptor: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise _error()
        # Zero would switch the timer off.
        spec = _TimeSpec(*divmod(int(period * 1e9) or 1, 10**9))
        if libc.timerfd_settime(self._descriptor, 0, ctypes.byref(_TimerSpec(spec, spec)), None) < 0:
            error = _error()
            self.close()
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    def fileno(self) -> int:
        """The descriptor, which is readable when a period has ended."""
        return self._descriptor

    async def tick(self) -> None:
        """Wait for the next period to end."""
        await trio.lowlevel.wait_readable(self._descriptor)
        with contextlib.suppress(BlockingIOError):  # trio may wake a task for nothing
            os.read(self._descriptor, 8)

    def close(self) -> None:
        """Close the descriptor. Closing twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


async def readable_within(seconds: float, *descriptors: int) -> list[int]:
    """Wait until a descriptor is readable, for `seconds` of real time at most; those that are, none when it is over."""
    with RealTimer(max(seconds, 0.0)) as timer, select.epoll() as together:
        for descriptor in (*descriptors, timer.fileno()):
            together.register(descriptor, select.EPOLLIN)
        await trio.lowlevel.wait_readable(together.fileno())
        return [ready for ready, _ in together.poll(0) if ready != timer.fileno()]
