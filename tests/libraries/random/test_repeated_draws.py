"""Draws that were made before go the short way of a repeated call, with the numbers and errors of the general way."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import CommandFailed, ContextLost, InvalidArgument, OutOfDeviceMemory, RestartPolicy
from atomr_trio._calls.known import stateful
from atomr_trio._device.device import core_of
from atomr_trio.libraries.random.positions import (
    BOUNDS,
    KINDS as KINDS_OF_CURAND,
    Bounds,
    Place,
    Step,
    drawn,
    moved,
    pace_of,
    room_at,
    step,
)
from atomr_trio.libraries.random.questions import _HEADS, ASKS, question_of
from atomr_trio.testing import ReturnStatus, inject
from support.random_host import Shadow, assert_drawn
from support.rogue import gated, kill_worker

pytestmark = pytest.mark.used_workers

COUNT = 1000
KINDS = ("philox", "xorwow", "mtgp32", "sobol32")
DRAWS: dict[str, tuple[str, dict[str, Any], tuple[float, ...]]] = {
    "bits_uint32": ("bits", {"dtype": "uint32"}, ()),
    "uniform_float32": ("uniform", {"dtype": np.float32}, ()),
    "uniform_float64": ("uniform", {"low": 0.0, "high": 1.0}, ()),
    "normal_float32": ("normal", {"dtype": "float32", "loc": 3.0, "scale": 0.5}, (3.0, 0.5)),
    "poisson_uint32": ("poisson", {"lam": 7.5, "dtype": np.dtype("uint32")}, (7.5,)),
}


def published(dev: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that go the general way from now on."""
    generation = core_of(dev).current
    publish, names = generation.publish, []

    def noting(lane: int, verb: Any, *rest: Any, **more: Any) -> Any:
        names.append(verb.operation)
        return publish(lane, verb, *rest, **more)

    monkeypatch.setattr(generation, "publish", noting)
    return names


def new(dev: Any, kind: str = "philox") -> tuple[Any, Shadow]:
    generator = dev.random.generator(kind, **({} if kind.startswith("sobol") else {"seed": 5}))
    return generator, Shadow(generator)


# --- the numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [False, True], ids=["new", "out"])
async def test_repetitions_in_both_forms_go_on_with_the_same_numbers(dev: Any, kind: str, given: bool) -> None:
    generator, shadow = new(dev, kind)
    for name, (verb, keywords, parameters) in DRAWS.items():
        size = {"out": dev.empty(COUNT, name.partition("_")[2])} if given else {"size": COUNT}
        for _ in range(3):
            found = [await getattr(generator, verb)(**size, **keywords)]
            hosts = [await found[0].to_host()]
            async with dev.batch() as batch:
                for _ in range(2):
                    result = getattr(batch.random, verb)(generator=generator, **size, **keywords)
                    hosts.append(batch.to_host(result))
            for host in hosts:
                assert_drawn(host, shadow.draw(name, COUNT, *parameters), f"{name} {kind}")
        assert generator._state.place == shadow.place


OWN: dict[str, dict[str, Any]] = {
    "integers": {"low": -3, "high": 1000},
    "exponential": {"dtype": "float32"},
    "bernoulli": {"p": 0.25},
    "discrete": {"pvals": (0.5, 0.25, 0.25)},
    "beta": {"a": 2.0, "b": 3.0},
}


@pytest.mark.long
@pytest.mark.parametrize("given", [False, True], ids=["new", "out"])
async def test_repetitions_of_own_kernels_go_on_where_the_last_one_ended(dev: Any, given: bool) -> None:
    await dev.random.load(*OWN)
    for verb, keywords in OWN.items():
        generator, other = dev.random.generator(seed=5), dev.random.generator(seed=5)
        whole = await (await getattr(other, verb)(size=9 * COUNT, **keywords)).to_host()
        size: dict[str, Any] = {"out": dev.empty(COUNT, whole.dtype)} if given else {"size": COUNT}
        if given:
            keywords = {name: value for name, value in keywords.items() if name != "dtype"}
        hosts = []
        for _ in range(3):
            hosts.append(await (await getattr(generator, verb)(**size, **keywords)).to_host())
            async with dev.batch() as batch:
                for _ in range(2):
                    result = getattr(batch.random, verb)(generator=generator, **size, **keywords)
                    hosts.append(batch.to_host(result))
        np.testing.assert_array_equal(np.concatenate(hosts), whole, verb)
        assert generator.state == other.state


@pytest.mark.parametrize("batched", [False, True])
async def test_each_out_of_one_form_takes_its_own_numbers(dev: Any, batched: bool) -> None:
    await dev.random.load("integers")
    generator, other = dev.random.generator(seed=5), dev.random.generator(seed=5)
    shadow = Shadow(other)
    whole = (await (await other.integers(0, 1000, 60 * 8)).to_host()).reshape(60, 8)
    for verb, keywords, dtype in (("integers", {"low": 0, "high": 1000}, np.int64), ("uniform", {}, np.float32)):
        outs = [dev.zeros(8, dtype) for _ in range(20)] + [dev.zeros(16, dtype)[8:]]
        for turn in range(2):
            if batched:
                async with dev.batch() as batch:
                    for out in outs[:20]:
                        getattr(batch.random, verb)(out=out, generator=generator, **keywords)
            else:
                for out in outs[:20]:
                    await getattr(generator, verb)(out=out, **keywords)
            for number, out in enumerate(outs[:20]):
                right = whole[20 * turn + number] if verb == "integers" else shadow.draw("uniform_float32", 8)
                assert_drawn(await out.to_host(), right, verb)
        await getattr(generator, verb)(out=outs[20], **keywords)
        right = whole[40] if verb == "integers" else shadow.draw("uniform_float32", 8)
        assert_drawn(await outs[20].to_host(), right, verb)


async def test_own_kernels_are_not_planned_again_also_with_another_seed(
    dev: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await dev.random.load("integers")
    rows = []
    for _ in range(2):
        dev.random.seed(5)
        rows.append([await (await dev.random.integers(0, 1000, COUNT)).to_host() for _ in range(3)])
        names = published(dev, monkeypatch)
        dev.random.seed(6)
        rows[-1].append(await (await dev.random.integers(0, 1000, COUNT)).to_host())
        assert [name for name in names if name.startswith("random")] == []
    np.testing.assert_array_equal(*rows)
    assert len({row.tobytes() for row in rows[0]}) == 4


async def test_draws_of_several_kinds_and_sizes_alternate(dev: Any) -> None:
    generator, shadow = new(dev)
    found = []
    async with dev.batch() as batch:
        for turn in range(24):
            name = list(DRAWS)[turn % len(DRAWS)]
            verb, keywords, parameters = DRAWS[name]
            count = (10, 11, 1001)[turn % 3]
            result = getattr(batch.random, verb)(size=count, generator=generator, **keywords)
            found.append((batch.to_host(result), shadow.draw(name, count, *parameters), name))
            if turn % 7 == 3:
                generator.seek(generator.state)
    for host, right, name in found:
        assert_drawn(host, right, name)


async def test_repetitions_are_not_planned(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    generator, shadow = new(dev)
    out = dev.empty(COUNT, np.float32)
    await generator.uniform(out=out)
    await generator.uniform(size=COUNT, dtype="float32")
    async with dev.batch() as batch:
        batch.random.uniform(out=out, generator=generator)
        batch.random.uniform(size=COUNT, dtype="float32", generator=generator)
        await batch.flush()
        names = published(dev, monkeypatch)
        for _ in range(3):
            batch.random.uniform(out=out, generator=generator)
            batch.random.uniform(size=COUNT, dtype="float32", generator=generator)
        assert names == []
    await generator.uniform(out=out)
    await generator.uniform(size=COUNT, dtype="float32")
    assert [name for name in names if name.startswith("random")] == []
    for _ in range(12):
        right = shadow.draw("uniform_float32", COUNT)
    await generator.uniform(out=out)
    assert_drawn(await out.to_host(), shadow.draw("uniform_float32", COUNT), "uniform_float32")
    assert right.size == COUNT


async def test_numbers_that_are_equal_but_differ_are_other_draws(dev: Any) -> None:
    """The sign of a zero is one of the parameters; so is whether a number is whole."""
    plan = type(dev.random).normal.plan
    questions = [question_of(plan, (loc,), {}) for loc in (0.0, -0.0, 0, 0.0, False)]
    keys = [None if each is None else each[0] for each in questions]
    assert keys[0] == keys[3]
    assert len(set(keys)) == 4
    assert question_of(plan, ([0.0],), {}) is None
    assert question_of(plan, (), {"generator": "philox"}) is None


async def test_generated_questions_of_draws_are_those_of_the_general_way(dev: Any) -> None:
    one, two, out = dev.random.generator(seed=5), dev.random.generator(seed=6), dev.empty(8, np.float32)
    values = [0.0, -0.0, 1.5, math.nan, 1, True, None, (2, 3), (2, True), (2.0,), np.float32, np.dtype("f4"), "float32"]
    values += [out, dev.empty(4, np.float32), one, two, [1], np.float32(1), object()]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((), {}), ((0.0, 1.0), {"out": out, "generator": one})]
    calls += [((each,), {}) for each in values] + [((1.0, each), {"size": each}) for each in values]
    calls += [((), {name: each}) for each in values for name in ("out", "generator", "dtype")]
    calls += [((), {"out": out, "generator": each}) for each in values]
    for first in calls:

        @stateful
        def plan() -> None:
            """The plan of a verb that is called with `first` before all others."""

        try:
            for arguments, keywords in (first, *calls):
                asked, general = ASKS[plan](arguments, keywords), question_of(plan, arguments, keywords)
                assert (asked is None) == (general is None), (first, arguments, keywords)
                if asked is not None and general is not None:
                    assert asked[0] == general[0], (first, arguments, keywords)
                    assert asked[1] is general[1], (first, arguments, keywords)
                    assert list(map(id, asked[2])) == list(map(id, general[2])), (first, arguments, keywords)
        finally:
            del ASKS[plan]
            _HEADS.clear()  # otherwise they would be too many in the middle of a comparison
    keys = [question_of(print, *each) for each in calls]
    distinct = {each[0] for each in keys if each is not None}
    assert len(distinct) > len(calls) // 3


async def test_a_seek_or_another_draw_in_between_is_seen(dev: Any) -> None:
    generator, shadow = new(dev)
    out = dev.empty(COUNT, np.float32)
    states, rows = [], []
    for _ in range(4):
        states.append(generator.state)
        rows.append(await (await generator.uniform(out=out)).to_host())
        assert_drawn(rows[-1], shadow.draw("uniform_float32", COUNT), "uniform_float32")
    for number in (2, 0, 3, 1):
        generator.seek(states[number])
        np.testing.assert_array_equal(await (await generator.uniform(out=out)).to_host(), rows[number])
    dev.random.seed(5)
    first = await (await dev.random.uniform(out=out)).to_host()
    await dev.random.uniform(out=out)
    dev.random.seed(5)
    np.testing.assert_array_equal(await (await dev.random.uniform(out=out)).to_host(), first)


# --- places -----------------------------------------------------------------------------------------------------------


WORDS_OF_DRAWS = ("words", "uniform32", "uniform64", "normal32", "normal64")


@pytest.mark.parametrize("kind", ["philox", "xorwow", "mrg32k3a", "mtgp32", "sobol32", "scrambled_sobol64"])
@pytest.mark.parametrize("bounds", [BOUNDS, Bounds(3, 500_000)], ids=["usual", "narrow"])
def test_a_step_is_what_the_draw_does(kind: str, bounds: Bounds) -> None:
    chance, taken, longest = random.Random(kind), 0, 0
    for ordering in ("default", "legacy"):
        if kind == "mtgp32" or ("sobol" in kind and ordering == "legacy"):
            continue
        place = Place(kind, ordering, 0 if "sobol" in kind else 3, 2 if "sobol" in kind else 1)
        steps: dict[tuple[str, int], Step] = {}
        for _ in range(600):
            draw = chance.choice(WORDS_OF_DRAWS)
            count = chance.choice((0, 2, 10, 1000, 4096, 262_144, 300_000, 2_000_000))
            behind = steps.setdefault((draw, count), step(place, draw, count))
            for _ in range(chance.choice((1, 1, 3))):
                found, right = behind(place, bounds), drawn(place, draw, count, 0.0, bounds)
                if found is not None:
                    taken, longest = taken + 1, max(longest, len(found.record))
                    assert found == right.drawn == right.place
                place = found or right.place
            if chance.random() < 0.2:  # the record would be long for ever
                place = place._replace(offset=chance.choice((0, 7, 4096, 1 << 20)), record=())
            elif chance.random() < 0.05:
                place = drawn(place, "poisson", 10, 3000.0, bounds).place
    assert taken > 400 or kind == "mtgp32"
    assert longest > 5 or kind not in ("philox", "xorwow", "mrg32k3a") or bounds != BOUNDS
    place = Place(kind, "default", 3, 1)
    assert step(place, "poisson", 10)(place, bounds) is None or "sobol" in kind


@pytest.mark.parametrize("kind", ["philox", "xorwow", "mrg32k3a", "sobol32", "scrambled_sobol64"])
@pytest.mark.parametrize("bounds", [BOUNDS, Bounds(3, 500_000)], ids=["usual", "narrow"])
def test_draws_that_are_counted_end_where_they_end_one_by_one(kind: str, bounds: Bounds) -> None:
    chance, counted = random.Random(kind), 0
    is_quasi = "sobol" in kind
    for ordering in ("default",) if is_quasi else ("default", "legacy"):
        place = Place(kind, ordering, 0 if is_quasi else 3, 2 if is_quasi else 1)
        for _ in range(1000):
            draw, before = chance.choice(WORDS_OF_DRAWS), place
            count = chance.choice((2, 10, 1000, 4096, 262_144, 300_000, 2_000_000))
            found = pace_of(place, draw, count)
            assert found is not None
            pace, units = found
            room = room_at(before, pace, bounds)
            for number in range(1, chance.choice((1, 2, 9)) + 1):
                right = drawn(place, draw, count, 0.0, bounds)
                if number * units <= room:
                    counted += 1
                    assert moved(before, pace, number * units) == right.drawn == right.place
                place = right.place
            if chance.random() < 0.2:
                place = place._replace(offset=chance.choice((0, 7, 4096, 1 << 20)), record=())
            elif chance.random() < 0.05:
                place = drawn(place, "poisson", 10, 3000.0, bounds).place
    assert counted > 500
    for draw in WORDS_OF_DRAWS:  # towards the end of the sequence
        points = KINDS_OF_CURAND[kind].points
        place = Place(kind, "default", 3, 1, points - 5)
        found = pace_of(place, draw, 2)
        assert found is not None
        assert room_at(place, found[0], bounds) <= 4


@pytest.mark.parametrize("batched", [False, True])
async def test_draws_of_several_paces_are_counted_and_told_exactly(dev: Any, batched: bool) -> None:
    """Draws of two words each leave a record, and the generator is asked in between where it stands."""
    generator, shadow = new(dev)
    outs = {name: dev.empty(COUNT, name) for name in ("float32", "float64")}
    chance = random.Random(3)
    for turn in range(40):
        names = [chance.choice(("float32", "float64")) for _ in range(chance.choice((1, 2, 5)))]
        verb = chance.choice(("uniform", "normal"))
        if batched:
            async with dev.batch() as batch:
                for name in names:
                    getattr(batch.random, verb)(out=outs[name], generator=generator)
        else:
            for name in names:
                await getattr(generator, verb)(out=outs[name])
        rights = [shadow.draw(f"{verb}_{name}", COUNT, *((0.0, 1.0) if verb == "normal" else ())) for name in names]
        assert_drawn(await outs[names[-1]].to_host(), rights[-1], f"{verb} {names}")
        if turn % 3 == 0:
            assert generator._state.place == shadow.place


def test_a_step_of_another_ordering_or_behind_the_end_is_none() -> None:
    place = Place("philox", "default", 0, 1)
    assert step(place, "words", 7)(place._replace(ordering="legacy"), BOUNDS) is None
    for offset, reached in (((1 << 64) - 8, (1 << 64) - 1), ((1 << 64) - 7, None)):
        found = step(place, "words", 7)(place._replace(offset=offset), BOUNDS)
        assert (None if found is None else found.offset) == reached
    assert step(place, "uniform64", 7)(place._replace(offset=(1 << 64) - 8), BOUNDS) is None


async def test_a_state_of_other_dimensions_is_gone_on_from(dev: Any) -> None:
    """The same draw moves it by another number of points, or is refused."""
    one, two = dev.random.generator("sobol32"), dev.random.generator("sobol32", dims=2)
    for _ in range(2):
        await one.uniform(size=6)
    one.seek(two.state)
    for _ in range(3):
        np.testing.assert_array_equal(
            await (await one.uniform(size=6)).to_host(), await (await two.uniform(size=6)).to_host()
        )
    assert one.state == two.state
    one.seek(dev.random.generator("sobol32", dims=4).state)
    with pytest.raises(InvalidArgument):
        await one.uniform(size=6)


async def test_the_end_of_the_sequence_is_refused_by_a_repetition_too(dev: Any) -> None:
    generator = dev.random.generator(seed=5)
    await generator.bits(20)
    generator.seek({**generator.state, "offset": (1 << 64) - 30})
    await generator.bits(20)
    before = generator.state
    with pytest.raises(InvalidArgument, match="end of its sequence"):
        await generator.bits(20)
    assert generator.state == before


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.sim_only
@pytest.mark.parametrize("batched", [False, True])
async def test_a_repetition_that_fails_says_where_it_began_and_the_next_one_is_right(dev: Any, batched: bool) -> None:
    generator, shadow = new(dev)
    out = dev.empty(COUNT, np.float32)
    await generator.uniform(out=out)
    async with dev.batch() as batch:
        batch.random.uniform(out=out, generator=generator)
    for _ in range(2):
        shadow.draw("uniform_float32", COUNT)
    before = generator.state
    inject(dev, "curandGenerateUniform", ReturnStatus(102))

    async def draw() -> None:
        if batched:
            async with dev.batch() as batch:
                batch.random.uniform(out=out, generator=generator)
        else:
            await generator.uniform(out=out)

    with pytest.raises(OutOfDeviceMemory, match="curandGenerateUniform") as failed:
        await draw()
    assert failed.value.position == before
    right = shadow.draw("uniform_float32", COUNT)
    assert_drawn(await (await generator.uniform(out=out)).to_host(), shadow.draw("uniform_float32", COUNT), "uniform")
    generator.seek(before)
    assert_drawn(await (await generator.uniform(out=out)).to_host(), right, "uniform_float32")


@pytest.mark.sim_only
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("given", [False, True])
async def test_an_own_kernel_that_is_refused_says_where_it_began(dev: Any, batched: bool, given: bool) -> None:
    await dev.random.load("integers")
    generator, other = dev.random.generator(seed=5), dev.random.generator(seed=5)
    size: dict[str, Any] = {"out": dev.empty(COUNT, np.int64)} if given else {"size": COUNT}
    whole = (await (await other.integers(0, 1000, 5 * COUNT)).to_host()).reshape(5, COUNT)

    async def draw() -> None:
        if batched:
            async with dev.batch() as batch:
                batch.random.integers(0, 1000, generator=generator, **size)
        else:
            await generator.integers(0, 1000, **size)

    for _ in range(3):
        await draw()
    before = generator.state
    inject(dev, "cuLaunchKernel", ReturnStatus(1))
    with pytest.raises(CommandFailed, match="cuLaunchKernel") as failed:
        await draw()
    assert failed.value.position == before
    assert failed.value.operation == "random.integers"
    np.testing.assert_array_equal(await (await generator.integers(0, 1000, **size)).to_host(), whole[4])


@pytest.mark.parametrize("given", [False, True])
async def test_own_kernels_that_are_lost_say_where_the_first_began(open_test_device: Any, given: bool) -> None:
    with trio.fail_after(60):
        async with open_test_device(restart_policy=RestartPolicy(intensity=100)) as dev:
            await dev.random.load("integers")
            generator = dev.random.generator(seed=5)
            size: dict[str, Any] = {"out": dev.empty(COUNT, np.int64)} if given else {"size": COUNT}
            async with dev.batch() as batch:
                for _ in range(2):
                    batch.random.integers(0, 1000, generator=generator, **size)
            before = generator.state

            async def draw() -> None:
                async with gated(dev), dev.batch() as batch:
                    for _ in range(3):
                        batch.random.integers(0, 1000, generator=generator, **size)
                    kill_worker(dev)

            with pytest.raises(ContextLost) as lost:
                await draw()
            assert lost.value.position == before
            if given:
                assert size["out"].state == "torn"


@pytest.mark.sim_only
async def test_repetitions_behind_one_that_fails_are_right_or_fail_too(dev: Any) -> None:
    generator, shadow = new(dev)
    outs = [dev.zeros(COUNT, np.float32) for _ in range(5)]
    for out in outs:
        await generator.uniform(out=out)
        shadow.draw("uniform_float32", COUNT)
        await out.fill(0)
    inject(dev, "curandGenerateUniform", ReturnStatus(102), call=2)

    async def draw() -> None:
        async with dev.batch() as batch:
            for out in outs:
                batch.random.uniform(out=out, generator=generator)

    with pytest.raises(OutOfDeviceMemory):
        await draw()
    rights = [shadow.draw("uniform_float32", COUNT) for _ in outs]
    np.testing.assert_array_equal(await outs[0].to_host(), rights[0])
    for out, right in zip(outs[1:], rights[1:], strict=True):
        found = await out.to_host()
        assert not found.any() or (found == right).all()
    assert_drawn(await (await generator.uniform(out=outs[0])).to_host(), shadow.draw("uniform_float32", COUNT), "")


@pytest.mark.parametrize("batched", [False, True])
async def test_repetitions_that_are_lost_say_where_the_first_began(open_test_device: Any, batched: bool) -> None:
    with trio.fail_after(60):
        async with open_test_device(restart_policy=RestartPolicy(intensity=100)) as dev:
            generator, shadow = new(dev)
            out = dev.empty(COUNT, np.float32)
            await generator.uniform(out=out)
            async with dev.batch() as batch:
                batch.random.uniform(out=out, generator=generator)
            for _ in range(2):
                shadow.draw("uniform_float32", COUNT)
            before = generator.state

            async def draw() -> None:
                if batched:
                    async with dev.batch() as batch:
                        for _ in range(3):
                            batch.random.uniform(out=out, generator=generator)
                        kill_worker(dev)
                else:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(kill_when_drawn)
                        await generator.uniform(out=out)

            async def kill_when_drawn() -> None:
                while generator.state == before:
                    await trio.lowlevel.checkpoint()
                kill_worker(dev)

            caught: list[ContextLost] = []
            async with gated(dev):
                try:
                    await draw()
                except* ContextLost as group:
                    caught += [each for each in _leaves(group) if isinstance(each, ContextLost)]
            assert [each.position for each in caught] == [before]
            rights = [shadow.draw("uniform_float32", COUNT) for _ in range(3 if batched else 1)]
            found = await (await generator.uniform(size=COUNT, dtype="float32")).to_host()
            assert_drawn(found, shadow.draw("uniform_float32", COUNT), "uniform_float32")
            generator.seek(before)
            for right in rights:
                again = await (await generator.uniform(size=COUNT, dtype="float32")).to_host()
                assert_drawn(again, right, "uniform_float32")


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]


async def test_a_cancelled_repetition_keeps_its_numbers(dev: Any) -> None:
    generator, shadow = new(dev)
    out = dev.empty(COUNT, np.float32)
    await generator.uniform(out=out)
    shadow.draw("uniform_float32", COUNT)
    async with gated(dev) as gate:
        with trio.move_on_after(0):
            await generator.uniform(out=out)
        assert generator._state.place == shadow.place, "it was cancelled before it began"
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_uniform, generator, out)
                while generator._state.place == shadow.place:
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        await gate.open()
    shadow.draw("uniform_float32", COUNT)
    assert_drawn(await (await generator.uniform(out=out)).to_host(), shadow.draw("uniform_float32", COUNT), "")


async def _uniform(generator: Any, out: Any) -> None:
    await generator.uniform(out=out)


async def test_the_oldest_draws_are_forgotten(dev: Any) -> None:
    generator, shadow = new(dev)
    for count in range(2, 2 + 70):
        await generator.bits(count)
        shadow.draw("bits_uint32", count)
    assert len(generator._known) == 64
    found = await (await generator.bits(COUNT)).to_host()
    assert_drawn(found, shadow.draw("bits_uint32", COUNT), "bits_uint32")
