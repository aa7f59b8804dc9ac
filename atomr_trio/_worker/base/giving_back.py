"""Calls that give something back to the driver, which may refuse it.

A refused call is kept, and blocks nothing else: it is tried again when something is given back the next time. Imports
the standard library alone.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable, Sequence


class GivingBack:
    """Makes calls that give something back, and repeats those that were refused before."""

    def __init__(self, refusal: type[Exception]) -> None:
        self._refusal = refusal
        self._refused: collections.deque[Callable[[], object]] = collections.deque()

    def make(self, calls: Iterable[Callable[[], object]]) -> None:
        """Make all of `calls`, even when one fails. Raises the first refusal."""
        first: Exception | None = None
        older = len(self._refused)
        for call in calls:
            try:
                call()
            except self._refusal as error:
                self._refused.append(call)
                first = first or error
        for _ in range(older):
            try:
                call = self._refused.popleft()
            except IndexError:
                break  # another thread has taken it
            try:
                call()
            except self._refusal:
                self._refused.append(call)
        if first is not None:
            raise first


class GivingBackLater:
    """Makes such calls in threads of their own, since the driver may let them wait for all that runs.

    `start` starts a thread for a function; `make_now` makes the calls in the thread that it is called in.
    """

    def __init__(
        self,
        start: Callable[[Callable[[], None]], threading.Thread],
        make_now: Callable[[Sequence[Callable[[], object]]], None],
    ) -> None:
        self._start = start
        self._make_now = make_now
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def make(self, calls: Sequence[Callable[[], object]]) -> None:
        """Make the calls, soon."""
        try:
            thread = self._start(lambda: self._make_now(calls))
        except RuntimeError:  # the system has no thread left: then here, though it may take long
            self._make_now(calls)
            return
        with self._lock:
            self._threads = [thread, *(other for other in self._threads if other.is_alive())]

    def join(self) -> bool:
        """Wait until all calls were made that `make` was given so far. Returns whether there were any to wait for."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()
        with self._lock:
            self._threads = [other for other in self._threads if other not in threads]
        return bool(threads)
