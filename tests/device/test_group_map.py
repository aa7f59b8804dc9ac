"""`Devices.map`: every item once, or reported, whatever becomes of the devices."""

from __future__ import annotations

import collections
import os
import signal

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from atomr_trio import ContextLost, DeviceFailed, InvalidArgument, ItemsLost, RestartPolicy
from atomr_trio._device.device import core_of
from support import open_test_devices


@pytest.fixture(autouse=True)
def several(monkeypatch):
    """The simulator has four devices."""
    monkeypatch.setenv("ATOMR_TRIO_SIM_DEVICES", "4")


class Boom(Exception):
    """What a function of a test raises."""


def lose(device):
    os.kill(core_of(device).current.process.pid, signal.SIGKILL)


def a_loss(device):
    return ContextLost("generation 1 was lost", reason="why", device=device.index, generation=1)


async def test_results_come_in_the_order_of_the_items():
    async def double(device, item):
        array = device.full(3, item)
        return int((await array.to_host()).sum())

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            assert await devices.map(double, range(20)) == [3 * item for item in range(20)]
            assert await devices.map(double, [], at_once=3) == []


async def test_every_device_works_on_as_many_items_as_it_may_at_a_time():
    running = collections.Counter()
    most = collections.Counter()
    everybody = trio.Event()

    async def note(device, item):
        running[device.index] += 1
        most[device.index] = max(most[device.index], running[device.index])
        if sum(running.values()) == 6:
            everybody.set()
        await everybody.wait()
        running[device.index] -= 1

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            await devices.map(note, range(12), at_once=3)
    assert most == {0: 3, 1: 3}


async def test_a_device_that_is_quicker_takes_more_items():
    slow = trio.Event()
    done = []

    async def work(device, item):
        if device.index == 0:
            await slow.wait()
        done.append((device.index, item))
        if len(done) == 9:
            slow.set()

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            await devices.map(work, range(10))
    assert collections.Counter(device for device, _ in done) == {0: 1, 1: 9}


async def test_items_are_taken_one_by_one_when_a_device_is_free():
    taken = []
    gate = trio.Event()

    def items():
        for item in range(6):
            taken.append(item)
            yield item

    async def work(device, item):
        await gate.wait()
        return item

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices, trio.open_nursery() as nursery:
            results = []

            async def run():
                results.extend(await devices.map(work, items()))

            nursery.start_soon(run)
            await wait_all_tasks_blocked()
            assert taken == [0, 1]
            gate.set()
    assert results == list(range(6))


async def test_a_function_without_a_checkpoint_leaves_the_other_devices_their_turn():
    seen = set()

    async def work(device, item):
        seen.add(device.index)

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            assert await devices.map(work, range(10)) == [None] * 10
    assert seen == {0, 1}


async def test_a_device_that_is_lost_under_an_item_costs_that_item_and_works_on():
    starts = collections.Counter()

    async def work(device, item):
        starts[item] += 1
        array = await device.to_device(np.full(3, item))
        if item == 4:
            lose(device)
            await device.wait_generation(after=device.generation)
            raise a_loss(device)
        return int((await array.to_host())[0])

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            with pytest.raises(ItemsLost) as lost:
                await devices.map(work, range(10))
            assert await devices.map(work, range(4)) == [0, 1, 2, 3]
    error = lost.value
    assert set(error.lost) == {4}
    assert isinstance(error.lost[4], ContextLost)
    assert error.__cause__ is error.lost[4]
    assert error.results == (0, 1, 2, 3, None, 5, 6, 7, 8, 9)
    assert error.message.startswith("1 of 10 items were lost with their devices: 4; the first: generation 1 was lost")
    assert all(starts[item] == 1 for item in range(4, 10))


async def test_a_kernel_that_faults_is_a_loss_of_its_item_alone():
    async def work(device, item):
        source = 'extern "C" __global__ void put(int *out, int bad) { if (bad) *(volatile int *)16 = 1; *out = 7; }'
        kernel = await device.nvrtc.compile(source, "put")
        out = device.zeros(1, np.int32)
        await kernel.launch(1, 1, out, int(item == 1))
        return int((await out.to_host())[0])

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            with pytest.raises(ItemsLost) as lost:
                await devices.map(work, range(6))
    assert lost.value.results == (7, None, 7, 7, 7, 7)
    assert lost.value.lost[1].status_name == "CUDA_ERROR_ILLEGAL_ADDRESS"


async def test_with_retry_a_lost_item_is_started_again_up_to_so_many_times():
    starts = collections.Counter()

    async def work(device, item):
        starts[item] += 1
        if item == 2 and starts[item] <= 2:
            raise a_loss(device)
        if item == 3:
            raise a_loss(device)
        return item

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            with pytest.raises(ItemsLost) as lost:
                await devices.map(work, range(6), retry=2)
    assert starts == {0: 1, 1: 1, 2: 3, 3: 3, 4: 1, 5: 1}
    assert lost.value.results == (0, 1, 2, None, 4, 5)


async def test_an_item_is_started_again_on_another_device_that_has_nothing_left_to_do():
    where = []
    waiting = trio.Event()

    async def work(device, item):
        where.append((item, device.index))
        if len(where) == 2:
            waiting.set()
        if where.count((item, device.index)) + sum(each[0] == item for each in where) == 2 and item == 1:
            await wait_all_tasks_blocked()  # the other device has no item any more
            lose(device)
            await device.wait_generation(after=1)
            raise a_loss(device)
        await waiting.wait()
        return device.index

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            results = await devices.map(work, range(2), retry=1)
    assert sorted(item for item, _ in where) == [0, 1, 1]
    assert len(results) == 2


async def test_a_group_of_losses_is_a_loss_and_a_group_with_anything_else_is_not():
    async def work(device, item):
        others = [Boom("beside it")] if item == 2 else []
        if item:
            raise ExceptionGroup("tasks of the function", [ExceptionGroup("inner", [a_loss(device)]), *others])
        return item

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            with pytest.raises(ItemsLost) as lost:
                await devices.map(work, range(2))
            assert isinstance(lost.value.lost[1], ExceptionGroup)
            with pytest.raises(ExceptionGroup, match="tasks of the function"):
                await devices.map(work, range(3))


async def test_another_exception_ends_it_all_as_the_same_object():
    boom = Boom("the function's own")
    cancelled = []

    async def work(device, item):
        if item == 0:
            await wait_all_tasks_blocked()
            raise boom
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(item)

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            with pytest.raises(Boom) as caught:
                await devices.map(work, range(10))
            assert caught.value is boom
            assert cancelled == [1]
            assert [device.generation for device in devices] == [1, 1]


async def test_an_exception_that_meets_a_cancellation_is_not_lost():
    boom = Boom("the function's own")

    async def work(device, item):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                if item == 1:
                    raise boom

    async def cancelled(devices):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(devices.map, work, range(2))
                await wait_all_tasks_blocked()
                scope.cancel()

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            with pytest.raises(ExceptionGroup) as caught:
                await cancelled(devices)
            assert caught.group_contains(Boom)


async def test_an_exception_of_the_iterable_ends_it_all():
    def items():
        yield 1
        raise Boom("of the iterable")

    async def work(device, item):
        return item

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            with pytest.raises(Boom, match="of the iterable"):
                await devices.map(work, items())


@pytest.mark.parametrize("tasks", [0, 2], ids=["function", "tasks of the function"])
async def test_a_cancelled_map_leaves_plain(tasks):
    async def work(device, item):
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()

    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def run():
                        with pytest.raises(trio.Cancelled):
                            await devices.map(work, range(5), at_once=2)
                        await trio.lowlevel.checkpoint()

                    nursery.start_soon(run)
                    await wait_all_tasks_blocked()
                    scope.cancel()
            assert scope.cancelled_caught


async def test_a_group_that_has_ended_before_the_last_item_says_so():
    async def work(device, item):
        lose(device)
        await trio.sleep_forever()

    with trio.fail_after(60), pytest.raises(DeviceFailed) as failed:
        async with open_test_devices([0, 1], restart_policy=RestartPolicy(intensity=0)) as devices:
            await devices.map(work, range(8))
    assert failed.value.__cause__.reason


async def test_the_end_does_not_wait_for_a_device_that_is_being_rebuilt():
    with trio.fail_after(60):
        async with open_test_devices([0, 1]) as devices:
            held = core_of(devices[0]).rebuild_held = trio.Event()
            lose(devices[0])
            while core_of(devices[0]).dying or devices[0].state.value == "running":  # noqa: ASYNC110 (another process)
                await trio.sleep(0.002)

            async def work(device, item):
                return device.index

            assert await devices.map(work, range(4)) == [1, 1, 1, 1]
            held.set()


async def test_a_device_that_is_dropped_leaves_its_items_to_the_others():
    began = trio.Event()

    async def work(device, item):
        if device.index == 0:
            began.set()
            lose(device)
            await device.wait_generation(after=1)  # raises DeviceFailed
        await began.wait()
        return item

    with trio.fail_after(60):
        async with open_test_devices(
            [0, 1], on_device_failed="drop", restart_policy=RestartPolicy(intensity=0)
        ) as devices:
            with pytest.raises(ItemsLost) as lost:
                await devices.map(work, range(8))
            assert len(lost.value.lost) == 1
            assert isinstance(*lost.value.lost.values(), DeviceFailed)
            assert sum(result is not None for result in lost.value.results) == 7


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((None, []), {}, "function is an async function"),
        ((print, 5), {}, "items is an iterable"),
        ((print, []), {"at_once": 0}, "at_once is a number of items"),
        ((print, []), {"at_once": 1.0}, "at_once is a number of items"),
        ((print, []), {"retry": -1}, "retry is a number of further starts"),
        ((print, []), {"retry": True}, "retry is a number of further starts"),
    ],
)
async def test_an_argument_that_cannot_be_is_refused(arguments, options, text):
    async with open_test_devices([0]) as devices:
        with pytest.raises(InvalidArgument, match=text):
            await devices.map(*arguments, **options)
