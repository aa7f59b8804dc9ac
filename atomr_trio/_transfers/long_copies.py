"""The short way of a copy of 1 to 64 MiB with pageable memory, but for those of ``stretch_copies.py``.

Its caller's task copies piece by piece, as in ``short_copies.py``, and lets other tasks run between two pieces. Where
there are processors enough, a few helpers take some of the pieces: `Pile` says how. The pieces pass through a few slots
in turn, so that these stay in the processor's cache: there a memcpy to a slot is twice as fast as to one that was not
used for a while.

What other tasks do in between must not see half of the copy. So the pieces go to, or come from, a block of device
memory that nobody else knows, and a single command of the GPU copies between it and the array: behind the last piece,
or ahead of the first. That takes the GPU a few microseconds. A copy to the device that is cancelled or fails before has
not touched its array. The block is taken from the arena when the copy begins, and goes back when its last command was
sent: the next owner of the memory waits for it, as for that of any freed array.

In every case that does not allow this, such as memory that has no room for the block, `begin_long` returns None, and
the caller goes the general way.
"""

from __future__ import annotations

import collections
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import trio

from .._arrays.layout import Box, run
from .._generation.requests import CommandRequest
from .._generation.settler import TURN_SECONDS
from .._generation.timeline import Launch
from .._memory.arena import ArenaFull, Block, ChunkState
from .._values.errors import DeviceClosed, DeviceError, OutOfHostMemory
from .._wire.protocol import Role
from .._wire.records.memory import BOX, COPY
from .copy_plan import TO_DEVICE, TO_HOST
from .crew import Crew
from .held_copies import HeldCopy
from .pile import Piece, give_way
from .short_copies import SHORT_PIECE, CopyPath
from .staging import LARGE_SLOT, LARGE_SLOTS, MEDIUM_SLOT, Slot

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .transfers import Transfers

LONG_BYTES: Final = 64 << 20
"""The most bytes of a copy that goes this way. Streams are faster with more."""

LONG_ALONE_BYTES: Final = {TO_DEVICE: 16 << 20, TO_HOST: 8 << 20}
"""The same where no helper pays, in each direction: more are copied by streams."""

WINDOW: Final = 3
"""The slots that such a copy uses in turn. They fit in a cache of 2 MiB."""

BYTES_OF_A_HELPER: Final = 4 << 20
"""One helper pays for so many bytes."""

SHARED_PIECES: Final = (8 << 20, 1 << 20), (LONG_BYTES, 2 << 20)
"""The most bytes of a piece where helpers take some, for copies of so many bytes at most. A thread that has copied
waits for the interpreter's lock, some 50 us if another is at work, so few pieces are better than many."""

SHARED_WINDOW: Final = 3
"""The pieces that have room in slots then, for each who copies: one is copied, one is the GPU's, and one waits."""

MOST_SLOTS: Final = LARGE_SLOTS // 2
"""The most slots of such a copy. A slot has room for several pieces."""

STRETCH_SECONDS: Final = 100e-6
"""A task that has copied for so long lets others run before the next piece."""

STRETCH_ALONE_SECONDS: Final = 300e-6
"""The same behind a turn in which no other task had anything to do, and so took a few microseconds."""

LONG_TURN_SECONDS: Final = 200e-6
PATIENCE: Final = 2
"""If the others take so long in their turn, it copies so many times as long in the next one: a loop that is busy would
else hold up a copy for as many turns as it has pieces."""

PAGE: Final = 4096
_POLL_SECONDS: Final = 200e-6


class _Private:
    """The block between the pieces and the array, where the accounts of the lane expect an array."""

    __slots__ = ("_block",)

    def __init__(self, block: Block) -> None:
        self._block = block


def begin_long(
    path: CopyPath, transfers: Transfers, array: DeviceArray, host: npt.NDArray[Any], rows: Box | None = None
) -> LongCopy | None:
    """Return a copy between packed memory and an array that can begin now; None if there is none.

    The array is packed, or consists of `rows`.
    """
    size, staging = host.nbytes, transfers.staging
    helpers = helpers_for(size, transfers.crew.beside)
    if size > (LONG_BYTES if helpers else LONG_ALONE_BYTES[path.way]):
        return None
    if path.long or array._storage.device.options.checks or not path.takes(array._storage.block, WINDOW):
        return None
    piece, slots = SHORT_PIECE, None
    if helpers:
        most = next(most for limit, most in SHARED_PIECES if size <= limit)
        piece = min(most, -(-size // (1 + helpers) // PAGE) * PAGE)
        window = min(-(-size // piece), SHARED_WINDOW * (1 + helpers))
        slots = staging.acquire_several(piece, min(-(-window // pieces_of_slot(piece)), MOST_SLOTS))
    if slots is None and size <= LONG_ALONE_BYTES[path.way]:
        helpers, piece = 0, SHORT_PIECE
        slots = staging.acquire_several(piece, WINDOW)
    if slots is None:
        return None
    block = _private_block(path, size)
    if block is None:
        for slot in slots:
            slot.release()
        return None
    path.long = True
    return (LongIn if path.incoming else LongOut)(path, array, host, rows, slots, block, piece, transfers.crew, helpers)


def helpers_for(size: int, most: int) -> int:
    """Return how many helpers pay for so many bytes, if there may be `most`."""
    return min(most, size // BYTES_OF_A_HELPER)


def pieces_of_slot(piece: int) -> int:
    """Return how many pieces of so many bytes each a slot has room for."""
    return (MEDIUM_SLOT if piece <= MEDIUM_SLOT else LARGE_SLOT) // piece


def _private_block(path: CopyPath, size: int) -> Block | None:
    """Return a block that can be used at once, if the arena has one.

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
        if path.takes_new(block, WINDOW):
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


class LongCopy(HeldCopy):
    """A copy of many pieces under way."""

    __slots__ = (
        "_allowed",
        "_block",
        "_free",
        "_helpers",
        "_moved",
        "_piece",
        "_pieces",
        "_private",
        "_rows",
        "_shared",
        "_turn_at",
        "_unfinished",
    )

    def __init__(
        self,
        path: CopyPath,
        array: DeviceArray,
        host: npt.NDArray[Any],
        rows: Box | None,
        slots: list[Slot],
        block: Block,
        piece: int,
        crew: Crew,
        helpers: int,
    ) -> None:
        super().__init__(path, array, host, slots, crew)
        self._block = block
        """The private block."""
        self._private = _Private(block)
        self._rows = rows
        self._free = [slot.part(begin, piece) for slot in slots for begin in range(0, slot.size - piece + 1, piece)]
        """The parts of slots that neither the GPU nor anybody here needs now, with room for a piece each."""
        self._unfinished: collections.deque[tuple[int, Slot | None]] = collections.deque()
        """The commands whose end is not known, each with its ticket, and with the slot that is free then."""
        self._piece = piece
        """The bytes of a piece; the last may have less."""
        self._pieces = -(-host.nbytes // piece)
        """Their number."""
        self._helpers = helpers
        """Those that it has not called yet."""
        self._shared = helpers > 0
        self._moved = False
        """True once the copy between the private block and the array was sent."""
        self._allowed = 0
        """So many commands may be sent if no other task has run before."""
        self._turn_at = 0.0
        """Others run at this time."""

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Copy. Raises as the verbs do. Nothing is sent if the caller was cancelled before."""
        path = self._path
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._looks = path.settler.begin_looking()
            self._turn_at = time.perf_counter() + STRETCH_SECONDS
            await self._copy_all()
        finally:
            path.long = False
            path.arena.free(self._block)
            self._stop_looking()
            await self._pile.close()
            self._leave()

    async def _copy_all(self) -> None:
        raise NotImplementedError

    def _copy(self, piece: Piece) -> None:
        """Copy a piece in the task. Without helpers it keeps the interpreter's lock, which others may not give back."""
        raise NotImplementedError

    def _call_helpers(self, *, complete: bool) -> None:
        """Have the helpers come, once there are pieces for them; `complete` says that there will be no more."""
        self._pile.complete = complete
        if self._helpers:
            self._pile.call(self._helpers)
            self._helpers = 0

    def _bytes_of(self, number: int) -> npt.NDArray[np.uint8]:
        """Return the caller's memory of a piece."""
        begin = number * self._piece
        return self._memory[begin : begin + self._piece]

    def _heard(self) -> tuple[Piece, bool]:
        """Return what `Pile.heard` does. An error of the copy comes first: behind a loss, a helper has one as well."""
        if self._error is not None:
            raise self._error
        return self._pile.heard()

    # --- sending --------------------------------------------------------------------------------------------------

    def _send_piece(self, number: int, slot: Slot, freed: Slot | None) -> int:
        """Send a piece, and return its ticket. `freed` is the slot that is free when it has ended."""
        begin = number * self._piece
        size = min(self._piece, self._host.nbytes - begin)
        block, path = self._block, self._path
        ticket = path.send(block, (block.address + begin, slot.place, size), self, (self._private, self._host))
        self._sent(ticket, freed)
        return ticket

    def _send_move(self) -> None:
        """Send the copy between the private block and the array."""
        path, block, rows = self._path, self._block, self._rows
        words: tuple[int, ...] = (self._address, block.address) if path.incoming else (block.address, self._address)
        if rows is None:
            words, form = (*words, self._host.nbytes), path.move
        else:
            form = path.move_of(rows)
        self._moved = True
        ticket = path.send(self._array._storage.block, words, self, (self._array, self._host), False, form)
        if path.incoming:
            block.readers = {path.way.lane: ticket}
        else:
            block.writer, block.written, block.readers = (path.way.lane, ticket), True, {}
        self._sent(ticket, None)

    def _sent(self, ticket: int, slot: Slot | None) -> None:
        self._begun += 1
        self._unfinished.append((ticket, slot))
        if not self._looks:
            self._path.settler.wake()

    async def _allow(self) -> None:
        """Wait until a command on the private block may be sent, and count it as sent."""
        if self._allowed:
            self._allowed -= 1
            return
        path, block = self._path, self._block
        if path.takes(block, WINDOW):
            self._allowed = WINDOW - 1
            return
        while not path.takes(block):
            self._check()
            if path.generation.refusing:
                raise DeviceClosed("the device is being closed", device=self._array._storage.device.index)
            if self._unfinished:
                await self._until_one_ends()
            else:  # others fill the lane, or the ring
                self._stop_looking()
                await trio.sleep(_POLL_SECONDS)
        self._allowed = 0

    # --- waiting --------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise the error of a command that failed, or that of the loss of the generation."""
        if self._error is not None:
            raise self._error
        generation = self._path.generation
        if generation.loss is not None:
            raise generation.loss.error(self._array._storage.device.index, generation.number)

    async def _turn_if_due(self) -> None:
        """Let others run, between two pieces, if it is time."""
        clock = time.perf_counter
        begun = clock()
        if begun <= self._turn_at:
            return
        self._allowed = 0
        await trio.lowlevel.checkpoint()
        now = clock()
        self._note_ended()
        if self._error is not None:
            raise self._error
        took = now - begun
        if took < TURN_SECONDS:
            self._turn_at = now + STRETCH_ALONE_SECONDS
        else:
            self._turn_at = now + (STRETCH_SECONDS if took < LONG_TURN_SECONDS else PATIENCE * STRETCH_SECONDS)

    def _note_ended(self) -> None:
        """Settle what has ended, if this task is the one that polls."""
        path, unfinished = self._path, self._unfinished
        if self._looks and unfinished and not path.settler.over and path.words[path.counter] >= unfinished[0][0]:
            path.settler.settle_finished()

    async def _until_one_ends(self) -> None:
        """Wait for the end of the oldest command that is unfinished; there is one."""
        path, left = self._path, len(self._unfinished)
        settler = path.settler
        self._allowed = 0
        while len(self._unfinished) == left and self._error is None:
            if not self._looks:
                await self._sleep()
                continue
            await settler.look(path.counter, self._unfinished[0][0])
            if len(self._unfinished) < left:
                break  # another task, such as one that submits, has settled it meanwhile
            if settler.over or path.words[path.counter] < self._unfinished[0][0]:
                self._stop_looking()  # it takes long
            else:
                settler.settle_finished()
        if self._error is not None:
            raise self._error

    async def _until_all_ended(self) -> None:
        while self._unfinished:
            await self._until_one_ends()

    # --- the end of commands --------------------------------------------------------------------------------------

    def launches_finished(self, count: int) -> None:
        """Note the end of commands, and wake the task."""
        for _ in range(count):
            slot = self._unfinished.popleft()[1]
            if slot is not None:
                self._free.append(slot)
        super().launches_finished(count)

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error, and wake the task: the generation was lost before the commands were seen to end."""
        for _ in range(count):
            self._unfinished.popleft()
        super().launches_lost(count, error)


class LongIn(LongCopy):
    """One to the device."""

    __slots__ = ()

    def _copy(self, piece: Piece) -> None:
        load = piece.slot.load_freely if self._shared else piece.slot.load
        load(self._bytes_of(piece.number))

    def _copy_by_helper(self, piece: Piece) -> bool:
        piece.slot.load_freely(self._bytes_of(piece.number))
        return True

    async def _copy_all(self) -> None:
        path, pile, free = self._path, self._pile, self._free
        count, added, sent = self._pieces, 0, 0
        while sent < count:
            while free and added < count:
                pile.add(Piece(added, free.pop(), 0))
                added += 1
            self._call_helpers(complete=added == count)
            if pile.done:
                await self._allow()
                piece, _ = self._heard()
            else:
                taken = pile.take()
                if taken is None:
                    await self._wait_for_piece()
                    continue
                piece = taken
                await self._allow()
                self._copy(piece)
            self._send_piece(piece.number, piece.slot, piece.slot)
            sent += 1
            if not free:
                self._note_ended()
            await self._turn_if_due()
        self._note_ended()
        if self._error is not None:
            raise self._error
        if path.takes(self._array._storage.block):
            self._send_move()
        else:
            await self._move_generally()
        await self._until_all_ended()

    async def _wait_for_piece(self) -> None:
        """Wait for a helper that copies, or for the GPU if none does."""
        if self._pile.in_hands:
            give_way()
            self._note_ended()
            await self._turn_if_due()
        elif not self._pile.done:  # else one has just come to its end, and there may be nothing unfinished
            await self._until_one_ends()

    async def _move_generally(self) -> None:
        """Copy to the array, which others work on now, in the general way."""
        self._stop_looking()
        await self._until_all_ended()
        self._check()
        array, path = self._array, self._path
        target = array._storage.block
        role = Role.OVERWRITE if array._covers_block else Role.WRITE
        rows = run(self._host.nbytes) if self._rows is None else self._rows
        request = CommandRequest(
            COPY,
            BOX.pack(*path.ends_of(rows, self._address, self._block.address), rows.width, rows.height, rows.depth),
            ((target, role), (self._block, Role.READ)),
            keep=(array, self._host),
            lane=path.way.lane,
            operation=path.way.operation,
        )
        await path.mailbox.ask(request)

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error of a command that failed alone; what was copied on from a piece that failed is torn."""
        super().launch_failed(launch, error)
        target = self._array._storage.block
        if launch[3][0] is self._private and self._moved and not target.freed:
            target.fast = 0
            target.tear(f"a write that did not finish ({type(error).__name__})")


class LongOut(LongCopy):
    """One to the host."""

    __slots__ = ()

    def _copy(self, piece: Piece) -> None:
        store = piece.slot.store_freely if self._shared else piece.slot.store
        store(self._bytes_of(piece.number))

    def _copy_by_helper(self, piece: Piece) -> bool:
        if not self._has_come(piece.ticket):
            return False
        piece.slot.store_freely(self._bytes_of(piece.number))
        return True

    async def _copy_all(self) -> None:
        pile, free = self._pile, self._free
        self._send_move()
        count, added, stored = self._pieces, 0, 0
        while stored < count:
            while free and added < count:
                await self._allow()
                slot = free.pop()
                pile.add(Piece(added, slot, self._send_piece(added, slot, None)))
                added += 1
            self._call_helpers(complete=added == count)
            if pile.done:
                piece, copied = self._heard()
                if not copied:
                    pile.put_back(piece)
                    continue
            else:
                taken = pile.take()
                if taken is None:  # helpers have the rest
                    give_way()
                    self._note_ended()
                    await self._turn_if_due()
                    continue
                piece = taken
                await self._until_ended(piece.ticket)
                self._copy(piece)
            free.append(piece.slot)
            stored += 1
            await self._turn_if_due()
        self._note_ended()  # helpers go by the counters: only who settles knows of a failure or a loss
        await self._until_all_ended()

    async def _until_ended(self, ticket: int) -> None:
        """Wait until a command has ended, and raise the error of one that failed."""
        unfinished = self._unfinished
        self._note_ended()
        while unfinished and unfinished[0][0] <= ticket:
            await self._until_one_ends()
        if self._error is not None:
            raise self._error
