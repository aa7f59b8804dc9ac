"""How a copy between host and device is cut into commands, and the requests that they become.

A command copies one run of bytes, a box of rows and planes, or several of those. Each goes through a slot of the
staging area, unless the host memory is pinned.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .._arrays import layout as _layout
from .._arrays.layout import Box, Packing, Piece
from .._generation.requests import CommandRequest
from .._values.errors import InvalidArgument
from .._values.util import known
from .._wire.protocol import LANE_COMPUTE, LANE_COPY_IN, LANE_COPY_OUT, Role, Verb
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
from .memory import overlap
from .pinned import PinnedArea
from .staging import LARGE_SLOT, Slot
from .transfers import transfers_of

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .._generation.generation import Generation
    from .._memory.arena import Block
    from .batch_areas import BatchSlots


THREAD_BYTES = 1 << 20
"""A helper does a memcpy of at least this many bytes, so that it does not block the event loop."""

SCATTERED = 8
"""Copying elements that are not packed takes this many times as long as copying packed ones."""

PINNED_PIECE = 256 << 20
"""A copy of pinned memory is one command up to this many bytes."""

MANY = 32
"""The most boxes that one command copies. The driver queues each of them, and accepts about a thousand."""

THROUGH_HOST = 256
"""A copy between two arrays that would take more boxes than this is faster through the host."""


class Way(NamedTuple):
    """One of the two directions between the device and the host."""

    name: Literal["to device", "to host"]
    operation: str
    lane: int
    run: Verb
    box: Verb
    many: Verb
    stream: Verb


TO_DEVICE = Way("to device", "memory.copy_in", LANE_COPY_IN, COPY_IN, COPY_IN_BOX, COPY_IN_MANY, COPY_IN_STREAM)

TO_HOST = Way("to host", "memory.copy_out", LANE_COPY_OUT, COPY_OUT, COPY_OUT_BOX, COPY_OUT_MANY, COPY_OUT_STREAM)

BYTES = np.dtype(np.uint8)

_RAW = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)} | {16: np.dtype("c16")}
"""The types that elements are moved as, by their size. For these types of numpy itself, a copy releases the lock."""


_packing_of = functools.lru_cache(maxsize=256)(_layout.packing)


@functools.lru_cache(maxsize=256)
def is_rectangle(shape: _layout.Shape, strides: _layout.Shape, itemsize: int) -> bool:
    """Return whether the elements of an array are rows of bytes at regular distances, or a single row."""
    packing = _packing_of(shape, strides)
    boxes = _layout.boxes(packing.shape, itemsize, packing.strides, _layout.contiguous_strides(packing.shape, itemsize))
    first = next(boxes, None)
    return first is not None and first.depth == 1 and next(boxes, None) is None


@functools.lru_cache(maxsize=256)
def rows_of(shape: _layout.Shape, strides: _layout.Shape, itemsize: int) -> Box | None:
    """Return the rows of bytes that an array consists of, in the order of packed memory on the other side.

    None if it has several distances between rows, or another order.
    """
    packing = _packing_of(shape, strides)
    if not packing.is_plain or packing.offset or not is_rectangle(shape, strides, itemsize):
        return None
    return next(iter(_layout.boxes(shape, itemsize, strides, _layout.contiguous_strides(shape, itemsize))))


_KNOWN: dict[tuple[object, ...], Sequence[Piece]] = {}
_MOST_KNOWN, _MOST_KNOWN_PIECES = 256, 16
"""The most layouts whose pieces are remembered, and the most pieces of one: a loop copies the same views again."""


def _pieces_of(packing: Packing, itemsize: int, limit: int) -> Sequence[Piece]:
    """Return the pieces of a copy from or to an array of this packing."""
    key = (packing.shape, packing.strides, itemsize, limit)
    pieces = _KNOWN.get(key)
    if pieces is None:
        strides = _layout.contiguous_strides(packing.shape, itemsize)
        pieces = _cut(_layout.boxes(packing.shape, itemsize, packing.strides, strides), limit)
        if len(pieces) <= _MOST_KNOWN_PIECES:
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[key] = pieces
    return pieces


def _cut(boxes: Iterable[Box], limit: int) -> Sequence[Piece]:
    parts = (part for box in boxes for part in _layout.cut(box, limit))
    return tuple(_layout.gather(parts, limit, MANY))


class _Plan:
    """One copy between the device and the host: its pieces, and the layout of their bytes on the host."""

    __slots__ = ("_base", "_elements", "_first", "_scattered", "array", "host", "pieces", "pinned", "way")

    def __init__(self, array: DeviceArray, host: npt.NDArray[Any], way: Way, limit: int | None = None) -> None:
        """Pieces that go through slots have at most `limit` bytes, if there is one."""
        self.array: DeviceArray = array
        self.host: npt.NDArray[Any] = host
        self.way: Way = way
        self._first = True
        self._base = array.address
        itemsize, packed, packing = array.itemsize, host, None
        if not (array.contiguous and host.size):
            packing = _packing_of(array.shape, array.strides)
            if not packing.is_plain:
                packed = packing.apply(host)
            self._base += packing.offset
        self.pinned: tuple[PinnedArea, int] | None = transfers_of(array).pinned.find(packed)
        self._scattered = not packed.flags.c_contiguous
        """True if the elements on the host are not one run of bytes in the order of the pieces."""
        self._elements = packed.view(_RAW[itemsize]) if self._scattered else packed.ravel().view(BYTES)
        most = LARGE_SLOT if self.pinned is None else PINNED_PIECE
        limit = min(most, limit or most) // itemsize * itemsize or itemsize
        self.pieces: Sequence[Piece] = (
            _cut((_layout.run(host.nbytes),), limit) if packing is None else _pieces_of(packing, itemsize, limit)
        )

    def request(self, piece: Piece, slot: Slot | None, told: Callable[[], None] | None = None) -> CopyRequest:
        """Return the command that copies a piece, through a slot, or without one if the host's memory is pinned."""
        return CopyRequest(self, piece, self.next_role(), slot, told)

    def next_role(self) -> Role:
        """Return the next command's access to the array: the first that writes replaces all of its contents."""
        if self.way is TO_HOST:
            return Role.READ
        heals, self._first = self._first and self.array._covers_block, False
        return Role.OVERWRITE if heals else Role.WRITE

    def burden(self, piece: Piece) -> int:
        """Return the host's time for a piece, as the size in bytes of a plain copy that takes as long."""
        if self.pinned is not None:
            return 0
        return SCATTERED * piece.size if self._scattered else piece.size

    @property
    def burden_of_all(self) -> int:
        """The sum of the burdens of all pieces."""
        if self.pinned is not None:
            return 0
        return SCATTERED * self.host.nbytes if self._scattered else self.host.nbytes

    def box_at(self, box: Box) -> int:
        """Return the device address of the first byte of a box."""
        return self._base + box.offset

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

    def record_stream(self, pieces: Sequence[Piece], slots: list[Slot], first: int) -> bytes:
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
        if self.way is TO_DEVICE:
            return _entry(device_side, host_side, box)
        return _entry(host_side, device_side, box)

    def load(self, piece: Piece, target: npt.NDArray[np.uint8]) -> None:
        """Copy a piece from the host's array to packed memory."""
        if self._scattered:
            for part, packed in self._parts(piece, target):
                np.copyto(packed, part)
        else:
            target[: piece.size] = self._elements[piece.start : piece.start + piece.size]

    def store(self, piece: Piece, source: npt.NDArray[np.uint8]) -> None:
        """Copy a piece from packed memory to the host's array."""
        if self._scattered:
            for part, packed in self._parts(piece, source):
                np.copyto(part, packed)
        else:
            self._elements[piece.start : piece.start + piece.size] = source[: piece.size]

    def store_part(self, piece: Piece, source: npt.NDArray[np.uint8], begin: int, end: int) -> None:
        """Copy some bytes of a piece from packed memory to the host's array, which is packed too."""
        self._elements[piece.start + begin : piece.start + end] = source[begin:end]

    def _parts(
        self, piece: Piece, memory: npt.NDArray[np.uint8]
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Yield the parts of a scattered array that make up a piece, each with its part of the packed memory."""
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
        if not (delivered and self._plan.way is TO_HOST):
            self.release()
        if self._told is not None:
            self._told()

    @property
    def burden(self) -> int:
        return self._plan.burden(self.piece) if self._slot is not None and self._plan.way is TO_HOST else 0

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
    plan = _Plan(array, host, TO_DEVICE)
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
        for request in _plan_requests(_Plan(array, host, TO_HOST), slots):
            requests.append(request)  # noqa: PERF402  what was made must be known when the next one fails
    except BaseException:
        _drop_all(requests)
        raise
    return requests


def plan_copy(
    source: DeviceArray,
    target: DeviceArray,
    lane: int = LANE_COMPUTE,
    *,
    most: int = THROUGH_HOST,
    account: Block | None = None,
) -> list[CommandRequest] | None:
    """Return the requests that copy between two checked arrays of one shape and one dtype.

    `account` is the account of the source's block, if the target's device does not own it. Returns None if they would
    have more than `most` boxes. Raises `InvalidArgument` for arrays that share memory.
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
            (account or source._block, Role.READ),
        )
        verb = COPY if len(some) == 1 else COPY_MANY
        keep = (source, target)
        requests.append(CommandRequest(verb, payload, operands, keep=keep, lane=lane, operation="memory.copy"))
    return requests


def _drop_all(requests: list[CopyRequest]) -> None:
    for request in requests:
        request.drop()
