"""The short way of a graph's launches: what repeats is a record and no more, and everything else is as before."""

from __future__ import annotations

import gc
import math
import random
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import CommandFailed, ContextLost, InvalidArgument, OutsideRun, RestartPolicy, StaleArray, read_only
from atomr_trio._device.device import core_of
from atomr_trio.libraries.graphs.repeated import MOST_CHANGES
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
extern "C" __global__ void mix(int *x, int a) { x[threadIdx.x] = (3 * x[threadIdx.x] + a) % 65521; }
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
async def test_only_the_first_launch_goes_the_general_way(dev, general, nodes):
    graph, x, _ = await adding(dev, nodes=nodes)
    del general[:]
    for _ in range(5):
        await graph.launch()
    assert general == ["launch"]
    for _ in range(5):
        graph.launch_nowait()
    await launch_batched(dev, graph, 5)
    await launch_batched(dev, graph, 40)
    for _ in range(5):
        graph.launch_nowait()
        await graph.launch()
    assert general == ["launch"]
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


async def test_an_update_before_the_first_launch_of_a_form_is_made_with_that(dev, general):
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
        await graph.launch()
        await graph.launch()
        assert general == []
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
    await until(lambda: count() == (before[0] + 12, before[1] + 12))  # the end of the batch is no call


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


# --- updates on the short way -----------------------------------------------------------------------------------------


async def repeating(dev: Any, nodes: int = 1, kernel: str = "add") -> tuple[Any, Any, list[Any]]:
    """A graph that every form of launches has launched twice, its array set to zeros again, and its nodes."""
    graph, x, found = await adding(dev, kernel, nodes=nodes)
    for _ in range(2):
        await graph.launch()
        graph.launch_nowait()
        await launch_batched(dev, graph, 2)
    await x.fill(0)
    await graph.launch()
    graph.launch_nowait()
    await launch_batched(dev, graph, 1)
    await x.fill(0)
    return graph, x, found


async def test_updates_of_numbers_go_the_short_way_with_every_form_of_launch(dev, general):
    graph, x, (first, second) = await repeating(dev, 2)
    del general[:]
    for amount in range(5):
        graph.update(first, x, amount)
        await graph.launch()
        graph.update(second, x, 10 * amount)
        graph.launch_nowait()
        async with dev.batch() as batch:
            for more in (100, 1000):
                graph.update(first, x, more * amount)
                graph.update(second, x, 3)
                graph.update(second, x, more * amount)
                batch.launch_graph(graph)
                batch.launch_graph(graph)
    assert general == []
    expected, second_amount = 0, 1
    for amount in range(5):
        expected += amount + second_amount
        expected += amount + 10 * amount
        expected += 2 * (2 * 100 * amount) + 2 * (2 * 1000 * amount)
        second_amount = 1000 * amount
    assert await values(x) == [expected] * N


async def test_updates_are_in_order_with_the_launches_around_them(dev):
    graph, x, (node,) = await repeating(dev, kernel="push")
    async with dev.batch() as batch:
        for digit in (1, 2, 3, 4):
            graph.update(node, x, digit)
            batch.launch_graph(graph)
    graph.update(node, x, 5)
    await graph.launch()
    graph.update(node, x, 6)
    graph.launch_nowait()
    assert await values(x) == [123456] * N


async def test_an_update_to_another_part_of_the_same_memory_goes_the_short_way(dev, general):
    add = await compiled(dev, "add")
    x = dev.zeros((2, N), np.int32)
    graph = await dev.capture(lambda r: r.launch(add, 1, N, x[0], 1))
    for _ in range(3):
        await graph.launch()
    del general[:]
    graph.update(graph.nodes[0], x[1], 5)
    await graph.launch()
    assert general == []
    assert await values(x) == [[3] * N, [5] * N]


async def test_an_update_to_other_arrays_goes_the_general_way(dev, general):
    graph, x, (node,) = await repeating(dev)
    y = dev.zeros(N, np.int32)
    del general[:]
    graph.update(node, x, 7)
    graph.update(node, y, 8)
    await graph.launch()
    assert general == ["update", "launch"]
    graph.update(node, y, 9)
    await graph.launch()
    assert (await values(x), await values(y)) == ([0] * N, [17] * N)
    assert general == ["update", "launch"]


async def test_more_parameters_than_a_ready_record_has_words_go_the_general_way(dev, general):
    fields = ", ".join(f"long long a{index}" for index in range(16))
    source = f'extern "C" __global__ void many(long long *x, {fields}) {{ x[threadIdx.x] += a0 + a15; }}'
    kernel = await dev.nvrtc.compile(source, "many")
    x = dev.zeros(N, np.int64)
    graph = await dev.capture(lambda r: r.launch(kernel, 1, N, x, *range(16)))
    for _ in range(2):
        await graph.launch()
    del general[:]
    graph.update(graph.nodes[0], x, *range(16, 32))
    await graph.launch()
    assert general == ["update", "launch"]
    assert await values(x) == [2 * 15 + 16 + 31] * N


async def test_parameters_that_end_within_a_word_are_changed_whole(dev, general):
    source = 'extern "C" __global__ void mixed(double *x, char a, short b, float c) { x[threadIdx.x] += a + b + c; }'
    kernel = await dev.nvrtc.compile(source, "mixed")
    x = dev.zeros(N, np.float64)
    graph = await dev.capture(lambda r: r.launch(kernel, 1, N, x, 1, 1, 1.0))
    for _ in range(2):
        await graph.launch()
    del general[:]
    for a, b, c in ((-5, 300, 0.5), (np.int8(7), -32768, -0.25), (127, 2, np.float32(1.5))):
        graph.update(graph.nodes[0], x, a, b, c)
        await graph.launch()
    assert general == []
    assert await values(x) == [6 + 295.5 + 7 - 32768.25 + 130.5] * N


async def test_an_update_that_is_refused_changes_nothing_on_the_short_way(dev):
    graph, x, (node,) = await repeating(dev)
    graph.update(node, x, 7)
    for wrong in ((x, 2**31), (x, 1.5), (x,), (x, 1, 2), (x, None), (None, 1), (np.zeros(N, np.int32), 1)):
        with pytest.raises(InvalidArgument):
            graph.update(node, *wrong)
    await graph.launch()
    assert await values(x) == [7] * N
    x.free()
    with pytest.raises(InvalidArgument, match="was freed"):
        graph.update(node, x, 8)


async def test_the_arrays_of_an_update_may_be_marked(dev, general):
    twice = await compiled(dev, "twice")
    x, y = dev.full(N, 4, np.int32), dev.zeros(N, np.int32)
    graph = await dev.capture(lambda r: r.launch(twice, 1, N, read_only(x), y))
    for _ in range(2):
        await graph.launch()
    del general[:]
    graph.update(graph.nodes[0], read_only(x), y)
    await graph.launch()
    assert general == []
    graph.update(graph.nodes[0], x, y)  # what is known of the kernel says the same
    await graph.launch()
    assert await values(y) == [8] * N


@pytest.mark.sim_only
async def test_an_update_that_fails_on_the_short_way_fails_its_launch_and_the_next_one_builds(dev, general):
    graph, x, (node,) = await repeating(dev)
    del general[:]
    inject(dev, "cuGraphExecKernelNodeSetParams", atomr_trio.testing.ReturnStatus(801))
    graph.update(node, x, 5)
    with pytest.raises(CommandFailed, match="cuGraphExecKernelNodeSetParams") as caught:
        await graph.launch()
    assert caught.value.status == 801
    assert await values(x) == [0] * N
    await graph.launch()
    assert general == ["build", "launch"]
    graph.update(node, x, 6)
    await graph.launch()
    assert general == ["build", "launch"]
    assert await values(x) == [11] * N


@pytest.mark.sim_only
async def test_what_follows_an_update_that_failed_on_the_short_way_does_not_run_either(dev, general):
    graph, x, (first, second) = await repeating(dev, 2)

    async def launched() -> None:
        async with dev.batch() as batch:
            graph.update(first, x, 5)
            batch.launch_graph(graph)
            batch.launch_graph(graph)
            graph.update(second, x, 6)
            batch.launch_graph(graph)

    inject(dev, "cuGraphExecKernelNodeSetParams", atomr_trio.testing.ReturnStatus(801))
    with pytest.raises(CommandFailed, match="cuGraphExecKernelNodeSetParams"):
        await launched()
    assert await values(x) == [0] * N
    await launch_batched(dev, graph, 2)
    assert await values(x) == [22] * N


@pytest.mark.sim_only
async def test_what_the_driver_cannot_change_in_place_on_the_short_way_is_built_anew_by_the_worker(dev, general):
    graph, x, (first, second) = await repeating(dev, 2)
    del general[:]
    graph.update(first, x, 5)
    await graph.launch()
    inject(dev, "cuGraphExecKernelNodeSetParams", atomr_trio.testing.ReturnStatus(910))
    graph.update(second, x, 100)
    await graph.launch()
    graph.update(first, x, 1000)
    await graph.launch()
    assert general == []
    assert await values(x) == [6 + 105 + 1100] * N


async def test_a_graph_that_the_worker_builds_anew_has_the_numbers_of_earlier_updates(dev, general):
    add = await compiled(dev, "add")
    x, y, z = dev.zeros(N, np.int32), dev.zeros((2, N), np.int32), dev.full((2, N), 3, np.int32)
    nodes: list[Any] = []

    def record(recorder: Any) -> None:
        nodes.append(recorder.launch(add, 1, N, x, 1))
        nodes.append(recorder.copy(z[:, :2], y[:, :2]))

    graph = await dev.capture(record)
    for _ in range(2):
        await graph.launch()
    graph.update(nodes[0], x, 10)
    await graph.launch()
    del general[:]
    graph.update(nodes[1], z[:, 2:4], y[:, 2:4])  # rows, which the driver cannot change in place
    await graph.launch()
    assert general == ["update", "launch"]
    assert await values(x) == [22] * N
    assert await values(y) == [[3, 3, 3, 3, 0, 0, 0, 0]] * 2


async def test_an_update_on_the_short_way_is_kept_when_the_worker_is_lost(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            graph, x, (node,) = await repeating(dev)
            graph.update(node, x, 5)
            await graph.launch()
            assert await values(x) == [5] * N
            kill_worker(dev)
            await next_generation(dev, 1)
            await graph.launch()
            graph.update(node, x, 6)
            await graph.launch()
            assert await values(x) == [16] * N


async def test_updates_in_a_batch_go_the_short_way_from_the_first_on(dev, general):
    """Nothing is settled in a batch, so one that goes the general way would take all behind it along."""
    graph, x, nodes = await adding(dev, nodes=100)
    del general[:]
    async with dev.batch() as batch:
        for amount in range(1, 6):
            graph.update(nodes[amount], x, amount)
            batch.launch_graph(graph)
    assert general == []
    assert await values(x) == [sum(100 + amount * (amount - 1) // 2 for amount in range(1, 6))] * N


async def test_an_update_behind_a_launch_that_went_the_general_way_is_caught_up_with(dev, general):
    graph, x, (node,) = await adding(dev)
    await launch_batched(dev, graph, 1)
    del general[:]
    for amount in (2, 3):
        graph.update(node, x, amount)
        graph.launch_nowait()
    assert general == []
    for _ in range(MOST_CHANGES + 1):
        graph.update(node, x, 4)
    graph.launch_nowait()
    assert await values(x) == [1 + 2 + 3 + 4] * N
    assert general == []


async def test_a_launch_that_is_refused_in_another_thread_leaves_the_short_way_to_the_devices_own(dev, general):
    graph, x, (node,) = await adding(dev)
    await graph.launch()
    del general[:]
    with pytest.raises(OutsideRun):
        await trio.to_thread.run_sync(graph.launch_nowait)
    for amount in (10, 100):
        graph.update(node, x, amount)
        graph.launch_nowait()
    assert general == []
    assert await values(x) == [111] * N


async def test_more_changes_than_are_sent_one_by_one_go_the_general_way(dev, general):
    graph, x, nodes = await adding(dev, nodes=MOST_CHANGES + 1)
    del general[:]
    for node in nodes:
        graph.update(node, x, 2)
    await launch_batched(dev, graph, 1)
    assert general == ["update", "launch"]
    assert await values(x) == [2 * len(nodes)] * N


async def test_a_first_launch_behind_an_update_is_refused_without_its_module(dev):
    graph, x, (node,) = await adding(dev)
    graph.update(node, x, 2)
    (module,) = graph._plan.modules
    await module.unload()
    async with dev.batch() as batch:
        with pytest.raises(InvalidArgument, match="was unloaded"):
            batch.launch_graph(graph)
    assert await values(x) == [0] * N


async def test_a_batch_may_update_a_graph_more_often_than_a_lane_has_room(dev, general):
    graph, x, (node,) = await repeating(dev)
    expected = 0
    async with dev.batch() as batch:
        for amount in range(2000):
            graph.update(node, x, amount)
            try:
                batch.launch_graph(graph)
            except trio.WouldBlock:
                await batch.flush()
                batch.launch_graph(graph)
            expected += amount
    assert await values(x) == [expected] * N


@pytest.mark.parametrize("seed", range(6))
async def test_random_updates_and_launches_do_what_they_do_one_after_the_other(dev, seed):
    chance = random.Random(seed)
    mix = await compiled(dev, "mix")
    arrays = [dev.zeros(N, np.int32) for _ in range(2)]
    model = [0, 0]
    arguments = [[0, 1], [0, 2], [1, 3]]

    def record(recorder: Any) -> None:
        for at, number in arguments:
            recorder.launch(mix, 1, N, arrays[at], number)

    graphs = [(await dev.capture(record), arguments)]
    async with dev.batch() as batch:
        for _ in range(150):
            graph, arguments = chance.choice(graphs)
            match chance.choice(["number"] * 4 + ["batch"] * 4 + ["await", "nowait", "array", "clone"]):
                case "number":
                    node = chance.randrange(3)
                    arguments[node][1] = chance.randrange(10)
                    graph.update(graph.nodes[node], arrays[arguments[node][0]], arguments[node][1])
                    continue
                case "array":
                    node = chance.randrange(3)
                    arguments[node][0] = chance.randrange(2)
                    graph.update(graph.nodes[node], arrays[arguments[node][0]], arguments[node][1])
                    continue
                case "clone":
                    graphs = [*graphs[-2:], (graph.clone(), [list(each) for each in arguments])]
                    continue
                case "await":
                    await graph.launch()
                case "nowait":
                    graph.launch_nowait()
                case "batch":
                    batch.launch_graph(graph)
            for at, number in arguments:
                model[at] = (3 * model[at] + number) % 65521
    assert [await values(each) for each in arrays] == [[number] * N for number in model]
