"""Products of matrices beside the bare cuBLAS and cuBLASLt, CuPy and PyTorch: `make bench-blas`.

Square products of growing size in several arithmetics, and a stack of small ones. The subjects take turns, as `turns`
says.

What must hold is judged by pairs: how much longer ours took than the bare call of the same repetition. The figures
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
from blas_subjects import PLANS
from speed_report import Table
from turns import all_started, compare

SUBJECTS: Final = Path(__file__).with_name("blas_subjects.py")


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if something that must hold was missed and `--strict` asks for that."""
    backend, plan, table = arguments.backend, PLANS[arguments.backend], Table()
    plan = attrs.evolve(plan, repetitions=conclusion.fewer(plan.repetitions, arguments.share))
    judged = targets.of_products((product.name, product.size) for product in plan.products)
    with all_started(SUBJECTS, backend) as subjects:
        compare(subjects, plan.products, plan, table, only=conclusion.chosen(arguments, judged))
    title = f"Products of matrices, medians of {plan.repetitions} turns, and ratios to atomr_trio"
    return conclusion.conclude(arguments, "blas", title, table, targets.judged(table, judged, backend))


if __name__ == "__main__":
    sys.exit(main(conclusion.with_judged(conclusion.options(__doc__)).parse_args()))
