"""How long a call holds the event loop: `make bench-holding`.

Each row makes one call of the public face on something large while an instrument watches every step of every task. The
figure is the longest of these steps, for nothing else of the program runs meanwhile. A row is *held* when that is at
most `TARGET`. What a call does in other threads and in the worker does not count.

Every row is measured several times, and the best run counts: other programs on the machine can only make a step longer.
The rows of first uses are measured once for each process, so several processes measure them.
Python's collector of cycles is off meanwhile: when it comes, and for how long, is the program's matter.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import attrs
import numpy as np
import trio

import atomr_trio

Backend = Literal["cuda", "sim"]

TARGET = 5e-3
"""Seconds that a call may hold the event loop at a time."""

RUNS = 3
MIB = 1 << 20
NODES, ARRAYS, STACK, ORDER = 10_000, 100_000, 4_000, 40

SOURCE = r"""
extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }
extern "C" __global__ void wild(unsigned long long where) { *(volatile int *)where = 1; }
"""
WILD_ADDRESS = 0x10


@attrs.frozen
class Step:
    """One step of a task: from where the scheduler went to it until the task gave way."""

    seconds: float
    processor: float
    """Seconds of the processor that the loop's thread had in it."""
    task: str


class Watch(trio.abc.Instrument):
    """Records the longest step that ends while it watches."""

    def __init__(self) -> None:
        self.longest: Step = Step(0.0, 0.0, "")
        self.hungriest: Step = Step(0.0, 0.0, "")
        """The one that took most of the processor."""
        self._begin()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task goes on."""
        self._begin()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """It has given way."""
        self._end(task)

    @contextlib.contextmanager
    def watching(self) -> Iterator[Watch]:
        """Look at the steps of this block; what of the present step lies outside of it does not count."""
        gc.collect()
        gc.disable()
        trio.lowlevel.add_instrument(self)
        self._begin()
        try:
            yield self
        finally:
            self._end(trio.lowlevel.current_task())
            trio.lowlevel.remove_instrument(self)
            gc.enable()

    def _begin(self) -> None:
        self._began = time.perf_counter()
        self._processor = time.thread_time()

    def _end(self, task: trio.lowlevel.Task) -> None:
        processor, seconds = time.thread_time() - self._processor, time.perf_counter() - self._began
        if seconds > self.longest.seconds:
            self.longest = Step(seconds, processor, task.name)
        if processor > self.hungriest.processor:
            self.hungriest = Step(seconds, processor, task.name)


Act = Callable[[], Any]
Row = Callable[[Any, Watch], Any]
ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    """Put a row into the table: it is given a device and a watch."""

    def put(measure: Row) -> Row:
        ROWS[name] = measure
        return measure

    return put


# --- copies -----------------------------------------------------------------------------------------------------------


def large_host() -> np.ndarray[Any, Any]:
    """60 MiB whose transpose does not lie in regular rows."""
    return np.arange(15 * MIB, dtype=np.float32).reshape(3840, 4096)


@row("await to_device of a transposed 60 MiB")
async def to_device_strided(dev: Any, watch: Watch) -> None:
    host = large_host().T
    with watch.watching():
        array = await dev.to_device(host)
    array.free()


@row("await copy_to a transposed 60 MiB")
async def copy_to_strided(dev: Any, watch: Watch) -> None:
    host = large_host()
    with await dev.to_device(host) as array:
        with watch.watching():
            await array.T.copy_to(np.empty(array.T.shape, host.dtype))


@row("await to_host of a strided view of 120 MiB")
async def to_host_strided(dev: Any, watch: Watch) -> None:
    with dev.zeros((7680, 4096), np.float32) as array:
        with watch.watching():
            await array[::2].to_host()
            await array[:, ::2].to_host()


@row("await copies of 256 MiB, in and out")
async def copies_of_a_gib(dev: Any, watch: Watch) -> None:
    host = np.ones(256 * MIB, np.uint8)
    with watch.watching():
        array = await dev.to_device(host)
        await array.copy_to(host)
    array.free()


@row("await batch.flush() of a copy_to a transposed 60 MiB")
async def flush_strided(dev: Any, watch: Watch) -> None:
    host = large_host()
    out = np.empty(host.T.shape, host.dtype)
    with await dev.to_device(host) as array:
        async with dev.batch() as batch:
            batch.copy_to(array.T, out)
            with watch.watching():
                await batch.flush()


@row("batch.to_device of a transposed 60 MiB")
async def batch_strided(dev: Any, watch: Watch) -> None:
    host = large_host().T
    async with dev.batch() as batch:
        with watch.watching():
            array = batch.to_device(host)
    array.free()


@row("pinned memory of 1 GiB, made and given back")
async def pinned(dev: Any, watch: Watch) -> None:
    with watch.watching():
        host = dev.pinned_empty(1 << 30, np.uint8)
    host[:] = 1
    with watch.watching():
        del host
        await trio.lowlevel.checkpoint()
        dev.pinned_empty(1, np.uint8)


@row("trim of 1 GiB in four chunks")
async def trim(dev: Any, watch: Watch) -> None:
    arrays = [dev.empty(256 * MIB, np.uint8, guarded=True) for _ in range(4)]
    for array in arrays:
        await array.fill(1)
    for array in arrays:
        array.free()
    with watch.watching():
        await dev.trim()


# --- graphs -----------------------------------------------------------------------------------------------------------


async def _recorded(dev: Any) -> tuple[Any, Callable[[Any], list[Any]], list[Any]]:
    add = await dev.nvrtc.compile(SOURCE, "add")
    arrays = [dev.zeros(8, np.int32) for _ in range(100)]

    def record(recorder: Any) -> list[Any]:
        return [recorder.launch(add, 1, 8, arrays[index % 100], 1) for index in range(NODES)]

    return add, record, arrays


@row("await dev.capture of 10,000 nodes, but for record itself")
async def capture(dev: Any, watch: Watch) -> None:
    _, record, _ = await _recorded(dev)

    def recording(recorder: Any) -> None:
        record(recorder)
        watch._begin()

    with watch.watching():
        await dev.capture(recording)


@row("await dev.capture of 10,000 nodes by an async record")
async def capture_in_pieces(dev: Any, watch: Watch) -> None:
    add = await dev.nvrtc.compile(SOURCE, "add")
    arrays = [dev.zeros(8, np.int32) for _ in range(100)]

    async def record(recorder: Any) -> None:
        for index in range(NODES):
            recorder.launch(add, 1, 8, arrays[index % 100], 1)
            if index % 32 == 0:
                await trio.lowlevel.checkpoint()

    with watch.watching():
        await dev.capture(record)


@row("100 x Graph.update on 10,000 nodes")
async def update(dev: Any, watch: Watch) -> None:
    _, record, arrays = await _recorded(dev)
    graph = await dev.capture(lambda recorder: None if record(recorder) else None)
    nodes = graph.nodes
    with watch.watching():
        for index in range(100):
            graph.update(nodes[index], arrays[index], 2)


@row("first launch of a graph of which 10,000 nodes were updated")
async def launch_updated(dev: Any, watch: Watch) -> None:
    _, record, arrays = await _recorded(dev)
    graph = await dev.capture(lambda recorder: None if record(recorder) else None)
    for index, node in enumerate(graph.nodes):
        graph.update(node, arrays[index % 100], 2)
    with watch.watching():
        await graph.launch()


@row("Graph.nodes of 10,000")
async def nodes(dev: Any, watch: Watch) -> None:
    _, record, _ = await _recorded(dev)
    graph = await dev.capture(lambda recorder: None if record(recorder) else None)
    with watch.watching():
        _ = graph.nodes


# --- the solver -------------------------------------------------------------------------------------------------------


def _solver(verb: str, *arguments: Any, what: str = "", order: int = ORDER, **keywords: Any) -> None:
    @row(f"await solver.{verb} of 4,000 x {order} x {order}{what}")
    async def solve(dev: Any, watch: Watch) -> None:
        identities = np.broadcast_to(np.eye(order, dtype=np.float32), (STACK, order, order))
        a = await dev.to_device(np.ascontiguousarray(identities))
        given = [await dev.to_device(np.ones((STACK, order, 1), np.float32)) if each == "b" else each for each in arguments]
        with watch.watching():
            await getattr(dev.solver, verb)(a, *given, **keywords)
        a.free()


for _verb in ("qr", "eigh", "eigvalsh", "inv", "cholesky", "det", "slogdet", "getrf", "geqrf", "potrf"):
    _solver(_verb)
_solver("svd")
_solver("syevj")
_solver("gesvdj", order=30)
_solver("solve", "b", what=" for a vector each")
_solver("lstsq", "b", what=" for a vector each")


@row("await blas.gemm of lists of 4,000 matrices")
async def gemm_lists(dev: Any, watch: Watch) -> None:
    first, second = ([dev.zeros((8, 8), np.float32) for _ in range(STACK)] for _ in range(2))
    memory = [*first, *second]
    for at in range(0, len(memory), 64):
        async with dev.batch() as batch:
            for each in memory[at : at + 64]:
                batch.fill(each, 1)
    with watch.watching():
        await dev.blas.gemm(first, second)


# --- many of everything -----------------------------------------------------------------------------------------------


def many(dev: Any, *, every: int = 1) -> list[Any]:
    """So many arrays, with gaps if `every` is 2."""
    arrays = [dev.empty(128, np.float32) for _ in range(ARRAYS * every)]
    return arrays[::every]


@row("statistics() with 100,000 arrays")
async def statistics(dev: Any, watch: Watch) -> None:
    arrays = many(dev, every=2)
    with watch.watching():
        dev.statistics()
    del arrays


@row("await map_memory() with 100,000 arrays")
async def map_memory(dev: Any, watch: Watch) -> None:
    arrays = many(dev, every=2)
    with watch.watching():
        found = await dev.map_memory()
    del arrays, found


@row("100,000 arrays that are collected, then one more")
async def collected(dev: Any, watch: Watch) -> None:
    arrays = many(dev, every=2)
    del arrays
    with watch.watching():
        await trio.lowlevel.checkpoint()
        dev.empty(1, np.float32)
        await trio.lowlevel.checkpoint()


@row("restart() with 100,000 arrays")
async def restart(dev: Any, watch: Watch) -> None:
    arrays = many(dev, every=2)
    with watch.watching():
        await dev.restart("to see what it holds up")
    del arrays


@row("a fault with 100,000 arrays and 4,096 launches in flight")
async def fault(dev: Any, watch: Watch) -> None:
    arrays = many(dev)
    add, wild = await dev.nvrtc.compile(SOURCE, "add"), await dev.nvrtc.compile(SOURCE, "wild")
    x = dev.zeros(8, np.int32)
    await add.launch(1, 8, x, 1)
    with contextlib.suppress(atomr_trio.ContextLost):
        async with dev.batch() as batch:
            batch.launch(wild, 1, 1, WILD_ADDRESS)
            for _ in range(4_000):
                batch.launch(add, 1, 8, x, 1)
            with watch.watching():
                await batch.flush()
                await dev.wait_generation(after=dev.generation)
    await dev.wait_generation(after=0)
    with watch.watching():
        await trio.sleep(0.05)
    del arrays


@row("closing a device with 100,000 arrays")
async def closing(dev: Any, watch: Watch) -> None:
    async with atomr_trio.open_device(0, backend=dev.backend) as other:
        arrays = many(other, every=2)
        with watch.watching():
            pass
        leaving = watch.watching()
        leaving.__enter__()
    leaving.__exit__(None, None, None)
    del arrays


@row("an event for 10,000 listeners")
async def listeners(dev: Any, watch: Watch) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(10_000):
            stack.enter_context(dev.events())
        with watch.watching():
            await dev.restart("to tell of it")


# --- images and sources -----------------------------------------------------------------------------------------------


@row("await nvrtc.compile of 8 MiB")
async def compile_large(dev: Any, watch: Watch) -> None:
    source = "// a comment that makes it long, and nothing else\n" * (8 * MIB // 50) + SOURCE
    with watch.watching():
        await dev.nvrtc.compile(source, "add")


@row("await module.load of 48 MiB of PTX")
async def load_large(dev: Any, watch: Watch) -> None:
    ptx = atomr_trio.compile_to_ptx(SOURCE)
    image = ptx + "\n// a comment that makes it long, and nothing else" * (48 * MIB // 50)
    with watch.watching():
        module = await dev.module.load(image)
        _ = module["add"]


# --- first uses -------------------------------------------------------------------------------------------------------

FIRSTS: tuple[str, ...] = (
    "first open_device",
    "first nvrtc.compile",
    "first to_device and to_host",
    "first launch",
    "first batch",
    "first blas.gemm",
    "first blaslt.matmul",
    "first solver.solve",
    "first capture",
    "first dlpack",
)


async def first_uses(backend: Backend) -> dict[str, Step]:
    """What is done for the first time in a process, one after the other."""
    found: dict[str, Step] = {}
    host = np.eye(32, dtype=np.float32)

    @contextlib.contextmanager
    def part(name: str) -> Iterator[None]:
        with Watch().watching() as watch:
            yield
        found[name] = watch.longest

    opening = Watch()
    context = opening.watching()
    context.__enter__()
    async with atomr_trio.open_device(0, backend=backend) as dev:
        context.__exit__(None, None, None)
        found["first open_device"] = opening.longest
        with part("first nvrtc.compile"):
            add = await dev.nvrtc.compile(SOURCE, "add")
        with part("first to_device and to_host"):
            a = await dev.to_device(host)
            await a.to_host()
        x = dev.zeros(8, np.int32)
        with part("first launch"):
            await add.launch(1, 8, x, 1)
        with part("first batch"):
            async with dev.batch() as batch:
                batch.launch(add, 1, 8, x, 1)
                batch.fill(x, 1)
        with part("first blas.gemm"):
            await dev.blas.gemm(a, a)
        with part("first blaslt.matmul"):
            await dev.blaslt.matmul(a, a)
        with part("first solver.solve"):
            await dev.solver.solve(a, a)
        with part("first capture"):
            await dev.capture(lambda recorder: None if recorder.fill(x, 1) else None)
        with part("first dlpack"):
            np.from_dlpack(await dev.share(a)) if backend == "sim" else (await dev.share(a)).__dlpack__()
    return found


# --- the table --------------------------------------------------------------------------------------------------------


async def measure_rows(backend: Backend, wanted: str, runs: int) -> AsyncIterator[tuple[str, list[Step]]]:
    """The longest step of each run of each row whose name has a text in it."""
    for name, measure in ROWS.items():
        if wanted in name:
            steps = []
            for _ in range(runs):
                async with atomr_trio.open_device(0, backend=backend) as dev:
                    watch = Watch()
                    try:
                        await measure(dev, watch)
                    except Exception as e:
                        print(name, repr(e)[:300])
                        import traceback; traceback.print_exc(limit=-4)
                    steps.append(watch)
            yield name, steps


def main() -> int:
    """Print the table; the exit status says whether every row was held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--only", default="", help="rows with this text in their names")
    parser.add_argument("--firsts", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()

    async def table() -> None:
        async for name, steps in measure_rows(options.backend, options.only, options.runs):
            best = min(steps, key=lambda each: each.longest.seconds)
            print(f"{name:64} {1e3*best.longest.seconds:8.1f} ms  cpu {1e3*min(s.hungriest.processor for s in steps):8.1f} {best.longest.task}", flush=True)

    if options.firsts:
        for name, step in trio.run(first_uses, options.backend).items():
            print(f"{name:64} {1e3*step.seconds:8.1f} ms  cpu {1e3*step.processor:8.1f} {step.task}")
        return 0
    trio.run(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
