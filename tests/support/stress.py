"""Many tasks, some lanes, random verbs and random losses; every array is held against a plain numpy model.

Each task has arrays of its own, so what they must hold follows from what it did. A call that raised `ContextLost` may
or may not have run: an array that it has not torn holds what it held at some moment of that call.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import numpy as np
import trio

from atomr_trio import ContextLost, RestartPolicy, StaleArray, overwrites, read_only
from atomr_trio.testing import kill_worker
from support.rogue import WILD, compile_rogue, until

N = 32
ARRAYS = 3
TASKS = 16
LANES = 4
LARGEST_BATCH = 40
LONGEST_LOSS = 5
"""Seconds that a loss may take on a GPU that others use too."""
SOURCE = r"""
extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }
extern "C" __global__ void scale(int *x, int a) { x[threadIdx.x] *= a; }
extern "C" __global__ void twice(const int *x, int *y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }
"""
KERNELS = ("add", "scale", "twice")


@attrs.frozen
class Step:
    """One call, in both of its forms, and what it does to the model."""

    name: str
    awaited: Callable[[], Awaitable[Any]]
    batched: Callable[[Any], Any]
    """The verb of a batch; what it returns is looked at when the batch is over."""
    changes: int
    """The index of the array that it writes."""
    becomes: np.ndarray
    """What that array holds then."""
    reads: bool = False
    """Whether it returns what the array holds."""


class Player:
    """One task with its arrays, and what they must hold."""

    steps: Sequence[Callable[..., Step]] = ()
    """The calls that it makes, those that are made more often several times."""

    def __init__(self, dev: Any, kernels: dict[str, Any], lanes: list[Any], seed: tuple[int, int]) -> None:
        self.dev = dev
        self.kernels = kernels
        self.lanes = lanes
        self.rng = np.random.default_rng(seed)
        self.models = [np.full(N, index, np.int32) for index in range(ARRAYS)]
        self.arrays = [dev.full(N, index, np.int32) for index in range(ARRAYS)]
        self.prepared = [self.kernels["add"].prepare(1, N, array, 1) for array in self.arrays]
        self.graphs: list[Any] = [None] * ARRAYS
        self.moments: list[list[np.ndarray]] = [[] for _ in range(ARRAYS)]
        self.count = 0
        self.losses = 0

    async def run(self, over: trio.Event) -> None:
        """Play until it is over."""
        while not over.is_set():
            self.moments = [[model] for model in self.models]
            try:
                await (self.play_batch() if self.rng.random() < 0.5 else self.play_one())
            except (ContextLost, StaleArray) as lost:
                if isinstance(lost, ContextLost) and not MEANT.search(lost.reason):
                    raise
                self.losses += 1
                await self.recover()
        await self.check_all()

    # --- one call, or many --------------------------------------------------------------------------------------------

    async def play_one(self) -> None:
        """One awaited call, or a new array in the place of an old one."""
        if self.rng.random() < 0.05:
            await self.renew(int(self.rng.integers(ARRAYS)))
            return
        step = self.step(self.lane())
        self.note(step)
        seen = await step.awaited()
        self.check(step, seen)

    async def play_batch(self) -> None:
        """Some calls in a batch, on any lane."""
        lane = self.lane()
        seen = []
        async with self.dev.batch(lane=lane) as batch:
            for _ in range(int(self.rng.integers(1, LARGEST_BATCH))):
                step = self.step(lane)
                with contextlib.suppress(trio.WouldBlock):  # it was not sent
                    found = step.batched(batch)
                    self.note(step)
                    seen.append((step, found))
                if self.rng.random() < 0.05:
                    await batch.flush()
        for step, found in seen:
            self.check(step, found)

    def note(self, step: Step) -> None:
        """The model goes along."""
        self.count += 1
        self.models[step.changes] = step.becomes
        self.moments[step.changes].append(step.becomes)

    def check(self, step: Step, seen: Any) -> None:
        """What was read is what the array held then."""
        if step.reads:
            assert (seen == step.becomes).all(), f"{step.name}: {seen} is not {step.becomes}"

    def host(self) -> np.ndarray:
        """What an array may hold next."""
        return self.rng.integers(-1000, 1000, N, np.int32)

    def lane(self) -> Any:
        return self.lanes[int(self.rng.integers(len(self.lanes)))]

    # --- the verbs ----------------------------------------------------------------------------------------------------

    def step(self, lane: Any) -> Step:
        """Any call on any array."""
        make = self.steps[int(self.rng.integers(len(self.steps)))]
        index, other = (int(each) for each in self.rng.permutation(ARRAYS)[:2])
        return make(self, lane, index, other, int(self.rng.integers(-100, 100)))

    def launch(self, lane: Any, index: int, other: int, number: int) -> Step:
        add, x = self.kernels["add"], self.arrays[index]
        return Step(
            "add",
            lambda: add.launch(1, N, x, number, lane=lane),
            lambda batch: batch.launch(add, 1, N, x, number),
            index,
            self.models[index] + np.int32(number),
        )

    def launch_shortly(self, lane: Any, index: int, other: int, number: int) -> Step:
        scale, x = self.kernels["scale"], self.arrays[index]
        return Step(
            "scale",
            lambda: scale.launch(1, N, x, number),
            lambda batch: batch.launch(scale, 1, N, x, number),
            index,
            self.models[index] * np.int32(number),
        )

    def launch_on_two(self, lane: Any, index: int, other: int, number: int) -> Step:
        twice, x, y = self.kernels["twice"], read_only(self.arrays[other]), overwrites(self.arrays[index])
        return Step(
            "twice",
            lambda: twice.launch(1, N, x, y, lane=lane),
            lambda batch: batch.launch(twice, 1, N, x, y),
            index,
            self.models[other] * np.int32(2),
        )

    def launch_prepared(self, lane: Any, index: int, other: int, number: int) -> Step:
        prepared = self.prepared[index]
        prepared[1] = number
        becomes = self.models[index] + np.int32(number)
        return Step("prepared", prepared.launch, lambda batch: batch.launch(prepared), index, becomes)

    def launch_graph(self, lane: Any, index: int, other: int, number: int) -> Step:
        graph = self.graphs[index]
        if graph is None:
            return self.fill(lane, index, other, number)
        becomes = self.models[index] * np.int32(3) + np.int32(1)
        return Step("graph", graph.launch, lambda batch: batch.launch_graph(graph), index, becomes)

    def fill(self, lane: Any, index: int, other: int, number: int) -> Step:
        x = self.arrays[index]
        becomes = np.full(N, number, np.int32)
        return Step("fill", lambda: x.fill(number), lambda batch: batch.fill(x, number), index, becomes)

    def copy_in(self, lane: Any, index: int, other: int, number: int) -> Step:
        x, host = self.arrays[index], self.host()
        return Step("copy in", lambda: x.copy_from(host), lambda batch: batch.copy_from(x, host), index, host.copy())

    def copy_across(self, lane: Any, index: int, other: int, number: int) -> Step:
        x, y = self.arrays[index], self.arrays[other]
        return Step(
            "copy", lambda: x.copy_from(y), lambda batch: batch.copy_from(x, y), index, self.models[other].copy()
        )

    def copy_out(self, lane: Any, index: int, other: int, number: int) -> Step:
        x = self.arrays[index]
        return Step("copy out", x.to_host, lambda batch: batch.to_host(x), index, self.models[index], reads=True)

    async def renew(self, index: int) -> None:
        """Give an array back, and take another."""
        self.graphs[index] = None
        self.arrays[index].free()
        self.models[index] = self.rng.integers(-1000, 1000, N, np.int32)
        self.moments[index] = [np.zeros(N, np.int32), self.models[index]]
        self.arrays[index] = x = self.dev.full(N, 0, np.int32)
        self.prepared[index][0] = x
        await x.copy_from(self.models[index])

        def record(graph: Any) -> None:
            graph.launch(self.kernels["scale"], 1, N, x, 3)
            graph.launch(self.kernels["add"], 1, N, x, 1)

        self.graphs[index] = await self.dev.capture(record)

    # --- after a loss -------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """See that each array is torn or holds what it may, and make all of them good again."""
        for index, array in enumerate(self.arrays):
            while True:
                try:
                    self.models[index] = await self.recovered(index, array)
                    break
                except (ContextLost, StaleArray):
                    continue

    async def recovered(self, index: int, array: Any) -> np.ndarray:
        if array.state == "torn":
            host = self.host()
            self.moments[index].append(host)  # it may get there although its copy is lost
            await array.copy_from(host)
            return host
        seen: np.ndarray = await array.to_host()
        assert any((seen == moment).all() for moment in self.moments[index]), f"{seen} is none of {self.moments[index]}"
        return seen

    async def check_all(self) -> None:
        """The last look. Losses go on meanwhile; nothing writes the arrays any more, so none of them tears one."""
        for index, array in enumerate(self.arrays):
            seen = await self.read(array)
            assert (seen == self.models[index]).all(), f"{seen} is not {self.models[index]}"

    async def read(self, array: Any) -> np.ndarray:
        """Read an array that nothing writes, again after each loss that was meant."""
        while True:
            try:
                seen: np.ndarray = await array.to_host()
                return seen
            except ContextLost as lost:
                if not MEANT.search(lost.reason):
                    raise
                self.losses += 1


Player.steps = (
    Player.launch,
    Player.launch,
    Player.launch_shortly,
    Player.launch_shortly,
    Player.launch_on_two,
    Player.launch_prepared,
    Player.launch_graph,
    Player.fill,
    Player.copy_in,
    Player.copy_across,
    Player.copy_out,
)


MEANT = re.compile("SIGKILL|illegal memory access|for the exercise")
"""What is done to a generation here; whatever else ends one is a bug."""


async def play(
    dev: Any,
    seed: int,
    seconds: float,
    between_losses: float,
    losses: int,
    player: type[Player] = Player,
    kernels: tuple[str, tuple[str, ...]] = (SOURCE, KERNELS),
) -> list[Player]:
    """Let all tasks play for some seconds, with a loss now and then; `between_losses` is the mean of those seconds.

    They play on until there were `losses` losses. `player` says what they play, with these kernels of this source.
    """
    source, names = kernels
    compiled = {name: await dev.nvrtc.compile(source, name) for name in names}
    (wild,) = await compile_rogue(dev, "wild")
    rng = np.random.default_rng(seed)
    end, over, lost = trio.current_time() + seconds, trio.Event(), 0
    async with contextlib.AsyncExitStack() as stack:
        priorities = range(dev.info.highest_priority, dev.info.lowest_priority + 1)
        opened = [
            await stack.enter_async_context(dev.lane(priority=int(rng.choice(priorities)))) for _ in range(LANES - 1)
        ]
        players = [player(dev, compiled, [None, *opened], (seed, number)) for number in range(TASKS)]
        async with trio.open_nursery() as nursery:
            for each in players:
                nursery.start_soon(each.run, over)
            while lost < losses or trio.current_time() < end - between_losses:
                await trio.sleep(between_losses * rng.uniform(0.5, 1.5))
                await lose(dev, wild, int(rng.integers(3)))
                lost += 1
            await trio.sleep_until(max(end, trio.current_time() + between_losses / 2))
            over.set()
    return players


async def lose(dev: Any, wild: Any, how: int) -> None:
    """End the generation in service: by a signal, by a fault, or on purpose."""
    lost = dev.generation
    with contextlib.suppress(ContextLost, trio.WouldBlock):
        if how == 0:
            kill_worker(dev)
        elif how == 1:
            await wild.launch(1, 1, WILD)
        else:
            await dev.restart("for the exercise")
    await dev.wait_generation(after=lost)


async def keep_accounts(
    open_test_device: Any,
    seed: int,
    seconds: float,
    standby: int,
    *,
    between_losses: float = 0.7,
    losses: int = 2,
    player: type[Player] = Player,
    kernels: tuple[str, tuple[str, ...]] = (SOURCE, KERNELS),
) -> None:
    """Random verbs of many tasks on several lanes while workers are lost; what the arrays hold is right throughout.

    It lasts so many seconds, and longer if there were not yet so many losses.
    """
    try:
        with trio.fail_after(seconds + 300 + LONGEST_LOSS * losses):
            async with open_test_device(standby=standby, restart_policy=RestartPolicy(intensity=math.inf)) as dev:
                players = await play(dev, seed, seconds, between_losses, losses, player, kernels)
                await until(lambda: all(lane.unfinished == 0 for lane in dev.statistics().lanes))
                for actor in dev.statistics().actors:
                    assert actor.unsettled == 0, actor
                print(f"\n{sum(each.count for each in players)} calls, {dev.generation - 1} losses, seed {seed}")
                assert dev.generation > losses
                assert all(each.count for each in players)
                assert any(each.losses for each in players)
    except BaseException as error:
        error.add_note(f"the seed was {seed}")
        raise
