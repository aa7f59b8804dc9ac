"""Memory of other devices: their chunks, mapped in this process at the addresses that they have everywhere.

Each device has a range of addresses of its own, so one address means one array in every worker of a group. The ranges
of the other devices are reserved when the worker is adopted, before something else of this process takes them. A
refusal, there or later, costs nothing but the command that needs the chunk: the user's process can copy by way of the
host instead.
"""

from __future__ import annotations

import contextlib
import os
from ctypes import byref
from typing import TYPE_CHECKING, Any

from atomr_cuda.constants import driver as cuda

from ..._wire.status import StatusClass, classify
from .chunks import Chunks
from .lanes import CommandRefused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .lanes import WorkerServices

_Range = tuple[int, int]
"""The first address, and the number of bytes."""


class PeerMemory:
    """The chunks of other devices that this worker's device can access.

    `map` and `unmap` may be called by any thread, but by one at a time.
    """

    def __init__(self, driver: Any, services: WorkerServices) -> None:
        self._driver = driver
        self._services = services
        self._chunks = Chunks(driver, services)
        self._ranges: list[_Range] = []
        """The ranges of the other devices."""
        self._reserved: list[_Range] = []

    def reserve(self, ranges: Iterable[_Range]) -> None:
        """Reserve the ranges of other devices. One that cannot be had is tried again with its first chunk."""
        self._ranges = list(ranges)
        for each in self._ranges:
            with contextlib.suppress(self._services.cuda_error, CommandRefused):
                self._reserve(each)

    def _reserve(self, wanted: _Range) -> None:
        base, extent = wanted
        reserved = self._driver.CUdeviceptr()
        self._driver.cuMemAddressReserve(byref(reserved), extent, 0, base, 0)
        if reserved.value != base:
            self._driver.cuMemAddressFree(reserved.value, extent)
            # As the driver would say of a chunk there, but for the text.
            raise CommandRefused(
                cuda.CUDA_ERROR_INVALID_VALUE,
                "CUDA_ERROR_INVALID_VALUE",
                f"the addresses {base:#x} + {extent:#x} of another device are taken in the worker's process",
                "cuda",
            )
        self._reserved.append(wanted)

    def map(self, address: int, size: int, descriptor: int) -> None:
        """Map a chunk of another device in the place of what is mapped there. The descriptor is closed in any case.

        Raises `CommandRefused` or the driver's error; this chunk is not mapped then.
        """
        try:
            with contextlib.ExitStack() as closing:
                closing.callback(os.close, descriptor)
                for wanted in self._ranges:
                    if wanted not in self._reserved and wanted[0] <= address < sum(wanted):
                        self._reserve(wanted)
                self._chunks.make_way(address, size)
                closing.pop_all()
            self._chunks.adopt(address, size, descriptor)
        except self._services.cuda_error as error:
            if error.status != cuda.CUDA_ERROR_INVALID_DEVICE:
                raise
            # Elsewhere it says that the worker's own device is gone; here, that this cannot access the other one.
            raise refused_by(error) from None

    def unmap(self, address: int) -> None:
        """Unmap a chunk, if there is one. No work on it may be unfinished."""
        if address in self._chunks:
            self._chunks.drop(address)

    def close(self) -> None:
        """Give every chunk and every range back to the driver."""
        self._chunks.drop_all()
        while self._reserved:
            self._driver.cuMemAddressFree(*self._reserved[-1])
            self._reserved.pop()
        self._ranges = []


def refused_by(error: Any) -> CommandRefused:
    """Return what is said of an error of the driver after which the worker goes on."""
    kind = StatusClass.REQUEST if error.status == cuda.CUDA_ERROR_INVALID_DEVICE else classify(error.status)
    return CommandRefused(error.status, error.name, f"{error.function}: {error.text}", error.library, kind)
