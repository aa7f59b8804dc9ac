"""The arrays in device memory: those that the user's process has allocated, and other memory.

The user's process reports its arrays in a file, one JSON line for each one that is allocated or freed. Without the file
every region of the driver is its own array. Freed arrays are remembered for a while.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.affine import Array
from ..engine.memory import DEVICE, HEAP, LOCAL, MAPPED, PARAMETERS, SHARED

FILE = "arrays"
_TRANSIENT = frozenset({LOCAL, PARAMETERS, SHARED})
"""Memory that is allocated and freed with a launch, and is not remembered."""
_EMPTY = frozenset({DEVICE, HEAP, SHARED})
"""Memory that is not written when it is new; other memory may have been written by the host."""
_MOST_FREED = 4096
_NEAR = 4096
_REACH = 16 << 30
"""The greatest distance, in bytes, at which an address is reported as outside of an array that the kernel was given: as
far as a 32-bit index goes wrong."""

Index = int | tuple[int, ...]
"""The index of an item in an array: a number, or one for each of several dimensions."""


@dataclass(frozen=True, slots=True)
class Shares:
    """A range in which each block, or each lane, has its own part."""

    size: int
    """The size of a part, in bytes."""
    distance: int
    """The distance from the beginning of a part to that of the next, in bytes."""
    owns: Callable[[Array, Array, int], Array]
    """A function of lanes of the grid, their addresses, and the number of bytes: which accesses go to the lane's own
    part."""


@dataclass(slots=True, eq=False)
class Extent:
    """A range of bytes that belong together."""

    start: int
    size: int
    what: str
    shape: tuple[int, ...] | None = None
    """The shape of the array; None if the range is plain bytes."""
    shares: Shares | None = None
    """The way blocks or lanes share the range, if they do."""
    written: Array | None = None
    """For each byte, whether it was written; None if that is not known, or not checked."""

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def private(self) -> bool:
        """True if each lane has a part that no other lane can access."""
        return self.what == LOCAL

    def __str__(self) -> str:
        size = self.shares.size if self.shares else self.size
        return self.what if self.shape is not None else f"{self.what} of {size:,} bytes"

    def distance(self, address: int, size: int) -> int:
        """Return the number of bytes between the range and an access; 0 if they touch or overlap."""
        return max(0, self.start - (address + size), address - self.end)

    def index(self, address: int, size: int) -> Index:
        """Return the item at an address; in a range of plain bytes an access of `size` bytes is an item."""
        within = address - self.start
        flat = (within % self.shares.distance if self.shares else within) // self.item(size)
        if self.shape is None or len(self.shape) < 2 or not 0 <= flat < math.prod(self.shape):
            return flat
        return tuple(map(int, np.unravel_index(flat, self.shape)))

    def item(self, size: int) -> int:
        """Return the bytes of an item."""
        return size if self.shape is None else max(1, self.size // max(1, math.prod(self.shape)))


@dataclass(frozen=True, slots=True)
class Table:
    """All extents at one moment, by their addresses."""

    extents: list[Extent]
    starts: Array
    ends: Array

    def find(self, low: int, high: int) -> Extent | None:
        """Return the extent that holds all bytes from `low` to before `high`."""
        at = int(np.searchsorted(self.starts, np.uint64(low), "right")) - 1
        return self.extents[at] if at >= 0 and high <= self.extents[at].end else None

    def places(self, addresses: Array, size: int) -> Array:
        """Return for each access the number of the extent that holds it; -1 if there is none."""
        found = np.searchsorted(self.starts, addresses, "right") - 1
        inside = (found >= 0) & (addresses <= self.ends[found] - np.uint64(size)) & (self.ends[found] >= size)
        return np.where(inside, found, -1)

    def around(self, address: int) -> list[Extent]:
        """Return the extents before and after an address."""
        at = int(np.searchsorted(self.starts, np.uint64(address), "right"))
        return self.extents[max(0, at - 1) : at + 1]


class Arrays:
    """The extents of one process.  Safe to use from several threads."""

    def __init__(self, folder: Path | None, *, shadowed: bool = False) -> None:
        self._file = folder / FILE if folder else None
        self._shadowed = shadowed
        self._at = 0
        self._lock = threading.RLock()
        self._live: dict[int, Extent] = {}
        self._freed: dict[int, Extent] = {}
        self._table: Table | None = None

    @property
    def table(self) -> Table:
        """Return all extents at this moment."""
        with self._lock:
            if self._table is None:
                extents = sorted(self._live.values(), key=lambda extent: extent.start)
                starts = np.array([extent.start for extent in extents], np.uint64)
                self._table = Table(extents, starts, np.array([extent.end for extent in extents], np.uint64))
            return self._table

    def add(self, address: int, size: int, what: str) -> None:
        """A region became accessible. If there is a file, the arrays in mapped memory are reported in it one by one."""
        if what != MAPPED or self._file is None:
            self._insert(Extent(address, size, what), empty=what in _EMPTY)

    def remove(self, address: int) -> None:
        """The region at an address is no longer accessible."""
        with self._lock:
            gone = self._live.pop(address, None)
            self._table = None
            if gone and gone.what not in _TRANSIENT:
                gone.written = None
                self._freed[address] = gone
                if len(self._freed) > _MOST_FREED:
                    del self._freed[next(iter(self._freed))]

    def at(self, address: int) -> Extent:
        """Return the extent that begins at an address."""
        return self._live[address]

    def _insert(self, extent: Extent, *, empty: bool) -> None:
        with self._lock:
            if self._shadowed and empty:
                extent.written = np.zeros(extent.size, np.bool_)
            if extent.what not in _TRANSIENT:  # the extents that were there before are freed
                reused = [
                    gone.start for gone in self._freed.values() if gone.start < extent.end and extent.start < gone.end
                ]
                for address in reused:
                    del self._freed[address]
            self._live[extent.start] = extent
            self._table = None

    def refresh(self) -> None:
        """Read what the user's process has written since the last time."""
        if self._file is None:
            return
        with self._lock, contextlib.suppress(FileNotFoundError), self._file.open("rb") as file:
            file.seek(self._at)
            whole = file.read().rpartition(b"\n")[0]
            self._at += len(whole) + bool(whole)
            for line in whole.splitlines():
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        if "freed" in event:
            self.remove(event["freed"])
        elif event["size"]:
            self._insert(_told(event), empty=not event.get("written"))

    def written(self, address: int, size: int) -> None:
        """The host, a copy or a library may have written these bytes."""
        self.refresh()
        table = self.table
        first = max(0, int(np.searchsorted(table.starts, np.uint64(address), "right")) - 1)
        last = int(np.searchsorted(table.starts, np.uint64(address + size)))
        for extent in table.extents[first:last]:
            if extent.written is not None:
                extent.written[max(0, address - extent.start) : max(0, address + size - extent.start)] = True

    def freed_at(self, address: int) -> Extent | None:
        """Return the last freed extent that held the byte at this address."""
        with self._lock:
            held = (extent for extent in reversed(self._freed.values()) if extent.start <= address < extent.end)
            return next(held, None)

    def nearest(self, address: int, size: int, given: Iterable[Extent]) -> Extent | None:
        """Return the array for which an access was most likely meant: the nearest that the kernel was given, or a
        neighbour."""
        near = [extent for extent in self.table.around(address) if extent.distance(address, size) <= _NEAR]
        near += [extent for extent in given if extent.distance(address, size) <= _REACH]
        return min(near, key=lambda extent: extent.distance(address, size), default=None)


def _told(event: dict[str, Any]) -> Extent:
    """Describe an array in the words of the user's process."""
    shape = tuple(event.get("shape") or ())
    place = f" of {event['place']}" if event.get("place") else ""
    what = f"array {event.get('dtype', 'uint8')}{list(shape)}{place}"
    return Extent(event["allocated"], event["size"], what, shape)
