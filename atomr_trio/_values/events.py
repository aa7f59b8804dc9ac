"""The events of a device, for subscribers and for the log.

The supervision publishes; it must never wait for a listener. So each subscriber has its own buffer. A slow subscriber
loses events, and is told how many. This file knows trio's memory channels and nothing of devices or processes.

Events are news, not state: after `EventsDropped` read `dev.generation` and `dev.state` instead of guessing.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Final, Literal, Protocol, Self, final

import attrs
import trio

from .errors import InvalidArgument, in_flight_in_words
from .findings import Finding
from .html import fields_table

__all__ = [
    "ActorRestarted",
    "CompileFinished",
    "CompileStarted",
    "ContextRebuilt",
    "ContextWasLost",
    "CopyProgress",
    "DeviceEvent",
    "DeviceGaveUp",
    "EpochBegan",
    "EpochEnded",
    "EventHub",
    "EventsDropped",
    "MemberEvent",
    "StandbyLost",
    "StandbyReady",
    "Subscription",
    "WorkerReaped",
]

logger: Final = logging.getLogger("atomr_trio.supervision")


@attrs.frozen(kw_only=True)
class DeviceEvent:
    """The base class of all events. You receive one of its subclasses."""

    def _repr_html_(self) -> str:
        """Return a table of the fields, for a notebook."""
        return fields_table(self)


@final
@attrs.frozen(kw_only=True)
class ContextWasLost(DeviceEvent):
    """A generation was lost. `ContextRebuilt` or `DeviceGaveUp` follows."""

    generation: int
    """The generation that was lost."""

    reason: str
    """The cause, in words."""

    status: int | None
    """The status code that the driver reported; None when the worker was killed, exited or hung."""

    reported_by: str
    """The source of the report: a call of the driver, the operating system, or a task that watches the worker."""

    in_flight: tuple[str, ...]
    """The requests that were started and not finished. One of them is the likely cause, whichever reported it."""

    actors: tuple[str, ...]
    """The libraries that those belong to."""

    findings: tuple[Finding, ...] = ()
    """The simulator's findings about the kernel, if the device was opened with `check`."""


@final
@attrs.frozen(kw_only=True)
class ContextRebuilt(DeviceEvent):
    """The next generation is up and takes requests."""

    generation: int
    """The number of the new generation."""

    seconds: float
    """Time from noticing the loss to taking requests again, in seconds."""

    by_standby: bool
    """True if a standby took over, False if a worker had to be started."""


@final
@attrs.frozen(kw_only=True)
class WorkerReaped(DeviceEvent):
    """The worker of a lost generation is gone for good: memory that it was writing is free to be used again."""

    generation: int
    """The generation that was lost."""

    seconds: float
    """Time from noticing the loss, in seconds."""


@final
@attrs.frozen(kw_only=True)
class StandbyReady(DeviceEvent):
    """A standby worker is ready to take over."""

    seconds: float
    """Time from starting it, in seconds."""

    standbys: int
    """The number of standbys that are ready now."""


@final
@attrs.frozen(kw_only=True)
class StandbyLost(DeviceEvent):
    """A standby worker could not be started, or ended while it stood by. Another is tried."""

    reason: str
    """The cause, in words."""


@final
@attrs.frozen(kw_only=True)
class ActorRestarted(DeviceEvent):
    """A library actor failed with an internal error and was started again, in the same generation."""

    actor: str
    """The name of the actor, for example "blas"."""

    error: BaseException
    """The internal error, with its traceback. Please report it."""


@final
@attrs.frozen(kw_only=True)
class CopyProgress(DeviceEvent):
    """A copy between the host and the device takes longer than a second. Published at most twice a second."""

    bytes_done: int
    """Bytes that have arrived."""

    bytes_total: int
    """Bytes of the whole copy."""

    direction: Literal["to device", "to host"]
    """The direction of the copy."""


@final
@attrs.frozen(kw_only=True)
class CompileStarted(DeviceEvent):
    """A program was requested. `CompileFinished` follows."""

    program: str
    """The name of the source: `NvrtcOptions.name`."""

    target: str
    """The target of the compilation: "compute_80", "sm_90"."""


@final
@attrs.frozen(kw_only=True)
class CompileFinished(DeviceEvent):
    """The program is ready, or the compilation failed."""

    program: str
    """The name of the source: `NvrtcOptions.name`."""

    target: str
    """The target of the compilation."""

    seconds: float
    """Time since the request, in seconds, with the wait for a thread."""

    cached: Literal["memory", "disk"] | None
    """The cache that had it; None when NVRTC compiled it, for this request or for one that it joined."""

    error: str | None
    """The error, or "cancelled" when no task waits for it any more; None when there is a program."""


@final
@attrs.frozen(kw_only=True)
class DeviceGaveUp(DeviceEvent):
    """The supervision gave up; the block of `open_device` raises `DeviceFailed`. The last event."""

    reason: str
    """The cause, in words."""


@final
@attrs.frozen(kw_only=True)
class EventsDropped(DeviceEvent):
    """The subscriber was too slow: events between the previous and the next one were dropped."""

    count: int
    """The number of dropped events."""


@final
@attrs.frozen(kw_only=True)
class EpochBegan(DeviceEvent):
    """A world takes collectives, as `Devices.events` gives it: all of its members have made a communicator."""

    world: str
    """The world, by its members."""

    epoch: int
    """The number of the epoch. The first is 1."""

    seconds: float
    """Time since the last epoch ended, or since the world was asked for, in seconds."""

    members_seconds: float
    """The part of it until every member had a generation in service."""


@final
@attrs.frozen(kw_only=True)
class EpochEnded(DeviceEvent):
    """An epoch of a world has ended, as `Devices.events` gives it. `EpochBegan` follows, unless the world has ended."""

    world: str
    """The world, by its members."""

    epoch: int
    """The number of the epoch."""

    causes: Mapping[int, Exception]
    """What has ended it, by the rank of a member; empty if the world was closed."""

    lost: int
    """The number of collectives that raise `WorldLost`."""


@final
@attrs.frozen(kw_only=True)
class MemberEvent(DeviceEvent):
    """An event of one device of a group, as `Devices.events` gives it."""

    device: int
    """`Device.index`."""

    event: DeviceEvent
    """The event, as `Device.events` gives it."""


_LOG: Final[Mapping[type[DeviceEvent], tuple[int, str]]] = MappingProxyType(
    {
        ContextWasLost: (
            logging.ERROR,
            "device %(device)s lost generation %(generation)s: %(reason)s"
            " (reported by %(reported_by)s; in flight: %(told)s)",
        ),
        ContextRebuilt: (logging.INFO, "device %(device)s runs generation %(generation)s after %(seconds).3f s"),
        WorkerReaped: (logging.INFO, "device %(device)s reaped generation %(generation)s after %(seconds).3f s"),
        StandbyReady: (logging.INFO, "device %(device)s has %(standbys)s standby ready after %(seconds).3f s"),
        StandbyLost: (logging.WARNING, "device %(device)s lost a standby: %(reason)s"),
        ActorRestarted: (logging.ERROR, "device %(device)s restarted actor %(actor)s: %(error)r"),
        CopyProgress: (
            logging.DEBUG,
            "device %(device)s has copied %(bytes_done)s of %(bytes_total)s bytes %(direction)s",
        ),
        CompileStarted: (logging.DEBUG, "device %(device)s compiles %(program)s for %(target)s"),
        CompileFinished: (
            logging.DEBUG,
            "device %(device)s has %(program)s for %(target)s after %(seconds).3f s"
            " (cached: %(cached)s, error: %(error)s)",
        ),
        DeviceGaveUp: (logging.ERROR, "device %(device)s is given up: %(reason)s"),
        EpochBegan: (
            logging.INFO,
            "%(world)s: epoch %(epoch)s after %(seconds).3f s, of which %(members_seconds).3f s for its members",
        ),
        EpochEnded: (
            logging.INFO,
            "%(world)s: epoch %(epoch)s has ended, and with it %(lost)s collectives (%(causes)r)",
        ),
    }
)


def _log(device: int | None, event: DeviceEvent) -> None:
    """Write an event to the log, with its fields as attributes of the record."""
    level, text = _LOG.get(type(event), (logging.INFO, "device %(device)s: %(event)r"))
    if not logger.isEnabledFor(level):
        return
    fields = {"device": device, **attrs.asdict(event, recurse=False)}
    error = event.error if isinstance(event, ActorRestarted) else None
    shown = {**fields, "event": event}
    if isinstance(event, ContextWasLost):
        shown["told"] = in_flight_in_words(event.in_flight)
    logger.log(level, text, shown, extra=fields, exc_info=error)


class Home(Protocol):
    """The thread and trio run of the publisher. Refuses listeners from elsewhere."""

    def check_thread(self) -> None:
        """Raise in another thread."""

    def check_task(self) -> None:
        """Raise unless a task of the publisher's trio run is calling."""


class _Anywhere:
    """Accepts every caller."""

    def check_thread(self) -> None:
        """Raise nothing."""

    def check_task(self) -> None:
        """Raise nothing."""


_ANYWHERE: Final = _Anywhere()


@final
class Subscription:
    """One listener: a context manager that is an async iterator over events while its block runs.

    Both `with` and `async with` work. Entering the latter is a checkpoint, and so is the iteration; leaving is none.
    Made by `Device.events` and `Devices.events`.
    """

    def __init__(self, hub: "EventHub", buffer: int, home: Home) -> None:
        self._hub = hub
        self._home = home
        self._buffer = buffer
        self._send: trio.MemorySendChannel[DeviceEvent]
        self._receive: trio.MemoryReceiveChannel[DeviceEvent]
        self._send, self._receive = trio.open_memory_channel(buffer)
        self._dropped = 0

    def __repr__(self) -> str:
        return f"<Subscription: {self._waiting()} of {self._buffer} waiting, {self._dropped} dropped>"

    def __enter__(self) -> Self:
        self._home.check_thread()
        self._hub._add(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._home.check_thread()
        self._hub._remove(self)
        self._end()
        self._receive.close()
        self._dropped = 0

    async def __aenter__(self) -> Self:
        self._home.check_task()
        await trio.lowlevel.checkpoint()
        return self.__enter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._home.check_task()
        self.__exit__(exc_type, exc_value, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> DeviceEvent:
        self._home.check_task()
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._dropped and self._waiting() == 0:
            event = self._take_dropped()
            await trio.lowlevel.cancel_shielded_checkpoint()
            return event
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def _offer(self, event: DeviceEvent) -> None:
        """Put an event into the buffer, or count it as dropped. Never waits."""
        # While a count is owed, nothing may overtake it, or the gap would be reported in the wrong place. The count is
        # queued together with the event that follows, so that counts alone never fill the buffer of a slow listener.
        # A listener that has emptied its buffer takes the count by itself.
        if self._dropped:
            if self._buffer - self._waiting() < 2:
                self._dropped += 1
                return
            self._send.send_nowait(self._take_dropped())
        try:
            self._send.send_nowait(event)
        except trio.WouldBlock:
            self._dropped += 1

    def _waiting(self) -> int:
        return self._receive.statistics().current_buffer_used

    def _take_waiting(self) -> list[DeviceEvent]:
        """Return the events that wait in the buffer. In any thread, and after the device's end too; never waits."""
        taken: list[DeviceEvent] = []
        with contextlib.suppress(trio.WouldBlock, trio.EndOfChannel):
            while True:
                taken.append(self._receive.receive_nowait())
        return taken

    def _take_dropped(self) -> EventsDropped:
        count, self._dropped = self._dropped, 0
        return EventsDropped(count=count)

    def _end(self) -> None:
        self._send.close()


@final
class EventHub:
    """The hub of one device's events: its supervision publishes here, and listeners subscribe here.

    A group has one too, to which the hubs of its devices forward what they publish and log; it logs its own.
    """

    def __init__(self, device: int | None = None, home: Home = _ANYWHERE) -> None:
        self._device = device
        self.forward: Callable[[DeviceEvent], None] | None = None
        """Given every event too, after the subscribers."""
        self._home = home
        self._subscriptions: dict[Subscription, None] = {}
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<EventHub of device {self._device}: {state}, {len(self._subscriptions)} subscribers>"

    def subscribe(self, buffer: int = 64) -> Subscription:
        """Return a context manager that gives an async iterator over the events while its block runs.

        At most `buffer` events wait; more are dropped and reported as one `EventsDropped`. The iterator ends when the
        hub is closed, at once when it already is.
        """
        if type(buffer) is not int or buffer < 1:
            raise InvalidArgument(f"buffer is an int of 1 or more, not {buffer!r}", device=self._device)
        self._home.check_thread()
        return Subscription(self, buffer, self._home)

    def publish(self, event: DeviceEvent) -> None:
        """Log an event and give it to every subscriber. Synchronous, never waits; ignored once the hub is closed."""
        if self._closed:
            return
        if not isinstance(event, MemberEvent):
            _log(self._device, event)
        for subscription in self._subscriptions:
            subscription._offer(event)
        if self.forward is not None:
            self.forward(event)

    def close(self) -> None:
        """End every iterator, after what its buffer holds. Closing twice is harmless."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription._end()
        self._subscriptions.clear()

    def _add(self, subscription: Subscription) -> None:
        if self._closed:
            subscription._end()
        else:
            self._subscriptions[subscription] = None

    def _remove(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)
