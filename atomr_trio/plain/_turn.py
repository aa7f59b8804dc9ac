"""The turn: the right to change the state of a device, which one thread has at a time.

All state of a device is plain data that is changed between two checkpoints of one trio run. That run's thread has the
turn whenever it runs tasks, and gives it up while it waits for input and output. A verb that only enqueues is one step
without a checkpoint, so any thread that has the turn may make it: a batched launch costs a lock, and no crossing. It is
as for a guest run, where callbacks of the host call verbs between two turns of trio.

What wakes tasks needs to find the run: trio keeps it in a thread-local variable, which is set here for the length of a
verb. It is not a public one. Where a version of trio does not have it, `Turn.is_taken` is false, and all verbs cross to
the run's thread. A task that was woken waits in the queue of a run that sleeps; so the run is woken.

A thread that enqueues again and again would wake the run each time, and the two would pass the interpreter's lock to
and fro. So where no call waits, a run that is woken by such a thread lets it go on for `PATIENCE` first.

Python's locks are not fair: a thread that enqueues in a loop would keep the run from waking for seconds. So a run that
wants its turn back says so, and the others wait behind it.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Final

import trio

from ._interrupts import guarded

CONTEXT: Any
try:
    CONTEXT = importlib.import_module("trio._core._run").GLOBAL_RUN_CONTEXT
except (ImportError, AttributeError):  # pragma: no cover - a trio of the future
    CONTEXT = None
"""What trio keeps for each thread: the run that is in it, and the task that is running."""

PATIENCE: Final = 0.002
"""The time that a run leaves to a thread that enqueues, in seconds: that of a thousand launches."""


def _knows_trio() -> bool:
    """Return whether the current run is where this file expects it. Called in a task."""
    runner = getattr(CONTEXT, "runner", None)
    names = "runq", "reschedule", "entry_queue"
    return isinstance(CONTEXT, threading.local) and all(hasattr(runner, name) for name in names)


def is_in_task() -> bool:
    """Return whether a task of trio is running in this thread, as `trio.lowlevel.in_trio_task` does in 7 times as long.

    Only where trio keeps it is known, so that a turn is taken.
    """
    return "task" in CONTEXT.__dict__


class Turn(trio.abc.Instrument):
    """The turn of one run. Made in a task of the run, which has the turn then."""

    def __init__(self, has_calls: Callable[[], bool]) -> None:
        """`has_calls` tells whether a call waits for the run."""
        self.is_taken: bool = _knows_trio()
        """True if other threads may take it."""
        self._lock = threading.RLock()
        self._gate = threading.Lock()
        self._is_wanted = False
        self._waiting: collections.deque[None] = collections.deque()
        """An item for each thread that waits for the turn."""
        self.is_over: bool = False
        """True once the run has ended."""
        self._taken_at = 0.0
        """When another thread had it last, by `time.perf_counter`."""
        self._is_awake = True
        """True if the run will look at its tasks before it waits again."""
        self._has_calls = has_calls
        self._urgent = threading.Lock()
        """Released when a call waits for the run."""
        self._urgent.acquire()
        # Asked by every verb: `get_ident` takes three times as long.
        self.held: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        """True in the thread that has the turn."""
        self._runner: Any = getattr(CONTEXT, "runner", None)
        self._token = trio.lowlevel.current_trio_token()
        self._lock.acquire()
        trio.lowlevel.add_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        """Called by trio: its tasks have run, and it waits."""
        self._is_awake = False
        self._lock.release()

    def after_io_wait(self, timeout: float) -> None:
        """Called by trio: it runs tasks again."""
        self._is_awake = True
        if perf_counter() - self._taken_at < PATIENCE and not self._has_calls():
            self._urgent.acquire(timeout=PATIENCE)  # at once if a call has come since the last time
        if not self._lock.acquire(blocking=False):
            with self._gate:
                self._is_wanted = True
                self._lock.acquire()
                self._is_wanted = False

    def after_run(self) -> None:
        """Called by trio: the run has ended, however it did."""
        self.is_over = True
        if self.held():
            self._lock.release()

    def hurry(self) -> None:
        """Let the run begin at once: a call waits for it."""
        with contextlib.suppress(RuntimeError):  # it is released
            self._urgent.release()

    def is_wanted(self) -> bool:
        """Return whether the run or another thread could use the turn now. Called by a thread that has it."""
        return self._is_wanted or bool(self._runner.runq) or bool(self._waiting)

    @guarded
    def run(self, verb: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Call a verb with the turn, in any thread that no trio run is in. Waits for the turn, not for the device."""
        if self._is_wanted:
            with self._gate:  # until the run has it
                pass
        if not self._lock.acquire(False):
            self._waiting.append(None)
            self._lock.acquire()
            self._waiting.pop()
        try:
            if self.is_over:
                return verb(*arguments, **keywords)
            self._taken_at = perf_counter()
            context = CONTEXT.__dict__  # of this thread; a sixth of the time of three accesses
            before = context.get("runner")  # of a guest run, between two of its turns
            context["runner"] = runner = self._runner
            try:
                return verb(*arguments, **keywords)
            finally:
                if before is None:
                    del context["runner"]
                else:
                    context["runner"] = before
                if runner.runq:
                    self.wake()
        finally:
            self._lock.release()

    def wake(self) -> None:
        """Have the run look at its tasks and its deadlines. Called by a thread that has the turn."""
        if self._is_awake:
            return
        self._is_awake = True
        try:
            self._token.run_sync_soon(_nothing, idempotent=True)
        except trio.RunFinishedError:  # it needs no waking
            self.is_over = True


def _nothing() -> None:
    """Make the run look at its tasks."""
