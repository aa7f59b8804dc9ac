"""Tickets: what has been published on each lane, and what became of it.

A command that was published has a ticket; the GPU writes the ticket into the lane's counter when everything before it
on the lane is done. Seeing that is a comparison, no call. This file keeps the accounts; who sleeps and who wakes is in
``_generation.py``.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from ._errors import DeviceError
from ._memory import Block, Recipe, Ticket
from .worker.channel import TimelinePage
from .worker.protocol import LANE_NAMES, LANES, MAX_LANES, Role
from .worker.ring import group_index

Operand = tuple[Block, Role]

ORPHANS_AT_ONCE: Final = 64
"""Commands that one call sends at most for graphs, modules or events that nobody has any more. What it makes itself is
one of them, so all have their turn; and no call fills a lane that others want to use."""


def lane_name(index: int) -> str:
    """What a lane is called."""
    return LANE_NAMES[index] if index < LANES else f"lane {index}"


def the_lane(index: int) -> str:
    """The same in a sentence."""
    return f"the {lane_name(index)} lane" if index < LANES else lane_name(index)


class CommandOwner(Protocol):
    """Whoever published a command hears exactly once what became of it."""

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Its ticket was reached; `error` says that this command alone failed, `value` is what it returned."""

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Its generation was lost before its ticket was reached: it may or may not have run."""


class Command:
    """One published command."""

    __slots__ = (
        "batched",
        "blocks",
        "engine",
        "hang_timeout",
        "healed",
        "lane",
        "operands",
        "operation",
        "owner",
        "place",
        "ticket",
        "waits",
    )

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
        *,
        batched: bool = False,
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
        self.blocks: bool = False
        """Whether its calls may hold the thread that makes them: the driver may have them wait for all that runs."""
        self.place: int = 0
        """The number of its record, counted over all lanes."""
        self.batched: bool = batched
        """Whether a batch has sent it, or has had it brought along, or nobody waits for it."""
        self.healed: list[tuple[Block, str | None, Recipe | None]] | None = None
        """Blocks that it overwrites whole, with what it makes up for: what had torn them, what they were to hold."""

    def __repr__(self) -> str:
        return f"<Command {self.operation} {lane_name(self.lane)}:{self.ticket}>"


Launch = tuple[int, "LaunchOwner", "Launchable", tuple[object, ...]]
"""One launch of a batch: its ticket, the batch, what was launched, and the arguments, which this keeps alive. A tuple,
because a batch makes one for each of its launches; what is worked out of it is needed only if something goes wrong."""


class Launchable(Protocol):
    """A kernel, or a library's call that is repeated."""

    @property
    def _engine(self) -> str:
        """The engine whose work it is."""

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        """The operation, in words, and what it does to which memory."""


class LaunchOwner(Protocol):
    """A batch hears what became of its launches, several at a time."""

    def launches_finished(self, count: int) -> None:
        """So many have finished, whether they failed or not."""

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """One of those that finished has failed alone."""

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """The generation was lost before the tickets of so many were reached."""


class Launches:
    """Launches of one lane that have finished, oldest first."""

    __slots__ = ("book", "items")

    def __init__(self, book: LaneBook, items: list[Launch]) -> None:
        self.book: LaneBook = book
        self.items: list[Launch] = items


class Overdue:
    """What has run, or waited, longer than it may."""

    __slots__ = ("did", "limit", "operation")

    def __init__(self, operation: str, limit: float, did: str = "ran") -> None:
        self.operation: str = operation
        self.limit: float = limit
        """In seconds."""
        self.did: str = did
        """In a word."""


class LaneBook:
    """The unfinished commands of one lane, oldest first: what a batch launched has a queue of its own."""

    __slots__ = (
        "admitted",
        "behind",
        "failures",
        "front",
        "front_since",
        "in_flight",
        "index",
        "issued",
        "launches",
        "moved",
        "open",
        "waited",
    )

    def __init__(self, index: int) -> None:
        self.index: int = index
        self.open: bool = index < LANES
        """Whether the worker has it."""
        self.issued: int = 0
        self.in_flight: collections.deque[Command] = collections.deque()
        self.admitted: int = 0
        """How many of those count: the lane takes no more than `LANE_LIMIT` of them. Those of batches do not."""
        self.launches: collections.deque[Launch] = collections.deque()
        self.failures: int = 0
        """How many failed commands are known of."""
        self.waited: int = 0
        """How many waits for other lanes its commands have carried."""
        self.front: int = 0
        """The ticket whose time is being taken."""
        self.front_since: float = 0.0
        """Since when nothing else holds that one up, as far as can be seen."""
        self.behind: tuple[Ticket, ...] = ()
        """What may hold it up."""
        self.moved: float = 0.0
        """When the lane was last seen to go on with another ticket."""

    def begin(self, command: Command) -> None:
        """A command was published."""
        self.in_flight.append(command)
        self.admitted += not command.batched

    def end(self) -> Command:
        """Remove and give the oldest command."""
        command = self.in_flight.popleft()
        self.admitted -= not command.batched
        return command

    @property
    def busy(self) -> bool:
        """Whether anything is unfinished."""
        return bool(self.in_flight or self.launches)

    @property
    def unfinished(self) -> int:
        """How many commands are."""
        return len(self.in_flight) + len(self.launches)

    @property
    def next_launch(self) -> Launch | None:
        """The oldest launch of a batch, if no other command is older."""
        if self.launches and not (self.in_flight and self.in_flight[0].ticket < self.launches[0][0]):
            return self.launches[0]
        return None

    def take_launches(self, done: int) -> Launches:
        """Remove and give the launches up to a ticket."""
        launches, items = self.launches, []
        while launches and launches[0][0] <= done:
            items.append(launches.popleft())
        return Launches(self, items)


PlacesOf = Callable[[Collection[Ticket]], Mapping[Ticket, int]]
"""Given launches that went the short way, returns the numbers of their records, counted over all lanes."""


class _Front:
    """The oldest unfinished command of a lane, while it is looked whether that is overdue."""

    __slots__ = ("held_up_by", "lane", "launch", "limit", "sharing", "waits")

    def __init__(
        self,
        lane: LaneBook,
        launch: Launch | None,
        limit: float,
        sharing: int,
        held_up_by: set[int],
        *,
        waits: bool,
    ) -> None:
        self.lane: LaneBook = lane
        self.launch: Launch | None = launch
        self.limit: float = limit
        """In seconds."""
        self.sharing: int = sharing
        """How many commands have that time each, and are seen to finish together."""
        self.held_up_by: set[int] = held_up_by
        """The lanes that may be what it waits for."""
        self.waits: bool = waits
        """Whether a ticket that it must wait for is not reached."""

    @property
    def operation(self) -> str:
        """What it does, in words."""
        return self.lane.in_flight[0].operation if self.launch is None else self.launch[2]._describe(self.launch[3])[0]

    def place(self, launches: Mapping[Ticket, int]) -> int:
        """The number of its record, counted over all lanes, given those of launches that went the short way."""
        if self.launch is None:
            return self.lane.in_flight[0].place
        return launches.get((self.lane.index, self.launch[0]), 0)

    def lateness(self, now: float) -> float:
        """Seconds beyond its limit; not more than 0 while it is in time."""
        return now - self.lane.front_since - self.limit * self.sharing


def _unknown(launches: Collection[Ticket]) -> Mapping[Ticket, int]:
    return {}


def _submitted_first(fronts: Sequence[_Front], places_of: PlacesOf) -> _Front:
    if len(fronts) == 1:
        return fronts[0]
    places = places_of([(front.lane.index, front.launch[0]) for front in fronts if front.launch is not None])
    return min(fronts, key=lambda front: front.place(places))


def _upstream(fronts: Mapping[int, _Front], front: _Front) -> set[int]:
    """The lanes that one may be held up by, directly or through others; itself, if it is not held up."""
    seen: set[int] = set()
    ahead = [front.lane.index]
    while ahead:
        index = ahead.pop()
        if index not in seen:
            seen.add(index)
            ahead += fronts[index].held_up_by if index in fronts else ()
    return seen


class Timeline:
    """All lanes of one generation."""

    def __init__(self, page: TimelinePage, groups: memoryview | None = None) -> None:
        self.page = page
        self.lanes: list[LaneBook] = [LaneBook(index) for index in range(LANES)]
        self._groups = groups

    def book(self, lane: int) -> LaneBook:
        """The book of a lane, which need not be open yet."""
        while len(self.lanes) <= lane:
            self.lanes.append(LaneBook(len(self.lanes)))
        return self.lanes[lane]

    def uses(self, lane: int) -> bool:
        """Whether anything unfinished is on a lane, or waits for it: the worker needs the lane until then."""
        if self.book(lane).busy:
            return True
        return any(other == lane for book in self.lanes for command in book.in_flight for other, _ in command.waits)

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

    def take_finished(self) -> Iterator[Command | Launches]:
        """Remove and give everything whose ticket was reached, lane by lane, oldest first, a batch's launches first.

        The compute lane comes last. Memory is made there, for commands of every lane: who hears of the end of one must
        find that made, and the ticket of the making, though reached earlier, could be seen later.
        """
        finished = self.page.finished
        for lane in reversed(self.lanes):
            in_flight, launches = lane.in_flight, lane.launches
            if in_flight or launches:
                done = finished(lane.index)
                if launches and launches[0][0] <= done:
                    yield lane.take_launches(done)
                while in_flight and in_flight[0].ticket <= done:
                    yield lane.end()

    def take_rest(self) -> Iterator[Command]:
        """Remove and give what is left but a batch's launches, when the generation is lost."""
        for lane in self.lanes:
            while lane.in_flight:
                yield lane.end()

    def take_rest_of_launches(self) -> Iterator[Launch]:
        """Remove and give what is left of what batches launched."""
        for lane in self.lanes:
            while lane.launches:
                yield lane.launches.popleft()

    @property
    def idle(self) -> bool:
        """Whether nothing is unfinished."""
        for lane in self.lanes:  # noqa: SIM110  no generator: this is asked after each launch
            if lane.in_flight or lane.launches:
                return False
        return True

    @property
    def counters(self) -> tuple[int, ...]:
        """The ticket that each lane has reached, of all that there may be."""
        return tuple(self.page.finished(lane) for lane in range(MAX_LANES))

    def overdue(self, now: float, default: float | None, places_of: PlacesOf = _unknown) -> Overdue | None:
        """The command that is furthest beyond its limit, counted from when nothing else could hold it up any more.

        `default` is the limit in seconds of a command that has none of its own; None is no limit. Launches that share a
        ticket are seen to finish together, so they have the time of all of them. Where lanes wait for each other and
        none of them runs, their waiting is overdue once none has gone on for so long.

        Of several that are as late it is the one that was submitted first: a worker that hangs in a call has not read
        what comes after it.
        """
        fronts: dict[int, _Front] = {}
        for lane in self.lanes:
            if lane.busy:
                fronts[lane.index] = self._front_of(lane, now, default)
            else:
                lane.front = 0
        running = {index for index, front in fronts.items() if not front.held_up_by}
        late = [front for index, front in fronts.items() if index in running and front.lateness(now) > 0]
        if late:
            most = max(front.lateness(now) for front in late)
            worst = _submitted_first([front for front in late if front.lateness(now) == most], places_of)
            return Overdue(worst.operation, worst.limit)
        stuck = [front for front in fronts.values() if running.isdisjoint(_upstream(fronts, front))]
        if stuck:
            limit = max(front.limit for front in stuck)
            if now - max(front.lane.moved for front in stuck) > limit:
                # One that has nothing left to wait for is more likely to be the reason than one that has.
                free = [front for front in stuck if not front.waits]
                longest = min(front.lane.moved for front in free or stuck)
                worst = _submitted_first([front for front in free or stuck if front.lane.moved == longest], places_of)
                return Overdue(worst.operation, limit, "ran" if free else "waited for other lanes")
        return None

    def _front_of(self, lane: LaneBook, now: float, default: float | None) -> _Front:
        """The command that a busy lane goes on with, and what may hold it up; its times are taken."""
        launch = lane.next_launch
        command = lane.in_flight[0] if launch is None else None
        ticket = lane.in_flight[0].ticket if launch is None else launch[0]
        begins = lane.front != ticket
        if begins:
            lane.front, lane.moved = ticket, now
        waits = command is not None and not all(map(self.reached, command.waits))
        if command is not None and (begins or waits):
            # The worker waits by an event, which covers all that the other lane had been given by then; and a call that
            # blocks may be one that waits for all that runs.
            named = {other for other, _ in command.waits}
            ahead = (other for other in self.lanes if command.blocks or other.index in named)
            lane.behind = (*command.waits, *((other.index, other.issued) for other in ahead if other is not lane))
        elif begins:
            lane.behind = ()
        held_up_by = {other for other, on in lane.behind if not self.reached((other, on))}
        if begins or held_up_by:
            lane.front_since = now
        limit = default if command is None else command.hang_timeout or default
        limit = math.inf if limit is None else limit
        return _Front(lane, launch, limit, self._sharing(lane.index, ticket), held_up_by, waits=waits)

    def _sharing(self, lane: int, ticket: int) -> int:
        """How many commands share the ticket of the one that the lane goes on with; 1 or more."""
        return 1 if self._groups is None else max(1, self._groups[group_index(lane, ticket)])
