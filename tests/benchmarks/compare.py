"""Two commits on one machine, in turns: `make bench-compare COMMIT=...`.

The works of the benchmarks of speed, products, transforms and random numbers are done by atomr_trio as it is here and
as it was at another commit, each in a process of its own. Both live at the same time and take turns; whoever was last
in one repetition is first in the next, so a machine whose clock drifts is the same for both.

A row is *worse* where the new median lies above all the old values by 3 %, and *better* where it lies below all of them
by as much: a row that differs less stays in its own spread. The benchmarks' own code is that of the new commit; what
the old one does not have is told and not compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import blas_subjects
import conclusion
import fft_subjects
import random_subjects
import speed_works
from speed_report import OURS, Absent, Measure, Table, shown
from turns import Subject, measured, started, tell, ways

HERE: Final = Path(__file__).parent
OLD, NEW = "old", "new"
BEYOND: Final = 0.03
"""So far beyond the old spread a median lies, as a share, before a row is said to differ."""
REPETITIONS: Final = 11

Change = Literal["worse", "better", ""]


@attrs.frozen
class Suite:
    """The works of one benchmark: its subjects' script, and its plan for each backend."""

    script: str
    plans: Any
    works: str
    """The plan's field that has them."""


SUITES: Final = {
    "speed": Suite("speed_subjects.py", speed_works.PLANS, "works"),
    "blas": Suite("blas_subjects.py", blas_subjects.PLANS, "products"),
    "fft": Suite("fft_subjects.py", fft_subjects.PLANS, "transforms"),
    "random": Suite("random_subjects.py", random_subjects.PLANS, "draws"),
}


# --- the two commits --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The sources of a commit, in a folder that is there for the block. Raises `SystemExit` if there is none."""
    command = ["git", "-C", str(HERE), "archive", commit]
    root = subprocess.run(["git", "-C", str(HERE), "rev-parse", "--show-toplevel"], capture_output=True, check=False)
    command[2] = root.stdout.decode().strip() or command[2]
    archive = subprocess.run([*command, "atomr_trio", "bindings"], capture_output=True, check=False)
    if archive.returncode:
        raise SystemExit(f"git has no sources of {commit}: {archive.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="atomr-trio-compare-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def both(suite: Suite, backend: str, old: Path, stack: contextlib.ExitStack) -> list[Subject]:
    """The two subjects. Raises `SystemExit` if they have not imported what they are to be."""
    script = HERE / suite.script
    subjects = [
        stack.enter_context(started(script, OURS, backend, label=OLD, sources=old)),
        stack.enter_context(started(script, OURS, backend, label=NEW)),
    ]
    for subject in subjects:
        subject.ask("sources 0")
    imported = [Path(subject.answer()) for subject in subjects]
    if imported[0] != old.resolve() / "atomr_trio" or imported[0] == imported[1]:
        raise SystemExit(f"the old subject has imported {imported[0]}, the new one {imported[1]}: these are to differ")
    return subjects


# --- the rows ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class Row:
    """What both take for one row."""

    name: str
    old: Measure
    new: Measure

    @property
    def change(self) -> Change:
        """Whether the new median has left the old spread."""
        if self.new.median > max(self.old.values) * (1 + BEYOND):
            return "worse"
        return "better" if self.new.median < min(self.old.values) * (1 - BEYOND) else ""

    def __str__(self) -> str:
        low, high = (shown(end(self.old.values), self.old.unit) for end in (min, max))
        ratio = self.new.median / self.old.median if self.old.median else float("nan")
        medians = f"{shown(self.old.median, self.old.unit):>9} -> {shown(self.new.median, self.new.unit):>9}"
        return f"{self.change:7}{self.name:50}  {medians}  {ratio:6.3f}   ({low} - {high})"


def rows_of(table: Table) -> list[Row]:
    """The rows that both have."""
    found = []
    for name, measures in table.rows().items():
        by_subject = {measure.who: measure for measure in measures}
        if by_subject.keys() >= {OLD, NEW}:
            found.append(Row(name, by_subject[OLD], by_subject[NEW]))
    return found


def compared(name: str, backend: str, old: Path, arguments: argparse.Namespace) -> Table:
    """Measure the works of one benchmark by both, and print each row as it comes."""
    suite, table = SUITES[name], Table()
    plan = suite.plans[backend]
    repetitions = arguments.repetitions or (REPETITIONS if backend == "cuda" else plan.repetitions)
    plan = attrs.evolve(plan, repetitions=repetitions)
    works: Sequence[Any] = getattr(plan, suite.works)
    begun, pattern = time.monotonic(), re.compile(arguments.only)

    def only(work: str) -> bool:
        return bool(pattern.search(work))

    with contextlib.ExitStack() as stack:
        subjects = both(suite, backend, old, stack)
        found = (ways if suite.works == "works" else measured)(subjects, works, plan, only)
        for work, measures, absent in found:
            part = Table(list(measures))
            table.measures += measures
            table.absent += [each for each in absent if not _lacked_by_both(each, absent)]
            for row in rows_of(part):
                print(row, flush=True)
            tell(f"[{name}, {time.monotonic() - begun:.0f} s] {work.name}")
    return table


def _lacked_by_both(absent: Absent, every: Sequence[Absent]) -> bool:
    return sum((each.what, each.reason) == (absent.what, absent.reason) for each in every) > 1


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if a row is worse and `--strict` asks for that."""
    table = Table()
    with contextlib.ExitStack() as stack:
        old = (arguments.sources and arguments.sources.resolve()) or stack.enter_context(checkout(arguments.commit))
        for name in arguments.benchmarks:
            part = compared(name, arguments.backend, old, arguments)
            table.measures += part.measures
            table.absent += part.absent
    rows = rows_of(table)
    print("", *conclusion.not_measured(table.absent), sep="\n")
    for change in ("worse", "better"):
        names = [str(row) for row in rows if row.change == change]
        print(f"{change}: {len(names)} of {len(rows)} rows", *names, sep="\n", flush=True)
    if arguments.json is not None:
        told = {
            "old": arguments.commit or str(arguments.sources),
            "machine": conclusion.machine(arguments.backend),
            "rows": [
                {"name": row.name, "change": row.change, OLD: row.old.facts(), NEW: row.new.facts()} for row in rows
            ],
        }
        arguments.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return int(arguments.strict and any(row.change == "worse" for row in rows))


if __name__ == "__main__":
    parser = conclusion.options(__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--commit", help="the old commit, of this repository")
    chosen.add_argument("--sources", type=Path, help="a checkout of the old commit")
    parser.add_argument("--benchmarks", nargs="+", choices=SUITES, default=["speed"], help="speed by default")
    parser.add_argument("--only", default="", help="works with this pattern in their names")
    parser.add_argument("--repetitions", type=int, help=f"of each measurement; {REPETITIONS} on a GPU")
    sys.exit(main(parser.parse_args()))
