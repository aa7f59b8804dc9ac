"""The worker process of a device, for tests that end it or hold it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import trio

from .._device.device import Device, core_of
from .._values.errors import InvalidArgument
from .._values.util import known, shown
from ..plain._twins import Twin

if TYPE_CHECKING:
    from .. import plain
    from .._generation.generation import Generation
    from .._generation.process import WorkerProcess

    AnyDevice = Device | plain.Device


def worker_pid(dev: AnyDevice) -> int:
    """Return the process number of the worker in service. `dev` is a device of either face, as in all that follow.

    Raises `InvalidArgument` if `dev` is not a device, `trio.WouldBlock` while the device is being rebuilt, and
    `DeviceClosed` or `DeviceFailed` once it has ended.
    """
    return generation_of(dev).process.pid


def kill_worker(dev: AnyDevice, how: signal.Signals = signal.SIGKILL) -> None:
    """Send the signal `how` to the worker in service. Nothing happens if it has just ended by itself.

    ``SIGKILL`` and ``SIGSEGV`` end it, and the device notices at once. ``SIGSTOP`` stops it, which the device notices
    after 2 s, or 3 s if it was idle. Raises as `worker_pid` does.
    """
    _send_signal(generation_of(dev).process, how)


@contextlib.contextmanager
def hold_worker(dev: AnyDevice) -> Iterator[None]:
    """Stop the worker in service while the block runs, without the device noticing.

    Requests that are sent meanwhile start but do not finish. So a test can inspect them, cancel them or lose them
    (`kill_worker`) at a chosen moment. Work that the GPU has begun goes on. A `hang_timeout` shorter than the block
    still ends the worker. Raises as `worker_pid` does.
    """
    generation = generation_of(dev)
    _send_signal(generation.process, signal.SIGSTOP)
    _wait_stopped(generation.process)
    # The watchdog sees a worker that lives and has read everything: each look finds a new heartbeat and no unread
    # records.
    signs_of_life = {"heartbeat": itertools.count(1 << 62).__next__, "records_read": lambda: sys.maxsize}
    with replaced(generation.page, **signs_of_life):
        try:
            yield
        finally:
            _send_signal(generation.process, signal.SIGCONT)


@contextlib.contextmanager
def hold_rebuild(dev: AnyDevice) -> Iterator[None]:
    """Prevent the next generation from starting while the block runs, even if a standby worker is ready.

    When a worker is lost in the block, the device stays in the rebuilding state until the end of the block. So a test
    can inspect the waiting requests. As always, it is decided which arrays are torn or lost, and the lost worker is
    gone. Do not close the device in the block. Raises nothing.
    """
    if isinstance(dev, Twin):
        held = hold_rebuild(dev.awaited)
        dev._enqueue(held.__enter__)
        try:
            yield
        finally:
            dev._enqueue(held.__exit__, (None, None, None))
        return
    core = core_of(dev)
    core.home.check_thread()
    before, core.rebuild_held = core.rebuild_held, trio.Event()
    try:
        yield
    finally:
        core.rebuild_held.set()
        core.rebuild_held = before


@contextlib.contextmanager
def replaced(owner: object, **methods: Callable[..., object]) -> Iterator[None]:
    """Replace methods of one object by other functions while the block runs."""
    own: dict[str, object] = {name: vars(owner)[name] for name in methods if name in vars(owner)}
    for name, function in methods.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for name in methods:
            delattr(owner, name)
        for name, kept in own.items():
            setattr(owner, name, kept)


def generation_of(dev: AnyDevice) -> Generation:
    """Return the generation in service. Raises as `worker_pid` does."""
    if isinstance(dev, Twin):
        found: Generation = dev._enqueue(generation_of, (dev,))
        return found
    if not isinstance(dev, Device):
        raise InvalidArgument(f"dev is a device, not {shown(dev)}")
    core = core_of(dev)
    core.check_running()
    return known(core.current, "a device that is running has a generation")


def _send_signal(process: WorkerProcess, how: signal.Signals) -> None:
    """Send a signal through the descriptor. The number may belong to another process once this one was reaped."""
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(process.pidfd, how)


def _wait_stopped(process: WorkerProcess) -> None:
    """Tell whether every thread of the process has stopped, or the process has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, process.pidfd, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def children() -> list[int]:
    """Return the process numbers of this process's children, including ended ones that were not reaped."""
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
            found += map(int, file.read().split())
    return found


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true that no event announces. The caller's cancel scope is the limit."""
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.001)
