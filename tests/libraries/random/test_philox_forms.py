"""The stateless form in all places: arrays of any layout, batches, graphs, and after a loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_trio import CompileFinished, CompileStarted, DeviceClosed, InvalidArgument, LibraryNotFound, RestartPolicy
from atomr_trio._calls.plans import Plans
from atomr_trio._compiling.caching import CachingCompiler
from atomr_trio._device.device import core_of
from support.blas import submitted
from support.philox import ONE_OF_EACH, PVALS, uniform64, words
from support.rogue import kill_worker

pytestmark = [pytest.mark.used_workers, pytest.mark.usefixtures("kept_compiles")]

KEY = 99


async def numbers(dev: Any, *arguments: Any, **keywords: Any) -> Any:
    return await (await dev.random.philox(*arguments, **keywords)).to_host()


# --- sizes and layouts ------------------------------------------------------------------------------------------------


async def test_sizes_and_shapes(dev):
    for size, shape in ((None, ()), (0, (0,)), (1, (1,)), ((), ()), ((2, 0, 3), (2, 0, 3)), ([3, 5], (3, 5))):
        result = await dev.random.philox(KEY, 7, size)
        assert result.shape == shape
        assert (await result.to_host() == words(KEY, 7, result.size).reshape(shape)).all()
        rows = await dev.random.philox(KEY, 7, size, "multinomial", n=5, pvals=PVALS)
        assert rows.shape == (*shape, len(PVALS))


async def test_nothing_is_sent_for_nothing(dev):
    await dev.random.load("bits")
    before = submitted(dev)
    out = dev.zeros((3, 0), "uint32")
    assert await dev.random.philox(KEY, 0, None, out=out) is out
    assert (await dev.random.philox(KEY, 0, (0, 4), "discrete", pvals=[1.0])).shape == (0, 4)
    assert submitted(dev) == before


@pytest.mark.parametrize(("distribution", "dtype"), [("bits", "uint32"), ("uniform", "float64"), ("poisson", "int8")])
async def test_an_array_of_any_layout_is_filled_and_nothing_beside_it(dev, distribution, dtype):
    expected = await numbers(dev, KEY, 5, (4, 6), distribution, dtype=dtype)
    for part, axes in (
        (np.s_[1:25], None),  # begins one element behind an aligned address
        (np.s_[3:27], None),
        (np.s_[0:48:2], None),
        (np.s_[47:0:-2], None),
        (np.s_[0:24], (1, 0)),
    ):
        whole = dev.full(50, 77, dtype)
        out = whole[part].reshape((4, 6) if axes is None else (6, 4)) if whole[part].contiguous else whole[part]
        if axes is not None:
            out = out.transpose(*axes)
        shaped = expected.reshape(out.shape)
        assert await dev.random.philox(KEY, 5, None, distribution, out=out) is out
        assert (await out.to_host() == shaped).all()
        beside = np.ones(50, bool)
        beside[part] = False
        assert ((await whole.to_host())[beside] == 77).all()


async def test_every_place_and_length_about_a_block(dev):
    expected = {name: await numbers(dev, KEY, 0, 40, name) for name in ("bits", "uniform", "exponential")}
    compared = []
    async with dev.batch() as batch:
        for name, numbers_of in expected.items():
            for position in range(6):
                for count in range(1, 10):
                    whole = batch.to_device(np.full(16, 3, numbers_of.dtype))
                    out = whole[position % 4 : position % 4 + count]
                    batch.random.philox(KEY, position, None, name, out=out)
                    compared.append((batch.to_host(whole), position % 4, numbers_of[position : position + count]))
    for host, at, some in compared:
        assert (host[at : at + len(some)] == some).all()
        assert (np.delete(host, range(at, at + len(some))) == 3).all()


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_the_first_thing_that_a_device_does_may_be_a_draw_in_a_batch(open_test_device):
    async with open_test_device() as dev:
        async with dev.batch() as batch:
            results = [
                batch.to_host(batch.random.philox(KEY, 3, 50, name, dtype=dtype, **parameters))
                for name, parameters, dtype in ONE_OF_EACH
            ]
        assert (results[0] == words(KEY, 3, 50)).all()
        for (name, parameters, dtype), result in zip(ONE_OF_EACH, results, strict=True):
            again = await numbers(dev, KEY, 3, 50, name, dtype=dtype, **parameters)
            assert (again == result).all(), name


@pytest.mark.long
async def test_a_thousand_draws_in_one_batch(dev):
    async with dev.batch() as batch:
        results = [batch.random.philox(KEY, 10 * at, 10, "uniform" if at % 2 else "bits") for at in range(1000)]
    for at in (0, 1, 2, 498, 499, 998, 999):
        model = uniform64 if at % 2 else words
        assert (await results[at].to_host() == model(KEY, 10 * at, 10)).all()


async def test_a_batch_of_another_lane_draws_there(dev):
    async with dev.lane() as lane:
        async with dev.batch(lane=lane) as batch:
            bits = batch.random.philox(KEY, 3, 1000)
            chosen = batch.to_host(batch.random.philox(KEY, 3, 100, "discrete", pvals=PVALS))
        assert (await bits.to_host() == words(KEY, 3, 1000)).all()
    assert (await numbers(dev, KEY, 3, 100, "discrete", pvals=PVALS) == chosen).all()


async def test_one_plan_serves_all_parameters(dev):
    plans = core_of(dev).part(Plans)
    await numbers(dev, KEY, 0, 10, "gamma", shape=2.0)
    before = set(plans._kept)
    for shape, dtype in ((0.5, "float64"), (1e6, "float32")):
        for key, size in ((1, 3), (2, (500, 2))):
            await numbers(dev, key, 11, size, "gamma", shape=shape, scale=3.0, dtype=dtype)
    assert set(plans._kept) == before


async def test_the_same_call_again_goes_the_short_way_with_the_same_numbers(dev):
    out = dev.zeros(1000, "float32")
    for _ in range(4):
        await out.fill(0)
        assert await dev.random.philox(KEY, 1, None, "exponential", out=out) is out
        first = await out.to_host()
        assert (first == await numbers(dev, KEY, 1, 1000, "exponential", dtype="float32")).all()


# --- compiles ---------------------------------------------------------------------------------------------------------


async def test_a_source_is_compiled_once_by_whatever_needs_it_first(open_test_device):
    async with open_test_device() as dev:
        async with dev.events() as events:
            await dev.random.load("gamma", "beta", "discrete")
            async with dev.batch() as batch:
                batch.random.philox(KEY, 0, 3, "cauchy")
                batch.random.philox(KEY, 0, 3, "exponential")
                batch.random.philox(KEY, 0, 3, "standard_t", df=1)
            await dev.random.philox(KEY, 0, 3)
            await dev.random.philox(KEY, 0, 3, "bernoulli", p=0.5)
            await dev.capture(lambda graph: graph.random.philox(KEY, 0, 3, "normal"))
            await dev.random.load()
            await dev.random.load("poisson")
            expected = [
                "gamma",
                "beta",
                "integers",
                "inversion",
                "standard_t",
                "uniform",
                "normal",
                "poisson",
                "binomial",
            ]
            told = [await anext(events) for _ in range(2 * len(expected))]
            assert [each.program for each in told if isinstance(each, CompileFinished)] == [
                f"random_{name}.cu" for name in expected
            ]
            assert [type(each) for each in told] == [CompileStarted, CompileFinished] * len(expected)


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_draws_are_nodes_of_graphs(open_test_device):
    async with open_test_device() as dev:
        results: list[Any] = []

        def record(graph: Any) -> None:
            results.extend(
                graph.random.philox(KEY, 3, 20, name, dtype=dtype, **parameters)
                for name, parameters, dtype in ONE_OF_EACH[1::2]
            )

        graph = await dev.capture(record)
        expected = [
            await numbers(dev, KEY, 3, 20, name, dtype=dtype, **parameters)
            for name, parameters, dtype in ONE_OF_EACH[1::2]
        ]
        for _ in range(3):
            async with dev.batch() as batch:
                for result in results:
                    batch.fill(result, 0)
                batch.launch_graph(graph)
                hosts = [batch.to_host(result) for result in results]
            for host, expected_host in zip(hosts, expected, strict=True):
                assert (host == expected_host).all()


async def test_a_table_that_has_to_be_uploaded_is_refused_in_a_graph(dev):
    def record(graph: Any) -> None:
        graph.random.philox(KEY, 0, 5, "discrete", pvals=np.full(128, 1 / 128))
        with pytest.raises(InvalidArgument, match="discrete with so many probabilities cannot be captured"):
            graph.random.philox(KEY, 0, 5, "discrete", pvals=np.full(129, 1 / 129))

    await dev.capture(record)


# --- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_the_numbers_after_a_loss_are_those_before_it(open_test_device):
    async with open_test_device(restart_policy=RestartPolicy(intensity=20)) as dev:
        before: list[Any] = []
        for turn in range(2):
            for at, (name, parameters, dtype) in enumerate(ONE_OF_EACH[::3]):
                host = await numbers(dev, KEY, 8, 64, name, dtype=dtype, **parameters)
                assert turn == 0 or (host == before[at]).all()
                before.append(host)
            generation = dev.generation
            kill_worker(dev)
            await dev.wait_generation(after=generation)


async def test_a_missing_compiler_is_said_in_every_form_and_nothing_is_sent(open_test_device, monkeypatch):
    def answer(self: CachingCompiler, job: Any) -> Any:
        raise LibraryNotFound("there is no NVRTC")

    async with open_test_device() as dev:
        monkeypatch.setattr(CachingCompiler, "answer", answer)
        before = submitted(dev)
        async with dev.events() as events, dev.batch() as batch:
            with pytest.raises(LibraryNotFound, match="there is no NVRTC") as caught:
                await dev.random.philox(KEY, 0, 5)
            assert caught.value.device == dev.index
            with pytest.raises(LibraryNotFound, match="there is no NVRTC") as caught:
                batch.random.philox(KEY, 0, 5)
            assert caught.value.device == dev.index
            with pytest.raises(LibraryNotFound, match="there is no NVRTC"):
                await dev.random.load("gamma")
            told = [await anext(events) for _ in range(6)]
        assert [getattr(each, "error", "started") for each in told] == ["started", "there is no NVRTC"] * 3
        assert submitted(dev) == before
        monkeypatch.undo()
        assert (await numbers(dev, KEY, 0, 5) == words(KEY, 0, 5)).all()


async def test_a_device_that_is_closed_draws_nothing(open_test_device):
    async with open_test_device() as dev:
        random = dev.random
    for call in (random.philox(KEY, 0, 5), random.load("gamma")):
        with pytest.raises(DeviceClosed):
            await call
