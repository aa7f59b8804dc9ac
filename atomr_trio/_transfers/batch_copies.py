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
from .._generation.core import DeviceCore, DevicePart
from .._generation.timeline import Launch
from .._values.errors import DeviceError
from .._values.statistics import Outcome
from .._wire.protocol import BATCH_LIMIT
from .copy_plan import PINNED_PIECE, Way, _Plan
from .memory import tear
from .pinned import PinnedArea
from .short_copies import SHORT_BYTES, SHORT_PIECE, SIGN_EVERY, CopyPath, Form, bytes_of, pieces_of
from .staging import Slot
from .transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .._arrays.arrays import DeviceArray
    from .._generation.generation import Generation
    from .batch_areas import BatchSlots


BATCH_IN_BYTES = 4 << 20
"""The most bytes of pageable memory that go to the device this way."""


class SingleBatchCopy:
    """A copy of a batch that is one command, of pinned memory or through one slot, and the owner of that command.

    Most copies are that; ``BatchCopy`` is one of several commands. The batch keeps it as it keeps a request, until it
    has heard it.
    """

    __slots__ = (
        "_array",
        "_bell",
        "_dropped",
        "_host",
        "_pinned",
        "_slot",
        "_ticket",
        "answered",
        "error",
        "path",
        "siblings",
    )

    position = None
    takes_slot = False
    count = 1

    def __init__(
        self, path: CopyPath, array: DeviceArray, host: npt.NDArray[Any], pinned: tuple[PinnedArea, int] | None
    ) -> None:
        self.path: CopyPath = path
        self._array = array
        self._host = host
        self._pinned = pinned
        """The place of pinned memory; None for memory that is copied through a slot."""
        self._slot: Slot | None = None
        self.answered: bool = False
        """True if its command has ended."""
        self.error: DeviceError | None = None
        self.siblings: Sequence[Any] = ()
        self._dropped = False
        self._bell: trio.Event | None = None

    def send(self, acquire: Callable[[int], Slot]) -> bool:
        """Send the command. Raises the errors of `acquire` before. Returns whether it holds a slot."""
        path, array, host, pinned = self.path, self._array, self._host, self._pinned
        block, size = array._storage.block, host.nbytes
        address = block.address + array._offset
        if pinned is not None:
            area, offset = pinned
            path.send(block, (address, offset, size), self, (array, host), False, path.form_of_area(area))
            return False
        slot = acquire(size)
        try:
            if path.incoming:
                slot.load(host)
            if slot.area:
                slot.introduce(path.generation, path.lane)
        except BaseException:
            slot.release()
            raise
        self._slot = slot
        self._ticket = path.send(block, (address, slot.place, size), self, (array, host))
        return True

    # --- as a request of the batch --------------------------------------------------------------------------------

    @property
    def burden(self) -> int:
        """The time for which `take` holds the event loop, as the size in bytes of a plain copy that takes as long."""
        return self._host.nbytes if self._slot is not None and not self.path.incoming else 0

    def take(self) -> None:
        """Copy the bytes to the host's array, after a copy to the host."""
        if self._slot is not None and not self.path.incoming:
            self._slot.store(self._host)
            self._release()

    def drop(self) -> None:
        """Drop the outcome: the batch leaves before it has taken it."""
        self._dropped = True
        if self.answered:
            self._release()

    async def wait_answered(self) -> None:
        """Wait until its command has ended."""
        if not self.answered:
            self._bell = trio.Event()
            await self._bell.wait()

    def reclaim(self) -> bool:
        """Give the slot back if the GPU has read it; true if it is held no more."""
        slot, path = self._slot, self.path
        if slot is not None:
            if self._ticket > path.words[path.counter]:
                return False
            self._slot = None
            slot.release()
        return True

    # --- the end of the command -----------------------------------------------------------------------------------

    def launches_finished(self, count: int) -> None:
        """Note the end of the command."""
        outcome: Outcome = "abandoned" if self._dropped else "ok" if self.error is None else "failed"
        self.path.mailbox.count_finished(1, outcome)
        self._end()

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error of the command if it failed alone; `launches_finished` follows."""
        self.error = error

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error: the generation was lost before the command was seen to end."""
        self.error = error
        self.path.mailbox.count_finished(1, "abandoned" if self._dropped else "lost")
        self._end()

    def _end(self) -> None:
        self.answered = True
        if self.path.incoming or self._dropped or self.error is not None:
            self._release()
        if self._bell is not None:
            self._bell.set()

    def _release(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.release()


class BatchCopy:
    """A copy of a batch of several commands, and their owner; see `SingleBatchCopy`."""

    __slots__ = (
        "_array",
        "_begun",
        "_bell",
        "_dropped",
        "_ended",
        "_failed",
        "_host",
        "count",
        "error",
        "path",
        "siblings",
        "slots",
    )

    position = None
    takes_slot = False

    def __init__(
        self,
        path: CopyPath,
        array: DeviceArray,
        host: npt.NDArray[Any],
        count: int,
    ) -> None:
        self.path: CopyPath = path
        self._array = array
        self._host = host
        self.count: int = count
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

    def send(self, acquire: Callable[[int], Slot]) -> bool:
        """Send all commands. Raises the errors of `acquire` before any. Returns whether it holds slots."""
        host, array = self._host, self._array
        address = array._storage.block.address + array._offset
        memory, pieces = bytes_of(host), pieces_of(host.nbytes, SHORT_PIECE)
        unused = self._acquire_all(acquire, [length for _, length in pieces])
        for begin, length in pieces:
            slot = self._left_slot(length) or unused.pop(0)
            if self.path.incoming:
                slot.load(memory[begin : begin + length])
            self._send((address + begin, slot.place, length), slot)
        for slot in unused:
            slot.release()
        return True

    def _left_slot(self, size: int) -> Slot | None:
        """Return a slot of this copy that the GPU has left already: it is still in the processor's cache."""
        slots, path = self.slots, self.path
        if path.incoming and slots and slots[0][0] <= path.words[path.counter] and slots[0][1].size >= size:
            return slots.popleft()[1]
        return None

    def _send(self, words: tuple[int, int, int], slot: Slot, form: Form | None = None) -> None:
        path, array = self.path, self._array
        if slot.area:
            slot.introduce(path.generation, path.lane)
        self._begun = begun = self._begun + 1
        shares = begun != self.count and path.incoming and begun % SIGN_EVERY != 0
        ticket = path.send(array._storage.block, words, self, (array, self._host), shares, form)
        self.slots.append((ticket, slot))

    def _acquire_all(self, acquire: Callable[[int], Slot], sizes: Sequence[int]) -> list[Slot]:
        slots: list[Slot] = []
        try:
            for size in sizes:
                slots.append(acquire(size))  # noqa: PERF401  what was made must be known when the next one fails
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
        return self._host.nbytes if self.slots and not self.path.incoming else 0

    def take(self) -> None:
        """Copy the bytes to the host's array, after a copy to the host."""
        if not self.path.incoming:
            for number in range(len(self.slots)):
                slot = self.slots[0][1]
                self._store(number, slot)
                self.slots.popleft()
                slot.release()

    def _store(self, number: int, slot: Slot) -> None:
        """Copy the bytes of a command to the host's array."""
        begin = number * SHORT_PIECE
        slot.store(bytes_of(self._host)[begin : begin + SHORT_PIECE])

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
        slots, reached = self.slots, self.path.words[self.path.counter]
        while slots and slots[0][0] <= reached:
            slots.popleft()[1].release()
        return not slots

    # --- the end of commands --------------------------------------------------------------------------------------

    def launches_finished(self, count: int) -> None:
        """Note the end of commands."""
        self._ended += count
        failed, path, dropped = self._failed, self.path, self._dropped
        if failed:
            self._failed = 0
            path.mailbox.count_finished(failed, "abandoned" if dropped else "failed")
        path.mailbox.count_finished(count - failed, "abandoned" if dropped else "ok")
        if path.incoming:
            self.reclaim()
        if self._ended == self.count:
            self._end()

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error of a command that failed alone: a part of the array may be written, and another not."""
        self._failed += 1
        if self.error is None:
            self.error = error
        if self.path.incoming:
            tear(self._array._block, error, begun=self._begun, pieces=self.count)

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error: the generation was lost before the commands were seen to end."""
        self._ended += count
        self.error = error
        self.path.mailbox.count_finished(count, "abandoned" if self._dropped else "lost")
        if self._ended == self.count:
            self._end()

    def _end(self) -> None:
        if self._dropped or self.error is not None:
            self._release()
        if self._bell is not None:
            self._bell.set()

    def _release(self) -> None:
        while self.slots:
            self.slots.popleft()[1].release()


class BatchBoxCopy(BatchCopy):
    """A copy of a batch whose bytes do not follow each other on one of the sides: a box of rows for each piece."""

    __slots__ = ("_plan",)

    def __init__(self, path: CopyPath, plan: _Plan) -> None:
        super().__init__(path, plan.array, plan.host, len(plan.pieces))
        self._plan = plan

    def send(self, acquire: Callable[[int], Slot]) -> bool:
        """Send all commands. Raises the errors of `acquire` before any. Returns whether it holds slots."""
        plan, path = self._plan, self.path
        slots = self._acquire_all(acquire, [piece.size for piece in plan.pieces])
        if path.incoming:
            try:
                for piece, slot in zip(plan.pieces, slots, strict=True):
                    plan.load(piece, slot.bytes)
            except BaseException:  # the system has no memory for what numpy needs
                for slot in slots:
                    slot.release()
                raise
        for piece, slot in zip(plan.pieces, slots, strict=True):
            words, form = path.command_of(plan, piece, slot)
            self._send(words, slot, form)
        return True

    @property
    def burden(self) -> int:
        """The time for which `take` holds the event loop, as the size in bytes of a plain copy that takes as long."""
        return self._plan.burden_of_all if self.slots and not self.path.incoming else 0

    def _store(self, number: int, slot: Slot) -> None:
        self._plan.store(self._plan.pieces[number], slot.bytes)


class BatchCopyPaths(DevicePart):
    """The short ways of the copies of a device's batches. All batches of a generation have the same ones.

    A worker prepares what a path sends when it comes for the first time.
    """

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._paths: dict[int, CopyPath] = {}

    def of(self, generation: Generation, way: Way) -> CopyPath | None:
        """Return the path of a direction into a generation; None if it has no ring."""
        path = self._paths.get(way.lane)
        if path is None or path.generation is not generation:
            if generation.ring is None:
                return None
            path = self._paths[way.lane] = CopyPath(generation, way, self.device.memory_actor, BATCH_LIMIT)
        return path

    def generation_lost(self, number: int) -> None:
        """Drop the paths into a lost generation."""
        self._paths.clear()


class BatchCopies:
    """The short way of one batch's copies, in the generation that it was entered in."""

    def __init__(self, device: DeviceCore, generation: Generation, slots: BatchSlots) -> None:
        self._generation = generation
        self._paths = device.part(BatchCopyPaths)
        self._known: dict[int, CopyPath] = {}
        """Those of its generation that it has used, by their lanes."""
        self._pinned = device.part(Transfers).pinned
        self._acquire = slots.acquire
        self._incoming: collections.deque[SingleBatchCopy | BatchCopy] = collections.deque()
        """Copies to the device that may still hold slots, the oldest first."""

    def plan(self, array: DeviceArray, host: npt.NDArray[Any], way: Way) -> SingleBatchCopy | BatchCopy | None:
        """Return a copy between two checked arrays that can be sent now; None if it has to go the general way."""
        size, flags = host.nbytes, host.flags
        if not size or type(array._storage) is not Storage:
            return None
        path = self._known.get(way.lane)
        if path is None:
            path = self._paths.of(self._generation, way)
            if path is None:
                return None
            self._known[way.lane] = path
        if array._plain is None or not flags.c_contiguous:
            plan = path.plan_boxes(array, host) if size <= SHORT_BYTES else None
            return None if plan is None else BatchBoxCopy(path, plan)
        found = None if flags.owndata else self._pinned.find_packed(host)
        count = 1
        if found is None:
            if size > SHORT_PIECE:
                if size > (BATCH_IN_BYTES if path.incoming else SHORT_BYTES):
                    return None
                count = -(-size // SHORT_PIECE)
        elif size > PINNED_PIECE or not found[0].is_known(self._generation, way.lane):
            return None
        if not path.takes(array._storage.block, count):
            return None
        return SingleBatchCopy(path, array, host, found) if count == 1 else BatchCopy(path, array, host, count)

    def send(self, copy: SingleBatchCopy | BatchCopy) -> None:
        """Send a copy that was planned just now. Raises as `BatchSlots.acquire` does, before anything is sent."""
        incoming = self._incoming
        while incoming and incoming[0].reclaim():
            incoming.popleft()
        path = copy.path
        is_first = not path.book.launches
        if copy.send(self._acquire) and path.incoming:
            incoming.append(copy)
        if is_first:  # else somebody looks for an end on this lane already
            path.settler.wake()
