"""Calls that give something back to the driver, which may refuse it.

A refused call is kept, and blocks nothing else: it is tried again when something is given back the next time. Imports
the standard library alone.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable


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
