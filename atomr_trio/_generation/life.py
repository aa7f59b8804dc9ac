"""The life of one generation: its states, the events that change them, and its loss.

An event is legal in a state exactly when `TRANSITIONS` has an entry for the pair; anything else raises ValueError and
changes nothing. Nothing outside of this file changes the state.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import trio

from .._values.shortage import host_limits
from .loss import Loss


@enum.unique
class State(enum.Enum):
    """The state of a generation."""

    SPAWNED = "spawned"
    """Its worker has not greeted yet."""
    GREETED = "greeted"
    """Its worker has a process, and no context of this generation."""
    ADOPTED = "adopted"
    """Its worker was handed page, ring and chunks, and makes its context."""
    READY = "ready"
    """Its worker runs records; a standby stays in this state until it takes over."""
    SERVING = "serving"
    """It takes requests."""
    RESETTING = "resetting"
    """Its worker releases everything, so that another generation can adopt it."""
    LOST = "lost"
    """It has ended; what its worker has still written is read."""
    BURIED = "buried"
    """It is settled before its worker was reaped: nothing that the worker still says counts."""
    RELEASED = "released"
    """Its page, ring and descriptors are closed."""


@enum.unique
class Event(enum.Enum):
    """The events of a generation."""

    HELLO = "hello"
    ADOPTED = "adopted"
    STARTED = "started"
    SERVES = "serves"
    RESET = "reset"
    LOST = "lost"
    BURIED = "buried"
    RELEASED = "released"


# A state that maps an event to itself needs no change.
#
# - RELEASED and LOST are legal in every state: a start may be cancelled, and a forked child ends its copy at any time.
# - What the worker had said before it was lost, or read that it shall release everything, may be heard afterwards.
# - A standby may be lost in the moment in which it takes over.
# - A worker that was reset greets again, and is nobody's.
TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = MappingProxyType(
    {
        State.SPAWNED: {
            Event.HELLO: State.GREETED,
            Event.LOST: State.LOST,
            Event.RELEASED: State.RELEASED,
        },
        State.GREETED: {
            Event.ADOPTED: State.ADOPTED,
            Event.LOST: State.LOST,
            Event.RELEASED: State.RELEASED,
        },
        State.ADOPTED: {
            Event.STARTED: State.READY,
            Event.RESET: State.RESETTING,
            Event.LOST: State.LOST,
            Event.RELEASED: State.RELEASED,
        },
        State.READY: {
            Event.SERVES: State.SERVING,
            Event.RESET: State.RESETTING,
            Event.LOST: State.LOST,
            Event.RELEASED: State.RELEASED,
        },
        State.SERVING: {
            Event.RESET: State.RESETTING,
            Event.LOST: State.LOST,
            Event.RELEASED: State.RELEASED,
        },
        State.RESETTING: {
            Event.STARTED: State.RESETTING,
            Event.HELLO: State.GREETED,
            Event.LOST: State.LOST,
            Event.RELEASED: State.RELEASED,
        },
        State.LOST: {
            Event.HELLO: State.LOST,
            Event.STARTED: State.LOST,
            Event.SERVES: State.LOST,
            Event.LOST: State.LOST,
            Event.BURIED: State.BURIED,
            Event.RELEASED: State.RELEASED,
        },
        State.BURIED: {
            Event.LOST: State.BURIED,
            Event.RELEASED: State.RELEASED,
        },
        State.RELEASED: {
            Event.LOST: State.RELEASED,
            Event.RELEASED: State.RELEASED,
        },
    }
)

_RUNS_RECORDS: Final = frozenset({State.READY, State.SERVING})


class Life:
    """The identity and the state of one generation, which its parts share."""

    def __init__(self, device: int, number: int, *, greeted: bool) -> None:
        self.device = device
        self.number: int = number
        self.state: State = State.GREETED if greeted else State.SPAWNED
        self.loss: Loss | None = None
        self.scope: trio.CancelScope = trio.CancelScope()
        """The scope of its tasks; its loss cancels it."""
        self.in_service: trio.Event = trio.Event()
        """Set when it takes requests; a standby's is not, yet."""
        self.relieved: trio.Event = trio.Event()
        """Set when it is not a standby any more: it takes over, or is lost."""
        self._told: list[Callable[[], None]] = []

    @property
    def ready(self) -> bool:
        """True if its worker runs records."""
        return self.state in _RUNS_RECORDS

    def move(self, event: Event) -> None:
        """Go on to the state after an event. Raises `ValueError` if the event is not legal."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise ValueError(f"event {event.name} is not legal in state {self.state.name} of generation {self.number}")
        self.state = following

    def tell(self, told: Callable[[], None]) -> None:
        """Call a function when the generation is lost."""
        self._told.append(told)

    def tell_no_more(self, told: Callable[[], None]) -> None:
        """Forget a function that `tell` was given."""
        self._told.remove(told)

    def serve(self) -> None:
        """Begin to take requests."""
        self.move(Event.SERVES)
        self.in_service.set()

    def lose(self, loss: Loss) -> None:
        """End the generation. Only the first reason counts."""
        if self.loss is None:
            self.loss = loss
            self.move(Event.LOST)
            self.relieved.set()
            for told in tuple(self._told):
                told()
            self.scope.cancel(reason=f"generation {self.number} of device {self.device} lost: {loss.reason}")

    def host_limits(self, what: str, operation: str) -> contextlib.AbstractContextManager[None]:
        """Raise an `OSError` of a limit of this process, within the block, as `OutOfHostMemory` of an operation."""
        return host_limits(what, device=self.device, generation=self.number, operation=operation)
