"""Collectives that go the short way: calls that are repeated with the same arrays, as ready records of all members."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import (
    ContextLost,
    EpochBegan,
    EpochEnded,
    InvalidArgument,
    MemberEvent,
    StaleArray,
    WorldLost,
    premultiplied_sum,
    read_only,
)
from atomr_trio._calls.launching import LaunchPath
from atomr_trio._device.device import core_of
from atomr_trio._generation.generation import Generation
from atomr_trio._wire.backends import NATIVE_VARIABLE
from atomr_trio._wire.protocol import LANE_COMPUTE
from atomr_trio.libraries.nccl import actor, ready, records, remembered
from atomr_trio.libraries.nccl.collectives import Published
from atomr_trio.testing import ReturnStatus, inject
from support.rogue import compile_rogue, gated, kill_worker, next_generation, until
from support.worlds import get, open_world, put, quiet, under_way

N = 24
SHAPE = (1, 128)
NUMBERS = np.arange(N, dtype=np.int32)


class Ways:
    """How many collectives went each way."""

    def __init__(self) -> None:
        self.short = self.general = 0


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    counted = Ways()
    begin, publish = ready.ReadyCall.begin, Published.publish

    def begins(call: Any, given: Any, *, heard: bool) -> Any:
        found = begin(call, given, heard=heard)
        counted.short += found is not None
        return found

    def publishes(collective: Any, epoch: Any) -> None:
        counted.general += 1
        publish(collective, epoch)

    monkeypatch.setattr(ready.ReadyCall, "begin", begins)
    monkeypatch.setattr(Published, "publish", publishes)
    return counted


@contextlib.contextmanager
def short_alone(ways: Ways) -> Iterator[None]:
    """What is called here goes the short way."""
    before = ways.general
    yield
    assert ways.general == before


def verbs(world: Any, x: Any, y: Any, wide: Any, parts: Any, size: int) -> dict[str, tuple[Any, Any]]:
    """Calls of each verb with outputs, and what these are then, by the inputs of all ranks."""

    def total(given: Sequence[Any]) -> Any:
        return sum(given)

    def cut(array: Any, rank: int) -> Any:
        return np.split(array, size)[rank]

    return {
        "all_reduce": (lambda: world.all_reduce(x, y), lambda g: [total(g)] * size),
        "reduce": (lambda: world.reduce(x, y[1], root=1), lambda g: [None, total(g)] + [None] * (size - 2)),
        "all_gather": (lambda: world.all_gather(x, wide), lambda g: [np.stack(g)] * size),
        "reduce_scatter": (lambda: world.reduce_scatter(x, parts), lambda g: [cut(total(g), r) for r in range(size)]),
        "gather": (lambda: world.gather(x, wide[0]), lambda g: [np.stack(g)] + [None] * (size - 1)),
        "scatter": (lambda: world.scatter(x[0], parts), lambda g: [cut(g[0], r) for r in range(size)]),
        "all_to_all": (
            lambda: world.all_to_all(x, y),
            lambda g: [np.concatenate([cut(each, r) for each in g]) for r in range(size)],
        ),
    }


VERBS = ("all_reduce", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
OUTPUTS = {"all_gather": "wide", "gather": "wide", "reduce_scatter": "parts", "scatter": "parts"}


@pytest.mark.parametrize("size", [2, 4])
async def test_every_verb_goes_the_short_way_from_its_third_call_on(ways: Ways, size: int) -> None:
    async with open_world(size) as (devices, world):
        x = await put(devices, *[NUMBERS] * size)
        arrays = {
            "y": [dev.empty(N, np.int32) for dev in devices],
            "wide": [dev.empty((size, N), np.int32) for dev in devices],
            "parts": [dev.empty(N // size, np.int32) for dev in devices],
        }
        table = verbs(world, x, arrays["y"], arrays["wide"], arrays["parts"], size)
        for name in VERBS:
            call, expected = table[name]
            for turn in range(5):
                given = [NUMBERS * (turn + 1) + rank for rank in range(size)]
                for array, numbers in zip(x, given, strict=True):
                    await array.copy_from(numbers)
                before = ways.short
                await call()
                assert ways.short - before == (turn > 1), (name, turn)
                outputs = arrays[OUTPUTS.get(name, "y")]
                for array, wanted in zip(outputs, expected(given), strict=True):
                    if wanted is not None:
                        assert np.array_equal(await array.to_host(), wanted), (name, turn)
        y = arrays["y"]
        for turn in range(5):
            for array, numbers in zip(x, range(size), strict=True):
                await array.fill(numbers + turn)
            before = ways.short
            await world.exchange([(x[rank], y[rank - 1]) for rank in range(size)])
            assert ways.short - before == (turn > 1)
            found = [int(each[0]) - turn for each in await get(y)]
            assert found == [*range(1, size), 0]
            await world.send(x[0], y[1])
            assert (await y[1].to_host()).tolist() == [turn] * N
            await world.recv(y[0], x[1])
            assert (await y[0].to_host()).tolist() == [turn + 1] * N
        for turn in range(5):
            await x[0].copy_from(NUMBERS + turn)
            await world.broadcast(x)
            assert all(np.array_equal(found, NUMBERS + turn) for found in await get(x))
        for turn in range(5):  # in place, with numbers of its own
            for array in x:
                await array.fill(turn + 1)
            await world.all_reduce(x, x, op=premultiplied_sum(3))
            assert all(np.array_equal(found, np.full(N, 3 * size * (turn + 1))) for found in await get(x))


@pytest.mark.parametrize("size", [2, 4])
async def test_calls_with_new_outputs_go_the_short_way_too(ways: Ways, size: int) -> None:
    async with open_world(size) as (devices, world):
        x = await put(devices, *[NUMBERS] * size)
        table: dict[str, Any] = {
            "all_reduce": lambda: world.all_reduce(x),
            "reduce": lambda: world.reduce(x, root=1),
            "all_gather": lambda: world.all_gather(x),
            "reduce_scatter": lambda: world.reduce_scatter(x),
            "gather": lambda: world.gather(x),
            "scatter": lambda: world.scatter(x[1], root=1),
            "all_to_all": lambda: world.all_to_all(x),
        }
        wanted = verbs(world, x, x, x, x, size)
        for name, call in table.items():
            kept, seen = [], []
            for turn in range(6):
                given = [NUMBERS * (turn + 1) + rank for rank in range(size)]
                for array, numbers in zip(x, given, strict=True):
                    await array.copy_from(numbers)
                before = ways.short
                made = await call()
                assert ways.short - before == (turn > 1), (name, turn)
                expected = [
                    each for each in wanted[name][1](given if name != "scatter" else given[1:]) if each is not None
                ]
                made = made if isinstance(made, tuple) else (made,)
                assert [each.shape for each in made] == [each.shape for each in expected]
                kept.append(made)
                seen.append(expected)
            for made, expected in zip(kept, seen, strict=True):  # each has memory of its own
                for array, numbers in zip(made, expected, strict=True):
                    assert np.array_equal(await array.to_host(), numbers), name


async def test_new_outputs_that_are_dropped_give_their_memory_to_the_next(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        x = await put(devices, NUMBERS, NUMBERS)
        for _ in range(3):
            await world.all_reduce(x)
        used = [dev.statistics().memory.in_use for dev in devices]
        with short_alone(ways):
            for _ in range(300):
                await world.all_reduce(x)
            for _ in range(20):
                total = world.all_reduce_nowait(x)
        assert all(np.array_equal(found, 2 * NUMBERS) for found in await get(total))
        del total
        assert used == [dev.statistics().memory.in_use for dev in devices]


async def test_a_call_with_new_outputs_that_is_lost_leaves_its_inputs(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        x = await put(devices, NUMBERS, NUMBERS)
        for _ in range(3):
            await world.all_reduce(x)
        kill_worker(devices[1], signal.SIGSTOP)
        with short_alone(ways):
            total = world.all_reduce_nowait(x)
        kill_worker(devices[1])
        await next_generation(devices[1], 1)
        assert [array.state for array in total] == ["torn", "torn"]
        for _ in range(3):
            total = await world.all_reduce(x)
        assert all(np.array_equal(found, 2 * NUMBERS) for found in await get(total))
        assert all(np.array_equal(found, NUMBERS) for found in await get(x))


async def test_calls_that_nobody_waits_for_and_awaited_ones_keep_their_order(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        x, y = [await put(devices, NUMBERS * 0 + 1, NUMBERS * 0 + 1) for _ in range(2)]
        for _ in range(3):
            await world.all_reduce(x, y)
            await world.all_reduce(y, x, op="max")
        for array in x:
            await array.fill(1)
        await world.barrier()
        with short_alone(ways):
            for _ in range(20):
                world.all_reduce_nowait(x, y)
                await world.all_reduce(y, x, op="max")
        assert all(np.array_equal(found, NUMBERS * 0 + 2**20) for found in await get(x))


async def test_more_calls_than_a_lane_takes_are_refused_or_done(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        x = await put(devices, NUMBERS, NUMBERS[::-1])
        for _ in range(3):
            await world.all_reduce(x, x, op="max")
        await world.all_reduce(x, x, op="max")
        done = 0
        kill_worker(devices[1], signal.SIGSTOP)
        with contextlib.suppress(trio.WouldBlock):
            while done < 2000:
                world.all_reduce_nowait(x, x, op="max")
                done += 1
        kill_worker(devices[1], signal.SIGCONT)
        assert 200 < done < 2000
        await world.all_reduce(x, x, op="max")
        assert all(np.array_equal(found, np.maximum(NUMBERS, NUMBERS[::-1])) for found in await get(x))


async def test_a_call_behind_work_of_another_lane_goes_the_general_way_and_waits(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        x = await put(devices, NUMBERS, NUMBERS)
        y = [dev.empty(N, np.int32) for dev in devices]
        for _ in range(3):
            await world.all_reduce(x, y)
        (touch,) = await compile_rogue(devices[0], "touch")
        general = ways.general
        async with gated(devices[0]) as gate:
            touch.launch_nowait(*SHAPE, x[0], N)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.all_reduce, x, y)
                await under_way(world)
                assert ways.general == general + 1
                await gate.open()
        assert all(np.array_equal(found, 2 * NUMBERS + 1) for found in await get(y))
        await world.all_reduce(x, y)
        with short_alone(ways):
            await world.all_reduce(x, y)


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("reads", [False, True])
async def test_an_array_that_goes_short_on_another_lane_is_taken_over_once_it_is_idle(
    ways: Ways, reads: bool, awaited: bool
) -> None:
    async with open_world(2) as (devices, world):
        x = await put(devices, NUMBERS, NUMBERS)
        (touch,) = await compile_rogue(devices[0], "touch")
        argument = read_only(x[0]) if reads else x[0]
        token = core_of(devices[0]).current.token
        for _ in range(3):
            await touch.launch(*SHAPE, argument, N)
            await world.all_reduce(x, x)
        with short_alone(ways):
            await touch.launch(*SHAPE, argument, N)
            await world.all_reduce(x, x)
        for array in x:
            await array.copy_from(NUMBERS)
        await touch.launch(*SHAPE, argument, N)
        general = ways.general
        async with gated(devices[0]) as gate:
            async with trio.open_nursery() as nursery:
                if awaited:
                    nursery.start_soon(touch.launch, *SHAPE, argument, N)
                    await quiet()
                else:
                    touch.launch_nowait(*SHAPE, argument, N)
                assert x[0]._storage.block.fast == token
                nursery.start_soon(world.all_reduce, x, x)
                await under_way(world)
                assert ways.general == general + 1
                await gate.open()
        assert all(np.array_equal(found, 2 * NUMBERS + 2) for found in await get(x))


async def test_an_array_goes_back_to_its_lane_when_no_call_uses_it_any_more(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(2) as (devices, world):
        x = await put(devices, NUMBERS, NUMBERS)
        block, token = x[0]._storage.block, core_of(devices[0]).current.token
        (touch,) = await compile_rogue(devices[0], "touch")
        for _ in range(3):
            await touch.launch(*SHAPE, x[0], N)
            await world.all_reduce(x, x, op="max")
        kill_worker(devices[1], signal.SIGSTOP)
        with short_alone(ways):
            world.all_reduce_nowait(x, x, op="max")
        path = world._actor.epoch.paths(world._actor.lanes)[0][0]
        path.give_back([(block, LANE_COMPUTE)])
        assert block.fast == path.token
        kill_worker(devices[1], signal.SIGCONT)
        await until(lambda: world._actor.idle)
        await world.all_reduce(x, x, op="max")
        await touch.launch(*SHAPE, x[0], N)
        assert block.fast == token
        assert np.array_equal(await x[0].to_host(), NUMBERS + 4)
        with monkeypatch.context() as patch:  # as long as a lost worker may still use memory
            patch.setattr(path.generation.arena, "quarantine", {1: (block.address,)})
            assert not path.take_over([(block, LANE_COMPUTE)])
        assert block.fast == 0  # which the copy to the host left


async def test_a_batch_is_remembered_as_its_calls_in_their_order(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        rows = [await put(devices, np.tile(NUMBERS, (10, 1)), np.tile(NUMBERS, (10, 1))) for _ in range(2)]
        calls = [([array[row] for array in rows[0]], [array[row] for array in rows[1]]) for row in range(10)]

        async def make(count: int) -> None:
            async with world.batch() as batch:
                for sources, outputs in calls[:count]:
                    assert batch.all_reduce(sources, outputs) == tuple(outputs)

        for turn in range(4):
            await rows[0][0].fill(turn)
            with short_alone(ways) if turn > 1 else contextlib.nullcontext():
                await make(10)
            assert all(np.array_equal(found, np.tile(NUMBERS + turn, (10, 1))) for found in await get(rows[1]))
        await make(5)  # the beginning of a longer one
        with short_alone(ways):
            await make(5)
            await make(10)
        # One more call than is known, then one that no record has room for.
        async with world.batch() as batch:
            for sources, outputs in calls:
                batch.all_reduce(sources, outputs)
            (total,) = batch.all_reduce(rows[0], [dev.empty((10, N), np.int32) for dev in devices])[:1]
        assert np.array_equal(await total.to_host(), np.tile(NUMBERS + 3, (10, 1)))
        for _ in range(3):
            async with world.batch() as batch:
                batch.all_reduce(*calls[0])
                batch.all_reduce(rows[0])  # its outputs are new, so it is never remembered
                batch.all_reduce(*calls[1])


async def test_a_list_that_changes_after_a_call_of_a_batch_changes_nothing(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        x, y, other = [await put(devices, NUMBERS + number, NUMBERS + number) for number in (0, 1, 7)]
        (touch,) = await compile_rogue(devices[0], "touch")
        for turn in range(4):
            arrays = list(x)
            async with world.batch() as batch:
                batch.all_reduce(arrays, y)
                arrays[0] = other[0]
                if turn == 3:  # so that it goes the general way, and is planned
                    world._memory.clear()
                    touch.launch_nowait(*SHAPE, x[0], N)
            expected = 2 * NUMBERS + (turn == 3)
            assert all(np.array_equal(found, expected) for found in await get(y))
        await world.aclose()
        empty = world.batch()
        with pytest.raises(InvalidArgument, match="was closed"):
            await empty.__aenter__()


async def test_a_batch_that_was_refused_is_refused_again(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        x, y, z = [await put(devices, NUMBERS, NUMBERS) for _ in range(3)]

        async def make(*calls: tuple[Any, Any], error: Exception | None = None) -> Any:
            async with world.batch() as batch:
                for source, output in calls:
                    batch.all_reduce(source, output)
                if error is not None:
                    raise error
            return batch

        for _ in range(3):
            with pytest.raises(InvalidArgument, match="use the same memory"):
                await make((x, y), (y, z))
        for _ in range(3):
            batch = await make((x, y))
        with pytest.raises(InvalidArgument, match="inside of its"):
            batch.all_reduce(x, z)
        with pytest.raises(RuntimeError, match="of the block"):
            await make((x, y), error=RuntimeError("of the block"))
        y[0].free()
        with pytest.raises(InvalidArgument, match="was freed"):
            await make((x, y))


async def test_what_is_remembered_of_batches_is_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_MOST_KNOWN", 3)
    async with open_world(2) as (devices, world):
        arrays = [await put(devices, NUMBERS, NUMBERS) for _ in range(6)]
        for _ in range(3):
            for source, output in itertools.pairwise(arrays):
                async with world.batch() as batch:
                    batch.all_reduce(source, output, op="max")
                    batch.broadcast(arrays[-1] if source is not arrays[-2] else arrays[0])
        assert len(world._memory._batches) <= 3
        assert all(np.array_equal(found, NUMBERS) for found in await get(arrays[3]))
        async with world.batch() as batch:
            batch.all_reduce(arrays[0], arrays[1], op="max")
        before = len(world._memory._batches)
        arrays[1] = []
        del source, output
        assert len(world._memory._batches) < before


@pytest.mark.parametrize("standby", [0, 1])
async def test_a_call_in_flight_is_lost_on_all_members_and_the_next_epoch_has_its_own(ways: Ways, standby: int) -> None:
    """A stopped worker reads no record, so the other one waits in the collective."""
    async with open_world(2, standby=standby) as (devices, world):
        x, apart = [await put(devices, NUMBERS, NUMBERS + 1) for _ in range(2)]
        y = [dev.empty(N, np.int32) for dev in devices]
        (touch,) = await compile_rogue(devices[0], "touch")
        for _ in range(3):
            await world.all_reduce(x, y)
            await touch.launch(*SHAPE, apart[0], N)
        errors: list[Exception] = []

        async def fail(call: Any, *arguments: Any) -> None:
            with pytest.raises((WorldLost, ContextLost)) as raised:
                await call(*arguments)
            errors.append(raised.value)

        short = ways.short
        kill_worker(devices[1], signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, world.all_reduce, x, y)
            await under_way(world)
            nursery.start_soon(fail, touch.launch, *SHAPE, y[0], N)  # behind it, on what it writes
            await quiet()
            assert (ways.short - short, errors) == (1, [])
            kill_worker(devices[1])
        assert {type(error) for error in errors} == {WorldLost}
        assert [array.state for array in y] == ["torn", "torn"]
        with pytest.raises(StaleArray, match="epoch 1 of its world ended"):
            await y[0].to_host()
        await next_generation(devices[1], 1)
        assert [found.tolist() for found in await get(x)] == [NUMBERS.tolist(), (NUMBERS + 1).tolist()]
        assert np.array_equal(await apart[0].to_host(), NUMBERS + 3)
        assert devices[0].generation == 1
        assert await world.wait_epoch(after=1) == 2
        (before,) = world._memory._calls.values()
        assert before.ready.epoch is None  # so that nothing holds the lost generation
        for _ in range(2):
            await world.all_reduce(x, y)
        with short_alone(ways):
            await world.all_reduce(x, y)
            world.all_reduce_nowait(x, y)
            await world.all_reduce(x, y)
        assert all(np.array_equal(found, 2 * NUMBERS + 1) for found in await get(y))


@pytest.mark.sim_only
async def test_a_member_that_refuses_its_part_ends_the_epoch_and_keeps_its_worker(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        x = await put(devices, NUMBERS, NUMBERS)
        y = [dev.empty(N, np.int32) for dev in devices]
        for _ in range(3):
            await world.all_reduce(x, y)
        for turn in range(2):
            inject(devices[1], "ncclAllReduce", ReturnStatus(3))
            with short_alone(ways), pytest.raises(WorldLost) as lost:
                await world.all_reduce(x, y)
            assert list(lost.value.causes) == [1]
            assert "ncclInternalError" in str(lost.value.causes[1])
            assert [array.state for array in y] == ["torn"] * 2
            await world.wait_epoch(after=turn + 1)
            for _ in range(3):
                await world.all_reduce(x, y)
            assert all(np.array_equal(found, 2 * NUMBERS) for found in await get(y))
        assert [dev.generation for dev in devices] == [1, 1]


@pytest.mark.sim_only
@pytest.mark.parametrize("native", ["0", "1"], ids=["python", "native"])
async def test_a_group_that_is_refused_is_ended_and_ends_the_epoch(
    ways: Ways, monkeypatch: pytest.MonkeyPatch, native: str
) -> None:
    monkeypatch.setenv(NATIVE_VARIABLE, native)
    async with open_world(2) as (devices, world):
        assert {dev.info.python_loop is None for dev in devices} == {native == "1"}
        x, y, z = [await put(devices, NUMBERS, NUMBERS) for _ in range(3)]

        async def make() -> None:
            async with world.batch() as batch:
                batch.all_reduce(x, y)
                batch.all_reduce(x, z, op="max")

        for _ in range(4):
            await make()
        for turn, function in enumerate(("ncclAllReduce", "ncclGroupStart"), 1):
            inject(devices[1], function, ReturnStatus(3))
            with short_alone(ways), pytest.raises(WorldLost) as lost:
                await make()
            assert list(lost.value.causes) == [1]
            assert "ncclInternalError" in str(lost.value.causes[1])
            assert [array.state for array in (*y, *z)] == ["torn"] * 4
            await world.wait_epoch(after=turn)
            for _ in range(4):
                await make()
            assert all(np.array_equal(found, 2 * NUMBERS) for found in await get(y))
            assert all(np.array_equal(found, NUMBERS) for found in await get(z))
        assert [dev.generation for dev in devices] == [1, 1]


async def test_so_many_groups_are_under_way_at_most_that_a_stream_has_room_for_them(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        x, y, z = [await put(devices, NUMBERS, NUMBERS) for _ in range(3)]

        async def make() -> None:
            async with world.batch() as batch:
                batch.all_reduce(x, y)
                batch.all_reduce(x, z)

        for _ in range(4):
            await make()
        limit = records.ready_limit(2)
        assert limit * records.entries_of_group(2) <= 512
        kill_worker(devices[1], signal.SIGSTOP)
        general = ways.general
        async with trio.open_nursery() as nursery:
            for _ in range(limit + 5):
                nursery.start_soon(make)
            await quiet()
            assert ways.general == general + 5
            kill_worker(devices[1], signal.SIGCONT)
        assert all(np.array_equal(found, 2 * NUMBERS) for found in await get(y))


async def test_the_events_of_a_group_tell_of_epochs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with open_world(2) as (devices, world):
        found: list[Any] = []
        async with devices.events() as events:
            kill_worker(devices[0])
            async for event in events:
                if isinstance(event, EpochBegan | EpochEnded):
                    found.append(event)
                if isinstance(event, EpochBegan):
                    break
            ended, began = found
            assert (ended.world, ended.epoch, ended.lost) == ("world of devices 0, 1", 1, 0)
            assert [type(cause) for cause in ended.causes.values()] == [ContextLost]
            assert (began.world, began.epoch) == (ended.world, 2)
            assert 0 < began.members_seconds < began.seconds < 60
            await world.aclose()
            last = await anext(events)
            while isinstance(last, MemberEvent):
                last = await anext(events)
            assert last == EpochEnded(world=ended.world, epoch=2, causes={}, lost=0)
    assert any("epoch 2 after" in record.getMessage() for record in caplog.records)


async def test_a_caller_that_is_cancelled_leaves_a_call_that_ends(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        x = await put(devices, NUMBERS, NUMBERS)
        y = [dev.empty(N, np.int32) for dev in devices]
        for _ in range(3):
            await world.all_reduce(x, y)
        for array in y:
            await array.fill(0)
        with short_alone(ways):
            kill_worker(devices[1], signal.SIGSTOP)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(world.all_reduce, x, y)
                await under_way(world)
                nursery.cancel_scope.cancel()
            kill_worker(devices[1], signal.SIGCONT)
            with trio.CancelScope() as scope:
                scope.cancel()
                await world.all_reduce(x, y)
            assert scope.cancelled_caught
        await until(lambda: world._actor.idle)
        assert all(np.array_equal(found, 2 * NUMBERS) for found in await get(y))
        assert world.epoch == 1


async def test_a_call_of_a_closed_world_or_a_freed_array_is_refused() -> None:
    async with open_world(2) as (devices, world):
        x = await put(devices, NUMBERS, NUMBERS)
        y = [dev.empty(N, np.int32) for dev in devices]
        for _ in range(3):
            await world.all_reduce(x, y)
        y[1].free()
        with pytest.raises(InvalidArgument, match="was freed"):
            await world.all_reduce(x, y)
        with pytest.raises(InvalidArgument, match="was freed"):
            world.all_reduce_nowait(x, y)
        y[1] = devices[1].empty(N, np.int32)
        for _ in range(3):
            await world.all_reduce(x, y)
        await world.aclose()
        with pytest.raises(InvalidArgument, match="was closed"):
            await world.all_reduce(x, y)


async def test_a_short_limit_of_time_is_not_that_of_calls_that_wait_for_others(ways: Ways) -> None:
    """The device's own watch does not take a member for one that hangs because another one is late."""
    async with open_world(2, hang_timeout=60) as (devices, world):
        x = await put(devices, NUMBERS, NUMBERS)
        y = [dev.empty(N, np.int32) for dev in devices]
        for _ in range(3):
            await world.all_reduce(x, y)
        timeline = core_of(devices[0]).current.timeline
        kill_worker(devices[1], signal.SIGSTOP)
        with short_alone(ways):
            world.all_reduce_nowait(x, y)
        await quiet()
        for _ in range(2):
            assert timeline.overdue(1e9, 0.001) is None
        kill_worker(devices[1], signal.SIGCONT)
        await world.barrier()
        assert all(np.array_equal(found, 2 * NUMBERS) for found in await get(y))


async def test_without_a_ring_and_with_calls_too_long_for_a_record_all_goes_the_general_way(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(2) as (devices, world):
        rows = [await put(devices, *[np.tile(NUMBERS, (12, 1))] * 2) for _ in range(2)]
        calls = [([array[row] for array in rows[0]], [array[row] for array in rows[1]]) for row in range(12)]
        for turn in range(4):
            await rows[0][1].fill(turn)
            async with world.batch() as batch:
                for sources, outputs in calls:
                    batch.all_reduce(sources, outputs)
            assert all(np.array_equal(found, np.tile(NUMBERS + turn, (12, 1))) for found in await get(rows[1]))
        assert (ways.short, ways.general) == (0, 4)
    monkeypatch.setitem(Generation.__init__.__kwdefaults__, "with_ring", False)
    async with open_world(2) as (devices, world):
        x, y = [await put(devices, NUMBERS, NUMBERS) for _ in range(2)]
        for _ in range(4):
            await world.all_reduce(x, y)
            total = await world.all_reduce(x)
        assert ways.short == 0
        for arrays in (y, total):
            assert all(np.array_equal(found, 2 * NUMBERS) for found in await get(arrays))


async def test_new_outputs_in_memory_that_is_not_there_yet_go_the_general_way(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(2) as (devices, world):
        x = await put(devices, NUMBERS, NUMBERS)
        for _ in range(3):
            await world.all_reduce(x)
        general = ways.general
        with monkeypatch.context() as patch:
            patch.setattr(LaunchPath, "is_fresh", lambda path, block: False)
            total = await world.all_reduce(x)
        assert ways.general == general + 1
        assert all(np.array_equal(found, 2 * NUMBERS) for found in await get(total))
        with short_alone(ways):
            await world.all_reduce(x)


async def test_a_task_that_is_alone_sees_the_end_in_a_glance(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "TURN_SECONDS", 60.0)
    monkeypatch.setattr(actor, "GLANCE_SECONDS", 30.0)
    async with open_world(2) as (devices, world):
        x, y = [await put(devices, NUMBERS, NUMBERS) for _ in range(2)]
        for _ in range(3):
            await world.all_reduce(x, y)
        for core in map(core_of, devices):
            settler = core.current.settler
            await until(lambda settler=settler: not settler._activity.is_set())
            settler.patience = 30.0
        with short_alone(ways):
            await world.all_reduce(x, y)
        assert all(np.array_equal(found, 2 * NUMBERS) for found in await get(y))


async def test_an_unloaded_module_leaves_the_short_way_of_collectives(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        x, y = [await put(devices, NUMBERS, NUMBERS) for _ in range(2)]
        (touch,) = await compile_rogue(devices[0], "touch")
        await touch.launch(*SHAPE, x[0], N)
        for _ in range(3):
            await world.all_reduce(x, y)
        await touch.module.unload()
        with short_alone(ways):
            await world.all_reduce(x, y)
        assert all(np.array_equal(found, 2 * NUMBERS + 1) for found in await get(y))


async def test_the_usual_call_is_checked_and_sent_for_all_members_at_once(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where a block is not its lane's, or the right to send was revoked, are the members looked at one by one."""
    looks = []
    takes = ready._Share.takes

    def looked(share: Any) -> bool:
        looks.append(share.rank)
        return takes(share)

    monkeypatch.setattr(ready._Share, "takes", looked)
    async with open_world(3) as (devices, world):
        x, y = [await put(devices, NUMBERS, NUMBERS, NUMBERS) for _ in range(2)]

        async def found_one_by_one(*numbers: int) -> list[int]:
            looks.clear()
            with short_alone(ways):
                await world.all_reduce(x, y)
            wanted = sum(number * NUMBERS for number in numbers)
            assert all(np.array_equal(found, wanted) for found in await get(y))
            return list(looks)

        for _ in range(3):
            await world.all_reduce(x, y)
        books = [core_of(dev).current.timeline.book(world._actor.lanes[rank]) for rank, dev in enumerate(devices)]
        issued = [book.issued for book in books]
        for _ in range(3):
            looks.clear()
            with short_alone(ways):
                await world.all_reduce(x, y)
            assert not looks
        for book, before in zip(books, issued, strict=True):
            assert book.issued == before + 3
            assert not book.launches
        world.all_reduce_nowait(x, y)  # the first one of these has to look how much it may send
        looks.clear()
        for _ in range(3):
            with short_alone(ways):
                world.all_reduce_nowait(x, y)
        await until(lambda: world._actor.idle)
        assert not looks
        assert await found_one_by_one(1, 1, 1) == []
        assert await found_one_by_one(1, 1, 1) == [0, 1, 2]  # the copies to the host have used the outputs
        await world.all_reduce(x, y)
        core_of(devices[1]).current.sender.close_short_ways()
        looks.clear()
        await world.all_reduce(x, y)
        assert looks == [0, 1, 2]
        looks.clear()
        await world.all_reduce(x, y)
        assert not looks
        await x[2].copy_from(3 * NUMBERS)
        assert await found_one_by_one(1, 1, 3) == [0, 1, 2]


async def test_a_batch_takes_one_turn_at_its_end_also_if_it_is_empty(ways: Ways) -> None:
    async with open_world(2) as (devices, world):
        x, y = [await put(devices, NUMBERS, NUMBERS) for _ in range(2)]
        with trio.testing.assert_checkpoints():
            async with world.batch():
                pass
        for _ in range(4):
            with trio.testing.assert_checkpoints():
                async with world.batch() as batch:
                    batch.all_reduce(x, y)
        with trio.CancelScope() as scope:
            scope.cancel()
            async with world.batch() as batch:
                raise AssertionError("it was entered")
        assert scope.cancelled_caught
        assert all(np.array_equal(found, 2 * NUMBERS) for found in await get(y))
