"""Free spans in the order of their sizes, so that the smallest one that is large enough is found fast."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator


class Sizes:
    """The sizes and addresses of free spans, in order. Rows have a bounded length: a change moves a part of one."""

    LONGEST = 1024

    def __init__(self) -> None:
        self._rows: list[list[tuple[int, int]]] = [[]]
        """Only a single row may be empty."""

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def add(self, item: tuple[int, int]) -> None:
        """Insert an item in order."""
        at = self._row_of(item)
        row = self._rows[at]
        bisect.insort(row, item)
        if len(row) > self.LONGEST:
            half = len(row) // 2
            self._rows[at : at + 1] = [row[:half], row[half:]]

    def remove(self, item: tuple[int, int]) -> None:
        """Remove an item, which must be there."""
        at = self._row_of(item)
        row = self._rows[at]
        del row[bisect.bisect_left(row, item)]
        if not row and len(self._rows) > 1:
            del self._rows[at]

    def replace(self, item: tuple[int, int], new: tuple[int, int]) -> None:
        """Put another item in the place of one that is there. It is cheap where the order stays."""
        row = self._rows[self._row_of(item)]
        at = bisect.bisect_left(row, item)
        if (at and row[at - 1] > new) or (at + 1 < len(row) and row[at + 1] < new) or len(self._rows) > 1:
            self.remove(item)
            self.add(new)
        else:
            row[at] = new

    def first(self, size: int) -> tuple[int, int] | None:
        """Return the first item of at least this size."""
        rows = self._rows
        if len(rows) > 1:
            return next(self.since((size, 0)), None)
        row = rows[0]
        at = bisect.bisect_left(row, (size, 0))
        return row[at] if at < len(row) else None

    def since(self, item: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """Yield the items that are not below this one."""
        first = self._row_of(item)
        yield from self._rows[first][bisect.bisect_left(self._rows[first], item) :]
        for row in self._rows[first + 1 :]:
            yield from row

    def last(self) -> tuple[int, int]:
        """Return the largest item; there must be one."""
        return self._rows[-1][-1]

    def _row_of(self, item: tuple[int, int]) -> int:
        """Return the last row that begins at or before the item, or the first row."""
        if len(self._rows) == 1:
            return 0
        return max(0, bisect.bisect_right(self._rows, item, key=operator.itemgetter(0)) - 1)
