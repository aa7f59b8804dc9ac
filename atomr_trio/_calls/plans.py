"""Plans of libraries, on the user's side: the list of a device's plans, and the requests that execute them.

A plan is a description by value. Its key has all that it depends on; keys are compared whole. What it does in a worker
is a `Program`, which is made from the key when the first worker asks for it. So a plan outlives every worker: the first
execution in a generation or on a lane sends the definition before itself, and a standby gets it ahead of time.

The list is kept here and not in the worker, because an execution that names an unknown plan cannot be answered there. A
worker has no more plans than the list. The one that was not used for longest goes, for all workers, and comes back
silently when it is used again. A use is noted by the number of its record, which costs nothing on the short way.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .._generation.core import DeviceCore, DevicePart
from .._generation.requests import CallKind, CommandRequest, Rehearsal, Usage
from .._generation.timeline import Command, Operand, Unwatched
from .._values.errors import DeviceError, OutOfHostMemory
from .._values.shortage import host_limits
from .._wire.protocol import LANE_COMPUTE, Verb
from .._wire.records.plans import MOST_DEFINED, PLACE_OF_ADDRESSES, WORD, DefiningTable, Encoded, pack_addresses

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .._generation.generation import Generation


class Plan:
    """One plan: its key, its number in workers, and the program that makes it."""

    __slots__ = (
        "__weakref__",
        "_content",
        "_make",
        "example",
        "key",
        "last_use",
        "number",
        "operation",
        "table",
    )

    def __init__(
        self,
        table: DefiningTable,
        key: Hashable,
        number: int,
        make: Callable[[], Encoded],
        example: tuple[int, ...],
        operation: str,
    ) -> None:
        self.table: DefiningTable = table
        self.key: Hashable = key
        self.number: int = number
        self.example: tuple[int, ...] = example
        """Addresses of the first call. Those of every other are aligned alike."""
        self.operation: str = operation
        self._make = make
        self._content = b""
        self.last_use: int = 0
        """The number of the record of its last execution in the present generation."""

    def __repr__(self) -> str:
        return f"<Plan {self.number} of {self.operation}>"

    def definition(self, allowed: int) -> tuple[bytes, bytes]:
        """Return the tail of the record that defines it, with the bytes that its workspace may take, in two parts."""
        if not self._content:
            self._content = self._make().encode()
        head = self.table.define.struct.pack(self.number, allowed, len(self._content))
        return head, self._content + pack_addresses(self.example)

    def definition_ahead(self, allowed: int) -> tuple[bytes, bytes]:
        """Return the same for a standby."""
        return self.definition(allowed)

    def defined_ahead(self, standby: Generation) -> None:
        """Note that a standby has it."""


class PlanKind(CallKind):
    """The executions of one plan. The first on a lane of a worker sends the definition before itself."""

    __slots__ = ("plan", "plans")

    def __init__(self, plans: Plans, plan: Plan) -> None:
        table = plan.table
        super().__init__(table.first_execute, table.execute, table.open, plan.number)
        self.plans: Plans = plans
        self.plan: Plan = plan

    @property
    def usage(self) -> Usage:
        return self.plan

    def precede(self, generation: Generation, lane: int) -> None:
        """Define the plan, if the worker was not told of it."""
        self.plans.use(self.plan, generation.sender.sent)
        if (lane, self.plan.number) not in generation.plans:
            self.plans.define(self.plan, generation, lane)

    def is_of(self, thing: object) -> bool:
        """Return whether it ends with this plan."""
        return thing is self.plan


class PlanRequest(CommandRequest):
    """One execution of a plan."""

    __slots__ = ("_addresses", "_kind")

    def __init__(
        self,
        kind: PlanKind,
        addresses: Sequence[int],
        scalars: bytes,
        operands: Sequence[Operand],
        *,
        lane: int,
        operation: str,
        keep: object,
    ) -> None:
        verb = kind.plan.table.execute
        payload = verb.struct.pack(kind.plan.number) + pack_addresses(addresses) + scalars
        super().__init__(verb, payload, operands, keep=keep, lane=lane, operation=operation)
        self._kind = kind
        self._addresses = tuple(addresses)

    @property
    def kind(self) -> CallKind:
        return self._kind

    @property
    def plan(self) -> PlanKind:
        """The plan that it executes."""
        return self._kind

    def places_of(self, array: DeviceArray) -> tuple[int, ...]:
        """Return the offsets in the payload of an array's address; none if another address points into the array."""
        inside = [at for at, address in enumerate(self._addresses) if array._block.holds(address)]
        if any(self._addresses[at] != array.address for at in inside):
            return ()
        return tuple(PLACE_OF_ADDRESSES + WORD * at for at in inside)

    @property
    def place_of_scalars(self) -> int:
        """The offset of the scalars in the payload."""
        return PLACE_OF_ADDRESSES + WORD * len(self._addresses)

    def rehearsals(self) -> Iterable[tuple[Hashable, Callable[[], Rehearsal]]]:
        """Return the execution, which is the same for all of a plan."""
        plan = self._kind.plan
        yield (
            (plan.table.engine, plan.number),
            lambda: Rehearsal(plan.table.execute, self._payload, self.operation, plan.number),
        )

    def start(self, generation: Generation) -> None:
        """Publish the record, after the definition of the plan where that is missing."""
        self._kind.precede(generation, self.lane)
        self._verb = self._verb_in(generation)
        super().start(generation)
        self._kind.begun(generation, self.lane)

    def _verb_in(self, generation: Generation) -> Verb:
        """Return the verb of this execution."""
        return self._kind.verb(generation, self.lane)

    def addresses(self) -> tuple[tuple[int, int], ...]:
        return tuple((PLACE_OF_ADDRESSES + WORD * at, address) for at, address in enumerate(self._addresses))


class Plans(DevicePart):
    """The plans of one device."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._limit = device.options.plan_cache
        self._living: weakref.WeakValueDictionary[Hashable, Plan] = weakref.WeakValueDictionary()
        """Every plan that anything refers to."""
        self._kept: collections.OrderedDict[Plan, None] = collections.OrderedDict()
        """Those that workers may have. Of those that were last used by the same record, the one used last is behind."""
        self._held: set[Plan] = set()
        """Those that no worker may be made to give up now."""

    def __repr__(self) -> str:
        return f"<Plans: {len(self._kept)} of {self._limit}>"

    def plan(
        self,
        table: DefiningTable,
        key: Hashable,
        make: Callable[[], Encoded],
        example: Sequence[int],
        operation: str,
    ) -> PlanKind:
        """Return the plan with this key, for its executions. `make` returns its program, a function of the key alone.

        `example` are addresses aligned as those of each execution are.
        """
        whole = (table.engine, key)
        plan = self._living.get(whole)
        if plan is None:
            number = self.device.next_number()
            plan = self._living[whole] = Plan(table, key, number, make, tuple(example), operation)
        return PlanKind(self, plan)

    def use(self, plan: Plan, record: int) -> None:
        """Note that a plan is used by the command behind this record.

        If there are too many, give up the one that was not used for longest.
        """
        kept = self._kept
        kept[plan] = None
        kept.move_to_end(plan)
        plan.last_use = record
        while len(kept) > self._limit:
            dropped = min(kept, key=_last_use)
            del kept[dropped]
            self.device.dropped.append(functools.partial(self._drop, dropped))

    def define(self, plan: Plan, generation: Generation, lane: int) -> None:
        """Make a worker define a plan for a lane; and the standbys, on the compute lane."""
        self.device.release_dropped(generation)
        self._publish(plan, generation, lane)
        if lane == LANE_COMPUTE:
            for standby in generation.standbys:
                if standby.ready and (lane, plan.number) not in standby.plans:
                    self._publish_ahead(plan, standby)

    def end(self, plan: Plan, generation: Generation) -> None:
        """Give up a plan that nobody uses any more; see `DeviceCore.dropped`."""
        self._kept.pop(plan, None)
        self._drop(plan, generation)

    @contextlib.contextmanager
    def defined(self, kinds: Sequence[PlanKind], generation: Generation, lane: int) -> Iterator[None]:
        """Define plans for a lane, all of which the worker has until the block is left, more than the list has too."""
        before, self._held = self._held, self._held | {kind.plan for kind in kinds}
        try:
            for kind in kinds:
                kind.precede(generation, lane)
            yield
        finally:
            self._held = before

    def bring(self, plan: Plan, restore: Verb, calls: Sequence[bytes], generation: Generation) -> None:
        """Make a worker bring a plan of the compute lane to the state that these calls lead to."""
        owner = _Definition(plan, generation, LANE_COMPUTE)
        head = restore.struct.pack(plan.number, len(calls))
        self._hand_over(plan, generation, LANE_COMPUTE, restore, head, b"".join(calls), owner)

    def _publish(self, plan: Plan, generation: Generation, lane: int) -> None:
        head, content = plan.definition(generation.workspace_room)
        owner = _Definition(plan, generation, lane)
        self._hand_over(plan, generation, lane, plan.table.define, head, content, owner)
        generation.plans.add((lane, plan.number))

    def _hand_over(
        self,
        plan: Plan,
        generation: Generation,
        lane: int,
        verb: Verb,
        head: bytes,
        content: bytes,
        owner: _Definition,
    ) -> None:
        operation = f"the plan of {plan.operation}"
        if len(content) <= MOST_DEFINED:
            generation.publish(lane, verb, head + content, (), owner, operation=operation)
        else:
            with (
                host_limits("the plan cannot be handed to the worker", device=self.device.index, operation=operation),
                open(os.memfd_create("atomr-trio-plan", os.MFD_CLOEXEC), "wb") as file,
            ):
                file.write(content)
                file.flush()
                descriptors = (file.fileno(),)
                generation.publish(lane, verb, head, (), owner, operation=operation, descriptors=descriptors)

    def _publish_ahead(self, plan: Plan, standby: Generation) -> None:
        """Define a plan in a standby. If it cannot be handed over now, its first execution there does so, or fails."""
        head, content = plan.definition_ahead(standby.workspace_room)
        owner = _DefinitionAhead(plan, standby, LANE_COMPUTE)
        with contextlib.suppress(OutOfHostMemory):
            self._hand_over(plan, standby, LANE_COMPUTE, plan.table.define, head, content, owner)
            standby.plans.add((LANE_COMPUTE, plan.number))

    def _drop(self, plan: Plan, generation: Generation) -> None:
        """Make a worker give a plan back, unless it is used again by now."""
        if plan in self._held:
            self.device.dropped.append(functools.partial(self._drop, plan))
        if plan in self._kept or plan in self._held:
            return
        self.withdraw(plan, generation)

    def withdraw(self, plan: Plan, generation: Generation) -> None:
        """Make a worker give a plan back, if it has it: now, behind what was sent."""
        payload = plan.table.drop.struct.pack(plan.number)
        for lane, number in [each for each in generation.plans if each[1] == plan.number]:
            generation.publish(lane, plan.table.drop, payload, (), Unwatched(), aside=True)
            generation.forget_plan(lane, number, plan.table.engine)
        for path in generation.sender.short_ways:
            path.forget(plan)

    # --- in turns of the device's life --------------------------------------------------------------------------------

    def generation_lost(self, number: int) -> None:
        """Keep the order of uses: the records of the next generation are counted anew."""
        self._kept = collections.OrderedDict.fromkeys(sorted(self._kept, key=_last_use))
        for plan in self._kept:
            plan.last_use = -1

    def warm(self, standby: Generation) -> None:
        """Have a new standby define what the worker in service has on the compute lane."""
        current = self.device.current
        for plan in self._kept if current is not None else ():
            place = (LANE_COMPUTE, plan.number)
            is_missing = current is not None and place in current.plans and place not in standby.plans
            if standby.ready and is_missing:
                self._publish_ahead(plan, standby)


def _last_use(plan: Plan) -> int:
    return plan.last_use


class _Definition:
    """The owner of a definition."""

    def __init__(self, plan: Plan, generation: Generation, lane: int) -> None:
        self._plan = plan
        self._generation = generation
        self._lane = lane

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """After a failure, forget it, so that the next use tries again."""
        if error is not None:
            self._generation.forget_plan(self._lane, self._plan.number, self._plan.table.engine)
            for path in self._generation.sender.short_ways:
                path.forget(self._plan)

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Nothing to do: the worker has no plans any more."""


class _DefinitionAhead(_Definition):
    """The owner of a definition in a standby."""

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Note that the standby has it, or forget it."""
        super().command_finished(command, error, value)
        if error is None:
            self._plan.defined_ahead(self._generation)
