"""A world and its collectives, while no member is lost: what each verb does, in every form, and what it refuses."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import (
    CommandFailed,
    DeviceClosed,
    InvalidArgument,
    LibraryNotFound,
    OutsideRun,
    World,
    premultiplied_sum,
)
from atomr_trio._device.device import core_of
from atomr_trio.libraries.nccl import actor as worlds
from atomr_trio.libraries.nccl.collectives import Part
from atomr_trio.testing import WorkerPool
from support.groups import open_group, simulated
from support.rogue import gated
from support.worlds import SETTINGS, get, open_world, put, quiet

MEMBERS = [2, 4]
DTYPES: list[Any] = ["i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ml_dtypes.bfloat16, "c8", "c16"]
FLOAT8 = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
N = 12


@pytest.fixture(params=MEMBERS)
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, Any]]:
    async with open_world(request.param) as (devices, world):
        yield devices, world


def numbers(count: int, dtype: Any, shape: tuple[int, ...] = (N,)) -> list[Any]:
    """Small numbers, which every type holds and adds exactly, other ones for each member."""
    arrays = [(np.arange(np.prod(shape)).reshape(shape) + 3 * rank) % 5 + 1 for rank in range(count)]
    made = [array.astype(dtype) for array in arrays]
    return [array + (array[::-1] * 1j).astype(dtype) for array in made] if np.dtype(dtype).kind == "c" else made


def same(found: Any, expected: Any) -> bool:
    return np.asarray(found).tobytes() == np.asarray(expected).tobytes()


# --- verbs ------------------------------------------------------------------------------------------------------------

FOLDS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


async def test_reductions_of_every_dtype_and_operation(opened: tuple[Any, Any]) -> None:
    devices, world = opened
    size = len(world)
    new = all(dev.info.capability >= (9, 0) for dev in devices)
    given, wanted, found = {}, {}, {}
    arrays = {}
    for dtype in [*DTYPES, *(FLOAT8 if new else ())]:
        small = np.dtype(dtype).itemsize == 1
        given[dtype] = [np.minimum(array, np.array(2, dtype)) if small else array for array in numbers(size, dtype)]
        arrays[dtype] = await put(devices, *given[dtype])
    async with world.batch() as batch:
        for dtype, each in arrays.items():
            for op, fold in FOLDS.items():
                if np.dtype(dtype).kind == "c" and op != "sum":
                    with pytest.raises(InvalidArgument, match="complex numbers have no"):
                        batch.all_reduce(each, op=op)
                    continue
                wanted[dtype, op] = functools.reduce(lambda x, y, fold=fold: fold(x, y).astype(x.dtype), given[dtype])
                found[dtype, op] = batch.all_reduce(each, op=op)
    for key, outputs in found.items():
        assert all(same(output, wanted[key]) for output in await get(outputs)), key
    for dtype, each in arrays.items():
        assert all(same(array, before) for array, before in zip(await get(each), given[dtype], strict=True))
    if not new:
        with pytest.raises(InvalidArgument, match=r"from compute capability 9\.0 on"):
            await world.all_reduce([dev.zeros(3, FLOAT8[0]) for dev in devices])


async def test_averages_and_premultiplied_sums(opened: tuple[Any, Any]) -> None:
    devices, world = opened
    for dtype in ("f4", "f8", "c8", "c16"):
        given = numbers(len(world), dtype)
        arrays = await put(devices, *given)
        (average, *_) = await get(await world.all_reduce(arrays, op="avg"))
        assert np.allclose(average, sum(given) / len(world))
        (scaled, *_) = await get(await world.all_reduce(arrays, op=premultiplied_sum(0.5)))
        assert np.allclose(scaled, sum(given) * 0.5)
    arrays = await put(devices, *numbers(len(world), "i4"))
    found = await get(await world.reduce_scatter(arrays, op=premultiplied_sum(3)))
    assert same(np.concatenate(found), 3 * sum(numbers(len(world), "i4")))


async def each_form(world: Any, name: str, *arguments: Any, **options: Any) -> list[Any]:
    """The outputs of a verb in its three forms; the second and the third are waited for by who reads them."""
    found = [await getattr(world, name)(*arguments, **options)]
    found.append(getattr(world, f"{name}_nowait")(*arguments, **options))
    async with world.batch() as batch:
        found.append(getattr(batch, name)(*arguments, **options))
    return found


@pytest.mark.parametrize("dtype", ["f4", "c8", "?", "i2"])
async def test_moves_in_every_form(opened: tuple[Any, Any], dtype: str) -> None:
    devices, world = opened
    size = len(world)
    given = numbers(size, dtype, (size, 3))
    arrays = await put(devices, *given)
    whole = np.stack(given)
    for outputs in await each_form(world, "all_gather", arrays):
        assert all(same(found, whole) for found in await get(outputs))
    for root in (0, size - 1):
        for output in await each_form(world, "gather", arrays, root=root):
            assert output.device is devices[root]
            assert same(await output.to_host(), whole)
        for outputs in await each_form(world, "scatter", arrays[root], root=root):
            assert all(same(found, given[root][rank]) for rank, found in enumerate(await get(outputs)))
    for outputs in await each_form(world, "all_to_all", arrays):
        for rank, found in enumerate(await get(outputs)):
            assert same(found, whole[:, rank])
    for root in range(size):
        targets = await put(devices, *given)
        await world.broadcast(targets, root=root)
        assert all(same(found, given[root]) for found in await get(targets))
    assert all(same(found, before) for found, before in zip(await get(arrays), given, strict=True))


async def test_reductions_in_every_form(opened: tuple[Any, Any]) -> None:
    devices, world = opened
    size = len(world)
    given = numbers(size, "f8", (2 * size, 3))
    arrays = await put(devices, *given)
    total = sum(given)
    for outputs in await each_form(world, "all_reduce", arrays):
        assert all(same(found, total) for found in await get(outputs))
    for outputs in await each_form(world, "reduce_scatter", arrays):
        assert same(np.concatenate(await get(outputs)), total)
    for output in await each_form(world, "reduce", arrays, root=size - 1):
        assert output.device is devices[size - 1]
        assert same(await output.to_host(), total)


async def test_parts_of_different_sizes(opened: tuple[Any, Any]) -> None:
    devices, world = opened
    size = len(world)
    counts = [[(i + 2 * j) % 4 for j in range(size)] for i in range(size)]
    given = [np.arange(sum(row), dtype=np.int64) + 100 * rank for rank, row in enumerate(counts)]
    arrays = await put(devices, *given)
    parts = [np.split(array, np.cumsum(row)[:-1]) for array, row in zip(given, counts, strict=True)]
    for outputs in await each_form(world, "all_to_all_v", arrays, counts):
        for rank, found in enumerate(await get(outputs)):
            assert same(found, np.concatenate([parts[other][rank] for other in range(size)]))


async def test_sends_from_member_to_member(opened: tuple[Any, Any]) -> None:
    devices, world = opened
    size = len(world)
    given = numbers(size, "f4")
    arrays = await put(devices, *given)
    targets = [dev.empty(N, np.float32) for dev in devices]
    await world.exchange([(arrays[rank], targets[(rank + 1) % size]) for rank in range(size)])
    assert all(same(found, given[rank - 1]) for rank, found in enumerate(await get(targets)))
    await world.send(arrays[0], targets[1])
    await world.recv(targets[0], arrays[1])
    assert same(await targets[1].to_host(), given[0])
    assert same(await targets[0].to_host(), given[1])
    world.send_nowait(arrays[1], targets[1])
    assert same(await targets[1].to_host(), given[1])


async def test_work_in_place_where_it_is_asked_for(opened: tuple[Any, Any]) -> None:
    devices, world = opened
    size = len(world)
    given = numbers(size, "f4", (size, 2))
    arrays = await put(devices, *given)
    assert (await world.all_reduce(arrays, arrays))[0] is arrays[0]
    assert all(same(found, sum(given)) for found in await get(arrays))
    wholes = await put(devices, *(np.zeros((size, size, 2), np.float32) for _ in devices))
    own = [whole[rank] for rank, whole in enumerate(wholes)]
    for view, array in zip(own, given, strict=True):
        await view.copy_from(array)
    await world.all_gather(own, wholes)
    assert all(same(found, np.stack(given)) for found in await get(wholes))
    arrays = await put(devices, *given)
    parts = [array[rank : rank + 1] for rank, array in enumerate(arrays)]
    await world.reduce_scatter(arrays, parts)
    assert same(np.concatenate(await get(parts)), sum(given))


async def test_empty_arrays_are_nothing_to_do(opened: tuple[Any, Any]) -> None:
    devices, world = opened
    arrays = [dev.empty((0, 3), np.float32) for dev in devices]
    assert [array.shape for array in await world.all_reduce(arrays)] == [(0, 3)] * len(world)
    assert (await world.gather(arrays)).shape == (len(world), 0, 3)
    assert [array.shape for array in await world.all_to_all(arrays)] == [(0, 3)] * len(world)


# --- order ------------------------------------------------------------------------------------------------------------


async def test_collectives_are_in_order_with_copies_and_launches(opened: tuple[Any, Any]) -> None:
    devices, world = opened
    source = 'extern "C" __global__ void add(float *x, float y, int n) {int i = threadIdx.x; if (i < n) x[i] += y;}'
    adds = [await dev.nvrtc.compile(source, "add") for dev in devices]
    given = [np.zeros(N, np.float32) for _ in devices]
    arrays = await put(devices, *given)
    expected = 0.0
    for turn in range(4):
        for add, array in zip(adds, arrays, strict=True):
            add.launch_nowait(1, 32, array, np.float32(turn + 1), N)
        world.all_reduce_nowait(arrays, arrays)
        expected = (expected + turn + 1) * len(world)
    assert all(same(found, np.full(N, expected, np.float32)) for found in await get(arrays))


async def test_a_barrier_comes_behind_all_work_of_every_member() -> None:
    async with open_world(2) as (devices, world):
        ended: list[str] = []

        async def wait() -> None:
            await world.barrier()
            ended.append("barrier")

        await world.barrier()
        async with trio.open_nursery() as nursery:
            async with gated(devices[1]) as gate:
                nursery.start_soon(wait)
                await quiet()
                assert ended == []
                ended.append("gate")
                await gate.open()
        assert ended == ["gate", "barrier"]


async def test_a_caller_that_is_cancelled_leaves_the_members_in_step(opened: tuple[Any, Any]) -> None:
    devices, world = opened
    given = numbers(len(world), "f4")
    arrays = await put(devices, *given)
    outputs = [dev.empty(N, np.float32) for dev in devices]
    await world.all_reduce(arrays, outputs)  # the first of a kind waits for all that runs on a GPU
    async with gated(devices[-1]) as gate:
        for _ in range(3):
            with trio.move_on_after(0.01):
                await world.all_reduce(arrays, outputs)
        await gate.open()
    assert all(same(found, sum(given)) for found in await get(await world.all_reduce(arrays, op="sum")))
    assert all(same(found, sum(given)) for found in await get(outputs))


async def test_the_first_call_of_each_kind_is_made_by_the_thread_of_its_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    firsts: list[bool] = []
    record = Part.record

    def noted(part: Part, communicator: int, *, first: bool) -> tuple[Any, bytes]:
        firsts.append(first)
        return record(part, communicator, first=first)

    monkeypatch.setattr(Part, "record", noted)
    async with open_world(2) as (devices, world):
        small = await put(devices, *[np.ones(N, np.float32)] * 2)
        long = await put(devices, *[np.ones(5 * N, np.float32)] * 2)
        whole = await put(devices, *[np.ones(N, np.int32)] * 2)

        async def first_of(verb: Any, *arguments: Any) -> bool:
            firsts.clear()
            await verb(*arguments)
            assert len(firsts) == 2
            return all(firsts)

        for arrays, verb in ((small, world.all_reduce), (whole, world.all_reduce), (long, world.all_reduce)):
            assert await first_of(verb, arrays)
            assert not await first_of(verb, arrays)
        assert await first_of(world.broadcast, small)
        assert not await first_of(world.broadcast, small)
        firsts.clear()
        async with world.batch() as batch:
            batch.all_reduce(small)
            batch.all_gather(whole)
        assert all(firsts), "one call of the group is new"


async def test_from_another_thread_every_verb_is_refused_and_the_world_goes_on() -> None:
    def outcome(call: Callable[[], Any]) -> type[BaseException] | None:
        try:
            result = call()
            if inspect.iscoroutine(result):
                try:
                    result.send(None)
                finally:
                    result.close()
        except Exception as error:
            return type(error)
        return None

    async with open_world(2) as (devices, world):
        arrays = await put(devices, *numbers(2, "f4"))
        sharded = await world.shard(np.arange(8))
        verbs: dict[str, Callable[[], Any]] = {"to_host": sharded.to_host, "world": devices.world}
        for name, method in inspect.getmembers(world, inspect.ismethod):
            if not name.startswith("_") and name != "batch":
                asked = inspect.signature(method).parameters.values()
                needed = [arrays for each in asked if each.default is each.empty and each.kind is not each.KEYWORD_ONLY]
                named = {
                    each.name: 1 for each in asked if each.default is each.empty and each.kind is each.KEYWORD_ONLY
                }
                verbs[name] = functools.partial(method, *needed, **named)
        assert len(verbs) > 25
        found = await trio.to_thread.run_sync(lambda: {name: outcome(call) for name, call in verbs.items()})
        assert {name: error for name, error in found.items() if error is not OutsideRun} == {}
        assert all(same(each, sum(numbers(2, "f4"))) for each in await get(await world.all_reduce(arrays)))


# --- worlds -----------------------------------------------------------------------------------------------------------


async def test_worlds_of_some_members_and_in_another_order() -> None:
    async with open_world(4) as (devices, whole):
        given = numbers(4, "f4")
        arrays = await put(devices, *given)
        async with (
            await devices.world([devices[3], devices[1]], nccl=SETTINGS) as pair,
            await devices.world([2], nccl=SETTINGS) as one,
        ):
            assert pair.members == (devices[3], devices[1])
            assert (len(pair), len(one), pair.epoch) == (2, 1, 1)
            found = await get(await pair.all_gather([arrays[3], arrays[1]]))
            assert same(found[0], np.stack([given[3], given[1]]))
            (total,) = await one.all_reduce([arrays[2]])
            assert same(await total.to_host(), given[2])
            assert same(await (await one.gather([arrays[2]])).to_host(), given[2][None])
            assert same(await (await one.all_to_all([arrays[2]]))[0].to_host(), given[2])
            await one.barrier()
            assert all(same(found, sum(given)) for found in await get(await whole.all_reduce(arrays)))
        with pytest.raises(InvalidArgument, match="was closed"):
            await pair.all_reduce([arrays[3], arrays[1]])
        assert all(same(found, sum(given)) for found in await get(await whole.all_reduce(arrays)))


async def test_a_world_ends_with_its_group() -> None:
    async with open_group(2) as devices:
        world = await devices.world(nccl=SETTINGS)
        arrays = [dev.zeros(3, np.float32) for dev in devices]
        await world.all_reduce(arrays)
    with pytest.raises(DeviceClosed):
        await world.all_reduce(arrays)
    with pytest.raises(DeviceClosed):
        world.all_reduce_nowait(arrays)
    with pytest.raises(DeviceClosed):
        await world.wait_epoch(after=1)
    assert "closed" in repr(world)


async def test_closing_waits_for_what_is_under_way_and_gives_the_lane_back() -> None:
    async with open_world(2) as (devices, world):
        arrays = await put(devices, *numbers(2, "f4"))
        lanes = len(core_of(devices[0]).current.timeline.lanes)
        outputs = world.all_reduce_nowait(arrays)
        await world.aclose()
        assert all(same(found, sum(numbers(2, "f4"))) for found in await get(outputs))
        await world.aclose()
        again = await devices.world(nccl=SETTINGS)
        assert all(same(found, sum(numbers(2, "f4"))) for found in await get(await again.all_reduce(arrays)))
        assert len(core_of(devices[0]).current.timeline.lanes) <= lanes + 1


# --- what is refused --------------------------------------------------------------------------------------------------


def submitted(devices: Any) -> list[int]:
    """What was published to each device."""
    return [sum(book.issued for book in core_of(dev).current.timeline.lanes) for dev in devices]


async def test_wrong_calls_are_refused_before_anything_is_published() -> None:
    async with open_world(2) as (devices, world), open_group(3) as others:
        a, b = await put(devices, *numbers(2, "f4"))
        short, double, flags = (
            devices[1].empty(N - 1, np.float32),
            devices[1].empty(N, np.float64),
            devices[0].zeros(N, bool),
        )
        strided = devices[1].zeros((N, 2), np.float32)[:, 0]
        freed = devices[1].zeros(N, np.float32)
        freed.free()
        elsewhere = others[1].zeros(N, np.float32)
        before = submitted(devices)
        wrong: list[tuple[str, Any, str]] = [
            ("all_reduce", ([a],), "one array for each of 2 members"),
            ("all_reduce", (a,), "one array for each of 2 members"),
            ("all_reduce", ([b, a],), "in the order of the members"),
            ("all_reduce", ([a, elsewhere],), "in the order of the members"),
            ("all_reduce", ([a, np.zeros(N)],), "is an array of device 1"),
            ("all_reduce", ([a, short],), "has shape"),
            ("all_reduce", ([a, double],), "has dtype float64"),
            ("all_reduce", ([a, strided],), "not contiguous"),
            ("all_reduce", ([a, freed],), "was freed"),
            ("all_reduce", ([a, b], [devices[0].empty(N, np.float64), double]), "has dtype float64"),
            ("all_reduce", ([a[:4], b[:4]], [a[2:6], b[:4]]), "overlaps"),
            ("reduce_scatter", ([a[:5], b[:5]],), "2 equal parts"),
            ("broadcast", ([a, b],), "root is the rank"),
            ("reduce", ([a, b], b), "on device 1"),
            ("scatter", (b,), "on device 1"),
            ("all_to_all", ([a, b], [a, b]), "overlaps"),
            ("all_to_all_v", ([a, b], [[1, 2]]), "2 rows of 2"),
            ("all_to_all_v", ([a, b], [[1, 2], [3, 4]]), "its counts"),
            ("exchange", ([(a, elsewhere)],), "no member of the world"),
            ("exchange", ([(a, a)],), "shares memory"),
            ("send", (a, short), "has shape"),
        ]
        for name, arguments, text in wrong:
            options = {"root": 2} if name == "broadcast" else {}
            with pytest.raises(InvalidArgument, match=text):
                await getattr(world, name)(*arguments, **options)
            if name != "exchange":
                with pytest.raises(InvalidArgument, match=text):
                    getattr(world, f"{name}_nowait")(*arguments, **options)
        for op in ("add", None, 3):
            with pytest.raises(InvalidArgument, match="op is one of"):
                await world.all_reduce([a, b], op=op)
        with pytest.raises(InvalidArgument, match="does not reduce"):
            await world.all_reduce([flags, devices[1].zeros(N, bool)])
        with pytest.raises(InvalidArgument, match="the factor"):
            await world.all_reduce([a.view("i4"), b.view("i4")], op=premultiplied_sum(0.5))
        batch = world.batch()

        async def overlapping() -> None:
            async with batch:
                batch.all_reduce([a, b], [a, b])
                batch.all_gather([a, b])

        with pytest.raises(InvalidArgument, match="use the same memory"):
            await overlapping()
        with pytest.raises(InvalidArgument, match="inside"):
            batch.all_reduce([a, b])
        assert submitted(devices) == before


async def test_worlds_that_cannot_be_made() -> None:
    async with open_world(2) as (devices, _), open_group(2) as others:
        for members, text in (
            ([], "one member at least"),
            ([0, 0], "given twice"),
            ([0, 7], "is a device of"),
            ([devices[0], others[1]], "is a device of"),
            (3, "members are devices"),
        ):
            with pytest.raises(InvalidArgument, match=text):
                await devices.world(members)
        for settings in ({"NCCL_DEBUG": "INFO"}, {"debug": 1}, {3: "x"}, {"DEBUG": None}, "DEBUG"):
            with pytest.raises(InvalidArgument, match=r"nccl|NCCL"):
                await devices.world(nccl=settings)
        with pytest.raises(InvalidArgument, match="deterministic is"):
            await devices.world(deterministic=1)
        with pytest.raises(InvalidArgument, match="other settings of NCCL"):
            await devices.world(nccl={**SETTINGS, "DEBUG": "WARN"})
        with pytest.raises(TypeError, match=r"devices\.world"):
            World()


@pytest.mark.sim_only
async def test_what_nccl_refuses_ends_the_attempts_and_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOMR_TRIO_SIM_FAULTS", "ncclGetUniqueId:4:1*")
    monkeypatch.setattr(worlds, "MOST_ATTEMPTS", 2)
    async with open_group(2) as devices:
        with pytest.raises(Exception, match="ncclInvalidArgument") as refused:
            await devices.world()
        assert not isinstance(refused.value, LibraryNotFound)
        assert (await devices[0].zeros(3, np.float32).to_host()).sum() == 0


class Pools:
    """A source of workers for two devices."""

    def __init__(self, pools: list[WorkerPool]) -> None:
        self._pools = pools
        self._homes: dict[Any, WorkerPool] = {}

    def take(self, backend: Any, index: int) -> Any:
        process = self._pools[index].take(backend, index)
        self._homes[process] = self._pools[index]
        return process

    def give_back(self, process: Any) -> None:
        self._homes.pop(process).give_back(process)


@pytest.mark.sim_only
async def test_workers_of_a_pool_give_their_communicators_back_and_keep_their_environment() -> None:
    """NCCL reads its environment once in a process. A world with another one is refused there."""
    with (
        simulated(2),
        WorkerPool(0, backend="sim", spares=0) as first,
        WorkerPool(1, backend="sim", spares=0) as second,
    ):
        pools = Pools([first, second])
        for number in range(2):
            async with open_group(2, workers=pools) as devices:
                world = await devices.world(nccl={**SETTINGS, "BUFFSIZE": 1 << 20})
                arrays = await put(devices, *numbers(2, "f4"))
                found = await get(await world.all_reduce(arrays))
                assert all(same(each, sum(numbers(2, "f4"))) for each in found), number
        assert [pool.statistics().reused for pool in (first, second)] == [1, 1]
        async with open_group(2, workers=pools) as devices:
            with pytest.raises(CommandFailed, match="other settings"):
                await devices.world(nccl={**SETTINGS, "BUFFSIZE": 1 << 21})


async def test_a_call_that_is_repeated_is_checked_as_the_first_one_was() -> None:
    async with open_world(2) as (devices, world):
        given = numbers(2, "f4")
        arrays = await put(devices, *given)
        outputs = [dev.empty(N, np.float32) for dev in devices]
        for turn in range(3):
            await arrays[0].copy_from(given[0] + turn)
            await world.all_reduce(arrays, outputs)
            returned = await world.all_reduce(arrays, tuple(outputs))
            assert [each is out for each, out in zip(returned, outputs, strict=True)] == [True, True]
            assert all(same(found, given[0] + turn + given[1]) for found in await get(outputs))
            await world.all_reduce(arrays, outputs, op="max")
            assert all(same(found, np.maximum(given[0] + turn, given[1])) for found in await get(outputs))
        with pytest.raises(InvalidArgument, match="in the order of the members"):
            await world.all_reduce(arrays[::-1], outputs)
        outputs[1].free()
        before = submitted(devices)
        with pytest.raises(InvalidArgument, match="was freed"):
            await world.all_reduce(arrays, outputs)
        with pytest.raises(InvalidArgument, match="was freed"):
            world.all_reduce_nowait(arrays, outputs)
        assert submitted(devices) == before
        known = len(world._memory._calls)
        del outputs, returned
        gc.collect()
        assert len(world._memory._calls) < known


async def test_an_array_is_split_over_the_members_and_put_together_again(opened: tuple[Any, Any]) -> None:
    devices, world = opened
    size = len(world)
    x = np.arange(3 * 4 * size, dtype=np.float32).reshape(3, 4 * size)
    for axis in (1, -1):
        split = await world.shard(x, axis=axis)
        assert (split.axis, split.shape, split.dtype, len(split)) == (1, x.shape, x.dtype, size)
        assert [part.device for part in split] == list(devices)
        assert same(await split.to_host(), x)
    parts = np.split(x, size, 1)
    for _ in range(2):
        total, *_ = await world.all_reduce(split)
        assert same(await total.to_host(), sum(parts))
    assert (await world.all_reduce(split, split))[0] is split[0]
    assert same(await split.to_host(), np.concatenate([sum(parts)] * size, 1))
    for axis, text in ((2, "number of an axis"), (True, "number of an axis"), (0, "cannot be split")):
        with pytest.raises(InvalidArgument, match=text):
            await world.shard(x if axis != 0 else x[:1], axis=axis)
