"""Tickets: the commands published on each lane, and their outcomes.

A command that was published has a ticket. The GPU writes the ticket into the lane's counter when all earlier work of
the lane is done. Reading it is a comparison, not a call. This file keeps the accounts; ``settler.py`` does the
waiting and waking.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from .._memory.arena import Block, Recipe, Ticket
from .._values.errors import DeviceError
from .._wire.channel import TimelinePage
from .._wire.protocol import LANE_NAMES, LANES, MAX_LANES, Role
from .._wire.ring import group_index

Operand = tuple[Block, Role]

Birth = tuple[int, ...]
"""The ticket of the first command of a call; for those behind the first of several new results, with 1, 2 and so on."""

ORPHANS_AT_ONCE: Final = 64
"""The most commands that one call sends for collected graphs, modules or events. A call makes at most one such object
itself, so all of them are handled in time, and no call fills a lane."""


def lane_name(index: int) -> str:
    """Return the name of a lane."""
    return LANE_NAMES[index] if index < LANES else f"lane {index}"


def the_lane(index: int) -> str:
    """The same in a sentence."""
    return f"the {lane_name(index)} lane" if index < LANES else lane_name(index)


class CommandOwner(Protocol):
    """The owner of a published command. It is told of the command's outcome exactly once."""

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Handle a reached ticket. `error` is the error of this command alone, `value` its result."""

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Handle a generation lost before the ticket was reached: the command may or may not have run."""


class Unwatched:
    """The owner of a command that no task waits for, and whose failure is found by whoever needs what it has made."""

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Nothing to do."""

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Nothing to do: what it was about went with the worker."""


class Command:
    """One published command."""

    __slots__ = (
        "answers",
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
        answers: bool = False,
    ) -> None:
        self.lane: int = lane
        self.answers: bool = answers
        """True if its result comes in a message, which must be read before it is settled."""
        self.ticket: int = ticket
        self.engine: str = engine
        self.operation: str = operation
        self.operands: Sequence[Operand] = operands
        self.owner: CommandOwner = owner
        self.waits: tuple[Ticket, ...] = waits
        self.hang_timeout: float | None = hang_timeout
        """Seconds that it may run; None for the device's own limit."""
        self.blocks: bool = False
        """True if its calls may block their thread, because the driver may make them wait for all running work."""
        self.place: int = 0
        """The number of its record, counted over all lanes."""
        self.batched: bool = batched
        """True if a batch has sent it, itself or for another command, or nobody waits for it."""
        self.healed: list[tuple[Block, str | None, Recipe | None]] | None = None
        """Blocks that it overwrites completely, with their earlier state: the cause of tearing, and the recipe."""

    def __repr__(self) -> str:
        return f"<Command {self.operation} {lane_name(self.lane)}:{self.ticket}>"


Launch = tuple[int, "LaunchOwner", "Launchable", tuple[object, ...]]
"""One launch of a batch: its ticket, the batch, the kernel or call, and the arguments, which this keeps alive. It is a
tuple, because a batch makes one for each of its launches; its description is needed only for an error."""


def with_new(launch: Launch, lane: int, born: Callable[[], Mapping[Birth, Block]]) -> Launch:
    """Return a launch with the blocks of its new results behind its arguments, for `Launchable._describe`.

    In the place of one that is no array's any more is None. `born` returns what `Arena.born` does, which looks at all
    blocks; it is called only if the launch has new results.
    """
    ticket, owner, launched, arguments = launch
    births_of: Callable[[int, int], Sequence[Birth]] | None = getattr(launched, "births", None)
    births = () if births_of is None else births_of(lane, ticket)
    return (ticket, owner, launched, (*arguments, *map(born().get, births))) if births else launch


class Launchable(Protocol):
    """A kernel, or a library's call that is repeated."""

    @property
    def _engine(self) -> str:
        """The engine that runs it."""

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        """Return the operation, in words, and its access to memory: to a new result only if that is given as well."""


class LaunchOwner(Protocol):
    """The owner of launches, such as a batch. It is told of their outcomes, several at a time."""

    def launches_finished(self, count: int) -> None:
        """Handle the end of `count` launches, whether they failed or not."""

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Handle the error of a finished launch that failed alone."""

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Handle a generation lost before the tickets of so many launches were reached."""


class Launches:
    """Launches of one lane that have finished, oldest first."""

    __slots__ = ("book", "items")

    def __init__(self, book: LaneBook, items: list[Launch]) -> None:
        self.book: LaneBook = book
        self.items: list[Launch] = items


class Overdue:
    """A command that has run, or waited, longer than its limit."""

    __slots__ = ("did", "limit", "operation")

    def __init__(self, operation: str, limit: float, did: str = "ran") -> None:
        self.operation: str = operation
        self.limit: float = limit
        """The limit in seconds."""
        self.did: str = did
        """Its action, "ran" or "waited for other lanes"."""


class LaneBook:
    """The unfinished commands of one lane, oldest first. The launches of batches have their own queue."""

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
        "patient",
        "waited",
    )

    def __init__(self, index: int) -> None:
        self.index: int = index
        self.open: bool = index < LANES
        """True if the worker has opened it."""
        self.issued: int = 0
        self.in_flight: collections.deque[Command] = collections.deque()
        self.admitted: int = 0
        """The number of those that are not of batches: the lane takes at most `LANE_LIMIT` of them."""
        self.launches: collections.deque[Launch] = collections.deque()
        self.failures: int = 0
        """The number of failed commands that are known."""
        self.patient: bool = False
        """True if its launches may wait for other devices, so that no time of this device's is a limit for them."""
        self.waited: int = 0
        """The number of waits of its commands for other lanes."""
        self.front: int = 0
        """The ticket whose time is being measured."""
        self.front_since: float = 0.0
        """The time since which no other work delays that ticket, as far as can be seen."""
        self.behind: tuple[Ticket, ...] = ()
        """The tickets that may delay it."""
        self.moved: float = 0.0
        """The time at which the lane was last seen to go on with another ticket."""

    def begin(self, command: Command) -> None:
        """Add a published command."""
        self.in_flight.append(command)
        self.admitted += not command.batched

    def end(self) -> Command:
        """Remove and return the oldest command."""
        command = self.in_flight.popleft()
        self.admitted -= not command.batched
        return command

    @property
    def busy(self) -> bool:
        """True if a command is unfinished."""
        return bool(self.in_flight or self.launches)

    @property
    def unfinished(self) -> int:
        """The number of unfinished commands."""
        return len(self.in_flight) + len(self.launches)

    @property
    def next_launch(self) -> Launch | None:
        """Return the oldest launch of a batch, if no other command is older."""
        if self.launches and not (self.in_flight and self.in_flight[0].ticket < self.launches[0][0]):
            return self.launches[0]
        return None

    def take_launches(self, done: int) -> Launches:
        """Remove and return the launches up to a ticket."""
        launches, items = self.launches, []
        while launches and launches[0][0] <= done:
            items.append(launches.popleft())
        return Launches(self, items)


PlacesOf = Callable[[Collection[Ticket]], Mapping[Ticket, int]]
"""Given launches that went the short way, returns the numbers of their records, counted over all lanes."""


class _Front:
    """The oldest unfinished command of a lane, for the check of overdue commands."""

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
        """The limit in seconds."""
        self.sharing: int = sharing
        """The number of commands that have that time each, and are seen to finish together."""
        self.held_up_by: set[int] = held_up_by
        """The lanes that it may wait for."""
        self.waits: bool = waits
        """True if a ticket that it must wait for is not reached yet."""

    @property
    def operation(self) -> str:
        """A name for what it does."""
        return self.lane.in_flight[0].operation if self.launch is None else self.launch[2]._describe(self.launch[3])[0]

    def place(self, launches: Mapping[Ticket, int]) -> int:
        """The number of its record, counted over all lanes, given those of launches that went the short way."""
        if self.launch is None:
            return self.lane.in_flight[0].place
        return launches.get((self.lane.index, self.launch[0]), 0)

    def lateness(self, now: float) -> float:
        """Return the seconds beyond its limit; not more than 0 while it is in time."""
        return now - self.lane.front_since - self.limit * self.sharing


def _unknown(launches: Collection[Ticket]) -> Mapping[Ticket, int]:
    return {}


def _submitted_first(fronts: Sequence[_Front], places_of: PlacesOf) -> _Front:
    if len(fronts) == 1:
        return fronts[0]
    places = places_of([(front.lane.index, front.launch[0]) for front in fronts if front.launch is not None])
    return min(fronts, key=lambda front: front.place(places))


def _upstream(fronts: Mapping[int, _Front], front: _Front) -> set[int]:
    """Return the lanes that may delay one, directly or through others; its own lane, if it is not delayed."""
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
        """Return the book of a lane, which need not be open yet."""
        while len(self.lanes) <= lane:
            self.lanes.append(LaneBook(len(self.lanes)))
        return self.lanes[lane]

    def uses(self, lane: int) -> bool:
        """Return whether an unfinished command is on a lane, or waits for it: until then the worker needs the lane."""
        if self.book(lane).busy:
            return True
        return any(other == lane for book in self.lanes for command in book.in_flight for other, _ in command.waits)

    def reached(self, ticket: Ticket) -> bool:
        """Return whether the GPU has reached a ticket."""
        return ticket[1] <= self.page.finished(ticket[0])

    def still_open(self, waits: set[Ticket]) -> tuple[Ticket, ...]:
        """Return the newest ticket of each lane among `waits` that is not reached yet: a lane runs in order."""
        newest: dict[int, int] = {}
        for lane, ticket in waits:
            if ticket > newest.get(lane, 0):
                newest[lane] = ticket
        return tuple(wait for wait in newest.items() if not self.reached(wait))

    def take_finished(self) -> Iterator[Command | Launches]:
        """Remove and yield the commands whose tickets were reached, by lane, oldest first, launches of batches first.

        The compute lane comes last, because it creates memory for commands of every lane. The owner of a command must
        find its memory settled, and the ticket of the creation, though reached earlier, could be seen later.
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
        """Remove and yield the remaining commands, without launches of batches, when the generation is lost."""
        for lane in self.lanes:
            while lane.in_flight:
                yield lane.end()

    def take_rest_of_launches(self, born: Callable[[], Mapping[Birth, Block]]) -> Iterator[Launch]:
        """Remove and yield the remaining launches of batches, with their new results (`with_new`)."""
        for lane in self.lanes:
            rest = list(lane.launches)
            lane.launches.clear()
            # There may be thousands of launches, of few kernels, and most have no new results.
            bearing = {each for each in {launch[2] for launch in rest} if hasattr(each, "births")}
            if bearing:
                rest = [with_new(each, lane.index, born) if each[2] in bearing else each for each in rest]
            yield from rest

    @property
    def idle(self) -> bool:
        """True if no command is unfinished."""
        for lane in self.lanes:  # noqa: SIM110  no generator: this is asked after each launch
            if lane.in_flight or lane.launches:
                return False
        return True

    def in_flight(self) -> tuple[str, ...]:
        """Return the operations that were started and not finished."""
        done = {lane.index: self.page.finished(lane.index) for lane in self.lanes if lane.busy}
        launched = [launch[2] for lane in self.lanes for launch in lane.launches if launch[0] > done[lane.index]]
        names = {each: each._describe(())[0] for each in set(launched)}  # whatever it was given
        commands = (command for lane in self.lanes for command in lane.in_flight)
        begun = (command.operation for command in commands if command.ticket > done[command.lane])
        return (*begun, *map(names.__getitem__, launched))

    def busy_engines(self) -> tuple[str, ...]:
        """Return the libraries that have commands started and not finished."""
        engines = {command.engine for lane in self.lanes for command in lane.in_flight}
        return tuple(sorted(engines.union(self.launched())))

    def launched(self) -> collections.Counter[str]:
        """Return the number of unsettled launches and calls that went the short way, by engine."""
        return collections.Counter(launch[2]._engine for lane in self.lanes for launch in lane.launches)

    @property
    def counters(self) -> tuple[int, ...]:
        """Return the ticket that each lane has reached, for every possible lane."""
        return tuple(self.page.finished(lane) for lane in range(MAX_LANES))

    def overdue(self, now: float, default: float | None, places_of: PlacesOf = _unknown) -> Overdue | None:
        """Return the command furthest beyond its limit, counted from when no other work could delay it any more.

        `default` is the limit in seconds of a command without its own; None is no limit. Launches that share a ticket
        are seen to finish together, so they have the time of all of them. When lanes wait for each other and none of
        them runs, their waiting is overdue once none has gone on for that time.

        Of several that are equally late, the one that was submitted first is returned: a worker that hangs in a call
        has not read the later ones.
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
                # A command that waits for nothing is more likely to be the reason than one that waits.
                free = [front for front in stuck if not front.waits]
                longest = min(front.lane.moved for front in free or stuck)
                worst = _submitted_first([front for front in free or stuck if front.lane.moved == longest], places_of)
                return Overdue(worst.operation, limit, "ran" if free else "waited for other lanes")
        return None

    def _front_of(self, lane: LaneBook, now: float, default: float | None) -> _Front:
        """Return the next command of a busy lane, with the tickets that may delay it, and measure its times."""
        launch = lane.next_launch
        command = lane.in_flight[0] if launch is None else None
        ticket = lane.in_flight[0].ticket if launch is None else launch[0]
        begins = lane.front != ticket
        if begins:
            lane.front, lane.moved = ticket, now
        waits = command is not None and not all(map(self.reached, command.waits))
        if command is not None and (begins or waits):
            # The worker waits by an event, which covers all work of the other lane by then; and a call that
            # blocks may wait for all running work.
            named = {other for other, _ in command.waits}
            ahead = (other for other in self.lanes if command.blocks or other.index in named)
            lane.behind = (*command.waits, *((other.index, other.issued) for other in ahead if other is not lane))
        elif begins:
            lane.behind = ()
        held_up_by = {other for other, on in lane.behind if not self.reached((other, on))}
        if begins or held_up_by:
            lane.front_since = now
        own = (math.inf if lane.patient else None) if command is None else command.hang_timeout
        limit = own or default
        limit = math.inf if limit is None else limit
        return _Front(lane, launch, limit, self._sharing(lane.index, ticket), held_up_by, waits=waits)

    def _sharing(self, lane: int, ticket: int) -> int:
        """Return the number of commands that share the ticket of the lane's next command; 1 or more."""
        return 1 if self._groups is None else max(1, self._groups[group_index(lane, ticket)])
