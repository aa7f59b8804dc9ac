"""The short way of repeated calls: new results, answers on the host, and what other lanes have to do with it."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import CommandFailed, ContextLost, DeviceClosed, InvalidArgument, OutOfDeviceMemory, StaleArray
from atomr_trio._calls.launching import AwaitedAnswer
from atomr_trio._device.device import core_of
from atomr_trio._memory.arena import KNOWN_HERE_ALONE
from atomr_trio._transfers.staging import SHARE_OF_BATCHES, TINY_SLOTS
from atomr_trio._transfers.transfers import Transfers
from atomr_trio.testing import ReturnStatus, hold_worker, inject
from support import open_test_device
from support.repeated import Form, N, Ways, blas_actor, both, form, given, known, made_short, matrix
from support.rogue import gated, kill_worker, next_generation, until

DEADLINE = 60
NOT_SUPPORTED = 15


@pytest.fixture
def ways(dev, monkeypatch):
    return Ways(dev, monkeypatch)


def staging(dev: Any) -> Any:
    return core_of(dev).part(Transfers).staging


# --- new results ------------------------------------------------------------------------------------------------------


@both
async def test_a_repeated_call_with_a_new_result_goes_the_short_way(dev, ways, name):
    a, b = await given(dev, 1, 2)
    async with form(dev, name) as call:
        results, taken = [], []
        for _ in range(40):
            results.append(await call("gemm", a, b))
            taken.append(ways.last())
        assert taken == ["planned"] + 39 * ["short"]
    assert len({each.address for each in results}) == 40
    for each in results:
        assert (each.shape, each.dtype, each.state) == ((N, N), np.float32, "ready")
        np.testing.assert_array_equal(await each.to_host(), matrix(1) @ matrix(2))
    assert blas_actor(dev).unsettled == 0


@both
async def test_a_result_that_is_used_at_once_is_ready_for_the_short_way(dev, ways, name):
    """A chain of products, each of the result before, in the memory of those that are gone."""
    turn = await dev.to_device(np.roll(np.eye(N, dtype=np.float32), 1, axis=0))
    (start,) = await given(dev, 1)
    async with form(dev, name) as call:
        taken = []
        for _ in range(3):
            each = start
            for _ in range(4):
                each = await call("gemm", turn, each)
                taken.append(ways.last())
            await call.flush()
        result = await call.read(each)
    assert "general" not in taken
    np.testing.assert_array_equal(result, np.roll(matrix(1), 4, axis=0))


@pytest.mark.skipif(KNOWN_HERE_ALONE < 0, reason="this Python does not count every reference")
async def test_results_that_are_dropped_in_turn_have_the_same_few_blocks_though_no_call_is_done(dev, ways):
    a, b = await given(dev, 1, 2)
    async with dev.batch() as batch:
        await made_short(Form(dev, batch), "gemm", a, b)
        ways.forget()
        blocks, result = set(), None
        with hold_worker(dev):
            for _ in range(40):
                result = batch.blas.gemm(a, b)
                assert ways.last() == "short"
                blocks.add(id(result._block))
    assert len(blocks) == 2
    np.testing.assert_array_equal(await result.to_host(), matrix(1) @ matrix(2))


@pytest.mark.skipif(KNOWN_HERE_ALONE < 0, reason="this Python does not count every reference")
async def test_a_result_whose_block_was_taken_again_is_in_everything_like_another_new_array(dev, ways):
    """It is made line by line in generated code, so whatever is added to an array must be added there too."""
    a, b = await given(dev, 1, 2)
    async with dev.batch() as batch:
        await made_short(Form(dev, batch), "gemm", a, b)
        blocks, result = [], None
        for _ in range(6):
            result = batch.blas.gemm(a, b)
            blocks.append(id(result._block))
        assert id(result._block) in blocks[:-1]
        other = dev.empty(result.shape, result.dtype)
        other._find_form()
        for mine, new, own in ((result, other, "_storage"), (result._storage, other._storage, "block")):
            names = [name for name in type(new).__slots__ if name not in {"__weakref__", own}]
            assert {name: getattr(mine, name) for name in names} == {name: getattr(new, name) for name in names}


async def dropped_while_running(dev: Any, batch: Any, use: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Make a result, use it, drop it, and make another one, all while nothing runs. Return both blocks."""
    a, b = await given(dev, 1, 2)
    await made_short(Form(dev, batch), "gemm", a, b)
    await batch.flush()
    with hold_worker(dev):
        first = batch.blas.gemm(b, a)
        kept, block = use(first), first._block
        del first
        second = batch.blas.gemm(a, b)
    await batch.flush()
    np.testing.assert_array_equal(await second.to_host(), matrix(1) @ matrix(2))
    return kept, (block, second._block)


async def test_the_block_of_a_result_that_goes_to_the_host_waits_for_the_copy(dev):
    async with dev.batch() as batch:
        host, (first, second) = await dropped_while_running(dev, batch, batch.to_host)
    assert first is not second
    np.testing.assert_array_equal(host, matrix(2) @ matrix(1))


async def test_the_block_of_a_result_that_has_a_view_is_not_taken_again(dev):
    async with dev.batch() as batch:
        view, (first, second) = await dropped_while_running(dev, batch, lambda array: array[1:])
    assert first.address != second.address
    np.testing.assert_array_equal(await view.to_host(), (matrix(2) @ matrix(1))[1:])


async def test_the_block_of_a_result_that_another_lane_reads_is_not_taken_as_it_is(dev):
    async with dev.lane() as lane, dev.batch(lane=lane) as other, dev.batch() as batch:
        copy = dev.empty((N, N), np.float32)
        _, (first, second) = await dropped_while_running(dev, batch, lambda array: other.copy_from(copy, array))
        await other.flush()
    assert first is not second
    np.testing.assert_array_equal(await copy.to_host(), matrix(2) @ matrix(1))


async def test_a_result_that_an_unfinished_call_reads_lives_as_long_as_that(dev):
    turn = await dev.to_device(np.roll(np.eye(N, dtype=np.float32), 1, axis=0))
    async with dev.batch() as batch:
        moved, (first, second) = await dropped_while_running(dev, batch, lambda array: batch.blas.gemm(turn, array))
    assert first.address != second.address
    np.testing.assert_array_equal(await moved.to_host(), np.roll(matrix(2) @ matrix(1), 1, axis=0))


async def test_a_result_in_memory_that_another_lane_still_reads_waits_for_it(dev, ways):
    a, b = await given(dev, 1, 2)
    async with dev.batch() as batch:
        await made_short(Form(dev, batch), "gemm", a, b)
        first = batch.blas.gemm(b, a)
        await batch.flush()
        ways.forget()
        address = first.address
        with hold_worker(dev):
            copy = batch.to_host(first)
            first.free()
            second = batch.blas.gemm(a, b)
            assert second.address == address, "the test wants the memory that is still read"
            assert ways.last() == "general"
            third = batch.blas.gemm(a, b)
            assert third.address != address
            assert ways.last() == "short"
        result = batch.to_host(second)
    np.testing.assert_array_equal(copy, matrix(2) @ matrix(1))
    np.testing.assert_array_equal(result, matrix(1) @ matrix(2))
    np.testing.assert_array_equal(await third.to_host(), matrix(1) @ matrix(2))


@both
async def test_a_result_is_torn_by_the_loss_of_the_worker_that_was_writing_it(dev, name):
    a, b = await given(dev, 1, 2)
    results: list[Any] = []

    async def send() -> None:
        async with form(dev, name) as call:
            await made_short(call, "gemm", a, b)
            path = call.launchers
            assert path
            async with trio.open_nursery() as nursery:
                with hold_worker(dev):
                    if name == "awaited":
                        nursery.start_soon(call, "gemm", a, b)
                        generation = core_of(dev).current
                        book = generation.timeline.lanes[0]
                        await until(lambda: len(book.launches) == 1)
                        results.append(generation.arena.born(generation.number)[0, book.launches[0][0]])  # its block
                    else:
                        results.append(await call("gemm", a, b))
                    kill_worker(dev)

    with trio.fail_after(DEADLINE):
        with pytest.RaisesGroup(ContextLost, allow_unwrapped=True, flatten_subgroups=True):
            await send()
        await next_generation(dev, 1)
    (result,) = results
    assert (result.state, a.state, b.state) == ("torn", "ready", "ready")
    if name == "in a batch":
        with pytest.raises(StaleArray, match="torn"):
            await result.to_host()
    np.testing.assert_array_equal(await (await dev.blas.gemm(a, b)).to_host(), matrix(1) @ matrix(2))


@both
async def test_without_memory_for_a_result_the_call_is_refused_and_nothing_is_sent(name):
    async with open_test_device(memory_limit=4 << 20) as dev:
        a, b = await given(dev, 1, 2)
        async with form(dev, name) as call:
            await made_short(call, "gemm", a, b)
            held: list[Any] = []
            for size in (1 << 20, 512):
                with pytest.raises(OutOfDeviceMemory):
                    held.extend(dev.empty(size, np.uint8) for _ in itertools.count())
            submitted = dev.statistics().lanes[0].submitted
            for _ in range(2):
                with pytest.raises(OutOfDeviceMemory, match="bytes do not fit"):
                    await call("gemm", a, b)
            assert dev.statistics().lanes[0].submitted == submitted
            held.clear()
            result = await call("gemm", a, b)
        np.testing.assert_array_equal(await result.to_host(), matrix(1) @ matrix(2))


@both
async def test_during_a_quarantine_no_call_goes_the_short_way_to_memory(dev, ways, monkeypatch, name):
    a, b, out = await given(dev, 1, 2, 3)
    async with form(dev, name) as call:
        await made_short(call, "gemm", a, b)
        ways.forget()
        with monkeypatch.context() as patch:
            patch.setitem(core_of(dev).current.arena.quarantine, 99, (0,) * 16)
            result = await call("gemm", a, b)
            assert ways.last() == "general"
        again = await call("gemm", a, b)
        assert ways.last() == "short"
    for each in (result, again):
        np.testing.assert_array_equal(await each.to_host(), matrix(1) @ matrix(2))
    assert out.state == "ready"


# --- other lanes ------------------------------------------------------------------------------------------------------


@both
async def test_an_array_that_another_lane_is_done_with_is_taken_at_once(dev, ways, name):
    a, b, out = await given(dev, 1, 2, 3)
    async with form(dev, name) as call:
        await call("gemm", a, b, out=out)
        await call.flush()
        for seed in range(5):
            await a.copy_from(matrix(seed))
            await b.to_host()
            ways.forget()
            await call("gemm", a, b, out=out)
            assert ways.last() == "short"
            await call.flush()
            np.testing.assert_array_equal(await out.to_host(), matrix(seed) @ matrix(2))


async def test_what_another_lane_is_not_done_with_is_waited_for_and_reading_together_is_not(dev, ways):
    a, b, out = await given(dev, 1, 2, 3)
    async with dev.lane() as lane, dev.batch(lane=lane) as there, dev.batch() as here:
        for batch in (there, here):
            for _ in range(2):
                batch.blas.gemm(a, b, out=out)
                other = batch.blas.gemm(b, a)
                await batch.flush()
        ways.forget()
        with hold_worker(dev):
            taken = []
            for _ in range(3):  # both lanes read the same arrays
                for batch in (there, here):
                    other = batch.blas.gemm(b, a)
                    taken.append(ways.last())
            assert taken == 6 * ["short"]
            there.blas.gemm(a, b, out=out)
            assert ways.last() == "short"
            here.blas.gemm(a, b, out=out)
            assert ways.last() == "general", "another lane writes it"
            here.blas.gemm(a, b, out=out)
            assert ways.last() == "short", "the lane waits already"
        await there.flush()
        await here.flush()
        np.testing.assert_array_equal(await other.to_host(), matrix(2) @ matrix(1))
        ways.forget()
        with hold_worker(dev):
            there.blas.gemm(a, b, out=out)
            assert ways.last() == "short"
    np.testing.assert_array_equal(await out.to_host(), matrix(1) @ matrix(2))


async def test_arrays_that_two_lanes_read_are_not_overwritten_before_both_have(dev):
    a, b = await given(dev, 1, 2)
    async with dev.lane() as lane, dev.batch(lane=lane) as there, dev.batch() as here:
        for turn in range(20):
            results = [batch.blas.gemm(a, b) for batch in (there, here, there, here)]
            seed = turn + 3
            here.copy_from(a, matrix(seed))
            after = [batch.blas.gemm(a, b) for batch in (here, there)]
            await here.flush()
            await there.flush()
            before = matrix(turn + 2 if turn else 1)
            for each in results:
                np.testing.assert_array_equal(await each.to_host(), before @ matrix(2))
            for each in after:
                np.testing.assert_array_equal(await each.to_host(), matrix(seed) @ matrix(2))


async def test_a_fill_that_is_not_made_yet_comes_before_the_call(dev, ways):
    a, b, out = await given(dev, 1, 2, 3)
    await made_short(Form(dev), "gemm", a, b, out=out, beta=1)
    ways.forget()
    zeros = dev.zeros((N, N), np.float32)
    for _ in range(3):
        await dev.blas.gemm(a, b, out=zeros, beta=1)
        assert ways.last() == "short"
    np.testing.assert_array_equal(await zeros.to_host(), 3 * matrix(1) @ matrix(2))


# --- answers ----------------------------------------------------------------------------------------------------------


async def vectors(dev: Any) -> list[Any]:
    return [await dev.to_device(np.arange(float(N)) + first) for first in (0, 1)]


@both
async def test_answers_of_repeated_calls_come_the_short_way(dev, ways, name):
    x, y = await vectors(dev)
    async with form(dev, name) as call:
        taken, answers = [], []
        for factor in range(1, 6):
            answers.append((await call("dot", x, y), await call("nrm2", y)))
            assert ways._planned == (2 if factor == 1 else 0)
            taken.append(ways._published)
            await call("scal", y, 2)
            ways.forget()
    assert taken == [2, 0, 0, 0, 0]
    expected = np.arange(float(N)) + 1
    for turn, (dot, norm) in enumerate(answers):
        assert isinstance(dot, np.ndarray)
        assert (dot.shape, dot.dtype) == ((), np.float64)
        assert float(dot) == np.arange(float(N)) @ expected * 2**turn
        np.testing.assert_allclose(norm, np.linalg.norm(expected) * 2**turn)
    assert len({id(dot) for dot, _ in answers}) == 5
    assert staging(dev).idle
    assert blas_actor(dev).unsettled == 0


@both
async def test_an_index_that_is_counted_from_one_is_counted_from_zero_each_time(dev, name):
    x = await dev.to_device(np.array([1.0, -7, 3, 7]))
    async with form(dev, name) as call:
        found = [await call("iamax", x) for _ in range(4)]
    assert [int(each) for each in found] == [1] * 4


async def test_an_answer_of_a_batch_is_there_after_flush_and_not_before(dev):
    x, y = await vectors(dev)
    async with dev.batch() as batch:
        await made_short(Form(dev, batch), "dot", x, y)
        with hold_worker(dev):
            answers = [batch.blas.dot(x, y) for _ in range(5)]
            assert not staging(dev).idle
        await batch.flush()
        assert [float(each) for each in answers] == [20] * 5
        assert staging(dev).idle, "what was heard holds no slot"


async def test_more_answers_than_slots_are_all_there(dev):
    x, y = await vectors(dev)
    part, whole = SHARE_OF_BATCHES
    most = TINY_SLOTS * part // whole
    async with dev.batch() as batch:
        await made_short(Form(dev, batch), "dot", x, y)
        with hold_worker(dev):
            answers = [batch.blas.dot(x, y) for _ in range(most + 50)]
        await batch.flush()
    assert [float(each) for each in answers] == [20] * (most + 50)
    assert staging(dev).idle


async def test_awaited_answers_go_another_way_while_no_slot_is_free(dev, ways):
    x, y = await vectors(dev)
    await made_short(Form(dev), "dot", x, y)
    ways.forget()
    slots = []
    while staging(dev).has_free(8):
        slots.append(staging(dev).acquire_nowait(8))
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await dev.blas.dot(x, y))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await until(lambda: ways._planned == 1)
        assert not answers
        for slot in slots:
            slot.release()
    assert float(answers[0]) == 20
    assert staging(dev).idle


async def test_an_answer_that_nobody_waits_for_any_more_gives_its_slot_back(dev):
    x, y = await vectors(dev)
    await made_short(Form(dev), "dot", x, y)
    before = blas_actor(dev)
    async with gated(dev):
        with trio.move_on_after(0.01) as scope:
            await dev.blas.dot(x, y)
        assert scope.cancelled_caught
        assert not staging(dev).idle
    assert float(await dev.blas.dot(x, y)) == 20
    await until(lambda: staging(dev).idle)
    assert blas_actor(dev).settled["abandoned"] == before.settled["abandoned"] + 1
    assert blas_actor(dev).unsettled == 0


async def test_an_answer_that_has_come_when_its_task_is_cancelled_gives_its_slot_back(dev, monkeypatch):
    x, y = await vectors(dev)
    await made_short(Form(dev), "dot", x, y)
    wait = AwaitedAnswer.wait

    async def wait_and_be_cancelled(awaited: Any) -> None:
        await wait(awaited)
        scope.cancel()
        await trio.lowlevel.checkpoint()

    with monkeypatch.context() as patch, trio.CancelScope() as scope:
        patch.setattr(AwaitedAnswer, "wait", wait_and_be_cancelled)
        await dev.blas.dot(x, y)
    assert scope.cancelled_caught
    assert staging(dev).idle
    assert float(await dev.blas.dot(x, y)) == 20


@both
@pytest.mark.sim_only
async def test_a_call_with_an_answer_that_fails_is_told_and_the_others_have_theirs(dev, name):
    x, y = await vectors(dev)
    async with form(dev, name) as call:
        await made_short(call, "dot", x, y)
        inject(dev, "cublasDdot_64", ReturnStatus(NOT_SUPPORTED), call=2)
        first = await call("dot", x, y)
        with pytest.raises(CommandFailed, match="NOT_SUPPORTED") as caught:  # noqa: PT012
            await call("dot", x, y)
            await call.flush()
        last = await call("dot", x, y)
        await call.flush()
    assert caught.value.operation == "blas.dot"
    assert (float(first), float(last)) == (20, 20)
    assert staging(dev).idle
    assert blas_actor(dev).settled["failed"] == 1
    assert blas_actor(dev).unsettled == 0


@both
async def test_answers_that_a_loss_has_cost_are_told_as_lost_and_hold_no_slots(dev, name):
    x, y = await vectors(dev)
    lost = blas_actor(dev).settled["lost"]

    async def send() -> None:
        async with form(dev, name) as call:
            await made_short(call, "dot", x, y)
            async with trio.open_nursery() as nursery:
                with hold_worker(dev):
                    for _ in range(3):
                        if name == "awaited":
                            nursery.start_soon(call, "dot", x, y)
                        else:
                            await call("dot", x, y)
                    await until(lambda: len(core_of(dev).current.timeline.lanes[0].launches) == 3)
                    kill_worker(dev)

    with trio.fail_after(DEADLINE):
        with (
            pytest.RaisesGroup(ContextLost, allow_unwrapped=True, flatten_subgroups=True, check=None)
            if (name == "in a batch")
            else pytest.RaisesGroup(ContextLost, ContextLost, ContextLost, flatten_subgroups=True)
        ):
            await send()
        await next_generation(dev, 1)
    assert (x.state, y.state) == ("ready", "ready")
    assert float(await dev.blas.dot(x, y)) == 20
    await until(lambda: staging(dev).idle)
    assert blas_actor(dev).settled["lost"] == lost + 3
    assert blas_actor(dev).unsettled == 0


@both
async def test_a_freed_array_is_refused_where_an_answer_is_asked_for(dev, name):
    x, y = await vectors(dev)
    async with form(dev, name) as call:
        await made_short(call, "dot", x, y)
        y.free()
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="the array was freed"):
                await call("dot", x, y)
    assert staging(dev).idle


async def test_a_closed_device_and_a_batch_that_is_over_answer_nothing(pool):
    async with open_test_device(workers=pool) as dev:
        x, y = await vectors(dev)
        await made_short(Form(dev), "dot", x, y)
        async with dev.batch() as batch:
            await made_short(Form(dev, batch), "dot", x, y)
        with pytest.raises(InvalidArgument, match="async with"):
            batch.blas.dot(x, y)
    with pytest.raises(DeviceClosed):
        await dev.blas.dot(x, y)


async def test_a_known_answer_keeps_no_array_alive(dev):
    in_use = dev.statistics().memory.in_use
    x, y = await vectors(dev)
    for _ in range(3):
        await dev.blas.dot(x, y)
    assert len(known(dev)) == 1
    del x, y
    gc.collect()
    assert dev.statistics().memory.in_use == in_use


# --- plans ------------------------------------------------------------------------------------------------------------


async def test_a_plan_that_is_used_the_short_way_is_not_taken_for_unused():
    async with open_test_device(plan_cache=2) as dev:
        large, small, third = [await dev.to_device(np.eye(size, dtype=np.float32)) for size in (8, 4, 16)]
        out = dev.zeros((8, 8), np.float32)
        generation = core_of(dev).current
        for _ in range(2):
            await dev.blaslt.matmul(large, large, out=out)
        (kept,) = {number for _, number in generation.plans}
        await dev.blaslt.matmul(small, small)
        await dev.blaslt.matmul(large, large, out=out)
        await dev.blaslt.matmul(third, third)  # that of `small` goes
        core_of(dev).release_dropped(generation)
        assert kept in {number for _, number in generation.plans}
        await dev.restart("a test")
        await dev.blaslt.matmul(third, third)
        await dev.blaslt.matmul(small, small)  # that of `large` goes, in another generation
        assert (await (await dev.blaslt.matmul(large, large)).to_host() == np.eye(8)).all()
