"""Attributes of launches that only hardware has: shared memory of a cluster, and kernels that overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_trio import InvalidArgument, NvrtcOptions, read_only

SOURCE = r"""
// A kernel that lets the next one begin, and writes long after: only who waits for it sees what it has written.
extern "C" __global__ void late(unsigned *x, unsigned value, long long nanoseconds)
{
    asm volatile("griddepcontrol.launch_dependents;");
    long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begin < nanoseconds);
    x[blockIdx.x * blockDim.x + threadIdx.x] = value;
}
extern "C" __global__ void idle(unsigned *began) { if (threadIdx.x == 0) atomicAdd(began, 1u); }
extern "C" __global__ void after(const unsigned *x, unsigned *y)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] + 1;
}

// Each block of a cluster reads what its neighbour has in shared memory.
extern "C" __global__ void neighbours(unsigned *out)
{
    __shared__ unsigned mine;
    unsigned rank, count, here, there, value;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
    if (threadIdx.x == 0) mine = 100 + blockIdx.x;
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    here = (unsigned)__cvta_generic_to_shared(&mine);
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"((rank + 1) % count));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(there) : "memory");
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    if (threadIdx.x == 0) out[blockIdx.x] = value;
}
"""

MILLISECOND = 1_000_000


async def compiled(dev: Any, name: str) -> Any:
    if dev.info.capability < (9, 0):
        pytest.skip("this GPU has neither clusters nor programmatic launches")
    return await dev.nvrtc.compile(SOURCE, name, options=NvrtcOptions(arch="sm_90"))


@pytest.mark.parametrize("cluster", [2, 4, 8, 16])
async def test_blocks_of_a_cluster_read_the_shared_memory_of_each_other(dev, cluster):
    neighbours = await compiled(dev, "neighbours")
    out = dev.zeros(32, np.uint32)
    await neighbours.launch(32, 64, out, cluster=cluster)
    blocks = np.arange(32)
    assert (await out.to_host() == 100 + blocks // cluster * cluster + (blocks + 1) % cluster).all()


async def test_a_cluster_that_is_too_large_leaves_the_device_as_it_was(dev):
    neighbours = await compiled(dev, "neighbours")
    out = dev.zeros(32, np.uint32)
    with pytest.raises(InvalidArgument, match="none more than 16"):
        await neighbours.launch(32, 64, out, cluster=(4, 8))
    await neighbours.launch(32, 64, out, cluster=2)
    assert dev.generation == 1


async def test_a_kernel_that_begins_early_sees_what_the_one_before_writes(dev):
    late, after = await compiled(dev, "late"), await compiled(dev, "after")
    x, y = dev.zeros(256, np.uint32), dev.zeros(256, np.uint32)
    follower = after.prepare(4, 64, read_only(x), y, programmatic=True)
    for value in range(100):
        async with dev.batch() as batch:
            batch.launch(late, 4, 64, x, value, MILLISECOND // 10)
            batch.launch(follower)
        assert (await y.to_host() == value + 1).all()


async def test_a_launch_is_done_when_all_before_it_are_although_it_did_not_wait_for_them(dev):
    """The second kernel ends long before the first; what the lane says of it, and who reads then, must not."""
    late, idle = await compiled(dev, "late"), await compiled(dev, "idle")
    x, began = dev.zeros(64, np.uint32), dev.zeros(1, np.uint32)
    early = idle.prepare(1, 32, began, programmatic=True)
    await early.launch()
    for value in range(1, 11):
        async with dev.batch() as batch:
            batch.launch(late, 1, 64, x, value, 20 * MILLISECOND)
            batch.launch(early)
        assert (await x.to_host() == value).all()
    async with dev.lane() as other, dev.batch() as batch:
        batch.launch(late, 1, 64, x, 11, 20 * MILLISECOND)
        batch.launch(early)
        idle.launch_nowait(1, 32, x, lane=other)  # adds 1 to the first element, behind the ticket of the kernel
    assert (await x.to_host()).tolist() == [12] + [11] * 63


async def test_the_occupancy_agrees_with_what_a_cooperative_launch_takes(dev):
    idle = await compiled(dev, "idle")
    began = dev.zeros(1, np.uint32)
    for threads in (32, 128, 1024):
        most = (await idle.occupancy(threads)).device_blocks
        await idle.launch(most, threads, began, cooperative=True)
        with pytest.raises(InvalidArgument, match=f"at most {most}"):
            await idle.launch(most + 1, threads, began, cooperative=True)
