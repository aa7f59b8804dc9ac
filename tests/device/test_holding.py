"""The event loop is never held: what one step of a task does is bounded, however large what it works on.

Time says little on a machine that others use as well, so an instrument counts the calls of functions that each step
makes, in Python and in C, on things so large that a call for each part of them would be far beyond the bound. Memory
that is copied or given back is followed to the thread that does it. `make bench-holding` measures the milliseconds.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import trio

import support
from atomr_trio import CommandFailed, OutOfHostMemory, StandbyLost
from atomr_trio._device.device import core_of
from atomr_trio._supervision import closing as _closing
from atomr_trio._transfers import copy_plan, pinned as _pinned
from atomr_trio._transfers.staging import STAGING_BYTES
from atomr_trio._transfers.transfers import Transfers
from atomr_trio.libraries.modules import module as module_actor
from atomr_trio.testing import ReturnStatus, inject
from support import set_constant
from support.rogue import until

pytestmark = pytest.mark.used_workers

MOST_CALLS = 12_000
"""Of one step; each takes some 0.1 to 1 us."""

NODES, ARRAYS, STACK = 1_500, 10_000, 200
MIB = 1 << 20

S, T = TypeVar("S"), TypeVar("T")
SOURCE = 'extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }'


class Calls(trio.abc.Instrument):
    """Counts the calls of each step of a task, in the thread of the loop."""

    def __init__(self) -> None:
        self.most = 0
        """Of all steps."""
        self._now = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._now = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most = max(self.most, self._now)

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        self._now += event in ("call", "c_call")

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        self._now = 0
        before = sys.getprofile()
        trio.lowlevel.add_instrument(self)
        sys.setprofile(self._count)
        try:
            yield
        finally:
            sys.setprofile(before)
            self.after_task_step(trio.lowlevel.current_task())
            trio.lowlevel.remove_instrument(self)


@pytest.fixture
def calls() -> Iterator[Calls]:
    """What is counted within `with calls.counting():` must stay within the bound."""
    counted = Calls()
    yield counted
    assert 0 < counted.most <= MOST_CALLS


async def graph_of(dev: Any) -> tuple[Any, list[Any]]:
    add = await dev.nvrtc.compile(SOURCE, "add")
    arrays = [dev.zeros(8, np.int32) for _ in range(50)]

    async def record(recorder: Any) -> None:
        for index in range(NODES):
            recorder.launch(add, 1, 8, arrays[index % 50], 1)
            if index % 16 == 0:
                await trio.lowlevel.checkpoint()

    return record, arrays


@pytest.mark.long
async def test_an_update_of_a_graph_costs_the_same_whatever_its_size(dev, calls):
    record, arrays = await graph_of(dev)
    with calls.counting():
        graph = await dev.capture(record)
    nodes = graph.nodes
    with calls.counting():
        for index in range(10):
            graph.update(nodes[index], arrays[index], 2)
    with calls.counting():  # other dependencies: they are found some hundred nodes at a time
        graph.update(nodes[0], arrays[1], 3)
        await graph.launch()
    assert (await arrays[0].to_host())[0] == NODES // 50 - 1
    assert (await arrays[1].to_host())[0] == NODES // 50 + 1 + 3
    for node in nodes:
        graph.update(node, arrays[node.index % 50], 2)
    with calls.counting():
        await graph.launch()
    assert (await arrays[7].to_host()).tolist() == [3 * NODES // 50 + 1] * 8


async def test_a_look_at_a_few_nodes_of_a_graph_costs_the_same_whatever_its_size(dev, calls):
    record, arrays = await graph_of(dev)
    graph = await dev.capture(record)
    with calls.counting():
        for _ in range(100):
            nodes = graph.nodes
            assert [(node.index, node.after) for node in (nodes[50], nodes[-1])] == [(50, (0,)), (1499, (1449,))]
    graph.update(graph.nodes[0], arrays[1], 2)
    with calls.counting():  # the order is not known, and is found as far as it is asked for
        for _ in range(5):
            assert [graph.nodes[number].after for number in (1, 50)] == [(0,), ()]


async def test_an_event_takes_few_calls_for_each_listener(dev, calls):
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(dev.events()) for _ in range(NODES)]
        with calls.counting():
            core_of(dev).events.publish(StandbyLost(reason="to tell of it"))
        assert {await anext(listener) for listener in listeners} == {StandbyLost(reason="to tell of it")}


@pytest.mark.parametrize("verb", ["svd", "lstsq"])
async def test_a_call_for_each_matrix_of_a_large_stack_is_made_in_pieces(dev, calls, verb):
    stack = np.broadcast_to(np.diag([3.0, 2.0, 1.0]), (STACK, 3, 3)).copy()
    given = [await dev.to_device(stack)]
    if verb == "lstsq":
        given.append(await dev.to_device(np.ones((STACK, 3, 1))))
    with calls.counting():
        result = await getattr(dev.solver, verb)(*given)
    first = await (result[1] if isinstance(result, tuple) else result).to_host()
    assert len(first) == STACK
    assert np.allclose(np.abs(first), np.abs(first[0]))


@pytest.mark.long
async def test_what_is_read_of_a_large_stack_is_read_in_pieces(dev, calls):
    given = await dev.to_device(np.broadcast_to(2 * np.eye(8, dtype=np.float32), (20_000, 8, 8)))
    with calls.counting():
        result = await dev.solver.det(given)
    assert (result == 2**8).all()


@pytest.mark.sim_only
async def test_a_verb_of_a_large_stack_that_fails_half_way_tears_what_it_has_begun_to_write(dev):
    work = await dev.to_device(np.broadcast_to(np.eye(3), (STACK, 3, 3)).copy())
    inject(dev, "cusolverDnXgeqrf", ReturnStatus(3), call=100)
    with pytest.raises(CommandFailed, match="geqrf"):
        await dev.solver.geqrf(work.transpose(0, 2, 1), overwrite_a=True)
    assert work.state == "torn"


def many(dev: Any) -> list[Any]:
    """So many arrays, with gaps of freed memory between them."""
    arrays = [dev.empty(128, np.float32) for _ in range(2 * ARRAYS)]
    return arrays[::2]


async def test_statistics_and_allocation_take_collected_arrays_back_some_hundred_at_a_time(dev, calls):
    arrays = many(dev)
    with calls.counting():
        dev.statistics()
        await trio.lowlevel.checkpoint()
        dev.empty(128, np.float32)
    await until(lambda: dev.statistics().memory.in_use == 512 * ARRAYS)
    assert dev.statistics().memory.free_runs >= ARRAYS - 1
    del arrays
    await until(lambda: dev.statistics().memory.in_use == 0)
    assert dev.statistics().memory.free_runs <= len(dev.memory_map().chunks)


async def test_a_map_of_many_arrays_is_drawn_in_pieces_and_is_the_same(dev, calls):
    arrays = many(dev)
    await until(lambda: dev.statistics().memory.in_use == 512 * ARRAYS)
    await arrays[5].fill(1)
    with calls.counting():
        drawn = await dev.map_memory()
    at_once = dev.memory_map()
    assert drawn == at_once
    assert str(drawn) == str(at_once)
    assert sum(len(chunk.pieces) for chunk in drawn.chunks) >= 2 * ARRAYS - 1


async def test_a_restart_goes_over_no_arrays(dev, calls):
    arrays = many(dev)
    with calls.counting():
        await dev.restart("to see what it does")
    assert len(arrays) == ARRAYS


async def test_torn_and_lost_arrays_are_counted_as_they_come_and_go(open_test_device):
    async with open_test_device(on_fault="stale") as dev:
        kept, freed = dev.zeros(128, np.float32), dev.zeros(128, np.float32)
        await kept.fill(1)
        await dev.restart("they are lost by that")
        assert dev.statistics().memory.lost == 1024
        freed.free()
        assert dev.statistics().memory.lost == 512
        del kept
        assert dev.statistics().memory.lost == 0


# --- threads ----------------------------------------------------------------------------------------------------------


async def test_what_a_batch_has_copied_is_scattered_by_helpers_and_small_pieces_between_checkpoints(dev, monkeypatch):
    stored: list[tuple[bool, int]] = []
    store = copy_plan._Plan.store

    def noted(plan: Any, piece: Any, source: Any) -> None:
        stored.append((threading.current_thread() is threading.main_thread(), plan.burden(piece)))
        store(plan, piece, source)

    monkeypatch.setattr(copy_plan._Plan, "store", noted)
    host = np.arange(3 * MIB, dtype=np.float32).reshape(3, 1024, 1024)
    small = np.arange(64 * 1024, dtype=np.float32).reshape(256, 256)
    array, other = await dev.to_device(host), await dev.to_device(small)
    out, others = np.zeros((1024, 1024, 3), np.float32), [np.zeros((256, 256), np.float32) for _ in range(3)]
    with trio.fail_after(60):
        async with dev.batch() as batch:
            batch.copy_to(array.transpose(1, 2, 0), out)
            for each in others:
                batch.copy_to(other.T, each)
    assert (out == host.transpose(1, 2, 0)).all()
    assert all((each == small.T).all() for each in others)
    assert stored
    assert all(burden < copy_plan.THREAD_BYTES for in_loop, burden in stored if in_loop)


async def test_of_two_copies_to_one_array_the_later_arrives_last(dev):
    first, last = [await dev.to_device(np.full((1024, 1024), value, np.float32)) for value in (1, 2)]
    out = np.zeros((1024, 1024), np.float32)
    async with dev.batch() as batch:
        batch.copy_to(first.T, out)
        batch.copy_to(last.T, out)
    assert (out == 2).all()


async def test_a_flush_that_is_cancelled_leaves_the_memory_alone_and_the_next_one_goes_on(dev, monkeypatch):
    begun, may_go, at_work = threading.Event(), threading.Event(), []
    store = copy_plan._Plan.store

    def held(plan: Any, piece: Any, source: Any) -> None:
        at_work.append(piece)
        begun.set()
        may_go.wait(60)
        store(plan, piece, source)
        at_work.remove(piece)

    monkeypatch.setattr(copy_plan._Plan, "store", held)
    host = np.arange(4 * MIB, dtype=np.float32).reshape(2048, 2048)
    array, out = await dev.to_device(host), np.zeros((2048, 2048), np.float32)
    async with dev.batch() as batch:
        batch.copy_to(array.T, out)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def cancel() -> None:
                    await trio.to_thread.run_sync(begun.wait)
                    scope.cancel()
                    may_go.set()

                nursery.start_soon(cancel)
                await batch.flush()
        assert scope.cancelled_caught
        assert not at_work
        await batch.flush()
        assert (out == host.T).all()


async def test_memory_is_given_back_by_a_thread(dev, monkeypatch):
    threads: list[threading.Thread] = []
    closing, emptying = _closing.os.close, _closing._close

    def close(descriptor: int) -> None:
        threads.append(threading.current_thread())
        closing(descriptor)

    def empty(mapping: Any) -> None:
        threads.append(threading.current_thread())
        emptying(mapping)

    monkeypatch.setattr(_closing, "os", SimpleNamespace(close=close))
    monkeypatch.setattr(_closing, "_close", empty)
    array = dev.empty(4 * MIB, np.uint8, guarded=True)
    await array.fill(1)
    array.free()
    assert await dev.trim() == 4 * MIB
    assert len(threads) == 1, "trim has returned, so the chunk is closed"
    host = dev.pinned_empty(MIB, np.uint8)
    host[:] = 1
    del host
    kept = dev.pinned_empty(1, np.uint8)
    await until(lambda: len(threads) == 2)
    assert threading.main_thread() not in threads
    del kept


async def test_closing_a_device_unmaps_its_staging_memory_and_that_of_batches_in_a_thread(
    open_test_device, monkeypatch
):
    emptied: list[tuple[int, bool]] = []
    emptying = _closing._close

    def empty(mapping: Any) -> None:
        emptied.append((len(mapping), threading.current_thread() is threading.main_thread()))
        emptying(mapping)

    monkeypatch.setattr(_closing, "_close", empty)
    async with open_test_device() as dev:
        host = np.ones(12 * MIB, np.uint8)
        async with dev.batch() as batch:
            arrays = [batch.to_device(host) for _ in range(8)]
            assert core_of(dev).part(Transfers).batch_areas.size
        assert (await arrays[-1].to_host() == host).all()
    sizes = [size for size, _ in emptied]
    assert STAGING_BYTES in sizes
    assert len(sizes) > 1, "the areas of the batch"
    assert not any(in_loop for _, in_loop in emptied)


async def test_pinned_memory_that_is_just_being_given_back_is_waited_for_where_it_is_needed(dev, monkeypatch):
    waited: list[int] = []
    monkeypatch.setattr(_pinned, "available_memory", lambda: MIB * len(waited))
    monkeypatch.setattr(_pinned, "wait_until_idle", lambda: waited.append(1) or len(waited) == 1)
    assert dev.pinned_empty(MIB, np.uint8).nbytes == MIB
    assert waited == [1]
    with pytest.raises(OutOfHostMemory, match="requested as pinned"):
        dev.pinned_empty(3 * MIB, np.uint8)


async def test_a_large_image_is_read_in_a_thread(dev, monkeypatch):
    in_loop: list[bool] = []

    def noted(read: Callable[[S], T]) -> Callable[[S], T]:
        def note(data: S) -> T:
            in_loop.append(threading.current_thread() is threading.main_thread())
            return read(data)

        return note

    kernel = await dev.nvrtc.compile(SOURCE, "add")
    image = kernel._module.ptx or ""
    monkeypatch.setattr(module_actor, "read_image", noted(module_actor.read_image))
    monkeypatch.setattr(module_actor, "_image_of", noted(module_actor._image_of))
    small = await dev.module.load(image)
    large = await dev.module.load(image + "\n// a comment" * 50_000)
    assert list(small) == list(large) == ["add"]
    assert in_loop == [True, False]
    set_constant(monkeypatch, module_actor, "_LARGE_IMAGE", 1)
    in_loop.clear()
    await dev.nvrtc.compile(SOURCE.replace("add", "large"), "large")
    assert in_loop
    assert not any(in_loop)


FIRST_USES = """
import importlib.abc, sys, threading
import holding, trio

class Imports(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("atomr_trio") and threading.current_thread() is threading.main_thread():
            print("in the loop:", name)

atomr_trio = holding.atomr_trio
atomr_trio.open_device, atomr_trio.compile_to_ptx
sys.meta_path.insert(0, Imports())
print(sorted(trio.run(holding.first_uses, sys.argv[1])))
"""


@pytest.mark.long
async def test_nothing_is_imported_in_the_event_loop():
    command = [sys.executable, "-c", FIRST_USES, support.chosen_backend()]
    benchmarks = str(support.ROOT / "tests" / "benchmarks")
    environment = support.child_environment()
    environment["PYTHONPATH"] += f":{benchmarks}"
    done = await trio.to_thread.run_sync(
        lambda: subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first solver.solve" in done.stdout
    assert "in the loop" not in done.stdout
