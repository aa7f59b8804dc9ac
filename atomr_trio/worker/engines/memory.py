"""Memory: chunks of the arena, copies through the staging area, copies on the device, and fills."""

from __future__ import annotations

import os
import struct
import time
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import TYPE_CHECKING, Any

from ..protocol import Mode, Role, VerbTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..lanes import Command, Lane, WorkerServices

# --- the records ------------------------------------------------------------------------------------------------------

MEMORY = VerbTable("memory", 1)

CREATE_CHUNK = MEMORY.verb("create_chunk", Mode.BLOCKS, {"address": "Q", "size": "Q"})
"""Make physical memory and map it. The tail lists (as 64-bit words) chunks that may be released if memory is short."""

RELEASE_CHUNK = MEMORY.verb("release_chunk", Mode.BLOCKS, {"address": "Q"})

COPY_IN = MEMORY.verb(
    "copy_in", Mode.ENQUEUES, {"destination": "Q", "staging": "Q", "size": "Q"}, {"destination": Role.OVERWRITE}
)
COPY_OUT = MEMORY.verb("copy_out", Mode.ENQUEUES, {"source": "Q", "staging": "Q", "size": "Q"}, {"source": Role.READ})
COPY_IN_2D = MEMORY.verb(
    "copy_in_2d",
    Mode.ENQUEUES,
    {"destination": "Q", "pitch": "Q", "staging": "Q", "width": "Q", "height": "Q"},
    {"destination": Role.OVERWRITE},
)
COPY_OUT_2D = MEMORY.verb(
    "copy_out_2d",
    Mode.ENQUEUES,
    {"source": "Q", "pitch": "Q", "staging": "Q", "width": "Q", "height": "Q"},
    {"source": Role.READ},
)
COPY = MEMORY.verb(
    "copy",
    Mode.ENQUEUES,
    {"destination": "Q", "destination_pitch": "Q", "source": "Q", "source_pitch": "Q", "width": "Q", "height": "Q"},
    {"destination": Role.OVERWRITE, "source": Role.READ},
)
FILL = MEMORY.verb(
    "fill",
    Mode.ENQUEUES,
    {"destination": "Q", "pitch": "Q", "itemsize": "Q", "width": "Q", "height": "Q", "pattern": "16s"},
    {"destination": Role.OVERWRITE},
)
"""`height` rows of `width` items; `pattern` begins with the bytes of one item (1, 2, 4, 8 or 16 of them)."""

# --- the calls --------------------------------------------------------------------------------------------------------

_CU_MEM_ALLOCATION_TYPE_PINNED = 1
_CU_MEM_LOCATION_TYPE_DEVICE = 1
_CU_MEM_HANDLE_TYPE_NONE = 0
_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1
_CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
_CU_MEMORYTYPE_HOST = 1
_CU_MEMORYTYPE_DEVICE = 2
_OUT_OF_MEMORY = 2
_RELEASE_SECONDS = 1.0
_SEED_BYTES = 64 * 1024
"""How much of a fill with a wide pattern is written item by item before it is doubled by copies."""


class MemoryEngine:
    """The calls behind the verbs above."""

    table = MEMORY

    def __init__(self, services: WorkerServices) -> None:
        from atomr_cuda import driver

        self._driver = driver
        self._services = services
        self._chunks: dict[int, tuple[int, int]] = {}
        self.calls: dict[int, Callable[[Command, Lane], Any]] = {
            CREATE_CHUNK.number: self._create_chunk,
            RELEASE_CHUNK.number: self._release_chunk,
            COPY_IN.number: self._copy_in,
            COPY_OUT.number: self._copy_out,
            COPY_IN_2D.number: self._copy_in_2d,
            COPY_OUT_2D.number: self._copy_out_2d,
            COPY.number: self._copy,
            FILL.number: self._fill,
        }


    def forget_lane(self, index: int) -> None:
        """Nothing here belongs to a lane."""

    # Chunks.

    def adopt_chunk(self, address: int, size: int, descriptor: int) -> None:
        """Map a chunk that an earlier generation made, at the address it had; the descriptor is used up."""
        driver = self._driver
        handle = driver.CUmemGenericAllocationHandle()
        try:
            driver.cuMemImportFromShareableHandle(
                byref(handle), c_void_p(descriptor), _CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
            )
        finally:
            os.close(descriptor)
        self._map(address, size, handle.value)

    def _map(self, address: int, size: int, handle: int) -> None:
        driver = self._driver
        driver.cuMemMap(address, size, 0, handle, 0)
        access = driver.CUmemAccessDesc()
        access.location.type = _CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = self._services.device
        access.flags = _CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        driver.cuMemSetAccess(address, size, byref(access), 1)
        self._chunks[address] = (size, handle)

    def drop_chunk(self, address: int) -> None:
        """Unmap a chunk and let go of it; the memory is freed with its last holder."""
        size, handle = self._chunks.pop(address)
        self._driver.cuMemUnmap(address, size)
        self._driver.cuMemRelease(handle)

    def _create_chunk(self, command: Command, lane: Lane) -> None:
        address, size = CREATE_CHUNK.struct.unpack_from(command.payload)
        tail = command.payload[CREATE_CHUNK.struct.size :]
        spare = struct.unpack(f"<{len(tail) // 8}Q", tail)
        driver = self._driver
        properties = driver.CUmemAllocationProp()
        properties.type = _CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = _CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self._services.device
        durable = self._services.durable
        properties.requestedHandleTypes = (
            _CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR if durable else _CU_MEM_HANDLE_TYPE_NONE
        )
        handle = driver.CUmemGenericAllocationHandle()
        status = driver.cuMemCreate.status(byref(handle), size, byref(properties), 0)
        released: list[int] = []
        if status == _OUT_OF_MEMORY and spare:
            self._services.synchronize()
            for other in spare:
                self.drop_chunk(other)
                released.append(other)
        if released:
            self._services.post({"kind": "released", "chunks": released})
            status = self._create_when_released(handle, size, properties)
        if status:
            driver.cuMemCreate(byref(handle), size, byref(properties), 0)
        self._map(address, size, handle.value)
        if durable:
            descriptor = c_int(-1)
            driver.cuMemExportToShareableHandle(byref(descriptor), handle, _CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
            # The descriptor is in the parent's hands before the ticket is: a finished write is never lost.
            self._services.post({"kind": "chunk", "address": address}, [descriptor.value])
            os.close(descriptor.value)

    def _create_when_released(self, handle: Any, size: int, properties: Any) -> int:
        """The memory is free once the user's process has closed its descriptors too; it was just told to."""
        deadline = time.monotonic() + _RELEASE_SECONDS
        while True:
            status: int = self._driver.cuMemCreate.status(byref(handle), size, byref(properties), 0)
            if status != _OUT_OF_MEMORY or time.monotonic() > deadline:
                return status
            time.sleep(0.005)

    def _release_chunk(self, command: Command, lane: Lane) -> None:
        (address,) = RELEASE_CHUNK.struct.unpack_from(command.payload)
        if address in self._chunks:  # or its creation had failed
            self._services.synchronize()
            self.drop_chunk(address)

    # Copies.

    def _copy_in(self, command: Command, lane: Lane) -> None:
        destination, staging, size = COPY_IN.struct.unpack_from(command.payload)
        self._driver.cuMemcpyHtoDAsync(destination, self._services.staging_address + staging, size, lane.stream)

    def _copy_out(self, command: Command, lane: Lane) -> None:
        source, staging, size = COPY_OUT.struct.unpack_from(command.payload)
        self._driver.cuMemcpyDtoHAsync(self._services.staging_address + staging, source, size, lane.stream)

    def _copy_in_2d(self, command: Command, lane: Lane) -> None:
        destination, pitch, staging, width, height = COPY_IN_2D.struct.unpack_from(command.payload)
        host = self._services.staging_address + staging
        self._copy_rows(lane, (None, destination, pitch), (host, None, width), width, height)

    def _copy_out_2d(self, command: Command, lane: Lane) -> None:
        source, pitch, staging, width, height = COPY_OUT_2D.struct.unpack_from(command.payload)
        host = self._services.staging_address + staging
        self._copy_rows(lane, (host, None, width), (None, source, pitch), width, height)

    def _copy(self, command: Command, lane: Lane) -> None:
        destination, destination_pitch, source, source_pitch, width, height = COPY.struct.unpack_from(command.payload)
        if height == 1:
            self._driver.cuMemcpyDtoDAsync(destination, source, width, lane.stream)
        else:
            target, origin = (None, destination, destination_pitch), (None, source, source_pitch)
            self._copy_rows(lane, target, origin, width, height)

    def _copy_rows(
        self,
        lane: Lane,
        destination: tuple[int | None, int | None, int],
        source: tuple[int | None, int | None, int],
        width: int,
        height: int,
    ) -> None:
        """Copy `height` rows of `width` bytes; each side is (host address, device address, pitch)."""
        shape = self._driver.CUDA_MEMCPY2D()
        for prefix, (host, device, pitch) in (("dst", destination), ("src", source)):
            setattr(shape, f"{prefix}MemoryType", _CU_MEMORYTYPE_HOST if device is None else _CU_MEMORYTYPE_DEVICE)
            setattr(shape, f"{prefix}Pitch", pitch)
            if device is None:
                setattr(shape, f"{prefix}Host", host)
            else:
                setattr(shape, f"{prefix}Device", device)
        shape.WidthInBytes = width
        shape.Height = height
        self._driver.cuMemcpy2DAsync(byref(shape), lane.stream)

    # Fills.

    def _fill(self, command: Command, lane: Lane) -> None:
        address, pitch, itemsize, width, height, pattern = FILL.struct.unpack_from(command.payload)
        if itemsize <= 4:
            self._fill_narrow(lane, address, pitch, itemsize, width, height, pattern)
            return
        self._fill_doubling(lane, address, itemsize, width, pattern)
        done = 1
        while done < height:
            step = min(done, height - done)
            target = (None, address + done * pitch, pitch)
            self._copy_rows(lane, target, (None, address, pitch), width * itemsize, step)
            done += step

    def _fill_narrow(
        self, lane: Lane, address: int, pitch: int, itemsize: int, width: int, height: int, pattern: bytes
    ) -> None:
        driver = self._driver
        value = int.from_bytes(pattern[:itemsize], "little")
        if height == 1:
            fill = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}[itemsize]
            fill(address, value, width, lane.stream)
        else:
            rows = {1: driver.cuMemsetD2D8Async, 2: driver.cuMemsetD2D16Async, 4: driver.cuMemsetD2D32Async}[itemsize]
            rows(address, pitch, value, width, height, lane.stream)

    def _fill_doubling(self, lane: Lane, address: int, itemsize: int, count: int, pattern: bytes) -> None:
        """The driver sets at most four bytes at a time: write a first stretch word by word, then double it."""
        driver = self._driver
        total = count * itemsize
        seed = min(total, _SEED_BYTES // itemsize * itemsize)
        for offset in range(0, itemsize, 4):
            word = int.from_bytes(pattern[offset : offset + 4], "little")
            driver.cuMemsetD2D32Async(address + offset, itemsize, word, 1, seed // itemsize, lane.stream)
        done = seed
        while done < total:
            step = min(done, total - done)
            driver.cuMemcpyDtoDAsync(address + done, address, step, lane.stream)
            done += step

    def close(self) -> None:
        """Give every chunk back to the driver."""
        for address in list(self._chunks):
            self.drop_chunk(address)

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the device, as ``cuMemGetInfo`` says."""
        free, total = c_size_t(), c_size_t()
        self._driver.cuMemGetInfo(byref(free), byref(total))
        return free.value, total.value
