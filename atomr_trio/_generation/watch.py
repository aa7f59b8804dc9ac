"""Noticing that a worker has ended, stopped, or hangs."""

from __future__ import annotations

import time

import trio

from .._memory.arena import AT_A_TIME
from .._supervision.realtime import RealTimer
from .chunks import Chunks
from .inbox import Inbox
from .life import Life
from .loss import Loss, LossKind
from .process import WorkerProcess
from .sender import Sender
from .settler import Settler
from .timeline import Timeline

WATCH_PERIOD = 0.1
STOPPED_SECONDS = 2.0
"""A heartbeat that stands still this long means a stopped worker."""
ENDING_SECONDS = 30.0
"""So much longer a worker may stand still that the system is taking apart: its end says why, and must be waited for."""
DEAF_SECONDS = 10.0
"""A worker that leaves records unread this long is stuck inside a call, even if its heartbeat goes on."""

STANDSTILL_PERIODS = 5
"""A watchdog that is this many periods late was stopped in between."""


class Watch:
    """Watches one worker from outside, by real time: a test's clock must not make a healthy worker look dead."""

    def __init__(
        self,
        life: Life,
        process: WorkerProcess,
        timeline: Timeline,
        sender: Sender,
        chunks: Chunks,
        inbox: Inbox,
        settler: Settler,
        hang_timeout: float | None,
    ) -> None:
        self._life = life
        self._process = process
        self._timeline = timeline
        self._sender = sender
        self._chunks = chunks
        self._inbox = inbox
        self._settler = settler
        self._hang_timeout = hang_timeout

    def __repr__(self) -> str:
        return f"<Watch of generation {self._life.number}>"

    @trio.lowlevel.enable_ki_protection
    async def run_exit(self) -> None:
        """Notice that the process has ended."""
        await trio.lowlevel.wait_readable(self._process.pidfd)
        self._process.reap()
        self._inbox.drain()
        reason = f"the worker process {self._process.end_text()}"
        self._life.lose(Loss(LossKind.EXIT, reason, reported_by="the operating system"))

    @trio.lowlevel.enable_ki_protection
    async def run_watchdog(self) -> None:
        """Lose the generation if its worker stops or reads nothing, or a command runs too long."""
        period = WATCH_PERIOD if self._hang_timeout is None else min(WATCH_PERIOD, max(0.001, self._hang_timeout / 4))
        heart = _Pulse(STOPPED_SECONDS, "the worker gave no sign of life for {seconds:.1f} s")
        ears = _Pulse(DEAF_SECONDS, "the worker has read nothing of what it was sent for {seconds:.1f} s")
        awake = _AwakeClock(period)
        ending_since: float | None = None
        page, sender = self._timeline.page, self._sender
        with RealTimer(period) as timer:
            while True:
                await timer.tick()
                now = time.monotonic()
                self._settler.settle_finished()
                self._chunks.ask_for_unkept()
                while self._chunks.collect(AT_A_TIME):
                    await trio.lowlevel.checkpoint()
                read = page.records_read()
                # A worker that has read everything is not deaf, so its time starts again.
                still = heart.still(page.heartbeat(), now) or ears.still(read if read < sender.sent else -now, now)
                if still is not None and self._process.ending:
                    ending_since = now if ending_since is None else ending_since
                    still = still if now - ending_since > ENDING_SECONDS else None
                if still is not None:
                    self._life.lose(Loss(LossKind.STOPPED, still, reported_by="the watchdog"))
                self.check_hang(awake.look(now))

    def check_hang(self, now: float) -> None:
        """Lose the generation if a command runs too long; `now` is on a clock of the seconds that this process ran."""
        overdue = self._timeline.overdue(now, self._hang_timeout, self._sender.places_of)
        if overdue is not None:
            reason = f"{overdue.operation} {overdue.did} longer than hang_timeout={overdue.limit:g} s"
            self._life.lose(Loss(LossKind.HANG, reason, reported_by="the watchdog", operation=overdue.operation))


class _Pulse:
    """A number that should change, and the time of its last change."""

    def __init__(self, limit: float, text: str) -> None:
        self._limit = limit
        self._text = text
        self._value: float | None = None
        self._since = self._seen = time.monotonic()

    def still(self, value: float, now: float) -> str | None:
        """Return a text if the number has not changed for too long; None otherwise."""
        # If the time between two looks is that long, this process was stopped itself, and cannot judge.
        if value != self._value or now - self._seen > self._limit / 2:
            self._value, self._since = value, now
        self._seen = now
        return self._text.format(seconds=now - self._since) if now - self._since > self._limit else None


class _AwakeClock:
    """A clock of the seconds for which this process has run; it is read once in each period.

    Time while this process was stopped does not count for a command: its worker may have been stopped as well.
    """

    def __init__(self, period: float) -> None:
        self._period = period
        self._ran = 0.0
        self._seen = time.monotonic()

    def look(self, now: float) -> float:
        """Return the seconds up to `now`. An interval between two looks that is far too long counts as one period."""
        stretch, self._seen = now - self._seen, now
        self._ran += stretch if 0 <= stretch < STANDSTILL_PERIODS * self._period else self._period
        return self._ran
