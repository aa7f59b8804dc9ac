"""The state of each granule of memory that a launch accesses: columns of numbers, allocated page by page.

A page is found by its address in two steps, so the cost depends only on the memory that is accessed.
"""

from __future__ import annotations

import numpy as np

from ..engine.memory import Array

_PAGE_BITS = 12
_SEGMENT_BITS = 30
_PAGES = 1 << (_SEGMENT_BITS - _PAGE_BITS)
_FIRST_PAGES = 64


class Shadow:
    """Some numbers for each granule: a power of two of bytes, at most a page.  They are zero until they are set."""

    def __init__(self, granule: int, columns: int) -> None:
        self._shift: int = granule.bit_length() - 1
        self._each: int = 1 << (_PAGE_BITS - self._shift)
        self._segments: dict[int, Array] = {}
        """For each segment of the address space, the place of each of its pages; 0 means that there is none."""
        self._free: list[int] = []
        self._used: int = 1
        self.columns: list[Array] = [np.zeros(_FIRST_PAGES * self._each, np.int64) for _ in range(columns)]

    def find(self, addresses: Array) -> Array:
        """Return the places of these addresses' granules in the columns; the columns may have moved afterwards."""
        addresses = addresses.view(np.int64)
        numbers = addresses >> _SEGMENT_BITS
        first = int(numbers[0])
        if (numbers == first).all():
            return self._find_in(first, addresses)
        found: Array = np.empty(addresses.size, np.int64)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            found[here] = self._find_in(number, addresses[here])
        return found

    def _find_in(self, number: int, addresses: Array) -> Array:
        table = self._segments.get(number)
        if table is None:
            table = self._segments[number] = np.zeros(_PAGES, np.int32)
        pages = addresses >> _PAGE_BITS & _PAGES - 1
        kept = table[pages]
        if not kept.all():
            for page in np.unique(pages[kept == 0]).tolist():
                table[page] = self._new()
            kept = table[pages]
        found: Array = kept * np.int64(self._each) + (addresses >> self._shift & self._each - 1)
        return found

    def _new(self) -> int:
        if self._free:
            return self._free.pop()
        if (self._used + 1) * self._each > self.columns[0].size:
            self.columns = [np.concatenate((column, np.zeros_like(column))) for column in self.columns]
        self._used += 1
        return self._used - 1

    def clear(self, address: int, size: int) -> None:
        """Set the numbers of a range of memory to zero."""
        end = address + size
        while address < end:
            after = min(end, (address >> _PAGE_BITS) + 1 << _PAGE_BITS)
            self._clear_in_page(address, after)
            address = after

    def _clear_in_page(self, address: int, end: int) -> None:
        table = self._segments.get(address >> _SEGMENT_BITS)
        page = address >> _PAGE_BITS & _PAGES - 1
        if table is None or not table[page]:
            return
        kept = int(table[page])
        base = (address >> _PAGE_BITS << _PAGE_BITS >> self._shift) - kept * self._each
        for column in self.columns:
            column[(address >> self._shift) - base : ((end - 1) >> self._shift) + 1 - base] = 0
        if end - address == 1 << _PAGE_BITS:
            table[page] = 0
            self._free.append(kept)
