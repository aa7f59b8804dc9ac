"""The short way of a repeated call into the ring: one function for each form of calls and each lane.

It is the same for every call: whether its result is an array that it was given, a new one, or a number on the host, and
whether it is awaited or of a batch. What differs from one call to the next are the words of its record
(``_wire/ready.py``): the addresses of its arrays, and of a new result or the place of an answer.

The function is generated, as the encoder of a kernel's arguments is (``encoder.py``): a loop over the arrays took twice
as long. Its text contains only numbers.

The blocks of a call are looked at one by one. Those that only this lane has used are recognised by `Block.fast`. For
any other, `LaunchPath.admit` finds whether something of another lane must be waited for. A ready record has no waits,
so then the call goes the general way. A new result is a block that was perhaps just freed: the work that still runs on
it counts in the same way.

A call keeps its arrays alive until it is done, but only the block of its new result. So a result that is dropped at
once gives its memory to the next call of the same lane, which runs behind this one.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import trio

from .._memory.arena import Block, ChunkState
from .._wire.protocol import RECORDS_SENT_WORD, REPEATED, UNSIGNED, WORKER_ASLEEP_WORD, Role, counter_word
from .._wire.ready import READY
from .._wire.ring import NUMBERED_HEADER, SLOT_MASK, SLOT_SHIFT
from .known import NEW, KnownCall, Source

if TYPE_CHECKING:
    from .._generation.timeline import LaunchOwner
    from .launching import LaunchPath

_FENCE_MASK = 15
"""A fence follows only every 16th call that others follow (see ``ring.py``)."""


class CallLauncher(Protocol):
    """The function of one form of calls."""

    def __call__(
        self,
        call: KnownCall,
        given: tuple[object, ...],
        owner: LaunchOwner,
        new: Block | None = None,
        word: int = 0,
        /,
    ) -> bool:
        """Write the record of the call into the ring. Returns false, without any effect, if it must go the general way.

        `given` are the arrays of the call, and behind them `new`, the block of its new result. Without one, `word` is
        the place of the answer. `owner` is told of the end.
        """


_TEXT = """
def launch(call, given, owner, new=None, word=0):
    sent = sender.sent + 1
    if not here() or (sent > path.last_record and not path.look_again()):
        return False
    # Nothing is noted before all checks: others would wait for a ticket that may never be issued.
    {listed}= given
{blocks}{new}{checks}\
    ticket = book.issued + 1
    me = (lane, ticket)
{notes}\
    at = (sent - 1 & SLOT_MASK) << SLOT_SHIFT
    pack_into(slots, at, sent, ticket, lane, engine, verb, {count}, length, head, {words}payload)
    launches.append((ticket, owner, call, given))
    book.issued = ticket
    usage.last_use = sent
    sender.sent = words[SENT] = sent
    if not sent & fence_mask or words[ASLEEP]:
        announce()
    if wakes and launches[0][0] == ticket:
        wake()
    return True
"""
_BLOCK = "    b{i} = a{i}._storage.block\n"
_NEW = """\
    word = new.address
    if not may_take(new):
        return False
"""
_CHECKS = """\
    if {different}:
        if not path.admit(({operands})):
            return False
"""
_READS = "    b{i}.reader = me\n"
_WRITES = """\
    b{i}.writer = me
    if b{i}.readers:
        b{i}.readers = {{}}
"""
_TAKES = """\
    new.epoch = number
    new.writer = me
    new.readers = {}
    new.written = True
    new.fast = token
"""


def _text(arrays: int, access: tuple[tuple[int, Role], ...], sources: tuple[Source, ...], *, new: bool) -> str:
    """Return the text of the function for calls on so many arrays."""
    operands = "".join(f"(b{i}, {role.name}), " for i, role in access)
    different = " or ".join(f"b{i}.fast != token" for i, _ in access)
    return _TEXT.format(
        listed="".join([*(f"a{i}, " for i in range(arrays)), *(["_, "] if new else [])]) or "() ",
        blocks="".join(_BLOCK.format(i=i) for i in dict.fromkeys([i for i, _ in access] + _arrays_of(sources))),
        new=_NEW if new else "",
        checks=_CHECKS.format(different=different, operands=operands) if access else "",
        notes="".join((_READS if role is Role.READ else _WRITES).format(i=i) for i, role in access)
        + (_TAKES if new else ""),
        count=len(sources),
        words="".join(
            f"word + {more}, " if i == NEW else f"b{i}.address + a{i}._offset + {more}, " for i, more in sources
        ).replace(" + 0, ", ", "),
    )


def _arrays_of(sources: tuple[Source, ...]) -> list[int]:
    return [number for number, _ in sources if number != NEW]


@functools.lru_cache(maxsize=1024)
def _compiled(arrays: int, access: tuple[tuple[int, Role], ...], sources: tuple[Source, ...], new: bool) -> Any:
    return compile(_text(arrays, access, sources, new=new), "<a repeated call>", "exec")


def call_launcher(path: LaunchPath, call: KnownCall) -> CallLauncher:
    """Return the function of a form of calls for the lane of a path. It holds no array."""
    sender, book = path.sender, path.book
    ring, verb = sender.ring, call.kind.later.number | path.verb & UNSIGNED | REPEATED
    assert ring is not None
    words, payload = len(call.places), len(call.payload)
    names: dict[str, Any] = {
        **{role.name: role for role in Role},
        "ASLEEP": WORKER_ASLEEP_WORD,
        "SENT": RECORDS_SENT_WORD,
        "SLOT_MASK": SLOT_MASK,
        "SLOT_SHIFT": SLOT_SHIFT,
        "announce": sender.announce,
        "book": book,
        "engine": call.kind.later.engine_number,
        "fence_mask": _FENCE_MASK if verb & UNSIGNED else 0,
        "head": call.head,
        "here": path.here,
        "lane": book.index,
        "launches": book.launches,
        "length": READY.size + payload,
        "may_take": _taker(path),
        "number": path.generation.number,
        "pack_into": struct.Struct(f"{NUMBERED_HEADER.format}{READY.size}s{words}Q{payload}s").pack_into,
        "path": path,
        "payload": call.payload,
        "sender": sender,
        "slots": ring.slots,
        "token": path.token,
        "usage": call.kind.usage,
        "verb": verb,
        "wake": path.generation.settler.wake,
        "wakes": bool(verb & UNSIGNED),
        "words": sender.words,
    }
    found: dict[str, Callable[..., bool]] = {}
    exec(_compiled(call.arrays, call.access, call.sources, call.new is not None), names, found)
    return cast("CallLauncher", trio.lowlevel.enable_ki_protection(found["launch"]))


def _taker(path: LaunchPath) -> Callable[[Block], bool]:
    """Return a function that tells whether the lane may write a new block without waiting for anything."""
    arena, order, words = path.generation.arena, path.generation.order, path.sender.words
    lane, number = path.book.index, path.generation.number

    def may_take(new: Block) -> bool:
        if new.chunk.state is not ChunkState.READY or arena.quarantine:
            return False
        if new.readers and new.epoch == number:
            for other, last in new.readers.items():
                if other != lane and words[counter_word(other)] < last:
                    return False
        return order.others is None or not order.others.uses(new)

    return may_take
