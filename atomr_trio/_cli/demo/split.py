"""The demo on several devices: each has a band of rows, and copies its neighbours' nearest rows after every step.

A band lies between two more rows, which hold the cells on either side of it, as the neighbours have them. A step
computes those rows too, with nonsense, and copies from the neighbours put them right. Each device loses its context
once. What it was writing is torn then; the bands that the step has read are intact on every device, and the step is
made again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

import atomr_trio
from atomr_trio._cli.choice import Choice
from atomr_trio._cli.progress import Progress

from . import program

if TYPE_CHECKING:
    from atomr_trio import Device, DeviceArray, Kernel

    from .program import Field, Plan, Result


class Band:
    """The rows of one device, and their kernels. Two pairs of arrays take turns."""

    def __init__(self, dev: Device, plan: Plan, step: Kernel, rogue: Kernel, fields: list[DeviceArray]) -> None:
        self.dev = dev
        self.now = fields
        self.next = [dev.empty(field.shape, np.float32) for field in fields]
        self._step = step
        self._rogue = rogue
        self._width, self._height = plan.size, fields[0].shape[0]
        across, down = program.BLOCK
        self._grid = (-(-self._width // across), -(-self._height // down))

    @classmethod
    async def start(cls, dev: Device, plan: Plan, source: str, fields: Sequence[Field], first: int, end: int) -> Band:
        """Compile the kernels and put the rows from `first` to `end` on the device, with one more on either side."""
        step = await dev.nvrtc.compile(source, "step")
        rogue = await dev.nvrtc.compile(source, "rogue")
        rows = np.arange(first - 1, end + 1) % plan.size
        return cls(dev, plan, step, rogue, [await dev.to_device(field[rows]) for field in fields])

    async def advance(self) -> None:
        """Compute the next state of the band."""
        await self._step.launch(self._grid, program.BLOCK, *self._operands())

    async def go_wild(self) -> None:
        """Launch the step with the bug."""
        await self._rogue.launch(self._grid, program.BLOCK, *self._operands(), program.WILD_ADDRESS)

    def _operands(self) -> tuple[object, ...]:
        return program.operands(self.now, self.next, self._width, self._height)

    async def copy_borders(self, above: Band, below: Band) -> None:
        """Copy the nearest rows of the neighbours' next states, each to its own side of the band."""
        async with self.dev.batch() as batch:
            for mine, first, last in zip(self.next, below.next, above.next, strict=True):
                batch.copy_from(mine[0], last[-2])
                batch.copy_from(mine[-1], first[1])

    def turn(self) -> None:
        """Make the next state the present one."""
        self.now, self.next = self.next, self.now

    async def field(self, number: int) -> Field:
        """Return the band's own rows of a field."""
        return await self.now[number][1:-1].to_host()


class SplitSimulation:
    """The bands of all devices, from the top to the bottom."""

    def __init__(self, bands: Sequence[Band]) -> None:
        self._bands = bands

    @classmethod
    async def start(cls, devices: Sequence[Device], plan: Plan) -> SplitSimulation:
        """Divide the first state among the devices."""
        source, fields = program.source(), program.seeded(plan.size)
        ends = [plan.size * number // len(devices) for number in range(len(devices) + 1)]
        borders = zip(devices, itertools.pairwise(ends), strict=True)
        return cls([await Band.start(dev, plan, source, fields, *rows) for dev, rows in borders])

    async def advance(self) -> None:
        """Compute the next state of every band, and copy the rows at their borders."""
        bands = self._bands
        for band in bands:
            await band.advance()
        for number, band in enumerate(bands):
            await band.copy_borders(bands[number - 1], bands[(number + 1) % len(bands)])
        for band in bands:
            band.turn()

    async def go_wild(self, place: int) -> None:
        """Launch the step with the bug on one device."""
        await self._bands[place].go_wild()

    async def field(self, number: int) -> Field:
        """Return a field of the last finished step, whole."""
        return np.concatenate([await band.field(number) for band in self._bands])

    async def v(self) -> Field:
        """Return the field v."""
        return await self.field(1)


@contextlib.contextmanager
def simulated(choice: Choice, count: int) -> Iterator[None]:
    """Let the simulator have so many devices, unless the environment says how many it has."""
    name = "ATOMR_TRIO_SIM_DEVICES"
    if choice.backend != "sim" or name in os.environ:
        yield
        return
    os.environ[name] = str(choice.index + count)
    try:
        yield
    finally:
        del os.environ[name]


async def crashing_run(choice: Choice, plan: Plan, count: int) -> Result:
    """Simulate on several devices, and lose each of them once."""
    indices = range(choice.index, choice.index + count)
    faults = {plan.steps * (place + 1) // (count + 1): place for place in range(count)}
    with simulated(choice, count):
        async with atomr_trio.open_devices(indices, backend=choice.backend) as devices:
            print(f"{count} x {devices[0].info.name}")
            print(f"Gray-Scott on {plan.size} x {plan.size} cells in {count} bands, {plan.steps} steps", flush=True)
            simulation = await SplitSimulation.start(devices, plan)
            progress = Progress("running", plan.steps)
            panels = []
            losses = 0
            for reached in range(plan.steps):
                if reached in faults:
                    losses += 1
                    go_wild = functools.partial(simulation.go_wild, faults[reached])
                    dev = devices[faults[reached]]
                    await program.crash_and_recover(dev, go_wild, simulation.v, reached, progress)
                if reached in (plan.early, plan.faults[0]):
                    panels.append(program.Panel(reached, losses, await simulation.v()))
                await simulation.advance()
                progress.update(reached + 1)
            progress.finish()
            u, v = await simulation.field(0), await simulation.v()
            last = program.Panel(plan.steps, losses, v)
            return program.Result(u, v, (*panels, last), max(each.generation for each in devices), losses)
