"""Shortages of the host as the error that a user gets: of descriptors, memory, processes, threads.

The texts are those of ``_wire/limits.py``, which name the limit. This file knows errors and no devices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Unpack

from .._wire.limits import shortage
from .errors import DeviceError, ErrorContext, OutOfHostMemory


def shortage_of(error: BaseException) -> str | None:
    """Return the shortage that an error of the host means; None for any other error, and for those that users get."""
    return None if isinstance(error, DeviceError) else shortage(error)


@contextlib.contextmanager
def host_limits(what: str, **context: Unpack[ErrorContext]) -> Iterator[None]:
    """Raise `OutOfHostMemory`, which says `what` could not be done and why, for a shortage in this block."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        words = shortage_of(error)
        if words is None:
            raise
        raise OutOfHostMemory(f"{what}: {words}", **context) from error
