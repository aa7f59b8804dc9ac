"""Large copies, strided ones, pinned memory, and what becomes of each when its caller leaves or the worker dies."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import resource
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import atomr_trio
from atomr_trio import (
    CommandFailed,
    ContextLost,
    CopyProgress,
    DeviceClosed,
    DeviceFailed,
    InvalidArgument,
    OutOfHostMemory,
    RestartPolicy,
    StaleArray,
    StandbyLost,
)
from atomr_trio._device.device import core_of
from atomr_trio._generation.settler import SPIN_SECONDS, Settler
from atomr_trio._transfers import (
    batch_areas as _batch_areas,
    batch_copies,
    copies,
    copy_flow,
    copy_plan,
    copy_stream,
    long_copies,
    short_copies,
    short_ways,
)
from atomr_trio._transfers.batch_areas import BatchSlots
from atomr_trio._transfers.copy_plan import (
    MANY,
    THREAD_BYTES,
    THROUGH_HOST,
    TO_DEVICE,
    TO_HOST,
    plan_copy_in,
    plan_copy_out,
)
from atomr_trio._transfers.crew import Crew
from atomr_trio._transfers.long_copies import LONG_ALONE_BYTES
from atomr_trio._transfers.short_copies import SHORT_BYTES
from atomr_trio._transfers.staging import LARGE_SLOT, LARGE_SLOTS, SMALL_SLOT, SMALL_SLOTS
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._wire.protocol import LANE_COMPUTE, LANE_COPY_IN, LANE_COPY_OUT
from atomr_trio.testing import WorkerPool
from support import chosen_backend, open_test_device, set_constant, set_constant_in
from support.rogue import endless_kernel, kill_worker, next_generation, process_exists, until, worker_pid
from support.strategies import numbers, same

pytestmark = pytest.mark.used_workers

KIB = 1024
PIECE = 64 * KIB
"""Bytes of a piece where copies are made small, so that little ones take every turn that large ones take."""


@contextlib.asynccontextmanager
async def scenario(**options: Any):
    with trio.fail_after(60):
        async with open_test_device(**options) as dev:
            yield dev


@pytest.fixture
def small_pieces(monkeypatch):
    """Copies are cut into small pieces, and helpers do even the smallest memcpy; none goes the short way."""
    set_constant_in(monkeypatch, (short_copies, short_ways, batch_copies), "SHORT_BYTES", 0)
    set_constant(monkeypatch, short_ways, "SHORT_PIECE", 0)
    set_constant(monkeypatch, short_ways, "STRETCH_BYTES", 0)
    set_constant(monkeypatch, long_copies, "LONG_ALONE_BYTES", {TO_DEVICE: 0, TO_HOST: 0})
    set_constant(monkeypatch, long_copies, "LONG_BYTES", 0)
    set_constant(monkeypatch, batch_copies, "BATCH_IN_BYTES", 0)
    set_constant_in(monkeypatch, (copies, copy_plan, copy_flow, copy_stream), "LARGE_SLOT", PIECE)
    set_constant_in(monkeypatch, (copies, copy_plan, copy_flow, copy_stream), "THREAD_BYTES", 1)


def submitted(dev: atomr_trio.Device, lane: int) -> int:
    return dev.statistics().lanes[lane].submitted


# --- sizes and layouts ------------------------------------------------------------------------------------------------


BORDERS = (SMALL_SLOT, THREAD_BYTES, LARGE_SLOT, 3 * LARGE_SLOT)


@pytest.mark.parametrize("border", BORDERS)
async def test_every_byte_arrives_on_either_side_of_a_border(border):
    async with scenario() as dev:
        for size in (border - 1, border, border + 1):
            host = numbers(size, np.uint8, seed=size)
            async with trio.open_nursery() as nursery:
                array = dev.empty(size, np.uint8)
                nursery.start_soon(array.copy_from, host)
            out = np.zeros_like(host)
            await array.copy_to(out)
            assert same(out, host)
            assert same(await array.to_host(), host)
            array.free()
        assert core_of(dev).part(Transfers).staging.idle


@pytest.mark.parametrize("size", [SMALL_SLOT, LARGE_SLOT])
async def test_what_fits_into_a_slot_is_one_command(size):
    async with scenario() as dev:
        array = dev.empty(size, np.uint8)
        for lane, copy in ((LANE_COPY_IN, array.copy_from), (LANE_COPY_OUT, array.copy_to)):
            before = submitted(dev, lane)
            await copy(np.ones(size, np.uint8))
            assert submitted(dev, lane) == before + 1


async def test_small_copies_start_no_thread(monkeypatch):
    async with scenario() as dev:
        monkeypatch.setattr(Crew, "submit", None)
        core_of(dev).part(Transfers).crew.beside = 0
        host = numbers(SHORT_BYTES, np.uint8)
        first = await dev.to_device(host[: THREAD_BYTES - 1])
        assert same(await first.to_host(), host[: THREAD_BYTES - 1])
        assert same(await (await dev.to_device(host)).to_host(), host)
        long = numbers(LONG_ALONE_BYTES[TO_HOST], np.uint8)
        assert same(await (await dev.to_device(long)).to_host(), long)
        assert core_of(dev).part(Transfers).staging.idle
        with pytest.raises(TypeError):
            await dev.to_device(np.zeros(LONG_ALONE_BYTES[TO_DEVICE] + 1, np.uint8))


LAYOUTS = {
    "as it is": lambda host: host,
    "Fortran": np.asfortranarray,
    "every other": lambda host: np.repeat(host, 2, axis=1)[:, ::2],
    "reversed": lambda host: np.ascontiguousarray(host[::-1, :, ::-1])[::-1, :, ::-1],
    "unaligned": lambda host: np.frombuffer(bytearray(b"x") + host.tobytes(), host.dtype, offset=1).reshape(host.shape),
}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.complex128, ml_dtypes.bfloat16])
async def test_a_host_of_any_layout_is_read_and_written_piece_by_piece(dtype):
    async with scenario() as dev:
        base = numbers((37, 41, 61), dtype)
        array, turned = dev.empty(base.shape, dtype), dev.empty(base.shape[::-1], dtype)
        for name, lay in LAYOUTS.items():
            host = lay(base.copy())
            await array.fill(0)
            await array.copy_from(host)
            assert same(await array.to_host(), base), name
            host[...] = np.zeros(1, dtype)[0]
            await array.copy_to(host)
            assert same(np.ascontiguousarray(host), base), name
            await turned.fill(0)
            await turned.copy_from(host.T)
            assert same(await turned.to_host(), np.ascontiguousarray(base.T)), name
        assert core_of(dev).part(Transfers).staging.idle


VIEWS = {
    "rows": (np.s_[1::2, 5], 1),
    "columns": (np.s_[:, :, 3:9], 1),
    "boxes": (np.s_[::2, ::3], 1),
    "backwards": (np.s_[::-1, ::-3, ::-1], 1),
    "elements": (np.s_[::2, ::3, ::2], 1),
    "many": (np.s_[::2, ::2, ::2, ::2], -(-8 * 6 // MANY)),
}


@pytest.mark.parametrize("name", VIEWS)
async def test_strided_views_take_few_commands_in_every_direction(name):
    index, commands = VIEWS[name]
    async with scenario() as dev:
        shape = (16, 12, 10, 6) if name == "many" else (16, 12, 10)
        host = numbers(shape, np.int32)
        array, other = await dev.to_device(host), dev.zeros(shape, np.int32)
        await other.to_host()
        view = array[index]
        before = submitted(dev, LANE_COPY_OUT)
        assert same(await view.to_host(), np.ascontiguousarray(host[index]))
        assert submitted(dev, LANE_COPY_OUT) == before + commands
        before, expected = submitted(dev, LANE_COPY_IN), host.copy()
        expected[index] = numbers(view.shape, np.int32, seed=1)
        await view.copy_from(numbers(view.shape, np.int32, seed=1))
        assert submitted(dev, LANE_COPY_IN) == before + commands
        assert same(await array.to_host(), expected)
        before, moved = submitted(dev, LANE_COMPUTE), np.zeros_like(host)
        moved[index] = expected[index]
        await other[index].copy_from(view)
        assert submitted(dev, LANE_COMPUTE) == before + commands
        assert same(await other.to_host(), moved)


async def test_a_copy_that_would_take_a_command_for_each_element_goes_through_the_host():
    async with scenario() as dev:
        host = numbers(100 * THROUGH_HOST, np.int32)
        source, target = await dev.to_device(host), dev.empty(host.shape, np.int32)
        before = submitted(dev, LANE_COMPUTE)
        await target.copy_from(source[::-1])
        assert submitted(dev, LANE_COMPUTE) == before
        assert same(await target.to_host(), np.ascontiguousarray(host[::-1]))
        await target[:THROUGH_HOST].copy_from(source[THROUGH_HOST - 1 :: -1])
        assert submitted(dev, LANE_COMPUTE) == before + THROUGH_HOST // MANY
        assert same(await target[:THROUGH_HOST].to_host(), np.ascontiguousarray(host[THROUGH_HOST - 1 :: -1]))
        matrix, square = host[: 160 * 160].reshape(160, 160), source[: 160 * 160].reshape(160, 160)
        across = target[: 160 * 160].reshape(160, 160)
        await across[::-1].copy_from(square[:, ::-1])
        assert same(await across.to_host(), np.ascontiguousarray(matrix[::-1, ::-1]))


async def test_copies_of_many_boxes_behind_a_long_kernel_wait_and_are_exact():
    async with scenario() as dev:
        host = numbers((8, 6, 4, 6), np.int32)
        source, targets = await dev.to_device(host), [dev.zeros(host.shape, np.int32) for _ in range(8)]
        index = np.s_[::2, ::2, ::2, ::2]
        for target in targets:
            await target.to_host()
        async with trio.open_nursery() as nursery:
            async with endless_kernel(dev) as kernel:
                before = submitted(dev, LANE_COMPUTE)
                for target in targets:
                    nursery.start_soon(target[index].copy_from, source[index])
                await until(lambda: submitted(dev, LANE_COMPUTE) == before + len(targets))
                # The worker goes on answering while its driver has no room for them.
                assert same(await source.to_host(), host)
                await kernel.end()
        expected = np.zeros_like(host)
        expected[index] = host[index]
        for target in targets:
            assert same(await target.to_host(), expected)


# --- many at a time ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pieces")
async def test_more_copies_at_once_than_there_are_slots_are_all_exact():
    async with scenario() as dev:
        core_of(dev).part(Transfers).crew.size = 4
        hosts = [numbers((5 + number) * PIECE + number, np.uint8, seed=number) for number in range(SMALL_SLOTS // 4)]
        seen: dict[int, Any] = {}

        async def there_and_back(number: int) -> None:
            array = await dev.to_device(hosts[number])
            seen[number] = await array.to_host()

        async with trio.open_nursery() as nursery:
            for number in range(len(hosts)):
                nursery.start_soon(there_and_back, number)
        assert all(same(seen[number], host) for number, host in enumerate(hosts))
        assert core_of(dev).part(Transfers).staging.idle


@pytest.mark.long
async def test_a_copy_leaves_slots_to_others_in_turn():
    async with scenario() as dev:
        taken = [core_of(dev).part(Transfers).staging.acquire_nowait(LARGE_SLOT) for _ in range(LARGE_SLOTS)]
        order = []

        async def copy(name: str, count: int) -> None:
            await dev.to_device(np.ones(count * LARGE_SLOT, np.uint8))
            order.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy, "long", copy_stream.STREAM_PIECES + 1)
            await wait_all_tasks_blocked()
            nursery.start_soon(copy, "short", 1)
            await wait_all_tasks_blocked()
            taken[0].release()  # to the long one, and then to who waits for it first
            await until(lambda: order)
            for slot in taken[1:]:
                slot.release()
        assert order == ["short", "long"]
        assert core_of(dev).part(Transfers).staging.idle


# --- helpers ----------------------------------------------------------------------------------------------------------


class Work:
    """A job that waits to be let go."""

    def __init__(self) -> None:
        self.begun, self.go, self.over = threading.Event(), threading.Event(), trio.Event()
        self.threads: list[threading.Thread] = []
        self.tells = True

    def run(self) -> None:
        self.threads.append(threading.current_thread())
        self.begun.set()
        self.go.wait(20)

    def ended(self) -> None:
        self.threads.append(threading.current_thread())
        self.over.set()


async def test_as_many_helpers_as_there_may_be_work_at_a_time_and_go_when_nothing_is_left():
    crew, jobs = Crew(2), [Work() for _ in range(5)]
    with trio.fail_after(20):
        for job in jobs:
            crew.submit(job)
        assert [job.begun.wait(10) for job in jobs[:2]] == [True, True]
        assert repr(crew) == "<Crew: 2 of 2 at work, 3 jobs waiting>"
        assert crew.withdraw(jobs[4])
        assert not crew.withdraw(jobs[4])
        assert not crew.withdraw(jobs[0])
        for job in jobs:
            job.go.set()
        for job in jobs[:4]:
            await job.over.wait()
        await until(lambda: repr(crew) == "<Crew: 0 of 2 at work, 0 jobs waiting>")
    assert not jobs[4].begun.is_set()
    main = threading.current_thread()
    assert all(helper is not main and teller is main for helper, teller in (job.threads for job in jobs[:4]))


async def test_without_a_thread_to_be_had_a_job_is_refused_unless_a_helper_is_there(monkeypatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    crew, first, second = Crew(2), Work(), Work()
    with trio.fail_after(20):
        crew.submit(first)
        with monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "start_thread_soon", refuse)
            crew.submit(second)
        first.go.set()
        second.go.set()
        await second.over.wait()
        await until(lambda: repr(crew).startswith("<Crew: 0"))
        monkeypatch.setattr(trio.lowlevel, "start_thread_soon", refuse)
        with pytest.raises(RuntimeError, match="start new thread"):
            crew.submit(Work())
        assert repr(crew) == "<Crew: 0 of 2 at work, 0 jobs waiting>"


class Hold:
    """Holds memcpys of one kind in their helpers until `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.begun, self.go, self.count = threading.Event(), threading.Event(), 0
        copy = getattr(copy_plan._Plan, name)

        def held(plan: Any, piece: Any, memory: Any) -> None:
            self.count += 1
            self.begun.set()
            assert self.go.wait(20)
            copy(plan, piece, memory)

        monkeypatch.setattr(copy_plan._Plan, name, held)


@pytest.fixture
def hold(monkeypatch) -> Iterator[Any]:
    held: list[Hold] = []

    def make(name: str) -> Hold:
        held.append(Hold(monkeypatch, name))
        return held[-1]

    yield make
    for each in held:
        each.go.set()


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.usefixtures("small_pieces")
async def test_a_copy_to_the_device_is_left_at_once_while_helpers_are_still_reading(hold):
    async with scenario() as dev:
        core_of(dev).part(Transfers).crew.size = 2
        host = numbers(5 * PIECE, np.uint8)
        array = await dev.to_device(host)
        reading = hold("load")
        scope = trio.CancelScope()

        async def overwrite() -> None:
            with scope:
                await array.copy_from(np.zeros_like(host))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(overwrite)
            await until(lambda: reading.count == 2)
            scope.cancel()
        assert scope.cancelled_caught
        assert array.state == "torn"
        assert not core_of(dev).part(Transfers).staging.idle
        reading.go.set()
        await until(lambda: core_of(dev).part(Transfers).staging.idle)
        assert reading.count == 2, "what no helper had begun never runs"
        await array.copy_from(host)
        assert same(await array.to_host(), host)


@pytest.mark.usefixtures("small_pieces")
async def test_a_copy_to_the_host_is_left_only_when_no_helper_writes_any_more(hold):
    async with scenario() as dev:
        core_of(dev).part(Transfers).crew.size = 2
        host = numbers(5 * PIECE, np.uint8)
        array, out = await dev.to_device(host), np.zeros(5 * PIECE, np.uint8)
        writing = hold("store")
        scope = trio.CancelScope()
        left = trio.Event()

        async def fetch() -> None:
            with scope:
                await array.copy_to(out)
            left.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await until(lambda: writing.count == 2)
            scope.cancel()
            await wait_all_tasks_blocked()
            assert not left.is_set()
            writing.go.set()
            await left.wait()
        assert scope.cancelled_caught
        seen = out.copy()
        await until(lambda: core_of(dev).part(Transfers).staging.idle)
        assert writing.count == 2
        assert same(out, seen)
        assert np.count_nonzero(seen) <= 2 * PIECE


async def test_a_copy_that_waits_for_a_slot_can_be_left():
    async with scenario() as dev:
        array = dev.zeros(2 * LARGE_SLOT, np.uint8)
        taken = [core_of(dev).part(Transfers).staging.acquire_nowait(LARGE_SLOT) for _ in range(LARGE_SLOTS)]
        for copy in (array.copy_from, array.copy_to):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(copy, np.ones(2 * LARGE_SLOT, np.uint8))
                    await wait_all_tasks_blocked()
                    scope.cancel()
            assert scope.cancelled_caught
        for slot in taken:
            slot.release()
        assert core_of(dev).part(Transfers).staging.idle
        assert not (await array.to_host()).any()


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("name", ["load", "store"])
async def test_what_a_memcpy_raises_reaches_the_caller_and_every_slot_comes_back(name, monkeypatch):
    async with scenario() as dev:
        array = await dev.to_device(numbers(40 * PIECE, np.uint8))
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise ZeroDivisionError("a test")

            patch.setattr(copy_plan._Plan, name, fail)
            with pytest.raises(ZeroDivisionError):
                await (array.copy_from if name == "load" else array.copy_to)(np.zeros(40 * PIECE, np.uint8))
        await until(lambda: core_of(dev).part(Transfers).staging.idle)
        if name == "load":
            await array.copy_from(numbers(40 * PIECE, np.uint8))
        assert array.state == "ready"
        assert same(await array.to_host(), numbers(40 * PIECE, np.uint8))


async def test_a_copy_whose_helper_outlives_the_device_ends_in_peace(hold, monkeypatch):
    set_constant_in(monkeypatch, (copies, copy_plan, copy_flow, copy_stream), "THREAD_BYTES", 1)
    async with scenario() as dev:
        reading = hold("load")
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(dev.to_device, np.ones(10, np.uint8))
                await until(lambda: reading.count == 1)
                scope.cancel()
    reading.go.set()
    await until(lambda: repr(core_of(dev).part(Transfers).crew).startswith("<Crew: 0"))


# --- streams ----------------------------------------------------------------------------------------------------------


def stand_still_until(condition: Callable[[], bool]) -> None:
    """Hold the event loop, as a library does that waits for the GPU; for 20 s at most."""
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("helpers", [1, 2, 5])
async def test_streams_are_exact_with_any_number_of_slots_and_helpers(slots, helpers, monkeypatch):
    set_constant(monkeypatch, copy_stream, "STREAM_SLOTS", slots)
    async with scenario() as dev:
        core_of(dev).part(Transfers).crew.size = helpers
        array = dev.empty(40 * PIECE + 3, np.uint8)
        for seed in range(3):
            host = numbers(40 * PIECE + 3, np.uint8, seed=seed)
            await array.copy_from(host)
            assert same(await array.to_host(), host)
        assert core_of(dev).part(Transfers).staging.idle


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_large_copy_takes_few_commands(direction):
    async with scenario() as dev:
        array = dev.empty((copy_stream.STREAM_PIECES + 1) * PIECE, np.uint8)
        lane = LANE_COPY_IN if direction == "in" else LANE_COPY_OUT
        await (array.copy_from if direction == "in" else array.copy_to)(np.ones(array.nbytes, np.uint8))
        assert submitted(dev, lane) == 2


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("direction", ["in", "out"])
async def test_large_copies_at_the_same_time_in_one_direction_are_exact(direction):
    async with scenario() as dev:
        core_of(dev).part(Transfers).crew.size = 3
        hosts = [numbers(50 * PIECE + number, np.uint8, seed=number) for number in range(4)]
        outs = [np.zeros_like(host) for host in hosts]
        arrays = [dev.empty(host.shape, np.uint8) for host in hosts]
        if direction == "out":
            for array, host in zip(arrays, hosts, strict=True):
                await array.copy_from(host)
        async with trio.open_nursery() as nursery:
            for array, host, out in zip(arrays, hosts, outs, strict=True):
                nursery.start_soon(*((array.copy_from, host) if direction == "in" else (array.copy_to, out)))
        for array, host, out in zip(arrays, hosts, outs, strict=True):
            assert same(await array.to_host() if direction == "in" else out, host)
        assert core_of(dev).part(Transfers).staging.idle


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_stream_that_is_left_in_the_middle_lets_the_lane_go(direction, hold):
    async with scenario() as dev:
        host = numbers((copy_stream.STREAM_PIECES + 36) * PIECE, np.uint8)
        array, other = await dev.to_device(host), await dev.to_device(host[::-1].copy())
        held = hold("load" if direction == "in" else "store")
        lane = LANE_COPY_IN if direction == "in" else LANE_COPY_OUT
        before = submitted(dev, lane)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.copy_from if direction == "in" else array.copy_to, np.zeros_like(host))
            await until(lambda: submitted(dev, lane) >= before + 2 and held.count > 0)
            held.go.set()
            nursery.cancel_scope.cancel()
        assert array.state == ("torn" if direction == "in" else "ready")
        out = np.zeros_like(host)
        await other.copy_from(host)
        await other.copy_to(out)
        assert same(out, host)
        await until(lambda: core_of(dev).part(Transfers).staging.idle)
        assert dev.generation == 1


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.usefixtures("small_pieces")
async def test_the_lane_goes_on_although_the_event_loop_stands_still(hold, monkeypatch):
    set_constant(monkeypatch, copy_stream, "STREAM_PIECES", 16)
    set_constant(monkeypatch, copy_stream, "STREAM_SLOTS", 11)
    async with scenario() as dev:
        array, held = await dev.to_device(np.zeros(30 * PIECE, np.uint8)), hold("load")
        before, page = submitted(dev, LANE_COPY_IN), core_of(dev).current.page
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.copy_from, np.ones(30 * PIECE, np.uint8))
            await until(lambda: submitted(dev, LANE_COPY_IN) == before + 2 and held.count > 0)
            nursery.cancel_scope.cancel()
        assert page.finished(LANE_COPY_IN) == before
        held.go.set()
        stand_still_until(lambda: page.finished(LANE_COPY_IN) >= before + 2)
        assert page.finished(LANE_COPY_IN) == before + 2


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.usefixtures("small_pieces")
async def test_a_stream_that_is_left_when_the_helpers_are_done_goes_on(monkeypatch):
    async with scenario() as dev:
        host = numbers(2 * copy_stream.STREAM_SLOTS * PIECE, np.uint8)
        array = await dev.to_device(np.zeros_like(host))
        with monkeypatch.context() as patch:
            patch.setattr(core_of(dev).current.settler, "settle_finished", lambda: False)
            async with trio.open_nursery() as nursery:
                before = submitted(dev, LANE_COPY_IN)
                nursery.start_soon(array.copy_from, host)
                await until(
                    lambda: (
                        submitted(dev, LANE_COPY_IN) > before
                        and repr(core_of(dev).part(Transfers).crew).startswith("<Crew: 0")
                    )
                )
                nursery.cancel_scope.cancel()
        assert array.state == "ready"
        assert same(await array.to_host(), host)
        await until(lambda: core_of(dev).part(Transfers).staging.idle)


async def test_helpers_that_wait_for_the_gpu_do_not_keep_others_from_copying():
    async with scenario() as dev:
        core_of(dev).part(Transfers).crew.size = 2
        host = numbers(copy_stream.STREAM_SLOTS * LARGE_SLOT, np.uint8)
        waiting, free = await dev.to_device(host), dev.empty(3 * LARGE_SLOT, np.uint8)
        before, out = submitted(dev, LANE_COPY_OUT), np.zeros_like(host)
        async with trio.open_nursery() as nursery:
            async with endless_kernel(dev, waiting) as kernel:
                nursery.start_soon(waiting.copy_to, out)
                await until(lambda: submitted(dev, LANE_COPY_OUT) == before + 1)
                await free.copy_from(host[: free.nbytes])
                assert not out.any()
                await kernel.end()
        assert same(out, host)
        assert same(await free.to_host(), host[: free.nbytes])


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_device_that_is_closed_in_the_middle_of_a_stream_lets_its_helpers_go(direction, hold):
    ends: list[BaseException] = []

    async def copy(array: Any, out: Any) -> None:
        try:
            await (array.copy_from if direction == "in" else array.copy_to)(out)
        except DeviceClosed as closed:
            ends.append(closed)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            async with open_test_device(close_timeout=0.1) as dev:
                array = await dev.to_device(np.ones(40 * PIECE, np.uint8))
                held = hold("load" if direction == "in" else "store")
                nursery.start_soon(copy, array, np.zeros(40 * PIECE, np.uint8))
                await until(lambda: held.count > 0)
            held.go.set()
        await until(lambda: repr(core_of(dev).part(Transfers).crew).startswith("<Crew: 0"))
    assert len(ends) == 1


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.usefixtures("small_pieces")
async def test_without_a_thread_to_be_had_a_stream_is_refused_and_leaves_nothing(monkeypatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with scenario() as dev:
        host = numbers(9 * PIECE, np.uint8)
        array = await dev.to_device(host)
        await until(lambda: repr(core_of(dev).part(Transfers).crew).startswith("<Crew: 0"))
        with monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "start_thread_soon", refuse)
            with pytest.raises(OutOfHostMemory, match="no helper can copy: no thread can be started: RLIMIT_NPROC"):
                await array.copy_from(np.zeros_like(host))
        assert core_of(dev).part(Transfers).staging.idle
        assert same(await array.to_host(), host)


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.usefixtures("small_pieces")
async def test_what_the_host_takes_for_its_part_is_not_held_against_the_worker(hold):
    async with scenario(hang_timeout=5) as dev:
        array = await dev.to_device(np.zeros(40 * PIECE, np.uint8))
        held, before = hold("load"), submitted(dev, LANE_COPY_IN)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(array.copy_from, np.ones(40 * PIECE, np.uint8))
            await until(lambda: submitted(dev, LANE_COPY_IN) > before)
            for moment in (0, 1000):
                core_of(dev).current.watch.check_hang(time.monotonic() + moment)
            assert core_of(dev).current.loss is None
            held.go.set()
        assert (await array.to_host() == 1).all()


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_worker_that_dies_in_the_middle_costs_the_copy_and_nothing_else(direction, hold):
    async with scenario(restart_policy=RestartPolicy(intensity=10)) as dev:
        host = numbers((LARGE_SLOTS + 4) * LARGE_SLOT + 7, np.uint8)
        array = await dev.to_device(host)
        lane = LANE_COPY_IN if direction == "in" else LANE_COPY_OUT
        before = submitted(dev, lane)
        failures = []
        held = hold("load" if direction == "in" else "store")

        async def copy() -> None:
            try:
                await (array.copy_from(host[::-1]) if direction == "in" else array.to_host())
            except ContextLost as lost:
                failures.append(lost)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(copy)
            await until(lambda: submitted(dev, lane) > before and held.count > 0)
            kill_worker(dev)
            # Till then a GPU goes on with what was queued, and would come to the end of a copy that nobody holds up.
            await next_generation(dev, 1)
            held.go.set()
        assert [lost.generation for lost in failures] == [1]
        await until(lambda: core_of(dev).part(Transfers).staging.idle)
        if direction == "in":
            assert array.state == "torn"
            with pytest.raises(StaleArray):
                await array.to_host()
            await array.copy_from(host)
        assert same(await array.to_host(), host)


# --- pinned memory ----------------------------------------------------------------------------------------------------


def pinned_descriptors(pid: int | str = "self") -> int:
    """How many descriptors of pinned memory a process has open."""
    names = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(os.readlink(link))
    return sum("atomr-trio-pinned" in name for name in names)


def pinned_mappings(pid: int | str = "self") -> int:
    """How many pieces of pinned memory a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("atomr-trio-pinned")


async def test_pinned_arrays_are_copied_by_one_command_without_a_slot(monkeypatch):
    async with scenario() as dev:
        monkeypatch.setattr(core_of(dev).part(Transfers).staging, "has_free", None)
        size = 40 << 20
        host = dev.pinned_empty(size, np.uint8)
        host[:] = expected = numbers(size, np.uint8)
        array = await dev.to_device(host)
        assert submitted(dev, LANE_COPY_IN) == 2, "the registration and the copy"
        host[:] = 0
        await array.copy_to(host)
        assert submitted(dev, LANE_COPY_OUT) == 2
        assert same(host, expected)
        part = host[100 : LARGE_SLOT + 103]
        part[:] = 7
        await array[: part.size].copy_from(part)
        assert submitted(dev, LANE_COPY_IN) == 3
        await array.copy_to(host)
        assert (host[: part.size + 100] == np.r_[np.full(part.size, 7, np.uint8), expected[part.size :][:100]]).all()
        assert same(host[part.size + 100 :], expected[part.size + 100 :])


async def test_a_pinned_array_is_a_numpy_array_like_any_other():
    shapes = ((), (0,), (5,), 7, [2, 3], (3, 0, 2), (64, 33, 5))
    async with scenario() as dev:
        for shape, dtype in itertools.product(shapes, (np.bool_, np.float32, np.complex128, "bfloat16")):
            host = dev.pinned_empty(shape, dtype)
            plain = np.empty(shape, host.dtype)
            assert type(host) is np.ndarray
            assert (host.shape, host.dtype.name) == (plain.shape, np.dtype(dtype).name)
            assert host.flags.c_contiguous
            assert host.flags.writeable
            host[...] = plain[...] = np.ones(1, host.dtype)[0]
            array = await dev.to_device(host)
            assert same(await array.to_host(), plain)
            await array.copy_to(host)
            assert same(host, plain)


async def test_what_cannot_be_pinned_is_refused():
    async with scenario() as dev:
        for shape in (-1, (2, -3), 1.5, "x"):
            with pytest.raises(InvalidArgument):
                dev.pinned_empty(shape)
        with pytest.raises(InvalidArgument):
            dev.pinned_empty(3, object)
        with pytest.raises(OutOfHostMemory, match="bytes of host memory are left") as refused:
            dev.pinned_empty(1 << 55, np.uint8)
        assert isinstance(refused.value, MemoryError)
    with pytest.raises(DeviceClosed):
        dev.pinned_empty(3)


async def test_strided_views_on_either_side_go_with_pinned_memory_too():
    async with scenario() as dev:
        host, device = dev.pinned_empty((20, 30, 8), np.int16), dev.zeros((40, 60, 8), np.int16)
        host[...] = values = numbers(host.shape, np.int16)
        view = device[::2, ::2]
        await view.copy_from(host)  # boxes, straight from pinned memory
        host[...] = 0
        await view.copy_to(host)
        assert same(np.ascontiguousarray(host), values)
        assert dev.statistics().lanes[LANE_COPY_OUT].submitted == 2
        for index in (np.s_[:, ::3], np.s_[::-1], np.s_[..., 2]):
            # The host's side is strided: such views go through slots.
            part = np.ascontiguousarray(values[index])
            array = await dev.to_device(host[index])
            assert same(await array.to_host(), part)
            host[index] = 0
            await array.copy_to(host[index])
            assert same(np.ascontiguousarray(host), values)
        turned = dev.empty(host.T.shape, np.int16)
        await turned.copy_from(host.T)
        assert same(await turned.to_host(), np.ascontiguousarray(values.T))


async def test_a_copy_of_pinned_memory_is_polled_for_as_long_as_the_link_may_take(monkeypatch):
    looks, dues, begun = [], [], time.perf_counter()
    look = Settler.look

    async def looked(settler: Settler, counter: int, ticket: int, at_least: float = 0.0, due: float = 0.0) -> None:
        looks.append(at_least)
        dues.append(due)
        await look(settler, counter, ticket, at_least, due)

    async with scenario() as dev:

        def activity() -> trio.Event:
            return core_of(dev).current.settler._activity  # the settler itself waits for nothing then

        small, large = [dev.pinned_empty(size, np.uint8) for size in (1 << 10, 8 << 20)]
        for host in (small, large):
            array = await dev.to_device(host)
            await array.copy_from(host)
            await until(lambda: not activity().is_set())
            with monkeypatch.context() as patch:
                patch.setattr(Settler, "look", looked)
                await array.copy_from(host)
        array, host = await dev.to_device(np.ones(1000)), np.empty(1000)
        await array.copy_to(host)
        await until(lambda: not activity().is_set())
        with monkeypatch.context() as patch:
            patch.setattr(Settler, "look", looked)
            await array.copy_to(host)
    assert looks[0] < SPIN_SECONDS < 2 * SPIN_SECONDS < looks[1]
    assert looks[2:] == [0]
    assert dues[::2] == [0, 0]
    assert begun < dues[1] < begun + 60  # by what the copy before has taken


async def test_a_large_copy_of_pinned_memory_is_several_commands(monkeypatch):
    set_constant(monkeypatch, copy_plan, "PINNED_PIECE", 1 << 16)
    async with scenario() as dev:
        host = dev.pinned_empty(5 << 16, np.uint8)
        host[:] = expected = numbers(host.size, np.uint8)
        array = await dev.to_device(host)
        assert submitted(dev, LANE_COPY_IN) == 1 + 5
        host[:] = 0
        await array.copy_to(host)
        assert same(np.asarray(host), expected)


async def test_pinned_memory_goes_with_its_last_view():
    gc.collect()
    before = pinned_mappings()
    async with scenario() as dev:
        host = dev.pinned_empty((4, 1000), np.float32)
        other = dev.pinned_empty(10, np.float32)
        host[...] = other[...] = 1
        for array in (host, other):
            await (await dev.to_device(array)).copy_to(array)
        pid = worker_pid(dev)
        assert pinned_mappings() - before == pinned_mappings(pid) == 2
        row = host[2, ::2].reshape(50, 10)[1:]
        del host, array
        gc.collect()
        await dev.to_device(other)
        assert pinned_mappings() == before + 2
        assert row.sum() == 490
        del row
        gc.collect()
        await dev.to_device(other)  # the next call has both processes let go
        await until(lambda: pinned_mappings() == before + 1 and pinned_mappings(pid) == 1)
        assert len(core_of(dev).part(Transfers).pinned._areas) == 1
        await (await dev.to_device(other)).to_host()


async def test_pinned_memory_that_was_never_copied_goes_without_a_word_to_the_worker():
    async with scenario() as dev:
        before = pinned_descriptors()
        for _ in range(3):
            dev.pinned_empty(10)
        gc.collect()
        kept = dev.pinned_empty(10)
        assert len(core_of(dev).part(Transfers).pinned._areas) == 1
        await until(lambda: pinned_descriptors() <= before + 2)
        assert submitted(dev, LANE_COPY_IN) == 0
        del kept


async def test_a_worker_that_goes_back_to_the_pool_keeps_no_pinned_memory():
    with WorkerPool(backend=chosen_backend(), spares=0) as pool:
        async with scenario(workers=pool, close_timeout=30.0) as dev:  # a worker that is late does not go back
            host = dev.pinned_empty(1000, np.int64)
            await dev.to_device(host)
            pid = worker_pid(dev)
            assert pinned_mappings(pid) == 1
        async with scenario(workers=pool) as dev:
            assert worker_pid(dev) == pid
            assert pinned_mappings(pid) == 0
            other = dev.pinned_empty(1000, np.int64)
            other[:] = 5
            assert ((await (await dev.to_device(other)).to_host()) == 5).all()


async def test_pinned_memory_outlives_the_device():
    gc.collect()
    before, mapped = pinned_descriptors(), pinned_mappings()
    async with scenario(workers=None) as dev:
        host = dev.pinned_empty(1000, np.int64)
        host[:] = np.arange(1000)
        array = await dev.to_device(host)
        pid = worker_pid(dev)
    assert not process_exists(pid)
    assert host.sum() == 499500
    host[:] = 3
    assert host.sum() == 3000
    with pytest.raises(DeviceClosed):
        await array.copy_to(host)
    async with scenario() as other:
        assert (await (await other.to_device(host)).to_host() == 3).all()  # ordinary memory to another device
        assert submitted(other, LANE_COPY_IN) == 1
    del host
    gc.collect()
    assert pinned_mappings() == mapped
    assert pinned_descriptors() == before


async def test_pinned_memory_is_registered_anew_in_each_generation():
    async with scenario(restart_policy=RestartPolicy(intensity=10)) as dev:
        host, out = dev.pinned_empty(5000, np.int32), dev.pinned_empty(5000, np.int32)
        host[:] = np.arange(5000)
        array = await dev.to_device(host)
        for number in (1, 2):
            await dev.restart("a test")
            out[:] = 0
            await array.copy_to(out)
            assert same(np.asarray(out), np.arange(5000, dtype=np.int32))
            await array.copy_from(host)
            assert pinned_mappings(worker_pid(dev)) == 2
            assert dev.generation == 1 + number
        kill_worker(dev)
        await next_generation(dev, 3)
        del out
        gc.collect()
        await array.copy_from(host)
        assert pinned_mappings(worker_pid(dev)) == 1


async def test_a_pinned_copy_that_is_left_goes_on_and_keeps_the_memory_till_it_is_done():
    async with scenario() as dev:
        source = await dev.to_device(np.arange(1000, dtype=np.int32))
        host = dev.pinned_empty(1000, np.int32)
        host[:] = 9
        await source.copy_to(dev.pinned_empty(1000, np.int32))
        area = core_of(dev).part(Transfers).pinned.find(host)
        assert area is not None
        memory = weakref.ref(host)
        async with endless_kernel(dev, source) as kernel:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    before = submitted(dev, LANE_COPY_OUT)
                    nursery.start_soon(source.copy_to, host)
                    await until(lambda: submitted(dev, LANE_COPY_OUT) == before + 2)
                    scope.cancel()
            assert scope.cancelled_caught
            assert (host == 9).all()
            del host, nursery
            gc.collect()
            assert memory() is not None
            await kernel.end()
        await until(lambda: memory() is None)


@pytest.mark.sim_only
async def test_memory_that_cannot_be_registered_fails_the_copies_of_it_and_is_tried_again(monkeypatch):
    # The first two registrations are the timeline page's and the staging area's.
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuMemHostRegister:1:3")
    async with scenario() as dev:
        host = dev.pinned_empty(100, np.int32)
        host[:] = 5
        array = dev.zeros(100, np.int32)
        with pytest.raises(CommandFailed) as failed:
            await array.copy_from(host)
        assert failed.value.status == 1
        assert not (await array.to_host()).any()
        await array.copy_from(host)
        assert (await array.to_host() == 5).all()
        assert dev.generation == 1


async def test_without_a_descriptor_left_nothing_is_pinned_and_nothing_lost():
    async with scenario() as dev:
        array = await dev.to_device(np.arange(10))
        before = pinned_descriptors()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(map(int, os.listdir("/proc/self/fd"))) + 1
        hoard = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (used, limits[1]))
            with contextlib.suppress(OSError):
                while True:
                    hoard.append(os.open("/dev/null", os.O_RDONLY))
            with pytest.raises(OutOfHostMemory, match="no file descriptor is left"):
                dev.pinned_empty(10)
            os.close(hoard.pop())
            with pytest.raises(OutOfHostMemory, match="no file descriptor is left"):
                dev.pinned_empty(10)  # one would not do
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for descriptor in hoard:
                os.close(descriptor)
        assert pinned_descriptors() == before
        assert (await array.to_host()).tolist() == list(range(10))
        host = dev.pinned_empty(10, np.int64)
        await array.copy_to(host)
        assert host.tolist() == list(range(10))


async def test_a_forked_child_may_read_pinned_memory_and_nothing_more():
    async with scenario() as dev:
        host = dev.pinned_empty(100, np.int32)
        host[:] = 4
        array = await dev.to_device(host)
        child = os.fork()
        if child == 0:
            result = 1
            try:
                with contextlib.suppress(DeviceFailed):
                    dev.pinned_empty(3)
                    os._exit(2)
                area = next(iter(core_of(dev).part(Transfers).pinned._watches), None)
                result = 0 if (host == 4).all() and area is None else 3
            finally:
                os._exit(result)
        _, status = await trio.to_thread.run_sync(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        host[:] = 6
        await array.copy_from(host)
        assert (await array.to_host() == 6).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.complex128, ml_dtypes.bfloat16])
async def test_views_of_pinned_memory_are_found_whatever_they_are_made_of(dtype):
    async with scenario() as dev:
        pinned = core_of(dev).part(Transfers).pinned
        hosts = [dev.pinned_empty((10, 20), dtype) for _ in range(5)]
        for host in hosts:
            area, offset = pinned.find(host)
            assert (area.address, offset) == (host.__array_interface__["data"][0], 0)
            fixed = host[2:5]
            fixed.flags.writeable = False
            assert pinned.find(fixed) == (area, 40 * host.itemsize)
            assert pinned.find(host[4:].reshape(-1)[3:7]) == (area, 83 * host.itemsize)
            assert pinned.find(host.view(np.uint8)[1, 5:]) == (area, 20 * host.itemsize + 5)
            assert pinned.find(host[:, ::2]) is None
            assert pinned.find(host.copy()) is None
            assert pinned.find(host.copy()[1:]) is None


async def test_another_array_where_a_pinned_one_has_been_is_not_taken_for_it():
    async with scenario() as dev:
        host = dev.pinned_empty(1 << 16, np.uint8)
        address = host.__array_interface__["data"][0]
        await dev.to_device(host)
        assert core_of(dev).part(Transfers).pinned.find(host) is not None
        del host
        gc.collect()

        # Its bytes are never touched: there may be nothing mapped any more.
        interface = {"data": (address, True), "shape": (4,), "typestr": "|u1", "version": 3}
        there = np.asarray(types.SimpleNamespace(__array_interface__=interface))
        assert core_of(dev).part(Transfers).pinned.find(there) is None


# --- building blocks for who begins commands himself ------------------------------------------------------------------


@pytest.mark.parametrize("pinned", [False, True])
async def test_planned_copies_do_what_the_verbs_do(pinned):
    async with scenario() as dev:
        host = dev.pinned_empty((300, 77), np.float64) if pinned else np.empty((300, 77))
        host[...] = expected = numbers(host.shape, np.float64)
        array, view = dev.empty(host.shape), dev.zeros((600, 77))[::2]
        for target in (array, view):
            requests = plan_copy_in(target, host, BatchSlots(core_of(dev).part(Transfers).batch_areas))
            assert core_of(dev).part(Transfers).staging.idle is pinned
            if not pinned:
                host[...] = 0  # it has been read already
            for request in requests:
                await core_of(dev).memory_actor.mailbox.ask(request)
            host[...] = 0
            requests = plan_copy_out(target, host, BatchSlots(core_of(dev).part(Transfers).batch_areas))
            for request in requests:
                await core_of(dev).memory_actor.mailbox.ask(request)
                request.take()
            assert same(np.asarray(host), expected)
            assert core_of(dev).part(Transfers).staging.idle


async def test_a_planned_copy_takes_all_its_slots_or_none(monkeypatch):
    set_constant(monkeypatch, _batch_areas, "BATCH_BYTES", 3 * LARGE_SLOT)
    async with scenario() as dev:
        slots = BatchSlots(core_of(dev).part(Transfers).batch_areas)
        array = await dev.to_device(np.ones(3 * LARGE_SLOT, np.uint8))
        for plan in (plan_copy_in, plan_copy_out):
            held = []
            with pytest.raises(trio.WouldBlock, match="flush"):  # noqa: PT012
                while True:
                    held.append(plan(array, np.zeros(array.shape, np.uint8), slots))
            free = sum(map(len, core_of(dev).part(Transfers).staging._free.values()))
            with pytest.raises(trio.WouldBlock):
                plan(array, np.zeros(array.shape, np.uint8), slots)
            assert sum(map(len, core_of(dev).part(Transfers).staging._free.values())) == free
            for request in itertools.chain(*held):
                request.drop()
            assert core_of(dev).part(Transfers).staging.idle


async def iterate_until(events: Any, last: Any) -> Any:
    async for event in events:
        if event is last:
            return
        yield event


# --- progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pieces")
async def test_a_copy_that_takes_long_tells_how_far_it_is(monkeypatch):
    set_constant(monkeypatch, copy_flow, "PROGRESS_AFTER", 0.0)
    set_constant(monkeypatch, copy_flow, "PROGRESS_EVERY", 0.0)
    set_constant(monkeypatch, copy_stream, "STREAM_PIECES", 1)
    async with scenario() as dev:
        total = 6 * PIECE + 11
        array = dev.zeros(total, np.uint8)
        for direction, copy in (("to device", array.copy_from), ("to host", array.copy_to)):
            async with dev.events() as events:
                await copy(np.ones(total, np.uint8))
                told = [await anext(events) for _ in range(7)]
            assert all(isinstance(event, CopyProgress) for event in told)
            assert {(event.bytes_total, event.direction) for event in told} == {(total, direction)}
            done = [event.bytes_done for event in told]
            assert done == sorted(set(done))
            assert done[-1] == total


@pytest.mark.usefixtures("small_pieces")
async def test_progress_is_told_no_more_often_than_it_should_be(monkeypatch):
    clock = iter(range(1000))
    set_constant(monkeypatch, copy_stream, "STREAM_PIECES", 1)
    monkeypatch.setattr(copy_flow.time, "monotonic", lambda: 0.1 * next(clock))
    async with scenario() as dev:
        array = dev.zeros(30 * PIECE, np.uint8)
        async with dev.events() as events:
            begun = next(clock)
            await array.copy_from(np.ones(30 * PIECE, np.uint8))
            used = next(clock) - begun
            core_of(dev).events.publish(last := StandbyLost(reason="the end of this test"))
            told = [event async for event in iterate_until(events, last)]
        assert all(isinstance(event, CopyProgress) for event in told)
        assert 1 <= len(told) <= max(0, used * 0.1 - 1.0) / 0.5 + 1
