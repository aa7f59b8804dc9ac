"""The life of an open device: the work of `open_device`, in the task that opens it.

`async with open_device()` raises:

- the body's own exception, the same object, never wrapped;
- `Cancelled`, when the scope around it was cancelled, after a bounded cleanup;
- `DeviceFailed`, when the supervision gave up; a body exception is its context;
- the error of the first start, plain, before the body ran;
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
from collections.abc import AsyncIterator, Collection, Mapping
from types import MappingProxyType
from typing import Final, Literal

import trio

from .._arrays.memory import DeviceMemory, QuarantineGate
from .._calls.known import KnownCalls
from .._calls.launching import AwaitedLaunches
from .._calls.shortcut import Shortcut
from .._generation.actor import Actor
from .._generation.core import DeviceCore, DeviceOptions, WorkerSource
from .._generation.process import MAX_DEVICES, WorkerProcess
from .._supervision.home import check_can_open
from .._supervision.mailbox import Mailbox
from .._supervision.policy import RestartPolicy
from .._transfers.populating import Populating
from .._transfers.transfers import Transfers
from .._values.backends import chosen_backend
from .._values.errors import AtomrInternalError, DeviceFailed, InvalidArgument
from .._values.findings import Check, chosen_checks
from .._values.util import Living, check_seconds, shown
from .._wire.backends import Backend, BackendName
from .._wire.limits import raise_descriptor_limit, reason_of
from ..libraries.registered import ACTORS as LIBRARY_ACTORS
from .device import Device
from .supervisor import Supervisor

OnFault = Literal["survive", "stale"]

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


@contextlib.asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def open_device(
    index: int = 0,
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
    process: WorkerProcess | None = None,
) -> AsyncIterator[Device]:
    """Open a GPU: the work of `open_device` once this module and its imports are loaded.

    `process` is a worker that was started ahead for this backend and index, or None. If this raises before it yields,
    the caller must end it, unless it has ended.
    """
    check_can_open(index)
    _check_platform()
    _check_options(index, standby, on_fault, hang_timeout, close_timeout, memory_limit, restart_policy, plan_cache)
    _check_spin(spin)
    _check_workers(workers)
    chosen = chosen_backend(backend)
    checks = chosen_checks(check, chosen)
    raise_descriptor_limit()
    options = DeviceOptions(
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
    try:
        core = DeviceCore(index, chosen, options)
        _equip(core)
        device = Device._create(core)
    except (OSError, MemoryError) as error:
        raise DeviceFailed(f"the device could not be opened: {reason_of(error)}", device=index) from error
    supervisor = Supervisor(core)
    ending = supervisor.ending
    open_now.add(supervisor)
    core.home.enter()
    body_error: BaseException | None = None
    populating: Populating | None = None
    if chosen == "cuda":  # the simulator registers nothing
        populating = Populating(core.part(Transfers).staging.memory)
    try:
        await supervisor.begin(process)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervisor.run, name=f"atomr_trio.device{index}.supervisor")
                try:
                    with ending.body_scope:
                        yield device
                except BaseException as error:
                    body_error = error
                ending.begin()
                # Shielded from every cancellation: the supervisor ends by itself, in bounded time.
                nursery.cancel_scope.shield = True
        except BaseExceptionGroup as group:
            interrupts, others = group.split(KeyboardInterrupt)
            if others is not None:
                raise AtomrInternalError("a task of the device raised") from group
            body_error = KeyboardInterrupt()
            body_error.__cause__ = interrupts
    finally:
        if populating is not None:
            populating.end()
        try:
            await ending.give_memory_back()
        finally:
            ending.release()
            open_now.discard(supervisor)
    if ending.failure is not None and not isinstance(body_error, KeyboardInterrupt):
        if body_error is not None:
            ending.failure.__context__ = body_error
        raise ending.failure
    if body_error is not None:
        raise body_error


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
