"""The benchmarks of speed, libraries and recovery: that they end, what they judge, and what they draw."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import subprocess
import sys

import attrs
import numpy as np
import pytest

import support
from support import ROOT

BENCHMARKS = ROOT / "tests" / "benchmarks"
sys.path.append(str(BENCHMARKS))
report, targets = importlib.import_module("speed_report"), importlib.import_module("targets")
speed, speed_works = importlib.import_module("speed"), importlib.import_module("speed_works")
speed_subjects = importlib.import_module("speed_subjects")
blas, blas_subjects = importlib.import_module("blas"), importlib.import_module("blas_subjects")
fft, fft_subjects = importlib.import_module("fft"), importlib.import_module("fft_subjects")
random_numbers, random_subjects = importlib.import_module("random_numbers"), importlib.import_module("random_subjects")
turns, conclusion = importlib.import_module("turns"), importlib.import_module("conclusion")
recovery = importlib.import_module("recovery")
starts = importlib.import_module("start")
OF_SPEED = targets.of_speed(speed_works.PLANS["cuda"].works)


def table(*measures: tuple[str, str, float]) -> report.Table:
    return report.Table([report.Measure(what, who, [value]) for what, who, value in measures])


def verdict(row: str, *measures: tuple[str, str, float], of: str = "") -> report.Verdict:
    """What is said of a row that one target is about, or one that compares it with a subject."""
    (target,) = [each for each in OF_SPEED if each.row == row and of in ("", each.of)]
    return target.judge(table(*measures))


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a benchmark on the simulator."""
    command = [sys.executable, str(BENCHMARKS / program), "--backend", "sim", *map(str, arguments)]
    environment = support.child_environment()
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.sim_only
@pytest.mark.long
def test_the_benchmark_of_speed_measures_every_work_and_tells_all_of_it(tmp_path):
    figures = tmp_path / "speed.json"
    done = run("speed.py", "--json", figures, "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(figures.read_text(encoding="utf-8"))
    assert (told["benchmark"], told["backend"], told["machine"]) == ("speed", "sim", "simulator")
    for measure in told["measurements"]:
        assert measure.keys() == {"what", "who", "unit", "min", "median", "p90", "values"}
        assert 0 <= measure["min"] <= measure["median"] <= measure["p90"]
        assert len(measure["values"]) == 1
    rows = {(measure["what"], measure["who"]) for measure in told["measurements"]}
    works = speed_works.PLANS["sim"].works
    for work in [work for work in works if work.kind != "ticket"]:
        assert {row for row, who in rows if who == report.OURS} & {work.row(way) for way in ("awaited", "caller")}, work
    by_both = ("launch, 4 arguments, caller", "graph of 5 kernels, end to end", "copy in, pageable, 4 KiB, awaited")
    assert rows >= {(row, who) for row in by_both for who in (report.OURS, report.RAW)}
    assert rows >= {(report.START_ROW, report.OURS), (report.IMPORT_ROW, report.OURS), (report.IDLE_ROW, report.OURS)}
    lacking = [each for each in told["absent"] if each["reason"] != "has no such call"]
    assert [(each["who"], each["reason"]) for each in lacking if "SUPPORTED" not in each["reason"]] == []
    assert [each["name"] for each in told["must_hold"]] == [target.name for target in targets.of_speed(works)]
    assert {each["held"] for each in told["must_hold"]} == {None}


@pytest.mark.long
@pytest.mark.sim_only
def test_the_benchmark_of_the_simulator_runs_kernels_in_both_ways_and_judges_what_they_cost():
    done = run("simulator.py", "--kernels", "saxpy", "histogram", "--repetitions", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    loads, runs = ["engine"], ["engine", report.OURS]
    for row, who in {"saxpy, 1e6: load": loads, "saxpy, 1e6": runs, "histogram, 1e6": runs}.items():
        assert [text[48:80].strip() for text in lines if text[2:46].strip() == row] == who
    judged = [text[12:].rsplit(": ", 1)[0] for text in lines if text.startswith(("held ", "MISSED "))]
    assert judged == ["saxpy, 1e6", "saxpy, 1e6: load", "histogram, 1e6: load"]


def test_the_spread_is_the_least_the_median_and_the_value_that_nine_in_ten_do_not_exceed():
    measure = report.Measure("what", "who", [7, 1, 5, 3, 9, 2, 4, 10, 8, 6])
    facts = measure.facts()
    assert (facts["min"], facts["median"], facts["p90"]) == (1, 5.5, 9)
    assert report.Measure("what", "who", [3]).p90 == 3


def test_a_target_compares_with_the_fastest_peer_and_not_with_the_bare_driver():
    row = "launch, 4 arguments, caller"
    floors = (row, report.RAW, 0.1), (row, report.NATIVE, 0.1)
    measures = [(row, report.CUPY, 4.0), (row, report.CORE, 3.0), *floors]
    held = verdict(row, *measures, (row, report.OURS, 1.2))
    assert (held.held, held.figure, held.limit) == (True, 1.2, pytest.approx(1.2))
    assert (held.ratio, held.target) == (pytest.approx(0.4), pytest.approx(0.4))
    assert verdict(row, *measures, (row, report.OURS, 1.21)).held is False
    assert str(held).startswith("held ")


PLAIN, READY = "launch, 4 arguments, caller", "launch, 4 arguments, prepared, caller"
TICKET, EMPTY = speed_works.TICKET_ROW, "launch of an empty kernel"


@pytest.mark.parametrize(
    ("row", "other", "who", "limit"),
    [
        (READY, PLAIN, report.CORE, 0.25),
        ("launch, 16 arguments, end to end", None, report.CUPY, 0.8),
        (f"{EMPTY}, awaited", TICKET, report.NATIVE, 2.2),
        (f"{EMPTY}, of 64 tasks", TICKET, report.NATIVE, 1.0),
        ("gemm 256, new result, awaited", None, report.TORCH, 1.5),
        ("gemm 256, to out, caller", None, report.TORCH, 0.4),
        ("fill 16 KiB, end to end", None, report.TORCH, 1.0),
        ("slice x[1:10], caller", None, report.TORCH, 1.0),
        ("graph of 100 kernels, end to end", None, report.RAW, 1.0 + 2e-6),
        ("graph of 100 kernels, end to end", None, report.TORCH, 1.0),
        ("graph of 1000 kernels, awaited", None, report.TORCH, 1.5),
        ("graph of 100 kernels, caller", None, report.TORCH, 0.4),
        ("graph of 10 products of 64, caller", None, report.TORCH, 0.4),
        ("graph of 10 products of 64, end to end", None, report.TORCH, 1.0),
        ("copy in, pageable, 16 KiB, awaited", None, report.RAW, 2.5),
        ("copy out, pageable, 256 KiB, awaited", None, report.RAW, 1.5),
        ("copy out, pageable, 256 KiB, end to end", "copy out, pageable, 256 KiB, awaited", report.RAW, 1.0),
        ("copy in, pageable, 16 MiB, awaited", None, report.RAW, 1.0),
        ("copy in, pageable, 64 MiB, awaited", None, report.RAW, 0.4),
        ("copy in, pinned, 4 KiB, awaited", None, report.RAW, 1.0 + 10e-6),
        ("copy out, new array, 256 MiB, awaited", None, report.TORCH, 0.2),
        ("copy in, strided, 1 MiB, awaited", None, report.RAW, 1.2),
        (report.IDLE_ROW, None, report.RAW, 1.0 + 0.001),
    ],
)
def test_a_row_is_held_up_to_its_limit_and_half_a_percent_beside_another(row, other, who, limit):
    others = [(other or row, who, 1.0)] if who else []
    for factor, held in ((0.999, True), (1.004, bool(who)), (1.006, False)):
        of = who if row.startswith("graph") else ""
        judged = verdict(row, *others, (row, report.OURS, factor * limit), of=of)
        assert (judged.held, judged.limit) == (held, pytest.approx(limit))


def test_no_target_of_the_speed_benchmark_is_there_twice():
    names = [target.name for target in OF_SPEED]
    assert len(set(names)) == len(names) > 100


def test_ratios_are_to_ours():
    measured = table(("row", report.OURS, 2.0), ("row", report.CORE, 6.0), ("else", report.RAW, 1.0))
    rows = measured.rows()
    assert report.ratios(rows["row"]) == {report.OURS: 1.0, report.CORE: 3.0}
    assert report.ratios(rows["else"]) == {}
    (told,) = report.comparisons(measured)
    assert told.split("  ")[-1].strip() == "atomr_trio 1; cuda.core 3"


def test_a_target_whose_figures_are_missing_is_not_judged_and_says_which():
    missing = verdict(PLAIN, (PLAIN, report.OURS, 1.0))
    assert (missing.held, missing.missing) == (None, f"not measured: any peer: {PLAIN}")
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
        (33_554_336.0, "B", "32 MiB"),
        (5000.0, "B", "4.883 KiB"),
        (256.0, "B", "256 B"),
    ],
)
def test_a_value_is_shown_in_the_unit_that_suits_it(value, unit, text):
    assert report.shown(value, unit) == text


@pytest.mark.parametrize(
    ("nbytes", "text"), [(4096, "4 KiB"), (256 << 20, "256 MiB"), (1 << 30, "1 GiB"), (3, "3 B"), (0, "0 B")]
)
def test_sizes_are_whole_numbers_of_a_unit(nbytes, text):
    assert report.size(nbytes) == text


# --- the benchmark of products ----------------------------------------------------------------------------------------


def recovered(standby: float, start: float, bare: float | None, held_up: float = 5e-3) -> list[bool | None]:
    """What is said of recoveries that take so many seconds, with a standby and without."""
    ours = [recovery.Recovery(name, [seconds], [held_up]) for name, seconds in (("one", standby), ("no", start))]
    return [verdict.held for verdict in recovery.judged(*ours, recovery.table_of(*ours, {"atomr_cuda": bare}))]


@pytest.mark.parametrize(("standby", "start", "bare"), [(2e-3, 0.35, 0.3), (1e-3, 0.2, 0.3)])
def test_recoveries_within_their_limits_are_held(standby, start, bare):
    assert recovered(standby, start, bare) == [True] * 4


def test_a_recovery_is_missed_that_takes_longer_than_it_may_or_holds_the_loop_up():
    assert recovered(2.1e-3, 0.36, 0.3) == [False, False, True, True]
    assert recovered(2e-3, 0.35, 0.3, held_up=5.1e-3) == [True, True, False, False]


def test_a_start_without_a_standby_is_not_judged_where_nothing_can_be_compared():
    assert recovered(1e-3, 1e-3, None) == [True, None, True, True]


def test_the_steps_of_a_start_are_told_with_what_cannot_be_shortened():
    """Each step begins and ends with a moment that some start notes, and the medians are of moments that all have."""
    bare = {"asked for": 0.0, "begun": 0.01, "imported": 0.02, "driver loaded": 0.03, "result": 0.2}
    told = starts.medians([bare, {**bare, "result": 0.4}, {**bare, "result": 0.3, "begun": 0.02, "more": 1.0}])
    assert told == {**bare, "result": 0.3}
    lines = starts.table({starts.BARE: told})
    assert lines[0] == f"{starts.BARE}: 300 ms up to the first result"
    assert [line for line in lines[1:-2] if "ms*" in line] == [lines[1], lines[3]]
    assert len(lines) == 6, "steps whose ends were not noted are left out"


@pytest.mark.sim_only
@pytest.mark.long
def test_the_starts_of_the_simulator_are_measured_and_written(tmp_path):
    done = run("start.py", "--starts", "1", "--json", tmp_path / "start.json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "start.json").read_text(encoding="utf-8"))
    assert list(told["figures"]) == [starts.OPENED, starts.REBUILT]
    for name, moments in told["figures"].items():
        assert f"{name}: {moments['result'] * 1e3:.0f} ms up to the first result" in done.stdout
        assert moments["asked for"] < moments["ready read"] < moments["result"]
    assert told["figures"][starts.REBUILT]["reaped"] > 0


def test_each_load_call_and_opening_has_its_limit():
    ours = [recovery.Recovery(name, [1e-3], [1e-3]) for name in ("one", "no")]
    table = recovery.table_of(*ours, {"atomr_cuda": 0.3})
    for row, values in (
        (recovery.load_row(1, 50), [2e-3, 1e-3, 9e-3]),
        (recovery.load_row(10, 1), [3e-3]),
        (recovery.call_row("gemm"), [2.1e-3]),
        (recovery.OPENED_ROW, [0.2, 0.3, 0.9]),
    ):
        table.measures.append(report.Measure(row, report.OURS, values))
    judged = {verdict.name: verdict.held for verdict in recovery.judged(*ours, table)}
    found = [held for name, held in judged.items() if "GiB" in name or "gemm" in name or recovery.OPENED_ROW in name]
    assert found == [True, False, False, None], "no process was measured"
    table.measures.append(report.Measure(recovery.PROCESS_ROW, report.RAW, [0.26]))
    assert [held for held in (verdict.held for verdict in recovery.judged(*ours, table)) if held is None] == []


@pytest.mark.sim_only
@pytest.mark.long
def test_the_benchmark_of_products_checks_and_times_all_of_them_by_both(tmp_path):
    done = run("blas.py", "--json", tmp_path / "blas.json", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    products = [product.name for product in blas_subjects.PLANS["sim"].products]
    assert {"gemm float8, 32 x 32", "gemm float32, 8 of 16 x 16"} <= set(products)
    told = json.loads((tmp_path / "blas.json").read_text(encoding="utf-8"))
    found = [(each["what"], each["who"]) for each in told["measurements"]]
    assert found == [(name, who) for name in products for who in (report.OURS, report.RAW)]
    assert "not measured" not in done.stdout
    assert f"[{len(products)}/{len(products)}, " in done.stderr


class Multiplier:
    """A subject of numpy, whose results are wrong by a factor."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.computed = 0

    async def take(self, _product, factors):
        self.out = (factors.a.astype(np.float64) @ factors.b.astype(np.float64) * self.factor).astype(factors.output)

    async def compute(self, count):
        self.computed += count

    async def result(self):
        return self.out


@pytest.mark.parametrize("number", range(len(blas_subjects.PLANS["sim"].products)))
async def test_a_product_that_is_wrong_is_not_timed(number):
    plan = blas_subjects.PLANS["sim"]
    error = plan.products[number].arithmetic.error
    assert await blas_subjects.take(Multiplier(1), plan, number) is None
    for factor in (1 + 2 * error, 1 - 2 * error, np.nan):
        told = await blas_subjects.take(Multiplier(factor), plan, number)
        assert told is not None
        assert told.startswith("wrong by ")


async def test_a_subject_says_what_it_does_not_have():
    class Without(Multiplier):
        async def take(self, product, factors):
            raise turns.Missing("there is no such product")

    class Failing(Multiplier):
        async def compute(self, count):
            raise ValueError("first\nsecond")

    plan = blas_subjects.PLANS["sim"]
    assert await blas_subjects.take(Without(1), plan, 0) == "there is no such product"
    assert await blas_subjects.take(Failing(1), plan, 0) == "ValueError: first"


async def test_a_turn_warms_up_before_it_is_timed():
    subject = Multiplier(1)
    assert await turns.turn(subject, 30) >= 0
    assert subject.computed == 11 + 30


class Scripted:
    """A subject's process, which answers from a list and ends when there is no more in it."""

    def __init__(self, who: str, log: list[tuple[str, str]], answers: list[object]) -> None:
        self.who, self.log, self.answers = who, log, answers

    def ask(self, question: str) -> None:
        self.log.append((self.who, question))

    def answer(self) -> object:
        if not self.answers:
            raise turns.Gone(self.who, "ended")
        return self.answers.pop(0)

    turn = turns.Subject.turn


def test_subjects_make_a_product_ready_together_and_then_take_turns_in_both_orders():
    plan = blas_subjects.Plan(sizes=(), stack=(2, 16), seconds=1.0, repetitions=3)
    log: list[tuple[str, str]] = []
    subjects = [
        Scripted("a", log, [None, 0.2, 1.0, 2.0, 3.0]),
        Scripted("without", log, ["it has none"]),
        Scripted("b", log, [None, 0.1, 4.0, 5.0, 6.0]),
    ]
    ((product, measures, absent),) = turns.measured(subjects, plan.products, plan)
    assert measures == [report.Measure(product.name, "a", [1, 2, 3]), report.Measure(product.name, "b", [4, 5, 6])]
    assert absent == [report.Absent(product.name, "without", "it has none")]
    asked = [f"{who} {question}" for who, question in log]
    assert asked[:3] == ["a take 0", "without take 0", "b take 0"]
    assert asked[3:5] == ["a turn 3", "b turn 3"]
    assert asked[5:] == [f"{who} turn 10" for who in "abbaab"]


def test_a_subject_that_is_much_slower_does_less_work_in_its_turn():
    plan = blas_subjects.Plan(sizes=(), stack=(2, 16), seconds=1.0, repetitions=1)
    log: list[tuple[str, str]] = []
    first = {"fast": 0.01, "slower": 0.03, "slow": 0.1, "very slow": 3.0}
    subjects = [Scripted(who, log, [None, seconds, 1.0]) for who, seconds in first.items()]
    assert [len(measures) for _, measures, _ in turns.measured(subjects, plan.products, plan)] == [4]
    asked = [(who, question) for who, question in log if question != "take 0"]
    assert asked[4:] == [("fast", "turn 100"), ("slower", "turn 66"), ("slow", "turn 20"), ("very slow", "turn 3")]


def test_of_a_launch_the_99th_percentile_of_bursts_is_told_if_there_are_enough(monkeypatch):
    """Each process of a subject measures a part of them."""
    work, plan = speed_works.Work("launch", speed_works.BURSTS_OF), speed_works.PLANS["sim"]
    plan = attrs.evolve(plan, works=(work,), rounds=2)
    rows = {}
    for count in (49, 50):
        log: list[tuple[str, str]] = []
        part = [float(number) for number in range(count)]
        ways = [{"end to end": 1.0}] * 2
        answers = [[None, *ways, part], [None, *ways, [2 * each for each in part]]]
        others = [None, {"caller": 1.0}, {"caller": 1.0}]  # who has no such row is not asked for bursts

        @contextlib.contextmanager
        def all_started(*_given, log=log, answers=answers, others=others):
            yield [Scripted(report.OURS, log, answers.pop(0)), Scripted(report.RAW, log, [*others])]

        monkeypatch.setattr(speed, "all_started", all_started)
        measured = report.Table()
        speed.works("sim", [], plan, speed_works.BURSTS_OF.__eq__, measured)
        rows[count] = [each for each in measured.measures if each.what == speed.BURSTS_ROW]
        assert [who for who, question in log if question == f"bursts {plan.bursts}"] == [report.OURS] * 2
    assert rows == {49: [], 50: [report.Measure(speed.BURSTS_ROW, report.OURS, [96.0])]}


async def test_a_burst_is_timed_in_each_way_that_a_subject_has():
    calls: list[str] = []
    call = functools.partial(calls.append, "call")
    subjects, ended = speed_subjects, functools.partial(calls.append, "end")
    (seconds,) = await subjects.bursts_of(subjects.Doing(call=call, end=ended), 1, 3, None)
    assert (calls, seconds > 0) == (["call"] * 3 + ["end"], True)
    native = subjects.Doing(natively=lambda count: {"end to end": float(count)})
    assert await subjects.bursts_of(native, 2, 3, None) == [3.0, 3.0]
    batched = subjects.Doing(in_batch=lambda batch: functools.partial(batch, "call"))
    found = await subjects.bursts_of(batched, 2, 3, lambda: contextlib.nullcontext(calls.append))
    assert (len(found), calls[4:]) == (2, ["call"] * 6)


def test_what_a_subject_has_left_undone_the_others_do_once_more():
    """Or the row of a work would be empty because one of them could not do it."""
    log: list[tuple[str, str]] = []
    work, pace = speed_works.Work("launch", "launch"), speed_works.PLANS["sim"]
    slow = {"awaited": 100.0}
    subjects = [
        Scripted("a", log, [None, slow, None, slow, {"awaited": 7.0}]),
        Scripted("without", log, ["it has none", "it has none"]),
        Scripted("b", log, [None]),
    ]
    ((_, measures, absent),) = turns.ways(subjects, [work], pace)
    assert measures == [report.Measure("launch, awaited", "a", [7.0])]
    assert absent == [report.Absent("launch", "without", "it has none"), report.Absent("launch", "b", "ended")]
    assert [subject.who for subject in subjects] == ["a", "without"]


def test_a_subject_that_ends_is_told_and_not_asked_again():
    plan = blas_subjects.Plan(sizes=(16,), stack=(2, 16), seconds=0.0, repetitions=1)
    log: list[tuple[str, str]] = []
    whole, part = [None, 1.0, 1.0], [None, 1.0]  # the other one ends in the second product, in the middle of the turns
    subjects = [Scripted("a", log, [*whole, *part, *whole * 5]), Scripted("b", log, [*whole, None])]
    found = list(turns.measured(subjects, plan.products, plan))
    assert [len(measures) for _, measures, _ in found] == [2, 0, 1, 1, 1, 1, 1]
    told = [(product.name, absent) for product, _, absent in found if absent]
    names = [product.name for product in plan.products[1:3]]
    assert told == [(name, [report.Absent(name, "b", "ended")]) for name in names]
    assert [question for who, question in log if who == "b"][-1] == "take 2"


def test_what_a_process_said_last_is_why_it_is_gone(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", support.child_environment()["PYTHONPATH"])
    with turns.started(blas.SUBJECTS, "nobody", "sim") as subject:
        subject.ask("take 0")
        with pytest.raises(turns.Gone) as gone:
            subject.answer()
    assert (gone.value.who, gone.value.reason) == ("nobody", "its process ended with 1: KeyError: 'nobody'")


def test_products_are_judged_by_pairs_and_not_by_medians_of_each():
    large = blas_subjects.Product(blas_subjects.ARITHMETICS[0], 2048)
    small = blas_subjects.Product(blas_subjects.ARITHMETICS[0], 1024)
    bare, slower = np.array([1.0, 2.0, 3.0]), np.array([1.019, 1.0, 1.5])
    for factor, held in ((1.0, True), (1.002, False)):
        ours = bare * slower * factor
        measured = report.Table(
            [
                report.Measure(each.name, who, values)
                for each in (small, large)
                for who, values in ((report.OURS, ours), (report.RAW, bare))
            ]
        )
        (target,) = targets.of_products((each.name, each.size) for each in (small, large))
        judged = target.judge(measured)
        assert (judged.name, judged.held) == (f"{large.name}: at most 2 % over ctypes", held)
        assert judged.figure == pytest.approx(1.019 * factor - 1)
        assert (judged.ratio, judged.target) == (pytest.approx(1.019 * factor), pytest.approx(1.02))
    missing = target.judge(table((large.name, report.OURS, 1.0)))
    assert (missing.held, missing.missing) == (None, f"not measured: {report.RAW}: {large.name}")


def test_a_line_tells_the_rate_and_the_ratio_to_ours():
    product = blas_subjects.Product(blas_subjects.ARITHMETICS[0], 1000, 3)
    measures = [report.Measure(product.name, who, [value]) for who, value in ((report.OURS, 1e-3), (report.RAW, 5e-4))]
    ends = [text.split()[-2:] for text in turns.shown(product, measures)]
    assert ends == [["6", "1.000"], ["12", "0.500"]]


def test_what_is_missing_is_told_once_for_each_reason():
    absent = [report.Absent(what, who, "no") for what, who in (("x", "a"), ("y", "a"), ("x", "b"))]
    assert list(conclusion.not_measured(absent)) == ["not measured: a: no: x; y", "not measured: b: no: x"]


# --- the benchmark of transforms --------------------------------------------------------------------------------------


@pytest.mark.sim_only
@pytest.mark.long
def test_the_benchmark_of_transforms_checks_and_times_all_of_them_and_new_plans_by_both(tmp_path):
    done = run("fft.py", "--json", tmp_path / "fft.json", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    plan, both = fft_subjects.PLANS["sim"], (report.OURS, report.RAW)
    told = json.loads((tmp_path / "fft.json").read_text(encoding="utf-8"))
    new = [(number, transform) for number, transform in enumerate(plan.new)]
    assert [(each["what"], each["who"]) for each in told["measurements"]] == [
        *((transform.name, who) for transform in plan.transforms for who in both),
        *((fft_subjects.CALLER_ROW, report.OURS), (turns.LAUNCH_ROW, report.OURS)),
        (fft_subjects.CALLER_ROW, report.RAW),
        *((row, who) for each in new for row in (fft.new_row(*each), fft.workspace_row(each[1])) for who in both),
    ]
    assert "not measured" not in done.stdout
    assert done.stdout.count("not judged") == sum(transform.judged for transform in plan.transforms) + 1


@pytest.mark.long
@pytest.mark.sim_only
def test_only_what_must_hold_is_measured_if_that_is_asked_for(tmp_path):
    for program, unjudged in (("fft.py", "irfft, 2^8, by default"), ("random_numbers.py", "exponential float64, 10^2")):
        done = run(program, "--json", tmp_path / "told.json", "--judged")
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
        rows, judged = ({each["what"] for each in told["measurements"]}, {each["name"] for each in told["must_hold"]})
        callers = {fft_subjects.CALLER_ROW, random_subjects.CALLER_ROW, turns.LAUNCH_ROW}
        assert rows - callers == {name.partition(": at most")[0] for name in judged} - callers
        assert rows
        assert unjudged not in rows


class Transformer:
    """A subject of numpy, whose results are wrong by a factor."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    async def place(self, transform, numbers):
        self.transform, self.source = transform, numbers.source
        self.out = np.zeros(transform.shape(1), transform.dtype(1))

    async def compute(self, _count):
        norm = self.transform.options().get("norm")
        self.out[...] = getattr(np.fft, self.transform.verb)(self.source, norm=norm) * self.factor

    async def result(self):
        return self.out

    def workspace(self):
        return 7


@pytest.mark.parametrize("number", range(len(fft_subjects.PLANS["sim"].transforms)))
async def test_a_transform_that_is_wrong_is_not_timed(number):
    plan = fft_subjects.PLANS["sim"]
    error = fft_subjects.ERRORS[plan.transforms[number].double]
    assert await fft_subjects.take(Transformer(1), plan, number) is None
    for factor in (1 + 2 * error, 1 - 2 * error, np.nan):
        told = await fft_subjects.take(Transformer(factor), plan, number)
        assert told is not None
        assert told.startswith("wrong by ")


async def test_a_first_use_is_timed_only_if_its_result_is_right():
    plan = fft_subjects.PLANS["sim"]
    told = await fft_subjects.first(Transformer(1), plan, 0)
    assert (told.keys(), told["workspace"]) == ({"seconds", "workspace"}, 7)
    assert (await fft_subjects.first(Transformer(2), plan, 0))["refused"].startswith("wrong by 1 ")


@pytest.mark.parametrize(
    ("verb", "letters", "shapes"),
    [("fft", "CC", ((3, 8), (3, 8))), ("rfft", "RC", ((3, 8), (3, 5))), ("irfft", "CR", ((3, 5), (3, 8)))],
)
def test_a_transform_to_or_from_real_numbers_has_a_half_of_the_spectrum_and_of_the_operations(verb, letters, shapes):
    transform = fft_subjects.Transform(verb, (8,), 3, double=True)
    assert (transform.letters, transform.shape(0), transform.shape(1)) == (letters, *shapes)
    assert transform.operations == 5 * 3 * 8 * 3 / (1 if letters == "CC" else 2)
    assert transform.name == f"{verb} complex128, 3 of 2^3"


def test_transforms_are_judged_by_pairs_where_the_bare_call_takes_long_enough():
    long, short = (fft_subjects.Transform("irfft", (8,), count) for count in (1, 2))
    bare, slower = np.array([1.0, 2.0, 3.0]), np.array([1.019, 1.0, 1.5])
    for factor, held in ((1.0, True), (1.002, False)):
        measured = report.Table(
            [
                report.Measure(each.name, who, values)
                for each, scale in ((long, 50e-6 / 2), (short, 49e-6 / 2))
                for who, values in ((report.OURS, scale * bare * slower * factor), (report.RAW, scale * bare))
            ]
        )
        of_long, of_short, _ = of_transforms(long, short)
        judged, too_short = of_long.judge(measured), of_short.judge(measured)
        assert (judged.name, judged.held) == (f"{long.name}: at most 2 % over ctypes", held)
        assert judged.figure == pytest.approx(1.019 * factor - 1)
        assert (too_short.held, too_short.missing) == (None, "ctypes takes 49 µs, less than 50 µs")


def of_transforms(*transforms: fft_subjects.Transform) -> list[targets.Target]:
    """The targets of transforms, and of a call in a batch."""
    names = [transform.name for transform in transforms]
    found: list[targets.Target] = targets.of_transforms(names, fft_subjects.CALLER_ROW)
    return found


@pytest.mark.parametrize(("seconds", "held"), [(0.4015, True), (0.4025, False)])
def test_a_transform_in_a_batch_may_cost_its_caller_two_fifths_of_pytorchs_and_a_difference_must_be_one(seconds, held):
    """Half a percent of the limit is none."""
    (target,) = of_transforms()
    judged = target.judge(
        table((fft_subjects.CALLER_ROW, report.OURS, seconds), (fft_subjects.CALLER_ROW, report.TORCH, 1.0))
    )
    assert (judged.held, judged.figure, judged.limit) == (held, seconds, 0.4)


def test_callers_take_turns_and_say_what_each_call_costs():
    log, measured = [], report.Table()
    subjects = [
        Scripted("a", log, [None, {"call": 1.0, "launch": 2.0}, {"call": 3.0, "launch": 4.0}]),
        Scripted("b", log, [None, {"call": 5.0}, {"call": 6.0}]),
    ]
    turns.callers(subjects, "call", 2, 5, measured)
    assert [who for who, question in log if question == "caller 5"] == ["a", "b", "b", "a"]
    assert measured.measures == [
        report.Measure("call", "a", [1, 3]),
        report.Measure("launch", "a", [2, 4]),
        report.Measure("call", "b", [5, 6]),
    ]


def test_new_plans_are_told_without_the_processes_that_do_not_count_and_by_those_that_end_until_then(monkeypatch):
    first, second = (fft_subjects.Transform("fft", (length,)) for length in (8, 16))
    plan = fft_subjects.Plan((), 0.0, 1, 1, new=(first, second), starts=2, uncounted=1)
    answers = {
        report.OURS: [[9.0, 9.0], [1.0, 2.0], [3.0, 4.0]],
        report.RAW: [[9.0, 9.0], [5.0, "wrong"]],
    }

    @contextlib.contextmanager
    def started(_script, who, _backend):
        told = [
            {"refused": each} if isinstance(each, str) else {"seconds": each, "workspace": int(100 * each)}
            for each in answers[who].pop(0)
        ]
        yield Scripted(who, [], told)

    monkeypatch.setattr(fft, "started", started)
    measured = report.Table()
    fft.new_plans("sim", plan, measured)
    assert measured.measures == [
        report.Measure(fft.new_row(0, first), report.OURS, [1, 3]),
        report.Measure(fft.new_row(0, first), report.RAW, [5]),
        report.Measure(fft.workspace_row(first), report.OURS, [100, 300], "B"),
        report.Measure(fft.workspace_row(first), report.RAW, [500], "B"),
        report.Measure(fft.new_row(1, second), report.OURS, [2, 4]),
        report.Measure(fft.workspace_row(second), report.OURS, [200, 400], "B"),
    ]
    assert measured.absent == [report.Absent("new plans", report.RAW, f"{second.name}: wrong")]


# --- the benchmark of random numbers ----------------------------------------------------------------------------------


@pytest.mark.sim_only
@pytest.mark.long
def test_the_benchmark_of_random_numbers_checks_and_times_all_draws_by_both():
    done = run("random_numbers.py", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    plan, both = random_subjects.PLANS["sim"], (report.OURS, report.RAW)
    found = [(text[2:46].strip(), text[48:80].strip()) for text in done.stdout.splitlines() if text.startswith("  ")]
    assert [(what, who) for what, who in found if what] == [
        *(
            (draw.name, who)
            for draw in plan.draws
            for who in both
            if who == report.OURS or (draw.law.verb, draw.dtype) in random_subjects.FUNCTIONS
        ),
        *((random_subjects.CALLER_ROW, report.OURS), (turns.LAUNCH_ROW, report.OURS)),
        (random_subjects.CALLER_ROW, report.RAW),
    ]
    absent = [text for text in done.stdout.splitlines() if text.startswith("not measured")]
    assert [text.split(": ")[2] for text in absent] == [
        f"cuRAND has no {verb}" for verb in ("binomial", "gamma", "exponential")
    ]
    assert done.stdout.count("not judged") == sum(draw.judged_by is not None for draw in plan.draws)


class Drawer:
    """A subject of numpy, whose numbers are shifted or stretched, or are always the same."""

    def __init__(self, shift: float = 0.0, stretch: float = 1.0, *, repeats: bool = False) -> None:
        self.shift, self.stretch, self.repeats = shift, stretch, repeats

    async def place(self, draw):
        self.draw, self.random = draw, np.random.default_rng(7)

    async def compute(self, _count):
        random, size, law = np.random.default_rng(7) if self.repeats else self.random, self.draw.count, self.draw.law
        if law.verb == "bits":
            self.out = random.integers(1 << 32, size=size) * self.stretch + self.shift * 2.0**32
        else:
            self.out = getattr(random, law.verb)(**law.parameters, size=size) * self.stretch + self.shift

    async def result(self):
        return self.out


@pytest.mark.parametrize("number", range(len(random_subjects.PLANS["sim"].draws)))
async def test_numbers_of_another_distribution_are_not_timed(number):
    plan = random_subjects.PLANS["sim"]
    law = plan.draws[number].law
    assert await random_subjects.take(Drawer(), plan, number) is None
    shift = law.variance**0.5
    for drawer in (Drawer(shift), Drawer(-shift), Drawer(stretch=2), Drawer(np.nan)):
        told = await random_subjects.take(drawer, plan, number)
        assert told is not None
        assert told.startswith("wrong by ")
    assert await random_subjects.take(Drawer(repeats=True), plan, number) == "the same numbers came twice"


def test_both_ends_of_a_large_result_are_looked_at():
    looked_at = random_subjects.LOOKED_AT
    assert random_subjects.ends(2 * looked_at) == [slice(0, 2 * looked_at)]
    assert random_subjects.ends(3 * looked_at) == [slice(0, looked_at), slice(2 * looked_at, 3 * looked_at)]


def test_draws_are_judged_by_the_bare_call_or_by_cupy_where_that_takes_long_enough():
    words = random_subjects.Draw(random_subjects.BITS, "uint32", 10**7)
    gamma, short = (random_subjects.Draw(random_subjects.GAMMA, "float64", count) for count in (10**7, 10**3))
    exponential = random_subjects.Draw(random_subjects.EXPONENTIAL, "float64", 10**7)
    measured = table(
        *((words.name, report.OURS, 1.019e-3), (words.name, report.RAW, 1e-3), (words.name, report.CUPY, 1e-4)),
        *((gamma.name, report.OURS, 1.019e-3), (gamma.name, report.CUPY, 1e-3)),
        *((short.name, report.OURS, 1.0), (short.name, report.CUPY, 49e-6)),
    )
    judged_by = [(draw.name, draw.judged_by) for draw in (words, exponential, gamma, short) if draw.judged_by]
    of_words, of_gamma, of_short = targets.judged(measured, targets.of_draws(judged_by))
    assert (of_words.name, of_words.held) == ("bits uint32, 10^7: at most 2 % over ctypes", True)
    assert (of_gamma.name, of_gamma.held) == ("gamma(2.5) float64, 10^7: at most 0 % over CuPy", False)
    assert (of_short.held, of_short.missing) == (None, "CuPy takes 49 µs, less than 50 µs")
    (missing,) = targets.judged(table(), targets.of_draws(judged_by[:1]))
    assert (missing.held, missing.missing) == (None, f"not measured: {report.OURS}: {words.name}")
