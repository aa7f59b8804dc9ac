"""The short way of a graph's launches, which all have the same record, and of the changes before them.

See ``_calls/launching.py``. An update of a kernel's arguments is noted as the words of its parameter block. The next
launch sends them in front of itself, in a ready record for each changed node, if the worker has the graph as it was
before these updates. Nobody waits for such a record. Where it fails, the worker refuses all launches behind it; when
that is known here, the graph is built again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..._calls.repeating import words_of_call_launcher
from ..._generation.requests import CallKind
from ..._wire.protocol import Role
from ..._wire.ready import WORD, has_room, new_identity, ready_head
from ..._wire.records.module import LAUNCH
from .records import LAUNCH_GRAPH, SET_ARGUMENTS
from .steps import Records, Rows

if TYPE_CHECKING:
    from ..._calls.launching import LaunchPath
    from ..._generation.generation import Generation
    from ..._generation.timeline import Launch, Operand
    from ..._memory.arena import Block
    from ..._values.errors import DeviceError
    from ..modules.module import Module
    from .graph import Graph
    from .plan import BuiltGraph, GraphPlan


MOST_CHANGES: Final = 16
"""More changes than these are sent together by the general way, which then costs less."""
_KIND: Final = CallKind(LAUNCH_GRAPH, LAUNCH_GRAPH, LAUNCH_GRAPH, 0)
_CHANGE_KIND: Final = CallKind(SET_ARGUMENTS, SET_ARGUMENTS, SET_ARGUMENTS, 0)


class _Change:
    """The changes of one node's arguments, as a launch path knows them."""

    __slots__ = ("__weakref__", "_key", "head", "kind", "payload", "places", "words")

    _engine: ClassVar[str] = SET_ARGUMENTS.engine

    def __init__(self, number: int, step: int, words: int) -> None:
        self.kind: CallKind = _CHANGE_KIND
        self._key: object = object()
        first = SET_ARGUMENTS.struct.size
        self.payload: bytes = SET_ARGUMENTS.struct.pack(number, step) + bytes(WORD.size * words)
        self.places: tuple[int, ...] = tuple(range(first, len(self.payload), WORD.size))
        self.head: bytes = ready_head(new_identity(), self.places)
        self.words: struct.Struct = struct.Struct(f"<{words}Q")

    def _of(self, thing: Any) -> bool:
        return False

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        return SET_ARGUMENTS.operation, ()


class _Changes:
    """The owner of changes that were sent together. Their errors are those of the launches behind them."""

    __slots__ = ("_built", "_generation")

    def __init__(self, generation: Generation, built: BuiltGraph) -> None:
        self._generation = generation
        self._built = built

    def launches_finished(self, count: int) -> None:
        """Nothing is left to do."""

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Let the next launch build the graph again."""
        graph: Any = launch[3][0]
        graph._change_failed(self._generation, self._built)

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """The next generation builds the graph from its plan."""


class RepeatedLaunch:
    """A launch of a graph that is built, as a launch path knows it. It keeps no array alive."""

    __slots__ = (
        "__weakref__",
        "_key",
        "_known",
        "_modules",
        "_nodes",
        "_number",
        "blocks",
        "changes",
        "head",
        "kind",
        "operands",
        "operation",
        "payload",
        "places",
        "reads",
        "writes",
    )

    _engine: ClassVar[str] = LAUNCH_GRAPH.engine

    def __init__(self, number: int, operation: str, plan: GraphPlan, records: Rows[Records]) -> None:
        operands = plan.operands
        self.kind: CallKind = _KIND
        self.operation: str = operation
        self._key: object = object()
        self._modules: Sequence[Module] = plan.modules
        self._number = number
        self._nodes: dict[int, _Change] = {}
        self._known: Rows[Records] = records
        """The records of the graph's steps in the worker."""
        self.changes: dict[int, bytes] = {}
        """The parameter blocks, in whole words, of the steps that were updated since."""
        self.payload: bytes = LAUNCH_GRAPH.struct.pack(number)
        self.places: tuple[int, ...] = ()
        self.head: bytes = ready_head(new_identity(), ())
        self.operands: tuple[Operand, ...] = operands
        self.blocks: tuple[Block, ...] = tuple(block for block, _ in operands)
        self.reads: tuple[Block, ...] = tuple(block for block, role in operands if role is Role.READ)
        self.writes: tuple[Block, ...] = tuple(block for block, role in operands if role is not Role.READ)

    def note(self, step: int, records: Records) -> bool:
        """Note the update of a step, after which the order is the same; false if it must go the general way."""
        size = len(records.launch) - LAUNCH.struct.size
        words = -(-size // WORD.size)
        if size <= 0 or not has_room(words, SET_ARGUMENTS.struct.size + WORD.size * words):
            return False
        self.changes[step] = records.launch[LAUNCH.struct.size :].ljust(WORD.size * words, b"\0")
        return True

    def follows(self, built: BuiltGraph) -> bool:
        """Return whether the worker has the graph as it was before the changes, and nothing of it may still fail."""
        return not built.ticket and built.records is self._known

    def bring(self, path: LaunchPath, given: tuple[object, ...]) -> bool:
        """Send the changes, ahead of a launch of the graph and the plan in `given`.

        Returns false, without any effect, if they must go the general way.
        """
        graph: Graph = given[0]  # type: ignore[assignment]
        plan: GraphPlan = given[1]  # type: ignore[assignment]
        generation, changes = path.generation, self.changes
        built: BuiltGraph | None = generation.graphs.get(self._number)
        if built is None or not self.follows(built) or len(changes) > MOST_CHANGES:
            return False
        if not path.has_room(len(changes) + 1):
            return False
        owner, kept = _Changes(generation, built), (graph,)
        for step, block in changes.items():
            change = self._nodes.get(step)
            if change is None:
                change = self._nodes[step] = _Change(self._number, step, len(block) // WORD.size)
            launcher = path.launchers.get(change._key) or path.learned(change, words_of_call_launcher)
            if not launcher(change, kept, owner, None, 0, change.words.unpack(block)):
                raise AssertionError("there was room for the record")
        built.records = self._known = plan.records
        changes.clear()
        return True

    def _of(self, thing: Any) -> bool:
        return any(module is thing for module in self._modules)

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        return self.operation, self.operands
