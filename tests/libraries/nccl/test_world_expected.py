"""The call that is expected next: it is tried before a call is looked for, and nothing else is taken for it."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import DeviceClosed, InvalidArgument, OutsideRun
from atomr_trio.libraries.nccl import remembered, world as worlds
from support.rogue import kill_worker, next_generation
from support.worlds import get, open_world, put

N = 24
NUMBERS = np.arange(N, dtype=np.int32)

Searches = Callable[[], contextlib.AbstractContextManager[list[str]]]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    """The verbs of calls that are looked for in a block, because they were not expected."""
    found: list[str] = []
    find = remembered.find

    def finds(verb: str, arguments: tuple[object, ...]) -> remembered.Found | None:
        found.append(verb)
        return find(verb, arguments)

    monkeypatch.setattr(remembered, "find", finds)
    monkeypatch.setattr(worlds, "find", finds)

    @contextlib.contextmanager
    def block() -> Iterator[list[str]]:
        found.clear()
        yield found

    return block


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """What is freed here was in no cycle."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def same(arrays: Sequence[Any], expected: Any) -> bool:
    return all(np.array_equal(found, expected) for found in await get(arrays))


async def test_a_call_that_comes_again_is_not_looked_for(searches: Searches) -> None:
    async with open_world(2) as (devices, world):
        x, y, z = [await put(devices, NUMBERS, NUMBERS) for _ in range(3)]

        async def turn() -> None:
            assert await world.all_reduce(x, y) == tuple(y)
            assert await world.reduce(tuple(y), z[1], root=1) is z[1]
            assert world.broadcast_nowait(x, root=1) == tuple(x)
            total = world.all_reduce_nowait(x)
            assert all(total[0] is not array for array in (x[0], y[0], z[0]))
            await world.scatter(z[0], [array[: N // 2] for array in y])
            async with world.batch() as batch:
                assert batch.all_reduce(x, y) == tuple(y)
                assert batch.reduce(x, z[0], op="max") is z[0]

        for _ in range(4):
            await turn()
        with searches() as found:
            await turn()
        assert found == ["scatter"]  # its outputs are new views
        for _ in range(3):
            await world.all_reduce(x, x, op="max")
        with searches() as found:
            await world.all_reduce(x, x, op="max")
        assert found == []


async def test_arguments_that_are_not_quite_those_of_the_expected_call(searches: Searches) -> None:
    async with open_world(2) as (devices, world):
        x, y, other = [await put(devices, NUMBERS + number, NUMBERS + number) for number in (0, 1, 7)]

        async def expect(call: Callable[[], Any]) -> None:
            for _ in range(4):
                await call()
            with searches() as found:
                await call()
            assert found == []

        arrays = list(x)
        await expect(lambda: world.all_reduce(arrays, y))
        arrays[0] = other[0]
        await world.all_reduce(arrays, y)
        assert await same(y, 2 * NUMBERS + 7)
        await expect(lambda: world.all_reduce(x, y))
        await world.all_reduce(x, y, op="max")
        assert await same(y, NUMBERS)
        await expect(lambda: world.all_reduce(x, y))
        await world.all_reduce(other, y)
        assert await same(y, 2 * NUMBERS + 14)
        await expect(lambda: world.all_reduce(x, y))
        total = await world.all_reduce(x)
        assert await same(total, 2 * NUMBERS)
        await expect(lambda: world.all_reduce(x))
        await world.all_reduce(x, x)
        assert await same(x, 2 * NUMBERS)
        await expect(lambda: world.all_reduce(x, x, op="max"))
        await world.all_reduce(y, x)
        assert await same(x, 4 * NUMBERS)
        for wrong in (
            lambda: world.all_reduce(x[::-1], y),
            lambda: world.all_reduce([*x, y[0]], y[1:]),
            lambda: world.all_reduce(x[:1], [x[1], *y]),
            lambda: world.all_reduce(x, y[0]),
            lambda: world.all_reduce(iter(x), y),
        ):
            await expect(lambda: world.all_reduce(x, y))
            with pytest.raises(InvalidArgument):
                await wrong()
        await expect(lambda: world.reduce(x, y[1], root=1))
        for root in (0, True, 1.0):
            with pytest.raises(InvalidArgument):
                await world.reduce(x, y[1], root=root)
        with pytest.raises(InvalidArgument):
            await world.reduce(x, y[1:], root=1)
        await expect(lambda: world.gather(x, None))
        with pytest.raises(InvalidArgument):
            await world.gather(x, y[0])


async def test_a_call_on_a_freed_array_is_refused(searches: Searches) -> None:
    async with open_world(2) as (devices, world):
        x, y, z = [await put(devices, NUMBERS, NUMBERS) for _ in range(3)]

        async def batch() -> None:
            async with world.batch() as calls:
                calls.all_reduce(x, y)
                calls.all_reduce(z, z, op="max")

        for _ in range(5):
            await world.all_reduce(x, y)
            await batch()
        z[1].free()
        with searches() as found, pytest.raises(InvalidArgument, match="was freed"):
            await batch()
        assert found == []
        await world.all_reduce(x, y)
        y[0].free()
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="was freed"):
                await world.all_reduce(x, y)
            with pytest.raises(InvalidArgument, match="was freed"):
                world.all_reduce_nowait(x, y)


async def test_a_new_array_with_the_identity_of_a_collected_one_is_another() -> None:
    async with open_world(2) as (devices, world):
        x, y, z, other = [await put(devices, NUMBERS + number, NUMBERS + number) for number in (0, 1, 2, 7)]
        memory = world._memory

        def view_at(array: Any, identity: int) -> Any:
            views = []
            for _ in range(10000):
                views.append(array[:])
                if id(views[-1]) == identity:
                    return views[-1]
            raise AssertionError("no view has that identity")

        async def call() -> None:
            await world.all_reduce([view, x[1]], y)

        async def batch() -> None:
            async with world.batch() as calls:
                calls.all_reduce(x, x, op="max")
                calls.all_reduce([view, other[1]], y)
                calls.broadcast(z, root=1)

        view = x[0][:]
        for _ in range(4):
            await call()
        kept = memory._last()  # as a cycle would keep it until it is collected
        assert kept is not None
        identity, gone = id(view), weakref.ref(view)
        del view
        assert gone() is None
        view = view_at(other[0], identity)
        assert memory._last() is kept
        assert kept.next() is kept
        await call()
        assert await same(y, 2 * NUMBERS + 7)

        with without_collector():
            view = other[0][:]
            for _ in range(4):
                await batch()
            first = memory.first()
            assert first is not None
            second = first.next()
            assert second is not None
            identity, third = id(view), second.next()
            assert third is not None
            assert third._parent is second
            del second, third, view
            view = view_at(z[0], identity)
            assert first.next() is not None
            with pytest.raises(InvalidArgument, match="use the same memory"):
                await batch()


async def test_expected_calls_keep_nothing_alive() -> None:
    async with open_world(2) as (devices, world):
        x, y, z = [await put(devices, NUMBERS, NUMBERS) for _ in range(3)]
        memory = world._memory
        with without_collector():
            for _ in range(5):
                await world.all_reduce(x, y)
                await world.all_reduce(x, y)
                await world.all_reduce(y, z)
                world.all_reduce_nowait(x)
            await world.barrier()
            calls = [weakref.ref(each) for each in memory._calls.values()]
            ways = [weakref.ref(each.ready) for each in memory._calls.values()]
            arrays = [weakref.ref(array) for array in y]
            assert len(calls) == 3
            assert all(call() is not None for call in calls)
            y.clear()
            assert [array() for array in arrays] == [None, None]
            assert [call() is None for call in calls] == [True, True, False]
            assert [way() is None for way in ways] == [True, True, False]
            for _ in range(3):
                await world.all_reduce(x, z)
            call = memory._last
            assert call() is not None
            assert call().next() is call()
            await world.aclose()
            assert call() is None


async def test_sharded_values_are_never_taken_for_other_ones(searches: Searches) -> None:
    async with open_world(2) as (devices, world):
        y = await put(devices, NUMBERS[: N // 2], NUMBERS[: N // 2])
        x, other = await world.shard(NUMBERS), await world.shard(NUMBERS + 5)
        for _ in range(5):
            assert await world.all_reduce(x, y) == tuple(y)
        await world.all_reduce(other, y)
        assert await same(y, NUMBERS[: N // 2] + NUMBERS[N // 2 :] + 10)
        assert await world.all_reduce(tuple(x), y) == tuple(y)
        assert await world.all_reduce(list(x), y) == tuple(y)
        assert await same(y, NUMBERS[: N // 2] + NUMBERS[N // 2 :])
        assert await world.all_reduce(x, x, op="max") == tuple(x)
        assert await same(tuple(x), NUMBERS[N // 2 :])


async def test_an_expected_call_in_the_next_epoch(searches: Searches) -> None:
    async with open_world(2) as (devices, world):
        x, y, z = [await put(devices, NUMBERS, NUMBERS) for _ in range(3)]

        async def turn() -> None:
            await world.all_reduce(x, y)
            async with world.batch() as batch:
                batch.all_reduce(x, y)
                batch.broadcast(z)

        for epoch in range(1, 3):
            for _ in range(4):
                await turn()
            with searches() as found:
                await turn()
            assert found == []
            assert await same(y, 2 * NUMBERS)
            kill_worker(devices[1])
            await next_generation(devices[1], epoch)
            await world.wait_epoch(after=epoch)
            x[1] = (await put(devices[1:], NUMBERS))[0]


async def test_an_expected_call_is_refused_where_any_call_is(searches: Searches) -> None:
    async with open_world(2) as (devices, world):
        x, y = [await put(devices, NUMBERS, NUMBERS) for _ in range(2)]

        async def awaited() -> None:
            await world.all_reduce(x, y)

        async def unheard() -> None:
            world.all_reduce_nowait(x, y)

        async def batched() -> None:
            async with world.batch() as batch:
                batch.all_reduce(x, y)

        calls = awaited, unheard, batched
        for call in calls:
            for _ in range(5):
                await call()
            await world.barrier()

            async def record(_: Any, call: Callable[[], Any] = call) -> None:
                await call()

            for dev in devices:
                with pytest.raises(InvalidArgument, match="cannot be captured"):
                    await dev.capture(record)

            async def others(_: Any, call: Callable[[], Any] = call) -> None:
                async with trio.open_nursery() as nursery:  # whose tasks are not captured
                    nursery.start_soon(call)

            with pytest.raises(InvalidArgument, match="nothing was recorded"):
                await devices[0].capture(others)
        await world.barrier()
        async with world.batch() as batch:
            with pytest.raises(OutsideRun), searches() as found:
                await trio.to_thread.run_sync(batch.all_reduce, x, y)
            assert found == []
            with searches() as found:
                batch.all_reduce(x, y)
            assert found == []
        assert await same(y, 2 * NUMBERS)
        batch = world.batch()
        async with batch:
            batch.all_reduce(x, y)
        for late in (batch, world.batch()):
            with pytest.raises(InvalidArgument, match="inside of its"):
                late.all_reduce(x, y)
        unfinished = world.batch()
        await unfinished.__aenter__()
    for call in (awaited, unheard):
        with pytest.raises((DeviceClosed, InvalidArgument), match="closed"):
            await call()
    with pytest.raises((DeviceClosed, InvalidArgument), match="closed"):
        unfinished.all_reduce(x, y)


async def test_batches_that_begin_alike(searches: Searches) -> None:
    async with open_world(2) as (devices, world):
        x, y, z = [await put(devices, NUMBERS, NUMBERS) for _ in range(3)]

        async def batch(*calls: tuple[Any, Any, Any]) -> list[str]:
            with searches() as found:
                async with world.batch() as made:
                    for arrays, out, op in calls:
                        assert made.all_reduce(arrays, out, op=op) == tuple(out)
            return list(found)

        begin, middle, end = (x, y, "sum"), (z, z, "max"), (x, z, "sum")
        for _ in range(4):
            await batch(begin, middle)
            await batch(begin, end)
            await batch(begin)
        assert await batch(begin, end) == ["all_reduce"] * 0
        assert await same(z, 2 * NUMBERS)
        assert await batch(begin, middle) == ["all_reduce"]
        assert await batch(begin, middle) == []
        assert await batch(begin) == []
        assert await batch(begin, middle) == []
        with pytest.raises(InvalidArgument, match="use the same memory"):
            await batch(begin, middle, end)
        with pytest.raises(InvalidArgument, match="use the same memory"):
            await batch(begin, (y, y, "max"))
        assert await batch(middle, begin)
        for array in x:
            await array.fill(3)
        assert await batch(begin, middle)
        assert await same(y, np.full(N, 6))
        unfinished = world.batch()
        await unfinished.__aenter__()
        unfinished.all_reduce(*begin[:2])
        await world.aclose()
        with pytest.raises(InvalidArgument, match="was closed"):
            unfinished.all_reduce(z, z, op="max")
        with pytest.raises(InvalidArgument, match="was closed"):
            await unfinished.__aexit__(None, None, None)
