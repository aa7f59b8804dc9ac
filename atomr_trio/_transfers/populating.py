"""Fresh shared memory, populated by a thread: its pages exist before a worker registers them with the device.

To register memory makes every page that does not exist, and that is most of what it takes. The first worker of a device
needs longer to begin than its memory needs to exist, so it finds the pages there. The thread has a mapping of its own
and changes no byte, so it may go on while the memory is used, or after it was closed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from typing import Final

from .._supervision.closing import advise
from .._wire.channel import SharedMemory

_POPULATE_WRITE: Final = 23
"""``MADV_POPULATE_WRITE``, of Linux 5.14; an older system refuses it."""
_PIECE: Final = 1 << 20
"""The bytes of one call, during which other threads cannot map memory."""


class Populating:
    """Memory that is being populated."""

    def __init__(self, memory: SharedMemory) -> None:
        """Begin. Where the system has no descriptor or thread for it, nothing happens."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            descriptor = os.dup(memory.descriptor)
        except OSError:
            return
        thread = threading.Thread(
            target=_populate, args=(descriptor, memory.size, self._ended), name="atomr_trio populate", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            os.close(descriptor)
            return
        self._thread = thread

    def wait(self) -> None:
        """Block until all pages exist."""
        if self._thread is not None:
            self._thread.join()

    def end(self) -> None:
        """Leave the rest, and let go of the memory. Blocks for the piece that is under way, less than a millisecond."""
        self._ended.set()
        self.wait()


def _populate(descriptor: int, size: int, ended: threading.Event) -> None:
    try:
        with contextlib.suppress(OSError), mmap.mmap(descriptor, size) as mapped:
            for _ in advise(mapped, _POPULATE_WRITE, _PIECE):
                if ended.is_set():
                    break
    finally:
        os.close(descriptor)
