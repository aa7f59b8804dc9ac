"""Copies between arrays and numpy, and between arrays of one device: verbs of the memory actor.

Only memcpy touches ordinary host memory, never DMA, so its owner may be cancelled at any moment. A copy goes through
slots of the staging area, several at a time. Helpers copy in one half of the slots while the GPU copies in the other.

A copy that is larger than a slot, and one run of bytes in the device's memory, is made of *streams*. A stream is one
command, whose pieces pass through a few slots in turn. Helpers and the GPU hand a slot to each other by two words of
shared memory, without the event loop; see `_Stream`. The caller's own task drives any other copy: a command and a
memcpy for each piece. It is woken whenever one of them is done with a slot.

Pinned memory needs none of this: there the GPU does everything.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import trio

from .._arrays import layout as _layout
from .._arrays.arrays import check_usable
from .._arrays.layout import Box, Piece
from .._generation.requests import CommandRequest
from .._generation.timeline import Command
from .._values.errors import DeviceError, InvalidArgument
from .._values.events import CopyProgress
from .._values.shortage import host_limits
from .._values.util import known
from .._wire.protocol import CELL, LANE_COMPUTE, LANE_COPY_IN, LANE_COPY_OUT, Role, Verb
from .._wire.records.memory import (
    BOX,
    COPY,
    COPY_IN,
    COPY_IN_BOX,
    COPY_IN_MANY,
    COPY_IN_STREAM,
    COPY_MANY,
    COPY_OUT,
    COPY_OUT_BOX,
    COPY_OUT_MANY,
    COPY_OUT_STREAM,
    SLOT,
)
from .._wire.ring import ORDERED_STORES
from .memory import ask_all, overlap, tear
from .pinned import PinnedArea
from .staging import LARGE_SLOT, Slot
from .transfers import Transfers, transfers_of

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .._generation.core import DeviceCore
    from .._generation.generation import Generation
    from .batch_areas import BatchSlots
    from .crew import Crew

THREAD_BYTES = 1 << 20
"""A helper does a memcpy of at least this many bytes, so that it does not block the event loop."""

SCATTERED = 8
"""Copying elements that are not packed takes this many times as long as copying packed ones."""

STREAM_PIECES = 64
"""The most pieces of one stream. Other copies run between two streams."""

STREAM_SLOTS = 16
"""The most slots of a stream: one for each helper, and as many for the GPU. With 11 of them an H200 took 1.5 times as
long."""

SPIN_SECONDS = 200e-6
"""Seconds that a helper polls for its slot before it sleeps between two polls."""
FIRST_NAP, LONGEST_NAP = 50e-6, 1e-3
"""Seconds that it sleeps, at first and after a while without work."""

PINNED_PIECE = 32 << 20
"""A copy of pinned memory is one command up to this many bytes. The link takes 0.6 ms for them. So a task that waits
for the last command has seen one end just before, and still polls; see `Settler.run`."""

MANY = 32
"""The most boxes that one command copies. The driver queues each of them, and accepts about a thousand."""

THROUGH_HOST = 256
"""A copy between two arrays that would take more boxes than this is faster through the host."""

PROGRESS_AFTER = 1.0
PROGRESS_EVERY = 0.5
"""Seconds of real time between two reports of progress."""


class _Way(NamedTuple):
    """One of the two directions between the device and the host."""

    name: Literal["to device", "to host"]
    operation: str
    lane: int
    run: Verb
    box: Verb
    many: Verb
    stream: Verb


_IN = _Way("to device", "memory.copy_in", LANE_COPY_IN, COPY_IN, COPY_IN_BOX, COPY_IN_MANY, COPY_IN_STREAM)
_OUT = _Way("to host", "memory.copy_out", LANE_COPY_OUT, COPY_OUT, COPY_OUT_BOX, COPY_OUT_MANY, COPY_OUT_STREAM)

_yield = ctypes.CDLL(None).sched_yield
"""A function that lets other threads run. Through ctypes, so that it also releases the interpreter's lock."""

_RAW = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)} | {16: np.dtype("c16")}
"""The types that elements are moved as, by their size. For these types of numpy itself, a copy releases the lock."""


# --- how a copy is cut ------------------------------------------------------------------------------------------------


class _Plan:
    """One copy between the device and the host: its pieces, and the layout of their bytes on the host."""

    __slots__ = ("_base", "_elements", "_heals", "array", "host", "pieces", "pinned", "way")

    def __init__(self, array: DeviceArray, host: npt.NDArray[Any], way: _Way) -> None:
        self.array: DeviceArray = array
        self.host: npt.NDArray[Any] = host
        self.way: _Way = way
        self._heals = array._covers_block
        self._base = array.address
        itemsize = array.itemsize
        boxes: Iterable[Box]
        if array.contiguous and host.size:
            packed, boxes = host, (_layout.run(host.nbytes),)
        else:
            packing = _layout.packing(array.shape, array.strides)
            packed = packing.apply(host)
            self._base += packing.offset
            strides = _layout.contiguous_strides(packing.shape, itemsize)
            boxes = _layout.boxes(packing.shape, itemsize, packing.strides, strides)
        self.pinned: tuple[PinnedArea, int] | None = transfers_of(array).pinned.find(packed)
        elements = packed.view(_RAW[itemsize])
        self._elements = elements.reshape(-1) if elements.flags.c_contiguous else elements
        limit = (LARGE_SLOT if self.pinned is None else PINNED_PIECE) // itemsize * itemsize or itemsize
        parts = (part for box in boxes for part in _layout.cut(box, limit))
        self.pieces: list[Piece] = list(_layout.gather(parts, limit, MANY))

    def request(self, piece: Piece, slot: Slot | None, told: Callable[[], None] | None = None) -> CopyRequest:
        """Return the command that copies a piece, through a slot, or without one if the host's memory is pinned."""
        return CopyRequest(self, piece, self.next_role(), slot, told)

    def next_role(self) -> Role:
        """Return the next command's access to the array: the first that writes replaces all of its contents."""
        if self.way is _OUT:
            return Role.READ
        role, self._heals = Role.OVERWRITE if self._heals else Role.WRITE, False
        return role

    def burden(self, piece: Piece) -> int:
        """Return the host's time for a piece, as the size in bytes of a plain copy that takes as long."""
        if self.pinned is not None:
            return 0
        return piece.size if self._elements.ndim == 1 and self._elements.flags.c_contiguous else SCATTERED * piece.size

    @property
    def is_one_command(self) -> bool:
        """True if the caller's task copies it itself: there is one piece, with little to copy on the host."""
        return len(self.pieces) == 1 and self.burden(self.pieces[0]) < THREAD_BYTES

    @property
    def streams(self) -> bool:
        """True if its pieces are contiguous on the device, and go through slots."""
        return (
            ORDERED_STORES
            and self.pinned is None
            and len(self.pieces) > 1
            and all(
                piece.size == piece.boxes[0].width and piece.start == piece.boxes[0].offset for piece in self.pieces
            )
        )

    def record_stream(self, pieces: list[Piece], slots: list[Slot], first: int) -> bytes:
        """Return the record that copies pieces as a stream. They are of equal size, but for the last."""
        size = sum(piece.size for piece in pieces)
        head = self.way.stream.struct.pack(self._base + pieces[0].start, size, pieces[0].size, first)
        return head + b"".join(SLOT.pack(slot.offset, slot.gate) for slot in slots)

    def record(self, piece: Piece, slot: Slot | None) -> tuple[Verb, bytes]:
        """Return the record of the command that copies a piece."""
        if slot is not None:
            area, offset = slot.area, slot.offset
            if piece.size == piece.boxes[0].width:
                fields = (self._base + piece.boxes[0].offset, slot.place, piece.size)
                return self.way.run, self.way.run.struct.pack(*fields)
        else:
            found, at = known(self.pinned, "a copy without a slot is one of pinned memory")
            area, offset = found.number, at + piece.start
        verb = self.way.box if len(piece.boxes) == 1 else self.way.many
        entries = (self._entry(box, offset - piece.start) for box in piece.boxes)
        return verb, verb.struct.pack(area) + b"".join(entries)

    def _entry(self, box: Box, host: int) -> bytes:
        device_side, host_side = box.side(self._base), box.other_side(host)
        if self.way is _IN:
            return _entry(device_side, host_side, box)
        return _entry(host_side, device_side, box)

    def load(self, piece: Piece, target: npt.NDArray[np.uint8]) -> None:
        """Copy a piece from the host's array to packed memory."""
        for part, packed in self._parts(piece, target):
            np.copyto(packed, part)

    def store(self, piece: Piece, source: npt.NDArray[np.uint8]) -> None:
        """Copy a piece from packed memory to the host's array."""
        for part, packed in self._parts(piece, source):
            np.copyto(part, packed)

    def _parts(
        self, piece: Piece, memory: npt.NDArray[np.uint8]
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Yield the parts of the host's array that make up a piece, each with its part of the packed memory."""
        elements = self._elements
        flat = memory[: piece.size].view(elements.dtype)
        first, at = piece.start // elements.itemsize, 0
        for index in _layout.spans(elements.shape, first, first + flat.size):
            part = elements[index]
            yield part, flat[at : at + part.size].reshape(part.shape)
            at += part.size


def _entry(destination: tuple[int, int, int], source: tuple[int, int, int], box: Box) -> bytes:
    return BOX.pack(*destination, *source, box.width, box.height, box.depth)


class CopyRequest(CommandRequest):
    """One command of a copy between the device and the host. It holds its slot for as long as the GPU needs it."""

    __slots__ = ("_plan", "_slot", "_told", "piece")

    def __init__(
        self, plan: _Plan, piece: Piece, role: Role, slot: Slot | None, told: Callable[[], None] | None
    ) -> None:
        verb, payload = plan.record(piece, slot)
        way, array = plan.way, plan.array
        super().__init__(
            verb, payload, ((array._block, role),), keep=(array, plan.host), lane=way.lane, operation=way.operation
        )
        self.piece: Piece = piece
        self._plan = plan
        self._slot = slot
        self._told = told

    def start(self, generation: Generation) -> None:
        """Publish the record, after the command that makes pinned memory known to the worker."""
        if self._plan.pinned is not None:
            self._plan.pinned[0].register(generation, self.lane)
        elif self._slot is not None and self._slot.area:
            self._slot.introduce(generation, self.lane)
        super().start(generation)

    def ended(self, *, delivered: bool) -> None:
        if not (delivered and self._plan.way is _OUT):
            self.release()
        if self._told is not None:
            self._told()

    @property
    def burden(self) -> int:
        return self._plan.burden(self.piece) if self._slot is not None and self._plan.way is _OUT else 0

    def take_slot(self) -> Slot | None:
        """Return the slot, which the caller must release."""
        slot, self._slot = self._slot, None  # otherwise a request in a traceback would keep the staging area mapped
        return slot

    def take(self) -> None:
        """After a copy to the host, copy the bytes to their target at once, and release the slot."""
        if self._slot is not None:
            self._plan.store(self.piece, self._slot.bytes)
            self.release()

    def release(self) -> None:
        """Give the slot back. Calling it twice is fine."""
        slot = self.take_slot()
        if slot is not None:
            slot.release()

    def drop(self) -> None:
        """Drop the outcome: the caller leaves before it has taken it."""
        if self.open:
            self.give_up()
        else:
            self.release()


def _plan_requests(plan: _Plan, slots: BatchSlots) -> Iterator[CopyRequest]:
    if len(plan.pieces) > 1 and not plan.pinned:
        slots.check(plan.host.nbytes)
    for piece in plan.pieces:
        yield plan.request(piece, None if plan.pinned else slots.acquire(piece.size))


def plan_copy_in(array: DeviceArray, host: npt.NDArray[Any], slots: BatchSlots) -> list[CopyRequest]:
    """Return the requests that overwrite a checked array; `host` is read here.

    The caller begins them itself. The GPU reads pinned memory, when they run. Raises as `BatchSlots.check` and
    `BatchSlots.acquire` do.
    """
    plan = _Plan(array, host, _IN)
    requests: list[CopyRequest] = []
    try:
        for request in _plan_requests(plan, slots):
            requests.append(request)
            if request._slot is not None:
                plan.load(request.piece, request._slot.bytes)
    except BaseException:
        _drop_all(requests)
        raise
    return requests


def plan_copy_out(array: DeviceArray, host: npt.NDArray[Any], slots: BatchSlots) -> list[CopyRequest]:
    """Return the requests that read a checked array. The caller begins them, and calls `take` when each is settled.

    Raises as `BatchSlots.check` and `BatchSlots.acquire` do.
    """
    requests: list[CopyRequest] = []
    try:
        for request in _plan_requests(_Plan(array, host, _OUT), slots):
            requests.append(request)  # noqa: PERF402  what was made must be known when the next one fails
    except BaseException:
        _drop_all(requests)
        raise
    return requests


def _drop_all(requests: list[CopyRequest]) -> None:
    for request in requests:
        request.drop()


class _Taking:
    """Copies the bytes of one settled command to the host's array, in a helper's thread."""

    __slots__ = ("_plan", "_request", "_slot", "_told", "done", "failed")

    def __init__(self, request: CopyRequest, slot: Slot, told: Callable[[], None]) -> None:
        self.done: bool = False
        self.failed: bool = False
        self._request = request
        self._plan = request._plan
        self._slot = slot
        self._told = told

    def run(self) -> None:
        """Copy, in a helper's thread. An error here is left to `take`, which fails in the same way."""
        try:
            self._plan.store(self._request.piece, self._slot.bytes)
        except Exception:
            self.failed = True

    def ended(self) -> None:
        """Note the end: there is nothing left to take."""
        self.done = True
        if not self.failed:
            self._request.release()
        self._told()


async def take_by_helpers(requests: Iterable[CommandRequest]) -> None:
    """Let helpers do the work of `take` for the first of these requests, and for those of the same copy behind it.

    Other copies are not included: two copies to one array must arrive in order. A cancelled caller waits for the
    working helpers. Work that they have not begun, or failed to do, is left to `take`.
    """
    those = _of_one_copy(requests)
    if not those:
        return
    crew, bell = transfers_of(those[0]._plan.array).crew, trio.Event()
    takings: list[_Taking] = []

    def ring() -> None:
        if all(each.done for each in takings):
            bell.set()

    for request in those:
        taking = _Taking(request, known(request._slot, "it has bytes"), ring)
        try:
            crew.submit(taking)
        except RuntimeError:  # the system has no thread
            break
        takings.append(taking)
    ring()
    try:
        await bell.wait()
    except BaseException:
        takings = [each for each in takings if not (each.done or crew.withdraw(each))]
        ring()
        with trio.CancelScope(shield=True):  # for a memcpy of one piece
            await bell.wait()
        raise


def _of_one_copy(requests: Iterable[CommandRequest]) -> list[CopyRequest]:
    """Return the first of these requests, and those behind it that are of the same copy and have bytes to take."""
    found: list[CopyRequest] = []
    for request in requests:
        if not (isinstance(request, CopyRequest) and request.burden and request.answered and request.error is None):
            break
        if found and request._plan is not found[0]._plan:
            break
        found.append(request)
    return found


# --- a copy under way -------------------------------------------------------------------------------------------------


class _Progress:
    """Publishes the progress of a copy that takes long."""

    __slots__ = ("_done", "_next", "_plan")

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._done = 0
        self._next = time.monotonic() + PROGRESS_AFTER

    def add(self, count: int) -> None:
        """Note that `count` more bytes have arrived."""
        self._done += count
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PROGRESS_EVERY
            array, way = self._plan.array, self._plan.way
            array._storage.device.events.publish(
                CopyProgress(bytes_done=self._done, bytes_total=array.nbytes, direction=way.name)
            )


class _Flow:
    """A copy under way, driven by its caller's task. This one is of pinned memory: it has only commands."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._device: DeviceCore = plan.array._storage.device
        self._transfers = self._device.part(Transfers)
        self._requests: list[CopyRequest] = []
        self._ended = 0
        self._progress = _Progress(plan)
        self._bell = trio.Event()

    def ring(self) -> None:
        """Wake the caller's task: a command or a memcpy has ended."""
        self._bell.set()

    @property
    def busy(self) -> bool:
        """True if anything is under way."""
        return bool(self._requests)

    async def run(self) -> None:
        """Copy everything."""
        for piece in self._plan.pieces:
            await self._begin(piece)
        while self.busy:
            await self._rung()
            await self._advance()

    def abandon(self) -> int:
        """Abandon the copy: commands that have not begun never will, the others go on and their outcome is dropped.

        Returns the number of commands that may have an effect.
        """
        _drop_all(self._requests)
        begun = self._ended + sum(each.sent for each in self._requests)
        self._requests.clear()  # they refer to this flow, and unused arrays must be collected
        return begun

    async def _begin(self, piece: Piece) -> None:
        await self._post(piece, None)

    async def _post(self, piece: Piece, slot: Slot | None) -> None:
        request = self._plan.request(piece, slot, self.ring)  # from here on the slot is the request's
        try:
            await self._device.memory_actor.mailbox.post(request)
        except BaseException:
            request.drop()
            raise
        self._requests.append(request)

    async def _slot(self, size: int) -> Slot:
        """Return a slot, as soon as there is one. This waits only while this copy holds none itself."""
        staging = self._transfers.staging
        while not staging.has_free(size):
            await self._advance()
            if not self.busy:
                return await staging.acquire(size)
            if not staging.has_free(size):
                await self._rung()
        return staging.acquire_nowait(size)

    def burden(self, piece: Piece) -> int:
        """Return the host's time for a piece, as the size in bytes of a plain copy that takes as long."""
        return self._plan.burden(piece)

    async def still(self) -> None:
        """Wait until no helper touches the caller's memory any more: for one piece of a memcpy at most."""

    async def _rung(self) -> None:
        await self._bell.wait()
        self._bell = trio.Event()

    async def _advance(self) -> None:
        """Handle everything that has ended."""
        for request in [each for each in self._requests if not each.open]:
            self._requests.remove(request)
            self._ended += 1
            await request.wait()
            self._arrived(request)

    def _arrived(self, request: CopyRequest) -> None:
        self._progress.add(request.piece.size)


class _SlotFlow(_Flow):
    """A copy through slots: for each a memcpy, and a command."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__(plan)
        self._memcpys: list[_Memcpy] = []

    @property
    def busy(self) -> bool:
        return bool(self._requests or self._memcpys)

    def abandon(self) -> int:
        for memcpy in self._memcpys:
            memcpy.give_up()
        return super().abandon()

    def _copy(self, piece: Piece, slot: Slot, copy: Callable[[Piece, npt.NDArray[np.uint8]], None]) -> None:
        try:
            memcpy = _Memcpy(self, piece, slot, copy)
            memcpy.begin(self._transfers.crew)
        except BaseException:
            slot.release()
            raise
        self._memcpys.append(memcpy)

    def _copied(self) -> Iterator[_Memcpy]:
        """Yield the memcpys that have ended; raises the error of a failed one."""
        for memcpy in [each for each in self._memcpys if each.done]:
            self._memcpys.remove(memcpy)
            if memcpy.error is not None:
                memcpy.slot.release()
                raise memcpy.error
            yield memcpy


class _Incoming(_SlotFlow):
    """A copy to the device: memcpy, then command."""

    def abandon(self) -> int:
        begun = super().abandon()
        self._memcpys.clear()
        return begun

    async def _begin(self, piece: Piece) -> None:
        self._copy(piece, await self._slot(piece.size), self._plan.load)
        await self._advance()

    async def _advance(self) -> None:
        for memcpy in self._copied():
            await self._post(memcpy.piece, memcpy.slot)
        await super()._advance()


class _Outgoing(_SlotFlow):
    """A copy to the host: command, then memcpy."""

    async def _begin(self, piece: Piece) -> None:
        await self._post(piece, await self._slot(piece.size))
        await self._advance()

    async def _advance(self) -> None:
        await super()._advance()
        for memcpy in self._copied():
            memcpy.slot.release()
            self._progress.add(memcpy.piece.size)

    def _arrived(self, request: CopyRequest) -> None:
        slot = known(request.take_slot(), "what has arrived is in a slot")
        self._copy(request.piece, slot, self._plan.store)

    async def still(self) -> None:
        with trio.CancelScope(shield=True):
            while any(not memcpy.done for memcpy in self._memcpys):
                await self._rung()
        self._memcpys.clear()


class _Memcpy:
    """The memcpy of one piece. The task that handles its end releases the slot; without one, the memcpy itself does."""

    __slots__ = ("_bytes", "_copy", "_crew", "_flow", "_given_up", "done", "error", "piece", "slot")

    def __init__(
        self, flow: _Flow, piece: Piece, slot: Slot, copy: Callable[[Piece, npt.NDArray[np.uint8]], None]
    ) -> None:
        self.piece = piece
        self.slot = slot
        self.done: bool = False
        self.error: BaseException | None = None
        self._flow = flow
        self._copy = copy
        self._given_up = False
        self._bytes: npt.NDArray[np.uint8] | None = slot.bytes

    def begin(self, crew: Crew) -> None:
        """Let a helper do it, or do it at once if it is small."""
        self._crew = crew
        if self._flow.burden(self.piece) >= THREAD_BYTES:
            with contextlib.suppress(RuntimeError):  # the system has no thread left: do it here
                crew.submit(self)
                return
        self.run()
        self.done = True

    def run(self) -> None:
        """Copy, in a helper's thread."""
        target, self._bytes = self._bytes, None  # a view keeps the staging area mapped
        try:
            self._copy(self.piece, known(target, "a memcpy runs once"))
        except BaseException as error:
            self.error = error

    def ended(self) -> None:
        """Note the end, and wake the caller's task."""
        self.done = True
        if self._given_up:
            self.slot.release()
        self._flow.ring()

    def give_up(self) -> None:
        """Abandon it: no task will handle its end."""
        if self.done or self._crew.withdraw(self):
            self.done = True
            self.slot.release()
        else:
            self._given_up = True


# --- streams ----------------------------------------------------------------------------------------------------------


class _Stream:
    """Pieces that one command and several helpers copy through a few slots in turn.

    The worker enqueues everything at once; see `COPY_IN_STREAM`. Pieces are numbered in sequence, and
    no number is ever used again. Each slot has two words, which only grow. A helper writes the number of the piece that
    it has finished into the first; the GPU does the same in the second. A helper that loads a slot waits until the GPU
    has finished the piece that was there before; the GPU waits until the helper has loaded. In the other direction the
    roles are exchanged. So helpers share only the list of the pieces that none of them has begun.

    Neither side must wait for ever. When the command is refused, fails or is lost, or its caller leaves, helpers stop
    at the next piece. The last helper then opens all remaining slots to the GPU. It does so in its own thread, because
    the event loop may be blocked in a library that waits for this command. Slots are free when both are done.
    """

    def __init__(self, flow: _StreamFlow, plan: _Plan, pieces: list[Piece], slots: list[Slot]) -> None:
        self.pieces = pieces
        self.slots = slots
        transfers = transfers_of(plan.array)
        self.crew: Crew = transfers.crew
        self.stopped: bool = False
        """True if no helper may begin another piece. It may be set in any thread."""
        self.error: BaseException | None = None
        """The error of a helper's memcpy."""
        self.moved: collections.deque[int] = collections.deque()
        """The pieces that helpers have finished."""
        self.helpers: int = 0
        """The number of helpers that are not known to have ended; used in trio's thread."""
        self._working: collections.deque[None] = collections.deque()
        """An item for each helper that has not ended."""
        self._flow = flow
        self._copy = plan.load if plan.way is _IN else plan.store
        self._behind = len(slots) if plan.way is _IN else 0
        self._views = [slot.bytes for slot in slots]
        self._words = transfers.staging.words
        self.first: int = transfers.staging.number(len(pieces))
        """The number of the first piece."""
        self._left = collections.deque(range(len(pieces)))
        for slot in slots:
            slot.share()  # one hold for the helpers, one for the command

    def begin(self) -> None:
        """Start the helpers. Raises `RuntimeError` if the system has no thread left."""
        for _ in range(min(self.crew.size, len(self.pieces))):
            self.helpers += 1
            self._working.append(None)
            try:
                self.crew.submit(_Share(self))
            except RuntimeError:
                self.leave()
                self.helper_left()
                if not self.helpers:
                    raise
                return

    def take(self) -> int | None:
        """Return a piece that no helper has begun; None if there is none, or the stream was stopped."""
        try:
            return None if self.stopped else self._left.popleft()
        except IndexError:
            return None

    def may_touch(self, number: int) -> bool:
        """Return whether the GPU has left the slot of a piece to the helpers."""
        word = (self.slots[number % len(self.slots)].gate + CELL) // 8
        return number < self._behind or self._words[word] >= self.first + number - self._behind

    def move(self, number: int) -> None:
        """Copy a piece, and leave its slot to the GPU, in a helper's thread."""
        at = number % len(self.slots)
        self._copy(self.pieces[number], self._views[at])
        self._words[self.slots[at].gate // 8] = self.first + number
        self.moved.append(number)

    def leave(self) -> None:
        """End a helper, in its own thread. The last one opens all slots: no other thread writes the words any more."""
        self._working.pop()
        if not self._working:
            last = self.first + len(self.pieces) - 1
            for slot in self.slots:
                self._words[slot.gate // 8] = last

    def helper_left(self) -> None:
        """Note that a helper has ended, in trio's thread."""
        self.helpers -= 1
        if self.helpers:
            return
        self._views.clear()  # they keep the staging area mapped
        for slot in self.slots:
            slot.release()
        self._flow.ring()

    def command_answered(self, *, delivered: bool) -> None:
        """Handle the command's outcome. If it failed or was abandoned, helpers need not go on."""
        self.stopped = self.stopped or not delivered
        self._flow.ring()

    def command_left(self) -> None:
        """Note that the GPU has ended its part, or will never begin it."""
        for slot in self.slots:
            slot.release()


class _StreamRequest(CommandRequest):
    """The command of a stream. It has no time limit: a part of its work is the host's."""

    __slots__ = ("stream",)

    def __init__(self, plan: _Plan, stream: _Stream) -> None:
        way, array = plan.way, plan.array
        super().__init__(
            way.stream,
            plan.record_stream(stream.pieces, stream.slots, stream.first),
            ((array._block, plan.next_role()),),
            keep=(array, plan.host),
            lane=way.lane,
            operation=way.operation,
            hang_timeout=math.inf,
        )
        self.stream: _Stream = stream

    @property
    def begun(self) -> int:
        """The number of pieces whose bytes may have changed, or will; all of them if helpers have finished all."""
        return max(1, len(self.stream.moved)) if self.sent else 0

    @property
    def over(self) -> bool:
        """True if there is an outcome, and no helper works any more."""
        return not self.stream.helpers and (not self.open or self.stream.error is not None)

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        super().command_finished(command, error, value)
        self.stream.command_left()

    def command_lost(self, command: Command, error: DeviceError) -> None:
        super().command_lost(command, error)
        self.stream.command_left()

    def ended(self, *, delivered: bool) -> None:
        self.stream.command_answered(delivered=delivered)
        if not self.sent:
            self.stream.command_left()


class _Share:
    """A helper's part in a stream: one piece after another, until none is left."""

    __slots__ = ("_nap", "_number", "_stream")

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._number: int | None = None
        self._nap = 0.0

    def run(self) -> bool:
        """Copy pieces. Returns true to let another job run, if there is nothing to do for the moment."""
        stream = self._stream
        try:
            if self._number is None:
                self._number = stream.take()
            while self._number is not None and self._wait(self._number):
                stream.move(self._number)
                self._number = stream.take()
        except BaseException as error:
            stream.error = error
            stream.stopped = True
        if self._number is not None and not stream.stopped:
            return True
        stream.leave()
        return False

    def _wait(self, number: int) -> bool:
        """Wait for the slot of a piece. Returns false if another job should run meanwhile, or the slot is not needed.

        Other jobs must run: the slot may wait for their work.
        """
        stream = self._stream
        until = 0.0 if self._nap else time.perf_counter() + SPIN_SECONDS
        while not (stream.stopped or stream.may_touch(number)):
            if time.perf_counter() < until:
                _yield()
                continue
            self._nap = min(2 * self._nap or FIRST_NAP, LONGEST_NAP)
            time.sleep(self._nap)
            if stream.crew.crowded:
                return False
        self._nap = 0.0
        return not stream.stopped

    def ended(self) -> None:
        """Note that it will not run again."""
        self._stream.helper_left()


class _StreamFlow(_Flow):
    """A copy by streams."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__(plan)
        self._streaming: list[_StreamRequest] = []
        self._leaving: list[_Stream] = []

    @property
    def busy(self) -> bool:
        return bool(self._streaming)

    async def run(self) -> None:
        pieces = self._plan.pieces
        for first in range(0, len(pieces), STREAM_PIECES):
            await self._begin_stream(pieces[first : first + STREAM_PIECES])
            await self._advance()
        while self.busy:
            await self._rung()
            await self._advance()

    def abandon(self) -> int:
        begun = self._ended + sum(request.begun for request in self._streaming)
        for request in self._streaming:
            request.stream.stopped = True
            request.drop()
            if self._plan.way is _OUT:
                self._leaving.append(request.stream)
        self._streaming.clear()
        return begun

    async def still(self) -> None:
        with trio.CancelScope(shield=True):
            while any(stream.helpers for stream in self._leaving):
                await self._rung()
        self._leaving.clear()

    async def _begin_stream(self, pieces: list[Piece]) -> None:
        size, staging = pieces[0].size, self._transfers.staging
        slots = [await self._slot(size)]
        while len(slots) < min(len(pieces), STREAM_SLOTS) and staging.has_free(size):
            slots.append(staging.acquire_nowait(size))
        try:
            stream = _Stream(self, self._plan, pieces, slots)
        except BaseException:
            for slot in slots:
                slot.release()
            raise
        request = _StreamRequest(self._plan, stream)
        self._streaming.append(request)
        with host_limits("no helper can copy", device=self._device.index, operation=self._plan.way.operation):
            stream.begin()
        await self._device.memory_actor.mailbox.post(request)

    async def _advance(self) -> None:
        for request in [each for each in self._streaming if each.over]:
            if request.stream.error is not None:
                raise request.stream.error
            self._streaming.remove(request)
            self._ended += request.begun
            await request.wait()
            self._progress.add(sum(piece.size for piece in request.stream.pieces))


# --- the verbs --------------------------------------------------------------------------------------------------------


def _flow(plan: _Plan, through_slots: type[_Flow]) -> _Flow:
    if plan.pinned is not None:
        return _Flow(plan)
    return _StreamFlow(plan) if plan.streams else through_slots(plan)


async def _by_one_command(plan: _Plan) -> None:
    """Make a copy of one command, without helpers: starting them would take longer than the copy."""
    device, (piece,) = plan.array._storage.device, plan.pieces
    slot = None if plan.pinned else await device.part(Transfers).staging.acquire(piece.size)
    request = plan.request(piece, slot)
    try:
        if slot is not None and plan.way is _IN:
            plan.load(piece, slot.bytes)
        await device.memory_actor.mailbox.ask(request)
        request.take()
    except BaseException:
        request.drop()
        raise


@trio.lowlevel.enable_ki_protection
async def copy_in(array: DeviceArray, host: npt.NDArray[Any]) -> None:
    """Overwrite a device array with a host array of the same shape and dtype. See `DeviceArray.copy_from`."""
    await _copy(array, host, _IN, _Incoming)


@trio.lowlevel.enable_ki_protection
async def copy_out(array: DeviceArray, host: npt.NDArray[Any]) -> None:
    """Copy a device array into a host array of the same shape and dtype. See `DeviceArray.copy_to`."""
    await _copy(array, host, _OUT, _Outgoing)


async def _copy(array: DeviceArray, host: npt.NDArray[Any], way: _Way, through_slots: type[_Flow]) -> None:
    check_usable(array._storage.device, array)
    plan = _Plan(array, host, way)
    if not plan.pieces:
        await trio.lowlevel.checkpoint()
        return
    if plan.is_one_command:
        await _by_one_command(plan)
        return
    flow = _flow(plan, through_slots)
    try:
        await flow.run()
    except BaseException as error:
        begun = flow.abandon()
        if way is _IN:
            tear(array._block, error, begun=begun, pieces=len(plan.pieces))
        else:
            await flow.still()
        raise


def plan_copy(
    source: DeviceArray, target: DeviceArray, lane: int = LANE_COMPUTE, *, most: int = THROUGH_HOST
) -> list[CommandRequest] | None:
    """Return the requests that copy between two checked arrays of one device, one shape and one dtype.

    Returns None if they would have more than `most` boxes. Raises `InvalidArgument` for arrays that share memory.
    """
    if source._block is target._block and overlap(source, target):
        raise InvalidArgument("the two arrays share memory: copy through a third one")
    packing = _layout.packing(target.shape, target.strides)
    walk, source_offset = packing.follow(source.shape, source.strides)
    whole = _layout.boxes(packing.shape, target.itemsize, packing.strides, walk)
    boxes = list(itertools.islice(whole, most + 1))
    if len(boxes) > most:
        return None
    to, origin = target.address + packing.offset, source.address + source_offset
    requests = []
    for first in range(0, len(boxes), MANY):
        some = boxes[first : first + MANY]
        payload = b"".join(_entry(box.side(to), box.other_side(origin), box) for box in some)
        operands = (
            (target._block, Role.OVERWRITE if target._covers_block and not first else Role.WRITE),
            (source._block, Role.READ),
        )
        verb = COPY if len(some) == 1 else COPY_MANY
        keep = (source, target)
        requests.append(CommandRequest(verb, payload, operands, keep=keep, lane=lane, operation="memory.copy"))
    return requests


@trio.lowlevel.enable_ki_protection
async def copy_on_device(source: DeviceArray, target: DeviceArray) -> None:
    """Copy between two arrays of one device, of the same shape and dtype. See `DeviceArray.copy_from`."""
    for array in (source, target):
        check_usable(target._storage.device, array)
    requests = plan_copy(source, target)
    if requests is None:
        # One of them is walked backwards, or across its rows: the host reorders that faster than a copy engine.
        host = np.empty(target.shape, target.dtype)
        await copy_out(source, host)
        await copy_in(target, host)
        return
    await ask_all(target, requests)
