"""The short way of a copy of 1 to 4 MiB that is sent in one stretch, with a helper.

The helper copies nearly a half of the bytes, in one piece, while the task copies its own pieces and sends them. Each
time that a thread waits for the interpreter's lock costs it some 50 us, so there is nothing to tell the helper in
between. If it has not come when the task is ready, the task copies its piece too. There are no turns of other tasks
before all is sent, so that none sees half of the copy: the event loop stands still for some 0.1 ms for each MiB. On an
H100 4 MiB took three quarters of the time that several pieces with turns between them took.

Only a copy that is alone on its lane goes this way. Of many at a time each would keep the others waiting, and they are
faster as streams, which threads of their own copy.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import trio

from .crew import Crew
from .held_copies import HeldCopy
from .memory import tear
from .pile import SPIN_SECONDS, Piece, give_way
from .short_copies import SHORT_PIECE, CopyPath, pieces_of
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
    path: CopyPath, transfers: Transfers, array: DeviceArray, host: npt.NDArray[Any]
) -> StretchCopy | None:
    """Return a copy between packed memory and a packed array that can begin now; None if there is none."""
    crew, size = transfers.crew, host.nbytes
    if not crew.beside or path.long:
        return None
    path.note_ended()
    share = (size - LEAD_BYTES) // 2 // PAGE * PAGE
    pieces = pieces_of(size - share, SHORT_PIECE)
    if not (is_alone(path) and path.takes(array._storage.block, len(pieces) + 1)):
        return None
    slots = transfers.staging.acquire_several(size, 1)
    return None if slots is None else StretchCopy(path, array, host, slots[0], pieces, share, crew)


def is_alone(path: CopyPath) -> bool:
    """Return whether nothing on the lane is unfinished."""
    return not (path.book.launches or path.book.in_flight)


class StretchCopy(HeldCopy):
    """Such a copy under way."""

    __slots__ = ("_pieces", "_share", "_slot")

    def __init__(
        self,
        path: CopyPath,
        array: DeviceArray,
        host: npt.NDArray[Any],
        slot: Slot,
        pieces: list[tuple[int, int]],
        share: int,
        crew: Crew,
    ) -> None:
        super().__init__(path, array, host, [slot], crew)
        self._slot = slot
        self._pieces = pieces
        """The begin and the size of each of the task's pieces."""
        self._share = share
        """The bytes of the helper's piece, which is behind them."""
        self._count = len(pieces) + 1

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
            if path.incoming:
                tear(self._array._storage.block, error, begun=self._begun, pieces=self._count)
            raise
        finally:
            self._stop_looking()
            await self._pile.close()
            self._leave()

    def _bytes_at(self, begin: int, size: int) -> npt.NDArray[np.uint8]:
        return self._memory[begin : begin + size]

    def _send_bytes(self, begin: int, size: int) -> int:
        """Send the copy of some bytes, and return its ticket."""
        path, array = self._path, self._array
        self._begun += 1
        words, kept = (self._address + begin, self._slot.part(begin, size).place, size), (array, self._host)
        self._ticket = path.send(array._storage.block, words, self, kept)
        if not self._looks:
            path.settler.wake()
        return self._ticket

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
        if not self._has_come(piece.ticket):
            return False
        piece.slot.store_freely(memory)
        return True

    # --- to the device --------------------------------------------------------------------------------------------

    def _load_and_send(self) -> None:
        """Copy all bytes to the slot, and send them: no other task runs meanwhile."""
        slot, share, pile = self._slot, self._share, self._pile
        self._call_helper()
        for begin, size in self._pieces:
            slot.part(begin, size).load_freely(self._bytes_at(begin, size))
            self._send_bytes(begin, size)
        begin = self._host.nbytes - share
        while not pile.done:
            piece = pile.take()
            if piece is not None:  # the helper has not come yet
                piece.slot.load_freely(self._bytes_at(begin, share))
                break
            give_way()
        else:
            pile.heard()
        self._send_bytes(begin, share)

    # --- to the host ----------------------------------------------------------------------------------------------

    def _send_all_reads(self) -> list[int]:
        """Send all commands, and return how many were sent with each of the task's pieces."""
        counts = []
        for begin, size in self._pieces:
            self._send_bytes(begin, size)
            counts.append(self._begun)
            if not begin:
                self._call_helper(self._send_bytes(self._host.nbytes - self._share, self._share))
        return counts

    async def _store(self, counts: list[int]) -> None:
        """Copy all bytes from the slot as they come."""
        slot, share = self._slot, self._share
        for count, (begin, size) in zip(counts, self._pieces, strict=True):
            if not begin or not self._has_run(count):  # behind the first one others have had a turn
                await self._until(count)
            slot.part(begin, size).store_freely(self._bytes_at(begin, size))
        if not self._has_run(self._begun):
            await self._until(self._begun)
        await self._until_helped()
        if self._error is not None:  # behind a loss the helper has one as well
            raise self._error
        if not (self._pile.done and self._pile.heard()[1]):
            begin = self._host.nbytes - share
            slot.part(begin, share).store_freely(self._bytes_at(begin, share))
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
