"""Subjects that take turns: what the benchmarks of speed, products, transforms and random numbers have in common.

Each subject has a process of its own. All of them live at the same time and take turns, work by work and repetition by
repetition, so that a clock that drifts is the same for all. In its turn a subject does the work again and again and
waits once for all of it; the others do nothing meanwhile, so the GPU belongs to whoever has its turn.

A question is a line on a subject's standard input, a word and a number; the answer is a line of JSON. The first half of
this file asks and shows, the second half answers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import byref
from pathlib import Path
from typing import IO, Any, Final, Protocol, TypeVar

import numpy as np
import trio
from speed_report import CUPY, HEADER, OURS, RAW, TORCH, Absent, Measure, Table, line, ratios

DEADLINE: Final = 300.0
"""Seconds that one subject may take for everything."""
PRESENT: Final = {"cuda": (OURS, RAW, CUPY, TORCH), "sim": (OURS, RAW)}
"""The subjects of each backend."""
FEWEST, MOST = 3, 3000
"""How often a turn does the work."""
SLOWEST: Final = 2
"""The turn of a subject that is slower than the fastest is so many times as long at most. Then it does less work."""
SLOWEST_OF_WAYS: Final = 4
"""The same of a work that is done in several ways, whose turns are short."""
FIRST_TURNS: Final = 6
"""So many turns at most tell how often a work is done in the others."""
SETTLED: Final = 0.8
"""A turn that takes a greater share of the one before is no shorter."""
LONG: Final = 0.05
"""The seconds of a call beside which nothing of that counts."""
LAUNCH_ROW: Final = "a launch with 4 arguments, caller"
EMPTY: Final = 'extern "C" __global__ void empty(float a, const float *x, float *y, int n) { }'
"""What is launched there."""


ALONE: Final = {"OPENBLAS_NUM_THREADS": "1"}
"""Of the environment of subjects. All of them compute with numpy what is right, at the same time, and the threads of a
product go on looking for work when it is done. On a machine of 16 processors those of seven subjects took them for up
to 90 ms from the one that had its turn."""


class Work(Protocol):
    """Something that subjects do in turns."""

    @property
    def name(self) -> str:
        """Its row in the table."""

    @property
    def operations(self) -> float:
        """Multiplications and additions, or other things of which the rate is told."""


class WorkOfWays(Work, Protocol):
    """Something that subjects do in turns, in several ways."""

    @property
    def most(self) -> int:
        """Calls of one turn at most."""

    @property
    def least(self) -> int:
        """Calls of one turn at least."""

    def row(self, way: str) -> str:
        """The row of one of the ways."""


class Pace(Protocol):
    """How long is measured."""

    @property
    def seconds(self) -> float:
        """The approximate length of each turn."""

    @property
    def repetitions(self) -> int:
        """Turns of each subject."""


AnyWork = TypeVar("AnyWork", bound=Work)
AnyWorkOfWays = TypeVar("AnyWorkOfWays", bound=WorkOfWays)

# --- the processes ----------------------------------------------------------------------------------------------------


class Gone(Exception):
    """A subject's process has ended."""

    def __init__(self, who: str, reason: str) -> None:
        super().__init__(who, reason)
        self.who = who
        self.reason = reason


class Subject:
    """A process that does what it is told to, and waits for the next question."""

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
        """Return the answer to the oldest question. Raises `Gone`."""
        assert self._child.stdout is not None
        told = self._child.stdout.readline()
        if not told:
            raise Gone(self.who, f"its process ended with {self._child.wait()}: {self._last_line()}")
        return json.loads(told)

    def turn(self, count: int) -> float:
        """Return the seconds that the work takes once, when it is done so many times. Raises `Gone`."""
        self.ask(f"turn {count}")
        seconds: float = self.answer()
        return seconds

    def _last_line(self) -> str:
        self._errors.seek(0)
        return (self._errors.read().strip().splitlines() or ["it said nothing"])[-1]


def environment_of(checkout: Path) -> dict[str, str]:
    """The environment of a process that imports the package of a checkout."""
    others = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "bindings"), *others])}


@contextlib.contextmanager
def started(
    script: Path,
    who: str,
    backend: str,
    *,
    label: str | None = None,
    sources: Path | None = None,
    descriptors: Sequence[int] = (),
) -> Iterator[Subject]:
    """A subject, which ends with the block.

    `sources` is the checkout whose package it imports, if that is another, `label` its name in the table, and
    `descriptors` are those that it inherits.
    """
    command = [sys.executable, str(script), who, backend]
    environment = {**(environment_of(sources) if sources is not None else os.environ), **ALONE}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            pass_fds=descriptors,
        ) as child,
    ):
        alarm = threading.Timer(DEADLINE, child.kill)
        alarm.start()
        try:
            yield Subject(label or who, child, errors)
            child.communicate()
        finally:
            child.kill()
            alarm.cancel()
            with contextlib.suppress(BrokenPipeError):  # what it was asked last may still be in the buffer
                assert child.stdin is not None
                child.stdin.close()


@contextlib.contextmanager
def all_started(script: Path, backend: str, present: Sequence[str] | None = None) -> Iterator[list[Subject]]:
    """The subjects that are present, by default all of a backend, which end with the block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(started(script, who, backend)) for who in present or PRESENT[backend]]


# --- the turns --------------------------------------------------------------------------------------------------------


def every(_name: str) -> bool:
    """Choose all works."""
    return True


def measured(
    subjects: list[Subject], works: Sequence[AnyWork], pace: Pace, only: Callable[[str], bool] = every
) -> Iterator[tuple[AnyWork, list[Measure], list[Absent]]]:
    """Each work in its turn, by all the subjects that have it. A subject that is gone is taken off the list."""
    for number, work in enumerate(works):
        if not only(work.name):
            continue
        ready, absent = made_ready(subjects, number, work.name)
        values: dict[str, list[float]] = {}
        try:
            values = _turns(ready, pace)
        except Gone as gone:  # the others have done only a part of their turns
            absent.append(Absent(work.name, gone.who, gone.reason))
        yield work, [Measure(work.name, who, each) for who, each in values.items()], absent


def made_ready(subjects: list[Subject], number: int, row: str) -> tuple[list[Subject], list[Absent]]:
    """Return who has made a work ready, all at the same time. A subject that is gone is taken off the list."""
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
            absent.append(Absent(row, subject.who, reason))
    return ready, absent


def in_turns(subjects: Sequence[Subject], repetitions: int) -> Iterator[Subject]:
    """Each subject so many times; who was last in one repetition is first in the next."""
    for repetition in range(repetitions):
        yield from subjects[:: -1 if repetition % 2 else 1]


def _turns(subjects: Sequence[Subject], pace: Pace) -> dict[str, list[float]]:
    """The seconds of each subject in each repetition. Raises `Gone`."""
    if not subjects:
        return {}
    once = {subject.who: subject.turn(FEWEST) for subject in subjects}
    most = min(int(pace.seconds / min(once.values())), MOST)
    counts = {who: max(min(most, int(SLOWEST * pace.seconds / each)), FEWEST) for who, each in once.items()}
    values: dict[str, list[float]] = {subject.who: [] for subject in subjects}
    for subject in in_turns(subjects, pace.repetitions):
        values[subject.who].append(subject.turn(counts[subject.who]))
    return values


def callers(subjects: list[Subject], row: str, repetitions: int, calls: int, table: Table) -> None:
    """Measure what a call costs the caller, in turns; of the first work, which is the smallest."""
    ready, absent = made_ready(subjects, 0, row)
    table.absent += absent
    values: dict[tuple[str, str], list[float]] = {}
    try:
        for subject in in_turns(ready, repetitions):
            subject.ask(f"caller {calls}")
            for each, seconds in subject.answer().items():
                values.setdefault((each, subject.who), []).append(seconds)
    except Gone as gone:
        table.absent.append(Absent(row, gone.who, gone.reason))
    else:
        take_in(table, (Measure(each, who, times) for (each, who), times in values.items()))


def _in_all_ways(subject: Subject, count: int) -> dict[str, float]:
    """Return the seconds of one call, by way. Raises `Gone`."""
    subject.ask(f"ways {count}")
    found: dict[str, float] = subject.answer()
    return found


def _counts(subjects: Sequence[Subject], pace: Pace, work: WorkOfWays) -> dict[str, int]:
    """How often each subject does a work in a turn: as often as the others, unless it is much slower. Raises `Gone`.

    The first turns are longer, because something is loaded, learned or made ahead of time beside them. So they are
    repeated as long as that makes them shorter.
    """
    longest: dict[str, float] = {}
    for subject in subjects:
        seconds = math.inf
        for _ in range(FIRST_TURNS):
            before, seconds = seconds, max(*_in_all_ways(subject, FEWEST).values(), 1e-9)
            if seconds > LONG or seconds > SETTLED * before:
                break
        longest[subject.who] = seconds
    most = min(int(pace.seconds / min(longest.values(), default=1.0)), work.most)
    limits = {who: min(most, int(SLOWEST_OF_WAYS * pace.seconds / seconds)) for who, seconds in longest.items()}
    return {who: max(limit, FEWEST, work.least) for who, limit in limits.items()}


def _values(subjects: list[Subject], pace: Pace, work: WorkOfWays) -> dict[tuple[str, str], list[float]]:
    """Return the seconds of each way by each subject, in its turns. Raises `Gone`."""
    counts = _counts(subjects, pace, work)
    values: dict[tuple[str, str], list[float]] = {}
    for subject in in_turns(subjects, pace.repetitions):
        for way, seconds in _in_all_ways(subject, counts[subject.who]).items():
            values.setdefault((way, subject.who), []).append(seconds)
    return values


def ways(
    subjects: list[Subject],
    works: Sequence[AnyWorkOfWays],
    pace: Pace,
    only: Callable[[str], bool] = every,
) -> Iterator[tuple[AnyWorkOfWays, list[Measure], list[Absent]]]:
    """Each work in its turn, in all the ways that the subjects have: a row for each way.

    A subject that is gone is taken off the list, and the others do the work once more.
    """
    for number, work in enumerate(works):
        if not only(work.name):
            continue
        lost: list[Absent] = []
        while True:
            ready, absent = made_ready(subjects, number, work.name)
            try:
                values = _values(ready, pace, work)
            except Gone as gone:
                subjects[:] = [each for each in subjects if each.who != gone.who]
                lost.append(Absent(work.name, gone.who, gone.reason))
            else:
                absent += lost
                break
        measures = [Measure(work.row(way), who, each) for (way, who), each in values.items()]
        yield work, sorted(measures, key=lambda measure: measure.what), absent


# --- how it is shown --------------------------------------------------------------------------------------------------

TERA: Final = ("TFLOP/s", 1e12)
"""The rate that is told: its name, and how many operations a second it is."""


def shown(work: Work, measures: Sequence[Measure], scale: float = TERA[1]) -> Iterator[str]:
    """A line for each subject."""
    times = ratios(measures)
    for each in measures:
        rate = work.operations / each.median / scale
        ratio = f"{times[each.who]:7.3f}" if times else ""
        yield f"{line(each)}  {rate:9.3g}  {ratio}"


def compare(
    subjects: list[Subject],
    works: Sequence[Work],
    pace: Pace,
    table: Table,
    rate: tuple[str, float] = TERA,
    only: Callable[[str], bool] = every,
) -> None:
    """Measure each work that is chosen by its name, and print it as it comes."""
    begun, count = time.monotonic(), sum(only(work.name) for work in works)
    print(f"{HEADER}  {rate[0]:>9}  {'of ours':>7}")
    for number, (work, measures, absent) in enumerate(measured(subjects, works, pace, only), 1):
        table.measures += measures
        table.absent += absent
        for text in shown(work, measures, rate[1]):
            print(text, flush=True)
        tell(f"[{number}/{count}, {time.monotonic() - begun:.0f} s] {work.name}")


def take_in(table: Table, measures: Iterable[Measure]) -> None:
    """Add measures to the table, and print them."""
    print(HEADER)
    for measure in measures:
        table.measures.append(measure)
        print(line(measure), flush=True)


def tell(text: str) -> None:
    """Say how far it is, to whoever waits."""
    print(text, file=sys.stderr, flush=True)


# --- the subject's side -----------------------------------------------------------------------------------------------


class Missing(Exception):
    """A subject cannot do such a work."""


class Computing(Protocol):
    """A subject that has made its work ready."""

    async def compute(self, count: int) -> None:
        """Do it so many times, and wait for all of them."""


class Others:
    """The base of the subjects that compute in this process, and wait by blocking it."""

    _call: Callable[[], object]
    _wait: Callable[[], object]

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, backend: str) -> AsyncIterator[Any]:
        """The subject; on the simulator, which is installed in this process."""
        if backend == "sim":
            importlib.import_module("atomr_sim").install()
        yield cls()

    async def compute(self, count: int) -> None:
        """Do it so many times, and wait for all of them."""
        call = self._call
        for _ in range(count):
            call()
        self._wait()


class Bare(Others):
    """The base of those that call through ctypes, on a stream of their own in the device's primary context."""

    def __init__(self) -> None:
        from atomr_cuda import driver

        self._driver = driver
        self._context, stream = driver.CUcontext(), driver.CUstream()
        driver.cuInit(0)
        driver.cuDevicePrimaryCtxRetain(byref(self._context), 0)
        driver.cuCtxSetCurrent(self._context)
        driver.cuStreamCreate(byref(stream), driver.CU_STREAM_NON_BLOCKING)
        self._stream = stream.value
        self._wait = functools.partial(driver.cuStreamSynchronize, self._stream)
        self._held: list[Any] = []

    def _free_all(self) -> None:
        while self._held:
            self._driver.cuMemFree(self._held.pop())

    def _memory(self, nbytes: int) -> int:
        address = self._driver.CUdeviceptr()
        self._driver.cuMemAlloc(byref(address), nbytes)
        self._held.append(address)
        return address.value or 0

    def _upload(self, array: np.ndarray) -> int:
        array = np.ascontiguousarray(array)
        address = self._memory(array.nbytes)
        self._driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes)
        return address

    def _settle(self) -> None:
        """Wait for everything: small copies return before they are done, and our stream waits for none."""
        self._driver.cuCtxSynchronize()

    def _download(self, address: int, array: np.ndarray) -> np.ndarray:
        self._driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes)
        return array


class OnCupy(Others):
    """The base of CuPy's subjects, on a stream of their own."""

    def __init__(self) -> None:
        self._cupy: Any = importlib.import_module("cupy")
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._stream.use()
        self._wait = self._stream.synchronize


class OnTorch(Others):
    """The base of PyTorch's subjects, on a stream of their own."""

    def __init__(self) -> None:
        self._torch: Any = importlib.import_module("torch")
        self._stream = self._torch.cuda.Stream()
        self._torch.cuda.set_stream(self._stream)
        self._wait = self._stream.synchronize


def checked(call: Callable[[], int]) -> Callable[[], None]:
    """The same, and an error where its status is one."""

    def checked_call() -> None:
        if status := call():
            raise RuntimeError(f"the call returned {status}")

    return checked_call


async def refusal(ready: Awaitable[object]) -> str | None:
    """Make a work ready; return why it cannot be measured, if that is so."""
    try:
        await ready
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        return first_line if isinstance(error, Missing) else f"{type(error).__name__}: {first_line}"
    return None


def check_error(error: float, limit: float) -> None:
    """Raise `Missing` for a result that is wrong by more than a limit."""
    if not error <= limit:
        raise Missing(f"wrong by {error:.2g} of what is right")


def each(count: int, call: Callable[[], object]) -> float:
    """Return the seconds that each of so many calls takes."""
    begun = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begun) / count


async def turn(subject: Computing, count: int) -> float:
    """Return the seconds that the work takes once, by so many; before them a few more are not timed."""
    await subject.compute(count // 3 + 1)
    begun = time.perf_counter()
    await subject.compute(count)
    return (time.perf_counter() - begun) / count


def imported() -> str:
    """The folder of the package that this process has imported."""
    import atomr_trio

    return str(Path(atomr_trio.__file__).resolve().parent)


async def sources(_number: int) -> str:
    """The same, as an answer."""
    return imported()


async def answer_all(answers: Mapping[str, Callable[[int], Awaitable[object]]]) -> None:
    """Answer questions until there are no more, each by what its word stands for."""
    known = {"sources": sources, **answers}
    async for question in trio.wrap_file(sys.stdin):
        word, number = question.split()
        print(json.dumps(await known[word](int(number))), flush=True)


def serve(main: Callable[[str, str], Awaitable[None]]) -> None:
    """Run a subject's process: `main` is given its name and the backend."""
    trio.run(main, sys.argv[1], sys.argv[2])
    os._exit(0)  # what a library does at the end of a process is not measured, and may take long
