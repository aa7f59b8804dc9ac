"""The timer that keeps real time, whatever clock the trio run uses."""

from __future__ import annotations

import itertools
import os
import time

import pytest
import trio
from trio.testing import MockClock

from atomr_trio._supervision import realtime as _realtime
from atomr_trio._supervision.realtime import Patience, RealTimer, readable_within
from support.descriptors import open_descriptors
from support.limits import full_table


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


async def test_a_period_can_be_changed_while_a_task_waits_for_its_end():
    with trio.fail_after(10), RealTimer(3600) as timer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timer.tick)
            await trio.testing.wait_all_tasks_blocked()
            timer.change(0.01)
        await timer.tick()


async def test_the_period_of_a_timer_without_a_descriptor_can_be_changed():
    with trio.fail_after(10), full_table(), RealTimer(3600) as timer:
        timer.change(0.002)
        await timer.tick()
        assert timer.fileno() < 0


async def test_closing_gives_the_descriptor_back_and_may_be_repeated():
    before = len(open_descriptors(collect=True))
    timer = RealTimer(1.0)
    assert len(open_descriptors()) == before + 1
    timer.close()
    timer.close()
    assert len(open_descriptors()) == before


def test_a_period_that_the_system_refuses_leaves_no_descriptor():
    before = len(open_descriptors(collect=True))
    with pytest.raises(OSError):
        RealTimer(-1.0)
    assert len(open_descriptors()) == before


def test_the_descriptor_is_not_inherited():
    with RealTimer(1.0) as timer:
        assert not os.get_inheritable(timer._descriptor)


async def test_without_a_free_descriptor_a_timer_ticks_all_the_same_and_gets_one_later():
    with trio.fail_after(10), full_table() as table, RealTimer(0.02) as timer:
        assert timer.fileno() < 0
        before = time.monotonic()
        await timer.tick()
        assert time.monotonic() - before >= 0.02
        table.empty()
        await timer.tick()
        assert timer.fileno() >= 0


@pytest.mark.parametrize("free", [0, 1])
async def test_waiting_for_a_descriptor_needs_none(free):
    reader, writer = os.pipe()
    try:
        with trio.fail_after(10), full_table(free):
            assert await readable_within(0.01, reader) == []
            os.write(writer, b"x")
            assert await readable_within(60, reader) == [reader]
    finally:
        os.close(reader)
        os.close(writer)


async def test_waiting_without_a_descriptor_gives_way_to_others_and_can_be_cancelled():
    reader, writer = os.pipe()
    scope = trio.CancelScope()

    async def take_turns() -> None:
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    try:
        with trio.fail_after(10), full_table():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_turns)
                with scope:
                    await readable_within(60, reader)
        assert scope.cancelled_caught
    finally:
        os.close(reader)
        os.close(writer)


async def test_a_clock_that_jumps_ends_no_patience(monkeypatch):
    """So it looks to a process that was stopped, or whose machine was suspended."""
    reader, writer = os.pipe()
    jumps = itertools.count(0, 10**6)
    monkeypatch.setattr(_realtime.time, "monotonic", lambda: float(next(jumps)))
    try:
        patience = Patience(30)
        os.write(writer, b"x")
        assert await patience.readable(reader) == [reader]
        assert patience.left >= 28
        os.read(reader, 1)
        with trio.move_on_after(0.05) as scope:
            await patience.readable(reader)
        assert scope.cancelled_caught
    finally:
        os.close(reader)
        os.close(writer)
