"""The benchmark of worlds: that it measures and judges all, and tells no figures of sums that are wrong."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import support
from support import ROOT
from support.groups import DEVICES, open_group

BENCHMARKS = ROOT / "tests" / "benchmarks"
sys.path.append(str(BENCHMARKS))
report, world = importlib.import_module("speed_report"), importlib.import_module("world")
OURS, RAW = report.OURS, report.RAW
PLAN = world.PLANS["sim"]


def run(*arguments: object, devices: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run it on the simulator."""
    command = [sys.executable, str(BENCHMARKS / "world.py"), "--backend", "sim", *map(str, arguments)]
    environment = support.child_environment(**({} if devices is None else {DEVICES: str(devices)}))
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.sim_only
@pytest.mark.long
def test_a_world_is_measured_in_all_rows_and_none_is_judged_by_the_simulator(tmp_path):
    figures = tmp_path / "world.json"
    done = run("--json", figures, "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(figures.read_text(encoding="utf-8"))
    rows = [work.row(way) for work in PLAN.sums for way in world.WAYS if way != world.BATCHED or work.together]
    assert [(each["what"], each["who"]) for each in told["measurements"]] == [
        *((row, who) for row in rows for who in (OURS, RAW)),
        *((world.recovery_row(standby), OURS) for standby in (1, 0)),
    ]
    assert (told["benchmark"], told["machine"], told["absent"]) == ("world", "simulator", [])
    assert [each["name"] for each in told["must_hold"]] == [target.name for target in world.targets_of(PLAN)]
    assert {each["missing"] for each in told["must_hold"]} == {"only a GPU can tell"}


@pytest.mark.sim_only
def test_a_machine_with_one_device_has_no_world_to_measure(tmp_path):
    done = run("--json", tmp_path / "world.json", "--strict", devices=1)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "world.json").read_text(encoding="utf-8"))
    assert told["measurements"] == []
    assert {each["missing"] for each in told["must_hold"]} == {"needs two GPUs"}


def test_all_rows_of_the_issue_have_targets():
    names = [target.name for target in world.targets_of(world.PLANS["cuda"])]
    assert len(names) == 3 + 1 + 1 + 1 + 2


@pytest.mark.sim_only
async def test_a_sum_that_is_wrong_ends_the_run():
    async with open_group(2) as devices:
        ours = await world.Ours.made(devices, 64)
        await ours.check(world.Sum(64, 1, 1))

        class Wrong:
            async def all_reduce(self, sources, targets):
                await targets[0].fill(3)

        with pytest.raises(SystemExit, match="the sum is wrong"):
            await world.Ours(Wrong(), ours.sources, ours.targets).check(world.Sum(64, 1, 1))
