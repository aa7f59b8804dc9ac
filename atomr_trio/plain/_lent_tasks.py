"""Tasks that a run lends to other threads, so that a verb that waits can begin, and mostly end, where it was called.

To hand a call to the run's thread and to be told of its end takes two changes of threads, and those take longer than
most commands. But whatever a task does between two checkpoints may be done by any thread that has the turn
(``_turn.py``), and most verbs look for the end of their command for a while before they wait for it. So the thread of
the caller runs the verb's coroutine itself, step by step, as trio would.

trio knows a coroutine by its task: that is who is woken, and whose scopes are cancelled. So the run has tasks that only
sleep. While a thread runs a coroutine in the name of one, that task is as one that runs: it has no abort function. When
the coroutine waits, its trap is applied to the task as trio's loop does it: it sleeps on, with the abort function of
the coroutine instead of its own. Whoever wakes or cancels it then, its own coroutine returns in the run, and goes on
with the other one to its end. At a checkpoint the thread goes on at once, unless somebody else wants the turn; then the
task is scheduled, and goes on with the coroutine in the same way.

The names of trio that this needs are not public. Where a version lacks one of them, calls are handed to the run.
"""

from __future__ import annotations

import contextvars
import importlib
import types
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from typing import Any, Final, TypeVar

import outcome
import trio

from .._values.util import known
from ._call import Call
from ._turn import CONTEXT

T = TypeVar("T")

_TRAPS: Any
try:
    _TRAPS = importlib.import_module("trio._core._traps")
except ImportError:  # pragma: no cover - a trio of the future
    _TRAPS = None
_CHECKPOINT: Final[Any] = getattr(_TRAPS, "CancelShieldedCheckpoint", None)
_SLEEP: Final[Any] = getattr(_TRAPS, "WaitTaskRescheduled", None)

LONGEST: Final = 0.001
"""The seconds after which a thread leaves a coroutine to the run at its next checkpoint."""

MOST: Final = 16
"""The most lent tasks of one run. Where all are in use, calls are handed to the run."""


def _knows_trio(task: trio.lowlevel.Task) -> bool:
    return (
        isinstance(_CHECKPOINT, type)
        and isinstance(_SLEEP, type)
        and all(hasattr(task, name) for name in ("_abort_func", "_attempt_delivery_of_any_pending_cancel"))
    )


class LentTask:
    """One of them."""

    __slots__ = ("_call", "_context", "_coroutine", "_free", "_scope", "_task")

    def __init__(self, free: list[LentTask]) -> None:
        """`free` has those that no call uses."""
        self._free = free
        self._task: Any = None
        self._scope: trio.CancelScope | None = None
        self._call: Call | None = None
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._context: contextvars.Context | None = None

    # --- in the thread of a caller, which has the turn ----------------------------------------------------------------

    def attempt(
        self, coroutine: Coroutine[Any, Any, T], is_wanted: Callable[[], bool], make: Callable[[], Call]
    ) -> T | Call:
        """Run a coroutine, and return its result. If it has to wait, return the call that it goes on as.

        `is_wanted` tells whether anybody else wants the turn; `make` makes the call.
        """
        task = self._task
        message: outcome.Value[None] | None = None
        task._abort_func = None
        context = CONTEXT.__dict__
        context["task"] = task
        until = perf_counter() + LONGEST
        try:
            while True:
                trap = coroutine.send(message)
                if trap is not _CHECKPOINT or is_wanted() or perf_counter() > until:
                    break
                message = outcome.Value(None)
        except BaseException as end:
            task._abort_func = self._ends
            self._free.append(self)
            task._attempt_delivery_of_any_pending_cancel()
            if type(end) is StopIteration:
                value: T = end.value
                return value
            raise
        finally:
            del context["task"]
        self._coroutine, self._context = coroutine, contextvars.copy_context()
        self._call = call = make()
        call.scope = self._scope
        if type(trap) is _SLEEP:
            task._abort_func = trap.abort_func
            task._attempt_delivery_of_any_pending_cancel()
        else:
            trio.lowlevel.reschedule(task)
        return call

    # --- in the run ---------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Be free, and go on with what callers could not end, again and again."""
        self._task = trio.lowlevel.current_task()
        if not _knows_trio(self._task):
            return
        call: Call | None = None
        try:
            while True:
                with trio.CancelScope() as self._scope:
                    self._free.append(self)
                    woken = await outcome.acapture(trio.lowlevel.wait_task_rescheduled, self._ends)
                    call = self._call
                    if call is None:  # the run ends
                        woken.unwrap()
                    else:
                        coroutine, context = known(self._coroutine, "it was left"), known(self._context, "it was left")
                        self._coroutine = self._context = None
                        await call.go_on(_rest, coroutine, context, woken)
                if call is not None:
                    call.settle_interrupted()
                self._call = call = woken = None
        except trio.Cancelled:  # of the run: the device has ended
            if call is not None:
                call.settle_over()
            raise

    def _ends(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        """Called when it is cancelled while no call uses it."""
        self._free.remove(self)
        return trio.lowlevel.Abort.SUCCEEDED


@types.coroutine
def _rest(
    coroutine: Coroutine[Any, Any, T], context: contextvars.Context, message: outcome.Outcome[Any]
) -> Generator[Any, Any, T]:
    """Go on with a coroutine that waits for a message, in its context, as trio's loop does with that of a task."""
    while True:
        try:
            trap = context.run(coroutine.send, message)
        except StopIteration as end:
            value: T = end.value
            return value
        message = yield trap
