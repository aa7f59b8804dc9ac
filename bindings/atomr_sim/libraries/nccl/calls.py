"""The collectives and the sends of the simulated NCCL: what goes to which rank, and what becomes of what comes.

In a collective every rank sends every other one a head, which says what was called, and the data behind it. So each of
them waits for all, and each sees if they disagree. The real library hangs then, or gives garbage; this one hangs, and
with the checks of the simulator on it reports both calls, and the work fails.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from atomr_cuda.nccl import ncclDataType_t as Type, ncclRedOp_t as Op

from ...checks.findings import Finding, Findings
from ...engine.memory import LAUNCH_FAILED, DeviceFault
from .communicator import Reception
from .elements import ELEMENTS, Factor, prepare, reduce
from .meeting import Kind, as_bytes

if TYPE_CHECKING:
    from ...checks import Checks
    from ...engine.memory import AddressSpace, Array
    from .communicator import Communicator, Exchange

_HEAD = struct.Struct("<iiiiQQQ88s")


class Function(IntEnum):
    """The functions that move data. The names are those of C, without ``nccl``."""

    AllReduce = 0
    ReduceScatter = 1
    Reduce = 2
    Broadcast = 3
    AllGather = 4
    AlltoAll = 5
    Gather = 6
    Scatter = 7
    Send = 8
    Recv = 9


_REDUCING = (Function.AllReduce, Function.ReduceScatter, Function.Reduce)
_PEER = (Function.Send, Function.Recv)
_ROOTED = (Function.Reduce, Function.Broadcast, Function.Gather, Function.Scatter)


@dataclass(frozen=True)
class Head:
    """What a rank has called, in a message in front of its data. The site is where its program called it."""

    function: int
    kind: int
    op: int
    root: int
    count: int
    sequence: int
    payload: int
    site: bytes

    def pack(self) -> Array:
        """The bytes of the message."""
        return as_bytes(_HEAD.pack(*astuple(self)))

    @classmethod
    def unpack(cls, data: Array) -> Head:
        """Read the bytes of a message."""
        return cls(*_HEAD.unpack(data.tobytes()))

    def agrees(self, other: Head) -> bool:
        """Tell whether two ranks have called the same; a send and a receive are one call."""
        pair = {self.function, other.function} == {*_PEER} or self.function == other.function
        return pair and replace(self, function=0, payload=0, site=b"") == replace(
            other, function=0, payload=0, site=b""
        )

    def __str__(self) -> str:
        words = [Type(self.kind).name.removeprefix("nccl").lower()]
        if self.function in _REDUCING:
            words.append("pre-multiplied sum" if self.op == Op.ncclNumOps else Op(self.op).name[4:].lower())
        if self.function in _ROOTED:
            words.append(f"root {self.root}")
        return f"nccl{Function(self.function).name}({', '.join(words)}, count {self.count})"

    @property
    def place(self) -> str:
        """The file and line of the call."""
        return self.site.rstrip(b"\0").decode(errors="replace")


@dataclass(frozen=True)
class Call:
    """One call of one rank. `root` is the other rank of a send or a receive."""

    function: Function
    source: int
    target: int
    count: int
    kind: int
    stream: int | None
    op: int | Factor | None = None
    root: int = 0
    site: bytes = b""

    @property
    def size(self) -> int:
        """The bytes of `count` elements."""
        return self.count * ELEMENTS[self.kind].size

    def head(self, sequence: int, payload: int) -> Head:
        op = Op.ncclNumOps if isinstance(self.op, Factor) else -1 if self.op is None else self.op
        root = 0 if self.function in _PEER else self.root
        return Head(self.function, self.kind, op, root, self.count, sequence, payload, self.site)

    def sent_to(self, target: int, rank: int) -> int | None:
        """The address of what a rank sends to another one, or to itself; None for nothing."""
        match self.function:
            case Function.AllReduce | Function.AllGather:
                return self.source
            case Function.ReduceScatter | Function.AlltoAll:
                return self.source + target * self.size
            case Function.Reduce | Function.Gather:
                return self.source if target == self.root else None
            case Function.Broadcast:
                return self.source if rank == self.root else None
            case _:
                return self.source + target * self.size if rank == self.root else None

    def store(self, parts: dict[int, Array], space: AddressSpace) -> None:
        """Write the result, from what has come from each rank."""
        if not parts:
            return
        if self.function in _REDUCING:
            with np.errstate(all="ignore"):
                assert self.op is not None
                _write(space, self.target, reduce(self.kind, self.op, [parts[rank] for rank in sorted(parts)]))
        elif self.function in (Function.Broadcast, Function.Scatter):
            _write(space, self.target, parts[self.root])
        else:
            for rank, part in parts.items():
                _write(space, self.target + rank * self.size, part)


def _write(space: AddressSpace, address: int, data: Array) -> None:
    space.view(address, len(data))[:] = data


class Work:
    """The calls of one group on one communicator, which run at once: all inputs are read before anything is written."""

    def __init__(
        self, communicator: Communicator, calls: list[Call], space: AddressSpace, checks: Checks | None
    ) -> None:
        self._communicator = communicator
        self._calls = calls
        self._space = space
        self._checks = checks

    def run(self) -> None:
        """Move the data. A device fault for an address that the device cannot reach, and for a finding."""
        exchange, stores = self._communicator.exchange(), []
        for call in self._calls:
            begin = self._peer if call.function in _PEER else self._collective
            stores.append(begin(call, exchange))
        exchange.run(self._communicator.has_stopped)
        for store in stores:
            store()

    def _read(self, address: int, size: int) -> Array:
        return np.array(self._space.view(address, size))

    def _peer(self, call: Call, exchange: Exchange) -> Callable[[], None]:
        if call.function == Function.Send:
            data = self._read(call.source, call.size)
            exchange.send(Kind.PEER, call.root, call.head(0, len(data)).pack(), data)
            return lambda: None
        reception = self._expect(call, Kind.PEER, call.root, call.head(0, 0), exchange)
        return lambda: _write(self._space, call.target, reception.data)

    def _collective(self, call: Call, exchange: Exchange) -> Callable[[], None]:
        mine, ranks = self._communicator.rank, self._communicator.ranks
        sequence = self._communicator.sequence
        self._communicator.sequence += 1
        read: dict[int, Array] = {}
        parts: dict[int, Array] = {}
        awaited: dict[int, Reception] = {}
        for rank in range(ranks):
            address = call.sent_to(rank, mine)
            data: Array = np.empty(0, np.uint8)
            if address is not None:
                if address not in read:
                    with np.errstate(all="ignore"):
                        read[address] = prepare(call.kind, call.op, ranks, self._read(address, call.size))
                data = read[address]
            if rank == mine:
                if address is not None:
                    parts[mine] = data
                continue
            exchange.send(Kind.COLLECTIVE, rank, call.head(sequence, len(data)).pack(), data)
            awaited[rank] = self._expect(call, Kind.COLLECTIVE, rank, call.head(sequence, 0), exchange)

        def store() -> None:
            parts.update((rank, each.data) for rank, each in awaited.items() if each.data.size)
            call.store(parts, self._space)

        return store

    def _expect(self, call: Call, kind: Kind, rank: int, mine: Head, exchange: Exchange) -> Reception:
        def follow(data: Array) -> int:
            theirs = Head.unpack(data)
            if not mine.agrees(theirs):
                self._disagree(mine, rank, theirs)
            return theirs.payload

        return exchange.receive(kind, rank, Reception(_HEAD.size, follow))

    def _disagree(self, mine: Head, rank: int, theirs: Head) -> None:
        """Report both calls where there are checks; hang where there are none."""
        if self._checks is None:
            self._communicator.wait(lambda: False)
            return
        which = f"collective {mine.sequence + 1} of this communicator" if mine.function not in _PEER else "a message"
        what = f"{which} is {mine} on rank {self._communicator.rank} and {theirs} on rank {rank}"
        if theirs.sequence != mine.sequence:
            what += f", which is its collective {theirs.sequence + 1}"
        if theirs.place:
            what += f" ({theirs.place})"
        file, _, line = mine.place.rpartition(":")
        name, nowhere = f"nccl{Function(mine.function).name}", (0, 0, 0)
        finding = Finding("collectives", name, nowhere, nowhere, file, int(line or 0), what, 0)
        findings = Findings(self._checks.folder)
        findings.add(name, finding)
        findings.report()
        raise DeviceFault(LAUNCH_FAILED, what)
