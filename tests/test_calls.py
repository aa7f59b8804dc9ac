"""Calls of the mathematical libraries: the two forms of a verb, their records, answers, handles, and what ends them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import CommandFailed, ContextLost, InvalidArgument, LibraryNotFound
from atomr_trio._calls import Answer, Scalar, _write
from atomr_trio._staging import TINY_SLOTS
from atomr_trio.worker import engines
from atomr_trio.worker.engines.blas import BLAS
from atomr_trio.worker.engines.calls import CallTable, _shift
from atomr_trio.worker.protocol import LIBRARY_MISSING, Mode, VerbTable
from atomr_trio.worker.status import StatusClass, classify

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
    with pytest.raises(InvalidArgument, match="a complex number has no place in a real array"):
        Scalar.of(1j, np.float64)


def test_every_function_of_the_table_is_in_the_bindings():
    from atomr_cuda import cublas

    assert [name for name in BLAS.functions if not hasattr(cublas, name)] == []
    assert len(set(BLAS.functions)) == len(BLAS.functions)
    assert (BLAS.call.mode, BLAS.first_call.mode) == (Mode.ENQUEUES, Mode.BLOCKS)


def test_every_engine_has_a_number_of_its_own():
    modules = [
        importlib.import_module(f"{engines.__name__}.{each.name}") for each in pkgutil.iter_modules(engines.__path__)
    ]
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
    with pytest.raises(InvalidArgument, match="inside of its `async with` block"):
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
        lanes = {number for library, number, _ in dev._generation.called if library == "blas"}
        assert lanes == {lane._number}
    assert await dev.blas.dot(x, x) == SQUARES


async def test_a_lane_that_is_closed_takes_its_handles_along(dev, x):
    for _ in range(2):  # the second lane has the number of the first, and a handle of its own
        async with dev.lane() as lane:
            async with dev.batch(lane=lane) as batch:
                answer = batch.blas.dot(x, x)
            assert answer == SQUARES
        assert lane._number not in {number for _, number, _ in dev._generation.called}


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
    assert dev._staging.idle


async def test_a_batch_with_more_answers_than_slots_says_so_and_loses_nothing(dev, x):
    answers = []
    async with dev.batch() as batch:
        while len(answers) < 2 * TINY_SLOTS:
            try:
                answers.append(batch.blas.dot(x, x))
            except trio.WouldBlock:
                await batch.flush()
    assert [float(each) for each in answers] == [SQUARES] * len(answers)
    assert dev._staging.idle


async def test_a_batch_is_refused_where_no_slot_is_free(dev, x):
    slots = [dev._staging.acquire_nowait(1) for _ in range(TINY_SLOTS)]
    async with dev.batch() as batch:
        with pytest.raises(trio.WouldBlock):
            batch.blas.dot(x, x)
        slots.pop().release()
        answer = batch.blas.dot(x, x)
    assert answer == SQUARES
    for slot in slots:
        slot.release()


async def test_who_is_cancelled_gives_the_slot_back(dev, x):
    with trio.CancelScope() as scope:
        scope.cancel()
        await dev.blas.dot(x, x)
    assert scope.cancelled_caught
    assert await dev.blas.dot(x, x) == SQUARES
    assert dev._staging.idle


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
    assert dev._generation.called == set()
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
    assert dev._staging.idle


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
    error = dev._generation._error_of("blas.gemm", failure)
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
    assert classify(status, library) is expected


@pytest.mark.sim_only
async def test_a_status_that_harms_nothing_fails_its_call_alone(open_test_device, monkeypatch):
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
        assert dev._staging.idle


@pytest.mark.sim_only
async def test_a_status_that_costs_the_context_is_a_loss(open_test_device, monkeypatch):
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "cublasDdot_64:13:1")
    async with open_test_device() as dev:
        monkeypatch.delenv("ATOMR_TRIO_SIM_FAULTS")
        x = await dev.to_device(np.arange(N, dtype=np.float64))
        with pytest.raises(ContextLost, match="EXECUTION_FAILED"):
            await dev.blas.dot(x, x)
        await dev.wait_generation(after=1)
        assert await dev.blas.dot(x, x) == SQUARES
