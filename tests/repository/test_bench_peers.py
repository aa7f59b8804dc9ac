"""The benchmark of two devices: that it measures and judges all, and tells no figures of copies that are wrong."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Self

import pytest
import trio

import support
from support import ROOT
from support.groups import DEVICES, open_group

BENCHMARKS = ROOT / "tests" / "benchmarks"
sys.path.append(str(BENCHMARKS))
report, targets = importlib.import_module("speed_report"), importlib.import_module("targets")
peers, bench_all = importlib.import_module("peers"), importlib.import_module("bench_all")
OURS, RAW = report.OURS, report.RAW
PLAN = peers.PLANS["sim"]
COPIES = [copy.row(way) for copy in PLAN.copies for way in peers.WAYS]


def run(*arguments: object, devices: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run it on the simulator."""
    command = [sys.executable, str(BENCHMARKS / "peers.py"), "--backend", "sim", *map(str, arguments)]
    environment = support.child_environment(**({} if devices is None else {DEVICES: str(devices)}))
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.sim_only
@pytest.mark.long
def test_two_devices_are_measured_in_all_rows_and_none_is_judged_by_the_simulator(tmp_path):
    figures = tmp_path / "peers.json"
    done = run("--json", figures, "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(figures.read_text(encoding="utf-8"))
    assert [(each["what"], each["who"]) for each in told["measurements"]] == [
        *((row, who) for row in COPIES for who in (OURS, RAW)),
        *(
            (work.row(devices, way), OURS)
            for work in PLAN.kernels
            for way in (peers.CALLER, peers.WHOLE)
            for devices in (1, 2)
        ),
        *((peers.opening_row(devices, until), OURS) for until in ("opened", peers.FIRST_RESULT) for devices in (1, 2)),
    ]
    assert (told["benchmark"], told["machine"], told["absent"]) == ("peers", "simulator", [])
    assert all(each["min"] > 0 for each in told["measurements"])
    assert [each["name"] for each in told["must_hold"]] == [target.name for target in peers.targets_of(PLAN)]
    assert {each["missing"] for each in told["must_hold"]} == {"only a GPU can tell"}


@pytest.mark.sim_only
def test_a_machine_with_one_device_needs_two_and_fails_nothing(tmp_path):
    done = run("--json", tmp_path / "peers.json", "--strict", devices=1)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))
    assert told["measurements"] == []
    names = [target.name for target in peers.targets_of(PLAN)]
    known = {f"peers: {name}": ["one", "two"] for name in names}
    lines = list(bench_all.lines_of(told, known))
    assert [(line.name, line.in_baseline, line.fails) for line in lines] == [(name, True, False) for name in names]
    assert all(str(line).startswith("- ") and str(line).endswith("needs two GPUs") for line in lines)


@pytest.mark.sim_only
async def test_where_there_is_no_peer_access_only_awaited_copies_are_measured():
    table = report.Table()
    async with open_group(2, access="0") as devices:
        await peers.copies(devices, PLAN, "sim", table)
    awaited = [copy.row(peers.AWAITED) for copy in PLAN.copies]
    assert [(measure.what, measure.who) for measure in table.measures] == [(row, OURS) for row in awaited]
    lacking = {(row, who) for row in COPIES for who in (OURS, RAW)} - {(row, OURS) for row in awaited}
    assert {(each.what, each.who) for each in table.absent} == lacking
    assert {each.reason for each in table.absent} == {"device 1 has no peer access to device 0"}


@pytest.mark.sim_only
async def test_a_bare_process_that_ends_is_told_and_ours_is_measured_alone(monkeypatch, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no driver here')", encoding="utf-8")
    monkeypatch.setattr(peers, "BARE", broken)
    table = report.Table()
    async with open_group(2) as devices:
        await peers.copies(devices, PLAN, "sim", table)
    assert [(measure.what, measure.who) for measure in table.measures] == [(row, OURS) for row in COPIES]
    assert [(each.what, each.who) for each in table.absent] == [(row, RAW) for row in COPIES]
    assert {each.reason for each in table.absent} == {"its process ended with 1: no driver here"}


# --- copies that are wrong --------------------------------------------------------------------------------------------

SIZE = 3 * peers.MARK


async def copied(array: Any, _nbytes: int) -> None:
    """Copy as one should."""
    await array.target[:SIZE].copy_from(array.source[:SIZE])


async def too_little(array: Any, _nbytes: int) -> None:
    await array.target[: SIZE - 1].copy_from(array.source[: SIZE - 1])


async def too_much(array: Any, _nbytes: int) -> None:
    await array.target[: SIZE + 1].copy_from(array.source[: SIZE + 1])


async def from_elsewhere(array: Any, _nbytes: int) -> None:
    await array.target[1:SIZE].copy_from(array.source[: SIZE - 1])


async def nothing(_array: Any, _nbytes: int) -> None:
    pass


@pytest.mark.parametrize(
    ("how", "right"),
    [(copied, True), (too_little, False), (too_much, False), (from_elsewhere, False), (nothing, False)],
)
async def test_copies_that_do_not_arrive_are_not_timed(dev, how: Callable[..., Any], right: bool):
    arrays = await peers.Ours.made([dev, dev], SIZE + peers.MARK)
    asked = []

    async def ways(nbytes: int, count: int) -> dict[str, float]:
        asked.append((nbytes, count))
        await how(arrays, nbytes)
        return {}

    copy = peers.Copy(SIZE, 5)
    if right:
        await peers.checked({"somebody": ways}, arrays, copy)
    else:
        with pytest.raises(SystemExit, match="copy of 3 KiB between devices: what somebody has copied"):
            await peers.checked({"somebody": ways}, arrays, copy)
    assert asked == [(SIZE, 1)]


async def test_the_subjects_take_turns_in_both_orders():
    copy, log = peers.Copy(4096, 7), []

    def subject(who: str, first: float) -> Any:
        async def ways(nbytes: int, count: int) -> dict[str, float]:
            log.append((who, nbytes, count))
            return {peers.AWAITED: first + len(log), peers.WHOLE: 1.0}

        return ways

    measures = await peers.timed({"a": subject("a", 0), "b": subject("b", 100)}, copy, 3)
    assert log == [(who, 4096, 7) for who in "abbaab"]
    assert measures == [
        report.Measure(copy.row(peers.AWAITED), "a", [1, 4, 5]),
        report.Measure(copy.row(peers.AWAITED), "b", [102, 103, 106]),
        *(report.Measure(copy.row(peers.WHOLE), who, [1, 1, 1]) for who in "ab"),
    ]


# --- what must hold ---------------------------------------------------------------------------------------------------


def test_all_large_copies_the_small_batch_the_kernels_and_the_opening_are_judged():
    judged = peers.targets_of(peers.PLANS["cuda"])
    rows = [(target.row, target.of, target.other_row) for target in judged]
    assert rows == [
        *((f"copy of {size} between devices, end to end", RAW, "") for size in ("64 MiB", "256 MiB", "1 GiB")),
        ("copy of 4 KiB between devices, end to end", RAW, ""),
        *(
            (f"kernels of {time} µs, two devices, end to end", OURS, f"kernels of {time} µs, one device, end to end")
            for time in (10, 30, 100)
        ),
        ("two devices, opened", OURS, "one device, opened"),
    ]


@pytest.mark.parametrize(
    ("row", "limit"),
    [
        ("copy of 64 MiB between devices, end to end", 1 / 0.95),
        ("copy of 4 KiB between devices, end to end", 2.0),
        ("kernels of 30 µs, two devices, end to end", 2 / 1.9),
        ("two devices, opened", 1.2),
    ],
)
@pytest.mark.parametrize("held", [True, False])
def test_a_row_of_two_devices_is_held_up_to_its_limit(row, limit, held):
    (target,) = [each for each in peers.targets_of(peers.PLANS["cuda"]) if each.row == row]
    figure = limit * (0.999 if held else 1.006)
    values = [(row, OURS, [figure] * 3), (target.other_row or row, target.of, [1.0] * 3)]
    verdict = target.judge(report.Table([report.Measure(*each) for each in values]))
    assert verdict.held is held
    assert (verdict.ratio, verdict.target) == (pytest.approx(figure), pytest.approx(limit))


def test_two_devices_are_compared_with_the_faster_one_of_the_same_round():
    assert peers.best([[1.0, 5.0], [2.0, 4.0]]) == [1.0, 4.0]
    work = peers.Kernels(10, 5)
    measures = list(peers.measures_of(work, [([1.0, 10.0], [2.0, 11.0]), ([3.0, 20.0], [4.0, 25.0])]))
    assert measures == [
        report.Measure("kernels of 10 µs, one device, caller", OURS, [1, 3]),
        report.Measure("kernels of 10 µs, two devices, caller", OURS, [2, 4]),
        report.Measure("kernels of 10 µs, one device, end to end", OURS, [10, 20]),
        report.Measure("kernels of 10 µs, two devices, end to end", OURS, [11, 25]),
    ]
    told = list(peers.throughputs(peers.Plan((), (work,), 2, 1, 0), report.Table(measures)))
    assert told == ["kernels of 10 µs: 0 a second on two devices, 1.67 times as many as on one"]


def test_the_rows_of_openings_are_of_both_moments():
    measures = peers.opened_measures({1: [[1.0, 2.0], [3.0, 4.0]], 2: [[5.0, 6.0]]})
    assert list(measures) == [
        report.Measure("one device, opened", OURS, [1, 3]),
        report.Measure("two devices, opened", OURS, [5]),
        report.Measure("one device, a first result of each", OURS, [2, 4]),
        report.Measure("two devices, a first result of each", OURS, [6]),
    ]


def test_one_device_and_two_are_opened_in_turns_and_the_first_ones_do_not_count(monkeypatch):
    asked, table = [], report.Table()

    def opening(devices: int, _backend: str) -> list[float]:
        asked.append(devices)
        return [len(asked), 10.0 * len(asked)]

    monkeypatch.setattr(peers, "opening", opening)
    peers.openings(peers.Plan((), (), 1, openings=2, uncounted=1), "sim", table)
    assert asked == [1, 2, 2, 1, 1, 2]
    assert table.of(peers.opening_row(1), OURS).values == (4, 5)
    assert table.of(peers.opening_row(2, peers.FIRST_RESULT), OURS).values == (30, 60)


def test_a_process_that_cannot_open_devices_ends_the_run(monkeypatch):
    monkeypatch.setattr(peers, "OPENING", "raise SystemExit('there is none')")
    with pytest.raises(SystemExit, match="two devices, opened: there is none"):
        peers.opening(2, "sim")


def test_a_round_gives_each_device_its_launch_in_turn():
    """Checked with batches that only note what they are given."""
    log: list[object] = []

    class Noting:
        def __init__(self, name: str) -> None:
            self.name = name

        async def __aenter__(self) -> Self:
            log.append(f"{self.name} begins")
            return self

        async def __aexit__(self, *_: object) -> None:
            log.append(f"{self.name} ends")

        def launch(self, *arguments: object) -> None:
            log.append((self.name, *arguments))

    batches = [lambda: Noting("a"), lambda: Noting("b")]
    seconds = trio.run(peers.driven, batches, ["ka", "kb"], (7,), 2)
    one = [("a", "ka", 1, 1, 7), ("b", "kb", 1, 1, 7)]
    assert log == ["a begins", "b begins", *one, *one, "b ends", "a ends"]
    assert 0 <= seconds[0] <= seconds[1]
