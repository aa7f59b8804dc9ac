"""The short way of a graph's launches, which all have the same record until the graph changes.

See ``_calls/launching.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..._wire.protocol import Role
from .records import LAUNCH_GRAPH

if TYPE_CHECKING:
    from ..._generation.timeline import Operand
    from ..modules.module import Module


class RepeatedLaunch:
    """A launch of a graph that is built, as a launch path knows it. It keeps no array alive."""

    __slots__ = (
        "__weakref__",
        "_arguments",
        "_blocks",
        "_key",
        "_modules",
        "_operands",
        "_payload",
        "_reads",
        "_writes",
        "operation",
    )

    _engine: ClassVar[str] = LAUNCH_GRAPH.engine

    def __init__(self, number: int, operation: str, operands: Sequence[Operand], modules: Sequence[Module]) -> None:
        self.operation: str = operation
        self._key = object()
        self._arguments: tuple[object, ...] = ()
        """Nothing: each launch is given what it keeps alive."""
        self._payload: bytes = LAUNCH_GRAPH.struct.pack(number)
        self._operands: Sequence[Operand] = operands
        self._modules: Sequence[Module] = modules
        self._blocks = tuple(block for block, _ in operands)
        self._reads = tuple(block for block, role in operands if role is Role.READ)
        self._writes = tuple(block for block, role in operands if role is not Role.READ)

    def _of(self, thing: Any) -> bool:
        return any(module is thing for module in self._modules)

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        return self.operation, self._operands
