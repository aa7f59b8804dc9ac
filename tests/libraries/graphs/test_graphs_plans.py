"""Planned calls as nodes of graphs: products and transforms, with plans and workspaces of the graph's own."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import CommandFailed, RestartPolicy
from atomr_trio._device.device import core_of
from atomr_trio.testing import ReturnStatus, inject, kill_worker
from support.rogue import next_generation, until

OFTEN = RestartPolicy(intensity=20)
DEADLINE = 60


class Chain:
    """A product, a transform there and back, a product again: their results, and what they must be."""

    def __init__(self, dev: Any, length: int = 64) -> None:
        self.numbers = (np.arange(4 * length, dtype=np.float32).reshape(4, length) % 3) - 1
        self.signal = (np.arange(60) % 7).astype(np.complex64)
        self.a = dev.full((4, length), 0, np.float32)
        self.x = dev.full(60, 0, np.complex64)
        self.results: dict[str, Any] = {}

    async def fill(self) -> None:
        await self.a.copy_from(self.numbers)
        await self.x.copy_from(self.signal)

    def record(self, graph: Any) -> None:
        results = self.results
        results["product"] = graph.blaslt.matmul(self.a, self.a, op_b="T")
        results["spectrum"] = graph.fft.fft(self.x)
        results["signal"] = graph.fft.ifft(results["spectrum"])
        results["square"] = graph.blaslt.matmul(results["product"], results["product"])

    async def clear(self) -> None:
        for result in self.results.values():
            await result.fill(0)

    async def check(self) -> None:
        product = self.numbers @ self.numbers.T
        assert (await self.results["product"].to_host() == product).all()
        assert (await self.results["square"].to_host() == product @ product).all()
        spectrum = await self.results["spectrum"].to_host()
        assert np.allclose(spectrum, np.fft.fft(self.signal), atol=1e-4)
        assert np.allclose(await self.results["signal"].to_host(), self.signal, atol=1e-5)


async def captured(dev: Any, **more: Any) -> tuple[Chain, Any]:
    chain = Chain(dev, **more)
    await chain.fill()
    return chain, await dev.capture(chain.record)


async def test_planned_calls_are_made_with_each_launch(open_test_device):
    async with open_test_device() as dev:
        chain, graph = await captured(dev)
        for _ in range(3):
            await graph.launch()
            await chain.check()
            await chain.clear()
        async with dev.batch() as batch:
            for _ in range(5):
                batch.launch_graph(graph)
        await chain.check()


async def test_a_graph_may_have_more_plans_than_workers_keep(open_test_device):
    async with open_test_device(plan_cache=1, restart_policy=OFTEN) as dev:
        chain, graph = await captured(dev)
        await graph.launch()
        await chain.check()
        other, second = await captured(dev, length=32)
        for each, of in ((graph, chain), (second, other), (graph, chain)):
            await of.clear()
            await each.launch()
            await of.check()


@pytest.mark.parametrize("standby", [0, 1])
async def test_the_plans_of_a_graph_are_made_again_after_a_loss(open_test_device, standby):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=standby, restart_policy=OFTEN) as dev:
            await dev.wait_standby()
            chain, graph = await captured(dev)
            await graph.launch()
            for _ in range(2):
                await dev.wait_standby()
                lost = dev.generation
                kill_worker(dev)
                await next_generation(dev, lost)
                await chain.clear()
                await graph.launch()
                await chain.check()


@pytest.mark.sim_only
async def test_a_graph_keeps_every_workspace_that_was_captured(open_test_device):
    """An update that needs a larger one leaves the others in their place."""
    async with open_test_device() as dev:
        chain, graph = await captured(dev)
        await graph.launch()
        longer = await dev.to_device(np.ones((4, 4096), np.float32))
        node = next(each for each in graph.nodes if each.operation == "blaslt.matmul")
        graph.update(node, longer, longer, op_b="T")
        for _ in range(2):
            await graph.launch()
            assert (await chain.results["product"].to_host() == 4096).all()
            assert (await chain.results["square"].to_host() == 4 * 4096**2).all()
            signal = await chain.results["signal"].to_host()
            assert np.allclose(signal, chain.signal, atol=1e-5)
            await chain.clear()


@pytest.mark.sim_only
async def test_a_plan_that_cannot_be_made_refuses_the_graph_and_the_next_build_succeeds(open_test_device):
    async with open_test_device() as dev:
        chain = Chain(dev)
        await chain.fill()
        inject(dev, "cufftMakePlanMany64", ReturnStatus(8))
        with pytest.raises(CommandFailed, match="cufftMakePlanMany64"):
            await dev.capture(chain.record)
        graph = await dev.capture(chain.record)
        await graph.launch()
        await chain.check()


@pytest.mark.sim_only
async def test_the_workspaces_of_a_graph_are_counted_as_long_as_there_is_the_graph(open_test_device):
    async with open_test_device() as dev:
        chain, graph = await captured(dev)
        with_graph = dev.statistics().memory.workspaces
        await dev.blaslt.matmul(chain.a, chain.a, op_b="T")
        await dev.fft.fft(chain.x)
        assert dev.statistics().memory.workspaces == with_graph > 0
        chain.results.clear()
        del graph
        gc.collect()
        core = core_of(dev)
        core.release_dropped(core.current)
        await until(lambda: dev.statistics().memory.workspaces == with_graph // 2)


async def test_plans_that_the_list_gives_up_stay_with_the_graph(open_test_device):
    async with open_test_device(plan_cache=2) as dev:
        chain, graph = await captured(dev)
        for length in range(2, 9):
            x = await dev.to_device(np.arange(length, dtype=np.complex64))
            await dev.fft.fft(x)
        core = core_of(dev)
        core.release_dropped(core.current)
        await until(lambda: core.current.timeline.idle)
        await graph.launch()
        await chain.check()
