"""A timer of the operating system that a trio task can wait for.

Faults and hangs are detected in real time, whatever clock the trio run uses: a test with a mock clock must not make a
healthy worker look dead. ``timerfd`` comes from libc; this is not a CUDA call.

Nothing in this file may fail for lack of a descriptor, because reaping and replacing a lost worker depends on it.
Without one, a wait polls the clock, or its condition, once a millisecond and with a checkpoint in between.

Time in which this process was stopped (SIGSTOP), or its machine suspended, does not count. So a long wait is made of
short ones, and each of them counts as its own length at most.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import select
import time
from typing import Self

import trio

from .._wire.limits import shortage

_CLOCK_MONOTONIC = 1
_LOOK_SECONDS = 1e-3
_STRIDE = 1.0


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.timerfd_create.argtypes = [ctypes.c_int, ctypes.c_int]
    libc.timerfd_create.restype = ctypes.c_int
    libc.timerfd_settime.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.POINTER(_TimerSpec), ctypes.c_void_p]
    libc.timerfd_settime.restype = ctypes.c_int
    return libc


def _error() -> OSError:
    """Return the error of libc's last call."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def _looks(seconds: float) -> int:
    """Return the number of polls in that time."""
    return max(1, math.ceil(seconds / _LOOK_SECONDS))


class RealTimer:
    """A periodic timer. Close it, or use it in a ``with`` statement."""

    def __init__(self, period: float) -> None:
        self._period = period
        self._descriptor: int = -1
        self._open()

    def _open(self) -> None:
        """Get a descriptor, if there is one."""
        libc = _libc()
        self._descriptor = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            error = _error()
            if shortage(error) is None:
                raise error
            return
        self._set()

    def _set(self) -> None:
        # Zero would disarm the timer.
        spec = _TimeSpec(*divmod(int(self._period * 1e9) or 1, 10**9))
        if _libc().timerfd_settime(self._descriptor, 0, ctypes.byref(_TimerSpec(spec, spec)), None) < 0:
            error = _error()
            self.close()
            raise error

    def change(self, period: float) -> None:
        """Begin a period of this length now, also for a task that waits for the end of the present one."""
        self._period = period
        if self._descriptor >= 0:
            self._set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the descriptor, which is readable when a period has ended; -1 if the system had none left."""
        return self._descriptor

    async def tick(self) -> None:
        """Wait for the next period to end."""
        if self._descriptor < 0:
            self._open()
        if self._descriptor < 0:
            for _ in range(_looks(self._period)):
                time.sleep(_LOOK_SECONDS)  # noqa: ASYNC251  trio's own clock may not be the real one
                await trio.lowlevel.checkpoint()
            return
        await trio.lowlevel.wait_readable(self._descriptor)
        with contextlib.suppress(BlockingIOError):  # trio may wake a task spuriously
            os.read(self._descriptor, 8)

    def close(self) -> None:
        """Close the descriptor. Closing twice is fine."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Patience:
    """A budget of seconds of real time, without the time in which this process is stopped."""

    def __init__(self, seconds: float) -> None:
        self.left: float = seconds
        """The seconds that were left at the end of the last wait."""
        self._seen = time.monotonic()

    async def readable(self, *descriptors: int) -> list[int]:
        """Wait until a descriptor is readable. Returns those that are; none when the time is over."""
        while True:
            self._spend()
            stride = max(0.0, min(self.left, _STRIDE))
            ready = await _readable_for(stride, descriptors)
            if ready:
                self._spend()
                return ready
            self.left -= stride
            self._seen = time.monotonic()
            if self.left <= 0:
                return []

    def _spend(self) -> None:
        now = time.monotonic()
        self.left -= min(_STRIDE, max(0.0, now - self._seen))
        self._seen = now


async def readable_within(seconds: float, *descriptors: int) -> list[int]:
    """Wait until a descriptor is readable, for `seconds` of real time at most. Returns those that are."""
    return await Patience(seconds).readable(*descriptors)


async def _readable_for(seconds: float, descriptors: tuple[int, ...]) -> list[int]:
    with contextlib.ExitStack() as held:
        timer = held.enter_context(RealTimer(seconds))
        try:
            together = held.enter_context(select.epoll())
        except OSError as error:
            if shortage(error) is None:
                raise
            return await _looked_for(seconds, descriptors)
        if timer.fileno() < 0:
            return await _looked_for(seconds, descriptors)
        for descriptor in (*descriptors, timer.fileno()):
            together.register(descriptor, select.EPOLLIN)
        await trio.lowlevel.wait_readable(together.fileno())
        return [ready for ready, _ in together.poll(0) if ready != timer.fileno()]


async def _looked_for(seconds: float, descriptors: tuple[int, ...]) -> list[int]:
    """Wait in the same way without a timer's descriptor: ``poll`` needs none."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    for _ in range(_looks(seconds)):
        if ready := poll.poll(_LOOK_SECONDS * 1e3):
            return [descriptor for descriptor, _ in ready]
        await trio.lowlevel.checkpoint()
    return []
