"""Several trio runs in one process, each with a device of its own; what any thread may do at any time; child processes.

Objects of a device may be collected anywhere: that is noted, and taken care of where the device is at home.
"""

from __future__ import annotations

import concurrent.futures
import copy
import gc
import multiprocessing
import pickle
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import Device
from atomr_trio._arrays.memory import DeviceMemory
from atomr_trio._device.device import core_of
from atomr_trio._values.util import Living
from atomr_trio.libraries.graphs.graph import Graphs
from atomr_trio.libraries.modules.module import Modules
from atomr_trio.testing import WorkerPool, worker_pid
from support import chosen_backend, open_test_device
from support.spawned import sum_in_a_child

SOURCE = 'extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }'
LENGTH = 32
ROUNDS = 20


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """What each comes to in a thread of its own, all at the same time; raises what one of them raises."""
    results: dict[int, Any] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = works[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(works))]


# ---------------------------------------------------------------------------------------------------- collected


async def make_one_of_each(dev: Device, kernel: Any) -> list[Any]:
    """Objects that were used, and that nobody else has."""
    x = dev.zeros(LENGTH, np.int32)
    await kernel.launch(1, LENGTH, x, 1)
    y = await dev.to_device(np.arange(LENGTH))
    pinned = dev.pinned_empty(LENGTH, np.int64)
    await y.copy_to(pinned)
    prepared = kernel.prepare(1, LENGTH, x, 2)
    async with dev.batch() as batch:
        batch.launch(prepared)
        batch.launch(kernel, 1, LENGTH, x, 1)
    graph = await dev.capture(lambda recorder: recorder.launch(kernel, 1, LENGTH, x, 1))
    program = await dev.nvrtc.compile_program(SOURCE)
    event = dev.compute_lane.record()
    await event.wait()
    return [x, x[3:], y, pinned, pinned[2:], prepared, batch, graph, program, program["add"], event, dev.empty(9)]


async def settle(dev: Device) -> Any:
    """Have the device take back what was collected; its memory then, as the statistics have it."""
    gc.collect()
    dev.empty(1).free()
    await dev.compute_lane.synchronize()
    return (
        dev.statistics().memory.in_use,
        len(core_of(dev).part(DeviceMemory).arena.blocks),
        len(list(core_of(dev).part(Modules).living)),
        len(list(core_of(dev).part(Graphs).living)),
    )


async def test_what_is_collected_in_another_thread_comes_back_while_the_device_works(dev, quick_switches):
    kernel = await dev.nvrtc.compile(SOURCE, "add")
    del (await make_one_of_each(dev, kernel))[:]
    before = await settle(dev)
    dropped: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()

    def drop() -> None:
        while (objects := dropped.get()) is not None:
            while objects:
                cycle = [objects.pop()]
                cycle.append(cycle)  # only the collector finds it
                del cycle
            gc.collect(0)

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        for _ in range(ROUNDS):
            dropped.put(await make_one_of_each(dev, kernel))
            for _ in range(20):
                dev.zeros(LENGTH, np.int32).free()
    finally:
        dropped.put(None)
        thread.join()
    assert await settle(dev) == before
    x = dev.zeros(LENGTH, np.int32)
    await kernel.launch(1, LENGTH, x, 4)
    assert (await x.to_host() == 4).all()


async def test_what_the_collector_finds_amid_an_allocation_comes_back(dev):
    before = await settle(dev)
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1000, 1000)  # it runs with every object that is made, in the arena's own code too
    try:
        for size in range(200):
            cycle = [dev.empty(size + 1), dev.zeros(size % 7, np.int8)]
            cycle.append(cycle)
            dev.empty(2 * size).free()
    finally:
        gc.set_threshold(*thresholds)
    del cycle
    assert await settle(dev) == before


class _Thing:
    """Something to be collected."""


def test_a_walk_over_what_is_alive_does_not_mind_what_other_threads_drop(quick_switches):
    living: Living[_Thing] = Living()
    kept = [_Thing() for _ in range(50)]
    for each in kept:
        living.add(each)
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            things = [_Thing() for _ in range(20)]
            for each in things:
                living.add(each)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(10_000):
            assert set(living).issuperset(kept)
    finally:
        over.set()
        thread.join()
    del each
    living.discard(kept[0])
    living.discard(kept[0])
    assert set(living) == set(kept[1:])
    gone = weakref.ref(kept.pop())
    assert gone() is None
    assert set(living) == set(kept[1:])


# ---------------------------------------------------------------------------------------------------- runs side by side


async def serve(dev: Device, numbers: queue.SimpleQueue[Any], answers: queue.SimpleQueue[Any]) -> None:
    """Add 1 to arrays of numpy until None comes."""
    kernel = await dev.nvrtc.compile(SOURCE, "add")
    while (host := await trio.to_thread.run_sync(numbers.get)) is not None:
        with await dev.to_device(host) as x:
            await kernel.launch(1, LENGTH, x, 1)
            answers.put(await x.to_host())


async def test_two_runs_in_two_threads_have_a_device_each_and_exchange_results(dev):
    ours: queue.SimpleQueue[Any] = queue.SimpleQueue()
    theirs: queue.SimpleQueue[Any] = queue.SimpleQueue()
    back: queue.SimpleQueue[Any] = queue.SimpleQueue()

    async def other_run() -> int:
        async with open_test_device() as other:
            generation = await other.restart("a worker is started in a thread that is not the main one")
            await serve(other, theirs, back)
            return generation

    def feed() -> list[int]:
        host, seen = np.zeros(LENGTH, np.int32), []
        for _ in range(6):
            ours.put(host)
            host = back.get(timeout=60)
            assert (host == host[0]).all()
            seen.append(int(host[0]))
        ours.put(None)
        theirs.put(None)
        return seen

    results: list[Any] = []

    async def elsewhere() -> None:
        results.extend(await trio.to_thread.run_sync(in_threads, feed, lambda: trio.run(other_run)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(elsewhere)
        await serve(dev, ours, theirs)
    assert results == [[2, 4, 6, 8, 10, 12], 2]
    # The other thread has ended, and the kernel ends the workers that it had started. Ours is of this one.
    x = dev.full(LENGTH, 5, np.int32)
    assert (await x.to_host() == 5).all()
    assert dev.generation == 1


def test_a_pool_gives_the_workers_of_a_thread_that_has_ended_to_others():
    """The kernel ends a worker with the thread that has started it, which is not the one that asked for it."""

    async def run(pool: WorkerPool) -> int:
        async with open_test_device(workers=pool) as dev:
            return worker_pid(dev)

    with WorkerPool(backend=chosen_backend(), spares=0) as pool:
        [first] = in_threads(lambda: trio.run(run, pool))
        here = trio.run(run, pool)
        [third] = in_threads(lambda: trio.run(run, pool))
        assert first == here == third
        assert pool.statistics().idle == 1


# ---------------------------------------------------------------------------------------------------- processes


async def test_a_child_that_is_spawned_has_a_device_of_its_own(dev):
    x = await dev.to_device(np.arange(LENGTH))
    context = multiprocessing.get_context("spawn")

    def ask_child() -> int:
        with concurrent.futures.ProcessPoolExecutor(1, context) as children:
            return children.submit(sum_in_a_child, chosen_backend(), 100).result()

    assert await trio.to_thread.run_sync(ask_child) == 300
    np.testing.assert_array_equal(await x.to_host(), np.arange(LENGTH))
    assert dev.generation == 1


async def test_nothing_of_a_device_is_copied_or_pickled_and_none_of_it_is_given_back_by_trying(dev):
    kernel = await dev.nvrtc.compile(SOURCE, "add")
    x = dev.zeros(LENGTH, np.int32)
    module = await dev.nvrtc.compile_program(SOURCE)
    graph = await dev.capture(lambda recorder: recorder.launch(kernel, 1, LENGTH, x, 1))
    event = dev.compute_lane.record()
    things = [dev, x, x[3:], kernel, kernel.prepare(1, LENGTH, x, 1), module, graph, event, dev.batch()]
    before = await settle(dev)
    for thing in [*things, dev.compute_lane]:
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"a {type(thing).__name__} belongs to its device"):
                way(thing)
    for holder in (atomr_trio.read_only(x), dev.blas, dev.nvrtc, dev.events()):
        for way in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="belongs to its device"):
                way(holder)
    assert await settle(dev) == before
    await module["add"].launch(1, LENGTH, x, 1)
    await graph.launch()
    assert (await x.to_host() == 2).all()
