"""How long a call holds the event loop: `make bench-holding`.

Each row makes one call of the public face on something large while an instrument watches every step of every task. The
figure is the longest of these steps, for nothing else of the program runs meanwhile. A row is *held* when that is at
most `targets.HELD_UP_LIMIT`. What a call does in other threads and in the worker does not count, nor how long the
loop's thread waited for a processor that another program had, where Linux tells that. Verbs that are synchronous by
their nature are shown with what they cost.

Every row is measured several times, and the best run counts: other programs on the machine can only make a step longer.
The rows of first uses are measured by a process for each time. Python's collector of cycles is off meanwhile: when it
comes, and for how long, is the program's matter.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Literal

import attrs
import conclusion
import numpy as np
import targets
import trio
from speed_report import OURS, Measure, Table, Verdict

import atomr_trio

Backend = Literal["cuda", "sim"]

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
    """Without those in which another program had the processor."""
    processor: float
    """Seconds of the processor that the loop's thread had in it."""
    task: str


class Watch(trio.abc.Instrument):
    """Records the longest step that ends while it watches."""

    def __init__(self) -> None:
        self.longest: Step = Step(0.0, 0.0, "")
        try:
            self._waits = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._waits = -1
        self._begin()

    def close(self) -> None:
        """It watches no more."""
        if self._waits >= 0:
            os.close(self._waits)

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
        self._waited = self._waited_so_far()
        self._processor = time.thread_time()
        self._began = time.perf_counter()

    def _end(self, task: trio.lowlevel.Task) -> None:
        seconds, processor = time.perf_counter() - self._began, time.thread_time() - self._processor
        if seconds > self.longest.seconds:
            # A virtual machine may count the same wait twice; the thread ran for as long as it ran.
            seconds = max(processor, seconds - (self._waited_so_far() - self._waited))
        if seconds > self.longest.seconds:
            self.longest = Step(seconds, processor, task.name)

    def _waited_so_far(self) -> float:
        """Seconds that this thread has waited for a processor."""
        return int(os.pread(self._waits, 64, 0).split()[1]) / 1e9 if self._waits >= 0 else 0.0


Row = Callable[[Any, Watch], Coroutine[Any, Any, None]]
ROWS: dict[str, Row] = {}
COSTS: dict[str, tuple[Row, str, float]] = {}
"""What is not judged: how it is measured, a unit, and how many of those there are."""


def row(name: str) -> Callable[[Row], Row]:
    """Put a row into the table: it is given a device and a watch."""

    def put(measure: Row) -> Row:
        ROWS[name] = measure
        return measure

    return put


def cost(name: str, unit: str, count: float) -> Callable[[Row], Row]:
    """Put a row among those that are shown by what one of `count` units costs."""

    def put(measure: Row) -> Row:
        COSTS[name] = measure, unit, count
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


@cost("batch.to_device of a transposed 60 MiB", "MiB", 60)
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


async def recorder_of(dev: Any) -> tuple[Callable[[Any], None], list[Any]]:
    """A function that records so many nodes, and the arrays that they work on."""
    add = await dev.nvrtc.compile(SOURCE, "add")
    arrays = [dev.zeros(8, np.int32) for _ in range(100)]

    def record(recorder: Any) -> None:
        for index in range(NODES):
            recorder.launch(add, 1, 8, arrays[index % 100], 1)

    return record, arrays


@cost("a graph's recording of 10,000 nodes", "node", NODES)
async def recording(dev: Any, watch: Watch) -> None:
    record, _ = await recorder_of(dev)
    with watch.watching():
        await dev.capture(record)


@row("await dev.capture by an async function of 10,000 nodes")
async def capture(dev: Any, watch: Watch) -> None:
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
    record, arrays = await recorder_of(dev)
    graph = await dev.capture(record)
    nodes = graph.nodes
    with watch.watching():
        for index in range(100):
            graph.update(nodes[index], arrays[index], 2)


@row("first launch of a graph of which 10,000 nodes were updated")
async def launch_updated(dev: Any, watch: Watch) -> None:
    record, arrays = await recorder_of(dev)
    graph = await dev.capture(record)
    for index, node in enumerate(graph.nodes):
        graph.update(node, arrays[index % 100], 2)
    with watch.watching():
        await graph.launch()


@row("Graph.nodes of 10,000")
async def nodes(dev: Any, watch: Watch) -> None:
    record, _ = await recorder_of(dev)
    graph = await dev.capture(record)
    with watch.watching():
        found = graph.nodes
        _ = [(node.operation, node.after) for node in (found[0], found[-1], *found[5_000:5_100])]


@row("Graph.nodes of 10,000 after an update with other arrays")
async def nodes_updated(dev: Any, watch: Watch) -> None:
    record, arrays = await recorder_of(dev)
    graph = await dev.capture(record)
    graph.update(graph.nodes[0], arrays[1], 2)
    with watch.watching():
        found = graph.nodes
        _ = [(node.operation, node.after) for node in found[:100]]


@cost("an iteration over Graph.nodes of 10,000", "node", NODES)
async def nodes_all(dev: Any, watch: Watch) -> None:
    record, _ = await recorder_of(dev)
    graph = await dev.capture(record)
    with watch.watching():
        for _ in graph.nodes:
            """A look at each."""


# --- the solver -------------------------------------------------------------------------------------------------------


def _solver(verb: str, order: int = ORDER, *, sides: bool = False) -> None:
    @row(f"await solver.{verb} of 4,000 x {order} x {order}")
    async def solve(dev: Any, watch: Watch) -> None:
        identities = np.broadcast_to(np.eye(order, dtype=np.float32), (STACK, order, order))
        given = [await dev.to_device(np.ascontiguousarray(identities))]
        if sides:
            given.append(await dev.to_device(np.ones((STACK, order, 1), np.float32)))
        with watch.watching():
            await getattr(dev.solver, verb)(*given)


for _verb in ("qr", "svd", "eigh", "inv", "cholesky", "det", "syevj"):
    _solver(_verb)
_solver("gesvdj", 30)
_solver("solve", sides=True)
_solver("lstsq", sides=True)


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


@cost("memory_map() with 100,000 arrays", "array", ARRAYS)
async def memory_map(dev: Any, watch: Watch) -> None:
    arrays = many(dev, every=2)
    with watch.watching():
        found = dev.memory_map()
    del arrays, found


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
    del arrays


@row("closing a device with 100,000 arrays")
async def closing(dev: Any, watch: Watch) -> None:
    with contextlib.ExitStack() as leaving:
        async with atomr_trio.open_device(0, backend=dev.backend) as other:
            arrays = many(other, every=2)
            await arrays[0].fill(1)
            leaving.enter_context(watch.watching())
    del arrays


@row("events for 1,000 listeners")
async def listeners(dev: Any, watch: Watch) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(1_000):
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


async def first_uses(backend: Backend) -> dict[str, float]:
    """What is done for the first time in a process, one after the other, and how long each held the loop."""
    found: dict[str, float] = {}
    host = np.eye(32, dtype=np.float32)

    @contextlib.contextmanager
    def part(name: str) -> Iterator[None]:
        with contextlib.closing(Watch()) as watch, watch.watching():
            yield
        found[f"first {name}"] = watch.longest.seconds

    async with contextlib.AsyncExitStack() as stack:
        with part("open_device"):
            dev = await stack.enter_async_context(atomr_trio.open_device(0, backend=backend))
        with part("nvrtc.compile"):
            add = await dev.nvrtc.compile(SOURCE, "add")
        with part("to_device and to_host"):
            a = await dev.to_device(host)
            await a.to_host()
        x = dev.zeros(8, np.int32)
        with part("launch"):
            await add.launch(1, 8, x, 1)
        with part("batch"):
            async with dev.batch() as batch:
                batch.launch(add, 1, 8, x, 1)
                batch.fill(x, 1)
        with part("blas.gemm"):
            await dev.blas.gemm(a, a)
        with part("blaslt.matmul"):
            await dev.blaslt.matmul(a, a)
        with part("solver.solve"):
            await dev.solver.solve(a, a)
        with part("graph"):
            graph = await dev.capture(lambda recorder: recorder.fill(x, 1))
            await graph.launch()
        with part("lane"):
            async with dev.lane() as lane:
                await add.launch(1, 8, x, 1, lane=lane)
        image = await trio.to_thread.run_sync(atomr_trio.compile_to_ptx, SOURCE)
        with part("module.load"):
            await dev.module.load(image)
        with part("share"):
            (await dev.share(a)).__dlpack__()
    return found


# --- the table --------------------------------------------------------------------------------------------------------


async def longest_of(measure: Row, backend: Backend, runs: int) -> Step:
    """The longest step of the best run."""
    best: list[Step] = []
    for _ in range(runs):
        async with atomr_trio.open_device(0, backend=backend) as dev:
            with contextlib.closing(Watch()) as watch:
                await measure(dev, watch)
                best.append(watch.longest)
    return min(best, key=lambda step: step.seconds)


def firsts_of(backend: Backend, runs: int) -> dict[str, float]:
    """The best of several processes for each first use."""
    command = [sys.executable, str(Path(__file__)), "--backend", backend, "--firsts"]
    answers = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(runs)]
    found = [json.loads(answer) for answer in answers]
    return {name: min(each[name] for each in found) for name in found[0]}


def judged(table: Table, name: str, seconds: float, note: str = "") -> Verdict:
    """Put a row into the table, judge it, and print it."""
    table.measures.append(Measure(name, OURS, [seconds]))
    verdict = targets.held_up(name).judge(table)
    word = "held" if verdict.held else "MISSED"
    print(f"{name:56} {1e3 * seconds:8.2f} ms  {word:6}  {note}", flush=True)
    return verdict


async def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if a row was missed."""
    backend: Backend = arguments.backend
    runs = conclusion.fewer(arguments.runs, arguments.share, least=1)
    verdicts, table = [], Table()
    limit = f"at most {1e3 * targets.HELD_UP_LIMIT:g} ms must hold"
    print(f"the longest step of a task, of {runs} runs the best; {limit}")
    rows = {*arguments.rows}

    def chosen(name: str) -> bool:
        return name in rows if rows else arguments.only in name

    if not arguments.only and not (rows and rows <= ROWS.keys()):
        firsts = await trio.to_thread.run_sync(firsts_of, backend, runs)
        verdicts += [judged(table, name, seconds) for name, seconds in firsts.items() if chosen(name)]
    for name, measure in ROWS.items():
        if chosen(name):
            step = await longest_of(measure, backend, runs)
            verdicts.append(judged(table, name, step.seconds, f"{1e3 * step.processor:.2f} ms of the processor"))
    print("\nsynchronous by nature:")
    for name, (measure, unit, count) in COSTS.items():
        if chosen(name):
            step = await longest_of(measure, backend, runs)
            table.measures.append(Measure(f"{name}, each {unit}", OURS, [step.seconds / count]))
            print(f"{name:56} {1e6 * step.seconds / count:8.2f} us a {unit}", flush=True)
    title = f"The longest step of the event loop, the best of {runs} runs"
    conclusion.conclude(arguments, "holding", title, table, verdicts)
    return int(not all(verdict.held for verdict in verdicts))


if __name__ == "__main__":
    parser = conclusion.with_rows(conclusion.options(__doc__))
    parser.add_argument("--runs", type=int, default=RUNS, help="how often each row is measured")
    parser.add_argument("--only", default="", help="rows with this text in their names")
    parser.add_argument("--firsts", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.getLogger("atomr_trio").setLevel(logging.CRITICAL)
    if options.firsts:
        print(json.dumps(trio.run(first_uses, options.backend)))
    else:
        sys.exit(trio.run(main, options))
