"""The output of a worker, cut into lines for the log, a bounded piece at a time.

A kernel may print megabytes without a newline, or a newline for each byte. A process that a worker has started may go
on printing when the worker is gone. So a turn reads little and logs few lines, a line has a maximum length, and the
end of a worker waits for no more than a pipe holds.
"""

from __future__ import annotations

import collections
import logging
import os
from collections.abc import Callable, Iterator
from typing import Final

import trio

from .life import Life
from .process import OUTPUT_BYTES, WorkerProcess

device_log = logging.getLogger("atomr_trio.device")
"""The log of the kernels' output, line by line."""

TAIL_LINES = 40
LAST_WORDS = 2000
"""Characters of a worker's output that the error of a start quotes."""

LINE_BYTES: Final = 16 << 10
"""A longer line is logged in parts of at most so many bytes."""

TURN_BYTES: Final = 16 << 10
TURN_LINES: Final = 128
"""The most bytes that one turn reads, and the most lines that it logs."""


class OutputLog:
    """Logs the lines of a worker, and keeps the last of them."""

    def __init__(self, life: Life) -> None:
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._life = life

    def line(self, text: str) -> None:
        """Log one line."""
        self.tail.append(text)
        device_log.info("%s", text, extra={"device": self._life.device, "generation": self._life.number})

    def last_words(self) -> str:
        """Return the end of the output, to be added to the reason of a failed start."""
        words = " | ".join(list(self.tail)[-5:])
        cut = "..." if len(words) > LAST_WORDS else ""
        return f"; its last words: {cut}{words[-LAST_WORDS:]}" if words else ""


class WorkerOutput:
    """The output of one worker; `log_line` is called with each line, without its newline."""

    def __init__(self, process: WorkerProcess, log_line: Callable[[str], None]) -> None:
        self._process = process
        self._log_line = log_line
        self._lines: collections.deque[bytes] = collections.deque()
        """Lines that were read and are not logged yet."""
        self._partial = b""
        """The beginning of a line whose end has not come; at most `LINE_BYTES`."""
        self._read = 0
        self.ended: bool = False
        """True if the pipe has ended: no process can print any more."""

    def turn(self) -> bool:
        """Log a bounded piece of the output; returns false if there is none."""
        if not self._lines:
            try:
                data = os.read(self._process.output, TURN_BYTES)
            except BlockingIOError:
                return False
            self.ended = not data
            if self.ended:
                self.end_line()
                return False
            self._read += len(data)
            self._cut(data)
        for _ in range(min(TURN_LINES, len(self._lines))):
            self._log(self._lines.popleft())
        return True

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Log what the worker prints until no process can print any more."""
        while True:
            if self.turn():
                await trio.lowlevel.checkpoint()
            elif self.ended:
                return
            else:
                await trio.lowlevel.wait_readable(self._process.output)

    @trio.lowlevel.enable_ki_protection
    async def rest(self) -> None:
        """Log all output so far, with checkpoints, and the last line even without a newline."""
        until = self._read + OUTPUT_BYTES
        while self.turn() and (self._lines or self._read < until):
            await trio.lowlevel.checkpoint()
        self.end_line()

    def end_line(self) -> None:
        """Log the beginning of a line whose end will not come."""
        if self._partial:
            self._log(self._partial)
            self._partial = b""

    def _cut(self, data: bytes) -> None:
        *lines, partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._lines.extend(_parts(line))
        *parts, self._partial = _parts(partial)
        self._lines.extend(parts)

    def _log(self, line: bytes) -> None:
        self._log_line(line.decode(errors="replace"))


def _parts(line: bytes) -> Iterator[bytes]:
    """Yield a line in parts of at most `LINE_BYTES`, cut between characters; at least one part."""
    begin = 0
    while len(line) - begin > LINE_BYTES:
        end = begin + LINE_BYTES
        # A character has at most three bytes behind its first, which begin with the bits 10.
        end = next((at for at in range(end, end - 4, -1) if line[at] & 0xC0 != 0x80), end)
        yield line[begin:end]
        begin = end
    yield line[begin:]
