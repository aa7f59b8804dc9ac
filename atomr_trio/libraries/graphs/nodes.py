"""The nodes of a graph: what a program sees of its operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final, overload

import attrs

from ..._generation.core import DeviceCore
from .plan import OrderAsNeeded


class Recording:
    """What the nodes of a graph and of its clones share. They are known by it."""

    __slots__ = ("device", "operations")

    def __init__(self, device: DeviceCore) -> None:
        self.device: DeviceCore = device
        self.operations: list[str] = []
        """The operation of each node, which no update changes."""


@final
@attrs.frozen(eq=False)
class GraphNode:
    """One operation of a graph. A `GraphRecorder` returns it, and `Graph.update` takes it."""

    index: int
    """Its number, in the order of recording, from 0."""
    operation: str
    """Its operation: `"launch of saxpy"`, `"copy"`, `"fill"` or, for example, `"blas.gemm"`."""
    after: tuple[int, ...]
    """The numbers of the nodes that must be done before it; those that follow from others are left out."""
    _recording: Recording = attrs.field(repr=False)

    @property
    def _owner(self) -> DeviceCore:
        return self._recording.device


@final
class Nodes(Sequence[GraphNode]):
    """The nodes of a graph at one time. Each is made when it is first looked at, and then kept.

    It keeps no array of the graph alive. Like a tuple, it never changes, a slice of it is a tuple, it has the `repr` of
    a tuple, and it is equal to the tuple of its nodes.
    """

    __slots__ = ("_made", "_order", "_recording")

    def __init__(self, recording: Recording, order: OrderAsNeeded) -> None:
        self._recording = recording
        self._order = order
        self._made: dict[int, GraphNode] = {}

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __len__(self) -> int:
        return len(self._recording.operations)

    @overload
    def __getitem__(self, at: int) -> GraphNode: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[GraphNode, ...]: ...

    def __getitem__(self, at: int | slice) -> GraphNode | tuple[GraphNode, ...]:
        numbers = range(len(self))[at]  # raises what a tuple raises
        return self._node(numbers) if isinstance(numbers, int) else tuple(map(self._node, numbers))

    def __iter__(self) -> Iterator[GraphNode]:
        return map(self._node, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Nodes):
            return self is other  # each makes its own nodes
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def _node(self, number: int) -> GraphNode:
        node = self._made.get(number)
        if node is None:
            made = GraphNode(number, self._recording.operations[number], self._order.after(number), self._recording)
            node = self._made.setdefault(number, made)  # another thread may have made it meanwhile
        return node
