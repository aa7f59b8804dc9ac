"""Copies of 4 MiB and more of which helpers take some pieces."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import CommandFailed, ContextLost, DeviceClosed
from atomr_trio._device.device import core_of
from atomr_trio._transfers import crew as crews, long_copies, pile
from atomr_trio._transfers.copy_plan import TO_DEVICE, TO_HOST
from atomr_trio._transfers.crew import Crew
from atomr_trio._transfers.long_copies import LONG_ALONE_BYTES, LONG_BYTES, helpers_for
from atomr_trio._transfers.pile import Pile
from atomr_trio._transfers.short_ways import ShortCopies
from atomr_trio._transfers.staging import LARGE_SLOTS, Slot
from support import set_constant
from support.long_copies import (
    LANES,
    Memcpys,
    check_every_byte,
    in_use,
    is_clean,
    scenario,
    submitted,
    verb,
    with_helpers,
)
from support.rogue import kill_worker, next_generation, until
from support.strategies import numbers, same

pytestmark = pytest.mark.used_workers

MIB = 1 << 20
SIZE = 8 * MIB
"""In pieces of a MiB, and with two helpers."""


@pytest.fixture(params=["in", "out"])
def direction(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def memcpys(monkeypatch: pytest.MonkeyPatch, direction: str) -> Memcpys:
    return Memcpys(monkeypatch, direction)


async def ready_to_be_held(dev: Any, memcpys: Memcpys, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an array, of which helpers begin a piece of the next copy and wait; others run between any two pieces."""
    with_helpers(dev)
    array, byte = dev.empty(SIZE, np.uint8), np.ones(1, np.uint8)
    await array[:1].copy_from(byte)
    await array[:1].copy_to(byte)
    memcpys.helper_waits = True
    monkeypatch.setattr(long_copies, "STRETCH_SECONDS", -1.0)
    return array


# --- what arrives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4 * MIB + 1, SIZE + 5, 21 * MIB])
async def test_every_byte_arrives(size):
    async with scenario() as dev:
        with_helpers(dev)
        await check_every_byte(dev, size)


async def test_what_helpers_have_copied_arrives_with_the_rest(direction, memcpys):
    async with scenario() as dev:
        with_helpers(dev)
        host, out = numbers(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
        array, lane = await dev.to_device(host[:1].repeat(SIZE)), LANES[direction]
        if direction == "out":
            await array.copy_from(host)
        memcpys.forget()
        before = submitted(dev, lane)
        await verb(array, direction)(host if direction == "in" else out)
        assert submitted(dev, lane) == before + SIZE // MIB + 1
        assert memcpys.by_helpers
        assert len(memcpys.by_helpers) + len(memcpys.by_task) == SIZE // MIB
        assert same(await array.to_host() if direction == "in" else out, host)
        assert is_clean(dev)


async def test_a_helper_may_come_to_its_end_while_the_task_looks_what_to_wait_for(monkeypatch):
    """Then nothing is in its hands any more, and with the GPU idle there is no other end to wait for."""
    async with scenario() as dev:
        with_helpers(dev, 1)
        host, seen = numbers(5 * MIB, np.uint8), []
        begun, asked = threading.Event(), threading.Event()
        array, settler = await dev.to_device(np.zeros(5 * MIB, np.uint8)), core_of(dev).current.settler
        main, load, in_hands = threading.current_thread(), Slot.load_freely, Pile.in_hands.fget

        def loaded(slot: Slot, memory: Any) -> None:
            if threading.current_thread() is main:
                assert begun.wait(20)
            else:
                begun.set()
                assert asked.wait(20)
            load(slot, memory)

        def late(pile: Pile) -> bool:
            asked.set()
            while in_hands(pile):
                time.sleep(1e-4)
            while not core_of(dev).current.timeline.idle:
                settler.settle_finished()
            seen.append(len(pile.done))
            return in_hands(pile)

        with monkeypatch.context() as patch:
            patch.setattr(Slot, "load_freely", loaded)
            patch.setattr(Pile, "in_hands", property(late))
            await array.copy_from(host)
        assert seen[0] == 1
        assert same(await array.to_host(), host)
        assert is_clean(dev)


async def test_without_a_thread_the_task_copies_everything(direction, monkeypatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with scenario() as dev:
        with_helpers(dev)
        host, out = numbers(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
        array = await dev.to_device(host if direction == "out" else out)
        with monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "start_thread_soon", refuse)
            await verb(array, direction)(host if direction == "in" else out)
        assert same(await array.to_host() if direction == "in" else out, host)
        assert is_clean(dev)


@pytest.mark.parametrize(("size", "way"), [(SIZE, "alone"), (21 * MIB, "general")])
async def test_without_the_slots_for_helpers_a_copy_goes_without_them(size, way, direction):
    async with scenario() as dev:
        transfers = with_helpers(dev)
        host, out = numbers(size, np.uint8), np.zeros(size, np.uint8)
        array, lane = await dev.to_device(host), LANES[direction]
        taken = [transfers.staging.acquire_nowait(4 * MIB) for _ in range(LARGE_SLOTS - 1)]
        before = submitted(dev, lane)
        await verb(array, direction)(host if direction == "in" else out)
        assert submitted(dev, lane) - before == (2 * size // MIB + 1 if way == "alone" else 1)
        for slot in taken:
            slot.release()
        assert same(await array.to_host() if direction == "in" else out, host)
        assert is_clean(dev)


@pytest.mark.parametrize(
    ("mebibytes", "most", "helpers"),
    [(3.9, 7, 0), (4, 7, 1), (8, 7, 2), (16, 7, 4), (16, 3, 3), (64, 7, 7), (4, 0, 0)],
)
def test_there_is_a_helper_for_every_few_mebibytes(mebibytes, most, helpers):
    assert helpers_for(int(mebibytes * MIB), most) == helpers


@pytest.mark.parametrize(("processors", "beside"), [(1, 0), (2, 0), (4, 1), (8, 3), (16, 7), (128, 8)])
async def test_few_processors_have_no_helpers_beside_a_task(processors, beside, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(processors)))
    assert Crew().beside == beside
    assert crews.MOST_HELPERS == 8


@pytest.mark.parametrize("helpers", [0, 7])
async def test_larger_copies_are_streams(helpers, direction):
    async with scenario() as dev:
        with_helpers(dev, helpers)
        way = TO_DEVICE if direction == "in" else TO_HOST
        most = LONG_BYTES if helpers else LONG_ALONE_BYTES[way]
        array, lane = dev.empty(most + 1, np.uint8), LANES[direction]
        await array[:1].copy_from(np.ones(1, np.uint8))
        before = submitted(dev, lane)
        await verb(array, direction)(np.ones(most + 1, np.uint8))
        assert submitted(dev, lane) == before + 1


# --- leaving, failing, losing -----------------------------------------------------------------------------------------


async def test_a_copy_that_is_left_waits_until_no_helper_touches_the_memory(direction, memcpys, monkeypatch):
    set_constant(monkeypatch, pile, "SPIN_SECONDS", 0.0)
    async with scenario() as dev:
        array, host = await ready_to_be_held(dev, memcpys, monkeypatch), np.ones(SIZE, np.uint8)
        left = trio.Event()
        path = core_of(dev).part(ShortCopies)._paths[LANES[direction]]

        async def copy() -> None:
            await verb(array, direction)(host)
            left.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy)
            await until(memcpys.begun.is_set)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await until(lambda: not path.long)  # it is at its end, where it waits for the helper
                await trio.sleep(0.01)
                assert not is_clean(dev)
                memcpys.go.set()
        assert not left.is_set()
        await until(lambda: is_clean(dev))
        assert in_use(dev) == SIZE


async def test_the_error_of_a_helper_ends_the_copy(direction, memcpys):
    async with scenario() as dev:
        with_helpers(dev)
        array, host = dev.empty(SIZE, np.uint8), np.ones(SIZE, np.uint8)
        await array[:1].copy_from(host[:1])
        memcpys.error = DeviceClosed("the memory is gone")
        with pytest.raises(DeviceClosed, match="the memory is gone"):
            await verb(array, direction)(host)
        await until(lambda: is_clean(dev))
        memcpys.error = None
        await verb(array, direction)(host)
        assert is_clean(dev)


async def test_a_worker_that_is_lost_while_helpers_copy_leaves_their_slots_to_them(direction, memcpys, monkeypatch):
    async with scenario() as dev:
        array, host = await ready_to_be_held(dev, memcpys, monkeypatch), np.ones(SIZE, np.uint8)

        async def copy() -> None:
            with contextlib.suppress(
                ContextLost
            ):  # where the GPU had come to its end, it is what the helper still does
                await verb(array, direction)(host)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy)
            await until(memcpys.begun.is_set)
            kill_worker(dev)
            await next_generation(dev, after=1)
            assert not is_clean(dev)
            memcpys.go.set()
        await until(lambda: is_clean(dev))
        memcpys.helper_waits = False
        await array.copy_from(host)
        assert same(await array.to_host(), host)


async def test_a_helper_that_has_waited_long_for_the_gpu_leaves_its_piece_to_the_task(monkeypatch):
    async with scenario() as dev:
        with_helpers(dev)
        host, out = numbers(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
        array, late = await dev.to_device(host), threading.Event()
        monkeypatch.setattr(long_copies.LongOut, "_copy_by_helper", lambda *_: late.set() and False)
        take = Pile.take
        monkeypatch.setattr(Pile, "take", lambda pile: late.wait(20) and take(pile))
        await array.copy_to(out)
        assert same(out, host)
        assert is_clean(dev)


@pytest.mark.parametrize(("frozen", "failures", "copied"), [(None, 4, True), ((0,) * 64, 4, False), (None, 5, False)])
def test_a_counter_that_was_raised_because_the_worker_is_gone_says_nothing_of_the_bytes(frozen, failures, copied):
    words = {1: 1 << 62, 2: failures}
    out, slot = np.zeros(4, np.uint8), SimpleNamespace(store_freely=lambda memory: memory.fill(9))
    copy: Any = long_copies.LongOut.__new__(long_copies.LongOut)
    page = SimpleNamespace(frozen=frozen)
    copy._path = SimpleNamespace(words=words, counter=1, failures=2, generation=SimpleNamespace(page=page))
    copy._failures, copy._memory, copy._piece = 4, out, 4
    assert copy._copy_by_helper(pile.Piece(0, slot, 7)) is copied
    assert (out == 9).all() == copied


@pytest.mark.sim_only
async def test_what_the_gpu_refused_to_copy_is_not_taken_by_a_helper():
    async with scenario() as dev:
        with_helpers(dev)
        array, out = await dev.to_device(np.full(SIZE, 7, np.uint8)), np.zeros(SIZE, np.uint8)
        core_of(dev).current.request_faults("cuMemcpyDtoHAsync:1:3")
        with pytest.raises(CommandFailed) as failed:
            await array.copy_to(out)
        assert (failed.value.status, failed.value.operation) == (1, "memory.copy_out")
        assert set(out[2 * MIB : 3 * MIB]) == {0}
        await until(lambda: is_clean(dev))
        await array.copy_to(out)
        assert (out == 7).all()


async def test_a_copy_ends_with_no_helper_at_work(direction):
    async with scenario() as dev:
        transfers = with_helpers(dev)
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), np.ones(SIZE, np.uint8)
        await verb(array, direction)(host)
        await until(lambda: repr(transfers.crew).startswith("<Crew: 0 of"))
        assert is_clean(dev)
