"""`mbarrier` objects: 64 bits of shared memory that count arrivals and bytes in flight, phase by phase.

A phase ends when nothing is pending: no arrival, and no byte of a copy. The layout of the words is the simulator's own;
for programs they are opaque. From the lowest bit: pending arrivals (20 bits), arrivals that each phase expects (20),
bytes in flight (23, modulo their range: a copy may end before it is announced), the phase's parity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

U64 = np.uint64
_COUNT, _BYTES = U64((1 << 20) - 1), U64((1 << 23) - 1)
_EXPECTED, _IN_FLIGHT, _PARITY = U64(20), U64(40), U64(63)


def _after(state: Any, arrivals: Any, dropped: Any, announced: Any) -> Any:
    """Return the word after some arrivals, fewer expected arrivals from the next phase on, and more bytes."""
    pending = (state - arrivals) & _COUNT
    expected = ((state >> _EXPECTED) - dropped) & _COUNT
    flight = ((state >> _IN_FLIGHT) + announced) & _BYTES
    ended = (pending == 0) & (flight == 0)
    parity = (state >> _PARITY) ^ ended.astype(U64)
    return np.where(ended, expected, pending) | expected << _EXPECTED | flight << _IN_FLIGHT | parity << _PARITY


_NONE = U64(0)
OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mbarrier.init": lambda state, count, _: (count & _COUNT) | (count & _COUNT) << _EXPECTED,
    "mbarrier.inval": lambda state, count, _: state & _NONE,
    "mbarrier.arrive": lambda state, count, announced: _after(state, count, _NONE, announced),
    "mbarrier.arrive_drop": lambda state, count, announced: _after(state, count, count, announced),
    "mbarrier.expect_tx": lambda state, announced, _: _after(state, _NONE, _NONE, announced),
    "mbarrier.complete_tx": lambda state, brought, _: _after(state, _NONE, _NONE, _NONE - brought),
}
"""The new value in memory for each operation, from the old one and its one or two operands, as in `atomics`."""


def pending_count(state: Any) -> Any:
    """Return how many arrivals a phase was waiting for when `state` was taken."""
    return (state & _COUNT).astype(np.uint32)


def phase_ended(now: Any, state: Any) -> Any:
    """Tell whether the phase in which `state` was taken is over."""
    return (now ^ state) >> _PARITY != 0


def parity_ended(now: Any, parity: Any) -> Any:
    """Tell whether the phase of that parity is over: the current one has the other parity."""
    return now >> _PARITY != (parity & np.uint32(1)).astype(U64)
