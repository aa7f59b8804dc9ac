"""Products of matrices beside the bare cuBLAS and cuBLASLt, CuPy and PyTorch: `make bench-blas`.

Square products of growing size in several arithmetics, and a stack of small ones. Each subject has a process of its
own; all of them live at the same time and take turns, product by product and repetition by repetition, so that a clock
that drifts is the same for all. In its turn a subject computes the product again and again and waits once for all of
them; the others do nothing meanwhile.

What must hold is judged by pairs: how much longer ours took than the bare call of the same repetition. The figures
belong to this machine; only ratios within one run carry over to others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

from blas_subjects import PLANS, Plan, Product
from speed_report import CUPY, HEADER, OURS, RAW, TORCH, Absent, Measure, Table, Verdict, line, picture, ratios

SUBJECTS: Final = Path(__file__).with_name("blas_subjects.py")
DEADLINE: Final = 300.0
"""Seconds that one subject may take for everything."""
LIMIT: Final = 0.02
"""By so much ours may take longer than the bare call, for matrices from a certain size on."""
JUDGED_FROM: Final = 2048
PRESENT: Final = {"cuda": (OURS, RAW, CUPY, TORCH), "sim": (OURS, RAW)}
"""Those that there are on each backend."""
FEWEST, MOST = 3, 3000
"""Products that a turn computes."""


# --- the subjects -----------------------------------------------------------------------------------------------------


class Gone(Exception):
    """A subject's process has ended."""

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(who, reason)
        self.who = who
        self.reason = reason


class Subject:
    """A process that computes what it is told to, and waits for the next question."""

    def __init__(self, who: str, child: subprocess.Popen[str], errors: IO[str]) -> None:
        self.who = who
        self._child = child
        self._errors = errors

    def ask(self, question: str) -> None:
        """Send a question, whose answer is to be fetched."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer will say so
            self._child.stdin.write(f"{question}\n")
            self._child.stdin.flush()

    def answer(self) -> Any:
        """What it says to the question that was asked first. Raises `Gone`."""
        assert self._child.stdout is not None
        told = self._child.stdout.readline()
        if not told:
            raise Gone(self.who, f"its process ended with {self._child.wait()}: {self._last_line()}")
        return json.loads(told)

    def turn(self, count: int) -> float:
        """Seconds that a product takes, by so many. Raises `Gone`."""
        self.ask(f"turn {count}")
        seconds: float = self.answer()
        return seconds

    def _last_line(self) -> str:
        self._errors.seek(0)
        return (self._errors.read().strip().splitlines() or ["it said nothing"])[-1]


@contextlib.contextmanager
def started(who: str, backend: str) -> Iterator[Subject]:
    """A subject, which ends with the block."""
    command = [sys.executable, str(SUBJECTS), who, backend]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as child,
    ):
        alarm = threading.Timer(DEADLINE, child.kill)
        alarm.start()
        try:
            yield Subject(who, child, errors)
            child.communicate()
        finally:
            child.kill()
            alarm.cancel()


# --- the turns --------------------------------------------------------------------------------------------------------


def measured(subjects: Sequence[Subject], plan: Plan) -> Iterator[tuple[Product, list[Measure], list[Absent]]]:
    """Each product in its turn, by all the subjects that have it."""
    here = list(subjects)
    for number, product in enumerate(plan.products):
        ready, absent = _ready(here, number, product)
        values: dict[str, list[float]] = {}
        try:
            values = _turns(ready, plan)
        except Gone as gone:  # the others have done only a part of their turns
            absent.append(Absent(product.name, gone.who, gone.reason))
        yield product, [Measure(product.name, who, each) for who, each in values.items()], absent


def _ready(subjects: list[Subject], number: int, product: Product) -> tuple[list[Subject], list[Absent]]:
    """Who has made a product ready, all at the same time; a subject that is gone is taken off the list."""
    ready, absent = [], []
    for subject in subjects:
        subject.ask(f"take {number}")
    for subject in list(subjects):
        try:
            reason = subject.answer()
        except Gone as gone:
            subjects.remove(subject)
            reason = gone.reason
        if reason is None:
            ready.append(subject)
        else:
            absent.append(Absent(product.name, subject.who, reason))
    return ready, absent


def _turns(subjects: Sequence[Subject], plan: Plan) -> dict[str, list[float]]:
    """What each took in each repetition; who was last in one is first in the next. Raises `Gone`."""
    if not subjects:
        return {}
    fastest = min(subject.turn(FEWEST) for subject in subjects)
    count = min(max(int(plan.seconds / fastest), FEWEST), MOST)
    values: dict[str, list[float]] = {subject.who: [] for subject in subjects}
    for repetition in range(plan.repetitions):
        for subject in subjects[:: -1 if repetition % 2 else 1]:
            values[subject.who].append(subject.turn(count))
    return values


# --- what must hold, and how it is shown ------------------------------------------------------------------------------


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


def excess(ours: Sequence[float], bare: Sequence[float]) -> float:
    """How much longer ours took than the other of the same repetition: the median, as a share of that."""
    return statistics.median(one / other for one, other in zip(ours, bare, strict=True)) - 1


def shown(product: Product, measures: Sequence[Measure]) -> Iterator[str]:
    """A line for each subject."""
    times = ratios(measures)
    for each in measures:
        rate = product.operations / each.median / 1e12
        ratio = f"{times[each.who]:7.3f}" if times else ""
        yield f"{line(each)}  {rate:9.3g}  {ratio}"


TITLE: Final = f"{HEADER}  {'TFLOP/s':>9}  {'of ours':>7}"


def not_measured(absent: Iterable[Absent]) -> Iterator[str]:
    """A line for each reason, with what it holds for."""
    rows: dict[tuple[str, str], list[str]] = {}
    for each in absent:
        rows.setdefault((each.who, each.reason), []).append(each.what)
    for (who, reason), what in rows.items():
        yield f"not measured: {who}: {reason}: {'; '.join(what)}"


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if something that must hold was missed and `--strict` asks for that."""
    backend: str = arguments.backend
    plan, table, begun = PLANS[backend], Table(), time.monotonic()
    print(TITLE)
    with contextlib.ExitStack() as stack:
        subjects = [stack.enter_context(started(who, backend)) for who in PRESENT[backend]]
        for number, (product, measures, absent) in enumerate(measured(subjects, plan), 1):
            table.measures += measures
            table.absent += absent
            for text in shown(product, measures):
                print(text, flush=True)
            told = f"[{number}/{len(plan.products)}, {time.monotonic() - begun:.0f} s] {product.name}"
            print(told, file=sys.stderr, flush=True)
    print("", *not_measured(table.absent), sep="\n")
    judgements = list(verdicts(table, plan.products))
    if judgements:
        print("what must hold, by medians of pairs:", *judgements, sep="\n")
    if arguments.svg is not None:
        title = f"Products of matrices, medians of {plan.repetitions} turns, and ratios to atomr_trio"
        arguments.svg.write_text("\n".join(picture(table, title, judgements)) + "\n", encoding="utf-8")
    return int(arguments.strict and any(verdict.held is False for verdict in judgements))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--svg", type=Path, help="draw the picture there")
    parser.add_argument("--strict", action="store_true", help="fail if something that must hold was missed")
    sys.exit(main(parser.parse_args()))
