"""Requests to a world that have to wait, and what a form that does not wait says of each."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import InvalidArgument, premultiplied_sum
from atomr_trio._device.device import core_of
from atomr_trio.libraries.nccl import remembered
from support.groups import open_group
from support.rogue import gated, kill_worker
from support.worlds import SETTINGS, get, open_world, put

N = 12


async def test_between_two_epochs_only_the_awaited_form_is_taken() -> None:
    async with open_world(2) as (devices, world):
        arrays = await put(devices, *[np.ones(N, np.float32)] * 2)
        outputs = await put(devices, *[np.zeros(N, np.float32)] * 2)
        core_of(devices[1]).rebuild_held = held = trio.Event()
        kill_worker(devices[1])
        while world._actor.epoch_up:
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.WouldBlock, match="between two epochs"):
            world.all_reduce_nowait(arrays, outputs)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.all_reduce, arrays, outputs)
            nursery.start_soon(world.barrier)
            await trio.testing.wait_all_tasks_blocked()
            held.set()
        assert world.epoch == 2
        assert [found.tolist() for found in await get(outputs)] == [[2.0] * N] * 2


async def test_memory_that_has_to_be_made_first_is_made_by_the_awaited_form() -> None:
    async with open_world(2) as (devices, world):
        zeros: list[Any] = [dev.zeros(N, np.float32) for dev in devices]
        outputs = await put(devices, *[np.ones(N, np.float32)] * 2)
        with pytest.raises(trio.WouldBlock, match="memory of the arrays must be made first"):
            world.all_reduce_nowait(zeros, outputs)
        assert re.fullmatch("<Epoch 1 up, 0 collectives under way>", repr(world._actor._epoch))
        await world.all_reduce(zeros, outputs)
        assert [found.tolist() for found in await get(outputs)] == [[0.0] * N] * 2


async def test_what_does_not_wait_does_not_overtake_what_waits() -> None:
    async with open_world(2) as (devices, world):
        arrays = await put(devices, *[np.ones(N, np.float32)] * 2)
        outputs = await put(devices, *[np.zeros(N, np.float32)] * 2)
        await world.all_reduce(arrays, outputs)
        async with gated(devices[0]) as gate, trio.open_nursery() as nursery:
            zeros = [dev.zeros(N, np.float32) for dev in devices]
            nursery.start_soon(world.all_reduce, zeros, outputs)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.WouldBlock, match=re.escape("other requests of")):
                world.all_reduce_nowait(arrays, outputs)
            with trio.move_on_after(0):
                await world.barrier()
            await gate.open()
        assert [found.tolist() for found in await get(outputs)] == [[0.0] * N] * 2


async def test_a_world_that_is_closed_refuses_what_waits_for_an_epoch() -> None:
    errors: list[Exception] = []
    async with open_world(2) as (devices, world):
        arrays = await put(devices, *[np.ones(N, np.float32)] * 2)
        core_of(devices[1]).rebuild_held = held = trio.Event()
        kill_worker(devices[1])
        while world._actor.epoch_up:
            await trio.testing.wait_all_tasks_blocked()

        async def ask() -> None:
            try:
                await world.all_reduce(arrays)
            except InvalidArgument as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            world._actor.close()
        held.set()
        assert len(errors) == 2
        assert all("was closed" in str(error) for error in errors)
        world._actor.close()
        with pytest.raises(InvalidArgument, match="was closed"):
            await world.wait_epoch(after=5)


@pytest.mark.parametrize("count", [1, 2])
async def test_nothing_is_reduced_to_nothing(count: int) -> None:
    async with open_world(count) as (devices, world):
        empty: list[Any] = [dev.empty((0, 3), np.float32) for dev in devices]
        for verb in (world.all_reduce, world.reduce_scatter, world.all_gather, world.all_to_all, world.broadcast):
            assert {each.size for each in await verb(empty)} == {0}
        assert (await world.reduce(empty)).shape == (0, 3)
        assert (await world.gather(empty)).size == 0
        assert {each.size for each in await world.scatter(empty[0])} == {0}
        await world.exchange([(empty[0], empty[-1])] if count > 1 else [])


async def test_a_world_of_one_member_copies_in_place_and_elsewhere() -> None:
    async with open_group(1) as devices, await devices.world(nccl=SETTINGS, deterministic=False) as world:
        (x,) = await put(devices, np.arange(N, dtype=np.float32))
        (y,) = await put(devices, np.zeros(N, np.float32))
        host = np.arange(N, dtype=np.float32)
        for verb in (world.all_reduce, world.reduce_scatter, world.all_to_all):
            await y.fill(0)
            await verb([x], [y])
            assert (await y.to_host() == host).all()
            if verb != world.all_to_all:  # which works in place for nobody
                await verb([x], [x])
            assert (await x.to_host() == host).all()
        assert (await (await world.reduce([x])).to_host() == host).all()
        assert (await (await world.all_gather([x]))[0].to_host() == host).all()
        assert (await (await world.scatter(x))[0].to_host() == host).all()
        assert (await (await world.broadcast([x]))[0].to_host() == host).all()
        assert (await (await world.all_to_all_v([x], [[N]]))[0].to_host() == host).all()
        await y.fill(0)
        await world.send(x, y)
        assert (await y.to_host() == host).all()
        async with world.batch() as batch:
            batch.all_reduce([x], [y])
        with pytest.raises(InvalidArgument, match="premultiplied_sum"):
            await world.all_reduce([x], [y], op=premultiplied_sum(2.0))


async def test_a_caller_that_polls_can_be_cancelled_and_the_collective_ends() -> None:
    async with open_world(2) as (devices, world):
        arrays = await put(devices, *[np.ones(N, np.float32)] * 2)
        outputs = await put(devices, *[np.zeros(N, np.float32)] * 2)
        await world.all_reduce(arrays, outputs)
        await outputs[0].fill(0)
        async with gated(devices[0]) as gate:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.all_reduce, arrays, outputs)
                while world._actor._epoch is None or world._actor._epoch.idle:
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await gate.open()
        await world.barrier()
        assert [found.tolist() for found in await get(outputs)] == [[2.0] * N] * 2


async def test_calls_that_are_remembered_are_forgotten_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_MOST_KNOWN", 2)
    async with open_world(2) as (devices, world):
        x, y, z = [await put(devices, *[np.full(N, number, np.float32)] * 2) for number in (1, 2, 3)]
        for _ in range(2):
            for source, target in ((x, y), (y, z), (z, x)):
                await world.all_reduce(source, target)
        assert len(world._memory._calls) <= 2
        assert [found.tolist() for found in await get(x)] == [[64.0] * N] * 2
        empty: list[Any] = [dev.empty(0, np.float32) for dev in devices]
        assert {each.size for each in world.all_reduce_nowait(empty)} == {0}
        batch = world.batch()
        async with batch:
            batch.all_reduce(x, y)
            with pytest.raises(InvalidArgument, match="entered once"):
                await batch.__aenter__()


async def test_a_collective_is_not_captured() -> None:
    async with open_world(2) as (devices, world):
        arrays = await put(devices, *[np.ones(N, np.float32)] * 2)

        async def record(_: Any) -> None:
            await world.all_reduce(arrays)

        with pytest.raises(InvalidArgument, match="cannot be captured"):
            await devices[0].capture(record)
