"""Commands of several devices on the same memory: which waits for which, what a caller sees, and what is given back."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_cuda.injection import FAULTS_VARIABLE
from atomr_trio import (
    CommandFailed,
    ContextLost,
    DeviceClosed,
    DeviceFailed,
    InvalidArgument,
    RestartPolicy,
    StaleArray,
    read_only,
)
from atomr_trio._arrays.memory import DeviceMemory
from atomr_trio._device import supervisor
from atomr_trio._device.device import core_of
from atomr_trio._generation.adoption import reap
from atomr_trio._generation.peers import Peers
from atomr_trio._memory.arena import ChunkState
from atomr_trio.testing import ReturnStatus, inject
from support.groups import found_apart, open_group
from support.rogue import WILD, compile_rogue, gated, kill_worker, next_generation, until

ANY_NUMBER = RestartPolicy(intensity=math.inf, backoff_min=0.01)
DEADLINE = 300
N = 1000
NUMBERS = np.arange(N, dtype=np.int32)
MIB = 1 << 20
ADD = """
extern "C" __global__ void add(int *x, const int *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += y[i];
}
"""
SHAPE = (-(-N // 128), 128)


@pytest.fixture
async def pair() -> AsyncIterator[Any]:
    async with open_group(2, restart_policy=ANY_NUMBER) as devices:
        with trio.fail_after(DEADLINE):
            yield devices


async def waits(call: Any) -> bool:
    """Whether a call still waits when nothing else can go on."""
    await trio.testing.wait_all_tasks_blocked(0.02)
    return not call.answered


class Call:
    """A call in a task of its own."""

    def __init__(self, nursery: trio.Nursery, function: Any, *arguments: Any) -> None:
        self.answered = False
        self.error: Exception | None = None
        nursery.start_soon(self._run, function, *arguments)

    async def _run(self, function: Any, *arguments: Any) -> None:
        try:
            await function(*arguments)
        except Exception as error:
            self.error = error
        self.answered = True


# --- which waits for which --------------------------------------------------------------------------------------------


async def test_a_copy_waits_for_the_owners_write_and_only_for_that(pair):
    a, b = pair
    (touch,) = await compile_rogue(a, "touch")
    x, apart, y = await a.to_device(NUMBERS), await a.to_device(NUMBERS), b.zeros(N, np.int32)
    async with gated(a) as gate, trio.open_nursery() as nursery:
        touch.launch_nowait(*SHAPE, x, N)
        copying = Call(nursery, y.copy_from, x)
        assert await waits(copying)
        await b.zeros(3).fill(1)
        await y.copy_from(apart)
        assert (await y.to_host() == NUMBERS).all()
        await gate.open()
    assert (await y.to_host() == NUMBERS + 1).all()


async def test_the_owner_reads_beside_a_copy_and_writes_behind_it(pair):
    a, b = pair
    (touch,) = await compile_rogue(a, "touch")
    x, y = await a.to_device(NUMBERS), b.zeros(N, np.int32)
    await y.fill(0)
    async with gated(b) as gate, trio.open_nursery() as nursery:
        copying = Call(nursery, y.copy_from, x)
        assert await waits(copying)
        assert (await x.to_host() == NUMBERS).all(), "to read beside a reader waits for nothing"
        writing = Call(nursery, touch.launch, *SHAPE, x, N)
        assert await waits(writing)
        await gate.open()
    assert (await y.to_host() == NUMBERS).all()
    assert (await x.to_host() == NUMBERS + 1).all()


async def test_two_devices_take_turns_at_an_array_that_both_write(pair):
    a, _ = pair
    kernels = [await dev.nvrtc.compile(ADD, "add") for dev in pair]
    ones = [await dev.to_device(np.ones(N, np.int32)) for dev in pair]
    x = await a.to_device(NUMBERS)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            for kernel, one in zip(kernels, ones, strict=True):
                nursery.start_soon(kernel.launch, *SHAPE, x, one, N)
    assert (await x.to_host() == NUMBERS + 40).all()


async def test_a_copy_inside_the_batch_that_writes_its_source_waits_for_that(pair):
    """The launches of a batch share a ticket at its end, for which the copy need not wait."""
    a, b = pair
    (touch,) = await compile_rogue(a, "touch")
    x, y = await a.to_device(NUMBERS), b.zeros(N, np.int32)
    async with a.batch() as batch:
        for number in range(1, 4):
            for _ in range(5):
                batch.launch(touch, *SHAPE, x, N)
            await y.copy_from(x)
            assert (await y.to_host() == NUMBERS + 5 * number).all()


async def test_whoever_does_not_wait_is_told_why(pair):
    a, b = pair
    (touch,) = await compile_rogue(a, "touch")
    x, y = await a.to_device(NUMBERS), b.zeros(N, np.int32)
    await y.copy_from(x)
    async with gated(b) as gate, trio.open_nursery() as nursery:
        copying = Call(nursery, y.copy_from, x)
        assert await waits(copying)
        with pytest.raises(trio.WouldBlock, match="memory that another device of the group still uses"):
            touch.launch_nowait(*SHAPE, x, N)
        async with a.batch() as batch:
            with pytest.raises(trio.WouldBlock, match="memory that another device of the group still uses"):
                batch.launch(touch, *SHAPE, x, N)
            with pytest.raises(trio.WouldBlock, match="memory that another device of the group still uses"):
                batch.copy_from(x, NUMBERS)
            assert (batch.to_host(x)).shape == (N,), "to read it is allowed"
        await gate.open()
    touch.launch_nowait(*SHAPE, x, N)
    assert (await x.to_host() == NUMBERS + 1).all()


async def test_copies_of_one_batch_and_launches_of_another_exclude_each_other(pair):
    """The short ways of both devices take turns: what is written is never copied half."""
    a, b = pair
    (touch,) = await compile_rogue(a, "touch")
    x, y = await a.to_device(NUMBERS), b.zeros(N, np.int32)
    await y.copy_from(x)
    for number in range(1, 30):
        async with a.batch() as batch:
            for _ in range(3):
                batch.launch(touch, *SHAPE, x, N)
        async with b.batch() as batch:
            for _ in range(3):
                batch.copy_from(y, x)
        assert (await y.to_host() == NUMBERS + 3 * number).all()
        await x.copy_from(NUMBERS + 3 * number)


async def test_a_cancelled_copy_never_runs_while_it_waits_for_another_device(pair):
    a, b = pair
    (touch,) = await compile_rogue(a, "touch")
    x, y = await a.to_device(NUMBERS), await b.to_device(NUMBERS)
    async with gated(a):
        touch.launch_nowait(*SHAPE, x, N)
        with trio.move_on_after(0.05) as scope:
            await y.copy_from(x)
        assert scope.cancelled_caught
    assert (await x.to_host() == NUMBERS + 1).all()
    assert (await y.to_host() == NUMBERS).all()


# --- memory -----------------------------------------------------------------------------------------------------------


async def test_memory_that_is_freed_under_a_copy_is_not_given_away_before_its_end(pair):
    a, b = pair
    x, y = await a.to_device(NUMBERS), b.zeros(N, np.int32)
    await y.fill(0)
    async with gated(b) as gate, trio.open_nursery() as nursery:
        copying = Call(nursery, y.copy_from, x)
        assert await waits(copying)
        address = x.address
        x.free()
        others = [await a.to_device(np.full(N, 7, np.int32)) for _ in range(3)]
        assert all(each.address != address for each in others)
        await gate.open()
    assert (await y.to_host() == NUMBERS).all()
    await until(lambda: not core_of(a).part(Peers)._held)
    assert a.empty(N, np.int32).address == address


async def test_memory_whose_array_is_collected_under_a_copy_is_not_given_away_either(pair):
    a, b = pair
    y = b.zeros(N, np.int32)
    await y.fill(0)
    async with gated(b) as gate, trio.open_nursery() as nursery:
        x = await a.to_device(NUMBERS)
        address = x.address
        with trio.CancelScope() as leaving:
            leaving.deadline = trio.current_time() + 0.05
            await y.copy_from(x)
        assert leaving.cancelled_caught
        core_of(b).current.timeline.lanes[0].in_flight[-1].owner.keep = None
        del x
        others = [await a.to_device(np.full(N, 7, np.int32)) for _ in range(3)]
        assert all(each.address != address for each in others)
        await gate.open()
        nursery.cancel_scope.cancel()
    assert (await y.to_host() == NUMBERS).all()


async def test_a_new_array_of_another_device_gets_its_memory_and_its_contents_first(pair):
    a, b = pair
    y = b.empty(N, np.int32)
    await y.copy_from(a.full(N, 9, np.int32))
    assert (await y.to_host() == 9).all()
    large = a.zeros(70 * MIB, np.uint8)  # in a chunk of its own
    with pytest.raises(trio.WouldBlock, match="no memory yet on its own device"):
        async with b.batch() as batch:
            batch.copy_from(b.empty(70 * MIB, np.uint8), large)
    target = b.empty(70 * MIB, np.uint8)
    await target.copy_from(large)
    assert not (await target[-100:].to_host()).any()


async def test_chunks_that_are_given_back_are_given_back_by_every_worker(pair):
    a, b = pair
    x, y = a.zeros(100 * MIB, np.uint8), b.empty(100 * MIB, np.uint8)
    await y.copy_from(x)
    peers = core_of(b).part(Peers)
    assert any(chunk.state is ChunkState.READY for chunk in peers._chunks.values())
    x.free()
    assert await a.trim() > 0
    await until(lambda: not peers._chunks)
    await y.fill(1)  # behind the release
    assert not core_of(b).current.chunks._peer_chunks
    z = a.full(100 * MIB, 5, np.uint8)  # at the same addresses
    await y.copy_from(z)
    assert (await y[-100:].to_host() == 5).all()


@pytest.mark.sim_only
async def test_a_worker_that_cannot_map_the_memory_fails_that_copy_alone(pair):
    a, b = pair
    x, y = a.zeros(70 * MIB, np.uint8), b.empty(70 * MIB, np.uint8)  # in chunks of their own
    inject(b, "cuMemImportFromShareableHandle", ReturnStatus(1))
    with pytest.raises(CommandFailed, match="cuMemImportFromShareableHandle: invalid argument"):
        await y.copy_from(x)
    assert b.generation == 1
    await y.copy_from(x)
    assert not (await y[-100:].to_host()).any()


# --- losses -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def held_reaps(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """No lost worker is reaped before this is set."""
    allowed = trio.Event()

    async def held(process: Any) -> None:
        process.kill()
        with trio.CancelScope(shield=True):
            await allowed.wait()
        await reap(process)

    monkeypatch.setattr(supervisor, "reap", held)
    return allowed


@pytest.mark.parametrize("who", ["owner", "other"])
async def test_memory_in_quarantine_of_one_device_is_in_quarantine_for_all(held_reaps, who):
    async with open_group(2, standby=1, restart_policy=ANY_NUMBER) as (a, b):
        with trio.fail_after(DEADLINE):
            for dev in (a, b):
                await dev.wait_standby()
            x, y, apart = await a.to_device(NUMBERS), await b.to_device(NUMBERS), await a.to_device(NUMBERS)
            await y.copy_from(x)
            loser = a if who == "owner" else b
            (wild,) = await compile_rogue(loser, "wild")
            with pytest.raises(ContextLost):
                await wild.launch(1, 1, WILD, touches=(x,))
            assert x.state == "torn"
            await y.copy_from(apart)
            async with trio.open_nursery() as nursery:
                writing = Call(nursery, x.copy_from, NUMBERS + 1)
                reading = Call(nursery, y.copy_from, x)
                assert await waits(writing)
                held_reaps.set()
            assert isinstance(reading.error, StaleArray) or reading.error is None
            assert (await x.to_host() == NUMBERS + 1).all()


async def test_a_takeover_finds_the_other_devices_memory_mapped(pair):
    async with open_group(2, standby=1, restart_policy=ANY_NUMBER) as (a, b):
        with trio.fail_after(DEADLINE):
            x, y = await a.to_device(NUMBERS), await b.to_device(NUMBERS)
            await b.wait_standby()
            await y.copy_from(x)  # mapped now, and by the standby behind
            (chunk,) = core_of(b).part(Peers)._chunks.values()
            (standby,) = core_of(b).standbys.generations
            await until(lambda: standby.chunks.has_peer(chunk))
            kill_worker(b)
            await next_generation(b, 1)
            assert core_of(b).current is standby
            assert chunk.state is ChunkState.READY
            await y.copy_from(x)
            await b.wait_standby()  # the next one is told when it is adopted
            assert core_of(b).standbys.generations[0].chunks.has_peer(chunk)
            kill_worker(a)
            await next_generation(a, 1)
            await y.copy_from(x)
            assert (await y.to_host() == NUMBERS).all()


async def test_an_array_is_copied_while_its_own_device_is_rebuilt(pair):
    a, b = pair
    x, y = await a.to_device(NUMBERS), b.zeros(N, np.int32)
    await y.copy_from(x)
    await y.fill(0)
    core_of(a).rebuild_held = held = trio.Event()
    kill_worker(a)
    await until(lambda: a.state.value == "rebuilding")
    await until(lambda: not core_of(a).current.timeline.lanes[0].busy)
    await y.copy_from(x)
    assert (await y.to_host() == NUMBERS).all()
    held.set()
    await next_generation(a, 1)


# --- what is refused --------------------------------------------------------------------------------------------------


async def test_kernels_take_other_devices_arrays_only_where_that_was_asked_for():
    async with open_group(2, peers=False) as (a, b):
        x, y = await a.to_device(NUMBERS), await b.to_device(NUMBERS)
        add = await b.nvrtc.compile(ADD, "add")
        with pytest.raises(InvalidArgument, match=r"open_devices\(\.\.\., peers=True\)"):
            await add.launch(*SHAPE, y, x, N)
        with pytest.raises(InvalidArgument, match="device 0"):
            add.launch_nowait(*SHAPE, y, read_only(x), N)
        await y.copy_from(x)
        assert (await y.to_host() == NUMBERS).all()


async def test_other_verbs_and_graphs_take_arrays_of_their_own_device_alone(pair):
    a, b = pair
    x, y = await a.to_device(NUMBERS), await b.to_device(NUMBERS)
    add = await b.nvrtc.compile(ADD, "add")
    await add.launch(*SHAPE, y, x, N)
    with pytest.raises(InvalidArgument, match="a graph takes arrays of its own device alone"):
        await b.capture(lambda graph: graph.launch(add, *SHAPE, y, x, N))
    with pytest.raises(InvalidArgument, match="belongs to another device"):
        await b.blas.copy(await a.to_device(np.ones(4, np.float32)), await b.to_device(np.ones(4, np.float32)))
    with pytest.raises(InvalidArgument, match="shapes differ"):
        await y.copy_from(x[:10])


async def test_devices_that_were_opened_apart_say_how_to_open_them_together(open_test_device):
    async with open_test_device() as a, open_test_device() as b:
        x, y = await a.to_device(NUMBERS), await b.to_device(NUMBERS)
        with pytest.raises(InvalidArgument, match="open_devices"):
            await y.copy_from(x)


async def prove_that_copies_go_through_the_host_and_kernels_are_refused(a: Any, b: Any) -> None:
    host = np.arange(20_000_000, dtype=np.int32).reshape(400, -1)
    x, y = await a.to_device(host), b.empty(host.shape, np.int32)
    await y.copy_from(x)
    assert (await y.to_host() == host).all()
    await y[:200:2, :300:3].copy_from(x[201::2, 100:400:3])
    assert (await y[:200:2, :300:3].to_host() == host[201::2, 100:400:3]).all()
    async with b.batch() as batch:
        with pytest.raises(InvalidArgument, match="goes through the host"):
            batch.copy_from(y, x)
    add = await b.nvrtc.compile(ADD, "add")
    with pytest.raises(InvalidArgument, match="device 1 has no peer access to device 0"):
        await add.launch(*SHAPE, y, x, N)
    scalar = b.zeros((), np.int32)
    await scalar.copy_from(await a.to_device(np.array(3, np.int32)))
    assert await scalar.to_host() == 3
    for member in (a, b):
        assert not core_of(member).part(Peers).wanted(), "nothing of the other device is mapped"


@pytest.mark.sim_only
async def test_where_the_driver_grants_no_access_copies_go_through_the_host_and_kernels_are_refused():
    async with open_group(2, access="0") as pair:
        assert [member.info.peers for member in pair] == [(), ()]
        await prove_that_copies_go_through_the_host_and_kernels_are_refused(*pair)


async def test_where_access_is_known_not_to_work_copies_go_through_the_host_and_kernels_are_refused():
    with found_apart():
        async with open_group(2) as pair:
            await prove_that_copies_go_through_the_host_and_kernels_are_refused(*pair)


async def test_an_array_that_is_shared_with_another_library_is_copied_by_its_own_device(pair):
    a, b = pair
    x, y = await a.to_device(NUMBERS), await b.to_device(NUMBERS)
    await y.copy_from(x)
    if core_of(a).backend == "cuda":
        pytest.skip("a consumer on a GPU is needed")
    async with gated(b) as gate, trio.open_nursery() as nursery:
        copying = Call(nursery, y.copy_from, x)
        assert await waits(copying)
        with pytest.raises(BufferError, match="another device of the group still works on the array"):
            np.from_dlpack(x)
        await gate.open()
    shared = np.from_dlpack(x)
    shared[:] = 5
    await y.copy_from(x)
    assert (await y.to_host() == 5).all()


async def test_views_of_every_form_and_of_nothing_are_copied(pair):
    a, b = pair
    host = np.arange(6 * 50 * 7, dtype=np.float32).reshape(6, 50, 7)
    x = await a.to_device(host)
    for index in (
        np.s_[:],
        np.s_[1:3],
        np.s_[:, ::2],
        np.s_[:, :, 3],
        np.s_[::-1],
        np.s_[2, 5, 1],
        np.s_[0:0],
        np.s_[:, ::-3],
    ):
        y = b.empty(host[index].shape, np.float32)
        await y.copy_from(x[index])
        np.testing.assert_array_equal(await y.to_host(), host[index])
        async with b.lane() as lane, b.batch(lane=lane) as batch:
            if host[index].strides == tuple(map(abs, host[index].strides)):
                batch.fill(y, 0)
                batch.copy_from(y, x[index])
        if y.size:
            np.testing.assert_array_equal(await y.to_host(), host[index])


async def test_the_statistics_and_the_map_of_a_device_show_its_own_memory_alone(pair):
    a, b = pair
    x, y = await a.to_device(NUMBERS), await b.to_device(NUMBERS)
    before = b.statistics().memory
    await y.copy_from(x)
    assert b.statistics().memory == before
    assert core_of(b).part(DeviceMemory).arena.blocks == {y._block}


@pytest.mark.sim_only
async def test_peer_access_that_delivers_other_bytes_is_found_at_opening_and_not_used(monkeypatch, caplog):
    monkeypatch.setenv(FAULTS_VARIABLE, "cuMemcpyDtoDAsync:0:1*")  # it claims to have copied
    async with open_group(2) as (a, b):
        x, y = await a.to_device(NUMBERS), await b.to_device(NUMBERS * 2)
        await y.copy_from(x)
        assert (await y.to_host() == NUMBERS).all()
        add = await b.nvrtc.compile(ADD, "add")
        with pytest.raises(InvalidArgument, match="device 1 has no peer access to device 0"):
            await add.launch(*SHAPE, y, x, N)
    assert "device 1 does not read the memory of device 0" in caplog.text


async def test_an_array_of_another_device_becomes_one_of_this_device(pair):
    a, b = pair
    x = await a.to_device(NUMBERS.reshape(10, -1))
    y = await b.to_device(x[::2])
    assert y.device is b
    async with b.batch() as batch:
        z = batch.to_device(x)
    for array, right in ((y, NUMBERS.reshape(10, -1)[::2]), (z, NUMBERS.reshape(10, -1))):
        assert (await array.to_host() == right).all()


async def test_arrays_of_a_device_that_was_dropped_say_so():
    once = RestartPolicy(intensity=0)
    async with open_group(2, on_device_failed="drop", restart_policy=once, group_policy=ANY_NUMBER) as (a, b):
        x, y = await a.to_device(NUMBERS), await b.to_device(NUMBERS)
        add = await b.nvrtc.compile(ADD, "add")
        await y.copy_from(x)
        await add.launch(*SHAPE, y, x, N)
        kill_worker(a)
        await until(lambda: a.state.value == "failed")
        with pytest.raises(DeviceFailed):
            await y.copy_from(x)
        with pytest.raises(DeviceFailed):
            await add.launch(*SHAPE, y, x, N)
        async with b.batch() as batch:
            with pytest.raises(DeviceFailed):
                batch.copy_from(y, x)
        await until(lambda: not core_of(b).part(Peers)._chunks)
        assert (await y.to_host() == NUMBERS * 2).all()


async def test_work_that_is_renewed_all_the_time_keeps_nobody_waiting_for_ever(pair):
    a, b = pair
    (touch,) = await compile_rogue(a, "touch")
    (other,) = await compile_rogue(b, "touch")
    x, y = await a.to_device(NUMBERS), b.zeros(N, np.int32)
    over = False

    async def write(kernel: Any) -> None:
        while not over:
            await kernel.launch(*SHAPE, x, N)

    async with trio.open_nursery() as nursery:
        for kernel in (touch, touch, touch, other, other):
            nursery.start_soon(write, kernel)
        before = -1
        for _ in range(10):
            await y.copy_from(x)
            found = await y.to_host() - NUMBERS
            assert (found == found[0]).all(), "a copy has met a kernel in its midst"
            assert found[0] >= before
            before = found[0]
        over = True


async def test_a_cancelled_request_lets_those_behind_it_go_on(pair):
    a, b = pair
    (touch,) = await compile_rogue(a, "touch")
    x, y = await a.to_device(NUMBERS), b.zeros(N, np.int32)
    await y.copy_from(x)
    async with gated(a) as gate, trio.open_nursery() as nursery:
        touch.launch_nowait(*SHAPE, x, N)
        with trio.CancelScope() as leaving:
            nursery.start_soon(leave_soon, leaving)
            await y.copy_from(x)
        assert leaving.cancelled_caught
        touch.launch_nowait(*SHAPE, x, N)  # nobody waits in front of it
        await gate.open()
    assert (await x.to_host() == NUMBERS + 2).all()
    assert not core_of(a).group.wishes


async def leave_soon(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked(0.02)
    scope.cancel()


@pytest.mark.parametrize("when", ["first", "after the loss of the worker", "after the loss of the owner"])
async def test_a_thousand_copies_in_one_batch_whether_the_memory_is_mapped_or_not(pair, when):
    a, b = pair
    large = a.zeros(70 * MIB, np.uint8)  # in a chunk that nobody else has mapped
    await large.fill(3)
    y = [b.empty(100, np.uint8) for _ in range(10)]
    if when != "first":
        lost = b if when == "after the loss of the worker" else a
        await y[0].copy_from(large[:100])
        generation = lost.generation
        kill_worker(lost)
        await next_generation(lost, generation)
    async with b.batch() as batch:
        for number in range(1000):
            batch.copy_from(y[number % 10], large[number * 100 : (number + 1) * 100])
    for each in y:
        assert (await each.to_host() == 3).all()
    assert a.generation + b.generation == (2 if when == "first" else 3)


@pytest.mark.parametrize("gated_device", [0, 1])
async def test_closing_in_the_middle_of_a_copy_settles_it_once(gated_device):
    """It is under way on its own device, or waits for what the other one does."""
    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as outer:
            async with open_group(2, close_timeout=0.2) as devices:
                a, b = devices
                (spin,) = await compile_rogue(devices[gated_device], "spin")
                (touch,) = await compile_rogue(a, "touch")
                word = devices[gated_device].zeros(1, np.int32)
                await word.to_host()
                x, y = await a.to_device(NUMBERS), await b.to_device(NUMBERS)
                await y.copy_from(x)
                spin.launch_nowait(1, 1, word.address)
                if gated_device == 0:
                    touch.launch_nowait(*SHAPE, x, N)
                copying = Call(outer, y.copy_from, x)
                assert await waits(copying)
        assert isinstance(copying.error, DeviceClosed)
