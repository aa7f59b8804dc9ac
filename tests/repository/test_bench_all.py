"""What is made of the benchmarks: one table with a baseline, two commits in turns, the costs of verbs, the picture."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import atomr_cuda
import atomr_sim
import atomr_trio
import support
from support import ROOT

BENCHMARKS = ROOT / "tests" / "benchmarks"
sys.path.append(str(BENCHMARKS))
report, targets = importlib.import_module("speed_report"), importlib.import_module("targets")
bench_all, compare = importlib.import_module("bench_all"), importlib.import_module("compare")
verb_costs, pictures = importlib.import_module("verb_costs"), importlib.import_module("pictures")
turns, speed = importlib.import_module("turns"), importlib.import_module("speed")
speed_works = importlib.import_module("speed_works")


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program of the benchmarks on the simulator."""
    command = [sys.executable, str(BENCHMARKS / program), *map(str, arguments)]
    environment = support.child_environment()
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


# --- one table, and the baseline --------------------------------------------------------------------------------------


def told(*verdicts: report.Verdict) -> dict[str, Any]:
    """What a benchmark tells of its targets."""
    return {"benchmark": "speed", "must_hold": [verdict.facts() for verdict in verdicts]}


def judged(figure: float, limit: float = 1.0, name: str = "row") -> report.Verdict:
    return report.Verdict(name, figure <= limit, figure, limit, other=limit / 2)


KNOWN = {"speed: row": ["one", "two"]}


def test_a_row_that_is_missed_fails_the_run_only_if_it_is_in_the_baseline():
    for figure, known, fails in ((1.1, KNOWN, True), (1.1, {}, False), (1.0, KNOWN, False)):
        (line,) = bench_all.lines_of(told(judged(figure)), known)
        assert line.fails is fails
    (unjudged,) = bench_all.lines_of(told(report.Verdict("row", None, missing="why")), KNOWN)
    assert not unjudged.fails
    assert str(unjudged).endswith("why")


def test_a_line_tells_figure_limit_ratio_and_target():
    (line,) = bench_all.lines_of(told(judged(0.5e-3, 1e-3)), KNOWN)
    assert str(line).split() == ["held", "*", "speed:", "row", "500", "µs", "1", "ms", "1.000", "2.000"]
    assert bench_all.lines_of(told(report.Verdict("row", False, 2.0, 1.0)), {}).__next__().facts["ratio"] is None


def test_a_row_enters_the_baseline_when_it_has_held_by_5_percent_on_two_machines():
    enough, too_little, missed = (judged(figure, name=name) for figure, name in ((0.95, "a"), (0.96, "b"), (1.1, "c")))
    lines = list(bench_all.lines_of(told(enough, too_little, missed), {}))
    once = bench_all.recorded({}, lines, "one")
    assert once == {"speed: a": ["one"]}
    assert not bench_all.in_baseline(once, "speed: a")
    assert bench_all.recorded(once, lines, "one") == once
    twice = bench_all.recorded(once, lines, "two")
    assert bench_all.in_baseline(twice, "speed: a")
    assert bench_all.recorded(twice, lines, "three") == twice


def test_a_row_stays_in_the_baseline_when_it_is_missed_or_not_measured():
    lines = list(bench_all.lines_of(told(judged(2.0)), KNOWN))
    assert bench_all.recorded(KNOWN, lines, "three") == KNOWN
    assert bench_all.recorded(KNOWN, [], "three") == KNOWN


def test_what_may_take_no_longer_than_another_holds_by_a_share_of_it():
    values = {report.OURS: [0.9, 1.8], report.CUPY: [1.0, 2.0]}
    table = report.Table([report.Measure("draw", who, each) for who, each in values.items()])
    (verdict,) = targets.judged(table, targets.of_draws([("draw", report.CUPY)]), "sim")
    assert verdict.held is None
    (target,) = targets.of_draws([("draw", report.CUPY)])
    found = attrs_without_least(target).judge(table)
    assert (found.held, found.margin) == (True, pytest.approx(0.1))


def attrs_without_least(target: Any) -> Any:
    """The same target for a call of any length."""
    return type(target)(target.row, target.times, target.of, paired=True)


def test_the_committed_baseline_names_targets_and_two_machines_at_most():
    rows = bench_all.known_rows(bench_all.BASELINE)
    for key, machines in rows.items():
        benchmark, _, name = key.partition(": ")
        assert benchmark in bench_all.BENCHMARKS
        assert ": at most " in name
        assert len(set(machines)) == len(machines) <= bench_all.MACHINES


@pytest.mark.sim_only
def test_all_benchmarks_make_one_table_and_those_that_do_not_end_fail_the_run(tmp_path):
    stale = tmp_path / "blas.json"
    stale.write_text("{}", encoding="utf-8")
    baseline = tmp_path / "baseline" / "rows.json"
    baseline.parent.mkdir()
    options = ("--backend", "sim", "--folder", tmp_path, "--baseline", baseline, "--record")
    done = run("bench_all.py", *options, "--benchmarks", "holding")
    found = json.loads((tmp_path / "all.json").read_text(encoding="utf-8"))
    assert not stale.exists()
    (verdict,) = found["benchmarks"]["holding"]["must_hold"]
    assert (verdict["name"], verdict["unit"]) == ("events for 1,000 listeners: at most 5 ms", "s")
    assert (done.returncode, found["failed"]) == (0, [])
    assert f"holding: {verdict['name']} " in done.stdout
    assert bench_all.told_speed(found) in done.stdout
    assert found["title"] == "Targets of holding"
    assert f"the picture is in {tmp_path / 'all.svg'}" in done.stdout
    assert json.loads(baseline.read_text(encoding="utf-8")).keys() == {"rows"}


def test_figures_of_other_machines_make_the_baseline_and_a_row_of_it_that_is_missed_fails_the_run(tmp_path, capsys):
    baseline, figures = tmp_path / "baseline.json", tmp_path / "all.json"
    options = {"baseline": baseline, "figures": figures, "record": True}
    statuses = []
    for machine, figure in (("one", 0.5), ("two", 0.5), ("three", 1.5)):
        everything = {"machine": machine, "seconds": 400.0, "failed": [], "benchmarks": {"speed": told(judged(figure))}}
        figures.write_text(json.dumps(everything), encoding="utf-8")
        statuses.append(bench_all.main(argparse.Namespace(**options)))
    assert statuses == [0, 0, 1]
    assert bench_all.known_rows(baseline) == {"speed: row": ["one", "two"]}
    assert "missed, and in the baseline: speed: row" in capsys.readouterr().out


def test_a_run_tells_how_fast_python_was_and_an_earlier_one_may_not_know():
    steps = bench_all.conclusion.python_steps()
    assert steps == sorted(steps)
    assert 1 < steps[0] < 10_000
    assert bench_all.told_speed({"python_steps": [33.2, 35.4, 60.0]}) == "a step of a loop of Python: 35 ns, 33 to 60"
    assert bench_all.told_speed({}) == "how fast Python was is not known"


def test_what_was_missed_of_the_baseline_is_measured_once_more_and_the_second_figure_counts(tmp_path, monkeypatch):
    names = ("late once: at most 1 s", "late twice: at most 1 s", "not in it: at most 1 s", "held: at most 1 s")
    known = {f"speed: {name}": ["one", "two"] for name in names if name != names[2]}
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps({"rows": known}), encoding="utf-8")
    first, second = (
        told(*(judged(figure, name=name) for name, figure in zip(names, figures, strict=True)))
        for figures in ((1.5, 1.5, 1.5, 0.5), (0.9, 1.2, 0.1, 2.0))
    )
    for one, value in ((first, 1.5), (second, 0.9)):
        rows = [report.Measure(what, who, [value]) for what in ("late once", "held") for who in (report.OURS, "x")]
        one["measurements"] = [measure.facts() for measure in rows]
    asked = []

    def answer(name: str, folder: Path, arguments: Any, rows: list[str]) -> dict[str, Any]:
        asked.append((name, rows))
        return second

    monkeypatch.setattr(bench_all, "told_by", answer)
    bench_all.look_again({"speed": first, "fft": told()}, tmp_path, argparse.Namespace(baseline=baseline))
    assert asked == [("speed", ["late once", "late twice"])]
    lines = list(bench_all.lines_of(first, known))
    assert [line.held for line in lines] == [True, False, False, True]
    assert [line.facts["figure"] for line in lines] == [0.9, 1.2, 1.5, 0.5]
    assert [line.fails for line in lines] == [False, True, False, False]
    assert str(lines[0]).endswith("(at first 1.5 s)")
    assert "at first" not in str(lines[3])
    medians = {(each["what"], each["who"]): each["median"] for each in first["measurements"]}
    assert medians == {(row, who): m for row, m in (("late once", 0.9), ("held", 1.5)) for who in (report.OURS, "x")}


@pytest.mark.parametrize("second", [None, {"benchmark": "speed", "must_hold": []}])
def test_a_row_that_the_second_run_does_not_judge_stays_missed(tmp_path, monkeypatch, second):
    baseline = tmp_path / "baseline.json"
    baseline.write_text(json.dumps({"rows": KNOWN}), encoding="utf-8")
    found = {"speed": told(judged(1.5))}
    monkeypatch.setattr(bench_all, "told_by", lambda *given: second)
    bench_all.look_again(found, tmp_path, argparse.Namespace(baseline=baseline))
    (line,) = bench_all.lines_of(found["speed"], KNOWN)
    assert (line.fails, line.facts["figure"]) == (True, 1.5)


@pytest.mark.long
@pytest.mark.sim_only
def test_benchmarks_that_take_single_rows_measure_no_others(tmp_path, monkeypatch):
    """The row's name comes from the target's, so each name that can be in the baseline must be one that is measured."""
    row = "events for 1,000 listeners"
    options = argparse.Namespace(backend="sim", share=1.0)
    for name, value in support.child_environment().items():
        monkeypatch.setenv(name, value)
    found = bench_all.told_by("holding", tmp_path, options, [row])
    assert [bench_all.row_of(facts) for facts in found["must_hold"]] == [row]
    assert [each["what"] for each in found["measurements"]] == [row]
    assert (tmp_path / "holding-again.txt").exists()


def test_single_rows_of_speed_are_measured_with_what_they_are_compared_with():
    judged = targets.of_speed(speed_works.PLANS["cuda"].works)
    for row, expected in (
        ("launch, 4 arguments, prepared, caller", {"launch, 4 arguments, prepared", "launch, 4 arguments"}),
        ("dot 4096, to out, end to end", {"dot 4096, to out"}),
        (report.IMPORT_ROW, {report.IMPORT_ROW}),
    ):
        chosen = speed.chosen_by(argparse.Namespace(rows=[row]), judged)
        names = [work.name for work in speed_works.PLANS["cuda"].works]
        assert {
            name for name in (*names, report.IMPORT_ROW, report.IDLE_ROW, report.START_ROW) if chosen(name)
        } == expected
    every = speed.chosen_by(argparse.Namespace(rows=(), only="^dot"), judged)
    assert (every("dot 4096, to out"), every("axpy 4096")) == (True, False)


def test_single_rows_are_chosen_before_all_that_must_hold():
    must_hold = [targets.Target("a"), targets.Target("b")]
    for rows, only_judged, expected in ((("b", "c"), True, "bc"), ((), True, "ab"), ((), False, "abc")):
        chosen = bench_all.conclusion.chosen(argparse.Namespace(rows=rows, judged=only_judged), must_hold)
        assert "".join(filter(chosen, "abc")) == expected


def test_a_whole_run_on_a_gpu_that_takes_longer_than_it_may_says_so_and_does_not_fail(tmp_path, capsys):
    figures = tmp_path / "all.json"
    told_of_all = {name: {"benchmark": name, "must_hold": []} for name in bench_all.BENCHMARKS}
    late = {"machine": "one", "seconds": bench_all.LONGEST + 1, "failed": [], "benchmarks": told_of_all}
    others = ({"seconds": bench_all.LONGEST}, {"machine": "simulator"}, {"benchmarks": {"fft": told_of_all["fft"]}})
    for different, said in (({}, True), *((each, False) for each in others)):
        figures.write_text(json.dumps({**late, **different}), encoding="utf-8")
        options = {"baseline": tmp_path / "none.json", "figures": figures, "record": False}
        assert bench_all.main(argparse.Namespace(**options)) == 0
        assert ("the run took 481 s, longer than the 480 s" in capsys.readouterr().out) is said


def test_a_benchmark_that_did_not_end_fails_the_run(tmp_path):
    figures = tmp_path / "all.json"
    everything = {"machine": "one", "seconds": 400.0, "failed": ["fft"], "benchmarks": {}}
    figures.write_text(json.dumps(everything), encoding="utf-8")
    options = {"baseline": tmp_path / "none.json", "figures": figures, "record": False}
    assert bench_all.main(argparse.Namespace(**options)) == 1


def test_a_benchmark_that_does_not_end_well_has_no_figures(tmp_path, monkeypatch):
    monkeypatch.setitem(bench_all.BENCHMARKS, "fft", ("no_such_program.py", 1.0))
    arguments = argparse.Namespace(backend="sim", share=1.0)
    assert bench_all.told_by("fft", tmp_path, arguments) is None
    assert "No such file" in (tmp_path / "fft.txt").read_text(encoding="utf-8")


# --- two commits ------------------------------------------------------------------------------------------------------


def row(old: list[float], new: list[float], again: list[float]) -> compare.Row:
    values = zip(compare.LABELS, (old, new, again), strict=True)
    (found,) = compare.rows_of({("row", label): each for label, each in values}, {"row": "s"})
    return found


@pytest.mark.parametrize(
    ("new", "change"),
    [(2.5, ""), (3.29, ""), (3.3, "worse"), (0.98, ""), (0.96, "better")],
)
def test_a_row_differs_when_the_new_median_leaves_the_spread_of_all_old_processes_by_3_percent(new, change):
    low, high = (0.5, 2.0) if new < 1 else (2.0, 9.0)
    found = row([1.0, 2.0, 3.0], [low, new, high], [1.5, 2.0, 3.2])
    assert (found.change, found.alarm) == (change, False)
    assert str(found).startswith(change or " ")


@pytest.mark.parametrize("new", [[1.9, 9.0, 9.0], [0.1, 0.1, 2.1]])
def test_a_row_does_not_differ_when_a_new_process_lies_on_the_other_side_of_the_old_median(new):
    assert row([1.0, 2.0, 3.0], new, [1.5, 2.0, 3.2]).change == ""


@pytest.mark.parametrize(
    ("again", "alarm"), [([3.1, 3.2, 3.3], True), ([0.5, 0.6, 0.7], True), ([1.0, 2.0, 9.0], False)]
)
def test_the_old_commit_is_compared_with_itself(again, alarm):
    assert row([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], again).alarm is alarm


def test_rows_that_only_one_of_the_commits_has_are_not_compared():
    values = {("both", label): [1.0] for label in compare.LABELS} | {("new alone", compare.NEW): [1.0]}
    assert [row.name for row in compare.rows_of(values, dict.fromkeys(("both", "new alone"), "s"))] == ["both"]


def test_the_order_of_the_commits_rotates_from_round_to_round():
    assert ["".join(compare.rotated("abc", number)) for number in range(4)] == ["abc", "bca", "cab", "abc"]


@pytest.mark.sim_only
@pytest.mark.long
def test_another_checkout_and_this_one_take_turns(tmp_path):
    for package in (atomr_trio, *(atomr_cuda, atomr_sim)):
        here = Path(package.__file__).parent
        there = tmp_path / ("bindings" if package is not atomr_trio else "") / here.name
        shutil.copytree(here, there, ignore=shutil.ignore_patterns("__pycache__"))
    figures = tmp_path / "compare.json"
    options = ("--backend", "sim", "--sources", tmp_path, "--only", "^(gemm 8, to out|reshape)", "--json", figures)
    done = run("compare.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text(encoding="utf-8"))
    rows = [f"gemm 8, to out, {way}" for way in ("awaited", "caller", "end to end")]
    assert [row["name"] for row in found["rows"]] == [*rows, "reshape, caller"]
    assert {len(row[label]["values"]) for row in found["rows"] for label in compare.LABELS} == {1}
    assert "of 4 rows" in done.stdout


@pytest.mark.sim_only
@pytest.mark.long
def test_a_commit_is_not_compared_with_itself_by_mistake(tmp_path):
    done = run("compare.py", "--backend", "sim", "--sources", tmp_path, "--only", "reshape")
    assert done.returncode == 1
    assert "these are to differ" in done.stderr


# --- the costs of verbs -----------------------------------------------------------------------------------------------


@pytest.mark.sim_only
@pytest.mark.long
def test_every_public_verb_is_called_in_a_batch_and_has_a_row(tmp_path):
    figures = tmp_path / "verbs.json"
    done = run("verb_costs.py", "--backend", "sim", "--json", figures)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [each["what"] for each in json.loads(figures.read_text(encoding="utf-8"))["measurements"]]
    assert len(set(rows)) == len(rows)
    names = {row.partition(", caller")[0] for row in rows}
    named = {"batch.fill", "batch.launch, prepared", "blas.gemm", "blas.gemm, new result", "random.philox", "fft.run"}
    assert named <= names
    called = {name.partition(",")[0] for name in names}
    for name in verb_costs.CALLS:
        assert name in called


async def test_the_verbs_of_a_batch_are_all_that_is_public_and_not_awaited(dev):
    async with dev.batch() as batch:
        names = list(verb_costs.verbs_of(batch))
    own = {name for name in names if "." not in name}
    assert own == {"copy_from", "copy_to", "fill", "launch", "launch_graph", "record", "to_device", "to_host"}
    assert {name.partition(".")[0] for name in names} - own == {"blas", "blaslt", "fft", "random", "solver"}
    assert "flush" not in names


def test_a_verb_that_costs_too_much_needs_a_reason():
    reasons = {"solver.*": "it makes decisions"}
    for name, seconds, held in (("solver.qr", 9e-6, None), ("blas.dot", 9e-6, False), ("solver.qr", 8e-6, True)):
        measure = report.Measure(verb_costs.Verb(name, lambda _: print).row, report.OURS, [seconds])
        assert verb_costs.judged(measure, reasons).held is held
    told = verb_costs.judged(report.Measure("solver.qr, caller in a batch", report.OURS, [9e-6]), reasons)
    assert told.missing == "takes 9 µs: it makes decisions"


async def test_every_reason_is_about_a_verb_that_is_there(dev):
    async with dev.batch() as batch:
        names = [f"batch.{name}" if "." not in name else name for name in verb_costs.verbs_of(batch)]
    for pattern, reason in verb_costs.reasons().items():
        plain = pattern.partition(",")[0].partition(" ")[0]
        assert any(verb_costs.fnmatch.fnmatchcase(name, plain) for name in names), pattern
        assert len(reason.split()) >= 4


# --- the picture ------------------------------------------------------------------------------------------------------


def figures_of(*measures: tuple[str, str, float], verdicts: tuple[report.Verdict, ...] = ()) -> dict[str, Any]:
    """The JSON of a benchmark."""
    table = report.Table([report.Measure(what, who, [value]) for what, who, value in measures])
    return {
        "benchmark": "speed",
        "machine": "a machine",
        "title": "a & b",
        "measurements": [measure.facts() for measure in table.measures],
        "must_hold": [verdict.facts() for verdict in verdicts],
    }


def test_a_picture_has_a_row_for_everything_that_can_be_compared():
    missed = report.Verdict("x: at most 2 x CuPy", False, 4.0, 2.0, other=1.0)
    share = report.Verdict("idle: at most 0.10 %", True, 0.0005, 0.001, "share")
    told = figures_of(
        *(("x", report.OURS, 4.0), ("x", report.CUPY, 1.0), ("alone", report.OURS, 1.0), ("idle", report.OURS, 0.0005)),
        ("theirs", report.CUPY, 1.0),
        verdicts=(missed, share),
    )
    x, idle = pictures.rows_of(told)
    assert (x.name, x.ours, x.others, x.target) == ("x", 4.0, {report.CUPY: 0.25}, 0.5)
    assert (idle.name, idle.others, idle.target) == ("idle", {}, 2.0)
    assert [row.name for row in pictures.rows_of(told, "^x")] == ["x"]
    other = figures_of(("y", report.OURS, 1.0), ("y", report.CUPY, 1.0))
    assert [row.name for row in pictures.rows_of({"benchmarks": {"one": told, "another": other}})] == ["x", "idle"]


@pytest.mark.long
def test_the_picture_is_drawn_from_figures_that_were_written(tmp_path):
    names = {report.OURS: 1.0, report.CUPY: 2.0, report.TORCH: 1e-3, "another": 40.0}
    told = figures_of(*(("row & row", who, value) for who, value in names.items()))
    written, picture = tmp_path / "figures.json", tmp_path / "picture.svg"
    written.write_text(json.dumps(told), encoding="utf-8")
    done = run("pictures.py", written, picture)
    assert done.returncode == 0, done.stderr
    texts = {text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")}
    assert {"row & row  1 s", report.CUPY, "another", "target, missed"} <= texts
    again = tmp_path / "again.svg"
    run("pictures.py", written, again)
    assert again.read_bytes() == picture.read_bytes()


def test_the_picture_takes_the_verdict_of_the_table(tmp_path):
    """A limit that is exceeded by less than the resolution is held, so its bar is green."""
    assert 1.004 < 1 + targets.RESOLUTION < 1.006
    bars = {}
    for figure, held in ((1.004, True), (1.006, False)):
        target, measures = (
            targets.Target("x", 1.0, report.TORCH),
            (("x", report.OURS, figure), ("x", report.TORCH, 1.0)),
        )
        table = report.Table([report.Measure(what, who, [value]) for what, who, value in measures])
        told = figures_of(*measures, verdicts=(target.judge(table),))
        (row,) = pictures.rows_of(told)
        assert (row.held, row.target < 1) == (held, True)
        pictures.draw(told, [row], tmp_path / "picture.svg")
        bars[held] = (tmp_path / "picture.svg").read_text(encoding="utf-8").count(pictures.MISSED)
    assert bars[False] > bars[True] == bars_of_the_legend(tmp_path)


def bars_of_the_legend(folder: Path) -> int:
    """How often a picture without any target has the colour of those that are missed."""
    told = figures_of(("row", report.OURS, 1.0), ("row", report.CUPY, 1.0))
    pictures.draw(told, pictures.rows_of(told), folder / "legend.svg")
    return (folder / "legend.svg").read_text(encoding="utf-8").count(pictures.MISSED)


def test_a_row_with_several_targets_shows_the_strictest_and_is_held_if_all_are():
    easy, strict = (report.Verdict(f"x: at most {times} x CuPy", True, 1.0, times, other=1.0) for times in (4, 2))
    measures = (("x", report.OURS, 1.0), ("x", report.CUPY, 1.0))
    (row,) = pictures.rows_of(figures_of(*measures, verdicts=(easy, strict)))
    assert (row.target, row.held) == (2.0, True)
    missed = report.Verdict("x: at most 0.5 x CuPy", False, 1.0, 0.5, other=1.0)
    (row,) = pictures.rows_of(figures_of(*measures, verdicts=(missed, easy)))
    assert (row.target, row.held) == (0.5, False)


def test_the_picture_is_drawn_beside_the_figures_or_it_is_said_how_to_draw_it(tmp_path, monkeypatch):
    held = report.Verdict("x: at most 2 x CuPy", True, 1.0, 2.0, other=1.0)
    part = figures_of(("x", report.OURS, 1.0), ("x", report.CUPY, 1.0), verdicts=(held,))
    everything = {"machine": "one", "title": bench_all.title_of(["fft", "speed"]), "benchmarks": {"speed": part}}
    figures, picture = tmp_path / "all.json", tmp_path / "all.svg"
    assert bench_all.drawn(everything, figures) == f"the picture is in {picture}"
    texts = {text.text for text in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")}
    assert "times as long as atomr_trio.  Targets of speed, fft; one" in texts
    picture.unlink()
    unjudged = {**part, "must_hold": [report.Verdict("x: at most 2 x CuPy", None).facts()]}
    nothing = {**everything, "benchmarks": {"speed": unjudged}}
    assert bench_all.drawn(nothing, figures) == "no picture: no target was judged"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    told = bench_all.drawn(everything, figures)
    assert told.endswith(f"make bench-picture FIGURES={figures} PICTURE={picture}")
    assert not picture.exists()


def test_the_title_names_the_benchmarks_if_some_were_left_out():
    assert bench_all.title_of(bench_all.BENCHMARKS) == "All targets"
    assert bench_all.title_of(["blas", "speed"]) == "Targets of speed, blas"


def test_round_numbers_mark_the_scale():
    assert list(pictures._ticks(0.5, 4.0)) == [0.5, 1, 2]
    assert list(pictures._ticks(0.01, 100.0)) == [0.01, 0.1, 1, 10, 100]
    assert math.isclose(sum(pictures._ticks(1, 10)), 18)
