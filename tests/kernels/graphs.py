"""References of `graphs.cu`: the graphs of scipy, and Python's sets and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from .case import Arguments, Family, Given, Launch, Result, anything, equals, near, same_items

Generator = np.random.Generator

family = Family("graphs.cu")


def random_graph(rng: Generator, n: int, edges: int) -> sparse.csr_array:
    """No loops, weights of 1 to 9, and both directions of an edge with the same weight."""
    a, b = rng.integers(0, n, (2, edges))
    dense = np.zeros((n, n), np.int32)
    dense[a, b] = rng.integers(1, 10, edges)
    dense = np.maximum(dense, dense.T)
    np.fill_diagonal(dense, 0)
    return sparse.csr_array(dense)


def rows(graph: sparse.csr_array) -> tuple[Given, Given]:
    return Given(graph.indptr.astype(np.int32)), Given(graph.indices.astype(np.int32))


@family.program
def breadth_first(rng: Generator) -> Sequence[Launch]:
    n = 200
    graph = random_graph(rng, n, 260)
    distances = csgraph.shortest_path(graph, unweighted=True, indices=0)
    levels = np.where(np.isinf(distances), -1, distances).astype(np.int32)
    start = np.full(n, -1, np.int32)
    start[0] = 0
    out = Result(start, equals(levels))
    return [Launch("next_level", 4, 64, [*rows(graph), out, level, n]) for level in range(levels.max() + 1)]


@family.case(grid=1, block=64)
def shortest_paths(rng: Generator) -> Arguments:
    n, unreached = 150, 2**31 - 1
    graph = random_graph(rng, n, 250)
    distances = csgraph.dijkstra(graph, indices=0)
    expected = np.where(np.isinf(distances), unreached, distances).astype(np.int32)
    start = np.full(n, unreached, np.int32)
    start[0] = 0
    return (
        *(*rows(graph), Given(graph.data.astype(np.int32)), Result(start, equals(expected)), n),
        Result(np.zeros(1, np.int32), anything),
    )


@family.case(grid=1, block=(32, 16))
def all_distances(rng: Generator) -> Arguments:
    graph = random_graph(rng, 32, 50)
    dense = graph.toarray().astype(np.float32)
    start = np.where(dense > 0, dense, np.inf).astype(np.float32)
    np.fill_diagonal(start, 0)
    return (Result(start, equals(csgraph.floyd_warshall(graph).astype(np.float32))),)


@family.program
def union_find(rng: Generator) -> Sequence[Launch]:
    n = 300
    edges = rng.integers(0, n, (220, 2)).astype(np.int32)
    graph = sparse.coo_array((np.ones(220), edges.T), shape=(n, n))
    _, labels = csgraph.connected_components(graph, directed=False)
    least = np.array([np.flatnonzero(labels == label)[0] for label in labels], np.int32)
    parents = Result(np.arange(n, dtype=np.int32), equals(least))
    return [Launch("union_find", 4, 64, [Given(edges), 220, parents]), Launch("flatten_sets", 5, 64, [parents, n])]


@family.program
def page_rank(rng: Generator) -> Sequence[Launch]:
    n, damping = 100, 0.85
    graph = random_graph(rng, n, 400)
    links = (graph.toarray() > 0).astype(np.float64)
    shares = 1 / np.maximum(links.sum(axis=1), 1)
    expected = np.full(n, 1 / n)
    for _ in range(4):
        expected = (1 - damping) / n + damping * (expected * shares) @ links
    why = "4 rounds of sums of some ten positive terms"
    first = Result(np.full(n, 1 / n), near(expected, relative=1e-13, why=why))
    second, given = Result(np.zeros(n), anything), Given(shares)
    turns = [(first, second), (second, first)] * 2
    return [Launch("page_rank", 2, 64, [*rows(graph), given, old, new, damping, n]) for old, new in turns]


@family.case(grid=16, block=128)
def triangles(rng: Generator) -> Arguments:
    links = random_graph(rng, 64, 500).toarray() > 0
    words = np.packbits(links, axis=1, bitorder="little").view(np.uint64)
    cubed = np.linalg.matrix_power(links.astype(np.int64), 3)
    return Given(words), Result(np.zeros(1, np.uint32), equals([np.trace(cubed)]))


@family.case(grid=1, block=128)
def colours(rng: Generator) -> Arguments:
    n = 100
    graph = random_graph(rng, n, 300)
    ranks = rng.permutation(n).astype(np.int32)
    expected = np.full(n, -1, np.int32)
    for v in np.argsort(-ranks):
        used = set(expected[graph.indices[graph.indptr[v] : graph.indptr[v + 1]]].tolist())
        expected[v] = next(colour for colour in range(n) if colour not in used)
    return *rows(graph), Given(ranks), Result(np.full(n, -1, np.int32), equals(expected)), n


@family.program
def hash_table(rng: Generator) -> Sequence[Launch]:
    free, size = np.uint32(2**32 - 1), 128
    keys = (rng.integers(0, 90, 500) * 7919).astype(np.uint32)
    wanted = (np.arange(100) * 7919).astype(np.uint32)
    counter = Counter(keys.tolist())
    table = Result(np.full(size, free), same_items([*counter, *[free] * (size - len(counter))]))
    counts = Result(np.zeros(size, np.uint32), same_items([*counter.values(), *[0] * (size - len(counter))]))
    found = Result(np.full(100, 99, np.uint32), equals(np.array([counter[key] for key in wanted.tolist()], np.uint32)))
    return [
        Launch("count_keys", 8, 64, [Given(keys), 500, table, counts, size]),
        Launch("look_up", 2, 64, [Given(wanted), 100, table, counts, size, found]),
    ]


def scattered(x: np.ndarray) -> np.ndarray:
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    return x ^ x >> np.uint32(16)


@family.case(grid=2, block=64)
def bloom_filter(rng: Generator) -> Arguments:
    size = 1000
    keys = rng.integers(0, 2**32, 128, dtype=np.uint32)
    first = scattered(keys)
    step = scattered(first) | np.uint32(1)
    bits = np.zeros(1024, bool)
    for k in range(3):
        bits[(first + np.uint32(k) * step) % np.uint32(size)] = True
    words = np.packbits(bits, bitorder="little").view(np.uint32)
    return Given(keys), Result(np.zeros(32, np.uint32), equals(words)), size


@family.case(grid=4, block=32)
def stack_of_nodes(rng: Generator) -> Arguments:
    """Half of the threads also pop: no node comes twice."""
    threads = 128

    def check(popped: np.ndarray) -> None:
        nodes = popped[popped > 0]
        assert nodes.size == threads // 2
        assert {*nodes.tolist()} <= {*range(1, threads + 1)}
        assert np.unique(nodes).size == nodes.size

    return (
        *(Result(np.zeros(1, np.uint64), anything), Result(np.zeros(threads + 1, np.int32), anything)),
        *(Result(np.zeros(threads, np.int32), check), Result(np.zeros(1, np.int32), equals([threads // 2]))),
    )


@family.case(grid=8, block=1)
def ring(rng: Generator) -> Arguments:
    size, each = 4, 12
    out = Result(np.zeros(4 * each, np.int32), equals(np.arange(4 * each, dtype=np.int32) * 3 + 1))
    turns, places = Result(np.zeros(size, np.uint32), anything), Result(np.zeros(size, np.int32), anything)
    heads = Result(np.zeros(2, np.uint32), equals([4 * each] * 2))
    return turns, places, heads, size, each, out


@family.case(grid=1, block=64)
def largest(rng: Generator) -> Arguments:
    x = rng.integers(-(2**31), 2**31, (64, 20)).astype(np.int32)
    x[0], x[1, :3] = -(2**31), 2**31 - 1
    return Given(x), 20, Result(np.zeros(8, np.int32), equals(np.sort(x, axis=None)[::-1][:8]))


@family.case(grid=6, block=8)
def readers_and_writers(rng: Generator) -> Arguments:
    each = 3
    return (
        *(Result(np.zeros(1, np.uint32), equals([0])), Result(np.zeros(2, np.int32), equals([6 * each, -6 * each]))),
        *(Result(np.zeros(1, np.int32), equals([0])), each),
    )
