"""What test_two_phases.py has done in a copy of the package that has the libraries of docs/adding-a-library.md.

Run as a program there, it prints how each of `SCENARIOS` has ended, as JSON. A scenario fails by an `AssertionError`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import trio

import atomr_trio
from atomr_trio import CommandFailed, ContextLost, InvalidArgument, OutOfDeviceMemory, RestartPolicy
from atomr_trio._calls.known import KnownCalls
from atomr_trio._calls.recorded import Recorded
from atomr_trio._calls.verbs import Library
from atomr_trio._device.device import core_of
from atomr_trio._generation.order import Order
from atomr_trio.testing import Fault, ReturnStatus, cause, inject
from support.rogue import gated, kill_worker, until

SCENARIOS: dict[str, Callable[[], Awaitable[None]]] = {}
NUMBERS = np.array([0, 3, 0, -1, 0, 0, 7], np.float32)
FOUND = [3, -1, 7]
ROOM = 256
"""The bytes of the workspace of one call."""


def scenario(function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    SCENARIOS[function.__name__] = function
    return function


SHARED: list[Any] = []
"""The device that most scenarios use, one after the other."""
SENT: list[str] = []
"""The names of the verbs of the library's records that were sent."""


def opened(**options: Any) -> Any:
    policy = RestartPolicy(intensity=math.inf)
    return atomr_trio.open_device(backend="sim", restart_policy=policy, **{"hang_timeout": 20, **options})


def note_what_is_sent() -> None:
    """From now on, before there is any device."""
    real = Order.publish

    def publish(order: Any, lane: int, verb: Any, *arguments: Any, **options: Any) -> Any:
        if verb.engine == "running":
            SENT.append(verb.name)
        return real(order, lane, verb, *arguments, **options)

    Order.publish = publish


@contextlib.contextmanager
def published() -> Iterator[list[str]]:
    """The names of the verbs of the library's records that are sent in the block, and later."""
    SENT.clear()
    yield SENT


@contextlib.contextmanager
def between(action: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Do something once, between the two phases of a verb."""
    real, left = Library._ask_all, [action]

    async def ask_all(planner: Any) -> Any:
        phase_two = any(type(each).__name__ == "_Execution" for each in planner._requests)
        if phase_two and left:
            await left.pop()()
        return await real(planner)

    Library._ask_all = ask_all
    try:
        yield
        assert not left, "there was no second phase"
    finally:
        Library._ask_all = real


async def check(dev: Any, numbers: Any = NUMBERS) -> None:
    """The verb gives what numpy does."""
    x = await dev.to_device(numbers)
    found = await dev.running.nonzero(x)
    host = await found.to_host()
    assert host.dtype == numbers.dtype
    assert host.tolist() == numbers[numbers != 0].tolist()


async def check_nothing_left(dev: Any, in_use: int) -> None:
    """No memory, no plan in the worker, nothing in the lists of this process."""
    gc.collect()
    core = core_of(dev)
    assert dev.statistics().memory.in_use == in_use
    await until(lambda: core.current.timeline.idle)
    core.release_dropped(core.current)
    await until(lambda: dev.statistics().memory.workspaces == 0)
    assert not core.dropped
    assert not core.current.plans


@contextlib.asynccontextmanager
async def used(**options: Any) -> AsyncIterator[tuple[Any, Any]]:
    """A device and the numbers on it; in the end nothing else may be left. With options it is a new one."""
    async with opened(**options) if options else contextlib.nullcontext(SHARED[0]) as dev:
        x = await dev.to_device(NUMBERS)
        in_use = dev.statistics().memory.in_use
        yield dev, x
        await check_nothing_left(dev, in_use)


@contextlib.asynccontextmanager
async def held_up(dev: Any) -> AsyncIterator[None]:
    """Hold up the compute lane. The word of the gate is not freed before the kernel has seen that it is open."""
    async with gated(dev) as gate:
        yield
    core = core_of(dev)
    await until(lambda: core.current is not None and core.current.timeline.idle)
    assert gate is not None


@scenario
async def first_thing_after_opening() -> None:
    async with used(hang_timeout=10) as (dev, x):
        with published() as sent:
            found = await dev.running.nonzero(x)
            assert sent == ["define", "first_execute", "drop"]
        assert (await found.to_host()).tolist() == FOUND
        del found


@scenario
async def answers_of_zero() -> None:
    async with used() as (dev, _):
        for kind in (np.float32, np.float64):
            x = await dev.to_device(np.zeros(5, kind))
            with published() as sent:
                found = await dev.running.nonzero(x)
                assert sent == ["define", "drop"]
            assert (found.shape, found.dtype) == ((0,), kind)
            assert (await found.to_host()).tolist() == []
        del x, found


@scenario
async def many_at_once() -> None:
    async with used() as (dev, _):
        random = np.random.default_rng(3)
        ended = []

        async def one(length: int) -> None:
            await check(dev, random.integers(-1, 2, length).astype(np.float64 if length % 2 else np.float32))
            ended.append(length)

        async with trio.open_nursery() as nursery:
            for length in range(1, 101):
                nursery.start_soon(one, length)
        assert sorted(ended) == list(range(1, 101))


@scenario
async def a_fault_before() -> None:
    async with used() as (dev, x):
        await check(dev)
        with contextlib.suppress(ContextLost):
            await cause(dev, Fault.TRAP)
        assert (await (await dev.running.nonzero(x)).to_host()).tolist() == FOUND
        await check(dev)


@scenario
async def the_loss_of_the_worker_between_the_phases() -> None:
    async with used(standby=1) as (dev, x):

        async def lose() -> None:
            generation = dev.generation
            kill_worker(dev)
            await dev.wait_generation(after=generation)

        for _ in range(2):
            with published() as sent:
                try:
                    with between(lose):
                        await dev.running.nonzero(x)
                except ContextLost as error:
                    assert "running.nonzero" in str(error)  # noqa: PT017
                else:
                    raise AssertionError("the second phase had nothing to work on")
                assert "first_execute" not in sent
            await check(dev)


@scenario
async def the_loss_of_the_worker_that_is_not_known_yet() -> None:
    async with used() as (dev, x):

        async def kill() -> None:
            kill_worker(dev)

        try:
            with between(kill):
                await dev.running.nonzero(x)
        except ContextLost:
            pass
        else:
            raise AssertionError("it has a result from nowhere")
        await check(dev)


@scenario
async def the_loss_of_the_worker_in_the_first_phase() -> None:
    async with used() as (dev, x):
        await check(dev)
        async with held_up(dev), trio.open_nursery() as nursery:

            async def ask() -> None:
                try:
                    await dev.running.nonzero(x)
                except ContextLost:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            kill_worker(dev)
            await trio.sleep_forever()
        await check(dev)


@scenario
async def cancellation_between_the_phases() -> None:
    async with used() as (dev, x):
        with published() as sent, trio.CancelScope() as scope:

            async def cancel() -> None:
                scope.cancel()

            with between(cancel):
                await dev.running.nonzero(x)
        assert scope.cancelled_caught
        assert sent[-1] == "drop"
        assert "first_execute" not in sent
        await check(dev)


@scenario
async def cancellation_in_the_first_phase() -> None:
    async with used() as (dev, x):
        await check(dev)
        for times in range(3):
            async with held_up(dev):
                with trio.CancelScope() as scope, published() as sent:
                    async with trio.open_nursery() as nursery:
                        for _ in range(times + 1):
                            nursery.start_soon(dev.running.nonzero, x)
                        await trio.testing.wait_all_tasks_blocked()
                        scope.cancel()
                assert sent == ["define"] * (times + 1) + ["drop"] * (times + 1)
        await check(dev)


@scenario
async def cancellation_in_the_second_phase() -> None:
    async with used() as (dev, x):
        async with contextlib.AsyncExitStack() as gates:

            async def close_gate() -> None:
                await gates.enter_async_context(held_up(dev))

            with between(close_gate), published() as sent, trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(dev.running.nonzero, x)
                    await until(lambda: "first_execute" in sent)
                    scope.cancel()
            assert sent[-2:] == ["first_execute", "drop"]
        await check(dev)


@scenario
async def cancellation_before() -> None:
    async with used() as (dev, x):
        with published() as sent, trio.CancelScope() as scope:
            scope.cancel()
            await dev.running.nonzero(x)
        assert (sent, scope.cancelled_caught) == ([], True)


@scenario
async def a_write_between_the_phases() -> None:
    async with used() as (dev, x):

        async def write() -> None:
            await x.copy_from(NUMBERS[::-1].copy())

        twice = await dev.nvrtc.compile('extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }', "twice")

        async def launch_the_short_way() -> None:
            for _ in range(5):
                await twice.launch(1, 7, x)

        await launch_the_short_way()
        for writes in (write, launch_the_short_way):
            try:
                with between(writes), published() as sent:
                    await dev.running.nonzero(x)
            except InvalidArgument as error:
                assert "was written while running.nonzero was awaited" in str(error)  # noqa: PT017
            else:
                raise AssertionError("the two phases have seen different numbers")
            assert "first_execute" not in sent
        await x.copy_from(NUMBERS)
        await check(dev)


@scenario
async def reading_between_the_phases() -> None:
    async with used() as (dev, x):

        async def read() -> None:
            assert (await x.to_host()).tolist() == NUMBERS.tolist()

        with between(read):
            found = await dev.running.nonzero(x)
        assert (await found.to_host()).tolist() == FOUND
        del found


@scenario
async def other_data_in_the_same_array() -> None:
    """No such call is repeated from memory."""
    async with used() as (dev, x):
        for number in range(5):
            await x.copy_from(NUMBERS + number)
            with published() as sent:
                found = await dev.running.nonzero(x)
                assert sent.count("define") == sent.count("first_execute") == 1
            assert (await found.to_host()).tolist() == [each for each in NUMBERS + number if each]
        assert not core_of(dev).part(KnownCalls)._calls
        await x.copy_from(NUMBERS)
        del found


@scenario
async def what_goes_before_the_first_phase() -> None:
    """A view with strides is copied first."""
    async with used() as (dev, _):
        wide = await dev.to_device(np.stack([NUMBERS, NUMBERS + 1], axis=1))
        for column in range(2):
            found = await dev.running.nonzero(wide[:, column])
            expected = NUMBERS + column
            assert (await found.to_host()).tolist() == expected[expected != 0].tolist()
        del wide, found


@scenario
async def a_batch_and_a_graph() -> None:
    """They refuse it by name, unless it comes to no first phase."""
    from atomr_trio.libraries.running.verbs import _RunningVerbs

    class RecordedRunning(_RunningVerbs, Recorded):
        """The form that its graphs would have."""

    def recorded(graph: Any) -> Any:
        return RecordedRunning(core_of(dev), graph.blas._recorder)

    async with used() as (dev, x):
        words = "running.nonzero has to be awaited"
        nothing = dev.empty(0, np.float32)
        wide = dev.zeros((7, 2), np.float32)
        with published() as sent:
            async with dev.batch() as batch:
                for operand in (x, wide[:, 0]):
                    try:
                        batch.running.nonzero(operand)
                    except InvalidArgument as error:
                        assert words in str(error) and "await dev.running.nonzero" in str(error)  # noqa: PT017, PT018
                    else:
                        raise AssertionError("a batch cannot know the size")
                for _ in range(2):
                    assert batch.running.nonzero(nothing).shape == (0,)
            assert sent == []
        try:
            await dev.capture(lambda graph: recorded(graph).nonzero(x))
        except InvalidArgument as error:
            assert words in str(error)  # noqa: PT017
        else:
            raise AssertionError("a graph cannot know the size")
        del nothing, wide, operand
        await check(dev)


@scenario
async def wrong_arguments() -> None:
    async with used() as (dev, _):
        freed, wrong = dev.zeros(3, np.float32), dev.zeros(3, np.int32)
        freed.free()
        with published() as sent:
            for operand in (freed, wrong, 5):
                try:
                    await dev.running.nonzero(operand)
                except InvalidArgument:
                    continue
                raise AssertionError("nothing sensible can come of that")
        assert sent == []
        del freed, wrong, operand


@scenario
async def refusals_of_the_library() -> None:
    async with used() as (dev, x):
        await check(dev)
        generation = dev.generation
        for function, last in (
            ("curunningMake", "define"),
            ("curunningFind", "define"),
            ("curunningKeep", "first_execute"),
        ):
            inject(dev, function, ReturnStatus(5))
            with published() as sent:
                try:
                    await dev.running.nonzero(x)
                except CommandFailed as error:
                    assert function in str(error)  # noqa: PT017
                else:
                    raise AssertionError(f"{function} has failed")
            assert sent[-2:] == [last, "drop"]
            await check(dev)
        assert dev.generation == generation


@scenario
async def a_fault_in_each_phase() -> None:
    async with used() as (dev, x):
        for function in ("curunningFind", "curunningKeep"):
            await check(dev)
            inject(dev, function, atomr_trio.testing.Poison(700))
            generation = dev.generation
            try:
                await dev.running.nonzero(x)
            except ContextLost:
                pass
            else:
                raise AssertionError("the context is lost")
            await dev.wait_generation(after=generation)
        await check(dev)


@scenario
async def too_little_memory() -> None:
    async with used(memory_limit=128 << 20) as (dev, x):
        memory = dev.statistics().memory
        rest = dev.empty(memory.limit - memory.reserved, np.uint8)
        for _ in range(2):
            try:
                await dev.running.nonzero(x)
            except OutOfDeviceMemory as error:
                assert "the memory limit leaves 0" in str(error)  # noqa: PT017
            else:
                raise AssertionError(f"there is no room for {ROOM} bytes")
        rest.free()
        await dev.trim()
        await check(dev)
        del rest


@scenario
async def a_device_that_closes() -> None:
    async with opened() as dev:
        x = await dev.to_device(NUMBERS)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(dev.running.nonzero, x)
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    try:
        await dev.running.nonzero(x)
    except atomr_trio.DeviceClosed:
        return
    raise AssertionError("the device is closed")


async def main() -> None:
    ends: dict[str, str] = {}
    note_what_is_sent()
    async with opened() as dev:
        SHARED.append(dev)
        for name, run in SCENARIOS.items():
            try:
                with trio.fail_after(60):
                    await run()
                ends[name] = "ok"
            except BaseException:
                ends[name] = traceback.format_exc()
    print(json.dumps(ends))


if __name__ == "__main__":
    trio.run(main)
