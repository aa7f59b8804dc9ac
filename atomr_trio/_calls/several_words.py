"""The short way into the ring of calls that differ in several words, and may have several new arrays.

It is that of a repeated call (``repeating.py``), which has one word alone, or one new array, in a few lines more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from .._arrays.arrays import DeviceArray
from .._generation.timeline import Launchable, LaunchOwner, Operand
from .._memory.arena import Block, ChunkState
from .._wire.protocol import RECORDS_SENT_WORD, REPEATED, UNSIGNED, WORKER_ASLEEP_WORD, counter_word
from .._wire.ready import READY
from .._wire.ring import NUMBERED_HEADER, SLOT_MASK, SLOT_SHIFT

if TYPE_CHECKING:
    from .._generation.generation import Generation
    from .._generation.requests import CallKind
    from .launching import LaunchPath


class WordsCall(Launchable, Protocol):
    """A call whose records differ in some words."""

    head: bytes
    """What is in front of the words."""
    places: tuple[int, ...]
    """The places of the words in the payload."""
    payload: bytes
    """With zeros there."""
    blocks: tuple[Operand, ...]
    """The memory that it was given."""
    reads: tuple[Block, ...]
    writes: tuple[Block, ...]

    @property
    def kind(self) -> CallKind:
        """Its kind."""

    @property
    def _key(self) -> object:
        """An object of its own, by which a path finds its function."""

    def may_be_short(self, generation: Generation, lane: int) -> bool:
        """Return whether its records may go straight into the ring."""

    def _of(self, thing: Any) -> bool:
        """Return whether it ends with this plan."""


WordsLauncher = Callable[[Any, tuple[object, ...], LaunchOwner, Sequence[DeviceArray], Sequence[int]], bool]
"""A function of a call, the objects to keep alive, the owner that is told of the end, the new arrays, and the words.

It writes the record into the ring. It returns false, without any effect, if the call must go the general way.
"""
_FENCE_MASK: Final = 15
"""A fence follows only every 16th record that others follow (see ``ring.py``)."""


def words_launcher(path: LaunchPath, call: WordsCall) -> WordsLauncher | None:
    """Return the function of a call for the lane of a path; None if it has none (yet)."""
    launcher: WordsLauncher | None = path.launchers.get(call._key)
    if launcher is None and not path.sender.refusing and call.may_be_short(path.generation, path.book.index):
        launcher = _new_launcher(path, call)
        path._keep(call, launcher)
    return launcher


def _new_launcher(path: LaunchPath, call: WordsCall) -> WordsLauncher:
    """Return that function. It holds no array of the call."""
    sender, book, here, number = path.sender, path.book, path.here, path.generation.number
    kind = call.kind
    verb = kind.later.number | path.verb & UNSIGNED | REPEATED
    fence_mask, wakes = (_FENCE_MASK, True) if verb & UNSIGNED else (0, False)
    ring, shared, announce, wake = sender.ring, sender.words, sender.announce, path.generation.settler.wake
    assert ring is not None
    slots, launches, token, lane = ring.slots, book.launches, path.token, book.index
    arena, order = path.generation.arena, path.generation.order
    engine, count, head = kind.later.engine_number, len(call.places), call.head
    payload, length = call.payload, READY.size + len(call.payload)
    usage, operands, reads, writes = kind.usage, call.blocks, call.reads, call.writes
    pack_into = struct.Struct(f"{NUMBERED_HEADER.format}{READY.size}s{count}Q{len(payload)}s").pack_into
    del call

    @trio.lowlevel.enable_ki_protection
    def launch(
        call: WordsCall,
        given: tuple[object, ...],
        owner: LaunchOwner,
        arrays: Sequence[DeviceArray],
        words: Sequence[int],
    ) -> bool:
        sent = sender.sent + 1
        if not here() or (sent > path.last_record and not path.look_again()):
            return False
        # Nothing is noted before all checks: others would wait for a ticket that may never be issued.
        if arena.quarantine:
            return False
        new = [array._storage.block for array in arrays]
        for block in new:
            if block.chunk.state is not ChunkState.READY:
                return False
            if block.readers and block.epoch == number:
                for other, last in block.readers.items():
                    if other != lane and shared[counter_word(other)] < last:
                        return False
            if order.others is not None and order.others.uses(block):
                return False
        for block, _ in operands:
            if block.fast != token:
                if not path.admit(operands):
                    return False
                sent = sender.sent + 1  # fills of new arrays may have been sent
                break
        ticket = book.issued + 1
        me = (lane, ticket)
        for block in writes:
            block.writer = me
            if block.readers:
                block.readers = {}
        for block in reads:
            block.reader = me
        for block in new:
            block.epoch = number
            block.writer = me
            block.readers = {}
            block.written = True
            block.fast = token
        at = (sent - 1 & SLOT_MASK) << SLOT_SHIFT
        pack_into(slots, at, sent, ticket, lane, engine, verb, count, length, head, *words, payload)
        launches.append((ticket, owner, call, given))
        book.issued = ticket
        usage.last_use = sent
        sender.sent = shared[RECORDS_SENT_WORD] = sent
        if not sent & fence_mask or shared[WORKER_ASLEEP_WORD]:
            announce()
        if wakes and launches[0][0] == ticket:
            wake()
        return True

    return launch
