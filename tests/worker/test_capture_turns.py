"""Whose turn it is: captures, and calls that may synchronise the context."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from atomr_trio._worker.base.capture_turns import CaptureTurns

SECONDS = 20


class Taker:
    """A thread that takes a turn, and ends it when it is told to."""

    def __init__(self, turn: Callable[[], AbstractContextManager[None]]) -> None:
        self.turn = turn
        self.has_it, self.may_end = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.take)
        self.thread.start()

    def take(self) -> None:
        with self.turn():
            self.has_it.set()
            assert self.may_end.wait(SECONDS)

    def end(self) -> None:
        self.may_end.set()
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()


def waiting(turns: CaptureTurns) -> int:
    """The threads that wait for their turn, which are known once they have let go of the lock."""
    with turns._changed:
        return len(turns._changed._waiters)


def until_waiting(turns: CaptureTurns, count: int) -> None:
    while waiting(turns) < count:
        pass


def test_calls_that_synchronise_need_not_wait_for_each_other_and_may_be_inside_each_other():
    turns = CaptureTurns()
    others = [Taker(turns.synchronize) for _ in range(3)]
    for other in others:
        assert other.has_it.wait(SECONDS)
    with turns.synchronize(), turns.synchronize():
        assert not turns.is_capturing
    for other in others:
        other.end()


@pytest.mark.parametrize(
    ("first", "second"), [("capture", "synchronize"), ("synchronize", "capture"), ("capture",) * 2]
)
def test_the_others_wait_for_their_turn(first, second):
    turns = CaptureTurns()
    one = Taker(getattr(turns, first))
    assert one.has_it.wait(SECONDS)
    other = Taker(getattr(turns, second))
    until_waiting(turns, 1)
    assert not other.has_it.is_set()
    one.end()
    assert other.has_it.wait(SECONDS)
    other.end()


def test_a_capture_waits_for_the_last_of_many():
    turns = CaptureTurns()
    others = [Taker(turns.synchronize) for _ in range(2)]
    assert all(other.has_it.wait(SECONDS) for other in others)
    capture = Taker(turns.capture)
    until_waiting(turns, 1)
    others[0].end()
    until_waiting(turns, 1)
    assert not capture.has_it.is_set()
    others[1].end()
    assert capture.has_it.wait(SECONDS)
    capture.end()


def test_a_turn_ends_with_an_error():
    turns = CaptureTurns()
    for turn in (turns.capture, turns.synchronize):
        with pytest.raises(ZeroDivisionError), turn():
            raise ZeroDivisionError
    with turns.capture():
        assert turns.is_capturing
        with turns.synchronize():  # what the capture itself calls does not wait for its end
            pass
    assert not turns.is_capturing
