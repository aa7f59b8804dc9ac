"""A device that is idle rests, on both sides; a worker that stops then is noticed all the same."""

from __future__ import annotations

import itertools
import os
import select
import signal
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import ContextLost
from atomr_trio._device.device import core_of
from atomr_trio._generation import process as launcher, watch as _watch
from atomr_trio._wire.protocol import EXIT_LOST, HEARTBEAT_WORD
from atomr_trio._worker import heart as _heart, main
from atomr_trio.testing import kill_worker
from support import set_constant
from support.rogue import compile_rogue, next_generation, until

DEADLINE = 300
PATIENCE = 0.8
"""Seconds after which a stopped worker is noticed here. Looks that are further apart than half of it do not count."""


def watch_of(dev: Any) -> _watch.Watch:
    watch: _watch.Watch = core_of(dev).current.watch
    return watch


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each look at a heart is noted with what was seen."""
    seen: list[float] = []
    still = _watch._Pulse.still

    def noted(pulse: Any, value: float, now: float) -> str | None:
        seen.append(value)
        return still(pulse, value, now)

    monkeypatch.setattr(_watch._Pulse, "still", noted)
    return seen


# --- this side --------------------------------------------------------------------------------------------------------


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """This side rests sooner than by default, so that tests take no longer than they must."""
    set_constant(monkeypatch, _watch, "LOOKS_BEFORE_REST", 3)


@pytest.mark.usefixtures("early")
async def test_a_device_rests_while_nothing_is_open_and_works_again(open_test_device):
    host = np.arange(10, dtype=np.int32)
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            (touch,) = await compile_rogue(dev, "touch")
            for number in range(2):
                x = await dev.to_device(host)
                await dev.wait_standby()
                await until(lambda: watch_of(dev).resting)
                await until(lambda: all(each.watch.resting for each in core_of(dev).standbys.generations))
                assert "resting" in repr(watch_of(dev))
                await touch.launch(1, 32, x, 10)
                assert (await x.to_host() == host + 1).all()
                assert dev.generation == 1, f"it went on in round {number}"


@pytest.mark.usefixtures("early")
async def test_a_command_that_goes_on_ends_the_rest_of_both_sides(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(close_timeout=0.1) as dev:
            (spin,) = await compile_rogue(dev, "spin")
            word = dev.zeros(1, np.int32)
            await word.to_host()
            await until(lambda: watch_of(dev).resting)
            spin.launch_nowait(1, 1, word.address)
            await until(lambda: not watch_of(dev).resting)
            page = core_of(dev).current.page
            beats = page.heartbeat()
            await until(lambda: page.heartbeat() >= beats + 3)
            assert not watch_of(dev).resting


async def test_a_heart_that_rests_is_no_worker_that_has_stopped(open_test_device, monkeypatch, looks):
    set_constant(monkeypatch, _watch, "LOOKS_BEFORE_REST", 1 << 40)  # this side goes on looking
    set_constant(monkeypatch, _watch, "WATCH_PERIOD", 0.02)
    set_constant(monkeypatch, _watch, "STOPPED_SECONDS", PATIENCE)
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            x = await dev.to_device(np.zeros(10, np.int32))
            await until(lambda: len(looks) > 300)  # several seconds
            assert dev.generation == 1
            assert not watch_of(dev).resting
            assert (await x.to_host() == 0).all()


@pytest.mark.usefixtures("early")
async def test_a_worker_that_is_stopped_while_nothing_is_open_is_lost(open_test_device, monkeypatch):
    set_constant(monkeypatch, _watch, "STOPPED_SECONDS", PATIENCE)
    host = np.arange(10, dtype=np.int32)
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            x = await dev.to_device(host)
            await until(lambda: watch_of(dev).resting)
            kill_worker(dev, signal.SIGSTOP)
            await next_generation(dev, after=1)
            assert "no sign of life" in dev.statistics().last_error
            assert (await x.to_host() == host).all()


@pytest.mark.usefixtures("early")
async def test_a_stopped_worker_that_the_system_calls_running_is_lost_at_the_next_request(
    open_test_device, monkeypatch
):
    """The freezer of a control group stops processes so."""
    monkeypatch.setattr(launcher.WorkerProcess, "stopped", property(lambda process: False))
    set_constant(monkeypatch, _watch, "STOPPED_SECONDS", PATIENCE)
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            (touch,) = await compile_rogue(dev, "touch")
            x = await dev.to_device(np.zeros(10, np.int32))
            await until(lambda: watch_of(dev).resting)
            kill_worker(dev, signal.SIGSTOP)
            with pytest.raises(ContextLost, match="no sign of life"):
                await touch.launch(1, 32, x, 10)


async def test_a_device_with_a_hang_timeout_does_not_rest(open_test_device, monkeypatch, looks):
    set_constant(monkeypatch, _watch, "LOOKS_BEFORE_REST", 1)
    with trio.fail_after(DEADLINE):
        async with open_test_device(hang_timeout=60.0) as dev:
            await dev.to_device(np.zeros(10, np.int32))
            await until(lambda: len(looks) > 10)
            assert not watch_of(dev).resting


def test_the_system_tells_whether_a_process_is_stopped(backend):
    process = launcher.WorkerProcess(backend, 13)
    assert not process.stopped
    process.kill()
    poll = select.poll()
    poll.register(process.pidfd, select.POLLIN)
    assert poll.poll(DEADLINE * 1000)
    assert process.reap()
    assert not process.stopped, "there is none any more"
    process.close()


# --- the worker's side ------------------------------------------------------------------------------------------------


class Beating:
    """The thread that beats, of a worker whose lanes and loop are the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_heart, "HEARTBEAT_PERIOD", 1e-3)
        nothing: Any = None
        self.worker: Any = main.Worker(nothing, "sim", 0, 0, 0)
        self.lane = SimpleNamespace(busy=False)
        self.worker._lanes = {0: self.lane}
        self.worker._ring = object()
        self.heart: Any = self.worker._heart
        self.heart.words = [0] * (HEARTBEAT_WORD + 1)
        self.thread = threading.Thread(target=self.heart.beat, daemon=True)

    @property
    def beats(self) -> int:
        return int(self.heart.words[HEARTBEAT_WORD])

    def wait(self, condition: Any) -> None:
        for _ in range(10_000):
            if condition():
                return
            threading.Event().wait(1e-3)
        raise AssertionError("it did not happen")

    def goes_on(self) -> None:
        """Wait for so many beats that it would have rested."""
        until_then = self.beats + 3 * _heart.BEATS_BEFORE_REST
        self.wait(lambda: self.beats >= until_then)
        assert not self.heart.rests

    def end(self) -> None:
        self.worker._ended.set()
        self.heart.rouse()
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive()


@pytest.fixture
def beating(monkeypatch: pytest.MonkeyPatch) -> Beating:
    return Beating(monkeypatch)


def test_a_heart_rests_when_nothing_has_work_and_beats_again_for_a_record(beating: Beating) -> None:
    beating.thread.start()
    for _ in range(3):
        beating.wait(lambda: beating.heart.rests)
        beats = beating.beats
        beating.worker._awake = True  # as the loop's thread does when it has been woken
        beating.heart.rouse()
        beating.wait(lambda beats=beats: beating.beats > beats)
        beating.goes_on()
        beating.worker._awake = False
    beating.wait(lambda: beating.heart.rests)
    beating.end()


@pytest.mark.parametrize("reason", ["lane", "socket", "awake"])
def test_a_heart_beats_while_there_may_be_work(beating: Beating, reason: str) -> None:
    beating.lane.busy = reason == "lane"
    beating.worker._awake = reason == "awake"
    if reason == "socket":  # without a ring nothing tells when records come
        beating.worker._ring = None
    beating.thread.start()
    beating.goes_on()
    beating.end()


def test_a_worker_whose_context_is_lost_while_its_heart_rests_ends(
    beating: Beating, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monitor may hear of it, while nothing of this worker is open."""
    exits: list[int] = []

    def leave(status: int) -> None:
        exits.append(status)
        beating.worker._ended.set()

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(_heart, "LINGER_SECONDS", 0.0)
    beating.thread.start()
    beating.wait(lambda: beating.heart.rests)
    beating.worker.post = lambda *_: None
    beating.worker.lost(SimpleNamespace(status=700, library="cuda", name="x", text="y"), "a test")
    beating.thread.join(DEADLINE)
    assert exits == [EXIT_LOST]


def test_a_rest_that_something_ends_at_once_does_not_begin(beating: Beating, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work comes between the last look and the rest, at each of the two moments."""
    for moment in (0, 1):
        answers = itertools.chain([True] * moment, itertools.repeat(False))
        monkeypatch.setattr(beating.heart, "_is_idle", lambda answers=answers: next(answers))
        if moment:
            beating.heart._roused.clear = lambda: None  # the one who ends it has looked already
            beating.heart._roused.set()
        beating.heart._rest()
        assert not beating.heart.rests
