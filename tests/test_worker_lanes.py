"""A lane in the worker, driven directly: its stream goes while other threads still ask after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import sim_process as helper
from atomr_cuda import driver
from atomr_trio.worker.lanes import Lane

pytestmark = pytest.mark.sim_only
DEADLINE = 30


@pytest.fixture
def lane() -> Iterator[Lane]:
    handle = helper.begin()
    page: Any = SimpleNamespace(finished=lambda lane: 0, words=[0] * 512)
    services: Any = None
    opened = Lane(3, page, 0, None, services)
    opened.open()
    yield opened
    driver.cuCtxSetCurrent(handle)
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuCtxSetCurrent(None)


def close_stream(lane: Lane) -> None:
    for call in lane.close():
        call()


def test_a_stream_is_not_given_back_while_somebody_asks_after_it(lane: Lane) -> None:
    """A driver that is asked about a stream which goes at that moment takes the worker down."""
    asked, answer = threading.Event(), threading.Event()
    statuses: list[int] = []
    lane_context = driver.CUcontext()
    driver.cuCtxGetCurrent(lane_context)

    def slow(stream: Any) -> int:
        driver.cuCtxSetCurrent(lane_context)
        asked.set()
        assert answer.wait(DEADLINE)
        return driver.cuStreamQuery.status(stream)

    def close() -> None:
        driver.cuCtxSetCurrent(lane_context)
        close_stream(lane)

    asking = threading.Thread(target=lambda: statuses.append(lane.ask(slow)))
    asking.start()
    assert asked.wait(DEADLINE)
    closing = threading.Thread(target=close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    answer.set()
    for thread in (asking, closing):
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert statuses == [0], "the stream was there when it was asked after"


def test_a_stream_that_was_given_back_is_asked_nothing(lane: Lane) -> None:
    close_stream(lane)
    calls: list[Any] = []
    assert lane.ask(lambda stream: calls.append(stream) or 1) == 0
    assert not calls


def test_other_lanes_hear_of_a_command_when_it_is_signed(lane: Lane) -> None:
    """What they sign behind it would be seen first otherwise: of a command that failed by this one, say."""
    seen: list[tuple[int, int]] = []
    lane._services = SimpleNamespace(poisoned=False)
    lane._write_value = lambda stream, address, ticket, flags: seen.append((ticket, lane.submitted)) or 0
    verb: Any = SimpleNamespace(operation="a command")
    lane._made(verb, 1, unsigned=False)
    assert (seen, lane.submitted) == ([(1, 0)], 1)
    lane._made(verb, 2, unsigned=True)
    assert (seen, lane.submitted) == ([(1, 0)], 2), "this one shares the ticket of a later one"
    lane._made(verb, 3, unsigned=False)
    assert (seen, lane.submitted) == ([(1, 0), (3, 2)], 3)
    close_stream(lane)
