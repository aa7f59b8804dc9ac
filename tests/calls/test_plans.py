"""Plans on the user's side: who has which plan, and when; seen through products of cuBLASLt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import CommandFailed, ContextLost, DeviceClosed, InvalidArgument, OutOfDeviceMemory, RestartPolicy
from atomr_trio._calls.plans import Plans
from atomr_trio._device.device import core_of
from atomr_trio._generation.generation import Generation
from atomr_trio._wire.protocol import LANE_COMPUTE
from atomr_trio.testing import ReturnStatus, inject
from support.rogue import compile_rogue, gated, kill_worker, until

pytestmark = pytest.mark.used_workers

ENGINE = "blaslt"
DEADLINE = 60
MIB = 1 << 20
OFTEN = RestartPolicy(intensity=20)


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, str, int]]]:
    """The records of plans that were sent since it was cleared: generation, verb, lane."""
    sent: list[tuple[Any, str, int]] = []
    begin = Generation.__init__

    def init(generation: Any, *arguments: Any, **more: Any) -> None:
        begin(generation, *arguments, **more)
        publish = generation.publish

        def note(lane: int, verb: Any, *rest: Any, **others: Any) -> Any:
            if verb.engine == ENGINE:
                sent.append((generation, verb.name, lane))
            return publish(lane, verb, *rest, **others)

        generation.publish = note

    monkeypatch.setattr(Generation, "__init__", init)
    return sent


def verbs(published: list[tuple[Any, str, int]]) -> list[str]:
    """The verbs of those records, which are forgotten then."""
    found = [verb for _, verb, _ in published]
    published.clear()
    return found


async def squares(dev: Any, *sizes: int) -> list[Any]:
    """Matrices of these sizes, each of which is another problem."""
    return [await dev.to_device(np.eye(size, dtype=np.float32) * 2) for size in sizes]


async def lose(dev: Any) -> None:
    generation = dev.generation
    kill_worker(dev)
    await dev.wait_generation(after=generation)


def plans_of(dev: Any, generation: Any = None) -> set[tuple[int, int]]:
    return set((generation or core_of(dev).current).plans)


async def check(dev: Any, matrix: Any) -> None:
    product = await (await dev.blaslt.matmul(matrix, matrix)).to_host()
    assert (product == 4 * np.eye(len(product), dtype=np.float32)).all()


# --- the definition ---------------------------------------------------------------------------------------------------


async def test_a_plan_is_defined_once_and_equal_problems_are_one(published, open_test_device):
    async with open_test_device() as dev:
        one, twin, other = await squares(dev, 4, 4, 8)
        await check(dev, one)
        assert verbs(published) == ["define", "first_execute"]
        await check(dev, twin)
        await check(dev, one)
        await check(dev, one)
        assert verbs(published) == [], "all of them go the short way"
        await check(dev, other)
        assert verbs(published) == ["define", "first_execute"]
        assert len(plans_of(dev)) == 2
        # Another alignment is another plan: it was made inside the product once, which must not block.
        wide = await dev.to_device(np.pad(np.eye(4, dtype=np.float32) * 2, ((0, 0), (1, 3))))
        await dev.blaslt.matmul(wide[:, 1:5], one)
        assert verbs(published) == ["define", "first_execute"]


async def test_each_lane_has_plans_of_its_own_which_end_with_it(published, open_test_device):
    async with open_test_device() as dev:
        (one,) = await squares(dev, 4)
        await check(dev, one)
        async with dev.lane() as lane:
            async with dev.batch(lane=lane) as batch:
                results = [batch.blaslt.matmul(one, one) for _ in range(3)]
            assert {place[0] for place in plans_of(dev)} == {LANE_COMPUTE, lane._number}
            assert next(each for each in published if each[2] == lane._number)[1] == "define"
        assert {place[0] for place in plans_of(dev)} == {LANE_COMPUTE}
        for result in results:
            assert (await result.to_host())[0, 0] == 4


@pytest.mark.long
async def test_a_thousand_products_are_the_first_thing_in_a_batch_before_and_after_a_fault(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=OFTEN) as dev:
            matrices = await squares(dev, 2, 3, 4)
            for _ in range(2):
                async with dev.batch() as batch:
                    results = [batch.blaslt.matmul(each, each) for _ in range(334) for each in matrices]
                for result in results:
                    assert (await result.to_host())[0, 0] == 4
                await lose(dev)


async def test_a_plan_outlives_its_worker_and_is_made_again_at_its_first_use(published, open_test_device):
    async with open_test_device(restart_policy=OFTEN) as dev:
        one, other = await squares(dev, 4, 8)
        for _ in range(3):
            await check(dev, one)
            await check(dev, other)
        await lose(dev)
        assert plans_of(dev) == set()
        verbs(published)
        await check(dev, one)
        assert verbs(published) == ["define", "first_execute"]
        assert len(plans_of(dev)) == 1


async def test_a_standby_has_the_plans_ahead_of_time(published, open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, restart_policy=OFTEN) as dev:
            one, other, later = await squares(dev, 4, 8, 16)
            await check(dev, one)
            await dev.wait_standby()
            await check(dev, other)  # the standby is told at once
            (standby,) = core_of(dev).standbys.generations
            await until(lambda: plans_of(dev, standby) == plans_of(dev) and standby.timeline.idle)
            verbs(published)
            await lose(dev)
            await check(dev, one)
            await check(dev, other)
            # Another standby is told about the plans meanwhile.
            assert [verb for where, verb, _ in published if where is standby] == ["first_execute", "first_execute"]
            assert len(plans_of(dev)) == 2
            await check(dev, later)


# --- the list ---------------------------------------------------------------------------------------------------------


async def test_the_plans_that_were_not_used_for_longest_go_and_come_back(published, open_test_device):
    async with open_test_device(plan_cache=2) as dev:
        a, b, c = await squares(dev, 2, 3, 4)
        await check(dev, a)
        await check(dev, b)
        verbs(published)
        await check(dev, a)
        await check(dev, c)  # b goes
        await check(dev, a)
        assert verbs(published).count("define") == 1
        await check(dev, b)  # c goes
        assert "define" in verbs(published)
        core = core_of(dev)
        core.release_dropped(core.current)
        await until(lambda: core.current.timeline.idle)
        assert len(plans_of(dev)) == 2
        assert repr(core.part(Plans)) == "<Plans: 2 of 2>"
        for matrix in (a, b, c) * 3:
            await check(dev, matrix)


@pytest.mark.parametrize("form", ["awaited", "batch"])
async def test_a_call_that_goes_the_short_way_is_right_when_its_plan_has_gone(open_test_device, form):
    async with open_test_device(plan_cache=1) as dev:
        matrices = await squares(dev, 2, 3)
        outs = [dev.zeros(each.shape, np.float32) for each in matrices]
        for _ in range(4):
            for matrix, out in zip(matrices, outs, strict=True):
                await out.fill(0)
                if form == "awaited":
                    for _ in range(5):
                        await dev.blaslt.matmul(matrix, matrix, out=out)
                else:
                    async with dev.batch() as batch:
                        for _ in range(5):
                            batch.blaslt.matmul(matrix, matrix, out=out)
                assert (await out.to_host() == 4 * np.eye(len(matrix), dtype=np.float32)).all()


@pytest.mark.parametrize("wrong", [0, -1, True, 2.0, None, "many"])
async def test_a_list_of_plans_has_a_length(open_test_device, wrong):
    with pytest.raises(InvalidArgument, match="plan_cache is a number of plans"):
        async with open_test_device(plan_cache=wrong):
            pass


# --- what fails -------------------------------------------------------------------------------------------------------


@pytest.mark.sim_only
async def test_a_plan_that_cannot_be_made_fails_its_calls_alone_and_is_tried_again(open_test_device):
    async with open_test_device() as dev:
        await _refuse_plans(dev)


async def _refuse_plans(dev: Any) -> None:
    a, b = await squares(dev, 5, 6)
    await check(dev, a)
    for function in ("cublasLtMatmulDescCreate", "cublasLtMatmulAlgoGetHeuristic"):
        inject(dev, function, ReturnStatus(7))
        with pytest.raises(CommandFailed, match=function) as caught:
            await dev.blaslt.matmul(b, b)
        assert (caught.value.status, caught.value.operation) == (7, "blaslt.matmul")
        await check(dev, a)
        assert len(plans_of(dev)) == 1
    await check(dev, b)
    assert len(plans_of(dev)) == 2


@pytest.mark.sim_only
async def test_all_calls_behind_a_plan_that_cannot_be_made_fail_with_its_words(dev):
    (a,) = await squares(dev, 7)
    inject(dev, "cublasLtMatmulAlgoGetHeuristic", ReturnStatus(7))
    async with gated(dev) as gate:
        outcomes: list[str] = []

        async def multiply() -> None:
            try:
                await dev.blaslt.matmul(a, a)
                outcomes.append("done")
            except CommandFailed as error:
                outcomes.append(error.status_name or "")

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(multiply)
            await trio.testing.wait_all_tasks_blocked()
            await gate.open()
    assert outcomes == ["CUBLAS_STATUS_INVALID_VALUE"] * 5
    await check(dev, a)


async def test_a_caller_that_is_cancelled_while_its_plan_is_made_leaves_the_plan_to_others(dev):
    # A driver that loads a kernel waits for those that run, and holds up all lanes: this one is loaded before.
    (a,) = await squares(dev, 9)
    async with dev.lane() as lane, dev.batch(lane=lane) as batch:
        batch.blaslt.matmul(a, a)
    async with gated(dev) as gate:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(dev.blaslt.matmul, a, a)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        await gate.open()
    await check(dev, a)


async def test_a_worker_that_dies_while_a_plan_is_made_costs_the_call_and_not_the_plan(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=OFTEN) as dev:
            (a,) = await squares(dev, 9)
            async with gated(dev):
                async with trio.open_nursery() as nursery:

                    async def multiply() -> None:
                        with pytest.raises(ContextLost):
                            await dev.blaslt.matmul(a, a)

                    nursery.start_soon(multiply)
                    await trio.testing.wait_all_tasks_blocked()
                    kill_worker(dev)
                await dev.wait_generation(after=1)
            assert plans_of(dev) == set()
            await check(dev, a)


async def test_leaving_the_block_while_a_plan_is_made_ends(open_test_device):
    ends: list[BaseException] = []

    async def multiply(dev: Any, a: Any) -> None:
        try:
            await dev.blaslt.matmul(a, a)
        except DeviceClosed as end:
            ends.append(end)

    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            async with open_test_device(close_timeout=0.1) as dev:
                (a,) = await squares(dev, 9)
                (spin,) = await compile_rogue(dev, "spin")
                word = dev.zeros(1, np.int32)
                await word.to_host()
                spin.launch_nowait(1, 1, word.address, touches=[word])
                nursery.start_soon(multiply, dev, a)
                await trio.testing.wait_all_tasks_blocked()
    assert len(ends) == 1


# --- workspaces -------------------------------------------------------------------------------------------------------


async def long_product(dev: Any) -> Any:
    """A product whose algorithm has a workspace."""
    a = await dev.to_device(np.ones((4, 64), np.float32))
    return lambda: dev.blaslt.matmul(a, a, op_b="T")


@pytest.mark.sim_only
async def test_workspaces_are_in_the_statistics_and_count_for_the_memory_limit(open_test_device):
    async with open_test_device(memory_limit=130 * MIB, restart_policy=OFTEN) as dev:
        product = await long_product(dev)
        assert dev.statistics().memory.workspaces == 0
        assert (await (await product()).to_host() == 64).all()
        taken = dev.statistics().memory.workspaces
        assert taken > 0
        async with dev.lane() as lane, dev.batch(lane=lane) as batch:
            a = dev.full((4, 64), 1, np.float32)
            batch.blaslt.matmul(a, a, op_b="T")
            await batch.flush()
            assert dev.statistics().memory.workspaces == 2 * taken
        await until(lambda: dev.statistics().memory.workspaces == taken)  # it is given back in a thread
        memory = dev.statistics().memory
        room = memory.limit - memory.reserved
        with pytest.raises(OutOfDeviceMemory, match=f"libraries have {taken:,} for their workspaces"):
            dev.empty(room, np.uint8)
        await lose(dev)
        assert dev.statistics().memory.workspaces == 0
        assert (await (await product()).to_host() == 64).all()
        assert dev.statistics().memory.workspaces == taken


@pytest.mark.sim_only
async def test_a_plan_larger_than_the_memory_that_is_left_is_refused_before_it_is_made(open_test_device):
    async with open_test_device(memory_limit=64 * MIB) as dev:
        a, out = dev.full((4, 64), 1, np.float32), dev.zeros((4, 4), np.float32)
        rest = dev.empty(dev.statistics().memory.largest_free, np.uint8)
        for _ in range(2):
            with pytest.raises(
                OutOfDeviceMemory, match=r"needs .* bytes for its workspace, and the memory limit leaves 0"
            ):
                await dev.blaslt.matmul(a, a, op_b="T", out=out)
        assert dev.statistics().memory.workspaces == 0
        assert plans_of(dev) == set()
        rest.free()
        (square,) = await squares(dev, 4)
        await check(dev, square)  # a plan without a workspace
