"""Chunks of device memory that this process has mapped: physical memory that it has made, or has by a descriptor."""

from __future__ import annotations

import contextlib
import os
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any

from atomr_cuda.constants import driver as cuda

if TYPE_CHECKING:
    from .lanes import WorkerServices


class _Chunk:
    """Physical memory that this process holds."""

    __slots__ = ("handle", "mapped", "size")

    def __init__(self, size: int, handle: int) -> None:
        self.size = size
        self.handle = handle
        self.mapped = False


class Chunks:
    """Chunks by their addresses, which were reserved before; the worker's own device has access to each."""

    def __init__(self, driver: Any, services: WorkerServices) -> None:
        self._driver = driver
        self._services = services
        self._chunks: dict[int, _Chunk] = {}

    def __contains__(self, address: int) -> bool:
        return address in self._chunks

    def handle(self, address: int) -> int:
        """Return the driver's handle of a chunk."""
        return self._chunks[address].handle

    def adopt(self, address: int, size: int, descriptor: int) -> None:
        """Map the chunk behind a descriptor, which is closed in any case. Raises what the driver does."""
        driver = self._driver
        handle = driver.CUmemGenericAllocationHandle()
        try:
            driver.cuMemImportFromShareableHandle(
                byref(handle), c_void_p(descriptor), cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
            )
        finally:
            os.close(descriptor)
        self.map(address, size, handle.value)

    def map(self, address: int, size: int, handle: int) -> None:
        """Map physical memory; if the driver refuses, nothing stays mapped."""
        driver = self._driver
        chunk = self._chunks[address] = _Chunk(size, handle)
        try:
            driver.cuMemMap(address, size, 0, handle, 0)
            chunk.mapped = True
            access = driver.CUmemAccessDesc()
            access.location.type = cuda.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = self._services.device
            access.flags = cuda.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            driver.cuMemSetAccess(address, size, byref(access), 1)
        except BaseException:
            self.undo(address)
            raise

    def undo(self, address: int) -> None:
        """Release a chunk after an error. If this is refused too, the next user of the addresses tries it again."""
        with contextlib.suppress(self._services.cuda_error):
            self.drop(address)

    def drop(self, address: int) -> None:
        """Unmap a chunk and release it; the last holder's release frees the memory. A refused call can be repeated."""
        chunk = self._chunks[address]
        if chunk.mapped:
            self._driver.cuMemUnmap(address, chunk.size)
            chunk.mapped = False
        self._driver.cuMemRelease(chunk.handle)
        del self._chunks[address]

    def make_way(self, address: int, size: int) -> None:
        """Unmap what is still mapped at addresses that the user's process has given to another chunk."""
        for other, chunk in list(self._chunks.items()):
            if other < address + size and address < other + chunk.size:
                self._services.synchronize()
                self.drop(other)

    def drop_all(self) -> None:
        """Give every chunk back to the driver."""
        for address in list(self._chunks):
            self.drop(address)
