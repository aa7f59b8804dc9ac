"""The arena of a device whose kernels are checked. It tells the worker which memory is an array, and which was freed.

The worker is told of an array when it is made, before any command that uses it. It is told of the freeing only when all
commands issued by then are done: they may use the array correctly. After that the memory waits, so that a kernel that
still uses it is caught. It waits until enough memory has been freed later, or until the program needs the memory.

The next worker knows nothing, so it is told of everything again, and of the arrays that may have been written before.

Pure bookkeeping, as ``_memory/`` is: imports neither trio nor ctypes.
"""

from __future__ import annotations

import collections
import contextlib
import os
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from .._memory.arena import MAX_CHUNKS, Arena, ArenaFull, Block
from .._values.findings import from_here
from .._values.shortage import host_limits

if TYPE_CHECKING:
    import numpy as np

    from .._generation.timeline import LaneBook, Timeline
    from .._wire.checking import CheckFolder

MOST_WAITING_BYTES: Final = 256 << 20
MOST_WAITING: Final = 4096
"""The most freed memory that waits: bytes, and blocks."""

BETWEEN_ARRAYS: Final = 512
"""Bytes behind each array that belong to no array, so that an access past its end is caught."""

_BETWEEN: Final = (os.path.join(os.path.dirname(os.path.dirname(__file__)), ""), contextlib.__file__, "<frozen ")
"""The prefixes of file names that may be on the stack between a user's line and this file."""


class Moment:
    """The commands that were issued on every lane of a generation when this was made."""

    __slots__ = ("_open",)

    def __init__(self, timeline: Timeline) -> None:
        self._open: list[tuple[LaneBook, int]] = [(lane, lane.issued) for lane in timeline.lanes if lane.busy]

    @property
    def over(self) -> bool:
        """True if all of them are done, as far as this process has noticed. Once true, it stays true."""
        self._open = [(lane, ticket) for lane, ticket in self._open if _oldest(lane) <= ticket]
        return not self._open


def _oldest(lane: LaneBook) -> float:
    """Return the first ticket of a lane that is not settled."""
    commands = lane.in_flight[0].ticket if lane.in_flight else float("inf")
    return min(commands, lane.launches[0][0] if lane.launches else commands)


class CheckedArena(Arena):
    """An arena that reports its arrays to a checked worker, and reuses freed memory late."""

    def __init__(self, base: int, extent: int, limit: int, most_chunks: int = MAX_CHUNKS) -> None:
        super().__init__(base, extent, limit, most_chunks)
        self._folder: CheckFolder | None = None
        self._timeline: Timeline | None = None
        self._described: dict[Block, dict[str, Any]] = {}
        """The facts about each block that the worker was told, waiting blocks included; the oldest first."""
        self._leaving: collections.deque[tuple[Block, Moment]] = collections.deque()
        """Freed blocks that earlier commands may still use, with the moment of freeing."""
        self._waiting: collections.deque[Block] = collections.deque()
        """Freed blocks of which the worker was told."""
        self._waiting_bytes = 0

    # --- what the worker is told --------------------------------------------------------------------------------------

    def serve(self, folder: CheckFolder, timeline: Timeline) -> None:
        """Begin to report to a new worker, which was told of nothing, with the commands of `timeline`."""
        self._folder, self._timeline = folder, timeline
        waiting = set(self._waiting)
        for block, facts in self._described.items():
            self._tell({**facts, "written": block.written}, *([{"freed": block.address}] if block in waiting else ()))

    def dismiss(self) -> None:
        """Tell a healthy worker, which goes back to its pool, that no memory of this arena is an array any more."""
        self._tell(*({"freed": block.address} for block in self._described.keys() - set(self._waiting)))
        self._folder = None

    def describe(self, block: Block, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Tell the worker that a block has become the memory of an array."""
        facts = self._described[block] = {
            "allocated": block.address,
            "size": block.nbytes,
            "dtype": dtype.name,
            "shape": shape,
            "place": _users_place(),
        }
        with host_limits("the checks cannot be told of an array"):
            self._tell(facts)

    def shown(self, block: Block) -> None:
        """Tell the worker that the program itself may write the block from now on."""
        block.written = True
        with host_limits("the checks cannot be told of an array"):
            self._tell({**self._described[block], "written": True})

    def _tell(self, *events: dict[str, Any]) -> None:
        if self._folder is not None:
            self._folder.tell(*events)

    # --- what is given out, and when ----------------------------------------------------------------------------------

    def allocate(self, size: int, guarded: bool = False) -> Block:
        """Allocate as an arena does, with a gap behind the block. Recently freed memory is used last."""
        if self.orphans:
            self.collect()
        self._sweep()
        while True:
            try:
                block = super().allocate(size if guarded else size + BETWEEN_ARRAYS, guarded)
                block.nbytes = size
                return block
            except ArenaFull:
                if not self._waiting:
                    raise
                self._take_back(self._waiting.popleft())

    def free(self, block: Block) -> None:
        """Take a block back from the program. It is not free memory yet."""
        if block.freed or (block.peers and self.held_by_peers(block)):
            return
        block.freed = True
        block.fast = 0
        self.blocks.discard(block)
        self.in_use -= block.size
        if self._timeline is None:
            self._begin_waiting(block)
        else:
            self._leaving.append((block, Moment(self._timeline)))
        self._sweep()

    def _sweep(self) -> None:
        """Tell the worker of freed blocks once all commands that may use them are done. Release the oldest blocks."""
        while self._leaving and self._leaving[0][1].over:
            self._begin_waiting(self._leaving.popleft()[0])
        while self._waiting_bytes > MOST_WAITING_BYTES or len(self._waiting) > MOST_WAITING:
            self._take_back(self._waiting.popleft())

    def _begin_waiting(self, block: Block) -> None:
        with contextlib.suppress(OSError):  # a full disk: a use of the block will not be found
            self._tell({"freed": block.address})
        self._waiting.append(block)
        self._waiting_bytes += block.size

    def _take_back(self, block: Block) -> None:
        """Make a block free memory after it has waited."""
        self._waiting_bytes -= block.size
        self._described.pop(block, None)
        block.freed = False
        self.blocks.add(block)
        self.in_use += block.size
        super().free(block)

    def trim(self, keep: int) -> None:
        """Trim as an arena does. The caller wants the memory, so no block waits any longer."""
        while self._waiting:
            self._take_back(self._waiting.popleft())
        super().trim(keep)

    def generation_lost(self, *, durable: bool, strict: bool, number: int) -> list[int]:
        """Decide as an arena does. No command of that generation uses any block any more."""
        self._folder = self._timeline = None
        for block, _ in self._leaving:
            self._begin_waiting(block)
        self._leaving.clear()
        return super().generation_lost(durable=durable, strict=strict, number=number)


def _users_place() -> str | None:
    """Return the file and line of the program that is making an array; None if it is not on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__", "").startswith("trio."):  # trio has called our task
        return None
    return f"{from_here(frame.f_code.co_filename)}:{frame.f_lineno}"
