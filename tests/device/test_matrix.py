"""Every fault at every moment, with a standby and without: what everybody sees, and what is left.

A fault is a row of `FAULTS`: who causes it and how, what that party sees, what it costs. A moment is a row of
`MOMENTS`: what the *rest* of the device is doing when the fault strikes. The two multiply, and no cell is left out:
where a fault has nothing to do with the others' work (source that does not compile, while copies are under way), the
cell says that they do not notice. "In a batch" is many launches of one batch, plain and prepared, and one beside it.

What holds the moments still is a kernel at a gate (see ``support/matrix.py``). The request that faults is put behind it
first, and what bystanders want comes behind that; then the gate is opened, or the fault comes from outside.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
import math
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from unittest import mock

import attrs
import numpy as np
import pytest
import trio

from atomr_cuda.injection import Injection
from atomr_trio import (
    ActorCrashed,
    ActorRestarted,
    CommandFailed,
    CompileError,
    ContextLost,
    ContextRebuilt,
    ContextWasLost,
    DeviceClosed,
    DeviceError,
    DeviceFailed,
    DeviceGaveUp,
    DeviceState,
    InvalidArgument,
    OutOfDeviceMemory,
    RestartPolicy,
    StaleArray,
    WorkerReaped,
    read_only,
)
from atomr_trio._device.device import core_of
from atomr_trio._generation import admission as _admission, adoption as _adoption, watch as _watch
from atomr_trio._generation.process import WorkerProcess
from atomr_trio._generation.requests import CommandRequest
from atomr_trio._supervision.mailbox import Request
from atomr_trio._wire.protocol import Role
from atomr_trio._wire.records.module import LAUNCH
from atomr_trio.testing import Poison, ReturnStatus, WorkerPool, hold_rebuild, inject_at_start
from atomr_trio.testing._faults import WILD, _by_exhausting
from atomr_trio.testing._pool import pooled_processes
from atomr_trio.testing._workers import replaced
from support import ON_GPU, chosen_backend, open_test_device, supervisor_of
from support.matrix import NUMBERS, ONE, Scene, Standing
from support.rogue import children, until
from support.strategies import until_idle

DEADLINE = 90
RESTARTS = 2
POLICY = RestartPolicy(intensity=RESTARTS, backoff_min=0.05, backoff_max=0.05)
HANG_SECONDS = 0.3
CLOSE_SECONDS = 30
STOPPED_SECONDS = 1.0
START_SECONDS = 10.0
"""A stopped worker is noticed sooner than by default, so that the matrix takes no longer than it must."""
NO_DEVICE, NO_START = 100, 999
BATCH = 20


# --- what a fault costs, and what everybody sees of it ----------------------------------------------------------------


@enum.unique
class Cost(enum.Enum):
    """What is lost by a fault."""

    NOTHING = "nothing"
    CONTEXT = "the context"
    SUCCESSOR = "the context, and no other can be made"
    DEVICE = "the device"


SEES: dict[Standing, dict[Cost, type[BaseException] | None]] = {
    Standing.STARTED: {
        Cost.NOTHING: None,
        Cost.CONTEXT: ContextLost,
        Cost.SUCCESSOR: ContextLost,
        Cost.DEVICE: DeviceFailed,
    },
    Standing.QUEUED: {
        Cost.NOTHING: None,
        Cost.CONTEXT: None,
        Cost.SUCCESSOR: DeviceFailed,
        Cost.DEVICE: DeviceFailed,
    },
    Standing.CANCELLED: dict.fromkeys(Cost, trio.Cancelled),
    Standing.REFUSED: dict.fromkeys(Cost, DeviceClosed),
}
"""What a request comes to, by where it stood when the fault struck; None is success."""


# --- the faults -------------------------------------------------------------------------------------------------------


async def nothing_more(scene: Scene) -> None:
    """The fault comes with its request."""


async def open_gate(scene: Scene) -> None:
    """The fault comes when its request is reached."""
    scene.let_go()


async def hit(how: signal.Signals, scene: Scene) -> None:
    """Send a signal to the worker in service, or else to the one that is about to be, and see the device notice."""
    standbys = core_of(scene.dev).standbys.generations
    target = next(iter(standbys), None) if scene.rebuilding else scene.first
    process = target.process if target else scene.spawned[-1]
    os.kill(process.pid, how)
    await until(lambda: target is None or target.loss)


async def take_hardware(scene: Scene) -> None:
    """Let the driver find no device any more, when the streams are next asked or a worker is next started."""
    if scene.rebuilding:
        await hit(signal.SIGKILL, scene)
        return
    scene.first.request_faults(str(Injection("cuStreamQuery", Poison(NO_DEVICE))))
    await until(lambda: scene.first.loss)


async def run_rogue(name: str, arguments: tuple[object, ...], scene: Scene) -> None:
    """Launch a kernel that faults."""
    touches = scene.arrays["struck"], read_only(scene.arrays["watched"])
    await scene.kernels[name].launch(1, 1, *arguments, touches=touches)


async def run_on_struck(name: str, scene: Scene) -> None:
    """Launch a kernel that faults because of what it does with the array that it is given."""
    await run_rogue(name, (scene.arrays["struck"],), scene)


async def wait_at_gate(scene: Scene) -> None:
    """Launch a kernel that does nothing wrong, and is running when the fault strikes."""
    await run_rogue("spin", (scene.word.address,), scene)


async def run_for_ever(scene: Scene) -> None:
    """Launch a kernel that does not end."""
    with scene.dev.zeros(1, np.int32) as word:
        touches = scene.arrays["struck"], read_only(scene.arrays["watched"]), word
        await scene.kernels["spin"].launch(1, 1, word.address, touches=touches, hang_timeout=HANG_SECONDS)


async def launch_too_wide(scene: Scene) -> None:
    """Launch a kernel with more threads than it has registers for, past the check that would have noticed."""
    kernel = scene.kernels["narrow"]
    kernel.attributes = attrs.evolve(kernel.attributes, max_threads_per_block=1024)
    await kernel.launch(1, 1024, scene.arrays["struck"])


async def compile_nonsense(scene: Scene) -> None:
    """Compile what is no program."""
    await scene.dev.nvrtc.compile("nonsense", "f")


async def pass_nonsense(scene: Scene) -> None:
    """Launch a kernel with a string where it takes a number."""
    await scene.kernels["touch"].launch(1, 1, scene.arrays["struck"], "ten")


class BuggyRequest(Request):
    """A request that is a bug of ours."""

    def start(self, generation: object) -> None:
        """Fail in the actor's hands."""
        raise RuntimeError("planted")


async def crash_actor(scene: Scene) -> None:
    """Ask the memory actor for something that it cannot survive."""
    await core_of(scene.dev).memory_actor.mailbox.ask(BuggyRequest("planted", lane=None))


async def crash_engine(scene: Scene) -> None:
    """Send the worker a record that its engine cannot take apart."""
    struck = scene.arrays["struck"]
    await core_of(scene.dev).module_actor.mailbox.ask(
        CommandRequest(LAUNCH, b"", ((struck._block, Role.WRITE),), keep=struck)
    )


async def exhaust_memory(scene: Scene) -> None:
    """Use an array that is larger than the device."""
    await _by_exhausting(scene.dev, ())


@attrs.frozen(kw_only=True)
class Fault:
    """What goes wrong."""

    name: str
    cause: Callable[[Scene], Awaitable[None]]
    """The request of the victim, who causes the fault or is hit by it."""
    strike: Callable[[Scene], Awaitable[None]] = nothing_more
    """What makes it happen."""
    cost: Cost = Cost.NOTHING
    sees: type[DeviceError] = ContextLost
    """What the victim sees, where that is no matter of what the fault costs."""
    status: int | None = None
    words: str = ""
    """What the victim is told, among other words."""
    reporter: str = "the driver, to "
    """Who notices a loss, as its event begins to say."""
    late: bool = False
    """Whether the request needs nothing of the worker, so that it is made when the fault is to strike."""
    hits_worker: bool = False
    """Whether the fault comes from outside, and hits whichever worker is or is about to be in service."""
    starts: tuple[int, float] | None = None
    """A status that starts of workers fail with, and how many of them do."""
    crashes: int = 0
    """Actors that crash."""
    injected: bool = False
    """Whether only the simulator can do it on request."""

    @property
    def loses(self) -> bool:
        """Whether the context is lost."""
        return self.cost is not Cost.NOTHING


lost = functools.partial(Fault, cost=Cost.CONTEXT)
killed = functools.partial(lost, cause=wait_at_gate, hits_worker=True, reporter="the operating system")
KILL = functools.partial(hit, signal.SIGKILL)

KERNEL_FAULTS = (
    lost(name="700", cause=functools.partial(run_rogue, "wild", (WILD,)), strike=open_gate, status=700),
    lost(name="710", cause=functools.partial(run_rogue, "refuse", (41,)), strike=open_gate, status=710),
    lost(name="716", cause=functools.partial(run_on_struck, "misaligned"), strike=open_gate, status=716),
    lost(name="719", cause=functools.partial(run_on_struck, "trap"), strike=open_gate, status=719),
)
STOP = killed(
    name="SIGSTOP", strike=functools.partial(hit, signal.SIGSTOP), words="no sign of life", reporter="the watchdog"
)
START_FAULTS = (
    killed(name="one failed start", strike=KILL, starts=(NO_START, 1), injected=True),
    killed(name="no start", strike=KILL, cost=Cost.SUCCESSOR, starts=(NO_START, math.inf), injected=True),
    lost(
        name="no hardware",
        cause=wait_at_gate,
        strike=take_hardware,
        hits_worker=True,
        status=NO_DEVICE,
        cost=Cost.DEVICE,
        starts=(NO_DEVICE, math.inf),
        injected=True,
    ),
)
FAULTS = (
    *KERNEL_FAULTS,
    lost(name="endless kernel", cause=run_for_ever, strike=open_gate, words="hang_timeout", reporter="the watchdog"),
    Fault(name="no device memory", cause=exhaust_memory, sees=OutOfDeviceMemory, status=2),
    Fault(name="701", cause=launch_too_wide, sees=CommandFailed, status=701, injected=True),
    Fault(name="compile error", cause=compile_nonsense, sees=CompileError, status=6, words="nonsense", late=True),
    Fault(name="bad argument", cause=pass_nonsense, sees=InvalidArgument, words="ten", late=True),
    Fault(name="actor bug", cause=crash_actor, sees=ActorCrashed, words="planted", late=True, crashes=1),
    Fault(name="engine bug", cause=crash_engine, sees=ActorCrashed, words="unpack_from"),
    killed(name="SIGKILL", strike=KILL, words="SIGKILL"),
    killed(name="SIGSEGV", strike=functools.partial(hit, signal.SIGSEGV), words="SIGSEGV"),
    STOP,
    *START_FAULTS,
)


# --- the moments ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def idle(scene: Scene) -> AsyncIterator[None]:
    """Nobody else wants anything."""
    yield


@contextlib.asynccontextmanager
async def running(scene: Scene, standing: Standing = Standing.STARTED) -> AsyncIterator[None]:
    """A kernel of somebody else is in flight."""
    await scene.start("launches", scene.touch, "written", standing=standing)
    yield


@contextlib.asynccontextmanager
async def queued(scene: Scene, standing: Standing = Standing.QUEUED) -> AsyncIterator[None]:
    """The lane takes no more, and launches wait for it: one in the actor's hands, one in its mailbox."""
    async with running(scene):
        with mock.patch.object(_admission, "LANE_LIMIT", 1):
            scene.ask("waits", scene.touch, "other", standing=standing)
            await until(lambda: scene.dev.statistics().lanes[0].waiting == 1)
            scene.ask("waits behind", scene.touch, "other", standing=standing)
            await until(lambda: core_of(scene.dev).module_actor.mailbox.statistics().queued == 1)
            yield


@contextlib.asynccontextmanager
async def copying_in(scene: Scene) -> AsyncIterator[None]:
    """Copies to the device are in flight: one that a kernel holds up, and one behind it on the lane."""
    async with running(scene):
        await scene.start("copies", scene.copy_in, "written")
        await scene.start("copies behind", scene.copy_in, "other")
        yield


@contextlib.asynccontextmanager
async def copying_out(scene: Scene) -> AsyncIterator[None]:
    """The same of copies to the host."""
    async with running(scene):
        await scene.start("copies", scene.copy_out, "written", reads=NUMBERS + 1)
        await scene.start("copies behind", scene.copy_out, "read", reads=NUMBERS)
        yield


@contextlib.asynccontextmanager
async def in_batch(scene: Scene) -> AsyncIterator[None]:
    """Many launches of a batch are in flight, whose end waits for all of them, and one beside it."""
    await scene.start("launches in a batch", scene.touch_in_batch, "other", BATCH)
    async with running(scene):
        yield


@contextlib.asynccontextmanager
async def in_rebuild(scene: Scene) -> AsyncIterator[None]:
    """The context has just been lost; the next worker is there and not yet in service, and a launch waits for it."""
    await scene.word.copy_from(ONE)
    scene.held.enter_context(hold_rebuild(scene.dev))
    workers = supervisor_of(scene.dev).workers
    spawn = workers.spawn

    def spawn_and_tell() -> WorkerProcess:
        scene.spawned.append(spawn())
        return scene.spawned[-1]

    with replaced(workers, spawn=spawn_and_tell):
        os.kill(scene.first.process.pid, signal.SIGKILL)
        await until(lambda: scene.rebuilding)
        scene.ask("waits", scene.touch, "written", standing=Standing.QUEUED)
        await until(lambda: core_of(scene.dev).module_actor.mailbox.statistics().queued == 1)
        yield


@contextlib.asynccontextmanager
async def closing(scene: Scene) -> AsyncIterator[None]:
    """The block of the device has been left, with work in flight and work that waits."""
    async with queued(scene, Standing.REFUSED):
        scene.leave.set()
        await until(lambda: scene.dev.state is DeviceState.CLOSING)
        yield


@contextlib.asynccontextmanager
async def cancelled(scene: Scene) -> AsyncIterator[None]:
    """Work is in flight, and whoever wanted it is not interested any more."""
    async with running(scene, Standing.CANCELLED):
        for party in scene.parties.values():
            party.scope.cancel()
        await scene.all_answered()
        yield


@attrs.frozen
class Moment:
    """What the rest of the device is doing."""

    name: str
    enter: Callable[[Scene], AbstractAsyncContextManager[None]]
    writes: frozenset[str]
    """The arrays that unfinished work writes then: a loss tears them."""
    gated: bool = True
    """Whether the compute lane is held up."""


MOMENTS = (
    Moment("idle", idle, frozenset(), gated=False),
    Moment("running", running, frozenset({"written"})),
    Moment("queued", queued, frozenset({"written"})),
    Moment("copying in", copying_in, frozenset({"written", "other"})),
    Moment("copying out", copying_out, frozenset({"written"})),
    Moment("in a batch", in_batch, frozenset({"written", "other"})),
    Moment("during a rebuild", in_rebuild, frozenset(), gated=False),
    Moment("while closing", closing, frozenset({"written"})),
    Moment("callers cancelled", cancelled, frozenset({"written"})),
)


# --- the cells --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Cell:
    """A fault at a moment, and what must come of it."""

    fault: Fault
    moment: Moment
    standby: int

    def __str__(self) -> str:
        return f"{self.fault.name}, {self.moment.name}, standby {self.standby}"

    @property
    def closing(self) -> bool:
        """Whether no generation will follow, whatever is lost."""
        return self.moment.enter is closing

    @property
    def rebuild(self) -> bool:
        """Whether one context was lost before the fault strikes."""
        return self.moment.enter is in_rebuild

    @property
    def hits_next(self) -> bool:
        """Whether the fault hits a worker that is not in service yet, which no request notices."""
        return self.rebuild and self.fault.hits_worker

    @property
    def stops_start(self) -> bool:
        """Whether a worker is stopped while it starts, which only its being late tells."""
        return self.hits_next and self.fault is STOP and not self.standby

    @property
    def cost(self) -> Cost:
        """What the fault costs at this moment."""
        if self.closing and self.fault.loses:
            return Cost.CONTEXT
        if self.fault.cost is Cost.SUCCESSOR and self.standby and not self.rebuild:
            return Cost.CONTEXT  # the standby was started in time
        return self.fault.cost

    @property
    def given_up(self) -> bool:
        """Whether the device fails."""
        return self.cost in (Cost.SUCCESSOR, Cost.DEVICE)

    @property
    def losses(self) -> int:
        """Generations that were in service and are lost."""
        return self.rebuild + (self.fault.loses and not self.hits_next)

    @property
    def rebuilt(self) -> int:
        """Generations that follow."""
        return 0 if self.closing else self.losses - self.given_up

    @property
    def failed_starts(self) -> int:
        """Workers that could not be started; those that were to stand by do not count."""
        fails = self.fault.starts is not None and (self.hits_next or not self.standby)
        return int(fails or (self.hits_next and not self.standby))

    @property
    def torn(self) -> frozenset[str]:
        """The arrays that are torn."""
        if not self.fault.loses or self.hits_next:
            return frozenset()
        return self.moment.writes | {"struck"}

    @property
    def victim(self) -> Standing:
        """Where the request of the victim stands when the fault strikes."""
        if self.closing and self.fault.late:
            return Standing.REFUSED
        if self.moment.enter is cancelled and not self.fault.late:
            return Standing.CANCELLED
        return Standing.QUEUED if self.hits_next else Standing.STARTED

    def sees(self, name: str, standing: Standing) -> type[BaseException] | None:
        """What a party sees."""
        if name == "victim" and standing is Standing.STARTED and not self.fault.loses:
            return self.fault.sees
        return SEES[standing][self.cost]

    @property
    def news(self) -> Counter[type]:
        """The events that tell of it, those of standbys apart."""
        reaped = 0 if self.closing else self.losses - (self.cost is Cost.DEVICE and not self.hits_next)
        news = {
            ContextWasLost: self.losses,
            ContextRebuilt: self.rebuilt,
            WorkerReaped: reaped,
            ActorRestarted: self.fault.crashes * (not self.closing),
            DeviceGaveUp: int(self.given_up),
        }
        return +Counter(news)


async def play(cell: Cell, scene: Scene) -> None:
    """Bring the device into the moment, let the fault strike, and see that everybody gets the answer that is due."""
    late = cell.fault.late or cell.rebuild
    with failing_starts(cell.fault):
        if cell.moment.gated:
            scene.close_gate()
        if not late:
            await scene.start("victim", cell.fault.cause, scene, standing=cell.victim)
        async with cell.moment.enter(scene):
            if late:
                victim = scene.ask("victim", cell.fault.cause, scene, standing=cell.victim)
                await until(lambda: victim.answered or cell.rebuild)
            await cell.fault.strike(scene)
            scene.let_go()
            await scene.all_answered()
        scene.slot.release()
        check_answers(cell, scene)
        if cell.given_up:
            await until(lambda: scene.dev.state is DeviceState.FAILED)
        elif not cell.closing:
            await check_survivors(cell, scene)
            scene.leave.set()


@contextlib.contextmanager
def failing_starts(fault: Fault) -> Iterator[None]:
    """Let the workers that are started in the block fail, if the fault is of that kind."""
    if fault.starts is None:
        yield
        return
    status, workers = fault.starts
    with inject_at_start("cuInit", ReturnStatus(status), workers=workers):
        yield


def check_answers(cell: Cell, scene: Scene) -> None:
    """Each party sees what it must, by an exception of its own."""
    for name, party in scene.parties.items():
        assert party.saw is cell.sees(name, party.standing), f"{name} {party.standing.value}: {party.error!r}"
        if party.saw is None and party.reads is not None:
            assert (party.value == party.reads).all(), name
        if isinstance(party.error, ContextLost):
            assert (party.error.generation, party.error.status) == (cell.losses, cell.fault.status), name
            assert cell.fault.words in str(party.error), name
    victim = scene.parties["victim"].error
    if cell.victim is Standing.STARTED and isinstance(victim, DeviceError) and not cell.given_up:
        assert victim.status == cell.fault.status
        assert cell.fault.words in str(victim)
    errors = [party.error for party in scene.parties.values() if party.error is not None]
    assert len({id(error) for error in errors}) == len(errors)


async def check_survivors(cell: Cell, scene: Scene) -> None:
    """The device goes on: with its generation, its budget, and every array that nobody was writing."""
    dev = scene.dev
    assert await dev.wait_generation(after=cell.rebuilt) == 1 + cell.rebuilt
    assert dev.statistics().restarts_left == RESTARTS - cell.losses - cell.failed_starts
    await scene.touch("apart")
    assert {name for name, array in scene.arrays.items() if array.state != "ready"} == cell.torn
    for name in cell.torn:
        with pytest.raises(StaleArray, match=f"when generation {cell.losses} was lost"):
            await scene.arrays[name].to_host()
        await scene.arrays[name].fill(7)
        scene.hosts[name][...] = 7
    for name, array in scene.arrays.items():
        assert (await array.to_host() == scene.hosts[name]).all(), name
    await until_idle(dev)


async def check_end(cell: Cell, scene: Scene, pool: WorkerPool) -> None:
    """Everything is accounted for, and no process is left but those that the pool keeps."""
    dev = scene.dev
    assert dev.state is (DeviceState.FAILED if cell.given_up else DeviceState.CLOSED)
    assert dev.generation == 1 + cell.rebuilt
    check_events(cell, scene)
    if cell.given_up or cell.closing:
        assert {name for name, array in scene.arrays.items() if array.state == "torn"} == cell.torn
        with pytest.raises(DeviceFailed if cell.given_up else DeviceClosed):
            await scene.arrays["apart"].to_host()
    assert not any(actor.unsettled for actor in dev.statistics().actors)
    assert pool.statistics().taken == 0
    of_other_tests = {process.pid for process in pooled_processes() if process not in pool._processes()}
    await until(lambda: len(set(children()) - of_other_tests) == pool.statistics().idle)


TOLD = (ContextWasLost, ContextRebuilt, WorkerReaped, ActorRestarted, DeviceGaveUp)


def check_events(cell: Cell, scene: Scene) -> None:
    """Whoever listened was told of everything, once."""
    assert Counter(type(event) for event in scene.events if type(event) in TOLD) == cell.news
    losses = [event for event in scene.events if isinstance(event, ContextWasLost)]
    assert [event.generation for event in losses] == list(range(1, 1 + cell.losses))
    for event in losses[cell.rebuild :]:
        assert event.status == cell.fault.status
        assert event.reported_by.startswith(cell.fault.reporter)
        assert "module" in event.actors
        assert event.in_flight
    rebuilt = [event for event in scene.events if isinstance(event, ContextRebuilt)]
    assert [event.generation for event in rebuilt] == list(range(2, 2 + cell.rebuilt))
    for event in rebuilt[:1]:
        assert event.by_standby == (cell.standby > 0 and not cell.hits_next)


async def run_cell(cell: Cell, pool: WorkerPool) -> None:
    """One cell, on a device of its own."""
    failure = pytest.raises(DeviceFailed) if cell.given_up else contextlib.nullcontext()
    close_timeout = CLOSE_SECONDS if cell.closing else 2.0
    start_timeout = START_SECONDS if cell.stops_start else _adoption.START_TIMEOUT
    with (
        trio.fail_after(DEADLINE),
        mock.patch.object(_watch, "STOPPED_SECONDS", STOPPED_SECONDS),
        mock.patch.object(_adoption, "START_TIMEOUT", start_timeout),
    ):
        async with trio.open_nursery() as nursery:
            with failure as caught:
                async with open_test_device(
                    standby=cell.standby,
                    restart_policy=POLICY,
                    close_timeout=close_timeout,
                    workers=pool if cell.fault.starts is None else None,  # those that are ready would not be spoilt
                ) as dev:
                    scene = await Scene.set(dev, nursery)
                    nursery.start_soon(play, cell, scene)
                    await scene.leave.wait()
        if cell.given_up:
            assert cell.fault.starts is not None
            assert caught.value.status == cell.fault.starts[0]
        await check_end(cell, scene, pool)


# --- the matrix -------------------------------------------------------------------------------------------------------

CELLS = [Cell(*each) for each in itertools.product(FAULTS, MOMENTS, (0, 1))]


def covers(cell: Cell) -> bool:
    """Whether a cell is among the few that meet every fault and every moment, with a standby and without.

    Of faults that are of one kind, each moment meets one; of all others each, by turns with a standby and without.
    """
    moment = MOMENTS.index(cell.moment)
    for kind in (KERNEL_FAULTS, START_FAULTS):
        if cell.fault in kind:
            return kind.index(cell.fault) == moment % len(kind)
    return (FAULTS.index(cell.fault) + moment) % 2 == cell.standby


def parameters(cells: list[Cell]) -> list[object]:
    """The cells, those that the hardware cannot be asked for marked."""
    marks = {True: [pytest.mark.sim_only], False: []}
    return [pytest.param(cell, id=str(cell), marks=marks[cell.fault.injected]) for cell in cells]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Workers for every cell, so that a cell costs no more processes than it loses."""
    with WorkerPool(backend=chosen_backend(), spares=1 if ON_GPU else 2) as pool:
        yield pool


@pytest.mark.parametrize("cell", parameters([cell for cell in CELLS if covers(cell)]))
async def test_each_fault_at_each_moment(cell, pool, record_property):
    await run_cell(cell, pool)
    record_property("cells", len(CELLS))  # of the matrix: see `pytest_terminal_summary` in conftest.py


@pytest.mark.soak
@pytest.mark.parametrize("cell", parameters(CELLS))
async def test_each_fault_at_each_moment_with_a_standby_and_without(cell, pool, record_property):
    await run_cell(cell, pool)
    record_property("cells", len(CELLS))
