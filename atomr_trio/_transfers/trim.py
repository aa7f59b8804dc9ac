"""The request that gives unused memory back to the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import outcome

from .._generation.requests import CommandRequest
from .._generation.timeline import Command
from .._supervision.states import RequestState
from .._values.errors import DeviceError
from .._wire.records.memory import RELEASE_CHUNK

if TYPE_CHECKING:
    from .._generation.generation import Generation


class Trim(CommandRequest):
    """A request that releases the empty chunks; its value is their bytes. See `Device.trim`."""

    __slots__ = ("_freed", "_keep")

    def __init__(self, keep: int) -> None:
        super().__init__(RELEASE_CHUNK, b"", (), operation="memory.trim")
        self._keep = keep
        self._freed = 0

    def start(self, generation: Generation) -> None:
        """Publish a release for each chunk."""
        generation.arena.trim(self._keep)
        self.state = RequestState.STARTED
        self._freed = generation.order.release_retired(self)
        if not self._freed:
            self.settle(outcome.Value(0))

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        """Settle the request: the last chunk was released, and the others before it."""
        super().command_finished(command, error, self._freed)
