"""A full queue of a stream: commands that wait behind a long kernel hold up neither other lanes nor the worker."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import Batch
from support import ON_GPU
from support.rogue import gated

DEADLINE = 20
MANY = 1100
ORDER, NODES = (512, 200) if ON_GPU else (4, 4)
"""On a GPU a call for a large matrix makes more entries than one for a small matrix."""
SOURCE = r"""
extern "C" __global__ void add(int *x, const int *y) { x[threadIdx.x] += y[threadIdx.x]; }
"""


async def fill_wide_items(dev: Any) -> Callable[[Batch], object]:
    x = await dev.to_device(np.ones(3, np.complex128))
    return lambda batch: batch.fill(x, 2)


async def fill_rows(dev: Any) -> Callable[[Batch], object]:
    x = await dev.to_device(np.ones((4, 6)))
    return lambda batch: batch.fill(x[:, 1:4], 2)


async def launch_a_graph(dev: Any) -> Callable[[Batch], object]:
    add = await dev.nvrtc.compile(SOURCE, "add")
    x, y = [await dev.to_device(np.zeros(4, np.int32)) for _ in range(2)]
    graph = await dev.capture(lambda g: [g.launch(add, 1, 4, x, y) for _ in range(NODES)])
    return lambda batch: batch.launch_graph(graph)


async def matrices(dev: Any, count: int) -> list[Any]:
    return [await dev.to_device(np.eye(ORDER)) for _ in range(count)]


async def multiply(dev: Any) -> Callable[[Batch], object]:
    a, c = await matrices(dev, 2)
    await dev.blas.gemm(a, a)
    return lambda batch: batch.blas.gemm(a, a, out=c)


async def multiply_by_blaslt(dev: Any) -> Callable[[Batch], object]:
    a, c = await matrices(dev, 2)
    await dev.blaslt.matmul(a, a)
    return lambda batch: batch.blaslt.matmul(a, a, out=c)


async def solve_a_triangle(dev: Any) -> Callable[[Batch], object]:
    a, b, x = await matrices(dev, 3)
    await dev.blas.trsm(a, b)
    return lambda batch: batch.blas.trsm(a, b, out=x)


async def multiply_by_a_triangle(dev: Any) -> Callable[[Batch], object]:
    a, b, c = await matrices(dev, 3)
    await dev.blas.trmm(a, b)
    return lambda batch: batch.blas.trmm(a, b, out=c)


async def solve_by_a_vector(dev: Any) -> Callable[[Batch], object]:
    (a,) = await matrices(dev, 1)
    x = await dev.to_device(np.ones(ORDER))
    await dev.blas.trsv(a, x)
    return lambda batch: batch.blas.trsv(a, x)


async def multiply_by_a_transpose(dev: Any) -> Callable[[Batch], object]:
    a, c = await matrices(dev, 2)
    await dev.blas.syrk(a)
    return lambda batch: batch.blas.syrk(a, out=c)


async def sum_up(dev: Any) -> Callable[[Batch], object]:
    x = await dev.to_device(np.ones(ORDER * ORDER))
    await dev.blas.nrm2(x)
    return lambda batch: batch.blas.nrm2(x)


CASES = [
    *(fill_wide_items, fill_rows, launch_a_graph, multiply, solve_a_triangle),
    # What these make of a real stream's queue no simulator knows.
    *((multiply_by_blaslt, multiply_by_a_triangle, solve_by_a_vector, multiply_by_a_transpose, sum_up) * ON_GPU),
]


@pytest.mark.parametrize("prepare", CASES)
async def test_a_full_queue_holds_up_nothing_else(
    dev: Any, prepare: Callable[[Any], Awaitable[Callable[[Batch], object]]]
) -> None:
    put = await prepare(dev)
    y = await dev.to_device(np.arange(3.0))
    async with gated(dev) as gate, dev.batch() as batch:
        for _ in range(MANY):
            put(batch)
        with trio.fail_after(DEADLINE):
            for number in range(3):
                await y.copy_from(np.full(3, float(number)))
                assert (await y.to_host() == number).all()
        await gate.open()
    assert dev.generation == 1


async def test_many_commands_of_other_lanes_wait_for_one_kernel(dev) -> None:
    """Each orders its stream behind the kernel's, whose queue has no room for a mark for each of them."""
    y, z = await dev.to_device(np.zeros(4, np.int32)), await dev.to_device(np.arange(3.0))
    copies = [await dev.to_device(np.arange(4, dtype=np.int32)) for _ in range(4)]
    each = MANY // len(copies) + 10
    async with contextlib.AsyncExitStack() as stack:
        lanes = [await stack.enter_async_context(dev.lane()) for _ in copies]
        async with gated(dev) as gate, dev.batch() as first:
            first.fill(y, 1)
            for lane, x in zip(lanes, copies, strict=True):
                batch = await stack.enter_async_context(dev.batch(lane=lane))
                for _ in range(each):
                    batch.copy_from(x, y)
            with trio.fail_after(DEADLINE):
                await z.copy_from(np.ones(3))
                assert (await z.to_host() == 1).all()
            await gate.open()
    assert dev.generation == 1
    for x in copies:
        assert (await x.to_host() == 1).all()
