"""What every benchmark ends with: its options, its verdicts on the terminal, and its figures as JSON.

The JSON of all of them has one form, which `bench_all.py` puts together and `pictures.py` draws::

    {"benchmark": ..., "backend": ..., "machine": ..., "title": ..., "facts": {...},
     "measurements": [{"what", "who", "unit", "min", "median", "p90", "values"}, ...],
     "absent": [{"what", "who", "reason"}, ...],
     "must_hold": [{"name", "held", "unit", "figure", "limit", "ratio", "target"}, ...]}
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from speed_report import Absent, Table, Verdict
from targets import Target


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    parser.add_argument("--backend", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--strict", action="store_true", help="fail if something that must hold was missed")
    parser.add_argument("--share", type=float, default=1.0, help="of the repetitions: less for a shorter run")
    return parser


def with_rows(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The same parser, with an option for single rows."""
    parser.add_argument("--rows", nargs="+", default=(), help="measure only what is needed for these, by whole names")
    return parser


def with_judged(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The same parser, with options to leave out what nothing is said of at the end, and for single rows."""
    parser.add_argument("--judged", action="store_true", help="measure only what must hold")
    return with_rows(parser)


def chosen(arguments: argparse.Namespace, targets: Iterable[Target]) -> Callable[[str], bool]:
    """Whether a row is measured, by its name: all are, unless single ones or only what must hold were asked for."""
    judged, single = {target.row for target in targets}, {*arguments.rows}
    return lambda row: row in single if single else not arguments.judged or row in judged


def fewer(repetitions: int, share: float, least: int = 3) -> int:
    """So many repetitions as a share of them leaves, but at least three, or all."""
    return min(repetitions, max(round(repetitions * share), least))


def machine(backend: str) -> str:
    """A name of the machine that is the same in each run: the GPU's, and a digest of which one it is."""
    if backend == "sim":
        return "simulator"
    from atomr_cuda import driver

    uuid, name, device = driver.CUuuid(), ctypes.create_string_buffer(64), driver.CUdevice()
    driver.cuInit(0)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetName(name, len(name), device.value)
    driver.cuDeviceGetUuid_v2(ctypes.byref(uuid), device.value)
    return f"{name.value.decode()} {hashlib.sha256(bytes(uuid)).hexdigest()[:8]}"


STEPS: Final = 100_000
LOOPS: Final = 50


def python_steps() -> list[float]:
    """The nanoseconds that a step of a loop of Python takes now, in ascending order.

    The processors of one machine run at different speeds, and so do machines of one kind: limits in seconds are missed
    on a slow one that are held on others.
    """

    def loop() -> float:
        begun, total = time.perf_counter(), 0
        for number in range(STEPS):
            total += number
        return (time.perf_counter() - begun) / STEPS * 1e9

    return sorted(loop() for _ in range(LOOPS))


def not_measured(absent: Iterable[Absent]) -> Iterator[str]:
    """A line for each reason, with what it holds for."""
    rows: dict[tuple[str, str], list[str]] = {}
    for each in absent:
        rows.setdefault((each.who, each.reason), []).append(each.what)
    for (who, reason), what in rows.items():
        yield f"not measured: {who}: {reason}: {'; '.join(what)}"


def conclude(
    arguments: argparse.Namespace, benchmark: str, title: str, table: Table, verdicts: Sequence[Verdict], **facts: Any
) -> int:
    """Print what must hold, and write everything; the exit status is 1 if something was missed and that was asked."""
    print("", *not_measured(table.absent), sep="\n")
    if verdicts:
        print("what must hold:", *verdicts, sep="\n", flush=True)
    if arguments.json is not None:
        told = {
            "benchmark": benchmark,
            "backend": arguments.backend,
            "machine": machine(arguments.backend),
            "title": title,
            "facts": {"python": platform.python_version(), **facts},
            "measurements": [measure.facts() for measure in table.measures],
            "absent": [attrs.asdict(each) for each in table.absent],
            "must_hold": [verdict.facts() for verdict in verdicts],
        }
        arguments.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return int(arguments.strict and any(verdict.held is False for verdict in verdicts))
