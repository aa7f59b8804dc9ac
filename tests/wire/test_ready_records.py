"""Ready records: how a call with a few changing words is written, how the general way reads it, and corrupt ones."""

from __future__ import annotations

import struct

import hypothesis.strategies as st
import numpy as np
import pytest
import trio
from hypothesis import given

from atomr_trio import ContextLost
from atomr_trio._device.device import core_of
from atomr_trio._wire.protocol import HEADER
from atomr_trio._wire.ready import (
    MOST_WORDS,
    READY,
    WORD,
    WORDS_AT,
    ReadyRecord,
    filled,
    general_payload,
    has_room,
    new_identity,
    ready_head,
    with_holes,
)
from atomr_trio._wire.ring import MAX_RECORD, NUMBER, SLOT_BYTES, SLOTS
from atomr_trio.testing import hold_worker
from support.rogue import next_generation
from support.stage import needs_ring

DEADLINE = 60
N = 4


@st.composite
def payloads_and_places(draw):
    """A payload, and the places of words in it that do not overlap, in any order."""
    count = draw(st.integers(0, MOST_WORDS))
    gaps = draw(st.lists(st.integers(0, 9), min_size=count + 1, max_size=count + 1))
    places, at = [], 0
    for gap in gaps[:count]:
        places.append(at + gap)
        at += gap + WORD.size
    payload = draw(st.binary(min_size=at + gaps[-1], max_size=at + gaps[-1]))
    return payload, tuple(draw(st.permutations(places)))


WORDS = st.integers(0, 2**64 - 1)


@given(payloads_and_places(), st.data())
def test_the_general_way_reads_the_payload_with_the_words_at_their_places(given_, data):
    payload, places = given_
    words = data.draw(st.lists(WORDS, min_size=len(places), max_size=len(places)))
    wanted = filled(payload, places, words)
    assert [struct.unpack_from("<Q", wanted, place)[0] for place in places] == words
    behind = ready_head(new_identity(), places) + struct.pack(f"<{len(words)}Q", *words) + with_holes(payload, places)
    assert general_payload(behind, len(places)) == wanted
    record = ReadyRecord(behind, len(places))
    assert record.words.unpack_from(behind, READY.size) == tuple(words)
    assert (record.places, record.filled(words)) == (places, wanted)
    assert all(record.payload[place : place + WORD.size] == bytes(WORD.size) for place in places)


def test_without_words_the_payload_is_as_it_was():
    assert general_payload(ready_head(7, ()) + b"as it was", 0) == b"as it was"


def test_a_record_is_ready_only_if_it_fits_in_a_slot():
    assert HEADER.size + READY.size == WORDS_AT
    for words in range(MOST_WORDS + 1):
        longest = MAX_RECORD - WORDS_AT - WORD.size * words
        assert has_room(words, longest)
        assert not has_room(words, longest + 1)
    assert not has_room(MOST_WORDS + 1, 8)


CORRUPT = {
    "more words than a record has": (ready_head(1, ()) + bytes(300), MOST_WORDS + 1),
    "fewer bytes than its words": (ready_head(1, (0, 8)) + bytes(15), 2),
    "no head": (bytes(READY.size - 1), 0),
    "nothing": (b"", 0),
    "a word behind the payload": (ready_head(1, (1,)) + bytes(16), 1),
    "a word in a payload of no bytes": (ready_head(1, (0,)) + bytes(8), 1),
    "a word far behind the payload": (ready_head(1, (0xFFFF,)) + bytes(100), 1),
    "words that overlap": (ready_head(1, (0, 7)) + bytes(16 + 32), 2),
    "a word twice": (ready_head(1, (8, 8)) + bytes(16 + 32), 2),
    "a place without a word": (ready_head(1, (0, 8)) + bytes(64), 1),
}


@pytest.mark.parametrize("what", CORRUPT)
def test_a_corrupt_record_is_refused(what):
    behind, count = CORRUPT[what]
    with pytest.raises(ValueError, match="ready record"):
        general_payload(behind, count)


@given(st.binary(max_size=200), st.integers(0, 255))
def test_whatever_the_bytes_are_a_word_never_leaves_the_payload(behind, count):
    try:
        record = ReadyRecord(behind, count)
    except ValueError:
        return
    assert len(behind) == READY.size + 8 * count + len(record.payload)
    assert all(place + 8 <= len(record.payload) for place in record.places)


def test_identities_are_never_given_twice():
    assert len({new_identity() for _ in range(1000)}) == 1000


def corrupt_places(slot: bytearray) -> None:
    slot[NUMBER.size + HEADER.size + 9] = 0xFF  # the first place is far behind the payload


def corrupt_count(slot: bytearray) -> None:
    slot[NUMBER.size + 11] = 200


def corrupt_length(slot: bytearray) -> None:
    slot[NUMBER.size + 12 : NUMBER.size + 16] = struct.pack("<I", MAX_RECORD)


def corrupt_verb(slot: bytearray) -> None:
    slot[NUMBER.size + 10] |= 0x3F


@needs_ring
@pytest.mark.parametrize("corrupt", [corrupt_places, corrupt_count, corrupt_length, corrupt_verb])
@pytest.mark.parametrize("queued", [False, True])
async def test_a_corrupt_ready_record_ends_the_worker_and_makes_no_call(dev, corrupt, queued):
    """The worker has made the call that it once was: it is not taken for that one."""
    x, y = [await dev.to_device(np.full(N, value)) for value in (1.0, 0.0)]
    for _ in range(4):
        await dev.blas.axpy(x, y)
    kept = await dev.to_device(np.arange(N))
    generation = core_of(dev).current

    async def send_a_corrupt_one() -> None:
        async with dev.batch() as batch:
            for _ in range(3):
                batch.blas.axpy(x, y)
            await batch.flush()
            with hold_worker(dev):
                for _ in range(300 if queued else 1):
                    batch.blas.axpy(x, y)
                at = (generation.sender.sent - 1) % SLOTS * SLOT_BYTES
                slot = bytearray(generation.ring.slots[at : at + SLOT_BYTES])
                corrupt(slot)
                generation.ring.slots[at : at + SLOT_BYTES] = bytes(slot)

    with trio.fail_after(DEADLINE):
        with pytest.raises(ContextLost, match="status 70"):
            await send_a_corrupt_one()
        await next_generation(dev, 1)
    assert y.state == "torn"
    await y.copy_from(np.zeros(N))
    await dev.blas.axpy(x, y)
    assert (await y.to_host()).tolist() == [1] * N
    assert (await kept.to_host()).tolist() == [0, 1, 2, 3]
