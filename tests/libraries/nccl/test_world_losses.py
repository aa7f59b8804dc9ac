"""A member of a world is lost: what is torn, what goes on, and the next epoch."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import ContextLost, DeviceFailed, RestartPolicy, StaleArray, StaleKernel, WorldLost, read_only
from atomr_trio._device import supervisor, workers
from atomr_trio._device.device import core_of
from atomr_trio.libraries.nccl import actor, epochs, questions
from atomr_trio.testing import Delay, Hang, ReturnStatus, inject, inject_at_start
from support.rogue import WILD, compile_rogue, gated, kill_worker, next_generation, process_exists, until, worker_pid
from support.worlds import ANY_NUMBER, SETTINGS, get, open_world, put, quiet, tried, under_way

N = 1000
SHAPE = (-(-N // 128), 128)
MEMBERS = [2, 4]
NUMBERS = np.arange(N, dtype=np.int32)


class Scene:
    """A world, and for each member an input, an output, and an array that has nothing to do with it."""

    def __init__(self, devices: Any, world: Any) -> None:
        self.devices = devices
        self.world = world
        self.size = len(world)
        self.given = [NUMBERS + rank for rank in range(self.size)]
        self.total = sum(self.given)

    async def begin(self) -> Scene:
        self.arrays = await put(self.devices, *self.given)
        self.outputs = await put(self.devices, *(NUMBERS * 0 for _ in self.devices))
        self.apart = await put(self.devices, *(NUMBERS for _ in self.devices))
        self.touch = [(await compile_rogue(dev, "touch"))[0] for dev in self.devices]
        self.wild = [await tried(dev, "wild") for dev in self.devices]
        self.generations = [dev.generation for dev in self.devices]
        return self

    async def intact(self, lost: int) -> None:
        """After the loss of one member: inputs are what they were, outputs are torn, and the other workers go on."""
        assert [array.state for array in self.outputs] == ["torn"] * self.size
        for found, before in zip(await get(self.arrays), self.given, strict=True):
            assert np.array_equal(found, before)
        for array in self.outputs:
            with pytest.raises(StaleArray, match=r"epoch 1 of its world ended|generation 1 was lost"):
                await array.to_host()
        now = [dev.generation for dev in self.devices]
        assert now == [number + (rank == lost) for rank, number in enumerate(self.generations)]

    async def whole_again(self, epoch: int = 2) -> None:
        """The world has begun another epoch, and its collectives are right."""
        assert await self.world.wait_epoch(after=epoch - 1) == epoch
        for _ in range(2):
            await self.world.all_reduce(self.arrays, self.outputs)
            assert all(np.array_equal(found, self.total) for found in await get(self.outputs))


@pytest.fixture(params=[(count, standby) for count in MEMBERS for standby in (0, 1)], ids=str)
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    count, standby = request.param
    async with open_world(count, standby=standby) as (devices, world):
        if standby:
            for dev in devices:
                await dev.wait_standby()
        yield await Scene(devices, world).begin()


async def lose(scene: Scene, rank: int, how: str) -> None:
    """Lose the worker of a member, and wait until the next one is there."""
    dev = scene.devices[rank]
    generation = dev.generation
    if how == "fault":
        async with dev.lane() as lane:
            with pytest.raises(ContextLost):
                await scene.wild[rank].launch(1, 1, WILD, lane=lane)
    else:
        kill_worker(dev, signal.SIGSTOP if how == "stop" else signal.SIGKILL)
    await next_generation(dev, generation)


async def fail(errors: list[Exception], call: Any, *arguments: Any) -> None:
    try:
        await call(*arguments)
    except Exception as error:
        errors.append(error)


@pytest.mark.parametrize("how", ["kill", "fault"])
async def test_a_collective_in_flight_is_lost_on_all_members_and_the_world_goes_on(scene: Scene, how: str) -> None:
    lost, errors = scene.size - 1, []
    async with trio.open_nursery() as nursery:
        async with gated(scene.devices[lost]) as gate:
            scene.touch[lost].launch_nowait(*SHAPE, scene.outputs[lost], N)
            nursery.start_soon(fail, errors, scene.world.all_reduce, scene.arrays, scene.outputs)
            await quiet()
            assert not errors
            await lose(scene, lost, how)
            del gate
    (error,) = errors
    assert isinstance(error, WorldLost)
    assert error.epoch == 1
    assert list(error.causes) == [lost]
    assert isinstance(error.causes[lost], ContextLost)
    await scene.intact(lost)
    await scene.whole_again()


async def test_a_loss_while_nothing_is_under_way_costs_no_request(scene: Scene) -> None:
    await lose(scene, 0, "kill")
    await scene.world.all_reduce(scene.arrays, scene.outputs)
    assert all(np.array_equal(found, scene.total) for found in await get(scene.outputs))
    assert scene.world.epoch == 2
    assert [dev.generation for dev in scene.devices[1:]] == scene.generations[1:]


async def test_what_waits_runs_in_the_next_epoch(scene: Scene) -> None:
    """One is in flight and lost, and two that were called after it, when the world had no epoch, are right."""
    errors: list[Exception] = []
    others = [dev.empty(N, np.int32) for dev in scene.devices]
    async with trio.open_nursery() as nursery, gated(scene.devices[0]):
        scene.touch[0].launch_nowait(*SHAPE, scene.outputs[0], N)
        nursery.start_soon(fail, errors, scene.world.all_reduce, scene.arrays, scene.outputs)
        await quiet()
        kill_worker(scene.devices[0])
        await until(lambda: errors)
        with pytest.raises(trio.WouldBlock, match="between two epochs"):
            scene.world.all_reduce_nowait(scene.arrays, others)
        nursery.start_soon(fail, errors, scene.world.all_reduce, scene.arrays, scene.outputs)
        nursery.start_soon(fail, errors, scene.world.all_reduce, scene.arrays, others)
    assert [type(error) for error in errors] == [WorldLost]
    for arrays in (scene.outputs, others):
        assert all(np.array_equal(found, scene.total) for found in await get(arrays))


async def test_what_was_made_of_lost_outputs_is_torn_and_all_else_is_right() -> None:
    """Behind the collective, on the survivor: work on its output, work on that, a copy to the host; and work apart."""
    async with open_world(2) as (devices, world):
        scene = await Scene(devices, world).begin()
        source = 'extern "C" __global__ void add(int *x, const int *y, int n)'
        source += "{int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] += y[i];}"
        add = await devices[0].nvrtc.compile(source, "add")
        made, later, read = await put([devices[0]] * 3, NUMBERS, NUMBERS, NUMBERS)
        errors: dict[str, Exception | None] = {}

        async def call(name: str, function: Any, *arguments: Any) -> None:
            errors[name] = None
            try:
                await function(*arguments)
            except Exception as error:
                errors[name] = error

        async with devices[0].lane() as lane, trio.open_nursery() as nursery:
            async with gated(devices[1]):
                scene.touch[1].launch_nowait(*SHAPE, scene.outputs[1], N)
                nursery.start_soon(call, "collective", world.all_reduce, scene.arrays, scene.outputs)
                await quiet()
                nursery.start_soon(call, "launch", add.launch, *SHAPE, made, scene.outputs[0], N)
                await quiet()
                nursery.start_soon(call, "launch on that", add.launch, *SHAPE, later, made, N)
                await quiet()
                nursery.start_soon(call, "copy", scene.outputs[0].to_host)
                nursery.start_soon(call, "copy of that", later.to_host)
                async with devices[0].batch(lane=lane) as batch:
                    batch.launch(add, *SHAPE, scene.apart[0], scene.arrays[0], N)
                    batch.launch(add, *SHAPE, read, scene.apart[0], N)
                await quiet()
                kill_worker(devices[1])
                await next_generation(devices[1], 1)
        assert {name: type(error) for name, error in errors.items()} == dict.fromkeys(
            ("collective", "launch", "launch on that", "copy", "copy of that"), WorldLost
        )
        for array in (made, later):
            with pytest.raises(StaleArray, match="epoch 1 of its world ended"):
                await array.to_host()
        assert np.array_equal(await scene.apart[0].to_host(), NUMBERS * 2)
        assert np.array_equal(await read.to_host(), NUMBERS * 3)
        await scene.intact(1)
        await scene.whole_again()
        await made.copy_from(NUMBERS)
        await add.launch(*SHAPE, made, scene.outputs[0], N)
        assert np.array_equal(await made.to_host(), NUMBERS + scene.total)


async def test_launches_of_a_batch_on_lost_outputs_fail_and_what_they_wrote_is_torn() -> None:
    async with open_world(2) as (devices, world):
        scene = await Scene(devices, world).begin()
        (touch, _), (out, apart) = scene.touch, (scene.outputs[0], scene.apart[0])
        errors: list[Exception] = []

        async def launches() -> None:
            async with devices[0].batch() as batch:
                for _ in range(20):
                    batch.launch(touch, *SHAPE, out, N)
                    batch.launch(touch, *SHAPE, apart, N)

        async with trio.open_nursery() as nursery, gated(devices[1]):
            scene.touch[1].launch_nowait(*SHAPE, scene.outputs[1], N)
            nursery.start_soon(fail, errors, world.all_reduce, scene.arrays, scene.outputs)
            await quiet()
            nursery.start_soon(fail, errors, launches)
            await quiet()
            kill_worker(devices[1])
            await next_generation(devices[1], 1)
        assert [type(error) for error in errors] == [WorldLost] * 2
        assert out.state == "torn"
        assert np.array_equal(await apart.to_host(), NUMBERS + 20)
        await scene.whole_again()


async def test_a_collective_of_another_world_that_used_lost_outputs_is_torn_on_all_of_its_members() -> None:
    """Members 0 and 1 have the world that is lost; 0 and 2 have another one, whose input is an output of the first."""
    async with open_world(3) as (devices, whole):
        await whole.aclose()
        first = await devices.world([0, 1], nccl=SETTINGS)
        second = await devices.world([0, 2], nccl=SETTINGS)
        third = await devices.world([0, 2], nccl=SETTINGS)
        a, b, c = await put(devices, NUMBERS, NUMBERS, NUMBERS)
        outs = [dev.empty(N, np.int32) for dev in devices]
        made = [devices[0].empty(N, np.int32), devices[2].empty(N, np.int32)]
        errors: list[Exception] = []
        (touch,) = await compile_rogue(devices[1], "touch")
        async with trio.open_nursery() as nursery, gated(devices[1]):
            touch.launch_nowait(*SHAPE, b, N)
            nursery.start_soon(fail, errors, first.all_reduce, [a, b], outs[:2])
            await quiet()
            nursery.start_soon(fail, errors, second.all_reduce, [outs[0], c], made)
            await quiet()
            right = third.all_reduce_nowait([a, c])
            kill_worker(devices[1])
            await next_generation(devices[1], 1)
        assert [type(error) for error in errors] == [WorldLost] * 2
        assert [array.state for array in (*outs[:2], *made)] == ["torn"] * 4
        assert all(np.array_equal(found, NUMBERS * 2) for found in await get(right))
        assert [world.epoch for world in (second, third)] == [1, 1]
        assert all(np.array_equal(found, NUMBERS * 2) for found in await get(await second.all_reduce([a, c])))
        assert await first.wait_epoch(after=1) == 2


async def test_a_work_in_place_costs_the_arrays() -> None:
    async with open_world(2) as (devices, world):
        scene = await Scene(devices, world).begin()
        errors: list[Exception] = []
        async with trio.open_nursery() as nursery, gated(devices[1]):
            scene.touch[1].launch_nowait(*SHAPE, scene.arrays[1], N)
            nursery.start_soon(fail, errors, world.all_reduce, scene.arrays, scene.arrays)
            await quiet()
            kill_worker(devices[1])
            await next_generation(devices[1], 1)
        assert [array.state for array in scene.arrays] == ["torn"] * 2
        with pytest.raises(StaleArray):
            await world.all_reduce(scene.arrays, scene.arrays)
        for array, before in zip(scene.arrays, scene.given, strict=True):
            await array.copy_from(before)
        await scene.whole_again()


async def test_all_members_at_once_are_one_loss() -> None:
    async with open_world(2) as (devices, world):
        scene = await Scene(devices, world).begin()
        for dev in devices:
            kill_worker(dev)
        for dev in devices:
            await next_generation(dev, 1)
        await scene.whole_again()


@pytest.mark.sim_only
@pytest.mark.parametrize("hangs", ["ncclCommAbort", "ncclCommInitRankConfig"])
async def test_a_survivor_that_hangs_in_nccl_is_replaced(monkeypatch: pytest.MonkeyPatch, hangs: str) -> None:
    monkeypatch.setattr(epochs, "ABORT_SECONDS", 0.3)
    monkeypatch.setattr(actor, "INIT_SECONDS", 1.0)
    async with open_world(2) as (devices, world):
        scene = await Scene(devices, world).begin()
        inject(devices[0], hangs, Hang())
        kill_worker(devices[1])
        await next_generation(devices[0], 1)
        assert np.array_equal(await scene.apart[0].to_host(), NUMBERS)
        await world.all_reduce(scene.arrays, scene.outputs)
        assert all(np.array_equal(found, scene.total) for found in await get(scene.outputs))


@pytest.mark.sim_only
async def test_a_member_that_refuses_its_part_ends_the_epoch_and_keeps_its_worker() -> None:
    async with open_world(2) as (devices, world):
        scene = await Scene(devices, world).begin()
        await world.all_reduce(scene.arrays, scene.outputs)
        inject(devices[1], "ncclAllReduce", ReturnStatus(3))
        with pytest.raises(WorldLost) as lost:
            await world.all_reduce(scene.arrays, scene.outputs)
        assert list(lost.value.causes) == [1]
        assert "ncclInternalError" in str(lost.value.causes[1])
        await scene.whole_again()
        assert [dev.generation for dev in devices] == [1, 1]


@pytest.mark.sim_only
async def test_a_member_that_is_lost_while_the_world_begins_is_waited_for() -> None:
    with inject_at_start("ncclCommInitRankConfig", Delay(0.5), workers=2):
        async with open_world(2) as (devices, first):
            await first.aclose()
            worlds: list[Any] = []

            async def begin() -> None:
                worlds.append(await devices.world())

            inject(devices[1], "ncclCommInitRankConfig", Hang())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(begin)
                await trio.sleep(0.1)
                kill_worker(devices[1])
            arrays = await put(devices, NUMBERS, NUMBERS)
            assert all(np.array_equal(found, NUMBERS * 2) for found in await get(await worlds[0].all_reduce(arrays)))


async def test_closing_while_a_collective_waits_for_a_lost_member_ends_in_time() -> None:
    async with open_world(2, close_timeout=1.0) as (devices, world):
        scene = await Scene(devices, world).begin()
        errors: list[Exception] = []
        pids = [worker_pid(dev) for dev in devices]
        async with trio.open_nursery() as nursery, gated(devices[1]):
            scene.touch[1].launch_nowait(*SHAPE, scene.outputs[1], N)
            nursery.start_soon(fail, errors, world.all_reduce, scene.arrays, scene.outputs)
            await quiet()
            kill_worker(devices[1])
            with trio.move_on_after(0.01):
                await world.aclose()
    assert [type(error) for error in errors] == [WorldLost]
    assert not any(process_exists(pid) for pid in pids)


async def test_a_world_of_one_member_waits_for_its_next_generation() -> None:
    async with open_world(2) as (devices, _):
        one = await devices.world([1], nccl=SETTINGS)
        (array,) = await put(devices[1:], NUMBERS)
        kill_worker(devices[1])
        await next_generation(devices[1], 1)
        (out,) = await one.all_reduce([array])
        assert np.array_equal(await out.to_host(), NUMBERS)
        assert core_of(devices[1]).generation == one.epoch == 2


# --- time, budgets, standbys ------------------------------------------------------------------------------------------


class Spawned:
    """Stands for `WorkerProcess`, and notes each start: the device, what it loads meanwhile, whether a world is up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: Any) -> None:
        self.starts: list[tuple[int, tuple[str, ...], bool]] = []
        self._world = world
        self._real = workers.WorkerProcess
        monkeypatch.setattr(workers, "WorkerProcess", self)

    def __call__(self, backend: Any, device: int, checks: Any = (), libraries: Any = ()) -> Any:
        self.starts.append((device, tuple(libraries), self._world._actor.epoch_up))
        return self._real(backend, device, checks, libraries)


@pytest.mark.parametrize("standby", [0, 1])
async def test_a_new_worker_loads_nccl_and_a_new_standby_waits_for_the_communicator(
    monkeypatch: pytest.MonkeyPatch, standby: int
) -> None:
    monkeypatch.setattr(supervisor, "_HURRY_SECONDS", 60.0)
    async with open_world(2, standby=standby) as (devices, world):
        if standby:
            for dev in devices:
                await dev.wait_standby()
        spawned = Spawned(monkeypatch, world)
        kill_worker(devices[1])
        await world.wait_epoch(after=1)
        if standby:
            await devices[1].wait_standby()
        assert spawned.starts == [(1, ("nccl",), bool(standby))]
        await world.aclose()
        kill_worker(devices[0])
        await next_generation(devices[0], 1)
        if standby:
            await devices[0].wait_standby()
        assert spawned.starts[1:] == [(0, (), False)]


@pytest.mark.long
@pytest.mark.sim_only
async def test_a_new_standby_does_not_wait_long_for_a_communicator_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_HURRY_SECONDS", 0.05)
    monkeypatch.setattr(actor, "INIT_SECONDS", 5.0)
    async with open_world(2, standby=1) as (devices, world):
        for dev in devices:
            await dev.wait_standby()
        spawned = Spawned(monkeypatch, world)
        inject(devices[0], "ncclCommInitRankConfig", Hang())
        kill_worker(devices[1])
        await next_generation(devices[1], 1)
        await devices[1].wait_standby()
        assert spawned.starts == [(1, ("nccl",), False)]


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds have a short limit, as by `hang_timeout`; their devices have none, for a module may take long to load."""
    monkeypatch.setattr(actor.WorldActor, "_limit", 0.4)


def test_the_limit_of_a_world_is_the_shortest_of_its_members() -> None:
    def cores(*limits: float | None) -> Any:
        return [SimpleNamespace(options=SimpleNamespace(hang_timeout=limit)) for limit in limits]

    found = [actor.WorldActor(None, cores(*limits), "")._limit for limits in ((None, None), (3.0, None), (3.0, 2.0))]
    assert found == [None, 3.0, 2.0]


@pytest.mark.sim_only
async def test_a_collective_that_hangs_though_every_member_has_begun_ends_its_epoch_alone(
    limited: None,
) -> None:
    """The call of one member claims to have succeeded and does nothing, so that the other one waits for ever."""
    async with open_world(2) as (devices, world):
        scene = await Scene(devices, world).begin()
        await world.all_reduce(scene.arrays, scene.outputs)
        inject(devices[1], "ncclAllReduce", ReturnStatus(0))
        with pytest.raises(WorldLost, match=r"ran longer than hang_timeout=0\.4 s") as lost:
            await world.all_reduce(scene.arrays, scene.outputs)
        assert list(lost.value.causes) == [0]
        assert [array.state for array in scene.outputs] == ["torn"] * 2
        await scene.whole_again()
        assert [dev.generation for dev in devices] == [1, 1]


async def test_a_slow_member_is_waited_for_and_nothing_is_lost(limited: None) -> None:
    """The first call of a kind loads its kernel, and the driver lets nothing else of the device begin until that is
    done, so it must not come behind a kernel that spins until something else has run."""
    async with open_world(2) as (devices, world):
        scene = await Scene(devices, world).begin()
        await world.all_reduce(scene.arrays, scene.outputs)
        (spin,) = await compile_rogue(devices[1], "spin")
        (word,) = await put(devices[1:], np.zeros(1, np.int32))
        ended: list[str] = []

        async def call() -> None:
            await world.all_reduce(scene.arrays, scene.outputs)
            ended.append("collective")

        async with devices[1].lane() as key, trio.open_nursery() as nursery:
            spinning = devices[1].batch()
            async with spinning as batch:
                batch.launch(spin, 1, 1, word.address, touches=[scene.arrays[1]], hang_timeout=60)
                nursery.start_soon(call)
                await trio.sleep(1.0)
                assert ended == []
                async with devices[1].batch(lane=key) as opening:
                    opening.fill(word, 1)
        assert all(np.array_equal(found, scene.total) for found in await get(scene.outputs))
        assert (world.epoch, [dev.generation for dev in devices]) == (1, [1, 1])


async def test_a_member_without_restarts_left_ends_the_world_with_the_group() -> None:
    errors: list[Exception] = []

    async def program() -> None:
        async with open_world(2, restart_policy=RestartPolicy(intensity=0)) as (devices, world):
            scene = await Scene(devices, world).begin()
            async with trio.open_nursery() as nursery, gated(devices[1]):
                scene.touch[1].launch_nowait(*SHAPE, scene.outputs[1], N)
                nursery.start_soon(fail, errors, world.all_reduce, scene.arrays, scene.outputs)
                await under_way(world)
                kill_worker(devices[1])
                await trio.sleep_forever()

    with pytest.raises(DeviceFailed):
        await program()
    assert [type(error) for error in errors] == [WorldLost]


async def test_a_world_of_a_dropped_member_ends_and_the_others_go_on() -> None:
    policy = RestartPolicy(intensity=0)
    async with open_world(2, restart_policy=policy, group_policy=ANY_NUMBER, on_device_failed="drop") as (
        devices,
        world,
    ):
        scene = await Scene(devices, world).begin()
        kill_worker(devices[1])
        with pytest.raises(DeviceFailed):
            await world.wait_epoch(after=1)
        with pytest.raises(DeviceFailed):
            await world.all_reduce(scene.arrays)
        alone = await devices.world(nccl=SETTINGS)
        assert alone.members == (devices[0],)
        (found,) = await get(await alone.all_reduce(scene.arrays[:1]))
        assert np.array_equal(found, scene.given[0])


async def test_a_call_that_is_cancelled_while_it_waits_for_an_epoch_never_runs() -> None:
    async with open_world(2) as (devices, world):
        scene = await Scene(devices, world).begin()
        kill_worker(devices[1])
        await until(lambda: not world._actor.epoch_up)
        with trio.move_on_after(0):
            await world.all_reduce(scene.arrays, scene.outputs)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.all_reduce, scene.arrays, scene.outputs)
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await world.wait_epoch(after=1)
        assert all(np.array_equal(found, NUMBERS * 0) for found in await get(scene.outputs))
        await scene.whole_again()


async def test_a_standby_is_warmed_by_a_communicator_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Noted(questions.Question):
        def __init__(self, generation: Any, verb: Any, *fields: Any, **options: Any) -> None:
            self.of = generation
            if verb.name == "warm":
                asked.append(self)
            super().__init__(generation, verb, *fields, **options)

    monkeypatch.setattr(actor, "Question", Noted)
    async with open_world(2, standby=1) as (devices, world):
        scene = await Scene(devices, world).begin()

        def warm() -> set[Any]:
            """One that gets ready while the world begins is asked twice, and is warm once."""
            return {question.of for question in asked if question.answer is not None}

        for dev in devices:
            await dev.wait_standby()
        await until(lambda: len(warm()) == 2)
        kill_worker(devices[1])
        await scene.whole_again()
        await devices[1].wait_standby()
        await until(lambda: len(warm()) == 3)
        assert all(question.failure is None for question in asked)


async def test_a_collective_leaves_the_short_way_open() -> None:
    async with open_world(2) as (devices, world):
        scene = await Scene(devices, world).begin()
        array = scene.arrays[0]
        for _ in range(3):
            await scene.touch[0].launch(*SHAPE, array, N)
            token = core_of(devices[0]).current.token
            assert array._storage.block.fast == token
            await world.all_reduce(scene.arrays, scene.outputs)
            assert array._storage.block.fast == token


async def test_variables_of_a_module_are_stale_when_its_kernel_has_run_on_lost_outputs() -> None:
    source = """
    extern "C" { __device__ int seen; }
    extern "C" __global__ void look(const int *x) { seen = x[0]; }
    extern "C" __global__ void show(int *y) { y[0] = seen; }
    """
    async with open_world(2) as (devices, world):
        scene = await Scene(devices, world).begin()
        program = await devices[0].nvrtc.compile_program(source)
        look, show, variable = program["look"], program["show"], program.global_("seen", np.int32)
        (shown,) = await put(devices[:1], np.zeros(1, np.int32))
        await variable.copy_from(np.array([5], np.int32))
        errors: list[Exception] = []
        async with trio.open_nursery() as nursery, gated(devices[1]):
            scene.touch[1].launch_nowait(*SHAPE, scene.outputs[1], N)
            nursery.start_soon(fail, errors, world.all_reduce, scene.arrays, scene.outputs)
            await under_way(world)
            look.launch_nowait(1, 1, read_only(scene.outputs[0]))
            nursery.start_soon(fail, errors, show.launch, 1, 1, shown)
            await quiet()
            kill_worker(devices[1])
            await next_generation(devices[1], 1)
        assert [type(error) for error in errors] == [WorldLost] * 2
        assert shown.state == "torn"
        with pytest.raises(StaleArray):
            await variable.to_host()
        with pytest.raises(StaleKernel):
            await show.launch(1, 1, shown)
        await variable.copy_from(np.array([6], np.int32))
        await shown.copy_from(np.zeros(1, np.int32))
        await show.launch(1, 1, shown)
        assert await shown.to_host() == [6]
