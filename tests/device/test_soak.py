"""Nothing grows: faults, kills, openings and launches in numbers, with the figures before and after.

The short form is part of every run of the suite; the long one runs by `make soak` and prints its figures.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import time
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import trio

from atomr_trio import ContextLost, RestartPolicy, read_only
from atomr_trio._device.device import core_of
from atomr_trio.testing import Fault, cause, hold_worker
from support import ON_GPU, SWEEP, gpu_memory
from support.rogue import compile_rogue, hang, kill_worker, next_generation, until
from support.stress import KERNELS, SOURCE, Player, keep_accounts

MIB = 1 << 20


@attrs.frozen
class Figures:
    """What this process holds at one moment."""

    descriptors: int
    children: int
    mappings: int
    """Mappings of memory that we share with workers."""
    threads: int
    host_mib: float
    """Resident memory of this process."""
    gpu_mib: float
    """Memory of the GPU that the workers of this process hold; 0 on the simulator."""

    def __str__(self) -> str:
        return (
            f"{self.descriptors} descriptors, {self.children} children, {self.mappings} mappings, "
            f"{self.threads} threads, {self.host_mib:.1f} MiB of host memory, {self.gpu_mib:.0f} MiB of GPU memory"
        )


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pytest keep no record of each loss, which thousands of them would be some MiB of."""
    monkeypatch.setattr(logging.getLogger("atomr_trio.supervision"), "disabled", True)


def figures() -> Figures:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    # Not what is shared with the worker: that has a fixed size, and counts when it is first touched.
    resident = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    tasks = list(Path("/proc/self/task").iterdir())
    return Figures(
        descriptors=len(os.listdir("/proc/self/fd")),
        children=sum(len((task / "children").read_text().split()) for task in tasks),
        mappings=sum("atomr-trio" in line for line in Path("/proc/self/maps").read_text().splitlines()),
        threads=len(tasks),
        host_mib=int(resident.split()[1]) / 1024,
        gpu_mib=gpu_memory(),
    )


async def stay_flat(
    what: str,
    warm_up: int,
    count: int,
    step: Callable[[int], Awaitable[None]],
    *,
    host_mib: float,
    gpu_mib: float = 64,
    seconds: float,
) -> None:
    """Run `step` often, and compare what this process holds after the first few with what it holds at the end."""
    with trio.fail_after(seconds):
        for number in range(warm_up):
            await step(number)
        before, begun = figures(), time.monotonic()
        for number in range(warm_up, warm_up + count):
            await step(number)
        spent = time.monotonic() - begun
    after = figures()
    print(f"\n{what}: {count} in {spent:.1f} s\n  before {before}\n  after  {after}")
    assert after.descriptors == before.descriptors
    assert after.children == before.children
    assert after.mappings == before.mappings
    assert after.threads <= before.threads + 4, "trio keeps a few idle threads"
    assert after.host_mib <= before.host_mib + host_mib
    assert not after.gpu_mib > before.gpu_mib + gpu_mib, "NaN: the driver does not tell"


async def quietly(work: Awaitable[Any]) -> None:
    """Have something done, or lost."""
    with contextlib.suppress(ContextLost):
        await work


async def kill_often(open_test_device: Any, count: int) -> None:
    """SIGKILL at changing moments: idle, while a kernel runs, while copies do."""
    host = np.random.default_rng(0).integers(0, 255, 6 * MIB, np.uint8)
    async with open_test_device(restart_policy=RestartPolicy(intensity=math.inf)) as dev:
        kept, target = await dev.to_device(host), await dev.to_device(host)
        (touch,) = await compile_rogue(dev, "touch")
        counter = dev.zeros(32, np.int32)
        await counter.to_host()

        async def step(number: int) -> None:
            generation = dev.generation
            async with trio.open_nursery() as nursery:
                if number % 3 == 1:
                    nursery.start_soon(quietly, target.copy_from(host))
                if number % 3 == 2:
                    nursery.start_soon(quietly, touch.launch(1, 32, counter, 32))
                for _ in range(number % 7):
                    await trio.lowlevel.checkpoint()
                kill_worker(dev)
            await next_generation(dev, generation)
            if target.state == "torn":
                await target.copy_from(host)
            if counter.state == "torn":
                await counter.fill(0)
            await touch.launch(1, 32, counter, 32)
            assert (await kept[: 64 * 1024].to_host() == host[: 64 * 1024]).all()

        # The heap grows to its working size in the first dozens of kills, and no further.
        warm_up = 5 if count < 100 else 50
        await stay_flat("kills", warm_up, count, step, host_mib=24 if count < 100 else 4, seconds=300 + 20 * count)
        assert (await kept.to_host() == host).all()
        assert dev.generation == 1 + warm_up + count
        for actor in dev.statistics().actors:
            assert actor.unsettled == 0, actor


async def restart(dev: Any, *touches: Any) -> None:
    """A context that is given up deliberately."""
    await dev.restart("for a change")


def fault_of(kind: Fault) -> Callable[..., Awaitable[Any]]:
    return lambda dev, *touches: cause(dev, kind, *touches)


PATIENT = (Fault.ENDLESS_KERNEL, Fault.WORKER_STOPPED)
SUDDEN = [(fault_of(kind), kind.costs_context) for kind in Fault if kind not in PATIENT]
SCHEDULE = 6 * [*SUDDEN, (hang, True), (restart, True)] + [(fault_of(Fault.WORKER_STOPPED), True)]
"""Faults of every kind, and whether each costs the context; a stopped worker, noticed after 2 s, is a rare one."""


async def fault_often(open_test_device: Any, warm_up: int, count: int, standby: int) -> None:
    """Faults of all kinds, each while copies and a kernel of others are under way; every array is read after each."""
    rng = np.random.default_rng(0)
    hosts = [rng.integers(0, 2**31, MIB // 16, np.int32) for _ in range(6)]
    sums = [zlib.crc32(host) for host in hosts]
    async with open_test_device(standby=standby, restart_policy=RestartPolicy(intensity=math.inf)) as dev:
        arrays = [await dev.to_device(host) for host in hosts]
        (touch,) = await compile_rogue(dev, "touch")
        counter = dev.zeros(32, np.int32)

        async def step(number: int) -> None:
            make_fault, costly = SCHEDULE[number % len(SCHEDULE)]
            generation = dev.generation
            written, copied, read, read_back = rng.permutation(len(arrays))[:4]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(quietly, arrays[copied].copy_from(hosts[copied]))
                nursery.start_soon(quietly, arrays[read_back].to_host())
                nursery.start_soon(quietly, touch.launch(1, 32, counter, 32))
                for _ in range(number % 7):
                    await trio.lowlevel.checkpoint()
                await make_fault(dev, arrays[written], read_only(arrays[read]))
            if costly:
                await next_generation(dev, generation)
            assert dev.generation == generation + costly
            await dev.wait_standby()
            await until(
                lambda: all(each.timeline.idle for each in core_of(dev).standbys.generations)
            )  # its modules are loaded
            assert {index for index, array in enumerate(arrays) if array.state != "ready"} <= {written, copied}
            for index, array in enumerate(arrays):
                if array.state == "torn":
                    await array.copy_from(hosts[index])
                assert zlib.crc32(await array.to_host()) == sums[index]
            if counter.state == "torn":
                await counter.fill(0)
            await touch.launch(1, 32, counter, 32)

        what = f"faults with {standby} standby"
        await stay_flat(what, warm_up, count, step, host_mib=24 if count < 100 else 4, seconds=300 + 20 * count)
        for actor in dev.statistics().actors:
            assert actor.unsettled == 0, actor


async def open_often(open_test_device: Any, count: int) -> None:
    async def step(number: int) -> None:
        async with open_test_device() as dev:
            array = dev.full(1000, number, np.int32)
            if number % 5 == 0:
                (touch,) = await compile_rogue(dev, "touch")
                await touch.launch(1, 32, array, 0)
            assert (await array.to_host() == number).all()

    await stay_flat("openings", 5, count, step, host_mib=24 if count < 100 else 48, seconds=300 + 20 * count)


async def launch_often(open_test_device: Any, count: int) -> None:
    async with open_test_device() as dev:
        (touch,) = await compile_rogue(dev, "touch")
        counter = await dev.to_device(np.zeros(32, np.int32))

        async def step(_number: int) -> None:
            await touch.launch(1, 32, counter, 32)

        await stay_flat("awaited launches", 500, count, step, host_mib=8, seconds=300 + count / 50)
        assert (await counter.to_host() == count + 500).all()


async def test_a_few_kills_leave_nothing_behind(open_test_device):
    await kill_often(open_test_device, 7)


async def test_a_fault_of_each_kind_leaves_nothing_behind(open_test_device):
    await fault_often(open_test_device, 3, 9, standby=1)


async def test_ten_openings_leave_nothing_behind(open_test_device):
    await open_often(open_test_device, 10)


async def test_a_thousand_awaited_launches_leave_nothing_behind(open_test_device):
    await launch_often(open_test_device, 1000)


@pytest.mark.parametrize("standby", [0, 1])
async def test_the_last_look_at_the_arrays_outlives_losses(open_test_device, standby):
    """Others lose the generation until the end, also while the last arrays are read."""
    with trio.fail_after(300):
        async with open_test_device(standby=standby, restart_policy=RestartPolicy(intensity=math.inf)) as dev:
            await dev.wait_standby()
            kernels = {name: await dev.nvrtc.compile(SOURCE, name) for name in KERNELS}
            player = Player(dev, kernels, [None], (standby, 0))
            generation = dev.generation
            async with trio.open_nursery() as nursery:
                with hold_worker(dev):
                    nursery.start_soon(player.check_all)
                    await until(lambda: any(lane.unfinished for lane in dev.statistics().lanes))
                    kill_worker(dev)
            assert player.losses == 1
            assert dev.generation == generation + 1


@pytest.mark.parametrize("standby", [0, 1])
async def test_arrays_hold_what_they_must_whatever_is_launched_and_lost(open_test_device, standby):
    await keep_accounts(open_test_device, seed=standby, seconds=3 if SWEEP else 1.5, standby=standby)


@pytest.mark.soak
@pytest.mark.parametrize("standby", [0, 1])
async def test_arrays_hold_what_they_must_for_minutes(open_test_device, standby):
    await keep_accounts(open_test_device, seed=int.from_bytes(os.urandom(4)), seconds=120, standby=standby)


@pytest.mark.soak
async def test_a_hundred_kills_leave_nothing_behind(open_test_device):
    await kill_often(open_test_device, 100)


@pytest.mark.soak
@pytest.mark.parametrize(("standby", "share"), [(1, 0.8), (0, 0.2)])
async def test_a_thousand_faults_leave_nothing_behind(open_test_device, standby, share):
    """On a GPU two hundred: there it takes a tenth of a second and more until a fault is known."""
    count = 200 if ON_GPU else 1000
    await fault_often(open_test_device, len(SCHEDULE), round(share * count), standby)


@pytest.mark.soak
async def test_a_thousand_openings_leave_nothing_behind(open_test_device):
    await open_often(open_test_device, 1000)


@pytest.mark.soak
async def test_ten_thousand_awaited_launches_leave_nothing_behind(open_test_device):
    await launch_often(open_test_device, 10_000)
