"""The short way of awaited fills and copies on the device.

Those of contiguous arrays are all alike (``moves.py``). Others are known by the form of their arrays (``series.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import trio

from .._arrays.arrays import DeviceArray
from .._generation.core import DeviceCore, DevicePart
from .._transfers.copy_plan import plan_copy
from .._transfers.memory import plan_fill
from .._transfers.transfers import Transfers
from .known import KnownCalls, Question, form_of
from .launching import AwaitedLaunch, AwaitedLaunches, LaunchPath
from .moves import moves_of
from .series import KnownSeries

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from .._generation.requests import CommandRequest


_ITEM_BYTES: Final = 8
"""All fills with items of at most so many bytes are alike."""


class ShortTransfers(DevicePart):
    """Moves the bytes of arrays: fills and copies on the device the short way where there is one."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._launches = device.part(AwaitedLaunches)
        self._known = device.part(KnownCalls)
        transfers = device.part(Transfers)
        self._fill = transfers.fill
        self._copy_on_device = transfers.copy_on_device
        self.copy_in: Callable[[DeviceArray, npt.NDArray[Any]], Awaitable[None]] = transfers.copy_in
        """See `Transfers.copy_in`."""
        self.copy_out: Callable[[DeviceArray, npt.NDArray[Any]], Awaitable[None]] = transfers.copy_out
        """See `Transfers.copy_out`."""

    @trio.lowlevel.enable_ki_protection
    async def fill(self, array: DeviceArray, value: complex | np.generic) -> None:
        """Set every element of an array; see `DeviceArray.fill`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        path = self._free_path()
        if path is not None:
            awaited = AwaitedLaunch(path, self.device.memory_actor.mailbox)
            if moves_of(path, self.device).fill(array, value, awaited):
                await awaited.wait()
                return
        question = question_of_fill(array, value)
        if question is None or not await self._repeated(question):
            await self._fill(array, value)
            self._learn(question, lambda: plan_fill(array, value))

    @trio.lowlevel.enable_ki_protection
    async def copy_on_device(self, source: DeviceArray, target: DeviceArray) -> None:
        """Overwrite an array with another of the device; see `DeviceArray.copy_from`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        path = self._free_path()
        if path is not None:
            awaited = AwaitedLaunch(path, self.device.memory_actor.mailbox)
            if moves_of(path, self.device).copy(source, target, awaited):
                await awaited.wait()
                return
        question = question_of_copy(target, source)
        if question is None or not await self._repeated(question):
            await self._copy_on_device(source, target)
            self._learn(question, lambda: plan_copy(source, target))

    async def _repeated(self, question: Question) -> bool:
        """Make a fill or copy that was made before; return false, without any effect, if it must be planned."""
        known = self._known.find(question[0])
        return known is not None and await known.repeat(self._launches, question[1]) is not None

    def _learn(self, question: Question | None, plan: Callable[[], Sequence[CommandRequest] | None]) -> None:
        if question is not None and self._known.find(question[0]) is None:
            learn_move(self._known, question, plan())

    def _free_path(self) -> LaunchPath | None:
        """Return the path, if a request of the memory actor would be its next one."""
        actor = self.device.memory_actor
        if actor.mailbox.posted != actor.mailbox.taken or actor.current is not None:
            return None
        return self._launches.present_path()


def question_of_fill(array: object, value: object) -> Question | None:
    """Return the question of a fill; None for one that is like all others, and for what is no fill."""
    if type(array) is not DeviceArray or (array._plain is not None and array.itemsize <= _ITEM_BYTES):
        return None
    return form_of(plan_fill, (array, value), {})


def question_of_copy(target: object, source: object) -> Question | None:
    """Return the question of a copy on the device; None for one that is like all others, and for what is no copy."""
    if type(target) is not DeviceArray or type(source) is not DeviceArray:
        return None
    if target._plain is not None and source._plain is not None:
        return None
    return form_of(plan_copy, (target, source), {})


def learn_move(known: KnownCalls, question: Question, requests: Sequence[CommandRequest] | None) -> None:
    """Keep a fill or copy of these requests, if it is a few commands. It has the array that it writes first."""
    series = KnownSeries.of(question, requests or (), (), question[1][0])
    if series is not None:
        known.keep(question[0], series)
