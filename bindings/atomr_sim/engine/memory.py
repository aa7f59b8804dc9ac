"""The bytes of this process that a simulated GPU may access, and accesses of many lanes at once.

A simulated device address is a host address. `AddressSpace` is the page table: a sorted list of ranges. `Access` is the
access of one instruction: the range and the alignment of all its lanes' addresses are checked together, then one numpy
operation reads or writes. This file does not depend on PTX, kernels or streams.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import functools
import operator
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from .affine import Affine, Array as Array, laid_out

ILLEGAL_ADDRESS = 700
ASSERT = 710
STACK_ERROR = 714
MISALIGNED_ADDRESS = 716
LAUNCH_FAILED = 719

LOCAL, PARAMETERS, SHARED = "local memory", "the launch's parameters", "shared memory"
DEVICE, HEAP, MAPPED = "device memory", "memory that a kernel allocated", "mapped memory"
"""Names of accessible memory, besides those that the callers of `AddressSpace.add` choose."""


class DeviceFault(Exception):
    """An error of a kernel that costs the process its context; `status` is CUDA's number for it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} (status {self.status})"


class Span:
    """A maximal run of accessible bytes, with one numpy view per item size.

    A view begins at the first multiple of its item size, so an aligned address is an index into it.
    """

    __slots__ = ("_views", "bytes", "end", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start: int = start
        self.end: int = end
        self.bytes: Array = np.ctypeslib.as_array((ctypes.c_uint8 * (end - start)).from_address(start))
        self._views: dict[np.dtype[Any], tuple[Array, int]] = {}

    def view(self, dtype: np.dtype[Any]) -> tuple[Array, int]:
        """Return the whole span as items of `dtype`, and the address of the first of them."""
        found = self._views.get(dtype)
        if found is None:
            size = dtype.itemsize
            skipped = -self.start % size
            count = max(0, (self.end - self.start - skipped) // size)
            found = (self.bytes[skipped : skipped + count * size].view(dtype), self.start + skipped)
            self._views[dtype] = found
        return found


_end_of = operator.attrgetter("end")


class AddressSpace:
    """The byte ranges of this process that a simulated GPU may access.

    Lookups take no lock: they read one immutable table, which `add` and `remove` replace.  Regions that touch each
    other form one span, so an access may cross the seam between two mappings, as on a GPU.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._regions: dict[int, int] = {}
        self._order: list[int] = []
        """The addresses of the regions, sorted."""
        self._table: tuple[list[int], list[Span]] = ([], [])
        self.atomic_lock: threading.Lock = threading.Lock()
        """Held for each atomic instruction: launches on several streams may update one word."""

    def add(self, address: int, size: int, what: str = "memory") -> None:
        """Make `size` bytes at `address` accessible; they must be mapped until `remove`.  `what` is for messages."""
        if address <= 0 or size <= 0:
            raise ValueError(f"{size} bytes at {address:#x} are not a region")
        with self._lock:
            starts, _ = self._table
            after = bisect.bisect_left(starts, address + size)
            if after and self._table[1][after - 1].end > address:
                raise ValueError(f"the region of {size} bytes at {address:#x} overlaps one that is already accessible")
            self._regions[address] = size
            bisect.insort(self._order, address)
            self._replace(address, address + size)

    def remove(self, address: int) -> None:
        """Make the region that was added at `address` inaccessible again."""
        with self._lock:
            if address not in self._regions:
                raise KeyError(f"no region was added at {address:#x}")
            size = self._regions.pop(address)
            del self._order[bisect.bisect_left(self._order, address)]
            self._replace(address, address + size)

    def _replace(self, start: int, end: int) -> None:
        """Build the spans again between the neighbours of [start, end); the rest of the table is kept."""
        starts, spans = self._table
        first = bisect.bisect_left(spans, start, key=_end_of)
        last = bisect.bisect_right(starts, end)
        low = min([start, *starts[first:last]])
        high = max([end, *(span.end for span in spans[first:last])])
        within = self._order[bisect.bisect_left(self._order, low) : bisect.bisect_left(self._order, high)]
        touched = [(at, self._regions[at]) for at in within]
        fresh = [Span(*bounds) for bounds in _joined(touched)]
        self._table = (
            starts[:first] + [span.start for span in fresh] + starts[last:],
            spans[:first] + fresh + spans[last:],
        )

    def find(self, address: int) -> Span | None:
        """Return the span that holds the byte at `address`."""
        starts, spans = self._table
        at = bisect.bisect_right(starts, address) - 1
        if at >= 0 and address < spans[at].end:
            return spans[at]
        return None

    def require(self, address: int, size: int, verb: str = "access to") -> Span:
        """Return the span that holds all of the bytes, or raise an illegal address."""
        span = self.find(address)
        if span is None or address + size > span.end:
            raise DeviceFault(ILLEGAL_ADDRESS, f"{verb} {size} bytes at {address:#x}, which is not accessible memory")
        return span

    def view(self, address: int, size: int) -> Array:
        """Return a writable view of bytes that must all be accessible."""
        span = self.require(address, size)
        view, base = span.view(np.dtype(np.uint8))
        return view[address - base : address - base + size]

    def load(self, address: int, dtype: np.dtype[Any], align: int) -> Any:
        """Read one value for all lanes."""
        view, at = self._one(address, dtype, align, "read of")
        return view[at]

    def store(self, address: int, value: Any, dtype: np.dtype[Any], align: int) -> None:
        """Write one address from all lanes: the last lane's value stays."""
        if address % align:
            self._store_rounded(Access(self, np.array([address], np.uint64)), value, dtype, align)
        view, at = self._one(address, dtype, align, "write of")
        view[at] = value[-1] if getattr(value, "ndim", 0) else value

    def _store_rounded(self, access: Access, value: Any, dtype: np.dtype[Any], align: int) -> None:
        """Write at the address rounded down, as an H200 does before it reports the fault of a misaligned store."""
        with contextlib.suppress(DeviceFault):
            access.rounded(align).store(0, value, dtype, align)

    def _one(self, address: int, dtype: np.dtype[Any], align: int, verb: str) -> tuple[Array, int]:
        if address % align:
            raise _misaligned(address, align, verb)
        view, base = self.require(address, dtype.itemsize, verb).view(dtype)
        return view, (address - base) // dtype.itemsize

    def written(self, address: int, size: int) -> None:
        """The host or a copy is about to write these bytes. Does nothing here; the checks override it."""

    def text(self, address: int, limit: int = 1 << 16) -> bytes:
        """Return the C string at `address`."""
        span = self.require(address, 1, "read of")
        view, base = span.view(np.dtype(np.uint8))
        piece = view[address - base : address - base + limit].tobytes()
        end = piece.find(b"\0")
        if end < 0:
            raise DeviceFault(ILLEGAL_ADDRESS, f"the string at {address:#x} has no end")
        return piece[:end]


def _joined(regions: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge sorted (address, size) pairs into (start, end) pairs; neighbours that touch become one."""
    joined: list[tuple[int, int]] = []
    for at, size in regions:
        if joined and joined[-1][1] == at:
            joined[-1] = (joined[-1][0], at + size)
        else:
            joined.append((at, at + size))
    return joined


def _misaligned(address: int, align: int, verb: str) -> DeviceFault:
    return DeviceFault(MISALIGNED_ADDRESS, f"{verb} {align} bytes at {address:#x}, which is not a multiple of {align}")


_COUNTING: Array = np.arange(1 << 16, dtype=np.uint64)
_STRIDES = (1, 2, 4, 8, 16)


@functools.cache
def _steps(stride: int) -> Array:
    """Return 0, stride, 2 * stride ..., for one of `_STRIDES`."""
    return _COUNTING * np.uint64(stride)


def _stride(addresses: Array) -> int:
    """Return the distance from each address to the next, if it is the same for all and in `_STRIDES`; else 0."""
    count = addresses.size
    if not 1 < count <= _COUNTING.size:
        return 0
    stride = int(addresses[1]) - int(addresses[0])
    if stride not in _STRIDES or int(addresses[-1]) - int(addresses[0]) != (count - 1) * stride:
        return 0
    return stride if np.array_equal(addresses - addresses[0], _steps(stride)[:count]) else 0


def access(space: AddressSpace, addresses: Any) -> Access | StridedAccess:
    """The addresses that one register holds over the active lanes."""
    within = addresses.within() if isinstance(addresses, Affine) else None
    return Access(space, np.asarray(addresses)) if within is None else StridedAccess(space, within)


class StridedAccess:
    """Affine addresses: the items there are a strided view of memory.

    Errors, accesses to several spans, and writes from several lanes to one address are left to `Access`.
    """

    __slots__ = ("_addresses", "_high", "_low", "_low_bits", "_space")

    def __init__(self, space: AddressSpace, addresses: Affine) -> None:
        self._space = space
        self._addresses = addresses
        self._low, self._high = addresses.span()
        self._low_bits = addresses.low_bits

    @property
    def _each(self) -> Access:
        return Access(self._space, self._addresses.array)

    def load(self, offset: int, dtype: np.dtype[Any], align: int) -> Any:
        """Return the values at every lane's address plus `offset`."""
        window = self._window(offset, dtype, align)
        return self._each.load(offset, dtype, align) if window is None else self._addresses.read(window)

    def store(self, offset: int, values: Any, dtype: np.dtype[Any], align: int) -> None:
        """Write every lane's value."""
        window = self._window(offset, dtype, align)
        if window is None or not self._addresses.distinct(dtype.itemsize):
            self._each.store(offset, np.asarray(values), dtype, align)
        else:
            window[...] = laid_out(values, window.shape)

    def target(self, offset: int, dtype: np.dtype[Any]) -> list[tuple[Any, Array, Array]]:
        """For atomics, as `Access.target`."""
        return self._each.target(offset, dtype)

    def _window(self, offset: int, dtype: np.dtype[Any], align: int) -> Array | None:
        low = self._low + offset
        span = self._space.find(low)
        if span is None or self._high + offset + dtype.itemsize > span.end or (low | self._low_bits) & (align - 1):
            return None
        return self._addresses.window(span.bytes, offset - span.start, dtype)


class Access:
    """The addresses that one register holds over the active lanes, checked once for every load and store through it.

    All arithmetic is relative to the lowest address, so `[register + offset]` costs no extra pass: the offset moves the
    window of memory instead of the indices. Lanes that access neighbouring items need no indices at all.
    """

    __slots__ = ("_addresses", "_indices", "_stride", "count", "extent", "low", "low_bits", "space")

    def __init__(self, space: AddressSpace, addresses: Array) -> None:
        self.space: AddressSpace = space
        self._addresses = addresses
        self.count: int = addresses.size
        self._stride: int = _stride(addresses)
        self._indices: dict[int, Array] = {}
        self.low: int
        self.extent: int
        self.low_bits: int
        """Return the bits that are set in the distance of any address from the lowest one; the stride has the same
        bits."""
        if self._stride:
            self.low, self.extent, self.low_bits = int(addresses[0]), (self.count - 1) * self._stride, self._stride
        else:
            self.low = int(addresses.min())
            relative = addresses - np.uint64(self.low)
            self.extent, self.low_bits = int(relative.max()), int(np.bitwise_or.reduce(relative))
            self._indices[1] = relative.view(np.int64)

    def rounded(self, align: int) -> Access:
        """Return the same addresses, each rounded down to a multiple of `align`."""
        return Access(self.space, self._addresses - self._addresses % np.uint64(align))

    def load(self, offset: int, dtype: np.dtype[Any], align: int) -> Array:
        """Return the values at every lane's address plus `offset`."""
        window = self._window(offset, dtype, align, "read of")
        if window is None:
            return self._each(offset, dtype, None, "read of")
        run = self._run(dtype.itemsize)
        # The indices are checked, so numpy need not do it again.
        return window[run].copy() if run else window.take(self._index(dtype.itemsize), mode="clip")

    def store(self, offset: int, values: Any, dtype: np.dtype[Any], align: int) -> None:
        """Write every lane's value; if lanes share an address, the last lane's value stays."""
        try:
            window = self._window(offset, dtype, align, "write of")
        except DeviceFault:  # misaligned: addresses out of range are found below
            shifted = Access(self.space, self._addresses + np.uint64(offset % 2**64))
            self.space._store_rounded(shifted, values, dtype, align)
            raise
        if window is None:
            self._each(offset, dtype, np.broadcast_to(values, (self.count,)), "write of")
            return
        window[self._run(dtype.itemsize) or self._index(dtype.itemsize)] = values

    def target(self, offset: int, dtype: np.dtype[Any]) -> list[tuple[Any, Array, Array]]:
        """For atomics: yield (lanes, memory, index of each of these lanes), once for each span that is accessed."""
        window = self._window(offset, dtype, dtype.itemsize, "atomic access to")
        if window is not None:
            return [(slice(None), window, self._index(dtype.itemsize))]
        return list(self._spans(offset, dtype, "atomic access to"))

    def _window(self, offset: int, dtype: np.dtype[Any], align: int, verb: str) -> Array | None:
        """Return memory from the lowest address on, if a single span holds everything; else None."""
        first = self.low + offset
        if self.low_bits & (align - 1) or first % align:
            wrong = self._addresses[((self._addresses + np.uint64(offset % 2**64)) % np.uint64(align)) != 0][0]
            raise _misaligned(int(wrong) + offset, align, verb)
        span = self.space.find(first)
        if span is None or first + self.extent + dtype.itemsize > span.end:
            return None
        view, base = span.view(dtype)
        return view[(first - base) // dtype.itemsize :]

    def _run(self, size: int) -> slice | None:
        """Return the place of the lanes' items of `size` bytes, if they are at equal distances."""
        step = self._stride // size
        return slice(0, (self.count - 1) * step + 1, step) if step else None

    def _index(self, size: int) -> Array:
        """Return the place of each lane's item of `size` bytes."""
        found = self._indices.get(size)
        if found is None:
            relative = self._indices.get(1)
            if relative is None:
                relative = self._indices[1] = _steps(self._stride)[: self.count].view(np.int64)
            found = self._indices[size] = relative >> (size.bit_length() - 1)
        return found

    def _spans(self, offset: int, dtype: np.dtype[Any], verb: str) -> Iterable[tuple[Array, Array, Array]]:
        """Yield the lanes by the span that they access; an address outside of all spans is illegal."""
        remaining: Array = np.arange(self.count)
        addresses = self._addresses + np.uint64(offset % 2**64)
        found = []
        while remaining.size:
            first = int(addresses[remaining[0]])
            span = self.space.require(first, dtype.itemsize, verb)
            here = addresses[remaining]
            inside = (here >= np.uint64(span.start)) & (here <= np.uint64(span.end - dtype.itemsize))
            lanes = remaining[inside]
            view, base = span.view(dtype)
            found.append(
                (lanes, view, ((addresses[lanes] - np.uint64(base)) // np.uint64(dtype.itemsize)).view(np.int64))
            )
            remaining = remaining[~inside]
        return found

    def _each(self, offset: int, dtype: np.dtype[Any], values: Array | None, verb: str) -> Array:
        """The same for lanes that touch several spans.  Every address is checked before anything is written."""
        pieces = self._spans(offset, dtype, verb)
        result: Array = np.empty(self.count, dtype)
        for lanes, view, index in pieces:
            if values is None:
                result[lanes] = view[index]
            else:
                view[index] = values[lanes]
        return result
