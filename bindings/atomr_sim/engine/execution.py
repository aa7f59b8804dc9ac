"""The execution of translated kernels: launches, chunks of thread blocks, the schedule, barriers and warps.

A **chunk** is a number of whole thread blocks with some thousand lanes. An **activation** is one function that some
lanes of a chunk run: the kernel itself, or a device function that they called together. In an activation the lanes are
in groups, one for each basic block that they have reached. The group at the lowest block runs next, so lanes on
different paths meet where the paths join. From time to time the oldest group runs instead, so that a lane that waits
for another one does not prevent it from running.

A barrier takes its lanes out of their group until all live lanes of the thread block are waiting too, or the number of
lanes that the instruction gives. Warp-wide instructions wait in the same way for the lanes in their mask.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..ptx.codegen import Code, Namespace
from .activation import BARRIERS, FAIRNESS, Activation, Caller, Lanes
from .affine import Box
from .layout import OF_THREADS, Axes, Layout, blocks_together, layout_of
from .memory import LAUNCH_FAILED, AddressSpace, Array, DeviceFault
from .shared import SharedMemory


class Heap(Protocol):
    """The heap from which kernels allocate memory."""

    def allocate(self, size: int) -> int:
        """Return the address of a new block of this many bytes; 0 when there is no room."""

    def free(self, address: int) -> None:
        """Give a block back."""


CHUNK_LANES = 131072
AFFINE_LANES = 16384
"""The number of lanes in a chunk below which computing arrays costs less than tracking affine values."""
CHUNK_BYTES = 128 << 20
"""The limit in bytes for shared memory, frames and registers of a chunk. It bounds what a launch takes, and the time
until its process ends."""
RESIDENT_CHUNKS = 2
"""The number of chunks that run at a time: the lanes of a large GPU. Blocks that wait for each other must fit."""
STEPS_PER_TURN = 2048
MULTIPROCESSORS = 108


@dataclass(slots=True)
class Launch:
    """One launch of a kernel: the data that its chunks share."""

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
    """The offset of each `.shared` variable."""
    shared_bytes: int
    output: Callable[[bytes], None]
    shape: dict[str, int]
    """The special registers that are the same for every lane."""

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    def chunks(self) -> Iterator[Chunk]:
        """Yield all blocks of the grid, in order, a chunk at a time."""
        lane_bytes = self.code.frame.size + sum(np.dtype(dtype).itemsize for dtype in self.code.dtypes)
        block_bytes = self.shared_bytes + self.threads * lane_bytes
        most = max(1, min(CHUNK_LANES // self.threads, CHUNK_BYTES // max(1, block_bytes)))
        each, line = blocks_together(self.grid, most)
        total, first = self.grid[0] * self.grid[1] * self.grid[2], 0
        while first < total:
            blocks = min(each, line - first % line)
            yield self.chunk(first, blocks)
            first += blocks

    def chunk(self, first: int, blocks: int) -> Chunk:
        """Some of the grid's blocks."""
        return Chunk(self, first, blocks)

    def run(self) -> None:
        """Run the whole grid. Long chunks take turns, since one may wait for another."""
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
                    # No chunk ends soon, so let another thread have the interpreter.
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
    """The number of times that each lane has arrived."""
    wanted: Array
    """The number of lanes that must arrive; 0 means every live lane."""
    parked: list[Parked]


class Chunk:
    """Some thread blocks of a launch, run together."""

    def __init__(self, launch: Launch, first: int, blocks: int) -> None:
        self.launch = launch
        self.layout: Layout = layout_of(launch.block, blocks)
        self.first = first
        self.specials: dict[str, Array] = {}
        self.axes: Axes | None = None
        """The axes of its lanes, if tracking affine values is worth it."""
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
        """Return a special register over all lanes of the chunk."""
        if name in OF_THREADS:
            return self.layout.special(name)
        found = self.specials.get(name)
        if found is None:
            of_blocks = self._of_blocks(name).astype(np.uint32)
            found = self.specials[name] = np.repeat(of_blocks, self.launch.threads)
        return found

    def _of_blocks(self, name: str) -> Array:
        """Return a special register that is the same in all lanes of a block, for each block."""
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
        """Return the innermost activation that can run; from time to time, the one with the oldest group."""
        while True:
            runnable = [activation for activation in self.activations if activation.pending]
            if runnable:
                if self.steps % FAIRNESS == 0:
                    return min(runnable, key=lambda activation: min(activation.ages.values()))
                return runnable[-1]
            if self.at_meeting:
                # The missing lanes can never arrive: undefined behaviour in CUDA.  Go on with those that are here.
                self._meet_again(force=True)
            elif any(barrier.parked for barrier in self.barriers.values()):
                raise self.stuck()
            else:
                return None

    def stuck(self) -> DeviceFault:
        """Return the fault of lanes that wait at a barrier for others that never arrive."""
        return DeviceFault(LAUNCH_FAILED, "lanes wait at a barrier that the others never reach")

    def resume(self, activation: Activation, target: int, lanes: Array) -> None:
        """Lanes that have waited for others go on."""
        activation.post(target, lanes)

    # Barriers

    def barrier(
        self, activation: Activation, number: Any, count: Any, waits: bool, lanes: Lanes, target: int
    ) -> int | None:
        """Lanes arrive at a barrier. Return the next block when no lane is missing or they do not wait, else None."""
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
        """Lanes arrive at one barrier; `counts` has the number of lanes that each of them gives for it, or 0."""
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
        """Return how many lanes of each block have arrived, as the block's barrier counts them.

        A barrier for a number of lanes counts whole warps: lanes that a warp lacks, or that have exited, count as
        arrived with the others.
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
        """Let the blocks go on for which enough lanes have arrived."""
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
        """Return for each lane whether all live lanes of its mask are among `lanes`."""
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
        """Check the waiting lanes again, after some lanes exited or when nothing else can run."""
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
