"""Where a start's milliseconds go: `make bench-start`, and `start.py FIGURES.json PICTURE.svg` draws it.

Three starts are taken apart: `open_device`, the rebuild after a fault without a standby, and a process of its own that
does the least with the driver through ctypes. Both sides of a start note the ends of their steps (``begin.py``,
``adoption.py``); here they are put on one clock, and each step gets the median of several starts.

What the driver does, and the start of Python, cannot be shortened from here: they can only be done at the same time as
something else. The picture marks them. The figures belong to this machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import numpy as np
import recovery
import trio

import atomr_trio
from atomr_trio._device.device import core_of

Backend = Literal["cuda", "sim"]
Moments = dict[str, float]
"""Seconds since the start was asked for, by the name of the step that ended then."""

OPENED, REBUILT, BARE = "open_device", "rebuild without a standby", "a process that uses ctypes"
PROGRAM = """
import time
begun = time.monotonic()
import os, sys
from ctypes import POINTER, addressof, byref, c_int, c_void_p
from atomr_cuda import driver
moments = {"begun": begun}
def note(name):
    moments[name] = time.monotonic()
note("imported")
driver.library.load()
note("driver loaded")
driver.cuInit(0)
note("driver initialised")
context, module, touch = driver.CUcontext(), driver.CUmodule(), driver.CUfunction()
driver.cuDevicePrimaryCtxRetain(byref(context), 0)
driver.cuCtxSetCurrent(context)
note("context made")
driver.cuModuleLoadData(byref(module), open(os.environ["IMAGE"], "rb").read())
driver.cuModuleGetFunction(byref(touch), module, b"touch")
x, n = driver.CUdeviceptr(), c_int(1000)
driver.cuMemAlloc(byref(x), 4000)
driver.cuMemsetD32(x, 0, 1000)
places = (c_void_p * 2)(addressof(x), addressof(n))
driver.cuLaunchKernel(touch, 8, 1, 1, 128, 1, 1, 0, None, places, None)
driver.cuCtxSynchronize()
note("result")
print(*(f"{name}={moment}" for name, moment in moments.items()), sep="\\n", flush=True)
os._exit(0)
"""


@attrs.frozen
class Span:
    """A step: who does it, from the end of which step to the end of which, and what it is."""

    line: str
    begins: str
    ends: str
    text: str
    fixed: bool = False
    """True if it cannot be shortened from here."""


MAIN, THREAD, LOST = "worker, main thread", "worker, driver's thread", "the worker that was lost"
WORKER: Final = (
    Span(MAIN, "asked for", "begun", "Python starts", fixed=True),
    Span(MAIN, "begun", "imported", "imports: the site, the worker"),
    Span(MAIN, "imported", "engines imported", "imports: engines, tables"),
    Span(THREAD, "begun", "driver loaded", "load the driver", fixed=True),
    Span(THREAD, "driver loaded", "driver initialised", "initialise it", fixed=True),
    Span(THREAD, "driver initialised", "context made", "make the context", fixed=True),
    Span(MAIN, "adopted", "host memory registered", "register host memory"),
    Span(MAIN, "host memory registered", "ready read", "lanes, engines, memory, self-test"),
    Span(MAIN, "ready read", "result", "first launch"),
)
"""Of a worker. On the simulator no thread makes the context."""
SPANS: Final[Mapping[str, tuple[Span, ...]]] = {
    OPENED: WORKER,
    REBUILT: (Span(LOST, "lost", "reaped", "the system takes it apart", fixed=True), *WORKER),
    BARE: (
        Span("its only thread", "asked for", "begun", "Python starts, with its site", fixed=True),
        Span("its only thread", "begun", "imported", "import the table"),
        Span("its only thread", "imported", "driver loaded", "load the driver", fixed=True),
        Span("its only thread", "driver loaded", "driver initialised", "initialise it", fixed=True),
        Span("its only thread", "driver initialised", "context made", "make the context", fixed=True),
        Span("its only thread", "context made", "result", "module, memory, launch"),
    ),
}


def since(moments: Mapping[str, float], begin: float) -> Moments:
    """The moments in seconds since one of them."""
    return {name: moment - begin for name, moment in moments.items()}


def medians(starts: Sequence[Moments]) -> Moments:
    """The median of each moment that all starts have."""
    common = [name for name in starts[0] if all(name in start for start in starts)]
    return {name: statistics.median(start[name] for start in starts) for name in common}


async def openings(backend: Backend, count: int) -> list[Moments]:
    """The moments of openings of a device, up to a first result."""
    starts = []
    for _ in range(count):
        async with atomr_trio.open_device(0, backend=backend) as dev:
            touch = await dev.nvrtc.compile(recovery.SOURCE, "touch")
            await touch.launch(8, 128, dev.zeros(1000, np.int32), 1000)
            moments = {**core_of(dev).current.process.moments, "result": time.monotonic()}  # type: ignore[union-attr]
        starts.append(since(moments, moments["asked for"]))
    return starts


async def rebuilds(backend: Backend, count: int) -> list[Moments]:
    """The moments of rebuilds after a fault, from its report to the next result."""
    starts = []
    policy = atomr_trio.RestartPolicy(intensity=math.inf)
    with recovery.listening() as heard:
        async with atomr_trio.open_device(0, backend=backend, restart_policy=policy) as dev, dev.events() as events:
            wild, touch = [await dev.nvrtc.compile(recovery.SOURCE, name) for name in ("wild", "touch")]
            x = dev.zeros(1000, np.int32)
            await touch.launch(8, 128, x, 1000)
            for _ in range(count):
                generation = dev.generation
                try:
                    await wild.launch(1, 1, recovery.WILD_ADDRESS)
                except atomr_trio.ContextLost:
                    await dev.wait_generation(after=generation)
                    await touch.launch(8, 128, x, 1000)
                    result = time.monotonic()
                reaped = math.nan
                while math.isnan(reaped):
                    event = await anext(events)
                    reaped = event.seconds if isinstance(event, atomr_trio.WorkerReaped) else math.nan
                own = core_of(dev).current.process.moments  # type: ignore[union-attr]
                moments = {"lost": heard.lost_at, "reaped": heard.lost_at + reaped, **own, "result": result}
                starts.append(since(moments, heard.lost_at))
    return starts


def processes(count: int, image: Path) -> list[Moments]:
    """The moments of processes that use the driver by ctypes."""
    starts = []
    for _ in range(count):
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "IMAGE": str(image)},
            capture_output=True,
            text=True,
            timeout=recovery.DEADLINE,
            check=True,
        )
        told = dict(line.split("=") for line in done.stdout.splitlines())
        starts.append(since({"asked for": begun, **{name: float(moment) for name, moment in told.items()}}, begun))
    return starts


def table(figures: Mapping[str, Moments]) -> list[str]:
    """A line for each step of each start."""
    lines = []
    for start, moments in figures.items():
        lines.append(f"{start}: {moments['result'] * 1e3:.0f} ms up to the first result")
        for span in SPANS[start]:
            if span.begins in moments and span.ends in moments:
                begins, ends = moments[span.begins] * 1e3, moments[span.ends] * 1e3
                mark = "*" if span.fixed else " "
                lines.append(
                    f"  {span.line:26} {span.text:36} {ends - begins:7.1f} ms{mark}   ({begins:6.1f} - {ends:6.1f})"
                )
    return [*lines, "", "* cannot be shortened from here"]


COLOURS: Final = {False: "#2f9e6e", True: "#8aa0b8"}
TEXT, LINES, RESULT = "#7d8590", "#7d859055", "#c93c37"


def draw(told: Mapping[str, Any], path: Path) -> None:
    """Write the picture: a line for each thread, and a bar for each step."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figures: Mapping[str, Moments] = told["figures"]
    lines = [(start, line) for start in figures for line in dict.fromkeys(span.line for span in SPANS[start])]
    style = {"svg.fonttype": "none", "svg.hashsalt": "atomr_trio", "font.size": 8, "text.color": TEXT}
    with mpl.rc_context({**style, "axes.edgecolor": LINES, "xtick.color": TEXT, "ytick.color": TEXT}):
        figure = Figure(figsize=(9.6, 1.1 + 0.42 * len(lines)))
        axes = figure.add_axes((0.19, 0.62 / (1.1 + 0.42 * len(lines)), 0.79, 1 - 1.0 / (1.1 + 0.42 * len(lines))))
        for y, (start, line) in enumerate(lines):
            moments = figures[start]
            for span in SPANS[start]:
                if span.line == line and span.begins in moments and span.ends in moments:
                    left, width = moments[span.begins] * 1e3, (moments[span.ends] - moments[span.begins]) * 1e3
                    colour = COLOURS[span.fixed]
                    axes.barh(y, width, left=left, height=0.5, color=colour, edgecolor="white", linewidth=0.6)
                    if width > 12:
                        axes.text(left + 0.8, y - 0.36, span.text, fontsize=6, va="bottom")
            if line == [name for first, name in lines if first == start][-1]:
                result = moments["result"] * 1e3
                axes.plot([result, result], [y - 0.9, y + 0.4], color=RESULT, linewidth=1)
                axes.text(result, y + 0.42, f"result: {result:.0f} ms", fontsize=7, va="top", ha="right")
        axes.set_yticks(range(len(lines)), [f"{start}\n{line}" for start, line in lines], fontsize=6.5)
        axes.set_ylim(len(lines) - 0.2, -0.7)
        axes.set_xlim(left=0)
        axes.grid(axis="x", color=LINES, linewidth=0.5)
        axes.tick_params(length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        handles = [
            Patch(color=COLOURS[False], label="ours"),
            Patch(color=COLOURS[True], label="the driver's, the system's and Python's: cannot be shortened from here"),
        ]
        figure.legend(handles=handles, loc="lower left", ncols=2, frameon=False, bbox_to_anchor=(0.0, 0.0))
        axes.set_xlabel(f"milliseconds.  {told['machine']}", loc="right")
        axes.xaxis.label.set_color(TEXT)
        figure.savefig(path, transparent=True, metadata={"Date": None} if path.suffix == ".svg" else None)


async def measured(backend: Backend, count: int) -> dict[str, Any]:
    """The figures of a run."""
    figures = {OPENED: medians(await openings(backend, count)), REBUILT: medians(await rebuilds(backend, count))}
    async with atomr_trio.open_device(0, backend=backend) as dev:
        machine = f"{dev.info.name}, Python {platform.python_version()}"
    if backend == "cuda":
        with tempfile.TemporaryDirectory() as folder:
            image = await recovery.image_of_kernels(backend, Path(folder))
            figures[BARE] = medians(await trio.to_thread.run_sync(processes, count, image))
    return {"machine": machine, "figures": figures}


def main(arguments: argparse.Namespace) -> None:
    """Measure and print, or draw figures that were written before."""
    if arguments.files:
        source, target = arguments.files
        draw(json.loads(source.read_text(encoding="utf-8")), target)
        return
    told = trio.run(measured, arguments.backend, arguments.starts)
    print(told["machine"], "", *table(told["figures"]), sep="\n")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(told, indent=1), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", type=Path, help="figures and the picture to draw of them")
    parser.add_argument("--backend", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--starts", type=int, default=7, help="starts of each kind")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    main(parser.parse_args())
