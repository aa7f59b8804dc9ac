"""The device memory of one open device: its arena, the arrays that are made in it, and what shares them."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import numpy as np
import numpy.typing as npt
import trio

from .._generation.core import DeviceCore, DevicePart
from .._generation.generation import Generation
from .._generation.peers import Peers
from .._generation.process import address_range
from .._memory.arena import Arena, ArenaFull, Block, Bound, Recipe
from .._supervision.closing import close_in_thread, closed
from .._supervision.mailbox import Request
from .._values.dtypes import check_dtype
from .._values.errors import OutOfDeviceMemory
from .._values.util import known
from .arrays import ArrayTransfers, DeviceArray, Layout, contiguous, new_array
from .checked_memory import CheckedArena

if TYPE_CHECKING:
    from .sharing.exports import Interop

DEFAULT_MEMORY_SHARE = 0.95
STANDBY_BYTES = 768 << 20
"""Device memory set aside for the context of each standby; one takes about 600 MiB on an H200."""

_FEWER_GUARDED = "free arrays, or make fewer guarded ones: each of those takes a chunk and addresses of its own"
_SHORT_OF: Final = MappingProxyType[Bound, tuple[str, str]](
    {
        "memory": ("the limit is {limit:,}", "free arrays, or raise memory_limit= of open_device"),
        "promised": (
            "{promised:,} of the limit of {limit:,} are reserved for others",
            "free arrays, reserve memory for this work too, or raise memory_limit=",
        ),
        "chunks": ("a device may have no more chunks", _FEWER_GUARDED),
        "addresses": ("no free range of addresses is long enough", _FEWER_GUARDED),
    }
)
"""For what an arena has run out of: how `OutOfDeviceMemory` says so, and what helps."""


_MOST_LAYOUTS: Final = 256
"""The most layouts of a dtype that are remembered."""


class DeviceMemory(DevicePart):
    """The memory of an open device, and the arrays in it. It outlives the generations."""

    transfers: ArrayTransfers
    """Moves the bytes of arrays; set by the layer above, when a device is opened."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self.maybe_arena: Arena | None = None
        """The arena; None until the first worker has said how much memory there is."""
        self.orphans: collections.deque[Block] = collections.deque()
        """The blocks of arrays that were collected, noted in any thread."""
        self.interop: Interop | None = None
        """What shares arrays with other libraries, once an array was shared."""
        self._guarded = device.options.guarded
        self._checked = bool(device.options.checks)
        self._here = device.home.here
        self._layouts: dict[object, dict[object, Layout]] = {}
        """What `empty` has found for a dtype, as it was given, and an int or a tuple of ints."""

    @property
    def arena(self) -> Arena:
        """The arena."""
        return self.maybe_arena or known(self.maybe_arena, "a device that is open has an arena")

    @property
    def is_plain(self) -> bool:
        """True if an array needs no more than a block: neither a guard on either side of it, nor checks."""
        return not self._guarded and not self._checked

    # --- arrays -------------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    def empty(
        self,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: npt.DTypeLike = np.float64,
        guarded: bool | None = None,
    ) -> DeviceArray:
        """Return a new array; see `Device.empty`."""
        try:
            layout = self._layouts[dtype][shape]
            if type(shape) is not int and layout[0] is not shape:
                for length in shape:  # type: ignore[union-attr]
                    if type(length) is not int:  # 1.0 and True are equal to 1
                        raise TypeError
        except (KeyError, TypeError):
            self.device.check_open()
            layout = self.layout_of(shape, dtype)
        return self.again(layout, None, guarded)

    @trio.lowlevel.enable_ki_protection
    def again(self, layout: Layout, form: object, guarded: bool | None = None) -> DeviceArray:
        """Return a new array of a layout that an earlier one had, and of its form, if that is known."""
        device = self.device
        if device.ended is not None or not self._here():
            device.check_open()
        if self.interop is not None:
            self.interop.collect()
        arena = self.maybe_arena or self.arena
        try:
            block = arena.allocate(layout[2], self._guarded if guarded is None else guarded)
        except ArenaFull as full:
            raise self._full(full) from None
        if self._checked:
            self._describe(block, layout[0], layout[3])
        return new_array(self, block, layout, form)

    def layout_of(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike) -> Layout:
        """Check a shape and a dtype, and remember what they mean if looking them up finds the same. See `again`."""
        checked = check_dtype(dtype)
        lengths, strides, nbytes = contiguous(shape, checked.itemsize)
        layout = lengths, strides, nbytes, checked
        if (type(shape) is int or shape is lengths) and isinstance(dtype, str | type | np.dtype):
            layouts = self._layouts.setdefault(dtype, {})
            if len(layouts) >= _MOST_LAYOUTS:
                layouts.clear()
            layouts[shape] = layout
        return layout

    def zeros(
        self,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: npt.DTypeLike = np.float64,
        guarded: bool | None = None,
    ) -> DeviceArray:
        """Return a new array of zeros; see `Device.zeros`."""
        checked = check_dtype(dtype)
        return self.filled(shape, checked, bytes(checked.itemsize), guarded)

    @trio.lowlevel.enable_ki_protection
    def filled(
        self,
        shape: SupportsIndex | Sequence[SupportsIndex],
        dtype: np.dtype[Any],
        pattern: bytes,
        guarded: bool | None,
    ) -> DeviceArray:
        """Return a new array whose elements are set to `pattern` when a command first touches it."""
        array = self.empty(shape, dtype, guarded)
        if array.size:
            array._block.recipe = Recipe(dtype.itemsize, array.size, pattern)
        return array

    def _describe(self, block: Block, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Tell the worker of a checked device of a new array."""
        assert isinstance(self.arena, CheckedArena)  # the device was opened with `check`
        self.arena.describe(block, shape, dtype)

    def _full(self, full: ArenaFull) -> OutOfDeviceMemory:
        form, advice = _SHORT_OF[full.bound]
        text = form.format(limit=full.limit, promised=full.promised)
        plans = f", and libraries have {full.workspaces:,} for their workspaces" if full.workspaces else ""
        return OutOfDeviceMemory(
            f"{full.requested:,} bytes do not fit: {text}, arrays hold {full.in_use:,} "
            f"and {full.reserved:,} are reserved in {full.chunks} chunks of {self.arena.most_chunks}{plans}",
            device=self.device.index,
            generation=self.device.generation,
            operation="empty",
            advice=advice,
        )

    @trio.lowlevel.enable_ki_protection
    def free(self, block: Block) -> None:
        """Take a block back from the program."""
        device = self.device
        if device.ended is None:  # so this is not a forked child either
            if not self._here():
                raise device.home.error()
        elif os.getpid() != device.process_id:
            return
        if self.interop is None or not self.interop.hold(block):
            (self.maybe_arena or self.arena).free(block)

    def free_now(self, block: Block) -> None:
        """Take a block back that another library has held."""
        self.arena.free(block)

    def shared(self) -> Interop:
        """Return what shares arrays with other libraries. Once it is made, every generation keeps order with them."""
        self.device.check_open()
        if self.interop is None:
            from .sharing.exports import Interop

            self.interop = Interop(self, cuda=self.device.backend == "cuda")
            for generation in self.device.all_generations():
                generation.interop = self.interop
        return self.interop

    # --- generations --------------------------------------------------------------------------------------------------

    @property
    def set_aside(self) -> int:
        """The bytes of device memory that are left for the contexts of standbys. A simulated one takes none."""
        return 0 if self.device.backend == "sim" else self.device.options.standby * STANDBY_BYTES

    def settle_in(self, generation: Generation) -> None:
        """Make the arena for the first generation; let every one keep order with other libraries."""
        if self.maybe_arena is None:
            base, extent = address_range(self.device.index)
            options = self.device.options
            limit = options.memory_limit
            if limit is None:
                limit = max(0, int((self.device.info.free_memory - self.set_aside) * DEFAULT_MEMORY_SHARE))
            self.maybe_arena = (CheckedArena if self._checked else Arena)(base, extent, limit, options.most_chunks)
            self.maybe_arena.orphans = self.orphans
            generation.arena = self.maybe_arena
        if isinstance(self.maybe_arena, CheckedArena):
            folder = known(generation.process.check_folder, "a checked device has checked workers")
            self.maybe_arena.serve(folder, generation.timeline)
        self.maybe_arena.count_workspaces = generation.workspace_bytes
        generation.interop = self.interop

    def dismissed(self) -> None:
        """Note that the worker in service goes back to its pool."""
        if isinstance(self.maybe_arena, CheckedArena):
            self.maybe_arena.dismiss()

    def generation_lost(self, number: int) -> None:
        """Decide which memory survives the generation."""
        durable, strict = self.device.info.durable, self.device.strict
        descriptors = self.arena.generation_lost(durable=durable, strict=strict, number=number)
        if descriptors:  # else a thread would be woken for nothing, ahead of who waits for the next generation
            close_in_thread(descriptors, [])

    # --- the end ------------------------------------------------------------------------------------------------------

    async def give_back(self) -> None:
        """Give the memory of arrays back to the system."""
        if self.maybe_arena is not None:
            await closed(self.maybe_arena.part_with_descriptors())

    def close(self) -> None:
        """Close the descriptors of the chunks, and end the sharing."""
        if self.interop is not None:
            self.interop.close()
        self.forget()

    def forget(self) -> None:
        """Close the descriptors of the chunks."""
        if self.maybe_arena is not None:
            self.maybe_arena.close()


class QuarantineGate:
    """Keeps requests out of the mailboxes while a lost worker, or another device, may still touch their memory."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory

    def shut(self, request: Request) -> bool:
        """Return whether the request has to wait."""
        device = self._memory.device
        return self._quarantined(request) or (
            device.group is not None and device.part(Peers).blocked(request.accesses())
        )

    async def wait(self, request: Request, check: Callable[[], None]) -> None:
        """Wait until it need not any more; `check` raises an error when it must not wait on."""
        device = self._memory.device
        if device.group is None:
            while self._quarantined(request):
                await device.changed.wait()
                check()
            return
        peers = device.part(Peers)
        with peers.wishing(request.accesses()) as wish:
            while self._quarantined(request) or peers.blocked(request.accesses(), wish):
                peers.press(request.accesses())
                await device.group.wait()
                check()

    def _quarantined(self, request: Request) -> bool:
        arena = self._memory.maybe_arena
        return arena is not None and bool(arena.quarantine) and any(map(arena.quarantined, request.blocks()))
