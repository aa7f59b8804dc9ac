"""The nodes of a graph: a sequence that makes them when they are looked at."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from atomr_trio import Graph, GraphNode
from atomr_trio.libraries.graphs.nodes import Nodes

pytestmark = pytest.mark.used_workers

N = 300  # more than two rows of a plan


@pytest.fixture
async def arrays(dev) -> list[Any]:
    return [dev.zeros(4, np.int32) for _ in range(10)]


@pytest.fixture
async def graph(dev, arrays) -> Graph:
    """Fills of ten arrays, over and over."""
    made: Graph = await dev.capture(lambda recorder: [recorder.fill(arrays[number % 10], 1) for number in range(N)])
    return made


def shown(nodes: Any) -> list[tuple[int, str, tuple[int, ...]]]:
    return [(node.index, node.operation, node.after) for node in nodes]


def expected(numbers: range) -> list[tuple[int, str, tuple[int, ...]]]:
    return [(number, "fill", (number - 10,) if number >= 10 else ()) for number in numbers]


async def test_nodes_are_a_sequence_like_a_tuple(graph):
    nodes = graph.nodes
    assert isinstance(nodes, Sequence)
    assert len(nodes) == len(graph) == N
    assert all(type(node) is GraphNode for node in nodes)
    assert shown(nodes) == expected(range(N))
    assert shown(reversed(nodes)) == expected(range(N))[::-1]
    assert shown([nodes[0], nodes[-1], nodes[np.int64(7)], nodes[True]]) == [
        expected(range(N))[number] for number in (0, -1, 7, 1)
    ]
    for at in (slice(None), slice(2), slice(-3, None), slice(250, 20, -7), slice(N, None), slice(-2 * N, 2 * N)):
        assert type(nodes[at]) is tuple
        assert nodes[at] == tuple(nodes)[at]
    for at in (N, -N - 1):
        with pytest.raises(IndexError):
            nodes[at]
    for at in ("0", 0.0, None):
        with pytest.raises(TypeError):
            nodes[at]
    match nodes[:2]:
        case [first, GraphNode(index=1)]:
            assert first is nodes[0]
        case _:
            raise AssertionError("a slice is no sequence")


async def test_a_node_is_the_same_object_at_each_look(graph):
    nodes = graph.nodes
    assert nodes[17] is nodes[17 - N] is nodes[10:20][7] is list(nodes)[17]
    assert nodes[17] in nodes
    assert (nodes.index(nodes[17]), nodes.count(nodes[17])) == (17, 1)
    assert graph.nodes[17] not in nodes


async def test_nodes_are_equal_to_themselves_and_to_the_tuple_of_them(graph):
    nodes, others = graph.nodes, graph.nodes
    assert nodes == nodes
    assert nodes == tuple(nodes)
    assert tuple(nodes) == nodes
    assert nodes != others
    assert nodes != tuple(others)
    assert nodes != list(nodes)
    assert nodes != None  # noqa: E711
    assert len({nodes, tuple(nodes), others}) == 2
    assert repr(nodes) == repr(tuple(nodes))
    assert repr(nodes).startswith("(GraphNode(index=0, operation='fill', after=()), GraphNode(index=1,")


async def test_only_nodes_that_are_looked_at_are_made(graph):
    nodes = graph.nodes
    assert isinstance(nodes, Nodes)
    looked_at = iter(nodes)
    shown([next(looked_at), next(looked_at), nodes[-1], *nodes[100:103]])
    assert sorted(nodes._made) == [0, 1, 100, 101, 102, N - 1]


async def test_nodes_are_those_of_their_time_and_updates_take_them_later_too(graph, arrays):
    before = graph.nodes
    graph.update(before[20], arrays[5], 7)
    after, clone = graph.nodes, graph.clone()
    graph.update(after[20], arrays[0], 3)
    assert shown(before) == expected(range(N))
    changed = dict(enumerate(expected(range(N))))
    changed[20] = (20, "fill", (15,))
    changed[25] = (25, "fill", (20,))
    changed[30] = (30, "fill", (10,))
    assert after[-1].after == (N - 11,)  # the order is found out of turn
    assert after[30].after == (10,)
    assert shown(after) == list(changed.values())
    assert shown(graph.nodes) == expected(range(N))
    assert shown(clone.nodes) == list(changed.values())
    graph.update(clone.nodes[-1], arrays[9], 8)
    await graph.launch()
    assert (await arrays[9].to_host()).tolist() == [8] * 4
    assert (await arrays[0].to_host()).tolist() == [1] * 4


async def test_nodes_keep_no_array_alive(dev):
    arrays = [dev.zeros(4, np.int32), dev.zeros(4, np.int32)]
    graph = await dev.capture(lambda recorder: [recorder.fill(arrays[number], 1) for number in (0, 1, 1)])
    nodes = graph.nodes
    graph.update(nodes[0], arrays[1], 3)
    updated = graph.nodes
    gone = [weakref.ref(array) for array in arrays]
    arrays.clear()
    del graph
    gc.collect()
    assert [each() for each in gone] == [None, None]
    assert [node.after for node in updated] == [(), (0,), (1,)]
    assert [node.after for node in nodes] == [(), (), (1,)]
