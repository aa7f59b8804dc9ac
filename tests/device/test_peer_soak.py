"""Work across the devices of a group while their workers are lost at any moment: no byte is wrong."""

from __future__ import annotations

import math
import os

import pytest

from atomr_trio import RestartPolicy
from support import ON_GPU
from support.groups import open_group
from support.peer_stress import run_stress


async def play(seed: int, losses: int, *, standby: int, count: int = 2, sleep: float) -> None:
    """Print what was done; an error tells the seed."""
    try:
        async with open_group(count, standby=standby, restart_policy=RestartPolicy(intensity=math.inf)) as devices:
            stress = await run_stress(devices, seed, losses, sleep=sleep)
            print(
                f"\n{stress.calls} calls, {losses} losses, {stress.faults} by faults, {stress.lost} lost; seed {seed}"
            )
            assert stress.lost
    except BaseException as error:
        error.add_note(f"the seed was {seed}")
        raise


@pytest.mark.parametrize("standby", [0, 1])
async def test_no_byte_is_wrong_on_any_device_while_workers_are_lost(standby: int) -> None:
    await play(5 + standby, 6, standby=standby, sleep=0.1)


@pytest.mark.soak
@pytest.mark.parametrize("standby", [0, 1])
async def test_no_byte_is_wrong_on_any_device_in_hundreds_of_losses(standby: int) -> None:
    await play(int.from_bytes(os.urandom(4)), 30 if ON_GPU else 100, standby=standby, sleep=0.3)


@pytest.mark.soak
async def test_no_byte_is_wrong_on_three_devices() -> None:
    await play(int.from_bytes(os.urandom(4)), 50, standby=1, count=2 if ON_GPU else 3, sleep=0.3)
