"""Noticing that a worker has ended, stopped, or hangs.

A device that is idle rests. While nothing is open, the worker's heart stands still, and this process looks at it once
a second: a worker that has nothing to do owes no sign of life, unless the system says that it is stopped. The next
command ends the rest on both sides. The worker's heart beats again before the command is read. This side looks as often
as before as soon as a command is unfinished that no caller polls for, and at its next look otherwise.
"""

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
REST_PERIOD = 1.0
"""The period while the device rests."""
LOOKS_BEFORE_REST = 10
"""The device rests after so many looks at which nothing was open and nothing had been sent."""
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
        self._period: float = WATCH_PERIOD
        if hang_timeout is not None:
            self._period = min(WATCH_PERIOD, max(0.001, hang_timeout / 4))
        self._timer: RealTimer | None = None
        self._resting = False
        self._quiet_looks = 0
        self._sent_before = -1

    def __repr__(self) -> str:
        return f"<Watch of generation {self._life.number}{', resting' if self._resting else ''}>"

    @property
    def resting(self) -> bool:
        """True while the device rests."""
        return self._resting

    def rouse(self) -> None:
        """End the rest."""
        self._quiet_looks = 0
        if self._resting and self._timer is not None:
            self._resting = False
            self._timer.change(self._period)

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
        heart = _Pulse(STOPPED_SECONDS, "the worker gave no sign of life for {seconds:.1f} s")
        ears = _Pulse(DEAF_SECONDS, "the worker has read nothing of what it was sent for {seconds:.1f} s")
        awake = _AwakeClock(self._period)
        ending_since: float | None = None
        page, sender = self._timeline.page, self._sender
        with RealTimer(self._period) as self._timer:
            timer = self._timer
            while True:
                await timer.tick()
                now = time.monotonic()
                self._settler.settle_finished()
                self._chunks.ask_for_unkept()
                while self._chunks.collect(AT_A_TIME):
                    await trio.lowlevel.checkpoint()
                read = page.records_read()
                is_deaf = read < sender.sent
                owes_beats = self._look_for_rest(is_open=is_deaf or not self._timeline.idle)
                # The time of a worker that owes no sign of life, or has read everything, starts again.
                still = heart.still(page.heartbeat() if owes_beats else -now, now)
                still = still or ears.still(read if is_deaf else -now, now)
                if still is not None and self._process.ending:
                    ending_since = now if ending_since is None else ending_since
                    still = still if now - ending_since > ENDING_SECONDS else None
                if still is not None:
                    self._life.lose(Loss(LossKind.STOPPED, still, reported_by="the watchdog"))
                self.check_hang(awake.look(now))

    def _look_for_rest(self, *, is_open: bool) -> bool:
        """Begin or end the rest. Returns whether the worker owes signs of life."""
        is_quiet = not is_open and self._sender.sent == self._sent_before
        self._sent_before = self._sender.sent
        if not is_quiet or self._process.stopped:
            self.rouse()
            return is_open or is_quiet
        self._quiet_looks += 1
        # With a hang timeout each command is looked at from its beginning.
        if self._quiet_looks == LOOKS_BEFORE_REST and self._hang_timeout is None and self._timer is not None:
            self._resting = True
            self._timer.change(REST_PERIOD)
        return False

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
