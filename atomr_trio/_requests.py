"""A request that is one command on the device: the ordinary case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import outcome

from ._errors import DeviceError
from ._mailbox import Request, RequestState
from ._memory import Block
from ._timeline import Command, Operand
from .worker.protocol import LANE_COMPUTE, Verb

if TYPE_CHECKING:
    from ._arrays import DeviceArray
    from ._device import Device
    from ._generation import Generation
    from ._staging import Slot


class CallKind(NamedTuple):
    """Calls of one kind, of which the first in a lane takes long: the library makes its handle, or loads kernels."""

    first: Verb
    later: Verb
    opening: Verb
    """Loads the library and makes the handle, and no call."""
    number: int

    def verb(self, generation: Generation, lane: int) -> Verb:
        """What the next one is."""
        return self.later if self._in(lane) in generation.called else self.first

    def begun(self, generation: Generation, lane: int) -> None:
        """Note that there was one."""
        generation.called.add(self._in(lane))
        if self.opening not in generation.opened:
            generation.note_opened(self.opening)

    def _in(self, lane: int) -> tuple[str, int, int]:
        return self.later.engine, lane, self.number


class CommandRequest(Request):
    """Publishes one record and is settled by its ticket.

    `keep` holds what must not be collected before the command is done: the arrays it works on.
    """

    takes_slot: ClassVar[bool] = False
    """Whether it may have to be given a slot before it begins."""

    __slots__ = ("_lane", "_operands", "_payload", "_verb", "hang_timeout", "keep", "sent", "siblings")

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
        self._lane = lane
        self._verb = verb
        self._payload = payload
        self._operands = operands
        self.keep: object = keep
        self.hang_timeout: float | None = hang_timeout
        self.sent: bool = False
        """Whether it was published, so that it may have done something, or will: one that was refused was not."""
        self.siblings: Sequence[CommandRequest] = ()
        """All commands of the verb that this is one of, where those are several."""

    @property
    def verb(self) -> Verb:
        """What it asks of the worker."""
        return self._verb

    @property
    def payload(self) -> bytes:
        """The tail of its record."""
        return self._payload

    @property
    def kind(self) -> CallKind | None:
        """Of which kind it is, for one that can be sent again as it is."""
        return None

    def places_of(self, array: DeviceArray) -> tuple[int, ...]:
        """Where in the payload the 64-bit words are that have to change if it is sent again with another array.

        They hold the address of `array`, and the rest of the payload says nothing of its memory. None if that is not
        certain.
        """
        return ()

    def blocks(self) -> Iterator[Block]:
        """The memory that it works on."""
        return (block for block, _ in self._operands)

    def start(self, generation: Generation) -> None:
        """Publish the record."""
        self._publish(generation)
        self.state = RequestState.STARTED

    def _publish(self, generation: Generation, requires: Iterable[int] = ()) -> None:
        generation.publish(
            self._lane,
            self._verb,
            self._payload,
            self._operands,
            self,
            requires=requires,
            operation=self.operation,
            hang_timeout=self.hang_timeout,
        )
        self.sent = True

    @property
    def decides(self) -> bool:
        """Whether what it answers may refuse what follows in the same verb."""
        return False

    def is_ready(self, device: Device) -> bool:
        """Whether it has all that it needs before it begins, or could get it now."""
        return True

    @property
    def slot_bytes(self) -> int:
        """How large a slot it is still to be given, in bytes; 0 for none."""
        return 0

    def equip(self, acquire: Callable[[int], Slot]) -> None:
        """Take that slot; `acquire` gives one of so many bytes. Raises what that raises."""

    @property
    def burden(self) -> int:
        """How long `take` holds the event loop: as long as a plain copy of so many bytes."""
        return 0

    def take(self) -> None:
        """Bring what came of it where it belongs, for a caller that has not waited in a task of its own."""

    def drop(self) -> None:
        """The caller is leaving before it has taken the outcome."""
        if self.open:
            self.give_up()

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Settle with the value, or with the error of this command alone."""
        # An actor that crashed after it had published the command has settled it already.
        if self.open:
            self.settle(outcome.Value(value) if error is None else outcome.Error(error))

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Settle with the loss."""
        if self.open:
            self.settle(outcome.Error(error))


class BoundRequest(CommandRequest):
    """One that names what only one generation has: a later worker has nothing by that name, or something else."""

    __slots__ = ("_device", "_generation")

    def __init__(self, device: Device, generation: int, verb: Verb, payload: bytes) -> None:
        super().__init__(verb, payload, ())
        self._device = device
        self._generation = generation

    def start(self, generation: Generation) -> None:
        """Publish the record in that generation; in a later one settle with the loss."""
        if generation.number == self._generation:
            super().start(generation)
        else:
            self.settle(outcome.Error(self._device._lost_error(self._generation, self.operation)))


class RepeatedRequest(CommandRequest):
    """A call that was made before, once more."""

    __slots__ = ("_kind",)

    def __init__(
        self, kind: CallKind, payload: bytes, operands: Sequence[Operand], *, keep: object, lane: int, operation: str
    ) -> None:
        super().__init__(kind.later, payload, operands, keep=keep, lane=lane, operation=operation)
        self._kind = kind

    def start(self, generation: Generation) -> None:
        """Publish the record, as the first call of its kind when it is one."""
        self._verb = self._kind.verb(generation, self._lane)
        super().start(generation)
        self._kind.begun(generation, self._lane)
