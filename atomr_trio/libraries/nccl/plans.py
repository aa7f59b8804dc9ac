"""What each verb of a world does: the checks of its arguments, and the calls of every member.

A function here adds to a collective, and returns the verb's result. Nothing is published. In a world of one member a
collective is a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._arrays.arrays import DeviceArray
from ..._arrays.memory import DeviceMemory
from ..._values.errors import InvalidArgument
from ..._values.util import shown
from ..._wire.protocol import Verb
from ..._wire.records.event import MARK
from ..._wire.records.memory import BOX, COPY, COPY_MANY
from .arguments import (
    PremultipliedSum,
    Reduction,
    check_array,
    check_arrays,
    check_form,
    check_place,
    check_rank,
    first_axis,
    moved,
    reduction,
)
from .collectives import Kind, Part, Published

if TYPE_CHECKING:
    import numpy as np

    from ..._generation.core import DeviceCore
    from ..._generation.timeline import Operand


class _Copies(Part):
    """The part of the only member of a world: copies."""

    __slots__ = ()

    def record(self, communicator: int, *, first: bool) -> tuple[Verb, bytes]:
        """Return the verb and the payload of its command."""
        if not self.calls:
            return MARK, b""
        return COPY if len(self.calls) == 1 else COPY_MANY, b"".join(self.calls)


class MemberCalls(NamedTuple):
    """What one member does."""

    rank: int
    calls: Sequence[bytes]
    kinds: set[Kind]
    operands: Sequence[Operand]


class Known(NamedTuple):
    """What a call comes to: the same each time, as long as its arrays exist."""

    shares: Sequence[MemberCalls]
    """Those of the members that take part."""
    ranges: Sequence[tuple[int, int, bool]]
    """The addresses that it uses."""


class Calls:
    """The calls of one request, or of a batch: what the functions below add to."""

    def __init__(self, cores: Sequence[DeviceCore], lanes: Sequence[int], operation: str) -> None:
        self.cores: tuple[DeviceCore, ...] = tuple(cores)
        self.lanes: tuple[int, ...] = tuple(lanes)
        self.collective: Published = Published(operation)
        kind = _Copies if len(self.cores) == 1 else Part
        self._parts = [
            kind(self.collective, rank, core, lane) for rank, (core, lane) in enumerate(zip(cores, lanes, strict=True))
        ]
        self._earlier: list[tuple[int, int, bool]] = []
        """What earlier calls of a batch use: the addresses of the first byte and behind the last, whether written."""
        self._now: list[tuple[int, int, bool]] = []

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.cores)

    def finish(self) -> Published:
        """Return the request, with the parts of those members that take part."""
        self.collective.commands = [part for part in self._parts if part.calls or part.roles or part.behind]
        for part in self.collective.commands:
            part.seal()
        return self.collective

    def known(self) -> Known:
        """Return what the only call so far comes to."""
        parts = [part for part in self._parts if part.roles]
        shares = [MemberCalls(part.rank, tuple(part.calls), part.kinds, tuple(part.roles.items())) for part in parts]
        return Known(shares, tuple(self._now))

    def repeat(self, known: Known, arrays: Iterable[DeviceArray]) -> None:
        """Add a call that was planned before, with the same arrays."""
        self._now += known.ranges
        self.collective.keep += arrays
        for rank, calls, kinds, operands in known.shares:
            part = self._parts[rank]
            part.calls += calls
            part.kinds |= kinds
            for block, role in operands:
                part.add(block, role)

    def next(self) -> None:
        """Begin the next call of a batch. Raises `InvalidArgument` if the last one uses what an earlier one writes."""
        for begin, end, writes in self._now:
            for other, other_end, other_writes in self._earlier:
                if begin < other_end and other < end and (writes or other_writes):
                    raise InvalidArgument(
                        "the calls of a batch run at the same time, and two of them use the same memory, one to write",
                        advice="end the batch between them.",
                    )
        self._earlier += self._now
        self._now = []

    def new(self, rank: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
        """Return a new array of a member."""
        return self.cores[rank].part(DeviceMemory).empty(shape, dtype)

    def uses(self, rank: int, reads: DeviceArray | None, writes: DeviceArray | None) -> Part:
        """Note what the next call of a member reads and writes; returns its part."""
        part = self._parts[rank]
        for array, access in ((reads, part.reads), (writes, part.writes)):
            if array is not None and array.size:
                access(array)
                self.collective.keep.append(array)
                self._now.append((array.address, array.address + array.nbytes, array is writes))
        return part

    def behind(self) -> None:
        """Let the request come behind all work of every member."""
        for part in self._parts:
            part.behind = True

    def copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Do for the only member what every collective comes to."""
        part = self.uses(0, source, target)
        count = source.nbytes
        if count and source.address != target.address:
            part.calls.append(BOX.pack(target.address, count, count, source.address, count, count, count, 1, 1))


def _reduction(calls: Calls, op: object, dtype: np.dtype[Any]) -> Reduction:
    found = reduction(op, dtype, calls.cores)
    if calls.size == 1 and isinstance(op, PremultipliedSum):
        raise InvalidArgument("a world of one member has no premultiplied_sum: scale the array by a kernel instead")
    return found


def _outputs(
    calls: Calls, out: object, shape: tuple[int, ...], dtype: np.dtype[Any], what: str = "out"
) -> list[DeviceArray]:
    """Return the outputs of all members, new or checked."""
    if out is None:
        return [calls.new(rank, shape, dtype) for rank in range(calls.size)]
    checked = check_arrays(calls.cores, out, what)
    for rank, array in enumerate(checked):
        check_form(array, shape, dtype, f"{what} of rank {rank}", "the result has {}")
    return checked


def _output(calls: Calls, out: object, root: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
    """Return the output of the root, new or checked."""
    if out is None:
        return calls.new(root, shape, dtype)
    checked = check_array(calls.cores[root], out, root, "out")
    check_form(checked, shape, dtype, f"out of rank {root}", "the result has {}")
    return checked


def all_reduce(calls: Calls, arrays: object, out: object, op: object) -> tuple[DeviceArray, ...]:
    """See `World.all_reduce`."""
    sources = check_arrays(calls.cores, arrays, "arrays")
    how = _reduction(calls, op, sources[0].dtype)
    targets = _outputs(calls, out, sources[0].shape, sources[0].dtype)
    for rank, (source, target) in enumerate(zip(sources, targets, strict=True)):
        check_place(source, target, 0, rank)
    if calls.size == 1:
        calls.copy(sources[0], targets[0])
    elif sources[0].size:
        count = sources[0].size * how.per_element
        for rank, (source, target) in enumerate(zip(sources, targets, strict=True)):
            calls.uses(rank, source, target).call(
                "ncclAllReduce",
                how.kind,
                count,
                source=source.address,
                target=target.address,
                operation=how.operation,
                factor=how.factor,
            )
    return tuple(targets)


def reduce(calls: Calls, arrays: object, out: object, root: object, op: object) -> DeviceArray:
    """See `World.reduce`."""
    sources = check_arrays(calls.cores, arrays, "arrays")
    place = check_rank(root, calls.size)
    how = _reduction(calls, op, sources[0].dtype)
    target = _output(calls, out, place, sources[0].shape, sources[0].dtype)
    check_place(sources[place], target, 0, place)
    if calls.size == 1:
        calls.copy(sources[0], target)
    elif sources[0].size:
        count = sources[0].size * how.per_element
        for rank, source in enumerate(sources):
            mine = target if rank == place else None
            calls.uses(rank, source, mine).call(
                "ncclReduce",
                how.kind,
                count,
                source=source.address,
                target=0 if mine is None else mine.address,
                operation=how.operation,
                root=place,
                factor=how.factor,
            )
    return target


def broadcast(calls: Calls, arrays: object, root: object) -> tuple[DeviceArray, ...]:
    """See `World.broadcast`."""
    checked = check_arrays(calls.cores, arrays, "arrays")
    place = check_rank(root, calls.size)
    kind, each = moved(checked[0].dtype)
    if calls.size > 1 and checked[0].size:
        for rank, array in enumerate(checked):
            mine = rank == place
            part = calls.uses(rank, array if mine else None, None if mine else array)
            count = array.size * each
            part.call("ncclBroadcast", kind, count, source=array.address, target=array.address, root=place)
    return tuple(checked)


def all_gather(calls: Calls, arrays: object, out: object) -> tuple[DeviceArray, ...]:
    """See `World.all_gather`."""
    sources = check_arrays(calls.cores, arrays, "arrays")
    first = sources[0]
    targets = _outputs(calls, out, (calls.size, *first.shape), first.dtype)
    for rank, (source, target) in enumerate(zip(sources, targets, strict=True)):
        check_place(source, target, rank * first.nbytes, rank)
    kind, each = moved(first.dtype)
    if calls.size == 1:
        calls.copy(first, targets[0])
    elif first.size:
        for rank, (source, target) in enumerate(zip(sources, targets, strict=True)):
            part = calls.uses(rank, source, target)
            part.call("ncclAllGather", kind, first.size * each, source=source.address, target=target.address)
    return tuple(targets)


def reduce_scatter(calls: Calls, arrays: object, out: object, op: object) -> tuple[DeviceArray, ...]:
    """See `World.reduce_scatter`."""
    sources = check_arrays(calls.cores, arrays, "arrays")
    first = sources[0]
    how = _reduction(calls, op, first.dtype)
    targets = _outputs(calls, out, first_axis(first.shape, calls.size, "reduce_scatter"), first.dtype)
    for rank, (source, target) in enumerate(zip(sources, targets, strict=True)):
        check_place(source, target, -rank * target.nbytes, rank)
    if calls.size == 1:
        calls.copy(first, targets[0])
    elif first.size:
        count = targets[0].size * how.per_element
        for rank, (source, target) in enumerate(zip(sources, targets, strict=True)):
            calls.uses(rank, source, target).call(
                "ncclReduceScatter",
                how.kind,
                count,
                source=source.address,
                target=target.address,
                operation=how.operation,
                factor=how.factor,
            )
    return tuple(targets)


def gather(calls: Calls, arrays: object, out: object, root: object) -> DeviceArray:
    """See `World.gather`."""
    sources = check_arrays(calls.cores, arrays, "arrays")
    place = check_rank(root, calls.size)
    first = sources[0]
    target = _output(calls, out, place, (calls.size, *first.shape), first.dtype)
    check_place(sources[place], target, place * first.nbytes, place)
    for rank, source in enumerate(sources):
        _move(calls, rank, source, place, target, rank * first.nbytes, first.nbytes)
    return target


def scatter(calls: Calls, array: object, out: object, root: object) -> tuple[DeviceArray, ...]:
    """See `World.scatter`."""
    place = check_rank(root, calls.size)
    source = check_array(calls.cores[place], array, place, "array")
    targets = _outputs(calls, out, first_axis(source.shape, calls.size, "scatter"), source.dtype)
    check_place(source, targets[place], -place * targets[place].nbytes, place)
    for rank, target in enumerate(targets):
        _move(calls, place, source, rank, target, 0, target.nbytes, at=rank * target.nbytes)
    return tuple(targets)


def all_to_all(calls: Calls, arrays: object, out: object) -> tuple[DeviceArray, ...]:
    """See `World.all_to_all`."""
    sources = check_arrays(calls.cores, arrays, "arrays")
    first = sources[0]
    first_axis(first.shape, calls.size, "all_to_all")
    targets = _outputs(calls, out, first.shape, first.dtype)
    part = first.nbytes // calls.size
    for rank, (source, target) in enumerate(zip(sources, targets, strict=True)):
        check_place(source, target, None, rank)
    for rank, source in enumerate(sources):
        for other, target in enumerate(targets):
            _move(calls, rank, source, other, target, rank * part, part, at=other * part)
    return tuple(targets)


def all_to_all_v(calls: Calls, arrays: object, counts: object, out: object) -> tuple[DeviceArray, ...]:
    """See `World.all_to_all_v`."""
    size = calls.size
    if isinstance(arrays, DeviceArray) or not isinstance(arrays, Sequence) or len(arrays) != size:
        raise InvalidArgument(f"arrays is a sequence with one array for each of {size} members, not {shown(arrays)}")
    sources = [
        check_array(core, array, rank, "arrays")
        for rank, (core, array) in enumerate(zip(calls.cores, arrays, strict=True))
    ]
    table = _check_counts(counts, size)
    dtype = sources[0].dtype
    for rank, source in enumerate(sources):
        check_form(source, (sum(table[rank]),), dtype, f"arrays of rank {rank}", "its counts and rank 0 have {}")
    lengths = [sum(row[rank] for row in table) for rank in range(size)]
    if out is None:
        targets = [calls.new(rank, (length,), dtype) for rank, length in enumerate(lengths)]
    else:
        if isinstance(out, DeviceArray) or not isinstance(out, Sequence) or len(out) != size:
            raise InvalidArgument(f"out is a sequence with one array for each of {size} members, not {shown(out)}")
        targets = [
            check_array(core, array, rank, "out")
            for rank, (core, array) in enumerate(zip(calls.cores, out, strict=True))
        ]
        for rank, target in enumerate(targets):
            check_form(target, (lengths[rank],), dtype, f"out of rank {rank}", "its counts and rank 0 have {}")
    for rank, (source, target) in enumerate(zip(sources, targets, strict=True)):
        check_place(source, target, None, rank)
    filled = [0] * size
    for rank, source in enumerate(sources):
        taken = 0
        for other, target in enumerate(targets):
            nbytes = table[rank][other] * dtype.itemsize
            _move(calls, rank, source, other, target, filled[other], nbytes, at=taken)
            taken += nbytes
            filled[other] += nbytes
    return tuple(targets)


def _check_counts(counts: object, size: int) -> list[list[int]]:
    rows = list(counts) if isinstance(counts, Sequence) and not isinstance(counts, str) else []
    good = len(rows) == size and all(isinstance(row, Sequence) and len(row) == size for row in rows)
    if not good or any(type(count) is not int or count < 0 for row in rows for count in row):
        raise InvalidArgument(
            f"counts has {size} rows of {size} numbers of elements, counts[i][j] from rank i to rank j, "
            f"not {shown(counts)}"
        )
    return [list(row) for row in rows]


def exchange(calls: Calls, pairs: object) -> None:
    """See `World.exchange`."""
    if not isinstance(pairs, Sequence) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise InvalidArgument(f"exchange takes a sequence of pairs, each a source and a target, not {shown(pairs)}")
    written: list[tuple[int, int]] = []
    read: list[tuple[int, int]] = []
    for source, target in pairs:
        ranks = [_rank_of(calls, array, what) for array, what in ((source, "a source"), (target, "a target"))]
        check_array(calls.cores[ranks[0]], source, ranks[0], "the source")
        check_array(calls.cores[ranks[1]], target, ranks[1], "the target")
        check_form(target, source.shape, source.dtype, "the target", "the source has {}")
        if source.size:
            read.append((source.address, source.address + source.nbytes))
            written.append((target.address, target.address + target.nbytes))
    for place, (begin, end) in enumerate(written):
        if any(begin < other_end and other < end for other, other_end in [*read, *written[:place]]):
            raise InvalidArgument("a target of an exchange shares memory with a source, or with another target")
    for source, target in pairs:
        sender, receiver = (_rank_of(calls, array, "an array") for array in (source, target))
        _move(calls, sender, source, receiver, target, 0, source.nbytes)


def _rank_of(calls: Calls, array: object, what: str) -> int:
    if not isinstance(array, DeviceArray):
        raise InvalidArgument(f"{what} is an array of a member, not {shown(array)}")
    for rank, core in enumerate(calls.cores):
        if array._storage.device is core:
            return rank
    raise InvalidArgument(f"{what} is on device {array._storage.device.index}, which is no member of the world")


def barrier(calls: Calls, words: Sequence[tuple[DeviceArray, DeviceArray]]) -> None:
    """See `World.barrier`. `words` are two arrays of one element for each member."""
    all_reduce(calls, [zero for zero, _ in words], [result for _, result in words], "sum")
    calls.behind()


def _move(
    calls: Calls,
    sender: int,
    source: DeviceArray,
    receiver: int,
    target: DeviceArray,
    offset: int,
    nbytes: int,
    *,
    at: int = 0,
) -> None:
    """Move bytes of an array, from `at` on, to an array of another member, from `offset` on."""
    reads = calls.uses(sender, source, None)
    writes = calls.uses(receiver, None, target)
    if not nbytes:
        return
    begin, end = source.address + at, target.address + offset
    if calls.size == 1:
        if begin != end:
            reads.calls.append(BOX.pack(end, nbytes, nbytes, begin, nbytes, nbytes, nbytes, 1, 1))
        return
    kind, unit = moved(source.dtype)
    count = nbytes // source.itemsize * unit
    reads.call("ncclSend", kind, count, source=begin, root=receiver)
    writes.call("ncclRecv", kind, count, target=end, root=sender)
