"""The source location of each instruction of a PTX module.

The compiler writes `.file` and `.loc` directives (`-lineinfo`), which the parser skips. They are read here from the
same text, and found by the instruction's line in the PTX.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass

Place = tuple[str, int]
"""A file and a line in it."""

_FILE = re.compile(r'^[ \t]*\.file[ \t]+(\d+)[ \t]+"([^"\n]*)"', re.MULTILINE)
_LOCATION = re.compile(
    r"^[ \t]*\.loc[ \t]+(\d+[ \t]+\d+[ \t]+\d+)(?:[^\n]*?inlined_at[ \t]+(\d+[ \t]+\d+[ \t]+\d+))?", re.MULTILINE
)
_FUNCTION = re.compile(r"^[^\n/]*\.(?:entry|func)\b", re.MULTILINE)
PTX = "<PTX>"
"""The name of the file when the module does not name its source; the line is then that of the PTX."""


@dataclass(frozen=True, slots=True)
class Site:
    """The location of an instruction, and where the function from which it was inlined is called, innermost first."""

    file: str
    line: int
    callers: tuple[Place, ...] = ()

    def __str__(self) -> str:
        called = "".join(f", called from {file}:{line}" for file, line in self.callers)
        return f"{self.file}:{self.line}{called}"


class Sites:
    """The sites of one module, each with a number, which generated code passes on."""

    def __init__(self, text: str) -> None:
        self._files: dict[int, str] = {int(number): name for number, name in _FILE.findall(text)}
        self._lines: list[int] = []
        self._locations: list[Site | None] = []
        """From each of `_lines` on: the location of the code; None where the directives do not tell."""
        self._known: list[Site] = []
        self._numbers: dict[Site, int] = {}
        self.granule: int = 4
        """The fewest bytes that an instruction of the module accesses, of those that were translated so far."""
        self._read(text)

    def __getitem__(self, number: int) -> Site:
        return self._known[number]

    def number(self, line: int) -> int:
        """Return the number of the site to which this line of the PTX belongs."""
        at = bisect.bisect_right(self._lines, line) - 1
        site = (self._locations[at] if at >= 0 else None) or Site(PTX, line)
        if site not in self._numbers:
            self._numbers[site] = len(self._known)
            self._known.append(site)
        return self._numbers[site]

    def _read(self, text: str) -> None:
        """Read the directives in order; those of a function end where the next one begins."""
        callers: dict[str, str | None] = {}
        counted = at = 0
        line = 1
        for found in sorted([*_LOCATION.finditer(text), *_FUNCTION.finditer(text)], key=re.Match.start):
            at = found.start()
            line += text.count("\n", counted, at)
            counted = at
            self._lines.append(line)
            if found.re is _FUNCTION:
                callers = {}
                self._locations.append(None)
            else:
                where = " ".join(found[1].split())
                callers.setdefault(where, found[2] and " ".join(found[2].split()))
                self._locations.append(self._site(where, found[2] and " ".join(found[2].split()), callers))

    def _site(self, where: str, caller: str | None, callers: dict[str, str | None]) -> Site | None:
        """Return the site of a location; line 0 is the compiler's own code."""
        file, line = self._place(where)
        chain: list[str] = []
        while caller and caller not in chain:
            chain.append(caller)
            caller = callers.get(caller)
        return Site(file, line, tuple(map(self._place, chain))) if line else None

    def _place(self, where: str) -> Place:
        file, line, _column = where.split()
        return self._files.get(int(file), PTX), int(line)
