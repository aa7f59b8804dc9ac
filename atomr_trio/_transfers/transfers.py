"""What an open device has for moving bytes: the staging area, pinned memory, batches' areas, and the helpers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._generation.core import DeviceCore, DevicePart
from .._supervision.closing import closed
from .batch_areas import BatchAreas
from .crew import Crew
from .pinned import PinnedMemory
from .staging import StagingPool

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray
    from .copies import HostCopies


class Transfers(DevicePart):
    """The host memory of an open device and the threads that copy it, and the verbs of an array that move its bytes.

    The modules of the verbs are imported by the first call. When a device is opened, that is while its worker starts.
    """

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self.staging: StagingPool = StagingPool()
        self.pinned: PinnedMemory = PinnedMemory(lambda: device.current)
        self.batch_areas: BatchAreas = BatchAreas(self.staging, self.pinned, lambda: device.current)
        self.crew: Crew = Crew()
        self._host_copies: HostCopies | None = None

    def copy_in(self, array: DeviceArray, host: npt.NDArray[Any]) -> Awaitable[None]:
        """Overwrite an array with host memory; see `DeviceArray.copy_from`."""
        return (self._host_copies or self._load()).copy_in(array, host)

    def copy_out(self, array: DeviceArray, host: npt.NDArray[Any]) -> Awaitable[None]:
        """Copy an array to host memory; see `DeviceArray.copy_to`."""
        return (self._host_copies or self._load()).copy_out(array, host)

    def _load(self) -> HostCopies:
        from .copies import HostCopies

        self._host_copies = HostCopies(self.device)
        return self._host_copies

    def copy_on_device(self, source: DeviceArray, target: DeviceArray) -> Awaitable[None]:
        """Overwrite an array with another of the device; see `DeviceArray.copy_from`."""
        from .copies import copy_on_device

        return copy_on_device(source, target)

    def fill(self, array: DeviceArray, value: complex | np.generic) -> Awaitable[None]:
        """Set every element of an array; see `DeviceArray.fill`."""
        from .memory import fill

        return fill(array, value)

    async def give_back(self) -> None:
        """Give the memory of all areas, and of pinned arrays that were collected, back to the system."""
        self.pinned.collect(tell=False)
        self.batch_areas.close_in_thread()
        descriptor, mapped = self.staging.part()
        await closed([descriptor], [mapped])

    def close(self) -> None:
        """Close the descriptors of all areas; those of pinned arrays that live on stay mapped."""
        self.staging.close()
        self.pinned.close()
        self.batch_areas.close()

    forget = close


def transfers_of(array: DeviceArray) -> Transfers:
    """Return those of the device of an array."""
    return array._storage.device.part(Transfers)
