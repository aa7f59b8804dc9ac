"""The devices that one `open_devices` has opened, as the layers below them see each other.

A device of `open_device` has no group. A device of a group is an ordinary device, with supervision, memory and workers
of its own. A layer that may reach from one device to another asks `DeviceCore.group` for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, SupportsIndex, final

from .._values.util import refuse_to_copy

if TYPE_CHECKING:
    from .core import DeviceCore


@final
class Group:
    """The devices of one `open_devices`, in the order in which they were named."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_copy(self, protocol)

    def __init__(self, members: Sequence[DeviceCore], *, peers: bool) -> None:
        self.members: tuple[DeviceCore, ...] = tuple(members)
        """Every device, also those that have failed or were dropped: their places never change."""
        self.peers: bool = peers
        """True if kernels of one device may read and write arrays of another, as asked for by ``peers=True``."""
        for member in self.members:
            member.group = self

    def __repr__(self) -> str:
        return f"<Group of {self.name}{', with peers' if self.peers else ''}>"

    @property
    def name(self) -> str:
        """The members in words, for messages: "devices 0, 1"."""
        return "devices " + ", ".join(str(member.index) for member in self.members)

    def others(self, member: DeviceCore) -> tuple[DeviceCore, ...]:
        """Return every member but this one."""
        return tuple(each for each in self.members if each is not member)
