"""Random programs over the devices of a group, beside a model of what every array holds, while workers are lost.

Every array has one task at a time that works on it, but for constants, which all read at once. A call that succeeds
gives the one result that it must. Of a call that is lost, what it was writing is torn, or holds what it held before or
after any of its commands, and what it was reading is as it was.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import trio

from atomr_trio import ContextLost, StaleArray, read_only
from support.rogue import SOURCE as ROGUE, WILD, kill_worker, next_generation

LENGTHS = (1, 256, 5000, 40_000)
CODE = r"""
extern "C" __global__ void add(unsigned *x, unsigned a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += a;
}
extern "C" __global__ void mix(unsigned *x, const unsigned *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * 3 + y[i];
}
"""
BLOCK = 128
Numbers = npt.NDArray[np.uint32]


@attrs.define(eq=False)
class Held:
    """An array, and all that it may hold."""

    place: int
    array: Any
    states: list[Numbers]
    in_doubt: bool = False
    """True if a call that was lost may have been writing it: it may be torn, also where it wrote what was there."""
    lock: trio.Lock = attrs.field(factory=trio.Lock)

    @property
    def value(self) -> Numbers:
        """What it holds; there must be no doubt."""
        assert not self.in_doubt
        (value,) = self.states
        return value


@attrs.define
class Stress:
    """The devices, the arrays and the model."""

    devices: Sequence[Any]
    seed: int
    sleep: float
    kernels: list[dict[str, Any]] = attrs.field(factory=list)
    held: list[Held] = attrs.field(factory=list)
    constants: list[Held] = attrs.field(factory=list)
    calls: int = 0
    lost: int = 0
    faults: int = 0
    over: bool = False

    async def prepare(self, arrays: int) -> None:
        """Compile, and make the arrays: of each length some on each device."""
        rng = np.random.default_rng(self.seed)
        for dev in self.devices:
            names = ("add", "mix")
            self.kernels.append({name: await dev.nvrtc.compile(CODE, name) for name in names})
            self.kernels[-1]["wild"] = await dev.nvrtc.compile(ROGUE, "wild")
        places = itertools.cycle(range(len(self.devices)))
        for number in range(arrays):
            numbers = random_numbers(rng, LENGTHS[number // len(self.devices) % len(LENGTHS)])
            place = next(places)
            self.held.append(Held(place, await self.devices[place].to_device(numbers), [numbers]))
        for place, length in itertools.product(range(len(self.devices)), LENGTHS):
            numbers = random_numbers(rng, length)
            self.constants.append(Held(place, await self.devices[place].to_device(numbers), [numbers]))

    # --- programs -------------------------------------------------------------------------------------------------

    async def play(self, number: int) -> None:
        """Make random calls until it is over."""
        rng = np.random.default_rng((self.seed, number))
        verbs = (self.add, self.copy, self.read_peer, self.write_peer, self.follow, self.batch, self.renew, self.look)
        while not self.over:
            first = self.held[rng.integers(len(self.held))]
            like = [each for each in self.held if each is not first and len(each.states[0]) == len(first.states[0])]
            second = like[rng.integers(len(like))]
            async with contextlib.AsyncExitStack() as stack:
                for each in sorted((first, second), key=self.held.index):
                    await stack.enter_async_context(each.lock)
                self.calls += 1
                await verbs[rng.integers(len(verbs))](rng, first, second)

    async def add(self, rng: np.random.Generator, x: Held, y: Held) -> None:
        """A kernel on the array's own device."""
        value = int(rng.integers(1, 1000))
        with self.writing((x, x.value + np.uint32(value))):
            await self.launch(x.place, "add", x, value)
        await self.resolve(x)

    async def copy(self, rng: np.random.Generator, x: Held, y: Held) -> None:
        """A copy of a whole array or of a part, from an array of any device."""
        source = self.constant_like(rng, y) if rng.random() < 0.5 else y
        after = x.value.copy()
        part = (
            slice(int(rng.integers(len(after))), None, int(rng.integers(1, 3))) if rng.random() < 0.3 else slice(None)
        )
        after[part] = source.value[part]
        with self.writing((x, after)):
            await x.array[part].copy_from(source.array[part])
        await self.resolve(x)
        await self.resolve(source)

    async def read_peer(self, rng: np.random.Generator, x: Held, y: Held) -> None:
        """A kernel that reads an array of any device."""
        source = self.constant_like(rng, y) if rng.random() < 0.5 else y
        with self.writing((x, x.value * np.uint32(3) + source.value)):
            await self.launch(x.place, "mix", x, read_only(source.array))
        await self.resolve(x)
        await self.resolve(source)

    async def write_peer(self, rng: np.random.Generator, x: Held, y: Held) -> None:
        """A kernel of the other array's device that writes this one."""
        with self.writing((x, x.value * np.uint32(3) + y.value)):
            await self.launch(y.place, "mix", x, read_only(y.array))
        await self.resolve(x)
        await self.resolve(y)

    async def follow(self, rng: np.random.Generator, x: Held, y: Held) -> None:
        """A launch that nobody waits for, and a copy of what it makes to another device."""
        value = int(rng.integers(1, 1000))
        after = x.value + np.uint32(value)
        with self.writing((x, after), (y, after)):
            blocks = -(-len(after) // BLOCK)
            try:
                self.kernels[x.place]["add"].launch_nowait(blocks, BLOCK, x.array, value, len(after))
            except trio.WouldBlock:
                await self.launch(x.place, "add", x, value)
            await y.array.copy_from(x.array)
        await self.resolve(x)
        await self.resolve(y)

    async def batch(self, rng: np.random.Generator, x: Held, y: Held) -> None:
        """Many calls of one device, some of which read and write arrays of others."""
        dev, kernels = self.devices[x.place], self.kernels[x.place]
        states = [x.value]
        blocks = -(-len(x.value) // BLOCK)
        try:
            async with dev.batch() as batch:
                for _ in range(int(rng.integers(1, 40))):
                    kind, source = rng.random(), self.constant_like(rng, y)
                    try:
                        if kind < 0.4:
                            value = int(rng.integers(1, 1000))
                            batch.launch(kernels["add"], blocks, BLOCK, x.array, value, len(x.value))
                            states.append(states[-1] + np.uint32(value))
                        elif kind < 0.7:
                            batch.copy_from(x.array, source.array)
                            states.append(source.value)
                        else:
                            batch.launch(kernels["mix"], blocks, BLOCK, x.array, read_only(source.array), len(x.value))
                            states.append(states[-1] * np.uint32(3) + source.value)
                    except trio.WouldBlock:
                        await batch.flush()
            x.states = [states[-1]]
        except (ContextLost, StaleArray):
            self.lost += 1
            x.states, x.in_doubt = distinct(states), True
        await self.resolve(x)

    async def renew(self, rng: np.random.Generator, x: Held, y: Held) -> None:
        """Give an array back while others may still read it, and make another."""
        numbers = random_numbers(rng, len(x.value))
        fresh = self.devices[x.place].zeros(len(numbers), np.uint32)
        before = y.states
        with self.writing((y, x.value)), trio.move_on_after(0 if rng.random() < 0.3 else 1000) as scope:
            await y.array.copy_from(x.array)
        if scope.cancelled_caught:  # the copy may have been made
            y.states, y.in_doubt = distinct([*before, x.value]), True
        x.array.free()
        x.array, x.states = fresh, [np.zeros_like(numbers)]
        await self.resolve(y)
        with self.writing((x, numbers)):
            await x.array.copy_from(numbers)
        await self.resolve(x)

    async def look(self, rng: np.random.Generator, x: Held, y: Held) -> None:
        """Compare."""
        await self.resolve(x, always=True)
        await self.resolve(self.constants[rng.integers(len(self.constants))], always=True)

    # --- the model ------------------------------------------------------------------------------------------------

    async def launch(self, place: int, name: str, x: Held, argument: object) -> None:
        blocks = -(-len(x.states[0]) // BLOCK)
        await self.kernels[place][name].launch(blocks, BLOCK, x.array, argument, len(x.states[0]))

    def constant_like(self, rng: np.random.Generator, y: Held) -> Held:
        like = [each for each in self.constants if len(each.value) == len(y.states[0])]
        return like[rng.integers(len(like))]

    @contextlib.contextmanager
    def writing(self, *changes: tuple[Held, Numbers]) -> Iterator[None]:
        """What the calls in the block write, and what it holds afterwards."""
        before = [held.states for held, _ in changes]
        for (held, after), states in zip(changes, before, strict=True):
            held.states = distinct([*states, after])
        try:
            yield
        except (ContextLost, StaleArray):
            self.lost += 1
            for held, _ in changes:
                held.in_doubt = True
        else:
            for held, after in changes:
                held.states = [after]

    async def resolve(self, held: Held, *, always: bool = False) -> None:
        """Find out what an array holds, if that is in doubt, and write it anew if it is torn. It must be allowed."""
        while held.in_doubt or always:
            try:
                found = await held.array.to_host()
            except ContextLost:
                continue
            except StaleArray:
                assert held.in_doubt, f"what was not written is torn: {held.array!r}"
                found = held.states[0]
                try:
                    await held.array.copy_from(found)
                except ContextLost:
                    continue
            else:
                assert any(np.array_equal(found, each) for each in held.states), f"wrong numbers in {held.array!r}"
            held.states, held.in_doubt = [found], False
            return

    # --- losses ---------------------------------------------------------------------------------------------------

    async def lose(self, losses: int) -> None:
        """Lose workers of random devices at random moments, by a kill from outside or by a fault."""
        rng = np.random.default_rng((self.seed, 999))
        for _ in range(losses):
            await trio.sleep(self.sleep * rng.random())
            place = int(rng.integers(len(self.devices)))
            dev = self.devices[place]
            generation = dev.generation
            if rng.random() < 0.5:
                kill_worker(dev)
            else:
                self.faults += 1
                with contextlib.suppress(ContextLost):
                    await self.kernels[place]["wild"].launch(1, 1, WILD)
            await next_generation(dev, generation)
        self.over = True


def random_numbers(rng: np.random.Generator, length: int) -> Numbers:
    """Any numbers."""
    return rng.integers(0, 1 << 32, length, dtype=np.uint32)


def distinct(states: Sequence[Numbers]) -> list[Numbers]:
    """The states without repetitions."""
    found: list[Numbers] = []
    for each in states:
        if not any(np.array_equal(each, other) for other in found):
            found.append(each)
    return found


async def run_stress(devices: Sequence[Any], seed: int, losses: int, *, tasks: int = 4, sleep: float = 0.1) -> Stress:
    """Run programs until so many workers were lost, and compare everything at the end."""
    stress = Stress(devices, seed, sleep)
    await stress.prepare(4 * len(devices) * len(LENGTHS))
    with trio.fail_after(300 + 20 * losses):
        async with trio.open_nursery() as nursery:
            for number in range(tasks):
                nursery.start_soon(stress.play, number)
            nursery.start_soon(stress.lose, losses)
        for each in (*stress.held, *stress.constants):
            await stress.resolve(each, always=True)
    return stress
