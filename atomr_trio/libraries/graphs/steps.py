"""The records of a graph's steps, and what one worker was told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import attrs

from ..._calls.plans import PlanKind
from ..._wire.protocol import Verb
from ..._wire.records.module import LAUNCH
from .records import encode_records

T = TypeVar("T")


@attrs.define(eq=False)
class Records:
    """The records of a step. They never change, do not refer to the arrays, and keep none of them alive."""

    count: int
    content: bytes
    has_calls: bool = False
    """True if calls of libraries may be among them."""
    plans: tuple[PlanKind, ...] = ()
    """The plans that those execute."""
    launch: bytes = b""
    """The payload of a step that is one launch; empty for any other."""

    @classmethod
    def of(
        cls, records: Sequence[tuple[Verb, bytes]], *, has_calls: bool = False, plans: tuple[PlanKind, ...] = ()
    ) -> Records:
        """Return the records of verbs and payloads, as the worker is told them."""
        launch = records[0][1] if len(records) == 1 and records[0][0] is LAUNCH else b""
        return cls(len(records), encode_records(records), has_calls, plans, launch)

    def with_launch(self, payload: bytes) -> Records:
        """Return those of the same launch with other arguments."""
        return Records(1, self.content[: -len(payload)] + payload, launch=payload)


ROW = 128

Rows = tuple[tuple[T, ...], ...]
"""A long immutable sequence, in rows of `ROW` items. A copy with one item changed shares the other rows. So it costs
no more for a graph of 10,000 nodes than for one of a hundred."""


def rows_of(items: Sequence[T]) -> Rows[T]:
    """Return a sequence in rows."""
    return tuple(tuple(items[first : first + ROW]) for first in range(0, len(items), ROW))


def with_item(rows: Rows[T], number: int, item: T) -> Rows[T]:
    """Return the sequence with another item in this place."""
    at, place = divmod(number, ROW)
    row = rows[at]
    return (*rows[:at], (*row[:place], item, *row[place + 1 :]), *rows[at + 1 :])
