"""Verbs of the blocking face that are awaited in tasks of asyncio: functions of the run, and cancelling by a signal."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import InvalidArgument, plain
from support import chosen_backend

SOURCE = 'extern "C" __global__ void spin(volatile int *x) { while (*x == 0); }'


@atomr_trio.kernel("x[threadIdx.x] += a;")
def add(a: np.int32, x: atomr_trio.Writes[np.int32]) -> None: ...


@pytest.fixture(scope="module")
def dev() -> Iterator[plain.Device]:
    with atomr_trio.start(0, backend=chosen_backend()) as device:
        yield device


async def both(dev: atomr_trio.Device, host: Any) -> list[atomr_trio.DeviceArray]:
    arrays = []

    async def one(value: int) -> None:
        arrays.append(await dev.to_device(host * value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, 2)
        nursery.start_soon(one, 3)
    return arrays


def test_a_function_of_the_awaited_face_is_awaited_in_asyncio(dev):
    async def main() -> list[Any]:
        made = await dev.in_asyncio(dev.run, both, dev, np.arange(3))
        assert all(type(each) is plain.DeviceArray for each in made)
        return sorted([await dev.in_asyncio(each.to_host) for each in made], key=lambda host: host.sum())

    assert [host.tolist() for host in asyncio.run(main())] == [[0, 2, 4], [0, 3, 6]]


@pytest.mark.parametrize("function", [7, lambda: 7])
def test_what_is_no_async_function_is_refused(dev, function):
    async def main() -> None:
        await dev.in_asyncio(dev.run, function)

    with pytest.raises(InvalidArgument, match="function is an async function, and"):
        asyncio.run(main())


def test_cancelling_the_task_cancels_the_function_in_the_run(dev):
    seen: list[str] = []

    async def wait_for_ever(begun: Callable[[], object]) -> None:
        begun()
        try:
            await trio.sleep_forever()
        finally:
            seen.append("cancelled")

    async def main() -> None:
        loop, has_begun = asyncio.get_running_loop(), asyncio.Event()
        begun = functools.partial(loop.call_soon_threadsafe, has_begun.set)
        task = asyncio.ensure_future(dev.in_asyncio(dev.run, wait_for_ever, begun))
        await has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["cancelled"]


def test_a_time_limit_of_asyncio_ends_a_verb_and_the_device_lives(dev):
    spin, word = dev.nvrtc.compile(SOURCE, "spin"), dev.zeros(1, np.int32)

    async def main() -> None:
        async with asyncio.timeout(0.05):
            await dev.in_asyncio(spin.launch, 1, 1, word)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    dev.restart("the kernel spins")
    assert dev.zeros(2).tolist() == [0, 0]


def test_a_handler_of_a_signal_that_does_not_wake_the_loop_cancels_a_verb(dev):
    """So a notebook cancels the cell that runs: the handler asks the loop for a call from within the loop's thread."""

    async def wait_for_the_signal() -> None:
        os.kill(os.getpid(), signal.SIGINT)  # by now the loop has nothing left to do, and waits for events
        await trio.sleep_forever()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(dev.in_asyncio(dev.run, wait_for_the_signal))
        before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon(task.cancel) and None)
        try:
            with pytest.raises(asyncio.CancelledError):
                await task
        finally:
            signal.signal(signal.SIGINT, before)

    asyncio.run(main())
    assert dev.zeros(2).tolist() == [0, 0]


# ----------------------------------------------------------------------------------------- what may be given, and not


@pytest.mark.parametrize("by_name", [False, True])
def test_a_declared_kernel_is_awaited(dev, by_name):
    async def main() -> Any:
        x = dev.zeros(3, np.int32)
        first = {"dev": dev} if by_name else {}
        kernel = await dev.in_asyncio(add.on, *(() if by_name else (dev,)), **first)
        assert type(kernel) is plain.Kernel
        assert kernel is add.on(dev)
        await dev.in_asyncio(kernel.launch, 1, 3, 5, x)
        await dev.in_asyncio(add.launch, dev, 1, 3, 2, x)
        return await dev.in_asyncio(x.to_host)

    assert asyncio.run(main()).tolist() == [7, 7, 7]


def test_the_next_event_is_awaited_and_a_time_limit_ends_the_wait(dev):
    async def main() -> type:
        with dev.events() as events:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await dev.in_asyncio(next, events)
            watching = asyncio.ensure_future(dev.in_asyncio(next, events, None))
            await dev.in_asyncio(dev.restart, "a test")
            return type(await watching)

    assert asyncio.run(main()) is atomr_trio.ContextWasLost


@pytest.mark.parametrize("default", [(), (None,)], ids=["no default", "default"])
def test_an_iterator_that_ends_gives_the_default_or_raises(dev, default):
    async def main() -> Any:
        return await dev.in_asyncio(next, iter(atomr_trio.retry(dev)), *default)

    async def ended() -> Any:
        attempts = iter(atomr_trio.retry(dev))
        with await dev.in_asyncio(next, attempts):
            pass
        return await dev.in_asyncio(next, attempts, *default)

    assert type(asyncio.run(main())) is plain.Attempt
    if default:
        assert asyncio.run(ended()) is None
    else:
        with pytest.raises(StopAsyncIteration):
            asyncio.run(ended())


async def _alone(dev: Any) -> None:
    await dev.compute_lane.synchronize()


class _WithAsyncMethod:
    async def method(self) -> None: ...


@pytest.mark.parametrize(
    ("given", "message", "advice"),
    [
        (lambda dev: [dev.zeros(2).to_host()], r"no result of one: array\(\[0", "`in_asyncio(x.to_host)` instead of"),
        (lambda dev: [_alone, dev], "_alone is an async function", "`in_asyncio(dev.run, function, dev)`"),
        (
            lambda dev: [_WithAsyncMethod().method],
            "method is an async function",
            "`in_asyncio(dev.run, function, dev)`",
        ),
        (lambda dev: [_alone(dev)], "_alone was called already", "`dev.in_asyncio(dev.run, _alone, ...)`"),
        (lambda dev: [next, iter([])], "and next is none", "`asyncio.to_thread(function, ...)`"),
        (lambda dev: [lambda: dev.zeros(2).to_host()], "<lambda> is none", "`asyncio.to_thread(function, ...)`"),
        (
            lambda dev: [dev.zeros(2).tolist],
            "tolist of DeviceArray has no awaited form",
            "`asyncio.to_thread(verb, ...)`",
        ),
        (lambda dev: [dev.events().__next__], "__next__ of Subscription has no", "`dev.in_asyncio(next, iterator)`"),
        (
            lambda dev: [dev.batch],
            "batch waits for nothing, and returns a Batch",
            "`dev.in_asyncio(dev.run, function, dev)`",
        ),
        (lambda dev: [dev.events], "events waits for nothing", "`with dev.events(...) as events:`"),
        (lambda dev: [add.on], "on\\(\\) missing 1 required positional argument: 'dev'", None),
    ],
)
def test_what_is_refused_says_what_to_write(dev, given, message, advice):
    async def main() -> None:
        await dev.in_asyncio(*given(dev))

    with pytest.raises((InvalidArgument, TypeError), match=message) as raised:
        asyncio.run(main())
    if advice is not None:
        assert advice in raised.value.advice


def test_the_advice_for_an_async_function_works(dev):
    async def main() -> None:
        await dev.in_asyncio(dev.run, _alone, dev)

    asyncio.run(main())


@pytest.mark.parametrize(
    "verb", [lambda other: [other.trim], lambda other: [add.on, other], lambda other: [next, other.events()]]
)
def test_what_belongs_to_another_device_is_refused(dev, verb):
    async def main(other: plain.Device) -> None:
        await dev.in_asyncio(*verb(other))

    with atomr_trio.start(0, backend=chosen_backend()) as other:
        with pytest.raises(InvalidArgument, match="an object of another `start`") as raised:
            asyncio.run(main(other))
        assert "`in_asyncio` of the device" in (raised.value.advice or "")
