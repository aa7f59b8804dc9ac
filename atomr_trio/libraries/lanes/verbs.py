"""Lanes and events, for programs that run work side by side.

A lane is a CUDA stream of the worker: its work runs in order, beside the work of other lanes. Work on the same array
is in order whatever its lane, unless a lane was opened with ``ordered=False``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

import trio

from ..._arrays.ownership import own
from ..._generation.core import DeviceCore, DevicePart
from ..._generation.requests import BoundRequest, CommandRequest
from ..._generation.timeline import Command, lane_name
from ..._values.errors import DeviceError, InvalidArgument, fresh
from ..._values.habits import BLOCK, refuse_habits
from ..._values.lane_options import ORDINARY, LaneOptions
from ..._values.state import DeviceState
from ..._values.util import NoPublicConstructor
from ..._wire.protocol import LANE_COMPUTE, LANE_NAMES, LANES, MAX_LANES
from ..._wire.records.event import ELAPSED, MARK, RECORD
from .dropped_events import DroppedEvents
from .short_records import OPERATION, ShortRecord

if TYPE_CHECKING:
    from ..._calls.launching import LaunchPath
    from ..._generation.generation import Generation
    from ..._generation.timeline import LaunchOwner
    from ..._memory.arena import Ticket


class _Record(CommandRequest):
    """The recording of an event. Several tasks may wait for it, so it keeps its outcome."""

    __slots__ = ("_after", "end", "error_of_event", "generation", "ticket")

    def __init__(self, lane: int, number: int, after: Sequence[Ticket] = ()) -> None:
        verb, payload = (RECORD, RECORD.struct.pack(number)) if number else (MARK, b"")
        operation = OPERATION if number else "wait for an event"
        super().__init__(verb, payload, (), lane=lane, operation=operation)
        self._after = after
        self.ticket: int = 0
        self.generation: int = 0
        """The generation that it was published in."""
        self.end: trio.Event = trio.Event()
        self.error_of_event: DeviceError | None = None

    def _publish(self, generation: Generation, requires: Any = ()) -> None:
        command = generation.publish(
            self.lane, self._verb, self._payload, (), self, after=self._after, operation=self.operation
        )
        self.ticket = command.ticket
        self.generation = generation.number

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        self.error_of_event = error
        self.end.set()
        super().command_finished(command, error, value)

    def command_lost(self, command: Command, error: DeviceError) -> None:
        self.error_of_event = error
        self.end.set()
        super().command_lost(command, error)


@final
class Event(metaclass=NoPublicConstructor):
    """A point in the work of a lane, made by `Lane.record`; it belongs to the generation that it was recorded in."""

    __slots__ = ("__weakref__", "_device", "_number", "_record", "generation", "lane")

    lane: Lane
    """The lane that it was recorded in."""
    generation: int
    """The generation that it was recorded in."""

    _made_by = "`lane.record()`"

    def __init__(self, lane: Lane, number: int, record: _Record | ShortRecord, generation: int) -> None:
        self.lane = lane
        self.generation = generation
        self._device = lane._device
        self._number = number
        self._record = record

    def __repr__(self) -> str:
        return f"<Event on {self.lane.name}, {'reached' if self.reached else 'not reached'}>"

    def __del__(self) -> None:
        lane = self.lane
        lane._dropped_events.add(self.generation, self._number, (lane._number, self._record.ticket))

    @property
    def _owner(self) -> DeviceCore:
        return self._device

    @property
    def reached(self) -> bool:
        """True if all work of the lane before it is done."""
        return self._record.end.is_set() and self._record.error_of_event is None

    async def wait(self) -> None:
        """Wait until the event is reached. Raises `ContextLost` if its generation was lost before."""
        self._device.home.check_task()
        await self._record.end.wait()
        if self._record.error_of_event is not None:
            raise fresh(self._record.error_of_event)

    async def elapsed_since(self, earlier: Event) -> float:
        """Wait for both events, and return the seconds from `earlier` to this one on the GPU (``cuEventElapsedTime``).

        Raises `InvalidArgument` for an event of another device or generation, `ContextLost` if the generation is lost.
        """
        self._device.home.check_task()
        own(self._device, earlier, Event, "elapsed_since takes an event")
        if earlier.generation != self.generation:
            raise InvalidArgument(
                f"the earlier event was recorded in generation {earlier.generation}, this one in {self.generation}",
                device=self._device.index,
                generation=self._device.generation,
            )
        await earlier.wait()
        await self.wait()
        payload = ELAPSED.struct.pack(earlier._number, self._number)
        request = BoundRequest(self._device, self.generation, ELAPSED, payload)
        value = await self._device.module_actor.mailbox.ask(request)
        return float(value["milliseconds"]) / 1e3


@final
class Lane(metaclass=NoPublicConstructor):
    """A lane of a device, whose work runs in the order of submission. Made by `Device.lane`."""

    __slots__ = ("__weakref__", "_batches", "_closed", "_device", "_dropped_events", "_number", "_options", "name")

    name: str
    """Its name in statistics and errors."""

    _made_by = "`async with dev.lane()`, or dev.compute_lane"

    def __init__(self, device: DeviceCore, number: int, name: str, options: LaneOptions = ORDINARY) -> None:
        self._device = device
        self._number = number
        self._closed = False
        self._batches = 0
        """The number of open batches that work on it."""
        self.name = name
        self._options = options
        self._dropped_events = device.part(DroppedEvents)

    def __repr__(self) -> str:
        return f"<Lane {self.name}, priority {self.priority}{', closed' if self._closed else ''}>"

    @property
    def _owner(self) -> DeviceCore:
        return self._device

    @property
    def priority(self) -> int:
        """Its priority: a lower number is more urgent (``cuStreamCreateWithPriority``)."""
        return self._options.priority

    @property
    def ordered(self) -> bool:
        """True if its work is in order with the work of other lanes on the same arrays."""
        return self._options.ordered

    def _check(self) -> None:
        self._device.check_running()
        self._check_not_closed()

    def _check_not_closed(self) -> None:
        self._device.check_open()
        if self._closed:
            raise InvalidArgument(f"{self.name} was closed", device=self._device.index)

    @trio.lowlevel.enable_ki_protection
    def record(self) -> Event:
        """Return an event behind all work of the lane so far (``cuEventRecord``). Sends it, and does not wait.

        Raises `trio.WouldBlock` when 512 commands of the lane, those of batches not counted, are unfinished, or the
        device is being rebuilt; `Batch.record` takes more.
        """
        return self._record(self._begin_nowait)

    def _begin_nowait(self, record: CommandRequest) -> None:
        self._device.module_actor.begin_nowait(record, self._device.current)

    def _record(
        self,
        begin: Callable[[CommandRequest], object],
        path: LaunchPath | None = None,
        batch: LaunchOwner | None = None,
    ) -> Event:
        """Return an event of a request that `begin` sends, or that goes a path of a batch."""
        self._check()
        device = self._device
        if device.serving is not None and (path is None or self._dropped_events.are_many):
            device.release_dropped(device.serving)
        number = device.next_number()
        short = None if path is None or batch is None else ShortRecord.sent(path, number, batch)
        if short is not None:
            return Event._create(self, number, short, short.generation)
        record = _Record(self._number, number)
        begin(record)
        return Event._create(self, number, record, device.generation)

    @trio.lowlevel.enable_ki_protection
    def wait_for(self, event: Event) -> None:
        """Delay the lane's work from now on until `event`, of another lane, is reached. Does not wait itself.

        An event of a lost generation is over and delays nothing.

        Raises `InvalidArgument` for anything but an event of this device, `trio.WouldBlock` as `record` does.
        """
        self._check()
        own(self._device, event, Event, "wait_for takes an event")
        if event.generation != self._device.generation or event._record.end.is_set():
            return
        after = ((event.lane._number, event._record.ticket),)
        self._begin_nowait(_Record(self._number, 0, after))

    @trio.lowlevel.enable_ki_protection
    async def synchronize(self) -> None:
        """Wait until all work of the lane so far is done.

        While the device is being rebuilt there is no such work, and this waits for the next generation.

        Raises `ContextLost` if the generation is lost meanwhile, and with it the lane's work;
        `InvalidArgument` once the lane is closed.
        """
        self._device.home.check_task()
        self._check_not_closed()
        device, mark = self._device, _Record(self._number, 0)
        serving = device.current if device.state is DeviceState.RUNNING else None
        await device.module_actor.mailbox.ask(mark)
        if serving is not None and mark.generation != serving.number:
            raise device.lost_error(serving.number, f"synchronize of {self.name}")

    async def __aenter__(self) -> Self:
        self._device.home.check_task()
        if self is self._device.part(Lanes).compute:
            raise InvalidArgument("the compute lane is the device's own: it is never closed", device=self._device.index)
        try:
            await trio.lowlevel.checkpoint()
        except BaseException:  # the block does not begin, so nobody will leave it
            self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take no more work. Submitted work goes on; the stream is destroyed when it is done."""
        self._device.home.check_task()
        self._close()
        if error is None:
            await trio.lowlevel.checkpoint()
        else:  # which a cancellation that comes just now must not replace
            await trio.lowlevel.cancel_shielded_checkpoint()

    def _close(self) -> None:
        self._closed = True
        self._device.part(Lanes).give_up(self)


refuse_habits(Lane, BLOCK)


def check_options(priority: object, ordered: object, lowest: int, highest: int) -> LaneOptions:
    """Return the options of a new lane; raises `InvalidArgument`."""
    if type(priority) is not int or not highest <= priority <= lowest:
        raise InvalidArgument(f"priority is an int from {highest} (most urgent) to {lowest}, not {priority!r}")
    if type(ordered) is not bool:
        raise InvalidArgument(f"ordered is True or False, not {ordered!r}")
    return LaneOptions(priority, ordered)


class Lanes(DevicePart):
    """The lanes of an open device, in all generations."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self.compute: Lane = Lane._create(device, LANE_COMPUTE, LANE_NAMES[LANE_COMPUTE])
        self.opened: dict[int, Lane] = {}
        """The lanes that the program has opened, by number."""
        self.options: dict[int, LaneOptions] = {}
        """The options of those lanes, for every generation."""

    def open(self, priority: int, *, ordered: bool) -> Lane:
        """Open a lane; see `Device.lane`."""
        device = self.device
        options = check_options(priority, ordered, device.info.lowest_priority, device.info.highest_priority)
        for closed in [each for each in self.opened.values() if each._closed]:
            self.give_up(closed)
        free = next((number for number in range(LANES, MAX_LANES) if number not in self.opened), None)
        if free is None:
            raise InvalidArgument(f"{MAX_LANES - LANES} lanes are open, the most: close one first", device=device.index)
        self.options[free] = options
        self.opened[free] = lane = Lane._create(device, free, lane_name(free), options)
        return lane

    def give_up(self, lane: Lane) -> None:
        """Give a lane back if nothing uses it any more; otherwise the next `open` tries again."""
        if lane._batches or self.opened.get(lane._number) is not lane:
            return
        generation = self.device.current
        if generation is not None and generation.timeline.uses(lane._number):
            return
        for holder in self.device.all_generations():
            holder.close_lane(lane._number)
        del self.opened[lane._number]

    def chosen(self, lane: object) -> Lane:
        """Return the lane that a caller gave, the compute lane for None; raises `InvalidArgument` for anything else."""
        if lane is None:
            return self.compute
        chosen = own(self.device, lane, Lane, "expected a lane")
        if chosen._closed:
            raise InvalidArgument(f"{chosen.name} was closed", device=self.device.index)
        return chosen
