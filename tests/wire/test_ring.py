"""The ring of records: its slots and numbers, what does not fit, who is woken, and what a corrupt one comes to."""

from __future__ import annotations

import functools
import math
import os
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import trio

import atomr_trio
from atomr_trio import InvalidArgument, RestartPolicy
from atomr_trio._device.device import core_of
from atomr_trio._generation.generation import Generation
from atomr_trio._wire.protocol import (
    CONTROL_LANE,
    HEADER,
    LANE_COMPUTE,
    MAX_LANES,
    RECORDS_READ_WORD,
    RECORDS_SENT_WORD,
    SENDER_WAITS_WORD,
    SOCKET_LANE,
    WORKER_ASLEEP_WORD,
)
from atomr_trio._wire.records import context as context_records
from atomr_trio._wire.records.module import LAUNCH
from atomr_trio._wire.ring import (
    GROUPS,
    MAX_RECORD,
    NUMBER,
    RING_BYTES,
    SLOT_BYTES,
    SLOTS,
    Ring,
    group_index,
    record_struct,
)
from atomr_trio.testing import check_actor, hold_worker
from support.rogue import next_generation, until
from support.stage import Owner, Stage, needs_ring

DEADLINE = 60
N = 8
SOURCE = r"""
extern "C" __global__ void add(int *x, int a) { x[threadIdx.x] += a; }
struct Large { int first; char rest[600]; };
extern "C" __global__ void add_large(int *x, struct Large large) { x[threadIdx.x] += large.first; }
"""
NUMBERS = np.arange(N, dtype=np.int32)


# --- what the user's process writes -----------------------------------------------------------------------------------

LARGEST = (1 << 64) - 1


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("<QQ8sQi4xQ", (1, LARGEST, b"12345678", 1 << 47, -3, 7)),
        ("<QQ5sQ", (1, 2, b"12345", LARGEST)),  # a native format would add padding
        ("<QiQ", (1, -2, LARGEST)),
        ("<QlL", (1, -2, 3)),  # native ones are longer
        ("<Q?bBhHe6xfdqQ16s", (5, True, -1, 255, -2, 65535, 0.5, 1.5, 2.5, -(1 << 63), LARGEST, b"end")),
        ("<", ()),
    ],
)
def test_records_are_packed_in_their_layout(form: str, values: tuple[Any, ...]) -> None:
    assert record_struct(form).pack(*values) == struct.pack(form, *values)
    assert record_struct(form).size == struct.calcsize(form)


def test_a_word_that_does_not_fit_is_not_packed() -> None:
    for word in (-1, LARGEST + 1, 1.0, None):
        with pytest.raises(struct.error):
            record_struct("<QQ8sQ").pack(1, 2, b"", word)


class RingStage(Stage):
    """A generation with a ring, and the eyes of its worker."""

    def __init__(self) -> None:
        super().__init__(with_ring=True)
        assert self.generation.ring is not None
        self.ring = self.generation.ring
        self.words = self.generation.page.words

    def slot(self, number: int) -> tuple[int, bytes]:
        """The number in a slot, and the record without what the slot has beyond it."""
        at = (number - 1) % SLOTS * SLOT_BYTES
        data = bytes(self.ring.slots[at + NUMBER.size : at + SLOT_BYTES])
        _, _, _, _, waits, length = HEADER.unpack_from(data)
        return NUMBER.unpack_from(self.ring.slots, at)[0], data[: HEADER.size + 8 * waits + length]

    def read(self, count: int) -> None:
        """The worker says that it has read so many records."""
        self.words[RECORDS_READ_WORD] = count

    def has_sent(self, count: int) -> bool:
        """Whether so many records are in the ring, or were."""
        return bool(self.words[RECORDS_SENT_WORD] == count)

    def publish_bytes(self, payload: bytes, descriptors: tuple[int, ...] = ()) -> None:
        self.generation.publish(LANE_COMPUTE, LAUNCH, payload, (), Owner(), descriptors=descriptors)


@pytest.fixture
def stage() -> Iterator[RingStage]:
    made = RingStage()
    yield made
    made.close()


def test_the_slots_and_the_groups_have_the_ring_to_themselves():
    assert SLOT_BYTES * SLOTS + MAX_LANES * GROUPS == RING_BYTES
    assert MAX_RECORD + NUMBER.size == SLOT_BYTES
    assert SLOTS & SLOTS - 1 == 0 == SLOT_BYTES & SLOT_BYTES - 1
    ring = Ring.new()
    assert (len(ring.slots), len(ring.groups)) == (SLOTS * SLOT_BYTES, MAX_LANES * GROUPS)
    places = {group_index(lane, ticket) for lane in range(MAX_LANES) for ticket in range(1, GROUPS + 1)}
    assert places == set(range(MAX_LANES * GROUPS))
    assert group_index(3, 5) == group_index(3, 5 + GROUPS)
    ring.close()
    ring.close()


def test_records_lie_in_their_slots_with_their_numbers(stage):
    for number in range(1, 6):
        stage.publish_bytes(bytes([number]) * number)
        assert stage.words[RECORDS_SENT_WORD] == stage.generation.sender.sent == number
    for number in range(1, 6):
        written, record = stage.slot(number)
        assert written == number
        assert HEADER.unpack_from(record) == (number, 0, LAUNCH.engine_number, LAUNCH.number, 0, number)
        assert record[HEADER.size :] == bytes([number]) * number
    assert stage.records() == [], "nothing went by the socket"


def test_a_record_is_found_by_its_ticket_while_it_has_its_slot(stage):
    ring = stage.generation.ring
    for number in range(1, SLOTS + 3):
        stage.read(number - 1)
        stage.generation.sender.send(HEADER.pack(number, number % 3, 0, 0, 0, 0))
    sent = stage.generation.sender.sent
    known = [(3 % 3, 3), (1000 % 3, 1000), (sent % 3, sent)]
    assert ring.places_of([*known, (2, 2), (1, 3), (0, sent + 3)], sent) == {each: each[1] for each in known}
    assert ring.places_of([], sent) == {}


def test_the_slots_are_used_again_in_turn(stage):
    for number in range(1, 2 * SLOTS + 11):
        stage.read(number - 1)
        stage.generation.sender.send(HEADER.pack(number, CONTROL_LANE, 0, 0, 0, 0))
    assert stage.words[RECORDS_SENT_WORD] == 2 * SLOTS + 10
    for number in (2 * SLOTS + 10, 2 * SLOTS + 1, 2 * SLOTS, SLOTS + 11):
        written, record = stage.slot(number)
        assert written == HEADER.unpack_from(record)[0] == number


def test_what_a_full_ring_has_no_room_for_comes_when_the_worker_says_so_and_in_order(stage):
    extra = 50
    for number in range(1, SLOTS + extra + 1):
        stage.generation.sender.send(HEADER.pack(number, CONTROL_LANE, 0, 0, 0, 0))
    assert stage.words[RECORDS_SENT_WORD] == SLOTS
    assert len(stage.generation.sender.outbox) == extra
    assert stage.generation.sender.outbox_bytes == extra * HEADER.size
    assert stage.words[SENDER_WAITS_WORD]
    stage.generation.sender.send(HEADER.pack(SLOTS + extra + 1, CONTROL_LANE, 0, 0, 0, 0))
    assert stage.words[RECORDS_SENT_WORD] == SLOTS, "one that comes later does not go first"

    async def drain() -> None:
        with trio.fail_after(DEADLINE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stage.generation.inbox.run)
                for read, sent in ((1, SLOTS + 1), (SLOTS, SLOTS + extra + 1)):
                    stage.read(read)
                    stage.tell({"kind": "room"})
                    await until(functools.partial(stage.has_sent, sent))
                nursery.cancel_scope.cancel()

    trio.run(drain)
    assert not stage.generation.sender.outbox
    for number in range(SLOTS - 5, SLOTS + extra + 2):
        written, record = stage.slot(number)
        assert written == HEADER.unpack_from(record)[0] == number


def test_what_goes_by_the_socket_keeps_its_place(stage):
    read_end, write_end = os.pipe()
    stage.publish_bytes(b"first")
    stage.publish_bytes(b"with a descriptor", (read_end,))
    stage.publish_bytes(b"third")
    stage.publish_bytes(b"x" * (MAX_RECORD - HEADER.size))
    stage.publish_bytes(b"y" * (MAX_RECORD - HEADER.size + 1))
    stage.publish_bytes(b"last")
    records = [stage.slot(number) for number in range(1, 7)]
    assert [number for number, _ in records] == list(range(1, 7))
    lanes = [HEADER.unpack_from(record)[1] for _, record in records]
    assert lanes == [0, SOCKET_LANE, 0, 0, SOCKET_LANE, 0]
    by_socket = stage.records()
    assert [record.ticket for record in by_socket] == [2, 5]
    assert [record.payload for record in by_socket] == [b"with a descriptor", b"y" * (MAX_RECORD - HEADER.size + 1)]
    assert stage.generation.sender.sent == 6
    for descriptor in (read_end, write_end, *by_socket[0].descriptors):
        os.close(descriptor)


def test_a_record_that_the_socket_has_no_room_for_holds_up_those_behind_it(stage):
    large = b"x" * 1000
    while not stage.generation.sender.outbox:
        stage.publish_bytes(large)
    sent = stage.generation.sender.sent
    stage.publish_bytes(b"small")
    assert len(stage.generation.sender.outbox) == 2
    assert stage.words[RECORDS_SENT_WORD] == sent
    written, record = stage.slot(sent)
    assert (written, HEADER.unpack_from(record)[1]) == (sent, SOCKET_LANE), "no slot speaks of one that is not sent"


def test_a_worker_that_sleeps_is_rung_and_another_is_not(stage):
    bell = stage.generation._bell
    stage.publish_bytes(b"")
    with pytest.raises(BlockingIOError):
        os.eventfd_read(bell)
    stage.words[WORKER_ASLEEP_WORD] = 1
    stage.publish_bytes(b"")
    stage.publish_bytes(b"")
    assert os.eventfd_read(bell) == 2
    stage.words[WORKER_ASLEEP_WORD] = 0
    stage.publish_bytes(b"")
    with pytest.raises(BlockingIOError):
        os.eventfd_read(bell)


# --- a worker of flesh and blood --------------------------------------------------------------------------------------


async def compiled(dev: Any, name: str = "add") -> Any:
    return await dev.nvrtc.compile(SOURCE, name)


async def test_records_go_round_the_ring_and_arrive_once_each(dev):
    add = await compiled(dev)
    x = dev.zeros(N, np.int32)
    rounds, expected = SLOTS + 800, 0
    with trio.fail_after(DEADLINE):
        async with dev.batch() as batch:
            for number in range(rounds):
                try:
                    batch.launch(add, 1, 1, x, number)
                except trio.WouldBlock:
                    await batch.flush()
                    batch.launch(add, 1, 1, x, number)
                expected += number
    assert core_of(dev).current.sender.sent > SLOTS
    assert (await x.to_host())[0] == np.int64(expected).astype(np.int32)


async def test_a_full_ring_is_emptied_in_order(dev, monkeypatch):
    """Control records have no limit of their own, so they can fill it; what comes behind them waits for its turn."""
    add = await compiled(dev)
    x = await dev.to_device(NUMBERS)
    await add.launch(1, N, x, 1)
    generation = core_of(dev).current
    probed = trio.Event()
    with trio.fail_after(DEADLINE):
        with hold_worker(dev):
            for _ in range(SLOTS + 10):
                generation.inbox._probes.append(probed)
                generation.sender.send_control(context_records.PROBE)
            assert len(generation.sender.outbox) >= 10
            add.launch_nowait(1, N, x, 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(add.launch, 1, N, x, 1)  # not the short way: the outbox goes first
                await until(lambda: dev.statistics().lanes[0].unfinished == 2)
                assert generation.sender.outbox
                nursery.cancel_scope.cancel()
        await until(lambda: not generation.sender.outbox)
        await add.launch(1, N, x, 1)
    assert (await x.to_host() == NUMBERS + 4).all()
    assert dev.generation == 1


async def test_a_launch_too_large_for_a_slot_keeps_its_place_among_others(dev):
    add, add_large = await compiled(dev), await compiled(dev, "add_large")
    x = await dev.to_device(NUMBERS)
    expected = 0
    async with dev.batch() as batch:
        for number in range(50):
            batch.launch(add, 1, N, x, number)
            batch.launch(add_large, 1, N, x, struct.pack("<i600x", 1000 * number))
            expected += 1001 * number
    assert (await x.to_host() == NUMBERS + expected).all()
    assert add_large._record_bytes + HEADER.size > MAX_RECORD


@needs_ring
async def test_a_worker_that_sleeps_wakes_for_a_record(open_test_device):
    async with open_test_device() as dev:
        add = await compiled(dev)
        x = await dev.to_device(NUMBERS)
        words = core_of(dev).current.page.words
        for _ in range(5):
            await until(lambda: words[WORKER_ASLEEP_WORD] == 1)
            begun = time.perf_counter()
            with trio.fail_after(DEADLINE):
                await add.launch(1, N, x, 1)
            assert time.perf_counter() - begun < DEADLINE
        assert (await x.to_host() == NUMBERS + 5).all()


CORRUPTIONS: dict[str, Callable[[bytearray], object]] = {
    "its number": lambda slot: NUMBER.pack_into(slot, 0, 12345),
    "its length": lambda slot: struct.pack_into("<I", slot, NUMBER.size + HEADER.size - 4, 1 << 20),
    "its ticket": lambda slot: struct.pack_into("<Q", slot, NUMBER.size, 999),
    "its lane": lambda slot: struct.pack_into("<B", slot, NUMBER.size + 8, 77),
    "its engine": lambda slot: struct.pack_into("<B", slot, NUMBER.size + 9, 99),
    "its verb": lambda slot: struct.pack_into("<B", slot, NUMBER.size + 10, 99),
    "its waits": lambda slot: struct.pack_into("<B", slot, NUMBER.size + 11, 255),
}


@needs_ring
@pytest.mark.parametrize("what", CORRUPTIONS)
async def test_a_corrupt_slot_ends_the_worker_and_makes_no_wild_call(what, dev):
    add = await compiled(dev)
    x, kept = await dev.to_device(NUMBERS), await dev.to_device(NUMBERS)
    for _ in range(3):
        await add.launch(1, N, x, 1)
    generation = core_of(dev).current
    with trio.fail_after(DEADLINE):
        with hold_worker(dev):
            add.launch_nowait(1, N, x, 1)
            at = (generation.sender.sent - 1) % SLOTS * SLOT_BYTES
            slot = bytearray(generation.ring.slots[at : at + SLOT_BYTES])
            CORRUPTIONS[what](slot)
            generation.ring.slots[at : at + SLOT_BYTES] = bytes(slot)
        await next_generation(dev, 1)
    assert "status 70" in generation.loss.reason
    assert x.state == "torn"
    await x.copy_from(NUMBERS)
    await add.launch(1, N, x, 1)
    assert (await x.to_host() == NUMBERS + 1).all()
    assert (await kept.to_host() == NUMBERS).all()


@needs_ring
async def test_each_generation_has_a_ring_of_its_own(dev):
    first = core_of(dev).current
    assert first.ring is not None
    os.kill(first.process.pid, 9)
    await next_generation(dev, 1)
    second = core_of(dev).current
    assert second.ring is not None
    assert second.ring is not first.ring
    assert first.ring.descriptor < 0, "the lost one's is unmapped"


# --- other transports -------------------------------------------------------------------------------------------------


async def launches_copies_and_a_loss(make_device: Callable[[], Any]) -> None:
    """What must be the same however records get to the worker."""
    async with make_device() as dev:
        add, add_large = await compiled(dev), await compiled(dev, "add_large")
        x = await dev.to_device(NUMBERS)
        prepared = add.prepare(1, N, x, 1)
        for _ in range(20):
            await add.launch(1, N, x, 1)
            await prepared.launch()
        await add_large.launch(1, N, x, struct.pack("<i600x", 7))
        async with dev.batch() as batch:
            for _ in range(100):
                batch.launch(add, 1, N, x, 1)
                batch.launch(prepared)
            seen = batch.to_host(x)
        assert (seen == NUMBERS + 247).all()
        async with dev.lane() as lane:
            await add.launch(1, N, x, 3, lane=lane)
        assert (await x.to_host() == NUMBERS + 250).all()
        with hold_worker(dev):
            add.launch_nowait(1, N, x, 1)
            os.kill(core_of(dev).current.process.pid, 9)
        await next_generation(dev, 1)
        assert x.state == "torn"
        await x.copy_from(NUMBERS)
        await prepared.launch()
        assert (await x.to_host() == NUMBERS + 1).all()
        for actor in dev.statistics().actors:
            assert actor.unsettled == 0, actor


async def test_with_a_ring(open_test_device):
    await launches_copies_and_a_loss(open_test_device)


async def test_without_a_ring(open_test_device, monkeypatch):
    monkeypatch.setitem(Generation.__init__.__kwdefaults__, "with_ring", False)
    await launches_copies_and_a_loss(open_test_device)


async def test_with_a_worker_that_never_looks_by_itself(open_test_device):
    await launches_copies_and_a_loss(functools.partial(open_test_device, spin=0))


async def test_without_a_ring_a_call_keeps_every_promise(open_test_device, monkeypatch):
    monkeypatch.setitem(Generation.__init__.__kwdefaults__, "with_ring", False)
    policy = RestartPolicy(intensity=math.inf)
    await check_actor(functools.partial(open_test_device, restart_policy=policy))


@pytest.mark.parametrize("spin", [-1, math.inf, math.nan, True, "1"])
async def test_a_time_to_look_for_records_that_cannot_be_is_refused(spin):
    with pytest.raises(InvalidArgument, match="spin is a number of seconds"):
        async with atomr_trio.open_device(backend="sim", spin=spin):
            raise AssertionError("it was opened")
