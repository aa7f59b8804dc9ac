"""The findings of the simulator's kernel checks as values, and the names of the checks.

The checks themselves are in ``atomr_sim.checks``, in the worker. This file knows no devices.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from .._wire.checking import DEFAULT_VARIABLE, expect, kept_lines
from .errors import InvalidArgument
from .html import table
from .util import shown

Check: TypeAlias = Literal["bounds", "initialised", "races", "barriers", "all"]
"""The name of a check of the simulator, or "all"; see `open_device`."""

VARIABLE: Final = DEFAULT_VARIABLE
EVERY: Final = tuple(word for word in get_args(Check) if word != "all")
_LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {"bounds": "bounds", "initialised": "uninitialised", "races": "race", "barriers": "barrier"}
)
"""The word for a finding of each check, where a compiler would print "error"."""


def chosen_checks(check: Check | Collection[Check] | None, backend: str) -> tuple[str, ...]:
    """Return the checks that were given to `open_device`, each once, in the order of `EVERY`.

    Raises `InvalidArgument` for unknown names, and for a real GPU.
    """
    if check is None:
        words: list[object] = [word.strip() for word in os.environ.get(VARIABLE, "").split(",") if word.strip()]
        origin = f"the environment variable {VARIABLE}"
    else:
        words = [check] if isinstance(check, str) else _listed(check)
        origin = "check"
    for word in words:
        if word not in (*EVERY, "all"):
            known = ", ".join(map(repr, (*EVERY, "all")))
            raise InvalidArgument(f"{origin} takes {known}, not {shown(word)}")
    if words and backend != "sim":
        raise InvalidArgument(
            f"{origin} needs the simulator, and the backend is {backend!r}",
            advice="for a real GPU use NVIDIA's compute-sanitizer, which runs the program under its control: "
            "`compute-sanitizer --target-processes all python ...`; or open the device with backend='sim'.",
        )
    return tuple(word for word in EVERY if word in words or "all" in words)


def _listed(check: object) -> list[object]:
    if not isinstance(check, Collection):
        raise InvalidArgument(f"check is the name of a check or a collection of names, not {shown(check)}")
    return list(check)


@attrs.frozen
class OtherThread:
    """The other thread of a `Finding`: it raced with the finding's thread, or waits at another barrier."""

    block: tuple[int, int, int] | None
    """Index of its block in the grid: x, y, z."""
    thread: tuple[int, int, int] | None
    """Index of the thread in its block: x, y, z."""
    file: str | None
    """The file of the line, as `Finding.file`."""
    line: int | None
    """The number of its line, from 1."""
    what: str
    """Its action there, in words."""

    @property
    def place(self) -> str:
        """The file and line, `"sum.cu:12"`."""
        return _place(self.file, self.line)


@attrs.frozen
class Finding:
    """An error of a kernel that the simulator has found. `str()` of it is one line in the format of a compiler."""

    check: str
    """The check that found it: `"bounds"`, `"initialised"`, `"races"` or `"barriers"`."""
    kernel: str
    """The kernel's name in its image; for C++ the mangled one."""
    block: tuple[int, int, int] | None
    """Index of the thread's block in the grid: x, y, z."""
    thread: tuple[int, int, int] | None
    """Index of the thread in its block: x, y, z. If many threads do the same, this is the first."""
    file: str | None
    """The source file, by the name given to the compiler (`NvrtcOptions.name`); `"<PTX>"` if the image has no line
    information, and None if there is no place."""
    line: int | None
    """The number of the line in it, from 1."""
    what: str
    """A sentence that says what is wrong."""
    address: int | None = None
    """The device address that was accessed."""
    array: str | None = None
    """The owner of `address`: the array and where it was made, a variable, shared memory; None if it never had one."""
    index: int | tuple[int, ...] | None = None
    """The place in the array, in elements: one number for each axis, or a single number outside of the array."""
    other: OtherThread | None = None
    """The other thread of a race, or of a barrier; None for a finding about one thread."""

    @property
    def place(self) -> str:
        """The file and line, `"sum.cu:12"`."""
        return _place(self.file, self.line)

    @property
    def label(self) -> str:
        """The word for the finding in the text of `str()`: `"bounds"`, `"uninitialised"`, `"race"`, `"barrier"`."""
        return _LABELS.get(self.check, self.check)

    def __str__(self) -> str:
        return f"{self.place}: {self.label}: {self.what}"

    def _repr_html_(self) -> str:
        """Return a table of what is known, for a notebook."""
        other = None if self.other is None else f"{self.other.place}: {self.other.what}, thread {self.other.thread}"
        rows = (
            *(("place", self.place), ("what", self.what), ("kernel", self.kernel), ("block", self.block)),
            *(("thread", self.thread), ("address", None if self.address is None else f"{self.address:#x}")),
            *(("array", self.array), ("index", self.index), ("other thread", other)),
        )
        return table(f"Finding: {self.label}", rows)

    @classmethod
    def _from_worker(cls, facts: Mapping[str, Any]) -> Finding:
        """Read a line of the worker's file."""
        known = _fields_of(cls, facts)
        other = known.get("other")
        index = known.get("index")
        known["other"] = None if other is None else OtherThread(**_fields_of(OtherThread, other))
        known["index"] = tuple(index) if isinstance(index, list) else index
        return cls(**known)


def _fields_of(cls: type[attrs.AttrsInstance], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that a class has fields for, with positions in grid and block as tuples."""
    known = {field.name: facts.get(field.name, None) for field in attrs.fields(cls)}
    for name in ("block", "thread"):
        known[name] = None if known[name] is None else tuple(known[name])
    known["file"] = None if known["file"] is None else from_here(known["file"])
    return known


def _place(file: str | None, line: int | None) -> str:
    name = file or "<unknown>"
    return name if line is None else f"{name}:{line}"


def from_here(path: str) -> str:
    """Return a path relative to the working directory, if it is below it."""
    try:
        return path.removeprefix(os.path.join(os.getcwd(), ""))
    except FileNotFoundError:  # the directory was deleted
        return path


def read_findings(lines: Iterable[Mapping[str, Any]]) -> tuple[Finding, ...]:
    """Return the findings that a worker has written."""
    return tuple(map(Finding._from_worker, lines))


def kept_findings(folder: str | os.PathLike[str]) -> tuple[Finding, ...]:
    """Return the findings of programs that ran with ``ATOMR_TRIO_CHECK_KEEP`` set to `folder`.

    Use it to run other programs with ``ATOMR_TRIO_CHECK``, as ``python -m atomr_trio check`` does.

    Raises `OSError` for a file in it that cannot be read.
    """
    return read_findings(kept_lines(Path(folder)))


def expect_findings(findings: Sequence[Finding]) -> None:
    """Tell ``python -m atomr_trio check``, if it runs this program, that findings were expected. Raises `OSError`."""
    expect([attrs.asdict(finding) for finding in findings])


def in_short(findings: Sequence[Finding]) -> str:
    """Return the first finding, and the number of the others."""
    rest = len(findings) - 1
    return str(findings[0]) + (f" (and {rest} more)" if rest else "")
