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

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import attrs
import numpy as np
import numpy.typing as npt
import trio

from .._arrays.layout import Box, Piece
from .._generation.timeline import LaneBook, Launch, LaunchOwner, Operand
from .._memory.arena import Arena, Block, Chunk, ChunkState, Ticket
from .._values.errors import DeviceError
from .._wire.protocol import (
    HEADER,
    LANE_LIMIT,
    MAX_LANES,
    RECORDS_SENT_WORD,
    REPEATED,
    UNSIGNED,
    Role,
    Verb,
    counter_word,
    failures_word,
)
from .._wire.ready import WORD, new_identity, ready_head, with_holes
from .._wire.records.memory import (
    BOX,
    COPY,
    COPY_ENDS,
    COPY_IN_READ,
    COPY_WORDS,
    MEMORY,
    PLACES_OF_A_BOX,
    PLACES_OF_A_READ,
    PLACES_OF_PINNED,
)
from .._wire.ring import NUMBER, SLOT_MASK, SLOT_SHIFT, record_struct
from .copy_plan import BYTES, TO_DEVICE, Way, _Plan, is_rectangle
from .memory import tear
from .pinned import PinnedArea
from .sleeper import Sleeper
from .staging import MEDIUM_SLOT, Slot

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .._generation.actor import Actor
    from .._generation.generation import Generation
    from .._generation.settler import Settler
    from .._supervision.mailbox import Mailbox

SHORT_BYTES = 1 << 20
"""The most bytes of pageable memory that go this way. The event loop stands still for some 0.1 ms while so many are
copied. What is larger goes this way with a helper (``stretch_copies.py``) or with turns of others (``long_copies.py``).
"""

SHORT_PIECE = MEDIUM_SLOT
"""Bytes of a piece: the GPU takes a quarter of the time for it that memcpy takes."""

FIRST_TO_HOST = 256 << 10
"""Bytes of the first of two pieces to the host: the memcpy of a copy begins when it has come, and the GPU brings the
other one in less time than that takes."""

PIECES_OF_ROWS = {True: (SHORT_PIECE, SHORT_PIECE), False: (FIRST_TO_HOST, SHORT_BYTES)}
"""The most bytes of the first piece of rows and of the others: to the device, and to the host."""

SIGN_EVERY = 4
"""So many pieces of a copy to the device share a ticket; their slots are free when it is reached."""

LINK_BYTES_PER_SECOND = 20e9
"""The least that a link moves of pinned memory, as far as waiting is concerned: its task polls for as long as the copy
may take so. A task that sleeps is told of the end some 0.2 ms late, a fifth of the time for 64 MiB."""

PACED_BYTES = 1 << 20
"""From so many bytes on, a copy of pinned memory tells how long the next one takes."""

NEXT_PIECE_SECONDS = 60e-6
"""A task that polls waits so long for the next piece of a copy to the host without a turn of the others."""

LONGEST_LOOK_SECONDS = 4e-3
"""A task does not poll longer for a copy of pinned memory."""

_MOST_FORMS = 256
"""The most kinds of boxes that a path knows at a time."""

_MOVE = BOX.pack(0, 0, 0, 0, 0, 0, 0, 1, 1)
"""A run of bytes, without its addresses and its length."""
_READY = ChunkState.READY

_COUNTERS = tuple(map(counter_word, range(MAX_LANES)))
"""The indices in the page of the tickets that the lanes have reached."""


class _CopyKind:
    """What goes this way, for the accounts of the lane: the arguments of a command are its array and the host's."""

    _engine = "memory"

    def __init__(self, way: Way) -> None:
        self._way = way

    def _describe(self, arguments: tuple[Any, ...]) -> tuple[str, Sequence[Operand]]:
        role = Role.WRITE if self._way is TO_DEVICE else Role.READ
        return self._way.operation, ((arguments[0]._block, role),) if arguments else ()


class Form:
    """What is constant in the records of some copies. Their words, and in front of these a header, are what is not."""

    __slots__ = ("behind", "front", "pack_into", "shared_front")

    def __init__(self, lane: int, verb: Verb, payload: bytes, places: Sequence[int]) -> None:
        head, number = ready_head(new_identity(), places), verb.number | REPEATED
        sizes = len(places), len(head) + len(payload)
        front, shared = (
            HEADER.pack(0, lane, MEMORY.number, flagged, *sizes)[NUMBER.size :] + head
            for flagged in (number, number | UNSIGNED)
        )
        self.front: bytes = front
        """What stands between the ticket and the words."""
        self.shared_front: bytes = shared
        """The same for a command that has no ticket of its own, but is told to have ended when the next one has."""
        self.behind: bytes = with_holes(payload, places)
        record = record_struct(f"<QQ{len(front)}s{len(places)}Q{len(payload)}s")
        self.pack_into: Callable[..., None] = record.pack_into
        """Writes a whole record: its number in the ring, the ticket, and what is named above."""


class CopyPath:
    """The short way to the lane of one direction, in one generation."""

    def __init__(self, generation: Generation, way: Way, actor: Actor, limit: int = LANE_LIMIT) -> None:
        """`limit` is the most unfinished commands of the lane; `actor` is that of memory."""
        self.generation: Generation = generation
        self.settler: Settler = generation.settler
        self.way: Way = way
        self.lane: int = way.lane
        self.incoming: bool = way is TO_DEVICE
        """True if the bytes go to the device."""
        self.actor: Actor = actor
        self.mailbox: Mailbox = actor.mailbox
        self.words: memoryview[int] = generation.sender.words
        self.counter: int = counter_word(way.lane)
        """The index in the page of the ticket that the lane has reached."""
        self.failures: int = failures_word(way.lane)
        """The index in the page of the number of its commands that have failed."""
        self.last_record: int = 0
        """Records up to this one may be sent without further checks; see `LaunchPath`."""
        self._limit = limit
        self._sender = generation.sender
        self.arena: Arena = generation.arena
        self._order = generation.order
        self._number = generation.number
        self.book: LaneBook = generation.timeline.book(way.lane)
        ring = generation.sender.ring
        assert ring is not None
        self.slots: memoryview[int] = ring.slots
        """Those of the ring."""
        self.move: Form = Form(way.lane, COPY, _MOVE, COPY_WORDS)
        """The form of the copies of a run of bytes on the device. Its words are the destination, the source, the size.
        """
        self.read: Form = Form(way.lane, COPY_IN_READ, bytes(COPY_IN_READ.struct.size), PLACES_OF_A_READ)
        """The form of the copies of which the worker reads the bytes. Its words are the device address, the place on
        the host, the size, and the address in this process."""
        info = generation.info
        self.reads: bool = self.incoming and info is not None and info.no_reading is None
        """True if the worker reads arrays of this process."""
        self.long: bool = False
        """True while a copy of ``long_copies.py`` is under way. There is one at a time: its slots are to stay in the
        cache."""
        self.pace: float = 0.0
        """The seconds for each byte of the last larger copy of pinned memory; 0 before there was one."""
        self.lacking: tuple[int, int, int] | None = None
        """A size for which the arena had no block, its bytes in use and the number of its chunks then; see there."""
        self.wanted: Chunk | None = None
        """The memory that was made for such a block last."""
        self._run = Form(way.lane, way.run, bytes(way.run.struct.size), range(0, way.run.struct.size, WORD.size))
        self._forms: dict[bytes, Form] = {}
        """The forms of boxes, by their payloads."""
        self._moves: dict[Box, Form] = {}
        """The forms of the copies on the device between packed memory and a box."""
        self._form_of: dict[Box, Form] = {}
        """Those of the boxes that were copied, which may differ in their places alone."""
        self.send: Send = _sending(self, self._run)
        self.ended: Callable[[LaunchOwner, int], bool]
        """Tells whether so many commands of this owner are the only ones of the lane, and have run without an error."""
        self.end: Callable[[], None]
        """Ends polling after `ended` was true; the caller settles the commands."""
        self.ended, self.end = generation.settler.alone(way.lane)
        self._sender.short_ways.add(self)

    def forget(self, thing: object) -> None:
        """Do nothing: no copy belongs to a module or a plan."""

    def takes(self, block: Block, count: int = 1) -> bool:
        """Return whether `count` commands that copy this block may be sent now.

        There is room for them, and none needs a wait or another command.
        """
        if self._sender.sent + count > self.last_record and not self._look_again(count):
            return False
        if (
            block.freed
            or block.torn is not None
            or block.lost is not None
            or block.recipe is not None
            or block.chunk.state is not _READY
            or self.arena.quarantine
        ):
            return False
        order, lane, words = self._order, self.lane, self.words
        if block.peers and not (order.peers is not None and order.peers.takes_alone(block)):
            return False
        if order.others is not None and order.others.uses(block):
            return False
        if block.epoch != self._number or block.reader is not None:
            block.settle(self._number)
        writer = block.writer
        if writer is not None and writer[0] != lane and words[_COUNTERS[writer[0]]] < writer[1]:
            return False
        if self.incoming and block.readers:
            for other, last in block.readers.items():
                if other != lane and words[_COUNTERS[other]] < last:
                    return False
        return True

    def takes_new(self, block: Block, count: int) -> bool:
        """Return whether so many commands may be sent now of which the first overwrites this block."""
        return self.takes(block, count) and all(map(self._is_over, block.readers.items()))

    def _is_over(self, ticket: Ticket) -> bool:
        """Return whether a copy that is sent now comes after this ticket without waiting for it."""
        lane, number = ticket
        return lane == self.lane or self.words[_COUNTERS[lane]] >= number

    def _look_again(self, count: int) -> bool:
        room = self._sender.room(self.counter, self.book.issued, self._limit)
        self.last_record = self._sender.sent + room
        return room >= count

    def note_ended(self) -> None:
        """Settle the copies that have ended. Their slots are still in the processor's cache for the next one."""
        launches, settler = self.book.launches, self.settler
        if launches and not settler.over and self.words[self.counter] >= launches[0][0]:
            settler.settle_finished()

    def plan_boxes(self, array: DeviceArray, host: npt.NDArray[Any]) -> _Plan | None:
        """Return the plan of a copy of boxes that may be sent now, in pieces of a box each; None if there is none."""
        if array._plain is None and not is_rectangle(array.shape, array.strides, array.itemsize):
            return None
        plan = _Plan(array, host, self.way, SHORT_PIECE)
        if (
            plan.pinned is not None
            or plan.burden_of_all > SHORT_BYTES
            or not self.takes(array._block, len(plan.pieces))
        ):
            return None
        return plan

    def command_of(self, plan: _Plan, piece: Piece, slot: Slot) -> tuple[tuple[int, int, int], Form | None]:
        """Return the words and the form of the command that copies a piece of such a plan; see `send`."""
        (box,) = piece.boxes
        here = plan.box_at(box)
        if box.height == 1:
            return (here, slot.place, piece.size), None
        sides = (here, slot.offset) if self.incoming else (slot.offset, here)
        return (slot.area, *sides), self.form_of(box)

    def form_of_area(self, area: PinnedArea) -> Form:
        """Return the form of the copies of pinned memory, whose words are the device address, the offset, the size.

        An area has a form of its own, so a worker can prepare a copy with the area's address.
        """
        form = area.forms.get(self.lane)
        if form is None:
            box = self.way.box
            payload = box.struct.pack(area.number) + _MOVE
            form = area.forms[self.way.lane] = Form(self.way.lane, box, payload, PLACES_OF_PINNED[box.number])
        return form

    def move_of(self, box: Box) -> Form:
        """Return the form of the copies on the device between packed memory and a box.

        Its words are the destination and the source.
        """
        form = self._moves.get(box)
        if form is None:
            if len(self._moves) >= _MOST_FORMS:
                self._moves.clear()
            payload = BOX.pack(*self.ends_of(box, 0, 0), box.width, box.height, box.depth)
            form = self._moves[box] = Form(self.way.lane, COPY, payload, COPY_ENDS)
        return form

    def ends_of(self, box: Box, here: int, there: int) -> tuple[int, ...]:
        """Return the destination and the source of a copy of a box, each with its pitch and its rows to a plane.

        `here` is the address of the box, `there` that of its packed bytes.
        """
        sides = (here, *box.side(0)[1:]), (there, *box.other_side(0)[1:])
        return (*sides[0], *sides[1]) if self.incoming else (*sides[1], *sides[0])

    def form_of(self, box: Box) -> Form:
        """Return the form of the copies of a box, whose words are the area, the destination and the source."""
        form = self._form_of.get(box)
        if form is not None:
            return form
        ends = self.ends_of(box, 0, 0)
        payload = self.way.box.struct.pack(0) + BOX.pack(*ends, box.width, box.height, box.depth)
        form = self._forms.get(payload)
        if form is None:
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            form = self._forms[payload] = Form(self.way.lane, self.way.box, payload, PLACES_OF_A_BOX)
        if len(self._form_of) >= _MOST_FORMS:
            self._form_of.clear()
        self._form_of[box] = form
        return form


class Send(Protocol):
    """Sends the commands of one path."""

    def __call__(
        self,
        block: Block,
        words: tuple[int, ...],
        owner: LaunchOwner,
        arguments: tuple[object, ...],
        shares: bool = False,
        form: Form | None = None,
        /,
    ) -> int:
        """Send a command that `CopyPath.takes` allows, and return its ticket. Raises nothing.

        Without a form it copies a run of bytes of a slot, and the words are the device address, the place on the host
        and the size. If it `shares` a ticket, it is told to have ended when one behind it has.
        """


def _sending(path: CopyPath, run: Form) -> Send:
    # A function of its own for each path: what it needs are its own names, and not attributes of attributes.
    sender, book, lane, incoming = path.generation.sender, path.book, path.way.lane, path.incoming
    slots, page, launches, kind = path.slots, sender.words, book.launches, _CopyKind(path.way)
    run_pack_into, run_front, run_behind = run.pack_into, run.front, run.behind

    def send(
        block: Block,
        words: tuple[int, ...],
        owner: LaunchOwner,
        arguments: tuple[object, ...],
        shares: bool = False,
        form: Form | None = None,
    ) -> int:
        ticket, at = book.issued + 1, sender.sent
        sent, place = at + 1, (at & SLOT_MASK) << SLOT_SHIFT
        if form is None and not shares:
            run_pack_into(slots, place, sent, ticket, run_front, *words, run_behind)
        else:
            form = form or run
            front = form.shared_front if shares else form.front
            form.pack_into(slots, place, sent, ticket, front, *words, form.behind)
        sender.sent = page[RECORDS_SENT_WORD] = sent
        sender.announce()  # not bound: `atomr_trio.testing` replaces it for a while
        # The worker has begun. Nobody looks at the accounts before this stretch without a checkpoint is over.
        block.fast = 0  # a launch must wait for the copy
        if incoming:
            block.writer = (lane, ticket)
            block.written = True
            if block.readers:
                block.readers = {}
        else:
            block.readers[lane] = ticket
        launches.append((ticket, owner, kind, arguments))
        book.issued = ticket
        return ticket

    return send


class ShortCopy(Sleeper):
    """A copy of several commands under way, and their owner. Its caller's task does all but noting their end."""

    reads: ClassVar[bool] = False
    """True if the worker reads a part of the host's array; see ``read_copies.py``."""

    __slots__ = (
        "_array",
        "_begun",
        "_count",
        "_ended",
        "_error",
        "_failed",
        "_failures",
        "_host",
        "_left",
        "_looks",
        "_path",
        "_slots",
        "_ticket",
    )

    def __init__(
        self,
        path: CopyPath,
        array: DeviceArray,
        host: npt.NDArray[Any],
        slots: list[Slot],
    ) -> None:
        super().__init__()
        self._path = path
        self._array = array
        self._host = host
        self._slots = slots
        """The slots of commands, in their order: until their end, or until the task has copied from them."""
        self._count: int = len(slots)
        """The number of its commands."""
        self._begun = 0
        """The number of commands that were sent."""
        self._ended = 0
        """The number of those whose end is known."""
        self._failed = 0
        self._failures = path.words[path.failures]
        """The failures that were counted for the lane before."""
        self._ticket = 0
        """The ticket of the last command."""
        self._error: DeviceError | None = None
        self._left = False
        """True if the caller has left."""
        self._looks = False
        """True while this task polls for all ends."""

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Copy. Raises as the verbs do. Nothing is sent if the caller was cancelled before."""
        path = self._path
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._looks = path.settler.begin_looking()
            self._send_all()
            if path.incoming:
                await self._until(self._begun)
                return
            for number in range(self._count):
                if not number or not self._has_run(number + 1):  # behind the first one others have had a turn
                    await self._until(number + 1)
                self._take(number)
            await self._until_settled()
        except BaseException as error:
            await self._give_up(error)
            raise
        finally:
            if self._looks:
                self._looks = False
                path.settler.end_looking()

    async def _give_up(self, error: BaseException) -> None:
        """Leave because of an error, which the caller gets."""
        self._leave()
        if self._path.incoming:
            tear(self._array._block, error, begun=self._begun, pieces=self._count)

    def _send_all(self) -> None:
        """Send all commands: to the device, each after its bytes were copied to its slot."""
        host, array, incoming = self._host, self._array, self._path.incoming
        address, whole = array._storage.block.address + array._offset, host.nbytes
        memory = bytes_of(host)
        for slot, (begin, size) in zip(self._slots, pieces_of(whole, SHORT_PIECE), strict=True):
            if incoming:
                slot.load(memory[begin : begin + size])
            self._send((address + begin, slot.place, size))

    def _take(self, number: int) -> None:
        """Copy the bytes of a command from its slot, and release that."""
        begin = number * SHORT_PIECE
        self._slots[0].store(bytes_of(self._host)[begin : begin + SHORT_PIECE])
        self._slots.pop(0).release()

    def _send(self, words: tuple[int, ...], form: Form | None = None) -> None:
        path, array = self._path, self._array
        self._begun = begun = self._begun + 1
        shares = begun != self._count and path.incoming and begun % SIGN_EVERY != 0
        self._ticket = path.send(array._storage.block, words, self, (array, self._host), shares, form)
        if not self._looks:
            path.settler.wake()

    # --- waiting --------------------------------------------------------------------------------------------------

    async def _until(self, count: int) -> None:
        """Wait for the end of so many commands, and raise the error of one that failed."""
        path = self._path
        settler = path.settler
        while self._ended < count and self._error is None:
            if not self._looks:
                await self._sleep()
                continue
            await settler.look(path.counter, self._ticket + count - self._begun)
            more = count < self._begun and not settler.over and path.words[path.counter] < self._ticket
            if more and settler.settle_finished():
                continue
            self._looks = False  # there is nothing more to wait for, or it takes long
            settler.end_looking(self, path.way.lane, self._begun - self._ended)
        if self._looks and self._ended == self._begun:  # all were settled together, by this task or by another one
            self._looks = False
            settler.end_looking()
        if self._error is not None:
            raise self._error

    def _has_run(self, count: int) -> bool:
        """Return whether so many commands have run without an error, so that the task may copy from their slots.

        A task that polls waits for that for a moment.
        """
        path, until = self._path, 0.0
        if path.settler.over:  # and the page may be closed
            return False
        words, ticket = path.words, self._ticket + count - self._begun
        while words[path.counter] < ticket:
            now = time.perf_counter()
            until = until or now + NEXT_PIECE_SECONDS
            if not self._looks or now > until:
                return False
        return self._is_sound()

    def _is_sound(self) -> bool:
        """Return whether no command of the lane has failed, and the worker is there; may be called in any thread.

        When a worker is gone its counters are frozen, and then raised for those who wait for them: no slot has its
        bytes because of that.
        """
        path = self._path
        return path.words[path.failures] == self._failures and path.generation.page.frozen is None

    async def _until_settled(self) -> None:
        """Wait until the accounts know of the end of all commands, and raise the error of one that failed."""
        if self._ended < self._begun and self._has_run(self._begun):
            if self._looks:
                self._looks = False
                self._path.settler.end_looking(self, self._path.way.lane, self._begun - self._ended)
            else:
                self._path.settler.settle_finished()
        await self._until(self._begun)

    def _leave(self) -> None:
        """Give up what the task would have done: slots are free as soon as the GPU has left them."""
        self._left = True
        slots = self._slots
        if self._begun < self._count:  # then the end of none is known
            while len(slots) > self._begun:
                slots.pop().release()
        self._release_ended()

    # --- the end of commands --------------------------------------------------------------------------------------

    def launches_finished(self, count: int) -> None:
        """Note the end of commands, and wake the task."""
        self._ended += count
        failed, mailbox, left = self._failed, self._path.mailbox, self._left
        if failed:
            self._failed = 0
            mailbox.count_finished(failed, "abandoned" if left else "failed")
        mailbox.count_finished(count - failed, "abandoned" if left else "ok")
        if left or self._path.incoming:
            self._release_ended()
        self._wake()

    def _release_ended(self) -> None:
        slots, unfinished = self._slots, self._begun - self._ended
        while len(slots) > unfinished:
            slots.pop(0).release()

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error of a command that failed alone; `launches_finished` follows."""
        self._failed += 1
        if self._error is None:
            self._error = error

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error, and wake the task: the generation was lost before the commands were seen to end."""
        self._ended += count
        self._error = error
        self._path.mailbox.count_finished(count, "abandoned" if self._left else "lost")
        while self._slots:
            self._slots.pop(0).release()
        self._wake()


class ShortBoxCopy(ShortCopy):
    """A copy whose bytes do not follow each other on one of the sides: a box of rows for each piece."""

    __slots__ = ("_plan",)

    def __init__(self, path: CopyPath, plan: _Plan, slots: list[Slot]) -> None:
        super().__init__(path, plan.array, plan.host, slots)
        self._plan = plan

    def _send_all(self) -> None:
        for piece, slot in zip(self._plan.pieces, self._slots, strict=True):
            if self._path.incoming:
                self._plan.load(piece, slot.bytes)
            self._send(*self._path.command_of(self._plan, piece, slot))

    def _take(self, number: int) -> None:
        self._plan.store(self._plan.pieces[number], self._slots[0].bytes)
        self._slots.pop(0).release()


class OneSlotCopy(ShortCopy):
    """A copy of packed memory whose pieces are parts of one slot."""

    __slots__ = ("_pieces",)

    def __init__(
        self, path: CopyPath, array: DeviceArray, host: npt.NDArray[Any], slot: Slot, pieces: Sequence[tuple[int, int]]
    ) -> None:
        super().__init__(path, array, host, [slot])
        self._pieces = pieces
        """The begin and the size of each."""
        self._count = len(pieces)

    def _send_all(self) -> None:
        slot, memory, incoming = self._slots[0], bytes_of(self._host), self._path.incoming
        for number, (begin, size) in enumerate(self._pieces):
            if incoming:
                slot.load(memory[begin : begin + size], begin)
            self._send(*self._command(number, slot))

    def _command(self, number: int, slot: Slot) -> tuple[tuple[int, ...], Form | None]:
        """Return the words and the form of a command; see `Send`."""
        begin, size = self._pieces[number]
        array = self._array
        return (array._storage.block.address + array._offset + begin, slot.place + begin, size), None

    def _take(self, number: int) -> None:
        (begin, size), slots = self._pieces[number], self._slots
        slots[0].store(bytes_of(self._host)[begin : begin + size], begin)
        if number + 1 == self._count:
            slots.pop().release()


class RowsCopy(OneSlotCopy):
    """Such a copy with an array of which each piece is some rows."""

    __slots__ = ("_boxes",)

    def __init__(
        self, path: CopyPath, array: DeviceArray, host: npt.NDArray[Any], slot: Slot, boxes: Sequence[Box]
    ) -> None:
        super().__init__(path, array, host, slot, [(box.other_offset, box.size) for box in boxes])
        self._boxes = boxes

    def _command(self, number: int, slot: Slot) -> tuple[tuple[int, ...], Form | None]:
        box, array, path = self._boxes[number], self._array, self._path
        here, there = array._storage.block.address + array._offset + box.offset, slot.offset + box.other_offset
        ends = (here, there) if path.incoming else (there, here)
        return (slot.area, *ends), path.form_of(box)


@functools.lru_cache(maxsize=256)
def parts_of_rows(rows: Box, first: int, most: int) -> Sequence[Box]:
    """Return rows as boxes of `first` bytes and then `most` bytes at most each, but of a row at least."""
    parts: list[Box] = []
    done = 0
    while done < rows.height:
        height = min(max(1, (most if parts else first) // rows.width), rows.height - done)
        offset, other = rows.offset + done * rows.pitch, rows.other_offset + done * rows.other_pitch
        parts.append(attrs.evolve(rows, height=height, offset=offset, other_offset=other))
        done += height
    return tuple(parts)


def pieces_of(size: int, piece: int) -> list[tuple[int, int]]:
    """Return the begin and the size of each piece."""
    return [(begin, min(piece, size - begin)) for begin in range(0, size, piece)]


def bytes_of(host: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of packed memory."""
    return host.ravel().view(BYTES)
