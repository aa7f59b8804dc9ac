"""A copy under way, driven by its caller's task: a command and a memcpy for each piece.

The task is woken whenever a command or a memcpy is done with a slot. It holds no slot while it waits for one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import trio

from .._arrays.layout import Piece
from .._values.events import CopyProgress
from .._values.util import known
from .copy_plan import THREAD_BYTES, CopyRequest, _drop_all, _Plan
from .staging import Slot
from .transfers import Transfers

if TYPE_CHECKING:
    from .._generation.core import DeviceCore
    from .crew import Crew


PROGRESS_AFTER = 1.0

PROGRESS_EVERY = 0.5
"""Seconds of real time between two reports of progress."""


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
    tells = True

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
