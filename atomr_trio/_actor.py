"""The loop of one library actor: take a request, check, publish, go on to the next.

The actor does not wait for the GPU. What it has published belongs to the timeline, which settles it; so an actor that
crashes takes down one request, the one in its hands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import outcome
import trio

from ._errors import ActorCrashed, RequestError
from ._mailbox import Mailbox, Request, RequestState

if TYPE_CHECKING:
    from ._generation import Generation


class Actor:
    """One library's actor. Its mailbox and the request in its hands outlive the generations it works in."""

    def __init__(self, name: str, mailbox: Mailbox) -> None:
        self.name = name
        self.mailbox = mailbox
        self.scope: trio.CancelScope | None = None
        """The cancel scope of its present life."""
        self._current: Request | None = None

    def __repr__(self) -> str:
        return f"<Actor {self.name} with {self._current!r}>"

    @trio.lowlevel.enable_ki_protection
    async def run(self, generation: Generation) -> None:
        """Serve the mailbox in `generation` until cancelled, or until the mailbox is closed and empty.

        A taken request is in `_current` at every checkpoint, so no cancellation loses it: if the generation ends
        before it was begun, the next one begins with it. Raises what an `Exception` in our own code raised, after
        settling the request with `ActorCrashed`.
        """
        if self.mailbox.closed:
            return
        with self.mailbox.receiver() as receiver:
            while True:
                if self._current is None:
                    try:
                        self._current = await receiver.receive()
                    except trio.EndOfChannel:
                        return
                request = self._current
                if request.state is RequestState.QUEUED:
                    await generation.admit(request.lane)
                if request.state is not RequestState.QUEUED:
                    self._current = None  # cancelled or settled while it waited: it never runs
                    continue
                self._begin(request, generation)
                self._current = None

    def _begin(self, request: Request, generation: Generation) -> None:
        try:
            request.start(generation)
        except RequestError as refused:
            request.settle(outcome.Error(refused))
        except Exception as bug:
            self._current = None
            if request.open:
                crash = ActorCrashed(
                    f"the {self.name} actor crashed on this request: {bug!r}",
                    actor=self.name,
                    device=generation.device,
                    generation=generation.number,
                    operation=request.operation,
                )
                crash.__cause__ = bug
                request.settle(outcome.Error(crash))
            raise

    def close(self, make_error: outcome.Error) -> None:
        """Settle the request in hand, if it was not begun, when no generation will come any more."""
        request, self._current = self._current, None
        if request is not None and request.open:
            request.settle(make_error)
