"""The heart of a worker: a thread that counts, so that the user's process notices a worker that has stopped.

While the worker has nothing to do it rests: the user's process expects no beat then (``_generation/watch.py``). It ends
the process, too, some time after the context was lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from .._wire.protocol import EXIT_LOST, HEARTBEAT_WORD

HEARTBEAT_PERIOD = 0.2
BEATS_BEFORE_REST = 5
"""The heart rests after so many beats in which the worker was idle."""
LINGER_SECONDS = 2.0
"""A worker that has said that its context is lost is killed, unless the user's process stands still: it may be waiting,
in another library, for just this worker."""


class Heart:
    """Counts in a word of the page until `ended` is set. `is_idle` tells whether the worker has nothing to do."""

    def __init__(self, is_idle: Callable[[], bool], ended: threading.Event) -> None:
        self.words: Any = None
        """Those of the page."""
        self.lost_at: float | None = None
        """When the context was lost, on the clock of `time.monotonic`."""
        self.rests: bool = False
        self._is_idle = is_idle
        self._ended = ended
        self._roused = threading.Event()

    def beat(self) -> None:
        """The work of the thread."""
        idle_beats = 0
        while True:
            self.words[HEARTBEAT_WORD] += 1
            if self.lost_at is not None and time.monotonic() > self.lost_at + LINGER_SECONDS:
                os._exit(EXIT_LOST)
            if self._ended.wait(HEARTBEAT_PERIOD):
                return
            idle_beats = idle_beats + 1 if self._may_rest() else 0
            if idle_beats >= BEATS_BEFORE_REST:
                self._rest()
                idle_beats = 0

    def rouse(self) -> None:
        """End the rest. Whoever calls this has ended the idleness before."""
        if self.rests:
            self._roused.set()

    def _rest(self) -> None:
        self._roused.clear()
        self.rests = True
        if self._may_rest():
            self._roused.wait()
        self.rests = False

    def _may_rest(self) -> bool:
        return self.lost_at is None and not self._ended.is_set() and self._is_idle()
