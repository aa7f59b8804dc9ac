"""The arena as a picture, returned by `dev.memory_map()`: as a value, as text and as SVG.

This file reads the arena's accounts and draws. Its only change is to take back collected arrays.
"""

from __future__ import annotations

import base64
import bisect
import heapq
import html
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

import attrs

from .._values.html import sized
from .._values.util import known
from .arena import AT_A_TIME

if TYPE_CHECKING:
    from .arena import Arena, Block

T = TypeVar("T")

PieceState: TypeAlias = Literal["ready", "torn", "lost", "quarantined", "free", "unusable"]
"""The kind of a piece of a chunk: an array's memory in one of four states, free, or unused in a guarded chunk."""

_SIGNS: Final[dict[PieceState, str]] = {
    "lost": "x",
    "torn": "~",
    "quarantined": "?",
    "ready": "#",
    "unusable": "-",
    "free": ".",
}
"""A cell of the text with several pieces shows the first of these states that it has."""
_COLOURS: Final[dict[PieceState, str]] = {
    "lost": "#8d4aa8",
    "torn": "#c4513f",
    "quarantined": "#d1a52a",
    "ready": "#3f8f6b",
    "unusable": "#6f7a86",
    "free": "none",
}
_CELLS = 64
_AT_A_TIME = 500
"""Arrays that are drawn while no other task runs."""
_address = operator.attrgetter("address")
_SMALLEST = 0.5
"""The width of the smallest bar, and of the smallest gap."""
_WIDTH, _LEFT, _ROW, _TOP = 960, 250, 22, 40


@attrs.frozen
class MemoryPiece:
    """A range of device memory in one state: the memory of one array and its views, or the memory between two."""

    address: int
    """The device address of its first byte."""

    size: int
    """Bytes."""

    state: PieceState
    """`"ready"`, `"torn"` or `"lost"` as `DeviceArray.state` says; `"quarantined"` while a lost worker may still write
    it; `"free"`; or `"unusable"`, the rest of a guarded array's 2 MiB."""


@attrs.frozen
class MemoryChunk:
    """One piece of physical memory (``cuMemCreate``), mapped at the same address in every generation."""

    address: int
    """The device address of its first byte."""

    size: int
    """Bytes."""

    state: Literal["planned", "creating", "ready"]
    """`"ready"` once the GPU's memory is taken, which happens with the first use of an array in it."""

    pieces: tuple[MemoryPiece, ...]
    """Its pieces, by address, without gaps."""

    @property
    def in_use(self) -> int:
        """Bytes of it that arrays hold."""
        return sum(piece.size for piece in self.pieces if piece.state not in ("free", "unusable"))

    def __str__(self) -> str:
        share = f"{100 * self.in_use / self.size:5.1f} %"
        return f"{self.address:#x} {sized(self.size):>9} {self.state:8} {share} [{''.join(self._cells())}]"

    def _cells(self) -> Iterator[str]:
        """The chunk in cells of the same size."""
        starts = [self.address + self.size * at // _CELLS for at in range(_CELLS)]
        states: list[set[PieceState]] = [set() for _ in starts]
        for piece in self.pieces:
            first = bisect.bisect_right(starts, piece.address) - 1
            last = bisect.bisect_left(starts, piece.address + piece.size)
            for inside in states[first:last]:
                inside.add(piece.state)
        for inside in states:
            yield next(sign for state, sign in _SIGNS.items() if state in inside)


@attrs.frozen
class MemoryMap:
    """The places of all arrays in a device's memory at one moment. It is shown as a picture, with a line per chunk."""

    device: int
    """Index of the device."""

    chunks: tuple[MemoryChunk, ...]
    """The chunks, by address."""

    def __str__(self) -> str:
        legend = "   ".join(f"{sign} {state}" for state, sign in _SIGNS.items())
        return "\n".join([self._title(), *map(str, self.chunks), legend])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the picture for a notebook. It is an image, so its style is its own."""
        picture = base64.b64encode(self.svg().encode()).decode()
        title = html.escape(self._title())
        return f'<img style="max-width:100%" alt="{title}" src="data:image/svg+xml;base64,{picture}">'

    def _title(self) -> str:
        in_use, reserved = (sum(sizes) for sizes in ([c.in_use for c in self.chunks], [c.size for c in self.chunks]))
        return f"device {self.device}: {sized(in_use)} in use of {sized(reserved)} in {len(self.chunks)} chunks"

    def svg(self) -> str:
        """Return the picture as SVG, with a bar of one width per chunk. It is readable on light and on dark pages."""
        return "\n".join(self._svg()) + "\n"

    def _svg(self) -> Iterator[str]:
        height = _TOP + _ROW * len(self.chunks) + 30
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="monospace" '
            f'font-size="12">'
        )
        yield "<style>text{fill:#222}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>"
        yield f'<text x="8" y="20">{self._title()}</text>'
        for row, chunk in enumerate(self.chunks):
            yield from _bar(chunk, _TOP + _ROW * row)
        for number, (state, colour) in enumerate(_COLOURS.items()):
            x, y = 8 + 130 * number, height - 22
            yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}" stroke="#8a8f98"/>'
            yield f'<text x="{x + 18}" y="{y + 11}">{state}</text>'
        yield "</svg>"


def _bar(chunk: MemoryChunk, y: int) -> Iterator[str]:
    scale = (_WIDTH - _LEFT - 10) / chunk.size
    yield f'<text x="8" y="{y + 13}">{chunk.address:#x} {sized(chunk.size)} {chunk.state}</text>'
    for state, x, end in _merged(chunk, scale):
        width = max(end - x, _SMALLEST)
        yield (f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 6}" fill="{_COLOURS[state]}"/>')
    yield (
        f'<rect x="{_LEFT}" y="{y}" width="{chunk.size * scale:.2f}" height="{_ROW - 6}" fill="none" stroke="#8a8f98"/>'
    )


def _merged(chunk: MemoryChunk, scale: float) -> Iterator[tuple[PieceState, float, float]]:
    """The pieces that are not free: state, left and right. Those of one state that nothing visible parts are one."""
    last: tuple[PieceState, float, float] | None = None
    for piece in chunk.pieces:
        if piece.state == "free":
            continue
        x = _LEFT + (piece.address - chunk.address) * scale
        end = x + piece.size * scale
        if last is not None and last[0] == piece.state and x - last[2] < _SMALLEST:
            last = (piece.state, last[1], end)
        else:
            if last is not None:
                yield last
            last = (piece.state, x, end)
    if last is not None:
        yield last


def map_of(device: int, arena: Arena) -> MemoryMap:
    """Return the picture of an arena at this moment."""
    drawing = Drawing(device, arena)
    for _ in drawing:
        """All of it at once."""
    return known(drawing.picture, "it is drawn to its end")


class Drawing:
    """Draws the picture of an arena, some hundred arrays at a time: iterate to the end, then `picture` is set.

    The places are those at the moment at which this is made. The state of an array may be that of a later moment.
    """

    def __init__(self, device: int, arena: Arena) -> None:
        arena.collect(AT_A_TIME)
        self.picture: MemoryMap | None = None
        self._device = device
        self._arena = arena
        self._chunks = [MemoryChunk(chunk.address, chunk.size, chunk.state.value, ()) for chunk in arena.chunks]
        self._guarded = {chunk.address for chunk in arena.chunks if chunk.guard}
        self._blocks = list(arena.blocks)

    def __iter__(self) -> Iterator[None]:
        parts = []
        while self._blocks:
            # An empty guarded array lies behind the last byte of its chunk, and has none itself.
            some = (block for block in self._blocks[-_AT_A_TIME:] if block.size)
            part = sorted(some, key=_address, reverse=True)
            del self._blocks[-_AT_A_TIME:]
            parts.append(_emptied(part))
            yield
        blocks = heapq.merge(*parts, key=_address)
        block = next(blocks, None)
        chunks: list[MemoryChunk] = []
        for chunk in self._chunks:
            rest: PieceState = "unusable" if chunk.address in self._guarded else "free"
            pieces: list[MemoryPiece] = []
            at, end = chunk.address, chunk.address + chunk.size
            while block is not None and block.address < end:
                if block.address > at:
                    pieces.append(MemoryPiece(at, block.address - at, rest))
                pieces.append(MemoryPiece(block.address, block.size, _state(self._arena, block)))
                at = block.address + block.size
                block = next(blocks, None)
                if len(pieces) % _AT_A_TIME < 2:
                    yield
            if at < end:
                pieces.append(MemoryPiece(at, end - at, rest))
            chunks.append(attrs.evolve(chunk, pieces=tuple(pieces)))
        self.picture = MemoryMap(self._device, tuple(chunks))


def _emptied(items: list[T]) -> Iterator[T]:
    """Yield the items of a list from its end, and remove them; so freed blocks are dropped one by one."""
    while items:
        yield items.pop()


def _state(arena: Arena, block: Block) -> PieceState:
    if block.lost is not None:
        return "lost"
    if block.torn is not None:
        return "torn"
    return "quarantined" if arena.quarantined(block) else "ready"
