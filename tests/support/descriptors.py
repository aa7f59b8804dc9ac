"""The file descriptors of this process, looked at when nothing that was dropped is still to be closed."""

from __future__ import annotations

import contextlib
import gc
import os

from atomr_trio._supervision import closing


def open_descriptors() -> dict[str, str]:
    """What each open descriptor stands for, by its number.

    Memory of a device that has ended is closed in a thread, and what a cycle of objects holds when that is collected.
    """
    gc.collect()
    closing.wait_until_idle()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found
