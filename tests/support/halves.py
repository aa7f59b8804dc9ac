"""Which cases of a test are for `make sweep` alone, where its parameters are the sides of a chessboard."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

_SEVERAL = type(pytest.param())


def place(mark: pytest.Mark, values: Mapping[str, Any]) -> int:
    """Which of the values of a parameter, or of several that go together, a case has.

    It is found by the values, because pytest's own indices of a case number the cases of a test, not these.
    """
    given, rows = mark.args[:2]
    names: Sequence[str] = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    alone = isinstance(given, str) and len(names) == 1
    wanted = [values[name] for name in names]
    for at, row in enumerate(rows):
        each = row.values if isinstance(row, _SEVERAL) else (row,) if alone else row
        if all(map(operator.is_, each, wanted)):
            return at
    raise LookupError(f"{wanted} are no values of {given}")


def is_black(marks: Sequence[pytest.Mark], values: Mapping[str, Any], *, fewest: int = 2) -> bool:
    """Whether a case is a black square; none is where fewer than so many marks `parametrize` make its test's sides.

    Each value of a parameter has white squares with every other parameter.
    """
    return len(marks) >= fewest and sum(place(mark, values) for mark in marks) % 2 == 1
