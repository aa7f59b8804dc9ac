"""What every layer above the generations knows of an open device.

`DeviceCore` holds what is one per device: the trio run that it belongs to, its actors, the generation in service, the
state of its supervision, and how it ended. The public `Device` is a face over it. Only the supervisor in ``_device``
moves it from one generation to the next. The layers between have state of their own for each device: arrays and their
arena, staging memory, modules, graphs. Each such state is a `DevicePart`, which its own layer finds by its class
(`DeviceCore.part`). So a lower layer needs no name of a higher one, and a library that keeps state for a device adds
nothing here.
"""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol, SupportsIndex, TypeVar, final

import attrs
import trio
from trio.lowlevel import in_trio_task

from .._memory.arena import MAX_CHUNKS
from .._supervision.home import Home
from .._supervision.policy import RestartPolicy, Supervision
from .._values.errors import ContextLost, DeviceClosed, DeviceError, InvalidArgument, fresh
from .._values.events import EventHub
from .._values.info import DeviceInfo
from .._values.state import DeviceState
from .._values.util import known, refuse_to_copy
from .._wire.backends import Backend
from .._wire.protocol import LANE_COMPUTE, Verb
from .actor import Actor
from .generation import Generation
from .group import Group
from .loss import BEING_REBUILT
from .process import WorkerProcess
from .standby import Standbys
from .timeline import ORPHANS_AT_ONCE


class WorkerSource(Protocol):
    """A source of worker processes, which takes them back after a clean end."""

    def take(self, backend: Backend, index: int) -> WorkerProcess:
        """Return a worker process that no device has adopted. Raises `OSError` when the system has no room for one."""

    def give_back(self, process: WorkerProcess) -> None:
        """Take back a worker process that has released everything but its context, and can be adopted again."""


@attrs.frozen(kw_only=True)
class DeviceOptions:
    """The checked arguments of `open_device`; it says what they mean."""

    strict: bool
    """True for ``on_fault="stale"``."""
    hang_timeout: float | None
    close_timeout: float
    memory_limit: int | None
    restart_policy: RestartPolicy
    standby: int
    guarded: bool
    workers: WorkerSource | None
    spin: float
    checks: tuple[str, ...]
    plan_cache: int
    most_chunks: int = MAX_CHUNKS
    """The most chunks of device memory, each of which takes a descriptor of this process."""


class DevicePart:
    """What one layer or library keeps for an open device. The methods are called in turns of its life."""

    def __init__(self, device: DeviceCore) -> None:
        self.device: DeviceCore = device

    @property
    def hurried(self) -> bool:
        """True while the device is needed for something that the start of one more worker would hold up."""
        return False

    @property
    def libraries(self) -> tuple[str, ...]:
        """The folders of the libraries that a new worker will certainly need, and loads while it starts."""
        return ()

    def warm(self, standby: Generation) -> None:
        """Give a new standby what it will need when it takes over."""

    async def restore(self, generation: Generation) -> None:
        """Do in a new generation what must be done before it serves."""

    def settle_in(self, generation: Generation) -> None:
        """Note the generation that goes into service next."""

    def generation_lost(self, number: int) -> None:
        """Forget what a lost generation had. All of its commands are settled."""

    def settle_queued(self, make_error: Callable[[], DeviceError]) -> None:
        """Settle requests that are in no mailbox: the device takes none any more."""

    async def give_back(self) -> None:
        """Give memory back to the system, when the block of the device was left and every worker is gone."""

    def close(self) -> None:
        """Close the descriptors of a device that has ended."""

    def forget(self) -> None:
        """Close the descriptors in a forked child, whose parent goes on to use what they stand for."""


Dropped = Callable[[Generation], None]
"""Makes the worker of a generation release what it holds for an object that was collected, if it holds anything."""

P = TypeVar("P", bound=DevicePart)


@final
class DeviceCore:
    """An open device, as the layers below its public face see it."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_copy(self, protocol)

    def __init__(self, index: int, backend: Backend, options: DeviceOptions) -> None:
        self.index: int = index
        self.backend: Backend = backend
        self.options: DeviceOptions = options
        self.strict: bool = options.strict
        self.face: Any = None
        """The public `Device`."""
        self.group: Group | None = None
        """The devices that were opened with this one, by `open_devices`; None for a device of `open_device`."""
        self.process_id: int = os.getpid()
        self.ended: DeviceError | None = None
        """The error of every request, once the device takes none any more."""
        self.home: Home = Home(self)
        self.supervision: Supervision = Supervision(options.restart_policy, actor_policy=options.restart_policy)
        self.events: EventHub = EventHub(index, self.home)
        self.last_error: str | None = None
        self.actors: tuple[Actor, ...] = ()
        self.recording: list[trio.lowlevel.Task] = []
        """The tasks that record a graph."""
        self.dropped: collections.deque[Dropped] = collections.deque()
        """What workers are to release: noted by finalizers in any thread, told with a command that makes something."""
        self._numbers = itertools.count(1)
        self._parts: dict[type[DevicePart], Any] = {}
        # Generations.
        self.known_info: DeviceInfo | None = None
        self.current: Generation | None = None
        """The newest generation, in service or lost; None before the first and after the last."""
        self.serving_since: float = 0.0
        """When it went into service, by trio's clock."""
        self.changed: trio.Event = trio.Event()
        """Set, and replaced, when anything about the generations changes."""
        self.rebuild_held: trio.Event | None = None
        """If there is one, a rebuild waits for it: tests look at the device meanwhile."""
        self.dying: set[Generation] = set()
        """Lost generations whose workers may still be on the GPU, beside the current one."""
        self.standbys: Standbys = Standbys(options.standby, options.restart_policy, self.events)

    def __repr__(self) -> str:
        return f"<DeviceCore of device {self.index}, {self.state.value}, generation {self.generation}>"

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def info(self) -> DeviceInfo:
        """Facts about the device."""
        return known(self.known_info, "a device that is open has its facts")

    @property
    def state(self) -> DeviceState:
        """The state of the device."""
        return self.supervision.state

    @property
    def generation(self) -> int:
        """The number of the newest generation."""
        return self.supervision.generation

    @property
    def serving(self) -> Generation | None:
        """The generation in service, if there is one."""
        return self.current if self.state is DeviceState.RUNNING else None

    def part(self, kind: type[P]) -> P:
        """Return the part of this class. It is made when it is asked for the first time."""
        found: P | None = self._parts.get(kind)
        if found is None:
            found = self._parts[kind] = kind(self)
        return found

    @property
    def parts(self) -> list[DevicePart]:
        """All parts, in the order in which they were made."""
        return list(self._parts.values())

    # --- actors -------------------------------------------------------------------------------------------------------

    def employ(self, actors: Sequence[Actor]) -> None:
        """Take the actors. The first two are those of memory and of modules, to which most commands belong."""
        self.actors = tuple(actors)
        self.memory_actor: Actor = actors[0]
        self.module_actor: Actor = actors[1]
        self._actor_of = {actor.name: actor for actor in actors}

    def actor(self, name: str) -> Actor:
        """Return the actor of this name."""
        return self._actor_of[name]

    def actor_of(self, verb: Verb) -> Actor:
        """Return the actor that a verb of a batch belongs to."""
        return self._actor_of.get(verb.engine, self.module_actor)

    def next_number(self) -> int:
        """Return a number that no other object of the device has."""
        return next(self._numbers)

    # --- checks -------------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise the error of a closed, failed or forked device, or of a call from another thread or run."""
        if self.ended is not None:
            raise fresh(self.ended)
        if not self.home.here():
            raise self.home.error()

    def check_running(self) -> None:
        """Raise `trio.WouldBlock` unless requests can be taken right now."""
        self.check_open()
        if self.recording and in_trio_task() and trio.lowlevel.current_task() in self.recording:
            raise InvalidArgument("launch_nowait cannot be captured: call launch of the recorder", device=self.index)
        if self.state is not DeviceState.RUNNING:
            raise trio.WouldBlock(BEING_REBUILT)

    @trio.lowlevel.enable_ki_protection
    async def running_generation(self) -> Generation:
        """Wait for a generation in service, and return it."""
        self.home.check_task()
        await trio.lowlevel.checkpoint()
        while self.state is not DeviceState.RUNNING or self.current is None or self.current.refusing:
            self.check_open()
            await self.changed.wait()
        self.check_open()
        return self.current

    def lost_error(self, generation: int, operation: str) -> DeviceError:
        """Return the error of a call that names an object of a lost generation."""
        return ContextLost(
            f"generation {generation} was lost",
            reason=f"generation {generation} was lost",
            device=self.index,
            generation=generation,
            operation=operation,
        )

    # --- generations --------------------------------------------------------------------------------------------------

    def all_generations(self) -> list[Generation]:
        """Return every generation that may still have a worker process."""
        serving = [] if self.current is None else [self.current]
        return [*serving, *self.standbys.generations, *self.dying]

    def announce(self) -> None:
        """Wake every task that waits for a change."""
        changed, self.changed = self.changed, trio.Event()
        changed.set()
        self.standbys.announce()
        if self.group is not None:
            self.group.wake()

    def release_dropped(self, generation: Generation) -> None:
        """Make the workers release what nobody refers to any more, at most `ORPHANS_AT_ONCE` objects at a time.

        They take no room from commands of the program, and wait while the lane that they share is very full.
        """
        if not self.dropped or not generation.admission.has_room_for_batch(LANE_COMPUTE, ORPHANS_AT_ONCE):
            return
        # A lost generation without a successor yet has no worker to tell.
        everybody = {generation, self.current or generation, *self.standbys.generations}
        holders = [holder for holder in everybody if holder.loss is None]
        for _ in range(min(len(self.dropped), ORPHANS_AT_ONCE)):
            drop_in = self.dropped.popleft()
            for holder in holders:
                drop_in(holder)

    # --- the end ------------------------------------------------------------------------------------------------------

    def end_error(self) -> DeviceError:
        """Return a fresh copy of the error of a device that takes no requests any more."""
        return fresh(known(self.ended, "a device that has ended has a reason"))

    def abandon(self) -> None:
        """End the device, whose run has ended before the block was left, by a misuse of trio. It answers no request."""
        self.ended = DeviceClosed(
            "the trio run that opened the device has ended before the block of open_device was left",
            device=self.index,
            generation=self.generation,
            advice="open the device again, by `async with` in the run that uses it",
        )
        if self.state is not DeviceState.CLOSED:
            self.supervision.closed()
        for generation in self.all_generations():
            generation.sender.refuse()
            generation.process.kill()
