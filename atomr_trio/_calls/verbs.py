"""Verbs of the mathematical libraries: written once, called in three ways.

A verb of a library is a function that checks its arguments, allocates its result, and notes the library calls to make;
it sends nothing. `verb` makes two functions of it: an awaited one on `dev.blas`, and one that is done at once on the
`blas` of a batch, which sends, and on that of a recorder of a graph, which records. This file also writes a call into a
record; ``_worker/base/calls.py`` gives the records' meaning.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import struct
import types
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    overload,
)

import attrs
import numpy as np
import numpy.typing as npt
import trio

from .._arrays.arrays import DeviceArray, check_usable, placed
from .._arrays.memory import DeviceMemory
from .._generation.requests import CallKind, CommandRequest, Rehearsal, Series
from .._generation.timeline import Operand
from .._memory.arena import Block
from .._transfers.staging import LARGE_SLOT
from .._transfers.transfers import Transfers
from .._values.errors import InvalidArgument
from .._values.util import known
from .._wire.protocol import LANE_COMPUTE, Role, Verb, VerbTable
from .._wire.records.calls import ANSWER_BYTES, DEVICE_SCALARS, HEAD, WORD, CallTable
from .._wire.records.memory import COPY_IN
from .forms import ASKS
from .known import KnownCall, KnownCalls
from .launching import AwaitedLaunches
from .outgoing import AT_A_TIME, STRETCH, Outgoing, number_of
from .phases import Definition, Phases, ask_in_phases, at_once
from .plans import PlanRequest, Plans
from .rehearsals import Rehearsals
from .series import KnownSeries
from .shortcut import begin_in_turn

if TYPE_CHECKING:
    from .._generation.core import DeviceCore
    from .._generation.generation import Generation
    from .._transfers.staging import Slot
    from .._wire.programs import Program
    from .._wire.records.plans import PlanTable
    from .batch_sender import BatchSender
    from .recorded import Recorded

P = ParamSpec("P")
T = TypeVar("T")

Verdict = Callable[[npt.NDArray[Any]], "Exception | None"]
"""A function from a call's answer to its error: None if all is well."""


# --- arguments --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Scalar:
    """A number that the library reads from the host, through a pointer."""

    content: bytes

    @classmethod
    def of(cls, value: object, dtype: npt.DTypeLike) -> Scalar:
        """Return `value` as an element of `dtype`. Raises `InvalidArgument` if that cannot hold it."""
        # Most calls have the same few numbers. 0.0 and -0.0 are equal, but different numbers.
        is_plain = type(value) is int or (type(value) is float and value != 0)
        return (_known_scalar if is_plain else _scalar)(value, np.dtype(dtype))


def _scalar(value: object, dtype: np.dtype[Any]) -> Scalar:
    from .._transfers.memory import pattern_of

    return Scalar(pattern_of(value, dtype))


_known_scalar = functools.lru_cache(256, typed=True)(_scalar)


@attrs.frozen
class Answer:
    """A place for a number that the library answers, `offset` bytes into the answer of the call."""

    offset: int = 0


class Address(int):
    """The device address of an array's first element: the only word of a call that changes with the array."""


Argument = int | Scalar | Answer

_ALIGNMENT = 16


@attrs.frozen
class _Written:
    """The arguments of a call as a record has them."""

    words: bytes
    """A word for each argument, and behind them the contents of the scalars."""
    scalars: int
    answers: int


def _write(arguments: Sequence[Argument]) -> _Written:
    words: list[int] = []
    area = bytearray()
    scalars = answers = 0
    for index, argument in enumerate(arguments):
        if isinstance(argument, Scalar):
            scalars |= 1 << index
            words.append(len(area))
            area += argument.content.ljust(_ALIGNMENT, b"\0")
        elif isinstance(argument, Answer):
            answers |= 1 << index
            words.append(argument.offset)
        else:
            words.append(argument)
    return _Written(struct.pack(f"<{len(words)}q", *words) + area, scalars, answers)


class SlotRequest(CommandRequest):
    """A request that may need a slot of the staging area, and holds it until its end."""

    takes_slot = True

    __slots__ = ("_slot",)

    def __init__(
        self, verb: Verb, operands: Sequence[Operand], *, lane: int, operation: str, keep: object = None
    ) -> None:
        super().__init__(verb, b"", operands, keep=keep, lane=lane, operation=operation)
        self._slot: Slot | None = None

    def give_slot(self, slot: Slot) -> None:
        """Give it this slot, which it owns from now on."""
        self._slot = slot

    def is_ready(self, device: DeviceCore) -> bool:
        if self.slot_bytes and self._slot is None and not device.part(Transfers).staging.has_free(self.slot_bytes):
            return False
        self.equip(device.part(Transfers).staging.acquire_nowait)
        return True

    def equip(self, acquire: Callable[[int], Slot]) -> None:
        if self.slot_bytes and self._slot is None:
            self.give_slot(acquire(self.slot_bytes))

    def start(self, generation: Generation) -> None:
        """Publish the record, after the command that makes the slot's memory known to the worker."""
        if self._slot is not None:
            self._slot.introduce(generation, self.lane)
        super().start(generation)

    def release(self) -> None:
        """Give the slot back. Calling it twice is fine."""
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.release()

    def drop(self) -> None:
        if self.open:
            self.give_up()
        else:
            self.release()


class UploadRequest(SlotRequest):
    """A copy of host bytes to a new, contiguous array or, from `offset` on, to a part of it."""

    __slots__ = ("_address", "_content")

    def __init__(self, array: DeviceArray, content: bytes, offset: int, *, lane: int, operation: str) -> None:
        role = Role.WRITE if offset else Role.OVERWRITE
        super().__init__(COPY_IN, ((array._block, role),), lane=lane, operation=operation, keep=array)
        self._address = array.address + offset
        self._content = content

    @property
    def slot_bytes(self) -> int:
        return len(self._content)

    def start(self, generation: Generation) -> None:
        """Write the bytes into the slot that the GPU reads, and publish the record."""
        slot = known(self._slot, "it was given before the request was sent")
        slot.bytes[: len(self._content)] = np.frombuffer(self._content, np.uint8)
        self._payload = COPY_IN.struct.pack(self._address, slot.place, len(self._content))
        super().start(generation)

    def ended(self, *, delivered: bool) -> None:
        self.release()


class CallRequest(SlotRequest):
    """One call of a library's function. Its answer comes to the host in a slot, which it holds until then."""

    __slots__ = ("_answer", "_arguments", "_check", "_flags", "_function", "_table", "_written", "is_quick")

    def __init__(
        self,
        table: CallTable,
        function: str,
        arguments: Sequence[Argument],
        operands: Sequence[Operand],
        *,
        lane: int,
        operation: str,
        flags: int,
        answer: npt.NDArray[Any] | None,
        check: Verdict | None,
        keep: object,
        quick: bool = False,
    ) -> None:
        super().__init__(table.call, operands, lane=lane, operation=operation, keep=keep)
        self.is_quick: bool = quick
        """True if the library never waits in it, and makes a few entries of the stream's queue at most."""
        self._table = table
        self._function = table.numbers[function]
        self._arguments = arguments
        self._written = _write(arguments)
        self._flags = flags
        self._answer = answer
        self._check = check
        self._payload = self._packed(staging=0)

    @property
    def decides(self) -> bool:
        return self._check is not None

    @property
    def answer(self) -> npt.NDArray[Any] | None:
        return self._answer

    @property
    def reads_answer(self) -> bool:
        """True if it has a place of an answer among its words: its own, or that of the call before it."""
        return self._written.answers != 0

    @property
    def check(self) -> Verdict | None:
        return self._check

    @property
    def kind(self) -> CallKind:
        return CallKind(self._table.first_call, self._table.call, self._table.open, self._function)

    @property
    def slot_bytes(self) -> int:
        """The size of its answer in bytes."""
        return 0 if self._answer is None else self._answer.nbytes

    def start(self, generation: Generation) -> None:
        """Publish the record, as the first call of its kind when it is one."""
        kind = self.kind
        self._verb = kind.verb(generation, self.lane)
        if self._slot is not None:
            self._payload = self._packed(self._slot.place)
        super().start(generation)
        kind.begun(generation, self.lane)

    def _packed(self, staging: int) -> bytes:
        written = self._written
        head = (self._function, self._flags, written.scalars, written.answers, self.slot_bytes, staging)
        return HEAD.pack(*head) + written.words

    def rehearsals(self) -> Iterable[tuple[Hashable, Callable[[], Rehearsal]]]:
        """Return the call, without its answer's place."""
        sizes = tuple(0 if isinstance(each, Address) else each for each in self._arguments)
        yield (
            (self._table.engine, self._function, self._flags, sizes),
            lambda: Rehearsal(self._table.call, self._packed(staging=0), self.operation),
        )

    def addresses(self) -> tuple[tuple[int, int], ...] | None:
        blocks = [block for block, _ in self.operands]
        found = []
        for index, argument in enumerate(self._arguments):
            if isinstance(argument, Address):
                found.append((HEAD.size + WORD * index, int(argument)))
            elif not isinstance(argument, Scalar | Answer) and any(block.holds(argument) for block in blocks):
                return None
        return tuple(found)

    def ended(self, *, delivered: bool) -> None:
        if not delivered:
            self.release()

    def take(self) -> None:
        """Copy the answer to its target. Raises the error that it reports."""
        if self._slot is not None:
            self._fetch(self._slot, 0)
            self.release()
            self._judge()

    def _fetch(self, slot: Slot, offset: int) -> None:
        """Copy the answer to its target, from so many bytes behind the start of a slot."""
        if self._answer is not None:
            content = slot.bytes[offset : offset + self._answer.nbytes].tobytes()
            self._answer[...] = np.frombuffer(content, self._answer.dtype).reshape(self._answer.shape)

    def _judge(self) -> None:
        """Raise the error that the answer reports."""
        error = None if self._check is None or self._answer is None else self._check(self._answer)
        if error is not None:
            raise error


def merged_roles(parts: Iterable[CommandRequest]) -> tuple[Operand, ...]:
    """Return the access to memory of commands that are made one after the other, as that of one."""
    roles: dict[Block, Role] = {}
    for part in parts:
        for block, role in part.operands:
            before = roles.get(block)
            is_covered = before in (None, role, Role.OVERWRITE)
            roles[block] = (role if before is None else before) if is_covered else Role.WRITE
    return tuple(roles.items())


class JoinedRequest(SlotRequest):
    """Several calls of one library as one command: they are made one after the other, and there is one wait for all.

    `together` is the verb of such records, and `size` packs the number of bytes of each part. `operation` is the name
    by which errors call it.
    """

    __slots__ = ("_size", "parts")

    def __init__(self, together: Verb, size: struct.Struct, parts: Sequence[CallRequest], operation: str) -> None:
        keep = [part.keep for part in parts]
        super().__init__(together, merged_roles(parts), lane=parts[0].lane, operation=operation, keep=keep)
        self._size = size
        self.parts: tuple[CallRequest, ...] = tuple(parts)

    @property
    def decides(self) -> bool:
        return any(part.decides for part in self.parts)

    @property
    def slot_bytes(self) -> int:
        return sum(part.slot_bytes for part in self.parts)

    def rehearsals(self) -> Iterable[tuple[Hashable, Callable[[], Rehearsal]]]:
        """Return the calls, each by itself."""
        for part in self.parts:
            yield from part.rehearsals()

    def _packed(self, staging: int) -> bytes:
        pieces = bytearray()
        for part in self.parts:
            piece = part._packed(staging)
            pieces += self._size.pack(len(piece)) + piece
            staging += part.slot_bytes
        return bytes(pieces)

    def start(self, generation: Generation) -> None:
        """Publish the record."""
        self._payload = self._packed(0 if self._slot is None else self._slot.place)
        super().start(generation)
        for part in self.parts:
            part.kind.begun(generation, self.lane)

    def ended(self, *, delivered: bool) -> None:
        if not delivered:
            self.release()

    def take(self) -> None:
        """Copy the answers to their targets. Raises the first error that one of them reports."""
        if self._slot is not None:
            offset = 0
            for part in self.parts:
                part._fetch(self._slot, offset)
                offset += part.slot_bytes
            self.release()
        for part in self.parts:
            part._judge()


_MOST_BOXES = 1 << 14
"""The most pieces of a copy. More would block the caller for tenths of a second."""

# --- one call of a verb -----------------------------------------------------------------------------------------------


class Operands:
    """The arrays of a call, with its access to each."""

    __slots__ = ("_device", "_roles", "arrays")

    def __init__(self, device: DeviceCore) -> None:
        self._device = device
        self._roles: dict[Block, Role] = {}
        self.arrays: list[DeviceArray] = []

    def reads(self, *arrays: DeviceArray) -> None:
        """Note that the call reads these."""
        for array in arrays:
            self._add(array, Role.READ)

    def writes(self, *arrays: DeviceArray, keeps: bool = True) -> None:
        """Note that the call writes these. Without `keeps` it writes every element, and reads none."""
        for array in arrays:
            self._add(array, Role.WRITE if keeps or not array._covers_block else Role.OVERWRITE)

    def _add(self, array: DeviceArray, role: Role) -> None:
        check_usable(self._device, array)
        before = self._roles.get(array._block)
        self._roles[array._block] = role if before in (None, role) else Role.WRITE
        self.arrays.append(array)

    def roles(self) -> tuple[Operand, ...]:
        """Return each block once, with the strongest access to it."""
        return tuple(self._roles.items())


class ArrayMaker(Protocol):
    """Makes the new arrays of a verb, as `DeviceMemory` does."""

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return a new array."""

    def zeros(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return a new array of zeros."""


_PLAN = "plan"


def is_verb(value: object) -> bool:
    """Return whether a class has a verb there, or the method that a form has of it; both have `plan`."""
    return hasattr(value, _PLAN)


class verb(Generic[P, T]):
    """A decorator that makes two methods of one that plans: awaited on `Awaited`, done at once on the other forms.

    One that is a generator function is a verb in two phases (``phases.py``).
    """

    @overload
    def __init__(self, plan: Callable[Concatenate[Any, P], Phases[T]]) -> None: ...
    @overload
    def __init__(self, plan: Callable[Concatenate[Any, P], T]) -> None: ...
    def __init__(self, plan: Callable[Concatenate[Any, P], Any]) -> None:
        self.plan = plan
        functools.update_wrapper(self, plan)  # type: ignore[arg-type]
        has_phases = inspect.isgeneratorfunction(plan)
        planned: Callable[..., Any] = at_once(plan) if has_phases else plan

        @functools.wraps(plan)
        async def ask(library: Library, /, *arguments: P.args, **keywords: P.kwargs) -> T:
            return await library._ask(plan, arguments, keywords)

        @functools.wraps(plan)
        async def ask_twice(library: Library, /, *arguments: P.args, **keywords: P.kwargs) -> T:
            return cast("T", await ask_in_phases(library, plan, arguments, keywords))

        @functools.wraps(plan)
        def send(library: Library, /, *arguments: P.args, **keywords: P.kwargs) -> T:
            return library._send(planned, arguments, keywords)  # type: ignore[no-any-return]

        self._ask, self._send = ask_twice if has_phases else ask, send
        for method in (self._ask, self._send):
            setattr(method, _PLAN, plan)

    def of(self, form: type[Library]) -> Callable[..., Any]:
        """Return the method of a form."""
        return self._ask if form._is_awaited else self._send

    @overload
    def __get__(self, library: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, library: Awaited, owner: type[Any]) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, library: Batched, owner: type[Any]) -> Callable[P, T]: ...
    @overload
    def __get__(self, library: Recorded, owner: type[Any]) -> Callable[P, T]: ...
    @overload
    def __get__(self, library: Library, owner: type[Any]) -> Callable[P, Any]: ...
    def __get__(self, library: Library | None, owner: type[Any]) -> Any:
        if library is None:
            return self
        return types.MethodType(self.of(type(library)), library)


class Library:
    """The base class of `dev.blas` and its like, with what the verbs of one library have in common.

    While a verb is planned, `self` is an object for that one call, which collects the commands to send.
    """

    __slots__ = ("_batch", "_device", "_known", "_lane", "_launches", "_made", "_memory", "_requests")

    _table: VerbTable
    _is_awaited: ClassVar[bool] = True
    _is_form: ClassVar[bool] = False
    """True for what users have; false for classes that only hold verbs."""
    _form: ClassVar[str] = ""
    """What its objects belong to, for a `repr`."""

    def __init_subclass__(cls) -> None:
        """Put the functions of a form in the place of its verbs: to look a verb up costs a tenth of a batch's call."""
        if cls._is_form:
            for name, each in {
                name: each for base in reversed(cls.__mro__) for name, each in vars(base).items()
            }.items():
                if isinstance(each, verb):
                    setattr(cls, name, each.of(cls))

    def __init__(self, device: DeviceCore, batch: BatchSender | None = None) -> None:
        self._device = device
        self._batch = batch
        self._memory: ArrayMaker = device.part(DeviceMemory)
        self._known = device.part(KnownCalls)
        self._launches = device.part(AwaitedLaunches)
        self._lane: int = LANE_COMPUTE if batch is None else batch.lane
        self._requests: list[CommandRequest | Series] = []
        self._made: list[DeviceArray] = []
        """New arrays, for results and for intermediate values."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self._form} on device {self._device.index}>"

    # For the functions that plan a verb.

    def _operands(self) -> Operands:
        return Operands(self._device)

    def _empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        array = self._memory.empty(shape, dtype)
        self._made.append(array)
        return array

    def _zeroed(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> DeviceArray:
        """Return a new array of zeros, for a result that the calls do not write whole."""
        from .._transfers.memory import plan_fill

        array = self._empty(shape, dtype)
        self._requests += plan_fill(array, 0, self._lane)
        return array

    def _call(
        self,
        function: str,
        *arguments: Argument,
        operation: str,
        operands: Operands,
        flags: int = 0,
        answer: npt.NDArray[Any] | None = None,
        check: Verdict | None = None,
        table: CallTable | None = None,
        quick: bool = False,
    ) -> CallRequest:
        """Plan a call of `function` with `arguments`, which follow its handle; `table` is that of another library."""
        if answer is not None and answer.nbytes > ANSWER_BYTES:
            raise ValueError(f"an answer of {answer.nbytes} bytes")
        if answer is not None:
            flags |= DEVICE_SCALARS
        roles = operands.roles()
        request = self._request(
            function, arguments, roles, operands, operation, flags, table, answer, check, quick=quick
        )
        self._requests.append(request)
        return request

    def _call_each(
        self,
        count: int,
        function: str,
        arguments: Callable[[int], Sequence[Argument]],
        *,
        operation: str,
        operands: Operands,
        flags: int = 0,
        table: CallTable | None = None,
        joined: Callable[[int, CallRequest], CommandRequest] | None = None,
        quick: bool = False,
    ) -> None:
        """Plan `count` such calls, each with its own arguments; for calls without an answer.

        `joined` puts a command for several calls in the place of one.
        """
        roles = operands.roles()

        def make(index: int) -> CommandRequest:
            request = self._request(function, arguments(index), roles, operands, operation, flags, table, quick=quick)
            return request if joined is None else joined(index, request)

        self._plan_each(count, make)

    def _answer_each(
        self,
        count: int,
        function: str,
        arguments: Callable[[int], Sequence[Argument]],
        answer: Callable[[int], npt.NDArray[Any]],
        check: Verdict | None,
        *,
        operation: str,
        operands: Operands,
        table: CallTable | None = None,
    ) -> None:
        """Plan `count` quick calls, each with its own arguments and answer; the answer of the last is checked."""
        roles = operands.roles()

        def make(index: int) -> CommandRequest:
            judge = check if index == count - 1 else None
            return self._request(
                *(function, arguments(index), roles, operands, operation, DEVICE_SCALARS, table, answer(index), judge),
                quick=True,
            )

        self._plan_each(count, make)

    def _plan_each(self, count: int, make: Callable[[int], CommandRequest]) -> None:
        if count == 1:
            self._requests.append(make(0))
        elif count:
            first = make(0)  # so that wrong arguments are refused now
            self._requests.append(Series(count, make, first.operands))

    def _request(
        self,
        function: str,
        arguments: Sequence[Argument],
        roles: Sequence[Operand],
        operands: Operands,
        operation: str,
        flags: int,
        table: CallTable | None,
        answer: npt.NDArray[Any] | None = None,
        check: Verdict | None = None,
        *,
        quick: bool = False,
    ) -> CallRequest:
        return CallRequest(
            table or cast("CallTable", self._table),
            function,
            arguments,
            roles,
            lane=self._lane,
            operation=f"{self._table.engine}.{operation}",
            flags=flags,
            answer=answer,
            check=check,
            keep=operands.arrays,
            quick=quick,
        )

    def _execution(
        self,
        key: Hashable,
        program: Callable[[], Program],
        addresses: Sequence[int],
        scalars: bytes,
        operands: Operands,
        *,
        operation: str,
    ) -> PlanRequest:
        """Return an execution of the plan with this key, whose program `program` returns; see `Plans.plan`."""
        name = f"{self._table.engine}.{operation}"
        kind = self._device.part(Plans).plan(cast("PlanTable", self._table), key, program, addresses, name)
        return PlanRequest(
            kind, addresses, scalars, operands.roles(), lane=self._lane, operation=name, keep=operands.arrays
        )

    def _definition(
        self, program: Program, addresses: Sequence[int], operands: Operands, *, operation: str
    ) -> Definition:
        """Return the definition of a plan for this call alone, for a verb in two phases to yield (``phases.py``)."""
        return Definition(self, program, addresses, operands, operation)

    def _copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Plan a copy of `source` to `target`, before the calls that follow."""
        self._requests += self._copies(source, target)

    def _copies(self, source: DeviceArray, target: DeviceArray) -> list[CommandRequest]:
        from .._transfers.copy_plan import plan_copy

        requests = plan_copy(source, target, self._lane, most=_MOST_BOXES)
        if requests is None:
            raise InvalidArgument(
                f"{self._table.engine} takes no array of strides {source.strides}, and it has too many pieces to be "
                "copied here: use `await contiguous.copy_from(array)` first"
            )
        return requests

    def _plan_alike(self, count: int, plan: Callable[[int], list[CommandRequest]]) -> None:
        """Plan copies or fills that differ in their addresses alone: `plan` returns the commands of one of them."""
        first = plan(0) if count else []
        if count > 1 and len(first) == 1:
            self._requests.append(Series(count, lambda index: plan(index)[0], first[0].operands, folds=True))
        else:
            self._requests += itertools.chain(first, *(plan(index) for index in range(1, count)))

    def _upload(self, numbers: npt.NDArray[Any]) -> DeviceArray:
        """Return a new array that holds these numbers for the calls that follow, for example a table of addresses."""
        array = self._empty(numbers.shape, numbers.dtype)
        content, operation = numbers.tobytes(), f"{self._table.engine}.upload"
        for offset in range(0, len(content), LARGE_SLOT):
            part = content[offset : offset + LARGE_SLOT]
            self._requests.append(UploadRequest(array, part, offset, lane=self._lane, operation=operation))
        return array

    # How it is sent.

    def _outgoing(self) -> Outgoing:
        """Return the commands that were planned, as they are sent, and forget them."""
        outgoing, self._requests = Outgoing(self._requests), []
        return outgoing

    def _planner(self) -> Self:
        return type(self)(self._device, self._batch)

    async def _ask(self, plan: Callable[..., T], arguments: Sequence[object], keywords: dict[str, Any]) -> T:
        self._device.home.check_task()
        calls = self._known
        question = ASKS[plan](arguments, keywords)
        call = None if question is None else calls.find(question[0])
        if question is not None and call is not None:
            if type(call) is KnownCall:
                answer: Any = await self._launches.repeat(call, question[1])
            else:
                answer = await call.repeat(self._launches, question[1])
            if answer is not None:
                return answer  # type: ignore[no-any-return]
        await self._begin_verb(plan, arguments, keywords)
        planner = self._planner()
        result = plan(planner, *arguments, **keywords)
        made = await planner._ask_all()
        if question is not None and call is None:
            calls.learn(question, made, planner._made, result, KnownSeries.of)
        return result

    def _rehearse(self, requests: Sequence[CommandRequest]) -> None:
        if self._device.options.standby:
            self._device.part(Rehearsals).note(requests)

    async def _begin_verb(
        self, plan: Callable[..., object], arguments: Sequence[object], keywords: dict[str, Any]
    ) -> None:
        """Wait for what an awaited verb needs before it is planned. Nothing of it has been done yet."""
        await trio.lowlevel.checkpoint_if_cancelled()
        await placed(self._device, flat((*arguments, *keywords.values())))

    async def _ask_all(self) -> list[CommandRequest]:
        """Run the commands that were planned, and forget them. Returns them; none of a long verb."""
        if len(self._requests) > 1 and number_of(self._requests) > STRETCH:  # to plan them was enough for one turn
            await trio.lowlevel.checkpoint()
        outgoing = self._outgoing()
        waiting: collections.deque[CommandRequest] = collections.deque()
        if not await self._made_more(outgoing, waiting):
            await trio.lowlevel.checkpoint()
        while waiting:
            done = collections.deque(await self._ask_some(waiting, outgoing))
            count = len(done)
            try:
                while done:
                    done.popleft().take()
            finally:
                for request in done:
                    request.drop()
            self._rehearse(outgoing.forget_done(count))
            await self._made_more(outgoing, waiting)
        self._rehearse(outgoing.made)
        return outgoing.made if outgoing.is_whole else []

    async def _made_more(self, outgoing: Outgoing, waiting: collections.deque[CommandRequest]) -> bool:
        """Make the next commands of a verb, and return whether there are any. Other tasks run between many."""
        while outgoing.more and len(waiting) < STRETCH:
            waiting += outgoing.take(min(AT_A_TIME, STRETCH - len(waiting)))
            if outgoing.more:
                # Whoever is cancelled here is told so when the commands are begun, where what is half done is marked.
                await trio.lowlevel.cancel_shielded_checkpoint()
        return bool(waiting)

    @trio.lowlevel.enable_ki_protection
    async def _ask_some(self, waiting: collections.deque[CommandRequest], outgoing: Outgoing) -> list[CommandRequest]:
        """Run as many of a verb's commands as can begin at once, in one stretch: they wait only for each other.

        Returns them when they are done. A command that must wait, for room or its actor, is requested alone.
        """
        begun: list[CommandRequest] = []
        failed = None
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            begun, looker = begin_in_turn(self._device, waiting)
            if not begun:
                begun.append(waiting.popleft())
                failed = begun[0]
                await self._ask_one(begun[0])
            elif looker is not None:
                await looker.look_for(begun[-1])
                for failed in begun:
                    await failed.wait()
        except BaseException as error:
            # The caller abandons one that has not failed.
            _tear_halves(outgoing.all(), error, failed if isinstance(error, Exception) else None)
            for request in begun:
                request.drop()
            raise
        return begun

    async def _ask_one(self, request: CommandRequest) -> None:
        if isinstance(request, SlotRequest) and request.slot_bytes:
            request.give_slot(await self._device.part(Transfers).staging.acquire(request.slot_bytes))
        await self._device.actor_of(request.verb).mailbox.ask(request)

    def _send(self, plan: Callable[..., T], arguments: Sequence[object], keywords: dict[str, Any]) -> T:
        question, call = ASKS[plan](arguments, keywords), None
        batch = self._batch
        assert batch is not None  # this is its form for batches
        if question is not None:
            key, arrays = question
            call = self._known.find(key)
            if call is not None:
                answer: Any = batch.repeat(call, arrays) if type(call) is KnownCall else call.send(batch, arrays)
                if answer is not None:
                    return answer  # type: ignore[no-any-return]
        batch.check()
        planner = self._planner()
        result = plan(planner, *arguments, **keywords)
        requests = planner._outgoing().take()
        batch.send_all(requests)
        self._rehearse(requests)
        if question is not None and call is None:
            self._known.learn(question, requests, planner._made, result, KnownSeries.of)
        return result


def flat(arguments: Iterable[object]) -> Iterator[object]:
    """Yield the arguments, and the items of those that are lists."""
    for each in arguments:
        if isinstance(each, list | tuple):
            yield from each
        else:
            yield each


def _tear_halves(
    requests: Sequence[CommandRequest | Series], error: BaseException, failed: CommandRequest | None = None
) -> None:
    from .._transfers.memory import tear_halves

    tear_halves(requests, error, failed)


class Awaited(Library):
    """The form of `dev.blas`: its verbs are awaited."""

    __slots__ = ()

    _is_form = True


class Batched(Library):
    """The form of the `blas` of a batch: its verbs are sent, and done at the end of the batch."""

    __slots__ = ()

    _is_form = True
    _is_awaited = False
    _form = " of a batch"
