"""Batches of thousands of calls of every verb, cold or warm, in any generation; what bounds and what ends them."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

import atomr_trio
from atomr_trio import ContextLost, InvalidArgument, read_only
from atomr_trio._calls import batch_sender, launching
from atomr_trio._calls.verbs import is_verb
from atomr_trio._device import supervisor, workers
from atomr_trio._device.device import core_of
from atomr_trio._generation import admission as _admission
from atomr_trio._transfers import batch_areas as _batch_areas
from atomr_trio._transfers.batch_areas import BATCH_BYTES, FIRST_AREA
from atomr_trio._transfers.staging import SMALL_SLOTS, STAGING_BYTES, TINY_SLOTS
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._wire.protocol import BATCH_LIMIT, HEADER, LANE_COPY_OUT, LANE_LIMIT
from atomr_trio._wire.ring import SLOTS
from atomr_trio.testing import endless_kernel, hold_rebuild, hold_worker
from support import open_test_device, set_constant
from support.draws import DRAWS
from support.fft_callbacks import scaled
from support.rogue import compile_rogue, gated, kill_worker, next_generation, until, until_full

DEADLINE = 60
MANY = BATCH_LIMIT
SOME = LANE_LIMIT + 100
"""More than a lane takes of what is not a batch's."""
KIB_64 = 64 << 10
SOURCE = r"""
extern "C" __global__ void add(int *x, int a) { x[0] += a; }
extern "C" __global__ void twice(int *x) { x[0] *= 2; }
"""


async def compiled(dev: Any, name: str = "add") -> Any:
    return await dev.nvrtc.compile(SOURCE, name)


# --- launches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [LANE_LIMIT, MANY])
async def test_a_batch_may_be_the_first_to_launch_a_kernel(dev, count):
    add = await compiled(dev)
    x = dev.zeros(1, np.int32)
    async with dev.batch() as batch:
        for _ in range(count):
            batch.launch(add, 1, 1, x, 1)
    assert await x.to_host() == count


async def goes_on_after_faults(dev: Any, count: int, faults: int) -> None:
    """The kernel is cold again in each new generation, launched or prepared."""
    add, (wild,) = await compiled(dev), await compile_rogue(dev, "wild")
    x, y = dev.zeros(1, np.int32), dev.zeros(1, np.int32)
    prepared = add.prepare(1, 1, y, 1)
    for generation in range(1, faults + 2):
        async with dev.batch() as batch:
            for _ in range(count // 2):
                batch.launch(prepared)
                batch.launch(add, 1, 1, x, 1)
        if generation <= faults:
            with pytest.raises(ContextLost):
                await wild.launch(1, 1, 0x10, touches=[read_only(x)])
            await next_generation(dev, generation)
    assert (await x.to_host(), await y.to_host()) == ((faults + 1) * (count // 2),) * 2


@pytest.mark.long
async def test_a_program_with_large_batches_goes_on_after_a_fault(dev):
    await goes_on_after_faults(dev, 1000, 1)
    add, x = await compiled(dev), dev.zeros(1, np.int32)
    kill_worker(dev)
    await next_generation(dev, 2)
    async with dev.batch() as batch:
        for _ in range(MANY):
            batch.launch(add, 1, 1, x, 1)
    assert await x.to_host() == MANY


async def test_a_program_with_large_batches_goes_on_after_a_fault_with_a_standby(open_test_device):
    async with open_test_device(standby=1) as dev:
        await dev.wait_standby()
        await goes_on_after_faults(dev, SOME, 1)


@pytest.mark.soak
async def test_a_program_with_large_batches_goes_on_after_many_faults(open_test_device):
    async with open_test_device(standby=1, restart_policy=atomr_trio.RestartPolicy(intensity=100)) as dev:
        await goes_on_after_faults(dev, MANY, 10)


async def test_a_batch_waits_at_its_beginning_for_a_lost_worker_to_be_gone(open_test_device, monkeypatch):
    """Its verbs could not wait for that."""
    reap, go_on, entered = supervisor.reap, trio.Event(), trio.Event()

    async def reap_later(process: Any) -> None:
        await go_on.wait()
        await reap(process)

    async def use_a_batch(dev: Any, add: Any, x: Any) -> None:
        async with dev.batch() as batch:
            entered.set()
            batch.launch(add, 1, 1, x, 1)

    async with open_test_device(standby=1) as dev:
        await dev.wait_standby()
        add, (wild,) = await compiled(dev), await compile_rogue(dev, "wild")
        x = dev.zeros(1, np.int32)
        await add.launch(1, 1, x, 1)
        monkeypatch.setattr(supervisor, "reap", reap_later)
        monkeypatch.setattr(workers, "reap", reap_later)
        try:
            with trio.fail_after(DEADLINE):
                with pytest.raises(ContextLost):
                    await wild.launch(1, 1, 0x10, touches=[read_only(x)])
                await next_generation(dev, 1)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(use_a_batch, dev, add, x)
                    assert (await dev.to_device(np.ones(3))).state == "ready", "others go on"
                    assert not entered.is_set()
                    go_on.set()
        finally:
            go_on.set()
        assert await x.to_host() == 2


# --- every verb -------------------------------------------------------------------------------------------------------


class Verbs:
    """Each verb of a batch, on small arrays of its own, and what is to be there after so many calls."""

    names = ("launch", "prepared", "fill", "copy", "gemm", "dot", "solve", "launch_graph", "record")

    def __init__(self, dev: Any) -> None:
        self.dev = dev
        self.answers: list[Any] = []
        self.calls = dict.fromkeys(self.names, 0)

    async def make(self) -> None:
        dev = self.dev
        self.add = await compiled(dev)
        self.counted = {name: dev.zeros(1, np.int32) for name in ("launch", "prepared", "launch_graph")}
        self.step = self.add.prepare(1, 1, self.counted["prepared"], 1)
        self.graph = await dev.capture(lambda g: g.launch(self.add, 1, 1, self.counted["launch_graph"], 1))
        self.filled, self.copied = dev.zeros(1, np.int32), dev.zeros(1, np.int32)
        self.a = await dev.to_device(np.array([[2.0, 0.0], [0.0, 4.0]]))
        self.b = await dev.to_device(np.array([2.0, 4.0]))
        self.out = dev.zeros((2, 2))

    def call(self, batch: Any, name: str) -> None:
        self.calls[name] += 1
        match name:
            case "launch":
                batch.launch(self.add, 1, 1, self.counted[name], 1)
            case "prepared":
                batch.launch(self.step)
            case "launch_graph":
                batch.launch_graph(self.graph)
            case "fill":
                batch.fill(self.filled, self.calls[name])
            case "copy":
                batch.copy_from(self.copied, self.filled)
            case "gemm":
                batch.blas.gemm(self.a, self.a, out=self.out)
            case "dot":
                self.answers.append(batch.blas.dot(self.b, self.b))
            case "solve":
                self.answers.append(batch.solver.solve(self.a, self.b))
            case "record":
                self.answers.append(batch.record())

    async def check(self) -> None:
        for name, array in self.counted.items():
            assert await array.to_host() == self.calls[name], name
        assert await self.filled.to_host() == self.calls["fill"]
        if self.calls["gemm"]:
            assert np.array_equal(await self.out.to_host(), [[4, 0], [0, 16]])
        for answer in self.answers[-10:]:
            if isinstance(answer, atomr_trio.Event):
                assert answer.reached
            elif isinstance(answer, atomr_trio.DeviceArray):
                assert np.array_equal(await answer.to_host(), [1, 1])
            else:
                assert answer == 20


async def many_calls(dev: Any, names: tuple[str, ...], count: int, lane: Any = None) -> None:
    verbs = Verbs(dev)
    await verbs.make()
    async with dev.batch(lane=lane) as batch:
        for name in itertools.islice(itertools.cycle(names), count):
            verbs.call(batch, name)
    await verbs.check()


@pytest.mark.parametrize("own_lane", [False, True])
async def test_calls_of_all_verbs_are_mixed_in_one_cold_batch(dev, own_lane):
    with trio.fail_after(DEADLINE):
        if own_lane:
            async with dev.lane() as lane:
                await many_calls(dev, Verbs.names, SOME, lane)
        else:
            await many_calls(dev, Verbs.names, SOME)


@pytest.mark.long
@pytest.mark.parametrize("name", ["fill", "copy", "solve"])
async def test_a_batch_takes_more_of_one_verb_than_a_lane_takes_of_what_is_awaited(dev, name):
    await many_calls(dev, (name,), SOME)


@pytest.mark.soak
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("own_lane", [False, True])
@pytest.mark.parametrize("name", [*Verbs.names, "all"])
async def test_a_batch_takes_4096_calls_of_every_verb(dev, name, own_lane, lost):
    if lost:
        kill_worker(dev)
        await next_generation(dev, 1)
    names = Verbs.names if name == "all" else (name,)
    if own_lane:
        async with dev.lane() as lane:
            await many_calls(dev, names, MANY, lane)
    else:
        await many_calls(dev, names, MANY)


async def test_a_full_batch_says_how_much_is_unfinished_and_flush_makes_room(dev, monkeypatch):
    for module in (batch_sender, launching):
        set_constant(monkeypatch, module, "BATCH_LIMIT", 50)
    add = await compiled(dev)
    x = dev.zeros(1, np.int32)
    await add.launch(1, 1, x, 0)
    with trio.fail_after(DEADLINE):
        async with dev.batch() as batch:
            with hold_worker(dev):
                assert until_full(lambda: batch.launch(add, 1, 1, x, 1)) == 50
                text = (
                    "50 calls of the batch are unfinished, 50 commands of the compute lane in all; a batch takes 50 "
                    r"calls, .* `await batch.flush\(\)` makes room"
                )
                for call in (lambda: batch.launch(add, 1, 1, x, 1), lambda: batch.fill(x, 1), batch.record):
                    with pytest.raises(trio.WouldBlock, match=text):
                        call()
            await batch.flush()
            batch.launch(add, 1, 1, x, 1)
    assert await x.to_host() == 51


async def test_flush_makes_room_also_where_others_have_filled_the_lane(dev, monkeypatch):
    set_constant(monkeypatch, _admission, "BATCH_COMMANDS", 20)
    add = await compiled(dev)
    x = await dev.to_device(np.zeros(1, np.int32))

    def launch_the_general_way(batch: Any) -> None:
        batch.launch(add, 1, 1, x, 1, hang_timeout=DEADLINE)

    async with dev.batch() as one, dev.batch() as other:
        with hold_worker(dev):
            assert until_full(lambda: launch_the_general_way(one)) == 20
            with pytest.raises(trio.WouldBlock, match="0 calls of the batch are unfinished, 20 commands of the comp"):
                launch_the_general_way(other)
        await other.flush()
        launch_the_general_way(other)
    assert await x.to_host() == 21


@pytest.mark.soak
async def test_each_of_several_batches_takes_4096_calls(dev):
    add = await compiled(dev)
    x = dev.zeros(1, np.int32)
    await add.launch(1, 1, x, 0)
    async with dev.batch() as one, dev.batch() as other:
        for _ in range(MANY):
            one.launch(add, 1, 1, x, 1)
            other.launch(add, 1, 1, x, 1)
    assert await x.to_host() == 2 * MANY


async def test_a_call_of_more_commands_than_a_lane_takes_is_refused_for_good(dev, monkeypatch):
    set_constant(monkeypatch, batch_sender, "BATCH_COMMANDS", 3)
    set_constant(monkeypatch, _admission, "BATCH_COMMANDS", 3)
    many = dev.empty((4, 4, 4, 4), np.int32)[::2, ::2, ::2, ::2]
    async with dev.batch() as batch:
        with pytest.raises(InvalidArgument, match=r"(?s)needs 8 commands, .* takes at most 3 .* await the call"):
            batch.fill(many, 1)
    assert many.state == "ready"


# --- what waits in this process ---------------------------------------------------------------------------------------


@pytest.mark.long
async def test_what_the_ring_has_no_room_for_waits_here_in_order_and_is_counted(dev):
    add, twice = await compiled(dev), await compiled(dev, "twice")
    x, y = dev.zeros(1, np.int32), dev.zeros(1, np.int32)
    expected = 0
    with trio.fail_after(DEADLINE):
        async with dev.batch() as one, dev.batch() as other, dev.batch() as third:
            with hold_worker(dev):
                for number, batch in itertools.product(range(SLOTS // 3 + 200), (one, other, third)):
                    if batch is one:
                        batch.launch(add, 1, 1, x, number)
                        expected = (expected + number) % (1 << 32)
                    elif number % 8:
                        batch.launch(add, 1, 1, y, 1)
                    else:
                        batch.launch(twice, 1, 1, x)
                        expected = expected * 2 % (1 << 32)
                submitted = dev.statistics().lanes[0].submitted
                assert submitted > SLOTS + 500
                assert dev.statistics().memory.waiting > 500 * HEADER.size
                async with trio.open_nursery() as nursery:  # an awaited one comes behind all of them
                    nursery.start_soon(add.launch, 1, 1, x, 7)
                    await until(lambda: dev.statistics().lanes[0].submitted == submitted + 1)
                    nursery.cancel_scope.cancel()
            await until(lambda: dev.statistics().memory.waiting == 0)
        assert int((await x.to_host())[0]) % (1 << 32) == expected + 7


async def test_awaited_calls_are_not_held_up_by_the_number_of_a_batchs_calls(dev):
    """What is on other lanes goes on beside it, and what is behind it on its lane is sent at once."""
    x, y = await dev.to_device(np.ones(1)), await dev.to_device(np.arange(3.0))
    async with gated(dev) as gate, dev.batch() as batch:
        for number in range(SOME + LANE_LIMIT):
            batch.fill(x, number)
        with trio.fail_after(DEADLINE):
            assert (await y.to_host() == np.arange(3)).all()
            assert dev.statistics().lanes[0].waiting == 0
            await y.copy_from(np.ones(3))
        await gate.open()
    assert await x.to_host() == SOME + LANE_LIMIT - 1


# --- copies with the host ---------------------------------------------------------------------------------------------


async def test_a_batch_takes_1024_copies_of_64_kib_each_way(dev):
    rng = np.random.default_rng(1)
    hosts = rng.integers(0, 255, (1024, KIB_64), np.uint8)
    array = dev.empty(hosts.shape, np.uint8)
    async with dev.batch() as batch:
        for number, host in enumerate(hosts):
            batch.copy_from(array[number], host)
    async with dev.batch() as batch:
        seen = [batch.to_host(array[number]) for number in range(len(hosts))]
    assert all(map(np.array_equal, seen, hosts))
    assert core_of(dev).part(Transfers).staging.idle
    memory = dev.statistics().memory
    assert STAGING_BYTES < memory.staging <= STAGING_BYTES + 2 * BATCH_BYTES
    seen.clear()
    async with dev.batch() as batch:  # and once more, in the same memory
        seen += [batch.to_host(array[number]) for number in range(len(hosts))]
    assert all(map(np.array_equal, seen, hosts))
    assert dev.statistics().memory.staging == memory.staging


async def test_a_batch_takes_64_mib_of_copies_of_awkward_sizes(dev):
    sizes = [KIB_64 + 1, 100_000, (2 << 20) + 5, 1_500_000, 1]
    total, hosts = 0, []
    for size in itertools.cycle(sizes):
        if total + size > 64 << 20:
            break
        hosts.append(np.full(size, len(hosts) % 251, np.uint8))
        total += size
    async with dev.batch() as batch:
        arrays = [batch.to_device(host) for host in hosts]
    async with dev.batch() as batch:
        seen = [batch.to_host(array) for array in arrays]
    assert all(map(np.array_equal, seen, hosts))


@pytest.mark.long
async def test_copies_in_a_cold_generation_find_their_areas(dev):
    host = np.arange((SMALL_SLOTS + 10) * KIB_64 // 4, dtype=np.float32).reshape(-1, KIB_64 // 4)
    array = dev.empty(host.shape, np.float32)
    for generation in (1, 2):
        async with dev.batch() as batch:
            for number, row in enumerate(host):
                batch.copy_from(array[number], row)
            seen = [batch.to_host(array[number]) for number in range(len(host))]
            sums = [batch.blas.asum(array[0, :4]) for _ in range(TINY_SLOTS - 100)]
        assert np.array_equal(np.stack(seen), host)
        assert {float(each) for each in sums} == {6.0}
        kill_worker(dev)
        await next_generation(dev, generation)
    assert (await array.to_host() == host).all()


async def test_a_batch_that_holds_many_copies_holds_up_no_awaited_one(dev):
    """It lets go of them only when it is flushed, and the same task may await a copy before that."""
    host = np.arange(KIB_64, dtype=np.uint8)
    x = await dev.to_device(host)
    async with dev.batch() as batch:
        seen = [batch.to_host(x) for _ in range(2 * SMALL_SLOTS)]
        with trio.fail_after(DEADLINE):
            assert np.array_equal(await x.to_host(), host)
    assert all(np.array_equal(each, host) for each in seen)


async def test_too_many_bytes_of_copies_are_said_and_flush_makes_room(dev, monkeypatch):
    set_constant(monkeypatch, _batch_areas, "BATCH_BYTES", 10 * KIB_64)
    host = np.arange(KIB_64, dtype=np.uint8)
    with trio.fail_after(DEADLINE):
        async with dev.batch() as batch:
            arrays: list[Any] = []
            count = until_full(lambda: arrays.append(batch.to_device(host)))
            assert count == SMALL_SLOTS * 3 // 4 + 10
            seen: list[Any] = []
            text = r"[\d,]+ bytes are unfinished in this batch, .*: `await batch.flush\(\)` makes room for these 65,536"
            await batch.flush()
            assert until_full(lambda: seen.append(batch.to_host(arrays[0]))) == count
            with pytest.raises(trio.WouldBlock, match=text):
                batch.to_host(arrays[0])
            await until(lambda: dev.statistics().lanes[LANE_COPY_OUT].unfinished == 0)
            assert until_full(lambda: seen.append(batch.to_host(arrays[0]))) == count, "what has arrived is taken"
            await batch.flush()
            assert until_full(lambda: seen.append(batch.to_host(arrays[0]))) == count
        assert all(np.array_equal(each, host) for each in seen)


async def test_areas_are_kept_for_the_next_batch_until_they_are_trimmed(dev):
    before = dev.statistics().memory.staging
    host = np.arange(KIB_64, dtype=np.uint8)
    x = await dev.to_device(host)
    for _ in range(2):
        async with dev.batch() as batch:
            seen = [batch.to_host(x) for _ in range(200)]
        assert all(np.array_equal(each, host) for each in seen)
    areas = dev.statistics().memory.staging - before
    assert areas == FIRST_AREA + 2 * FIRST_AREA, "the second batch takes those of the first"
    async with dev.batch() as batch:
        for _ in range(100):
            batch.to_host(x)
        await dev.trim()
        assert dev.statistics().memory.staging - before in (FIRST_AREA, 2 * FIRST_AREA), "one of them is in use"
    await dev.trim()
    assert dev.statistics().memory.staging == before
    async with dev.batch() as batch:
        seen = [batch.to_host(x) for _ in range(200)]
    assert all(np.array_equal(each, host) for each in seen)


# --- what ends a large batch ------------------------------------------------------------------------------------------


async def test_a_fault_in_the_middle_of_a_large_batch_settles_all_of_it(dev):
    add, (wild,) = await compiled(dev), await compile_rogue(dev, "wild")
    x, y = dev.zeros(1, np.int32), await dev.to_device(np.ones(KIB_64, np.uint8))
    with trio.fail_after(DEADLINE), pytest.raises(ContextLost) as caught:  # noqa: PT012
        async with dev.batch() as batch:
            for number in range(MANY - 300):
                batch.launch(add, 1, 1, x, 1)
                if number == 1000:
                    batch.launch(wild, 1, 1, 0x10, touches=[x])
                if number % 20 == 0:
                    batch.to_host(y)
    assert not hasattr(caught.value, "__notes__"), "it is told once, not for each call"
    await next_generation(dev, 1)
    assert x.state == "torn"
    assert all(actor.unsettled == 0 for actor in dev.statistics().actors)
    assert core_of(dev).part(Transfers).staging.idle
    assert dev.statistics().memory.waiting == 0
    async with dev.batch() as batch:
        batch.fill(x, 0)
        for _ in range(SOME):
            batch.launch(add, 1, 1, x, 1)
    assert await x.to_host() == SOME


@pytest.mark.parametrize("way", ["cancelled", "interrupted"])
async def test_a_large_batch_that_is_left_in_the_middle_goes_on_by_itself(dev, way):
    add = await compiled(dev)
    x, y = dev.zeros(1, np.int32), await dev.to_device(np.ones(KIB_64, np.uint8))
    async with gated(dev) as gate:
        with trio.CancelScope() as scope, contextlib.suppress(KeyboardInterrupt):
            async with dev.batch() as batch:
                for _ in range(SOME):
                    batch.launch(add, 1, 1, x, 1)
                    batch.to_host(y)
                if way == "interrupted":
                    raise KeyboardInterrupt
                scope.cancel()
        assert scope.cancelled_caught is (way == "cancelled")
        await gate.open()
    assert await x.to_host() == SOME
    await until(lambda: all(actor.unsettled == 0 for actor in dev.statistics().actors))
    assert core_of(dev).part(Transfers).staging.idle


async def test_a_device_is_closed_in_the_middle_of_a_large_batch(pool):
    with trio.fail_after(DEADLINE):
        async with open_test_device(workers=pool, close_timeout=0.2) as dev:
            add = await compiled(dev)
            x, y = dev.zeros(1, np.int32), await dev.to_device(np.ones(KIB_64, np.uint8))
            async with endless_kernel(dev):
                batch = await dev.batch().__aenter__()
                for _ in range(SOME):
                    batch.launch(add, 1, 1, x, 1)
                    batch.to_host(y)
                kill_worker(dev)
    with pytest.raises(atomr_trio.DeviceClosed):
        await batch.flush()


# --- nothing raises a bare WouldBlock ---------------------------------------------------------------------------------


def test_every_wouldblock_of_the_library_has_a_text():
    bare = []
    for path in sorted(Path(atomr_trio.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "WouldBlock" in text else ():
            if not isinstance(node, ast.Raise):
                continue
            raised, made = node.exc, node.exc if isinstance(node.exc, ast.Call) else None
            if raised and "WouldBlock" in ast.unparse(made.func if made else raised) and not (made and made.args):
                bare.append(f"{path.name}:{node.lineno}")
    assert bare == []


async def test_what_does_not_wait_says_why_it_cannot_begin(dev):
    add = await compiled(dev)
    x = dev.zeros(1, np.int32)
    graph = await dev.capture(lambda g: g.launch(add, 1, 1, x, 1))
    async with dev.lane() as lane:
        calls: list[Callable[[], Any]] = [
            lambda: add.launch_nowait(1, 1, x, 1),
            add.prepare(1, 1, x, 1).launch_nowait,
            graph.launch_nowait,
            dev.compute_lane.record,
        ]
        with hold_worker(dev):
            until_full(calls[0])
            for call in calls:
                with pytest.raises(trio.WouldBlock, match=r"5\d\d commands of the compute lane are .* use the awaited"):
                    call()
            event = lane.record()
            with pytest.raises(trio.WouldBlock, match="commands of the compute lane"):
                dev.compute_lane.wait_for(event)
    with hold_rebuild(dev):
        kill_worker(dev)
        await until(lambda: dev.state.name == "REBUILDING")
        for call in calls:
            with pytest.raises(trio.WouldBlock, match="is being rebuilt: use the awaited form"):
                call()
    await next_generation(dev, 1)


# --- what is awaited never raises WouldBlock --------------------------------------------------------------------------


class Awaited:
    """Calls of every awaited verb of the public face."""

    def __init__(self, dev: Any) -> None:
        self.dev = dev

    async def make(self) -> None:
        dev = self.dev
        self.add = await compiled(dev)
        self.x = await dev.to_device(np.zeros(4, np.int32))
        self.y = await dev.to_device(np.zeros((2, 2)))
        self.step = self.add.prepare(1, 1, self.x, 1)
        self.graph = await dev.capture(lambda g: g.launch(self.add, 1, 1, self.x, 1))
        self.module = await dev.module.load(self.add.ptx or self.add.cubin)
        self.program = await dev.nvrtc.compile_program(SOURCE.replace("add", "sum"))
        await self.add.launch(1, 1, self.x, 0)

    def calls(self) -> dict[str, Callable[[], Any]]:
        dev, add, x, y = self.dev, self.add, self.x, self.y
        return {
            "Batch.flush": self.use_a_batch,
            "Device.capture": lambda: dev.capture(lambda g: g.launch(add, 1, 1, x, 1)),
            "Device.to_device": lambda: dev.to_device(np.zeros(4)),
            "Device.trim": dev.trim,
            "DeviceArray.copy_from": lambda: x.copy_from(np.zeros(4, np.int32)),
            "DeviceArray.copy_from, of another": lambda: x.copy_from(dev.zeros(4, np.int32)),
            "DeviceArray.copy_to": lambda: x.copy_to(np.zeros(4, np.int32)),
            "DeviceArray.fill": lambda: x.fill(0),
            "DeviceArray.to_host": x.to_host,
            "Fft.callback": lambda: dev.fft.callback(scaled("float32", "2"), "scaled"),
            "Graph.launch": self.graph.launch,
            "Kernel.launch": lambda: add.launch(1, 1, x, 1),
            "Kernel.occupancy": lambda: add.occupancy(64),
            "Kernel.suggest_block": add.suggest_block,
            "Lane.synchronize": dev.compute_lane.synchronize,
            "Lane.synchronize, of another": self.use_a_lane,
            "Module.unload": self.module.unload,
            "ModuleLoader.load": lambda: dev.module.load(add.ptx or add.cubin),
            "Nvrtc.compile": lambda: dev.nvrtc.compile(SOURCE, "twice"),
            "Nvrtc.compile_program": lambda: dev.nvrtc.compile_program(SOURCE.replace("add", "plus")),
            "Nvrtc.kernel": lambda: dev.nvrtc.kernel(declared),
            "PreparedLaunch.launch": self.step.launch,
            "Program.unload": self.program.unload,
            "Random.load": lambda: dev.random.load("gamma"),
            **{f"RandomGenerator.{verb}": functools.partial(self.draw, verb, *given) for verb, given in DRAWS.items()},
            "blas.gemm": lambda: dev.blas.gemm(y, y),
            "blas.dot": lambda: dev.blas.dot(y[0], y[0]),
            "blaslt.matmul": lambda: dev.blaslt.matmul(y, y),
            "solver.qr": lambda: dev.solver.qr(y),
            "endless_kernel": self.use_an_endless_kernel,
        }

    async def draw(self, verb: str, *parameters: object) -> None:
        await getattr(self.dev.random.default_generator, verb)(*parameters, size=4)

    async def use_an_endless_kernel(self) -> None:
        async with endless_kernel(self.dev):
            pass

    async def use_a_batch(self) -> None:
        async with self.dev.batch() as batch:
            batch.fill(self.x, 0)
            await batch.flush()

    async def use_a_lane(self) -> None:
        async with self.dev.lane() as lane:
            await self.add.launch(1, 1, self.x, 1, lane=lane)
            await lane.synchronize()


@atomr_trio.kernel("x[0] += 1;")
def declared(x: atomr_trio.Writes[np.int32]) -> None: ...


WAIT_ALONE = {
    "Device.map_memory",
    "Device.restart",
    "Device.share",
    "Device.wait_generation",
    "Device.wait_standby",
    "Devices.map",
    "Devices.world",
    "Event.elapsed_since",
    "Event.wait",
}
"""Those that send nothing, end the generation, or need a context in this process."""


async def test_every_awaited_verb_is_among_those_that_are_tried(dev):
    verbs = Awaited(dev)
    await verbs.make()
    classes = [each for each in map(atomr_trio.__getattr__, atomr_trio.__all__) if isinstance(each, type)]
    found = {
        f"{each.__name__}.{name}"
        for each in classes
        if each not in (atomr_trio.World, atomr_trio.Sharded)  # they need several devices: tests/libraries/nccl
        for name, method in inspect.getmembers(each, inspect.iscoroutinefunction)
        if not (name.startswith("_") or is_verb(method))
    }
    assert found - WAIT_ALONE == {name for name in verbs.calls() if name.partition(".")[0] in dir(atomr_trio)} & found
    assert found >= WAIT_ALONE


@pytest.mark.long
@pytest.mark.parametrize("rebuilding", [False, True])
async def test_no_awaited_verb_raises_wouldblock(dev, rebuilding):
    verbs = Awaited(dev)
    await verbs.make()
    ended: list[str] = []

    async def await_one(name: str, call: Callable[[], Any]) -> None:
        await call()
        ended.append(name)

    with trio.fail_after(DEADLINE):
        async with trio.open_nursery() as nursery:
            if rebuilding:
                with hold_rebuild(dev):
                    kill_worker(dev)
                    await until(lambda: dev.state.name == "REBUILDING")
                    for name, call in verbs.calls().items():
                        nursery.start_soon(await_one, name, call)
                    await trio.testing.wait_all_tasks_blocked()
            else:
                with hold_worker(dev):
                    until_full(lambda: verbs.add.launch_nowait(1, 1, verbs.x, 1))
                    for name, call in verbs.calls().items():
                        nursery.start_soon(await_one, name, call)
                    await trio.testing.wait_all_tasks_blocked()
    assert sorted(ended) == sorted(verbs.calls())


async def test_synchronizing_a_lane_waits_for_what_it_was_given_or_says_that_it_is_lost(dev):
    add = await compiled(dev)
    x = dev.zeros(1, np.int32)
    await add.launch(1, 1, x, 0)
    with trio.fail_after(DEADLINE):
        with hold_worker(dev):
            until_full(lambda: add.launch_nowait(1, 1, x, 1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(dev.compute_lane.synchronize)
                await until(lambda: dev.statistics().lanes[0].waiting == 1)
                nursery.cancel_scope.cancel()
        await dev.compute_lane.synchronize()
        assert dev.statistics().lanes[0].unfinished == 0
        with hold_worker(dev):
            until_full(lambda: add.launch_nowait(1, 1, x, 1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lost, dev.compute_lane.synchronize)
                await until(lambda: dev.statistics().lanes[0].waiting == 1)
                kill_worker(dev)
        await next_generation(dev, 1)
        await dev.compute_lane.synchronize()
    async with dev.lane() as lane:
        await lane.synchronize()
    with pytest.raises(InvalidArgument, match="was closed"):
        await lane.synchronize()


async def lost(call: Callable[[], Any]) -> None:
    with pytest.raises(ContextLost, match=r"generation 1 was lost|SIGKILL"):
        await call()
