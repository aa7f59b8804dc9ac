"""Verbs of several commands that were made before: one ready record for each command, and all else as when planned."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import CommandFailed, ContextLost, InvalidArgument, RestartPolicy, StaleArray
from atomr_trio._calls.series import KnownSeries
from atomr_trio._calls.verbs import Library
from atomr_trio._device.device import core_of
from atomr_trio._memory.arena import KNOWN_HERE_ALONE, Arena, Block
from atomr_trio.testing import ReturnStatus, hold_worker, inject
from support.repeated import both, form, known
from support.rogue import kill_worker, next_generation, until

pytestmark = pytest.mark.used_workers

N, NOT_SUPPORTED = 5, 15
DEADLINE = 60


def matrix(seed: int, *shape: int) -> np.ndarray:
    """Small whole numbers, and ones on the diagonal, so that results are exact."""
    numbers = np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)
    if len(shape) == 2:
        np.fill_diagonal(numbers, 1)
    return numbers


Plan = tuple[str, Callable[[int], tuple[np.ndarray, ...]], dict[str, Any], tuple[int, ...] | None]
VERBS: dict[str, Plan] = {
    "trsv": ("trsv", lambda s: (matrix(s, N, N), matrix(s + 1, N)), {}, (N,)),
    "trmv": ("trmv", lambda s: (matrix(s, N, N), matrix(s + 1, N)), {"lower": False}, (N,)),
    "trsm": ("trsm", lambda s: (matrix(s, N, N), matrix(s + 1, N, 3)), {}, (N, 3)),
    "gbmv": ("gbmv", lambda s: (matrix(s, 3, N), matrix(s + 1, N), 1, 1), {}, (N,)),
    "sbmv": ("sbmv", lambda s: (matrix(s, 2, N), matrix(s + 1, N)), {}, (N,)),
    "syrk": ("syrk", lambda s: (matrix(s, N, 3),), {}, None),
    "syr2k": ("syr2k", lambda s: (matrix(s, N, 3), matrix(s + 1, N, 3)), {"lower": False}, None),
}


@pytest.fixture
def went(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is planned and published, but for the short way."""
    names: list[str] = []
    plan, publish = Library._planner, atomr_trio._generation.order.Order.publish

    def planned(library: Any) -> Any:
        names.append("planned")
        return plan(library)

    def published(order: Any, lane: int, verb: Any, *arguments: Any, **more: Any) -> Any:
        names.append(verb.operation)
        return publish(order, lane, verb, *arguments, **more)

    monkeypatch.setattr(Library, "_planner", planned)
    monkeypatch.setattr(atomr_trio._generation.order.Order, "publish", published)
    return names


async def uploaded(dev: Any, given: tuple[Any, ...]) -> list[Any]:
    return [await dev.to_device(each) if isinstance(each, np.ndarray) else each for each in given]


@both
@pytest.mark.parametrize(
    ("verb", "with_out"), [(verb, given) for verb in VERBS for given in (False, True) if not given or VERBS[verb][3]]
)
async def test_a_repetition_does_what_the_plan_does(dev, went, name, verb, with_out):
    method, make, options, shape = VERBS[verb]
    if with_out and shape is None:
        pytest.skip("it is one command")
    rows = [
        (await uploaded(dev, make(seed)), {"out": dev.empty(shape, np.float32)} if with_out else {})
        for seed in range(6)
    ]
    expected = []
    for arguments, out in rows:
        core_of(dev).part(atomr_trio._calls.known.KnownCalls)._calls.clear()
        expected.append(await (await getattr(dev.blas, method)(*arguments, **options, **out)).to_host())
    async with form(dev, name) as call:
        for arguments, out in rows[:2]:
            await call(method, *arguments, **options, **out)
        await call.flush()
        del went[:]
        results = [await call(method, *arguments, **options, **out) for arguments, out in rows]
        assert went == []
        hosts = [await call.read(result) for result in results]
    assert [type(each) for each in known(dev)] == [KnownSeries]
    for host, right, (_, out), result in zip(hosts, expected, rows, results, strict=True):
        np.testing.assert_array_equal(host, right)
        assert not out or result is out["out"]


@pytest.mark.skipif(KNOWN_HERE_ALONE < 0, reason="this Python does not count every reference")
@pytest.mark.parametrize("kept", [False, True], ids=["dropped at once", "kept till the next"])
async def test_each_of_several_new_arrays_takes_the_block_of_an_earlier_one(dev, went, monkeypatch, kept):
    """The result and the scratch of `sbmv` are of one size."""
    a, x = await uploaded(dev, (matrix(1, 2, N), matrix(2, N)))
    allocate, allocated = Arena.allocate, []

    def counted(arena: Arena, size: int, guarded: bool = False) -> Block:
        allocated.append(size)
        return allocate(arena, size, guarded)

    async with dev.batch() as batch:
        for _ in range(3):
            batch.blas.sbmv(a, x)
        went.clear()
        monkeypatch.setattr(Arena, "allocate", counted)
        addresses, results = set(), deque[Any](maxlen=1)
        with hold_worker(dev):
            for _ in range(40):
                made = batch.blas.sbmv(a, x)
                addresses.add(made.address)
                results.extend([made] if kept else [])
                del made
        monkeypatch.undo()
        assert went == []
    assert len(allocated) <= 3
    assert len(addresses) <= 3


@both
async def test_two_new_results_and_scratch_go_the_short_way(dev, went, name):
    async with form(dev, name) as call:
        pairs = [
            await uploaded(dev, (np.full((), a, np.float64), np.full((), b, np.float64))) for a, b in ((3, 4), (5, 12))
        ]
        for a, b in pairs * 2:
            await call("rotg", a, b)
        await call.flush()
        del went[:]
        a, b = await uploaded(dev, (np.full((), 8.0), np.full((), 15.0)))
        del went[:]
        c, s = await call("rotg", a, b)
        assert "planned" not in went
        found = [await call.read(each) for each in (a, c, s)]
    np.testing.assert_allclose([float(each) for each in found], [17, 8 / 17, 15 / 17])


@both
async def test_other_options_and_forms_are_others(dev, name):
    a, x = matrix(1, N, N), matrix(2, N)
    lower, upper = np.tril(a), np.triu(a)
    on_device, vector, wide = await uploaded(dev, (a, x, np.repeat(x, 2)))
    async with form(dev, name) as call:
        found = []
        for _ in range(3):
            found.append((await call("trmv", on_device, vector), lower @ x))
            found.append((await call("trmv", on_device, vector, lower=False), upper @ x))
            found.append((await call("trmv", on_device, vector, op_a="T"), lower.T @ x))
            found.append((await call("trmv", on_device.T, wide[::2]), upper.T @ x))
            found.append((await call("trmv", on_device, wide[::-2]), lower @ x[::-1]))
        hosts = [(await call.read(result), right) for result, right in found]
    for host, right in hosts:
        np.testing.assert_array_equal(host, right)


@both
async def test_what_shares_memory_or_was_freed_is_refused_as_when_planned(dev, name):
    a, x = await uploaded(dev, (matrix(1, N, N), matrix(2, N)))
    out = dev.empty(N, np.float32)
    async with form(dev, name) as call:
        for _ in range(3):
            await call("trsv", a, x, out=out)
        with pytest.raises(InvalidArgument, match="shares memory"):
            await call("trsv", a, x, out=a[0])
        await call.flush()
        x.free()
        with pytest.raises(InvalidArgument, match="freed"):
            await call("trsv", a, x, out=out)


async def test_requests_are_counted_as_when_planned(dev):
    a, x = await uploaded(dev, (matrix(1, N, N), matrix(2, N)))
    b = await dev.to_device(matrix(3, 3, N))

    def counts() -> dict[str, tuple[int, int]]:
        actors = dev.statistics().actors
        return {
            each.name: (each.accepted, each.settled.get("ok", 0)) for each in actors if each.name in ("blas", "memory")
        }

    differences = []
    for _ in range(4):
        before = counts()
        await dev.blas.trsv(a, x)
        await dev.blas.gbmv(b, x, 1, 1)
        after = counts()
        differences.append({key: tuple(np.subtract(after[key], before[key]).tolist()) for key in after})
    assert all(each == differences[0] for each in differences)


@pytest.mark.sim_only
@both
@pytest.mark.parametrize("function", ["cublasScopy_64", "cublasStrsv_64"])
async def test_a_part_that_is_refused_is_the_error_of_the_verb_and_tears_its_result(dev, name, function):
    a, x = await uploaded(dev, (matrix(1, N, N), matrix(2, N)))
    outcomes = []
    for turn in range(3):
        out = dev.empty(N, np.float32)
        if turn == 2:
            await dev.blas.trsv(a, x, out=out)
        inject(dev, function, ReturnStatus(NOT_SUPPORTED))
        with pytest.raises(CommandFailed) as caught:
            async with form(dev, name) as call:
                await call("trsv", a, x, out=out)
        outcomes.append((caught.value.status, caught.value.operation, out.state))
        with pytest.raises(StaleArray):
            await out.to_host()
        await out.fill(0)
        if turn == 0:
            await dev.blas.trsv(a, x, out=out)
            async with dev.batch() as batch:
                batch.blas.trsv(a, x, out=out)
                batch.blas.trsv(a, x, out=out)
    assert len(set(outcomes)) == 1
    assert outcomes[0][2] == "torn"


@pytest.mark.sim_only
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("function", ["cublasScopy_64", "cublasStrsv_64"])
async def test_a_part_that_is_refused_tears_the_new_result_and_no_later_one_on_its_block(dev, function, dropped):
    a, x = await uploaded(dev, (matrix(1, N, N), matrix(2, N)))
    right = await (await dev.blas.trsv(a, x)).to_host()
    async with dev.batch() as batch:
        for _ in range(3):
            batch.blas.trsv(a, x)
        await batch.flush()
        with hold_worker(dev):
            inject(dev, function, ReturnStatus(NOT_SUPPORTED))
            first = batch.blas.trsv(a, x)
            number = id(first._block)
            if dropped:
                del first
            second = batch.blas.trsv(a, x)
            assert (id(second._block) == number) is (dropped and KNOWN_HERE_ALONE > 0)
        with pytest.raises(CommandFailed):
            await batch.flush()
    assert dropped or first.state == "torn"
    assert second.state == "ready"
    np.testing.assert_array_equal(await second.to_host(), right)


async def test_a_loss_tears_the_new_results_of_every_part_that_was_not_done(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=RestartPolicy(intensity=math.inf)) as dev:
            a, x = await uploaded(dev, (matrix(1, N, N), matrix(2, N)))
            y, z = await uploaded(dev, (np.full((), 3.0), np.full((), 4.0)))
            with pytest.raises(ContextLost):  # noqa: PT012
                async with dev.batch() as batch:
                    for _ in range(3):
                        done = batch.blas.trsv(a, x), *batch.blas.rotg(y, z)
                    await batch.flush()
                    with hold_worker(dev):
                        lost = batch.blas.trsv(a, x), *batch.blas.rotg(y, z)
                        await until(lambda: core_of(dev).current.timeline.book(0).busy)
                        kill_worker(dev)
            await next_generation(dev, 1)
            assert [each.state for each in done] == 3 * ["ready"]
            assert [each.state for each in lost] == 3 * ["torn"]
            assert (a.state, x.state, y.state) == ("ready", "ready", "torn")


async def test_a_loss_is_the_error_and_the_next_generation_goes_on(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=RestartPolicy(intensity=math.inf)) as dev:
            a, x = await uploaded(dev, (matrix(1, N, N), matrix(2, N)))
            right = await (await dev.blas.trsv(a, x)).to_host()
            outs = [dev.empty(N, np.float32) for _ in range(2)]
            errors = []

            async def solve() -> None:
                with pytest.raises(ContextLost) as caught:
                    await dev.blas.trsv(a, x, out=outs[0])
                errors.append(caught.value)

            for out in outs:
                for _ in range(3):
                    await dev.blas.trsv(a, x, out=out)
            with pytest.raises(ContextLost):  # noqa: PT012
                async with dev.batch() as batch:
                    batch.blas.trsv(a, x, out=outs[1])
                    await batch.flush()
                    async with trio.open_nursery() as nursery:
                        with hold_worker(dev):
                            batch.blas.trsv(a, x, out=outs[1])
                            nursery.start_soon(solve)
                            await until(lambda: dev.statistics().lanes[0].unfinished == 4)
                            assert len(core_of(dev).current.timeline.lanes[0].launches) == 4, "all of them short"
                            kill_worker(dev)
            await next_generation(dev, 1)
            assert len(errors) == 1
            assert all(each.unsettled == 0 for each in dev.statistics().actors)
            for out in outs:
                assert out.state == "torn"
                await out.fill(0)
                for _ in range(3):
                    await dev.blas.trsv(a, x, out=out)
                    np.testing.assert_array_equal(await out.to_host(), right)
