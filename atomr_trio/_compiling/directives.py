"""What a text of C++ says to the preprocessor about files and clocks, as far as patterns can tell.

Two kinds of answers are needed. Before a compile a rough one does: which names may be included, so that those files
are looked at. After it, `Account` (listing.py) asks for exact ones: a plain `#include` and a plain `__has_include` are
understood, and everything else that has to do with them makes a compile that is not kept.

This file knows texts, and no file system.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from atomr_trio._values.long_texts import in_turn

__all__ = [
    "ASKS",
    "CLOCKS",
    "NAME",
    "PLAIN_NAME",
    "SPACE",
    "TOLD",
    "Include",
    "computes_names",
    "defines_one_of",
    "identifiers_in",
    "included_names",
    "may_ask",
    "may_tell_the_time",
    "names_in",
    "probes",
    "usual",
    "without_parameters",
    "wrapper_in",
    "wrappers",
]

# A search holds the interpreter's lock until it is through with a text, and some headers have half a megabyte. So these
# patterns begin with a letter that is searched for quickly, and other spellings become that one first.
_OTHER_SPELLINGS: Final = ((b"??/", b"\\"), (b"??=", b"#"), (b"%:", b"#"))
_SPLICE = re.compile(rb"\\[ \t]*\r?\n")
SPACE: Final = rb"(?:[ \t\f\v\r]|/\*.*?\*/)*"
NAME: Final = rb'(?:<([^>\n]+)>|"([^"\n]+)")?'
PLAIN_NAME: Final = rb'(?:<((?:[\w.+-]+/)*[\w.+-]*\w)>|"((?:[\w.+-]+/)*[\w.+-]*\w)")'
"""A name that is the same one when it is read as tokens, as what a macro is given is."""
_DIRECTIVE = re.compile(rb"#" + SPACE + rb"(include_next|include|import|embed)\b" + SPACE + NAME, re.DOTALL)
_DEFINED_NAME = re.compile(rb'#[ \t]*define\b[^\n]*?(?:<([^>\n]+)>|"([^"\n]+)")')
_HAS_INCLUDE = re.compile(rb"__has_(include_next|include|embed)" + SPACE + rb"\(\s*" + NAME, re.DOTALL)
_ASKED_CONDITION = re.compile(rb"#[ \t]*(?:el)?if\b([^\n]*)")
_GIVEN = re.compile(rb"\(" + SPACE + PLAIN_NAME)
_DEFINED_HAS_INCLUDE = re.compile(rb"\bdefine\s+__has_(?:include|embed)")
_WRAPPER = re.compile(
    rb"#" + SPACE + rb"define[ \t]+(\w+)\([ \t]*(\w+)[ \t]*\)[ \t]+"
    rb"__has_include[ \t]*\([ \t]*\2[ \t]*\)[ \t]*(?=\n|$|//)"
)
"""A macro that hands what it is given to `__has_include`, and does nothing else."""
_RESERVED = re.compile(rb"__|_[A-Z]")
_NO_USE = rb"(?:\bdefined?\s*\(?\s*|\bundef\s+|\bifn?def\s+)"
_RENAMED_HAS_INCLUDE = re.compile(
    rb"#" + SPACE + rb"define\b[^\n]*\s__has_(?:include|embed)(?:_next)?\b(?!\s*\(\s*[<\"])"
)

ASKS: Final = re.compile(rb"has_include|has_embed|include_next")
"""What asks for files otherwise than by `#include`."""
CLOCKS: Final = re.compile(rb"__(?<!\w__)(?:TIME|DATE|TIMESTAMP)__")
"""What makes each compile another one. It begins with what is looked for first, and not with a border of a word: so a
source is searched ten times as fast."""
TOLD: Final = re.compile(rb'"(?:\d\d:\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d{4})')
"""What becomes of it."""

_WORDS: Final = (b"__has_include_next", b"__has_include", b"__has_embed")
_CLOCK_WORDS: Final = (b"__TIME__", b"__DATE__", b"__TIMESTAMP__")
_IDENTIFIER = re.compile(rb"\b[A-Za-z_]\w*\b")
_PARAMETERS = re.compile(rb"\s*(?:#|%:)[ \t]*define[ \t]+\w+\(([ \t]*\w+(?:[ \t]*,[ \t]*\w+)*)")
_PIECE = re.compile(rb"\b\w+\b")
_SHORT = re.compile(rb"_(?<!\w_)_?(?:[hTD]\w*)?\b")
"""What could be the first piece of one of these words; it begins as `CLOCKS` does."""


@attrs.frozen
class Include:
    """One `#include` by name."""

    name: str
    quoted: bool
    next: bool = False


def may_ask(directives: Sequence[bytes], known: Iterable[bytes] = ()) -> bool:
    """Tell whether `##` could make `__has_include` of the identifiers in some directives, or one of the `known` macros.

    It asks in a directive alone, and what macros make of a directive comes from directives alone.
    """
    if _can_make(_WORDS, directives):
        return True
    words = tuple(known)
    if not words:
        return False
    found = {piece for text in directives for piece in _PIECE.findall(text)}
    return any(_is_made_of({piece for piece in found if piece in word and piece != word}, word) for word in words)


def may_tell_the_time(texts: Sequence[bytes]) -> bool:
    """Tell whether a text has the time or the date in it, or has the pieces for `##` to make that."""
    return any(CLOCKS.search(text) for text in in_turn(texts)) or _can_make(_CLOCK_WORDS, texts)


def _can_make(words: tuple[bytes, ...], texts: Sequence[bytes]) -> bool:
    beginnings = {piece for text in in_turn(texts) for piece in _SHORT.findall(text)}
    if not any(word.startswith(piece) and piece != word for piece in beginnings for word in words):
        return False
    found = {piece for text in in_turn(texts) for piece in _IDENTIFIER.findall(text)}
    return any(
        _is_made_of({piece for piece in found if piece in word and not ASKS.search(piece)}, word) for word in words
    )


def _is_made_of(pieces: set[bytes], word: bytes) -> bool:
    ends = {0}
    for end in range(1, len(word) + 1):
        if any(word[start:end] in pieces for start in ends):
            ends.add(end)
    return len(word) in ends


def without_parameters(line: bytes) -> bytes:
    """Return a line, a `#define` without the names of its parameters: nothing is made of these."""
    match = _PARAMETERS.match(line)
    if match is None:
        return line
    names = rb"\b(?:" + b"|".join(_PIECE.findall(match[1])) + rb")\b"
    return re.sub(names, b" ", line[match.start(1) :])


def usual(text: bytes) -> bytes:
    """Return the text with one spelling of each mark, and with whole lines."""
    for spelling, ours in _OTHER_SPELLINGS:
        text = text.replace(spelling, ours)
    return _SPLICE.sub(b"", text)


def names_in(text: bytes) -> set[Include]:
    """Return what a text may include or ask for, in whatever branch or comment; `text` is as `usual` gives it."""
    found = {
        Include(os.fsdecode(angled or quoted), bool(quoted), kind == b"include_next")
        for kind, angled, quoted in (*_DIRECTIVE.findall(text), *_HAS_INCLUDE.findall(text))
        if angled or quoted
    }
    found |= _included(_DEFINED_NAME.findall(text))
    for condition in _ASKED_CONDITION.findall(text):
        found |= _included(_GIVEN.findall(condition))
    return found


def computes_names(text: bytes) -> bool:
    """Tell whether a text in its usual spelling has a directive for files without the name of one."""
    return any(
        kind in (b"import", b"embed") or not (angled or quoted) for kind, angled, quoted in _DIRECTIVE.findall(text)
    )


def included_names(text: bytes) -> set[str]:
    """Return the names in the `#include` lines of a text in its usual spelling."""
    return {os.fsdecode(angled or quoted) for _, angled, quoted in _DIRECTIVE.findall(text) if angled or quoted}


# ---------------------------------------------------------------------------------------------------- wrappers


def wrapper_in(line: bytes) -> bytes | None:
    """Return the name of the macro that a line without comments defines to stand for `__has_include`, and for no more.

    What it is given is expanded before it is asked for (`defines_one_of`).
    """
    match = _WRAPPER.match(line.strip())
    return match[1] if match and match.end() == len(line.strip()) else None


def identifiers_in(names: Iterable[str]) -> frozenset[bytes]:
    """Return the identifiers in some names of files, which macros may replace."""
    return frozenset(each for name in names for each in _IDENTIFIER.findall(os.fsencode(name)))


def defines_one_of(identifiers: Iterable[bytes], texts: Iterable[bytes]) -> bytes | None:
    """Return one of the identifiers that one of the texts may define as a macro; None where there is none.

    The compiler's own macros have a reserved name.
    """
    reserved = next((each for each in identifiers if _RESERVED.match(each)), None)
    if reserved:
        return reserved
    defined = re.compile(rb"\bdefine" + SPACE + rb"\b(" + b"|".join(sorted(identifiers)) + rb")\b", re.DOTALL)
    return next((match[1] for match in map(defined.search, texts) if match), None)


# ---------------------------------------------------------------------------------------------------- CUDA's own


def wrappers(texts: Iterable[bytes]) -> frozenset[bytes]:
    """Return the names of the macros that stand for `__has_include` with whatever they are given."""
    return frozenset(match[1] for text in texts if b"__has_" in text for match in _WRAPPER.finditer(text))


def probes(text: bytes, known: frozenset[bytes]) -> tuple[set[Include], set[Include], str]:
    """Return what a text of CUDA's own asks for, and why that cannot be told, if it cannot.

    `known` are the wrappers. The first set is of `__has_include` itself, the second one of those.
    """
    by_wrapper: list[tuple[bytes, bytes]] = []
    asked: list[tuple[bytes, bytes]] = []
    problem = ""
    if known:
        by_wrapper, problem = _asked_by(known, text)
    if b"__has_" in text:
        text = _WRAPPER.sub(b"", text)
        found = [match[1:] for match in _HAS_INCLUDE.findall(text)]
        asked += found
        if sum(not any(name) for name in found) > len(_DEFINED_HAS_INCLUDE.findall(text)):
            problem = "a macro names the file in __has_include"
        elif _RENAMED_HAS_INCLUDE.search(text):
            problem = "a macro stands for __has_include"
    return _included(asked), _included(by_wrapper), problem


def _included(names: Iterable[tuple[bytes, bytes]]) -> set[Include]:
    return {Include(os.fsdecode(angled or quoted), bool(quoted)) for angled, quoted in names if angled or quoted}


def _asked_by(known: frozenset[bytes], text: bytes) -> tuple[list[tuple[bytes, bytes]], str]:
    """The same for the macros that stand for it."""
    asked, problem = [], ""
    for no_use, _, angled, quoted in _uses_of(known).findall(text):
        if angled or quoted:
            asked.append((angled, quoted))
        elif not no_use:
            problem = "a macro names the file in __has_include"
    return asked, problem


@functools.lru_cache(maxsize=16)
def _uses_of(known: frozenset[bytes]) -> re.Pattern[bytes]:
    names = b"|".join(sorted(known))
    return re.compile(rb"(" + _NO_USE + rb")?\b(" + names + rb")\b" + SPACE + rb"(?:\(\s*" + NAME + rb")?", re.DOTALL)
