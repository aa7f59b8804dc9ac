"""Copies that go the short way: in the caller's task, and in batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
import trio
import trio.testing

import atomr_trio
from atomr_trio import CommandFailed, ContextLost
from atomr_trio._arrays.layout import Box
from atomr_trio._device.device import core_of
from atomr_trio._transfers import copy_plan, short_copies
from atomr_trio._transfers.batch_copies import BATCH_IN_BYTES
from atomr_trio._transfers.short_copies import (
    SHORT_BYTES,
    SHORT_PIECE,
    CopyPath,
    OneSlotCopy,
    RowsCopy,
    parts_of_rows,
)
from atomr_trio._transfers.short_ways import ShortCopies
from atomr_trio._transfers.staging import (
    LARGE_SLOT,
    LARGE_SLOTS,
    MEDIUM_SLOT,
    MEDIUM_SLOTS,
    SMALL_SLOT,
    SMALL_SLOTS,
    TINY_SLOT,
    TINY_SLOTS,
)
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._wire.protocol import LANE_COPY_IN, LANE_COPY_OUT
from support import open_test_device
from support.long_copies import LANES, held_up
from support.rogue import gated, kill_worker, next_generation, until
from support.strategies import numbers, same

pytestmark = pytest.mark.used_workers


@contextlib.asynccontextmanager
async def scenario(**options: Any):
    """A device whose copies have learnt the short way, with an array that a gate can hold up."""
    with trio.fail_after(60):
        async with open_test_device(**options) as dev:
            learnt = await dev.to_device(np.zeros(10, np.uint8))
            await learnt.to_host()
            yield dev


def submitted(dev: atomr_trio.Device, lane: int) -> int:
    return dev.statistics().lanes[lane].submitted


def staging(dev: atomr_trio.Device) -> Any:
    return core_of(dev).part(Transfers).staging


@pytest.fixture
def short_alone(monkeypatch) -> Iterator[None]:
    """No copy goes the general way."""

    def refuse(*_: object) -> None:
        raise AssertionError("a copy went the general way")

    with monkeypatch.context() as patch:
        yield lambda: patch.setattr(copy_plan._Plan, "__init__", refuse)


# --- sizes ------------------------------------------------------------------------------------------------------------

BORDERS = (TINY_SLOT, SMALL_SLOT, SHORT_PIECE, SHORT_BYTES - 3, SHORT_BYTES)


@pytest.mark.parametrize("border", BORDERS)
async def test_every_byte_arrives_by_the_short_way(border, short_alone):
    async with scenario() as dev:
        arrays = {size: dev.empty(size, np.uint8) for size in (border - 1, border, border + 1) if size <= SHORT_BYTES}
        for array in arrays.values():
            await array[:1].copy_from(np.ones(1, np.uint8))  # makes its memory
        short_alone()
        for size, array in arrays.items():
            for seed in (1, 2):
                host, out = numbers(size, np.uint8, seed=seed), np.zeros(size, np.uint8)
                await array.copy_from(host)
                await array.copy_to(out)
                assert same(out, host)
        assert staging(dev).idle


@pytest.mark.parametrize("dtype", [np.bool_, np.float16, np.complex128, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (3,), (4, 5, 6)])
async def test_packed_memory_of_any_dtype_and_shape_goes_the_short_way(dtype, shape, short_alone):
    async with scenario() as dev:
        host = numbers(shape, dtype)
        array = await dev.to_device(host)
        short_alone()
        out = np.zeros_like(host)
        await array.copy_to(out)
        assert same(out, host)
        await array.copy_from(out)
        assert same(await array.to_host(), host)


@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize(("size", "commands"), [(1, 1), (SHORT_PIECE, 1), (SHORT_PIECE + 1, 2), (SHORT_BYTES, 2)])
async def test_a_copy_takes_a_command_for_each_piece_and_all_are_counted(direction, size, commands):
    async with scenario() as dev:
        array = await dev.to_device(np.zeros(size, np.uint8))
        await array.to_host()
        before, actor = submitted(dev, LANES[direction]), dev.statistics().actors[0]
        await (array.copy_from if direction == "in" else array.copy_to)(np.ones(size, np.uint8))
        assert submitted(dev, LANES[direction]) == before + commands
        now = dev.statistics().actors[0]
        assert now.accepted == actor.accepted + commands
        assert now.settled["ok"] == actor.settled["ok"] + commands


async def test_a_last_piece_of_a_few_bytes_needs_no_slot_of_its_size(short_alone):
    async with scenario() as dev:
        host = numbers(SHORT_PIECE + 3, np.uint8)
        array = await dev.to_device(host[::-1].copy())
        taken = [staging(dev).acquire_nowait(1) for _ in range(TINY_SLOTS)]
        short_alone()
        out = np.zeros_like(host)
        await array.copy_from(host)
        await array.copy_to(out)
        assert same(out, host)
        for slot in taken:
            slot.release()
        assert staging(dev).idle


@pytest.mark.usefixtures("nothing_is_read")
async def test_without_enough_slots_a_copy_to_the_device_goes_the_general_way():
    async with scenario() as dev:
        host = numbers(SHORT_BYTES - 1, np.uint8)
        array = await dev.to_device(host[::-1].copy())
        taken = [staging(dev).acquire_nowait(SHORT_PIECE) for _ in range(MEDIUM_SLOTS - 1)]
        before = submitted(dev, LANE_COPY_IN)
        await array.copy_from(host)
        assert submitted(dev, LANE_COPY_IN) == before + 1
        assert same(await array.to_host(), host)
        for slot in taken:
            slot.release()
        assert staging(dev).idle


async def test_without_any_slots_a_copy_to_the_host_goes_the_general_way_and_waits_for_one():
    async with scenario() as dev:
        host = numbers(SHORT_BYTES - 1, np.uint8)
        array, out = await dev.to_device(host), np.zeros_like(host)
        taken = [staging(dev).acquire_nowait(SHORT_PIECE) for _ in range(MEDIUM_SLOTS - 1)]
        taken += [staging(dev).acquire_nowait(LARGE_SLOT) for _ in range(LARGE_SLOTS)]
        before = submitted(dev, LANE_COPY_OUT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.copy_to, out)
            await trio.testing.wait_all_tasks_blocked()
            assert submitted(dev, LANE_COPY_OUT) == before
            for slot in taken:
                slot.release()
        assert submitted(dev, LANE_COPY_OUT) == before + 1
        assert same(out, host)
        assert staging(dev).idle


@pytest.mark.parametrize("size", [SHORT_PIECE + 1, SHORT_BYTES])
async def test_without_a_large_slot_a_copy_to_the_host_goes_through_two_smaller_ones(short_alone, size):
    async with scenario() as dev:
        host = numbers(size, np.uint8)
        array, out = await dev.to_device(host), np.zeros_like(host)
        taken = [staging(dev).acquire_nowait(LARGE_SLOT) for _ in range(LARGE_SLOTS)]
        short_alone()
        before = submitted(dev, LANE_COPY_OUT)
        await array.copy_to(out)
        assert submitted(dev, LANE_COPY_OUT) == before + 2
        assert same(out, host)
        for slot in taken:
            slot.release()
        assert staging(dev).idle


async def test_what_is_not_packed_goes_the_general_way():
    async with scenario() as dev:
        host = numbers((20, 30), np.int32)
        array = await dev.to_device(host)
        out = np.zeros((20, 60), np.int32)
        await array.copy_to(out[:, ::2])
        assert same(np.ascontiguousarray(out[:, ::2]), host)
        await array[:, ::3].copy_from(host[:, ::3] + 1)
        host[:, ::3] += 1
        assert same(await array.to_host(), host)


async def test_many_copies_at_a_time_share_the_slots(short_alone):
    async with scenario() as dev:
        sizes = [SMALL_SLOT * (1 + number % 9) + number for number in range(24)]
        hosts = [numbers(size, np.uint8, seed=size) for size in sizes]
        outs = [np.zeros_like(host) for host in hosts]
        arrays = [await dev.to_device(host[::-1].copy()) for host in hosts]

        async def there_and_back(number: int) -> None:
            await arrays[number].copy_from(hosts[number])
            await arrays[number].copy_to(outs[number])

        async with trio.open_nursery() as nursery:
            for number in range(len(sizes)):
                nursery.start_soon(there_and_back, number)
        assert all(map(same, outs, hosts))
        assert staging(dev).idle


async def takes_of_copies(dev: atomr_trio.Device, monkeypatch: Any, count: int) -> list[tuple[bool, bool]]:
    """Copy from the device in several pieces, and note at each whether all had ended and whether the task polled."""
    array, out = await dev.to_device(np.ones(SHORT_BYTES, np.uint8)), np.zeros(SHORT_BYTES, np.uint8)
    settler, take, seen = core_of(dev).current.settler, OneSlotCopy._take, []

    def note(copy: OneSlotCopy, number: int) -> None:
        seen.append((copy._ended == copy._count, settler.looked_for))
        take(copy, number)

    with monkeypatch.context() as patch:
        patch.setattr(OneSlotCopy, "_take", note)
        await trio.testing.wait_all_tasks_blocked()  # else the settler may still poll, and no caller does
        for _ in range(count):
            await array.copy_to(out)
    assert len(seen) == 2 * count
    assert not settler.looked_for
    assert out.all()
    return seen


async def test_a_task_that_only_takes_its_bytes_leaves_the_looking_to_others(monkeypatch, short_alone):
    async with scenario() as dev:
        short_alone()
        seen = await takes_of_copies(dev, monkeypatch, 10)
        assert not any(looks for ended, looks in seen if ended)


class ReadEarly:
    """The words of the page, of which the lane's counter was read before any command had ended."""

    def __init__(self, words: memoryview[int], counter: int) -> None:
        self.words = words
        self.counter = counter

    def __getitem__(self, index: int) -> int:
        return 0 if index == self.counter else self.words[index]

    def __setitem__(self, index: int, word: int) -> None:
        self.words[index] = word


async def test_pieces_that_end_between_two_looks_leave_the_looking_to_others_too(monkeypatch, short_alone):
    async with scenario() as dev:
        path = core_of(dev).part(ShortCopies)._paths[LANE_COPY_OUT]
        words, settler = path.words, path.settler
        monkeypatch.setattr(path, "words", ReadEarly(words, path.counter))
        settle = settler.settle_finished

        def settle_once_all_have_ended() -> bool:
            while words[path.counter] < path.book.issued:
                pass
            return settle()

        monkeypatch.setattr(settler, "settle_finished", settle_once_all_have_ended)
        short_alone()
        seen = await takes_of_copies(dev, monkeypatch, 1)
        assert all(ended for ended, _ in seen), "the first settling was of all pieces"
        assert not any(looks for _, looks in seen)


# --- order ------------------------------------------------------------------------------------------------------------

ADD = 'extern "C" __global__ void add(int *x, int n) { for (int i = 0; i < 256; i++) x[i] += n; }'


async def test_launches_and_copies_in_turn_stay_on_the_short_way(short_alone, monkeypatch):
    async with scenario() as dev:
        add, x = await dev.nvrtc.compile(ADD, "add"), await dev.to_device(np.zeros(256, np.int32))
        host = np.zeros(256, np.int32)
        for _ in range(3):
            await add.launch(1, 1, x, 256)
            await x.copy_to(host)
            await x.copy_from(host)
        expected = int(host[0])
        short_alone()
        general = core_of(dev).current.order
        with monkeypatch.context() as patch:
            patch.setattr(general, "commit", None)
            for number in range(5):
                await add.launch(1, 1, x, number)
                await x.copy_to(host)
                expected += number
                assert (host == expected).all()
                await x.copy_from(host + 1)
                expected += 1
        assert (await x.to_host() == expected).all()


@pytest.mark.parametrize("size", [256, 1 << 18, 1 << 19])
async def test_a_copy_waits_for_the_kernels_before_it_and_those_behind_it_wait_for_the_copy(size):
    async with scenario() as dev:
        add, x = await dev.nvrtc.compile(ADD, "add"), await dev.to_device(np.zeros(size, np.int32))
        out = np.zeros(size, np.int32)
        await add.launch(1, 1, x, 1)
        async with gated(dev) as gate, trio.open_nursery() as nursery:
            before, copies = submitted(dev, 0), submitted(dev, LANE_COPY_OUT)
            nursery.start_soon(add.launch, 1, 1, x, 5)
            await until(lambda: submitted(dev, 0) == before + 1)
            nursery.start_soon(x.copy_to, out)
            await until(lambda: submitted(dev, LANE_COPY_OUT) == copies + 1)
            nursery.start_soon(add.launch, 1, 1, x, 100)
            await until(lambda: submitted(dev, 0) == before + 2)
            assert not out.any()
            await gate.open()
        assert (out[:256] == 6).all()
        assert (await x.to_host())[:256].tolist() == [106] * 256


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_launch_behind_a_copy_that_is_under_way_waits_for_it(direction):
    async with scenario() as dev:
        add, x = await dev.nvrtc.compile(ADD, "add"), await dev.to_device(np.zeros(256, np.int32))
        for _ in range(2):
            await add.launch(1, 1, x, 0)
            await x.to_host()
        out = np.zeros(256, np.int32)
        async with held_up(dev, direction) as gate, trio.open_nursery() as nursery:
            before = submitted(dev, LANES[direction])
            if direction == "in":
                nursery.start_soon(x.copy_from, np.full(256, 10, np.int32))
            else:
                nursery.start_soon(x.copy_to, out)
            await until(lambda: submitted(dev, LANES[direction]) == before + 1)
            nursery.start_soon(add.launch, 1, 1, x, 1)
            await trio.testing.wait_all_tasks_blocked()
            await gate.open()
        assert (await x.to_host() == (11 if direction == "in" else 1)).all()
        assert not out.any()


# --- cancelling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, SHORT_BYTES])
async def test_a_copy_to_the_device_that_is_left_goes_on(size):
    async with scenario() as dev:
        host, array = numbers(size, np.uint8), await dev.to_device(np.zeros(size, np.uint8))
        async with held_up(dev, "in") as gate:
            before = submitted(dev, LANE_COPY_IN)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(array.copy_from, host)
                await until(lambda: submitted(dev, LANE_COPY_IN) == before + -(-size // SHORT_PIECE))
                nursery.cancel_scope.cancel()
            assert array.state == "ready"
            assert not staging(dev).idle
            await gate.open()
            assert same(await array.to_host(), host)
        assert staging(dev).idle
        assert dev.statistics().actors[0].settled["abandoned"] == -(-size // SHORT_PIECE)


@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize("size", [1000, SHORT_BYTES])
async def test_a_copy_in_a_cancelled_scope_sends_nothing_and_holds_no_slot(direction, size):
    async with scenario() as dev:
        array, out = await dev.to_device(np.ones(size, np.uint8)), np.zeros(size, np.uint8)
        before = submitted(dev, LANES[direction])
        for strided in (False, True):
            there = array.reshape(2, -1)[:, ::2] if strided else array
            with trio.CancelScope() as scope:
                scope.cancel()
                host = out[: there.size].reshape(there.shape)
                await (there.copy_from if direction == "in" else there.copy_to)(host)
            assert scope.cancelled_caught
            assert staging(dev).idle
        assert submitted(dev, LANES[direction]) == before
        assert array.state == "ready"
        assert (await array.to_host() == 1).all()
        assert not out.any()


@pytest.mark.parametrize("size", [1000, SHORT_BYTES])
async def test_a_copy_to_the_host_that_is_left_writes_nothing_more(size):
    async with scenario() as dev:
        array, out = await dev.to_device(np.ones(size, np.uint8)), np.zeros(size, np.uint8)
        async with held_up(dev, "out") as gate:
            before = submitted(dev, LANE_COPY_OUT)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(array.copy_to, out)
                await until(lambda: submitted(dev, LANE_COPY_OUT) > before)
                nursery.cancel_scope.cancel()
            await gate.open()
            await until(lambda: staging(dev).idle)
        assert not out.any()
        assert (await array.to_host() == 1).all()


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["in", "out"])
@pytest.mark.parametrize("size", [1000, SHORT_BYTES])
async def test_a_worker_that_dies_under_a_copy_costs_that_copy(direction, size):
    async with scenario() as dev:
        array, out = await dev.to_device(np.ones(size, np.uint8)), np.zeros(size, np.uint8)
        lost = []

        async def copy() -> None:
            with pytest.raises(ContextLost) as error:
                await (array.copy_from if direction == "in" else array.copy_to)(out)
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
        await until(lambda: staging(dev).idle)
        host = numbers(size, np.uint8)
        for _ in range(2):
            await array.copy_from(host)
            assert same(await array.to_host(), host)
        assert set(core_of(dev).part(ShortCopies)._paths) == {LANE_COPY_IN, LANE_COPY_OUT}


@pytest.mark.sim_only
@pytest.mark.parametrize("size", [1000, SHORT_BYTES])
async def test_a_command_that_fails_alone_fails_the_copy(size):
    async with scenario() as dev:
        array, host = await dev.to_device(np.zeros(size, np.uint8)), numbers(size, np.uint8)
        await array.copy_to(np.zeros(size, np.uint8))
        out = np.zeros(size, np.uint8)
        core_of(dev).current.request_faults(f"cuMemcpyHtoDAsync:1:1,cuMemcpyDtoHAsync:1:{-(-size // SHORT_PIECE)}")
        with pytest.raises(CommandFailed) as failed:
            await array.copy_to(out)
        assert not out[-1000:].any()
        assert (failed.value.status, failed.value.operation) == (1, "memory.copy_out")
        assert array.state == "ready"
        with pytest.raises(CommandFailed) as failed:
            await array.copy_from(host)
        assert (failed.value.status, failed.value.operation) == (1, "memory.copy_in")
        assert array.state == ("ready" if size <= SHORT_PIECE else "torn")
        await array.copy_from(host)
        assert same(await array.to_host(), host)
        await until(lambda: staging(dev).idle)
        assert dev.generation == 1
        assert dev.statistics().actors[0].settled["failed"] == 2


# --- pinned memory ----------------------------------------------------------------------------------------------------


async def test_pinned_memory_goes_the_short_way_in_each_generation(short_alone):
    async with scenario() as dev:
        host = dev.pinned_empty((100, 7), np.float32)
        host[...] = numbers((100, 7), np.float32)
        array = await dev.to_device(host)
        for generation in (1, 2):
            out = dev.pinned_empty((100, 7), np.float32)
            await array.copy_from(host)
            await array.copy_to(out)
            before = submitted(dev, LANE_COPY_OUT)
            out[...] = 0
            await array.copy_to(out)
            await array.copy_from(out)
            await array[10:20].copy_to(out[50:60])
            assert same(np.asarray(out[:50]), np.asarray(host[:50]))
            assert same(np.asarray(out[50:60]), np.asarray(host[10:20]))
            assert submitted(dev, LANE_COPY_OUT) == before + 2
            if generation == 1:
                kill_worker(dev)
                await next_generation(dev, after=1)
        short_alone()
        out[...] = 0
        await array.copy_to(out)
        assert same(np.asarray(out), np.asarray(host))
        assert staging(dev).idle


@pytest.mark.sim_only
@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_copy_behind_a_registration_that_fails_fails_with_it(direction, monkeypatch):
    # The first two registrations are the timeline page's and the staging area's.
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuMemHostRegister:1:3")
    async with scenario() as dev:
        host = dev.pinned_empty(100, np.int32)
        arrays = [await dev.to_device(np.zeros(100, np.int32)) for _ in range(3)]
        failed = []

        async def copy(array: Any) -> None:
            with pytest.raises(CommandFailed) as error:
                await (array.copy_from if direction == "in" else array.copy_to)(host)
            failed.append((error.value.status, error.value.operation))

        sent, form_of = [], CopyPath.form_of_area
        monkeypatch.setattr(CopyPath, "form_of_area", lambda *a: sent.append(a) or form_of(*a))
        before = submitted(dev, LANES[direction])
        async with trio.open_nursery() as nursery:
            for array in arrays:
                nursery.start_soon(copy, array)
        assert len(sent) == 2
        assert failed == [(1, f"memory.copy_{direction}")] * 3
        assert submitted(dev, LANES[direction]) == before + 4
        assert dev.generation == 1
        for array in arrays:
            await (array.copy_from if direction == "in" else array.copy_to)(host)


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, TINY_SLOT + 1, SHORT_PIECE + 3, SHORT_BYTES, SHORT_BYTES + 1, BATCH_IN_BYTES])
async def test_copies_of_a_batch_are_exact(size):
    async with scenario() as dev:
        hosts = [numbers(size, np.uint8, seed=number) for number in range(5)]
        arrays = [await dev.to_device(np.zeros(size, np.uint8)) for _ in hosts]
        outs = [np.zeros(size, np.uint8) for _ in hosts]
        async with dev.batch() as batch:
            for host, array in zip(hosts, arrays, strict=True):
                given = host.copy()
                batch.copy_from(array, given)
                given[:] = 0  # it was read when the verb was called
            await batch.flush()
            for array, out in zip(arrays, outs, strict=True):
                batch.copy_to(array, out)
            news = [batch.to_host(array) for array in arrays]
        assert all(map(same, outs, hosts))
        assert all(map(same, news, hosts))
        assert staging(dev).idle
        actor = dev.statistics().actors[0]
        assert actor.accepted == actor.settled["ok"]


async def test_batches_of_a_generation_send_records_that_its_worker_knows(monkeypatch):
    async with scenario() as dev:
        host, out = numbers((20, 30), np.int32), np.zeros((20, 30), np.int32)
        array = await dev.to_device(host)

        async def there_and_back() -> None:
            out[:] = 0
            async with dev.batch() as batch:
                batch.copy_from(array, host)
                batch.copy_from(array[:, 3:7], host[:, 3:7])
                await batch.flush()
                batch.copy_to(array, out)
                batch.copy_to(array[:, :9], out[:, :9])
            assert same(out, host)

        for generation in (1, 2):
            await there_and_back()
            with monkeypatch.context() as patch:
                patch.setattr(short_copies, "new_identity", None)
                host += 1
                await there_and_back()
            if generation == 1:
                kill_worker(dev)
                await next_generation(dev, after=1)


async def test_copies_and_launches_of_a_batch_are_in_order():
    async with scenario() as dev:
        add, x = await dev.nvrtc.compile(ADD, "add"), await dev.to_device(np.zeros(256, np.int32))
        outs = [np.zeros(256, np.int32) for _ in range(20)]
        async with dev.batch() as batch:
            for number, out in enumerate(outs):
                batch.launch(add, 1, 1, x, 1)
                batch.copy_to(x, out)
                batch.launch(add, 1, 1, x, 1)
                if number % 5 == 4:
                    batch.copy_from(x, np.full(256, 100 * number, np.int32))
        expected = 0
        for number, out in enumerate(outs):
            assert (out == expected + 1).all()
            expected = 100 * number if number % 5 == 4 else expected + 2


async def test_slots_that_the_gpu_has_read_are_used_again_within_a_batch():
    async with scenario() as dev:
        host = numbers(1 << 20, np.uint8)
        array = await dev.to_device(host)
        await array.to_host()
        memory = dev.statistics().memory.staging
        async with dev.batch() as batch:
            for _ in range(40):
                batch.copy_from(array, host)
                ticket = core_of(dev).current.timeline.book(LANE_COPY_IN).issued
                await until(lambda ticket=ticket: core_of(dev).current.page.finished(LANE_COPY_IN) >= ticket)
        assert dev.statistics().memory.staging == memory
        assert staging(dev).idle


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_batch_that_is_left_gives_its_slots_back(direction):
    async with scenario() as dev:
        array, out = await dev.to_device(np.ones(SHORT_BYTES, np.uint8)), np.zeros(SHORT_BYTES, np.uint8)
        async with held_up(dev, direction) as gate:
            with contextlib.suppress(KeyError):
                async with dev.batch() as batch:
                    (batch.copy_from if direction == "in" else batch.copy_to)(array, out)
                    raise KeyError
            assert not staging(dev).idle
            await gate.open()
            await until(lambda: staging(dev).idle)
        assert not out.any()
        assert (await array.to_host() == (0 if direction == "in" else 1)).all()


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_batch_whose_worker_dies_raises_the_loss_once(direction):
    async with scenario() as dev:
        array, out = await dev.to_device(np.ones(SHORT_BYTES, np.uint8)), np.zeros(SHORT_BYTES, np.uint8)
        other = await dev.to_device(np.ones(10, np.uint8))
        async with held_up(dev, direction):
            with pytest.raises(ContextLost):  # noqa: PT012
                async with dev.batch() as batch:
                    for each in (array, other):
                        (batch.copy_from if direction == "in" else batch.copy_to)(each, out[: each.size])
                    kill_worker(dev)
            await next_generation(dev, after=1)
        assert not out.any()
        assert array.state == other.state == ("torn" if direction == "in" else "ready")
        await until(lambda: staging(dev).idle)


@pytest.mark.sim_only
async def test_a_piece_that_fails_in_a_batch_tears_the_array():
    async with scenario() as dev:
        small, large = [await dev.to_device(np.zeros(size, np.uint8)) for size in (10, SHORT_BYTES)]
        core_of(dev).current.request_faults("cuMemcpyHtoDAsync:1:2")
        with pytest.raises(CommandFailed) as failed:  # noqa: PT012
            async with dev.batch() as batch:
                batch.copy_from(small, np.ones(10, np.uint8))
                batch.copy_from(large, np.ones(SHORT_BYTES, np.uint8))
        assert failed.value.operation == "memory.copy_in"
        assert (small.state, large.state) == ("ready", "torn")
        assert staging(dev).idle


async def test_pinned_memory_in_a_batch_is_read_when_the_gpu_comes_to_it():
    async with scenario() as dev:
        host = dev.pinned_empty(1000, np.int32)
        host[:] = 1
        array = await dev.to_device(host)
        async with held_up(dev, "in") as gate:
            async with dev.batch() as batch:
                batch.copy_from(array, host)
                host[:] = 2
                await gate.open()
        assert (await array.to_host() == 2).all()


# --- layouts ----------------------------------------------------------------------------------------------------------

RECTANGLES = {
    "rows": (np.s_[:, 3:90], None),
    "every other row": (np.s_[::2], None),
    "backwards": (np.s_[::-1, 5:50], None),
    "host by columns": (np.s_[:], np.s_[:, ::2]),
    "both": (np.s_[1::3, 8:40], np.s_[:, ::3]),
}
"""Of the device's array, and of a wider one on the host."""


@pytest.mark.parametrize("name", RECTANGLES)
@pytest.mark.parametrize("rows", [1, 7, 250, 1500, 2900])
async def test_rectangles_go_the_short_way_in_both_directions(name, rows, monkeypatch):
    index, on_host = RECTANGLES[name]
    if on_host is not None or name == "backwards":
        rows = min(rows, 250)  # elements that are not packed take the host eight times as long
    async with scenario() as dev:
        whole = numbers((rows, 100), np.int32)
        array = await dev.to_device(whole)
        view = array[index]
        out = np.zeros(view.shape, np.int32)
        if on_host is not None:
            out = np.zeros((view.shape[0], 3 * view.shape[1]), np.int32)[on_host][:, : view.shape[1]]
        general = core_of(dev).current.order
        with monkeypatch.context() as patch:
            patch.setattr(general, "commit", None)
            for _ in range(3):
                await view.copy_to(out)
                assert same(np.ascontiguousarray(out), np.ascontiguousarray(whole[index]))
                out ^= 5
                await view.copy_from(out)
                whole[index] ^= 5
            again = np.zeros_like(whole)
            await array.copy_to(again)
        assert same(again, whole)
        assert staging(dev).idle


@pytest.mark.parametrize("is_large", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(2, 400_000), (3, 300_004), (2600, 400), (130_000, 8)])
async def test_larger_rows_pass_through_one_slot_or_two_smaller_ones(rows, width, is_large, monkeypatch):
    async with scenario() as dev:
        whole = numbers((rows, width // 2), np.int32)
        array, out = await dev.to_device(whole), np.zeros((rows, width // 4), np.int32)
        view, taken, made = array[:, : width // 4], [], []
        begin = RowsCopy.__init__

        def note(copy: RowsCopy, *given: Any) -> None:
            made.append(copy)
            begin(copy, *given)

        monkeypatch.setattr(RowsCopy, "__init__", note)
        if not is_large:
            taken = [staging(dev).acquire_nowait(LARGE_SLOT) for _ in range(LARGE_SLOTS)]
        await view.copy_to(out)
        assert same(out, np.ascontiguousarray(whole[:, : width // 4]))
        await view.copy_from(out ^ 5)
        whole[:, : width // 4] ^= 5
        for slot in taken:
            slot.release()
        assert len(made) == 2 * is_large
        assert same(await array.to_host(), whole)
        assert staging(dev).idle


@hypothesis.given(*[st.integers(1, 40)] * 4)
def test_parts_of_rows_are_all_of_them_and_not_too_large(width: int, height: int, first: int, most: int) -> None:
    rows = Box(width, height, 1, 7, 3 * width, 3 * width * height, 0, width, width * height)
    begin = 0
    for number, part in enumerate(parts_of_rows(rows, first, most)):
        assert (part.other_offset, part.offset) == (begin * width, 7 + 3 * begin * width)
        assert part.height == 1 or part.size <= (most if number else first)
        assert (part.width, part.pitch, part.other_pitch) == (width, 3 * width, width)
        begin += part.height
    assert begin == height


async def test_what_is_no_rectangle_goes_the_general_way():
    async with scenario() as dev:
        host = numbers((6, 8, 10, 4), np.int16)
        array = await dev.to_device(host)
        for index in (np.s_[::2, ::2, ::2, ::2], np.s_[:, 1:5, :, :2], np.s_[..., 1]):
            out = np.zeros_like(host[index])
            await array[index].copy_to(out)
            assert same(out, np.ascontiguousarray(host[index]))
            await array[index].copy_from(out * 3)
            host[index] *= 3
        assert same(await array.to_host(), host)


@pytest.mark.sim_only
async def test_a_rectangle_that_is_refused_fails_the_copy():
    async with scenario() as dev:
        array = await dev.to_device(np.zeros((20, 30), np.float32))
        await array[:, :5].to_host()
        for copy in (array[:, :5].copy_to, array[:, :5].copy_from):
            core_of(dev).current.request_faults("cuMemcpy2DAsync:1:1")
            with pytest.raises(CommandFailed, match="cuMemcpy2DAsync") as failed:
                await copy(np.ones((20, 5), np.float32))
            assert failed.value.status == 1
        await array[:, :5].copy_from(np.ones((20, 5), np.float32))
        assert (await array.to_host()).sum() == 100
        assert staging(dev).idle


@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("name", RECTANGLES)
async def test_rectangles_go_the_short_way_in_a_batch(name, staged, monkeypatch):
    index, on_host = RECTANGLES[name]
    rows = 1500 if on_host is None and name != "backwards" else 250
    async with scenario() as dev:
        whole = numbers((rows, 100), np.int32)
        array = await dev.to_device(whole)
        view = array[index]
        outs = [np.zeros(view.shape, np.int32) for _ in range(3)]
        if on_host is not None:
            wide = [np.zeros((view.shape[0], 3 * view.shape[1]), np.int32) for _ in outs]
            outs = [each[on_host][:, : view.shape[1]] for each in wide]
        held = [] if staged else staging(dev).acquire_several(SMALL_SLOT, SMALL_SLOTS)
        held += [] if staged else staging(dev).acquire_several(MEDIUM_SLOT, MEDIUM_SLOTS)
        async with dev.batch() as batch:
            for copy in (batch.copy_to, batch.copy_from):  # the batch's own area is made known to both lanes
                copy(view, whole[index].copy())
                await batch.flush()
            general = core_of(dev).current.order
            with monkeypatch.context() as patch:
                patch.setattr(general, "commit", None)
                for out in outs:
                    batch.copy_to(view, out)
                await batch.flush()
                for out in outs:
                    assert (out == whole[index]).all()
                    out ^= 5
                    batch.copy_from(view, out)
                await batch.flush()
            again = batch.to_host(array)
        whole[index] ^= 5
        assert same(again, whole)
        for slot in held:
            slot.release()
        assert staging(dev).idle


async def test_a_rectangle_that_cannot_be_read_sends_nothing_in_a_batch(monkeypatch):
    async with scenario() as dev:
        array = await dev.to_device(np.zeros((20, 30), np.float32))
        before = submitted(dev, LANE_COPY_IN)

        def fail(*_: object) -> None:
            raise MemoryError

        async with dev.batch() as batch:
            with monkeypatch.context() as patch:
                patch.setattr(copy_plan._Plan, "load", fail)
                with pytest.raises(MemoryError):
                    batch.copy_from(array[:, :5], np.ones((20, 5), np.float32))
            assert staging(dev).idle
            assert submitted(dev, LANE_COPY_IN) == before
            batch.copy_from(array[:, :5], np.ones((20, 5), np.float32))
        assert (await array.to_host()).sum() == 100


@pytest.mark.sim_only
async def test_a_rectangle_that_is_refused_in_a_batch_fails_with_it():
    async with scenario() as dev:
        array = await dev.to_device(np.zeros((20, 30), np.float32))
        out = np.zeros((20, 5), np.float32)
        core_of(dev).current.request_faults("cuMemcpy2DAsync:1:2")
        with pytest.raises(CommandFailed, match="cuMemcpy2DAsync") as failed:  # noqa: PT012
            async with dev.batch() as batch:
                batch.copy_from(array[:, :5], np.ones((20, 5), np.float32))
                batch.copy_to(array[:, :5], out)
        assert failed.value.operation == "memory.copy_out"
        assert not out.any()
        assert (await array.to_host()).sum() == 100
        assert staging(dev).idle
