"""The places of a chunk's lanes: in their blocks and warps, and along the axes over which values may be affine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .affine import Affine, Box, Shape
from .memory import Array
from .warp import Warps

if TYPE_CHECKING:
    from .execution import Launch

OF_THREADS: dict[str, Callable[[Array, tuple[int, int, int]], Array]] = {
    "tid.x": lambda thread, block: thread % np.uint32(block[0]),
    "tid.y": lambda thread, block: thread // np.uint32(block[0]) % np.uint32(block[1]),
    "tid.z": lambda thread, block: thread // np.uint32(block[0] * block[1]),
    "laneid": lambda thread, _: thread & np.uint32(31),
    "warpid": lambda thread, _: thread >> np.uint32(5),
    "lanemask_eq": lambda thread, _: np.uint32(1) << (thread & np.uint32(31)),
    "lanemask_lt": lambda thread, _: (np.uint32(1) << (thread & np.uint32(31))) - np.uint32(1),
    "lanemask_le": lambda thread, _: (np.uint32(2) << (thread & np.uint32(31))) - np.uint32(1),
    "lanemask_gt": lambda thread, _: ~((np.uint32(2) << (thread & np.uint32(31))) - np.uint32(1)),
    "lanemask_ge": lambda thread, _: ~((np.uint32(1) << (thread & np.uint32(31))) - np.uint32(1)),
}
"""Special registers that are the same in every block: functions of a thread's number in its block, and of the block's
extent."""


class Layout:
    """The data that every chunk of this many blocks has: the places of its lanes in their blocks and warps."""

    def __init__(self, block: tuple[int, int, int], blocks: int) -> None:
        self.block = block
        self.blocks = blocks
        self.threads: int = block[0] * block[1] * block[2]
        self.lanes: int = blocks * self.threads
        self.block_of: Array = np.repeat(np.arange(blocks), self.threads)
        self._specials: dict[str, Array] = {}

    def special(self, name: str) -> Array:
        """Return a special register of `OF_THREADS`, over all lanes."""
        found = self._specials.get(name)
        if found is None:
            of_block = OF_THREADS[name](np.arange(self.threads, dtype=np.uint32), self.block)
            found = self._specials[name] = np.tile(of_block, self.blocks)
        return found

    @functools.cached_property
    def warps(self) -> Warps:
        """Return the warps of the chunk; the last one of a block may have fewer lanes."""
        each = -(-self.threads // 32)
        index = self.block_of * each + self.special("warpid")
        return Warps(index, self.special("laneid"), self.blocks * each)


@functools.lru_cache(maxsize=8)
def layout_of(block: tuple[int, int, int], blocks: int) -> Layout:
    """Launches of the same extent share their layouts, which never change."""
    return Layout(block, blocks)


class Axes:
    """The axes of a chunk: its lanes' blocks in the grid, then its lanes in their blocks.

    There are up to six; those of one lane are left out. Values that are affine over them are kept as such.
    """

    def __init__(self, launch: Launch, first: int, blocks: int) -> None:
        extent, self._begin = blocks_in_rows(launch.grid, first, blocks)
        counts = (*extent[::-1], *launch.block[::-1])
        self._kept = [axis for axis, count in enumerate(counts) if count > 1]
        self.shape: Shape = tuple(counts[axis] for axis in self._kept)
        self.box: Box = Box(self.shape, (0,) * len(self.shape), self.shape)
        self.blocks: Affine = self._affine(0, (extent[0] * extent[1], extent[0], 1, 0, 0, 0))
        """Return the number of each lane's block in the chunk."""

    def _affine(self, base: int, strides: Shape) -> Affine:
        return Affine(self.shape, base, tuple(strides[axis] for axis in self._kept), np.uint32)

    def special(self, name: str) -> Affine | None:
        """Return a special register over all lanes, if it is affine."""
        register, _, axis = name.partition(".")
        if register == "tid":
            return self._affine(0, tuple(int(f"tid.{each}" == name) for each in "...zyx"))
        if register == "ctaid" and self._begin is not None:
            return self._affine(self._begin["xyz".index(axis)], tuple(int(each == axis) for each in "zyx..."))
        return None


def blocks_together(grid: tuple[int, int, int], most: int) -> tuple[int, int]:
    """Return the number of blocks in a chunk, and the number of blocks at whose multiples a chunk always ends.

    Chunks are parts of rows of the grid, whole rows, or whole layers, and have about the same size. So the blocks of a
    chunk fill a box of the grid.
    """
    unit, line = 1, grid[0]
    for count in grid[1:]:
        if line <= most:
            unit, line = line, line * count
    pieces = -(-line // (most // unit * unit))
    return -(-line // unit // pieces) * unit, line


def blocks_in_rows(grid: tuple[int, int, int], first: int, blocks: int) -> tuple[Shape, Shape | None]:
    """Return the extents of the box of a grid that these blocks fill, and its beginning; None if they fill no box."""
    width, height, _ = grid
    begin = first % width, first // width % height, first // (width * height)
    if begin[0] + blocks <= width:
        return (blocks, 1, 1), begin
    rows, rest = divmod(blocks, width)
    if begin[0] == rest == 0 and begin[1] + rows <= height:
        return (width, rows, 1), begin
    layers, rest = divmod(rows, height)
    if begin[:2] == (0, 0) and blocks == width * height * layers:
        return (width, height, layers), begin
    return (blocks, 1, 1), None
