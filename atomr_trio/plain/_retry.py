"""`retry`: the one function for both faces, which returns the form that the device has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

from .._values.errors import InvalidArgument
from ._twins import Twin

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .._device.device import Device
    from .._device.group import Devices
    from .._device.retry import Retry
    from ._faces import devices as plain
    from ._faces.retries import Retry as PlainRetry
    from ._types import AnyArray


@overload
def retry(dev: Device | Devices, *, attempts: int = 3, saving: Iterable[DeviceArray] = ()) -> Retry: ...


@overload
def retry(dev: plain.Device | plain.Devices, *, attempts: int = 3, saving: Iterable[AnyArray] = ()) -> PlainRetry: ...


def retry(dev: Any, *_others: Any, attempts: int = 3, saving: Any = ()) -> Any:
    """Run a block again after a loss: ``async for attempt in atomr_trio.retry(dev): async with attempt: ...``.

    On a device of `start` it is ``for attempt in atomr_trio.retry(dev): with attempt: ...``.

    - `dev`: a device, or the devices of a group; each of those that have not ended has to run before an attempt begins.
    - `attempts`: the number of attempts that may be made.
    - `saving`: whole arrays, of any shape and dtype, that the block changes. They are copied on their devices before
      the first attempt, and written back before each other one. The copies are freed at the end.

    A block is run again if it raises `ContextLost` of `dev`, from a generation in which it ran; or if a generation of
    `dev` was lost meanwhile and it raises `StaleArray`, `StaleKernel`, `WorldLost` or `ItemsLost`, or a group of
    nothing but these. An array that was saved is whole again then. Every other exception passes, and so does the loss
    of the last attempt, with a note that has the number of attempts. It leaves the arrays as they are.

    Raises `InvalidArgument` for arguments that are not valid: a part of an array, an array of another device, or one of
    a device of ``on_fault="stale"``. Entering a block raises `OutOfDeviceMemory` if the copies have no room,
    `StaleArray` for an array that was not whole before, and `DeviceFailed` or `DeviceClosed` if there is no next
    generation.
    """
    from .._device.retry import GIVE_THE_GROUP, Retry

    if _others:
        raise InvalidArgument(
            f"retry takes one device, or one group, and got {1 + len(_others)}", advice=GIVE_THE_GROUP
        )
    given = list(saving) if isinstance(dev, Twin) and isinstance(saving, Iterable) and not _is_one(saving) else saving
    if isinstance(dev, Twin):
        return dev._enqueue(Retry._create, (dev, attempts, given))
    return Retry._create(dev, attempts, given)


def _is_one(saving: object) -> bool:
    return isinstance(saving, Twin | str | bytes)
