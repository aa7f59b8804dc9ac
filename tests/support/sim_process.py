"""What the simulated driver's tests share: short forms of the driver's calls, and a process to lose.

It speaks to the public table only, as everything above the table does. ``run_in_process`` runs a piece of code in a
process of its own, since a fault costs the process in which it happens; a ``Child`` is a process to talk with.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import time
from ctypes import byref, c_int, c_size_t, c_uint64, c_ulonglong, c_void_p
from typing import Self

import atomr_sim
from atomr_cuda import driver
from atomr_cuda.driver import CUlaunchConfig, CUmemAccessDesc, CUmemAllocationProp, CUmemLocation
from support import child_environment
from support.nvrtc import compile_ptx

MIB = 1 << 20
GRANULE = 2 * MIB
BASE = 0x1000_0000_0000


def begin(device: int = 0) -> c_void_p:
    """Install the simulator, make the primary context current; returns it."""
    atomr_sim.install()
    driver.cuInit(0)
    context = c_void_p()
    driver.cuDevicePrimaryCtxRetain(context, device)
    driver.cuCtxSetCurrent(context)
    return context


def stream(flags: int = driver.CU_STREAM_NON_BLOCKING) -> c_void_p:
    handle = c_void_p()
    driver.cuStreamCreate(handle, flags)
    return handle


def event(flags: int = 0) -> c_void_p:
    handle = c_void_p()
    driver.cuEventCreate(handle, flags)
    return handle


def allocate(size: int) -> int:
    address = c_uint64()
    driver.cuMemAlloc(address, size)
    return address.value


def properties(device: int = 0) -> CUmemAllocationProp:
    wanted = CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    wanted.location.id = device
    return wanted


def create(size: int, device: int = 0) -> int:
    handle = c_uint64()
    driver.cuMemCreate(handle, size, properties(device), 0)
    return handle.value


def reserve(size: int, hint: int = 0) -> int:
    address = c_uint64()
    driver.cuMemAddressReserve(address, size, 0, hint, 0)
    return address.value


def allow(address: int, size: int, flags: int = 3, device: int = 0) -> None:
    description = CUmemAccessDesc()
    description.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    description.location.id = device
    description.flags = flags
    driver.cuMemSetAccess(address, size, description, 1)


def access(address: int, device: int) -> int:
    """The access that a device has to mapped memory."""
    location, flags = CUmemLocation(), c_ulonglong()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    driver.cuMemGetAccess(flags, location, address)
    return flags.value


def export(handle: int) -> int:
    descriptor = c_int()
    driver.cuMemExportToShareableHandle(byref(descriptor), handle, 1, 0)
    return descriptor.value


def import_descriptor(descriptor: int) -> int:
    handle = c_uint64()
    driver.cuMemImportFromShareableHandle(handle, descriptor, 1)
    return handle.value


def durable(size: int = GRANULE, hint: int = BASE) -> tuple[int, int]:
    """Mapped physical memory at the hint; returns its address and a descriptor."""
    address, handle = reserve(size, hint), create(size)
    driver.cuMemMap(address, size, 0, handle, 0)
    allow(address, size)
    return address, export(handle)


def write(address: int, data: bytes) -> None:
    driver.cuMemcpyHtoD(address, data, len(data))


def read(address: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    driver.cuMemcpyDtoH(buffer, address, size)
    return buffer.raw


def word(address: int) -> int:
    """A 64-bit word of simulated memory, read without the driver, as another process would."""
    return c_uint64.from_address(address).value


def free_memory() -> int:
    free, total = c_size_t(), c_size_t()
    driver.cuMemGetInfo(free, total)
    return free.value


def load(source: str, arch: str = "compute_80") -> c_void_p:
    """A module from CUDA C++."""
    module = c_void_p()
    driver.cuModuleLoadData(module, compile_ptx(source, arch).encode())
    return module


def function(module: c_void_p, name: str) -> c_void_p:
    handle = c_void_p()
    driver.cuModuleGetFunction(handle, module, name.encode())
    return handle


def launch(kernel, on, *arguments, grid=(1, 1, 1), block=(1, 1, 1), shared=0) -> int:
    """Launch with ctypes values as arguments; returns the status."""
    config = CUlaunchConfig(*grid, *block, shared, on)
    addresses = (c_void_p * max(1, len(arguments)))(*(ctypes.addressof(argument) for argument in arguments))
    return driver.cuLaunchKernelEx.status(byref(config), kernel, byref(addresses), None)


def until(condition, seconds: float = 20.0) -> None:
    """Look until the condition holds; an assertion error after the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        os.sched_yield()


def _command(code: str) -> list[str]:
    """A Python process for code that sees this module's names."""
    prelude = "from support.sim_process import *\nfrom atomr_cuda.driver import *\nimport ctypes, os, sys\n"
    return [sys.executable, "-c", prelude + textwrap.dedent(code)]


def run_in_process(code: str, *, descriptors: tuple[int, ...] = (), check: bool = True, **variables: str):
    """Run code that sees this module's names in a new process; returns the finished process with its output."""
    done = subprocess.run(
        _command(code),
        env=child_environment(**variables),
        pass_fds=descriptors,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


class Child:
    """A process that runs code which sees this module's names. It is talked with in lines, and killed in the end."""

    def __init__(self, code: str, *, descriptors: tuple[int, ...] = (), **variables: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._popen = subprocess.Popen(
            _command(code), env=child_environment(**variables), pass_fds=descriptors, **pipes
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.kill()
        self._popen.communicate()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def kill(self) -> None:
        self._popen.kill()

    def hear(self) -> str:
        """The next line that it prints; an empty one when it has ended."""
        return self._popen.stdout.readline().strip()

    def tell(self, line: str = "") -> None:
        """Let its next ``input()`` return this line."""
        print(line, file=self._popen.stdin, flush=True)
