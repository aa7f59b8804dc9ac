"""A progress bar for a terminal, and plain lines for everything else.

It does not depend on the work.
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

_BAR = 32
_REDRAW_SECONDS = 0.1


class Progress:
    """Shows how many of `total` units are done. A bar is redrawn in place; a pipe gets a line each quarter."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None, *, unit: str = "step") -> None:
        self._label = label
        self._total = total
        self._unit = unit
        self._stream = sys.stdout if stream is None else stream
        self._terminal = self._stream.isatty()
        self._started = time.monotonic()
        self._drawn_at = 0.0
        self._quarter = 0

    def update(self, done: int) -> None:
        """Report that `done` units are finished; cheap enough to call for each of them."""
        if self._terminal:
            now = time.monotonic()
            if done == self._total or now - self._drawn_at >= _REDRAW_SECONDS:
                self._drawn_at = now
                self._draw(done)
        elif 4 * done // self._total > self._quarter:
            self._quarter = 4 * done // self._total
            self._line(f"{self._label}: {self._counts(done)}")

    def note(self, text: str) -> None:
        """Print lines above the bar."""
        if self._terminal:
            self._stream.write("\r\x1b[2K")
        self._line(text)

    def finish(self) -> None:
        """End the bar's line, so that later text starts on a new one."""
        if self._terminal:
            self._stream.write("\n")
            self._stream.flush()

    def _draw(self, done: int) -> None:
        counts = self._counts(done)
        # A line that wraps cannot be drawn anew: a narrow terminal has a shorter bar, and at last the end is cut off.
        columns = shutil.get_terminal_size().columns - 1
        cells = max(0, min(_BAR, columns - len(f"{self._label} [] {counts}")))
        filled = cells * done // self._total
        line = f"{self._label} [{'━' * filled}{' ' * (cells - filled)}] {counts}"
        self._stream.write(f"\r\x1b[2K{line[:columns]}")
        self._stream.flush()

    def _counts(self, done: int) -> str:
        seconds = time.monotonic() - self._started
        rate = done / seconds if seconds else 0.0
        return f"{self._unit} {done} of {self._total}, {rate:.0f} {self._unit}s/s"

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()
