"""The end of commands: each is settled when its ticket is reached, or when the generation is lost.

One task at a time polls the counters: the caller whose command went out last, or else the settler's own task, which
blocks on a descriptor when polling is not worthwhile any more.
"""

from __future__ import annotations

import collections
import functools
import logging
import operator
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import trio

from .._memory.arena import Block, Ticket
from .._supervision.mailbox import Request
from .._values.errors import ActorCrashed, DeviceError, LibraryNotFound, OutOfHostMemory, error_from_status
from .._wire.channel import TimelinePage
from .._wire.protocol import ENGINE_BUG, HOST_SHORTAGE, LANE_COMPUTE, LIBRARY_MISSING, Role, counter_word, failures_word
from .._wire.ring import fence
from .._wire.status import StatusClass
from .admission import Admission
from .chunks import Chunks
from .inbox import Inbox
from .life import Life
from .loss import MakeError
from .timeline import Birth, Command, LaneBook, Launch, Launchable, Launches, LaunchOwner, Operand, Timeline, with_new

if TYPE_CHECKING:
    from .services import Neighbours

log = logging.getLogger("atomr_trio._worker")

SPIN_SECONDS = 200e-6
"""Seconds that a wait polls the counters between checkpoints before it blocks on the descriptor."""

TURN_SECONDS = 20e-6
"""In a turn of the scheduler that is not longer no other task has done anything that matters. An empty one takes 4 to
15 us, as fast as the processor is at the moment."""

GLANCE_SECONDS = 20e-6
"""The seconds for which a task that is alone looks for its ticket between two turns; see `Settler.look`. By the
worker's loop of Python a launch takes about 17."""

LONG_GLANCE_SECONDS = 60e-6
"""The same if the end is due within this time: else it would come in a turn of the scheduler as often as not."""


_Born = Callable[[], Mapping[Birth, Block]]
"""Finds the new results of launches by their births; see `with_new`."""


class Settler:
    """Settles the commands of one generation."""

    def __init__(
        self,
        life: Life,
        timeline: Timeline,
        page: TimelinePage,
        wake: int,
        inbox: Inbox,
        admission: Admission,
        chunks: Chunks,
        spin: float,
    ) -> None:
        self._longest_patience: float = max(spin, SPIN_SECONDS)
        self.patience: float = self._longest_patience
        """The time in seconds for which polling for an end is worthwhile before blocking."""
        self._life = life
        self._timeline = timeline
        self._page = page
        self._wake = wake
        self._inbox = inbox
        self._admission = admission
        self._chunks = chunks
        self.roused: Callable[[], None] = lambda: None
        """Called when commands are unfinished that no caller polls for, after a time in which there were none."""
        self.neighbours: Neighbours | None = None
        """Those of other devices who may wait for commands of this one; None for a device without a group."""
        self.spoiled: dict[Ticket, Callable[[], DeviceError]] = {}
        """Commands that run on garbage, by their tickets, with what makes the error that they end with: what they have
        written is torn already."""
        self._looked_for = False
        self._others = False
        """True if other commands may be unfinished than that of the caller who polls. There were none when it began,
        since the settler was idle; and whoever sends one meanwhile calls `wake`, or asks `begin_looking` in vain."""
        self._sleeping = False
        """True while `run` blocks on the descriptor."""
        self.over: bool = False
        """True once everything was settled as lost."""
        self._activity = trio.Event()
        self._idle = trio.Event()
        self._alone: dict[int, tuple[Callable[[LaunchOwner, int], bool], Callable[[], None]]] = {}
        self._why_torn: dict[tuple[str, Role], str] = {}
        """The texts about blocks that the loss has torn, by the operation that was writing them, and its access."""

    def __repr__(self) -> str:
        state = "idle" if self._timeline.idle else "a caller polls" if self._looked_for else "waiting"
        return f"<Settler of generation {self._life.number}: {state}>"

    # --- who polls ------------------------------------------------------------------------------------------------

    @property
    def looked_for(self) -> bool:
        """True while a caller polls for the end of its own command."""
        return self._looked_for

    def begin_looking(self) -> bool:
        """Return whether the caller, who has just sent a command, must poll for its end: if no other task does.

        It settles what has ended, polls for `patience` at most, and calls `end_looking` afterwards.
        """
        if self._looked_for or self._activity.is_set():
            self._others = True
            return False
        self._others = False
        self._looked_for = True
        return True

    async def look(self, counter: int, ticket: int, at_least: float = 0.0, due: float = 0.0) -> None:
        """Poll until a counter has reached a ticket, or polling is not worthwhile any more, after `begin_looking`.

        `counter` is its index in the page. Polling is worthwhile for `at_least` so many seconds, if the caller knows
        how long its command may take; `due` is when it expects the end. It also returns when the generation is lost. It
        settles nothing.

        A GPU answers a short command in about the time of two turns of trio's scheduler, so by turns alone half a turn
        would be lost. So between two turns the task looks on for a while, if no other task has run in the last one. If
        it then sees the ticket, it needs no further turn: there was one before.
        """
        words, clock = self._page.words, time.perf_counter
        now = clock()
        until = now + (self.patience if self.patience > at_least else at_least)
        while True:
            before = now
            await trio.lowlevel.checkpoint()
            if self.over or words[counter] >= ticket:
                return
            now = clock()
            if now > until:
                return
            if now - before < TURN_SECONDS:  # nobody else had anything to do
                glances_until = now + GLANCE_SECONDS
                if now < due < now + LONG_GLANCE_SECONDS:
                    glances_until = due + GLANCE_SECONDS
                while now < glances_until:
                    if words[counter] >= ticket:
                        return
                    now = clock()

    async def look_for(self, request: Request) -> None:
        """Poll until a request has its answer or polling is not worthwhile any more, after a true `begin_looking`."""
        until = time.perf_counter() + self.patience
        try:
            while True:
                await trio.lowlevel.checkpoint()
                self.settle_finished()
                if request.answered or time.perf_counter() > until:
                    break
        finally:
            self.end_looking()

    def end_looking(self, looker: LaunchOwner | None = None, lane: int = LANE_COMPUTE, count: int = 1) -> None:
        """Settle what has ended, and leave unfinished commands to the settler again.

        A `looker` whose `count` commands of this lane went the short way is settled faster if nothing else is there.
        """
        if looker is not None:
            ended, end = self.alone(lane)
            if ended(looker, count):
                end()
                looker.launches_finished(count)
                return
        self._looked_for = False
        if self.settle_finished():
            self.patience = self._longest_patience
        elif not self._timeline.idle:
            self.patience = max(SPIN_SECONDS / 16, self.patience / 2)
        self._leave()

    def alone(self, lane: int) -> tuple[Callable[[LaunchOwner, int], bool], Callable[[], None]]:
        """Return two functions of a lane, for the most usual case.

        The first tells whether the lane's only launches are so many of this owner and have run without an error. The
        second then does what `end_looking` does, but for the launches themselves, which the caller settles.
        """
        found = self._alone.get(lane)
        if found is None:
            found = self._alone[lane] = self._of_lane(self._timeline.book(lane))
        return found

    def _of_lane(self, book: LaneBook) -> tuple[Callable[[LaunchOwner, int], bool], Callable[[], None]]:
        # They stand at the end of each awaited call, where nothing is in the processor's caches: so no frames.
        page, inbox, admission, spoiled = self._page, self._inbox, self._admission, self.spoiled
        words, launches = page.words, book.launches
        counter, failures = counter_word(book.index), failures_word(book.index)

        def ended(looker: LaunchOwner, count: int) -> bool:
            return (  # the ticket first: the worker counts a failure before it signs
                len(launches) == count > 0
                and launches[0][1] is looker
                and not book.in_flight
                and words[counter] >= launches[-1][0]
                and words[failures] == book.failures
                and not (inbox.failures or spoiled or page.frozen)
            )

        def end() -> None:
            self._looked_for = False
            launches.clear()
            neighbours = self.neighbours
            if self._sleeping or admission.waiters or (neighbours is not None and neighbours.watched):
                self._tell_progress()
            self.patience = self._longest_patience
            if self._others:
                self._leave()
            elif not self._idle.is_set():
                self._idle.set()

        return ended, end

    def _leave(self) -> None:
        if not self._timeline.idle:
            self.wake()
        elif not self._idle.is_set():
            self._idle.set()

    def wake(self) -> None:
        """Make sure that ended commands are settled: by the task that polls, if there is one, else by the settler."""
        if self._looked_for:
            self._others = True
        elif not self._activity.is_set():
            self._activity.set()

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Settle commands as their tickets are reached: poll for a while, with checkpoints, then block.

        Polling is worthwhile as long as commands end within the time. Each poll without success halves the time, until
        one succeeds.
        """
        last = time.perf_counter()
        while True:
            if self._timeline.idle:
                self._idle.set()
                self._activity = trio.Event()
                await self._activity.wait()
                self.roused()
                last = time.perf_counter()
            if self.settle_finished():
                last = time.perf_counter()
                self.patience = self._longest_patience
            if time.perf_counter() - last < self.patience:
                await trio.lowlevel.checkpoint()
                continue
            self.patience = max(SPIN_SECONDS / 16, self.patience / 2)
            self._page.set_asleep(True)
            fence()
            try:
                if not self.settle_finished():
                    self._sleeping = True
                    await trio.lowlevel.wait_readable(self._wake)
                    os.eventfd_read(self._wake)
            except BlockingIOError:
                pass
            finally:
                self._sleeping = False
                self._page.set_asleep(False)
            last = time.perf_counter()

    @trio.lowlevel.enable_ki_protection
    async def wait_idle(self) -> None:
        """Wait until nothing is unfinished."""
        while not self._timeline.idle:
            self._idle = trio.Event()
            await self._idle.wait()

    # --- reached tickets ------------------------------------------------------------------------------------------

    def settle_finished(self) -> bool:
        """Settle everything whose ticket was reached; true if there was anything."""
        progressed = False
        for finished in self._timeline.take_finished():
            progressed = True
            if isinstance(finished, Command):
                self._settle(finished)
            else:
                self._settle_launches(finished)
        if progressed:
            self._tell_progress()
        return progressed

    def _tell_progress(self) -> None:
        # The worker wakes `run` for a ticket that is reached. If the watch has settled the last one before, none comes.
        if self._sleeping and self._timeline.idle:
            os.eventfd_write(self._wake, 1)
        if self._admission.waiters:
            self._admission.wake()
        if self.neighbours is not None and self.neighbours.watched:
            self.neighbours.wake()

    def _settle_launches(self, finished: Launches) -> None:
        book, launches = finished.book, finished.items
        if self.spoiled or self._inbox.failures or self._page.failures(book.index) != book.failures:
            self._hear_failures(book, launches)
        owner, count = launches[0][1], 0
        for launch in launches:
            if launch[1] is not owner:
                owner.launches_finished(count)
                owner, count = launch[1], 0
            count += 1
        owner.launches_finished(count)

    def _hear_failures(self, book: LaneBook, launches: Sequence[Launch]) -> None:
        """Tell the owners of those of these launches that have failed."""
        failures, told = self._page.failures(book.index), self._inbox.failures
        # The worker counts a failure before the ticket is reached: it may have been counted with those of launches
        # before it. Then the message of it has come already.
        born = self._born()
        failed = self._fail_spoiled(launches, book.index, born) if self.spoiled else ()
        if failures != book.failures or told:
            if failures != book.failures:
                book.failures = failures
                self._inbox.drain()
            for place, launch in enumerate(launches):
                failure = told.pop((book.index, launch[0]), None)
                if failure is not None and launch[0] not in failed:
                    error = error_of(self._life, launch[2]._describe(launch[3])[0], failure)
                    launch[1].launch_failed(with_new(launch, book.index, born), error)
                    spoiled = getattr(launch[1], "spoiled", None)
                    if spoiled is not None:
                        behind = [*launches[place + 1 :], *book.launches]
                        untold = [each for each in behind if (book.index, each[0]) not in told]
                        self._spoil(spoiled, untold, book.index, born, failure)

    def _fail_spoiled(self, launches: Sequence[Launch], lane: int, born: _Born) -> set[int]:
        """Fail those that have run on garbage. Returns their tickets."""
        failed = set()
        for launch in launches:
            make_error = self.spoiled.pop((lane, launch[0]), None)
            if make_error is not None:
                launch[1].launch_failed(with_new(launch, lane, born), make_error())
                failed.add(launch[0])
        return failed

    def _spoil(self, block: Block, launches: Sequence[Launch], lane: int, born: _Born, failure: dict[str, Any]) -> None:
        """Fail the launches that have run on a block without its first contents, and tear what they have written."""
        for launch in [with_new(each, lane, born) for each in launches]:
            operation, operands = launch[2]._describe(launch[3])
            if any(each is block for each, _ in operands):
                launch[1].launch_failed(launch, error_of(self._life, operation, failure))
                for each, role in operands:
                    if role is not Role.READ and not each.freed:
                        each.fast = 0
                        each.tear(f"{operation} was writing it, on an array whose first contents could not be written")

    def _born(self) -> _Born:
        """Return what finds the new results of launches by their births, once; see `with_new`."""
        return functools.cache(functools.partial(self._chunks.arena.born, self._life.number))

    def _settle(self, command: Command) -> None:
        key = (command.lane, command.ticket)
        status = self._page.status(*key)
        if status or command.answers:
            self._inbox.drain()
        if self.spoiled and (make_error := self.spoiled.pop(key, None)) is not None:
            self._inbox.results.pop(key, None)
            self._inbox.failures.pop(key, None)
            command.owner.command_finished(command, make_error(), None)
            return
        if not status:
            command.owner.command_finished(command, None, self._inbox.results.pop(key, None))
            return
        for block, torn, recipe in command.healed or ():
            block.torn = None
            if torn is not None:
                block.tear(torn)
            block.fast = 0
            # The fill must not overwrite what a later command has written.
            if block.writer == key and recipe is not None:
                block.recipe = recipe.anew()
        failure = self._inbox.failures.pop(key, None)
        if failure is None:
            failure = {"status": status, "name": "", "text": "the worker did not say why", "library": "cuda"}
            failure["class"] = StatusClass.REQUEST.value
        error = error_of(self._life, command.operation, failure)
        command.owner.command_finished(command, error, None)

    # --- the end --------------------------------------------------------------------------------------------------

    def settle_rest(self, make_error: MakeError) -> None:
        """Settle everything else as lost, each with a fresh error; what unfinished commands were writing is torn."""
        self.over = True
        self.spoiled.clear()
        lost = list(self._timeline.take_rest())
        launches = list(self._timeline.take_rest_of_launches(self._born()))
        for command in lost:
            self._tear(command.operation, command.operands)
        for launched, arguments in _distinct(launches):
            self._tear(*launched._describe(arguments))
        # Every waiter has its own error. A batch raises one for all its calls, of which there may be thousands.
        for owner, count in collections.Counter(map(operator.itemgetter(1), launches)).items():
            owner.launches_lost(count, make_error())
        for_batches: DeviceError | None = None
        for command in lost:
            if command.batched and for_batches is None:
                for_batches = make_error()
            try:
                command.owner.command_lost(command, for_batches if command.batched and for_batches else make_error())
            except Exception:  # an internal error must not leave the others without an answer
                log.critical("settling %r of generation %d failed", command, self._life.number, exc_info=True)
        self._admission.wake()
        if self.neighbours is not None:
            self.neighbours.wake()

    def _tear(self, operation: str, operands: Sequence[Operand]) -> None:
        for block, role in operands:
            if role is Role.READ or block.freed:
                continue
            why = self._why_torn.get((operation, role)) or self._note_why_torn(operation, role)
            if block.torn is not why:
                block.tear(why)

    def _note_why_torn(self, operation: str, role: Role) -> str:
        when = f"when generation {self._life.number} was lost"
        why = f"{operation} was writing it {when}"
        if role is Role.MAY_WRITE:
            why = f"{operation} might have been writing it {when}, because it was given an address as a number"
        self._why_torn[operation, role] = why
        return why


def _distinct(launches: Iterable[Launch]) -> Iterable[tuple[Launchable, tuple[object, ...]]]:
    """Return what was launched with which arguments, each once.

    Of thousands of launches many are the same, down to the objects that they were given, and most of them follow each
    other: to see that costs half of what a key costs.
    """
    found: dict[tuple[object, ...], tuple[Launchable, tuple[object, ...]]] = {}
    last: Launchable | None = None
    before: tuple[object, ...] = ()
    for _, _, launched, arguments in launches:
        if launched is last and len(arguments) == len(before) and all(map(operator.is_, arguments, before)):
            continue
        last, before = launched, arguments
        found[launched, *map(id, arguments)] = launched, arguments
    return found.values()


def error_of(life: Life, operation: str, failure: dict[str, Any]) -> DeviceError:
    """Return the error of a command that failed alone, from the worker's message."""
    error = _error_of(life, operation, failure)
    error.part = failure.get("part", 0)
    return error


def _error_of(life: Life, operation: str, failure: dict[str, Any]) -> DeviceError:
    device, generation = life.device, life.number
    if failure["status"] == ENGINE_BUG:
        return ActorCrashed(
            f"the worker's part of {operation} crashed: {failure['text']}",
            actor=failure["library"],
            device=device,
            generation=generation,
            operation=operation,
        )
    if failure["status"] == HOST_SHORTAGE:
        return OutOfHostMemory(
            f"the worker could not run it: {failure['text']}",
            device=device,
            generation=generation,
            operation=operation,
        )
    if failure["status"] == LIBRARY_MISSING:
        return LibraryNotFound(
            failure["text"],
            library=failure["library"],
            device=device,
            generation=generation,
            operation=operation,
        )
    return error_from_status(
        failure["status"],
        failure["name"],
        failure["text"],
        operation=operation,
        device=device,
        generation=generation,
        library=failure["library"],
        status_class=StatusClass(failure["class"]),
    )
