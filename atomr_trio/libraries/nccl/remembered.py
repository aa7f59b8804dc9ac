"""What a world remembers: calls with the same arrays as earlier ones, which are not planned again.

The checks of arguments depend on nothing that changes, but for what is looked at with each call: whether an array was
freed, is torn, or has its memory. So a call is remembered by the identities of its arrays, until one of them is
collected. A call that was made twice gets a short way (``ready.py``), made anew in each epoch.

The calls of a batch are remembered as a path in a tree: each call leads from those before it to the next node. A batch
that stays on known nodes to its end was checked when it was made the first time, also for calls that touch each other.

Finding a call by its key takes longer than comparing its arguments with those of one call. So each call knows which
one came behind it last time, and that one is tried first. It is known by a weak reference: what is forgotten is not
kept. And a call one of whose arrays was collected fits no arguments any more, since a new array may have that identity.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

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
_SIMPLE: Final = (str, int, PremultipliedSum)


class Found(NamedTuple):
    """A call that can be remembered."""

    key: tuple[Hashable, ...]
    """The verb, and for each argument: the identities of a sequence of arrays, as a tuple, or of one array; None for
    outputs that are new; else its type and value."""
    arrays: tuple[DeviceArray, ...]
    at: int | slice | None
    """The place of the result among the arrays; None if it is None, or new."""
    new: bool = False
    """True if its outputs are new with each call; then there is no result yet."""


class Remembered:
    """A call, or the calls of a batch up to one."""

    __slots__ = (
        *("__weakref__", "_operation", "_parent", "_refs"),
        *("at", "fits", "new", "next", "ready", "template", "then", "verb"),
    )

    def __init__(self, found: Found, template: Known | None, operation: str, parent: Remembered | None = None) -> None:
        self.template: Known | None = template
        """What the call comes to; of several, the last one. None if its outputs are new with each call."""
        self.new: bool = found.new
        self.ready: ReadyCall | None = None
        """Its short way, of this epoch or an earlier one."""
        self.then: dict[Hashable, Remembered] = {}
        """The next call of a batch, by its key."""
        self.next: Expected = nothing
        """The call that came behind it last time."""
        self.verb: str | None = str(found.key[0])
        """Its verb; None once one of its arrays was collected, so that no call is taken for it any more."""
        self.fits: Fits = _fits(found.key[1:])
        self.at: int | slice | None = found.at
        """The place of its result among its arrays; None if it is None, or new."""
        self._operation = operation
        self._parent = parent
        self._refs: Sequence[weakref.ref[DeviceArray]] = ()

    def stay_in(self, calls: dict[Hashable, Remembered], found: Found) -> None:
        """Be in `calls` until an array is collected."""
        drop = functools.partial(_forget, calls, found.key, weakref.ref(self))
        self._refs = [weakref.ref(array, drop) for array in found.arrays]
        calls[found.key] = self

    def result(self, arrays: tuple[DeviceArray, ...]) -> Any:
        """Return the result, given the arrays among the arguments."""
        return None if self.at is None else arrays[self.at]

    def templates(self) -> list[Known]:
        """Return what the calls up to this one come to."""
        templates, node = [], self
        while True:
            templates.append(known(node.template, "calls with new outputs are prepared as they are made"))
            if node._parent is None:
                return templates[::-1]
            node = node._parent

    def prepare(self, actor: WorldActor) -> None:
        """Make its short way in the present epoch, if it has none there, and can have one."""
        epoch = self._epoch_without(actor)
        if epoch is not None:
            self.ready = ReadyCall.made(epoch, actor.cores, actor.lanes, self._operation, self.templates())

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


Fits = Callable[..., tuple[DeviceArray, ...] | None]
"""A function of the arguments of a verb: it returns the arrays among them, or None if they are not those of a call."""
Expected = Callable[[], Remembered | None]
"""A weak reference to the call that is expected next."""


def nothing() -> None:
    """Expect no call."""


class Memory:
    """All that a world remembers."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, Remembered] = {}
        self._batches: dict[Hashable, Remembered] = {}
        self._nodes = 0
        self._last: Expected = nothing
        """The last call, apart from those of batches."""
        self.first: Expected = nothing
        """The call with which the last batch has begun."""

    def recall(
        self, verb: str, arguments: tuple[object, ...]
    ) -> tuple[Remembered | None, tuple[DeviceArray, ...], Found | None]:
        """Return a call that was made before, the arrays of this one, and how it was found, if it was not expected."""
        last = self._last()
        if last is not None and (call := last.next()) is not None and call.verb == verb:
            given = call.fits(*arguments)
            if given is not None:
                self._last = last.next
                return call, given, None
        found = find(verb, arguments)
        if found is None:
            return None, (), None
        call = self._calls.get(found.key)
        if call is not None:
            self._last = weakref.ref(call)
            if last is not None:
                last.next = self._last
        return call, found.arrays, found

    def call(self, found: Found) -> Remembered | None:
        """Return a call that was made before."""
        return self._calls.get(found.key)

    def learn(self, found: Found, template: Known | None, operation: str) -> Remembered:
        """Remember a call."""
        if len(self._calls) >= _MOST_KNOWN:
            self._calls.clear()
        call = Remembered(found, template, operation)
        call.stay_in(self._calls, found)
        return call

    def following(self, node: Remembered | None, found: Found) -> Remembered | None:
        """Return the call of a batch that comes behind a node, or first, if it is known there. It is expected then."""
        following = (self._batches if node is None else node.then).get(found.key)
        if following is not None:
            self._expect(node, following)
        return following

    def follow(self, node: Remembered | None, found: Found, operation: str) -> Remembered | None:
        """Return the next call of a batch, which is remembered if it was not before. It was just made as a call."""
        there, call = self.following(node, found), self._calls.get(found.key)
        if there is not None or call is None:
            return there
        self._nodes += 1
        if self._nodes > _MOST_KNOWN:
            self._nodes = 0
            self._batches.clear()
        made = Remembered(found, call.template, operation, node)
        made.stay_in(self._batches if node is None else node.then, found)
        self._expect(node, made)
        return made

    def _expect(self, node: Remembered | None, following: Remembered) -> None:
        if node is None:
            self.first = weakref.ref(following)
        else:
            node.next = weakref.ref(following)

    def clear(self) -> None:
        """Forget everything."""
        self._calls.clear()
        self._batches.clear()


def find(verb: str, arguments: tuple[object, ...]) -> Found | None:
    """Return a key for a call, its arrays, and its result; None for a call that makes arrays, or is not simple."""
    key: list[Any] = [verb]
    arrays: list[DeviceArray] = []
    for argument in arguments:
        kind = type(argument)
        if kind is list or kind is tuple or kind is Sharded:
            ids = []
            for each in argument:  # type: ignore[attr-defined]
                if type(each) is DeviceArray:
                    ids.append(id(each))
                    arrays.append(each)
                elif verb == _PAIRS and type(each) is tuple and [*map(type, each)] == [DeviceArray, DeviceArray]:
                    ids += map(id, each)
                    arrays += each
                else:
                    return None
            key.append((*ids,))
        elif kind is DeviceArray:
            key.append(id(argument))
            arrays.append(argument)  # type: ignore[arg-type]
        elif argument is None:
            key.append(None)
        elif kind in _SIMPLE:
            key.append((kind, argument))  # True is equal to 1
        else:
            return None
    if verb == _PAIRS:
        return Found(tuple(key), tuple(arrays), None)
    output = _RESULT_AT.get(verb, 1)
    if output >= len(arguments) or type(arguments[output]) in _SIMPLE:
        return None  # a verb without outputs, or what no verb takes for them
    given = key[output + 1]
    if given is None:
        return Found(tuple(key), tuple(arrays), None, new=True)
    begin = 0 if output == 0 else len(key[1]) if type(key[1]) is tuple else 1
    return Found(tuple(key), tuple(arrays), slice(begin, begin + len(given)) if type(given) is tuple else begin)


_TEXT: Final = """
def make(ids, {values}):
    def fits({arguments}):
        if {fits}:
            arrays = ({arrays})
            if [*map(id, arrays)] == ids:
                return arrays
        return None
    return fits
"""


def _fits(key: tuple[Hashable, ...]) -> Fits:
    """Return the function for the arguments that a part of a key stands for. It holds no array."""
    kinds: list[type] = []
    values: list[object] = []
    ids: list[int] = []
    for each in key:
        if type(each) is int:
            kinds.append(DeviceArray)
            values.append(None)
            ids.append(each)
        elif type(each) is tuple and not (each and isinstance(each[0], type)):
            kinds.append(tuple)
            values.append(len(each))
            ids += each
        else:
            kinds.append(object)
            values.append(each[1] if type(each) is tuple else None)
    return cast("Fits", _maker(tuple(kinds))(ids, *values))


@functools.lru_cache
def _maker(kinds: tuple[type, ...]) -> Callable[..., object]:
    """Return what makes the function for arguments of these kinds. It is generated: a loop took twice as long."""
    fits, arrays = [], []
    for place, kind in enumerate(kinds):
        if kind is tuple:
            fits.append(f"(type(a{place}) is list or type(a{place}) is tuple) and len(a{place}) == v{place}")
            arrays.append(f"*a{place}, ")
        elif kind is DeviceArray:
            arrays.append(f"a{place}, ")
        else:
            fits.append(f"a{place} is v{place}")
    text = _TEXT.format(
        values=", ".join(f"v{place}" for place in range(len(kinds))),
        arguments=", ".join(f"a{place}" for place in range(len(kinds))),
        fits=" and ".join(fits) or "True",
        arrays="".join(arrays),
    )
    names: dict[str, Callable[..., object]] = {}
    exec(text, names)
    return names["make"]


def _forget(calls: dict[Hashable, Remembered], key: Hashable, which: Expected, _: object) -> None:
    """Forget a call, in any thread, at any time. One with others behind it in a batch may live on for a while."""
    call = which()
    if call is not None:
        call.verb = None
        if calls.get(key) is call:
            del calls[key]
