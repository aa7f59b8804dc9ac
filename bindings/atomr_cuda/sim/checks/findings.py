"""What the checks of a launch have found, and how it is told: JSON lines in a file, and lines on stderr."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..process import complain

Three = tuple[int, int, int]
MOST = 100
"""Findings of one launch; what comes after them is only counted."""
FILE = "findings"


@dataclass(frozen=True, slots=True)
class Party:
    """The other lane of a race: who it is, what it did, and where."""

    block: Three
    thread: Three
    file: str
    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a kernel did wrong at one place in its source, by the first lane that was seen to do it."""

    check: str
    """`bounds`, `initialised`, `races` or `barriers`."""
    kernel: str
    block: Three
    thread: Three
    file: str
    line: int
    what: str
    """One sentence."""
    address: int
    array: str | None = None
    """The array that the address belongs to, or is nearest to; None where there is none."""
    index: int | tuple[int, ...] | None = None
    """Of the item: one number past the ends of an array and in one of a single dimension, else one for each."""
    other: Party | None = None

    def __str__(self) -> str:
        at = f"{self.file}:{self.line}: {self.check}: {self.what}"
        return f"{at} (kernel {self.kernel}, block {list(self.block)}, thread {list(self.thread)})"


class Findings:
    """What was found in one launch: one finding for each check and place (and, of a race, the other's place)."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._found: dict[Any, Finding] = {}
        self._times: dict[Any, int] = {}
        self.omitted: int = 0
        """How many findings there was no room for."""

    def __bool__(self) -> bool:
        return bool(self._found)

    def seen(self, key: Any, times: int = 1) -> bool:
        """Count what was seen so many times now; true if it needs no description: there is one, or there is no room."""
        if key in self._found:
            self._times[key] += times
            return True
        if len(self._found) >= MOST:
            self.omitted += 1
            return True
        return False

    def add(self, key: Any, finding: Finding, times: int = 1) -> None:
        """Take a finding whose key was not `seen` before."""
        self._found[key] = finding
        self._times[key] = times

    @property
    def all(self) -> list[Finding]:
        """The findings in the order in which they were made, each of which says how often it was seen."""
        return [_counted(finding, self._times[key]) for key, finding in self._found.items()]

    @property
    def summary(self) -> str:
        """The first finding, and how many more there are."""
        first, *others = self.all
        more = len(others) + self.omitted
        return f"{first}; {more} more finding{'s' if more > 1 else ''}" if more else str(first)

    def report(self) -> None:
        """Append the findings to the file, if there is a folder for it, and tell them on stderr."""
        found = self.all
        if self._folder:
            lines = "".join(f"{json.dumps(asdict(finding))}\n" for finding in found)
            # Who made the folder may have deleted it, and waits for nothing any more; or the disk is full.
            with contextlib.suppress(OSError), (self._folder / FILE).open("a", encoding="utf-8") as file:
                file.write(lines)
        for finding in found:
            complain(str(finding))
        if self.omitted:
            complain(f"{self.omitted} more findings of this launch are not told")


def _counted(finding: Finding, times: int) -> Finding:
    return finding if times == 1 else replace(finding, what=f"{finding.what} ({times:,} times in this launch)")
