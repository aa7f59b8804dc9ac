"""Events of a batch, which go the short way: what they tell, whoever waits for them, and what becomes of them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import CommandFailed, ContextLost, Device
from atomr_trio.libraries.lanes.dropped_events import AT_ONCE
from atomr_trio.libraries.lanes.short_records import ShortRecord
from atomr_trio.testing import ReturnStatus, hold_worker, inject
from support.rogue import compile_rogue, gated, kill_worker, next_generation

pytestmark = pytest.mark.used_workers

DEADLINE = 60
N = 8
NUMBERS = np.arange(N, dtype=np.int32)


async def touched(dev: Device) -> tuple[Any, Any]:
    """A kernel that adds 1, and an array that it has been launched on, so that the compute lane is open."""
    (touch,) = await compile_rogue(dev, "touch")
    x = await dev.to_device(NUMBERS)
    await touch.launch(1, N, x, 0)
    return touch, x


def is_short(event: Any) -> bool:
    return isinstance(event._record, ShortRecord)


async def test_an_event_is_reached_behind_the_calls_before_it_and_not_earlier(dev):
    touch, x = await touched(dev)
    async with gated(dev) as gate, dev.batch() as batch:
        batch.launch(touch, 1, N, x, N)
        event = batch.record()
        batch.launch(touch, 1, N, x, N)
        assert is_short(event)
        assert (event.lane, event.generation, event.reached) == (dev.compute_lane, 1, False)
        await gate.open()
        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(event.wait)
        assert event.reached
    assert (await x.to_host() == NUMBERS + 2).all()


async def test_nobody_needs_to_wait_for_an_event_that_is_the_last_of_a_batch(dev):
    await touched(dev)
    with trio.fail_after(DEADLINE):
        async with dev.batch() as batch:
            event = batch.record()
        assert event.reached, "the batch has waited"
        async with dev.batch() as batch:
            event = batch.record()
            await event.wait()
            await batch.flush()


async def test_the_first_event_of_a_lane_is_sent_as_a_request_and_the_others_are_not(dev):
    async with dev.lane() as lane, dev.batch(lane=lane) as batch:
        events = [batch.record() for _ in range(3)]
        assert [is_short(event) for event in events] == [False, True, True]
    assert all(event.reached for event in events)
    assert {event.lane for event in events} == {lane}


async def test_the_time_between_events_of_batches_and_lanes_is_that_of_the_gpu(dev):
    touch, x = await touched(dev)
    first = dev.compute_lane.record()
    async with dev.batch() as batch:
        second = batch.record()
        batch.launch(touch, 1, N, x, N)
        third = batch.record()
    assert await second.elapsed_since(first) >= 0
    assert await third.elapsed_since(second) >= 0
    assert await second.elapsed_since(third) == pytest.approx(-await third.elapsed_since(second))
    assert await third.elapsed_since(third) == 0


async def test_other_lanes_wait_for_it(dev):
    touch, x = await touched(dev)
    y = await dev.to_device(NUMBERS)
    async with dev.lane() as other:
        async with gated(dev) as gate:
            async with dev.batch() as batch:
                batch.launch(touch, 1, N, x, N)
                event = batch.record()
                other.wait_for(event)
                touch.launch_nowait(1, N, y, N, lane=other)
                lane = next(each for each in dev.statistics().lanes if each.name == other.name)
                assert lane.waits == 1
                await gate.open()
        with trio.fail_after(DEADLINE):
            await other.synchronize()
    assert event.reached
    assert (await y.to_host() == NUMBERS + 1).all()


@pytest.mark.sim_only
@pytest.mark.parametrize("function", ["cuEventCreate", "cuEventRecord"])
async def test_an_event_that_cannot_be_recorded_tells_those_who_wait_and_the_batch(dev, function):
    touch, x = await touched(dev)
    events = []

    async def record_two() -> None:
        async with dev.batch() as batch:
            batch.launch(touch, 1, N, x, N)
            inject(dev, function, ReturnStatus(801))
            events.append(batch.record())
            batch.launch(touch, 1, N, x, N)
            events.append(batch.record())

    with pytest.raises(CommandFailed, match=f"{function}.*reported by record of an event"):
        await record_two()
    failed, good = events
    assert is_short(failed)
    for _ in range(2):
        with pytest.raises(CommandFailed, match=function):
            await failed.wait()
    assert not failed.reached
    await good.wait()
    assert good.reached
    assert (await x.to_host() == NUMBERS + 2).all()


async def test_an_event_of_a_lost_generation_is_over(dev):
    touch, x = await touched(dev)
    events = []

    async def lose() -> None:
        async with dev.batch() as batch:
            with hold_worker(dev):
                batch.launch(touch, 1, N, x, N)
                events.append(batch.record())
                kill_worker(dev)
            with trio.fail_after(DEADLINE), pytest.raises(ContextLost, match="SIGKILL"):
                await events[0].wait()

    with pytest.raises(ContextLost, match="SIGKILL"):
        await lose()
    assert not events[0].reached
    await next_generation(dev, 1)
    async with dev.batch() as batch:  # the first of its generation
        events = [batch.record(), batch.record()]
    assert [event.generation for event in events] == [2, 2]
    assert await events[1].elapsed_since(events[0]) >= 0


async def test_a_thousand_events_are_recorded_at_once_and_given_back(dev):
    await touched(dev)
    for _ in range(2):
        async with dev.batch() as batch:
            events = [batch.record() for _ in range(1000)]
        assert all(event.reached for event in events)
        assert await events[-1].elapsed_since(events[0]) >= 0
        del events
        gc.collect()
        for _ in range(4):  # each makes the worker destroy some
            await dev.compute_lane.record().wait()
        assert len(dev.compute_lane._dropped_events._events) < AT_ONCE
        kill_worker(dev)
        await next_generation(dev, dev.generation)


async def test_a_wait_that_is_cancelled_leaves_at_once_and_the_event_goes_on(dev):
    await touched(dev)
    async with gated(dev) as gate, dev.batch() as batch:
        event = batch.record()
        with trio.move_on_after(0) as scope:
            await event.wait()
        assert scope.cancelled_caught
        await gate.open()
    with trio.testing.assert_checkpoints():
        await event.wait()
    assert event.reached


async def test_statistics_count_events_of_batches_with_their_outcomes(dev):
    await touched(dev)

    def counts() -> tuple[int, int]:
        actor = next(each for each in dev.statistics().actors if each.name == "module")
        return actor.accepted, actor.settled["ok"]

    before = counts()
    async with dev.batch() as batch:
        for _ in range(5):
            batch.record()
    assert counts() == (before[0] + 5, before[1] + 5)
