"""The native loop and the loop of Python on the same records: the same calls, tickets and statuses.

A worker knows nothing of blocks in quarantine: the user's process sends no command of theirs before the lost worker is
reaped. So no stream of records here has them; the tests of the arena do (``memory/test_memory.py``).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

import atomr_trio
from atomr_cuda import driver
from atomr_trio._wire.backends import NATIVE_VARIABLE, native_loop_wanted
from atomr_trio._wire.protocol import (
    GROUP_LIMIT,
    HEADER,
    INLINE_LIMIT,
    MAX_LANES,
    RECORDS_READ_WORD,
    REPEATED,
    UNSIGNED,
    WORKER_ASLEEP_WORD,
    counter_word,
)
from atomr_trio._wire.ring import NUMBER, SLOT_BYTES, SLOTS
from atomr_trio._worker import main, native
from atomr_trio._worker.base import lanes
from atomr_trio._worker.base.native_calls import NativeStep, Word, native_call, native_steps
from atomr_trio._worker.base.shared_words import (
    COUNTED_ENTRIES,
    MOST_ARGUMENTS,
    MOST_FLOATS,
    NOTED_ENTRIES,
    NOTES,
    SURPLUS,
    WAITERS,
)
from atomr_trio._worker.native_layout import Reason
from support import open_test_device, sim_process as helper
from support.loops import (
    BLOCK,
    DO,
    DO_TYPE,
    ENTRIES,
    FORGET,
    KERNELS,
    LANES,
    LAST_RECORD,
    LAST_TICKET,
    REPEAT,
    Launch,
    Machine,
    Other,
)
from support.strategies import examples

pytestmark = pytest.mark.sim_only
LARGEST = (1 << 32) - 1
LAST_WORD = (1 << 64) - 1
UNKNOWN_KERNEL = 99
FATAL = 700
REFUSED = 1


@pytest.fixture(autouse=True, scope="module")
def simulated() -> Iterator[None]:
    """A driver from which lanes take their functions, before the machine gives them its own. Groups do not grow old."""
    handle = helper.begin()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "GROUP_SECONDS", math.inf)
        yield
    driver.cuCtxSetCurrent(handle)
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuCtxSetCurrent(None)


def launch(lane: int = 0, kernel: int = 2, seed: int = 0, **rest: Any) -> Launch:
    size = KERNELS.get(kernel, 8)
    return Launch(lane, kernel, bytes((seed + place) % 256 for place in range(size)), **rest)


@contextlib.contextmanager
def ran(records: list[Launch | Other], **rest: Any) -> Iterator[tuple[Machine, Machine]]:
    """Both loops after these records: the one of Python, and the native one."""
    with contextlib.closing(Machine(natively=False, **rest)) as python:
        with contextlib.closing(Machine(natively=True, **rest)) as natively:
            python.run(records)
            natively.run(records)
            yield python, natively


# --- what both do ----------------------------------------------------------------------------------------------------

sizes = st.sampled_from([0, 1, 2, 65_535, LARGEST])
launches = st.builds(
    lambda lane, kernel, seed, unsigned, dimensions, shared, options: launch(
        lane, kernel, seed, unsigned=unsigned, dimensions=dimensions, shared=shared, options=options
    ),
    st.integers(0, LANES - 1),
    st.sampled_from([*KERNELS, UNKNOWN_KERNEL]),
    st.sampled_from([0, 255]),
    st.booleans(),
    st.one_of(st.just((1, 1, 1, 1, 1, 1)), st.tuples(*[sizes] * 6)),
    st.sampled_from([0, LARGEST]),
    st.sampled_from([0, LARGEST]),
)
wrong_sizes = st.builds(lambda lane: Launch(lane, 2, b"12345"), st.integers(0, LANES - 1))
at_once = st.builds(
    Other,
    st.integers(0, LANES - 1),
    st.sampled_from([DO.number, FORGET.number, REPEAT.number]),
    st.sampled_from([0, 5, LAST_WORD]),
    st.booleans(),
    st.sampled_from([None, *range(LANES)]),
    st.booleans(),
)
in_turn = st.builds(
    Other, st.integers(0, LANES - 1), st.just(BLOCK.number), st.integers(0, 3), st.booleans(), st.none()
)
bursts = st.builds(lambda record, count: [record] * count, launches, st.sampled_from([1, 2, GROUP_LIMIT, 40]))
some = st.lists(st.one_of(bursts, at_once.map(lambda one: [one]), wrong_sizes.map(lambda one: [one])), max_size=12)
streams = some.map(lambda parts: [record for part in parts for record in part])
with_threads = st.lists(st.one_of(bursts, st.one_of(at_once, in_turn).map(lambda one: [one])), max_size=12).map(
    lambda parts: [record for part in parts for record in part]
)
places = st.integers(1, 60)
refusals = st.dictionaries(places, st.just(REFUSED), max_size=4)
lane_numbers = st.sampled_from([range(LANES), range(MAX_LANES - LANES, MAX_LANES), (MAX_LANES - 1, 0, 7)])


@examples(1.5)
@given(
    streams,
    refusals,
    st.one_of(st.integers(0, 2 * SLOTS), st.just(LAST_RECORD)),
    st.sampled_from([0, LAST_TICKET]),
    lane_numbers,
    st.integers(0, 3),
    st.booleans(),
)
def test_the_same_records_have_the_same_effects(
    records, refused, read_before, signed_before, lanes, following, returns
):
    """Wherever in the ring they lie, whatever of them the driver refuses, and whatever a call returns.

    The records and the tickets of a lane may be those that end with the last numbers that there are.
    """
    given = {
        "refused": refused,
        "read_before": min(read_before, LAST_RECORD - 1 - len(records)),
        "signed_before": min(signed_before, LAST_TICKET - len(records)),
        "lanes": lanes,
        "following": following,
        "returns": returns,
    }
    with ran(records, **given) as (python, natively):
        assert natively.effects == python.effects
        assert natively.state() == python.state()
        assert [natively.groups(lane) for lane in range(LANES)] == [python.groups(lane) for lane in range(LANES)]


repeated = st.builds(
    lambda lane, what, count: [Other(lane, REPEAT.number, what)] * count,
    st.integers(0, LANES - 1),
    st.sampled_from([0, 5]),
    st.sampled_from([1, 4, 90]),
)


@examples(0.6)
@given(
    st.lists(st.one_of(repeated, bursts), max_size=8).map(lambda parts: [record for part in parts for record in part]),
    st.dictionaries(places, st.just(REFUSED), max_size=2),
    st.sampled_from([0, 3]),
)
def test_what_calls_put_into_the_stream_is_noted_by_both(records, refused, lag):
    with ran(records, refused=refused, lag=lag, following=1, alone="noted") as (python, natively):
        assert natively.effects == python.effects
        assert natively.state() == python.state()
        assert [natively.groups(lane) for lane in range(LANES)] == [python.groups(lane) for lane in range(LANES)]
        for each in (python, natively):
            for lane in each.worker._lanes.values():
                lane._room(INLINE_LIMIT)
                state = lane.shared.view
                unfinished = state[SURPLUS] + state[NOTED_ENTRIES] - state[COUNTED_ENTRIES]
                assert unfinished <= lag * (ENTRIES - 1)


@examples(0.6)
@given(with_threads, st.sampled_from([0, INLINE_LIMIT + 20]))
def test_records_that_the_lanes_threads_run_have_the_same_effects_in_each_lane(records, lag):
    """How many share a ticket depends on the threads' turns, so the tickets are compared at the end."""
    with ran([*records, *[launch(0)] * (lag and 300), *records], lag=lag) as both:
        calls = [
            [[effect for effect in each.of_lane(lane) if effect[0] != "ticket"] for lane in range(LANES)]
            for each in both
        ]
        assert calls[0] == calls[1]
        assert both[0].state() == both[1].state()


@examples(0.6)
@given(streams, st.integers(1, 80))
def test_nothing_is_made_after_the_context_was_lost(records, place):
    """The loop of Python makes the rest of its group, which the driver refuses; the native one stops at once."""
    records = [record._replace(waits_for=None) if isinstance(record, Other) else record for record in records]
    with ran(records, refused=dict.fromkeys(range(place, 2000), FATAL)) as (python, natively):
        assert natively.effects[:place] == python.effects[:place]
        assert natively.state()["lost"] == python.state()["lost"]
        assert len(natively.state()["lost"]) == (place <= sum(effect[0] != "ticket" for effect in python.effects))
        made = [effect for effect in natively.effects if effect[0] != "ticket"]
        assert made == [effect for effect in python.effects if effect[0] != "ticket"][: len(made)]


MOMENTS = ("busy", "idle", "waited for", "program asleep", "worker asleep")
"""What a loop does when a record comes: another one is there, it looks for one, a thread waits for the record's ticket,
the program sleeps until a ticket is reached, or the loop itself sleeps on its doorbell."""


class _Live:
    """A loop in its thread, to which the records come one after the other."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._words = machine.page.words
        self._poll = select.poll()
        self._poll.register(machine.worker._wake, select.POLLIN)
        self.wakes: list[bool] = []
        """Whether the program was told, each time that it slept."""
        self._told = [-1]
        self._thread = threading.Thread(target=machine.loop, daemon=True)
        machine.worker._spin_seconds = 60.0
        self._thread.start()

    def feed(self, moment: str, record: Launch | Other) -> None:
        machine, worker = self.machine, self.machine.worker
        if moment != "busy":
            self._until(lambda: self._words[RECORDS_READ_WORD] == machine.sent)
        if moment == "waited for":
            lane = worker._lanes[machine.numbers[record.lane]]
            waiting = threading.Thread(target=lane.wait_submitted, args=(lane.submitted + 1,), daemon=True)
            waiting.start()
            self._until(lambda: lane.shared.view[WAITERS] == 1)
            self._send(record)
            waiting.join(30)
            self.wakes.append(not waiting.is_alive())
        elif moment == "program asleep":
            machine.page.set_asleep(True)
            if self._counters() != self._told:
                self._is_woken()
            self._send(record)
            self._is_woken()
            machine.page.set_asleep(False)
        elif moment == "worker asleep":
            worker._spin_seconds = 0.0
            self._send(record)  # behind it the time is over at once
            self._until(lambda: self._words[WORKER_ASLEEP_WORD] == 1)
            worker._spin_seconds = 60.0
            self._send(record)
            self._until(lambda: self._words[WORKER_ASLEEP_WORD] == 0)
        else:
            self._send(record)

    def close(self) -> None:
        self.machine.close_after_all()
        self.machine.count()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _send(self, record: Launch | Other) -> None:
        self.machine.put(record)
        self.machine.count()

    def _counters(self) -> list[int]:
        return [self._words[counter_word(lane)] for lane in self.machine.numbers]

    def _is_woken(self) -> None:
        self.wakes.append(bool(self._poll.poll(30_000)))
        os.eventfd_read(self.machine.worker._wake)
        self._told = self._counters()

    @staticmethod
    def _until(done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0)


hot = st.sampled_from([launch(1, 3), Other(2, REPEAT.number, 5)])
two_signed = st.tuples(hot, st.one_of(launches, at_once, wrong_sizes)).map(
    lambda two: [record._replace(unsigned=False) for record in two]
)
moments = st.lists(st.tuples(st.sampled_from(MOMENTS), st.sampled_from([0, 0, 1])), min_size=8, max_size=16)


@examples(0.6)
@given(two_signed, moments, refusals)
def test_records_that_come_to_a_loop_that_waits_or_sleeps_have_the_same_effects(two, moments, refused):
    """Nothing but the doorbell wakes a loop here. Each record is signed: who shares a ticket is a matter of time."""
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(main, "NET_SECONDS", 60)
        patch.setattr(main, "LATER_NET_SECONDS", 60)
        both = []
        for natively in (False, True):
            machine = stack.enter_context(contextlib.closing(Machine(natively=natively, refused=refused)))
            live = _Live(machine)
            try:
                for moment, which in moments:  # native code makes what it has met before
                    live.feed(moment, two[which])
            finally:
                live.close()
            both.append(live)
        python, natively_run = both
        assert natively_run.machine.effects == python.machine.effects
        assert natively_run.machine.state() == python.machine.state()
        assert natively_run.wakes == python.wakes
        assert all(python.wakes)


def fed_from_full_ring(each: Machine, total: int) -> None:
    """Let a loop run whose ring is full when it begins, and whose sender has so many more records than that."""
    words = each.page.words

    def has_room() -> bool:
        return each.sent - words[RECORDS_READ_WORD] < SLOTS

    def put(number: int) -> None:
        each.put(launch(number % LANES, kernel=3, seed=number, unsigned=number % 3 != 0))

    def send() -> None:
        for number in range(SLOTS, SLOTS + total):
            while not has_room():
                time.sleep(0)
            put(number)
            each.count()
        while not has_room():
            time.sleep(0)
        each.close_after_all()
        each.count()

    for number in range(SLOTS):
        put(number)
    each.count()
    sender = threading.Thread(target=send)
    sender.start()
    each.loop()
    sender.join()


def test_a_ring_that_is_full_and_goes_on_is_read_to_its_end_by_both():
    """How many share a ticket depends on when the ring is empty, so the tickets are compared at the end."""
    total, made = SLOTS // 2, []
    for natively in (False, True):
        with contextlib.closing(Machine(natively=natively, read_before=SLOTS // 3, refused={9000: REFUSED})) as each:
            fed_from_full_ring(each, total)
            made.append(([effect for effect in each.effects if effect[0] == "launch"], each.state()))
            assert (Reason.MOST in each.returned) is natively
    assert made[0] == made[1]
    launched, state = made[0]
    assert [effect[4][0] for effect in launched] == [number % 256 for number in range(SLOTS + total)]
    assert state["read"] == SLOTS // 3 + SLOTS + total + 1


CORRUPTIONS: dict[str, Callable[[memoryview], None]] = {
    "its number": lambda slot: NUMBER.pack_into(slot, 0, 12345),
    "the last number": lambda slot: NUMBER.pack_into(slot, 0, LAST_RECORD),
    "its ticket": lambda slot: struct.pack_into("<Q", slot, NUMBER.size, 999),
    "the last ticket": lambda slot: struct.pack_into("<Q", slot, NUMBER.size, LAST_WORD),
    "a lane that is not open": lambda slot: struct.pack_into("<B", slot, NUMBER.size + 8, MAX_LANES - 1),
    "an unknown lane": lambda slot: struct.pack_into("<B", slot, NUMBER.size + 8, 77),
    "an unknown engine": lambda slot: struct.pack_into("<B", slot, NUMBER.size + 9, 99),
    "an unknown verb": lambda slot: struct.pack_into("<B", slot, NUMBER.size + 10, 61),
    "an unknown verb that repeats": lambda slot: struct.pack_into("<B", slot, NUMBER.size + 10, REPEATED | 61),
    "an unknown verb that is unsigned": lambda slot: struct.pack_into("<B", slot, NUMBER.size + 10, UNSIGNED | 61),
    "its waits": lambda slot: struct.pack_into("<B", slot, NUMBER.size + 11, 255),
    "its length": lambda slot: struct.pack_into("<I", slot, NUMBER.size + HEADER.size - 4, 1 << 20),
    "the last length": lambda slot: struct.pack_into("<I", slot, NUMBER.size + HEADER.size - 4, LARGEST),
}


@pytest.mark.parametrize("what", CORRUPTIONS)
@pytest.mark.parametrize(
    "record", [launch(), Other(0, REPEAT.number, 5), Other(0, DO.number, 5)], ids=["launch", "ready", "general"]
)
def test_both_say_the_same_of_a_corrupt_record_and_make_nothing_from_it_on(what, record):
    """It is in the midst of records like it, which native code makes."""
    said, effects = [], []
    for natively in (False, True):
        with contextlib.closing(Machine(natively=natively)) as each:
            for number in range(9):
                each.put(record)
                if number == 5:
                    CORRUPTIONS[what](each.last_slot)
            each.count()
            with pytest.raises((KeyError, ValueError)) as caught:
                each.loop()
            said.append((caught.type, str(caught.value)))
            effects.append([effect for effect in each.effects if effect[0] != "ticket"])
    assert said[0] == said[1]
    assert effects[0] == effects[1]
    assert len(effects[0]) == 5


@pytest.mark.parametrize("ticket", range(1, 2 * GROUP_LIMIT + 2))
def test_a_ticket_that_is_refused_is_asked_for_again(ticket):
    signs = ticket % 3 == 0
    records: list[Launch | Other] = [
        launch(0, seed=number, unsigned=not signs) for number in range(2 * GROUP_LIMIT + 3)
    ]
    refused = {(0, ticket): REFUSED}
    with ran(records, refused_tickets=refused) as both:
        assert both[0].effects == both[1].effects
        assert both[0].state() == both[1].state()
        assert both[0].state()["signed"][0] == len(records)
        asked = ("ticket refused", 0, ticket) in both[1].effects
        assert asked == (signs or ticket % GROUP_LIMIT == 0)


def test_a_ticket_that_loses_the_context_ends_what_follows():
    with ran([launch(0, unsigned=False)] * 5, refused_tickets={(0, 3): FATAL}) as both:
        assert both[0].state()["lost"] == both[1].state()["lost"]
        assert len(both[1].state()["lost"]) == 1
        assert sum(effect[0] == "launch" for effect in both[1].effects) == 3


# --- what the native one does ----------------------------------------------------------------------------------------


@pytest.fixture
def native_machine() -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(**rest: Any) -> Machine:
        made.append(Machine(natively=True, **rest))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_launches_that_are_known_need_no_python(native_machine):
    each = native_machine()
    each.run([launch(0, seed=number, unsigned=True) for number in range(200)])
    assert each.returned == [Reason.RECORD, Reason.RECORD], "for the first launch, and for the end"
    assert [effect[0] for effect in each.effects].count("launch") == 200
    assert [effect[2] for effect in each.effects if effect[0] == "ticket"] == [*range(16, 201, 16), 200]


def test_calls_of_a_library_that_are_known_need_no_python(native_machine):
    """With a word and without; native code writes the word where the call has it."""
    each = native_machine()
    words = [Other(1, REPEAT.number, what, as_word=True) for what in (0, 5, LAST_WORD)] * 50
    constants = [Other(1, REPEAT.number, 9, as_word=False)] * 50
    each.run([*words, *constants])
    assert each.returned.count(Reason.RECORD) == 3, "for the first of both, and for the end"
    made = [effect[3] for effect in each.effects if effect[0] == "call"]
    assert made == [record.what.to_bytes(8, "little") for record in (*words, *constants)]


@pytest.mark.parametrize("alone", ["bounded", "noted", "weighed"])
def test_of_calls_that_are_made_alone_native_code_makes_those_that_are_bounded_or_noted(native_machine, alone):
    each = native_machine(alone=alone)
    each.run([Other(0, REPEAT.number, number) for number in range(20)])
    taken = each.returned.count(Reason.RECORD)
    assert taken == (1 if alone == "weighed" else 2), "for the first and for the end; or Python takes them all"
    assert [int.from_bytes(effect[3], "little") for effect in each.effects if effect[0] == "call"] == [*range(20)]


def test_native_code_makes_as_many_calls_as_the_stream_has_room_for(native_machine):
    """With notes that nobody has counted, Python is asked, which counts them."""
    each = native_machine(alone="noted")
    count = 2 * NOTES + 10
    each.run([Other(0, REPEAT.number, number) for number in range(count)])
    made = [int.from_bytes(effect[3], "little") for effect in each.effects if effect[0] == "call"]
    assert made == [*range(count)]
    fit = 2 * INLINE_LIMIT // (ENTRIES + 1)
    assert each.returned.count(Reason.RECORD) == pytest.approx(count / fit, rel=0.2)


def test_calls_that_follow_another_are_made_behind_it_and_each_refusal_has_its_own_name(native_machine):
    each = native_machine(following=2, refused={8: REFUSED, 9: REFUSED, 12: REFUSED})
    each.run([Other(0, REPEAT.number, number) for number in range(6)])
    assert [effect[:2] if effect[0] == "undone" else effect[0] for effect in each.effects if effect[0] != "ticket"] == [
        *("call", "part 1", "part 2") * 2,
        *("call", "part 1", ("undone", 1)),
        "call",  # refused, so nothing behind it
        *("call", "part 1", "part 2", ("undone", 2)),
        *("call", "part 1", "part 2"),
    ]
    names = [message["text"].partition(":")[0] for message in each.state()["errors"]]
    assert names == ["toyDoPart1", "toyDo", "toyDoPart2"]


def test_a_call_that_returns_a_word_needs_no_python_and_another_number_is_a_refusal(native_machine):
    machine = native_machine(refused={5: REFUSED}, returns=True)
    machine.run([Other(0, REPEAT.number, word, True) for word in (3, 4, LARGEST, 5, 1 << 32, 6)])
    assert [effect[0] for effect in machine.effects if effect[0] == "call"] == ["call"] * 6
    assert machine.returned.count(Reason.FAILED) == 1
    assert machine.returned.count(Reason.RECORD) == 2  # the first, and what ends the loop
    assert [message["status"] for message in machine.messages] == [REFUSED]


def test_a_word_that_is_too_large_for_native_code_is_left_to_python(native_machine):
    each = native_machine(most_word=7)
    numbers = (7, 0, 8, 7, 8, 3)
    each.run([Other(0, REPEAT.number, number) for number in numbers])
    made = [int.from_bytes(effect[3], "little") for effect in each.effects if effect[0] == "call"]
    assert made == list(numbers)
    assert each.returned.count(Reason.RECORD) == 4, "for the first, for both that are too large, and for the end"


def test_a_call_whose_setting_is_another_is_left_to_python(native_machine):
    """It sets it, and native code goes on."""
    each = native_machine()
    records = [Other(0, REPEAT.number, number) for number in range(8)]
    do = each._do

    def change(*arguments: int) -> int:
        if arguments[3] and len(each.effects) == 4:
            each.setting.view[0] = 1
        return do(*arguments)

    each.do = DO_TYPE(each._guarded(change))
    each.run(records)
    assert [effect[3] for effect in each.effects if effect[0] == "call"] == [
        number.to_bytes(8, "little") for number in range(8)
    ]
    assert each.returned.count(Reason.RECORD) == 1 + 3, "for the first, and for each of those behind the change"


def test_a_slot_with_another_number_ends_the_loop_and_launches_nothing(native_machine):
    each = native_machine()
    for number in range(4):
        each.put(launch(0, seed=number))
    each.ring.slots[2 * SLOT_BYTES] = 7
    each.count()
    with pytest.raises(ValueError, match="slot 2 of the ring has record 7 instead of 3"):
        each.worker.run()
    assert sum(effect[0] == "launch" for effect in each.effects) == 2


def test_a_ticket_out_of_turn_ends_the_loop_and_launches_nothing(native_machine):
    each = native_machine()
    each.put(launch(0))
    each.tickets[0] = 5
    each.put(launch(0))
    each.count()
    with pytest.raises(ValueError, match="lane 0 was given ticket 6 after 1"):
        each.worker.run()
    assert sum(effect[0] == "launch" for effect in each.effects) == 1


def test_every_byte_of_what_is_the_same_in_a_launch_counts(native_machine):
    """A record that differs in one bit is another launch, and none that the table knows."""
    each = native_machine()
    base = launch(0, dimensions=(1, 2, 3, 4, 5, 6), shared=7, options=8)
    others = [
        base._replace(dimensions=(*base.dimensions[:place], 1 << 31, *base.dimensions[place + 1 :]))
        for place in range(6)
    ]
    others += [base._replace(shared=1 << 31), base._replace(options=1 << 31), base._replace(unsigned=False)]
    others += [base._replace(lane=1), launch(0, 3, dimensions=(1, 2, 3, 4, 5, 6), shared=7, options=8)]
    each.run([record for other in others for record in (base, other, base, other)])
    assert each.returned.count(Reason.RECORD) == len(others) + 1, "each is met once, and the end"
    made = [effect[1:] for effect in each.effects if effect[0] == "launch"]
    expected = [
        (one.lane, one.kernel, (*one.dimensions, one.shared, one.options), one.parameters)
        for other in others
        for one in (base, other, base, other)
    ]
    assert made == expected


def test_more_launches_than_the_table_holds_are_all_made(native_machine):
    each, most = native_machine(), 2 * 2048 + 10
    records = [launch(0, dimensions=(number, 1, 1, 1, 1, 1)) for number in range(1, most) for _ in range(2)]
    each.run(records[: SLOTS - 1])
    made = [effect[3][0] for effect in each.effects if effect[0] == "launch"]
    assert made == [record.dimensions[0] for record in records[: SLOTS - 1]]


def test_a_thread_that_waits_for_a_lane_is_told_of_its_ticket(native_machine):
    each = native_machine()
    lane = each.worker._lanes[0]
    loop = threading.Thread(target=each.loop)
    loop.start()
    for ticket in range(1, 400):
        waiting = threading.Thread(target=lane.wait_submitted, args=(ticket,))
        waiting.start()
        each.put(launch(0, seed=ticket))
        each.count()
        waiting.join(30)
        assert not waiting.is_alive(), "nobody told it"
    each.close_after_all()
    each.count()
    loop.join()
    assert Reason.WAITERS in each.returned


def test_the_loop_lives_while_native_code_waits(native_machine):
    """The thread that watches the loop sees it by the turns; the interpreter is free meanwhile."""
    each = native_machine()
    each.worker._spin_seconds = 60.0
    loop = threading.Thread(target=each.loop)
    loop.start()
    seen = set()
    while len(seen) < 100:
        seen.add(each.worker._state[0])
    each.close_after_all()
    each.count()
    loop.join()
    assert Reason.EMPTY in each.returned


def test_a_sleeping_program_is_told_of_a_ticket(native_machine):
    each = native_machine(lag=1)
    each.worker._spin_seconds = 60.0
    each.page.set_asleep(True)
    loop = threading.Thread(target=each.loop)
    loop.start()
    each.put(launch(0, unsigned=False))
    each.put(launch(0, unsigned=False))
    each.count()
    poll = select.poll()
    poll.register(each.worker._wake, select.POLLIN)
    assert poll.poll(30_000), "nobody woke it"
    os.eventfd_read(each.worker._wake)
    while each.worker._lanes[0].finished < 1:
        time.sleep(0)
    each.page.words[each.worker._lanes[0]._counter] = 2
    assert poll.poll(30_000), "nobody woke it for the second one"
    each.close_after_all()
    each.count()
    loop.join()
    assert Reason.TELL in each.returned


# --- how engines describe their calls --------------------------------------------------------------------------------


def declared(call: Any, *kinds: Any) -> Any:
    return SimpleNamespace(argtypes=kinds, restype=ctypes.c_int, symbol="toyCall", bind=lambda: call)


def test_a_call_is_described_by_its_function_and_its_arguments():
    calls: list[tuple[Any, ...]] = []
    function = declared(lambda *given: calls.append(given) or 5, ctypes.c_void_p, ctypes.c_int, ctypes.c_ubyte)
    form = native_call(function, (Word(1, base=100, most=9), -3, Word(0)), 2, calls.append)
    assert form is not None
    for target in form.targets:
        ctypes.c_uint64.from_address(target.address).value = (0x1FF, 8)[target.word] + target.base
    assert {target.word: target.most for target in form.targets} == {0: (1 << 64) - 1, 1: 9}
    call = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_uint64,) * MOST_ARGUMENTS)(form.function)
    assert call(*form.arguments.view[:MOST_ARGUMENTS]) == 5
    assert calls == [(108, -3, 0xFF)]


def test_floating_point_numbers_come_as_the_function_takes_them():
    calls: list[tuple[Any, ...]] = []
    kinds = (ctypes.c_float, ctypes.c_void_p, ctypes.c_double, ctypes.c_int)
    function = declared(lambda *given: calls.append(given) or 0, *kinds)
    form = native_call(function, (0.1, Word(0), -2.5, 7), 1, calls.append)
    assert form is not None
    (target,) = form.targets
    ctypes.c_uint64.from_address(target.address).value = 12
    words, floats = form.arguments.view[:MOST_ARGUMENTS], form.arguments.view[MOST_ARGUMENTS:].cast("B").cast("d")
    types = (ctypes.c_uint64,) * MOST_ARGUMENTS, (ctypes.c_double,) * MOST_FLOATS
    assert ctypes.CFUNCTYPE(ctypes.c_int, *types[0], *types[1])(form.function)(*words, *floats) == 0
    assert calls == [(ctypes.c_float(0.1).value, 12, -2.5, 7)]


def test_functions_that_are_one_command_share_the_words_of_its_record():
    """A word may have several places; one that the record does not bring is constant."""
    function = declared(lambda *given: 0, ctypes.c_void_p, ctypes.c_void_p)
    steps = [
        NativeStep(native_call(function, given, None, lambda bug: None), lambda status: ValueError(status))
        for given in ((Word(1), Word(2, base=8)), (Word(0), Word(1, base=16)))
    ]
    form = native_steps(steps, (1000, 2000, 3000), {1: 0, 0: 1}, entries=5)
    assert (form.entries, len(form.then)) == (5, 1)
    for target in form.targets:
        ctypes.c_uint64.from_address(target.address).value = (70, 80)[target.word] + target.base
    assert [list(each.arguments.view[:2]) for each in (form, form.then[0])] == [[70, 3008], [80, 86]]


def test_what_native_code_cannot_call_has_no_description():
    def describe(*kinds: Any) -> object:
        return native_call(declared(None, *kinds), (1,) * len(kinds), 0, lambda bug: None)

    assert describe(ctypes.c_longdouble) is None
    assert describe(*(ctypes.c_float,) * (MOST_FLOATS + 1)) is None
    assert describe(ctypes.c_int * 2) is None
    assert describe(*(ctypes.c_int,) * (MOST_ARGUMENTS + 1)) is None
    assert describe(*(ctypes.POINTER(ctypes.c_int),) * MOST_ARGUMENTS) is not None
    assert native_call(declared(None, ctypes.c_double), (Word(0),), 1, lambda bug: None) is None
    with pytest.raises(ValueError, match="not every one of 2 words is an argument of toyCall"):
        native_call(declared(None, ctypes.c_int), (Word(1),), 2, lambda bug: None)


# --- where it does not run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "value", "reason"),
    [("cuda", "0", "ATOMR_TRIO_NATIVE=0"), ("sim", "0", "ATOMR_TRIO_NATIVE=0"), ("sim", "", "a simulated device")],
)
def test_it_can_be_turned_off_and_says_so(backend, value, reason, monkeypatch):
    monkeypatch.setenv(NATIVE_VARIABLE, value)
    with pytest.raises(native.Unavailable, match=reason):
        native.check(backend, native_loop_wanted())


@pytest.mark.parametrize(("backend", "value"), [("cuda", ""), ("cuda", "1"), ("sim", "1")])
def test_it_runs_by_default_and_for_a_simulated_device_if_asked(backend, value, monkeypatch):
    monkeypatch.setenv(NATIVE_VARIABLE, value)
    native.check(backend, native_loop_wanted())


def test_a_worker_that_cannot_have_it_gets_the_reason(monkeypatch):
    """Whatever it is, the worker goes on with the loop of Python."""
    wants: Any = dict.fromkeys(("driver", "loop", "page", "page_on_device", "patience", "give_up"))
    ring: Any = object()
    assert native.loop_for(backend="cuda", ring=None, **wants) == (None, "records come through the socket")
    monkeypatch.setenv(NATIVE_VARIABLE, "0")
    assert native.loop_for(backend="cuda", ring=ring, **wants) == (None, "ATOMR_TRIO_NATIVE=0")
    monkeypatch.setenv(NATIVE_VARIABLE, "1")

    def refuse() -> None:
        raise native.Unavailable("forbidden")

    monkeypatch.setattr(native, "mapped", refuse)
    assert native.loop_for(backend="cuda", ring=ring, **wants) == (None, "forbidden")


async def test_a_device_says_which_loop_it_has(monkeypatch):
    for value, reason in (("1", None), ("0", "ATOMR_TRIO_NATIVE=0")):
        monkeypatch.setenv(NATIVE_VARIABLE, value)
        async with open_test_device() as dev:
            assert dev.info.python_loop == reason


async def test_another_value_of_the_variable_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setenv(NATIVE_VARIABLE, "yes")
    with pytest.raises(atomr_trio.InvalidArgument, match=r"ATOMR_TRIO_NATIVE is 0 \(off\) or 1 \(on\), not 'yes'"):
        async with open_test_device():
            raise AssertionError("it was opened")
