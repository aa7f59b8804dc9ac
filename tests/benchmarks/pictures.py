"""The picture of a benchmark's figures, or of all, from their JSON: `pictures.py FIGURES.json PICTURE.svg`.

A line for each row that several subjects have, with a dot for each of them: how many times as long as atomr_trio it
takes, on a logarithmic scale. Left of the line at 1 are those that are faster. A bar across a line is the target: green
where it is held, red where it is missed, as the table of the same figures says.

It is drawn by matplotlib, which is among the developers' tools; its colours are readable on light and dark pages.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from speed_report import CORE, CUPY, NATIVE, NUMBA, OURS, RAW, TORCH, Unit, shown

TEXT, LINES = "#7d8590", "#7d859055"
COLOURS: Final[Mapping[str, tuple[str, str]]] = {
    OURS: ("#2f9e6e", "o"),
    RAW: ("#8aa0b8", "|"),
    NATIVE: ("#5c6f82", "|"),
    CORE: ("#b8860b", "s"),
    CUPY: ("#3b82c4", "^"),
    TORCH: ("#d1572a", "D"),
    NUMBA: ("#9b6bb3", "v"),
}
"""The colour and the form of each subject's dot; others are grey."""
OTHER: Final = ("#8a8a8a", "x")
MISSED: Final = "#c93c37"


@attrs.frozen
class Row:
    """A line of the picture."""

    name: str
    ours: float
    unit: Unit
    others: Mapping[str, float]
    """By subject, what it takes; in shares of ours."""
    target: float | None
    """What the row may take at most, in shares of what it takes."""
    held: bool | None = None
    """The verdict: a target that is a little below 1 is held, within the resolution of what is measured."""

    @property
    def bar(self) -> str:
        """The colour of the target."""
        return COLOURS[OURS][0] if self.held else MISSED


def rows_of(told: Mapping[str, Any], only: str = "") -> list[Row]:
    """The rows that there is something to compare in; of the figures of all benchmarks, those that have a target."""
    if "benchmarks" in told:
        parts = [row for each in told["benchmarks"].values() for row in rows_of(each, only)]
        return [row for row in parts if row.target is not None]
    medians: dict[str, dict[str, float]] = {}
    units: dict[str, Unit] = {}
    for measure in told["measurements"]:
        if re.search(only, measure["what"]):
            medians.setdefault(measure["what"], {})[measure["who"]] = measure["median"]
            units[measure["what"]] = measure["unit"]
    found = []
    for name, by_subject in medians.items():
        ours = by_subject.get(OURS, 0.0)
        others = {who: median / ours for who, median in by_subject.items() if who != OURS} if ours else {}
        targets = _targets(told, name)
        if others or targets:
            strictest = min((target for target, _ in targets), default=None)
            held = all(held for _, held in targets) if targets else None
            found.append(Row(name, ours, units[name], others, strictest, held))
    return found


def _targets(told: Mapping[str, Any], name: str) -> list[tuple[float, bool]]:
    """Those of a row that were judged: where each is, and whether it is held."""
    judged = [each for each in told["must_hold"] if each["held"] is not None]
    of_row = [each for each in judged if each["name"].startswith(f"{name}: at most")]
    return [(_share(each), each["held"]) for each in of_row if each["ratio"] or each["figure"]]


def _share(verdict: Mapping[str, Any]) -> float:
    if verdict["ratio"]:
        return float(verdict["target"]) / float(verdict["ratio"])
    return float(verdict["limit"]) / float(verdict["figure"])


def draw(told: Mapping[str, Any], rows: Sequence[Row], path: Path) -> None:
    """Write the picture, as SVG or as what the name ends with."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    style = {"svg.fonttype": "none", "svg.hashsalt": "atomr_trio", "font.size": 8, "text.color": TEXT}
    with mpl.rc_context({**style, "axes.edgecolor": LINES, "xtick.color": TEXT, "ytick.color": TEXT}):
        figure = Figure(figsize=(9.6, 1.6 + 0.19 * len(rows)))
        axes = figure.add_axes((0.34, 0.62 / (1.6 + 0.19 * len(rows)), 0.64, 1 - 1.3 / (1.6 + 0.19 * len(rows))))
        for y, row in enumerate(rows):
            if row.target is not None:
                axes.plot([row.target], [y], marker="|", markersize=10, markeredgewidth=2, color=row.bar, linestyle="")
            for who, ratio in row.others.items():
                colour, form = COLOURS.get(who, OTHER)
                axes.plot([ratio], [y], marker=form, markersize=4.5, color=colour, linestyle="", label=who)
        axes.axvline(1, color=COLOURS[OURS][0], linewidth=1)
        axes.set_xscale("log")
        _limits(axes, rows)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks(range(len(rows)), [f"{row.name}  {shown(row.ours, row.unit)}" for row in rows])
        axes.grid(axis="x", color=LINES, linewidth=0.5)
        axes.tick_params(length=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        present = dict.fromkeys(who for row in rows for who in row.others)
        handles = [
            Line2D([], [], color=COLOURS[OURS][0], linewidth=1, label=OURS),
            *(
                Line2D([], [], color=(found := COLOURS.get(who, OTHER))[0], marker=found[1], linestyle="", label=who)
                for who in present
            ),
            Line2D([], [], color=COLOURS[OURS][0], marker="|", markersize=9, linestyle="", label="target, held"),
            Line2D([], [], color=MISSED, marker="|", markersize=9, linestyle="", label="target, missed"),
        ]
        figure.legend(handles=handles, loc="upper left", ncols=5, frameon=False, bbox_to_anchor=(0.01, 1.0))
        axes.set_xlabel(f"times as long as atomr_trio.  {told['title']}; {told['machine']}", loc="right")
        axes.xaxis.label.set_color(TEXT)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, transparent=True, bbox_inches="tight", metadata=metadata)


def _limits(axes: Any, rows: Sequence[Row]) -> None:
    values = [ratio for row in rows for ratio in (*row.others.values(), row.target or 1.0) if ratio > 0]
    low, high = min([0.5, *values]), max([2.0, *values])
    axes.set_xlim(low / 1.2, high * 1.2)
    ticks = list(_ticks(low, high))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)


def _ticks(low: float, high: float) -> Iterator[float]:
    """The round numbers between two."""
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for digit in (1, 2, 5) if high / low < 200 else (1,):
            if low <= digit * 10.0**power <= high:
                yield digit * 10.0**power


def picture(told: Mapping[str, Any], path: Path, only: str = "") -> bool:
    """Draw what can be compared; False if there is nothing. Raises `ImportError` without matplotlib."""
    rows = rows_of(told, only)
    if rows:
        draw(told, rows, path)
    return bool(rows)


def main(arguments: argparse.Namespace) -> None:
    """Draw it."""
    told = json.loads(arguments.figures.read_text(encoding="utf-8"))
    if not picture(told, arguments.picture, arguments.only):
        raise SystemExit("there is nothing to compare in these figures")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("figures", type=Path, help="the JSON of a benchmark")
    parser.add_argument("picture", type=Path, help="where to draw it")
    parser.add_argument("--only", default="", help="rows with this pattern in their names")
    main(parser.parse_args())
