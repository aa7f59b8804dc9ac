"""Every benchmark once, and one table of all that must hold: `make bench-all`.

Each benchmark runs as `make bench-...` runs it, with fewer repetitions, and some of them only for what must hold. What
they print goes to files beside the figures, and so does the picture, if matplotlib is there. The table has a line for
each target: the figure, what it may be, and whether it is held or MISSED; where something is compared with another
subject, the ratio and what that may be.

`baseline.json` has the rows that have held by 5 % on two different machines: `--record` notes those of this run, and
with `--figures` those of a run on another machine. Those of its rows that were missed are measured once more at the
end: of hundreds some are always late, because a neighbour had the processor for a second. The second figure counts, and
the first is told beside it. The exit status is 1 if a row of the baseline is missed twice or a benchmark did not end.
On a slow processor some are; `make bench-compare` tells whether a commit is the cause. A whole run on a GPU that takes
longer than it may says so, and does not fail: machines of one kind differ by a half.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import conclusion
import pictures
from speed_report import shown

HERE: Final = Path(__file__).parent
BASELINE: Final = HERE / "baseline.json"
MARGIN: Final = 0.05
"""The share of its limit by which a row must have held, to count for the baseline."""
MACHINES: Final = 2
"""So many machines on which it has, and it is in the baseline."""
DEADLINE: Final = 300.0
"""Seconds that one benchmark may take."""
BENCHMARKS: Final[dict[str, tuple[str, float]]] = {
    "speed": ("speed.py", 0.4),
    "verbs": ("verb_costs.py", 0.5),
    "recovery": ("recovery.py", 0.25),
    "holding": ("holding.py", 0.15),
    "nvrtc": ("nvrtc.py", 0.15),
    "blas": ("blas.py", 0.2),
    "fft": ("fft.py", 0.15),
    "random": ("random_numbers.py", 0.15),
    "peers": ("peers.py", 0.3),
    "world": ("world.py", 0.3),
    "plain": ("plain_verbs.py", 0.5),
}
"""The programs, and the share of their repetitions that is done: all together take at most `LONGEST`."""
LONGEST: Final = 480.0
"""Seconds that a whole run on one GPU may take."""
ONLY_JUDGED: Final = ("blas", "fft", "random")
"""What these would measure beside what must hold is in no table and no picture, and takes a minute."""
BY_ROWS: Final = ("speed", "verbs", "holding", *ONLY_JUDGED)
"""These can measure single rows. The others do all of theirs again."""
AGAIN: Final[Mapping[str, float]] = {**dict.fromkeys(BY_ROWS, 1.0), "plain": 1.0}
"""The share of the repetitions for rows that are measured once more, where that takes seconds."""
ON_SIMULATOR: Final[Mapping[str, tuple[str, ...]]] = {
    "recovery": ("--gib", "0.25", "--gib-most", "0.1", "--faults", "3"),
    "holding": ("--only", "events for 1,000 listeners", "--runs", "1"),
    "nvrtc": ("--repetitions", "1"),
}
"""Options for the simulator, which shows that everything works."""


@attrs.frozen
class Line:
    """A target of a run: what one benchmark said of it."""

    benchmark: str
    name: str
    held: bool | None
    facts: Mapping[str, Any]
    in_baseline: bool

    @property
    def key(self) -> str:
        """The baseline knows it by this."""
        return f"{self.benchmark}: {self.name}"

    @property
    def fails(self) -> bool:
        """Whether it makes the run fail."""
        return self.held is False and self.in_baseline

    @property
    def counts(self) -> bool:
        """Whether it has held by so much that it counts for the baseline."""
        return bool(self.held) and self.facts["margin"] >= MARGIN

    def __str__(self) -> str:
        word = {True: "held", False: "MISSED", None: "-"}[self.held]
        baseline = "*" if self.in_baseline else " "
        if self.held is None:
            return f"{word:7}{baseline} {self.key:110}  {self.facts['missing']}"
        unit = self.facts["unit"]
        told = f"{word:7}{baseline} {self.key:110}  {shown(self.facts['figure'], unit):>9}"
        told += f"  {shown(self.facts['limit'], unit):>9}"
        first, ratio = self.facts.get("first"), self.facts["ratio"]
        if ratio is not None:
            told += f"  {ratio:8.3f}  {self.facts['target']:8.3f}"
        return told if first is None else f"{told}  (at first {shown(first, unit)})"


HEADER: Final = f"{'':9}{'* in the baseline':110}  {'':>9}  {'at most':>9}  {'ratio':>8}  {'at most':>8}"


# --- the baseline -----------------------------------------------------------------------------------------------------


def known_rows(path: Path) -> dict[str, list[str]]:
    """The machines on which each row has held by enough."""
    if not path.exists():
        return {}
    rows: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def in_baseline(known: Mapping[str, list[str]], key: str) -> bool:
    """Whether a run fails when this row is missed."""
    return len(known.get(key, ())) >= MACHINES


def recorded(known: Mapping[str, list[str]], lines: Iterable[Line], machine: str) -> dict[str, list[str]]:
    """The same rows, with this machine at those that have held by enough. Only so many machines are noted."""
    rows = {key: list(machines) for key, machines in known.items()}
    for line in lines:
        machines = rows.setdefault(line.key, []) if line.counts else []
        if line.counts and machine not in machines and len(machines) < MACHINES:
            machines.append(machine)
    return dict(sorted(rows.items()))


# --- the run ----------------------------------------------------------------------------------------------------------


def told_by(name: str, folder: Path, arguments: argparse.Namespace, rows: Sequence[str] = ()) -> dict[str, Any] | None:
    """Run one benchmark, or at least these rows of it; return its figures, or None if it did not end well."""
    script, share = BENCHMARKS[name]
    called, share = (f"{name}-again", AGAIN.get(name, share)) if rows else (name, share)
    figures = folder / f"{called}.json"
    options = ["--backend", arguments.backend, "--json", str(figures), "--share", str(share * arguments.share)]
    options += ["--judged"] if name in ONLY_JUDGED else []
    options += ["--rows", *rows] if rows and name in BY_ROWS else []
    simulated = ON_SIMULATOR.get(name, ()) if arguments.backend == "sim" else ()
    with (folder / f"{called}.txt").open("w", encoding="utf-8") as log:
        try:
            subprocess.run(
                [sys.executable, str(HERE / script), *options, *simulated],
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=DEADLINE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
    if not figures.exists():
        return None
    told: dict[str, Any] = json.loads(figures.read_text(encoding="utf-8"))
    return told


def lines_of(told: Mapping[str, Any], known: Mapping[str, list[str]]) -> Iterator[Line]:
    """The targets of one benchmark."""
    for facts in told["must_hold"]:
        key = f"{told['benchmark']}: {facts['name']}"
        yield Line(told["benchmark"], facts["name"], facts["held"], facts, in_baseline(known, key))


def row_of(facts: Mapping[str, Any]) -> str:
    """The row of a target, by its name (`targets.Target.name`)."""
    return str(facts["name"]).partition(": at most ")[0]


def look_again(found: Mapping[str, dict[str, Any]], folder: Path, arguments: argparse.Namespace) -> None:
    """Measure the rows of the baseline that were missed once more, and take what is found for them."""
    known = known_rows(arguments.baseline)
    for name, told in found.items():
        missed = [line for line in lines_of(told, known) if line.fails]
        if missed:
            print(f"once more: {len(missed)} of the rows of {name}", flush=True)
            again = told_by(name, folder, arguments, [row_of(line.facts) for line in missed])
            if again is not None:
                take_second(told, again, {line.name for line in missed})


def take_second(told: dict[str, Any], again: Mapping[str, Any], names: set[str]) -> None:
    """Replace the verdicts of these names, and the figures of their rows, by those of a second run that has them."""
    second = {facts["name"]: facts for facts in again["must_hold"] if facts["held"] is not None}
    taken = names & second.keys()
    told["must_hold"] = [
        {**second[facts["name"]], "first": facts["figure"]} if facts["name"] in taken else facts
        for facts in told["must_hold"]
    ]
    rows = {row_of(second[name]) for name in taken}
    figures = {(each["what"], each["who"]): each for each in again.get("measurements", ()) if each["what"] in rows}
    told["measurements"] = [figures.get((each["what"], each["who"]), each) for each in told.get("measurements", ())]


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmarks, and write what they tell."""
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (*folder.glob("*.json"), folder / "all.svg"):
        stale.unlink(missing_ok=True)
    begun = time.monotonic()
    steps = conclusion.python_steps()
    found: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    for number, name in enumerate(arguments.benchmarks, 1):
        print(f"[{number}/{len(arguments.benchmarks)}, {time.monotonic() - begun:.0f} s] {name}", flush=True)
        told = told_by(name, folder, arguments)
        if told is None:
            failed.append(name)
            print(f"{name} did not end; what it said is in {folder / name}.txt")
        else:
            found[name] = told
    look_again(found, folder, arguments)
    everything = {
        "machine": conclusion.machine(arguments.backend),
        "title": title_of(arguments.benchmarks),
        "seconds": time.monotonic() - begun,
        "python_steps": sorted(steps + conclusion.python_steps()),
        "failed": failed,
        "benchmarks": found,
    }
    written = arguments.json or folder / "all.json"
    written.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    print(drawn(everything, written))
    return everything


def title_of(names: Iterable[str]) -> str:
    """The title of the picture: it names the benchmarks, if some were left out."""
    run = [name for name in BENCHMARKS if name in {*names}]
    return "All targets" if len(run) == len(BENCHMARKS) else f"Targets of {', '.join(run)}"


def drawn(everything: Mapping[str, Any], figures: Path) -> str:
    """Draw the picture beside the figures; return where it is, or why there is none and how to draw it."""
    path = figures.with_suffix(".svg")
    try:
        found = pictures.picture(everything, path)
    except ImportError:
        return f"no picture without matplotlib; where that is: make bench-picture FIGURES={figures} PICTURE={path}"
    return f"the picture is in {path}" if found else "no picture: no target was judged"


def overrun(everything: Mapping[str, Any]) -> str | None:
    """What is said of a whole run on a GPU that took longer than it may."""
    whole = {*BENCHMARKS} <= {*everything["benchmarks"], *everything["failed"]}
    if not whole or everything["machine"] == conclusion.machine("sim") or everything["seconds"] <= LONGEST:
        return None
    return f"the run took {everything['seconds']:.0f} s, longer than the {LONGEST:.0f} s that it may take on one GPU"


def told_speed(everything: Mapping[str, Any]) -> str:
    """How fast the machine's processors are, before the benchmarks and behind them."""
    steps = everything.get("python_steps")
    if not steps:
        return "how fast Python was is not known"
    return f"a step of a loop of Python: {statistics.median(steps):.0f} ns, {steps[0]:.0f} to {steps[-1]:.0f}"


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if a row of the baseline is missed or a benchmark did not end."""
    if arguments.figures is None:
        everything = measured(arguments)
    else:
        everything = json.loads(arguments.figures.read_text(encoding="utf-8"))
    known = known_rows(arguments.baseline)
    lines = [line for told in everything["benchmarks"].values() for line in lines_of(told, known)]
    missed, fails = [line for line in lines if line.held is False], [line for line in lines if line.fails]
    held = sum(line.held is True for line in lines)
    print(f"{everything['machine']}, {everything['seconds']:.0f} s", told_speed(everything), HEADER, *lines, sep="\n")
    print(f"\n{held} held, {len(missed)} missed, {len(lines) - held - len(missed)} not judged")
    if late := overrun(everything):
        print(late)
    for line in fails:
        print(f"missed, and in the baseline: {line.key}")
    if arguments.record:
        rows = recorded(known, lines, everything["machine"])
        arguments.baseline.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    return int(bool(fails or everything["failed"]))


if __name__ == "__main__":
    parser = conclusion.options(__doc__)
    parser.add_argument("--benchmarks", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), help="all by default")
    parser.add_argument("--folder", type=Path, default=Path("bench-all"), help="for figures, and what is printed")
    parser.add_argument("--baseline", type=Path, default=BASELINE, help="the rows that must hold")
    parser.add_argument("--figures", type=Path, help="of an earlier run: nothing is run, and its table is printed")
    parser.add_argument("--record", action="store_true", help="note in it what has held by 5 %% on this machine")
    sys.exit(main(parser.parse_args()))
