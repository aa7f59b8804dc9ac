"""Calls of the mathematical libraries: the two forms of a verb, their records, answers, handles, and what ends them."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import inspect
import pkgutil
import weakref

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import (
    CommandFailed,
    ContextLost,
    InvalidArgument,
    LibraryNotFound,
    SingularMatrixError,
    StaleArray,
    libraries,
)
from atomr_trio._calls.outgoing import Outgoing
from atomr_trio._calls.verbs import Answer, Awaited, Batched, Library, Scalar, _write, verb
from atomr_trio._device.device import core_of
from atomr_trio._generation import admission as _admission
from atomr_trio._generation.settler import error_of
from atomr_trio._transfers.batch_areas import BATCH_BYTES
from atomr_trio._transfers.copy_plan import plan_copy
from atomr_trio._transfers.memory import plan_fill, tear
from atomr_trio._transfers.staging import LARGE_SLOT, LARGE_SLOTS, SMALL_SLOT, TINY_SLOTS
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._wire import records
from atomr_trio._wire.protocol import LANE_LIMIT, LIBRARY_MISSING, Mode, VerbTable
from atomr_trio._wire.records.calls import CallTable
from atomr_trio._wire.status import StatusClass, classify
from atomr_trio._worker.base.calls import _shift
from atomr_trio.libraries.blas.records import BLAS
from atomr_trio.testing import ReturnStatus, hold_worker, inject
from support import describe_registered_statuses, open_test_device, set_constant
from support.rogue import compile_rogue, gated, until, until_full

N = 100


@pytest.fixture
async def x(dev):
    return await dev.to_device(np.arange(N, dtype=np.float64))


SQUARES = float((np.arange(N, dtype=np.float64) ** 2).sum())


# --- records ----------------------------------------------------------------------------------------------------------


def test_arguments_are_words_and_scalars_lie_behind_them():
    written = _write([3, -1, Scalar(b"12345678"), 1 << 62, Scalar(b"abcd"), Answer(8)])
    words = np.frombuffer(written.words[: 6 * 8], np.int64).tolist()
    assert words == [3, -1, 0, 1 << 62, 16, 8]
    assert written.words[48:] == b"12345678".ljust(16, b"\0") + b"abcd".ljust(16, b"\0")
    assert (written.scalars, written.answers) == (0b010100, 0b100000)


def test_offsets_become_addresses():
    words = [3, 0, 16, 8]
    _shift(words, 0b0110, 1000)
    assert words == [3, 1000, 1016, 8]


def test_a_scalar_that_its_type_cannot_hold_is_refused():
    assert Scalar.of(2, "float32") == Scalar(np.float32(2).tobytes())
    with pytest.raises(InvalidArgument, match="a complex number does not fit in a real array"):
        Scalar.of(1j, np.float64)


def test_every_function_of_the_table_is_in_the_bindings():
    from atomr_cuda import cublas

    assert [name for name in BLAS.functions if not hasattr(cublas, name)] == []
    assert len(set(BLAS.functions)) == len(BLAS.functions)
    assert (BLAS.call.mode, BLAS.first_call.mode) == (Mode.ENQUEUES, Mode.BLOCKS)


def test_every_engine_has_a_number_of_its_own():
    names = [each.name for each in pkgutil.walk_packages(libraries.__path__, f"{libraries.__name__}.")]
    names = [name for name in names if name.endswith(".records")]
    names += [each.name for each in pkgutil.iter_modules(records.__path__, f"{records.__name__}.")]
    modules = list(map(importlib.import_module, names))
    tables = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, VerbTable)}
    numbers = [table.number for table in tables.values()]
    assert len(numbers) >= 9
    assert len(set(numbers)) == len(numbers)


def test_a_table_whose_calls_wait_has_them_wait():
    assert CallTable("waiting", 99, ("f",), mode=Mode.BLOCKS).call.mode is Mode.BLOCKS


# --- the two forms ----------------------------------------------------------------------------------------------------


async def test_a_verb_is_an_async_function_of_the_device_and_a_plain_one_of_a_batch(dev, x):
    assert inspect.iscoroutinefunction(dev.blas.dot)
    async with dev.batch() as batch:
        assert not inspect.iscoroutinefunction(batch.blas.dot)
        later = batch.blas.dot(x, x)
    assert later == await dev.blas.dot(x, x) == SQUARES
    assert dev.blas.dot.__name__ == "dot"
    assert dev.blas.dot.__doc__ == type(dev.blas).dot.__doc__


async def test_a_verb_can_be_started_in_a_nursery(dev, x):
    y = dev.zeros(N)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dev.blas.axpy, x, y, 2)
    assert (await y.to_host()).tolist() == (2 * np.arange(N)).tolist()


async def test_a_verb_with_nothing_to_do_is_a_checkpoint_all_the_same(dev):
    empty = dev.empty(0)
    with trio.CancelScope() as scope:
        scope.cancel()
        await dev.blas.axpy(empty, empty)
    assert scope.cancelled_caught


async def test_a_verb_of_a_batch_that_is_over_is_refused(dev, x):
    async with dev.batch() as batch:
        blas = batch.blas
    with pytest.raises(InvalidArgument, match="only inside its `async with` block"):
        blas.dot(x, x)


async def test_they_say_what_they_are(dev):
    async with dev.batch() as batch:
        assert repr(batch.blas) == "<BatchBlas of a batch on device 0>"
    assert repr(dev.blas) == "<Blas on device 0>"


# --- order, lanes and answers -----------------------------------------------------------------------------------------


async def test_the_first_call_on_a_lane_waits_and_later_ones_do_not(dev, x):
    async with dev.lane() as lane:
        for _ in range(2):
            async with dev.batch(lane=lane) as batch:
                answer = batch.blas.dot(x, x)
            assert answer == SQUARES
        lanes = {number for library, number, _ in core_of(dev).current.called if library == "blas"}
        assert lanes == {lane._number}
    assert await dev.blas.dot(x, x) == SQUARES


async def test_a_lane_that_is_closed_takes_its_handles_along(dev, x):
    for _ in range(2):  # the second lane has the number of the first, and a handle of its own
        async with dev.lane() as lane:
            async with dev.batch(lane=lane) as batch:
                answer = batch.blas.dot(x, x)
            assert answer == SQUARES
        assert lane._number not in {number for _, number, _ in core_of(dev).current.called}


async def test_what_one_lane_computes_another_waits_for(dev, x):
    y = dev.zeros(N)
    async with dev.lane() as lane, dev.batch(lane=lane) as batch:
        for _ in range(20):
            batch.blas.axpy(x, y)
        assert await dev.blas.dot(x, y) == 20 * SQUARES


async def test_more_answers_than_there_are_slots(dev, x):
    answers = []

    async def ask():
        answers.append(float(await dev.blas.dot(x, x)))

    async with trio.open_nursery() as nursery:
        for _ in range(TINY_SLOTS + 20):
            nursery.start_soon(ask)
    assert answers == [SQUARES] * (TINY_SLOTS + 20)
    assert core_of(dev).part(Transfers).staging.idle


async def test_a_batch_has_more_answers_than_there_are_slots(dev, x):
    async with dev.batch() as batch:
        answers = [batch.blas.dot(x, x) for _ in range(2 * TINY_SLOTS)]
    assert [float(each) for each in answers] == [SQUARES] * len(answers)
    assert core_of(dev).part(Transfers).staging.idle


async def test_a_batch_needs_no_free_slot_for_its_answers(dev, x):
    slots = [core_of(dev).part(Transfers).staging.acquire_nowait(1) for _ in range(TINY_SLOTS)]
    async with dev.batch() as batch:
        answers = [batch.blas.dot(x, x) for _ in range(3)]
    assert answers == [SQUARES] * 3
    for slot in slots:
        slot.release()
    assert core_of(dev).part(Transfers).staging.idle


async def test_who_is_cancelled_gives_the_slot_back(dev, x):
    with trio.CancelScope() as scope:
        scope.cancel()
        await dev.blas.dot(x, x)
    assert scope.cancelled_caught
    assert await dev.blas.dot(x, x) == SQUARES
    assert core_of(dev).part(Transfers).staging.idle


async def test_an_answer_can_stay_on_the_device(dev, x):
    out = dev.full((), np.nan)
    assert await dev.blas.dot(x, x, out=out) is out
    assert await out.to_host() == SQUARES
    with pytest.raises(InvalidArgument, match="float64"):
        await dev.blas.dot(x, x, out=dev.empty((), np.float32))


# --- faults -----------------------------------------------------------------------------------------------------------


async def test_handles_are_made_anew_after_a_loss(dev, x):
    before = await dev.blas.dot(x, x)
    await dev.restart("a test")
    assert core_of(dev).current.called == set()
    assert await dev.blas.dot(x, x) == before


async def test_what_was_started_is_lost_and_what_comes_later_is_not(dev, x):
    a = await dev.to_device(np.eye(N))
    outcomes = []

    async def multiply():
        try:
            out = await dev.blas.gemm(a, a)
            outcomes.append(bool((await out.to_host() == np.eye(N)).all()))
        except ContextLost as lost:
            outcomes.append(lost.generation == 1)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(multiply)
        await trio.testing.wait_all_tasks_blocked()
        await dev.restart("a test")
    assert outcomes == [True] * 8
    assert (await (await dev.blas.gemm(a, a)).to_host() == np.eye(N)).all()
    assert core_of(dev).part(Transfers).staging.idle


async def test_a_wrong_call_sends_nothing(dev, x):
    await dev.blas.dot(x, x)
    before = dev.statistics()
    freed = dev.empty(N)
    freed.free()
    for y in (dev.empty(N - 1), dev.empty((N, 1)), dev.empty(N, np.float32), freed, np.zeros(N), None):
        with pytest.raises(InvalidArgument):
            await dev.blas.dot(x, y)
    assert [lane.submitted for lane in dev.statistics().lanes] == [lane.submitted for lane in before.lanes]


async def test_a_library_that_is_not_installed_is_an_error_that_names_it(dev):
    failure = {"status": LIBRARY_MISSING, "name": "SymbolMissing", "text": "no such function", "library": "cublas"}
    error = error_of(core_of(dev).current, "blas.gemm", failure)
    assert isinstance(error, LibraryNotFound)
    assert (error.library, error.operation, error.generation) == ("cublas", "blas.gemm", 1)


@pytest.mark.parametrize(
    ("library", "status", "expected"),
    [
        ("cublas", 7, StatusClass.REQUEST),
        ("cublas", 3, StatusClass.OUT_OF_MEMORY),
        ("cublas", 13, StatusClass.POISONS),
        ("cublaslt", 15, StatusClass.REQUEST),
        ("cusolver", 2, StatusClass.OUT_OF_MEMORY),
        ("cusolver", 3, StatusClass.REQUEST),
        ("cusolver", 7, StatusClass.POISONS),
        ("cusolver", 1234, StatusClass.POISONS),
    ],
)
def test_a_status_is_judged_by_its_library(library, status, expected):
    describe_registered_statuses()
    assert classify(status, library) is expected


@pytest.mark.sim_only
async def test_a_status_that_harms_nothing_fails_its_call_alone(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cublasDdot_64:15:2,cublasCreate:1:1")
    async with open_test_device() as dev:
        x = await dev.to_device(np.arange(N, dtype=np.float64))
        with pytest.raises(CommandFailed, match="NOT_INITIALIZED") as first:
            await dev.blas.dot(x, x)
        assert (first.value.library, first.value.status, first.value.operation) == ("cublas", 1, "blas.dot")
        assert await dev.blas.dot(x, x) == SQUARES
        with pytest.raises(CommandFailed, match="NOT_SUPPORTED"):
            await dev.blas.dot(x, x)
        assert await dev.blas.dot(x, x) == SQUARES
        assert dev.generation == 1
        assert core_of(dev).part(Transfers).staging.idle


@pytest.mark.sim_only
async def test_a_status_that_costs_the_context_is_a_loss(monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cublasDdot_64:13:1")
    async with open_test_device() as dev:
        monkeypatch.delenv("ATOMR_TRIO_SIM_FAULTS")
        x = await dev.to_device(np.arange(N, dtype=np.float64))
        with pytest.raises(ContextLost, match="EXECUTION_FAILED"):
            await dev.blas.dot(x, x)
        await dev.wait_generation(after=1)
        assert await dev.blas.dot(x, x) == SQUARES


# --- verbs of several commands ----------------------------------------------------------------------------------------

ODD = np.arange(9, dtype=np.int8).reshape(3, 3) - 4
SQUARED = ODD.astype(np.int32) @ ODD.astype(np.int32)
MATRIX = np.array([[4.0, 1.0], [2.0, 3.0]])
SIDE = np.array([1.0, 2.0])
SCATTERED = 40
"""So many pieces that a copy of them is several commands."""
FACTORS = np.stack([np.eye(2) * number for number in (1.0, 2.0, 3.0)])
SIDES = np.arange(12.0).reshape(3, 2, 2)


class _Uploading(Library):
    """A library whose one verb brings numbers to the device."""

    __slots__ = ()
    _table = BLAS

    @verb
    def upload(self, numbers):
        """A new array with these numbers."""
        return self._upload(numbers)


class Uploading(_Uploading, Awaited):
    __slots__ = ()


class BatchUploading(_Uploading, Batched):
    __slots__ = ()


async def odd_product(dev):
    """Bytes that are copied to where the library multiplies them, and the result back: an input and the result."""
    return await dev.to_device(ODD), await dev.to_device(np.zeros((3, 3), np.int32))


async def commands_of(dev, call):
    """How many commands a call comes to, once all it needs is there."""
    await call()
    before = dev.statistics().lanes[0].submitted
    await call()
    return dev.statistics().lanes[0].submitted - before


async def once(call):
    """Make a call of either form."""
    result = call()
    return await result if inspect.isawaitable(result) else result


def planned(dev, verb_name, *arguments, **keywords):
    """The commands of a verb of `dev.solver`, which are not sent."""
    planner = dev.solver._planner()
    getattr(type(planner), verb_name).plan(planner, *arguments, **keywords)
    return Outgoing(planner._requests).take()


def actor_of(dev, name):
    return next(actor for actor in core_of(dev).actors if actor.name == name)


async def test_the_commands_of_a_verb_begin_in_one_stretch(dev):
    a, out = await odd_product(dev)
    count = await commands_of(dev, lambda: dev.blas.gemm(a, a, out=out))
    assert count >= 4  # an input twice, the product, the result
    async with gated(dev), trio.open_nursery() as nursery:
        busy = dev.statistics().lanes[0].unfinished
        nursery.start_soon(functools.partial(dev.blas.gemm, a, a, out=out))
        await until(lambda: dev.statistics().lanes[0].unfinished > busy)
        assert dev.statistics().lanes[0].unfinished == busy + count
        nursery.cancel_scope.cancel()
    np.testing.assert_array_equal(await out.to_host(), SQUARED)


async def test_nothing_begins_behind_a_command_whose_answer_may_refuse_it(dev):
    """That is, nothing that would write to an `out` which a failure leaves unchanged."""
    a, b, out = await dev.to_device(MATRIX), await dev.to_device(SIDE), await dev.to_device(SIDE)
    solved = []

    async def solve():
        solved.append(await dev.solver.lstsq(a, b, out=out))

    await solve()
    count = await commands_of(dev, solve)
    assert count > 1
    async with trio.open_nursery() as nursery, gated(dev) as gate:
        busy = dev.statistics().lanes[0].unfinished
        nursery.start_soon(solve)
        await until(lambda: dev.statistics().lanes[0].unfinished > busy)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert dev.statistics().lanes[0].unfinished < busy + count
        await gate.open()
    np.testing.assert_allclose(await solved[0].to_host(), np.linalg.solve(MATRIX, SIDE))
    singular = await dev.to_device(np.zeros((2, 2)))
    submitted = dev.statistics().lanes[0].submitted
    with pytest.raises(SingularMatrixError):
        await dev.solver.lstsq(singular, b, out=out)
    assert dev.statistics().lanes[0].submitted < submitted + count
    np.testing.assert_allclose(await out.to_host(), np.linalg.solve(MATRIX, SIDE))


async def test_a_command_of_an_actor_that_is_busy_keeps_those_behind_it_waiting(dev):
    a, out = await odd_product(dev)
    x, touched = await dev.to_device(np.ones(N)), await dev.to_device(np.ones(N))
    await dev.blas.gemm(a, a, out=out)
    await dev.blas.scal(x, 1)  # its kernels are not loaded while another one runs
    await out.fill(0)
    memory = actor_of(dev, "memory")
    (held,) = plan_fill(touched, 5)
    async with dev.lane() as lane, trio.open_nursery() as nursery, gated(dev, lane) as gate:
        held.lane = lane._number
        (spin,) = await compile_rogue(dev, "touch")
        until_full(lambda: spin.launch_nowait(1, 1, touched, 0, lane=lane))
        nursery.start_soon(memory.mailbox.ask, held)
        await until(lambda: memory.current is held)
        submitted = dev.statistics().lanes[0].submitted
        nursery.start_soon(functools.partial(dev.blas.gemm, a, a, out=out))
        await until(lambda: memory.mailbox.posted > memory.mailbox.taken)
        await dev.blas.scal(x, 2)
        assert dev.statistics().lanes[0].submitted == submitted + 1, "the other actor goes on"
        await gate.open()
    assert (await touched.to_host()).tolist() == [5] * N
    np.testing.assert_array_equal(await out.to_host(), SQUARED)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.sim_only
async def test_what_worked_on_the_result_of_a_command_that_failed_is_torn(dev, batched):
    a, out = await odd_product(dev)
    await dev.blas.gemm(a, a, out=out)
    inject(dev, "cublasGemmEx_64", ReturnStatus(15))
    with pytest.raises(CommandFailed, match="NOT_SUPPORTED"):
        async with dev.batch() as batch:
            await once(functools.partial((batch if batched else dev).blas.gemm, a, a, out=out))
    assert (a.state, out.state) == ("ready", "torn")
    with pytest.raises(StaleArray, match="did not finish"):
        await out.to_host()
    await dev.blas.gemm(a, a, out=out)
    np.testing.assert_array_equal(await out.to_host(), SQUARED)
    assert all(actor.unsettled == 0 for actor in dev.statistics().actors)


async def test_a_caller_that_goes_away_when_all_has_begun_leaves_the_result_whole(dev):
    a, out = await odd_product(dev)
    count = await commands_of(dev, lambda: dev.blas.gemm(a, a, out=out))
    await out.fill(0)
    async with gated(dev):
        busy = dev.statistics().lanes[0].unfinished
        async with trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(dev.blas.gemm, a, a, out=out))
            await until(lambda: dev.statistics().lanes[0].unfinished == busy + count)
            await until(
                lambda: not core_of(dev).current.settler.looked_for
            )  # it has looked long enough, and sleeps now
            nursery.cancel_scope.cancel()
        assert out.state == "ready"
    np.testing.assert_array_equal(await out.to_host(), SQUARED)


@pytest.mark.parametrize("batched", [False, True])
async def test_a_verb_that_is_refused_at_its_first_command_harms_nothing(dev, batched):
    factor, sides = [(await dev.to_device(each)).transpose(0, 2, 1) for each in (FACTORS, SIDES)]
    await dev.solver.potrs(factor, sides, overwrite_b=True)
    assert len(planned(dev, "potrs", factor, sides, overwrite_b=True)) > 2
    await sides.copy_from(SIDES)
    tear(factor._block, ValueError(), begun=1, pieces=2)
    submitted = dev.statistics().lanes[0].submitted
    async with dev.batch() as batch:
        solve = functools.partial((batch if batched else dev).solver.potrs, factor, sides, overwrite_b=True)
        with pytest.raises(StaleArray, match="torn"):
            await once(solve)
    assert dev.statistics().lanes[0].submitted == submitted
    assert sides.state == "ready"
    np.testing.assert_array_equal(await sides.to_host(), SIDES)


async def test_a_copy_that_is_refused_at_its_first_command_harms_nothing(dev):
    source, target = [await dev.to_device(np.ones((2 * SCATTERED, 2, 6, 4), np.int8)) for _ in range(2)]
    tear(source._block, ValueError(), begun=1, pieces=2)
    parts = [array[::2, ::2, ::2, ::2] for array in (source, target)]
    assert len(plan_copy(*parts)) > 1
    with pytest.raises(StaleArray, match="torn"):
        await parts[1].copy_from(parts[0])
    assert target.state == "ready"


async def test_a_verb_of_several_commands_is_sent_whole_or_not_at_all(dev, monkeypatch):
    set_constant(monkeypatch, _admission, "BATCH_COMMANDS", LANE_LIMIT)
    x, (a, out) = await dev.to_device(np.ones(N)), await odd_product(dev)
    await dev.blas.gemm(a, a, out=out)
    await out.fill(0)
    async with dev.batch() as batch:
        with hold_worker(dev):
            while dev.statistics().lanes[0].unfinished < LANE_LIMIT - 1:
                batch.fill(x, 1)
            with pytest.raises(trio.WouldBlock):
                batch.blas.gemm(a, a, out=out)
            assert dev.statistics().lanes[0].unfinished == LANE_LIMIT - 1
            assert out.state == "ready"
        await batch.flush()
        batch.blas.gemm(a, a, out=out)
    np.testing.assert_array_equal(await out.to_host(), SQUARED)
    assert all(actor.unsettled == 0 for actor in dev.statistics().actors)


@pytest.mark.parametrize("batched", [False, True])
async def test_nothing_goes_in_circles_that_keep_arrays_alive(dev, batched):
    warm, _ = await odd_product(dev)
    await dev.blas.gemm(warm, warm)
    gc.disable()
    try:
        async with dev.batch() as batch:
            a, out = await odd_product(dev)
            watched = [weakref.ref(a), weakref.ref(out)]
            if batched:
                batch.blas.gemm(a, a, out=out)
                batch.blas.gemm(a, a)
                tear(a._block, ValueError(), begun=1, pieces=2)
                with contextlib.suppress(StaleArray):
                    batch.blas.gemm(a, a, out=out)
            else:
                await dev.blas.gemm(a, a, out=out)
                await dev.blas.gemm(a, a)
        del a, out
        assert [ref() for ref in watched] == [None, None]
    finally:
        gc.enable()


async def test_more_large_uploads_than_there_are_slots(dev):
    numbers = np.arange((LARGE_SLOTS + 3) * LARGE_SLOT // 8, dtype=np.int64)
    array = await Uploading(core_of(dev)).upload(numbers)
    assert np.array_equal(await array.to_host(), numbers)
    assert core_of(dev).part(Transfers).staging.idle


async def test_a_batch_has_room_for_more_large_uploads_than_there_are_slots(dev):
    arrays = []
    async with dev.batch() as batch:
        uploading = BatchUploading(core_of(dev), batch._sender)
        with pytest.raises(InvalidArgument, match="100,663,304 bytes"):
            uploading.upload(np.zeros(BATCH_BYTES // 8 + 1))
        assert core_of(dev).part(Transfers).staging.idle, "all of it or nothing"
        arrays += [uploading.upload(np.full(SMALL_SLOT // 8 + 1, float(number))) for number in range(2 * LARGE_SLOTS)]
    for number, array in enumerate(arrays):
        assert (await array.to_host() == number).all()
    assert core_of(dev).part(Transfers).staging.idle
