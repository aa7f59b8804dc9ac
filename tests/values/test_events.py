"""Events of a device: every subscriber, slow or fast, and the log."""

import itertools
import logging
import math

import attrs
import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from atomr_trio._values.errors import InvalidArgument
from atomr_trio._values.events import (
    ActorRestarted,
    ContextRebuilt,
    ContextWasLost,
    DeviceEvent,
    DeviceGaveUp,
    EventHub,
    EventsDropped,
)
from atomr_trio._values.state import DeviceState
from atomr_trio._values.statistics import (
    OUTCOMES,
    ActorStatistics,
    DeviceStatistics,
    LaneStatistics,
    MemoryStatistics,
)


def rebuilt(generation):
    return ContextRebuilt(generation=generation, seconds=0.25, by_standby=False)


async def collect(events):
    return [event async for event in events]


def told(events):
    """The generations of the events, and the counts of those that were dropped as negative numbers."""
    return [-event.count if isinstance(event, EventsDropped) else event.generation for event in events]


async def test_a_subscriber_gets_every_event_in_order_and_the_close_ends_it():
    hub = EventHub(0)
    async with hub.subscribe() as events:
        for generation in (2, 3, 4):
            hub.publish(rebuilt(generation))
        hub.close()
        assert await collect(events) == [rebuilt(2), rebuilt(3), rebuilt(4)]


async def test_a_waiting_subscriber_is_woken_by_an_event_and_by_the_close():
    hub = EventHub(0)
    got = []

    async def listen(events):
        got.extend(await collect(events))
        got.append("end")

    with hub.subscribe() as events:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, events)
            await wait_all_tasks_blocked()
            hub.publish(rebuilt(2))
            await wait_all_tasks_blocked()
            assert got == []
            hub.close()
    assert got == [rebuilt(2), "end"]


async def test_only_events_of_the_block_are_seen():
    hub = EventHub(0)
    subscription = hub.subscribe()
    hub.publish(rebuilt(2))
    async with subscription as events:
        hub.publish(rebuilt(3))
        assert await anext(events) == rebuilt(3)
    hub.publish(rebuilt(4))
    with pytest.raises(trio.ClosedResourceError):
        await anext(events)
    assert repr(hub) == "<EventHub of device 0: open, 0 subscribers>"


async def test_a_slow_subscriber_loses_events_and_is_told_how_many_in_the_right_place():
    hub = EventHub(0)
    with hub.subscribe(buffer=2) as slow, hub.subscribe() as fast:
        for generation in range(1, 6):
            hub.publish(rebuilt(generation))
        assert repr(slow) == "<Subscription: 2 of 2 waiting, 3 dropped>"
        assert await anext(slow) == rebuilt(1)
        hub.publish(rebuilt(6))
        assert await anext(slow) == rebuilt(2)
        hub.publish(rebuilt(7))
        hub.close()
        assert told(await collect(slow)) == [-4, 7]
        assert told(await collect(fast)) == [1, 2, 3, 4, 5, 6, 7]


async def test_the_count_is_told_also_when_nothing_follows_and_when_the_hub_closes_on_a_full_buffer():
    hub = EventHub(0)
    with hub.subscribe(buffer=1) as quiet, hub.subscribe(buffer=1) as full:
        for generation in range(1, 4):
            hub.publish(rebuilt(generation))
        assert told([await anext(quiet), await anext(quiet)]) == [1, -2]
        hub.close()
        assert told(await collect(quiet)) == []
        assert told(await collect(full)) == [1, -2]
        with pytest.raises(StopAsyncIteration):
            await anext(full)


async def test_a_burst_into_a_waiting_subscriber_loses_nothing_of_the_count():
    hub = EventHub(0)
    got = []

    async def listen(events):
        got.extend(await collect(events))

    with hub.subscribe(buffer=2) as events:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, events)
            await wait_all_tasks_blocked()
            for generation in range(1, 7):
                hub.publish(rebuilt(generation))
            await wait_all_tasks_blocked()
            hub.publish(rebuilt(7))
            hub.close()
    assert told(got) == [1, 2, 3, -3, 7]


@pytest.mark.parametrize("buffer", [1, 2, 5])
async def test_told_and_dropped_events_together_are_all_that_were_published(buffer):
    hub = EventHub(0)
    with hub.subscribe(buffer=buffer) as events:
        got = []
        for generation in range(1, 60):
            hub.publish(rebuilt(generation))
            if generation % 7 in (0, 1, 4):
                got.append(await anext(events))
        hub.close()
        got += await collect(events)
    assert not any(one < 0 and two < 0 for one, two in itertools.pairwise(told(got)))
    position = 0
    for number in told(got):
        position = position - number if number < 0 else position + 1
        assert number < 0 or number == position
    assert position == 59
    assert any(isinstance(event, EventsDropped) for event in got)


async def test_a_cancelled_wait_loses_no_event():
    hub = EventHub(0)
    with hub.subscribe() as events:
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(events)
        assert scope.cancelled_caught
        hub.publish(rebuilt(2))
        assert await anext(events) == rebuilt(2)


async def test_a_cancelled_wait_loses_no_count():
    hub = EventHub(0)
    with hub.subscribe(buffer=1) as events:
        hub.publish(rebuilt(2))
        hub.publish(rebuilt(3))
        assert await anext(events) == rebuilt(2)
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(events)
        assert scope.cancelled_caught
        with trio.testing.assert_checkpoints():
            assert await anext(events) == EventsDropped(count=1)


async def test_a_closed_hub_takes_no_event_and_ends_a_new_subscriber_at_once():
    hub = EventHub(1)
    hub.close()
    hub.close()
    async with hub.subscribe() as events:
        hub.publish(rebuilt(2))
        assert await collect(events) == []
    assert repr(hub) == "<EventHub of device 1: closed, 0 subscribers>"


async def test_entering_a_subscription_is_a_checkpoint_and_leaving_it_is_none():
    hub = EventHub(0)
    with trio.testing.assert_checkpoints():
        subscription = await hub.subscribe().__aenter__()
    hub.publish(rebuilt(2))
    assert await anext(subscription) == rebuilt(2)
    with trio.testing.assert_no_checkpoints():
        await subscription.__aexit__(None, None, None)
    with trio.CancelScope() as scope:
        scope.cancel()
        async with hub.subscribe():
            raise AssertionError("the block of a cancelled scope was entered")
    assert scope.cancelled_caught
    assert "0 subscribers" in repr(hub)


@pytest.mark.parametrize("buffer", [0, -1, 1.5, "8", None, True])
def test_a_buffer_that_is_no_number_of_events_is_refused(buffer):
    with pytest.raises(InvalidArgument, match="buffer is an int of 1 or more"):
        EventHub(0).subscribe(buffer=buffer)


def test_events_are_frozen():
    event = rebuilt(2)
    assert isinstance(event, DeviceEvent)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        event.generation = 3


LOGGED = [
    (
        ContextWasLost(
            generation=1,
            reason="illegal address",
            status=700,
            reported_by="the driver, to stream query",
            in_flight=("launch of saxpy",),
            actors=("module",),
        ),
        logging.ERROR,
        "device 0 lost generation 1: illegal address"
        " (reported by the driver, to stream query; in flight: launch of saxpy)",
        {
            "device": 0,
            "generation": 1,
            "reason": "illegal address",
            "status": 700,
            "reported_by": "the driver, to stream query",
            "in_flight": ("launch of saxpy",),
            "actors": ("module",),
        },
    ),
    (
        ContextWasLost(
            generation=4,
            reason="killed",
            status=None,
            reported_by="the watchdog",
            in_flight=("launch of saxpy",) * 4096,
            actors=("module",),
        ),
        logging.ERROR,
        "device 0 lost generation 4: killed (reported by the watchdog; in flight: launch of saxpy (4096 times))",
        {"in_flight": ("launch of saxpy",) * 4096},
    ),
    (rebuilt(2), logging.INFO, "device 0 runs generation 2 after 0.250 s", {"generation": 2, "seconds": 0.25}),
    (DeviceGaveUp(reason="budget"), logging.ERROR, "device 0 is given up: budget", {"reason": "budget"}),
]


@pytest.mark.parametrize(("event", "level", "message", "fields"), LOGGED)
def test_an_event_is_logged_with_its_fields(caplog, event, level, message, fields):
    with caplog.at_level(logging.DEBUG, logger="atomr_trio.supervision"):
        EventHub(0).publish(event)
    (record,) = caplog.records
    assert (record.name, record.levelno, record.getMessage()) == ("atomr_trio.supervision", level, message)
    assert {name: getattr(record, name) for name in fields} == fields


def test_a_crashed_actor_is_logged_with_its_traceback(caplog):
    try:
        _ = 1 / 0
    except ZeroDivisionError as raised:
        EventHub(3).publish(ActorRestarted(actor="blas", error=raised))
    (record,) = caplog.records
    assert record.getMessage().startswith("device 3 restarted actor blas: ZeroDivisionError")
    assert record.exc_info[0] is ZeroDivisionError
    assert record.actor == "blas"


def actor_statistics(**settled):
    return ActorStatistics(name="nvrtc", queued=1, peak_queued=4, accepted=9, settled=settled, restarts=0)


def test_statistics_have_every_outcome_and_count_what_is_open():
    actor = actor_statistics(ok=5, lost=2)
    assert tuple(actor.settled) == OUTCOMES
    assert actor.settled["abandoned"] == 0
    assert actor.unsettled == 2
    with pytest.raises(ValueError, match="exploded"):
        actor_statistics(exploded=1)


def test_statistics_are_a_picture_that_does_not_change_with_its_sources():
    lanes = [LaneStatistics(name="compute", submitted=5, finished=3, waiting=0)]
    counts = {"ok": 1}
    device = DeviceStatistics(
        device=0,
        generation=2,
        state=DeviceState.RUNNING,
        uptime=1.5,
        lanes=lanes,
        actors=[ActorStatistics(name="a", queued=0, peak_queued=1, accepted=1, settled=counts, restarts=0)],
        memory=MemoryStatistics(
            in_use=1,
            cached=4,
            reserved=5,
            torn=0,
            lost=0,
            limit=9,
            workspaces=0,
            staging=4,
            largest_free=3,
            free_runs=2,
        ),
        standbys=0,
        restarts_left=math.inf,
        last_error=None,
    )
    lanes.clear()
    counts["ok"] = 7
    assert device.lanes[0].unfinished == 2
    assert device.actors[0].settled["ok"] == 1
    assert device.memory.fragmentation == 0.25
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        device.generation = 3
