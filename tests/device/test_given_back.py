"""What a program makes, uses and drops is given back: nothing grows, here or in the worker, however often.

Each kind of object is made, used in every form that it has, and dropped, again and again; after the first rounds have
filled what is kept on purpose, descriptors, mappings, memory of the device and of both processes, and the sizes of all
tables of the library must stay as they are. The short form is part of every run, the long one runs by `make soak`.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import InvalidArgument, link, read_only
from atomr_trio._calls import known as _known_calls, known_sequences as _known_sequences
from atomr_trio._calls.launching import AwaitedLaunches
from atomr_trio._device.device import core_of
from atomr_trio._generation import core
from atomr_trio.libraries.lanes.dropped_events import AT_ONCE
from support import gpu_memory, held, open_test_device, set_constant
from support.linking import HELPER, KERNEL, ltoir
from support.nvrtc import compile_ptx
from support.rogue import until, worker_pid
from support.strategies import until_idle

N = 32
MIB = 1 << 20
SOURCE = r"""
__device__ int step = 1;
extern "C" __global__ void touch(int *x, int n) { if (threadIdx.x < n) x[threadIdx.x] += step; }
"""

# --- kinds of objects -------------------------------------------------------------------------------------------------


class Things:
    """What outlives the rounds: a device, and one of each thing that others need."""

    def __init__(self, dev: Any, touch: Any, x: Any) -> None:
        self.dev = dev
        self.touch = touch
        self.x = x
        self.ptx: str = compile_ptx(SOURCE)
        self.linked: bytes = self.link()

    @classmethod
    async def of(cls, dev: Any) -> Things:
        return cls(dev, await dev.nvrtc.compile(SOURCE, "touch"), await dev.to_device(np.zeros(N, np.int32)))

    def link(self) -> bytes:
        """An image for the device, of two that need each other."""
        kind, (major, minor) = "compute" if self.dev.backend == "sim" else "sm", self.dev.info.capability
        return link([ltoir(KERNEL), ltoir(HELPER)], arch=f"{kind}_{major}{minor}")


async def launch_in_every_form(things: Things, kernel: Any, x: Any) -> None:
    """Awaited, in batches, unheard, on another lane, prepared, in a graph; often enough to take the short way."""
    dev, prepared = things.dev, kernel.prepare(1, N, x, N)
    for _ in range(3):
        await kernel.launch(1, N, x, N)
        await prepared.launch()
    kernel.launch_nowait(1, N, x, N)
    prepared.launch_nowait()
    async with dev.batch() as batch:
        for _ in range(3):
            batch.launch(kernel, 1, N, x, N)
            batch.launch(prepared)
    async with dev.lane() as lane:
        await kernel.launch(1, N, read_only(x), 0, lane=lane)
        await prepared.launch(lane=lane)
        async with dev.batch(lane=lane) as batch:
            for _ in range(3):
                batch.launch(kernel, 1, N, x, N)
                batch.launch(prepared)
    prepared[1] = 0
    await prepared.launch()
    await kernel.occupancy(N)

    def record(graph: Any) -> None:
        graph.launch(kernel, 1, N, x, N)

    graph = await dev.capture(record)
    await graph.launch()


async def kernels(things: Things, number: int) -> None:
    await launch_in_every_form(things, (await things.dev.module.load(things.ptx))["touch"], things.x)


async def compiled_kernels(things: Things, number: int) -> None:
    kernel = await things.dev.nvrtc.compile(SOURCE.replace("step = 1", f"step = {number % 3 + 1}"), "touch")
    await kernel.launch(1, N, things.x, N)
    await kernel.launch(1, N, things.x, N)


async def prepared_launches(things: Things, number: int) -> None:
    await launch_in_every_form(things, things.touch, things.dev.zeros(N + number % 7, np.int32))


async def arrays_and_views(things: Things, number: int) -> None:
    dev = things.dev
    array = await dev.to_device(np.arange(N * N, dtype=np.int32).reshape(N, N))
    view = array[::2, 3:].T
    await view.fill(number)
    await view[1:].copy_from(np.zeros((28, 16), np.int32))
    await array.reshape(-1)[:N].copy_from(things.x)
    await view.to_host()
    assert array[0].address  # a view that nothing is done with
    async with dev.batch() as batch:
        batch.launch(things.touch, 1, N, array[1], N)
        batch.fill(array[2], 1)
        batch.copy_from(array[3], array[4])
        batch.to_host(array[::3])
        batch.to_device(np.zeros(3))
    with dev.empty(10) as short_lived, pytest.raises(InvalidArgument):
        await short_lived.copy_from(np.zeros(3))


async def graphs(things: Things, number: int) -> None:
    dev, y = things.dev, things.dev.zeros(N, np.int32)
    nodes = []

    def record(graph: Any) -> None:
        nodes.append(graph.fill(y, number))
        nodes.append(graph.copy(y, things.x))
        nodes.append(graph.launch(things.touch, 1, N, y, N))

    graph = await dev.capture(record)
    clone = graph.clone()
    for each in (graph, clone):
        await each.launch()
        each.update(nodes[2], y, 1)
        each.launch_nowait()
        async with dev.batch() as batch:
            batch.launch_graph(each)


async def calls_in_graphs(things: Things, number: int) -> None:
    """Each graph has a stream, a handle and a workspace of its own."""
    dev = things.dev
    a = await dev.to_device(np.eye(4, dtype=np.float32))
    made: list[Any] = []

    def record(graph: Any) -> None:
        made.append(graph.blas.gemm(a, a))
        made.append(graph.last)

    graph = await dev.capture(record)
    for each in (graph, graph.clone()):
        await each.launch()
        each.update(made[1], a, a, alpha=2)
        await each.launch()
    assert (await made[0].to_host() == 2 * np.eye(4)).all()


async def events(things: Things, number: int) -> None:
    dev = things.dev
    first = dev.compute_lane.record()
    await things.touch.launch(1, N, things.x, N)
    async with dev.batch() as batch:
        second = batch.record()
    async with dev.lane() as lane:
        lane.wait_for(second)
        await lane.synchronize()
        unheard = lane.record()
    assert await second.elapsed_since(first) >= 0
    assert repr(unheard)


async def lanes(things: Things, number: int) -> None:
    async with things.dev.lane(ordered=bool(number % 2)) as lane:
        await things.touch.launch(1, N, things.x, N, lane=lane)
        things.touch.launch_nowait(1, N, things.x, N, lane=lane)
        async with things.dev.batch(lane=lane) as batch:
            batch.launch(things.touch, 1, N, things.x, N)
            batch.fill(things.x, 0)
            batch.blas.scal(things.dev.zeros(4), 2.0)
        await lane.synchronize()


async def pinned_arrays(things: Things, number: int) -> None:
    dev = things.dev
    host = dev.pinned_empty(N, np.int32)
    host[:] = number
    await things.x.copy_from(host)
    await things.x.copy_to(host)
    async with dev.batch() as batch:
        batch.copy_from(things.x, host[:])
        batch.copy_to(things.x[:8], host[8:16])


async def plans_and_repeated_calls(things: Things, number: int) -> None:
    dev = things.dev
    a, b = dev.full((4, 4), 1, np.float32), dev.full((4, 4), 2, np.float32)
    out = dev.empty((4, 4), np.float32)
    for _ in range(3):
        await dev.blas.gemm(a, b)
        await dev.blas.gemm(a, b, out=out)
        await dev.blaslt.matmul(a, b, epilogue="relu")
        async with dev.batch() as batch:
            for _ in range(3):
                batch.blas.gemm(a, b, out=out, beta=1)
                batch.blaslt.matmul(a, b, out=out)
            batch.blas.dot(a[0], b[0])
    await dev.solver.cholesky(await dev.to_device(np.eye(3)))


async def exports(things: Things, number: int) -> None:
    dev = things.dev
    array = await dev.share(dev.full(N, number, np.int32))
    if dev.backend == "sim":
        assert np.from_dlpack(array).tolist() == N * [number]
    capsule = array.__dlpack__()
    await array.fill(3)
    assert capsule is not None


async def modules_with_variables(things: Things, number: int) -> None:
    dev = things.dev
    module = await dev.module.load(things.ptx)
    variable = module.global_("step", np.int32)
    await variable.fill(2)
    await module["touch"].launch(1, N, things.x, N)
    await module["touch"].launch(1, 1, variable, 0)
    async with await dev.module.load(things.ptx) as unloaded:
        await unloaded.global_("step", np.int32).to_host()
        kernel = unloaded["touch"]
        await kernel.launch(1, N, things.x, N)
    with pytest.raises(InvalidArgument, match="unloaded"):
        await kernel.launch(1, N, things.x, N)


async def linked_images(things: Things, number: int) -> None:
    image = await trio.to_thread.run_sync(things.link) if number % 200 == 0 else things.linked
    module = await things.dev.module.load(image)
    y = things.dev.zeros(N, np.float32)
    for _ in range(2):
        await module["apply"].launch(1, N, y)


async def what_is_refused_or_abandoned(things: Things, number: int) -> None:
    dev, x = things.dev, things.dev.zeros(N, np.int32)
    prepared = things.touch.prepare(1, N, x, N)
    for work in (prepared.launch, x.to_host, lambda: x.fill(1), lambda: things.touch.launch(1, N, x, N)):
        with trio.CancelScope() as scope:
            scope.cancel()
            await work()
    with contextlib.suppress(ZeroDivisionError):
        async with dev.batch() as batch:
            batch.launch(prepared)
            batch.fill(x, 2)
            raise ZeroDivisionError
    await dev.compute_lane.synchronize()
    x.free()
    with pytest.raises(InvalidArgument, match="freed"):
        await prepared.launch()


KINDS: dict[str, Callable[[Things, int], Awaitable[None]]] = {
    kind.__name__: kind
    for kind in (
        kernels,
        compiled_kernels,
        prepared_launches,
        arrays_and_views,
        graphs,
        calls_in_graphs,
        events,
        lanes,
        pinned_arrays,
        plans_and_repeated_calls,
        exports,
        modules_with_variables,
        linked_images,
        what_is_refused_or_abandoned,
    )
}

# --- with the last reference, at once ---------------------------------------------------------------------------------


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is given back here is given back without the collector of cycles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def awaited(dev: Any, batch: Any, launchable: Any, *arguments: Any) -> None:
    for _ in range(3):
        await launchable.launch(*arguments)


async def unheard(dev: Any, batch: Any, launchable: Any, *arguments: Any) -> None:
    launchable.launch_nowait(*arguments)
    await dev.compute_lane.synchronize()


async def in_a_batch_of_its_own(dev: Any, batch: Any, launchable: Any, *arguments: Any) -> None:
    async with dev.batch() as own:
        for _ in range(3):
            own.launch(launchable, *arguments)


async def in_a_batch_that_goes_on(dev: Any, batch: Any, launchable: Any, *arguments: Any) -> None:
    for _ in range(3):
        batch.launch(launchable, *arguments)
    await batch.flush()


forms = pytest.mark.parametrize("launch", [awaited, unheard, in_a_batch_of_its_own, in_a_batch_that_goes_on])


@forms
async def test_a_prepared_launch_that_is_dropped_keeps_none_of_its_arrays(pool, uncollected, launch):
    async with open_test_device(workers=pool, memory_limit=64 * MIB) as dev, dev.batch() as batch:
        touch = await dev.nvrtc.compile(SOURCE, "touch")
        for _ in range(100 if launch is awaited else 20):
            x = dev.empty(2 * MIB, np.int32)
            prepared = touch.prepare(1, N, x, N)
            await launch(dev, batch, prepared)
            del x, prepared
        assert dev.statistics().memory.in_use == 0


@forms
async def test_a_kernel_that_is_dropped_takes_its_module_along(pool, uncollected, launch):
    async with open_test_device(workers=pool) as dev, dev.batch() as batch:
        x, ptx = await dev.to_device(np.zeros(N, np.int32)), compile_ptx(SOURCE)
        before, rounds = held.descriptors(os.getpid()), 5
        for _ in range(rounds):
            kernel = (await dev.module.load(ptx))["touch"]
            module = weakref.ref(kernel.module)
            await launch(dev, batch, kernel, 1, N, x, N)
            del kernel
            assert module() is None
        # Each kernel would keep one. Timers of the device's own tasks come and go meanwhile.
        assert held.descriptors(os.getpid()) < before + rounds


async def test_a_call_that_is_not_kept_any_more_is_forgotten_by_every_lane(dev, uncollected, monkeypatch):
    set_constant(monkeypatch, _known_calls, "_MOST_KNOWN", 2)
    set_constant(monkeypatch, _known_sequences, "_MOST_KNOWN", 2)
    x = await dev.to_device(np.zeros(4))
    async with dev.batch() as batch:
        for alpha in range(1, 6):
            for _ in range(3):
                await dev.blas.scal(x, alpha)
                batch.blas.scal(x, alpha)
            await batch.flush()
        assert len(batch._sender.path.launchers) == len(core_of(dev).part(AwaitedLaunches).path.launchers) == 2
        assert len(batch._sender.path._watches) == len(core_of(dev).part(AwaitedLaunches).path._watches) == 2


@pytest.mark.parametrize("kind", ["modules", "graphs", "events"])
async def test_however_much_is_dropped_at_once_is_given_back_a_few_at_a_time(pool, monkeypatch, kind):
    """Each is a command, or some events together are one, and a lane has room for so many."""
    few = 8
    set_constant(monkeypatch, core, "ORPHANS_AT_ONCE", few)
    async with open_test_device(workers=pool) as dev:
        ptx, x = compile_ptx(SOURCE), dev.zeros(4)

        async def make() -> Any:
            if kind == "modules":
                return await dev.module.load(ptx)
            if kind == "graphs":
                return await dev.capture(lambda graph: graph.fill(x, 1))
            event = dev.compute_lane.record()
            await event.wait()
            return event

        pending, at_once = core_of(dev).dropped, few
        if kind == "events":
            pending, at_once = dev.compute_lane._dropped_events._events, few * AT_ONCE
        dropped = [await make() for _ in range(3 * at_once)]
        dropped.clear()
        held.collect()
        assert len(pending) == 3 * at_once
        for left in (2, 1, 0):
            before = dev.statistics().lanes[0].submitted
            dropped.append(await make())
            assert dev.statistics().lanes[0].submitted - before <= few + 2
            assert len(pending) == left * at_once


async def test_a_generation_that_was_lost_is_kept_by_nothing(dev):
    touch, x = await dev.nvrtc.compile(SOURCE, "touch"), await dev.to_device(np.zeros(N, np.int32))
    prepared = touch.prepare(1, N, x, N)
    await awaited(dev, None, prepared)
    await in_a_batch_of_its_own(dev, None, prepared)
    first = weakref.ref(core_of(dev).current)
    await dev.restart("to see what is left of it")
    await until(lambda: held.collect() or first() is None)
    await awaited(dev, None, prepared)


# --- what is counted --------------------------------------------------------------------------------------------------


SAME = ("descriptors here", "descriptors of the worker", "bytes of arrays", "bytes of chunks")
"""What does not change at all, but for a file that Python itself has open for a moment."""


async def counted(dev: Any, witness: held.Witness) -> dict[str, int]:
    """All that is held, by what it is."""
    await until_idle(dev)
    async with dev.lane():  # a new one has those given back that were still busy when they were closed
        held.collect()
    core = core_of(dev)
    while core.dropped:  # what the next module or graph would give back
        core.release_dropped(core.current)
    await until_idle(dev)
    memory = dev.statistics().memory  # which also takes back what was collected
    worker = worker_pid(dev)
    witness.ask(worker)
    await until(lambda: witness.answered)
    return {
        "descriptors here": held.descriptors(os.getpid()),
        "descriptors of the worker": held.descriptors(worker),
        "mappings here": held.mappings(os.getpid()),
        "mappings of the worker": held.mappings(worker),
        "bytes of arrays": memory.in_use,
        "bytes of chunks": memory.reserved,
        **{f"here: {name}": count for name, count in held.tally().items()},
        **{f"worker: {name}": count for name, count in witness.answer().items()},
    }


def bytes_held(dev: Any) -> dict[str, int]:
    """What is not the library's to count: memory of both processes, and of the GPU beside the chunks."""
    return {
        "bytes here": held.private_bytes(os.getpid()),
        "bytes of the worker": held.private_bytes(worker_pid(dev)),
        "bytes of the GPU": 0 if math.isnan(used := gpu_memory()) else int(used * MIB),
    }


async def grown(things: Things, witness: held.Witness, kinds: Sequence[str], warm_up: int, rounds: int) -> list[str]:
    """What has grown with the rounds of some kinds of objects."""
    for number in range(warm_up):
        for kind in kinds:
            await KINDS[kind](things, number)
    before, bytes_before = await counted(things.dev, witness), bytes_held(things.dev)
    for number in range(warm_up, warm_up + rounds):
        for kind in kinds:
            await KINDS[kind](things, number)
    after, bytes_after = await counted(things.dev, witness), bytes_held(things.dev)
    most = dict.fromkeys(after, rounds // 3) | dict.fromkeys(bytes_after, (2 * MIB + 2048 * rounds) * len(kinds))
    most |= dict.fromkeys(SAME, 2) | {"bytes of the GPU": 64 * MIB}
    before |= bytes_before
    return [
        f"{name}: {before.get(name, 0):,} -> {count:,}"
        for name, count in (after | bytes_after).items()
        if count - before.get(name, 0) > most[name]
    ]


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> held.Witness:
    monkeypatch.syspath_prepend(str(tmp_path))
    return held.Witness(tmp_path)


async def keep_nothing(witness: held.Witness, groups: Sequence[Sequence[str]], warm_up: int, rounds: int) -> None:
    """Do `rounds` of each group of kinds, in two generations, and fail by all that has grown."""
    async with open_test_device() as dev:
        things = await Things.of(dev)
        found = {}
        for generation in (1, 2):
            for group in groups:
                what, begun = f"generation {generation}, {', '.join(group)}", time.monotonic()
                found[what] = await grown(things, witness, group, warm_up, rounds)
                print(f"{what}: {rounds} rounds in {time.monotonic() - begun:.1f} s")
            if generation == 1:
                await dev.restart("to see the same in the next generation")
        assert not any(found.values()), "\n".join(f"{what}: {line}" for what, each in found.items() for line in each)


@pytest.mark.long
async def test_what_is_made_used_and_dropped_leaves_nothing_behind(witness, monkeypatch):
    set_constant(monkeypatch, _known_calls, "_MOST_KNOWN", 8)  # which the first rounds reach
    set_constant(monkeypatch, _known_sequences, "_MOST_KNOWN", 2)
    await keep_nothing(witness, [tuple(KINDS)], warm_up=3, rounds=6)


@pytest.mark.soak
async def test_a_thousand_of_each_kind_leave_nothing_behind(witness, monkeypatch):
    set_constant(monkeypatch, _known_sequences, "_MOST_KNOWN", 100)  # which the first rounds reach
    await keep_nothing(witness, [(kind,) for kind in KINDS], warm_up=150, rounds=1000)
