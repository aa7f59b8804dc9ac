"""Lanes that wait for each other: one that is closed while others still name it, and what is signed before a wait."""

from __future__ import annotations

import numpy as np
import trio

from atomr_trio.testing import hold_worker
from rogue import gated, until

DEADLINE = 10
N = 8
NUMBERS = np.arange(N, dtype=np.int32)
SOURCE = r"""
extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }
"""
SPARE = 'extern "C" __global__ void spare(int *x) { x[threadIdx.x] = 0; }'


async def test_a_lane_is_closed_while_a_command_of_another_still_waits_for_it(dev):
    """The compute lane's thread is held by an unload, which waits for all that runs."""
    add = await dev.nvrtc.compile(SOURCE, "add")
    spare = await dev.nvrtc.compile(SPARE, "spare")
    x, y = await dev.to_device(NUMBERS), await dev.to_device(NUMBERS)
    await spare.launch(1, N, y)
    async with dev.lane() as slow, trio.open_nursery() as nursery, gated(dev, slow) as gate:
        nursery.start_soon(spare.module.unload)
        await until(lambda: "module.unload" in dev._generation.in_flight())
        lane = dev.lane()
        async with lane:
            with hold_worker(dev):
                add.launch_nowait(1, N, x, 1, lane=lane)
                add.launch_nowait(1, N, x, 2)  # waits for the lane, behind the unload
            await lane.synchronize()
        await gate.open()
        with trio.fail_after(DEADLINE):
            assert (await x.to_host() == NUMBERS + 3).all()


async def test_a_copy_of_many_rows_behind_launches_that_share_a_ticket(dev):
    """It waits until little is ahead of it, and of launches without a ticket nobody hears that they are done."""
    add = await dev.nvrtc.compile(SOURCE, "add")
    x = await dev.to_device(NUMBERS)
    host = np.arange(60 * 4, dtype=np.int32).reshape(60, 4)
    source, target = await dev.to_device(host), dev.zeros(host.shape, np.int32)
    await add.launch(1, N, x, 0)
    await target.to_host()
    with trio.fail_after(DEADLINE):
        async with dev.batch() as batch:
            for _ in range(20):
                for _ in range(10):
                    batch.launch(add, 1, N, x, 1)
                batch.copy_from(target, source[::-1])  # row by row
    assert (await x.to_host() == NUMBERS + 200).all()
    assert (await target.to_host() == host[::-1]).all()
