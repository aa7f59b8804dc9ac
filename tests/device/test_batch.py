"""Batches: every verb, order with what is awaited, errors, room, losses, and that nothing is left behind."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import attrs
import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import (
    CommandFailed,
    ContextLost,
    DeviceClosed,
    DeviceFailed,
    InvalidArgument,
    StaleArray,
    StaleKernel,
    overwrites,
    read_only,
)
from atomr_trio._calls.batch_ends import AwaitedEnd
from atomr_trio._device.device import core_of
from atomr_trio._generation import admission as _admission, generation as _generation
from atomr_trio._transfers.batch_areas import BATCH_BYTES
from atomr_trio._wire.protocol import BATCH_LIMIT
from atomr_trio.testing import hold_worker
from support import set_constant
from support.rogue import compile_rogue, gated, kill_worker, next_generation, until, until_full

pytestmark = pytest.mark.used_workers

DEADLINE = 60
N = 8
SOURCE = r"""
extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }
extern "C" __global__ void addf(float *x, float a) { x[threadIdx.x] += a; }
extern "C" __global__ void scale(int *x, int a) { x[threadIdx.x] *= a; }
extern "C" __global__ void twice(const int *x, int *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
extern "C" __global__ void through(int **pointers) { pointers[0][threadIdx.x] += 1; }
extern "C" __global__ void __launch_bounds__(64) narrow(int *x) { x[threadIdx.x] = 1; }
"""
NUMBERS = np.arange(N, dtype=np.int32)


async def compiled(dev: Any, *names: str) -> Any:
    kernels = [await dev.nvrtc.compile(SOURCE, name) for name in names]
    return kernels if len(kernels) > 1 else kernels[0]


def module_actor(dev: Any) -> Any:
    return next(actor for actor in dev.statistics().actors if actor.name == "module")


# --- verbs ------------------------------------------------------------------------------------------------------------


async def test_launches_run_in_the_order_in_which_they_were_made(dev):
    add, scale = await compiled(dev, "add", "scale")
    x = await dev.to_device(NUMBERS)
    expected = NUMBERS.copy()
    async with dev.batch() as batch:
        for number in range(100):
            batch.launch(add, 1, N, x, number)
            batch.launch(scale, 1, N, x, 3)
            expected = (expected + np.int32(number)) * np.int32(3)
    assert (await x.to_host() == expected).all()


async def test_every_verb_does_what_its_awaited_form_does(dev):
    add, twice, through = await compiled(dev, "add", "twice", "through")
    x, y = await dev.to_device(NUMBERS), dev.empty(N, np.int32)
    pointers = await dev.to_device(np.array([x.address], np.uint64))
    graph = await dev.capture(lambda g: g.launch(add, 1, N, x, 7))
    prepared = add.prepare(1, N, x, 5)
    pinned_in, pinned_out = dev.pinned_empty(N, np.int32), dev.pinned_empty(N, np.int32)
    pinned_in[:] = NUMBERS[::-1]
    out = np.zeros(N, np.int32)
    async with dev.batch() as batch:
        batch.launch(add, 1, N, x, 1)
        batch.launch(prepared)
        batch.launch_graph(graph)
        batch.launch(through, 1, N, pointers, touches=[x])
        batch.launch(add, 1, N, x, 1, hang_timeout=30)
        batch.launch(twice, 1, N, read_only(x), overwrites(y))
        after_launches = batch.to_host(x)
        batch.copy_to(y, out)
        batch.fill(x, 4)
        filled = batch.to_host(x)
        batch.copy_from(x, NUMBERS * 10)
        batch.copy_from(y, x)
        copied = batch.to_host(y)
        batch.copy_from(x, pinned_in)
        batch.copy_to(x, pinned_out)
        z = batch.to_device(NUMBERS + 100)
        event = batch.record()
        batch.launch(add, 1, N, z, 1)
    assert (after_launches == NUMBERS + 15).all()
    assert (out == 2 * (NUMBERS + 15)).all()
    assert (filled == 4).all()
    assert (copied == NUMBERS * 10).all()
    assert (pinned_out == NUMBERS[::-1]).all()
    assert (await z.to_host() == NUMBERS + 101).all()
    await event.wait()
    assert event.reached
    assert event.lane is dev.compute_lane


async def test_what_is_on_the_host_is_read_when_the_verb_is_called(dev):
    host = NUMBERS.copy()
    x = dev.empty(N, np.int32)
    async with gated(dev) as gate, dev.batch() as batch:
        batch.fill(x, 0)
        batch.copy_from(x, host)
        y = batch.to_device(host)
        host[:] = -1
        await gate.open()
    assert (await x.to_host() == NUMBERS).all()
    assert (await y.to_host() == NUMBERS).all()


async def test_views_are_filled_and_copied_as_numpy_would(dev):
    host = np.arange(48, dtype=np.float32).reshape(6, 8)
    x = await dev.to_device(host)
    y = dev.zeros((3, 4), np.float32)
    async with dev.batch() as batch:
        batch.fill(x[1], -1)
        batch.copy_from(y, x[::2, 4:])
        part = batch.to_host(x[:, 2])
    host[1] = -1
    assert (await x.to_host() == host).all()
    assert (await y.to_host() == host[::2, 4:]).all()
    assert (part == host[:, 2]).all()


async def test_a_large_copy_goes_in_several_commands_and_arrives_whole(dev):
    host = np.random.default_rng(0).integers(0, 255, 12 << 20, np.uint8)
    async with dev.batch() as batch:
        x = batch.to_device(host)
        back = batch.to_host(x)
    assert (back == host).all()


async def test_a_copy_that_never_has_room_in_a_batch_is_refused_and_tears_nothing(dev):
    x = dev.zeros(BATCH_BYTES + 1, np.uint8)
    host = np.ones(BATCH_BYTES + 1, np.uint8)
    async with dev.batch() as batch:
        for call in (batch.copy_from, batch.copy_to):
            with pytest.raises(InvalidArgument, match=r"(?s)100,663,297 bytes .* takes 100,663,296 .* await the call"):
                call(x, host)
        assert x.state == "ready"
    assert not (await x[:4096].to_host()).any()


async def test_an_argument_of_a_prepared_launch_counts_from_its_change_on(dev):
    add = await compiled(dev, "add")
    x, y = dev.zeros(N, np.int32), dev.zeros(N, np.int32)
    prepared = add.prepare(1, N, x, 1)
    async with dev.batch() as batch:
        for number in range(50):
            prepared[1] = number
            prepared[0] = (x, y)[number % 2]
            batch.launch(prepared)
    assert (await x.to_host() == sum(range(0, 50, 2))).all()
    assert (await y.to_host() == sum(range(1, 50, 2))).all()


# --- order ------------------------------------------------------------------------------------------------------------


async def test_a_batch_is_in_order_with_awaited_calls_before_inside_and_after(dev):
    add, scale = await compiled(dev, "add", "scale")
    x = await dev.to_device(NUMBERS)
    async with gated(dev) as gate:
        add.launch_nowait(1, N, x, 1)
        async with dev.batch() as batch:
            batch.launch(scale, 1, N, x, 2)
            batch.launch(scale, 1, N, x, 2)
            async with trio.open_nursery() as nursery:
                before = dev.statistics().lanes[0].submitted
                nursery.start_soon(add.launch, 1, N, x, 3)
                await until(lambda: dev.statistics().lanes[0].submitted > before)
                batch.launch(scale, 1, N, x, 10)
                inside = batch.to_host(x)
                await gate.open()
        assert (inside == ((NUMBERS + 1) * 4 + 3) * 10).all()
        await x.copy_from(NUMBERS)
        async with dev.batch() as batch:
            batch.launch(add, 1, N, x, 1)
        assert (await x.to_host() == NUMBERS + 1).all()


async def test_two_batches_at_once_are_in_order_with_each_other(dev):
    add, scale = await compiled(dev, "add", "scale")
    x = dev.zeros(N, np.int32)
    expected = np.zeros(N, np.int32)
    async with dev.batch() as one, dev.batch() as other:
        for number in range(200):
            one.launch(add, 1, N, x, number)
            other.launch(scale, 1, N, x, -3)
            expected = (expected + np.int32(number)) * np.int32(-3)
    assert (await x.to_host() == expected).all()


async def test_copies_between_launches_of_a_batch_are_in_order(dev):
    """Copies have lanes of their own, so each turn takes the array from the compute lane and gives it back."""
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    seen = []
    async with dev.batch() as batch:
        for number in range(40):
            batch.launch(add, 1, N, x, number)
            seen.append(batch.to_host(x))
            if number % 10 == 9:
                batch.copy_from(x, NUMBERS)
    for number, host in enumerate(seen):
        assert (host == NUMBERS + sum(range(number // 10 * 10, number + 1))).all(), number


async def test_a_batch_on_a_lane_of_its_own_is_in_order_with_the_others(dev):
    add, scale = await compiled(dev, "add", "scale")
    x = await dev.to_device(NUMBERS)
    expected = NUMBERS.copy()
    async with dev.lane() as lane, dev.batch(lane=lane) as batch:
        for number in range(60):
            batch.launch(add, 1, N, x, number)
            expected = expected + np.int32(number)
            if number % 7 == 0:
                scale.launch_nowait(1, N, x, 3)
                expected = expected * np.int32(3)
        assert batch.record().lane is lane
    assert (await x.to_host() == expected).all()
    assert dev.statistics().lanes[0].waits > 0


# --- errors -----------------------------------------------------------------------------------------------------------


async def test_what_is_wrong_with_a_call_is_raised_by_the_call(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    prepared = add.prepare(1, N, x, 1)
    async with dev.batch() as batch:
        for _ in range(2):  # before the short way is learnt, and when it is
            for bad in ((1, N, x), (1, N, x, "a"), (1, N, x, 2**32), (0, N, x, 1), (1, 5000, x, 1), (1, N, None, 1)):
                with pytest.raises(InvalidArgument):
                    batch.launch(add, *bad)
            for bad_call in (("add",), (None,), (prepared, 1), (prepared, 0, 0, x), (x, 1, N)):
                with pytest.raises(InvalidArgument):
                    batch.launch(*bad_call)
            with pytest.raises(InvalidArgument):
                batch.launch(prepared, shared_bytes=1)
            with pytest.raises(InvalidArgument):
                batch.launch(add, 1, N, x, 1, hang_timeout=-1)
            batch.launch(add, 1, N, x, 1)
            batch.launch(prepared)
        with pytest.raises(InvalidArgument):
            batch.fill(x, 1.5)
        with pytest.raises(InvalidArgument):
            batch.copy_from(x, NUMBERS.astype(np.int64))
        with pytest.raises(InvalidArgument):
            batch.copy_to(x, np.empty(N + 1, np.int32))
    assert (await x.to_host() == NUMBERS + 4).all()


@pytest.mark.parametrize("what", ["device array", "scalar on the device", "numpy array"])
async def test_an_array_is_no_grid_whatever_is_launched_and_how(dev, what):
    """An array on the device has no truth value, and one of numpy with several elements has none either."""
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    bad: Any = {"device array": x, "scalar on the device": x[0], "numpy array": np.ones(4)}[what]
    prepared = add.prepare(1, N, x, 1)
    async with dev.batch() as batch:
        for _ in range(3):  # before the short way is learnt, and when it is
            for given, dimensions in {"a grid": (bad,), "a block": (0, bad), "a grid and a block": (bad, bad)}.items():
                with pytest.raises(InvalidArgument, match=f"options, and here it was given {given}: give nothing else"):
                    batch.launch(prepared, *dimensions)
            with pytest.raises(InvalidArgument, match="here it was given shared_bytes:"):
                batch.launch(prepared, shared_bytes=bad)
            for name, call in {"grid": (bad, N), "block": (1, bad)}.items():
                with pytest.raises(InvalidArgument, match=f"{name} is an int or a tuple of up to three, not"):
                    batch.launch(add, *call, x, 1)
            batch.launch(add, 1, N, x, 1)
            batch.launch(prepared)
            await batch.flush()
    for name, call in {"grid": (bad, N), "block": (1, bad)}.items():
        for refused in (add.prepare, add.launch_nowait):
            with pytest.raises(InvalidArgument, match=f"{name} is an int or a tuple of up to three, not"):
                refused(*call, x, 1)
        with pytest.raises(InvalidArgument, match=f"{name} is an int or a tuple of up to three, not"):
            await add.launch(*call, x, 1)
    for option in ("cooperative", "programmatic"):
        with pytest.raises(InvalidArgument, match=f"{option} is True or False, not"):
            await add.launch(1, N, x, 1, **{option: bad})
        with pytest.raises(InvalidArgument, match=f"{option} is True or False, not"):
            await dev.capture(lambda graph, option=option: graph.launch(add, 1, N, x, 1, **{option: bad}))
    assert (await x.to_host() == NUMBERS + 6).all()


async def test_a_launch_says_which_of_its_arrays_was_freed(dev):
    twice = await compiled(dev, "twice")
    x, y, z = (dev.zeros(N, np.int32) for _ in range(3))
    prepared = twice.prepare(1, N, read_only(x), y)
    async with dev.batch() as batch:
        for _ in range(2):
            batch.launch(prepared)
            batch.launch(twice, 1, N, read_only(x), y, touches=[z])
            await prepared.launch()
            await batch.flush()
        for freed, place in ((z, "an array that `touches` names of twice"), (y, "argument 1"), (x, "argument 0")):
            freed.free()
            text = f"^{place}.* was freed, give another: <DeviceArray"
            with pytest.raises(InvalidArgument, match=text):
                batch.launch(twice, 1, N, read_only(x), y, touches=[z])
            with pytest.raises(InvalidArgument, match=text):
                await twice.launch(1, N, read_only(x), y, touches=[z])
            if freed is not z:
                with pytest.raises(InvalidArgument, match=text):
                    batch.launch(prepared)
                with pytest.raises(InvalidArgument, match=text):
                    await prepared.launch()
                with pytest.raises(InvalidArgument, match=text):
                    prepared.launch_nowait()
        for index in (0, 1):
            with pytest.raises(InvalidArgument, match=f"argument {1 - index} of twice was freed"):
                prepared[index] = dev.zeros(N, np.int32)


async def test_a_refused_launch_leaves_no_trace_in_its_arrays(dev):
    """Nothing that comes later may wait for a launch that never was."""
    add, addf, twice = await compiled(dev, "add", "addf", "twice")
    x, y, z = dev.zeros(N, np.float32), await dev.to_device(NUMBERS), await dev.to_device(NUMBERS)
    prepared = twice.prepare(1, N, y, z)
    with trio.fail_after(DEADLINE):
        async with dev.batch() as batch:
            for _ in range(3):
                batch.launch(addf, 1, N, x, 1.0)
                batch.launch(add, 1, N, y, 1)
                batch.launch(prepared)
            with pytest.raises(InvalidArgument, match="does not fit"):
                batch.launch(addf, 1, N, x, 1e39)
            z.free()
            with pytest.raises(InvalidArgument, match="freed"):
                batch.launch(prepared)
            seen, also = batch.to_host(x), batch.to_host(y)
        assert (seen == 3).all()
        assert (also == NUMBERS + 3).all()


async def fail_one(dev: Any, batch: Any, narrow: Any, x: Any) -> None:
    """A launch that the driver refuses: with more threads than the kernel has registers for."""
    narrow.attributes = attrs.evolve(narrow.attributes, max_threads_per_block=1024)
    batch.launch(narrow, 1, 1024, x)


@pytest.mark.sim_only
async def test_an_error_of_the_worker_is_raised_at_the_end_and_names_the_call(dev):
    add, narrow = await compiled(dev, "add", "narrow")
    x, big = dev.zeros(N, np.int32), dev.zeros(1024, np.int32)
    with pytest.raises(CommandFailed, match="launch of narrow") as caught:  # noqa: PT012
        async with dev.batch() as batch:
            for _ in range(20):
                batch.launch(add, 1, N, x, 1)
            await fail_one(dev, batch, narrow, big)
            for _ in range(20):
                batch.launch(add, 1, N, x, 1)
    assert caught.value.status == 701
    assert not hasattr(caught.value, "__notes__")
    assert (await x.to_host() == 40).all(), "the others ran"
    assert dev.generation == 1


@pytest.mark.sim_only
async def test_of_several_errors_the_first_is_raised_and_tells_of_three_more(dev):
    narrow = await compiled(dev, "narrow")
    x = dev.zeros(1024, np.int32)
    async with dev.batch() as batch:
        for _ in range(6):  # the later ones go the short way
            await fail_one(dev, batch, narrow, x)
        with pytest.raises(CommandFailed, match="launch of narrow") as caught:
            await batch.flush()
        assert [note.startswith("and: ") for note in caught.value.__notes__] == [True] * 3
        batch.launch(narrow, 1, 64, x)
        await batch.flush()  # what was raised is not heard of again
    assert module_actor(dev).settled["failed"] == 6


async def test_a_body_that_raises_leaves_at_once_and_what_it_sent_goes_on(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(N, np.int32)
    await add.launch(1, N, x, 0)
    async with gated(dev) as gate:
        with pytest.raises(KeyError, match="mine"):  # noqa: PT012
            async with dev.batch() as batch:
                for _ in range(5):
                    batch.launch(add, 1, N, x, 1)
                batch.to_host(x)
                raise KeyError("mine")
        assert dev.statistics().lanes[0].unfinished >= 5, "nobody has waited"
        await gate.open()
    assert (await x.to_host() == 5).all()
    await until(lambda: module_actor(dev).unsettled == 0)


# --- room -------------------------------------------------------------------------------------------------------------


async def test_4096_launches_may_be_unfinished_and_flush_makes_room(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    await add.launch(1, N, x, 0)
    with trio.fail_after(DEADLINE):
        async with dev.batch() as batch:
            batch.launch(add, 1, N, x, 0)
            await batch.flush()
            with hold_worker(dev):
                assert until_full(lambda: batch.launch(add, 1, N, x, 1)) == BATCH_LIMIT
            await batch.flush()
            batch.launch(add, 1, N, x, 1)
    assert (await x.to_host() == NUMBERS + BATCH_LIMIT + 1).all()


async def test_a_verb_of_several_commands_is_sent_whole_or_not_at_all(dev, monkeypatch):
    x = await dev.to_device(np.zeros((6, 8), np.uint8))
    set_constant(monkeypatch, _admission, "BATCH_COMMANDS", 2)
    many = dev.empty((4, 4, 4, 4), np.int32)[::2, ::2, ::2, ::2]
    async with dev.batch() as batch:
        with pytest.raises(trio.WouldBlock):
            batch.fill(many, 1)
        assert many.state == "ready"
        batch.fill(x, 3)
    assert (await x.to_host() == 3).all()


async def test_a_flush_that_is_cancelled_forgets_nothing(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    with trio.fail_after(DEADLINE):
        async with gated(dev) as gate, dev.batch() as batch:
            for _ in range(3):
                batch.launch(add, 1, N, x, 1)
            host = batch.to_host(x)
            with trio.CancelScope() as scope:
                scope.cancel()
                await batch.flush()
            assert scope.cancelled_caught
            await gate.open()
            await batch.flush()
            assert (host == NUMBERS + 3).all()
            batch.launch(add, 1, N, x, 1)
    assert (await x.to_host() == NUMBERS + 4).all()


@pytest.mark.sim_only
async def test_an_error_is_not_lost_by_a_flush_that_is_cancelled(dev):
    narrow = await compiled(dev, "narrow")
    x, y = dev.zeros(1024, np.int32), dev.zeros(N, np.int32)
    async with dev.batch() as batch:
        await fail_one(dev, batch, narrow, x)
        await until(lambda: module_actor(dev).settled["failed"] == 1)
        async with gated(dev) as gate:
            batch.fill(y, 1)
            with trio.CancelScope() as scope:
                scope.cancel()
                await batch.flush()
            await gate.open()
        with pytest.raises(CommandFailed, match="launch of narrow"):
            await batch.flush()


async def test_a_flush_that_waits_for_room_can_be_cancelled_and_called_again(dev, monkeypatch):
    set_constant(monkeypatch, _admission, "BATCH_COMMANDS", 100)
    monkeypatch.setattr(AwaitedEnd, "sent", lambda path: None)  # as where the ring has no room
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    with trio.fail_after(DEADLINE):
        async with dev.batch() as batch:
            for _ in range(2):
                batch.launch(add, 1, N, x, 0)
            await batch.flush()
            with hold_worker(dev):
                full = until_full(lambda: add.launch_nowait(1, N, x, 1))
                batch.launch(add, 1, N, x, 1)
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(batch.flush)
                        await until(lambda: dev.statistics().lanes[0].waiting == 1)
                        scope.cancel()
                assert dev.statistics().lanes[0].waiting == 0
            await batch.flush()
            assert dev.statistics().lanes[0].unfinished == 0
    assert (await x.to_host() == NUMBERS + full + 1).all()


async def test_leaving_the_block_can_be_cancelled_and_what_was_sent_goes_on(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    async with gated(dev) as gate:
        with trio.CancelScope() as scope:
            async with dev.batch() as batch:
                for _ in range(3):
                    batch.launch(add, 1, N, x, 1)
                batch.to_host(x)
                scope.cancel()
        assert scope.cancelled_caught
        with pytest.raises(InvalidArgument, match="only inside its"):
            batch.launch(add, 1, N, x, 1)
        await gate.open()
    assert (await x.to_host() == NUMBERS + 3).all()


# --- losses -----------------------------------------------------------------------------------------------------------


async def test_a_loss_in_the_middle_is_raised_by_every_later_verb_and_by_the_end(dev):
    add = await compiled(dev, "add")
    x, y, kept = [await dev.to_device(NUMBERS) for _ in range(3)]
    await add.launch(1, N, y, 0)
    with trio.fail_after(DEADLINE), pytest.raises(ContextLost, match="SIGKILL"):  # noqa: PT012
        async with dev.batch() as batch:
            for _ in range(3):
                batch.launch(add, 1, N, x, 1)
            await batch.flush()
            with hold_worker(dev):
                for _ in range(20):
                    batch.launch(add, 1, N, x, 1)
                batch.launch(add, 1, N, read_only(y), 1)
                kill_worker(dev)
            await next_generation(dev, 1)
            for verb, arguments in (
                (batch.launch, (add, 1, N, kept, 1)),
                (batch.launch, (add.prepare(1, N, kept, 1),)),
                (batch.fill, (kept, 1)),
                (batch.copy_from, (kept, NUMBERS)),
                (batch.to_host, (kept,)),
                (batch.to_device, (NUMBERS,)),
                (batch.record, ()),
            ):
                with pytest.raises(ContextLost, match="SIGKILL"):
                    verb(*arguments)
            with pytest.raises(ContextLost, match="SIGKILL"):
                await batch.flush()
    assert x.state == "torn"
    with pytest.raises(StaleArray, match="launch of add was writing it"):
        await x.to_host()
    assert (await y.to_host() == NUMBERS).all(), "it was only read"
    assert (await kept.to_host() == NUMBERS).all()
    async with dev.batch() as batch:
        batch.fill(x, 1)
        batch.launch(add, 1, N, x, 1)
    assert (await x.to_host() == 2).all()
    assert module_actor(dev).unsettled == 0


async def test_a_loss_is_raised_by_the_end_that_waits(dev):
    add = await compiled(dev, "add")
    (wild,) = await compile_rogue(dev, "wild")
    x = dev.zeros(N, np.int32)
    with trio.fail_after(DEADLINE), pytest.raises(ContextLost) as caught:  # noqa: PT012
        async with dev.batch() as batch:
            batch.launch(add, 1, N, x, 1)
            batch.launch(wild, 1, 1, 0x10, touches=[x])
            for _ in range(10):
                batch.launch(add, 1, N, x, 1)
    assert caught.value.status == 700
    assert x.state == "torn"


async def test_a_flush_that_waits_for_room_hears_of_a_loss(dev, monkeypatch):
    set_constant(monkeypatch, _admission, "BATCH_COMMANDS", 100)
    monkeypatch.setattr(AwaitedEnd, "sent", lambda path: None)  # as where the ring has no room
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    with trio.fail_after(DEADLINE), pytest.raises(ContextLost):  # noqa: PT012
        async with dev.batch() as batch:
            for _ in range(2):
                batch.launch(add, 1, N, x, 0)
            await batch.flush()
            with hold_worker(dev):
                until_full(lambda: add.launch_nowait(1, N, x, 1))
                batch.launch(add, 1, N, x, 1)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(until_lost, batch)
                    await until(lambda: dev.statistics().lanes[0].waiting == 1)
                    kill_worker(dev)


async def until_lost(batch: Any) -> None:
    with pytest.raises(ContextLost):
        await batch.flush()


async def test_in_strict_mode_kernels_and_arrays_of_a_lost_generation_are_refused(open_test_device):
    async with open_test_device(on_fault="stale") as dev:
        add = await compiled(dev, "add")
        x = await dev.to_device(NUMBERS)
        async with dev.batch() as batch:
            for _ in range(40):
                batch.launch(add, 1, N, x, 1)
        assert (await x.to_host() == NUMBERS + 40).all()
        kill_worker(dev)
        await next_generation(dev, 1)
        async with dev.batch() as batch:
            with pytest.raises((StaleKernel, StaleArray)):
                batch.launch(add, 1, N, x, 1)
        add = await compiled(dev, "add")
        async with dev.batch() as batch:
            y = batch.to_device(NUMBERS)
            batch.launch(add, 1, N, y, 1)
        assert (await y.to_host() == NUMBERS + 1).all()


# --- life -------------------------------------------------------------------------------------------------------------


async def test_a_batch_takes_calls_inside_of_its_block_alone(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    batch = dev.batch()
    with pytest.raises(InvalidArgument, match="only inside its"):
        batch.launch(add, 1, N, x, 1)
    with pytest.raises(InvalidArgument, match="only inside its"):
        await batch.flush()
    async with batch:
        for _ in range(3):
            batch.launch(add, 1, N, x, 1)
        with pytest.raises(InvalidArgument, match="entered only once"):
            async with batch:
                pass
        batch.launch(add, 1, N, x, 1)
    for call in (lambda: batch.launch(add, 1, N, x, 1), lambda: batch.fill(x, 1), batch.record):
        with pytest.raises(InvalidArgument, match="only inside its"):
            call()
    with pytest.raises(InvalidArgument, match="entered only once"):
        async with batch:
            pass
    assert "ended" in repr(batch)
    assert (await x.to_host() == NUMBERS + 4).all()


async def test_a_batch_of_a_closed_device_says_so(open_test_device):
    async with open_test_device() as dev:
        add = await compiled(dev, "add")
        x = await dev.to_device(NUMBERS)
        left = dev.batch()
        await left.__aenter__()
        for _ in range(3):
            left.launch(add, 1, N, x, 1)
    with pytest.raises(DeviceClosed):
        left.launch(add, 1, N, x, 1)
    with pytest.raises(DeviceClosed):
        await left.flush()
    with pytest.raises(DeviceClosed):
        await left.__aexit__(None, None, None)
    with pytest.raises(DeviceClosed):
        async with dev.batch():
            pass


async def test_an_empty_batch_is_left_at_a_checkpoint(dev):
    with trio.testing.assert_checkpoints():
        async with dev.batch():
            pass
    async with dev.batch() as batch:
        with trio.testing.assert_checkpoints():
            await batch.flush()


async def test_nothing_keeps_the_arrays_of_a_batch_when_it_is_over(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    y = await dev.to_device(NUMBERS)
    in_use = dev.statistics().memory.in_use
    watched = [weakref.ref(x), weakref.ref(y)]
    async with dev.batch() as batch:
        for _ in range(50):
            batch.launch(add, 1, N, x, 1)
            batch.fill(y, 2)
            batch.to_host(y)
    del x, y
    gc.collect()
    assert [ref() for ref in watched] == [None, None]
    assert dev.empty(1, np.int32).nbytes == 4  # the next call takes back what was collected
    assert dev.statistics().memory.in_use < in_use
    assert repr(batch)


async def test_an_array_that_is_dropped_at_once_lives_until_its_launches_have_run(dev):
    add, twice = await compiled(dev, "add", "twice")
    out = dev.zeros(N, np.int32)
    async with gated(dev) as gate, dev.batch() as batch:
        for number in range(20):
            x = batch.to_device(NUMBERS + number)
            batch.launch(add, 1, N, x, 1)
            batch.launch(twice, 1, N, read_only(x), overwrites(out))
            del x
        gc.collect()
        await gate.open()
    assert (await out.to_host() == 2 * (NUMBERS + 20)).all()


async def test_the_accounts_of_a_batch_are_even(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    before = module_actor(dev).accepted
    async with dev.batch() as batch:
        for _ in range(100):
            batch.launch(add, 1, N, x, 1)
            batch.fill(x, 0)
    statistics = dev.statistics()
    for actor in statistics.actors:
        assert actor.unsettled == 0, actor
    assert module_actor(dev).accepted >= before + 100
    assert all(lane.unfinished == 0 for lane in statistics.lanes)


# --- without the ring -------------------------------------------------------------------------------------------------

END_TO_END = (
    test_launches_run_in_the_order_in_which_they_were_made,
    test_every_verb_does_what_its_awaited_form_does,
    test_a_batch_is_in_order_with_awaited_calls_before_inside_and_after,
    test_a_batch_on_a_lane_of_its_own_is_in_order_with_the_others,
    test_a_loss_in_the_middle_is_raised_by_every_later_verb_and_by_the_end,
    test_the_accounts_of_a_batch_are_even,
)


@pytest.mark.parametrize("check", END_TO_END)
async def test_without_a_ring_everything_goes_by_the_socket_and_is_the_same(check, open_test_device, monkeypatch):
    monkeypatch.setitem(_generation.Generation.__init__.__kwdefaults__, "with_ring", False)
    async with open_test_device() as dev:
        assert core_of(dev).current.ring is None
        await check(dev)


# --- fork -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
async def test_a_batch_that_is_open_across_a_fork_is_the_parents_alone(dev):
    add = await compiled(dev, "add")
    x, y = await dev.to_device(NUMBERS), dev.zeros(N, np.int32)
    prepared = add.prepare(1, N, x, 1)
    async with gated(dev) as gate, dev.batch() as batch:
        for _ in range(3):  # by the short way, too
            batch.launch(add, 1, N, x, 1)
            batch.launch(prepared)
        batch.copy_from(y, NUMBERS)
        before = batch.to_host(x)
        submitted = [lane.submitted for lane in dev.statistics().lanes]
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                answers = refusals_of(batch, add, prepared, x)
                os.write(theirs, repr(answers).encode())
            except BaseException as error:
                os.write(theirs, repr(error).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        await trio.lowlevel.wait_readable(ours)
        answer = os.read(ours, 1 << 16).decode()
        os.close(ours)
        assert (await trio.to_thread.run_sync(os.waitpid, child, 0))[1] == 0
        assert answer == "[]"
        assert [lane.submitted for lane in dev.statistics().lanes] == submitted
        batch.launch(add, 1, N, x, 10)
        batch.launch(prepared)
        after = batch.to_host(x)
        await gate.open()
        await batch.flush()
        assert (before == NUMBERS + 6).all()
        assert (after == NUMBERS + 17).all()
        batch.launch(add, 1, N, y, 1)
    assert (await y.to_host() == NUMBERS + 1).all()
    assert dev.generation == 1


def refusals_of(batch: Any, add: Any, prepared: Any, x: Any) -> list[str]:
    """In the child: what does not raise `DeviceFailed` that speaks of the fork."""
    calls = {
        "launch": lambda: batch.launch(add, 1, N, x, 1),
        "launch, prepared": lambda: batch.launch(prepared),
        "fill": lambda: batch.fill(x, 1),
        "copy_from": lambda: batch.copy_from(x, NUMBERS),
        "to_device": lambda: batch.to_device(NUMBERS),
        "to_host": lambda: batch.to_host(x),
        "record": batch.record,
        "blas": lambda: batch.blas.iamax(x),
        "flush": lambda: batch.flush().send(None),
        "the end": lambda: batch.__aexit__(None, None, None).send(None),
        "the end by an exception": lambda: batch.__aexit__(KeyError, KeyError(), None).send(None),
    }
    wrong = []
    for _ in range(2):
        for name, call in calls.items():
            try:
                call()
                wrong.append(f"{name} did nothing")
            except DeviceFailed as error:
                if "was forked" not in str(error):
                    wrong.append(f"{name}: {error}")
            except BaseException as error:
                wrong.append(f"{name}: {error!r}")
    return wrong
