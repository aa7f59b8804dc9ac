"""Many tasks that open lanes, let them wait for each other, and close them, while whatever can go wrong does.

Each task has an array of its own and a numpy model of it. What it does in one go (a `Deed`) spreads over several lanes:
launches, events, modules that come and go, calls of libraries, copies of many rows. A deed that was cut off leaves the
array in an unknown state, so the task writes it anew; one that succeeded must have left what the model says. A hang is
a failure: the device has a `hang_timeout`, and a generation that is lost to it was not lost on purpose.
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import trio

from atomr_trio import CommandFailed, ContextLost, InvalidArgument, OutOfDeviceMemory, StaleArray, read_only
from atomr_trio._device.device import core_of
from atomr_trio.testing import kill_worker
from support import ON_GPU
from support.nvrtc import compile_ptx
from support.rogue import WILD, compile_rogue

N = 64
TASKS = 10
SOURCE = """
extern "C" __global__ void add(float *x, float a) { x[threadIdx.x] += a; }
extern "C" __global__ void scale(float *x, float a) { x[threadIdx.x] *= a; }
extern "C" __global__ void sum(const float *x, float *y) { y[threadIdx.x] = x[threadIdx.x] + 1; }
"""
MEANT = re.compile("SIGKILL|illegal memory access|for the exercise|generation [0-9]+ was lost")
"""What is done to a generation here; whatever else ends one is a bug."""
REFUSALS = (
    "*:8:{k}",
    "cuStreamWaitEvent:8:1*3",
    "cuEventRecord:8:1*3",
    "cuStreamCreateWithPriority:8:1*2",
    "cuMemSetAccess:8:1",
    "cuModuleLoadDataEx:8:1",
    "cuModuleLoadDataEx:delay=0.03:1*3",
    "cuLaunchKernelEx:delay=0.002:1*20",
    "cuEventRecord:delay=0.002:1*10",
)
"""For the simulator; `k` is any small number."""
CUT_OFF = (ContextLost, StaleArray, CommandFailed, OutOfDeviceMemory, trio.WouldBlock)


class Player:
    """One task."""

    def __init__(self, dev: Any, kernels: dict[str, Any], image: str, seed: tuple[int, int]) -> None:
        self.dev = dev
        self.kernels = kernels
        self.image = image
        self.rng = np.random.default_rng(seed)
        self.model = np.arange(N, dtype=np.float32)
        self.array = dev.empty(N, np.float32)
        self.matrix = np.float32(3) * np.eye(8, dtype=np.float32)
        self.done = 0
        self.cut_off = 0

    async def run(self, until: float) -> None:
        """Play until a moment of trio's clock, and longer if nothing was done by then."""
        await self.write_anew()
        while trio.current_time() < until or not self.done:
            deed = DEEDS[int(self.rng.integers(len(DEEDS)))]
            try:
                await deed(self)
                seen = await self.array.to_host()
            except CUT_OFF as error:
                if isinstance(error, ContextLost) and not MEANT.search(error.reason or str(error)):
                    raise
                self.cut_off += 1
                await self.write_anew()
            else:
                assert (seen == self.model).all(), f"after {deed.__name__}: {seen} is not {self.model}"
                self.done += 1

    async def write_anew(self) -> None:
        self.model = self.rng.integers(-8, 8, N).astype(np.float32)
        while True:
            try:
                await self.array.copy_from(self.model)
                return
            except CUT_OFF:
                await trio.sleep(0.001)

    @contextlib.asynccontextmanager
    async def lane(self) -> Any:
        """A new lane, or the compute lane where there is none left."""
        try:
            lane = self.dev.lane(priority=int(self.rng.choice([0, self.dev.info.highest_priority])))
        except InvalidArgument:
            yield self.dev.compute_lane
            return
        async with lane:
            yield lane

    def number(self) -> int:
        return int(self.rng.integers(1, 4))

    async def across(self) -> None:
        """Lanes that take turns at one array, and are closed before that is over."""
        async with self.lane() as one, self.lane() as other:
            lanes = [one, other, self.dev.compute_lane]
            for _ in range(self.number() * 3):
                number = self.number()
                # Awaited together in the end, by the copy that reads the array.
                async with self.dev.batch(lane=lanes[int(self.rng.integers(3))]) as batch:
                    batch.launch(self.kernels["add"], 1, N, self.array, number)
                self.model = self.model + np.float32(number)

    async def leave(self) -> None:
        """A lane that is left while its launch is under way, and the compute lane's behind it."""
        number, before = np.float32(self.number()), self.model
        async with self.lane() as lane:
            self.kernels["add"].launch_nowait(1, N, self.array, number, lane=lane)
            self.kernels["scale"].launch_nowait(1, N, self.array, 2)
        await self.kernels["add"].launch(1, N, self.array, 1)
        self.model = (before + number) * 2 + 1
        seen = await self.array.to_host()
        if not ON_GPU and (seen != self.model).any():  # one was refused, and of those nobody hears
            refused = (before + 1, before * 2 + 1, before + number + 1)
            self.model = next((each for each in refused if (seen == each).all()), self.model)

    async def events(self) -> None:
        """Events on a lane that goes, waited for by another; they are dropped by whoever collects them."""
        async with self.lane() as one, self.lane() as other:
            first = one.record()
            async with self.dev.batch(lane=one) as batch:
                batch.launch(self.kernels["add"], 1, N, self.array, 1)
                second = one.record()
                other.wait_for(second)
                self.dev.compute_lane.wait_for(second)
            third = other.record()
        self.model = self.model + np.float32(1)
        if self.rng.random() < 0.5:
            await third.wait()
            if second.generation == first.generation:  # there may have been a loss between them
                assert await second.elapsed_since(first) >= 0

    async def module(self) -> None:
        """A module that comes and goes, by itself or on purpose."""
        module = await self.dev.module.load(self.image)
        async with self.lane() as lane:
            await module["add"].launch(1, N, self.array, 2, lane=lane)
            self.model = self.model + np.float32(2)
        if self.rng.random() < 0.5:
            await module.unload()

    async def library(self) -> None:
        """A first call of a library on a lane, whose handle goes with it."""
        a = await self.dev.to_device(self.matrix)
        async with self.lane() as lane, self.dev.batch(lane=lane) as batch:
            product = batch.blas.gemm(a, a)
            batch.launch(self.kernels["add"], 1, N, self.array, 3)
        self.model = self.model + np.float32(3)
        assert (await product.to_host() == self.matrix @ self.matrix).all()

    async def solve(self) -> None:
        a, b = await self.dev.to_device(self.matrix), await self.dev.to_device(np.full(8, 6, np.float32))
        x = await self.dev.solver.solve(a, b)
        assert np.allclose(await x.to_host(), 2)

    async def rows(self) -> None:
        """Copies row by row behind launches that share a ticket."""
        host = np.arange(60 * 4, dtype=np.float32).reshape(60, 4)
        source, target = await self.dev.to_device(host), self.dev.zeros(host.shape, np.float32)
        async with self.lane() as lane, self.dev.batch(lane=lane) as batch:
            for _ in range(10):
                batch.launch(self.kernels["add"], 1, N, self.array, 1)
            batch.copy_from(target, source[::-1])
        self.model = self.model + np.float32(10)
        assert (await target.to_host() == host[::-1]).all()

    async def memory(self) -> None:
        """A chunk of its own, which comes and goes."""
        with self.dev.zeros(N, np.float32, guarded=True) as y:
            async with self.lane() as lane:
                await self.kernels["sum"].launch(1, N, read_only(self.array), y, lane=lane)
            assert (await y.to_host() == self.model + 1).all()


DEEDS: tuple[Callable[[Player], Awaitable[None]], ...] = (
    Player.across,
    Player.across,
    Player.leave,
    Player.events,
    Player.events,
    Player.module,
    Player.library,
    Player.solve,
    Player.rows,
    Player.memory,
)


async def play(dev: Any, seed: int, seconds: float, between: float) -> list[Player]:
    """Let all tasks play for some seconds; something goes wrong every `between` seconds, on an average."""
    kernels = {name: await dev.nvrtc.compile(SOURCE, name) for name in ("add", "scale", "sum")}
    (wild,) = await compile_rogue(dev, "wild")
    image = compile_ptx(SOURCE)
    end = trio.current_time() + seconds
    players = [Player(dev, kernels, image, (seed, number)) for number in range(TASKS)]
    rng = np.random.default_rng(seed)
    async with trio.open_nursery() as nursery:
        for player in players:
            nursery.start_soon(player.run, end)
        while trio.current_time() < end - between:
            await trio.sleep(between * rng.uniform(0.2, 1.8))
            await go_wrong(dev, wild, rng)
    core_of(dev).current.request_faults("", instead=True) if not ON_GPU else None
    return players


async def go_wrong(dev: Any, wild: Any, rng: np.random.Generator) -> None:
    """Lose the generation in service, or, in the simulator, have some call of the driver refused or slow."""
    lost, how = dev.generation, int(rng.integers(8 if not ON_GPU else 3))
    gc.collect()
    if how > 2:
        if core_of(dev).current is not None and core_of(dev).current.loss is None:
            refusal = REFUSALS[int(rng.integers(len(REFUSALS)))].format(k=int(rng.integers(1, 200)))
            core_of(dev).current.request_faults(refusal, instead=True)
        return
    with contextlib.suppress(ContextLost, CommandFailed, trio.WouldBlock):
        if how == 0:
            kill_worker(dev)
        elif how == 1:
            await wild.launch(1, 1, WILD)
            return  # it was refused
        else:
            await dev.restart("for the exercise")
    if how != 1:
        await dev.wait_generation(after=lost)
