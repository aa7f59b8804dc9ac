"""What a program without trio pays for each verb, beside the awaited one on the same device: `make bench-plain`.

A verb runs in the thread that calls it, with the turn of the device's run, until it has to wait for long; a function of
the program, which has a row of its own, is handed to the run's thread and back. Both faces do the same work on one
device, and take turns, repetition by repetition. The figures belong to this machine; only differences within one run
carry over to others.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import conclusion
import numpy as np
import targets
from speed_report import HEADER, OURS, Measure, Table, line

import atomr_trio
from atomr_trio import plain

AWAITED: Final = "atomr_trio, awaited"
REPETITIONS: Final = 30
SOURCE: Final = 'extern "C" __global__ void empty(float a, const float *x, float *y, int n) { }'
WAITS, ENQUEUES = "waited for", "only enqueued"
BYTES: Final = 4096


@attrs.frozen
class Stage:
    """What is called, by both faces."""

    dev: Any
    x: Any
    y: Any
    kernel: Any
    prepared: Any


@attrs.frozen
class Work:
    """A verb, how often a repetition calls it, and its call; awaited by the one face if it waits."""

    what: str
    kind: str
    times: int
    call: Callable[[Stage], Any]
    batched: Callable[[Any, Stage], object] | None = None
    """The call in a batch, in whose place `call` is not used."""

    @property
    def row(self) -> str:
        return f"{self.what}, {self.kind}"


async def _nothing() -> None:
    pass


WORKS: Final = (
    Work("a launch", WAITS, 50, lambda s: s.prepared.launch()),
    Work("4 KiB to the host", WAITS, 50, lambda s: s.x.to_host()),
    Work("an axpy", WAITS, 50, lambda s: s.dev.blas.axpy(s.x, s.y)),
    Work("a new array", ENQUEUES, 500, lambda s: s.dev.empty(BYTES // 4, np.float32)),
    Work("a prepared launch of a batch", ENQUEUES, 500, lambda s: None, lambda batch, s: batch.launch(s.prepared)),
    Work("an axpy of a batch", ENQUEUES, 500, lambda s: None, lambda batch, s: batch.blas.axpy(s.x, s.y)),
)


def blocking(stage: Stage, work: Work) -> float:
    """Seconds that a call takes in this thread."""
    if work.batched is not None:
        with stage.dev.batch() as batch:
            begun = time.perf_counter()
            for _ in range(work.times):
                work.batched(batch, stage)
            return (time.perf_counter() - begun) / work.times
    begun = time.perf_counter()
    for _ in range(work.times):
        work.call(stage)
    return (time.perf_counter() - begun) / work.times


async def awaiting(stage: Stage, work: Work) -> float:
    """Seconds that the same call takes in a task."""
    if work.batched is not None:
        async with stage.dev.batch() as batch:
            begun = time.perf_counter()
            for _ in range(work.times):
                work.batched(batch, stage)
            return (time.perf_counter() - begun) / work.times
    begun = time.perf_counter()
    for _ in range(work.times):
        result = work.call(stage)
        if isinstance(result, Awaitable):
            await result
    return (time.perf_counter() - begun) / work.times


def staged(dev: plain.Device) -> tuple[Stage, Stage]:
    """The stage of either face: the same objects."""
    x, y = (dev.to_device(np.zeros(BYTES // 4, np.float32)) for _ in range(2))
    kernel = dev.nvrtc.compile(SOURCE, "empty")
    prepared = kernel.prepare(1, 32, 1.0, x, y, 1)
    ours = Stage(dev, x, y, kernel, prepared)
    return ours, Stage(*(each.awaited for each in attrs.astuple(ours, recurse=False)))


def measured(dev: plain.Device, repetitions: int) -> Table:
    """All rows."""
    table = Table()
    ours, theirs = staged(dev)
    for work in WORKS:
        found: dict[str, list[float]] = {OURS: [], AWAITED: []}
        for _ in range(repetitions + 1):
            found[OURS].append(blocking(ours, work))
            found[AWAITED].append(dev.run(awaiting, theirs, work))
        table.measures += [Measure(work.row, who, values[1:]) for who, values in found.items()]
    crossings = []
    for _ in range(repetitions * 10):
        begun = time.perf_counter()
        dev.run(_nothing)
        crossings.append(time.perf_counter() - begun)
    table.measures.append(Measure("an async function that does nothing", OURS, crossings))
    return table


def main(arguments: argparse.Namespace) -> int:
    """Measure, print and judge."""
    with atomr_trio.start(0, backend=arguments.backend) as dev:
        table = measured(dev, conclusion.fewer(REPETITIONS, arguments.share))
    title = "what a program without trio pays, a call"
    print(title, HEADER, *map(line, table.measures), sep="\n")
    rows = {kind: [work.row for work in WORKS if work.kind == kind] for kind in (WAITS, ENQUEUES)}
    verdicts = targets.judged(table, targets.of_plain(rows[WAITS], rows[ENQUEUES], AWAITED), arguments.backend)
    return conclusion.conclude(arguments, "plain", title, table, verdicts)


if __name__ == "__main__":
    sys.exit(main(conclusion.options(__doc__).parse_args()))
