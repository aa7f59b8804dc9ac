"""Graphs: what is recorded, in which order it runs, how it is changed, and what becomes of it when a worker is lost."""

from __future__ import annotations

import errno
import gc
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

import atomr_trio
from atomr_trio import (
    CommandFailed,
    ContextLost,
    DeviceClosed,
    Graph,
    GraphNode,
    GraphRecorder,
    InvalidArgument,
    OutOfDeviceMemory,
    OutOfHostMemory,
    RestartPolicy,
    StaleArray,
    StaleKernel,
    overwrites,
    read_only,
)
from atomr_trio._device.device import core_of
from atomr_trio._wire.records.memory import COPY, COPY_IN, FILL, MEMORY
from atomr_trio._wire.records.module import LAUNCH, MODULE
from atomr_trio.libraries.graphs import graph as graph_actor, plan as plan_module, repeated
from atomr_trio.libraries.graphs.records import GRAPH, Step, capturable, decode_steps, encode_steps
from atomr_trio.testing import inject
from support import set_constant
from support.rogue import WILD, compile_rogue, kill_worker, next_generation, until

pytestmark = pytest.mark.used_workers

ANY_NUMBER = RestartPolicy(intensity=math.inf)
DEADLINE = 60

SOURCE = r"""
extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }
extern "C" __global__ void scale(int *x, int a) { x[threadIdx.x] *= a; }
extern "C" __global__ void twice(const int *x, int *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
extern "C" __global__ void through(int **pointers) { pointers[0][threadIdx.x] += 1; }
extern "C" __global__ void sum(int *out, int count)
{
    extern __shared__ int shared[];
    for (int i = threadIdx.x; i < count; i += blockDim.x) shared[i] = 1;
    __syncthreads();
    int s = 0;
    for (int i = 0; i < count; i++) s += shared[i];
    out[threadIdx.x] = s;
}
"""
N = 8


async def compiled(dev: Any, *names: str) -> Any:
    kernels = [await dev.nvrtc.compile(SOURCE, name) for name in names]
    return kernels if len(kernels) > 1 else kernels[0]


async def values(array: Any) -> list[Any]:
    return (await array.to_host()).tolist()


def recording(*records: Callable[[GraphRecorder], Any]) -> tuple[Callable[[GraphRecorder], None], list[GraphNode]]:
    """A function for `capture` that records one thing after the other, and the nodes that it got."""
    nodes: list[GraphNode] = []

    def record(recorder: GraphRecorder) -> None:
        nodes.extend(each(recorder) for each in records)

    return record, nodes


@pytest.fixture
def sent(monkeypatch) -> list[str]:
    """The names of the graph engine's verbs, as they are published."""
    published: list[str] = []
    publish = atomr_trio._generation.order.Order.publish

    def note(order: Any, lane: int, verb: Any, *arguments: Any, **options: Any) -> Any:
        command = publish(order, lane, verb, *arguments, **options)
        if verb.engine == "graph":
            published.append(verb.name)
        return command

    monkeypatch.setattr(atomr_trio._generation.order.Order, "publish", note)
    return published


# --- what runs --------------------------------------------------------------------------------------------------------


async def test_a_graph_does_what_was_recorded_as_often_as_it_is_launched(dev, sent):
    add, twice = await compiled(dev, "add", "twice")
    x, y, z = dev.zeros(N, np.int32), dev.empty(N, np.int32), dev.empty((3, 5), np.float64)

    def record(recorder: GraphRecorder) -> None:
        recorder.launch(add, 1, N, x, 3)
        recorder.launch(twice, 1, N, read_only(x), overwrites(y))
        recorder.fill(z, 0.1)
        recorder.copy(y[::2], x[1::2])

    graph = await dev.capture(record)
    assert isinstance(graph, Graph)
    assert len(graph) == 4
    assert sent == ["build"]
    expected = np.zeros(N, np.int32)
    for _ in range(3):
        await graph.launch()
        expected += 3
        doubled = 2 * expected
        expected[1::2] = doubled[::2]
        assert (await x.to_host() == expected).all()
        assert (await y.to_host() == doubled).all()
        assert (await z.to_host() == 0.1).all()
    assert sent == ["build", "launch"]


async def test_nothing_runs_before_the_launch(dev):
    add = await compiled(dev, "add")
    x, fresh = await dev.to_device(np.arange(N, dtype=np.int32)), dev.full(N, 7, np.int32)
    record, _ = recording(lambda r: r.launch(add, 1, N, x, 1), lambda r: r.copy(x, fresh))
    await dev.capture(record)
    assert await values(x) == list(range(N))
    assert await values(fresh) == [7] * N


async def test_launches_without_waiting_are_in_order_with_what_follows(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(N, np.int32)
    record, _ = recording(lambda r: r.launch(add, 1, N, x, 1))
    graph = await dev.capture(record)
    for _ in range(50):
        graph.launch_nowait()
    await add.launch(1, N, x, 100)
    assert await values(x) == [150] * N


async def test_a_launch_may_ask_for_shared_memory_and_touch_what_it_is_not_given(dev):
    total, through = await compiled(dev, "sum", "through")
    x = dev.zeros(N, np.int32)
    pointers = await dev.to_device(np.array([x.address], np.uint64))
    count = dev.info.max_shared_bytes // 4
    record, nodes = recording(
        lambda r: r.launch(total, 1, N, x, count, shared_bytes=4 * count),
        lambda r: r.launch(through, 1, N, read_only(pointers), touches=[x]),
        lambda r: r.launch(through, 1, N, read_only(pointers), touches=iter([x])),
    )
    graph = await dev.capture(record)
    assert [node.after for node in nodes] == [(), (0,), (1,)]
    await graph.launch()
    assert await values(x) == [count + 2] * N
    graph.update(nodes[1], read_only(pointers))
    await graph.launch()
    assert await values(x) == [count + 2] * N


PATTERNS: tuple[tuple[Any, Any], ...] = (
    (np.bool_, True),
    (np.uint8, 200),
    (np.int16, -2),
    (np.float32, 0.1),
    (np.float64, 0.0),
    (np.float64, math.pi),
    (np.int64, -1),
    (np.complex128, 1 + 2j),
)


@pytest.mark.parametrize(("dtype", "value"), PATTERNS, ids=lambda each: getattr(each, "__name__", str(each)))
async def test_fills_of_every_width_and_layout(dev, dtype, value):
    whole, view = dev.empty(40_000, dtype), dev.zeros((6, 7, 8), dtype)
    record, _ = recording(
        lambda r: r.fill(whole, value),
        lambda r: r.fill(view[1:5, ::2, 1:6], value),
        lambda r: r.fill(view[0, ::-1], value),
        lambda r: r.fill(view[:, :0], value),
    )
    graph = await dev.capture(record)
    await graph.launch()
    expected = np.zeros((6, 7, 8), dtype)
    expected[1:5, ::2, 1:6] = expected[0] = value
    assert (await whole.to_host() == np.array(value, dtype)).all()
    assert (await view.to_host() == expected).all()


async def test_copies_of_every_layout(dev):
    host = np.arange(6 * 7 * 8, dtype=np.int16).reshape(6, 7, 8)
    source, target = await dev.to_device(host), dev.zeros((6, 7, 8), np.int16)
    expected = np.zeros_like(host)
    places = (np.s_[2, 3], np.s_[0:2, 1:4], np.s_[3:5, ::2, 1:6], np.s_[5, ::-1, ::3], np.s_[:0], np.s_[4, 6, 7])
    record, nodes = recording(*((lambda r, at=at: r.copy(source[at], target[at])) for at in places))
    graph = await dev.capture(record)
    assert [node.after for node in nodes] == [(), (0,), (1,), (2,), (3,), (4,)]
    await graph.launch()
    for at in places:
        expected[at] = host[at]
    assert (await target.to_host() == expected).all()


async def test_a_copy_within_an_array_is_a_write_of_it(dev):
    x = await dev.to_device(np.arange(10, dtype=np.int32))
    record, nodes = recording(lambda r: r.copy(x[:5], x[5:]), lambda r: r.copy(x[5:], x[:5]))
    graph = await dev.capture(record)
    assert nodes[1].after == (0,)
    await graph.launch()
    assert await values(x) == [0, 1, 2, 3, 4] * 2


# --- order ------------------------------------------------------------------------------------------------------------


async def test_edges_follow_from_what_is_done_to_the_arrays(dev):
    add, twice = await compiled(dev, "add", "twice")
    a, b, c, d = (dev.zeros(N, np.int32) for _ in range(4))
    record, nodes = recording(
        lambda r: r.fill(a, 1),
        lambda r: r.launch(twice, 1, N, read_only(a), overwrites(b)),
        lambda r: r.launch(twice, 1, N, read_only(a), overwrites(c)),
        lambda r: r.fill(d, 4),
        lambda r: r.launch(add, 1, N, a, 10),
        lambda r: r.copy(a, b),
        lambda r: r.launch(add, 1, N, d, 1),
    )
    graph = await dev.capture(record)
    assert [node.after for node in nodes] == [(), (0,), (0,), (), (1, 2), (4,), (3,)]
    assert [(node.index, node.operation) for node in graph.nodes] == [
        (0, "fill"),
        (1, "launch of twice"),
        (2, "launch of twice"),
        (3, "fill"),
        (4, "launch of add"),
        (5, "copy"),
        (6, "launch of add"),
    ]
    assert [node.after for node in graph.nodes] == [node.after for node in nodes]
    await graph.launch()
    assert [(await values(each))[0] for each in (a, b, c, d)] == [11, 11, 2, 5]


async def test_views_of_one_array_keep_the_order_of_the_recording(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(2 * N, np.int32)
    record, nodes = recording(lambda r: r.launch(add, 1, N, x[:N], 1), lambda r: r.launch(add, 1, N, x[N:], 2))
    await dev.capture(record)
    assert [node.after for node in nodes] == [(), (0,)]


def random_recordings(count: int) -> list[list[tuple[int, int, str]]]:
    """Kernels over a few arrays: a source, a target, and which kernel."""
    random = np.random.default_rng(1)
    return [
        [
            (int(random.integers(5)), int(random.integers(5)), str(random.choice(["add", "scale", "twice", "copy"])))
            for _ in range(25)
        ]
        for _ in range(count)
    ]


async def test_the_result_is_that_of_the_recorded_order(dev):
    """The simulator runs what no edge holds back in another order than the recording."""
    add, scale, twice = await compiled(dev, "add", "scale", "twice")
    for operations in random_recordings(6):
        arrays = [await dev.to_device(np.full(N, number, np.int32)) for number in range(5)]
        expected = [np.full(N, number, np.int64) for number in range(5)]

        def record(recorder: GraphRecorder, arrays: Any = arrays, operations: Any = operations) -> None:
            for source, target, kind in operations:
                if kind == "copy" and source != target:
                    recorder.copy(arrays[source], arrays[target])
                elif kind == "twice" and source != target:
                    recorder.launch(twice, 1, N, read_only(arrays[source]), overwrites(arrays[target]))
                else:
                    recorder.launch(scale if kind == "scale" else add, 1, N, arrays[target], 3)

        graph = await dev.capture(record)
        await graph.launch()
        for source, target, kind in operations:
            if kind in ("copy", "twice") and source != target:
                expected[target] = expected[source] * (2 if kind == "twice" else 1)
            else:
                expected[target] = expected[target] * 3 if kind == "scale" else expected[target] + 3
        for array, wanted in zip(arrays, expected, strict=True):
            assert (await array.to_host() == wanted.astype(np.int32)).all()


async def test_what_a_graph_does_to_an_array_is_the_strongest_of_its_nodes(dev):
    add, twice = await compiled(dev, "add", "twice")
    read, written, fresh, both, part, later = (dev.zeros(N, np.int32) for _ in range(6))
    record, _ = recording(
        lambda r: r.launch(twice, 1, N, read_only(read), overwrites(fresh)),
        lambda r: r.launch(twice, 1, N, read_only(fresh), written),
        lambda r: r.launch(add, 1, N, fresh, 1),
        lambda r: r.copy(read, both),
        lambda r: r.fill(part[1:], 1),
        lambda r: r.launch(twice, 1, N, read_only(part), both),
        lambda r: r.copy(later, written),
        lambda r: r.fill(later, 1),
    )
    graph = await dev.capture(record)
    roles = {block: role.value for block, role in graph._plan.operands}
    names = {"read": read, "written": written, "fresh": fresh, "both": both, "part": part, "later": later}
    assert {name: roles[array._block] for name, array in names.items()} == {
        "read": "reads",
        "written": "writes",
        "fresh": "overwrites",
        "both": "overwrites",
        "part": "writes",
        "later": "writes",
    }


# --- update and clone -------------------------------------------------------------------------------------------------


async def test_an_update_counts_from_the_next_launch_on_and_is_done_in_place(dev, sent):
    add = await compiled(dev, "add")
    x, y = dev.zeros(N, np.int32), dev.zeros(N, np.int32)
    target, other = dev.zeros(N, np.int32), dev.full(N, 50, np.int32)
    record, nodes = recording(
        lambda r: r.launch(add, 1, N, x, 1), lambda r: r.fill(y, 5), lambda r: r.copy(other, target)
    )
    graph = await dev.capture(record)
    await graph.launch()
    graph.update(nodes[0], x, 10)
    assert await values(x) == [1] * N
    await graph.launch()
    assert await values(x) == [11] * N
    graph.update(graph.nodes[1], y, 6)
    graph.update(nodes[2], x, other)
    await graph.launch()
    assert [(await values(each))[0] for each in (x, y, target, other)] == [21, 6, 50, 21]
    assert sent == ["build", "launch", "build", "launch"], (
        "numbers go the short way; the copy comes after the launch now"
    )


async def test_an_update_to_other_arrays_that_need_no_new_edge_is_in_place(dev, sent):
    twice = await compiled(dev, "twice")
    u, v = await dev.to_device(np.arange(N, dtype=np.int32)), dev.zeros(N, np.int32)
    record, nodes = recording(lambda r: r.launch(twice, 1, N, read_only(u), v))
    graph = await dev.capture(record)
    for _ in range(3):
        await graph.launch()
        u, v = v, u
        graph.update(nodes[0], read_only(u), v)
    assert await values(u) == [8 * number for number in range(N)]
    assert sent == ["build", "launch", "update", "launch", "update", "launch"]


async def test_an_update_that_brings_another_order_has_the_graph_built_anew(dev, sent):
    add, twice = await compiled(dev, "add", "twice")
    x, y, z = dev.full(N, 1, np.int32), dev.full(N, 2, np.int32), dev.zeros(N, np.int32)
    record, nodes = recording(lambda r: r.launch(add, 1, N, x, 10), lambda r: r.launch(twice, 1, N, read_only(y), z))
    graph = await dev.capture(record)
    graph.update(nodes[1], read_only(x), z)
    assert [node.after for node in graph.nodes] == [(), (0,)]
    await graph.launch()
    assert await values(z) == [22] * N
    graph.update(nodes[1], read_only(y), z)
    await graph.launch()
    assert await values(z) == [4] * N
    assert sent == ["build", "build", "launch", "update", "launch"], "fewer edges than were built do no harm"


async def test_what_the_driver_cannot_change_in_place_is_built_anew_by_the_worker(dev, sent):
    wide, rows, target = dev.zeros(N, np.float64), dev.zeros((4, 6), np.int32), dev.zeros((4, 6), np.int32)
    source = await dev.to_device(np.arange(24, dtype=np.int32).reshape(4, 6))
    record, nodes = recording(
        lambda r: r.fill(wide, 0), lambda r: r.copy(source[:, :2], target[:, :2]), lambda r: r.fill(rows[:, 1:], 1)
    )
    graph = await dev.capture(record)
    graph.update(nodes[0], wide, math.pi)
    graph.update(nodes[1], source[:3, 3:], target[1:, 2:5])
    graph.update(nodes[2], rows[1:3], 2)
    await graph.launch()
    assert await values(wide) == [math.pi] * N
    assert (await target.to_host())[1:, 2:5].tolist() == np.arange(24).reshape(4, 6)[:3, 3:].tolist()
    assert (await target.to_host())[:, :2].tolist() == [[0, 0]] * 4
    assert await values(rows) == [[0] * 6, [2] * 6, [2] * 6, [0] * 6]
    assert sent == ["build", "update", "launch"]


async def test_a_graph_that_the_worker_builds_anew_keeps_its_order(dev, sent):
    add = await compiled(dev, "add")
    x, y = dev.zeros((2, N), np.int32), dev.zeros((2, N), np.int32)
    record, nodes = recording(
        lambda r: r.launch(add, 1, 2 * N, x, 1),
        lambda r: r.copy(x[:, :2], y[:, :2]),
        lambda r: r.launch(add, 1, 2 * N, y, 10),
    )
    graph = await dev.capture(record)
    graph.update(nodes[1], x[:, 2:4], y[:, 2:4])
    await graph.launch()
    assert await values(y) == [[10, 10, 11, 11, 10, 10, 10, 10]] * 2
    assert sent == ["build", "update", "launch"]


async def test_a_copy_may_come_to_take_more_of_the_drivers_nodes(dev):
    x, y = await dev.to_device(np.arange(12, dtype=np.int32).reshape(3, 4)), dev.zeros((3, 4), np.int32)
    record, nodes = recording(lambda r: r.copy(x[0], y[0]))
    graph = await dev.capture(record)
    graph.update(nodes[0], x[::-1], y)
    await graph.launch()
    assert (await y.to_host() == np.arange(12).reshape(3, 4)[::-1]).all()
    graph.update(nodes[0], x, y)
    await graph.launch()
    assert (await y.to_host() == np.arange(12).reshape(3, 4)).all()


async def test_many_changes_at_a_time_are_a_build(dev, sent, monkeypatch):
    set_constant(monkeypatch, graph_actor, "LARGEST_UPDATE", 150)
    add = await compiled(dev, "add")
    x = dev.zeros(N, np.int32)
    set_constant(monkeypatch, repeated, "MOST_CHANGES", 3)
    record, nodes = recording(*[lambda r: r.launch(add, 1, N, x, 1)] * 4)
    graph = await dev.capture(record)
    graph.update(nodes[0], x, 2)
    await graph.launch()
    for node in nodes:
        graph.update(node, x, 100)
    await graph.launch()
    assert await values(x) == [405] * N
    assert sent == ["build", "update", "launch", "build", "launch"]


async def test_a_launch_runs_with_what_was_set_when_it_was_asked_for(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(N, np.int32)
    record, nodes = recording(lambda r: r.launch(add, 1, N, x, 1))
    graph = await dev.capture(record)
    asked = [graph._request(None) for _ in range(2)]
    graph.update(nodes[0], x, 1000)
    await graph.launch()
    for request in asked:
        await core_of(dev).module_actor.mailbox.ask(request)
        assert (await values(x))[0] in (1001, 1002)
    await graph.launch()
    assert await values(x) == [2002] * N


async def test_hundreds_of_updates_may_be_under_way(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(N, np.int32)
    record, nodes = recording(lambda r: r.launch(add, 1, N, x, 0))
    graph = await dev.capture(record)
    for number in range(400):
        graph.update(nodes[0], x, number)
        await_room = number % 100 == 99
        if await_room:
            await graph.launch()
        else:
            graph.launch_nowait()
    assert await values(x) == [sum(range(400))] * N


async def test_an_update_is_checked_like_what_was_recorded_and_changes_nothing_when_it_is_refused(dev):
    add = await compiled(dev, "add")
    x, y = dev.zeros(N, np.int32), dev.zeros(N, np.int32)
    record, nodes = recording(lambda r: r.launch(add, 1, N, x, 1), lambda r: r.fill(y, 1), lambda r: r.copy(x, y))
    graph = await dev.capture(record)
    freed = dev.zeros(N, np.int32)
    freed.free()
    refused: tuple[tuple[int, tuple[Any, ...], str], ...] = (
        (0, (x,), "2 arguments, got 1"),
        (0, (freed, 1), "freed"),
        (0, (x, 0.5), "int"),
        (1, (y,), "an array and a value"),
        (1, (y, 0.5), "cannot fill"),
        (1, (freed, 1), "freed"),
        (2, (x,), "a source and a target"),
        (2, (x, y[1:]), "shapes differ"),
        (2, (np.zeros(N, np.int32), y), "host"),
    )
    for index, arguments, words in refused:
        with pytest.raises(InvalidArgument, match=words):
            graph.update(nodes[index], *arguments)
    for wrong in (0, None, "add"):
        with pytest.raises(InvalidArgument, match="takes a node"):
            graph.update(wrong, x, 1)
    other_record, other_nodes = recording(lambda r: r.fill(x, 0))
    await dev.capture(other_record)
    with pytest.raises(InvalidArgument, match="another graph"):
        graph.update(other_nodes[0], x, 1)
    await graph.launch()
    assert await values(y) == [1] * N


async def test_a_clone_goes_its_own_way(dev, sent):
    add = await compiled(dev, "add")
    x, y = dev.zeros(N, np.int32), dev.zeros(N, np.int32)
    record, nodes = recording(lambda r: r.launch(add, 1, N, x, 1))
    graph = await dev.capture(record)
    clone = graph.clone()
    clone.update(nodes[0], y, 5)
    await graph.launch()
    await clone.launch()
    graph.update(nodes[0], x, 2)
    await clone.launch()
    await graph.launch()
    assert (await values(x), await values(y)) == ([3] * N, [10] * N)
    del graph, record
    gc.collect()
    await clone.launch()
    assert await values(y) == [15] * N


# --- lifetimes --------------------------------------------------------------------------------------------------------


async def add_then_copy(dev: Any, out: Any) -> tuple[Graph, GraphNode]:
    """A graph that adds 1 to an array of its own, and copies that to `out`. Nobody else has its array and kernel."""
    add, x = await compiled(dev, "add"), dev.zeros(N, np.int32)
    nodes = []

    def record(recorder: GraphRecorder) -> None:
        nodes.append(recorder.launch(add, 1, N, x, 1))
        recorder.copy(x, out)

    return await dev.capture(record), nodes[0]


def in_use(dev: Any) -> int:
    gc.collect()
    return dev.statistics().memory.in_use


async def test_a_graph_keeps_its_arrays_and_kernels_alive(dev):
    out = dev.zeros(N, np.int32)
    graph, _ = await add_then_copy(dev, out)
    assert in_use(dev) == 1024
    others = [await dev.to_device(np.full(N, 99, np.int32)) for _ in range(10)]
    await graph.launch()
    assert await values(out) == [1] * N
    assert [await values(other) for other in others] == [[99] * N] * 10
    del graph
    assert in_use(dev) == 512 * 11


async def test_what_an_update_replaces_is_let_go(dev):
    out, other = dev.zeros(N, np.int32), dev.zeros(N, np.int32)
    graph, node = await add_then_copy(dev, out)
    await graph.launch()
    assert in_use(dev) == 512 * 3
    graph.update(node, other, 5)
    graph.update(graph.nodes[1], other, out)
    assert in_use(dev) == 512 * 2
    await graph.launch()
    assert await values(out) == [5] * N


async def test_the_worker_is_told_of_graphs_that_nobody_has(dev, sent):
    x = dev.zeros(N, np.int32)
    record, _ = recording(lambda r: r.fill(x, 1))
    graph = await dev.capture(record)
    number = graph._number
    assert number in core_of(dev).current.graphs
    del graph
    gc.collect()
    await dev.capture(record)
    assert sent == ["build", "destroy", "build"]
    assert number not in core_of(dev).current.graphs


async def test_a_freed_array_is_refused_at_the_launch_until_the_node_gets_another(dev):
    add = await compiled(dev, "add")
    x, y = dev.zeros(N, np.int32), dev.zeros(N, np.int32)
    record, nodes = recording(lambda r: r.launch(add, 1, N, x, 1))
    graph = await dev.capture(record)
    x.free()
    with pytest.raises(InvalidArgument, match="freed"):
        await graph.launch()
    with pytest.raises(InvalidArgument, match="freed"):
        graph.launch_nowait()
    graph.update(nodes[0], y, 1)
    await graph.launch()
    assert await values(y) == [1] * N


async def test_an_array_freed_while_its_launch_is_queued_fails_that_launch_alone(dev):
    x, y = dev.zeros(N, np.int32), dev.zeros(N, np.int32)
    record, nodes = recording(lambda r: r.fill(x, 1))
    graph = await dev.capture(record)
    clone = graph.clone()
    x.free()
    request = graph_actor._LaunchRequest(clone, clone._plan, None)
    with pytest.raises(InvalidArgument, match="freed"):
        await core_of(dev).module_actor.mailbox.ask(request)
    graph.update(nodes[0], y, 2)
    await graph.launch()
    assert await values(y) == [2] * N
    assert dev.generation == 1


async def test_a_device_may_be_closed_with_graphs_built_and_under_way(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            add = await compiled(dev, "add")
            x = dev.zeros(N, np.int32)
            record, nodes = recording(lambda r: r.launch(add, 1, N, x, 1))
            graph = await dev.capture(record)
            graph.launch_nowait()
    with pytest.raises(DeviceClosed):
        await graph.launch()
    with pytest.raises(DeviceClosed):
        graph.launch_nowait()
    with pytest.raises(DeviceClosed):
        graph.update(nodes[0], x, 1)
    with pytest.raises(DeviceClosed):
        graph.clone()
    with pytest.raises(DeviceClosed):
        await dev.capture(record)


async def test_requests_of_graphs_are_counted_with_those_of_the_module_actor(dev):
    x = dev.zeros(N, np.int32)

    def count() -> tuple[int, int]:
        (module,) = (actor for actor in dev.statistics().actors if actor.name == "module")
        return module.accepted, module.settled.get("ok", 0)

    before = count()
    record, _ = recording(lambda r: r.fill(x, 1))
    graph = await dev.capture(record)
    await graph.launch()
    assert count() == (before[0] + 2, before[1] + 2)


# --- faults -----------------------------------------------------------------------------------------------------------


async def test_after_a_fault_a_graph_is_built_again_from_what_was_recorded_and_updated(open_test_device, sent):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            add, twice = await compiled(dev, "add", "twice")
            (wild,) = await compile_rogue(dev, "wild")
            x, y = dev.zeros(N, np.int32), dev.zeros(N, np.int32)
            record, nodes = recording(
                lambda r: r.launch(add, 1, N, x, 1), lambda r: r.launch(twice, 1, N, read_only(x), overwrites(y))
            )
            graph = await dev.capture(record)
            clone = graph.clone()
            await graph.launch()
            graph.update(nodes[0], x, 10)
            with pytest.raises(ContextLost):
                await wild.launch(1, 1, WILD)
            await next_generation(dev, 1)
            await graph.launch()
            assert await values(y) == [22] * N
            await clone.launch()
            assert await values(y) == [24] * N
            assert sent == ["build", "launch", "build", "launch", "build", "launch"]


async def test_a_fault_in_a_node_loses_the_context_and_tears_what_the_graph_writes(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            add, twice = await compiled(dev, "add", "twice")
            (wild,) = await compile_rogue(dev, "wild")
            kept, torn, healed = [await dev.to_device(np.arange(N, dtype=np.int32)) for _ in range(3)]
            record, _ = recording(
                lambda r: r.launch(twice, 1, N, read_only(kept), overwrites(healed)),
                lambda r: r.launch(wild, 1, 1, WILD, touches=[torn]),
            )
            graph = await dev.capture(record)
            with pytest.raises(ContextLost) as caught:
                await graph.launch()
            assert caught.value.status == 700
            await next_generation(dev, 1)
            assert (kept.state, torn.state, healed.state) == ("ready", "torn", "torn")
            assert await values(kept) == list(range(N))
            with pytest.raises(StaleArray, match="launch of a graph of 2 nodes"):
                await graph.launch()
            with pytest.raises(StaleArray, match="torn"):
                graph.launch_nowait()
            assert dev.generation == 2
            # A graph that overwrites a torn array before it does anything else with it makes it good again.
            record, _ = recording(
                lambda r: r.launch(twice, 1, N, read_only(kept), overwrites(healed)),
                lambda r: r.launch(add, 1, N, healed, 1),
                lambda r: r.fill(torn, 3),
            )
            repair = await dev.capture(record)
            await repair.launch()
            assert await values(healed) == [2 * number + 1 for number in range(N)]
            assert await values(torn) == [3] * N


async def test_launches_queued_when_the_worker_dies_run_in_the_next_generation(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            add = await compiled(dev, "add")
            x = dev.zeros(N, np.int32)
            record, _ = recording(lambda r: r.launch(add, 1, N, x, 1))
            graph = await dev.capture(record)
            await graph.launch()
            kill_worker(dev)
            await next_generation(dev, 1)
            await graph.launch()
            assert await values(x) == [2] * N


async def test_a_standby_has_built_the_graphs_before_it_is_needed(open_test_device, sent):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, restart_policy=ANY_NUMBER) as dev:
            add = await compiled(dev, "add")
            (wild,) = await compile_rogue(dev, "wild")
            x = dev.zeros(N, np.int32)
            record, _ = recording(lambda r: r.launch(add, 1, N, x, 1))
            early = await dev.capture(record)
            await dev.wait_standby()
            late = await dev.capture(record)
            standby = core_of(dev).standbys.generations[0]
            await until(lambda: standby.timeline.idle)
            assert {early._number, late._number} <= standby.graphs.keys()
            late.update(late.nodes[0], x, 10)
            sent.clear()
            with pytest.raises(ContextLost):
                await wild.launch(1, 1, WILD)
            await next_generation(dev, 1)
            await dev.wait_standby()
            sent.clear()
            await early.launch()
            await late.launch()
            assert [verb for verb in sent if verb != "build"] == ["launch", "update", "launch"]
            assert await values(x) == [11] * N


async def test_in_the_strict_mode_graphs_of_a_lost_generation_are_stale(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(on_fault="stale", restart_policy=ANY_NUMBER) as dev:
            add = await compiled(dev, "add")
            x = dev.zeros(N, np.int32)
            record, _ = recording(lambda r: r.launch(add, 1, N, x, 1))
            graph = await dev.capture(record)
            await graph.launch()
            await dev.restart("to make it stale")
            clone = graph.clone()
            for stale in (graph, clone):
                with pytest.raises(StaleKernel, match=r"(?s)generation 1.*capture it again"):
                    await stale.launch()
                with pytest.raises(StaleKernel):
                    stale.launch_nowait()
            with pytest.raises(StaleKernel, match="compile it again"):
                await dev.capture(record)
            again, y = await compiled(dev, "add"), dev.zeros(N, np.int32)
            record, _ = recording(lambda r: r.launch(again, 1, N, y, 1))
            fresh = await dev.capture(record)
            await fresh.launch()
            assert await values(y) == [1] * N


async def test_a_launch_longer_than_its_hang_timeout_costs_the_worker(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            (spin,) = await compile_rogue(dev, "spin")
            word = dev.zeros(1, np.int32)
            await word.to_host()
            record, _ = recording(lambda r: r.launch(spin, 1, 1, word.address))
            graph = await dev.capture(record)
            for bad in (0, -1, "1", True):
                with pytest.raises(InvalidArgument, match="hang_timeout"):
                    await graph.launch(hang_timeout=bad)
            with pytest.raises(ContextLost, match="launch of a graph of 1 nodes ran longer"):
                await graph.launch(hang_timeout=0.2)


@pytest.mark.sim_only
async def test_a_build_that_fails_is_tried_again_by_the_next_launch(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(N, np.int32)
    record, _ = recording(lambda r: r.launch(add, 1, N, x, 1))
    inject(dev, "cuGraphInstantiate", atomr_trio.testing.ReturnStatus(2))
    with pytest.raises(OutOfDeviceMemory):
        await dev.capture(record)
    graph = await dev.capture(record)
    clone = graph.clone()
    inject(dev, "cuGraphInstantiate", atomr_trio.testing.ReturnStatus(801))
    with pytest.raises(CommandFailed):
        await clone.launch()
    await clone.launch()
    assert await values(x) == [1] * N


@pytest.mark.sim_only
async def test_a_graph_is_uploaded_when_it_is_built_and_by_no_launch(dev):
    """Otherwise the first launch would take the time. A refused upload shows who has asked for one."""
    add = await compiled(dev, "add")
    x = dev.zeros(N, np.int32)
    record, _ = recording(lambda r: r.launch(add, 1, N, x, 1))
    graph = await dev.capture(record)
    inject(dev, "cuGraphUpload", atomr_trio.testing.ReturnStatus(801))
    await graph.launch()
    assert await values(x) == [1] * N
    with pytest.raises(CommandFailed, match="cuGraphUpload"):
        await dev.capture(record)
    await (await dev.capture(record)).launch()
    assert await values(x) == [2] * N


@pytest.mark.sim_only
async def test_an_update_that_fails_fails_its_launch_and_the_next_one_builds(dev, sent):
    add = await compiled(dev, "add")
    x = dev.zeros(N, np.int32)
    record, nodes = recording(lambda r: r.launch(add, 1, N, x, 1))
    graph = await dev.capture(record)
    inject(dev, "cuGraphExecKernelNodeSetParams", atomr_trio.testing.ReturnStatus(801))
    graph.update(nodes[0], x, 5)
    with pytest.raises(CommandFailed):
        await graph.launch()
    assert await values(x) == [0] * N
    await graph.launch()
    assert await values(x) == [5] * N
    assert sent == ["build", "update", "launch", "build", "launch"]
    inject(dev, "cuGraphExecKernelNodeSetParams", atomr_trio.testing.ReturnStatus(910))
    graph.update(nodes[0], x, 7)
    await graph.launch()
    assert await values(x) == [12] * N


@pytest.mark.sim_only
async def test_what_follows_an_update_that_failed_does_not_run_either(dev, sent):
    add = await compiled(dev, "add")
    x, y = dev.zeros(N, np.int32), dev.zeros(N, np.int32)
    record, nodes = recording(lambda r: r.launch(add, 1, N, x, 1), lambda r: r.launch(add, 1, N, y, 1))
    graph = await dev.capture(record)
    # With limits of their own the launches go the general way.
    inject(dev, "cuGraphExecKernelNodeSetParams", atomr_trio.testing.ReturnStatus(801))
    graph.update(nodes[0], x, 5)
    graph.launch_nowait(hang_timeout=DEADLINE)
    graph.update(nodes[1], y, 5)
    graph.launch_nowait(hang_timeout=DEADLINE)
    assert await values(x) == await values(y) == [0] * N
    await graph.launch()
    assert await values(x) == await values(y) == [5] * N
    assert sent == ["build", "update", "launch", "update", "launch", "build", "launch"]


async def test_a_process_without_descriptors_is_told_so_and_the_device_goes_on(open_test_device, monkeypatch):
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev:
            await dev.wait_standby()
            (standby,) = core_of(dev).standbys.generations
            x = dev.zeros(N, np.int32)
            await x.to_host()
            record, _ = recording(lambda r: r.fill(x, 1))
            with monkeypatch.context() as patch:
                patch.setattr(plan_module.os, "memfd_create", refuse)
                with pytest.raises(OutOfHostMemory, match="no file descriptor is left: RLIMIT_NOFILE"):
                    await dev.capture(record)
            graph = await dev.capture(record)
            clone = graph.clone()
            with monkeypatch.context() as patch:
                patch.setattr(plan_module.os, "memfd_create", refuse)
                clone._warm(standby)
            assert graph._number in standby.graphs
            assert clone._number not in standby.graphs
            await clone.launch()
            assert await values(x) == [1] * N


async def test_a_worker_that_dies_while_it_builds_loses_that_capture_alone(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            (spin,) = await compile_rogue(dev, "spin")
            word, x = dev.zeros(1, np.int32), dev.zeros(N, np.int32)
            await word.to_host()
            record, _ = recording(lambda r: r.fill(x, 1))
            spin.launch_nowait(1, 1, word.address)
            lost = []

            async def capture() -> None:
                with pytest.raises(ContextLost):
                    await dev.capture(record)
                lost.append(True)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(capture)
                await until(
                    lambda: any("graph.build" in operation for operation in core_of(dev).current.timeline.in_flight())
                )
                kill_worker(dev)
            assert lost
            await next_generation(dev, 1)
            graph = await dev.capture(record)
            await graph.launch()
            assert await values(x) == [1] * N


# --- what cannot be captured ------------------------------------------------------------------------------------------


async def test_other_verbs_say_that_they_cannot_be_captured(dev):
    x = dev.zeros(N, np.int32)
    refused = []

    def record(recorder: Any) -> None:
        for verb in ("to_host", "to_device", "copy_from", "copy_to", "compile", "launch_nowait", "zeros", "nvrtc"):
            with pytest.raises(InvalidArgument, match=f"^{verb} cannot be captured"):
                getattr(recorder, verb)
            refused.append(verb)
        assert not hasattr(recorder, "_anything")
        for host in (np.zeros(N, np.int32), [1, 2, 3]):
            for arguments in ((host, x), (x, host)):
                with pytest.raises(InvalidArgument, match="copy"):
                    recorder.copy(*arguments)
            with pytest.raises(InvalidArgument, match="fill"):
                recorder.fill(host, 0)
        recorder.fill(x, 1)

    graph = await dev.capture(record)
    assert len(refused) == 8
    assert len(graph) == 1


async def test_a_launch_that_would_run_at_once_is_refused_while_recording(dev):
    add = await compiled(dev, "add")
    x = dev.zeros(N, np.int32)
    record, _ = recording(lambda r: r.fill(x, 1))
    other = await dev.capture(record)
    for at_once in (lambda _: add.launch_nowait(1, N, x, 1), lambda _: other.launch_nowait()):
        with pytest.raises(InvalidArgument, match="launch_nowait cannot be captured"):
            await dev.capture(at_once)
    add.launch_nowait(1, N, x, 1)
    assert await values(x) == [1] * N


async def test_an_async_function_records_and_gives_way_to_other_tasks_meanwhile(dev):
    add = await compiled(dev, "add")
    x, y = dev.zeros(N, np.int32), dev.zeros(N, np.int32)

    async def record(recorder: GraphRecorder) -> None:
        for _ in range(3):
            recorder.launch(add, 1, N, x, 1)
            await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(InvalidArgument, match="launch_nowait cannot be captured"):
            add.launch_nowait(1, N, x, 1)

    async def elsewhere() -> None:
        add.launch_nowait(1, N, y, 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(elsewhere)
        graph = await dev.capture(record)
    assert await values(y) == [1] * N, "another task's launch is none of the recording's business"
    assert await values(x) == [0] * N
    await graph.launch()
    assert await values(x) == [3] * N


async def test_what_is_no_function_that_records_is_refused(dev):
    x = dev.zeros(N, np.int32)

    async def twice(recorder: GraphRecorder) -> Any:
        return twice(recorder)

    def generator(recorder: GraphRecorder) -> Any:
        yield recorder.fill(x, 1)

    async def both(recorder: GraphRecorder) -> Any:
        yield recorder.fill(x, 1)

    for function in (twice, generator, both):
        with pytest.raises(InvalidArgument, match="plain function or an async one"):
            await dev.capture(function)
    with pytest.raises(InvalidArgument, match="nothing was recorded"):
        await dev.capture(lambda recorder: None)
    for bad in (None, 1, "record"):
        with pytest.raises(InvalidArgument, match="record is a function"):
            await dev.capture(bad)
    assert await values(x) == [0] * N


async def test_an_error_of_the_recording_function_is_its_own_and_the_device_goes_on(dev):
    x = dev.zeros(N, np.int32)

    def broken(recorder: GraphRecorder) -> None:
        recorder.fill(x, 1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await dev.capture(broken)
    graph = await dev.capture(lambda recorder: recorder.fill(x, 2))
    await graph.launch()
    assert await values(x) == [2] * N


async def test_a_recorder_is_of_no_use_after_the_recording(dev):
    x = dev.zeros(N, np.int32)
    kept = []

    def record(recorder: GraphRecorder) -> None:
        kept.append(recorder)
        recorder.fill(x, 1)

    graph = await dev.capture(record)
    with pytest.raises(InvalidArgument, match="recording has ended"):
        kept[0].fill(x, 2)
    assert len(graph) == 1


async def test_arguments_are_checked_while_recording(dev, open_test_device):
    add = await compiled(dev, "add")
    x, y, freed = dev.zeros(N, np.int32), dev.zeros(N, np.float32), dev.zeros(N, np.int32)
    large = dev.empty((300, 301), np.int32)
    freed.free()
    cases: tuple[tuple[Callable[[Any], Any], str], ...] = (
        (lambda r: r.launch(add, 1, N, x), "2 arguments, got 1"),
        (lambda r: r.launch(add, 0, N, x, 1), "grid"),
        (lambda r: r.launch(add, 1, 2000, x, 1), "threads"),
        (lambda r: r.launch(add, 1, N, freed, 1), "freed"),
        (lambda r: r.launch(add, 1, N, x, 1, shared_bytes=-1), "shared_bytes"),
        (lambda r: r.launch(add, 1, N, x, 1, touches=x), "touches"),
        (lambda r: r.launch("add", 1, N, x, 1), "takes a kernel"),
        (lambda r: r.copy(x, y), "dtypes differ"),
        (lambda r: r.copy(x, x[1:]), "shapes differ"),
        (lambda r: r.copy(x[1:], x[:-1]), "share memory"),
        (lambda r: r.copy(x, freed), "freed"),
        (lambda r: r.copy(large[::-1, ::2], dev.empty((300, 151), np.int32)), "more than 256 boxes"),
        (lambda r: r.fill(x, 0.5), "cannot fill"),
        (lambda r: r.fill(freed, 1), "freed"),
        (lambda r: r.fill(3, 1), "device arrays"),
    )
    for record, words in cases:
        with pytest.raises(InvalidArgument, match=words):
            await dev.capture(record)
    async with open_test_device() as other:
        theirs, kernel = other.zeros(N, np.int32), await compiled(other, "add")
        foreign: tuple[Callable[[Any], Any], ...] = (
            lambda r: r.launch(add, 1, N, theirs, 1),
            lambda r: r.launch(kernel, 1, N, theirs, 1),
            lambda r: r.copy(theirs, x),
            lambda r: r.copy(x, theirs),
            lambda r: r.fill(theirs, 1),
        )
        for record in foreign:
            with pytest.raises(InvalidArgument, match="another device"):
                await dev.capture(record)


async def test_graphs_and_their_parts_show_what_they_are_and_cannot_be_made_by_hand(dev):
    x = dev.zeros(N, np.int32)
    shown = []
    graph = await dev.capture(lambda recorder: shown.append(repr(recorder)) or recorder.fill(x, 1))
    assert shown == ["<GraphRecorder with 0 nodes>"]
    assert repr(graph) == f"<Graph {graph._number} with 1 nodes>"
    assert repr(graph.nodes[0]) == "GraphNode(index=0, operation='fill', after=())"
    for cls in (Graph, GraphRecorder):
        with pytest.raises(TypeError, match="capture"):
            cls()


# --- records ----------------------------------------------------------------------------------------------------------


def test_steps_cross_to_the_worker_unchanged():
    steps = [
        Step(0, (), ()),
        Step(1, (0,), ((LAUNCH, b"kernel"), (COPY, b""))),
        Step(7, (0, 1, 6), ((FILL, bytes(100)),)),
    ]
    verbs = capturable((MEMORY, MODULE))
    assert list(decode_steps(encode_steps(steps), verbs)) == steps
    assert list(decode_steps(b"", verbs)) == []
    with pytest.raises(KeyError):
        list(decode_steps(encode_steps([Step(0, (), ((COPY_IN, bytes(24)),))]), verbs))


def test_only_what_may_take_long_holds_a_lane():
    assert {verb.name: verb.mode.value for verb in GRAPH.verbs} == {
        "build": "blocks",
        "launch": "enqueues",
        "update": "enqueues",
        "update_calls": "blocks",
        "set_arguments": "enqueues",
        "destroy": "blocks",
    }


async def test_a_large_graph_is_described_before_a_launch_that_builds_it(open_test_device, monkeypatch):
    set_constant(monkeypatch, graph_actor, "FEW", 4)
    set_constant(monkeypatch, graph_actor, "LARGEST_UPDATE", 150)
    async with open_test_device() as dev:
        x, y = dev.zeros(4, np.int32), dev.zeros(4, np.int32)
        graph = await dev.capture(lambda r: [r.fill(x, 1) for _ in range(8)])
        for node in graph.nodes:
            graph.update(node, y if node.index % 2 else x, 2)
        described = []
        build = graph_actor.Graph._build

        def note(self: Any, generation: Any, plan: Any, *more: Any) -> Any:
            described.append(plan.is_described)
            return build(self, generation, plan, *more)

        monkeypatch.setattr(graph_actor.Graph, "_build", note)
        with trio.CancelScope() as scope:
            scope.cancel()
            await graph.launch()
        assert not graph._plan.is_described
        assert described == []
        await graph.launch()
        assert described == [True]
        assert not graph._plan.is_described
        assert (await x.to_host()).tolist() == (await y.to_host()).tolist() == [2] * 4
