"""Pieces of a memcpy that a task and a few helpers take one after the other.

A helper needs some 50 us until it has begun, and the task does not wait for it: whoever is there takes the next piece.
So a helper that comes late, or never, costs the task nothing but the call. Nobody is told of a piece that is done; the
task, which has copied meanwhile, looks.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import trio

from .crew import Crew
from .staging import Slot

SPIN_SECONDS: Final = 200e-6
"""Seconds that a helper polls for another piece before it ends, and a task for the end of one before it sleeps."""

_POLL_SECONDS: Final = 200e-6

if sys.platform != "win32":
    give_way = ctypes.CDLL(None).sched_yield
    """A function that lets other threads run. Through ctypes, so that it also releases the interpreter's lock."""
else:  # where this package can be imported, and nothing is copied

    def give_way() -> None:
        """Do nothing."""


class Piece(NamedTuple):
    """A memcpy between a slot and the caller's memory."""

    number: int
    slot: Slot
    ticket: int
    """What has to be reached before, of a copy to the host."""


class Pile:
    """The pieces of a copy that nobody has begun. All but what `_Helper` calls is of the task."""

    def __init__(self, crew: Crew, copy: Callable[[Piece], bool]) -> None:
        """`copy` makes the memcpy of a piece in a helper's thread, or returns false: then it is given back."""
        self.copy: Callable[[Piece], bool] = copy
        self.closed: bool = False
        """True if no helper may begin another piece."""
        self.complete: bool = False
        """True if no piece will be added: a helper that finds none ends at once."""
        self.done: collections.deque[tuple[Piece, bool, BaseException | None]] = collections.deque()
        """The pieces of which the task has not heard yet, whether they are copied, and the error of the memcpy."""
        self._crew = crew
        self._waiting: collections.deque[Piece] = collections.deque()
        self._given = 0
        """The number of those that wait, are in the hands of helpers, or done."""
        self._helpers: list[_Helper] = []

    def call(self, helpers: int) -> None:
        """Have so many helpers come, as far as the system has threads."""
        with contextlib.suppress(RuntimeError):
            for _ in range(helpers):
                helper = _Helper(self)
                self._crew.submit(helper)
                self._helpers.append(helper)

    def add(self, piece: Piece) -> None:
        """Leave a piece to whoever comes first."""
        self._given += 1
        self._waiting.append(piece)

    def put_back(self, piece: Piece) -> None:
        """Leave it to whoever comes first, before all others."""
        self._given += 1
        self._waiting.appendleft(piece)

    def take(self) -> Piece | None:
        """Return a piece for the task itself to copy; None if none waits."""
        try:
            piece = self._waiting.popleft()
        except IndexError:
            return None
        self._given -= 1
        return piece

    def heard(self) -> tuple[Piece, bool]:
        """Return the next piece that a helper is done with, and whether it was copied. Raises the memcpy's error."""
        piece, copied, error = self.done.popleft()
        self._given -= 1
        if error is not None:
            raise error
        return piece, copied

    @property
    def in_hands(self) -> bool:
        """True while a helper copies a piece. Exact if none waits, because only the task adds any."""
        waiting = len(self._waiting)  # before the others: no helper goes back to it
        return self._given > waiting + len(self.done)

    async def close(self) -> None:
        """Have no helper begin another piece, and wait until none copies: for one piece at most."""
        self.closed = True
        while self.take() is not None:
            pass
        for helper in self._helpers:
            self._crew.withdraw(helper)
        self._helpers.clear()
        until = time.perf_counter() + SPIN_SECONDS
        while self.in_hands and time.perf_counter() < until:
            give_way()
        if self.in_hands:
            with trio.CancelScope(shield=True):
                while self.in_hands:  # noqa: ASYNC110  # a helper tells nobody
                    await trio.sleep(_POLL_SECONDS)
        self.done.clear()

    def next_for_helper(self) -> Iterator[Piece]:
        """Yield pieces to a helper, until none has come for a while, or it is closed."""
        until = 0.0
        while not self.closed:
            try:
                piece = self._waiting.popleft()
            except IndexError:
                if self.complete:
                    return
                now = time.perf_counter()
                until = until or now + SPIN_SECONDS
                if now > until:
                    return
                give_way()
            else:
                until = 0.0
                yield piece


class _Helper:
    """A helper's part: one piece after another."""

    __slots__ = ("_pile",)
    tells = False

    def __init__(self, pile: Pile) -> None:
        self._pile = pile

    def run(self) -> None:
        """Copy pieces, in the helper's thread."""
        pile = self._pile
        for piece in pile.next_for_helper():
            copied, failed = False, None
            try:
                copied = pile.copy(piece)
            except BaseException as error:
                failed = error
            pile.done.append((piece, copied, failed))
            if not copied:
                return

    def ended(self) -> None:
        """Nobody waits for a helper."""
