"""What the speed benchmark measures, what must hold of it, and how it is shown: names, values, table, JSON and SVG.

Nothing in here measures anything.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal
from xml.sax.saxutils import escape

import attrs

Unit = Literal["s", "share", "B"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_BYTES: Final = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
SIZES: Final = tuple(4 * KIB << (2 * step) for step in range(10))
"""Bytes of the copies, from 4 KiB to 1 GiB."""
NODES = 100
"""Kernels in the graph."""
TASKS = 64

OURS, BATCH, PREPARED = "atomr_trio", "atomr_trio, batch", "atomr_trio, prepared in a batch"
RAW, RAW_PREPARED, RAW_THREAD = "ctypes", "ctypes, prepared", "ctypes, to_thread"
CORE, CUPY, TORCH, NUMBA = "cuda.core", "CuPy", "PyTorch", "numba-cuda"
PEERS = (CORE, CUPY, TORCH, NUMBA)


def launch_row(arguments: int, part: Literal["caller", "end to end"]) -> str:
    """A launch that nobody waits for: the caller's time for each, or that until all are done, divided by them."""
    return f"launch, {arguments} arguments, {part}"


def graph_row(part: Literal["caller", "end to end"]) -> str:
    """One launch of a graph of `NODES` kernels."""
    return f"graph of {NODES} kernels, {part}"


AWAITED_ROW = "awaited launch of an empty kernel"
TASKS_ROW = f"{TASKS} tasks awaiting launches, each launch"
ALLOCATION_ROW = "allocate 4 KiB and free it"
IMPORT_ROW = "import"
START_ROW = "process start to first result"
IDLE_ROW = "CPU use of an idle device"

Host = Literal["pageable", "pinned", "new array"]


def copy_row(direction: Literal["in", "out"], host: Host, nbytes: int) -> str:
    """One copy to the device or from it."""
    return f"copy {direction}, {host}, {size(nbytes)}"


def size(nbytes: int) -> str:
    """Bytes in the largest unit that they are a whole number of."""
    unit, factor = next((each for each in _BYTES if nbytes and nbytes % each[1] == 0), ("B", 1))
    return f"{nbytes // factor} {unit}"


def _ints(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(values)


@attrs.frozen
class Plan:
    """How much is measured."""

    repetitions: int
    launches: int
    """Launches of each repetition, fewer than a stream takes without blocking."""
    awaited: int
    """Awaited launches of each repetition, and of each task."""
    graphs: int
    """Launches of the graph of each repetition."""
    allocations: int
    sizes: tuple[int, ...] = attrs.field(converter=_ints)
    copied: int
    """Bytes that each repetition copies, in several copies if they are small, but never more than 50."""
    idle_seconds: float


FULL: Final = Plan(7, 500, 100, 20, 2000, SIZES, 64 * MIB, 1.0)
TINY: Final = Plan(2, 3, 2, 2, 10, SIZES[:2], 4 * KIB, 0.05)
"""Shows that everything works, and says nothing of speed."""


@attrs.frozen
class Measure:
    """What one subject takes for one row: a value for each repetition."""

    what: str
    who: str
    values: tuple[float, ...] = attrs.field(converter=_floats)
    unit: Unit = "s"

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def p90(self) -> float:
        """The smallest value that 90 % of them do not exceed."""
        return sorted(self.values)[math.ceil(0.9 * len(self.values)) - 1]

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        spread = {"min": min(self.values), "median": self.median, "p90": self.p90}
        return {"what": self.what, "who": self.who, "unit": self.unit, **spread, "values": list(self.values)}


@attrs.frozen
class Absent:
    """Something that was not measured, and why."""

    what: str
    who: str
    reason: str


class NotMeasured(Exception):
    """A rule cannot be judged: what it compares is not in the table."""


@attrs.define
class Table:
    """All that one run has measured, in the order in which it came."""

    measures: list[Measure] = attrs.Factory(list)
    absent: list[Absent] = attrs.Factory(list)

    def median(self, what: str, who: str) -> float:
        """Raises `NotMeasured`."""
        for measure in self.measures:
            if (measure.what, measure.who) == (what, who):
                return measure.median
        raise NotMeasured(f"{who}: {what}")

    def best_peer(self, what: str) -> float:
        """The median of the fastest of `PEERS`. Raises `NotMeasured`."""
        medians = [measure.median for measure in self.measures if measure.what == what and measure.who in PEERS]
        if not medians:
            raise NotMeasured(f"any peer: {what}")
        return min(medians)

    def rows(self) -> dict[str, list[Measure]]:
        """What was measured, by row."""
        rows: dict[str, list[Measure]] = {}
        for measure in self.measures:
            rows.setdefault(measure.what, []).append(measure)
        return rows


def ratios(measures: Iterable[Measure]) -> dict[str, float]:
    """What each subject of a row takes, in medians of the best of ours; nothing where there is none to compare with."""
    medians = {measure.who: measure.median for measure in measures}
    best = min((median for who, median in medians.items() if who.startswith(OURS)), default=0.0)
    return {who: median / best for who, median in medians.items()} if best else {}


# --- what must hold ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Rule:
    """A figure of ours, and what it may be at most; both are computed from the table."""

    name: str
    figure: Callable[[Table], float]
    limit: Callable[[Table], float]
    unit: Unit = "s"


@attrs.frozen
class Verdict:
    """Whether a rule holds; None if it could not be judged."""

    name: str
    held: bool | None
    figure: float = math.nan
    limit: float = math.nan
    unit: Unit = "s"
    missing: str = ""

    def __str__(self) -> str:
        if self.held is None:
            return f"not judged  {self.name}: {self.missing}"
        word = "held" if self.held else "MISSED"
        return f"{word:10}  {self.name}: {shown(self.figure, self.unit)}, at most {shown(self.limit, self.unit)}"

    def facts(self) -> dict[str, Any]:
        """For JSON, which has no NaN."""
        facts: dict[str, Any] = {"name": self.name, "held": self.held, "unit": self.unit}
        if self.held is None:
            return {**facts, "missing": self.missing}
        return {**facts, "figure": self.figure, "limit": self.limit}


def _ours(what: str, who: str = OURS) -> Callable[[Table], float]:
    return lambda table: table.median(what, who)


def _times(factor: float, what: str, who: str) -> Callable[[Table], float]:
    return lambda table: factor * table.median(what, who)


def _times_best_peer(factor: float, what: str) -> Callable[[Table], float]:
    return lambda table: factor * table.best_peer(what)


def _seconds(limit: float) -> Callable[[Table], float]:
    return lambda _table: limit


CALLER, WHOLE = launch_row(4, "caller"), launch_row(4, "end to end")
GRAPH = graph_row("end to end")
JUDGED_BYTES = 256 * MIB


def _copies(host: Host, factor: float) -> Iterator[Rule]:
    for direction in ("in", "out"):
        row = copy_row(direction, host, JUDGED_BYTES)
        yield Rule(f"{row}: {factor} x cuMemcpy", _ours(row), _times(factor, row, RAW))


NEW_ARRAY = copy_row("out", "new array", JUDGED_BYTES)
RULES: Final = (
    Rule("batched launch, caller: 0.5 x the best peer's launch", _ours(CALLER, BATCH), _times_best_peer(0.5, CALLER)),
    Rule("batched launch, end to end: the best peer's", _ours(WHOLE, BATCH), _times_best_peer(1.0, WHOLE)),
    Rule("prepared launch in a batch, caller", _ours(CALLER, PREPARED), _seconds(0.8e-6)),
    Rule(f"{GRAPH}: cuGraphLaunch and 2 µs", _ours(GRAPH), lambda table: table.median(GRAPH, RAW) + 2e-6),
    Rule("awaited launch", _ours(AWAITED_ROW), _seconds(20e-6)),
    Rule("awaited launch: 0.4 x to_thread", _ours(AWAITED_ROW), _times(0.4, AWAITED_ROW, RAW_THREAD)),
    Rule(TASKS_ROW, _ours(TASKS_ROW), _seconds(8e-6)),
    *_copies("pageable", 0.5),
    *_copies("pinned", 1.05),
    Rule(f"{NEW_ARRAY}: 0.25 x PyTorch's cpu()", _ours(NEW_ARRAY), _times(0.25, NEW_ARRAY, TORCH)),
    Rule(ALLOCATION_ROW, _ours(ALLOCATION_ROW), _seconds(3e-6)),
    Rule(IDLE_ROW, _ours(IDLE_ROW), _seconds(0.005), "share"),
)
"""A share of less than half a percent is what shows as 0 %."""


def judged(table: Table) -> Iterator[Verdict]:
    """Every rule, against the medians of one run."""
    for rule in RULES:
        try:
            figure, limit = rule.figure(table), rule.limit(table)
        except NotMeasured as missing:
            yield Verdict(rule.name, None, missing=f"not measured: {missing}")
        else:
            yield Verdict(rule.name, figure <= limit, figure, limit, rule.unit)


def unjudged(why: str) -> Iterator[Verdict]:
    """Every rule, where figures mean nothing."""
    return (Verdict(rule.name, None, missing=why) for rule in RULES)


# --- how it is shown --------------------------------------------------------------------------------------------------


def shown(value: float, unit: Unit = "s") -> str:
    """A time with three digits in the unit that suits it, a share in percent, or bytes with four digits."""
    if unit == "share":
        return f"{100 * value:.2f} %"
    if unit == "B":
        largest, nbytes = next((each for each in _BYTES if value >= each[1]), ("B", 1))
        return f"{value / nbytes:.4g} {largest}"
    for name, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= 0.9995 * factor:  # and would be shown as 1000 of the next smaller unit
            return f"{value / factor:.3g} {name}"
    return f"{value * 1e9:.0f} ns"


def line(measure: Measure) -> str:
    """A line of the table that is printed while it grows."""
    spread = "  ".join(f"{shown(each, measure.unit):>9}" for each in (min(measure.values), measure.median, measure.p90))
    return f"  {measure.what:44}  {measure.who:32}  {spread}"


def comparisons(table: Table) -> Iterator[str]:
    """A line for each row that several subjects have: how many times as long as the best of ours each takes."""
    for what, measures in table.rows().items():
        others = [f"{who} {ratio:.2g}" for who, ratio in ratios(measures).items()]
        if len(others) > 1:
            yield f"  {what:44}  {'; '.join(others)}"


HEADER: Final = f"  {'':44}  {'':32}  {'min':>9}  {'median':>9}  {'p90':>9}"

_PICTURED = (4 * KIB, 256 * MIB)
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 960, 260, 190, 16, 34
_STYLE = (
    "<style>text{fill:#24292f}.ours{fill:#2f8f6b}.peer{fill:#8aa0b8}.note{fill:#6a737d}"
    "@media(prefers-color-scheme:dark){text{fill:#d6dbe0}.ours{fill:#4dbb90}.peer{fill:#5f7488}.note{fill:#98a2ad}}"
    "</style>"
)


def _in_picture(what: str) -> bool:
    return not what.startswith("copy") or any(what.endswith(f", {size(nbytes)}") for nbytes in _PICTURED)


def picture(table: Table, title: str, verdicts: Iterable[Verdict]) -> Iterator[str]:
    """Bars for every row, the longest of each across the page, with ratios to ours; for light and dark pages."""
    rows = {what: measures for what, measures in table.rows().items() if _in_picture(what)}
    judgements = [str(verdict) for verdict in verdicts]
    bars = sum(map(len, rows.values()))
    height = 70 + bars * _BAR + len(rows) * _GAP + 18 * len(judgements)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12">{_STYLE}'
    )
    yield f'<text x="8" y="24" font-size="15">{escape(title)}</text>'
    y = 40
    for what, measures in rows.items():
        y += _GAP
        yield f'<text x="8" y="{y - 7}" font-weight="bold">{escape(what)}</text>'
        yield from _bars(measures, y)
        y += _BAR * len(measures)
    for number, judgement in enumerate(judgements):
        yield f'<text x="8" y="{y + 28 + 18 * number}">{escape(judgement)}</text>'
    yield "</svg>"


def _bars(measures: list[Measure], y: int) -> Iterator[str]:
    longest = max(measure.median for measure in measures) or 1.0
    times = ratios(measures)
    for row, measure in enumerate(measures):
        top = y + row * _BAR
        width = max((_WIDTH - _LEFT - _RIGHT) * measure.median / longest, 1.0)
        kind = "ours" if measure.who.startswith(OURS) else "peer"
        ratio = f", {times[measure.who]:.2g} x" if times else ""
        yield f'<text x="{_LEFT - 8}" y="{top + 11}" text-anchor="end">{escape(measure.who)}</text>'
        yield f'<rect class="{kind}" x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR - 3}"/>'
        note = f"{shown(measure.median, measure.unit)}{ratio}"
        yield f'<text class="note" x="{_LEFT + width + 6:.1f}" y="{top + 11}">{note}</text>'
