"""Copies that a lane starts and does not wait for (`cp.async`). Here they are done at once, one lane after another."""

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import MISALIGNED_ADDRESS, AddressSpace, DeviceFault

_BULK = 16
"""The number of which addresses and sizes of bulk copies are multiples."""


def copy_each(memory: AddressSpace, to: Any, source: Any, size: Any, given: Any) -> None:
    """Copy in each lane `given` bytes from `source`, and zeros up to `size`.

    On a GPU the result is undefined when more bytes are given than are copied; one of capability 9.0 starts again from
    one.
    """
    for target, origin, whole, count in _lanes(to, source, size, given):
        view = memory.view(target, whole)
        taken = (count - 1) % whole + 1 if count else 0
        if taken:
            view[:taken] = memory.view(origin, taken)
        view[taken:] = 0


def copy_bulk(memory: AddressSpace, to: Any, source: Any, size: Any) -> None:
    """Copy in each lane a block of memory: 16 bytes or a multiple of them."""
    for target, origin, count in _lanes(to, source, size):
        if (target | origin | count) % _BULK:
            message = f"bulk copy of {count} bytes from {origin:#x} to {target:#x}, not all multiples of {_BULK}"
            raise DeviceFault(MISALIGNED_ADDRESS, message)
        if count:
            memory.view(target, count)[:] = memory.view(origin, count)


def _lanes(*columns: Any) -> Any:
    """Yield the values of one lane after another; a scalar is the same for all lanes."""
    return zip(*(column.tolist() for column in np.broadcast_arrays(*map(np.atleast_1d, columns))), strict=True)
