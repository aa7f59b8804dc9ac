"""All that must hold of the benchmarks: every target, as data, in this one place.

A target says what a row of atomr_trio may take at most: so many times what another subject takes for a row of the same
run, and so many seconds more, or a figure of its own. Most come from the issue *fast at every size*; the libraries'
planned calls are judged by pairs of the same repetition.

Nothing in here measures anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import attrs
import speed_works as works
from speed_report import (
    CUPY,
    IDLE_ROW,
    IMPORT_ROW,
    KIB,
    MIB,
    NATIVE,
    OURS,
    RAW,
    TORCH,
    NotMeasured,
    Table,
    Unit,
    Verdict,
    shown,
)
from speed_works import AWAITED, CALLER, IN_FLIGHT, TASKS, WHOLE, Work

BEST: Final = "the best peer"
"""The fastest of cuda.core, CuPy, PyTorch and numba-cuda."""
RESOLUTION: Final = 0.005
"""A limit that is exceeded by no more than this share of it is held. Three subjects that have the GPU multiply the same
matrices and do nothing else took 57.6 us each in one run, and between 56.9 and 58.1 in its single turns."""
JUDGED_FROM: Final = 50e-6
"""The seconds that a planned call of the other takes at least, if it is judged."""


@attrs.frozen
class Target:
    """What a row of ours may take at most."""

    row: str
    times: float = 0.0
    """So many times what the other takes."""
    of: str = ""
    """The other: a subject, or `BEST`; empty where there is none."""
    other_row: str = ""
    """The row of the other, if it is not the same."""
    plus: float = 0.0
    """And so much more: seconds, or what the unit says."""
    unit: Unit = "s"
    paired: bool = False
    """Judged by the median over the repetitions of how much longer ours took than the other, a share of that."""
    least: float = 0.0
    """Not judged if the other takes less."""

    @property
    def name(self) -> str:
        """What is judged; the baseline knows it by this."""
        if not self.of:
            return f"{self.row}: at most {shown(self.plus, self.unit)}"
        row = f" for {self.other_row}" if self.other_row else ""
        more = f" and {shown(self.plus, self.unit)}" if self.plus else ""
        times = f"{100 * (self.times - 1):.0f} % over" if self.paired else f"{self.times:g} x"
        return f"{self.row}: at most {times} {self.of}{row}{more}"

    def judge(self, table: Table) -> Verdict:
        """Compare the medians of one run."""
        try:
            return self._judge(table)
        except NotMeasured as missing:
            return Verdict(self.name, None, missing=f"not measured: {missing}")

    def _judge(self, table: Table) -> Verdict:
        figure = table.median(self.row, OURS)
        if not self.of:
            return Verdict(self.name, figure <= self.plus, figure, self.plus, self.unit)
        row = self.other_row or self.row
        other = table.best_peer(row) if self.of == BEST else table.median(row, self.of)
        if other < self.least:
            short = f"{self.of} takes {shown(other)}, less than {shown(self.least)}"
            return Verdict(self.name, None, missing=short)
        if self.paired:
            excess = table.of(self.row, OURS).over(table.of(row, self.of))
            return Verdict(self.name, excess <= self.times - 1, excess, self.times - 1, "share", paired=True)
        limit = self.times * other + self.plus
        return Verdict(self.name, figure <= limit * (1 + RESOLUTION), figure, limit, self.unit, other=other)


def judged(table: Table, targets: Iterable[Target], backend: str = "cuda") -> list[Verdict]:
    """Every target, against the medians of one run; on the simulator, where figures mean nothing, none is judged."""
    if backend == "sim":
        return [Verdict(each.name, None, missing="only a GPU can tell") for each in targets]
    return [each.judge(table) for each in targets]


# --- speed ------------------------------------------------------------------------------------------------------------

LIBRARY_KINDS: Final = ("gemm", "axpy", "dot", "fill", "device copy", "solve", "cholesky", "fft", "normal")
HOST_KINDS: Final = ("slice", "reshape", "transpose", "allocation")
"""What is done in the caller's process alone."""
IDLE_LIMIT: Final = 0.001
"""The share of a CPU that an idle device may take beside what every process with a context does: the driver has a
thread in it that wakes ten times a second, and took 0.09 % of an H100's host."""
IMPORT_LIMIT: Final = 30e-3


def _launches(work: Work) -> Iterator[Target]:
    if work.form == "prepared":
        plain = work.name.removesuffix(", prepared")
        yield Target(work.row(CALLER), 0.25, BEST, f"{plain}, {CALLER}")
    elif not work.form:
        yield Target(work.row(CALLER), 0.4, BEST)
        yield Target(work.row(WHOLE), 0.8, BEST)


def _empty_launches(work: Work) -> Iterator[Target]:
    yield Target(work.row(AWAITED), 2.2, NATIVE, works.TICKET_ROW)
    yield Target(work.row(TASKS), 1.0, NATIVE, works.TICKET_ROW)


def _updated_graphs(work: Work) -> Iterator[Target]:
    yield Target(work.row(WHOLE), 1.0, RAW, plus=2e-6)


def _graphs(work: Work) -> Iterator[Target]:
    yield from _updated_graphs(work)
    yield from _library_calls(work)


def _library_calls(work: Work) -> Iterator[Target]:
    yield Target(work.row(AWAITED), 1.5, TORCH)
    yield Target(work.row(CALLER), 0.4, TORCH)
    yield Target(work.row(WHOLE), 1.0, TORCH)


def _host_calls(work: Work) -> Iterator[Target]:
    yield Target(work.row(CALLER), 1.0, TORCH)


def _copies(work: Work) -> Iterator[Target]:
    row = work.row(AWAITED)
    if work.form == "pinned":
        yield Target(row, 1.0, RAW, plus=10e-6)
    elif work.form == "new array":
        if work.size >= 64 * MIB:
            yield Target(row, 0.2, TORCH)
    else:
        awaited = next(times for size, times in PAGEABLE if work.size <= size)
        yield Target(row, awaited, RAW)
        if work.size == 256 * KIB:
            yield Target(work.row(WHOLE), 1.0, RAW, row)
        if 256 * KIB <= work.size <= 4 * MIB:
            yield Target(work.row(IN_FLIGHT), 1.0, RAW)


PAGEABLE: Final = ((64 * KIB, 2.5), (256 * KIB, 1.5), (63 * MIB, 1.0), (math.inf, 0.4))
"""Up to so many bytes, an awaited copy takes at most so many times as long as a plain ``cuMemcpy``."""


def _strided(work: Work) -> Iterator[Target]:
    yield Target(work.row(AWAITED), 1.2, RAW)


OF_KIND: Final[dict[str, Callable[[Work], Iterator[Target]]]] = {
    "empty launch": _empty_launches,
    "launch": _launches,
    "graph": _graphs,
    "graph update": _updated_graphs,
    "library graph": _library_calls,
    "copy": _copies,
    "strided": _strided,
    **dict.fromkeys(LIBRARY_KINDS, _library_calls),
    **dict.fromkeys(HOST_KINDS, _host_calls),
}


def of_works(measured: Iterable[Work]) -> list[Target]:
    """Those of works that subjects do in turns."""
    return [target for work in measured if work.kind in OF_KIND for target in OF_KIND[work.kind](work)]


def of_speed(measured: Iterable[Work]) -> list[Target]:
    """Those of the whole speed benchmark."""
    return [
        *of_works(measured),
        Target(IDLE_ROW, 1.0, RAW, plus=IDLE_LIMIT, unit="share"),
        Target(IMPORT_ROW, 1.0, works.IMPORTED_ANYWAY, plus=IMPORT_LIMIT),
    ]


# --- the libraries' planned calls -------------------------------------------------------------------------------------

PLANNED: Final = 1.02
"""So many times what the bare call takes."""
PRODUCTS_FROM: Final = 2048
"""The smallest matrices whose products are judged."""


def of_products(products: Iterable[tuple[str, int]]) -> list[Target]:
    """Those of products of matrices, each with its size."""
    return [Target(name, PLANNED, RAW, paired=True) for name, size in products if size >= PRODUCTS_FROM]


def of_transforms(transforms: Iterable[str], caller: str) -> list[Target]:
    """Those of transforms of which the bare call does the same, and no less; and what a call costs its caller."""
    planned = [Target(name, PLANNED, RAW, paired=True, least=JUDGED_FROM) for name in transforms]
    return [*planned, Target(caller, 0.4, TORCH)]


def of_draws(draws: Iterable[tuple[str, str]]) -> list[Target]:
    """Those of draws, each with the one that does the same: the bare call, or CuPy for what cuRAND does not have."""
    times = {RAW: PLANNED, CUPY: 1.0}
    return [Target(name, times[of], of, paired=True, least=JUDGED_FROM) for name, of in draws]


# --- two devices ------------------------------------------------------------------------------------------------------

PEER_RATE: Final = 0.95
"""The share of a bare copy's rate that large copies between devices have."""
SMALL_PEER_COPY: Final = 2.0
"""So many times what a bare one takes, a small copy of a batch may."""
DRIVEN: Final = 1.9
"""So many times as many launches as one device does, two devices do that one program drives."""
OPENED: Final = 1.2
"""So many times as long as one device, two take to open."""


def of_peers(
    large: Iterable[str], small: Iterable[str], driven: Iterable[tuple[str, str]], opened: tuple[str, str]
) -> list[Target]:
    """Those of two devices: large and small copies of a batch; what both take, and what one does, of launches of a
    kernel, each on its device, and of opening.
    """
    return [
        *(Target(row, 1 / PEER_RATE, RAW, paired=True) for row in large),
        *(Target(row, SMALL_PEER_COPY, RAW) for row in small),
        *(Target(two, 2 / DRIVEN, OURS, one, paired=True) for two, one in driven),
        Target(opened[0], OPENED, OURS, opened[1]),
    ]


# --- worlds -----------------------------------------------------------------------------------------------------------

LARGE_SUM, MEDIUM_SUM = 0.98, 0.9
"""The share of plain NCCL's bandwidth that sums from 16 MiB on have, and those of 1 MiB."""
AWAITED_SUM, BATCHED_SUM = 15e-6, 3e-6
"""Seconds that a sum of 8 bytes may take more than plain NCCL's: awaited, and in a batch."""
NEXT_EPOCH: Final = (0.15, 0.8)
"""Seconds from the report of a loss to the first result of the next epoch: with standbys, and without."""


def of_world(
    large: Iterable[str],
    medium: Iterable[str],
    awaited: Iterable[str],
    batched: Iterable[str],
    recovered: tuple[str, str],
) -> list[Target]:
    """Those of a world of two devices: the rows of sums by their sizes, and of the next epoch after a loss."""
    return [
        *(Target(row, 1 / LARGE_SUM, RAW, paired=True) for row in large),
        *(Target(row, 1 / MEDIUM_SUM, RAW, paired=True) for row in medium),
        *(Target(row, 1.0, RAW, plus=AWAITED_SUM) for row in awaited),
        *(Target(row, 1.0, RAW, plus=BATCHED_SUM) for row in batched),
        *(Target(row, plus=seconds) for row, seconds in zip(recovered, NEXT_EPOCH, strict=True)),
    ]


# --- the others -------------------------------------------------------------------------------------------------------

STANDBY_LIMIT: Final = 2e-3
"""Seconds from the report of a fault to the next result, with a standby."""
START_LIMIT: Final = 0.05
"""Without one: so many seconds more than a process that uses the driver by ctypes and is started anew."""
HELD_UP_LIMIT: Final = 5e-3
"""Seconds that the event loop may be held up, by anything."""
CACHE_LIMIT: Final = 2e-3
"""Seconds that a kernel from the disk cache may take more than ``cuModuleLoadData``, in a fresh process."""
LOAD_LIMIT: Final = 10e-3
"""Seconds that the simulated GPU may take to load the module of an ordinary kernel."""
VERB_LIMIT: Final = 8e-6
"""Seconds that a verb may cost its caller in a batch without a reason."""


CROSSING_LIMIT: Final = 100e-6
"""Seconds that a blocking verb may take more than the awaited one."""
TURN_LIMIT: Final = 5e-6
"""The same of a verb that only enqueues, which takes its turn with the device's run."""


def of_plain(waits: Iterable[str], enqueues: Iterable[str], awaited: str) -> list[Target]:
    """Those of verbs without trio, by the rows of those that wait and of those that do not."""
    return [
        *(Target(row, 1.0, awaited, plus=CROSSING_LIMIT) for row in waits),
        *(Target(row, 1.0, awaited, plus=TURN_LIMIT) for row in enqueues),
    ]


def of_recovery(standby: str, start: str, anew: str) -> list[Target]:
    """Those of a fault, by the rows of both ways to recover, and of a process that is started anew."""
    return [
        Target(standby, plus=STANDBY_LIMIT),
        Target(start, 1.0, RAW, anew, plus=START_LIMIT),
    ]


def of_takeovers(rows: Iterable[str]) -> list[Target]:
    """Those of takeovers by a standby with other things held, and of calls of libraries after one."""
    return [Target(row, plus=STANDBY_LIMIT) for row in rows]


def opening(row: str, process: str) -> Target:
    """An opening and a first result, beside a process that uses the driver by ctypes."""
    return Target(row, 1.0, RAW, process, plus=START_LIMIT)


def held_up(row: str) -> Target:
    """How long the event loop may be held up."""
    return Target(row, plus=HELD_UP_LIMIT)


def of_cached_kernels(units: Iterable[tuple[str, str]]) -> list[Target]:
    """Those of kernels from the disk cache: by row, and the row of the bare load of the same image."""
    return [Target(row, 1.0, RAW, bare, plus=CACHE_LIMIT) for row, bare in units]


def verb(row: str) -> Target:
    """What a verb may cost its caller in a batch."""
    return Target(row, plus=VERB_LIMIT)
