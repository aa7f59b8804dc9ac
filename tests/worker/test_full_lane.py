"""What the loop's thread does while a lane is full: it waits for room, and takes other lanes' records meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio._wire.protocol import (
    CONTROL_LANE,
    HEADER,
    RECORDS_SENT_WORD,
    REPEATED,
    SENDER_WAITS_WORD,
    SOCKET_LANE,
    encode_wait,
)
from atomr_trio._wire.ring import NUMBER, SLOTS, Ring
from atomr_trio._worker import full_lane
from atomr_trio._worker.full_lane import FullLane
from support.rogue import gated

FULL, OTHER, THIRD = 0, 1, 2


class Place:
    """A lane as the loop's thread sees it."""

    def __init__(self, index: int, *, submitted: int = 0) -> None:
        self.index = index
        self.submitted = submitted
        self.finished = self.signed = self.accepted = 0
        self.pending = False
        self.room = True
        self.stream = object()
        self.signs = 0

    @property
    def room_until(self) -> int:
        return 1000 if self.room else 0

    def takes_at_once(self, ticket: int) -> bool:
        return self.room and not self.pending

    def sign(self) -> None:
        self.signs += 1


class Bench:
    """A ring with records, three lanes, and what is taken of the records; `turns` says what happens at each turn."""

    def __init__(self, first: int = 1) -> None:
        self.ring = Ring.new()
        self.words: Any = memoryview(bytearray(8 * 512)).cast("Q")
        self.lanes = {index: Place(index) for index in (FULL, OTHER, THIRD)}
        self.lanes[FULL].room = False
        self.poisoned = False
        self.taken: list[int] = []
        self.sent = first - 1
        self.turns: list[Callable[[], None]] = []
        self.full = FullLane(
            self.words,
            self.ring.slots,
            lambda: self.lanes,
            lambda: self.poisoned,
            self.take,
            lambda: self.turns.pop(0)(),
            0.0,
            0.0,
        )

    def take(self, slots: memoryview, at: int) -> None:
        self.taken.append(NUMBER.unpack_from(slots, at)[0])

    def send(self, lane: int, *waits: tuple[int, int], verb: int = 5, words: int = 0) -> int:
        """Write a record; its waits are lanes and tickets."""
        self.sent += 1
        at = ((self.sent - 1) % SLOTS) * 512
        NUMBER.pack_into(self.ring.slots, at, self.sent)
        HEADER.pack_into(self.ring.slots, at + NUMBER.size, 1, lane, 1, verb, len(waits) + words, 0)
        for number, (other, ticket) in enumerate(waits):
            place = at + NUMBER.size + HEADER.size + 8 * number
            self.ring.slots[place : place + 8] = encode_wait(other, ticket).to_bytes(8, "little")
        self.words[RECORDS_SENT_WORD] = self.sent
        return self.sent

    def wait(self, number: int, lane: int = FULL) -> bool:
        place: Any = self.lanes[lane]
        return self.full.wait(place, 1, number)

    def make_room(self, lane: int = FULL) -> None:
        self.lanes[lane].room = True


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.ring.close()


def nothing() -> None:
    pass


def test_it_ends_when_there_is_room_and_lets_the_lane_sign_until_then(bench):
    first = bench.send(FULL)
    bench.turns = [nothing, bench.make_room]
    assert bench.wait(first)
    assert bench.lanes[FULL].signs == 2
    assert not bench.turns
    assert bench.wait(first), "no turn is needed where there is room"


def test_records_of_other_lanes_are_taken_once_and_passed_over_in_their_turn(bench):
    first = bench.send(FULL)
    others = [bench.send(OTHER), bench.send(FULL), bench.send(THIRD), bench.send(OTHER)]
    bench.turns = [lambda: others.append(bench.send(OTHER)), bench.make_room]
    assert bench.wait(first)
    expected = [others[0], others[2], others[3], others[4]]
    assert bench.taken == expected
    assert [number for number in range(first, bench.sent + 1) if bench.full.has_taken(number)] == expected
    assert not any(map(bench.full.has_taken, expected))


def test_a_record_is_left_that_waits_for_one_that_was_left_and_all_of_its_lane_behind_it(bench):
    bench.lanes[THIRD].submitted = 4
    first = bench.send(FULL)
    taken = bench.send(OTHER, (THIRD, 4))
    bench.send(OTHER, (THIRD, 4), (FULL, 1))
    bench.send(OTHER)
    free = bench.send(THIRD)
    bench.turns = [nothing, bench.make_room]
    assert bench.wait(first)
    assert bench.taken == [taken, free]


def test_the_words_of_a_ready_record_are_no_waits(bench):
    first = bench.send(FULL)
    ready = bench.send(OTHER, (FULL, 9), verb=5 | REPEATED)
    bench.turns = [bench.make_room]
    assert bench.wait(first)
    assert bench.taken == [ready]


def test_a_later_wait_goes_on_where_the_last_one_stopped_and_leaves_what_that_has_left(bench):
    first = bench.send(FULL)
    left = bench.send(OTHER, (FULL, 1))
    bench.turns = [bench.make_room]
    assert bench.wait(first)
    bench.lanes[OTHER].room = False
    bench.send(FULL)
    bench.send(OTHER)  # behind one of its lane that was not read yet
    free = bench.send(THIRD)
    bench.turns = [lambda: bench.make_room(OTHER)]
    assert bench.wait(left, OTHER)
    assert bench.taken == [free]
    bench.lanes[FULL].room = False
    late = bench.send(FULL)
    fresh = bench.send(OTHER)
    bench.turns = [bench.make_room]
    assert bench.wait(late)
    assert bench.taken == [free, fresh], "all that was left is read by then"


@pytest.mark.parametrize("lane", [CONTROL_LANE, SOCKET_LANE])
def test_a_record_that_nothing_overtakes_ends_the_wait(bench, lane):
    first = bench.send(FULL)
    before = bench.send(OTHER)
    bench.send(lane)
    bench.send(OTHER)
    assert not bench.wait(first)
    assert bench.taken == [before]


def test_a_sender_that_waits_for_the_ring_ends_it(bench):
    first = bench.send(FULL)

    def ask() -> None:
        bench.words[SENDER_WAITS_WORD] = 1

    bench.turns = [ask]
    assert not bench.wait(first)


def test_a_lane_that_has_other_reasons_than_room_is_not_waited_for(bench):
    first = bench.send(FULL)

    def lose() -> None:
        bench.lanes[FULL].pending = True

    bench.turns = [lose]
    assert not bench.wait(first)
    bench.send(OTHER)
    assert not bench.wait(first)
    assert not bench.taken


def test_a_lost_context_is_not_waited_for(bench):
    first = bench.send(FULL)
    bench.turns = [lambda: setattr(bench, "poisoned", True)]
    assert not bench.wait(first)


def test_a_lane_on_which_nothing_finishes_is_not_waited_for(bench, monkeypatch):
    monkeypatch.setattr(full_lane, "STALLED_SECONDS", 0.0)
    first = bench.send(FULL)

    def finish() -> None:
        bench.lanes[FULL].finished += 1

    bench.turns = [finish, finish, nothing, bench.make_room]
    assert not bench.wait(first)
    assert bench.turns == [bench.make_room]


def test_a_record_that_went_astray_is_not_taken(bench):
    first = bench.send(FULL)
    number = bench.send(OTHER)
    NUMBER.pack_into(bench.ring.slots, (number - 1) * 512, number + SLOTS)
    assert not bench.wait(first)
    assert not bench.taken


def test_the_ring_begins_again_behind_its_last_slot():
    bench = Bench(first=SLOTS)
    first = bench.send(FULL)
    other = bench.send(OTHER)
    bench.turns = [bench.make_room]
    assert bench.wait(first)
    assert bench.taken == [other]
    bench.ring.close()


async def test_behind_a_full_lane_other_lanes_go_on_and_nothing_is_lost_or_made_twice(dev):
    add = await dev.nvrtc.compile('extern "C" __global__ void add(int *x, int n) { x[0] = x[0] * 3 + n; }', "add")
    x, y, host = dev.zeros(1, np.int32), dev.zeros(1, np.int32), np.arange(20_000, dtype=np.int32)
    other = await dev.to_device(host)
    await y.to_host()
    expected = 0
    for number in range(1500):
        expected = (expected * 3 + number) & 0xFFFFFFFF
    async with dev.lane() as lane, gated(dev) as gate, trio.open_nursery() as nursery:

        async def many() -> None:
            async with dev.batch() as batch:
                for number in range(1500):
                    batch.launch(add, 1, 1, x, number)

        nursery.start_soon(many)
        for number in range(30):
            await add.launch(1, 1, y, number, lane=lane)
            assert (await other.to_host() == host + number).all()
            await other.copy_from(host + number + 1)
        await gate.open()
    assert int((await x.to_host())[0]) & 0xFFFFFFFF == expected
    assert (await other.to_host() == host + 30).all()
