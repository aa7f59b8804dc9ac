"""Lanes and events: priorities, order across lanes and its cost, what an event tells, and lanes that are given back."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import ContextLost, DeviceClosed, Event, InvalidArgument, Lane, overwrites, read_only
from atomr_trio._device.device import core_of
from atomr_trio._generation.admission import COMPUTE_LIMIT
from atomr_trio._wire.protocol import LANE_COMPUTE, LANE_LIMIT, LANES, MAX_LANES
from atomr_trio._wire.records.event import DROP
from atomr_trio.libraries.lanes.dropped_events import AT_ONCE
from atomr_trio.testing import hold_rebuild, hold_worker
from support.rogue import compile_rogue, gated, kill_worker, next_generation, until

pytestmark = pytest.mark.used_workers

DEADLINE = 60
N = 8
SOURCE = r"""
extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }
extern "C" __global__ void scale(int *x, int a) { x[threadIdx.x] *= a; }
extern "C" __global__ void copy(const int *from, int *to) { to[threadIdx.x] = from[threadIdx.x]; }
"""
NUMBERS = np.arange(N, dtype=np.int32)
MOST = MAX_LANES - LANES


async def compiled(dev: Any, *names: str) -> Any:
    kernels = [await dev.nvrtc.compile(SOURCE, name) for name in names]
    return kernels if len(kernels) > 1 else kernels[0]


def statistics_of(dev: Any, name: str) -> Any:
    return next(lane for lane in dev.statistics().lanes if lane.name == name)


# --- priorities -------------------------------------------------------------------------------------------------------


async def test_a_lane_has_any_priority_that_the_device_has(dev):
    add = await compiled(dev, "add")
    info = dev.info
    assert info.highest_priority <= 0 <= info.lowest_priority
    x = await dev.to_device(NUMBERS)
    for priority in range(info.highest_priority, info.lowest_priority + 1):
        async with dev.lane(priority=priority) as lane:
            assert lane.priority == priority
            assert f"priority {priority}" in repr(lane)
            await add.launch(1, N, x, 1, lane=lane)
    count = info.lowest_priority - info.highest_priority + 1
    assert (await x.to_host() == NUMBERS + count).all()


async def test_other_priorities_and_options_are_refused(dev):
    info = dev.info
    for bad in (info.highest_priority - 1, info.lowest_priority + 1, True, 0.0, "0", None):
        with pytest.raises(InvalidArgument, match="priority is an int from"):
            dev.lane(priority=bad)
    for bad in (1, None, "yes"):
        with pytest.raises(InvalidArgument, match="ordered is True or False"):
            dev.lane(ordered=bad)
    assert len(dev.statistics().lanes) == LANES


# --- order ------------------------------------------------------------------------------------------------------------


async def test_lanes_run_beside_each_other(dev):
    add = await compiled(dev, "add")
    x, y = await dev.to_device(NUMBERS), await dev.to_device(NUMBERS)
    async with dev.lane() as lane, gated(dev):
        add.launch_nowait(1, N, x, 1)  # held up
        await add.launch(1, N, y, 1, lane=lane)
        assert (await y.to_host() == NUMBERS + 1).all()
        assert statistics_of(dev, "compute").unfinished >= 1


async def test_work_on_one_array_is_in_order_across_lanes_and_each_wait_is_counted(dev):
    add, scale = await compiled(dev, "add", "scale")
    x = await dev.to_device(NUMBERS)
    async with dev.lane() as one, dev.lane() as other:
        async with gated(dev):
            add.launch_nowait(1, N, x, 1)
            scale.launch_nowait(1, N, x, 3, lane=one)  # waits for the compute lane
            scale.launch_nowait(1, N, x, 3, lane=one)  # does not: its lane has waited already
            add.launch_nowait(1, N, x, 5, lane=other)  # waits for the first lane
            assert statistics_of(dev, one.name).waits == 1
            assert statistics_of(dev, other.name).waits == 1
        assert (await x.to_host() == (NUMBERS + 1) * 9 + 5).all()
        waits = statistics_of(dev, one.name).waits
        await scale.launch(1, N, x, 1, lane=one)
        assert statistics_of(dev, one.name).waits == waits, "everything before it is done"


async def test_readers_on_several_lanes_do_not_wait_for_each_other(dev):
    copy, add = await compiled(dev, "copy", "add")
    x, y, z = [await dev.to_device(NUMBERS) for _ in range(3)]
    async with dev.lane() as one, dev.lane() as other:
        async with gated(dev, one):
            copy.launch_nowait(1, N, read_only(x), y, lane=one)
            await copy.launch(1, N, read_only(x), z, lane=other)
            assert statistics_of(dev, other.name).waits == 0
            add.launch_nowait(1, N, x, 1, lane=other)
            assert statistics_of(dev, other.name).waits == 1, "a writer waits for the reader that is held up"
        assert (await x.to_host() == NUMBERS + 1).all()
        assert (await y.to_host() == NUMBERS).all()


async def test_a_lane_without_order_waits_for_nothing(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    await add.launch(1, N, x, 0)
    async with dev.lane(ordered=False) as free:
        assert not free.ordered
        async with gated(dev):
            add.launch_nowait(1, N, x, 1)
            await add.launch(1, N, x, 10, lane=free)
            assert statistics_of(dev, free.name).waits == 0
            assert statistics_of(dev, "compute").unfinished >= 1, "the launch before it is still held up"
        assert (await x.to_host() == NUMBERS + 11).all()


async def test_events_put_lanes_in_order_that_nothing_else_does(dev):
    add, scale = await compiled(dev, "add", "scale")
    x = await dev.to_device(NUMBERS)
    await add.launch(1, N, x, 0)
    async with dev.lane(ordered=False) as one, dev.lane(ordered=False) as other:
        async with gated(dev, one):
            add.launch_nowait(1, N, x, 1, lane=one)
            event = one.record()
            other.wait_for(event)
            scale.launch_nowait(1, N, x, 3, lane=other)
            assert statistics_of(dev, other.name).waits == 1
            assert not event.reached
        with trio.fail_after(DEADLINE):
            await other.synchronize()
        assert event.reached
        assert (await x.to_host() == (NUMBERS + 1) * 3).all()


async def test_freed_memory_waits_for_a_lane_without_order(dev):
    add = await compiled(dev, "add")
    async with dev.lane(ordered=False) as free:
        async with gated(dev, free):
            x = await dev.to_device(NUMBERS)
            address = x.address
            add.launch_nowait(1, N, x, 1, lane=free)
            x.free()
            heir = dev.empty(N, np.int32)
            assert heir.address == address
            async with trio.open_nursery() as nursery:
                nursery.start_soon(heir.copy_from, NUMBERS * 7)
                await until(lambda: statistics_of(dev, "copy-in").waits == 1)
                nursery.cancel_scope.cancel()
        await free.synchronize()
        assert (await heir.to_host() == NUMBERS * 7).all()


# --- events -----------------------------------------------------------------------------------------------------------


async def test_an_event_is_reached_when_everything_before_it_is_done(dev):
    x = await dev.to_device(NUMBERS)
    add = await compiled(dev, "add")
    async with gated(dev) as gate:
        add.launch_nowait(1, N, x, 1)
        event = dev.compute_lane.record()
        add.launch_nowait(1, N, x, 1)
        assert isinstance(event, Event)
        assert not event.reached
        assert "not reached" in repr(event)
        with trio.move_on_after(0.01) as scope:
            await event.wait()
        assert scope.cancelled_caught
        await gate.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(event.wait)
            nursery.start_soon(event.wait)
    await event.wait()
    assert event.reached
    assert "reached" in repr(event)
    assert event.lane is dev.compute_lane
    assert event.generation == 1


async def test_waiting_is_a_checkpoint(dev):
    event = dev.compute_lane.record()
    await event.wait()
    with trio.testing.assert_checkpoints():
        await event.wait()
    with trio.testing.assert_checkpoints():
        async with dev.lane():
            pass


async def test_the_time_between_two_events_is_that_of_the_gpu(dev):
    async with gated(dev) as gate:
        earlier = dev.compute_lane.record()
        await gate.open()
        await dev.compute_lane.synchronize()
    begun = trio.current_time()
    first = dev.compute_lane.record()
    await first.wait()
    await trio.sleep(0.02)
    second = dev.compute_lane.record()
    elapsed = await second.elapsed_since(first)
    assert 0.02 <= elapsed * 1.001 <= trio.current_time() - begun + 0.01
    assert await second.elapsed_since(second) == 0
    assert await first.elapsed_since(second) == pytest.approx(-elapsed)
    assert await second.elapsed_since(earlier) >= elapsed


async def test_events_of_other_devices_and_generations_are_refused(dev, open_test_device):
    event = dev.compute_lane.record()
    async with open_test_device() as other:
        theirs = other.compute_lane.record()
        for bad in (theirs, None, 3, "event", dev.compute_lane):
            with pytest.raises(InvalidArgument, match=r"another device|takes an event"):
                dev.compute_lane.wait_for(bad)
            with pytest.raises(InvalidArgument, match=r"another device|takes an event"):
                await event.elapsed_since(bad)
    await event.wait()
    kill_worker(dev)
    await next_generation(dev, 1)
    later = dev.compute_lane.record()
    with pytest.raises(InvalidArgument, match="generation 1, this one in 2"):
        await later.elapsed_since(event)
    with pytest.raises(ContextLost, match="generation 1 was lost"):
        await event.elapsed_since(event)
    assert event.reached, "it was, before the loss"
    await event.wait()


async def test_an_event_of_a_lost_generation_is_over_and_nobody_waits_for_it(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    with hold_worker(dev):
        event = dev.compute_lane.record()
        kill_worker(dev)
    with trio.fail_after(DEADLINE):
        for _ in range(2):
            with pytest.raises(ContextLost, match="SIGKILL"):
                await event.wait()
    assert not event.reached
    await next_generation(dev, 1)
    async with dev.lane() as lane:
        lane.wait_for(event)
        await add.launch(1, N, x, 1, lane=lane)
    assert (await x.to_host() == NUMBERS + 1).all()


async def test_nothing_is_recorded_while_the_device_is_rebuilt(dev):
    with hold_rebuild(dev):
        kill_worker(dev)
        await until(lambda: dev.state.name == "REBUILDING")
        with pytest.raises(trio.WouldBlock):
            dev.compute_lane.record()
    await next_generation(dev, 1)
    await dev.compute_lane.synchronize()


async def test_events_that_nobody_has_are_given_back(dev):
    for _ in range(300):
        await dev.compute_lane.record().wait()
    gc.collect()
    last = dev.compute_lane.record()
    await last.wait()
    assert len(core_of(dev).dropped) <= 1


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("own", [True, False])
async def test_a_lane_takes_as_many_events_as_the_page_says_whoever_keeps_them(dev, kept, own):
    """Nothing finishes meanwhile: no other task of this process runs."""
    events = []
    async with dev.lane() as opened:
        lane = opened if own else dev.compute_lane
        await lane.synchronize()
        for _ in range(LANE_LIMIT):
            events.append(lane.record())
            del events[: not kept]
        name = lane.name if own else "the compute lane"
        with pytest.raises(trio.WouldBlock, match=f"^{LANE_LIMIT} commands of {name} are unfinished .* {LANE_LIMIT}:"):
            lane.record()
        await lane.synchronize()
        await lane.record().wait()


async def test_a_lane_waits_for_as_many_events_as_the_page_says(dev):
    async with dev.lane() as lane:
        await lane.synchronize()
        event = dev.compute_lane.record()
        for _ in range(LANE_LIMIT):
            lane.wait_for(event)
        with pytest.raises(trio.WouldBlock, match=f"^{LANE_LIMIT} commands of {lane.name} are unfinished"):
            lane.wait_for(event)


async def test_a_full_compute_lane_is_named_when_it_is_what_another_lane_waits_for(dev):
    """What a command of that one brings along runs there."""
    async with dev.lane() as lane:
        await lane.synchronize()
        with hold_worker(dev):
            events = [dev.compute_lane.record() for _ in range(LANE_LIMIT)]
            x = [dev.zeros(N, np.int32) for _ in range(COMPUTE_LIMIT - LANE_LIMIT)]
            async with trio.open_nursery() as nursery:
                for each in x:
                    nursery.start_soon(each.to_host)
                await until(lambda: core_of(dev).current.timeline.lanes[LANE_COMPUTE].admitted >= COMPUTE_LIMIT)
                with pytest.raises(
                    trio.WouldBlock, match=rf"^{COMPUTE_LIMIT} .* of the compute lane .* {COMPUTE_LIMIT}:"
                ):
                    lane.record()
                nursery.cancel_scope.cancel()
        await events[-1].wait()


async def test_an_event_is_given_back_behind_its_recording_on_whatever_lane(dev, monkeypatch):
    """Or the worker would have nothing to give back yet, and keep it for ever."""
    generation, dropped = core_of(dev).current, []
    publish = generation.publish

    def seen(lane: int, verb: Any, *arguments: Any, **more: Any) -> Any:
        if verb is DROP:
            dropped.append(more["after"])
        return publish(lane, verb, *arguments, **more)

    monkeypatch.setattr(generation, "publish", seen)
    async with dev.lane() as lane:
        events = [lane.record() for _ in range(AT_ONCE)]
        recorded = (lane._number, events[-1]._record.ticket)
        await events[-1].wait()
        del events
        gc.collect()
        await dev.compute_lane.record().wait()
    assert dropped == [(recorded,)]


# --- the life of a lane -----------------------------------------------------------------------------------------------


async def test_thirteen_lanes_may_be_open_and_their_numbers_are_used_again(dev):
    add = await compiled(dev, "add")
    arrays = [await dev.to_device(NUMBERS) for _ in range(MOST)]
    lanes = [dev.lane() for _ in range(MOST)]
    with pytest.raises(InvalidArgument, match=f"{MOST} lanes are open"):
        dev.lane()
    assert len({lane.name for lane in lanes}) == MOST == 13
    for lane, x in zip(lanes, arrays, strict=True):
        add.launch_nowait(1, N, x, 1, lane=lane)
    for lane in lanes:
        await lane.synchronize()
    for number, lane in enumerate(lanes):
        async with lane:
            add.launch_nowait(1, N, arrays[number], 1, lane=lane)
        assert lane._closed
    await until(lambda: all(lane.unfinished == 0 for lane in dev.statistics().lanes))
    for _ in range(2 * MOST):
        async with dev.lane() as lane:
            await add.launch(1, N, arrays[0], 1, lane=lane)
    assert (await arrays[0].to_host() == NUMBERS + 2 + 2 * MOST).all()
    assert all([(await x.to_host() == NUMBERS + 2).all() for x in arrays[1:]])
    await until(lambda: dev.statistics().lanes[0].unfinished == 0)
    dev.lane()
    assert len(dev.statistics().lanes) == LANES + 1, "the others were given back"


async def test_a_lane_is_closed_with_work_under_way_which_goes_on(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    async with dev.lane() as lane:
        async with gated(dev, lane):
            add.launch_nowait(1, N, x, 1, lane=lane)
            await lane.__aexit__(None, None, None)
            assert "closed" in repr(lane)
            event = dev.compute_lane.record()
            for call in (
                lane.record,
                lambda: lane.wait_for(event),
                lambda: add.launch_nowait(1, N, x, 1, lane=lane),
                lambda: dev.batch(lane=lane),
            ):
                with pytest.raises(InvalidArgument, match="was closed"):
                    call()
            with pytest.raises(InvalidArgument, match="was closed"):
                await add.launch(1, N, x, 1, lane=lane)
            assert statistics_of(dev, lane.name).unfinished == 2
        assert (await x.to_host() == NUMBERS + 1).all()
    async with dev.lane() as heir:
        assert heir.name == lane.name, "its number is free again"
        await add.launch(1, N, x, 1, lane=heir)
    assert (await x.to_host() == NUMBERS + 2).all()


async def test_leaving_a_lane_keeps_the_exception_of_the_block_whatever_is_cancelled(dev):
    lane = dev.lane()

    async def leave() -> None:
        with trio.CancelScope() as scope:
            async with lane:
                scope.cancel()
                raise KeyError("the body's")

    with pytest.raises(KeyError, match="the body's"):
        await leave()
    assert "closed" in repr(lane)


async def test_a_lane_whose_block_does_not_begin_is_closed(dev):
    for _ in range(MOST + 1):
        with trio.CancelScope() as scope:
            scope.cancel()
            async with (lane := dev.lane()):
                raise AssertionError("the block has begun")
        assert scope.cancelled_caught
        assert "closed" in repr(lane)


async def test_a_lane_that_a_batch_works_on_stays_until_the_batch_is_over(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    lane = dev.lane()
    async with dev.batch(lane=lane) as batch:
        for _ in range(3):
            batch.launch(add, 1, N, x, 1)
        async with lane:
            pass
        batch.launch(add, 1, N, x, 1)
    assert (await x.to_host() == NUMBERS + 4).all()
    assert dev.lane().name == lane.name


async def test_lanes_and_what_is_no_lane_of_the_device(dev, open_test_device):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    async with open_test_device() as other:
        for bad in (other.compute_lane, other.lane(), "compute", 0, dev.compute_lane.record()):
            with pytest.raises(InvalidArgument, match=r"another device|expected a lane"):
                await add.launch(1, N, x, 1, lane=bad)
            with pytest.raises(InvalidArgument, match=r"another device|expected a lane"):
                dev.batch(lane=bad)
        lane = other.lane()
    await add.launch(1, N, x, 1, lane=dev.compute_lane)
    assert (await x.to_host() == NUMBERS + 1).all()
    with pytest.raises(DeviceClosed):
        lane.record()
    with pytest.raises(DeviceClosed):
        other.lane()
    with pytest.raises(TypeError, match=r"dev\.lane"):
        Lane(dev, 3, "mine")
    with pytest.raises(TypeError, match="record"):
        Event(dev.compute_lane, 1, None, 1)


async def test_a_lane_is_the_same_in_every_generation(dev):
    add = await compiled(dev, "add")
    (wild,) = await compile_rogue(dev, "wild")
    x, y = await dev.to_device(NUMBERS), await dev.to_device(NUMBERS)
    async with dev.lane(priority=dev.info.highest_priority) as lane, dev.lane(ordered=False) as free:
        for generation in (1, 2, 3):
            await add.launch(1, N, x, 1, lane=lane)
            await add.launch(1, N, x, 1, lane=free)
            with pytest.raises(ContextLost):
                await wild.launch(1, 1, 0x10, lane=lane, touches=[y])
            await next_generation(dev, generation)
            assert y.state == "torn"
            await add.launch(1, N, overwrites(y), 0, lane=lane)
        assert lane.priority == dev.info.highest_priority
        assert statistics_of(dev, lane.name).submitted == 1, "counts begin anew with each generation"
    assert (await x.to_host() == NUMBERS + 6).all()


async def test_a_hang_on_a_lane_is_noticed_there_and_names_its_kernel(open_test_device):
    async with open_test_device(hang_timeout=30) as dev:
        (spin,) = await compile_rogue(dev, "spin")
        add = await compiled(dev, "add")
        word, x = dev.zeros(1, np.int32), await dev.to_device(NUMBERS)
        await word.to_host()
        async with dev.lane() as lane:
            with pytest.raises(ContextLost, match="launch of spin ran longer than hang_timeout"):
                await spin.launch(1, 1, word.address, lane=lane, hang_timeout=0.2)
            await next_generation(dev, 1)
            await add.launch(1, N, x, 1, lane=lane)
        assert (await x.to_host() == NUMBERS + 1).all()


async def test_the_compute_lane_is_not_opened_and_so_never_closed(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    with pytest.raises(InvalidArgument, match="never closed"):
        async with dev.compute_lane:
            raise AssertionError
    await add.launch(1, N, x, 1, lane=dev.compute_lane)
    assert (await x.to_host() == NUMBERS + 1).all()
