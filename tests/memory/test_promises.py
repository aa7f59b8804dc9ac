"""Promises of an arena's memory: kept from everybody but the task that entered them, and those that it starts."""

from __future__ import annotations

import contextvars
import gc

import pytest

from atomr_trio._memory.arena import MIB, Arena, ArenaFull
from atomr_trio._memory.promises import Promise

LIMIT = 256 * MIB


@pytest.fixture
def arena():
    return Arena(1 << 40, 1 << 40, LIMIT)


def as_other(function, *arguments):
    """Call a function as a task that has entered no promise."""
    return contextvars.Context().run(function, *arguments)


@pytest.fixture
def promise(arena):
    made = Promise(arena, 100 * MIB)
    made.enter()
    yield made
    made.leave()
    made.end()


def test_others_get_what_is_not_promised_and_no_more(arena, promise):
    assert arena.available == 156 * MIB
    as_other(arena.allocate, 156 * MIB)
    assert arena.available == 0
    with pytest.raises(ArenaFull) as full:
        as_other(arena.allocate, 1)
    assert (full.value.bound, full.value.promised) == ("promised", 100 * MIB)


def test_the_holder_gets_what_was_promised_when_nothing_else_is_left(arena, promise):
    as_other(arena.allocate, 156 * MIB)
    block = arena.allocate(60 * MIB)
    assert promise.left == 40 * MIB
    with pytest.raises(ArenaFull):
        as_other(arena.allocate, 1)
    arena.allocate(40 * MIB)
    assert promise.left == 0
    with pytest.raises(ArenaFull) as full:
        arena.allocate(1)
    assert full.value.bound == "promised"
    arena.free(block)
    assert promise.left == 60 * MIB


def test_the_holder_may_take_more_than_was_promised(arena, promise):
    arena.allocate(120 * MIB)
    assert promise.left == 0
    assert arena.available == 136 * MIB


def test_what_the_holder_frees_comes_back_to_the_promise(arena, promise):
    for _ in range(5):
        block = arena.allocate(90 * MIB)
        assert promise.left == 10 * MIB
        arena.free(block)
        assert promise.left == 100 * MIB


def test_what_others_free_is_for_everybody(arena, promise):
    block = as_other(arena.allocate, 100 * MIB)
    arena.free(block)
    assert (promise.left, arena.available) == (100 * MIB, 156 * MIB)


def test_an_array_that_was_collected_comes_back_to_the_promise(arena, promise):
    block = arena.allocate(MIB)
    assert promise.left == 99 * MIB
    arena.orphans.append(block)
    del block
    gc.collect()
    as_other(arena.allocate, MIB)
    assert promise.left == 100 * MIB


def test_memory_that_goes_from_the_holder_to_another_array_of_its_is_taken_once(arena, promise):
    first = arena.allocate(MIB)
    arena.orphans.append(first)
    second = arena.allocate(MIB)
    assert promise.left == 99 * MIB
    arena.free(second)
    assert promise.left == 100 * MIB


def test_of_two_promises_the_inner_one_is_used_first(arena, promise):
    inner = Promise(arena, 10 * MIB)
    inner.enter()
    block = arena.allocate(30 * MIB)
    assert (inner.left, promise.left) == (0, 80 * MIB)
    assert arena.available == 256 * MIB - 30 * MIB - 80 * MIB
    inner.leave()
    inner.end()
    arena.free(block)
    assert promise.left == 100 * MIB
    assert arena.available == 156 * MIB


def test_two_holders_cannot_take_what_the_other_was_promised(arena, promise):
    other = contextvars.Context()
    theirs = Promise(arena, 100 * MIB)
    other.run(theirs.enter)
    arena.allocate(156 * MIB)
    with pytest.raises(ArenaFull):
        arena.allocate(1)
    other.run(arena.allocate, 100 * MIB)
    assert (promise.left, theirs.left) == (0, 0)


def test_the_end_gives_the_rest_back_and_leaves_arrays_alone(arena):
    promise = Promise(arena, 100 * MIB)
    promise.enter()
    block = arena.allocate(30 * MIB)
    promise.leave()
    promise.end()
    promise.end()
    assert arena.promises is None
    assert arena.available == 226 * MIB
    arena.free(block)
    assert arena.available == 256 * MIB
    assert repr(promise) == f"<Promise: {70 * MIB:,} bytes left, ended>"


def test_a_guarded_array_keeps_promises_too(arena, promise):
    with pytest.raises(ArenaFull) as full:
        as_other(arena.allocate, 157 * MIB, True)
    assert full.value.bound == "promised"
    arena.allocate(90 * MIB, True)
    assert promise.left == 10 * MIB


def test_workspaces_count_before_promises_are_kept(arena, promise):
    arena.count_workspaces = lambda: 50 * MIB
    with pytest.raises(ArenaFull):
        as_other(arena.allocate, 107 * MIB)
    as_other(arena.allocate, 106 * MIB)


def test_a_smaller_number_of_chunks_is_kept():
    arena = Arena(1 << 40, 1 << 40, 1 << 40, most_chunks=3)
    for _ in range(3):
        arena.allocate(MIB, True)
    with pytest.raises(ArenaFull) as full:
        arena.allocate(MIB, True)
    assert full.value.bound == "chunks"
