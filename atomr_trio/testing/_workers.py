"""The worker process of a device, for tests that end it or hold it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import trio

from .._device import Device
from .._errors import InvalidArgument
from .._util import known

if TYPE_CHECKING:
    from .._generation import Generation
    from ..worker.launcher import WorkerProcess


def worker_pid(dev: Device) -> int:
    """The process number of the worker in service.

    Raises `InvalidArgument` for what is no device, `trio.WouldBlock` while the device is being rebuilt, `DeviceClosed`
    or `DeviceFailed` once it has ended.
    """
    return generation_of(dev).process.pid


def kill_worker(dev: Device, how: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal, `how`, to the worker in service; nothing happens if it has just ended by itself.

    ``SIGKILL`` and ``SIGSEGV`` end it, and the device notices at once. ``SIGSTOP`` stops it, which the device notices
    after 2 s. Raises as `worker_pid` does.
    """
    _send_signal(generation_of(dev).process, how)


@contextlib.contextmanager
def hold_worker(dev: Device) -> Iterator[None]:
    """Stop the worker in service while the block runs, without the device noticing.

    What is sent meanwhile is started and does not finish, so a test can look at it, cancel it or lose it
    (`kill_worker`) at a moment of its choice. Work that the GPU had begun goes on. A `hang_timeout` shorter than the
    block still ends the worker. Raises as `worker_pid` does.
    """
    generation = generation_of(dev)
    _send_signal(generation.process, signal.SIGSTOP)
    _wait_stopped(generation.process)
    # To the watchdog it lives and has read everything: a new heartbeat each time that it looks, and no end of records.
    signs_of_life = {"heartbeat": itertools.count(1 << 62).__next__, "records_read": lambda: sys.maxsize}
    with replaced(generation.page, **signs_of_life):
        try:
            yield
        finally:
            _send_signal(generation.process, signal.SIGCONT)


@contextlib.contextmanager
def hold_rebuild(dev: Device) -> Iterator[None]:
    """Let no next generation begin while the block runs, whatever stands by.

    A worker that is lost in the block leaves the device rebuilding until the end of the block, so a test can look at
    what waits meanwhile. Everything that is torn or lost is decided, and the lost worker is gone, as ever. The device
    must not be closed in the block. Raises nothing.
    """
    dev._home.check_thread()
    end = trio.Event()
    rebuild = dev._rebuild

    async def rebuild_later(*arguments: Any) -> Any:
        await end.wait()
        return await rebuild(*arguments)

    with replaced(dev, _rebuild=rebuild_later):
        try:
            yield
        finally:
            end.set()


@contextlib.contextmanager
def replaced(owner: object, **methods: Callable[..., object]) -> Iterator[None]:
    """Put functions in the place of methods of one object."""
    for name, function in methods.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for name in methods:
            delattr(owner, name)


def generation_of(dev: Device) -> Generation:
    """The generation in service. Raises as `worker_pid` does."""
    if not isinstance(dev, Device):
        raise InvalidArgument(f"expected a device, not {type(dev).__name__}")
    dev._check_running()
    return known(dev._generation, "a device that is running has a generation")


def _send_signal(process: WorkerProcess, how: signal.Signals) -> None:
    """By the descriptor and not by the number, which may belong to another process once this one was reaped."""
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(process.pidfd, how)


def _wait_stopped(process: WorkerProcess) -> None:
    """Every thread of it has stopped, or it has ended: a matter of microseconds."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, process.pidfd, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def children() -> list[int]:
    """The process numbers of the children of this process, ended ones that were not reaped among them."""
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
            found += map(int, file.read().split())
    return found


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so that nothing announces; the caller's cancel scope is the limit."""
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.001)
