"""Requests and mailboxes: every state a request can take, and the accounts that must balance at the end."""

from __future__ import annotations

import signal

import outcome
import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

from atomr_trio._supervision.mailbox import Mailbox, Request
from atomr_trio._supervision.states import RequestState
from atomr_trio._values.errors import (
    ActorCrashed,
    CommandFailed,
    ContextLost,
    DeviceClosed,
    DeviceFailed,
    OutOfDeviceMemory,
)

QUEUED, STARTED, SETTLED, CANCELLED, ABANDONED = RequestState


class Question(Request):
    """A request that remembers what it was told about its end."""

    def __init__(self, operation="test.question"):
        super().__init__(operation)
        self.endings = []

    def ended(self, *, delivered):
        self.endings.append(delivered)


def closed_error():
    return DeviceClosed("closed by the test", device=0)


def settled(mailbox):
    """The outcomes that were counted, without the zeros."""
    return {kind: count for kind, count in mailbox.statistics().settled.items() if count}


def take(receiver):
    """What an actor does: take the next request and begin it if it still may run."""
    request = receiver.receive_nowait()
    if request.state is QUEUED:
        request.state = STARTED
    return request


class Asker:
    """A task that asks, and what became of it."""

    def __init__(self, mailbox, request=None):
        self.mailbox = mailbox
        self.request = Question() if request is None else request
        self.scope = trio.CancelScope()
        self.result = None
        self.done = trio.Event()

    async def run(self):
        with self.scope:
            self.result = await outcome.acapture(self.mailbox.ask, self.request)
            if isinstance(self.result, outcome.Error) and isinstance(self.result.error, trio.Cancelled):
                self.done.set()
                raise self.result.error
        self.done.set()

    @property
    def error(self):
        return self.result.error


@pytest.fixture
async def asking(nursery):
    """A function that starts askers and returns once each of them waits."""

    async def start(mailbox, count=1):
        askers = []
        for _ in range(count):
            askers.append(Asker(mailbox))
            nursery.start_soon(askers[-1].run)
            await wait_all_tasks_blocked()
        return askers

    return start


# -- the ordinary life -------------------------------------------------------------------------------------------------


async def test_a_settled_value_comes_out_of_ask(asking):
    mailbox = Mailbox("test", 4)
    (asker,) = await asking(mailbox)
    assert asker.request.state is QUEUED
    assert mailbox.statistics().queued == 1
    request = take(mailbox.receiver())
    assert request is asker.request
    assert request.open
    request.settle(outcome.Value(42))
    assert request.state is SETTLED
    assert not request.open
    await asker.done.wait()
    assert asker.result.unwrap() == 42
    assert request.endings == [True]
    assert settled(mailbox) == {"ok": 1}
    assert mailbox.statistics().unsettled == 0


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ContextLost("lost", generation=1), "lost"),
        (ActorCrashed("crashed"), "lost"),
        (CommandFailed("refused"), "failed"),
        (OutOfDeviceMemory("full"), "failed"),
        (DeviceFailed("gone"), "failed"),
        (DeviceClosed("closed"), "failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_a_settled_error_is_raised_by_ask_itself_and_counted_by_its_kind(asking, error, kind):
    mailbox = Mailbox("test", 4)
    (asker,) = await asking(mailbox)
    take(mailbox.receiver()).settle(outcome.Error(error))
    await asker.done.wait()
    assert asker.error is error
    assert asker.request.endings == [False]
    assert settled(mailbox) == {kind: 1}


async def test_requests_are_taken_in_the_order_in_which_they_were_sent(asking):
    mailbox = Mailbox("test", 2)
    askers = await asking(mailbox, 5)  # three of them wait for room
    receiver = mailbox.receiver()
    taken = [take(receiver) for _ in askers]
    assert taken == [asker.request for asker in askers]
    for request in taken:
        request.settle(outcome.Value(None))


async def test_a_request_settled_before_its_caller_waits_still_answers():
    """`send` lets others run before it comes back, so an actor may be done before the caller waits."""
    mailbox = Mailbox("test", 4)
    request = Question()

    async def serve():
        (await mailbox.receiver().receive()).settle(outcome.Value("early"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await wait_all_tasks_blocked()
        await mailbox.post(request)
        await wait_all_tasks_blocked()
        assert request.state is SETTLED
        assert await request.wait() == "early"
    assert settled(mailbox) == {"ok": 1}
    assert mailbox.statistics().accepted == 1


async def test_posting_without_waiting_accepts_at_once_or_would_block():
    mailbox = Mailbox("test", 1)
    first, second = Question(), Question()
    mailbox.post_nowait(first)
    with pytest.raises(trio.WouldBlock):
        mailbox.post_nowait(second)
    second.give_up()
    assert mailbox.statistics().accepted == 1
    assert settled(mailbox) == {}  # what was not accepted is in no account
    take(mailbox.receiver()).settle(outcome.Value(7))
    assert await first.wait() == 7
    assert settled(mailbox) == {"ok": 1}


async def test_asking_is_a_checkpoint_also_when_the_answer_is_at_hand():
    mailbox = Mailbox("test", 4)

    async def serve():
        async for request in mailbox.receiver():
            request.settle(outcome.Value(None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await wait_all_tasks_blocked()
        with assert_checkpoints():
            await mailbox.ask(Question())
        nursery.cancel_scope.cancel()


# -- settling once -----------------------------------------------------------------------------------------------------


async def test_settling_twice_raises_and_changes_nothing(asking):
    mailbox = Mailbox("test", 4)
    (asker,) = await asking(mailbox)
    request = take(mailbox.receiver())
    request.settle(outcome.Value("first"))
    with pytest.raises(RuntimeError, match="settled twice"):
        request.settle(outcome.Value("second"))
    await asker.done.wait()
    assert asker.result.unwrap() == "first"
    assert settled(mailbox) == {"ok": 1}
    assert request.endings == [True]


async def test_a_request_with_nothing_to_tell_wakes_who_sleeps_and_is_seen_by_its_state(asking):
    mailbox = Mailbox("test", 4)
    (asker,) = await asking(mailbox)
    asked = take(mailbox.receiver())
    asked.finish()
    await asker.done.wait()
    assert asker.result.unwrap() is None
    assert settled(mailbox) == {"ok": 1}
    alone, left = Question(), Question()
    left.state = STARTED
    left.give_up()
    for request in (alone, left):
        request.finish()
        assert (request.state, request.answered) == (SETTLED, False)
        with pytest.raises(RuntimeError, match="settled twice"):
            request.finish()
    assert (asked.endings, alone.endings, left.endings) == ([True], [True], [False])


async def test_a_cancelled_request_cannot_be_settled():
    request = Question()
    request.give_up()
    assert request.state is CANCELLED
    with pytest.raises(RuntimeError, match="settled twice"):
        request.settle(outcome.Value(None))


async def test_an_answer_is_given_to_one_waiter_once_and_nobody_waits_for_ever():
    answered, cancelled = Question(), Question()
    answered.settle(outcome.Value(1))
    cancelled.give_up()
    assert await answered.wait() == 1
    with trio.fail_after(5):
        for request in (answered, cancelled):
            with pytest.raises(RuntimeError, match="no outcome"):
                await request.wait()


def test_giving_up_twice_ends_a_request_once():
    request = Question()
    request.give_up()
    request.give_up()
    assert request.endings == [False]


def test_giving_up_what_is_settled_changes_nothing():
    request = Question()
    request.settle(outcome.Value(None))
    request.give_up()
    assert request.state is SETTLED
    assert request.endings == [True]


# -- cancelled callers -------------------------------------------------------------------------------------------------


async def test_a_caller_cancelled_while_it_waits_for_room_has_left_no_trace(asking):
    mailbox = Mailbox("test", 1)
    queued, waiting = await asking(mailbox, 2)
    waiting.scope.cancel()
    await waiting.done.wait()
    assert waiting.scope.cancelled_caught
    assert mailbox.statistics().accepted == 1
    assert settled(mailbox) == {}
    receiver = mailbox.receiver()
    assert take(receiver) is queued.request
    with pytest.raises(trio.WouldBlock):
        receiver.receive_nowait()
    queued.request.settle(outcome.Value(None))


async def test_giving_up_what_was_never_accepted_is_not_counted():
    """A caller that posts and is cancelled while it waits for room gives its request up, to free what it holds."""
    mailbox = Mailbox("test", 1)
    mailbox.post_nowait(Question())
    request = Question()
    with trio.CancelScope() as scope:
        scope.cancel()
        await mailbox.post(request)
    request.give_up()
    assert request.endings == [False]
    statistics = mailbox.statistics()
    assert statistics.accepted == 1
    assert statistics.unsettled == 1


async def test_a_caller_cancelled_while_queued_leaves_at_once_and_the_request_is_marked(asking):
    mailbox = Mailbox("test", 4)
    (asker,) = await asking(mailbox)
    asker.scope.cancel()
    await asker.done.wait()
    assert asker.scope.cancelled_caught
    assert asker.request.state is CANCELLED
    assert not asker.request.open
    assert asker.request.endings == [False]
    assert settled(mailbox) == {"cancelled": 1}
    assert take(mailbox.receiver()).state is CANCELLED  # the actor sees it and leaves it alone


async def test_a_caller_cancelled_after_the_start_leaves_at_once_and_the_request_goes_on_unheard(asking):
    mailbox = Mailbox("test", 4)
    (asker,) = await asking(mailbox)
    request = take(mailbox.receiver())
    asker.scope.cancel()
    await asker.done.wait()
    assert asker.scope.cancelled_caught
    assert request.state is ABANDONED
    assert request.abandoned
    assert request.open
    assert request.endings == []
    assert mailbox.statistics().unsettled == 1
    request.settle(outcome.Value("nobody hears this"))
    assert request.state is SETTLED
    assert request.endings == [False]
    assert settled(mailbox) == {"abandoned": 1}


async def test_an_abandoned_request_that_fails_is_counted_as_abandoned(asking):
    mailbox = Mailbox("test", 4)
    (asker,) = await asking(mailbox)
    request = take(mailbox.receiver())
    asker.scope.cancel()
    await asker.done.wait()
    request.settle(outcome.Error(ContextLost("lost", generation=1)))
    assert settled(mailbox) == {"abandoned": 1}


async def test_an_answer_that_came_before_the_cancellation_is_delivered(asking):
    mailbox = Mailbox("test", 4)
    (asker,) = await asking(mailbox)
    take(mailbox.receiver()).settle(outcome.Value("in time"))
    asker.scope.cancel()
    await asker.done.wait()
    assert asker.result.unwrap() == "in time"
    assert not asker.scope.cancelled_caught


async def test_asking_in_a_cancelled_scope_does_nothing():
    mailbox = Mailbox("test", 4)
    request = Question()
    with trio.CancelScope() as scope:
        scope.cancel()
        await mailbox.ask(request)
    assert scope.cancelled_caught
    assert mailbox.statistics().accepted == 0
    with pytest.raises(trio.WouldBlock):
        mailbox.receiver().receive_nowait()


# -- the end of a mailbox ----------------------------------------------------------------------------------------------


async def test_close_settles_what_is_queued_and_who_waits_for_room_with_an_error_of_its_own_each(asking):
    mailbox = Mailbox("test", 2)
    askers = await asking(mailbox, 6)
    mailbox.close(closed_error)
    for asker in askers:
        await asker.done.wait()
        assert isinstance(asker.error, DeviceClosed)
        assert asker.request.endings == [False]
    assert len({id(asker.error) for asker in askers}) == len(askers)
    statistics = mailbox.statistics()
    assert statistics.accepted == 6
    assert statistics.unsettled == 0
    assert settled(mailbox) == {"failed": 6}


async def test_close_leaves_started_requests_to_those_who_started_them(asking):
    mailbox = Mailbox("test", 4)
    (asker,) = await asking(mailbox)
    request = take(mailbox.receiver())
    mailbox.close(closed_error)
    assert request.state is STARTED
    request.settle(outcome.Value("finished all the same"))
    await asker.done.wait()
    assert asker.result.unwrap() == "finished all the same"


async def test_close_skips_requests_whose_callers_are_gone(asking):
    mailbox = Mailbox("test", 4)
    gone, waiting = await asking(mailbox, 2)
    gone.scope.cancel()
    await gone.done.wait()
    mailbox.close(closed_error)
    await waiting.done.wait()
    assert settled(mailbox) == {"cancelled": 1, "failed": 1}


async def test_a_closed_mailbox_refuses_with_what_it_was_closed_for():
    mailbox = Mailbox("test", 4)
    assert not mailbox.closed
    mailbox.close(closed_error)
    assert mailbox.closed
    mailbox.close(lambda: DeviceFailed("a second close does not change the reason"))
    for attempt in (mailbox.ask, mailbox.post):
        with pytest.raises(DeviceClosed, match="closed by the test"):
            await attempt(Question())
    with pytest.raises(DeviceClosed):
        mailbox.post_nowait(Question())
    assert mailbox.statistics().accepted == 0


async def test_closing_ends_the_receiver_of_a_waiting_actor():
    mailbox = Mailbox("test", 4)
    ended = trio.Event()

    async def serve():
        async for _ in mailbox.receiver():
            raise AssertionError("there is nothing to take")
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await wait_all_tasks_blocked()
        mailbox.close(closed_error)
        with trio.fail_after(5):
            await ended.wait()


async def test_what_is_queued_outlives_the_actors_that_serve_it(asking):
    mailbox = Mailbox("test", 4)
    await asking(mailbox, 3)
    with mailbox.receiver() as receiver:
        take(receiver).settle(outcome.Value(None))
    with mailbox.receiver() as receiver:  # the next life of the actor
        for _ in range(2):
            take(receiver).settle(outcome.Value(None))
    assert settled(mailbox) == {"ok": 3}


# -- accounts, and how things look -------------------------------------------------------------------------------------


async def test_everything_accepted_is_in_one_account_at_the_end(asking):
    mailbox = Mailbox("test", 8)
    ok, failed, lost, queued_gone, started_gone, closed = await asking(mailbox, 6)
    receiver = mailbox.receiver()
    queued_gone.scope.cancel()
    for _ in range(5):
        take(receiver)
    started_gone.scope.cancel()
    await wait_all_tasks_blocked()
    ok.request.settle(outcome.Value(None))
    failed.request.settle(outcome.Error(CommandFailed("no")))
    lost.request.settle(outcome.Error(ContextLost("lost", generation=1)))
    started_gone.request.settle(outcome.Value(None))
    mailbox.close(closed_error)
    await closed.done.wait()
    statistics = mailbox.statistics()
    assert dict(statistics.settled) == {"ok": 1, "failed": 2, "cancelled": 1, "lost": 1, "abandoned": 1}
    assert statistics.accepted == sum(statistics.settled.values()) == 6
    assert statistics.peak_queued == 6
    assert statistics.queued == 0


async def test_requests_and_mailboxes_say_their_state(asking):
    mailbox = Mailbox("blas", 4)
    (asker,) = await asking(mailbox)
    assert repr(asker.request) == "<Question test.question queued>"
    assert repr(mailbox) == "<Mailbox blas open, 1 of 4 queued>"
    mailbox.close(closed_error)
    assert repr(asker.request) == "<Question test.question settled>"
    assert repr(mailbox) == "<Mailbox blas closed, 0 of 4 queued>"


def test_the_base_class_leaves_the_work_to_subclasses():
    with pytest.raises(NotImplementedError):
        Request("nothing").start(None)
    assert list(Request("nothing").blocks()) == []


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


class InterruptingChannel:
    """A sending channel in whose calls Ctrl-C is pressed, before and after the value has moved."""

    def __init__(self, channel):
        self._channel = channel

    def send_nowait(self, value):
        signal.raise_signal(signal.SIGINT)
        self._channel.send_nowait(value)
        signal.raise_signal(signal.SIGINT)

    async def send(self, value):
        self.send_nowait(value)
        await trio.lowlevel.cancel_shielded_checkpoint()

    def statistics(self):
        return self._channel.statistics()


@pytest.mark.parametrize("attempt", ["ask", "post", "post_nowait"])
def test_an_interrupt_in_the_middle_of_sending_does_not_upset_the_accounts(attempt):
    mailboxes = []

    async def main():
        mailbox = Mailbox("test", 4)
        mailboxes.append(mailbox)
        mailbox._send = InterruptingChannel(mailbox._send)
        request = Question()
        answer = getattr(mailbox, attempt)(request)
        if attempt != "post_nowait":
            await answer
        await trio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    (mailbox,) = mailboxes
    statistics = mailbox.statistics()
    assert statistics.accepted == statistics.queued == 1
    # Who waits for the answer is told at the wait, and the request never runs.
    assert settled(mailbox) == ({"cancelled": 1} if attempt == "ask" else {})


def test_an_interrupt_ends_the_wait_for_an_answer():
    requests = []

    async def main():
        mailbox = Mailbox("test", 4)
        requests.append(Question())

        async def interrupt():
            await wait_all_tasks_blocked()
            take(mailbox.receiver())
            signal.raise_signal(signal.SIGINT)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
            await mailbox.ask(requests[0])

    with pytest.raises(BaseException) as caught:
        trio.run(main)
    group = caught.value
    assert isinstance(group, KeyboardInterrupt) or group.subgroup(KeyboardInterrupt) is not None
    assert requests[0].state is ABANDONED
