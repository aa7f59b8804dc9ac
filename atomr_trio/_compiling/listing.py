"""The listing of NVRTC's front end: the files that it reads, and the directives that it follows.

NVRTC has no option that tells what a compile depends on. Its front end has: `-Xcudafe=--list=` writes a raw listing, in
12.x and in 13.x. Each line of it begins with a letter:

* `L 12 "a.h" 1`: the next line is line 12 of a.h; 1 where a file begins, 2 where one is come back to, neither for
  `#line`.
* `N`: a line that counts, as it is written. `S`: a line of a branch that is not taken; `#elif` may have been asked.
* `X`: the line before, with its macros expanded, if there are any: `#include PLACE(sub)` becomes `#include <sub/a.h>`.

So it is the compiler that says which directives count, what a macro made of the name of a file, and which file was
entered; a file that is known to be guarded is not entered again, and its `#include` is listed all the same. What
`__has_include` asks for is not expanded, and has to be read from the `N` line. In CUDA's own headers a macro may hand
its name on. Everywhere else, what is not the plain form makes an `Unknowable`.

This file knows texts, and no file system.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, NoReturn, Self

import attrs

from atomr_trio._compiling.directives import ASKS, CLOCKS, NAME, SPACE, TOLD, Include, may_ask, probes, wrappers

__all__ = ["Account", "Listing", "Unknowable", "Use"]


class Unknowable(Exception):
    """It cannot be known what a compile depends on; the text says why."""


class Listing:
    """The listing that the front end writes as it compiles, in memory; a context manager.

    `flag` is the option that NVRTC gets, `content()` is the listing.
    """

    def __init__(self) -> None:
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._descriptor = os.memfd_create("atomr-trio-listing", os.MFD_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    @property
    def flag(self) -> str:
        return f"-Xcudafe=--list=/proc/self/fd/{self._descriptor}"

    def refused(self, log: str) -> bool:
        """Tell from the log of a compile that failed whether it failed for the flag."""
        return any(problem in log for problem in ("Xcudafe", "Command-line error", "raw listing"))

    def content(self) -> bytes:
        """Return the listing; empty when nothing was written."""
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            return file.read()


_MOVE = re.compile(rb'^L \d+ "(.*)"(?: ([12]))?\r?$', re.MULTILINE)
_ENTERS: Final = b"1"
_LEAVES: Final = b"2"
_LISTED_SPLICE = re.compile(rb"\\[ \t]*\r?\n[NS]")
_LINE = re.compile(rb"^([NSX])(.*)$", re.MULTILINE)
_TAKEN = re.compile(rb"^(?:N|S(?=[ \t]*#[ \t]*elif))(.*)$", re.MULTILINE)

# A line of a comment that runs over several may end it, and go on with a directive.
_INCLUDE = re.compile(
    rb"(?:^|\*/)[ \t]*(?:#|%:)" + SPACE + rb"(include_next|include|import|embed)\b" + SPACE + NAME, re.MULTILINE
)
_OWN_INCLUDE = re.compile(rb"^[NX][ \t]*(?:#|%:)" + SPACE + rb"(include_next|include)\b" + SPACE + NAME, re.MULTILINE)
_DIRECTIVE = re.compile(rb"[ \t]*(?:#|%:)")
_WITHOUT_MACROS = re.compile(
    rb"[ \t]*(?:#|%:)[ \t]*(?:include|include_next|pragma|error|warning|endif|else|ifn?def|undef|line)\b"
)
"""Directives whose identifiers no condition sees."""
_LITERAL = re.compile(rb'"(?:[^"\\\n]|\\.)*"')
_CONDITION = re.compile(rb"[ \t]*(?:#|%:)[ \t]*(?:if|elif)\b")
_ELIF = re.compile(rb"[ \t]*(?:#|%:)[ \t]*elif")
_TESTED = re.compile(rb"[ \t]*(?:#|%:)[ \t]*(?:el)?ifn?def[ \t]+__has_(?:include|include_next|embed)\b")
_TESTED_BY_DEFINED = re.compile(rb"\bdefined[ \t]*(?:\([ \t]*__has_(\w+)[ \t]*\)|__has_(\w+)\b)")
_PROBE = re.compile(rb'\b__has_include[ \t]*\([ \t]*(?:<([^>\n]+)>|"([^"\n]+)")[ \t]*\)')
_INCLUDE_NEXT = re.compile(rb'[ \t]*(?:#|%:)[ \t]*include_next[ \t]*(?:<[^>\n]+>|"[^"\n]+")')
_COMMENT = re.compile(rb"//.*")
_IN_COMMENT_OR_TEXT = re.compile(rb"[\"']|/\*|\*/")
_TRIGRAPH = re.compile(rb"\?\?[/=]")


@attrs.frozen
class Use:
    """One `#include` that was followed, or that stands in a comment."""

    file: str
    """The file that it is in."""
    include: Include
    entered: str | None
    """The file that was entered by it; None when that was known to be guarded, or when nobody followed it."""


@attrs.define
class Account:
    """The facts of a listing. Made by `Account.of`."""

    entered: dict[str, None] = attrs.Factory(dict)
    """The files that were entered, in order."""
    uses: list[Use] = attrs.Factory(list)
    probes: set[tuple[str, Include]] = attrs.Factory(set)
    """What `__has_include` asked for, and in which file."""
    _own_texts: list[tuple[str, bytes]] = attrs.Factory(list)
    """The lines of CUDA's own headers that ask for files, by the name of the header."""
    _other_texts: list[bytes] = attrs.Factory(list)
    """The lines of all others."""
    _directives: list[bytes] = attrs.Factory(list)
    """Those in which a macro counts, of all others."""

    @classmethod
    def of(cls, content: bytes, is_own: Callable[[str], bool], macros: Iterable[str]) -> Account:
        """Return what a listing says.

        `is_own` tells CUDA's own headers from others, `macros` are texts that the compiler got by its options. Raises
        `Unknowable` for what is not understood.
        """
        account = cls()
        for text in macros:
            macro = text.encode(errors="surrogateescape")
            if ASKS.search(macro) or CLOCKS.search(macro):
                raise Unknowable(f"a macro of the options stands for {_asks(macro)}")
            account._directives.append(macro)
        for file, segment, entered in _segments(content):
            if entered is not None:
                account.entered[entered] = None
            if segment:
                found = account._of_own(file, segment) if is_own(file) else account._of_other(file, segment)
                account._follow(file, found, entered, is_own)
        if not account.entered:
            raise Unknowable("this NVRTC does not tell which files it reads")
        account._finish()
        return account

    def _follow(self, file: str, found: list[Include], entered: str | None, is_own: Callable[[str], bool]) -> None:
        if entered is not None and not found and not is_own(entered):
            raise Unknowable(f"nothing tells what included {entered}")
        for include in found[:-1]:
            self.uses.append(Use(file, include, None))
        if found:
            self.uses.append(Use(file, found[-1], entered))

    def _of_own(self, file: str, segment: bytes) -> list[Include]:
        self._own_texts.append((file, segment))
        return [
            Include(os.fsdecode(angled or quoted), bool(quoted), kind == b"include_next")
            for kind, angled, quoted in _OWN_INCLUDE.findall(segment)
            if angled or quoted
        ]

    def _of_other(self, file: str, segment: bytes) -> list[Include]:
        segment = _LISTED_SPLICE.sub(b"", segment)
        if _TRIGRAPH.search(segment):
            raise Unknowable(f"there is a trigraph in {file}")
        found: list[Include] = []
        lines: list[bytes] = []
        for mark, line in _LINE.findall(segment):
            if mark == b"S" and not _ELIF.match(line):
                continue
            lines.append(line)
            if b"*/" in line or (_DIRECTIVE.match(line) and not _WITHOUT_MACROS.match(line)):
                self._directives.append(_without_comment(_LITERAL.sub(b" ", line)))
            for include, kind in _includes(line):
                if mark == b"X" and kind != b"include":
                    raise Unknowable("a macro names the file of an #include_next")
                found.append(include)
            if mark != b"X":
                self._scan(file, line)
            elif TOLD.search(line):
                raise Unknowable(f"the result depends on when it was compiled, in {file}")
        self._other_texts.append(b"\n".join(lines))
        return found

    def _scan(self, file: str, line: bytes) -> None:
        """Note the plain `__has_include` of a line; raise `Unknowable` for whatever else could be one."""
        clock = CLOCKS.search(line)
        if clock:
            raise Unknowable(f"the result depends on when it was compiled: {clock[0].decode()} in {file}")
        kinds = [match[1] for match in _INCLUDE.finditer(line)]
        if b"import" in kinds or b"embed" in kinds:
            raise Unknowable(f"there is an #{kinds[0].decode()}")
        if not ASKS.search(line):
            return
        line = _without_comment(line)
        if not _DIRECTIVE.match(line) and b"*/" not in line:
            return  # outside of a directive it asks for nothing
        if _CONDITION.match(line):
            for angled, quoted in _PROBE.findall(line):
                self.probes.add((file, Include(os.fsdecode(angled or quoted), bool(quoted))))
            line = _TESTED_BY_DEFINED.sub(b"", _PROBE.sub(b"", line))
        if ASKS.search(_INCLUDE_NEXT.sub(b"", _TESTED.sub(b"", line))):
            raise Unknowable(f"a macro or another form than the plain one stands for {_asks(line)} in {file}")

    def _finish(self) -> None:
        """Say what CUDA's own headers ask for, which may be by macros that one of them defines for the others."""
        if may_ask(self._directives):
            raise Unknowable("a macro may paste __has_include together")
        known = wrappers(_taken(text) for _, text in self._own_texts if b"__has_" in text)
        used = re.compile(rb"\b(?:" + b"|".join((b"__has_(?:include|embed)(?:_next)?", *sorted(known))) + rb")\b")
        for file, text in self._own_texts:
            if used.search(text):
                found, problem = probes(_taken(text), known)
                if problem:
                    raise Unknowable(problem)
                self.probes |= {(file, each) for each in found}
        named = re.compile(rb"\b(?:" + b"|".join(sorted(known)) + rb")\b")
        if known and any(map(named.search, self._other_texts)):
            raise Unknowable("a macro of CUDA's own headers stands for __has_include")


def _taken(segment: bytes) -> bytes:
    """The lines that count, without their marks."""
    return b"\n".join(_TAKEN.findall(_LISTED_SPLICE.sub(b"", segment)))


def _asks(line: bytes) -> str:
    match = ASKS.search(line) or CLOCKS.search(line)
    return match[0].decode() if match else ""


def _segments(content: bytes) -> Iterator[tuple[str, bytes, str | None]]:
    """The lines between two changes of the file: the file, the lines, and which file is entered after them."""
    stack: list[str] = []
    position = 0
    for move in _MOVE.finditer(content):
        name, way = os.fsdecode(move[1]), move[2]
        if not stack:
            stack.append(name)
        yield stack[-1], content[position : move.start()], name if way == _ENTERS else None
        position = move.end() + 1
        if way == _ENTERS:
            stack.append(name)
        elif way == _LEAVES:
            stack.pop()
            if not stack:
                _refuse_listing()
    if stack:
        yield stack[-1], content[position:], None


def _refuse_listing() -> NoReturn:
    raise Unknowable("the listing of this NVRTC leaves more files than it enters")


def _includes(line: bytes) -> Iterator[tuple[Include, bytes]]:
    for kind, angled, quoted in _INCLUDE.findall(line):
        if kind in (b"include", b"include_next") and (angled or quoted):
            yield Include(os.fsdecode(angled or quoted), bool(quoted), kind == b"include_next"), kind


def _without_comment(line: bytes) -> bytes:
    """A line without the comment at its end, where nothing speaks against its being one."""
    return line if _IN_COMMENT_OR_TEXT.search(line) else _COMMENT.sub(b"", line)
