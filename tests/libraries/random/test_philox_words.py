"""The stateless form: its words and uniform numbers are cuRAND's, and a draw in parts has the numbers of one."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from atomr_trio.libraries.random.distributions import SOURCE_OF, drawing_of
from atomr_trio.libraries.random.images import SOURCES
from atomr_trio.libraries.random.positions import Place
from support.philox import ONE_OF_EACH, WORD, block, positions, uniform32, uniform64, words
from support.random_host import HostGenerator

pytestmark = [pytest.mark.used_workers, pytest.mark.usefixtures("kept_compiles")]

POSITIONS = (0, 1, 3, 4, 262143, 2**33 + 5, 2**50 + 7, 2**64 - 2 * 262144 + 5)
SEEDS = (1234, 0xDEAD_BEEF_CAFE_BABE)
ROUND = 1 << 18


async def drawn(dev: Any, *arguments: Any, **keywords: Any) -> Any:
    return await (await dev.random.philox(*arguments, **keywords)).to_host()


# Random123, kat_vectors, philox4x32 with 10 rounds. Counters of ones or of digits of pi are none of a generator's.
async def test_the_first_words_are_the_published_ones(dev):
    assert [f"{word:08x}" for word in await drawn(dev, 0, 0, 4)] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    assert (await drawn(dev, 1234, 0, 4)).tolist() == [546353992, 3665621163, 1140953199, 3419031310]


async def test_words_and_uniform_numbers_are_those_of_the_model(dev):
    for seed in SEEDS:
        await check_against_the_model(dev, seed)


async def check_against_the_model(dev: Any, seed: int) -> None:
    async with dev.batch() as batch:
        results = [
            [
                batch.random.philox(seed, position, count),
                batch.random.philox(seed, position, count, "uniform", dtype="float32"),
                batch.random.philox(seed, position, count, "uniform"),
            ]
            for position in POSITIONS
            for count in (1, 2, 5, 1003)
        ]
    expected = [
        [model(seed, position, count) for model in (words, uniform32, uniform64)]
        for position in POSITIONS
        for count in (1, 2, 5, 1003)
    ]
    for some, models in zip(results, expected, strict=True):
        for result, model in zip(some, models, strict=True):
            host = await result.to_host()
            assert host.dtype == model.dtype
            assert (host == model).all()


async def test_uint64_is_two_words(dev):
    for position in (0, 1, 2):
        assert (await drawn(dev, 7, position, 333, dtype="uint64") == words(7, position, 666).view(np.uint64)).all()


async def test_words_and_uniform_numbers_are_those_of_curand_on_the_host(dev):
    for seed in SEEDS:
        for position in POSITIONS[:-1]:
            for draw, name, dtype in (
                ("words", "bits", "uint32"),
                ("uniform32", "uniform", "float32"),
                ("uniform64", "uniform", "float64"),
            ):
                if draw == "uniform64" and ROUND - position % ROUND < 1000:
                    continue  # an offset in the middle of a round means something else there
                host = HostGenerator(Place("philox", "default", seed, 1, position)).draw(draw, 1000)
                assert (await drawn(dev, seed, position, 1000, name, dtype=dtype) == host).all()


async def test_a_draw_of_a_whole_round_and_the_next_are_those_of_a_running_generator(dev):
    running = HostGenerator(Place("philox", "default", 77, 1))
    position = 0
    for count in (ROUND + 5, ROUND - 5, 3):
        drawing = drawing_of("uniform", "float64", {})
        assert (await drawn(dev, 77, position, count, "uniform") == running.draw("uniform64", count)).all()
        position = drawing.advanced(position, count)
    assert position == 4 * ROUND + 3


async def test_normal_numbers_are_those_of_curand_but_for_the_last_bits(dev):
    for dtype, bound in (("float32", 3e-6), ("float64", 3e-15)):
        for distribution in ("normal", "lognormal"):
            for position in (0, 5, 1 << 20):
                generator = HostGenerator(Place("philox", "default", 5, 1, position))
                host = generator.draw(f"{distribution}{np.dtype(dtype).itemsize * 8}", 10_000)
                found = await drawn(dev, 5, position, 10_000, distribution, dtype=dtype)
                assert (abs(found - host) <= bound * (host if distribution == "lognormal" else 1)).all()


@pytest.mark.parametrize("source", SOURCES)
async def test_a_draw_in_parts_has_the_numbers_of_one(dev, source):
    some = [each for each in ONE_OF_EACH if SOURCE_OF[each[0]] == source]
    count, compared = 70, []
    async with dev.batch() as batch:
        for distribution, parameters, dtype in some:
            drawing = drawing_of(distribution, dtype, parameters)

            def draw(position: int, draws: int, given: Any = (distribution, dtype, parameters)) -> Any:
                result = batch.random.philox(9, position, draws, given[0], dtype=given[1], **given[2])
                assert result.dtype == given[1]
                return batch.to_host(result)

            is_slow = distribution == "multinomial"
            for position in (262143 - 29,) if is_slow else (0, 2**40 + 262143 - 29):
                whole = draw(position, count)
                for cut in (1, 30)[is_slow:]:
                    parts = draw(position, cut), draw(drawing.advanced(position, cut), count - cut)
                    compared.append((distribution, whole, parts))
    for distribution, whole, parts in compared:
        assert (np.concatenate(parts) == whole).all(), distribution


# --- the counters of our own ------------------------------------------------------------------------------------------

TAGS = {"exponential": 1, "cauchy": 2, "integers": 8, "bernoulli": 9}


def own_words(tag: int, position: int, count: int) -> Any:
    """The 64 bits of each element of a distribution that takes one number: two elements share a block."""
    at = positions(position, count)
    pairs, zero = at >> np.uint64(1), np.zeros(count, np.uint64)
    counters = [pairs & np.uint64(WORD), pairs >> np.uint64(32), zero, zero + np.uint64(1 << 31 | tag)]
    x, y, z, w = block(counters, KEY)
    is_odd = (at & np.uint64(1)).astype(bool)
    return np.where(is_odd, z, x) | np.where(is_odd, w, y) << np.uint64(32)


KEY, FIRST = 2**63 + 5, 2**40 + 1


async def test_elements_of_one_number_are_functions_of_their_own_counters(dev):
    words = {name: own_words(tag, FIRST, 500) for name, tag in TAGS.items()}
    low, high = words["exponential"] & np.uint64(WORD), words["exponential"] >> np.uint64(32)
    u = (low ^ (high << np.uint64(21))).astype(np.float64) * 2.0**-53 + 2.0**-54
    assert await drawn(dev, KEY, FIRST, 500, "exponential", scale=2.0) == pytest.approx(-2 * np.log(u), rel=1e-14)
    angle = ((words["cauchy"] >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-53
    tangent = np.where(words["cauchy"] & np.uint64(1), -1, 1) / np.tan(np.pi * angle)
    assert await drawn(dev, KEY, FIRST, 500, "cauchy") == pytest.approx(tangent, rel=1e-12)
    chosen = words["bernoulli"] < np.uint64(2**62)
    assert (await drawn(dev, KEY, FIRST, 500, "bernoulli", p=0.25) == chosen).all()
    numbers = [int(word) * 1000 >> 64 for word in words["integers"]]
    assert (await drawn(dev, KEY, FIRST, 500, "integers", low=0, high=1000)).tolist() == numbers


PINNED = (
    ("gamma", {"shape": 2.5}, [1.7844188749815308, 1.0440374941385833, 3.067885513049854]),
    ("gamma", {"shape": 0.3}, [0.4737499843799742, 0.0008002936271262553, 0.7251818827947056]),
    ("beta", {"a": 0.5, "b": 2.0}, [0.05107202238511012, 0.37801444009073243, 0.056035540157657236]),
    ("standard_t", {"df": 3.0}, [-1.44668585332158, -1.1128142660364966, 0.18341427593990164]),
    ("standard_t", {"df": 0.5}, [-4.6627030973966574, -1.2073675341419372, 1.0730051177327276]),
    ("poisson", {"lam": 3.0}, [4, 3, 3]),
    ("poisson", {"lam": 30.0}, [35, 29, 31]),
    ("poisson", {"lam": 1e15}, [1000000029843397, 999999993838963, 1000000006981685]),
    ("binomial", {"n": 20, "p": 0.7}, [12, 16, 15]),
    ("binomial", {"n": 10**9, "p": 0.25}, [250016296, 249984787, 249995925]),
    ("multinomial", {"n": 50, "pvals": (0.25, 0.5, 0.25)}, [[10, 26, 14], [13, 27, 10], [20, 19, 11]]),
    ("discrete", {"pvals": (0.1, 0.2, 0.3, 0.4)}, [3, 2, 1]),
)
"""Numbers that were drawn once. Whoever keeps a key and a position expects the same ones from every later version."""


async def test_numbers_are_those_of_every_version(dev):
    async with dev.batch() as batch:
        found = [
            batch.to_host(batch.random.philox(KEY, FIRST, 3, name, **parameters)) for name, parameters, _ in PINNED
        ]
    for host, (name, parameters, expected) in zip(found, PINNED, strict=True):
        assert host == pytest.approx(np.array(expected), rel=1e-12), (name, parameters)
        assert host.dtype.kind == "f" or host.tolist() == expected


DIGESTS = (
    ("bits", {}, "uint32", "21b5fcb6fea99785"),
    ("uniform", {}, "float32", "c0a70500931e23ad"),
    ("uniform", {"low": -2.0, "high": 5.0}, "float64", "a74748c60d19ffdb"),
    ("normal", {}, "float32", "7a35b0ac58a33718"),
    ("normal", {}, "float64", "1df9d9ba0ef0ecad"),
    ("lognormal", {}, "float64", "34cd24e82e693b8e"),
    ("integers", {"low": -5, "high": 1000000000000}, "int64", "cba003c822918fb0"),
    ("exponential", {}, "float64", "e961aa89b85aea97"),
    ("exponential", {}, "float32", "cc8e120c563c2e99"),
    ("cauchy", {}, "float64", "641cbf7855f8fc9c"),
    ("gamma", {"shape": 2.5}, "float64", "94e44eab26c6d7da"),
    ("gamma", {"shape": 0.3}, "float64", "d09659ab45fc4ed2"),
    ("beta", {"a": 0.4, "b": 3.0}, "float64", "433e33793c0c0004"),
    ("standard_t", {"df": 4.0}, "float64", "711477f946b1ea9a"),
    ("poisson", {"lam": 3.0}, "int64", "98fa1dc343590a6b"),
    ("poisson", {"lam": 300.0}, "int64", "a62fd7478be01598"),
    ("binomial", {"n": 20, "p": 0.3}, "int64", "85b3ff437695ccaf"),
    ("binomial", {"n": 1000, "p": 0.3}, "int64", "501088bbc489af0e"),
    ("binomial", {"n": 1000000000, "p": 0.3}, "int64", "f0bfd8a346dc20bb"),
    ("multinomial", {"n": 100, "pvals": (0.2, 0.3, 0.5)}, "int64", "9075f1e11470d300"),
    ("bernoulli", {"p": 0.3}, "bool", "c049ce15c085dad6"),
    ("discrete", {"pvals": (0.1, 0.2, 0.7)}, "int64", "6376e0b62a27b99d"),
)
"""The first bytes of SHA-1 of 20,000 numbers. An H200 with NVRTC 13.0 and the simulator with 13.5 gave the same
bits: nothing in the arithmetic is left to the compiler or to the machine."""


@pytest.mark.parametrize(("name", "parameters", "dtype", "digest"), DIGESTS)
async def test_the_bits_are_the_same_on_every_backend(dev, name, parameters, dtype, digest):
    x = await dev.random.philox(12345, 1 << 20, 20_000, name, dtype=dtype, **parameters)
    assert hashlib.sha1((await x.to_host()).tobytes()).hexdigest().startswith(digest)
