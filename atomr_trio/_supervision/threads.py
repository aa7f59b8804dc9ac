"""Work that holds the event loop up where there is much of it, done in another thread then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

import trio

S = TypeVar("S")
T = TypeVar("T")


async def in_thread_if(large: bool, work: Callable[[S], T], given: S) -> T:
    """Return the result of `work` on what is given, done in a thread if that is `large`; else without a checkpoint."""
    if large:
        with contextlib.suppress(RuntimeError):  # the system has no thread left: do it here
            return await trio.to_thread.run_sync(work, given)
    return work(given)
