"""Verbs in two phases: the size of the result is known only after a first call, which looks at the data.

Such a verb is a generator function. It yields a `Definition` and is given what that answers; then it makes its new
arrays, plans the execution of what was defined, and returns its result. The definition is a plan for this one call: its
objects and its answers depend on the data of the arrays, so no key could tell it from another. It is dropped behind its
execution, and no such call is ever repeated from memory.

Between the two phases other tasks run. The worker may be lost, and with it what was defined: `ContextLost`. And an
array may be written: the two phases would then work on different data, so the execution is refused.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import outcome

from .._generation.requests import CommandRequest
from .._generation.timeline import Command, Unwatched
from .._memory.arena import Block, Ticket
from .._values.errors import DeviceError, InvalidArgument
from .._values.util import known
from .._wire.programs import Program
from .._wire.records.plans import pack_addresses

if TYPE_CHECKING:
    from .._generation.core import DeviceCore
    from .._generation.generation import Generation
    from .._wire.records.plans import PlanTable
    from .verbs import Library, Operands

T = TypeVar("T")


class Definition(CommandRequest):
    """The definition of a plan for one call. It reads the data of its operands, in order with all other work on them.

    `addresses` are those of the execution; one that is not known yet is 0.
    """

    __slots__ = ("_addresses", "_device", "_generation", "_number", "_program", "_table", "_writers", "answers")

    def __init__(
        self, library: Library, program: Program, addresses: Sequence[int], operands: Operands, operation: str
    ) -> None:
        table = cast("PlanTable", library._table)
        super().__init__(
            table.define,
            b"",
            operands.roles(),
            keep=operands.arrays,
            lane=library._lane,
            operation=f"{table.engine}.{operation}",
        )
        self.answers: tuple[int, ...] = ()
        """The numbers that the program names, once it is done."""
        self._device: DeviceCore = library._device
        self._table = table
        self._program = program
        self._addresses = addresses
        self._number = library._device.next_number()
        self._generation: Generation | None = None
        self._writers: Sequence[tuple[Block, Ticket | None]] = ()

    def start(self, generation: Generation) -> None:
        """Publish the record."""
        content = self._program.encode()
        head = self._table.define.struct.pack(self._number, generation.workspace_room, len(content))
        self._payload = head + content + pack_addresses(self._addresses)
        super().start(generation)
        self._generation = generation
        self._writers = [(block, block.writer) for block, _ in self.operands]
        if self._table.open not in generation.opened:
            generation.note_opened(self._table.open)

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Take the answers."""
        if error is None:
            self.answers = tuple(value["answers"])
        super().command_finished(command, error, value)

    def execution(self, addresses: Sequence[int], scalars: bytes, operands: Operands) -> CommandRequest:
        """Return the execution. Its operands are those of the definition, and what it writes."""
        return _Execution(self, addresses, scalars, operands)

    def check_same(self, generation: Generation, operation: str) -> DeviceError | None:
        """Return the error if `generation` does not have it. Raises `InvalidArgument` if its data has changed."""
        own = known(self._generation, "its answers were awaited")
        if generation is not own:
            return self._device.lost_error(own.number, operation)
        if any(block.writer != writer for block, writer in self._writers):
            raise InvalidArgument(
                f"an array was written while {operation} was awaited, which reads it twice",
                advice=f"await {operation} before other work on its arrays is sent",
            )
        return None

    def end(self) -> None:
        """Let the worker drop it, behind its execution, if it was told of it."""
        if self.sent:
            self._device.dropped.append(self._drop_in)
            if self._device.serving is not None:
                self._device.release_dropped(self._device.serving)

    def _drop_in(self, generation: Generation) -> None:
        if generation is self._generation:
            payload = self._table.drop.struct.pack(self._number)
            generation.publish(self.lane, self._table.drop, payload, (), Unwatched(), aside=True)


class _Execution(CommandRequest):
    """The one execution of what was defined. Its kernels may have to be loaded."""

    __slots__ = ("_definition",)

    def __init__(self, definition: Definition, addresses: Sequence[int], scalars: bytes, operands: Operands) -> None:
        verb = definition._table.first_execute
        payload = verb.struct.pack(definition._number) + pack_addresses(addresses) + scalars
        super().__init__(
            verb,
            payload,
            operands.roles(),
            keep=operands.arrays,
            lane=definition.lane,
            operation=definition.operation,
        )
        self._definition = definition

    def start(self, generation: Generation) -> None:
        """Publish the record where it was defined; elsewhere settle with the loss."""
        error = self._definition.check_same(generation, self.operation)
        if error is None:
            super().start(generation)
        else:
            self.settle(outcome.Error(error))


Phases = Generator[Definition, tuple[int, ...], T]
"""What a verb in two phases returns: it yields definitions, is sent their answers, and returns the verb's result."""


async def ask_in_phases(
    library: Library, plan: Callable[..., Phases[T]], arguments: Sequence[object], keywords: dict[str, Any]
) -> T:
    """Await a verb in two phases. If it does not end with a result, its new arrays are freed."""
    library._device.home.check_task()
    await library._begin_verb(plan, arguments, keywords)
    planner = library._planner()
    phases = plan(planner, *arguments, **keywords)
    with contextlib.ExitStack() as ends:
        try:
            try:
                definition = next(phases)
                while True:
                    ends.callback(definition.end)
                    planner._requests.append(definition)
                    await planner._ask_all()
                    definition = phases.send(definition.answers)
            except StopIteration as end:
                result: T = end.value
            await planner._ask_all()
        except BaseException:
            phases.close()
            for array in planner._made:
                array.free()
            raise
    return result


def at_once(plan: Callable[..., Phases[T]]) -> Callable[..., T]:
    """Return the verb for forms that do not wait. It raises `InvalidArgument` if it comes to a definition."""

    @functools.wraps(plan)
    def planned(planner: Library, *arguments: object, **keywords: Any) -> T:
        phases = plan(planner, *arguments, **keywords)
        try:
            next(phases)
        except StopIteration as end:
            result: T = end.value
            return result
        phases.close()
        for array in planner._made:
            array.free()
        name = f"{planner._table.engine}.{plan.__name__}"
        raise InvalidArgument(
            f"{name} has to be awaited: the size of its result is known only when its arrays are, on the device",
            advice=f"use `await dev.{name}(...)`, and go on with its result",
        )

    return planned
