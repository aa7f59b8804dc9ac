"""Copies between two devices by a process that has the driver by ctypes, and nothing else: `peers_bare.py WHO BACKEND`.

It imports memory that another process has made, maps it at the addresses that it has there, and copies. The first
question tells of that memory, by descriptors that this process has inherited::

    {"device": 1, "chunks": [[address, size, descriptor], ...], "target": address, "source": address}

The others are ``{"nbytes": ..., "count": ...}``. The answer is the seconds of one copy by way: single copies that are
waited for, and so many of them with one wait.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from ctypes import byref, c_void_p
from typing import Any

from atomr_cuda import driver
from atomr_cuda.constants import driver as constants

clock = time.perf_counter


class Copies:
    """Copies to the memory of one device from that of another, on a stream of the first one."""

    def __init__(self, told: dict[str, Any]) -> None:
        context, stream = driver.CUcontext(), driver.CUstream()
        driver.cuInit(0)
        driver.cuDevicePrimaryCtxRetain(byref(context), told["device"])
        driver.cuCtxSetCurrent(context)
        driver.cuStreamCreate(byref(stream), driver.CU_STREAM_NON_BLOCKING)
        for address, size, descriptor in told["chunks"]:
            map_chunk(told["device"], address, size, descriptor)
        self._target, self._source = told["target"], told["source"]
        self._stream = stream.value
        self._copy, self._wait = driver.cuMemcpyDtoDAsync.bind(), driver.cuStreamSynchronize.bind()

    def ways(self, nbytes: int, count: int) -> dict[str, float]:
        """The seconds of one copy, by way; a few more before each series are not timed."""
        warm = count // 3 + 1
        self._singles(nbytes, warm)
        seconds = self._singles(nbytes, count)
        self._series(nbytes, warm)
        return {"awaited": statistics.median(seconds), **self._series(nbytes, count)}

    def _singles(self, nbytes: int, count: int) -> list[float]:
        copy, wait, target, source, stream = self._copy, self._wait, self._target, self._source, self._stream
        seconds = []
        for _ in range(count):
            begun = clock()
            status = copy(target, source, nbytes, stream) or wait(stream)
            seconds.append(clock() - begun)
            check(status)
        return seconds

    def _series(self, nbytes: int, count: int) -> dict[str, float]:
        copy, target, source, stream = self._copy, self._target, self._source, self._stream
        status = 0
        begun = clock()
        for _ in range(count):
            status = status or copy(target, source, nbytes, stream)
        called = clock()
        check(status or self._wait(stream))
        return {"caller": (called - begun) / count, "end to end": (clock() - begun) / count}


def map_chunk(device: int, address: int, size: int, descriptor: int) -> None:
    """Map physical memory where the process that made it has it, with access for this device."""
    handle, reserved, access = driver.CUmemGenericAllocationHandle(), driver.CUdeviceptr(), driver.CUmemAccessDesc()
    driver.cuMemImportFromShareableHandle(
        byref(handle), c_void_p(descriptor), constants.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    )
    driver.cuMemAddressReserve(byref(reserved), size, 0, address, 0)
    if reserved.value != address:
        raise RuntimeError(f"the addresses from {address:#x} are taken in this process")
    driver.cuMemMap(address, size, 0, handle.value, 0)
    access.location.type = constants.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = device
    access.flags = constants.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    driver.cuMemSetAccess(address, size, byref(access), 1)


def check(status: int) -> None:
    """Raise an error for a status that is one."""
    if status:
        raise RuntimeError(f"the call returned {status}")


def main() -> None:
    """Answer questions until there are no more."""
    if sys.argv[2] == "sim":
        importlib.import_module("atomr_sim").install()
    copies = Copies(json.loads(sys.stdin.readline()))
    print("null", flush=True)
    for question in sys.stdin:
        print(json.dumps(copies.ways(**json.loads(question))), flush=True)


if __name__ == "__main__":
    main()
