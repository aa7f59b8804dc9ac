"""Fourier transforms beside the bare cuFFT, CuPy and PyTorch: `make bench-fft`.

Transforms of contiguous arrays of many sizes, whose plans are made. The subjects take turns, as `turns` says. The
inverse to real numbers is measured without a copy of its input and without scaling, as the bare call does it, and also
with its defaults.

Then follows the caller's time of one call in a batch, beside that of a launch of an empty kernel in a batch. Last are
new plans: in a process of its own, each subject uses several transforms for the first time, one after the other, and
says how large its workspace is. The first of them, the cold one, starts the library.

The verdicts are by pairs of the same repetition: how much longer ours took than the bare call, for transforms that are
not too short. A call in a batch is judged beside PyTorch's. With `--judged`, new plans and inverses with their defaults
are not measured. The figures belong to this machine; only ratios within one run carry over to others.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import conclusion
import targets
from fft_subjects import CALLER_ROW, PLANS, Plan, Transform
from speed_report import Absent, Measure, Table
from turns import PRESENT, Gone, all_started, callers, compare, started, take_in, tell

SUBJECTS: Final = Path(__file__).with_name("fft_subjects.py")


def new_row(number: int, transform: Transform) -> str:
    """The first use of a transform, by its place in the process."""
    return f"new plan, {'warm' if number else 'cold'}: {transform.name}"


def workspace_row(transform: Transform) -> str:
    """The workspace after that."""
    return f"workspace: {transform.name}"


# --- what is measured beside the turns --------------------------------------------------------------------------------


def new_plans(backend: str, plan: Plan, table: Table) -> None:
    """Measure first uses, each subject alone, in several fresh processes."""
    begun, present = time.monotonic(), list(PRESENT[backend])
    seconds: dict[tuple[str, str], list[float]] = {}
    nbytes: dict[tuple[str, str], list[float]] = {}
    processes = plan.uncounted + plan.starts
    for start in range(processes):
        for who in tuple(present):
            try:
                for number, (time_taken, workspace) in enumerate(_first_uses(who, backend, plan)):
                    if start >= plan.uncounted:
                        transform = plan.new[number]
                        seconds.setdefault((new_row(number, transform), who), []).append(time_taken)
                        if workspace is not None:
                            nbytes.setdefault((workspace_row(transform), who), []).append(workspace)
            except Gone as gone:
                table.absent.append(Absent("new plans", who, gone.reason))
                present.remove(who)
        tell(f"[{start + 1}/{processes}, {time.monotonic() - begun:.0f} s] new plans")
    order = [
        row
        for number, transform in enumerate(plan.new)
        for row in (new_row(number, transform), workspace_row(transform))
    ]
    measures = [
        *(Measure(row, who, each) for (row, who), each in seconds.items()),
        *(Measure(row, who, each, "B") for (row, who), each in nbytes.items()),
    ]
    take_in(table, sorted(measures, key=lambda measure: order.index(measure.what)))


def _first_uses(who: str, backend: str, plan: Plan) -> Iterator[tuple[float, int | None]]:
    """The seconds and the workspace of each first use. Raises `Gone`, also where one is refused."""
    with started(SUBJECTS, who, backend) as subject:
        for number in range(len(plan.new)):
            subject.ask(f"first {number}")
            answer = subject.answer()
            if "refused" in answer:
                raise Gone(who, f"{plan.new[number].name}: {answer['refused']}")
            yield answer["seconds"], answer["workspace"]


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if something that must hold was missed and `--strict` asks for that."""
    backend, plan, table = arguments.backend, PLANS[arguments.backend], Table()
    plan = attrs.evolve(
        plan,
        repetitions=conclusion.fewer(plan.repetitions, arguments.share),
        starts=conclusion.fewer(plan.starts, arguments.share, least=1),
    )
    judged = targets.of_transforms((each.name for each in plan.transforms if each.judged), CALLER_ROW)
    with all_started(SUBJECTS, backend) as subjects:
        compare(subjects, plan.transforms, plan, table, only=conclusion.chosen(arguments, judged))
        callers(subjects, CALLER_ROW, plan.repetitions, plan.calls, table)
    if not arguments.judged and not arguments.rows:
        new_plans(backend, plan, table)
    title = f"Fourier transforms, medians of {plan.repetitions} turns, and ratios to atomr_trio"
    return conclusion.conclude(arguments, "fft", title, table, targets.judged(table, judged, backend))


if __name__ == "__main__":
    sys.exit(main(conclusion.with_judged(conclusion.options(__doc__)).parse_args()))
