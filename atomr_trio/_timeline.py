"""Tickets: what has been published on each lane, and what became of it.

A command that was published has a ticket; the GPU writes the ticket into the lane's counter when everything before it
on the lane is done. Seeing that is a comparison, no call. This file keeps the accounts; who sleeps and who wakes is in
``_generation.py``.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from ._errors import DeviceError
from ._memory import Block, Recipe, Ticket
from .worker.channel import TimelinePage
from .worker.protocol import LANE_NAMES, LANES, Role

Operand = tuple[Block, Role]


class CommandOwner(Protocol):
    """Whoever published a command hears exactly once what became of it."""

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Its ticket was reached; `error` says that this command alone failed, `value` is what it returned."""

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Its generation was lost before its ticket was reached: it may or may not have run."""


class Command:
    """One published command."""

    __slots__ = ("engine", "hang_timeout", "healed", "lane", "operands", "operation", "owner", "ticket", "waits")

    def __init__(
        self,
        lane: int,
        ticket: int,
        engine: str,
        operation: str,
        operands: Sequence[Operand],
        owner: CommandOwner,
        waits: tuple[Ticket, ...],
        hang_timeout: float | None = None,
    ) -> None:
        self.lane: int = lane
        self.ticket: int = ticket
        self.engine: str = engine
        self.operation: str = operation
        self.operands: Sequence[Operand] = operands
        self.owner: CommandOwner = owner
        self.waits: tuple[Ticket, ...] = waits
        self.hang_timeout: float | None = hang_timeout
        """Seconds that it may run, if its caller said so; otherwise the device's own limit counts."""
        self.healed: list[tuple[Block, str | None, Recipe | None]] | None = None
        """Blocks that it overwrites whole, with what it makes up for: what had torn them, what they were to hold."""

    def __repr__(self) -> str:
        return f"<Command {self.operation} {LANE_NAMES[self.lane]}:{self.ticket}>"


class LaneBook:
    """The unfinished commands of one lane, oldest first."""

    __slots__ = ("front", "front_since", "in_flight", "index", "issued")

    def __init__(self, index: int) -> None:
        self.index = index
        self.issued = 0
        self.in_flight: collections.deque[Command] = collections.deque()
        self.front = 0
        """The ticket whose time is being taken."""
        self.front_since = 0.0


class Timeline:
    """All lanes of one generation."""

    def __init__(self, page: TimelinePage) -> None:
        self.page = page
        self.lanes: tuple[LaneBook, ...] = tuple(LaneBook(index) for index in range(LANES))

    def reached(self, ticket: Ticket) -> bool:
        """Whether the GPU has reached a ticket."""
        return ticket[1] <= self.page.finished(ticket[0])

    def still_open(self, waits: set[Ticket]) -> tuple[Ticket, ...]:
        """The newest ticket of each lane among `waits` that is not reached yet: a lane runs in order."""
        newest: dict[int, int] = {}
        for lane, ticket in waits:
            if ticket > newest.get(lane, 0):
                newest[lane] = ticket
        return tuple(wait for wait in newest.items() if not self.reached(wait))

    def take_finished(self) -> Iterator[Command]:
        """Remove and give every command whose ticket was reached, lane by lane, oldest first."""
        finished = self.page.finished
        for lane in self.lanes:
            in_flight = lane.in_flight
            if in_flight:
                done = finished(lane.index)
                while in_flight and in_flight[0].ticket <= done:
                    yield in_flight.popleft()

    def take_rest(self) -> Iterator[Command]:
        """Remove and give what is left, when the generation is lost."""
        for lane in self.lanes:
            while lane.in_flight:
                yield lane.in_flight.popleft()

    @property
    def idle(self) -> bool:
        """Whether nothing is unfinished."""
        return not any(lane.in_flight for lane in self.lanes)

    @property
    def counters(self) -> tuple[int, ...]:
        """The ticket that each lane has reached."""
        return tuple(self.page.finished(lane.index) for lane in self.lanes)

    def overdue(self, now: float, default: float | None) -> Command | None:
        """A command that has run longer than it may since all it waited for was done.

        `default` is the limit in seconds of a command that has none of its own; None is no limit.
        """
        for lane in self.lanes:
            if not lane.in_flight:
                lane.front = 0
                continue
            front = lane.in_flight[0]
            # The worker waits by an event, which covers all that the other lane had been given by then. So a command
            # that waited for another lane is blamed only once that lane is empty; till then that lane's own front is.
            held_up = any(self.lanes[other].in_flight or not self.reached((other, on)) for other, on in front.waits)
            if lane.front != front.ticket or held_up:
                lane.front = front.ticket
                lane.front_since = now
                continue
            limit = front.hang_timeout or default
            if limit is not None and now - lane.front_since > limit:
                return front
        return None
