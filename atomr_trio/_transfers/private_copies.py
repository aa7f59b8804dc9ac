"""Copies of several pieces whose bytes may pass through a block of device memory that nobody else knows.

Each slot has two holders: the task with its helpers, which is left when none of these copies any more, and the
commands, which are when none is unfinished. If the generation is lost while the task is under way, a slot is free when
the lost worker cannot write to it any more, and no helper works on it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from .._arrays.layout import Box
from .._generation.timeline import Launch
from .._memory.arena import ArenaFull, Block, ChunkState
from .._values.errors import DeviceError, OutOfHostMemory
from .short_copies import CopyPath, ShortCopy, bytes_of
from .staging import Slot

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray


class Private:
    """The block between the pieces and the array, where the accounts of the lane expect an array."""

    __slots__ = ("_block",)

    def __init__(self, block: Block) -> None:
        self._block = block


def private_block(path: CopyPath, size: int, count: int) -> Block | None:
    """Return a block that `count` commands can use at once, if the arena has one.

    Where it had none it is not asked again until there is more room: it may have put all its freed blocks together in
    vain. Memory that does not exist yet is made, once, for the next copy.
    """
    arena, lacking = path.arena, path.lacking
    if lacking is not None and size >= lacking[0] and arena.in_use >= lacking[1] and len(arena.chunks) <= lacking[2]:
        return None
    try:
        block = arena.allocate(size)
    except ArenaFull:
        pass
    else:
        if path.takes_new(block, count):
            path.lacking = None
            return block
        chunk = block.chunk
        if chunk.state is ChunkState.PLANNED and chunk is not path.wanted:
            path.wanted = chunk
            with contextlib.suppress(OutOfHostMemory):
                path.generation.order.require_chunk(chunk, set())
        arena.free(block)
        if chunk.state is not ChunkState.PLANNED:  # it is being made, or others still work on it
            return None
    path.lacking = size, arena.in_use, len(arena.chunks)
    return None


class PrivateCopy(ShortCopy):
    """A copy of several pieces under way, through a private block where it has one."""

    __slots__ = ("_address", "_block", "_commands_hold", "_held", "_memory", "_moved", "_private", "_rows")

    def __init__(
        self,
        path: CopyPath,
        array: DeviceArray,
        host: npt.NDArray[Any],
        rows: Box | None,
        slots: list[Slot],
        block: Block | None,
    ) -> None:
        """The array is packed, or consists of `rows`."""
        super().__init__(path, array, host, [])
        self._rows = rows
        self._block = block
        """The private block."""
        self._private = None if block is None else Private(block)
        self._address: int = array._storage.block.address + array._offset
        self._memory = bytes_of(host)
        self._held = slots
        for slot in slots:
            slot.share()
        self._commands_hold = True
        self._moved = False
        """True once the copy between the private block and the array was sent."""

    def _send_run(self, begin: int, size: int, slot: Slot, shares: bool = False) -> int:
        """Send the copy of some bytes, and return its ticket."""
        path, block, host = self._path, self._block, self._host
        self._begun += 1
        if block is None:
            words, kept = (self._address + begin, slot.place, size), (self._array, host)
            ticket = path.send(self._array._storage.block, words, self, kept, shares)
        else:
            words = (block.address + begin, slot.place, size)
            ticket = path.send(block, words, self, (self._private, host), shares)
        self._ticket = ticket
        return ticket

    def _send_move_of(self, block: Block) -> int:
        """Send the copy between the private block and the array, and return its ticket."""
        path, rows = self._path, self._rows
        words: tuple[int, ...] = (self._address, block.address) if path.incoming else (block.address, self._address)
        if rows is None:
            words, form = (*words, self._host.nbytes), path.move
        else:
            form = path.move_of(rows)
        self._begun += 1
        self._moved = True
        ticket = path.send(self._array._storage.block, words, self, (self._array, self._host), False, form)
        if path.incoming:
            block.readers = {path.way.lane: ticket}
        else:
            block.writer, block.written, block.readers = (path.way.lane, ticket), True, {}
        self._ticket = ticket
        return ticket

    def _stop_looking(self) -> None:
        if self._looks:
            self._looks = False
            self._path.settler.end_looking()

    # --- the end of commands --------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Let the slots go, which neither the task nor a helper needs any more."""
        self._left = True
        for slot in self._held:
            slot.release()
        self._release_ended()

    def _release_ended(self) -> None:
        if self._left and self._ended == self._begun:
            self._release_of_commands()

    def _release_of_commands(self) -> None:
        if self._commands_hold:
            self._commands_hold = False
            for slot in self._held:
                slot.release()

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error of a command that failed alone; what was copied on from a piece that failed is torn."""
        super().launch_failed(launch, error)
        target = self._array._storage.block
        private = self._private is not None and launch[3][0] is self._private
        if private and self._path.incoming and self._moved and not target.freed:
            target.fast = 0
            target.tear(f"a write that did not finish ({type(error).__name__})")

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error, and wake the task: the generation was lost before the commands were seen to end."""
        self._release_of_commands()
        super().launches_lost(count, error)
