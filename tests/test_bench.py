"""The speed benchmark: that it runs from end to end, what it judges, and that its picture is one."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import support

BENCHMARKS = Path(__file__).resolve().parent / "benchmarks"
sys.path.append(str(BENCHMARKS))
report = importlib.import_module("speed_report")


def table(*measures: tuple[str, str, float]) -> report.Table:
    return report.Table([report.Measure(what, who, [value]) for what, who, value in measures])


def verdict(name: str, *measures: tuple[str, str, float]) -> report.Verdict:
    (found,) = [each for each in report.judged(table(*measures)) if each.name == name]
    return found


@pytest.mark.sim_only
def test_the_benchmark_runs_on_the_simulator_and_writes_its_figures_and_its_picture(tmp_path):
    figures, picture = tmp_path / "speed.json", tmp_path / "speed.svg"
    command = [sys.executable, str(BENCHMARKS / "speed.py"), "--backend", "sim", "--repetitions", "1"]
    done = subprocess.run(
        [*command, "--json", str(figures), "--svg", str(picture)],
        env=support.child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(figures.read_text(encoding="utf-8"))
    assert told.keys() == {"backend", "device", "python", "plan", "measurements", "absent", "ratios", "must_hold"}
    assert (told["backend"], told["plan"]["repetitions"]) == ("sim", 1)
    for measure in told["measurements"]:
        assert measure.keys() == {"what", "who", "unit", "min", "median", "p90", "values"}
        assert 0 <= measure["min"] <= measure["median"] <= measure["p90"]
        assert len(measure["values"]) == 1
    rows = {(measure["what"], measure["who"]) for measure in told["measurements"]}
    assert rows >= {(what, report.OURS) for what in (report.AWAITED_ROW, report.TASKS_ROW, report.ALLOCATION_ROW)}
    assert rows >= {(report.GRAPH, report.OURS), (report.GRAPH, report.RAW), (report.AWAITED_ROW, report.RAW_THREAD)}
    assert rows >= {(report.START_ROW, report.OURS), (report.IMPORT_ROW, report.OURS), (report.IDLE_ROW, report.OURS)}
    assert (report.copy_row("in", "pageable", 4096), report.OURS) in rows
    assert [each for each in told["absent"] if not each["reason"].startswith("not available: AttributeError")] == []
    assert [each["name"] for each in told["must_hold"]] == [rule.name for rule in report.RULES]
    assert {each["held"] for each in told["must_hold"]} == {None}
    ElementTree.parse(picture)
    assert f"{report.AWAITED_ROW} " in done.stdout
    assert "[4/4, " in done.stdout


def test_the_spread_is_the_least_the_median_and_the_value_that_nine_in_ten_do_not_exceed():
    measure = report.Measure("what", "who", [7, 1, 5, 3, 9, 2, 4, 10, 8, 6])
    facts = measure.facts()
    assert (facts["min"], facts["median"], facts["p90"]) == (1, 5.5, 9)
    assert report.Measure("what", "who", [3]).p90 == 3


def test_a_rule_compares_with_the_fastest_peer_and_not_with_the_bare_driver():
    row, name = report.CALLER, report.RULES[0].name
    measures = [(row, report.CUPY, 4.0), (row, report.CORE, 3.0), (row, report.RAW, 0.1)]
    held = verdict(name, *measures, (row, report.BATCH, 1.5))
    assert (held.held, held.figure, held.limit) == (True, 1.5, 1.5)
    assert verdict(name, *measures, (row, report.BATCH, 1.6)).held is False
    assert str(held).startswith("held ")


@pytest.mark.parametrize(
    ("what", "who", "limit"),
    [
        (report.CALLER, report.PREPARED, 0.8e-6),
        (report.AWAITED_ROW, report.OURS, 20e-6),
        (report.TASKS_ROW, report.OURS, 8e-6),
        (report.ALLOCATION_ROW, report.OURS, 3e-6),
        (report.IDLE_ROW, report.OURS, 0.005),
    ],
)
def test_a_figure_of_its_own_is_held_up_to_its_limit(what, who, limit):
    for factor, held in ((1.0, True), (1.01, False)):
        judged = report.judged(table((what, who, factor * limit)))
        assert [each.held for each in judged if each.held is not None] == [held]


def test_copies_are_compared_with_the_bare_driver_and_new_arrays_with_pytorch():
    measures = []
    for direction in ("in", "out"):
        for host, factor in (("pageable", 0.5), ("pinned", 1.05)):
            row = report.copy_row(direction, host, 256 << 20)
            measures += [(row, report.RAW, 2.0), (row, report.OURS, 2.0 * factor)]
    measures += [(report.NEW_ARRAY, report.TORCH, 4.0), (report.NEW_ARRAY, report.OURS, 1.0)]
    judged = [each for each in report.judged(table(*measures)) if each.held is not None]
    assert [each.held for each in judged] == [True] * 5
    slower = [(what, who, 1.001 * value if who == report.OURS else value) for what, who, value in measures]
    assert [each.held for each in report.judged(table(*slower)) if each.held is not None] == [False] * 5


def test_ratios_are_to_the_best_of_ours():
    row = report.CALLER
    measured = table(
        (row, report.OURS, 4.0), (row, report.BATCH, 2.0), (row, report.CORE, 6.0), ("else", report.RAW, 1.0)
    )
    rows = measured.rows()
    assert report.ratios(rows[row]) == {report.OURS: 2.0, report.BATCH: 1.0, report.CORE: 3.0}
    assert report.ratios(rows["else"]) == {}
    (told,) = report.comparisons(measured)
    assert told.split("  ")[-1].strip() == "atomr_trio 2; atomr_trio, batch 1; cuda.core 3"


def test_a_rule_whose_figures_are_missing_is_not_judged_and_says_which():
    missing = verdict(report.RULES[0].name, (report.CALLER, report.BATCH, 1.0))
    assert (missing.held, missing.missing) == (None, f"not measured: any peer: {report.CALLER}")
    assert json.loads(json.dumps(missing.facts(), allow_nan=False))["held"] is None
    assert "not judged" in str(missing)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (2.5e-9, "s", "2 ns"),
        (3.04e-6, "s", "3.04 µs"),
        (0.000_999_4, "s", "999 µs"),
        (0.000_999_9, "s", "1 ms"),
        (0.0123, "s", "12.3 ms"),
        (75.25, "s", "75.2 s"),
        (0.004, "share", "0.40 %"),
    ],
)
def test_a_value_is_shown_in_the_unit_that_suits_it(value, unit, text):
    assert report.shown(value, unit) == text


@pytest.mark.parametrize(("nbytes", "text"), [(4096, "4 KiB"), (256 << 20, "256 MiB"), (1 << 30, "1 GiB"), (3, "3 B")])
def test_sizes_are_whole_numbers_of_a_unit(nbytes, text):
    assert report.size(nbytes) == text


def test_bars_are_as_long_as_what_they_show_and_tell_the_ratio_to_ours():
    row = report.AWAITED_ROW
    shown = table((row, report.OURS, 10e-6), (row, report.RAW_THREAD, 40e-6))
    drawing = ElementTree.fromstring("\n".join(report.picture(shown, "a & b", report.judged(shown))))
    bars = {bar.get("class"): float(bar.get("width")) for bar in drawing.iter("{http://www.w3.org/2000/svg}rect")}
    assert bars["peer"] == pytest.approx(4 * bars["ours"], rel=0.01)
    texts = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a & b", row, report.OURS, "10 µs, 1 x", "40 µs, 4 x"} <= set(texts)
