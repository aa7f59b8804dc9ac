"""The short way of fills, and of copies on the device, of contiguous arrays.

All fills with elements of one size are one ready record (``_wire/ready.py``), and all copies are one. Their words are
what differs: the addresses, the size, and the bytes of an element. So a fill is short for every array and every value,
the first one too. What is not one run of bytes, and items of 16 bytes, are known by the form of the arrays, as calls of
libraries are (``series.py``). The general way is taken by an array for which a command of another lane must be awaited,
or a chunk or a first content made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import numpy as np
import trio

from .._arrays.arrays import DeviceArray, Storage
from .._generation.core import DeviceCore
from .._generation.peers import Peers
from .._memory.arena import Block
from .._transfers.memory import pattern_of
from .._values.errors import InvalidArgument
from .._wire.protocol import RECORDS_SENT_WORD, REPEATED, UNSIGNED, WORKER_ASLEEP_WORD, Role, Verb
from .._wire.ready import READY, new_identity, ready_head
from .._wire.records.memory import BOX, COPY, COPY_WORDS, FILL, FILL_WORDS, MEMORY
from .._wire.ring import NEW_IN_EACH, SAME_IN_ALL, SLOT_MASK, SLOT_SHIFT, record_struct
from .launching import LaunchPath

if TYPE_CHECKING:
    from .._generation.timeline import LaunchOwner, Operand

_WORDS: Final = 3

_Mover = Callable[[int, int, int, Block, "Block | None", tuple[object, ...], "LaunchOwner"], bool]
"""Sends a record with these words. Given the block that is written, the block that is read, the arrays, which it keeps
alive, and the owner, which is told of the end. Returns false, without any effect, if it must go the general way."""

_MOST_PATTERNS: Final = 1024
_patterns: dict[object, tuple[int, int, int]] = {}
"""By the type of a number, the number, and a dtype: the bytes of one item of a fill, the items of an element, and the
bits of an item. All zeros are one key for each type, so a zero is written out."""


class _Kind:
    """Fills or copies, as a launch path knows them."""

    __slots__ = ("operation",)

    _engine: ClassVar[str] = MEMORY.engine

    def __init__(self, operation: str) -> None:
        self.operation: str = operation

    def _describe(self, arguments: tuple[object, ...]) -> tuple[str, Sequence[Operand]]:
        if not arguments:
            return self.operation, ()
        written, *read = cast("tuple[DeviceArray, ...]", arguments)
        role = Role.OVERWRITE if written._covers_block else Role.WRITE
        # An array of another device is only read; its account has nothing that a loss tears.
        return self.operation, ((written._block, role), *((array._block, Role.READ) for array in read))


_FILL, _COPY = _Kind(FILL.operation), _Kind(COPY.operation)


class Moves:
    """The fills and copies that one launch path makes."""

    def __init__(self, path: LaunchPath, device: DeviceCore) -> None:
        self._device = device
        run = BOX.pack(0, 0, 0, 0, 0, 0, 0, 1, 1)
        self._copy = _mover(path, _COPY, COPY, COPY_WORDS, run)
        self._fills = MappingProxyType(
            {
                itemsize: _mover(path, _FILL, FILL, FILL_WORDS, FILL.struct.pack(0, 0, itemsize, 0, 1, b""))
                for itemsize in (1, 2, 4, 8)
            }
        )

    def fill(self, array: object, value: object, owner: LaunchOwner) -> bool:
        """Set every element of an array. Returns false, without any effect, if it must go the general way."""
        if type(array) is not DeviceArray or array._plain is None:
            return False
        storage = array._storage
        if storage.device is not self._device or type(storage) is not Storage:
            return False
        kind = type(value)
        if kind is not float and kind is not int:
            if not isinstance(value, np.generic):
                return False
            value = value.item()
            kind = type(value)
            if kind is not float and kind is not int:
                return False
        try:
            pattern = _patterns[kind, value if value else str(value), array.dtype]
        except KeyError:
            found = _pattern(cast("float", value), array.dtype)
            if found is None:
                return False
            pattern = found
        itemsize, factor, bits = pattern
        shape = array.shape
        count = (shape[0] if len(shape) == 1 else math.prod(shape)) * factor
        if not count:
            return False
        block = storage.block
        return self._fills[itemsize](block.address + array._offset, count, bits, block, None, (array,), owner)

    def copy(self, source: object, target: object, owner: LaunchOwner) -> bool:
        """Overwrite an array with another. Returns false, without any effect, if it must go the general way."""
        if type(source) is not DeviceArray or type(target) is not DeviceArray:
            return False
        dtype = target._plain
        if dtype is None or source._plain is not dtype or source.shape != target.shape:
            return False
        to, origin, device = target._storage, source._storage, self._device
        if to.device is not device:
            return False
        written, read = to.block, origin.block
        if written is read:
            return False
        if origin.device is not device:
            account = self._account(read)
            if account is None:
                return False
            read = account
        if type(to) is not Storage or type(origin) is not Storage:
            return False
        shape = target.shape
        nbytes = (shape[0] if len(shape) == 1 else math.prod(shape)) * dtype.itemsize
        if not nbytes:
            return False
        # Without a tuple of the places, and without a sum where there is no offset: both take longer than the lines.
        place = written.address + target._offset if target._offset else written.address
        other = read.address + source._offset if source._offset else read.address
        return self._copy(place, other, nbytes, written, read, (target, source), owner)

    def _account(self, block: Block) -> Block | None:
        """Return the device's account of another's block, if it has one: the general way has checked the block then."""
        group = self._device.group
        if group is None:
            return None
        peers = self._device.part(Peers)
        return next((each for each in block.peers if each.party is peers), None)


def moves_of(path: LaunchPath, device: DeviceCore) -> Moves:
    """Return the fills and copies of a path, which end with it."""
    moves: Moves | None = path.moves
    if moves is None:
        moves = path.moves = Moves(path, device)
    return moves


def _pattern(value: float, dtype: np.dtype[Any]) -> tuple[int, int, int] | None:
    """Return the bytes, the number, and the bits of the items that an element is filled with, and remember it.

    Returns None for a value that the dtype cannot hold, and for an item of more than 8 bytes.
    """
    try:
        content = pattern_of(value, dtype)
    except InvalidArgument:
        return None
    for size in (4, 8):  # the driver sets at most 4 bytes, so an item of 8 takes several calls
        items = {content[at : at + size] for at in range(0, len(content), size)}
        if len(items) == 1:
            break
    else:
        return None
    item = items.pop()
    if len(_patterns) >= _MOST_PATTERNS:
        _patterns.clear()
    found = len(item), len(content) // len(item), int.from_bytes(item, "little")
    _patterns[type(value), value if value else str(value), dtype] = found
    return found


def _mover(path: LaunchPath, kind: _Kind, verb: Verb, places: Sequence[int], payload: bytes) -> _Mover:
    """Return the function of a ready record with three words, for the lane of a path. It begins and ends as others."""
    sender, book, here = path.sender, path.book, path.here
    fence_mask, wakes = path.fence_mask, path.wakes
    ring, words, announce, wake = sender.ring, sender.words, sender.announce, path.generation.settler.wake
    assert ring is not None
    slots, launches, token, lane = ring.slots, book.launches, path.token, book.index
    generation = path.generation.number
    number = verb.number | path.verb & UNSIGNED | REPEATED
    header = SAME_IN_ALL.pack(lane, verb.engine_number, number, _WORDS, READY.size + len(payload))
    head = header + ready_head(new_identity(), places)
    pack_into = record_struct(f"{NEW_IN_EACH}{len(head)}s{_WORDS}Q{len(payload)}s").pack_into

    @trio.lowlevel.enable_ki_protection
    def move(
        first: int,
        second: int,
        third: int,
        written: Block,
        read: Block | None,
        arrays: tuple[object, ...],
        owner: LaunchOwner,
    ) -> bool:
        sent = sender.sent + 1
        if not here() or (sent > path.last_record and not path.look_again()):
            return False
        # Nothing is noted before all checks: others would wait for a ticket that may never be issued.
        fresh = written.fast != token and path.is_fresh(written)
        if (written.fast != token and not fresh) or (read is not None and read.fast != token):
            operands = [(written, Role.WRITE)] if read is None else [(written, Role.WRITE), (read, Role.READ)]
            if not (book.open and path.admit(operands)):  # the first command of a lane opens it
                return False
            sent = sender.sent + 1  # fills of new arrays may have been sent
        ticket = book.issued + 1
        me = (lane, ticket)
        if fresh:
            written.epoch, written.written, written.fast = generation, True, token
        written.writer = me
        if written.readers:
            written.readers = {}
        if read is not None:
            read.reader = me
        at = (sent - 1 & SLOT_MASK) << SLOT_SHIFT
        pack_into(slots, at, sent, ticket, head, first, second, third, payload)
        is_first = not launches
        launches.append((ticket, owner, kind, arrays))
        book.issued = ticket
        sender.sent = words[RECORDS_SENT_WORD] = sent
        if not sent & fence_mask or words[WORKER_ASLEEP_WORD]:
            announce()
        if is_first and wakes:
            wake()
        return True

    return move
