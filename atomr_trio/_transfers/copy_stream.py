"""Streams: many pieces of a copy in one command.

The pieces pass through a few slots in turn. Helpers and the GPU hand a slot to each other by two words of shared
memory, without the event loop; see `_Stream`.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import trio

from .._arrays.layout import Piece
from .._generation.requests import CommandRequest
from .._generation.timeline import Command
from .._values.errors import DeviceError
from .._values.shortage import host_limits
from .._wire.protocol import CELL
from .copy_flow import _Flow
from .copy_plan import TO_DEVICE, TO_HOST, _Plan
from .pile import SPIN_SECONDS, give_way
from .staging import Slot
from .transfers import transfers_of

if TYPE_CHECKING:
    from .crew import Crew


STREAM_PIECES = 64
"""The most pieces of one stream. Other copies run between two streams."""

STREAM_SLOTS = 16
"""The most slots of a stream: one for each helper, and as many for the GPU. With 11 of them an H200 took 1.5 times as
long."""

FIRST_NAP, LONGEST_NAP = 50e-6, 1e-3
"""Seconds that it sleeps, at first and after a while without work."""


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

    def __init__(self, flow: _StreamFlow, plan: _Plan, pieces: Sequence[Piece], slots: list[Slot]) -> None:
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
        self._copy = plan.load if plan.way is TO_DEVICE else plan.store
        self._behind = len(slots) if plan.way is TO_DEVICE else 0
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
    tells = True

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
                give_way()
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
            if self._plan.way is TO_HOST:
                self._leaving.append(request.stream)
        self._streaming.clear()
        return begun

    async def still(self) -> None:
        with trio.CancelScope(shield=True):
            while any(stream.helpers for stream in self._leaving):
                await self._rung()
        self._leaving.clear()

    async def _begin_stream(self, pieces: Sequence[Piece]) -> None:
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
