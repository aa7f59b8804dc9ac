"""What follows from what a kernel provably only reads: which arrays a fault tears, and who waits for whom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_trio import Device, StaleArray, overwrites, read_only, strided, writes
from support.rogue import gated

pytestmark = pytest.mark.used_workers

SOURCE = r"""
extern "C" __global__ void copy(const int *x, int *y) { y[threadIdx.x] = x[threadIdx.x]; if (y[0] == 7) __trap(); }
extern "C" __global__ void table(int **rows, const int *x) { rows[0][threadIdx.x] = x[threadIdx.x]; __trap(); }
__device__ int kept[8], also[8], result[8];
extern "C" __global__ void look(const int *x, int *y) { y[0] = x[0]; }
extern "C" __global__ void keep() { kept[1] = also[1] = result[1] = 1; }
"""


async def torn(dev: Device, make: Any, *arrays: Any) -> list[str]:
    """The states of arrays after the fault of a launch."""
    generation = dev.generation
    with pytest.raises(Exception, match=r"719|launch failure|trap"):
        await make()
    await dev.wait_generation(after=generation)
    return [array.state for array in arrays]


async def ones(dev: Device, value: int = 7) -> Any:
    return await dev.to_device(np.full(8, value, np.int32))


@pytest.mark.parametrize("way", ["cold", "warm", "batch", "prepared", "graph"])
async def test_an_array_that_is_provably_read_survives_the_fault_of_its_kernel(dev: Device, way: str) -> None:
    copy = await dev.nvrtc.compile(SOURCE, "copy")
    assert [each.reads for each in copy.parameters] == [True, False]
    x, y, harmless = await ones(dev), await ones(dev, 0), await ones(dev, 1)
    if way != "cold":
        await copy.launch(1, 8, harmless, y)
    prepared = copy.prepare(1, 8, x, y)
    graph = await dev.capture(lambda recorder: recorder.launch(copy, 1, 8, x, y)) if way == "graph" else None

    async def launch() -> None:
        if way == "batch":
            async with dev.batch() as batch:
                batch.launch(copy, 1, 8, harmless, y)
                batch.launch(copy, 1, 8, x, y)
        elif way == "prepared":
            await prepared.launch()
        elif graph is not None:
            await graph.launch()
        else:
            await copy.launch(1, 8, x, y)

    assert await torn(dev, launch, x, y, harmless) == ["ready", "torn", "ready"]
    assert (await x.to_host() == 7).all()


@pytest.mark.parametrize(
    "mark", [writes, overwrites, lambda x: writes(strided(x))], ids=["writes", "overwrites", "both"]
)
async def test_a_mark_wins_over_the_proof(dev: Device, mark: Any) -> None:
    copy = await dev.nvrtc.compile(SOURCE, "copy")
    x, y = await ones(dev), await ones(dev, 0)
    assert await torn(dev, lambda: copy.launch(1, 8, mark(x), y), x, y) == ["torn", "torn"]
    with pytest.raises(StaleArray, match="copy was writing it"):
        await x.to_host()


async def test_what_is_touched_or_shares_memory_with_what_is_written_counts_as_written(dev: Device) -> None:
    copy = await dev.nvrtc.compile(SOURCE, "copy")
    x, y = await ones(dev), await ones(dev, 0)
    assert await torn(dev, lambda: copy.launch(1, 8, x, y, touches=[x]), x) == ["torn"]
    whole = await dev.to_device(np.full(16, 7, np.int32))
    assert await torn(dev, lambda: copy.launch(1, 8, whole[:8], whole[8:]), whole) == ["torn"]


async def test_a_number_for_a_pointer_that_is_written_may_be_any_array(dev: Device) -> None:
    copy = await dev.nvrtc.compile(SOURCE, "copy")
    x, y = await ones(dev), await ones(dev, 0)
    assert await torn(dev, lambda: copy.launch(1, 8, x, y.address), x) == ["torn"]
    x = await ones(dev)
    prepared = copy.prepare(1, 8, x, y.address)
    assert await torn(dev, prepared.launch, x) == ["torn"]
    words = r"launch of copy might have been writing it .* was given an address as a number(.|\n)*`read_only\(x\)`"
    with pytest.raises(StaleArray, match=words):
        await x.to_host()
    x = await ones(dev)
    assert await torn(dev, lambda: copy.launch(1, 8, read_only(x), y.address), x) == ["ready"]


async def test_a_kernel_that_writes_through_a_table_reads_nothing_for_sure(dev: Device) -> None:
    table = await dev.nvrtc.compile(SOURCE, "table")
    assert not any(each.reads for each in table.parameters)
    x, y = await ones(dev), await ones(dev, 0)
    rows = await dev.to_device(np.array([y.address], np.uint64))
    assert await torn(dev, lambda: table.launch(1, 8, rows, x, touches=[y]), rows, x, y) == ["torn"] * 3


async def test_readers_on_two_lanes_do_not_wait_for_each_other(dev: Device) -> None:
    look = await dev.nvrtc.compile(SOURCE, "look")
    x, one, other = await ones(dev), await ones(dev, 0), await ones(dev, 0)
    async with dev.lane() as lane, gated(dev):
        look.launch_nowait(1, 1, x, one)  # held up
        await look.launch(1, 1, x, other, lane=lane)
        assert (await other.to_host())[0] == 7
        look.launch_nowait(1, 1, x, other, lane=lane)
        waits = next(each.waits for each in dev.statistics().lanes if each.name == lane.name)
        assert waits == 0
        look.launch_nowait(1, 1, writes(x), other, lane=lane)
        assert next(each.waits for each in dev.statistics().lanes if each.name == lane.name) == 1


async def test_a_variable_of_a_module_counts_as_written(dev: Device) -> None:
    program = await dev.nvrtc.compile_program(SOURCE)
    one, other, y = (program.global_(name, np.int32) for name in ("kept", "also", "result"))
    await program["look"].launch(1, 1, one, y)
    await program["look"].launch(1, 1, read_only(other), y)
    assert (one._block.written, other._block.written) == (True, False)
