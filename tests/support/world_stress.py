"""Random work of many tasks with several worlds, against a model on the host, while workers are lost at any moment.

A task has arrays of its own on every member, and knows what each of them holds. It makes one call after the other; each
reads some of its arrays and writes others. A call that succeeds has written what the model says. One that raises has
left every input as it was, and every output torn, or as it was, or as the model says; a lost collective has left every
output torn. So a byte that is wrong is found by the task that has written it, at its next look.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import numpy as np
import trio

from atomr_trio import ContextLost, Device, Devices, StaleArray, World, WorldLost, read_only
from support.rogue import WILD, compile_rogue, kill_worker

N = 600
SHAPE = (-(-N // 128), 128)
ARRAYS = 3
ADD = """
extern "C" __global__ void add(int *x, const int *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += y[i];
}
"""
LOST = (ContextLost, WorldLost, StaleArray)


@attrs.define(eq=False)
class Place:
    """An array, and what it holds."""

    array: Any
    value: Any


@attrs.define
class Call:
    """One call: the places that it reads, and those that it writes, with what they hold then."""

    name: str
    run: Callable[[], Awaitable[object]]
    reads: Sequence[Place]
    writes: Sequence[tuple[Place, Any]]
    collective: bool = False


@attrs.define
class Stress:
    """What was done."""

    devices: Devices
    worlds: list[World]
    adds: dict[Device, Any]
    lanes: dict[Device, list[Any]]
    """Those that launches and batches go to, None for the compute lane."""
    calls: Counter[str] = attrs.field(factory=Counter)
    lost: Counter[str] = attrs.field(factory=Counter)
    losses: int = 0
    over: bool = False


class Worker:
    """One task."""

    def __init__(self, stress: Stress, seed: int) -> None:
        self._stress = stress
        self._random = random.Random(seed)
        self._places: dict[Device, list[Place]] = {}
        self._habits: list[tuple[World, list[list[Place]]]] = []
        """Worlds with places of their members that are taken again and again: such calls go the short way."""

    async def run(self, calls: int) -> None:
        """Make so many calls, or more until the stress is over; then look at everything."""
        for dev in self._stress.devices:
            self._places[dev] = [Place(None, None) for _ in range(ARRAYS)]
            for place in self._places[dev]:
                await self._fill(dev, place)
        while calls > 0 or not self._stress.over:
            calls -= 1
            await self._one(self._choose())
        for places in self._places.values():
            for place in places:
                await self._check(place, place.value)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _choose(self) -> Call:
        make = self._random.choice(
            [
                self._batch,
                self._add,
                self._copy,
                self._reduce,
                self._series,
                self._new,
                self._in_place,
                self._gather,
                self._exchange,
                self._later,
            ]
        )
        return make()

    def _pick(self, dev: Device, count: int) -> list[Place]:
        return self._random.sample(self._places[dev], count)

    def _add(self) -> Call:
        dev = self._random.choice(self._stress.devices)
        x, y = self._pick(dev, 2)
        lane = self._random.choice(self._stress.lanes[dev])
        run = lambda: self._stress.adds[dev].launch(*SHAPE, x.array, read_only(y.array), N, lane=lane)  # noqa: E731
        return Call("launch", run, [y], [(x, x.value + y.value)])

    def _batch(self) -> Call:
        dev = self._random.choice(self._stress.devices)
        x, y = self._pick(dev, 2)
        lane = self._random.choice(self._stress.lanes[dev])

        async def run() -> None:
            async with dev.batch(lane=lane) as batch:
                for _ in range(5):
                    batch.launch(self._stress.adds[dev], *SHAPE, x.array, read_only(y.array), N)

        return Call("batch", run, [y], [(x, x.value + 5 * y.value)])

    def _copy(self) -> Call:
        source, target = (self._random.choice(self._stress.devices) for _ in range(2))
        x, y = self._pick(source, 2)
        y = y if source is target else self._pick(target, 1)[0]
        return Call("copy", lambda: y.array.copy_from(x.array), [x], [(y, x.value)])

    def _members(self) -> tuple[World, list[list[Place]]]:
        if len(self._habits) == 2 and self._random.random() < 0.7:
            return self._random.choice(self._habits)
        world = self._random.choice(self._stress.worlds)
        found = world, [self._pick(dev, 2) for dev in world.members]
        if len(self._habits) < 2:
            self._habits.append(found)
        return found

    def _reduce(self) -> Call:
        world, picked = self._members()
        reads, writes = ([each[place] for each in picked] for place in (0, 1))
        total = sum(place.value for place in reads)
        run = lambda: world.all_reduce([x.array for x in reads], [y.array for y in writes])  # noqa: E731
        return Call("all_reduce", run, reads, [(y, total) for y in writes], collective=True)

    def _series(self) -> Call:
        """The same collective several times, of which some are waited for."""
        world, picked = self._members()
        reads, writes = ([each[place] for each in picked] for place in (0, 1))
        total = sum(place.value for place in reads)
        awaited = [self._random.random() < 0.5 for _ in range(8)]

        async def run() -> None:
            inputs, outputs = [x.array for x in reads], [y.array for y in writes]
            for waits in awaited:
                if waits:
                    await world.all_reduce(inputs, outputs)
                else:
                    with contextlib.suppress(trio.WouldBlock):
                        world.all_reduce_nowait(inputs, outputs)
            async with world.batch() as batch:
                batch.all_reduce(inputs, outputs)

        return Call("all_reduce, again", run, reads, [(y, total) for y in writes])

    def _new(self) -> Call:
        """A collective whose outputs are new, and copies of them."""
        world, picked = self._members()
        reads, writes = ([each[place] for each in picked] for place in (0, 1))
        total = sum(place.value for place in reads)

        async def run() -> None:
            for _ in range(3):
                outputs = await world.all_reduce([x.array for x in reads])
            for y, output in zip(writes, outputs, strict=True):
                await y.array.copy_from(output)

        return Call("all_reduce, new", run, reads, [(y, total) for y in writes])

    def _in_place(self) -> Call:
        world, picked = self._members()
        places = [x for x, _ in picked]
        total = np.maximum.reduce([place.value for place in places])

        async def run() -> None:
            arrays = [place.array for place in places]
            world.all_reduce_nowait(arrays, arrays, op="max")
            await arrays[0].to_host()  # waits for it, on this member

        async def or_wait() -> None:
            try:
                await run()
            except trio.WouldBlock:
                arrays = [place.array for place in places]
                await world.all_reduce(arrays, arrays, op="max")

        return Call("all_reduce in place", or_wait, [], [(place, total) for place in places])

    def _gather(self) -> Call:
        """A broadcast, in a batch with nothing else."""
        world, picked = self._members()
        root = self._random.randrange(len(world))
        places = [x for x, _ in picked]

        async def run() -> None:
            async with world.batch() as batch:
                batch.broadcast([place.array for place in places], root=root)

        others = [(place, places[root].value) for rank, place in enumerate(places) if rank != root]
        return Call("broadcast", run, [places[root]], others, collective=True)

    def _exchange(self) -> Call:
        world, picked = self._members()
        size = len(world)
        pairs = [(picked[rank][0], picked[(rank + 1) % size][1]) for rank in range(size)]
        run = lambda: world.exchange([(x.array, y.array) for x, y in pairs])  # noqa: E731
        return Call("exchange", run, [x for x, _ in pairs], [(y, x.value) for x, y in pairs], collective=True)

    def _later(self) -> Call:
        """A collective, and a launch behind it on its output, which nobody waits for in between."""
        world, picked = self._members()
        (x, y), dev = picked[0], world.members[0]
        third = next(place for place in self._places[dev] if place not in (x, y))
        reads, writes = ([each[place] for each in picked] for place in (0, 1))
        total = sum(place.value for place in reads)

        async def run() -> None:
            try:
                world.all_reduce_nowait([x.array for x in reads], [y.array for y in writes])
            except trio.WouldBlock:
                await world.all_reduce([x.array for x in reads], [y.array for y in writes])
            await self._stress.adds[dev].launch(*SHAPE, third.array, read_only(y.array), N)

        return Call("all_reduce, launch", run, reads, [*((y, total) for y in writes), (third, third.value + total)])

    # --- what became of them ------------------------------------------------------------------------------------------

    async def _one(self, call: Call) -> None:
        self._stress.calls[call.name] += 1
        before = [(place, place.value) for place in call.reads]
        written = {id(place) for place, _ in call.writes}
        try:
            await call.run()
        except LOST as error:
            self._stress.lost[f"{call.name}: {type(error).__name__}"] += 1
            if call.collective and isinstance(error, WorldLost):
                states = [place.array.state for place, _ in call.writes]
                assert states == ["torn"] * len(states), (call.name, states)
            for place, value in before:
                if id(place) not in written:
                    await self._check(place, value)
            for place, value in call.writes:
                await self._check(place, place.value, value)
        else:
            for place, value in call.writes:
                place.value = value
            looked = self._random.choice([*call.reads, *(place for place, _ in call.writes)])
            await self._check(looked, looked.value, unsure=call.name.startswith("all_reduce"))

    async def _check(self, place: Place, *allowed: Any, unsure: bool = False) -> None:
        """Compare an array with what it may hold. One that is torn is filled anew."""
        dev = place.array.device
        while True:
            try:
                found = await place.array.to_host()
            except ContextLost:
                continue
            except (StaleArray, WorldLost):
                assert place.array.state == "torn"
                assert self._stress.losses
                await self._fill(dev, place)
                return
            break
        matching = [value for value in allowed if np.array_equal(found, value)]
        assert matching, (dev.index, found[:5], [value[:5] for value in allowed])
        place.value = matching[0]

    async def _fill(self, dev: Device, place: Place) -> None:
        value = np.full(N, self._random.randrange(1000), np.int32) + np.arange(N, dtype=np.int32)
        while True:
            try:
                if place.array is None:
                    place.array = await dev.to_device(value)
                else:
                    await place.array.copy_from(value)
                place.value = value
                return
            except ContextLost:
                continue


async def run_stress(
    devices: Devices, worlds: list[World], seed: int, *, tasks: int, calls: int, losses: int, sleep: float
) -> Stress:
    """Run so many tasks, each with so many calls at least, and lose so many workers meanwhile."""
    chooser = random.Random(seed)
    adds = {dev: await dev.nvrtc.compile(ADD, "add") for dev in devices}
    wilds = {dev: (await compile_rogue(dev, "wild"))[0] for dev in devices}
    lanes: dict[Device, list[Any]] = {dev: [None] for dev in devices}
    stress = Stress(devices, worlds, adds, lanes, over=not losses)

    async def lose() -> None:
        for _ in range(losses):
            await trio.sleep(chooser.uniform(0, sleep))
            dev = chooser.choice(devices)
            generation = dev.generation
            stress.losses += 1
            if chooser.random() < 0.3:
                try:
                    async with dev.lane() as lane:
                        await wilds[dev].launch(1, 1, WILD, lane=lane)
                except LOST:
                    pass
            else:
                kill_worker(dev)
            await dev.wait_generation(after=generation)
        stress.over = True

    async with contextlib.AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for dev in devices:
            lanes[dev] += [await stack.enter_async_context(dev.lane()) for _ in range(2)]
        for number in range(tasks):
            nursery.start_soon(Worker(stress, seed * 1000 + number).run, calls)
        if losses:
            nursery.start_soon(lose)
    return stress
