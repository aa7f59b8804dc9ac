"""Plans whose objects have a state that each execution moves on, such as generators of random numbers.

The user's side knows the state, as a value. It moves when an execution is planned, so the order of executions is that
of the calls. Each execution has the state before it and the state behind it. If the plan of the worker in service is
not known to be in the state before, because a worker was lost, the plan was given up, or an execution in between was
cancelled or has failed, it is defined anew in just that state. So what an execution does depends on its state alone,
whatever became of others.

A standby makes its objects ahead of time, in a state that does not matter. The first execution there brings them to the
state that it begins in, which takes less than to make them.

Executions are sent before it is known whether those before them succeed. So behind one that fails, the worker refuses
the others (`Program.moves`), until the plan is defined anew.

The record of an execution does not have the state. So an execution that was made before goes the short way of a
repeated call, if the worker's plan is in the state where it begins. What differs is kept here: the state behind it, and
the one before it, which the error of an execution that fails or is lost tells.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar, cast

import trio

from .._arrays.arrays import DeviceArray
from .._generation.requests import Rehearsal
from .._generation.timeline import Command, Launch, Operand
from .._supervision.mailbox import Mailbox
from .._values.errors import DeviceError
from .._wire.programs import Program
from .._wire.protocol import LANE_COMPUTE, Verb
from .._wire.records.plans import RESTORED, PlanTable, pack_addresses
from .batch_sender import BatchSender, ShortLaunches
from .known import KnownCall, _repeatable
from .launching import AwaitedLaunch, AwaitedLaunches, LaunchPath
from .plans import Plan, PlanKind, PlanRequest, Plans

if TYPE_CHECKING:
    from .._generation.core import DeviceCore
    from .._generation.generation import Generation
    from .._generation.requests import CommandRequest


class StatePrograms(NamedTuple):
    """What the programs of a plan are in a state, which is compared by its value."""

    defined: Callable[[Any], Program]
    """The plan in this state."""
    ahead: Callable[[Any], Program]
    """The plan in any state, with what it takes to come to this one and to those behind it."""
    restored: Callable[[Any], Sequence[bytes]]
    """The calls that bring the plan that was made ahead to this state; see `restoring`."""
    returns: Callable[[Any], bool]
    """Whether these calls say all of its state, so that it is then as a new one."""


def restoring(place: int, scalars: bytes, times: int = 1) -> bytes:
    """Return one of those calls: its place among those of the program (`Program.restore`), and its scalars."""
    return RESTORED.pack(place, times) + scalars


class StatefulPlan(Plan):
    """A plan with a state."""

    __slots__ = ("_ahead", "_plans", "_programs", "_restore", "_state", "_there", "kind")

    def __init__(
        self, device: DeviceCore, table: PlanTable, programs: StatePrograms, addresses: int, operation: str
    ) -> None:
        example = (0,) * addresses
        super().__init__(table, None, device.next_number(), lambda: programs.defined(self._state), example, operation)
        self._programs = programs
        self._restore = table.restore
        self._ahead: weakref.WeakSet[Generation] = weakref.WeakSet()
        """Those that have it from their time as standbys, where it was never executed."""
        self._plans = device.part(Plans)
        self.kind: PlanKind = PlanKind(self._plans, self)
        """What its executions have in common."""
        self._state: object = None
        """The state before the next execution."""
        self._there: tuple[int, object] | None = None
        """The number of the generation in which it was executed last, and the state behind that, if it is known."""

    def definition(self, allowed: int) -> tuple[bytes, bytes]:
        """See `Plan.definition`. It is made for the next execution, each time."""
        self._content = b""
        return super().definition(allowed)

    def definition_ahead(self, allowed: int) -> tuple[bytes, bytes]:
        """Return the same for a standby, which brings it to its state later."""
        program = self._programs.ahead(self._state).encode()
        return self.table.define.struct.pack(self.number, allowed, len(program)), program + pack_addresses(self.example)

    def defined_ahead(self, standby: Generation) -> None:
        """Note that a standby has it."""
        if self._programs.returns(self._state):
            self._ahead.add(standby)

    @property
    def was_used(self) -> bool:
        """True if a worker may have it."""
        return self._state is not None

    def begin(self, generation: Generation, state: object) -> None:
        """Make sure that the next execution begins in a state."""
        self._state = state
        if self._there == (generation.number, state):
            return
        self._there = None
        if generation in self._ahead and (LANE_COMPUTE, self.number) in generation.plans:
            self._plans.bring(self, self._restore, self._programs.restored(state), generation)
        else:
            self._plans.withdraw(self, generation)
        self._ahead.discard(generation)

    def is_in(self, number: int, state: object) -> bool:
        """Return whether the plan of a generation is in a state for certain. It is compared by its identity."""
        there = self._there
        return there is not None and there[1] is state and there[0] == number

    def begun(self, generation: Generation, state: object) -> None:
        """Note that an execution was sent that ends in a state."""
        self._there = (generation.number, state)

    def failed(self) -> None:
        """Note that an execution has failed, so that the state is not known."""
        self._there = None

    def end_in(self, generation: Generation) -> None:
        """Have a worker give it back; see `DeviceCore.dropped`."""
        self._plans.end(self, generation)


class StatefulRequest(PlanRequest):
    """One execution of such a plan, from a state to another. The library waits in one that `blocks`.

    Executions of one `variant` make the same calls, with other numbers.
    """

    __slots__ = ("_behind", "_blocks", "_plan", "_state", "_variant")

    def __init__(
        self,
        plan: StatefulPlan,
        state: object,
        behind: object,
        addresses: Sequence[int],
        scalars: bytes,
        operands: Sequence[Operand],
        *,
        lane: int,
        operation: str,
        keep: object,
        blocks: bool = False,
        variant: Hashable = None,
    ) -> None:
        super().__init__(plan.kind, addresses, scalars, operands, lane=lane, operation=operation, keep=keep)
        self._plan = plan
        self._state = state
        self._behind = behind
        self._blocks = blocks
        self._variant = variant

    def _verb_in(self, generation: Generation) -> Verb:
        return self._kind.first if self._blocks else super()._verb_in(generation)

    def rehearsals(self) -> Iterable[tuple[Hashable, Callable[[], Rehearsal]]]:
        """Return the execution, which is the same for all of a variant."""
        plan = self._plan
        if not self._blocks:
            yield (
                (plan.table.engine, plan.number, self._variant),
                lambda: Rehearsal(plan.table.execute, self._payload, self.operation, plan.number),
            )

    def start(self, generation: Generation) -> None:
        """Publish the record, after a definition in its state where the plan is not in that."""
        self._plan.begin(generation, self._state)
        super().start(generation)
        self._plan.begun(generation, self._behind)

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Settle; and after a failure, forget the state."""
        if error is not None:
            self._plan.failed()
        super().command_finished(command, error, value)


class Plain(Protocol):
    """A state of which an error can tell."""

    def __getitem__(self, index: Literal[0], /) -> object:
        """Return the state of the plan. A state is a tuple that begins with it."""

    def plain(self) -> dict[str, object]:
        """Return what it tells."""

    def moved(self, steps: int, pace: Any) -> Self:
        """Return the state that is so many steps of a pace behind."""


S = TypeVar("S", bound=Plain)
Position = tuple[StatefulPlan | None, Plain, int, object]
"""Where an execution begins: its plan, if that has a state; and the state, and the steps behind it with their pace, for
its error."""


class Holder(Generic[S]):
    """What has a state, such as a generator.

    Most executions move it on by some steps, and follow others of the same pace. The steps are only counted: a new
    state with each execution would take as long as its record. If the plan of the worker was in the state that they are
    counted from, it has moved on by as many.
    """

    __slots__ = ("_counted", "_pace", "_plan", "_steps")

    def __init__(self, state: S, plan: StatefulPlan) -> None:
        self._counted: S = state
        """The state that the steps are counted from."""
        self._steps = 0
        self._pace: object = None
        """What the steps are."""
        self._plan = plan

    @property
    def _state(self) -> S:
        """Where it stands."""
        if self._steps:
            self._settle()
        return self._counted

    @_state.setter
    @trio.lowlevel.enable_ki_protection
    def _state(self, state: S) -> None:
        if self._steps:
            self._settle()  # the plan of the worker is not where it was counted from
        self._counted = state

    @trio.lowlevel.enable_ki_protection
    def _settle(self) -> None:
        """Count from where it stands."""
        before, plan = self._counted, self._plan
        behind = before.moved(self._steps, self._pace)
        there = plan._there
        if there is not None and there[1] is before[0]:
            plan._there = there[0], behind[0]
        self._counted, self._steps = behind, 0


class _BatchExecutions(ShortLaunches):
    """Receives the outcomes of a batch's executions that went the short way."""

    __slots__ = ("begun",)

    def __init__(self, mailbox: Mailbox, errors: list[DeviceError]) -> None:
        super().__init__(mailbox, errors)
        self.begun: collections.deque[Position] = collections.deque()
        """Where each of those begins that are not finished."""

    def launches_finished(self, count: int) -> None:
        """Count them for their actor."""
        super().launches_finished(count)
        for _ in range(count):
            self.begun.popleft()

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error for `flush`, and forget the state."""
        _note_failed(launch, error)
        super().launch_failed(launch, error)

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Count them, and keep the error of the first."""
        error.position = _told(self.begun[0])
        super().launches_lost(count, error)


class _AwaitedExecution(AwaitedLaunch):
    """One execution that went the short way, and the task that waits for it."""

    __slots__ = ("begun",)

    def __init__(self, path: LaunchPath, mailbox: Mailbox) -> None:
        super().__init__(path, mailbox)
        self.begun: list[Position] = []
        """Where it begins."""

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error, and forget the state."""
        _note_failed(launch, error)
        super().launch_failed(launch, error)

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error and wake the task."""
        error.position = _told(self.begun[0])
        super().launches_lost(count, error)


def _note_failed(launch: Launch, error: DeviceError) -> None:
    position = next(cast("Position", each) for each in launch[3] if type(each) is tuple)
    if position[0] is not None:
        position[0].failed()
    error.position = _told(position)


def _told(position: Position) -> dict[str, object]:
    _, before, steps, pace = position
    return (before.moved(steps, pace) if steps else before).plain()


Numbers = Callable[[Any, int], Sequence[int]]
"""Returns the numbers that an execution is given, by the state that was counted from and the steps behind that."""


class Moves(NamedTuple):
    """How an execution moves the state of its holder."""

    behind: Callable[[Any, Any], Plain | None]
    """Returns the state behind it, by the holder and the state before; None if it has to be planned."""
    steps: int = 0
    """How many steps that are, where steps can be counted; 0 if they nowhere can."""
    pace: object = None
    """What a step is: executions of one pace may be counted together. It is compared by its identity."""
    room: Callable[[Any], int] = int
    """Returns how many steps may be counted from a state."""


class KnownExecution:
    """An execution that was made before, and goes on from whatever state its plan is in.

    Where the plan has no state, numbers that are given with each execution say where it begins, and only its error
    needs to tell that.
    """

    __slots__ = (
        "_behind",
        "_call",
        "_from",
        "_is_new",
        "_key",
        "_most",
        "_numbers",
        "_pace",
        "_plan",
        "_room",
        "_steps",
    )

    def __init__(self, call: KnownCall, plan: StatefulPlan | None, moves: Moves, numbers: Numbers | None) -> None:
        self._call = call
        self._key = call._key
        self._is_new = call.new is not None
        self._plan = plan
        self._behind, self._steps, self._pace, self._room = moves
        self._from: object = None
        """The state that was counted from last time."""
        self._most = 0
        """The most steps from there."""
        self._numbers = numbers

    @classmethod
    def of(
        cls,
        plan: StatefulPlan | None,
        arrays: tuple[DeviceArray, ...],
        requests: Sequence[CommandRequest],
        made: Sequence[DeviceArray],
        result: DeviceArray,
        moves: Moves,
        numbers: Numbers | None = None,
        places: Sequence[int] = (),
    ) -> KnownExecution | None:
        """Return the execution that `requests` are, whose `numbers` of 64 bits are at `places` among the scalars.

        Returns None if it cannot be repeated.
        """
        request = requests[0] if len(requests) == 1 else None
        if not isinstance(request, PlanRequest) or (type(request) is StatefulRequest) is (plan is None):
            return None
        at = [request.place_of_scalars + place for place in places]
        call = _repeatable(arrays, requests, made, result, at)
        return None if call is None or not call.head else cls(call, plan, moves, numbers)

    @trio.lowlevel.enable_ki_protection
    def send(self, batch: BatchSender, holder: Holder[Any], arrays: tuple[DeviceArray, ...]) -> DeviceArray | None:
        """Send it in a batch, from the state of its holder, which moves on. Returns its result.

        Returns None, and has no effect, if it has to go the general way.
        """
        path, key, call = batch.path, self._key, self._call
        if path is None:
            return None
        try:
            launcher, owner = batch.launchers[key], batch.owners[key]
        except KeyError:
            launcher = None if batch.over else path.launchers.get(key) or path.learn_call(call, batch.memory)
            if launcher is None:
                return None
            owner = batch.owners[key] = batch.owner(call.kind, _BatchExecutions)
        result = self._sent(launcher, path.generation.number, holder, arrays, owner)
        if result is not None:
            batch.launched = True
        return result

    @trio.lowlevel.enable_ki_protection
    def begin(
        self, launches: AwaitedLaunches, holder: Holder[Any], arrays: tuple[DeviceArray, ...]
    ) -> tuple[AwaitedLaunch, DeviceArray] | None:
        """Begin it, from the state of its holder, which moves on. Returns what is to be waited for and its result.

        Returns None, and has no effect, if it has to go the general way.
        """
        path, call = launches.path or launches.present_path(), self._call
        actor = launches.device.actor_of(call.kind.later)
        mailbox = actor.mailbox
        if path is None or mailbox.posted != mailbox.taken or actor.current is not None:
            return None
        launcher = path.launchers.get(self._key) or path.learn_call(call, launches.memory)
        if launcher is None:
            return None
        awaited = _AwaitedExecution(path, mailbox)
        result = self._sent(launcher, path.generation.number, holder, arrays, awaited)
        return None if result is None else (awaited, result)

    def _sent(
        self,
        launcher: Any,
        generation: int,
        holder: Holder[Any],
        arrays: tuple[DeviceArray, ...],
        owner: _BatchExecutions | _AwaitedExecution,
    ) -> DeviceArray | None:
        """Write its record, and move the holder on. Returns its result; None, without any effect, if that cannot be."""
        if holder._pace is not self._pace and holder._steps:
            holder._settle()
        plan, before, steps, pace = self._plan, holder._counted, self._steps, self._pace
        if plan is not None:
            there = plan._there
            if there is None or there[1] is not before[0] or there[0] != generation:  # see `StatefulPlan.is_in`
                return None
        begins, behind = 0, None
        if steps:
            begins = holder._steps
            steps += begins
            if before is not self._from:
                self._from, self._most = before, self._room(before)
            if steps > self._most:
                steps = 0
        if not steps:
            if holder._steps:
                holder._settle()
            begins, before = 0, holder._counted
            behind = self._behind(holder, before)
            if behind is None:
                return None
        numbers, position = self._numbers, (plan, before, begins, pace)
        words = () if numbers is None else numbers(before, begins)
        result: DeviceArray | None
        if self._is_new:
            result = launcher(self._call, (position,), owner, words)
            if result is None:
                return None
        else:
            result = arrays[0]
            if not launcher(self._call, (result, position), owner, None, 0, words):
                return None
        if behind is None:
            holder._steps, holder._pace = steps, pace
        else:
            if plan is not None:
                plan._there = generation, behind[0]
            holder._counted = behind  # nothing is counted from the state before
        owner.begun.append(position)
        return result
