"""The recording of an event in a batch, by the short way: a ready record whose word is the event's number.

It has a ticket of its own, because others may wait for it. See ``_calls/launching.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import trio

from ..._calls.repeating import signed_words_launcher
from ..._generation.requests import CallKind
from ..._wire.ready import new_identity, ready_head
from ..._wire.records.event import RECORD

if TYPE_CHECKING:
    from ..._calls.launching import LaunchPath
    from ..._generation.timeline import Launch, LaunchOwner, Operand
    from ..._values.errors import DeviceError

OPERATION: Final = "record of an event"


class _Recording:
    """All recordings are this one call, as a launch path knows it: on no memory."""

    _engine: ClassVar[str] = RECORD.engine

    def __init__(self) -> None:
        self.kind: CallKind = CallKind(RECORD, RECORD, RECORD, 0)
        self.payload: bytes = bytes(RECORD.struct.size)
        self.places: tuple[int, ...] = (0,)
        self.head: bytes = ready_head(new_identity(), self.places)
        self._key: object = object()

    def _of(self, thing: Any) -> bool:
        return False

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        return OPERATION, ()


_RECORDING: Final = _Recording()


class ShortRecord:
    """A recording that was sent. It keeps its outcome, because several tasks may wait for it."""

    __slots__ = ("_batch", "end", "error_of_event", "generation", "ticket")

    def __init__(self, path: LaunchPath, batch: LaunchOwner) -> None:
        self._batch = batch
        self.ticket: int = 0
        self.generation: int = path.generation.number
        """The generation that it was sent in."""
        self.end: trio.Event = trio.Event()
        self.error_of_event: DeviceError | None = None

    @classmethod
    def sent(cls, path: LaunchPath, number: int, batch: LaunchOwner) -> ShortRecord | None:
        """Record the event of this number, and tell `batch` of the outcome too; None if it must go the general way.

        `path` is one of calls that have tickets of their own.
        """
        if path.generation.refusing or not path.book.open:  # the first command of a lane opens it
            return None
        record = cls(path, batch)
        launcher = path.launchers.get(_RECORDING._key) or path.learned(_RECORDING, signed_words_launcher)
        if not launcher(_RECORDING, (), record, None, 0, (number,)):
            return None
        record.ticket = path.book.issued
        path.generation.settler.wake()
        return record

    def launches_finished(self, count: int) -> None:
        """Tell those who wait: it was recorded, or failed alone."""
        self.end.set()
        self._batch.launches_finished(count)

    def launch_failed(self, launch: Launch, error: DeviceError) -> None:
        """Keep the error; `launches_finished` follows."""
        self.error_of_event = error
        self._batch.launch_failed(launch, error)

    def launches_lost(self, count: int, error: DeviceError) -> None:
        """Keep the error, and tell those who wait: the generation was lost before it was seen to be recorded."""
        self.error_of_event = error
        self.end.set()
        self._batch.launches_lost(count, error)
