"""The subjects of the speed benchmark, one in each process: `speed_subjects.py WHO BACKEND PLAN`.

Every line printed is one word and JSON: `measure`, `absent` or `facts`. A subject is a class with a method for each
section; a section that fails is told and ends alone. What they do is kept the same: a launch of saxpy over 1024
elements (4 arguments) or of a kernel that does nothing with 16, on a stream of their own, the arguments handed over
each time.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from ctypes import addressof, byref, c_float, c_int, c_void_p
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import trio
from speed_report import (
    ALLOCATION_ROW,
    AWAITED_ROW,
    BATCH,
    CORE,
    CUPY,
    IDLE_ROW,
    NODES,
    NUMBA,
    OURS,
    PREPARED,
    RAW,
    RAW_PREPARED,
    RAW_THREAD,
    TASKS,
    TASKS_ROW,
    TORCH,
    Absent,
    Host,
    Measure,
    Plan,
    copy_row,
    graph_row,
    launch_row,
)

SOURCE = r"""
extern "C" __global__ void empty() { }
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void sixteen(float *a, float *b, float *c, float *d, float *e, float *f, float *g, float *h,
                                   int i, int j, int k, int l, int m, int n, int o, int p) { }
"""
COUNT = 1024
GRID, BLOCK = 4, 256
INTS = tuple(range(8))
KIB_4 = 4096

clock = time.perf_counter
Call = Callable[[], object]
Copies = dict[tuple[str, Host], Call]
AsyncCopies = dict[tuple[str, Host], Callable[[], Awaitable[object]]]


def each_launch(plan: Plan, who: str, arguments: int, launch: Call, wait: Call) -> Iterator[Measure]:
    """Launches that nobody waits for, and then a wait for all."""
    rows = (launch_row(arguments, "caller"), launch_row(arguments, "end to end"))
    yield from _pipelined(plan.repetitions, plan.launches, who, rows, launch, wait)


def each_graph(plan: Plan, who: str, launch: Call, wait: Call) -> Iterator[Measure]:
    """Launches of a graph, one behind the other."""
    rows = (graph_row("caller"), graph_row("end to end"))
    yield from _pipelined(plan.repetitions, plan.graphs, who, rows, launch, wait)


def _pipelined(
    repetitions: int, count: int, who: str, rows: tuple[str, str], launch: Call, wait: Call
) -> Iterator[Measure]:
    caller, whole = [], []
    for number in range(repetitions + 1):
        wait()
        begun = clock()
        for _ in range(count):
            launch()
        called = clock()
        wait()
        if number:  # the first one warms up
            caller.append((called - begun) / count)
            whole.append((clock() - begun) / count)
    yield Measure(rows[0], who, caller)
    yield Measure(rows[1], who, whole)


def looped(plan: Plan, what: str, who: str, count: int, call: Call) -> Measure:
    """Calls that end when they return, one after the other."""
    values = []
    for number in range(plan.repetitions + 1):
        begun = clock()
        for _ in range(count):
            call()
        if number:
            values.append((clock() - begun) / count)
    return Measure(what, who, values)


async def looped_async(plan: Plan, what: str, who: str, count: int, call: Callable[[], Awaitable[object]]) -> Measure:
    """The same, of calls that are awaited."""
    values = []
    for number in range(plan.repetitions + 1):
        begun = clock()
        for _ in range(count):
            await call()
        if number:
            values.append((clock() - begun) / count)
    return Measure(what, who, values)


async def from_tasks(plan: Plan, who: str, call: Callable[[int], Awaitable[object]]) -> Measure:
    """Many tasks that await launches at the same time; `call` is told the number of its task."""

    async def one(number: int) -> None:
        for _ in range(plan.awaited):
            await call(number)

    values = []
    for repetition in range(plan.repetitions + 1):
        begun = clock()
        async with trio.open_nursery() as nursery:
            for number in range(TASKS):
                nursery.start_soon(one, number)
        if repetition:
            values.append((clock() - begun) / (TASKS * plan.awaited))
    return Measure(TASKS_ROW, who, values)


def repeats(plan: Plan, nbytes: int) -> int:
    """Copies of so many bytes in one repetition."""
    return max(1, min(50, plan.copied // nbytes))


def host_arrays(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """What is copied from, and what is copied to; all their pages are there."""
    return np.arange(nbytes // 8, dtype=np.uint64).view(np.uint8), np.full(nbytes, 255, np.uint8)


def each_copy(plan: Plan, who: str, copies_of: Callable[[int], Copies]) -> Iterator[Measure]:
    """Copies of every size, of those kinds that the subject has."""
    for nbytes in plan.sizes:
        for (direction, host), copy in copies_of(nbytes).items():
            yield looped(plan, copy_row(direction, host, nbytes), who, repeats(plan, nbytes), copy)  # type: ignore[arg-type]


# --- atomr_trio -------------------------------------------------------------------------------------------------------


class Ours:
    """atomr_trio, on an open device."""

    def __init__(self, dev: Any, plan: Plan) -> None:
        self.dev = dev
        self.plan = plan
        self.x, self.y = (dev.zeros(COUNT, np.float32) for _ in range(2))
        self.arguments = {4: (2.0, self.x, self.y, COUNT), 16: (*(self.x,) * 8, *INTS)}

    async def kernels(self) -> None:
        """Compile what the sections launch."""
        compiled = [await self.dev.nvrtc.compile(SOURCE, name) for name in ("empty", "saxpy", "sixteen")]
        self.empty, self.saxpy, self.sixteen = compiled
        self.by_arguments = {4: self.saxpy, 16: self.sixteen}

    def sections(self) -> dict[str, Callable[[], AsyncIterator[Measure]]]:
        """By name, in the order in which they are measured."""
        return {
            "launch": self.launches,
            "batch": self.batched,
            "prepared": self.prepared,
            "graph": self.graphs,
            "awaited launch": self.awaited,
            "tasks": self.tasks,
            "copies": self.copies,
            "pinned copies": self.pinned_copies,
            "allocation": self.allocation,
            "idle": self.idle,
        }

    async def _pipelined(
        self, rows: tuple[str, str], count: int, launch: Call, last: Callable[[], Awaitable[object]]
    ) -> AsyncIterator[Measure]:
        """So many launches, of which the last is awaited: it ends after the others."""
        caller, whole = [], []
        for number in range(self.plan.repetitions + 1):
            begun = clock()
            for _ in range(count - 1):
                launch()
            called = clock()
            await last()
            if number:
                caller.append((called - begun) / (count - 1))
                whole.append((clock() - begun) / count)
        yield Measure(rows[0], OURS, caller)
        yield Measure(rows[1], OURS, whole)

    async def launches(self) -> AsyncIterator[Measure]:
        for arguments, kernel in self.by_arguments.items():
            calls = (
                functools.partial(verb, GRID, BLOCK, *self.arguments[arguments])
                for verb in (kernel.launch_nowait, kernel.launch)
            )
            rows = (launch_row(arguments, "caller"), launch_row(arguments, "end to end"))
            async for each in self._pipelined(rows, self.plan.launches, *calls):
                yield each

    async def _in_batches(self, who: str, arguments: int, handed: tuple[object, ...]) -> AsyncIterator[Measure]:
        caller, whole, count = [], [], self.plan.launches
        for number in range(self.plan.repetitions + 1):
            begun = clock()
            async with self.dev.batch() as batch:
                launch = functools.partial(batch.launch, *handed)
                entered = clock()
                for _ in range(count):
                    launch()
                called = clock()
            if number:
                caller.append((called - entered) / count)
                whole.append((clock() - begun) / count)
        yield Measure(launch_row(arguments, "caller"), who, caller)
        yield Measure(launch_row(arguments, "end to end"), who, whole)

    async def batched(self) -> AsyncIterator[Measure]:
        for arguments, kernel in self.by_arguments.items():
            handed = (kernel, GRID, BLOCK, *self.arguments[arguments])
            async for each in self._in_batches(BATCH, arguments, handed):
                yield each

    async def prepared(self) -> AsyncIterator[Measure]:
        for arguments, kernel in self.by_arguments.items():
            handed = (kernel.prepare(GRID, BLOCK, *self.arguments[arguments]),)
            async for each in self._in_batches(PREPARED, arguments, handed):
                yield each

    async def graphs(self) -> AsyncIterator[Measure]:
        def record(recorder: Any) -> None:
            for _ in range(NODES):
                recorder.launch(self.empty, 1, 1, touches=[self.y])  # one after the other, as the others record them

        graph = await self.dev.capture(record)
        rows = (graph_row("caller"), graph_row("end to end"))
        async for each in self._pipelined(rows, self.plan.graphs, graph.launch_nowait, graph.launch):
            yield each

    async def awaited(self) -> AsyncIterator[Measure]:
        launch = functools.partial(self.empty.launch, 1, 1)
        yield await looped_async(self.plan, AWAITED_ROW, OURS, self.plan.awaited, launch)

    async def tasks(self) -> AsyncIterator[Measure]:
        yield await from_tasks(self.plan, OURS, lambda _number: self.empty.launch(1, 1))

    async def copies(self) -> AsyncIterator[Measure]:
        for nbytes in self.plan.sizes:
            source, out = host_arrays(nbytes)
            with self.dev.empty(nbytes, np.uint8) as array:
                copies = {**both_ways(array, source, out, "pageable"), ("out", "new array"): array.to_host}
                async for each in self._copies(nbytes, copies):
                    yield each
            check(source, out)

    async def pinned_copies(self) -> AsyncIterator[Measure]:
        for nbytes in self.plan.sizes:
            source, out = (self.dev.pinned_empty(nbytes, np.uint8) for _ in range(2))
            source[:], out[:] = host_arrays(nbytes)
            with self.dev.empty(nbytes, np.uint8) as array:
                async for each in self._copies(nbytes, both_ways(array, source, out, "pinned")):
                    yield each
            check(source, out)

    async def _copies(self, nbytes: int, copies: AsyncCopies) -> AsyncIterator[Measure]:
        for (direction, host), copy in copies.items():
            row = copy_row(direction, host, nbytes)  # type: ignore[arg-type]
            yield await looped_async(self.plan, row, OURS, repeats(self.plan, nbytes), copy)

    async def allocation(self) -> AsyncIterator[Measure]:
        await self.y.fill(0)  # there is a chunk
        empty = functools.partial(self.dev.empty, KIB_4 // 4, np.float32)
        yield looped(self.plan, ALLOCATION_ROW, OURS, self.plan.allocations, empty)

    async def idle(self) -> AsyncIterator[Measure]:
        """The share of one CPU that this process and its workers take while nothing is asked of them."""
        values = []
        for _ in range(self.plan.repetitions):
            await trio.sleep(self.plan.idle_seconds / 2)
            begun, first, second = clock(), cpu_seconds(), cpu_seconds()
            await trio.sleep(self.plan.idle_seconds)
            used = used_between(second, cpu_seconds()) - used_between(first, second)  # less what one reading takes
            values.append(max(0.0, used) / (clock() - begun))
        yield Measure(IDLE_ROW, OURS, values, "share")


def both_ways(array: Any, source: np.ndarray, out: np.ndarray, host: Host) -> AsyncCopies:
    """Copies from one host array and to the other."""
    return {("in", host): lambda: array.copy_from(source), ("out", host): lambda: array.copy_to(out)}


def check(source: np.ndarray, out: np.ndarray) -> None:
    """Figures of copies that do not copy would be worth nothing."""
    if not np.array_equal(source, out):
        raise AssertionError("the copies have lost data")


def cpu_seconds() -> dict[Path, float]:
    """What each thread of this process and of its children has run, to the nanosecond, by the scheduler's accounts."""
    tasks = Path("/proc/self/task").glob("*/children")
    children = [number for task in tasks for number in task.read_text(encoding="ascii").split()]
    schedules = (path for number in ("self", *children) for path in Path(f"/proc/{number}/task").glob("*/schedstat"))
    return {path: int(path.read_text(encoding="ascii").split()[0]) / 1e9 for path in schedules}


def used_between(earlier: dict[Path, float], later: dict[Path, float]) -> float:
    """What the threads that are still there have run between two readings."""
    return sum(seconds - earlier.get(path, 0.0) for path, seconds in later.items())


async def run_ours(backend: Any, plan: Plan) -> None:
    """Measure atomr_trio on one device."""
    import atomr_trio

    async with atomr_trio.open_device(0, backend=backend) as dev:
        tell("facts", {"device": dev.info.name})
        ours = Ours(dev, plan)
        await ours.kernels()
        for name, section in ours.sections().items():
            try:
                async for measure in section():
                    tell("measure", attrs.asdict(measure))
            except Exception as error:
                tell_absent(name, OURS, error)


# --- the others -------------------------------------------------------------------------------------------------------


class Raw:
    """The driver, called through ctypes as this library declares it, in the device's primary context."""

    name = RAW

    def __init__(self) -> None:
        import atomr_trio
        from atomr_cuda import driver

        self.driver = driver
        driver.cuInit(0)
        context, module = driver.CUcontext(), driver.CUmodule()
        driver.cuDevicePrimaryCtxRetain(byref(context), 0)
        driver.cuCtxSetCurrent(context)
        self.context = context
        driver.cuModuleLoadData(byref(module), atomr_trio.compile_to_ptx(SOURCE).encode() + b"\0")
        self.empty, self.saxpy, self.sixteen = (
            self._function(module, name) for name in (b"empty", b"saxpy", b"sixteen")
        )
        self.stream = self._stream()
        self.x, self.y = (self._memory(COUNT * 4) for _ in range(2))
        # The foreign functions themselves: a status that is not checked costs nothing.
        self.call_launch = driver.cuLaunchKernel.bind()
        self.call_wait = driver.cuStreamSynchronize.bind()

    def _function(self, module: c_void_p, name: bytes) -> int:
        function = self.driver.CUfunction()
        self.driver.cuModuleGetFunction(byref(function), module, name)
        return function.value or 0

    def _stream(self) -> int:
        stream = self.driver.CUstream()
        self.driver.cuStreamCreate(byref(stream), self.driver.CU_STREAM_NON_BLOCKING)
        return stream.value or 0

    def _memory(self, nbytes: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self.driver.cuMemAlloc(byref(address), nbytes)
        return address

    def wait(self) -> None:
        self.driver.cuStreamSynchronize(self.stream)

    def _marshalled(self, arguments: int) -> Call:
        call, stream, x, y = self.call_launch, self.stream, self.x, self.y
        saxpy, sixteen = self.saxpy, self.sixteen

        def launch_4() -> None:
            held = (c_float(2.0), x, y, c_int(COUNT))
            packed = (c_void_p * 4)(*(addressof(each) for each in held))
            call(saxpy, GRID, 1, 1, BLOCK, 1, 1, 0, stream, packed, None)

        def launch_16() -> None:
            held = (x, x, x, x, x, x, x, x, *map(c_int, INTS))
            packed = (c_void_p * 16)(*(addressof(each) for each in held))
            call(sixteen, GRID, 1, 1, BLOCK, 1, 1, 0, stream, packed, None)

        return launch_4 if arguments == 4 else launch_16

    def launches(self, plan: Plan) -> Iterator[Measure]:
        held = (c_float(2.0), self.x, self.y, c_int(COUNT))
        packed = (c_void_p * 4)(*(addressof(each) for each in held))
        shape = (GRID, 1, 1, BLOCK, 1, 1, 0)
        prepared = functools.partial(self.call_launch, self.saxpy, *shape, self.stream, addressof(packed), None)
        yield from each_launch(plan, RAW_PREPARED, 4, prepared, self.wait)
        for arguments in (4, 16):
            yield from each_launch(plan, RAW, arguments, self._marshalled(arguments), self.wait)

    def _launch_empty(self, stream: int) -> None:
        self.call_launch(self.empty, 1, 1, 1, 1, 1, 1, 0, stream, None, None)

    def graphs(self, plan: Plan) -> Iterator[Measure]:
        driver, graph, executable = self.driver, self.driver.CUgraph(), self.driver.CUgraphExec()
        one = dict.fromkeys(("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"), 1)
        parameters = driver.CUDA_KERNEL_NODE_PARAMS(func=self.empty, **one)
        driver.cuGraphCreate(byref(graph), 0)
        last: Any = None
        for number in range(NODES):  # one after the other, as they are when a stream is captured
            node = driver.CUgraphNode()
            driver.cuGraphAddKernelNode(byref(node), graph, last and byref(last), min(number, 1), byref(parameters))
            last = node
        driver.cuGraphInstantiate(byref(executable), graph, 0)
        launch = functools.partial(driver.cuGraphLaunch.bind(), executable.value, self.stream)
        yield from each_graph(plan, RAW, launch, self.wait)

    def awaited(self, plan: Plan) -> Iterator[Measure]:
        def blocking() -> None:
            self._launch_empty(self.stream)
            self.call_wait(self.stream)

        yield looped(plan, AWAITED_ROW, f"{RAW}, blocking", plan.awaited, blocking)
        yield trio.run(looped_async, plan, AWAITED_ROW, RAW_THREAD, plan.awaited, self._awaiting([self.stream]))

    def tasks(self, plan: Plan) -> Iterator[Measure]:
        yield trio.run(from_tasks, plan, RAW_THREAD, self._awaiting([self._stream() for _ in range(TASKS)]))

    def _awaiting(self, streams: Sequence[int]) -> Callable[..., Awaitable[object]]:
        """What a trio program would write: launch, and wait in a thread."""
        limiter: list[trio.CapacityLimiter] = []

        async def launch_and_wait(number: int = 0) -> None:
            if not limiter:  # it belongs to the run
                limiter.append(trio.CapacityLimiter(TASKS))
            self._launch_empty(streams[number])
            await trio.to_thread.run_sync(self._wait_in_thread, streams[number], limiter=limiter[0])

        return launch_and_wait

    def _wait_in_thread(self, stream: int) -> None:
        self.driver.cuCtxSetCurrent(self.context)
        self.driver.cuStreamSynchronize(stream)

    def copies(self, plan: Plan) -> Iterator[Measure]:
        yield from each_copy(plan, self.name, self._copies)

    def _copies(self, nbytes: int) -> Copies:
        array = self._memory(nbytes)
        copy_in, copy_out = self.driver.cuMemcpyHtoD, self.driver.cuMemcpyDtoH
        source, out = host_arrays(nbytes)
        pinned = c_void_p()
        self.driver.cuMemAllocHost(byref(pinned), nbytes)
        here, there = source.ctypes.data, out.ctypes.data
        self.held = (source, out)  # what is called below knows their addresses alone

        def pinned_in() -> None:
            self.driver.cuMemcpyHtoDAsync(array, pinned, nbytes, self.stream)
            self.call_wait(self.stream)

        def pinned_out() -> None:
            self.driver.cuMemcpyDtoHAsync(pinned, array, nbytes, self.stream)
            self.call_wait(self.stream)

        def pageable_in() -> None:
            copy_in(array, here, nbytes)
            self.driver.cuCtxSynchronize()

        def new_array() -> None:
            made = np.empty(nbytes, np.uint8)
            copy_out(made.ctypes.data, array, nbytes)

        return {
            ("in", "pageable"): pageable_in,
            ("out", "pageable"): lambda: copy_out(there, array, nbytes),
            ("out", "new array"): new_array,
            ("in", "pinned"): pinned_in,
            ("out", "pinned"): pinned_out,
        }

    def allocation(self, plan: Plan) -> Iterator[Measure]:
        def allocate() -> None:
            self.driver.cuMemFree(self._memory(KIB_4))

        yield looped(plan, ALLOCATION_ROW, RAW, min(plan.allocations, 200), allocate)


class Cupy:
    """CuPy, on a stream of its own."""

    name = CUPY

    def __init__(self) -> None:
        self.cupy: Any = importlib.import_module("cupy")
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.stream.use()
        module = self.cupy.RawModule(code=SOURCE)
        self.empty, self.saxpy, self.sixteen = (module.get_function(name) for name in ("empty", "saxpy", "sixteen"))
        self.x, self.y = (self.cupy.zeros(COUNT, np.float32) for _ in range(2))

    def launches(self, plan: Plan) -> Iterator[Measure]:
        saxpy, sixteen, x, y = self.saxpy, self.sixteen, self.x, self.y
        a, n, ints = np.float32(2), np.int32(COUNT), tuple(map(np.int32, INTS))
        calls: dict[int, Call] = {
            4: lambda: saxpy((GRID,), (BLOCK,), (a, x, y, n)),
            16: lambda: sixteen((GRID,), (BLOCK,), (x, x, x, x, x, x, x, x, *ints)),
        }
        for arguments, launch in calls.items():
            yield from each_launch(plan, self.name, arguments, launch, self.stream.synchronize)

    def _launch_empty(self) -> None:
        self.empty((1,), (1,), ())

    def graphs(self, plan: Plan) -> Iterator[Measure]:
        self._launch_empty()
        self.stream.begin_capture()
        for _ in range(NODES):
            self._launch_empty()
        graph = self.stream.end_capture()
        yield from each_graph(plan, self.name, graph.launch, self.stream.synchronize)

    def awaited(self, plan: Plan) -> Iterator[Measure]:
        def blocking() -> None:
            self._launch_empty()
            self.stream.synchronize()

        yield looped(plan, AWAITED_ROW, f"{self.name}, blocking", plan.awaited, blocking)

    def copies(self, plan: Plan) -> Iterator[Measure]:
        yield from each_copy(plan, self.name, self._copies)

    def _copies(self, nbytes: int) -> Copies:
        source, out = host_arrays(nbytes)
        array = self.cupy.empty(nbytes, np.uint8)
        pinned = np.frombuffer(self.cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)
        wait = self.stream.synchronize

        def copy_in(host: np.ndarray) -> None:
            array.set(host)
            wait()

        return {
            ("in", "pageable"): lambda: copy_in(source),
            ("out", "pageable"): lambda: array.get(out=out),
            ("out", "new array"): array.get,
            ("in", "pinned"): lambda: copy_in(pinned),
            ("out", "pinned"): lambda: array.get(out=pinned),
        }

    def allocation(self, plan: Plan) -> Iterator[Measure]:
        empty = functools.partial(self.cupy.empty, KIB_4 // 4, np.float32)
        yield looped(plan, ALLOCATION_ROW, self.name, plan.allocations, empty)


class Torch:
    """PyTorch: saxpy as `add_`, which has no other kernel of a user; no launch with 16 arguments."""

    name = TORCH

    def __init__(self) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.stream = self.torch.cuda.Stream()
        self.torch.cuda.set_stream(self.stream)
        self.x, self.y = (self.torch.zeros(COUNT, device="cuda") for _ in range(2))

    def launches(self, plan: Plan) -> Iterator[Measure]:
        add, x = self.y.add_, self.x
        yield from each_launch(plan, self.name, 4, lambda: add(x, alpha=2.0), self.stream.synchronize)

    def graphs(self, plan: Plan) -> Iterator[Measure]:
        graph = self.torch.cuda.CUDAGraph()
        one = self.torch.zeros(1, device="cuda")
        one.zero_()
        self.stream.synchronize()
        with self.torch.cuda.graph(graph, stream=self.stream):
            for _ in range(NODES):
                one.zero_()
        yield from each_graph(plan, self.name, graph.replay, self.stream.synchronize)

    def awaited(self, plan: Plan) -> Iterator[Measure]:
        one = self.torch.zeros(1, device="cuda")

        def blocking() -> None:
            one.zero_()
            self.stream.synchronize()

        yield looped(plan, AWAITED_ROW, f"{self.name}, blocking", plan.awaited, blocking)

    def copies(self, plan: Plan) -> Iterator[Measure]:
        yield from each_copy(plan, self.name, self._copies)

    def _copies(self, nbytes: int) -> Copies:
        source, out = (self.torch.from_numpy(host) for host in host_arrays(nbytes))
        array = self.torch.empty(nbytes, dtype=self.torch.uint8, device="cuda")
        pinned = self.torch.empty(nbytes, dtype=self.torch.uint8, pin_memory=True)
        wait = self.stream.synchronize

        def copy(target: Any, origin: Any) -> None:
            target.copy_(origin, non_blocking=True)
            wait()

        return {
            ("in", "pageable"): lambda: copy(array, source),
            ("out", "pageable"): lambda: copy(out, array),
            ("out", "new array"): array.cpu,
            ("in", "pinned"): lambda: copy(array, pinned),
            ("out", "pinned"): lambda: copy(pinned, array),
        }

    def allocation(self, plan: Plan) -> Iterator[Measure]:
        empty = functools.partial(self.torch.empty, KIB_4 // 4, device="cuda")
        yield looped(plan, ALLOCATION_ROW, self.name, plan.allocations, empty)


class Core:
    """cuda.core. It has no copies of numpy arrays and no pageable host memory."""

    name = CORE

    def __init__(self) -> None:
        self.core: Any = importlib.import_module("cuda.core")
        self.device = self.core.Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        options = self.core.ProgramOptions(arch=f"sm_{self.device.arch}")
        module = self.core.Program(SOURCE, "c++", options=options).compile("cubin")
        self.empty, self.saxpy, self.sixteen = (module.get_kernel(name) for name in ("empty", "saxpy", "sixteen"))
        self.x, self.y = (self.device.allocate(COUNT * 4, stream=self.stream) for _ in range(2))
        self.config = self.core.LaunchConfig(grid=GRID, block=BLOCK)
        self.one = self.core.LaunchConfig(grid=1, block=1)

    def launches(self, plan: Plan) -> Iterator[Measure]:
        launch, stream, config = self.core.launch, self.stream, self.config
        saxpy, sixteen, x, y = self.saxpy, self.sixteen, self.x, self.y
        a, n, ints = np.float32(2), np.int32(COUNT), tuple(map(np.int32, INTS))
        calls: dict[int, Call] = {
            4: lambda: launch(stream, config, saxpy, a, x, y, n),
            16: lambda: launch(stream, config, sixteen, x, x, x, x, x, x, x, x, *ints),
        }
        for arguments, call in calls.items():
            yield from each_launch(plan, self.name, arguments, call, stream.sync)

    def graphs(self, plan: Plan) -> Iterator[Measure]:
        builder = self.stream.create_graph_builder()
        builder.begin_building()
        for _ in range(NODES):
            self.core.launch(builder, self.one, self.empty)
        graph = builder.end_building().complete()
        yield from each_graph(plan, self.name, lambda: graph.launch(self.stream), self.stream.sync)

    def awaited(self, plan: Plan) -> Iterator[Measure]:
        def blocking() -> None:
            self.core.launch(self.stream, self.one, self.empty)
            self.stream.sync()

        yield looped(plan, AWAITED_ROW, f"{self.name}, blocking", plan.awaited, blocking)

    def allocation(self, plan: Plan) -> Iterator[Measure]:
        def allocate() -> None:
            self.device.allocate(KIB_4, stream=self.stream).close()

        yield looped(plan, ALLOCATION_ROW, self.name, plan.allocations, allocate)


class Numba:
    """numba-cuda, with kernels written in Python."""

    name = NUMBA

    def __init__(self) -> None:
        cuda: Any = importlib.import_module("numba.cuda")
        self.cuda = cuda
        self.stream = cuda.stream()
        self.x, self.y = (cuda.to_device(np.zeros(COUNT, np.float32)) for _ in range(2))
        kernels: Any = importlib.import_module("speed_numba")
        self.empty, self.saxpy, self.sixteen = kernels.empty, kernels.saxpy, kernels.sixteen

    def launches(self, plan: Plan) -> Iterator[Measure]:
        x, y = self.x, self.y
        saxpy, sixteen = self.saxpy[GRID, BLOCK, self.stream], self.sixteen[GRID, BLOCK, self.stream]
        a, n, ints = np.float32(2), np.int32(COUNT), tuple(map(np.int32, INTS))
        calls: dict[int, Call] = {
            4: lambda: saxpy(a, x, y, n),
            16: lambda: sixteen(x, x, x, x, x, x, x, x, *ints),
        }
        for arguments, launch in calls.items():
            yield from each_launch(plan, self.name, arguments, launch, self.stream.synchronize)

    def awaited(self, plan: Plan) -> Iterator[Measure]:
        empty = self.empty[1, 1, self.stream]

        def blocking() -> None:
            empty()
            self.stream.synchronize()

        yield looped(plan, AWAITED_ROW, f"{self.name}, blocking", plan.awaited, blocking)

    def copies(self, plan: Plan) -> Iterator[Measure]:
        yield from each_copy(plan, self.name, self._copies)

    def _copies(self, nbytes: int) -> Copies:
        source, out = host_arrays(nbytes)
        array = self.cuda.device_array(nbytes, np.uint8)
        pinned = self.cuda.pinned_array(nbytes, np.uint8)
        wait = self.cuda.synchronize

        def copy_in(host: np.ndarray) -> None:
            array.copy_to_device(host)
            wait()

        return {
            ("in", "pageable"): lambda: copy_in(source),
            ("out", "pageable"): lambda: array.copy_to_host(out),
            ("out", "new array"): array.copy_to_host,
            ("in", "pinned"): lambda: copy_in(pinned),
            ("out", "pinned"): lambda: array.copy_to_host(pinned),
        }

    def allocation(self, plan: Plan) -> Iterator[Measure]:
        empty = functools.partial(self.cuda.device_array, KIB_4 // 4, np.float32)
        yield looped(plan, ALLOCATION_ROW, self.name, plan.allocations, empty)


OTHERS: dict[str, type[Any]] = {each.name: each for each in (Raw, Core, Cupy, Torch, Numba)}
SECTIONS = ("launches", "graphs", "awaited", "tasks", "copies", "allocation")


def run_other(who: str, plan: Plan) -> None:
    """Measure one of the others: the sections that it has."""
    try:
        subject = OTHERS[who]()
    except Exception as error:
        tell_absent("everything", who, error)
        return
    for name in SECTIONS:
        try:
            for measure in getattr(subject, name, _nothing)(plan):
                tell("measure", attrs.asdict(measure))
        except Exception as error:
            tell_absent(name, who, error)


def _nothing(_plan: Plan) -> Iterator[Measure]:
    return iter(())


def tell(kind: str, content: dict[str, Any]) -> None:
    """One line for the process that has started this one."""
    print(kind, json.dumps(content), flush=True)


def tell_absent(section: str, who: str, error: Exception) -> None:
    """A section could not be measured; the others go on."""
    words = "not available" if isinstance(error, AttributeError | ImportError) else "failed"
    first_line = (str(error).splitlines() or [""])[0]
    tell("absent", attrs.asdict(Absent(section, who, f"{words}: {type(error).__name__}: {first_line}")))


def main(who: str, backend: str, plan: Plan) -> None:
    """Measure one subject."""
    if who == OURS:
        trio.run(run_ours, backend, plan)
    else:
        if backend == "sim":
            importlib.import_module("atomr_sim").install()
        run_other(who, plan)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Plan(**json.loads(sys.argv[3])))
    sys.stdout.flush()
    os._exit(0)  # what a library does at the end of a process is not measured, and may take long
