"""A group of devices under one supervisor: the work of `open_devices`, and `Devices`, what its block yields.

Every member is an ordinary device, with a supervisor, a worker and a budget of its own. `GroupSupervisor` stands beside
those supervisors. It is told of losses and failures, has the pure state machine of ``_supervision/groups.py`` decide,
and carries out what that orders: restarts of other members, and the end of the block.

The block raises what that of `open_device` raises. The `DeviceFailed` that leaves it is that of the member whose
failure ended the group.
"""

from __future__ import annotations

import abc
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, final, overload

import attrs
import trio

from .._arrays.arrays import DeviceArray
from .._arrays.memory import DeviceMemory
from .._generation.core import DeviceCore
from .._generation.group import Group
from .._generation.loss import Loss, LossKind
from .._generation.process import WorkerProcess
from .._memory.arena import MAX_CHUNKS
from .._supervision.groups import (
    ENDS,
    STRATEGIES,
    EndGroup,
    GroupSupervision,
    MemberState,
    OnDeviceFailed,
    RestartOthers,
    Strategy,
    default_policy,
)
from .._supervision.home import check_can_open
from .._supervision.policy import GiveUp, RestartPolicy
from .._values.errors import DeviceClosed, DeviceFailed, InvalidArgument, OutOfDeviceMemory, fresh
from .._values.events import DeviceEvent, EventHub, MemberEvent, Subscription
from .._values.html import table
from .._values.placement import DeviceSnapshot, LeastLoaded, Placement, choose
from .._values.statistics import GroupStatistics
from .._values.util import NoPublicConstructor, shown
from .._wire.limits import chunks_within_limit, raise_descriptor_limit
from .device import Device
from .lifetime import OpenedDevice, block_of, checked_options, raise_plain
from .mapping import Item, Result, Spread
from .naming import Named, check_names, indices_of
from .peer_check import check_access
from .reservation import Reservation

if TYPE_CHECKING:
    from ..libraries.nccl.world import World

STRATEGIST: Final = "the strategy of the group"
"""The reporter of a restart that the group has ordered."""
_MORE_DESCRIPTORS: Final = "raise the hard limit (`ulimit -Hn 65536`), or open fewer devices or standbys"


class GroupSupervisor:
    """Carries out what the state machine of a group decides."""

    def __init__(self, opened: Sequence[OpenedDevice], machine: GroupSupervision, strategy: Strategy) -> None:
        self._opened = tuple(opened)
        self.strategy: Strategy = strategy
        self.machine: GroupSupervision = machine
        self.body_scope: trio.CancelScope = trio.CancelScope()
        """The scope of the body of the block."""
        self.failure: Exception | None = None
        """The error that the block raises, if the group was ended by its supervision."""
        self._places = {each.core: place for place, each in enumerate(self._opened)}
        for place, each in enumerate(self._opened):
            each.supervisor.group = self
            each.ending.told = functools.partial(self._failed, place)

    def __repr__(self) -> str:
        return f"<GroupSupervisor: {self.machine!r}>"

    def lost(self, core: DeviceCore, loss: Loss, *, free: bool) -> GiveUp | None:
        """Handle a member's loss. Returns `GiveUp` if the budget of the group is spent."""
        decision = self.machine.lost(self._places[core], trio.current_time(), loss.reason, free=free)
        if isinstance(decision, RestartOthers):
            for place in decision.members:
                self._restart(self._opened[place].core, core, loss)
        return decision if isinstance(decision, GiveUp) else None

    def _restart(self, other: DeviceCore, lost: DeviceCore, loss: Loss) -> None:
        reason = f"restarted by {self.strategy}, because device {lost.index} was lost: {loss.reason}"
        if other.current is not None:
            other.current.lose(Loss(LossKind.GROUP, reason, reported_by=STRATEGIST))

    def start_failed(self, core: DeviceCore, reason: str) -> GiveUp | None:
        """Count a failed start of a member. Returns `GiveUp` if the budget of the group is spent."""
        decision = self.machine.start_failed(self._places[core], trio.current_time(), reason)
        return decision if isinstance(decision, GiveUp) else None

    def started(self, core: DeviceCore) -> None:
        """Note that a member's next generation is in service."""
        self.machine.started(self._places[core])

    def _failed(self, place: int) -> None:
        """End the block, or only the member, which has failed."""
        member = self._opened[place]
        if self.machine.states[place] is MemberState.FAILED:  # a defect may follow
            return
        decision = self.machine.failed(place)
        if isinstance(decision, EndGroup) or not isinstance(member.ending.failure, DeviceFailed):
            self.failure = self.failure or member.ending.failure
            self.body_scope.cancel(reason=f"device {member.core.index} of the group failed: {member.ending.failure}")
        else:
            member.leaves_early = True


class _DevicesType(NoPublicConstructor, abc.ABCMeta):
    """The metaclass of a sequence that only this library makes."""


@final
class Devices(Sequence[Device], metaclass=_DevicesType):
    """The devices of a group, in the order in which they were named. Made by `open_devices`.

    A device that has failed keeps its place, and `devices[i]` still returns it; `alive` leaves it out.
    Every method may raise `OutsideRun`, and those that pick a device raise `DeviceClosed` or `DeviceFailed` once no
    device of the group takes requests.
    """

    _made_by = "`async with atomr_trio.open_devices()`"

    def __init__(self, devices: Sequence[Device], group: Group, supervisor: GroupSupervisor, events: EventHub) -> None:
        self._devices = tuple(devices)
        self._group = group
        self._supervisor = supervisor
        self._events = events
        self._home = group.members[0].home
        self._last: int | None = None

    def __repr__(self) -> str:
        states = ", ".join(f"{each.index} {each.state.value}" for each in self._devices)
        return f"<Devices {states}; {self._supervisor.strategy}{', peers' if self._group.peers else ''}>"

    def _repr_html_(self) -> str:
        """Return the tables of the devices, for a notebook."""
        return table(f"Devices, {self._supervisor.strategy}", [(str(each.index), each) for each in self._devices])

    # --- the sequence -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of devices, failed ones included."""
        return len(self._devices)

    @overload
    def __getitem__(self, place: int) -> Device: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Device, ...]: ...

    def __getitem__(self, place: int | slice) -> Device | tuple[Device, ...]:
        """Return the device at a place from 0 on, or those of a slice. The place is not the index of the device.

        Raises `IndexError` for a place that the group does not have.
        """
        return self._devices[place]

    @property
    def alive(self) -> tuple[Device, ...]:
        """The devices that take requests: all of them, less those that have failed or were closed."""
        return tuple(each for each in self._devices if each._core.ended is None)

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def strategy(self) -> Strategy:
        """The strategy, as given to `open_devices`."""
        return self._supervisor.strategy

    @property
    def peers(self) -> bool:
        """True if kernels of one device may use arrays of another, as given to `open_devices`."""
        return self._group.peers

    def events(self, *, buffer: int = 64) -> Subscription:
        """Return the events of all devices, as `Device.events` does for one. Each of these comes as a `MemberEvent`.

        Worlds tell of their epochs, by `EpochBegan` and `EpochEnded`.

        A subscriber that is more than `buffer` events behind loses the newest, and gets `EventsDropped`.

        Raises `InvalidArgument` for a buffer that is not an int of at least 1.
        """
        return self._events.subscribe(buffer)

    @trio.lowlevel.enable_ki_protection
    def statistics(self) -> GroupStatistics:
        """Return the present values of the counters of all devices, and of the group."""
        self._home.check_thread()
        machine = self._supervisor.machine
        states = zip(self._devices, machine.states, strict=True)
        return GroupStatistics(
            devices=(each.statistics() for each in self._devices),
            failed=tuple(each.index for each, state in states if state is MemberState.FAILED),
            restarts_left=machine.restarts_left(trio.current_time()),
        )

    # --- placement ----------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    def pick(
        self,
        policy: Placement | None = None,
        *,
        min_free_bytes: int = 0,
        min_compute_capability: tuple[int, int] = (0, 0),
        near: DeviceArray | Device | None = None,
    ) -> Device:
        """Return the device to use next. Asks no worker: it is a function of what this process knows anyway.

        - `policy`: `RoundRobin()`, `LeastLoaded()`, `MostFree()`, or another `Placement`; by default `LeastLoaded()`.
        - `min_free_bytes`: bytes that arrays must still be able to take on the device, by its `memory_limit`.
        - `min_compute_capability`: the least compute capability, major and minor.
        - `near`: an array of the group, of any shape and dtype, whose device goes before all others if it runs and has
          what is asked for; or that device.

        A device that is being rebuilt is picked only if no other one has what is asked for: its requests wait.
        A choice is not a promise: another task may take the memory. `reserve` keeps it.

        Raises `OutOfDeviceMemory` if no device has so much memory left, `InvalidArgument` if none has the capability,
        or for arguments that are not valid.
        """
        self._home.check_thread()
        place = self._check_pick(policy, min_free_bytes, min_compute_capability, near)
        snapshots = [self._snapshot(place) for place, each in enumerate(self._devices) if each._core.ended is None]
        if not snapshots:
            raise self._end_error()
        chosen = choose(
            LeastLoaded() if policy is None else policy,
            snapshots,
            self._last,
            min_free_bytes=min_free_bytes,
            min_compute_capability=min_compute_capability,
            near=place,
        )
        if chosen is None:
            raise self._none_fits(snapshots, min_free_bytes, min_compute_capability)
        self._last = chosen.position
        return self._devices[chosen.position]

    def _check_pick(self, policy: object, free: object, capability: object, near: object) -> int | None:
        """Check the arguments of `pick`. Returns the place of the device that is near, if one was named."""
        if policy is not None and not (isinstance(policy, Placement) and not isinstance(policy, type)):
            raise InvalidArgument(f"policy is a Placement, such as LeastLoaded(), not {shown(policy)}")
        if type(free) is not int or free < 0:
            raise InvalidArgument(f"min_free_bytes is a number of bytes, 0 or more, not {shown(free)}")
        if not isinstance(capability, tuple) or [type(part) for part in capability] != [int, int]:
            raise InvalidArgument(f"min_compute_capability is a tuple such as (9, 0), not {shown(capability)}")
        if near is None:
            return None
        device = near.device if isinstance(near, DeviceArray) else near
        for place, each in enumerate(self._devices):
            if each is device:
                return place
        raise InvalidArgument(f"near is an array or a device of {self._group.name}, not {shown(near)}")

    def _snapshot(self, place: int) -> DeviceSnapshot:
        device = self._devices[place]
        core = device._core
        books = [] if core.current is None else core.current.timeline.lanes
        return DeviceSnapshot(
            position=place,
            index=core.index,
            state=core.state,
            free_bytes=core.part(DeviceMemory).arena.available,
            unfinished=sum(book.unfinished for book in books) + sum(actor.mailbox.queued for actor in core.actors),
            compute_capability=core.info.capability,
        )

    def _none_fits(
        self, snapshots: Sequence[DeviceSnapshot], free: int, capability: tuple[int, int]
    ) -> OutOfDeviceMemory | InvalidArgument:
        able = [each for each in snapshots if each.compute_capability >= capability]
        if able:
            have = ", ".join(f"device {each.index} ({self._names[each.index]}) {each.free_bytes:,}" for each in able)
            return OutOfDeviceMemory(
                f"no device has {free:,} bytes left for arrays: {have}",
                operation="pick",
                advice="free arrays, leave reservations, or raise memory_limit= of open_devices",
            )
        have = ", ".join(
            "device {} ({}) {}.{}".format(each.index, self._names[each.index], *each.compute_capability)
            for each in snapshots
        )
        return InvalidArgument(f"no device has compute capability {capability[0]}.{capability[1]}: {have}")

    @property
    def _names(self) -> dict[int, str]:
        return {each.index: each.info.name for each in self._devices}

    def _end_error(self) -> Exception:
        ends = [each._core.ended for each in self._devices if each._core.ended is not None]
        closed = [end for end in ends if isinstance(end, DeviceClosed)]
        return fresh((closed or ends)[0])

    def reserve(
        self,
        nbytes: int,
        policy: Placement | None = None,
        *,
        min_compute_capability: tuple[int, int] = (0, 0),
        near: DeviceArray | Device | None = None,
    ) -> Reservation:
        """Return a context manager that picks a device and sets `nbytes` bytes of its memory aside for this task.

        `with devices.reserve(1 << 30) as dev:` picks as `pick` does, with `nbytes` as `min_free_bytes`; see
        `Reservation` for what is promised. Nothing is sent, and no memory of the GPU is taken.

        - `nbytes`: bytes, 1 or more.
        - `policy`: as for `pick`.
        - `min_compute_capability`: the least compute capability, as for `pick`.
        - `near`: an array of any shape and dtype, or a device, as for `pick`.

        Raises `InvalidArgument` for arguments that are not valid; entering raises what `pick` raises.
        """
        if type(nbytes) is not int or nbytes < 1:
            raise InvalidArgument(f"nbytes is a number of bytes, 1 or more, not {shown(nbytes)}")
        self._check_pick(policy, 0, min_compute_capability, near)
        pick = functools.partial(
            self.pick, policy, min_free_bytes=nbytes, min_compute_capability=min_compute_capability, near=near
        )
        return Reservation._create(nbytes, pick)

    # --- worlds -------------------------------------------------------------------------------------------------------

    async def world(
        self,
        members: Iterable[Device | int] | None = None,
        *,
        deterministic: bool = True,
        nccl: Mapping[str, str | int] | None = None,
    ) -> World:
        """Return a world of devices, which compute together by NCCL, once all are there (``ncclCommInitRankConfig``).

        - `members`: devices of the group, or the index of each, each once; by default all that are alive. Their order
          is that of the ranks.
        - `deterministic`: pin the algorithm and the protocol of NCCL (``NCCL_ALGO=Ring``, ``NCCL_PROTO=Simple``), so
          that a sum of floats has the same bits each time. With False NCCL chooses, by sizes and connections.
        - `nccl`: variables of the environment for NCCL, by their names without the prefix, such as
          `{"SOCKET_IFNAME": "eth0"}`. Without it ``NCCL_RAS_ENABLE`` and ``NCCL_RUNTIME_CONNECT`` are 0.

        NCCL reads its environment once in the life of a worker, so all worlds of a device have the same settings.
        The world is closed by `World.aclose`, by `async with`, or with the block of the group.

        Raises `InvalidArgument` for arguments that are not valid, `LibraryNotFound` if NCCL is not installed,
        `CommandFailed` for what NCCL refuses, `DeviceClosed` or `DeviceFailed` if a member takes no requests.
        """
        from ..libraries.nccl.world import check_members, open_world

        self._home.check_task()
        cores = [each._core for each in self.alive] if members is None else self._members(members)
        return await open_world(self._group, check_members(cores, self._group), nccl, deterministic=deterministic)

    def _members(self, members: object) -> list[DeviceCore]:
        if not isinstance(members, Iterable):
            raise InvalidArgument(f"members are devices of the group, or their indices, not {shown(members)}")
        return [self._member(each) for each in members]

    def _member(self, member: object) -> DeviceCore:
        for each in self._devices:
            if member is each or (type(member) is int and member == each.index):
                return each._core
        raise InvalidArgument(f"a member is a device of {self._group.name} or its index, not {shown(member)}")

    # --- work for all of them -----------------------------------------------------------------------------------------

    async def map(
        self,
        function: Callable[[Device, Item], Awaitable[Result]],
        items: Iterable[Item],
        *,
        at_once: int = 1,
        retry: int = 0,
    ) -> list[Result]:
        """Call ``await function(device, item)`` for every item, on all devices at a time; return the results in order.

        A device takes the next item whenever it runs and is done with one, so the faster devices take more of them.

        - `function`: an async function; it should use the given device alone.
        - `items`: an iterable. The next item is taken when a device is free for it.
        - `at_once`: the number of items that one device works on at a time.
        - `retry`: how often an item may be started again after its device was lost under it.

        When a device is lost, the others go on, and so does this one when it is rebuilt. An item whose function raises
        `ContextLost` or `DeviceFailed`, or an exception group of nothing else, may have run in part. It is started
        again up to `retry` times, by any device that runs; else it is reported when all others are done. So every item
        is started exactly once, or its error is reported.
        Any other exception of the function, or of the iterable, cancels what is running and is raised, the same object.

        Raises `ItemsLost` if items were lost, `InvalidArgument` for arguments that are not valid, and `DeviceFailed` or
        `DeviceClosed` if every device has ended before the last item was started.
        """
        self._home.check_task()
        if not callable(function):
            raise InvalidArgument(f"function is an async function of a device and an item, not {shown(function)}")
        if not isinstance(items, Iterable):
            raise InvalidArgument(f"items is an iterable, not {shown(items)}")
        if type(at_once) is not int or at_once < 1:
            raise InvalidArgument(f"at_once is a number of items, 1 or more, not {shown(at_once)}")
        if type(retry) is not int or retry < 0:
            raise InvalidArgument(f"retry is a number of further starts, 0 or more, not {shown(retry)}")
        if not self.alive:
            raise self._end_error()
        spread = Spread(function, iter(items), retry)
        return await spread.run([each._core for each in self._devices], at_once)


def open_devices(
    devices: object = "all",
    *,
    count: object = None,
    strategy: object = "one_for_one",
    on_device_failed: object = "end",
    group_policy: RestartPolicy | None = None,
    peers: object = False,
    processes: Mapping[int, WorkerProcess] = MappingProxyType({}),
    **options: Any,
) -> AbstractAsyncContextManager[Devices]:
    """Open several GPUs: the work of `open_devices` once this module and its imports are loaded.

    `processes` are workers that were started ahead, by their indices. If entering the block raises, the caller must end
    them, unless they have ended.
    """
    check_can_open()
    names = check_names(devices, count)
    if strategy not in STRATEGIES:
        raise InvalidArgument(f"strategy is one of {', '.join(map(repr, STRATEGIES))}, not {shown(strategy)}")
    if on_device_failed not in ENDS:
        raise InvalidArgument(f'on_device_failed is "end" or "drop", not {shown(on_device_failed)}')
    if group_policy is not None and not isinstance(group_policy, RestartPolicy):
        raise InvalidArgument(f"group_policy is a RestartPolicy, not {shown(group_policy)}")
    if type(peers) is not bool:
        raise InvalidArgument(f"peers is True or False, not {shown(peers)}")
    return _group(names, count, strategy, on_device_failed, group_policy, peers, processes, options)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def _group(
    names: Named,
    count: int | None,
    strategy: Strategy,
    on_device_failed: OnDeviceFailed,
    policy: RestartPolicy | None,
    peers: bool,
    processes: Mapping[int, WorkerProcess],
    options: Mapping[str, Any],
) -> AsyncIterator[Devices]:
    backend, checked = checked_options(**options)
    indices = await indices_of(names, count, backend)
    raise_descriptor_limit()
    size = len(indices)
    try:
        chunks = chunks_within_limit(size, 1 + checked.standby, MAX_CHUNKS)
    except OSError as error:
        raise DeviceFailed(f"the devices could not be opened: {error.strerror}", advice=_MORE_DESCRIPTORS) from None
    checked = attrs.evolve(checked, most_chunks=chunks)
    opened: list[OpenedDevice] = []
    try:
        for index in indices:
            opened.append(OpenedDevice(index, backend, checked))  # noqa: PERF401  those before a failure are released
    except BaseException:
        for each in opened:
            await each.release()
        raise
    group = Group([each.core for each in opened], peers=peers)
    machine = GroupSupervision(size, strategy, policy or default_policy(size), on_device_failed)
    supervisor = GroupSupervisor(opened, machine, strategy)
    hub = EventHub(home=group.members[0].home)
    group.publish = hub.publish
    for member in group.members:
        member.events.forward = functools.partial(_forward, hub, member.index)
    devices = Devices._create([each.device for each in opened], group, supervisor, hub)
    started = [processes.get(index) for index in indices]
    try:
        async with block_of(opened, devices, supervisor.body_scope, lambda: supervisor.failure, started, group):
            try:
                await check_access(group)
            except BaseExceptionGroup as several:
                await raise_plain(several)
            yield devices
    finally:
        hub.close()


def _forward(hub: EventHub, index: int, event: DeviceEvent) -> None:
    hub.publish(MemberEvent(device=index, event=event))
