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

A call keeps its arrays alive until it is done, but not its new result (``new_results.py``). So a result that is dropped
at once gives its memory to the next call of the same lane, which runs behind this one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import trio

from .._generation.requests import CallKind
from .._generation.timeline import Launchable, Operand
from .._memory.arena import Block, ChunkState
from .._wire.protocol import RECORDS_SENT_WORD, REPEATED, UNSIGNED, WORKER_ASLEEP_WORD, Role, counter_word
from .._wire.ready import READY
from .._wire.ring import NEW_IN_EACH, SAME_IN_ALL, SLOT_MASK, SLOT_SHIFT, record_struct
from .known import NEW, NUMBER, KnownCall, Source
from .new_results import birth_of, made, may_take, names_of_new, takes, takes_again

if TYPE_CHECKING:
    from .._arrays.arrays import DeviceArray, Layout
    from .._arrays.memory import DeviceMemory
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


class SeriesCall(Protocol):
    """Several calls, one after the other, on the arrays that they are given."""

    parts: tuple[KnownCall, ...]
    access: tuple[tuple[int, Role], ...]
    """Their access to the memory of the arrays, by their numbers."""
    new: range
    """The numbers of their new arrays, which come behind the others."""
    made: Sequence[tuple[Layout, object]]
    """The layouts and forms of those."""

    @property
    def _key(self) -> object:
        """An object of its own, by which a path finds its function."""

    def _of(self, thing: Any) -> bool:
        """Return whether a part of it is of this module or plan, and ends with it."""


SeriesLauncher = Callable[[SeriesCall, tuple["DeviceArray", ...], Sequence["LaunchOwner"]], "tuple[DeviceArray, ...]"]
"""The function of a series. It is given the arrays, and the owner of each part. It writes all records, and returns the
new arrays behind the others. It returns nothing, without any effect, if they must go the general way."""


class NewLauncher(Protocol):
    """The function of one form of calls with a new result."""

    def __call__(
        self, call: RepeatedCall, given: tuple[object, ...], owner: LaunchOwner, numbers: Sequence[int] = (), /
    ) -> DeviceArray | None:
        """Write the record of the call into the ring, and return its result.

        Returns None, without any effect, if it must go the general way. See `CallLauncher` for what it is given.
        """


_MAY_SEND = """\
    sent = sender.sent + 1
    if not here() or (sent > path.last_record and not path.look_again()):
        return False
    # Nothing is noted before all checks: others would wait for a ticket that may never be issued.
"""
_BEGIN = "def launch(call, given, owner, new=None, word=0, numbers=()):\n" + _MAY_SEND
_BEGIN_OF_NEW = "def launch(call, given, owner, numbers=()):\n" + _MAY_SEND
_BEGIN_OF_SERIES = """
def launch(series, given, owners):
    sent = sender.sent + 1
    if not here() or (sent + {count} - 1 > path.last_record and not path.has_room({count})):
        return False
    {calls} = series.parts
    {owners} = owners
"""
_RECORD = """\
    ticket = book.issued + 1
    at = (sent - 1 & SLOT_MASK) << SLOT_SHIFT
    pack_into{part}(slots, at, sent, ticket, {content})
    sender.sent = words[SENT] = sent
    if not sent & fence_mask{part} or words[ASLEEP]:
        announce()
    # The worker has begun. Nobody looks at the accounts before this stretch without a checkpoint is over.
    me = (lane, ticket)
{notes}\
    is_first = not launches
    launches.append((ticket, owner{part}, call{part}, given))
    book.issued = ticket
{used}\
    if is_first and wakes:
        wake()
"""
_END = "    return True\n"
_ARRAY = """\
    a{i} = given[{i}]
    b{i} = a{i}._storage.block
"""
_CHECKS = """\
    if {different}:
        if not path.admit(({operands})){more}:
            return False
        sent = sender.sent + 1  # fills of new arrays may have been sent
"""
_READS = "    b{i}.reader = me\n"
_WRITES = """\
    b{i}.writer = me
    if b{i}.readers:
        b{i}.readers = {{}}
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
NOTES_OF_FIXED: Final = """\
    for used in writes:
        used.writer = me
        if used.readers:
            used.readers = {}
    for used in reads:
        used.reader = me
"""


Access = tuple[tuple[int, Role], ...]
"""A call's access to the memory of its arrays, by their numbers."""


def function_of(checks: str, notes: str, words: str) -> CodeType:
    """Return the function that writes one record: what it looks at, what it notes in blocks, and the words."""
    return compile(_BEGIN + checks + _record(notes, words) + _END, "<a repeated call>", "exec")


def _record(notes: str, listed: str, part: object = "") -> str:
    """Return the lines that write a record of a call, or of this part of several ones."""
    used, content = f"    usage{part}.last_use = sent\n", f"head{part}, {listed}payload{part}"
    return _RECORD.format(notes=notes, content=content, used=used, part=part)


@functools.lru_cache(maxsize=1024)
def function_of_kernel(begin: str, checks: str, notes: str, content: str) -> CodeType:
    """Return the function that writes the record of a launch, and begins with these lines, as `Launcher` says.

    `content` is what the record has behind its ticket.
    """
    record = _RECORD.format(notes=notes, content=content, used="", part="")
    return compile(begin + _MAY_SEND + checks + record + _END, "<a launch>", "exec")


@functools.lru_cache(maxsize=1024)
def _compiled(access: Access, sources: tuple[Source, ...], is_new: bool) -> CodeType:
    looks = _arrays([*(i for i, _ in access), *(i for i, _ in sources if i >= 0)])
    new = "    word = new.address\n" + may_take("new") if is_new else ""
    notes = notes_of_call(access) + (takes("new") if is_new else "")
    return function_of(looks + new + _checks(access), notes, _words(sources))


@functools.lru_cache(maxsize=1024)
def _compiled_with_new(access: Access, sources: tuple[Source, ...], *, again: bool) -> CodeType:
    """Return the function of a call with a new result: it looks at the arrays, and only then takes memory."""
    looks = _arrays([*(i for i, _ in access), *(i for i, _ in sources if i >= 0)])
    text = _BEGIN_OF_NEW + looks + _checks(access) + made(0, "new", again=again) + "    word = new.address\n"
    text += _record(notes_of_call(access) + takes("new", "me"), _words(sources)) + "    return made0\n"
    return compile(text.replace("return False", "return None"), "<a repeated call>", "exec")


@functools.lru_cache(maxsize=1024)
def _compiled_series(
    access: Access, parts: tuple[tuple[Access, tuple[Source, ...]], ...], new: range, *, again: bool
) -> CodeType:
    """Return the function of a series: it looks at all blocks, and then writes one record after the other."""
    count, numbers = len(parts), range(len(parts))
    text = _BEGIN_OF_SERIES.format(
        count=count,
        calls="".join(f"call{part}, " for part in numbers),
        owners="".join(f"owner{part}, " for part in numbers),
    )
    named = [i for accesses, sources in parts for i, _ in (*accesses, *sources)]
    text += _arrays(i for i in named if i not in new)
    text += _checks(access, f" or not path.has_room({count})")
    text += "".join(made(n, f"b{i}", again=again, last=n == len(new) - 1) for n, i in enumerate(new))
    for part, (accesses, sources) in enumerate(parts):
        taken = "" if part else "".join(takes(f"b{i}", birth_of(number)) for number, i in enumerate(new))
        text += "    sent += 1\n" if part else ""
        text += _record(taken + notes_of_call(accesses), _words(sources, new), part)
    text += f"    return (*given, {''.join(f'made{number}, ' for number in range(len(new)))})\n"
    return compile(text.replace("return False", "return ()"), "<a series of repeated calls>", "exec")


def _arrays(numbers: Iterable[int]) -> str:
    """Return the lines that look at each of these arrays."""
    return "".join(_ARRAY.format(i=i) for i in dict.fromkeys(numbers))


def _checks(access: Access, more: str = "") -> str:
    """Return the lines that leave if an array must be waited for, or if `more` is true behind fills of new arrays."""
    if not access:
        return ""
    operands = "".join(f"(b{i}, {role.name}), " for i, role in access)
    return _CHECKS.format(different=" or ".join(f"b{i}.fast != token" for i, _ in access), operands=operands, more=more)


def notes_of_call(access: Access) -> str:
    """Return the lines that note a call in the blocks of its arrays."""
    return "".join((_READS if role is Role.READ else _WRITES).format(i=i) for i, role in access)


def _words(sources: Sequence[Source], new: Sequence[int] = ()) -> str:
    """Return the words of a record, each with a comma. Of the numbers in `new` there is no array, but a block."""
    listed = ""
    for i, more in sources:
        # Most arrays begin with their block: an addition takes longer than the question.
        array = f"(b{i}.address + a{i}._offset if a{i}._offset else b{i}.address)"
        place = f"b{i}.address" if i in new else array
        listed += f"numbers[{more}], " if i == NUMBER else f"{'word' if i == NEW else place} + {more}, "
    return listed.replace(" + 0, ", ", ")


_OF_FIXED: Final = function_of(_CHECKS_OF_FIXED, NOTES_OF_FIXED, "")
_OF_WORDS: Final = function_of("", "", "*numbers, ")


def call_launcher(path: LaunchPath, call: CallOnArrays) -> CallLauncher:
    """Return the function of a form of calls for the lane of a path. It holds no array."""
    code = _compiled(call.access, call.sources, call.new is not None)
    return cast("CallLauncher", launcher_of(path, call, code))


def new_launcher(path: LaunchPath, call: KnownCall, memory: DeviceMemory) -> NewLauncher:
    """Return the function of a form of calls with a new result for the lane of a path. It holds no array."""
    new = call.new
    assert new is not None
    code = _compiled_with_new(call.access, call.sources, again=takes_again(memory))
    return cast("NewLauncher", launcher_of(path, call, code, names_of_new(memory, [(new.layout, new.form)])))


def series_launcher(path: LaunchPath, series: SeriesCall, memory: DeviceMemory) -> SeriesLauncher:
    """Return the function of a series for the lane of a path. Nobody waits for its parts, but for the last."""
    parts = series.parts
    forms = tuple([(each.access, each.sources) for each in parts])
    code = _compiled_series(series.access, forms, series.new, again=takes_again(memory))
    names = {**names_of(path), **names_of_new(memory, series.made)}
    for number, part in enumerate(parts):
        names |= names_of_record(path, part, str(number), is_ahead=part is not parts[-1])
    return cast("SeriesLauncher", _function(code, names))


def fixed_launcher(path: LaunchPath, call: FixedCall) -> CallLauncher:
    """Return the function of a call that is always on the same memory, for the lane of a path. It holds no array."""
    fixed = {"blocks": call.blocks, "operands": call.operands, "reads": call.reads, "writes": call.writes}
    return cast("CallLauncher", launcher_of(path, call, _OF_FIXED, fixed))


def words_of_call_launcher(path: LaunchPath, call: RepeatedCall) -> CallLauncher:
    """Return the function of a call on no memory, which is given all its words, for the lane of a path.

    Nobody waits for such a call: another one follows at once, whose ticket it shares.
    """
    return cast("CallLauncher", _function(_OF_WORDS, names_of(path) | names_of_record(path, call, is_ahead=True)))


def signed_words_launcher(path: LaunchPath, call: RepeatedCall) -> CallLauncher:
    """Return the function of such a call that has a ticket of its own, for the lane of a path of such calls."""
    return cast("CallLauncher", launcher_of(path, call, _OF_WORDS))


def launcher_of(path: LaunchPath, call: RepeatedCall, code: CodeType, more: Mapping[str, Any] = _NOTHING) -> Any:
    """Return the function of a text for the lane of a path, with `more` names."""
    return _function(code, {**names_of(path), **names_of_record(path, call), **more})


def kernel_launcher_of(path: LaunchPath, code: CodeType, more: Mapping[str, Any]) -> Any:
    """Return the function of a launch for the lane of a path, with `more` names."""
    return _function(code, {**names_of(path), **more, "fence_mask": path.fence_mask})


def _function(code: CodeType, names: dict[str, Any]) -> Any:
    exec(code, names)
    return trio.lowlevel.enable_ki_protection(names["launch"])


def names_of(path: LaunchPath) -> dict[str, Any]:
    """Return the names in a text that are the same for all calls."""
    sender, book, generation, ring = path.sender, path.book, path.generation, path.sender.ring
    assert ring is not None
    return {
        **{role.name: role for role in Role},
        "ASLEEP": WORKER_ASLEEP_WORD,
        "READY": ChunkState.READY,
        "SENT": RECORDS_SENT_WORD,
        "SLOT_MASK": SLOT_MASK,
        "SLOT_SHIFT": SLOT_SHIFT,
        "announce": sender.announce,
        "arena": generation.arena,
        "book": book,
        "counter_word": counter_word,
        "here": path.here,
        "lane": book.index,
        "launches": book.launches,
        "number": generation.number,
        "order": generation.order,
        "path": path,
        "sender": sender,
        "slots": ring.slots,
        "token": path.token,
        "wake": generation.settler.wake,
        "wakes": path.wakes,
        "words": sender.words,
    }


def names_of_record(path: LaunchPath, call: RepeatedCall, part: str = "", *, is_ahead: bool = False) -> dict[str, Any]:
    """Return the names of a record. Nobody waits for a call that is ahead of another one, whose ticket it shares."""
    kind, count, size = call.kind, len(call.places), len(call.payload)
    verb = kind.later.number | (UNSIGNED if is_ahead else path.verb & UNSIGNED) | REPEATED
    header = SAME_IN_ALL.pack(path.book.index, kind.later.engine_number, verb, count, READY.size + size)
    head = header + call.head
    found = {
        "fence_mask": path.fence_mask or _NEVER if is_ahead else path.fence_mask,
        "head": head,
        "pack_into": record_struct(f"{NEW_IN_EACH}{len(head)}s{count}Q{size}s").pack_into,
        "payload": call.payload,
        "usage": kind.usage,
    }
    return {f"{name}{part}": value for name, value in found.items()}
