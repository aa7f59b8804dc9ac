"""Repeated verbs of several commands: the plan of one is kept for all others of its form.

A verb may need a command before its call: a copy, because the library works in place, or zeros for the part of a new
array that the call leaves out. What is said of a known call holds for each of these commands (``known.py``): its record
has the same form each time, and its words are addresses of the verb's arrays, the new ones too. So a verb is kept as
several known calls, and its repetition writes one ready record for each of them.

All that may stand in the way is looked at before the first record is written. Only the last command has a ticket of its
own; nobody waits for the others. If one of them fails, those behind it have run on what it has not made. So their
arrays are torn, as on the general way, and the error is that of the verb.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

import attrs
import trio

from .._arrays.arrays import DeviceArray, Layout, Storage, layout_of
from .._generation.requests import CallKind, CommandRequest
from .._generation.timeline import Birth, Launch, LaunchOwner, Operand
from .._memory.arena import Block
from .._supervision.mailbox import Mailbox
from .._transfers.memory import tear_halves
from .._values.errors import DeviceError
from .._wire.protocol import Mode, Role
from .._wire.records.calls import WORD
from .._wire.records.memory import COPY, FILL
from .batch_sender import BatchSender, ShortLaunches
from .known import KnownCall, Question, _words
from .launching import AwaitedLaunch, AwaitedLaunches

if TYPE_CHECKING:
    from .._generation.requests import Series

_MOST_PARTS: Final = 8
_MOVES: Final = {COPY: (0, 3 * WORD), FILL: (0,)}
"""Where the payloads of commands on device memory have addresses."""
_KINDS: Final = {verb: CallKind(verb, verb, verb, 0) for verb in _MOVES}


class _Move(CommandRequest):
    """A copy or a fill as a known call sees it."""

    __slots__ = ()

    @property
    def kind(self) -> CallKind:
        return _KINDS[self.verb]

    def addresses(self) -> tuple[tuple[int, int], ...]:
        payload = self.payload
        return tuple((at, int.from_bytes(payload[at : at + WORD], "little")) for at in _MOVES[self.verb])


class _Part(KnownCall):
    """One command of a verb. Its arrays are all of the verb; the new ones, which come last, it does not keep."""

    __slots__ = ("number", "series")

    number: int
    series: KnownSeries

    def operands(self, arrays: Sequence[object]) -> tuple[Operand, ...]:
        """Return its access to these arrays and blocks."""
        given = [(arrays[number], role) for number, role in self.access if number < len(arrays)]
        return tuple([(_block_of(each), role) for each, role in given if each is not None])

    def births(self, lane: int, ticket: int) -> Sequence[Birth]:
        """See `KnownCall.births`: they are those of the first part."""
        first = lane, ticket - self.number
        return [(*first, each) if each else first for each in range(len(self.series.new))]


def _block_of(given: object) -> Block:
    return given if isinstance(given, Block) else cast("DeviceArray", given)._block


@attrs.define(eq=False)
class _Begun:
    """A part as `tear_halves` sees it."""

    operands: Sequence[Operand]
    sent: bool = True


class KnownSeries:
    """The verbs of one form that are several commands."""

    __slots__ = ("__weakref__", "_key", "_place", "access", "made", "new", "parts")

    def __init__(
        self,
        parts: Sequence[_Part],
        made: Sequence[DeviceArray],
        access: Sequence[tuple[int, Role]],
        place: int | tuple[int, ...],
    ) -> None:
        self._key = object()
        self.parts: tuple[KnownCall, ...] = tuple(parts)
        """Its commands."""
        self.made: Sequence[tuple[Layout, object]] = [
            (layout_of(each), each._form or each._find_form()) for each in made
        ]
        """The layouts and forms of its new arrays."""
        given = parts[0].arrays - len(made)
        self.new: range = range(given, given + len(made))
        """The numbers of its new arrays."""
        self.access: tuple[tuple[int, Role], ...] = tuple((number, role) for number, role in access if number < given)
        """The access of all parts to the arrays that it was given."""
        self._place = place
        for number, part in enumerate(parts):
            part.number, part.series = number, self

    @classmethod
    def of(
        cls,
        question: Question,
        requests: Sequence[CommandRequest],
        made: Sequence[DeviceArray],
        result: object,
    ) -> KnownSeries | None:
        """Return what is kept of a verb; None unless only the words of its commands depend on its memory."""
        every = (*question[1], *made)
        place = _place_of(result, every)
        if not 1 <= len(requests) <= _MOST_PARTS or place is None:
            return None
        if any(type(array._storage) is not Storage for array in every):
            return None  # a variable of a module moves
        blocks = [array._block for array in every]
        parts: list[_Part] = []
        roles: dict[int, Role] = {}
        for request in requests:
            part = _part_of(request, every, blocks)
            if part is None:
                return None
            parts.append(part)
            for number, role in part.access:
                before = roles.setdefault(number, role)
                if before is Role.READ and role is not Role.READ:
                    roles[number] = Role.WRITE
        return cls(parts, made, tuple(roles.items()), place)

    def _result(self, every: Sequence[DeviceArray]) -> object:
        place = self._place
        return every[place] if isinstance(place, int) else tuple([every[each] for each in place])

    @trio.lowlevel.enable_ki_protection
    def send(self, batch: BatchSender, arrays: tuple[DeviceArray, ...]) -> object:
        """Send one more in a batch. Returns its result; None, without any effect, if it must go the general way."""
        launcher = batch.launchers.get(self._key)
        if launcher is None:
            launcher = None if batch.path is None or batch.over else batch.path.learn_series(self, batch.memory)
            if launcher is None:
                return None
        every: tuple[DeviceArray, ...] = launcher(self, arrays, batch.owners.get(self._key) or self._owners_in(batch))
        if not every:
            return None
        batch.launched = True
        place = self._place
        return every[place] if type(place) is int else self._result(every)

    def _owners_in(self, batch: BatchSender) -> tuple[ShortLaunches, ...]:
        """Return what receives the outcomes of the parts in a batch."""
        owners: tuple[ShortLaunches, ...] = tuple([batch.owner(part.kind, _BatchParts) for part in self.parts])
        batch.owners[self._key] = owners
        return owners

    @trio.lowlevel.enable_ki_protection
    async def repeat(self, launches: AwaitedLaunches, arrays: tuple[DeviceArray, ...]) -> object:
        """Make one more, and wait until it is done. Returns its result; None if it must go the general way."""
        await trio.lowlevel.checkpoint_if_cancelled()
        device, path = launches.device, launches.present_path()
        actors = [device.actor_of(part.kind.later) for part in self.parts]
        if path is None or any(each.mailbox.posted != each.mailbox.taken or each.current for each in actors):
            return None
        launcher = path.launchers.get(self._key) or path.learn_series(self, launches.memory)
        if launcher is None:
            return None
        errors: list[DeviceError] = []
        awaited = _AwaitedPart(path, actors[-1].mailbox)
        owners: tuple[LaunchOwner, ...] = *(_PartsAhead(each.mailbox, errors) for each in actors[:-1]), awaited
        every: tuple[DeviceArray, ...] = launcher(self, arrays, owners)
        if not every:
            return None
        await awaited.wait()
        if errors:
            raise errors[0]
        return self._result(every)

    def _of(self, thing: object) -> bool:
        return any(part._of(thing) for part in self.parts)

    def note_failed(self, number: int, error: DeviceError, every: Sequence[object]) -> None:
        """Mark what is left half written, or was made of what is missing, when a part has failed."""
        steps = [_Begun(part.operands(every)) for part in self.parts]
        tear_halves(cast("list[CommandRequest | Series]", steps), error, steps[number])


def _part_of(request: CommandRequest, every: Sequence[DeviceArray], blocks: Sequence[Block]) -> _Part | None:
    if type(request) is CommandRequest and request.verb in _MOVES:
        request = _Move(request.verb, request.payload, request.operands, operation=request.operation)
    kind = request.kind
    if kind is None or kind.later.mode is not Mode.ENQUEUES or request.answer is not None or request.slot_bytes:
        return None
    words, roles = _words(request, every), dict(request.operands)
    if words is None or not roles.keys() <= {blocks[number] for number, _ in words.values()}:
        return None  # the record says in another way where something is
    access = tuple((blocks.index(block), role) for block, role in roles.items())
    part = _Part(request, kind, len(every), access, words)
    return part if part.head else None


def _place_of(result: object, every: Sequence[DeviceArray]) -> int | tuple[int, ...] | None:
    """Return which of the arrays the result is, or which its items are; None for anything else."""
    numbers = {id(array): number for number, array in enumerate(every)}
    if type(result) is tuple:
        items = cast("tuple[object, ...]", result)
        found = tuple([numbers[id(each)] for each in items if id(each) in numbers])
        return found if len(found) == len(items) else None
    return numbers.get(id(result))


# --- the ends of parts ------------------------------------------------------------------------------------------------


def _note_failed(launch: Launch, error: DeviceError) -> None:
    part = launch[2]
    assert isinstance(part, _Part)
    part.series.note_failed(part.number, error, launch[3])


class _BatchParts(ShortLaunches):
    """Receives the outcomes of a batch's parts."""

    __slots__ = ()

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error for `flush`, and mark what is left half written."""
        _note_failed(launch, error)
        super().launch_failed(launch, error)


class _PartsAhead:
    """Receives the outcome of a part that others follow. Their task looks at the errors."""

    __slots__ = ("_errors", "_failed", "_mailbox")

    def __init__(self, mailbox: Mailbox, errors: list[DeviceError]) -> None:
        self._mailbox = mailbox
        self._errors = errors
        self._failed = False

    def launches_finished(self, count: int) -> None:
        """Count it for its actor."""
        self._mailbox.count_finished(count, "failed" if self._failed else "ok")

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error, and mark what is left half written."""
        _note_failed(launch, error)
        self._failed = True
        self._errors.append(error)

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Count it. The last part has the error."""
        self._mailbox.count_finished(count, "lost")


class _AwaitedPart(AwaitedLaunch):
    """The last part of a verb, and the task that waits for it."""

    __slots__ = ()

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error, and mark what is left half written."""
        _note_failed(launch, error)
        super().launch_failed(launch, error)
