"""The demo: a simulation that loses its GPU twice and ends with the picture it would have had anyway.

Two chemicals react on a grid (Gray-Scott). In the middle of the run a kernel with a bug writes through a wild pointer,
which would end any other CUDA program. Here it costs one exception: the fields of the last finished step are still in
the GPU's memory, and the loop goes on. A second run without faults shows whether the result is right.
"""

from __future__ import annotations

import argparse
import importlib.resources
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import numpy as np
import numpy.typing as npt

import atomr_trio
from atomr_trio._cli.choice import Choice, choose, device_argument
from atomr_trio._cli.demo import captions, png
from atomr_trio._cli.output import what_hinders_writing
from atomr_trio._cli.progress import Progress

if TYPE_CHECKING:
    from atomr_trio import Device, DeviceArray, Kernel

Field = npt.NDArray[np.float32]

_FEED, _KILL = 0.029, 0.057
BLOCK = (32, 8)
WILD_ADDRESS = 0xBAD0BAD0
_SIZE = {"cuda": 768, "sim": 192}
_STEPS = {"cuda": 6000, "sim": 600}
_LEAST_SIZE, _LEAST_STEPS = 8, 6


@attrs.frozen
class Plan:
    """The size of the simulation, and the steps of its faults."""

    size: int
    steps: int

    @property
    def early(self) -> int:
        """The step of the first panel."""
        return self.steps // 6

    @property
    def faults(self) -> tuple[int, int]:
        """The steps before which the rogue kernel runs."""
        return self.steps // 2, self.steps * 2 // 3


@attrs.frozen
class Panel:
    """A part of the picture: the field v after so many steps, when so many faults had cost their device."""

    step: int
    faults: int
    v: Field

    @property
    def caption(self) -> str:
        """What the panel shows."""
        when = f"after {self.faults} fault{'s'[: self.faults - 1]}" if self.faults else "no fault yet"
        return f"step {self.step}, {when}"


@attrs.frozen
class Result:
    """The result of a run: the two fields, the panels of the picture, and how many devices were lost."""

    u: Field
    v: Field
    panels: Sequence[Panel]
    generation: int
    losses: int = 0


class Simulation:
    """The fields on the device and their kernels. Two pairs of arrays take turns."""

    def __init__(self, dev: Device, plan: Plan, step: Kernel, rogue: Kernel, fields: list[DeviceArray]) -> None:
        self._dev = dev
        self._plan = plan
        self._step = step
        self._rogue = rogue
        self._now = fields
        self._next = [dev.empty((plan.size, plan.size), np.float32) for _ in fields]
        across, down = (-(-plan.size // side) for side in BLOCK)
        self._grid = (across, down)

    @classmethod
    async def start(cls, dev: Device, plan: Plan) -> Simulation:
        """Compile the kernels and put the first state on the device."""
        step = await dev.nvrtc.compile(source(), "step")
        rogue = await dev.nvrtc.compile(source(), "rogue")
        fields = [await dev.to_device(field) for field in seeded(plan.size)]
        return cls(dev, plan, step, rogue, fields)

    async def advance(self) -> None:
        """Compute the next state from this one; this one is only read."""
        await self._step.launch(self._grid, BLOCK, *self._operands())
        self._now, self._next = self._next, self._now

    async def go_wild(self) -> None:
        """Launch the step with the bug. The state that it reads is safe; the arrays that it writes are torn."""
        await self._rogue.launch(self._grid, BLOCK, *self._operands(), WILD_ADDRESS)

    def _operands(self) -> tuple[object, ...]:
        return operands(self._now, self._next, self._plan.size, self._plan.size)

    async def u(self) -> Field:
        """Return the field u of the last finished step."""
        return await self._now[0].to_host()

    async def v(self) -> Field:
        """Return the field v of the last finished step."""
        return await self._now[1].to_host()


def source() -> str:
    """Return the source of the kernels."""
    return importlib.resources.files("atomr_trio._cli.demo").joinpath("gray_scott.cu").read_text(encoding="utf-8")


def operands(
    now: Sequence[DeviceArray], following: Sequence[DeviceArray], width: int, height: int
) -> tuple[object, ...]:
    """Return the arguments of a step: the state that it reads, and that which it overwrites."""
    reads = (atomr_trio.read_only(field) for field in now)
    writes = (atomr_trio.overwrites(field) for field in following)
    return (*reads, *writes, width, height, _FEED, _KILL)


def seeded(size: int) -> tuple[Field, Field]:
    """Return the first state: u everywhere, and drops of v at the same places in each run."""
    random = np.random.default_rng(7)
    u = np.ones((size, size), np.float32)
    v = np.zeros((size, size), np.float32)
    radius = max(1, min(4, size // 8))
    for y, x in random.integers(0, size, (max(4, size * size // 1500), 2)):
        rows = np.arange(y - radius, y + radius) % size
        columns = np.arange(x - radius, x + radius) % size
        u[np.ix_(rows, columns)] = 0.5
        v[np.ix_(rows, columns)] = 0.25
    return u, v


async def crashing_run(choice: Choice, plan: Plan) -> Result:
    """Simulate, and lose the device at each of the plan's faults."""
    async with atomr_trio.open_device(choice.index, backend=choice.backend) as dev:
        print(f"{dev.info.name} ({choice}), capability {'.'.join(map(str, dev.info.capability))}")
        print(
            f"Gray-Scott, two chemicals that react, on {plan.size} x {plan.size} cells, {plan.steps} steps", flush=True
        )
        simulation = await Simulation.start(dev, plan)
        progress = Progress("running", plan.steps)
        panels = []
        losses = 0
        for reached in range(plan.steps):
            if reached in plan.faults:
                losses += 1
                await crash_and_recover(dev, simulation.go_wild, simulation.v, reached, progress)
            if reached in (plan.early, plan.faults[0]):
                panels.append(Panel(reached, losses, await simulation.v()))
            await simulation.advance()
            progress.update(reached + 1)
        progress.finish()
        u, v = await simulation.u(), await simulation.v()
        return Result(u, v, (*panels, Panel(plan.steps, losses, v)), dev.generation, losses)


async def crash_and_recover(
    dev: Device,
    go_wild: Callable[[], Awaitable[None]],
    look: Callable[[], Awaitable[object]],
    reached: int,
    progress: Progress,
) -> None:
    """Let the rogue kernel fault, and print what that cost, until `look` has read from memory that survived."""
    where = "" if dev.index == 0 else f" on device {dev.index}"
    progress.note(f"step {reached}: launching a kernel that writes through a wild pointer{where}")
    before = dev.generation
    launched = time.perf_counter()
    try:
        await go_wild()
    except atomr_trio.ContextLost as lost:
        noticed = time.perf_counter()
        progress.note(f"  after {(noticed - launched) * 1e3:.0f} ms: {type(lost).__name__}: {lost.reason}")
        generation = await dev.wait_generation(after=before)
        await look()  # the first command of the new generation, on memory that survived the old one
        recovered = time.perf_counter()
        milliseconds = (recovered - noticed) * 1e3
        progress.note(f"  generation {generation}: recovered in {milliseconds:.0f} ms, going on from step {reached}")
    else:
        raise RuntimeError("the rogue kernel did no harm; nothing was shown")


async def undisturbed_run(choice: Choice, plan: Plan) -> Result:
    """Run the same simulation on a new device, without faults."""
    async with atomr_trio.open_device(choice.index, backend=choice.backend) as dev:
        simulation = await Simulation.start(dev, plan)
        progress = Progress("undisturbed run", plan.steps)
        for reached in range(plan.steps):
            await simulation.advance()
            progress.update(reached + 1)
        progress.finish()
        return Result(await simulation.u(), await simulation.v(), (), dev.generation)


def identical(one: Result, other: Result) -> bool:
    """Tell whether two runs ended with the same bits."""
    return one.u.tobytes() == other.u.tobytes() and one.v.tobytes() == other.v.tobytes()


def paint(panels: Sequence[Panel]) -> png.Picture:
    """Return the three panels in a row, each below its caption, small grids enlarged."""
    zoom = max(1, 384 // panels[0].v.shape[0])
    enlarged = (np.kron(panel.v, np.ones((zoom, zoom), np.float32)) for panel in panels)
    coloured = [png.colour(panel, 0.0, 0.38) for panel in enlarged]
    return png.side_by_side(captions.captioned(coloured, [panel.caption for panel in panels]))


def following(choice: Choice, devices: int) -> str:
    """Return the command to try next."""
    if choice.backend == "sim" and devices == 1:
        return "python -m atomr_trio demo --device sim --devices 2    the same on two devices, each of which is lost"
    return "python -m atomr_trio doctor    what works on this machine, and what is missing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", type=device_argument, metavar="0|sim", help="default: GPU 0 if it works, else the simulator"
    )
    parser.add_argument(
        "--devices", type=int, default=1, metavar="N", help="divide the field among N devices, from --device on"
    )
    parser.add_argument("--size", type=int, metavar="N", help=f"cells along each side, at least {_LEAST_SIZE}")
    parser.add_argument("--steps", type=int, metavar="N", help=f"steps of the simulation, at least {_LEAST_STEPS}")
    parser.add_argument("--out", type=Path, metavar="PNG", default=Path("gray-scott.png"), help="the picture to write")


async def main(arguments: argparse.Namespace) -> int:
    """Run the demo; return 0 when the run with faults ended with the same bits as the run without."""
    for option, given, least in (("--size", arguments.size, _LEAST_SIZE), ("--steps", arguments.steps, _LEAST_STEPS)):
        if given is not None and given < least:
            print(f"error: {option} is {given}; the demo needs at least {least}", file=sys.stderr)
            return 2
    if not 1 <= arguments.devices <= _LEAST_SIZE // 2:
        print(f"error: --devices is {arguments.devices}; the demo takes 1 to {_LEAST_SIZE // 2}", file=sys.stderr)
        return 2
    problem = what_hinders_writing(arguments.out)
    if problem is not None:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    choice, why_not_a_gpu = await choose(arguments.device)
    if why_not_a_gpu is not None:
        print(f"using the simulator: {why_not_a_gpu}")
    print(
        "What this shows: kernels crash the GPU in the middle of a simulation. "
        "The fields in its memory survive, and the end is as without a crash."
    )
    plan = Plan(
        _SIZE[choice.backend] if arguments.size is None else arguments.size,
        _STEPS[choice.backend] if arguments.steps is None else arguments.steps,
    )
    if arguments.devices > 1:
        from . import split

        crashed = await split.crashing_run(choice, plan, arguments.devices)
    else:
        crashed = await crashing_run(choice, plan)
    png.write_png(arguments.out, paint(crashed.panels))
    print(f"picture: {arguments.out}; from left to right: {'; '.join(each.caption for each in crashed.panels)}")
    print("now the same on one device without a fault, to compare", flush=True)
    same = identical(crashed, await undisturbed_run(choice, plan))
    lost = f"after {crashed.losses} lost context{'s'[: crashed.losses - 1]}"
    print(f"identical: {lost}, every bit is as without" if same else f"DIFFERENT: {lost}; please report it")
    print(f"generation {crashed.generation}: each loss starts the next one")
    if same:
        print(f"next: {following(choice, arguments.devices)}")
    return 0 if same else 1
