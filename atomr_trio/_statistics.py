"""What `dev.statistics()` returns: frozen pictures of counters, each field with its unit.

This file knows names and numbers only; whoever owns a counter fills its picture in.
Counters never go back while the device lives, also not when a generation is lost, unless their field says otherwise.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias, get_args

import attrs

from atomr_trio._supervision import DeviceState

__all__ = [
    "OUTCOMES",
    "ActorStatistics",
    "DeviceStatistics",
    "LaneStatistics",
    "MemoryStatistics",
    "Outcome",
]

Outcome: TypeAlias = Literal["ok", "failed", "cancelled", "lost", "abandoned"]
"""How a request was settled.

`ok`: with a value.
`lost`: with `ContextLost` or `ActorCrashed`, so it may or may not have run.
`failed`: with any other exception.
`cancelled`: its caller was cancelled before it was submitted, so it never ran.
`abandoned`: its caller was cancelled after it was submitted, so it went on without anybody to tell.
"""

OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
"""Every outcome."""


def _by_outcome(counts: Mapping[Outcome, int]) -> Mapping[Outcome, int]:
    """Copy the counts, with a zero for each outcome that is not there."""
    unknown = set(counts) - set(OUTCOMES)
    if unknown:
        raise ValueError(f"not an outcome: {', '.join(sorted(unknown))}")
    return {outcome: counts.get(outcome, 0) for outcome in OUTCOMES}


def _tuple_of_lanes(lanes: "Iterable[LaneStatistics]") -> "tuple[LaneStatistics, ...]":
    return tuple(lanes)


def _tuple_of_actors(actors: "Iterable[ActorStatistics]") -> "tuple[ActorStatistics, ...]":
    return tuple(actors)


@attrs.frozen(kw_only=True)
class LaneStatistics:
    """One lane: a CUDA stream with its counter. Counts are of commands and begin anew with each generation."""

    name: str
    """The name of the lane, for example "compute"."""

    submitted: int
    """Commands sent to the worker in this generation."""

    finished: int
    """Commands among them whose ticket the GPU has reached."""

    waiting: int
    """Actors that hold a command back, because the lane has as many unfinished ones as it may have."""

    waits: int = 0
    """Waits for work of other lanes that its commands have carried: what order by the use of arrays costs."""

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
    """Requests in the mailbox now, among them cancelled ones that the actor has not skipped yet."""

    peak_queued: int
    """The most requests that the mailbox ever held at once."""

    accepted: int
    """Requests that the mailbox ever took."""

    settled: Mapping[Outcome, int] = attrs.field(converter=_by_outcome, hash=False)
    """Requests settled, by outcome; together they come to `accepted` once the device is closed."""

    restarts: int
    """Times the actor was started again after a bug of its own; not those that came with a new generation."""

    @property
    def unsettled(self) -> int:
        """Requests accepted that have no outcome yet: queued, or started and not finished."""
        return self.accepted - sum(self.settled.values())


@attrs.frozen(kw_only=True)
class MemoryStatistics:
    """The device memory that this device manages, in bytes."""

    in_use: int
    """Bytes of the blocks that arrays hold, torn ones among them.

    Of arrays that were collected, and not freed, 256 are taken back with each call that allocates or asks; what is left
    then goes within a tenth of a second, and still counts.
    """

    cached: int
    """Bytes that are reserved and that no array holds; the next array takes them without a call to the driver."""

    reserved: int
    """Bytes of all chunks taken from the driver: `in_use` and `cached` and what lies unusable between blocks."""

    torn: int
    """Bytes of the blocks that a lost generation left half written."""

    largest_free: int
    """Bytes of the largest array that the reserved memory has room for."""

    free_runs: int
    """The number of runs of free memory; between two in the same chunk lies an array."""

    lost: int
    """Bytes of the arrays whose memory could not be carried into the present generation."""

    limit: int
    """The budget in bytes: `in_use` never exceeds it."""

    staging: int
    """Bytes of pinned *host* memory that copies go through; more once a batch has needed more."""

    waiting: int = 0
    """Bytes of *host* memory that hold records of commands which the worker has no room for yet, as batches can send
    them faster than they are read."""

    @property
    def fragmentation(self) -> float:
        """The share of the cached memory that one array could not get, from 0 to 1: 0 if it is in one run, or none."""
        return 1.0 - self.largest_free / self.cached if self.cached else 0.0


@attrs.frozen(kw_only=True)
class DeviceStatistics:
    """One device at one moment."""

    device: int
    """Index of the device, as given to `open_device`."""

    generation: int
    """The newest generation that started."""

    state: DeviceState
    """Where the device is in its life."""

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
    """The newest loss, failed start or actor's crash, in words; None when there was none."""
