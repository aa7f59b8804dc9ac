"""Pinned memory: numpy arrays of the user's process that the GPU reads and writes directly, without staging.

Each array has its own shared memory. A worker learns of it by a command that carries the descriptor, before the first
copy of its generation; so it outlives workers, as the staging area does. The numpy array holds the mapping, and this
file too while the device is open: unmapping a GiB takes 0.1 s, so a thread does it when the last view is gone. After
the device is closed the mapping ends with the last view. A copy keeps the array for as long as the GPU may touch it.
"""

from __future__ import annotations

import bisect
import collections
import ctypes
import itertools
import mmap
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._generation.generation import Generation
from .._generation.timeline import Command
from .._supervision.closing import close_in_thread, wait_until_idle
from .._values.errors import DeviceError, OutOfHostMemory
from .._wire.channel import set_size
from .._wire.limits import available_memory, reason_of
from .._wire.protocol import LANE_COPY_IN
from .._wire.records.memory import REGISTER_HOST, STAGING_AREA, UNREGISTER_HOST

if TYPE_CHECKING:
    from .short_copies import Form


_MOST_FOUND = 256
"""The most arrays whose places are remembered."""


class PinnedArea:
    """The shared memory of one pinned array, and the lanes of the present worker that know it."""

    def __init__(self, number: int, address: int, size: int, descriptor: int, mapped: mmap.mmap) -> None:
        self.number: int = number
        self.address: int = address
        self.size: int = size
        self._descriptor = descriptor
        self._mapped = [mapped]
        """Keeps the mapping, which would otherwise be unmapped in the program's thread when the array is collected."""
        self._generation = 0
        self._told: dict[int, int] = {}
        self.forms: dict[int, Form] = {}
        """The forms of the records of its copies, by their lanes; see ``short_copies.py``."""

    @property
    def map(self) -> mmap.mmap:
        """The mapping, until `close`."""
        return self._mapped[0]

    def __repr__(self) -> str:
        return f"<PinnedArea {self.number}: {self.address:#x}+{self.size:#x}>"

    def register(self, generation: Generation, lane: int) -> None:
        """Make the worker register it, if a copy on this lane is the first one of the generation.

        It is sent once for each lane, so that no lane waits for another.
        """
        if self._generation != generation.number:
            self._generation, self._told = generation.number, {}
        if lane not in self._told:
            payload = REGISTER_HOST.struct.pack(self.number, self.size)
            owner = _Registration(self._told)
            command = generation.publish(lane, REGISTER_HOST, payload, (), owner, descriptors=(self._descriptor,))
            self._told[lane] = command.ticket

    def is_known(self, generation: Generation, lane: int) -> bool:
        """Return whether a copy on this lane needs no `register` before it."""
        return self._generation == generation.number and lane in self._told

    def unregister(self, generation: Generation) -> None:
        """Make the worker release it, if it was told of it."""
        if self._generation == generation.number and self._told:
            payload = UNREGISTER_HOST.struct.pack(self.number)
            after = self._told.items()
            generation.publish(LANE_COPY_IN, UNREGISTER_HOST, payload, (), _Registration({}), after=after)

    def close(self) -> None:
        """Close the descriptor, and leave the mapping to the array alone."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._mapped.clear()

    def close_in_thread(self) -> None:
        """Release the memory of a collected array in a thread."""
        mapped, self._mapped = self._mapped, []
        self.close()
        close_in_thread((), mapped)


class _Registration:
    """The owner of a registration. It notes a failure, so that the next copy registers again. The copy raises it."""

    def __init__(self, told: dict[int, int]) -> None:
        self._told = told

    def command_finished(self, command: Command, error: DeviceError | None, value: Any) -> None:
        if error is not None and self._told.get(command.lane) == command.ticket:
            del self._told[command.lane]

    def command_lost(self, command: Command, error: DeviceError) -> None:
        """Do nothing: the next generation registers the area anyway."""


class PinnedMemory:
    """The pinned arrays of one device. `serving` gives the generation whose worker must be told when one is gone."""

    def __init__(self, serving: Callable[[], Generation | None]) -> None:
        self._serving = serving
        self._numbers = itertools.count(STAGING_AREA + 1)
        self._areas: list[PinnedArea] = []
        """In the order of their addresses."""
        self._addresses: list[int] = []
        self._found: dict[int, tuple[weakref.ref[npt.NDArray[Any]], tuple[PinnedArea, int]]] = {}
        """Where arrays lie that were copied, by their `id`: a program copies the same ones again. An array that has no
        memory of its own stays where it is."""
        self._watches: dict[PinnedArea, weakref.ref[npt.NDArray[Any]]] = {}
        self._gone: collections.deque[PinnedArea] = collections.deque()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> npt.NDArray[Any]:
        """Return a new array in its own memory. Raises `OutOfHostMemory`."""
        self.collect()
        size = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        # Views of views refer to this array, so it is collected with the last of them.
        area, root = self.make_area(size)
        at = bisect.bisect(self._addresses, area.address)
        self._areas.insert(at, area)
        self._addresses.insert(at, area.address)
        # Any thread, any time: only note it. It is called before another array can get the addresses.
        gone = self._gone
        self._watches[area] = weakref.ref(root, lambda _: gone.append(area))
        return root[:nbytes].view(dtype).reshape(shape)

    def make_area(self, size: int) -> tuple[PinnedArea, npt.NDArray[np.uint8]]:
        """Return new memory of at least `size` bytes, which the caller must release. Raises `OutOfHostMemory`."""
        descriptor, mapped = _map_new(size)
        root = np.frombuffer(mapped, np.uint8)
        address = root.__array_interface__["data"][0]
        return PinnedArea(next(self._numbers), address, size, descriptor, mapped), root

    def find(self, host: npt.NDArray[Any]) -> tuple[PinnedArea, int] | None:
        """Return the area that a C-contiguous array lies in, and its offset there; None for ordinary memory."""
        if not self._areas:
            return None
        self.collect()
        flags = host.flags
        if flags.owndata or not flags.c_contiguous:  # numpy's own memory is never pinned
            return None
        return self.find_packed(host)

    def find_packed(self, host: npt.NDArray[Any]) -> tuple[PinnedArea, int] | None:
        """Do so for an array that is C-contiguous, and whose memory is not its own."""
        if self._gone:
            self.collect()
        if not self._areas:
            return None
        found = self._found.get(id(host))
        if found is not None and found[0]() is host:
            area, offset = found[1]
            return found[1] if offset + host.nbytes <= area.size else None  # its shape can be set
        try:
            address = _address_of(_byte_of(host))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            address = address_of(host)
        index = bisect.bisect(self._addresses, address) - 1
        if index < 0:
            return None
        area = self._areas[index]
        offset = address - area.address
        if offset + host.nbytes > area.size:
            return None
        number, known = id(host), self._found
        if len(known) >= _MOST_FOUND:
            known.clear()
        # It is called in any thread, before another array can have the same number.
        known[number] = weakref.ref(host, lambda _: known.pop(number, None)), (area, offset)
        return area, offset

    def collect(self, *, tell: bool = True) -> None:
        """Release the areas whose last view is gone. No copy uses them: it would keep the array alive.

        Without `tell` the worker is not told: it is for the end, when there is no worker any more.
        """
        while self._gone:
            area = self._gone.popleft()
            at = self._areas.index(area)
            del self._areas[at], self._addresses[at], self._watches[area]
            generation = self._serving() if tell else None
            if generation is not None and generation.loss is None:
                area.unregister(generation)
            area.close_in_thread()

    def close(self) -> None:
        """Close every descriptor; the arrays stay ordinary numpy arrays."""
        for area in self._areas:
            area.close()
        self._areas.clear()
        self._found.clear()
        self._addresses.clear()
        self._watches.clear()


def address_of(host: npt.NDArray[Any]) -> int:
    """Return the address of the first byte of a C-contiguous array."""
    try:
        return _address_of(_byte_of(host))  # type: ignore[arg-type]  # takes a quarter of the time of what follows
    except (TypeError, ValueError):  # it is read-only, or has a dtype of ml_dtypes
        address: int = host.__array_interface__["data"][0]
        return address


_byte_of, _address_of = ctypes.c_char.from_buffer, ctypes.addressof


def _map_new(size: int) -> tuple[int, mmap.mmap]:
    """Return the descriptor and the mapping of new shared memory."""
    try:
        return _try_to_map(size)
    except OutOfHostMemory:
        if not wait_until_idle():  # earlier pinned memory is being released
            raise
    return _try_to_map(size)


def _try_to_map(size: int) -> tuple[int, mmap.mmap]:
    try:
        available = available_memory()
        if size > available:
            raise OutOfHostMemory(f"{available:,} bytes of host memory are left, and {size:,} were requested as pinned")
        descriptor = os.memfd_create("atomr-trio-pinned", os.MFD_CLOEXEC)
        try:
            set_size(descriptor, size)
            return descriptor, mmap.mmap(descriptor, size)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise OutOfHostMemory(f"{size:,} bytes of host memory could not be allocated: {reason_of(error)}") from error
