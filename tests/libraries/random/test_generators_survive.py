"""Streams of random numbers go on behind losses, failures and cancellations as if nothing had happened."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import trio
import trio.lowlevel

from atomr_trio import CommandFailed, ContextLost, OutOfDeviceMemory, RandomGenerator, RestartPolicy, StaleArray
from atomr_trio._device.device import core_of
from atomr_trio._generation.generation import Generation
from atomr_trio.libraries.random.positions import KINDS, Bounds
from atomr_trio.libraries.random.records import RANDOM
from atomr_trio.testing import ReturnStatus, inject
from support import ON_GPU, SWEEP
from support.linear import FORMS
from support.random_host import Shadow, assert_drawn
from support.rogue import gated, kill_worker

pytestmark = pytest.mark.used_workers

ALL = SWEEP or ON_GPU
DEADLINE = 60
OFTEN = RestartPolicy(intensity=100)
MIXED = ("uniform_float64", "bits_uint32", "normal_float64", "normal_float32", "poisson_uint32", "uniform_float32")


async def lose(dev: Any) -> None:
    generation = dev.generation
    kill_worker(dev)
    await dev.wait_generation(after=generation)


def ask(owner: Any, name: str, **keywords: Any) -> Any:
    """Call the verb of a function, such as "normal_float32"; the numbers are those of its default parameters."""
    verb, _, dtype = name.partition("_")
    return getattr(owner, verb)(dtype=dtype, **keywords)


def parameters_of(name: str) -> tuple[float, ...]:
    return (1.0,) if name.startswith("poisson") else ()


async def check(generator: RandomGenerator, shadow: Shadow, name: str, count: int) -> None:
    """Draw, and compare with what comes without a loss."""
    right = shadow.draw(name, count, *parameters_of(name))
    found = await (await ask(generator, name, size=count)).to_host()
    assert_drawn(found, right, f"{name} {generator.kind}")
    assert generator._state.place == shadow.place


def new(dev: Any, kind: str = "philox", **keywords: Any) -> tuple[RandomGenerator, Shadow]:
    generator = dev.random.generator(kind, None if KINDS[kind].is_quasi else 5, **keywords)
    generator._bounds = Bounds(4, 20_000)
    return generator, Shadow(generator)


# --- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("standby", [0, 1])
async def test_mixed_draws_go_on_behind_losses(open_test_device: Any, standby: int) -> None:
    kinds = ("philox", "xorwow", "mtgp32", "sobol32", "scrambled_sobol64")
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=standby, restart_policy=OFTEN) as dev:
            pairs = [new(dev, kind) for kind in kinds]
            pairs.append(new(dev, "xorwow", ordering="seeded", offset=4095))
            pairs.append(new(dev, "sobol32", dims=5, offset=3))
            for turn in range(3):
                for count in (1001 - turn % 2, 6, 4090):
                    for generator, shadow in pairs:
                        name = MIXED[(turn + count) % len(MIXED)]
                        if KINDS[generator.kind].bits == 64 and name.startswith("bits"):
                            name = "bits_uint64"
                        await check(generator, shadow, name, count * generator.dims)
                await lose(dev)
            for generator, shadow in pairs:
                await check(generator, shadow, "uniform_float64", 5000)


@pytest.mark.skipif(not SWEEP, reason="it begins a generator that takes five seconds on the host")
@pytest.mark.parametrize("kind", ["mt19937", "mrg32k3a"])
async def test_slow_kinds_go_on_behind_losses(open_test_device: Any, kind: str) -> None:
    async with open_test_device(restart_policy=OFTEN) as dev:
        generator, shadow = new(dev, kind)
        for name in MIXED:
            await check(generator, shadow, name, 10_001)
            await lose(dev)
        await check(generator, shadow, "uniform_float64", 100_000)


@pytest.mark.parametrize("batched", FORMS.values(), ids=FORMS.keys())
async def test_a_draw_that_is_lost_keeps_its_numbers_and_can_be_repeated(open_test_device: Any, batched: bool) -> None:
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=OFTEN) as dev:
            generator, shadow = new(dev)
            await check(generator, shadow, "uniform_float64", 101)
            before = generator.state

            async def draw() -> None:
                if batched:
                    async with dev.batch() as batch:
                        batch.random.normal(size=11, generator=generator)
                        batch.random.gamma(2.0, size=7, generator=generator)
                        batch.random.uniform(size=10, generator=generator)
                        kill_worker(dev)
                else:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(kill_when_drawn)
                        await generator.normal(size=11)

            async def kill_when_drawn() -> None:
                while generator.state == before:
                    await trio.lowlevel.checkpoint()
                kill_worker(dev)

            if not batched:
                await generator.gamma(2.0, size=1)  # so that the kernel is there
                before = generator.state
            caught: list[ContextLost] = []
            async with gated(dev):
                try:
                    await draw()
                except* ContextLost as group:
                    caught += [each for each in leaves(group) if isinstance(each, ContextLost)]
            (lost,) = caught
            assert lost.position == before
            right = shadow.draw("normal_float64", 11)
            if batched:
                shadow.draw("uniform_float64", 10)
            await check(generator, shadow, "bits_uint32", 10)
            assert lost.position is not None
            generator.seek(lost.position)
            assert_drawn(await (await generator.normal(size=11)).to_host(), right, "normal_float64")


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]


@pytest.mark.long
async def test_kernels_of_our_own_go_on_behind_losses(open_test_device: Any) -> None:
    calls = (("gamma", (2.5,)), ("integers", (3, 90)), ("standard_t", (4.0,)))
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=OFTEN) as dev:
            generator, other = dev.random.generator(seed=5), dev.random.generator(seed=5)
            for verb, arguments in calls:
                right = await (await getattr(other, verb)(*arguments, size=20)).to_host()
                first = await (await getattr(generator, verb)(*arguments, size=7)).to_host()
                await lose(dev)
                second = await (await getattr(generator, verb)(*arguments, size=13)).to_host()
                np.testing.assert_array_equal(np.concatenate([first, second]), right)


@pytest.mark.long
async def test_a_thousand_draws_may_be_the_first_batch_and_more_the_first_behind_a_loss(open_test_device: Any) -> None:
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=OFTEN) as dev:
            generator = dev.random.generator(seed=5)
            shadow = Shadow(generator)
            for draws in (1000, 1000 if ALL else 100):
                results = []
                async with dev.batch() as batch:
                    for turn in range(draws):
                        try:
                            results.append(ask(batch.random, MIXED[turn % 3], size=6, generator=generator))
                        except trio.WouldBlock:
                            await batch.flush()
                            results.append(ask(batch.random, MIXED[turn % 3], size=6, generator=generator))
                for turn, each in enumerate(results):
                    right = shadow.draw(MIXED[turn % 3], 6)
                    if turn % 100 > 96:
                        assert_drawn(await each.to_host(), right, MIXED[turn % 3])
                await lose(dev)
            await check(generator, shadow, "uniform_float64", 5000)


async def test_a_standby_has_opened_the_library_before_it_serves(open_test_device: Any) -> None:
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            await dev.wait_standby()
            generator, shadow = new(dev)
            await check(generator, shadow, "uniform_float64", 9)
            (standby,) = core_of(dev).current.standbys
            assert RANDOM.open in standby.opened


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Any]]:
    """The records of cuRAND: the number of the generation, 0 for a standby, and the verb."""
    seen: list[tuple[int, Any]] = []
    init = Generation.__init__

    def begin(generation: Generation, *arguments: Any, **keywords: Any) -> None:
        init(generation, *arguments, **keywords)
        publish = generation.publish

        def noted(lane: int, verb: Any, *others: Any, **options: Any) -> Any:
            if verb.engine == RANDOM.engine:
                is_standby = not generation.in_service.is_set()
                seen.append((0 if is_standby else generation.number, verb))
            return publish(lane, verb, *others, **options)

        generation.publish = noted  # type: ignore[assignment, method-assign]

    monkeypatch.setattr(Generation, "__init__", begin)
    return seen


@pytest.mark.parametrize(
    "kind",  # the host takes seconds to seed a mt19937, and one to seed a mrg32k3a
    [pytest.param(kind, marks=[pytest.mark.long] if kind == "mrg32k3a" else []) for kind in KINDS if kind != "mt19937"],
)
async def test_a_standby_has_made_each_generator_and_brings_it_to_its_place(
    open_test_device: Any, published: list[tuple[int, Any]], kind: str
) -> None:
    name = "uniform_float32" if KINDS[kind].is_quasi else "normal_float64"
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, restart_policy=OFTEN) as dev:
            generator, shadow = new(dev, kind)
            for _ in range(3):
                await dev.wait_standby()
                await check(generator, shadow, name, 1001 if KINDS[kind].is_quasi else 1002)
                (standby,) = core_of(dev).standbys.generations
                await standby.settler.wait_idle()
                published.clear()
                await lose(dev)
                await check(generator, shadow, name, 500)
                await check(generator, shadow, name, 3000)
                of_service = [verb for number, verb in published if number == dev.generation]
                # One without an offset cannot be brought to a place once it has drawn, so it is made anew.
                first = [RANDOM.restore] if KINDS[kind].has_offset else [RANDOM.drop, RANDOM.define]
                assert of_service[: len(first) + 1] == [*first, RANDOM.first_execute]
                assert not {RANDOM.define, RANDOM.restore, RANDOM.open, RANDOM.drop} & set(of_service[len(first) :])


@pytest.mark.sim_only
async def test_a_generator_whose_restoring_fails_is_made_anew_by_the_next_draw(
    open_test_device: Any, published: list[tuple[int, Any]]
) -> None:
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, workers=None, restart_policy=OFTEN) as dev:
            await dev.wait_standby()
            generator, shadow = new(dev)
            await check(generator, shadow, "normal_float64", 100)
            (standby,) = core_of(dev).standbys.generations
            await standby.settler.wait_idle()
            await lose(dev)
            published.clear()
            inject(dev, "curandSetGeneratorOffset", ReturnStatus(102))
            before = generator.state
            with pytest.raises((CommandFailed, OutOfDeviceMemory)) as caught:
                await generator.normal(size=6)
            assert caught.value.position == before
            shadow.draw("normal_float64", 6)
            await check(generator, shadow, "normal_float64", 10)
            verbs = [verb for number, verb in published if number == dev.generation]
            assert verbs == [RANDOM.restore, RANDOM.first_execute, RANDOM.define, RANDOM.first_execute]


@pytest.mark.sim_only
async def test_a_generator_that_a_standby_could_not_make_is_made_by_the_next_draw(
    open_test_device: Any, published: list[tuple[int, Any]]
) -> None:
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, workers=None, restart_policy=OFTEN) as dev:
            await dev.wait_standby()
            (standby,) = core_of(dev).standbys.generations
            standby.request_faults("curandSetGeneratorOffset:102")
            generator, shadow = new(dev)
            await check(generator, shadow, "normal_float64", 100)
            await standby.settler.wait_idle()
            published.clear()
            await lose(dev)
            await check(generator, shadow, "normal_float64", 100)
            verbs = [verb for number, verb in published if number == dev.generation]
            assert verbs == [RANDOM.define, RANDOM.first_execute]


ROWS = {
    "words": lambda generator, size: generator.bits(size),
    "uniform32": lambda generator, size: generator.uniform(size=size, dtype="float32"),
    "uniform64": lambda generator, size: generator.uniform(size=size),
    "normal32": lambda generator, size: generator.normal(size=size, dtype="float32"),
    "normal64": lambda generator, size: generator.normal(size=size),
    "poisson": lambda generator, size: generator.poisson(10.0, size),
    "large poisson": lambda generator, size: generator.poisson(2500.0, size),
    "larger poisson": lambda generator, size: generator.poisson(5000.0, size),
}
"""The draws that differ in what they do to the state."""

KINDS_AND_ROWS = [
    *(("xorwow", row) for row in ROWS),
    *(("philox", row) for row in (ROWS if ALL else ("uniform64", "larger poisson"))),
    *(("mrg32k3a", row) for row in (ROWS if ALL else ())),
]


@pytest.mark.parametrize(("kind", "row"), KINDS_AND_ROWS)
async def test_a_generator_that_is_made_anew_is_the_same(dev: Any, kind: str, row: str) -> None:
    """The device's own generators against each other: what holds on the host may not hold there."""
    slots = KINDS[kind].slots
    per_unit = KINDS[kind].per_unit if row.startswith("normal") else 1
    cases = ((0, 1), (5, slots - 1), (slots - 2, slots), (3 * slots + 6, 2 * slots + 7))
    for offset, units in cases if ALL else cases[-1:]:
        generator = dev.random.generator(kind, 5, offset=offset)
        await ROWS[row](generator, units * per_unit)
        await check_made_anew(dev, generator, row)


@pytest.mark.parametrize("kind", ["xorwow", "philox", *(["mrg32k3a"] if ALL else [])])
async def test_a_generator_that_is_made_anew_between_mixed_draws_is_the_same(dev: Any, kind: str) -> None:
    slots = KINDS[kind].slots
    generator = dev.random.generator(kind, 5, offset=3)
    draws = (("normal32", 10), ("words", 2 * slots + 5), ("uniform64", slots + 1), ("words", slots), ("normal64", 6))
    for row, count in draws:
        await ROWS[row](generator, count)
    assert generator.state["offset"] > slots
    assert generator.state["record"]
    await check_made_anew(dev, generator, "normal64")


async def check_made_anew(dev: Any, generator: RandomGenerator, row: str) -> None:
    """Compare with one that begins at its state, for more than a round."""
    again = dev.random.generator(generator.kind, 5)
    again.seek(generator.state)
    for name in (row, "words", "uniform64"):
        size = KINDS[generator.kind].slots + 1000
        found = [await (await ROWS[name](each, size)).to_host() for each in (generator, again)]
        np.testing.assert_array_equal(*found)


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.sim_only
@pytest.mark.parametrize("status", [102, 104, 999])
async def test_a_draw_that_fails_keeps_its_numbers(dev: Any, status: int) -> None:
    generator, shadow = new(dev)
    await check(generator, shadow, "uniform_float64", 101)
    before = generator.state
    inject(dev, "curandGenerateNormalDouble", ReturnStatus(status))
    with pytest.raises((CommandFailed, OutOfDeviceMemory), match="curandGenerateNormalDouble") as failed:
        await generator.normal(size=11)
    assert failed.value.position == before
    right = shadow.draw("normal_float64", 11)
    await check(generator, shadow, "uniform_float64", 101)
    generator.seek(before)
    assert_drawn(await (await generator.normal(size=11)).to_host(), right, "normal_float64")


@pytest.mark.sim_only
async def test_draws_behind_one_that_fails_are_right_or_fail_too(dev: Any) -> None:
    generator, shadow = new(dev, "xorwow")
    await check(generator, shadow, "uniform_float64", 101)
    outs = [dev.zeros(5) for _ in range(4)]
    inject(dev, "curandGenerateUniformDouble", ReturnStatus(102), call=2)

    async def draw() -> None:
        async with dev.batch() as batch:
            for out in outs:
                batch.random.uniform(out=out, generator=generator)

    with pytest.raises(OutOfDeviceMemory):
        await draw()
    right = shadow.draw("uniform_float64", 20).reshape(4, 5)
    np.testing.assert_array_equal(await outs[0].to_host(), right[0])
    for out, each in zip(outs[1:], right[1:], strict=True):
        found = await out.to_host()
        assert not found.any() or (found == each).all()
    await check(generator, shadow, "normal_float64", 100)


@pytest.mark.sim_only
@pytest.mark.parametrize("function", ["curandCreateGenerator", "curandGenerateSeeds", "curandSetGeneratorOffset"])
async def test_a_generator_that_cannot_be_made_is_made_for_the_next_draw(dev: Any, function: str) -> None:
    generator, shadow = new(dev)
    inject(dev, function, ReturnStatus(102))
    with pytest.raises(OutOfDeviceMemory, match=function):
        await generator.uniform(size=11)
    shadow.draw("uniform_float64", 11)
    await check(generator, shadow, "uniform_float64", 101)


async def test_a_draw_that_is_refused_leaves_the_generator_where_it_is_known_to_be(open_test_device: Any) -> None:
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            generator, shadow = new(dev)
            torn = dev.zeros(8)

            async def tear() -> None:
                async with gated(dev), dev.batch() as batch:
                    batch.fill(torn, 1.0)
                    kill_worker(dev)

            with pytest.raises(ContextLost):
                await tear()
            await check(generator, shadow, "uniform_float64", 5)
            here = generator.state
            generator.seek(here | {"offset": 4 << 20, "record": []})
            with pytest.raises(StaleArray):
                await generator.uniform(out=torn[:4])
            generator.seek(here)
            await check(generator, shadow, "uniform_float64", 9)


# --- cancellations ----------------------------------------------------------------------------------------------------


async def test_a_draw_that_is_cancelled_while_it_runs_keeps_its_numbers(dev: Any) -> None:
    generator, shadow = new(dev)
    await check(generator, shadow, "uniform_float64", 101)
    before = generator.state
    async with gated(dev):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generator.uniform, 0.0, 1.0, 50)
            while generator.state == before:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    shadow.draw("uniform_float64", 50)
    await check(generator, shadow, "normal_float64", 10)


async def test_a_draw_that_is_cancelled_before_it_was_sent_keeps_its_numbers(open_test_device: Any) -> None:
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            generator, shadow = new(dev)
            await check(generator, shadow, "uniform_float64", 101)
            before = generator.state
            core = core_of(dev)
            core.rebuild_held = trio.Event()
            kill_worker(dev)
            async with trio.open_nursery() as nursery:
                while core.serving is not None:
                    await trio.lowlevel.checkpoint()
                nursery.start_soon(generator.uniform, 0.0, 1.0, 50)
                while generator.state == before:
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            core.rebuild_held.set()
            shadow.draw("uniform_float64", 50)
            await check(generator, shadow, "normal_float64", 10)


# --- many generators --------------------------------------------------------------------------------------------------


async def test_more_generators_than_plans_are_kept_come_back_silently(open_test_device: Any) -> None:
    async with open_test_device(plan_cache=1) as dev:
        pairs = [new(dev, kind) for kind in ("philox", "xorwow", "sobol32")]
        for name in MIXED:
            for generator, shadow in pairs:
                await check(generator, shadow, name, 1000)
        assert len(core_of(dev).current.plans) <= 2


async def test_a_generator_that_is_collected_is_given_back(open_test_device: Any) -> None:
    async with open_test_device() as dev:
        kept, shadow = new(dev)
        await check(kept, shadow, "bits_uint32", 5)
        generator, other = new(dev)
        await check(generator, other, "bits_uint32", 5)
        current = core_of(dev).current
        assert len(current.plans) == 2
        del generator
        gc.collect()
        await check(new(dev)[0], Shadow(new(dev)[0]), "bits_uint32", 5)
        gc.collect()
        await check(*new(dev), "bits_uint32", 5)
        assert len(current.plans) <= 2
        await check(kept, shadow, "uniform_float64", 5)
