"""What compiling costs, cold and from the disk cache: `make bench-nvrtc`.

Three translation units, a small one, one with CUB's radix sort and one with many kernels, are compiled into an empty
cache and then found in it, each time in a fresh process: from the request to the image in memory, which is what the
cache adds to loading it. Once more they are compiled without the types of the parameters (`NvrtcOptions.signatures`).
On a GPU the image is loaded as well, and another fresh process loads the same image by a bare `cuModuleLoadData`;
without one, the other process reads the image from a file. These two are started together and measure one after the
other, in turns. They are repeated more often than the compilations, which take seconds and are not judged.

Then 64 programs are compiled at once while kernels that are ready are launched, and every step of trio's loop is timed;
with `--share`, fewer of them.

The figures belong to this machine; only ratios within one run carry over to others.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import conclusion
import numpy as np
import targets
import trio
from speed_report import OURS, RAW, Measure, Table

import atomr_trio
from atomr_trio import NvrtcOptions
from atomr_trio._cli.progress import Progress
from atomr_trio._compiling.caching import CachingCompiler, Job

Backend = Literal["cuda", "sim"]
Phase = Literal["cold", "untyped", "hot", "bare"]
COMPILED: Final[tuple[Phase, ...]] = ("cold", "untyped")
LOADED: Final[tuple[Phase, ...]] = ("hot", "bare")
LOADS: Final = 7
"""So many loads of each at least: single ones differ by 1.5 ms, and the limit is 2."""

SMALL: Final = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
RADIX_SORT: Final = r"""
#include <cub/block/block_load.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>

template <typename Key, int THREADS, int ITEMS>
__device__ void sort(Key* keys)
{
    using Load = cub::BlockLoad<Key, THREADS, ITEMS, cub::BLOCK_LOAD_TRANSPOSE>;
    using Store = cub::BlockStore<Key, THREADS, ITEMS, cub::BLOCK_STORE_TRANSPOSE>;
    using Sort = cub::BlockRadixSort<Key, THREADS, ITEMS>;
    __shared__ union {
        typename Load::TempStorage load;
        typename Store::TempStorage store;
        typename Sort::TempStorage sort;
    } shared;
    Key items[ITEMS];
    keys += blockIdx.x * THREADS * ITEMS;
    Load(shared.load).Load(keys, items);
    __syncthreads();
    Sort(shared.sort).Sort(items);
    __syncthreads();
    Store(shared.store).Store(keys, items);
}
extern "C" __global__ void sort_u32(unsigned* keys) { sort<unsigned, 256, 16>(keys); }
extern "C" __global__ void sort_u64(unsigned long long* keys) { sort<unsigned long long, 256, 8>(keys); }
extern "C" __global__ void sort_f32(float* keys) { sort<float, 128, 16>(keys); }
"""
MANY: Final = "".join(SMALL.replace("saxpy", f"saxpy_{number}") for number in range(60))
UNITS: Final = {"small": (SMALL, False), "radix sort": (RADIX_SORT, True), "60 kernels": (MANY, False)}
"""The source by its name, and whether it needs CUDA's own headers."""

PROGRAMS: Final = 64
FEWEST_PROGRAMS: Final = 16
ARCH_WITHOUT_GPU: Final = "sm_90"

ADD = 'extern "C" __global__ void add(int* x) { x[threadIdx.x] += N; }'


# ---------------------------------------------------------------------------------------------------- one process


def job(unit: str, target: str, *, signatures: bool) -> Job:
    source, headers = UNITS[unit]
    return Job(source, NvrtcOptions(bundled_headers=headers, name=f"{unit}.cu", signatures=signatures), target)


def loader(backend: Backend) -> Callable[[bytes], object]:
    """What is done with an image: loaded on a GPU, which is ready for it, and nothing without one."""
    if backend == "sim":
        return len
    from atomr_cuda import driver

    context, module = driver.CUcontext(), driver.CUmodule()
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    driver.cuCtxSetCurrent(context)
    return lambda image: driver.cuModuleLoadData(ctypes.byref(module), image)


def measure(phase: Phase, unit: str, target: str, backend: Backend, image: Path) -> dict[str, Any]:
    """In a fresh process: seconds from the request to the image, and until it is loaded.

    It begins when a line is read, so that another process may measure before.
    """
    load = loader(backend)
    compiler = CachingCompiler()
    print("ready", flush=True)
    sys.stdin.readline()
    wanted = job(unit, target, signatures=phase != "untyped")
    started = time.perf_counter()
    if phase == "bare":
        content, origin = image.read_bytes(), None
        if backend == "cuda":
            started = time.perf_counter()  # the load alone
    else:
        answer = compiler.answer(wanted)
        content, origin = answer.program.image, answer.origin
    there = time.perf_counter()
    load(content)
    done = time.perf_counter()
    if phase == "cold":
        image.write_bytes(content)
    return {"image": there - started, "loaded": done - started, "bytes": len(content), "origin": origin}


def in_fresh_processes(
    phases: Sequence[Phase], unit: str, target: str, backend: Backend, folder: Path
) -> list[dict[str, Any]]:
    """Start a process for each phase, all at the same time; they measure one after the other, and end together."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_started(phase, unit, target, backend, folder)) for phase in phases]
        for child in children:
            _line_of(child)
        results = []
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
            results.append(json.loads(_line_of(child)))
    return results


def _started(phase: Phase, unit: str, target: str, backend: Backend, folder: Path) -> subprocess.Popen[str]:
    """A process that ends when its input does."""
    arguments = ["--measure", phase, unit, target, str(folder / f"{unit}.image"), "--backend", backend]
    cache = folder / ("untyped" if phase == "untyped" else "cache")
    environment = {**os.environ, "ATOMR_TRIO_CACHE_DIR": str(cache)}
    command = [sys.executable, __file__, *arguments]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line_of(child: subprocess.Popen[str]) -> str:
    """What it says next. Raises `ChildProcessError` if it has ended."""
    assert child.stdout is not None
    if told := child.stdout.readline():
        return told
    raise ChildProcessError(f"{child.args} ended with {child.wait()}")


# ---------------------------------------------------------------------------------------------------- cold and hot


@attrs.define
class Row:
    """What one translation unit costs, in seconds."""

    unit: str
    nbytes: int = 0
    cold: list[float] = attrs.Factory(list)
    untyped: list[float] = attrs.Factory(list)
    hot_image: list[float] = attrs.Factory(list)
    hot_loaded: list[float] = attrs.Factory(list)
    bare: list[float] = attrs.Factory(list)

    @property
    def hot_load(self) -> list[float]:
        """What the load itself took when the image was found: the same call as the bare one, in another process."""
        return [loaded - image for loaded, image in zip(self.hot_loaded, self.hot_image, strict=True)]


def cold_and_hot(backend: Backend, target: str, compilations: int, loads: int) -> Iterator[Row]:
    """What each unit costs: compiled so many times, each time into an empty cache, and loaded so many times."""
    processes = len(COMPILED) * compilations + len(LOADED) * loads
    progress, done = Progress("compiling", len(UNITS) * processes, sys.stderr, unit="process"), 0
    for unit in UNITS:
        row = Row(unit)
        with tempfile.TemporaryDirectory(prefix="atomr-trio-bench-") as name:
            folders = [Path(name) / str(number) for number in range(compilations)]
            for folder in folders:
                folder.mkdir()
                for phase in COMPILED:
                    note(row, phase, *in_fresh_processes([phase], unit, target, backend, folder))
                progress.update(done := done + len(COMPILED))
            for number in range(loads):
                phases = LOADED[:: -1 if number % 2 else 1]
                results = in_fresh_processes(phases, unit, target, backend, folders[-1])
                for phase, result in zip(phases, results, strict=True):
                    note(row, phase, result)
                progress.update(done := done + len(LOADED))
        yield row
    progress.finish()


def note(row: Row, phase: str, result: dict[str, Any]) -> None:
    if phase == "cold":
        row.cold.append(result["loaded"])
        row.nbytes = result["bytes"]
    elif phase == "untyped":
        row.untyped.append(result["loaded"])
    elif phase == "hot":
        if result["origin"] != "disk":
            raise SystemExit(f"{row.unit}: expected a hit on the disk, got {result['origin']}")
        row.hot_image.append(result["image"])
        row.hot_loaded.append(result["loaded"])
    else:
        row.bare.append(result["loaded"])


def show(rows: list[Row], backend: Backend) -> None:
    bare = "bare cuModuleLoadData" if backend == "cuda" else "bare read of a file"
    print(
        f"\n{'':12}{'image':>10}{'cold':>13}{'without types':>16}{'hot: found in':>16}{'and loaded in':>16}{bare:>24}"
    )
    for row in rows:
        seconds = (row.cold, row.untyped, row.hot_image, row.hot_load, row.bare)
        cold, untyped, found, load, alone = (f"{statistics.median(each) * 1e3:.2f} ms" for each in seconds)
        print(f"{row.unit:12}{row.nbytes / 1024:>7.0f} KiB{cold:>13}{untyped:>16}{found:>16}{load:>16}{alone:>24}")
    counts = f"{len(rows[0].bare)} fresh processes each, {len(rows[0].cold)} of what was compiled"
    print(f"medians of {counts}; 'found in' is what comes on top of a bare load")


# ---------------------------------------------------------------------------------------------------- the loop


class StepTimer(trio.abc.Instrument):
    """Times each step of each task, by the clock and by what the thread computed."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.computed: list[float] = []
        self._began: tuple[float, float] | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = (time.perf_counter(), time.thread_time())

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        # The step that has put the timer there is not timed.
        if self._began is not None:
            self.wall.append(time.perf_counter() - self._began[0])
            self.computed.append(time.thread_time() - self._began[1])


async def loop_under_load(backend: Backend, programs: int) -> None:
    """Compile so many programs at once, launch a kernel all the while, and print what the loop's steps took."""
    async with atomr_trio.open_device(0, backend=backend) as dev:
        x = dev.zeros(32, np.int32)
        kernel = await dev.nvrtc.compile(ADD, "add", NvrtcOptions(defines={"N": 1}))
        await kernel.launch(1, 32, x)
        timer = StepTimer()
        launches: list[float] = []
        progress = Progress("compiling at once", programs, sys.stderr, unit="program")
        finished = 0

        async def compile_one(number: int) -> None:
            nonlocal finished
            await dev.nvrtc.compile(ADD, "add", NvrtcOptions(defines={"N": 1000 + number}))
            finished += 1
            progress.update(finished)

        trio.lowlevel.add_instrument(timer)
        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for number in range(programs):
                nursery.start_soon(compile_one, number)
            while finished < programs:
                before = time.perf_counter()
                await kernel.launch(1, 32, x)
                launches.append(time.perf_counter() - before)
        seconds = time.perf_counter() - started
        trio.lowlevel.remove_instrument(timer)
        progress.finish()
    print(f"\n{programs} programs at once: {seconds:.2f} s; {len(launches)} launches meanwhile, median")
    print(f"  {statistics.median(launches) * 1e6:.0f} us, longest {max(launches) * 1e3:.2f} ms")
    for what, values in (("by the clock", timer.wall), ("of computing", timer.computed)):
        ordered = sorted(values)
        print(
            f"  steps of the loop, {what}: median {statistics.median(ordered) * 1e6:.0f} us,"
            f" 99.9 % {ordered[int(len(ordered) * 0.999)] * 1e3:.2f} ms, longest {ordered[-1] * 1e3:.2f} ms"
        )


# ---------------------------------------------------------------------------------------------------- command line


async def native_target(backend: Backend) -> str:
    if backend == "sim":
        return ARCH_WITHOUT_GPU
    async with atomr_trio.open_device(0, backend=backend) as dev:
        major, minor = dev.info.capability
        return f"sm_{major}{minor}"


def table_of(rows: list[Row]) -> Table:
    """All that was measured, by row and who did it."""
    table = Table()
    for row in rows:
        measured = {
            cold_row(row.unit): (OURS, row.cold),
            f"{row.unit}, compiled, without types": (OURS, row.untyped),
            hot_row(row.unit): (OURS, row.hot_loaded),
            bare_row(row.unit): (RAW, row.bare),
        }
        table.measures += [Measure(what, who, seconds) for what, (who, seconds) in measured.items()]
    return table


def cold_row(unit: str) -> str:
    """From the request to the kernel, compiled."""
    return f"{unit}, compiled"


def hot_row(unit: str) -> str:
    """From the request to the kernel, from the disk cache."""
    return f"{unit}, from the disk cache"


def bare_row(unit: str) -> str:
    """The bare load of the image."""
    return f"{unit}, loaded by the driver"


def main() -> int:
    """The exit status: 1 if something that must hold was missed and `--strict` asks for that."""
    parser = conclusion.options(__doc__)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--measure", nargs=4, metavar=("PHASE", "UNIT", "TARGET", "IMAGE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        phase, unit, target, image = arguments.measure
        print(json.dumps(measure(phase, unit, target, arguments.backend, Path(image))), flush=True)
        sys.stdin.read()  # its end might disturb another that measures
        return 0
    target = trio.run(native_target, arguments.backend)
    compilations = conclusion.fewer(arguments.repetitions, arguments.share, least=1)
    loads = conclusion.fewer(arguments.repetitions, arguments.share, least=LOADS)
    rows = list(cold_and_hot(arguments.backend, target, compilations, loads))
    show(rows, arguments.backend)
    os.environ["ATOMR_TRIO_CACHE_DIR"] = ""
    trio.run(loop_under_load, arguments.backend, conclusion.fewer(PROGRAMS, arguments.share, FEWEST_PROGRAMS))
    table = table_of(rows)
    judged = targets.of_cached_kernels((hot_row(row.unit), bare_row(row.unit)) for row in rows)
    title = f"From a source to a kernel, medians of {loads} fresh processes, {compilations} of what was compiled"
    return conclusion.conclude(arguments, "nvrtc", title, table, targets.judged(table, judged, arguments.backend))


if __name__ == "__main__":
    sys.exit(main())
