"""Threads that copy memory for the event loop, several at a time.

A memcpy of a few megabytes takes long enough to delay every task, and one thread uses a quarter of the memory's
bandwidth. A helper stays as long as there is work, so a large copy starts a few threads and not one for each of its
pieces. It tells the loop of each finished piece. This file knows trio's threads and no devices.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from typing import Any, Protocol

import trio

MOST_HELPERS = 8
"""The most helpers. On a machine of 16 cores more of them do not copy faster."""

PROCESSORS_OF_ONE_BESIDE = 2
"""Of so many processors one is for a helper beside a task that copies too, but for those of the task and the worker."""


class Job(Protocol):
    """A piece of work for a helper."""

    @property
    def tells(self) -> bool:
        """Whether `ended` is called: that takes a turn of trio's loop."""

    def run(self) -> bool | None:
        """Do the work, in the helper's thread. Return true to be run again, after the waiting jobs. Must not raise."""

    def ended(self) -> None:
        """Called in trio's thread, once, after the last `run`."""


class Crew:
    """The helpers of one device. Made inside trio; everything but `Job.run` and `crowded` is of trio's thread."""

    def __init__(self, size: int | None = None) -> None:
        processors = len(os.sched_getaffinity(0))
        self.size: int = size or max(2, min(MOST_HELPERS, processors - 1))
        """The number of pieces that are copied at a time."""
        self.beside: int = min(self.size, max(0, processors // PROCESSORS_OF_ONE_BESIDE - 1))
        """The number of helpers that pay beside a task that copies too. None do with few processors: the worker polls
        on another one, and a helper that polls takes one of the others from whoever needs it."""
        self._token = trio.lowlevel.current_trio_token()
        self._lock = threading.Lock()
        self._waiting: collections.deque[Job] = collections.deque()
        self._finished: collections.deque[Job] = collections.deque()
        self._helpers = 0

    def __repr__(self) -> str:
        return f"<Crew: {self._helpers} of {self.size} at work, {len(self._waiting)} jobs waiting>"

    @property
    def crowded(self) -> bool:
        """True if jobs wait for a helper: an idle job should return to let them run."""
        return bool(self._waiting)

    def submit(self, job: Job) -> None:
        """Let a helper run the job as soon as one is free. Raises `RuntimeError` if the system has no thread."""
        with self._lock:
            self._waiting.append(job)
            if self._helpers == self.size:
                return
            self._helpers += 1
        try:
            trio.lowlevel.start_thread_soon(self._help, _nothing, "atomr_trio copy")
        except RuntimeError:
            with self._lock:
                self._helpers -= 1
            if not self._helpers and self.withdraw(job):
                raise

    def withdraw(self, job: Job) -> bool:
        """Take back a job that no helper has begun. Returns whether that was possible; then `ended` is never called."""
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
                return True
            return False

    def _help(self) -> None:
        while (job := self._next()) is not None:
            if job.run():
                with self._lock:
                    self._waiting.append(job)
                continue
            if not job.tells:
                continue
            self._finished.append(job)
            with contextlib.suppress(trio.RunFinishedError):  # then no task waits for it any more
                self._token.run_sync_soon(self._tell, idempotent=True)

    def _next(self) -> Job | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._helpers -= 1
            return None

    def _tell(self) -> None:
        while self._finished:
            self._finished.popleft().ended()


def _nothing(_outcome: Any) -> None:
    """Do nothing: no task waits for the end of a helper."""
