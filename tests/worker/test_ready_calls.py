"""The ready calls of a worker: which record finds which call, and that both ways do the same with its words."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_trio._wire.protocol import HEADER, REPEATED, UNSIGNED, Mode, VerbTable
from atomr_trio._wire.ready import general_payload, ready_head, with_holes
from atomr_trio._wire.ring import MAX_RECORD, NUMBER, SLOT_BYTES
from atomr_trio._worker import ready as ready_module
from atomr_trio._worker.base.lanes import Ready
from atomr_trio._worker.ready import BEHIND, LAUNCH_RECORD, ReadyCalls

ENGINE = 9


class ToyEngine:
    """An engine that notes which payloads it has made calls of, and in which way."""

    def __init__(self) -> None:
        self.table = VerbTable("toy", ENGINE)
        self.verb = self.table.verb("call", Mode.ENQUEUES, {}, shares=True)
        self.other = self.table.verb("other", Mode.ENQUEUES, {})
        self.calls = {0: self.call, 1: self.call}
        self.made: list[tuple[str, bytes]] = []
        self.prepared: list[bytes] = []
        self.takes = self.alone = True

    def call(self, command: Any, lane: Any) -> None:
        self.made.append(("general", command.payload))

    def hot_call(self, verb: int, payload: bytes, lane: Any, places: Any = ()) -> Ready | None:
        if not self.takes:
            return None
        self.prepared.append(payload)
        layout = ready_head(0, places)

        def call(words: Any) -> int:
            given = struct.pack(f"<{len(words)}Q", *words) if places else b""
            self.made.append(("ready", general_payload(layout + given + payload, len(places))))
            return 0

        return Ready(call, ValueError, self.alone)

    def forget_lane(self, index: int) -> Any:
        return ()

    def close(self) -> None: ...


class Bench:
    """Ready calls of a toy engine, and one slot of a ring."""

    def __init__(self) -> None:
        self.engine = ToyEngine()
        self.engine.alone = False
        verbs = {(ENGINE, verb.number): (verb, self.engine.calls[verb.number]) for verb in self.engine.table.verbs}
        nothing: Any = SimpleNamespace()
        engines: Any = {ENGINE: self.engine}
        self.calls = ReadyCalls(engines, nothing, verbs)
        self.lane: Any = SimpleNamespace(index=0, stream=object(), pending=0, repeat=self.repeat)
        self.lanes = {0: self.lane}
        self.slots = memoryview(bytearray(2 * SLOT_BYTES))
        self.ticket = 0

    def repeat(self, ticket: int, hot: Any, words: Any) -> None:
        assert hot.call(words) == 0

    def write(
        self,
        identity: int,
        payload: bytes,
        words: tuple[tuple[int, int], ...] = (),
        *,
        verb: int = 0,
        lane: int = 0,
        length: int | None = None,
    ) -> int:
        """Write a record with the words at their places; returns where its slot begins."""
        self.ticket += 1
        places, values = tuple(place for place, _ in words), tuple(word for _, word in words)
        head, rest = ready_head(identity, places), with_holes(payload, places)
        size = len(head) + len(rest) if length is None else length
        at = SLOT_BYTES
        record = NUMBER.pack(self.ticket) + HEADER.pack(self.ticket, lane, ENGINE, verb | REPEATED, len(words), size)
        record += head + struct.pack(f"<{len(values)}Q", *values) + rest
        self.slots[at : at + len(record)] = record
        return at

    def find(self, at: int) -> Any:
        """As the loop of the worker does: at once, or else by the record."""
        _, _, key = LAUNCH_RECORD.unpack_from(self.slots, at)
        return self.calls.calls.get(key) or self.calls.of_record(self.slots, at, self.lanes)

    def make(self, at: int) -> None:
        hot = self.find(at)
        assert hot.call(() if hot.words is None else hot.words(self.slots, at + BEHIND)) == 0


@pytest.fixture
def bench() -> Bench:
    return Bench()


PAYLOAD = bytes(range(32))


def with_word(place: int, word: int) -> bytes:
    return PAYLOAD[:place] + word.to_bytes(8, "little") + PAYLOAD[place + 8 :]


@pytest.mark.parametrize("alone", [False, True])
def test_a_call_is_prepared_once_for_all_its_words(bench, alone):
    bench.engine.alone = alone
    for word in (1, 2**64 - 1, 0, 7):
        bench.make(bench.write(5, PAYLOAD, ((8, word),)))
    assert bench.engine.made == [("ready", with_word(8, word)) for word in (1, 2**64 - 1, 0, 7)]
    assert bench.engine.prepared == [with_word(8, 0)]
    assert len(bench.calls.calls) == (0 if alone else 1), "the loop finds only those that need not know their ticket"


def test_a_call_without_words_is_the_same_each_time(bench):
    for _ in range(3):
        at = bench.write(5, PAYLOAD)
        assert bench.find(at).words is None
        bench.make(at)
    assert bench.engine.made == 3 * [("ready", PAYLOAD)]
    assert bench.engine.prepared == [PAYLOAD]


def test_identity_places_verb_lane_and_length_tell_calls_apart(bench):
    bench.lanes[1] = SimpleNamespace(index=1, stream=object(), pending=0)
    records = [
        {"identity": 5, "payload": PAYLOAD},
        {"identity": 6, "payload": PAYLOAD},
        {"identity": 5, "payload": PAYLOAD, "verb": 1},
        {"identity": 5, "payload": PAYLOAD, "verb": UNSIGNED},
        {"identity": 5, "payload": PAYLOAD, "lane": 1},
        {"identity": 5, "payload": PAYLOAD + b"more"},
        {"identity": 5, "payload": PAYLOAD, "words": ((0, 1),)},
        {"identity": 5, "payload": PAYLOAD, "words": ((16, 1),)},
        {"identity": 5, "payload": PAYLOAD, "words": ((0, 1), (16, 1))},
    ]
    found = [bench.find(bench.write(**record)) for record in records]
    assert len(set(found)) == len(records)
    assert [bench.find(bench.write(**record)) for record in records] == found
    assert [hot.lane.index for hot in found] == [0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert [hot.joins is not None for hot in found] == [False] * 3 + [True] + [False] * 5
    assert [hot.verb.name for hot in found].count("other") == 1


def test_what_was_forgotten_is_prepared_anew(bench):
    for _ in range(2):
        bench.make(bench.write(5, PAYLOAD, ((0, 1),)))
        bench.calls.forget()
    assert len(bench.engine.prepared) == 2


def test_in_a_queue_a_call_keeps_the_words_that_it_came_with(bench):
    """By its turn its slot has another record, and what was prepared may be forgotten, or cannot be prepared."""
    bench.lane.pending = 1
    commands = []
    for word in (3, 4, 5):
        at = bench.write(5, PAYLOAD, ((8, word),), verb=UNSIGNED)
        assert bench.calls.of_record(bench.slots, at, bench.lanes) is None
        commands.append(bench.calls.queued(bench.slots, at, bench.lanes))
    bench.slots[:] = bytes(len(bench.slots))
    for turn, (lane, command) in enumerate(commands):
        assert lane is bench.lane
        assert (command.ticket, command.unsigned, command.verb.name) == (turn + 1, True, "call")
        command.call(command, lane)
        bench.engine.takes = turn != 1
        bench.calls.forget()
    ways = ["ready", "ready", "general"]
    assert bench.engine.made == [(way, with_word(8, word)) for way, word in zip(ways, (3, 4, 5), strict=True)]


def test_only_a_ready_record_is_queued_so_and_only_behind_others(bench):
    at = bench.write(5, PAYLOAD)
    assert bench.calls.queued(bench.slots, at, bench.lanes) is None
    bench.lane.pending = 1
    assert bench.calls.queued(bench.slots, at, bench.lanes) is not None
    assert bench.calls.queued(bench.slots, bench.write(5, PAYLOAD, lane=3), bench.lanes) is None
    bench.slots[at + NUMBER.size + 10] &= ~REPEATED
    assert bench.calls.queued(bench.slots, at, bench.lanes) is None


def test_what_an_engine_cannot_prepare_is_read_each_time(bench):
    bench.engine.takes = False
    for _ in range(2):
        assert bench.find(bench.write(5, PAYLOAD, ((0, 1),))) is None
    assert not bench.calls.calls


@pytest.mark.parametrize("length", [MAX_RECORD - HEADER.size + 1, 2**32 - 1, 0, 39])
@pytest.mark.parametrize("pending", [0, 1])
def test_a_length_that_cannot_be_ends_it(bench, length, pending):
    bench.lane.pending = pending
    at = bench.write(5, PAYLOAD, length=length)
    look = bench.calls.queued if pending else bench.calls.of_record
    with pytest.raises(ValueError, match="record"):
        look(bench.slots, at, bench.lanes)


def test_there_is_a_limit_to_what_is_kept_and_what_goes_comes_back(bench, monkeypatch):
    monkeypatch.setattr(ready_module, "_MOST", 4)
    for identity in (*range(1, 11), 1):
        bench.make(bench.write(identity, PAYLOAD, ((0, identity),)))
        assert len(bench.calls.calls) <= 4
    assert bench.engine.made == [("ready", with_word(0, identity)) for identity in (*range(1, 11), 1)]
