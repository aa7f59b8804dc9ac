"""Checks that arrays, kernels, prepared launches, graphs, lanes and events belong to the device that uses them.

To a worker they are addresses and numbers, and two devices may have the same ones. An object of another device would be
taken for a different one, without an error. So every verb checks such arguments here before it does anything. The short
way of a launch need not: it knows only kernels that went the general way before, and arrays by a token that no two
generations share (`Block.fast`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from .._values.errors import InvalidArgument

if TYPE_CHECKING:
    from .._generation.core import DeviceCore


class Owned(Protocol):
    """An object that belongs to a device."""

    @property
    def _owner(self) -> DeviceCore:
        """The device that it belongs to."""


T = TypeVar("T", bound=Owned)


def own(device: DeviceCore, thing: object, kind: type[T], expected: str) -> T:
    """Return `thing`, if it is a `kind` and belongs to `device`.

    Raises `InvalidArgument` for anything else; `expected` says what a verb takes: "launch_graph takes a graph".
    """
    if not isinstance(thing, kind):
        raise InvalidArgument(f"{expected}, not {type(thing).__name__}", device=device.index)
    check_own(device, thing)
    return thing


def check_own(device: DeviceCore, thing: Owned) -> None:
    """Raise `InvalidArgument` for an object of another device."""
    if thing._owner is not device:
        raise foreign(device, thing)


def foreign(device: DeviceCore, thing: Owned) -> InvalidArgument:
    """Return the error for an object of another device."""
    owner = thing._owner
    # Two devices may have the same index, each with its own open_device.
    which = f"{owner.index}, opened apart" if owner.index == device.index else f"{owner.index}"
    return InvalidArgument(
        f"{thing!r} belongs to another device: it is of device {which}, and was given to device {device.index}",
        device=device.index,
        generation=device.generation,
        advice="open the devices as one group, by `open_devices`, so that arrays can be copied from one to another; or "
        "copy them through the host, `await dev.to_device(await array.to_host())`. Compile kernels, capture graphs and "
        "open lanes on the device itself.",
    )
