"""Verbs of several calls as one command, and their repetitions.

What such a verb plans is folded: the calls, the copies and the fills that follow each other on one lane are one
`SequenceRequest`, which has one ticket and one slot for all answers. What the sequence does is a plan of its library
(``plans.py``), whose key is the payloads of the calls with holes for the addresses. The worker is told of it once; what
crosses with each call is its number and the addresses. So a verb is one record and one wait, however many calls it is.

A verb that was one sequence is remembered by its arguments, as a call is (``known.py``). Its repetition plans nothing:
it makes the new arrays, and puts their addresses into the words of the sequence. The arrays that only lie between the
calls are parts of one piece of memory then. What the calls answer is only looked at where it is fetched, so all
repetitions have the same places for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import attrs
import numpy as np
import numpy.typing as npt

from .._arrays.arrays import DeviceArray, Storage, check_usable
from .._arrays.memory import DeviceMemory
from .._generation.core import DeviceCore, DevicePart
from .._generation.requests import CallKind, CommandRequest, Rehearsal, Series
from .._generation.timeline import Command, Operand
from .._memory.arena import Block
from .._transfers.memory import tear_halves
from .._values.errors import DeviceError
from .._wire.protocol import Role
from .._wire.records.calls import ANSWER_BYTES, STAGING_AT, WORD
from .._wire.records.memory import COPY, FILL
from .._wire.records.sequences import Content, Hole, SequenceTable, Step, pack_words
from .known import Question, question_of
from .plans import PlanKind, Plans
from .verbs import CallRequest, JoinedRequest, Library, Outgoing, SlotRequest, Verdict, merged_roles

if TYPE_CHECKING:
    from .._generation.generation import Generation
    from .batch_sender import BatchSender

T = TypeVar("T")

_MOST_STEPS: Final = 48
"""Of one sequence. The rest of a verb is another one."""
_ANSWER: Final = 16
"""The alignment of each answer in bytes."""
_MOST_KNOWN: Final = 256
_ALIGNMENT: Final = 512
"""Of each array between the calls."""
_ADDRESSES: Final = {COPY: (0, 3 * WORD), FILL: (0,)}
"""Where the payloads of commands on device memory have addresses."""


class _Part(NamedTuple):
    """A command that can be a step of a sequence."""

    request: CommandRequest
    payload: bytes
    addresses: tuple[tuple[int, int], ...]
    """The places of the addresses in the payload, and the addresses."""


class _Answer(NamedTuple):
    """What one step answers: where it lies in the slot, where it goes, and what judges it."""

    offset: int
    target: npt.NDArray[Any]
    check: Verdict | None


@attrs.frozen(eq=False)
class _Sequence:
    """What a sequence and its repetitions have in common."""

    kind: PlanKind
    kinds: tuple[CallKind, ...]
    """The kinds of its calls."""
    operation: str
    operations: tuple[str, ...]
    """The names of the steps, for errors."""
    accesses: tuple[tuple[tuple[int, Role], ...], ...]
    """The access of each step to memory; an operand of the sequence by its number."""
    answers: tuple[_Answer, ...]
    answer_bytes: int


@attrs.define(eq=False)
class _Begun:
    """A step as `tear_halves` sees it."""

    operands: Sequence[Operand]
    sent: bool


class SequenceRequest(SlotRequest):
    """A sequence of calls, as one command. Its words begin with the place of the slot, which is known when it starts.

    With `decides`, an answer may refuse what follows of the same verb.
    """

    __slots__ = ("_blocks", "_calls", "_decides", "sequence", "words")

    def __init__(
        self,
        sequence: _Sequence,
        words: list[int],
        operands: Sequence[Operand],
        *,
        lane: int,
        keep: object,
        decides: bool = False,
        blocks: Sequence[Block] | None = None,
        calls: Sequence[CallRequest] = (),
    ) -> None:
        super().__init__(sequence.kind.later, operands, lane=lane, operation=sequence.operation, keep=keep)
        self.sequence: _Sequence = sequence
        self._blocks = [block for block, _ in operands] if blocks is None else blocks
        self.words: list[int] = words
        self._decides = decides
        self._calls = calls
        """The calls that were planned; none for a repetition."""

    def rehearsals(self) -> Iterable[tuple[Hashable, Callable[[], Rehearsal]]]:
        """Return the calls that were planned, each by itself."""
        for call in self._calls:
            yield from call.rehearsals()

    @property
    def decides(self) -> bool:
        return self._decides

    @property
    def slot_bytes(self) -> int:
        return self.sequence.answer_bytes

    def start(self, generation: Generation) -> None:
        """Publish the record, after the definition of the sequence where that is missing."""
        kind, lane = self.sequence.kind, self.lane
        kind.precede(generation, lane)
        self._verb = kind.verb(generation, lane)
        if self._slot is not None:
            self.words[0] = self._slot.place
        self._payload = kind.later.struct.pack(kind.plan.number) + pack_words(self.words)
        super().start(generation)
        if self._verb is not kind.later:
            for each in (*self.sequence.kinds, kind):
                each.begun(generation, lane)

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Settle; and after a failure, mark what the steps before it have left half written."""
        if error is not None:
            number = value or 0
            error.operation = self.sequence.operations[number]
            steps = [
                _Begun([(self._blocks[place], role) for place, role in access], sent=index <= number)
                for index, access in enumerate(self.sequence.accesses)
            ]
            tear_halves(cast("list[CommandRequest | Series]", steps), error, cast("CommandRequest", steps[number]))
        super().command_finished(command, error, value)

    def ended(self, *, delivered: bool) -> None:
        if not delivered:
            self.release()

    def take(self) -> None:
        """Copy the answers to their targets. Raises the first error that one of them reports."""
        if self._slot is not None:
            content = self._slot.bytes[: self.sequence.answer_bytes].tobytes()
            self.release()
            for offset, target, _ in self.sequence.answers:
                target[...] = np.frombuffer(content, target.dtype, target.size, offset).reshape(target.shape)
        for _, target, check in self.sequence.answers:
            error = None if check is None else check(target)
            if error is not None:
                raise error


# --- folding ----------------------------------------------------------------------------------------------------------


def folded(library: Library, requests: Sequence[CommandRequest | Series], spared: Block | None) -> list[Any]:
    """Return the commands of a verb with those that follow each other made sequences.

    The array `spared` is not written before all answers that may refuse it are known.
    """
    found: list[CommandRequest | Series] = []
    run: list[_Part] = []
    originals: list[CommandRequest] = []

    def end(*, decides: bool = False) -> None:
        if any(type(each) is not CommandRequest for each in originals):
            found.append(_made_of(library, run, decides=decides))
        else:  # there is nothing to gain for a copy alone
            found.extend(originals)
        run.clear()
        originals.clear()

    for request in requests:
        parts = _parts_of(request)
        if parts is None:
            end()
            found.append(request)
            continue
        answered = sum(map(_answered, (*run, *parts)))
        if len(run) + len(parts) > _MOST_STEPS or answered > ANSWER_BYTES:
            end()
        elif spared is not None and any(part.request.decides for part in run) and _writes(parts, spared):
            end(decides=True)
        assert not isinstance(request, Series)
        originals.append(request)
        run += parts
    end()
    return found


def _answered(part: _Part) -> int:
    return -(-part.request.slot_bytes // _ANSWER) * _ANSWER


def _writes(parts: Sequence[_Part], block: Block) -> bool:
    return any(each is block and role is not Role.READ for part in parts for each, role in part.request.operands)


def _parts_of(request: CommandRequest | Series) -> list[_Part] | None:
    """Return the steps that a command is; None if it is to be sent by itself."""
    if isinstance(request, JoinedRequest):
        parts = [_part_of_call(each) for each in request.parts]
        return None if None in parts else cast("list[_Part]", parts)
    if isinstance(request, CallRequest):
        part = _part_of_call(request)
        return None if part is None else [part]
    if type(request) is CommandRequest and request.verb in _ADDRESSES:
        payload = request.payload
        places = _ADDRESSES[request.verb]
        addresses = tuple((place, int.from_bytes(payload[place : place + WORD], "little")) for place in places)
        return [_Part(request, payload, addresses)]
    return None


def _part_of_call(request: CallRequest) -> _Part | None:
    addresses = request.addresses()
    return None if addresses is None else _Part(request, request.payload, addresses)


def _made_of(library: Library, parts: Sequence[_Part], *, decides: bool) -> SequenceRequest:
    words = [0]
    numbers: dict[int, int] = {}
    steps, kinds = [], []
    answers: list[_Answer] = []
    answered = 0
    for part in parts:
        request, payload, addresses = part
        holes = []
        for place, address in addresses:
            if address not in numbers:
                numbers[address] = len(words)
                words.append(address)
            holes.append(Hole(place, numbers[address], 0))
        if isinstance(request, CallRequest):
            kinds.append(request.kind)
            if request.answer is None and request.reads_answer:
                holes.append(Hole(STAGING_AT, 0, answers[-1].offset))
            if request.answer is not None:
                holes.append(Hole(STAGING_AT, 0, answered))
                answers.append(_Answer(answered, request.answer, request.check))
                answered += _answered(part)
        steps.append(Step(request.verb.engine_number, request.verb.number, _without(payload, holes), tuple(holes)))
    operands = merged_roles([part.request for part in parts])
    numbered = {block: number for number, (block, _) in enumerate(operands)}
    calls = [part.request for part in parts if isinstance(part.request, CallRequest)]
    main = next((call for call in calls if call.check is not None), calls[0])
    content = Content(steps)
    table = cast("SequenceTable", library._table)
    kind = library._device.part(Plans).plan(table, content, lambda: content, (), main.operation)
    sequence = _Sequence(
        kind,
        tuple(kinds),
        main.operation,
        tuple(part.request.operation for part in parts),
        tuple(tuple((numbered[block], role) for block, role in part.request.operands) for part in parts),
        tuple(answers),
        answered,
    )
    keep = [part.request.keep for part in parts]
    lane = calls[0].lane
    return SequenceRequest(sequence, words, operands, lane=lane, keep=keep, decides=decides, calls=calls)


def _without(payload: bytes, holes: Sequence[Hole]) -> bytes:
    """Return a payload with zeros in the holes."""
    content = bytearray(payload)
    for hole in holes:
        content[hole.offset : hole.offset + WORD] = bytes(WORD)
    return bytes(content)


# --- repetitions ------------------------------------------------------------------------------------------------------


class _View(NamedTuple):
    """A result that is a view of a new array."""

    number: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


_Result = _View | int | None
"""One result of a verb: a view of a new array, an array that was given, by its number, or None."""


class KnownSequence:
    """A verb that was one sequence: all that its repetition needs but the new arrays."""

    __slots__ = (
        "_blocks",
        "_is_tuple",
        "_new",
        "_operands",
        "_patches",
        "_results",
        "_scratch_bytes",
        "_sequence",
        "_words",
    )

    def __init__(
        self,
        request: SequenceRequest,
        made: Sequence[DeviceArray],
        results: Sequence[_Result],
        *,
        is_tuple: bool,
    ) -> None:
        self._sequence = request.sequence
        self._words = [0, *request.words[1:]]
        kept = sorted({each.number for each in results if isinstance(each, _View)})
        self._new = [(made[number].shape, made[number].dtype) for number in kept]
        """The shapes and dtypes of the new arrays that hold results."""
        places = {made[number]._block: (place, 0) for place, number in enumerate(kept)}
        size = 0
        for number, array in enumerate(made):
            if number not in kept:
                places[array._block] = len(kept), size
                size += -(-max(array.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        self._scratch_bytes = size
        """The size of the memory for all others."""
        self._results = [
            each._replace(number=kept.index(each.number)) if isinstance(each, _View) else each for each in results
        ]
        self._is_tuple = is_tuple
        self._patches = [
            (word, places[array._block][0], places[array._block][1] + address - array.address)
            for word, address in enumerate(request.words)
            for array in made
            if word and array._block.holds(address)
        ]
        """The words that are addresses of new memory: their numbers, the array, and the bytes behind its start."""
        self._blocks = [places[block][0] if block in places else block for block, _ in request.operands]
        """The memory of each operand; new memory by its number."""
        roles: dict[Block | int, Role] = {}
        for block, (_, role) in zip(self._blocks, request.operands, strict=True):
            roles[block] = Role.OVERWRITE if block == len(kept) else role
        self._operands = list(roles.items())

    def again(
        self, device: DeviceCore, arrays: tuple[DeviceArray, ...], lane: int
    ) -> tuple[SequenceRequest, tuple[DeviceArray | None, ...] | DeviceArray | None]:
        """Return the request for one more such verb, and its result."""
        for array in arrays:
            check_usable(device, array)
        empty = device.part(DeviceMemory).empty
        new = [empty(shape, dtype) for shape, dtype in self._new]
        results = [
            _viewed(new[each.number], each) if isinstance(each, _View) else each if each is None else arrays[each]
            for each in self._results
        ]
        if self._scratch_bytes:
            new.append(empty((self._scratch_bytes,), np.uint8))
        words = self._words.copy()
        for word, number, more in self._patches:
            words[word] = new[number].address + more
        request = SequenceRequest(
            self._sequence,
            words,
            tuple([(new[each]._block if type(each) is int else each, role) for each, role in self._operands]),  # type: ignore[misc]
            lane=lane,
            keep=(arrays, new),
            blocks=[new[each]._block if type(each) is int else each for each in self._blocks],  # type: ignore[misc]
        )
        return request, tuple(results) if self._is_tuple else results[0]


def _viewed(array: DeviceArray, view: _View) -> DeviceArray:
    return DeviceArray._create(array._storage, array._offset + view.offset, view.shape, view.strides, view.dtype)


class KnownSequences(DevicePart):
    """The known sequences of one device, the newest last."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._known: dict[Hashable, KnownSequence] = {}
        self._learns = not (device.options.checks or device.options.guarded)
        """False if each array has its own guards: arrays between the calls must not be parts of one."""
        self.find: Callable[[Hashable], KnownSequence | None] = self._known.get
        """Return the sequence of a key, if it was made before."""

    def learn(
        self, question: Question, requests: Sequence[CommandRequest], made: Sequence[DeviceArray], result: object
    ) -> None:
        """Keep a verb of these requests and `made` new arrays, if it is one sequence and its result is arrays."""
        key, arrays = question
        if not self._learns or len(requests) != 1 or type(requests[0]) is not SequenceRequest:
            return
        if any(type(array._storage) is not Storage for array in arrays):
            return  # a variable of a module moves
        each = list(result) if isinstance(result, tuple) else [result]
        results = [_result(one, arrays, made) for one in each]
        if _UNKNOWN in results:
            return
        known = KnownSequence(requests[0], made, results, is_tuple=isinstance(result, tuple))
        if self._known.pop(key, None) is None and len(self._known) >= _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = known


_UNKNOWN: Final = -1


def _result(result: object, arrays: Sequence[DeviceArray], made: Sequence[DeviceArray]) -> _Result:
    """Return how to have such a result again; `_UNKNOWN` for what is no array, or one of something else."""
    if result is None:
        return None
    if not isinstance(result, DeviceArray):
        return _UNKNOWN
    for number, array in enumerate(arrays):
        if array is result:
            return number
    for number, array in enumerate(made):
        if array._block is result._block:
            offset = result._offset - array._offset
            return _View(number, offset, result.shape, result.strides, result.dtype)
    return _UNKNOWN


class SequencedLibrary(Library):
    """The base of the forms of a library whose verbs are sequences."""

    __slots__ = ("_spared",)

    def __init__(self, device: DeviceCore, batch: BatchSender | None = None) -> None:
        super().__init__(device, batch)
        self._spared: DeviceArray | None = None
        """An array that is only written once it is known that the verb does not fail, if it is awaited."""

    def _folded(self) -> Sequence[CommandRequest | Series]:
        spared = self._spared if self._batch is None else None
        return folded(self, self._requests, None if spared is None else spared._block)

    async def _ask(self, plan: Callable[..., T], arguments: Sequence[object], keywords: dict[str, Any]) -> T:
        self._device.home.check_task()
        question = question_of(plan, arguments, keywords)
        sequences = self._device.part(KnownSequences)
        sequence = None if question is None else sequences.find(question[0])
        await self._begin_verb(plan, arguments, keywords)
        planner = self._planner()
        if question is not None and sequence is not None:
            request, again = sequence.again(self._device, question[1], self._lane)
            planner._requests.append(request)
            await planner._ask_all()
            return cast("T", again)
        result = plan(planner, *arguments, **keywords)
        made = await planner._ask_all()
        self._rehearse(made)
        if question is not None:
            sequences.learn(question, made, planner._made, result)
        return result

    def _send(self, plan: Callable[..., T], arguments: Sequence[object], keywords: dict[str, Any]) -> T:
        question = question_of(plan, arguments, keywords)
        batch, sequences = self._batch, self._device.part(KnownSequences)
        assert batch is not None  # this is its form for batches
        batch.check()
        if question is not None and (sequence := sequences.find(question[0])) is not None:
            request, again = sequence.again(self._device, question[1], self._lane)
            batch.send(request)
            return cast("T", again)
        planner = self._planner()
        result = plan(planner, *arguments, **keywords)
        requests = Outgoing(planner._folded()).take()
        batch.send_all(requests)
        self._rehearse(requests)
        if question is not None:
            sequences.learn(question, requests, planner._made, result)
        return result
