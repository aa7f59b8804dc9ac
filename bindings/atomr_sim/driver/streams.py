"""Streams and events of the simulated GPU: ordered queues, each with its own thread.

A stream counts the work that was submitted and the work that is complete. So "this piece of work is done" is a
comparison of two numbers. Events, waiting and the rules of the default stream all use it.

A fault concerns the whole process (``Fate``). The stream whose kernel faulted stops there: nothing that is queued after
that kernel ever runs. Other streams go on with copies and memory operations, as a GPU's copy engines do, but they stop
at the next kernel. Host threads that wait are woken, and their calls return the fault's status.

This file does not depend on memory, modules or handles: a piece of work is a Python function.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .._status import NOT_READY, OPERATING_SYSTEM, SUCCESS, UNKNOWN, Refused
from ..engine.memory import ASSERT, DeviceFault

if TYPE_CHECKING:
    from .captures import Capture, CapturedNode

# A real driver has room for this many unfinished entries of one stream: for 1,021 launches behind what holds them up. A
# call that finds no room blocks until there is some, and every other call that names the stream behind it, a query too.
MAX_PENDING = 1022


class Fate:
    """The state of the simulated process: after a fault, the status that every call returns from then on."""

    def __init__(self) -> None:
        self.status: int = SUCCESS
        self._waiting: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._lock = threading.Lock()

    def lose(self, status: int, message: str = "") -> None:
        """Record the first fault (later ones change nothing) and wake every host thread that waits on a stream."""
        with self._lock:
            if self.status:
                return
            self.status = status
            streams = list(self._waiting)
        for stream in streams:
            stream.wake()
        if message:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it
                print(f"atomr simulated GPU: {message}", file=sys.stderr, flush=True)

    def watch(self, stream: Stream) -> None:
        """Wake the waiters of this stream when the process is lost."""
        with self._lock:
            self._waiting.add(stream)


class Stream:
    """One ordered queue of work and the thread that runs it.

    ``blocking`` streams keep order with the default stream; the default stream itself is made by ``DefaultStream``.
    """

    _numbers = itertools.count(1)

    def __init__(self, fate: Fate, *, blocking: bool = True) -> None:
        self.blocking = blocking
        self.submitted: int = 0
        self.completed: int = 0
        self.capture: Capture | None = None
        """The capture that takes its work instead of the queue."""
        self._fate = fate
        self._pending = 0
        self._closing = False
        self._queue: deque[tuple[Callable[[], None], int, bool]] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._entered = threading.Lock()
        fate.watch(self)
        self._thread = threading.Thread(target=self._serve, name=f"simulated stream {next(self._numbers)}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            raise Refused(OPERATING_SYSTEM) from None

    def submit(self, work: Callable[[], None], *, kernel: bool = False, entries: int = 1) -> int:
        """Queue a piece of work; the number returned is this work's place in the stream.

        It takes so many `entries` of the stream's queue, and blocks while that is full, until the process is lost.
        """
        with self._entered, self._changed:
            while self._pending >= MAX_PENDING and not self._fate.status:
                self._changed.wait()
            self._pending += entries
            self._queue.append((work, entries, kernel))
            self.submitted += 1
            self._changed.notify_all()
            return self.submitted

    def reached(self, place: int) -> bool:
        """Tell whether the work at this place, and all before it, is done."""
        return self.completed >= place

    @property
    def gone(self) -> bool:
        """Tell whether it was destroyed, and all submitted work is done."""
        return self._closing and self.reached(self.submitted)

    def query(self) -> int:
        """The status of the stream as cuStreamQuery gives it; behind a call that waits for room."""
        with self._entered:
            pass
        return self._fate.status or (SUCCESS if self.reached(self.submitted) else NOT_READY)

    def synchronize(self, place: int | None = None) -> int:
        """Wait, as a host thread does, for a place in the stream (None: all submitted so far), or for a fault."""
        with self._entered:
            pass
        with self._changed:
            target = self.submitted if place is None else place
            while self.completed < target and not self._fate.status:
                self._changed.wait()
        return self._fate.status

    def wait_inside(self, place: int) -> None:
        """Wait as another stream does: a fault does not end this wait, only the work itself does."""
        with self._changed:
            while self.completed < place:
                self._changed.wait()

    def close(self) -> None:
        """Let the thread end when the queue is empty; submitted work still runs."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Wake every waiter of this stream, to check its condition again."""
        with self._changed:
            self._changed.notify_all()

    def _serve(self) -> None:
        while (item := self._next()) is not None:
            work, entries, kernel = item
            if (kernel and self._fate.status) or not self._perform(work) or (kernel and self._fate.status):
                return  # the stream stops here for ever: nothing after this work runs
            with self._changed:
                self.completed += 1
                self._pending -= entries
                self._changed.notify_all()

    def _next(self) -> tuple[Callable[[], None], int, bool] | None:
        with self._changed:
            while not self._queue:
                if self._closing:
                    return None
                self._changed.wait()
            return self._queue.popleft()

    def _perform(self, work: Callable[[], None]) -> bool:
        """Run a piece of work; False when it faulted."""
        try:
            work()
        except DeviceFault as fault:
            # A failed assertion has already said where it failed.
            self._fate.lose(fault.status, "" if fault.status == ASSERT else fault.message)
            return False
        except BaseException as bug:
            text = "".join(traceback.format_exception(bug))
            self._fate.lose(UNKNOWN, f"a piece of work failed inside the simulator:\n{text}")
            return False
        return True


class Event:
    """A mark in a stream. ``timed`` events also keep the time when the mark was passed."""

    def __init__(self, *, timed: bool) -> None:
        self.timed = timed
        self.captured: tuple[Capture, tuple[CapturedNode, ...]] | None = None
        """The nodes that it stands for, if it was last recorded in a stream that is captured."""
        self._mark: _Mark | None = None

    def record(self, stream: Stream) -> None:
        """Put the mark after everything submitted to the stream so far; an older mark is forgotten."""
        if stream.capture is not None:
            self.captured, self._mark = (stream.capture, stream.capture.last(stream)), None
            return
        self.captured = None
        mark = _Mark(stream)
        mark.place = stream.submit(mark.stamp)
        self._mark = mark

    @property
    def recorded(self) -> bool:
        return self._mark is not None

    @property
    def done(self) -> bool:
        """Tell whether the mark was passed, or there is none."""
        return self._mark is None or self._mark.stream.reached(self._mark.place)

    def synchronize(self, fate: Fate) -> int:
        """Wait on the host until the mark is passed, or for a fault."""
        mark = self._mark
        return fate.status if mark is None else mark.stream.synchronize(mark.place)

    def hold(self, stream: Stream) -> None:
        """Make a stream wait for the mark as it stands now; a later ``record`` does not move this wait."""
        mark = self._mark
        if mark is not None and mark.stream is not stream:
            stream.submit(lambda: mark.stream.wait_inside(mark.place))

    def milliseconds_until(self, later: Event) -> float:
        """Return the time between two passed marks."""
        if self._mark is None or later._mark is None:
            raise ValueError("an event was never recorded")
        return (later._mark.nanoseconds - self._mark.nanoseconds) / 1e6


class _Mark:
    """One recording of an event."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.place = 0
        self.nanoseconds = 0

    def stamp(self) -> None:
        self.nanoseconds = time.monotonic_ns()


class DefaultStream(Stream):
    """The stream with handle 0: its work waits for all blocking streams, and their work waits for it."""

    def __init__(self, fate: Fate, blocking_streams: Callable[[], Iterable[Stream]]) -> None:
        super().__init__(fate, blocking=False)
        self._blocking_streams = blocking_streams

    def submit(self, work: Callable[[], None], *, kernel: bool = False, entries: int = 1) -> int:
        """As for any stream, after the work that the blocking streams have by now."""
        ahead = [(stream, stream.submitted) for stream in self._blocking_streams()]
        pending = [(stream, place) for stream, place in ahead if not stream.reached(place)]
        if pending:
            super().submit(lambda: _wait_for_all(pending))
        return super().submit(work, kernel=kernel, entries=entries)

    def hold_back(self, stream: Stream) -> None:
        """Make a blocking stream wait for the work that was submitted here before."""
        place = self.submitted
        if not self.reached(place):
            stream.submit(lambda: self.wait_inside(place))


def _wait_for_all(pending: list[tuple[Stream, int]]) -> None:
    for stream, place in pending:
        stream.wait_inside(place)
