"""Generators of random numbers: the numbers of the library, whatever the kind, the form, the dtype and the layout."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import InvalidArgument, RandomGenerator
from atomr_trio._calls import batch_sender
from atomr_trio._calls.known import KnownCalls
from atomr_trio._device.device import core_of
from atomr_trio._wire.protocol import LANE_COMPUTE, UNSIGNED, VERB_NUMBERS
from atomr_trio._wire.ring import NUMBERED_HEADER, SLOT_MASK, SLOT_SHIFT
from atomr_trio.libraries.random.positions import KINDS, Bounds
from atomr_trio.libraries.random.records import RANDOM
from support import set_constant
from support.linear import FORMS, ask
from support.random_host import Shadow, assert_drawn

pytestmark = pytest.mark.used_workers

QUICK = [kind for kind in KINDS if kind != "mt19937"]
"""mt19937 takes five seconds to begin on the host."""
FAST = ("philox", "xorwow", "mtgp32", "sobol64")
LAID_OUT = ("philox", "xorwow", "sobol64")


def functions_of(kind: str) -> dict[str, tuple[str, dict[str, Any], tuple[float, ...]]]:
    """The functions of the library with a call of a verb and the parameters that come to the same."""
    bits = "uint64" if KINDS[kind].is_quasi and KINDS[kind].bits == 64 else "uint32"
    return {
        f"bits_{bits}": ("bits", {"dtype": bits}, ()),
        "uniform_float32": ("uniform", {"dtype": "float32"}, ()),
        "uniform_float64": ("uniform", {}, ()),
        "normal_float32": ("normal", {"dtype": "float32", "loc": 3.0, "scale": 0.5}, (3.0, 0.5)),
        "normal_float64": ("normal", {"loc": -1}, (-1.0, 1.0)),
        "lognormal_float32": ("lognormal", {"dtype": np.float32, "sigma": 0.25}, (0.0, 0.25)),
        "lognormal_float64": ("lognormal", {"mean": 0.5}, (0.5, 1.0)),
        "poisson_uint32": ("poisson", {"lam": 7.5, "dtype": "uint32"}, (7.5,)),
    }


@pytest.mark.parametrize(
    ("kind", "batched"),
    [
        pytest.param(
            kind, batched, id=f"{kind}-{form}", marks=pytest.mark.sweep if batched and kind not in FAST else []
        )
        for kind in QUICK
        if kind != "mrg32k3a"
        for form, batched in FORMS.items()
    ],
)
async def test_the_numbers_are_those_of_the_library(dev: Any, kind: str, batched: bool) -> None:
    seed = {} if KINDS[kind].is_quasi else {"seed": 77}
    generator = dev.random.generator(kind, **seed, dims=1)
    shadow = Shadow(generator)
    for name, (verb, keywords, parameters) in functions_of(kind).items():
        for count in (1, 1000):
            result = await ask(dev, batched, f"random.{verb}", size=count, generator=generator, **keywords)
            right = shadow.draw(name, count, *parameters)
            assert (result.shape, result.dtype) == ((count,), right.dtype)
            assert_drawn(await result.to_host(), right, f"{name} {kind}")
    assert generator._state.place == shadow.place


@pytest.mark.parametrize("kind", ["xorwow", "mrg32k3a"])
async def test_a_generator_has_the_verbs_itself(dev: Any, kind: str) -> None:
    generator = dev.random.generator(kind, 5, ordering="legacy", offset=1 << 40)
    shadow = Shadow(generator)
    for name, (verb, keywords, parameters) in functions_of(kind).items():
        result = await getattr(generator, verb)(size=(3, 5), **keywords)
        assert_drawn(await result.to_host(), shadow.draw(name, 15, *parameters).reshape(3, 5), name)


@pytest.mark.parametrize("kind", ["philox", "mtgp32"])
async def test_64_bits_are_two_words_of_a_pseudo_kind(dev: Any, kind: str) -> None:
    generator = dev.random.generator(kind, 1)
    shadow = Shadow(generator)
    result = await generator.bits((2, 3), "uint64")
    np.testing.assert_array_equal(await result.to_host(), shadow.draw("bits_uint32", 12).view(np.uint64).reshape(2, 3))


async def test_quasi_numbers_come_dimension_by_dimension(dev: Any) -> None:
    """The points are those of ``scipy.stats.qmc.Sobol(3, scramble=False)``."""
    points = [
        [0.0, 0.5, 0.75, 0.25, 0.375, 0.875, 0.625, 0.125],
        [0.0, 0.5, 0.25, 0.75, 0.375, 0.875, 0.125, 0.625],
        [0.0, 0.5, 0.25, 0.75, 0.625, 0.125, 0.875, 0.375],
    ]
    generator = dev.random.generator("sobol32", dims=3)
    first, second = await generator.uniform(size=(3, 5)), await generator.uniform(size=(3, 3))
    found = np.concatenate([await first.to_host(), await second.to_host()], axis=1)
    np.testing.assert_allclose(found, points, rtol=0, atol=2.0**-32)
    assert generator.state["offset"] == 8


async def test_without_a_size_there_is_one_number(dev: Any) -> None:
    generator = dev.random.generator(seed=1)
    shadow = Shadow(generator)
    result = await generator.normal()
    assert result.shape == ()
    assert_drawn(await result.to_host(), shadow.draw("normal_float64", 1)[0], "normal_float64")


async def test_nothing_is_drawn_for_an_empty_array(dev: Any) -> None:
    generator = dev.random.generator(seed=1)
    before = generator.state
    for result in (await generator.normal(size=(3, 0)), await generator.gamma(2.0, size=0)):
        assert not result.size
    assert generator.state == before


async def test_uniform_numbers_of_another_interval_are_those_of_the_first_one_scaled(dev: Any) -> None:
    generator = dev.random.generator(seed=1)
    for dtype in ("float32", "float64"):
        shadow = Shadow(generator)
        found = await (await generator.uniform(-2, 7.5, 1001, dtype=dtype)).to_host()
        plain = shadow.draw(f"uniform_{dtype}", 1001).astype(np.longdouble)
        right = (plain * np.longdouble(9.5) - 2).astype(dtype)
        np.testing.assert_array_equal(found, right)
    for low, high in ((1.0, 1.0 + 2.0**-23), (1e8, 1e8 + 8), (-0.1, 0.3)):
        found = await (await generator.uniform(low, high, 1000, dtype="float32")).to_host()
        assert found.min() >= np.float32(low)
        assert found.max() <= np.float32(high)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
async def test_halves_are_rounded_from_float32(dev: Any, dtype: str) -> None:
    narrow: Any = np.float16 if dtype == "float16" else pytest.importorskip("ml_dtypes").bfloat16
    generator = dev.random.generator(seed=1)
    shadow = Shadow(generator)
    for verb, parameters in (("normal", (0.0, 1.0)), ("uniform", ()), ("lognormal", (0.0, 1.0))):
        found = await (await getattr(generator, verb)(size=777, dtype=dtype)).to_host()
        right = shadow.draw(f"{verb}_float32", 777, *parameters)
        np.testing.assert_allclose(
            found.astype(np.float64), right.astype(narrow).astype(np.float64), rtol=0 if verb == "uniform" else 0.01
        )
    scaled = await (await generator.uniform(1, 3, size=(7, 11), dtype=dtype)).to_host()
    right = (shadow.draw("uniform_float32", 77) * np.float32(2) + np.float32(1)).astype(narrow).reshape(7, 11)
    np.testing.assert_array_equal(scaled, right)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint64", "uint32"])
async def test_poisson_numbers_come_in_integers(dev: Any, dtype: str) -> None:
    generator = dev.random.generator(seed=1)
    shadow = Shadow(generator)
    for lam in (3.0, 399_999.0):
        found = await (await generator.poisson(lam, 777, dtype=dtype)).to_host()
        assert found.dtype == dtype
        right = shadow.draw("poisson_uint32", 777, lam)
        np.testing.assert_allclose(found.astype(np.float64), right, atol=0 if lam == 3.0 else 1)


LAYOUTS = {
    "contiguous": ((4, 6), lambda x: x),
    "reversed": ((4, 6), lambda x: x[::-1]),
    "every second": ((8, 12), lambda x: x[::2, ::2]),
    "transposed": ((6, 4), lambda x: x.T),
    "misaligned": ((25,), lambda x: x[1:].reshape(4, 6)),
    "of nine axes": ((4, 12, 1, 1, 1, 1, 1, 1, 1), lambda x: x[:, ::2]),
}
FEW_LAYOUTS = ("contiguous", "every second", "misaligned")


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, layout, marks=[] if kind == "xorwow" or layout in FEW_LAYOUTS else pytest.mark.sweep)
        for kind in LAID_OUT
        for layout in LAYOUTS
    ],
)
async def test_numbers_go_to_arrays_of_any_layout_and_nowhere_else(dev: Any, kind: str, layout: str) -> None:
    shape, view = LAYOUTS[layout]
    generator = dev.random.generator(kind, *([] if KINDS[kind].is_quasi else [5]))
    shadow = Shadow(generator)
    calls = [*functions_of(kind).items(), ("poisson_uint32", ("poisson", {"dtype": "int64"}, (1.0,)))]
    for name, (verb, keywords, parameters) in calls:
        right = shadow.draw(name, 24, *parameters)
        dtype = np.dtype(keywords.get("dtype", "float64"))
        array = dev.full(shape, 99, dtype)
        out = view(array)
        assert await getattr(generator, verb)(out=out, **(keywords | {"dtype": None})) is out
        model = np.full(shape, 99, dtype)
        view(model)[...] = right.reshape(view(model).shape)
        assert_drawn(await array.to_host(), model, f"{name} {kind}")
    assert generator._state.place == shadow.place


async def test_a_result_that_is_converted_goes_to_arrays_of_any_layout(dev: Any) -> None:
    generator = dev.random.generator(seed=5)
    for low, high, dtype in ((0.0, 1.0, "float16"), (2.0, 3.0, "float16"), (2.0, 3.0, "float64")):
        plain = generator.state
        right = await (await generator.uniform(low, high, (4, 6), dtype=dtype)).to_host()
        generator.seek(plain)
        array = dev.zeros((8, 12), dtype)
        await generator.uniform(low, high, out=array[::-2, ::2])
        np.testing.assert_array_equal((await array.to_host())[::-2, ::2], right)
        assert np.count_nonzero(await array.to_host()) == 24


# --- states -----------------------------------------------------------------------------------------------------------


async def test_a_generator_says_what_it_is_and_cannot_be_made_or_copied_by_hand(dev: Any) -> None:
    generator = dev.random.generator("mrg32k3a", 9, ordering="legacy")
    assert (generator.kind, generator.seed, generator.ordering, generator.dims) == ("mrg32k3a", 9, "legacy", 1)
    assert repr(generator) == "<RandomGenerator mrg32k3a of seed 9 on device 0>"
    quasi = dev.random.generator("sobol32", dims=4)
    assert (quasi.seed, quasi.dims) == (0, 4)
    assert repr(quasi) == "<RandomGenerator sobol32 of 4 dimensions on device 0>"
    with pytest.raises(TypeError, match="no public constructor"):
        RandomGenerator()
    with pytest.raises(TypeError, match="belongs to its device"):
        copy.copy(generator)


async def test_a_seed_that_is_not_given_is_new_each_time_and_can_be_read(dev: Any) -> None:
    seeds = {dev.random.generator().seed for _ in range(4)}
    assert len(seeds) == 4
    generator = dev.random.generator()
    again = dev.random.generator(seed=generator.seed)
    first, second = await generator.bits(4), await again.bits(4)
    np.testing.assert_array_equal(await first.to_host(), await second.to_host())


@pytest.mark.parametrize("kind", FAST)
async def test_a_state_is_plain_data_with_which_another_device_goes_on(
    dev: Any, open_test_device: Any, kind: str
) -> None:
    generator = dev.random.generator(kind, *([] if KINDS[kind].is_quasi else [5]))
    shadow = Shadow(generator)
    await generator.uniform(size=777)
    shadow.draw("uniform_float64", 777)
    await generator.normal(size=10, dtype="float32")
    shadow.draw("normal_float32", 10)
    content = pickle.dumps(generator.state)
    assert b"atomr" not in content
    async with open_test_device() as other:
        there = other.random.generator(kind)
        there.seek(pickle.loads(content))
        for name, verb in (("uniform_float64", "uniform"), ("normal_float64", "normal")):
            right = shadow.draw(name, 100)
            for each in (generator, there):
                assert_drawn(await (await getattr(each, verb)(size=100)).to_host(), right, f"{name} {kind}")
        assert there.state == generator.state


async def test_a_draw_is_repeated_from_the_state_before_it(dev: Any) -> None:
    generator = dev.random.generator(seed=5)
    await generator.uniform(size=1001)
    for verb, arguments in (("normal", (1.0, 2.0)), ("gamma", (2.0,)), ("poisson", (5000.0,)), ("integers", (10,))):
        before = generator.state
        results = []
        for _ in range(2):
            generator.seek(before)
            results.append(await (await getattr(generator, verb)(*arguments, size=101)).to_host())
        np.testing.assert_array_equal(*results)
        after = generator.state
        assert after != before


async def test_children_are_numbered_and_differ_from_each_other(dev: Any) -> None:
    generator = dev.random.generator(seed=5)
    start = generator.state
    first, second = generator.spawn(2), generator.spawn(1)
    generator.seek(start)
    again = generator.spawn(3)
    assert [each.seed for each in (*first, *second)] == [each.seed for each in again]
    assert len({generator.seed, *(each.seed for each in again)}) == 4
    sequence = np.random.SeedSequence(5, spawn_key=(2,))
    assert again[2].seed == int(sequence.generate_state(1, np.uint64)[0])
    assert generator.spawn(0) == []


async def test_the_generator_of_the_device_begins_with_a_seed(dev: Any) -> None:
    dev.random.seed(42)
    shadow = Shadow(dev.random.generator(seed=42))
    for name, (verb, keywords, parameters) in functions_of("philox").items():
        result = await getattr(dev.random, verb)(size=9, **keywords)
        assert_drawn(await result.to_host(), shadow.draw(name, 9, *parameters), name)
    held = dev.random.default_generator
    dev.random.seed(42)
    assert dev.random.default_generator is held
    assert_drawn(await (await held.bits(5)).to_host(), Shadow(dev.random.generator(seed=42)).draw("bits_uint32", 5), "")
    dev.random.seed()
    assert dev.random.default_generator.seed != 42


# --- order ------------------------------------------------------------------------------------------------------------


async def test_the_same_call_gives_other_numbers_each_time(dev: Any) -> None:
    generator = dev.random.generator(seed=5)
    known = core_of(dev).part(KnownCalls)._calls
    before = dict(known)
    out, gammas = dev.zeros(16, "float32"), dev.zeros(16, "float64")
    seen: list[bytes] = []
    for _ in range(4):
        await dev.random.uniform(out=out, generator=generator)
        await dev.random.gamma(2.0, out=gammas, generator=generator)
        seen += [(await out.to_host()).tobytes(), (await gammas.to_host()).tobytes()]
    assert len(set(seen)) == 8
    assert known == before


async def test_two_tasks_that_share_a_generator_get_numbers_of_their_own(dev: Any) -> None:
    generator = dev.random.generator(seed=5)
    shadow = Shadow(generator)
    found: list[np.ndarray[Any, Any]] = []

    async def draw() -> None:
        found.extend([await (await generator.bits(10)).to_host() for _ in range(10)])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(draw)
        nursery.start_soon(draw)
    right = shadow.draw("bits_uint32", 200).reshape(20, 10)
    assert sorted(map(bytes, found)) == sorted(map(bytes, right))


async def test_draws_of_a_batch_are_in_the_order_of_the_calls_on_any_lane(dev: Any) -> None:
    generator = dev.random.generator("xorwow", 5)
    shadow = Shadow(generator)
    async with dev.lane() as lane:
        x = dev.zeros(6, "float64")
        async with dev.batch(lane=lane) as batch:
            batch.fill(x, 3.0)
            batch.random.uniform(out=x, generator=generator)
            y = batch.random.normal(size=3, generator=generator)
            z = batch.random.uniform(size=2, generator=generator)
            copied = batch.to_host(x)
        right = [shadow.draw("uniform_float64", 6), shadow.draw("normal_float64", 3), shadow.draw("uniform_float64", 2)]
        for found, each in zip((copied, await y.to_host(), await z.to_host()), right, strict=True):
            assert_drawn(found, each, "normal")


async def test_a_draw_that_a_full_batch_refuses_does_not_move_the_generator(
    dev: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_constant(monkeypatch, batch_sender, "BATCH_LIMIT", 8)
    generator = dev.random.generator(seed=5)
    shadow, out, refused, seen = Shadow(generator), dev.zeros(3, "float64"), 0, []
    async with dev.batch() as batch:
        while not refused:
            before = generator.state
            try:
                seen.append(batch.random.uniform(size=3, generator=generator))
            except trio.WouldBlock:
                refused += 1
                assert generator.state == before
        await batch.flush()
        batch.random.uniform(out=out, generator=generator)
    right = shadow.draw("uniform_float64", 3 * len(seen) + 3).reshape(-1, 3)
    np.testing.assert_array_equal(await seen[-1].to_host(), right[-2])
    np.testing.assert_array_equal(await out.to_host(), right[-1])


# --- long records -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["xorwow", "philox"])
async def test_a_long_record_is_ended_by_a_new_round(dev: Any, kind: str) -> None:
    generator = dev.random.generator(kind, 5)
    generator._bounds = Bounds(3, 1000)
    shadow, longest, rounds = Shadow(generator), 0, set()
    calls = functions_of(kind)
    for name in ("uniform_float64", "bits_uint32", "normal_float64", "uniform_float64") * 4 + ("uniform_float64",) * 4:
        verb, keywords, parameters = calls[name]
        result = await getattr(generator, verb)(size=302, **keywords)
        assert_drawn(await result.to_host(), shadow.draw(name, 302, *parameters), name)
        longest = max(longest, len(generator.state["record"]))
        assert sum(numbers for _, numbers, _ in generator.state["record"]) <= 1000
        rounds.add(generator.state["offset"])
    assert generator._state.place == shadow.place
    assert longest > 1
    assert len(rounds) > 2


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.sim_only
async def test_another_mean_of_poisson_numbers_blocks_no_other_lane(dev: Any) -> None:
    """The library makes a table and waits for the stream: not in the thread that serves all lanes.

    A draw of the same mean goes the short way, past `publish`.
    """
    generator = dev.random.generator(seed=5)
    shadow = Shadow(generator)
    core, verbs = core_of(dev), []
    publish = core.current.publish

    def noting(lane: int, verb: Any, *rest: Any, **more: Any) -> Any:
        verbs.append(verb.name)
        return publish(lane, verb, *rest, **more)

    core.current.publish = noting
    try:
        for lam in (3.0, 3.0, 4.0, 4.0, 3.0):
            found = await (await generator.poisson(lam, 5, dtype="uint32")).to_host()
            np.testing.assert_array_equal(found, shadow.draw("poisson_uint32", 5, lam))
    finally:
        core.current.publish = publish
    assert [name for name in verbs if "execute" in name] == ["first_execute"] * 3


async def test_the_end_of_a_sequence_is_refused(dev: Any) -> None:
    last = dev.random.generator(seed=5, offset=(1 << 64) - 10)
    before = last.state
    with pytest.raises(InvalidArgument, match="has come to the end of its sequence"):
        await last.bits(20)
    with pytest.raises(InvalidArgument, match="has come to the end of its numbers for gamma"):
        await last.gamma(2.0, size=20)
    assert last.state == before
    await last.bits(5)
    quasi = dev.random.generator("sobol32", offset=(1 << 32) - 10)
    with pytest.raises(InvalidArgument, match="has come to the end"):
        await quasi.uniform(size=20)
    await quasi.uniform(size=10)


async def test_draws_of_a_batch_share_tickets_on_its_own_lane_alone(dev):
    """The end of a batch signs its lane. Another lane would be signed when nothing is sent any more, and not before."""
    generator, x = dev.random.generator("philox", 1), dev.zeros(8, np.float32)
    await generator.normal(out=x)
    sender, execute = core_of(dev).current.sender, RANDOM.execute
    before = sender.sent
    async with dev.lane() as lane:
        for used in (None, lane):
            async with dev.batch(lane=used) as batch:
                for _ in range(2):
                    batch.random.normal(out=x, generator=generator)
            await generator.normal(out=x)
    flags = []
    for number in range(before, sender.sent):
        _, _, on, engine, verb, *_ = NUMBERED_HEADER.unpack_from(sender.ring.slots, (number & SLOT_MASK) << SLOT_SHIFT)
        if (engine, verb & VERB_NUMBERS) == (execute.engine_number, execute.number):
            flags.append((on, bool(verb & UNSIGNED)))
    shared, alone = (LANE_COMPUTE, True), (LANE_COMPUTE, False)
    assert flags == [shared, shared, alone, alone, alone, alone]
