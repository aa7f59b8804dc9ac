"""What is refused of generators and their verbs: nothing is sent, and no generator moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atomr_trio import DeviceClosed, InvalidArgument
from atomr_trio._calls import verbs
from support import set_constant
from support.blas import submitted
from support.linear import FORMS, find

pytestmark = pytest.mark.used_workers


def refuse(what: Callable[[], Any], match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        what()


GENERATORS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown kind": ({"kind": "pcg64"}, "kind is one of xorwow, mrg32k3a, philox, mtgp32, mt19937, sobol32"),
    "a kind that is none": ({"kind": None}, "kind is one of"),
    "a seed below 0": ({"seed": -1}, "seed is at least 0 and less than 18,446,744,073,709,551,616, not -1"),
    "a seed that is too large": ({"seed": 1 << 64}, "seed is at least 0"),
    "a seed that is none": ({"seed": 1.5}, "seed is an integer, not 1.5"),
    "a seed of a quasi kind": ({"kind": "sobol32", "seed": 0}, "sobol32 has no seed"),
    "an offset below 0": ({"offset": -1}, "offset of philox is at least 0"),
    "an offset that is too large": ({"offset": 1 << 64}, "offset of philox is at least 0 and less than"),
    "an offset behind the points": ({"kind": "sobol32", "offset": (1 << 32) + 1}, "offset of sobol32"),
    "an offset of a Mersenne twister": ({"kind": "mtgp32", "offset": 1}, "offset of mtgp32 is at least 0 and less tha"),
    "dimensions of a pseudo kind": ({"dims": 2}, "dims of philox is at least 1 and less than 2"),
    "no dimensions": ({"kind": "sobol64", "dims": 0}, "dims of sobol64 is at least 1"),
    "too many dimensions": ({"kind": "sobol64", "dims": 20_001}, "less than 20,001, not 20001"),
    "an unknown ordering": ({"ordering": "odd"}, "orderings of philox are default, best, legacy, not 'odd'"),
    "an ordering of another kind": ({"ordering": "seeded"}, "orderings of philox are default, best, legacy"),
    "an ordering that depends on the GPU": ({"ordering": "dynamic"}, "the numbers of dynamic depend on the GPU"),
    "an ordering of a quasi kind": ({"kind": "sobol32", "ordering": "legacy"}, "orderings of sobol32 are default,"),
}


@pytest.mark.parametrize("case", GENERATORS)
async def test_a_generator_that_cannot_be_is_refused(dev: Any, case: str) -> None:
    keywords, match = GENERATORS[case]
    before = submitted(dev)
    refuse(lambda: dev.random.generator(**keywords), match)
    assert submitted(dev) == before


NAN, INF = math.nan, math.inf
CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a lambda of 0": ("poisson", {"lam": 0}, "lam is above 0 and at most 400,000, not 0"),
    "a lambda below 0": ("poisson", {"lam": -1.0}, "lam is above 0"),
    "a lambda that is too large": ("poisson", {"lam": 400_001}, "lam is above 0 and at most 400,000"),
    "a lambda that is NaN": ("poisson", {"lam": NAN}, "lam is a finite number, not nan"),
    "a mean that is NaN": ("normal", {"loc": NAN}, "loc is a finite number"),
    "a mean without end": ("normal", {"loc": -INF}, "loc is a finite number"),
    "a mean that is too large": (
        "normal",
        {"loc": 1e39, "dtype": "float32"},
        "loc is 1e.39, which float32 cannot hold",
    ),
    "a deviation that is NaN": ("normal", {"scale": NAN}, "scale is a finite number"),
    "a deviation below 0": ("normal", {"scale": -0.5}, "scale is at least 0, not -0.5"),
    "a deviation of logarithms below 0": ("lognormal", {"sigma": -0.5}, "sigma is at least 0, not -0.5"),
    "a mean of logarithms that is NaN": ("lognormal", {"mean": NAN}, "mean is a finite number"),
    "a mean by name": ("normal", {"loc": "1"}, "loc is a number, not '1'"),
    "a truth": ("normal", {"loc": True}, "loc is a number, not True"),
    "a complex number": ("normal", {"loc": 1j}, "loc is a number"),
    "a number that no float holds": ("normal", {"loc": 10**400}, "loc is a finite number"),
    "an array of the host": ("normal", {"loc": np.zeros(3)}, "loc is a number, and no array"),
    "an interval that falls": ("uniform", {"low": 1, "high": 0}, "low is at most high: 1 and 0"),
    "an end that is NaN": ("uniform", {"high": NAN}, "high is a finite number"),
    "an interval that is too large": (
        "uniform",
        {"low": -1e308, "high": 1e308},
        "the difference of high and low is inf",
    ),
    "a dtype that is none": ("normal", {"dtype": "f3"}, "not a numpy dtype"),
    "integers that are normal": ("normal", {"dtype": "int32"}, "dtype is one of float64, float32, float16, bfloat16, "),
    "counts that are floats": ("poisson", {"dtype": "float32"}, "dtype is one of int64, int32, uint64, uint32, not fl"),
    "bits with a sign": ("bits", {"dtype": "int32"}, "dtype is one of uint32, uint64, not int32"),
    "a size below 0": ("uniform", {"size": -1}, "lengths of a shape are at least 0"),
    "a size that is none": ("uniform", {"size": 1.5}, "a shape is an int or a sequence of ints"),
    "an out that is none": ("uniform", {"size": None, "out": np.zeros(3)}, "out is an array on the device"),
    "a generator that is none": ("uniform", {"generator": np.random.default_rng(1)}, "generator is made by"),
    "an empty interval of integers": ("integers", {"low": 3, "high": 3}, "."),
    "a shape below 0": ("gamma", {"shape": -1.0}, "shape"),
    "probabilities that are not 1 together": ("discrete", {"pvals": [0.5, 0.4]}, "pvals"),
    "a probability above 1": ("bernoulli", {"p": 1.5}, "p "),
    "a scale that is NaN": ("exponential", {"scale": NAN}, "scale"),
}


@pytest.mark.parametrize("batched", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("case", CALLS)
async def test_a_draw_that_cannot_be_is_refused(dev: Any, case: str, batched: bool) -> None:
    verb, keywords, match = CALLS[case]
    generator = dev.random.generator(seed=1)
    given = {"size": 4, "generator": generator, **keywords}
    before, state = submitted(dev), generator.state
    if batched:
        async with dev.batch() as batch:
            refuse(lambda: find(batch, f"random.{verb}")(**given), match)
    else:
        with pytest.raises(InvalidArgument, match=match):
            await find(dev, f"random.{verb}")(**given)
    assert (submitted(dev), generator.state) == (before, state)


@pytest.mark.parametrize("verb", ["uniform", "gamma"])
async def test_an_out_that_does_not_fit_is_refused(dev: Any, open_test_device: Any, verb: str) -> None:
    generator = dev.random.generator(seed=1)
    arguments = {"shape": 2.0} if verb == "gamma" else {}
    out, freed = dev.zeros((3, 4)), dev.zeros(3)
    freed.free()
    async with open_test_device() as other:
        foreign = other.random.generator(seed=1)
        before, state = submitted(dev), generator.state
        for keywords, match in (
            ({"out": out, "size": 12}, "out has shape .3, 4."),
            ({"out": out, "size": (4, 3)}, "out has shape .3, 4."),
            ({"out": out, "dtype": "float32"}, "out has "),
            ({"out": dev.zeros(3, "int16")}, "int16"),
            ({"out": freed}, "was freed"),
            ({"out": other.zeros(3)}, "another device"),
            ({"size": 3, "generator": foreign}, "belongs to another device"),
        ):
            with pytest.raises(InvalidArgument, match=match):
                await getattr(dev.random, verb)(**{"generator": generator, **arguments, **keywords})
        assert (submitted(dev)[0], generator.state) == (before[0], state)


async def test_an_out_of_too_many_pieces_is_refused(dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    set_constant(monkeypatch, verbs, "_MOST_BOXES", 4)
    generator = dev.random.generator(seed=1)
    out = dev.zeros((3,) * 9, "float32")[(slice(None, None, 2),) * 9]
    before, state = submitted(dev), generator.state
    for low in (0.0, 2.0):
        with pytest.raises(InvalidArgument, match="too many pieces"):
            await generator.uniform(low, 3.0, out=out)
    assert (submitted(dev), generator.state) == (before, state)


async def test_quasi_kinds_give_multiples_of_their_dimensions_and_what_the_library_has(dev: Any) -> None:
    three = dev.random.generator("sobol32", dims=3)
    before, state = submitted(dev), three.state
    for verb, keywords, match in (
        ("uniform", {"size": 4}, "sobol32 of 3 dimensions gives multiples of 3 numbers, not 4"),
        ("bits", {"size": 3, "dtype": "uint64"}, "dtype is one of uint32, not uint64"),
        ("gamma", {"shape": 1.0, "size": 3}, "gamma is not there for sobol32"),
        ("integers", {"low": 5, "size": 3}, "integers is not there for sobol32"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            await getattr(three, verb)(**keywords)
    wide = dev.random.generator("scrambled_sobol64")
    with pytest.raises(InvalidArgument, match="dtype is one of uint64, not uint32"):
        await wide.bits(3, "uint32")
    refuse(lambda: three.spawn(2), "sobol32 has no seed")
    assert (submitted(dev), three.state) == (before, state)


async def test_a_state_that_is_none_is_refused(dev: Any) -> None:
    generator = dev.random.generator(seed=1)
    await generator.uniform(size=5)
    good = generator.state
    for wrong, match in (
        (None, "a state is what the state of a generator was"),
        ({}, "a state is what"),
        ({**good, "more": 1}, "a state is what"),
        ({**good, "kind": "pcg64"}, "kind is one of"),
        ({**good, "kind": "xorwow"}, "the state is of xorwow, and the generator of philox"),
        ({**good, "ordering": "seeded"}, "orderings of philox"),
        ({**good, "seed": -1}, "the seed is at least 0"),
        ({**good, "dims": 2}, "dims of philox"),
        ({**good, "offset": 1 << 64}, "offset of philox"),
        ({**good, "own": "3"}, "the own position is an integer"),
        ({**good, "record": 3}, "the record of a state is a list"),
        ({**good, "record": [[]]}, "the record of a state is a list"),
        ({**good, "record": [["lies", 3, 0.0]]}, "is no draw of a state"),
        ({**good, "record": [["words", -3, 0.0]]}, "the numbers of a draw"),
        ({**good, "record": [["poisson", 3, -1.0]]}, "have a lambda of -1.0"),
        ({**good, "record": [["uniform32", 3, 0.0]]}, "is no draw of a state of philox"),
        ({**good, "record": [["words", 3, 1.0]]}, "is no draw of a state of philox"),
        ({**good, "kind": "xorwow", "record": [["normal64", 3, 0.0]]}, "is no draw of a state of xorwow"),
        ({**good, "kind": "mtgp32", "record": [["normal64", 3, 0.0]]}, "is no draw of a state of mtgp32"),
        ({**good, "kind": "mtgp32", "record": [["long", 2, 0.0]]}, "is no draw of a state"),
        ({**good, "record": [["words", 3, 0.0]] * 65}, "at most 64 draws"),
        ({**good, "record": [["uniform64", 1 << 40, 0.0]]}, "of 16000000 numbers"),
    ):
        refuse(lambda wrong=wrong: generator.seek(wrong), match)
    assert generator.state == good
    generator.seek(good)
    for wrong, match in ((-1, "n_children is at least 0"), ("2", "n_children is an integer"), (1 << 21, "less than")):
        refuse(lambda wrong=wrong: generator.spawn(wrong), match)


async def test_a_lane_that_waits_for_nothing_gets_no_numbers_of_the_library(dev: Any) -> None:
    generator = dev.random.generator(seed=1)
    state = generator.state
    async with dev.lane(ordered=False) as lane, dev.batch(lane=lane) as batch:
        with pytest.raises(InvalidArgument, match="draw on the compute lane"):
            batch.random.normal(size=4, generator=generator)
        assert generator.state == state
        own = batch.random.gamma(2.0, size=4, generator=generator)
    generator.seek(state)
    np.testing.assert_array_equal(await own.to_host(), await (await generator.gamma(2.0, size=4)).to_host())


async def test_what_draws_from_a_generator_cannot_be_recorded(dev: Any) -> None:
    made: list[Any] = []
    generator = dev.random.generator(seed=1)
    state = generator.state

    def record(recorder: Any) -> None:
        for verb, arguments in (("normal", ()), ("gamma", (2.0,)), ("integers", (5,))):
            draw = getattr(recorder.random, verb)
            match = f"random.{verb} cannot be recorded: it draws from a generator"
            with pytest.raises(InvalidArgument, match=match):
                draw(*arguments, size=3, generator=generator)
        made.append(recorder.random.philox(1, 2, 5))

    graph = await dev.capture(record)
    await graph.launch()
    right = await dev.random.philox(1, 2, 5)
    np.testing.assert_array_equal(await made[0].to_host(), await right.to_host())
    assert generator.state == state


async def test_a_generator_of_a_device_that_was_closed_draws_no_more(open_test_device: Any) -> None:
    async with open_test_device() as dev:
        generator = dev.random.generator(seed=1)
    with pytest.raises(DeviceClosed):
        await generator.uniform(size=3)
    with pytest.raises(DeviceClosed):
        dev.random.generator()
