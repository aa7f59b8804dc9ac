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
from pathlib import Path
from typing import Final

import attrs
import conclusion
import targets
from random_subjects import CALLER_ROW, PLANS
from speed_report import Table
from turns import all_started, callers, compare

SUBJECTS: Final = Path(__file__).with_name("random_subjects.py")
RATE: Final = ("10^9/s", 1e9)


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if something that must hold was missed and `--strict` asks for that."""
    backend, plan, table = arguments.backend, PLANS[arguments.backend], Table()
    plan = attrs.evolve(plan, repetitions=conclusion.fewer(plan.repetitions, arguments.share))
    judged = targets.of_draws((draw.name, draw.judged_by) for draw in plan.draws if draw.judged_by is not None)
    with all_started(SUBJECTS, backend) as subjects:
        compare(subjects, plan.draws, plan, table, RATE, conclusion.chosen(arguments, judged))
        callers(subjects, CALLER_ROW, plan.repetitions, plan.calls, table)
    title = f"Random numbers, medians of {plan.repetitions} turns, and ratios to atomr_trio"
    return conclusion.conclude(arguments, "random", title, table, targets.judged(table, judged, backend))


if __name__ == "__main__":
    sys.exit(main(conclusion.with_judged(conclusion.options(__doc__)).parse_args()))
