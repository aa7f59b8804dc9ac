"""The supervision of one device as a pure state machine: events go in, decisions come out.

It knows counts, times and reasons. It may know neither trio nor ctypes, neither tasks nor processes, and it reads no
clock: its caller passes `now`. So every sequence of failures can be tested without waiting for any of them.

Two rules hold everywhere below.

1. An event is legal in a state exactly when `TRANSITIONS` has an entry for the pair; anything else raises ValueError
   and changes nothing.
2. Budgets only choose *between two entries* of the table: a failure that fits into the budget is the event itself, one
   that does not is `GIVEN_UP`. Nothing outside the table changes the state.

The generation counts contexts that really started: the first is 1, and a start that failed uses up no number. The
restart window counts attempts, so failing starts use up the budget, as they do in OTP.
"""

import enum
import math
import random as _random
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import attrs

from .._values.state import DeviceState

__all__ = [
    "TRANSITIONS",
    "Decision",
    "Event",
    "GiveUp",
    "LoseContext",
    "Rebuild",
    "RestartActor",
    "RestartPolicy",
    "RestartWindow",
    "StayDown",
    "Supervision",
]


@enum.unique
class Event(enum.Enum):
    """The events of a device."""

    STARTED = "started"
    START_FAILED = "start failed"
    LOST = "lost"
    ACTOR_CRASHED = "actor crashed"
    GIVEN_UP = "given up"
    CLOSING = "closing"
    CLOSED = "closed"


# A state that maps an event to itself needs no change.
#
# - The first start is not retried: `open_device` raises its error to the user, who has no arrays to lose yet.
# - A loss while rebuilding is not legal: it is reported as a failed start.
# - While rebuilding, an actor of the lost generation may still crash; the next generation has new actors anyway.
# - Closing and failed devices are told of losses and crashes, and start nothing any more.
# - CLOSED is legal in every state: a forked child ends its copy of the device wherever the parent happened to be, and a
#   start may be cancelled. A failed device stays failed, so that its state still says why it ended.
TRANSITIONS: Final[Mapping[DeviceState, Mapping[Event, DeviceState]]] = MappingProxyType(
    {
        DeviceState.STARTING: {
            Event.STARTED: DeviceState.RUNNING,
            Event.GIVEN_UP: DeviceState.FAILED,
            Event.CLOSING: DeviceState.CLOSING,
            Event.CLOSED: DeviceState.CLOSED,
        },
        DeviceState.RUNNING: {
            Event.LOST: DeviceState.REBUILDING,
            Event.ACTOR_CRASHED: DeviceState.RUNNING,
            Event.GIVEN_UP: DeviceState.FAILED,
            Event.CLOSING: DeviceState.CLOSING,
            Event.CLOSED: DeviceState.CLOSED,
        },
        DeviceState.REBUILDING: {
            Event.STARTED: DeviceState.RUNNING,
            Event.START_FAILED: DeviceState.REBUILDING,
            Event.ACTOR_CRASHED: DeviceState.REBUILDING,
            Event.GIVEN_UP: DeviceState.FAILED,
            Event.CLOSING: DeviceState.CLOSING,
            Event.CLOSED: DeviceState.CLOSED,
        },
        DeviceState.CLOSING: {
            Event.LOST: DeviceState.CLOSING,
            Event.START_FAILED: DeviceState.CLOSING,
            Event.ACTOR_CRASHED: DeviceState.CLOSING,
            Event.CLOSED: DeviceState.CLOSED,
        },
        DeviceState.FAILED: {
            Event.LOST: DeviceState.FAILED,
            Event.START_FAILED: DeviceState.FAILED,
            Event.ACTOR_CRASHED: DeviceState.FAILED,
            Event.CLOSING: DeviceState.FAILED,
            Event.CLOSED: DeviceState.FAILED,
        },
        DeviceState.CLOSED: {},
    }
)

_ENDING: Final = frozenset({DeviceState.CLOSING, DeviceState.FAILED})


@attrs.frozen
class Rebuild:
    """Build the next generation."""

    delay: float
    """Seconds to wait before the attempt, by trio's clock."""


@attrs.frozen
class GiveUp:
    """Build nothing any more: every waiting request gets `DeviceFailed`."""

    reason: str
    """The reason, in words."""
    spent: str | None = None
    """The argument of `open_device` or `open_devices` that has set the budget, if one is spent."""


@attrs.frozen
class RestartActor:
    """Start the crashed actor again, in the same generation and at once."""


@attrs.frozen
class LoseContext:
    """The actor crashes too often: treat the context as lost, and report that with `Supervision.lost`."""

    reason: str
    """The reason, in words."""


@attrs.frozen
class StayDown:
    """Settle running requests and start nothing: the device is ending, or the next generation has its own actor."""


Decision: TypeAlias = Rebuild | GiveUp | RestartActor | LoseContext | StayDown
"""The decisions of the machine. Each method's annotation says which of them it returns."""


def _check(holds: Callable[[float], bool], wanted: str) -> Callable[[object, "attrs.Attribute[Any]", float], None]:
    """Return an attrs validator that accepts the numbers for which `holds` is true. NaN never is."""

    def validate(_instance: object, attribute: "attrs.Attribute[Any]", value: float) -> None:
        if not isinstance(value, int | float):
            raise TypeError(f"{attribute.name} must be a number, not {value!r}")
        if not holds(value):
            raise ValueError(f"{attribute.name} must be {wanted}, not {value!r}")

    return validate


@attrs.frozen(kw_only=True)
class RestartPolicy:
    """The budget of restarts, and the waits after failed attempts.

    Raises `ValueError` for a number out of range, and `TypeError` for anything but a number.
    """

    intensity: float = attrs.field(
        default=3,
        validator=_check(lambda value: value >= 0 and (math.isinf(value) or value == int(value)), "whole or math.inf"),
    )
    """Restarts allowed within `period`; one more and the supervision gives up. `math.inf` never gives up."""

    period: float = attrs.field(default=60.0, validator=_check(lambda value: value > 0, "greater than 0"))
    """Length of the sliding window, in seconds. With `math.inf` a restart is never forgotten."""

    backoff_min: float = attrs.field(
        default=0.1, validator=_check(lambda value: 0 <= value < math.inf, "finite and at least 0")
    )
    """Seconds to wait after the first failed start; each further failure in a row doubles it."""

    backoff_max: float = attrs.field(
        default=5.0, validator=_check(lambda value: 0 <= value < math.inf, "finite and at least 0")
    )
    """Seconds that the doubling does not exceed (jitter comes on top)."""

    jitter: float = attrs.field(default=0.2, validator=_check(lambda value: 0 <= value <= 1, "between 0 and 1"))
    """Largest random share that is added to a wait, so that several devices do not start in step."""

    def __attrs_post_init__(self) -> None:
        if self.backoff_max < self.backoff_min:
            raise ValueError(f"backoff_max ({self.backoff_max}) must not be less than backoff_min ({self.backoff_min})")

    def backoff(self, failures: int, random: Callable[[], float] = _random.random) -> float:
        """Return the seconds to wait after `failures` failed starts in a row (at least one).

        `random` gives numbers from 0 to 1, for the jitter. Raises nothing.
        """
        # Beyond 2**64 the doubling is past every sensible maximum, and a float would overflow in the end.
        doubled = self.backoff_min * 2.0 ** min(failures - 1, 64)
        return min(self.backoff_max, doubled) * (1.0 + random() * self.jitter)


class RestartWindow:
    """OTP's sliding window: at most `intensity` restarts within any stretch of `period` seconds."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        # Only the newest intensity + 1 restarts can matter, and none when there is no limit.
        room = 0 if math.isinf(policy.intensity) else int(policy.intensity) + 1
        self._times: deque[float] = deque(maxlen=room)

    def __repr__(self) -> str:
        return f"<RestartWindow: {len(self._times)} of {self.policy.intensity:g} in {self.policy.period:g} s>"

    def allow(self, now: float) -> bool:
        """Record a restart at `now`, and return whether it still fits into the budget."""
        self._times.append(now)
        return self._count(now) <= self.policy.intensity

    def remaining(self, now: float) -> float:
        """Return how many restarts would be allowed at `now`; `math.inf` when there is no limit."""
        return max(0, self.policy.intensity - self._count(now))

    def _count(self, now: float) -> int:
        # A restart exactly one period old still counts, as in OTP.
        return sum(now - then <= self.policy.period for then in self._times)


class Supervision:
    """The state machine of one device. See the top of the file for its rules."""

    def __init__(
        self,
        policy: RestartPolicy,
        actor_policy: RestartPolicy | None = None,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self._policy = policy
        self._actor_policy = RestartPolicy() if actor_policy is None else actor_policy
        self._random = random
        self._window = RestartWindow(policy)
        self._actor_windows: dict[str, RestartWindow] = {}
        self._failed_starts = 0
        self._state = DeviceState.STARTING
        self._generation = 0
        self._reason: str | None = None

    def __repr__(self) -> str:
        return f"<Supervision: {self._state.value}, generation {self._generation}, {self._window!r}>"

    @property
    def state(self) -> DeviceState:
        """The state of the device."""
        return self._state

    @property
    def generation(self) -> int:
        """Number of the newest generation that started; 0 before the first."""
        return self._generation

    @property
    def next_generation(self) -> int:
        """The number that the next successful start will get."""
        return self._generation + 1

    @property
    def failed(self) -> bool:
        """True if the supervision has given up."""
        return self._state is DeviceState.FAILED

    @property
    def reason(self) -> str | None:
        """The reason of the newest loss, failed start or actor's crash; None when there was none."""
        return self._reason

    def restarts_left(self, now: float) -> float:
        """Return how many times the context could be rebuilt at `now`; `math.inf` when there is no limit."""
        return self._window.remaining(now)

    def started(self, now: float) -> int:
        """Note that a context is up and has passed its self-test; return the number of its generation."""
        self._move(Event.STARTED)
        self._generation += 1
        self._failed_starts = 0
        # As in OTP, the children of a restarted supervisor begin with a clean record.
        self._actor_windows.clear()
        return self._generation

    def lost(
        self, now: float, reason: str, *, gone: bool = False, deliberate: bool = False
    ) -> Rebuild | GiveUp | StayDown:
        """Note that the running generation was lost. `gone` says that no restart can help.

        The rebuild of a generation that had been running starts at once: it is slow enough by itself. A deliberate
        restart, or one by a check of the simulator, is not a failure, and uses none of the budget.
        """
        self._require(Event.LOST)
        self._reason = reason
        if self._state in _ENDING:
            return StayDown()
        if deliberate:
            self._move(Event.LOST)
            return Rebuild(0.0)
        return self._retry(Event.LOST, now, reason, gone=gone)

    def start_failed(self, now: float, reason: str, *, gone: bool) -> Rebuild | GiveUp | StayDown:
        """Note that a generation could not be built. `gone` says that no restart can help."""
        if self._state is DeviceState.STARTING:
            return self._give_up(reason)
        self._require(Event.START_FAILED)
        self._reason = reason
        if self._state in _ENDING:
            return StayDown()
        self._failed_starts += 1
        return self._retry(Event.START_FAILED, now, reason, gone=gone)

    def actor_crashed(self, actor: str, now: float, reason: str = "") -> RestartActor | LoseContext | StayDown:
        """Note that a library actor crashed with an internal error, in a healthy context.

        After `LoseContext` the caller gives the context up and reports that by `lost`.
        """
        self._move(Event.ACTOR_CRASHED)
        self._reason = f"actor {actor} crashed: {reason}" if reason else f"actor {actor} crashed"
        if self._state is not DeviceState.RUNNING:
            return StayDown()
        window = self._actor_windows.setdefault(actor, RestartWindow(self._actor_policy))
        if window.allow(now):
            return RestartActor()
        return LoseContext(_spent(f"actor {actor}", self._actor_policy, reason))

    def closing(self) -> None:
        """Note that the user left the block."""
        self._move(Event.CLOSING)

    def closed(self) -> None:
        """Note that every resource has been released."""
        self._move(Event.CLOSED)

    def fail(self, reason: str, spent: str | None = None) -> GiveUp:
        """Give up for a reason outside the device's budgets, such as an internal error of the supervisor.

        `spent` is the argument of the budget of the group, if it is the reason.
        """
        return self._give_up(reason, spent)

    def _retry(self, event: Event, now: float, reason: str, *, gone: bool) -> Rebuild | GiveUp:
        if gone:
            return self._give_up(reason)
        if not self._window.allow(now):
            return self._give_up(_spent("the context", self._policy, reason), "restart_policy")
        self._move(event)
        delay = self._policy.backoff(self._failed_starts, self._random) if self._failed_starts else 0.0
        return Rebuild(delay)

    def _give_up(self, reason: str, spent: str | None = None) -> GiveUp:
        self._move(Event.GIVEN_UP)
        self._reason = reason
        return GiveUp(reason, spent)

    def _require(self, event: Event) -> DeviceState:
        """Return the next state. Raises `ValueError` if the event is not legal."""
        following = TRANSITIONS[self._state].get(event)
        if following is None:
            raise ValueError(f"event {event.name} is not legal in state {self._state.name}")
        return following

    def _move(self, event: Event) -> None:
        self._state = self._require(event)


def _spent(what: str, policy: RestartPolicy, reason: str) -> str:
    """Return a text that says that a budget is spent."""
    budget = f"{what} needed more than {policy.intensity:g} restarts within {policy.period:g} s"
    return f"{budget}; the last reason: {reason}" if reason else budget
