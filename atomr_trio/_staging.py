"""The staging area: pinned host memory that copies pass through, shared by this process, the worker and the GPU.

The caller's own memory is touched by our memcpy alone, never by DMA, so a caller may be cancelled at any moment. The
area outlives the workers; each of them registers it anew.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import trio

from ._errors import DeviceClosed
from ._util import known
from .worker.channel import SharedMemory
from .worker.engines.memory import AREA_SHIFT, STAGING_AREA
from .worker.protocol import CELL

if TYPE_CHECKING:
    from ._generation import Generation
    from ._pinned import PinnedArea

TINY_SLOT = 4 * 1024
"""Enough for what a library answers: there are many of them, for a batch holds its answers until its end."""
SMALL_SLOT = 64 * 1024
LARGE_SLOT = 4 * 1024 * 1024
TINY_SLOTS = 512
SMALL_SLOTS = 64
LARGE_SLOTS = 22
SHARE_OF_BATCHES = 3, 4
"""The part of the slots of each size that batches may hold. A batch lets go of some only when it is flushed, and others
must get on meanwhile; what it needs beyond comes from areas of its own (``_batch_areas.py``)."""
GATE_BYTES = 2 * CELL
"""Each slot has two words by which helpers and the GPU take turns in it, in cache lines of their own."""
STAGING_BYTES = (
    TINY_SLOTS * (TINY_SLOT + GATE_BYTES)
    + SMALL_SLOTS * (SMALL_SLOT + GATE_BYTES)
    + LARGE_SLOTS * (LARGE_SLOT + GATE_BYTES)
)


def _kind(size: int) -> int:
    """The size of the slots that take `size` bytes."""
    return TINY_SLOT if size <= TINY_SLOT else SMALL_SLOT if size <= SMALL_SLOT else LARGE_SLOT


class SlotPool(Protocol):
    """Where slots come from."""

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The memory that they lie in."""

    @property
    def closed(self) -> bool:
        """Whether that is gone."""

    @property
    def area(self) -> PinnedArea | None:
        """What workers know it as; None for the staging area, which each has from its start."""

    def put_back(self, slot: Slot) -> None:
        """One holder of a slot has let go of it."""


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
        """Where its two words lie in the staging area; -1 if it has none, because no stream goes through it."""
        self.holders: int = 0
        """How many have to release it before it is free."""

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The memory of the slot. A view keeps the whole area mapped, so take one for the moment of a copy only."""
        if self._pool.closed:
            raise DeviceClosed("the device was closed before the copy had taken its bytes")
        return self._pool.bytes[self.offset : self.offset + self.size]

    def introduce(self, generation: Generation, lane: int) -> None:
        """Have the worker know the area, before a command of the lane uses the slot."""
        if self._pool.area is not None:
            self._pool.area.register(generation, lane)

    def share(self) -> None:
        """There is one more who holds the slot, and will release it."""
        self.holders += 1

    def release(self) -> None:
        """Give the slot to whoever waits for one, if nobody else holds it."""
        self._pool.put_back(self)


class _Waiter:
    """Someone who waits for a slot, and the slot once it has come."""

    __slots__ = ("arrived", "slot")

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.slot: Slot | None = None


class StagingPool:
    """Slots of three sizes, handed out in turn: while somebody waits for one, none of its size is free."""

    area = None

    def __init__(self) -> None:
        self.memory: SharedMemory = SharedMemory.create("atomr-trio-staging", STAGING_BYTES)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self.memory.map, np.uint8)
        self.words: memoryview[int] = memoryview(self.memory.map).cast("Q")
        """The area as 64-bit words, to be stored and loaded whole."""
        counts = {TINY_SLOT: TINY_SLOTS, SMALL_SLOT: SMALL_SLOTS, LARGE_SLOT: LARGE_SLOTS}
        offsets = itertools.accumulate((size * count for size, count in counts.items()), initial=0)
        gates = itertools.count(sum(size * count for size, count in counts.items()), GATE_BYTES)
        self._free: dict[int, collections.deque[Slot]] = {
            size: collections.deque(Slot(self, first + size * index, size, next(gates)) for index in range(count))
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
        """Whether `acquire_nowait` would give a slot of this size."""
        return bool(self._free[_kind(size)])

    def acquire_nowait(self, size: int) -> Slot:
        """A slot of at least `size` bytes (at most `LARGE_SLOT`), or `trio.WouldBlock`.

        Who holds slots that only it can release must not wait for one more, or all holders wait for ever.
        """
        free = self._free[_kind(size)]
        if not free:
            raise trio.WouldBlock(f"no slot of the staging area is free for {size} bytes: `acquire` waits for one")
        slot = free.popleft()
        slot.holders = 1
        return slot

    def acquire_for_batch(self, size: int) -> Slot | None:
        """The same for a batch, as long as there are plenty; None when it must look elsewhere."""
        kind = _kind(size)
        free = self._free[kind]
        if len(free) <= self._kept[kind]:
            return None
        slot = free.popleft()
        slot.holders = 1
        return slot

    def number(self, count: int) -> int:
        """The first of so many numbers in a row that nobody has been given before; all later ones are higher."""
        first = self._sequence
        self._sequence += count
        return first

    async def acquire(self, size: int) -> Slot:
        """The same, waiting for a slot if none is free, in turn."""
        if self.has_free(size):
            return self.acquire_nowait(size)
        waiters, waiter = self._waiters[_kind(size)], _Waiter()
        waiters.append(waiter)
        try:
            await waiter.arrived.wait()
        except BaseException:
            if waiter.slot is None:
                waiters.remove(waiter)
            else:  # it came after the cancellation, and before that was heard of
                waiter.slot.release()
            raise
        return known(waiter.slot, "who was woken has a slot")

    @contextlib.contextmanager
    def hold_back(self) -> Iterator[list[Slot]]:
        """Slots released in this block are not free yet: a lost worker may still write them. Put them back later."""
        held: list[Slot] = []
        self._held_back = held
        try:
            yield held
        finally:
            self._held_back = None

    def put_back(self, slot: Slot) -> None:
        """Called by `Slot.release`."""
        if self.holds_back(slot):
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
        """Whether a slot that is released is kept for later, because a lost worker may still write it."""
        if self._held_back is None:
            return False
        self._held_back.append(slot)
        return True

    @property
    def idle(self) -> bool:
        """Whether no slot is held."""
        return sum(map(len, self._free.values())) == self._slots

    def close(self) -> None:
        """Unmap the area."""
        for slots in self._free.values():
            slots.clear()
        self.closed = True
        del self.bytes, self.words
        # A cancelled caller's copy may still look at its slot: then the map goes with the last of its views.
        with contextlib.suppress(BufferError):
            self.memory.close()
