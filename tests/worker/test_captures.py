"""Calls of an engine in graphs: what is prepared, captured, ordered and given back, by the driver of this process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atomr_sim
from atomr_cuda import CudaError, driver
from atomr_trio._wire.protocol import MAX_LANES, WORKSPACES_WORD, Mode, VerbTable
from atomr_trio._wire.records.calls import HEAD
from atomr_trio._wire.records.memory import FILL, MEMORY
from atomr_trio._worker.base.calls import CallEngine
from atomr_trio._worker.base.capture_turns import CaptureTurns
from atomr_trio._worker.base.giving_back import GivingBackLater
from atomr_trio._worker.base.lanes import Command
from atomr_trio._worker.base.workspaces import Workspaces
from atomr_trio.libraries.blas.engine import blas_engine
from atomr_trio.libraries.blas.records import BLAS
from atomr_trio.libraries.graphs.engine import GraphEngine
from atomr_trio.libraries.graphs.records import BUILD, DESTROY, LAUNCH_GRAPH, UPDATE_CALLS, Step, encode_steps
from atomr_trio.libraries.modules.engine import ModuleEngine
from atomr_trio.libraries.solver.engine import solver_engine
from support import sim_process

pytestmark = pytest.mark.sim_only

STUB = VerbTable("stub", 99)
SET = STUB.verb("set", Mode.ENQUEUES, {"address": "Q", "value": "I"}, capturable=True)
WAIT = STUB.verb("wait", Mode.BLOCKS, {})
N = 4


class StubEngine:
    """Sets words of memory, and notes what it is asked for."""

    table = STUB

    def __init__(self, services: Any) -> None:
        self.services = services
        self.seen: list[tuple[str, int]] = []
        self.meanwhile: Any = None
        self.module: Any = None
        """The module of a kernel that does nothing."""
        self.calls = {SET.number: self._set, WAIT.number: self._set}

    def prepare_capture(self, verb: int, payload: bytes, lane: Any, allowed: int, *, launches: bool = True) -> None:
        assert verb == SET.number
        assert not self.services.capture_turns.is_capturing
        sim_process.free_memory()
        with_memory = sim_process.allocate(256)  # a capture would forbid it
        driver.cuMemFree(with_memory)
        self.seen.append(("prepare", lane.index))

    def _set(self, command: Command, lane: Any) -> None:
        assert self.services.capture_turns.is_capturing
        address, value = SET.struct.unpack(command.payload)
        self.seen.append(("call", lane.index))
        if value == BROKEN:
            raise ZeroDivisionError
        if value == MEANWHILE:
            self.meanwhile()
        if value == FORBIDDEN:
            driver.cuStreamSynchronize(lane.stream)
        for _ in range(value - KERNELS if value >= KERNELS else 0):
            kernel = sim_process.function(self.module, "nothing")
            assert sim_process.launch(kernel, lane.stream) == 0
        if value >= KERNELS:
            return
        lane.weigh(command.ticket, 3)
        with lane.calling:
            driver.cuMemsetD32Async(address, value, N, lane.stream)

    def forget_lane(self, index: int) -> list[Any]:
        return [lambda: self.seen.append(("forget", index))]

    def close(self) -> None:
        """Nothing is left."""


BROKEN, FORBIDDEN, MEANWHILE = 77, 78, 79
KERNELS = 1000
"""This and more launch a kernel so many times less a thousand, and set nothing."""


@pytest.fixture
def services() -> Iterator[Any]:
    context = sim_process.begin()
    later = GivingBackLater(started, lambda calls: [call() for call in calls] and None)
    made = SimpleNamespace(
        cuda_error=CudaError,
        capture_turns=CaptureTurns(),
        forget_hot=lambda: None,
        workspaces=Workspaces([0] * (WORKSPACES_WORD + 1)),
        give_back=later.make,
        wait_given_back=later.join,
        engines={},
    )
    made.engines |= {MEMORY.number: SimpleNamespace(table=MEMORY, forget_lane=lambda index: ())}
    made.engines[STUB.number] = StubEngine(made)
    yield made
    later.join()
    atomr_sim.withdraw()
    driver.cuCtxSetCurrent(context)
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuCtxSetCurrent(None)


def started(work: Any) -> threading.Thread:
    """A thread that works in the caller's context."""
    context = driver.CUcontext()
    driver.cuCtxGetCurrent(context)

    def run() -> None:
        driver.cuCtxSetCurrent(context)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


class Graphs:
    """The engine of graphs on one lane, by its records."""

    def __init__(self, services: Any) -> None:
        self.engine = GraphEngine(services, ModuleEngine(services))
        stream = sim_process.stream()
        self.lane: Any = SimpleNamespace(
            index=0, stream=stream, ask=lambda call: call(stream), calling=threading.Lock(), weigh=lambda *_: None
        )

    def do(self, verb: Any, tail: bytes = b"", content: bytes = b"") -> None:
        descriptors = [os.memfd_create("test")] if content else []
        if content:
            os.write(descriptors[0], content)
        head = verb.struct.pack(1) if verb in (LAUNCH_GRAPH, DESTROY) else verb.struct.pack(1, 1 << 30)
        command = Command(verb, self.engine.calls[verb.number], 1, (), head + tail, descriptors)
        self.engine.calls[verb.number](command, self.lane)

    def run(self) -> None:
        self.do(LAUNCH_GRAPH)
        driver.cuStreamSynchronize(self.lane.stream)


def step(number: int, address: int, value: int, *after: int) -> Step:
    return Step(number, after, ((SET, SET.struct.pack(address, value)),))


@pytest.mark.parametrize(
    ("values", "entries"),
    [
        ([KERNELS + 1] * 20, 1),
        ([KERNELS + 3] * 20, 1),
        ([5] * 20, 1 + 2 * 20),
        ([KERNELS + 1, 5, KERNELS + 2, 5], 1 + 2 * 2),
    ],
    ids=["a kernel each", "three kernels each", "a fill each", "both"],
)
def test_what_the_calls_of_a_graph_put_into_it_counts_as_other_nodes_do(services, values, entries):
    services.engines[STUB.number].module = sim_process.load('extern "C" __global__ void nothing() { }')
    graphs, x = Graphs(services), sim_process.allocate(4096)
    steps = [step(number, x, value, *range(max(0, number - 1), number)) for number, value in enumerate(values)]
    graphs.do(BUILD, content=encode_steps(steps))
    weighed: list[int] = []
    graphs.lane.weigh = lambda ticket, count: weighed.append(count)
    graphs.run()
    assert weighed == [entries]
    graphs.do(DESTROY)


def words(address: int) -> list[int]:
    return np.frombuffer(sim_process.read(address, 4 * N), np.int32).tolist()


def filling(address: int, number: int, *after: int) -> Step:
    return Step(number, after, ((FILL, FILL.struct.pack(address + 64 * number, 0, 4, 4, 1, bytes(4))),))


@pytest.mark.parametrize(
    ("after", "entries"),
    [
        (lambda number: [number - 1][: number > 0], 1 + 2 * 20),
        (lambda number: (), 1 + 2 * 20 + 20 // 7),
        (lambda number: [number - 2][: number > 1], 1 + 2 * 20 + 20 // 7),
    ],
    ids=["one after the other", "side by side", "two lines"],
)
def test_a_launch_is_taken_to_make_entries_for_what_is_no_kernel_and_for_branches(services, after, entries):
    """Measured figures are with the function that counts."""
    graphs, x = Graphs(services), sim_process.allocate(4096)
    graphs.do(BUILD, content=encode_steps([filling(x, number, *after(number)) for number in range(20)]))
    weighed: list[int] = []
    graphs.lane.weigh = lambda ticket, count: weighed.append(count)
    graphs.lane.made_now = 1
    graphs.run()
    ready = graphs.engine.hot_call(LAUNCH_GRAPH.number, LAUNCH_GRAPH.struct.pack(1), graphs.lane)
    assert ready.alone
    assert ready.call(()) == 0
    assert weighed == [entries, entries]
    assert graphs.engine.hot_call(LAUNCH_GRAPH.number, LAUNCH_GRAPH.struct.pack(2), graphs.lane) is None
    graphs.do(DESTROY)
    assert graphs.engine.hot_call(LAUNCH_GRAPH.number, LAUNCH_GRAPH.struct.pack(1), graphs.lane) is None


def test_all_calls_are_prepared_before_the_first_is_captured_on_a_lane_of_the_graphs_own(services):
    stub, graphs = services.engines[STUB.number], Graphs(services)
    x, y = sim_process.allocate(16), sim_process.allocate(16)
    sim_process.write(x, bytes(16))
    graphs.do(BUILD, content=encode_steps([step(0, x, 1), step(1, y, 2)]))
    assert [what for what, _ in stub.seen] == ["prepare", "prepare", "call", "call"]
    (index,) = {index for _, index in stub.seen}
    assert index >= MAX_LANES
    assert words(x) == [0] * N
    graphs.run()
    assert (words(x), words(y)) == ([1] * N, [2] * N)
    stub.seen.clear()
    graphs.do(UPDATE_CALLS, encode_steps([step(1, y, 5)]))
    graphs.run()
    assert words(y) == [5] * N
    assert stub.seen == [("prepare", index), ("call", index)]
    graphs.do(DESTROY)
    services.wait_given_back()
    assert stub.seen[2:] == [("forget", index)]


def test_a_graph_without_calls_has_no_lane_and_two_with_calls_have_two(services):
    stub, first = services.engines[STUB.number], Graphs(services)
    x = sim_process.allocate(64)
    fill = FILL.struct.pack(x, 0, 4, N, 1, bytes(16))
    first.do(BUILD, content=encode_steps([Step(0, (), ((FILL, fill),))]))
    assert stub.seen == []
    others = [Graphs(services), Graphs(services)]
    for each in others:
        each.do(BUILD, content=encode_steps([step(0, x, 1)]))
    assert len({index for _, index in stub.seen}) == 2


def test_calls_of_one_engine_run_one_after_the_other_though_no_array_orders_them(services, monkeypatch):
    """They share a workspace."""
    edges: list[int] = []
    add = driver.cuGraphAddChildGraphNode

    def note(node: Any, graph: Any, before: Any, count: int, child: Any) -> None:
        edges.append(count)
        add(node, graph, before, count, child)

    monkeypatch.setattr(driver, "cuGraphAddChildGraphNode", note)
    x = sim_process.allocate(64)
    fill = FILL.struct.pack(x, 0, 4, N, 1, bytes(16))
    steps = [
        step(0, x, 1),
        step(1, x + 16, 2),
        step(2, x + 16, 3, 1),
        Step(3, (), ((FILL, fill),)),
        step(4, x + 32, 4, 0, 3),
    ]
    graphs = Graphs(services)
    graphs.do(BUILD, content=encode_steps(steps))
    assert edges == [0, 1, 1, 3]


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (BROKEN, ZeroDivisionError, None),
        (FORBIDDEN, CudaError, "cuStreamSynchronize.*CAPTURE_UNSUPPORTED.*being captured into a graph"),
    ],
    ids=["a bug of the engine", "a call that a capture forbids"],
)
def test_a_call_that_fails_ends_its_capture_and_nothing_is_left(services, value, error, text):
    stub, graphs = services.engines[STUB.number], Graphs(services)
    x = sim_process.allocate(16)
    graphs.do(BUILD, content=encode_steps([step(0, x, 1)]))
    graphs.do(DESTROY)
    services.wait_given_back()
    before = sim_process.free_memory()
    stub.seen.clear()
    with pytest.raises(error, match=text):
        graphs.do(BUILD, content=encode_steps([step(0, x, 1), step(1, x, value)]))
    services.wait_given_back()
    assert [what for what, _ in stub.seen] == ["prepare", "prepare", "call", "call", "forget"]
    assert not services.capture_turns.is_capturing
    assert sim_process.free_memory() == before
    with contextlib.closing(graphs.engine):
        graphs.do(BUILD, content=encode_steps([step(0, x, 3)]))
        graphs.run()
    assert words(x) == [3] * N
    assert stub.seen[-1][0] == "forget"


@pytest.mark.parametrize("make", [blas_engine, solver_engine], ids=["cublas", "cusolver"])
def test_a_handle_that_goes_in_another_thread_waits_for_the_end_of_a_capture(services, make):
    """Libraries synchronise the context then, which would void the capture."""
    engine, graphs, x, ended = make(services), Graphs(services), sim_process.allocate(16), threading.Event()
    engine.calls[engine.table.open.number](None, graphs.lane)
    calls = engine.forget_lane(graphs.lane.index)
    turns, threads = services.capture_turns, list[threading.Thread]()

    def meanwhile() -> None:
        threads.append(started(lambda: [call() for call in calls] and ended.set()))
        while not turns._changed._waiters and threads[0].is_alive():
            pass

    services.engines[STUB.number].meanwhile = meanwhile
    graphs.do(BUILD, content=encode_steps([step(0, x, MEANWHILE), step(1, x, 4, 0)]))
    threads[0].join()
    assert ended.is_set()
    graphs.run()
    assert words(x) == [4] * N


def test_a_workspace_beyond_what_is_allowed_is_refused_before_anything_is_made(services, monkeypatch):
    opened: list[int] = []
    monkeypatch.setattr(CallEngine, "_open", lambda engine, lane: opened.append(lane.index))
    engine = blas_engine(services)
    lane: Any = SimpleNamespace(index=5, stream=sim_process.stream())
    payload = HEAD.pack(BLAS.numbers["cublasSaxpy_64"], 0, 0, 0, 0, 0)
    before = sim_process.free_memory()
    services.workspaces.take(100, 100)
    with pytest.raises(CudaError, match=r"needs 33,554,432 bytes .* the memory limit leaves 33,554,431"):
        engine.prepare_capture(BLAS.call.number, payload, lane, (32 << 20) + 99)
    assert (opened, sim_process.free_memory()) == ([], before)


def test_a_verb_that_is_not_declared_capturable_is_no_step(services):
    graphs = Graphs(services)
    with pytest.raises(KeyError):
        graphs.do(BUILD, content=encode_steps([Step(0, (), ((WAIT, bytes(12)),))]))


def test_what_cannot_be_a_child_of_a_graph_is_refused(services):
    """As it is where a library allocates inside the graph."""
    x, graphs = sim_process.allocate(16), Graphs(services)
    atomr_sim.inject("cuGraphAddChildGraphNode:801:1")
    with pytest.raises(CudaError, match=r"cuGraphAddChildGraphNode.*NOT_SUPPORTED"):
        graphs.do(BUILD, content=encode_steps([step(0, x, 1)]))
    services.wait_given_back()
    assert services.engines[STUB.number].seen[-1][0] == "forget"
    graphs.do(BUILD, content=encode_steps([step(0, x, 4)]))
    graphs.run()
    assert words(x) == [4] * N
