"""The ends of commands that went the short way: which of them have failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

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
