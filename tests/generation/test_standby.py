"""Standby workers: how one takes over, what must wait for the reap of the worker that was lost, and what it costs."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import (
    ContextLost,
    ContextRebuilt,
    ContextWasLost,
    DeviceClosed,
    DeviceState,
    InvalidArgument,
    RestartPolicy,
    StaleArray,
    StaleKernel,
    StandbyLost,
    StandbyReady,
    WorkerReaped,
    overwrites,
    read_only,
    testing,
)
from atomr_trio._arrays.memory import DeviceMemory
from atomr_trio._device import supervisor, workers
from atomr_trio._device.device import core_of
from atomr_trio._generation import generation as _generation, watch as _watch
from atomr_trio._generation.adoption import reap
from atomr_trio._generation.loss import StartFailed
from atomr_trio._generation.standby import Standbys
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._values.events import EventHub
from atomr_trio.libraries.modules.module import Modules
from support import next_event, set_constant
from support.rogue import (
    WILD,
    compile_rogue,
    endless_kernel,
    kill_worker,
    next_generation,
    process_exists,
    until,
    worker_pid,
)

ANY_NUMBER = RestartPolicy(intensity=math.inf, backoff_min=0.01)
DEADLINE = 300
MIB = 1 << 20


def standby_pids(dev: Any) -> list[int]:
    return [standby.process.pid for standby in core_of(dev).standbys.generations]


async def fault(kernel: Any, *touches: Any) -> ContextLost:
    with pytest.raises(ContextLost) as caught:
        await kernel.launch(1, 1, WILD, touches=touches)
    return caught.value


async def small_arrays(dev: Any, count: int) -> list[Any]:
    """Arrays of ten zeros."""
    return [await dev.to_device(np.zeros(10, np.int32)) for _ in range(count)]


class HeldReap:
    """Reaping, held up until the test lets it go on. Killing is not."""

    def __init__(self) -> None:
        self.wanted = trio.Event()
        self.allowed = trio.Event()

    async def __call__(self, process: Any) -> None:
        process.kill()
        self.wanted.set()
        with trio.move_on_after(10):  # a test that fails must not wait for ever
            await self.allowed.wait()
        await reap(process)


@pytest.fixture
def held_reap(monkeypatch: pytest.MonkeyPatch) -> HeldReap:
    held = HeldReap()
    monkeypatch.setattr(supervisor, "reap", held)
    monkeypatch.setattr(workers, "reap", held)
    return held


@pytest.fixture
async def dev(open_test_device: Any) -> AsyncIterator[Any]:
    """A device with one standby that is ready."""
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, restart_policy=ANY_NUMBER) as device:
            await device.wait_standby()
            yield device


# --- the places -------------------------------------------------------------------------------------------------------


class Candidate:
    """Stands for a generation."""

    def __init__(self, *, ready: bool) -> None:
        self.ready = ready


def started(candidate: Candidate) -> Any:
    """What starts it."""

    async def start(show: Any) -> Candidate:
        show(candidate)
        return candidate

    return start


async def test_the_one_that_is_ready_takes_over_whichever_was_begun_first():
    standbys, (slow, quick) = Standbys(2, RestartPolicy(), EventHub()), (Candidate(ready=False), Candidate(ready=True))
    for candidate in (slow, quick):
        await standbys._start(started(candidate))
    assert repr(standbys) == "<Standbys: 1 of 2 ready, 0 starting>"
    assert await standbys.take() is quick
    assert await standbys.take() is None
    assert standbys.generations == [slow]


async def test_a_standby_that_fails_after_it_was_told_of_chunks_is_told_of_no_more():
    async def start(show: Any) -> Any:
        show(Candidate(ready=False))
        assert (len(standbys.generations), standbys.expected) == (1, True)
        raise StartFailed(DeviceClosed("no"), gone=False)

    standbys = Standbys(1, RestartPolicy(), EventHub())
    with pytest.raises(StartFailed):
        await standbys._start(start)
    assert (standbys.generations, standbys.expected) == ([], False)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_standby_whose_worker_is_ready_takes_over_only_when_its_start_is_over(autojump_clock, fails):
    """With peers, a start goes on behind that: it waits until the memory of other devices is mapped."""
    standby, standbys = Candidate(ready=True), Standbys(1, RestartPolicy(), EventHub())
    maps, taken = trio.Event(), []

    async def start(show: Any) -> Any:
        show(standby)
        await maps.wait()
        if fails:
            raise StartFailed(DeviceClosed("killed meanwhile"), gone=False)
        return standby

    async def starting() -> None:
        with contextlib.suppress(StartFailed):
            await standbys._start(start)

    async def taking() -> None:
        taken.append(await standbys.take())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(starting)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(taking)
        await trio.testing.wait_all_tasks_blocked()
        assert (taken, standbys.ready, standbys.expected) == ([], 0, True)
        maps.set()
    assert taken == [None if fails else standby]
    assert (standbys.generations, standbys.expected) == ([], False)


# --- taking over ------------------------------------------------------------------------------------------------------


async def test_a_standby_takes_over_with_its_own_process_and_another_one_takes_its_place(dev):
    wild, touch = await compile_rogue(dev, "wild", "touch")
    x = await dev.to_device(np.arange(100, dtype=np.int32))
    (standby,) = standby_pids(dev)
    async with dev.events() as events:
        lost = await fault(wild)
        assert lost.generation == 1
        assert await dev.wait_generation(after=1) == 2
        assert worker_pid(dev) == standby
        await touch.launch(1, 128, x, 100)
        assert (await x.to_host() == np.arange(100) + 1).all()
        await dev.wait_standby()
        assert standby_pids(dev) != [standby]
        seen = [await anext(events) for _ in range(4)]
    assert [type(event) for event in seen[:2]] == [ContextWasLost, ContextRebuilt]
    assert seen[1].by_standby
    assert {type(event) for event in seen[2:]} == {WorkerReaped, StandbyReady}


async def test_the_standby_has_every_chunk_and_every_module_before_it_is_needed(dev):
    wild, touch = await compile_rogue(dev, "wild", "touch")
    first = await dev.to_device(np.full(1000, 1, np.int32))
    second = await dev.to_device(np.full(80 * MIB, 2, np.uint8))  # a chunk of its own
    standby = core_of(dev).standbys.generations[0]
    assert len(standby.chunks._mapped) == 2
    await until(lambda: standby.timeline.idle)
    assert set(standby.modules) == {module._number for module in core_of(dev).part(Modules).living}
    await fault(wild)
    await dev.wait_generation(after=1)
    loads = dev.statistics().lanes[0].submitted
    await touch.launch(8, 128, first, 1000)
    assert dev.statistics().lanes[0].submitted == loads + 1, "the launch alone was sent: the module was there"
    assert (await first.to_host() == 2).all()
    assert (await second[:: 4 * MIB].to_host() == 2).all()


async def test_a_standby_lets_go_of_chunks_that_the_device_no_longer_has(open_test_device):
    async with open_test_device(standby=1, restart_policy=ANY_NUMBER, memory_limit=96 * MIB) as dev:
        await dev.wait_standby()
        (wild,) = await compile_rogue(dev, "wild")
        small = await dev.to_device(np.zeros(MIB, np.uint8))
        small.free()
        large = dev.full(90 * MIB, 5, np.uint8)  # only if the first chunk goes
        assert (await large[:100].to_host() == 5).all()
        standby = core_of(dev).standbys.generations[0]
        assert [chunk.size for chunk in standby.chunks._mapped.values()] == [
            chunk.size for chunk in core_of(dev).part(DeviceMemory).arena.chunks
        ]
        await fault(wild)
        await dev.wait_generation(after=1)
        assert (await large[:100].to_host() == 5).all()


async def test_faults_one_after_the_other_are_each_taken_over_or_rebuilt(dev):
    wild, touch = await compile_rogue(dev, "wild", "touch")
    x = dev.zeros(10, np.int32)
    for number in range(1, 7):
        await fault(wild)
        await touch.launch(1, 32, x, 10)
        assert dev.generation == number + 1
    assert (await x.to_host() == 6).all()


async def test_two_standbys_take_over_while_neither_lost_worker_is_reaped(open_test_device, held_reap):
    async with open_test_device(standby=2, restart_policy=ANY_NUMBER) as dev:
        await dev.wait_standby()
        wild, touch = await compile_rogue(dev, "wild", "touch")
        x, y, z = await small_arrays(dev, 3)
        await fault(wild, y)
        await fault(wild, z)
        assert dev.generation == 3
        await touch.launch(1, 32, x, 10)
        assert len(core_of(dev).dying) == 2
        assert core_of(dev).part(DeviceMemory).arena.quarantined(y._block)
        assert core_of(dev).part(DeviceMemory).arena.quarantined(z._block)
        held_reap.allowed.set()
        await y.copy_from(np.ones(10, np.int32))
        await z.copy_from(np.ones(10, np.int32))
        assert (await x.to_host() == 1).all()


async def test_in_strict_mode_nothing_survives_a_takeover_either(open_test_device):
    async with open_test_device(standby=1, on_fault="stale", restart_policy=ANY_NUMBER) as dev:
        await dev.wait_standby()
        wild, touch = await compile_rogue(dev, "wild", "touch")
        x = await dev.to_device(np.zeros(10, np.int32))
        await fault(wild)
        assert await dev.wait_generation(after=1) == 2
        with pytest.raises(StaleKernel):
            await touch.launch(1, 32, dev.zeros(10, np.int32), 10)
        with pytest.raises(StaleArray):
            await x.to_host()


# --- quarantine -------------------------------------------------------------------------------------------------------


async def test_only_what_the_lost_worker_was_working_on_waits_for_its_reap(dev, held_reap):
    wild, touch = await compile_rogue(dev, "wild", "touch")
    apart, read, written = await small_arrays(dev, 3)
    await fault(wild, read_only(read), written)
    await touch.launch(1, 32, apart, 10)
    assert held_reap.wanted.is_set()
    assert len(core_of(dev).dying) == 1, "a result came while the lost worker was not reaped yet"
    assert (read.state, written.state) == ("ready", "torn")
    with pytest.raises(trio.WouldBlock):
        touch.launch_nowait(1, 32, read, 10)
    done: list[str] = []

    async def use(name: str, function: Any, *arguments: Any) -> None:
        await function(*arguments)
        assert held_reap.allowed.is_set(), f"{name} went ahead"
        done.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(use, "read", read.to_host)
        nursery.start_soon(use, "write", written.copy_from, np.ones(10, np.int32))
        nursery.start_soon(use, "launch", touch.launch, 1, 32, read, 10)
        await trio.testing.wait_all_tasks_blocked()
        held_reap.allowed.set()
    assert sorted(done) == ["launch", "read", "write"]
    await until(lambda: not core_of(dev).dying)
    assert not core_of(dev).part(DeviceMemory).arena.quarantine
    assert (await read.to_host() == 1).all()
    assert (await written.to_host() == 1).all()


async def test_memory_in_quarantine_that_was_freed_goes_to_a_new_array_only_after_the_reap(dev, held_reap):
    (wild,) = await compile_rogue(dev, "wild")
    doomed = await dev.to_device(np.zeros(63 * MIB, np.uint8))  # nearly all of the first chunk
    address = doomed.address
    await fault(wild, doomed)
    doomed.free()
    other = dev.empty(40 * MIB, np.uint8)
    assert other.address == address, "there was other memory, so this shows nothing"
    with trio.move_on_after(0.05) as scope:
        await other.fill(1)
    assert scope.cancelled_caught
    held_reap.allowed.set()
    await other.fill(2)
    assert (await other[:100].to_host() == 2).all()


@pytest.mark.sim_only
async def test_the_staging_slots_of_the_lost_worker_are_not_given_away_before_its_reap(dev, held_reap):
    (x,) = await small_arrays(dev, 1)

    async def copy_that_is_lost() -> None:
        with pytest.raises(ContextLost):
            await x.copy_from(np.ones(10, np.int32))

    async with endless_kernel(dev, x), trio.open_nursery() as nursery:
        nursery.start_soon(copy_that_is_lost)
        await until(lambda: dev.statistics().lanes[1].unfinished)
        testing.inject(dev, "cuStreamQuery", testing.Poison(700))
    assert core_of(dev).dying
    assert not core_of(dev).part(Transfers).staging.idle, (
        "the copy was told that it is lost, and its slot must not go to another one yet"
    )
    held_reap.allowed.set()
    await until(lambda: core_of(dev).part(Transfers).staging.idle)
    await until(lambda: not core_of(dev).dying)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
async def test_after_a_kill_from_outside_nothing_runs_before_the_reap(dev, held_reap, how):
    """Nobody knows what was under way, so not even the arrays that seem untouched may be used."""
    (touch,) = await compile_rogue(dev, "touch")
    x = await dev.to_device(np.zeros(10, np.int32))
    (standby,) = standby_pids(dev)
    kill_worker(dev, how)
    await held_reap.wanted.wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(touch.launch, 1, 32, x, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert dev.generation == 1
        assert dev.state is DeviceState.REBUILDING
        held_reap.allowed.set()
    assert worker_pid(dev) == standby
    assert (await x.to_host() == 1).all()


async def test_a_hang_costs_the_worker_and_a_standby_takes_over_after_the_reap(dev):
    x = await dev.to_device(np.zeros(10, np.int32))
    spin, touch = await compile_rogue(dev, "spin", "touch")
    word = dev.zeros(1, np.int32)
    await word.to_host()
    (standby,) = standby_pids(dev)
    with pytest.raises(ContextLost, match=r"launch of spin ran longer than hang_timeout=0.2 s"):
        await spin.launch(1, 1, word.address, hang_timeout=0.2)
    await touch.launch(1, 32, x, 10)
    assert worker_pid(dev) == standby


# --- a standby's own troubles -----------------------------------------------------------------------------------------


async def test_a_standby_that_dies_is_replaced_and_nobody_else_notices(dev):
    (touch,) = await compile_rogue(dev, "touch")
    x = dev.zeros(10, np.int32)
    left = dev.statistics().restarts_left
    async with dev.events() as events:
        (pid,) = standby_pids(dev)
        os.kill(pid, signal.SIGKILL)
        event = await anext(events)
        assert isinstance(event, StandbyLost)
        assert "SIGKILL" in event.reason
        await touch.launch(1, 32, x, 10)
        assert isinstance(await anext(events), StandbyReady)
    assert dev.generation == 1
    assert dev.statistics().restarts_left == left
    assert dev.statistics().standbys == 1
    assert standby_pids(dev) != [pid]
    assert not process_exists(pid)


@pytest.mark.sim_only
async def test_a_standby_that_cannot_map_a_new_chunk_says_so_and_is_replaced(dev):
    (touch,) = await compile_rogue(dev, "touch")
    async with dev.events() as events:
        (standby,) = core_of(dev).standbys.generations
        standby.request_faults("cuMemSetAccess:2")
        x = dev.zeros(10, np.int32, guarded=True)
        await touch.launch(1, 32, x, 10)
        event = await anext(events)
        assert isinstance(event, StandbyLost)
        assert "out of memory" in event.reason
        assert isinstance(await anext(events), StandbyReady)
    assert dev.generation == 1
    kill_worker(dev)
    await next_generation(dev, 1)
    assert (await x.to_host() == 1).all()


@pytest.mark.sim_only
async def test_standbys_that_cannot_be_started_are_tried_again_and_the_device_works_meanwhile(
    open_test_device, monkeypatch
):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, restart_policy=ANY_NUMBER) as dev:
            (touch,) = await compile_rogue(dev, "touch")
            await dev.wait_standby()
            monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuDevicePrimaryCtxRetain:2:1")
            async with dev.events() as events:
                os.kill(standby_pids(dev)[0], signal.SIGKILL)
                reasons = [event.reason async for event in take(events, 3)]
                assert "SIGKILL" in reasons[0]
                assert all("cuDevicePrimaryCtxRetain" in reason for reason in reasons[1:])
                await touch.launch(1, 32, dev.zeros(10, np.int32), 10)
                monkeypatch.delenv("ATOMR_TRIO_SIM_FAULTS")
                await dev.wait_standby()
            assert dev.generation == 1


async def test_a_standby_that_is_ready_only_after_the_worker_is_lost_is_told_what_nobody_has_any_more(
    open_test_device, monkeypatch
):
    """The lost worker, whose place is empty then, is not told."""
    lost = trio.Event()
    start = _generation.Generation.start

    async def start_late(generation: Any, show: Any = None) -> None:
        if show is not None:
            await lost.wait()
        await start(generation, show)

    monkeypatch.setattr(_generation.Generation, "start", start_late)
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, restart_policy=ANY_NUMBER) as dev:
            (touch,) = await compile_rogue(dev, "touch")
            await dev.nvrtc.compile('extern "C" __global__ void unwanted() { }', "unwanted")
            gc.collect()
            assert core_of(dev).dropped
            async with dev.events() as events:
                kill_worker(dev)
                assert [type(event) async for event in take(events, 2)] == [ContextWasLost, WorkerReaped]
            lost.set()
            assert await next_generation(dev, 1) == 2
            x = dev.zeros(10, np.int32)
            await touch.launch(1, 32, x, 10)
            assert (await x.to_host() == 1).all()
            assert not core_of(dev).dropped


async def take(events: Any, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await anext(events)


async def test_a_device_that_is_closed_while_a_standby_starts_or_is_ready_leaves_no_process(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=2) as dev:
            await dev.wait_standby(1)
            pids = [worker_pid(dev), *standby_pids(dev)]
        assert not any(process_exists(pid) for pid in pids)
        async with open_test_device(standby=1) as dev:
            pids = [worker_pid(dev)]
        with pytest.raises(DeviceClosed):
            await dev.wait_standby()
        assert not any(process_exists(pid) for pid in pids)


@pytest.mark.parametrize("standby", [-1, 5, True, 1.0, None])
async def test_standby_is_a_small_number(open_test_device, standby):
    with pytest.raises(InvalidArgument, match="standby is an int from 0 to 4"):
        async with open_test_device(standby=standby):
            pass


@pytest.mark.sim_only
async def test_standbys_of_a_simulated_device_leave_the_arrays_their_memory(open_test_device):
    limits = []
    for standby in (0, 2):
        async with open_test_device(standby=standby) as dev:
            limits.append(dev.statistics().memory.limit)
    assert limits[0] == limits[1] > 0


async def test_of_a_gpu_each_standby_takes_a_part_and_too_many_are_refused(open_test_device, monkeypatch):
    async with open_test_device(standby=0) as dev:
        alone = dev.statistics().memory.limit
    # Other processes take memory of a GPU and give it back meanwhile, but not half of it.
    monkeypatch.setattr(DeviceMemory, "set_aside", property(lambda self: self.device.options.standby * (alone // 2)))
    async with open_test_device(standby=1) as dev:
        assert dev.statistics().memory.limit < alone
    monkeypatch.setattr(DeviceMemory, "set_aside", property(lambda self: 1 << 60))
    with pytest.raises(
        InvalidArgument, match=r"standby=1 leaves no memory for arrays: [\d,]+ bytes are free"
    ) as refused:
        async with open_test_device(standby=1):
            raise AssertionError("it was opened")
    assert refused.value.device == 0
    async with open_test_device(standby=1, memory_limit=64 << 20) as dev:
        assert (await dev.zeros(3, np.int8).to_host()).tolist() == [0, 0, 0]


async def test_nobody_can_wait_for_more_standbys_than_there_are_to_be(dev):
    await dev.wait_standby(0)
    for count in (2, -1, True, 1.5):
        with pytest.raises(InvalidArgument, match="count is an int from 0 to standby=1"):
            await dev.wait_standby(count)


# --- deliberate restarts, and limits for one call ---------------------------------------------------------------------


async def test_a_restart_costs_the_context_but_nothing_of_the_budget(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=RestartPolicy(intensity=1)) as dev:
            (touch,) = await compile_rogue(dev, "touch")
            kept, torn = await small_arrays(dev, 2)
            for number in range(1, 4):
                async with dev.events() as events, trio.open_nursery() as nursery:
                    async with endless_kernel(dev, torn):
                        nursery.start_soon(expect_restart, touch, torn)
                        await until(lambda: dev.statistics().lanes[0].unfinished == 2)
                        assert await dev.restart("it hangs") == number + 1
                    event = await next_event(events)
                assert isinstance(event, ContextWasLost)
                assert (event.reason, event.reported_by) == ("restarted: it hangs", "the caller of restart()")
                assert event.in_flight == ("launch of spin", "launch of touch")
                assert event.actors == ("module",)
                await torn.fill(0)
                await touch.launch(1, 32, kept, 10)
            assert (await kept.to_host() == 3).all()
            assert dev.statistics().restarts_left == 1
    with pytest.raises(DeviceClosed):
        await dev.restart("too late")


async def expect_restart(kernel: Any, array: Any) -> None:
    with pytest.raises(ContextLost, match="restarted: it hangs"):
        await kernel.launch(1, 32, array, 10)


async def test_a_limit_of_one_call_is_not_one_of_the_others(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(hang_timeout=30, restart_policy=ANY_NUMBER) as dev:
            (touch,) = await compile_rogue(dev, "touch")
            x, y = await small_arrays(dev, 2)
            # What waits behind a slow kernel is not blamed for it, whatever its own limit is.
            async with endless_kernel(dev, x) as kernel, trio.open_nursery() as nursery:
                nursery.start_soon(limited_launch, touch, x, 0.1)
                await until(lambda: dev.statistics().lanes[0].unfinished == 2)
                for _ in range(8):
                    await y.to_host()
                with trio.move_on_after(0.4):
                    await trio.sleep_forever()
                assert dev.generation == 1
                await kernel.end()
            assert (await x.to_host() == 1).all()


async def limited_launch(kernel: Any, array: Any, limit: float) -> None:
    await kernel.launch(1, 32, overwrites(array), 10, hang_timeout=limit)


@pytest.mark.parametrize("limit", [0, -1, math.nan, "1", True])
async def test_a_limit_is_a_number_of_seconds(dev, limit):
    (touch,) = await compile_rogue(dev, "touch")
    with pytest.raises(InvalidArgument, match="hang_timeout is a number of seconds"):
        await touch.launch(1, 1, dev.zeros(1, np.int32), 1, hang_timeout=limit)


# --- workers that are stuck or that run out of memory -----------------------------------------------------------------


@contextlib.contextmanager
def patience(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    with monkeypatch.context() as patch:
        set_constant(patch, _watch, "DEAF_SECONDS", seconds)
        yield


@pytest.mark.sim_only
async def test_a_worker_that_reads_nothing_is_lost_though_its_heart_beats(open_test_device, monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuLaunchKernelEx:hang")
    with trio.fail_after(DEADLINE), patience(monkeypatch, 0.3):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            monkeypatch.delenv("ATOMR_TRIO_SIM_FAULTS")
            (touch,) = await compile_rogue(dev, "touch")
            x, y = await small_arrays(dev, 2)
            touch.launch_nowait(1, 32, x, 10)  # the call of it never comes back
            with pytest.raises(ContextLost, match="has read nothing of what it was sent for"):
                await touch.launch(1, 32, y, 10)
            assert await next_generation(dev, 1) == 2
            await y.copy_from(np.ones(10, np.int32))


@pytest.mark.sim_only
async def test_a_worker_without_host_memory_is_lost_and_says_so(open_test_device, monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuLaunchKernelEx:nomemory")
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            monkeypatch.delenv("ATOMR_TRIO_SIM_FAULTS")
            (touch,) = await compile_rogue(dev, "touch")
            x = await dev.to_device(np.zeros(10, np.int32))
            with pytest.raises(ContextLost, match="exited with status 72: it ran out of host memory"):
                await touch.launch(1, 32, x, 10)
            assert await next_generation(dev, 1) == 2
