"""`open_devices` and `Devices`: what opens, what is refused, what one loss does to the others, what leaves the block.

On a GPU these tests take as many devices as they name, and are skipped where there are fewer.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import resource
import signal

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import atomr_trio
from atomr_trio import (
    ContextLost,
    ContextRebuilt,
    ContextWasLost,
    DeviceClosed,
    DeviceFailed,
    DeviceGaveUp,
    DeviceState,
    InvalidArgument,
    MemberEvent,
    RestartPolicy,
    StaleArray,
)
from atomr_trio._device import group as _group, lifetime, peer_check as _peer_check, workers as _workers
from atomr_trio._device.device import core_of
from atomr_trio._memory.arena import MAX_CHUNKS
from support import open_test_devices, set_constant
from support.rogue import children

NO_RESTARTS = RestartPolicy(intensity=0)


@pytest.fixture(autouse=True)
def several(monkeypatch):
    """The simulator has eight devices."""
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "8")


class Boom(Exception):
    """What the body of a test raises."""


def lose(device):
    """End the worker from outside, as the system does when memory is short."""
    os.kill(core_of(device).current.process.pid, signal.SIGKILL)


@contextlib.contextmanager
def leaving_with(error, match=None):
    """What is inside raises this within a minute."""
    with trio.fail_after(60), pytest.raises(error, match=match) as caught:
        yield caught


def generations(devices):
    return [device.generation for device in devices]


class Fates:
    """Stands for `WorkerProcess`: what becomes of the next workers of some devices."""

    def __init__(self, monkeypatch):
        self._real = _workers.WorkerProcess
        self.started = []
        self.errors = {}
        self.killed = set()
        monkeypatch.setattr(_workers, "WorkerProcess", self)

    def __call__(self, backend, device, checks=(), libraries=()):
        self.started.append(device)
        if device in self.errors:
            raise self.errors[device]
        process = self._real(backend, device, checks, libraries)
        if device in self.killed:
            os.kill(process.pid, signal.SIGKILL)
        return process


@pytest.fixture
def fates(monkeypatch):
    return Fates(monkeypatch)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "options", "text"),
    [
        ([], {}, "devices is empty"),
        (0, {}, 'devices is "all" or a sequence'),
        ("0", {}, 'devices is "all" or a sequence'),
        (b"01", {}, 'devices is "all" or a sequence'),
        ({0, 1}, {}, 'devices is "all" or a sequence'),
        ([0, 14], {}, "an index from 0 to 13"),
        ([-1], {}, "an index from 0 to 13"),
        ([0, True], {}, "not by True"),
        ([0.0], {}, "not by 0.0"),
        (["cuda:0"], {}, "not by 'cuda:0'"),
        ([0, 1, 0], {}, "device 0 is named twice"),
        (["GPU-1", "GPU-1"], {}, "device GPU-1 is named twice"),
        ([0, 1], {"count": 3}, "count is 3, and only 2 devices are named"),
        ([0, 1], {"count": 0}, "count is a number of devices"),
        ([0, 1], {"count": 1.0}, "count is a number of devices"),
        ([0, 1], {"strategy": "simple_one_for_one"}, "'one_for_one', 'all_for_one', 'rest_for_one'"),
        ([0, 1], {"strategy": None}, "strategy is one of"),
        ([0, 1], {"strategy": []}, "strategy is one of"),
        ([0, 1], {"on_device_failed": "ignore"}, '"end" or "drop"'),
        ([0, 1], {"group_policy": 6}, "group_policy is a RestartPolicy"),
        ([0, 1], {"peers": 1}, "peers is True or False"),
        ([0, 1], {"standby": 5}, "standby is an int from 0 to 4"),
        ([0, 1], {"memory_limit": 0}, "memory_limit is a number of bytes"),
        ([0, 1], {"backend": "rocm"}, "rocm"),
    ],
)
async def test_an_argument_that_cannot_be_is_refused_before_anything_starts(fates, devices, options, text):
    with pytest.raises(InvalidArgument, match=re.escape(text)):
        async with atomr_trio.open_devices(devices, **{"backend": "sim", **options}):
            raise AssertionError("the body must not run")
    assert fates.started == []


def test_outside_of_a_task_nothing_is_opened():
    async def enter():
        await atomr_trio.open_devices([0], backend="sim").__aenter__()

    with pytest.raises(atomr_trio.OutsideRun):
        enter().send(None)


def test_a_group_is_made_by_opening_it_only():
    with pytest.raises(TypeError, match="open_devices"):
        atomr_trio.Devices()
    with pytest.raises(TypeError, match="reserve"):
        atomr_trio.Reservation()


# -- what it is --------------------------------------------------------------------------------------------------------


async def test_a_group_is_the_sequence_of_its_devices_in_the_order_of_their_names(backend):
    async with open_test_devices([1, 0]) as devices:
        assert [device.index for device in devices] == [1, 0]
        assert (len(devices), devices[0].index, devices[-1].index) == (2, 1, 0)
        assert devices[0] in devices
        assert devices[:1] == (devices[0],)
        assert devices.index(devices[1]) == 1
        assert list(reversed(devices)) == [devices[1], devices[0]]
        assert devices.alive == tuple(devices)
        assert (devices.strategy, devices.peers) == ("one_for_one", False)
        assert repr(devices) == "<Devices 1 running, 0 running; one_for_one>"
        assert all(device.backend == backend for device in devices)
        with pytest.raises(IndexError):
            devices[2]
    assert devices.alive == ()
    assert repr(devices) == "<Devices 1 closed, 0 closed; one_for_one>"


async def test_members_know_their_group_and_their_peers():
    async with open_test_devices([0, 1], peers=True) as devices:
        first, second = map(core_of, devices)
        assert first.group is second.group
        assert first.group.members == (first, second)
        assert (first.group.peers, devices.peers, first.group.name) == (True, True, "devices 0, 1")
        assert first.group.others(first) == (second,)
        assert repr(first.group) == "<Group of devices 0, 1, with peers>"
        assert repr(devices) == "<Devices 0 running, 1 running; one_for_one, peers>"
    async with atomr_trio.open_device(0, backend="sim") as alone:
        assert core_of(alone).group is None


async def test_a_group_of_one_is_a_group():
    async with open_test_devices([0]) as devices:
        array = await devices[0].to_device(np.arange(3))
        np.testing.assert_array_equal(await array.to_host(), np.arange(3))
        assert devices.pick() is devices[0]


async def test_options_are_those_of_each_device():
    async with open_test_devices([0, 1], standby=1, memory_limit=1 << 27, guarded=True, on_fault="stale") as devices:
        for device in devices:
            with trio.fail_after(60):
                await device.wait_standby()
            assert device.statistics().memory.limit == 1 << 27
            core = core_of(device)
            assert (core.options.guarded, core.strict) == (True, True)


async def test_count_takes_the_first_ones():
    async with open_test_devices([1, 0], count=1) as devices:
        assert [device.index for device in devices] == [1]


async def test_devices_work_beside_each_other_and_close_together():
    pids = []
    async with open_test_devices([0, 1]) as devices:
        pids = [core_of(device).current.process.pid for device in devices]
        arrays = [await device.to_device(np.full(4, device.index)) for device in devices]
        for device, array in zip(devices, arrays, strict=True):
            np.testing.assert_array_equal(await array.to_host(), np.full(4, device.index))
    assert not children() & set(pids)
    for device in devices:
        assert device.state is DeviceState.CLOSED
        with pytest.raises(DeviceClosed):
            device.empty(1)
    with pytest.raises(DeviceClosed):
        devices.pick()
    with pytest.raises(DeviceClosed):
        await devices.map(None.__class__, [])
    with pytest.raises(DeviceClosed), devices.reserve(1):
        raise AssertionError("nothing can be reserved")


@pytest.mark.sim_only
async def test_devices_are_opened_side_by_side(monkeypatch):
    """Every one is starting before the first is ready."""
    begun, all_begun = [], trio.Event()
    begin = lifetime.OpenedDevice.begin

    async def wait_for_all(self, process=None):
        begun.append(self.core.index)
        if len(begun) == 8:
            all_begun.set()
        await all_begun.wait()
        await begin(self, process)

    monkeypatch.setattr(lifetime.OpenedDevice, "begin", wait_for_all)
    with trio.fail_after(60):
        async with open_test_devices(range(8)) as devices:
            assert sorted(begun) == list(range(8))
            assert generations(devices) == [1] * 8


async def test_the_statistics_are_those_of_all_devices_and_of_the_group():
    async with open_test_devices([1, 0]) as devices:
        statistics = devices.statistics()
        assert [each.device for each in statistics.devices] == [1, 0]
        assert (statistics.failed, statistics.restarts_left) == ((), 6)
        lose(devices[0])
        await devices[0].wait_generation(after=1)
        assert devices.statistics().restarts_left == 5
    async with open_test_devices([0], group_policy=RestartPolicy(intensity=math.inf)) as devices:
        assert devices.statistics().restarts_left == math.inf


async def test_the_events_of_all_devices_come_with_their_indices_and_end_with_the_block():
    with contextlib.ExitStack() as stack:
        async with open_test_devices([0, 1]) as devices:
            events = stack.enter_context(devices.events())
            lose(devices[1])
            with trio.fail_after(60):
                told = [await anext(events) for _ in range(3)]
        assert {type(event) for event in told} == {MemberEvent}
        assert [event.device for event in told] == [1, 1, 1]
        assert isinstance(told[0].event, ContextWasLost)
        assert isinstance(told[-1].event, ContextRebuilt)
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_an_event_of_a_group_is_logged_once(caplog):
    async with open_test_devices([0, 1]) as devices:
        lose(devices[1])
        await devices[1].wait_generation(after=1)
    assert len([record for record in caplog.records if "device 1 lost generation 1" in record.getMessage()]) == 1


# -- what cannot be opened ---------------------------------------------------------------------------------------------


async def test_one_that_cannot_be_opened_closes_the_others_and_raises_its_error_plain(fates):
    before = children()
    fates.killed = {1}
    with leaving_with(DeviceFailed, match="SIGKILL") as caught:
        async with open_test_devices([0, 1]):
            raise AssertionError("the body must not run")
    assert caught.value.device == 1
    assert caught.value.__notes__ == ["devices 0, 1 were opened together"]
    assert sorted(fates.started) == [0, 1]
    assert children() == before
    assert not list(lifetime.open_now)


async def test_a_process_that_cannot_be_started_closes_the_others(fates):
    fates.errors = {1: OSError(11, "try again")}
    with leaving_with(DeviceFailed, match="no process can be started") as caught:
        async with open_test_devices([0, 1]):
            raise AssertionError("the body must not run")
    assert caught.value.device == 1
    assert not list(lifetime.open_now)


@pytest.mark.sim_only
async def test_those_that_are_ready_are_closed_when_a_later_one_fails(monkeypatch):
    ready = trio.Event()
    begin = lifetime.OpenedDevice.begin

    async def one_after_the_other(self, process=None):
        if self.core.index == 1:
            await ready.wait()
            raise DeviceFailed("device 1 is not what it was", device=1)
        await begin(self, process)
        ready.set()

    monkeypatch.setattr(lifetime.OpenedDevice, "begin", one_after_the_other)
    before = children()
    with leaving_with(DeviceFailed, match="not what it was"):
        async with open_test_devices([0, 1]):
            raise AssertionError("the body must not run")
    assert children() == before
    assert not list(lifetime.open_now)


@pytest.mark.sim_only
async def test_an_index_without_a_device_is_said_plainly(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "2")
    with leaving_with(DeviceFailed, match="INVALID_DEVICE") as caught:
        async with open_test_devices([0, 2]):
            raise AssertionError("the body must not run")
    assert caught.value.device == 2
    assert "set it to 3" in str(caught.value)


async def test_a_cancellation_while_opening_leaves_nothing_behind(monkeypatch):
    before = children()
    begun = trio.Event()
    real = lifetime.OpenedDevice.begin

    async def begin(self, process=None):
        if self.core.index == 1:
            begun.set()
            await trio.sleep_forever()
        await real(self, process)

    monkeypatch.setattr(lifetime.OpenedDevice, "begin", begin)

    async def enter(scope):
        with scope:
            async with open_test_devices([0, 1]):
                raise AssertionError("the body must not run")

    with trio.fail_after(60):
        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter, scope)
            await begun.wait()
            scope.cancel()
    assert scope.cancelled_caught
    assert children() == before
    assert not list(lifetime.open_now)


async def test_a_cancellation_while_access_is_checked_leaves_plain(monkeypatch):
    checking = trio.Event()

    async def never(*arguments):
        checking.set()
        await trio.sleep_forever()

    monkeypatch.setattr(_peer_check, "_array", never)
    seen = []

    async def enter(scope):
        with scope:
            try:
                async with open_test_devices([0, 1]):
                    raise AssertionError("the body must not run")
            except BaseException as error:
                seen.append(type(error))
                raise

    with trio.fail_after(60):
        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter, scope)
            await checking.wait()
            scope.cancel()
    assert seen == [trio.Cancelled]
    assert not list(lifetime.open_now)


@pytest.mark.parametrize("moment", ["opening", "checking", "body", "map", "while all wait"])
def test_ctrl_c_leaves_as_itself_and_leaves_no_worker(monkeypatch, moment):
    before = children()

    def interrupt():
        signal.raise_signal(signal.SIGINT)

    async def main():
        with trio.fail_after(60):
            async with open_test_devices([0, 1]) as devices:
                if moment == "body":
                    interrupt()

                async def work(device, item):
                    if moment == "map":
                        interrupt()
                    trio.lowlevel.current_trio_token().run_sync_soon(interrupt)
                    await trio.sleep_forever()

                await devices.map(work, range(4))

    if moment == "opening":
        begin = lifetime.OpenedDevice.begin

        async def begin_interrupted(self, process=None):
            if self.core.index == 1:
                interrupt()
            await begin(self, process)

        monkeypatch.setattr(lifetime.OpenedDevice, "begin", begin_interrupted)
    if moment == "checking":

        async def array_interrupted(*arguments):
            interrupt()
            await trio.sleep_forever()

        monkeypatch.setattr(_peer_check, "_array", array_interrupted)
    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert children() == before
    assert not list(lifetime.open_now)


def test_the_limit_of_descriptors_bounds_the_chunks_of_each_device(monkeypatch):
    from atomr_trio._wire import limits

    monkeypatch.setattr(limits.os, "listdir", lambda path: ["0", "1", "2", "3"])
    limit = [1 << 20]
    monkeypatch.setattr(limits, "soft_limit", lambda which: limit[0])
    assert limits.chunks_within_limit(8, 2, 128) == 128
    limit[0] = 4 + 64 + 8 * (16 + 3 * 16 + 100)
    assert limits.chunks_within_limit(8, 2, 128) == 100
    assert limits.chunks_within_limit(8, 1, 128) == 116
    limit[0] = 4 + 64 + 8 * (16 + 3 * 16 + 8)
    assert limits.chunks_within_limit(8, 2, 128) == 8
    limit[0] -= 1
    with pytest.raises(OSError, match=r"8 devices with 2 workers each need 644 file descriptors.*ulimit -n.*643"):
        limits.chunks_within_limit(8, 2, 128)
    limit[0] = resource.RLIM_INFINITY
    assert limits.chunks_within_limit(8, 2, 128) == 128


async def test_a_group_has_all_chunks_where_descriptors_allow_it_and_fewer_elsewhere(monkeypatch):
    async with open_test_devices([0]) as devices:
        assert core_of(devices[0]).options.most_chunks == MAX_CHUNKS
    set_constant(monkeypatch, _group, "chunks_within_limit", lambda devices, workers, most: 9)
    async with open_test_devices([0], standby=1) as devices:
        assert core_of(devices[0]).options.most_chunks == 9


async def test_too_few_descriptors_for_all_devices_are_said_before_anything_starts(monkeypatch, fates):
    def refuse(devices, workers, most):
        assert (devices, workers, most) == (2, 3, 128)
        raise OSError(24, "2 devices need more")

    set_constant(monkeypatch, _group, "chunks_within_limit", refuse)
    with leaving_with(DeviceFailed, match="2 devices need more") as caught:
        async with open_test_devices([0, 1], standby=2):
            raise AssertionError("the body must not run")
    assert "ulimit -Hn" in str(caught.value)
    assert fates.started == []


async def test_a_device_that_this_process_has_no_room_for_releases_those_before_it(monkeypatch, fates):
    made = []
    equip = lifetime._equip

    def full(core):
        if core.index == 1:
            raise OSError(24, "too many open files")
        made.append(core)
        equip(core)

    set_constant(monkeypatch, lifetime, "_equip", full)
    with leaving_with(DeviceFailed, match="no file descriptor is left") as caught:
        async with open_test_devices([0, 1]):
            raise AssertionError("the body must not run")
    assert caught.value.device == 1
    assert [core.state for core in made] == [DeviceState.CLOSED]
    assert fates.started == []
    assert not list(lifetime.open_now)


# -- strategies --------------------------------------------------------------------------------------------------------


async def after_loss(devices, lost, expected):
    """Lose a device, and wait until the generations are these and everything runs."""
    lose(devices[lost])
    with trio.fail_after(60):
        for device, generation in zip(devices, expected, strict=True):
            await device.wait_generation(after=generation - 1)
    await wait_all_tasks_blocked()
    assert generations(devices) == expected


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("one_for_one", [1, 2, 1]), ("all_for_one", [2, 2, 2]), ("rest_for_one", [1, 2, 2])],
)
async def test_a_loss_restarts_what_the_strategy_says_and_no_array_is_lost(strategy, expected):
    async with open_test_devices([0, 1, 2], strategy=strategy) as devices:
        arrays = [await device.to_device(np.arange(3) * device.index) for device in devices]
        await after_loss(devices, 1, expected)
        for device, array in zip(devices, arrays, strict=True):
            np.testing.assert_array_equal(await array.to_host(), np.arange(3) * device.index)


async def test_a_restart_by_a_strategy_costs_the_others_nothing_and_the_group_one():
    async with open_test_devices([0, 1], strategy="all_for_one") as devices:
        for round_ in (1, 2):
            await after_loss(devices, 0, [round_ + 1, round_ + 1])
        statistics = devices.statistics()
        assert [each.restarts_left for each in statistics.devices] == [1, 3]
        assert statistics.restarts_left == 4
        assert "restarted by all_for_one, because device 0 was lost" in statistics.devices[1].last_error


async def test_a_restart_by_a_strategy_is_reported_as_one():
    async with open_test_devices([0, 1], strategy="all_for_one") as devices, devices[1].events() as events:
        lose(devices[0])
        with trio.fail_after(60):
            lost = await anext(events)
    assert isinstance(lost, ContextWasLost)
    assert lost.reported_by == _group.STRATEGIST
    assert "device 0 was lost" in lost.reason


async def test_a_deliberate_restart_goes_by_the_strategy_too_and_is_free_for_everybody():
    async with open_test_devices([0, 1], strategy="rest_for_one") as devices:
        await devices[0].restart("to try it")
        with trio.fail_after(60):
            await devices[1].wait_generation(after=1)
        assert devices.statistics().restarts_left == 6
        await devices[1].restart("to try it")
        assert generations(devices) == [2, 3]


async def test_work_on_a_device_that_a_strategy_restarts_gets_context_lost():
    async with open_test_devices([0, 1], strategy="all_for_one") as devices:
        kernel = await devices[1].nvrtc.compile(
            'extern "C" __global__ void wait(unsigned long long flag) { while (*(volatile int *)flag == 0) { } }',
            "wait",
        )
        flag = await devices[1].to_device(np.zeros(1, np.int32))
        async with trio.open_nursery() as nursery:

            async def launch():
                with pytest.raises(ContextLost, match="because device 0 was lost"):
                    await kernel.launch(1, 1, flag.address)

            nursery.start_soon(launch)
            with trio.fail_after(60):
                while not devices[1].statistics().lanes[0].unfinished:  # noqa: ASYNC110 (another process)
                    await trio.sleep(0.002)
            lose(devices[0])


async def test_losses_at_the_same_time_restart_each_device_once():
    async with open_test_devices([0, 1, 2], strategy="all_for_one") as devices:
        for device in devices:
            lose(device)
        with trio.fail_after(60):
            for device in devices:
                await device.wait_generation(after=1)
        await wait_all_tasks_blocked()
        assert generations(devices) == [2, 2, 2]


async def test_a_standby_takes_over_in_each_device_that_a_strategy_restarts():
    async with open_test_devices([0, 1], strategy="all_for_one", standby=1) as devices:
        with trio.fail_after(60):
            for device in devices:
                await device.wait_standby()
            async with devices.events() as events:
                lose(devices[0])
                rebuilt = {}
                while len(rebuilt) < 2:
                    event = await anext(events)
                    if isinstance(event.event, ContextRebuilt):
                        rebuilt[event.device] = event.event.by_standby
    assert rebuilt == {0: True, 1: True}


async def read(array):
    """The elements, also if its device is lost meanwhile."""
    while True:
        try:
            return await array.to_host()
        except ContextLost as lost:
            await array.device.wait_generation(after=lost.generation)


@pytest.mark.parametrize("strategy", ["all_for_one", "rest_for_one"])
@pytest.mark.parametrize("standby", [0, 1])
async def test_losses_at_any_moment_leave_every_device_running_with_its_arrays(strategy, standby):
    """Workers are killed at random, also while they are rebuilt; the seed decides who, and when after the last one."""
    choose = random.Random(f"{strategy} {standby}")
    never = RestartPolicy(intensity=math.inf, backoff_min=0.001, backoff_max=0.01)
    with trio.fail_after(120):
        async with open_test_devices(
            [0, 1, 2], strategy=strategy, standby=standby, restart_policy=never, group_policy=never
        ) as devices:
            arrays = [await device.to_device(np.arange(100) * (device.index + 1)) for device in devices]
            for _ in range(8):
                for device in choose.sample([*devices], choose.randint(1, 3)):
                    choose.choice(core_of(device).all_generations()).process.kill()
                await trio.lowlevel.checkpoint()
                if choose.random() < 0.5:
                    await read(choose.choice(arrays))
            for device, array in zip(devices, arrays, strict=True):
                np.testing.assert_array_equal(await read(array), np.arange(100) * (device.index + 1))
            assert devices.statistics().restarts_left == math.inf


# -- failures ----------------------------------------------------------------------------------------------------------


async def test_end_a_failed_member_leaves_the_block_with_its_error():
    with leaving_with(DeviceFailed, match="0 restarts") as caught:
        async with open_test_devices([0, 1], restart_policy=NO_RESTARTS) as devices:
            lose(devices[1])
            await trio.sleep_forever()
    assert caught.value.device == 1
    assert isinstance(caught.value.__cause__, ContextLost)
    assert [device.state for device in devices] == [DeviceState.CLOSED, DeviceState.FAILED]


async def test_end_the_exception_of_the_body_is_the_context_of_the_failure():
    with leaving_with(DeviceFailed) as caught:
        async with open_test_devices([0, 1], restart_policy=NO_RESTARTS) as devices:
            lose(devices[0])
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                raise Boom("while being cancelled") from None
    assert isinstance(caught.value.__context__, Boom)


async def test_the_exception_of_the_body_leaves_as_the_same_object():
    boom = Boom("plain")
    with leaving_with(Boom) as caught:
        async with open_test_devices([0, 1]):
            raise boom
    assert caught.value is boom


async def test_a_cancellation_leaves_the_devices_usable_in_the_bodys_finally():
    with trio.fail_after(60), trio.CancelScope() as scope:
        async with open_test_devices([0, 1]) as devices:
            array = await devices[1].to_device(np.arange(3))
            try:
                scope.cancel()
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    np.testing.assert_array_equal(await array.to_host(), np.arange(3))
    assert scope.cancelled_caught


async def test_drop_the_others_go_on_without_a_member_that_fails():
    with trio.fail_after(60):
        async with open_test_devices([0, 1], restart_policy=NO_RESTARTS, on_device_failed="drop") as devices:
            arrays = [await device.to_device(np.arange(4)) for device in devices]
            async with devices.events() as events:
                lose(devices[0])
                while not isinstance((await anext(events)).event, DeviceGaveUp):
                    pass
            assert devices[0].state is DeviceState.FAILED
            assert devices.alive == (devices[1],)
            assert devices.statistics().failed == (0,)
            assert repr(devices) == "<Devices 0 failed, 1 running; one_for_one>"
            with pytest.raises(DeviceFailed, match="given up"):
                await arrays[0].to_host()
            np.testing.assert_array_equal(await arrays[1].to_host(), np.arange(4))
            assert [devices.pick().index for _ in range(3)] == [1, 1, 1]
            assert devices.pick(near=arrays[0]) is devices[1]
            while core_of(devices[0]).all_generations():  # noqa: ASYNC110 (another process)
                await trio.sleep(0.002)
    assert devices[1].state is DeviceState.CLOSED


async def test_drop_gives_the_memory_of_the_dropped_member_back_at_once(monkeypatch):
    released = trio.Event()
    release = lifetime.OpenedDevice.release

    async def noted(self):
        await release(self)
        if self.core.index == 0:
            released.set()

    monkeypatch.setattr(lifetime.OpenedDevice, "release", noted)
    with trio.fail_after(60):
        async with open_test_devices([0, 1], restart_policy=NO_RESTARTS, on_device_failed="drop") as devices:
            await devices[0].to_device(np.arange(4))
            chunk = core_of(devices[0]).current.arena.chunks[0]
            assert chunk.descriptor >= 0
            lose(devices[0])
            await released.wait()
            assert chunk.descriptor < 0
            await devices[1].to_device(np.arange(4))


async def test_drop_the_failure_of_the_last_one_leaves_the_block():
    with leaving_with(DeviceFailed) as caught:
        async with open_test_devices([0, 1], restart_policy=NO_RESTARTS, on_device_failed="drop") as devices:
            lose(devices[1])
            with pytest.raises(DeviceFailed):
                await devices[1].wait_generation(after=1)
            lose(devices[0])
            await trio.sleep_forever()
    assert caught.value.device == 0


async def test_drop_a_restart_by_the_strategy_leaves_out_who_was_dropped():
    with trio.fail_after(60):
        async with open_test_devices(
            [0, 1, 2], restart_policy=RestartPolicy(intensity=1), on_device_failed="drop", strategy="all_for_one"
        ) as devices:
            await after_loss(devices, 0, [2, 2, 2])
            lose(devices[0])
            for device in devices[1:]:
                await device.wait_generation(after=2)
            await after_loss(devices[1:], 0, [4, 4])
            assert generations(devices) == [2, 4, 4]


async def test_the_budget_of_the_group_ends_it_also_when_members_may_be_dropped():
    with leaving_with(DeviceFailed, match="the devices of the group together needed more than 1 restarts") as caught:
        async with open_test_devices(
            [0, 1], group_policy=RestartPolicy(intensity=1), on_device_failed="drop"
        ) as devices:
            lose(devices[0])
            await devices[0].wait_generation(after=1)
            lose(devices[1])
            await trio.sleep_forever()
    assert caught.value.device == 1
    assert isinstance(caught.value.__cause__, ContextLost)


async def test_failed_starts_spend_the_budget_of_the_group(fates):
    policy = RestartPolicy(intensity=math.inf, backoff_min=0.001, backoff_max=0.01)
    with leaving_with(DeviceFailed, match="together needed more than 2 restarts") as caught:
        async with open_test_devices([0, 1], restart_policy=policy, group_policy=RestartPolicy(intensity=2)) as devices:
            fates.killed = {1}
            lose(devices[1])
            await trio.sleep_forever()
    assert caught.value.device == 1
    assert sorted(fates.started) == [0, 1, 1, 1]


async def test_a_defect_of_a_members_supervision_ends_the_group_also_when_members_may_be_dropped(monkeypatch):
    with leaving_with(atomr_trio.AtomrInternalError, match="supervisor of device 0 crashed"):
        async with open_test_devices([0, 1], on_device_failed="drop") as devices:

            def broken(*arguments, **options):
                raise RuntimeError("a defect")

            monkeypatch.setattr(core_of(devices[0]).supervision, "lost", broken)
            lose(devices[0])
            await trio.sleep_forever()


async def test_arrays_of_a_device_that_a_strategy_restarts_are_stale_in_strict_mode():
    async with open_test_devices([0, 1], strategy="all_for_one", on_fault="stale") as devices:
        array = await devices[1].to_device(np.arange(3))
        await after_loss(devices, 0, [2, 2])
        with pytest.raises(StaleArray, match="on_fault"):
            await array.to_host()
