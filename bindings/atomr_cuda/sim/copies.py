"""Copies that a lane asks for and does not wait for (`cp.async`); here they are done at once, each lane's in turn."""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import MISALIGNED_ADDRESS, AddressSpace, DeviceFault

_BULK = 16
"""Addresses and sizes of bulk copies are multiples of it."""


def copy_each(memory: AddressSpace, to: Any, source: Any, size: Any, given: Any) -> None:
    """In each lane, `given` bytes from `source`, and zeros up to `size`.

    What a GPU does when more bytes are given than are copied is undefined; one of capability 9.0 starts again from one.
    """
    for target, origin, whole, count in _lanes(to, source, size, given):
        view = memory.view(target, whole)
        taken = (count - 1) % whole + 1 if count else 0
        if taken:
            view[:taken] = memory.view(origin, taken)
        view[taken:] = 0


def copy_bulk(memory: AddressSpace, to: Any, source: Any, size: Any) -> None:
    """In each lane, a block of memory: 16 bytes or a multiple of them."""
    for target, origin, count in _lanes(to, source, size):
        if (target | origin | count) % _BULK:
            message = f"bulk copy of {count} bytes from {origin:#x} to {target:#x}, not all multiples of {_BULK}"
            raise DeviceFault(MISALIGNED_ADDRESS, message)
        if count:
            memory.view(target, count)[:] = memory.view(origin, count)


def _lanes(*columns: Any) -> Any:
    """The values of one lane after another; what is the same for all lanes may come as a scalar."""
    return zip(*(column.tolist() for column in np.broadcast_arrays(*map(np.atleast_1d, columns))), strict=True)
