"""Tickets: what is finished, what is left, who must wait for whom, and whose time is up."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_trio._generation.timeline import Command, LaneBook, Timeline
from atomr_trio._memory.arena import Block, Chunk
from atomr_trio._wire.channel import TimelinePage
from atomr_trio._wire.protocol import (
    LANE_COMPUTE,
    LANE_COPY_IN,
    LANE_COPY_OUT,
    LANES,
    STATUSES_PER_LANE,
    Role,
    counter_word,
)


class Nobody:
    """An owner that hears nothing in these tests."""

    def command_finished(self, command: Command, error: Any, value: Any) -> None:
        raise AssertionError("the timeline keeps accounts and settles nobody")

    command_lost = command_finished


@pytest.fixture
def timeline() -> Iterator[Timeline]:
    page = TimelinePage.new()
    yield Timeline(page)
    page.close()


def issue(timeline: Timeline, lane: int, *, waits: tuple[tuple[int, int], ...] = ()) -> Command:
    book = timeline.lanes[lane]
    book.issued += 1
    command = Command(lane, book.issued, "memory", f"work {book.issued}", (), Nobody(), waits)
    book.begin(command)
    return command


def reach(timeline: Timeline, lane: int, ticket: int) -> None:
    """What the GPU does at the end of a command."""
    timeline.page.words[counter_word(lane)] = ticket


def test_a_new_timeline_is_idle_and_every_counter_is_zero(timeline):
    assert timeline.idle
    assert len(timeline.lanes) == LANES
    assert [timeline.page.finished(lane) for lane in range(LANES)] == [0] * LANES
    assert not timeline.reached((LANE_COMPUTE, 1))


def test_finished_commands_are_taken_in_order_up_to_the_counter(timeline):
    commands = [issue(timeline, LANE_COMPUTE) for _ in range(5)]
    reach(timeline, LANE_COMPUTE, 3)
    assert list(timeline.take_finished()) == commands[:3]
    assert list(timeline.take_finished()) == []
    assert not timeline.idle
    reach(timeline, LANE_COMPUTE, 5)
    assert list(timeline.take_finished()) == commands[3:]
    assert timeline.idle


def test_lanes_finish_independently_of_each_other(timeline):
    endless = issue(timeline, LANE_COMPUTE)
    copy = issue(timeline, LANE_COPY_OUT)
    reach(timeline, LANE_COPY_OUT, 1)
    assert list(timeline.take_finished()) == [copy]
    assert list(timeline.take_rest()) == [endless]
    assert timeline.idle


def test_only_the_newest_open_ticket_of_each_lane_is_waited_for(timeline):
    reach(timeline, LANE_COPY_IN, 7)
    waits = {(LANE_COMPUTE, 3), (LANE_COMPUTE, 9), (LANE_COPY_IN, 7), (LANE_COPY_IN, 2), (LANE_COPY_OUT, 1)}
    assert sorted(timeline.still_open(waits)) == [(LANE_COMPUTE, 9), (LANE_COPY_OUT, 1)]
    reach(timeline, LANE_COMPUTE, 9)
    assert timeline.still_open(waits) == ((LANE_COPY_OUT, 1),)


def test_the_clock_of_a_command_starts_when_its_predecessor_is_done(timeline):
    issue(timeline, LANE_COMPUTE)
    second = issue(timeline, LANE_COMPUTE)
    assert timeline.overdue(100.0, 1.0) is None
    assert timeline.overdue(100.9, 1.0) is None
    reach(timeline, LANE_COMPUTE, 1)
    list(timeline.take_finished())
    # The second one has been in flight for a second, and has run for no time at all.
    assert timeline.overdue(101.1, 1.0) is None
    assert timeline.overdue(102.0, 1.0) is None
    assert timeline.overdue(102.2, 1.0).operation == second.operation


def test_a_command_that_waits_for_another_lane_is_not_blamed_for_that(timeline):
    slow = issue(timeline, LANE_COMPUTE)
    copy = issue(timeline, LANE_COPY_OUT, waits=((LANE_COMPUTE, slow.ticket),))
    timeline.overdue(100.0, 5.0)
    assert timeline.overdue(104.0, 5.0) is None
    reach(timeline, LANE_COMPUTE, 1)
    list(timeline.take_finished())
    assert timeline.overdue(106.0, 5.0) is None
    assert timeline.overdue(108.0, 5.0) is None, "its own time began when the kernel was done"
    assert timeline.overdue(111.5, 5.0).operation == copy.operation


def test_a_command_that_waited_is_not_blamed_while_the_lane_it_waited_for_goes_on(timeline):
    """The worker waits by an event that covers all that was submitted on the other lane by then, not one ticket."""
    first = issue(timeline, LANE_COMPUTE)
    issue(timeline, LANE_COMPUTE)
    issue(timeline, LANE_COMPUTE)
    issue(timeline, LANE_COPY_OUT, waits=((LANE_COMPUTE, first.ticket),))
    now = 100.0
    for done in (1, 2, 3):
        for _ in range(4):
            assert timeline.overdue(now, 1.0) is None, f"at {now} with {done - 1} done"
            now += 0.24
        reach(timeline, LANE_COMPUTE, done)
        list(timeline.take_finished())


def test_a_command_that_waited_is_blamed_though_the_lane_it_waited_for_is_never_empty_again(timeline):
    """What comes there after the wait is over has nothing to do with it."""
    slow = issue(timeline, LANE_COMPUTE)
    copy = issue(timeline, LANE_COPY_OUT, waits=((LANE_COMPUTE, slow.ticket),))
    now = 100.0
    while (overdue := timeline.overdue(now, 1.0)) is None:
        now += 0.25
        assert now < 105, "nobody is blamed"
        latest = issue(timeline, LANE_COMPUTE).ticket
        reach(timeline, LANE_COMPUTE, latest - 1)
        list(timeline.take_finished())
    assert overdue.operation == copy.operation
    assert overdue.did == "ran"


def test_lanes_that_wait_for_each_other_and_of_which_none_runs_are_noticed(timeline):
    """Each may be held up by what the other was given, so neither runs by itself: an end that nobody sees."""
    for lane in (LANE_COMPUTE, LANE_COPY_IN):
        issue(timeline, lane)
    first = issue(timeline, LANE_COMPUTE, waits=((LANE_COPY_IN, 1),))
    issue(timeline, LANE_COPY_IN, waits=((LANE_COMPUTE, 1),))
    for lane in (LANE_COMPUTE, LANE_COPY_IN):
        reach(timeline, lane, 1)
    list(timeline.take_finished())
    assert timeline.overdue(100.0, 1.0) is None
    assert timeline.overdue(100.9, 1.0) is None
    overdue = timeline.overdue(101.1, 1.0)
    assert (overdue.operation, overdue.did, overdue.limit) == (first.operation, "ran", 1.0)


def test_a_call_that_blocks_is_blamed_rather_than_what_waits_for_it(timeline):
    """Though it may be held up by that lane, as far as can be seen, and that one has been waiting for longer."""
    kernel = issue(timeline, LANE_COMPUTE)
    load = issue(timeline, LANE_COMPUTE)
    load.blocks = True
    issue(timeline, LANE_COPY_OUT, waits=((LANE_COMPUTE, load.ticket),))
    load.operation = "what hangs"
    assert timeline.overdue(100.0, 1.0) is None
    reach(timeline, LANE_COMPUTE, kernel.ticket)
    list(timeline.take_finished())
    assert timeline.overdue(100.5, 1.0) is None
    assert timeline.overdue(101.4, 1.0) is None
    overdue = timeline.overdue(101.6, 1.0)
    assert (overdue.operation, overdue.did) == ("what hangs", "ran")


def test_a_wait_for_a_ticket_that_nobody_will_reach_is_noticed(timeline):
    lost = issue(timeline, LANE_COMPUTE, waits=((LANE_COPY_OUT, 7),))
    assert timeline.overdue(100.0, 1.0) is None
    overdue = timeline.overdue(101.1, 1.0)
    assert (overdue.operation, overdue.did) == (lost.operation, "waited for other lanes")


def test_lanes_that_wait_for_one_that_runs_are_not_blamed_however_they_wait_for_each_other(timeline):
    running = issue(timeline, LANE_COPY_OUT)
    running.hang_timeout = 50.0
    issue(timeline, LANE_COPY_IN)
    issue(timeline, LANE_COMPUTE, waits=((LANE_COPY_IN, 1), (LANE_COPY_OUT, 1)))
    issue(timeline, LANE_COPY_IN, waits=((LANE_COMPUTE, 1),))
    reach(timeline, LANE_COPY_IN, 1)
    list(timeline.take_finished())
    assert timeline.overdue(100.0, 1.0) is None
    assert timeline.overdue(149.0, 1.0) is None
    assert timeline.overdue(150.1, 1.0).operation == running.operation


def test_a_call_that_blocks_is_not_blamed_for_what_runs_elsewhere_and_had_been_given_before(timeline):
    """An unload waits until the whole device is idle."""
    kernel = issue(timeline, LANE_COPY_OUT)
    kernel.hang_timeout = 20.0
    unload = issue(timeline, LANE_COMPUTE)
    unload.blocks = True
    assert timeline.overdue(100.0, 1.0) is None
    issue(timeline, LANE_COPY_OUT)
    assert timeline.overdue(110.0, 1.0) is None
    reach(timeline, LANE_COPY_OUT, 1)
    list(timeline.take_finished())
    assert timeline.overdue(110.1, 1.0) is None
    assert timeline.overdue(110.9, 1.0) is None
    reach(timeline, LANE_COPY_OUT, 2)
    list(timeline.take_finished())
    assert timeline.overdue(111.2, 1.0).operation == unload.operation


def test_of_several_that_are_overdue_the_one_that_is_furthest_beyond_its_limit_is_blamed(timeline):
    guilty = issue(timeline, LANE_COPY_OUT)
    guilty.operation = "what hangs"
    timeline.overdue(100.0, 1.0)
    issue(timeline, LANE_COMPUTE)
    assert timeline.overdue(100.5, 1.0) is None
    assert timeline.overdue(102.0, 1.0).operation == "what hangs"


@pytest.mark.parametrize("guilty", [LANE_COMPUTE, LANE_COPY_IN, LANE_COPY_OUT])
def test_of_several_that_are_as_late_the_one_that_was_submitted_first_is_blamed(timeline, guilty):
    """A worker that hangs in a call has not read what comes after it, of whatever lane."""
    for place, lane in enumerate([guilty, *(each for each in range(LANES) if each != guilty)], 1):
        command = issue(timeline, lane)
        command.place, command.operation = place, f"command {place}"
    timeline.overdue(100.0, 1.0)
    overdue = timeline.overdue(102.0, 1.0)
    assert (overdue.operation, overdue.did) == ("command 1", "ran")


def test_the_place_of_a_launch_that_went_the_short_way_is_asked_for(timeline):
    copy = issue(timeline, LANE_COPY_IN)
    copy.place, copy.operation = 5, "a copy"
    launched: Any = SimpleNamespace(_describe=lambda _arguments: ("a launch", ()))
    timeline.lanes[LANE_COMPUTE].launches.append((1, launched, launched, ()))
    timeline.overdue(100.0, 1.0)
    for place, blamed in ((4, "a launch"), (6, "a copy")):
        overdue = timeline.overdue(102.0, 1.0, lambda launches, place=place: dict.fromkeys(launches, place))
        assert overdue.operation == blamed


def test_the_clock_does_not_run_while_a_lane_is_empty(timeline):
    issue(timeline, LANE_COMPUTE)
    timeline.overdue(10.0, 1.0)
    reach(timeline, LANE_COMPUTE, 1)
    list(timeline.take_finished())
    timeline.overdue(11.0, 1.0)
    issue(timeline, LANE_COMPUTE)
    assert timeline.overdue(50.0, 1.0) is None
    assert timeline.overdue(51.1, 1.0) is not None


def test_result_slots_of_unfinished_commands_do_not_meet(timeline):
    page = timeline.page
    for ticket in range(1, STATUSES_PER_LANE + 1):
        page.set_status(LANE_COPY_IN, ticket, -1 - ticket % 1000)
    page.set_status(LANE_COMPUTE, 1, 700)
    page.set_status(LANE_COPY_OUT, 1, 2)
    tickets = range(1, STATUSES_PER_LANE + 1)
    assert all(page.status(LANE_COPY_IN, ticket) == -1 - ticket % 1000 for ticket in tickets)
    assert page.status(LANE_COMPUTE, 1) == 700
    assert page.status(LANE_COPY_OUT, 1) == 2
    assert page.finished(LANE_COPY_IN) == 0, "a slot is no counter"
    page.set_status(LANE_COMPUTE, 2, 1 << 40)
    page.set_status(LANE_COMPUTE, 3, -(1 << 40))
    assert page.status(LANE_COMPUTE, 2) > 0 > page.status(LANE_COMPUTE, 3), "no status passes for a success"


def test_a_command_and_a_lane_have_a_repr_that_names_them(timeline):
    command = issue(timeline, LANE_COPY_IN)
    assert repr(command) == "<Command work 1 copy-in:1>"
    assert isinstance(timeline.lanes[LANE_COPY_IN], LaneBook)


# --- dependencies of blocks, as tickets -------------------------------------------------------------------------------


def block() -> Block:
    return Block(0, 512, 512, Chunk(0, 512))


def test_a_chain_over_three_lanes_waits_for_each_step_before():
    one = block()
    steps = [
        (Role.OVERWRITE, LANE_COPY_IN, 1, set()),
        (Role.WRITE, LANE_COMPUTE, 1, {(LANE_COPY_IN, 1)}),
        (Role.READ, LANE_COPY_OUT, 1, {(LANE_COMPUTE, 1)}),
        (Role.READ, LANE_COMPUTE, 2, set()),
        (Role.OVERWRITE, LANE_COPY_IN, 2, {(LANE_COMPUTE, 1), (LANE_COMPUTE, 2), (LANE_COPY_OUT, 1)}),
        (Role.READ, LANE_COPY_OUT, 2, {(LANE_COPY_IN, 2)}),
    ]
    for role, lane, ticket, expected in steps:
        waits: set[tuple[int, int]] = set()
        one.claim(role, lane, ticket, 1, waits)
        assert waits == expected, (role, lane, ticket)


def test_tickets_of_a_lost_generation_are_no_dependencies_of_the_next():
    one = block()
    one.claim(Role.WRITE, LANE_COMPUTE, 40, 1, set())
    one.claim(Role.READ, LANE_COPY_OUT, 7, 1, set())
    waits: set[tuple[int, int]] = set()
    one.claim(Role.WRITE, LANE_COPY_IN, 1, 2, waits)
    assert waits == set()
