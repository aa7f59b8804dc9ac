"""Work on long texts in threads, in pieces: the event loop runs in between.

A search, a copy or a conversion of a text keeps the interpreter's lock until it is through, and a loop over many short
ones hands it on every 5 ms. So a thread that reads megabytes lets go of it between two pieces, for long enough that
another thread can take it. To let go takes some 0.15 ms, so it does not before half a millisecond has passed: there may
be a hundred thousand pieces, of some words each. A text of one piece is done at once.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, AnyStr, Final, TypeVar

T = TypeVar("T")

PIECE: Final = 32 << 10
"""The characters of a piece that slow searches go over: a millisecond."""
PTX_PIECE: Final = 1 << 18
"""Those of a piece of PTX, which quick ones go over."""
COPIED: Final = 1 << 20
"""The characters that are copied or encoded at a time."""
_NAP: Final = 50e-6
_HELD: Final = 500e-6
"""The seconds for which a thread may keep the lock, before it lets go of it between two pieces."""

_MARKS: Final[Mapping[type, Any]] = MappingProxyType(
    {
        str: ("/*", "*/", "\n", " \t\r", ("\\", "??/")),
        bytes: (b"/*", b"*/", b"\n", b" \t\r", (b"\\", b"??/")),
    }
)
"""The beginning and the end of a comment; the end of a line, what may stand before it, and what joins it to the next.
"""


def in_turn(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and let other threads run between one and the next, if it is time."""
    clock = time.perf_counter
    until = clock() + _HELD
    for index, item in enumerate(items):
        if index and clock() >= until:
            time.sleep(_NAP)
            until = clock() + _HELD
        yield item


def cuts(text: AnyStr, size: int = COPIED) -> Iterator[AnyStr]:
    """Yield a text in pieces of equal size, whatever stands where it is cut."""
    return in_turn(text[at : at + size] for at in range(0, len(text), size))


def encoded(*texts: str, errors: str = "strict") -> bytes:
    """Return texts, one behind the other, in UTF-8. Raises `UnicodeEncodeError`."""
    if sum(map(len, texts)) <= COPIED:
        return "".join(texts).encode(errors=errors)
    content = io.BytesIO()  # which gives its content away without a copy
    for text in texts:
        for piece in cuts(text):
            content.write(piece.encode(errors=errors))
    return content.getvalue()


def copied(content: bytearray | memoryview) -> bytes:
    """Return a copy of bytes."""
    view = memoryview(content)
    return joined(view.cast("B")) if view.nbytes > COPIED and view.c_contiguous else view.tobytes()


def joined(*parts: bytes | memoryview) -> bytes:
    """Return bytes, one behind the other."""
    content = io.BytesIO()
    for part in parts:
        for piece in in_turn(part[at : at + COPIED] for at in range(0, len(part), COPIED)):
            content.write(piece)
    return content.getvalue()


def pieces(text: AnyStr, size: int = PIECE) -> Iterator[AnyStr]:
    """Yield a text of C++ or of PTX in pieces, each of whole lines, that no comment goes on from one to the next."""
    return in_turn(_pieces(text, size))


def _pieces(text: AnyStr, size: int) -> Iterator[AnyStr]:
    opening, closing, line, blanks, joins = _MARKS[type(text)]
    begin = 0
    while len(text) - begin > size:
        end = _behind(text, line, begin + size)
        while end < len(text):
            # What looks like a comment in another, or in a string, only makes the piece longer.
            opened, closed = text.rfind(opening, begin, end), text.rfind(closing, begin, end)
            if opened >= 0 and closed < opened + 2:
                end = _behind(text, line, _behind(text, closing, max(opened + 2, end - 1)))
            elif text[text.rfind(line, begin, end - 1) + 1 : end - 1].rstrip(blanks).endswith(joins):
                end = _behind(text, line, end)
            else:
                break
        yield text[begin:end]
        begin = end
    if begin < len(text) or not text:
        yield text[begin:]


def _behind(text: AnyStr, mark: AnyStr, at: int) -> int:
    """Return the place behind the next mark; the end where there is none."""
    found = text.find(mark, at)
    return len(text) if found < 0 else found + len(mark)
