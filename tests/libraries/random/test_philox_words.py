"""The stateless form: its words and uniform numbers are cuRAND's, and a draw in parts has the numbers of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_trio.libraries.random.distributions import SOURCE_OF, drawing_of
from atomr_trio.libraries.random.images import SOURCES
from atomr_trio.libraries.random.positions import Place
from support.philox import ONE_OF_EACH, uniform32, uniform64, words
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
