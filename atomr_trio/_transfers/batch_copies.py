"""The short way of the copies of a batch; see ``short_copies.py``.

A batch does not wait, so a copy takes the slots of all its pieces at once. To the device, the bytes are copied to them
when the verb is called, and a slot can be used again as soon as the GPU has read it. To the host, they are copied from
them when the batch is flushed.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import trio

from .._arrays.arrays import Storage
from .._generation.timeline import Launch
from .._values.errors import DeviceError
from .._wire.protocol import BATCH_LIMIT
from .._wire.records.memory import AREA_SHIFT
from .copy_plan import PINNED_PIECE, TO_DEVICE, Way
from .memory import tear
from .short_copies import SHORT_BYTES, SHORT_PIECE, SIGN_EVERY, CopyPath, bytes_of, pieces_of
from .staging import Slot
from .transfers import transfers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .._arrays.arrays import DeviceArray
    from .._generation.actor import Actor
    from .._generation.generation import Generation
    from .batch_areas import BatchSlots


BATCH_IN_BYTES = 4 << 20
"""The most bytes of pageable memory that go to the device this way."""


class BatchCopy:
    """A copy of a batch: the owner of its commands. The batch keeps it as it keeps a request, until it has heard it."""

    __slots__ = (
        "_array",
        "_begun",
        "_bell",
        "_dropped",
        "_ended",
        "_failed",
        "_host",
        "_path",
        "_place",
        "count",
        "error",
        "siblings",
        "slots",
    )

    position = None
    takes_slot = False

    def __init__(self, path: CopyPath, array: DeviceArray, host: npt.NDArray[Any], place: int | None) -> None:
        self._path = path
        self._array = array
        self._host = host
        self._place = place
        """The place of pinned memory; None for memory that is copied through slots."""
        self.count: int = 1 if place is not None else -(-host.nbytes // SHORT_PIECE)
        """The number of its commands."""
        self.slots: collections.deque[tuple[int, Slot]] = collections.deque()
        """The slots that it holds, each with the ticket of the command that uses it."""
        self.error: DeviceError | None = None
        self.siblings: Sequence[Any] = ()
        self._begun = 0
        self._ended = 0
        self._failed = 0
        self._dropped = False
        self._bell: trio.Event | None = None

    def send(self, acquire: Callable[[int], Slot]) -> None:
        """Send all commands. Raises the errors of `acquire` before any."""
        block, address = self._array._block, self._array.address
        arguments = (self._array, self._host)
        if self._place is not None:
            self._path.send(block, (address, self._place, self._host.nbytes), self, arguments)
            self._begun = 1
            return
        slots = self._acquire_all(acquire)
        memory, size, incoming = bytes_of(self._host), self._host.nbytes, self._path.incoming
        for number, (slot, (begin, length)) in enumerate(zip(slots, pieces_of(size, SHORT_PIECE), strict=True)):
            if incoming:
                slot.load(memory[begin : begin + length])
            if slot.area:
                slot.introduce(self._path.generation, self._path.way.lane)
            shares = incoming and number + 1 < self.count and bool((number + 1) % SIGN_EVERY)
            words = (address + begin, slot.place, length)
            ticket = self._path.send(block, words, self, arguments, shares)
            self._begun += 1
            self.slots.append((ticket, slot))

    def _acquire_all(self, acquire: Callable[[int], Slot]) -> list[Slot]:
        slots: list[Slot] = []
        size = self._host.nbytes
        try:
            for _, length in pieces_of(size, SHORT_PIECE):
                slots.append(acquire(length))
        except BaseException:
            for slot in slots:
                slot.release()
            raise
        return slots

    # --- as a request of the batch --------------------------------------------------------------------------------

    @property
    def answered(self) -> bool:
        """True if all its commands have ended."""
        return self._ended == self.count

    @property
    def burden(self) -> int:
        """The time for which `take` holds the event loop, as the size in bytes of a plain copy that takes as long."""
        return self._host.nbytes if self.slots and not self._path.incoming else 0

    def take(self) -> None:
        """Copy the bytes to the host's array, after a copy to the host."""
        if self._path.incoming:
            return
        if not self.slots:
            return
        memory = bytes_of(self._host)
        for begin, length in pieces_of(self._host.nbytes, SHORT_PIECE):
            slot = self.slots[0][1]
            slot.store(memory[begin : begin + length])
            self.slots.popleft()
            slot.release()

    def drop(self) -> None:
        """Drop the outcome: the batch leaves before it has taken it."""
        self._dropped = True
        if self.answered:
            self._release()

    async def wait_answered(self) -> None:
        """Wait until all its commands have ended."""
        if not self.answered:
            self._bell = trio.Event()
            await self._bell.wait()

    def reclaim(self) -> bool:
        """Give the slots back that the GPU has read; true if it holds none any more."""
        slots, reached = self.slots, self._path.words[self._path.counter]
        while slots and slots[0][0] <= reached:
            slots.popleft()[1].release()
        return not slots

    # --- the end of commands --------------------------------------------------------------------------------------

    def launches_finished(self, count: int) -> None:
        """Note the end of commands."""
        self._ended += count
        failed, self._failed = self._failed, 0
        self._path.mailbox.count_finished(count - failed, "abandoned" if self._dropped else "ok")
        if failed:
            self._path.mailbox.count_finished(failed, "abandoned" if self._dropped else "failed")
        if self._path.incoming:
            self.reclaim()
        self._end()

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error of a command that failed alone: a part of the array may be written, and another not."""
        self._failed += 1
        if self.error is None:
            self.error = error
        if self._path.incoming:
            tear(self._array._block, error, begun=self._begun, pieces=self.count)

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error: the generation was lost before the commands were seen to end."""
        self._ended += count
        self.error = error
        self._path.mailbox.count_finished(count, "abandoned" if self._dropped else "lost")
        self._end()

    def _end(self) -> None:
        if not self.answered:
            return
        if self._dropped or self.error is not None:
            self._release()
        if self._bell is not None:
            self._bell.set()

    def _release(self) -> None:
        while self.slots:
            self.slots.popleft()[1].release()


class BatchCopies:
    """The short way of one batch's copies, in the generation that it was entered in."""

    def __init__(self, generation: Generation, actor: Actor, slots: BatchSlots) -> None:
        """`actor` is that of memory."""
        self._generation = generation
        self._actor = actor
        self._slots = slots
        self._paths: dict[int, CopyPath] = {}
        self._incoming: collections.deque[BatchCopy] = collections.deque()
        """Copies to the device that may still hold slots, the oldest first."""

    def plan(self, array: DeviceArray, host: npt.NDArray[Any], way: Way) -> BatchCopy | None:
        """Return a copy between two checked arrays that can be sent now; None if it has to go the general way."""
        size = host.nbytes
        if array._plain is None or not size or type(array._storage) is not Storage or not host.flags.c_contiguous:
            return None
        path = self._paths.get(way.lane)
        if path is None:
            if self._generation.ring is None:
                return None
            path = self._paths[way.lane] = CopyPath(self._generation, way, self._actor, BATCH_LIMIT)
        found = transfers_of(array).pinned.find(host)
        place = None
        if found is None:
            if size > (BATCH_IN_BYTES if way is TO_DEVICE else SHORT_BYTES):
                return None
        elif size > PINNED_PIECE or not found[0].is_known(self._generation, way.lane):
            return None
        else:
            place = found[0].number << AREA_SHIFT | found[1]
        copy = BatchCopy(path, array, host, place)
        return copy if path.takes(array._block, copy.count) else None

    def send(self, copy: BatchCopy) -> None:
        """Send a copy that was planned just now. Raises as `BatchSlots.acquire` does, before anything is sent."""
        incoming = self._incoming
        while incoming and incoming[0].reclaim():
            incoming.popleft()
        copy.send(self._slots.acquire)
        if copy.slots and copy._path.incoming:
            incoming.append(copy)
        self._generation.settler.wake()
