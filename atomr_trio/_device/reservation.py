"""Memory of a device that is set aside for one piece of work, as `Devices.reserve` gives it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, final

from .._arrays.memory import DeviceMemory
from .._memory.promises import Promise
from .._values.errors import InvalidArgument
from .._values.util import NoPublicConstructor

if TYPE_CHECKING:
    from .device import Device


@final
class Reservation(metaclass=NoPublicConstructor):
    """Bytes of the memory of one device, from entering the `with` block to leaving it. Made by `Devices.reserve`.

    Entering picks the device and returns it. Arrays that the task makes in the block are taken off the reservation, and
    so are those of tasks that it starts there; freed, they come back to it. Others cannot have these bytes, and
    `Devices.pick` counts them as taken.
    It reserves bytes of the device's `memory_limit`, each array rounded up to 512, and not one run of addresses. The
    workspaces of libraries do not respect it, and neither do other programs on the GPU.
    Arrays of the block live on when it is left.
    """

    _made_by = "devices.reserve(nbytes)"

    def __init__(self, nbytes: int, pick: Callable[[], Device]) -> None:
        self._nbytes = nbytes
        self._pick = pick
        self._device: Device | None = None
        self._promise: Promise | None = None

    def __repr__(self) -> str:
        if self._promise is None or self._device is None:
            return f"<Reservation of {self._nbytes:,} bytes, not entered>"
        state = "ended" if self._promise.ended else f"{self.left:,} left"
        return f"<Reservation of {self._nbytes:,} bytes of device {self._device.index}, {state}>"

    @property
    def nbytes(self) -> int:
        """The reserved bytes, as asked for."""
        return self._nbytes

    @property
    def left(self) -> int:
        """The reserved bytes that no array has taken; all of them before entering, 0 after leaving."""
        if self._promise is None:
            return self._nbytes
        return 0 if self._promise.ended else self._promise.left

    def __enter__(self) -> Device:
        """Pick a device, reserve the bytes, and return it.

        Raises `InvalidArgument` when entered before, `OutOfDeviceMemory` if no device has so many bytes left, and
        whatever else `Devices.pick` does.
        """
        if self._promise is not None:
            raise InvalidArgument(f"{self!r} was entered before; devices.reserve makes another")
        self._device = device = self._pick()
        self._promise = Promise(device._core.part(DeviceMemory).arena, self._nbytes)
        self._promise.enter()
        return device

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give back what is left."""
        if self._promise is not None and self._device is not None:
            self._device._core.home.check_thread()
            self._promise.leave()
            self._promise.end()
