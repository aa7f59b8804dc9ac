"""`retry`: a block that is run again after a loss, from arrays that are whole."""

# ruff: noqa: PT012  what raises is a loop with a block

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

import atomr_trio
from atomr_trio import (
    ContextLost,
    DeviceClosed,
    DeviceFailed,
    InvalidArgument,
    ItemsLost,
    OutOfDeviceMemory,
    RestartPolicy,
    StaleArray,
    StaleKernel,
    WorldLost,
    retry,
    testing,
)
from atomr_trio._device.device import core_of
from support import ON_GPU, chosen_backend
from support.groups import open_group
from support.worlds import get, open_world, put, under_way

HOST = np.arange(6, dtype=np.float32)
pytestmark = pytest.mark.used_workers

PATIENT = RestartPolicy(intensity=math.inf)


async def lose(dev: atomr_trio.Device, *touches: Any) -> None:
    """Run work that is lost with its context: raises `ContextLost`."""
    raise await testing.cause(dev, testing.Fault.WORKER_KILLED, *touches)


async def note_loss(losses: list[Exception], dev: atomr_trio.Device, *touches: Any) -> None:
    """Add the error of such work: raised in a nursery, it would cancel the other one before its worker is killed."""
    losses.append(await testing.cause(dev, testing.Fault.WORKER_KILLED, *touches))


def in_use(dev: atomr_trio.Device) -> int:
    return dev.statistics().memory.in_use


# ------------------------------------------------------------------------------------------------- attempts


async def test_a_block_that_is_not_lost_runs_once_and_its_copies_are_freed(dev):
    x = await dev.to_device(HOST)
    before, numbers = in_use(dev), []
    async for attempt in retry(dev, saving=[x]):
        async with attempt as entered:
            assert entered is attempt
            assert in_use(dev) > before
            numbers.append(attempt.number)
            await x.fill(7)
    assert numbers == [1]
    assert in_use(dev) == before
    assert (await x.to_host()).tolist() == [7] * 6


async def test_a_lost_block_runs_again_from_the_arrays_as_they_were(dev):
    x, y = await dev.to_device(HOST), await dev.to_device(HOST)
    before, seen = in_use(dev), []
    async for attempt in retry(dev, attempts=3, saving=(each for each in (x, y, x, dev.zeros(0)))):
        async with attempt:
            seen.append((attempt.number, dev.generation, (await x.to_host()).tolist()))
            await x.fill(attempt.number)
            if attempt.number < 3:
                await lose(dev, y)
    assert seen == [(number, number, HOST.tolist()) for number in (1, 2, 3)]
    assert (x.state, y.state) == ("ready", "ready")
    assert (await y.to_host()).tolist() == HOST.tolist()
    assert (await x.to_host()).tolist() == [3] * 6
    assert in_use(dev) == before


async def test_the_loss_of_the_last_attempt_is_raised_with_a_note_and_the_copies_are_freed(dev):
    x = await dev.to_device(HOST)
    before, attempts = in_use(dev), []
    with pytest.raises(ContextLost) as caught:
        async for attempt in retry(dev, attempts=2, saving=[x]):
            async with attempt:
                attempts.append(attempt.number)
                await lose(dev, x)
    assert attempts == [1, 2]
    assert caught.value.__notes__ == ["atomr_trio.retry: 2 attempts were made, and lost"]
    assert caught.value.generation == 2
    assert x.state == "torn"
    assert in_use(dev) == before


async def test_one_attempt_is_no_other_than_the_block_itself(dev):
    with pytest.raises(ContextLost) as caught:
        async for attempt in retry(dev, attempts=1):
            async with attempt:
                await lose(dev)
    assert caught.value.__notes__ == ["atomr_trio.retry: 1 attempt was made, and lost"]


@pytest.mark.parametrize("way", ["break", "continue"])
async def test_a_block_that_is_left_early_is_done(dev, way):
    x = await dev.to_device(HOST)
    before, runs = in_use(dev), 0
    async for attempt in retry(dev, saving=[x]):
        async with attempt:
            runs += 1
            if way == "break":
                break
            continue
    assert (runs, in_use(dev)) == (1, before)


async def test_an_array_that_was_torn_by_the_loss_counts_as_a_loss_and_is_whole_in_the_next_attempt(dev):
    x, states = await dev.to_device(HOST), []
    async for attempt in retry(dev, saving=[x]):
        async with attempt:
            states.append(x.state)
            if attempt.number == 1:
                with pytest.raises(ContextLost):
                    await lose(dev, x)
            await x.to_host()  # StaleArray in the first attempt
    assert states == ["ready", "ready"]


async def test_the_variables_of_a_module_are_saved_as_arrays_are(dev):
    program = await dev.nvrtc.compile_program(
        '__constant__ float factor[2]; extern "C" __global__ void use(float *x) { x[0] = factor[1]; }'
    )
    factor = program.global_("factor", np.float32)
    await factor.copy_from(np.array([1, 5], np.float32))
    x = dev.zeros(1, np.float32)
    async for attempt in retry(dev, saving=[factor]):
        async with attempt:
            if attempt.number == 1:
                with pytest.raises(ContextLost):
                    await lose(dev)
                with pytest.raises(StaleKernel):
                    await program["use"].launch(1, 1, x)
                await program["use"].launch(1, 1, x)
            await program["use"].launch(1, 1, x)
    assert (await x.to_host()).tolist() == [5]


async def test_a_loss_in_a_nursery_of_the_block_is_a_loss(dev):
    runs = []
    async for attempt in retry(dev):
        async with attempt:
            runs.append(attempt.number)
            if attempt.number == 1:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lose, dev)
                    nursery.start_soon(trio.sleep_forever)
    assert runs == [1, 2]


# ------------------------------------------------------------------------------------------------- what passes


async def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "make",
    [
        lambda lost: ValueError("of the program"),
        lambda lost: ExceptionGroup("both", [lost, ValueError("of the program")]),
        lambda lost: ItemsLost("", lost={0: lost, 1: DeviceFailed("of another")}),
        lambda lost: DeviceFailed("of another"),
        lambda lost: ContextLost("of another", device=9, generation=lost.generation),
        lambda lost: ContextLost("an old one", device=lost.device, generation=lost.generation - 1),
        lambda lost: KeyboardInterrupt(),
    ],
    ids=["an error", "a group", "items", "the end", "another device", "an earlier loss", "an interrupt"],
)
async def test_every_other_exception_passes_as_it_is_even_after_a_loss(dev, make):
    x = await dev.to_device(HOST)
    before, raised = in_use(dev), []
    with pytest.raises(BaseException) as caught:
        async for attempt in retry(dev, saving=[x]):
            async with attempt:
                raised.append(make(await testing.cause(dev, testing.Fault.WORKER_KILLED)))
                raise raised[0]
    assert caught.value is raised[0]
    assert not hasattr(caught.value, "__notes__")
    assert len(raised) == 1
    assert in_use(dev) == before


@pytest.mark.parametrize("kind", [StaleArray, StaleKernel, WorldLost, ItemsLost])
async def test_what_follows_from_a_loss_passes_where_there_was_none_and_counts_where_there_was_one(dev, kind):
    errors = []
    with pytest.raises(kind) as caught:
        async for attempt in retry(dev, attempts=3):
            async with attempt:
                if attempt.number == 1:
                    await testing.cause(dev, testing.Fault.WORKER_KILLED)
                errors.append(kind("of the program"))
                raise errors[-1]
    assert len(errors) == 2
    assert caught.value is errors[1]


async def test_cancelling_ends_the_attempt_and_frees_the_copies(dev):
    x = await dev.to_device(HOST)
    before = in_use(dev)
    with trio.CancelScope() as scope:
        async for attempt in retry(dev, saving=[x]):
            async with attempt:
                scope.cancel()
                await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert in_use(dev) == before


async def test_cancelling_while_the_device_is_rebuilt_ends_the_retry(dev):
    x = await dev.to_device(HOST)
    before = in_use(dev)
    with testing.hold_rebuild(dev):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_in_the_rebuild, dev, scope)
                async for attempt in retry(dev, saving=[x]):
                    async with attempt:
                        assert attempt.number == 1
                        await lose(dev)
        assert scope.cancelled_caught
    assert in_use(dev) == before


async def cancel_in_the_rebuild(dev: atomr_trio.Device, scope: trio.CancelScope) -> None:
    while dev.state is not atomr_trio.DeviceState.REBUILDING:
        await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked()
    scope.cancel()


async def test_a_device_that_is_given_up_raises_its_end(open_test_device):
    with pytest.raises(DeviceFailed):
        async with open_test_device(restart_policy=RestartPolicy(intensity=0)) as dev:
            x = await dev.to_device(HOST)
            async for attempt in retry(dev, saving=[x]):
                async with attempt:
                    await lose(dev)
            raise AssertionError("the retry has ended")


async def test_a_device_that_was_closed_says_so(open_test_device):
    async with open_test_device() as dev:
        attempts = retry(dev)
    with pytest.raises(DeviceClosed):
        async with await anext(attempts):
            raise AssertionError("the block runs")


# ------------------------------------------------------------------------------------- losses beside the block


@pytest.mark.sim_only
async def test_a_fault_while_arrays_are_saved_counts_as_an_attempt_and_they_are_saved_again(dev):
    x, y = await dev.to_device(HOST), await dev.to_device(HOST)
    before, numbers = in_use(dev), []
    testing.inject(dev, "cuMemcpyDtoDAsync", testing.Poison(700), call=2)
    async for attempt in retry(dev, saving=[x, y]):
        async with attempt:
            numbers.append(attempt.number)
            await x.fill(attempt.number)
            if attempt.number == 2:
                await lose(dev, x, y)
            assert (await y.to_host()).tolist() == HOST.tolist()
    assert numbers == [2, 3]
    assert (await x.to_host()).tolist() == [3] * 6
    assert in_use(dev) == before


@pytest.mark.sim_only
async def test_a_fault_while_arrays_are_written_back_counts_as_an_attempt_and_they_are_written_again(dev):
    x, y = await dev.to_device(HOST), await dev.to_device(HOST)
    seen: list[Any] = []
    async for attempt in retry(dev, attempts=3, saving=[x, y]):
        async with attempt:
            seen.append((attempt.number, (await x.to_host()).tolist(), (await y.to_host()).tolist()))
            if attempt.number == 1:
                await poison_the_next_copy(dev)
                await lose(dev, x, y)
    assert seen == [(1, HOST.tolist(), HOST.tolist()), (3, HOST.tolist(), HOST.tolist())]


async def poison_the_next_copy(dev: atomr_trio.Device) -> None:
    """Have the worker that comes next lose its context by its first copy on the device."""
    core = core_of(dev)
    running = core.running_generation

    async def running_and_poisoned() -> Any:
        generation = await running()
        if generation.number == 2:
            core.running_generation = running  # type: ignore[method-assign]
            testing.inject(dev, "cuMemcpyDtoDAsync", testing.Poison(700))
        return generation

    core.running_generation = running_and_poisoned  # type: ignore[method-assign]


@pytest.mark.sim_only
async def test_losses_beside_the_block_alone_use_up_the_attempts(dev):
    x = await dev.to_device(HOST)
    before = in_use(dev)
    testing.inject(dev, "cuMemcpyDtoDAsync", testing.Poison(700))
    with pytest.raises(ContextLost) as caught:
        async for attempt in retry(dev, attempts=1, saving=[x]):
            async with attempt:
                raise AssertionError("the block runs")
    assert caught.value.__notes__ == ["atomr_trio.retry: 1 attempt was made, and lost"]
    assert in_use(dev) == before


async def test_an_array_that_was_torn_before_is_not_saved_and_memory_for_copies_may_lack(open_test_device):
    async with open_test_device(memory_limit=64 << 20) as dev:
        x = dev.zeros(40 << 20, np.uint8)
        with pytest.raises(OutOfDeviceMemory):
            async for attempt in retry(dev, saving=[x]):
                async with attempt:
                    raise AssertionError("the block runs")
        y = await dev.to_device(HOST)
        await testing.cause(dev, testing.Fault.WORKER_KILLED, y)
        with pytest.raises(StaleArray):
            async for attempt in retry(dev, saving=[y]):
                async with attempt:
                    raise AssertionError("the block runs")


# ------------------------------------------------------------------------------------------------- groups


async def test_the_devices_of_a_group_are_retried_together():
    async with open_group(2, restart_policy=PATIENT) as devices:
        first, second = devices
        x, y = await first.to_device(HOST), await second.to_device(HOST)
        before, seen = [in_use(each) for each in devices], []
        async for attempt in retry(devices, attempts=4, saving=[x, y]):
            async with attempt:
                seen.append((attempt.number, (await x.to_host()).tolist(), (await y.to_host()).tolist()))
                await x.fill(attempt.number)
                await y.fill(attempt.number)
                if attempt.number < 3:
                    await lose(devices[attempt.number - 1], x if attempt.number == 1 else y)
                if attempt.number == 3:  # both, and their work at once
                    losses: list[Exception] = []
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(note_loss, losses, first, x)
                        nursery.start_soon(note_loss, losses, second, y)
                    raise ExceptionGroup("both", losses)
        assert seen == [(number, HOST.tolist(), HOST.tolist()) for number in (1, 2, 3, 4)]
        assert (await x.to_host()).tolist() == (await y.to_host()).tolist() == [4] * 6
        assert [in_use(each) for each in devices] == before


async def test_items_of_a_map_that_were_lost_are_a_loss():
    async with open_group(2, restart_policy=PATIENT) as devices:
        lost: list[int] = []

        async def item(dev: atomr_trio.Device, number: int) -> int:
            if not lost:
                lost.append(number)
                await lose(dev)
            return number

        async for attempt in retry(devices):
            async with attempt:
                results = await devices.map(item, range(4))
        assert (results, len(lost), attempt.number) == ([0, 1, 2, 3], 1, 2)


async def test_a_device_that_is_lost_while_another_is_waited_for_is_waited_for_too():
    async with open_group(2, restart_policy=PATIENT) as devices:
        first, second = devices
        seen = []

        async def attempts() -> None:
            async for attempt in retry(devices):
                async with attempt:
                    seen.append((attempt.number, [each.generation for each in devices]))

        async with trio.open_nursery() as nursery:
            with testing.hold_rebuild(second):
                await testing.cause(second, testing.Fault.WORKER_KILLED)
                nursery.start_soon(attempts)
                await trio.testing.wait_all_tasks_blocked()
                await testing.cause(first, testing.Fault.WORKER_KILLED)
        assert seen == [(1, [2, 2])]


async def test_a_collective_that_has_lost_a_member_is_a_loss_and_its_arrays_are_whole_again():
    async with open_world(2) as (devices, world):
        arrays = await put(devices, HOST, 2 * HOST)
        async for attempt in retry(devices, saving=arrays):
            async with attempt:
                if attempt.number == 1:
                    await lose_a_member(devices[1], world, arrays)
                await world.all_reduce(arrays, arrays)
        assert attempt.number == 2
        assert [array.tolist() for array in await get(arrays)] == [(3 * HOST).tolist()] * 2


async def lose_a_member(member: atomr_trio.Device, world: atomr_trio.World, arrays: Any) -> None:
    """Lose it under a collective: raises a group with `WorldLost` in it."""
    async with trio.open_nursery() as nursery:
        with testing.hold_worker(member):
            nursery.start_soon(world.all_reduce, arrays, arrays)
            await under_way(world)
            testing.kill_worker(member)


async def test_a_member_that_has_ended_is_left_out():
    async with open_group(
        2, on_device_failed="drop", restart_policy=RestartPolicy(intensity=0), group_policy=PATIENT
    ) as devices:
        with pytest.raises(DeviceFailed):
            await lose(devices[1])
        while len(devices.alive) == 2:
            await trio.lowlevel.checkpoint()
        x = await devices[0].to_device(HOST)
        async for attempt in retry(devices, saving=[x]):
            async with attempt:
                await x.fill(attempt.number)
        assert (await x.to_host()).tolist() == [1] * 6


# ------------------------------------------------------------------------------------------------- the blocking face


def test_the_blocking_form_is_a_loop_without_await():
    with atomr_trio.start(0, backend=chosen_backend()) as dev:
        x = dev.to_device(HOST)
        before, seen = dev.statistics().memory.in_use, []
        attempts = retry(dev, saving=(each for each in [x]))
        assert type(attempts) is atomr_trio.plain.Retry
        for attempt in attempts:
            with attempt as entered:
                assert entered is attempt
                seen.append((attempt.number, x.tolist()))
                x.fill(attempt.number)
                if attempt.number == 1:
                    dev.run(lose, dev, x)
        assert seen == [(1, HOST.tolist()), (2, HOST.tolist())]
        assert x.tolist() == [2] * 6
        assert dev.statistics().memory.in_use == before
        with pytest.raises(ValueError, match="of the program"):
            for attempt in retry(dev, saving=[x]):
                with attempt:
                    raise ValueError("of the program")
        with pytest.raises(ContextLost) as caught:
            for attempt in retry(dev, attempts=1):
                with attempt:
                    dev.run(lose, dev)
        assert caught.value.__notes__ == ["atomr_trio.retry: 1 attempt was made, and lost"]
        with pytest.raises(KeyboardInterrupt):
            for attempt in retry(dev, saving=[x]):
                with attempt:
                    raise KeyboardInterrupt
        with pytest.raises(InvalidArgument, match="saving is a list of arrays"):
            retry(dev, saving=x)
        assert dev.statistics().memory.in_use == before


# ------------------------------------------------------------------------------------------------- refusals


async def of_another(dev: atomr_trio.Device, open_test_device: Any, use: Callable[[Any], None]) -> None:
    async with open_test_device() as other:
        use(other.zeros(3))


async def test_what_cannot_be_saved_is_refused_before_the_block(dev, open_test_device):
    x = dev.zeros((3, 4))
    freed = dev.zeros(3)
    freed.free()

    def refuse(saving: Any, message: str) -> None:
        with pytest.raises(InvalidArgument, match=message):
            retry(dev, saving=saving)

    refuse(x, "saving is a list of arrays")
    refuse("x", "saving is a list of arrays")
    refuse(7, "saving is a list of arrays")
    refuse([HOST], "saving has device arrays, not array")
    refuse([freed], "was freed")
    refuse([x[1:]], "a part of an array")
    await of_another(dev, open_test_device, lambda array: refuse([array], "of another device"))
    retry(dev, saving=[x.transpose(), x.reshape(12)])
    async with open_test_device(on_fault="stale") as strict:
        with pytest.raises(InvalidArgument, match="none can be saved there"):
            retry(strict, saving=[strict.zeros(3)])
        async for attempt in retry(strict):
            async with attempt:
                if attempt.number == 1:
                    await lose(strict)


@pytest.mark.parametrize("attempts", [0, -1, 1.0, True, "3"])
async def test_the_number_of_attempts_is_checked(dev, attempts):
    with pytest.raises(InvalidArgument, match="attempts is an int of at least 1"):
        retry(dev, attempts=attempts)


def test_what_is_no_device_is_refused():
    with pytest.raises(InvalidArgument, match="dev is a device, or the devices of a group, not 7"):
        retry(7)  # type: ignore[call-overload]


async def test_devices_that_are_no_group_are_refused_with_what_to_write(dev):
    for given, message in (
        (([dev],), "dev is a device, or the devices of a group"),
        ((dev, dev), "one group, and got 2"),
    ):
        with pytest.raises(InvalidArgument, match=message) as raised:
            atomr_trio.retry(*given)
        assert "`retry(devices)` with the group" in (raised.value.advice or "")


async def test_attempts_are_entered_once_and_one_after_the_other(dev):
    attempts = retry(dev)
    assert aiter(attempts) is attempts
    assert "no attempt was given out" in repr(attempts)
    attempt = await anext(attempts)
    assert repr(attempt).startswith("<Attempt 1 of <Retry: 0 of 3 attempts made")
    with pytest.raises(InvalidArgument, match="was not entered yet"):
        await anext(attempts)
    with pytest.raises(InvalidArgument, match="left once"):
        await attempt.__aexit__(None, None, None)
    async with attempt:
        with pytest.raises(InvalidArgument, match="the block runs"):
            await anext(attempts)
        with pytest.raises(InvalidArgument, match="entered once: the block runs"):
            await attempt.__aenter__()
    with pytest.raises(StopAsyncIteration):
        await anext(attempts)
    with pytest.raises(InvalidArgument, match="its end was told"):
        await anext(attempts)
    with pytest.raises(TypeError, match=r"atomr_trio\.retry"):
        atomr_trio.Retry()
    with pytest.raises(TypeError, match="async for attempt"):
        atomr_trio.Attempt()


@pytest.mark.skipif(ON_GPU, reason="a real device would be lost often")
async def test_many_losses_in_a_row_leave_no_copies(open_test_device):
    async with open_test_device(restart_policy=PATIENT) as dev:
        x = await dev.to_device(HOST)
        before = in_use(dev)
        async for attempt in retry(dev, attempts=6, saving=[x]):
            async with attempt:
                assert (await x.to_host()).tolist() == HOST.tolist()
                await x.fill(9)
                if attempt.number < 6:
                    await lose(dev, x)
        assert in_use(dev) == before
