"""The supervision of a group of devices as a pure state machine, beside that of each device in `policy.py`.

It knows places, counts, times and reasons: no tasks, no processes, and no clock. Three rules hold everywhere below.

1. An event of a member is legal in its state exactly when `TRANSITIONS` has an entry for the pair; anything else raises
   ValueError and changes nothing.
2. The first loss orders the restarts of the others that the strategy names. A member that is being rebuilt already is
   not ordered again, and its own loss orders nobody: losses that come together are one.
3. The budget of the group counts failures: losses and failed starts. A restart that the strategy ordered, or that the
   program asked for, is none. When the budget is spent, the whole group ends, whatever is to happen to one device.

A member's own budget is decided before, by its own `Supervision`; a member that has used it up is reported as failed.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

import attrs

from .policy import GiveUp, RestartPolicy, RestartWindow

__all__ = [
    "TRANSITIONS",
    "DropMember",
    "EndGroup",
    "GoOn",
    "GroupSupervision",
    "MemberEvent",
    "MemberState",
    "OnDeviceFailed",
    "RestartOthers",
    "Strategy",
    "default_policy",
]

Strategy: TypeAlias = Literal["one_for_one", "all_for_one", "rest_for_one"]
"""The members that are restarted when one is lost: that one, all of them, or that one and those listed after it."""

OnDeviceFailed: TypeAlias = Literal["end", "drop"]
"""The consequence of a member that is given up: the block ends, or the others go on without it."""

STRATEGIES: Final[tuple[str, ...]] = get_args(Strategy)
ENDS: Final[tuple[str, ...]] = get_args(OnDeviceFailed)

RESTARTS_OF_A_MEMBER: Final = 3
"""The restarts within a minute that the budget of a group allows for each member, unless the program says otherwise."""


def default_policy(members: int) -> RestartPolicy:
    """Return the budget of a group of this many members."""
    return RestartPolicy(intensity=RESTARTS_OF_A_MEMBER * members, period=60.0)


@enum.unique
class MemberState(enum.Enum):
    """The state of a member, as its group sees it."""

    RUNNING = "running"
    REBUILDING = "rebuilding"
    FAILED = "failed"


@enum.unique
class MemberEvent(enum.Enum):
    """The events of a member."""

    LOST = "lost"
    ORDERED = "ordered"
    """The strategy restarts it, because another was lost."""
    START_FAILED = "start failed"
    STARTED = "started"
    FAILED = "failed"


# A state that maps an event to itself needs no change.
#
# - A restart is ordered for running members alone, and the loss that it causes is reported like any other.
# - A standby may serve before the loss of the others is reported, so members start and are lost in any order.
# - A member may fail while it runs: by a defect of its supervision.
# - A failed member has ended, and says nothing any more.
TRANSITIONS: Final[Mapping[MemberState, Mapping[MemberEvent, MemberState]]] = MappingProxyType(
    {
        MemberState.RUNNING: {
            MemberEvent.LOST: MemberState.REBUILDING,
            MemberEvent.ORDERED: MemberState.REBUILDING,
            MemberEvent.FAILED: MemberState.FAILED,
        },
        MemberState.REBUILDING: {
            MemberEvent.LOST: MemberState.REBUILDING,
            MemberEvent.START_FAILED: MemberState.REBUILDING,
            MemberEvent.STARTED: MemberState.RUNNING,
            MemberEvent.FAILED: MemberState.FAILED,
        },
        MemberState.FAILED: {},
    }
)


@attrs.frozen
class RestartOthers:
    """Restart these members too. It costs them nothing of their own budget."""

    members: tuple[int, ...]
    """Their places in the group."""


@attrs.frozen
class GoOn:
    """Do nothing for the others."""


@attrs.frozen
class EndGroup:
    """End the block: the failure of this member leaves it."""


@attrs.frozen
class DropMember:
    """Close this member, and go on with the others."""


class GroupSupervision:
    """The state machine of one group. Members are named by their places. See the top of the file for its rules."""

    def __init__(
        self, members: int, strategy: Strategy, policy: RestartPolicy, on_device_failed: OnDeviceFailed
    ) -> None:
        self._strategy = strategy
        self._policy = policy
        self._window = RestartWindow(policy)
        self._on_device_failed = on_device_failed
        self._states = [MemberState.RUNNING] * members
        self._spent = False

    def __repr__(self) -> str:
        states = ", ".join(state.value for state in self._states)
        return f"<GroupSupervision: {self._strategy}, {states}, {self._window!r}>"

    @property
    def states(self) -> tuple[MemberState, ...]:
        """The state of every member."""
        return tuple(self._states)

    def restarts_left(self, now: float) -> float:
        """Return how many failures the group could have at `now` before it ends; `math.inf` when there is no limit."""
        return self._window.remaining(now)

    def lost(self, member: int, now: float, reason: str, *, free: bool = False) -> RestartOthers | GoOn | GiveUp:
        """Note that a member's generation was lost. `free` says that the loss is not a failure, and costs nothing.

        After `GiveUp` the caller gives the member up for the group's sake, and reports that by `failed`.
        """
        first = self._states[member] is MemberState.RUNNING
        self._move(member, MemberEvent.LOST)
        if not free and not self._allow(now):
            return GiveUp(self._words(reason), "group_policy")
        others = self._others(member) if first else ()
        for other in others:
            self._move(other, MemberEvent.ORDERED)
        return RestartOthers(others) if others else GoOn()

    def start_failed(self, member: int, now: float, reason: str) -> GoOn | GiveUp:
        """Note that a member could not be rebuilt, and may try again."""
        self._move(member, MemberEvent.START_FAILED)
        return GoOn() if self._allow(now) else GiveUp(self._words(reason), "group_policy")

    def started(self, member: int) -> None:
        """Note that a member's next generation is in service."""
        self._move(member, MemberEvent.STARTED)

    def failed(self, member: int) -> EndGroup | DropMember:
        """Note that a member was given up."""
        self._move(member, MemberEvent.FAILED)
        left = any(state is not MemberState.FAILED for state in self._states)
        return DropMember() if self._on_device_failed == "drop" and left and not self._spent else EndGroup()

    def _others(self, member: int) -> tuple[int, ...]:
        """Return the running members that the strategy restarts with this one."""
        if self._strategy == "one_for_one":
            return ()
        first = 0 if self._strategy == "all_for_one" else member
        return tuple(
            place
            for place, state in enumerate(self._states)
            if place >= first and place != member and state is MemberState.RUNNING
        )

    def _allow(self, now: float) -> bool:
        """Count a failure, and return whether it fits into the budget."""
        allowed = self._window.allow(now)
        self._spent = self._spent or not allowed
        return allowed

    def _words(self, reason: str) -> str:
        budget = f"{self._policy.intensity:g} restarts within {self._policy.period:g} s"
        return f"the devices of the group together needed more than {budget}; the last reason: {reason}"

    def _move(self, member: int, event: MemberEvent) -> None:
        state = self._states[member]
        following = TRANSITIONS[state].get(event)
        if following is None:
            raise ValueError(f"event {event.name} is not legal in state {state.name} of member {member}")
        self._states[member] = following
