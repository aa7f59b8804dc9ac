"""The short way of a graph's launches: what repeats is a record and no more, and everything else is as before."""

from __future__ import annotations

import gc
import math
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import CommandFailed, ContextLost, InvalidArgument, RestartPolicy, StaleArray, read_only
from atomr_trio._device.device import core_of
from atomr_trio.testing import inject
from support.rogue import WILD, compile_rogue, kill_worker, next_generation, until

pytestmark = pytest.mark.used_workers

ANY_NUMBER = RestartPolicy(intensity=math.inf)
DEADLINE = 60
N = 8

SOURCE = r"""
extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }
extern "C" __global__ void twice(const int *x, int *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
extern "C" __global__ void push(int *x, int a) { x[threadIdx.x] = 10 * x[threadIdx.x] + a; }
"""


async def compiled(dev: Any, *names: str) -> Any:
    kernels = [await dev.nvrtc.compile(SOURCE, name) for name in names]
    return kernels if len(kernels) > 1 else kernels[0]


async def values(array: Any) -> list[Any]:
    return (await array.to_host()).tolist()


async def adding(dev: Any, kernel: str = "add", amount: int = 1, nodes: int = 1) -> Any:
    """A graph that works on an array of zeros, the array, and the nodes."""
    launched = await compiled(dev, kernel)
    x = dev.zeros(N, np.int32)
    found: list[Any] = []
    graph = await dev.capture(lambda r: found.extend(r.launch(launched, 1, N, x, amount) for _ in range(nodes)))
    return graph, x, found


@pytest.fixture
def general(monkeypatch) -> list[str]:
    """The names of the graph engine's verbs that went the general way."""
    published: list[str] = []
    publish = atomr_trio._generation.order.Order.publish

    def note(order: Any, lane: int, verb: Any, *arguments: Any, **options: Any) -> Any:
        command = publish(order, lane, verb, *arguments, **options)
        if verb.engine == "graph":
            published.append(verb.name)
        return command

    monkeypatch.setattr(atomr_trio._generation.order.Order, "publish", note)
    return published


async def launch_batched(dev: Any, graph: Any, times: int) -> None:
    async with dev.batch() as batch:
        for _ in range(times):
            batch.launch_graph(graph)


@pytest.mark.parametrize("nodes", [1, 3, 100])
async def test_only_the_first_launch_of_each_form_goes_the_general_way(dev, general, nodes):
    graph, x, _ = await adding(dev, nodes=nodes)
    del general[:]
    for _ in range(5):
        await graph.launch()
    assert general == ["launch"]
    for _ in range(5):
        graph.launch_nowait()
    assert general == ["launch"] * 2
    await launch_batched(dev, graph, 5)
    assert general == ["launch"] * 3
    await launch_batched(dev, graph, 40)
    for _ in range(5):
        graph.launch_nowait()
        await graph.launch()
    assert general == ["launch"] * 3
    assert await values(x) == [65 * nodes] * N


async def test_launches_of_every_form_are_in_order_with_kernels_and_with_each_other(dev):
    push = await compiled(dev, "push")
    graph, x, _ = await adding(dev, "push", 1)
    other = await dev.capture(lambda r: r.launch(push, 1, N, x, 2))
    await graph.launch()
    await other.launch()
    await x.fill(0)
    await graph.launch()
    await other.launch()
    other.launch_nowait()
    async with dev.batch() as batch:
        for _ in range(2):
            batch.launch_graph(other)
            batch.launch(push, 1, N, x, 3)
            batch.launch_graph(graph)
    assert await values(x) == [122231231] * N


async def test_an_update_ends_the_short_way_until_it_was_made(dev, general):
    graph, x, (node,) = await adding(dev)
    for _ in range(3):
        await graph.launch()
    for amount in (10, 100):
        del general[:]
        graph.update(node, x, amount)
        for _ in range(3):
            graph.launch_nowait()
        await graph.launch()
        await graph.launch()
        assert general[:2] == ["update", "launch"]
        assert general.count("update") == 1
        await graph.launch()
        count = len(general)
        await graph.launch()
        assert len(general) == count
    assert await values(x) == [3 + 7 * 10 + 7 * 100] * N


async def test_a_graph_that_is_built_anew_is_launched_as_it_is_then(dev, general):
    """The worker forgets the older graph that it had made ready."""
    add, twice = await compiled(dev, "add", "twice")
    x, y = dev.zeros(N, np.int32), dev.zeros(N, np.int32)
    nodes: list[Any] = []

    def record(recorder: Any) -> None:
        nodes.append(recorder.launch(add, 1, N, x, 1))
        nodes.append(recorder.launch(twice, 1, N, read_only(y), dev.zeros(N, np.int32)))

    graph = await dev.capture(record)
    for _ in range(3):
        await graph.launch()
    out = dev.zeros(N, np.int32)
    graph.update(nodes[1], read_only(x), out)  # needs another edge
    del general[:]
    for _ in range(4):
        await graph.launch()
    assert general == ["build", "launch"]
    assert await values(out) == [2 * 7] * N


async def test_an_older_plan_that_was_asked_for_before_does_not_outlive_its_turn(dev):
    graph, x, (node,) = await adding(dev)
    older = [graph._request(None) for _ in range(3)]
    graph.update(node, x, 100)
    expected = 0
    for request in older:
        for _ in range(3):
            await graph.launch()
            graph.launch_nowait()
            await launch_batched(dev, graph, 1)
        await core_of(dev).module_actor.mailbox.ask(request)
        expected += 9 * 100 + 1
        graph.launch_nowait()
        await launch_batched(dev, graph, 1)
        await graph.launch()
        expected += 3 * 100
        assert await values(x) == [expected] * N


async def test_a_clone_and_its_graph_have_each_their_own(dev, general):
    graph, x, (node,) = await adding(dev)
    clone = graph.clone()
    for each in (graph, clone, graph, clone):
        await each.launch()
    clone.update(node, x, 100)
    for _ in range(3):
        await graph.launch()
        await clone.launch()
    assert await values(x) == [4 + 3 + 300] * N


async def test_a_freed_array_is_refused_in_every_form(dev):
    graph, x, _ = await adding(dev)
    for _ in range(2):
        await graph.launch()
    await launch_batched(dev, graph, 2)
    x.free()
    with pytest.raises(InvalidArgument, match="an array of the graph was freed"):
        await graph.launch()
    with pytest.raises(InvalidArgument, match="an array of the graph was freed"):
        graph.launch_nowait()
    with pytest.raises(InvalidArgument, match="an array of the graph was freed"):
        await launch_batched(dev, graph, 1)


async def test_memory_is_kept_until_the_launches_on_it_are_done(dev):
    graph, x, _ = await adding(dev)
    await graph.launch()
    await graph.launch()
    block = x._block
    del x
    for _ in range(20):
        graph.launch_nowait()
    del graph
    gc.collect()
    assert not block.freed
    await until(lambda: not core_of(dev).current.timeline.book(0).busy)
    gc.collect()
    dev.empty(1).free()
    assert block.freed


async def test_a_launch_with_its_own_limit_goes_the_general_way(dev, general):
    graph, x, _ = await adding(dev)
    for _ in range(3):
        await graph.launch()
    del general[:]
    await graph.launch(hang_timeout=30)
    graph.launch_nowait(hang_timeout=30)
    assert general == ["launch", "launch"]
    assert await values(x) == [5] * N


async def test_launches_are_counted_with_those_of_the_module_actor(dev):
    graph, _, _ = await adding(dev)

    def count() -> tuple[int, int]:
        (module,) = (actor for actor in dev.statistics().actors if actor.name == "module")
        return module.accepted, module.settled.get("ok", 0)

    before = count()
    for _ in range(4):
        await graph.launch()
    for _ in range(3):
        graph.launch_nowait()
    await launch_batched(dev, graph, 5)
    marked = 1  # the end of the batch is a command too
    await until(lambda: count() == (before[0] + 12 + marked, before[1] + 12 + marked))


async def test_a_repeated_launch_is_refused_while_recording(dev):
    graph, x, _ = await adding(dev)
    for _ in range(2):
        await graph.launch()
    graph.launch_nowait()
    with pytest.raises(InvalidArgument, match="launch_nowait cannot be captured"):
        await dev.capture(lambda _: graph.launch_nowait())
    assert await values(x) == [3] * N


async def test_a_module_that_was_unloaded_is_missed(dev):
    graph, _, _ = await adding(dev)
    module = next(iter(graph._plan.modules))
    await graph.launch()
    await graph.launch()
    await launch_batched(dev, graph, 3)
    await module.unload()
    with pytest.raises(InvalidArgument, match="unloaded"):
        await graph.launch()
    with pytest.raises(InvalidArgument, match="unloaded"):
        graph.launch_nowait()
    with pytest.raises(InvalidArgument, match="unloaded"):
        await launch_batched(dev, graph, 1)


@pytest.mark.sim_only
@pytest.mark.parametrize("nodes", [1, 3])
async def test_a_repeated_launch_that_the_driver_refuses_fails_alone(dev, nodes):
    graph, x, _ = await adding(dev, nodes=nodes)
    for _ in range(3):
        await graph.launch()
    inject(dev, "cuGraphLaunch", atomr_trio.testing.ReturnStatus(801))
    with pytest.raises(CommandFailed, match="launch of a graph") as caught:
        await graph.launch()
    assert caught.value.status == 801
    await graph.launch()
    await launch_batched(dev, graph, 2)
    inject(dev, "cuGraphLaunch", atomr_trio.testing.ReturnStatus(801))
    with pytest.raises(CommandFailed, match="launch of a graph"):
        await launch_batched(dev, graph, 3)
    assert await values(x) == [(3 + 1 + 2 + 2) * nodes] * N


async def test_a_fault_tears_what_repeated_launches_were_writing(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            (spin,) = await compile_rogue(dev, "wild")
            graph, x, _ = await adding(dev)
            for _ in range(2):
                await graph.launch()
            with pytest.raises(ContextLost):
                await spin.launch(1, 1, WILD)
            await next_generation(dev, 1)
            # It was done before.
            assert await values(x) == [2] * N
            await graph.launch()
            await graph.launch()
            kill_worker(dev)
            with pytest.raises(ContextLost):
                await graph.launch()
            await next_generation(dev, 2)
            assert x.state == "torn"
            with pytest.raises(StaleArray, match="torn"):
                await graph.launch()
            await x.fill(7)
            for _ in range(3):
                await graph.launch()
            await launch_batched(dev, graph, 3)
            assert await values(x) == [13] * N
