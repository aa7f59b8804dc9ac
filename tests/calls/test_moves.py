"""The short way of fills and of copies on the device: the same bytes, order and errors as the general way."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import trio
import trio.testing

import atomr_trio
from atomr_trio import CommandFailed, ContextLost, InvalidArgument, RestartPolicy, StaleArray
from atomr_trio._values.dtypes import DTYPES
from atomr_trio.testing import inject
from support.rogue import compile_rogue, gated, kill_worker, next_generation, until
from support.strategies import check_on_device, same

pytestmark = pytest.mark.used_workers

N = 24
ANY_NUMBER = RestartPolicy(intensity=math.inf)
DEADLINE = 60

Mover = Callable[..., Awaitable[None]]


class Awaited:
    """Fills and copies that are awaited one by one."""

    async def fill(self, array: Any, value: Any) -> None:
        await array.fill(value)

    async def copy(self, target: Any, source: Any) -> None:
        await target.copy_from(source)


class Batched:
    """The same in a batch; the end of each is awaited."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    async def fill(self, array: Any, value: Any) -> None:
        self.batch.fill(array, value)
        await self.batch.flush()

    async def copy(self, target: Any, source: Any) -> None:
        self.batch.copy_from(target, source)
        await self.batch.flush()


@contextlib.asynccontextmanager
async def movers(dev: Any, form: str) -> AsyncIterator[Any]:
    if form == "awaited":
        yield Awaited()
    else:
        async with dev.batch() as batch:
            yield Batched(batch)


both = pytest.mark.parametrize("form", ["awaited", "batched"])


@pytest.fixture
def general(monkeypatch) -> list[str]:
    """The names of the verbs of the memory engine that went the general way."""
    published: list[str] = []
    publish = atomr_trio._generation.order.Order.publish

    def note(order: Any, lane: int, verb: Any, *arguments: Any, **options: Any) -> Any:
        command = publish(order, lane, verb, *arguments, **options)
        if verb.engine == "memory":
            published.append(verb.name)
        return command

    monkeypatch.setattr(atomr_trio._generation.order.Order, "publish", note)
    return published


async def made(dev: Any, shape: Any = N, dtype: Any = np.int32, value: Any = 0) -> Any:
    array = dev.empty(shape, dtype)
    await array.fill(value)
    return array


@both
async def test_after_the_first_use_of_memory_every_fill_and_copy_is_short(dev, general, form):
    x, y = await made(dev), await made(dev)
    matrix = await made(dev, (4, 6), np.float64)
    async with movers(dev, form) as move:
        del general[:]
        for value in (1, -7, np.int32(5), np.int64(2**31 - 1)):
            await move.fill(x, value)
            await move.fill(x[3:9], value)
            await move.copy(y, x)
            await move.copy(y[:5], x[7:12])
        for value in (0, 0.0, np.float32(0)):
            await move.fill(matrix, value)
            await move.fill(matrix[1], value)
        fresh = dev.empty(5, np.uint8)
        await move.fill(fresh, 200)
        assert general == []
        await move.fill(matrix, 0.1)  # two different words of 4 bytes, so several calls of the driver
        await move.fill(matrix[2:], 1.5)
        assert general == []
        await move.fill(await made(dev, 3, np.complex128), 1.5)  # 16 bytes
        await move.fill(x[::2], 1)
        await move.copy(y[::2], x[::2])
        assert general == ["fill", "fill", "copy"]


@both
async def test_fills_and_copies_of_other_layouts_are_short_from_the_second_of_their_form_on(dev, general, form):
    host = np.arange(8 * 9, dtype=np.float64).reshape(8, 9)
    x, y, wide = await made(dev, (8, 9), np.float64), await made(dev, (8, 9), np.float64), dev.empty(6, np.complex128)
    async with movers(dev, form) as move:
        for turn in range(3):
            del general[:]
            await y.copy_from(host + turn)
            await x.fill(0)
            del general[:]
            await move.fill(x[:, 2:5], 7.0 + 1)
            await move.fill(x[::2, 6:8], -0.0)
            await move.fill(wide, 2 + 3j)
            await move.copy(x[1:4, 5:8], y[3:6, 1:4])
            await move.copy(x[:, 0], y[:, 8])
            assert (general == []) == (turn > 0)
            expected = np.zeros((8, 9))
            expected[:, 2:5], expected[::2, 6:8] = 8, -0.0
            expected[1:4, 5:8], expected[:, 0] = (host + turn)[3:6, 1:4], (host + turn)[:, 8]
            assert same(await x.to_host(), expected)
            assert same(await wide.to_host(), np.full(6, 2 + 3j))


@both
@pytest.mark.sim_only
async def test_a_move_of_another_layout_that_the_driver_refuses_fails_alone(dev, form):
    x, y = await made(dev, (8, 9)), await made(dev, (8, 9), value=5)
    for _ in range(2):
        async with movers(dev, form) as move:
            await move.fill(x[:, 2:5], 3)
            await move.copy(x[:, 2:5], y[:, 2:5])
    for function, kind in (("cuMemsetD2D32Async", "fill"), ("cuMemcpy2DAsync", "copy")):
        inject(dev, function, atomr_trio.testing.ReturnStatus(801))
        with pytest.raises(CommandFailed, match=f"memory.{kind}"):
            async with movers(dev, form) as move:
                await (move.fill(x[:, 2:5], 3) if kind == "fill" else move.copy(x[:, 2:5], y[:, 2:5]))
        assert x.state == "ready"
    async with movers(dev, form) as move:
        await move.fill(x[:, 2:5], 4)
    assert (await x.to_host())[0].tolist() == [0, 0, 4, 4, 4, 0, 0, 0, 0]


@both
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
async def test_a_fill_writes_the_bytes_that_numpy_writes(dev, form, dtype):
    values: list[Any] = [0, 1, True, np.bool_(True)]
    if dtype.kind in "iu":
        values += [np.iinfo(dtype).max, np.iinfo(dtype).min, int(np.iinfo(dtype).max)]
    if dtype.kind in "fc":
        values += [0.0, -0.0, 1.5, -2, math.inf, -math.inf, math.nan, np.float32(0.1), np.float64(0.1)]
    if dtype.kind == "c":
        values += [1j, complex(0.0, -0.0), np.complex64(2 - 1j)]
    x = await made(dev, (3, 4), dtype)
    async with movers(dev, form) as move:
        for _ in range(2):
            for value in values:
                await move.fill(x, 1)
                await move.fill(x[1], value)
                expected = np.full((3, 4), 1, dtype)
                with np.errstate(over="ignore"):
                    expected[1] = np.asarray(value).astype(dtype)
                assert (await x.to_host()).tobytes() == expected.tobytes()


@check_on_device(
    2,
    st.sampled_from(DTYPES),
    st.one_of(st.integers(-(2**70), 2**70), st.integers(-3, 300), st.floats(), st.complex_numbers(), st.booleans()),
)
async def test_the_short_and_the_general_way_fill_alike_or_refuse_alike(dev, dtype, value):
    x, y = await made(dev, 6, dtype), await made(dev, 12, dtype)

    async def outcome(array: Any) -> Any:
        try:
            await array.fill(value)
        except InvalidArgument as error:
            return str(error)
        return (await array.to_host()).tobytes()

    assert await outcome(x) == await outcome(y[::2])
    assert await outcome(x) == await outcome(x[:])


@both
async def test_a_large_fill_with_wide_items_is_doubled(dev, form):
    x = await made(dev, 50_001, np.float64)
    async with movers(dev, form) as move:
        for value in (1.25, -3.0):
            await move.fill(x[1:], value)
    assert (await x.to_host()).tolist() == [0] + [-3.0] * 50_000


@both
async def test_signed_zeros_and_equal_numbers_of_other_types_are_told_apart(dev, form):
    x = await made(dev, 2, np.float32)
    flags = await made(dev, 2, np.bool_)
    async with movers(dev, form) as move:
        for value in (0.0, -0.0, 0, -0.0, 0.0):
            await move.fill(x, value)
            assert (await x.to_host()).tobytes() == np.full(2, value, np.float32).tobytes()
        await move.fill(flags, 1)
        await move.fill(flags, True)
        for wrong in (1.0, 0.0):
            with pytest.raises(InvalidArgument, match="a float does not fit"):
                await move.fill(flags, wrong)
        with pytest.raises(InvalidArgument, match="out of range"):
            await move.fill(await made(dev, 2, np.uint8), 256)


@both
async def test_what_has_no_elements_is_left_alone(dev, form):
    empty, x = dev.empty(0, np.int32), await made(dev)
    async with movers(dev, form) as move:
        await move.fill(empty, 1)
        await move.copy(empty, x[:0])
        await move.fill(x[4:4], 1)
    assert not (await x.to_host()).any()


@both
async def test_copies_are_checked_as_before(dev, form):
    x, y = await made(dev), await made(dev, N, np.float32)
    async with movers(dev, form) as move:
        with pytest.raises(InvalidArgument, match="dtypes differ"):
            await move.copy(y, x)
        with pytest.raises(InvalidArgument, match="shapes differ"):
            await move.copy(y[:3], y[3:])
        with pytest.raises(InvalidArgument, match="share memory"):
            await move.copy(x[1:], x[:-1])
        await move.fill(x[:12], 3)
        await move.copy(x[12:], x[:12])
        assert (await x.to_host()).tolist() == [3] * N


@both
async def test_first_contents_are_short_and_freed_arrays_are_refused(dev, general, form):
    x, y = await made(dev), dev.full(N, 9, np.int32)
    async with movers(dev, form) as move:
        del general[:]
        await move.copy(x, y)
        assert general == []
        assert (await x.to_host()).tolist() == [9] * N
        zeros = dev.zeros(N, np.int32)
        await move.fill(zeros[:3], 4)
        assert (await zeros.to_host()).tolist() == [4] * 3 + [0] * (N - 3)
        y.free()
        for wrong in (move.fill(y, 1), move.copy(y, x), move.copy(x, y)):
            with pytest.raises(InvalidArgument, match="freed"):
                await wrong


@both
async def test_arrays_of_another_device_are_refused(open_test_device, form):
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev, open_test_device() as other:
            x, foreign = await made(dev), await made(other)
            async with movers(dev, form) as move:
                await move.fill(x, 1)
                with pytest.raises(InvalidArgument, match="belongs to another device"):
                    await move.copy(x, foreign)
                if form == "batched":
                    for wrong in (move.fill(foreign, 1), move.copy(foreign, x)):
                        with pytest.raises(InvalidArgument, match="belongs to another device"):
                            await wrong
            assert not (await foreign.to_host()).any()


@both
@pytest.mark.parametrize("held", ["target", "source"])
async def test_work_of_another_lane_on_either_array_comes_first(dev, form, held):
    (touch,) = await compile_rogue(dev, "touch")
    x, y = await made(dev), await made(dev)
    async with dev.lane() as lane, movers(dev, form) as move:
        await move.copy(y, x)
        async with gated(dev, lane) as gate:
            touch.launch_nowait(1, N, {"source": x, "target": y}[held], N, lane=lane)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(move.copy, y, x)
                await trio.testing.wait_all_tasks_blocked(0.01)
                await gate.open()
        assert (await y.to_host()).tolist() == [1 if held == "source" else 0] * N
        async with gated(dev, lane) as gate:
            touch.launch_nowait(1, N, x, N, lane=lane)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(move.fill, x, 5)
                await trio.testing.wait_all_tasks_blocked(0.01)
                await gate.open()
        assert (await x.to_host()).tolist() == [5] * N


async def test_a_batch_of_a_lane_that_is_not_open_yet_fills_and_copies(dev):
    x, y = await made(dev), await made(dev)
    async with dev.lane() as lane:
        async with dev.batch(lane=lane) as batch:
            for value in range(40):
                batch.fill(x, value)
                batch.copy_from(y, x)
    assert (await y.to_host()).tolist() == [39] * N


@pytest.mark.sim_only
@both
@pytest.mark.parametrize(
    ("function", "kind", "dtype"),
    [
        ("cuMemsetD32Async", "fill", np.int32),
        ("cuMemsetD2D32Async", "fill", np.float64),
        ("cuMemcpyDtoDAsync", "copy", np.int32),
    ],
)
async def test_a_move_that_the_driver_refuses_fails_alone(dev, form, function, kind, dtype):
    x, y = await made(dev, dtype=dtype), await made(dev, dtype=dtype)
    async with movers(dev, form) as move:
        for refused in (False, True, False):
            if refused:
                inject(dev, function, atomr_trio.testing.ReturnStatus(801))
            expectation = pytest.raises(CommandFailed, match=f"memory.{kind}") if refused else contextlib.nullcontext()
            with expectation:
                await (move.fill(x, 3) if kind == "fill" else move.copy(x, y))
        await move.fill(x, 8)
    assert (await x.to_host()).tolist() == [8] * N


async def lose_a_copy(dev: Any, form: str, x: Any, y: Any) -> None:
    """Kill the worker while a copy from `y` to `x` waits for its turn."""
    async with movers(dev, form) as move, gated(dev):

        async def lost() -> None:
            with pytest.raises(ContextLost):
                await move.copy(x, y)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lost)
            await trio.testing.wait_all_tasks_blocked(0.01)
            kill_worker(dev)


@both
async def test_a_lost_worker_tears_what_was_being_written_and_a_fill_heals_it(open_test_device, form):
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=ANY_NUMBER) as dev:
            x, y = await made(dev, value=1), await made(dev, value=2)
            with contextlib.suppress(ContextLost):  # the end of the batch tells of it as well
                await lose_a_copy(dev, form, x, y)
            await next_generation(dev, 1)
            assert (x.state, y.state) == ("torn", "ready")
            with pytest.raises(StaleArray, match="torn"):
                await y.copy_from(x)
            with pytest.raises(StaleArray, match="torn"):
                await x[:3].fill(1)
            await x.fill(7)
            await y.copy_from(x)
            assert same(await y.to_host(), np.full(N, 7, np.int32))


@both
async def test_moves_are_counted_with_the_requests_of_the_memory_actor(dev, form):
    x, y = await made(dev), await made(dev)

    def count() -> tuple[int, int]:
        (memory,) = (actor for actor in dev.statistics().actors if actor.name == "memory")
        return memory.accepted, memory.settled.get("ok", 0)

    async with movers(dev, form) as move:
        before = count()
        for value in range(5):
            await move.fill(x, value)
            await move.copy(y, x)
    await until(lambda: count() == (before[0] + 10, before[1] + 10))
