"""A request that is one command on the device: the ordinary case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import outcome

from ._errors import DeviceError
from ._mailbox import Request, RequestState
from ._timeline import Command, Operand
from .worker.protocol import LANE_COMPUTE, Verb

if TYPE_CHECKING:
    from ._generation import Generation


class CommandRequest(Request):
    """Publishes one record and is settled by its ticket.

    `keep` holds what must not be collected before the command is done: the arrays it works on.
    """

    __slots__ = ("_lane", "_operands", "_payload", "_verb", "keep")

    def __init__(
        self,
        verb: Verb,
        payload: bytes,
        operands: Sequence[Operand],
        *,
        keep: object = None,
        lane: int = LANE_COMPUTE,
        operation: str | None = None,
    ) -> None:
        super().__init__(operation or f"{verb.engine}.{verb.name}", lane)
        self._lane = lane
        self._verb = verb
        self._payload = payload
        self._operands = operands
        self.keep = keep

    def start(self, generation: Generation) -> None:
        """Publish the record."""
        generation.publish(self._lane, self._verb, self._payload, self._operands, self, operation=self.operation)
        self.state = RequestState.STARTED

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Settle with the value, or with the error of this command alone."""
        # An actor that crashed after it had published the command has settled it already.
        if self.open:
            self.settle(outcome.Value(value) if error is None else outcome.Error(error))

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Settle with the loss."""
        if self.open:
            self.settle(outcome.Error(error))
