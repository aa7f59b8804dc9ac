"""Host memory of batches beside the staging area, for copies and answers that do not fit there.

A batch cannot wait for a slot, because its verbs are plain functions, and it releases its slots only when it is
flushed. So beyond its share of the staging area, it cuts slots from areas of its own. Workers learn of areas as they do
of pinned arrays: by a command ahead of the first copy. Pinning memory takes longer than copying it, so an unused area
is kept for the next batch that needs one, until `trim`. The slots of a batch are allocated and released together, so
an area needs only a pointer.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from .._generation.generation import Generation
from .._values.errors import InvalidArgument
from .._values.util import known
from .._wire.protocol import CELL
from .pinned import PinnedArea, PinnedMemory
from .staging import LARGE_SLOT, SKEW, Slot, StagingPool

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FIRST_AREA, LARGEST_AREA = LARGE_SLOT, 8 * LARGE_SLOT
"""The sizes of a batch's first area, which holds the largest piece of a copy, and of its largest: each is twice the one
before. Each area takes two descriptors of either process."""

BATCH_BYTES = 96 << 20
"""Bytes of unfinished copies and answers that a batch may have in areas: 64 MiB of copies, and thousands of answers."""


class BatchArea:
    """One area. One batch at a time cuts slots from it."""

    def __init__(self, pool: StagingPool, area: PinnedArea, memory: npt.NDArray[np.uint8]) -> None:
        self.area: PinnedArea = area
        self.bytes: npt.NDArray[np.uint8] = memory
        self.map: mmap.mmap = area.map
        self.view: memoryview[int] = memory.data
        self.closed: bool = False
        self.user: BatchSlots | None = None
        """The batch that cuts slots from it."""
        self.live: int = 0
        """The number of its slots that are held."""
        self._pool = pool
        self._end = 0

    def cut(self, size: int) -> Slot | None:
        """Return a slot of `size` bytes behind those that were cut before; None if there is no room."""
        begin = self._end or min(SKEW, max(0, self.area.size - size))
        if begin + size > self.area.size:
            return None
        self._end = begin + -(-size // CELL) * CELL
        self.live += 1
        slot = Slot(self, begin, size)
        slot.holders = 1
        return slot

    def put_back(self, slot: Slot) -> None:
        """Take a slot back. Called by `Slot.release`."""
        if self._pool.holds_back(slot):
            return
        slot.holders -= 1
        if slot.holders:
            return
        self.live -= 1
        if not self.live:
            self._end = 0
        if self.user is not None:
            self.user.was_released(self, slot.size)


class BatchAreas:
    """All areas of one device. `serving` gives the generation whose worker must be told when one is gone."""

    def __init__(self, pool: StagingPool, pinned: PinnedMemory, serving: Callable[[], Generation | None]) -> None:
        self.pool = pool
        self._pinned = pinned
        self._serving = serving
        self._areas: list[BatchArea] = []
        self._idle: list[BatchArea] = []

    @property
    def size(self) -> int:
        """Bytes of all areas."""
        return sum(area.area.size for area in self._areas)

    def take(self, user: BatchSlots) -> BatchArea:
        """Return an unused area; it is larger the more areas the user has. Raises `OutOfHostMemory`."""
        if self._idle:
            area = self._idle.pop()
        else:
            count = sum(area.user is user for area in self._areas)
            size = min(FIRST_AREA << count, LARGEST_AREA)
            area = BatchArea(self.pool, *self._pinned.make_area(size))
            self._areas.append(area)
        area.user = user
        return area

    def give_back(self, area: BatchArea) -> None:
        """Take back an area that no batch uses any more."""
        area.user = None
        self._idle.append(area)

    def trim(self) -> None:
        """Give unused areas back to the system. Their memory goes when the worker has released it."""
        while self._idle:
            area = self._idle.pop()
            self._areas.remove(area)
            generation = self._serving()
            if generation is not None and generation.loss is None:
                area.area.unregister(generation)
            _close_in_thread(area)

    def close_in_thread(self) -> None:
        """Release the memory of all areas in a thread; the worker, which is gone, is not told."""
        for area in self._areas:
            _close_in_thread(area)
        self._areas.clear()
        self._idle.clear()

    def close(self) -> None:
        """Close every descriptor, and release the memory."""
        for area in self._areas:
            _close(area)
        self._areas.clear()
        self._idle.clear()


def _close_in_thread(area: BatchArea) -> None:
    area.closed = True
    del area.bytes, area.map, area.view
    area.area.close_in_thread()


def _close(area: BatchArea) -> None:
    area.closed = True
    area.area.close()
    del area.bytes, area.map, area.view  # the map goes with its last view


class BatchSlots:
    """The slots of one batch."""

    def __init__(self, areas: BatchAreas) -> None:
        self._areas = areas
        self._current: BatchArea | None = None
        self._held = 0

    def check(self, size: int) -> None:
        """Raise `InvalidArgument` for a call that needs more bytes of slots than a batch can ever have."""
        if size > BATCH_BYTES:
            raise InvalidArgument(
                f"the call copies {size:,} bytes between host and device; a batch takes {BATCH_BYTES:,} at most",
                advice="await the call outside of the batch, split it, or use pinned memory.",
            )

    def acquire(self, size: int) -> Slot:
        """Return a slot of at least `size` bytes, at most `FIRST_AREA`.

        Raises `trio.WouldBlock` when the batch holds too much, `OutOfHostMemory` when the system has no more.
        """
        slot = self._areas.pool.acquire_for_batch(size)
        if slot is not None:
            return slot
        if self._held + size > BATCH_BYTES:
            raise trio.WouldBlock(
                f"copies and answers of {self._held:,} bytes are unfinished in this batch, and it takes {BATCH_BYTES:,}"
                f" at most: `await batch.flush()` makes room for these {size:,}"
            )
        slot = None if self._current is None else self._current.cut(size)
        if slot is None:
            self._current = self._areas.take(self)
            slot = known(self._current.cut(size), "the smallest area has room for the largest piece")
        self._held += size
        return slot

    def was_released(self, area: BatchArea, size: int) -> None:
        """Note that a slot of this size, in an area of this batch, is free again."""
        self._held -= size
        if not area.live and area is not self._current:
            self._areas.give_back(area)

    def close(self) -> None:
        """End the batch. Slots that it still holds come back later by themselves."""
        current, self._current = self._current, None
        if current is not None and not current.live:
            self._areas.give_back(current)
