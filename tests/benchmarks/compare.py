"""Two commits on one machine, in turns: `make bench-compare COMMIT=...`.

The works of the benchmarks of speed, products, transforms and random numbers are done by atomr_trio as it is here and
as it was at another commit. Of the other benchmarks, which start processes themselves, the program is run by both
(`--benchmarks recovery`).

How fast a pair of processes is, the user's and its worker, depends on where the machine puts them, and that differs
more from pair to pair than from turn to turn. So everything is done by several processes of each commit, of which a
row has a value each: the median of its turns. Those of one round live at the same time and take turns; the order of the
commits rotates from round to round. The old commit is there twice in each round.

A row is *worse* where the new median lies by 3 % above all values of the old commit, and none of the new values lies
below the old median; *better* is the opposite. Values that mean nothing are told so in one row of 2,000, if there are
eight of each, and in one of 12 if there are three. How often it happens by chance is shown: the two halves of the old
commit are compared by the same rule, which with half as many values is wrong more often.

The benchmarks' own code is that of the new commit; what the old one does not have is told and not compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import attrs
import blas_subjects
import conclusion
import fft_subjects
import random_subjects
import speed_works
from speed_report import OURS, Absent, Measure, Unit, shown
from turns import Subject, environment_of, measured, started, tell, ways

Item = TypeVar("Item")
HERE: Final = Path(__file__).parent
OLD, NEW, AGAIN = LABELS = "old", "new", "old again"
BEYOND: Final = 0.03
"""So far beyond the old spread a median lies, as a share, before a row is said to differ."""
PROCESSES: Final[Mapping[str, int]] = {"cuda": 8, "sim": 1}
"""Of each commit; on the simulator, which shows that everything works, one."""
TURNS: Final = 3
"""Of each process, for each work."""

Change = Literal["worse", "better", ""]
Values = dict[tuple[str, str], list[float]]
"""By row and commit, the value of each process."""


@attrs.frozen
class Suite:
    """The works of one benchmark: its subjects' script, and its plan for each backend."""

    script: str
    plans: Any
    works: str
    """The plan's field that has them."""


RUNS: Final[dict[str, tuple[str, ...]]] = {
    "recovery": ("recovery.py", "--faults", "5"),
    "holding": ("holding.py", "--runs", "1"),
    "nvrtc": ("nvrtc.py", "--repetitions", "1"),
    "verbs": ("verb_costs.py", "--share", "0.1"),
}
"""Benchmarks whose program is run again and again by each commit: the program, and its options."""
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


def all_of(suite: Suite, backend: str, old: Path, stack: contextlib.ExitStack) -> list[Subject]:
    """The three subjects. Raises `SystemExit` if they have not imported what they are to be."""
    sources = {OLD: old, NEW: None, AGAIN: old}
    subjects = [
        stack.enter_context(started(HERE / suite.script, OURS, backend, label=label, sources=sources[label]))
        for label in LABELS
    ]
    for subject in subjects:
        subject.ask("sources 0")
    imported = {subject.who: Path(subject.answer()) for subject in subjects}
    wanted = old.resolve() / "atomr_trio"
    if (imported[OLD], imported[AGAIN]) != (wanted, wanted) or imported[NEW] == wanted:
        raise SystemExit(
            f"the old subject has imported {imported[OLD]}, the new one {imported[NEW]}: these are to differ"
        )
    return subjects


# --- the rows ---------------------------------------------------------------------------------------------------------


def differs(new: Sequence[float], old: Sequence[float]) -> Change:
    """Whether the new processes have left the spread of the old ones."""
    median, usual = statistics.median(new), statistics.median(old)
    if median > max(old) * (1 + BEYOND) and min(new) >= usual:
        return "worse"
    return "better" if median < min(old) * (1 - BEYOND) and max(new) <= usual else ""


@attrs.frozen
class Row:
    """What the processes of both commits take for one row."""

    name: str
    old: Measure
    new: Measure
    again: Measure

    @property
    def alarm(self) -> bool:
        """Whether the old commit differs from itself."""
        return bool(differs(self.again.values, self.old.values))

    @property
    def change(self) -> Change:
        """Whether the new commit differs from the old one."""
        return differs(self.new.values, self.spread)

    @property
    def spread(self) -> tuple[float, ...]:
        """All values of the old commit."""
        return (*self.old.values, *self.again.values)

    def __str__(self) -> str:
        unit, old = self.old.unit, statistics.median(self.spread)
        ratio = self.new.median / old if old else float("nan")
        medians = f"{shown(old, unit):>9} -> {shown(self.new.median, unit):>9}  {ratio:6.3f}"
        spread = f"({shown(min(self.spread), unit)} - {shown(max(self.spread), unit)})"
        return f"{self.change:7}{self.name:50}  {medians}  {spread}"


def rows_of(values: Values, units: Mapping[str, Unit]) -> list[Row]:
    """The rows that all three have."""
    found = []
    for name in dict.fromkeys(name for name, _ in values):
        if all((name, label) in values for label in LABELS):
            old, new, again = (Measure(name, label, values[name, label], units[name]) for label in LABELS)
            found.append(Row(name, old, new, again))
    return found


# --- the rounds -------------------------------------------------------------------------------------------------------


@attrs.define
class Comparison:
    """What was measured so far."""

    old: Path
    backend: str
    only: str
    processes: int
    values: Values = attrs.Factory(dict)
    units: dict[str, Unit] = attrs.Factory(dict)
    absent: list[Absent] = attrs.Factory(list)

    def of(self, name: str) -> None:
        """Measure one benchmark by both commits."""
        begun = time.monotonic()
        for number in range(self.processes):
            if name in SUITES:
                self._round(SUITES[name], number)
            else:
                self._runs(name, number)
            tell(f"[{name}, {time.monotonic() - begun:.0f} s] round {number + 1} of {self.processes}")

    def _note(self, label: str, measure: Measure) -> None:
        self.values.setdefault((measure.what, label), []).append(measure.median)
        self.units[measure.what] = measure.unit

    def _round(self, suite: Suite, number: int) -> None:
        """Do the works of a benchmark by a process of each."""
        plan, pattern = suite.plans[self.backend], re.compile(self.only)
        plan = attrs.evolve(plan, repetitions=min(plan.repetitions, TURNS))

        def only(work: str) -> bool:
            return bool(pattern.search(work))

        with contextlib.ExitStack() as stack:
            subjects = rotated(all_of(suite, self.backend, self.old, stack), number)
            works: Sequence[Any] = getattr(plan, suite.works)
            for _, measures, absent in (ways if suite.works == "works" else measured)(subjects, works, plan, only):
                for measure in measures:
                    self._note(measure.who, measure)
                self.absent += [each for each in absent if each not in self.absent]

    def _runs(self, name: str, number: int) -> None:
        """Run the program of a benchmark by each."""
        program, *options = RUNS[name]
        for label in rotated(LABELS, number):
            with tempfile.TemporaryDirectory(prefix="atomr-trio-compare-") as folder:
                figures = Path(folder) / "figures.json"
                command = [sys.executable, str(HERE / program), *options]
                command += ["--backend", self.backend, "--json", str(figures)]
                environment = None if label == NEW else environment_of(self.old)
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                if not figures.exists():
                    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
                    self.absent.append(Absent(name, label, last))
                    continue
                for told in json.loads(figures.read_text(encoding="utf-8"))["measurements"]:
                    if told["who"] == OURS and re.search(self.only, told["what"]):
                        self._note(label, Measure(told["what"], label, told["values"], told["unit"]))


def rotated(items: Sequence[Item], number: int) -> list[Item]:
    """The same, beginning with another one for each number."""
    start = number % len(items)
    return [*items[start:], *items[:start]]


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if a row is worse and `--strict` asks for that."""
    backend = arguments.backend
    with contextlib.ExitStack() as stack:
        old = (arguments.sources and arguments.sources.resolve()) or stack.enter_context(checkout(arguments.commit))
        comparison = Comparison(old, backend, arguments.only, arguments.processes or PROCESSES[backend])
        for name in arguments.benchmarks:
            comparison.of(name)
    rows = rows_of(comparison.values, comparison.units)
    print("", *conclusion.not_measured(comparison.absent), *rows, sep="\n")
    alarms = sum(row.alarm for row in rows)
    print(f"\nby half of its values, the old commit differs from itself in {alarms} of {len(rows)} rows")
    for change in ("worse", "better"):
        names = [str(row) for row in rows if row.change == change]
        print(f"{change}: {len(names)} of {len(rows)} rows", *names, sep="\n", flush=True)
    if arguments.json is not None:
        told = {
            "old": arguments.commit or str(arguments.sources),
            "machine": conclusion.machine(backend),
            "rows": [
                {
                    "name": row.name,
                    "change": row.change,
                    "alarm": row.alarm,
                    **{each.who: each.facts() for each in (row.old, row.new, row.again)},
                }
                for row in rows
            ],
        }
        arguments.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return int(arguments.strict and any(row.change == "worse" for row in rows))


if __name__ == "__main__":
    parser = conclusion.options(__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--commit", help="the old commit, of this repository")
    chosen.add_argument("--sources", type=Path, help="a checkout of the old commit")
    every = [*SUITES, *RUNS]
    parser.add_argument("--benchmarks", nargs="+", choices=every, default=["speed"], help="speed by default")
    parser.add_argument("--only", default="", help="works with this pattern in their names")
    parser.add_argument("--processes", type=int, help=f"of each commit; {PROCESSES['cuda']} on a GPU")
    sys.exit(main(parser.parse_args()))
