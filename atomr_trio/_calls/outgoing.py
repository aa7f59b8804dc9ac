"""The commands of one verb, from their plan to those that are sent: each is made when it is its turn."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, cast

import attrs

from .._generation.requests import CommandRequest, Series
from .._generation.timeline import Operand

STRETCH = 32
"""The number of commands of an awaited verb that are begun at a time: other tasks run in between."""

AT_A_TIME = 8
"""The number of them that are made between two turns of other tasks: to make one takes longer than to begin it."""


class Folding(Protocol):
    """Makes the commands that are sent of those that were planned, a few at a time."""

    held: collections.deque[CommandRequest]
    """Those that were taken from what was planned, and are in no command yet, in order."""

    def folded(self, planned: Iterator[CommandRequest | Series]) -> Iterator[CommandRequest]:
        """Yield the commands."""


@attrs.frozen(eq=False)
class _Done:
    """What is kept of the commands of a long verb that are done and have the same operands.

    It is what a verb that ends early must know of them.
    """

    operands: Sequence[Operand]
    sent: bool = True


class Outgoing:
    """The commands of one verb, in order. `folding` makes fewer of them, one for several."""

    def __init__(self, planned: Sequence[CommandRequest | Series], folding: Folding | None = None) -> None:
        self.made: list[CommandRequest] = []
        """The commands that were made, without those that were forgotten."""
        self.more: bool = True
        """True until it is known that there are no more."""
        self._done: list[_Done] = []
        self._alike: dict[tuple[Operand, ...], _Done] = {}
        self._planned = planned
        self._seen = 0
        """The number of those planned that were looked at."""
        self._folding = folding
        looked_at = self._look()
        self._commands = _unfolded(looked_at) if folding is None else folding.folded(looked_at)

    def _look(self) -> Iterator[CommandRequest | Series]:
        for each in self._planned:
            self._seen += 1
            yield each

    def take(self, most: int | None = None) -> list[CommandRequest]:
        """Return the next commands, at most `most`; only one if it takes as many of those that were planned."""
        before, seen = len(self.made), self._seen
        count = 0
        while most is None or (count < most and (not count or self._seen - seen < most)):
            command = next(self._commands, None)
            if command is None:
                self.more = False
                break
            self.made.append(command)
            count += 1
        return self.made[before:]

    def forget_done(self, count: int) -> list[CommandRequest]:
        """Forget so many commands at the start of `made`, which are done, if the verb is a long one. Returns them.

        To let go of thousands of them at its end would take milliseconds.
        """
        if len(self.made) < STRETCH and self.is_whole:
            return []
        forgotten = self.made[:count]
        for request in forgotten:
            operands = tuple(request.operands)
            done = self._alike.get(operands)
            if done is None:
                done = self._alike[operands] = _Done(operands)
            self._done.append(done)
        del self.made[:count]
        return forgotten

    @property
    def is_whole(self) -> bool:
        """True if nothing was forgotten."""
        return not self._done

    def all(self) -> list[CommandRequest | Series]:
        """Return the commands that were made, and those planned and the series that stand for the rest.

        An object that has the operands stands for each that was forgotten.
        """
        held = () if self._folding is None else self._folding.held
        last = self._planned[max(self._seen - 1, 0) : self._seen]
        begun = [each for each in last if isinstance(each, Series) and each.left]
        done = cast("list[CommandRequest | Series]", self._done)
        return [*done, *self.made, *held, *begun, *self._planned[self._seen :]]


def number_of(planned: Iterable[CommandRequest | Series]) -> int:
    """Return the number of commands that were planned."""
    return sum(each.left if isinstance(each, Series) else 1 for each in planned)


def _unfolded(planned: Iterable[CommandRequest | Series]) -> Iterator[CommandRequest]:
    for each in planned:
        if isinstance(each, Series):
            yield from each
        else:
            yield each
