"""How long a worker polls for records: bounded, and as long as it has been worthwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_trio._device import lifetime
from atomr_trio._wire.protocol import ASLEEP_WORD, RECORDS_SENT_WORD
from atomr_trio._worker import main

LONGEST = 1e-3


class Clock:
    """Stands for `time`: what is slept counts, and nothing else."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Sleeper:
    """A worker whose doorbell rings after a given time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nothing: Any = None
        self.worker: Any = main.Worker(nothing, "sim", 0, 0, 0)
        self.worker._page = SimpleNamespace(words=[0] * 512)
        self.worker._longest_spin = self.worker._spin_seconds = LONGEST
        self.clock = Clock()
        self.seconds = 0.0
        monkeypatch.setattr(main, "time", self.clock)
        monkeypatch.setattr(main.select, "poll", lambda: self)
        monkeypatch.setattr(os, "eventfd_read", lambda _bell: 1)
        self.worker._bell = -1

    # What `_sleep` does with a poll object.

    def register(self, *_: object) -> None:
        """Nothing to do."""

    def poll(self, _timeout: float) -> list[int]:
        self.clock.now += self.seconds
        self.worker._page.words[RECORDS_SENT_WORD] += 1
        return [1]

    def sleep(self, seconds: float) -> float:
        """Sleep until a record comes, so much later; the time of the next poll."""
        self.seconds = seconds
        self.worker._sleep(self.worker._page.words[RECORDS_SENT_WORD])
        assert self.worker._awake
        spin: float = self.worker._spin_seconds
        return spin


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sleeper]:
    with monkeypatch.context() as patched:
        yield Sleeper(patched)


def test_each_record_that_comes_late_halves_the_time_of_polling_down_to_a_bound(sleeper: Sleeper) -> None:
    times = [sleeper.sleep(0.1) for _ in range(6)]
    assert times == [LONGEST / 2, LONGEST / 4, LONGEST / 8, LONGEST / 16, LONGEST / 16, LONGEST / 16]


def test_a_record_that_polling_would_have_found_brings_the_whole_time_back(sleeper: Sleeper) -> None:
    for _ in range(6):
        sleeper.sleep(0.1)
    assert sleeper.sleep(LONGEST * 1.1) == LONGEST / 16
    assert sleeper.sleep(LONGEST * 0.9) == LONGEST


def test_a_worker_that_never_polls_goes_on_so(sleeper: Sleeper) -> None:
    sleeper.worker._longest_spin = sleeper.worker._spin_seconds = 0.0
    assert sleeper.sleep(0.1) == 0.0


@pytest.mark.parametrize(
    ("busy", "asleep", "waited", "polls_on"),
    [
        (True, 0, 3.9, True),
        (True, 0, 4.1, False),
        (True, 1, 1.1, False),
        (False, 0, 1.1, False),
    ],
)
def test_it_polls_on_for_a_while_as_long_as_the_parent_polls_for_the_end_of_a_command(
    sleeper: Sleeper, busy: bool, asleep: int, waited: float, polls_on: bool
) -> None:
    sleeper.worker._lanes = {0: SimpleNamespace(busy=False), 1: SimpleNamespace(busy=busy)}
    sleeper.worker._page.words[ASLEEP_WORD] = asleep
    assert sleeper.worker._expects_a_record(waited * LONGEST) is polls_on


@pytest.mark.parametrize(
    ("processors", "backend", "seconds"), [(1, "cuda", 1e-4), (3, "cuda", 1e-4), (4, "cuda", 1e-3), (2, "sim", 1e-4)]
)
def test_the_default_is_shorter_for_a_program_with_few_processors(
    monkeypatch: pytest.MonkeyPatch, processors: int, backend: Any, seconds: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(processors)))
    assert lifetime._default_spin(backend) == seconds
