"""`WorkerPool`: workers that are kept between devices, what a reset releases, and what ends a worker for good."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import ContextLost, DeviceFailed, InvalidArgument, RestartPolicy, compile_to_ptx, open_devices, start
from atomr_trio._device.device import core_of
from atomr_trio._worker.main import Worker
from atomr_trio.testing import (
    Crash,
    Exit,
    Hang,
    NoHostMemory,
    Poison,
    PoolStatistics,
    ReturnStatus,
    WorkerPool,
    WorkerPools,
    hold_worker,
    inject,
    inject_at_start,
    kill_worker,
    worker_pid,
)
from support import ON_GPU, chosen_backend, gpu_memory, open_test_device
from support.descriptors import open_descriptors
from support.rogue import WILD, children, compile_rogue, next_generation, process_exists

DEADLINE = 300
PATIENCE = 30.0
"""Seconds that a reset may take on a busy machine; one that takes longer has got stuck."""
MIB = 1 << 20

COUNT = """
__device__ int calls = 0;
extern "C" __global__ void count(int *total) { *total = ++calls; }
"""
SAY = r"""
extern "C" __global__ void say(int lines)
{
    for (int line = 0; line < lines; line++)
        printf("%04d a line that is so long that a thousand of them are more than a pipe has room for .....\n", line);
}
extern "C" __global__ void mumble(int *x) { x[0] = 1; printf("no newline"); }
"""


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """A pool without spares, which must leave nothing behind."""
    with nothing_left(), WorkerPool(backend=chosen_backend(), spares=0) as made:
        yield made


@pytest.fixture
def spared() -> Iterator[WorkerPool]:
    """The same with one spare, as a pool has unless it is told otherwise."""
    with nothing_left(), WorkerPool(backend=chosen_backend()) as made:
        yield made


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    # The first compile has NVRTC open the driver, in this process, for ever. No other process has compiled this.
    compile_to_ptx(f"// {os.getpid()} {os.urandom(8).hex()}")
    before = open_descriptors(collect=True), set(children())
    yield
    assert (open_descriptors(collect=True), set(children())) == before


def use(pool: WorkerPool, body: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
    """`trio.run` with one device whose worker comes from the pool; what the body returns."""

    async def main() -> Any:
        with trio.fail_after(DEADLINE):
            async with open_test_device(workers=pool, **{"close_timeout": PATIENCE, **options}) as dev:
                return await body(dev)

    return trio.run(main)


async def work(dev: Any) -> int:
    """Something that needs a context, a module and memory; the process that did it."""
    (touch,) = await compile_rogue(dev, "touch")
    x = await dev.to_device(np.arange(100, dtype=np.int32))
    await touch.launch(1, 128, x, 100)
    assert (await x.to_host() == np.arange(100) + 1).all()
    return worker_pid(dev)


async def fault(dev: Any) -> None:
    (wild,) = await compile_rogue(dev, "wild")
    with pytest.raises(ContextLost):
        await wild.launch(1, 1, WILD)


def idle_pids(pool: WorkerPool) -> list[int]:
    return [worker.process.pid for worker in pool._idle]


# --- those of several devices -----------------------------------------------------------------------------------------


@pytest.mark.sim_only
def test_pools_of_several_devices_give_each_device_its_own_workers(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "2")

    async def main(pools: WorkerPools, devices: list[int]) -> dict[int, int]:
        with trio.fail_after(DEADLINE):
            async with open_devices(devices, backend="sim", workers=pools, close_timeout=PATIENCE) as group:
                return {dev.index: worker_pid(dev) for dev in group}

    with nothing_left(), WorkerPools("sim", spares=0) as pools:
        assert repr(pools) == "<WorkerPools (sim): no device yet>"
        first = trio.run(main, pools, [0, 1])
        assert trio.run(main, pools, [1, 0]) == first
        assert trio.run(main, pools, [1]) == {1: first[1]}
        counts = {index: (now.started, now.reused) for index, now in pools.statistics().items()}
        assert counts == {0: (1, 1), 1: (1, 2)}
        assert "<WorkerPool of device 1 (sim): 1 idle" in repr(pools)
    pools.close()


@pytest.mark.sim_only
def test_pools_replace_a_worker_that_was_lost_and_are_of_use_no_more_once_closed(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "2")

    async def lose(pools: WorkerPools) -> list[int]:
        with trio.fail_after(DEADLINE):
            async with open_devices([0, 1], backend="sim", workers=pools, close_timeout=PATIENCE) as group:
                await fault(group[1])
                await group[1].wait_generation(after=1)
                return [dev.generation for dev in group]

    with nothing_left():
        pools = WorkerPools(backend="sim", spares=0)
        with pools:
            for _ in range(2):
                assert trio.run(lose, pools) == [1, 2]
            assert [now.started for now in pools.statistics().values()] == [1, 3]
            assert len(pools._lent) <= 1
        with pytest.raises(InvalidArgument, match="is closed"):
            pools.take("sim", 0)


@pytest.mark.parametrize("arguments", [{"backend": "rocm"}, {"spares": -1}, {"spares": True}, {"check": "all of them"}])
def test_pools_that_cannot_be_are_refused(arguments):
    with pytest.raises(InvalidArgument):
        WorkerPools(**{"backend": "sim", **arguments})


# --- taking and giving back -------------------------------------------------------------------------------------------


def test_a_worker_serves_one_device_after_the_other(spared):
    pids = {use(spared, work) for _ in range(3)}
    assert len(pids) == 1
    assert spared.statistics() == PoolStatistics(idle=2, taken=0, started=2, reused=2, missed=1)


def test_a_pool_starts_nothing_before_it_is_asked_and_says_what_it_has(spared):
    assert spared.statistics() == PoolStatistics(idle=0, taken=0, started=0, reused=0, missed=0)

    async def look(dev: Any) -> str:
        return repr(spared)

    backend = chosen_backend()
    expected = f"<WorkerPool of device 0 ({backend}): 1 idle, 1 taken, 2 started, 0 reused, 1 missed>"
    assert use(spared, look) == expected
    spared.close()
    assert repr(spared) == f"<WorkerPool of device 0 ({backend}): closed>"


def test_devices_that_are_open_at_the_same_time_have_workers_of_their_own(spared):
    async def main() -> None:
        with trio.fail_after(DEADLINE):
            async with (
                open_test_device(workers=spared, close_timeout=PATIENCE) as one,
                open_test_device(workers=spared, close_timeout=PATIENCE) as two,
            ):
                pids = {await work(one), await work(two)}
                assert len(pids) == 2
                assert spared.statistics().taken == 2

    for _ in range(2):
        trio.run(main)
    # The second device took the spare of the first, and the second run found all three.
    assert spared.statistics() == PoolStatistics(idle=3, taken=0, started=3, reused=2, missed=1)


def test_after_a_fault_a_spare_takes_the_place_at_once_and_the_next_one_is_started(spared):
    use(spared, work)
    (_, spare) = idle_pids(spared)

    async def lose_one(dev: Any) -> None:
        x = await dev.to_device(np.arange(1000))
        lost = worker_pid(dev)
        await fault(dev)
        await next_generation(dev, 1)
        assert worker_pid(dev) == spare
        assert not process_exists(lost)
        assert (await x.to_host() == np.arange(1000)).all()

    use(spared, lose_one)
    assert spared.statistics() == PoolStatistics(idle=2, taken=0, started=3, reused=1, missed=1)
    assert use(spared, work) == spare


def test_a_device_that_is_closed_right_after_a_fault_keeps_no_worker_for_itself(spared):
    """Its rebuild has taken the spare by then, and has handed it the device's memory or not."""
    use(spared, work)
    for _ in range(3):
        use(spared, fault)
    assert use(spared, work) in children()
    assert spared.statistics() == PoolStatistics(idle=2, taken=0, started=5, reused=4, missed=1)


def test_without_spares_a_rebuild_starts_a_worker(pool):
    async def lose_one(dev: Any) -> None:
        await fault(dev)
        await next_generation(dev, 1)
        await work(dev)

    use(pool, lose_one)
    assert pool.statistics() == PoolStatistics(idle=1, taken=0, started=2, reused=0, missed=2)


def test_standbys_come_from_the_pool_and_go_back_to_it(spared):
    async def take_over(dev: Any) -> None:
        await dev.wait_standby()
        x = await dev.to_device(np.arange(1000))
        await work(dev)
        await fault(dev)
        await next_generation(dev, 1)
        assert (await x.to_host() == np.arange(1000)).all()
        await dev.wait_standby()

    async def calm(dev: Any) -> None:
        await dev.wait_standby()
        await work(dev)

    use(spared, take_over, standby=1)
    before = spared.statistics()
    assert (before.idle, before.taken) == (before.started - 1, 0), "the one that faulted is gone, and no other"
    for _ in range(2):
        use(spared, calm, standby=1)
    after = spared.statistics()
    assert (after.started, after.reused) == (before.started, before.reused + 4)


def test_a_standby_that_is_still_starting_when_the_device_is_closed_goes_back_as_well(spared):
    use(spared, work)
    for _ in range(3):
        use(spared, work, standby=1)
    assert spared.statistics().idle == spared.statistics().started


@pytest.mark.parametrize("warm", [False, True])
def test_a_device_whose_opening_is_cancelled_gives_its_worker_back(spared, warm):
    if warm:
        use(spared, work)
    taken = spared.statistics().reused + spared.statistics().missed

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            async with open_test_device(workers=spared):
                raise AssertionError("the body must not run")

    for _ in range(2):
        trio.run(main)
    now = spared.statistics()
    assert (now.idle, now.taken, now.started) == (2, 0, 2)
    assert now.reused + now.missed == taken + 2
    use(spared, work)
    assert spared.statistics().started == 2


def test_a_body_that_raises_costs_no_worker(pool):
    async def fail(dev: Any) -> None:
        await work(dev)
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            use(pool, fail)
    assert pool.statistics().started == 1


def test_work_that_nobody_waits_for_is_done_before_the_worker_goes_back(pool):
    async def leave_work_behind(dev: Any) -> int:
        (touch,) = await compile_rogue(dev, "touch")
        x = await dev.to_device(np.zeros(100, np.int32))
        for _ in range(50):
            touch.launch_nowait(1, 128, x, 100)
        return worker_pid(dev)

    assert use(pool, leave_work_behind) == use(pool, work)


# --- what a reset releases --------------------------------------------------------------------------------------------


def test_the_globals_of_a_module_begin_anew(pool):
    async def count(dev: Any) -> tuple[int, int]:
        kernel = await dev.nvrtc.compile(COUNT, "count")
        total = dev.zeros(1, np.int32)
        for _ in range(3):
            await kernel.launch(1, 1, total)
        return worker_pid(dev), int((await total.to_host())[0])

    first, again = use(pool, count), use(pool, count)
    assert first == again
    assert first[1] == 3


def test_all_memory_of_the_device_is_free_again(pool):
    async def fill_up(dev: Any) -> tuple[int, float]:
        # On a GPU others take memory and give it back meanwhile.
        held = gpu_memory() if ON_GPU else -core_of(dev).current.info.free_memory
        arrays = [dev.full(20 * MIB, 1, np.uint8), dev.full(100 * MIB, 2, np.uint8)]
        arrays += [dev.full(10, 3, np.uint8, guarded=True) for _ in range(3)]
        assert [(await array[:1].to_host())[0] for array in arrays] == [1, 2, 3, 3, 3]
        arrays.pop().free()  # its chunk is set aside, and was not released yet
        return worker_pid(dev), held

    use(pool, work)
    first, again, last = (use(pool, fill_up) for _ in range(3))
    assert first[0] == again[0] == last[0]
    assert again[1] == last[1] or math.isnan(last[1])


@pytest.mark.long
@pytest.mark.sim_only
def test_a_worker_is_the_same_after_many_devices(pool):
    """What a reset forgets would pile up: threads, descriptors, mappings."""

    async def weigh(dev: Any) -> tuple[int, int, int]:
        await work(dev)
        await work(dev)
        return belongings(worker_pid(dev))

    use(pool, work)
    settled = use(pool, weigh)
    for _ in range(20):
        last = use(pool, weigh)
    assert pool.statistics().started == 1
    assert all(after < before + 10 for before, after in zip(settled, last, strict=True)), (settled, last)


def belongings(pid: int) -> tuple[int, int, int]:
    """Threads, descriptors and mappings of a process."""
    home = Path(f"/proc/{pid}")
    threads, held = (len(list((home / name).iterdir())) for name in ("task", "fd"))
    return threads, held, len((home / "maps").read_text().splitlines())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "atomr_trio.device"]


def test_what_a_kernel_printed_is_told_by_its_own_device_and_no_other(pool, caplog):
    caplog.set_level(logging.INFO, "atomr_trio.device")

    async def mumble(dev: Any) -> int:
        kernel = await dev.nvrtc.compile(SAY, "mumble")
        await kernel.launch(1, 1, dev.zeros(1, np.int32))
        return worker_pid(dev)

    pid = use(pool, mumble)
    assert lines(caplog) == ["no newline"]
    caplog.clear()
    assert use(pool, work) == pid
    assert lines(caplog) == []


def test_a_worker_that_prints_more_than_a_pipe_holds_while_it_is_reset_goes_back(pool, caplog):
    caplog.set_level(logging.INFO, "atomr_trio.device")

    async def say(dev: Any) -> int:
        kernel = await dev.nvrtc.compile(SAY, "say")
        await kernel.launch(1, 1, 1500)
        return worker_pid(dev)

    begun = time.monotonic()
    pid = use(pool, say, close_timeout=30.0)
    assert time.monotonic() - begun < 20
    assert [line[:4] for line in lines(caplog)] == [f"{number:04}" for number in range(1500)]
    assert use(pool, work) == pid


def test_the_thread_that_flushes_hears_of_the_end_at_whatever_moment_it_comes(monkeypatch):
    worker = Worker(None, "sim", 0, 0, 0)
    monkeypatch.setattr(worker, "bind_thread", lambda: None)

    class EndsWhileCleared(threading.Event):
        """The end comes when the thread has looked and not yet begun to wait again."""

        def clear(self) -> None:
            worker._ended.set()
            self.set()
            super().clear()

    worker._flush_wanted = EndsWhileCleared()
    worker._flush_wanted.set()
    thread = threading.Thread(target=worker._flush_printf, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.sim_only
def test_injected_faults_end_with_the_device_that_asked_for_them(pool):
    async def arm(dev: Any) -> int:
        await work(dev)
        inject(dev, "cuLaunchKernelEx", Crash())
        inject(dev, "cuMemCreate", ReturnStatus(2))
        return worker_pid(dev)

    assert use(pool, arm) == use(pool, work)


# --- workers that do not come back ------------------------------------------------------------------------------------


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("function", "action"),
    [
        ("cuCtxSynchronize", Hang()),
        ("cuModuleUnload", Crash()),
        ("cuModuleUnload", Poison(719)),
        ("cuStreamDestroy", ReturnStatus(1)),
        ("cuMemUnmap", Exit(3)),
        ("cuMemHostUnregister", NoHostMemory()),
    ],
    ids=str,
)
def test_a_worker_whose_reset_fails_is_ended_and_another_one_serves(pool, function, action):
    async def break_reset(dev: Any) -> int:
        pid = await work(dev)
        inject(dev, function, action)
        return pid

    broken = use(pool, break_reset, close_timeout=0.5 if action == Hang() else PATIENCE)
    assert not process_exists(broken)
    assert pool.statistics() == PoolStatistics(idle=0, taken=0, started=1, reused=0, missed=1)
    assert use(pool, work) != broken


def test_a_worker_that_is_stopped_when_the_device_is_closed_is_ended(pool):
    async def stop(dev: Any) -> int:
        await work(dev)
        with hold_worker(dev):
            pid = worker_pid(dev)
        kill_worker(dev, signal.SIGSTOP)
        return pid

    stopped = use(pool, stop, close_timeout=0.5)
    assert not process_exists(stopped)
    assert use(pool, work) != stopped


def test_a_worker_with_a_kernel_that_never_ends_is_ended(pool):
    async def hang(dev: Any) -> int:
        (spin,) = await compile_rogue(dev, "spin")
        word = dev.zeros(1, np.int32)
        await word.to_host()
        spin.launch_nowait(1, 1, word.address)
        return worker_pid(dev)

    hanging = use(pool, hang, close_timeout=0.2)
    assert not process_exists(hanging)
    assert use(pool, work) != hanging


def test_an_idle_worker_that_has_died_is_noticed_and_replaced(pool):
    dead = use(pool, work)
    (worker,) = pool._idle
    worker.process.kill()
    wait_for_end(worker.process.pidfd)
    assert use(pool, work) != dead
    assert pool.statistics() == PoolStatistics(idle=1, taken=0, started=2, reused=0, missed=2)
    assert not process_exists(dead), "it was reaped"


def wait_for_end(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(DEADLINE * 1000)


@pytest.mark.program_starts
def test_a_worker_that_a_thread_has_asked_for_outlives_it_and_serves_others(pool):
    def in_a_thread() -> int:
        pids: list[int] = []
        thread = threading.Thread(target=lambda: pids.append(use(pool, work)))
        thread.start()
        thread.join(DEADLINE)
        return pids[0]

    first = in_a_thread()
    assert in_a_thread() == first
    assert use(pool, work) == first
    assert pool.statistics() == PoolStatistics(idle=1, taken=0, started=1, reused=2, missed=1)
    pool.close()
    assert not process_exists(first)
    assert not [each for each in threading.enumerate() if "WorkerPool" in each.name]


@pytest.mark.program_starts
def test_a_device_of_a_program_without_async_has_workers_of_a_pool_too(spared):
    array = np.arange(10.0)
    for _ in range(3):
        with start(0, backend=chosen_backend(), workers=spared) as dev:
            np.testing.assert_array_equal(dev.to_device(array).to_host(), array)
    now = spared.statistics()
    assert (now.started, now.reused, now.missed) == (2, 2, 1)
    assert use(spared, work) in idle_pids(spared)


@pytest.mark.program_starts
def test_devices_of_many_threads_take_and_give_back_workers_at_the_same_time():
    with nothing_left(), WorkerPool(backend=chosen_backend(), spares=0) as pool:
        used: list[int] = []
        threads = [threading.Thread(target=lambda: used.append(use(pool, work))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        assert set(used) <= set(idle_pids(pool))
        now = pool.statistics()
        assert now.idle == now.started
        assert now.started + now.reused == 3


def test_a_worker_keeps_to_the_settings_that_it_was_started_with(pool, monkeypatch):
    before = use(pool, work)
    monkeypatch.setenv("ATOMR_TRIO_OF_A_TEST", "1")
    changed = use(pool, work)
    assert changed != before
    assert use(pool, work) == changed
    monkeypatch.delenv("ATOMR_TRIO_OF_A_TEST")
    assert use(pool, work) not in (before, changed)


@pytest.mark.sim_only
def test_faults_at_the_start_hit_no_worker_of_another_time(pool):
    use(pool, work)
    with inject_at_start("cuLaunchKernelEx", Crash()):

        async def lose_one(dev: Any) -> None:
            with pytest.raises(ContextLost, match="SIGSEGV"):
                await work(dev)

        use(pool, lose_one)
    use(pool, work)


# --- what a pool refuses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [{"index": -1}, {"index": 14}, {"index": True}, {"backend": "abacus"}, {"spares": -1}, {"spares": 9}],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused(arguments):
    with pytest.raises(InvalidArgument):
        WorkerPool(**{"backend": chosen_backend(), **arguments})


def test_the_backend_comes_from_the_environment_unless_it_is_given(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_BACKEND", "sim")
    assert WorkerPool().backend == "sim"
    assert WorkerPool(backend="cuda").backend == "cuda"


def test_a_pool_serves_its_own_device_alone(pool):
    async def another_index() -> None:
        async with open_test_device(1, workers=pool):
            raise AssertionError("the body must not run")

    async def another_backend() -> None:
        other = "cuda" if pool.backend == "sim" else "sim"
        async with open_test_device(backend=other, workers=pool):
            raise AssertionError("the body must not run")

    for main in (another_index, another_backend):
        with pytest.raises(InvalidArgument, match="no worker for device"):
            trio.run(main)
    assert pool.statistics().started == 0


def test_a_pool_that_is_closed_has_no_worker_to_give(pool):
    use(pool, work)
    pool.close()
    pool.close()
    with pytest.raises(InvalidArgument, match="closed"):
        use(pool, work)


def test_a_pool_that_is_closed_too_early_costs_the_device_and_leaves_no_process(pool):
    async def close_early(dev: Any) -> None:
        x = await dev.to_device(np.zeros(10))
        pool.close()
        with contextlib.suppress(ContextLost):
            await x.to_host()
        await trio.sleep_forever()

    with pytest.raises(DeviceFailed, match="closed"):
        use(pool, close_early, restart_policy=RestartPolicy(intensity=100))


# --- close, fork ------------------------------------------------------------------------------------------------------


def test_closing_ends_every_worker_also_one_that_still_starts_and_one_that_is_stopped():
    pool = WorkerPool(backend=chosen_backend(), spares=3)
    use(pool, work)
    processes = [worker.process for worker in pool._idle]
    assert len(processes) == 4
    os.kill(processes[0].pid, signal.SIGSTOP)
    pool.close()
    assert not any(process_exists(process.pid) for process in processes)
    assert all(process.pidfd == -1 for process in processes)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_in_a_forked_child_the_pool_is_the_parents(pool):
    use(pool, work)
    pid = idle_pids(pool)[0]
    ours, theirs = os.pipe()
    held = [worker.process.pidfd for worker in pool._idle]
    child = os.fork()
    if child == 0:
        try:
            still_open = [fd for fd in held if os.path.exists(f"/proc/self/fd/{fd}")]
            try:
                pool.take(pool.backend, 0)
                answer = "taken"
            except InvalidArgument as error:
                answer = "refused" if "forked" in str(error) else str(error)
            pool.close()
            os.write(theirs, f"{answer} {still_open} {pool.statistics().idle}".encode())
        except BaseException as error:
            os.write(theirs, repr(error).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    answer = os.read(ours, 4096).decode()
    os.close(ours)
    assert os.waitpid(child, 0)[1] == 0
    assert answer == "refused [] 0"
    assert use(pool, work) == pid
