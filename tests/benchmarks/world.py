"""A world of two devices beside plain NCCL in one process for each GPU: `make bench-world`.

Both sum arrays of the two devices, by the same library in the same environment, and take turns. Plain NCCL is called by
ctypes in two processes (`world_bare.py`), each with a GPU of its own. What is told of either is the time of one call,
and the bandwidth of the bus as NCCL's own tests count it. Sums are compared before anything is timed.

Then members are lost: from the report of the loss to the right result in the next epoch, with standbys and without.

A machine with one device has nothing to measure, and says so. The figures belong to this machine; only ratios within
one run carry over to others.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import conclusion
import numpy as np
import peers
import targets
import trio
import turns
from peers import SIMULATED, TWO_NEEDED, Backend
from speed_report import GIB, HEADER, KIB, MIB, OURS, RAW, Absent, Measure, Table, Verdict, size as shown_size
from speed_subjects import clock
from speed_works import AWAITED, WHOLE

import atomr_trio
from atomr_trio._device.device import core_of
from atomr_trio.testing import kill_worker

BARE: Final = Path(__file__).with_name("world_bare.py")
BATCHED: Final = "in a batch"
WAYS: Final = (AWAITED, WHOLE, BATCHED)
MEMBERS: Final = 2
SETTINGS: Final[dict[str, str | int]] = {"NVLS_ENABLE": "0"}
ENVIRONMENT: Final = {
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_RUNTIME_CONNECT": "0",
}
"""What both have."""
TASKS: Final = 8
"""So many tasks make those of a row, each the next one when its last is done: the GPUs always have some to do."""
TOGETHER: Final = 10
"""The calls of a batch, and of a group of plain NCCL."""
SMALLEST: Final = 8
BUS: Final = 2 * (MEMBERS - 1) / MEMBERS
"""The bytes that cross the bus for each byte of a sum."""
GIGA: Final = 1e9


# --- what is measured -------------------------------------------------------------------------------------------------


@attrs.frozen
class Sum:
    """An all_reduce of float32."""

    nbytes: int
    count: int
    """So many single ones are awaited in each turn."""
    in_a_row: int
    """So many are made one after the other, with one wait; of the large ones for a tenth of a second, so that it is
    the rate that counts, and not the half of a millisecond in which the tasks begin and are told of the end."""
    together: int = 0
    """So many in a batch; 0 if there is none."""

    @property
    def name(self) -> str:
        """What its rows begin with."""
        return f"all_reduce of {shown_size(self.nbytes)}"

    @property
    def operations(self) -> float:
        """The bytes on the bus, of which the rate is told."""
        return self.nbytes * BUS

    def row(self, way: str) -> str:
        """The row of one of the ways."""
        return f"{self.name}, {way}"


@attrs.frozen
class Plan:
    """What is measured, and how often."""

    sums: tuple[Sum, ...]
    repetitions: int
    rounds: int
    """Worlds, and pairs of processes with plain NCCL, one after the other, which share the repetitions."""
    losses: int
    """Members that are lost, with standbys and without."""


PLANS: Final[Mapping[str, Plan]] = {
    "cuda": Plan(
        (
            Sum(SMALLEST, 300, 300, TOGETHER),
            Sum(64 * KIB, 300, 300),
            Sum(MIB, 300, 2000),
            Sum(16 * MIB, 60, 1000),
            Sum(256 * MIB, 15, 100),
            Sum(GIB, 4, 32),
        ),
        repetitions=15,
        rounds=5,
        losses=5,
    ),
    "sim": Plan((Sum(SMALLEST, 3, 3, TOGETHER), Sum(64 * KIB, 2, 10)), 2, 2, losses=1),
}
"""The simulator shows that everything works, and says nothing of speed."""


def recovery_row(standby: int) -> str:
    """What the next epoch takes."""
    return f"loss of a member to the next epoch's result, {'with standbys' if standby else 'without a standby'}"


def targets_of(plan: Plan) -> list[targets.Target]:
    """All that must hold."""
    large = [each.row(WHOLE) for each in plan.sums if each.nbytes >= 16 * MIB]
    medium = [each.row(WHOLE) for each in plan.sums if each.nbytes == MIB]
    small = [each for each in plan.sums if each.nbytes == SMALLEST]
    return targets.of_world(
        large=large,
        medium=medium,
        awaited=[each.row(AWAITED) for each in small],
        batched=[each.row(BATCHED) for each in small],
        recovered=(recovery_row(1), recovery_row(0)),
    )


# --- sums -------------------------------------------------------------------------------------------------------------

Ways = Callable[[Sum], Awaitable[dict[str, float]]]
"""Makes a sum as often as it says, and tells the seconds of one by way."""


@attrs.frozen
class Ours:
    """A world, and memory of both members."""

    world: atomr_trio.World
    sources: Sequence[Any]
    targets: Sequence[Any]

    @classmethod
    async def made(cls, devices: atomr_trio.Devices, nbytes: int) -> Ours:
        """A world with arrays of so many bytes."""
        world = await devices.world(nccl=SETTINGS)
        made: list[list[Any]] = [[dev.empty(nbytes // 4, np.float32) for dev in devices] for _ in range(2)]
        for array in (*made[0], *made[1]):
            await array.fill(1)
        return cls(world, *made)

    async def check(self, work: Sum) -> None:
        """Compare a sum. Raises `SystemExit` if it is wrong."""
        count = work.nbytes // 4
        ends = slice(0, min(count, 1024)), slice(max(0, count - 1024), count)
        random = np.random.default_rng(work.nbytes)
        for end in ends:
            given = [random.integers(0, 99, end.stop - end.start).astype(np.float32) for _ in self.sources]
            for source, numbers in zip(self.sources, given, strict=True):
                await source[end].copy_from(numbers)
            await self.world.all_reduce(
                [each[:count] for each in self.sources], [each[:count] for each in self.targets]
            )
            for target in self.targets:
                if not np.array_equal(await target[end].to_host(), sum(given)):
                    raise SystemExit(f"{work.name}: the sum is wrong")

    async def ways(self, work: Sum) -> dict[str, float]:
        """The seconds of one sum, by way; a few more before are not timed."""
        count, world = work.nbytes // 4, self.world
        sources, targets_ = ([each[:count] for each in arrays] for arrays in (self.sources, self.targets))
        for _ in range(work.count // 3 + 1):
            await world.all_reduce(sources, targets_)
        singles = []
        for _ in range(work.count):
            begun = clock()
            await world.all_reduce(sources, targets_)
            singles.append(clock() - begun)
        found = {AWAITED: statistics.median(singles), WHOLE: await self._row(work.in_a_row, sources, targets_)}
        if work.together:
            found[BATCHED] = await self._batched(work)
        return found

    async def _row(self, count: int, sources: Sequence[Any], outputs: Sequence[Any]) -> float:
        """The seconds of one of many, some of which are submitted ahead. The last one is waited for."""
        left = count

        async def take() -> None:
            nonlocal left
            while left:
                left -= 1
                try:
                    if left % TASKS:
                        self.world.all_reduce_nowait(sources, outputs)
                        continue
                except trio.WouldBlock:
                    pass
                await self.world.all_reduce(sources, outputs)

        begun = clock()
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(take)
        return (clock() - begun) / count

    async def _batched(self, work: Sum) -> float:
        count = work.nbytes // 4
        parts = [slice(place * count, (place + 1) * count) for place in range(work.together)]
        arrays = [([each[part] for each in self.sources], [each[part] for each in self.targets]) for part in parts]
        times = []
        for _ in range(work.count):
            begun = clock()
            async with self.world.batch() as batch:
                for sources, targets_ in arrays:
                    batch.all_reduce(sources, targets_)
            times.append((clock() - begun) / work.together)
        return statistics.median(times)


@contextlib.contextmanager
def bare(backend: Backend, most: int) -> Iterator[Ways]:
    """Plain NCCL. Raises `turns.Gone` where it cannot be had."""
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(turns.started(BARE, RAW, backend)) for _ in range(MEMBERS)]

        def all_asked(questions: Sequence[Mapping[str, Any]]) -> list[Any]:
            for subject, question in zip(ranks, questions, strict=True):
                subject.ask(json.dumps(question))
            return [subject.answer() for subject in ranks]

        told = {"size": MEMBERS, "environment": ENVIRONMENT, "most": most}
        unique, *_ = all_asked([{"rank": rank, **told} for rank in range(MEMBERS)])
        all_asked([{"id": unique}] * MEMBERS)

        async def ways(work: Sum) -> dict[str, float]:
            question = {"nbytes": work.nbytes, "count": work.count, "row": work.in_a_row, "batch": work.together}
            found = await trio.to_thread.run_sync(functools.partial(all_asked, [question] * MEMBERS))
            return {way: max(each[way] for each in found) for way in WAYS if way in found[0]}

        yield ways


async def sums(devices: atomr_trio.Devices, plan: Plan, backend: Backend, table: Table) -> None:
    """The sums, by us and by plain NCCL.

    How long a sum of some megabytes takes depends on where the arrays and NCCL's own memory lie: plain NCCL differs by
    up to 4 % from one pair of processes to the next, and by less than 1 % from one turn to the next. So there are some
    rounds, each with another world and other processes.
    """
    print(f"{HEADER}  {'GB/s':>9}  {'of ours':>7}")
    values: dict[tuple[str, str], list[float]] = {}
    rounds = min(plan.rounds, plan.repetitions)
    for number in range(rounds):
        repetitions = range(number, plan.repetitions, rounds)
        await one_round(devices, plan, backend, table, repetitions, values)
        turns.tell(f"[{number + 1}/{rounds}] a world, and processes with plain NCCL")
    for work in plan.sums:
        for way in WAYS:
            row = work.row(way)
            of_row = [Measure(row, who, values[row, who]) for who in (OURS, RAW) if (row, who) in values]
            table.measures += of_row
            if of_row:
                print(*turns.shown(work, of_row, GIGA), sep="\n", flush=True)


async def one_round(
    devices: atomr_trio.Devices,
    plan: Plan,
    backend: Backend,
    table: Table,
    repetitions: Iterable[int],
    values: dict[tuple[str, str], list[float]],
) -> None:
    """Some turns with one world, and one pair of processes. Adds to `values`, by row and subject."""
    most = max(max(work.nbytes, work.nbytes * work.together) for work in plan.sums)
    ours = await Ours.made(devices, most)
    subjects: dict[str, Ways] = {OURS: ours.ways}
    with contextlib.ExitStack() as stack:
        try:
            subjects[RAW] = stack.enter_context(bare(backend, most))
        except turns.Gone as gone:
            rows = [work.row(way) for work in plan.sums for way in WAYS if way != BATCHED or work.together]
            known = {absent.what for absent in table.absent}
            table.absent += [Absent(row, RAW, gone.reason) for row in rows if row not in known]
        for work in plan.sums:
            await ours.check(work)
            for repetition in repetitions:
                for who in list(subjects)[:: -1 if repetition % 2 else 1]:
                    for way, seconds in (await subjects[who](work)).items():
                        values.setdefault((work.row(way), who), []).append(seconds)
    await ours.world.aclose()


# --- losses -----------------------------------------------------------------------------------------------------------


class Reported:
    """The moment at which a loss is known to this process."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.at = 0.0

    def __call__(self) -> None:
        self.at = clock()
        self.event.set()


async def recovered(backend: Backend, standby: int, losses: int) -> list[float]:
    """Lose a member again and again; the seconds from each report to the next epoch's right result.

    Prints where the time went: until the members ran again, until they had a communicator, until the result.
    """
    policy = atomr_trio.RestartPolicy(intensity=math.inf)
    seconds = []
    steps: list[tuple[float, float, float]] = []
    async with atomr_trio.open_devices([0, 1], backend=backend, standby=standby, restart_policy=policy) as devices:
        world = await devices.world(nccl=SETTINGS)
        arrays = [await dev.to_device(np.ones(1000, np.float32)) for dev in devices]
        outputs = await world.all_reduce(arrays)
        for number in range(losses):
            if standby:
                for dev in devices:
                    await dev.wait_standby()
                await trio.sleep(0.5 if backend == "sim" else 2.0)  # they warm themselves, which nothing tells
            lost = devices[number % MEMBERS]
            reported = Reported()
            core_of(lost).current.tell(reported)
            async with devices.events() as events:
                kill_worker(lost)
                await reported.event.wait()
                await world.wait_epoch(after=number + 1)
                up = clock() - reported.at
                await world.all_reduce(arrays, outputs)
                seconds.append(clock() - reported.at)
                async for event in events:
                    if isinstance(event, atomr_trio.EpochBegan):
                        steps.append((event.members_seconds, up, seconds[-1]))
                        break
            for each in outputs:
                if not np.all(await each.to_host() == MEMBERS):
                    raise SystemExit("the first sum of an epoch is wrong")
    running, up, done = (1e3 * statistics.median(step) for step in zip(*steps, strict=True))
    print(f"with {standby} standbys: members run after {running:.0f} ms, epoch {up:.0f} ms, result {done:.0f} ms")
    return seconds


async def measured(plan: Plan, backend: Backend, table: Table) -> None:
    """Everything."""
    async with atomr_trio.open_devices([0, 1], backend=backend, standby=0) as devices:
        await sums(devices, plan, backend, table)
    for standby in (1, 0):
        seconds = await recovered(backend, standby, plan.losses)
        turns.take_in(table, [Measure(recovery_row(standby), OURS, seconds)])


# --- the run ----------------------------------------------------------------------------------------------------------


def judged(plan: Plan, table: Table, backend: Backend, devices: int) -> list[Verdict]:
    """What must hold; nothing is judged on a machine with one device, or by the simulator."""
    wanted = targets_of(plan)
    if devices < MEMBERS:
        return [Verdict(each.name, None, missing=TWO_NEEDED) for each in wanted]
    return targets.judged(table, wanted, backend)


def main(arguments: argparse.Namespace) -> int:
    """The exit status: 1 if something that must hold was missed and `--strict` asks for that."""
    backend: Backend = arguments.backend
    plan, table = PLANS[backend], Table()
    plan = attrs.evolve(plan, repetitions=conclusion.fewer(plan.repetitions, arguments.share))
    if backend == "sim":
        os.environ.setdefault(SIMULATED, "2")
    devices = peers.device_count(backend)
    if devices < MEMBERS:
        table.absent.append(Absent("everything", OURS, TWO_NEEDED))
    else:
        trio.run(measured, plan, backend, table)
    title = f"A world of two devices, medians of {plan.repetitions} turns"
    return conclusion.conclude(arguments, "world", title, table, judged(plan, table, backend, devices))


if __name__ == "__main__":
    sys.exit(main(conclusion.options(__doc__).parse_args()))
