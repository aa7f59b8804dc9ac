"""Reads of memory that was never written: the extents (`arrays`) record which bytes were written.

A read is an error if none of its bytes was ever written. It is not an error if only some bytes, such as padding, were
not written.
"""

from __future__ import annotations

import numpy as np

from ..engine.affine import Array
from .arrays import Extent
from .races import Kind

_READS = frozenset({"read", "strong read", "atomic"})
_WRITES = frozenset({"write", "strong write", "atomic"})


def unwritten(extent: Extent, kind: Kind, addresses: Array, size: int) -> Array | None:
    """Return the places of the accesses that read memory that was never written; then record the writes.

    An access that is inside of the extent is assumed to be valid. None means that there is no such access.
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
