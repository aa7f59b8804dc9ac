"""The choice of a device of a group: policies are pure functions of snapshots, which hold what is known anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import attrs

from .errors import InvalidArgument
from .state import DeviceState
from .util import shown

__all__ = ["DeviceSnapshot", "LeastLoaded", "MostFree", "Placement", "RoundRobin", "choose"]


@attrs.frozen(kw_only=True)
class DeviceSnapshot:
    """What `Devices.pick` knows of one device at one moment. Nothing was asked of its worker for it."""

    position: int
    """The number of the device's place in its group, from 0 on."""

    index: int
    """`Device.index`."""

    state: DeviceState
    """The state of the device."""

    free_bytes: int
    """Bytes that arrays could still take: the limit, less what arrays and workspaces hold and what is reserved."""

    unfinished: int
    """Requests that wait in the queues of the device, and commands that it has not finished."""

    compute_capability: tuple[int, int]
    """The compute capability, major and minor."""


@runtime_checkable
class Placement(Protocol):
    """A policy of `Devices.pick`. A class of your own may stand in the place of those of this library."""

    def choose(self, candidates: Sequence[DeviceSnapshot], last: int | None) -> DeviceSnapshot:
        """Return one of the `candidates`, of which there is at least one, in the order of their places.

        `last` is the number of the place of the device that was picked last, None if there was none. Raises nothing.
        """


@attrs.frozen
class RoundRobin:
    """Picks the devices in turn: the next one behind the device that was picked last."""

    def choose(self, candidates: Sequence[DeviceSnapshot], last: int | None) -> DeviceSnapshot:
        """Return the first of the `candidates` behind the place with the number `last`, or the first of all.

        Raises nothing.
        """
        return _in_turn(candidates, last)


@attrs.frozen
class LeastLoaded:
    """Picks the device with the fewest unfinished requests and commands. Equal devices are picked in turn."""

    def choose(self, candidates: Sequence[DeviceSnapshot], last: int | None) -> DeviceSnapshot:
        """Return that of the `candidates` with the least `DeviceSnapshot.unfinished`.

        Equal ones are taken in turn: `last` is the number of the place that was picked last. Raises nothing.
        """
        return _best(candidates, last, lambda each: -each.unfinished)


@attrs.frozen
class MostFree:
    """Picks the device with the most free memory. Equal devices are picked in turn."""

    def choose(self, candidates: Sequence[DeviceSnapshot], last: int | None) -> DeviceSnapshot:
        """Return that of the `candidates` with the most `DeviceSnapshot.free_bytes`.

        Equal ones are taken in turn: `last` is the number of the place that was picked last. Raises nothing.
        """
        return _best(candidates, last, lambda each: each.free_bytes)


def _in_turn(candidates: Sequence[DeviceSnapshot], last: int | None) -> DeviceSnapshot:
    behind = [each for each in candidates if last is not None and each.position > last]
    return (behind or candidates)[0]


def _best(
    candidates: Sequence[DeviceSnapshot], last: int | None, merit: Callable[[DeviceSnapshot], int]
) -> DeviceSnapshot:
    best = max(map(merit, candidates))
    return _in_turn([each for each in candidates if merit(each) == best], last)


def choose(
    policy: Placement,
    snapshots: Sequence[DeviceSnapshot],
    last: int | None,
    *,
    min_free_bytes: int = 0,
    min_compute_capability: tuple[int, int] = (0, 0),
    near: int | None = None,
) -> DeviceSnapshot | None:
    """Return the snapshot of the device to pick; None if no device has what is asked for.

    A device that runs goes before one that is being rebuilt, for which requests would wait. `near` is the place of a
    device that is picked before all others, if it has what is asked for and runs.

    Raises `InvalidArgument` if a policy of the program returns anything but a candidate.
    """
    able = [
        each
        for each in snapshots
        if each.state in (DeviceState.RUNNING, DeviceState.REBUILDING)
        and each.free_bytes >= min_free_bytes
        and each.compute_capability >= min_compute_capability
    ]
    candidates = [each for each in able if each.state is DeviceState.RUNNING] or able
    if not candidates:
        return None
    for each in candidates:
        if each.position == near:
            return each
    chosen: object = policy.choose(candidates, last)
    for each in candidates:
        if each is chosen:
            return each
    raise InvalidArgument(f"{shown(policy)}.choose returned {shown(chosen)}, which is none of the candidates")
