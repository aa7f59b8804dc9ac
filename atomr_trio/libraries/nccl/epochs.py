"""An epoch of a world: one communicator, from the question for its id to its abort.

It ends when a member's generation ends, when a collective fails on a member, or when the world is closed. What ends it
is told in one stretch without a checkpoint: first everything that the lost collectives spoil is found and marked, then
the survivors are told to abort. Until then their kernels wait inside NCCL, so nothing that depends on them can end.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from ..._generation.loss import Loss, LossKind
from ..._values.errors import CommandFailed, DeviceError, WorldLost
from ..._values.events import EpochEnded
from .questions import Deadline, Question
from .ready import paths_of
from .records import ABORT
from .spoiling import spoil

if TYPE_CHECKING:
    from ..._calls.launching import LaunchPath
    from ..._generation.core import DeviceCore
    from ..._generation.generation import Generation
    from ..._generation.group import Group
    from .collectives import Collective, Kind
    from .ready import ReadyCall

ABORT_SECONDS = 5.0
"""The time that a worker has for an abort, in seconds; then it is replaced."""

_COMMUNICATORS = itertools.count(1)


class Epoch:
    """One communicator of a world, and the collectives that are under way on it."""

    def __init__(
        self,
        group: Group,
        cores: Sequence[DeviceCore],
        generations: Sequence[Generation],
        name: str,
        number: int,
        ended: Callable[[], None],
    ) -> None:
        self.name: str = name
        """That of its world."""
        self.number: int = number
        self.communicator: int = next(_COMMUNICATORS)
        self.generations: tuple[Generation, ...] = tuple(generations)
        """Those of the members, by rank."""
        self.scope: trio.CancelScope = trio.CancelScope()
        """What the world does in this epoch; its end cancels that."""
        self.known_kinds: list[set[Kind]] = [set() for _ in generations]
        """The kinds of calls that each rank has made: the first of each may hold up the thread that makes it."""
        self.up: bool = False
        """True once all members have made the communicator."""
        self.over: bool = False
        self.told: trio.Event = trio.Event()
        """Set when a question of this epoch was answered; replaced by who waits for the next."""
        self.cores: tuple[DeviceCore, ...] = tuple(cores)
        """The members, by rank."""
        self._group = group
        self._ended = ended
        self._pending: dict[Collective, None] = {}
        self._causes: dict[int, Exception] = {}
        self._publishing = False
        self._listening: list[tuple[Generation, Callable[[], None]]] = []
        self._aborts: list[Question] = []
        self.calls: weakref.WeakSet[ReadyCall] = weakref.WeakSet()
        """The calls that go the short way in it."""
        self._paths: list[tuple[LaunchPath, LaunchPath]] = []

    def __repr__(self) -> str:
        state = "over" if self.over else "up" if self.up else "being made"
        return f"<Epoch {self.number} {state}, {len(self._pending)} collectives under way>"

    def begin(self) -> None:
        """Listen for the loss of members."""
        for rank, generation in enumerate(self.generations):
            told = functools.partial(self._member_lost, rank)
            generation.tell(told)
            self._listening.append((generation, told))
        for rank, generation in enumerate(self.generations):
            if generation.loss is not None:
                self._member_lost(rank)

    # --- collectives --------------------------------------------------------------------------------------------------

    def begin_publishing(self, collective: Collective) -> None:
        """Begin to publish the parts of a collective. A loss that is noticed from now on counts behind it."""
        self._pending[collective] = None
        self._publishing = True

    def end_publishing(self) -> None:
        """End that."""
        self._publishing = False
        if self._causes:
            self._end()

    def paths(self, lanes: Sequence[int]) -> Sequence[tuple[LaunchPath, LaunchPath]] | None:
        """Return the short ways to the lanes of all members, of calls that are waited for and of others (``ready.py``).

        Returns None if a member has none.
        """
        if not self._paths and self.up:
            found = [paths_of(generation, lane) for generation, lane in zip(self.generations, lanes, strict=True)]
            paths = [each for each in found if each is not None]
            if len(paths) == len(found):
                self._paths = paths
        return self._paths or None

    @property
    def idle(self) -> bool:
        """True if no collective is under way."""
        return not self._pending

    def collective_over(self, collective: Collective) -> None:
        """Note that every member has done its part."""
        self._pending.pop(collective, None)
        if not self._pending:
            self._ended()

    def watch(self, now: float, limit: float) -> None:
        """End the epoch if a collective has taken longer than `limit` seconds since nothing delayed any part of it."""
        for collective in tuple(self._pending):
            if not all(part.begun for part in collective.parts):
                collective.begun_since = None
            elif collective.begun_since is None:
                collective.begun_since = now
            elif now - collective.begun_since > limit and not self.over:
                for part in collective.parts:
                    if not part.reached:
                        text = f"{collective.operation} ran longer than hang_timeout={limit:g} s"
                        device, number = part.core.index, self.generations[part.rank].number
                        error = CommandFailed(text, device=device, generation=number, operation=collective.operation)
                        self._causes.setdefault(part.rank, error)
                self._end()

    def part_failed(self, collective: Collective, rank: int, error: DeviceError) -> None:
        """End the epoch: the other members wait for this one in vain."""
        self._pop_lost(rank, error)
        if self.over and not collective.lost:
            self._pending.pop(collective, None)
            collective.lose(error)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _member_lost(self, rank: int) -> None:
        generation = self.generations[rank]
        loss = generation.loss
        assert loss is not None
        self._pop_lost(rank, loss.error(self.cores[rank].index, generation.number))

    def _pop_lost(self, rank: int, error: Exception) -> None:
        if self.over:
            return
        self._causes.setdefault(rank, error)
        if not self._publishing:
            self._end()

    def close(self) -> None:
        """End the epoch without a loss. Collectives that are under way are lost."""
        if not self.over:
            self._end()

    def _end(self) -> None:
        was_up = self.up
        self.over, self.up = True, False
        lost = [collective for collective in self._pending if not collective.reached]
        for collective in lost:
            del self._pending[collective]
        spoil(lost, self.number, functools.partial(self._error, "it used what a lost collective was writing"))
        for generation, told in self._listening:
            generation.tell_no_more(told)
        for path in itertools.chain(*self._paths):
            path.close()
        for call in self.calls:
            call.close()
        self._paths = []
        if len(self.generations) > 1:
            for generation in self.generations:
                if generation.loss is None and not generation.refusing:
                    self._abort(generation)
        for collective in lost:
            collective.lose(self._error("the collective was not finished by every member", collective.operation))
        self.scope.cancel(reason=f"epoch {self.number} has ended")
        self._ended()
        if was_up:
            event = EpochEnded(world=self.name, epoch=self.number, causes=dict(self._causes), lost=len(lost))
            self._group.publish(event)

    def _error(self, what: str, operation: str | None = None) -> WorldLost:
        causes = self._causes
        members = ", ".join(f"rank {rank} ({_short(error)})" for rank, error in sorted(causes.items()))
        why = f"lost {members}" if causes else "was closed"
        return WorldLost(
            f"{what}: epoch {self.number} of the world {why}", epoch=self.number, causes=causes, operation=operation
        )

    def _abort(self, generation: Generation) -> None:
        """Make a survivor abort its end of the communicator, and replace the worker if it cannot."""

        def answered() -> None:
            if question.failure is None:
                deadline.meet()
            else:
                missed()
            self._tell()

        def missed() -> None:
            reason = f"ncclCommAbort did not end within {ABORT_SECONDS:g} s"
            if question.failure is not None:
                reason = f"ncclCommAbort failed: {question.failure['text']}"
            generation.lose(Loss(LossKind.HANG, reason, reported_by="the world"))
            self._tell()

        question = Question(generation, ABORT, self.communicator, told=answered)
        deadline = Deadline(self._group, ABORT_SECONDS, missed, "world.abort")
        self._aborts.append(question)

    def _tell(self) -> None:
        told, self.told = self.told, trio.Event()
        told.set()

    async def wait_aborted(self) -> None:
        """Wait until every survivor has aborted it, or was replaced."""
        while any(each.answer is None and each.generation.loss is None for each in self._aborts):
            await self.told.wait()


def _short(error: Exception) -> str:
    return error.message if isinstance(error, DeviceError) else repr(error)
