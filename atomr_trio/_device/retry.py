"""`atomr_trio.retry`: a block that is run again after a loss, from arrays that are whole.

An attempt has two parts. Entering its block prepares it: the first attempt copies the arrays that are saved, a later
one writes them back; both wait for a generation in service. Then the block itself runs. A loss in either part ends the
attempt, and the next one begins while there are attempts left.

What is caught is decided by the generations. When the block begins, the number of each device's generation is noted. A
`ContextLost` counts if it names one of these generations, or a later one. `StaleArray`, `StaleKernel`, `WorldLost` and
`ItemsLost` follow from a loss, so they count if one of these generations has been lost meanwhile. A group of exceptions
counts if each of its members does. Everything else passes, `trio.Cancelled` and `DeviceFailed` included.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Self, final

import numpy as np

from .._arrays.arrays import DeviceArray, view_of
from .._generation.core import DeviceCore
from .._values.errors import (
    ContextLost,
    InvalidArgument,
    ItemsLost,
    StaleArray,
    StaleKernel,
    WorldLost,
)
from .._values.habits import BLOCK, refuse_habits
from .._values.util import NoPublicConstructor, shown
from .device import Device
from .group import Devices

GIVE_THE_GROUP: Final = (
    "write `retry(dev)` for one device, and for several `retry(devices)` with the group that `open_devices` or "
    "`start_devices` has made, itself: neither a list of its devices nor each of them"
)
_FOLLOWS: Final = (StaleArray, StaleKernel, WorldLost)
"""What the arrays and the kernels of a lost generation lead to."""
_BYTE: Final = np.dtype(np.uint8)


@enum.unique
class _State(enum.Enum):
    NEW = "no attempt was given out, or the last one was lost"
    GIVEN = "an attempt was given out, and its block was not entered yet"
    INSIDE = "the block runs"
    OVER = "the block is done, or has raised"
    TOLD = "its end was told to the loop"


@final
class Retry(metaclass=NoPublicConstructor):
    """The attempts of a block, made by `retry`: an async iterator that ends when an attempt was not lost."""

    __slots__ = (
        "__weakref__",
        "_attempts",
        "_copies",
        "_cores",
        "_home",
        "_is_saved",
        "_made",
        "_serving",
        "_state",
        "_wholes",
    )

    _made_by = "`atomr_trio.retry(dev)`"

    def __init__(self, dev: Device | Devices, attempts: int, saving: Iterable[DeviceArray]) -> None:
        self._cores = _cores_of(dev)
        self._home = self._cores[0].home
        next((core for core in self._cores if core.ended is None), self._cores[0]).check_open()
        if type(attempts) is not int or attempts < 1:
            raise InvalidArgument(f"attempts is an int of at least 1, not {shown(attempts)}")
        self._attempts = attempts
        self._wholes = _wholes_of(saving, self._cores)
        """The memory of the arrays that are saved, as bytes."""
        self._copies: list[DeviceArray] = []
        self._is_saved = False
        """Whether the copies are complete."""
        self._made = 0
        """The attempts that have begun."""
        self._state = _State.NEW
        self._serving: list[tuple[DeviceCore, int]] = []
        """The numbers of the generations in service when the attempt began, and when its block did."""

    def __repr__(self) -> str:
        return f"<Retry: {self._made} of {self._attempts} attempts made; {self._state.value}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Attempt:
        self._home.check_task()
        if self._state is _State.OVER:
            self._state = _State.TOLD
            raise StopAsyncIteration
        if self._state is not _State.NEW:
            raise InvalidArgument(
                f"the attempts of a retry are used one after the other, in one loop: {self._state.value}",
                advice="write `async for attempt in atomr_trio.retry(dev): async with attempt: ...`.",
            )
        self._state = _State.GIVEN
        attempt: Attempt = Attempt._create(self, self._made + 1)
        return attempt

    # --- for the attempt ----------------------------------------------------------------------------------------------

    async def _begin(self) -> int:
        """Make everything ready for the block, and return the number of the attempt. Losses meanwhile count."""
        self._home.check_task()
        if self._state is not _State.GIVEN:
            raise InvalidArgument(f"the block of an attempt is entered once: {self._state.value}")
        try:
            while True:
                self._made += 1
                try:
                    await self._prepare()
                except Exception as error:
                    if not self._is_caught(error):
                        raise
                else:
                    self._state = _State.INSIDE
                    return self._made
        except BaseException:
            self._end()
            raise

    def _leave(self, error: BaseException | None) -> bool:
        """Note the end of a block, and return whether its exception is a loss after which there is another attempt."""
        self._home.check_task()
        if self._state is not _State.INSIDE:
            raise InvalidArgument(f"the block of an attempt is left once: {self._state.value}")
        if error is not None and self._is_caught(error):
            self._state = _State.NEW
            return True
        self._end()
        return False

    def _end(self) -> None:
        self._state = _State.OVER
        self._serving = []
        copies, self._copies = self._copies, []
        for copy in copies:
            copy.free()

    async def _prepare(self) -> None:
        """Save the arrays, or write them back, and note the generations in which the block is about to run."""
        self._serving = await self._running()
        if not self._is_saved:
            if not self._copies:
                self._copies = [each.device.empty(each.size, _BYTE, guarded=False) for each in self._wholes]
            for whole, copy in zip(self._wholes, self._copies, strict=True):
                await copy.copy_from(whole)
            self._is_saved = True
        else:
            for whole, copy in zip(self._wholes, self._copies, strict=True):
                await whole.copy_from(copy)
        self._serving = await self._running()  # a device that had nothing to copy may have been lost meanwhile

    async def _running(self) -> list[tuple[DeviceCore, int]]:
        """Wait until every device that has not ended runs, and return them with the numbers of their generations."""
        while True:
            living = [core for core in self._cores if core.ended is None]
            if not living:
                raise self._cores[0].end_error()
            found = [(core, (await core.running_generation()).number) for core in living]
            if not any(_is_lost(core, number) for core, number in found):
                return found

    def _is_caught(self, error: BaseException) -> bool:
        """Return whether an exception is a loss after which there is another attempt."""
        if not self._is_loss(error):
            return False
        if self._made < self._attempts:
            return True
        plural = "attempt was" if self._made == 1 else "attempts were"
        error.add_note(f"atomr_trio.retry: {self._made} {plural} made, and lost")
        return False

    def _is_loss(self, error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            return all(map(self._is_loss, error.exceptions))
        if isinstance(error, ContextLost):
            return any(core.index == error.device and error.generation >= number for core, number in self._serving)
        if not any(_is_lost(core, number) for core, number in self._serving):
            return False
        return isinstance(error, _FOLLOWS) or (
            isinstance(error, ItemsLost) and all(map(self._is_loss, error.lost.values()))
        )


@final
class Attempt(metaclass=NoPublicConstructor):
    """One run of the block of a `retry`: an async context manager, which catches a loss while attempts are left."""

    __slots__ = ("__weakref__", "_retry", "number")

    number: int
    """Its number, from 1. It is known when the block begins: what is lost while arrays are saved or written back counts
    too."""

    _made_by = "`async for attempt in atomr_trio.retry(dev)`"

    def __init__(self, retry: Retry, number: int) -> None:
        self._retry = retry
        self.number = number

    def __repr__(self) -> str:
        return f"<Attempt {self.number} of {self._retry!r}>"

    async def __aenter__(self) -> Self:
        self.number = await self._retry._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return self._retry._leave(error)


refuse_habits(Attempt, BLOCK)


def _is_lost(core: DeviceCore, number: int) -> bool:
    """Return whether a generation that was in service is so no more."""
    generation = core.current
    return generation is None or generation.number != number or generation.loss is not None


def _cores_of(dev: object) -> Sequence[DeviceCore]:
    if isinstance(dev, Device):
        return (dev._core,)
    if isinstance(dev, Devices):
        return tuple(each._core for each in dev)
    raise InvalidArgument(f"dev is a device, or the devices of a group, not {shown(dev)}", advice=GIVE_THE_GROUP)


def _wholes_of(saving: object, cores: Sequence[DeviceCore]) -> list[DeviceArray]:
    """Return the memory of arrays as bytes. Raises `InvalidArgument` for what cannot be saved."""
    if isinstance(saving, DeviceArray | str | bytes) or not isinstance(saving, Iterable):
        raise InvalidArgument(f"saving is a list of arrays, not {shown(saving)}")
    wholes = {}
    for array in saving:
        if not isinstance(array, DeviceArray):
            raise InvalidArgument(f"saving has device arrays, not {shown(array)}")
        storage = array._storage
        if storage.device not in cores:
            raise InvalidArgument(f"saving has an array of another device: {array!r}")
        if storage.device.strict:
            raise InvalidArgument(
                'no array survives a loss on a device of on_fault="stale", so none can be saved there',
                advice="save nothing, and make the arrays in the block.",
            )
        if array.state == "freed":
            raise InvalidArgument(f"saving has an array that was freed: {array!r}")
        if not array._covers_block:
            raise InvalidArgument(
                f"saving has a part of an array, which a write of that part does not make whole: {array!r}",
                advice="save the whole array.",
            )
        if array.nbytes:
            wholes[storage] = view_of(storage, 0, (array.nbytes,), (1,), _BYTE, _BYTE)
    return list(wholes.values())
