"""The short way of a repeated call into the ring: one function for each form of calls and each lane.

It is the same for every call: whether its result is an array that it was given, a new one, or a number on the host, and
whether it is awaited or of a batch. What differs from one call to the next are the words of its record
(``_wire/ready.py``): the addresses of its arrays, and of a new result or the place of an answer. The launch of a graph
is a call without words, on memory that is always the same.

The function is generated, as the encoder of a kernel's arguments is (``encoder.py``): a loop over the arrays took twice
as long. Its text contains only numbers. The memory of a graph may be thousands of blocks, so there it is a loop.

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
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import trio

from .._generation.requests import CallKind
from .._generation.timeline import Launchable, Operand
from .._memory.arena import Block, ChunkState
from .._wire.protocol import RECORDS_SENT_WORD, REPEATED, UNSIGNED, WORKER_ASLEEP_WORD, Role, counter_word
from .._wire.ready import READY
from .._wire.ring import NEW_IN_EACH, SAME_IN_ALL, SLOT_MASK, SLOT_SHIFT
from .known import NEW, NUMBER, KnownCall, Source

if TYPE_CHECKING:
    from .._generation.timeline import LaunchOwner
    from .launching import LaunchPath


_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_NEVER: Final = -1
"""The mask of a fence that follows no record."""


class RepeatedCall(Launchable, Protocol):
    """A call whose records are the same, but for the words at `places`."""

    head: bytes
    """The part of its records in front of the words."""
    payload: bytes
    """The payload of its records, with zeros at `places`."""
    places: tuple[int, ...]

    @property
    def kind(self) -> CallKind:
        """What it has in common with others."""

    @property
    def _key(self) -> object:
        """An object of its own, by which a path finds its function."""

    def _of(self, thing: Any) -> bool:
        """Return whether it is of this module or plan, and ends with it."""


class FixedCall(RepeatedCall, Protocol):
    """A call that is always on the same memory."""

    operands: tuple[Operand, ...]
    """Its access to memory."""
    blocks: tuple[Block, ...]
    reads: tuple[Block, ...]
    writes: tuple[Block, ...]

    @property
    def changes(self) -> Mapping[int, object]:
        """What must be sent in front of the next one."""

    def bring(self, path: LaunchPath, given: tuple[object, ...]) -> bool:
        """Send the changes ahead of a call with these objects. Returns false, without any effect, if that cannot be.

        There is room for one more record then.
        """


class CallOnArrays(RepeatedCall, Protocol):
    """A call on the arrays that it is given."""

    access: tuple[tuple[int, Role], ...]
    """Its access to their memory, by their numbers."""
    sources: tuple[Source, ...]
    """Where the words come from."""

    @property
    def new(self) -> object:
        """What describes its new result; None if it has none."""


class CallLauncher(Protocol):
    """The function of one form of calls."""

    def __call__(
        self,
        call: RepeatedCall,
        given: tuple[object, ...],
        owner: LaunchOwner,
        new: Block | None = None,
        word: int = 0,
        numbers: Sequence[int] = (),
        /,
    ) -> bool:
        """Write the record of the call into the ring. Returns false, without any effect, if it must go the general way.

        `given` is kept alive until the call is done. It begins with the arrays of a call that is not always on the
        same memory, and with `new`, the block of its new result, behind them. Without a new result, `word` is the place
        of the answer. `numbers` are the words that come from no memory. `owner` is told of the end.
        """


_TEXT = """
def launch(call, given, owner, new=None, word=0, numbers=()):
    sent = sender.sent + 1
    if not here() or (sent > path.last_record and not path.look_again()):
        return False
    # Nothing is noted before all checks: others would wait for a ticket that may never be issued.
{arrays}{new}{checks}\
    ticket = book.issued + 1
    me = (lane, ticket)
{notes}\
    at = (sent - 1 & SLOT_MASK) << SLOT_SHIFT
    pack_into(slots, at, sent, ticket, head, {words}payload)
    is_first = not launches
    launches.append((ticket, owner, call, given))
    book.issued = ticket
    usage.last_use = sent
    sender.sent = words[SENT] = sent
    if not sent & fence_mask or words[ASLEEP]:
        announce()
    if is_first and wakes:
        wake()
    return True
"""
_ARRAY = """\
    a{i} = given[{i}]
    b{i} = a{i}._storage.block
"""
_MAY_TAKE = """\
    if new.chunk.state is not READY or arena.quarantine:
        return False
    if new.readers and new.epoch == number:
        for other, last in new.readers.items():
            if other != lane and words[counter_word(other)] < last:
                return False
    if order.others is not None and order.others.uses(new):
        return False
"""
_NEW = "    word = new.address\n" + _MAY_TAKE
_CHECKS = """\
    if {different}:
        if not path.admit(({operands})):
            return False
        sent = sender.sent + 1  # fills of new arrays may have been sent
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
    if new.readers:
        new.readers = {}
    new.written = True
    new.fast = token
"""
_CHECKS_OF_FIXED = """\
    for used in blocks:
        if used.fast != token:
            if not path.admit(operands):
                return False
            sent = sender.sent + 1
            break
    if call.changes:
        if not call.bring(path, given):
            return False
        sent = sender.sent + 1
"""
_NOTES_OF_FIXED = """\
    for used in writes:
        used.writer = me
        if used.readers:
            used.readers = {}
    for used in reads:
        used.reader = me
"""


def _text(access: tuple[tuple[int, Role], ...], sources: tuple[Source, ...], *, new: bool) -> str:
    """Return the text of the function for calls with this access to their arrays."""
    named = dict.fromkeys([*(i for i, _ in access), *(i for i, _ in sources if i >= 0)])
    operands = "".join(f"(b{i}, {role.name}), " for i, role in access)
    different = " or ".join(f"b{i}.fast != token" for i, _ in access)
    notes = "".join((_READS if role is Role.READ else _WRITES).format(i=i) for i, role in access)
    words = (_word(i, more) for i, more in sources)
    return _TEXT.format(
        arrays="".join(_ARRAY.format(i=i) for i in named),
        new=_NEW if new else "",
        checks=_CHECKS.format(different=different, operands=operands) if access else "",
        notes=notes + (_TAKES if new else ""),
        words="".join(words).replace(" + 0, ", ", "),
    )


def _word(i: int, more: int) -> str:
    """Return a word of a record, by its source, and a comma."""
    if i == NUMBER:
        return f"numbers[{more}], "
    return f"word + {more}, " if i == NEW else f"b{i}.address + a{i}._offset + {more}, "


@functools.lru_cache(maxsize=1024)
def _compiled(access: tuple[tuple[int, Role], ...], sources: tuple[Source, ...], new: bool) -> Any:
    return compile(_text(access, sources, new=new), "<a repeated call>", "exec")


_OF_FIXED = compile(
    _TEXT.format(arrays="", new="", checks=_CHECKS_OF_FIXED, notes=_NOTES_OF_FIXED, words=""),
    "<a repeated call>",
    "exec",
)


def call_launcher(path: LaunchPath, call: CallOnArrays) -> CallLauncher:
    """Return the function of a form of calls for the lane of a path. It holds no array."""
    code = _compiled(call.access, call.sources, call.new is not None)
    return _launcher(path, call, code)


def ahead_launcher(path: LaunchPath, call: KnownCall) -> CallLauncher:
    """Return the same for a call that another one follows at once, whose ticket it shares."""
    return _launcher(path, call, _compiled(call.access, call.sources, new=False), is_ahead=True)


def fixed_launcher(path: LaunchPath, call: FixedCall) -> CallLauncher:
    """Return the function of a call that is always on the same memory, for the lane of a path. It holds no array."""
    fixed = {"blocks": call.blocks, "operands": call.operands, "reads": call.reads, "writes": call.writes}
    return _launcher(path, call, _OF_FIXED, fixed)


def words_of_call_launcher(path: LaunchPath, call: RepeatedCall) -> CallLauncher:
    """Return the function of a call on no memory, which is given all its words, for the lane of a path.

    Nobody waits for such a call: another one follows at once, whose ticket it shares.
    """
    return _launcher(path, call, _compiled_words(len(call.places)), is_ahead=True)


@functools.lru_cache
def _compiled_words(count: int) -> Any:
    text = _TEXT.format(arrays="", new="", checks="", notes="", words="*numbers, ")
    return compile(text, "<a repeated call>", "exec")


def _launcher(
    path: LaunchPath, call: RepeatedCall, code: Any, more: Mapping[str, Any] = _NOTHING, *, is_ahead: bool = False
) -> CallLauncher:
    """Return the function of a text, with `more` names. Nobody waits for a call that is ahead of another one."""
    sender, book, kind, ring = path.sender, path.book, call.kind, path.sender.ring
    assert ring is not None
    words, payload = len(call.places), len(call.payload)
    verb = kind.later.number | (UNSIGNED if is_ahead else path.verb & UNSIGNED) | REPEATED
    header = SAME_IN_ALL.pack(book.index, kind.later.engine_number, verb, words, READY.size + payload)
    generation = path.generation
    names: dict[str, Any] = {
        **{role.name: role for role in Role},
        "READY": ChunkState.READY,
        "ASLEEP": WORKER_ASLEEP_WORD,
        "SENT": RECORDS_SENT_WORD,
        "SLOT_MASK": SLOT_MASK,
        "SLOT_SHIFT": SLOT_SHIFT,
        "announce": sender.announce,
        "arena": generation.arena,
        "book": book,
        "counter_word": counter_word,
        "fence_mask": path.fence_mask or _NEVER if is_ahead else path.fence_mask,
        "head": header + call.head,
        "here": path.here,
        "lane": book.index,
        "launches": book.launches,
        "number": generation.number,
        "order": generation.order,
        "pack_into": struct.Struct(f"{NEW_IN_EACH}{len(header + call.head)}s{words}Q{payload}s").pack_into,
        "path": path,
        "payload": call.payload,
        "sender": sender,
        "slots": ring.slots,
        "token": path.token,
        "usage": kind.usage,
        "wake": generation.settler.wake,
        "wakes": path.wakes,
        "words": sender.words,
        **more,
    }
    found: dict[str, Callable[..., bool]] = {}
    exec(code, names, found)
    return cast("CallLauncher", trio.lowlevel.enable_ki_protection(found["launch"]))
