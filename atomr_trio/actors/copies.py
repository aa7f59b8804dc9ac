"""Copies between arrays and numpy, and between arrays of one device: verbs of the memory actor.

Ordinary host memory is touched by memcpys of ours, never by DMA, so its owner may be cancelled at any moment: a copy
goes through slots of the staging area, several at a time. Helpers copy in one half of the slots while the GPU copies
in the other; the caller's own task drives both and publishes, and it is rung whenever one of them is done with a slot.
Pinned memory needs none of this: there the GPU does everything, by a single command.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import trio

from .. import _layout
from .._errors import InvalidArgument
from .._events import CopyProgress
from .._layout import Box, Piece
from .._pinned import PinnedArea
from .._requests import CommandRequest
from .._staging import LARGE_SLOT, Slot
from .._util import known
from ..worker.engines.memory import (
    BOX,
    COPY,
    COPY_IN,
    COPY_IN_BOX,
    COPY_IN_MANY,
    COPY_MANY,
    COPY_OUT,
    COPY_OUT_BOX,
    COPY_OUT_MANY,
    STAGING_AREA,
)
from ..worker.protocol import LANE_COMPUTE, LANE_COPY_IN, LANE_COPY_OUT, Role, Verb
from .memory import ask_all, overlap, tear, was_begun

if TYPE_CHECKING:
    from .._arrays import DeviceArray
    from .._device import Device
    from .._generation import Generation

THREAD_BYTES = 1 << 20
"""A memcpy of at least this many bytes is done by a helper, so that it does not hold up the event loop."""

PINNED_PIECE = 256 << 20
"""A copy of pinned memory is one command up to this many bytes; others get their turn between two of them."""

MANY = 32
"""Boxes that one command copies. The driver queues each of them, and takes no more than about a thousand."""

THROUGH_HOST = 256
"""A copy between two arrays that would take more boxes than this is faster through the host."""

PROGRESS_AFTER = 1.0
PROGRESS_EVERY = 0.5
"""In seconds of real time: when a copy is first told to be under way, and how often then."""


class _Way(NamedTuple):
    """One of the two directions between the device and the host."""

    name: Literal["to device", "to host"]
    operation: str
    lane: int
    run: Verb
    box: Verb
    many: Verb


_IN = _Way("to device", "memory.copy_in", LANE_COPY_IN, COPY_IN, COPY_IN_BOX, COPY_IN_MANY)
_OUT = _Way("to host", "memory.copy_out", LANE_COPY_OUT, COPY_OUT, COPY_OUT_BOX, COPY_OUT_MANY)

_RAW = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)} | {16: np.dtype("c16")}
"""What elements are moved as, by their size: types of numpy itself, for which it lets other threads run meanwhile."""


# --- how a copy is cut ------------------------------------------------------------------------------------------------


class _Plan:
    """One copy between the device and the host: its pieces, and how their bytes lie on the host."""

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
        self.pinned: tuple[PinnedArea, int] | None = array.device._pinned.find(packed)
        elements = packed.view(_RAW[itemsize])
        self._elements = elements.reshape(-1) if elements.flags.c_contiguous else elements
        limit = (LARGE_SLOT if self.pinned is None else PINNED_PIECE) // itemsize * itemsize or itemsize
        parts = (part for box in boxes for part in _layout.cut(box, limit))
        self.pieces: list[Piece] = list(_layout.gather(parts, limit, MANY))

    def request(self, piece: Piece, slot: Slot | None, told: Callable[[], None] | None = None) -> CopyRequest:
        """The command that copies a piece, through a slot, or without one if the host's memory is pinned."""
        if self.way is _OUT:
            role = Role.READ
        else:
            role, self._heals = Role.OVERWRITE if self._heals else Role.WRITE, False
        return CopyRequest(self, piece, role, slot, told)

    def record(self, piece: Piece, slot: Slot | None) -> tuple[Verb, bytes]:
        """The record of that command."""
        if slot is not None:
            area, offset = STAGING_AREA, slot.offset
            if piece.size == piece.boxes[0].width:
                return self.way.run, self.way.run.struct.pack(self._base + piece.boxes[0].offset, offset, piece.size)
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
        """The parts of the host's array that make up a piece, each with its stretch of packed memory."""
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
        """Publish the record, after that which makes pinned memory known to the worker."""
        if self._plan.pinned is not None:
            self._plan.pinned[0].register(generation, self._lane)
        super().start(generation)

    def ended(self, *, delivered: bool) -> None:
        if not (delivered and self._plan.way is _OUT):
            self.release()
        if self._told is not None:
            self._told()

    def take_slot(self) -> Slot | None:
        """Part with the slot: whoever calls this gives it back."""
        slot, self._slot = self._slot, None  # or a request in a traceback would keep the staging area mapped
        return slot

    def take(self) -> None:
        """After a copy to the host: bring the bytes where they belong, here and now, and give the slot back."""
        if self._slot is not None:
            self._plan.store(self.piece, self._slot.bytes)
            self.release()

    def release(self) -> None:
        """Give the slot back. Calling it twice is fine."""
        slot = self.take_slot()
        if slot is not None:
            slot.release()

    def drop(self) -> None:
        """The caller is leaving before it has taken the outcome."""
        if self.open:
            self.give_up()
        else:
            self.release()


def _plan_requests(plan: _Plan) -> Iterator[CopyRequest]:
    for piece in plan.pieces:
        slot = None if plan.pinned else plan.array.device._staging.acquire_nowait(piece.size)
        yield plan.request(piece, slot)


def plan_copy_in(array: DeviceArray, host: npt.NDArray[Any]) -> list[CopyRequest]:
    """The requests that overwrite an array, for a caller that begins them itself; `host` has been read already.

    Pinned memory is read by the GPU, when they run. Raises `trio.WouldBlock` if there are not enough slots.
    """
    array.device._check_usable(array)
    plan = _Plan(array, host, _IN)
    requests: list[CopyRequest] = []
    try:
        for request in _plan_requests(plan):
            requests.append(request)
            if request._slot is not None:
                plan.load(request.piece, request._slot.bytes)
    except BaseException:
        _drop_all(requests)
        raise
    return requests


def plan_copy_out(array: DeviceArray, host: npt.NDArray[Any]) -> list[CopyRequest]:
    """The requests that read an array, for a caller that begins them itself and calls `take` when each is settled.

    Raises `trio.WouldBlock` if there are not enough slots.
    """
    array.device._check_usable(array)
    requests: list[CopyRequest] = []
    try:
        for request in _plan_requests(_Plan(array, host, _OUT)):
            requests.append(request)  # noqa: PERF402  what was made must be known when the next one fails
    except BaseException:
        _drop_all(requests)
        raise
    return requests


def _drop_all(requests: list[CopyRequest]) -> None:
    for request in requests:
        request.drop()


# --- a copy under way -------------------------------------------------------------------------------------------------


class _Progress:
    """Tells of a copy that takes long."""

    __slots__ = ("_done", "_next", "_plan")

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._done = 0
        self._next = time.monotonic() + PROGRESS_AFTER

    def add(self, count: int) -> None:
        """So many bytes more have arrived."""
        self._done += count
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PROGRESS_EVERY
            array, way = self._plan.array, self._plan.way
            array.device._events.publish(
                CopyProgress(bytes_done=self._done, bytes_total=array.nbytes, direction=way.name)
            )


class _Flow:
    """A copy under way, driven by its caller's task. This one is of pinned memory: commands, and nothing else."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._device: Device = plan.array.device
        self._requests: list[CopyRequest] = []
        self._ended = 0
        self._progress = _Progress(plan)
        self._bell = trio.Event()

    def ring(self) -> None:
        """Something has ended that the caller's task must look at."""
        self._bell.set()

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._requests)

    async def run(self) -> None:
        """Copy everything."""
        for piece in self._plan.pieces:
            await self._begin(piece)
        while self.busy:
            await self._rung()
            await self._advance()

    def abandon(self) -> int:
        """The caller is leaving: what has not begun never will, what has goes on unheard.

        Returns how many commands may have done something, or will.
        """
        _drop_all(self._requests)
        begun = self._ended + sum(map(was_begun, self._requests))
        self._requests.clear()  # they know this flow, and arrays are to go when nobody uses them
        return begun

    async def _begin(self, piece: Piece) -> None:
        await self._post(piece, None)

    async def _post(self, piece: Piece, slot: Slot | None) -> None:
        request = self._plan.request(piece, slot, self.ring)  # from here on the slot is the request's
        try:
            await self._device._memory_mailbox.post(request)
        except BaseException:
            request.drop()
            raise
        self._requests.append(request)

    async def _rung(self) -> None:
        await self._bell.wait()
        self._bell = trio.Event()

    async def _advance(self) -> None:
        """Take up everything that has ended."""
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

    async def _slot(self, size: int) -> Slot:
        """A slot, as soon as there is one. It is waited for only while this copy holds none itself."""
        staging = self._device._staging
        while not staging.has_free(size):
            await self._advance()
            if not self.busy:
                return await staging.acquire(size)
            if not staging.has_free(size):
                await self._rung()
        return staging.acquire_nowait(size)

    def _copy(self, piece: Piece, slot: Slot, copy: Callable[[Piece, npt.NDArray[np.uint8]], None]) -> None:
        try:
            memcpy = _Memcpy(self, piece, slot, copy)
            memcpy.begin(self._device)
        except BaseException:
            slot.release()
            raise
        self._memcpys.append(memcpy)

    def _copied(self) -> Iterator[_Memcpy]:
        """The memcpys that have ended; raises what one of them raised."""
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
        """Wait until no helper touches the caller's memory any more: a piece of a memcpy at most."""
        with trio.CancelScope(shield=True):
            while any(not memcpy.done for memcpy in self._memcpys):
                await self._rung()
        self._memcpys.clear()


class _Memcpy:
    """The memcpy of one piece. The slot is given back by whoever hears of its end, and by itself if nobody does."""

    __slots__ = ("_bytes", "_copy", "_device", "_flow", "_given_up", "done", "error", "piece", "slot")

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

    def begin(self, device: Device) -> None:
        """Have a helper do it, or do it at once if it is small."""
        self._device = device
        if self.piece.size >= THREAD_BYTES:
            device._crew.submit(self)
        else:
            self.run()
            self.done = True

    def run(self) -> None:
        """Copy; in a helper's thread."""
        target, self._bytes = self._bytes, None  # a view keeps the staging area mapped
        try:
            self._copy(self.piece, known(target, "a memcpy runs once"))
        except BaseException as error:
            self.error = error

    def ended(self) -> None:
        """It is done, and somebody should know."""
        self.done = True
        if self._given_up:
            self.slot.release()
        self._flow.ring()

    def give_up(self) -> None:
        """Nobody will ask for it any more."""
        if self.done or self._device._crew.withdraw(self):
            self.done = True
            self.slot.release()
        else:
            self._given_up = True


# --- the verbs --------------------------------------------------------------------------------------------------------


@trio.lowlevel.enable_ki_protection
async def copy_in(array: DeviceArray, host: npt.NDArray[Any]) -> None:
    """Overwrite a device array with a host array of the same shape and dtype. See `DeviceArray.copy_from`."""
    array.device._check_usable(array)
    plan = _Plan(array, host, _IN)
    if not plan.pieces:
        await trio.lowlevel.checkpoint()
        return
    flow = _Incoming(plan) if plan.pinned is None else _Flow(plan)
    try:
        await flow.run()
    except BaseException as error:
        tear(array._block, error, begun=flow.abandon(), pieces=len(plan.pieces))
        raise


@trio.lowlevel.enable_ki_protection
async def copy_out(array: DeviceArray, host: npt.NDArray[Any]) -> None:
    """Copy a device array into a host array of the same shape and dtype. See `DeviceArray.copy_to`."""
    array.device._check_usable(array)
    plan = _Plan(array, host, _OUT)
    if not plan.pieces:
        await trio.lowlevel.checkpoint()
        return
    flow = _Outgoing(plan) if plan.pinned is None else _Flow(plan)
    try:
        await flow.run()
    except BaseException:
        flow.abandon()
        if isinstance(flow, _Outgoing):
            await flow.still()
        raise


def plan_copy(source: DeviceArray, target: DeviceArray, lane: int = LANE_COMPUTE) -> list[CommandRequest] | None:
    """The requests that copy between two arrays of one device, of the same shape and dtype.

    None if they would be too many. Raises `InvalidArgument` for arrays that were freed or that share memory.
    """
    device = target.device
    device._check_usable(source)
    device._check_usable(target)
    if source._block is target._block and overlap(source, target):
        raise InvalidArgument("the two arrays share memory: copy through a third one")
    packing = _layout.packing(target.shape, target.strides)
    walk, source_offset = packing.follow(source.shape, source.strides)
    whole = _layout.boxes(packing.shape, target.itemsize, packing.strides, walk)
    boxes = list(itertools.islice(whole, THROUGH_HOST + 1))
    if len(boxes) > THROUGH_HOST:
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
    requests = plan_copy(source, target)
    if requests is None:
        # One of them is walked backwards, or across its rows: the host turns that round faster than a copy engine.
        host = np.empty(target.shape, target.dtype)
        await copy_out(source, host)
        await copy_in(target, host)
        return
    await ask_all(target, requests)
