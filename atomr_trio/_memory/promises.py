"""Promises of device memory: bytes of an arena's limit that only whoever reserved them may still use.

A promise is kept at the budget: an allocation by anybody else is refused if less than the promised bytes would be left
of the limit. It is no run of addresses, so a promise moves nothing and splits nothing.

Whoever entered a promise is told from others by a context variable: the task that entered it, and tasks that were
started since in its block, which inherit its context. What they allocate is taken off the promise; what they free of
that comes back to it. At the end of a promise, the arrays that were made under it remain, and count as any others.

An arena without promises pays one test for all of this.
"""

from __future__ import annotations

import contextvars
from typing import Protocol, final

_entered: contextvars.ContextVar[tuple[Promise, ...]] = contextvars.ContextVar("atomr_trio_promises", default=())


class Budgeted(Protocol):
    """An arena, as far as its promises go."""

    promises: Promises | None


@final
class Promise:
    """Bytes that one holder may use, until `end`."""

    def __init__(self, arena: Budgeted, size: int) -> None:
        """Begin it. The caller has made sure that so much of the limit is left."""
        self._arena = arena
        self.left: int = size
        """The promised bytes that no array of the holder has taken."""
        self.ended: bool = False
        promises = arena.promises
        if promises is None:
            promises = arena.promises = Promises()
        promises.all.append(self)

    def __repr__(self) -> str:
        return f"<Promise: {self.left:,} bytes left{', ended' if self.ended else ''}>"

    def enter(self) -> None:
        """Make the calling task, and those that it starts, its holder."""
        _entered.set((*_entered.get(), self))

    def leave(self) -> None:
        """Undo that."""
        _entered.set(tuple(each for each in _entered.get() if each is not self))

    def end(self) -> None:
        """Give back what is left. Ending twice does nothing."""
        promises = self._arena.promises
        if self.ended or promises is None:
            return
        self.ended = True
        promises.all.remove(self)
        if not promises.all:
            self._arena.promises = None


@final
class Promises:
    """The promises of one arena, and the blocks that were made under them."""

    def __init__(self) -> None:
        self.all: list[Promise] = []
        """Those that have not ended, the oldest first."""
        self._charged: dict[object, list[tuple[Promise, int]]] = {}

    @property
    def left(self) -> int:
        """Promised bytes that no array has taken."""
        return sum(promise.left for promise in self.all)

    @property
    def kept_from_caller(self) -> int:
        """Promised bytes that the calling task may not use."""
        own = _entered.get()
        return sum(promise.left for promise in self.all if promise not in own)

    def charge(self, block: object, size: int) -> None:
        """Take a block that the calling task has just been given off its promises, the innermost first."""
        self.freed(block)  # it may have been another array's until now
        taken = []
        for promise in reversed(_entered.get()):
            if promise in self.all and promise.left and size:
                part = min(promise.left, size)
                promise.left -= part
                size -= part
                taken.append((promise, part))
        if taken:
            self._charged[block] = taken

    def freed(self, block: object) -> None:
        """Give a block back to the promises that it was taken off."""
        for promise, part in self._charged.pop(block, ()):
            if not promise.ended:
                promise.left += part
