"""The arena of a device whose kernels are checked: it tells the worker what is an array, and what has been freed.

An array is made known when it is made, so before any command that uses it can be sent. That it was freed is told only
when all that had been issued by then is done: a command that was sent before may use it rightly. After that its memory
waits, so that a kernel which uses it wrongly is caught, until as much has been freed since as is kept waiting, or until
the program needs the memory.

The next worker is told everything anew, since it knows nothing, and which arrays may have been written before its time.

Pure bookkeeping, as ``_memory`` is: imports neither trio nor ctypes.
"""

from __future__ import annotations

import collections
import contextlib
import os
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from ._arrays import DeviceArray, Storage
from ._findings import from_here
from ._memory import Arena, ArenaFull, Block
from ._shortage import host_limits

if TYPE_CHECKING:
    import numpy as np

    from ._timeline import LaneBook, Timeline
    from .worker.checking import CheckFolder

MOST_WAITING_BYTES: Final = 256 << 20
MOST_WAITING: Final = 4096
"""How much freed memory waits: bytes, and blocks."""

BETWEEN_ARRAYS: Final = 512
"""Bytes behind each array that are no array's, so that whatever goes past its end is caught."""

_BETWEEN: Final = (os.path.join(os.path.dirname(__file__), ""), contextlib.__file__, "<frozen ")
"""How the names of files begin that may stand on the stack between a user's line and here."""


class Moment:
    """All that had been issued on every lane of a generation when this was made."""

    __slots__ = ("_open",)

    def __init__(self, timeline: Timeline) -> None:
        self._open: list[tuple[LaneBook, int]] = [(lane, lane.issued) for lane in timeline.lanes if lane.busy]

    @property
    def over(self) -> bool:
        """Whether all of it is done, as far as this process has noticed; once that is so, it stays so."""
        self._open = [(lane, ticket) for lane, ticket in self._open if _oldest(lane) <= ticket]
        return not self._open


def _oldest(lane: LaneBook) -> float:
    """The first ticket of a lane that is not settled."""
    commands = lane.in_flight[0].ticket if lane.in_flight else float("inf")
    return min(commands, lane.launches[0][0] if lane.launches else commands)


class CheckedArena(Arena):
    """An arena that a checked worker is told of, and that gives out freed memory late."""

    def __init__(self, base: int, extent: int, limit: int) -> None:
        super().__init__(base, extent, limit)
        self._folder: CheckFolder | None = None
        self._timeline: Timeline | None = None
        self._described: dict[Block, dict[str, Any]] = {}
        """What the worker was told of each block, those too whose memory waits; the oldest first."""
        self._leaving: collections.deque[tuple[Block, Moment]] = collections.deque()
        """Freed, but commands that were sent before may use it."""
        self._waiting: collections.deque[Block] = collections.deque()
        """Freed, and the worker knows."""
        self._waiting_bytes = 0

    # --- what the worker is told --------------------------------------------------------------------------------------

    def serve(self, folder: CheckFolder, timeline: Timeline) -> None:
        """From now on a worker is in service that was told of nothing, with the commands of `timeline`."""
        self._folder, self._timeline = folder, timeline
        waiting = set(self._waiting)
        for block, facts in self._described.items():
            self._tell({**facts, "written": block.written}, *([{"freed": block.address}] if block in waiting else ()))

    def dismiss(self) -> None:
        """The worker in service is healthy and goes on for somebody else: nothing of this is an array any more."""
        self._tell(*({"freed": block.address} for block in self._described.keys() - set(self._waiting)))
        self._folder = None

    def describe(self, block: Block, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """A block has become the memory of an array."""
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
        """The program itself may write the block from now on, which no worker sees."""
        block.written = True
        with host_limits("the checks cannot be told of an array"):
            self._tell({**self._described[block], "written": True})

    def _tell(self, *events: dict[str, Any]) -> None:
        if self._folder is not None:
            self._folder.tell(*events)

    # --- what is given out, and when ----------------------------------------------------------------------------------

    def allocate(self, size: int, *, guarded: bool = False) -> Block:
        """As an arena does, with a gap behind the block; what was freed lately only if the rest does not suffice."""
        if self.orphans:
            self.collect()
        self._sweep()
        while True:
            try:
                block = super().allocate(size if guarded else size + BETWEEN_ARRAYS, guarded=guarded)
                block.nbytes = size
                return block
            except ArenaFull:
                if not self._waiting:
                    raise
                self._take_back(self._waiting.popleft())

    def free(self, block: Block) -> None:
        """Take a block from the program: no array has it any more, and nobody gets it yet."""
        if block.freed:
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
        """Tell the worker of what was freed when all that could use it rightly is done; let go of the oldest."""
        while self._leaving and self._leaving[0][1].over:
            self._begin_waiting(self._leaving.popleft()[0])
        while self._waiting_bytes > MOST_WAITING_BYTES or len(self._waiting) > MOST_WAITING:
            self._take_back(self._waiting.popleft())

    def _begin_waiting(self, block: Block) -> None:
        with contextlib.suppress(OSError):  # a full disk: a use of it will not be found
            self._tell({"freed": block.address})
        self._waiting.append(block)
        self._waiting_bytes += block.size

    def _take_back(self, block: Block) -> None:
        """A block has waited long enough: it is free memory."""
        self._waiting_bytes -= block.size
        self._described.pop(block, None)
        block.freed = False
        self.blocks.add(block)
        self.in_use += block.size
        super().free(block)

    def trim(self, keep: int) -> None:
        """As an arena does: whoever asks wants the memory, so nothing waits any longer."""
        while self._waiting:
            self._take_back(self._waiting.popleft())
        super().trim(keep)

    def generation_lost(self, *, durable: bool, strict: bool, number: int) -> list[int]:
        """As an arena does; nothing that was sent to that generation uses anything any more."""
        self._folder = self._timeline = None
        for block, _ in self._leaving:
            self._begin_waiting(block)
        self._leaving.clear()
        return super().generation_lost(durable=durable, strict=strict, number=number)


def make_array(
    storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
) -> DeviceArray:
    """What makes an array of a checked device: as ever, and the worker hears of it."""
    arena = storage.device._arena
    assert isinstance(arena, CheckedArena)  # the device was opened so
    arena.describe(storage.block, shape, dtype)
    return DeviceArray._create(storage, offset, shape, strides, dtype)


def _users_place() -> str | None:
    """File and line of the program that is making an array; None where it is not on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__", "").startswith("trio."):  # whoever calls a task of ours
        return None
    return f"{from_here(frame.f_code.co_filename)}:{frame.f_lineno}"
