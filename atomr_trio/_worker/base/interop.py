"""Ordering between a lane and the streams of other libraries in the user's process.

Those streams write words of a page that both processes have registered, and a lane waits for such a word. In the other
direction, they wait for the lane's own counter, which needs no code here.
"""

from __future__ import annotations

import contextlib
from ctypes import addressof, byref, c_char, c_void_p
from typing import TYPE_CHECKING, Any

from atomr_cuda.constants.driver import CU_MEMHOSTREGISTER_DEVICEMAP, CU_STREAM_WAIT_VALUE_GEQ

from ..._wire.channel import SharedMemory
from ..._wire.records.interop import ATTACH, INTEROP, SETTLE, WAIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from .lanes import Command, Lane, WorkerServices


class InteropEngine:
    """The calls behind the verbs above."""

    table = INTEROP

    def __init__(self, services: WorkerServices) -> None:
        from atomr_cuda import driver

        self._driver = driver
        self._services = services
        self._page: SharedMemory | None = None
        self._address = 0
        self.calls: dict[int, Callable[[Command, Lane], Any]] = {
            ATTACH.number: self._attach,
            WAIT.number: self._wait,
            SETTLE.number: self._settle,
        }

    def _attach(self, command: Command, lane: Lane) -> None:
        (size,) = ATTACH.struct.unpack(command.payload)
        self._page = page = SharedMemory.adopt(command.take_descriptor(), size)
        with contextlib.suppress(self._services.cuda_error):  # the first wait tries again
            self._address = self._registered(page)

    def _registered(self, page: SharedMemory) -> int:
        driver, host, address = self._driver, _host_address(page), self._driver.CUdeviceptr()
        driver.cuMemHostRegister(host, page.size, CU_MEMHOSTREGISTER_DEVICEMAP)
        try:
            driver.cuMemHostGetDevicePointer(byref(address), host, 0)
        except BaseException:
            driver.cuMemHostUnregister.status(host)
            raise
        registered: int = address.value
        return registered

    def _wait(self, command: Command, lane: Lane) -> None:
        try:
            if self._page is not None and not self._address:
                self._address = self._registered(self._page)
            offset, value = WAIT.struct.unpack(command.payload)
            self._driver.cuStreamWaitValue64(lane.stream, self._address + offset, value, CU_STREAM_WAIT_VALUE_GEQ)
        except self._services.cuda_error as error:
            # Later work would run too early: it is better that nothing runs any more.
            self._services.lost(error, command.verb.operation)

    def _settle(self, command: Command, lane: Lane) -> None:
        """There is nothing to call."""

    def forget_lane(self, index: int) -> tuple[()]:
        """Nothing here belongs to a lane."""
        return ()

    def close(self) -> None:
        """Give the page back."""
        if self._page is not None:
            if self._address:
                self._driver.cuMemHostUnregister(_host_address(self._page))
            self._page.close()
            self._page = None


def _host_address(memory: SharedMemory) -> c_void_p:
    return c_void_p(addressof(c_char.from_buffer(memory.map)))
