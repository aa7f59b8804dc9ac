"""What a world remembers: calls with the same arrays as earlier ones, which are not planned again.

The checks of arguments depend on nothing that changes, but for what is looked at with each call: whether an array was
freed, is torn, or has its memory. So a call is remembered by the identities of its arrays, until one of them is
collected. A call that was made twice gets a short way (``ready.py``), made anew in each epoch.

The calls of a batch are remembered as a path in a tree: each call leads from those before it to the next node. A batch
that stays on known nodes to its end was checked when it was made the first time, also for calls that touch each other.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..._arrays.arrays import DeviceArray
from ..._values.util import known
from .arguments import PremultipliedSum
from .ready import ReadyCall
from .sharded import Sharded

if TYPE_CHECKING:
    from .actor import WorldActor
    from .collectives import Part
    from .epochs import Epoch
    from .plans import Known

_MOST_KNOWN: Final = 1024
"""The most calls that a world remembers, and the most nodes of its batches."""
_RESULT_AT: Final = {"broadcast": 0}
"""The argument that a verb returns, if it is not the second one."""
_PAIRS: Final = "exchange"
"""The verb that takes pairs of arrays, and returns nothing."""
_NEW: Final = "new"
"""The part of a key for outputs that are new."""
_SIMPLE: Final = (str, int, PremultipliedSum)


class Found(NamedTuple):
    """A call that can be remembered."""

    key: Hashable
    arrays: tuple[DeviceArray, ...]
    result: Any
    new: bool = False
    """True if its outputs are new with each call; then there is no result yet."""


class Remembered:
    """A call, or the calls of a batch up to one."""

    __slots__ = ("_operation", "_parent", "_refs", "ready", "template", "then")

    def __init__(
        self,
        template: Known | None,
        operation: str,
        refs: Sequence[weakref.ref[DeviceArray]],
        parent: Remembered | None,
    ) -> None:
        self.template: Known | None = template
        """What the call comes to; of several, the last one. None if its outputs are new with each call."""
        self.ready: ReadyCall | None = None
        """Its short way, of this epoch or an earlier one."""
        self.then: dict[Hashable, Remembered] = {}
        """The next call of a batch, by its key."""
        self._operation = operation
        self._refs = refs
        self._parent = parent

    def prepare(self, actor: WorldActor) -> None:
        """Make its short way in the present epoch, if it has none there, and can have one."""
        epoch = self._epoch_without(actor)
        if epoch is None:
            return
        calls, node = [], self
        while True:
            calls.append(known(node.template, "calls with new outputs are prepared as they are made"))
            if node._parent is None:
                break
            node = node._parent
        self.ready = ReadyCall.made(epoch, actor.cores, actor.lanes, self._operation, calls[::-1])

    def prepare_new(
        self,
        actor: WorldActor,
        parts: Sequence[Part],
        arrays: Sequence[DeviceArray],
        made: DeviceArray | tuple[DeviceArray, ...],
    ) -> None:
        """The same for a call with new outputs, which was just made, by its parts."""
        epoch = self._epoch_without(actor)
        if epoch is not None:
            self.ready = ReadyCall.made_new(epoch, actor.lanes, self._operation, parts, arrays, made)

    def _epoch_without(self, actor: WorldActor) -> Epoch | None:
        """Return the present epoch if it has no short way there. A world of one member has none: it copies."""
        epoch = actor.epoch
        if epoch is None or len(actor.cores) == 1 or (self.ready is not None and self.ready.epoch is epoch):
            return None
        return epoch


class Memory:
    """All that a world remembers."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, Remembered] = {}
        self._batches: dict[Hashable, Remembered] = {}
        self._nodes = 0

    def call(self, found: Found) -> Remembered | None:
        """Return a call that was made before."""
        return self._calls.get(found.key)

    def learn(self, found: Found, template: Known | None, operation: str) -> Remembered:
        """Remember a call."""
        if len(self._calls) >= _MOST_KNOWN:
            self._calls.clear()
        drop = functools.partial(_forget, self._calls, found.key)
        refs = [weakref.ref(array, drop) for array in found.arrays]
        call = self._calls[found.key] = Remembered(template, operation, refs, None)
        return call

    def following(self, node: Remembered | None) -> dict[Hashable, Remembered]:
        """Return the calls of batches that may come next behind a node, or first."""
        return self._batches if node is None else node.then

    def follow(self, node: Remembered | None, found: Found, operation: str) -> Remembered | None:
        """Return the next call of a batch, which is remembered if it was not before. It was just made as a call."""
        following, call = self.following(node), self._calls.get(found.key)
        there = following.get(found.key)
        if there is not None or call is None:
            return there
        self._nodes += 1
        if self._nodes > _MOST_KNOWN:
            self._nodes = 0
            self._batches.clear()
        drop = functools.partial(_forget, following, found.key)
        refs = [weakref.ref(array, drop) for array in found.arrays]
        made = following[found.key] = Remembered(call.template, operation, refs, node)
        return made

    def clear(self) -> None:
        """Forget everything."""
        self._calls.clear()
        self._batches.clear()


def find(verb: str, arguments: Sequence[object]) -> Found | None:
    """Return a key for a call, its arrays, and its result; None for a call that makes arrays, or is not simple."""
    key: list[Hashable] = [verb]
    arrays: list[DeviceArray] = []
    for argument in arguments:
        kind = type(argument)
        if kind is list or kind is tuple or kind is Sharded:
            for each in argument:  # type: ignore[attr-defined]
                if type(each) is DeviceArray:
                    key.append(id(each))
                    arrays.append(each)
                    continue
                if verb != _PAIRS or type(each) is not tuple or [*map(type, each)] != [DeviceArray, DeviceArray]:
                    return None
                key += map(id, each)
                arrays += each
            key.append(None)
        elif kind is DeviceArray:
            key.append(id(argument))
            arrays.append(argument)  # type: ignore[arg-type]
        elif argument is None:
            key.append(_NEW)
        elif kind in _SIMPLE:
            key.append((kind, argument))  # True is equal to 1
        else:
            return None
    if verb == _PAIRS:
        return Found(tuple(key), tuple(arrays), None)
    at = _RESULT_AT.get(verb, 1)
    if at >= len(arguments):
        return None  # a verb without outputs
    given = arguments[at]
    if given is None:
        return Found(tuple(key), tuple(arrays), None, new=True)
    if type(given) is DeviceArray:
        return Found(tuple(key), tuple(arrays), given)
    if not isinstance(given, list | tuple | Sharded):
        return None  # nothing that takes outputs takes it
    return Found(tuple(key), tuple(arrays), tuple(given))


def _forget(calls: dict[Hashable, Remembered], key: Hashable, _: object) -> None:
    calls.pop(key, None)
