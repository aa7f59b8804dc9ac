"""What the benchmarks have in common: who is measured, values, the table, verdicts, and how they are shown.

Nothing in here measures anything.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import attrs

Unit = Literal["s", "share", "B"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_BYTES: Final = (("GiB", GIB), ("MiB", MIB), ("KiB", KIB))

OURS, RAW, NATIVE = "atomr_trio", "ctypes", "native code"
CORE, CUPY, TORCH, NUMBA = "cuda.core", "CuPy", "PyTorch", "numba-cuda"
PEERS = (CORE, CUPY, TORCH, NUMBA)
"""The bare driver, from Python and from native code, is no peer: it is the floor."""

IMPORT_ROW = "import"
START_ROW = "process start to first result"
IDLE_ROW = "CPU use of an idle device"

Host = Literal["pageable", "pinned", "new array"]


def size(nbytes: int) -> str:
    """Bytes in the largest unit that they are a whole number of."""
    unit, factor = next((each for each in _BYTES if nbytes and nbytes % each[1] == 0), ("B", 1))
    return f"{nbytes // factor} {unit}"


def _floats(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(values)


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

    def over(self, other: Measure) -> float:
        """How much longer it took than the other of the same repetition: the median, as a share of that."""
        return statistics.median(one / compared for one, compared in zip(self.values, other.values, strict=True)) - 1

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

    def of(self, what: str, who: str) -> Measure:
        """Raises `NotMeasured`."""
        for measure in self.measures:
            if (measure.what, measure.who) == (what, who):
                return measure
        raise NotMeasured(f"{who}: {what}")

    def median(self, what: str, who: str) -> float:
        """Raises `NotMeasured`."""
        return self.of(what, who).median

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
class Verdict:
    """Whether a rule holds; None if it could not be judged."""

    name: str
    held: bool | None
    figure: float = math.nan
    limit: float = math.nan
    unit: Unit = "s"
    missing: str = ""
    paired: bool = False
    """The figure is a share of the other, over it."""
    other: float | None = None
    """What the figure is compared with, if it is something measured."""

    @property
    def ratio(self) -> float | None:
        """So many times what the other takes; None where there is no other."""
        if self.other:
            return self.figure / self.other
        return 1 + self.figure if self.paired else None

    @property
    def target(self) -> float | None:
        """What the ratio may be at most; None where there is no other."""
        if self.other:
            return self.limit / self.other
        return 1 + self.limit if self.paired else None

    @property
    def margin(self) -> float:
        """The share of the limit that is left, or of the other where nothing may come on top; negative where missed."""
        return 1 - self.figure / self.limit if self.limit else -self.figure

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
        ratios = {"ratio": self.ratio, "target": self.target}
        return {**facts, "figure": self.figure, "limit": self.limit, **ratios, "margin": self.margin}


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
