"""Copies of 1 to 4 MiB that are sent in one stretch, with a helper."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import CommandFailed, ContextLost, DeviceClosed
from atomr_trio._device.device import core_of
from atomr_trio._transfers import copy_plan, pile, stretch_copies
from atomr_trio._transfers.pile import Pile
from atomr_trio._transfers.short_copies import SHORT_BYTES, ShortCopy
from atomr_trio._transfers.staging import LARGE_SLOTS
from atomr_trio._transfers.stretch_copies import STRETCH_BYTES, StretchCopy
from atomr_trio._transfers.transfers import Transfers
from support import set_constant
from support.long_copies import (
    LANES,
    Memcpys,
    check_every_byte,
    check_random_kills,
    held_up,
    is_clean,
    scenario,
    submitted,
    verb,
    with_helpers,
)
from support.rogue import kill_worker, next_generation, until
from support.strategies import numbers, same

pytestmark = [pytest.mark.used_workers, pytest.mark.usefixtures("nothing_is_read")]

SIZE = STRETCH_BYTES
COMMANDS = 6
"""Five pieces of the task, of half a MiB or less, and one of the helper."""


@pytest.fixture(params=["in", "out"])
def direction(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def memcpys(monkeypatch: pytest.MonkeyPatch, direction: str) -> Memcpys:
    return Memcpys(monkeypatch, direction)


@pytest.fixture
def short_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """No copy goes another way, from the call on."""

    def refuse(*_: object) -> None:
        raise AssertionError("a copy went another way")

    with monkeypatch.context() as patch:

        def forbid() -> None:
            patch.setattr(copy_plan._Plan, "__init__", refuse)
            patch.setattr("atomr_trio._transfers.short_ways.begin_long", refuse)

        yield forbid


@pytest.fixture
def beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies go this way although their lane is held up."""
    monkeypatch.setattr(stretch_copies, "is_alone", lambda _: True)


async def prepared(dev: Any, helpers: int = 1) -> Any:
    with_helpers(dev, helpers)
    return await dev.to_device(np.full(SIZE, 7, np.uint8))


# --- what arrives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SHORT_BYTES + 1, 2 * SHORT_BYTES - 1, STRETCH_BYTES - 1, STRETCH_BYTES])
async def test_every_byte_arrives(size, short_alone):
    async with scenario() as dev:
        with_helpers(dev, 1)
        await check_every_byte(dev, size, short_alone)


async def test_a_copy_is_a_command_for_each_piece_and_all_are_counted(direction, memcpys):
    async with scenario() as dev:
        array, host = await prepared(dev), numbers(SIZE, np.uint8)
        memcpys.forget()
        before, actor = submitted(dev, LANES[direction]), dev.statistics().actors[0]
        await verb(array, direction)(host)
        assert submitted(dev, LANES[direction]) == before + COMMANDS
        assert dev.statistics().actors[0].settled["ok"] == actor.settled["ok"] + COMMANDS
        assert [slot.size for slot in memcpys.by_helpers] == [(SIZE - stretch_copies.LEAD_BYTES) // 2]
        assert len(memcpys.by_task) == COMMANDS - 1
        assert is_clean(dev)


async def test_no_other_task_runs_before_all_is_sent(direction):
    async with scenario() as dev:
        array = await prepared(dev)
        before, seen, done = submitted(dev, LANES[direction]), set(), trio.Event()

        async def watch() -> None:
            while not done.is_set():
                seen.add(submitted(dev, LANES[direction]) - before)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await verb(array, direction)(np.ones(SIZE, np.uint8))
            done.set()
        assert seen <= {0, COMMANDS}


async def test_many_at_a_time_are_all_right(direction):
    async with scenario() as dev:
        with_helpers(dev, 1)
        hosts = [numbers(SIZE // 2 + n, np.uint8, seed=n) for n in range(2 * LARGE_SLOTS)]
        outs = [np.zeros_like(host) for host in hosts]
        async with trio.open_nursery() as nursery:
            for host, out in zip(hosts, outs, strict=True):

                async def there_and_back(host: Any = host, out: Any = out) -> None:
                    array = dev.empty(host.size, np.uint8)
                    await array.copy_from(host)
                    await array.copy_to(out)

                nursery.start_soon(there_and_back)
        assert all(map(same, outs, hosts))
        assert is_clean(dev)


# --- without a helper, a slot, a block --------------------------------------------------------------------------------


async def test_without_a_thread_the_task_copies_everything(direction, monkeypatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with scenario() as dev:
        array, host = await prepared(dev), numbers(SIZE, np.uint8)
        if direction == "out":
            await array.copy_from(host)
        await until(lambda: repr(core_of(dev).part(Transfers).crew).startswith("<Crew: 0"))
        out = np.zeros_like(host)
        with monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "start_thread_soon", refuse)
            await verb(array, direction)(host if direction == "in" else out)
        assert same(await array.to_host() if direction == "in" else out, host)
        assert is_clean(dev)


async def test_without_a_slot_a_copy_goes_another_way(direction):
    async with scenario() as dev:
        array, host = await prepared(dev), numbers(SIZE, np.uint8)
        if direction == "out":
            await array.copy_from(host)
        out = np.zeros_like(host)
        taken = core_of(dev).part(Transfers).staging.acquire_several(SIZE, LARGE_SLOTS)
        await verb(array, direction)(host if direction == "in" else out)
        for slot in taken:
            slot.release()
        assert same(await array.to_host() if direction == "in" else out, host)
        assert is_clean(dev)


async def test_a_copy_beside_others_of_its_lane_goes_another_way(direction, monkeypatch):
    """It would keep them waiting."""
    async with scenario() as dev:
        array, begun = await prepared(dev), []
        init = StretchCopy.__init__
        monkeypatch.setattr(StretchCopy, "__init__", lambda copy, *given: begun.append(copy) or init(copy, *given))
        host, small = np.ones(SIZE - 10, np.uint8), np.ones(10, np.uint8)
        async with held_up(dev, direction) as gate:
            before = submitted(dev, LANES[direction])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(verb(array[10:], direction), host)
                await until(lambda: submitted(dev, LANES[direction]) > before)
                await gate.open()
        assert not begun
        await verb(array[:10], direction)(small)
        await verb(array[10:], direction)(host)
        assert len(begun) == 1


# --- leaving, failing, losing -----------------------------------------------------------------------------------------


async def test_a_copy_in_a_cancelled_scope_sends_nothing_and_holds_no_slot(direction):
    async with scenario() as dev:
        array, out = await prepared(dev), np.ones(SIZE, np.uint8)
        before = submitted(dev, LANES[direction])
        with trio.CancelScope() as scope:
            scope.cancel()
            await verb(array, direction)(out)
        assert scope.cancelled_caught
        assert submitted(dev, LANES[direction]) == before
        assert is_clean(dev)
        assert (out == 1).all()
        assert (await array.to_host() == 7).all()


@pytest.mark.usefixtures("beside_others")
async def test_a_copy_to_the_device_that_is_left_goes_on():
    async with scenario() as dev:
        array, host = await prepared(dev), numbers(SIZE, np.uint8)
        async with held_up(dev, "in") as gate:
            before = submitted(dev, LANES["in"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(array.copy_from, host)
                await until(lambda: submitted(dev, LANES["in"]) == before + COMMANDS)
                nursery.cancel_scope.cancel()
            assert array.state == "ready"
            assert not is_clean(dev)
            await gate.open()
            assert same(await array.to_host(), host)
        assert is_clean(dev)


@pytest.mark.usefixtures("beside_others")
@pytest.mark.parametrize("spin", [0.0, 20.0])
async def test_a_copy_to_the_host_that_is_left_writes_nothing_more(spin, monkeypatch):
    set_constant(monkeypatch, pile, "SPIN_SECONDS", spin)
    async with scenario() as dev:
        array, out = await prepared(dev), np.zeros(SIZE, np.uint8)
        async with held_up(dev, "out") as gate:
            before = submitted(dev, LANES["out"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(array.copy_to, out)
                await until(lambda: submitted(dev, LANES["out"]) == before + COMMANDS)
                nursery.cancel_scope.cancel()
            assert not is_clean(dev)
            await gate.open()
            await until(lambda: is_clean(dev))
        assert not out.any()
        assert (await array.to_host() == 7).all()


async def test_a_copy_to_the_host_that_is_left_waits_until_its_helper_touches_no_memory(monkeypatch):
    for module in (pile, stretch_copies):
        monkeypatch.setattr(module, "SPIN_SECONDS", 0.0)
    memcpys = Memcpys(monkeypatch, "out")
    async with scenario() as dev:
        array, out, left = await prepared(dev), np.zeros(SIZE, np.uint8), trio.Event()
        memcpys.helper_waits = True

        async def copy() -> None:
            try:
                await array.copy_to(out)
            finally:
                left.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy)
            await until(memcpys.begun.is_set)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.sleep(0.02)
                assert not left.is_set()
                assert not is_clean(dev)
                memcpys.go.set()
        assert is_clean(dev)


@pytest.mark.usefixtures("beside_others")
async def test_a_worker_that_dies_under_a_copy_costs_that_copy(direction):
    async with scenario() as dev:
        array, out, lost = await prepared(dev), np.zeros(SIZE, np.uint8), []

        async def copy() -> None:
            with pytest.raises(ContextLost) as error:
                await verb(array, direction)(out)
            lost.append(error)

        async with held_up(dev, direction):
            before = submitted(dev, LANES[direction])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(copy)
                await until(lambda: submitted(dev, LANES[direction]) > before)
                kill_worker(dev)
            await next_generation(dev, after=1)
        assert len(lost) == 1
        assert not out.any()
        assert array.state == ("torn" if direction == "in" else "ready")
        await until(lambda: is_clean(dev))
        host = numbers(SIZE, np.uint8)
        for _ in range(2):
            await array.copy_from(host)
            assert same(await array.to_host(), host)


@pytest.mark.sim_only
@pytest.mark.parametrize("place", [1, 2, COMMANDS])
async def test_a_command_that_fails_alone_fails_the_copy(place, direction):
    async with scenario() as dev:
        array, host = await prepared(dev), np.zeros(SIZE, np.uint8)
        await verb(array, direction)(host.copy())
        name = "cuMemcpyHtoDAsync" if direction == "in" else "cuMemcpyDtoHAsync"
        core_of(dev).current.request_faults(f"{name}:1:{place}")
        with pytest.raises(CommandFailed) as failed:
            await verb(array, direction)(host)
        assert (failed.value.status, failed.value.operation) == (1, f"memory.copy_{direction}")
        assert array.state == ("torn" if direction == "in" else "ready")
        await until(lambda: is_clean(dev))
        await array.copy_from(host)
        assert same(await array.to_host(), host)
        assert dev.generation == 1


async def test_the_error_of_a_helper_ends_the_copy(direction, memcpys):
    async with scenario() as dev:
        array, host = await prepared(dev), np.ones(SIZE, np.uint8)
        memcpys.forget()
        memcpys.error = DeviceClosed("the memory is gone")
        with pytest.raises(DeviceClosed, match="the memory is gone"):
            await verb(array, direction)(host)
        memcpys.error = None
        await until(lambda: is_clean(dev))
        await array.copy_from(host)
        assert same(await array.to_host(), host)


async def test_what_a_helper_has_left_to_the_task_is_copied_by_it(monkeypatch):
    async with scenario() as dev:
        array, out, late = await prepared(dev), np.zeros(SIZE, np.uint8), threading.Event()
        monkeypatch.setattr(StretchCopy, "_copy_by_helper", lambda *_: late.set() and False)
        take = Pile.take
        monkeypatch.setattr(Pile, "take", lambda pile: late.wait(20) and take(pile))
        await array.copy_to(out)
        assert (out == 7).all()
        assert is_clean(dev)


@pytest.mark.parametrize("size", [SHORT_BYTES, SIZE])
async def test_what_had_come_to_its_end_before_a_loss_is_taken_though_the_page_is_closed(size, monkeypatch):
    """The task had no turn until then."""
    async with scenario() as dev:
        array, until_ended, seen = await prepared(dev), ShortCopy._until, []

        async def until_closed(copy: ShortCopy, count: int) -> None:
            await until_ended(copy, count)
            if seen:
                return
            seen.append(count)
            settler, words = copy._path.settler, copy._path.words

            def all_ended() -> bool:
                settler.settle_finished()
                return copy._ended == copy._begun

            await until(all_ended)
            kill_worker(dev)
            await next_generation(dev, after=1)
            await until(lambda: is_released(words))

        monkeypatch.setattr(ShortCopy, "_until", until_closed)
        out = np.zeros(size, np.uint8)
        await array[:size].copy_to(out)
        assert seen
        assert (out == 7).all()
        assert is_clean(dev)


def test_a_helper_leaves_its_piece_to_the_task_when_the_page_is_closed():
    copy: Any = StretchCopy.__new__(StretchCopy)
    words = memoryview(bytearray(64)).cast("Q")
    words.release()
    copy._path = SimpleNamespace(words=words, counter=1, failures=2)
    assert not copy._has_come(7)


def is_released(words: memoryview) -> bool:
    try:
        return words.nbytes < 0
    except ValueError:
        return True


@pytest.mark.parametrize("kills", [5, pytest.param(300, marks=pytest.mark.soak)])
async def test_workers_that_are_killed_at_any_time_cost_no_byte(kills):
    await check_random_kills(kills, SHORT_BYTES + 1, SIZE)
