"""What calls cost, beside what a program would use instead: `make bench`.

One run measures atomr_trio, cuda.core, CuPy, PyTorch, numba-cuda and the bare calls of the driver through ctypes: what
a launch costs the caller and until it is done, graphs, awaited launches alone and from many tasks, copies of every
size, allocation, imports, and the way from the start of a process to a first result. Each of them runs in a process of
its own, one after the other, each warmed up before it is timed. Every figure is the median of several repetitions,
printed between the fastest and the 90th percentile. At the end stands what must hold, held or missed.

The figures belong to this machine; only ratios within one run carry over to others. On the simulator nothing but that
it works is shown.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
from speed_report import (
    CORE,
    CUPY,
    FULL,
    HEADER,
    IMPORT_ROW,
    NUMBA,
    OURS,
    RAW,
    START_ROW,
    TINY,
    TORCH,
    Absent,
    Measure,
    Plan,
    Table,
    comparisons,
    judged,
    line,
    picture,
    ratios,
    unjudged,
)

SUBJECTS = Path(__file__).with_name("speed_subjects.py")
DEADLINE = 300.0
"""Seconds that one subject may take."""

SOURCE = r"""
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
PROLOGUE = """
import sys, time
import numpy as np
SOURCE, backend = sys.argv[1:]
ones = np.ones(1000, np.float32)
def show(result):
    assert (result == 3).all()
    print("result", time.monotonic(), flush=True)
"""
FIRST_RESULTS = {
    OURS: """
import trio, atomr_trio
async def main():
    async with atomr_trio.open_device(0, backend=backend) as dev:
        saxpy = await dev.nvrtc.compile(SOURCE, "saxpy")
        x, y = await dev.to_device(ones), await dev.to_device(ones)
        await saxpy.launch(4, 256, 2.0, x, y, 1000)
        show(await y.to_host())
trio.run(main)
""",
    CORE: """
import ctypes
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
from cuda.bindings import driver
device = Device(0); device.set_current(); stream = device.create_stream()
options = ProgramOptions(arch=f"sm_{device.arch}")
saxpy = Program(SOURCE, "c++", options=options).compile("cubin").get_kernel("saxpy")
x, y = (device.allocate(4000, stream=stream) for _ in range(2))
stream.sync()
for each in (x, y):
    driver.cuMemcpyHtoD(int(each.handle), ones.ctypes.data, 4000)
launch(stream, LaunchConfig(grid=4, block=256), saxpy, np.float32(2), x, y, np.int32(1000))
stream.sync()
result = np.empty(1000, np.float32)
driver.cuMemcpyDtoH(result.ctypes.data, int(y.handle), 4000)
show(result)
""",
    CUPY: """
import cupy
saxpy = cupy.RawKernel(SOURCE, "saxpy")
x, y = cupy.asarray(ones), cupy.asarray(ones)
saxpy((4,), (256,), (np.float32(2), x, y, np.int32(1000)))
show(y.get())
""",
    TORCH: """
import torch
x, y = torch.from_numpy(ones).cuda(), torch.from_numpy(ones).cuda()
show(y.add_(x, alpha=2).cpu().numpy())
""",
    NUMBA: """
from numba import cuda
@cuda.jit
def saxpy(a, x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = a * x[i] + y[i]
x, y = cuda.to_device(ones), cuda.to_device(ones)
saxpy[4, 256](np.float32(2), x, y, np.int32(1000))
show(y.copy_to_host())
""",
}
"""Programs that compile a kernel, or fetch it from their cache, run it on data of theirs and look at the result."""

IMPORTS = {
    "python alone": "pass",
    "trio and numpy": "import trio, numpy",
    OURS: "import atomr_trio; atomr_trio.open_device, atomr_trio.DeviceArray",
    CORE: "import cuda.core",
    CUPY: "import cupy",
    TORCH: "import torch",
    NUMBA: "import numba.cuda",
}
NEEDS_NO_GPU = ("python alone", "trio and numpy", OURS)
"""What is imported on the simulator too."""


def timed_process(code: str, *arguments: str) -> float:
    """Seconds from the start of a fresh interpreter to what it calls its result, or else to its end.

    Raises `ChildProcessError` if it fails.
    """
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    ended = time.monotonic()
    if done.returncode:
        raise ChildProcessError(_last_line(done.stderr))
    told = [text.split()[1] for text in done.stdout.splitlines() if text.startswith("result ")]
    return float(told[0]) - begun if told else ended - begun


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def processes(what: str, programs: Mapping[str, tuple[str, ...]], repetitions: int) -> Iterator[Measure | Absent]:
    """Run each program so many times; the first run, which fills caches, does not count."""
    for who, program in programs.items():
        try:
            timed_process(*program)
            yield Measure(what, who, [timed_process(*program) for _ in range(repetitions)])
        except (ChildProcessError, subprocess.TimeoutExpired) as failed:
            yield Absent(what, who, f"not available: {failed}")


def subject(who: str, backend: str, plan: Plan, facts: dict[str, Any]) -> Iterator[Measure | Absent]:
    """Measure one of them in a process of its own, and pass on what it tells as it comes."""
    command = [sys.executable, str(SUBJECTS), who, backend, json.dumps(attrs.asdict(plan))]
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        alarm = threading.Timer(DEADLINE, child.kill)
        alarm.start()
        try:
            for told in child.stdout or ():
                kind, _, content = told.partition(" ")
                if kind == "measure":
                    yield Measure(**json.loads(content))
                elif kind == "absent":
                    yield Absent(**json.loads(content))
                elif kind == "facts":
                    facts.update(json.loads(content))
            status = child.wait()
        finally:
            alarm.cancel()
            child.kill()
            child.wait()
        if status:
            errors.seek(0)
            yield Absent("the rest", who, f"its process ended with {status}: {_last_line(errors.read())}")


def everything(backend: str, plan: Plan, facts: dict[str, Any]) -> Iterator[tuple[str, Iterator[Measure | Absent]]]:
    """All there is to measure, in a fixed order: a title, and what measures once it is iterated."""
    on_gpu = backend == "cuda"
    for who in (OURS, RAW, CORE, CUPY, TORCH, NUMBA) if on_gpu else (OURS, RAW):
        yield who, subject(who, backend, plan, facts)
    imports = {who: (code,) for who, code in IMPORTS.items() if on_gpu or who in NEEDS_NO_GPU}
    yield "imports, each in a fresh process", processes(IMPORT_ROW, imports, plan.repetitions)
    results = {
        who: (PROLOGUE + code, SOURCE, backend) for who, code in FIRST_RESULTS.items() if on_gpu or who in NEEDS_NO_GPU
    }
    yield "first results, each in a fresh process", processes(START_ROW, results, plan.repetitions)


def measured(backend: str, plan: Plan, facts: dict[str, Any]) -> Table:
    """Measure everything, and print it as it comes."""
    table = Table()
    parts = list(everything(backend, plan, facts))
    begun = time.monotonic()
    for number, (title, found) in enumerate(parts, 1):
        print(f"\n[{number}/{len(parts)}, {time.monotonic() - begun:.0f} s] {title}\n{HEADER}", flush=True)
        for each in found:
            if isinstance(each, Measure):
                table.measures.append(each)
                print(line(each), flush=True)
            else:
                table.absent.append(each)
                print(f"  {each.what:44}  {each.who}: {each.reason}", flush=True)
    return table


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if something that must hold was missed and `--strict` asks for that."""
    plan = FULL if arguments.backend == "cuda" else TINY
    if arguments.repetitions is not None:
        plan = attrs.evolve(plan, repetitions=arguments.repetitions)
    facts = {"backend": arguments.backend, "device": "unknown", "python": platform.python_version()}
    table = measured(arguments.backend, plan, facts)
    verdicts = list(judged(table) if arguments.backend == "cuda" else unjudged("only a GPU can tell"))
    print("\nratios of the medians to the best of atomr_trio:", *comparisons(table), sep="\n")
    print("\nwhat must hold, by medians of this run:", *verdicts, sep="\n")
    if arguments.json is not None:
        everything_told = {
            **facts,
            "plan": attrs.asdict(plan),
            "measurements": [measure.facts() for measure in table.measures],
            "absent": [attrs.asdict(each) for each in table.absent],
            "ratios": {what: ratios(measures) for what, measures in table.rows().items()},
            "must_hold": [verdict.facts() for verdict in verdicts],
        }
        arguments.json.write_text(json.dumps(everything_told, indent=1) + "\n", encoding="utf-8")
    if arguments.svg is not None:
        title = f"{facts['device']}, Python {facts['python']}: medians, and ratios to the best of atomr_trio"
        arguments.svg.write_text("\n".join(picture(table, title, verdicts)) + "\n", encoding="utf-8")
    return int(arguments.strict and any(verdict.held is False for verdict in verdicts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--repetitions", type=int, help="of each measurement; 7 on a GPU, 2 on the simulator")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--svg", type=Path, help="where to draw them")
    parser.add_argument("--strict", action="store_true", help="fail if something that must hold was missed")
    sys.exit(main(parser.parse_args()))
