"""Random programs over many arrays of one open device, beside a model: numpy arrays, and numpy views of them."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import hypothesis.strategies as st
import numpy as np
import pytest
import trio
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from atomr_trio import (
    ContextLost,
    Device,
    DeviceArray,
    InvalidArgument,
    Kernel,
    NvrtcOptions,
    overwrites,
    read_only,
    strided,
)
from atomr_trio._arrays.memory import DeviceMemory
from atomr_trio._device.device import core_of
from atomr_trio._memory.arena import ALIGNMENT
from support.rogue import kill_worker, next_generation
from support.strategies import (
    LAYOUTS,
    Way,
    common_parts,
    dtypes,
    examples,
    follow,
    have_common_parts,
    in_time,
    layouts,
    numbers,
    open_lasting_device,
    same,
    seeds,
    sent,
    shapes,
    steps,
    until_idle,
    writable_layouts,
)

pytestmark = pytest.mark.used_workers

KERNELS = r"""
struct Walk { long long shape[8]; long long stride[8]; };

__device__ long long offset_of(const Walk &walk, long long index)
{
    long long offset = 0;
    for (int axis = 7; axis >= 0; --axis) {
        offset += index % walk.shape[axis] * walk.stride[axis];
        index /= walk.shape[axis];
    }
    return offset;
}

template <class T> __global__ void scale(void *x, Walk walk, long long size, T factor, T summand)
{
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
        T &element = *(T *)((char *)x + offset_of(walk, i));
        element = element * factor + summand;
    }
}

template <class T> __global__ void increment(void *y, Walk to, const void *x, Walk from, long long size)
{
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x)
        *(T *)((char *)y + offset_of(to, i)) = *(const T *)((const char *)x + offset_of(from, i)) + 1;
}
"""

AXES = 8
"""Of the arrays that the kernels take."""

BLOCKS, THREADS = 4, 256

WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
"""What a kernel takes an element of so many bytes for, whatever its dtype: so every bit of it must be right."""

WALK = np.dtype([("shape", "i8", AXES), ("stride", "i8", AXES)])


def words(host: np.ndarray) -> np.ndarray:
    """A view of the same elements as unsigned numbers."""
    return host.view(f"u{host.itemsize}")


def walk(array: DeviceArray) -> np.void:
    """What tells a kernel where the elements of any array lie."""
    padding = AXES - array.ndim
    return np.array([((1,) * padding + array.shape, (0,) * padding + array.strides)], WALK)[0]


async def compile_kernels(dev: Device) -> dict[str, Kernel]:
    """Every kernel above, for every word."""
    names = [f"{name}<{word}>" for name in ("scale", "increment") for word in WORDS.values()]
    options = NvrtcOptions(name_expressions=names)
    return {name: await dev.nvrtc.compile(KERNELS, name, options=options) for name in names}


# --- the model --------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Memory:
    """What the arrays of one block share."""

    nbytes: int
    pieces: list[Piece] = attrs.field(factory=list, repr=False)
    freed: bool = False

    @property
    def size(self) -> int:
        """Bytes that the device counts as in use for it."""
        held = self.pieces and not self.freed
        return max(ALIGNMENT, -(-self.nbytes // ALIGNMENT) * ALIGNMENT) if held else 0


@attrs.define(eq=False)
class Piece:
    """An array of the device, and the numpy array that has its elements."""

    array: DeviceArray | None = attrs.field(repr=False)
    host: np.ndarray
    memory: Memory

    def __attrs_post_init__(self) -> None:
        self.memory.pieces.append(self)

    @property
    def computable(self) -> bool:
        """Whether a kernel can take its elements for words. Not every word is a bool."""
        return self.host.itemsize in WORDS and self.host.dtype != np.bool_ and self.host.ndim <= AXES


MAKERS = ["copied", "zeros", "full", "filled"]
"""What can be asked of the device for a new array."""


class ArrayMachine(RuleBasedStateMachine):
    """Hypothesis calls the rules in a thread; what they do to the device is done in trio.

    Use of freed memory has no rules of its own: whatever is done with it must be refused, and nothing sent.
    """

    pieces = Bundle("pieces")

    def __init__(self, dev: Device, kernels: dict[str, Kernel]) -> None:
        super().__init__()
        self.dev = dev
        self.kernels = kernels
        self.generation = dev.generation
        self.memories: list[Memory] = []

    def wait(self, call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Have trio run something, in bounded time."""
        return trio.from_thread.run(in_time, functools.partial(call, *arguments))

    def use(self, used: list[Piece], call: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Do something with arrays, or have it refused if one of them is freed; then see that all views agree."""
        self.wait(self._use, used, functools.partial(call, *arguments))

    async def _use(self, used: list[Piece], call: Callable[[], Awaitable[None]]) -> None:
        if any(piece.memory.freed for piece in used):
            await self._assert_refused(call, "freed")
            return
        await call()
        for piece in used:
            await self._compare(piece.memory)

    async def _assert_refused(self, call: Callable[[], Awaitable[None]], why: str) -> None:
        before = sent(self.dev)
        with pytest.raises(InvalidArgument, match=why):
            await call()
        assert sent(self.dev) == before

    async def _compare(self, memory: Memory) -> None:
        for piece in memory.pieces:
            assert same(await piece.array.to_host(), piece.host)

    # Making and viewing.

    @initialize(chosen=st.lists(dtypes, min_size=1, max_size=2))
    def choose_dtypes(self, chosen):
        self.dtypes = chosen  # few, so that arrays can be copied to each other

    @rule(target=pieces, how=st.sampled_from(MAKERS), shape=shapes(max_length=5), data=st.data(), seed=seeds)
    def make(self, how, shape, data, seed):
        return self.wait(self._make, how, shape, data.draw(st.sampled_from(self.dtypes)), seed)

    async def _make(self, how: str, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> Piece:
        dev, element = self.dev, numbers((), dtype, seed)[()]
        match how:
            case "copied":
                host = numbers(shape, dtype, seed)
                array = await dev.to_device(host)
            case "zeros":
                array, host = dev.zeros(shape, dtype), np.zeros(shape, dtype)
            case "full":
                array, host = dev.full(shape, element, dtype), np.full(shape, element)
            case _:
                array, host = dev.empty(shape, dtype), np.full(shape, element)
                await array.fill(element)
        memory = Memory(host.nbytes)
        self.memories.append(memory)
        return Piece(array, host, memory)

    @rule(target=pieces, piece=pieces, data=st.data())
    def view(self, piece, data):
        way = data.draw(steps(piece.host))
        array = trio.from_thread.run_sync(follow, way, piece.array)
        return Piece(array, follow(way, piece.host), piece.memory)

    # Reading and writing.

    @rule(piece=pieces, layout=writable_layouts)
    def read(self, piece, layout):
        self.use([piece], self._read, piece, layout)

    async def _read(self, piece: Piece, layout: str) -> None:
        out = LAYOUTS[layout](numbers(piece.host.shape, piece.host.dtype))
        await piece.array.copy_to(out)
        assert same(out, piece.host)

    @rule(piece=pieces, layout=layouts, seed=seeds)
    def write(self, piece, layout, seed):
        self.use([piece], self._write, piece, layout, seed)

    async def _write(self, piece: Piece, layout: str, seed: int) -> None:
        values = numbers(piece.host.shape, piece.host.dtype, seed)
        await piece.array.copy_from(LAYOUTS[layout](values))
        piece.host[...] = values

    @rule(piece=pieces, seed=seeds)
    def fill(self, piece, seed):
        self.use([piece], self._fill, piece, seed)

    async def _fill(self, piece: Piece, seed: int) -> None:
        element = numbers((), piece.host.dtype, seed)[()]
        await piece.array.fill(element)
        piece.host[...] = element

    @rule(piece=pieces, data=st.data())
    def copy(self, piece, data):
        source, to, origin = self._draw_partner(piece, self.memories, data)
        self.use([piece, source], self._copy, piece, to, source, origin)

    async def _copy(self, piece: Piece, to: Way, source: Piece, origin: Way) -> None:
        target, values = follow(to, piece.host), follow(origin, source.host)
        copying = functools.partial(follow(to, piece.array).copy_from, follow(origin, source.array))
        if np.may_share_memory(target, values) and not piece.memory.freed:
            await self._assert_refused(copying, "share memory")
        else:
            await copying()
            target[...] = values

    def _draw_partner(self, piece: Piece, memories: list[Memory], data: st.DataObject) -> tuple[Piece, Way, Way]:
        """An array of the same dtype, and ways to parts of both that have one shape."""
        candidates = [each for memory in memories for each in memory.pieces if have_common_parts(each.host, piece.host)]
        other = data.draw(st.sampled_from(candidates or [piece]))
        return other, *data.draw(common_parts(piece.host, other.host))

    # Kernels.

    @rule(piece=pieces, factor=st.integers(0, 255), summand=st.integers(0, 255), wait=st.booleans())
    def scale(self, piece, factor, summand, wait):
        if piece.computable:
            self.use([piece], self._scale, piece, factor, summand, wait)

    async def _scale(self, piece: Piece, factor: int, summand: int, wait: bool = True) -> None:
        elements = words(piece.host)
        kernel = self.kernels[f"scale<{WORDS[elements.itemsize]}>"]
        arguments = (BLOCKS, THREADS, strided(piece.array), walk(piece.array), piece.array.size, factor, summand)
        if wait:
            await kernel.launch(*arguments)
        else:
            kernel.launch_nowait(*arguments)
        np.multiply(elements, factor, out=elements)
        np.add(elements, summand, out=elements)

    @rule(piece=pieces, overwriting=st.booleans(), data=st.data())
    def increment(self, piece, overwriting, data):
        others = [memory for memory in self.memories if memory is not piece.memory]
        source, to, origin = self._draw_partner(piece, others, data)
        if piece.computable and source is not piece:
            self.use([piece, source], self._increment, piece, to, source, origin, overwriting)

    async def _increment(self, piece: Piece, to: Way, source: Piece, origin: Way, overwriting: bool) -> None:
        target, values = follow(to, piece.array), follow(origin, source.array)
        elements = words(follow(to, piece.host))
        marked = overwrites(strided(target)) if overwriting else strided(target)
        kernel = self.kernels[f"increment<{WORDS[elements.itemsize]}>"]
        await kernel.launch(
            BLOCKS, THREADS, marked, walk(target), strided(read_only(values)), walk(values), target.size
        )
        np.add(words(follow(origin, source.host)), 1, out=elements)

    # Several tasks at a time, each with memory of its own.

    @rule(chosen=st.lists(pieces, min_size=2, max_size=5), data=st.data())
    def together(self, chosen, data):
        chosen = list({piece.memory: piece for piece in chosen if not piece.memory.freed}.values())
        names = [data.draw(st.sampled_from(self._tasks_of(piece))) for piece in chosen]
        self.use(chosen, self._all, chosen, names)

    def _tasks_of(self, piece: Piece) -> list[str]:
        return ["read", "write", "fill", "scale"] if piece.computable else ["read", "write", "fill"]

    async def _all(self, chosen: list[Piece], names: list[str]) -> None:
        calls = {
            "read": functools.partial(self._read, layout="C"),
            "write": functools.partial(self._write, layout="C", seed=1),
            "fill": functools.partial(self._fill, seed=2),
            "scale": functools.partial(self._scale, factor=3, summand=4),
        }
        async with trio.open_nursery() as nursery:
            for piece, name in zip(chosen, names, strict=True):
                nursery.start_soon(calls[name], piece)

    # The end of arrays.

    @rule(piece=pieces)
    def free(self, piece):
        trio.from_thread.run_sync(piece.array.free)
        piece.memory.freed = True
        assert all(each.array.state == "freed" for each in piece.memory.pieces)

    @rule(piece=consumes(pieces))
    def drop(self, piece):
        piece.memory.pieces.remove(piece)
        piece.array = None

    def teardown(self):
        try:
            for memory in self.memories:
                if not memory.freed:
                    self.wait(self._compare, memory)
        finally:
            for memory in self.memories:
                for piece in memory.pieces:
                    trio.from_thread.run_sync(piece.array.free)
                memory.freed = True
        self.wait(self._check)

    # What always holds.

    @invariant()
    def everything_is_settled_and_accounted_for(self):
        self.wait(self._check)

    async def _check(self) -> None:
        await until_idle(self.dev)
        assert self.dev.generation == self.generation
        held = [memory.size for memory in self.memories if memory.size]
        if self.dev.statistics().memory.in_use != sum(held):
            gc.collect()  # an array may have been left in a cycle, by a traceback for example
        assert self.dev.statistics().memory.in_use == sum(held)
        assert len(core_of(self.dev).part(DeviceMemory).arena.blocks) == len(held)


class SurvivingMachine(ArrayMachine):
    """The same, where the worker may be killed between any two steps, or while arrays are being read."""

    def __init__(self, dev: Device, kernels: dict[str, Kernel]) -> None:
        super().__init__(dev, kernels)
        self.losses = 0

    @precondition(lambda self: self.memories and self.losses < 1)
    @rule(reading=st.booleans())
    def lose_the_worker(self, reading):
        self.losses += 1
        self.wait(self._lose, reading)

    async def _lose(self, reading: bool) -> None:
        living = [piece for memory in self.memories for piece in memory.pieces if not memory.freed]
        async with trio.open_nursery() as nursery:
            for piece in living if reading else ():
                nursery.start_soon(self._read_if_possible, piece)
            await trio.lowlevel.checkpoint()  # some reads have begun by now, and some may have not
            kill_worker(self.dev)
        self.generation = await next_generation(self.dev, self.generation)
        for piece in living:
            assert piece.array.state == "ready"
            assert same(await piece.array.to_host(), piece.host)

    async def _read_if_possible(self, piece: Piece) -> None:
        with contextlib.suppress(ContextLost):
            assert same(await piece.array.to_host(), piece.host)


async def run_machine(machine: type[ArrayMachine], share: float) -> None:
    """Run random programs, all on one device."""
    async with open_lasting_device() as dev:
        kernels = await compile_kernels(dev)
        run = functools.partial(run_state_machine_as_test, settings=examples(share, stateful_step_count=30))
        await trio.to_thread.run_sync(run, lambda: machine(dev, kernels))


async def test_arrays_are_what_numpy_says_whatever_is_done_to_them():
    await run_machine(ArrayMachine, 0.3)


async def test_arrays_are_what_numpy_says_also_when_workers_die_between():
    await run_machine(SurvivingMachine, 0.1)
