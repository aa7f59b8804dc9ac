"""Repeated calls of libraries: the plan of one call is kept for all others of its form.

The commands of a verb depend on its options and on the form of its arrays: shape, strides, dtype, alignment, and which
of them share memory. Of where the arrays lie, nothing but their addresses is in a record. So the calls of one form are
one record with other words (``_wire/ready.py``): the addresses of the arrays and of a new result, and the place of an
answer on the host. If a verb is one command, its record is kept, and a repetition goes the short way into the ring
(``repeating.py``), or at least needs no new plan.

The places of the words are noted by the maker of the record. They are not searched for, because the eight bytes of an
address may occur elsewhere too: a call is not kept if a number of its record could be an address and is not one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import attrs
import numpy as np
import numpy.typing as npt

from .._arrays.arrays import DeviceArray, Layout, Storage, check_usable, layout_of
from .._arrays.memory import DeviceMemory
from .._generation.core import DeviceCore, DevicePart
from .._generation.requests import CallKind, CommandRequest, RepeatedRequest
from .._generation.timeline import Birth, Operand
from .._memory.arena import Block
from .._wire.protocol import Mode, Role
from .._wire.ready import filled, has_room, new_identity, ready_head, with_holes
from .._wire.records.calls import STAGING_AT

if TYPE_CHECKING:
    from .._generation.generation import Generation
    from .._transfers.staging import Slot

F = TypeVar("F", bound=Callable[..., object])

_MOST_KNOWN: Final = 256
_STATEFUL: Final[set[Callable[..., object]]] = set()
PLAIN: Final = frozenset({int, bool, str, type(None)})
"""Types of options whose values are equal only if they mean the same."""


Question = tuple[Hashable, tuple[DeviceArray, ...]]
"""The arguments of a call: a key that distinguishes it from other calls, and its arrays.

An object that stands for itself, such as a plan, is a part of the key if its class says so (`_is_key`). An option is
two parts, its type and its value.
"""
_SHARED: Final = object()
"""What follows it in a key says which arrays share memory."""


def stateful(plan: F) -> F:
    """A decorator below `verb`: each call of it does something else, so none is repeated from memory."""
    _STATEFUL.add(plan)
    return plan


is_stateful: Final[Callable[[Callable[..., object]], bool]] = _STATEFUL.__contains__
"""Returns whether calls of a verb depend on more than their arguments."""


def form_of(
    plan: Callable[..., object], arguments: Sequence[object], keywords: Mapping[str, object]
) -> Question | None:
    """Return the question whose key has the form of the arrays; None for an argument that is part of no key."""
    if plan in _STATEFUL:
        return None
    arrays: list[DeviceArray] = []
    parts: list[Hashable] = [plan]
    values = arguments
    if keywords:
        parts += keywords
        values = (*arguments, *keywords.values())
    for value in values:
        kind = type(value)
        if kind is DeviceArray:  # a cast would cost as much as a look at the array
            form = value._form or value._find_form()  # type: ignore[attr-defined]
            if form is None:
                return None
            arrays.append(value)  # type: ignore[arg-type]
            parts.append(form)
        elif kind in PLAIN or (kind is float and value):
            parts += (kind, value)  # type: ignore[arg-type]
        else:
            part = _part_of(value)
            if part is None:
                return None
            parts += part
    count = len(arrays)
    if count == 2:
        shares = arrays[0]._storage.block is arrays[1]._storage.block
    elif count == 3:
        one, two, three = arrays[0]._storage.block, arrays[1]._storage.block, arrays[2]._storage.block
        shares = one is two or one is three or two is three
    else:
        shares = count > 1 and len({each._storage.block for each in arrays}) < count
    if shares:
        parts += (_SHARED, *_shared(arrays))
    return tuple(parts), tuple(arrays)


def _part_of(value: Any) -> tuple[Hashable, ...] | None:
    """Return a part of a key for an argument of an unusual type; None if values that are equal may mean others."""
    kind: Any = type(value)
    if kind is float or kind is complex:
        return kind, repr(value)  # 0.0 and -0.0 are equal
    if isinstance(value, np.generic) and value.dtype.hasobject is False and value.dtype.names is None:
        return kind, value.tobytes()
    if isinstance(value, np.dtype):
        return (np.dtype, value) if value.metadata is None else None
    if kind is type:
        return kind, value
    if kind is tuple and all(type(each) in PLAIN for each in cast("tuple[object, ...]", value)):
        return ((value, *map(type, cast("tuple[object, ...]", value))),)
    return (value,) if getattr(kind, "_is_key", False) else None


def _shared(arrays: Sequence[DeviceArray]) -> Iterator[Hashable]:
    """Yield, for each array, the first that is in the same block, and the bytes from that one's start to its own."""
    blocks = [each._block for each in arrays]
    for array, block in zip(arrays, blocks, strict=True):
        first = blocks.index(block)
        yield first, array._offset - arrays[first]._offset


def located(question: Question) -> Question:
    """Return a question whose key also has the arrays themselves: their blocks, which are never reused, and places.

    Two views of the same elements are the same.
    """
    key, arrays = question
    parts = [key]
    for array in arrays:
        parts += (array._storage.block, array._offset)
    return tuple(parts), arrays


@attrs.frozen
class NewResult:
    """A result that is new with each call."""

    layout: Layout
    form: object
    role: Role


@attrs.frozen
class HostAnswer:
    """A result on the host, as the call answers it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int
    check: Callable[[npt.NDArray[Any]], Exception | None] | None
    """Completes the answer, or returns the error that it is."""

    def new(self) -> npt.NDArray[Any]:
        """Return an array for one answer."""
        return np.empty(self.shape, self.dtype)

    def fetch(self, slot: Slot, answer: npt.NDArray[Any]) -> Exception | None:
        """Copy an answer from its slot to its array. Returns the error that it is."""
        answer[...] = np.ndarray(self.shape, self.dtype, slot.bytes)
        return None if self.check is None else self.check(answer)


Source = tuple[int, int]
"""Where a word comes from: the address of an array by its number, or what `NEW` stands for, and so many bytes more."""
NEW: Final = -1
"""The address of the new result, or the place of the answer."""
NUMBER: Final = -2
"""A number that is given with each call; what stands beside it is its number among these."""


class KnownCall:
    """The calls of one form: their record, and their access to memory. See ``repeating.py`` for the short way."""

    __slots__ = (
        "__weakref__",
        "_engine",
        "_key",
        "access",
        "answer",
        "arrays",
        "head",
        "kind",
        "new",
        "operation",
        "payload",
        "place",
        "places",
        "sources",
    )

    def __init__(
        self,
        request: CommandRequest,
        kind: CallKind,
        arrays: int,
        access: tuple[tuple[int, Role], ...],
        words: Mapping[int, Source],
        *,
        place: int | tuple[int, ...] = 0,
        new: NewResult | None = None,
        answer: HostAnswer | None = None,
    ) -> None:
        self.kind: CallKind = kind
        self._engine: str = kind.later.engine
        """The name of its library, whose engine in the worker makes the call."""
        self.operation: str = request.operation
        self._key = object()
        self.place: int | tuple[int, ...] = place
        """The number of the array that is the result, or those of several; if that is not a new one."""
        self.arrays: int = arrays
        """The number of its arrays."""
        self.access: tuple[tuple[int, Role], ...] = access
        """Its access to the memory of the arrays, by their numbers. Of those that share a block only one is named."""
        self.places: tuple[int, ...] = tuple(words)
        """The places of the words in the payload."""
        self.sources: tuple[Source, ...] = tuple(words.values())
        self.payload: bytes = with_holes(request.payload, self.places)
        """The payload of its records, with zeros at `places`."""
        self.head: bytes = b""
        """What is in front of the words in a ready record; empty if there are too many of them."""
        if has_room(len(self.places), len(self.payload)):
            self.head = ready_head(new_identity(), self.places)
        self.new: NewResult | None = new
        """Its new result; None if it has none."""
        self.answer: HostAnswer | None = answer
        """Its answer on the host; None if it has none."""

    def operands(self, arrays: Sequence[object]) -> tuple[Operand, ...]:
        """Return its access to these arrays."""
        return tuple([(cast("DeviceArray", arrays[number])._block, role) for number, role in self.access])

    def result(self, arrays: tuple[DeviceArray, ...]) -> object:
        """Return the result of a call on these arrays, if it is no new one."""
        place = self.place
        return arrays[place] if type(place) is int else tuple([arrays[each] for each in place])  # type: ignore[union-attr]

    def words(self, arrays: Sequence[DeviceArray], new: int) -> list[int]:
        """Return the words of a call on these arrays, which is given no numbers."""
        return [(new if number == NEW else arrays[number].address) + more for number, more in self.sources]

    def new_result(self, memory: DeviceMemory) -> DeviceArray:
        """Return an array for the new result."""
        new = self.new
        assert new is not None
        return memory.again(new.layout, new.form)

    def again(self, device: DeviceCore, arrays: tuple[DeviceArray, ...], lane: int) -> tuple[CommandRequest, Any]:
        """Return a request for one more such call, which has no answer, and the verb's result."""
        for array in arrays:
            check_usable(device, array)
        operands, keep, address = self.operands(arrays), arrays, 0
        result: DeviceArray | None = None
        if self.new is not None:
            result = self.new_result(device.part(DeviceMemory))
            operands, keep, address = (*operands, (result._block, self.new.role)), (*arrays, result), result.address
        payload = filled(self.payload, self.places, self.words(arrays, address))
        request = RepeatedRequest(self.kind, payload, operands, keep=keep, lane=lane, operation=self.operation)
        return request, self.result(arrays) if result is None else result

    # For launch paths.

    def births(self, lane: int, ticket: int) -> Sequence[Birth]:
        """Return the births of the new results of a call with this ticket (`Block.born`)."""
        return () if self.new is None else ((lane, ticket),)

    def may_be_short(self, generation: Generation, lane: int) -> bool:
        """Return whether its records may go straight into the ring, because the lane has run such a call before."""
        return bool(self.head) and self.kind.verb(generation, lane) is self.kind.later

    def _of(self, thing: object) -> bool:
        return self.kind.is_of(thing)

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        """Return the operation and its access to memory. The last argument is the block of a new result, if known."""
        if not arguments:
            return self.operation, ()
        operands, last = self.operands(arguments), arguments[-1]
        if self.new is not None and isinstance(last, Block):
            operands = (*operands, (last, self.new.role))
        return self.operation, operands


class KnownCalls(DevicePart):
    """The known calls of one device, by their forms, the newest last."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._calls: dict[Hashable, Any] = {}
        self.find: Callable[[Hashable], Any] = self._calls.get
        """Return the call of a key, or the series, if it was made before; else None."""

    def learn(
        self,
        question: Question,
        requests: Sequence[CommandRequest],
        made: Sequence[DeviceArray],
        result: object,
        series: Callable[[Question, Sequence[CommandRequest], Sequence[DeviceArray], object], object],
    ) -> None:
        """Keep a call of these requests and `made` new arrays, if it is one command that can be repeated.

        Otherwise keep what `series` returns for it, unless that is None (``series.py``).
        """
        key, arrays = question
        call: object = _repeatable(arrays, requests, made, result) or series(question, requests, made, result)
        if call is not None:
            self.keep(key, call)

    def keep(self, key: Hashable, call: object) -> None:
        """Keep a call, or a series, by its key."""
        if self._calls.pop(key, None) is None and len(self._calls) >= _MOST_KNOWN:
            del self._calls[next(iter(self._calls))]
        self._calls[key] = call


def _repeatable(
    arrays: tuple[DeviceArray, ...],
    requests: Sequence[CommandRequest],
    made: Sequence[DeviceArray],
    result: object,
    numbers: Sequence[int] = (),
) -> KnownCall | None:
    """Return what is kept of a verb; None unless it is one command, and only its words depend on its memory.

    The words at the places `numbers` in its payload are given with each call.
    """
    kind = requests[0].kind if len(requests) == 1 else None
    if kind is None or kind.later.mode is not Mode.ENQUEUES or len(made) > 1:
        return None
    request, new = requests[0], made[0] if made else None
    every = arrays if new is None else (*arrays, new)
    if any(type(array._storage) is not Storage for array in every):
        return None  # a variable of a module moves
    words = _words(request, every)
    if words is None:
        return None
    blocks, named = [array._block for array in arrays], {every[number]._block for number, _ in words.values()}
    roles = dict(request.operands)
    if not roles.keys() <= named:
        return None  # the record says in another way where that is
    new_role = None if new is None else roles.pop(new._block, None)
    if not roles.keys() <= set(blocks):
        return None
    access = tuple((blocks.index(block), role) for block, role in roles.items())
    words |= {place: (NUMBER, index) for index, place in enumerate(numbers)}
    if request.answer is not None:
        answer = _answer_of(request, result)
        words[STAGING_AT] = (NEW, 0)
        return None if answer is None or made else KnownCall(request, kind, len(arrays), access, words, answer=answer)
    if new is None:
        place = _place_of(result, arrays)
        return None if place is None else KnownCall(request, kind, len(arrays), access, words, place=place)
    form = new._form or new._find_form()
    if result is not new or new_role is None or form is None:
        return None
    last = len(arrays)
    words = {place: (NEW if number == last else number, more) for place, (number, more) in words.items()}
    found = NewResult(layout_of(new), form, new_role)
    return KnownCall(request, kind, len(arrays), access, words, new=found)


def _place_of(result: object, arrays: Sequence[DeviceArray]) -> int | tuple[int, ...] | None:
    """Return which of the arrays the result is, or which the items of a tuple are; None for anything else."""
    numbers = {id(array): number for number, array in enumerate(arrays)}
    if type(result) is tuple:
        found = tuple([numbers[id(each)] for each in result if id(each) in numbers])
        return found if len(found) == len(result) else None
    return numbers.get(id(result))


def _words(request: CommandRequest, arrays: Sequence[DeviceArray]) -> dict[int, Source] | None:
    """Return the words that are addresses in the memory of `arrays`, by their places; None if that is not certain."""
    addresses = request.addresses()
    if addresses is None:
        return None
    found: dict[int, Source] = {}
    for place, address in addresses:
        number = next((number for number, array in enumerate(arrays) if array._block.holds(address)), None)
        if number is not None:
            found[place] = (number, address - arrays[number].address)
    return found


def _answer_of(request: CommandRequest, result: object) -> HostAnswer | None:
    """Return the answer of a call, if it is the verb's result.

    It must be completed by a function, which holds nothing of the call.
    """
    answer, check = request.answer, request.check
    if answer is None or answer is not result or not (check is None or inspect.isfunction(check)):
        return None
    if check is not None and check.__closure__:
        return None
    return HostAnswer(answer.shape, answer.dtype, answer.nbytes, check)
