"""A request that is one command: what it publishes, and how its ticket settles it."""

from __future__ import annotations

import outcome
import pytest

from atomr_trio._generation.requests import CommandRequest
from atomr_trio._supervision.mailbox import Request
from atomr_trio._supervision.states import TRANSITIONS, RequestState
from atomr_trio._values.errors import ActorCrashed, CommandFailed, ContextLost, StaleArray
from atomr_trio._wire.protocol import LANE_COMPUTE, LANE_COPY_IN, Role
from atomr_trio._wire.records.memory import COPY_IN, FILL


class FakeGeneration:
    """Notes what is published, or refuses it."""

    def __init__(self, refusal=None):
        self.refusal = refusal
        self.published = []

    def publish(self, lane, verb, payload, operands, owner, *, requires, operation, hang_timeout):
        if self.refusal is not None:
            raise self.refusal
        self.published.append((lane, verb, payload, operands, owner, operation, hang_timeout))


async def answer(request):
    return await outcome.acapture(request.wait)


def test_starting_publishes_the_record_and_the_request_owns_it():
    operands = ((object(), Role.OVERWRITE),)
    request = CommandRequest(COPY_IN, b"record", operands, lane=LANE_COPY_IN, operation="copying", hang_timeout=2)
    generation = FakeGeneration()
    request.start(generation)
    assert generation.published == [(LANE_COPY_IN, COPY_IN, b"record", operands, request, "copying", 2)]
    assert request.state is RequestState.STARTED


def test_a_request_is_named_after_its_verb_and_runs_on_the_compute_lane_unless_told():
    request = CommandRequest(FILL, b"", ())
    assert (request.operation, request.lane) == ("memory.fill", LANE_COMPUTE)
    assert repr(request) == "<CommandRequest memory.fill queued>"


def test_a_refusal_leaves_the_request_queued_for_whoever_tried():
    request = CommandRequest(FILL, b"", ())
    with pytest.raises(StaleArray):
        request.start(FakeGeneration(StaleArray("torn")))
    assert request.state is RequestState.QUEUED


async def test_its_ticket_settles_it_with_the_value():
    request = CommandRequest(FILL, b"", ())
    request.start(FakeGeneration())
    request.command_finished(None, None, 12)
    assert (await answer(request)).unwrap() == 12


@pytest.mark.parametrize("error", [CommandFailed("refused"), ContextLost("lost", generation=1)], ids=repr)
async def test_its_ticket_or_the_loss_settles_it_with_the_error(error):
    request = CommandRequest(FILL, b"", ())
    request.start(FakeGeneration())
    if isinstance(error, ContextLost):
        request.command_lost(None, error)
    else:
        request.command_finished(None, error, None)
    assert (await answer(request)).error is error


@pytest.mark.parametrize("how", ["finished", "lost"])
async def test_what_a_crashed_actor_has_settled_stays_settled(how):
    request = CommandRequest(FILL, b"", ())
    request.start(FakeGeneration())
    crash = ActorCrashed("after publishing")
    request.settle(outcome.Error(crash))
    if how == "finished":
        request.command_finished(None, None, 1)
    else:
        request.command_lost(None, ContextLost("lost", generation=1))
    assert (await answer(request)).error is crash


def test_an_abandoned_command_is_settled_in_silence():
    request = CommandRequest(FILL, b"", ())
    request.start(FakeGeneration())
    request.give_up()
    request.command_finished(None, None, None)
    assert request.state is RequestState.SETTLED


def test_what_it_keeps_is_held_until_the_request_is_gone():
    kept = object()
    assert CommandRequest(FILL, b"", (), keep=kept).keep is kept


# --- the table of states ----------------------------------------------------------------------------------------------


WAYS = {RequestState.QUEUED: (), RequestState.ABANDONED: (RequestState.STARTED, RequestState.ABANDONED)}
"""The states on the way to those that are not the next after the first."""


@pytest.mark.parametrize("before", RequestState)
@pytest.mark.parametrize("after", RequestState)
def test_a_request_changes_its_state_as_the_table_says_and_not_otherwise(before, after):
    request = Request("work")
    for state in WAYS.get(before, (before,)):
        request.state = state
    if after in TRANSITIONS[before]:
        request.state = after
        assert request.state is after
    else:
        with pytest.raises(ValueError, match=f"that is {before.value} cannot become {after.value}"):
            request.state = after
        assert request.state is before
