"""The short way of a copy between the host and the device.

The ordinary copy is of a megabyte or less, between an array that no other lane works on and packed memory of the host.
Its caller's task copies the bytes itself, through slots of the staging area, and writes the records straight into the
ring: no request, no other task, no thread. The GPU copies one piece while the task copies the next. A copy of pinned
memory is a single record and no memcpy.

All records of a copy are written in one stretch without a checkpoint, so other commands come before the copy or after
it, as with a copy of one command, and a copy that is cancelled goes on to its end. In every case that does not allow
this, `ShortCopies.begin` returns None and has no effect, and the caller goes the general way.

The commands of a copy are settled as launches are that went the short way: in the queue of their lane's book.
"""

from __future__ import annotations

import collections
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import trio

from .._arrays.arrays import Storage
from .._arrays.layout import Box, Piece
from .._generation.core import DeviceCore, DevicePart
from .._generation.timeline import Launch, LaunchOwner, Operand
from .._memory.arena import Block, ChunkState, Ticket
from .._values.errors import DeviceError
from .._wire.protocol import LANE_LIMIT, RECORDS_SENT_WORD, REPEATED, UNSIGNED, Role, Verb, counter_word
from .._wire.ready import WORD, new_identity, ready_head, with_holes
from .._wire.records.memory import AREA_SHIFT, BOX, MEMORY, PLACES_OF_A_BOX
from .._wire.ring import NUMBERED_HEADER, SLOT_MASK, SLOT_SHIFT
from .copy_plan import PINNED_PIECE, TO_DEVICE, Way, _Plan, is_rectangle
from .memory import tear
from .staging import MEDIUM_SLOT, Slot
from .transfers import Transfers

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .._generation.generation import Generation
    from .._generation.settler import Settler
    from .._supervision.mailbox import Mailbox

SHORT_BYTES = 1 << 20
"""The most bytes of pageable memory that go this way. The event loop stands still for some 0.1 ms while so many are
copied. More than that is left to several threads, which are faster when several copies are under way."""

SHORT_PIECE = MEDIUM_SLOT
"""Bytes of a piece: the GPU takes a quarter of the time for it that memcpy takes."""

TURN_BYTES = 512 << 10
"""Bytes that a task copies before it lets others run. It takes some 40 us."""

GLANCE_SECONDS = 12e-6
"""Seconds for which a task looks for its ticket between two turns of the scheduler, if it is alone."""

SIGN_EVERY = 4
"""So many pieces of a copy to the device share a ticket; their slots are free when it is reached."""

_MOST_FORMS = 256
"""The most kinds of boxes that a path knows at a time."""


class _CopyKind:
    """What goes this way, for the accounts of the lane: the arguments of a command are its array and the host's."""

    _engine = "memory"

    def __init__(self, way: Way) -> None:
        self._way = way

    def _describe(self, arguments: tuple[Any, ...]) -> tuple[str, Sequence[Operand]]:
        role = Role.WRITE if self._way is TO_DEVICE else Role.READ
        return self._way.operation, ((arguments[0]._block, role),) if arguments else ()


class _Form:
    """What is constant in the records of some copies. Their words, and in front of these a header, are what is not."""

    __slots__ = ("behind", "count", "head", "length", "pack_into", "verb")

    def __init__(self, verb: Verb, payload: bytes, places: Sequence[int]) -> None:
        self.verb: int = verb.number | REPEATED
        self.head: bytes = ready_head(new_identity(), places)
        self.behind: bytes = with_holes(payload, places)
        self.count: int = len(places)
        self.length: int = len(self.head) + len(payload)
        record = struct.Struct(f"{NUMBERED_HEADER.format}{len(self.head)}s{self.count}Q{len(payload)}s")
        self.pack_into: Callable[..., None] = record.pack_into
        """Writes a whole record, from its number in the ring on."""


class CopyPath:
    """The short way to the lane of one direction, in one generation."""

    def __init__(self, generation: Generation, way: Way, limit: int = LANE_LIMIT) -> None:
        """`limit` is the most unfinished commands of the lane."""
        self.generation: Generation = generation
        self.settler: Settler = generation.settler
        self.way: Way = way
        self.words: memoryview[int] = generation.sender.words
        self.counter: int = counter_word(way.lane)
        """The index in the page of the ticket that the lane has reached."""
        self.last_record: int = 0
        """Records up to this one may be sent without further checks; see `LaunchPath`."""
        self._limit = limit
        self._sender = generation.sender
        self._book = generation.timeline.book(way.lane)
        self._kind = _CopyKind(way)
        ring = generation.sender.ring
        assert ring is not None
        self._slots = ring.slots
        self._run = _Form(way.run, bytes(way.run.struct.size), range(0, way.run.struct.size, WORD.size))
        self._boxes: dict[bytes, _Form] = {}
        self._sender.short_ways.add(self)

    def forget(self, thing: object) -> None:
        """Do nothing: no copy belongs to a module or a plan."""

    def takes(self, block: Block, count: int = 1) -> bool:
        """Return whether `count` commands that copy this block may be sent now.

        There is room for them, and none needs a wait or another command.
        """
        if self._sender.sent + count > self.last_record and not self._look_again(count):
            return False
        if block.freed or block.torn is not None or block.lost is not None or block.recipe is not None:
            return False
        generation = self.generation
        others = generation.order.others
        if (
            block.chunk.state is not ChunkState.READY
            or generation.arena.quarantine
            or (others is not None and others.uses(block))
        ):
            return False
        peers = generation.order.peers
        if block.peers and not (peers is not None and peers.takes_alone(block)):
            return False
        block.settle(generation.number)
        writer = block.writer
        if writer is not None and not self._is_over(writer):
            return False
        return self.way is not TO_DEVICE or not block.readers or all(map(self._is_over, block.readers.items()))

    def _is_over(self, ticket: Ticket) -> bool:
        """Return whether a copy that is sent now comes after this ticket without waiting for it."""
        lane, number = ticket
        return lane == self.way.lane or self.words[counter_word(lane)] >= number

    def _look_again(self, count: int) -> bool:
        room = self._sender.room(self.counter, self._book.issued, self._limit)
        self.last_record = self._sender.sent + room
        return room >= count

    def form_of(self, box: Box) -> _Form:
        """Return the form of the copies of a box, whose words are the area, the destination and the source."""
        here, there = box.side(0)[1:], box.other_side(0)[1:]
        sides = (0, *here, 0, *there) if self.way is TO_DEVICE else (0, *there, 0, *here)
        payload = self.way.box.struct.pack(0) + BOX.pack(*sides, box.width, box.height, box.depth)
        form = self._boxes.get(payload)
        if form is None:
            if len(self._boxes) >= _MOST_FORMS:
                self._boxes.clear()
            form = self._boxes[payload] = _Form(self.way.box, payload, PLACES_OF_A_BOX)
        return form

    def send(
        self,
        block: Block,
        words: tuple[int, int, int],
        owner: LaunchOwner,
        arguments: tuple[object, ...],
        *,
        shares: bool,
        form: _Form | None = None,
    ) -> int:
        """Send a command that `takes` allows, and return its ticket. Raises nothing.

        Without a form it copies a run of bytes, and the words are the device address, the place on the host and the
        size.
        """
        sender, book, way = self._sender, self._book, self.way
        lane, ticket, sent = way.lane, book.issued + 1, sender.sent + 1
        block.fast = 0  # a launch must wait for the copy
        if way is TO_DEVICE:
            block.writer = (lane, ticket)
            block.written = True
            if block.readers:
                block.readers = {}
        else:
            block.readers[lane] = ticket
        form = form or self._run
        verb = form.verb | UNSIGNED if shares else form.verb
        at = (sent - 1 & SLOT_MASK) << SLOT_SHIFT
        header = (sent, ticket, lane, MEMORY.number, verb, form.count, form.length)
        form.pack_into(self._slots, at, *header, form.head, *words, form.behind)
        book.launches.append((ticket, owner, self._kind, arguments))
        book.issued = ticket
        sender.sent = self.words[RECORDS_SENT_WORD] = sent
        sender.announce()
        return ticket


class ShortCopy:
    """A copy under way, and the owner of its commands. Its caller's task does everything, but to note their end."""

    __slots__ = (
        "_array",
        "_begun",
        "_bell",
        "_block",
        "_ended",
        "_error",
        "_failed",
        "_host",
        "_left",
        "_looks",
        "_mailbox",
        "_moved",
        "_path",
        "_place",
        "_slots",
        "_ticket",
        "_transfers",
    )

    def __init__(
        self,
        path: CopyPath,
        mailbox: Mailbox,
        transfers: Transfers,
        array: DeviceArray,
        host: npt.NDArray[Any],
        place: int | None,
    ) -> None:
        self._path = path
        self._mailbox = mailbox
        self._transfers = transfers
        self._array = array
        self._block: Block = array._block
        self._host = host
        self._place = place
        """The place of pinned memory; None for memory that is copied through slots."""
        self._begun = 0
        """The number of commands that were sent."""
        self._ended = 0
        """The number of those whose end is known."""
        self._failed = 0
        self._moved = 0
        """The bytes for which there is a command."""
        self._ticket = 0
        """The ticket of the last command."""
        self._slots: collections.deque[Slot] = collections.deque()
        """The slots of commands, in their order: until their end, or until the task has copied from them."""
        self._error: DeviceError | None = None
        self._left = False
        """True if the caller has left."""
        self._looks = False
        """True while this task polls for all ends."""
        self._bell: trio.Event | None = None

    async def run(self) -> None:
        """Copy. Raises as the verbs do."""
        self._looks = self._path.settler.begin_looking()
        try:
            if self._place is not None:
                self._send((self._array.address, self._place, self._host.nbytes), self._host.nbytes)
                await self._all_ended()
            elif self._path.way is TO_DEVICE:
                self._fill_slots()
                await self._all_ended()
            else:
                await self._copy_out()
        except BaseException as error:
            self._leave()
            if self._path.way is TO_DEVICE:
                whole = self._moved == self._host.nbytes
                tear(self._block, error, begun=self._begun, pieces=self._begun + (not whole))
            raise
        finally:
            if self._looks:
                self._looks = False
                self._path.settler.end_looking()

    def _fill_slots(self) -> None:
        """Copy the pieces to slots, and send them."""
        memory, whole, address = bytes_of(self._host), self._host.nbytes, self._array.address
        if whole <= SHORT_PIECE:
            slot = self._transfers.staging.acquire_nowait(whole)
            np.copyto(slot.bytes[:whole], memory)
            self._slots.append(slot)
            self._send((address, slot.place, whole), whole)
            return
        for begin, size in pieces_of(whole, SHORT_PIECE):
            slot = self._transfers.staging.acquire_nowait(SHORT_PIECE)
            np.copyto(slot.bytes[:size], memory[begin : begin + size])
            self._slots.append(slot)
            self._send((address + begin, slot.place, size), size)

    async def _copy_out(self) -> None:
        memory, whole, address = bytes_of(self._host), self._host.nbytes, self._array.address
        if whole <= SHORT_PIECE:
            slot = self._transfers.staging.acquire_nowait(whole)
            self._slots.append(slot)
            self._send((address, slot.place, whole), whole)
            await self._all_ended()
            np.copyto(memory, slot.bytes[:whole])
            self._slots.popleft().release()
            return
        pieces = pieces_of(whole, SHORT_PIECE)
        for begin, size in pieces:
            slot = self._transfers.staging.acquire_nowait(SHORT_PIECE)
            self._slots.append(slot)
            self._send((address + begin, slot.place, size), size)
        await trio.lowlevel.checkpoint()
        held = 0
        for number, (begin, size) in enumerate(pieces):
            if self._ended <= number or self._error is not None:
                await self._until(number + 1)
            np.copyto(memory[begin : begin + size], self._slots[0].bytes[:size])
            self._slots.popleft().release()
            held += size
            if held >= TURN_BYTES and self._slots:
                held = 0
                await trio.lowlevel.checkpoint()

    def _send(self, words: tuple[int, int, int], size: int, form: _Form | None = None) -> None:
        arguments = (self._array, self._host)
        last = self._moved + size == self._host.nbytes
        shares = self._path.way is TO_DEVICE and not last and bool((self._begun + 1) % SIGN_EVERY)
        self._ticket = self._path.send(self._block, words, self, arguments, shares=shares, form=form)
        self._begun += 1
        self._moved += size
        if not self._looks:
            self._path.settler.wake()

    # --- waiting --------------------------------------------------------------------------------------------------

    async def _all_ended(self) -> None:
        """Wait for the end of every command, and raise the error of one that failed."""
        if self._looks:
            settler, ticket, clock = self._path.settler, self._ticket, time.perf_counter
            words, counter = self._path.words, self._path.counter
            now = clock()
            until = now + settler.patience
            while True:
                before = now
                await trio.lowlevel.checkpoint()
                if words[counter] >= ticket or self._ended == self._begun:
                    break
                now = clock()
                if now > until:
                    break
                if now - before < GLANCE_SECONDS:  # nobody else had anything to do
                    glances_until = now + GLANCE_SECONDS
                    while words[counter] < ticket and now < glances_until:
                        now = clock()
            self._looks = False
            settler.end_looking(self, self._path.way.lane)
        if self._ended < self._begun or self._error is not None:
            await self._until(self._begun)

    async def _until(self, count: int) -> None:
        """Wait for the end of so many commands, and raise the error of one that failed."""
        settler = self._path.settler
        while not self._reached(count):
            if not self._looks:
                self._bell = trio.Event()
                await self._bell.wait()
                continue
            until = time.perf_counter() + settler.patience
            settler.settle_finished()
            while not self._reached(count) and time.perf_counter() < until:
                await trio.lowlevel.checkpoint()
                settler.settle_finished()
            if not self._reached(count):  # it takes long
                self._looks = False
                settler.end_looking()
        if self._error is not None:
            raise self._error

    def _reached(self, count: int) -> bool:
        return self._ended >= count or self._error is not None

    def _leave(self) -> None:
        """Give up what the task would have done: slots are free as soon as the GPU has left them."""
        self._left = True
        while len(self._slots) > self._begun - self._ended:
            self._slots.popleft().release()

    # --- the end of commands --------------------------------------------------------------------------------------

    def launches_finished(self, count: int) -> None:
        """Note the end of commands, and wake the task."""
        self._ended += count
        failed, self._failed = self._failed, 0
        self._mailbox.count_finished(count - failed, "abandoned" if self._left else "ok")
        if failed:
            self._mailbox.count_finished(failed, "abandoned" if self._left else "failed")
        if self._left or self._path.way is TO_DEVICE:
            while len(self._slots) > self._begun - self._ended:
                self._slots.popleft().release()
        self._wake()

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error of a command that failed alone; `launches_finished` follows."""
        self._failed += 1
        if self._error is None:
            self._error = error

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error, and wake the task: the generation was lost before the commands were seen to end."""
        self._ended += count
        self._error = error
        self._mailbox.count_finished(count, "abandoned" if self._left else "lost")
        while self._slots:
            self._slots.popleft().release()
        self._wake()

    def _wake(self) -> None:
        if self._bell is not None:
            self._bell.set()
            self._bell = None


class ShortBoxCopy(ShortCopy):
    """A copy whose bytes do not follow each other on one of the sides: a box of rows for each piece."""

    __slots__ = ("_plan",)

    def __init__(self, path: CopyPath, mailbox: Mailbox, transfers: Transfers, plan: _Plan) -> None:
        super().__init__(path, mailbox, transfers, plan.array, plan.host, None)
        self._plan = plan

    def _fill_slots(self) -> None:
        for piece in self._plan.pieces:
            slot = self._transfers.staging.acquire_nowait(piece.size)
            self._plan.load(piece, slot.bytes)
            self._slots.append(slot)
            self._send_box(piece, slot)

    async def _copy_out(self) -> None:
        pieces = self._plan.pieces
        for piece in pieces:
            self._slots.append(self._transfers.staging.acquire_nowait(piece.size))
            self._send_box(piece, self._slots[-1])
        await self._all_ended()
        for piece in pieces:
            self._plan.store(piece, self._slots[0].bytes)
            self._slots.popleft().release()

    def _send_box(self, piece: Piece, slot: Slot) -> None:
        (box,) = piece.boxes
        here = self._plan.box_at(box)
        if box.height == 1:
            self._send((here, slot.place, piece.size), piece.size)
            return
        sides = (here, slot.offset) if self._path.way is TO_DEVICE else (slot.offset, here)
        self._send((slot.area, *sides), piece.size, self._path.form_of(box))


class ShortCopies(DevicePart):
    """The short way of a device's awaited copies."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._paths: dict[int, CopyPath] = {}
        self._transfers = device.part(Transfers)

    def begin(self, array: DeviceArray, host: npt.NDArray[Any], way: Way) -> ShortCopy | None:
        """Return a copy between two checked arrays, to be run without a checkpoint before; None for the general way.

        The short way is allowed only if it would be the actor's next request.
        """
        path = self._paths.get(way.lane)
        size = host.nbytes
        if path is None or not size or type(array._storage) is not Storage:
            return None
        actor = self.device.memory_actor
        mailbox = actor.mailbox
        if mailbox.posted != mailbox.taken or actor.current is not None:
            return None
        if array._plain is None or not host.flags.c_contiguous:
            return self._begin_boxes(path, mailbox, array, host) if size <= SHORT_BYTES else None
        transfers, block = self._transfers, array._block
        found = transfers.pinned.find(host)
        if found is not None:
            if size > PINNED_PIECE or not found[0].is_known(path.generation, way.lane) or not path.takes(block):
                return None
            return ShortCopy(path, mailbox, transfers, array, host, found[0].number << AREA_SHIFT | found[1])
        count = -(-size // SHORT_PIECE)
        if size > SHORT_BYTES or transfers.staging.count_free(min(size, SHORT_PIECE)) < count:
            return None
        return ShortCopy(path, mailbox, transfers, array, host, None) if path.takes(block, count) else None

    def _begin_boxes(
        self, path: CopyPath, mailbox: Mailbox, array: DeviceArray, host: npt.NDArray[Any]
    ) -> ShortCopy | None:
        if array._plain is None and not is_rectangle(array.shape, array.strides, array.itemsize):
            return None
        plan = _Plan(array, host, path.way, SHORT_PIECE)
        pieces = plan.pieces
        if (
            plan.pinned is not None
            or sum(map(plan.burden, pieces)) > SHORT_BYTES
            or any(self._transfers.staging.count_free(piece.size) < len(pieces) for piece in pieces)
            or not path.takes(array._block, len(pieces))
        ):
            return None
        return ShortBoxCopy(path, mailbox, self._transfers, plan)

    def learn(self, way: Way) -> None:
        """Prepare the short way for the next copy, after one that went the general way."""
        generation = self.device.serving
        if generation is None or generation.refusing or generation.ring is None:
            return
        path = self._paths.get(way.lane)
        if path is None or path.generation is not generation:
            self._paths[way.lane] = CopyPath(generation, way)

    def generation_lost(self, number: int) -> None:
        """Drop the paths into a lost generation."""
        self._paths.clear()


def pieces_of(size: int, piece: int) -> list[tuple[int, int]]:
    """Return the begin and the size of each piece."""
    return [(begin, min(piece, size - begin)) for begin in range(0, size, piece)]


def bytes_of(host: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of packed memory."""
    return host.reshape(-1).view(np.uint8)
