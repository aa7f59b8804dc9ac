"""Reads of memory that nobody has written: of which bytes that is known is kept in the extents (`arrays`).

A read is wrong if none of its bytes was ever written.  One that a few bytes of padding share is not.
"""

from __future__ import annotations

import numpy as np

from ..affine import Array
from .arrays import Extent
from .races import Kind

_READS = frozenset({"read", "strong read", "atomic"})
_WRITES = frozenset({"write", "strong write", "atomic"})


def unwritten(extent: Extent, kind: Kind, addresses: Array, size: int) -> Array | None:
    """The places of those accesses that read what nobody has written; then the extent counts the writes among them.

    An access that is inside of the extent is taken for granted.  None stands for no such access.
    """
    if extent.written is None:
        return None
    first = (addresses - np.uint64(extent.start)).view(np.int64)
    missing = None
    if kind in _READS:
        known = extent.written[first]
        for byte in range(1, size):
            if known.all():
                break
            known |= extent.written[first + byte]
        missing = np.flatnonzero(~known)
    if kind in _WRITES:
        for byte in range(size):
            extent.written[first + byte] = True
    return missing if missing is not None and missing.size else None
