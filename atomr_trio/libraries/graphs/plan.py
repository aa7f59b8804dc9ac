"""The plan of a graph: its steps, their order, and the whole graph's access to each block.

A plan never changes: an update makes another one, which shares all but the step that it changes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import attrs

from ..._calls.plans import PlanKind
from ..._generation.timeline import Operand
from ..._memory.arena import Block
from ..._values.errors import InvalidArgument
from ..._values.util import known
from ..._wire.protocol import Role, Verb
from ..modules.module import Module
from .records import UPDATE, UPDATE_CALLS, encode_head
from .steps import ROW, Records, Rows, rows_of, with_item

_ROWS_AT_A_TIME = 8
"""The number of rows that are written down between two turns of other tasks."""

FEW = _ROWS_AT_A_TIME * ROW
"""So many steps are described in one turn."""


@attrs.define(eq=False)
class GraphStep:
    """One recorded operation. It never changes."""

    operation: str
    records: Records
    roles: dict[Block, Role]
    """Its access to each block."""
    change: Callable[..., GraphStep]
    """A function that makes the same operation with other arguments."""
    keep: Any
    """The arrays, and other objects that must not be collected."""
    module: Module | None = None
    renumber: Callable[[GraphStep, tuple[object, ...]], GraphStep | None] | None = None
    """A function of a step that is the same operation with other numbers among its arguments; None if that is not all.
    """


def combined(operands: Iterable[Operand]) -> dict[Block, Role]:
    """Return one role for each block of a single operation."""
    roles: dict[Block, Role] = {}
    for block, role in operands:
        roles[block] = role if roles.get(block, role) is role else Role.WRITE
    return roles


class StepOrder:
    """The order of the steps, by the rules of `Block.claim`, and the access of all of them to each block.

    It is made step by step, and never changes once the last of them was added.
    """

    def __init__(self) -> None:
        self.roles: dict[Block, Role] = {}
        self.after: list[tuple[int, ...]] = []
        """For each step, the steps that must be done before it, without those that follow from others of them."""
        self.ancestors: list[int] = []
        """For each step, all steps that must be done before it, as a set of bits."""
        self.heads: list[bytes] = []
        """For each step, its description for the worker, without its records."""
        self._writers: dict[Block, int] = {}
        self._readers: dict[Block, list[int]] = {}

    @functools.cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The access of the whole graph to each block, once the last step was added."""
        return tuple(self.roles.items())

    def take_in(self, step: GraphStep) -> tuple[int, ...]:
        """Add the next step. Returns the steps that it comes `after`."""
        needed = self.place(step.roles)
        self.heads.append(encode_head(len(self.heads), needed, step.records.count))
        return needed

    def place(self, roles: Mapping[Block, Role]) -> tuple[int, ...]:
        """Add the next step by its access to each block, for an order that describes nothing to a worker.

        Returns the steps that it comes `after`.
        """
        number = len(self.ancestors)
        after: set[int] = set()
        for block, role in roles.items():
            # A block that is overwritten first does not need its earlier contents, so its role stays.
            so_far = self.roles.setdefault(block, role)
            if block in self._writers:
                after.add(self._writers[block])
            if role is Role.READ:
                self._readers.setdefault(block, []).append(number)
                continue
            after.update(self._readers.pop(block, ()))
            self._writers[block] = number
            if so_far is Role.READ:
                self.roles[block] = Role.WRITE
        implied = functools.reduce(operator.or_, (self.ancestors[each] for each in after), 0)
        self.ancestors.append(functools.reduce(operator.or_, (1 << each for each in after), implied))
        needed = tuple(sorted(each for each in after if not implied >> each & 1))
        self.after.append(needed)
        return needed


class OrderAsNeeded:
    """The order of the steps of a plan, found as far as somebody asks. In any thread. It keeps no array alive."""

    __slots__ = ("_lock", "_order", "_roles")

    def __init__(self, order: StepOrder, roles: Sequence[Mapping[Block, Role]] = ()) -> None:
        self._order = order
        self._roles = roles
        """The access of each step to each block, where `order` is not yet that of all of them."""
        self._lock = threading.Lock()

    def after(self, number: int) -> tuple[int, ...]:
        """Return the steps that must be done before this one, without those that follow from others of them."""
        found = self._order.after
        if number >= len(found):
            with self._lock:
                for roles in self._roles[len(found) : number + 1]:
                    self._order.place(roles)
        return found[number]


class GraphPlan:
    """A whole recording. Its steps and their records never change; their order is computed when it is needed."""

    __slots__ = ("_count", "_described", "_order", "_preparing", "modules", "records", "steps")

    def __init__(
        self,
        steps: Rows[GraphStep],
        records: Rows[Records],
        modules: tuple[Module, ...],
        count: int,
        order: StepOrder | None,
    ) -> None:
        self.steps: Rows[GraphStep] = steps
        self.records: Rows[Records] = records
        self.modules: tuple[Module, ...] = modules
        self._count = count
        self._order = order
        self._preparing = StepOrder() if order is None else order
        self._described: BinaryIO | None = None

    @classmethod
    def of(cls, steps: Sequence[GraphStep], modules: Iterable[Module], order: StepOrder) -> GraphPlan:
        return cls(rows_of(steps), rows_of([step.records for step in steps]), tuple(modules), len(steps), order)

    def __len__(self) -> int:
        return self._count

    def step(self, number: int) -> GraphStep:
        """Return the step of this number."""
        return self.steps[number // ROW][number % ROW]

    def with_step(self, number: int, step: GraphStep) -> GraphPlan:
        """Return the plan with another step in this place: the same operation with other arguments."""
        before = self.step(number)
        order = self._order if step.roles is before.roles or step.roles == before.roles else None
        steps, records = with_item(self.steps, number, step), with_item(self.records, number, step.records)
        return GraphPlan(steps, records, self.modules, self._count, order)

    def keeps_order_of(self, before: GraphPlan) -> bool:
        """Return whether the order, and the access to each block, are known to be those of a plan before."""
        return self._order is not None and self._order is before._order

    def has_order(self, ancestors: list[int]) -> bool:
        """Return whether its order is known to be this one, and so each step accesses the same blocks."""
        return self._order is not None and self._order.ancestors is ancestors

    @property
    def order(self) -> StepOrder:
        """The order of its steps."""
        for _ in self.find_order():
            """All of it at once."""
        return known(self._order, "it was found")

    def find_order(self) -> Iterator[None]:
        """Find the order of the steps, unless it is known, some hundred of them at a time."""
        while self._order is None:
            found = self._preparing
            done = len(found.ancestors)
            for step in self.steps[done // ROW]:
                found.take_in(step)
            if len(found.ancestors) == len(self):
                self._order = found
            yield

    def order_as_needed(self) -> OrderAsNeeded:
        """Return the order, for somebody who may ask for a part of it; if it is not known, that finds it anew."""
        if self._order is not None:
            return OrderAsNeeded(self._order)
        return OrderAsNeeded(StepOrder(), [step.roles for row in self.steps for step in row])

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The access of the whole graph to each block."""
        return self.order.operands

    def describe(self) -> Iterator[None]:
        """Write the plan down as a worker is told it, unless that was done, about a thousand steps at a time.

        Raises `OSError` if there is no room for the file that it is written to.
        """
        yield from self.find_order()
        if self._described is None:
            heads = self.order.heads
            with contextlib.ExitStack() as undo:
                file = undo.enter_context(open(os.memfd_create("atomr-trio-graph", os.MFD_CLOEXEC), "wb"))
                for first, row in enumerate(self.records):
                    contents = [each.content for each in row]
                    steps = zip(heads[first * ROW : (first + 1) * ROW], contents, strict=True)
                    file.write(b"".join(itertools.chain.from_iterable(steps)))
                    if first % _ROWS_AT_A_TIME == _ROWS_AT_A_TIME - 1:
                        yield
                file.flush()
                undo.pop_all()
            self.forget_description()  # another task may have finished one meanwhile
            self._described = file

    @property
    def is_described(self) -> bool:
        """True if a description is ready."""
        return self._described is not None

    def take_description(self) -> BinaryIO:
        """Return the file of the description, which the caller closes.

        It is not kept: a plan is seldom described twice.

        Raises `OSError` as `describe` does.
        """
        for _ in self.describe():
            """All of it at once."""
        described, self._described = known(self._described, "it was made"), None
        return described

    def forget_description(self) -> None:
        """Close the description that is ready, if there is one."""
        described, self._described = self._described, None
        if described is not None:
            described.close()

    @property
    def plans(self) -> tuple[PlanKind, ...]:
        """The plans of libraries that its steps execute."""
        return tuple(kind for row in self.records for each in row for kind in each.plans)

    def changes_of(self, known: Rows[Records]) -> Iterator[tuple[int, Records]]:
        """Return the steps that differ from other records of them, each with its number.

        Rows that no update has touched are the same objects, and are skipped.
        """
        for first, (row, old_row) in enumerate(zip(self.records, known, strict=True)):
            if row is not old_row:
                for number, (records, old) in enumerate(zip(row, old_row, strict=True), first * ROW):
                    if records is not old:
                        yield number, records

    def difference(self, known: Rows[Records], most: int) -> tuple[Verb, bytes] | None:
        """Return the verb and the changes for a worker that has the steps with other records.

        Returns None for more bytes than `most`. The edges stay.
        """
        parts: list[bytes] = []
        size = 0
        verb = UPDATE
        for number, records in self.changes_of(known):
            parts += (encode_head(number, (), records.count), records.content)
            verb = UPDATE_CALLS if records.has_calls else verb
            size += len(parts[-1]) + len(parts[-2])
            if size > most:
                return None
        return verb, b"".join(parts)

    def check_freed(self) -> None:
        """Raise `InvalidArgument` if an array was freed."""
        if any(block.freed for block, _ in self.operands):
            raise InvalidArgument("an array of the graph was freed", advice="give the node another one with update()")


class BuiltGraph:
    """The state of a graph in one worker. It keeps no array alive."""

    __slots__ = ("ancestors", "records", "ticket")

    def __init__(self, plan: GraphPlan) -> None:
        self.records: Rows[Records] = plan.records
        self.ancestors: list[int] = plan.order.ancestors
        """The order that was built; an update does not change it."""
        self.ticket: int = 0
        """The ticket, on the compute lane, of the newest build or update under way; 0 when all are done."""

    def keeps_order_of(self, plan: GraphPlan) -> bool:
        """Return whether the built order satisfies the order of another plan."""
        ancestors = plan.order.ancestors
        if ancestors is self.ancestors:
            return True
        return all(now & ~then == 0 for now, then in zip(ancestors, self.ancestors, strict=True))
