"""The states of a request, and every change of them.

    QUEUED -> STARTED -> SETTLED          the ordinary life
    QUEUED -> CANCELLED                   the caller was cancelled before it began: it never runs
    QUEUED -> SETTLED                     refused when taken (stale array), or the device closed or failed
    STARTED -> ABANDONED -> SETTLED       the caller was cancelled afterwards: it goes on, its outcome is dropped

A request's class sets its state itself, because a call for it would cost every request. The tests have each change
checked against the table.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


class RequestState(enum.Enum):
    """The state of a request; see the module's docstring."""

    QUEUED = "queued"
    STARTED = "started"
    SETTLED = "settled"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"


FIRST: Final = RequestState.QUEUED

TRANSITIONS: Final[Mapping[RequestState, frozenset[RequestState]]] = MappingProxyType(
    {
        RequestState.QUEUED: frozenset({RequestState.STARTED, RequestState.SETTLED, RequestState.CANCELLED}),
        RequestState.STARTED: frozenset({RequestState.SETTLED, RequestState.ABANDONED}),
        RequestState.ABANDONED: frozenset({RequestState.SETTLED}),
        RequestState.SETTLED: frozenset(),
        RequestState.CANCELLED: frozenset(),
    }
)

OPEN: Final = tuple(state for state, following in TRANSITIONS.items() if RequestState.SETTLED in following)
"""The states of a request that is not settled yet."""


def check_change(before: RequestState | None, after: RequestState) -> None:
    """Raise `ValueError` for a change that the table does not have; `before` is None for a new request."""
    if after is not FIRST if before is None else after not in TRANSITIONS[before]:
        was = "new" if before is None else before.value
        raise ValueError(f"a request that is {was} cannot become {after.value}")
