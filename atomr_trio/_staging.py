"""The staging area: pinned host memory that copies pass through, shared by this process, the worker and the GPU.

The caller's own memory is touched by our memcpy alone, never by DMA, so a caller may be cancelled at any moment. The
area outlives the workers; each of them registers it anew.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import trio

from ._errors import DeviceClosed
from ._util import known
from .worker.channel import SharedMemory

SMALL_SLOT = 64 * 1024
LARGE_SLOT = 4 * 1024 * 1024
SMALL_SLOTS = 64
LARGE_SLOTS = 16
STAGING_BYTES = SMALL_SLOTS * SMALL_SLOT + LARGE_SLOTS * LARGE_SLOT


def _kind(size: int) -> int:
    """The size of the slots that take `size` bytes."""
    return SMALL_SLOT if size <= SMALL_SLOT else LARGE_SLOT


class Slot:
    """A piece of the staging area, held until `release`."""

    __slots__ = ("_pool", "offset", "size")

    def __init__(self, pool: StagingPool, offset: int, size: int) -> None:
        self._pool = pool
        self.offset: int = offset
        self.size: int = size

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The memory of the slot. A view keeps the whole area mapped, so take one for the moment of a copy only."""
        if self._pool.closed:
            raise DeviceClosed("the device was closed before the copy had taken its bytes")
        return self._pool.bytes[self.offset : self.offset + self.size]

    def release(self) -> None:
        """Give the slot to whoever waits for one."""
        self._pool.put_back(self)


class _Waiter:
    """Someone who waits for a slot, and the slot once it has come."""

    __slots__ = ("arrived", "slot")

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.slot: Slot | None = None


class StagingPool:
    """Slots of two sizes, handed out in turn: while somebody waits for one, none of its size is free."""

    def __init__(self) -> None:
        self.memory: SharedMemory = SharedMemory.create("atomr-trio-staging", STAGING_BYTES)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self.memory.map, np.uint8)
        boundary = SMALL_SLOTS * SMALL_SLOT
        self._free: dict[int, collections.deque[Slot]] = {
            SMALL_SLOT: collections.deque(Slot(self, at, SMALL_SLOT) for at in range(0, boundary, SMALL_SLOT)),
            LARGE_SLOT: collections.deque(
                Slot(self, at, LARGE_SLOT) for at in range(boundary, STAGING_BYTES, LARGE_SLOT)
            ),
        }
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
            raise trio.WouldBlock
        return free.popleft()

    async def acquire(self, size: int) -> Slot:
        """The same, waiting for a slot if none is free, in turn."""
        if self.has_free(size):
            return self.acquire_nowait(size)
        waiters, waiter = self._waiters[_kind(size)], _Waiter()
        waiters.append(waiter)
        try:
            await waiter.arrived.wait()
        except BaseException:
            waiters.remove(waiter)  # who was given a slot is not interrupted any more
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
        if self._held_back is not None:
            self._held_back.append(slot)
            return
        if not self._waiters[slot.size]:
            self._free[slot.size].append(slot)
            return
        waiter = self._waiters[slot.size].popleft()
        waiter.slot = slot
        waiter.arrived.set()

    @property
    def idle(self) -> bool:
        """Whether no slot is held."""
        return len(self._free[SMALL_SLOT]) == SMALL_SLOTS and len(self._free[LARGE_SLOT]) == LARGE_SLOTS

    def close(self) -> None:
        """Unmap the area."""
        for slots in self._free.values():
            slots.clear()
        self.closed = True
        del self.bytes
        # A cancelled caller's copy may still look at its slot: then the map goes with the last of its views.
        with contextlib.suppress(BufferError):
            self.memory.close()
