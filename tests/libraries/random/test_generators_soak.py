"""Draws, transforms and kernels while workers are lost at any time: no number is wrong, none comes twice.

Each task has generators of its own, and beside each one on the host that nothing happens to. A draw that comes to an
end has the numbers of that; one that is lost keeps its numbers, and is sometimes repeated from the position of the
error. What is drawn by kernels of our own is drawn once more at the end, from the same positions.
"""

from __future__ import annotations

import math
import os
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest
import trio

from atomr_trio import ContextLost, RandomGenerator, RestartPolicy, StaleArray
from atomr_trio.libraries.random.positions import KINDS, Bounds
from support import ON_GPU
from support.random_host import Shadow, assert_drawn
from support.rogue import kill_worker, next_generation

KINDS_OF_TASKS = (("philox", "xorwow"), ("philox", "mtgp32"), ("xorwow", "scrambled_sobol32"))
NAMES = ("uniform_float32", "uniform_float64", "normal_float32", "normal_float64", "bits_uint32", "poisson_uint32")
COUNTS = (1, 7, 1000, 4095, 9001)


@attrs.define
class Player:
    """A task that draws."""

    dev: Any
    rng: np.random.Generator
    generators: list[RandomGenerator]
    shadows: list[Shadow]
    own: list[tuple[RandomGenerator, dict[str, Any], npt.NDArray[Any], str]] = attrs.field(factory=list)
    """Draws by kernels of our own: the states before them, what came, and in which generations."""
    draws: int = 0
    lost: int = 0

    async def run(self, over: trio.Event) -> None:
        while not over.is_set():
            at = int(self.rng.integers(len(self.generators)))
            generator, shadow = self.generators[at], self.shadows[at]
            chance = self.rng.random()
            if chance < 0.15 and not KINDS[generator.kind].is_quasi:
                await self.draw_own(generator)
            elif chance < 0.5:
                await self.draw_batch(generator, shadow)
            else:
                await self.draw(generator, shadow)
            assert generator._state.place == shadow.place

    def choice(self) -> tuple[str, int]:
        return str(self.rng.choice(NAMES)), int(self.rng.choice(COUNTS))

    async def draw(self, generator: RandomGenerator, shadow: Shadow) -> None:
        """One awaited draw, and perhaps a transform of its numbers."""
        name, count = self.choice()
        before = generator.state
        verb, _, dtype = name.partition("_")
        right = shadow.draw(name, count, *([1.0] if verb == "poisson" else []))
        self.draws += 1
        repeats = True
        while repeats:
            repeats, position = False, None
            try:
                x = await getattr(generator, verb)(size=count, dtype=dtype)
                assert_drawn(await x.to_host(), right, f"{name} {generator.kind}")
                if verb == "normal":
                    found = await (await self.dev.fft.rfft(x)).to_host()
                    np.testing.assert_allclose(found, np.fft.rfft(right), rtol=0, atol=1e-5 * count)
            except ContextLost as lost:
                self.lost += 1
                position = lost.position
                repeats = generator.state == before  # it was not planned
            except StaleArray:
                self.lost += 1
            if position is not None:
                assert position == before
                repeats = bool(self.rng.random() < 0.5)
                if repeats:
                    generator.seek(position)

    async def draw_batch(self, generator: RandomGenerator, shadow: Shadow) -> None:
        """Draws that are under way together."""
        drawn = []
        try:
            async with self.dev.batch() as batch:
                for _ in range(int(self.rng.integers(1, 20))):
                    name, count = self.choice()
                    verb, _, dtype = name.partition("_")
                    try:
                        x = getattr(batch.random, verb)(size=count, dtype=dtype, generator=generator)
                    except trio.WouldBlock:
                        await batch.flush()
                        continue
                    self.draws += 1
                    drawn.append((x, shadow.draw(name, count, *([1.0] if verb == "poisson" else [])), name))
            for x, right, name in drawn:
                assert_drawn(await x.to_host(), right, f"{name} {generator.kind}")
        except (ContextLost, StaleArray):
            self.lost += 1

    async def draw_own(self, generator: RandomGenerator) -> None:
        """A draw by a kernel of our own."""
        before, count, began = generator.state, int(self.rng.integers(1, 500)), self.dev.generation
        self.draws += 1
        try:
            x = await generator.gamma(0.7, size=count)
            drawn = self.dev.generation
            found = await x.to_host()
        except (ContextLost, StaleArray):
            self.lost += 1
        else:
            assert generator.state["own"] == before["own"] + count
            self.own.append((generator, before, found, f"drawn in {began} to {drawn}, read in {self.dev.generation}"))

    async def repeat_own(self) -> None:
        """Draw the same once more, with nothing happening."""
        for generator, before, found, when in self.own:
            generator.seek(before)
            again = await (await generator.gamma(0.7, size=found.size)).to_host()
            np.testing.assert_array_equal(again, found, when)


def new_player(dev: Any, seed: int, number: int) -> Player:
    generators = []
    for kind in KINDS_OF_TASKS[number]:
        generator = dev.random.generator(kind, None if KINDS[kind].is_quasi else seed % 1000)
        generator._bounds = Bounds(5, 50_000)
        generators.append(generator)
    return Player(dev, np.random.default_rng((seed, number)), generators, [Shadow(each) for each in generators])


async def play(open_test_device: Any, seed: int, losses: int, standby: int, between: float) -> None:
    """Draw until so many workers were lost."""
    try:
        with trio.fail_after(60 + 3 * losses):
            async with open_test_device(standby=standby, restart_policy=RestartPolicy(intensity=math.inf)) as dev:
                players = [new_player(dev, seed, number) for number in range(len(KINDS_OF_TASKS))]
                await dev.random.load("gamma")
                over, rng = trio.Event(), np.random.default_rng(seed)
                async with trio.open_nursery() as nursery:
                    for player in players:
                        nursery.start_soon(player.run, over)
                    for _ in range(losses):
                        await trio.sleep(between * rng.random())
                        generation = dev.generation
                        kill_worker(dev)
                        await next_generation(dev, generation)
                    over.set()
                for player in players:
                    await player.repeat_own()
                draws, lost = sum(each.draws for each in players), sum(each.lost for each in players)
                print(f"\n{draws} draws, {dev.generation - 1} losses, {lost} calls lost, seed {seed}")
                assert dev.generation > losses
                assert all(each.draws for each in players)
                assert lost
    except BaseException as error:
        error.add_note(f"the seed was {seed}")
        raise


@pytest.mark.parametrize("standby", [0, 1])
async def test_no_number_is_wrong_or_comes_twice_while_workers_are_lost(open_test_device: Any, standby: int) -> None:
    await play(open_test_device, 3 + standby, 3, standby, between=0.1)


@pytest.mark.soak
@pytest.mark.parametrize("standby", [0, 1])
async def test_no_number_is_wrong_or_comes_twice_in_hundreds_of_losses(open_test_device: Any, standby: int) -> None:
    seed = int.from_bytes(os.urandom(4))
    await play(open_test_device, seed, 20 if ON_GPU else 100, standby, between=0.4)
