"""Graphs with calls of libraries: what they compute, how they are changed, and what faults and refusals leave."""

from __future__ import annotations

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
    GraphNode,
    GraphRecorder,
    InvalidArgument,
    OutOfDeviceMemory,
    RecordedBlas,
    RestartPolicy,
    StaleArray,
    overwrites,
    read_only,
)
from atomr_trio._device.device import core_of
from atomr_trio.testing import Poison, ReturnStatus, inject
from support.linear import find
from support.rogue import WILD, compile_rogue, gated, kill_worker, next_generation, until
from support.verbs import VERBS, dtype_of

pytestmark = pytest.mark.used_workers

ANY_NUMBER = RestartPolicy(intensity=math.inf)
DEADLINE = 60
ROOM = 32 << 20
"""The bytes that captured calls of cuBLAS work in."""
SOURCE = """
extern "C" __global__ void add(float *x, float a) { x[threadIdx.x] += a; }
extern "C" __global__ void twice(const float *x, float *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
"""


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 1) -> np.ndarray:
    """Small whole numbers: sums and products of them are exact."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


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


async def captured(dev: Any, *records: Callable[[GraphRecorder], Any]) -> tuple[Any, list[Any], list[GraphNode]]:
    """A graph of one thing after the other; what each has returned, and its node."""
    returned: list[Any] = []
    nodes: list[GraphNode] = []

    def record(graph: GraphRecorder) -> None:
        for each in records:
            returned.append(each(graph))
            nodes.append(graph.last)

    return await dev.capture(record), returned, nodes


# --- what is computed -------------------------------------------------------------------------------------------------


async def test_a_product_is_computed_anew_with_each_launch(dev, sent):
    a, b = numbers(5, 7), numbers(7, 3, seed=2)
    x, y = await dev.to_device(a), await dev.to_device(b)
    graph, (c,), _ = await captured(dev, lambda g: g.blas.gemm(x, y))
    assert (c.shape, c.dtype) == ((5, 3), np.float32)
    for step in range(4):
        await x.copy_from(a + step)
        await graph.launch()
        assert (await c.to_host() == (a + step) @ b).all()
    assert sent == ["build", "launch"]


async def test_what_is_updated_in_place_goes_on_from_launch_to_launch(dev):
    x, y = await dev.to_device(numbers(9)), dev.zeros(9, np.float32)
    graph, (result,), _ = await captured(dev, lambda g: g.blas.axpy(x, y, 3))
    assert result is y
    for _ in range(50):
        graph.launch_nowait()
    assert (await y.to_host() == 150 * numbers(9)).all()


async def test_kernels_calls_and_copies_in_one_chain(dev):
    add, twice = [await dev.nvrtc.compile(SOURCE, name) for name in ("add", "twice")]
    a, b = numbers(4, 4), numbers(4, 4, seed=2)
    x, y = await dev.to_device(a), await dev.to_device(b)
    doubled, total = dev.empty((4, 4), np.float32), dev.zeros((4, 4), np.float32)
    kept = dev.empty((4, 4), np.float32)

    def record(graph: GraphRecorder) -> None:
        graph.launch(add, 1, 16, x, 1.0)
        graph.launch(twice, 1, 16, read_only(x), overwrites(doubled))
        product = graph.blas.gemm(doubled, y)
        graph.copy(product, kept)
        graph.blas.axpy(product.reshape(-1), total.reshape(-1), 0.5)
        graph.blas.scal(product.reshape(-1), 10)
        graph.launch(add, 1, 16, total, 7.0)

    graph = await dev.capture(record)
    assert [node.operation for node in graph.nodes] == [
        "launch of add",
        "launch of twice",
        "blas.gemm",
        "copy",
        "blas.axpy",
        "blas.scal",
        "launch of add",
    ]
    assert [node.after for node in graph.nodes] == [(), (0,), (1,), (2,), (2,), (3, 4), (4,)]
    expected = np.zeros((4, 4), np.float32)
    for step in range(1, 4):
        await graph.launch()
        product = 2 * (a + step) @ b
        expected += product / 2 + 7
        assert (await kept.to_host() == product).all()
        assert (await total.to_host() == expected).all()


ANSWER = {"blas.dot", "blas.nrm2", "blas.asum", "blas.iamax", "blas.iamin"}
OF_A_TABLE = {"blas.trsm_batched"}
BLAS = {name: given for name, given in VERBS.items() if name.startswith("blas.")}
WITHOUT_OUT = {
    f"{name} without out": tuple(
        {key: value for key, value in each.items() if key != "out"} if isinstance(each, dict) else each
        for each in given
    )
    for name, given in BLAS.items()
    if name not in ANSWER and any(isinstance(each, dict) and "out" in each for each in given)
}
COMPLEX = ("hemv", "hbmv", "her", "her2")


async def arguments_of(dev: Any, name: str, given: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a right call of `VERBS`, as arrays of small numbers; matrices can be divided by."""
    positional: list[Any] = []
    by_name: dict[str, Any] = {}

    async def put(value: Any) -> Any:
        if isinstance(value, list):
            return [await put(each) for each in value]
        if not isinstance(value, tuple):
            return value
        shape, dtype = dtype_of(value)
        if name.split()[0].removeprefix("blas.") in COMPLEX:
            dtype = "complex64"
        host = numbers(*shape, dtype=dtype, seed=len(positional) + len(by_name) + 3)
        if len(shape) == 2 and shape[0] == shape[1]:
            host += 16 * np.eye(shape[0], dtype=dtype)
        return await dev.to_device(host)

    for each in given:
        if isinstance(each, dict):
            by_name |= {key: await put(value) for key, value in each.items()}
        else:
            positional.append(await put(each))
    return positional, by_name


def arrays_in(*values: Any) -> list[Any]:
    """The arrays among values, in lists too."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, list | tuple):
            found += arrays_in(*value)
        elif isinstance(value, atomr_trio.DeviceArray):
            found.append(value)
    return found


async def hosts(*values: Any) -> list[np.ndarray]:
    return [await array.to_host() for array in arrays_in(*values)]


@pytest.mark.parametrize("name", [*BLAS, *WITHOUT_OUT])
async def test_every_verb_does_in_a_graph_what_it_does_when_it_is_awaited(dev, name):
    """Twice, from the same contents: what a call makes for itself, such as zeros to add to, is made each time."""
    path, given = name.split()[0], (BLAS | WITHOUT_OUT)[name]
    positional, by_name = await arguments_of(dev, name, given)
    before = await hosts(positional, list(by_name.values()))
    result = await find(dev, path)(*positional, **by_name)
    expected = await hosts(result, positional, list(by_name.values()))
    if path in OF_A_TABLE:
        with pytest.raises(InvalidArgument, match=f"{path} of these arrays cannot be captured.*table of addresses"):
            await captured(dev, lambda g: find(g, path)(*positional, **by_name))
        return
    graph, (result,), nodes = await captured(dev, lambda g: find(g, path)(*positional, **by_name))
    assert nodes[0].operation == path
    for _ in range(2):
        for array, host in zip(arrays_in(positional, list(by_name.values())), before, strict=True):
            await array.copy_from(host)
        await graph.launch()
        for found, wanted in zip(await hosts(result, positional, list(by_name.values())), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


async def test_arrays_that_have_to_be_copied_first_are_copied_with_each_launch(dev):
    """Strides that cuBLAS does not take, bytes that are padded, a conjugate without a transposition."""
    host, bytes_, complex_ = numbers(8, 10), numbers(5, 6, dtype=np.int8), numbers(4, 4) + 1j * numbers(4, 4, seed=5)
    x, y = await dev.to_device(host), await dev.to_device(bytes_)
    z = await dev.to_device(complex_.astype(np.complex64))
    graph, (strided, padded, conjugated), _ = await captured(
        dev,
        lambda g: g.blas.gemm(x[::2, ::3], x[::2, ::3], op_b="T"),
        lambda g: g.blas.gemm(y, y, op_b="T"),
        lambda g: g.blas.gemv(z.T, z[0], op_a="C"),
    )
    for step in range(2):
        await x.copy_from(host + step)
        await graph.launch()
        part = (host + step)[::2, ::3]
        assert (await strided.to_host() == part @ part.T).all()
        assert (await padded.to_host() == bytes_.astype(np.int32) @ bytes_.T.astype(np.int32)).all()
        assert (await conjugated.to_host() == complex_.T.conj().T @ complex_[0]).all()


async def test_stacks_of_matrices_and_empty_ones(dev):
    a, b = numbers(3, 2, 4), numbers(3, 4, 5, seed=2)
    x, y, nothing = await dev.to_device(a), await dev.to_device(b), dev.empty((0, 4), np.float32)
    columns = dev.empty((4, 0), np.float32)
    graph, (stack, empty, zero), nodes = await captured(
        dev,
        lambda g: g.blas.gemm(x, y),
        lambda g: g.blas.gemm(nothing, y[0]),
        lambda g: g.blas.gemm(columns, nothing),
    )
    await graph.launch()
    assert (await stack.to_host() == a @ b).all()
    assert (await empty.to_host()).shape == (0, 5)
    assert (await zero.to_host() == np.zeros((4, 4))).all()
    assert [node.after for node in nodes] == [(), (), ()]


async def test_scalars_on_the_device_are_read_by_the_launch(dev):
    x, factor = await dev.to_device(numbers(6)), await dev.to_device(np.float32(2))
    result = dev.empty((), np.float32)
    graph, _, nodes = await captured(dev, lambda g: g.blas.scal(x, factor), lambda g: g.blas.dot(x, x, out=result))
    assert nodes[1].after == (0,)
    await graph.launch()
    await factor.copy_from(np.array(5, np.float32))
    await graph.launch()
    expected = 10 * numbers(6)
    assert (await x.to_host() == expected).all()
    assert await result.to_host() == expected @ expected


async def test_two_graphs_share_arrays_and_are_in_order(dev):
    a = numbers(4, 4)
    x, y = await dev.to_device(a), await dev.to_device(np.eye(4, dtype=np.float32))
    square = dev.empty((4, 4), np.float32)
    first, _, _ = await captured(dev, lambda g: g.blas.gemm(x, y, out=square))
    second, _, _ = await captured(dev, lambda g: g.blas.axpy(square.reshape(-1), y.reshape(-1)))
    expected = np.eye(4, dtype=np.float32)
    for _ in range(3):
        first.launch_nowait()
        second.launch_nowait()
        expected = expected + a @ expected
    assert (await y.to_host() == expected).all()


async def test_launches_in_a_batch_are_in_order_with_the_calls_around_them(dev):
    x, y = await dev.to_device(numbers(8)), dev.zeros(8, np.float32)
    graph, _, _ = await captured(dev, lambda g: g.blas.axpy(x, y), lambda g: g.blas.scal(y, 2))
    expected = np.zeros(8, np.float32)
    async with dev.batch() as batch:
        for _ in range(20):
            batch.launch_graph(graph)
            batch.blas.axpy(x, y, -1)
            expected = 2 * (expected + numbers(8)) - numbers(8)
    assert (await y.to_host() == expected).all()


async def test_another_lane_works_while_graphs_are_captured(dev):
    """It makes handles, memory and modules, all of which a capture forbids to the thread that captures."""
    a = numbers(6, 6)
    x, y = await dev.to_device(a), await dev.to_device(a)
    done = trio.Event()
    rounds = 0

    async def elsewhere() -> None:
        nonlocal rounds
        while not done.is_set():
            async with dev.lane() as lane, dev.batch(lane=lane) as batch:
                product = batch.blas.gemm(y, y)
                with dev.zeros(16, np.float32, guarded=True) as fresh:
                    batch.blas.scal(fresh, 2)
            assert (await product.to_host() == a @ a).all()
            rounds += 1

    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(elsewhere)
            for _ in range(12):
                graph, (c, d), _ = await captured(dev, lambda g: g.blas.gemm(x, x), lambda g: g.blas.gemm(x, x.T))
                await graph.launch()
                assert (await c.to_host() == a @ a).all()
                assert (await d.to_host() == a @ a.T).all()
            await until(lambda: rounds > 2)
            done.set()
    assert dev.generation == 1


# --- update and clone -------------------------------------------------------------------------------------------------


async def test_an_update_gives_a_call_other_arguments_in_place(dev, sent):
    a, b = numbers(5, 5), numbers(5, 5, seed=2)
    x, y = await dev.to_device(a), await dev.to_device(b)
    graph, (c, d), (first, second) = await captured(dev, lambda g: g.blas.gemm(x, x), lambda g: g.blas.gemm(y, y))
    graph.update(first, y, x, alpha=3)
    await graph.launch()
    assert (await c.to_host() == 3 * b @ a).all()
    graph.update(first, x, x, op_b="T")
    graph.update(second, b=x, a=y)
    await graph.launch()
    assert (await c.to_host() == a @ a.T).all()
    assert (await d.to_host() == b @ a).all()
    assert sent == ["build", "update_calls", "launch", "update_calls", "launch"]


async def test_without_out_the_result_stays_where_it_was_and_with_out_it_goes_there(dev):
    a = numbers(3, 3)
    x, other = await dev.to_device(a), dev.zeros((3, 3), np.float32)
    graph, (c,), (node,) = await captured(dev, lambda g: g.blas.gemm(x, x))
    await graph.launch()
    graph.update(node, x, x, out=other)
    await c.fill(0)
    await graph.launch()
    assert (await other.to_host() == a @ a).all()
    assert (await c.to_host() == 0).all()
    graph.update(node, x, x, alpha=2)
    await graph.launch()
    assert (await c.to_host() == 2 * a @ a).all()
    assert (await other.to_host() == a @ a).all()


async def test_an_update_that_is_another_graph_to_the_driver_is_built_by_the_worker(dev, sent):
    """A strided operand is copied first: one node more."""
    host = numbers(4, 8)
    x, y = await dev.to_device(host), await dev.to_device(numbers(4, 4, seed=2))
    graph, (c, d), (node, _) = await captured(dev, lambda g: g.blas.gemm(y, y), lambda g: g.blas.gemm(y, y, alpha=2))
    graph.update(node, x[:, ::2], y)
    await graph.launch()
    assert (await c.to_host() == host[:, ::2] @ numbers(4, 4, seed=2)).all()
    graph.update(node, y, y)
    await graph.launch()
    square = numbers(4, 4, seed=2) @ numbers(4, 4, seed=2)
    assert (await c.to_host() == square).all()
    assert (await d.to_host() == 2 * square).all()
    assert sent == ["build", "update_calls", "launch", "update_calls", "launch"]


async def test_a_call_that_had_nothing_to_do_may_get_something(dev):
    x, nothing = await dev.to_device(numbers(5)), dev.empty(0, np.float32)
    y = dev.zeros(5, np.float32)
    graph, _, (node,) = await captured(dev, lambda g: g.blas.axpy(nothing, nothing.reshape(-1)))
    await graph.launch()
    graph.update(node, x, y)
    await graph.launch()
    assert (await y.to_host() == numbers(5)).all()


async def test_an_update_that_does_not_fit_is_refused_and_changes_nothing(dev):
    x, wide = await dev.to_device(numbers(3, 3)), await dev.to_device(numbers(3, 5))
    freed = dev.zeros((3, 3), np.float32)
    freed.free()
    out = dev.zeros((3, 3), np.float32)
    graph, (c, _), (node, given) = await captured(
        dev, lambda g: g.blas.gemm(x, x), lambda g: g.blas.gemm(x, x, out=out)
    )
    fill = (await captured(dev, lambda g: g.fill(out, 1)))[2][0]
    in_use = dev.statistics().memory.in_use
    for arguments, keywords, words in (
        ((x, wide), {}, r"shape \(3, 5\).*\(3, 3\) and float32.*give out"),
        ((x, freed), {}, "freed"),
        ((x, x), {"beta": 1.0}, "give out"),
        ((x, x), {"out": wide}, "out has shape"),
        ((x, np.eye(3)), {}, "b is an array"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            graph.update(node, *arguments, **keywords)
    with pytest.raises(InvalidArgument, match="no array for the result: give out"):
        graph.update(given, x, x)
    with pytest.raises(InvalidArgument, match="another graph"):
        graph.update(fill, out, value=2)
    gc.collect()
    assert dev.statistics().memory.in_use == in_use
    await graph.launch()
    assert (await c.to_host() == numbers(3, 3) @ numbers(3, 3)).all()


async def test_only_calls_of_libraries_are_updated_by_keywords(dev):
    x = dev.zeros(4, np.float32)
    graph, _, (node,) = await captured(dev, lambda g: g.fill(x, 1))
    with pytest.raises(InvalidArgument, match="fill is updated by its arguments in order"):
        graph.update(node, x, value=2)


async def test_a_clone_has_calls_and_workspaces_of_its_own(dev):
    x, y, z = await dev.to_device(numbers(7)), dev.zeros(7, np.float32), dev.zeros(7, np.float32)
    graph, _, (node,) = await captured(dev, lambda g: g.blas.axpy(x, y))
    clone = graph.clone()
    clone.update(node, x, z, 5)
    for _ in range(2):
        await graph.launch()
        await clone.launch()
    del graph
    gc.collect()
    await clone.launch()
    assert (await y.to_host() == 2 * numbers(7)).all()
    assert (await z.to_host() == 15 * numbers(7)).all()


# --- lifetimes --------------------------------------------------------------------------------------------------------


def in_use(dev: Any) -> int:
    gc.collect()
    return dev.statistics().memory.in_use


async def test_a_graph_keeps_its_results_and_what_its_calls_need_alive(dev):
    before = in_use(dev)
    x = await dev.to_device(numbers(8, 16))
    graph, returned, _ = await captured(dev, lambda g: g.blas.gemm(x[:, ::2], x[:, ::2]))
    held = in_use(dev)
    assert held >= before + 512 + 3 * 256
    returned.clear()
    assert in_use(dev) == held
    others = [await dev.to_device(np.full((8, 8), 99, np.float32)) for _ in range(5)]
    await graph.launch()
    assert all((host == 99).all() for host in await hosts(others))
    del graph, others
    assert in_use(dev) == before + 512


async def test_a_freed_result_is_refused_until_the_node_gets_another(dev):
    x, other = await dev.to_device(numbers(3, 3)), dev.zeros((3, 3), np.float32)
    graph, (c,), (node,) = await captured(dev, lambda g: g.blas.gemm(x, x))
    c.free()
    with pytest.raises(InvalidArgument, match="freed"):
        await graph.launch()
    with pytest.raises(InvalidArgument, match="freed"):
        graph.update(node, x, x)
    graph.update(node, x, x, out=other)
    await graph.launch()
    assert (await other.to_host() == numbers(3, 3) @ numbers(3, 3)).all()


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("memory", "limit", "words"),
    [(320 << 20, 1 << 30, "cuMemAlloc"), (1 << 30, 250 << 20, "the memory limit leaves")],
    ids=["the GPU's memory", "the limit"],
)
async def test_workspaces_are_given_back_with_their_graphs(open_test_device, monkeypatch, memory, limit, words):
    """A workspace has 32 MiB: there is memory for a few of them at a time."""
    monkeypatch.setenv("ATOMR_TRIO_SIM_MEMORY", str(memory))
    async with open_test_device(memory_limit=limit) as dev:
        x, y, nothing = await dev.to_device(numbers(4)), dev.zeros(4, np.float32), dev.empty(0, np.float32)
        graph, _, (node,) = await captured(dev, lambda g: g.blas.axpy(x, y))
        for number in range(40):  # each change is another graph to the driver
            graph.update(node, *((nothing, dev.empty(0, np.float32)) if number % 2 else (x, y)))
            await graph.launch()
        assert (await y.to_host() == 20 * numbers(4)).all()
        kept = [graph]

        async def capture_more() -> None:
            for _ in range(12):
                kept.extend((await captured(dev, lambda g: g.blas.axpy(x, y)))[:1])

        for _ in range(3):
            with pytest.raises(OutOfDeviceMemory, match=words):
                await capture_more()
            assert len(kept) > 3
            del kept[1:]
            gc.collect()
        await graph.launch()
        assert (await y.to_host() == 20 * numbers(4)).all()


@pytest.mark.sim_only
async def test_the_workspace_of_captured_calls_is_counted_while_the_graph_lives(open_test_device):
    async with open_test_device(memory_limit=256 << 20, restart_policy=ANY_NUMBER) as dev:
        x, y = await dev.to_device(numbers(4)), dev.zeros(4, np.float32)
        graph, _, (node,) = await captured(dev, lambda g: g.blas.axpy(x, y))
        assert dev.statistics().memory.workspaces == ROOM
        other, _, (_, _) = await captured(dev, lambda g: g.blas.axpy(x, y), lambda g: g.blas.axpy(x, y))
        assert dev.statistics().memory.workspaces == 2 * ROOM
        graph.update(node, x, y, alpha=2)
        await graph.launch()
        assert dev.statistics().memory.workspaces == 2 * ROOM
        kill_worker(dev)
        await next_generation(dev, 1)
        await graph.launch()
        await other.launch()
        assert dev.statistics().memory.workspaces == 2 * ROOM
        del graph, node, other
        gc.collect()
        core = core_of(dev)
        core.release_dropped(core.current)
        await until(lambda: dev.statistics().memory.workspaces == 0)


@pytest.mark.sim_only
async def test_a_workspace_beyond_the_limit_is_refused_before_anything_is_made(open_test_device):
    async with open_test_device(memory_limit=256 << 20) as dev:
        x, y = await dev.to_device(numbers(4)), dev.zeros(4, np.float32)
        rest = dev.empty(dev.statistics().memory.limit - dev.statistics().memory.reserved, np.uint8)
        await rest.fill(1)
        for _ in range(2):
            with pytest.raises(OutOfDeviceMemory, match=r"needs 33,554,432 bytes .* memory limit leaves 0.*dev.trim"):
                await captured(dev, lambda g: g.blas.axpy(x, y))
        assert dev.statistics().memory.workspaces == 0
        rest.free()
        with pytest.raises(OutOfDeviceMemory, match="the memory limit leaves 0"):
            await captured(dev, lambda g: g.blas.axpy(x, y))
        await dev.trim()
        graph, _, _ = await captured(dev, lambda g: g.blas.axpy(x, y))
        await graph.launch()
        assert (await y.to_host() == numbers(4)).all()
        assert (dev.statistics().memory.workspaces, dev.statistics().generation) == (ROOM, 1)


@pytest.mark.sim_only
async def test_an_update_to_a_call_that_needs_a_workspace_is_held_against_the_limit(open_test_device):
    """The node was a copy of no elements to the driver: only now the graph needs a handle."""
    async with open_test_device(memory_limit=256 << 20) as dev:
        x, y, nothing = await dev.to_device(numbers(4)), dev.zeros(4, np.float32), dev.empty(0, np.float32)
        graph, _, (node,) = await captured(dev, lambda g: g.blas.axpy(nothing, dev.empty(0, np.float32)))
        await graph.launch()
        assert dev.statistics().memory.workspaces == 0
        rest = dev.empty(dev.statistics().memory.limit - dev.statistics().memory.reserved, np.uint8)
        graph.update(node, x, y)
        with pytest.raises(OutOfDeviceMemory, match="the memory limit leaves 0"):
            await graph.launch()
        rest.free()
        await dev.trim()
        await graph.launch()
        assert (await y.to_host() == numbers(4)).all()
        assert dev.statistics().memory.workspaces == ROOM


# --- faults -----------------------------------------------------------------------------------------------------------


async def test_after_a_fault_the_calls_are_captured_anew(open_test_device, sent):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            (wild,) = await compile_rogue(dev, "wild")
            a = numbers(4, 4)
            x, y = await dev.to_device(a), dev.zeros(16, np.float32)
            graph, (c, _), (node, _) = await captured(
                dev, lambda g: g.blas.gemm(x, x), lambda g: g.blas.axpy(x.reshape(-1), y)
            )
            await graph.launch()
            graph.update(node, x, x, alpha=2)
            for generation in range(1, 3):
                with pytest.raises(ContextLost):
                    await wild.launch(1, 1, WILD)
                await next_generation(dev, generation)
                await graph.launch()
                assert (await c.to_host() == 2 * a @ a).all()
                assert (await y.to_host() == (1 + generation) * a.reshape(-1)).all()
            assert sent == ["build", "launch", "build", "launch", "build", "launch"]


async def test_a_fault_in_a_node_tears_what_the_graph_updates_and_its_own_arrays_are_written_anew(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            (wild,) = await compile_rogue(dev, "wild")
            bytes_ = numbers(5, 6, dtype=np.int8)
            x, z = await dev.to_device(bytes_), await dev.to_device(numbers(5, 3))
            out, word = dev.zeros((5, 5), np.int32), dev.zeros(1, np.int32)
            await word.to_host()
            lost, (_, rank, _), (_, _, node) = await captured(
                dev,
                lambda g: g.blas.gemm(x, x, op_b="T", beta=1, out=out),
                lambda g: g.blas.syrk(z),
                lambda g: g.launch(wild, 1, 1, WILD),
            )
            with pytest.raises(ContextLost):
                await lost.launch()
            await next_generation(dev, 1)
            assert out.state == "torn"
            with pytest.raises(StaleArray, match="launch of a graph"):
                await lost.launch()
            await out.fill(0)
            lost.update(node, word.address)
            for step in range(1, 3):
                await lost.launch()
                product = bytes_.astype(np.int32) @ bytes_.T.astype(np.int32)
                assert (await out.to_host() == step * product).all()
                assert (np.tril(await rank.to_host()) == np.tril(numbers(5, 3) @ numbers(5, 3).T)).all()


async def test_a_standby_has_captured_the_calls_before_it_is_needed(open_test_device, sent):
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1, restart_policy=ANY_NUMBER) as dev:
            (wild,) = await compile_rogue(dev, "wild")
            x, y = await dev.to_device(numbers(4)), dev.zeros(4, np.float32)
            await y.to_host()
            graph, _, _ = await captured(dev, lambda g: g.blas.axpy(x, y))
            await dev.wait_standby()
            standby = core_of(dev).standbys.generations[0]
            await until(lambda: graph._number in standby.graphs and standby.timeline.idle)
            with pytest.raises(ContextLost):
                await wild.launch(1, 1, WILD)
            await next_generation(dev, 1)
            await dev.wait_standby()
            sent.clear()
            await graph.launch()
            assert [verb for verb in sent if verb != "build"] == ["launch"]
            assert (await y.to_host() == numbers(4)).all()


async def test_a_worker_that_dies_while_it_builds_loses_that_capture_alone(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            x = await dev.to_device(numbers(4, 4))
            lost = []

            async def capture() -> None:
                with pytest.raises(ContextLost):
                    await captured(dev, lambda g: g.blas.gemm(x, x))
                lost.append(True)

            (spin,) = await compile_rogue(dev, "spin")
            word = dev.zeros(1, np.int32)
            await word.to_host()
            spin.launch_nowait(1, 1, word.address)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(capture)
                await until(
                    lambda: any("graph.build" in operation for operation in core_of(dev).current.timeline.in_flight())
                )
                kill_worker(dev)
            assert lost
            await next_generation(dev, 1)
            graph, (c,), _ = await captured(dev, lambda g: g.blas.gemm(x, x))
            await graph.launch()
            assert (await c.to_host() == numbers(4, 4) @ numbers(4, 4)).all()


async def test_cancelling_while_a_graph_is_built_leaves_nothing(dev):
    x = await dev.to_device(numbers(4, 4))
    await x.to_host()
    before = in_use(dev)
    with trio.fail_after(DEADLINE):
        async with gated(dev, dev.compute_lane):
            async with trio.open_nursery() as nursery:

                async def capture() -> None:
                    await captured(dev, lambda g: g.blas.gemm(x, x))

                nursery.start_soon(capture)
                await until(
                    lambda: any("graph.build" in operation for operation in core_of(dev).current.timeline.in_flight())
                )
                nursery.cancel_scope.cancel()
        graph, (c,), _ = await captured(dev, lambda g: g.blas.gemm(x, x, alpha=2))
        await graph.launch()
        assert (await c.to_host() == 2 * numbers(4, 4) @ numbers(4, 4)).all()
        del graph, c, _
        await until(lambda: in_use(dev) == before)
    assert dev.generation == 1


@pytest.mark.sim_only
@pytest.mark.parametrize("status", [7, 13, 14], ids=["invalid value", "execution failed", "internal error"])
async def test_a_call_that_the_library_refuses_to_have_captured_fails_the_build_alone(dev, status):
    """Also where the status would say that the GPU failed: nothing ran."""
    x, y = await dev.to_device(numbers(4)), dev.zeros(4, np.float32)
    inject(dev, "cublasSaxpy_64", ReturnStatus(status), call=2)
    with pytest.raises(CommandFailed, match=r"cublasSaxpy_v2_64: .*being captured into a graph"):
        await captured(dev, lambda g: g.blas.axpy(x, y), lambda g: g.blas.axpy(x, y, 2))
    graph, _, (node,) = await captured(dev, lambda g: g.blas.axpy(x, y))
    inject(dev, "cublasSaxpy_64", ReturnStatus(status))
    graph.update(node, x, y, 5)
    with pytest.raises(CommandFailed, match="cublasSaxpy_v2_64"):
        await graph.launch()
    assert (await y.to_host() == 0).all()
    await graph.launch()
    assert (await y.to_host() == 5 * numbers(4)).all()
    assert dev.generation == 1


@pytest.mark.sim_only
async def test_a_fault_of_the_gpu_during_a_capture_loses_the_context(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            x, y = await dev.to_device(numbers(4)), dev.zeros(4, np.float32)
            inject(dev, "cublasSaxpy_64", Poison(700))
            with pytest.raises(ContextLost):
                await captured(dev, lambda g: g.blas.axpy(x, y))
            await next_generation(dev, 1)
            graph, _, _ = await captured(dev, lambda g: g.blas.axpy(x, y))
            await graph.launch()
            assert (await y.to_host() == numbers(4)).all()


# --- what cannot be captured ------------------------------------------------------------------------------------------


async def test_what_cannot_be_captured_is_refused_by_name(dev, open_test_device):
    x, m = await dev.to_device(numbers(4)), await dev.to_device(numbers(4, 4))
    freed = dev.empty(4, np.float32)
    freed.free()
    cases: list[tuple[Callable[[Any], Any], str]] = [
        *((lambda g, verb=verb: getattr(g.blas, verb)(x), f"blas.{verb} cannot be captured.*host") for verb in ONE),
        (lambda g: g.blas.dot(x, x), "blas.dot cannot be captured when its result is for the host"),
        (lambda g: g.blas.gemm_batched([m, m], [m, m[::-1]]), "blas.gemm_batched of these arrays cannot be captured"),
        (lambda g: g.blas.gemm(m, numbers(4, 4)), "b is an array"),
        (lambda g: g.blas.axpy(x, freed), "freed"),
        (lambda g: g.blas.axpy(x, x), "share"),
        (lambda g: g.solver, "solver cannot be captured: .*blas"),
    ]
    submitted = [lane.submitted for lane in dev.statistics().lanes]
    for record, words in cases:
        with pytest.raises(InvalidArgument, match=words):
            await dev.capture(record)
    async with open_test_device() as other:
        theirs = other.zeros(4, np.float32)
        with pytest.raises(InvalidArgument, match="another device"):
            await dev.capture(lambda g: g.blas.axpy(x, theirs))
    assert [lane.submitted for lane in dev.statistics().lanes] == submitted


ONE = ("nrm2", "asum", "iamax", "iamin")


async def test_a_call_with_too_many_commands_is_refused(dev):
    left, right = dev.zeros((300, 2, 2), np.float32), dev.zeros((300, 4, 4), np.float32)
    with pytest.raises(InvalidArgument, match=r"blas.gemm cannot be captured here: it takes 301 commands"):
        await dev.capture(lambda g: g.blas.gemm(left, right[:, ::2, ::2]))
    scattered = dev.zeros((300, 301), np.float32)
    with pytest.raises(InvalidArgument, match=r"blas.gemm of these arrays cannot be captured: it takes \d+ commands"):
        await dev.capture(lambda g: g.blas.gemm(scattered[::-1, ::2], dev.zeros((151, 2), np.float32)))


async def test_a_refused_call_leaves_the_recording_as_it_was(dev):
    x = await dev.to_device(numbers(4))

    def record(graph: GraphRecorder) -> None:
        with pytest.raises(InvalidArgument, match="nothing was recorded"):
            graph.last  # a property that refuses
        graph.blas.scal(x, 2)
        with pytest.raises(InvalidArgument, match="nrm2"):
            graph.blas.nrm2(x)
        assert graph.last.operation == "blas.scal"

    graph = await dev.capture(record)
    assert len(graph) == 1
    await graph.launch()
    assert (await x.to_host() == 2 * numbers(4)).all()


async def test_the_verbs_of_a_recorder_end_with_it(dev):
    x = await dev.to_device(numbers(4))
    kept: list[Any] = []

    def record(graph: GraphRecorder) -> None:
        kept.append(graph.blas)
        assert graph.blas is kept[0]
        graph.blas.scal(x, 2)

    await dev.capture(record)
    assert isinstance(kept[0], RecordedBlas)
    assert repr(kept[0]) == "<RecordedBlas of a recorder on device 0>"
    in_use_before = dev.statistics().memory.in_use
    with pytest.raises(InvalidArgument, match="recording has ended"):
        kept[0].gemm(x.reshape(2, 2), x.reshape(2, 2))
    assert dev.statistics().memory.in_use == in_use_before
