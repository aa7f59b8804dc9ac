"""The staging area: pinned host memory that copies pass through, shared by this process, the worker and the GPU.

Only memcpy in this process touches the caller's own memory, never DMA, so a caller may be cancelled at any moment. The
area outlives the workers; each of them registers it again.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import trio

from .._values.errors import DeviceClosed
from .._values.util import known
from .._wire.channel import SharedMemory
from .._wire.protocol import CELL
from .._wire.records.memory import AREA_SHIFT, STAGING_AREA

if TYPE_CHECKING:
    from .._generation.generation import Generation
    from .pinned import PinnedArea

TINY_SLOT = 4 * 1024
"""Enough for the answer of a library. There are many such slots, because a batch holds its answers until its end."""
SMALL_SLOT = 64 * 1024
MEDIUM_SLOT = 512 * 1024
"""Enough for a piece of a copy that goes the short way (``short_copies.py``)."""
LARGE_SLOT = 4 * 1024 * 1024
TINY_SLOTS = 512
SMALL_SLOTS = 64
MEDIUM_SLOTS = 32
LARGE_SLOTS = 22
SHARE_OF_BATCHES = 3, 4
"""The part of the slots of each size that batches may hold. A batch releases its slots only when it is flushed, and
other copies must go on meanwhile. Further slots of a batch come from its own areas (``_transfers/batch_areas.py``)."""
GATE_BYTES = 2 * CELL
"""Bytes of the two words by which helpers and the GPU take turns in a slot, each in its own cache line."""
SKEW = 2048
"""The bytes in front of the first slot, so that no slot begins where a page does. Large arrays of numpy begin 16 bytes
behind the begin of a page, and on AMD's processors a memcpy takes ten times as long if its target lies 1 to 31 bytes
behind its source, apart from whole pages."""
STAGING_BYTES = (
    SKEW
    + TINY_SLOTS * (TINY_SLOT + GATE_BYTES)
    + SMALL_SLOTS * (SMALL_SLOT + GATE_BYTES)
    + MEDIUM_SLOTS * (MEDIUM_SLOT + GATE_BYTES)
    + LARGE_SLOTS * (LARGE_SLOT + GATE_BYTES)
)


def _kind(size: int) -> int:
    """Return the size of the slots for `size` bytes."""
    if size <= SMALL_SLOT:
        return TINY_SLOT if size <= TINY_SLOT else SMALL_SLOT
    return MEDIUM_SLOT if size <= MEDIUM_SLOT else LARGE_SLOT


def _next_of(kind: int) -> int:
    """Return the index of the slot that is given out next, in the list of those that are free."""
    return 0 if kind == LARGE_SLOT else -1


class SlotPool(Protocol):
    """A source of slots."""

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The memory of the slots."""

    @property
    def map(self) -> mmap.mmap:
        """The same, as the object of which a slice is overwritten fastest."""

    @property
    def view(self) -> memoryview[int]:
        """The same, as the object of which a slice is read fastest."""

    @property
    def closed(self) -> bool:
        """True if that memory is closed."""

    @property
    def area(self) -> PinnedArea | None:
        """The area that workers know; None for the staging area, which each worker has from its start."""

    def put_back(self, slot: Slot) -> None:
        """Take a slot back from one of its holders."""


class Slot:
    """A piece of the staging area, or of an area that a batch has beside it, held until `release`."""

    __slots__ = ("_pool", "area", "gate", "holders", "offset", "place", "size")

    def __init__(self, pool: SlotPool, offset: int, size: int, gate: int = -1) -> None:
        self._pool = pool
        self.offset: int = offset
        self.size: int = size
        self.area: int = STAGING_AREA if pool.area is None else pool.area.number
        """The number of the area that it lies in."""
        self.place: int = self.area << AREA_SHIFT | offset
        """Area and offset, as the ``staging`` field of a record has them."""
        self.gate: int = gate
        """The offset of its two words in the staging area; -1 if it has none, because no stream copies through it."""
        self.holders: int = 0
        """The number of holders that must release it before it is free."""

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The memory of the slot. A view keeps the whole area mapped, so take one only for a copy."""
        if self._pool.closed:
            raise _closed()
        return self._pool.bytes[self.offset : self.offset + self.size]

    def load(self, packed: npt.NDArray[Any], begin: int = 0) -> None:
        """Copy a C-contiguous array into the slot, from the byte `begin` on. It has no more bytes than there are."""
        pool, begin = self._pool, self.offset + begin
        if pool.closed:
            raise _closed()
        # It takes a fifth of the time that two arrays of bytes take.
        pool.map[begin : begin + packed.nbytes] = packed  # type: ignore[call-overload]  # an array is a buffer

    def store(self, packed: npt.NDArray[Any], begin: int = 0) -> None:
        """Overwrite a C-contiguous array with the bytes of the slot from `begin` on."""
        pool, begin = self._pool, self.offset + begin
        if pool.closed:
            raise _closed()
        end = begin + packed.nbytes
        try:
            packed.data.cast("B")[:] = pool.view[begin:end]
        except ValueError:  # the buffer protocol has no such dtype: it is a date, or one of ml_dtypes
            packed.ravel().view(np.uint8)[:] = pool.bytes[begin:end]

    def load_freely(self, packed: npt.NDArray[np.uint8]) -> None:
        """Do the same with bytes, and let other threads run meanwhile: worthwhile from some 100 KiB on."""
        self.bytes[: packed.nbytes] = packed

    def store_freely(self, packed: npt.NDArray[np.uint8]) -> None:
        """Overwrite bytes with the first of the slot, and let other threads run meanwhile."""
        packed[:] = self.bytes[: packed.nbytes]

    def part(self, begin: int, size: int) -> Slot:
        """Return a part of the slot, of so many bytes. Who holds the slot holds it; it is not released."""
        return Slot(self._pool, self.offset + begin, size)

    def introduce(self, generation: Generation, lane: int) -> None:
        """Make the area known to the worker, before a command of the lane uses the slot."""
        if self._pool.area is not None:
            self._pool.area.register(generation, lane)

    def share(self) -> None:
        """Add a holder, which will release the slot too."""
        self.holders += 1

    def release(self) -> None:
        """Release the slot. The last holder's release gives it to the next waiter."""
        self._pool.put_back(self)


def _closed() -> DeviceClosed:
    return DeviceClosed("the device was closed before the copy had taken its bytes")


class _Waiter:
    """A task that waits for a slot, and the slot once it has come."""

    __slots__ = ("arrived", "slot")

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.slot: Slot | None = None


class StagingPool:
    """Slots of four sizes, given out in turn: while a task waits for one, none of its size is free.

    Of the smaller ones, the slot that was released last is given out first: its bytes are still in the processor's
    cache, where a memcpy is two to three times as fast.
    """

    area = None

    def __init__(self) -> None:
        self.memory: SharedMemory = SharedMemory.create("atomr-trio-staging", STAGING_BYTES)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self.memory.map, np.uint8)
        self.map: mmap.mmap = self.memory.map
        self.view: memoryview[int] = self.memory.bytes
        self.words: memoryview[int] = memoryview(self.memory.map).cast("Q")
        """The area as 64-bit words, to be stored and loaded whole."""
        counts = {TINY_SLOT: TINY_SLOTS, SMALL_SLOT: SMALL_SLOTS, MEDIUM_SLOT: MEDIUM_SLOTS, LARGE_SLOT: LARGE_SLOTS}
        offsets = itertools.accumulate((size * count for size, count in counts.items()), initial=SKEW)
        gates = itertools.count(SKEW + sum(size * count for size, count in counts.items()), GATE_BYTES)
        self._free: dict[int, list[Slot]] = {
            size: [Slot(self, first + size * index, size, next(gates)) for index in range(count)]
            for (size, count), first in zip(counts.items(), offsets, strict=False)
        }
        part, whole = SHARE_OF_BATCHES
        self._kept = {size: count - count * part // whole for size, count in counts.items()}
        self._slots: int = sum(counts.values())
        self._sequence = 1
        self.closed: bool = False
        self._held_back: list[Slot] | None = None
        self._waiters: dict[int, collections.deque[_Waiter]] = {size: collections.deque() for size in self._free}

    def has_free(self, size: int) -> bool:
        """Return whether `acquire_nowait` would give a slot of this size."""
        return bool(self._free[_kind(size)])

    def take(self, size: int) -> Slot | None:
        """Return a slot of at least `size` bytes, at most `MEDIUM_SLOT`; None if none is free."""
        free = self._free[TINY_SLOT if size <= TINY_SLOT else SMALL_SLOT if size <= SMALL_SLOT else MEDIUM_SLOT]
        if not free:
            return None
        slot = free.pop()
        slot.holders = 1
        return slot

    def acquire_several(self, size: int, count: int) -> list[Slot] | None:
        """Return so many slots of at least `size` bytes each; None if fewer are free."""
        free = self._free[_kind(size)]
        if len(free) < count:
            return None
        slots = free[: -count - 1 : -1]
        del free[-count:]
        for slot in slots:
            slot.holders = 1
        return slots

    def acquire_nowait(self, size: int) -> Slot:
        """Return a slot of at least `size` bytes (at most `LARGE_SLOT`). Raises `trio.WouldBlock` if none is free.

        A task that holds slots which only it can release must not wait for one more: all holders could wait for ever.
        """
        kind = _kind(size)
        free = self._free[kind]
        if not free:
            raise trio.WouldBlock(f"no slot of the staging area is free for {size} bytes: `acquire` waits for one")
        slot = free.pop(_next_of(kind))
        slot.holders = 1
        return slot

    def acquire_for_batch(self, size: int) -> Slot | None:
        """Return a slot for a batch, as long as there are plenty; None when it must use its own areas."""
        kind = TINY_SLOT if size <= TINY_SLOT else _kind(size)
        free = self._free[kind]
        if len(free) <= self._kept[kind]:
            return None
        slot = free.pop(0 if kind == LARGE_SLOT else -1)
        slot.holders = 1
        return slot

    def number(self, count: int) -> int:
        """Return the first of `count` new numbers in a row; all later ones are higher."""
        first = self._sequence
        self._sequence += count
        return first

    async def acquire(self, size: int) -> Slot:
        """Return a slot as `acquire_nowait` does, after waiting in turn if none is free."""
        if self.has_free(size):
            return self.acquire_nowait(size)
        waiters, waiter = self._waiters[_kind(size)], _Waiter()
        waiters.append(waiter)
        try:
            await waiter.arrived.wait()
        except BaseException:
            if waiter.slot is None:
                waiters.remove(waiter)
            else:  # it came after the cancellation, and before this task ran
                waiter.slot.release()
            raise
        return known(waiter.slot, "who was woken has a slot")

    @contextlib.contextmanager
    def hold_back(self) -> Iterator[list[Slot]]:
        """Collect the slots released in this block: a lost worker may still write them. Put them back later."""
        held: list[Slot] = []
        self._held_back = held
        try:
            yield held
        finally:
            self._held_back = None

    def put_back(self, slot: Slot) -> None:
        """Take a slot back. Called by `Slot.release`."""
        if self._held_back is not None:
            self._held_back.append(slot)
            return
        slot.holders -= 1
        if slot.holders:
            return
        if not self._waiters[slot.size]:
            self._free[slot.size].append(slot)
            return
        waiter = self._waiters[slot.size].popleft()
        slot.holders = 1
        waiter.slot = slot
        waiter.arrived.set()

    def holds_back(self, slot: Slot) -> bool:
        """Return whether a slot that is released is kept for later, because a lost worker may still write it."""
        if self._held_back is None:
            return False
        self._held_back.append(slot)
        return True

    @property
    def idle(self) -> bool:
        """True if no slot is held."""
        return sum(map(len, self._free.values())) == self._slots

    def close(self) -> None:
        """Unmap the area. Can be called twice."""
        if not self.closed:
            self._end()
            # A cancelled caller's copy may still use its slot: then the map is closed with the last of its views.
            with contextlib.suppress(BufferError):
                self.memory.close()

    def part(self) -> tuple[int, mmap.mmap]:
        """Close the pool, but leave the descriptor and the mapping of the area to the caller."""
        self._end()
        return self.memory.part()

    def _end(self) -> None:
        for slots in self._free.values():
            slots.clear()
        self.closed = True
        del self.bytes, self.words, self.map, self.view
