"""Random numbers beside the bare cuRAND, CuPy and PyTorch: `make bench-random`.

Draws of many sizes, from generators that have drawn before. The subjects take turns, as `turns` says. Then follows the
caller's time of a draw in a batch, beside that of a launch of an empty kernel in a batch.

The verdicts are by pairs of the same repetition, for draws that are not too short. A draw by cuRAND takes at most 2 %
longer than the bare call; gamma and binomial numbers, which cuRAND does not have, come as fast as CuPy's. The figures
belong to this machine; only ratios within one run carry over to others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from random_subjects import CALLER_ROW, PLANS, Draw
from speed_report import CUPY, OURS, RAW, Table, Verdict, shown as shown_value
from turns import all_started, callers, compare, concluded, judged, parsed

SUBJECTS: Final = Path(__file__).with_name("random_subjects.py")
LIMITS: Final = {RAW: 0.02, CUPY: 0.0}
"""By so much ours may take longer, by whom it is compared with."""
JUDGED_FROM: Final = 50e-6
"""The seconds that the other takes at least, if a draw is judged."""
RATE: Final = ("10^9/s", 1e9)


def verdicts(table: Table, draws: Iterable[Draw]) -> Iterator[Verdict]:
    """No draw that takes long enough takes much longer than the one that it is compared with."""
    rows = {(measure.what, measure.who): measure for measure in table.measures}
    for draw in draws:
        who = draw.judged_by
        if who is None:
            continue
        name = f"{draw.name}, over {'the bare call' if who == RAW else who}"
        other = rows.get((draw.name, who))
        if other is not None and other.median < JUDGED_FROM:
            least, taken = shown_value(JUDGED_FROM), shown_value(other.median)
            yield Verdict(name, None, missing=f"{who} takes {taken}, less than {least}")
        else:
            yield judged(name, rows.get((draw.name, OURS)), other, LIMITS[who])


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if something that must hold was missed and `--strict` asks for that."""
    backend: str = arguments.backend
    plan, table = PLANS[backend], Table()
    with all_started(SUBJECTS, backend) as subjects:
        compare(subjects, plan.draws, plan, table, RATE)
        callers(subjects, CALLER_ROW, plan.repetitions, plan.calls, table)
    judgements = list(verdicts(table, plan.draws))
    if backend == "sim":
        judgements = [Verdict(each.name, None, missing="only a GPU can tell") for each in judgements]
    title = f"Random numbers, medians of {plan.repetitions} turns, and ratios to atomr_trio"
    return concluded(arguments, table, title, judgements)


if __name__ == "__main__":
    sys.exit(main(parsed(__doc__)))
