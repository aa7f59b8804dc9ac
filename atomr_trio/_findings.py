"""What the simulator finds when it checks kernels: the words that ask for it, and a finding as a value.

What is checked, and how, is the business of ``atomr_cuda.sim.checks`` in the worker. This file knows no devices.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from ._errors import InvalidArgument
from ._util import shown
from .worker.checking import kept_lines

Check: TypeAlias = Literal["bounds", "initialised", "races", "barriers", "all"]
"""A word for something that the simulator checks, or for all of it: what `open_device` takes."""

VARIABLE: Final = "ATOMR_TRIO_CHECK"
EVERY: Final = tuple(word for word in get_args(Check) if word != "all")
_LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {"bounds": "bounds", "initialised": "uninitialised", "races": "race", "barriers": "barrier"}
)
"""What a finding of each check is called where a compiler would say "error"."""


def chosen_checks(check: Check | Collection[Check] | None, backend: str) -> tuple[str, ...]:
    """What `open_device` was asked to check, each word once, in the order of `EVERY`.

    Raises `InvalidArgument` for words that there are not, and where there is a real GPU.
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
            raise InvalidArgument(f"{origin} is made of {known}, and of no {shown(word)}")
    if words and backend != "sim":
        raise InvalidArgument(
            f"{origin} asks for what the simulator alone can check, and the backend is {backend!r}",
            advice="for a real GPU NVIDIA has compute-sanitizer, which runs the program under its control: "
            "`compute-sanitizer --target-processes all python ...`; or open the device with backend='sim'.",
        )
    return tuple(word for word in EVERY if word in words or "all" in words)


def _listed(check: object) -> list[object]:
    if not isinstance(check, Collection):
        raise InvalidArgument(f"check is a word or a collection of words, not {shown(check)}")
    return list(check)


@attrs.frozen
class OtherThread:
    """The other side of a `Finding`: who raced with its thread, or waits at another barrier than that."""

    block: tuple[int, int, int] | None
    """Index of its block in the grid: x, y, z."""
    thread: tuple[int, int, int] | None
    """Index of the thread in its block: x, y, z."""
    file: str | None
    """The file of the line, as `Finding.file`."""
    line: int | None
    """The number of the line that it was at, from 1."""
    what: str
    """What it did there, in words."""

    @property
    def place(self) -> str:
        """File and line, `"sum.cu:12"`."""
        return _place(self.file, self.line)


@attrs.frozen
class Finding:
    """Something wrong that the simulator has seen a kernel do. `str()` of it is one line, as a compiler writes it."""

    check: str
    """Which check found it: `"bounds"`, `"initialised"`, `"races"` or `"barriers"`."""
    kernel: str
    """The kernel's name in its image; for C++ the mangled one."""
    block: tuple[int, int, int] | None
    """Index of the thread's block in the grid: x, y, z."""
    thread: tuple[int, int, int] | None
    """Index of the thread in its block: x, y, z. Of many threads that do the same, the first."""
    file: str | None
    """The source file, as the compiler was told it is called (`NvrtcOptions.name`); `"<PTX>"` if the image has no line
    information, and None if there is no place."""
    line: int | None
    """The number of the line in it, from 1."""
    what: str
    """What is wrong, in one sentence."""
    address: int | None = None
    """The device address that was accessed."""
    array: str | None = None
    """What is there: the array and where it was made, a variable, shared memory; None where nothing ever was."""
    index: int | tuple[int, ...] | None = None
    """Where in the array that is, in elements: one number for each axis, or a single one outside of it."""
    other: OtherThread | None = None
    """The other party of a race, or of a barrier; None for a finding about one thread."""

    @property
    def place(self) -> str:
        """File and line, `"sum.cu:12"`."""
        return _place(self.file, self.line)

    @property
    def label(self) -> str:
        """What the finding is called in the text of `str()`: `"bounds"`, `"uninitialised"`, `"race"`, `"barrier"`."""
        return _LABELS.get(self.check, self.check)

    def __str__(self) -> str:
        return f"{self.place}: {self.label}: {self.what}"

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
    """What a class has fields for, its positions in grid and block as tuples."""
    known = {field.name: facts.get(field.name, None) for field in attrs.fields(cls)}
    for name in ("block", "thread"):
        known[name] = None if known[name] is None else tuple(known[name])
    known["file"] = None if known["file"] is None else from_here(known["file"])
    return known


def _place(file: str | None, line: int | None) -> str:
    name = file or "<unknown>"
    return name if line is None else f"{name}:{line}"


def from_here(path: str) -> str:
    """A path as a person writes it who stands in the working directory."""
    try:
        return path.removeprefix(os.path.join(os.getcwd(), ""))
    except FileNotFoundError:  # somebody has deleted the directory
        return path


def read_findings(lines: Iterable[Mapping[str, Any]]) -> tuple[Finding, ...]:
    """The findings that a worker has written down."""
    return tuple(map(Finding._from_worker, lines))


def kept_findings(folder: str | os.PathLike[str]) -> tuple[Finding, ...]:
    """What the workers of programs have found that ran with ``ATOMR_TRIO_CHECK_KEEP`` naming `folder`.

    For whoever runs other programs with ``ATOMR_TRIO_CHECK``, as ``python -m atomr_trio check`` does.

    Raises `OSError` for a file in it that cannot be read.
    """
    return read_findings(kept_lines(Path(folder)))


def in_short(findings: Sequence[Finding]) -> str:
    """The first finding, and how many more there are."""
    rest = len(findings) - 1
    return str(findings[0]) + (f" (and {rest} more)" if rest else "")
