"""`Devices.map`: one function for many items, spread over the devices of a group.

Each device has tasks that take the next item whenever it is running, so a faster device takes more of them, and one
that is being rebuilt takes none. Every item is started once. When a device is lost under an item, nobody can tell how
far the item came: it is reported, or started again if the caller allows it.
"""

from __future__ import annotations

import collections
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeGuard, TypeVar

import trio

from .._generation.core import DeviceCore
from .._values.errors import ContextLost, DeviceFailed, ItemsLost, fresh
from .._values.state import DeviceState
from .._values.util import known
from .lifetime import raise_plain

if TYPE_CHECKING:
    from .device import Device

Item = TypeVar("Item")
Result = TypeVar("Result")

LOST = (ContextLost, DeviceFailed)
"""What says that a device was lost under an item. Every other exception is the function's own."""
_SHOWN = 10
"""The most lost items that a message names."""


class Spread(Generic[Item, Result]):
    """One `map` under way."""

    def __init__(
        self, function: Callable[[Device, Item], Awaitable[Result]], items: Iterator[Item], retry: int
    ) -> None:
        self._function = function
        self._items = enumerate(items)
        self._retry = retry
        self._again: collections.deque[tuple[int, Item]] = collections.deque()
        """Items that were lost and may be started once more."""
        self._attempts: dict[int, int] = {}
        """The starts of items that were lost, by their places."""
        self._exhausted = False
        self._under_way = 0
        self._results: dict[int, Result] = {}
        self._lost: dict[int, Exception] = {}
        self._error: BaseException | None = None
        """The exception of the function, or of the items, which ends all of it."""
        self._scope = trio.CancelScope()
        self._changed = trio.Event()

    @trio.lowlevel.enable_ki_protection
    async def run(self, devices: Sequence[DeviceCore], at_once: int) -> list[Result]:
        """Run all items, up to `at_once` on each device at a time, and return their results in order.

        Raises the function's own exception, `ItemsLost`, or the error of the devices' end, if it came before that of
        the items.
        """
        await trio.lowlevel.checkpoint()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for place in range(at_once):
                        for device in devices:
                            name = f"atomr_trio.map on device {device.index}, {place}"
                            nursery.start_soon(self._serve, device, name=name)
        except BaseExceptionGroup as group:
            if self._error is None:
                await raise_plain(group)
        if self._error is not None:
            raise self._error
        if not self._exhausted or self._again:
            ends = [device.ended for device in devices if device.ended is not None]
            raise fresh(known(ends[0] if ends else None, "its tasks end early only with their devices"))
        count = len(self._results) + len(self._lost)
        if self._lost:
            raise self._report(count)
        return [self._results[place] for place in range(count)]

    def _report(self, count: int) -> ItemsLost:
        places = sorted(self._lost)
        named = ", ".join(map(str, places[:_SHOWN])) + (", ..." if len(places) > _SHOWN else "")
        first = self._lost[places[0]]
        error = ItemsLost(
            f"{len(places)} of {count} items were lost with their devices: {named}; the first: {first}",
            lost={place: self._lost[place] for place in places},
            results=tuple(self._results.get(place) for place in range(count)),
            operation="map",
        )
        error.__cause__ = first
        return error

    async def _serve(self, device: DeviceCore) -> None:
        """Run items on one device, one after the other, until there are no more or the device has ended."""
        while await _runs(device):
            await trio.lowlevel.checkpoint()  # the function need not have one
            try:
                taken = self._take()
            except BaseException as error:  # of the iterator that the caller gave
                self._fail(error)
                return
            if taken is not None:
                await self._run(device.face, *taken)
            elif self._under_way:  # one of those may be lost, and started again
                await self._changed.wait()
            else:
                self._scope.cancel(reason="every item is done")  # also the tasks of devices that are being rebuilt
                return

    def _take(self) -> tuple[int, Item] | None:
        if self._again:
            return self._again.popleft()
        if not self._exhausted:
            taken = next(self._items, None)
            if taken is not None:
                return taken
            self._exhausted = True
        return None

    async def _run(self, device: Device, place: int, item: Item) -> None:
        self._under_way += 1
        try:
            self._results[place] = await self._function(device, item)
        except BaseException as error:
            if _is_cancellation(error):
                raise
            if _is_loss(error):
                self._lose(place, item, error)
            else:
                self._fail(error)
        finally:
            self._under_way -= 1
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    def _lose(self, place: int, item: Item, error: Exception) -> None:
        attempts = self._attempts[place] = self._attempts.get(place, 0) + 1
        if attempts <= self._retry:
            self._again.append((place, item))
        else:
            self._lost[place] = error

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self._scope.cancel(reason=f"the function of map raised {error!r}")


def _is_cancellation(error: BaseException) -> bool:
    """Return whether an exception is trio's cancellation, which tasks of the function may have made a group."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_cancellation, error.exceptions))
    return isinstance(error, trio.Cancelled)


def _is_loss(error: BaseException) -> TypeGuard[Exception]:
    """Return whether an exception says that a device was lost, and nothing else."""
    if isinstance(error, ExceptionGroup):
        return all(map(_is_loss, error.exceptions))
    return isinstance(error, LOST)


async def _runs(device: DeviceCore) -> bool:
    """Wait until a device takes requests. Returns false if it has ended."""
    while device.ended is None and device.state is not DeviceState.RUNNING:
        await device.changed.wait()
    return device.ended is None
