"""`open_device` and `Device`: the lifetime, what leaves the block, and the supervision of generations.

A kernel that waits at a gate runs until a copy opens it: it is given the flag's address as a number, so that the copy
is not ordered behind it. With a gate that nobody opens it is a kernel that never ends.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import json
import logging
import math
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import outcome
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import atomr_trio
from atomr_trio import testing
from atomr_trio._calls.compiling import Compiling
from atomr_trio._device import ending, lifetime, supervisor, workers as _workers
from atomr_trio._device.device import core_of
from atomr_trio._generation import admission as _admission, generation as _generation, inbox as _inbox, watch as _watch
from atomr_trio._generation.adoption import reap
from atomr_trio._generation.loss import StartFailed
from atomr_trio._supervision.policy import RestartPolicy
from atomr_trio._transfers import copy_plan
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._values.state import DeviceState
from atomr_trio._wire import machine
from atomr_trio.libraries.modules import kernel as kernel_actor, module as module_actor
from support import child_environment, next_event, open_test_device, set_constant, supervisor_of
from support.descriptors import open_descriptors
from support.rogue import children

GATE = """
extern "C" __global__ void gate(unsigned long long flag) {
    while (*(volatile int *)flag == 0) { }
}
"""
WILD = 'extern "C" __global__ void wild(int *out) { *(volatile int *)16 = 1; }'

ONE = np.ones(1, np.int32)
NO_RESTARTS = RestartPolicy(intensity=0)


class Boom(Exception):
    """What the body of a test raises."""


def worker(device):
    """The worker process of the present generation."""
    return core_of(device).current.process


def is_gone(pid):
    """Whether a process has ended and has been reaped."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


def lose(device):
    """End the worker from outside, as the system does when memory is short."""
    os.kill(worker(device).pid, signal.SIGKILL)


def newest_child(but_not):
    """The youngest child process of this one, other than `but_not`. Numbers of processes begin anew at times."""

    def started(pid):
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[19])

    return max(children() - {but_not}, key=started)


async def until(condition, limit=20.0):
    """Wait until something is so."""
    with trio.fail_after(limit):
        while not condition():  # noqa: ASYNC110 (what is waited for is another process)
            await trio.sleep(0.002)


def balanced(device):
    """Whether every accepted request of a closed device was settled once."""
    return all(actor.unsettled == 0 for actor in device.statistics().actors)


def settled(device, actor):
    """The outcomes that an actor's mailbox has counted, without the zeros."""
    (found,) = (each for each in device.statistics().actors if each.name == actor)
    return {kind: count for kind, count in found.settled.items() if count}


class Gate:
    """A flag in device memory, and the kernel that waits for it."""

    @classmethod
    async def make(cls, device):
        gate = cls()
        gate.kernel = await device.nvrtc.compile(GATE, "gate")
        gate.flag = await device.to_device(np.zeros(1, np.int32))
        return gate

    async def wait(self):
        """Launch the kernel and wait for its end."""
        await self.kernel.launch(1, 1, self.flag.address)

    async def open(self):
        """Let the kernel end."""
        await self.flag.copy_from(ONE)


class Waiter:
    """A task beside the body of `open_device`, and how it ended."""

    def __init__(self, function, *arguments):
        self._function = function
        self._arguments = arguments
        self.value = None
        self.error = None
        self.ended = False

    async def run(self):
        try:
            self.value = await self._function(*self._arguments)
        except Exception as error:
            self.error = error
        finally:
            self.ended = True


def start(nursery, function, *arguments):
    waiter = Waiter(function, *arguments)
    nursery.start_soon(waiter.run)
    return waiter


@contextlib.contextmanager
def leaving_with(error, match=None):
    """What is inside raises this within a minute."""
    with trio.fail_after(60), pytest.raises(error, match=match) as caught:
        yield caught


async def listen(device, told, task_status):
    """Note every event of a device, until there are no more; those of the compiler are the matter of test_nvrtc."""
    async with device.events() as events:
        task_status.started()
        async for event in events:
            if not isinstance(event, atomr_trio.CompileStarted | atomr_trio.CompileFinished):
                told.append(event)


async def ends_of(*waiters):
    """Wait until every one of them has ended; their errors."""
    await until(lambda: all(waiter.ended for waiter in waiters))
    return [waiter.error for waiter in waiters]


class Workers:
    """Stands for `WorkerProcess`: what becomes of the workers that are started from now on."""

    def __init__(self, monkeypatch):
        self._real = _workers.WorkerProcess
        self.after_start = []
        self.started = 0
        monkeypatch.setattr(_workers, "WorkerProcess", self)

    def __call__(self, *arguments):
        self.started += 1
        action = self.after_start.pop(0) if self.after_start else None
        if isinstance(action, BaseException):
            raise action
        process = self._real(*arguments)
        if action is not None:
            os.kill(process.pid, action)
        return process


@pytest.fixture
def workers(monkeypatch):
    return Workers(monkeypatch)


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"index": -1},
        {"index": 14},
        {"index": True},
        {"index": 0.0},
        {"index": "0"},
        {"backend": "rocm"},
        {"standby": 5},
        {"on_fault": "ignore"},
        {"hang_timeout": 0},
        {"hang_timeout": -1.0},
        {"hang_timeout": math.nan},
        {"hang_timeout": "1"},
        {"hang_timeout": True},
        {"close_timeout": 0},
        {"close_timeout": None},
        {"close_timeout": math.nan},
        {"memory_limit": 0},
        {"memory_limit": -1},
        {"memory_limit": 1e9},
        {"memory_limit": True},
        {"restart_policy": 3},
    ],
    ids=str,
)
async def test_an_option_that_cannot_be_is_refused_before_anything_starts(options, workers):
    with pytest.raises(atomr_trio.InvalidArgument) as caught:
        async with open_test_device(**options):
            raise AssertionError("the body must not run")
    assert isinstance(caught.value, ValueError)
    assert workers.started == 0


async def test_the_backend_comes_from_the_environment_unless_it_is_given(monkeypatch, workers):
    monkeypatch.setenv("ATOMR_TRIO_BACKEND", "abacus")
    with pytest.raises(atomr_trio.InvalidArgument, match="abacus"):
        async with atomr_trio.open_device():
            raise AssertionError("the body must not run")
    assert workers.started == 0


def test_a_device_is_made_by_opening_it_only():
    with pytest.raises(TypeError, match="open_device"):
        atomr_trio.Device(0)


# -- what it is --------------------------------------------------------------------------------------------------------


async def test_a_device_says_what_it_is_while_it_is_open_and_after(backend):
    with trio.fail_after(30):
        async with open_test_device() as dev:
            pid = worker(dev).pid
            assert (dev.index, dev.backend, dev.generation, dev.state) == (0, backend, 1, DeviceState.RUNNING)
            assert dev.info.index == 0
            assert dev.info.name in repr(dev)
            assert "running, generation 1" in repr(dev)
            assert await dev.wait_generation(after=0) == 1
            statistics = dev.statistics()
            assert statistics.state is DeviceState.RUNNING
            assert statistics.restarts_left == 3
            assert statistics.last_error is None
            assert [actor.name for actor in statistics.actors] == list(lifetime.ACTORS)
            assert [lane.name for lane in statistics.lanes] == ["compute", "copy-in", "copy-out"]
    assert dev.state is DeviceState.CLOSED
    assert "closed, generation 1" in repr(dev)
    assert dev.statistics().uptime == 0
    assert balanced(dev)
    assert is_gone(pid)


@pytest.mark.parametrize(("system", "machine"), [("darwin", "x86_64"), ("win32", "AMD64"), ("linux", "riscv64")])
async def test_elsewhere_opening_says_where_devices_can_be_opened(monkeypatch, system, machine):
    monkeypatch.setattr(lifetime.sys, "platform", system)
    monkeypatch.setattr(lifetime.platform, "machine", lambda: machine)
    with pytest.raises(atomr_trio.DeviceFailed, match=f"Linux, x86-64 or aarch64, and this is {system} on {machine}"):
        async with open_test_device():
            pytest.fail("it was opened")


async def test_a_closed_device_refuses_everything_with_device_closed():
    with trio.fail_after(30):
        async with open_test_device() as dev:
            array = await dev.to_device(np.arange(4))
            gate = await Gate.make(dev)
            subscription = dev.events()
    calls = {
        "empty": lambda: dev.empty(3),
        "zeros": lambda: dev.zeros(3),
        "full": lambda: dev.full(3, 1),
        "launch_nowait": lambda: gate.kernel.launch_nowait(1, 1, gate.flag.address),
    }
    for name, call in calls.items():
        with pytest.raises(atomr_trio.DeviceClosed) as caught:
            call()
        assert isinstance(caught.value, trio.ClosedResourceError), name
        assert caught.value.device == 0
    waits = {
        "to_device": lambda: dev.to_device([1, 2]),
        "to_host": array.to_host,
        "copy_from": lambda: array.copy_from(np.arange(4)),
        "fill": lambda: array.fill(1),
        "launch": gate.wait,
        "compile": lambda: dev.nvrtc.compile(GATE, "gate"),
        "wait_generation": lambda: dev.wait_generation(after=0),
    }
    for name, call in waits.items():
        with leaving_with(atomr_trio.DeviceClosed):
            await call()
            raise AssertionError(f"{name} was taken")
    async with subscription as events:
        assert [event async for event in events] == []
    array.free()  # giving back is always allowed
    array.free()


async def test_two_devices_of_one_gpu_live_beside_each_other():
    with trio.fail_after(60):
        async with open_test_device() as one, open_test_device() as two:
            a, b = await one.to_device(np.arange(5)), await two.to_device(np.arange(5) * 2)
            lose(one)
            await one.wait_generation(after=1)
            assert (one.generation, two.generation) == (2, 1)
            np.testing.assert_array_equal(await a.to_host(), np.arange(5))
            np.testing.assert_array_equal(await b.to_host(), np.arange(5) * 2)


async def test_an_idle_device_keeps_no_array_alive(dev):
    with trio.fail_after(30):
        kernel = await dev.nvrtc.compile(WILD.replace("16", "out"), "wild")
        in_use = dev.statistics().memory.in_use
        array = await dev.to_device(np.arange(4, dtype=np.int32))
        await array.fill(1)
        await kernel.launch(1, 1, array)
        await array.to_host()
        assert dev.statistics().memory.in_use > in_use
        del array
        gc.collect()
        assert dev.statistics().memory.in_use == in_use


async def test_an_actor_that_crashed_keeps_no_array_alive(monkeypatch, dev):
    # A log record keeps the traceback of the crash, and pytest keeps the log records.
    for logger in ("atomr_trio.device", "atomr_trio.supervision"):
        monkeypatch.setattr(logging.getLogger(logger), "disabled", True)
    with trio.fail_after(30):
        array = await dev.to_device(np.arange(4))
        crash_on_start(monkeypatch, copy_plan.CopyRequest, 1)
        with pytest.raises(atomr_trio.ActorCrashed) as caught:
            await array.to_host()
        await until(lambda: dev.statistics().actors[0].restarts)
        del array, caught
        gc.collect()
        assert dev.statistics().memory.in_use == 0


@pytest.mark.sim_only
async def test_two_gpus_are_lost_one_by_one(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "2")
    with trio.fail_after(60):
        async with open_test_device(0) as first, open_test_device(1) as second:
            array = await second.to_device(np.arange(5))
            lose(first)
            await first.wait_generation(after=1)
            assert (first.generation, second.generation) == (2, 1)
            np.testing.assert_array_equal(await array.to_host(), np.arange(5))


# -- what leaves the block: facts that hold for every body -------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        Boom("plain"),
        ExceptionGroup("the user's own", [Boom("a"), ValueError("b")]),
        BaseExceptionGroup("the user's own", [SystemExit(3)]),
        SystemExit(3),
        StopAsyncIteration("odd"),
        StopIteration("odd"),
        trio.TooSlowError("odd"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_bodys_own_exception_leaves_as_the_same_object(error):
    with trio.fail_after(30):
        with pytest.raises(type(error)) as caught:
            async with open_test_device() as dev:
                raise error
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert dev.state is DeviceState.CLOSED


async def test_a_cancellation_from_outside_ends_the_body_and_leaves_the_device_usable_in_its_finally():
    got = []
    with trio.fail_after(30):
        with trio.CancelScope() as scope:
            async with open_test_device() as dev:
                array = await dev.to_device(np.arange(4))
                scope.cancel()
                try:
                    await trio.sleep_forever()
                finally:
                    with trio.CancelScope(shield=True):
                        got.append(await array.to_host())
                        got.append(dev.state)
    assert scope.cancelled_caught
    np.testing.assert_array_equal(got[0], np.arange(4))
    assert got[1] is DeviceState.RUNNING
    assert dev.state is DeviceState.CLOSED


async def test_leaving_raises_no_cancelled_of_its_own():
    with trio.fail_after(30):
        with trio.CancelScope() as scope:
            async with open_test_device() as dev:
                scope.cancel()  # and no checkpoint behind it
            left = True
    assert left
    assert not scope.cancelled_caught
    assert dev.state is DeviceState.CLOSED


async def test_a_cancellation_while_opening_leaves_nothing_behind(workers):
    before = open_descriptors(collect=True)
    with trio.fail_after(30):
        with trio.CancelScope() as scope:
            scope.cancel()
            async with open_test_device():
                raise AssertionError("the body must not run")
    assert scope.cancelled_caught
    assert workers.started == 1
    assert open_descriptors(collect=True) == before


async def test_a_cancellation_during_a_rebuild_is_not_held_up_by_it(workers):
    with trio.fail_after(30):
        with trio.CancelScope() as scope:
            async with open_test_device() as dev:
                workers.after_start = [signal.SIGSTOP]  # the next worker is never ready
                lose(dev)
                await until(lambda: workers.started == 2)
                new = newest_child(worker(dev).pid)
                scope.cancel()
                await dev.wait_generation(after=1)
    assert scope.cancelled_caught
    assert dev.state is DeviceState.CLOSED
    assert is_gone(new)


# -- closing -----------------------------------------------------------------------------------------------------------


async def test_leaving_lets_what_is_running_finish(nursery):
    with trio.fail_after(60):
        async with open_test_device(close_timeout=20) as dev:
            gate = await Gate.make(dev)
            running = start(nursery, gate.wait)
            await until(lambda: dev.statistics().lanes[0].unfinished)
            opening = start(nursery, gate.open)
            await until(lambda: dev.statistics().lanes[1].submitted == 2)
    assert await ends_of(running, opening) == [None, None]
    assert settled(dev, "module") == {"ok": 2}
    assert balanced(dev)


async def test_leaving_refuses_what_is_queued_at_once_and_kills_what_does_not_end(monkeypatch, nursery):
    set_constant(
        monkeypatch, _admission, "LANE_LIMIT", 1
    )  # one command on a lane, one request in hand, the rest queued
    with trio.fail_after(60):
        async with open_test_device(close_timeout=0.5) as dev:
            pid = worker(dev).pid
            gate = await Gate.make(dev)
            running = start(nursery, gate.wait)
            await until(lambda: dev.statistics().lanes[0].unfinished)
            queued = [start(nursery, gate.wait) for _ in range(3)]
            await until(lambda: dev.statistics().lanes[0].waiting == 1)
            left_at = time.monotonic()
            order = []

            async def watch():
                await ends_of(*queued)
                order.append(running.ended)

            nursery.start_soon(watch)
    assert 0.4 < time.monotonic() - left_at < 15
    for error in await ends_of(running, *queued):
        assert isinstance(error, atomr_trio.DeviceClosed)
    await until(lambda: order)
    assert order == [False]  # those that were queued did not wait for the one that was running
    assert balanced(dev)
    assert settled(dev, "module") == {"ok": 1, "failed": 4}
    assert is_gone(pid)


async def test_leaving_wakes_who_waits_for_generations_or_events(nursery):
    told = []

    async def wait(device):
        await device.wait_generation(after=1)

    children = len(nursery.child_tasks)
    with trio.fail_after(30):
        async with open_test_device() as dev:
            await nursery.start(listen, dev, told)
            waiting = start(nursery, wait, dev)
            await wait_all_tasks_blocked()
        (error,) = await ends_of(waiting)
        await until(lambda: len(nursery.child_tasks) == children)
    assert isinstance(error, atomr_trio.DeviceClosed)
    assert told == []


async def test_a_fault_while_closing_starts_no_new_generation(nursery, workers):
    with trio.fail_after(60):
        async with open_test_device(close_timeout=20) as dev:
            gate = await Gate.make(dev)
            running = start(nursery, gate.wait)
            await until(lambda: dev.statistics().lanes[0].unfinished)

            async def kill():
                await until(lambda: dev.state is DeviceState.CLOSING)
                lose(dev)

            nursery.start_soon(kill)
    (error,) = await ends_of(running)
    assert isinstance(error, atomr_trio.ContextLost)
    assert dev.generation == 1
    assert workers.started == 1
    assert balanced(dev)


async def test_a_worker_that_does_not_end_when_asked_is_killed():
    with trio.fail_after(30):
        async with open_test_device(close_timeout=0.3) as dev:
            pid = worker(dev).pid
            os.kill(pid, signal.SIGSTOP)
    assert is_gone(pid)
    assert dev.state is DeviceState.CLOSED


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


def run_interrupted(body):
    """Run a coroutine function that is interrupted somewhere; every worker it opened is gone afterwards."""
    devices = []

    async def main():
        with trio.fail_after(60):
            await body(devices)

    with pytest.raises(KeyboardInterrupt) as caught:
        trio.run(main)
    for dev in devices:
        assert dev.state is DeviceState.CLOSED
    assert not list(lifetime.open_now)
    return caught.value


def interrupt_when(condition):
    """Press Ctrl-C as soon as something is so."""

    async def press():
        while not condition():  # noqa: ASYNC110 (what is waited for is another process)
            await trio.sleep(0.001)
        signal.raise_signal(signal.SIGINT)

    trio.lowlevel.spawn_system_task(press)


def test_ctrl_c_in_the_body_leaves_as_itself():
    async def body(devices):
        async with open_test_device() as dev:
            devices.append(dev)
            signal.raise_signal(signal.SIGINT)
            await trio.sleep_forever()

    run_interrupted(body)


def test_ctrl_c_ends_the_wait_for_a_kernel_that_never_ends():
    times = []

    async def body(devices):
        async with open_test_device(close_timeout=0.3) as dev:
            devices.append(dev)
            gate = await Gate.make(dev)

            def launched():
                times[:] = [time.monotonic()]
                return dev.statistics().lanes[0].unfinished

            interrupt_when(launched)
            try:
                await gate.wait()
            finally:
                times.append(time.monotonic())

    run_interrupted(body)
    assert times[1] - times[0] < 1.0
    assert time.monotonic() - times[1] < 15


def test_ctrl_c_while_opening_leaves_no_worker(workers):
    async def body(devices):
        interrupt_when(lambda: workers.started)
        async with open_test_device():
            raise AssertionError("the body must not run")

    before = open_descriptors(collect=True)
    run_interrupted(body)
    assert open_descriptors(collect=True) == before


def test_ctrl_c_while_closing_is_not_lost_and_not_a_group():
    async def body(devices):
        async with open_test_device(close_timeout=0.5) as dev:
            devices.append(dev)
            gate = await Gate.make(dev)
            gate.kernel.launch_nowait(1, 1, gate.flag.address)
            interrupt_when(lambda: dev.state is DeviceState.CLOSING)

    run_interrupted(body)


def test_ctrl_c_while_rebuilding_ends_the_rebuild(workers):
    async def body(devices):
        async with open_test_device() as dev:
            devices.append(dev)
            workers.after_start = [signal.SIGSTOP]  # the next worker is never ready
            lose(dev)
            interrupt_when(lambda: workers.started == 2)
            await dev.wait_generation(after=1)

    run_interrupted(body)


# -- the first start ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "words"),
    [(signal.SIGKILL, "SIGKILL"), (OSError(24, "Too many open files"), "no file descriptor is left")],
    ids=["killed", "not spawned"],
)
async def test_a_first_start_that_fails_raises_its_error_plain_and_is_not_tried_again(workers, action, words):
    workers.after_start = [action]
    with leaving_with(atomr_trio.DeviceFailed, match=words) as caught:
        async with open_test_device():
            raise AssertionError("the body must not run")
    assert isinstance(caught.value, trio.BrokenResourceError)
    assert workers.started == 1


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("fault", "status", "name"),
    [
        ("cuInit:100:1", 100, "CUDA_ERROR_NO_DEVICE"),
        ("cuDevicePrimaryCtxRetain:2:1", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuStreamCreateWithPriority:999:1", 999, "CUDA_ERROR_UNKNOWN"),
    ],
)
async def test_a_driver_that_refuses_the_first_start_is_quoted(monkeypatch, fault, status, name):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", fault)
    with leaving_with(atomr_trio.DeviceFailed) as caught:
        async with open_test_device():
            raise AssertionError("the body must not run")
    error = caught.value
    assert (error.status, error.status_name, error.library, error.device) == (status, name, "cuda", 0)
    assert error.operation == fault.partition(":")[0]
    assert error.advice


@pytest.mark.sim_only
async def test_without_a_driver_the_error_names_the_places_that_were_looked_at(monkeypatch, tmp_path):
    monkeypatch.setenv("ATOMR_TRIO_CUDA_PATH", str(tmp_path / "libcuda.so.1"))
    with leaving_with(atomr_trio.LibraryNotFound) as caught:
        async with open_test_device(backend="cuda"):
            raise AssertionError("the body must not run")
    assert isinstance(caught.value, ImportError)
    assert str(tmp_path) in str(caught.value)
    assert str(caught.value).count("libcuda.so.1") == 2, "the file that was named, and what the loader says of it"
    assert (caught.value.advice or "").startswith("ATOMR_TRIO_CUDA_PATH names no driver that can be loaded")


def hide_scipy(monkeypatch, folder):
    """Have workers find no scipy."""
    hides = "u.find_spec = lambda name, *rest: None if name == 'scipy' else find(name, *rest)"
    (folder / "sitecustomize.py").write_text(f"import importlib.util as u; find = u.find_spec; {hides}")
    monkeypatch.syspath_prepend(folder)


@pytest.mark.sim_only
@pytest.mark.parametrize("whole", [True, False], ids=["simulator whole", "without scipy"])
async def test_without_a_gpu_the_first_error_names_what_works_here(monkeypatch, tmp_path, whole):
    """In the words that `doctor` has, too."""
    if not whole:
        hide_scipy(monkeypatch, tmp_path)
    monkeypatch.delenv("ATOMR_TRIO_CUDA_PATH", raising=False)
    if machine.nvidia_cards():
        pytest.skip("this machine has an NVIDIA GPU, and perhaps its driver")
    with leaving_with(atomr_trio.LibraryNotFound) as caught:
        async with open_test_device(backend="cuda"):
            raise AssertionError("the body must not run")
    advice = machine.without_driver([] if whole else ["scipy"])
    assert caught.value.advice == advice
    assert 'backend="sim"' in advice
    assert ('pip install "atomr-trio[sim]"' in advice) is not whole
    assert "Places looked at" in caught.value.message


@pytest.mark.sim_only
async def test_an_index_without_a_device_is_said_plainly(monkeypatch):
    with leaving_with(atomr_trio.DeviceFailed) as caught:
        async with open_test_device(13):
            raise AssertionError("the body must not run")
    assert caught.value.status == 101
    assert caught.value.advice.endswith("set it to 14, or use index 0.")
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "0")
    with leaving_with(atomr_trio.DeviceFailed) as caught:
        async with open_test_device():
            raise AssertionError("the body must not run")
    assert caught.value.status == 100
    assert caught.value.advice == "set ATOMR_TRIO_SIM_DEVICES to 1 or more, or unset it."


@pytest.mark.sim_only
@pytest.mark.parametrize(("variable", "text"), [("ATOMR_TRIO_SIM_MEMORY", "foo"), ("ATOMR_TRIO_SIM_DEVICES", "-1")])
async def test_a_setting_of_the_simulator_that_cannot_be_is_refused_by_its_name(monkeypatch, variable, text):
    monkeypatch.setenv(variable, text)
    with leaving_with(atomr_trio.DeviceFailed, match=f"{variable} is {text!r}; it is a number of"):
        async with open_test_device():
            raise AssertionError("the body must not run")


@pytest.mark.sim_only
async def test_the_simulated_solver_names_scipy_where_it_is_missing(monkeypatch, tmp_path):
    hide_scipy(monkeypatch, tmp_path)
    async with open_test_device() as dev:
        matrix, vector = await dev.to_device(np.eye(2)), await dev.to_device(np.ones((2, 1)))
        with pytest.raises(atomr_trio.LibraryNotFound, match=r"'scipy' was not found. .*\"atomr-trio\[sim\]\""):
            await dev.solver.solve(matrix, vector)
        assert dev.generation == 1


# -- losing a generation -----------------------------------------------------------------------------------------------


async def test_a_loss_is_told_to_everybody_and_the_next_generation_runs(nursery, caplog):
    caplog.set_level(logging.INFO, "atomr_trio.supervision")
    told = []
    with trio.fail_after(60):
        async with open_test_device() as dev:
            await nursery.start(listen, dev, told)
            old = worker(dev).pid
            gate = await Gate.make(dev)
            running = start(nursery, gate.wait)
            await until(lambda: dev.statistics().lanes[0].unfinished)
            lose(dev)
            assert await dev.wait_generation(after=1) == 2
            assert dev.state is DeviceState.RUNNING
            assert is_gone(old)
            (error,) = await ends_of(running)
            assert isinstance(error, atomr_trio.ContextLost)
            assert (error.generation, error.status, error.in_flight) == (1, None, ("launch of gate",))
            assert "SIGKILL" in error.reason
            assert error.message == f"{error.reason} (in flight: launch of gate)"
            statistics = dev.statistics()
            assert (statistics.generation, statistics.restarts_left) == (2, 2)
            assert "SIGKILL" in statistics.last_error
            assert statistics.lanes[0].submitted == 0  # counts of lanes belong to the generation
            await until(lambda: len(told) == 3)
    lost, reaped, rebuilt = told
    assert isinstance(lost, atomr_trio.ContextWasLost)
    assert (lost.generation, lost.status, lost.in_flight) == (1, None, ("launch of gate",))
    assert (lost.reported_by, lost.actors) == ("the operating system", ("module",))
    assert isinstance(reaped, atomr_trio.WorkerReaped)
    assert reaped.generation == 1
    assert isinstance(rebuilt, atomr_trio.ContextRebuilt)
    assert (rebuilt.generation, rebuilt.by_standby) == (2, False)
    assert 0 < reaped.seconds < rebuilt.seconds < 30
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO", "INFO"]


async def test_a_kernel_that_faults_costs_its_generation_and_carries_the_status(dev):
    with trio.fail_after(60):
        wild = await dev.nvrtc.compile(WILD, "wild")
        with pytest.raises(atomr_trio.ContextLost) as caught:
            await wild.launch(1, 1, dev.zeros(1, np.int32))
        assert (caught.value.status, caught.value.status_name) == (700, "CUDA_ERROR_ILLEGAL_ADDRESS")
        assert "(in flight: launch of wild)" in str(caught.value)
        assert ("compute-sanitizer" in str(caught.value)) is (dev.info.backend == "cuda")
        assert ("atomr_trio check" in str(caught.value)) is (dev.info.backend == "sim")
        assert await dev.wait_generation(after=caught.value.generation) == 2


async def test_requests_sent_during_a_rebuild_wait_and_those_that_may_not_wait_are_refused(nursery, workers):
    with trio.fail_after(60):
        async with open_test_device() as dev:
            array = await dev.to_device(np.arange(4))
            gate = await Gate.make(dev)
            await gate.open()
            workers.after_start = [signal.SIGSTOP]
            lose(dev)
            await until(lambda: workers.started == 2)
            assert dev.state is DeviceState.REBUILDING
            assert dev.generation == 1
            patient, impatient = start(nursery, array.to_host), start(nursery, gate.wait)
            with trio.move_on_after(0.05) as scope:  # the caller's scope is the timeout
                await array.to_host()
            assert scope.cancelled_caught
            with pytest.raises(trio.WouldBlock):
                gate.kernel.launch_nowait(1, 1, gate.flag.address)
            assert not patient.ended
            os.kill(newest_child(worker(dev).pid), signal.SIGCONT)
            assert await ends_of(patient, impatient) == [None, None]
            np.testing.assert_array_equal(patient.value, np.arange(4))
            assert dev.generation == 2
            gate.kernel.launch_nowait(1, 1, gate.flag.address)
    assert settled(dev, "memory")["cancelled"] == 1
    assert balanced(dev)


# -- budgets -----------------------------------------------------------------------------------------------------------


async def test_a_spent_budget_leaves_the_block_as_device_failed_also_when_nothing_was_running():
    with leaving_with(atomr_trio.DeviceFailed) as caught:
        async with open_test_device(restart_policy=NO_RESTARTS) as dev:
            lose(dev)
            await trio.sleep_forever()
    error = caught.value
    assert isinstance(error.__cause__, atomr_trio.ContextLost)
    assert (error.device, error.generation) == (0, 1)
    assert "0 restarts" in error.message
    assert dev.state is DeviceState.FAILED
    with pytest.raises(atomr_trio.DeviceFailed) as later:
        dev.empty(1)
    assert later.value is not error


async def test_a_spent_budget_settles_everything(monkeypatch, nursery):
    set_constant(monkeypatch, _admission, "LANE_LIMIT", 1)

    async def wait(device):
        await device.wait_generation(after=1)

    with leaving_with(atomr_trio.DeviceFailed):
        async with open_test_device(restart_policy=NO_RESTARTS) as dev:
            gate = await Gate.make(dev)
            waiters = [start(nursery, gate.wait)]
            await until(lambda: dev.statistics().lanes[0].unfinished)
            # One runs, one is in the actor's hands, the mailbox is full, and two wait for room.
            waiters += [start(nursery, gate.wait) for _ in range(lifetime.MAILBOX_CAPACITY + 3)]
            waiters.append(start(nursery, wait, dev))
            await until(lambda: dev.statistics().actors[1].queued == lifetime.MAILBOX_CAPACITY)
            await wait_all_tasks_blocked()
            lose(dev)
            await trio.sleep_forever()
    errors = await ends_of(*waiters)
    assert {type(error) for error in errors} == {atomr_trio.DeviceFailed}
    assert len({id(error) for error in errors}) == len(errors)
    assert balanced(dev)
    assert settled(dev, "module") == {"ok": 1, "failed": len(waiters) - 1}


async def test_a_failure_leaves_plain_also_when_the_body_has_tasks_of_its_own():
    with leaving_with(atomr_trio.DeviceFailed) as caught:
        async with open_test_device(restart_policy=NO_RESTARTS) as dev:
            gate = await Gate.make(dev)
            async with trio.open_nursery() as tasks:
                for _ in range(3):
                    tasks.start_soon(gate.wait)
                await until(lambda: dev.statistics().lanes[0].submitted >= 5)
                lose(dev)
                await trio.sleep_forever()
    assert str(caught.value) == str(core_of(dev).ended)


async def test_a_body_exception_is_the_context_of_the_failure(nursery):
    with leaving_with(atomr_trio.DeviceFailed) as caught:
        async with open_test_device(restart_policy=NO_RESTARTS) as dev:
            lose(dev)
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                raise Boom("while being cancelled") from None
    assert isinstance(caught.value.__context__, Boom)
    assert isinstance(caught.value.__cause__, atomr_trio.ContextLost)


async def test_a_body_that_hears_of_the_failure_and_ends_well_does_not_hide_it():
    with leaving_with(atomr_trio.DeviceFailed):
        async with open_test_device(restart_policy=NO_RESTARTS) as dev:
            lose(dev)
            with contextlib.suppress(atomr_trio.DeviceFailed):
                await dev.wait_generation(after=1)


async def test_the_events_of_a_device_that_is_given_up_end_with_that_news(nursery):
    told = []
    with leaving_with(atomr_trio.DeviceFailed):
        async with open_test_device(restart_policy=NO_RESTARTS) as dev:
            await nursery.start(listen, dev, told)
            lose(dev)
            await trio.sleep_forever()
    await until(lambda: len(told) == 2)
    assert [type(event) for event in told] == [atomr_trio.ContextWasLost, atomr_trio.DeviceGaveUp]
    assert "0 restarts" in told[1].reason


async def test_restarts_within_the_budget_go_on_and_the_next_one_fails():
    with leaving_with(atomr_trio.DeviceFailed) as caught:
        async with open_test_device(restart_policy=RestartPolicy(intensity=2)) as dev:
            array = await dev.to_device(np.arange(6))
            for generation in (1, 2):
                lose(dev)
                assert await dev.wait_generation(after=generation) == generation + 1
                np.testing.assert_array_equal(await array.to_host(), np.arange(6))
            lose(dev)
            await trio.sleep_forever()
    assert dev.generation == 3
    assert "`restart_policy=RestartPolicy(intensity=" in caught.value.advice
    assert "make them anew" in caught.value.advice


async def test_a_device_that_fails_by_a_fault_advises_more_restarts_and_its_cause_names_the_launch():
    with leaving_with(atomr_trio.DeviceFailed) as caught:
        async with open_test_device(restart_policy=NO_RESTARTS) as dev:
            wild = await dev.nvrtc.compile(WILD, "wild")
            await wild.launch(1, 1, dev.zeros(1, np.int32))
    assert caught.value.status == 700
    assert "restart_policy" in caught.value.advice
    assert "index arithmetic" not in caught.value.advice
    assert caught.value.__cause__.in_flight == ("launch of wild",)


async def test_starts_that_fail_spend_the_budget_too(workers):
    policy = RestartPolicy(intensity=2, backoff_min=0.001, backoff_max=0.01)
    with leaving_with(atomr_trio.DeviceFailed) as caught:
        async with open_test_device(restart_policy=policy) as dev:
            workers.after_start = [signal.SIGKILL] * 10
            lose(dev)
            await trio.sleep_forever()
    assert workers.started == 3  # the first, and two attempts
    assert dev.generation == 1
    assert "more than 2 restarts" in caught.value.message
    assert isinstance(caught.value.__cause__, atomr_trio.DeviceFailed)
    assert "SIGKILL" in str(caught.value.__cause__)


async def test_a_system_that_cannot_start_a_process_is_asked_again(workers):
    policy = RestartPolicy(intensity=5, backoff_min=0.001, backoff_max=0.01)
    with trio.fail_after(60):
        async with open_test_device(restart_policy=policy) as dev:
            array = await dev.to_device(np.arange(6))
            workers.after_start = [OSError(24, "no file descriptor is left")] * 2
            lose(dev)
            assert await dev.wait_generation(after=1) == 2
            np.testing.assert_array_equal(await array.to_host(), np.arange(6))


@pytest.mark.sim_only
async def test_hardware_that_is_gone_is_not_tried_again(monkeypatch, workers):
    with leaving_with(atomr_trio.DeviceFailed) as caught:
        async with open_test_device() as dev:
            monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cuInit:100:1")
            lose(dev)
            await trio.sleep_forever()
    assert caught.value.status == 100
    assert workers.started == 2
    assert dev.state is DeviceState.FAILED


def test_the_wait_after_a_failed_start_is_by_trios_clock(workers):
    clock = MockClock(rate=1.0)
    policy = RestartPolicy(intensity=10, backoff_min=1000, backoff_max=4000, jitter=0, period=1e9)

    async def main():
        async with open_test_device(restart_policy=policy) as dev:
            workers.after_start = [signal.SIGKILL] * 2
            lose(dev)
            # The first attempt follows the loss at once; each failure after that doubles the wait.
            for attempts, delay in ((2, 1000), (3, 2000)):
                await until_really(lambda attempts=attempts: workers.started == attempts and sleeping(100))
                clock.jump(delay - 100)
                await wait_all_tasks_blocked()
                assert workers.started == attempts
                assert dev.state is DeviceState.REBUILDING
                clock.jump(200)
            await until_really(lambda: dev.state is DeviceState.RUNNING)
            assert dev.generation == 2
            assert workers.started == 4

    def sleeping(delay):
        return delay < trio.lowlevel.current_statistics().seconds_to_next_deadline < math.inf

    async def until_really(condition):
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            await trio.sleep(0.002)
            await trio.lowlevel.checkpoint()

    trio.run(main, clock=clock)


async def test_leaving_during_the_wait_after_a_failed_start_takes_no_time(workers, nursery):
    policy = RestartPolicy(intensity=10, backoff_min=1000, backoff_max=1000)
    with trio.fail_after(30):
        async with open_test_device(restart_policy=policy) as dev:
            array = await dev.to_device(np.arange(4))
            workers.after_start = [signal.SIGKILL]
            lose(dev)
            await until(lambda: workers.started == 2 and "while it started" in (dev.statistics().last_error or ""))
            waiting = start(nursery, array.to_host)
            await wait_all_tasks_blocked()
    (error,) = await ends_of(waiting)
    assert isinstance(error, atomr_trio.DeviceClosed)
    assert dev.state is DeviceState.CLOSED
    assert balanced(dev)


async def test_leaving_while_a_worker_starts_ends_that_worker(workers, nursery):
    with trio.fail_after(30):
        async with open_test_device() as dev:
            array = await dev.to_device(np.arange(4))
            old = worker(dev).pid
            workers.after_start = [signal.SIGSTOP]
            lose(dev)
            await until(lambda: workers.started == 2)
            new = newest_child(old)
            waiting = start(nursery, array.to_host)
            await wait_all_tasks_blocked()
    (error,) = await ends_of(waiting)
    assert isinstance(error, atomr_trio.DeviceClosed)
    assert dev.generation == 1
    assert is_gone(old)
    assert is_gone(new)


# -- actors that crash -------------------------------------------------------------------------------------------------


def crash_on_start(monkeypatch, request_class, times):
    """Have the next `times` requests of a class crash their actor."""
    real = request_class.start
    left = [times]

    def start_or_crash(request, generation):
        if left[0]:
            left[0] -= 1
            raise Boom(f"bug in {request.operation}")
        real(request, generation)

    monkeypatch.setattr(request_class, "start", start_or_crash)


async def test_an_actor_that_crashes_restarts_alone(monkeypatch, nursery, caplog):
    with trio.fail_after(60):
        async with open_test_device() as dev, dev.events() as events:
            gate = await Gate.make(dev)
            running = start(nursery, gate.wait)
            await until(lambda: dev.statistics().lanes[0].unfinished)
            generation, scopes = core_of(dev).current, {actor.name: actor.scope for actor in core_of(dev).actors}
            crash_on_start(monkeypatch, kernel_actor.LaunchRequest, 1)
            with pytest.raises(atomr_trio.ActorCrashed) as caught:
                await gate.wait()
            error = caught.value
            assert isinstance(error.__cause__, Boom)
            assert (error.actor, error.device, error.generation) == ("module", 0, 1)
            assert "please report" in str(error)
            event = await next_event(events)
            assert isinstance(event, atomr_trio.ActorRestarted)
            assert event.actor == "module"
            assert event.error is error.__cause__
            # What had been submitted goes on, the others did not notice, and the actor serves again.
            assert not running.ended
            assert core_of(dev).current is generation
            assert not generation.scope.cancel_called
            await gate.open()
            await gate.wait()
            assert await ends_of(running) == [None]
            for actor in core_of(dev).actors:
                same = actor.scope is scopes[actor.name]
                assert same == (actor.name != "module")
                assert not actor.scope.cancel_called
                assert scopes[actor.name].cancel_called == (actor.name == "module")
            statistics = dev.statistics()
            assert {actor.name for actor in statistics.actors if actor.restarts} == {"module"}
            assert sum(actor.restarts for actor in statistics.actors) == 1
            assert statistics.restarts_left == 3
            assert "Boom" in statistics.last_error
    assert settled(dev, "module") == {"ok": 3, "lost": 1}
    assert dev.generation == 1
    assert any(record.exc_info and record.levelno == logging.ERROR for record in caplog.records)


async def test_requests_behind_a_crash_stay_queued_and_run(monkeypatch, nursery, dev):
    with trio.fail_after(30):
        array = await dev.to_device(np.arange(4))
        crash_on_start(monkeypatch, copy_plan.CopyRequest, 1)
        waiters = [start(nursery, array.to_host) for _ in range(5)]
        await ends_of(*waiters)
        crashed = [waiter for waiter in waiters if waiter.error is not None]
        assert len(crashed) == 1
        assert isinstance(crashed[0].error, atomr_trio.ActorCrashed)
        for waiter in waiters:
            if waiter.error is None:
                np.testing.assert_array_equal(waiter.value, np.arange(4))


async def test_two_actors_that_crash_at_the_same_time_both_come_back(monkeypatch, nursery):
    with trio.fail_after(30):
        async with open_test_device() as dev:
            gate = await Gate.make(dev)
            await gate.open()
            crash_on_start(monkeypatch, kernel_actor.LaunchRequest, 1)
            crash_on_start(monkeypatch, copy_plan.CopyRequest, 1)
            waiters = [start(nursery, gate.wait), start(nursery, gate.flag.to_host)]
            assert {type(error) for error in await ends_of(*waiters)} == {atomr_trio.ActorCrashed}
            await gate.wait()
            np.testing.assert_array_equal(await gate.flag.to_host(), ONE)
            # Each answers its caller when it crashes, and is started again after that.
            await until(lambda: [actor.restarts for actor in dev.statistics().actors][:3] == [1, 1, 0])


async def test_an_actor_that_crashes_after_it_has_published_settles_once(monkeypatch, dev):
    real = kernel_actor.LaunchRequest.start

    def publish_and_crash(request, generation):
        real(request, generation)
        monkeypatch.setattr(kernel_actor.LaunchRequest, "start", real)
        raise Boom("late")

    with trio.fail_after(30):
        gate = await Gate.make(dev)
        await gate.open()
        monkeypatch.setattr(kernel_actor.LaunchRequest, "start", publish_and_crash)
        with pytest.raises(atomr_trio.ActorCrashed):
            await gate.wait()
        await gate.wait()
        assert dev.generation == 1
        assert settled(dev, "module") == {"ok": 2, "lost": 1}


@pytest.mark.parametrize("lost", [False, True], ids=["that ends", "that is lost"])
async def test_an_actor_that_crashes_after_it_has_published_a_load_settles_once(monkeypatch, dev, lost):
    real = module_actor.LoadRequest.start

    def publish_and_crash(request, generation):
        real(request, generation)
        monkeypatch.setattr(module_actor.LoadRequest, "start", real)
        if lost:
            os.kill(worker(dev).pid, signal.SIGKILL)
        raise Boom("late")

    with trio.fail_after(30):
        monkeypatch.setattr(module_actor.LoadRequest, "start", publish_and_crash)
        with pytest.raises((atomr_trio.ActorCrashed, atomr_trio.ContextLost)):
            await dev.nvrtc.compile(GATE, "gate")
        await dev.wait_generation(after=int(lost))
        gate = await Gate.make(dev)
        await gate.open()
        await gate.wait()
        assert settled(dev, "module") == {"ok": 2, "lost": 1}


async def test_an_actor_that_keeps_crashing_costs_the_context(monkeypatch, nursery):
    with trio.fail_after(60):
        async with open_test_device() as dev:
            gate = await Gate.make(dev)
            await gate.open()
            crash_on_start(monkeypatch, kernel_actor.LaunchRequest, 4)
            for _ in range(4):
                with pytest.raises(atomr_trio.ActorCrashed):
                    await gate.wait()
            assert await dev.wait_generation(after=1) == 2
            await gate.wait()
            statistics = dev.statistics()
            assert statistics.restarts_left == 2
            assert "actor module needed more than 3 restarts" in statistics.last_error
    assert balanced(dev)


async def test_leaving_while_an_actor_keeps_crashing_is_bounded(monkeypatch, nursery):
    with trio.fail_after(30):
        async with open_test_device(close_timeout=0.3) as dev:
            gate = await Gate.make(dev)
            os.kill(worker(dev).pid, signal.SIGSTOP)  # the probe that follows a crash is not answered
            crash_on_start(monkeypatch, kernel_actor.LaunchRequest, 1)
            with pytest.raises(atomr_trio.ActorCrashed):
                await gate.wait()
    assert dev.state is DeviceState.CLOSED
    assert balanced(dev)


# -- everything at once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_request_is_settled_once_whatever_happens(monkeypatch, seed):
    """Tasks ask, are cancelled at random, and meanwhile workers are killed and actors crash."""
    dice = random.Random(seed)
    ends = collections.Counter()
    real = copy_plan.CopyRequest.start

    def start_or_crash(request, generation):
        if dice.random() < 0.03:
            raise Boom("at random")
        real(request, generation)

    async def work(device, array, value):
        for _ in range(12):
            with trio.move_on_after(dice.choice([0, 0.001, 0.01, 10])) as scope:
                try:
                    match dice.randrange(3):
                        case 0:
                            await array.fill(value)
                        case 1:
                            await array.copy_from(np.full(array.shape, value))
                        case 2:
                            host = await array.to_host()
                            assert (host == host[0]).all()
                    ends["ok"] += 1
                except (atomr_trio.ContextLost, atomr_trio.StaleArray, atomr_trio.ActorCrashed) as error:
                    ends[type(error).__name__] += 1
                    await device.wait_generation(after=0)
            ends["cancelled"] += scope.cancelled_caught

    with trio.fail_after(60):
        monkeypatch.setattr(copy_plan.CopyRequest, "start", start_or_crash)
        async with open_test_device(restart_policy=RestartPolicy(intensity=math.inf)) as dev:
            arrays = [await dev.to_device(np.full(1000, number)) for number in range(8)]
            async with trio.open_nursery() as nursery:
                for number, array in enumerate(arrays):
                    nursery.start_soon(work, dev, array, number)
                for _ in range(2):
                    await trio.sleep(dice.random() * 0.01)
                    lose(dev)
                    await dev.wait_generation(after=dev.generation)
            monkeypatch.setattr(copy_plan.CopyRequest, "start", real)
            for array in arrays:
                await array.fill(5)
                assert (await array.to_host() == 5).all()
            assert core_of(dev).part(Transfers).staging.idle
        assert balanced(dev)
        assert ends["ok"] > 0
        assert dev.generation >= 3


# -- closing, at the worst moment --------------------------------------------------------------------------------------


@pytest.mark.parametrize("good", [True, False], ids=["ready", "failed"])
async def test_a_worker_that_has_started_when_the_device_is_closed_is_not_needed_any_more(monkeypatch, good):
    real, before, starting = _generation.Generation.start, children(), trio.Event()

    async def start_late(generation, show=None):
        with trio.CancelScope(shield=True):
            starting.set()
            await supervisor_of(dev).ending.begun.wait()
            await real(generation, show)
        if not good:
            raise StartFailed(atomr_trio.DeviceFailed("at the last moment"), gone=False)

    with trio.fail_after(60):
        async with open_test_device() as dev:
            monkeypatch.setattr(_generation.Generation, "start", start_late)
            lose(dev)
            await starting.wait()
    assert dev.generation == 1
    assert dev.state is DeviceState.CLOSED
    assert children() == before


async def test_a_restart_that_finds_the_device_rebuilding_waits_for_that(dev, nursery):
    with trio.fail_after(60):
        with testing.hold_rebuild(dev):
            lose(dev)
            await until(lambda: dev.state is DeviceState.REBUILDING)
            restarting = start(nursery, dev.restart, "to be sure")
            await wait_all_tasks_blocked()
            assert not restarting.ended
        assert await ends_of(restarting) == [None]
        assert restarting.value == dev.generation == 2


async def test_a_compile_under_way_hears_of_the_closing_and_its_result_of_nobody(monkeypatch, nursery):
    results = []
    with trio.fail_after(60):
        async with open_test_device() as dev:
            monkeypatch.setattr(
                core_of(dev).part(Compiling).service, "submit", lambda *arguments: results.append(arguments[3])
            )
            compiling = start(nursery, dev.nvrtc.compile, WILD, "wild")
            await until(lambda: results)
        (error,) = await ends_of(compiling)
    assert isinstance(error, atomr_trio.DeviceClosed)
    (deliver,) = results
    deliver(outcome.Value("a program"))
    assert settled(dev, "nvrtc") == {"failed": 1}


# -- defects of ours ---------------------------------------------------------------------------------------------------


async def test_a_defect_of_the_supervision_leaves_as_internal_error_and_settles_everything(monkeypatch, nursery):
    with leaving_with(atomr_trio.AtomrInternalError) as caught:
        async with open_test_device() as dev:
            gate = await Gate.make(dev)
            running = start(nursery, gate.wait)
            await until(lambda: dev.statistics().lanes[0].unfinished)
            real = _inbox.Inbox.drain
            crashed = []

            def crash_once(inbox):
                if not crashed:
                    crashed.append(True)
                    raise Boom("in the reader")
                real(inbox)

            monkeypatch.setattr(_inbox.Inbox, "drain", crash_once)
            pid = worker(dev).pid
            lose(dev)
            await trio.sleep_forever()
    assert "please report" in str(caught.value)
    assert caught.value.__cause__ is not None
    (error,) = await ends_of(running)
    assert isinstance(error, atomr_trio.DeviceFailed)
    assert dev.state is DeviceState.FAILED
    assert balanced(dev)
    assert is_gone(pid)


async def test_a_defect_that_finds_the_worker_gone_is_no_clean_end(monkeypatch, nursery):
    async def broken(watch):
        await trio.lowlevel.wait_readable(watch._process.pidfd)
        assert watch._process.reap()
        raise Boom("before the loss was noted")

    monkeypatch.setattr(_watch.Watch, "run_exit", broken)
    with leaving_with(atomr_trio.AtomrInternalError, "before the loss was noted"):
        async with open_test_device() as dev:
            gate = await Gate.make(dev)
            running = start(nursery, gate.wait)
            await until(lambda: dev.statistics().lanes[0].unfinished)
            lose(dev)
            await trio.sleep_forever()
    (error,) = await ends_of(running)
    assert isinstance(error, atomr_trio.DeviceFailed)
    assert balanced(dev)


async def test_a_defect_while_a_generation_is_made_leaves_no_worker(monkeypatch):
    def broken(*arguments, **options):
        raise Boom("in the constructor")

    before = children()
    monkeypatch.setattr(_workers, "Generation", broken)
    with leaving_with(Boom):
        async with open_test_device():
            pytest.fail("it was opened")
    assert children() == before


@pytest.mark.parametrize("times", [1, math.inf], ids=["at first", "never"])
async def test_a_worker_that_is_not_reaped_is_a_defect_and_costs_no_other_worker(monkeypatch, caplog, times):
    real, before, attempts = _workers.reap, children(), itertools.count(1)

    async def reap_later(process):
        if process is stuck and next(attempts) <= times:
            raise atomr_trio.AtomrInternalError("it is not reaped")
        await real(process)

    with leaving_with(atomr_trio.AtomrInternalError, "not reaped"):
        async with open_test_device() as dev:
            generation, stuck = core_of(dev).current, worker(dev)
            monkeypatch.setattr(_workers, "reap", reap_later)
            monkeypatch.setattr(ending, "reap", reap_later)
            lose(dev)
            await trio.sleep_forever()
    left = [record for record in caplog.records if "was not settled" in record.message]
    assert len(left) == (times > 1)
    await real(stuck)
    generation.close()
    assert children() == before


async def test_a_defect_while_the_device_is_closed_leaves_as_internal_error(monkeypatch):
    async def broken(generation):
        raise Boom("at the clean end")

    with leaving_with(atomr_trio.AtomrInternalError, "at the clean end"):
        async with open_test_device() as dev:
            monkeypatch.setattr(supervisor_of(dev).workers, "close", broken)
            pid = worker(dev).pid
    assert dev.state is DeviceState.CLOSED
    assert is_gone(pid)
    with pytest.raises(atomr_trio.DeviceClosed):
        dev.empty(1)


async def test_a_defect_that_the_supervisor_does_not_catch_ends_the_body_all_the_same(monkeypatch):
    async def broken(device):
        raise Boom("outside of everything")

    monkeypatch.setattr(supervisor.Supervisor, "run", broken)
    with leaving_with(atomr_trio.AtomrInternalError, "a task of the device raised") as caught:
        async with open_test_device() as dev:
            await trio.sleep_forever()
    assert isinstance(caught.value.__cause__.exceptions[0], Boom)
    await reap(worker(dev))
    core_of(dev).current.close()


# -- fork --------------------------------------------------------------------------------------------------------------


def step(coroutine):
    """Run a coroutine up to its first wait, without trio; what it raises there."""
    try:
        coroutine.send(None)
    except BaseException as error:
        return type(error).__name__
    coroutine.close()
    return "waits"


def exit_status(child):
    return os.waitpid(child, 0)[1]


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
async def test_in_a_forked_child_the_device_has_failed_and_the_parent_does_not_notice():
    known = set(open_descriptors(collect=True))
    with trio.fail_after(60):
        async with open_test_device() as dev:
            array = await dev.to_device(np.arange(4))
            gate = await Gate.make(dev)
            await gate.open()
            ours, theirs = os.pipe()
            known.update({str(ours), str(theirs)})
            child = os.fork()
            if child == 0:
                try:
                    answers = [
                        step(array.to_host()),
                        step(array.fill(1)),
                        step(dev.to_device([1])),
                        step(gate.wait()),
                        step(dev.nvrtc.compile(WILD, "wild")),
                    ]
                    try:
                        dev.empty(3)
                    except atomr_trio.DeviceFailed as error:
                        answers.append("forked" if "forked" in str(error) else str(error))
                    array.free()
                    answers.append(dev.state.value)
                    grandchild = os.fork()
                    if grandchild == 0:
                        os._exit(0)
                    answers.append(f"a child of its own ends with {exit_status(grandchild)}")
                    del array, gate
                    gc.collect()
                    left = {fd: link for fd, link in open_descriptors().items() if fd not in known}
                    os.write(theirs, json.dumps([answers, left]).encode())
                except BaseException as error:
                    os.write(theirs, json.dumps([[repr(error)], {}]).encode())
                finally:
                    os._exit(0)
            os.close(theirs)
            await trio.lowlevel.wait_readable(ours)
            answers, left = json.loads(os.read(ours, 4096))
            os.close(ours)
            assert exit_status(child) == 0
            assert answers == [
                *["DeviceFailed"] * 5,
                "forked",
                "closed",
                "a child of its own ends with 0",
            ]
            np.testing.assert_array_equal(await array.to_host(), np.arange(4))
            await gate.wait()
            assert dev.generation == 1
            del array, gate
    # A timer is left in the child, and what this process has opened for good, such as the file of libffi for its first
    # callback; nothing that holds memory, or the worker.
    kept = open_descriptors(collect=True)
    assert [link for fd, link in left.items() if "timerfd" not in link and kept.get(fd) != link] == []


# -- import ------------------------------------------------------------------------------------------------------------


def test_importing_starts_nothing():
    code = """
import ctypes, os, signal, sys, threading
ctypes.CFUNCTYPE(None)(lambda: None)  # for which some builds of libffi open their own file
handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM)}
fds = set(os.listdir("/proc/self/fd"))
import atomr_trio
atomr_trio.open_device, atomr_trio.Device, atomr_trio.NvrtcOptions
assert handlers == {number: signal.getsignal(number) for number in handlers}
assert set(os.listdir("/proc/self/fd")) == fds
assert threading.active_count() == 1
maps = open("/proc/self/maps").read()
assert "libcuda" not in maps and "libnvrtc" not in maps and "libcudart" not in maps
assert not [name for name in sys.modules if name.startswith("atomr_sim")]
assert open(f"/proc/self/task/{os.getpid()}/children").read() == ""
"""
    environment = child_environment()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
