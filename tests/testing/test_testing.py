"""`atomr_trio.testing`: faults on request, and the kit that says whether a call keeps its promises."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import outcome
import pytest
import trio
import trio.testing

from atomr_trio import (
    CommandFailed,
    ContextLost,
    DeviceClosed,
    DeviceError,
    DeviceFailed,
    InvalidArgument,
    OutOfDeviceMemory,
    RestartPolicy,
    read_only,
)
from atomr_trio._device.device import core_of
from atomr_trio._generation import watch as _watch
from atomr_trio._generation.requests import CommandRequest
from atomr_trio._supervision.mailbox import Request
from atomr_trio._wire.protocol import Role
from atomr_trio._wire.records.memory import FILL
from atomr_trio.testing import (
    Crash,
    Delay,
    Exit,
    Fault,
    Hang,
    NoHostMemory,
    Poison,
    ReturnStatus,
    WorkerPool,
    _conformance,
    _faults,
    cause,
    check_actor,
    endless_kernel,
    hold_rebuild,
    hold_worker,
    inject,
    inject_at_start,
    kill_worker,
    launch_once,
    worker_pid,
)
from support import ON_GPU, open_test_device, set_constant
from support.rogue import compile_rogue, next_generation, until

ANY_NUMBER = RestartPolicy(intensity=math.inf)
HASTY = RestartPolicy(intensity=2, backoff_min=0.0, backoff_max=0.0)
DEADLINE = 300
HANG_TIMEOUT = 5 if ON_GPU else 1.5  # to load a module may take long where many others work
"""More than any command takes on a busy machine that is not meant to hang."""
FAULTS = "ATOMR_TRIO_SIM_FAULTS"


# --- injection --------------------------------------------------------------------------------------------------------


@pytest.mark.sim_only
async def test_an_injected_fault_hits_the_call_that_was_asked_for_and_no_other(dev):
    (touch,) = await compile_rogue(dev, "touch")
    x = await dev.to_device(np.zeros(10, np.int32))
    inject(dev, "cuLaunchKernelEx", ReturnStatus(701), call=2, times=2)
    outcomes = [await outcome.acapture(touch.launch, 1, 32, x, 10) for _ in range(4)]
    refused = [isinstance(each, outcome.Error) for each in outcomes]
    assert refused == [False, True, True, False]
    error = outcomes[1].error
    assert (type(error), error.status, error.operation) == (CommandFailed, 701, "launch of touch")
    assert (await x.to_host() == 2).all()
    assert dev.generation == 1


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("action", "status", "words"),
    [
        (Poison(719), 719, "launch failed"),
        (Hang(), None, "memory.copy_out ran longer than hang_timeout"),
        (Crash(), None, "SIGSEGV"),
        (Crash(signal.SIGABRT), None, "SIGABRT"),
        (Exit(3), None, "exited with status 3"),
        (NoHostMemory(), None, "ran out of host memory"),
    ],
    ids=str,
)
async def test_an_injected_fault_that_costs_the_worker_is_a_loss_and_the_next_worker_knows_nothing_of_it(
    open_test_device, action, status, words
):
    with trio.fail_after(DEADLINE):
        async with open_test_device(hang_timeout=HANG_TIMEOUT if action == Hang() else None) as dev:
            array = await dev.to_device(np.arange(10))
            inject(dev, "cuMemcpyDtoHAsync", action)
            with pytest.raises(ContextLost) as caught:
                await array.to_host()
            assert caught.value.status == status
            assert words in caught.value.reason
            await next_generation(dev, 1)
            assert (await array.to_host() == np.arange(10)).all()


@pytest.mark.sim_only
async def test_a_delayed_call_does_its_work_afterwards(dev):
    (touch,) = await compile_rogue(dev, "touch")
    x = await dev.to_device(np.zeros(10, np.int32))
    begun = trio.current_time()
    inject(dev, "cuLaunchKernelEx", Delay(0.3))
    await touch.launch(1, 32, x, 10)
    assert trio.current_time() - begun >= 0.3
    assert (await x.to_host() == 1).all()


@pytest.mark.sim_only
async def test_any_call_of_the_driver_can_be_made_to_fail(open_test_device):
    """The calls that ordinary use makes, each by its name. The worker asks for memory a second time to be told why."""
    host = np.arange(100, dtype=np.int32)

    async def copy_there_and_back(dev: Any) -> None:
        assert (await (await dev.to_device(host)).to_host() == host).all()

    cases: list[tuple[str, Callable[[Any], Awaitable[object]]]] = [
        ("cuMemcpyHtoDAsync", copy_there_and_back),
        ("cuMemcpyDtoHAsync", copy_there_and_back),
        ("cuMemsetD32Async", lambda dev: dev.full(10, 3, np.int32).to_host()),
        ("cuModuleLoadDataEx", lambda dev: compile_rogue(dev, "say")),
        ("cuModuleGetFunction", lambda dev: dev.nvrtc.compile('extern "C" __global__ void f() {}', "f")),
        ("cuLaunchKernelEx", launch_once),
        ("cuMemCreate", lambda dev: dev.empty(100 << 20, np.int8)[:10].fill(1)),
    ]
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            await launch_once(dev)
            for function, use in cases:
                inject(dev, function, ReturnStatus(1), times=2 if function == "cuMemCreate" else 1)
                with pytest.raises(CommandFailed) as caught:
                    await use(dev)
                assert (caught.value.status, caught.value.library) == (1, "cuda"), function
                await use(dev)
            assert dev.generation == 1


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("function", "more", "words"),
    [
        ("cuNothing", {}, "no function 'cuNothing'"),
        ("cuInit", {"call": 0}, "counted from 1"),
        ("cuInit", {"times": 0.5}, "times must be a whole number"),
    ],
)
async def test_an_injection_that_cannot_be_is_refused_before_anything_is_sent(dev, function, more, words):
    with pytest.raises(InvalidArgument, match=words):
        inject(dev, function, Hang(), **more)
    with pytest.raises(InvalidArgument, match=words), inject_at_start(function, Hang(), **more):
        pass
    await launch_once(dev)


async def test_nothing_is_injected_into_a_gpu(dev, monkeypatch):
    monkeypatch.setattr(core_of(dev), "backend", "cuda")
    with pytest.raises(InvalidArgument, match="cannot make cuLaunchKernelEx fail") as caught:
        inject(dev, "cuLaunchKernelEx", Hang())
    for fault in Fault:
        assert fault.name in str(caught.value)


async def test_a_device_without_a_running_worker_has_none_to_inject_into_to_hold_or_to_kill(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            with hold_rebuild(dev):
                kill_worker(dev)
                await until(lambda: dev.state.value == "rebuilding")
                assert_refused(dev, trio.WouldBlock)
        assert_refused(dev, DeviceClosed)


async def test_a_fault_during_a_rebuild_waits_for_the_next_generation(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev, trio.open_nursery() as nursery:
            with hold_rebuild(dev):
                kill_worker(dev)
                await until(lambda: dev.state.value == "rebuilding")
                nursery.start_soon(cause, dev, Fault.TRAP)
                await trio.testing.wait_all_tasks_blocked()
            assert await dev.wait_generation(after=2) == 3


def assert_refused(dev: Any, error: type[Exception]) -> None:
    for use in (worker_pid, kill_worker, request_hold):
        with pytest.raises(error):
            use(dev)
    if dev.backend == "sim":
        with pytest.raises(error):
            inject(dev, "cuInit", Hang())


def request_hold(dev: Any) -> None:
    with hold_worker(dev):
        pass


# --- workers yet to start ---------------------------------------------------------------------------------------------


@pytest.mark.sim_only
async def test_a_rebuild_that_fails_once_is_tried_again(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=HASTY) as dev:
            array = await dev.to_device(np.arange(10))
            left = dev.statistics().restarts_left
            with inject_at_start("cuInit", ReturnStatus(999), workers=1):
                kill_worker(dev)
                await next_generation(dev, 1)
            assert dev.generation == 2, "a start that failed uses up no number"
            assert dev.statistics().restarts_left == left - 2
            assert "cuInit" in str(dev.statistics().last_error)
            assert (await array.to_host() == np.arange(10)).all()


@pytest.mark.sim_only
async def test_a_rebuild_that_always_fails_is_given_up(open_test_device):
    async def lose_for_good() -> None:
        async with open_test_device(restart_policy=HASTY) as dev:
            with inject_at_start("cuInit", ReturnStatus(999)):
                kill_worker(dev)
                await trio.sleep_forever()

    with trio.fail_after(DEADLINE), pytest.raises(DeviceFailed) as caught:
        await lose_for_good()
    assert caught.value.__cause__.status == 999


@pytest.mark.sim_only
async def test_only_the_workers_that_start_in_the_block_and_in_its_number_are_hit(open_test_device, monkeypatch):
    monkeypatch.setenv(FAULTS, "cuMemCreate:1:1*2")
    before = dict(os.environ)

    async def statuses() -> tuple[int | None, int | None]:
        """What the first chunk and the first copy of a new worker come to."""
        found = []
        async with open_test_device() as dev:
            for use in (dev.zeros(1).to_host, functools.partial(dev.to_device, np.zeros(1))):
                result = await outcome.acapture(use)
                found.append(result.error.status if isinstance(result, outcome.Error) else None)
        first, second = found
        return first, second

    with trio.fail_after(DEADLINE):
        async with open_test_device() as older:
            with inject_at_start("cuMemcpyHtoDAsync", ReturnStatus(2), workers=2):
                assert await statuses() == (1, 2)
                with inject_at_start("cuMemcpyHtoDAsync", ReturnStatus(3), workers=1):
                    # Both are for this one, and the older comes first.
                    assert await statuses() == (1, 2)
                assert await statuses() == (1, None)
            assert dict(os.environ) == before
            assert await statuses() == (1, None)
            with pytest.raises(CommandFailed):
                await older.zeros(1).to_host()
            await older.to_device(np.zeros(1))


@pytest.mark.sim_only
def test_the_environment_is_restored_when_the_block_raises(monkeypatch):
    monkeypatch.delenv(FAULTS, raising=False)

    def fail_inside() -> None:
        with inject_at_start("cuInit", Hang()):
            assert FAULTS in os.environ
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert FAULTS not in os.environ


# --- faults of the device ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name)
async def test_each_fault_looks_as_its_signs_say_and_the_device_goes_on(open_test_device, fault):
    with trio.fail_after(DEADLINE):
        async with open_test_device(hang_timeout=HANG_TIMEOUT if fault is Fault.ENDLESS_KERNEL else None) as dev:
            host = np.arange(1000)
            written, read = await dev.to_device(host), await dev.to_device(host)
            error = await cause(dev, fault, written, read_only(read))
            assert (type(error), error.status, error.device, error.generation) == (
                fault.signs.error,
                fault.signs.status,
                0,
                1,
            )
            if fault.costs_context:
                await next_generation(dev, 1)
            assert dev.generation == 1 + fault.costs_context
            assert written.state == ("torn" if fault.costs_context else "ready")
            assert (await read.to_host() == host).all()
            await launch_once(dev)
            assert dev.statistics().memory.in_use == 2 * 8192, "the fault gave back what it used"


async def test_faults_of_one_device_can_follow_each_other(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            for fault in (Fault.TRAP, Fault.WORKER_KILLED, Fault.OUT_OF_DEVICE_MEMORY, Fault.TRAP):
                lost = dev.generation
                await cause(dev, fault)
                if fault.costs_context:
                    await next_generation(dev, lost)
            assert dev.generation == 4
            limit = dev.statistics().memory.limit
            assert limit <= dev.info.total_memory, "running out of memory leaves the budget as it was"
            with pytest.raises(OutOfDeviceMemory, match="memory_limit"):
                dev.empty(limit + 1, np.int8)


async def test_an_endless_kernel_is_no_fault_without_a_hang_timeout(dev):
    with pytest.raises(InvalidArgument, match="hang_timeout"):
        await cause(dev, Fault.ENDLESS_KERNEL)
    await launch_once(dev)


async def test_a_fault_that_does_not_come_is_noticed(dev, monkeypatch):
    async def do_nothing(device: Any, touches: Any) -> None:
        await launch_once(device)

    set_constant(monkeypatch, _faults, "_CAUSES", {Fault.TRAP: do_nothing})
    with pytest.raises(AssertionError, match=r"Fault\.TRAP was caused, but the running request raised nothing"):
        await cause(dev, Fault.TRAP)


@pytest.mark.sim_only
@pytest.mark.parametrize("fault", [Fault.ILLEGAL_ADDRESS, Fault.MISALIGNED_ADDRESS], ids=lambda fault: fault.name)
async def test_a_fault_that_the_checks_find_has_its_status_and_their_words(open_test_device, fault):
    with trio.fail_after(DEADLINE):
        async with open_test_device(check="all") as dev:
            lost = await cause(dev, fault)
    assert lost.status_name == fault.signs.status_name
    assert bool(lost.findings) == (fault is Fault.ILLEGAL_ADDRESS)
    assert (fault.signs.words in lost.reason) != bool(lost.findings)


async def test_another_fault_than_was_meant_is_noticed_and_other_errors_come_as_they_are(dev, monkeypatch):
    set_constant(monkeypatch, _faults, "_CAUSES", {Fault.TRAP: _faults._CAUSES[Fault.DEVICE_ASSERT]})
    with trio.fail_after(DEADLINE):
        with pytest.raises(AssertionError, match=r"status=719.*launch fail.*status=710") as caught:
            await cause(dev, Fault.TRAP)
        assert isinstance(caught.value.__cause__, ContextLost)
        await next_generation(dev, 1)
        set_constant(monkeypatch, _faults, "_CAUSES", {Fault.TRAP: lambda *_: dev.nvrtc.compile("nonsense", "f")})
        with pytest.raises(DeviceError, match="nonsense"):
            await cause(dev, Fault.TRAP)


async def test_a_cause_that_is_cancelled_leaves_no_kernel_that_never_ends(open_test_device, monkeypatch):
    """As in a nursery in which two devices are lost: the first error cancels the other one."""

    async def never(_: Any) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(_faults, "until", never)
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            array = await dev.to_device(PATTERN)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cause, dev, Fault.WORKER_KILLED, array)
                await until(lambda: "launch of hang" in core_of(dev).current.timeline.in_flight())
                nursery.cancel_scope.cancel()
            await next_generation(dev, 1)
            await array.copy_from(PATTERN)
            assert (await array.to_host() == PATTERN).all()


async def test_a_fault_that_the_budget_has_no_room_for_fails_the_device(open_test_device):
    async def overdo() -> None:
        async with open_test_device(restart_policy=RestartPolicy(intensity=0)) as dev:
            with pytest.raises(DeviceFailed):
                await cause(dev, Fault.WORKER_KILLED)
            await trio.sleep_forever()

    with trio.fail_after(DEADLINE), pytest.raises(DeviceFailed):
        await overdo()


# --- the worker -------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_what_is_sent_to_a_held_worker_is_started_and_does_not_finish(open_test_device, monkeypatch):
    patience = _watch.STOPPED_SECONDS
    set_constant(monkeypatch, _watch, "DEAF_SECONDS", patience)
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            (touch,) = await compile_rogue(dev, "touch")
            x = await dev.to_device(np.zeros(10, np.int32))
            async with trio.open_nursery() as nursery:
                with hold_worker(dev):
                    nursery.start_soon(touch.launch, 1, 32, x, 10)
                    await until(lambda: dev.statistics().lanes[0].unfinished == 1)
                    await trio.sleep(patience + 0.5)  # the watchdog would have lost it by now
                    assert dev.statistics().lanes[0].unfinished == 1
            assert (await x.to_host() == 1).all()
            assert dev.generation == 1


async def test_a_held_rebuild_does_not_begin_before_the_end_of_the_block(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            array = await dev.to_device(PATTERN)
            await dev.wait_standby()
            with hold_rebuild(dev):
                kill_worker(dev)
                await until(lambda: dev.state.value == "rebuilding")
                with trio.move_on_after(0.5) as scope:  # the standby would have taken over in milliseconds
                    await array.to_host()
                assert scope.cancelled_caught
                assert (dev.state.value, dev.generation) == ("rebuilding", 1)
            assert (await array.to_host() == PATTERN).all()
            assert dev.generation == 2
            await lose_once_more(dev)


async def lose_once_more(dev: Any) -> None:
    """A rebuild that nobody holds."""
    kill_worker(dev)
    await next_generation(dev, dev.generation)


async def test_a_held_worker_can_be_killed(dev):
    with trio.fail_after(DEADLINE):
        with hold_worker(dev):
            pid = worker_pid(dev)
            assert state_of(pid) == "T", "it is stopped when the block begins"
            kill_worker(dev)
            await next_generation(dev, 1)
        assert worker_pid(dev) != pid
        await launch_once(dev)


def state_of(pid: int) -> str:
    """One letter, as the system calls it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_killing_a_worker_that_has_just_been_reaped_hits_nobody(dev):
    with trio.fail_after(DEADLINE):
        process = core_of(dev).current.process
        kill_worker(dev)
        while not process.reap():
            pass  # it ends by itself, and the device has not been given the turn to notice
        kill_worker(dev)
        await next_generation(dev, 1)
        await launch_once(dev)


async def test_an_endless_kernel_runs_until_it_is_ended_or_its_block_is_left(dev):
    x = await dev.to_device(np.zeros(10, np.int32))
    with trio.fail_after(DEADLINE):
        for end_early in (False, True):
            async with endless_kernel(dev, x) as kernel:
                with trio.move_on_after(0.2) as scope:
                    await x.to_host()
                assert scope.cancelled_caught, "what the kernel counts as writing waits for it"
                if end_early:
                    await kernel.end()
                    await x.to_host()
                    await kernel.end()
            assert (await x.to_host() == 0).all()
        async with endless_kernel(dev):
            kill_worker(dev)
        await next_generation(dev, 1)
        await launch_once(dev)


# --- the kit ----------------------------------------------------------------------------------------------------------

PATTERN = np.arange(1000, dtype=np.int32)
numbers = itertools.count()
make_device = functools.partial(open_test_device, close_timeout=0.3)


async def copy_both_ways(dev: Any) -> None:
    with await dev.to_device(PATTERN) as array:
        assert (await array.to_host() == PATTERN).all()


async def compile_new_source(dev: Any) -> None:
    name = f"kernel_{next(numbers)}"
    kernel = await dev.nvrtc.compile(f'extern "C" __global__ void {name}(int *x) {{ *x = 1; }}', name)
    assert [parameter.size for parameter in kernel.parameters] == [8]


@pytest.fixture
def pooled(pool: WorkerPool) -> Callable[[], Any]:
    """As `make_device`, with a worker that is there already."""
    return functools.partial(make_device, workers=pool)


@pytest.mark.long
async def test_the_module_actor_keeps_its_promises_on_new_workers():
    await check_actor(make_device)


@pytest.mark.parametrize("call", [copy_both_ways, compile_new_source], ids=["copies", "a compile"])
async def test_every_actor_of_this_library_keeps_its_promises(pooled, call):
    await check_actor(pooled, call)


# Calls that break one promise each.


async def never_returns(dev: Any) -> None:
    await trio.sleep_forever()


async def is_no_checkpoint(dev: Any) -> None:
    return None


async def asks_the_worker_for_nothing(dev: Any) -> None:
    core_of(dev).check_open()
    await trio.lowlevel.checkpoint()


async def ask_for_a_fill(dev: Any, kind: type[CommandRequest]) -> None:
    """A verb of the memory actor, with a request of another kind."""
    with dev.empty(10, np.int32) as array:
        payload = FILL.struct.pack(array.address, 0, 4, 10, 1, bytes(16))
        await core_of(dev).memory_actor.mailbox.ask(kind(FILL, payload, ((array._block, Role.OVERWRITE),), keep=array))


class Unprotected(CommandRequest):
    @trio.lowlevel.disable_ki_protection
    def start(self, generation: Any) -> None:
        CommandRequest.start(self, generation)


class Unstoppable(CommandRequest):
    def give_up(self) -> None:
        """Run, whatever the caller says."""


async def is_sent_without_protection(dev: Any) -> None:
    await ask_for_a_fill(dev, Unprotected)


async def cannot_be_stopped(dev: Any) -> None:
    await ask_for_a_fill(dev, Unstoppable)


async def is_deaf(dev: Any) -> None:
    with trio.CancelScope(shield=True):
        await launch_once(dev)


async def begins_before_it_listens(dev: Any) -> None:
    with trio.CancelScope(shield=True):
        await launch_once(dev)
    await trio.lowlevel.checkpoint()


async def listens_before_it_begins_alone(dev: Any) -> None:
    await trio.lowlevel.checkpoint()
    await is_deaf(dev)


busy: set[Any] = set()


async def works_for_one_alone(dev: Any) -> None:
    if dev in busy:
        raise CommandFailed("busy")
    busy.add(dev)
    try:
        await launch_once(dev)
    finally:
        busy.discard(dev)


async def refuses_during_a_rebuild(dev: Any) -> None:
    core_of(dev).check_running()
    await launch_once(dev)


async def repeats_itself(dev: Any) -> None:
    with contextlib.suppress(ContextLost):
        return await launch_once(dev)
    await launch_once(dev)


async def translates_its_errors(dev: Any) -> None:
    try:
        await launch_once(dev)
    except ContextLost as lost:
        raise RuntimeError("the GPU is broken") from lost


the_one_loss = ContextLost("lost")


async def shares_its_exception(dev: Any) -> None:
    try:
        await launch_once(dev)
    except ContextLost as lost:
        the_one_loss.generation = lost.generation
        raise the_one_loss from None


async def is_silent_when_closed(dev: Any) -> None:
    with contextlib.suppress(DeviceClosed):
        await launch_once(dev)


async def forgets_a_request(dev: Any) -> None:
    await launch_once(dev)
    core_of(dev).module_actor.mailbox.accept(Request("forgotten"))


BROKEN = [
    (is_no_checkpoint, _conformance.check_returns, "must be a checkpoint"),
    (asks_the_worker_for_nothing, _conformance.check_interrupts, "must send something to the worker"),
    (is_sent_without_protection, _conformance.check_interrupts, "not strike while a request is sent"),
    (is_deaf, _conformance.check_cancelled_before, "must raise Cancelled"),
    (begins_before_it_listens, _conformance.check_cancelled_before, "must not send anything"),
    (asks_the_worker_for_nothing, _conformance.check_cancelled_while_started, "returned while it was held"),
    (listens_before_it_begins_alone, _conformance.check_cancelled_while_started, "this one is still waiting"),
    (refuses_during_a_rebuild, _conformance.check_cancelled_in_queue, "must wait for it, but this one raised WouldB"),
    (cannot_be_stopped, _conformance.check_cancelled_in_queue, "cancelled while it was queued must never run"),
    (refuses_during_a_rebuild, _conformance.check_rebuild, "must wait for it, but this one raised WouldBlock"),
    (repeats_itself, _conformance.check_loss, "must not hide the loss or repeat itself"),
    (translates_its_errors, _conformance.check_loss, "ContextLost of generation 1, but it raised RuntimeError"),
    (shares_its_exception, _conformance.check_loss, "an exception object of its own"),
    (forgets_a_request, _conformance.check_returns, "settled once, but module accepted 3 and settled 2"),
]


@pytest.mark.parametrize(("call", "check", "words"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_call_that_breaks_a_promise_is_told_which(monkeypatch, pooled, call, check, words):
    set_constant(monkeypatch, _conformance, "CHECKS", ((check,),))
    with trio.fail_after(DEADLINE), pytest.raises(AssertionError, match=words):
        await check_actor(pooled, call)


async def test_a_call_that_is_silent_when_the_device_is_closed_is_told_so(monkeypatch, pooled):
    set_constant(monkeypatch, _conformance, "CHECKS", ())
    with trio.fail_after(DEADLINE), pytest.raises(AssertionError, match="must raise DeviceClosed, but this returned"):
        await check_actor(pooled, is_silent_when_closed)


async def test_a_call_that_never_returns_is_not_waited_for(pooled):
    with trio.fail_after(DEADLINE), pytest.raises(AssertionError, match=r"not within 0\.2 s: A call that is made"):
        await check_actor(pooled, never_returns, timeout=0.2)


async def test_what_a_call_raises_by_itself_comes_as_it_is(monkeypatch, pooled):
    set_constant(monkeypatch, _conformance, "CHECKS", ((_conformance.check_many,),))
    with trio.fail_after(DEADLINE), pytest.raises(CommandFailed, match="busy"):
        await check_actor(pooled, works_for_one_alone)


@pytest.mark.long
async def test_what_a_call_leaves_behind_is_named(monkeypatch, pooled):
    set_constant(monkeypatch, _conformance, "CHECKS", ())
    set_constant(monkeypatch, _conformance, "AT_ONCE", 0.1)
    set_constant(monkeypatch, _conformance, "LOOKS", 2)  # each collects the garbage of the whole suite
    with contextlib.ExitStack() as stack:

        def leave_a_descriptor() -> None:
            stack.callback(os.close, os.open("/dev/null", os.O_RDONLY))

        def leave_a_child() -> None:
            child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
            stack.enter_context(child)
            stack.callback(child.kill)

        def leave_a_task() -> None:
            trio.lowlevel.spawn_system_task(trio.sleep_forever, name="a stray")

        for leave, words in (
            (leave_a_task, "task a stray"),
            (leave_a_descriptor, "descriptor of /dev/null"),
            (leave_a_child, r"child process \d+"),
        ):

            async def call(dev: Any, leave: Callable[[], None] = leave) -> None:
                leave()
                await launch_once(dev)

            with trio.fail_after(DEADLINE), pytest.raises(AssertionError, match=f"nothing may be left .*{words}"):
                await check_actor(pooled, call)
