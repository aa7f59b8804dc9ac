"""The state of a generator as plain data, and the checks of what generators are made of."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..._values.errors import InvalidArgument
from ..._values.util import named, shown
from .positions import (
    BOUNDS,
    END,
    KINDS,
    LONG,
    MOST_LAM,
    POISSON,
    Bounds,
    Entry,
    Kind,
    Pace,
    Place,
    even,
    moved,
    recorded,
)
from .programs import FUNCTIONS

MOST_DIMENSIONS: Final = 20_000
_DRAWS: Final = frozenset(each.draw for each in FUNCTIONS.values()) - {LONG}
"""The draws that are recorded: those of 64-bit words are of quasi kinds alone, which have no record."""


OWN_PACE: Final = Pace("own", 1, 1, 0)
"""That of kernels of our own, which have a position beside that of the library. It is compared by its identity."""


class State(NamedTuple):
    """Where a generator stands."""

    place: Place
    """The place of cuRAND's generator."""
    own: int = 0
    """The number of the next element that a kernel of our own draws."""
    spawned: int = 0
    """How many generators were spawned."""

    def moved(self, steps: int, pace: Pace) -> State:
        """Return the state so many units of a pace behind."""
        if pace is OWN_PACE:
            return self._replace(own=self.own + steps)
        return self._replace(place=moved(self.place, pace, steps))

    def plain(self) -> dict[str, Any]:
        """Return the state as numbers, strings and lists."""
        kind, ordering, seed, dims, offset, record = self.place
        return {
            "kind": kind,
            "ordering": ordering,
            "seed": seed,
            "dims": dims,
            "offset": offset,
            "record": [list(entry) for entry in record],
            "own": self.own,
            "spawned": self.spawned,
        }


def read_state(plain: object, bounds: Bounds = BOUNDS) -> State:
    """Return the state that `State.plain` wrote. Raises `InvalidArgument` for anything else."""
    if not isinstance(plain, Mapping) or plain.keys() != State(Place("philox", "default", 0, 1)).plain().keys():
        raise InvalidArgument(f"a state is what the state of a generator was, not {shown(plain)}")
    check_kind(plain["kind"])
    ordering = check_ordering(plain["kind"], plain["ordering"])
    place = Place(
        plain["kind"],
        ordering,
        integer(plain["seed"], "the seed", 0, END),
        check_dims(plain["kind"], plain["dims"]),
        check_offset(plain["kind"], plain["offset"]),
        _record(plain["record"], plain["kind"], bounds),
    )
    return State(
        place, integer(plain["own"], "the own position", 0, END), integer(plain["spawned"], "the spawned", 0, END)
    )


def _record(plain: object, name: str, bounds: Bounds) -> tuple[Entry, ...]:
    if not isinstance(plain, list) or not all(isinstance(each, list) and len(each) == 3 for each in plain):
        raise InvalidArgument(f"the record of a state is a list of draws, not {shown(plain)}")
    kind, entries = KINDS[name], []
    for draw, numbers, lam in plain:
        if not isinstance(draw, str) or draw not in _DRAWS or not isinstance(lam, int | float):
            raise InvalidArgument(f"{shown([draw, numbers, lam])} is no draw of a state")
        if draw == POISSON and not 0 < lam <= MOST_LAM:
            raise InvalidArgument(f"the Poisson numbers of a state have a lambda of {lam!r}")
        entry = Entry(draw, integer(numbers, "the numbers of a draw", 1, END), float(lam))
        if entry != recorded(name, draw, even(name, draw, entry.numbers), entry.lam):
            raise InvalidArgument(f"{shown([draw, numbers, lam])} is no draw of a state of {name}")
        entries.append(entry)
    if entries and kind.is_quasi:
        raise InvalidArgument("a generator of a quasi kind has no record of draws")
    if kind.slots and (len(entries) > bounds.entries or sum(each.numbers for each in entries) > bounds.numbers):
        raise InvalidArgument(f"the record of a state has at most {bounds.entries} draws of {bounds.numbers} numbers")
    return tuple(entries)


def integer(value: object, name: str, least: int, end: int) -> int:
    """Return an integer from `least` up to `end`, without that. Raises `InvalidArgument` for anything else."""
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"{name} is an integer, not {shown(value)}") from None
    if not least <= found < end:
        raise InvalidArgument(f"{name} is at least {least:,} and less than {end:,}, not {shown(found)}")
    return found


def check_kind(kind: object) -> Kind:
    """Return the kind of this name. Raises `InvalidArgument` if there is none."""
    found = named(KINDS, kind)
    if found is None:
        raise InvalidArgument(f"kind is one of {', '.join(KINDS)}, not {shown(kind)}")
    return found


def check_ordering(kind: str, ordering: object) -> str:
    """Return the name of an ordering, "default" for None. Raises `InvalidArgument` for one that the kind lacks."""
    found = "default" if ordering is None else ordering
    if named(KINDS[kind].orderings, found) is None:
        known = ", ".join(KINDS[kind].orderings)
        why = "; the numbers of dynamic depend on the GPU, so no other could go on with them" * (found == "dynamic")
        raise InvalidArgument(f"the orderings of {kind} are {known}, not {shown(ordering)}{why}")
    return str(found)


def check_dims(kind: str, dims: object) -> int:
    """Return the dimensions. Raises `InvalidArgument` for a number that the kind does not have."""
    end = (MOST_DIMENSIONS if KINDS[kind].is_quasi else 1) + 1
    return integer(dims, f"dims of {kind}", 1, end)


def check_offset(kind: str, offset: object) -> int:
    """Return the offset. Raises `InvalidArgument` for one that the kind does not have."""
    found = KINDS[kind]
    end = found.points + found.is_quasi if found.has_offset else 1
    return integer(offset, f"offset of {kind}", 0, min(end, END))
