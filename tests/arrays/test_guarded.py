"""Guarded arrays: an access past the end faults instead of going astray, and they are arrays like any other."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import ContextLost, InvalidArgument, OutOfDeviceMemory, RestartPolicy, overwrites, read_only
from atomr_trio._arrays.memory import DeviceMemory
from atomr_trio._device.device import core_of
from atomr_trio._memory.arena import CHUNK_GRANULARITY, GUARD, GUARDED_ALIGNMENT, MAX_CHUNKS, MIB
from atomr_trio.testing import WorkerPool
from support import open_test_device
from support.rogue import next_generation

ANY_NUMBER = RestartPolicy(intensity=math.inf)
DEADLINE = 300

SOURCE = """
extern "C" __global__ void poke(void *x, long long at) { ((volatile unsigned char *)x)[at] = 77; }
extern "C" __global__ void peek(const void *x, long long at, int *out) {
    *out = ((const volatile unsigned char *)x)[at];
}
extern "C" __global__ void poke_there(unsigned long long where) { *(volatile unsigned char *)where = 77; }
extern "C" __global__ void copy_wide(const void *from, void *to, int n) {
    for (int i = 0; i < n; i++) ((uint4 *)to)[i] = ((const uint4 *)from)[i];
}
"""


@pytest.fixture
async def dev(pool: WorkerPool) -> AsyncIterator[Any]:
    """A device on which arrays are guarded unless they are made otherwise."""
    with trio.fail_after(DEADLINE):
        async with open_test_device(workers=pool, guarded=True, restart_policy=ANY_NUMBER) as device:
            yield device


async def kernels(dev: Any, *names: str) -> list[Any]:
    return [await dev.nvrtc.compile(SOURCE, name) for name in names]


async def strays(dev: Any, kernel: Any, *arguments: Any) -> None:
    """A launch must fault by an illegal address; the next generation is there when this returns."""
    lost = dev.generation
    with pytest.raises(ContextLost) as caught:
        await kernel.launch(1, 1, *arguments)
    assert (caught.value.status, caught.value.status_name) == (700, "CUDA_ERROR_ILLEGAL_ADDRESS")
    await next_generation(dev, lost)


def pattern(nbytes: int) -> np.ndarray:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)


# --- what a guard catches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [16, 4000, 2 * MIB - 16, 2 * MIB, 2 * MIB + 16, 5 * MIB])
async def test_one_byte_past_the_end_faults_and_every_other_array_is_intact(dev, nbytes):
    poke, peek = await kernels(dev, "poke", "peek")
    before = await dev.to_device(pattern(4000))
    x, out = dev.zeros(nbytes, np.uint8), dev.zeros(1, np.int32)
    after = await dev.to_device(pattern(4000))
    await poke.launch(1, 1, x, nbytes - 1)
    assert (await x[-16:].to_host() == [0] * 15 + [77]).all()
    await strays(dev, peek, read_only(x), nbytes, out)
    assert (await x[-16:].to_host() == [0] * 15 + [77]).all()
    await strays(dev, poke, x, nbytes)
    for neighbour in (before, after):
        assert neighbour.state == "ready"
        assert (await neighbour.to_host() == pattern(4000)).all()


@pytest.mark.parametrize("make", ["zeros", "empty"])
async def test_an_empty_array_ends_where_it_begins(dev, make):
    poke, peek = await kernels(dev, "poke", "peek")
    neighbour = await dev.to_device(pattern(4000))
    x, out = getattr(dev, make)(0, np.uint8), dev.zeros(1, np.int32)
    assert x.address % GUARDED_ALIGNMENT == 0
    await strays(dev, peek, read_only(x), 0, out)
    await strays(dev, poke, overwrites(x), 0)
    assert neighbour.state == "ready"
    assert (await neighbour.to_host() == pattern(4000)).all()


async def test_an_empty_array_is_used_like_any_other_and_gives_its_memory_back(dev):
    kept = dev.zeros(3, np.uint8)
    await kept.to_host()
    before, chunks = dev.statistics().memory, len(dev.memory_map().chunks)
    x, y = dev.zeros((0, 4), np.float32), dev.empty((0, 4), np.float32)
    assert x.address != y.address
    assert (await x.to_host()).shape == (0, 4)
    await x.fill(1)
    await y.copy_from(x)
    await x.copy_from(np.empty((0, 4), np.float32))
    (poke,) = await kernels(dev, "poke")
    poke.launch_nowait(1, 1, kept, 1, touches=(x, y))
    async with dev.batch() as batch:
        batch.copy_from(x, y)
        batch.launch(poke, 1, 1, kept, 2, touches=(x, y))
    assert (await dev.blas.gemm(x, dev.zeros((4, 3), np.float32))).shape == (0, 3)
    drawn = dev.memory_map()
    assert len(drawn.chunks) >= chunks + 2
    for chunk in drawn.chunks:
        assert sum(piece.size for piece in chunk.pieces) == chunk.size
        assert [piece.address for piece in chunk.pieces] == sorted(piece.address for piece in chunk.pieces)
    await dev.trim()
    x.free()
    y.free()
    await dev.trim()
    assert dev.statistics().memory.in_use == before.in_use
    assert dev.statistics().memory.reserved == before.reserved
    assert (await kept.to_host() == [0, 77, 77]).all()


async def test_what_fills_its_memory_is_guarded_at_both_ends(dev):
    (poke,) = await kernels(dev, "poke")
    x = dev.zeros(CHUNK_GRANULARITY, np.uint8)
    await strays(dev, poke, overwrites(x), -1)
    await strays(dev, poke, overwrites(x), CHUNK_GRANULARITY)
    await poke.launch(1, 1, overwrites(x), 0)


async def test_the_end_is_exact_to_sixteen_bytes_so_that_the_widest_accesses_stay_aligned(dev):
    poke, copy_wide = await kernels(dev, "poke", "copy_wide")
    x = dev.zeros(3, np.float64)
    assert x.address % GUARDED_ALIGNMENT == 0
    await poke.launch(1, 1, x, 31)
    await strays(dev, poke, x, 32)
    source, target = await dev.to_device(pattern(4000)), dev.empty(4000, np.uint8)
    await copy_wide.launch(1, 1, read_only(source), target, 250)
    assert (await target.to_host() == pattern(4000)).all()


async def test_without_a_guard_an_access_past_the_end_goes_astray_into_the_next_array(dev):
    (poke,) = await kernels(dev, "poke")
    x, victim = (dev.full(512, 5, np.uint8, guarded=False) for _ in range(2))
    assert victim.address == x.address + 512
    await victim.to_host()
    await poke.launch(1, 1, x, 512)
    assert dev.generation == 1
    assert (await victim[:2].to_host() == [77, 5]).all()


async def test_the_address_of_an_array_that_was_freed_faults_once_its_memory_was_released(dev):
    poke_there, peek = await kernels(dev, "poke_there", "peek")
    x, behind = dev.zeros(100, np.uint8), dev.zeros(100, np.uint8)
    out = dev.zeros(1, np.int32)
    await peek.launch(1, 1, x, 0, out)
    await behind.to_host()
    address = x.address
    x.free()
    large = dev.zeros(5 * MIB, np.uint8)  # does not fit where x was
    await large[:1].to_host()  # the new memory comes after the release of the old
    await strays(dev, poke_there, address)
    assert await large.to_host() is not None
    assert not (await behind.to_host()).any()


# --- arrays like any other --------------------------------------------------------------------------------------------


async def test_every_way_to_make_an_array_makes_a_guarded_one_and_says_otherwise_if_asked(dev):
    made = [
        dev.empty((3, 4), np.float32),
        dev.zeros(7, np.int64),
        dev.full((2, 5), 2.5, np.float64),
        await dev.to_device(np.arange(10, dtype=np.int16)),
        dev.zeros(0, np.int8),
        dev.empty(0, np.int8),
    ]
    chunks = {array._block.chunk for array in made}
    assert len(chunks) == len(made)
    assert all(chunk.guard == GUARD for chunk in chunks)
    _, zeros, full, arange, *_ = made
    assert not (await zeros.to_host()).any()
    assert (await full.to_host() == 2.5).all()
    assert (await arange.to_host() == np.arange(10)).all()
    plain = dev.zeros(10, guarded=False)
    assert plain._block.chunk.guard == 0


async def test_a_device_guards_what_it_is_asked_to_and_nothing_else(pool):
    async with open_test_device(workers=pool) as dev:
        for make in (dev.empty, dev.zeros, lambda shape, **options: dev.full(shape, 1.0, **options)):
            assert make(10)._block.chunk.guard == 0
            assert make(10, guarded=True)._block.chunk.guard == GUARD


async def test_a_guarded_array_can_be_seen_and_copied_in_every_way(dev):
    host = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    x = await dev.to_device(host)
    assert (await x[1:, ::2, 3].to_host() == host[1:, ::2, 3]).all()
    y = dev.zeros((4, 5), np.int32)
    await y.copy_from(x[2])
    assert (await y.to_host() == host[2]).all()
    await x[0].fill(9)
    assert (await x.to_host() == np.concatenate([np.full((1, 4, 5), 9), host[1:]])).all()


async def test_there_are_as_many_as_there_may_be_chunks_and_the_refusal_says_so(dev):
    arrays = [dev.empty(1, np.uint8) for _ in range(MAX_CHUNKS)]
    with pytest.raises(OutOfDeviceMemory, match=f"{MAX_CHUNKS} chunks of {MAX_CHUNKS}") as refused:
        dev.empty(1, np.uint8)
    assert "a device may have no more chunks" in str(refused.value)
    assert "make fewer guarded ones" in str(refused.value)
    assert "memory_limit" not in str(refused.value), "which would not help"
    arrays.pop().free()
    await dev.empty(1, np.uint8).fill(1)


async def test_a_guarded_array_that_the_limit_does_not_allow_is_refused_by_the_memory_it_takes(pool):
    async with open_test_device(workers=pool, memory_limit=6 * MIB, guarded=True) as dev:
        kept = [dev.empty(1, np.uint8) for _ in range(3)]
        with pytest.raises(OutOfDeviceMemory, match=r"(?s)the limit is 6,291,456.*raise memory_limit="):
            dev.empty(1, np.uint8)
        kept.pop().free()
        dev.empty(1, np.uint8)


async def test_freeing_gives_the_memory_back(dev):
    before = dev.statistics().memory
    for round_ in range(10):
        x = dev.empty(300 * MIB, np.uint8)  # together more than a simulated device has
        await x[-4:].fill(round_)
        assert (await x[-4:].to_host() == round_).all()
        assert dev.statistics().memory.reserved == before.reserved + 300 * MIB
        x.free()
        assert dev.statistics().memory == before
    with pytest.raises(InvalidArgument, match="freed"):
        await x.to_host()


async def test_an_array_that_is_freed_while_a_kernel_uses_it_is_released_after_the_kernel(dev):
    (copy_wide,) = await kernels(dev, "copy_wide")
    n = 4000
    source, target = await dev.to_device(pattern(n)), dev.zeros(n, np.uint8)
    for _ in range(20):
        copy_wide.launch_nowait(1, 1, read_only(source), target, n // 16)
        source.free()
        source = await dev.to_device(pattern(n))
    assert (await target.to_host() == pattern(n)).all()
    assert dev.generation == 1


# --- across faults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("standby", [0, 1])
async def test_guarded_arrays_survive_faults_with_their_guards(pool, standby):
    with trio.fail_after(DEADLINE):
        async with open_test_device(workers=pool, guarded=True, standby=standby, restart_policy=ANY_NUMBER) as dev:
            await dev.wait_standby()
            (poke,) = await kernels(dev, "poke")
            arrays = {n: await dev.to_device(pattern(n)) for n in (16, 4000, 3 * MIB)}
            addresses = [array.address for array in arrays.values()]
            freed = await dev.to_device(pattern(100))
            torn = dev.zeros(100, np.uint8)
            for n, array in arrays.items():
                await strays(dev, poke, read_only(array), n)
                await strays(dev, poke, overwrites(torn), 112)
                assert torn.state == "torn"
                freed.free()  # twice is fine
                assert (await array.to_host() == pattern(n)).all()
                await dev.wait_standby()
            assert [array.address for array in arrays.values()] == addresses
            for n, array in arrays.items():
                assert array.state == "ready"
                assert (await array.to_host() == pattern(n)).all()
            await torn.fill(1)
            assert (await torn.to_host() == 1).all()
            assert dev.generation == 1 + 2 * len(arrays)


async def test_a_standby_has_the_guarded_arrays_that_there_are_and_no_others(pool):
    with trio.fail_after(DEADLINE):
        async with open_test_device(workers=pool, guarded=True, standby=1, restart_policy=ANY_NUMBER) as dev:
            await dev.wait_standby()
            (standby,) = core_of(dev).standbys.generations
            arrays = [await dev.to_device(pattern(n)) for n in (16, 4000, 3 * MIB)]
            arrays.pop(1).free()
            arrays.append(await dev.to_device(pattern(5 * MIB)))
            addresses = {array._block.chunk.address for array in arrays}
            assert (
                set(standby.chunks._mapped)
                == addresses
                == {chunk.address for chunk in core_of(dev).part(DeviceMemory).arena.chunks}
            )
