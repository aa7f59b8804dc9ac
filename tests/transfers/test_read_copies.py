"""Copies to the device of which the worker reads bytes of the host's array itself."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

import atomr_trio
from atomr_trio import ContextLost, DeviceClosed, RestartPolicy
from atomr_trio._device.device import core_of
from atomr_trio._transfers import read_copies, reading, single_copies
from atomr_trio._transfers.copies import HostCopies
from atomr_trio._transfers.read_copies import READ_MOST
from atomr_trio._transfers.reading import READ_LEAST, is_of_numpy
from atomr_trio._transfers.short_copies import SHORT_BYTES, SHORT_PIECE, CopyPath
from atomr_trio._transfers.short_ways import ShortCopies
from atomr_trio._wire import host_reading
from atomr_trio._wire.backends import READ_VARIABLE
from atomr_trio._wire.protocol import LANE_COPY_IN
from support import open_test_device
from support.long_copies import check_every_byte, check_random_kills, is_clean, scenario
from support.rogue import kill_worker, next_generation, until
from support.strategies import numbers, same

SIZE = READ_MOST


def path_of(dev: Any) -> CopyPath:
    return core_of(dev).part(ShortCopies)._paths[LANE_COPY_IN]


class Sent:
    """The sizes of the pieces that were sent, those that the worker reads and the others."""

    def __init__(self, dev: Any, change: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda words: words) -> None:
        """`change` changes the words of a record of which the worker reads the bytes."""
        self.read: list[int] = []
        self.copied: list[int] = []
        path, send = path_of(dev), path_of(dev).send

        def noting(
            block: Any, words: tuple[int, ...], owner: Any, kept: Any, shares: bool = False, form: Any = None
        ) -> int:
            reads = form is path.read
            (self.read if reads else self.copied).append(words[2])
            return send(block, change(words) if reads else words, owner, kept, shares, form)

        path.send = noting


@pytest.fixture(autouse=True)
def never_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulated worker is always behind. Here it gets its pieces all the same."""
    monkeypatch.setattr(reading, "MOST_BEHIND", math.inf)


@contextlib.asynccontextmanager
async def stopped(dev: Any) -> Any:
    """The worker is stopped meanwhile."""
    kill_worker(dev, signal.SIGSTOP)
    try:
        yield
    finally:
        kill_worker(dev, signal.SIGCONT)


# --- what arrives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("size", [SHORT_BYTES + 1, 3 * SHORT_PIECE + 5, SIZE - 1, SIZE])
async def test_every_byte_arrives(size, native, monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_NATIVE", native)
    async with scenario() as dev:
        assert dev.info.no_reading is None
        sent = Sent(dev)
        await check_every_byte(dev, size)
        assert len(sent.read) == 2 * (-(-size // SHORT_PIECE) // 2)
        assert sum(sent.read) + sum(sent.copied) == 2 * size + 1


async def test_pieces_that_repeat_are_read_anew():
    async with scenario() as dev:
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), numbers(SIZE, np.uint8)
        sent = Sent(dev)
        for _ in range(5):
            host += 1
            await array.copy_from(host)
            assert same(await array.to_host(), host)
        assert len(sent.read) == 5 * SIZE // SHORT_PIECE // 2


@pytest.mark.parametrize("size", [READ_LEAST, SHORT_PIECE, SHORT_PIECE + 1, SHORT_BYTES, 2 * SHORT_BYTES])
async def test_many_at_a_time_are_all_right_and_most_are_read(size):
    async with scenario() as dev:
        hosts = [numbers(size, np.uint8, seed=seed) for seed in range(12)]
        arrays = [await dev.to_device(np.zeros_like(host)) for host in hosts]
        sent = Sent(dev)
        async with trio.open_nursery() as nursery, stopped(dev):
            for array, host in zip(arrays, hosts, strict=True):
                nursery.start_soon(array.copy_from, host)
            await trio.testing.wait_all_tasks_blocked(0.01)
        for array, host in zip(arrays, hosts, strict=True):
            assert same(await array.to_host(), host)
        assert len(sent.read) >= len(hosts) - 1
        assert is_clean(dev)


async def test_a_worker_that_is_behind_gets_no_piece(monkeypatch):
    monkeypatch.setattr(reading, "MOST_BEHIND", 0)
    async with scenario() as dev:
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), numbers(SIZE, np.uint8)
        sent = Sent(dev)
        await array.copy_from(host)
        assert (sum(sent.read), sum(sent.copied)) == (0, SIZE)
        assert same(await array.to_host(), host)


@pytest.mark.parametrize("size", [READ_LEAST, SHORT_PIECE, SHORT_BYTES])
async def test_alone_the_task_copies_a_megabyte_itself(size):
    async with scenario() as dev:
        array = await dev.to_device(np.zeros(size, np.uint8))
        sent = Sent(dev)
        await array.copy_from(numbers(size, np.uint8))
        assert not sent.read


# --- what is read -----------------------------------------------------------------------------------------------------


def memories() -> Iterator[tuple[str, Any, bool]]:
    whole = np.zeros((4, SIZE), np.uint8)
    yield "its own", np.zeros(SIZE, np.uint8), True
    yield "a view", whole[1], True
    yield "a view of a view", whole.reshape(-1)[SIZE:][:SIZE].view(np.int8).view(np.uint8), True
    yield "bytes of Python", np.frombuffer(bytes(SIZE), np.uint8), False
    yield "mapped", np.frombuffer(mmap.mmap(-1, SIZE), np.uint8), False
    yield "of ctypes", np.ctypeslib.as_array((ctypes.c_uint8 * SIZE)()), False


@pytest.mark.parametrize(("host", "read"), [each[1:] for each in memories()], ids=[each[0] for each in memories()])
async def test_the_worker_reads_what_numpy_has_allocated_and_nothing_else(host, read):
    assert is_of_numpy(host) is read
    async with scenario() as dev:
        array = await dev.to_device(np.ones(SIZE, np.uint8))
        sent = Sent(dev)
        await array.copy_from(host)
        assert bool(sent.read) is read
        assert (await array.to_host() == 0).all()


async def test_pinned_memory_is_not_read():
    async with scenario() as dev:
        array, host = await dev.to_device(np.ones(SIZE, np.uint8)), dev.pinned_empty(SIZE, np.uint8)
        host[:] = 3
        await array.copy_from(host)
        sent = Sent(dev)
        await array.copy_from(host)
        assert not sent.read
        assert (await array.to_host() == 3).all()


@pytest.mark.program_starts
async def test_a_variable_says_that_nothing_is_read(monkeypatch):
    monkeypatch.setenv(READ_VARIABLE, "0")
    async with scenario() as dev:
        assert dev.info.no_reading == f"{READ_VARIABLE}=0"
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), numbers(SIZE, np.uint8)
        sent = Sent(dev)
        await array.copy_from(host)
        assert not sent.read
        assert same(await array.to_host(), host)


async def test_another_value_of_the_variable_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setenv(READ_VARIABLE, "yes")
    with pytest.raises(atomr_trio.InvalidArgument, match=r"ATOMR_TRIO_READ is 0 \(off\) or 1 \(on\), not 'yes'"):
        async with open_test_device():
            pass


def test_why_memory_cannot_be_read_is_told():
    beacon = host_reading.Beacon()
    address, content = beacon.described()
    assert host_reading.reason_against(os.getpid(), address, content) is None
    assert host_reading.reason_against(os.getpid(), address, "00" * 16) == "what it read is not what is there"
    assert host_reading.reason_against(os.getpid(), 64, content) == "the system does not allow it: Bad address"
    assert host_reading.reason_against(2**30, address, content) == "the system does not allow it: No such process"


# --- what cannot be read ----------------------------------------------------------------------------------------------


def nowhere(words: tuple[int, ...]) -> tuple[int, ...]:
    return (*words[:3], 64)


@pytest.mark.parametrize("native", ["0", "1"])
async def test_what_the_worker_cannot_read_is_copied_and_it_is_not_asked_again(native, monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_NATIVE", native)
    async with scenario() as dev:
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), numbers(SIZE, np.uint8)
        await array.copy_from(host)
        sent = Sent(dev, nowhere)
        host += 1
        await array.copy_from(host)
        assert sent.read
        assert same(await array.to_host(), host)
        asked = len(sent.read)
        host += 1
        await array[1:].copy_from(host[1:])
        host[0] -= 1
        assert same(await array.to_host(), host)
        assert len(sent.read) == asked
        assert array.state == "ready"
        await until(lambda: is_clean(dev))


async def test_a_part_of_an_array_that_could_not_be_read_is_not_torn_either():
    async with scenario() as dev:
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), numbers(SIZE - 9, np.uint8)
        Sent(dev, nowhere)
        await array[4:-5].copy_from(host)
        assert same(await array[4:-5].to_host(), host)
        assert not (await array.to_host())[:4].any()


async def test_those_at_a_time_that_could_not_be_read_are_copied():
    async with scenario() as dev:
        hosts = [numbers(READ_LEAST, np.uint8, seed=seed) for seed in range(8)]
        arrays = [await dev.to_device(np.zeros_like(host)) for host in hosts]
        sent = Sent(dev, nowhere)
        async with trio.open_nursery() as nursery, stopped(dev):
            for array, host in zip(arrays, hosts, strict=True):
                nursery.start_soon(array.copy_from, host)
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(sent.read) >= len(hosts) - 1
        for array, host in zip(arrays, hosts, strict=True):
            assert same(await array.to_host(), host)
        await until(lambda: is_clean(dev))


async def test_a_copy_that_is_left_and_could_not_be_read_leaves_its_array_torn():
    async with scenario() as dev:
        array = await dev.to_device(np.zeros(SIZE, np.uint8))
        sent = Sent(dev, nowhere)
        async with trio.open_nursery() as nursery:
            async with stopped(dev):
                scope = trio.CancelScope()

                async def copy() -> None:
                    with scope:
                        await array.copy_from(numbers(SIZE, np.uint8))

                nursery.start_soon(copy)
                await until(lambda: sent.read)
                scope.cancel()
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert scope.cancelled_caught
        assert array.state == "torn"
        await until(lambda: is_clean(dev))


@pytest.mark.parametrize(("size", "state"), [(SIZE, "torn"), (READ_LEAST, "ready")])
async def test_a_copy_that_is_not_made_again_leaves_no_half_of_it(size, state, monkeypatch):
    """Of several pieces some have arrived; a single one has written nothing."""
    async with scenario() as dev:
        array, other = await dev.to_device(np.zeros(size, np.uint8)), await dev.to_device(np.zeros(size, np.uint8))
        Sent(dev, nowhere)

        async def fail(*_: object) -> None:
            raise DeviceClosed("the general way is closed")

        monkeypatch.setattr(HostCopies, "_generally", fail)
        async with trio.open_nursery() as nursery, stopped(dev):
            if size == READ_LEAST:  # alone it would not be read
                nursery.start_soon(other.copy_from, numbers(size, np.uint8, seed=2))
                await trio.testing.wait_all_tasks_blocked(0.01)

            async def copy() -> None:
                with pytest.raises(DeviceClosed):
                    await array.copy_from(numbers(size, np.uint8))

            nursery.start_soon(copy)
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert array.state == state
        await until(lambda: is_clean(dev))


async def test_what_fails_for_another_reason_fails_as_ever(monkeypatch):
    async with scenario() as dev:
        array = await dev.to_device(np.zeros(SIZE, np.uint8))
        monkeypatch.setattr(reading, "NOT_READ", "another reason")
        Sent(dev, nowhere)
        with pytest.raises(
            atomr_trio.CommandFailed, match="could not read 524288 bytes of the user's process"
        ) as caught:
            await array.copy_from(numbers(SIZE, np.uint8))
        assert caught.value.status_name == "HOST_MEMORY_NOT_READ"
        assert array.state == "torn"
        await until(lambda: is_clean(dev))


# --- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [READ_LEAST, SIZE])
async def test_a_task_that_leaves_waits_until_its_array_is_its_own_again(size):
    async with scenario() as dev:
        array, other = await dev.to_device(np.zeros(size, np.uint8)), await dev.to_device(np.zeros(size, np.uint8))
        host = numbers(size, np.uint8)
        first, left = host.copy(), trio.Event()
        sent = Sent(dev)
        async with trio.open_nursery() as nursery:
            async with stopped(dev):
                if size == READ_LEAST:  # alone it would not be read
                    nursery.start_soon(other.copy_from, numbers(size, np.uint8, seed=2))
                    await trio.testing.wait_all_tasks_blocked(0.01)
                scope = trio.CancelScope()

                async def copy() -> None:
                    with scope:
                        await array.copy_from(host)
                    host[:] = 0
                    left.set()

                nursery.start_soon(copy)
                await until(lambda: sent.read)
                scope.cancel()
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert not left.is_set()
            await left.wait()
        assert scope.cancelled_caught
        assert same(await array.to_host(), first)
        await until(lambda: is_clean(dev))


@pytest.mark.parametrize("size", [READ_LEAST, SIZE])
async def test_a_task_does_not_wait_for_long_and_its_device_array_is_torn_then(size, monkeypatch):
    for module in (read_copies, single_copies):
        monkeypatch.setattr(module, "LEAVING_SECONDS", 0.05)
    async with scenario() as dev:
        array, other = await dev.to_device(np.zeros(size, np.uint8)), await dev.to_device(np.zeros(size, np.uint8))
        sent = Sent(dev)
        async with trio.open_nursery() as nursery, stopped(dev):
            if size == READ_LEAST:
                nursery.start_soon(other.copy_from, numbers(size, np.uint8, seed=2))
                await trio.testing.wait_all_tasks_blocked(0.01)
            with trio.move_on_after(0.02) as scope:
                await array.copy_from(numbers(size, np.uint8))
            assert scope.cancelled_caught
            assert sent.read
            assert array.state == "torn"
        await array.copy_from(numbers(size, np.uint8, seed=5))
        assert same(await array.to_host(), numbers(size, np.uint8, seed=5))
        await until(lambda: is_clean(dev))


async def test_a_copy_in_a_cancelled_scope_sends_nothing_and_holds_no_slot():
    async with scenario() as dev:
        array = await dev.to_device(np.zeros(SIZE, np.uint8))
        sent = Sent(dev)
        with trio.CancelScope() as scope:
            scope.cancel()
            await array.copy_from(numbers(SIZE, np.uint8))
        assert scope.cancelled_caught
        assert (sent.read, sent.copied) == ([], [])
        assert not (await array.to_host()).any()
        assert is_clean(dev)


# --- losses -----------------------------------------------------------------------------------------------------------


async def test_a_worker_that_dies_under_a_copy_costs_that_copy():
    async with scenario(restart_policy=RestartPolicy(intensity=10)) as dev:
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), numbers(SIZE, np.uint8)
        sent = Sent(dev)
        kill_worker(dev, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:

            async def copy() -> None:
                with pytest.raises(ContextLost):
                    await array.copy_from(host)

            nursery.start_soon(copy)
            await until(lambda: sent.read)
            kill_worker(dev)
        await next_generation(dev, 1)
        assert array.state == "torn"
        await array.copy_from(host)
        assert same(await array.to_host(), host)
        await until(lambda: is_clean(dev))


@pytest.mark.parametrize("kills", [5, pytest.param(300, marks=pytest.mark.soak)])
async def test_workers_that_are_killed_at_any_time_cost_no_byte(kills):
    await check_random_kills(kills, SHORT_BYTES + 1, SIZE)
