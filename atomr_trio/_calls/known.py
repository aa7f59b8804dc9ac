"""Repeated calls of libraries: the plan of one call is kept for the next.

The commands of a verb depend on its arrays, which never move, and on its options. So a call with the same arrays and
options is the same record. If it is one command, the record is kept, and a repetition is recognised by comparing the
arguments. It goes the short way into the ring (``repeating.py``), or at least needs no new plan. Only two things
differ: the address of a new result, and the place of an answer on the host. They are the words of a ready record, at
places that the maker of the record has noted. The places are not searched for, because the eight bytes of an address
may occur elsewhere too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import attrs
import numpy as np
import numpy.typing as npt

from .._arrays.arrays import DeviceArray, Storage, check_usable
from .._arrays.memory import DeviceMemory
from .._generation.core import DeviceCore, DevicePart
from .._generation.requests import CallKind, CommandRequest, RepeatedRequest
from .._generation.timeline import Operand
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
_PLAIN: Final = frozenset({int, bool, str, type(None)})
"""Types of options whose values are equal only if they mean the same."""


Question = tuple[Hashable, tuple[DeviceArray, ...]]
"""The arguments of a call: a key that distinguishes it from every other call, and its arrays.

An object that stands for itself, such as a plan, is a part of the key if its class says so (`_is_key`).

An array is identified by its block, which is never reused, and by its place there: two views of the same elements are
the same. An option is two parts, its type and its value.
"""


def stateful(plan: F) -> F:
    """A decorator below `verb`: each call of it does something else, so none is repeated from memory."""
    _STATEFUL.add(plan)
    return plan


def is_stateful(plan: Callable[..., object]) -> bool:
    """Return whether calls of a verb depend on more than their arguments."""
    return plan in _STATEFUL


def question_of(
    plan: Callable[..., object], arguments: Sequence[object], keywords: Mapping[str, object]
) -> Question | None:
    """Return the question; None for arguments that may be equal but mean different things, such as 0.0 and -0.0."""
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
            arrays.append(value)  # type: ignore[arg-type]
            parts.append(value._place or value._find_place())  # type: ignore[attr-defined]
        elif kind in _PLAIN or (kind is float and value):
            parts += (kind, value)  # type: ignore[arg-type]
        elif kind is tuple and all(type(each) in _PLAIN for each in cast("tuple[object, ...]", value)):
            parts.append((value, *map(type, cast("tuple[object, ...]", value))))
        elif getattr(kind, "_is_key", False):
            parts.append(value)
        else:
            return None
    return tuple(parts), tuple(arrays)


@attrs.frozen
class NewResult:
    """A result that is new with each call."""

    shape: tuple[int, ...]
    dtype: Any
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
        answer[...] = slot.bytes[: self.nbytes].view(self.dtype).reshape(self.shape)
        return None if self.check is None else self.check(answer)


class KnownCall:
    """A call that was made before: its record, and its access to memory. See ``repeating.py`` for the short way."""

    __slots__ = (
        "__weakref__",
        "_engine",
        "_key",
        "_place",
        "answer",
        "blocks",
        "head",
        "kind",
        "new",
        "operands",
        "operation",
        "payload",
        "places",
        "reads",
        "writes",
    )

    def __init__(
        self,
        request: CommandRequest,
        kind: CallKind,
        arrays: tuple[DeviceArray, ...],
        place: int,
        new: NewResult | None = None,
        answer: HostAnswer | None = None,
        places: tuple[int, ...] = (),
    ) -> None:
        self.kind: CallKind = kind
        self._engine: str = kind.later.engine
        """The name of its library, whose engine in the worker makes the call."""
        self.operation: str = request.operation
        self._key = object()
        self._place = place
        self.payload: bytes = with_holes(request.payload, places)
        """The payload of its records, with zeros at `places`, where the words belong."""
        self.places: tuple[int, ...] = places
        self.head: bytes = ready_head(new_identity(), places)
        """What is in front of the words."""
        self.new: NewResult | None = new
        """Its new result, whose address is each of the words; None if it has none."""
        self.answer: HostAnswer | None = answer
        """Its answer on the host, whose place is the word; None if it has none."""
        blocks = {array._block for array in arrays}
        self.operands: tuple[Operand, ...] = tuple(each for each in request.operands if each[0] in blocks)
        """Its access to memory, without that of a new result."""
        self.blocks: tuple[Block, ...] = tuple(block for block, _ in self.operands)
        self.reads: tuple[Block, ...] = tuple(block for block, role in self.operands if role is Role.READ)
        self.writes: tuple[Block, ...] = tuple(block for block, role in self.operands if role is not Role.READ)

    @property
    def repeats_exactly(self) -> bool:
        """True if each of its records is the same."""
        return not self.places

    def again(
        self, device: DeviceCore, arrays: tuple[DeviceArray, ...], lane: int, result: DeviceArray | None = None
    ) -> tuple[CommandRequest, DeviceArray]:
        """Return a request for one more such call, which has no answer, and the verb's result.

        `result` is the new result, if it was made already.
        """
        for array in arrays:
            check_usable(device, array)
        new = self.new
        if new is None:
            return self._request(self.payload, self.operands, arrays, lane), arrays[self._place]
        if result is None:
            result = device.part(DeviceMemory).empty(new.shape, new.dtype)
        payload = filled(self.payload, self.places, (result.address,) * len(self.places))
        operands = (*self.operands, (result._block, new.role))
        return self._request(payload, operands, (*arrays, result), lane), result

    def _request(self, payload: bytes, operands: tuple[Operand, ...], keep: object, lane: int) -> CommandRequest:
        return RepeatedRequest(self.kind, payload, operands, keep=keep, lane=lane, operation=self.operation)

    # For launch paths.

    def may_be_short(self, generation: Generation, lane: int) -> bool:
        """Return whether its records may go straight into the ring, because the lane has run such a call before."""
        return has_room(len(self.places), len(self.payload)) and self.kind.verb(generation, lane) is self.kind.later

    def _of(self, thing: object) -> bool:
        return self.kind.is_of(thing)

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        """Return the operation and its access to memory. A new result is the last of the arguments."""
        if self.new is None or not arguments:
            return self.operation, self.operands
        result = cast("DeviceArray", arguments[-1])
        return self.operation, (*self.operands, (result._block, self.new.role))


class KnownCalls(DevicePart):
    """The known calls of one device, the newest last."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._calls: dict[Hashable, KnownCall] = {}
        self.find: Callable[[Hashable], KnownCall | None] = self._calls.get
        """Return the call of a key, if it was made before."""

    def learn(
        self, question: Question, requests: Sequence[CommandRequest], made: Sequence[DeviceArray], result: object
    ) -> None:
        """Keep a call of these requests and `made` new arrays, if it is one command that can be repeated."""
        key, arrays = question
        call = _repeatable(arrays, requests, made, result)
        if call is None:
            return
        if self._calls.pop(key, None) is None and len(self._calls) >= _MOST_KNOWN:
            del self._calls[next(iter(self._calls))]
        self._calls[key] = call


def _repeatable(
    arrays: tuple[DeviceArray, ...], requests: Sequence[CommandRequest], made: Sequence[DeviceArray], result: object
) -> KnownCall | None:
    kind = requests[0].kind if len(requests) == 1 else None
    if kind is None or any(type(array._storage) is not Storage for array in arrays):
        return None  # a variable of a module moves
    if kind.later.mode is not Mode.ENQUEUES:
        return None
    request, given = requests[0], {array._block for array in arrays}
    brought = [each for each in request.operands if each[0] not in given]
    if request.answer is not None:
        return _answering(request, kind, arrays, result) if not made and not brought else None
    if not made:
        place = next((place for place, array in enumerate(arrays) if array is result), None)
        return None if brought or place is None else KnownCall(request, kind, arrays, place)
    new = made[0]
    if len(made) > 1 or result is not new or [block for block, _ in brought] != [new._block]:
        return None
    places = request.places_of(new)
    if not places:
        return None
    return KnownCall(request, kind, arrays, 0, NewResult(new.shape, new.dtype, brought[0][1]), places=places)


def _answering(
    request: CommandRequest, kind: CallKind, arrays: tuple[DeviceArray, ...], result: object
) -> KnownCall | None:
    """Return a call whose result is its answer. It must be completed by a function, which holds nothing of the call."""
    answer, check = request.answer, request.check
    if answer is None or answer is not result or not (check is None or inspect.isfunction(check)):
        return None
    if check is not None and check.__closure__:
        return None
    found = HostAnswer(answer.shape, answer.dtype, answer.nbytes, check)
    return KnownCall(request, kind, arrays, 0, answer=found, places=(STAGING_AT,))
