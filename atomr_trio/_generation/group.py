"""The devices that one `open_devices` has opened, as the layers below them see each other.

A device of `open_device` has no group. A device of a group is an ordinary device, with supervision, memory and workers
of its own. A layer that may reach from one device to another asks `DeviceCore.group` for the others.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, SupportsIndex, final

import trio

from .._values.util import refuse_to_copy

if TYPE_CHECKING:
    from .._values.events import DeviceEvent
    from .core import DeviceCore
    from .peers import Wish

log = logging.getLogger("atomr_trio.device")


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
        self.watched: bool = False
        """True if something waits until a member's work on another's memory is over."""
        self.wishes: list[Wish] = []
        """The requests that wait for that, the oldest first."""
        self.woken: list[Callable[[], None]] = []
        """Called when that may be so."""
        self.ends: list[Callable[[], None]] = []
        """Called when the block of the group is left, before any of its devices is closed."""
        self.publish: Callable[[DeviceEvent], None] = lambda event: None
        """Tells the subscribers of the group what concerns several of its devices."""
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._scopes: set[trio.CancelScope] = set()
        self.ended: bool = False
        """True once the block of the group was left."""
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

    # --- tasks of the group -------------------------------------------------------------------------------------------

    def begin(self, nursery: trio.Nursery) -> None:
        """Run the tasks of the group in this nursery from now on."""
        self._nursery = nursery

    def start_soon(self, task: Callable[[], Awaitable[None]], name: str) -> None:
        """Run a task until it ends, or the block of the group is left. An error of it is logged."""
        if self._nursery is None:
            raise AssertionError("the block of the group is not open")
        self._nursery.start_soon(self._run, task, name, name=f"atomr_trio.{name}")

    @trio.lowlevel.enable_ki_protection
    async def _run(self, task: Callable[[], Awaitable[None]], name: str) -> None:
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                if not self.ended:
                    await task()
            except Exception:
                log.critical("a task of %s crashed: %s", self.name, name, exc_info=True)
            finally:
                self._scopes.discard(scope)

    def end(self) -> None:
        """End the tasks of the group: its block was left."""
        self.ended = True
        for told in self.ends:
            told()
        for scope in self._scopes:
            scope.cancel(reason="the block of the group was left")

    # --- waiting for work of another member -----------------------------------------------------------------------

    async def wait(self) -> None:
        """Wait until work of a member has ended, or its generations have changed."""
        await self._changed.wait()

    def wake(self) -> None:
        """Make everything that waits look again."""
        self.watched = False
        for told in self.woken:
            told()
        for member in self.members:
            if member.current is not None and member.current.admission.waiters:
                member.current.admission.wake()
        changed, self._changed = self._changed, trio.Event()
        changed.set()
