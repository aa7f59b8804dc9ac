"""Products of matrices beside the bare cuBLAS and cuBLASLt, CuPy and PyTorch: `make bench-blas`.

Square products of growing size in several arithmetics, and a stack of small ones. The subjects take turns, as `turns`
says.

What must hold is judged by pairs: how much longer ours took than the bare call of the same repetition. The figures
belong to this machine; only ratios within one run carry over to others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from blas_subjects import PLANS, Product
from speed_report import OURS, RAW, Table, Verdict
from turns import all_started, compare, concluded, excess, parsed

SUBJECTS: Final = Path(__file__).with_name("blas_subjects.py")
LIMIT: Final = 0.02
"""By so much ours may take longer than the bare call, for matrices from a certain size on."""
JUDGED_FROM: Final = 2048


def verdicts(table: Table, products: Sequence[Product]) -> Iterator[Verdict]:
    """No product of matrices from a certain size on takes more than 2 % over the bare call."""
    rows = table.rows()
    for product in products:
        if product.size < JUDGED_FROM:
            continue
        name = f"{product.name}, over the bare call"
        values = {measure.who: measure.values for measure in rows.get(product.name, ())}
        missing = [who for who in (OURS, RAW) if who not in values]
        if missing:
            yield Verdict(name, None, missing=f"not measured: {', '.join(missing)}")
        else:
            figure = excess(values[OURS], values[RAW])
            yield Verdict(name, figure <= LIMIT, figure, LIMIT, "share")


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if something that must hold was missed and `--strict` asks for that."""
    plan, table = PLANS[arguments.backend], Table()
    with all_started(SUBJECTS, arguments.backend) as subjects:
        compare(subjects, plan.products, plan, table)
    title = f"Products of matrices, medians of {plan.repetitions} turns, and ratios to atomr_trio"
    return concluded(arguments, table, title, list(verdicts(table, plan.products)))


if __name__ == "__main__":
    sys.exit(main(parsed(__doc__)))
