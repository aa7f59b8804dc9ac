"""A worker is lost while a command of one device works on memory of another: what is torn, and that the rest goes on.

*Who* is lost is the device whose worker runs the command, or the owner of the memory that it reaches.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import attrs
import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import ContextLost, RestartPolicy, StaleArray, read_only
from support.groups import open_group
from support.rogue import WILD, compile_rogue, gated, kill_worker, next_generation

N = 1000
SHAPE = (-(-N // 128), 128)
NUMBERS = np.arange(N, dtype=np.int32)
DEADLINE = 300
ADD = """
extern "C" __global__ void add(int *x, const int *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += y[i];
}
"""
CALLS = ("copies from", "reads by a kernel", "writes by a kernel")
WHO = ("the device that works", "the owner of the memory")


@attrs.define
class Scene:
    """Two devices: one works, and reaches into the memory of the other."""

    worker: Any
    owner: Any
    add: Any
    touch: Any
    wilds: dict[Any, Any]

    async def arrays(self) -> tuple[Any, Any, Any]:
        """An array of the device that works, one of the owner, and one of the owner that has nothing to do with it."""
        return (
            await self.worker.to_device(NUMBERS * 10),
            await self.owner.to_device(NUMBERS),
            await self.owner.to_device(NUMBERS),
        )

    async def call(self, name: str, mine: Any, theirs: Any) -> None:
        """Make the call."""
        if name == "copies from":
            await mine.copy_from(theirs)
        elif name == "reads by a kernel":
            await self.add.launch(*SHAPE, mine, read_only(theirs), N)
        else:
            await self.add.launch(*SHAPE, theirs, read_only(mine), N)

    async def lose(self, dev: Any, how: str) -> None:
        """Lose the worker of a device."""
        generation = dev.generation
        if how == "kill":
            kill_worker(dev)
        else:
            async with dev.lane() as lane:
                with pytest.raises(ContextLost):
                    await self.wilds[dev].launch(1, 1, WILD, lane=lane)
        await next_generation(dev, generation)


@pytest.mark.parametrize("how", ["kill", "fault"])
@pytest.mark.parametrize("standby", [0, 1])
async def test_a_loss_on_either_side_tears_only_what_the_lost_worker_was_writing(standby: int, how: str) -> None:
    policy = RestartPolicy(intensity=math.inf, backoff_min=0.01)
    with trio.fail_after(DEADLINE):
        async with open_group(2, standby=standby, restart_policy=policy) as (worker, owner):
            (touch,) = await compile_rogue(owner, "touch")
            wilds = {dev: (await compile_rogue(dev, "wild"))[0] for dev in (worker, owner)}
            scene = Scene(worker, owner, await worker.nvrtc.compile(ADD, "add"), touch, wilds)
            for name, who in itertools.product(CALLS, WHO):
                try:
                    await one_loss(scene, name, who, how, standby)
                except BaseException as error:
                    error.add_note(f"{name}, lost is {who}")
                    raise


async def one_loss(scene: Scene, name: str, who: str, how: str, standby: int) -> None:
    """Lose a worker while a call is under way, and look at everything."""
    worker, owner = scene.worker, scene.owner
    if standby:
        for dev in (worker, owner):
            await dev.wait_standby()
    mine, theirs, apart = await scene.arrays()
    written = theirs if name == "writes by a kernel" else mine
    lost = worker if who == WHO[0] else owner
    other = owner if who == WHO[0] else worker
    generation = other.generation
    errors: list[Exception] = []

    async def call() -> None:
        try:
            await scene.call(name, mine, theirs)
        except ContextLost as error:
            errors.append(error)

    await scene.call(name, mine, theirs)  # not the first of its kind
    await mine.copy_from(NUMBERS * 10)
    await theirs.copy_from(NUMBERS)
    async with gated(worker) as gate, trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked(0.02)
        if lost is worker:
            scene.touch.launch_nowait(*SHAPE, apart, N)  # of the other device
        await scene.lose(lost, how)
        if lost is owner:
            await scene.touch.launch(*SHAPE, apart, N)  # of the next generation, while the call is under way
        await gate.open()
    assert other.generation == generation
    assert (await apart.to_host() == NUMBERS + 1).all()
    if lost is worker:
        (error,) = errors
        assert error.device == worker.index
        assert written.state == "torn"
        with pytest.raises(StaleArray, match=f"when generation {worker.generation - 1} was lost"):
            await written.to_host()
        kept, right = (mine, NUMBERS * 10) if written is theirs else (theirs, NUMBERS)
        assert (await kept.to_host() == right).all()
        await written.copy_from(NUMBERS)
        assert (await written.to_host() == NUMBERS).all()
    else:
        assert not errors
        results = {"copies from": (NUMBERS, NUMBERS), "reads by a kernel": (NUMBERS * 11, NUMBERS)}
        for array, right in zip((mine, theirs), results.get(name, (NUMBERS * 10, NUMBERS * 11)), strict=True):
            assert (await array.to_host() == right).all()
    await scene.call(name, mine, theirs)
