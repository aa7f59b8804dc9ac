"""The works of the speed benchmark: what is done, in which ways, and what comes out.

A work has a row for each way in which a subject does it:

- *awaited*: one call, and the wait for its end; the median and the 99th percentile of single calls;
- *caller*: the caller's time for one of many calls that are not waited for; atomr_trio makes them in a batch;
- *end to end*: the time until all of these are done, divided by their number; of one kind of launch, the 99th
  percentile of many bursts as well;
- *of 64 tasks* and *16 in flight*: so many tasks await calls at the same time; the time of all, divided by the calls;
  and the 99th percentile of single calls, which wait for each other.

Nothing in here measures anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import attrs
import numpy as np
from speed_report import KIB, MIB, Host, size as shown_size

AWAITED: Final = "awaited"
P99: Final = "awaited, p99"
CALLER: Final = "caller"
WHOLE: Final = "end to end"
TASKS: Final = "of 64 tasks"
IN_FLIGHT: Final = "16 in flight"
COUNT_OF_TASKS: Final[Mapping[str, int]] = {TASKS: 64, IN_FLIGHT: 16}
LEAST_OF_A_TASK: Final[Mapping[str, int]] = {TASKS: 20, IN_FLIGHT: 1}
"""The fewest calls of each task. Of a few short ones the first, which wakes all tasks, would be much of the time."""
P99_FROM: Final = 100
"""So many calls are needed for a 99th percentile."""
BURSTS_OF: Final = "launch, 4 arguments"
"""The work whose bursts are measured one by one, for their 99th percentile."""
PRODUCTS: Final = 10
"""Calls of a library in a graph."""
BATCH_OF_COPIES: Final = 16
LARGEST_OF_BATCH: Final = 16 * MIB
"""Copies of so many bytes at most go into batches, which take only a few that are larger."""
LARGEST_IN_FLIGHT: Final = 4 * MIB
TICKET_ROW: Final = "launch of an empty kernel, a ticket and a spin, awaited"
"""The least that can be done to launch something and to see its end."""
IMPORTED_ANYWAY: Final = "trio and numpy"


@attrs.frozen
class Work:
    """Something that subjects do in turns."""

    kind: str
    name: str
    size: int = 0
    """Elements, the order of a matrix, arguments of a launch, or bytes of a copy."""
    form: str = ""
    """A variant: ``out`` where the result goes to an array that is there, or the kind of host memory of a copy."""
    most: int = 400
    """Calls of one turn at most: no more than a stream takes without blocking."""
    least: int = 1
    """Calls of one turn at least: a burst of launches is long."""

    @property
    def operations(self) -> float:
        """One call."""
        return 1.0

    def row(self, way: str) -> str:
        """The row of the table for one of the ways."""
        return f"{self.name}, {way}"

    @property
    def direction(self) -> str:
        """Of a copy, ``in`` or ``out``."""
        return self.name.split(",")[0].removeprefix("copy ")


@attrs.frozen
class Plan:
    """What is measured, and how long."""

    works: tuple[Work, ...]
    seconds: float
    """The approximate length of a turn, for each way."""
    repetitions: int
    """Turns of each process of a subject."""
    rounds: int
    """Processes of each subject, one after the other: how fast one is depends on where the machine puts it."""
    processes: int
    """Fresh processes for imports and first results."""
    uncounted: int
    """The first of them, which fill caches, do not count."""
    idle_seconds: float
    bursts: int
    """Bursts of each process whose 99th percentile is told, if all processes together have enough."""
    calls_of_burst: int


def copy_name(direction: str, host: Host | Literal["strided"], nbytes: int) -> str:
    """One copy to the device or from it."""
    return f"copy {direction}, {host}, {shown_size(nbytes)}"


LARGEST: Final = 256 * MIB
"""Copies of so many bytes are not made of pinned memory: to make both ends ready takes seconds in each process."""


def _copies(sizes: tuple[int, ...], strided: tuple[int, ...]) -> Iterator[Work]:
    for nbytes in sizes:
        for host in ("pageable", "pinned") if nbytes < LARGEST else ("pageable",):
            for direction in ("in", "out"):
                yield Work("copy", copy_name(direction, host, nbytes), nbytes, host)
        yield Work("copy", copy_name("out", "new array", nbytes), nbytes, "new array")
    for nbytes in strided:
        for direction in ("in", "out"):
            yield Work("strided", copy_name(direction, "strided", nbytes), nbytes)


def _works(
    burst: int,
    nodes: tuple[int, ...],
    orders: tuple[int, ...],
    matrix: int,
    vector: int,
    copied: tuple[int, ...],
    strided: tuple[int, ...],
) -> Iterator[Work]:
    yield Work("empty launch", "launch of an empty kernel")
    yield Work("ticket", TICKET_ROW.removesuffix(f", {AWAITED}"))
    for arguments in (4, 16):
        yield Work("launch", f"launch, {arguments} arguments", arguments, "", burst, burst)
    for arguments in (4, 16):
        yield Work("launch", f"launch, {arguments} arguments, prepared", arguments, "prepared", burst, burst)
    yield Work("launch", "launch_nowait, 4 arguments", 4, "nowait")
    for count in nodes:
        yield Work("graph", f"graph of {count} kernels", count, least=min(burst, 100))
    yield Work("graph update", f"graph of {nodes[0]} kernels, an argument updated", nodes[0], most=100)
    yield Work("library graph", f"graph of {PRODUCTS} products of {orders[0]}", orders[0], most=100)
    for order in orders:
        for form in ("new", "out"):
            yield Work("gemm", f"gemm {order}, {_result(form)}", order, form)
    yield Work("axpy", f"axpy {vector}", vector)
    yield Work("dot", f"dot {vector}, a number", vector, "new")
    yield Work("dot", f"dot {vector}, to out", vector, "out")
    yield Work("fill", f"fill {shown_size(4 * vector)}", vector)
    yield Work("device copy", f"device copy {shown_size(4 * vector)}", vector)
    for form in ("new", "out"):
        yield Work("solve", f"solve {matrix}, {_result(form)}", matrix, form)
        yield Work("cholesky", f"cholesky {matrix}, {_result(form)}", matrix, form)
    for form in ("new", "out"):
        yield Work("fft", f"fft {vector}, {_result(form)}", vector, form)
        yield Work("normal", f"normal {vector}, {_result(form)}", vector, form)
    yield Work("slice", "slice x[1:10]", vector, "plain", 2000)
    yield Work("slice", "slice x[::2]", vector, "strided", 2000)
    yield Work("reshape", "reshape", vector, most=2000)
    yield Work("transpose", "transpose", vector, most=2000)
    yield Work("allocation", "empty of 4 KiB and free", 4 * KIB, "both", 2000)
    yield Work("allocation", "empty of 4 KiB, kept", 4 * KIB, "empty", 500)
    yield Work("allocation", "free of 4 KiB", 4 * KIB, "free", 500)
    yield Work("zeros", "zeros of 4 KiB", 4 * KIB)
    yield from _copies(copied, strided)


def _result(form: str) -> str:
    return "new result" if form == "new" else "to out"


BURST: Final = 1000
SIZES: Final = tuple(4 * KIB << (2 * step) for step in range(9))
"""Bytes of the copies, from 4 KiB to 256 MiB."""
PLANS: Final[Mapping[str, Plan]] = {
    "cuda": Plan(
        works=tuple(_works(BURST, (100, 1000), (64, 256, 1024), 64, 4096, SIZES, (64 * KIB, MIB, 16 * MIB))),
        seconds=0.006,
        repetitions=2,
        rounds=4,
        processes=5,
        uncounted=1,
        idle_seconds=1.0,
        bursts=50,
        calls_of_burst=BURST,
    ),
    "sim": Plan(
        works=tuple(_works(3, (5,), (8,), 8, 64, (4 * KIB,), (8 * KIB,))),
        seconds=0.0,
        repetitions=1,
        rounds=1,
        processes=1,
        uncounted=0,
        idle_seconds=0.05,
        bursts=2,
        calls_of_burst=3,
    ),
}
"""The simulator shows that everything works, and says nothing of speed."""


def p99(seconds: Sequence[float]) -> float:
    """The smallest value that 99 % of them do not exceed."""
    return sorted(seconds)[-(-99 * len(seconds) // 100) - 1]


# --- the numbers ------------------------------------------------------------------------------------------------------


def vector(count: int, seed: int = 0) -> np.ndarray:
    """float32 from the normal distribution, the same in every process."""
    return np.random.default_rng((7, seed)).standard_normal(count).astype(np.float32)


def matrix(order: int, seed: int = 0) -> np.ndarray:
    """The same as a square matrix."""
    return vector(order * order, seed).reshape(order, order)


def definite(order: int) -> np.ndarray:
    """A symmetric matrix whose eigenvalues are positive."""
    a = matrix(order).astype(np.float64)
    return (a @ a.T / order + np.eye(order)).astype(np.float32)


def expected(work: Work) -> np.ndarray | None:
    """The result of one call; None where there is none, or none that is known."""
    match work.kind:
        case "gemm" | "library graph":
            return matrix(work.size).astype(np.float64) @ matrix(work.size, 1).astype(np.float64)
        case "dot":
            return np.array(vector(work.size).astype(np.float64) @ vector(work.size, 1).astype(np.float64))
        case "fill":
            return np.full(work.size, 2.0)
        case "device copy":
            return vector(work.size)
        case "solve":
            return np.linalg.solve(definite(work.size).astype(np.float64), vector(work.size).astype(np.float64))
        case "cholesky":
            return np.linalg.cholesky(definite(work.size).astype(np.float64))
        case "fft":
            return np.fft.fft(vector(work.size))
        case "zeros":
            return np.zeros(work.size // 4)
        case "copy" | "strided":
            return host_bytes(work.size)
    return None


def host_bytes(nbytes: int) -> np.ndarray:
    """The source of a copy."""
    return np.arange(nbytes // 8, dtype=np.uint64).view(np.uint8)


def pitched(nbytes: int) -> tuple[int, int]:
    """The rows and the bytes of each row of a strided copy; on the device, a row takes twice as much."""
    width = 4 * KIB if nbytes >= MIB else KIB
    return nbytes // width, width


def error_of(result: np.ndarray, exact: np.ndarray) -> float:
    """How wrong a result is, in shares of the largest element."""
    if result.shape != exact.shape:
        return float("inf")
    if np.array_equal(result, exact):  # so it is with copies, of which some are large
        return 0.0
    largest = abs(exact.astype(np.complex128)).max() or 1.0
    return float(abs(result.astype(np.complex128) - exact).max() / largest)
