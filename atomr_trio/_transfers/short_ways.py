"""Which awaited copies between host and device go a short way, and which way it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy.typing as npt

from .._arrays.arrays import Storage
from .._arrays.layout import Box
from .._generation.core import DeviceCore, DevicePart
from .copy_plan import PINNED_PIECE, Way, rows_of
from .long_copies import begin_long
from .read_copies import begin_read
from .reading import READ_LEAST, is_ready_to_read, may_read
from .short_copies import (
    FIRST_TO_HOST,
    PIECES_OF_ROWS,
    SHORT_BYTES,
    SHORT_PIECE,
    CopyPath,
    Form,
    OneSlotCopy,
    RowsCopy,
    ShortBoxCopy,
    ShortCopy,
    parts_of_rows,
)
from .single_copies import SingleCopy
from .staging import SMALL_SLOT
from .stretch_copies import STRETCH_BYTES, begin_stretch
from .transfers import Transfers

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray


ShortWay: TypeAlias = SingleCopy | ShortCopy
"""A copy that goes one of the short ways."""


class ShortCopies(DevicePart):
    """The short way of a device's awaited copies."""

    def __init__(self, device: DeviceCore) -> None:
        super().__init__(device)
        self._paths: dict[int, CopyPath] = {}
        self._transfers = transfers = device.part(Transfers)
        self._pinned = transfers.pinned
        self._staging = transfers.staging

    def begin(self, array: DeviceArray, host: npt.NDArray[Any], way: Way) -> ShortWay | None:
        """Return a copy between two checked arrays, to be run without a checkpoint before; None for the general way.

        The short way is allowed only if it would be the actor's next request.
        """
        path = self._paths.get(way.lane)
        size = host.nbytes
        if path is None or not size or type(array._storage) is not Storage:
            return None
        mailbox = path.mailbox
        if mailbox.posted != mailbox.taken or path.actor.current is not None:
            return None
        flags = host.flags
        if array._plain is None or not flags.c_contiguous:
            return self._begin_boxes(path, array, host)
        block = array._storage.block
        found = None if flags.owndata else self._pinned.find_packed(host)
        if found is not None:
            if size > PINNED_PIECE or not found[0].is_known(path.generation, way.lane) or not path.takes(block):
                return None
            return SingleCopy(path, array, host, None, found)
        if size <= SHORT_PIECE:
            return self._begin_single(path, array, host)
        if path.reads:
            read = begin_read(path, self._staging, array, host)
            if read is not None:
                return read
        if size > SHORT_BYTES:
            copy = begin_stretch(path, self._transfers, array, host) if size <= STRETCH_BYTES else None
            return copy or begin_long(path, self._transfers, array, host)
        count = -(-size // SHORT_PIECE)
        if not path.takes(block, count):
            return None
        path.note_ended()
        slots = None if path.incoming else self._staging.acquire_several(size, 1)
        if slots is not None:
            pieces = [(0, FIRST_TO_HOST), (FIRST_TO_HOST, size - FIRST_TO_HOST)]
            return OneSlotCopy(path, array, host, slots[0], pieces)
        slots = self._staging.acquire_several(SHORT_PIECE, count)
        return None if slots is None else ShortCopy(path, array, host, slots)

    def _begin_single(
        self, path: CopyPath, array: DeviceArray, host: npt.NDArray[Any], form: Form | None = None
    ) -> SingleCopy | None:
        size = host.nbytes
        if not path.takes(array._storage.block):
            return None
        if size > SMALL_SLOT:
            path.note_ended()
        slot = self._staging.take(size)
        if slot is None:
            return None
        # Alone, the task would wait for what the worker reads.
        reads = (
            size >= READ_LEAST
            and form is None
            and bool(path.book.launches)
            and may_read(path, host)
            and is_ready_to_read(path)
        )
        return SingleCopy(path, array, host, slot, None, form, reads=reads)

    def _begin_boxes(self, path: CopyPath, array: DeviceArray, host: npt.NDArray[Any]) -> ShortWay | None:
        size, flags = host.nbytes, host.flags
        if flags.c_contiguous and (flags.owndata or self._pinned.find_packed(host) is None):
            rows = rows_of(array.shape, array.strides, array.itemsize)
            if rows is not None and size <= SHORT_PIECE:
                return self._begin_single(path, array, host, path.form_of(rows))
            if rows is not None and size > SHORT_BYTES:
                return begin_long(path, self._transfers, array, host, rows)
            copy = None if rows is None else self._begin_rows(path, array, host, rows)
            if copy is not None:
                return copy
        if size > SHORT_BYTES:
            return None
        plan = path.plan_boxes(array, host)
        if plan is None:
            return None
        slots = self._staging.acquire_several(min(host.nbytes, SHORT_PIECE), len(plan.pieces))
        return None if slots is None else ShortBoxCopy(path, plan, slots)

    def _begin_rows(self, path: CopyPath, array: DeviceArray, host: npt.NDArray[Any], rows: Box) -> RowsCopy | None:
        boxes = parts_of_rows(rows, *PIECES_OF_ROWS[path.incoming])
        if not path.takes(array._storage.block, len(boxes)):
            return None
        path.note_ended()
        slots = self._staging.acquire_several(host.nbytes, 1)
        return None if slots is None else RowsCopy(path, array, host, slots[0], boxes)

    def learn(self, way: Way) -> None:
        """Prepare the short way for the next copy, after one that went the general way."""
        generation = self.device.serving
        if generation is None or generation.refusing or generation.ring is None:
            return
        path = self._paths.get(way.lane)
        if path is None or path.generation is not generation:
            self._paths[way.lane] = CopyPath(generation, way, self.device.memory_actor)

    def stop_reading(self) -> None:
        """Have this generation's worker read no more arrays of the host: it could not read one."""
        for path in self._paths.values():
            path.reads = False

    def generation_lost(self, number: int) -> None:
        """Drop the paths into a lost generation."""
        self._paths.clear()
