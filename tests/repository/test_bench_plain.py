"""The benchmark of plain programs: that it measures both faces in all rows, and judges each."""

from __future__ import annotations

import importlib
import sys

import pytest

import atomr_trio
from support import ROOT, chosen_backend

sys.path.append(str(ROOT / "tests" / "benchmarks"))
report, targets = importlib.import_module("speed_report"), importlib.import_module("targets")
bench = importlib.import_module("plain_verbs")


@pytest.mark.long
def test_both_faces_are_measured_in_all_rows_and_each_verb_has_a_limit():
    with atomr_trio.start(0, backend=chosen_backend()) as dev:
        table = bench.measured(dev, 1)
    rows = [work.row for work in bench.WORKS]
    measured = {(each.what, each.who) for each in table.measures}
    assert {(row, who) for row in rows for who in (report.OURS, bench.AWAITED)} <= measured
    assert all(value > 0 for each in table.measures for value in each.values)
    verdicts = [target.judge(table) for target in targets.of_plain(rows[:3], rows[3:], bench.AWAITED)]
    assert [verdict.other for verdict in verdicts] == [pytest.approx(table.median(row, bench.AWAITED)) for row in rows]
