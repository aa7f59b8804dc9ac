"""The file descriptors of this process, looked at when none is still to be closed that was given up."""

from __future__ import annotations

import contextlib
import os

from atomr_trio._supervision import closing

from . import held


def open_descriptors(*, collect: bool = False) -> dict[str, str]:
    """What each open descriptor stands for, by its number.

    Memory of a device that has ended is closed in a thread, for which this waits. With `collect`, cycles of objects are
    collected first: what comes before a test leaves some, and they must not end in the middle of it. What a test
    leaves is looked at without, unless it may leave such cycles too.
    """
    if collect:
        held.collect()
    closing.wait_until_idle()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found
