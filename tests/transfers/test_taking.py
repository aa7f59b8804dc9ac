"""What a batch has copied to the host reaches its array by several helpers at a time."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio._device.device import core_of
from atomr_trio._transfers import copy_plan
from atomr_trio._transfers.copies import PART_BYTES
from atomr_trio._transfers.transfers import Transfers
from support.rogue import until
from support.strategies import numbers, same

pytestmark = pytest.mark.used_workers

SIZE = 3 * PART_BYTES + 5
PARTS = [(0, PART_BYTES), (PART_BYTES, 2 * PART_BYTES), (2 * PART_BYTES, 3 * PART_BYTES), (3 * PART_BYTES, SIZE)]


@pytest.fixture
def parts(monkeypatch) -> list[tuple[int, int]]:
    """The parts that are stored, each by a helper."""
    seen: list[tuple[int, int]] = []
    store_part = copy_plan._Plan.store_part

    def noted(plan: Any, piece: Any, source: Any, begin: int, end: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append((begin, end))
        store_part(plan, piece, source, begin, end)

    monkeypatch.setattr(copy_plan._Plan, "store_part", noted)
    return seen


@pytest.fixture
def held_up(monkeypatch) -> Any:
    """Holds the parts in their helpers, until `go`; `working` are those that have begun and not ended."""
    store_part = copy_plan._Plan.store_part

    state = SimpleNamespace(go=threading.Event(), begun=threading.Event(), working=[])

    def held(plan: Any, piece: Any, source: Any, begin: int, end: int) -> None:
        state.working.append(begin)
        state.begun.set()
        assert state.go.wait(30)
        store_part(plan, piece, source, begin, end)
        state.working.remove(begin)

    monkeypatch.setattr(copy_plan._Plan, "store_part", held)
    yield state
    state.go.set()


def is_idle(dev: Any) -> bool:
    return bool(core_of(dev).part(Transfers).staging.idle)


async def test_each_part_is_taken_once(dev, parts):
    host, out = numbers(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
    array = await dev.to_device(host)
    async with dev.batch() as batch:
        batch.copy_to(array, out)
    assert same(out, host)
    assert sorted(parts) == PARTS
    assert is_idle(dev)


async def test_what_is_too_small_for_parts_is_taken_whole(dev, parts):
    host, out = numbers(2 * PART_BYTES - 1, np.uint8), np.zeros(2 * PART_BYTES - 1, np.uint8)
    array = await dev.to_device(host)
    async with dev.batch() as batch:
        batch.copy_to(array, out)
    assert same(out, host)
    assert not parts


async def test_of_two_copies_to_one_array_the_later_arrives_last(dev, parts):
    first, last = [await dev.to_device(np.full(SIZE, value, np.uint8)) for value in (1, 2)]
    out = np.zeros(SIZE, np.uint8)
    async with dev.batch() as batch:
        batch.copy_to(first, out)
        batch.copy_to(last, out)
    assert (out == 2).all()
    assert sorted(parts) == sorted(2 * PARTS)


async def test_a_part_that_fails_is_made_good_by_the_task(dev, monkeypatch):
    store_part, failures = copy_plan._Plan.store_part, []

    def fails(plan: Any, piece: Any, source: Any, begin: int, end: int) -> None:
        if begin == PART_BYTES:
            failures.append(begin)
            raise MemoryError("a test")
        store_part(plan, piece, source, begin, end)

    monkeypatch.setattr(copy_plan._Plan, "store_part", fails)
    host, out = numbers(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
    array = await dev.to_device(host)
    async with dev.batch() as batch:
        batch.copy_to(array, out)
    assert failures == [PART_BYTES]
    assert same(out, host)
    assert is_idle(dev)


async def test_without_a_thread_for_all_parts_the_task_takes_them(dev, monkeypatch):
    crew, submitted = core_of(dev).part(Transfers).crew, []
    submit = crew.submit

    def refuse(job: Any) -> None:
        submitted.append(job)
        if len(submitted) > 2:
            raise RuntimeError("can't start new thread")
        submit(job)

    host, out = numbers(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
    array = await dev.to_device(host)
    monkeypatch.setattr(crew, "submit", refuse)
    async with dev.batch() as batch:
        batch.copy_to(array, out)
    assert len(submitted) == 3
    assert same(out, host)
    assert is_idle(dev)


async def test_a_flush_that_is_cancelled_waits_for_the_helpers_and_the_next_one_goes_on(dev, held_up):
    host, out = numbers(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
    array = await dev.to_device(host)
    async with dev.batch() as batch:
        batch.copy_to(array, out)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def cancel() -> None:
                    await trio.to_thread.run_sync(held_up.begun.wait)
                    scope.cancel()
                    held_up.go.set()

                nursery.start_soon(cancel)
                await batch.flush()
        assert scope.cancelled_caught
        assert not held_up.working
        await batch.flush()
        assert same(out, host)
    await until(lambda: is_idle(dev))
