"""Copies and fills: the verbs of the memory actor.

Host memory is touched by the caller's own task (or a thread it waits for), never by DMA: a copy goes through slots of
the staging area. What is larger than a slot is cut into several commands, a few of them in flight at a time.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import trio

from .. import _layout
from .._dtypes import number_kind
from .._errors import InvalidArgument
from .._mailbox import RequestState
from .._memory import Block
from .._requests import CommandRequest
from .._staging import LARGE_SLOT, Slot
from .._util import shown
from ..worker.engines.memory import COPY, COPY_IN, COPY_IN_2D, COPY_OUT, COPY_OUT_2D, FILL
from ..worker.protocol import LANE_COPY_IN, LANE_COPY_OUT, Role

if TYPE_CHECKING:
    from .._arrays import DeviceArray
    from .._device import Device

IN_FLIGHT = 4
"""Commands of one copy that are under way at a time: enough to overlap our memcpy with the GPU's DMA."""

THREAD_BYTES = 1 << 20
"""A memcpy of at least this many bytes is done in a thread, so that it does not hold up the event loop."""


class _CopyIn(CommandRequest):
    """One command of a copy to the device; gives its slot back when the DMA is over."""

    __slots__ = ("_slot",)

    def __init__(self, array: DeviceArray, piece: _layout.Rows, base: int, role: Role, slot: Slot) -> None:
        if piece.height == 1:
            verb, payload = COPY_IN, COPY_IN.struct.pack(base + piece.offset, slot.offset, piece.width)
        else:
            fields = (base + piece.offset, piece.pitch, slot.offset, piece.width, piece.height)
            verb, payload = COPY_IN_2D, COPY_IN_2D.struct.pack(*fields)
        operands = ((array._block, role),)
        super().__init__(verb, payload, operands, keep=array, lane=LANE_COPY_IN, operation="memory.copy_in")
        self._slot: Slot | None = slot

    def ended(self, *, delivered: bool) -> None:
        if self._slot is not None:
            slot, self._slot = self._slot, None  # or a request in a traceback would keep the staging area mapped
            slot.release()


class _CopyOut(CommandRequest):
    """One command of a copy to the host. The caller takes the bytes out of the slot, if there is still a caller."""

    __slots__ = ("_slot", "piece")

    def __init__(self, array: DeviceArray, piece: _layout.Rows, base: int, slot: Slot) -> None:
        if piece.height == 1:
            verb, payload = COPY_OUT, COPY_OUT.struct.pack(base + piece.offset, slot.offset, piece.width)
        else:
            fields = (base + piece.offset, piece.pitch, slot.offset, piece.width, piece.height)
            verb, payload = COPY_OUT_2D, COPY_OUT_2D.struct.pack(*fields)
        operands = ((array._block, Role.READ),)
        super().__init__(verb, payload, operands, keep=array, lane=LANE_COPY_OUT, operation="memory.copy_out")
        self._slot: Slot | None = slot
        self.piece = piece

    def ended(self, *, delivered: bool) -> None:
        if not delivered:
            self.release()

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """What the GPU wrote."""
        if self._slot is None:
            raise AssertionError("the slot of a copy was read after its release")
        return self._slot.bytes[: self.piece.width * self.piece.height]

    def release(self) -> None:
        """Give the slot back. Calling it twice is fine."""
        if self._slot is not None:
            self._slot.release()
            self._slot = None

    def drop(self) -> None:
        """The caller is leaving before it has taken the bytes."""
        if self.open:
            self.give_up()
        else:
            self.release()


def _pack(array: DeviceArray) -> tuple[_layout.Packing, list[_layout.Rows]]:
    """How the array is packed on the host, and the pieces of that, each of which fits into a slot."""
    packing = _layout.packing(array.shape, array.strides)
    packed = _layout.contiguous_strides(packing.shape, array.itemsize)
    whole = _layout.rows(packing.shape, array.itemsize, packing.strides, packed)
    return packing, [piece for rows in whole for piece in _layout.cut(rows, LARGE_SLOT)]


async def _assign(target: npt.NDArray[Any], source: npt.NDArray[Any], device: Device) -> None:
    """Copy elements between arrays of one shape, in a thread when it takes long enough to matter."""
    if target.nbytes >= THREAD_BYTES:
        await trio.to_thread.run_sync(np.copyto, target, source, limiter=device._copy_limiter)
    else:
        np.copyto(target, source)


def _as_bytes(packed: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return packed.reshape(-1).view(np.uint8)


@trio.lowlevel.enable_ki_protection
async def copy_in(array: DeviceArray, host: npt.NDArray[Any]) -> None:
    """Overwrite a device array with a host array of the same shape and dtype. See `DeviceArray.copy_from`."""
    device, block = array.device, array._block
    packing, pieces = _pack(array)
    device._check_usable(array)
    if not pieces:
        await trio.lowlevel.checkpoint()
        return
    packed = packing.apply(host)
    if not packed.flags.c_contiguous:
        strided, packed = packed, np.empty(packing.shape, array.dtype)
        await _assign(packed, strided, device)
    data = _as_bytes(packed)
    base = array.address + packing.offset
    heals = array._covers_block
    mailbox = device._memory_mailbox
    pending: collections.deque[_CopyIn] = collections.deque()
    posted = done = 0
    try:
        for piece in pieces:
            size = piece.width * piece.height
            slot = await device._staging.acquire(size)
            try:
                await _assign(slot.bytes[:size], data[piece.other_offset : piece.other_offset + size], device)
                role = Role.OVERWRITE if heals and not posted else Role.WRITE
                request = _CopyIn(array, piece, base, role, slot)
            except BaseException:
                slot.release()
                raise
            try:
                await mailbox.post(request)
            except BaseException:
                request.give_up()
                raise
            pending.append(request)
            posted += 1
            while len(pending) >= IN_FLIGHT:
                await pending[0].wait()
                pending.popleft()
                done += 1
        while pending:
            await pending[0].wait()
            pending.popleft()
            done += 1
    except BaseException as error:
        for request in pending:
            if request.open:
                request.give_up()
        _tear(block, error, begun=done + sum(map(_was_begun, pending)), pieces=len(pieces))
        raise


def _was_begun(request: CommandRequest) -> bool:
    return request.state not in (RequestState.QUEUED, RequestState.CANCELLED)


def _tear(block: Block, error: BaseException, *, begun: int, pieces: int) -> None:
    """Mark what a writing verb of several commands leaves behind when `error` ends it before its time.

    A caller that goes away (anything but an `Exception`) leaves commands that go on by themselves: if all were begun,
    nothing is missing.
    """
    finishes = begun == pieces and not isinstance(error, Exception)
    if pieces > 1 and begun and not finishes and not block.freed:
        block.torn = block.torn or f"a write that did not finish ({type(error).__name__})"


@trio.lowlevel.enable_ki_protection
async def copy_out(array: DeviceArray, host: npt.NDArray[Any]) -> None:
    """Copy a device array into a host array of the same shape and dtype. See `DeviceArray.copy_to`."""
    device = array.device
    packing, pieces = _pack(array)
    device._check_usable(array)
    if not pieces:
        await trio.lowlevel.checkpoint()
        return
    direct = packing.apply(host)
    packed = direct if direct.flags.c_contiguous else np.empty(packing.shape, array.dtype)
    data = _as_bytes(packed)
    base = array.address + packing.offset
    mailbox = device._memory_mailbox
    pending: collections.deque[_CopyOut] = collections.deque()

    async def take_oldest() -> None:
        oldest = pending[0]
        await oldest.wait()
        start = oldest.piece.other_offset
        await _assign(data[start : start + oldest.bytes.size], oldest.bytes, device)
        pending.popleft().release()

    try:
        for piece in pieces:
            size = piece.width * piece.height
            # Slots of ours are released by this task alone: it must not wait for another one while it holds any.
            while pending and (len(pending) >= IN_FLIGHT or not device._staging.has_free(size)):
                await take_oldest()
            slot = await device._staging.acquire(size)
            request = _CopyOut(array, piece, base, slot)
            try:
                await mailbox.post(request)
            except BaseException:
                request.drop()
                raise
            pending.append(request)
        while pending:
            await take_oldest()
    except BaseException:
        for request in pending:
            request.drop()
        raise
    if packed is not direct:
        await _assign(host, packing.undo(packed), device)


@trio.lowlevel.enable_ki_protection
async def copy_on_device(source: DeviceArray, target: DeviceArray) -> None:
    """Copy between two arrays of one device, of the same shape and dtype. See `DeviceArray.copy_from`."""
    device = target.device
    device._check_usable(source)
    device._check_usable(target)
    if source._block is target._block and _overlap(source, target):
        raise InvalidArgument("the two arrays share memory: copy through a third one")
    packing = _layout.packing(target.shape, target.strides)
    walk, source_offset = packing.follow(source.shape, source.strides)
    heals = target._covers_block

    def request_for(piece: _layout.Rows, first: bool) -> CommandRequest:
        payload = COPY.struct.pack(
            target.address + packing.offset + piece.offset,
            piece.pitch,
            source.address + source_offset + piece.other_offset,
            piece.other_pitch,
            piece.width,
            piece.height,
        )
        operands = (
            (target._block, Role.OVERWRITE if heals and first else Role.WRITE),
            (source._block, Role.READ),
        )
        return CommandRequest(COPY, payload, operands, keep=(source, target), operation="memory.copy")

    pieces = list(_layout.rows(packing.shape, target.itemsize, packing.strides, walk))
    await _ask_all(target, pieces, request_for)


async def _ask_all(
    target: DeviceArray, pieces: list[_layout.Rows], request_for: Callable[[_layout.Rows, bool], CommandRequest]
) -> None:
    """Overwrite an array by one command for each piece, one after the other."""
    if not pieces:
        await trio.lowlevel.checkpoint()
    for number, piece in enumerate(pieces):
        request = request_for(piece, number == 0)
        try:
            await target.device._memory_mailbox.ask(request)
        except BaseException as error:
            _tear(target._block, error, begun=number + _was_begun(request), pieces=len(pieces))
            raise


def _overlap(first: DeviceArray, second: DeviceArray) -> bool:
    """Whether the byte ranges of two views of one block meet; exact enough to refuse what could go wrong."""
    spans = []
    for array in (first, second):
        reach = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
        low = array.address + sum(step for step in reach if step < 0)
        spans.append((low, array.address + sum(step for step in reach if step > 0) + array.itemsize))
    return first.size > 0 and spans[0][0] < spans[1][1] and spans[1][0] < spans[0][1]


@trio.lowlevel.enable_ki_protection
async def fill(array: DeviceArray, value: complex | np.generic) -> None:
    """Set every element. See `DeviceArray.fill`."""
    device = array.device
    device._check_usable(array)
    pattern = pattern_of(value, array.dtype)
    packing = _layout.packing(array.shape, array.strides)
    heals = array._covers_block
    base = array.address + packing.offset

    def request_for(piece: _layout.Rows, first: bool) -> CommandRequest:
        fields = (base + piece.offset, piece.pitch, array.itemsize, piece.width // array.itemsize, piece.height)
        operands = ((array._block, Role.OVERWRITE if heals and first else Role.WRITE),)
        return CommandRequest(FILL, FILL.struct.pack(*fields, pattern), operands, keep=array, operation="memory.fill")

    pieces = list(_layout.rows(packing.shape, array.itemsize, packing.strides, packing.strides))
    await _ask_all(array, pieces, request_for)


def pattern_of(value: object, dtype: np.dtype[Any]) -> bytes:
    """The bytes of one element with this value; raises `InvalidArgument` if the dtype cannot hold it."""
    try:
        kind = number_kind(dtype)
        # numpy makes an object of an int that needs more than 64 bits, and a float array may well hold it.
        wide = isinstance(value, int) and not -(2**63) <= value < 2**64
        if wide and kind in "biu":
            raise TypeError("it is out of range")
        scalar = np.asarray(float(value) if wide else value)  # type: ignore[arg-type]
        given = number_kind(scalar.dtype)
        if scalar.ndim or given not in "biufc":
            raise TypeError(f"a {type(value).__name__} is not a number")
        if given == "c" and kind != "c":
            raise TypeError("a complex number has no place in a real array")
        if given in "fc" and kind in "biu":
            raise TypeError("a float has no place in an integer array")
        if kind in "iu" and not np.iinfo(dtype).min <= int(scalar) <= np.iinfo(dtype).max:
            raise TypeError("it is out of range")
        with np.errstate(over="ignore", invalid="ignore"):
            element = scalar.astype(dtype)
        # A type without infinities makes NaN of what is too large for it.
        parts = (np.real, np.imag) if kind == "c" else (np.asarray,)
        if kind in "fc" and any(_special(part(element)) != _special(part(scalar)) for part in parts):
            raise TypeError("it is out of range")
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"cannot fill {dtype.name} elements with {shown(value)}: {error}") from None
    return element.tobytes()


def _special(number: npt.NDArray[Any]) -> tuple[bool, bool]:
    """Whether a real number is NaN, and whether it is infinite. ml_dtypes warns of a NaN that signals."""
    with np.errstate(invalid="ignore"):
        return bool(np.isnan(number)), bool(np.isinf(number))
