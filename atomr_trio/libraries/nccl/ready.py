"""The short way of a collective: a call that was made before is a ready record for each member.

Like the launch of a graph, such a call is always on the same memory, so its records have no words that change
(``_calls/repeating.py``). If its outputs are new ones with each call, their addresses are words of the records.

What holds for every collective holds here: all members are checked first, and then all are sent, in one stretch without
a checkpoint. The check is that of a launch. Where it finds anything to wait for, on any member, the call goes the
general way.

A task that waits for a small collective waits for the last member's record, and for all that is done behind the end. So
the most usual call, which finds all blocks in its own lanes, is one generated function for all members (`_sender_of`):
it checks, writes all records, and only then notes what it has sent, while the workers run.

Such a call belongs to an epoch, since the number of the communicator is in its records. It may go this way once each
rank has made calls of its kinds, because the first of each kind may wait for the members.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import attrs
import trio

from ..._arrays.memory import DeviceMemory
from ..._calls.known import NEW, Source
from ..._calls.launching import LaunchPath
from ..._calls.repeating import CallLauncher, call_launcher, fixed_launcher, names_of, names_of_record
from ..._generation.requests import CallKind
from ..._values.util import known
from ..._wire.protocol import MAX_LANES, Role
from ..._wire.ready import WORD, has_room, new_identity, ready_head, with_holes
from .collectives import Collective, add_access
from .records import ADDRESSES_AT, CALL, FIRST_RUN, READY_LIMIT, RUN, ready_limit

if TYPE_CHECKING:
    from ..._arrays.arrays import DeviceArray
    from ..._generation.core import DeviceCore
    from ..._generation.generation import Generation
    from ..._generation.timeline import Launch, Operand
    from ..._memory.arena import Block, Ticket
    from ..._values.errors import DeviceError
    from .collectives import Part
    from .epochs import Epoch
    from .plans import Known

_KIND: Final = CallKind(FIRST_RUN, RUN, RUN, 0)
_ISSUED: Final = operator.attrgetter("issued")


class ReadyPart:
    """The part of one member. It is the owner of a launch, which is told of its end."""

    __slots__ = ("_error", "after", "borrowed", "collective", "failed", "output", "over", "place", "share")

    def __init__(self, collective: Collective, share: _Share) -> None:
        self.collective: Collective = collective
        self.share: _Share = share
        self.output: Block | None = None
        """The block of its new output, if it has one."""
        self.place: Ticket = (0, 0)
        self.after: tuple[int, ...] = ()
        self.over: bool = False
        self.failed: bool = False
        self.borrowed: Sequence[tuple[Block, int]] = ()
        """The blocks that went the short way on other lanes before, each with the lane."""
        self._error: DeviceError | None = None

    @property
    def rank(self) -> int:
        """The member's rank."""
        return self.share.rank

    @property
    def core(self) -> DeviceCore:
        """The member."""
        return self.share.core

    @property
    def operation(self) -> str:
        """The name of the verb."""
        return self.share.operation

    @property
    def roles(self) -> Mapping[Block, Role]:
        """Its access to memory."""
        roles = self.share.roles
        return roles if self.output is None else {**roles, self.output: Role.OVERWRITE}

    @property
    def generation(self) -> Generation:
        """The generation that it was published in."""
        return self.share.path.generation

    def note_published(self) -> None:
        """Note its place: it was the last that its generation was sent."""
        share, path = self.share, self.share.path
        self.borrowed = share.borrowed
        self.place = path.book.index, path.book.issued
        self.after = tuple(map(_ISSUED, path.generation.timeline.lanes))

    @property
    def begun(self) -> bool:
        """True if nothing delays it any more but the other members."""
        lane, ticket = self.place
        return self.over or self.generation.timeline.reached((lane, ticket - 1))

    @property
    def reached(self) -> bool:
        """True if its ticket was reached, and no call of its lane is known to have failed that was not told yet."""
        if self.over:
            return not self.failed
        generation, (lane, _) = self.generation, self.place
        known = generation.timeline.lanes[lane].failures
        return generation.timeline.reached(self.place) and generation.page.failures(lane) == known

    def launches_finished(self, count: int) -> None:
        """Note that its ticket was reached."""
        self.over, self.failed = True, self._error is not None
        if self.borrowed and self._error is None:
            self.share.path.give_back(self.borrowed)
        self.collective.part_ended(self, self._error)

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep its error; `launches_finished` follows."""
        self._error = error

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Note that its generation has ended before its ticket was seen."""
        self.over = self.failed = True
        self.collective.part_ended(self, error)


class _Share:
    """What one member does in each of these calls, as a launch path knows it. It keeps no array alive."""

    __slots__ = (
        *(
            "__weakref__",
            "_blocks",
            "_key",
            "blocks",
            "changes",
            "core",
            "head",
            "kind",
            "launcher",
            "limit",
            "operands",
            "operation",
        ),
        *("access", "borrowed", "new", "path", "payload", "places", "rank", "reads", "roles", "sources", "writes"),
    )

    _engine: ClassVar[str] = RUN.engine

    def __init__(
        self,
        core: DeviceCore,
        rank: int,
        operation: str,
        payload: bytes,
        operands: Sequence[Operand],
        path: LaunchPath,
        new: NewOutput | None = None,
    ) -> None:
        self.core: DeviceCore = core
        self.rank: int = rank
        self.operation: str = operation
        self.kind: CallKind = _KIND
        calls = (len(payload) - RUN.struct.size) // CALL.size
        self.limit: int | None = ready_limit(calls) if calls > 1 else None
        """The most unfinished commands of the lane with which it may be sent, where that is not the path's."""
        self._key: object = object()
        words = {} if new is None else new.words
        self.places: tuple[int, ...] = tuple(words)
        self.sources: tuple[Source, ...] = tuple((NEW, more) for more in words.values())
        self.payload: bytes = with_holes(payload, self.places)
        self.head: bytes = ready_head(new_identity(), self.places)
        self.new: NewOutput | None = new
        self.access: tuple[tuple[int, Role], ...] = () if new is None else new.access
        self.changes: Mapping[int, object] = {}
        self.operands: tuple[Operand, ...] = tuple(operands)
        self.roles: Mapping[Block, Role] = dict(operands)
        self.blocks: tuple[Block, ...] = ()
        """Its launcher need not look at them: `takes` has done that for all members."""
        self._blocks = tuple(self.roles)
        self.reads: tuple[Block, ...] = tuple(block for block, role in operands if role is Role.READ)
        self.writes: tuple[Block, ...] = tuple(block for block, role in operands if role is not Role.READ)
        self.borrowed: Sequence[tuple[Block, int]] = ()
        """The blocks that went the short way on other lanes before the newest call, each with the lane."""
        self.path: LaunchPath = path
        self.launcher: CallLauncher = path.learned(self, fixed_launcher if new is None else call_launcher)

    def bring(self, path: LaunchPath, given: tuple[object, ...]) -> bool:
        """Nothing of it ever changes."""
        return True

    def _of(self, thing: Any) -> bool:
        return False

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        if self.new is None or not arguments:
            return self.operation, self.operands
        return self.operation, (*self.operands, (cast("Block", arguments[-1]), Role.OVERWRITE))

    def takes(self) -> bool:
        """Return whether its record may be sent right now: then its launcher sends it."""
        path = self.path
        if not path.here() or (path.sender.sent >= path.last_record and not path.look_again()):
            return False
        if self.limit is not None and path.sender.room(path.counter, path.book.issued, self.limit) < 1:
            return False
        token, self.borrowed = path.token, ()
        for block in self._blocks:
            if block.fast != token:
                return self._borrow()
        return True

    def _borrow(self) -> bool:
        """The same where not all blocks go the short way on this lane."""
        path, token, borrowed, asks = self.path, self.path.token, [], False
        first = token - path.book.index  # that of lane 0
        for block in self._blocks:
            fast = block.fast
            if first <= fast < first + MAX_LANES:
                if fast != token:
                    borrowed.append((block, fast - first))
            else:
                asks = True
        self.borrowed = borrowed
        if not asks and path.take_over(borrowed):
            return True
        return path.admit(self.operands) and path.has_room(1)


@attrs.frozen
class NewOutput:
    """The output of one member, which is new with each call."""

    shape: tuple[int, ...]
    dtype: Any
    words: Mapping[int, int]
    """The places in the payload that are addresses in it, each with the bytes from its beginning."""
    access: tuple[tuple[int, Role], ...]
    """What the member does with the arrays of the call, by their numbers."""


class ReadyCall:
    """A call in one epoch, as ready records of all members that take part."""

    def __init__(self, epoch: Epoch, operation: str, heard: Sequence[_Share], unheard: Sequence[_Share]) -> None:
        self.epoch: Epoch | None = epoch
        """None once that has ended."""
        self._operation = operation
        self._shares = {True: tuple(heard), False: tuple(unheard)}
        self._spare: tuple[Collective, Sequence[ReadyPart]] | None = None
        """The next request that a task waits for, and its parts: made while the workers do the last one."""
        self._has_new = any(share.new is not None for share in heard)
        self._senders: dict[bool, _Sender] = {}
        """What sends such a request to all members, in the most usual case."""
        if not self._has_new:
            self._senders = {True: _sender_of(epoch, heard), False: _sender_of(epoch, unheard)}
        self._returns_one = False
        """True if its result is one array, where it has new outputs."""

    @classmethod
    def made(
        cls, epoch: Epoch, cores: Sequence[DeviceCore], lanes: Sequence[int], operation: str, calls: Sequence[Known]
    ) -> ReadyCall | None:
        """Return the short way of calls that are made together; None if they have none (yet)."""
        sides: list[list[_Share]] = [[], []]
        paths = epoch.paths(lanes)
        if paths is None:
            return None
        for rank, core in enumerate(cores):
            mine = [share for each in calls for share in each.shares if share.rank == rank]
            payload = RUN.struct.pack(epoch.communicator) + b"".join(call for share in mine for call in share.calls)
            if any(not share.kinds <= epoch.known_kinds[rank] for share in mine) or not has_room(0, len(payload)):
                return None
            roles: dict[Block, Role] = {}
            for block, role in (operand for share in mine for operand in share.operands):
                add_access(roles, block, role)
            if mine:
                for side, path in zip(sides, paths[rank], strict=True):
                    side.append(_Share(core, rank, operation, payload, tuple(roles.items()), path))
        return cls._of(epoch, operation, sides)

    @classmethod
    def made_new(
        cls,
        epoch: Epoch,
        lanes: Sequence[int],
        operation: str,
        parts: Sequence[Part],
        arrays: Sequence[DeviceArray],
        made: DeviceArray | tuple[DeviceArray, ...],
    ) -> ReadyCall | None:
        """Return the short way of a call with new outputs, by one that was made; None if it has none (yet)."""
        sides: list[list[_Share]] = [[], []]
        paths = epoch.paths(lanes)
        outputs = made if isinstance(made, tuple) else (made,)
        of_device = {output._storage.device: output for output in outputs}
        if paths is None:
            return None
        for part in parts:
            payload = RUN.struct.pack(epoch.communicator) + b"".join(part.calls)
            roles, output, new = dict(part.roles), of_device.get(part.core), None
            if output is not None and roles.pop(output._block, None) is not None:
                blocks = [array._block for array in arrays]
                access = tuple((blocks.index(block), role) for block, role in roles.items())
                new = NewOutput(output.shape, output.dtype, _words_in(output, part.calls), access)
            if not part.kinds <= epoch.known_kinds[part.rank]:
                return None
            if not has_room(0 if new is None else len(new.words), len(payload)):
                return None
            for side, path in zip(sides, paths[part.rank], strict=True):
                side.append(_Share(part.core, part.rank, operation, payload, tuple(roles.items()), path, new))
        call = cls._of(epoch, operation, sides)
        if call is not None:
            call._returns_one = not isinstance(made, tuple)
        return call

    @classmethod
    def _of(cls, epoch: Epoch, operation: str, sides: Sequence[Sequence[_Share]]) -> ReadyCall | None:
        if not sides[0]:
            return None
        call = cls(epoch, operation, *sides)
        epoch.calls.add(call)
        return call

    def close(self) -> None:
        """Let go of the generations of an epoch that has ended."""
        self.epoch = None
        self._shares = {True: (), False: ()}
        self._spare = None
        self._senders = {}

    def begin(self, given: tuple[object, ...], *, heard: bool) -> Collective | None:
        """Publish one more such call in its epoch, or return None, with no effect. `given` is kept alive until the end.

        It is None too if a device has ended, or if a task records its calls: the general way knows what to do.
        `heard` says that a task waits for it, and looks for its end itself.
        """
        shares = self._shares[heard]
        send = self._senders.get(heard)
        if send is not None:
            collective, parts = self._spare if heard and self._spare is not None else self._made(shares)
            if send(given, parts):
                epoch = known(self.epoch, "it is not over")
                collective.begin(epoch, parts)
                epoch.end_publishing()
                if heard:
                    self._spare = self._made(shares)
                return collective
            if heard:
                self._spare = collective, parts
        epoch = known(self.epoch, "it is not over")
        for core in epoch.cores:
            if core.ended is not None or core.recording:
                return None
        for share in shares:
            if not share.takes():
                return None
        outputs: list[DeviceArray] = []
        if self._has_new:
            for share in shares:
                if (new := share.new) is not None:
                    output = share.core.part(DeviceMemory).empty(new.shape, new.dtype)
                    if not share.path.is_fresh(output._block):
                        return None
                    outputs.append(output)
        if heard and self._spare is not None:
            (collective, parts), self._spare = self._spare, None
        else:
            collective, parts = self._made(shares)
        collective.begin(epoch, parts)
        try:
            if outputs:
                self._send_new(given, parts, outputs)
                collective.result = outputs[0] if self._returns_one else tuple(outputs)
            else:
                for part in parts:
                    share = part.share
                    if not share.launcher(share, given, part):
                        raise _not_taken(share)
            for part in parts:  # behind all of them: the workers have begun
                part.note_published()
            if heard:
                self._spare = self._made(shares)
        finally:
            epoch.end_publishing()
        return collective

    def _made(self, shares: Sequence[_Share]) -> tuple[Collective, Sequence[ReadyPart]]:
        collective = Collective(self._operation)
        return collective, [ReadyPart(collective, share) for share in shares]

    def _send_new(self, given: tuple[object, ...], parts: Sequence[ReadyPart], outputs: Sequence[DeviceArray]) -> None:
        blocks = iter([output._block for output in outputs])
        for part in parts:
            share, sent = part.share, False
            if share.new is None:
                sent = share.launcher(share, given, part)
            else:
                block = part.output = next(blocks)
                sent = share.launcher(share, (*given, block), part, block)
            if not sent:
                raise _not_taken(share)


_Sender = Callable[[tuple[object, ...], Sequence[ReadyPart]], bool]
"""A function that is given what is kept alive, and the parts. It sends the records of all members and notes them, or
returns false, without any effect."""
_BEGIN: Final = """\
def send(given, parts):
    {parts}, = parts
    if not here():
        return False
    for core in others:
        if core.ended is not None or core.recording:
            return False
"""
_CHECKS: Final = """\
    sent{i} = sender{i}.sent + 1
    if sent{i} > path{i}.last_record{limit} or core{i}.ended is not None or core{i}.recording:
        return False
    for used in blocks{i}:
        if used.fast != token{i}:
            return False
"""
_LIMIT: Final = " or book{i}.issued - words{i}[counter{i}] >= limit{i}"
_RECORD: Final = """\
    ticket{i} = book{i}.issued + 1
    pack_into{i}(slots{i}, (sent{i} - 1 & SLOT_MASK) << SLOT_SHIFT, sent{i}, ticket{i}, head{i}, payload{i})
    sender{i}.sent = words{i}[SENT] = sent{i}
"""
_ANNOUNCEMENT: Final = """\
    announce{i}()
"""
_NOTES: Final = """\
    is_first = not book{i}.launches
    book{i}.launches.append((ticket{i}, part{i}, share{i}, given))
    if is_first and wakes{i}:
        wake{i}()
    book{i}.issued = ticket{i}
    usage{i}.last_use = sent{i}
    part{i}.place = me = book{i}.index, ticket{i}
    for used in writes{i}:
        used.writer = me
        if used.readers:
            used.readers = {{}}
    for used in reads{i}:
        used.reader = me
    part{i}.after = tuple([lane.issued for lane in lanes{i}])
"""


@functools.lru_cache
def _text_of(limited: tuple[bool, ...]) -> CodeType:
    """Return the function for so many members; those with true take only so many unfinished commands."""
    numbers = range(len(limited))
    text = _BEGIN.format(parts=", ".join(f"part{i}" for i in numbers))
    for i in numbers:
        text += _CHECKS.format(i=i, limit=_LIMIT.format(i=i) if limited[i] else "")
    return compile(
        text
        + "".join(step.format(i=i) for step in (_RECORD, _ANNOUNCEMENT, _NOTES) for i in numbers)
        + "    return True\n",
        "<a collective>",
        "exec",
    )


def _sender_of(epoch: Epoch, shares: Sequence[_Share]) -> _Sender:
    """Return the function for the shares of all members, whose memory is always the same.

    Where it returns true no block was borrowed from another lane, so `ReadyPart.borrowed` stays empty.
    """
    taking_part = [share.core for share in shares]
    names: dict[str, Any] = {"others": tuple(core for core in epoch.cores if core not in taking_part)}
    for i, share in enumerate(shares):
        path = share.path
        of_path = names_of(path)
        of_one = {
            **names_of_record(path, share),
            "blocks": tuple(share.roles),
            "core": share.core,
            "counter": path.counter,
            "lanes": path.generation.timeline.lanes,
            "limit": share.limit,
            "reads": share.reads,
            "share": share,
            "writes": share.writes,
        }
        names |= {name: value for name, value in of_path.items() if name.isupper() or name == "here"}
        names |= {f"{name}{i}": value for name, value in (of_path | of_one).items()}
    exec(_text_of(tuple(share.limit is not None for share in shares)), names)
    return cast("_Sender", trio.lowlevel.enable_ki_protection(names["send"]))


def _not_taken(share: _Share) -> AssertionError:
    return AssertionError(f"{share.operation} was checked, and rank {share.rank} does not take it")


def _words_in(output: DeviceArray, calls: Sequence[bytes]) -> dict[int, int]:
    """Return the places in a payload of these calls that are addresses in an array, with the bytes from its start."""
    found = {}
    for number, call in enumerate(calls):
        for at in ADDRESSES_AT:
            (address,) = WORD.unpack_from(call, at)
            if output._block.holds(address):
                found[RUN.struct.size + number * CALL.size + at] = address - output.address
    return found


def paths_of(generation: Generation, lane: int) -> tuple[LaunchPath, LaunchPath] | None:
    """Return the short ways of calls that a task waits for, and of those that nobody waits for."""
    if generation.ring is None or generation.refusing:
        return None
    book = generation.timeline.book(lane)
    book.patient = True
    heard = LaunchPath(generation, book, READY_LIMIT, unsigned=False)
    return heard, LaunchPath(generation, book, READY_LIMIT, unsigned=True, followed=False)
