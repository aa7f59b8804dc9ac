"""One blocking call, from the thread that makes it to its end in the run."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import outcome
import trio

if TYPE_CHECKING:
    from ._loop import Loop

Ask = Callable[..., Awaitable[Any]]
"""Has the caller's thread call a function; see `Call.ask`."""


class Call:
    """One call. It is settled exactly once: by its task, by its cancellation before that, or by the run's end."""

    __slots__ = ("_arguments", "_context", "_function", "_keywords", "_loop", "_tell", "outcome", "scope")

    def __init__(
        self,
        loop: Loop,
        function: Callable[..., Awaitable[Any]],
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        tell: Callable[[Callable[[], None] | None], object],
    ) -> None:
        """Prepare it. `tell` is called in the run's thread: with a job for the caller, and with None at the end."""
        self._loop = loop
        self._function = function
        self._arguments = arguments
        self._keywords = keywords
        self._tell = tell
        self._context = contextvars.copy_context()
        self.scope: trio.CancelScope | None = None
        """The scope that it runs in; None before it has begun."""
        self.outcome: outcome.Outcome[Any] | None = None
        """How it ended; None as long as it has not."""

    def begin(self) -> None:
        """Start its task. Called in the run's thread, or with the turn."""
        if self.outcome is None:
            try:
                trio.lowlevel.spawn_system_task(self._run, context=self._context)
            except RuntimeError:  # the run is about to end
                self.settle_over()
            else:
                self.scope = trio.CancelScope()

    def cancel(self) -> None:
        """Cancel it, or settle it if it has not begun. Called in the run's thread."""
        if self.scope is not None:
            self.scope.cancel(reason="the thread that waits was interrupted")
        else:
            self.settle_interrupted()

    def settle(self, end: outcome.Outcome[Any]) -> None:
        """End it. Only the first end counts."""
        if self.outcome is None:
            self.outcome = end
            self._loop.calls.discard(self)
            self._tell(None)

    def settle_over(self) -> None:
        """End it by the error of the device's end."""
        self.settle(outcome.Error(self._loop.error()))

    def settle_interrupted(self) -> None:
        """End it because its thread was interrupted. It has no effect if it has ended otherwise."""
        self.settle(outcome.Error(KeyboardInterrupt()))

    async def _run(self) -> None:
        assert self.scope is not None  # it has begun
        try:
            with self.scope:
                await self.go_on(self._function, *self._arguments, **self._keywords)
        except trio.Cancelled:  # of the run: the device has ended
            self.settle_over()
            raise
        self.settle_interrupted()

    async def go_on(self, function: Callable[..., Awaitable[Any]], *arguments: Any, **keywords: Any) -> None:
        """Await a function, and settle with its end. A cancellation passes."""
        end = await outcome.acapture(function, *arguments, **keywords)
        if isinstance(end, outcome.Error) and isinstance(end.error, trio.Cancelled):
            caught = end.error
            del end  # or the traceback would hold itself
            raise caught
        self.settle(end)

    async def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Have the caller's thread call a function, and return what it returns. Awaited by the task of this call."""
        answered = trio.Event()
        answers: list[outcome.Outcome[Any]] = []

        def job() -> None:
            answers.append(outcome.capture(function, *arguments))
            self._loop.post(answered.set)

        self._tell(job)
        await answered.wait()
        return answers[0].unwrap()
