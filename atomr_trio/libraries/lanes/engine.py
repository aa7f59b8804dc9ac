"""Marks in the order of a lane, and the time between two of them."""

from __future__ import annotations

from ctypes import byref, c_float
from functools import partial
from typing import TYPE_CHECKING, Any

from atomr_cuda.constants.driver import CU_EVENT_DEFAULT

from ..._wire.records.event import DROP, ELAPSED, EVENT, MARK, RECORD
from ..._worker.base.calls import made_ready, no_status
from ..._worker.base.giving_back import GivingBack
from ..._worker.base.lanes import Ready
from ..._worker.base.native_calls import native_call
from ..._worker.base.shared_words import Words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._worker.base.lanes import Command, Lane, RecordWords, WorkerServices


class EventEngine:
    """The calls behind the verbs above."""

    table = EVENT

    def __init__(self, services: WorkerServices) -> None:
        from atomr_cuda import driver

        self._driver = driver
        self._events: dict[int, Any] = {}
        self._give_up = services.give_up
        self._version = Words(1)
        """Where the driver's version goes, which nobody reads."""
        self._giving_back = GivingBack(services.cuda_error)
        self.calls: dict[int, Callable[[Command, Lane], Any]] = {
            MARK.number: self._mark,
            RECORD.number: self._record,
            ELAPSED.number: self._elapsed,
            DROP.number: self._drop,
        }

    def _mark(self, command: Command, lane: Lane) -> None:
        """Do nothing: the lane itself does the work."""

    def hot_call(self, verb: int, payload: bytes, lane: Lane, places: Sequence[int] = ()) -> Ready | None:
        """Return a mark, or a record of an event whose number is a word, ready to be made; see `RepeatingEngine`.

        Native code makes a call in any case, so for a mark it asks for the version of the driver, which does least.
        """
        if verb == RECORD.number and tuple(places) == (0,):
            return made_ready(lambda: None, partial(self._record_again, lane), no_status)
        if verb != MARK.number or payload or places:
            return None
        asked = self._driver.cuDriverGetVersion

        def error_of(status: int) -> Exception:
            error: Exception = asked.library.error(status, asked.symbol)
            return error

        native = partial(native_call, asked, (self._version.address,), 0, self._give_up)
        return Ready(lambda _: 0, error_of, native=native)

    def _record(self, command: Command, lane: Lane) -> None:
        (number,) = RECORD.struct.unpack(command.payload)
        self._record_as(number, lane)

    def _record_again(self, lane: Lane, words: RecordWords) -> int:
        self._record_as(words[0], lane)
        return 0

    def _record_as(self, number: int, lane: Lane) -> None:
        event = self._driver.CUevent()
        self._driver.cuEventCreate(byref(event), CU_EVENT_DEFAULT)
        self._events[number] = event
        self._driver.cuEventRecord(event, lane.stream)

    def _elapsed(self, command: Command, lane: Lane) -> dict[str, float]:
        earlier, later = ELAPSED.struct.unpack(command.payload)
        milliseconds = c_float()
        self._driver.cuEventElapsedTime(byref(milliseconds), self._events[earlier], self._events[later])
        return {"milliseconds": milliseconds.value}

    def _drop(self, command: Command, lane: Lane) -> None:
        events = [self._events.pop(number, None) for (number,) in DROP.struct.iter_unpack(command.payload)]
        destroy = self._driver.cuEventDestroy
        self._giving_back.make([partial(destroy, event) for event in events if event is not None])  # else none was made

    def forget_lane(self, index: int) -> tuple[()]:
        """Nothing here belongs to a lane."""
        return ()

    def close(self) -> None:
        """Destroy every event."""
        self._giving_back.make([partial(self._driver.cuEventDestroy, event) for event in self._events.values()])
        self._events.clear()
