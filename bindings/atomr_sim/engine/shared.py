"""The shared memory of the thread blocks of a chunk: one piece of host memory, a slice of it for each block."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .affine import Affine, laid_out
from .memory import ILLEGAL_ADDRESS, MISALIGNED_ADDRESS, SHARED, AddressSpace, Array, DeviceFault

RESERVED_SHARED = 1024
"""The bytes of each block's shared memory that the device keeps for itself."""


class SharedMemory:
    """Shared memory of some blocks. `.shared` addresses are offsets in a block's slice; generic ones are host
    addresses, so the slices are mapped."""

    def __init__(self, space: AddressSpace, blocks: int, size: int, block_of: Array) -> None:
        self.space = space
        self.size = size
        self.stride: int = -(-size // 16) * 16 if size else 0
        self._memory: Array = np.zeros(blocks * self.stride + 16, np.uint8)
        skipped = -self._memory.ctypes.data % 16
        self.bytes: Array = self._memory[skipped : skipped + blocks * self.stride]
        self.address: int = int(self.bytes.ctypes.data)
        self._block_of = block_of
        self._views: dict[Any, Array] = {}
        if size:
            space.add(self.address, self.bytes.size, SHARED)

    @functools.cached_property
    def bases(self) -> Array:
        """Return the beginning of the slice of each lane's block."""
        return self._block_of * self.stride

    def close(self) -> None:
        """Take the memory out of the address space."""
        if self.size:
            self.space.remove(self.address)

    def view(self, dtype: Any) -> Array:
        """Return all bytes as an array of the given type."""
        found = self._views.get(dtype)
        if found is None:
            found = self._views[dtype] = self.bytes.view(dtype)
        return found

    def access(self, offsets: Any, lanes: Array | None) -> SharedAccess:
        """Return the given offsets, each in the slice of its lane's block; None means all lanes."""
        return SharedAccess(self, self.bases if lanes is None else self.bases[lanes], offsets)

    def strided_access(self, offsets: Any, blocks: Affine, lanes: Any) -> SharedAccess | StridedSharedAccess:
        """Return the same for affine offsets, or a scalar; `blocks` are the numbers of the lanes' blocks."""
        if not isinstance(offsets, Affine):
            offsets = Affine.same(blocks.shape, offsets, offsets.dtype)
        within = offsets.within()
        if within is None:
            return self.access(offsets.array, lanes)
        return StridedSharedAccess(self, within, blocks, lanes)

    def window(self, lanes: Array) -> Array:
        """Return the address at which each lane's slice begins."""
        return (self.bases[lanes] + self.address).view(np.uint64)

    def addresses(self, offsets: Any, sizes: Any, lanes: Array) -> Array:
        """Return the addresses of this many bytes at the given offsets, each in the slice of its lane's block."""
        top = int((np.asarray(offsets).astype(np.uint64) + np.asarray(sizes).astype(np.uint64)).max())
        if top > self.size:
            raise DeviceFault(ILLEGAL_ADDRESS, f"access to shared memory up to {top}, of {self.size} bytes")
        found: Array = self.window(lanes) + np.asarray(offsets).astype(np.uint64)
        return found

    def holds(self, addresses: Array, lanes: Array) -> Array:
        """Tell for each lane whether the address is in its own slice."""
        start = self.window(lanes)
        return (addresses >= start) & (addresses < start + np.uint64(self.size))


class SharedAccess:
    """The offsets that one register holds over the active lanes, checked once, as in `memory.Access`, for shared
    memory.

    A distance from the register moves the window of memory instead of the indices, unless the sum wraps somewhere in
    the register's width.
    """

    __slots__ = ("_bases", "_indices", "_low_bits", "_memory", "_offsets", "_top")

    def __init__(self, memory: SharedMemory, bases: Array, offsets: Any) -> None:
        self._memory = memory
        self._bases = bases
        self._offsets = offsets
        self._top = int(offsets.max())
        self._low_bits = int(np.bitwise_or.reduce(offsets))
        self._indices: dict[int, Array] = {}

    def _place(self, offset: int, dtype: Any, align: int) -> tuple[Array, Array]:
        """Return the memory from a fixed distance on, and the index of each lane's value in it."""
        size: int = dtype.itemsize
        if offset and (offset % align or (self._top + offset) >> (8 * self._offsets.itemsize)):
            moved = self._offsets + self._offsets.dtype.type(offset)
            return SharedAccess(self._memory, self._bases, moved)._place(0, dtype, align)
        if self._top + offset + size > self._memory.size:
            message = f"access to {size} bytes of shared memory at {self._top + offset}, of {self._memory.size}"
            raise DeviceFault(ILLEGAL_ADDRESS, message)
        if self._low_bits & (align - 1):
            raise DeviceFault(MISALIGNED_ADDRESS, f"access to shared memory that is not aligned to {align} bytes")
        index = self._indices.get(size)
        if index is None:
            flat = self._bases + np.asarray(self._offsets).astype(np.int64)
            index = self._indices[size] = flat >> (size.bit_length() - 1)
        return self._memory.view(dtype)[offset // size :], index

    def load(self, offset: int, dtype: Any, align: int) -> Array:
        """Read a value in each lane, at a fixed distance from its offset."""
        window, index = self._place(offset, dtype, align)
        return window.take(index, mode="clip")  # checked before, and this is faster than checking again

    def store(self, offset: int, values: Any, dtype: Any, align: int) -> None:
        """Write a value in each lane, at a fixed distance from its offset."""
        window, index = self._place(offset, dtype, align)
        window[index] = values

    def target(self, offset: int, dtype: Any) -> list[tuple[Any, Array, Array]]:
        """For atomics, as `memory.Access.target`."""
        return [(slice(None), *self._place(offset, dtype, dtype.itemsize))]


class StridedSharedAccess:
    """Affine offsets, as in `memory.StridedAccess`. Other cases are left to `SharedAccess`."""

    __slots__ = ("_high", "_lanes", "_low", "_low_bits", "_memory", "_offsets", "_places")

    def __init__(self, memory: SharedMemory, offsets: Affine, blocks: Affine, lanes: Any) -> None:
        self._memory = memory
        self._offsets = offsets
        self._places = offsets.astype(np.int64) + blocks.astype(np.int64) * np.int64(memory.stride)
        self._lanes = lanes
        self._low, self._high = offsets.span()
        self._low_bits = offsets.low_bits

    @property
    def _each(self) -> SharedAccess:
        return self._memory.access(self._offsets.array, None if self._lanes is None else self._lanes.array)

    def load(self, offset: int, dtype: Any, align: int) -> Any:
        """Read a value in each lane, at a fixed distance from its offset."""
        window = self._window(offset, dtype, align)
        return self._each.load(offset, dtype, align) if window is None else self._places.read(window)

    def store(self, offset: int, values: Any, dtype: Any, align: int) -> None:
        """Write a value in each lane, at a fixed distance from its offset."""
        window = self._window(offset, dtype, align)
        if window is None or not self._places.distinct(dtype.itemsize):
            self._each.store(offset, np.asarray(values), dtype, align)
        else:
            window[...] = laid_out(values, window.shape)

    def target(self, offset: int, dtype: Any) -> list[tuple[Any, Array, Array]]:
        """For atomics, as `memory.Access.target`."""
        return self._each.target(offset, dtype)

    def _window(self, offset: int, dtype: Any, align: int) -> Array | None:
        end = self._high + offset + dtype.itemsize
        if end > self._memory.size or ((self._low + offset) | self._low_bits) & (align - 1):
            return None
        return self._places.window(self._memory.bytes, offset, dtype)
