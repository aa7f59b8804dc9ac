"""Draws that were made before: no planning, and the short way of a repeated call.

A draw is recognised by its arguments (``questions.py``). What it does depends on nothing else but the position. The
function that moves the position is made once for a draw, with all that does not depend on the position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ..._arrays.arrays import DeviceArray
from ..._calls.stateful import KnownExecution, Moves
from .generator import RandomGenerator
from .positions import END, POISSON, Place, drawn, pace_of, room_at, step
from .questions import Question
from .states import OWN_PACE, State

if TYPE_CHECKING:
    from ..._generation.requests import CommandRequest

_MOST_KNOWN: Final = 64
"""Of one generator."""
_new: Final = tuple.__new__
"""Makes a named tuple in half of the time."""


class Drawing(NamedTuple):
    """What a draw takes of its generator."""

    draw: str
    numbers: int
    lam: float


class OwnDrawing(NamedTuple):
    """What a draw by a kernel of our own takes of its generator."""

    advanced: Callable[[int, int], int]
    """Returns the position behind some draws from a position on."""
    draws: int
    units: int
    """The positions that each draw takes; 0 if that differs."""
    places: tuple[int, int]
    """Where the key and the position are among the scalars of the kernel, in bytes."""


def learn(
    question: Question,
    generator: RandomGenerator,
    drawing: Drawing | OwnDrawing | None,
    requests: Sequence[CommandRequest],
    made: Sequence[DeviceArray],
    result: object,
) -> None:
    """Keep a draw, if it is one call of the library, or one kernel."""
    key, _, arrays = question
    known = generator._known
    if drawing is None or not isinstance(result, DeviceArray) or key in known:
        return
    if isinstance(drawing, OwnDrawing):
        moves = _own_moves(drawing)
        found = KnownExecution.of(None, arrays, requests, made, result, moves, _own_numbers, drawing.places)
    else:
        moves = _moves(drawing, generator)
        found = KnownExecution.of(generator._plan, arrays, requests, made, result, moves)
    if found is None:
        return
    if len(known) >= _MOST_KNOWN:
        del known[next(iter(known))]
    known[key] = found


def _own_numbers(before: State, steps: int) -> tuple[int, int]:
    """Return the key and the position that a kernel of our own is given."""
    return before[0][2], before[1] + steps


def _own_moves(drawing: OwnDrawing) -> Moves:
    """Return how a draw by a kernel of our own moves a generator."""
    advanced, draws, units, _ = drawing

    def behind(_generator: RandomGenerator, before: State) -> State | None:
        place, own, spawned = before
        found = advanced(own, draws)
        return _new(State, (place, found, spawned)) if found < END else None

    def room(before: State) -> int:
        return END - 1 - before.own

    return Moves(behind, draws * units, OWN_PACE, room)


def _moves(drawing: Drawing, generator: RandomGenerator) -> Moves:
    """Return how a draw moves its generator."""
    draw, numbers, lam = drawing
    place, bounds = generator._state.place, generator._bounds
    by_step, ordering = step(place, draw, numbers), place.ordering

    def behind(generator: RandomGenerator, before: State) -> State | None:
        found = by_step(before.place, bounds) or general(generator, before.place)
        return None if found is None else State(found, before.own, before.spawned)

    def general(generator: RandomGenerator, before: Place) -> Place | None:
        """Return the place behind it; None if the library makes a table, or another generator, or has no more."""
        if draw == POISSON and lam != generator._lam:
            return None
        try:
            found = drawn(before, draw, numbers, lam, bounds)
        except OverflowError:
            return None
        return found.place if found.place is found.drawn else None

    counted = pace_of(place, draw, numbers)
    if counted is None:
        return Moves(behind)
    pace, units = counted

    def room(before: State) -> int:
        return room_at(before.place, pace, bounds) if before.place.ordering == ordering else 0

    return Moves(behind, units, pace, room)
