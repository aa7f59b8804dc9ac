"""Every fault of a member at every moment of a world, with a standby and without: what is left, and the next epoch.

A fault is a row of `FAULTS`, a moment a row of `MOMENTS`, and they multiply. In every cell all calls end, the arrays of
all members that have nothing to do with the world are what they were, and so are the inputs; outputs of a collective
that was in flight are torn on all members; work of the survivors on other lanes goes on, unless their own workers are
struck; the next epoch's collective is right; and when the group is closed, no process, and so no socket of its, and no
descriptor is left. `make test` has some of the cells, `make soak` and `make world-faults` have all of them.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from unittest import mock

import attrs
import numpy as np
import pytest
import trio

from atomr_trio import ContextLost, DeviceState, WorldLost
from atomr_trio._generation import watch
from atomr_trio.libraries.nccl import epochs
from atomr_trio.testing import Delay, Hang, inject
from support import ON_GPU
from support.descriptors import open_descriptors
from support.rogue import WILD, children, compile_rogue, gated, kill_worker, next_generation, until
from support.worlds import SETTINGS, get, open_world, put, quiet, tried, under_way

N = 1000
SHAPE = (-(-N // 128), 128)
NUMBERS = np.arange(N, dtype=np.int32)
STOPPED_SECONDS = 1.0
ABORT_SECONDS = 0.4
HANG_SECONDS = 0.2


# --- faults -----------------------------------------------------------------------------------------------------------


async def by_kernel(scene: Scene, dev: Any, name: str, **options: Any) -> None:
    """A kernel that faults, or never ends, on a lane that has nothing else."""
    rank = scene.devices.index(dev)
    kernel = scene.rogue[rank][name]
    argument = {"wild": WILD, "trap": scene.words[rank], "spin": scene.words[rank].address}[name]
    async with dev.lane() as lane:
        with pytest.raises(ContextLost):
            await kernel.launch(1, 1, argument, lane=lane, **options)


async def kill(scene: Scene, dev: Any) -> None:
    kill_worker(dev)


async def stop(scene: Scene, dev: Any) -> None:
    kill_worker(dev, signal.SIGSTOP)


async def wild(scene: Scene, dev: Any) -> None:
    await by_kernel(scene, dev, "wild")


async def trap(scene: Scene, dev: Any) -> None:
    await by_kernel(scene, dev, "trap")


async def endless(scene: Scene, dev: Any) -> None:
    await by_kernel(scene, dev, "spin", hang_timeout=HANG_SECONDS)


async def abort_hangs(scene: Scene, dev: Any) -> None:
    for other in scene.devices:
        if other is not dev:
            inject(other, "ncclCommAbort", Hang())
    kill_worker(dev)


async def survivor_faults(scene: Scene, dev: Any) -> None:
    """The survivor's worker is killed too, as soon as the first loss is known, while it aborts."""
    other = next(each for each in scene.devices if each is not dev)
    kill_worker(dev)
    number = dev.generation
    await until(lambda: dev.generation > number or dev.state is not DeviceState.RUNNING)
    kill_worker(other)


async def all_at_once(scene: Scene, dev: Any) -> None:
    for each in scene.devices:
        kill_worker(each)


def by_the_abort(scene: Scene) -> list[int]:
    """All of them; but while the world re-forms, the others may have nothing to abort yet."""
    return [scene.lost] if scene.moment == "re-forming" else list(range(scene.size))


@attrs.frozen
class Fault:
    """What strikes one member, and which members lose their workers."""

    strike: Callable[[Scene, Any], Awaitable[None]]
    losers: Callable[[Scene], list[int]] = lambda scene: [scene.lost]
    sim_only: bool = False


FAULTS = {
    "killed": Fault(kill),
    "wild access": Fault(wild),
    "trap": Fault(trap),
    "endless kernel": Fault(endless),
    "stopped": Fault(stop),
    "abort hangs": Fault(abort_hangs, by_the_abort, sim_only=True),
    "survivor too": Fault(survivor_faults, lambda scene: [0, scene.lost]),
    "all at once": Fault(all_at_once, lambda scene: list(range(scene.size))),
}


# --- the scene --------------------------------------------------------------------------------------------------------


class Scene:
    """A group with a world, and arrays of every member."""

    def __init__(self, devices: Any, world: Any, fault: Fault, moment: str) -> None:
        self.moment = moment
        self.devices = devices
        self.world = world
        self.fault = fault
        self.size = len(devices)
        self.lost = self.size - 1
        self.given = [NUMBERS * (rank + 1) for rank in range(self.size)]
        self.total = sum(self.given)
        self.errors: list[Exception] = []
        self.ended = 0

    async def begin(self) -> Scene:
        self.arrays = await put(self.devices, *self.given)
        self.outputs = await put(self.devices, *(NUMBERS for _ in self.devices))
        self.apart = await put(self.devices, *self.given)
        self.touch = [(await compile_rogue(dev, "touch"))[0] for dev in self.devices]
        names = ("wild", "trap", "spin")
        self.rogue = [dict(zip(names, await compile_rogue(dev, *names), strict=True)) for dev in self.devices]
        for dev, kernels in zip(self.devices, self.rogue, strict=True):
            kernels |= {name: await tried(dev, name) for name in ("wild", "spin")}
        self.words: list[Any] = await put(self.devices, *(np.zeros(1, np.int32) for _ in self.devices))
        self.before = [dev.generation for dev in self.devices]
        return self

    @property
    def victim(self) -> Any:
        """The member that is struck."""
        return self.devices[self.lost]

    async def strike(self) -> None:
        """Let the fault happen, and wait until every worker that it costs has been replaced."""
        losers = [(self.devices[rank], self.devices[rank].generation) for rank in self.fault.losers(self)]
        await self.fault.strike(self, self.victim)
        for dev, generation in losers:
            await next_generation(dev, generation)

    async def call(self, function: Any, *arguments: Any) -> None:
        try:
            await function(*arguments)
        except WorldLost as error:
            self.errors.append(error)
        self.ended += 1

    async def whole(self) -> None:
        """Everything is as it was, and the world computes."""
        for found, given in zip([*await get(self.arrays), *await get(self.apart)], self.given * 2, strict=True):
            assert np.array_equal(found, given)
        await self.world.all_reduce(self.arrays, self.outputs)
        assert all(np.array_equal(found, self.total) for found in await get(self.outputs))


# --- moments ----------------------------------------------------------------------------------------------------------


async def during_init(scene: Scene) -> None:
    """Another world of the same members is being made."""
    if not ON_GPU:
        inject(scene.victim, "ncclCommInitRankConfig", Delay(0.3))
    made: list[Any] = []

    async def make() -> None:
        made.append(await scene.devices.world(nccl=SETTINGS))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make)
        await quiet()
        await scene.strike()
    (world,) = made
    outputs = await world.all_reduce(scene.arrays)
    assert all(np.array_equal(found, scene.total) for found in await get(outputs))


@contextlib.asynccontextmanager
async def held(scene: Scene) -> AsyncIterator[None]:
    """A collective is in flight, which waits for the victim; a survivor has work on another lane."""
    async with gated(scene.victim), trio.open_nursery() as nursery:
        scene.touch[scene.lost].launch_nowait(*SHAPE, scene.outputs[scene.lost], N)
        nursery.start_soon(scene.call, scene.world.all_reduce, scene.arrays, scene.outputs)
        await under_way(scene.world)
        yield


async def in_flight(scene: Scene) -> None:
    survivor, spared = scene.devices[0], 0 not in scene.fault.losers(scene)
    (array,) = await put([survivor], NUMBERS)
    async with survivor.lane() as lane:
        async with held(scene):
            if spared:
                for _ in range(5):
                    scene.touch[0].launch_nowait(*SHAPE, array, N, lane=lane)
            await scene.strike()
            if spared:
                await lane.synchronize()
        if spared:
            assert np.array_equal(await array.to_host(), NUMBERS + 5)
    (error,) = scene.errors
    assert error.causes
    assert set(error.causes) <= set(scene.fault.losers(scene))
    assert error.epoch == 1
    assert [each.state for each in scene.outputs] == ["torn"] * scene.size


async def queued(scene: Scene) -> None:
    """A collective waits for a copy of the victim from its output, and so was not published."""
    mine = scene.victim.empty(N, np.int32)
    async with trio.open_nursery() as nursery, gated(scene.victim):

        async def copy() -> None:
            with contextlib.suppress(ContextLost):
                await mine.copy_from(scene.outputs[0])

        nursery.start_soon(copy)
        await quiet()
        nursery.start_soon(scene.call, scene.world.all_reduce, scene.arrays, scene.outputs)
        await quiet()
        assert scene.ended == 0
        await scene.strike()
    assert scene.errors == []
    assert all(np.array_equal(found, scene.total) for found in await get(scene.outputs))


async def idle(scene: Scene) -> None:
    await scene.world.all_reduce(scene.arrays, scene.outputs)
    await scene.strike()


async def re_forming(scene: Scene) -> None:
    """The first member was lost, and the next epoch is being made."""
    first = scene.devices[0]
    if not ON_GPU:
        inject(scene.victim, "ncclCommInitRankConfig", Delay(0.3))
    kill_worker(first)
    await next_generation(first, first.generation)
    await scene.strike()


async def closing(scene: Scene) -> None:
    """The world is being closed, and waits for a collective that is in flight."""
    async with held(scene), trio.open_nursery() as nursery:
        nursery.start_soon(scene.world.aclose)
        await quiet()
        await scene.strike()
    assert len(scene.errors) == scene.ended == 1
    scene.world = await scene.devices.world(nccl=SETTINGS)


MOMENTS = {
    "during init": during_init,
    "in flight": in_flight,
    "queued": queued,
    "idle": idle,
    "re-forming": re_forming,
    "closing": closing,
}


# --- cells ------------------------------------------------------------------------------------------------------------

SOME = {
    ("killed", "during init", 2, 0),
    ("killed", "in flight", 4, 1),
    ("killed", "queued", 2, 1),
    ("killed", "re-forming", 2, 0),
    ("killed", "closing", 2, 0),
    ("wild access", "in flight", 2, 1),
    ("trap", "idle", 2, 1),
    ("endless kernel", "in flight", 2, 0),
    ("stopped", "in flight", 2, 1),
    ("abort hangs", "in flight", 2, 0),
    ("survivor too", "in flight", 2, 1),
    ("all at once", "in flight", 4, 0),
}
"""The cells of `make test`."""

CELLS = [
    pytest.param(
        *cell,
        id="-".join(map(str, cell)),
        marks=[] if cell in SOME else [pytest.mark.soak],
    )
    for cell in [
        (fault, moment, count, standby)
        for fault in FAULTS
        for moment in MOMENTS
        for count in (2, 4)
        for standby in (0, 1)
    ]
]


@pytest.fixture(scope="module")
def driver_open() -> None:
    """On a GPU the first compile of a process leaves descriptors of the driver open, as long as the process lives."""

    async def use() -> None:
        async with open_world(2) as (devices, _):
            await compile_rogue(devices[0], "touch")

    if ON_GPU:
        trio.run(use)


@pytest.mark.usefixtures("driver_open")
@pytest.mark.parametrize(("fault", "moment", "count", "standby"), CELLS)
async def test_a_cell(fault: str, moment: str, count: int, standby: int) -> None:
    row = FAULTS[fault]
    if ON_GPU and (row.sim_only or count > 2):
        pytest.skip("on GPUs worlds of two, and nothing injected")
    before = children()
    with (
        mock.patch.object(watch, "STOPPED_SECONDS", STOPPED_SECONDS),
        mock.patch.object(epochs, "ABORT_SECONDS", epochs.ABORT_SECONDS if ON_GPU else ABORT_SECONDS),
    ):
        opened = len(open_descriptors(collect=True))
        async with open_world(count, standby=standby) as (devices, world):
            if standby:
                for dev in devices:
                    await dev.wait_standby()
            scene = await Scene(devices, world, row, moment).begin()
            await MOMENTS[moment](scene)
            await scene.whole()
            for rank, dev in enumerate(devices):
                if rank not in row.losers(scene) and moment != "re-forming":
                    assert dev.generation == scene.before[rank]
    assert children() <= before
    assert len(open_descriptors()) <= opened
