"""Random programs on one open device that faults in random ways, beside a model: numpy arrays that may be torn.

``arrays/test_array_machine.py`` has every kind of array and view, and no fault but a kill. Here arrays are plain, and
anything may go wrong at any time. While it does, each array is idle, written or read by what goes wrong, or in use by
a task of its own. Which of those tasks have begun by then is the scheduler's choice, so the model learns from each
answer: a request that was lost has torn what it was writing, and one that succeeded has done all of its work.
"""

from __future__ import annotations

import functools
import gc
import math
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
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from atomr_trio import (
    CommandFailed,
    ContextLost,
    Device,
    DeviceArray,
    DeviceError,
    InvalidArgument,
    Kernel,
    Marked,
    RestartPolicy,
    StaleArray,
    overwrites,
    read_only,
    strided,
)
from atomr_trio._memory.arena import ALIGNMENT, GUARDED_ALIGNMENT
from atomr_trio.testing import Fault, ReturnStatus, cause, inject
from support import ON_GPU, open_test_device
from support.rogue import endless_kernel, hang
from support.strategies import examples, in_time, seeds, until_idle

pytestmark = pytest.mark.used_workers

SOURCE = r"""
extern "C" __global__ void scale(int *x, long long stride, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i * stride] = x[i * stride] * 3 + 1;
}
extern "C" __global__ void count(int *x, long long stride, int n, int first)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i * stride] = first + i;
}
extern "C" __global__ void add(int *y, long long y_stride, const int *x, long long x_stride, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i * y_stride] += x[i * x_stride];
}
"""
THREADS = 64
MISHAPS_AT_MOST = 3
"""In one program: each takes as long as a hundred other steps."""


# --- the model --------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Memory:
    """What the arrays of one block share."""

    host: np.ndarray
    guarded: bool
    pieces: list[Piece] = attrs.field(factory=list, repr=False)
    torn: bool = False
    freed: bool = False

    @property
    def size(self) -> int:
        """Bytes that the device counts for it."""
        alignment = GUARDED_ALIGNMENT if self.guarded else ALIGNMENT
        return max(alignment, math.ceil(self.host.nbytes / alignment) * alignment)

    @property
    def state(self) -> str:
        """What its arrays must say of themselves."""
        return "freed" if self.freed else "torn" if self.torn else "ready"


@attrs.define(eq=False)
class Piece:
    """An array of the device, and the numpy array that has its elements."""

    array: DeviceArray = attrs.field(repr=False)
    host: np.ndarray
    memory: Memory = attrs.field(repr=False)

    @property
    def whole(self) -> bool:
        """Whether it has every element of its memory."""
        return self.host.size == self.memory.host.size

    def __getitem__(self, index: slice) -> Piece:
        return Piece(self.array[index], self.host[index], self.memory)

    @property
    def walk(self) -> tuple[Marked, int, int]:
        """What a kernel needs to know of it: its first element, the way to the next, and how many there are."""
        return strided(self.array), self.array.strides[0] // self.array.itemsize, self.array.size


@attrs.frozen
class Use:
    """Something that can be done with an array; a seed says with which numbers."""

    call: Callable[[FaultMachine, Piece, int], Awaitable[Any]]
    """What to ask of the device."""
    result: Callable[[np.ndarray, int], Any]
    """The elements that the array has afterwards."""
    writes: bool = True
    overwrites: bool = False
    """Whether it rewrites every element of the array, so that a torn one will do, if that has all of its memory."""


def counted(host: np.ndarray, first: int) -> np.ndarray:
    """As many elements, all different."""
    return np.arange(first, first + host.size, dtype=np.int32)


def read(machine: FaultMachine, piece: Piece, seed: int) -> Awaitable[Any]:
    return piece.array.to_host()


def write(machine: FaultMachine, piece: Piece, seed: int) -> Awaitable[Any]:
    return piece.array.copy_from(counted(piece.host, seed))


def fill(machine: FaultMachine, piece: Piece, seed: int) -> Awaitable[Any]:
    return piece.array.fill(seed)


def scale(machine: FaultMachine, piece: Piece, seed: int) -> Awaitable[Any]:
    return machine.kernels["scale"].launch(1, THREADS, *piece.walk)


def count(machine: FaultMachine, piece: Piece, seed: int) -> Awaitable[Any]:
    array, stride, size = piece.walk
    return machine.kernels["count"].launch(1, THREADS, overwrites(array), stride, size, seed)


USES = {
    "read": Use(read, lambda host, seed: host, writes=False),
    "write": Use(write, counted, overwrites=True),
    "fill": Use(fill, lambda host, seed: seed, overwrites=True),
    "scale": Use(scale, lambda host, seed: host * 3 + 1),
    "count": Use(count, counted, overwrites=True),
}


@attrs.frozen
class Mishap:
    """Something that goes wrong."""

    cause: Callable[..., Awaitable[Any]]
    """Makes it happen to a device, by work that writes or reads some arrays."""
    costly: bool = True
    """Whether it costs the context."""


async def restart(dev: Device, *touches: Any) -> None:
    """Give the context up deliberately, because of a kernel that does not end."""
    async with endless_kernel(dev, *touches):
        await dev.restart("it does not end")


def caused(fault: Fault) -> Mishap:
    return Mishap(lambda dev, *touches: cause(dev, fault, *touches), fault.costs_context)


PATIENT = (Fault.ENDLESS_KERNEL, Fault.WORKER_STOPPED)
MISHAPS = {
    **{fault.name: caused(fault) for fault in Fault if fault not in PATIENT},
    "HANG": Mishap(hang),
    "RESTART": Mishap(restart),
}
"""What can go wrong, but for what takes seconds to be noticed."""

MAKERS: dict[str, Callable[[Device, int, int, bool], DeviceArray]] = {
    "zeros": lambda dev, length, seed, guarded: dev.zeros(length, np.int32, guarded=guarded),
    "full": lambda dev, length, seed, guarded: dev.full(length, seed, np.int32, guarded=guarded),
}


async def answer_of(request: Awaitable[Any]) -> tuple[Any, DeviceError | None]:
    """What a request returns, or the error that it raises."""
    try:
        return await request, None
    except DeviceError as error:
        return None, error


class FaultMachine(RuleBasedStateMachine):
    """Hypothesis calls the rules in a thread; what they do to the device is done in trio."""

    pieces = Bundle("pieces")

    def __init__(self, dev: Device, kernels: dict[str, Kernel]) -> None:
        super().__init__()
        self.dev = dev
        self.kernels = kernels
        self.generation = dev.generation
        self.memories: list[Memory] = []
        self.mishaps = 0

    def wait(self, call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Have trio run something, in bounded time."""
        return trio.from_thread.run(in_time, functools.partial(call, *arguments))

    # Making and viewing.

    @initialize(target=pieces, seed=seeds)
    def begin(self, seed):
        return self.make("full", 100, seed, False)

    @rule(
        target=pieces, how=st.sampled_from(list(MAKERS)), length=st.integers(1, 300), seed=seeds, guarded=st.booleans()
    )
    def make(self, how, length, seed, guarded):
        array = trio.from_thread.run_sync(MAKERS[how], self.dev, length, seed, guarded)
        host = np.full(length, seed if how == "full" else 0, np.int32)
        memory = Memory(host, guarded)
        self.memories.append(memory)
        return self._keep(Piece(array, host, memory))

    def _keep(self, piece: Piece) -> Piece:
        piece.memory.pieces.append(piece)
        return piece

    @rule(target=pieces, piece=pieces, start=st.integers(0, 9), step=st.sampled_from([1, 2, 3, -1, -2]))
    def view(self, piece, start, step):
        index = slice(start, None, step) if piece.host[start::step].size else slice(None)
        return self._keep(piece[index])

    @rule(piece=pieces)
    def free(self, piece):
        trio.from_thread.run_sync(piece.array.free)
        piece.memory.freed = True

    # Using.

    @rule(piece=pieces, name=st.sampled_from(list(USES)), seed=seeds)
    def use(self, piece, name, seed):
        self.wait(self._use, piece, USES[name], seed)

    async def _use(self, piece: Piece, use: Use, seed: int, *, losing: bool = False) -> None:
        """Use an array, and see that the answer is right; `losing` says that the context may be lost meanwhile."""
        memory, refusal = piece.memory, self._refusal(piece, overwrites=use.overwrites)
        answer, error = await answer_of(use.call(self, piece, seed))
        if error is not None:
            assert type(error) is refusal or (losing and refusal is None and type(error) is ContextLost), error
            memory.torn |= refusal is None and use.writes
            return
        assert refusal is None
        if use.writes:
            piece.host[...] = use.result(piece.host, seed)
            memory.torn = False
        else:
            assert (answer == piece.host).all()

    def _refusal(self, piece: Piece, *, overwrites: bool) -> type[DeviceError] | None:
        """What a use must be refused by, if it must be."""
        if piece.memory.freed:
            return InvalidArgument
        return StaleArray if piece.memory.torn and not (overwrites and piece.whole) else None

    @rule(target_piece=pieces, source=pieces, copy=st.booleans())
    def combine(self, target_piece, source, copy):
        if target_piece.memory is not source.memory:
            self.wait(self._combine, target_piece, source, copy)

    async def _combine(self, target: Piece, source: Piece, copy: bool) -> None:
        """Copy one array to another, or add it by a kernel; of both, as much as the shorter one has."""
        size = min(target.host.size, source.host.size)
        target, source = target[:size], source[:size]
        refusals = {self._refusal(target, overwrites=copy), self._refusal(source, overwrites=False)}
        if copy:
            _, error = await answer_of(target.array.copy_from(source.array))
        else:
            to, origin = target.walk[:2], source.walk[:2]
            call = self.kernels["add"].launch(1, THREADS, *to, read_only(origin[0]), origin[1], size)
            _, error = await answer_of(call)
        if error is not None:
            assert type(error) is (InvalidArgument if InvalidArgument in refusals else StaleArray)
        assert (error is None) == (refusals == {None})
        if error is None:
            target.host[...] = source.host if copy else target.host + source.host
            target.memory.torn = False

    @precondition(lambda self: not ON_GPU)
    @rule(piece=pieces, seed=seeds)
    def fail_to_overwrite(self, piece, seed):
        """A command that failed has changed nothing: what was torn is torn, and what is to be filled still is."""
        if self._refusal(piece, overwrites=True) is None:
            self.wait(self._fail_to_overwrite, piece, seed)

    async def _fail_to_overwrite(self, piece: Piece, seed: int) -> None:
        inject(self.dev, "cuLaunchKernelEx", ReturnStatus(701))
        _, error = await answer_of(count(self, piece, seed))
        assert type(error) is CommandFailed

    # Mishaps.

    @precondition(lambda self: self.mishaps < MISHAPS_AT_MOST)
    @rule(name=st.sampled_from(list(MISHAPS)), seed=seeds, data=st.data())
    def go_wrong(self, name, seed, data):
        """Something goes wrong, and meanwhile each memory is in somebody's hands or in nobody's."""
        self.mishaps += 1
        chosen = [data.draw(st.sampled_from(memory.pieces)) for memory in self.memories if not memory.freed]
        parts = [data.draw(st.sampled_from(["idle", "written", "watched", *USES])) for _ in chosen]
        self.wait(self._go_wrong, MISHAPS[name], seed, list(zip(chosen, parts, strict=True)))

    async def _go_wrong(self, mishap: Mishap, seed: int, parts: list[tuple[Piece, str]]) -> None:
        intact = [(piece, part) for piece, part in parts if not piece.memory.torn]
        written = [piece for piece, part in intact if part == "written"]
        watched = [piece for piece, part in intact if part == "watched"]
        async with trio.open_nursery() as nursery:
            for piece, part in parts:
                if part in USES:
                    nursery.start_soon(functools.partial(self._use, piece, USES[part], seed, losing=mishap.costly))
            await trio.lowlevel.checkpoint()
            touches = [*(piece.array for piece in written), *(read_only(piece.array) for piece in watched)]
            await mishap.cause(self.dev, *touches)
        if mishap.costly:
            self.generation += 1
            for piece in written:
                piece.memory.torn = True
        assert await self.dev.wait_generation(after=self.generation - 1) == self.generation

    # What always holds.

    @invariant()
    def the_device_agrees_with_the_model(self):
        self.wait(self._check)

    async def _check(self) -> None:
        await until_idle(self.dev)
        assert self.dev.generation == self.generation
        for memory in self.memories:
            assert {piece.array.state for piece in memory.pieces} == {memory.state}
        living = [memory for memory in self.memories if not memory.freed]
        if self.dev.statistics().memory.in_use != sum(memory.size for memory in living):
            gc.collect()  # an array may have been left in a cycle, by a traceback for example
        counts = self.dev.statistics().memory
        assert counts.in_use == sum(memory.size for memory in living)
        assert counts.torn == sum(memory.size for memory in living if memory.torn)

    def teardown(self):
        try:
            for memory in self.memories:
                for name in ("read", "write", "read"):
                    for piece in memory.pieces:
                        self.wait(self._use, piece, USES[name], 0)
        finally:
            for memory in self.memories:
                trio.from_thread.run_sync(memory.pieces[0].array.free)
                memory.freed = True
        self.wait(self._check)


async def run_machine(share: float, standby: int) -> None:
    async with open_test_device(standby=standby, restart_policy=RestartPolicy(intensity=math.inf)) as dev:
        kernels = {name: await dev.nvrtc.compile(SOURCE, name) for name in ("scale", "count", "add")}
        settings = examples(share, stateful_step_count=25)
        await trio.to_thread.run_sync(
            functools.partial(run_state_machine_as_test, lambda: FaultMachine(dev, kernels), settings=settings)
        )
    assert not any(actor.unsettled for actor in dev.statistics().actors)


@pytest.mark.parametrize("standby", [0, 1])
async def test_what_survives_a_fault_is_what_the_model_says(standby):
    await run_machine(0.1, standby)


@pytest.mark.soak
@pytest.mark.parametrize("standby", [0, 1])
async def test_what_survives_many_faults_is_what_the_model_says(standby):
    await run_machine(1, standby)
