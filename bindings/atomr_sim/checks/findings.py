"""The findings of a launch's checks, and their output: JSON lines in a file, and lines on stderr."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .._environment import complain

Three = tuple[int, int, int]
MOST = 100
"""The number of findings of one launch that are described; further ones are only counted."""
FILE = "findings"


@dataclass(frozen=True, slots=True)
class Party:
    """The other lane of a race: its position, its access, and the place in the source."""

    block: Three
    thread: Three
    file: str
    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One error of a kernel at one place in its source, with the first lane for which it was seen."""

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
    """The array that the address belongs to, or is nearest to; None if there is none."""
    index: int | tuple[int, ...] | None = None
    """The index of the item: one number for each dimension; one number alone outside of an array."""
    other: Party | None = None

    def __str__(self) -> str:
        at = f"{self.file}:{self.line}: {self.check}: {self.what}"
        return f"{at} (kernel {self.kernel}, block {list(self.block)}, thread {list(self.thread)})"


class Findings:
    """The findings of one launch: one for each check and place (and, for a race, the other place)."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._found: dict[Any, Finding] = {}
        self._times: dict[Any, int] = {}
        self.omitted: int = 0
        """The number of findings for which there was no room."""

    def __bool__(self) -> bool:
        return bool(self._found)

    def seen(self, key: Any, times: int = 1) -> bool:
        """Count the times that a finding was seen now. Return true if it needs no description: it has one, or there is
        no room."""
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
        """Return the findings in the order in which they were made, each with the number of times that it was seen."""
        return [_counted(finding, self._times[key]) for key, finding in self._found.items()]

    @property
    def summary(self) -> str:
        """Describe the first finding, and say how many more there are."""
        first, *others = self.all
        more = len(others) + self.omitted
        return f"{first}; {more} more finding{'s' if more > 1 else ''}" if more else str(first)

    def report(self) -> None:
        """Append the findings to the file, if there is a folder for it, and write them to stderr."""
        found = self.all
        if self._folder:
            lines = "".join(f"{json.dumps(asdict(finding))}\n" for finding in found)
            # The owner of the folder may have deleted it, and then nobody reads it; or the disk is full.
            with contextlib.suppress(OSError), (self._folder / FILE).open("a", encoding="utf-8") as file:
                file.write(lines)
        for finding in found:
            complain(str(finding))
        if self.omitted:
            complain(f"{self.omitted} more findings of this launch are not shown")


def _counted(finding: Finding, times: int) -> Finding:
    return finding if times == 1 else replace(finding, what=f"{finding.what} ({times:,} times in this launch)")
