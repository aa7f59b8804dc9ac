"""The ends of commands that went the short way: which of them have failed."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from atomr_trio._generation import settler as settler_module
from atomr_trio._wire.protocol import LANE_COMPUTE, LANE_COPY_OUT, counter_word, failures_word
from support.stage import Stage


class Launched:
    """A launch, and the owner of all launches: it notes what it hears."""

    _engine = "module"

    def __init__(self) -> None:
        self.heard: list[object] = []

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Any]]:
        return "a launch", ()

    def launches_finished(self, count: int) -> None:
        self.heard.append(count)

    def launch_failed(self, launch: Any, error: Any) -> None:
        self.heard.append((launch[0], error.status))

    def launches_lost(self, count: int, error: Any) -> None:
        raise AssertionError("nothing was lost")


@pytest.fixture
async def stage():
    made = Stage()
    yield made
    made.close()


def send(stage: Stage, lane: int, count: int) -> Launched:
    book, owner = stage.generation.timeline.book(lane), Launched()
    for _ in range(count):
        book.issued += 1
        book.launches.append((book.issued, owner, owner, ()))
    return owner


def refuse(stage: Stage, lane: int, ticket: int) -> None:
    """Say that a launch has failed, as a worker does before it signs the ticket."""
    stage.fail(lane, ticket, 1)
    stage.generation.page.words[failures_word(lane)] += 1


@pytest.mark.parametrize("lane", [LANE_COMPUTE, LANE_COPY_OUT])
async def test_a_failure_that_was_counted_with_an_earlier_one_is_not_missed(stage, lane):
    owner = send(stage, lane, 4)
    refuse(stage, lane, 2)
    refuse(stage, lane, 4)  # by now the GPU has reached ticket 2 only
    stage.finish(lane, 2)
    stage.finish(lane, 3)
    stage.finish(lane, 4)
    assert owner.heard == [(2, 1), 2, 1, (4, 1), 1]


@pytest.mark.parametrize("lane", [LANE_COMPUTE, LANE_COPY_OUT])
async def test_a_task_that_looks_for_its_only_launch_does_not_miss_such_a_failure_either(stage, lane):
    first, second = send(stage, lane, 1), send(stage, lane, 1)
    refuse(stage, lane, 1)
    refuse(stage, lane, 2)
    stage.finish(lane, 1)
    assert stage.generation.settler.begin_looking()
    stage.generation.page.words[counter_word(lane)] = 2
    stage.generation.settler.end_looking(second, lane)
    assert first.heard == [(1, 1), 1]
    assert second.heard == [(2, 1), 1]


# --- looking for a ticket ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", [LANE_COMPUTE, LANE_COPY_OUT])
async def test_a_task_looks_until_its_ticket_is_reached(stage, lane):
    settler, words = stage.generation.settler, stage.generation.page.words
    owner = send(stage, lane, 2)
    settler.patience = 60.0
    assert settler.begin_looking()
    seen = []

    async def look() -> None:
        await settler.look(counter_word(lane), 2)
        seen.append(words[counter_word(lane)])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        for reached in (1, 2):
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            assert not seen
            words[counter_word(lane)] = reached
    assert seen == [2]
    assert owner.heard == []
    settler.end_looking(owner, lane)
    assert owner.heard == [2]


async def test_a_ticket_that_comes_between_two_turns_is_seen_without_another_turn(stage, monkeypatch):
    settler, counter = stage.generation.settler, counter_word(LANE_COMPUTE)
    send(stage, LANE_COMPUTE, 1)
    assert settler.begin_looking()
    readings, turns, checkpoint = [], [], trio.lowlevel.checkpoint

    def clock() -> float:
        readings.append(0.0)
        if len(readings) == 5:  # the third time round, in the glance
            stage.generation.page.words[counter] = 1
        return 0.0

    async def turn() -> None:
        turns.append(len(readings))
        await checkpoint()

    with monkeypatch.context() as patch:
        patch.setattr(settler_module.time, "perf_counter", clock)
        patch.setattr(trio.lowlevel, "checkpoint", turn)
        await settler.look(counter, 1)
    assert len(readings) == 5
    assert turns == [1]  # one before the glance, none behind it
    settler.end_looking()


async def test_a_task_that_knows_how_long_its_command_may_take_looks_so_long(stage, monkeypatch):
    settler, now, turns = stage.generation.settler, [0.0], []
    send(stage, LANE_COMPUTE, 1)
    checkpoint = trio.lowlevel.checkpoint

    async def turn() -> None:  # others take a millisecond each time
        now[0] += 1e-3
        turns.append(now[0])
        await checkpoint()

    assert settler.begin_looking()
    for patience, at_least, expected in ((0.0, 0.0095, 10), (0.0045, 0.0, 5), (0.0045, 0.002, 5)):
        settler.patience = patience
        now[0] = 0.0
        turns.clear()
        with monkeypatch.context() as patch:
            patch.setattr(settler_module.time, "perf_counter", lambda: now[0])
            patch.setattr(trio.lowlevel, "checkpoint", turn)
            await settler.look(counter_word(LANE_COMPUTE), 1, at_least)
        assert len(turns) == expected
    settler.end_looking()


@pytest.mark.parametrize(("due", "glances"), [(0.0, 2), (1e-3, 2), (50e-6, 7), (5e-6, 3)])
async def test_a_task_looks_without_a_turn_until_shortly_after_the_end_is_due(stage, monkeypatch, due, glances):
    """On a clock that goes on by 10 us with each look between two turns, until the second turn."""
    settler, now, looks, turns = stage.generation.settler, [0.0], [], []
    send(stage, LANE_COMPUTE, 1)
    checkpoint, counter = trio.lowlevel.checkpoint, counter_word(LANE_COMPUTE)

    class Words:
        def __getitem__(self, at: int) -> int:
            looks.append(at)
            now[0] += 10e-6
            return len(turns) == 2

    async def turn() -> None:
        turns.append(len(looks))
        now[0] -= 10e-6 if turns[1:] else 0.0  # the look behind a turn takes no time
        await checkpoint()

    assert settler.begin_looking()
    with monkeypatch.context() as patch:
        patch.setattr(settler_module.time, "perf_counter", lambda: now[0])
        patch.setattr(trio.lowlevel, "checkpoint", turn)
        patch.setattr(settler, "_page", types.SimpleNamespace(words=Words()))
        await settler.look(counter, 1, 1.0, due and due + 10e-6)
    assert turns == [0, 1 + glances]
    settler.end_looking()


async def test_a_task_looks_no_longer_than_its_patience(stage):
    settler = stage.generation.settler
    send(stage, LANE_COMPUTE, 1)
    settler.patience = 0.0
    assert settler.begin_looking()
    await settler.look(counter_word(LANE_COMPUTE), 1)
    assert stage.generation.page.words[counter_word(LANE_COMPUTE)] == 0
    settler.end_looking()


async def test_a_task_does_not_look_into_the_page_of_a_generation_that_was_settled_as_lost(stage):
    settler, page = stage.generation.settler, types.SimpleNamespace(words=memoryview(bytearray(8)).cast("Q"))
    settler.patience, settler._page = 60.0, page
    assert settler.begin_looking()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(settler.look, 0, 1)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        settler.settle_rest(lambda: AssertionError("nothing was unfinished"))
        page.words.release()


class Lost(Launched):
    """It notes with which arguments it is described, and how many launches are lost."""

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Any]]:
        self.heard.append(arguments)
        return "a launch", ()

    def launches_lost(self, count: int, error: Any) -> None:
        self.heard.append(count)


async def test_launches_that_are_the_same_are_torn_once_when_they_are_lost(stage):
    book, first, second = stage.generation.timeline.book(LANE_COMPUTE), Lost(), Lost()
    u, v = object(), object()
    for launched, arguments in [
        *[(first, (u, v))] * 3,
        (first, (v, u)),
        (second, (v, u)),
        (first, (u, v)),
        (first, (u,)),
        (first, ()),
        *[(first, (u, v))] * 2,
    ]:
        book.issued += 1
        book.launches.append((book.issued, launched, launched, arguments))
    stage.generation.settler.settle_rest(lambda: trio.BrokenResourceError())
    assert sorted(first.heard[:-1], key=repr) == sorted([(u, v), (v, u), (u,), ()], key=repr)
    assert first.heard[-1] == 9
    assert second.heard == [(v, u), 1]
    assert not book.launches
