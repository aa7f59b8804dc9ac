"""A function that some lanes of a chunk run: their registers, frames and groups, and the functions that generated code
calls.

Lanes sit in groups, one for each basic block that they have reached. The chunk (`engine`) decides which group runs next
and which lanes wait.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ptx.codegen import Code, storage
from .affine import Affine, Box, Cut
from .layout import Axes
from .memory import ASSERT, LAUNCH_FAILED, LOCAL, STACK_ERROR, AddressSpace, Array, DeviceFault
from .printf import assertion_text, format_text
from .shared import SharedAccess, StridedSharedAccess

if TYPE_CHECKING:
    from .execution import Chunk

Lanes = Array | Box | None
"""Indices of lanes within their activation, in order; None means all of them."""
_NOBODY: Array = np.arange(0)

FAIRNESS = 64
PATIENCE = 0.75
"""The share of lanes below which a loop over registers alone drops the lanes that have left it."""
BARRIERS = 16
"""The number of lanes of a thread block."""
CALL_DEPTH = 256


class Activation:
    """One function that some lanes run. Generated code has it as `A`, with its lanes as indices from 0."""

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
            raise DeviceFault(STACK_ERROR, f"more than {CALL_DEPTH} nested calls")
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
        """Return the lanes as an array of indices."""
        return np.arange(self.count) if lanes is None else np.asarray(lanes)

    def chunk_lanes(self, lanes: Array) -> Array:
        """Return the same lanes by their numbers in the chunk."""
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
        """Return the group that runs next, as one sorted set of lanes."""
        number = min(self.ages, key=self.ages.__getitem__) if oldest else min(self.pending)
        groups = self.pending.pop(number)
        del self.ages[number]
        lanes = groups[0]
        if lanes is None or sum(group.size for group in groups if group is not None) == self.count:
            return number, None
        if len(groups) > 1:
            # Each group is sorted, and a stable sort merges sorted runs in linear time.
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
        """Send lanes to one of two blocks. Return the block to go on with, or None when both have lanes waiting."""
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
        """Tell whether the lanes that stay in a block may go on at once: there are some, and no group is due."""
        steps = self.chunk.steps + 1
        due = steps % FAIRNESS == 0 or (self.pending and min(self.pending) <= number)
        if due or not stay.any():
            return False
        self.chunk.steps = steps
        return True

    def part(self, stay: Any, alive: Any, lanes: Lanes, other: int, patient: bool) -> tuple[Array, Array, Array | None]:
        """Send the lanes that leave a loop to another block: those of the `alive` that do not stay.

        Return these lanes and their places in the group. If the group must be narrowed, return the places of those that
        stay.
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
        """Return the lanes at some places of a group."""
        return places if lanes is None else np.asarray(lanes)[places]

    def switch(self, index: Any, lanes: Lanes, targets: tuple[int, ...]) -> None:
        """`brx.idx`: send lanes to the entry of a table."""
        mine = self.indices(lanes)
        chosen: Array = np.broadcast_to(index, mine.shape)
        if int(chosen.max()) >= len(targets):
            raise DeviceFault(LAUNCH_FAILED, "an indirect branch goes beyond its table")
        for number in np.unique(chosen).tolist():
            self.post(targets[number], mine[chosen == number])

    def barrier(self, number: Any, count: Any, waits: bool, lanes: Lanes, target: int) -> int | None:
        """`bar.sync` and `bar.arrive`: wait for the lanes of the block, or for `count` lanes."""
        return self.chunk.barrier(self, number, count, waits, lanes, target)

    def meet(self, mask: Any, lanes: Lanes, target: int) -> int | None:
        """`bar.warp.sync` and similar instructions: wait for the lanes of the mask."""
        return self.chunk.meet(self, mask, lanes, target)

    def trap(self, lanes: Lanes) -> None:
        """`trap`: fail the launch."""
        first = self._whole(lanes)[:1]
        raise DeviceFault(LAUNCH_FAILED, f"trap in {self.position(first)}")

    def position(self, lane: Array) -> str:
        """Describe the place of a lane in the grid, for messages."""
        block, thread = (self.coordinates(lane, name)[0] for name in ("ctaid", "tid"))
        return f"block {block}, thread {thread}"

    def coordinates(self, lanes: Array, name: str) -> list[list[int]]:
        """Return the three components of a special register, `tid` for example, for lanes by their numbers in the
        chunk."""
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
        """End lanes, at any depth of calls."""
        self._left(self.count if lanes is None else lanes.size)
        self.chunk.retire(lanes if self.origin is None else self._whole(lanes))

    def _left(self, count: int) -> None:
        """When the last lane is gone, let the lanes that returned go on together in the caller."""
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
                raise DeviceFault(LAUNCH_FAILED, f"a call to {number:#x}, which is not the address of a function")
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
        """Return the address of a variable in the frame of each lane."""
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
        """Return offsets into the shared memory of each lane's block, checked."""
        if self.axes and not isinstance(lanes, np.ndarray) and not isinstance(offsets, np.ndarray):
            blocks = self.axes.blocks.part(lanes or self.axes.box)
            return self.chunk.shared.strided_access(offsets, blocks, lanes)
        where = None if lanes is None and self.origin is None else self._whole(lanes)
        return self.chunk.shared.access(offsets, where)

    def shared_addresses(self, offsets: Any, sizes: Any, lanes: Lanes) -> Array:
        """Return the generic addresses of this many bytes of the shared memory of each lane's block, checked."""
        return self.chunk.shared.addresses(offsets, sizes, self._whole(lanes))

    def shared_window(self, lanes: Lanes) -> Array:
        """Return the address at which each lane's shared memory begins."""
        return self.chunk.shared.window(self._whole(lanes))

    def in_space(self, space: str, addresses: Any, lanes: Lanes) -> Array:
        """`isspacep`: the lanes whose address is in shared, local or global memory."""
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
        """`match.sync`: the lanes of the warp that hold the same value, and whether all do."""
        return self.chunk.layout.warps.match(mode, self._whole(lanes), value, mask)

    def redux(self, mode: str, value: Any, mask: Any, lanes: Lanes) -> Array:
        """`redux.sync`: a sum, an extreme or a bitwise combination over the lanes of a warp."""
        return self.chunk.layout.warps.reduce(mode, self._whole(lanes), value, mask)

    def active_mask(self, lanes: Lanes) -> Array:
        """`activemask`: the lanes of each warp that run together now."""
        warps, where = self.chunk.layout.warps, self._whole(lanes)
        return warps.bits(where)[warps.index[where]]

    def block_vote(self, mode: str, predicate: Any, number: Any, lanes: Lanes) -> Array:
        """`bar.red`: a reduction over the lanes of each block that waited at the barrier of that number."""
        group = self.chunk.layout.block_of[self._whole(lanes)] * BARRIERS + np.asarray(number).astype(np.int64)
        held: Array = np.broadcast_to(predicate, group.shape)
        size = self.chunk.live.size * BARRIERS
        true = np.bincount(group[held], minlength=size)
        if mode == "popc":
            return true.astype(np.uint32)[group]
        wanted = np.bincount(group, minlength=size) if mode == "and" else np.ones(size, np.int64)
        return (true >= wanted)[group]

    # What generated code calls: functions of the device runtime

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
    """The place to which a device function returns."""

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
    """Return zeros in rows that begin at multiples of 16 bytes."""
    size = rows * columns
    memory: Array = np.zeros(size + 16, np.uint8)
    skipped = -memory.ctypes.data % 16
    return memory[skipped : skipped + size].reshape(rows, columns)
