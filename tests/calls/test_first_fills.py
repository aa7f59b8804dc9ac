"""The first use of a `zeros` or `full`, and of new memory by a kernel, go the short way; their fills come first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import CommandFailed, ContextLost, RestartPolicy, StaleArray, read_only
from atomr_trio._device.device import core_of
from atomr_trio.testing import ReturnStatus, hold_worker, inject
from support.repeated import both, form
from support.rogue import gated, kill_worker, next_generation, until

pytestmark = pytest.mark.used_workers

N = 8
DEADLINE = 60
SOURCE = r"""
extern "C" __global__ void add(int *x, const int *y) { x[threadIdx.x] += y[threadIdx.x]; }
extern "C" __global__ void put(int *x, int a) { x[threadIdx.x] = a; }
"""


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes the general way."""
    names: list[str] = []
    publish = atomr_trio._generation.order.Order.publish

    def published(order: Any, lane: int, verb: Any, *arguments: Any, **more: Any) -> Any:
        names.append(verb.operation)
        return publish(order, lane, verb, *arguments, **more)

    monkeypatch.setattr(atomr_trio._generation.order.Order, "publish", published)
    return names


async def launch(call: Any, kernel: Any, *arguments: Any) -> None:
    if call.batch is None:
        await kernel.launch(1, N, *arguments)
    else:
        call.batch.launch(kernel, 1, N, *arguments)


async def warm(dev: Any, call: Any) -> tuple[Any, Any]:
    """The kernels, which have the short way, and memory that exists."""
    add, put = [await dev.nvrtc.compile(SOURCE, name) for name in ("add", "put")]
    x, y = dev.zeros(N, np.int32), dev.zeros(N, np.int32)
    for _ in range(2):
        await launch(call, add, x, y)
        await launch(call, put, x, 1)
    await call.flush()
    return add, put


@both
async def test_a_kernel_on_new_arrays_goes_the_short_way(dev, general, name):
    async with form(dev, name) as call:
        add, put = await warm(dev, call)
        del general[:]
        new = [dev.empty(N, np.int32) for _ in range(4)]
        for number, array in enumerate(new):
            await launch(call, put, array, number)
            await launch(call, add, array, dev.full(N, 10 * number, np.int32))
            await launch(call, add, dev.zeros(N, np.int32), array)
        assert general == []
        hosts = [await call.read(array) for array in new]
    for number, host in enumerate(hosts):
        assert host.tolist() == [11 * number] * N


@both
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.int8, -3),
        (np.float16, 1.5),
        (np.float32, 0.1),
        (np.float64, math.pi),
        (np.float64, 0),
        (np.complex128, 2 + 2j),
    ],
    ids=str,
)
async def test_a_first_content_is_there_before_any_call_on_it(dev, general, name, dtype, value):
    word = {1: "char", 2: "short", 4: "int", 8: "long long", 16: "int4"}[np.dtype(dtype).itemsize]
    source = (
        f'extern "C" __global__ void copy({word} *to, const {word} *from) {{ to[threadIdx.x] = from[threadIdx.x]; }}'
    )
    kernel = await dev.nvrtc.compile(source, "copy")
    kind = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64, 16: np.int32}[np.dtype(dtype).itemsize]
    wide = 4 if np.dtype(dtype).itemsize == 16 else 1
    async with form(dev, name) as call:
        for turn in range(3):
            array, to = dev.full(N, value, dtype), dev.empty(N * wide, kind)
            await launch(call, kernel, to, array.view(kind))
            host = await call.read(to)
            await call.flush()
            assert host.view(dtype).tolist() == np.full(N, value, dtype).tolist(), turn


@both
async def test_calls_of_libraries_and_copies_are_short_on_first_contents(dev, general, name):
    async with form(dev, name) as call:
        for _ in range(3):
            ones, result = dev.full((4, 4), 1, np.float32), dev.zeros((4, 4), np.float32)
            await call("gemm", ones, ones, out=result)
            await call("gemm", ones, ones, out=result, beta=2)
            await call("axpy", dev.full(N, 2.0, np.float32), dev.full(N, 3.0, np.float32))
        await call.flush()
        del general[:]
        ones, result = dev.full((4, 4), 1, np.float32), dev.full((4, 4), 7, np.float32)
        y, target = dev.full(N, 3.0, np.float32), dev.zeros(N, np.float32)
        await call("gemm", ones, ones, out=result, beta=2)
        await call("gemm", ones, ones, out=result)
        await call("axpy", dev.full(N, 2.0, np.float32), y)
        if call.batch is None:
            await target.copy_from(dev.full(N, 5, np.float32))
        else:
            call.batch.copy_from(target, dev.full(N, 5, np.float32))
        assert general == []
        found = [await call.read(each) for each in (result, y, target)]
    assert [set(each.ravel().tolist()) for each in found] == [{4.0}, {5.0}, {5.0}]


async def test_another_lane_waits_for_a_fill_that_went_the_short_way(dev):
    async with form(dev, "in a batch") as call:
        add, _ = await warm(dev, call)
    y, x = dev.full(N, 5, np.int32), dev.zeros(N, np.int32)
    async with dev.lane() as lane, gated(dev) as gate:
        async with dev.batch() as batch:
            batch.launch(add, 1, N, x, y)
            add.launch_nowait(1, N, dev.zeros(N, np.int32), read_only(y), lane=lane)
            other = dev.zeros(N, np.int32)
            add.launch_nowait(1, N, other, read_only(y), lane=lane)
            await gate.open()
    assert (await other.to_host()).tolist() == (await x.to_host()).tolist() == [5] * N


@both
@pytest.mark.sim_only
async def test_a_refused_fill_is_the_error_of_every_call_behind_it(dev, name):
    async with form(dev, name) as call:
        add, _ = await warm(dev, call)
    for _ in range(2):
        y, x, z = dev.full(N, 5, np.int32), dev.full(N, 1, np.int32), dev.full(N, 2, np.int32)
        await x.to_host()
        await z.to_host()
        inject(dev, "cuMemsetD32Async", ReturnStatus(801))
        with pytest.raises(CommandFailed) as caught:  # noqa: PT012
            async with form(dev, name) as call:
                await launch(call, add, x, y)
                await launch(call, add, z, z)
        assert caught.value.status == 801
        assert x.state == "torn"
        with pytest.raises(StaleArray, match="first contents"):
            await x.to_host()
        expected = [2] * N if name == "awaited" else [4] * N
        assert (await z.to_host()).tolist() == expected
        await x.fill(1)
        await add.launch(1, N, x, y)
        assert (await x.to_host()).tolist() == [6] * N
    assert all(each.unsettled == 0 for each in dev.statistics().actors)


@both
@pytest.mark.sim_only
async def test_a_new_result_that_was_made_of_an_array_without_its_contents_is_torn(dev, name):
    ones = await dev.to_device(np.ones((N, N), np.float32))
    async with form(dev, name) as call:
        for _ in range(3):
            made = await call("gemm", dev.full((N, N), 2, np.float32), ones)
        await call.flush()
    assert (await made.to_host() == 2 * N).all()
    inject(dev, "cuMemsetD32Async", ReturnStatus(801))
    with pytest.raises(CommandFailed) as caught:  # noqa: PT012
        async with dev.batch() as batch:
            with hold_worker(dev):
                bad = batch.blas.gemm(dev.full((N, N), 2, np.float32), ones)
                good = batch.blas.gemm(ones, ones)
    assert caught.value.status == 801
    assert (bad.state, good.state) == ("torn", "ready")
    assert (await good.to_host() == N).all()


async def test_a_fill_that_is_lost_is_made_again(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=RestartPolicy(intensity=math.inf)) as dev:
            async with form(dev, "in a batch") as call:
                add, _ = await warm(dev, call)
            x, y = dev.full(N, 1, np.int32), dev.full(N, 5, np.int32)
            with pytest.raises(ContextLost):  # noqa: PT012
                async with dev.batch() as batch:
                    with hold_worker(dev):
                        batch.launch(add, 1, N, x, read_only(y))
                        await until(lambda: core_of(dev).current.timeline.book(0).busy)
                        assert len(core_of(dev).current.timeline.book(0).launches) == 3
                        kill_worker(dev)
            await next_generation(dev, 1)
            assert (x.state, y.state) == ("torn", "ready")
            assert (await y.to_host()).tolist() == [5] * N
            await x.fill(2)
            await add.launch(1, N, x, y)
            assert (await x.to_host()).tolist() == [7] * N


async def test_an_array_that_is_only_read_before_it_was_written_goes_the_general_way(dev, general):
    async with form(dev, "awaited") as call:
        add, _ = await warm(dev, call)
    x = dev.zeros(N, np.int32)
    del general[:]
    await add.launch(1, N, x, read_only(dev.empty(N, np.int32)))
    assert "module.launch" in general
