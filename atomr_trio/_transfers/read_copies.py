"""The short way of a copy to the device of 0.5 to 4 MiB, of which the worker reads a part itself.

``reading.py`` says how. The task sends a record with the address of a piece, and copies the next piece while the worker
reads that one. The worker gets every second piece at most, and none while it is behind: if it sleeps or is busy with
other records the task copies nearly all. The task copies the last piece in any case, for which it would only wait.

The GPU reads a slot whose bytes are still in a processor's cache at half the speed, some 20 GB/s. So all in all such a
copy takes at least 50 us for each megabyte, whoever copies.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import numpy.typing as npt
import trio

from .._values.errors import DeviceError
from .reading import LEAVING_SECONDS, is_ready_to_read, may_read, tear_unread, was_not_read
from .short_copies import SHORT_BYTES, SHORT_PIECE, SIGN_EVERY, CopyPath, OneSlotCopy, bytes_of, pieces_of
from .staging import StagingPool

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray

PAGE: Final = 4096
READ_MOST: Final = 4 << 20
"""The most bytes of such a copy: as many as a slot has."""
READ_MOST_BESIDE: Final = 2 << 20
"""The most of one that others are beside, on the same lane. Threads of streams are faster from there on. And alone the
task copies a megabyte as fast itself."""


def begin_read(path: CopyPath, staging: StagingPool, array: DeviceArray, host: npt.NDArray[Any]) -> ReadCopy | None:
    """Return a copy of packed memory that can begin now; None if the worker cannot read that, or there is no room."""
    size = host.nbytes
    least, most = (0, READ_MOST_BESIDE) if path.book.launches else (SHORT_BYTES, READ_MOST)
    if not (least < size <= most and may_read(path, host)):
        return None
    pieces = pieces_of(size, min(SHORT_PIECE, -(-size // 2 // PAGE) * PAGE))
    if not path.takes(array._storage.block, len(pieces)):
        return None
    path.note_ended()
    slots = staging.acquire_several(size, 1)
    return None if slots is None else ReadCopy(path, array, host, slots[0], pieces)


class ReadCopy(OneSlotCopy):
    """Such a copy under way."""

    reads = True

    __slots__ = ()

    async def _give_up(self, error: BaseException) -> None:
        if self._begun and not isinstance(error, Exception):
            await self._until_read()
        if was_not_read(error):
            self._leave()  # nothing is torn: the whole of it is copied again at once
        else:
            await super()._give_up(error)

    def _send_all(self) -> None:
        path, array, host, (slot,) = self._path, self._array, self._host, self._slots
        block, kept, count = array._storage.block, (array, host), self._count
        here, place, there = block.address + array._offset, slot.place, host.__array_interface__["data"][0]
        send, memory, reads = path.send, bytes_of(host), False
        for begin, size in self._pieces:
            begun = self._begun + 1
            shares = begun != count and begun % SIGN_EVERY != 0
            reads = not reads and begun != count and is_ready_to_read(path)
            if reads:
                words = here + begin, place + begin, size, there + begin
                self._begun = begun
                self._ticket = send(block, words, self, kept, shares, path.read)
            else:
                slot.load(memory[begin : begin + size], begin)
                self._begun = begun
                self._ticket = send(block, (here + begin, place + begin, size), self, kept, shares)
        if not self._looks:
            path.settler.wake()

    async def _until_read(self) -> None:
        """Wait until the worker does not read the host's array any more."""
        with (
            trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVING_SECONDS),
            contextlib.suppress(DeviceError),
        ):
            await self._until(self._begun)
            return
        tear_unread(self._array)
