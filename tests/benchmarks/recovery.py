"""What a GPU fault costs: `make bench-recovery`.

One program with arrays of several GiB loses its GPU again and again, by a kernel that writes through a wild pointer.
Measured is the time from the arrival of the driver's report to the result of the next awaited launch on an array that
the fault did not touch, with a standby worker and without; how long the event loop was held up at most meanwhile; and,
in the same run, what a program pays for the same fault that uses the driver by ctypes, CuPy or PyTorch: its process is
lost with all its data, so another one is started, imports, makes a context and runs one kernel. With a standby the same
is measured for other amounts of memory and of modules, and for calls of libraries that the program had made before.
Last, what `open_device` takes up to a first result, beside the start of a process that uses the driver by ctypes.

At the end each figure stands beside what it must hold, held or missed; the exit status is 1 if one is missed.
The figures belong to this machine; only ratios within one run carry over to others.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import attrs
import conclusion
import numpy as np
import targets
import trio
from speed_report import CUPY, OURS, RAW, TORCH, Absent, Measure, Table, Verdict

import atomr_trio
from atomr_trio._cli.progress import Progress
from atomr_trio._device.device import core_of

Backend = Literal["cuda", "sim"]

SOURCE = r"""
extern "C" __global__ void wild(unsigned long long where) { *(volatile int *)where = 1; }
extern "C" __global__ void touch(int *x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += 1;
}
"""
WILD_ADDRESS = 0x10
COUNT = 1000
GIB = 1 << 30
DEADLINE = 60
STANDBY_ROW, START_ROW, ANEW_ROW = (
    f"from the report of a fault to the next result, {how}" for how in ("one standby", "no standby", "a new process")
)
OPENED_ROW, PROCESS_ROW = "open_device and a first result", "the start of a process and a first result"
FEW_FAULTS = 4
"""Faults of each further measurement."""
LOADS = ((0.1, 1), (0.1, 50), (10.0, 1), (10.0, 50), (100.0, 1), (100.0, 50))
"""GiB of arrays and modules that are held while a standby takes over, as far as the GPU and ``--gib-most`` allow."""
OPENINGS = 5

WITH_CUPY = f"""
import os, time, cupy
module = cupy.RawModule(code={SOURCE!r})
touch, wild = module.get_function("touch"), module.get_function("wild")
x = cupy.zeros({COUNT}, cupy.int32)
touch((8,), (128,), (x, {COUNT}))
cupy.cuda.runtime.deviceSynchronize()
print("result", time.monotonic(), flush=True)
try:
    wild((1,), (1,), ({WILD_ADDRESS},))
    cupy.cuda.runtime.deviceSynchronize()
except cupy.cuda.runtime.CUDARuntimeError:
    print("fault", time.monotonic(), flush=True)
os._exit(0)
"""
WITH_TORCH = f"""
import os, time, torch
x = torch.zeros({COUNT}, dtype=torch.int32, device="cuda")
x += 1
torch.cuda.synchronize()
print("result", time.monotonic(), flush=True)
try:
    x[torch.tensor([{COUNT}], device="cuda")]
    torch.cuda.synchronize()
except RuntimeError:
    print("fault", time.monotonic(), flush=True)
os._exit(0)
"""
BARE = f"""
import os, time
from ctypes import POINTER, addressof, byref, c_int, c_uint64, c_void_p, cast
from atomr_cuda import CudaError, driver
driver.cuInit(0)
context, module, touch, wild = driver.CUcontext(), driver.CUmodule(), driver.CUfunction(), driver.CUfunction()
driver.cuDevicePrimaryCtxRetain(byref(context), 0)
driver.cuCtxSetCurrent(context)
driver.cuModuleLoadData(byref(module), open(os.environ["IMAGE"], "rb").read())
driver.cuModuleGetFunction(byref(touch), module, b"touch")
driver.cuModuleGetFunction(byref(wild), module, b"wild")
x, n, where = driver.CUdeviceptr(), c_int({COUNT}), c_uint64({WILD_ADDRESS})
driver.cuMemAlloc(byref(x), 4 * {COUNT})
driver.cuMemsetD32(x, 0, {COUNT})

def launch(function, blocks, threads, *parameters):
    places = (c_void_p * len(parameters))(*map(addressof, parameters))
    driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, None, places, None)
    driver.cuCtxSynchronize()

launch(touch, 8, 128, x, n)
print("result", time.monotonic(), flush=True)
try:
    launch(wild, 1, 1, where)
except CudaError:
    print("fault", time.monotonic(), flush=True)
os._exit(0)
"""
"""The least that a process of its own can do."""
SUBJECTS = {"atomr_cuda": RAW, "cupy": CUPY, "torch": TORCH}
PEERS = {"atomr_cuda": ("the driver by ctypes", BARE), "cupy": ("CuPy", WITH_CUPY), "torch": ("PyTorch", WITH_TORCH)}
"""By the module that must be there: the name, and a program that tells of its first result and of its fault."""


class Moments(logging.Handler):
    """When the supervision said what, on the monotonic clock."""

    def __init__(self) -> None:
        super().__init__()
        self.lost_at = math.nan

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(getattr(record, "in_flight", None), tuple):
            self.lost_at = time.monotonic()


class LongestStep(trio.abc.Instrument):
    """The longest that any task held the event loop without giving it back, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._begun = math.nan

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begun = time.monotonic()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.seconds = max(self.seconds, time.monotonic() - self._begun)


@contextmanager
def listening() -> Iterator[Moments]:
    """Hear the supervision's log, and keep it off the terminal."""
    moments, logger = Moments(), logging.getLogger("atomr_trio.supervision")
    logger.addHandler(moments)
    previous, logger.propagate = logger.propagate, False
    try:
        yield moments
    finally:
        logger.propagate = previous
        logger.removeHandler(moments)


@attrs.frozen
class Recovery:
    """One way to recover: seconds from the report of each fault to the next result, and the longest hold-up of each."""

    name: str
    seconds: list[float]
    held_up: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


async def until_warm(dev: atomr_trio.Device) -> None:
    """Wait until every standby has done what it does ahead of time."""
    await dev.wait_standby()
    for standby in core_of(dev).standbys.generations:
        await standby.settler.wait_idle()


def hold(dev: atomr_trio.Device, nbytes: int) -> list[atomr_trio.DeviceArray]:
    """Arrays of so many bytes together, all of them 7."""
    return [dev.full(min(GIB, nbytes), 7, np.uint8) for _ in range(0, nbytes, GIB)]


def more_modules(count: int) -> list[str]:
    """So many sources, each of one kernel that does the same as `touch`."""
    touch = SOURCE[SOURCE.index('extern "C" __global__ void touch') :]
    return [touch.replace("touch", f"touch_{number}") for number in range(count)]


async def recoveries(backend: Backend, standby: int, faults: int, held_bytes: int, modules: int = 1) -> Recovery:
    """Lose the device `faults` times. The launch behind each is of the next of `modules` modules."""
    name = f"atomr_trio, {'one standby' if standby else 'no standby'}"
    if modules > 1:
        name = f"{name}, {modules} modules"
    result = Recovery(name, [], [])
    policy = atomr_trio.RestartPolicy(intensity=math.inf)
    with listening() as moments:
        async with atomr_trio.open_device(0, backend=backend, standby=standby, restart_policy=policy) as dev:
            wild, touch = [await dev.nvrtc.compile(SOURCE, kernel) for kernel in ("wild", "touch")]
            others = [await dev.nvrtc.compile(text, f"touch_{n}") for n, text in enumerate(more_modules(modules - 1))]
            x = dev.zeros(COUNT, np.int32)
            for each in others:
                await each.launch(8, 128, x, COUNT)
            ballast = hold(dev, held_bytes)
            for array in ballast:
                await touch.launch(8, 128, x, COUNT, touches=[array])
            progress = Progress(f"{name}, {dev.statistics().memory.reserved / GIB:.1f} GiB mapped", faults)
            for number in range(faults):
                await until_warm(dev)
                kernel = others[number % len(others)] if others else touch
                instrument = LongestStep()
                trio.lowlevel.add_instrument(instrument)
                generation = dev.generation
                try:
                    await wild.launch(1, 1, WILD_ADDRESS)
                except atomr_trio.ContextLost:
                    await dev.wait_generation(after=generation)
                    await kernel.launch(8, 128, x, COUNT)
                    result.seconds.append(time.monotonic() - moments.lost_at)
                trio.lowlevel.remove_instrument(instrument)
                result.held_up.append(instrument.seconds)
                progress.update(number + 1)
            progress.finish()
            await check(x, len(others) + len(ballast) + faults)
            for array in ballast:
                await check(array[-COUNT:], 7)
    return result


Calls = dict[str, Callable[[], Awaitable[object]]]
"""Awaitable calls, by name."""


async def calls_of_libraries(dev: atomr_trio.Device) -> Calls:
    """Calls of each library that the device has, small ones: what they take is what their start takes."""
    random = np.random.default_rng(1)

    async def given(*shape: int) -> atomr_trio.DeviceArray:
        return await dev.to_device(random.random(shape, np.float32))

    a, out, v, w = await given(256, 256), dev.zeros((256, 256), np.float32), await given(4096), await given(4096)
    half = random.random((64, 64), np.float32)
    s = await dev.to_device(half @ half.T + np.eye(64, dtype=np.float32))
    b, z = await given(64, 1), await dev.to_device(np.ones(4096, np.complex64))
    return {
        "gemm, new result": lambda: dev.blas.gemm(a, a),
        "gemm, out": lambda: dev.blas.gemm(a, a, out=out),
        "axpy": lambda: dev.blas.axpy(v, w),
        "dot": lambda: dev.blas.dot(v, w),
        "matmul (cuBLASLt)": lambda: dev.blaslt.matmul(a, a),
        "fft of 4,096": lambda: dev.fft.fft(z),
        "rfft of 4,096": lambda: dev.fft.rfft(v),
        "normal": lambda: dev.random.normal(size=1000),
        "solve of 64": lambda: dev.solver.solve(s, b),
        "cholesky of 64": lambda: dev.solver.cholesky(s),
        "fill": lambda: v.fill(1.0),
        "copy to the host": lambda: w.to_host(),
    }


async def recovered_calls(
    backend: Backend, faults: int, held_bytes: int = 0, modules: int = 1
) -> dict[str, list[float]]:
    """Seconds from the report of a fault to the result of each call that was made before, with one standby.

    Meanwhile so much memory and so many modules are held.
    """
    policy = atomr_trio.RestartPolicy(intensity=math.inf)
    seconds: dict[str, list[float]] = {}
    with listening() as moments:
        async with atomr_trio.open_device(0, backend=backend, standby=1, restart_policy=policy) as dev:
            wild = await dev.nvrtc.compile(SOURCE, "wild")
            x, ballast = dev.zeros(COUNT, np.int32), hold(dev, held_bytes)
            others = [await dev.nvrtc.compile(text, f"touch_{n}") for n, text in enumerate(more_modules(modules - 1))]
            for other in others:
                await other.launch(8, 128, x, COUNT)
            calls = await calls_of_libraries(dev)
            for call in calls.values():
                await call()
            mapped = f"{dev.statistics().memory.reserved / GIB:.1f} GiB mapped, {modules} modules"
            progress = Progress(f"calls of libraries after a takeover, {mapped}", faults * len(calls))
            for number in range(faults):
                for place, (name, call) in enumerate(calls.items(), 1):
                    await until_warm(dev)
                    generation = dev.generation
                    try:
                        await wild.launch(1, 1, WILD_ADDRESS)
                    except atomr_trio.ContextLost:
                        await dev.wait_generation(after=generation)
                        await call()
                        seconds.setdefault(name, []).append(time.monotonic() - moments.lost_at)
                    progress.update(number * len(calls) + place)
            progress.finish()
            for array in ballast:
                await check(array[-COUNT:], 7)
    return seconds


async def openings(backend: Backend, count: int) -> list[float]:
    """Seconds from `open_device` to the result of a first launch of a kernel that is in the cache."""
    seconds = []
    for _ in range(count):
        begun = time.monotonic()
        async with atomr_trio.open_device(0, backend=backend) as dev:
            touch = await dev.nvrtc.compile(SOURCE, "touch")
            await touch.launch(8, 128, dev.zeros(COUNT, np.int32), COUNT)
            seconds.append(time.monotonic() - begun)
    return seconds


async def check(array: atomr_trio.DeviceArray, expected: int) -> None:
    """Figures of a run that has lost its data would be worth nothing."""
    if not (await array.to_host() == expected).all():
        raise SystemExit("the data did not survive")


async def image_of_kernels(backend: Backend, folder: Path) -> Path:
    """The kernels, compiled for this machine's device: whoever starts anew loads them and compiles nothing."""
    async with atomr_trio.open_device(0, backend=backend) as dev:
        kernel = await dev.nvrtc.compile(SOURCE, "touch")
    image = folder / "kernels.cubin"
    image.write_bytes(kernel.cubin or (kernel.ptx or "").encode() + b"\0")
    return image


class PeerTimes(NamedTuple):
    """What a program of a peer takes, in seconds."""

    restart: float
    """From the fault of one process to the first result of the next."""
    start: float
    """From the start of a process to its first result."""


def peer_times(module: str, image: Path) -> PeerTimes | None:
    """What a program of a peer takes; None where the peer is not installed."""
    if importlib.util.find_spec(module) is None:
        return None
    _, program = PEERS[module]
    times: list[dict[str, float]] = []
    for _ in range(2):
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "IMAGE": str(image)},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        lines = [line.split() for line in done.stdout.splitlines()]
        times.append({line[0]: float(line[1]) for line in lines if line[0] in ("result", "fault")})
        if times[-1].keys() != {"result", "fault"}:
            print(f"{module} did not run: {done.stderr.strip().splitlines()[-1:]}")
            return None
    return PeerTimes(times[1]["result"] - times[0]["fault"], times[1]["result"] - begun)


def picture(rows: list[tuple[str, float]]) -> Iterator[str]:
    """A bar for each row, on a logarithmic scale from 0.1 ms."""
    longest = max(seconds for _, seconds in rows)
    for name, seconds in rows:
        length = round(48 * math.log(seconds / 1e-4) / math.log(longest / 1e-4))
        yield f"{name:28} {'█' * max(length, 1):48} {seconds * 1e3:9.1f} ms"


def table_of(with_standby: Recovery, without: Recovery, anew: Mapping[str, float | None]) -> Table:
    """All that was measured: recoveries, how long the loop was held up at most, and what others take."""
    table = Table()
    for row, each in ((STANDBY_ROW, with_standby), (START_ROW, without)):
        table.measures.append(Measure(row, OURS, each.seconds))
        table.measures.append(Measure(held_up_row(each), OURS, each.held_up))
    for module, seconds in anew.items():
        who = SUBJECTS[module]
        if seconds is None:
            table.absent.append(Absent(ANEW_ROW, who, "did not run"))
        else:
            table.measures.append(Measure(ANEW_ROW, who, [seconds]))
    return table


def load_row(gib: float, modules: int) -> str:
    """A launch after a takeover, with so much held."""
    return f"{STANDBY_ROW}, {gib:g} GiB and {modules} modules"


def call_row(name: str) -> str:
    """A call of a library after a takeover."""
    return f"from the report of a fault to the result of {name}, one standby"


def held_up_row(recovery: Recovery) -> str:
    """The longest that the event loop was held up."""
    return f"the event loop held up, {recovery.name}"


def judged(with_standby: Recovery, without: Recovery, table: Table) -> list[Verdict]:
    """Each figure beside its target. Of the times that the loop was held up, the longest is judged."""
    rows = dict.fromkeys(measure.what for measure in table.measures if measure.who == OURS)
    further = [row for row in rows if row not in (STANDBY_ROW, START_ROW) and row.startswith("from the report")]
    longest = Table([Measure(held_up_row(each), OURS, [max(each.held_up)]) for each in (with_standby, without)])
    return [
        *targets.judged(table, targets.of_recovery(STANDBY_ROW, START_ROW, ANEW_ROW)),
        *targets.judged(table, targets.of_takeovers(further)),
        *targets.judged(table, [targets.opening(OPENED_ROW, PROCESS_ROW)] if OPENED_ROW in rows else []),
        *targets.judged(longest, [targets.held_up(measure.what) for measure in longest.measures]),
    ]


async def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if something that must hold was missed."""
    backend: Backend = arguments.backend
    held, faults = int(arguments.gib * GIB), conclusion.fewer(arguments.faults, arguments.share)
    ours = [await recoveries(backend, standby, faults, held) for standby in (1, 0)]
    rows = [(each.name, each.median) for each in ours]
    few, more = (min(FEW_FAULTS, faults) if backend == "cuda" else 1), Table()
    async with atomr_trio.open_device(0, backend=backend) as dev:
        room = min(arguments.gib_most, 0.9 * dev.info.free_memory / GIB - 1)  # a standby's context takes memory too
    for gib, modules in LOADS:
        if gib <= room:
            load = await recoveries(backend, 1, few, int(gib * GIB), modules)
            more.measures.append(Measure(load_row(gib, modules), OURS, load.seconds))
    loads = [load for load in LOADS if load[0] <= room] if arguments.loaded_calls else []
    for gib, modules in ((0.0, 1), *loads):
        for name, seconds_of in (await recovered_calls(backend, few, int(gib * GIB), modules)).items():
            held_too = f", {gib:g} GiB and {modules} modules" if gib else ""
            more.measures.append(Measure(f"{call_row(name)}{held_too}", OURS, seconds_of))
    more.measures.append(Measure(OPENED_ROW, OURS, await openings(backend, min(OPENINGS, faults))))
    anew: dict[str, float | None] = {}
    if backend == "cuda":
        with tempfile.TemporaryDirectory() as folder:
            image = await image_of_kernels(backend, Path(folder))
            for module, (name, _) in PEERS.items():
                times = await trio.to_thread.run_sync(peer_times, module, image)
                anew[module] = seconds = None if times is None else times.restart
                if times is not None:
                    more.measures.append(Measure(PROCESS_ROW, SUBJECTS[module], [times.start]))
                print(f"{name}: " + ("not installed" if seconds is None else f"{seconds:.2f} s, and its data is gone"))
                if seconds is not None:
                    rows.append((f"{name}, a new process", seconds))
    print(f"\nfrom the report of the fault to the next result, median of {faults} (logarithmic):")
    print("\n".join(picture(rows)))
    for each in ours:
        low, high = min(each.seconds) * 1e3, max(each.seconds) * 1e3
        held_up = max(each.held_up) * 1e3
        print(f"{each.name}: {low:.2f} to {high:.2f} ms; the event loop was held up for {held_up:.2f} ms at most")
    for measure in more.measures:
        low, middle, high = (f(measure.values) * 1e3 for f in (min, statistics.median, max))
        print(f"{measure.what} ({measure.who}): {middle:.2f} ms ({low:.2f} to {high:.2f})")
    table = table_of(*ours, anew)
    table.measures += more.measures
    title = f"A fault and the next result, {faults} times, {arguments.gib:g} GiB held"
    verdicts = judged(*ours, table) if backend == "cuda" else []
    conclusion.conclude(arguments, "recovery", title, table, verdicts)
    return int(any(verdict.held is False for verdict in verdicts))


if __name__ == "__main__":
    parser = conclusion.options(__doc__)
    parser.add_argument("--faults", type=int, default=20, help="faults of each way to recover")
    parser.add_argument("--gib", type=float, default=8.0, help="GiB of arrays that must survive")
    parser.add_argument("--gib-most", type=float, default=100.0, help="GiB of the largest further measurement")
    parser.add_argument("--loaded-calls", action="store_true", help="calls of libraries with as much held as launches")
    sys.exit(trio.run(main, parser.parse_args()))
