"""Calls of libraries that are made again: each does what a first one does, whichever way it takes.

The first call is planned, and from the second on the short way is taken. Where something of another lane must be waited
for, it is the general way, without a plan. Every test that can is made in both forms, awaited and in a batch.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import CommandFailed, ContextLost, DeviceClosed, DeviceFailed, InvalidArgument, StaleArray
from atomr_trio._arrays import arrays as _arrays
from atomr_trio._calls.known import _MOST_KNOWN, form_of, located
from atomr_trio._calls.verbs import Library
from atomr_trio._device.device import core_of
from atomr_trio._generation import generation as _generation
from atomr_trio._transfers.memory import tear
from atomr_trio._wire.protocol import BATCH_LIMIT
from atomr_trio.testing import ReturnStatus, hold_worker, inject
from support import open_test_device
from support.repeated import Form, N, Numbers, Ways, blas_actor, both, form, given, known, made_short, matrix, repeated
from support.rogue import gated, kill_worker, next_generation, until, until_full
from support.strategies import check_on_device

DEADLINE = 60
NOT_SUPPORTED = 15


@pytest.fixture
def ways(dev, monkeypatch):
    return Ways(dev, monkeypatch)


# --- what is repeated, and how ----------------------------------------------------------------------------------------


@both
async def test_a_call_is_planned_and_then_short_and_returns_out_itself(dev, ways, name):
    a, b, out = await given(dev, 1, 2, 3)
    async with form(dev, name) as call:
        taken = []
        for _ in range(5):
            assert await call("gemm", a, b, out=out) is out
            taken.append(ways.last())
        assert taken == ["planned"] + 4 * ["short"]
        (only,) = known(dev)
        assert only._key in call.launchers
    np.testing.assert_array_equal(await out.to_host(), matrix(1) @ matrix(2))


@both
async def test_a_call_that_returns_two_of_its_arrays_goes_the_short_way(dev, ways, name):
    x, y = [await dev.to_device(np.full(N, value)) for value in (1.0, 2.0)]
    u, v = [await dev.to_device(np.full(N, value)) for value in (3.0, 4.0)]
    async with form(dev, name) as call:
        taken = []
        for first, second in ((x, y), (u, v), (y, x), (v, u), (x, v)):
            given_back = await call("swap", first, second)
            assert given_back[0] is first
            assert given_back[1] is second
            taken.append(ways.last())
    assert taken == ["planned"] + 4 * ["short"]
    assert [float((await each.to_host())[0]) for each in (x, y, u, v)] == [4, 2, 3, 1]


@both
async def test_repetitions_see_what_was_written_between_them(dev, ways, name):
    a, b, out = await given(dev, 1, 2, 3)
    results = []
    async with form(dev, name) as call:
        for seed in range(12):
            if seed % 3 == 0:  # every third time, so that some repetitions are short and some cannot be
                await call.write(a, matrix(seed))
            assert await call("gemm", a, b, out=out) is out
            results.append(await call.read(out))
            await call("gemm", b, b, out=out, beta=1)
            results.append(await call.read(out))
    for seed, (first, second) in enumerate(zip(results[::2], results[1::2], strict=True)):
        product = matrix(seed // 3 * 3) @ matrix(2)
        np.testing.assert_array_equal(first, product)
        np.testing.assert_array_equal(second, product + matrix(2) @ matrix(2))
    assert len(known(dev)) == 2


@both
async def test_scalars_on_the_device_are_arrays_of_the_call(dev, ways, name):
    x, y = [await dev.to_device(np.full(N, value)) for value in (1.0, 0.0)]
    alpha, out = [await dev.to_device(np.array(value)) for value in (2.0, 0.0)]
    taken, sums = [], []
    async with form(dev, name) as call:
        for number in range(4):
            assert await call("axpy", x, y, alpha) is y
            taken.append(ways.last())
            assert await call("dot", x, y, out=out) is out
            taken.append(ways.last())
            sums.append(await call.read(out))
            if number == 2:
                await call.write(alpha, np.array(5.0))
    assert taken[:2] == ["planned"] * 2
    assert repeated(name, taken[2:])
    assert [float(each) for each in sums] == [8, 16, 24, 44]


@both
@pytest.mark.parametrize(("library", "verb"), [("blas", "gemm"), ("blaslt", "matmul")])
async def test_a_call_with_a_new_result_is_known_and_each_result_is_its_own(dev, ways, name, library, verb):
    a, b = await given(dev, 1, 2)
    results, taken = [], []
    async with form(dev, name) as call:
        for seed in range(6):
            await call.write(a, matrix(seed))
            results.append(await call(verb, a, b, library=library))
            taken.append(ways.last())
    assert taken[0] == "planned"
    assert repeated(name, taken[1:])
    assert len({result.address for result in results}) == 6
    for seed, result in enumerate(results):
        np.testing.assert_array_equal(await result.to_host(), matrix(seed) @ matrix(2))
    assert len(known(dev)) == 1


@both
async def test_the_memory_of_new_results_goes_back_with_them(dev, name):
    a, b = await given(dev, 1, 2)
    async with form(dev, name) as call:
        await call("gemm", a, b)
        await call.flush()
        in_use = None
        for _ in range(20):
            result = await call("gemm", a, b)
            await call.flush()
            in_use = in_use or dev.statistics().memory.in_use
            assert dev.statistics().memory.in_use == in_use, "one result at a time"
        del result
        assert dev.statistics().memory.in_use < in_use


async def test_without_a_ring_known_calls_go_the_general_way(monkeypatch):
    monkeypatch.setitem(_generation.Generation.__init__.__kwdefaults__, "with_ring", False)
    async with open_test_device() as dev:
        ways = Ways(dev, monkeypatch)
        a, b, out = await given(dev, 1, 2, 3)
        taken = []
        for name in ("awaited", "in a batch"):
            async with form(dev, name) as call:
                for _ in range(3):
                    assert await call("gemm", a, b, out=out) is out
                    taken.append(ways.last())
        assert taken == ["planned"] + 5 * ["general"]
        np.testing.assert_array_equal(await out.to_host(), matrix(1) @ matrix(2))


# --- what tells calls apart -------------------------------------------------------------------------------------------

VARIANTS = [
    {},
    {"alpha": 2},
    {"alpha": 2.0},
    {"alpha": True},
    {"alpha": 1},
    {"alpha": 0.0},
    {"alpha": -0.0},
    {"alpha": np.float32(2)},
    {"beta": 0.0},
    {"beta": -0.0},
    {"beta": 1},
    {"beta": False},
    {"beta": 1, "alpha": 2},
    {"alpha": 1, "beta": 2},
    {"op_a": "T"},
    {"op_b": "T"},
    {"op_a": "C", "op_b": "T"},
    {"compute": None},
    {"compute": "pedantic"},
    {"dtype": "float32"},
    {"dtype": np.float32},
]


def product(left: Numbers, right: Numbers, before: Numbers, options: dict[str, Any]) -> Numbers:
    turned = [
        numbers if options.get(which, "N") == "N" else numbers.T for numbers, which in ((left, "op_a"), (right, "op_b"))
    ]
    return options.get("alpha", 1) * (turned[0] @ turned[1]) + options.get("beta", 0) * before


@both
async def test_options_are_not_taken_for_others(dev, name):
    a, b, out = await given(dev, 1, 2, 3)
    seen = []
    async with form(dev, name) as call:
        for _ in range(3):
            for options in VARIANTS:
                await call.write(out, matrix(3))
                await call("gemm", a, b, out=out, **options)
                seen.append(await call.read(out))
    for options, result in zip(3 * VARIANTS, seen, strict=True):
        np.testing.assert_array_equal(result, product(matrix(1), matrix(2), matrix(3), options), str(options))


@both
async def test_the_sign_of_a_zero_is_kept(dev, name):
    ones = np.ones(N, np.float64)
    x = await dev.to_device(ones)
    seen = []
    async with form(dev, name) as call:
        for alpha in 3 * [0.0, -0.0, 0, -1.0, np.float64(-0.0)]:
            await call.write(x, ones)
            assert await call("scal", x, alpha) is x
            seen.append(await call.read(x))
    assert [bool(np.signbit(result).all()) for result in seen] == 3 * [False, True, False, True, True]


@both
async def test_an_argument_by_its_name_and_by_its_place_are_calls_of_their_own_that_do_the_same(dev, name):
    x, y = [await dev.to_device(np.full(N, value)) for value in (1.0, 0.0)]
    async with form(dev, name) as call:
        for _ in range(3):
            await call("axpy", x, y, 2)
            await call("axpy", x, y, alpha=2)
            await call("axpy", y=y, x=x, alpha=2)
            await call("axpy", x=x, y=y, alpha=2)
    assert (await y.to_host()).tolist() == [24] * N
    assert len(known(dev)) == 4


def test_questions_say_what_they_are_about_and_in_which_place():
    def plan() -> None: ...

    def key(*arguments: Any, **keywords: Any) -> Any:
        question = form_of(plan, arguments, keywords)
        return None if question is None else located(question)[0]

    several = [key(), key(1), key(1.0), key(True), key("alpha"), key(alpha=1), key(beta=1), key(None), key(1, None)]
    several += [key(()), key((1,)), key((True,)), key((1, 2)), key((2, 1)), key((None,))]
    several += [key(alpha=1, beta=2), key(alpha=2, beta=1), key(1, alpha=1), key("alpha", 1), key(0), key(False)]
    assert len(set(several)) == len(several)
    assert key(2, alpha=0.5) == key(2, alpha=0.5)
    assert form_of(print, (), {}) != form_of(plan, (), {})
    others: list[Any] = [0.0, -0.0, "0.0", "-0.0", 1.5, np.float64(1.5), np.float64(0), np.float64(-0.0), np.float32(0)]
    others += [
        np.int32(1),
        np.int64(1),
        np.bool_(True),
        1j,
        complex(0.0, 1.0),
        complex(-0.0, 1),
        1 + 0j,
        complex(1, -0.0),
    ]
    others += [np.complex64(1j), np.dtype("f4"), np.dtype("f8"), np.float32, np.float64, float, int, "float32"]
    assert len({key(each) for each in others} | set(several)) == len(several) + len(others) - 1, "1j is twice there"
    assert len({key(alpha=each) for each in others}) == len(others) - 1
    labelled = np.dtype("f4", metadata={"unit": "m"})
    for nothing in ([], b"", np.zeros(3), (1.0,), (1, ()), labelled, np.zeros(1, "i4,f4")[0], object()):
        assert key(nothing) is None
        assert key(alpha=nothing) is None


# --- arrays that are not what they were -------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("which", [0, 1, 2])
async def test_a_freed_array_is_refused(dev, ways, name, which):
    arrays = await given(dev, 1, 2, 3)
    async with form(dev, name) as call:
        await made_short(call, "gemm", *arrays[:2], out=arrays[2])
        arrays[which].free()
        heir = dev.empty((N, N), np.float32)
        submitted = dev.statistics().lanes[0].submitted
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="the array was freed"):
                await call("gemm", *arrays[:2], out=arrays[2])
        assert dev.statistics().lanes[0].submitted == submitted
        assert heir.state == "ready"


@both
async def test_a_torn_array_is_refused_where_it_is_read_and_whole_again_where_it_is_overwritten(dev, name):
    a, b, out = await given(dev, 1, 2, 3)
    async with form(dev, name) as call:
        await made_short(call, "gemm", a, b, out=out)
        for _ in range(2):
            tear(out._block, ValueError(), begun=1, pieces=2)
            assert await call("gemm", a, b, out=out) is out
            assert out.state == "ready"
        tear(a._block, ValueError(), begun=1, pieces=2)
        for _ in range(2):
            with pytest.raises(StaleArray, match="torn"):
                await call("gemm", a, b, out=out)
        await call.write(a, matrix(4))
        await call("gemm", a, b, out=out)
        await call("gemm", a, b, out=out)
    np.testing.assert_array_equal(await out.to_host(), matrix(4) @ matrix(2))


@both
async def test_a_torn_array_that_is_added_to_is_refused(dev, name):
    a, b, out = await given(dev, 1, 2, 3)
    async with form(dev, name) as call:
        await made_short(call, "gemm", a, b, out=out, beta=1)
        tear(out._block, ValueError(), begun=1, pieces=2)
        with pytest.raises(StaleArray, match="torn"):
            await call("gemm", a, b, out=out, beta=1)


async def test_a_device_that_is_closed_refuses_a_repetition(pool):
    async with open_test_device(workers=pool) as dev:
        a, b, out = await given(dev, 1, 2, 3)
        await made_short(Form(dev), "gemm", a, b, out=out)
        await made_short(Form(dev), "gemm", a, b)
        batch = await dev.batch().__aenter__()
        await made_short(Form(dev, batch), "gemm", a, b, out=out)
    for options in ({"out": out}, {}):
        with pytest.raises(DeviceClosed):
            await dev.blas.gemm(a, b, **options)
        with pytest.raises(DeviceClosed):
            batch.blas.gemm(a, b, **options)


async def test_an_array_in_the_place_of_one_that_is_gone_is_used_as_what_it_is(dev):
    a, b, out = await given(dev, 1, 2, 3)
    await made_short(Form(dev), "gemm", a, b, out=out)
    address = a.address
    a.free()
    a = dev.empty((N, N), np.float32)
    assert a.address == address, "the test wants the memory that was just freed"
    await a.copy_from(matrix(4))
    assert await dev.blas.gemm(a, b, out=out) is out
    np.testing.assert_array_equal(await out.to_host(), matrix(4) @ matrix(2))
    assert len(known(dev)) == 1


def planned(dev: Any, verb: str, *arguments: Any, **keywords: Any) -> tuple[Any, Any, Any]:
    """What a call comes to, which is not sent: its requests, its new arrays and its result."""
    planner = dev.blas._planner()
    result = getattr(type(planner), verb).plan(planner, *arguments, **keywords)
    return planner._requests, planner._made, result


async def test_arrays_of_another_device_are_refused_however_often(dev):
    a, b, out = await given(dev, 1, 2, 3)
    await made_short(Form(dev), "gemm", a, b, out=out)
    async with open_test_device() as other:
        theirs = (await given(other, 1))[0]
        for _ in range(3):
            with pytest.raises(InvalidArgument, match="another device"):
                await dev.blas.gemm(theirs, b, out=out)
            with pytest.raises(InvalidArgument, match="another device"):
                await other.blas.gemm(a, b, out=out)
        assert not known(other)


# --- what is kept -----------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("with_out", [False, True])
async def test_nothing_keeps_the_arrays_alive(dev, name, with_out):
    in_use = dev.statistics().memory.in_use
    gc.disable()
    try:
        async with form(dev, name) as call:
            a, b, out = await given(dev, 1, 2, 3)
            watched = [weakref.ref(each) for each in (a, b, out)]
            for _ in range(4):
                result = await call("gemm", a, b, **({"out": out} if with_out else {}))
            await call.flush()
            assert known(dev)
            del a, b, out, result
            assert [ref() for ref in watched] == [None] * 3
            assert dev.statistics().memory.in_use == in_use
    finally:
        gc.enable()


@both
async def test_a_short_call_keeps_its_arrays_until_it_has_run(dev, name):
    in_use = dev.statistics().memory.in_use
    a, b, out = await given(dev, 1, 2, 3)
    watched = [weakref.ref(each) for each in (a, b, out)]
    async with form(dev, name) as call:
        await made_short(call, "gemm", a, b, out=out)
        async with trio.open_nursery() as nursery, gated(dev):
            before = dev.statistics().lanes[0].unfinished
            nursery.start_soon(functools.partial(call, "gemm", a, b, out=out))
            await until(lambda: dev.statistics().lanes[0].unfinished == before + 1)
            assert len(core_of(dev).current.timeline.lanes[0].launches) == 1, "the short way"
            del a, b, out
            assert all(ref() is not None for ref in watched)
            assert dev.statistics().memory.in_use > in_use
        await call.flush()
        await until(lambda: not any(ref() for ref in watched))
    await until(lambda: dev.statistics().memory.in_use == in_use)


@both
async def test_calls_are_forgotten_when_there_are_too_many(dev, name):
    x = await dev.to_device(np.zeros(N))
    async with form(dev, name) as call:
        for alpha in range(1, _MOST_KNOWN + 51):
            for _ in range(3):
                await call("scal", x, alpha)
            if alpha % 50 == 0:
                await call.flush()
        calls = known(dev)
        assert len(calls) == _MOST_KNOWN
        assert set(call.launchers) == {each._key for each in calls}
        assert not [each for each in calls if each.payload in {known_payload(dev, x, alpha) for alpha in (1, 50)}]


def known_payload(dev: Any, x: Any, alpha: float) -> bytes:
    """The record of a call."""
    (request,) = planned(dev, "scal", x, alpha)[0]
    published: list[bytes] = []
    generation = core_of(dev).current

    class Taker:
        called, opened = generation.called, generation.opened

        def publish(self, lane: int, verb: Any, payload: bytes, *_: Any, **__: Any) -> None:
            published.append(payload)

    request.start(Taker())
    return published[0]


VARIABLE = 'extern "C" __device__ double held[4]; extern "C" __global__ void keep(double *x) { *x = held[0]; }'


async def test_views_are_the_same_by_their_elements_and_their_forms_by_what_a_record_depends_on(dev):
    x, other = dev.zeros(4096, np.float32), dev.zeros(4096, np.float32)

    def exact(*arrays: Any) -> Any:
        return located(form_of(Library._copy, arrays, {}))[0]

    def form_key(*arrays: Any) -> Any:
        return form_of(Library._copy, arrays, {})[0]

    assert exact(x[2:4]) == exact(x[2:4])
    assert len({exact(each) for each in (x, x[:], x[1:], x[:-1], x.reshape(64, 64), other, x[::2])}) == 6
    assert form_key(x) == form_key(other) == form_key(x[:])
    assert form_key(x[1:3]) == form_key(other[1:3]) == form_key(x[129:131]), "512 bytes on"
    several = [x, x[1:3], x[2:4], x[1:4], x[:4096:2], x[::-1], x.reshape(64, 64), x[:2], x[: x.size // 2]]
    several += [dev.zeros(4096, np.int32), dev.zeros(2048, np.float32)]
    assert len({form_key(each) for each in several}) == len(several)
    # Which of them share memory, and how they lie there.
    pairs = [(x, other), (x, x), (x[:128], x[128:256]), (x[:128], x[256:384]), (x[128:256], x[:128]), (x, other[:])]
    assert len({form_key(*each) for each in pairs}) == 5
    assert form_key(x, other) == form_key(x, other[:]) == form_key(other, x)
    assert form_key(x, x) == form_key(other, other[:])


async def test_few_forms_are_remembered_and_one_that_was_forgotten_is_another(dev, monkeypatch):
    monkeypatch.setattr(_arrays, "_MOST_FORMS", 8)
    monkeypatch.setattr(_arrays, "_FORMS", {})
    x = dev.zeros(64, np.float32)
    for end in range(1, 40):
        form_of(Library._copy, (x[:end],), {})
        assert len(_arrays._FORMS) <= 8
    for _ in range(2):
        for end in range(1, 20):
            view = x[:end]
            await dev.blas.scal(view, 2)
            assert await dev.blas.scal(view, 0.5) is view


async def test_a_call_on_a_variable_of_a_module_is_not_kept(dev, ways):
    keep = await dev.nvrtc.compile(VARIABLE, "keep")
    held = keep.module.global_("held", np.float64)
    await held.copy_from(np.ones(4))
    x = await dev.to_device(np.ones(4))
    for _ in range(3):
        await dev.blas.axpy(x, held)
        assert ways.last() == "planned"
    async with dev.batch() as batch:
        batch.blas.axpy(x, held)
    assert not known(dev)
    assert (await held.to_host()).tolist() == [5] * 4


@both
async def test_what_has_a_list_of_arrays_is_planned_each_time(dev, name):
    (a,) = await given(dev, 1, dtype=np.int8)
    async with form(dev, name) as call:
        for _ in range(3):
            await call("gemm_batched", [a], [a])
    assert not known(dev)


# --- losses and failures ----------------------------------------------------------------------------------------------


@both
async def test_in_the_next_generation_the_first_repetition_makes_the_handle(dev, monkeypatch, name):
    a, b, out = await given(dev, 1, 2, 3)
    async with form(dev, name) as call:
        await made_short(call, "gemm", a, b, out=out)
        await made_short(call, "gemm", a, b)
    await out.fill(7)
    await dev.restart("a test")
    ways = Ways(dev, monkeypatch)
    async with form(dev, name) as call:
        taken = []
        for _ in range(3):
            assert await call("gemm", a, b, out=out) is out
            taken.append(ways.last())
        results = [await call("gemm", a, b) for _ in range(2)]
    assert taken == ["general", "short", "short"]
    assert ways.verbs == ["first_call"]
    for each in (out, *results):
        np.testing.assert_array_equal(await each.to_host(), matrix(1) @ matrix(2))
    assert blas_actor(dev).unsettled == 0


async def test_a_loss_is_told_once_to_a_batch_and_to_each_awaited_call(dev):
    a, b, out, other = await given(dev, 1, 2, 3, 4)
    await made_short(Form(dev), "gemm", a, b, out=other)
    errors: list[ContextLost] = []

    async def multiply() -> None:
        with pytest.raises(ContextLost, match="SIGKILL") as caught:
            await dev.blas.gemm(a, b, out=other)
        errors.append(caught.value)

    with trio.fail_after(DEADLINE):
        with pytest.raises(ContextLost, match="SIGKILL") as told:  # noqa: PT012
            async with dev.batch() as batch:
                await made_short(Form(dev, batch), "gemm", a, b, out=out)
                async with trio.open_nursery() as nursery:
                    with hold_worker(dev):
                        for _ in range(5):
                            batch.blas.gemm(a, b, out=out)
                            nursery.start_soon(multiply)
                        await until(lambda: dev.statistics().lanes[0].unfinished == 10)
                        assert len(core_of(dev).current.timeline.lanes[0].launches) == 10, "all of them short"
                        counts = blas_actor(dev)
                        assert counts.unsettled == 10
                        assert next(each for each in dev.statistics().actors if each.name == "module").unsettled == 0
                        assert core_of(dev).current.timeline.busy_engines() == ("blas",)
                        kill_worker(dev)
        assert not hasattr(told.value, "__notes__")
        await next_generation(dev, 1)
    assert len(set(map(id, errors))) == 5
    assert (out.state, other.state) == ("torn", "torn")
    settled = blas_actor(dev)
    assert settled.settled["lost"] == counts.settled["lost"] + 10
    assert all(each.unsettled == 0 for each in dev.statistics().actors)
    for target in (out, other):
        await dev.blas.gemm(a, b, out=target)
        np.testing.assert_array_equal(await target.to_host(), matrix(1) @ matrix(2))


async def test_a_device_that_gives_nothing_over_refuses_arrays_of_before():
    async with open_test_device(on_fault="stale") as dev:
        a, b, out = await given(dev, 1, 2, 3)
        for options in ({"out": out}, {}):
            await made_short(Form(dev), "gemm", a, b, **options)
        await dev.restart("a test")
        for options in 2 * ({"out": out}, {}):
            with pytest.raises(StaleArray, match="stale"):
                await dev.blas.gemm(a, b, **options)
            async with dev.batch() as batch:
                with pytest.raises(StaleArray, match="stale"):
                    batch.blas.gemm(a, b, **options)
        a, b, out = await given(dev, 1, 2, 3)
        await made_short(Form(dev), "gemm", a, b, out=out)
        np.testing.assert_array_equal(await out.to_host(), matrix(1) @ matrix(2))


@both
@pytest.mark.sim_only
@pytest.mark.parametrize("with_out", [False, True])
async def test_a_repetition_that_fails_is_raised_and_the_others_are_done(dev, name, with_out):
    a, b, out, other = await given(dev, 1, 2, 3, 4)
    options = {"out": out} if with_out else {}
    settled = blas_actor(dev).settled
    async with form(dev, name) as call:
        await made_short(call, "gemm", a, b, **options)
        await made_short(call, "gemm", b, a, out=other)
        inject(dev, "cublasGemmEx_64", ReturnStatus(NOT_SUPPORTED), call=2)
        await call("gemm", b, a, out=other, alpha=2)
        with pytest.raises(CommandFailed, match="NOT_SUPPORTED") as caught:  # noqa: PT012
            await call("gemm", a, b, **options)
            await call("gemm", b, a, out=other)
            await call.flush()
        error = caught.value
        assert (error.operation, error.library, error.status) == ("blas.gemm", "cublas", NOT_SUPPORTED)
        await call("gemm", b, a, out=other)
        result = await call("gemm", a, b, **options)
        await call.flush()
    np.testing.assert_array_equal(await result.to_host(), matrix(1) @ matrix(2))
    np.testing.assert_array_equal(await other.to_host(), matrix(2) @ matrix(1))
    counts = blas_actor(dev)
    assert counts.settled["failed"] == settled["failed"] + 1
    assert counts.unsettled == 0
    assert dev.generation == 1


@pytest.mark.sim_only
async def test_one_that_fails_among_many_short_ones_is_named_and_spares_them(dev):
    x, y = [await dev.to_device(np.full(N, value)) for value in (1.0, 0.0)]
    async with dev.batch() as batch:
        await made_short(Form(dev, batch), "axpy", x, y)
        inject(dev, "cublasDaxpy_64", ReturnStatus(NOT_SUPPORTED), call=10, times=2)
        for _ in range(30):
            batch.blas.axpy(x, y)
        with pytest.raises(CommandFailed, match="NOT_SUPPORTED") as caught:
            await batch.flush()
        assert (caught.value.operation, len(caught.value.__notes__)) == ("blas.axpy", 1)
        await batch.flush()  # what was raised is not heard of again
    assert (await y.to_host()).tolist() == [3 + 28] * N


# --- lanes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
async def test_on_a_lane_of_its_own_a_known_call_is_right_too(dev, ways, ordered):
    a, b, out = await given(dev, 1, 2, 3)
    await made_short(Form(dev), "gemm", a, b, out=out)
    await out.fill(0)
    ways.verbs.clear()
    async with dev.lane(ordered=ordered) as lane, dev.batch(lane=lane) as batch:
        for _ in range(4):
            assert batch.blas.gemm(a, b, out=out) is out
    assert ways.verbs[0] == "first_call"
    assert len(ways.verbs) == (1 if ordered else 4), "the order of an unordered lane is its own affair"
    np.testing.assert_array_equal(await out.to_host(), matrix(1) @ matrix(2))


async def test_work_of_another_lane_on_the_same_arrays_is_waited_for(dev):
    a, b, out = await given(dev, 1, 2, 3)
    async with dev.lane() as lane, dev.batch(lane=lane) as there, dev.batch() as here:
        for number in range(12):
            here.copy_from(out, matrix(number))
            for _ in range(3):
                there.blas.gemm(a, b, out=out, beta=1)
                here.blas.gemm(a, b, out=out, beta=1)
            result = here.to_host(out)
            await here.flush()
            np.testing.assert_array_equal(result, matrix(number) + 6 * matrix(1) @ matrix(2))


async def test_a_lane_with_the_number_of_a_closed_one_begins_anew(dev, ways):
    a, b, out = await given(dev, 1, 2, 3)
    numbers = []
    for _ in range(3):
        ways.verbs.clear()
        async with dev.lane() as lane:
            numbers.append(lane._number)
            async with dev.batch(lane=lane) as batch:
                for _ in range(4):
                    batch.blas.gemm(a, b, out=out)
        assert ways.verbs[0] == "first_call"
        np.testing.assert_array_equal(await out.to_host(), matrix(1) @ matrix(2))
        await out.fill(0)
    assert len(set(numbers)) == 1


async def test_two_batches_repeat_the_same_call_in_turn(dev):
    x, y = [await dev.to_device(np.full(N, value)) for value in (1.0, 0.0)]
    async with dev.batch() as one, dev.batch() as other:
        for number in range(20):
            one.blas.axpy(x, y)
            other.blas.scal(y, 2)
            if number % 7 == 0:
                await one.flush()
    assert (await y.to_host()).tolist() == [2**21 - 2] * N
    assert blas_actor(dev).unsettled == 0


# --- many, and too many -----------------------------------------------------------------------------------------------


async def test_many_tasks_await_the_same_call_at_once(dev):
    x, y = [await dev.to_device(np.full(N, value)) for value in (1.0, 0.0)]
    a, b = await given(dev, 1, 2)
    results: list[Any] = []

    async def work() -> None:
        for _ in range(5):
            assert await dev.blas.axpy(x, y) is y
            results.append(await dev.blas.gemm(a, b))

    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(work)
    assert (await y.to_host()).tolist() == [80] * N
    assert len({result.address for result in results}) == 80
    for result in results:
        np.testing.assert_array_equal(await result.to_host(), matrix(1) @ matrix(2))
    assert blas_actor(dev).unsettled == 0


@pytest.mark.parametrize("with_out", [False, True])
async def test_a_repetition_is_a_checkpoint_and_never_begins_in_a_cancelled_scope(dev, with_out):
    x, y = [await dev.to_device(np.full(N, value)) for value in (1.0, 0.0)]
    a, b = await given(dev, 1, 2)
    call: Callable[[], Awaitable[Any]] = (lambda: dev.blas.axpy(x, y)) if with_out else (lambda: dev.blas.gemm(a, b))
    for _ in range(4):
        submitted = dev.statistics().lanes[0].submitted
        with trio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught
        assert dev.statistics().lanes[0].submitted == submitted
        with trio.testing.assert_checkpoints():
            await call()
    assert not with_out or (await y.to_host()).tolist() == [4] * N


async def test_a_repetition_is_cancelled_at_once_and_goes_on(dev):
    x, y = [await dev.to_device(np.full(N, value)) for value in (1.0, 0.0)]
    a, b = await given(dev, 1, 2)
    await made_short(Form(dev), "axpy", x, y)
    await made_short(Form(dev), "gemm", a, b)
    before = blas_actor(dev)
    in_use = dev.statistics().memory.in_use
    async with gated(dev):
        busy = dev.statistics().lanes[0].unfinished
        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(dev.blas.axpy, x, y)
                    nursery.start_soon(dev.blas.gemm, a, b)
                await until(lambda: dev.statistics().lanes[0].unfinished == busy + 6)
                nursery.cancel_scope.cancel()
        assert dev.statistics().lanes[0].unfinished == busy + 6
    assert (await y.to_host()).tolist() == [6] * N
    counts = blas_actor(dev)
    assert counts.settled["abandoned"] == before.settled["abandoned"] + 6
    assert counts.unsettled == 0
    await until(lambda: dev.statistics().memory.in_use <= in_use)


async def test_a_full_lane_is_said_and_flush_makes_room(dev):
    x, y = [await dev.to_device(np.full(N, value)) for value in (1.0, 0.0)]
    async with dev.batch() as batch:
        await made_short(Form(dev, batch), "axpy", x, y)
        with hold_worker(dev):
            assert until_full(lambda: batch.blas.axpy(x, y)) == BATCH_LIMIT
            with pytest.raises(trio.WouldBlock):
                batch.blas.axpy(x, y)
        await batch.flush()
        batch.blas.axpy(x, y)
    assert (await y.to_host()).tolist() == [3 + BATCH_LIMIT + 1] * N


async def test_a_call_that_is_known_is_recorded_by_the_recorder_alone(dev):
    a, b, out = await given(dev, 1, 2, 3)
    for _ in range(3):
        async with dev.batch() as batch:

            def record(graph: Any, batch: Any = batch) -> None:
                assert graph.blas.gemm(b, a, out=out) is out
                for _ in range(4):
                    assert batch.blas.gemm(a, b, out=out) is out

            graph = await dev.capture(record)
        np.testing.assert_array_equal(await out.to_host(), matrix(1) @ matrix(2))
        assert len(graph) == 1
        await graph.launch()
        np.testing.assert_array_equal(await out.to_host(), matrix(2) @ matrix(1))


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
async def test_a_forked_child_makes_no_repetition(dev):
    a, b, out = await given(dev, 1, 2, 3)
    async with dev.batch() as batch:
        for call in (Form(dev), Form(dev, batch)):
            await made_short(call, "gemm", a, b, out=out)
            await made_short(call, "gemm", a, b)
        submitted = dev.statistics().lanes[0].submitted
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                refused = 0
                for call in 2 * (Form(dev), Form(dev, batch)):
                    for options in ({"out": out}, {}):
                        try:
                            call("gemm", a, b, **options).send(None)
                        except DeviceFailed:
                            refused += 1
                status = 0 if refused == 8 else 2
            os._exit(status)
        assert await trio.to_thread.run_sync(os.waitpid, child, 0) == (child, 0)
        assert dev.statistics().lanes[0].submitted == submitted
        batch.blas.gemm(a, b, out=out)
    np.testing.assert_array_equal(await out.to_host(), matrix(1) @ matrix(2))


# --- cuBLASLt ---------------------------------------------------------------------------------------------------------


@both
async def test_a_product_with_a_bias_is_repeated(dev, ways, name):
    a, b, out = await given(dev, 1, 2, 3)
    bias = await dev.to_device(np.arange(N, dtype=np.float32))
    async with form(dev, name) as call:
        taken, seen = [], []
        for seed in range(6):
            if seed == 4:
                await call.write(bias, np.full(N, seed, np.float32))
            await call("matmul", a, b, library="blaslt", out=out, epilogue="relu_bias", bias=bias)
            taken.append(ways.last())
            seen.append(await call.read(out))
    assert taken[0] == "planned"
    assert repeated(name, taken[1:])
    for seed, result in enumerate(seen):
        shift = np.arange(N) if seed < 4 else np.full(N, 4)
        np.testing.assert_array_equal(result, np.maximum(matrix(1) @ matrix(2) + shift, 0))


@both
async def test_a_product_of_8_bits_with_scales_is_repeated(dev, ways, name):
    e4m3 = np.dtype(pytest.importorskip("ml_dtypes").float8_e4m3fn)
    left, right = (np.random.default_rng(seed).integers(-2, 3, (16, 16)).astype(np.float32) for seed in (1, 2))
    a, b = await dev.to_device(left.astype(e4m3)), await dev.to_device(right.astype(e4m3))
    turned, scale = b.T, await dev.to_device(np.array(1, np.float32))
    async with form(dev, name) as call:
        seen, taken = [], []
        for factor in (1, 2, 2, 4):
            await call.write(scale, np.array(factor, np.float32))
            result = await call("matmul", a, turned, library="blaslt", scale_a=scale, dtype="float32")
            taken.append(ways.last())
            seen.append(await call.read(result))
    assert taken[0] == "planned"
    assert repeated(name, taken[1:])
    for factor, product_ in zip((1, 2, 2, 4), seen, strict=True):
        np.testing.assert_array_equal(product_, factor * (left @ right.T))


@both
async def test_views_of_the_same_elements_are_the_same(dev, ways, name):
    a, b, out = await given(dev, 1, 2, 3)
    async with form(dev, name) as call:
        taken = []
        for _ in range(4):
            await call("gemm", a, b.T, out=out)
            taken.append(ways.last())
        await call("gemm", a, b, out=out)
        taken.append(ways.last())
    assert taken == ["planned", "short", "short", "short", "planned"]
    np.testing.assert_array_equal(await out.to_host(), matrix(1) @ matrix(2))


@both
async def test_views_that_lie_at_other_addresses_are_calls_of_their_own(dev, ways, name):
    a, b = await given(dev, 1, 2)
    large = await dev.to_device(np.zeros((3 * N, N + 1), np.float32))
    views = [large[first : first + N, at : at + N] for first, at in ((0, 0), (N + 1, 1), (2 * N, 1))]
    async with form(dev, name) as call:
        taken = []
        for _ in range(3):
            for view in views:
                assert await call("matmul", a, b, library="blaslt", out=view) is view
                taken.append(ways.last())
    assert taken[:3] == ["planned"] * 3
    assert "planned" not in taken[3:]
    assert len(known(dev)) == 3
    expected = np.zeros((3 * N, N + 1), np.float32)
    for first, at in ((0, 0), (N + 1, 1), (2 * N, 1)):
        expected[first : first + N, at : at + N] = matrix(1) @ matrix(2)
    np.testing.assert_array_equal(await large.to_host(), expected)


# --- anything in any order --------------------------------------------------------------------------------------------

ARRAYS = 3
TURN = np.roll(np.eye(N), 1, axis=0)
"""Multiplied by this, numbers stay as small as they are, so that sums of thirty steps are exact."""
indices = st.integers(0, ARRAYS - 1)
steps = st.one_of(
    st.tuples(st.just("gemm"), indices, indices, st.sampled_from([0, 1, True, 1.0, -0.0])),
    st.tuples(st.just("axpy"), indices, indices, st.sampled_from([1, 2, 2.0])),
    st.tuples(st.just("scal"), indices, st.sampled_from([1, -1, 0.5, 0.0])),
    st.tuples(st.just("write"), indices, st.integers(0, 5)),
    st.tuples(st.just("read"), indices),
    st.just(("flush",)),
)


class Model:
    """Three arrays on the device, and the same as numpy has them."""

    def __init__(self, turn: Any, arrays: list[Any]) -> None:
        self.host = [matrix(seed, np.float64) for seed in range(ARRAYS)]
        self.arrays = arrays
        self.seen: list[tuple[Numbers, Numbers]] = []
        """What was read, and what it should be."""
        self._turn = turn
        self._flat = [array.reshape(-1) for array in arrays]

    async def do(self, batch: Any, step: tuple[Any, ...]) -> None:
        host, arrays, flat = self.host, self.arrays, self._flat
        match step:
            case "gemm", b, out, beta if b != out:
                host[out] = TURN @ host[b] + beta * host[out]
                assert batch.blas.gemm(self._turn, arrays[b], out=arrays[out], beta=beta) is arrays[out]
            case "axpy", x, y, alpha if x != y:
                host[y] = host[y] + alpha * host[x]
                assert batch.blas.axpy(flat[x], flat[y], alpha) is flat[y]
            case "scal", x, alpha:
                host[x] = alpha * host[x]
                assert batch.blas.scal(flat[x], alpha) is flat[x]
            case "write", x, seed:
                host[x] = matrix(seed, np.float64)
                batch.copy_from(arrays[x], host[x])
            case "read", x:
                self.seen.append((batch.to_host(arrays[x]), host[x]))
            case ("flush",):
                await batch.flush()


@check_on_device(0.6, st.lists(steps, max_size=30))
async def test_calls_and_writes_in_any_order_do_as_numpy(dev, script):
    turn = await dev.to_device(TURN)
    model = Model(turn, await given(dev, *range(ARRAYS), dtype=np.float64))
    async with dev.batch() as batch:
        for step in script:
            await model.do(batch, step)
    for result, expected in model.seen:
        np.testing.assert_array_equal(result, expected)
    for array, expected in zip(model.arrays, model.host, strict=True):
        np.testing.assert_array_equal(await array.to_host(), expected)
