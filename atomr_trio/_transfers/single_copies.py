"""The short way of an awaited copy of one command: of pinned memory, or through one slot, which rows may be copied to.

Most copies are that. Their bytes take a few microseconds, so what counts is how little Python there is around them.
``short_copies.py`` describes the short way, and has the copies of several commands.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import trio

from .._generation.timeline import Launch
from .._values.errors import DeviceError
from .reading import LEAVING_SECONDS, tear_unread
from .short_copies import LINK_BYTES_PER_SECOND, LONGEST_LOOK_SECONDS, PACED_BYTES, CopyPath, Form
from .sleeper import Sleeper
from .staging import Slot

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .pinned import PinnedArea


class SingleCopy(Sleeper):
    """A copy under way, and the owner of its command. Its caller's task does everything."""

    __slots__ = ("_array", "_done", "_error", "_form", "_host", "_left", "_path", "_pinned", "_slot", "reads")

    def __init__(
        self,
        path: CopyPath,
        array: DeviceArray,
        host: npt.NDArray[Any],
        slot: Slot | None,
        pinned: tuple[PinnedArea, int] | None = None,
        form: Form | None = None,
        *,
        reads: bool = False,
    ) -> None:
        """`pinned` is the place of pinned memory; other memory is copied through the slot.

        `form` is that of an array which is not one run of bytes; see `CopyPath.form_of`. The worker `reads` the bytes,
        or the task copies them.
        """
        super().__init__()
        self._path = path
        self._array = array
        self._host = host
        self._slot = slot
        """The slot, until it was released."""
        self._pinned = pinned
        self._form = form
        self.reads: bool = reads
        """True if the worker reads the host's array; see ``reading.py``."""
        self._done = self._left = False
        self._error: DeviceError | None = None

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Copy. Raises as the verbs do. Nothing is sent if the caller was cancelled before."""
        path, array, host, slot = self._path, self._array, self._host, self._slot
        settler, sent, looks = path.settler, False, False
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            looks = settler.begin_looking()
            block, size, lasts, begun, due = array._storage.block, host.nbytes, 0.0, 0.0, 0.0
            address, kept = block.address + array._offset, (array, host)
            if self.reads and slot is not None:
                words = address, slot.place, size, host.__array_interface__["data"][0]
                ticket = path.send(block, words, self, kept, False, path.read)
            elif slot is not None:
                if path.incoming:
                    slot.load(host)
                if self._form is None:
                    ticket = path.send(block, (address, slot.place, size), self, kept)
                else:
                    ends = (address, slot.offset) if path.incoming else (slot.offset, address)
                    ticket = path.send(block, (slot.area, *ends), self, kept, False, self._form)
            elif self._pinned is not None:
                area, offset = self._pinned
                ticket = path.send(block, (address, offset, size), self, kept, False, path.form_of_area(area))
                # Polling is worthwhile for so long, whatever was seen before.
                lasts = min(size / LINK_BYTES_PER_SECOND, LONGEST_LOOK_SECONDS)
                if size >= PACED_BYTES:
                    begun = time.perf_counter()
                    due = begun + size * path.pace
            sent = True
            if looks:
                await settler.look(path.counter, ticket, lasts, due)
                looks = False
                if begun:
                    path.pace = (time.perf_counter() - begun) / size
                if path.ended(self, 1):
                    path.end()
                    self.launches_finished(1)
                else:
                    settler.end_looking()  # it takes long, or other commands have ended too
            else:
                settler.wake()
            if not self._done:
                await self._sleep()
            if self._error is not None:
                raise self._error
            if self._slot is not None:  # after a copy to the host
                self._slot.store(host)
                self._release()
        except BaseException:
            self._left = True
            if self._done or not sent:
                self._release()
            if looks:
                settler.end_looking()
            if self.reads and sent and not self._done:
                await self._until_read()
            raise

    async def _until_read(self) -> None:
        """Wait until the worker does not read the host's array any more."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LEAVING_SECONDS):
            await self._sleep()
        if not self._done:
            tear_unread(self._array)

    def launches_finished(self, count: int) -> None:
        """Note the end of the command, and wake the task. A copy to the host keeps its slot for the task."""
        self._done = True
        path, left = self._path, self._left
        path.mailbox.count_finished(1, "abandoned" if left else "ok" if self._error is None else "failed")
        if left or path.incoming:
            self._release()
        self._wake()

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error of the command if it failed alone; `launches_finished` follows."""
        self._error = error

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error, and wake the task: the generation was lost before the command was seen to end."""
        self._done = True
        self._error = error
        self._path.mailbox.count_finished(1, "abandoned" if self._left else "lost")
        self._release()
        self._wake()

    def _release(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.release()
