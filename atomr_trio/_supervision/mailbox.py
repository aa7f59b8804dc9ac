"""Requests, and the mailboxes they wait in.

A request is accepted when its mailbox took it, and every accepted request is settled exactly once: with a value, with
one plain exception, or, when its caller was cancelled, in silence. ``states.py`` has its states.

The caller gets `Cancelled` at once in both cases, so a kernel that never ends blocks no task. The memory channel
belongs to the supervisor: an actor only gets a clone of the receiving end for each of its runs, because closing the
last receiver of a channel silently drops the queued requests.

Only this file and ``_calls/launching.py`` call ``reschedule``: one sleep, one wake-up, kept in one class each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import outcome
import trio

from .._memory.arena import Block
from .._values.errors import ActorCrashed, ContextLost, DeviceError
from .._values.statistics import OUTCOMES, ActorStatistics, Outcome
from .._wire.protocol import LANE_COMPUTE, Role
from .states import FIRST, OPEN, RequestState


class Request:
    """One question to an actor and its one answer. Subclasses define in `start` what the actor does with it."""

    __slots__ = ("_mailbox", "_outcome", "_task", "lane", "operation", "state")

    def __init__(self, operation: str, lane: int | None = LANE_COMPUTE) -> None:
        self.operation: str = operation
        self.lane: int | None = lane
        """The lane that must have room before it begins; None if it sends no command."""
        self.state: RequestState = FIRST
        self._mailbox: Mailbox | None = None
        self._outcome: outcome.Outcome[Any] | None = None
        self._task: trio.lowlevel.Task | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.operation} {self.state.value}>"

    def start(self, generation: Any) -> None:
        """Check and publish the request; called by the actor, synchronously. Raises `RequestError` to refuse it."""
        raise NotImplementedError

    def blocks(self) -> Iterable[Block]:
        """Return the memory that it works on: it cannot begin while a lost worker may still touch any of it."""
        return ()

    def accesses(self) -> Sequence[tuple[Block, Role]]:
        """Return that memory, and how it is used."""
        return ()

    @property
    def open(self) -> bool:
        """True if it is not settled yet."""
        return self.state in OPEN

    @property
    def answered(self) -> bool:
        """True if there is an outcome that was not taken yet."""
        return self._outcome is not None

    @property
    def error(self) -> BaseException | None:
        """The error of an outcome that was not taken yet."""
        return self._outcome.error if isinstance(self._outcome, outcome.Error) else None

    @property
    def abandoned(self) -> bool:
        """True if no task waits for the outcome any more."""
        return self.state is RequestState.ABANDONED

    def settle(self, result: outcome.Outcome[Any]) -> None:
        """Give the answer. Settling twice is an internal error and raises."""
        if not self.open:
            raise RuntimeError(f"{self!r} was settled twice")
        heard = not self.abandoned
        self.state = RequestState.SETTLED
        if self._mailbox is not None:
            self._mailbox.count(_kind(result) if heard else "abandoned")
        self._outcome = result
        self.ended(delivered=heard and isinstance(result, outcome.Value))
        if self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)

    def finish(self) -> None:
        """Settle with nothing to tell. A task that does not sleep yet sees that by the state, and need not wait."""
        if self._task is not None or self._mailbox is not None or not self.open:
            self.settle(outcome.Value(None))
        else:
            heard = not self.abandoned
            self.state = RequestState.SETTLED
            self.ended(delivered=heard)

    def refuse(self, error: BaseException) -> None:
        """Settle with an error that the caller raises. The error is not kept: its traceback refers to the request."""
        self.settle(outcome.Error(error))
        self._outcome = None

    @trio.lowlevel.enable_ki_protection
    async def wait(self) -> Any:
        """Wait for the answer. Cancelling works at once, whatever the state of the request."""
        if self._outcome is None:
            if not self.open:
                raise RuntimeError(f"{self!r} will have no outcome any more")
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        answer, self._outcome = self._outcome, None
        if answer is None:
            raise AssertionError(f"{self!r} woke its caller without an outcome")
        return answer.unwrap()

    def _abort(self, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        self._task = None
        self.give_up()
        return trio.lowlevel.Abort.SUCCEEDED

    @trio.lowlevel.enable_ki_protection
    async def wait_answered(self) -> None:
        """Wait until there is an answer, and leave it there. Cancelling does nothing to the request."""
        if self._outcome is None:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)

    def _stop_waiting(self, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def give_up(self) -> None:
        """Abandon the answer: a queued request never runs, a started one goes on and its outcome is dropped."""
        if self.state is RequestState.QUEUED:
            self.state = RequestState.CANCELLED
            if self._mailbox is not None:
                self._mailbox.count("cancelled")
            self.ended(delivered=False)
        elif self.state is RequestState.STARTED:
            self.state = RequestState.ABANDONED

    def ended(self, *, delivered: bool) -> None:
        """Release the subclass's resources. Called once, when the request was settled or will never run.

        `delivered` says that there is a value, and a task to take it.
        """


def _kind(result: outcome.Outcome[Any]) -> Outcome:
    if not isinstance(result, outcome.Error):
        return "ok"
    return "lost" if isinstance(result.error, ContextLost | ActorCrashed) else "failed"


class Gate(Protocol):
    """A condition that a request waits for before it is queued, so that it blocks no request behind it."""

    def shut(self, request: Request) -> bool:
        """Return whether the request must wait."""

    async def wait(self, request: Request, check: Callable[[], None]) -> None:
        """Wait until it need not any more; `check` raises an error when it must not wait on."""


class Looker(Protocol):
    """Settles ended commands for a caller that polls for the end of its own request."""

    async def look_for(self, request: Request) -> None:
        """Poll, with checkpoints, until the request has its answer or polling is not worthwhile any more."""


class Shortcut(Protocol):
    """Lets a caller begin its request itself, when it would be the actor's next request."""

    def begin(self, request: Request) -> Looker | None:
        """Begin the request; return None if it has to wait for something. Raises the error that refuses it."""


class Mailbox:
    """A bounded memory channel of requests that outlives the actors that serve it, and its counters."""

    def __init__(self, name: str, capacity: int, gate: Gate | None = None) -> None:
        self.name = name
        self._gate = gate
        self._send, self._receive = trio.open_memory_channel[Request](capacity)
        self._accepted = 0
        self._settled: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)
        self._closed: Callable[[], DeviceError] | None = None
        self.restarts = 0
        self.shortcut: Shortcut | None = None
        self.posted: int = 0
        """The number of requests that were put into the channel, or are being put."""
        self.taken = 0
        """The number of those that an actor has taken out of it."""

    def __repr__(self) -> str:
        channel = self._send.statistics()
        state = "closed" if self._closed else "open"
        return f"<Mailbox {self.name} {state}, {channel.current_buffer_used} of {channel.max_buffer_size} queued>"

    @trio.lowlevel.enable_ki_protection
    async def ask(self, request: Request) -> Any:
        """Put the request into the mailbox, waiting for room, and wait for its answer.

        If nothing is before it, and it need not wait, it is begun at once in this task instead: that saves two turns of
        the scheduler. Raises the request's own error, or that of `close` when the mailbox is closed.
        """
        self._check_open()
        if self.shortcut is not None:
            await trio.lowlevel.checkpoint_if_cancelled()
            looker = self.shortcut.begin(request)
            if looker is not None:
                try:
                    await looker.look_for(request)
                except BaseException:
                    request.give_up()
                    raise
                return await request.wait()
        await self.post(request)
        return await request.wait()

    @trio.lowlevel.enable_ki_protection
    def post_nowait(self, request: Request) -> None:
        """Accept the request now or raise `trio.WouldBlock`; its answer may be waited for with `request.wait()`."""
        self._check_open()
        try:
            self._send.send_nowait(request)
        except trio.WouldBlock:
            capacity = self._send.statistics().max_buffer_size
            text = f"{capacity} requests wait for the {self.name} actor, which is the limit: use the awaited form"
            raise trio.WouldBlock(text) from None
        self.posted += 1
        request._mailbox = self
        self._accepted += 1

    @trio.lowlevel.enable_ki_protection
    async def post(self, request: Request) -> None:
        """Put the request into the mailbox, waiting for room; the caller waits for its answer itself."""
        self._check_open()
        gate = self._gate
        if gate is not None and gate.shut(request):
            await gate.wait(request, self._check_open)
        # It may be settled before `send` returns, and that counts. A request that was never accepted does not count.
        request._mailbox = self
        self.posted += 1
        try:
            await self._send.send(request)
        except BaseException:
            self.posted -= 1
            request._mailbox = None
            raise
        self._accepted += 1

    def post_defect(self, defect: Request) -> None:
        """Make the actor crash by this request, which is not counted. It is dropped if there is no room."""
        with contextlib.suppress(trio.WouldBlock):
            self._send.send_nowait(defect)
            self.posted += 1

    def accept(self, request: Request) -> None:
        """Count a request that its caller begins itself, past the queue."""
        self._check_open()
        request._mailbox = self
        self._accepted += 1

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._closed is not None

    def receiver(self) -> trio.MemoryReceiveChannel[Request]:
        """Return a receiving end for one run of an actor."""
        return self._receive.clone()

    def count(self, kind: Outcome) -> None:
        """Count the outcome of a request."""
        self._settled[kind] += 1

    def count_finished(self, number: int, kind: Outcome = "ok") -> None:
        """Count the outcomes of requests that a batch had begun past the queue."""
        self._accepted += number
        self._settled[kind] += number

    def close(self, error: Callable[[], DeviceError]) -> None:
        """Refuse everything from now on, and settle what is queued; `error` makes a fresh exception for each.

        It runs without a checkpoint: a sender that waited for room gets in when a request leaves, and is settled too.
        """
        if self._closed is not None:
            return
        self._closed = error
        while True:
            try:
                request = self._receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                break
            if request.open:
                request.settle(outcome.Error(error()))
        self._send.close()
        self._receive.close()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed()

    @property
    def queued(self) -> int:
        """The number of requests that wait."""
        return self._send.statistics().current_buffer_used

    def statistics(self, under_way: int = 0) -> ActorStatistics:
        """Return the present counts. `under_way` requests more were accepted, which are counted only when they end."""
        channel = self._send.statistics()
        return ActorStatistics(
            name=self.name,
            queued=channel.current_buffer_used,
            peak_queued=channel.peak_buffer_used,
            accepted=self._accepted + under_way,
            settled=self._settled,
            restarts=self.restarts,
        )
