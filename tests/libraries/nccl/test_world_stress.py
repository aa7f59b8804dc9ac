"""Random programs of many tasks with several worlds: they end, and no byte is wrong, whichever workers are lost."""

from __future__ import annotations

import os

import pytest

from support import ON_GPU
from support.world_stress import run_stress
from support.worlds import SETTINGS, open_world


async def play(
    seed: int, *, count: int, standby: int = 0, tasks: int = 6, calls: int = 15, losses: int = 0, sleep: float = 0.3
) -> None:
    """Print what was done; an error tells the seed."""
    try:
        async with open_world(count, standby=standby, deadline=1800 if losses > 50 else 120) as (devices, whole):
            worlds = [whole, await devices.world(reversed(range(count)), nccl=SETTINGS)]
            if count > 2:
                worlds.append(await devices.world([2, 0], nccl=SETTINGS))
            worlds.append(await devices.world([1], nccl=SETTINGS))
            stress = await run_stress(devices, worlds, seed, tasks=tasks, calls=calls, losses=losses, sleep=sleep)
            print(f"\n{sum(stress.calls.values())} calls, {stress.losses} losses, {dict(stress.lost)}; seed {seed}")
            assert stress.losses == losses
    except BaseException as error:
        error.add_note(f"the seed was {seed}")
        raise


@pytest.mark.parametrize("count", [2, 4])
async def test_many_tasks_with_several_worlds_never_wait_in_a_circle(count: int) -> None:
    await play(7 + count, count=count)


@pytest.mark.parametrize(("count", "standby"), [(2, 0), (2, 1), (4, 0)])
async def test_no_byte_is_wrong_while_members_are_lost(count: int, standby: int) -> None:
    await play(11 + count + standby, count=count, standby=standby, tasks=4, calls=5, losses=4)


@pytest.mark.soak
@pytest.mark.parametrize("standby", [0, 1])
@pytest.mark.parametrize("count", [2, 4])
async def test_no_byte_is_wrong_in_a_hundred_losses(count: int, standby: int) -> None:
    count = min(count, 2) if ON_GPU else count
    await play(int.from_bytes(os.urandom(4)), count=count, standby=standby, calls=50, losses=100, sleep=0.5)


@pytest.mark.soak
async def test_thousands_of_calls_of_many_tasks() -> None:
    await play(int.from_bytes(os.urandom(4)), count=2 if ON_GPU else 4, tasks=30, calls=100)
