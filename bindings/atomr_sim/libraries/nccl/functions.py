"""The functions of the simulated NCCL: communicators between processes of one machine, groups, collectives.

The library says that it is 2.28.9. Its habits are the real one's: an init blocks until all ranks have come; a
collective is work on a stream, which stays not ready while a rank is missing, and an asynchronous error says nothing of
that; an abort lets the stream go on behind collectives that never ended; two ranks on one device are refused; work of
one communicator runs in the order of its calls on all streams.

What differs: sums are in the order of the ranks. The configuration counts only for whether calls block, and only an
init returns before it is done. An id whose process has gone is a system error at once. ``ncclCommFinalize`` and
``ncclCommDestroy`` wait for all ranks, as those of the newest versions do. After a revoke, or a shrink that aborts, the
old communicator moves no data, and refuses. A group does not mix the default stream with others on one communicator.

A communicator ends with the context in which it was made.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atomr_cuda import nccl
from atomr_cuda.nccl import (
    NCCL_API_MAGIC,
    NCCL_CONFIG_UNDEF_INT,
    NCCL_REVOKE_DEFAULT,
    NCCL_SHRINK_ABORT,
    NCCL_SHRINK_DEFAULT,
    NCCL_SPLIT_NOCOLOR,
    ncclRedOp_t as Op,
    ncclResult_t as Result,
    ncclScalarResidence_t as Residence,
)

from ..._status import Refused
from ...driver.streams import DefaultStream
from .. import dense
from ..dense import Counterpart, Statuses
from . import meeting
from .calls import Call, Function, Work
from .communicator import Communicator, Stopped
from .elements import ELEMENTS, FLOAT8, Factor

if TYPE_CHECKING:
    from ...driver.process import Process

VERSION = 22809
_FLOAT8_CAPABILITY = (9, 0)
"""The compute capability from which 8-bit floats can be reduced."""
_INVALID, _USAGE, _CUDA = Result.ncclInvalidArgument, Result.ncclInvalidUsage, Result.ncclUnhandledCudaError

counterpart: Counterpart = Counterpart(
    nccl.library,
    Statuses(
        not_initialized=_INVALID,
        invalid_value=_INVALID,
        execution_failed=_CUDA,
        internal_error=Result.ncclInternalError,
        not_supported=_USAGE,
    ),
)
_entry = counterpart.entry
_require = counterpart.require


# Groups. A thread has at most one; it keeps what was called until its end.


@dataclass
class _Group:
    depth: int = 0
    status: int = 0
    """The first refusal of a call in it: nothing of it is done then."""
    calls: list[tuple[Communicator, Call]] = field(default_factory=list)
    beginnings: list[Callable[[], Callable[[], None]]] = field(default_factory=list)
    """Functions that make communicators and may wait for other ranks; each returns one that gives the result."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.group = _Group()


_thread = _Thread()


@_entry(nccl.ncclGroupStart)
def _group_start(process: Process) -> None:
    _thread.group.depth += 1


@_entry(nccl.ncclGroupEnd)
def _group_end(process: Process) -> None:
    group = _thread.group
    _require(group.depth, _USAGE)
    group.depth -= 1
    if group.depth:
        return
    _thread.group = _Group()
    _require(not group.status, group.status)
    _begin_all(group.beginnings)
    by_communicator: dict[Communicator, list[Call]] = {}
    for communicator, call in group.calls:
        by_communicator.setdefault(communicator, []).append(call)
    for communicator in by_communicator:
        communicator.require_usable()
    for communicator, calls in by_communicator.items():
        _launch(process, communicator, calls)


def _grouped(function: Callable[..., None]) -> Callable[..., None]:
    """What a call in a group refuses, the end of the group refuses too."""

    def call(process: Process, *arguments: Any) -> None:
        try:
            function(process, *arguments)
        except Refused as refused:
            if _thread.group.depth and not _thread.group.status:
                _thread.group.status = refused.status
            raise

    return call


def _begin_all(beginnings: list[Callable[[], Callable[[], None]]]) -> None:
    """Make the communicators of a group, all at once: each may wait for ranks that make them in another order."""
    results: list[Callable[[], None] | Refused | None] = [None] * len(beginnings)

    def begin(place: int) -> None:
        try:
            results[place] = beginnings[place]()
        except Refused as refused:
            results[place] = refused

    threads = [threading.Thread(target=begin, args=(place,), daemon=True) for place in range(1, len(beginnings))]
    for thread in threads:
        thread.start()
    if beginnings:
        begin(0)
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Refused):
            raise result
        if result is not None:
            result()


def _now_or_at_the_end(beginning: Callable[[], Callable[[], None]]) -> None:
    if _thread.group.depth:
        _thread.group.beginnings.append(beginning)
    else:
        _begin_all([beginning])


# The library itself.


@_entry(nccl.ncclGetVersion)
def _get_version(process: Process, result: Any) -> None:
    counterpart.give(result, VERSION)


_texts = {status: ctypes.create_string_buffer(nccl.describe_status(status)[1].encode()) for status in Result}
_unknown = ctypes.create_string_buffer(nccl.describe_status(-1)[1].encode())
_no_error = ctypes.create_string_buffer(b"")


@_entry(nccl.ncclGetErrorString)
def _get_error_string(process: Process, status: int) -> int:
    text = _texts[Result(status)] if status in _texts else _unknown
    return ctypes.addressof(text)


@_entry(nccl.ncclGetLastError)
def _get_last_error(process: Process, number: int | None) -> int:
    return ctypes.addressof(_no_error)


# Communicators.


def _device(process: Process) -> int:
    """The device of the current context."""
    _require(process.stack and process.stack[-1].active and not process.fate.status, _CUDA)
    return process.stack[-1].device


def _blocks(config: Any) -> bool:
    """Whether calls block. Refuses a configuration that ``new_config`` or NCCL's own initializer has not made."""
    if not config:
        return True
    given = config[0]
    _require(given.magic == NCCL_API_MAGIC and given.size >= nccl.ncclConfig_t.cgaClusterSize.offset)
    _require(given.blocking in (0, 1, NCCL_CONFIG_UNDEF_INT))
    return bool(given.blocking)


def _make(process: Process, result: Any, rank: int, ranks: int, unique_id: bytes, blocks: bool) -> None:
    """Begin a communicator. Its handle is there before all ranks have come, so that another thread can abort it.

    One that does not block returns then, with "in progress". In a group the handle is there at the end.
    """
    communicator = Communicator(rank, ranks, _device(process))
    number = counterpart.add_handle(process, communicator)
    if not _thread.group.depth:
        counterpart.give(result, number)
    if not blocks:
        counterpart.give(result, number)
        threading.Thread(target=communicator.begin, args=(unique_id,), daemon=True).start()
        raise Refused(Result.ncclInProgress)

    def begin() -> Callable[[], None]:
        communicator.begin(unique_id)
        if communicator.state:
            counterpart.give(result, None)
            process.handles.pop(number)  # an abort has dropped it
            raise Refused(communicator.state)
        return lambda: counterpart.give(result, number)

    _now_or_at_the_end(begin)


@_entry(nccl.ncclGetUniqueId)
def _get_unique_id(process: Process, result: Any) -> None:
    _require(result)
    result[0] = nccl.ncclUniqueId.from_buffer_copy(meeting.new_id())


def _init(process: Process, result: Any, ranks: int, unique_id: Any, rank: int, config: Any = None) -> None:
    _require(result and 0 <= rank < ranks)
    _make(process, result, rank, ranks, bytes(unique_id), _blocks(config))


@_entry(nccl.ncclCommInitRank, nccl.ncclCommInitRankConfig)
def _init_rank(process: Process, *arguments: Any) -> None:
    _grouped(_init)(process, *arguments)


@_entry(nccl.ncclCommInitRankScalable)
def _init_rank_scalable(
    process: Process, result: Any, ranks: int, rank: int, ids: int, given: Any, config: Any
) -> None:
    _require(ids > 0 and given)
    _grouped(_init)(process, result, ranks, given[0], rank, config)


def _usable(process: Process, number: int | None) -> Communicator:
    communicator = counterpart.handle(process, number, Communicator)
    communicator.require_usable()
    return communicator


@_entry(nccl.ncclCommSplit)
def _split(process: Process, number: int | None, color: int, key: int, result: Any, config: Any) -> None:
    communicator, blocks = _usable(process, number), _blocks(config)
    _require(result and (color >= 0 or color == NCCL_SPLIT_NOCOLOR))
    mine = communicator.rank

    def begin() -> Callable[[], None]:
        everybody = range(communicator.ranks)
        note = f"{color} {key}".encode()
        notes = communicator.tell(dict.fromkeys(everybody, note), everybody)
        colors, keys = zip(*(map(int, notes[rank].rstrip(b"\0").split()) for rank in everybody), strict=True)
        if color == NCCL_SPLIT_NOCOLOR:
            return lambda: counterpart.give(result, None)
        members = sorted((rank for rank in everybody if colors[rank] == color), key=lambda rank: (keys[rank], rank))
        return _derive(process, communicator, members, members.index(mine), result)

    _require(blocks or not _thread.group.depth, _USAGE)
    _now_or_at_the_end(begin)


@_entry(nccl.ncclCommShrink)
def _shrink(
    process: Process, number: int | None, excluded: Any, count: int, result: Any, config: Any, flags: int
) -> None:
    communicator = counterpart.handle(process, number, Communicator)
    _require(communicator.state != Result.ncclInProgress)
    _require(not communicator.state, communicator.state)
    _blocks(config)
    _require(result and excluded and flags in (NCCL_SHRINK_DEFAULT, NCCL_SHRINK_ABORT))
    _require(0 < count < communicator.ranks)
    gone = {excluded[place] for place in range(count)}
    _require(gone <= set(range(communicator.ranks)) and communicator.rank not in gone)
    if flags == NCCL_SHRINK_ABORT:
        communicator.stop()
    members = [rank for rank in range(communicator.ranks) if rank not in gone]
    _now_or_at_the_end(lambda: _derive(process, communicator, members, members.index(communicator.rank), result))


def _derive(
    process: Process, communicator: Communicator, members: list[int], rank: int, result: Any
) -> Callable[[], None]:
    """Make a communicator of some ranks of another one: the first of them makes the id, and tells the others."""
    if rank == 0:
        unique_id = meeting.new_id()
        communicator.tell(dict.fromkeys(members[1:], unique_id), ())
    else:
        unique_id = communicator.tell({}, members[:1])[members[0]][: nccl.NCCL_UNIQUE_ID_BYTES]
    derived = Communicator(rank, len(members), communicator.device)
    derived.begin(unique_id)
    _require(not derived.state, derived.state)
    return lambda: counterpart.give(result, counterpart.add_handle(process, derived))


@_entry(nccl.ncclCommFinalize)
def _finalize(process: Process, number: int | None) -> None:
    _usable(process, number).finalize()


@_entry(nccl.ncclCommDestroy)
def _destroy(process: Process, number: int | None) -> None:
    if not number:
        return
    communicator = counterpart.handle(process, number, Communicator)
    if not communicator.flushed:
        communicator.finalize()
    communicator.close()
    process.handles.pop(number)


@_entry(nccl.ncclCommAbort)
def _abort(process: Process, number: int | None) -> None:
    if number:
        counterpart.handle(process, number, Communicator).close()
        process.handles.pop(number)


@_entry(nccl.ncclCommRevoke)
def _revoke(process: Process, number: int | None, flags: int) -> None:
    communicator = counterpart.handle(process, number, Communicator)
    _require(flags == NCCL_REVOKE_DEFAULT and communicator.state != Result.ncclInProgress)
    communicator.stop()


@_entry(nccl.ncclCommGetAsyncError)
def _get_async_error(process: Process, number: int | None, result: Any) -> None:
    counterpart.give(result, counterpart.handle(process, number, Communicator).state)


@_entry(nccl.ncclCommCount)
def _count(process: Process, number: int | None, result: Any) -> None:
    counterpart.give(result, counterpart.handle(process, number, Communicator).ranks)


@_entry(nccl.ncclCommCuDevice)
def _cu_device(process: Process, number: int | None, result: Any) -> None:
    counterpart.give(result, counterpart.handle(process, number, Communicator).device)


@_entry(nccl.ncclCommUserRank)
def _user_rank(process: Process, number: int | None, result: Any) -> None:
    counterpart.give(result, counterpart.handle(process, number, Communicator).rank)


# Operations.


@_entry(nccl.ncclRedOpCreatePreMulSum)
def _create_factor(
    process: Process, result: Any, scalar: int | None, kind: int, residence: int, number: int | None
) -> None:
    communicator = _usable(process, number)
    _require(result and scalar and kind in ELEMENTS)
    element, address = ELEMENTS[kind], scalar or 0
    if residence == Residence.ncclScalarHostImmediate:
        given = dense.host_values(element, address, 1)
        factor = Factor(kind, lambda: given)
    else:
        _require(residence == Residence.ncclScalarDevice)
        space = process.space
        factor = Factor(kind, lambda: dense.vector(element, address, 1).read(space))
    handle = max(communicator.factors, default=Op.ncclNumOps - 1) + 1
    communicator.factors[handle] = factor
    result[0] = handle


@_entry(nccl.ncclRedOpDestroy)
def _destroy_factor(process: Process, op: int, number: int | None) -> None:
    factors = counterpart.handle(process, number, Communicator).factors
    _require(op in factors)
    del factors[op]


# Collectives and sends.


def _operation(process: Process, communicator: Communicator, kind: int, op: int) -> int | Factor:
    _require(kind not in FLOAT8 or process.capability >= _FLOAT8_CAPABILITY)
    if 0 <= op < Op.ncclNumOps:
        return op
    factor = communicator.factors.get(op)
    if factor is None or factor.kind != kind:
        raise Refused(_INVALID)
    return factor


def _site(process: Process) -> bytes:
    """The file and line that has called the library, for a finding."""
    if process.checks is None:
        return b""
    frame = sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("atomr_sim", "atomr_cuda"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}".encode()[-80:]


def _enqueue(
    process: Process, function: Function, source: int | None, target: int | None, count: int, kind: int, *rest: Any
) -> None:
    """Launch a call, or keep it for the end of the group. `rest` is the operation and the root, where the function has
    them, the communicator and the stream."""
    *options, number, stream = rest
    communicator = _usable(process, number)
    _require(kind in ELEMENTS)
    op: int | Factor | None = None
    if function in (Function.AllReduce, Function.ReduceScatter, Function.Reduce):
        op = _operation(process, communicator, kind, options.pop(0))
    root = options.pop() if options else 0
    _require(0 <= root < communicator.ranks)
    _require(not process.fate.status, _CUDA)
    try:
        process.stream(stream)
    except Refused:
        raise Refused(_CUDA) from None
    if not count:
        return
    call = Call(function, source or 0, target or 0, count, kind, stream, op, root, _site(process))
    if _thread.group.depth:
        _thread.group.calls.append((communicator, call))
    else:
        _launch(process, communicator, [call])


def _launch(process: Process, communicator: Communicator, calls: list[Call]) -> None:
    """Queue the calls as one piece of work. It is that of the first stream; other streams of the calls wait for it, and
    it for them. Where there are several, none of them is captured, or the default stream, which waits for the others.
    """
    work = Work(communicator, calls, process.space, process.checks)
    streams = {process.stream(call.stream): call.stream for call in calls}
    first, *others = streams.values()
    captured = any(stream.capture is not None for stream in streams)
    _require(not others or not (captured or any(isinstance(stream, DefaultStream) for stream in streams)), _USAGE)
    reached = [threading.Event() for _ in others]
    done = threading.Event()

    def run() -> None:
        communicator.wait(lambda: all(event.is_set() for event in reached))
        work.run()
        done.set()

    def follow(event: threading.Event) -> None:
        event.set()
        with contextlib.suppress(Stopped):
            communicator.wait(done.is_set)

    with communicator.launching:
        # What a graph launches has its turn when it runs.
        turn = None if captured else communicator.take_turn()
        counterpart.submit(
            process, first, lambda: communicator.perform(communicator.take_turn() if turn is None else turn, run)
        )
        for stream, event in zip(others, reached, strict=True):
            counterpart.submit(process, stream, lambda event=event: follow(event))  # type: ignore[misc]


def _define(function: Function) -> None:
    def collective(process: Process, *arguments: Any) -> None:
        _enqueue(process, function, *arguments)

    def send(process: Process, source: int | None, *arguments: Any) -> None:
        _enqueue(process, function, source, None, *arguments)

    def receive(process: Process, target: int | None, *arguments: Any) -> None:
        _enqueue(process, function, None, target, *arguments)

    body = {Function.Send: send, Function.Recv: receive}.get(function, collective)
    _entry(nccl.library.functions[f"nccl{function.name}"])(_grouped(body))


for _each in Function:
    _define(_each)
