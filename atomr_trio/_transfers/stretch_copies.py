"""The short way of a copy that is sent in one stretch, and needs a helper or a private block.

From 1 to 4 MiB a helper copies nearly a half of the bytes, in one piece, while the task copies its own pieces and sends
them. A thread waits some 50 us for the interpreter's lock whenever another one has it, so there is nothing to tell the
helper in between. If it has not come when the task is ready, the task copies its piece too. There are no turns of other
tasks before all is sent, so that none sees half of the copy: the event loop stands still for some 0.1 ms for each MiB.
On an H100 4 MiB took three quarters of the time that several pieces with turns between them took.

The rows of an array pass through a private block, as those of longer copies do (``long_copies.py``): a memcpy and a
copy of the GPU's own for all of them take less than a command for each piece of rows, and planning them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import trio

from .._arrays.layout import Box
from .._memory.arena import Block
from .crew import Crew
from .memory import tear
from .pile import SPIN_SECONDS, Piece, Pile, give_way
from .private_copies import PrivateCopy, private_block
from .short_copies import SHORT_BYTES, SHORT_PIECE, CopyPath, pieces_of
from .staging import Slot

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .transfers import Transfers

STRETCH_BYTES: Final = 4 << 20
"""The most bytes of such a copy: as many as a slot has."""

LEAD_BYTES: Final = 512 << 10
"""The task copies so many bytes until its helper has begun."""

PAGE: Final = 4096


def begin_stretch(
    path: CopyPath, transfers: Transfers, array: DeviceArray, host: npt.NDArray[Any], rows: Box | None = None
) -> StretchCopy | None:
    """Return a copy between packed memory and an array that can begin now; None if there is none.

    The array is packed, or consists of `rows`.
    """
    size, crew = host.nbytes, transfers.crew
    helped = size > SHORT_BYTES
    if (helped and not crew.beside) or (rows is not None and array._storage.device.options.checks):
        return None
    share = (size - LEAD_BYTES) // 2 // PAGE * PAGE if helped else 0
    pieces = pieces_of(size - share, SHORT_PIECE)
    count = len(pieces) + helped + (rows is not None)
    if not path.takes(array._storage.block, count):
        return None
    path.note_ended()
    slots = transfers.staging.acquire_several(size, 1)
    if slots is None:
        return None
    block = None if rows is None else private_block(path, size, count)
    if rows is not None and block is None:
        slots[0].release()
        return None
    return StretchCopy(path, array, host, rows, slots[0], block, pieces, share, crew)


class StretchCopy(PrivateCopy):
    """Such a copy under way."""

    __slots__ = ("_pieces", "_pile", "_share", "_slot")

    def __init__(
        self,
        path: CopyPath,
        array: DeviceArray,
        host: npt.NDArray[Any],
        rows: Box | None,
        slot: Slot,
        block: Block | None,
        pieces: list[tuple[int, int]],
        share: int,
        crew: Crew,
    ) -> None:
        super().__init__(path, array, host, rows, [slot], block)
        self._slot = slot
        self._pieces = pieces
        """The begin and the size of each of the task's pieces."""
        self._share = share
        """The bytes of the helper's piece, which is behind them; 0 without a helper."""
        self._pile: Pile = Pile(crew, self._copy_by_helper)
        self._count = len(pieces) + (share > 0) + (block is not None)

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Copy. Raises as the verbs do. Nothing is sent if the caller was cancelled before."""
        path = self._path
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._looks = path.settler.begin_looking()
            if path.incoming:
                self._load_and_send()
                await self._until(self._begun)
            else:
                await self._store(self._send_all_reads())
        except BaseException as error:
            if path.incoming and (self._block is None or self._moved):
                tear(self._array._storage.block, error, begun=self._begun, pieces=self._count)
            raise
        finally:
            if self._block is not None:
                path.arena.free(self._block)
            self._stop_looking()
            await self._pile.close()
            self._leave()

    def _bytes_at(self, begin: int, size: int) -> npt.NDArray[np.uint8]:
        return self._memory[begin : begin + size]

    def _send_bytes(self, begin: int, size: int) -> int:
        """Send the copy of some bytes, and return its ticket."""
        ticket = self._send_run(begin, size, self._slot.part(begin, size))
        if not self._looks:
            self._path.settler.wake()
        return ticket

    def _send_move(self) -> None:
        if self._block is not None:
            self._send_move_of(self._block)
            if not self._looks:
                self._path.settler.wake()

    def _call_helper(self, ticket: int = 0) -> None:
        """Have a helper copy the last bytes, as soon as the ticket is reached."""
        begin = self._host.nbytes - self._share
        self._pile.add(Piece(begin, self._slot.part(begin, self._share), ticket))
        self._pile.complete = True
        self._pile.call(1)

    def _copy_by_helper(self, piece: Piece) -> bool:
        """Copy the last bytes, in the helper's thread. Returns false if the task has to see to it."""
        memory = self._bytes_at(piece.number, self._share)
        if self._path.incoming:
            piece.slot.load_freely(memory)
            return True
        while self._path.words[self._path.counter] < piece.ticket:
            if self._pile.closed:
                return False
            give_way()
        if not self._is_sound():
            return False
        piece.slot.store_freely(memory)
        return True

    # --- to the device --------------------------------------------------------------------------------------------

    def _load_and_send(self) -> None:
        """Copy all bytes to the slot, and send them: no other task runs meanwhile."""
        slot, share = self._slot, self._share
        load = Slot.load_freely if share else Slot.load
        if share:
            self._call_helper()
        for begin, size in self._pieces:
            load(slot.part(begin, size), self._bytes_at(begin, size))
            self._send_bytes(begin, size)
        if share:
            begin, pile = self._host.nbytes - share, self._pile
            while not pile.done:
                piece = pile.take()
                if piece is not None:  # the helper has not come yet
                    load(piece.slot, self._bytes_at(begin, share))
                    break
                give_way()
            else:
                pile.heard()
            self._send_bytes(begin, share)
        self._send_move()

    # --- to the host ----------------------------------------------------------------------------------------------

    def _send_all_reads(self) -> list[int]:
        """Send all commands, and return how many were sent with each of the task's pieces."""
        counts = []
        self._send_move()
        for number, (begin, size) in enumerate(self._pieces):
            self._send_bytes(begin, size)
            counts.append(self._begun)
            if not number and self._share:
                self._call_helper(self._send_bytes(self._host.nbytes - self._share, self._share))
        return counts

    async def _store(self, counts: list[int]) -> None:
        """Copy all bytes from the slot as they come."""
        slot, share, pile = self._slot, self._share, self._pile
        store = Slot.store_freely if share else Slot.store
        for number, (begin, size) in enumerate(self._pieces):
            if not number or not self._has_run(counts[number]):  # behind the first one others have had a turn
                await self._until(counts[number])
            store(slot.part(begin, size), self._bytes_at(begin, size))
        if share:
            if not self._has_run(self._begun):
                await self._until(self._begun)
            await self._until_helped()
            if not (pile.done and pile.heard()[1]):
                begin = self._host.nbytes - share
                store(slot.part(begin, share), self._bytes_at(begin, share))
        await self._until_settled()

    async def _until_helped(self) -> None:
        """Wait for the helper's memcpy, if it has begun; else it does not begin any more."""
        pile = self._pile
        if pile.take() is not None:
            return
        until = time.perf_counter() + SPIN_SECONDS
        while not pile.done:
            if time.perf_counter() < until:
                give_way()
            else:
                await trio.sleep(SPIN_SECONDS)
