"""A request that is one command on the device: the ordinary case."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import attrs
import outcome

from .._memory.arena import Block
from .._supervision.mailbox import Request
from .._supervision.states import RequestState
from .._values.errors import DeviceError
from .._wire.protocol import LANE_COMPUTE, Verb
from .timeline import Command, Operand

if TYPE_CHECKING:
    import numpy.typing as npt

    from .core import DeviceCore
    from .generation import Generation


class Usage(Protocol):
    """What calls use, and may be given up when it was not used for long."""

    last_use: int
    """The number of the record, in its generation, of the last call that used it."""


class CallKind:
    """Calls of one kind. The first in a lane takes long: the library makes its handle, or loads kernels.

    `opening` is the verb that only loads the library and makes the handle.
    """

    __slots__ = ("first", "last_use", "later", "number", "opening")

    def __init__(self, first: Verb, later: Verb, opening: Verb, number: int) -> None:
        self.last_use: int = 0
        """The number of the record of the last call, where `usage` is the kind."""
        self.first: Verb = first
        self.later: Verb = later
        self.opening: Verb = opening
        self.number: int = number

    def verb(self, generation: Generation, lane: int) -> Verb:
        """Return the verb of the next call."""
        return self.later if self._in(lane) in generation.called else self.first

    @property
    def usage(self) -> Usage:
        """Where a call that goes the short way notes that it was made."""
        return self

    def precede(self, generation: Generation, lane: int) -> None:
        """Send what the worker must have before the call."""

    def is_of(self, thing: object) -> bool:
        """Return whether its calls end with this object, which is dropped."""
        return False

    def begun(self, generation: Generation, lane: int) -> None:
        """Note that there was a call."""
        generation.called.add(self._in(lane))
        if self.opening not in generation.opened:
            generation.note_opened(self.opening)

    def _in(self, lane: int) -> tuple[str, int, int]:
        return self.later.engine, lane, self.number


@attrs.frozen
class Rehearsal:
    """A call that a standby makes ahead of time, without any effect."""

    verb: Verb
    payload: bytes
    operation: str
    plan: int | None = None
    """The number of the plan that must be defined."""


class CommandRequest(Request):
    """Publishes one record and is settled by its ticket.

    `keep` holds what must not be collected before the command is done: the arrays it works on.
    """

    lane: int  # only requests that are no command have none
    takes_slot: ClassVar[bool] = False
    """True if it may need a slot before it begins."""

    __slots__ = ("_payload", "_verb", "hang_timeout", "keep", "operands", "position", "sent", "siblings")

    def __init__(
        self,
        verb: Verb,
        payload: bytes,
        operands: Sequence[Operand],
        *,
        keep: object = None,
        lane: int = LANE_COMPUTE,
        operation: str | None = None,
        hang_timeout: float | None = None,
    ) -> None:
        super().__init__(operation or f"{verb.engine}.{verb.name}", lane)
        self._verb = verb
        self._payload = payload
        self.operands: Sequence[Operand] = operands
        self.keep: object = keep
        self.hang_timeout: float | None = hang_timeout
        self.sent: bool = False
        """True if it was published, so that it may have an effect; a refused request is not published."""
        self.siblings: Sequence[CommandRequest] = ()
        """All commands of its verb, if they are several."""
        self.position: Callable[[], dict[str, object]] | None = None
        """Returns what its errors have as their `position`."""

    @property
    def verb(self) -> Verb:
        """The verb of the worker."""
        return self._verb

    @property
    def payload(self) -> bytes:
        """The tail of its record."""
        return self._payload

    @property
    def kind(self) -> CallKind | None:
        """Its kind, if it can be sent again unchanged."""
        return None

    def rehearsals(self) -> Iterable[tuple[Hashable, Callable[[], Rehearsal]]]:
        """Return its calls of libraries, for standbys: for each a function that makes the rehearsal, behind its key.

        The key is the same for calls that differ in the addresses of their arrays alone.
        """
        return ()

    @property
    def answer(self) -> npt.NDArray[Any] | None:
        """The array on the host that takes its answer; None if it has none."""
        return None

    @property
    def check(self) -> Callable[[npt.NDArray[Any]], Exception | None] | None:
        """Completes the answer once it is there, or returns the error that it is; None if it is as it comes."""
        return None

    def addresses(self) -> Sequence[tuple[int, int]] | None:
        """Return the places in the payload of all 64-bit words that are addresses, and these.

        The rest of the payload does not depend on where the arrays of the command lie. Returns None if that is not
        certain, because another word points into their memory.
        """
        return None

    def blocks(self) -> Iterator[Block]:
        """Return the memory that it works on."""
        return (block for block, _ in self.operands)

    def accesses(self) -> Sequence[Operand]:
        """Return that memory, and how it is used."""
        return self.operands

    def start(self, generation: Generation) -> None:
        """Publish the record."""
        self._publish(generation)
        self.state = RequestState.STARTED

    def _publish(self, generation: Generation, requires: Iterable[int] = ()) -> None:
        generation.publish(
            self.lane,
            self._verb,
            self._payload,
            self.operands,
            self,
            requires=requires,
            operation=self.operation,
            hang_timeout=self.hang_timeout,
        )
        self.sent = True

    @property
    def decides(self) -> bool:
        """True if its answer may refuse later commands of the same verb."""
        return False

    def is_ready(self, device: DeviceCore) -> bool:
        """Return whether it has everything that it needs before it begins, or could get it now."""
        return True

    @property
    def slot_bytes(self) -> int:
        """The size in bytes of the slot that it still needs; 0 for none."""
        return 0

    def equip(self, acquire: Callable[[int], Any]) -> None:
        """Take that slot by `acquire`, which returns one of a given size. Raises the errors of `acquire`."""

    @property
    def burden(self) -> int:
        """The time for which `take` holds the event loop, as the size in bytes of a plain copy that takes as long."""
        return 0

    def take(self) -> None:
        """Copy the outcome to its target, for a caller that has not waited in its own task."""

    def drop(self) -> None:
        """Drop the outcome: the caller leaves before it has taken it."""
        if self.open:
            self.give_up()

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Settle with the value, or with the error of this command alone."""
        if error is not None and self.position is not None:
            error.position = self.position()
        # An actor that crashed after publishing the command has settled it already.
        if self.open:
            self.settle(outcome.Value(value) if error is None else outcome.Error(error))

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Settle with the loss."""
        if self.position is not None and not command.batched:  # those of batches share one error
            error.position = self.position()
        if self.open:
            self.settle(outcome.Error(error))


class BoundRequest(CommandRequest):
    """A command that names an object of one generation: a later worker has no such object, or another."""

    __slots__ = ("_device", "_generation")

    def __init__(self, device: DeviceCore, generation: int, verb: Verb, payload: bytes) -> None:
        super().__init__(verb, payload, ())
        self._device = device
        self._generation = generation

    def start(self, generation: Generation) -> None:
        """Publish the record in that generation; in a later one settle with the loss."""
        if generation.number == self._generation:
            super().start(generation)
        else:
            self.settle(outcome.Error(self._device.lost_error(self._generation, self.operation)))


class RepeatedRequest(CommandRequest):
    """The repetition of a call that was made before."""

    __slots__ = ("_kind",)

    def __init__(
        self, kind: CallKind, payload: bytes, operands: Sequence[Operand], *, keep: object, lane: int, operation: str
    ) -> None:
        super().__init__(kind.later, payload, operands, keep=keep, lane=lane, operation=operation)
        self._kind = kind

    def start(self, generation: Generation) -> None:
        """Publish the record, as the first call of its kind when it is one."""
        self._kind.precede(generation, self.lane)
        self._verb = self._kind.verb(generation, self.lane)
        super().start(generation)
        self._kind.begun(generation, self.lane)


class Series:
    """Calls of one function that differ only in their arguments. Each is made when it is its turn to be sent.

    So the many calls of a large stack block no task while the verb is planned. Until they are made, the series stands
    for them where a verb's pending writes are looked up. With `folds` they are steps of sequences, like commands that
    are planned one by one.
    """

    __slots__ = ("_make", "folds", "left", "operands", "sent")

    def __init__(
        self, count: int, make: Callable[[int], CommandRequest], operands: Sequence[Operand], *, folds: bool = False
    ) -> None:
        self._make = make
        self.folds: bool = folds
        self.operands: Sequence[Operand] = operands
        self.left: int = count
        """The number of calls that are not made yet."""
        self.sent: bool = False

    def __iter__(self) -> Iterator[CommandRequest]:
        for index in range(self.left):
            self.left -= 1
            yield self._make(index)
