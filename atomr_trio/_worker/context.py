"""The primary context of the worker's device: retained, asked for facts, and shown the memory of both processes."""

from __future__ import annotations

import os
from ctypes import addressof, byref, c_char, c_int, c_size_t, c_void_p, create_string_buffer
from typing import Any

from atomr_cuda.constants import driver as cuda

from .._wire.channel import SharedMemory

_ATTRIBUTES = {
    "max_threads_per_block": cuda.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
    "max_block_x": cuda.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
    "max_block_y": cuda.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
    "max_block_z": cuda.CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
    "max_grid_x": cuda.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
    "max_grid_y": cuda.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
    "max_grid_z": cuda.CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
    "max_shared_bytes": cuda.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
    "max_threads_per_multiprocessor": cuda.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
    "warp_size": cuda.CU_DEVICE_ATTRIBUTE_WARP_SIZE,
    "multiprocessors": cuda.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    "compute_mode": cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE,
    "capability_major": cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    "capability_minor": cuda.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    "posix_descriptors": cuda.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
}
"""``CUdevice_attribute`` numbers of what the user's process wants to know about the device."""


class StartFailed(Exception):
    """The worker cannot serve; the parent is told why and the process ends."""


class Context:
    """The device's primary context, current in the thread that makes this."""

    def __init__(self, driver: Any, device: int, base: int, extent: int) -> None:
        """Retain it, and reserve the range of addresses before anything else claims that. Raises `StartFailed`."""
        self.driver: Any = driver
        driver.cuInit(0)
        found = driver.CUdevice()
        driver.cuDeviceGet(byref(found), device)
        self._device = found.value
        context = driver.CUcontext()
        driver.cuDevicePrimaryCtxRetain(byref(context), self._device)
        self._context = context
        driver.cuCtxSetCurrent(context)
        reserved = driver.CUdeviceptr()
        driver.cuMemAddressReserve(byref(reserved), extent, 0, base, 0)
        if reserved.value != base:
            raise StartFailed(
                f"the address range {base:#x} + {extent:#x} is taken: the driver gave {reserved.value:#x}"
            )

    def bind_thread(self) -> None:
        """Make it current in the calling thread."""
        self.driver.cuCtxSetCurrent(self._context)

    def register(self, memory: SharedMemory) -> int:
        """Let the device see shared memory; returns its device address."""
        host = _host_address(memory)
        self.driver.cuMemHostRegister(host, memory.size, cuda.CU_MEMHOSTREGISTER_DEVICEMAP)
        address = self.driver.CUdeviceptr()
        self.driver.cuMemHostGetDevicePointer(byref(address), host, 0)
        return int(address.value)

    def unregister(self, memory: SharedMemory) -> None:
        """End that."""
        self.driver.cuMemHostUnregister(_host_address(memory))

    def test(self, stream: Any, address: int, words: Any, index: int) -> None:
        """Check that the device writes what it is told before anybody relies on it. Raises `StartFailed`.

        `address` is that of the `words` on the device, and `index` the word to write.
        """
        word = 0x5EED_0000_0000_0000 | os.getpid()
        self.driver.cuStreamWriteValue64(stream, address + index * 8, word, 0)
        self.driver.cuStreamSynchronize(stream)
        seen = words[index]
        if seen != word:
            raise StartFailed(f"the self-test of the device failed: it wrote {seen:#x} instead of {word:#x}")

    @property
    def shares_memory(self) -> bool:
        """True if device memory can be given to other processes by descriptors."""
        return bool(self._attribute(_ATTRIBUTES["posix_descriptors"]))

    def _attribute(self, number: int) -> int:
        value = c_int()
        self.driver.cuDeviceGetAttribute(byref(value), number, self._device)
        return value.value

    def facts(self) -> dict[str, Any]:
        """Return what the user's process wants to know about the device."""
        driver = self.driver
        name = create_string_buffer(256)
        driver.cuDeviceGetName(name, len(name), self._device)
        bus = create_string_buffer(32)
        driver.cuDeviceGetPCIBusId(bus, len(bus), self._device)
        version, total = c_int(), c_size_t()
        driver.cuDriverGetVersion(byref(version))
        driver.cuDeviceTotalMem(byref(total), self._device)
        least, greatest = c_int(), c_int()
        driver.cuCtxGetStreamPriorityRange(byref(least), byref(greatest))
        return {
            "name": name.value.decode(),
            "pci_bus_id": bus.value.decode(),
            "driver_version": version.value,
            "total_memory": total.value,
            "lowest_priority": least.value,
            "highest_priority": greatest.value,
            "peers": self._peers(),
            **{key: self._attribute(number) for key, number in _ATTRIBUTES.items()},
        }

    def _peers(self) -> list[int]:
        """Return the indices of the other devices whose memory this one can access; none of which the driver refuses
        to tell: that is not this device's fault."""
        count = c_int()
        self.driver.cuDeviceGetCount(byref(count))
        return [index for index in range(count.value) if self._accesses(index)]

    def _accesses(self, index: int) -> bool:
        other, access = self.driver.CUdevice(), c_int()
        if self.driver.cuDeviceGet.status(byref(other), index) or other.value == self._device:
            return False
        return not self.driver.cuDeviceCanAccessPeer.status(byref(access), self._device, other) and access.value == 1

    def release(self) -> None:
        """Give it back."""
        self.driver.cuDevicePrimaryCtxRelease(self._device)


def _host_address(memory: SharedMemory) -> c_void_p:
    return c_void_p(addressof(c_char.from_buffer(memory.map)))
