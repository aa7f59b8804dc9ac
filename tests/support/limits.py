"""A process without a file descriptor left, for the tests of what becomes of a device there."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

ROOM = 64


class Table:
    """The table of descriptors of this process, filled up."""

    def __init__(self, free: int) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        # Otherwise filling it would take a million descriptors.
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + ROOM, self._limits[1]))
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._fillers: list[int] = []
        self.leave(free)

    def leave(self, free: int) -> None:
        """Fill the table up again, but for so many."""
        with contextlib.suppress(OSError):
            while True:
                self._fillers.append(os.dup(self._null))
        for _ in range(free):
            os.close(self._fillers.pop())

    def empty(self) -> None:
        """Lift the limit. Doing so twice is fine."""
        while self._fillers:
            os.close(self._fillers.pop())
        if self._null >= 0:
            os.close(self._null)
            self._null = -1
            resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)


@contextlib.contextmanager
def full_table(free: int = 0) -> Iterator[Table]:
    """A process in which so many descriptors are left, and no more, until the block ends or the table is emptied."""
    table = Table(free)
    try:
        yield table
    finally:
        table.empty()
