"""The short way of a launch is the general way, only shorter: what it does, what it refuses, and when it is not taken.

Naming the lane makes a launch go the general way (`lane=dev.compute_lane`), so one can be held against the other.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import trio
import trio.testing

from atomr_trio import ContextLost, DeviceError, InvalidArgument, StaleArray, overwrites, read_only, writes
from atomr_trio._device.device import core_of
from atomr_trio._transfers.memory import tear
from atomr_trio._wire.records.module import LAUNCH
from atomr_trio.testing import hold_worker
from support.rogue import gated, kill_worker, next_generation, until, until_full
from support.strategies import check_on_device

pytestmark = pytest.mark.used_workers

DEADLINE = 60
N = 8
NUMBERS = np.arange(N, dtype=np.int32)
SOURCE = r"""
extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }
extern "C" __global__ void scale(int *x, int a) { x[threadIdx.x] *= a; }
extern "C" __global__ void copy(const int *from, int *to) { to[threadIdx.x] = from[threadIdx.x]; }
extern "C" __global__ void blocks(int *x) { x[blockIdx.x] += blockDim.x; }
struct Pair { int a; float b; };
extern "C" __global__ void mix(double *out, const int *in, signed char small, unsigned int natural, long long large,
    float single, double twice, struct Pair pair)
{
    out[0] += in[0]; out[1] += small; out[2] += natural; out[3] += large; out[4] += single; out[5] += twice;
    out[6] += pair.a; out[7] += pair.b;
}
"""


async def compiled(dev: Any, *names: str) -> Any:
    kernels = [await dev.nvrtc.compile(SOURCE, name) for name in names]
    return kernels if len(kernels) > 1 else kernels[0]


class Published:
    """Counts the launches that go the general way in one generation."""

    def __init__(self, dev: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        generation = core_of(dev).current
        publish = generation.publish

        def counted(lane: int, verb: Any, *arguments: Any, **more: Any) -> Any:
            self.count += verb is LAUNCH
            return publish(lane, verb, *arguments, **more)

        monkeypatch.setattr(generation, "publish", counted)


# --- when it is taken -------------------------------------------------------------------------------------------------


async def test_the_second_launch_of_a_kernel_on_an_array_goes_the_short_way(dev, monkeypatch):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    prepared = add.prepare(1, N, x, 1)
    general = Published(dev, monkeypatch)
    await add.launch(1, N, x, 1)
    await prepared.launch()
    assert general.count == 2
    for _ in range(10):
        await add.launch(1, N, x, 1)
        await prepared.launch()
    assert general.count == 2
    async with dev.batch() as batch:
        for _ in range(10):
            batch.launch(add, 1, N, x, 1)
            batch.launch(prepared)
    assert general.count == 4, "batches learn for themselves"
    async with dev.batch() as batch, dev.batch() as other:
        batch.launch(add, 1, N, x, 1)
        other.launch(prepared)
    assert general.count == 4, "each knows what others have learnt"
    await add.launch(1, N, read_only(x[2:]), 0)
    assert general.count == 4, "another view of the block is as good"
    await add.launch(1, N, x, np.int32(0))
    await add.launch(1, N, x, np.uint8(0))
    assert general.count == 4, "numpy's scalars are as good"
    assert (await x.to_host() == NUMBERS + 44).all()


async def test_a_prepared_launch_whose_arguments_become_one_array_notes_all_that_it_has(dev):
    copy, add = await compiled(dev, "copy", "add")
    x, y = await dev.to_device(NUMBERS), dev.zeros(N, np.int32)
    both = (x, y), (y, y), (y, x), (x, x)
    prepared = copy.prepare(1, N, x, y)
    async with dev.batch() as batch, dev.lane() as lane, dev.batch(lane=lane) as other:
        for _ in range(3):
            for pair in both:
                prepared[0], prepared[1] = pair
                for _ in range(2):
                    batch.launch(prepared)
                    assert pair[1]._block.writer == (0, core_of(dev).current.timeline.book(0).issued)
        await batch.flush()
        with hold_worker(dev):
            batch.launch(prepared)
            assert x._block.writer == (0, core_of(dev).current.timeline.book(0).issued)
            prepared[0] = y
            batch.launch(prepared)
            other.launch(add, 1, N, y, 1)  # waits for the prepared launch, which reads it
            assert other._sender.generation.timeline.book(other._sender.lane).in_flight[-1].waits
    assert (await x.to_host()).tolist() == NUMBERS.tolist()
    assert (await y.to_host()).tolist() == (NUMBERS + 1).tolist()


@pytest.mark.parametrize("marks", ["plain", "read", "written", "address", "read and written", "views"])
async def test_a_short_launch_notes_what_it_reads_and_what_it_writes(dev, marks):
    copy = await compiled(dev, "copy")
    x, y = await dev.to_device(NUMBERS), await dev.to_device(np.zeros(N, np.int32))
    given = {
        "plain": (x, y),
        "read": (x, read_only(y)),
        "written": (writes(x), y),
        "address": (x.address, y),
        "read and written": (read_only(x), writes(y)),
        "views": (dev.zeros(2 * N, np.int32)[N:], y[:N]),
    }[marks]
    blocks = [getattr(each, "array", each)._block for each in given if type(each) is not int]
    async with dev.batch() as batch:
        for _ in range(3):
            batch.launch(copy, 1, N, x, y)  # the usual way first
            batch.launch(copy, 1, N, *given)
        last = batch._sender.path.book.issued
        noted = [[None if ticket is None else ticket[1] for ticket in (each.reader, each.writer)] for each in blocks]
    written = {"read": (), "written": (0, 1), "address": (0,)}.get(marks, (1,))
    for number, tickets in enumerate(noted):
        is_written = number in written
        assert tickets[is_written] == last
        assert tickets[not is_written] != last
    assert (await y.to_host()).tolist() == ([0] * N if marks == "views" else NUMBERS.tolist())


async def test_what_is_no_array_is_refused_or_taken_as_ever_before_and_behind_arrays(dev, monkeypatch):
    """The short way looks at the attributes of what it is given, and asks for its type only where they differ."""

    class Rude:
        @property
        def _plain(self) -> object:
            raise RuntimeError("not to be looked at")

    class AlmostAnArray:
        _plain = np.dtype(np.float32)

    copy = await compiled(dev, "copy")
    x, y = await dev.to_device(NUMBERS), dev.zeros(N, np.int32)
    floats, apart = dev.zeros(N, np.float32), dev.zeros(2 * N, np.int32)[::2]
    await copy.launch(1, N, x, y)
    published = Published(dev, monkeypatch)
    for first in (x, x.address, read_only(x), x):
        async with dev.batch() as batch:
            batch.fill(y, 0)
            for _ in range(2):
                batch.launch(copy, 1, N, first, y)
                for wrong in (Rude(), AlmostAnArray(), NUMBERS, None, "x", 1.5, floats, apart):
                    with pytest.raises(InvalidArgument):
                        batch.launch(copy, 1, N, wrong, y)
                for arguments in ((), (x,), (x, y, y)):
                    with pytest.raises(InvalidArgument):
                        batch.launch(copy, 1, N, *arguments)
        assert (await y.to_host()).tolist() == NUMBERS.tolist()
    assert published.count == 1  # the first one of a batch


async def test_a_number_is_looked_at_whichever_was_given_before(dev):
    """Large numbers, which are objects of their own, and those that a parameter does not take."""
    mix = await compiled(dev, "mix")
    out, given = dev.zeros(8), await dev.to_device(NUMBERS)
    rest = 3.0, 4.0, b"\0" * 8
    large, half = 2**40, 0.5
    for way in ("awaited", "in a batch"):
        rows = [(1, 2**31, large, half), (1, 2**31, large, half), (-1, 7, -large, 1.5), (1, 2**31, large, half)]
        before = await out.to_host()
        async with dev.batch() as batch:
            for small, natural, wide, single in rows:
                arguments = (out, given, small, natural, wide, single, *rest[1:])
                if way == "awaited":
                    await mix.launch(1, 1, *arguments)
                else:
                    batch.launch(mix, 1, 1, *arguments)
                for wrong in (
                    (128, natural, wide, single),
                    (small, -1, wide, single),
                    (small, natural, 2**63, single),
                    (small, natural, wide, 1e300),
                    (None, natural, wide, single),
                    (small, 2.0, wide, single),
                ):
                    for _ in range(2):
                        with pytest.raises(InvalidArgument):
                            batch.launch(mix, 1, 1, out, given, *wrong, *rest[1:])
        sums = (await out.to_host()) - before
        assert sums.tolist() == [0, 2, 3 * 2**31 + 7, 2 * large, 3.0, 16.0, 0, 0]


async def test_a_batch_that_has_ended_takes_nothing_that_it_knows(dev):
    add = await compiled(dev, "add")
    x, y = dev.zeros(N, np.int32), dev.zeros(N)
    prepared = add.prepare(1, N, x, 1)
    for _ in range(2):
        async with dev.batch() as batch:
            for _ in range(3):
                batch.launch(add, 1, N, x, 1)
                batch.launch(prepared)
                batch.blas.scal(y, 2.0)
            scal = batch.blas.scal
    for call in (lambda: batch.launch(add, 1, N, x, 1), lambda: batch.launch(prepared), lambda: scal(y, 2.0)):
        with pytest.raises(InvalidArgument, match="only inside its `async with` block"):
            call()
    assert (await x.to_host() == 12).all()


async def test_lanes_learn_for_themselves(dev, monkeypatch):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    for lanes in range(1, 4):
        async with dev.lane() as lane:
            general = Published(dev, monkeypatch)
            for _ in range(2):
                async with dev.batch(lane=lane) as batch:
                    for _ in range(3):
                        batch.launch(add, 1, N, x, 1)
            assert general.count == 2, "one in each batch"
        assert (await x.to_host() == NUMBERS + 6 * lanes).all()


async def test_a_launch_behind_copies_that_are_done_goes_the_short_way_and_behind_others_waits(dev, monkeypatch):
    add, copy = await compiled(dev, "add", "copy")
    x, y = await dev.to_device(NUMBERS), dev.zeros(N, np.int32)
    prepared = copy.prepare(1, N, x, y)
    await add.launch(1, N, x, 1)
    await prepared.launch()
    general = Published(dev, monkeypatch)
    for turn in range(5):
        await x.copy_from(NUMBERS * turn)
        await add.launch(1, N, read_only(x) if turn == 4 else x, 0)
        await y.to_host()
        await prepared.launch()
        assert (await y.to_host() == NUMBERS * turn).all()
    assert general.count == 0
    async with dev.batch() as batch:
        for _ in range(2):
            batch.launch(add, 1, N, x, 0)
            batch.launch(prepared)
            await batch.flush()
        learnt = general.count
        with hold_worker(dev):
            batch.copy_from(x, NUMBERS + 1)
            batch.launch(add, 1, N, x, 1)
            seen = batch.to_host(y)
            batch.launch(prepared)
            assert general.count == learnt + 2, "copies in other lanes are not done"
            batch.launch(add, 1, N, x, 1)
            assert general.count == learnt + 2, "this lane waits already"
        await batch.flush()
    assert (seen == NUMBERS * 4).all()
    assert (await y.to_host() == NUMBERS + 2).all()
    assert (await x.to_host() == NUMBERS + 3).all()


async def test_only_the_first_launch_goes_the_general_way_whatever_its_array_was_made_of(dev, monkeypatch):
    add = await compiled(dev, "add")
    x, y, z = await dev.to_device(NUMBERS), dev.zeros(N, np.int32), dev.full(N, 3, np.int32)
    general = Published(dev, monkeypatch)
    for array in (x, y, z):
        for _ in range(3):
            await add.launch(1, N, array, 1)
        assert general.count == 1
    for array, first in ((x, NUMBERS), (y, 0), (z, 3)):
        assert (await array.to_host() == first + 3).all()


# --- it agrees with the general way -----------------------------------------------------------------------------------

INTEGERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-3, 3),
    st.sampled_from([2**k + d for k in (7, 8, 15, 31, 32, 63, 64) for d in (-1, 0, 1)]),
    st.sampled_from([-(2**k) + d for k in (7, 31, 63) for d in (-1, 0, 1)]),
)
FLOATS = st.one_of(
    st.floats(),
    st.sampled_from([math.inf, -math.inf, math.nan, 3.4028234663852886e38, 3.4028235e38, 1e39, -1e39, 1e308]),
)
ODD = st.sampled_from(
    [
        *(None, "abc", b"", True, False, 1.0, 1j, (), [1], {}, np.zeros(2)),
        *(np.int8(3), np.uint64(2**63), np.int64(-1), np.float32(1.5), np.float64(2.5), np.bool_(True), np.float16(1)),
    ]
)
STRUCTS = st.one_of(
    st.sampled_from([b"", b"12345678", b"123456789", bytearray(8), memoryview(b"12345678")]),
    st.just(np.array((3, 0.5), [("a", "i4"), ("b", "f4")])[()]),
)
ANYTHING = st.one_of(INTEGERS, FLOATS, ODD, STRUCTS)


def mostly(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What a parameter takes, and now and then anything."""
    return st.one_of(usual, usual, usual, ANYTHING)


POINTERS: dict[str, Callable[[Any], Any]] = {
    "array": lambda array: array,
    "read_only": read_only,
    "overwrites": overwrites,
    "view": lambda array: array[:],
    "address": lambda array: array.address,
    "freed": lambda array: (array.free(), array)[1],
    "torn": lambda array: (tear(array._block, ValueError(), begun=1, pieces=2), array)[1],
    "torn and overwritten": lambda array: overwrites(POINTERS["torn"](array)),
}
POINTER = st.one_of(st.sampled_from(["array", "read_only", "view"]), st.sampled_from(list(POINTERS)), ODD)
ARGUMENTS = st.tuples(
    POINTER,
    POINTER,
    mostly(st.integers(-128, 255)),
    mostly(st.integers(-(2**31), 2**32 - 1)),
    mostly(INTEGERS),
    mostly(FLOATS),
    mostly(FLOATS),
    mostly(STRUCTS),
)
USUAL = (1, 2, 3, 0.5, 0.25, b"\1\0\0\0\0\0\0\0")


async def outcome_of(dev: Any, drawn: tuple[Any, ...], *, short: bool) -> tuple[Any, ...]:
    """What a launch comes to on new arrays that the kernel has been launched on before."""
    mix = await compiled(dev, "mix")
    out, source = await dev.to_device(np.zeros(N)), await dev.to_device(NUMBERS)
    way = {} if short else {"lane": dev.compute_lane}
    for _ in range(2):
        await mix.launch(1, 1, out, source, *USUAL, **way)
    handed = [
        POINTERS[each](array) if isinstance(each, str) and each in POINTERS else each
        for each, array in zip(drawn[:2], (out, source), strict=True)
    ]
    try:
        await mix.launch(1, 1, *handed, *drawn[2:], **way)
        error = None
    except DeviceError as refused:
        error = (type(refused), str(refused))
    states = out.state, source.state
    values = await out.to_host() if out.state == "ready" else np.zeros(0)
    return error, states, values.tobytes()


@check_on_device(0.5, ARGUMENTS)
async def test_the_short_way_agrees_with_the_general_one(dev, drawn):
    if any(isinstance(each, int | np.integer | np.bool_) for each in drawn[:2]):
        return  # an address that nobody has: the kernel would fault
    assert await outcome_of(dev, drawn, short=True) == await outcome_of(dev, drawn, short=False)
    assert dev.generation == 1


DIMENSIONS: tuple[Any, ...] = (
    *(1, 2, (2,), (2, 1), (1, 2, 1), [2], [1, 1, 2], np.int64(2), (np.int32(2), 1), True, 1.0, (True, 1), (1.0,)),
    *(0, -1, (), (1, 1, 1, 1), 2**31, "2", None, (1, None), np.array([2]), range(1, 3)),
)


async def test_dimensions_are_taken_and_refused_as_ever(dev):
    blocks = await compiled(dev, "blocks")
    x, y = dev.zeros(4, np.int32), dev.zeros(4, np.int32)
    for _ in range(2):
        await blocks.launch(1, 1, x)
        await blocks.launch(1, 1, y)
    for grid in DIMENSIONS:
        for block in DIMENSIONS:
            ends = []
            for array, way in ((x, {}), (y, {"lane": dev.compute_lane})):
                try:
                    await blocks.launch(grid, block, array, **way)
                    ends.append("")
                except InvalidArgument as error:
                    ends.append(str(error))
            assert ends[0] == ends[1], (grid, block)
    assert (await x.to_host() == await y.to_host()).all()


async def test_dimensions_in_a_list_may_change_between_calls(dev):
    blocks = await compiled(dev, "blocks")
    x = dev.zeros(4, np.int32)
    await blocks.launch(1, 1, x)
    grid, block = [1], [1]
    for size in (1, 2, 3):
        grid[0] = block[0] = size
        await blocks.launch(grid, block, x)
        async with dev.batch() as batch:
            batch.launch(blocks, grid, block, x)
    assert (await x.to_host() == [1 + 2 * (1 + 2 + 3), 2 * (2 + 3), 2 * 3, 0]).all()


async def test_shared_memory_that_is_refused_is_refused_again(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    for _ in range(3):
        await add.launch(1, N, x, 1)
    for bad in (-1, True, 1.0, None, dev.info.max_shared_bytes + 1):
        with pytest.raises(InvalidArgument, match="shared_bytes"):
            await add.launch(1, N, x, 1, shared_bytes=bad)
    await add.launch(1, N, x, 1, shared_bytes=1024)
    assert (await x.to_host() == NUMBERS + 4).all()


async def test_arrays_of_another_device_are_refused_when_the_kernel_is_learnt(dev, open_test_device):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    async with open_test_device() as other:
        theirs_add = await other.nvrtc.compile(SOURCE, "add")
        theirs = await other.to_device(NUMBERS)
        for _ in range(3):
            await add.launch(1, N, x, 1)
            await theirs_add.launch(1, N, theirs, 1)
        for bad in (theirs, read_only(theirs), theirs[1:]):
            with pytest.raises(InvalidArgument, match="another device"):
                await add.launch(1, N, bad, 1)
        assert (await theirs.to_host() == NUMBERS + 3).all()
    assert (await x.to_host() == NUMBERS + 3).all()


async def test_a_refused_launch_leaves_nothing_that_others_would_wait_for(dev):
    mix, copy = await compiled(dev, "mix", "copy")
    out, source, gone = await dev.to_device(np.zeros(N)), await dev.to_device(NUMBERS), await dev.to_device(NUMBERS)
    prepared = copy.prepare(1, N, source, gone)
    for _ in range(3):
        await mix.launch(1, 1, out, source, *USUAL)
        await prepared.launch()
    with pytest.raises(InvalidArgument, match="does not fit"):
        await mix.launch(1, 1, out, source, 1, 2, 3, 1e39, 0.25, USUAL[-1])
    gone.free()
    with pytest.raises(InvalidArgument, match="argument 1 of copy was freed, give another: <DeviceArray"):
        await prepared.launch()
    with trio.fail_after(DEADLINE):
        assert (await source.to_host() == NUMBERS).all()
        assert (await out.to_host())[1] == 3
        await source.copy_from(NUMBERS)


# --- what takes an array from it --------------------------------------------------------------------------------------


async def by_a_launch(dev: Any, lane: Any, x: Any, y: Any) -> None:
    scale = await compiled(dev, "scale")
    scale.launch_nowait(1, N, x, 3, lane=lane)


async def by_a_fill(dev: Any, lane: Any, x: Any, y: Any) -> None:
    with trio.CancelScope() as scope:
        async with dev.batch(lane=lane) as batch:
            batch.fill(x, 5)
            scope.cancel()


async def by_a_copy(dev: Any, lane: Any, x: Any, y: Any) -> None:
    with trio.CancelScope() as scope:
        async with dev.batch(lane=lane) as batch:
            batch.copy_from(x, y)
            scope.cancel()


async def by_a_reader(dev: Any, lane: Any, x: Any, y: Any) -> None:
    copy = await compiled(dev, "copy")
    copy.launch_nowait(1, N, read_only(x), y, lane=lane)


TAKEN = {by_a_launch: (NUMBERS * 3, 7), by_a_fill: (NUMBERS * 0 + 5, 7), by_a_copy: (NUMBERS * 0 + 7, 7)}
TAKEN[by_a_reader] = (NUMBERS, NUMBERS)
"""What the two arrays hold when the other lane has done its work."""


@pytest.mark.parametrize("take", TAKEN)
@pytest.mark.parametrize("batched", [False, True])
async def test_work_of_another_lane_comes_first_although_the_array_was_learnt(take, batched, dev, monkeypatch):
    add = await compiled(dev, "add")
    await compiled(dev, "scale", "copy")
    x, y = await dev.to_device(NUMBERS), dev.full(N, 7, np.int32)
    await y.to_host()
    await x.fill(0)
    await x.copy_from(NUMBERS)
    general = Published(dev, monkeypatch)
    async with dev.lane() as lane, trio.open_nursery() as nursery, dev.batch() as batch:
        for _ in range(3):
            await add.launch(1, N, x, 0)
            batch.launch(add, 1, N, x, 0)
        await batch.flush()
        learnt = general.count
        async with gated(dev, lane):
            await take(dev, lane, x, y)
            if batched:
                batch.launch(add, 1, N, x, 1)
            else:
                nursery.start_soon(add.launch, 1, N, x, 1)
                await until(lambda: dev.statistics().lanes[0].unfinished)
        seen = batch.to_host(x)
        await batch.flush()
        before, other = TAKEN[take]
        assert (seen == before + 1).all()
        assert (await y.to_host() == other).all()
        assert general.count > learnt
        await add.launch(1, N, x, 1)
        learnt = general.count
        await add.launch(1, N, x, 1)
        assert general.count == learnt, "and it is learnt again"
    assert (await x.to_host() == before + 3).all()


async def test_a_freed_a_torn_and_a_lost_array_are_refused_although_they_were_learnt(dev):
    add = await compiled(dev, "add")
    freed, torn, lost = [await dev.to_device(NUMBERS) for _ in range(3)]
    prepared = [add.prepare(1, N, x, 1) for x in (freed, torn)]
    for _ in range(3):
        for x in (freed, torn, lost):
            await add.launch(1, N, x, 1)
        for each in prepared:
            await each.launch()
    freed.free()
    tear(torn._block, ValueError(), begun=1, pieces=2)
    async with dev.batch() as batch:
        for _ in range(2):
            for launch in (lambda x: add.launch(1, N, x, 1), lambda x: prepared[x is torn].launch()):
                with pytest.raises(InvalidArgument, match="freed"):
                    await launch(freed)
                with pytest.raises(StaleArray, match="torn"):
                    await launch(torn)
            with pytest.raises(InvalidArgument, match="freed"):
                batch.launch(prepared[0])
            with pytest.raises(StaleArray, match="torn"):
                batch.launch(prepared[1])
            batch.launch(add, 1, N, overwrites(lost), 1)
    with hold_worker(dev):
        add.launch_nowait(1, N, lost, 1)
        kill_worker(dev)
    await next_generation(dev, 1)
    with pytest.raises(StaleArray, match="launch of add was writing it"):
        await add.launch(1, N, lost, 1)


async def test_an_heir_of_freed_memory_waits_for_a_short_launch(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    address = x.address
    for _ in range(3):
        await add.launch(1, N, x, 1)
    async with trio.open_nursery() as nursery, gated(dev):
        nursery.start_soon(add.launch, 1, N, x, 1)
        await until(lambda: dev.statistics().lanes[0].unfinished == 2)
        x.free()
        heir = dev.empty(N, np.int32)
        assert heir.address == address
        nursery.start_soon(heir.copy_from, NUMBERS * 5)
        await until(lambda: dev.statistics().lanes[1].waits == 1)
    assert (await heir.to_host() == NUMBERS * 5).all()


async def test_a_launch_does_not_overtake_one_that_waits_for_room(dev, monkeypatch):
    add, scale = await compiled(dev, "add", "scale")
    x = await dev.to_device(NUMBERS)
    for _ in range(3):
        await add.launch(1, N, x, 0)
        await scale.launch(1, N, x, 1)
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            with hold_worker(dev):
                until_full(lambda: add.launch_nowait(1, N, x, 0))
                nursery.start_soon(add.launch, 1, N, x, 1)
                await until(lambda: dev.statistics().lanes[0].waiting == 1)
                nursery.start_soon(scale.launch, 1, N, x, 3)
                await trio.testing.wait_all_tasks_blocked(0.01)
    assert (await x.to_host() == (NUMBERS + 1) * 3).all()


# --- the wait ---------------------------------------------------------------------------------------------------------


def settled(dev: Any) -> dict[str, int]:
    return dict(next(actor.settled for actor in dev.statistics().actors if actor.name == "module"))


async def learnt(dev: Any) -> tuple[Any, Any]:
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    for _ in range(3):
        await add.launch(1, N, x, 0)
    return add, x


async def test_a_short_launch_is_a_checkpoint_and_never_begins_in_a_cancelled_scope(dev):
    add, x = await learnt(dev)
    prepared = add.prepare(1, N, x, 1)
    await prepared.launch()
    for launch in (lambda: add.launch(1, N, x, 1), prepared.launch):
        with trio.testing.assert_checkpoints():
            await launch()
        with trio.CancelScope() as scope:
            scope.cancel()
            await launch()
        assert scope.cancelled_caught
    assert (await x.to_host() == NUMBERS + 3).all()


async def test_a_short_launch_is_cancelled_at_once_and_goes_on(dev):
    add, x = await learnt(dev)
    before = settled(dev)
    async with gated(dev):
        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(add.launch, 1, N, x, 1)
                await until(lambda: dev.statistics().lanes[0].unfinished == 4)
                nursery.cancel_scope.cancel()
        assert dev.statistics().lanes[0].unfinished == 4
    assert (await x.to_host() == NUMBERS + 3).all()
    assert settled(dev)["abandoned"] == before["abandoned"] + 3


async def test_each_short_launch_that_a_loss_hits_gets_an_error_of_its_own(dev):
    add, x = await learnt(dev)
    errors = []

    async def launch() -> None:
        with pytest.raises(ContextLost, match="SIGKILL") as caught:
            await add.launch(1, N, x, 1)
        errors.append(caught.value)

    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            with hold_worker(dev):
                for _ in range(5):
                    nursery.start_soon(launch)
                await until(lambda: dev.statistics().lanes[0].unfinished == 5)
                kill_worker(dev)
    assert len(set(map(id, errors))) == 5
    assert x.state == "torn"
    await next_generation(dev, 1)
    await x.copy_from(NUMBERS)
    await add.launch(1, N, x, 1)
    assert (await x.to_host() == NUMBERS + 1).all()
    assert all(actor.unsettled == 0 for actor in dev.statistics().actors)


async def test_many_tasks_launch_the_short_way_at_once(dev):
    add, x = await learnt(dev)
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(add.launch, 1, N, x, number)
    assert (await x.to_host() == NUMBERS + sum(range(300))).all()


# --- prepared launches ------------------------------------------------------------------------------------------------


async def test_a_prepared_launch_is_a_list_of_its_arguments(dev):
    add = await compiled(dev, "add")
    x, y = await dev.to_device(NUMBERS), dev.zeros(N, np.int32)
    prepared = add.prepare(1, N, x, 5)
    assert (len(prepared), prepared[0], prepared[1], prepared[-1]) == (2, x, 5, 5)
    assert prepared.arguments == (x, 5)
    assert prepared.kernel is add
    assert repr(prepared) == f"<PreparedLaunch of add, grid 1, block {N}>"
    for _ in range(3):
        await prepared.launch()
    for index, bad in ((0, None), (0, "x"), (1, 2**40), (1, 1.5), (-1, x)):
        with pytest.raises(InvalidArgument):
            prepared[index] = bad
    for index in (2, -3):
        with pytest.raises(IndexError):
            prepared[index] = 1
        with pytest.raises(IndexError):
            prepared[index]
    assert prepared.arguments == (x, 5), "what is refused changes nothing"
    prepared[0], prepared[-1] = y, 7
    await prepared.launch()
    prepared.launch_nowait()
    await prepared.launch(lane=dev.compute_lane, hang_timeout=30)
    assert (await x.to_host() == NUMBERS + 15).all()
    assert (await y.to_host() == 21).all()
    for bad_call in ((0, N, x, 1), (1, N, x), (1, 2000, x, 1), (1, N, x, None)):
        with pytest.raises(InvalidArgument):
            add.prepare(*bad_call)


async def test_launches_that_were_made_keep_their_arguments(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    prepared = add.prepare(1, N, x, 0)
    for _ in range(2):
        await prepared.launch()
    async with trio.open_nursery() as nursery, gated(dev):
        for number in range(1, 6):
            prepared[1] = number
            before = dev.statistics().lanes[0].submitted
            nursery.start_soon(prepared.launch)
            await until(lambda before=before: dev.statistics().lanes[0].submitted > before)
        prepared[1] = 1000
    assert (await x.to_host() == NUMBERS + 15).all()


async def test_a_prepared_launch_outlives_a_generation(dev):
    add = await compiled(dev, "add")
    x = await dev.to_device(NUMBERS)
    prepared = add.prepare(1, N, x, 1)
    for generation in (1, 2):
        for _ in range(3):
            await prepared.launch()
        kill_worker(dev)
        await next_generation(dev, generation)
    async with dev.batch() as batch:
        for _ in range(3):
            batch.launch(prepared)
    assert (await x.to_host() == NUMBERS + 9).all()


def test_an_interrupt_in_the_middle_of_a_launch_waits_for_its_end(open_test_device, monkeypatch):
    """What is half noted would give the next launch the same ticket."""
    launched: list[int] = []

    async def main() -> None:
        async with open_test_device() as dev:
            sender, armed = core_of(dev).current.sender, False
            announce = sender.announce

            def interrupted() -> None:
                announce()
                if armed:
                    signal.raise_signal(signal.SIGINT)

            monkeypatch.setattr(sender, "announce", interrupted)
            x, add = await dev.to_device(NUMBERS), await compiled(dev, "add")
            async with dev.batch() as batch:
                batch.launch(add, 1, N, x, 1)
                await batch.flush()
                book = core_of(dev).current.timeline.lanes[0]
                before = book.issued
                armed = True
                try:
                    for _ in range(32):
                        batch.launch(add, 1, N, x, 1)
                        launched.append(book.issued - before)
                    await trio.sleep_forever()
                finally:
                    armed = False
                    with trio.CancelScope(shield=True):
                        result = await x.to_host()
                    assert (result == NUMBERS + 1 + len(launched)).all()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert launched[-1] == len(launched) >= 15


async def test_a_launch_that_is_waited_for_joins_no_group_that_has_ended(open_test_device):
    """In one stretch of records: a launch of a batch, work of another lane, an awaited launch, other work."""
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            x, y, add = await dev.to_device(NUMBERS), await dev.to_device(NUMBERS), await compiled(dev, "add")
            z = await dev.to_device(NUMBERS)
            for _ in range(2):
                await add.launch(1, N, x, 1)
            async with dev.batch() as batch, trio.open_nursery() as nursery:
                batch.launch(add, 1, N, x, 1)
                await batch.flush()
                with hold_worker(dev):
                    batch.launch(add, 1, N, x, 1)
                    batch.copy_from(y, NUMBERS + 5)
                    nursery.start_soon(add.launch, 1, N, x, 1)
                    await trio.testing.wait_all_tasks_blocked()
                    batch.fill(z, 7)
            assert dev.generation == 1
            assert (await x.to_host() == NUMBERS + 5).all()
            assert (await y.to_host() == NUMBERS + 5).all()
            assert (await z.to_host() == 7).all()
