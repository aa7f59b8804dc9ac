"""The loop of an actor, in generations that are fakes: what it does with the request in its hands."""

from __future__ import annotations

import gc
import weakref

import outcome
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from atomr_trio._generation.actor import Actor
from atomr_trio._supervision.mailbox import Mailbox, Request
from atomr_trio._supervision.states import RequestState
from atomr_trio._values.errors import ActorCrashed, ContextLost, DeviceClosed, InvalidArgument, StaleArray
from atomr_trio._wire.protocol import LANE_COMPUTE, LANE_COPY_IN


class FakeGeneration:
    """Takes what is published, and admits when it is told to."""

    device = 3

    def __init__(self, number=1, *, closed_lanes=()):
        self.number = number
        self.started = []
        self._gates = {lane: trio.Event() for lane in closed_lanes}
        self.admission = self

    async def admit(self, request):
        while request.lane in self._gates:
            await self._gates[request.lane].wait()

    def takes(self, request):
        return request.lane not in self._gates

    def refusal(self, request):
        return trio.WouldBlock("the lane is full")

    def open_lane(self, lane):
        self._gates.pop(lane).set()


class Work(Request):
    """A request that notes where it was begun, and then does what it was made with."""

    def __init__(self, name="work", act=None, lane=LANE_COMPUTE):
        super().__init__(f"test.{name}", lane)
        self.name = name
        self.act = act
        self.starts = []

    def start(self, generation):
        self.starts.append(generation.number)
        if self.act is not None:
            self.act(self)
        self.state = RequestState.STARTED
        generation.started.append(self)


class Bug(Exception):
    pass


def refuse(_request):
    raise StaleArray("torn", device=3)


def crash(_request):
    raise Bug("an index was off by one")


def crash_after_publishing(request):
    request.state = RequestState.STARTED
    raise Bug("after the record was sent")


def settle_and_crash(request):
    request.settle(outcome.Value("done"))
    raise Bug("after the answer was given")


@pytest.fixture
def actor():
    return Actor("blas", Mailbox("blas", 4))


async def answer(request):
    """How a posted request ended."""
    with trio.fail_after(5):
        return await outcome.acapture(request.wait)


async def serve_until_blocked(actor, generation):
    """One life of the actor, cancelled when it has nothing more to do."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor.run, generation)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


# -- the ordinary case -------------------------------------------------------------------------------------------------


async def test_requests_are_begun_in_order_and_the_actor_does_not_wait_for_their_ends(actor):
    generation = FakeGeneration()
    work = [Work(str(number)) for number in range(4)]
    for request in work:
        actor.mailbox.post_nowait(request)
    await serve_until_blocked(actor, generation)
    assert generation.started == work
    assert all(request.state is RequestState.STARTED for request in work)


async def test_a_request_is_begun_where_its_lane_has_room(actor):
    generation = FakeGeneration(closed_lanes=[LANE_COPY_IN])
    copy = Work("copy", lane=LANE_COPY_IN)
    actor.mailbox.post_nowait(copy)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor.run, generation)
        await wait_all_tasks_blocked()
        assert copy.starts == []
        assert copy.state is RequestState.QUEUED
        generation.open_lane(LANE_COPY_IN)
        await wait_all_tasks_blocked()
        assert copy.starts == [1]
        nursery.cancel_scope.cancel()


async def test_the_actor_ends_when_its_mailbox_is_closed(actor):
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(actor.run, FakeGeneration())
            await wait_all_tasks_blocked()
            actor.mailbox.close(lambda: DeviceClosed("closed"))
        await actor.run(FakeGeneration(2))  # a life that begins with a closed mailbox ends at once


async def test_an_idle_actor_holds_nothing(actor):
    request = Work()
    reference = weakref.ref(request)
    actor.mailbox.post_nowait(request)
    await serve_until_blocked(actor, FakeGeneration())
    assert repr(actor) == "<Actor blas with None>"
    del request
    gc.collect()
    assert reference() is None


# -- refusals ----------------------------------------------------------------------------------------------------------


async def test_a_refused_request_fails_alone_and_the_actor_goes_on(actor):
    generation = FakeGeneration()
    refused, fine = Work("refused", refuse), Work("fine")
    for request in (refused, fine):
        actor.mailbox.post_nowait(request)
    await serve_until_blocked(actor, generation)
    assert isinstance((await answer(refused)).error, StaleArray)
    assert generation.started == [fine]
    assert actor.mailbox.statistics().settled["failed"] == 1


async def test_a_value_error_of_the_public_kind_is_no_crash(actor):
    def bad_argument(_request):
        raise InvalidArgument("freed meanwhile")

    request = Work("bad", bad_argument)
    actor.mailbox.post_nowait(request)
    await serve_until_blocked(actor, FakeGeneration())
    assert isinstance((await answer(request)).error, InvalidArgument)


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [crash, crash_after_publishing])
async def test_a_crash_settles_the_request_in_hand_and_leaves_the_actor(actor, act):
    request, behind = Work("gemm", act), Work("behind")
    actor.mailbox.post_nowait(request)
    actor.mailbox.post_nowait(behind)
    with pytest.raises(Bug) as caught:
        await actor.run(FakeGeneration(number=7))
    error = (await answer(request)).error
    assert isinstance(error, ActorCrashed)
    assert error.__cause__ is caught.value
    assert (error.actor, error.device, error.generation, error.operation) == ("blas", 3, 7, "test.gemm")
    assert actor.mailbox.statistics().settled["lost"] == 1
    assert behind.state is RequestState.QUEUED
    # The next life begins with the next request: the one that crashed is not tried again.
    generation = FakeGeneration(number=7)
    await serve_until_blocked(actor, generation)
    assert request.starts == [7]
    assert generation.started == [behind]


async def test_a_crash_after_the_answer_does_not_answer_twice(actor):
    request = Work("odd", settle_and_crash)
    actor.mailbox.post_nowait(request)
    with pytest.raises(Bug):
        await actor.run(FakeGeneration())
    assert (await answer(request)).unwrap() == "done"


async def test_an_abandoned_request_that_crashes_is_counted_as_abandoned(actor):
    def cancel_then_crash(request):
        request.state = RequestState.STARTED
        request.give_up()
        raise Bug("late")

    actor.mailbox.post_nowait(Work("abandoned", cancel_then_crash))
    with pytest.raises(Bug):
        await actor.run(FakeGeneration())
    assert actor.mailbox.statistics().settled["abandoned"] == 1


# -- cancellation and generations --------------------------------------------------------------------------------------


async def test_a_request_cancelled_in_the_mailbox_never_runs(actor):
    gone, stays = Work("gone"), Work("stays")
    for request in (gone, stays):
        actor.mailbox.post_nowait(request)
    gone.give_up()
    await serve_until_blocked(actor, FakeGeneration())
    assert gone.starts == []
    assert stays.starts == [1]


async def test_a_request_cancelled_in_the_actors_hands_never_runs(actor):
    generation = FakeGeneration(closed_lanes=[LANE_COMPUTE])
    gone, stays = Work("gone"), Work("stays")
    for request in (gone, stays):
        actor.mailbox.post_nowait(request)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor.run, generation)
        await wait_all_tasks_blocked()
        gone.give_up()
        generation.open_lane(LANE_COMPUTE)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert gone.starts == []
    assert stays.starts == [1]


async def test_a_request_taken_and_not_begun_is_the_first_of_the_next_generation(actor):
    first, second = FakeGeneration(1, closed_lanes=[LANE_COMPUTE]), FakeGeneration(2)
    work = [Work(str(number)) for number in range(3)]
    for request in work:
        actor.mailbox.post_nowait(request)
    await serve_until_blocked(actor, first)
    assert first.started == []
    assert repr(actor) == "<Actor blas with <Work test.0 queued>>"
    await serve_until_blocked(actor, second)
    assert second.started == work
    assert [request.starts for request in work] == [[2], [2], [2]]


async def test_a_request_that_arrives_together_with_the_cancellation_is_not_lost(actor):
    """The channel hands it over to an actor that is woken and finds itself cancelled."""
    first, second = FakeGeneration(1), FakeGeneration(2)
    request = Work()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor.run, first)
        await wait_all_tasks_blocked()
        actor.mailbox.post_nowait(request)
        nursery.cancel_scope.cancel()
    await serve_until_blocked(actor, second)
    # It may have been begun in either; what counts is that it was begun once.
    assert len(request.starts) == 1


async def test_what_was_taken_for_a_lost_generation_may_still_be_cancelled(actor):
    request = Work()
    actor.mailbox.post_nowait(request)
    await serve_until_blocked(actor, FakeGeneration(1, closed_lanes=[LANE_COMPUTE]))
    request.give_up()
    second = FakeGeneration(2)
    await serve_until_blocked(actor, second)
    assert second.started == []
    assert repr(actor) == "<Actor blas with None>"


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_the_request_in_hand_is_settled_when_no_generation_comes_any_more(actor):
    request = Work()
    actor.mailbox.post_nowait(request)
    await serve_until_blocked(actor, FakeGeneration(closed_lanes=[LANE_COMPUTE]))
    actor.close(outcome.Error(DeviceClosed("closed")))
    assert isinstance((await answer(request)).error, DeviceClosed)
    actor.close(outcome.Error(DeviceClosed("closed")))  # nothing in hand: nothing to do
    assert actor.mailbox.statistics().unsettled == 0


async def test_a_request_settled_in_the_hands_of_a_waiting_actor_is_not_begun(actor):
    generation = FakeGeneration(closed_lanes=[LANE_COMPUTE])
    request = Work()
    actor.mailbox.post_nowait(request)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(actor.run, generation)
            await wait_all_tasks_blocked()
            actor.close(outcome.Error(ContextLost("given up", generation=1)))
            actor.mailbox.close(lambda: DeviceClosed("closed"))
            generation.open_lane(LANE_COMPUTE)
    assert request.starts == []
    assert isinstance((await answer(request)).error, ContextLost)


# -- past the queue ----------------------------------------------------------------------------------------------------


async def test_a_request_that_does_not_wait_begins_at_once_past_the_queue(actor):
    generation = FakeGeneration()
    queued, at_once = Work("queued"), Work("at once")
    actor.mailbox.post_nowait(queued)
    actor.begin_nowait(at_once, generation)
    assert generation.started == [at_once]
    at_once.settle(outcome.Value(None))
    await serve_until_blocked(actor, generation)
    assert generation.started == [at_once, queued]
    assert actor.mailbox.statistics().accepted == 2
    assert actor.mailbox.statistics().settled["ok"] == 1


@pytest.mark.parametrize("generation", [None, FakeGeneration(closed_lanes=[LANE_COMPUTE])], ids=["none", "full"])
def test_a_request_that_does_not_wait_is_not_accepted_where_it_would_have_to(actor, generation):
    with pytest.raises(trio.WouldBlock):
        actor.begin_nowait(Work(), generation)
    assert actor.mailbox.statistics().accepted == 0


def test_a_request_that_does_not_wait_is_refused_by_a_closed_mailbox(actor):
    actor.mailbox.close(lambda: DeviceClosed("closed"))
    with pytest.raises(DeviceClosed):
        actor.begin_nowait(Work(), FakeGeneration())
    assert actor.mailbox.statistics().accepted == 0


def test_what_refuses_a_request_that_does_not_wait_is_raised_and_counted(actor):
    with pytest.raises(StaleArray):
        actor.begin_nowait(Work("refused", refuse), FakeGeneration())
    statistics = actor.mailbox.statistics()
    assert (statistics.accepted, statistics.settled["failed"]) == (1, 1)


def test_a_bug_in_a_request_that_does_not_wait_is_raised_as_a_crash_and_counted(actor):
    with pytest.raises(ActorCrashed) as caught:
        actor.begin_nowait(Work("bug", crash), FakeGeneration())
    assert isinstance(caught.value.__cause__, Bug)
    statistics = actor.mailbox.statistics()
    assert (statistics.accepted, statistics.settled["lost"]) == (1, 1)


def test_a_request_that_does_not_wait_and_has_its_answer_before_the_bug_keeps_it(actor):
    with pytest.raises(ActorCrashed):
        actor.begin_nowait(Work("bug", settle_and_crash), FakeGeneration())
    assert actor.mailbox.statistics().settled["ok"] == 1
