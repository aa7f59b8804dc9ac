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
