"""The memory of the simulated GPUs in one process: allocations, physical memory, reservations, mappings.

Physical memory is a memory file (``memfd``). So its descriptor can be sent to another process, outlives this one, and
can be mapped at the same address again. Each process counts on its own how much of a device is in use: the memory that
it created or imported and still holds.

This file turns the requests of the driver's memory functions into pages, and into entries of the ``AddressSpace`` of
each device, which the engine checks. A device has access to its own plain memory, to host memory, and to mapped memory
where ``set_access`` says so. This file does not depend on contexts, streams or other kinds of handles.
"""

from __future__ import annotations

import bisect
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from .._status import (
    ALREADY_REGISTERED,
    INVALID_DEVICE,
    INVALID_VALUE,
    NOT_REGISTERED,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    Refused,
    require,
)
from ..engine.memory import DEVICE, MAPPED
from . import pages

if TYPE_CHECKING:
    from ..engine.memory import AddressSpace

GRANULARITY = 2 << 20
_ROUNDING = 512
_FILE_NAME = "atomr-simulated-gpu-"


def _copied(descriptor: int) -> int:
    """Return another descriptor of the same file."""
    try:
        return os.dup(descriptor)
    except OSError:
        raise Refused(OPERATING_SYSTEM) from None


class Kind(Enum):
    """The kind of a region of memory."""

    DEVICE = "device memory of cuMemAlloc"
    HOST = "host memory of cuMemAllocHost"
    REGISTERED = "host memory that was registered"
    MAPPED = "physical memory that was mapped"


_NAMES = {
    Kind.DEVICE: DEVICE,
    Kind.HOST: "host memory",
    Kind.REGISTERED: "registered host memory",
    Kind.MAPPED: MAPPED,
}
"""The names of accessible memory in messages."""


class Region:
    """A range of accessible, or at least mapped, addresses. The region ends with the context ``owner``."""

    __slots__ = ("address", "device", "devices", "kind", "owner", "physical", "size")

    def __init__(self, kind: Kind, address: int, size: int, device: int, owner: int = 0) -> None:
        self.kind: Kind = kind
        self.address: int = address
        self.size: int = size
        self.device: int = device
        self.owner: int = owner
        self.devices: frozenset[int] = frozenset()
        """The devices that have access to it."""
        self.physical: Physical | None = None


class Physical:
    """Physical memory: a memory file, kept while a handle or a mapping needs it."""

    __slots__ = ("descriptor", "device", "handles", "mappings", "shareable", "size")

    def __init__(self, descriptor: int, size: int, device: int, shareable: bool) -> None:
        self.descriptor: int = descriptor
        self.size: int = size
        self.device: int = device
        self.shareable: bool = shareable
        self.handles: int = 1
        self.mappings: int = 0


class Regions:
    """All memory of the simulated driver in this process. Safe to use from several threads.

    ``spaces`` are those of the devices; several devices may share one. ``peers`` tells whether a device can access the
    memory of another one.
    """

    def __init__(
        self, spaces: Sequence[AddressSpace], totals: list[int], peers: Callable[[int, int], bool] = lambda *_: True
    ) -> None:
        self.spaces = spaces
        self.totals = totals
        self._peers = peers
        self._used = [0] * len(totals)
        self._regions: dict[int, Region] = {}
        self._starts: list[int] = []
        self._physicals: dict[int, Physical] = {}
        self._inodes: dict[tuple[int, int], Physical] = {}
        self._reservations: dict[int, int] = {}
        self._numbers = itertools.count(0x5100_0000_0001)
        self._lock = threading.RLock()

    # Lookups.

    def find(self, address: int) -> Region | None:
        """Return the region that holds the byte at this address."""
        with self._lock:
            at = bisect.bisect_right(self._starts, address) - 1
            region = self._regions[self._starts[at]] if at >= 0 else None
            return region if region is not None and address < region.address + region.size else None

    def known(self, address: int, size: int, device: int) -> bool:
        """Tell whether a copy engine of a device can access all of this range.

        The driver copies plain memory of other devices of the process too, by way of the host if need be.
        """
        span = self.spaces[device].find(address)
        if span is not None and address + size <= span.end:
            return True
        region = self.find(address)
        return region is not None and region.kind is Kind.DEVICE and address + size <= region.address + region.size

    def free_bytes(self, device: int) -> int:
        """Return the bytes of a device that this process does not use."""
        with self._lock:
            return max(0, self.totals[device] - self._used[device])

    def _charge(self, device: int, size: int) -> None:
        require(size <= self.free_bytes(device), OUT_OF_MEMORY)
        self._used[device] += size

    def _insert(self, region: Region) -> None:
        self._regions[region.address] = region
        bisect.insort(self._starts, region.address)

    def _discard(self, region: Region) -> None:
        self._show(region, ())
        del self._regions[region.address]
        self._starts.remove(region.address)

    def _show(self, region: Region, devices: Iterable[int]) -> None:
        """Let these devices access a region, and no others."""
        before, region.devices = self._spaces_of(region), frozenset(devices)
        after = self._spaces_of(region)
        for gone in before.keys() - after.keys():
            before[gone].remove(region.address)
        for new in after.keys() - before.keys():
            after[new].add(region.address, region.size, _NAMES[region.kind])

    def _spaces_of(self, region: Region) -> dict[int, AddressSpace]:
        """Return the spaces that a region is in, each of them once."""
        return {id(self.spaces[device]): self.spaces[device] for device in region.devices}

    def _expect(self, address: int, kind: Kind, refusal: int) -> Region:
        region = self._regions.get(address)
        if region is None or region.kind is not kind:
            raise Refused(refusal)
        return region

    # Plain, host and registered memory.

    def allocate(self, kind: Kind, size: int, device: int, owner: int = 0) -> int:
        """Allocate new zeroed memory of the kind DEVICE or HOST; return its address."""
        require(size > 0)
        with self._lock:
            charged = pages.up(size, _ROUNDING) if kind is Kind.DEVICE else 0
            self._charge(device, charged)
            try:
                address = pages.allocate(size)
            except OSError:
                self._used[device] -= charged
                raise Refused(OUT_OF_MEMORY) from None
            region = Region(kind, address, size, device, owner)
            self._insert(region)
            self._show(region, (device,) if kind is Kind.DEVICE else range(len(self.spaces)))
            return address

    def free(self, kind: Kind, address: int) -> None:
        """Give back memory of ``allocate``."""
        with self._lock:
            region = self._expect(address, kind, INVALID_VALUE)
            self._discard(region)
            pages.free(address, region.size)
            if kind is Kind.DEVICE:
                self._used[region.device] -= pages.up(region.size, _ROUNDING)

    def register(self, address: int, size: int, device: int, owner: int = 0) -> None:
        """Let the GPU access host memory of the caller, at the same address."""
        require(address and size > 0)
        with self._lock:
            before = bisect.bisect_left(self._starts, address + size) - 1
            if before >= 0:
                neighbour = self._regions[self._starts[before]]
                require(neighbour.address + neighbour.size <= address, ALREADY_REGISTERED)
            require(pages.mapped(address, size))
            region = Region(Kind.REGISTERED, address, size, device, owner)
            self._insert(region)
            self._show(region, range(len(self.spaces)))

    def unregister(self, address: int) -> None:
        """Undo ``register``."""
        with self._lock:
            self._discard(self._expect(address, Kind.REGISTERED, NOT_REGISTERED))

    def free_all(self, owner: int) -> None:
        """Give back everything that belongs to a context."""
        with self._lock:
            for region in [region for region in self._regions.values() if region.owner == owner]:
                if region.kind is Kind.REGISTERED:
                    self.unregister(region.address)
                elif region.kind is not Kind.MAPPED:
                    self.free(region.kind, region.address)

    # Physical memory.

    def create(self, size: int, device: int, shareable: bool) -> int:
        """Make new physical memory; return its handle."""
        require(size > 0 and size % GRANULARITY == 0)
        with self._lock:
            self._charge(device, size)
            try:
                descriptor = os.memfd_create(f"{_FILE_NAME}{device}", os.MFD_CLOEXEC)
                os.ftruncate(descriptor, size)
            except OSError:
                self._used[device] -= size
                raise Refused(OUT_OF_MEMORY) from None
            return self._adopt(Physical(descriptor, size, device, shareable))

    def _adopt(self, physical: Physical) -> int:
        found = os.fstat(physical.descriptor)
        self._inodes[found.st_dev, found.st_ino] = physical
        return self._handle(physical)

    def _handle(self, physical: Physical) -> int:
        handle = next(self._numbers)
        self._physicals[handle] = physical
        return handle

    def physical(self, handle: int) -> Physical:
        """Return the physical memory behind a handle."""
        with self._lock:
            physical = self._physicals.get(handle)
            if physical is None:
                raise Refused(INVALID_VALUE)
            return physical

    def export(self, handle: int) -> int:
        """Return a descriptor of the physical memory, which the caller owns."""
        with self._lock:
            physical = self.physical(handle)
            require(physical.shareable)
            return _copied(physical.descriptor)

    def import_descriptor(self, descriptor: int) -> int:
        """Return a handle of physical memory from a descriptor of the caller's. The same memory counts once."""
        try:
            name = os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
        except OSError:
            name = ""
        found, _, ordinal = name.removeprefix("/memfd:").rpartition("-")
        require(f"{found}-" == _FILE_NAME and ordinal.isdecimal())
        require(int(ordinal) < len(self.totals), INVALID_DEVICE)
        with self._lock:
            status = os.fstat(descriptor)
            known = self._inodes.get((status.st_dev, status.st_ino))
            if known is not None:
                known.handles += 1
                return self._handle(known)
            physical = Physical(_copied(descriptor), status.st_size, int(ordinal), shareable=True)
            # Memory that already exists cannot be refused for lack of memory.
            self._used[int(ordinal)] += status.st_size
            return self._adopt(physical)

    def release(self, handle: int) -> None:
        """Give a handle back; the memory is freed when no mapping needs it either."""
        with self._lock:
            physical = self.physical(handle)
            del self._physicals[handle]
            physical.handles -= 1
            self._drop_unused(physical)

    def _drop_unused(self, physical: Physical) -> None:
        if physical.handles or physical.mappings:
            return
        found = os.fstat(physical.descriptor)
        del self._inodes[found.st_dev, found.st_ino]
        os.close(physical.descriptor)
        self._used[physical.device] -= physical.size

    # Addresses and mappings.

    def reserve(self, hint: int, size: int, alignment: int) -> int:
        """Reserve addresses, at the hint if they are free there."""
        alignment = alignment or GRANULARITY
        require(size > 0 and size % GRANULARITY == 0 and hint % GRANULARITY == 0)
        require(alignment % GRANULARITY == 0 and alignment & (alignment - 1) == 0)
        with self._lock:
            try:
                address = pages.reserve(hint, size, alignment)
            except OSError:
                raise Refused(OUT_OF_MEMORY) from None
            self._reservations[address] = size
            return address

    def free_reservation(self, address: int, size: int) -> None:
        """Give back addresses at which nothing is mapped any more."""
        with self._lock:
            require(self._reservations.get(address) == size and not self._mappings(address, size))
            del self._reservations[address]
            pages.release(address, size)

    def _mappings(self, address: int, size: int) -> list[Region]:
        """Yield the regions that overlap this range, in order."""
        first = bisect.bisect_right(self._starts, address) - 1
        last = bisect.bisect_left(self._starts, address + size)
        around = (self._regions[start] for start in self._starts[max(0, first) : last])
        return [region for region in around if region.address + region.size > address]

    def map(self, address: int, size: int, offset: int, handle: int) -> None:
        """Map physical memory at reserved addresses. It is not accessible before ``set_access``."""
        require(size > 0 and not (address % GRANULARITY or size % GRANULARITY or offset % GRANULARITY))
        with self._lock:
            physical = self.physical(handle)
            require(offset + size <= physical.size)
            require(any(start <= address and address + size <= start + n for start, n in self._reservations.items()))
            require(not self._mappings(address, size))
            pages.place_file(address, size, physical.descriptor, offset)
            region = Region(Kind.MAPPED, address, size, physical.device)
            region.physical = physical
            physical.mappings += 1
            self._insert(region)

    def _whole_mappings(self, address: int, size: int) -> list[Region]:
        """Return the mappings that fill this range exactly, or refuse."""
        regions = self._mappings(address, size)
        at = address
        for region in regions:
            require(region.kind is Kind.MAPPED and region.address == at)
            at += region.size
        require(regions and at == address + size)
        return regions

    def unmap(self, address: int, size: int) -> None:
        """Unmap the physical memory; the addresses stay reserved."""
        with self._lock:
            for region in self._whole_mappings(address, size):
                self._discard(region)
                pages.take_file_away(region.address, region.size)
                physical = region.physical
                assert physical is not None
                physical.mappings -= 1
                self._drop_unused(physical)

    def set_access(self, address: int, size: int, device: int, readable: bool, writable: bool) -> None:
        """Set a device's access to mapped memory: everything or nothing. To a peer's memory only where it has any."""
        require(readable == writable, NOT_SUPPORTED)
        with self._lock:
            regions = self._whole_mappings(address, size)
            for region in regions:
                require(not writable or region.device == device or self._peers(device, region.device), INVALID_DEVICE)
            for region in regions:
                self._show(region, region.devices | {device} if writable else region.devices - {device})
