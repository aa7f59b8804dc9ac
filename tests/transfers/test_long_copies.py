"""Copies of 1 MiB and more that their caller's task makes piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import CommandFailed, ContextLost, OutOfHostMemory
from atomr_trio._device.device import core_of
from atomr_trio._generation.order import Order
from atomr_trio._memory.arena import ChunkState
from atomr_trio._transfers import copy_plan, long_copies
from atomr_trio._transfers.copy_plan import TO_DEVICE, TO_HOST
from atomr_trio._transfers.long_copies import LONG_ALONE_BYTES, WINDOW, LongCopy, LongIn, LongOut
from atomr_trio._transfers.short_copies import SHORT_BYTES, SHORT_PIECE, CopyPath
from atomr_trio._transfers.short_ways import ShortCopies
from atomr_trio._transfers.staging import MEDIUM_SLOTS, Slot
from atomr_trio._transfers.transfers import Transfers
from atomr_trio._wire.protocol import LANE_COPY_IN, LANE_COPY_OUT
from support import open_test_device, set_constant
from support.long_copies import check_every_byte, in_use, is_clean, scenario, submitted
from support.rogue import kill_worker, next_generation, until
from support.strategies import numbers, same

pytestmark = [pytest.mark.used_workers, pytest.mark.usefixtures("nothing_is_read")]

SIZE = 7 * SHORT_PIECE
PIECES = SIZE // SHORT_PIECE
WAYS = {"in": (LANE_COPY_IN, LongIn), "out": (LANE_COPY_OUT, LongOut)}


@pytest.fixture
def always_turns(monkeypatch) -> None:
    """Others run after each piece."""
    set_constant(monkeypatch, long_copies, "STRETCH_SECONDS", -1.0)
    set_constant(monkeypatch, long_copies, "STRETCH_ALONE_SECONDS", -1.0)


@pytest.fixture
def short_alone(monkeypatch) -> Iterator[Callable[[], None]]:
    """No copy goes the general way, once this is called."""

    def refuse(*_: object) -> None:
        raise AssertionError("a copy went the general way")

    with monkeypatch.context() as patch:
        yield lambda: patch.setattr(copy_plan._Plan, "__init__", refuse)


@pytest.fixture
def after_piece(monkeypatch) -> Iterator[Callable[[int, Callable[[LongCopy], None]], None]]:
    """Has something done right after a piece with this number was sent."""
    send, hooks = LongCopy._send_piece, {}

    def hooked(copy: LongCopy, number: int, *slots: Slot | None) -> int:
        ticket = send(copy, number, *slots)
        hooks.pop(number, lambda _: None)(copy)
        return ticket

    monkeypatch.setattr(LongCopy, "_send_piece", hooked)
    yield hooks.__setitem__
    assert not hooks, "those pieces were never sent"


# --- what arrives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [SHORT_BYTES + 1, SIZE - 1, SIZE, SIZE + 1, LONG_ALONE_BYTES[TO_HOST]])
async def test_every_byte_arrives(size, short_alone):
    async with scenario() as dev:
        await check_every_byte(dev, size, short_alone)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize("shape", [(SIZE // 4096, 4096), (SIZE // 1024, 8, 128)])
async def test_every_byte_of_rows_arrives_and_none_between_them(shape, dtype, short_alone):
    """The rows are copied on the device, between the block and the array."""
    async with scenario() as dev:
        shape = (shape[0] // np.dtype(dtype).itemsize, *shape[1:])
        whole = await dev.to_device(np.full((*shape[:-1], shape[-1] + 5), 7, dtype))
        rows = whole[..., : shape[-1]]
        host, out = numbers(shape, dtype), np.zeros(shape, dtype)
        before = [submitted(dev, lane) for lane, _ in WAYS.values()]
        short_alone()
        await rows.copy_from(host)
        await rows.copy_to(out)
        assert [submitted(dev, lane) for lane, _ in WAYS.values()] == [count + PIECES + 1 for count in before]
        assert same(out, host)
        assert is_clean(dev)
        around = np.full((*shape[:-1], 5), 0, dtype)
        await whole[..., shape[-1] :].copy_to(around)
        assert (around == 7).all()


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_copy_is_a_command_for_each_piece_and_one_with_the_array_and_all_are_counted(direction):
    async with scenario() as dev:
        array = await dev.to_device(np.zeros(SIZE, np.uint8))
        lane, _ = WAYS[direction]
        before, actor = submitted(dev, lane), dev.statistics().actors[0]
        await (array.copy_from if direction == "in" else array.copy_to)(np.ones(SIZE, np.uint8))
        assert submitted(dev, lane) == before + PIECES + 1
        now = dev.statistics().actors[0]
        assert now.accepted == actor.accepted + PIECES + 1
        assert now.settled["ok"] == actor.settled["ok"] + PIECES + 1


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_another_task_may_settle_what_a_copy_polls_for(direction, monkeypatch):
    """As one does that submits something: then the copy that looks finds nothing left that is unfinished."""
    async with scenario() as dev:
        host, out = numbers(SIZE, np.uint8, seed=3), np.zeros(SIZE, np.uint8)
        array = await dev.to_device(host)
        settler, words, looks = core_of(dev).current.settler, core_of(dev).current.sender.words, []

        async def settled_by_another(counter: int, ticket: int) -> None:
            looks.append(ticket)
            while words[counter] < ticket:  # the settler's own task may be awake on a slow machine, and settle it first
                await trio.lowlevel.checkpoint()
            settler.settle_finished()

        await until(lambda: not settler._activity.is_set())  # nobody else polls
        monkeypatch.setattr(settler, "look", settled_by_another)
        monkeypatch.setattr(LongCopy, "_note_ended", lambda copy: None)  # so that it has to look
        await (array.copy_from(host) if direction == "in" else array.copy_to(out))
        assert looks
        assert same(await array.to_host() if direction == "in" else out, host)
        assert is_clean(dev)


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_the_pieces_pass_through_a_few_slots(direction, monkeypatch):
    async with scenario() as dev:
        array, seen = await dev.to_device(np.zeros(2 * SIZE, np.uint8)), []
        name = "load" if direction == "in" else "store"
        copy = getattr(Slot, name)

        def note(slot: Slot, memory: Any) -> None:
            seen.append(slot.place)
            copy(slot, memory)

        monkeypatch.setattr(Slot, name, note)
        await (array.copy_from if direction == "in" else array.copy_to)(np.ones(2 * SIZE, np.uint8))
        assert len(seen) == 2 * PIECES
        assert len(set(seen)) <= WINDOW


async def test_two_at_a_time_in_one_direction_are_exact_and_one_of_them_goes_the_general_way(always_turns):
    async with scenario() as dev:
        hosts = [numbers(SIZE, np.uint8, seed=seed) for seed in (1, 2)]
        arrays = [await dev.to_device(np.zeros(SIZE, np.uint8)) for _ in hosts]
        outs = [np.zeros(SIZE, np.uint8) for _ in hosts]
        for verb, lane in (("copy_from", LANE_COPY_IN), ("copy_to", LANE_COPY_OUT)):
            before = submitted(dev, lane)
            async with trio.open_nursery() as nursery:
                for array, host in zip(arrays, hosts if verb == "copy_from" else outs, strict=True):
                    nursery.start_soon(getattr(array, verb), host)
            assert submitted(dev, lane) == before + PIECES + 1 + 1
        assert all(map(same, outs, hosts))
        assert is_clean(dev)


@pytest.mark.parametrize(("others", "pieces"), [(10e-6, 5), (100e-6, 2), (1e-3, 3)])
@pytest.mark.parametrize("direction", ["in", "out"])
async def test_others_have_a_turn_after_a_few_pieces_and_after_more_where_they_are_slow_or_have_nothing_to_do(
    direction, others, pieces, monkeypatch
):
    """With a clock on which a piece takes 75 us, and the others have so long a turn."""
    async with scenario() as dev:
        array, host = await dev.to_device(np.zeros(2 * SIZE, np.uint8)), np.ones(2 * SIZE, np.uint8)
        now, done, turns = [0.0], [], []
        copy, checkpoint = (
            getattr(Slot, name := "load" if direction == "in" else "store"),
            trio.lowlevel.checkpoint,
        )

        def piece(slot: Slot, memory: Any) -> None:
            now[0] += 75e-6
            done.append(memory)
            copy(slot, memory)

        async def turn() -> None:
            turns.append(len(done))
            now[0] += others
            await checkpoint()

        with monkeypatch.context() as patch:
            patch.setattr(long_copies, "time", SimpleNamespace(perf_counter=lambda: now[0]))
            patch.setattr(Slot, name, piece)
            patch.setattr(long_copies, "trio", SimpleNamespace(**{**vars(trio), "lowlevel": Lowlevel(turn)}))
            await (array.copy_from if direction == "in" else array.copy_to)(host)
        assert turns == [2, *range(2 + pieces, 2 * PIECES + 1, pieces)]


class Lowlevel:
    """That of trio, with another checkpoint."""

    def __init__(self, checkpoint: Any) -> None:
        self.checkpoint = checkpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(trio.lowlevel, name)


# --- what others see --------------------------------------------------------------------------------------------------


async def test_who_reads_the_array_in_the_middle_of_a_copy_to_it_finds_all_of_it_as_it_was(always_turns, after_piece):
    async with scenario() as dev:
        array, out = await dev.to_device(np.full(SIZE, 7, np.uint8)), np.zeros(SIZE, np.uint8)
        async with trio.open_nursery() as nursery:
            after_piece(2, lambda _: nursery.start_soon(array[: SHORT_BYTES // 2].copy_to, out[: SHORT_BYTES // 2]))
            await array.copy_from(np.ones(SIZE, np.uint8))
        assert set(out[: SHORT_BYTES // 2]) == {7}
        assert (await array.to_host() == 1).all()


async def test_who_overwrites_the_array_in_the_middle_of_a_copy_of_it_changes_nothing_in_the_copy(
    always_turns, after_piece
):
    async with scenario() as dev:
        array, out = await dev.to_device(np.full(SIZE, 7, np.uint8)), np.zeros(SIZE, np.uint8)
        async with trio.open_nursery() as nursery:
            after_piece(WINDOW, lambda _: nursery.start_soon(array.fill, 1))
            await array.copy_to(out)
        assert (out == 7).all()
        assert (await array.to_host() == 1).all()


async def test_a_copy_to_an_array_that_others_work_on_at_its_end_waits_for_them(always_turns, after_piece, monkeypatch):
    async with scenario() as dev:
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), numbers(SIZE, np.uint8)
        takes = CopyPath.takes

        def occupied(path: CopyPath, block: Any, count: int = 1) -> bool:
            return block is not array._block and takes(path, block, count)

        after_piece(PIECES - 1, lambda _: monkeypatch.setattr(CopyPath, "takes", occupied))
        before = submitted(dev, LANE_COPY_IN)
        await array.copy_from(host)
        monkeypatch.setattr(CopyPath, "takes", takes)
        assert submitted(dev, LANE_COPY_IN) == before + PIECES + 1
        assert same(await array.to_host(), host)
        assert is_clean(dev)


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_copy_goes_on_when_its_lane_has_room_again(direction, always_turns, after_piece, monkeypatch):
    async with scenario() as dev:
        array, host = await dev.to_device(numbers(SIZE, np.uint8)), numbers(SIZE, np.uint8, seed=2)
        takes, refused = CopyPath.takes, []

        def full(path: CopyPath, block: Any, count: int = 1) -> bool:
            if len(refused) < 3 * WINDOW:
                refused.append(block)
                return False
            return takes(path, block, count)

        with monkeypatch.context() as patch:
            after_piece(0, lambda _: patch.setattr(CopyPath, "takes", full))
            await (array.copy_from if direction == "in" else array.copy_to)(host)
        assert len(refused) == 3 * WINDOW
        assert array._block not in refused
        assert same(await array.to_host(), host)
        assert is_clean(dev)


async def test_without_memory_for_the_block_a_copy_goes_the_general_way_until_there_is_some(monkeypatch):
    async with scenario(memory_limit=64 << 20) as dev:
        array, filler = dev.empty(SIZE, np.uint8), dev.empty((64 << 20) - 2 * SIZE, np.uint8)
        await array[:1].copy_from(np.ones(1, np.uint8))
        arena, asked = core_of(dev).current.arena, []
        allocate = arena.allocate
        monkeypatch.setattr(arena, "allocate", lambda size: asked.append(size) or allocate(size))
        host, out = numbers(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
        for room in (False, False, True):
            if room:
                filler.free()
            before = [submitted(dev, lane) for lane in (LANE_COPY_IN, LANE_COPY_OUT)]
            await array.copy_from(host)
            await array.copy_to(out)
            now = [submitted(dev, lane) for lane in (LANE_COPY_IN, LANE_COPY_OUT)]
            assert [after - each for after, each in zip(now, before, strict=True)] == [PIECES + 1 if room else 1] * 2
            assert same(out, host)
            out[:] = 0
        assert asked == [SIZE] * 4  # once in each direction without room, once with
        assert is_clean(dev)


async def test_memory_for_the_block_that_does_not_exist_yet_is_made_for_the_next_copy():
    async with scenario() as dev:
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), numbers(SIZE, np.uint8)
        fillers = [dev.empty(SIZE, np.uint8)]
        while fillers[-1]._block.chunk.state is ChunkState.READY:
            fillers.append(dev.empty(SIZE, np.uint8))
        counts = []
        for _ in range(2):
            before = submitted(dev, LANE_COPY_IN)
            await array.copy_from(host)
            counts.append(submitted(dev, LANE_COPY_IN) - before)
            await until(lambda: fillers[-1]._block.chunk.state is ChunkState.READY)
        assert counts == [1, PIECES + 1]
        assert fillers[-1]._block.chunk.state is ChunkState.READY
        assert is_clean(dev)


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_memory_for_the_block_that_cannot_be_made_is_asked_for_once(direction, monkeypatch):
    async with scenario() as dev:
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), numbers(SIZE, np.uint8)
        fillers = [dev.empty(SIZE, np.uint8)]
        while fillers[-1]._block.chunk.state is ChunkState.READY:
            fillers.append(dev.empty(SIZE, np.uint8))
        lane, _ = WAYS[direction]
        asked: list[Any] = []

        def refuse(order: Any, chunk: Any, required: set[int]) -> None:
            asked.append(chunk)
            raise OutOfHostMemory("no descriptor is left")

        monkeypatch.setattr(Order, "require_chunk", refuse)
        for _ in range(3):
            before = submitted(dev, lane)
            await (array.copy_from if direction == "in" else array.copy_to)(host)
            assert submitted(dev, lane) == before + 1
        assert len(asked) == 1
        assert is_clean(dev)


async def test_while_others_work_on_the_memory_of_the_block_a_copy_goes_the_general_way(monkeypatch):
    async with scenario() as dev:
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), numbers(SIZE, np.uint8)
        path = core_of(dev).part(ShortCopies)._paths[LANE_COPY_IN]
        counts = []
        for busy in (True, False):
            with monkeypatch.context() as patch:
                if busy:
                    patch.setattr(CopyPath, "takes_new", lambda *_: False)
                before = submitted(dev, LANE_COPY_IN)
                await array.copy_from(host)
                counts.append(submitted(dev, LANE_COPY_IN) - before)
        assert counts == [1, PIECES + 1]
        assert path.lacking is None
        assert is_clean(dev)


async def test_without_slots_a_copy_goes_the_general_way():
    async with scenario() as dev:
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), numbers(SIZE, np.uint8)
        staging = core_of(dev).part(Transfers).staging
        taken = [staging.acquire_nowait(SHORT_PIECE) for _ in range(MEDIUM_SLOTS - WINDOW + 1)]
        used, before = in_use(dev), submitted(dev, LANE_COPY_IN)
        await array.copy_from(host)
        assert submitted(dev, LANE_COPY_IN) == before + 1
        assert in_use(dev) == used
        for slot in taken:
            slot.release()
        assert same(await array.to_host(), host)
        assert is_clean(dev)


# --- leaving, failing, losing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_copy_in_a_cancelled_scope_sends_nothing_and_holds_nothing(direction):
    async with scenario() as dev:
        array, out = await dev.to_device(np.ones(SIZE, np.uint8)), np.zeros(SIZE, np.uint8)
        lane, _ = WAYS[direction]
        before, used = submitted(dev, lane), in_use(dev)
        with trio.CancelScope() as scope:
            scope.cancel()
            await (array.copy_from if direction == "in" else array.copy_to)(out)
        assert scope.cancelled_caught
        assert (submitted(dev, lane), in_use(dev)) == (before, used)
        assert is_clean(dev)
        assert not out.any()


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_copy_that_is_left_in_the_middle_has_not_touched_the_array(direction, always_turns, after_piece):
    async with scenario() as dev:
        array, out = await dev.to_device(np.full(SIZE, 7, np.uint8)), np.zeros(SIZE, np.uint8)
        lane, _ = WAYS[direction]
        before, used, host = submitted(dev, lane), in_use(dev), out if direction == "out" else np.ones(SIZE, np.uint8)
        with trio.CancelScope() as scope:
            after_piece(WINDOW, lambda _: scope.cancel())
            await (array.copy_from if direction == "in" else array.copy_to)(host)
        assert scope.cancelled_caught
        sent, left = submitted(dev, lane) - before, out.copy()
        assert WINDOW < sent <= PIECES
        await until(lambda: is_clean(dev))
        assert in_use(dev) == used
        assert same(out, left)
        assert array.state == "ready"
        assert (await array.to_host() == 7).all()
        actor = dev.statistics().actors[0]
        assert actor.accepted == sum(actor.settled.values())


async def test_a_copy_to_the_device_that_is_left_behind_its_last_command_goes_on(monkeypatch):
    async with scenario() as dev:
        array, host = await dev.to_device(np.zeros(SIZE, np.uint8)), numbers(SIZE, np.uint8)
        send = LongCopy._send_move
        with trio.CancelScope() as scope:

            def last(copy: LongCopy, *words: Any) -> None:
                send(copy, *words)
                scope.cancel()

            monkeypatch.setattr(LongCopy, "_send_move", last)
            await array.copy_from(host)
        monkeypatch.setattr(LongCopy, "_send_move", send)
        assert array.state == "ready"
        assert same(await array.to_host(), host)
        await until(lambda: is_clean(dev))


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_a_worker_that_dies_in_the_middle_costs_the_copy_and_not_the_array(direction, always_turns, after_piece):
    async with scenario() as dev:
        array, out = await dev.to_device(np.full(SIZE, 7, np.uint8)), np.zeros(SIZE, np.uint8)
        host = out if direction == "out" else np.ones(SIZE, np.uint8)
        after_piece(PIECES - 2, lambda _: kill_worker(dev))

        async def copy_again_and_again() -> None:  # the GPU may come to the end of a copy before the death is seen
            while True:
                await (array.copy_from if direction == "in" else array.copy_to)(host)

        with pytest.raises(ContextLost) as lost:
            await copy_again_and_again()
        await next_generation(dev, after=1)
        assert lost.value.generation == 1
        await until(lambda: is_clean(dev))
        assert array.state in ("ready", "torn")
        if array.state == "ready":
            assert set(await array.to_host()) in ({1}, {7})
        for _ in range(2):
            await array.copy_from(numbers(SIZE, np.uint8))
            assert same(await array.to_host(), numbers(SIZE, np.uint8))


@pytest.mark.sim_only
@pytest.mark.parametrize("place", [1, 2, PIECES])
async def test_a_piece_that_is_refused_fails_the_copy_and_no_half_of_it_is_taken_for_the_whole(place):
    async with scenario() as dev:
        array, out = await dev.to_device(np.full(SIZE, 7, np.uint8)), np.zeros(SIZE, np.uint8)
        core_of(dev).current.request_faults(f"cuMemcpyHtoDAsync:1:{place},cuMemcpyDtoHAsync:1:{place}")
        with pytest.raises(CommandFailed) as failed:
            await array.copy_to(out)
        assert (failed.value.status, failed.value.operation) == (1, "memory.copy_out")
        assert not out[(place - 1) * SHORT_PIECE :].any()
        assert array.state == "ready"
        await until(lambda: is_clean(dev))  # the GPU has left the block that the next copy gets
        with pytest.raises(CommandFailed) as failed:
            await array.copy_from(np.ones(SIZE, np.uint8))
        assert (failed.value.status, failed.value.operation) == (1, "memory.copy_in")
        if array.state == "ready":
            assert (await array.to_host() == 7).all()
        else:
            assert array.state == "torn"
        await array.copy_from(numbers(SIZE, np.uint8))
        assert same(await array.to_host(), numbers(SIZE, np.uint8))
        await until(lambda: is_clean(dev))
        assert dev.generation == 1


async def take_no_turn(copy: LongCopy) -> None:
    """The task goes on, whatever is due."""


@pytest.mark.sim_only
async def test_a_piece_that_is_refused_when_the_array_was_overwritten_from_it_tears_the_array(monkeypatch):
    async with scenario() as dev:
        array = await dev.to_device(np.full(SIZE, 7, np.uint8))
        core_of(dev).current.request_faults(f"cuMemcpyHtoDAsync:1:{PIECES}")
        monkeypatch.setattr(LongCopy, "_note_ended", lambda copy: None)
        monkeypatch.setattr(LongCopy, "_turn_if_due", take_no_turn)  # in which the settler's task would note it
        with pytest.raises(CommandFailed):
            await array.copy_from(np.ones(SIZE, np.uint8))
        assert array.state == "torn"


async def test_a_device_that_is_closed_in_the_middle_lets_the_copy_go(always_turns, after_piece):
    ends: list[str] = []

    async def copy(array: Any) -> None:
        try:
            await array.copy_from(np.ones(SIZE, np.uint8))
            ends.append("the closing has waited for it")
        except atomr_trio.DeviceClosed:
            ends.append("closed")

    begun = trio.Event()
    after_piece(1, lambda _: begun.set())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, open_test_device(close_timeout=0.1) as dev:
            core_of(dev).part(Transfers).crew.beside = 0
            array = await dev.to_device(np.zeros(SIZE, np.uint8))
            await array.copy_to(np.zeros(SIZE, np.uint8))
            nursery.start_soon(copy, array)
            await begun.wait()
    assert len(ends) == 1


@pytest.mark.parametrize("direction", ["in", "out"])
async def test_larger_copies_go_the_general_way(direction):
    async with scenario() as dev:
        lane, most = WAYS[direction][0], LONG_ALONE_BYTES[TO_DEVICE if direction == "in" else TO_HOST]
        array, host = await dev.to_device(np.zeros(most + 1, np.uint8)), np.ones(most + 1, np.uint8)
        counts = []
        for size in (most, most + 1):
            before = submitted(dev, lane)
            await (array[:size].copy_from if direction == "in" else array[:size].copy_to)(host[:size])
            counts.append(submitted(dev, lane) - before)
        assert counts == [most // SHORT_PIECE + 1, 1]
