"""The short way of a graph's launches, which all have the same record until the graph changes.

See ``_calls/launching.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..._generation.requests import CallKind
from ..._wire.protocol import Role
from ..._wire.ready import new_identity, ready_head
from .records import LAUNCH_GRAPH

if TYPE_CHECKING:
    from ..._generation.timeline import Operand
    from ..._memory.arena import Block
    from ..modules.module import Module


_KIND: Final = CallKind(LAUNCH_GRAPH, LAUNCH_GRAPH, LAUNCH_GRAPH, 0)


class RepeatedLaunch:
    """A launch of a graph that is built, as a launch path knows it. It keeps no array alive."""

    __slots__ = (
        "__weakref__",
        "_key",
        "_modules",
        "blocks",
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

    def __init__(self, number: int, operation: str, operands: Sequence[Operand], modules: Sequence[Module]) -> None:
        self.kind: CallKind = _KIND
        self.operation: str = operation
        self._key: object = object()
        self._modules: Sequence[Module] = modules
        self.payload: bytes = LAUNCH_GRAPH.struct.pack(number)
        self.places: tuple[int, ...] = ()
        self.head: bytes = ready_head(new_identity(), ())
        self.operands: tuple[Operand, ...] = tuple(operands)
        self.blocks: tuple[Block, ...] = tuple(block for block, _ in operands)
        self.reads: tuple[Block, ...] = tuple(block for block, role in operands if role is Role.READ)
        self.writes: tuple[Block, ...] = tuple(block for block, role in operands if role is not Role.READ)

    def _of(self, thing: Any) -> bool:
        return any(module is thing for module in self._modules)

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        return self.operation, self.operands
