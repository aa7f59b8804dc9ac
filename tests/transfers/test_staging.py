"""The slots that copies pass through."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from atomr_trio import DeviceClosed
from atomr_trio._transfers.staging import (
    LARGE_SLOT,
    LARGE_SLOTS,
    MEDIUM_SLOT,
    MEDIUM_SLOTS,
    SMALL_SLOT,
    SMALL_SLOTS,
    STAGING_BYTES,
    TINY_SLOT,
    TINY_SLOTS,
    Slot,
    StagingPool,
)
from atomr_trio._wire.protocol import CELL


@pytest.fixture
def pool():
    pool = StagingPool()
    yield pool
    pool.close()


async def take_all(pool: StagingPool, size: int) -> list[Slot]:
    taken = []
    while pool.has_free(size):
        taken.append(await pool.acquire(size))
    return taken


async def take_all_sizes(pool: StagingPool) -> list[Slot]:
    return [slot for size in (TINY_SLOT, SMALL_SLOT, MEDIUM_SLOT, LARGE_SLOT) for slot in await take_all(pool, size)]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, TINY_SLOT),
        (1, TINY_SLOT),
        (TINY_SLOT, TINY_SLOT),
        (TINY_SLOT + 1, SMALL_SLOT),
        (SMALL_SLOT, SMALL_SLOT),
        (SMALL_SLOT + 1, MEDIUM_SLOT),
        (MEDIUM_SLOT, MEDIUM_SLOT),
        (MEDIUM_SLOT + 1, LARGE_SLOT),
        (LARGE_SLOT, LARGE_SLOT),
    ],
)
async def test_a_slot_holds_at_least_what_was_asked_for(pool, size, expected):
    slot = await pool.acquire(size)
    assert slot.size == expected
    assert slot.bytes.size == expected


async def test_slots_never_overlap_and_lie_within_the_area(pool):
    slots = await take_all_sizes(pool)
    assert len(slots) == TINY_SLOTS + SMALL_SLOTS + MEDIUM_SLOTS + LARGE_SLOTS
    end = 0
    for slot in sorted(slots, key=lambda each: each.offset):
        assert slot.offset >= end
        end = slot.offset + slot.size
    assert end <= STAGING_BYTES == pool.memory.size


async def test_what_is_written_to_a_slot_is_in_the_shared_memory_at_its_offset(pool):
    slot = await pool.acquire(MEDIUM_SLOT + 1)
    slot.bytes[:3] = (1, 2, 3)
    assert pool.memory.map[slot.offset : slot.offset + 3] == b"\x01\x02\x03"
    assert os.pread(pool.memory.descriptor, 3, slot.offset) == b"\x01\x02\x03"


async def test_a_released_slot_is_handed_out_again(pool):
    taken = await take_all(pool, LARGE_SLOT)
    assert not pool.has_free(LARGE_SLOT)
    assert not pool.idle
    taken[3].release()
    assert pool.has_free(LARGE_SLOT)
    assert await pool.acquire(LARGE_SLOT) is taken[3]
    for slot in taken:
        slot.release()
    assert pool.idle


async def test_slots_of_one_size_do_not_wait_for_the_other(pool):
    await take_all(pool, LARGE_SLOT)
    with trio.fail_after(5):
        slot = await pool.acquire(SMALL_SLOT)
    assert slot.size == SMALL_SLOT


async def test_who_finds_none_free_waits_in_turn(pool):
    taken = await take_all(pool, LARGE_SLOT)
    order = []

    async def wait(number):
        slot = await pool.acquire(LARGE_SLOT)
        order.append((number, slot))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(wait, number)
                await wait_all_tasks_blocked()
            assert order == []
            for slot in taken[:3]:
                slot.release()
                await wait_all_tasks_blocked()
    assert order == [(0, taken[0]), (1, taken[1]), (2, taken[2])]


async def test_a_release_wakes_one_waiter_alone(pool):
    taken = await take_all(pool, LARGE_SLOT)
    got = []

    async def wait():
        got.append(await pool.acquire(LARGE_SLOT))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            taken[0].release()
            await wait_all_tasks_blocked()
            assert got == [taken[0]]
            nursery.cancel_scope.cancel()


async def test_a_waiter_is_not_overtaken(pool):
    taken = await take_all(pool, LARGE_SLOT)
    got = []

    async def wait():
        got.append(await pool.acquire(LARGE_SLOT))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            taken[0].release()
            with pytest.raises(trio.WouldBlock):  # at once, before the waiter runs
                pool.acquire_nowait(LARGE_SLOT)
    assert got == [taken[0]]


async def test_without_waiting_there_is_a_slot_or_an_error(pool):
    taken = [pool.acquire_nowait(LARGE_SLOT) for _ in range(LARGE_SLOTS)]
    assert len({slot.offset for slot in taken}) == LARGE_SLOTS
    with pytest.raises(trio.WouldBlock):
        pool.acquire_nowait(MEDIUM_SLOT + 1)
    assert pool.acquire_nowait(MEDIUM_SLOT).size == MEDIUM_SLOT


async def test_a_cancelled_waiter_takes_no_slot_with_it(pool):
    taken = await take_all(pool, LARGE_SLOT)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.acquire, LARGE_SLOT)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        for slot in taken:
            slot.release()
        assert pool.idle
        assert len(await take_all(pool, LARGE_SLOT)) == LARGE_SLOTS


async def test_a_waiter_cancelled_after_it_was_woken_loses_no_slot(pool):
    taken = await take_all(pool, LARGE_SLOT)
    scope = trio.CancelScope()

    async def wait():
        with scope:
            (await pool.acquire(LARGE_SLOT)).release()

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            taken[0].release()
            scope.cancel()
    for slot in taken[1:]:
        slot.release()
    assert pool.idle


async def test_a_waiter_given_a_slot_after_it_was_cancelled_gives_it_back(pool):
    taken = await take_all(pool, LARGE_SLOT)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.acquire, LARGE_SLOT)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            for slot in taken:  # at once, before the waiter runs
                slot.release()
    assert pool.idle


async def test_a_slot_of_two_holders_is_free_when_both_have_released_it(pool):
    slot = await pool.acquire(LARGE_SLOT)
    slot.share()
    slot.release()
    assert not pool.idle
    slot.release()
    assert pool.idle


async def test_what_is_held_back_of_one_holder_is_not_freed_by_the_other(pool):
    slot = await pool.acquire(LARGE_SLOT)
    slot.share()
    with pool.hold_back() as held:
        slot.release()
    slot.release()
    assert held == [slot]
    assert not pool.idle
    held[0].release()
    assert pool.idle


async def test_numbers_are_given_once_and_grow(pool):
    assert pool.number(3) + 3 <= pool.number(1) < pool.number(7)


async def test_words_of_slots_share_no_line_and_lie_behind_all_slots(pool):
    slots = await take_all_sizes(pool)
    gates = sorted(slot.gate for slot in slots)
    assert gates[0] >= max(slot.offset + slot.size for slot in slots)
    assert all(gate % CELL == 0 for gate in gates)
    assert all(later - gate >= 2 * CELL for gate, later in itertools.pairwise(gates))
    assert gates[-1] + 2 * CELL <= STAGING_BYTES


def test_closing_gives_the_descriptor_back():
    pool = StagingPool()
    descriptor = pool.memory.descriptor
    pool.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


async def test_a_slot_that_is_still_looked_at_survives_the_closing():
    pool = StagingPool()
    slot = await pool.acquire(10)
    view = slot.bytes
    view[:2] = (7, 8)
    pool.close()
    assert view[:2].tolist() == [7, 8]
    with pytest.raises(DeviceClosed):
        slot.bytes


# --- several at a time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "count"), [(TINY_SLOT, TINY_SLOTS), (SMALL_SLOT, SMALL_SLOTS), (MEDIUM_SLOT, MEDIUM_SLOTS)]
)
async def test_several_slots_are_those_that_would_be_given_one_after_the_other(pool, size, count):
    taken = pool.acquire_several(size, count)
    for slot in reversed(taken):
        slot.release()
    three = pool.acquire_several(size, 3)
    assert three == taken[:3]
    assert {slot.size for slot in three} == {size}
    assert pool.acquire_several(size, count - 2) is None
    rest = pool.acquire_several(size, count - 3)
    assert set(rest) == set(taken[3:])
    assert not pool.has_free(size)
    for slot in three + rest:
        slot.release()
    assert pool.idle


def test_bytes_go_into_a_slot_and_out_of_it_and_no_others_are_touched(pool):
    slots = pool.acquire_several(TINY_SLOT, 3)
    for number, slot in enumerate(slots):
        slot.bytes[:] = number
    middle, given = slots[1], np.arange(100, dtype=np.uint8)
    middle.load(given)
    assert (middle.bytes[:100] == given).all()
    assert (middle.bytes[100:] == 1).all()
    assert [set(slot.bytes.tolist()) for slot in (slots[0], slots[2])] == [{0}, {2}]
    out = np.full(60, 9, np.uint8)
    middle.store(out[10:50])
    assert (out[10:50] == given[:40]).all()
    assert set(out[:10].tolist()) | set(out[50:].tolist()) == {9}
    for slot in slots:
        slot.release()


def test_a_slot_of_a_closed_device_takes_and_gives_no_bytes():
    pool = StagingPool()
    (slot,) = pool.acquire_several(1, 1)
    pool.close()
    memory = np.zeros(10, np.uint8)
    for copy in (slot.load, slot.store):
        with pytest.raises(DeviceClosed):
            copy(memory)
