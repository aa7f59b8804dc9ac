"""Losing the context, in every way and at every moment: what is raised, what survives, what goes on by itself."""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import (
    ContextLost,
    DeviceClosed,
    DeviceError,
    DeviceFailed,
    OutOfDeviceMemory,
    RestartPolicy,
    StaleArray,
    StaleKernel,
    overwrites,
    read_only,
)
from atomr_trio._device import workers as process_starter
from atomr_trio._device.device import core_of
from atomr_trio._generation import process as launcher, watch as _watch
from atomr_trio._transfers import copy_stream, staging as _staging
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._wire.protocol import LANE_COMPUTE, LANE_COPY_IN, LANE_LIMIT, Role
from atomr_trio._wire.records.memory import COPY_IN
from support import next_event, set_constant, supervisor_of
from support.rogue import (
    WILD,
    compile_rogue,
    endless_kernel,
    kill_worker,
    limit_commands,
    next_generation,
    process_exists,
    until,
    worker_pid,
)

pytestmark = pytest.mark.used_workers

ANY_NUMBER = RestartPolicy(intensity=math.inf)
MIB = 1 << 20
DEADLINE = 300


def pattern(seed: int, count: int = 50_000) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**31, count, np.int32)


async def lose_by(dev: Any, kernel: Any, *arguments: Any) -> ContextLost:
    """Launch a kernel that costs the context; the exception, once the next generation is there."""
    lost = dev.generation
    with pytest.raises(ContextLost) as caught:
        await kernel.launch(1, 1, *arguments)
    assert caught.value.generation == lost
    assert await next_generation(dev, lost) == lost + 1
    return caught.value


class Outcomes:
    """Runs awaitables in a nursery and keeps what became of each, by name."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.of: dict[Any, Any] = {}

    def start(self, name: Any, function: Any, *arguments: Any) -> None:
        self._nursery.start_soon(self._run, name, function, arguments)

    async def _run(self, name: Any, function: Any, arguments: tuple[Any, ...]) -> None:
        try:
            self.of[name] = await function(*arguments)
        except DeviceError as error:
            self.of[name] = error


# --- faults of kernels ------------------------------------------------------------------------------------------------


async def test_each_kind_of_fault_is_a_context_lost_with_its_status_and_spares_what_it_did_not_write(
    open_test_device, caplog
):
    caplog.set_level(logging.INFO, "atomr_trio.device")
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            wild, misaligned, trap, refuse, touch = await compile_rogue(
                dev, "wild", "misaligned", "trap", "refuse", "touch"
            )
            host = pattern(1)
            spared, watched = await dev.to_device(host), await dev.to_device(host)
            addresses = spared.address, watched.address
            cases = [
                (wild, (WILD,), 700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
                (misaligned, (dev.zeros(8, np.int8),), 716, "CUDA_ERROR_MISALIGNED_ADDRESS"),
                (trap, (dev.zeros(8, np.int32),), 719, "CUDA_ERROR_LAUNCH_FAILED"),
                (refuse, (41,), 710, "CUDA_ERROR_ASSERT"),
            ]
            for number, (kernel, arguments, status, name) in enumerate(cases, 1):
                assert dev.generation == number
                with pytest.raises(ContextLost) as caught:
                    await kernel.launch(1, 1, *arguments, touches=[read_only(watched)])
                lost = caught.value
                assert (lost.generation, lost.device) == (number, 0)
                assert (lost.status, lost.status_name, lost.library) == (status, name, "cuda")
                assert lost.reason
                assert await next_generation(dev, number) == number + 1
                for survivor in (spared, watched):
                    assert survivor.state == "ready"
                    assert (await survivor.to_host() == host).all()
                assert (spared.address, watched.address) == addresses
                if isinstance(arguments[0], int):
                    continue
                # What the kernel was given to write is torn, whatever it wrote.
                assert arguments[0].state == "torn"
                with pytest.raises(StaleArray, match=f"{kernel.name}.*generation {number}"):
                    await arguments[0].to_host()
            # Nothing was compiled again for this: the kernels load themselves.
            one = await dev.to_device(np.zeros(100, np.int32))
            await touch.launch(1, 128, one, 100)
            assert (await one.to_host() == 1).all()
            await until(lambda: any("Assertion" in record.getMessage() for record in caplog.records))
    (assertion,) = [record for record in caplog.records if "Assertion" in record.getMessage()]
    assert "n == 42" in assertion.getMessage()
    assert (assertion.device, assertion.generation) == (0, 4)


async def test_the_launch_that_faults_and_every_launch_behind_it_are_told(dev):
    wild, touch = await compile_rogue(dev, "wild", "touch")
    x = await dev.to_device(np.zeros(10, np.int32))
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            outcomes = Outcomes(nursery)
            outcomes.start("wild", wild.launch, 1, 1, WILD)
            for number in range(20):
                outcomes.start(number, touch.launch, 1, 32, x, 10)
        finished = [number for number in range(20) if outcomes.of[number] is None]
        lost = [outcome for outcome in outcomes.of.values() if isinstance(outcome, ContextLost)]
        assert isinstance(outcomes.of["wild"], ContextLost)
        assert len(finished) + len(lost) == 21 - sum(isinstance(o, StaleArray) for o in outcomes.of.values())
        assert len({id(error) for error in lost}) == len(lost), "each request has an exception of its own"
        await next_generation(dev, 1)


# --- the end of the process -------------------------------------------------------------------------------------------


async def test_a_worker_that_is_killed_stopped_or_crashes_is_replaced(open_test_device):
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        host = pattern(2)
        array = await dev.to_device(host)
        (touch,) = await compile_rogue(dev, "touch")
        work = await dev.to_device(np.zeros(10, np.int32))
        with trio.fail_after(DEADLINE):
            cases = ((signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "SIGSEGV"), (signal.SIGSTOP, "no sign of life"))
            for number, (how, words) in enumerate(cases, 1):
                async with dev.events() as events, trio.open_nursery() as nursery:
                    outcomes = Outcomes(nursery)
                    async with endless_kernel(dev, work):
                        outcomes.start("queued behind", touch.launch, 1, 32, work, 10)
                        await until(lambda: dev.statistics().lanes[LANE_COMPUTE].unfinished >= 2)
                        old = worker_pid(dev)
                        kill_worker(dev, how)
                        await next_generation(dev, number)
                    event = await next_event(events)
                assert words in event.reason
                assert (event.generation, event.status) == (number, None)
                assert "launch of touch" in event.in_flight
                lost = outcomes.of["queued behind"]
                assert isinstance(lost, ContextLost)
                assert (lost.generation, lost.status) == (number, None)
                assert words in lost.reason
                assert not process_exists(old), "it was killed and reaped"
                assert worker_pid(dev) != old
                assert (await array.to_host() == host).all()
                await work.fill(0)


async def test_a_command_longer_than_hang_timeout_costs_its_worker_and_names_itself(open_test_device):
    async with open_test_device(hang_timeout=DEADLINE) as dev:
        spin, touch = await compile_rogue(dev, "spin", "touch")
        host = pattern(3)
        array, word = await dev.to_device(host), dev.zeros(1, np.int32)
        await word.to_host()
        with trio.fail_after(DEADLINE):
            limit_commands(dev, 0.4)
            lost = await lose_by(dev, spin, word.address)
            assert lost.status is None
            assert "launch of spin" in lost.reason
            assert "hang_timeout=0.4" in lost.reason
            assert (await array.to_host() == host).all()
            # Many short commands, longer together, are no hang.
            await touch.launch(1, 32, array, 10)
            limit_commands(dev, 0.4)
            begun = trio.current_time()
            while trio.current_time() < begun + 0.8:
                await touch.launch(1, 32, array, 10)
            assert dev.generation == 2


async def test_without_hang_timeout_an_endless_kernel_is_let_run(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(close_timeout=0.1) as dev, endless_kernel(dev):
            await trio.sleep(0.5)
            assert dev.generation == 1
            assert dev.statistics().lanes[LANE_COMPUTE].unfinished == 1


# --- arrays -----------------------------------------------------------------------------------------------------------


async def test_torn_arrays_are_healed_by_whatever_overwrites_them_whole(dev):
    (touch,) = await compile_rogue(dev, "touch")
    host = pattern(4, 1000)
    arrays = [await dev.to_device(host) for _ in range(6)]
    source = await dev.to_device(host)
    with trio.fail_after(DEADLINE):
        async with endless_kernel(dev, *arrays):
            kill_worker(dev)
            await next_generation(dev, 1)
        assert [array.state for array in arrays] == ["torn"] * 6
        assert dev.statistics().memory.torn >= sum(array.nbytes for array in arrays)
        copied, filled, from_device, overwritten, part, view = arrays
        await copied.copy_from(host)
        await filled.fill(3)
        await from_device.copy_from(source)
        for use in (touch.launch(1, 32, overwritten, 10), part[1:].copy_from(host[1:]), part[:5].fill(1)):
            with pytest.raises(StaleArray, match="spin"):
                await use
        await touch.launch(1, 32, overwrites(overwritten), 0)
        await view.reshape(10, 100)[::-1].copy_from(np.flip(host.reshape(10, 100), 0))
        assert [array.state for array in arrays] == ["ready"] * 4 + ["torn", "ready"]
        for array in (copied, from_device, view):
            assert (await array.to_host() == host).all()
        assert (await filled.to_host() == 3).all()
        await overwritten.to_host()
        part.free()
        assert dev.statistics().memory.torn == 0


async def test_zeros_and_full_arrays_are_what_they_were_made_as_when_only_their_filling_was_cut_off(dev):
    (touch,) = await compile_rogue(dev, "touch")
    untouched, read, written = dev.full(1000, 5, np.int32), dev.full(1000, 6, np.int32), dev.full(1000, 7, np.int32)
    with trio.fail_after(DEADLINE):
        async with endless_kernel(dev), trio.open_nursery() as nursery:
            outcomes = Outcomes(nursery)
            outcomes.start("read", read.to_host)
            touch.launch_nowait(8, 128, written, 1000)
            await until(lambda: dev.statistics().lanes[LANE_COMPUTE].unfinished >= 4)
            kill_worker(dev)
        assert isinstance(outcomes.of["read"], ContextLost)
        await next_generation(dev, 1)
        assert (await untouched.to_host() == 5).all()
        assert (await read.to_host() == 6).all()
        assert written.state == "torn"


async def test_in_the_strict_mode_nothing_of_a_lost_generation_can_be_used(open_test_device):
    async with open_test_device(on_fault="stale") as dev:
        wild, touch = await compile_rogue(dev, "wild", "touch")
        array, zeros = await dev.to_device(pattern(5)), dev.zeros(10, np.int32)
        with trio.fail_after(DEADLINE):
            await lose_by(dev, wild, WILD)
            for stale in (array, zeros):
                assert stale.state == "lost"
                with pytest.raises(StaleArray, match="stale"):
                    await stale.to_host()
                with pytest.raises(StaleArray):
                    await stale.fill(0)
            fresh = dev.zeros(10, np.int32)
            with pytest.raises(StaleKernel, match="generation 1"):
                await touch.launch(1, 32, fresh, 10)
            (touch,) = await compile_rogue(dev, "touch")
            await touch.launch(1, 32, fresh, 10)
            assert (await fresh.to_host() == 1).all()
            for stale in (array, zeros):
                stale.free()
            assert dev.statistics().memory.lost == 0


NOT_DURABLE = """
import atomr_sim.driver.device as device
device.ATTRIBUTES[103] = 0
"""


@pytest.mark.sim_only
async def test_where_memory_cannot_be_exported_written_arrays_are_lost_and_the_device_goes_on(
    open_test_device, tmp_path, monkeypatch
):
    (tmp_path / "sitecustomize.py").write_text(NOT_DURABLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    async with open_test_device(workers=None) as dev:
        assert not dev.info.durable
        written, unwritten = await dev.to_device(pattern(6)), dev.full(100, 3, np.int32)
        with trio.fail_after(DEADLINE):
            kill_worker(dev)
            await next_generation(dev, 1)
            assert written.state == "lost"
            with pytest.raises(StaleArray, match="cannot outlive"):
                await written.to_host()
            with pytest.raises(StaleArray):
                await written.copy_from(pattern(6))
            assert (await unwritten.to_host() == 3).all()
            again = await dev.to_device(pattern(7))
            assert (await again.to_host() == pattern(7)).all()


# --- requests ---------------------------------------------------------------------------------------------------------


async def test_started_launches_are_lost_and_queued_ones_run_in_the_next_generation(dev):
    """The lane holds 512 unfinished launches; what does not fit is queued, and was not begun."""
    (touch,) = await compile_rogue(dev, "touch")
    started, queued = dev.zeros(10, np.int32), dev.zeros(10, np.int32)
    await queued.to_host()
    with trio.fail_after(DEADLINE):
        async with endless_kernel(dev), trio.open_nursery() as nursery:
            outcomes = Outcomes(nursery)
            for number in range(LANE_LIMIT):
                outcomes.start(("started", number), touch.launch, 1, 32, started, 10)
            await until(lambda: dev.statistics().lanes[LANE_COMPUTE].waiting)
            for number in range(50):
                outcomes.start(("queued", number), touch.launch, 1, 32, queued, 10)
            await trio.testing.wait_all_tasks_blocked()
            kill_worker(dev)
        kinds: dict[str, set[Any]] = {"started": set(), "queued": set()}
        for (kind, _), outcome in outcomes.of.items():
            kinds[kind].add(type(outcome))
        # The endless kernel and the fill of the zeros took places too, so a few of the first kind were queued as well.
        assert kinds["started"] <= {ContextLost, StaleArray}
        assert ContextLost in kinds["started"]
        assert kinds["queued"] == {type(None)}
        assert dev.generation == 2
        assert (await queued.to_host() == 50).all(), "each of them ran, once"
        assert started.state == "torn"


async def test_a_queued_request_that_needs_a_torn_array_is_refused_in_the_next_generation(dev):
    (touch,) = await compile_rogue(dev, "touch")
    torn = await dev.to_device(np.zeros(10, np.int32))
    with trio.fail_after(DEADLINE):
        async with endless_kernel(dev, torn), trio.open_nursery() as nursery:
            outcomes = Outcomes(nursery)
            for number in range(LANE_LIMIT + 20):
                outcomes.start(number, touch.launch, 1, 32, read_only(torn), 0)
            await until(lambda: dev.statistics().lanes[LANE_COMPUTE].waiting)
            await trio.testing.wait_all_tasks_blocked()
            kill_worker(dev)
        last = [outcomes.of[number] for number in range(LANE_LIMIT + 20) if isinstance(outcomes.of[number], StaleArray)]
        assert len(last) >= 20
        assert all("spin" in str(error) and "generation 1" in str(error) for error in last)
        assert dev.generation == 2


async def test_requests_sent_during_the_rebuild_wait_for_it(dev):
    (touch,) = await compile_rogue(dev, "touch")
    x = await dev.to_device(np.zeros(10, np.int32))
    with trio.fail_after(DEADLINE):
        kill_worker(dev)
        await until(lambda: dev.state.value == "rebuilding")
        with pytest.raises(trio.WouldBlock):
            touch.launch_nowait(1, 32, x, 10)
        new = dev.full(10, 4, np.int32)
        await touch.launch(1, 32, x, 10)
        assert dev.generation == 2
        assert (await x.to_host() == 1).all()
        assert (await new.to_host() == 4).all()


async def test_a_cancelled_wait_for_a_kernel_that_never_ends_returns_at_once_and_survives_the_loss(dev):
    (spin,) = await compile_rogue(dev, "spin")
    word = dev.zeros(1, np.int32)
    await word.to_host()
    with trio.fail_after(DEADLINE):
        with trio.move_on_after(0.1) as scope:
            await spin.launch(1, 1, word.address, touches=[word])
        assert scope.cancelled_caught
        kill_worker(dev)
        await next_generation(dev, 1)
        assert word.state == "torn"
        counts = next(actor for actor in dev.statistics().actors if actor.name == "module")
        assert counts.settled["abandoned"] == 1
        assert counts.unsettled == 0


# --- the kill, at every moment ----------------------------------------------------------------------------------------


async def test_a_kill_while_a_large_copy_is_under_way_loses_that_copy_alone(open_test_device, monkeypatch):
    set_constant(monkeypatch, copy_stream, "STREAM_PIECES", 1)  # a command for each piece
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        host, large = pattern(8), pattern(9, 12 << 20)
        spared, target = await dev.to_device(host), dev.empty(large.shape, np.int32)
        out = np.empty_like(large)
        with trio.fail_after(DEADLINE):
            # The n-th command of the copy in flight, then of the copy back.
            for at in (1, 4, 9):
                for lane, copy in ((1, lambda: target.copy_from(large)), (2, lambda: target.copy_to(out))):
                    generation = dev.generation
                    if lane == 2:
                        await target.copy_from(large)
                    base = dev.statistics().lanes[lane].submitted
                    async with trio.open_nursery() as nursery:
                        outcomes = Outcomes(nursery)
                        outcomes.start("copy", copy)
                        await until(lambda lane=lane, seen=base + at: dev.statistics().lanes[lane].submitted >= seen)
                        kill_worker(dev)
                    outcome = outcomes.of["copy"]
                    assert outcome is None or isinstance(outcome, ContextLost), outcome
                    await next_generation(dev, generation)
                    if lane == 1:
                        assert target.state == ("torn" if outcome is not None else "ready")
                    else:
                        assert target.state == "ready", "reading tears nothing"
                        if outcome is None:
                            assert (out == large).all()
                    assert (await spared.to_host() == host).all()
            await target.copy_from(large)
            assert (await target.to_host() == large).all()
            assert core_of(dev).part(Transfers).staging.idle, "every slot has come back"


async def test_a_kill_while_a_chunk_is_being_made_leaves_arrays_that_work(open_test_device):
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        with trio.fail_after(DEADLINE):
            arrays = []
            for number in range(4):
                generation = dev.generation
                # Larger than any chunk so far, so that its first use makes one.
                array = dev.full((24 << 20) * (number + 2), number, np.int8)
                async with trio.open_nursery() as nursery:
                    outcomes = Outcomes(nursery)
                    outcomes.start("read", array[:1000].to_host)
                    await until(lambda: dev.statistics().lanes[LANE_COMPUTE].submitted)
                    for _ in range(number * 30):
                        await trio.lowlevel.checkpoint()
                    kill_worker(dev)
                assert isinstance(outcomes.of["read"], ContextLost | np.ndarray)
                await next_generation(dev, generation)
                arrays.append(array)
            for number, array in enumerate(arrays):
                assert array.state == "ready"
                assert (await array[-1000:].to_host() == number).all()


async def test_a_kill_while_kernels_are_compiled_and_loaded_costs_at_most_the_load(open_test_device):
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        x = await dev.to_device(np.zeros(1, np.int32))
        expected = 0
        with trio.fail_after(DEADLINE):
            for delay in (0, 1, 5, 20, 60):
                generation = dev.generation
                source = f'extern "C" __global__ void add(int *x) {{ x[0] += {delay + 1}; }}'
                async with trio.open_nursery() as nursery:
                    outcomes = Outcomes(nursery)
                    outcomes.start("compile", dev.nvrtc.compile, source, "add")
                    with trio.move_on_after(delay / 1000):
                        await trio.sleep_forever()
                    kill_worker(dev)
                await next_generation(dev, generation)
                kernel = outcomes.of["compile"]
                if isinstance(kernel, ContextLost):
                    kernel = await dev.nvrtc.compile(source, "add")
                await kernel.launch(1, 1, x)
                expected += delay + 1
                assert await x.to_host() == expected


async def test_a_worker_killed_while_it_starts_is_a_failed_start_and_the_next_attempt_succeeds(open_test_device):
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        host = pattern(10)
        array = await dev.to_device(host)
        workers = supervisor_of(dev).workers
        real_spawn, doomed = workers.spawn, [0.0, 0.05, 0.15]
        killed: list[Any] = []

        def spawn() -> Any:
            process = real_spawn()
            if doomed:
                nursery.start_soon(kill_later, process, doomed.pop(0))
            return process

        async def kill_later(process: Any, delay: float) -> None:
            await trio.sleep(delay)
            process.kill()
            killed.append(process)

        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                workers.spawn = spawn
                kill_worker(dev)
                # The kill may come too late for the start: then it is one generation more.
                await until(lambda: not doomed and dev.state.value == "running" and dev.generation >= 2)
            # It is in service until its end is noticed.
            await until(lambda: dev.state.value == "running" and core_of(dev).current.process not in killed)
            assert (await array.to_host() == host).all()
            assert doomed == []


@pytest.mark.parametrize(("patience", "words"), [(60.0, "SIGKILL"), (0.0, "no sign of life")])
async def test_a_worker_that_takes_long_to_end_is_lost_by_its_end(open_test_device, monkeypatch, patience, words):
    """The system may need seconds to take a context of a busy GPU apart; here the process stands for one."""
    looks: list[Any] = []
    monkeypatch.setattr(launcher.WorkerProcess, "ending", property(lambda process: looks.append(process) or True))
    # Looks that are further apart than half of this are not judged, and a loaded machine may take long between two.
    set_constant(monkeypatch, _watch, "STOPPED_SECONDS", 0.8)
    set_constant(monkeypatch, _watch, "ENDING_SECONDS", patience)
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            pid = worker_pid(dev)
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: len(looks) > 3 or dev.generation > 1)
            if patience:
                os.kill(pid, signal.SIGKILL)
            await next_generation(dev, after=1)
            assert words in dev.statistics().last_error


def test_a_process_that_has_been_killed_is_ending_until_it_is_reaped():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = Path(f"/proc/{child.pid}/stat")
    assert not launcher.is_ending(stat.read_text())
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert launcher.is_ending(stat.read_text())
    child.communicate()
    assert not launcher.is_ending("1 (a name) with (many) S 1")


async def test_a_worker_killed_while_the_device_is_opened_is_an_error_of_the_opening(open_test_device, monkeypatch):
    class Doomed(process_starter.WorkerProcess):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.kill()

    monkeypatch.setattr(process_starter, "WorkerProcess", Doomed)
    with trio.fail_after(DEADLINE):
        with pytest.raises(DeviceFailed, match="SIGKILL"):
            async with open_test_device(workers=None):
                raise AssertionError("the body must not run")


async def test_a_worker_killed_while_the_device_is_closed_disturbs_nobody(open_test_device):
    with trio.fail_after(DEADLINE):
        for work in (False, True):
            async with open_test_device(close_timeout=5) as dev:
                array = await dev.to_device(pattern(11))
                if work:
                    (spin,) = await compile_rogue(dev, "spin")
                    spin.launch_nowait(1, 1, (await settled_word(dev)).address)
                pid = worker_pid(dev)
                kill_worker(dev)
            assert not process_exists(pid)
            with pytest.raises(DeviceClosed):
                await array.to_host()


async def settled_word(dev: Any) -> Any:
    word = dev.zeros(1, np.int32)
    await word.to_host()
    return word


async def test_a_kill_right_after_the_kill_of_its_predecessor_is_another_generation(open_test_device):
    async with open_test_device(restart_policy=ANY_NUMBER) as dev:
        host = pattern(12)
        array = await dev.to_device(host)
        with trio.fail_after(DEADLINE):
            for number in range(1, 4):
                kill_worker(dev)
                await next_generation(dev, number)
            assert (await array.to_host() == host).all()
            assert dev.generation == 4


async def test_losing_an_idle_worker_once_too_often_fails_the_device(open_test_device):
    """Also when no request is there to hear of it."""

    async def lose_twice() -> None:
        async with open_test_device(restart_policy=RestartPolicy(intensity=1)) as dev:
            kill_worker(dev)
            await next_generation(dev, 1)
            kill_worker(dev)
            await trio.sleep_forever()

    with trio.fail_after(DEADLINE):
        with pytest.raises(DeviceFailed, match="more than 1 restart"):
            await lose_twice()


@pytest.mark.sim_only
async def test_memory_that_cannot_be_had_fails_its_request_and_the_device_goes_on(open_test_device, monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuMemCreate:2:1,cuMemCreate:2:2")
    async with open_test_device() as dev:
        array = dev.zeros(100, np.int32)
        with trio.fail_after(DEADLINE):
            with pytest.raises(OutOfDeviceMemory) as caught:
                await array.to_host()
            assert caught.value.status == 2
            assert (await array.to_host() == 0).all()
            assert dev.generation == 1


@pytest.mark.sim_only
async def test_a_fault_that_any_call_reports_is_a_loss(open_test_device, monkeypatch):
    for function in ("cuMemcpyHtoDAsync", "cuStreamWriteValue64", "cuMemcpyDtoHAsync", "cuMemCreate"):
        monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", f"{function}:700:2:sticky")
        async with open_test_device() as dev:
            monkeypatch.delenv("ATOMR_TRIO_SIM_FAULTS")
            with trio.fail_after(DEADLINE):
                losses = []
                while dev.generation == 1:
                    try:
                        array = await dev.to_device(np.zeros(40 << 20, np.int8))
                        await array.to_host()
                        assert dev.generation == 1 or losses
                        keep = array  # noqa: F841
                    except (ContextLost, StaleArray) as error:
                        losses.append(error)
                        await next_generation(dev, 1)
                assert {error.status for error in losses if isinstance(error, ContextLost)} == {700}


# --- the fence --------------------------------------------------------------------------------------------------------


class Deaf:
    """The owner of a command that nobody waits for."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def command_finished(self, command: Any, error: Any, value: Any) -> None:
        self._counts["finished"] += 1

    def command_lost(self, command: Any, error: Any) -> None:
        self._counts["lost"] += 1


async def test_no_copy_of_a_dead_generation_lands_after_the_next_one_has_begun(open_test_device, monkeypatch):
    """Copies that were queued when the fault was reported keep landing until their process is reaped.

    Slots of the staging area would bound how much can be queued, so the area is enlarged and the records are published
    past the slots: hundreds of copies of all of it keep a copy engine busy for longer than it takes to report a fault
    and to start a worker, about a second on an H200.
    """
    size = 128 * MIB
    set_constant(monkeypatch, _staging, "LARGE_SLOTS", size // _staging.LARGE_SLOT)
    set_constant(monkeypatch, _staging, "STAGING_BYTES", size + _staging.STAGING_BYTES)
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            (wild,) = await compile_rogue(dev, "wild")
            targets = [dev.zeros(size, np.uint8) for _ in range(2)]
            for target in targets:
                await target[:8].to_host()
            core_of(dev).part(Transfers).staging.bytes[:size] = 0xAA
            counts = {"finished": 0, "lost": 0}
            generation = core_of(dev).current
            for number in range(LANE_LIMIT - 4):
                target = targets[number % len(targets)]
                record = COPY_IN.struct.pack(target.address, 0, size)
                operands = ((target._block, Role.OVERWRITE),)
                generation.publish(LANE_COPY_IN, COPY_IN, record, operands, Deaf(counts))
            with pytest.raises(ContextLost):
                await wild.launch(1, 1, WILD)
            await next_generation(dev, 1)
            assert counts["finished"] + counts["lost"] == LANE_LIMIT - 4
            assert counts["lost"] > 200, "the queue was meant to outlast the fault and the recovery"
            assert [target.state for target in targets] == ["torn", "torn"]
            for number, target in enumerate(targets):
                await target.fill(number)
            end = trio.current_time() + 0.6
            while trio.current_time() < end:
                for number, target in enumerate(targets):
                    assert (await target.to_host() == number).all()


async def test_copies_of_many_tasks_around_a_fault_are_whole_or_torn_and_never_land_later(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            (wild,) = await compile_rogue(dev, "wild")
            size = 1 << 20
            arrays = [await dev.to_device(np.zeros(size, np.int8)) for _ in range(24)]
            async with trio.open_nursery() as nursery:
                outcomes = Outcomes(nursery)

                async def keep_copying(number: int) -> None:
                    while dev.generation == 1:
                        await arrays[number].copy_from(np.full(size, number + 1, np.int8))

                for number in range(24):
                    outcomes.start(number, keep_copying, number)
                await until(lambda: dev.statistics().lanes[LANE_COPY_IN].finished > 30)
                outcomes.start("wild", wild.launch, 1, 1, WILD)
            await next_generation(dev, 1)
            assert isinstance(outcomes.of["wild"], ContextLost)
            for number, array in enumerate(arrays):
                if array.state == "torn":
                    await array.fill(99)
                    continue
                assert set(np.unique(await array.to_host())) <= {number + 1, 0}
            expected = [np.unique(await array.to_host()).tolist() for array in arrays]
            assert all(len(values) == 1 for values in expected)
            end = trio.current_time() + 0.4
            while trio.current_time() < end:
                for array, values in zip(arrays, expected, strict=True):
                    assert (await array.to_host() == values[0]).all()
            assert core_of(dev).part(Transfers).staging.idle
