"""Draws that were made before: no planning, and the short way of a repeated call.

A draw is recognised by its arguments. What it does depends on nothing else but the position, which is moved here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import trio

from ..._arrays.arrays import DeviceArray
from ..._calls.stateful import KnownExecution
from .generator import DefaultGenerator, RandomGenerator
from .positions import END, POISSON, Place, drawn, step
from .states import State

if TYPE_CHECKING:
    from ..._calls.batch_sender import BatchSender
    from ..._calls.launching import AwaitedLaunch, AwaitedLaunches
    from ..._generation.core import DeviceCore
    from ..._generation.requests import CommandRequest

_MOST_KNOWN: Final = 64
"""Of one generator."""
_new: Final = tuple.__new__
"""Makes a named tuple in half of the time."""
_PLAIN: Final = frozenset({int, bool, str, type(None), type})


Question = tuple[Hashable, RandomGenerator, tuple[DeviceArray, ...]]
"""The arguments of a draw: a key, its generator, and its `out`, if it was given one."""


def question_of(
    device: DeviceCore, plan: Callable[..., object], arguments: Sequence[object], keywords: Mapping[str, object]
) -> Question | None:
    """Return the question of a draw; None for arguments that may be equal but mean different things."""
    parts: list[Hashable] = [plan]
    generator: object = None
    arrays: tuple[DeviceArray, ...] = ()
    for value in arguments:
        if not _add(parts, value):
            return None
    for name, value in keywords.items():
        kind = type(value)
        if name == "generator":
            generator = value
        elif kind in _PLAIN:  # the usual ones, without a call
            parts += (name, kind, value)  # type: ignore[arg-type]
        elif isinstance(value, DeviceArray):
            form = value._form or value._find_form()
            if form is None:
                return None
            arrays = (value,)
            parts += (name, form)
        elif _add(parts, value):
            parts.append(name)
        else:
            return None
    if generator is None:
        default = device.part(DefaultGenerator)
        generator = default.generator or default.get()
    elif type(generator) is not RandomGenerator or generator._device is not device:
        return None
    return tuple(parts), generator, arrays


def _add(parts: list[Hashable], value: object) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        parts += (kind, value)  # type: ignore[arg-type]
    elif kind is float:
        parts += (kind, value, math.copysign(1.0, value))  # type: ignore[arg-type]
    elif (kind is tuple and all(type(each) is int for each in value)) or isinstance(value, np.dtype):  # type: ignore[attr-defined]
        parts.append(value)
    else:
        return False
    return True


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
    places: tuple[int, int]
    """Where the key and the position are among the scalars of the kernel, in bytes."""


class KnownOwnDraw:
    """A draw by a kernel of our own that was made before. The seed and the position are numbers that it is given."""

    __slots__ = ("_drawing", "_execution")

    def __init__(self, execution: KnownExecution, drawing: OwnDrawing) -> None:
        self._execution = execution
        self._drawing = drawing

    @trio.lowlevel.enable_ki_protection
    def send(self, batch: BatchSender, question: Question) -> DeviceArray | None:
        """Make it once more in a batch. Returns its result; None, without any effect, if it must be planned."""
        _, generator, arrays = question
        before = generator._state
        place, own, spawned = before
        behind = self._drawing.advanced(own, self._drawing.draws)
        if behind >= END:
            return None
        result = self._execution.send(batch, arrays, None, before, None, (place.seed, own))
        if result is not None:
            generator._state = _new(State, (place, behind, spawned))
        return result

    @trio.lowlevel.enable_ki_protection
    def begin(self, launches: AwaitedLaunches, question: Question) -> tuple[AwaitedLaunch, DeviceArray] | None:
        """Begin it once more. Returns what to wait for, and its result; None if it must be planned."""
        _, generator, arrays = question
        before = generator._state
        place, own, spawned = before
        behind = self._drawing.advanced(own, self._drawing.draws)
        if behind >= END:
            return None
        begun = self._execution.begin(launches, arrays, None, before, None, (place.seed, own))
        if begun is not None:
            generator._state = _new(State, (place, behind, spawned))
        return begun


class KnownDraw:
    """A draw of the library that was made before."""

    __slots__ = ("_drawing", "_execution", "_step")

    def __init__(self, execution: KnownExecution, drawing: Drawing, place: Place) -> None:
        self._execution = execution
        self._drawing = drawing
        self._step = step(place, drawing.draw, drawing.numbers)

    @trio.lowlevel.enable_ki_protection
    def send(self, batch: BatchSender, question: Question) -> DeviceArray | None:
        """Make it once more in a batch. Returns its result; None, without any effect, if it must be planned."""
        _, generator, arrays = question
        before = generator._state
        place, own, spawned = before
        behind = self._step(place, generator._bounds) or self._behind(generator, place)
        if behind is None:
            return None
        result = self._execution.send(batch, arrays, place, before, behind)
        if result is not None:
            generator._state = _new(State, (behind, own, spawned))
        return result

    @trio.lowlevel.enable_ki_protection
    def begin(self, launches: AwaitedLaunches, question: Question) -> tuple[AwaitedLaunch, DeviceArray] | None:
        """Begin it once more. Returns what to wait for, and its result; None if it must be planned."""
        _, generator, arrays = question
        before = generator._state
        place, own, spawned = before
        behind = self._step(place, generator._bounds) or self._behind(generator, place)
        if behind is None:
            return None
        begun = self._execution.begin(launches, arrays, place, before, behind)
        if begun is not None:
            generator._state = _new(State, (behind, own, spawned))
        return begun

    def _behind(self, generator: RandomGenerator, place: Place) -> Place | None:
        """Return the place behind it; None if the library makes a table, or another generator, or has no more."""
        draw, numbers, lam = self._drawing
        if draw == POISSON and lam != generator._lam:
            return None
        try:
            found = drawn(place, draw, numbers, lam, generator._bounds)
        except OverflowError:
            return None
        return found.place if found.place is found.drawn else None


def learn(
    question: Question,
    drawing: Drawing | OwnDrawing | None,
    requests: Sequence[CommandRequest],
    made: Sequence[DeviceArray],
    result: object,
) -> None:
    """Keep a draw, if it is one call of the library, or one kernel."""
    key, generator, arrays = question
    known = generator._known
    if drawing is None or not isinstance(result, DeviceArray) or key in known:
        return
    found: KnownDraw | KnownOwnDraw
    if isinstance(drawing, OwnDrawing):
        execution = KnownExecution.of(None, arrays, requests, made, result, drawing.places)
        if execution is None:
            return
        found = KnownOwnDraw(execution, drawing)
    else:
        execution = KnownExecution.of(generator._plan, arrays, requests, made, result)
        if execution is None:
            return
        found = KnownDraw(execution, drawing, generator._state.place)
    if len(known) >= _MOST_KNOWN:
        del known[next(iter(known))]
    known[key] = found
