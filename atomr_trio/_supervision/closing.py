"""Releases memory in a thread: closing its last descriptor or mapping takes up to 0.1 s for a GiB.

One thread of the process does it, in the order of the requests, and ends when nothing is left. This file knows trio's
threads and no devices.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import trio

_lock = threading.Lock()
_waiting: collections.deque[tuple[Sequence[int], list[mmap.mmap], Callable[[], None]]] = collections.deque()
_at_work: list[None] = []
"""An item while the thread is at work."""
_idle = threading.Event()

PIECE = 4 << 20
"""Bytes that are unmapped at a time."""

LONGEST_WAIT = 10.0
"""Seconds that `wait_until_idle` waits at most."""


def close_in_thread(
    descriptors: Sequence[int], mappings: list[mmap.mmap], then: Callable[[], None] | None = None
) -> None:
    """Close descriptors, and take the pages out of mappings and drop them; `then` is called in trio's thread.

    The list is emptied. If the system has no thread left, all is done at once.
    """
    token = trio.lowlevel.current_trio_token()

    def tell() -> None:
        if then is not None:
            with contextlib.suppress(trio.RunFinishedError):  # no task waits any more
                token.run_sync_soon(then)

    with _lock:
        _waiting.append((descriptors, mappings, tell))
        if _at_work:
            return
        _at_work.append(None)
        _idle.clear()
    try:
        trio.lowlevel.start_thread_soon(_work, _nothing, "atomr_trio close")
    except RuntimeError:
        _work()


async def closed(descriptors: Sequence[int], mappings: list[mmap.mmap] | None = None) -> None:
    """Close what `close_in_thread` does, and wait until that and all earlier is closed, whoever is cancelled."""
    done = trio.Event()
    close_in_thread(descriptors, [] if mappings is None else mappings, done.set)
    with trio.CancelScope(shield=True):  # for as long as the system takes
        await done.wait()


def wait_until_idle() -> bool:
    """Block the event loop until all is closed, for a caller that needs the memory at once.

    Returns whether there was anything to close.
    """
    with _lock:
        if not _at_work:
            return False
    return _idle.wait(LONGEST_WAIT)


def _work() -> None:
    while True:
        with _lock:
            if not _waiting:
                _at_work.clear()
                _idle.set()
                return
            descriptors, mappings, tell = _waiting.popleft()
        for descriptor in descriptors:
            os.close(descriptor)
        while mappings:
            _close(mappings.pop())
        tell()


def _close(mapping: mmap.mmap) -> None:
    """Unmap the pages, some at a time: a thread that maps memory meanwhile waits for one piece, and not for all."""
    for _ in advise(mapping, mmap.MADV_DONTNEED, PIECE):
        """All of it."""
    with contextlib.suppress(BufferError):  # then it is closed with the last of its views
        mapping.close()


def advise(mapping: mmap.mmap, advice: int, piece: int) -> Iterator[None]:
    """Give the system advice about a mapping, piece by piece, until it refuses one (``madvise``).

    `mmap.madvise` does not let other threads run meanwhile.
    """
    call = ctypes.CDLL(None).madvise
    call.argtypes, call.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    view = (ctypes.c_char * len(mapping)).from_buffer(mapping)
    begin = ctypes.addressof(view)
    for start in range(0, len(mapping), piece):
        if call(begin + start, min(piece, len(mapping) - start), advice):
            break
        yield


def _nothing(_outcome: Any) -> None:
    """Do nothing: no task waits for the end of the thread."""


def _forget_in_child() -> None:
    """Drop the work in a forked child: it has no such thread, and its descriptors are copies."""
    global _lock
    _lock = threading.Lock()
    _waiting.clear()
    _at_work.clear()
    _idle.set()


if hasattr(os, "register_at_fork"):  # not on every system that can import this package
    os.register_at_fork(after_in_child=_forget_in_child)
