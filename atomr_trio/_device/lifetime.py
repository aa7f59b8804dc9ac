"""The life of open devices: the work of `open_device`, in the task that opens one, and the block of `open_devices`.

`async with open_device()` raises:

- the body's own exception, the same object, never wrapped;
- `Cancelled`, when the scope around it was cancelled, after a bounded cleanup;
- `DeviceFailed`, when the supervision gave up; a body exception is its context;
- the error of the first start, plain, before the body ran; of several devices the first error, and the others are
  closed;
- `AtomrInternalError` for an internal error.

It never raises an exception group of its own. The body runs in the caller's task. The supervisor is a child task in a
shielded scope, so that a cancellation from outside ends the body first and the body's ``finally`` can still use the
device. The shield ends when the body does, and everything after that is bounded by `close_timeout`.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, TypeVar

import trio

from .._arrays.memory import DeviceMemory, QuarantineGate
from .._calls.known import KnownCalls
from .._calls.launching import AwaitedLaunches
from .._calls.shortcut import Shortcut
from .._generation.actor import Actor
from .._generation.core import DeviceCore, DeviceOptions, WorkerSource
from .._generation.group import Group
from .._generation.process import MAX_DEVICES, WorkerProcess
from .._supervision.home import check_can_open
from .._supervision.mailbox import Mailbox
from .._supervision.policy import RestartPolicy
from .._transfers.populating import Populating
from .._transfers.transfers import Transfers
from .._values.backends import chosen_backend
from .._values.errors import AtomrInternalError, DeviceFailed, InvalidArgument
from .._values.findings import Check, chosen_checks
from .._values.util import Living, check_seconds, known, shown
from .._wire.backends import Backend, BackendName
from .._wire.limits import raise_descriptor_limit, reason_of
from ..libraries.registered import ACTORS as LIBRARY_ACTORS
from .device import Device
from .ending import Ending
from .supervisor import Supervisor

OnFault = Literal["survive", "stale"]
Face = TypeVar("Face")
"""What a block yields: a `Device`, or the `Devices` of a group."""

ACTORS = ("memory", "module", "nvrtc", *LIBRARY_ACTORS)
MAILBOX_CAPACITY = 256
MAX_STANDBYS = 4
DEFAULT_SPIN: Final[Mapping[Backend, float]] = MappingProxyType({"cuda": 1e-3, "sim": 1e-4})
FEW_PROCESSORS: Final = 4
SPIN_WITH_FEW: Final = 1e-4
"""The default with fewer than `FEW_PROCESSORS` processors: a worker that polls takes one from what it waits for."""

open_now: Living[Supervisor] = Living()
"""The devices of this process that are open."""


def _forget_devices_in_child() -> None:
    for supervisor in open_now:
        supervisor.ending.forget_in_child()


if hasattr(os, "register_at_fork"):  # not on every system that can import this package
    os.register_at_fork(after_in_child=_forget_devices_in_child)


def _check_platform() -> None:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
        raise DeviceFailed(
            f"devices can be opened on Linux, x86-64 or aarch64, and this is {sys.platform} on {machine}",
            advice="run the program on Linux; on Windows, in WSL2",
        )


def _check_options(
    index: object,
    standby: object,
    on_fault: object,
    hang_timeout: object,
    close_timeout: object,
    memory_limit: object,
    restart_policy: object,
    plan_cache: object,
) -> None:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < MAX_DEVICES:
        raise InvalidArgument(f"a device's index is an int from 0 to {MAX_DEVICES - 1}, not {index!r}")
    if isinstance(standby, bool) or not isinstance(standby, int) or not 0 <= standby <= MAX_STANDBYS:
        raise InvalidArgument(f"standby is an int from 0 to {MAX_STANDBYS}, not {standby!r}")
    if on_fault not in ("survive", "stale"):
        raise InvalidArgument(f'on_fault is "survive" or "stale", not {on_fault!r}')
    if hang_timeout is not None:
        check_seconds("hang_timeout", hang_timeout)
    check_seconds("close_timeout", close_timeout)
    if memory_limit is not None and (type(memory_limit) is not int or memory_limit <= 0):
        raise InvalidArgument(f"memory_limit is a number of bytes, not {memory_limit!r}")
    if restart_policy is not None and not isinstance(restart_policy, RestartPolicy):
        raise InvalidArgument(f"restart_policy is a RestartPolicy, not {restart_policy!r}")
    if type(plan_cache) is not int or plan_cache < 1:
        raise InvalidArgument(f"plan_cache is a number of plans, 1 or more, not {plan_cache!r}")


def _check_spin(spin: object) -> None:
    number = isinstance(spin, int | float) and not isinstance(spin, bool)
    if spin is not None and not (number and 0 <= spin < math.inf):  # type: ignore[operator]
        raise InvalidArgument(f"spin is a number of seconds, 0 or more, not {spin!r}")


def _default_spin(backend: Backend) -> float:
    usual = DEFAULT_SPIN[backend]
    return usual if len(os.sched_getaffinity(0)) >= FEW_PROCESSORS else min(usual, SPIN_WITH_FEW)


def _check_workers(workers: object) -> None:
    if workers is not None and not (hasattr(workers, "take") and hasattr(workers, "give_back")):
        raise InvalidArgument(f"workers is a WorkerPool or has its methods take and give_back, not {shown(workers)}")


class OpenedDevice:
    """One device from its first generation to its release. `open_device` has one of these, `open_devices` several.

    Its methods are called once each, in this order: `begin`, `supervise`, `end`, `release`. If `begin` raises, only
    `release` follows.
    """

    def __init__(self, index: int, backend: Backend, options: DeviceOptions) -> None:
        """Raises `DeviceFailed` when the system has no room for it; nothing has to be released then."""
        try:
            self.core: DeviceCore = DeviceCore(index, backend, options)
            _equip(self.core)
            self.device: Device = Device._create(self.core)
        except (OSError, MemoryError) as error:
            raise DeviceFailed(f"the device could not be opened: {reason_of(error)}", device=index) from error
        self.supervisor: Supervisor = Supervisor(self.core)
        self.ending: Ending = self.supervisor.ending
        self.leaves_early: bool = False
        """True if it is to be released when it has failed, and not when the block is left."""
        self._released = False
        self._populating: Populating | None = None
        open_now.add(self.supervisor)
        self.core.home.enter()

    def __repr__(self) -> str:
        return f"<OpenedDevice {self.core!r}>"

    @trio.lowlevel.enable_ki_protection
    async def begin(self, process: WorkerProcess | None = None) -> None:
        """Start the first generation, by a process that was started ahead, if there is one.

        Raises the error that a user should see.
        """
        if self.core.backend == "cuda":  # the simulator registers nothing
            self._populating = Populating(self.core.part(Transfers).staging.memory)
        await self.supervisor.begin(process)

    def supervise(self, nursery: trio.Nursery) -> None:
        """Supervise the device in a nursery until it has ended."""
        nursery.start_soon(self._run, name=f"atomr_trio.device{self.core.index}.supervisor")

    @trio.lowlevel.enable_ki_protection
    async def _run(self) -> None:
        await self.supervisor.run()
        if self.leaves_early:
            await self.release()

    def end(self) -> None:
        """Begin the end, after the body of the block. The supervisor ends by itself then, in bounded time."""
        self.ending.begin()

    @trio.lowlevel.enable_ki_protection
    async def release(self) -> None:
        """Give back what outlives the generations. The supervisor has ended, or was never started."""
        if self._released:
            return
        self._released = True
        if self._populating is not None:
            self._populating.end()
        try:
            await self.ending.give_memory_back()
        finally:
            self.ending.release()
            open_now.discard(self.supervisor)


def checked_options(
    index: object = 0,
    *,
    backend: BackendName | None = None,
    standby: int = 0,
    on_fault: OnFault = "survive",
    hang_timeout: float | None = None,
    close_timeout: float = 2.0,
    memory_limit: int | None = None,
    restart_policy: RestartPolicy | None = None,
    guarded: bool = False,
    workers: WorkerSource | None = None,
    spin: float | None = None,
    check: Check | Collection[Check] | None = None,
    plan_cache: int = 256,
) -> tuple[Backend, DeviceOptions]:
    """Return the backend and the options that the arguments of `open_device` mean. Raises `InvalidArgument`."""
    _check_platform()
    _check_options(index, standby, on_fault, hang_timeout, close_timeout, memory_limit, restart_policy, plan_cache)
    _check_spin(spin)
    _check_workers(workers)
    chosen = chosen_backend(backend)
    checks = chosen_checks(check, chosen)
    return chosen, DeviceOptions(
        strict=on_fault == "stale",
        hang_timeout=hang_timeout,
        close_timeout=close_timeout,
        memory_limit=memory_limit,
        restart_policy=restart_policy or RestartPolicy(),
        standby=standby,
        guarded=guarded,
        workers=workers,
        spin=_default_spin(chosen) if spin is None else float(spin),
        checks=checks,
        plan_cache=plan_cache,
    )


def open_device(
    index: int = 0, *, process: WorkerProcess | None = None, **options: Any
) -> AbstractAsyncContextManager[Device]:
    """Open a GPU: the work of `open_device` once this module and its imports are loaded.

    `process` is a worker that was started ahead for this backend and index, or None. If entering the block raises, the
    caller must end it, unless it has ended.
    """
    check_can_open(index)
    backend, checked = checked_options(index, **options)
    raise_descriptor_limit()
    opened = OpenedDevice(index, backend, checked)
    ending = opened.ending
    return block_of([opened], opened.device, ending.body_scope, lambda: ending.failure, [process])


@contextlib.asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def block_of(
    opened: Sequence[OpenedDevice],
    face: Face,
    body_scope: trio.CancelScope,
    failure_of: Callable[[], Exception | None],
    processes: Sequence[WorkerProcess | None],
    group: Group | None = None,
) -> AsyncIterator[Face]:
    """The block of one device or of several: it opens them, yields `face`, and closes them.

    The body runs in `body_scope`. `failure_of` returns the error of the supervision that has cancelled it, if any.
    `processes` are the workers that were started ahead, one for each device, or None. The tasks of `group` run beside
    the body.
    """
    body_error: BaseException | None = None
    try:
        await _begin(opened, processes)
        try:
            async with trio.open_nursery() as nursery:
                for each in opened:
                    each.supervise(nursery)
                if group is not None:
                    group.begin(nursery)
                try:
                    with body_scope:
                        yield face
                except BaseException as error:
                    body_error = error
                if group is not None:
                    group.end()
                for each in opened:
                    each.end()
                # Shielded from every cancellation: the supervisors end by themselves, in bounded time.
                nursery.cancel_scope.shield = True
        except BaseExceptionGroup as group:
            body_error = _interrupt_of(group)
    finally:
        await _release(opened)
    failure = failure_of()
    if failure is not None and not isinstance(body_error, KeyboardInterrupt):
        if body_error is not None:
            failure.__context__ = body_error
        raise failure
    if body_error is not None:
        raise body_error


def _interrupt_of(group: BaseExceptionGroup[BaseException]) -> KeyboardInterrupt:
    """Return the `KeyboardInterrupt` that a nursery of ours has raised. Raises `AtomrInternalError` for all else."""
    interrupts, others = group.split(KeyboardInterrupt)
    if interrupts is None or (others is not None and others.split(trio.Cancelled)[1] is not None):
        raise AtomrInternalError("a task of the device raised") from group
    interrupt = KeyboardInterrupt()
    interrupt.__cause__ = interrupts
    return interrupt


@trio.lowlevel.enable_ki_protection
async def raise_plain(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise what a nursery of ours has raised before the body began, and no group: an interrupt, or `Cancelled`."""
    if group.split(KeyboardInterrupt)[0] is None:
        await trio.lowlevel.checkpoint_if_cancelled()
    raise _interrupt_of(group) from None


@trio.lowlevel.enable_ki_protection
async def _begin(opened: Sequence[OpenedDevice], processes: Sequence[WorkerProcess | None]) -> None:
    """Start the first generation of every device, side by side.

    If one fails, the others are closed, and its error is raised. They are closed also if this is cancelled.
    """
    if len(opened) == 1:
        await opened[0].begin(processes[0])
        return
    failed: list[Exception] = []

    @trio.lowlevel.enable_ki_protection
    async def begin(each: OpenedDevice, process: WorkerProcess | None) -> None:
        try:
            await each.begin(process)
        except Exception as error:
            failed.append(error)
            nursery.cancel_scope.cancel(reason=f"device {each.core.index} could not be opened: {error}")

    try:
        async with trio.open_nursery() as nursery:
            for each, process in zip(opened, processes, strict=True):
                nursery.start_soon(begin, each, process)
        if failed:
            first = failed[0]
            first.add_note(f"{known(opened[0].core.group, 'it has several devices').name} were opened together")
            raise first
    except BaseException as error:
        await _close(opened)
        if isinstance(error, BaseExceptionGroup):
            await raise_plain(error)
        raise


@trio.lowlevel.enable_ki_protection
async def _close(opened: Sequence[OpenedDevice]) -> None:
    """Close those devices that have begun, with no body in between."""
    with trio.CancelScope(shield=True):  # bounded by `close_timeout`
        async with trio.open_nursery() as nursery:
            for each in opened:
                if each.core.current is not None:
                    each.supervise(nursery)
                    each.end()


@trio.lowlevel.enable_ki_protection
async def _release(opened: Sequence[OpenedDevice]) -> None:
    """Release every device; to give memory back takes a while, so they do it side by side."""
    if len(opened) == 1:
        await opened[0].release()
        return
    try:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for each in opened:
                    nursery.start_soon(each.release)
    except BaseExceptionGroup as group:
        raise _interrupt_of(group) from None


def _equip(core: DeviceCore) -> None:
    """Make the parts that every device has, lower layers first, and the actors."""
    memory = core.part(DeviceMemory)
    core.part(Transfers)
    core.part(AwaitedLaunches)
    core.part(KnownCalls)
    gate = QuarantineGate(memory)
    core.employ([Actor(name, Mailbox(name, MAILBOX_CAPACITY, gate)) for name in ACTORS])
    for actor in core.actors:
        if actor.name != "nvrtc":  # its requests wait for threads
            actor.mailbox.shortcut = Shortcut(core, actor)
