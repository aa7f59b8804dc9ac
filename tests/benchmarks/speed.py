"""What calls cost, beside what a program would use instead: `make bench`.

One run measures atomr_trio, cuda.core, CuPy, PyTorch, numba-cuda, the bare calls of the driver through ctypes and from
native code: launches, graphs, calls of the libraries, fills, copies on the device, slices, allocation, copies from and
to the host, imports, and the way from the start of a process to a first result. The subjects take turns, as `turns`
says; `speed_works` says in which ways each work is done. Every figure is the median of several repetitions, printed
between the fastest and the 90th percentile. At the end stands what must hold, held or missed: `targets` has all of it.

The figures belong to this machine; only ratios within one run carry over to others. On the simulator nothing but that
it works is shown.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import conclusion
import targets
from speed_report import (
    CORE,
    CUPY,
    IDLE_ROW,
    IMPORT_ROW,
    NATIVE,
    NUMBA,
    OURS,
    RAW,
    START_ROW,
    TORCH,
    Absent,
    Measure,
    Table,
    comparisons,
)
from speed_works import BURSTS_OF, IMPORTED_ANYWAY, P99_FROM, PLANS, WHOLE, Plan, p99
from targets import Target
from turns import Gone, Subject, all_started, take_in, tell, ways

SUBJECTS = Path(__file__).with_name("speed_subjects.py")
BURSTS_ROW = f"{BURSTS_OF}, {WHOLE}, p99"
PRESENT = {"cuda": (OURS, RAW, NATIVE, CORE, CUPY, TORCH, NUMBA), "sim": (OURS, RAW)}
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
    IMPORTED_ANYWAY: "import trio, numpy",
    OURS: "import atomr_trio; atomr_trio.open_device, atomr_trio.DeviceArray",
    CORE: "import cuda.core",
    CUPY: "import cupy",
    TORCH: "import torch",
    NUMBA: "import numba.cuda",
}
NEEDS_NO_GPU = ("python alone", IMPORTED_ANYWAY, OURS)
"""What is imported on the simulator too, and what imports are judged by."""
JUDGED_IMPORTS = 7
"""So many processes for these imports at least: of two, one was late by a quarter of its time."""


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


def processes(
    what: str, programs: Mapping[str, tuple[str, ...]], repetitions: int, uncounted: int = 1
) -> Iterator[Measure | Absent]:
    """Run each program so many times, in turns; the first run, which fills caches, does not count."""
    seconds: dict[str, list[float]] = {who: [] for who in programs}
    for _ in range(uncounted + repetitions):
        for who in [*seconds]:
            try:
                seconds[who].append(timed_process(*programs[who]))
            except (ChildProcessError, subprocess.TimeoutExpired) as failed:
                del seconds[who]
                yield Absent(what, who, f"not available: {failed}")
    for who, found in seconds.items():
        yield Measure(what, who, found[uncounted:])


def works(backend: str, present: Sequence[str], plan: Plan, chosen: Callable[[str], bool], table: Table) -> None:
    """Measure each work that is chosen by its name, by several processes of each subject, and print them all."""
    begun = time.monotonic()
    values: dict[tuple[str, str], list[float]] = {}
    shares: dict[str, list[float]] = {}
    bursts: dict[str, list[float]] = {}
    needed = any(chosen(name) for name in (IDLE_ROW, *(work.name for work in plan.works)))
    for number in range(plan.rounds if needed else 0):
        with all_started(SUBJECTS, backend, present) as subjects:
            for work, measures, absent in ways(subjects, plan.works, plan, chosen):
                for measure in measures:
                    values.setdefault((measure.what, measure.who), []).extend(measure.values)
                table.absent += [each for each in absent if each not in table.absent]
                if work.name == BURSTS_OF:
                    having = [each.who for each in measures if each.what == work.row(WHOLE)]
                    asked = [subject for subject in subjects if subject.who in having]
                    gather(bursts, burst_by_burst(asked, plan, table))
                tell(f"[round {number + 1} of {plan.rounds}, {time.monotonic() - begun:.0f} s] {work.name}")
            if chosen(IDLE_ROW):
                gather(shares, idling(subjects, plan, table))
    take_in(table, [Measure(what, who, each) for (what, who), each in values.items()])
    enough = {who: found for who, found in bursts.items() if len(found) >= P99_FROM}
    take_in(table, [Measure(BURSTS_ROW, who, [p99(found)]) for who, found in enough.items()])
    take_in(table, [Measure(IDLE_ROW, who, found, "share") for who, found in shares.items()])


def gather(all_found: dict[str, list[float]], found: Mapping[str, list[float]]) -> None:
    """Add what one round has found to what the others have, by subject."""
    for who, values in found.items():
        all_found.setdefault(who, []).extend(values)


def burst_by_burst(subjects: list[Subject], plan: Plan, table: Table) -> dict[str, list[float]]:
    """The seconds of one call, end to end, of each of many bursts of the work that is ready; a turn each."""
    found: dict[str, list[float]] = {}
    for subject in subjects:
        try:
            subject.ask(f"bursts {plan.bursts}")
            found[subject.who] = subject.answer()
        except Gone as gone:
            table.absent.append(Absent(BURSTS_ROW, subject.who, gone.reason))
    return found


def idling(subjects: list[Subject], plan: Plan, table: Table) -> dict[str, list[float]]:
    """The CPU use of an idle device, a share of one CPU, and that of a process with a context: its driver's threads."""
    found: dict[str, list[float]] = {}
    for subject in subjects:
        if subject.who in (OURS, RAW):
            try:
                for _ in range(plan.repetitions):
                    subject.ask(f"idle {int(1e3 * plan.idle_seconds)}")
                    found.setdefault(subject.who, []).append(subject.answer())
            except Gone as gone:
                table.absent.append(Absent(IDLE_ROW, subject.who, gone.reason))
    return found


def starts(backend: str, plan: Plan, chosen: Callable[[str], bool], table: Table) -> None:
    """Measure imports and first results, each in a fresh process, as far as they are chosen."""
    on_gpu = backend == "cuda"
    imports, others = (
        {who: (code,) for who, code in IMPORTS.items() if (who in NEEDS_NO_GPU) is needs_none}
        for needs_none in (True, False)
    )
    results = {
        who: (PROLOGUE + code, SOURCE, backend) for who, code in FIRST_RESULTS.items() if on_gpu or who in NEEDS_NO_GPU
    }
    parts = [(IMPORT_ROW, imports, max(plan.processes, JUDGED_IMPORTS) if on_gpu else plan.processes)]
    if on_gpu:
        parts.append((IMPORT_ROW, others, plan.processes))
    for row, programs, count in (*parts, (START_ROW, results, plan.processes)):
        if not chosen(row):
            continue
        tell(f"{row}, each in a fresh process")
        for each in processes(row, programs, count, plan.uncounted):
            if isinstance(each, Measure):
                take_in(table, [each])
            else:
                table.absent.append(each)


def work_of(row: str) -> str:
    """The name of the work whose row it is; that of the row itself, if it belongs to none."""
    return row.rpartition(", ")[0] or row


def chosen_by(arguments: argparse.Namespace, judged: Sequence[Target]) -> Callable[[str], bool]:
    """Whether a work is done, or a row that belongs to none: by a pattern, or for single rows and their limits."""
    if not arguments.rows:
        pattern = re.compile(arguments.only)
        return lambda name: bool(pattern.search(name))
    rows = {*arguments.rows}
    names = {work_of(each) for target in judged if target.row in rows for each in (target.row, target.other_row)}
    return lambda name: name in names


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if something that must hold was missed and `--strict` asks for that."""
    backend, plan, table = arguments.backend, PLANS[arguments.backend], Table()
    plan = attrs.evolve(
        plan,
        rounds=conclusion.fewer(arguments.rounds or plan.rounds, arguments.share, least=1),
        processes=conclusion.fewer(plan.processes, arguments.share, least=2),
    )
    present = [who for who in PRESENT[backend] if arguments.who is None or who in arguments.who]
    judged = targets.of_speed(plan.works)
    chosen = chosen_by(arguments, judged)
    works(backend, present, plan, chosen, table)
    starts(backend, plan, chosen, table)
    judged = [target for target in judged if chosen(work_of(target.row))]
    print("\nratios of the medians to atomr_trio:", *comparisons(table), sep="\n")
    title = f"What calls cost, medians of {plan.rounds} processes, and ratios to atomr_trio"
    return conclusion.conclude(arguments, "speed", title, table, targets.judged(table, judged, backend))


if __name__ == "__main__":
    parser = conclusion.with_rows(conclusion.options(__doc__))
    parser.add_argument("--rounds", type=int, help="processes of each subject; 4 on a GPU, 1 on the simulator")
    parser.add_argument("--only", default="", help="works with this pattern in their names")
    parser.add_argument("--who", nargs="+", help="these subjects; all by default")
    sys.exit(main(parser.parse_args()))
