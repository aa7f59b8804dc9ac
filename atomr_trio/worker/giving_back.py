"""Giving things back to the driver, which may refuse it.

What was refused is neither forgotten nor in anybody's way: it is tried again with whatever is given back next.
Imports the standard library alone.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable


class GivingBack:
    """Makes calls that give something back, and those again that were refused before."""

    def __init__(self, refusal: type[Exception]) -> None:
        self._refusal = refusal
        self._refused: collections.deque[Callable[[], object]] = collections.deque()

    def make(self, calls: Iterable[Callable[[], object]]) -> None:
        """Make `calls`, each whatever becomes of the others. Raises the first refusal of them."""
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
