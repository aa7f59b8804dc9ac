"""The loop of one library actor: take a request, check, publish, go on to the next.

The actor does not wait for the GPU. What it has published belongs to the timeline, which settles it; so an actor that
crashes takes down one request, the one that it is handling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import outcome
import trio

from .._supervision.mailbox import Mailbox, Request
from .._supervision.states import RequestState
from .._values.errors import ActorCrashed, RequestError
from .loss import BEING_REBUILT

if TYPE_CHECKING:
    from .generation import Generation


class _Defect(Request):
    """Makes an actor crash with an error that occurred in a caller's task, so that its supervision handles it."""

    __slots__ = ("_bug",)

    def __init__(self, bug: Exception, operation: str) -> None:
        super().__init__(operation, lane=None)
        self._bug = bug

    def start(self, generation: Generation) -> None:
        """Crash."""
        self.settle(outcome.Value(None))
        raise self._bug


class Actor:
    """One library's actor. Its mailbox and its current request outlive the generations it works in."""

    def __init__(self, name: str, mailbox: Mailbox) -> None:
        self.name = name
        self.mailbox = mailbox
        self.scope: trio.CancelScope | None = None
        """The cancel scope of its present run."""
        self.current: Request | None = None
        """The request that it is handling."""

    def __repr__(self) -> str:
        return f"<Actor {self.name} with {self.current!r}>"

    @trio.lowlevel.enable_ki_protection
    async def run(self, generation: Generation) -> None:
        """Serve the mailbox in `generation` until cancelled, or until the mailbox is closed and empty.

        A taken request is in `_current` at every checkpoint, so no cancellation loses it: if the generation ends
        before it was begun, the next one begins with it. An `Exception` of this library's own code is raised again,
        after the request was settled with `ActorCrashed`.
        """
        if self.mailbox.closed:
            return
        with self.mailbox.receiver() as receiver:
            while True:
                if self.current is None:
                    try:
                        self.current = await receiver.receive()
                        self.mailbox.taken += 1
                    except trio.EndOfChannel:
                        return
                # Not in a variable of this loop: an idle actor would keep the last request's arrays alive.
                await self._serve(self.current, generation)

    async def _serve(self, request: Request, generation: Generation) -> None:
        if request.state is RequestState.QUEUED:
            await generation.admission.admit(request)
        # Otherwise it was cancelled or settled while it waited, and never runs.
        if request.state is RequestState.QUEUED:
            self._begin(request, generation)
        self.current = None

    def _begin(self, request: Request, generation: Generation) -> None:
        try:
            request.start(generation)
        except RequestError as refused:
            request.settle(outcome.Error(refused))
        except Exception as bug:
            self.current = None
            if request.open:
                request.settle(outcome.Error(self._crash(bug, request, generation)))
            raise

    def _crash(self, bug: Exception, request: Request, generation: Generation) -> ActorCrashed:
        crash = ActorCrashed(
            f"the {self.name} actor crashed on this request: {bug!r}",
            actor=self.name,
            device=generation.device,
            generation=generation.number,
            operation=request.operation,
        )
        crash.__cause__ = bug
        return crash

    def would_begin(self, request: Request, generation: Generation) -> bool:
        """Whether `request` would be begun next if it were posted now: then its caller may begin it itself."""
        mailbox = self.mailbox
        return self.current is None and mailbox.posted == mailbox.taken and generation.admission.takes(request)

    @trio.lowlevel.enable_ki_protection
    def begin_nowait(self, request: Request, generation: Generation | None) -> None:
        """Begin a request in the caller's task, past the queue, so that it is in order with what the caller does next.

        Other actors have their own queues: a request that waits in this actor's queue could be overtaken there. Raises
        `trio.WouldBlock` when the generation takes nothing now, and the error that refuses the request.
        """
        if generation is None:
            raise trio.WouldBlock(BEING_REBUILT)
        if not generation.admission.takes(request):
            raise generation.admission.refusal(request)
        self.begin(request, generation)

    @trio.lowlevel.enable_ki_protection
    def begin(self, request: Request, generation: Generation) -> None:
        """Begin a request that the generation takes, as the caller has checked. Raises the error that refuses it."""
        self.mailbox.accept(request)
        try:
            request.start(generation)
        except RequestError as refused:
            request.refuse(refused)
            raise
        except Exception as bug:
            crash = self._crash(bug, request, generation)
            if request.open:
                request.settle(outcome.Error(crash))
            self.mailbox.post_defect(_Defect(bug, request.operation))
            raise crash from bug

    def close(self, make_error: outcome.Error) -> None:
        """Settle the current request, if it was not begun, when no generation will come any more."""
        request, self.current = self.current, None
        if request is not None and request.open:
            request.settle(make_error)
