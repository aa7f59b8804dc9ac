"""Copies of some megabytes that go the short way with helpers, and the choice of the way for each copy.

The caller's task begins at once, and helpers join it: each takes the next piece that has a slot. Only the task sends
commands, gets slots and gives them back, and it never waits for a helper that could be late: it copies a piece itself
as long as there is one.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import trio

from .._arrays.arrays import Storage
from .._generation.core import DeviceCore, DevicePart
from .._wire.records.memory import AREA_SHIFT
from .copy_plan import PINNED_PIECE, _Way
from .crew import give_way
from .short_copies import (
    ALONE_BYTES,
    SHORT_BYTES,
    SHORT_PIECE,
    SIGN_EVERY,
    TURN_BYTES,
    CopyPath,
    ShortCopy,
    bytes_of,
)
from .staging import MEDIUM_SLOT, Slot
from .transfers import Transfers

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .crew import Crew

SHARED_PIECE = MEDIUM_SLOT
"""Bytes of a piece. Threads hinder each other when each asks for the interpreter's lock too often."""

SHARED_WINDOW = 16
"""The most pieces that have slots at a time."""

BYTES_OF_A_HELPER = 2 << 20
"""One helper is called for so many bytes."""

SHARED_HELPERS = 3
"""The most helpers of one copy."""

HELPER_SPINS = 200e-6
"""Seconds that a helper waits for a piece before it ends."""


class _Part(NamedTuple):
    """A piece, and its slot."""

    begin: int
    size: int
    slot: Slot


class _Sharing:
    """The pieces that the caller's task and helpers copy. Any thread changes the lists, by single steps."""

    def __init__(self, crew: Crew, memory: npt.NDArray[np.uint8], *, incoming: bool) -> None:
        self.todo: collections.deque[_Part] = collections.deque()
        """The pieces that can be copied."""
        self.done: collections.deque[_Part] = collections.deque()
        """Those that were copied."""
        self.closed: bool = False
        """True if no helper may begin another piece."""
        self.error: BaseException | None = None
        """The error of a helper's memcpy."""
        self.helpers: int = 0
        """The number of helpers that are not known to have ended; used in trio's thread."""
        self.crew: Crew = crew
        self._memory = memory
        self._incoming = incoming
        self._bell: trio.Event | None = None
        self._views: dict[Slot, npt.NDArray[np.uint8]] = {}
        self._offered = 0
        self._received = 0

    @property
    def with_slots(self) -> int:
        """The number of pieces that were offered and not received."""
        return self._offered - self._received

    def receive(self) -> _Part:
        """Take a piece that was copied; its slot is the caller's from now on."""
        part = self.done.popleft()
        self._received += 1
        return part

    def call(self, count: int) -> None:
        """Call so many helpers; fewer if the system has no thread left."""
        for _ in range(count):
            try:
                self.crew.submit(_Help(self))
            except RuntimeError:
                return
            self.helpers += 1

    def offer(self, part: _Part) -> None:
        """Offer a piece."""
        self._views[part.slot] = part.slot.bytes  # taken here: the device may be closed while a helper copies
        self._offered += 1
        self.todo.append(part)

    def copy_next(self) -> int:
        """Copy the next piece, in any thread, and return its size; 0 if there is none."""
        try:
            part = self.todo.popleft()
        except IndexError:
            return 0
        try:
            here, there = self._memory[part.begin : part.begin + part.size], self._views[part.slot][: part.size]
            if self._incoming:
                np.copyto(there, here)
            else:
                np.copyto(here, there)
        except BaseException:
            self.todo.append(part)  # its slot must be released
            raise
        self.done.append(part)
        return part.size

    def close(self) -> None:
        """End the work: helpers begin no more pieces. Slots that are here are released when no helper works."""
        self.closed = True
        if not self.helpers:
            self._release()

    async def still(self) -> None:
        """Wait until no helper touches the caller's memory any more: for one piece of a memcpy at most."""
        with trio.CancelScope(shield=True):
            while self.helpers:
                self._bell = trio.Event()
                await self._bell.wait()

    def helper_left(self) -> None:
        """Note that a helper has ended."""
        self.helpers -= 1
        if self.helpers:
            return
        if self.closed:
            self._release()
        if self._bell is not None:
            self._bell.set()

    def _release(self) -> None:
        self._views.clear()  # they keep the staging area mapped
        for parts in (self.todo, self.done):
            while parts:
                parts.popleft().slot.release()


class _Help:
    """The work of one helper: pieces, until there have been none for a while."""

    __slots__ = ("_sharing",)

    def __init__(self, sharing: _Sharing) -> None:
        self._sharing = sharing

    def run(self) -> None:
        """Copy pieces, in the helper's thread."""
        sharing = self._sharing
        until = time.perf_counter() + HELPER_SPINS
        try:
            while not sharing.closed:
                if sharing.copy_next():
                    until = time.perf_counter() + HELPER_SPINS
                elif time.perf_counter() > until or sharing.crew.crowded:
                    return
                else:
                    give_way()
        except BaseException as error:
            sharing.error = error

    def ended(self) -> None:
        """Note the end."""
        self._sharing.helper_left()


class SharedCopy(ShortCopy):
    """A copy that helpers share with the caller's task. Its pieces are sent in any order."""

    __slots__ = ("_next",)

    @property
    def _taken(self) -> int:
        """All or nothing: what was sent is not a beginning."""
        return self._moved if self._moved == self._host.nbytes else 0

    def _call_helpers(self, sharing: _Sharing) -> None:
        sharing.call(min(SHARED_HELPERS, sharing.crew.size, self._host.nbytes // BYTES_OF_A_HELPER))

    async def _copy_in(self) -> None:
        size = self._host.nbytes
        sharing = _Sharing(self._transfers.crew, bytes_of(self._host), incoming=True)
        self._next = held = 0
        try:
            self._offer_free_slots(sharing)
            self._call_helpers(sharing)
            while self._moved < size:
                self._offer_free_slots(sharing)
                copied = sharing.copy_next()
                if not self._send_copied(sharing) or not (copied or self._waits_for_something(sharing)):
                    break
                held += copied
                if not copied or held >= TURN_BYTES:
                    held = 0
                    await self._turn(sharing)
        finally:
            sharing.close()
        await self._all_ended()

    def _offer_free_slots(self, sharing: _Sharing) -> None:
        """Give the next pieces slots, a few more than there are threads to copy them."""
        staging, size = self._transfers.staging, self._host.nbytes
        ahead = min(2 + sharing.helpers, SHARED_WINDOW - sharing.with_slots - len(self._slots))
        while self._next < size and len(sharing.todo) < ahead and staging.has_free(SHARED_PIECE):
            length = min(SHARED_PIECE, size - self._next)
            sharing.offer(_Part(self._next, length, staging.acquire_nowait(SHARED_PIECE)))
            self._next += length

    def _send_copied(self, sharing: _Sharing) -> bool:
        """Send what was copied; false if it cannot go this way."""
        while sharing.done:
            if not self._path.takes(self._block):
                return False
            part = sharing.receive()
            self._slots.append(part.slot)
            last = self._moved + part.size == self._host.nbytes
            shares = not last and bool((self._begun + 1) % SIGN_EVERY)
            self._send(part.begin, part.slot.place, part.size, shares=shares)
        return True

    async def _copy_out(self) -> None:
        left = self._host.nbytes
        sharing = _Sharing(self._transfers.crew, bytes_of(self._host), incoming=False)
        held = offered = 0
        try:
            self._send_for_free_slots(sharing)
            self._call_helpers(sharing)
            while left:
                self._send_for_free_slots(sharing)
                while offered < self._ended and self._error is None:
                    begin = offered * SHARED_PIECE
                    part = _Part(begin, min(SHARED_PIECE, self._host.nbytes - begin), self._slots[0])
                    sharing.offer(part)
                    self._slots.popleft()
                    offered += 1
                copied = sharing.copy_next()
                while sharing.done:
                    part = sharing.receive()
                    part.slot.release()
                    left -= part.size
                if not (copied or self._waits_for_something(sharing)):
                    break
                held += copied
                if left and (not copied or held >= TURN_BYTES):
                    held = 0
                    await self._turn(sharing)
        finally:
            sharing.close()
            await sharing.still()
        if left:
            self._moved = 0

    def _send_for_free_slots(self, sharing: _Sharing) -> None:
        """Let the GPU fill some more slots."""
        staging, size = self._transfers.staging, self._host.nbytes
        for _ in range(2 + sharing.helpers):
            if (
                self._moved == size
                or len(self._slots) + sharing.with_slots >= SHARED_WINDOW
                or not staging.has_free(SHARED_PIECE)
                or not self._path.takes(self._block)
            ):
                return
            slot = staging.acquire_nowait(SHARED_PIECE)
            self._slots.append(slot)
            self._send(self._moved, slot.place, min(SHARED_PIECE, size - self._moved), shares=False)

    def _waits_for_something(self, sharing: _Sharing) -> bool:
        """Return whether a piece is under way: with a helper, or with the GPU."""
        return sharing.with_slots > 0 or self._begun > self._ended or self._error is not None

    async def _turn(self, sharing: _Sharing) -> None:
        """Let other tasks run, and wait for the GPU if nobody has anything to copy.

        Raises the error of a command, or of a helper.
        """
        if sharing.error is not None:
            raise sharing.error
        if sharing.with_slots or self._begun == self._ended:
            await trio.lowlevel.checkpoint()
            if self._looks:
                self._path.settler.settle_finished()
            await self._until(0)
        else:
            await self._until(self._ended + 1)


class ShortCopies(DevicePart):
    """The short way of a device's awaited copies."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._paths: dict[int, CopyPath] = {}
        self._transfers = device.part(Transfers)

    def begin(self, array: DeviceArray, host: npt.NDArray[Any], way: _Way) -> ShortCopy | None:
        """Return a copy between two checked arrays, to be run without a checkpoint before; None for the general way.

        The short way is allowed only if it would be the actor's next request.
        """
        path = self._paths.get(way.lane)
        size = host.nbytes
        if path is None or array._plain is None or not size or type(array._storage) is not Storage:
            return None
        if not host.flags.c_contiguous:
            return None
        actor = self.device.memory_actor
        mailbox = actor.mailbox
        if mailbox.posted != mailbox.taken or actor.current is not None or not path.takes(array._block):
            return None
        transfers = self._transfers
        found = transfers.pinned.find(host)
        if found is not None:
            if size > PINNED_PIECE or not found[0].is_known(path.generation, way.lane):
                return None
            return ShortCopy(path, mailbox, transfers, array, host, found[0].number << AREA_SHIFT | found[1])
        kind, piece = (ShortCopy, SHORT_PIECE) if size <= ALONE_BYTES else (SharedCopy, SHARED_PIECE)
        if size > SHORT_BYTES or not transfers.staging.has_free(min(size, piece)):
            return None
        return kind(path, mailbox, transfers, array, host, None)

    def learn(self, way: _Way) -> None:
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
