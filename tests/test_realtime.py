"""The timer that keeps real time, whatever clock the trio run uses."""

from __future__ import annotations

import os
import resource
import time

import pytest
import trio
from trio.testing import MockClock

from atomr_trio._realtime import RealTimer


def test_it_ticks_in_real_time_when_trios_clock_stands_still():
    async def main():
        before = time.monotonic()
        with RealTimer(0.02) as timer:
            for _ in range(3):
                await timer.tick()
        assert trio.current_time() == start
        return time.monotonic() - before

    clock = MockClock()
    start = clock.current_time()
    assert trio.run(main, clock=clock) >= 0.06


async def test_a_listener_that_was_late_gets_one_tick_for_all_that_it_missed():
    with trio.fail_after(10), RealTimer(0.01) as timer:
        await trio.sleep(0.1)
        await timer.tick()
        before = time.monotonic()
        await timer.tick()
        await timer.tick()
        assert time.monotonic() - before > 0.005


async def test_waiting_for_a_tick_can_be_cancelled():
    with trio.fail_after(10), RealTimer(3600) as timer:
        with trio.move_on_after(0.01) as scope:
            await timer.tick()
        assert scope.cancelled_caught


async def test_the_shortest_period_still_ticks():
    with trio.fail_after(10), RealTimer(1e-12) as timer:
        await timer.tick()


async def test_closing_gives_the_descriptor_back_and_may_be_repeated():
    before = len(os.listdir("/proc/self/fd"))
    timer = RealTimer(1.0)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    timer.close()
    timer.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_period_that_the_system_refuses_leaves_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError):
        RealTimer(-1.0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_descriptor_is_not_inherited():
    with RealTimer(1.0) as timer:
        assert not os.get_inheritable(timer._descriptor)


def test_without_a_free_descriptor_the_system_says_so():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            RealTimer(1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
