"""The subjects of the speed benchmark, one in each process: `speed_subjects.py WHO BACKEND`.

A subject makes a work ready (`take NUMBER`, by the place in the plan), compares its result with what is right, and then
does it so many times in each way that it has (`ways COUNT`), or so many bursts of it (`bursts COUNT`). A few calls
before each series are not timed.

What they do is kept the same: the launches are of saxpy over 1024 elements (4 arguments), or of a kernel that does
nothing (none, or 16), on a stream of their own, the arguments handed over each time. Whatever a library does to give a
result is part of its call: PyTorch's ``solve`` reads the status of the factorization back, `dev.solver.solve` does too.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import itertools
import statistics
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from ctypes import addressof, byref, c_float, c_int, c_uint8, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Final

import attrs
import numpy as np
import speed_works as works
import trio
from speed_report import CORE, CUPY, NATIVE, NUMBA, OURS, RAW, TORCH
from speed_works import (
    AWAITED,
    CALLER,
    COUNT_OF_TASKS,
    IN_FLIGHT,
    LEAST_OF_A_TASK,
    P99,
    P99_FROM,
    PLANS,
    TASKS,
    WHOLE,
    Work,
    p99,
)
from turns import Bare, Missing, OnCupy, OnTorch, Others, answer_all, check_error, refusal, serve

SOURCE: Final = r"""
extern "C" __global__ void empty() { }
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void sixteen(float *a, float *b, float *c, float *d, float *e, float *f, float *g, float *h,
                                   int i, int j, int k, int l, int m, int n, int o, int p) { }
"""
KERNELS: Final = ("empty", "saxpy", "sixteen")
COUNT: Final = 1024
GRID, BLOCK = 4, 256
INTS: Final = tuple(range(8))
ERROR: Final = 1e-4
"""What a result may be wrong by, in shares of its largest element: a wrong call is found by it, and no more."""

clock = time.perf_counter
Call = Callable[[], object]


@attrs.frozen(kw_only=True)
class Doing:
    """A work that is ready: the ways in which a subject does it. Those that it does not have are None."""

    await_one: Callable[[], Awaitable[object]] | None = None
    """One call, and the wait for its end, in trio."""
    block_one: Call | None = None
    """The same, of a call that blocks the thread."""
    call: Call | None = None
    """A call that returns before its work is done, or, if there is no `end`, one that is done when it returns."""
    end: Call | None = None
    """Waits until all calls are done."""
    in_batch: Callable[[Any], Call] | None = None
    """A call of a batch."""
    tasks: Mapping[str, Callable[[int], Awaitable[object]]] = attrs.Factory(dict)
    """By way, a call of one of many tasks, which is told its number."""
    begin: Callable[[int], object] | None = None
    """Before each series of so many calls; it is not timed."""
    natively: Callable[[int], dict[str, float]] | None = None
    """So many calls by native code, which tells the seconds of one by way."""
    result: Callable[[], Awaitable[np.ndarray]] | None = None
    most_in_batch: int = 1000


def nothing_begins(_count: int) -> None:
    """Nothing has to be made ready for a series."""


async def seconds_of(doing: Doing, count: int, open_batch: Callable[[], Any] | None) -> dict[str, float]:
    """The seconds of one call, by way."""
    found: dict[str, float] = {}
    warm, begin = count // 3 + 1, doing.begin or nothing_begins
    if doing.await_one is not None or doing.block_one is not None:
        begin(warm)
        await _singles(doing, warm)
        begin(count)
        seconds = await _singles(doing, count)
        found[AWAITED] = statistics.median(seconds)
        if count >= P99_FROM:
            found[P99] = p99(seconds)
    if doing.in_batch is not None and open_batch is not None:
        most = min(count, doing.most_in_batch)
        await _batch(doing.in_batch, min(warm, most), open_batch)
        found |= await _batch(doing.in_batch, most, open_batch)
    elif doing.call is not None:
        begin(warm)
        _series(doing.call, warm, doing.end)
        begin(count)
        found |= _series(doing.call, count, doing.end)
    if doing.natively is not None:
        doing.natively(warm)
        found |= doing.natively(count)
    for way, call in doing.tasks.items():
        share = max(count // COUNT_OF_TASKS[way], LEAST_OF_A_TASK[way])
        await _from_tasks(call, COUNT_OF_TASKS[way], share // 3 + 1)
        seconds: list[float] = []
        found[way] = await _from_tasks(call, COUNT_OF_TASKS[way], share, seconds)
        if len(seconds) >= P99_FROM:
            found[f"{way}, p99"] = p99(seconds)
    return found


async def bursts_of(doing: Doing, bursts: int, calls: int, open_batch: Callable[[], Any] | None) -> list[float]:
    """The seconds of one call, end to end, of each of so many bursts of so many calls."""
    seconds = []
    for _ in range(bursts):
        if doing.in_batch is not None and open_batch is not None:
            found = await _batch(doing.in_batch, calls, open_batch)
        elif doing.call is not None:
            found = _series(doing.call, calls, doing.end)
        elif doing.natively is not None:
            found = doing.natively(calls)
        else:
            raise Missing("has no such call")
        seconds.append(found[WHOLE])
    return seconds


async def _singles(doing: Doing, count: int) -> list[float]:
    seconds = []
    if doing.await_one is not None:
        await_one = doing.await_one
        for _ in range(count):
            begun = clock()
            await await_one()
            seconds.append(clock() - begun)
    elif doing.block_one is not None:
        block_one = doing.block_one
        for _ in range(count):
            begun = clock()
            block_one()
            seconds.append(clock() - begun)
    return seconds


async def _batch(in_batch: Callable[[Any], Call], count: int, open_batch: Callable[[], Any]) -> dict[str, float]:
    begun = clock()
    async with open_batch() as batch:
        call = in_batch(batch)
        entered = clock()
        for _ in range(count):
            call()
        called = clock()
    return {CALLER: (called - entered) / count, WHOLE: (clock() - begun) / count}


def _series(call: Call, count: int, end: Call | None) -> dict[str, float]:
    begun = clock()
    for _ in range(count):
        call()
    called = clock()
    if end is None:
        return {CALLER: (called - begun) / count}
    end()
    return {CALLER: (called - begun) / count, WHOLE: (clock() - begun) / count}


async def _from_tasks(
    call: Callable[[int], Awaitable[object]], tasks: int, each: int, seconds: list[float] | None = None
) -> float:
    """The seconds of all calls, divided by them; those of each call go to a list.

    To start the tasks and to end them is not a part of it: it takes as long as several launches. So the first to be
    done waits for the last.
    """
    noted = seconds if seconds is not None else []
    all_ready, all_done, ready, done, ended = trio.Event(), trio.Event(), 0, 0, 0.0

    async def one(number: int) -> None:
        nonlocal ready, done, ended
        ready += 1
        await all_ready.wait()
        for _ in range(each):
            called = clock()
            await call(number)
            noted.append(clock() - called)
        done += 1
        if done < tasks:
            await all_done.wait()
            return
        ended = clock()
        all_done.set()

    async with trio.open_nursery() as nursery:
        for number in range(tasks):
            nursery.start_soon(one, number)
        while ready < tasks:
            await trio.lowlevel.checkpoint()
        begun = clock()
        all_ready.set()
    return (ended - begun) / (tasks * each)


def host_arrays(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """What is copied from, and what is copied to; all their pages are there."""
    return works.host_bytes(nbytes), np.full(nbytes, 255, np.uint8)


class Subject:
    """The base of all: a method for each kind of work, which makes it ready."""

    async def ready(self, work: Work) -> Doing:
        """Make a work ready. Raises `Missing`."""
        method = getattr(self, work.kind.replace(" ", "_"), None)
        if method is None:
            raise Missing("has no such call")
        doing = method(work)
        done: Doing = doing if isinstance(doing, Doing) else await doing
        return done

    def batch(self) -> Any:
        """A batch, where there is such a thing."""
        raise Missing("has no batches")


# --- atomr_trio -------------------------------------------------------------------------------------------------------


class Ours(Subject):
    """atomr_trio, on an open device."""

    def __init__(self, dev: Any) -> None:
        self.dev = dev
        self.batch = dev.batch
        self._kept: list[Any] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, backend: str) -> AsyncIterator[Ours]:
        import atomr_trio

        async with atomr_trio.open_device(0, backend=backend) as dev:  # type: ignore[arg-type]
            ours = cls(dev)
            ours.empty, ours.saxpy, ours.sixteen = [await dev.nvrtc.compile(SOURCE, name) for name in KERNELS]
            ours.x, ours.y = (dev.zeros(COUNT, np.float32) for _ in range(2))
            yield ours

    empty: Any
    saxpy: Any
    sixteen: Any
    x: Any
    y: Any

    def empty_launch(self, _work: Work) -> Doing:
        empty = self.empty
        return Doing(
            await_one=functools.partial(empty.launch, 1, 1),
            in_batch=lambda batch: functools.partial(batch.launch, empty, 1, 1),
            tasks={TASKS: lambda _number: empty.launch(1, 1)},
        )

    def launch(self, work: Work) -> Doing:
        x, y = self.x, self.y
        kernel = self.saxpy if work.size == 4 else self.sixteen
        arguments = (2.0, x, y, COUNT) if work.size == 4 else (*(x,) * 8, *INTS)
        if work.form == "nowait":
            call = functools.partial(kernel.launch_nowait, GRID, BLOCK, *arguments)
            return Doing(call=call)
        if work.form == "prepared":
            prepared = kernel.prepare(GRID, BLOCK, *arguments)
            return Doing(in_batch=lambda batch: functools.partial(batch.launch, prepared))
        return Doing(
            await_one=functools.partial(kernel.launch, GRID, BLOCK, *arguments),
            in_batch=lambda batch: functools.partial(batch.launch, kernel, GRID, BLOCK, *arguments),
        )

    async def graph(self, work: Work) -> Doing:
        def record(recorder: Any) -> None:
            for _ in range(work.size):
                recorder.launch(self.empty, 1, 1, touches=[self.y])  # one after the other, as the others record them

        graph = await self.dev.capture(record)
        return Doing(await_one=graph.launch, in_batch=lambda batch: functools.partial(batch.launch_graph, graph))

    async def graph_update(self, work: Work) -> Doing:
        """A number of the first kernel is another one for each launch."""

        def record(recorder: Any) -> None:
            for _ in range(work.size):
                recorder.launch(self.saxpy, GRID, BLOCK, 0.0, self.x, self.y, COUNT)

        graph = await self.dev.capture(record)
        node, numbers, x, y = graph.nodes[0], itertools.count(), self.x, self.y

        def update() -> None:
            graph.update(node, float(next(numbers)), x, y, COUNT)

        async def await_one() -> None:
            update()
            await graph.launch()

        def in_batch(batch: Any) -> Call:
            def call() -> None:
                update()
                batch.launch_graph(graph)

            return call

        return Doing(await_one=await_one, in_batch=in_batch)

    async def library_graph(self, work: Work) -> Doing:
        n = work.size
        a, b = await self._upload(works.matrix(n)), await self._upload(works.matrix(n, 1))
        out = self.dev.zeros((n, n), np.float32)

        def record(recorder: Any) -> None:
            for _ in range(works.PRODUCTS):
                recorder.blas.gemm(a, b, out=out)

        graph = await self.dev.capture(record)

        async def result() -> np.ndarray:
            await graph.launch()
            found: np.ndarray = await out.to_host()
            return found

        launch = lambda batch: functools.partial(batch.launch_graph, graph)  # noqa: E731
        return Doing(await_one=graph.launch, in_batch=launch, result=result)

    def _library(self, call_of: Callable[[Any], Callable[[], Any]], out: Any = None, *, in_batch: bool = True) -> Doing:
        """A call that the device and a batch have alike; `out` is where its result goes."""
        await_one = call_of(self.dev)

        async def result() -> np.ndarray:
            found = await await_one()
            result = found if out is None else out
            return np.asarray(await result.to_host() if hasattr(result, "to_host") else result)

        return Doing(await_one=await_one, in_batch=call_of if in_batch else None, result=result)

    async def _upload(self, array: np.ndarray) -> Any:
        return await self.dev.to_device(array)

    def _out(self, work: Work, shape: Any, dtype: Any = np.float32) -> dict[str, Any]:
        return {"out": self.dev.zeros(shape, dtype)} if work.form == "out" else {}

    async def gemm(self, work: Work) -> Doing:
        n = work.size
        a, b = await self._upload(works.matrix(n)), await self._upload(works.matrix(n, 1))
        options = self._out(work, (n, n))
        return self._library(lambda form: functools.partial(form.blas.gemm, a, b, **options), options.get("out"))

    async def axpy(self, work: Work) -> Doing:
        x, y = await self._upload(works.vector(work.size)), self.dev.zeros(work.size, np.float32)
        return self._library(lambda form: functools.partial(form.blas.axpy, x, y, 2.0))

    async def dot(self, work: Work) -> Doing:
        x, y = await self._upload(works.vector(work.size)), await self._upload(works.vector(work.size, 1))
        options = self._out(work, ())
        return self._library(lambda form: functools.partial(form.blas.dot, x, y, **options), options.get("out"))

    async def solve(self, work: Work) -> Doing:
        a, b = await self._upload(works.definite(work.size)), await self._upload(works.vector(work.size))
        options = self._out(work, work.size)
        return self._library(lambda form: functools.partial(form.solver.solve, a, b, **options), options.get("out"))

    async def cholesky(self, work: Work) -> Doing:
        a = await self._upload(works.definite(work.size))
        options = self._out(work, (work.size, work.size))
        return self._library(lambda form: functools.partial(form.solver.cholesky, a, **options), options.get("out"))

    async def fft(self, work: Work) -> Doing:
        x = await self._upload(works.vector(work.size).astype(np.complex64))
        options = self._out(work, work.size, np.complex64)
        return self._library(lambda form: functools.partial(form.fft.fft, x, **options), options.get("out"))

    async def normal(self, work: Work) -> Doing:
        await self.dev.random.load("normal")
        options = self._out(work, work.size) or {"size": work.size, "dtype": np.float32}
        return self._library(lambda form: functools.partial(form.random.normal, **options), options.get("out"))

    async def fill(self, work: Work) -> Doing:
        array = await self._upload(works.vector(work.size))

        async def result() -> np.ndarray:
            await array.fill(2.0)
            filled: np.ndarray = await array.to_host()
            return filled

        return Doing(
            await_one=functools.partial(array.fill, 2.0),
            in_batch=lambda batch: functools.partial(batch.fill, array, 2.0),
            result=result,
        )

    async def device_copy(self, work: Work) -> Doing:
        source, target = await self._upload(works.vector(work.size)), self.dev.zeros(work.size, np.float32)

        async def result() -> np.ndarray:
            await target.copy_from(source)
            copied: np.ndarray = await target.to_host()
            return copied

        return Doing(
            await_one=functools.partial(target.copy_from, source),
            in_batch=lambda batch: functools.partial(batch.copy_from, target, source),
            result=result,
        )

    async def slice(self, work: Work) -> Doing:
        array, index = await self._upload(works.vector(work.size)), slices(work)
        return Doing(call=lambda: array[index])

    async def reshape(self, work: Work) -> Doing:
        array = await self._upload(works.vector(work.size))
        return Doing(call=functools.partial(array.reshape, 8, -1))

    async def transpose(self, work: Work) -> Doing:
        array = await self._upload(works.vector(work.size).reshape(8, -1))
        return Doing(call=lambda: array.T)

    async def allocation(self, work: Work) -> Doing:
        await self.y.fill(0)  # there is a chunk
        return allocation(work, functools.partial(self.dev.empty, work.size // 4, np.float32), self._kept)

    def zeros(self, work: Work) -> Doing:
        async def result() -> np.ndarray:
            made: np.ndarray = await self.dev.zeros(work.size // 4, np.float32).to_host()
            return made

        zeros = functools.partial(self.dev.zeros, work.size // 4, np.float32)
        return Doing(call=zeros, result=result)

    async def copy(self, work: Work) -> Doing:
        nbytes, dev = work.size, self.dev
        source, out = host_arrays(nbytes)
        if work.form == "pinned":
            held = source, out
            source, out = (dev.pinned_empty(nbytes, np.uint8) for _ in range(2))
            source[:], out[:] = held
        array = dev.empty(nbytes, np.uint8)
        await array.copy_from(source)
        if work.form == "new array":
            doing = Doing(
                await_one=array.to_host,
                in_batch=lambda batch: functools.partial(batch.to_host, array),
                most_in_batch=works.BATCH_OF_COPIES,
                result=array.to_host,
            )
        else:
            doing = self._host_copy(work, array, source, out)
        return doing if nbytes <= works.LARGEST_OF_BATCH else attrs.evolve(doing, in_batch=None)

    async def strided(self, work: Work) -> Doing:
        rows, width = works.pitched(work.size)
        source, out = (each.reshape(rows, width) for each in host_arrays(work.size))
        array = self.dev.zeros((rows, 2 * width), np.uint8)[:, :width]
        await array.copy_from(source)
        return self._host_copy(work, array, source, out)

    def _host_copy(self, work: Work, array: Any, source: np.ndarray, out: np.ndarray) -> Doing:
        inward = work.direction == "in"

        async def result() -> np.ndarray:
            back = np.empty(array.shape, np.uint8)
            if inward:
                await array.fill(0)
                await array.copy_from(source)
                await array.copy_to(back)
            else:
                await array.copy_to(out)
                back[...] = out
            return back.reshape(-1)

        tasks: dict[str, Callable[[int], Awaitable[object]]] = {}
        if work.size <= works.LARGEST_IN_FLIGHT and work.kind == "copy":
            number = COUNT_OF_TASKS[IN_FLIGHT]
            arrays = [self.dev.zeros(work.size, np.uint8) for _ in range(number)]
            if work.form == "pinned":
                hosts = [self.dev.pinned_empty(work.size, np.uint8) for _ in range(number)]
            else:
                hosts = [np.full(work.size, each, np.uint8) for each in range(number)]
            if inward:
                tasks = {IN_FLIGHT: lambda each: arrays[each].copy_from(hosts[each])}
            else:
                tasks = {IN_FLIGHT: lambda each: arrays[each].copy_to(hosts[each])}
        if inward:
            return Doing(
                await_one=functools.partial(array.copy_from, source),
                in_batch=lambda batch: functools.partial(batch.copy_from, array, source),
                most_in_batch=works.BATCH_OF_COPIES,
                tasks=tasks,
                result=result,
            )
        return Doing(
            await_one=functools.partial(array.copy_to, out),
            in_batch=lambda batch: functools.partial(batch.copy_to, array, out),
            most_in_batch=works.BATCH_OF_COPIES,
            tasks=tasks,
            result=result,
        )


def slices(work: Work) -> slice:
    """The index of a work that takes a part of an array."""
    return slice(1, 10) if work.form == "plain" else slice(None, None, 2)


def allocation(work: Work, empty: Call, kept: list[Any]) -> Doing:
    """Allocate and free at once, or one of both."""

    def begin(count: int) -> None:
        kept.clear()
        if work.form == "free":
            kept.extend(empty() for _ in range(count))

    if work.form == "both":
        return Doing(call=empty)
    if work.form == "empty":
        return Doing(call=lambda: kept.append(empty()), begin=begin)
    return Doing(call=kept.pop, begin=begin)


# --- the others -------------------------------------------------------------------------------------------------------


class Raw(Bare, Subject):
    """The driver, called through ctypes as this library declares it, in the device's primary context."""

    def __init__(self) -> None:
        super().__init__()
        driver, module = self._driver, self._driver.CUmodule()
        driver.cuModuleLoadData(byref(module), native_image())
        self._functions = {name: self._function(module, name) for name in KERNELS}
        self.x, self.y = (c_uint64(self._memory(COUNT * 4)) for _ in range(2))
        self._held.clear()  # these stay
        self._pinned_memory: list[c_void_p] = []
        # The foreign functions themselves: a status that is not checked costs nothing.
        self._launch = driver.cuLaunchKernel.bind()
        self._synchronize = driver.cuStreamSynchronize.bind()

    def _function(self, module: c_void_p, name: str) -> int:
        function = self._driver.CUfunction()
        self._driver.cuModuleGetFunction(byref(function), module, name.encode())
        return function.value or 0

    def _queued(self, call: Call) -> Doing:
        def block_one() -> None:
            call()
            self._synchronize(self._stream)

        return Doing(block_one=block_one, call=call, end=self._wait)

    def empty_launch(self, _work: Work) -> Doing:
        launch, function = self._launch, self._functions["empty"]
        streams = [self._new_stream() for _ in range(COUNT_OF_TASKS[TASKS])]
        limiter = trio.CapacityLimiter(len(streams))

        def launch_on(stream: int) -> None:
            launch(function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)

        def wait(stream: int) -> None:
            self._driver.cuCtxSetCurrent(self._context)
            self._driver.cuStreamSynchronize(stream)

        async def task(number: int) -> None:
            """What a trio program would write: launch, and wait in a thread."""
            launch_on(streams[number])
            await trio.to_thread.run_sync(wait, streams[number], limiter=limiter)

        doing = self._queued(functools.partial(launch_on, self._stream))
        return attrs.evolve(doing, tasks={TASKS: task})

    def ticket(self, _work: Work) -> Doing:
        """The GPU writes a number behind each launch, and this thread looks at it until it is there."""
        launch, function, stream = self._launch, self._functions["empty"], self._stream
        write = self._driver.cuStreamWriteValue64.bind()
        self._words = self._pinned(np.zeros(8, np.uint8))
        words, address = self._words.view(np.uint64), self._words.ctypes.data
        word = (c_uint64 * 1).from_address(address)
        words[0] = 0

        def block_one() -> None:
            ticket = word[0] + 1
            launch(function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
            write(stream, address, ticket, 0)
            while word[0] < ticket:
                pass

        return Doing(block_one=block_one)

    def _new_stream(self) -> int:
        stream = self._driver.CUstream()
        self._driver.cuStreamCreate(byref(stream), self._driver.CU_STREAM_NON_BLOCKING)
        return stream.value or 0

    def launch(self, work: Work) -> Doing:
        call, stream, x, y = self._launch, self._stream, self.x, self.y
        saxpy, sixteen = self._functions["saxpy"], self._functions["sixteen"]

        def launch_4() -> None:
            held = (c_float(2.0), x, y, c_int(COUNT))
            packed = (c_void_p * 4)(*(addressof(each) for each in held))
            call(saxpy, GRID, 1, 1, BLOCK, 1, 1, 0, stream, packed, None)

        def launch_16() -> None:
            held = (x, x, x, x, x, x, x, x, *map(c_int, INTS))
            packed = (c_void_p * 16)(*(addressof(each) for each in held))
            call(sixteen, GRID, 1, 1, BLOCK, 1, 1, 0, stream, packed, None)

        if work.form == "prepared" and work.size == 4:
            self._arguments = (c_float(2.0), x, y, c_int(COUNT))
            self._packed = (c_void_p * 4)(*(addressof(each) for each in self._arguments))
            shape = (GRID, 1, 1, BLOCK, 1, 1, 0)
            return self._queued(functools.partial(call, saxpy, *shape, stream, addressof(self._packed), None))
        if work.form:
            raise Missing("has no such call")
        return self._queued(launch_4 if work.size == 4 else launch_16)

    def graph(self, work: Work) -> Doing:
        one = dict.fromkeys(("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ"), 1)
        parameters = self._driver.CUDA_KERNEL_NODE_PARAMS(func=self._functions["empty"], **one)
        executable, _ = self._instantiated(parameters, work.size)
        return self._queued(functools.partial(self._driver.cuGraphLaunch.bind(), executable, self._stream))

    def graph_update(self, work: Work) -> Doing:
        """A number of the first kernel is another one for each launch."""
        factor = c_float(0)
        self._arguments = (factor, self.x, self.y, c_int(COUNT))
        self._packed = (c_void_p * 4)(*(addressof(each) for each in self._arguments))
        shape = {"gridDimX": GRID, "gridDimY": 1, "gridDimZ": 1, "blockDimX": BLOCK, "blockDimY": 1, "blockDimZ": 1}
        packed = ctypes.cast(self._packed, c_void_p)
        parameters = self._driver.CUDA_KERNEL_NODE_PARAMS(func=self._functions["saxpy"], kernelParams=packed, **shape)
        executable, first = self._instantiated(parameters, work.size)
        update, launch = (
            getattr(self._driver, name).bind() for name in ("cuGraphExecKernelNodeSetParams", "cuGraphLaunch")
        )
        stream = self._stream

        def call() -> None:
            factor.value += 1
            update(executable, first, byref(parameters))
            launch(executable, stream)

        return self._queued(call)

    def _instantiated(self, parameters: Any, count: int) -> tuple[int, int]:
        """A graph of so many kernels one after the other, as they are when a stream is captured; its first node."""
        driver, graph, executable = self._driver, self._driver.CUgraph(), self._driver.CUgraphExec()
        driver.cuGraphCreate(byref(graph), 0)
        nodes: list[Any] = []
        for _ in range(count):
            node = driver.CUgraphNode()
            last = byref(nodes[-1]) if nodes else None
            driver.cuGraphAddKernelNode(byref(node), graph, last, min(len(nodes), 1), byref(parameters))
            nodes.append(node)
        driver.cuGraphInstantiate(byref(executable), graph, 0)
        return executable.value or 0, nodes[0].value

    def fill(self, work: Work) -> Doing:
        self._free_all()
        array = self._memory(4 * work.size)
        bits = int(np.float32(2.0).view(np.uint32))
        doing = self._queued(
            functools.partial(self._driver.cuMemsetD32Async.bind(), array, bits, work.size, self._stream)
        )
        return attrs.evolve(doing, result=self._result(doing, array, work.size))

    def device_copy(self, work: Work) -> Doing:
        self._free_all()
        source, target = self._upload(works.vector(work.size)), self._memory(4 * work.size)
        self._settle()
        copy = self._driver.cuMemcpyDtoDAsync.bind()
        doing = self._queued(functools.partial(copy, target, source, 4 * work.size, self._stream))
        return attrs.evolve(doing, result=self._result(doing, target, work.size))

    def _result(self, doing: Doing, address: int, count: int) -> Callable[[], Awaitable[np.ndarray]]:
        async def result() -> np.ndarray:
            assert doing.block_one is not None
            doing.block_one()
            return self._download(address, np.empty(count, np.float32))

        return result

    def allocation(self, work: Work) -> Doing:
        driver = self._driver

        def allocate() -> None:
            address = c_uint64()
            driver.cuMemAlloc(byref(address), work.size)
            driver.cuMemFree(address)

        if work.form != "both":
            raise Missing("has no such call")
        return Doing(call=allocate)

    def copy(self, work: Work) -> Doing:
        self._free_all()
        nbytes, driver, stream = work.size, self._driver, self._stream
        array = self._memory(nbytes)
        source, out = host_arrays(nbytes)
        self._settle()
        if work.form == "pinned":
            source, out = (self._pinned(each) for each in (source, out))
        while len(self._pinned_memory) > 2:
            driver.cuMemFreeHost(self._pinned_memory.pop(0))
        self._hosts = source, out  # what is called below knows their addresses alone
        here, there = source.ctypes.data, out.ctypes.data
        copy_in, copy_out = driver.cuMemcpyHtoD, driver.cuMemcpyDtoH
        copy_in(array, here, nbytes)

        def pinned_in() -> None:
            driver.cuMemcpyHtoDAsync(array, here, nbytes, stream)

        def pinned_out() -> None:
            driver.cuMemcpyDtoHAsync(there, array, nbytes, stream)

        def pageable_in() -> None:
            copy_in(array, here, nbytes)
            driver.cuCtxSynchronize()

        def new_array() -> None:
            made = np.empty(nbytes, np.uint8)
            copy_out(made.ctypes.data, array, nbytes)

        inward = work.direction == "in"
        if work.form == "pinned":
            doing = self._queued(pinned_in if inward else pinned_out)
        elif work.form == "new array":
            return Doing(block_one=new_array)
        else:
            doing = Doing(
                block_one=pageable_in if inward else lambda: copy_out(there, array, nbytes),
                tasks=self._in_turn(nbytes, inward=inward) if nbytes <= works.LARGEST_IN_FLIGHT else {},
            )

        async def result() -> np.ndarray:
            if inward:
                driver.cuMemsetD32(array, 0, nbytes // 4)
                self._settle()
            assert doing.block_one is not None
            doing.block_one()
            return self._download(array, np.empty(nbytes, np.uint8)) if inward else out

        return attrs.evolve(doing, result=result)

    def _in_turn(self, nbytes: int, *, inward: bool) -> dict[str, Callable[[int], Awaitable[object]]]:
        """Copies of as many arrays as others have in flight, one after the other."""
        driver, count = self._driver, COUNT_OF_TASKS[IN_FLIGHT]
        arrays = [self._memory(nbytes) for _ in range(count)]
        hosts = [np.full(nbytes, each, np.uint8) for each in range(count)]
        addresses = [host.ctypes.data for host in hosts]
        self._hosts = *self._hosts, *hosts

        async def copy_in(each: int) -> None:
            driver.cuMemcpyHtoD(arrays[each], addresses[each], nbytes)
            driver.cuCtxSynchronize()

        async def copy_out(each: int) -> None:
            driver.cuMemcpyDtoH(addresses[each], arrays[each], nbytes)

        return {IN_FLIGHT: copy_in if inward else copy_out}

    def _pinned(self, array: np.ndarray) -> np.ndarray:
        address = c_void_p()
        self._driver.cuMemAllocHost(byref(address), array.nbytes)
        self._pinned_memory.append(address)
        made = np.frombuffer((c_uint8 * array.nbytes).from_address(address.value or 0), np.uint8)
        made[:] = array
        return made

    def strided(self, work: Work) -> Doing:
        self._free_all()
        driver = self._driver
        rows, width = works.pitched(work.size)
        array = self._memory(2 * work.size)
        source, out = host_arrays(work.size)
        self._hosts = source, out
        host, device = driver.CUmemorytype.CU_MEMORYTYPE_HOST, driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copies = {
            "in": driver.CUDA_MEMCPY2D(
                srcMemoryType=host, srcHost=source.ctypes.data, srcPitch=width,
                dstMemoryType=device, dstDevice=array, dstPitch=2 * width, WidthInBytes=width, Height=rows,
            ),
            "out": driver.CUDA_MEMCPY2D(
                srcMemoryType=device, srcDevice=array, srcPitch=2 * width,
                dstMemoryType=host, dstHost=out.ctypes.data, dstPitch=width, WidthInBytes=width, Height=rows,
            ),
        }  # fmt: skip

        def copy(direction: str) -> None:
            driver.cuMemcpy2D(byref(copies[direction]))
            if direction == "in":
                driver.cuCtxSynchronize()

        async def result() -> np.ndarray:
            copy("in")
            copy("out")
            return out

        copy("in")
        return Doing(block_one=functools.partial(copy, work.direction), result=result)


class Foreign(Others, Subject):
    """What CuPy, PyTorch, cuda.core and numba-cuda have in common."""

    def _queued(self, call: Call, number: Callable[[], Any] | None = None, out: Any = None) -> Doing:
        """A call that is not waited for; `number` is the one that brings its result to the host."""
        wait = self._wait

        def block_one() -> None:
            call()
            wait()

        async def result() -> np.ndarray:
            found = call()
            wait()
            return self._to_host(found if out is None else out)

        return Doing(block_one=number or block_one, call=call, end=wait, result=result)

    def _to_host(self, array: Any) -> np.ndarray:
        raise Missing("has no results")

    def _copies(self, work: Work, copies: Mapping[tuple[str, str], Call], array: Any, out: Any) -> Doing:
        try:
            copy = copies[work.direction, work.form]
        except KeyError:
            raise Missing("has no such call") from None

        async def result() -> np.ndarray:
            copy()
            return self._to_host(array) if work.direction == "in" or work.form == "new array" else np.asarray(out)

        return Doing(block_one=copy, result=result)


class Native(Bare, Subject):
    """The driver, called from native code: the floor of everything, shown beside the others."""

    def __init__(self) -> None:
        super().__init__()
        self._native: Any = importlib.import_module("speed_native")
        module = self._driver.CUmodule()
        self._driver.cuModuleLoadData(byref(module), native_image())
        self._loops = self._native.Loops(self._driver, self._stream, module)

    def ticket(self, _work: Work) -> Doing:
        return Doing(natively=lambda count: {AWAITED: self._loops.ticketed(count)})

    def empty_launch(self, _work: Work) -> Doing:
        return Doing(natively=self._loops.empty)

    def launch(self, work: Work) -> Doing:
        if work.form or work.size != 4:
            raise Missing("has no such call")
        return Doing(natively=self._loops.saxpy)


def native_image() -> bytes:
    """The kernels."""
    import atomr_trio

    return atomr_trio.compile_to_ptx(SOURCE).encode() + b"\0"


class Cupy(OnCupy, Foreign):
    """CuPy, on a stream of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Any] = []
        module = self._cupy.RawModule(code=SOURCE)
        self._kernels = {name: module.get_function(name) for name in KERNELS}
        self.x, self.y = (self._cupy.zeros(COUNT, np.float32) for _ in range(2))

    def _to_host(self, array: Any) -> np.ndarray:
        return np.asarray(array.get() if hasattr(array, "get") else array)

    def empty_launch(self, _work: Work) -> Doing:
        empty = self._kernels["empty"]
        return attrs.evolve(self._queued(lambda: empty((1,), (1,), ())), result=None)

    def launch(self, work: Work) -> Doing:
        if work.form:
            raise Missing("has no such call")
        saxpy, sixteen, x, y = self._kernels["saxpy"], self._kernels["sixteen"], self.x, self.y
        a, n, ints = np.float32(2), np.int32(COUNT), tuple(map(np.int32, INTS))
        if work.size == 4:
            return attrs.evolve(self._queued(lambda: saxpy((GRID,), (BLOCK,), (a, x, y, n))), result=None)
        call = lambda: sixteen((GRID,), (BLOCK,), (x, x, x, x, x, x, x, x, *ints))  # noqa: E731
        return attrs.evolve(self._queued(call), result=None)

    def graph(self, work: Work) -> Doing:
        empty = self._kernels["empty"]
        empty((1,), (1,), ())
        self._stream.begin_capture()
        for _ in range(work.size):
            empty((1,), (1,), ())
        return attrs.evolve(self._queued(self._stream.end_capture().launch), result=None)

    def gemm(self, work: Work) -> Doing:
        cupy, n = self._cupy, work.size
        a, b = cupy.asarray(works.matrix(n)), cupy.asarray(works.matrix(n, 1))
        if work.form == "new":
            return self._queued(functools.partial(cupy.matmul, a, b))
        out = cupy.empty((n, n), np.float32)
        return self._queued(functools.partial(cupy.matmul, a, b, out=out), out=out)

    def dot(self, work: Work) -> Doing:
        cupy = self._cupy
        x, y = cupy.asarray(works.vector(work.size)), cupy.asarray(works.vector(work.size, 1))
        if work.form == "new":
            return self._queued(functools.partial(cupy.dot, x, y), lambda: float(cupy.dot(x, y)))
        out = cupy.empty((), np.float32)
        return self._queued(functools.partial(cupy.dot, x, y, out=out), out=out)

    def fill(self, work: Work) -> Doing:
        array = self._cupy.zeros(work.size, np.float32)
        return self._queued(functools.partial(array.fill, 2.0), out=array)

    def device_copy(self, work: Work) -> Doing:
        cupy = self._cupy
        source, target = cupy.asarray(works.vector(work.size)), cupy.zeros(work.size, np.float32)
        return self._queued(functools.partial(cupy.copyto, target, source), out=target)

    def solve(self, work: Work) -> Doing:
        if work.form == "out":
            raise Missing("has no such call")
        cupy = self._cupy
        a, b = cupy.asarray(works.definite(work.size)), cupy.asarray(works.vector(work.size))
        return self._queued(functools.partial(cupy.linalg.solve, a, b))

    def cholesky(self, work: Work) -> Doing:
        if work.form == "out":
            raise Missing("has no such call")
        a = self._cupy.asarray(works.definite(work.size))
        return self._queued(functools.partial(self._cupy.linalg.cholesky, a))

    def fft(self, work: Work) -> Doing:
        if work.form == "out":
            raise Missing("has no such call")
        x = self._cupy.asarray(works.vector(work.size).astype(np.complex64))
        return self._queued(functools.partial(self._cupy.fft.fft, x))

    def normal(self, work: Work) -> Doing:
        generator, out = self._cupy.random.default_rng(7), self._cupy.empty(work.size, np.float32)
        if work.form == "out":
            return self._queued(functools.partial(generator.standard_normal, work.size, np.float32, out=out), out=out)
        return self._queued(functools.partial(generator.standard_normal, work.size, np.float32))

    def slice(self, work: Work) -> Doing:
        array, index = self._cupy.zeros(work.size, np.float32), slices(work)
        return Doing(call=lambda: array[index])

    def reshape(self, work: Work) -> Doing:
        return Doing(call=functools.partial(self._cupy.zeros(work.size, np.float32).reshape, 8, -1))

    def transpose(self, work: Work) -> Doing:
        array = self._cupy.zeros((8, work.size // 8), np.float32)
        return Doing(call=lambda: array.T)

    def allocation(self, work: Work) -> Doing:
        return allocation(work, functools.partial(self._cupy.empty, work.size // 4, np.float32), self._kept)

    def zeros(self, work: Work) -> Doing:
        return attrs.evolve(
            self._queued(functools.partial(self._cupy.zeros, work.size // 4, np.float32)), block_one=None
        )

    def copy(self, work: Work) -> Doing:
        nbytes, cupy, wait = work.size, self._cupy, self._wait
        source, out = host_arrays(nbytes)
        array = cupy.asarray(source)
        pinned = np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)
        pinned[:] = source

        def copy_in(host: np.ndarray) -> None:
            array.set(host)
            wait()

        copies: dict[tuple[str, str], Call] = {
            ("in", "pageable"): lambda: copy_in(source),
            ("out", "pageable"): lambda: array.get(out=out),
            ("out", "new array"): array.get,
            ("in", "pinned"): lambda: copy_in(pinned),
            ("out", "pinned"): lambda: array.get(out=pinned),
        }
        return self._copies(work, copies, array, pinned if work.form == "pinned" else out)


class Torch(OnTorch, Foreign):
    """PyTorch: saxpy as `add_`, which has no other kernel of a user; no launch with 16 arguments."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Any] = []
        self.x, self.y = (self._torch.zeros(COUNT, device="cuda") for _ in range(2))

    def _to_host(self, array: Any) -> np.ndarray:
        found: np.ndarray = array.cpu().numpy()
        return found

    def _upload(self, array: np.ndarray) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(array)).cuda()

    def _out(self, work: Work, shape: Any, dtype: str = "float32") -> dict[str, Any]:
        if work.form == "new":
            return {}
        return {"out": self._torch.zeros(shape, dtype=getattr(self._torch, dtype), device="cuda")}

    def empty_launch(self, _work: Work) -> Doing:
        one = self._torch.zeros(1, device="cuda")
        return attrs.evolve(self._queued(one.zero_), result=None)

    def launch(self, work: Work) -> Doing:
        if work.form or work.size != 4:
            raise Missing("has no such call")
        add, x = self.y.add_, self.x
        return attrs.evolve(self._queued(lambda: add(x, alpha=2.0)), result=None)

    def graph(self, work: Work) -> Doing:
        graph = self._torch.cuda.CUDAGraph()
        one = self._torch.zeros(1, device="cuda")
        one.zero_()
        self._wait()
        with self._torch.cuda.graph(graph, stream=self._stream):
            for _ in range(work.size):
                one.zero_()
        return attrs.evolve(self._queued(graph.replay), result=None)

    def library_graph(self, work: Work) -> Doing:
        torch, graph = self._torch, self._torch.cuda.CUDAGraph()
        a, b = self._upload(works.matrix(work.size)), self._upload(works.matrix(work.size, 1))
        out = torch.zeros((work.size, work.size), device="cuda")
        torch.mm(a, b, out=out)
        self._wait()
        with torch.cuda.graph(graph, stream=self._stream):
            for _ in range(works.PRODUCTS):
                torch.mm(a, b, out=out)
        return self._queued(graph.replay, out=out)

    def gemm(self, work: Work) -> Doing:
        a, b = self._upload(works.matrix(work.size)), self._upload(works.matrix(work.size, 1))
        return self._queued(functools.partial(self._torch.mm, a, b, **self._out(work, (work.size, work.size))))

    def axpy(self, work: Work) -> Doing:
        x, y = self._upload(works.vector(work.size)), self._torch.zeros(work.size, device="cuda")
        return self._queued(functools.partial(y.add_, x, alpha=2.0))

    def dot(self, work: Work) -> Doing:
        torch = self._torch
        x, y = self._upload(works.vector(work.size)), self._upload(works.vector(work.size, 1))
        if work.form == "new":
            return self._queued(functools.partial(torch.dot, x, y), lambda: torch.dot(x, y).item())
        return self._queued(functools.partial(torch.dot, x, y, **self._out(work, ())))

    def fill(self, work: Work) -> Doing:
        return self._queued(functools.partial(self._torch.zeros(work.size, device="cuda").fill_, 2.0))

    def device_copy(self, work: Work) -> Doing:
        source, target = self._upload(works.vector(work.size)), self._torch.zeros(work.size, device="cuda")
        return self._queued(functools.partial(target.copy_, source))

    def solve(self, work: Work) -> Doing:
        a, b = self._upload(works.definite(work.size)), self._upload(works.vector(work.size))
        return self._queued(functools.partial(self._torch.linalg.solve, a, b, **self._out(work, work.size)))

    def cholesky(self, work: Work) -> Doing:
        a, out = self._upload(works.definite(work.size)), self._out(work, (work.size, work.size))
        return self._queued(functools.partial(self._torch.linalg.cholesky, a, **out))

    def fft(self, work: Work) -> Doing:
        x, out = self._upload(works.vector(work.size).astype(np.complex64)), self._out(work, work.size, "complex64")
        return self._queued(functools.partial(self._torch.fft.fft, x, **out))

    def normal(self, work: Work) -> Doing:
        torch = self._torch
        if work.form == "out":
            return self._queued(torch.zeros(work.size, device="cuda").normal_)
        return self._queued(functools.partial(torch.randn, work.size, device="cuda"))

    def slice(self, work: Work) -> Doing:
        array, index = self._torch.zeros(work.size, device="cuda"), slices(work)
        return Doing(call=lambda: array[index])

    def reshape(self, work: Work) -> Doing:
        return Doing(call=functools.partial(self._torch.zeros(work.size, device="cuda").reshape, 8, -1))

    def transpose(self, work: Work) -> Doing:
        array = self._torch.zeros((8, work.size // 8), device="cuda")
        return Doing(call=lambda: array.T)

    def allocation(self, work: Work) -> Doing:
        return allocation(work, functools.partial(self._torch.empty, work.size // 4, device="cuda"), self._kept)

    def zeros(self, work: Work) -> Doing:
        return attrs.evolve(
            self._queued(functools.partial(self._torch.zeros, work.size // 4, device="cuda")), block_one=None
        )

    def copy(self, work: Work) -> Doing:
        torch, wait = self._torch, self._wait
        source, out = (torch.from_numpy(host) for host in host_arrays(work.size))
        array, pinned = source.cuda(), source.pin_memory()
        target = torch.empty(work.size, dtype=torch.uint8, pin_memory=True)

        def copy(to: Any, origin: Any) -> None:
            to.copy_(origin, non_blocking=True)
            wait()

        copies: dict[tuple[str, str], Call] = {
            ("in", "pageable"): lambda: copy(array, source),
            ("out", "pageable"): lambda: copy(out, array),
            ("out", "new array"): array.cpu,
            ("in", "pinned"): lambda: copy(array, pinned),
            ("out", "pinned"): lambda: copy(target, array),
        }
        return self._copies(work, copies, array, target if work.form == "pinned" else out)

    def strided(self, work: Work) -> Doing:
        torch, wait = self._torch, self._wait
        rows, width = works.pitched(work.size)
        source, out = (torch.from_numpy(host.reshape(rows, width)) for host in host_arrays(work.size))
        array = torch.zeros((rows, 2 * width), dtype=torch.uint8, device="cuda")[:, :width]
        array.copy_(source)

        def copy() -> None:
            if work.direction == "in":
                array.copy_(source)
            else:
                out.copy_(array)
            wait()

        async def result() -> np.ndarray:
            copy()
            found: np.ndarray = (array.cpu() if work.direction == "in" else out).numpy()
            return found.reshape(-1)

        return Doing(block_one=copy, result=result)


class Core(Foreign):
    """cuda.core. It has no copies of numpy arrays and no pageable host memory."""

    def __init__(self) -> None:
        self._core: Any = importlib.import_module("cuda.core")
        self._device = self._core.Device(0)
        self._device.set_current()
        self._stream = self._device.create_stream()
        self._wait = self._stream.sync
        options = self._core.ProgramOptions(arch=f"sm_{self._device.arch}")
        module = self._core.Program(SOURCE, "c++", options=options).compile("cubin")
        self._kernels = {name: module.get_kernel(name) for name in KERNELS}
        self.x, self.y = (self._device.allocate(COUNT * 4, stream=self._stream) for _ in range(2))
        self._one = self._core.LaunchConfig(grid=1, block=1)

    def empty_launch(self, _work: Work) -> Doing:
        return self._queued(functools.partial(self._core.launch, self._stream, self._one, self._kernels["empty"]))

    def launch(self, work: Work) -> Doing:
        if work.form:
            raise Missing("has no such call")
        launch, stream = self._core.launch, self._stream
        config = self._core.LaunchConfig(grid=GRID, block=BLOCK)
        saxpy, sixteen, x, y = self._kernels["saxpy"], self._kernels["sixteen"], self.x, self.y
        a, n, ints = np.float32(2), np.int32(COUNT), tuple(map(np.int32, INTS))
        if work.size == 4:
            return self._queued(lambda: launch(stream, config, saxpy, a, x, y, n))
        return self._queued(lambda: launch(stream, config, sixteen, x, x, x, x, x, x, x, x, *ints))

    def _queued(self, call: Call, number: Callable[[], Any] | None = None, out: Any = None) -> Doing:
        return attrs.evolve(super()._queued(call, number, out), result=None)

    def graph(self, work: Work) -> Doing:
        builder = self._stream.create_graph_builder()
        builder.begin_building()
        for _ in range(work.size):
            self._core.launch(builder, self._one, self._kernels["empty"])
        graph = builder.end_building().complete()
        return self._queued(lambda: graph.launch(self._stream))

    def allocation(self, work: Work) -> Doing:
        if work.form != "both":
            raise Missing("has no such call")
        return Doing(call=lambda: self._device.allocate(work.size, stream=self._stream).close())


class Numba(Foreign):
    """numba-cuda, with kernels written in Python."""

    def __init__(self) -> None:
        self._cuda: Any = importlib.import_module("numba.cuda")
        self._stream = self._cuda.stream()
        self._wait = self._stream.synchronize
        self.x, self.y = (self._cuda.to_device(np.zeros(COUNT, np.float32)) for _ in range(2))
        kernels: Any = importlib.import_module("speed_numba")
        self._kernels = {name: getattr(kernels, name) for name in KERNELS}

    def _to_host(self, array: Any) -> np.ndarray:
        found: np.ndarray = array.copy_to_host()
        return found

    def empty_launch(self, _work: Work) -> Doing:
        empty = self._kernels["empty"][1, 1, self._stream]
        return attrs.evolve(self._queued(lambda: empty()), result=None)

    def launch(self, work: Work) -> Doing:
        if work.form:
            raise Missing("has no such call")
        x, y = self.x, self.y
        saxpy, sixteen = (self._kernels[name][GRID, BLOCK, self._stream] for name in ("saxpy", "sixteen"))
        a, n, ints = np.float32(2), np.int32(COUNT), tuple(map(np.int32, INTS))
        if work.size == 4:
            return attrs.evolve(self._queued(lambda: saxpy(a, x, y, n)), result=None)
        return attrs.evolve(self._queued(lambda: sixteen(x, x, x, x, x, x, x, x, *ints)), result=None)

    def copy(self, work: Work) -> Doing:
        source, out = host_arrays(work.size)
        array = self._cuda.to_device(source)
        pinned = self._cuda.pinned_array(work.size, np.uint8)
        pinned[:] = source
        wait = self._cuda.synchronize

        def copy_in(host: np.ndarray) -> None:
            array.copy_to_device(host)
            wait()

        copies: dict[tuple[str, str], Call] = {
            ("in", "pageable"): lambda: copy_in(source),
            ("out", "pageable"): lambda: array.copy_to_host(out),
            ("out", "new array"): array.copy_to_host,
            ("in", "pinned"): lambda: copy_in(pinned),
            ("out", "pinned"): lambda: array.copy_to_host(pinned),
        }
        return self._copies(work, copies, array, pinned if work.form == "pinned" else out)

    def allocation(self, work: Work) -> Doing:
        if work.form != "both":
            raise Missing("has no such call")
        return Doing(call=functools.partial(self._cuda.device_array, work.size // 4, np.float32))


SUBJECTS: Final[Mapping[str, Callable[[str], AbstractAsyncContextManager[Any]]]] = {
    OURS: Ours.opened,
    RAW: Raw.opened,
    NATIVE: Native.opened,
    CORE: Core.opened,
    CUPY: Cupy.opened,
    TORCH: Torch.opened,
    NUMBA: Numba.opened,
}


# --- questions and answers --------------------------------------------------------------------------------------------


@attrs.define
class Answers:
    """What a subject answers to the questions about works."""

    subject: Any
    works: Sequence[Work]
    calls_of_burst: int
    doing: Doing = Doing()

    async def take(self, number: int) -> str | None:
        """Make a work ready, and check its result; return why it cannot be measured, if that is so."""
        return await refusal(self._take(self.works[number]))

    async def _take(self, work: Work) -> None:
        self.doing = Doing()  # lets go of the one before
        gc.collect()
        self.doing = await self.subject.ready(work)
        exact = works.expected(work)
        if self.doing.result is not None:
            found = await self.doing.result()
            if exact is not None:
                check_error(works.error_of(found, exact), ERROR)

    async def ways(self, count: int) -> dict[str, float]:
        """The seconds of one call, by way."""
        return await seconds_of(self.doing, count, self._open_batch)

    async def bursts(self, count: int) -> list[float]:
        """The seconds of one call, end to end, of each of so many bursts."""
        return await bursts_of(self.doing, count, self.calls_of_burst, self._open_batch)

    @property
    def _open_batch(self) -> Callable[[], Any] | None:
        return self.subject.batch if isinstance(self.subject, Ours) else None


async def idle(milliseconds: int) -> float:
    """The share of one CPU that this process and its workers take while nothing is asked of them.

    To read what other threads have run takes milliseconds, so this thread is asked by itself, within the readings.
    """
    await trio.sleep(1.5e-3 * milliseconds)  # a device rests after a second
    before = others_seconds()
    begun, own = clock(), time.thread_time()
    await trio.sleep(milliseconds / 1e3)
    own, seconds = time.thread_time() - own, clock() - begun
    return (own + used_between(before, others_seconds())) / seconds


def others_seconds() -> dict[Path, float]:
    """What each other thread of this process and of its children has run, by the scheduler's accounts."""
    tasks = Path("/proc/self/task").glob("*/children")
    children = [number for task in tasks for number in task.read_text(encoding="ascii").split()]
    schedules = (path for number in ("self", *children) for path in Path(f"/proc/{number}/task").glob("*/schedstat"))
    own = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    return {path: int(path.read_text(encoding="ascii").split()[0]) / 1e9 for path in schedules if path != own}


def used_between(earlier: dict[Path, float], later: dict[Path, float]) -> float:
    """What the threads that are still there have run between two readings."""
    return sum(seconds - earlier.get(path, 0.0) for path, seconds in later.items())


async def answer(who: str, backend: str) -> None:
    """Answer questions until there are no more."""
    async with SUBJECTS[who](backend) as subject:
        answers = Answers(subject, PLANS[backend].works, PLANS[backend].calls_of_burst)
        await answer_all({"take": answers.take, "ways": answers.ways, "bursts": answers.bursts, "idle": idle})


if __name__ == "__main__":
    serve(answer)
