"""Two devices of one group: copies between them, one program that drives both, and opening both: `make bench-peers`.

Copies go from an array of the first device to one of the second, beside a bare process that has imported the same
memory: it is mapped there at the same addresses, and copied by ``cuMemcpyDtoDAsync`` (`peers_bare.py`). Both take
turns, and both ends of what either has copied are compared before it is timed.

One program gives both devices the same launches, one here and one there, of kernels that each run for a known time;
beside that each device has such launches alone. Empty kernels show how many launches a program can give away.

Last, one device and two are opened in turns, each time by a fresh process.

A machine with one device has nothing to measure, and says so. The figures belong to this machine; only ratios within
one run carry over to others.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import byref, c_int
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import conclusion
import numpy as np
import targets
import trio
import turns
from speed_report import GIB, HEADER, KIB, MIB, OURS, RAW, Absent, Measure, Table, Verdict, size as shown_size
from speed_subjects import Doing, clock, seconds_of
from speed_works import AWAITED, CALLER, WHOLE

import atomr_trio
from atomr_trio._arrays.peers import why_out_of_reach
from atomr_trio._device.device import core_of

Backend = Literal["cuda", "sim"]
BARE: Final = Path(__file__).with_name("peers_bare.py")
SIMULATED: Final = "ATOMR_TRIO_SIM_DEVICES"
TWO_NEEDED: Final = "needs two GPUs"
WAYS: Final = (AWAITED, CALLER, WHOLE)
DEADLINE: Final = 60
MARK: Final = KIB
"""Bytes at both ends of a copy that are compared, and as many behind it."""
GIGA: Final = ("GB/s", 1e9)
SOURCE: Final = r"""
extern "C" __global__ void empty() { }
extern "C" __global__ void last(unsigned nanoseconds)
{
    unsigned long long begun, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begun < nanoseconds);
}
"""
OPENING: Final = """
import json, sys, time
import atomr_trio, numpy, trio

async def main(count, backend):
    begun = time.perf_counter()
    async with contextual(count, backend) as opened:
        entered = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for dev in opened if count > 1 else [opened]:
                nursery.start_soon(dev.zeros(1, numpy.int32).fill, 1)
        ended = time.perf_counter()
    print(json.dumps([entered - begun, ended - begun]), flush=True)

def contextual(count, backend):
    if count == 1:
        return atomr_trio.open_device(0, backend=backend, standby=0)
    return atomr_trio.open_devices(list(range(count)), backend=backend, standby=0)

trio.run(main, int(sys.argv[1]), sys.argv[2])
"""
"""Tells what it took to open so many devices, and what it took up to a first result of each."""


# --- what is measured -------------------------------------------------------------------------------------------------


@attrs.frozen
class Copy:
    """A copy from one device to another."""

    nbytes: int
    count: int
    """So many are made in each turn: single ones that are awaited, and in one batch."""

    @property
    def name(self) -> str:
        """What its rows begin with."""
        return f"copy of {shown_size(self.nbytes)} between devices"

    @property
    def operations(self) -> float:
        """Its bytes, of which the rate is told."""
        return self.nbytes

    def row(self, way: str) -> str:
        """The row of one of the ways."""
        return f"{self.name}, {way}"


@attrs.frozen
class Kernels:
    """Launches of a kernel that runs for so long; of an empty one, if that is no time."""

    microseconds: int
    count: int
    """So many launches on each device in each turn."""

    @property
    def name(self) -> str:
        """What its rows begin with."""
        return f"kernels of {self.microseconds} µs" if self.microseconds else "empty kernels"

    def row(self, devices: int, way: str) -> str:
        """The row of one of the ways: what a launch takes, or one on each of two devices."""
        return f"{self.name}, {('one device', 'two devices')[devices - 1]}, {way}"


@attrs.frozen
class Plan:
    """What is measured, and how often."""

    copies: tuple[Copy, ...]
    kernels: tuple[Kernels, ...]
    repetitions: int
    openings: int
    """Fresh processes for each number of devices."""
    uncounted: int
    """As many more before them, which fill caches."""


PLANS: Final[Mapping[str, Plan]] = {
    "cuda": Plan(
        (Copy(4 * KIB, 1000), Copy(MIB, 400), Copy(64 * MIB, 200), Copy(256 * MIB, 50), Copy(GIB, 12)),
        (Kernels(0, 1000), Kernels(10, 2000), Kernels(30, 1000), Kernels(100, 400)),
        repetitions=25,
        openings=15,
        uncounted=1,
    ),
    "sim": Plan((Copy(4 * KIB, 3), Copy(MIB, 2)), (Kernels(0, 3), Kernels(10, 2)), 1, openings=1, uncounted=0),
}
"""The simulator shows that everything works, and says nothing of speed."""
SMALL: Final = 4 * KIB
"""Copies of so many bytes are judged by what they take in a batch."""
LARGE: Final = 64 * MIB
"""And those from here on by their rate, in a batch too: of a single one much is the wait."""


def opening_row(devices: int, until: str = "opened") -> str:
    """What it takes to open one device, or two as a group."""
    return f"{('one device', 'two devices')[devices - 1]}, {until}"


FIRST_RESULT: Final = "a first result of each"


def targets_of(plan: Plan) -> list[targets.Target]:
    """All that must hold."""
    copies, kernels = plan.copies, [each for each in plan.kernels if each.microseconds]
    return targets.of_peers(
        large=[each.row(WHOLE) for each in copies if each.nbytes >= LARGE],
        small=[each.row(WHOLE) for each in copies if each.nbytes <= SMALL],
        driven=[(each.row(2, WHOLE), each.row(1, WHOLE)) for each in kernels],
        opened=(opening_row(2), opening_row(1)),
    )


# --- copies -----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Ours:
    """An array of each device. Of them, and of the bytes that are copied, the bare process is told too."""

    target: Any
    source: Any

    @classmethod
    async def made(cls, devices: Sequence[Any], nbytes: int) -> Ours:
        """Arrays with memory of their own."""
        source, target = (dev.empty(nbytes, np.uint8) for dev in devices)
        for array in (source, target):
            await array.fill(0)
        return cls(target, source)

    @property
    def why_not(self) -> str | None:
        """Why one device does not reach the other's memory. Copies go through the host then, and in no batch."""
        return why_out_of_reach(core_of(self.target.device), self.source)

    @property
    def chunks(self) -> list[tuple[int, int, int]]:
        """The physical memory of both: address, size and descriptor of each chunk."""
        chunks = [array._block.chunk for array in (self.target, self.source)]
        return [(chunk.address, chunk.size, chunk.descriptor) for chunk in chunks]

    @property
    def places(self) -> dict[str, Any]:
        """What the bare process is told."""
        addresses = {"target": self.target.address, "source": self.source.address}
        return {"device": self.target.device.index, "chunks": self.chunks, **addresses}

    async def mark(self, nbytes: int, marks: np.ndarray) -> None:
        """Write what must arrive to both ends, and something else behind it and to the target."""
        ends = slice(0, MARK), slice(nbytes - MARK, nbytes)
        for end, mark in zip(ends, marks, strict=True):
            await self.source[end].copy_from(mark)
        await self.target[: nbytes + MARK].fill(0)
        await self.source[nbytes : nbytes + MARK].fill(255)

    async def arrived(self, nbytes: int, marks: np.ndarray) -> bool:
        """Whether that is there, and nothing behind it."""
        ends = slice(0, MARK), slice(nbytes - MARK, nbytes), slice(nbytes, nbytes + MARK)
        found = [await self.target[end].to_host() for end in ends]
        return all(np.array_equal(*each) for each in zip(found, (*marks, np.zeros(MARK)), strict=True))

    async def ways(self, nbytes: int, count: int) -> dict[str, float]:
        """The seconds of one copy, by way."""
        target, source = self.target[:nbytes], self.source[:nbytes]
        doing = Doing(
            await_one=functools.partial(target.copy_from, source),
            in_batch=None if self.why_not else lambda batch: functools.partial(batch.copy_from, target, source),
        )
        found = await seconds_of(doing, count, self.target.device.batch)
        return {way: found[way] for way in WAYS if way in found}


Ways = Callable[[int, int], Awaitable[dict[str, float]]]
"""Makes copies of so many bytes, so often, and tells the seconds of one by way."""


@contextlib.asynccontextmanager
async def bare(ours: Ours, backend: Backend) -> AsyncIterator[Ways]:
    """The process that uses the driver by ctypes. Raises `turns.Gone` where it cannot have the memory."""
    descriptors = [descriptor for _, _, descriptor in ours.chunks]
    with turns.started(BARE, RAW, backend, descriptors=descriptors) as subject:

        async def asked(**question: Any) -> Any:
            subject.ask(json.dumps(question))
            return await trio.to_thread.run_sync(subject.answer)

        async def ways(nbytes: int, count: int) -> dict[str, float]:
            found: dict[str, float] = await asked(nbytes=nbytes, count=count)
            return found

        await asked(**ours.places)
        yield ways


async def checked(subjects: Mapping[str, Ways], ours: Ours, copy: Copy) -> None:
    """Figures of copies that do not arrive would be worth nothing."""
    random = np.random.default_rng(copy.nbytes)
    for who, ways in subjects.items():
        marks = random.integers(1, 256, size=(2, MARK), dtype=np.uint8)
        await ours.mark(copy.nbytes, marks)
        await ways(copy.nbytes, 1)
        if not await ours.arrived(copy.nbytes, marks):
            raise SystemExit(f"{copy.name}: what {who} has copied is not what was there")


async def timed(subjects: Mapping[str, Ways], copy: Copy, repetitions: int) -> list[Measure]:
    """The turns of the subjects; who was last in one repetition is first in the next."""
    values: dict[tuple[str, str], list[float]] = {}
    for repetition in range(repetitions):
        for who in list(subjects)[:: -1 if repetition % 2 else 1]:
            for way, seconds in (await subjects[who](copy.nbytes, copy.count)).items():
                values.setdefault((way, who), []).append(seconds)
    return [Measure(copy.row(way), who, values[way, who]) for way in WAYS for who in subjects if (way, who) in values]


async def copies(devices: Sequence[Any], plan: Plan, backend: Backend, table: Table) -> None:
    """Copies between two devices, by us and by the bare process."""
    print(f"{HEADER}  {GIGA[0]:>9}  {'of ours':>7}")
    ours = await Ours.made(devices, max(copy.nbytes for copy in plan.copies) + MARK)
    async with contextlib.AsyncExitStack() as stack:
        subjects: dict[str, Ways] = {OURS: ours.ways}
        why_not = ours.why_not
        if why_not is not None:
            absent(table, plan.copies, OURS, (CALLER, WHOLE), why_not)
            absent(table, plan.copies, RAW, WAYS, why_not)
        else:
            try:
                subjects[RAW] = await stack.enter_async_context(bare(ours, backend))
            except turns.Gone as gone:
                absent(table, plan.copies, RAW, WAYS, gone.reason)
        for number, copy in enumerate(plan.copies):
            try:
                await checked(subjects, ours, copy)
                measures = await timed(subjects, copy, plan.repetitions)
            except turns.Gone as gone:
                del subjects[RAW]
                absent(table, plan.copies[number:], RAW, WAYS, gone.reason)
                measures = await timed(subjects, copy, plan.repetitions)
            table.measures += measures
            for row in dict.fromkeys(measure.what for measure in measures):
                of_row = [measure for measure in measures if measure.what == row]
                print(*turns.shown(copy, of_row, GIGA[1]), sep="\n", flush=True)
            turns.tell(f"[{number + 1}/{len(plan.copies)}] {copy.name}")


def absent(table: Table, wanted: Iterable[Copy], who: str, ways: Iterable[str], why: str) -> None:
    """Note that somebody does not make these copies in these ways."""
    table.absent += [Absent(copy.row(way), who, why) for copy in wanted for way in ways]


# --- one program that drives both -------------------------------------------------------------------------------------


Launches = Callable[[], None]
"""One launch, or one on each device."""


async def driven(batches: Sequence[Any], kernels: Sequence[Any], arguments: tuple[int, ...], count: int) -> list[float]:
    """Launch so often on each device: the caller's seconds of one round, and those until everything is done."""
    begun = clock()
    async with contextlib.AsyncExitStack() as stack:
        calls: list[Launches] = []
        for open_batch, kernel in zip(batches, kernels, strict=True):
            batch = await stack.enter_async_context(open_batch())
            calls.append(functools.partial(batch.launch, kernel, 1, 1, *arguments))
        entered = clock()
        for _ in range(count):
            for call in calls:
                call()
        called = clock()
    return [(called - entered) / count, (clock() - begun) / count]


def best(alone: Iterable[Sequence[float]]) -> list[float]:
    """Of what devices take alone, the least by each way: two are compared with the faster one."""
    return [min(seconds) for seconds in zip(*alone, strict=True)]


async def launches(devices: Sequence[Any], plan: Plan, table: Table) -> None:
    """Launches on each device alone, and on both by one program."""
    compiled = {name: [await dev.nvrtc.compile(SOURCE, name) for dev in devices] for name in ("empty", "last")}
    batches = [dev.batch for dev in devices]
    for work in plan.kernels:
        kernels = compiled["last" if work.microseconds else "empty"]
        arguments = (work.microseconds * 1000,) if work.microseconds else ()
        choices = [slice(number, number + 1) for number in range(len(devices))] + [slice(None)]
        rounds = []
        for repetition in range(-1, plan.repetitions):
            taken = {}
            for number in range(len(choices))[:: -1 if repetition % 2 else 1]:
                choice = choices[number]
                taken[number] = await driven(batches[choice], kernels[choice], arguments, work.count)
            if repetition >= 0:  # the first one warms up
                both = taken.pop(len(devices))
                rounds.append((best(taken.values()), both))
        turns.take_in(table, measures_of(work, rounds))
        turns.tell(work.name)


def measures_of(work: Kernels, rounds: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Iterator[Measure]:
    """A row for each way, of one device and of both; a round has the seconds of either by way."""
    for number, way in enumerate((CALLER, WHOLE)):
        for devices in (1, 2):
            yield Measure(work.row(devices, way), OURS, [each[devices - 1][number] for each in rounds])


def throughputs(plan: Plan, table: Table) -> Iterator[str]:
    """A line for each kernel: what two devices do, in what one does."""
    for work in plan.kernels:
        one, two = (table.median(work.row(devices, WHOLE), OURS) for devices in (1, 2))
        yield f"{work.name}: {2 / two:,.0f} a second on two devices, {2 * one / two:.2f} times as many as on one"


# --- opening both -----------------------------------------------------------------------------------------------------


def opening(devices: int, backend: Backend) -> list[float]:
    """The seconds of a fresh process: until so many devices are open, and until each had a first result."""
    command = [sys.executable, "-c", OPENING, str(devices), backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    if done.returncode:
        raise SystemExit(f"{opening_row(devices)}: {done.stderr}")
    seconds: list[float] = json.loads(done.stdout)
    return seconds


def openings(plan: Plan, backend: Backend, table: Table) -> None:
    """Open one device and two, in turns."""
    taken: dict[int, list[list[float]]] = {1: [], 2: []}
    for repetition in range(-plan.uncounted, plan.openings):
        for devices in (1, 2) if repetition % 2 else (2, 1):
            seconds = opening(devices, backend)
            if repetition >= 0:
                taken[devices].append(seconds)
    turns.take_in(table, opened_measures(taken))
    turns.tell("openings")


def opened_measures(taken: Mapping[int, Sequence[Sequence[float]]]) -> Iterator[Measure]:
    """A row for each moment, of one device and of two."""
    for number, until in enumerate(("opened", FIRST_RESULT)):
        for devices, times in taken.items():
            yield Measure(opening_row(devices, until), OURS, [each[number] for each in times])


# --- the run ----------------------------------------------------------------------------------------------------------


def device_count(backend: Backend) -> int:
    """The devices that workers will see."""
    if backend == "sim":
        return int(os.environ[SIMULATED])
    from atomr_cuda import driver

    count = c_int()
    driver.cuInit(0)
    driver.cuDeviceGetCount(byref(count))
    return count.value


async def measured(plan: Plan, backend: Backend, table: Table) -> None:
    """All that needs both devices open."""
    async with atomr_trio.open_devices([0, 1], backend=backend, standby=0) as devices:
        await copies(devices, plan, backend, table)
        await launches(devices, plan, table)


def judged(plan: Plan, table: Table, backend: Backend, devices: int) -> list[Verdict]:
    """What must hold; nothing is judged on a machine with one device, or by the simulator."""
    wanted = targets_of(plan)
    if devices < 2:
        return [Verdict(each.name, None, missing=TWO_NEEDED) for each in wanted]
    return targets.judged(table, wanted, backend)


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if something that must hold was missed and `--strict` asks for that."""
    backend: Backend = arguments.backend
    plan, table = PLANS[backend], Table()
    plan = attrs.evolve(
        plan,
        repetitions=conclusion.fewer(plan.repetitions, arguments.share),
        openings=conclusion.fewer(plan.openings, arguments.share),
    )
    if backend == "sim":
        os.environ.setdefault(SIMULATED, "2")
    devices = device_count(backend)
    if devices < 2:
        table.absent.append(Absent("everything", OURS, TWO_NEEDED))
    else:
        trio.run(measured, plan, backend, table)
        openings(plan, backend, table)
        print("", *throughputs(plan, table), sep="\n")
    title = f"Two devices of one group, medians of {plan.repetitions} turns"
    verdicts = judged(plan, table, backend, devices)
    return conclusion.conclude(arguments, "peers", title, table, verdicts)


if __name__ == "__main__":
    sys.exit(main(conclusion.options(__doc__).parse_args()))
