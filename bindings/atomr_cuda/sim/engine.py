"""Running translated kernels: chunks of thread blocks, groups of lanes, barriers, warps and calls.

A **chunk** is as many whole thread blocks as fill some thousand lanes.  An **activation** is one function being run by
some lanes of a chunk: the kernel itself, or a device function that they called together.  In an activation lanes sit in
groups, one for each basic block that they have reached; the group at the lowest block runs next, so lanes that took
different ways meet where the ways do.  Every so often the oldest group runs instead, so that a lane that waits for
another one does not keep it from running.

A barrier takes its lanes out of their group until every lane of the thread block that has not exited is waiting too, or
as many as the instruction says.
Warp-wide instructions wait in the same way for the lanes in their mask.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .affine import Affine, Box, Cut, Shape
from .codegen import Code, Namespace, storage
from .memory import ASSERT, LAUNCH_FAILED, LOCAL, STACK_ERROR, AddressSpace, Array, DeviceFault
from .printf import assertion_text, format_text
from .shared import SharedAccess, SharedMemory, StridedSharedAccess
from .warp import Warps


class Heap(Protocol):
    """What kernels take memory from."""

    def allocate(self, size: int) -> int:
        """The address of a new block of so many bytes; 0 when there is no room."""

    def free(self, address: int) -> None:
        """Give a block back."""


Lanes = Array | Box | None
"""Indices of lanes within their activation, in order; None means all of them."""
_NOBODY: Array = np.arange(0)

CHUNK_LANES = 131072
AFFINE_LANES = 16384
"""In chunks of fewer lanes, it costs less to compute arrays than to know that they are affine."""
CHUNK_BYTES = 128 << 20
"""Shared memory, frames and registers of a chunk: what a launch takes is bounded, and so is how soon its process ends.
"""
RESIDENT_CHUNKS = 2
"""As many lanes as a large GPU holds at a time; blocks that wait for each other must fit in."""
STEPS_PER_TURN = 2048
FAIRNESS = 64
PATIENCE = 0.75
"""A loop over registers alone drops the lanes that have left it when fewer than this part of them are still there."""
BARRIERS = 16
"""As many as a thread block has."""
MULTIPROCESSORS = 108
CALL_DEPTH = 256


_OF_THREADS: dict[str, Callable[[Array, tuple[int, int, int]], Array]] = {
    "tid.x": lambda thread, block: thread % np.uint32(block[0]),
    "tid.y": lambda thread, block: thread // np.uint32(block[0]) % np.uint32(block[1]),
    "tid.z": lambda thread, block: thread // np.uint32(block[0] * block[1]),
    "laneid": lambda thread, _: thread & np.uint32(31),
    "warpid": lambda thread, _: thread >> np.uint32(5),
    "lanemask_eq": lambda thread, _: np.uint32(1) << (thread & np.uint32(31)),
    "lanemask_lt": lambda thread, _: (np.uint32(1) << (thread & np.uint32(31))) - np.uint32(1),
    "lanemask_le": lambda thread, _: (np.uint32(2) << (thread & np.uint32(31))) - np.uint32(1),
    "lanemask_gt": lambda thread, _: ~((np.uint32(2) << (thread & np.uint32(31))) - np.uint32(1)),
    "lanemask_ge": lambda thread, _: ~((np.uint32(1) << (thread & np.uint32(31))) - np.uint32(1)),
}
"""Special registers that are the same in every block: from a thread's number in its block, and the block's extent."""


class Layout:
    """What is the same in every chunk of as many blocks: where its lanes are in their blocks and warps."""

    def __init__(self, block: tuple[int, int, int], blocks: int) -> None:
        self.block = block
        self.blocks = blocks
        self.threads: int = block[0] * block[1] * block[2]
        self.lanes: int = blocks * self.threads
        self.block_of: Array = np.repeat(np.arange(blocks), self.threads)
        self._specials: dict[str, Array] = {}

    def special(self, name: str) -> Array:
        """A special register of `_OF_THREADS`, over all lanes."""
        found = self._specials.get(name)
        if found is None:
            of_block = _OF_THREADS[name](np.arange(self.threads, dtype=np.uint32), self.block)
            found = self._specials[name] = np.tile(of_block, self.blocks)
        return found

    @functools.cached_property
    def warps(self) -> Warps:
        """The warps of the chunk; the last one of a block may have fewer lanes."""
        each = -(-self.threads // 32)
        index = self.block_of * each + self.special("warpid")
        return Warps(index, self.special("laneid"), self.blocks * each)


@functools.lru_cache(maxsize=8)
def _layout(block: tuple[int, int, int], blocks: int) -> Layout:
    """Launches of the same extent share their layouts, which nothing changes."""
    return Layout(block, blocks)


class Axes:
    """The axes of a chunk: its lanes' blocks in the grid, then its lanes in their blocks.

    There are up to six; those of one lane are left out.  What is affine over them is kept as such.
    """

    def __init__(self, launch: Launch, first: int, blocks: int) -> None:
        extent, self._begin = _blocks_in_rows(launch.grid, first, blocks)
        counts = (*extent[::-1], *launch.block[::-1])
        self._kept = [axis for axis, count in enumerate(counts) if count > 1]
        self.shape: Shape = tuple(counts[axis] for axis in self._kept)
        self.box: Box = Box(self.shape, (0,) * len(self.shape), self.shape)
        self.blocks: Affine = self._affine(0, (extent[0] * extent[1], extent[0], 1, 0, 0, 0))
        """The number of each lane's block in the chunk."""

    def _affine(self, base: int, strides: Shape) -> Affine:
        return Affine(self.shape, base, tuple(strides[axis] for axis in self._kept), np.uint32)

    def special(self, name: str) -> Affine | None:
        """A special register over all lanes, if it is affine."""
        register, _, axis = name.partition(".")
        if register == "tid":
            return self._affine(0, tuple(int(f"tid.{each}" == name) for each in "...zyx"))
        if register == "ctaid" and self._begin is not None:
            return self._affine(self._begin["xyz".index(axis)], tuple(int(each == axis) for each in "zyx..."))
        return None


def _blocks_together(grid: tuple[int, int, int], most: int) -> tuple[int, int]:
    """How many blocks, in order, make up a chunk, and at multiples of what number one ends in any case.

    Chunks are parts of rows of the grid, whole rows, or whole layers, and about as large as each other: the blocks of
    one then fill a box of the grid.
    """
    unit, line = 1, grid[0]
    for count in grid[1:]:
        if line <= most:
            unit, line = line, line * count
    pieces = -(-line // (most // unit * unit))
    return -(-line // unit // pieces) * unit, line


def _blocks_in_rows(grid: tuple[int, int, int], first: int, blocks: int) -> tuple[Shape, Shape | None]:
    """The extents of the box of a grid that such blocks fill, and where it begins; None if they do not fill one."""
    width, height, _ = grid
    begin = first % width, first // width % height, first // (width * height)
    if begin[0] + blocks <= width:
        return (blocks, 1, 1), begin
    rows, rest = divmod(blocks, width)
    if begin[0] == rest == 0 and begin[1] + rows <= height:
        return (width, rows, 1), begin
    layers, rest = divmod(rows, height)
    if begin[:2] == (0, 0) and blocks == width * height * layers:
        return (width, height, layers), begin
    return (blocks, 1, 1), None


@dataclass(slots=True)
class Launch:
    """One launch of a kernel: everything that its chunks share."""

    name: str
    code: Code
    codes: dict[str, Code]
    """Every function of the module, by name."""
    callable_at: dict[int, str]
    """The names of functions by the addresses that stand for them."""
    memory: AddressSpace
    heap: Heap
    helpers: Namespace
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    parameters: Array
    """The launch's buffer, which kernels can read through a pointer too."""
    shared: dict[str, int]
    """Where each `.shared` variable begins."""
    shared_bytes: int
    output: Callable[[bytes], None]
    shape: dict[str, int]
    """The special registers that are the same for every lane."""

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    def chunks(self) -> Iterator[Chunk]:
        """All blocks of the grid, in order, a chunk at a time."""
        lane_bytes = self.code.frame.size + sum(np.dtype(dtype).itemsize for dtype in self.code.dtypes)
        block_bytes = self.shared_bytes + self.threads * lane_bytes
        most = max(1, min(CHUNK_LANES // self.threads, CHUNK_BYTES // max(1, block_bytes)))
        each, line = _blocks_together(self.grid, most)
        total, first = self.grid[0] * self.grid[1] * self.grid[2], 0
        while first < total:
            blocks = min(each, line - first % line)
            yield self.chunk(first, blocks)
            first += blocks

    def chunk(self, first: int, blocks: int) -> Chunk:
        """Some of the grid's blocks."""
        return Chunk(self, first, blocks)

    def run(self) -> None:
        """Run the whole grid.  Chunks that do not end soon take turns, since one may wait for another."""
        waiting = self.chunks()
        running: deque[Chunk] = deque()
        try:
            while True:
                fresh = next(waiting, None) if len(running) < RESIDENT_CHUNKS else None
                if fresh is not None:
                    running.appendleft(fresh)
                if not running:
                    return
                if running[0].run(STEPS_PER_TURN):
                    running.popleft().close()
                else:
                    running.rotate(-1)
                    # Nothing here ends soon, so let another thread have the interpreter.
                    time.sleep(0)
        finally:
            for chunk in running:
                chunk.close()


@dataclass(slots=True)
class Parked:
    """Lanes that wait: for their block at a barrier, or for the lanes of `mask` in their warp."""

    activation: Activation
    target: int
    lanes: Array
    mask: Array | None = None


@dataclass(slots=True)
class Barrier:
    """One of the numbered barriers of the blocks of a chunk."""

    arrivals: Array
    """How often each lane has come."""
    wanted: Array
    """How many must come; 0 stands for every live lane."""
    parked: list[Parked]


class Chunk:
    """Some thread blocks of a launch, run together."""

    def __init__(self, launch: Launch, first: int, blocks: int) -> None:
        self.launch = launch
        self.layout: Layout = _layout(launch.block, blocks)
        self.first = first
        self.specials: dict[str, Array] = {}
        self.axes: Axes | None = None
        """The axes of its lanes, if it is worth knowing what is affine."""
        if self.layout.lanes >= AFFINE_LANES:
            self.axes = Axes(launch, first, blocks)
        self.shared: SharedMemory = SharedMemory(launch.memory, blocks, launch.shared_bytes, self.layout.block_of)
        self.steps: int = 0
        self.live: Array = np.full(blocks, launch.threads)
        self.alive: Array = np.ones(self.layout.lanes, np.bool_)
        self.exits: int = 0
        self.barriers: dict[int, Barrier] = {}
        self.at_meeting: list[Parked] = []
        self.activations: list[Activation] = []
        self.activation(launch.code, None, self.layout.lanes).post(0, None)

    def activation(self, code: Code, origin: Lanes, count: int, caller: Caller | None = None) -> Activation:
        """A function run by some lanes of the chunk."""
        return Activation(self, code, origin, count, caller)

    def close(self) -> None:
        """Give back the memory that the chunk made accessible."""
        for activation in self.activations:
            activation.close()
        self.shared.close()

    def special(self, name: str) -> Array:
        """A special register over all lanes of the chunk."""
        if name in _OF_THREADS:
            return self.layout.special(name)
        found = self.specials.get(name)
        if found is None:
            of_blocks = self._of_blocks(name).astype(np.uint32)
            found = self.specials[name] = np.repeat(of_blocks, self.launch.threads)
        return found

    def _of_blocks(self, name: str) -> Array:
        """A special register that is the same in all lanes of a block, for each block."""
        number = self.first + np.arange(self.layout.blocks)
        if name == "smid":
            return number % MULTIPROCESSORS
        sizes = self.launch.cluster
        if name == "cluster_ctarank":
            x, y, z = (self._of_blocks(f"cluster_ctaid.{axis}") for axis in "xyz")
            return x + sizes[0] * (y + sizes[1] * z)
        register, _, axis = name.partition(".")
        at = "xyz".index(axis)
        width, height, _ = self.launch.grid
        mine = (number, number // width, number // (width * height))[at] % self.launch.grid[at]
        return {
            "ctaid": lambda: mine,
            "clusterid": lambda: mine // sizes[at],
            "cluster_ctaid": lambda: mine % sizes[at],
        }[register]()

    # The schedule

    def run(self, steps: int) -> bool:
        """Run up to `steps` basic blocks (or a few more); true when every lane has exited."""
        stop = self.steps + steps
        while self.steps < stop:
            activation = self._choose()
            if activation is None:
                return True
            number, lanes = activation.take(self.steps % FAIRNESS == 0)
            self._follow(activation, number, lanes)
        return False

    def _follow(self, activation: Activation, number: int, lanes: Lanes) -> None:
        """Run a group as long as it stays together and no other group is due."""
        blocks = activation.blocks
        pending = activation.pending
        following: int | None = number
        try:
            while following is not None:
                number = following
                following = blocks[number](activation, lanes)
                self.steps += 1
                if following is not None and (pending or self.steps % FAIRNESS == 0):
                    activation.post(following, lanes)
                    return
        except DeviceFault as fault:
            raise DeviceFault(fault.status, f"kernel {self.launch.name}: {fault.message}") from None

    def _choose(self) -> Activation | None:
        """The innermost activation that can run; from time to time, the one with the oldest group."""
        while True:
            runnable = [activation for activation in self.activations if activation.pending]
            if runnable:
                if self.steps % FAIRNESS == 0:
                    return min(runnable, key=lambda activation: min(activation.ages.values()))
                return runnable[-1]
            if self.at_meeting:
                # Whoever is missing can never come: undefined behaviour in CUDA.  Go on with those who are here.
                self._meet_again(force=True)
            elif any(barrier.parked for barrier in self.barriers.values()):
                raise self.stuck()
            else:
                return None

    def stuck(self) -> DeviceFault:
        """The fault of lanes that wait at a barrier for others that never come."""
        return DeviceFault(LAUNCH_FAILED, "lanes wait at a barrier that the others never reach")

    def resume(self, activation: Activation, target: int, lanes: Array) -> None:
        """Lanes that have waited for others go on."""
        activation.post(target, lanes)

    # Barriers

    def barrier(
        self, activation: Activation, number: Any, count: Any, waits: bool, lanes: Lanes, target: int
    ) -> int | None:
        """Lanes arrive at a barrier.  The next block when nobody else is missing or they do not wait, else None."""
        whole = lanes is None and activation.origin is None and not self.exits
        if whole and waits and count is None and not np.ndim(number):
            return target
        mine = activation.indices(lanes)
        numbers = np.broadcast_to(number, mine.shape)
        counts = np.broadcast_to(0 if count is None else count, mine.shape)
        for one in np.unique(numbers).tolist():
            chosen = numbers == one
            self._arrive(one, Parked(activation, target, mine[chosen]), counts[chosen], waits)
        return None if waits else target

    def _arrive(self, number: int, parked: Parked, counts: Array, waits: bool) -> None:
        """Lanes arrive at one barrier; `counts` has how many lanes each of them says that it is for, or 0."""
        if number >= BARRIERS:
            raise DeviceFault(LAUNCH_FAILED, f"there is no barrier {number}")
        barrier = self.barriers.get(number)
        if barrier is None:
            zeros = np.zeros(self.alive.size, np.int64), np.zeros(self.live.size, np.int64)
            barrier = self.barriers[number] = Barrier(*zeros, [])
        lanes = parked.activation.chunk_lanes(parked.lanes)
        barrier.arrivals[lanes] += 1
        barrier.wanted[self.layout.block_of[lanes]] = counts
        if waits:
            barrier.parked.append(parked)
        self._open(barrier)

    def _arrived(self, barrier: Barrier) -> Array:
        """How many lanes of each block have come, as the block's barrier counts them.

        One for so many lanes counts whole warps: those that a warp lacks, or that have exited, come with the others.
        """
        blocks = self.live.size
        arrived = np.bincount(self.layout.block_of, barrier.arrivals, blocks)
        if barrier.wanted.any():
            warps = self.layout.warps
            here = barrier.arrivals > 0
            missing = 32 - np.bitwise_count(warps.bits(np.flatnonzero(self.alive | here))).astype(np.int64)
            missing[warps.bits(np.flatnonzero(here)) == 0] = 0
            arrived += np.where(barrier.wanted > 0, missing.reshape(blocks, -1).sum(1), 0)
        return arrived

    def _open(self, barrier: Barrier) -> None:
        """Let the blocks go on of which as many lanes have arrived as must."""
        wanted = np.where(barrier.wanted > 0, barrier.wanted, self.live)
        arrived = self._arrived(barrier)
        ready = (arrived >= wanted) & (arrived > 0)
        if not ready.any():
            return
        barrier.arrivals[ready[self.layout.block_of]] = 0
        waiting, barrier.parked = barrier.parked, []
        for parked in waiting:
            going = ready[self.layout.block_of[parked.activation.chunk_lanes(parked.lanes)]]
            if going.any():
                self.resume(parked.activation, parked.target, parked.lanes[going])
            if not going.all():
                barrier.parked.append(Parked(parked.activation, parked.target, parked.lanes[~going]))

    # Warps

    def meet(self, activation: Activation, mask: Any, lanes: Lanes, target: int) -> int | None:
        """Lanes arrive at a warp-wide instruction, and wait for the live lanes that their mask names."""
        if lanes is None and activation.origin is None:
            return target
        mine = activation.indices(lanes)
        masks: Array = np.broadcast_to(np.asarray(mask, np.uint32), mine.shape)
        earlier = [parked for parked in self.at_meeting if parked.activation is activation and parked.target == target]
        if not earlier and self._complete(activation, mine, masks).all():
            return target
        for parked in earlier:
            assert parked.mask is not None
            mine, masks = np.concatenate((parked.lanes, mine)), np.concatenate((parked.mask, masks))
        self.at_meeting = [parked for parked in self.at_meeting if parked not in earlier]
        self._settle(Parked(activation, target, mine, masks))
        return None

    def _complete(self, activation: Activation, lanes: Array, masks: Array) -> Array:
        """For each lane, whether all live lanes of its mask are among `lanes`."""
        warps = self.layout.warps
        where = activation.chunk_lanes(lanes)
        present = warps.bits(where)
        living = warps.bits(np.flatnonzero(self.alive)) if self.exits else warps.full
        mine = warps.index[where]
        complete: Array = (masks & living[mine] & ~present[mine]) == 0
        return complete

    def _settle(self, parked: Parked) -> None:
        """Let those lanes go on whose mask is complete; the others wait."""
        assert parked.mask is not None
        going = self._complete(parked.activation, parked.lanes, parked.mask)
        if going.any():
            self.resume(parked.activation, parked.target, np.sort(parked.lanes[going]))
        if not going.all():
            self.at_meeting.append(Parked(parked.activation, parked.target, parked.lanes[~going], parked.mask[~going]))

    def _meet_again(self, force: bool) -> None:
        """Some lanes exited, or nothing else can run: look at those who wait again."""
        waiting, self.at_meeting = self.at_meeting, []
        for parked in waiting:
            if force:
                self.resume(parked.activation, parked.target, np.sort(parked.lanes))
            else:
                self._settle(parked)

    # Ends

    def retire(self, lanes: Lanes) -> None:
        """These lanes of the chunk have exited; they no longer count at barriers."""
        if lanes is None:
            self.exits += self.alive.size
            self.alive[:] = False
            self.live[:] = 0
        elif isinstance(lanes, Box):
            self.exits += lanes.size
            lanes.put(self.alive, False)
            self.live = np.count_nonzero(self.alive.reshape(self.live.size, -1), axis=1)
        else:
            self.exits += lanes.size
            self.alive[lanes] = False
            self.live -= np.bincount(self.layout.block_of[lanes], minlength=self.live.size)
        for barrier in self.barriers.values():
            if barrier.parked:
                self._open(barrier)
        if self.at_meeting:
            self._meet_again(force=False)


class Activation:
    """One function run by some lanes.  Generated code sees it as `A`, and its lanes as indices from 0."""

    def __init__(self, chunk: Chunk, code: Code, origin: Lanes, count: int, caller: Caller | None = None) -> None:
        launch = chunk.launch
        self.chunk = chunk
        self.code = code
        self.blocks: list[Any] = code.ready(launch.helpers)
        self.origin = origin
        self.count = count
        self.axes: Axes | None = chunk.axes if origin is None else None
        self.caller = caller
        self.depth: int = caller.activation.depth + 1 if caller else 0
        if self.depth > CALL_DEPTH:
            raise DeviceFault(STACK_ERROR, f"more than {CALL_DEPTH} calls inside of each other")
        self.memory: AddressSpace = launch.memory
        self.shape: dict[str, int] = launch.shape
        self.shared: dict[str, int] = launch.shared
        self.parameter_base: int = int(launch.parameters.ctypes.data)
        self.R: list[Array | Affine | Cut] = [self.same(0, dtype) for dtype in code.dtypes]
        self.U: list[Any] = [storage(code.function.registers[name])(0) for name in code.uniform]
        self.pending: dict[int, list[Lanes]] = {}
        self.ages: dict[int, int] = {}
        self.gone: int = 0
        self.returned: list[Array] = []
        self.frame: Array = _aligned_zeros(count, -(-code.frame.size // 16) * 16)
        self.frame_views: dict[Any, Array] = {}
        self.exposed: bool = code.frame.exposed and self.frame.size > 0
        if self.exposed:
            self.memory.add(int(self.frame.ctypes.data), self.frame.size, LOCAL)
        chunk.activations.append(self)

    def close(self) -> None:
        """Take the frame out of the address space."""
        if self.exposed:
            self.memory.remove(int(self.frame.ctypes.data))
            self.exposed = False

    # Lanes and groups

    def indices(self, lanes: Lanes) -> Array:
        """The lanes as an array of indices."""
        return np.arange(self.count) if lanes is None else np.asarray(lanes)

    def chunk_lanes(self, lanes: Array) -> Array:
        """The same lanes as the chunk counts them."""
        return lanes if self.origin is None else self.origin[lanes]

    def _whole(self, lanes: Lanes) -> Array:
        return self.chunk_lanes(self.indices(lanes))

    def post(self, number: int, lanes: Lanes) -> None:
        """Put lanes at the beginning of a block."""
        if number in self.pending:
            self.pending[number].append(lanes)
        else:
            self.pending[number] = [lanes]
            self.ages[number] = self.chunk.steps

    def take(self, oldest: bool) -> tuple[int, Lanes]:
        """The group that runs next, as one sorted set of lanes."""
        number = min(self.ages, key=self.ages.__getitem__) if oldest else min(self.pending)
        groups = self.pending.pop(number)
        del self.ages[number]
        lanes = groups[0]
        if lanes is None or sum(group.size for group in groups if group is not None) == self.count:
            return number, None
        if len(groups) > 1:
            # Each group is sorted, and a stable sort merges what is sorted already in linear time.
            lanes = np.sort(np.concatenate([self.indices(group) for group in groups]), kind="stable")
        return number, lanes

    # What generated code calls: registers

    def same(self, value: Any, dtype: Any) -> Array | Affine:
        """A register with one value in all lanes."""
        if self.axes:
            return Affine.same(self.axes.shape, value, dtype)
        return np.full(self.count, value, dtype)

    def gather(self, register: int, lanes: Array | Box) -> Any:
        """A register's value in some lanes."""
        held = self.R[register]
        if isinstance(lanes, Box):
            return held.part(lanes) if isinstance(held, Affine) else lanes.of(np.asarray(held))
        return held.take(lanes, mode="clip")

    def put(self, register: int, lanes: Array | Box, value: Any) -> None:
        """Change a register in some lanes."""
        held = self.R[register]
        if not isinstance(held, np.ndarray):
            held = self.R[register] = held.written()
        if isinstance(lanes, Box):
            lanes.put(held, value)
        else:
            held[lanes] = value

    # What generated code calls: control

    def split(self, predicate: Any, lanes: Lanes, taken: int, other: int) -> int | None:
        """Send lanes to one of two blocks; the block to go on with, or None when both have lanes waiting."""
        if isinstance(predicate, Affine):
            return taken if predicate.base else other
        if isinstance(predicate, Cut):
            self._cut(predicate, lanes, taken, other)
            return None
        count = np.count_nonzero(predicate)
        if count == predicate.size:
            return taken
        if count == 0:
            return other
        yes, no = np.flatnonzero(predicate), np.flatnonzero(~predicate)
        if lanes is not None:
            yes, no = lanes[yes], lanes[no]
        self.post(taken, yes)
        self.post(other, no)
        return None

    def _cut(self, predicate: Cut, lanes: Lanes, taken: int, other: int) -> None:
        assert self.axes
        box = lanes if isinstance(lanes, Box) else self.axes.box
        for target, parts in zip((taken, other), predicate.boxes(box), strict=True):
            for part in parts:
                self.post(target, part)

    def scatter(self, predicate: Any, lanes: Lanes, taken: int, other: int) -> None:
        """Send lanes to one of two blocks, where they wait to be called."""
        following = self.split(predicate, lanes, taken, other)
        if following is not None:
            self.post(following, lanes)

    def repeats(self, stay: Any, number: int) -> bool:
        """Whether the lanes that stay in a block may go on with it at once: there are some, and no group is due."""
        steps = self.chunk.steps + 1
        due = steps % FAIRNESS == 0 or (self.pending and min(self.pending) <= number)
        if due or not stay.any():
            return False
        self.chunk.steps = steps
        return True

    def part(self, stay: Any, alive: Any, lanes: Lanes, other: int, patient: bool) -> tuple[Array, Array, Array | None]:
        """Send the lanes that leave a loop to another block: those of the `alive` that do not stay.

        These lanes, and their places in the group; and if the group is to be narrowed, the places of those that stay.
        """
        if isinstance(stay, Affine):
            return _NOBODY, _NOBODY, None
        leaving = np.flatnonzero(stay != alive)
        gone = self.among(lanes, leaving)
        if leaving.size:
            self.post(other, gone)
        enough = PATIENCE * stay.size if patient else stay.size
        return gone, leaving, np.flatnonzero(stay) if np.count_nonzero(stay) < enough else None

    @staticmethod
    def among(lanes: Lanes, places: Array) -> Array:
        """The lanes at some places of a group."""
        return places if lanes is None else np.asarray(lanes)[places]

    def switch(self, index: Any, lanes: Lanes, targets: tuple[int, ...]) -> None:
        """`brx.idx`: lanes go to the entry of a table."""
        mine = self.indices(lanes)
        chosen: Array = np.broadcast_to(index, mine.shape)
        if int(chosen.max()) >= len(targets):
            raise DeviceFault(LAUNCH_FAILED, "an indirect branch goes beyond its table")
        for number in np.unique(chosen).tolist():
            self.post(targets[number], mine[chosen == number])

    def barrier(self, number: Any, count: Any, waits: bool, lanes: Lanes, target: int) -> int | None:
        """`bar.sync` and `bar.arrive`: wait for the lanes of the block, or for as many as `count` says."""
        return self.chunk.barrier(self, number, count, waits, lanes, target)

    def meet(self, mask: Any, lanes: Lanes, target: int) -> int | None:
        """`bar.warp.sync` and its like: wait for the lanes of the mask."""
        return self.chunk.meet(self, mask, lanes, target)

    def trap(self, lanes: Lanes) -> None:
        """`trap`: fail the launch."""
        first = self._whole(lanes)[:1]
        raise DeviceFault(LAUNCH_FAILED, f"trap in {self.position(first)}")

    def position(self, lane: Array) -> str:
        """Where a lane of the chunk is in the grid, for messages."""
        block, thread = (self.coordinates(lane, name)[0] for name in ("ctaid", "tid"))
        return f"block {block}, thread {thread}"

    def coordinates(self, lanes: Array, name: str) -> list[list[int]]:
        """The three components of a special register, `tid` for example, for lanes as the chunk counts them."""
        return np.stack([self.chunk.special(f"{name}.{axis}")[lanes] for axis in "xyz"], axis=1).tolist()

    def leave(self, lanes: Lanes) -> None:
        """Lanes return from the function; from the kernel itself, they exit."""
        if self.caller is None:
            self.exit(lanes)
            return
        mine = self.indices(lanes)
        self.returned.append(mine)
        self._left(mine.size)

    def exit(self, lanes: Lanes) -> None:
        """Lanes end for good, however deep they are in calls."""
        self._left(self.count if lanes is None else lanes.size)
        self.chunk.retire(lanes if self.origin is None else self._whole(lanes))

    def _left(self, count: int) -> None:
        """When the last lane is gone, those that returned go on together in the caller."""
        self.gone += count
        if self.gone < self.count:
            return
        self.close()
        self.chunk.activations.remove(self)
        if self.caller and self.returned:
            self.caller.resume(self, np.sort(np.concatenate(self.returned)))
        if self.caller:
            lost = self.count - sum(part.size for part in self.returned)
            if lost:
                self.caller.activation._left(lost)

    def call(self, name: str, given: list[int], taken: list[int], lanes: Lanes, target: int) -> None:
        """Call a device function: its activation gets copies of the `.param` variables."""
        code = self.chunk.launch.codes[name]
        mine = self.indices(lanes)
        child = self.chunk.activation(code, self.chunk_lanes(mine), mine.size, Caller(self, mine, taken, target))
        for source, parameter in zip(given, code.function.parameters, strict=True):
            at = code.frame.offsets[parameter.name]
            child.frame[:, at : at + parameter.size] = self.frame[mine, source : source + parameter.size]
        child.post(0, None)

    def call_through(self, address: Any, given: list[int], taken: list[int], lanes: Lanes, target: int) -> None:
        """Call through a pointer: one activation for each function that a lane points to."""
        mine = self.indices(lanes)
        addresses: Array = np.broadcast_to(address, mine.shape)
        for number in np.unique(addresses).tolist():
            name = self.chunk.launch.callable_at.get(number)
            if name is None:
                raise DeviceFault(LAUNCH_FAILED, f"a call to {number:#x}, which is no function")
            self.call(name, given, taken, mine[addresses == number], target)

    # What generated code calls: values

    def special(self, name: str, lanes: Lanes) -> Array | Affine:
        """A special register's value in each lane."""
        affine = self.axes.special(name) if self.axes else None
        if affine is not None and (lanes is None or isinstance(lanes, Box)):
            return affine if lanes is None else affine.part(lanes)
        whole = self.chunk.special(name)
        if self.origin is not None:
            return whole[self._whole(lanes)]
        return whole if lanes is None else whole[self.indices(lanes)]

    def clock(self, name: str) -> Any:
        """`%clock`, `%globaltimer` and their halves."""
        now = time.time_ns() if name.startswith("globaltimer") else time.perf_counter_ns()
        if name.endswith("_hi"):
            return np.uint32(now >> 32 & 0xFFFFFFFF)
        return np.uint64(now) if name in ("clock64", "globaltimer") else np.uint32(now & 0xFFFFFFFF)

    def parameter(self, offset: int, dtype: Any) -> Any:
        """A kernel's parameter, the same for all lanes."""
        return self.chunk.launch.parameters[offset : offset + dtype.itemsize].view(dtype)[0]

    def frame_address(self, offset: int, lanes: Lanes) -> Array:
        """The address of a variable in the frame of each lane."""
        base = int(self.frame.ctypes.data) + offset
        return (self.indices(lanes) * self.frame.shape[1] + base).astype(np.uint64)

    def _column(self, offset: int, dtype: Any) -> Array:
        view = self.frame_views.get(dtype)
        if view is None:
            view = self.frame_views[dtype] = self.frame.view(dtype)
        column: Array = view[:, offset // dtype.itemsize]
        return column

    def frame_load(self, offset: int, dtype: Any, lanes: Lanes) -> Array:
        """Read a variable of each lane's frame."""
        column = self._column(offset, dtype)
        return column.copy() if lanes is None else column[self.indices(lanes)]

    def frame_store(self, offset: int, dtype: Any, lanes: Lanes, value: Any) -> None:
        """Write a variable of each lane's frame."""
        self._column(offset, dtype)[slice(None) if lanes is None else self.indices(lanes)] = value

    def shared_access(self, offsets: Any, lanes: Lanes) -> SharedAccess | StridedSharedAccess:
        """Offsets into the shared memory of each lane's block, checked."""
        if self.axes and not isinstance(lanes, np.ndarray) and not isinstance(offsets, np.ndarray):
            blocks = self.axes.blocks.part(lanes or self.axes.box)
            return self.chunk.shared.strided_access(offsets, blocks, lanes)
        where = None if lanes is None and self.origin is None else self._whole(lanes)
        return self.chunk.shared.access(offsets, where)

    def shared_addresses(self, offsets: Any, sizes: Any, lanes: Lanes) -> Array:
        """The generic addresses of so many bytes of the shared memory of each lane's block, checked."""
        return self.chunk.shared.addresses(offsets, sizes, self._whole(lanes))

    def shared_window(self, lanes: Lanes) -> Array:
        """The address at which each lane's shared memory begins."""
        return self.chunk.shared.window(self._whole(lanes))

    def in_space(self, space: str, addresses: Any, lanes: Lanes) -> Array:
        """`isspacep`: in which lanes the address lies in shared, local or global memory."""
        where = self._whole(lanes)
        addresses = np.broadcast_to(addresses, where.shape)
        shared = self.chunk.shared.holds(addresses, where)
        if space == "shared":
            return shared
        local: Array = np.zeros(where.size, np.bool_)
        for activation in self.chunk.activations:
            start = np.uint64(activation.frame.ctypes.data)
            local |= (addresses >= start) & (addresses < start + np.uint64(activation.frame.size))
        return local if space == "local" else ~(shared | local)

    # What generated code calls: warps

    def shuffle(self, mode: str, value: Any, lane: Any, clamp: Any, lanes: Lanes) -> tuple[Array, Array]:
        """`shfl.sync`: other lanes' values, and whether each was in range."""
        return self.chunk.layout.warps.shuffle(mode, self._whole(lanes), value, lane, clamp)

    def vote(self, mode: str, predicate: Any, mask: Any, lanes: Lanes) -> Array:
        """`vote.sync`: a predicate over the lanes of a warp."""
        return self.chunk.layout.warps.vote(mode, self._whole(lanes), predicate, mask)

    def match(self, mode: str, value: Any, mask: Any, lanes: Lanes) -> tuple[Array, Array]:
        """`match.sync`: which lanes of the warp hold the same value, and whether all do."""
        return self.chunk.layout.warps.match(mode, self._whole(lanes), value, mask)

    def redux(self, mode: str, value: Any, mask: Any, lanes: Lanes) -> Array:
        """`redux.sync`: a sum, an extreme or a bitwise combination over the lanes of a warp."""
        return self.chunk.layout.warps.reduce(mode, self._whole(lanes), value, mask)

    def active_mask(self, lanes: Lanes) -> Array:
        """`activemask`: the lanes of each warp that run together now."""
        warps, where = self.chunk.layout.warps, self._whole(lanes)
        return warps.bits(where)[warps.index[where]]

    def block_vote(self, mode: str, predicate: Any, number: Any, lanes: Lanes) -> Array:
        """`bar.red`: over the lanes of each block that waited at the barrier of that number."""
        group = self.chunk.layout.block_of[self._whole(lanes)] * BARRIERS + np.asarray(number).astype(np.int64)
        held: Array = np.broadcast_to(predicate, group.shape)
        size = self.chunk.live.size * BARRIERS
        true = np.bincount(group[held], minlength=size)
        if mode == "popc":
            return true.astype(np.uint32)[group]
        wanted = np.bincount(group, minlength=size) if mode == "and" else np.ones(size, np.int64)
        return (true >= wanted)[group]

    # What generated code calls: functions that the device runtime has

    def builtin(self, name: str, given: list[int], taken: list[int], lanes: Lanes, target: int) -> int:
        """Call a function of the device runtime, such as `malloc` or `vprintf`; returns the block to go on with."""
        result = getattr(self, f"_{name.strip('_')}")(given, lanes)
        if taken and result is not None:
            self.frame_store(taken[0], result.dtype, lanes, result)
        return target

    def _vprintf(self, given: list[int], lanes: Lanes) -> Array:
        pointers = [self.frame_load(at, np.dtype(np.uint64), lanes).tolist() for at in given]
        texts, counts = [], []
        for pattern, arguments in zip(*pointers, strict=True):
            text, count = format_text(self.memory, self.memory.text(pattern), arguments)
            texts.append(text)
            counts.append(count)
        self.chunk.launch.output(b"".join(texts))
        return np.array(counts, np.uint32)

    def _assertfail(self, given: list[int], lanes: Lanes) -> None:
        kinds = (np.uint64, np.uint64, np.uint32, np.uint64)
        columns = [self.frame_load(at, np.dtype(kind), lanes).tolist() for at, kind in zip(given, kinds, strict=False)]
        where = self._whole(lanes)
        blocks, threads = self.coordinates(where, "ctaid"), self.coordinates(where, "tid")
        lines = []
        for message, file, line, function, block, thread in zip(*columns, blocks, threads, strict=True):
            text = self.memory.text
            lines.append(assertion_text(text(message), text(file), line, text(function), block, thread))
        self.chunk.launch.output(b"".join(lines))
        raise DeviceFault(ASSERT, lines[0].decode("utf-8", "replace").strip())

    def _malloc(self, given: list[int], lanes: Lanes) -> Array:
        sizes = self.frame_load(given[0], np.dtype(np.uint64), lanes)
        return np.array([self.chunk.launch.heap.allocate(size) for size in sizes.tolist()], np.uint64)

    def _free(self, given: list[int], lanes: Lanes) -> None:
        for address in self.frame_load(given[0], np.dtype(np.uint64), lanes).tolist():
            self.chunk.launch.heap.free(address)


@dataclass(slots=True)
class Caller:
    """Where a device function returns to."""

    activation: Activation
    lanes: Array
    results: list[int]
    target: int

    def resume(self, callee: Activation, returned: Array) -> None:
        """Copy the results into the caller's `.param` variables, and let its lanes go on."""
        lanes = self.lanes[returned]
        for at, variable in zip(self.results, callee.code.function.returns, strict=False):
            source = callee.code.frame.offsets[variable.name]
            self.activation.frame[lanes, at : at + variable.size] = callee.frame[
                returned, source : source + variable.size
            ]
        self.activation.post(self.target, lanes)


def _aligned_zeros(rows: int, columns: int) -> Array:
    """Zeros in rows that begin at multiples of 16 bytes."""
    size = rows * columns
    memory: Array = np.zeros(size + 16, np.uint8)
    skipped = -memory.ctypes.data % 16
    return memory[skipped : skipped + size].reshape(rows, columns)
