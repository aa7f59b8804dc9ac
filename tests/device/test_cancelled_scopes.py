"""In a scope that is cancelled nothing of the caller's runs, and what makes a clock of trio's cancel one too early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from atomr_trio import DeviceArray
from atomr_trio.testing import endless_kernel, hold_worker
from support import open_test_device
from support.rogue import until
from support.strategies import sent

pytestmark = pytest.mark.used_workers

N = 32
SOURCE = 'extern "C" __global__ void add(int *x, int n) { x[threadIdx.x] += n; }'


class Told:
    """Numbers and arrays of the caller's own, which note that they were asked for what they are."""

    def __init__(self) -> None:
        self.asked = 0

    def __index__(self) -> int:
        self.asked += 1
        return 1

    def __float__(self) -> float:
        return float(self.__index__())

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.full(N, self.__index__(), np.int32)

    def __fspath__(self) -> str:
        return f"/nothing{self.__index__()}"

    def record(self, recorder: Any) -> None:
        """What a graph is made of."""
        self.asked += 1

    def arrays(self) -> Iterator[DeviceArray]:
        """Arrays that a kernel touches."""
        self.asked += 1
        yield from ()


async def test_a_cancelled_scope_runs_no_code_of_the_caller(dev):
    add = await dev.nvrtc.compile(SOURCE, "add")
    x, v, told = await dev.to_device(np.zeros(N, np.int32)), await dev.to_device(np.ones(N, np.float32)), Told()
    calls = {
        "capture": lambda: dev.capture(told.record),
        "to_device": lambda: dev.to_device(told),
        "copy_from": lambda: x.copy_from(told),
        "launch": lambda: add.launch(1, N, x, 1, touches=told.arrays()),
        "a library's verb": lambda: dev.blas.scal(v, told),
        "load": lambda: dev.module.load(told),
    }
    before = sent(dev)
    for name, call in calls.items():
        with trio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught, name
        assert not told.asked, name
    assert sent(dev) == before
    assert ((await (await dev.to_device(told)).to_host()) == told.asked).all()


async def test_beside_an_endless_kernel_copies_and_other_lanes_go_on_and_the_compute_lane_does_not(dev):
    add = await dev.nvrtc.compile(SOURCE, "add")
    x, y, z = [await dev.to_device(np.zeros(N, np.int32)) for _ in range(3)]
    await add.launch(1, N, x, 1)
    async with dev.lane() as lane, trio.open_nursery() as nursery, endless_kernel(dev) as endless:
        before = dev.statistics().lanes[0].submitted
        nursery.start_soon(add.launch, 1, N, z, 3)
        await until(lambda: dev.statistics().lanes[0].submitted > before)
        await add.launch(1, N, y, 2, lane=lane)
        assert (await y.to_host() == 2).all()
        await x.copy_from(np.full(N, 7, np.int32))
        assert (await x.to_host() == 7).all()
        assert dev.statistics().lanes[0].unfinished == 2, "the endless kernel, and what waits behind it"
        await endless.end()
    assert (await z.to_host() == 3).all()


@pytest.mark.parametrize(("threshold", "is_cut_off"), [(0, True), (60, False)])
def test_a_clock_that_jumps_when_all_tasks_wait_takes_waiting_for_the_device_for_idleness(threshold, is_cut_off):
    async def main() -> None:
        async with open_test_device() as dev:
            add = await dev.nvrtc.compile(SOURCE, "add")
            x = await dev.to_device(np.zeros(N, np.int32))
            with trio.move_on_after(3600) as scope:
                if is_cut_off:
                    with hold_worker(dev):
                        await add.launch(1, N, x, 1)
                else:
                    await add.launch(1, N, x, 1)
            assert scope.cancelled_caught is is_cut_off
            assert (await x.to_host() == 1).all(), "it goes on unheard, as every command that was begun"

    trio.run(main, clock=MockClock(autojump_threshold=threshold))
