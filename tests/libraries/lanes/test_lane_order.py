"""Lanes that wait for each other: one that is closed while others still name it, and what is signed before a wait."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import ContextLost, ContextWasLost
from atomr_trio._device.device import core_of
from atomr_trio.testing import hold_worker
from support.nvrtc import compile_ptx
from support.rogue import gated, limit_commands, until

pytestmark = pytest.mark.used_workers

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
        await until(lambda: "module.unload" in core_of(dev).current.timeline.in_flight())
        lane = dev.lane()
        async with lane:
            with hold_worker(dev):
                add.launch_nowait(1, N, x, 1, lane=lane)
                add.launch_nowait(1, N, x, 2)  # waits for the lane, behind the unload
            await lane.synchronize()
        await gate.open()
        with trio.fail_after(DEADLINE):
            assert (await x.to_host() == NUMBERS + 3).all()


async def test_a_lane_that_has_called_a_library_goes_without_holding_up_others(dev):
    """Its handle and its workspace are given back, and the driver may let that wait for all that runs."""
    add = await dev.nvrtc.compile(SOURCE, "add")
    a, x = await dev.to_device(np.eye(N, dtype=np.float32)), await dev.to_device(NUMBERS)
    async with dev.lane() as first, dev.batch(lane=first) as batch:
        batch.blas.gemm(a, a)
        batch.solver.cholesky(a)
    lane = dev.lane()
    async with dev.batch(lane=lane) as batch:
        batch.blas.gemm(a, a)
        batch.solver.cholesky(a)
    async with dev.lane() as other, gated(dev):
        async with lane:
            pass
        with trio.fail_after(DEADLINE):
            await add.launch(1, N, x, 1, lane=other)
            async with dev.lane() as heir:
                await add.launch(1, N, x, 2, lane=heir)
        assert dev.statistics().lanes[0].unfinished == 1
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


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("function", "operation"),
    [
        ("cuModuleLoadDataEx", "module.load"),
        ("cuMemSetAccess", "memory.create_chunk"),
        ("cublasCreate", "blas.gemm"),
        ("cuMemcpyHtoDAsync", "memory.copy_in"),
        ("cuEventElapsedTime", "event.elapsed"),
    ],
)
async def test_every_kind_of_command_that_never_ends_costs_the_generation_and_is_named(
    open_test_device, function, operation
):
    """Whether it holds the thread of its lane or the one that all share, and whatever waits behind it elsewhere."""
    async with open_test_device(hang_timeout=DEADLINE) as dev:
        add = await dev.nvrtc.compile(SOURCE, "add")
        x, a = await dev.to_device(NUMBERS), await dev.to_device(np.eye(N, dtype=np.float32))
        await add.launch(1, N, x, 0)
        event = dev.compute_lane.record()
        await event.wait()
        requests: dict[str, Callable[[], Awaitable[Any]]] = {
            "module.load": lambda: dev.module.load(compile_ptx(SOURCE)),
            "memory.create_chunk": lambda: dev.zeros(N, np.int32, guarded=True).fill(1),
            "blas.gemm": lambda: dev.blas.gemm(a, a),
            "memory.copy_in": lambda: a.copy_from(np.eye(N, dtype=np.float32)),
            "event.elapsed": lambda: event.elapsed_since(event),
        }

        async def quietly(request: Callable[[], Awaitable[Any]]) -> None:
            with contextlib.suppress(ContextLost):
                await request()

        async with dev.lane() as lane:
            await add.launch(1, N, x, 0, lane=lane)
            core_of(dev).current.request_faults(f"{function}:hang")
            limit_commands(dev, 0.3)
            with trio.fail_after(DEADLINE):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(quietly, requests[operation])
                    await until(lambda: not core_of(dev).current.timeline.idle)
                    nursery.start_soon(quietly, lambda: add.launch(1, N, x, 1))
                    nursery.start_soon(quietly, lambda: add.launch(1, N, x, 1, lane=lane))
                    lost = await next_loss(dev)
        assert lost == f"{operation} ran longer than hang_timeout=0.3 s"


async def next_loss(dev: Any) -> str:
    with dev.events() as events:
        async for event in events:
            if isinstance(event, ContextWasLost):
                return event.reason
    raise AssertionError
