"""Lanes, events, modules and libraries at once, under faults and refused calls: see ``support/lane_stress.py``."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import trio

from atomr_trio import RestartPolicy
from support import SWEEP
from support.lane_stress import play
from support.rogue import until

pytestmark = pytest.mark.used_workers


async def play_long(open_test_device: Any, seed: int, seconds: float, standby: int, between: float) -> None:
    """Play, and look that nothing is left unfinished."""
    try:
        with trio.fail_after(seconds + 60):
            policy = RestartPolicy(intensity=math.inf)
            async with open_test_device(standby=standby, restart_policy=policy, hang_timeout=6.0) as dev:
                players = await play(dev, seed, seconds, between)
                await until(lambda: all(lane.unfinished == 0 for lane in dev.statistics().lanes))
                for actor in dev.statistics().actors:
                    assert actor.unsettled == 0, actor
                done, cut_off = sum(each.done for each in players), sum(each.cut_off for each in players)
                print(f"\n{done} deeds, {cut_off} cut off, {dev.generation - 1} losses, seed {seed}")
                assert all(each.done for each in players)
    except BaseException as error:
        error.add_note(f"the seed was {seed}")
        raise


async def test_lanes_that_come_and_go_under_faults_lose_no_work_and_never_hang(open_test_device):
    await play_long(open_test_device, seed=1, seconds=2 if SWEEP else 1, standby=1, between=0.3)


@pytest.mark.soak
@pytest.mark.parametrize("standby", [0, 1])
async def test_lanes_that_come_and_go_under_faults_for_minutes(open_test_device, standby):
    await play_long(open_test_device, int.from_bytes(os.urandom(4)), seconds=120, standby=standby, between=0.4)
