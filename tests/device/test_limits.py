"""The limits of the machine: what they cost a device, which is one typed error that names them, and nothing else.

A table of descriptors that is full stands for every way to run out of them. What is asked for meanwhile is refused,
what there is stays, and when there is room again everything works.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import (
    DeviceFailed,
    DeviceState,
    OutOfHostMemory,
    RestartPolicy,
    StaleArray,
    StandbyLost,
)
from atomr_trio._compiling import linker
from atomr_trio._device import batch, lifetime, open as _open
from atomr_trio._device.device import core_of
from atomr_trio._generation import generation as _generation, process as launcher, watch as _watch
from atomr_trio._generation.places import Places
from atomr_trio._generation.sender import Sender
from atomr_trio._memory.arena import ChunkState
from atomr_trio._wire import channel, checking, limits
from support import ON_GPU, child_environment, next_event
from support.descriptors import open_descriptors
from support.limits import Table, full_table
from support.rogue import children, compile_rogue, gated, kill_worker, next_generation, until, worker_pid

pytestmark = pytest.mark.program_starts

ANY_NUMBER = RestartPolicy(intensity=math.inf, backoff_min=0.01, backoff_max=0.02)
LOADED_BEFORE = batch, linker
"""Modules that the library imports when they are first needed, which takes a descriptor."""
NOFILE = r"RLIMIT_NOFILE \(`ulimit -n`\) is [0-9,]+"
MIB = 1 << 20
DEADLINE = 300


def soak(value: float) -> Any:
    """A case that the ordinary suite leaves out: it takes its time, and another one is like it."""
    return pytest.param(value, marks=pytest.mark.soak)


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `open_device` leave the limit where a test has put it."""
    monkeypatch.setattr(lifetime, "raise_descriptor_limit", lambda: None)


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Import what devices use: without a descriptor nothing can be imported, and that is not what is tested here."""
    for name in (*_open._TO_OPEN, *_open._TO_USE):
        importlib.import_module(f"atomr_trio.{name}")


# --- opening ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("free", [0, 2, *map(soak, (1, 3, 4, 5, 6, 7)), 8, soak(9), 10])
async def test_a_device_that_finds_too_few_descriptors_says_which_limit_it_is(open_test_device, free):
    before, alive = len(open_descriptors(collect=True)), children()
    with trio.fail_after(DEADLINE), full_table(free), pytest.raises(DeviceFailed, match=NOFILE):
        async with open_test_device():
            pass
    assert children() == alive
    assert len(open_descriptors()) <= before


CHILD = """
import resource, sys
limit, backend = int(sys.argv[1]), sys.argv[2]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
import numpy as np, trio, atomr_trio

async def main():
    async with atomr_trio.open_device(0, backend=backend) as dev:
        arrays = [await dev.to_device(np.full(1000, number, np.float32)) for number in range(20)]
        kept, said = [], None
        try:
            while len(kept) < 40:  # each has chunks of its own
                kept.append(dev.zeros(1000, np.float32, guarded=True))
                await kept[-1].fill(len(kept))
        except atomr_trio.OutOfHostMemory as error:
            said = error.message
        assert all([(await x.to_host() == number).all() for number, x in enumerate(arrays)])
        lost = dev.generation
        await dev.restart("to see what is left")
        assert all([(await x.to_host() == number).all() for number, x in enumerate(arrays)])
        assert all([(await x.to_host() == number).all() for number, x in enumerate(kept[:-1], 1)])
        return f"{len(kept)} chunks, {said}"

try:
    print("worked:", trio.run(main))
except atomr_trio.DeviceFailed as error:
    print("refused:", error)
"""


def run_child(code: str, *arguments: str) -> str:
    """What a program prints that ends by itself without an error."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("limit", [32, soak(64), soak(256)])
def test_under_a_hard_limit_of_descriptors_a_program_works_or_is_told_which(backend, limit):
    said = run_child(CHILD, str(limit), backend)
    words = f"RLIMIT_NOFILE (`ulimit -n`) is {limit}"
    assert words in said or said.startswith("worked: 40 chunks, None")
    assert ON_GPU or said.startswith("worked: "), "the simulator itself needs next to none"


def test_the_soft_limit_is_raised_to_the_hard_one_here_and_in_the_worker(backend):
    said = run_child(
        """
import resource, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
hard = min(hard, 5000)
resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
import trio, atomr_trio
from atomr_trio.testing import worker_pid

async def main():
    async with atomr_trio.open_device(0, backend=sys.argv[1]) as dev:
        limits = open(f"/proc/{worker_pid(dev)}/limits").read()
        (line,) = [line for line in limits.splitlines() if line.startswith("Max open files")]
        assert line.split()[3:5] == [str(hard), str(hard)], line
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)

trio.run(main)
print("raised")
""",
        backend,
    )
    assert said.split() == ["raised"]


# --- what is asked for ------------------------------------------------------------------------------------------------


async def test_memory_that_has_no_place_here_is_not_asked_for_and_the_same_request_succeeds_later(dev):
    kept = await dev.to_device(np.arange(10))
    x = dev.full(1000, 7, np.uint8, guarded=True)
    with full_table():
        for _ in range(2):
            with pytest.raises(OutOfHostMemory, match=NOFILE):
                await x[:10].to_host()
        with pytest.raises(OutOfHostMemory, match=NOFILE):
            async with dev.batch() as batch:
                batch.fill(x, 1)
        assert (await kept.to_host()).tolist() == list(range(10))
    assert (await x[:10].to_host() == 7).all()
    kill_worker(dev)
    assert await next_generation(dev, 1) == 2
    assert (await x[-10:].to_host() == 7).all()


async def test_an_array_that_was_refused_memory_is_still_filled_when_there_is_some(dev):
    """The fill is a command of its own, ahead of the one that was refused."""
    ones = dev.full(1000, 1, np.int32)
    (touch,) = await compile_rogue(dev, "touch")
    with full_table(), pytest.raises(OutOfHostMemory):
        await touch.launch(1, 32, ones, 10)
    await touch.launch(1, 32, ones, 10)
    assert (await ones.to_host()).tolist() == [2] * 10 + [1] * 990


async def test_a_place_is_kept_for_each_descriptor_that_is_on_its_way(dev):
    async with gated(dev) as gate:
        async with trio.open_nursery() as nursery:
            arrays = [dev.full(3, number, np.int32, guarded=True) for number in range(5)]
            for array in arrays:
                nursery.start_soon(array.to_host)
            await until(lambda: all(array._block.chunk.state is not ChunkState.PLANNED for array in arrays))
            with full_table():
                await gate.open()
                await until(lambda: all(array._block.chunk.descriptor >= 0 for array in arrays))
    assert [int((await array.to_host())[0]) for array in arrays] == list(range(5))
    kill_worker(dev)
    assert await next_generation(dev, 1) == 2
    assert [int((await array.to_host())[0]) for array in arrays] == list(range(5))
    assert core_of(dev).current.chunks.places.held == []


@pytest.fixture
def no_place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Another thread of the program is faster than the descriptor that is on its way."""
    with monkeypatch.context() as patch:
        patch.setattr(Places, "hold", lambda places, address: places._awaited.add(address))
        patch.setattr(Places, "_balance", lambda places: None)
        yield patch.undo


async def test_a_descriptor_that_was_dropped_on_its_way_is_asked_for_again(dev, no_place):
    with trio.fail_after(DEADLINE):
        with full_table():
            x = await dev.to_device(np.arange(1000))
            assert x._block.chunk.descriptor < 0
            assert (await x.to_host()).tolist() == list(range(1000))
        no_place()
        await until(lambda: x._block.chunk.descriptor >= 0)
        kill_worker(dev)
        assert await next_generation(dev, 1) == 2
        assert (await x.to_host()).tolist() == list(range(1000))


async def test_memory_whose_descriptor_has_not_come_before_a_fault_is_said_to_be_lost(dev, no_place):
    with trio.fail_after(DEADLINE):
        with full_table():
            x = await dev.to_device(np.arange(1000))
            kill_worker(dev)
            await until(lambda: dev.state.value == "rebuilding")
        no_place()
        with pytest.raises(StaleArray, match="no file descriptor for the memory"):
            await x.to_host()
        y = await dev.to_device(np.arange(5))
        assert (await y.to_host()).tolist() == list(range(5))


async def test_without_a_descriptor_nothing_is_loaded_recorded_or_pinned_and_nothing_lost(dev):
    (touch,) = await compile_rogue(dev, "touch")
    x, pinned = await dev.to_device(np.zeros(10, np.int32)), dev.pinned_empty(10, np.int32)
    pinned[:] = 3
    await touch.launch(1, 32, x, 10)
    graph = await dev.capture(lambda recorder: recorder.launch(touch, 1, 32, x, 10))
    before = len(open_descriptors(collect=True))
    with full_table():
        for refused in (
            lambda: dev.module.load(touch._module.ptx),
            lambda: dev.capture(lambda recorder: recorder.launch(touch, 1, 32, x, 10)),
            lambda: x.copy_from(pinned),
            lambda: _sync(lambda: dev.pinned_empty(10)),
        ):
            with pytest.raises(OutOfHostMemory, match=NOFILE):
                await refused()
        await touch.launch(1, 32, x, 10)
        await graph.launch()
    assert len(open_descriptors()) <= before
    assert (await x.to_host()).tolist() == [3] * 10
    await x.copy_from(pinned)
    assert (await x.to_host()).tolist() == [3] * 10
    assert dev.generation == 1


@pytest.mark.sim_only  # on a GPU it is the driver that maps the memory
async def test_without_a_descriptor_no_array_is_shared_and_it_is_later(dev):
    await dev.share(await dev.to_device(np.arange(3)))  # what this imports is there
    x = await dev.share(await dev.to_device(np.arange(10)))
    with full_table(), pytest.raises(OutOfHostMemory, match=NOFILE):
        np.from_dlpack(x)
    assert np.from_dlpack(x).tolist() == list(range(10))


async def _sync(call: Callable[[], object]) -> object:
    return call()


async def test_without_a_descriptor_a_program_that_is_not_compiled_yet_is_refused_and_compiles_later(dev):
    await compile_rogue(dev, "touch")  # the compiler itself is loaded
    source = 'extern "C" __global__ void other(int *x) { x[0] = 41; }'
    with full_table(), pytest.raises(OutOfHostMemory, match=NOFILE):
        await dev.nvrtc.compile(source, "other")
    x = dev.zeros(1, np.int32)
    await (await dev.nvrtc.compile(source, "other")).launch(1, 1, x)
    assert (await x.to_host()).tolist() == [41]


# --- restarts ---------------------------------------------------------------------------------------------------------


def leave_no_more(patch: pytest.MonkeyPatch, table: Table, free: int) -> None:
    """Whoever is faster takes the descriptors that a lost worker sets free."""
    close = _generation.Generation.close

    def close_and_fill(generation: Any) -> None:
        close(generation)
        table.leave(free)

    patch.setattr(_generation.Generation, "close", close_and_fill)


@pytest.mark.parametrize("free", [0, soak(2), soak(5), 7, soak(8)])
async def test_a_restart_that_finds_no_descriptor_is_tried_again_until_it_does(open_test_device, monkeypatch, free):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            x = await dev.to_device(np.arange(1000))
            await trio.testing.wait_all_tasks_blocked()  # the watch of the generation has its timer
            before = len(open_descriptors(collect=True))
            with full_table(free) as table, monkeypatch.context() as patch:
                leave_no_more(patch, table, free % 4)
                kill_worker(dev)
                await until(lambda: "RLIMIT_NOFILE" in (dev.statistics().last_error or ""))
                assert dev.state is DeviceState.REBUILDING
            assert (await x.to_host()).tolist() == list(range(1000))
            assert dev.generation == 2
            # The starts that have failed are reaped beside the program.
            await until(lambda: len(open_descriptors()) <= before)


async def test_a_standby_takes_over_and_a_device_is_closed_without_a_descriptor(open_test_device):
    before, alive = len(open_descriptors(collect=True)), children()
    with trio.fail_after(DEADLINE):
        async with contextlib.AsyncExitStack() as stack:
            dev = await stack.enter_async_context(open_test_device(standby=1, restart_policy=ANY_NUMBER))
            x = await dev.to_device(np.arange(10))
            await dev.wait_standby()
            with full_table():
                kill_worker(dev)
                assert await next_generation(dev, 1) == 2
                assert (await x.to_host()).tolist() == list(range(10))
                await stack.aclose()
    assert children() == alive
    assert len(open_descriptors()) <= before


async def test_a_restart_that_never_finds_a_descriptor_ends_the_device_with_the_limit_in_its_words(
    open_test_device, monkeypatch
):
    policy = RestartPolicy(intensity=2, backoff_min=0.01, backoff_max=0.01)
    before, alive = len(open_descriptors(collect=True)), children()
    with trio.fail_after(DEADLINE), pytest.raises(DeviceFailed, match=NOFILE):  # noqa: PT012
        async with open_test_device(restart_policy=policy) as dev:
            with full_table() as table, monkeypatch.context() as patch:
                leave_no_more(patch, table, 0)
                kill_worker(dev)
                await trio.sleep_forever()
    assert children() == alive
    assert len(open_descriptors()) <= before


async def test_a_restart_waits_for_descriptors_with_variables_of_modules_to_place(open_test_device, monkeypatch):
    source = '__device__ int counter; extern "C" __global__ void count(int *x) { x[0] = ++counter; }'
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            count = await dev.nvrtc.compile(source, "count")
            x = dev.zeros(1, np.int32)
            await count.launch(1, 1, x)
            copies_of = Sender.copies_of
            refused = 0

            def refuse_once(sender: Any, *arguments: Any) -> Any:
                nonlocal refused
                refused += 1
                if refused == 1:
                    with full_table():
                        return copies_of(sender, *arguments)
                return copies_of(sender, *arguments)

            monkeypatch.setattr(Sender, "copies_of", refuse_once)
            kill_worker(dev)
            assert await next_generation(dev, 1) == 2
            await count.launch(1, 1, x)
            assert (await x.to_host()).tolist() == [1]


async def test_a_standby_that_finds_no_descriptor_is_tried_again_and_nobody_else_notices(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, restart_policy=ANY_NUMBER) as dev:
            (touch,) = await compile_rogue(dev, "touch")
            await dev.wait_standby()
            x = await dev.to_device(np.zeros(10, np.int32))
            async with dev.events() as events:
                with full_table() as table:
                    os.kill(core_of(dev).standbys.generations[0].process.pid, signal.SIGKILL)
                    for _ in range(2):
                        event = await next_event(events)
                        table.leave(0)
                        while not isinstance(event, StandbyLost):
                            event = await next_event(events)
                    await touch.launch(1, 32, x, 10)
                    assert "RLIMIT_NOFILE" in event.reason
            await dev.wait_standby()
            kill_worker(dev)
            assert await next_generation(dev, 1) == 2
            assert (await x.to_host()).tolist() == [1] * 10


# --- the worker's side ------------------------------------------------------------------------------------------------


def test_a_message_says_that_a_descriptor_of_it_was_dropped():
    ours, theirs = channel.open_pair()
    with ours, theirs:
        for free, came in ((0, 0), (1, 1), (2, 2)):
            channel.send_message(theirs, {}, [0, 0])
            buffer = bytearray(channel.MAX_MESSAGE)
            with full_table(free):
                _, found = channel.receive_bytes(ours, buffer)
            assert len([each for each in found if each != channel.NO_DESCRIPTOR]) == came
            assert (channel.NO_DESCRIPTOR in found) == (came < 2)
            for each in found:
                if each != channel.NO_DESCRIPTOR:
                    os.close(each)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "x"), "no file descriptor is left: RLIMIT_NOFILE"),
        (OSError(errno.ENFILE, "x"), "fs.file-max"),
        (OSError(errno.ENOMEM, "x"), "no host memory left: RLIMIT_AS"),
        (MemoryError(), "no host memory left: RLIMIT_AS"),
        (BlockingIOError(errno.EAGAIN, "x"), "no process can be started: RLIMIT_NPROC"),
        (RuntimeError("can't start new thread"), "no thread can be started: RLIMIT_NPROC"),
        (OSError(errno.EFBIG, "x"), "RLIMIT_FSIZE"),
        (OSError(errno.ENOSPC, "x"), "no space is left"),
    ],
)
def test_a_want_of_the_system_is_named_by_its_limit(error, words):
    assert words in limits.shortage(error)
    assert limits.reason_of(error) == limits.shortage(error)


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "not there"), RuntimeError("a defect"), ValueError("no")])
def test_what_is_no_want_of_the_system_is_not_taken_for_one(error):
    assert limits.shortage(error) is None
    assert limits.reason_of(error) == str(error)


@contextlib.contextmanager
def full_worker(dev: Any) -> Iterator[None]:
    """A worker that can have no descriptor more."""
    pid = worker_pid(dev)
    highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    # Lower numbers that are free are used up by whoever comes first, so nothing above them counts.
    free = set(range(highest)) - {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(free, default=highest + 1), before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def test_a_worker_without_a_descriptor_refuses_what_needs_one_and_does_it_later(dev):
    (touch,) = await compile_rogue(dev, "touch")
    x, pinned = await dev.to_device(np.zeros(10, np.int32)), dev.pinned_empty(10, np.int32)
    pinned[:] = 3
    apart = dev.full(1000, 7, np.uint8, guarded=True)
    await touch.launch(1, 32, x, 10)
    with full_worker(dev):
        for refused in (
            lambda: dev.module.load(touch._module.ptx),
            lambda: dev.capture(lambda recorder: recorder.launch(touch, 1, 32, x, 10)),
            lambda: x.copy_from(pinned),
            lambda: apart[:10].to_host(),
        ):
            with pytest.raises(OutOfHostMemory, match=rf"could not run it: .*{NOFILE}"):
                await refused()
        await touch.launch(1, 32, x, 10)
        assert (await x.to_host()).tolist() == [2] * 10
    await dev.module.load(touch._module.ptx)
    await x.copy_from(pinned)
    assert (await x.to_host()).tolist() == [3] * 10
    assert (await apart[:10].to_host() == 7).all()
    assert dev.generation == 1


# --- processes, threads and addresses ---------------------------------------------------------------------------------


async def test_a_restart_that_finds_no_process_is_tried_again_until_it_does(open_test_device, monkeypatch):
    """As root there is no RLIMIT_NPROC, so the call is made to fail as it does for others."""

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            x = await dev.to_device(np.arange(10))
            with monkeypatch.context() as patch:
                patch.setattr(launcher.subprocess, "Popen", refuse)
                kill_worker(dev)
                await until(lambda: "RLIMIT_NPROC" in (dev.statistics().last_error or ""))
            assert await next_generation(dev, 1) == 2
            assert (await x.to_host()).tolist() == list(range(10))


async def test_without_a_thread_everything_goes_on_that_needs_none(dev, monkeypatch):
    source = 'extern "C" __global__ void other(int *x) { x[0] = 41; }'
    (touch,) = await compile_rogue(dev, "touch")
    x = await dev.to_device(np.zeros(10, np.int32))
    large = np.arange(2 * MIB, dtype=np.uint8)

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(trio.lowlevel, "start_thread_soon", refuse)
        patch.setattr(trio._core._thread_cache.ThreadCache, "start_thread_soon", refuse)
        for refused in (
            lambda: dev.nvrtc.compile(source, "other"),
            lambda: dev.module.load(os.devnull),
        ):
            with pytest.raises(OutOfHostMemory, match="no thread can be started: RLIMIT_NPROC"):
                await refused()
        await touch.launch(1, 32, x, 10)
        array = await dev.to_device(large)
        assert ((await array.to_host()) == large).all()
        await dev.restart("to see that it needs none")
    assert (await x.to_host()).tolist() == [1] * 10
    await dev.nvrtc.compile(source, "other")


async def test_a_restart_under_a_limit_of_addresses_says_so_and_is_tried_again_until_it_is_lifted(open_test_device):
    """The worker has this process's limits; its context takes a terabyte of addresses."""
    limits_before = resource.getrlimit(resource.RLIMIT_AS)
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            x = await dev.to_device(np.arange(10))
            resource.setrlimit(resource.RLIMIT_AS, (64 << 30, limits_before[1]))
            try:
                kill_worker(dev)
                await until(lambda: "RLIMIT_AS (`ulimit -v`) is 64 GiB" in (dev.statistics().last_error or ""))
                assert dev.state is DeviceState.REBUILDING
            finally:
                resource.setrlimit(resource.RLIMIT_AS, limits_before)
            assert await next_generation(dev, 1) == 2
            assert (await x.to_host()).tolist() == list(range(10))


async def test_opening_under_a_limit_of_addresses_says_so(open_test_device):
    limits_before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (64 << 30, limits_before[1]))
    try:
        with pytest.raises(DeviceFailed, match=r"RLIMIT_AS \(`ulimit -v`\) is 64 GiB"):
            async with open_test_device():
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits_before)


# --- the disk ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.sim_only
async def test_checks_that_have_no_room_on_the_disk_refuse_arrays_and_a_restart_waits_for_room(
    open_test_device, monkeypatch
):
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        told = "atomr-trio-check" in os.readlink(f"/proc/self/fd/{descriptor}")
        return write(descriptor, data[: len(data) // 2] if told else data)

    with trio.fail_after(DEADLINE):
        async with open_test_device(check="all", restart_policy=ANY_NUMBER) as dev:
            x = await dev.to_device(np.arange(10))
            with monkeypatch.context() as patch:
                patch.setattr(checking.os, "write", full)
                with pytest.raises(OutOfHostMemory, match="cannot be told of an array: no space is left on the disk"):
                    dev.zeros(10)
                y = x[:5]
                kill_worker(dev)
                await until(lambda: "no space is left on the disk" in (dev.statistics().last_error or ""))
            assert await next_generation(dev, 1) == 2
            z = dev.zeros(3)
            assert [len(await array.to_host()) for array in (x, y, z)] == [10, 5, 3]


async def test_a_date_that_jumps_costs_nothing(open_test_device, monkeypatch, tmp_path):
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", str(tmp_path / "kernels"))
    source = 'extern "C" __global__ void dated(int *x) { x[0] = %d; }'
    now = time.time
    for years in (0, 50, -20):
        monkeypatch.setattr(time, "time", lambda years=years: now() + years * 365 * 86400)
        monkeypatch.setattr(time, "time_ns", lambda years=years: int((now() + years * 365 * 86400) * 1e9))
        async with open_test_device() as dev:
            x = dev.zeros(1, np.int32)
            for number in (1, years):
                await (await dev.nvrtc.compile(source % number, "dated")).launch(1, 1, x)
                assert (await x.to_host()).tolist() == [number]


# --- processes that stand still, and clocks that jump -----------------------------------------------------------------


class JumpingClock:
    """The module `time`, whose clocks a test can put forward or back."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@pytest.mark.parametrize("seconds", [1e6, soak(-1e6)])
async def test_a_clock_that_jumps_blames_no_command_and_no_worker(open_test_device, monkeypatch, seconds):
    """So a process sees it that was stopped, or whose machine was suspended, for so long."""
    clock = JumpingClock()
    monkeypatch.setattr(_watch, "time", clock)
    async with open_test_device(hang_timeout=30) as dev:
        (touch,) = await compile_rogue(dev, "touch")
        x = await dev.to_device(np.zeros(10, np.int32))
        async with gated(dev) as gate, trio.open_nursery() as nursery:
            nursery.start_soon(touch.launch, 1, 32, x, 10)
            await until(lambda: dev.statistics().lanes[0].unfinished >= 2)
            looks = Looks(monkeypatch)
            await looks.wait(2)
            clock.ahead += seconds
            await looks.wait(3)
            await gate.open()
        assert (await x.to_host()).tolist() == [1] * 10
        assert dev.generation == 1


class Looks:
    """Counts how often the watchdog has come round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        check_hang = _watch.Watch.check_hang

        def count(watch: Any, now: float) -> None:
            check_hang(watch, now)
            self._count += 1

        monkeypatch.setattr(_watch.Watch, "check_hang", count)

    async def wait(self, more: int) -> None:
        wanted = self._count + more
        await until(lambda: self._count >= wanted)


STOPPED = """
import sys
import time
import numpy as np, trio, atomr_trio
from atomr_trio._device.device import core_of
from support.rogue import gated, until

async def main():
    async with atomr_trio.open_device(0, backend=sys.argv[1], hang_timeout=1.0) as dev:
        x = await dev.to_device(np.arange(10))
        async with gated(dev) as gate:
            lane = core_of(dev).current.timeline.lanes[0]
            await until(lambda: lane.front == lane.issued)  # the watchdog knows of it
            print("running", flush=True)
            await trio.to_thread.run_sync(sys.stdin.readline)
            await gate.open()
        assert (await x.to_host()).tolist() == list(range(10))
        print("generation", dev.generation)

trio.run(main)
"""


@pytest.mark.soak  # it stands still for more than a second
def test_a_program_that_was_stopped_blames_no_kernel_for_the_time(backend):
    command = [sys.executable, "-c", STOPPED, backend]
    with subprocess.Popen(
        command, env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout.readline() == "running\n"
            program.send_signal(signal.SIGSTOP)
            time.sleep(1.3)  # the kernel would have been over its limit in that time
            program.stdin.write("\n")
            program.stdin.flush()
            program.send_signal(signal.SIGCONT)
            assert program.communicate(timeout=60)[0] == "generation 1\n"
        finally:
            program.kill()
