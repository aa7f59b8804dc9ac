"""The GPU as this process sees it, once an array is shared: a context, and windows on device memory.

A chunk of device memory is mapped into this process too, from the descriptor that this process holds anyway, so another
library works on the same bytes. On the simulator a chunk is a memory file, and is mapped as host memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from ctypes import byref, c_char
from typing import TYPE_CHECKING, Any, Final

from atomr_cuda.constants import driver as constants

from ..._memory.arena import Chunk
from ..._values.errors import CommandFailed, LibraryNotFound
from ..._values.shortage import host_limits
from ..._wire.channel import SharedMemory
from ..._wire.protocol import CELL

if TYPE_CHECKING:
    from ..._generation.core import DeviceCore


STREAMS: Final = 1024
"""The most streams of other libraries that one device keeps order with."""

LEGACY_STREAM: Final = 1

PER_THREAD_STREAM: Final = 2

NO_ORDER: Final = -1
"""Numbers that stand for streams in DLPack; larger ones are handles."""


@contextlib.contextmanager
def _refusals(operation: str, device: DeviceCore) -> Iterator[None]:
    """Turn an error of the driver in this process into the error of one request."""
    from atomr_cuda._library import CudaError, LibraryMissing

    try:
        with host_limits("another library cannot have the array", device=device.index, operation=operation):
            yield
    except LibraryMissing as missing:
        raise LibraryNotFound(str(missing), device=device.index, operation=operation) from missing
    except CudaError as error:
        raise CommandFailed(
            f"the driver refused it in this process: {error.text}",
            device=device.index,
            status=error.status,
            status_name=error.name,
            library="cuda",
            operation=operation,
        ) from error


class Consumer:
    """A GPU in this process: its primary context, which the other libraries use too."""

    def __init__(self, pci_bus_id: str) -> None:
        from atomr_cuda import driver

        self.driver = driver
        driver.cuInit(0)
        ordinal = driver.CUdevice()
        driver.cuDeviceGetByPCIBusId(byref(ordinal), pci_bus_id.encode())
        self.ordinal: int = ordinal.value
        """Its number in this process, which may differ from the worker's."""
        self._context = driver.CUcontext()
        with contextlib.ExitStack() as undo:
            driver.cuDevicePrimaryCtxRetain(byref(self._context), self.ordinal)
            undo.callback(driver.cuDevicePrimaryCtxRelease.status, self.ordinal)
            self.words: SharedMemory = SharedMemory.create("atomr-trio-interop", STREAMS * CELL)
            """A word for each stream of another library, which writes it."""
            undo.callback(self.words.close)
            self.words_address: int = self.register(self.words)
            undo.pop_all()
        self.view: memoryview[int] = self.words.bytes.cast("Q")

    @contextlib.contextmanager
    def bound(self, context: Any = None) -> Iterator[None]:
        """Make a context, or the primary one, current inside the block, and restore the caller's afterwards."""
        driver = self.driver
        driver.cuCtxPushCurrent(self._context if context is None else context)
        try:
            yield
        finally:
            driver.cuCtxPopCurrent.status(byref(driver.CUcontext()))

    def context_of(self, stream: int) -> Any:
        """Return the context of a stream, which must exist: of one that was destroyed the driver reads what is gone."""
        if stream <= PER_THREAD_STREAM:
            return self._context
        context = self.driver.CUcontext()
        with self.bound():
            self.driver.cuStreamGetCtx(stream, byref(context))
        return context

    def new_stream(self) -> int:
        """Return a new stream in this process, in order with no other."""
        stream = self.driver.CUstream()
        with self.bound():
            self.driver.cuStreamCreate(byref(stream), self.driver.CU_STREAM_NON_BLOCKING)
        return stream.value or 0

    def destroy_stream(self, stream: int) -> None:
        """Destroy the stream; its submitted work is still done."""
        with self.bound():
            self.driver.cuStreamDestroy(stream)

    def register(self, memory: SharedMemory) -> int:
        """Let the GPU see shared memory; returns its device address. If that is refused, nothing of it is left."""
        host = _host_address(memory.map)
        address = self.driver.CUdeviceptr()
        with self.bound():
            self.driver.cuMemHostRegister(
                host, memory.size, constants.CU_MEMHOSTREGISTER_PORTABLE | constants.CU_MEMHOSTREGISTER_DEVICEMAP
            )
            try:
                self.driver.cuMemHostGetDevicePointer(byref(address), host, 0)
            except BaseException:
                self.driver.cuMemHostUnregister.status(host)
                raise
        return int(address.value)

    def unregister(self, memory: SharedMemory) -> None:
        """Undo `register`, and unmap."""
        with self.bound():
            self.driver.cuMemHostUnregister(_host_address(memory.map))
        memory.close()

    def close(self) -> None:
        """Release everything; no stream may be waiting for anything here."""
        self.view.release()
        self.unregister(self.words)
        self.driver.cuDevicePrimaryCtxRelease(self.ordinal)


class CudaWindow:
    """A chunk of device memory, mapped into this process: at its own address if that is free here."""

    def __init__(self, chunk: Chunk, consumer: Consumer) -> None:
        self._driver = driver = consumer.driver
        self._size = chunk.size
        self._consumer = consumer
        with contextlib.ExitStack() as undo, consumer.bound():
            handle = driver.CUmemGenericAllocationHandle()
            driver.cuMemImportFromShareableHandle(
                byref(handle), chunk.descriptor, constants.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
            )
            # The mapping keeps the memory: nothing needs the handle afterwards, however this ends.
            undo.callback(driver.cuMemRelease.status, handle.value)
            address = driver.CUdeviceptr()
            driver.cuMemAddressReserve(byref(address), chunk.size, 0, chunk.address, 0)
            self.address: int = address.value
            with contextlib.ExitStack() as failed:
                failed.callback(driver.cuMemAddressFree.status, self.address, self._size)
                driver.cuMemMap(self.address, self._size, 0, handle.value, 0)
                failed.callback(driver.cuMemUnmap.status, self.address, self._size)
                access = driver.CUmemAccessDesc()
                access.location.type = constants.CU_MEM_LOCATION_TYPE_DEVICE
                access.location.id = consumer.ordinal
                access.flags = constants.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                driver.cuMemSetAccess(self.address, self._size, byref(access), 1)
                failed.pop_all()

    def close(self) -> None:
        """Unmap it."""
        with self._consumer.bound():
            self._driver.cuMemUnmap(self.address, self._size)
            self._driver.cuMemAddressFree(self.address, self._size)


class HostWindow:
    """A chunk of the simulator, mapped into this process as host memory."""

    def __init__(self, chunk: Chunk) -> None:
        self._map = mmap.mmap(chunk.descriptor, chunk.size)
        self.address: int = _host_address(self._map)

    def close(self) -> None:
        """Unmap it."""
        self._map.close()


def _host_address(memory: mmap.mmap) -> int:
    return ctypes.addressof(c_char.from_buffer(memory))
