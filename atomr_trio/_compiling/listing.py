"""The listing of NVRTC's front end: the files that it reads, and the directives that it follows.

NVRTC has no option that tells what a compile depends on. Its front end has: `-Xcudafe=--list=` writes a raw listing, in
12.x and in 13.x. Each line of it begins with a letter:

* `L 12 "a.h" 1`: the next line is line 12 of a.h; 1 where a file begins, 2 where one is come back to, neither for
  `#line`.
* `N`: a line that counts, as it is written. `S`: a line of a branch that is not taken; `#elif` may have been asked.
* `X`: the line before, with its macros expanded, if there are any: `#include PLACE(sub)` becomes `#include <sub/a.h>`.

So it is the compiler that says which directives count, what a macro made of the name of a file, and which file was
entered; a file that is known to be guarded is not entered again, and its `#include` is listed all the same. What
`__has_include` asks for is not expanded, and has to be read from the `N` line. A wrapper, which is a macro that hands
its only parameter to `__has_include`, is understood where it is given a name in a condition, and where no macro could
replace a part of that name: the compiler expands what it is given. Whatever else it may be used for makes an
`Unknowable`, and so does each other form of `__has_include`. In CUDA's own headers more is taken for granted.

This file knows texts, and no file system.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, NoReturn, Self

import attrs

from atomr_trio._compiling.directives import (
    ASKS,
    CLOCKS,
    NAME,
    PLAIN_NAME,
    SPACE,
    TOLD,
    Include,
    defines_one_of,
    identifiers_in,
    may_ask,
    probes,
    without_parameters,
    wrapper_in,
    wrappers,
)

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
_ELIF: Final = b"elif"

# A line of a comment that runs over several may end it, and go on with a directive.
_INCLUDE = re.compile(
    rb"(?:^|\*/)\s*(?:#|%:)" + SPACE + rb"(include_next|include|import|embed)\b" + SPACE + NAME, re.MULTILINE
)
_OWN_INCLUDE = re.compile(rb"^[NX][ \t]*(?:#|%:)" + SPACE + rb"(include_next|include)\b" + SPACE + NAME, re.MULTILINE)
_DIRECTIVE = re.compile(rb"\s*(?:#|%:)")
_WITHOUT_MACROS = re.compile(
    rb"[ \t]*(?:#|%:)[ \t]*(?:include|include_next|pragma|error|warning|endif|else|ifn?def|undef|line)\b"
)
"""Directives whose identifiers no condition sees."""
_LITERAL = re.compile(rb'"(?:[^"\\\n]|\\.)*"')
_CONDITION = re.compile(rb"[ \t]*(?:#|%:)[ \t]*(?:if|elif)\b")
_TESTED = re.compile(rb"[ \t]*(?:#|%:)[ \t]*(?:el)?ifn?def[ \t]+__has_(?:include|include_next|embed)\b")
_TESTED_BY_DEFINED = re.compile(rb"\bdefined[ \t]*(?:\([ \t]*__has_(\w+)[ \t]*\)|__has_(\w+)\b)")
_PROBE = re.compile(rb'\b__has_include[ \t]*\([ \t]*(?:<([^>\n]+)>|"([^"\n]+)")[ \t]*\)')
_INCLUDE_NEXT = re.compile(rb'[ \t]*(?:#|%:)[ \t]*include_next[ \t]*(?:<[^>\n]+>|"[^"\n]+")')
_UNCLEAR_QUOTE = re.compile(rb"'|/\*|\*/|R\"")
"""What makes it unclear where a string begins: a quote in a comment or in a character, or a raw string."""
_COMMENT = re.compile(rb"//.*")
_GOES_ON = re.compile(rb"\*/\s*\S")
"""The end of a comment with something after it, which may be a directive."""
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
    """The lines of CUDA's own headers, by the name of the header."""
    _other_texts: list[tuple[str, bytes]] = attrs.Factory(list)
    """The lines of all others, as they are written."""
    _option_texts: list[bytes] = attrs.Factory(list)
    _wrappers: set[bytes] = attrs.Factory(set)
    """The macros of all others that stand for `__has_include`."""
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
            account._option_texts.append(macro)
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
            if mark == b"S" and _ELIF not in line:
                continue
            if _GOES_ON.search(line):
                self._directives.append(_without_literals(line))
            elif _DIRECTIVE.match(line) and not _WITHOUT_MACROS.match(line):
                self._directives.append(without_parameters(_without_comment(_without_literals(line))))
            for include, kind in _includes(line):
                if mark == b"X" and kind != b"include":
                    raise Unknowable("a macro names the file of an #include_next")
                found.append(include)
            if mark != b"X":
                lines.append(line)
                self._scan(file, line)
            elif TOLD.search(line):
                raise Unknowable(f"the result depends on when it was compiled, in {file}")
        self._other_texts.append((file, b"\n".join(lines)))
        return found

    def _scan(self, file: str, line: bytes) -> None:
        """Note the plain `__has_include` of a line, or a wrapper; raise `Unknowable` for all else that could be one."""
        clock = CLOCKS.search(line)
        if clock:
            raise Unknowable(f"the result depends on when it was compiled: {clock[0].decode()} in {file}")
        kinds = [match[1] for match in _INCLUDE.finditer(line)]
        if b"import" in kinds or b"embed" in kinds:
            raise Unknowable(f"there is an #{kinds[0].decode()}")
        if not ASKS.search(line):
            return
        line = _without_comment(line)
        if not _DIRECTIVE.match(line) and not _GOES_ON.search(line):
            return  # outside of a directive it asks for nothing
        wrapper = wrapper_in(line)
        if wrapper is not None:
            self._wrappers.add(wrapper)
            return
        if _CONDITION.match(line):
            for angled, quoted in _PROBE.findall(line):
                self.probes.add((file, Include(os.fsdecode(angled or quoted), bool(quoted))))
            line = _TESTED_BY_DEFINED.sub(b"", _PROBE.sub(b"", line))
        if ASKS.search(_INCLUDE_NEXT.sub(b"", _TESTED.sub(b"", line))):
            raise Unknowable(f"a macro or another form than the plain one stands for {_asks(line)} in {file}")

    def _finish(self) -> None:
        """Say what is asked for by wrappers, which one file defines for others, and what CUDA's own headers ask for."""
        known = wrappers(_taken(text) for _, text in self._own_texts if b"__has_" in text) | self._wrappers
        if may_ask(self._directives, known):
            raise Unknowable("a macro may paste __has_include together")
        given = self._asked_by_wrappers(known) if known else set[str]()
        used = re.compile(rb"\b(?:" + b"|".join((b"__has_(?:include|embed)(?:_next)?", *sorted(known))) + rb")\b")
        for file, text in self._own_texts:
            if used.search(text):
                found, by_wrapper, problem = probes(_taken(text), known)
                if problem:
                    raise Unknowable(problem)
                self.probes |= {(file, each) for each in found | by_wrapper}
                given |= {each.name for each in by_wrapper}
        identifiers = identifiers_in(given)
        if identifiers:
            self._check_not_replaced(identifiers)

    def _asked_by_wrappers(self, known: frozenset[bytes]) -> set[str]:
        """Note what wrappers are asked for outside of CUDA's own headers, and return the names."""
        names = b"|".join(sorted(known))
        named = re.compile(rb"\b(?:" + names + rb")\b")
        if any(map(named.search, self._option_texts)):
            raise Unknowable("a macro of the options stands for __has_include")
        asked = re.compile(rb"\b(?:" + names + rb")[ \t]*\([ \t]*" + PLAIN_NAME + rb"[ \t]*\)")
        tested = re.compile(rb"\bdefined[ \t]*(?:\([ \t]*(?:" + names + rb")[ \t]*\)|(?:" + names + rb")\b)")
        given = set[str]()
        for file, text in self._other_texts:
            if not named.search(text):
                continue
            for line in filter(named.search, text.split(b"\n")):
                rest = _without_comment(line)
                if not _GOES_ON.search(rest) and (not _DIRECTIVE.match(rest) or _WITHOUT_MACROS.match(rest)):
                    continue
                if wrapper_in(rest):
                    continue
                if _CONDITION.match(rest):
                    for angled, quoted in asked.findall(rest):
                        include = Include(os.fsdecode(angled or quoted), bool(quoted))
                        self.probes.add((file, include))
                        given.add(include.name)
                    rest = tested.sub(b"", asked.sub(b"", rest))
                match = named.search(rest)
                if match:
                    raise Unknowable(
                        f"{match[0].decode()} stands for __has_include, and not in the plain form in {file}"
                    )
        return given

    def _check_not_replaced(self, identifiers: frozenset[bytes]) -> None:
        """Raise `Unknowable` if a macro may replace a part of the name that a wrapper is given."""
        texts = [text for _, text in self._other_texts]
        replaced = defines_one_of(identifiers, (*texts, *(_taken(text) for _, text in self._own_texts)))
        if replaced is None:
            option = re.compile(rb"(?:\b|\bD)(" + b"|".join(sorted(identifiers)) + rb")\b")
            replaced = next((match[1] for match in map(option.search, self._option_texts) if match), None)
        if replaced is not None:
            raise Unknowable(f"a macro {replaced.decode()} may change the name that __has_include is given by another")


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


def _without_literals(line: bytes) -> bytes:
    """A line without the strings in it, where it is clear which they are."""
    return line if _UNCLEAR_QUOTE.search(line) else _LITERAL.sub(b" ", line)


def _without_comment(line: bytes) -> bytes:
    """A line without the comment at its end, where nothing speaks against its being one."""
    return line if _IN_COMMENT_OR_TEXT.search(line) else _COMMENT.sub(b"", line)
