"""Plans whose objects have a state that each execution moves on, such as generators of random numbers.

The user's side knows the state, as a value. It moves when an execution is planned, so the order of executions is that
of the calls. Each execution has the state before it and the state behind it. If the plan of the worker in service is
not known to be in the state before, because a worker was lost, the plan was given up, or an execution in between was
cancelled or has failed, it is defined anew in just that state. So what an execution does depends on its state alone,
whatever became of others.

Executions are sent before it is known whether those before them succeed. So behind one that fails, the worker refuses
the others (`Program.moves`), until the plan is defined anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .._generation.requests import Rehearsal
from .._generation.timeline import Command, Operand
from .._values.errors import DeviceError
from .._wire.programs import Program
from .._wire.protocol import Verb
from .._wire.records.plans import PlanTable, pack_addresses
from .plans import Plan, PlanKind, PlanRequest, Plans

if TYPE_CHECKING:
    from .._generation.core import DeviceCore
    from .._generation.generation import Generation


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
