"""Where a generator stands: the arithmetic against a table and a model, and restored generators against the library."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atomr_trio.libraries.random.positions import (
    BOUNDS,
    END,
    KINDS,
    Bounds,
    Entry,
    Place,
    drawn,
    even,
    position_of,
    slots_of,
)
from support import SWEEP
from support.random_host import HostGenerator

pytestmark = pytest.mark.sim_only

_XORWOW = Place("xorwow", "default", 5, 1)
_MRG = Place("mrg32k3a", "legacy", 5, 1)
_PHILOX = Place("philox", "default", 5, 1)
_DRAWS = ("words", "uniform32", "uniform64", "normal32", "normal64", "poisson")


def _place(base: Place, *draws: tuple[str, int], lam: float = 10.0, bounds: Bounds = BOUNDS) -> Place:
    for draw, count in draws:
        base = drawn(base, draw, count, lam if draw == "poisson" else 0.0, bounds).place
    return base


# --- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "draw", "count", "position"),
    [
        (_XORWOW, "words", 5000, 5000),
        (_XORWOW, "uniform32", 5000, 5000),
        (_XORWOW, "poisson", 5000, 5000),
        (_XORWOW, "uniform64", 5000, 2 * 4096 + 904),
        (_XORWOW, "normal32", 10000, 2 * 4096 + 904),
        (_XORWOW, "normal64", 10000, 4 * 4096 + 904),
        (_MRG, "words", 5000, 5000),
        (_MRG, "uniform64", 5000, 5000),
        (_MRG, "normal32", 10000, 2 * 4096 + 904),
        (_MRG, "normal64", 10000, 2 * 4096 + 904),
        (_MRG._replace(ordering="default"), "normal64", 10000, 5000),
        (_PHILOX, "words", 300000, 300000),
        (_PHILOX, "normal32", 300000, 300000),
        (_PHILOX, "uniform64", 300000, 2 * 262144 + 37856),
        (_PHILOX, "normal64", 300000, 2 * 262144 + 37856),
        (Place("sobol32", "default", 0, 3), "normal64", 3000, 1000),
        (Place("scrambled_sobol64", "default", 0, 1), "long", 3000, 3000),
    ],
)
def test_a_draw_moves_the_position_by_units_and_words(base: Place, draw: str, count: int, position: int) -> None:
    assert position_of(_place(base, (draw, count))) == position


def test_draws_of_one_word_are_in_the_offset_at_once() -> None:
    assert _place(_PHILOX, ("words", 7), ("normal32", 8), ("poisson", 9), ("uniform32", 3)) == _PHILOX._replace(
        offset=27
    )


def test_whole_rounds_of_draws_of_several_words_are_in_the_offset() -> None:
    begun = _place(_XORWOW, ("words", 7))
    half = _place(begun, ("uniform64", 4000))
    assert half == begun._replace(record=(Entry("uniform64", 4000),))
    assert _place(half, ("normal32", 192)) == _XORWOW._replace(offset=7 + 2 * 4096)
    long = _place(half, ("uniform64", 10 * 4096))
    assert long == _XORWOW._replace(offset=7 + 2 * 10 * 4096, record=(Entry("uniform64", 4000),))
    assert _place(begun, ("normal64", 2 * 4097)).record == (Entry("normal64", 2),)


def test_draws_of_different_words_stay_in_the_record_but_for_whole_rounds() -> None:
    mixed = _place(_XORWOW, ("uniform64", 2048), ("words", 2048))
    assert mixed.record == (Entry("uniform64", 2048), Entry("words", 2048))
    assert mixed.offset == 0
    more = _place(mixed, ("normal64", 2 * 3 * 4096 + 8), ("words", 5 * 4096))
    assert more == mixed._replace(offset=(4 * 3 + 5) * 4096, record=(*mixed.record, Entry("normal64", 8)))
    assert _place(mixed, ("words", 2048)) == _XORWOW._replace(offset=4096, record=(Entry("uniform64", 2048),))


@pytest.mark.parametrize("base", [_XORWOW, _MRG, _PHILOX], ids=lambda place: place.kind)
@pytest.mark.parametrize("draw", ["words", "uniform32", "uniform64", "normal32", "normal64"])
def test_draws_of_one_kind_never_begin_a_new_round(base: Place, draw: str) -> None:
    place, slots, bounds = base._replace(offset=7), slots_of(base), Bounds(1, 2 * slots_of(base))
    for count in (10**8, 10, slots - 2, 10**7, 123_456) * 20:
        result = drawn(place, draw, count, bounds=bounds)
        assert result.place is result.drawn
        place = result.place
        assert sum(entry.numbers for entry in place.record) < 2 * slots


def test_neighbours_of_one_kind_are_one_entry() -> None:
    assert _place(_XORWOW, ("uniform64", 5), ("normal32", 10), ("uniform64", 1)).record == (Entry("uniform64", 11),)


def test_nothing_drawn_changes_nothing() -> None:
    assert _place(_XORWOW, ("uniform64", 0), ("words", 0)) == _XORWOW


def test_large_poisson_numbers_stay_in_the_record_with_their_mean() -> None:
    assert _place(_XORWOW, ("poisson", 4096), lam=5000).record == (Entry("poisson", 4096, 5000),)
    assert _place(_PHILOX, ("poisson", 4096), lam=5000) == _PHILOX._replace(offset=4096)


def test_the_mersenne_twisters_record_everything() -> None:
    base = Place("mtgp32", "default", 5, 1)
    bounds = Bounds(1, 10)
    found = _place(base, ("words", 7), ("uniform32", 7), ("normal32", 8), ("words", 100), bounds=bounds)
    assert found.record == (Entry("words", 14), Entry("normal32", 8), Entry("words", 100))


def test_a_long_record_is_ended_by_a_round_that_nothing_has_reached() -> None:
    bounds = Bounds(2, 10**6)
    mixed = _place(_XORWOW, ("words", 7), ("uniform64", 5000), ("words", 3), bounds=bounds)
    result = drawn(mixed, "normal64", 2, bounds=bounds)
    assert result.drawn == _XORWOW._replace(
        offset=7 + 2 * 4096, record=(Entry("uniform64", 904), Entry("words", 3), Entry("normal64", 2))
    )
    assert result.place == _XORWOW._replace(offset=(1 + 2 + 2 + 1 + 4) * 4096)


def test_many_irregular_numbers_are_ended_by_a_round_that_nothing_has_reached() -> None:
    begun = _place(_XORWOW, ("words", 7), ("uniform64", 100))
    result = drawn(begun, "poisson", BOUNDS.numbers, 5000.0)
    assert result.drawn.record == (Entry("uniform64", 100), Entry("poisson", BOUNDS.numbers, 5000.0))
    assert result.place == _XORWOW._replace(offset=(1 + 2 + 2 * 3907) * 4096)
    assert drawn(begun, "poisson", BOUNDS.numbers - 100, 5000.0).place.offset == 7


def test_whole_rounds_beside_irregular_numbers_stay_in_the_record() -> None:
    record = (Entry("poisson", 10, 5000.0), Entry("words", 5 * 4096))
    assert _place(_XORWOW, ("poisson", 10), lam=5000.0) == _XORWOW._replace(record=record[:1])
    assert _place(_XORWOW._replace(record=record[:1]), ("words", 5 * 4096)) == _XORWOW._replace(record=record)


def test_a_draw_behind_the_end_is_an_error() -> None:
    last = _PHILOX._replace(offset=END - 10)
    assert _place(last, ("words", 9)).offset == END - 1
    for draw in ("words", "uniform64"):
        with pytest.raises(OverflowError):
            drawn(last, draw, 10)
    sobol = Place("sobol32", "default", 0, 2, offset=(1 << 32) - 10)
    assert _place(sobol, ("words", 20)).offset == 1 << 32
    with pytest.raises(OverflowError):
        drawn(sobol, "words", 22)


def _taken(place: Place, model: npt.NDArray[np.int64], slot: int, entry: Entry) -> int:
    """Let the slots of a model give their words, and return the next slot."""
    slots, paired = slots_of(place), place.kind != "philox" and entry.draw in ("normal32", "normal64")
    units = entry.numbers // 2 if paired else entry.numbers
    rounds, rest = divmod(units, slots)
    words = KINDS[place.kind].words.get(entry.draw, 1)
    model += rounds * words
    model[slot : slot + rest] += words
    model[: max(0, slot + rest - slots)] += words
    return (slot + units) % slots


def _modelled(place: Place) -> tuple[npt.NDArray[np.int64], int]:
    slots = slots_of(place)
    round_, slot = divmod(place.offset, slots)
    model = np.full(slots, round_)
    model[:slot] += 1
    for entry in place.record:
        slot = _taken(place, model, slot, entry)
    return model, slot


@pytest.mark.parametrize("base", [_XORWOW, _MRG, _PHILOX], ids=lambda place: place.kind)
@pytest.mark.parametrize("seed", range(3))
def test_a_place_says_how_many_words_each_slot_has_given(base: Place, seed: int) -> None:
    rng, slots, bounds = random.Random(seed), slots_of(base), Bounds(3, 4 * slots_of(base))
    (model, slot), place, jumps = _modelled(base), base, 0
    for _ in range(60):
        draw = rng.choice(_DRAWS[:-1])
        count = even(base.kind, draw, rng.choice([0, 1, 7, slots // 2, slots - 1, slots, 2 * slots, 2 * slots + 2]))
        result = drawn(place, draw, count, bounds=bounds)
        slot = _taken(base, model, slot, Entry(draw, count))
        found, found_slot = _modelled(result.drawn)
        assert found_slot == slot
        assert (found == model).all()
        if result.place is not result.drawn:
            jumps += 1
            begun, last = _modelled(result.place)
            assert last == 0
            assert begun.min() >= model.max()
            model, slot = begun, 0
        place = result.place
        assert len(place.record) <= bounds.entries
        assert sum(entry.numbers for entry in place.record) <= bounds.numbers
    assert jumps


# --- the library ------------------------------------------------------------------------------------------------------


def _continued(generator: HostGenerator, slots: int, is_paired: bool) -> list[npt.NDArray[Any]]:
    """Return more than a round of each kind of numbers."""
    more = slots + slots // 4
    draws = [("words", more), ("uniform64", more), ("normal64", 2 * more if is_paired else more), ("words", 3)]
    return [generator.draw(*each) for each in draws]


def _check_restored(place: Place, generator: HostGenerator) -> None:
    is_paired = KINDS[place.kind].per_unit == 2
    found = _continued(HostGenerator(place), slots_of(place), is_paired)
    for restored, right in zip(found, _continued(generator, slots_of(place), is_paired), strict=True):
        np.testing.assert_array_equal(restored, right)


@pytest.mark.parametrize(
    ("base", "draw"),
    [
        *((base, draw) for base in (_XORWOW, _PHILOX) for draw in _DRAWS),
        *((_MRG, draw) for draw in ("uniform64", "normal32", "normal64")),
    ],
    ids=lambda each: getattr(each, "kind", each),
)
def test_a_restored_generator_goes_on_with_the_same_numbers(base: Place, draw: str) -> None:
    slots, per_unit = slots_of(base), KINDS[base.kind].per_unit if draw.startswith("normal") else 1
    cases = ((slots - 2, 2 * slots + 7), (3 * slots + 5, slots - 1), (0, 1), (6, 3 * slots))
    for offset, units in cases if SWEEP else cases[:2]:
        begun, count = base._replace(offset=offset), units * per_unit
        generator = HostGenerator(begun)
        generator.draw(draw, count, 10.0)
        place = _place(begun, (draw, count))
        assert sum(entry.numbers for entry in place.record) < slots * per_unit
        _check_restored(place, generator)


@pytest.mark.parametrize("base", [_XORWOW, _MRG], ids=lambda place: place.kind)
@pytest.mark.parametrize("lam", [1999.0, 2000.0, 4000.0, 300000.0])
def test_a_generator_is_restored_behind_large_poisson_numbers(base: Place, lam: float) -> None:
    generator, slots = HostGenerator(base), slots_of(base)
    draws = (("words", slots + 5), ("poisson", 5000), ("uniform64", 2 * slots + 3))
    for draw, count in draws:
        generator.draw(draw, count, lam)
    place = _place(base, *draws, lam=lam)
    np.testing.assert_array_equal(HostGenerator(place).draw("poisson", 9000, lam), generator.draw("poisson", 9000, lam))


@pytest.mark.parametrize("base", [_XORWOW, _MRG, _PHILOX], ids=lambda place: place.kind)
def test_a_generator_is_restored_between_mixed_draws(base: Place) -> None:
    _check_mixed(base, random.Random(1), 4)


@pytest.mark.sweep
@pytest.mark.parametrize("ordering", ["default", "legacy"])
@pytest.mark.parametrize("kind", ["xorwow", "mrg32k3a", "philox"])
def test_a_generator_is_restored_between_many_mixed_draws(kind: str, ordering: str) -> None:
    _check_mixed(Place(kind, ordering, 5, 1), random.Random(2), 20 if kind == "mrg32k3a" else 100)


def _check_mixed(base: Place, rng: random.Random, times: int) -> None:
    """Draw from places of any slot, whole rounds and less, and compare with a generator that was restored."""
    slots, folded = slots_of(base), 0
    for _ in range(times):
        offset = rng.randrange(3) * slots + rng.choice([0, 1, 2, 3, slots - 3, slots - 1, rng.randrange(slots)])
        place = begun = base._replace(offset=offset)
        generator = HostGenerator(begun)
        for _ in range(4):
            draw, rounds = rng.choice(_DRAWS), rng.randrange(3)
            rest = rng.choice([0, 1, 2, 3, 5, slots // 2, slots - 1, rng.randrange(slots)])
            count = (rounds * slots + rest) * (KINDS[base.kind].per_unit if draw.startswith("normal") else 1)
            generator.draw(draw, count, 10.0)
            folded += bool(place.record) and rounds > 0
            place = _place(place, (draw, count))
        _check_restored(place, generator)
    assert folded


@pytest.mark.parametrize("draw", ["words", "normal64", "poisson"])
@pytest.mark.parametrize("kind", ["sobol32", "scrambled_sobol32", "sobol64", "scrambled_sobol64"])
def test_the_offset_of_a_quasi_kind_says_everything(kind: str, draw: str) -> None:
    draw = "long" if draw == "words" and kind.endswith("64") else draw
    base = Place(kind, "default", 0, 1)
    generator = HostGenerator(base)
    generator.draw(draw, 777, *([10.0] if draw == "poisson" else []))
    restored = HostGenerator(_place(base, (draw, 777)))
    np.testing.assert_array_equal(restored.draw("uniform64", 999), generator.draw("uniform64", 999))


def test_a_mersenne_twister_is_restored_by_all_of_its_draws() -> None:
    base = Place("mtgp32", "legacy", 5, 1)
    generator, place = HostGenerator(base), base
    for draw in _DRAWS * 2:
        generator.draw(draw, 10006, 10.0)
        place = drawn(place, draw, 10006, 10.0).place
    np.testing.assert_array_equal(HostGenerator(place).draw("uniform64", 50000), generator.draw("uniform64", 50000))


SLOWLY_SEEDED = {"mt19937": pytest.mark.sweep, "mrg32k3a": pytest.mark.long}


@pytest.mark.parametrize(
    "kind",  # the host takes seconds to seed a mt19937, and one to seed a mrg32k3a
    [pytest.param(kind, marks=SLOWLY_SEEDED.get(kind, ())) for kind in KINDS],
)
def test_a_generator_that_has_drawn_is_brought_to_any_place(kind: str) -> None:
    """A standby has made it ahead of time, with a few draws, and brings it where it begins."""
    facts = KINDS[kind]
    base = Place(kind, "default", 0 if facts.is_quasi else 5, 1)
    place = base._replace(offset=12_347) if facts.has_offset else base
    if not facts.is_quasi:
        place = _place(place, ("normal64", 20_002), ("words", 77))
        assert place.record
    generator, words = HostGenerator(base), "long" if facts.bits == 64 else "words"
    for draw in (words, "uniform64", "normal32", "normal64"):
        generator.draw(draw, 2)
    generator.bring(place)
    right = HostGenerator(place)
    for draw, count in (("uniform32", 1001), ("normal64", 30_000), ("uniform64", 999)):
        np.testing.assert_array_equal(generator.draw(draw, count), right.draw(draw, count))
