"""Repetitions of verbs that were one sequence of calls (``sequences.py``), and their short way into the ring.

A verb that was one sequence is remembered by its arguments, as a call is (``known.py``). Its repetition plans nothing:
it makes the new arrays, and puts their addresses into the words of the sequence. The arrays that only lie between the
calls are parts of one piece of memory then. What the calls answer is only looked at where it is fetched, so all
repetitions have the same places for it.

If its calls never wait, the words are those of a ready record (``_wire/ready.py``), which goes straight into the ring.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import trio

from .._arrays.arrays import DeviceArray, Storage, check_usable, view_of
from .._arrays.memory import DeviceMemory
from .._generation.core import DeviceCore, DevicePart
from .._generation.requests import CallKind, CommandRequest
from .._generation.timeline import Launch, Operand
from .._memory.arena import Block
from .._supervision.mailbox import Mailbox
from .._transfers.staging import Slot
from .._transfers.transfers import Transfers
from .._values.errors import DeviceError
from .._values.statistics import Outcome
from .._wire.protocol import Role
from .._wire.ready import has_room, new_identity, ready_head, with_holes
from .._wire.records.calls import WORD
from .._wire.records.sequences import pack_words
from .batch_sender import BatchSender, ShortLaunches
from .forms import ASKS
from .known import Question, located
from .launching import AwaitedLaunch, LaunchPath
from .outgoing import Outgoing
from .verbs import Library

if TYPE_CHECKING:
    from .._arrays.arrays import Layout
    from .._generation.generation import Generation

from .sequences import CallSequence, SequenceFolding, SequenceRequest, Told
from .several_words import words_launcher

T = TypeVar("T")

_MOST_KNOWN: Final = 256
_ALIGNMENT: Final = 512
"""Of each array between the calls."""


class _View(NamedTuple):
    """A result that is a view of a new array."""

    number: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    plain: np.dtype[Any] | None
    """Its dtype if it is C-contiguous."""


class _Answered(NamedTuple):
    """A result that is an array on the host, by its number."""

    number: int


_Result = _View | _Answered | int | None
"""One result of a verb: a view of a new array, a number that is told, an array that was given by its number, or None.
"""


class KnownSequence:
    """A verb that was one sequence: all that its repetition needs but the new arrays."""

    __slots__ = (
        "__weakref__",
        "_constant",
        "_engine",
        "_fills",
        "_given",
        "_is_answered",
        "_is_tuple",
        "_key",
        "_layouts",
        "_numbers",
        "_operands",
        "_results",
        "_words",
        "blocks",
        "head",
        "new",
        "payload",
        "places",
        "reads",
        "sequence",
        "told",
        "writes",
    )

    def __init__(
        self,
        request: SequenceRequest,
        arrays: Sequence[DeviceArray],
        made: Sequence[DeviceArray],
        results: Sequence[_Result],
        *,
        is_tuple: bool,
        told: Told | None = None,
    ) -> None:
        self._given: tuple[tuple[Block, int], ...] = tuple((array._block, array.address) for array in arrays)
        """The memory and the addresses of the arrays that it was given."""
        self.told: Told | None = told
        """What it tells of its answers; None if all of its results are on the device."""
        self.sequence: CallSequence = request.sequence
        kind = self.sequence.kind
        self._engine: str = kind.later.engine
        self._key = object()
        kept = sorted({each.number for each in results if isinstance(each, _View)})
        new: list[tuple[tuple[int, ...], npt.DTypeLike]] = [(made[each].shape, made[each].dtype) for each in kept]
        places = {made[number]._block: (place, 0) for place, number in enumerate(kept)}
        size = 0
        for number, array in enumerate(made):
            if number not in kept:
                places[array._block] = len(kept), size
                size += -(-max(array.nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        if size:
            new.append(((size,), np.uint8))
        self._layouts: list[Layout] | None = None
        """Those of the new arrays, once one was made."""
        self.new: tuple[tuple[tuple[int, ...], npt.DTypeLike], ...] = tuple(new)
        """The shapes and dtypes of the new arrays: those that hold results, and one that holds all others."""
        self._results = [
            each._replace(number=kept.index(each.number)) if isinstance(each, _View) else each for each in results
        ]
        self._is_tuple = is_tuple
        self._constant = [0, *request.words[1:]]
        self._fills = [
            (word, places[array._block][0], places[array._block][1] + address - array.address)
            for word, address in enumerate(request.words)
            for array in made
            if word and array._block.holds(address)
        ]
        """The words that are addresses of new memory: their numbers, the array, and the bytes behind its start."""
        self._is_answered = self.sequence.answer_bytes > 0
        self._words = [*([0] if self._is_answered else []), *(word for word, *_ in self._fills)]
        """The words that differ each time."""
        self.places: tuple[int, ...] = tuple(kind.later.struct.size + WORD * word for word in self._words)
        self._numbers = [places[block][0] if block in places else block for block, _ in request.operands]
        """The memory of each operand; new memory by its number."""
        roles: dict[Block | int, Role] = {}
        for block, (_, role) in zip(self._numbers, request.operands, strict=True):
            roles[block] = Role.OVERWRITE if size and block == len(kept) else role
        self._operands = list(roles.items())
        self._complete()

    def _complete(self) -> None:
        """Set what depends on the arrays that it was given."""
        kind = self.sequence.kind
        payload = kind.later.struct.pack(kind.plan.number) + pack_words(self._constant)
        self.payload: bytes = with_holes(payload, self.places)
        """The payload of its records, with zeros at `places`, where the words belong."""
        fits = has_room(len(self.places), len(self.payload))
        self.head: bytes = ready_head(new_identity(), self.places) if fits else b""
        """What is in front of the words; nothing if they have no room in a ready record."""
        fixed = [(block, role) for block, role in self._operands if not isinstance(block, int)]
        self.blocks: tuple[Operand, ...] = tuple(fixed)
        """The arrays that were given, with the access to them."""
        self.reads: tuple[Block, ...] = tuple(block for block, role in fixed if role is Role.READ)
        self.writes: tuple[Block, ...] = tuple(block for block, role in fixed if role is not Role.READ)

    def of_others(self, arrays: Sequence[DeviceArray]) -> KnownSequence | None:
        """Return the same for other arrays, which lie in the same way; None if that cannot be told.

        Each array must have memory of its own, so that each address is in one of them.
        """
        moved = {block: array._block for (block, _), array in zip(self._given, arrays, strict=True)}
        if len(moved) != len(arrays) or len(set(moved.values())) != len(arrays):
            return None
        constant, variable = self._constant.copy(), set(self._words)
        for word in range(1, len(constant)):
            if word in variable:
                continue
            address = constant[word]
            places = (place for place, (block, _) in enumerate(self._given) if block.holds(address))
            place = next(places, None)
            if place is None:
                return None
            constant[word] = arrays[place].address + address - self._given[place][1]
        other = KnownSequence.__new__(KnownSequence)
        for name in (
            "_engine",
            "_fills",
            "_is_answered",
            "_is_tuple",
            "_layouts",
            "_results",
            "_words",
            "new",
            "places",
            "sequence",
            "told",
        ):
            setattr(other, name, getattr(self, name))
        other._key = object()
        other._given = tuple((array._block, array.address) for array in arrays)
        other._constant = constant
        other._numbers = [each if isinstance(each, int) else moved[each] for each in self._numbers]
        other._operands = [(each if isinstance(each, int) else moved[each], role) for each, role in self._operands]
        other._complete()
        return other

    def reads_torn(self) -> bool:
        """Return whether it writes to a torn array that it may also read: then it has to be planned anew."""
        for block in self.writes:  # noqa: SIM110 - `any` takes three times as long
            if block.torn is not None:
                return True
        return False

    def make(self, memory: DeviceMemory) -> list[DeviceArray]:
        """Return new arrays for one repetition."""
        if self._layouts is None:
            self._layouts = [memory.layout_of(shape, dtype) for shape, dtype in self.new]
        return [memory.again(layout, None) for layout in self._layouts]

    def result(
        self, arrays: Sequence[DeviceArray], new: Sequence[DeviceArray], into: Sequence[npt.NDArray[Any]]
    ) -> object:
        """Return the verb's result."""
        results: list[object] = []
        for each in self._results:
            if type(each) is _View:
                results.append(_viewed(new[each.number], each))
            elif type(each) is _Answered:
                results.append(into[each.number])
            else:
                results.append(None if each is None else arrays[cast("int", each)])
        return tuple(results) if self._is_tuple else results[0]

    def words(self, new: Sequence[DeviceArray], place: int) -> list[int]:
        """Return the words that differ, for a slot at this place of the host."""
        words = [place] if self._is_answered else []
        for _, number, more in self._fills:
            words.append(new[number]._storage.block.address + more)  # a new array begins with its block
        return words

    def again(
        self,
        device: DeviceCore,
        arrays: tuple[DeviceArray, ...],
        lane: int,
        new: Sequence[DeviceArray],
        into: tuple[npt.NDArray[Any], ...],
    ) -> SequenceRequest:
        """Return a request for one more such verb, which goes the general way."""
        for array in arrays:
            check_usable(device, array)
        words = self._constant.copy()
        for word, value in zip(self._words, self.words(new, 0), strict=True):
            words[word] = value
        request = SequenceRequest(
            self.sequence,
            words,
            self._access(new),
            lane=lane,
            keep=(arrays, new),
            blocks=self.operand_blocks(new),
        )
        request.told, request.into = self.told, into
        return request

    def fetch(self, slot: Slot, into: tuple[npt.NDArray[Any], ...]) -> Exception | None:
        """Take the answers of one repetition, and tell of them. Returns the first error that one of them reports."""
        if self.told is not None:
            self.told.into = into
        return self.sequence.fetch(slot, tells=self.told is not None)

    def operand_blocks(self, new: Sequence[DeviceArray]) -> list[Block]:
        """Return the memory of each operand."""
        return [new[each]._block if isinstance(each, int) else each for each in self._numbers]

    def _access(self, new: Sequence[DeviceArray]) -> tuple[Operand, ...]:
        return tuple([(new[each]._block if isinstance(each, int) else each, role) for each, role in self._operands])

    # For launch paths.

    @property
    def kind(self) -> CallKind:
        """Its kind."""
        return self.sequence.kind

    def may_be_short(self, generation: Generation, lane: int) -> bool:
        """Return whether its records may go straight into the ring: the lane has made it before, and nothing waits."""
        kind = self.sequence.kind
        return bool(self.head) and kind.later.shares and kind.verb(generation, lane) is kind.later

    def _of(self, thing: object) -> bool:
        return self.sequence.kind.is_of(thing)

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        """Return the operation and its access to memory. The new arrays are the last of the arguments."""
        operands = self._access(cast("list[DeviceArray]", arguments[-1])) if arguments else self.blocks
        return self.sequence.operation, operands


def _viewed(array: DeviceArray, view: _View) -> DeviceArray:
    _, offset, shape, strides, dtype, plain = view
    return view_of(array._storage, array._offset + offset, shape, strides, dtype, plain)


# --- the short way ----------------------------------------------------------------------------------------------------


def _note_failed(launch: Launch, error: DeviceError) -> None:
    sequence, given = launch[2], launch[3]
    assert isinstance(sequence, KnownSequence)
    sequence.sequence.note_failed(error, sequence.operand_blocks(cast("list[DeviceArray]", given[-1])))


class _BatchSequence(ShortLaunches):
    """Receives the outcome of a batch's sequence that went the short way, and its answers."""

    __slots__ = ("_failed", "_into", "_sequence", "_slot")

    def __init__(
        self,
        mailbox: Mailbox,
        errors: list[DeviceError],
        sequence: KnownSequence,
        slot: Slot | None,
        into: tuple[npt.NDArray[Any], ...],
    ) -> None:
        self.mailbox = mailbox  # a call of `ShortLaunches.__init__` would take as long as all of these
        self.errors = errors
        self._into = into
        self._sequence = sequence
        self._slot = slot
        self._failed = False

    def launches_finished(self, count: int) -> None:
        """Take the answers, unless a call was refused."""
        super().launches_finished(count)
        if self._slot is not None:
            error = None if self._failed else self._sequence.fetch(self._slot, self._into)
            self._slot.release()
            if isinstance(error, DeviceError):
                self.errors.append(error)

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error for `flush`."""
        _note_failed(launch, error)
        super().launch_failed(launch, error)
        self._failed = True

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Count it, and release the slot now, so that it is kept back while the worker may write it."""
        super().launches_lost(count, error)
        if self._slot is not None:
            self._slot.release()


class _AwaitedSequence(AwaitedLaunch):
    """A sequence that went the short way, and the task that waits for it."""

    __slots__ = ("slot",)

    def __init__(self, path: LaunchPath, mailbox: Mailbox, slot: Slot | None) -> None:
        super().__init__(path, mailbox)
        self.slot: Slot | None = slot

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error."""
        _note_failed(launch, error)
        super().launch_failed(launch, error)

    def _end(self, kind: Outcome) -> None:
        # A slot of a lost worker is released at once, so that it is kept back while the worker may write it.
        if self.slot is not None and (self._abandoned or self._error is not None):
            self.slot.release()
        super()._end(kind)


class KnownSequences(DevicePart):
    """The known sequences of one device, the newest last."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._known: dict[Hashable, KnownSequence] = {}
        self._learns = not (device.options.checks or device.options.guarded)
        """False if each array has its own guards: arrays between the calls must not be parts of one."""
        self.find: Callable[[Hashable], KnownSequence | None] = self._known.get
        """Return the sequence of a key, if it was made before."""
        self._alike: dict[Hashable, KnownSequence] = {}
        """By the arguments too, but with the layout of each array in its place."""

    def find_alike(self, key: Hashable, question: Question) -> KnownSequence | None:
        """Return the sequence of a verb that was made with arrays of the same layouts, for those of the question."""
        alike = self._alike.get(key)
        if alike is None or any(type(array._storage) is not Storage for array in question[1]):
            return None
        known = alike.of_others(question[1])
        if known is None or known.reads_torn():
            return None
        self._keep(self._known, question[0], known)
        return known

    def learn(
        self,
        question: Question,
        alike: Hashable,
        requests: Sequence[CommandRequest],
        made: Sequence[DeviceArray],
        result: object,
        told: Told | None,
    ) -> None:
        """Keep a verb of these requests and `made` new arrays, if it is one sequence and its results are known."""
        key, arrays = question
        if not self._learns or len(requests) != 1 or type(requests[0]) is not SequenceRequest:
            return
        if any(type(array._storage) is not Storage for array in arrays):
            return  # a variable of a module moves
        each = list(result) if isinstance(result, tuple) else [result]
        results = [_result(one, arrays, made, told) for one in each]
        if _UNKNOWN in results:
            return
        known = KnownSequence(requests[0], arrays, made, results, is_tuple=isinstance(result, tuple), told=told)
        self._keep(self._known, key, known)
        self._keep(self._alike, alike, known)

    def _keep(self, where: dict[Hashable, KnownSequence], key: Hashable, known: KnownSequence) -> None:
        if where.pop(key, None) is None and len(where) >= _MOST_KNOWN:
            del where[next(iter(where))]
        where[key] = known


_UNKNOWN: Final = -1


def _result(result: object, arrays: Sequence[DeviceArray], made: Sequence[DeviceArray], told: Told | None) -> _Result:
    """Return how to have such a result again; `_UNKNOWN` for what is no array, or one of something else."""
    if result is None:
        return None
    for number, each in enumerate(() if told is None else told.into):
        if each is result:
            return _Answered(number)
    if not isinstance(result, DeviceArray):
        return _UNKNOWN
    for number, array in enumerate(arrays):
        if array is result:
            return number
    for number, array in enumerate(made):
        if array._block is result._block:
            offset = result._offset - array._offset
            return _View(number, offset, result.shape, result.strides, result.dtype, result._plain)
    return _UNKNOWN


def _question_of(
    library: Library, plan: Callable[..., object], arguments: Sequence[object], keywords: dict[str, Any]
) -> Question | None:
    """Return the question of a verb. An awaited one may do more than one of a batch, to spare its `out`."""
    form = ASKS[plan](arguments, keywords)
    if form is None:
        return None
    key, arrays = located(form)
    return (library._is_awaited, key), arrays


def _alike(library: Library, plan: Callable[..., object], arguments: Sequence[object], keywords: Any) -> Hashable:
    """Return the key of a verb that has a question, with the layout of each array in its place."""
    parts: list[Hashable] = [library._is_awaited, plan, *keywords]
    for value in (*arguments, *keywords.values()):
        if isinstance(value, DeviceArray):
            parts += (value.shape, value.strides, value.dtype, value.address % _ALIGNMENT, value._covers_block)
        else:
            parts += cast("tuple[Hashable, ...]", (type(value), value))
            parts += map(type, value) if isinstance(value, tuple) else ()
    return tuple(parts)


class SequencedLibrary(Library):
    """The base of the forms of a library whose verbs are sequences."""

    __slots__ = ("_sequences", "_spared", "_staging", "_told")

    def __init__(self, device: DeviceCore, batch: BatchSender | None = None) -> None:
        super().__init__(device, batch)
        self._sequences = device.part(KnownSequences)
        self._staging = device.part(Transfers).staging
        self._told: Told | None = None
        """What the verb tells of its answers on the host."""
        self._spared: DeviceArray | None = None
        """An array that is only written once it is known that the verb does not fail, if it is awaited."""

    def _outgoing(self) -> Outgoing:
        spared = self._spared if self._batch is None else None
        folding = SequenceFolding(self, None if spared is None else spared._block, self._told)
        outgoing, self._requests = Outgoing(self._requests, folding), []
        return outgoing

    async def _ask(self, plan: Callable[..., T], arguments: Sequence[object], keywords: dict[str, Any]) -> T:
        self._device.home.check_task()
        question = _question_of(self, plan, arguments, keywords)
        sequences = self._sequences
        sequence = None if question is None else sequences.find(question[0])
        if question is not None and sequence is not None and not sequence.reads_torn():
            again: Any = await self._repeat(sequence, question[1])
            return cast("T", again)
        await self._begin_verb(plan, arguments, keywords)
        alike = None if question is None else _alike(self, plan, arguments, keywords)
        sequence = None if question is None else sequences.find_alike(alike, question)
        if question is not None and sequence is not None:
            again = await self._repeat(sequence, question[1], first=True)
            return cast("T", again)
        planner = self._planner()
        result = plan(planner, *arguments, **keywords)
        made = await planner._ask_all()
        if question is not None:
            sequences.learn(question, alike, made, planner._made, result, planner._told)
        return result

    def _send(self, plan: Callable[..., T], arguments: Sequence[object], keywords: dict[str, Any]) -> T:
        question = _question_of(self, plan, arguments, keywords)
        batch, sequences = self._batch, self._sequences
        assert batch is not None  # this is its form for batches
        batch.check()
        sequence = None if question is None else sequences.find(question[0])
        if question is not None and sequence is not None and not sequence.reads_torn():
            again: Any = self._send_again(batch, sequence, question[1])
            return cast("T", again)
        alike = None if question is None else _alike(self, plan, arguments, keywords)
        sequence = None if question is None else sequences.find_alike(alike, question)
        if question is not None and sequence is not None:
            again = self._send_again(batch, sequence, question[1], first=True)
            return cast("T", again)
        planner = self._planner()
        result = plan(planner, *arguments, **keywords)
        requests = planner._outgoing().take()
        batch.send_all(requests)
        self._rehearse(requests)
        if question is not None:
            sequences.learn(question, alike, requests, planner._made, result, planner._told)
        return result

    @trio.lowlevel.enable_ki_protection
    async def _repeat(self, sequence: KnownSequence, arrays: tuple[DeviceArray, ...], *, first: bool = False) -> object:
        """Make a known sequence once more, and wait until it is done. Returns the verb's result.

        The `first` with these arrays goes the general way: most arrays that are new are not used again.
        """
        device, launches, size = self._device, self._launches, sequence.sequence.answer_bytes
        await trio.lowlevel.checkpoint_if_cancelled()
        new = sequence.make(launches.memory)
        into = () if sequence.told is None else sequence.told.new()
        staging, actor = self._staging, device.actor_of(sequence.sequence.kind.later)
        path, mailbox = launches.present_path(), actor.mailbox
        may_begin = mailbox.posted == mailbox.taken and actor.current is None and (not size or staging.has_free(size))
        launcher = words_launcher(path, sequence) if path is not None and may_begin and not first else None
        if path is not None and launcher is not None:
            awaited = _AwaitedSequence(path, mailbox, staging.acquire_nowait(size) if size else None)
            words = sequence.words(new, 0 if awaited.slot is None else awaited.slot.place)
            if launcher(sequence, (arrays, new), awaited, new, words):
                await awaited.wait()
                if awaited.slot is not None:
                    error = sequence.fetch(awaited.slot, into)
                    awaited.slot.release()
                    if error is not None:
                        raise error
                return sequence.result(arrays, new, into)
            if awaited.slot is not None:
                awaited.slot.release()
        planner = self._planner()
        planner._requests.append(sequence.again(device, arrays, self._lane, new, into))
        await planner._ask_all()
        return sequence.result(arrays, new, into)

    @trio.lowlevel.enable_ki_protection
    def _send_again(
        self, batch: BatchSender, sequence: KnownSequence, arrays: tuple[DeviceArray, ...], *, first: bool = False
    ) -> object:
        """Send a known sequence once more in a batch. Returns the verb's result. See `_repeat` for the `first`."""
        path, size = batch.path, sequence.sequence.answer_bytes
        new = sequence.make(self._launches.memory)
        into = () if sequence.told is None else sequence.told.new()
        launcher = None if path is None or first else words_launcher(path, sequence)
        if launcher is not None:
            slot = self._staging.acquire_for_batch(size) if size else None
            if slot is not None or not size:
                owner = _BatchSequence(batch.mailbox_of(sequence.sequence.kind), batch.errors, sequence, slot, into)
                words = sequence.words(new, 0 if slot is None else slot.place)
                if launcher(sequence, (arrays, new), owner, new, words):
                    batch.launched = True
                    return sequence.result(arrays, new, into)
                if slot is not None:
                    slot.release()
        batch.send(sequence.again(self._device, arrays, self._lane, new, into))
        return sequence.result(arrays, new, into)
