"""Whose turn it is: a capture, or calls that may synchronise the context.

To synchronise the context is refused in every thread while any of its streams is captured, whatever the mode, and the
capture is void then. Libraries do so in `cublasDestroy`, `cublasLtDestroy` and `cusolverDnDestroy`, which return
success all the same, and in `cufftMakePlan` for lengths with a large prime factor, which fails. A call that waits for
one stream needs no turn. Imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class CaptureTurns:
    """One capture at a time, and none while a call is under way that may synchronise the context."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._capturing: int | None = None
        self._synchronizing = 0

    @property
    def is_capturing(self) -> bool:
        """True while the calling thread captures."""
        return self._capturing == threading.get_ident()

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """The turn of a capture; what synchronises the context waits for its end."""
        with self._changed:
            self._changed.wait_for(lambda: self._capturing is None and not self._synchronizing)
            self._capturing = threading.get_ident()
        try:
            yield
        finally:
            with self._changed:
                self._capturing = None
                self._changed.notify_all()

    @contextlib.contextmanager
    def synchronize(self) -> Iterator[None]:
        """The turn of a call that may synchronise the context; there may be many at a time, also inside each other."""
        with self._changed:
            self._changed.wait_for(lambda: self._capturing is None or self.is_capturing)
            self._synchronizing += 1
        try:
            yield
        finally:
            with self._changed:
                self._synchronizing -= 1
                self._changed.notify_all()
