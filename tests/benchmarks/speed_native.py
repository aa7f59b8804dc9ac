"""Launches by native code, which numba compiles in this process: the floor of what a launch can cost."""

from __future__ import annotations

import ctypes
import time
from ctypes import CFUNCTYPE, addressof, byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic
from speed_works import CALLER, WHOLE


@intrinsic
def load(_typing: Any, _address: Any) -> Any:
    """Read a word of memory that another writes: never from a register."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return numba.types.uint64(numba.types.uint64), code


class Loops:
    """So many launches each, on one stream."""

    def __init__(self, driver: Any, stream: int, module: Any) -> None:
        def native(function: Any, *kinds: Any) -> Any:
            """A foreign function that compiled code can call; addresses are whole numbers to it."""
            return CFUNCTYPE(c_int, *kinds)(ctypes.cast(function.bind(), c_void_p).value)

        launch = native(driver.cuLaunchKernel, c_size_t, *(c_uint,) * 7, *(c_size_t,) * 3)
        write = native(driver.cuStreamWriteValue64, c_size_t, c_size_t, c_uint64, c_uint)
        wait = native(driver.cuStreamSynchronize, c_size_t)

        @numba.njit
        def ticketed(function, stream, word, ticket, count):  # type: ignore[no-untyped-def]
            for number in range(count):
                launch(function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)
                write(stream, word, ticket + number, 0)
                while load(word) < ticket + number:
                    pass

        @numba.njit
        def launches(function, grid, block, stream, packed, count):  # type: ignore[no-untyped-def]
            for _ in range(count):
                launch(function, grid, 1, 1, block, 1, 1, 0, stream, packed, 0)

        @numba.njit
        def synchronize(stream):  # type: ignore[no-untyped-def]
            wait(stream)

        self._ticketed, self._launches, self._synchronize = ticketed, launches, synchronize
        self._stream = np.uint64(stream)
        page = c_void_p()
        driver.cuMemAllocHost(byref(page), 4096)
        self._word = (c_uint64 * 1).from_address(page.value or 0)
        self._word[0] = 0
        self._functions = {}
        for name in (b"empty", b"saxpy"):
            function = driver.CUfunction()
            driver.cuModuleGetFunction(byref(function), module, name)
            self._functions[name] = np.uint64(function.value or 0)
        memory = [driver.CUdeviceptr() for _ in range(2)]
        for each in memory:
            driver.cuMemAlloc(byref(each), 4096)
        self._arguments = (c_float(2.0), *memory, c_int(1024))
        self._packed = (c_void_p * 4)(*(addressof(each) for each in self._arguments))

    def ticketed(self, count: int) -> float:
        """Launch, let the GPU write a number behind it, look at it until it is there: the seconds of one."""
        address, ticket = np.uint64(addressof(self._word)), np.uint64(self._word[0] + 1)
        begun = time.perf_counter()
        self._ticketed(self._functions[b"empty"], self._stream, address, ticket, np.uint64(count))
        return (time.perf_counter() - begun) / count

    def empty(self, count: int) -> dict[str, float]:
        """Launches of the empty kernel."""
        return self._series(b"empty", 1, 1, 0, count)

    def saxpy(self, count: int) -> dict[str, float]:
        """Launches with four arguments."""
        return self._series(b"saxpy", 4, 256, addressof(self._packed), count)

    def _series(self, name: bytes, grid: int, block: int, packed: int, count: int) -> dict[str, float]:
        shape = np.uint32(grid), np.uint32(block), self._stream, np.uint64(packed), np.uint64(count)
        begun = time.perf_counter()
        self._launches(self._functions[name], *shape)
        called = time.perf_counter()
        self._synchronize(self._stream)
        return {CALLER: (called - begun) / count, WHOLE: (time.perf_counter() - begun) / count}
