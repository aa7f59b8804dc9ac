"""`check_actor`: a function that checks what every call of every library promises its caller."""

from __future__ import annotations

import collections
import contextlib
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import trio
import trio.testing

from .. import ContextLost, ContextWasLost, DeviceClosed
from .._device.device import core_of
from ._pool import pooled_processes
from ._workers import children, generation_of, hold_rebuild, hold_worker, kill_worker, replaced, until

if TYPE_CHECKING:
    from .. import Device

    MakeDevice = Callable[[], AbstractAsyncContextManager[Device]]
    Call = Callable[[Device], Awaitable[object]]
    _Check = Callable[[Device, Call], Awaitable[None]]

MANY = 32
IN_FLIGHT = 4
AT_ONCE = 1.0
"""Seconds that "at once" may take on a busy machine."""
LOOKS = 10
"""The number of looks in that time."""

_SOURCE = """
extern "C" __global__ void add_one(int *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1;
}
"""


async def launch_once(dev: Device) -> None:
    """Launch a kernel on a new array, and check what it wrote."""
    kernel = await dev.nvrtc.compile(_SOURCE, "add_one")
    with dev.full(100, 41, np.int32) as array:
        await kernel.launch(1, 128, array, 100)
        result = await array.to_host()
    if not (result == 42).all():
        raise AssertionError(f"expected 41 + 1 == 42 for every element, got {result}")


async def check_actor(make_device: MakeDevice, call: Call = launch_once, *, timeout: float = 30.0) -> None:
    """Check that a call keeps every promise that a call of this library makes.

    It is for authors of libraries and of actors. `make_device` returns an object for ``async with``, for example
    ``functools.partial(open_device, backend="sim")``. The device must allow three lost contexts, which is the default.
    Its `hang_timeout` must be at least two seconds. ``await call(dev)`` makes one ordinary call of the actor on new
    arrays, and raises if the result is wrong. The default `call` is a kernel launch. Each call must send a request to
    the worker. A call that compiles must compile a different source each time.

    The call must keep these promises. It

    - returns, is a checkpoint, and is protected from `KeyboardInterrupt` from its acceptance to its settlement;
    - never runs when it is cancelled before it begins, in a scope that was cancelled already or while it is queued;
    - raises `Cancelled` at once when it is cancelled after that, and does the device no harm;
    - can be made by many tasks at a time;
    - waits while the device is rebuilt, and then works;
    - raises `ContextLost` when the worker is lost while it runs, once, an exception of its own, and is not retried;
    - raises `DeviceClosed` when the device is closed while it runs, and afterwards;

    Every request must be settled once, and no task, descriptor or child process may be left. Run nothing else in this
    process meanwhile: what it opens would look like a leak. Each check may take `timeout` seconds.

    Raises `AssertionError` with the promise that was broken. Exceptions of the call or of the device are raised
    unchanged.
    """
    async with make_device() as dev:
        with _limited(check_returns, timeout):
            await call(dev)  # what is loaded or opened once is no leak
    before = _Belongings.now()
    for checks in CHECKS:
        async with _audited(make_device) as dev:
            for check in checks:
                with _limited(check, timeout):
                    await check(dev, call)
    with _limited(check_closed, timeout):
        await check_closed(make_device, call)
    await _require_nothing_left(before)


# --- the promises -----------------------------------------------------------------------------------------------------


async def check_returns(dev: Device, call: Call) -> None:
    """A call that is made alone works, and is a checkpoint."""
    task = trio.lowlevel.current_task()
    points = task._cancel_points, task._schedule_points
    await call(dev)
    now = task._cancel_points, task._schedule_points
    _require(points[0] != now[0] and points[1] != now[1], "a call that succeeds must be a checkpoint")


async def check_interrupts(dev: Device, call: Call) -> None:
    """A Ctrl-C cannot strike between acceptance and settlement."""
    with _interruptible_steps(dev) as steps:
        await call(dev)
    _require(len(steps) == 2, "a call must send something to the worker, and its actor's mailbox must count it")
    bare = [step for step, protected in steps.items() if not all(protected)]
    _require(not bare, f"a KeyboardInterrupt must not strike while a request is {' or '.join(bare)}")


async def check_cancelled_before(dev: Device, call: Call) -> None:
    """A call in a scope that is already cancelled never runs."""
    before = _submitted(dev)
    with trio.CancelScope() as scope:
        scope.cancel()
        await call(dev)
    _require(scope.cancelled_caught, "a call in a cancelled scope must raise Cancelled")
    _require(_submitted(dev) == before, "a call in a cancelled scope must not send anything to the worker")
    await call(dev)


async def check_cancelled_while_started(dev: Device, call: Call) -> None:
    """A call that is cancelled while the worker has it returns at once, and the device goes on."""
    generation = dev.generation
    async with _tasks() as nursery:
        with hold_worker(dev):
            started = _Attempt(call, dev)
            nursery.start_soon(started.run)
            await _until_in_flight(dev, started)
            await started.cancel()
    await call(dev)
    _require(dev.generation == generation, "cancelling a call must not cost the context")


async def check_many(dev: Device, call: Call) -> None:
    """Many tasks can make the call at the same time."""
    attempts = [_Attempt(call, dev) for _ in range(MANY)]
    async with _tasks() as nursery:
        for attempt in attempts:
            nursery.start_soon(attempt.run)
        for attempt in attempts:
            await attempt.ended.wait()
            attempt.unwrap()


async def check_cancelled_in_queue(dev: Device, call: Call) -> None:
    """A call that is cancelled while it waits for a rebuild never runs."""
    async with _tasks() as nursery, _rebuilding(dev) as lost:
        queued = _Attempt(call, dev)
        before = _accounts(dev)
        nursery.start_soon(queued.run)
        await until(lambda: _accounts(dev)["accepted"] > before["accepted"] or queued.ended.is_set())
        _require(not queued.ended.is_set(), f"a call during a rebuild must wait for it, but this one {queued}")
        await queued.cancel()
    await dev.wait_generation(after=lost)
    await call(dev)
    counts = _accounts(dev)
    _require(
        counts["abandoned"] == before["abandoned"] and counts["cancelled"] > before["cancelled"],
        "a call that was cancelled while it was queued must never run",
    )


async def check_rebuild(dev: Device, call: Call) -> None:
    """A call during a rebuild waits for the next generation and works there."""
    async with _tasks() as nursery:
        async with _rebuilding(dev) as lost:
            waiting = _Attempt(call, dev)
            nursery.start_soon(waiting.run)
            await trio.testing.wait_all_tasks_blocked()
            _require(not waiting.ended.is_set(), f"a call during a rebuild must wait for it, but this one {waiting}")
        await waiting.ended.wait()
    waiting.unwrap()
    _require(dev.generation == lost + 1, "a call that waited for a rebuild must not cost another one")


async def check_loss(dev: Device, call: Call) -> None:
    """A call that loses the context raises this once, and is not repeated by itself."""
    await call(dev)  # what one call loads or opens for all is there, so the fault hits each call by itself
    lost = dev.generation
    attempts = [_Attempt(call, dev) for _ in range(IN_FLIGHT)]
    async with _tasks() as nursery:
        with hold_worker(dev):
            for attempt in attempts:
                nursery.start_soon(attempt.run)
            await _until_in_flight(dev, *attempts)
            await trio.testing.wait_all_tasks_blocked()  # the others have been sent too
            kill_worker(dev)
            for attempt in attempts:
                await attempt.ended.wait()
    errors = [attempt.error for attempt in attempts if attempt.error is not None]
    _require(errors, "a call that the fault hit must raise ContextLost; it must not hide the loss or repeat itself")
    for error in errors:
        hit = isinstance(error, ContextLost) and error.generation == lost
        _require(hit, f"a call that the fault hit must raise ContextLost of generation {lost}, but it raised {error!r}")
    _require(len(set(map(id, errors))) == len(errors), "each caller must get an exception object of its own")
    await dev.wait_generation(after=lost)
    await call(dev)
    _require(dev.generation == lost + 1, "the next call must work in the next generation")


async def check_closed(make_device: MakeDevice, call: Call) -> None:
    """A call on a closed device, or on one that is closed while the call runs, raises `DeviceClosed`."""
    async with _tasks() as nursery:
        with contextlib.ExitStack() as until_closed:
            async with _audited(make_device) as dev:
                until_closed.enter_context(hold_worker(dev))
                running = _Attempt(call, dev)
                nursery.start_soon(running.run)
                await _until_in_flight(dev, running)
        await running.ended.wait()
    late = _Attempt(call, dev)
    await late.run()
    for attempt, when in ((running, "that runs when the device is closed"), (late, "of a closed device")):
        _require(isinstance(attempt.error, DeviceClosed), f"a call {when} must raise DeviceClosed, but this {attempt}")


CHECKS: tuple[tuple[_Check, ...], ...] = (
    (check_returns, check_interrupts, check_cancelled_before, check_cancelled_while_started, check_many),
    (check_cancelled_in_queue, check_rebuild, check_loss),
)
"""The checks that are made on one device, one after the other."""


# --- how they are checked ---------------------------------------------------------------------------------------------


def _require(condition: object, promise: str) -> None:
    if not condition:
        raise AssertionError(promise)


@contextlib.contextmanager
def _limited(check: Callable[..., object], seconds: float) -> Iterator[None]:
    """Fail when a check does not end in time, and name the check."""
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError:
        raise AssertionError(f"not within {seconds:g} s: {check.__doc__}") from None


@contextlib.asynccontextmanager
async def _audited(make_device: MakeDevice) -> AsyncIterator[Device]:
    """Open a device, and check when it is closed that every accepted request was settled."""
    async with make_device() as dev:
        yield dev
    for actor in dev.statistics().actors:
        settled = sum(actor.settled.values())
        _require(
            actor.accepted == settled,
            f"every request must be settled once, but {actor.name} accepted {actor.accepted} and settled {settled}",
        )


@contextlib.asynccontextmanager
async def _tasks() -> AsyncIterator[trio.Nursery]:
    """A nursery for attempts. They keep their own exceptions, so that a failed check is raised unchanged."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        first, *more = group.exceptions
        if more:
            raise
        raise first from first.__cause__


class _Attempt:
    """A call in its own task, and how it ended."""

    def __init__(self, call: Call, dev: Device) -> None:
        self._call = call
        self._dev = dev
        self._scope = trio.CancelScope()
        self.ended = trio.Event()
        self.error: Exception | None = None

    def __str__(self) -> str:
        if not self.ended.is_set():
            return "is still waiting"
        if self._scope.cancelled_caught:
            return "was cancelled"
        return "returned" if self.error is None else f"raised {self.error!r}"

    async def run(self) -> None:
        """Make the call; an `Exception` is kept."""
        try:
            with self._scope:
                await self._call(self._dev)
        except Exception as error:
            self.error = error
        finally:
            self.ended.set()

    def unwrap(self) -> None:
        """Raise what the call raised."""
        if self.error is not None:
            raise self.error

    async def cancel(self) -> None:
        """Cancel the call, and check that it ends at once."""
        self._scope.cancel()
        with trio.move_on_after(AT_ONCE):
            await self.ended.wait()
        _require(
            self._scope.cancelled_caught, f"a call that is cancelled must raise Cancelled at once, but this one {self}"
        )


async def _until_in_flight(dev: Device, *attempts: _Attempt) -> None:
    """Wait until the held worker has been sent a request of the attempts."""
    await until(lambda: _unfinished(dev) or any(attempt.ended.is_set() for attempt in attempts))
    for attempt in attempts:
        _require(
            not attempt.ended.is_set(), f"a call must wait for the worker, but this one {attempt} while it was held"
        )


@contextlib.asynccontextmanager
async def _rebuilding(dev: Device) -> AsyncIterator[int]:
    """Lose the context, and run the block while the device is being rebuilt. Yields the generation that was lost."""
    lost = dev.generation
    async with dev.events() as events:
        with hold_rebuild(dev):
            kill_worker(dev)
            while not isinstance(await anext(events), ContextWasLost):
                pass
            yield lost


def _submitted(dev: Device) -> int:
    return sum(lane.submitted for lane in dev.statistics().lanes)


def _unfinished(dev: Device) -> int:
    return sum(lane.unfinished for lane in dev.statistics().lanes)


def _accounts(dev: Device) -> collections.Counter[str]:
    """Return the numbers of requests, accepted and by outcome, of all actors together."""
    counts: collections.Counter[str] = collections.Counter()
    for actor in dev.statistics().actors:
        counts["accepted"] += actor.accepted
        counts.update(actor.settled)
    return counts


@contextlib.contextmanager
def _interruptible_steps(dev: Device) -> Iterator[dict[str, list[bool]]]:
    """Record for each request that is sent or settled whether it is protected from `KeyboardInterrupt` there."""
    steps: dict[str, list[bool]] = {}

    def noting(step: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **more: Any) -> Any:
            steps.setdefault(step, []).append(trio.lowlevel.currently_ki_protected())
            return method(*arguments, **more)

        return noted

    with contextlib.ExitStack() as stack:
        generation = generation_of(dev)
        sender = generation.sender
        stack.enter_context(replaced(generation, publish=noting("sent", generation.publish)))
        stack.enter_context(replaced(sender, announce=noting("sent", sender.announce)))
        for mailbox in (actor.mailbox for actor in core_of(dev).actors):
            counts = {name: noting("settled", getattr(mailbox, name)) for name in ("count", "count_finished")}
            stack.enter_context(replaced(mailbox, **counts))
        yield steps


@attrs.frozen
class _Belongings:
    """The resources of a process that could leak."""

    descriptors: collections.Counter[str]
    children: frozenset[int]
    tasks: frozenset[trio.lowlevel.Task]

    @classmethod
    def now(cls) -> _Belongings:
        """Return the present resources, after a garbage collection and without those of worker pools."""
        gc.collect()
        pooled = pooled_processes()
        of_pools = {number for each in pooled for number in (each.sock.fileno(), each.output, each.pidfd)}
        mine = frozenset(children()).difference(each.pid for each in pooled)
        return cls(_open_descriptors(but_not=of_pools), mine, frozenset(_all_tasks()))

    def beyond(self, before: _Belongings) -> list[str]:
        """Describe what is here now and was not there before. A descriptor that replaces another one is not counted."""
        found = []
        if self.descriptors.total() > before.descriptors.total():
            found += [f"descriptor of {target}" for target in self.descriptors - before.descriptors]
        found += [f"child process {pid}" for pid in self.children - before.children]
        return found + [f"task {task.name}" for task in self.tasks - before.tasks]


async def _require_nothing_left(before: _Belongings) -> None:
    """Wait a moment for resources that are released by themselves, then report what is left."""
    for _ in range(LOOKS):
        left = _Belongings.now().beyond(before)
        if not left:
            return
        await trio.sleep(AT_ONCE / LOOKS)
    raise AssertionError(f"nothing may be left behind when the device is closed: {', '.join(left)}")


def _open_descriptors(but_not: set[int]) -> collections.Counter[str]:
    """Count the descriptors by what they refer to."""
    targets: collections.Counter[str] = collections.Counter()
    for descriptor in set(map(int, os.listdir("/proc/self/fd"))) - but_not:
        with contextlib.suppress(OSError):
            targets[os.readlink(f"/proc/self/fd/{descriptor}")] += 1
    return targets


def _all_tasks() -> Iterator[trio.lowlevel.Task]:
    root = trio.lowlevel.current_root_task()
    pending = [root] if root is not None else []
    while pending:
        task = pending.pop()
        yield task
        pending += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
