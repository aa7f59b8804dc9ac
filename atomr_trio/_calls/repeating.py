"""The short way of a repeated call into the ring: one function for each call and lane.

It is the same for every call: whether its result is an array that it was given, a new one, or a number on the host, and
whether it is awaited or of a batch. What differs from one call to the next are the words of its record
(``_wire/ready.py``), which are all the same one: the address of the new result, or the place of the answer.

The blocks of a call are looked at one by one. Those that only this lane has used are recognised by `Block.fast`. For
any other, `LaunchPath.admit` finds whether something of another lane must be waited for. A ready record has no waits,
so then the call goes the general way. A new result is a block that was perhaps just freed: the work that still runs on
it counts in the same way.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Protocol

import trio

from .._generation.requests import CallKind
from .._generation.timeline import Launchable, Operand
from .._memory.arena import Block, ChunkState
from .._wire.protocol import RECORDS_SENT_WORD, REPEATED, UNSIGNED, WORKER_ASLEEP_WORD, counter_word
from .._wire.ready import READY
from .._wire.ring import NUMBERED_HEADER, SLOT_MASK, SLOT_SHIFT

if TYPE_CHECKING:
    from .._generation.timeline import LaunchOwner
    from .launching import LaunchPath


class RepeatedCall(Launchable, Protocol):
    """A call whose records are the same, but for the words at `places`."""

    kind: CallKind
    head: bytes
    """The part of its records in front of the words."""
    payload: bytes
    """The payload of its records, with zeros at `places`."""
    places: tuple[int, ...]
    operands: tuple[Operand, ...]
    """Its access to memory, without that of a new result."""
    blocks: tuple[Block, ...]
    reads: tuple[Block, ...]
    writes: tuple[Block, ...]

    @property
    def _key(self) -> object:
        """An object of its own, by which a path finds its function."""

    def _of(self, thing: Any) -> bool:
        """Return whether it is of this module or plan, and ends with it."""


class CallLauncher(Protocol):
    """The function of one call."""

    def __call__(
        self,
        call: RepeatedCall,
        given: tuple[object, ...],
        owner: LaunchOwner,
        new: Block | None = None,
        word: int = 0,
        /,
    ) -> bool:
        """Write the record of the call into the ring. Returns false, without any effect, if it must go the general way.

        `given` are the arrays of the call, with the new result at the end, which are kept alive until the call is done.
        `new` is the block of the new result; without one, `word` is the word of the record. `owner` is told of the end.
        """


def call_launcher(path: LaunchPath, call: RepeatedCall) -> CallLauncher:
    """Return the function of a call for the lane of a path. It holds no array of the call."""
    sender, book, here, number = path.sender, path.book, path.here, path.generation.number
    verb = call.kind.later.number | path.verb & UNSIGNED | REPEATED
    fence_mask, wakes = path.fence_mask, path.wakes
    ring, words, announce, wake = sender.ring, sender.words, sender.announce, path.generation.settler.wake
    assert ring is not None
    slots, launches, token, lane = ring.slots, book.launches, path.token, book.index
    arena, order = path.generation.arena, path.generation.order
    engine, count, head = call.kind.later.engine_number, len(call.places), call.head
    payload, length = call.payload, READY.size + len(call.payload)
    usage = call.kind.usage
    blocks, reads, writes, operands = call.blocks, call.reads, call.writes, call.operands
    pack_into = struct.Struct(f"{NUMBERED_HEADER.format}{READY.size}s{count}Q{len(payload)}s").pack_into
    del call

    @trio.lowlevel.enable_ki_protection
    def launch(
        call: RepeatedCall,
        given: tuple[object, ...],
        owner: LaunchOwner,
        new: Block | None = None,
        word: int = 0,
        /,
    ) -> bool:
        sent = sender.sent + 1
        if not here() or (sent > path.last_record and not path.look_again()):
            return False
        # Nothing is noted before all checks: others would wait for a ticket that may never be issued.
        if new is not None:
            word = new.address
            if new.chunk.state is not ChunkState.READY or arena.quarantine:
                return False
            if new.readers and new.epoch == number:
                for other, last in new.readers.items():
                    if other != lane and words[counter_word(other)] < last:
                        return False
            if order.others is not None and order.others.uses(new):
                return False
        for used in blocks:
            if used.fast != token:
                if not path.admit(operands):
                    return False
                break
        ticket = book.issued + 1
        me = (lane, ticket)
        for used in writes:
            used.writer = me
            if used.readers:
                used.readers = {}
        for used in reads:
            used.reader = me
        if new is not None:
            new.epoch = number
            new.writer = me
            new.readers = {}
            new.written = True
            new.fast = token
        at = (sent - 1 & SLOT_MASK) << SLOT_SHIFT
        pack_into(slots, at, sent, ticket, lane, engine, verb, count, length, head, *(word,) * count, payload)
        launches.append((ticket, owner, call, given))
        book.issued = ticket
        usage.last_use = sent
        sender.sent = words[RECORDS_SENT_WORD] = sent
        if not sent & fence_mask or words[WORKER_ASLEEP_WORD]:
            announce()
        if wakes and launches[0][0] == ticket:
            wake()
        return True

    return launch
