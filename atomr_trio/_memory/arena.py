"""The arena: the places of arrays, the commands to wait for before their memory is touched, and what survived a fault.

The user's process owns the allocator. A chunk is physical memory behind a descriptor that this process holds; each
worker maps it at the same address, so a block, once allocated, never moves. Allocating is bookkeeping alone: a chunk
that does not exist yet is created by a command ordered before its first use.

Dependencies belong to the block: its last writer and its readers since, as (lane, ticket). Memory that is freed may be
reused at once, because its next owner inherits the dependencies of the work that still runs on it.

A freed block first waits in a bin of its exact size, not merged with its neighbours. A program mostly asks for sizes
that it has just freed, so the next allocation takes it out again. At most `MOST_BINNED` blocks are in bins; more freed
blocks are merged at once. A request that its bin cannot serve gets the smallest free span that fits. If there is none,
all bins are emptied and neighbours merged; if that is not enough, a chunk is added. So the arena grows
only when no run of free bytes fits the request, and that bounds fragmentation: there is at most one free run for each
block and each chunk, so when a request of n bytes makes it grow, less than n x (blocks + chunks) bytes are free. For a
program whose blocks differ in size by a factor of r at most that is, chunks apart, r times the bytes in use. A new
chunk has the size that the request needs, or that of all chunks together and a first chunk. Without such an r, no
allocator that cannot move blocks has a bound that is a multiple of the bytes in use.

The same dependencies tell which memory is in quarantine while a lost worker is not reaped yet: the memory of its
tickets that were not reached. Such memory may be allocated, since its next owner inherits the dependency, and waits.

Pure bookkeeping: imports neither trio nor ctypes.
"""

from __future__ import annotations

import collections
import enum
import os
import sys
from collections.abc import Callable, Iterable
from sys import getrefcount
from typing import TYPE_CHECKING, Final, Literal

from .._values.util import known
from .._wire.protocol import Role
from .promises import Promises
from .sizes import Sizes

if TYPE_CHECKING:
    from .peers import PeerBlock

MIB = 1 << 20
ALIGNMENT = 512
_LOW_BITS, _HIGH_BITS = ALIGNMENT - 1, -ALIGNMENT
"""Of a size: a multiple of the alignment has none of the low ones."""
CHUNK_GRANULARITY = 2 * MIB
FIRST_CHUNK = 64 * MIB
LARGEST_GROWTH = 4096 * MIB
MAX_CHUNKS = 128
GUARD = CHUNK_GRANULARITY
"""Addresses left unmapped on either side of a guarded block."""
GUARDED_ALIGNMENT = 16
"""A guarded block ends less than this before its memory's end: the widest access of a thread must stay aligned."""

AT_A_TIME = 256
"""The most freed blocks that one call takes back, so that no call blocks the event loop."""
MOST_BINNED = 1024
"""The most freed blocks in bins: one call may merge all of them, at 1 to 3 us each."""


def known_here_alone(python: str, version: tuple[int, ...], flags: str) -> int:
    """Return the references to a block that nobody but `Arena.allocate` knows; -1 where they cannot be counted.

    They are its variable, `Arena.blocks`, and the argument of `getrefcount`. No array, command, plan or error refers to
    such a block, so it may become the next array's without anybody noticing. Later versions of Python do not count
    every variable, and a free-threaded one counts in two places, of which another thread may change one meanwhile.
    """
    return 3 if python == "cpython" and version < (3, 14) and "t" not in flags else -1


KNOWN_HERE_ALONE = known_here_alone(sys.implementation.name, sys.version_info[:2], getattr(sys, "abiflags", ""))

Ticket = tuple[int, int]
"""A lane, and a ticket of it."""

Bound = Literal["memory", "promised", "chunks", "addresses"]
"""The limits of an arena."""


class ChunkState(enum.Enum):
    """The state of a chunk's physical memory."""

    PLANNED = "planned"
    CREATING = "creating"
    READY = "ready"


class Chunk:
    """One piece of physical memory."""

    __slots__ = (
        "_epoch",
        "_waits",
        "address",
        "damaged",
        "descriptor",
        "guard",
        "offered",
        "size",
        "state",
        "ticket",
        "used",
    )

    def __init__(self, address: int, size: int, guard: int = 0, damaged: set[Block] | None = None) -> None:
        self.damaged: set[Block] = set() if damaged is None else damaged
        """The arena's blocks that are, or have been, torn or lost."""
        self.address: int = address
        self.size: int = size
        self.guard: int = guard
        """Bytes of addresses on either side that must stay unmapped."""
        self.state: ChunkState = ChunkState.PLANNED
        self.descriptor: int = -1
        self.ticket: int = 0
        """The ticket, on the compute lane, of the command that creates it."""
        self.used: int = 0
        """Bytes of it that belong to blocks."""
        self.offered: bool = False
        """True while the worker may release it to make room: nothing is allocated in it meanwhile."""
        self._epoch = 0
        self._waits: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Chunk {self.address:#x}+{self.size:#x} {self.state.value}, {self.used} bytes used>"

    def set_aside(self, epoch: int, waits: dict[int, int]) -> None:
        """Note, before its release, the tickets of generation `epoch` that may still run on it."""
        self._epoch = epoch
        self._waits = waits

    def last_use(self, epoch: int) -> Iterable[Ticket]:
        """Return the tickets that must be reached before it is released in generation `epoch`."""
        return self._waits.items() if self._epoch == epoch else ()

    def close(self) -> None:
        """Close the descriptor. The last holder frees the memory, which takes long if it is this one."""
        for descriptor in self.part_with_descriptor():
            os.close(descriptor)

    def part_with_descriptor(self) -> tuple[int, ...]:
        """Return its descriptor, if it has one, for the caller to close."""
        descriptor, self.descriptor = self.descriptor, -1
        return (descriptor,) if descriptor >= 0 else ()


class Recipe:
    """The initial contents of a block, written when a command first touches it; kept until the fill is done."""

    __slots__ = ("count", "itemsize", "pattern", "ticket")

    def __init__(self, itemsize: int, count: int, pattern: bytes) -> None:
        self.itemsize: int = itemsize
        self.count: int = count
        self.pattern: bytes = pattern
        self.ticket: int = 0
        """The ticket, on the compute lane, of the fill that is under way; 0 when none is."""

    def anew(self) -> Recipe:
        """Return the same recipe, not yet followed."""
        return Recipe(self.itemsize, self.count, self.pattern)


class Block:
    """A piece of device memory that an array, and its views, live in."""

    __slots__ = (
        "address",
        "born",
        "chunk",
        "epoch",
        "fast",
        "freed",
        "lost",
        "nbytes",
        "peers",
        "reader",
        "readers",
        "recipe",
        "size",
        "torn",
        "writer",
        "written",
    )

    def __init__(
        self, address: int, size: int, nbytes: int, chunk: Chunk, epoch: int = 0, waits: dict[int, int] | None = None
    ) -> None:
        self.address: int = address
        self.size: int = size
        self.nbytes: int = nbytes
        """The requested bytes; `size` is that, rounded up."""
        self.chunk: Chunk = chunk
        self.epoch: int = epoch
        """The generation whose tickets `writer`, `reader`, `readers` and `born` are."""
        self.fast: int = 0
        """The token of a generation and a lane in which the block may be used without further checks: it is intact,
        and only that lane has used it in that generation. 0 when that is not known."""
        self.writer: Ticket | None = None
        self.born: tuple[int, ...] | None = None
        """Which new result of a call on the short way it is (`Birth`, ``timeline.py``); None if it is not one."""
        self.reader: Ticket | None = None
        """The last reader that went the short way, which notes it here at less cost; perhaps older than a writer of its
        own lane."""
        self.readers: dict[int, int] = {} if waits is None else waits
        """The last readers since the writer, apart from `reader`, by their lanes."""
        self.recipe: Recipe | None = None
        self.written: bool = False
        self.freed: bool = False
        self.torn: str | None = None
        """The command that was writing it when its generation was lost."""
        self.lost: str | None = None
        """The reason why its memory is lost for ever; None if it is not."""
        self.peers: tuple[PeerBlock, ...] = ()
        """The accounts that other devices of a group have of it; see ``peers.py``."""

    def __repr__(self) -> str:
        return f"<Block {self.address:#x}+{self.size:#x} {self.state}>"

    @property
    def state(self) -> str:
        """The state in one word, for a `repr`."""
        if self.freed:
            return "freed"
        if self.lost is not None:
            return "lost"
        return "torn" if self.torn is not None else "ready"

    def become_new(self, nbytes: int) -> None:
        """Become the block of another array, of `nbytes` bytes, on the same memory. Nobody else may know the block."""
        self.nbytes = nbytes
        self.fast = 0
        self.written = self.freed = False
        self.born = self.recipe = self.torn = self.lost = None
        if self.writer is not None or self.reader is not None:
            self.readers = self.last_uses()
            self.writer = self.reader = None

    def holds(self, address: int) -> bool:
        """Return whether an address is in this piece of memory. Its own is, also if it is empty."""
        return self.address <= address < self.address + max(1, self.size)

    def tear(self, why: str) -> None:
        """Note that an unfinished command was writing it."""
        self.torn = why
        self.fast = 0
        self.chunk.damaged.add(self)
        self.warn_peers()

    def lose(self, why: str) -> None:
        """Note that its memory is lost for ever."""
        self.lost = why
        self.fast = 0
        self.chunk.damaged.add(self)
        self.warn_peers()

    def warn_peers(self) -> None:
        """Make other devices look at the block's state before they use it next."""
        for peer in self.peers:
            peer.fast = 0

    def last_uses(self) -> dict[int, int]:
        """Return the tickets that the memory's next owner must wait for: the last of each lane that has touched it."""
        uses, writer = self.readers, self.writer
        if writer is not None and not uses and self.reader is None:  # as mostly
            return {writer[0]: writer[1]}
        for use in (self.reader, writer):
            if use is not None:
                lane, ticket = use
                uses = {**uses, lane: max(ticket, uses.get(lane, 0))}
        return uses

    @property
    def all_readers(self) -> dict[int, int]:
        """The last readers since the writer, by their lanes."""
        if self.reader is not None:
            self._take_in_reader()
        return self.readers

    def _take_in_reader(self) -> None:
        """Put the reader that went the short way among the others."""
        reader, self.reader = self.reader, None
        if reader is not None and (self.writer is None or self.writer[0] != reader[0] or self.writer[1] < reader[1]):
            lane, ticket = reader
            self.readers[lane] = max(ticket, self.readers.get(lane, 0))

    def settle(self, epoch: int) -> None:
        """Bring the tickets up to date with generation `epoch`: those of an earlier one are over."""
        if self.epoch != epoch:
            self.epoch = epoch
            self.born = self.writer = self.reader = None
            if self.readers:
                self.readers = {}
        if self.reader is not None:
            self._take_in_reader()

    def claim(self, role: Role, lane: int, ticket: int, epoch: int, waits: set[Ticket]) -> None:
        """Note that command (`lane`, `ticket`) touches the block, and add the tickets that it must wait for to `waits`.

        Work on the same lane is in order by itself. Tickets that are reached already may be among the waits.
        """
        self.settle(epoch)
        if self.peers:
            self.warn_peers()
        writer = self.writer
        if writer is not None and writer[0] != lane:
            waits.add(writer)
        if role is Role.READ:
            self.readers[lane] = ticket
            return
        if self.readers:
            waits.update((reader, last) for reader, last in self.readers.items() if reader != lane)
            self.readers = {}
        self.writer = (lane, ticket)
        self.written = True

    def claim_unordered(self, lane: int, ticket: int, epoch: int) -> None:
        """Note that a command uses the block, ordered only by its caller. Only freeing the block waits for it."""
        self.claim(Role.READ, lane, ticket, epoch, set())
        self.written = True
        self.fast = 0


_bare: Final[Callable[[type[Block]], Block]] = object.__new__
"""Makes a block without attributes: blocks are made often, and a call of `__init__` takes half as long again."""


def _successor(last: Block, nbytes: int, waits: dict[int, int]) -> Block:
    """Return the block of another array, of `nbytes` bytes, on the memory of one that was freed."""
    block = _bare(Block)  # with the attributes that `__init__` sets
    block.address = last.address
    block.size = last.size
    block.nbytes = nbytes
    block.chunk = last.chunk
    block.epoch = last.epoch
    block.fast = 0
    block.born = block.writer = block.reader = block.recipe = block.torn = block.lost = None
    block.readers = waits
    block.written = block.freed = False
    block.peers = ()
    return block


class _Span:
    """Free memory of one chunk, and the tickets that may still run on it."""

    __slots__ = ("address", "chunk", "epoch", "size", "waits")

    def __init__(self, address: int, size: int, chunk: Chunk, epoch: int, waits: dict[int, int]) -> None:
        self.address = address
        self.size = size
        self.chunk = chunk
        self.epoch = epoch
        self.waits = waits


class ArenaFull(Exception):
    """The memory limit, the number of chunks or the range of addresses does not allow the allocation."""

    def __init__(
        self,
        bound: Bound,
        requested: int,
        limit: int,
        in_use: int,
        reserved: int,
        chunks: int,
        workspaces: int,
        promised: int,
    ) -> None:
        super().__init__(bound, requested, limit, in_use, reserved, chunks, workspaces, promised)
        self.bound: Bound = bound
        """Which of them."""
        self.requested = requested
        self.limit = limit
        self.in_use = in_use
        self.reserved = reserved
        self.chunks = chunks
        self.workspaces = workspaces
        self.promised = promised
        """Bytes that are kept for others than the caller."""


def _none() -> int:
    return 0


def _not_held(block: Block) -> bool:
    return False


class Arena:
    """Allocation over chunks at fixed addresses: exact fit first, then best fit."""

    def __init__(self, base: int, extent: int, limit: int, most_chunks: int = MAX_CHUNKS) -> None:
        self.base = base
        self.most_chunks: int = most_chunks
        """The most chunks that it may have: each takes a file descriptor of this process."""
        self.extent = extent
        self.limit = limit
        self.chunks: list[Chunk] = []
        self.in_use: int = 0
        self.blocks: set[Block] = set()
        """Every block that belongs to an array."""
        self.damaged: set[Block] = set()
        """Those blocks that are torn or lost, or were."""
        self.orphans: collections.deque[Block] = collections.deque()
        """Blocks whose last array was collected, in any thread; taken back by the next call."""
        self.retired: list[Chunk] = []
        """Chunks dropped from the arena that the worker must still release."""
        self.quarantine: dict[int, tuple[int, ...]] = {}
        """For each lost generation whose worker is not reaped yet, the ticket that each lane had reached."""
        self.count_workspaces: Callable[[], int] = _none
        """Returns the bytes of device memory that libraries have for workspaces, which count for the limit too."""
        self.held_by_peers: Callable[[Block], bool] = _not_held
        """Returns whether another device still works on a block that was freed, and will have it freed afterwards."""
        self.promises: Promises | None = None
        """The bytes of the limit that were promised; None for none."""
        self._kept = False
        """True while a block is allocated that breaks no promise."""
        self._short = False
        self._bins: dict[int, list[Block]] = {}
        """The freed blocks that are not merged with their neighbours yet, by size, the newest last."""
        self._binned = 0
        """The number of those blocks."""
        self._starts: dict[int, _Span] = {}
        self._ends: dict[int, _Span] = {}
        self._sizes = Sizes()

    @property
    def workspaces(self) -> int:
        """Bytes of device memory that libraries have taken for workspaces."""
        return self.count_workspaces()

    @property
    def reserved(self) -> int:
        """Bytes of all chunks."""
        return sum(chunk.size for chunk in self.chunks)

    def allocate(self, size: int, guarded: bool = False) -> Block:
        """Return a block of at least `size` bytes, aligned to 512. Raises `ArenaFull`.

        A guarded block lies at the end of its own memory, which is between unmapped addresses.
        """
        if self.promises is not None and not self._kept:
            return self._allocate_beside_promises(self.promises, size, guarded)
        nbytes = size
        size = (size + _LOW_BITS & _HIGH_BITS) or ALIGNMENT
        last: Block | None = None
        orphans = self.orphans
        if orphans:
            last = orphans.popleft()
            if last.size != size or guarded or last.freed or last.chunk.guard or self.quarantine or last.peers:
                self.free(last)
                last = None
            elif getrefcount(last) == KNOWN_HERE_ALONE and not self.damaged:
                last.become_new(nbytes)
                if orphans:
                    self.collect(AT_A_TIME)
                return last
            else:  # it is handed on without a stay in its bin, so only what tells the two apart changes
                last.freed = True
                last.fast = 0
                self.blocks.discard(last)
                if self.damaged:
                    self.damaged.discard(last)
            if orphans:
                self.collect(AT_A_TIME)
        if guarded:
            return self._allocate_guarded(nbytes)
        if last is None:
            freed = self._bins.get(size)
            if freed:
                last = freed.pop()
                self._binned -= 1
            else:
                span = self._fitting(size)
                block = Block(span.address, size, nbytes, span.chunk, span.epoch, dict(span.waits))
                self._shorten(span, size)
            self.in_use += size
            (last or block).chunk.used += size
        if last is not None and getrefcount(last) == KNOWN_HERE_ALONE - 1:  # it is not in `blocks`
            block = last
            block.become_new(nbytes)
        elif last is not None:
            idle = last.writer is None and last.reader is None
            waits = last.readers if idle else last.last_uses()
            block = _successor(last, nbytes, waits)
        self.blocks.add(block)
        return block

    def _allocate_beside_promises(self, promises: Promises, size: int, guarded: bool) -> Block:
        """Allocate as `allocate` does, unless that would take what was promised to others than the calling task."""
        self.collect()
        if self.in_use + self.workspaces + promises.kept_from_caller + size > self.limit:
            raise self._full(size, "promised")
        self._kept = True
        try:
            block = Arena.allocate(self, size, guarded)
        finally:
            self._kept = False
        promises.charge(block, block.size)
        return block

    def free(self, block: Block) -> None:
        """Give a block back. Its memory is reusable at once; freeing twice does nothing."""
        if block.freed or (block.peers and self.held_by_peers(block)):
            return
        if self.promises is not None:
            self.promises.freed(block)
        block.freed = True
        block.fast = 0
        chunk = block.chunk
        size = block.size
        self.blocks.discard(block)
        if self.damaged:
            self.damaged.discard(block)
        chunk.used -= size
        self.in_use -= size
        if chunk.guard:
            self._retire_guarded(block)
        elif self.quarantine or self._binned >= MOST_BINNED:
            self._give_block(block)  # the bins do not separate blocks in quarantine
        else:
            freed = self._bins.get(size)
            if freed is None:
                self._bins[size] = [block]
            else:
                freed.append(block)
            self._binned += 1
        if chunk.used == 0 and chunk.state is ChunkState.PLANNED and not chunk.guard:
            self.drop(chunk)  # there may be too little memory for it; the next one is planned anew

    def merge(self) -> None:
        """Empty the bins: each freed block is merged with the free memory on either side."""
        if not self._bins:
            return
        bins, self._bins = self._bins, {}
        self._binned = 0
        for freed in bins.values():
            for block in freed:
                self._give_block(block)

    def collect(self, most: int | None = None) -> None:
        """Take back the blocks whose last array was collected, at most `most`."""
        for _ in range(len(self.orphans) if most is None else min(most, len(self.orphans))):
            self.free(self.orphans.popleft())

    def born(self, number: int) -> dict[tuple[int, ...], Block]:
        """Return the new results of calls of generation `number` that went the short way, while arrays have them."""
        return {block.born: block for block in self.blocks if block.born is not None and block.epoch == number}

    # Quarantine.

    def begin_quarantine(self, number: int, reached: tuple[int, ...]) -> None:
        """Note that, until `end_quarantine`, the worker of generation `number` may still write its operands."""
        self.quarantine[number] = reached
        self.merge()

    def end_quarantine(self, number: int) -> None:
        """Note that the worker of generation `number` was reaped."""
        del self.quarantine[number]
        for span in [span for span in self._starts.values() if span.epoch == number and span.waits]:
            if self._starts.get(span.address) is span:  # otherwise it was merged with a neighbour
                self._remove(span)
                self._give(span)

    def quarantined(self, block: Block) -> bool:
        """Return whether a lost worker may still touch the block: no other command may until it is reaped."""
        reached = self.quarantine.get(block.epoch)
        if reached is None:
            return False
        writer = block.writer
        return (writer is not None and writer[1] > reached[writer[0]]) or _unreached(block.all_readers, reached)

    def _span_quarantined(self, span: _Span) -> bool:
        reached = self.quarantine.get(span.epoch)
        return reached is not None and _unreached(span.waits, reached)

    def generation_lost(self, *, durable: bool, strict: bool, number: int) -> list[int]:
        """Decide what survives the loss of generation `number`, after its worker was reaped and its commands settled.

        Returns the descriptors of chunks that the worker should have released, for the caller to close.

        A chunk whose descriptor this process holds is mapped by the next worker. Any other is planned anew, and its
        contents are lost. With `strict` every block of the old generation is lost.
        """
        unkept = {chunk for chunk in self.chunks if chunk.state is ChunkState.READY and chunk.descriptor < 0}
        closing = self._part_with_retired()
        for chunk in self.chunks:
            chunk.offered = False
            chunk.ticket = 0
            chunk.state = ChunkState.READY if chunk.descriptor >= 0 else ChunkState.PLANNED
        if strict:
            why = f'generation {number} was lost and the device was opened with on_fault="stale"'
        elif not durable:
            why = f"generation {number} was lost, and memory of this device cannot outlive its worker"
        elif unkept:
            why = f"generation {number} was lost while this process had no file descriptor for the memory"
        else:
            return closing
        for block in self.blocks:
            if strict or (block.written and (not durable or block.chunk in unkept)):
                block.lose(why)
        return closing

    # Chunks.

    def _make_room(self, size: int, needed: int) -> int:
        """Release cached chunks, and return the bytes that the limit leaves for a chunk of at least `needed` bytes."""
        room = self.limit - self.workspaces - self.reserved
        if needed > room or len(self.chunks) >= self.most_chunks:
            self.collect()
            self._retire_unused(needed - room)
            room = self.limit - self.workspaces - self.reserved
        if needed > room or len(self.chunks) >= self.most_chunks:
            raise self._full(size, "memory" if len(self.chunks) < self.most_chunks else "chunks")
        return room

    def _grow(self, size: int) -> None:
        needed = -(-size // CHUNK_GRANULARITY) * CHUNK_GRANULARITY
        room = self._make_room(size, needed)
        growth = needed if self._short else min(FIRST_CHUNK + self._shared_bytes(), LARGEST_GROWTH)
        grown = max(needed, min(growth, room // CHUNK_GRANULARITY * CHUNK_GRANULARITY))
        chunk = Chunk(self._place(grown, needed), grown, damaged=self.damaged)
        if chunk.address + grown > self.base + self.extent:
            chunk.size = needed
        self._add(chunk)
        self._insert(_Span(chunk.address, chunk.size, chunk, 0, {}))

    def _shared_bytes(self) -> int:
        """Return the bytes of the chunks that blocks share: chunks of guarded blocks do not count for growth."""
        return sum(chunk.size for chunk in self.chunks if not chunk.guard)

    def creation_failed(self, chunk: Chunk) -> None:
        """Plan a chunk anew that the device had no memory for, no larger than its blocks need.

        From now on, until memory is given back, the arena grows only by the bytes that are needed.
        """
        self._short = True
        self.merge()
        chunk.state = ChunkState.PLANNED
        if chunk in self.retired:
            self.retired.remove(chunk)
            return
        if chunk.used == 0 and not chunk.guard:
            self.drop(chunk)
            return
        rest = self._ends.get(chunk.address + chunk.size)
        if rest is None:
            return
        size = -(-(rest.address - chunk.address) // CHUNK_GRANULARITY) * CHUNK_GRANULARITY
        self._remove(rest)
        rest.size -= chunk.size - size
        chunk.size = size
        if rest.size:
            self._insert(rest)

    def _full(self, size: int, bound: Bound) -> ArenaFull:
        promised = 0 if self.promises is None else self.promises.kept_from_caller
        return ArenaFull(
            bound, size, self.limit, self.in_use, self.reserved, len(self.chunks), self.workspaces, promised
        )

    def _allocate_guarded(self, nbytes: int) -> Block:
        size = -(-nbytes // GUARDED_ALIGNMENT) * GUARDED_ALIGNMENT
        held = max(1, -(-size // CHUNK_GRANULARITY)) * CHUNK_GRANULARITY
        self._make_room(size, held)
        address = self._place(held + 2 * GUARD, held + 2 * GUARD) + GUARD
        chunk = Chunk(address, held, GUARD, self.damaged)
        self._add(chunk)
        block = Block(address + held - size, size, nbytes, chunk)
        chunk.used = size
        self.in_use += size
        self.blocks.add(block)
        return block

    def _retire_guarded(self, block: Block) -> None:
        chunk = block.chunk
        self.chunks.remove(chunk)
        if chunk.state is not ChunkState.PLANNED:
            self._short = False
            chunk.set_aside(block.epoch, block.last_uses())
            self.retired.append(chunk)

    def _add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.chunks.sort(key=lambda each: each.address)

    def _place(self, size: int, needed: int) -> int:
        """Return the first gap between chunks that fits `size` bytes; a retired chunk there is released before."""
        address = self.base
        for chunk in self.chunks:
            if chunk.address - chunk.guard - address >= size:
                return address
            address = chunk.address + chunk.size + chunk.guard
        if address + needed > self.base + self.extent:
            raise self._full(size, "addresses")
        return address

    def _retire_unused(self, wanted: int) -> None:
        """Retire empty chunks, largest first, until `wanted` bytes are gained."""
        for chunk in self.unused():
            self._retire(chunk)
            wanted -= chunk.size
            if wanted <= 0:
                break

    def trim(self, keep: int) -> None:
        """Retire empty chunks, largest first, as long as at least `keep` bytes of them are left."""
        self.collect()
        unused = self.unused()
        left = sum(chunk.size for chunk in unused)
        for chunk in unused:
            if left - chunk.size >= keep:
                self._retire(chunk)
                left -= chunk.size

    def _retire(self, chunk: Chunk) -> None:
        self.drop(chunk)
        if chunk.state is not ChunkState.PLANNED:
            self.retired.append(chunk)

    def unused(self) -> list[Chunk]:
        """Return the chunks that hold no block, and are not offered, being made, or shared.

        The largest come first.
        """
        self.merge()
        unused = [
            chunk
            for chunk in self.chunks
            if chunk.used == 0
            and not chunk.guard  # the block of an empty array has no bytes
            and not chunk.offered
            and chunk.state is not ChunkState.CREATING
            and self._starts[chunk.address].size == chunk.size
            and not self._span_quarantined(self._starts[chunk.address])
        ]
        return sorted(unused, key=lambda each: -each.size)

    def offer_unused(self) -> list[Chunk]:
        """Set aside the existing empty chunks, which a worker that is short of memory may release.

        Of several, a small one stays: small arrays that are made meanwhile fit into it. Otherwise the arena would grow
        each time, until it has reached its limit and has no room while the others are offered.
        """
        chunks = [chunk for chunk in self.unused() if chunk.state is ChunkState.READY]
        if len(chunks) > 1 and chunks[-1].size <= FIRST_CHUNK:
            chunks.pop()
        for chunk in chunks:
            chunk.offered = True
            self._set_aside(chunk)
        return chunks

    def drop(self, chunk: Chunk) -> None:
        """Take an unused chunk out of the arena."""
        self.merge()
        if chunk.state is not ChunkState.PLANNED:
            self._short = False
        self._set_aside(chunk)
        address = chunk.address
        while address < chunk.address + chunk.size:  # more than one span only if a part was in quarantine
            span = self._starts[address]
            self._remove(span)
            address += span.size
        self.chunks.remove(chunk)

    def _set_aside(self, chunk: Chunk) -> None:
        span = self._starts[chunk.address]
        chunk.set_aside(span.epoch, span.waits)

    # Spans.

    def _fitting(self, size: int) -> _Span:
        """Return the best span for `size` bytes. Raises `ArenaFull`."""
        span = self._find(size)
        if span is None and (self._bins or self.orphans):
            self.collect()
            self.merge()
            span = self._find(size)
        if span is None:
            self._grow(size)
            span = known(self._find(size), "an arena that has just grown has a span that fits")
        return span

    def _shorten(self, span: _Span, size: int) -> None:
        """Take the first `size` bytes of a free span; the rest stays free, with the same tickets to wait for."""
        if span.size == size:
            self._remove(span)
            span.address += size
            span.size = 0
            return
        address, left = span.address, span.size - size
        del self._starts[address]
        self._sizes.replace((span.size, address), (left, address + size))
        span.address, span.size = address + size, left
        self._starts[address + size] = span

    def _find(self, size: int) -> _Span | None:
        """Return the smallest span that is large enough; one in quarantine only if there is no other."""
        if not self.quarantine:
            first = self._sizes.first(size)
            if first is None:
                return None
            span = self._starts[first[1]]
            if not span.chunk.offered:
                return span
        resort: _Span | None = None
        for _, address in self._sizes.since((size, 0)):
            span = self._starts[address]
            if not span.chunk.offered:
                if not self.quarantine or not self._span_quarantined(span):
                    return span
                resort = resort or span
        return resort

    def _insert(self, span: _Span) -> None:
        self._starts[span.address] = span
        self._ends[span.address + span.size] = span
        self._sizes.add((span.size, span.address))

    def _remove(self, span: _Span) -> None:
        del self._starts[span.address]
        del self._ends[span.address + span.size]
        self._sizes.remove((span.size, span.address))

    def _give_block(self, block: Block) -> None:
        self._give(_Span(block.address, block.size, block.chunk, block.epoch, block.last_uses()))

    def _give(self, span: _Span) -> None:
        """Merge a span with its free neighbours in the same chunk; the tickets of all count for the whole."""
        before = self._ends.get(span.address)
        if before is not None and self._may_merge(before, span):
            self._remove(before)
            span = _merged(before, span)
        after = self._starts.get(span.address + span.size)
        if after is not None and self._may_merge(span, after):
            self._remove(after)
            span = _merged(span, after)
        self._insert(span)

    def _may_merge(self, first: _Span, second: _Span) -> bool:
        if first.chunk is not second.chunk:
            return False
        # Tickets of two generations cannot be combined, and those of a lost one still count.
        return not self.quarantine or not (self._span_quarantined(first) or self._span_quarantined(second))

    @property
    def available(self) -> int:
        """Return the bytes of the limit that nobody has and nobody was promised."""
        promised = 0 if self.promises is None else self.promises.left
        return max(0, self.limit - self.workspaces - self.in_use - promised)

    @property
    def free_bytes(self) -> int:
        """Return the bytes of chunks that belong to no block."""
        return self.reserved - self.in_use

    def free_runs(self) -> tuple[int, int]:
        """Return the number of free runs, and the bytes of the longest. A block must fit into one run."""
        self.collect(AT_A_TIME)
        self.merge()
        return len(self._sizes), self._sizes.last()[0] if self._sizes else 0

    def damage(self) -> tuple[int, int]:
        """Return the bytes of the blocks that are torn, and of those that are lost."""
        self.damaged.difference_update([block for block in self.damaged if block.torn is None and block.lost is None])
        torn = sum(block.size for block in self.damaged if block.torn is not None)
        return torn, sum(block.size for block in self.damaged if block.lost is not None)

    def _part_with_retired(self) -> list[int]:
        retired, self.retired = self.retired, []
        return [descriptor for chunk in retired for descriptor in chunk.part_with_descriptor()]

    def part_with_descriptors(self) -> list[int]:
        """Return the descriptors of all chunks, for the caller to close."""
        kept = [descriptor for chunk in self.chunks for descriptor in chunk.part_with_descriptor()]
        return kept + self._part_with_retired()

    def close(self) -> None:
        """Close every descriptor."""
        for descriptor in self.part_with_descriptors():
            os.close(descriptor)


def _unreached(waits: dict[int, int], reached: tuple[int, ...]) -> bool:
    return any(ticket > reached[lane] for lane, ticket in waits.items())


def _merged(first: _Span, second: _Span) -> _Span:
    epoch = max(first.epoch, second.epoch)
    waits: dict[int, int] = {}
    for span in (first, second):
        if span.epoch == epoch:
            for lane, ticket in span.waits.items():
                waits[lane] = max(ticket, waits.get(lane, 0))
    return _Span(first.address, first.size + second.size, first.chunk, epoch, waits)
