"""The arena as a picture: what `dev.memory_map()` returns, as a value, as text and as SVG.

This file reads the arena's accounts and draws; it changes nothing but that it takes back what was collected.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

if TYPE_CHECKING:
    from ._memory import Arena, Block, Chunk

PieceState: TypeAlias = Literal["ready", "torn", "lost", "quarantined", "free", "unusable"]
"""What a piece of a chunk is: an array's memory in one of four states, free, or the unused part of a guarded chunk."""

_SIGNS: Final[dict[PieceState, str]] = {
    "lost": "x",
    "torn": "~",
    "quarantined": "?",
    "ready": "#",
    "unusable": "-",
    "free": ".",
}
"""A cell of the text that holds several pieces shows the first of these that it has."""
_COLOURS: Final[dict[PieceState, str]] = {
    "lost": "#8d4aa8",
    "torn": "#c4513f",
    "quarantined": "#d1a52a",
    "ready": "#3f8f6b",
    "unusable": "#6f7a86",
    "free": "none",
}
_CELLS = 64
_WIDTH, _LEFT, _ROW, _TOP = 960, 250, 22, 40


@attrs.frozen
class MemoryPiece:
    """A stretch of device memory in one state: the memory of one array and its views, or what lies between two."""

    address: int
    """The device address of its first byte."""

    size: int
    """Bytes."""

    state: PieceState
    """`"ready"`, `"torn"` or `"lost"` as `DeviceArray.state` says; `"quarantined"` while a lost worker may still write
    it; `"free"`; or `"unusable"`, which is what a guarded array leaves of its 2 MiB."""


@attrs.frozen
class MemoryChunk:
    """One piece of physical memory (``cuMemCreate``), mapped at the same address in every generation."""

    address: int
    """The device address of its first byte."""

    size: int
    """Bytes."""

    state: Literal["planned", "creating", "ready"]
    """Whether the GPU's memory is taken: with the first use of an array in it."""

    pieces: tuple[MemoryPiece, ...]
    """What it is made of, by address, without gaps."""

    @property
    def in_use(self) -> int:
        """Bytes of it that arrays hold."""
        return sum(piece.size for piece in self.pieces if piece.state not in ("free", "unusable"))

    def __str__(self) -> str:
        share = f"{100 * self.in_use / self.size:5.1f} %"
        return f"{self.address:#x} {_size(self.size):>9} {self.state:8} {share} [{''.join(self._cells())}]"

    def _cells(self) -> Iterator[str]:
        """The chunk in cells of the same size."""
        for cell in range(_CELLS):
            start, end = (self.address + self.size * at // _CELLS for at in (cell, cell + 1))
            inside = (piece for piece in self.pieces if piece.address < end and start < piece.address + piece.size)
            states = {piece.state for piece in inside}
            yield next(sign for state, sign in _SIGNS.items() if state in states)


@attrs.frozen
class MemoryMap:
    """Where everything lies in the memory of a device, at one moment. `str()` of it is a picture, a line a chunk."""

    device: int
    """Index of the device."""

    chunks: tuple[MemoryChunk, ...]
    """By address."""

    def __str__(self) -> str:
        legend = "   ".join(f"{sign} {state}" for state, sign in _SIGNS.items())
        return "\n".join([self._title(), *map(str, self.chunks), legend])

    def _title(self) -> str:
        in_use, reserved = (sum(sizes) for sizes in ([c.in_use for c in self.chunks], [c.size for c in self.chunks]))
        return f"device {self.device}: {_size(in_use)} in use of {_size(reserved)} in {len(self.chunks)} chunks"

    def svg(self) -> str:
        """The same as SVG, a bar a chunk, each as wide as the other; it can be read on a light and on a dark page."""
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
    yield f'<text x="8" y="{y + 13}">{chunk.address:#x} {_size(chunk.size)} {chunk.state}</text>'
    for piece in chunk.pieces:
        if piece.state != "free":
            x, width = _LEFT + (piece.address - chunk.address) * scale, max(piece.size * scale, 0.5)
            colour = _COLOURS[piece.state]
            yield f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 6}" fill="{colour}"/>'
    yield (
        f'<rect x="{_LEFT}" y="{y}" width="{chunk.size * scale:.2f}" height="{_ROW - 6}" fill="none" stroke="#8a8f98"/>'
    )


def _size(nbytes: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes} B"


def map_of(device: int, arena: Arena) -> MemoryMap:
    """The picture of an arena at this moment."""
    arena.collect()
    blocks: collections.defaultdict[Chunk, list[Block]] = collections.defaultdict(list)
    for block in sorted(arena.blocks, key=lambda each: each.address):
        blocks[block.chunk].append(block)
    chunks = (
        MemoryChunk(chunk.address, chunk.size, chunk.state.value, tuple(_pieces(arena, chunk, blocks[chunk])))
        for chunk in arena.chunks
    )
    return MemoryMap(device, tuple(chunks))


def _pieces(arena: Arena, chunk: Chunk, blocks: list[Block]) -> Iterator[MemoryPiece]:
    rest: PieceState = "unusable" if chunk.guard else "free"
    at = chunk.address
    for block in blocks:
        if block.address > at:
            yield MemoryPiece(at, block.address - at, rest)
        yield MemoryPiece(block.address, block.size, _state(arena, block))
        at = block.address + block.size
    if at < chunk.address + chunk.size:
        yield MemoryPiece(at, chunk.address + chunk.size - at, rest)


def _state(arena: Arena, block: Block) -> PieceState:
    if block.lost is not None:
        return "lost"
    if block.torn is not None:
        return "torn"
    return "quarantined" if arena.quarantined(block) else "ready"
