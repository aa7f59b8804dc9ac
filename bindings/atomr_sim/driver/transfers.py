"""Copies, fills and the stream's own memory operations of the simulated driver.

Ranges are checked at the call, as in the driver; the bytes are copied when the stream comes to them. Host memory that
the driver does not know (pageable memory) is only accessed during the call. It is read before a copy to the device
returns, and the call waits for a copy to it.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atomr_cuda import driver
from atomr_cuda.driver import CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUgraphNodeType, CUmemorytype

from .._status import INVALID_VALUE, Refused, require
from ..engine.memory import ILLEGAL_ADDRESS, DeviceFault
from .captures import NodeForm
from .table import entry

if TYPE_CHECKING:
    from ..engine.memory import Array
    from .process import Process

_WAIT_FLAGS = driver.CU_STREAM_WAIT_VALUE_FLUSH
_FIRST_SLEEP, _LONGEST_SLEEP = 5e-6, 50e-6


_ENTRIES_OF_A_2D_FILL = 2
"""Of a stream's queue: more than one, since on an H200 it was full after fewer than 400 pairs of such fills."""


_MEMCPY = CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMCPY
_MEMSET = CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET
_BATCH_MEM_OP = CUgraphNodeType.CU_GRAPH_NODE_TYPE_BATCH_MEM_OP

Range = tuple[int, int]
"""An address and a number of bytes."""


def _submit(
    process: Process,
    stream: int | None,
    work: Callable[[], None],
    *,
    wait: bool,
    form: NodeForm,
    touched: Sequence[Range],
    entries: int = 1,
) -> int | None:
    """Queue work on memory that the device can access. A captured one looks for it each time, and nobody waits."""
    target = process.stream(stream)
    if target.capture is not None:
        process.submit(stream, _on_known_memory(process, work, touched), form=form)
        return None
    place = process.submit(stream, work, entries=entries)
    return target.synchronize(place) if wait else None


def _on_known_memory(process: Process, work: Callable[[], None], touched: Sequence[Range]) -> Callable[[], None]:
    device = process.current().device

    def again() -> None:
        if not all(process.regions.known(*each, device) for each in touched):
            raise DeviceFault(ILLEGAL_ADDRESS, "a captured copy or fill uses memory that no longer exists")
        work()

    return again


def _known(process: Process, address: int, size: int) -> bool:
    """Tell whether a copy of the current context can access a range."""
    return process.regions.known(address, size, process.current().device)


def _reachable(process: Process, address: int, size: int) -> None:
    require(_known(process, address, size))


# Copies of one run of bytes.


def _copy(process: Process, to: int, source: int, size: int, stream: int | None, *, wait: bool) -> int | None:
    """Copy bytes; either side may be pageable host memory."""
    if size == 0:
        return None
    require(to and source)
    keep = None
    is_captured = process.stream(stream).capture is not None
    if not _known(process, source, size):
        require(process.regions.find(source) is None)  # the range begins in known memory and leaves it
        if not wait and not is_captured:
            keep = ctypes.string_at(source, size)
    if not _known(process, to, size):
        require(process.regions.find(to) is None)
        wait = True
    touched = [(address, size) for address in (to, source) if _known(process, address, size)]
    process.space.written(to, size)

    def move() -> None:
        ctypes.memmove(to, source if keep is None else keep, size)

    return _submit(process, stream, move, wait=wait, form=NodeForm(_MEMCPY, (False,)), touched=touched)


def _to_device(process: Process, to: int, source: int | None, size: int, stream: int | None, wait: bool) -> int | None:
    if size:
        _reachable(process, to, size)
    return _copy(process, to, source or 0, size, stream, wait=wait)


def _to_host(process: Process, to: int | None, source: int, size: int, stream: int | None, wait: bool) -> int | None:
    if size:
        _reachable(process, source, size)
    return _copy(process, to or 0, source, size, stream, wait=wait)


def _on_device(process: Process, to: int, source: int, size: int, stream: int | None, wait: bool) -> int | None:
    if size:
        _reachable(process, to, size)
        _reachable(process, source, size)
    return _copy(process, to, source, size, stream, wait=wait)


def _anywhere(process: Process, to: int, source: int, size: int, stream: int | None, wait: bool) -> int | None:
    return _copy(process, to, source, size, stream, wait=wait)


def _define_copies() -> None:
    for plain, queued, copy in (
        (driver.cuMemcpy, driver.cuMemcpyAsync, _anywhere),
        (driver.cuMemcpyHtoD, driver.cuMemcpyHtoDAsync, _to_device),
        (driver.cuMemcpyDtoH, driver.cuMemcpyDtoHAsync, _to_host),
        (driver.cuMemcpyDtoD, driver.cuMemcpyDtoDAsync, _on_device),
    ):
        _define_copy(plain, queued, copy)


def _define_copy(plain: Any, queued: Any, copy: Callable[..., int | None]) -> None:
    @entry(plain)
    def now(process: Process, to: int, source: int, size: int) -> int | None:
        return copy(process, to, source, size, None, True)

    @entry(queued)
    def later(process: Process, to: int, source: int, size: int, stream: int | None) -> int | None:
        return copy(process, to, source, size, stream, False)


_define_copies()


# Copies of rectangles and boxes.


def _bytes(address: int, size: int) -> Array:
    """Return bytes of this process as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _strided(address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Return bytes in memory as an array of layers and rows at distances."""
    extent = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    return np.lib.stride_tricks.as_strided(_bytes(address, extent), shape, strides)


class _Side:
    """One side of a copy: the place of its bytes, and whether that is pageable host memory."""

    def __init__(self, process: Process, device: int, copy: CUDA_MEMCPY2D | CUDA_MEMCPY3D, side: str) -> None:
        memory = getattr(copy, f"{side}MemoryType")
        if memory == CUmemorytype.CU_MEMORYTYPE_HOST:
            base = getattr(copy, f"{side}Host")
        elif memory in (CUmemorytype.CU_MEMORYTYPE_DEVICE, CUmemorytype.CU_MEMORYTYPE_UNIFIED):
            base = getattr(copy, f"{side}Device")
        else:
            raise Refused(INVALID_VALUE)
        require(base)
        # A copy of a rectangle is one layer of a box: it has no fields for the third dimension.
        width, height, depth = shape = copy.WidthInBytes, copy.Height, getattr(copy, "Depth", 1)
        x, y, z, level = (getattr(copy, f"{side}{field}", 0) for field in ("XInBytes", "Y", "Z", "LOD"))
        pitch = getattr(copy, f"{side}Pitch") or x + width
        rows = getattr(copy, f"{side}Height", 0) or y + height
        require(level == 0)
        require(pitch >= x + width or height == depth == 1)
        require(rows >= y + height or depth == 1)
        address = base + (z * rows + y) * pitch + x
        extent = ((depth - 1) * rows + height - 1) * pitch + width
        known = process.regions.known(address, extent, device)
        require(known or memory != CUmemorytype.CU_MEMORYTYPE_DEVICE)
        self.pageable = not known
        self.extent = address, extent
        self.bytes = _strided(address, (depth, height, width), (rows * pitch, pitch, 1))
        self.flat = shape[1:] == (1, 1)


class BoxCopy:
    """A copy of a box or a rectangle by a device, which must not be empty; refuses invalid ranges."""

    def __init__(self, process: Process, device: int, copy: CUDA_MEMCPY2D | CUDA_MEMCPY3D) -> None:
        source, to = _Side(process, device, copy, "src"), _Side(process, device, copy, "dst")
        self.one_dimensional: bool = source.flat
        self.from_pageable: bool = source.pageable
        self.to_pageable: bool = to.pageable
        self.touched: list[Range] = [side.extent for side in (source, to) if not side.pageable]
        self._source, self._to = source.bytes, to.bytes
        process.regions.spaces[device].written(*to.extent)

    def read(self) -> None:
        """Read the bytes now: later changes of the caller's memory have no effect."""
        self._source = self._source.copy()

    def move(self) -> None:
        """Move the bytes."""
        self._to[:] = self._source


def _copy_box(process: Process, request: Any, stream: int | None, *, wait: bool) -> int | None:
    require(request)
    if is_empty(request[0]):
        return None
    copy = BoxCopy(process, process.current().device, request[0])
    if copy.from_pageable and not wait and process.stream(stream).capture is None:
        copy.read()
    form = NodeForm(_MEMCPY, (not copy.one_dimensional,))
    return _submit(process, stream, copy.move, wait=wait or copy.to_pageable, form=form, touched=copy.touched)


def is_empty(copy: CUDA_MEMCPY2D | CUDA_MEMCPY3D) -> bool:
    """True if there is nothing to copy."""
    return 0 in (copy.WidthInBytes, copy.Height, getattr(copy, "Depth", 1))


@entry(driver.cuMemcpy2DAsync)
def _copy_2d_later(process: Process, request: Any, stream: int | None) -> int | None:
    return _copy_box(process, request, stream, wait=False)


@entry(driver.cuMemcpy3D)
def _copy_3d(process: Process, request: Any) -> int | None:
    return _copy_box(process, request, None, wait=True)


@entry(driver.cuMemcpy3DAsync)
def _copy_3d_later(process: Process, request: Any, stream: int | None) -> int | None:
    return _copy_box(process, request, stream, wait=False)


# Filling.


class Fill:
    """The memory to fill: ``height`` rows of ``width`` items of ``size`` bytes, ``pitch`` bytes apart."""

    def __init__(self, address: int, size: int, width: int, height: int = 1, pitch: int = 0) -> None:
        self.address: int = address
        self.size: int = size
        self.width: int = width
        self.height: int = height
        self.pitch: int = pitch or width * size

    @property
    def empty(self) -> bool:
        """True if there is nothing to fill."""
        return self.width == 0 or self.height == 0

    @property
    def extent(self) -> int:
        """The bytes from the first item to the end of the last."""
        return self.pitch * (self.height - 1) + self.width * self.size

    def prepared(self, process: Process, device: int, value: int) -> Callable[[], None]:
        """Return a function with which a device writes the items; refuse an invalid range, or one without an item."""
        address, size, width, height, pitch = self.address, self.size, self.width, self.height, self.pitch
        require(address % size == 0 and (height == 1 or (pitch % size == 0 and pitch >= width * size)))
        extent = self.extent
        require(process.regions.known(address, extent, device))
        items = _strided(address, (height, width * size), (pitch, 1)).view(np.dtype(f"u{size}"))
        process.regions.spaces[device].written(address, extent)

        def write() -> None:
            items[:] = value

        return write


def _fill(process: Process, fill: Fill, value: int, stream: int | None, *, wait: bool, entries: int = 1) -> int | None:
    if fill.empty:
        return None
    write = fill.prepared(process, process.current().device, value)
    form = NodeForm(_MEMSET, (fill.size, fill.width, fill.height, fill.pitch if fill.height > 1 else 0))
    touched = [(fill.address, fill.extent)]
    return _submit(process, stream, write, wait=wait, form=form, touched=touched, entries=entries)


def _define_fills() -> None:
    for bits in (8, 16, 32):
        _define_fill(bits // 8, *(getattr(driver, f"cuMemset{form.format(bits)}") for form in _FILL_NAMES))


_FILL_NAMES = ("D{}", "D{}Async", "D2D{}", "D2D{}Async")


def _define_fill(size: int, plain: Any, queued: Any, plain_2d: Any, queued_2d: Any) -> None:
    @entry(plain)
    def now(process: Process, address: int, value: int, count: int) -> int | None:
        return _fill(process, Fill(address, size, count), value, None, wait=True)

    @entry(queued)
    def later(process: Process, address: int, value: int, count: int, stream: int | None) -> int | None:
        return _fill(process, Fill(address, size, count), value, stream, wait=False)

    @entry(plain_2d)
    def now_2d(process: Process, address: int, pitch: int, value: int, width: int, height: int) -> int | None:
        return _fill(process, Fill(address, size, width, height, pitch), value, None, wait=True)

    @entry(queued_2d)
    def later_2d(
        process: Process, address: int, pitch: int, value: int, width: int, height: int, stream: int | None
    ) -> int | None:
        fill = Fill(address, size, width, height, pitch)
        return _fill(process, fill, value, stream, wait=False, entries=_ENTRIES_OF_A_2D_FILL)


_define_fills()


# Words that a stream writes and for which it waits.


def _word(process: Process, address: int, size: int) -> Array:
    require(address and address % size == 0)
    _reachable(process, address, size)
    return _bytes(address, size).view(np.dtype(f"u{size}"))


def _define_words() -> None:
    for size in (4, 8):
        bits = size * 8
        write, wait = (getattr(driver, f"cuStream{verb}Value{bits}") for verb in ("Write", "Wait"))
        _define_word(size, write, wait)


def _define_word(size: int, write_function: Any, wait_function: Any) -> None:
    @entry(write_function)
    def write(process: Process, stream: int | None, address: int, value: int, flags: int) -> int | None:
        require(flags in (driver.CU_STREAM_WRITE_VALUE_DEFAULT, driver.CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER))
        word = _word(process, address, size)
        process.space.written(address, size)

        def store() -> None:
            word[0] = value  # one aligned store: another process must never see half of it

        return _submit_word(process, stream, address, size, store)

    @entry(wait_function)
    def wait(process: Process, stream: int | None, address: int, value: int, flags: int) -> int | None:
        arrived = _conditions(size).get(flags & ~_WAIT_FLAGS)
        if arrived is None:
            raise Refused(INVALID_VALUE)
        word = _word(process, address, size)
        return _submit_word(process, stream, address, size, lambda: _poll(lambda: arrived(int(word[0]), value)))


def _submit_word(process: Process, stream: int | None, address: int, size: int, work: Callable[[], None]) -> int | None:
    return _submit(process, stream, work, wait=False, form=NodeForm(_BATCH_MEM_OP), touched=[(address, size)])


def _conditions(size: int) -> dict[int, Callable[[int, int], bool]]:
    """The comparisons of cuStreamWaitValue; "greater or equal" is cyclic."""
    mask = (1 << size * 8) - 1
    return {
        driver.CU_STREAM_WAIT_VALUE_GEQ: lambda word, value: (word - value) & mask <= mask >> 1,
        driver.CU_STREAM_WAIT_VALUE_EQ: lambda word, value: word == value,
        driver.CU_STREAM_WAIT_VALUE_AND: lambda word, value: bool(word & value),
        driver.CU_STREAM_WAIT_VALUE_NOR: lambda word, value: bool(~(word | value) & mask),
    }


def _poll(arrived: Callable[[], bool]) -> None:
    """Wait by looking again and again: another process may write the word, and no event announces it."""
    sleep = _FIRST_SLEEP
    while not arrived():
        os.sched_yield()
        time.sleep(sleep)
        sleep = min(sleep * 1.5, _LONGEST_SLEEP)


_define_words()
