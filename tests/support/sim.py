"""A simulated GPU for one test: compile, load, allocate, launch.  Device memory is numpy's own."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from atomr_sim.engine.memory import AddressSpace
from atomr_sim.engine.simt import KernelFunction, LoadedModule
from support.nvrtc import compile_ptx

Triple = int | tuple[int, ...]


def triple(extent: Triple) -> tuple[int, int, int]:
    whole = (extent,) if isinstance(extent, int) else extent
    x, y, z = (*whole, 1, 1)[:3]
    return x, y, z


class Machine:
    """An address space, the arrays that are in it, and what kernels printed."""

    def __init__(self, arch: str = "compute_80") -> None:
        self.arch = arch
        self.memory = AddressSpace()
        self.printed: list[bytes] = []
        self._kept: list[Any] = []

    def array(self, values: Any, dtype: Any = None) -> np.ndarray:
        """A copy of `values` that kernels may touch; none of its neighbours are."""
        source = np.array(values, dtype)
        backing = np.zeros(source.nbytes + 512, np.uint8)
        start = 256 + -(backing.ctypes.data + 256) % 256
        result = backing[start : start + source.nbytes].view(source.dtype).reshape(source.shape)
        result[...] = source
        self.memory.add(result.ctypes.data, result.nbytes)
        self._kept.append(backing)
        return result

    def zeros(self, shape: Any, dtype: Any) -> np.ndarray:
        return self.array(np.zeros(shape, dtype))

    def load(self, source: str, *options: str) -> LoadedModule:
        return LoadedModule(compile_ptx(source, self.arch, *options), self.memory)

    def kernel(self, source: str, name: str, *options: str) -> KernelFunction:
        return self.load(source, *options).functions[name]

    def launch(
        self,
        kernel: KernelFunction,
        grid: Triple,
        block: Triple,
        *arguments: Any,
        shared: int = 0,
        cooperative: bool = False,
    ) -> None:
        """Pack the arguments as the kernel's parameters lie; arrays go as addresses, ints by the parameter's size."""
        buffer = bytearray(kernel.parameter_bytes)
        assert len(arguments) == len(kernel.parameters)
        for (offset, size), argument in zip(kernel.parameters, arguments, strict=True):
            buffer[offset : offset + size] = _packed(argument, size)
        told = self.printed.append
        kernel.launch(triple(grid), triple(block), shared, bytes(buffer), told, workspace_given=cooperative)

    def run(self, source: str, name: str, grid: Triple, block: Triple, *arguments: Any, shared: int = 0) -> None:
        self.launch(self.kernel(source, name), grid, block, *arguments, shared=shared)

    @property
    def text(self) -> str:
        return b"".join(self.printed).decode()


def _packed(argument: Any, size: int) -> bytes:
    if isinstance(argument, np.ndarray):
        return struct.pack("<Q", argument.ctypes.data)
    if isinstance(argument, bytes):
        return argument.ljust(size, b"\0")
    if isinstance(argument, float):
        return struct.pack("<f" if size == 4 else "<d", argument)
    if isinstance(argument, np.generic):
        return argument.tobytes()
    return int(argument).to_bytes(size, "little", signed=argument < 0)
