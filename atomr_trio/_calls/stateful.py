"""Plans whose objects have a state that each execution moves on, such as generators of random numbers.

The user's side knows the state, as a value. It moves when an execution is planned, so the order of executions is that
of the calls. Each execution has the state before it and the state behind it. If the plan of the worker in service is
not known to be in the state before, because a worker was lost, the plan was given up, or an execution in between was
cancelled or has failed, it is defined anew in just that state. So what an execution does depends on its state alone,
whatever became of others.

Executions are sent before it is known whether those before them succeed. So behind one that fails, the worker refuses
the others (`Program.moves`), until the plan is defined anew.

The record of an execution does not have the state. So an execution that was made before goes the short way of a
repeated call, if the worker's plan is in the state where it begins. What differs is kept here: the state behind it, and
the one before it, which the error of an execution that fails or is lost tells.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import trio

from .._arrays.arrays import DeviceArray, Storage
from .._arrays.memory import DeviceMemory
from .._generation.requests import CallKind, Rehearsal
from .._generation.timeline import Command, Launch, Operand
from .._memory.arena import Block
from .._supervision.mailbox import Mailbox
from .._values.errors import DeviceError
from .._wire.programs import Program
from .._wire.protocol import Role, Verb
from .._wire.ready import has_room, new_identity, ready_head, with_holes
from .._wire.records.plans import PlanTable, pack_addresses
from .batch_sender import BatchSender, ShortLaunches
from .known import KnownCall, _repeatable
from .launching import AwaitedLaunch, AwaitedLaunches, LaunchPath
from .plans import Plan, PlanKind, PlanRequest, Plans
from .several_words import words_launcher

if TYPE_CHECKING:
    from .._generation.core import DeviceCore
    from .._generation.generation import Generation
    from .._generation.requests import CommandRequest


class StatefulPlan(Plan):
    """A plan with a state. `make` returns the program that brings it to a state, which is compared by its value."""

    __slots__ = ("_make_in", "_plans", "_state", "_there", "kind")

    def __init__(
        self, device: DeviceCore, table: PlanTable, make: Callable[[Any], Program], addresses: int, operation: str
    ) -> None:
        super().__init__(table, None, device.next_number(), lambda: make(self._state), (0,) * addresses, operation)
        self._make_in = make
        self.lasts = False
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

    def content_in(self, state: object) -> tuple[int, bytes]:
        """Return the end of the record that defines it in a state, behind the length of the program in that."""
        program = self._make_in(state).encode()
        return len(program), program + pack_addresses(self.example)

    @property
    def was_used(self) -> bool:
        """True if a worker may have it."""
        return self._state is not None

    def begin(self, generation: Generation, state: object) -> None:
        """Make sure that the next execution begins in a state."""
        self._state = state
        if self._there != (generation.number, state):
            self._there = None
            self._plans.withdraw(self, generation)

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
        """Return the execution, of a plan in the state before it."""
        if not self._blocks:
            yield (self._plan.table.engine, self._plan.number, self._variant), self._rehearsal

    def _rehearsal(self) -> Rehearsal:
        table = self._plan.table
        program = (table, *self._plan.content_in(self._state))
        return Rehearsal(table.execute, self._payload, self.operation, program=program)

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


class Position(NamedTuple):
    """Where an execution begins, which its error tells."""

    plan: StatefulPlan | None
    """Its plan, if that has a state."""
    plain: Callable[[], dict[str, object]]


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
        error.position = self.begun[0].plain()
        super().launches_lost(count, error)


class _AwaitedExecution(AwaitedLaunch):
    """One execution that went the short way, and the task that waits for it."""

    __slots__ = ("_position",)

    def __init__(self, path: LaunchPath, mailbox: Mailbox, position: Position) -> None:
        super().__init__(path, mailbox)
        self._position = position

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error, and forget the state."""
        _note_failed(launch, error)
        super().launch_failed(launch, error)

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error and wake the task."""
        error.position = self._position.plain()
        super().launches_lost(count, error)


def _note_failed(launch: Launch, error: DeviceError) -> None:
    position = launch[3][-1]
    assert isinstance(position, Position)
    if position.plan is not None:
        position.plan.failed()
    error.position = position.plain()


class KnownExecution:
    """An execution that was made before, and goes on from whatever state its plan is in."""

    __slots__ = ("_call", "_plan")

    def __init__(self, call: KnownCall, plan: StatefulPlan) -> None:
        self._call = call
        self._plan = plan

    @classmethod
    def of(
        cls,
        plan: StatefulPlan,
        arrays: tuple[DeviceArray, ...],
        requests: Sequence[CommandRequest],
        made: Sequence[DeviceArray],
        result: DeviceArray,
    ) -> KnownExecution | None:
        """Return the execution that `requests` are; None if it cannot be repeated."""
        if len(requests) != 1 or type(requests[0]) is not StatefulRequest:
            return None
        call = _repeatable(arrays, requests, made, result)
        return None if call is None else cls(call, plan)

    def send(
        self,
        batch: BatchSender,
        arrays: tuple[DeviceArray, ...],
        state: object,
        plain: Callable[[], dict[str, object]],
        behind: object,
    ) -> DeviceArray | None:
        """Send it in a batch, from a state to the one behind. Returns its result.

        Returns None, and has no effect, if it has to go the general way.
        """
        path, call, plan = batch.path, self._call, self._plan
        if path is None or not plan.is_in(path.generation.number, state):
            return None
        launcher = batch.launchers.get(call._key)
        if launcher is None:
            launcher = None if batch.over else path.learn_call(call)
            if launcher is None:
                return None
        owner = batch.owner(call.kind, _BatchExecutions)
        position = Position(plan, plain)
        if call.new is None:
            result = arrays[0]
            went = launcher(call, (result, position), owner)
        else:
            result = call.new_result(batch.device.part(DeviceMemory))
            block = result._storage.block
            went = launcher(call, (block, position), owner, block)
        if not went:
            return None
        owner.begun.append(position)
        batch.launched = True
        plan.begun(path.generation, behind)
        return result

    @trio.lowlevel.enable_ki_protection
    def begin(
        self,
        launches: AwaitedLaunches,
        arrays: tuple[DeviceArray, ...],
        state: object,
        plain: Callable[[], dict[str, object]],
        behind: object,
    ) -> tuple[AwaitedLaunch, DeviceArray] | None:
        """Begin it, and return what is to be waited for and its result.

        Returns None, and has no effect, if it has to go the general way.
        """
        path, call, plan = launches.present_path(), self._call, self._plan
        actor = launches.device.actor_of(call.kind.later)
        mailbox = actor.mailbox
        if path is None or mailbox.posted != mailbox.taken or actor.current is not None:
            return None
        launcher = path.launchers.get(call._key) or path.learn_call(call)
        if launcher is None or not plan.is_in(path.generation.number, state):
            return None
        position = Position(plan, plain)
        awaited = _AwaitedExecution(path, mailbox, position)
        if call.new is None:
            result = arrays[0]
            went = launcher(call, (result, position), awaited)
        else:
            result = call.new_result(launches.device.part(DeviceMemory))
            block = result._storage.block
            went = launcher(call, (block, position), awaited, block)
        if not went:
            return None
        plan.begun(path.generation, behind)
        return awaited, result


class KnownNumbered:
    """An execution of a plan that was made before, and differs in numbers among its scalars.

    Such a plan has no state: the numbers say where it begins, and only its error needs to tell that.
    """

    __slots__ = (
        "__weakref__",
        "_engine",
        "_key",
        "_new",
        "_new_operands",
        "_operation",
        "blocks",
        "head",
        "kind",
        "payload",
        "places",
        "reads",
        "writes",
    )

    def __init__(self, request: PlanRequest, made: Sequence[DeviceArray], places: Sequence[int]) -> None:
        self.kind: CallKind = request.kind
        self._engine: str = self.kind.later.engine
        self._key = object()
        self._new = [(each.shape, each.dtype) for each in made]
        self._operation = request.operation
        addresses = request.places_of(made[0]) if made else ()
        self.places: tuple[int, ...] = (
            *addresses,
            *(request.place_of_scalars + place for place in places),
        )
        self.payload: bytes = with_holes(request.payload, self.places)
        self.head: bytes = ready_head(new_identity(), self.places)
        blocks = [each._block for each in made]
        self._new_operands = [each for each in request.operands if each[0] in blocks]
        self.blocks: tuple[Operand, ...] = tuple(each for each in request.operands if each[0] not in blocks)
        self.reads: tuple[Block, ...] = tuple(block for block, role in self.blocks if role is Role.READ)
        self.writes: tuple[Block, ...] = tuple(block for block, role in self.blocks if role is not Role.READ)

    @classmethod
    def of(
        cls,
        arrays: tuple[DeviceArray, ...],
        requests: Sequence[CommandRequest],
        made: Sequence[DeviceArray],
        result: DeviceArray,
        places: Sequence[int],
    ) -> KnownNumbered | None:
        """Return the execution that `requests` are, with 64-bit numbers at `places` among the scalars.

        Returns None if it cannot be repeated: its result must be the only array that it makes, or one that was given.
        """
        request = requests[0] if len(requests) == 1 else None
        if type(request) is not PlanRequest or len(made) > 1:
            return None
        given = {array._block for array in (*arrays, *made)}
        is_plain = all(type(array._storage) is Storage for array in arrays)
        if not is_plain or any(block not in given for block, _ in request.operands):
            return None
        if not any(result is array for array in made or arrays) or (made and not request.places_of(result)):
            return None
        found = cls(request, made, places)
        return found if has_room(len(found.places), len(found.payload)) else None

    def send(
        self,
        batch: BatchSender,
        arrays: tuple[DeviceArray, ...],
        numbers: Sequence[int],
        plain: Callable[[], dict[str, object]],
    ) -> DeviceArray | None:
        """Send it in a batch with other numbers. Returns its result.

        Returns None, and has no effect, if it has to go the general way.
        """
        path = batch.path
        launcher = None if path is None or batch.over else words_launcher(path, self)
        if launcher is None:
            return None
        owner = batch.owner(self.kind, _BatchExecutions)
        position, new = Position(None, plain), self._made(batch.device)
        if not launcher(self, (arrays, new, position), owner, new, self._words(new, numbers)):
            return None
        owner.begun.append(position)
        batch.launched = True
        return new[0] if new else arrays[0]

    @trio.lowlevel.enable_ki_protection
    def begin(
        self,
        launches: AwaitedLaunches,
        arrays: tuple[DeviceArray, ...],
        numbers: Sequence[int],
        plain: Callable[[], dict[str, object]],
    ) -> tuple[AwaitedLaunch, DeviceArray] | None:
        """Begin it with other numbers, and return what is to be waited for and its result.

        Returns None, and has no effect, if it has to go the general way.
        """
        path, actor = launches.present_path(), launches.device.actor_of(self.kind.later)
        mailbox = actor.mailbox
        if path is None or mailbox.posted != mailbox.taken or actor.current is not None:
            return None
        launcher = words_launcher(path, self)
        if launcher is None:
            return None
        position, new = Position(None, plain), self._made(launches.device)
        awaited = _AwaitedExecution(path, mailbox, position)
        if not launcher(self, (arrays, new, position), awaited, new, self._words(new, numbers)):
            return None
        return awaited, new[0] if new else arrays[0]

    def _made(self, device: DeviceCore) -> list[DeviceArray]:
        memory = device.part(DeviceMemory)
        return [memory.empty(shape, dtype) for shape, dtype in self._new]

    def _words(self, new: Sequence[DeviceArray], numbers: Sequence[int]) -> list[int]:
        words = [new[0].address] * (len(self.places) - len(numbers)) if new else []
        words += numbers
        return words

    # For launch paths.

    def may_be_short(self, generation: Generation, lane: int) -> bool:
        """Return whether its records may go straight into the ring, because the lane has run such a call before."""
        return self.kind.verb(generation, lane) is self.kind.later

    def _of(self, thing: object) -> bool:
        return self.kind.is_of(thing)

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        """Return the operation and its access to memory. The new arrays are before the last of the arguments."""
        if not arguments or not self._new:
            return self._operation, self.blocks
        (new,), ((_, role),) = cast("list[DeviceArray]", arguments[-2]), self._new_operands
        return self._operation, (*self.blocks, (new._block, role))
