"""The snapshots of counters that `dev.statistics()` returns, each field with its unit.

This file knows names and numbers only; the owner of a counter fills its field in.
Counters never decrease while the device lives, even when a generation is lost, unless their field says otherwise.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias, get_args

import attrs

from atomr_trio._values.html import columns_table, fields_table, table
from atomr_trio._values.state import DeviceState

__all__ = [
    "OUTCOMES",
    "ActorStatistics",
    "DeviceStatistics",
    "GroupStatistics",
    "LaneStatistics",
    "MemoryStatistics",
    "Outcome",
]

Outcome: TypeAlias = Literal["ok", "failed", "cancelled", "lost", "abandoned"]
"""The outcome of a request.

`ok`: with a value.
`lost`: with `ContextLost` or `ActorCrashed`, so it may or may not have run.
`failed`: with any other exception.
`cancelled`: its caller was cancelled before it was submitted, so it never ran.
`abandoned`: its caller was cancelled after it was submitted, so it went on and its outcome was dropped.
"""

OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
"""Every outcome."""


def _by_outcome(counts: Mapping[Outcome, int]) -> Mapping[Outcome, int]:
    """Return a copy of the counts, with a zero for each missing outcome."""
    unknown = set(counts) - set(OUTCOMES)
    if unknown:
        raise ValueError(f"not an outcome: {', '.join(sorted(unknown))}")
    return {outcome: counts.get(outcome, 0) for outcome in OUTCOMES}


def _tuple_of_lanes(lanes: "Iterable[LaneStatistics]") -> "tuple[LaneStatistics, ...]":
    return tuple(lanes)


def _tuple_of_devices(devices: "Iterable[DeviceStatistics]") -> "tuple[DeviceStatistics, ...]":
    return tuple(devices)


def _tuple_of_actors(actors: "Iterable[ActorStatistics]") -> "tuple[ActorStatistics, ...]":
    return tuple(actors)


@attrs.frozen(kw_only=True)
class LaneStatistics:
    """One lane: a CUDA stream with its counter. Counts are of commands and start again with each generation."""

    name: str
    """The name of the lane, for example "compute"."""

    submitted: int
    """Commands sent to the worker in this generation."""

    finished: int
    """Commands among them whose ticket the GPU has reached."""

    waiting: int
    """Actors that hold a command back, because the lane has the most unfinished commands that it may have."""

    waits: int = 0
    """Waits of its commands for work of other lanes: the cost of the order by the use of arrays."""

    @property
    def unfinished(self) -> int:
        """Commands sent whose ticket was not reached yet."""
        return self.submitted - self.finished


@attrs.frozen(kw_only=True)
class ActorStatistics:
    """One library actor and its mailbox. Counts are of requests."""

    name: str
    """The name of the actor, for example "nvrtc"."""

    queued: int
    """Requests in the mailbox now, with cancelled ones that the actor has not skipped yet."""

    peak_queued: int
    """The most requests that the mailbox ever held at once."""

    accepted: int
    """Requests that the mailbox ever took."""

    settled: Mapping[Outcome, int] = attrs.field(converter=_by_outcome, hash=False)
    """Requests settled, by outcome; their sum is `accepted` once the device is closed."""

    restarts: int
    """Restarts of the actor after an internal error; starts with a new generation do not count."""

    @property
    def unsettled(self) -> int:
        """Requests accepted that have no outcome yet: queued, or started and not finished."""
        return self.accepted - sum(self.settled.values())


@attrs.frozen(kw_only=True)
class MemoryStatistics:
    """The device memory that this device manages, in bytes."""

    in_use: int
    """Bytes of the blocks that arrays hold, torn ones included.

    Arrays that were collected, and not freed, count until they are taken back: 256 with each call that allocates or
    reads the statistics, the rest within a tenth of a second.
    """

    cached: int
    """Bytes that are reserved and that no array holds; the next array takes them without a call to the driver."""

    reserved: int
    """Bytes of all chunks taken from the driver: `in_use`, `cached` and unusable memory between blocks."""

    torn: int
    """Bytes of the blocks that a lost generation left half written."""

    largest_free: int
    """Bytes of the largest array that fits in the reserved memory."""

    free_runs: int
    """The number of runs of free memory; two runs of the same chunk have an array between them."""

    lost: int
    """Bytes of the arrays whose memory could not be carried into the present generation."""

    limit: int
    """The budget in bytes: `reserved` and `workspaces` together never exceed it."""

    workspaces: int
    """Bytes of device memory that libraries use for the workspaces of plans and of graphs; they count for
    `limit`."""

    staging: int
    """Bytes of pinned *host* memory that copies go through; it grows when a batch needs more."""

    waiting: int = 0
    """Bytes of *host* memory for records that the worker has no room for yet. Batches can send records faster than the
    worker reads them."""

    @property
    def fragmentation(self) -> float:
        """The share of the cached memory that one array could not get, from 0 to 1: 0 if it is in one run, or none."""
        return 1.0 - self.largest_free / self.cached if self.cached else 0.0


@attrs.frozen(kw_only=True)
class DeviceStatistics:
    """The counters of one device at one moment."""

    device: int
    """Index of the device, as given to `open_device`."""

    generation: int
    """The newest generation that started."""

    state: DeviceState
    """The state of the device."""

    uptime: float
    """Seconds since this generation started, by trio's clock; 0 while there is none."""

    lanes: tuple[LaneStatistics, ...] = attrs.field(converter=_tuple_of_lanes)
    """The lanes of this generation, in the order in which they were made."""

    actors: tuple[ActorStatistics, ...] = attrs.field(converter=_tuple_of_actors)
    """The library actors, in the order in which they start."""

    memory: MemoryStatistics
    """Device memory, in bytes by state."""

    standbys: int
    """Standby workers that are ready to take over."""

    restarts_left: float
    """Times the context could be rebuilt now before the supervision gives up; `math.inf` without a limit."""

    last_error: str | None
    """A text about the newest loss, failed start or actor's crash; None when there was none."""

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a table of the device, and one each of its memory, lanes and actors."""
        names = "device", "generation", "uptime", "standbys", "restarts_left", "last_error"
        rows = [("state", self.state.value), *((name, getattr(self, name)) for name in names)]
        return (
            table(type(self).__name__, rows)
            + fields_table(self.memory)
            + columns_table("LaneStatistics", self.lanes)
            + columns_table("ActorStatistics", self.actors)
        )


@attrs.frozen(kw_only=True)
class GroupStatistics:
    """The counters of a group of devices at one moment."""

    devices: tuple[DeviceStatistics, ...] = attrs.field(converter=_tuple_of_devices)
    """Those of every device, in the order of the group, also of devices that have failed."""

    failed: tuple[int, ...]
    """The index of each device that has failed."""

    restarts_left: float
    """Failures that all devices together may have now before the group ends; `math.inf` without a limit."""

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a table of the group, and those of each device."""
        rows = [("failed", self.failed or None), ("restarts_left", self.restarts_left)]
        return table(type(self).__name__, rows) + "".join(each._repr_html_() for each in self.devices)
