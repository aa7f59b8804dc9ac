"""Where a generator of cuRAND stands, as plain data, from which another one goes on with the same numbers.

A pseudo kind runs T sequences side by side, and deals its numbers out to them in turn. Its position is r T + q: each
sequence, or slot, has given r words, and those before slot q one more. A draw of n numbers takes u units, and each unit
takes w words of its slot. What comes next depends on how many words each slot has given, and on q. An offset says r and
q and nothing else, so it restores a generator only if every slot has given either r words or, before q, one more.

So the state of a generator is an offset, and a record of the draws that are not in it yet. A generator is restored by
setting the offset and making these draws once more, to memory that nobody reads. What was drawn does not matter there,
only u and w; so each draw is recorded as the cheapest with the same w, and neighbours are one. The record is short,
because most of a draw is in the offset:

- T units are a whole round. They take w words of every slot, and q is what it was. Sums do not depend on the order, so
  whole rounds of any draw are in the offset, which is w T larger for each, whatever else is in the record.
- Units with w = 1 are in the offset, as many as they are, if nothing is in the record.

So draws of one w leave less than T units in the record. Those of several w can make it long, by entries. When it is too
long, the generator *moves on*: a new one begins at a round that no slot has reached yet. This depends on the draws
alone, and not on when a worker was lost. So the numbers are the same with and without losses.

The slots of Poisson numbers from 2,000 on, of the kinds XORWOW and MRG32k3a, take two words for every second number,
and keep the other half. No offset says that. While the record has such numbers nothing leaves it, and it ends with a
new round.

The Mersenne twisters have no offset. All of their draws are recorded, and made again. The quasi kinds go by points: a
draw of n numbers in d dimensions is n / d points, whatever the distribution is. Their offset says everything.

Everything here was compared with the library's generators (``tests/libraries/random/test_generator_positions.py``).
Standard library alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

WORDS: Final = "words"
"""A draw of 32-bit words: of one word for each number."""
UNIFORM64: Final = "uniform64"
NORMAL32: Final = "normal32"
NORMAL64: Final = "normal64"
POISSON: Final = "poisson"
LONG: Final = "long"
"""A draw of 64-bit words."""
UNIFORM32: Final = "uniform32"

MOST_ENTRIES: Final = 64
MOST_NUMBERS: Final = 16_000_000
END: Final = 1 << 64
"""No offset is as large."""

_REGULAR_POISSON: Final = 2000.0
"""Poisson numbers of a smaller mean take one word each, by a table."""
MOST_LAM: Final = 400_000.0
"""The largest mean of Poisson numbers that cuRAND takes."""


class Kind(NamedTuple):
    """A kind of generators."""

    number: int
    """That of cuRAND's enumeration."""
    orderings: Mapping[str, int]
    """The orderings that it has, as cuRAND's enumeration numbers them. The first is the default."""
    slots: int = 0
    """T; 0 for a kind without an offset, or whose offset says everything."""
    legacy_slots: int = 0
    """T in the ordering "legacy", if it differs."""
    words: Mapping[str, int] = MappingProxyType({})
    """The words of a unit by the draw."""
    is_quasi: bool = False
    bits: int = 32
    """The bits of a word."""
    per_unit: int = 1
    """The numbers of a unit of normals."""

    @property
    def has_offset(self) -> bool:
        """True if it can begin anywhere."""
        return self.slots > 0 or self.is_quasi

    @property
    def points(self) -> int:
        """The length of its sequence, as far as offsets reach."""
        return 1 << self.bits if self.is_quasi else END


def _orderings(*names: str) -> Mapping[str, int]:
    numbers = {"default": 101, "best": 100, "seeded": 102, "legacy": 103}
    return MappingProxyType({name: numbers[name] for name in names})


_PSEUDO: Final = _orderings("default", "best", "legacy")
_QUASI: Final = MappingProxyType({"default": 201})

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "xorwow": Kind(
            101,
            _orderings("default", "best", "seeded", "legacy"),
            4096,
            words=MappingProxyType({UNIFORM64: 2, NORMAL32: 2, NORMAL64: 4}),
            per_unit=2,
        ),
        "mrg32k3a": Kind(
            121,
            _PSEUDO,
            81920,
            4096,
            words=MappingProxyType({UNIFORM64: 1, NORMAL32: 2, NORMAL64: 2}),
            per_unit=2,
        ),
        "philox": Kind(161, _PSEUDO, 262144, words=MappingProxyType({UNIFORM64: 2, NORMAL32: 1, NORMAL64: 2})),
        "mtgp32": Kind(141, _PSEUDO),
        "mt19937": Kind(142, _PSEUDO),
        "sobol32": Kind(201, _QUASI, is_quasi=True),
        "scrambled_sobol32": Kind(202, _QUASI, is_quasi=True),
        "sobol64": Kind(203, _QUASI, is_quasi=True, bits=64),
        "scrambled_sobol64": Kind(204, _QUASI, is_quasi=True, bits=64),
    }
)
"""The kinds by name. `Kind.words` has 1 for what it does not name."""


class Entry(NamedTuple):
    """Draws that were made, and are not in the offset."""

    draw: str
    numbers: int
    """How many."""
    lam: float = 0.0
    """The mean of Poisson numbers."""


class Bounds(NamedTuple):
    """How long a record may be."""

    entries: int = MOST_ENTRIES
    numbers: int = MOST_NUMBERS


BOUNDS: Final = Bounds()


class Place(NamedTuple):
    """Where a generator stands."""

    kind: str
    ordering: str
    seed: int
    dims: int
    offset: int = 0
    record: tuple[Entry, ...] = ()


Step = Callable[[Place, Bounds], "Place | None"]
"""A function that returns the place behind a draw; see `step`."""
_new: Final = tuple.__new__
"""Makes a named tuple in half of the time."""


class Draw(NamedTuple):
    """What a draw does to a generator."""

    drawn: Place
    """Where it stands behind the draw."""
    place: Place
    """Where the next draw begins. If that is another place, the record was too long, and a new generator begins."""


def even(kind: str, draw: str, count: int) -> int:
    """Return the numbers that a draw of so many takes: normals of a pseudo kind are made in pairs."""
    is_paired = draw in (NORMAL32, NORMAL64) and not KINDS[kind].is_quasi
    return count + count % 2 if is_paired else count


def slots_of(place: Place) -> int:
    """Return T."""
    kind = KINDS[place.kind]
    return kind.legacy_slots or kind.slots if place.ordering == "legacy" else kind.slots


def position_of(place: Place) -> int:
    """Return the place of the next number, in words of the sequences, or in points."""
    slots = slots_of(place)
    round_, slot = divmod(place.offset, slots) if slots else (place.offset, 0)
    for entry in place.record if slots else ():
        rounds, slot = divmod(slot + _units(place.kind, entry), slots)
        round_ += rounds * _words(place.kind, entry)
    return round_ * slots + slot if slots else place.offset + sum(entry.numbers for entry in place.record)


def drawn(place: Place, draw: str, count: int, lam: float = 0.0, bounds: Bounds = BOUNDS) -> Draw:
    """Return what a draw of `count` numbers does to a generator.

    `count` is one that it can take: even for normals in pairs, and a multiple of the dimensions. Raises `OverflowError`
    behind the end of the sequence.
    """
    kind = KINDS[place.kind]
    if kind.is_quasi:
        behind = place._replace(offset=place.offset + count // place.dims)
        if behind.offset > kind.points:
            raise OverflowError
        return Draw(behind, behind)
    entry = recorded(place.kind, draw, count, lam)
    if not place.record and kind.slots and entry.draw != POISSON and _words(place.kind, entry) == 1:
        offset = place.offset + _units(place.kind, entry)
        if offset >= END:
            raise OverflowError
        behind = Place(place.kind, place.ordering, place.seed, place.dims, offset)
        return Draw(behind, behind)
    behind = _folded(place._replace(record=_joined(place.record, entry)))
    moved = behind if not kind.slots or _fits(behind, bounds) else _moved_on(behind)
    if kind.slots and position_of(moved) >= END:
        raise OverflowError
    return Draw(behind, moved)


class Pace(NamedTuple):
    """What draws have in common that can be counted together: as many as they are, they are one draw of all units."""

    entry: str
    """How a record names them."""
    words: int
    """The words that a unit takes."""
    per_unit: int
    slots: int
    """T; 0 for a quasi kind, whose offset says everything."""


_PACES: Final[dict[Pace, Pace]] = {}
"""Each pace is one object."""


def pace_of(place: Place, draw: str, count: int) -> tuple[Pace, int] | None:
    """Return the pace of a draw, and its units; None if its draws cannot be counted."""
    pace, units = Pace("", 1, 1, 0), count // place.dims
    if not KINDS[place.kind].is_quasi:
        slots = slots_of(place)
        if not slots or draw == POISSON:
            return None
        entry = recorded(place.kind, draw, count, 0.0)
        pace = Pace(entry.draw, _words(place.kind, entry), _per_unit(place.kind, entry), slots)
        units = _units(place.kind, entry)
    return _PACES.setdefault(pace, pace), units


def room_at(place: Place, pace: Pace, bounds: Bounds) -> int:
    """Return how many units of a pace may be drawn from a place on, so that `moved` tells where that ends."""
    entry, words, per_unit, slots = pace
    points = KINDS[place.kind].points
    if not slots or (words == 1 and not place.record):
        return points - 1 - place.offset
    others = place.record[:-1] if place.record and place.record[-1].draw == entry else place.record
    in_all = _numbers(others)
    if in_all is None or (others and others[-1].draw == entry) or (words == 1 and not others):
        return 0
    if len(others) >= bounds.entries or in_all + slots * per_unit > bounds.numbers:
        return 0
    return max(0, (points // 2 - place.offset) // words - 2 * slots)


def moved(place: Place, pace: Pace, units: int) -> Place:
    """Return the place so many units of a pace behind a place that has room for them."""
    entry, words, per_unit, slots = pace
    record = place.record
    if not slots or (words == 1 and not record):
        return place._replace(offset=place.offset + units)
    if record and record[-1].draw == entry:
        units += record[-1].numbers // per_unit
        record = record[:-1]
    rest = units % slots
    if rest:
        record = (*record, Entry(entry, rest * per_unit))
    return place._replace(offset=place.offset + words * (units - rest), record=record)


def step(place: Place, draw: str, count: int) -> Step:
    """Return a function that returns what `drawn` does, in a fraction of the time.

    It is a function of the place, of the same kind, and of the bounds. It returns None where `drawn` has to be asked:
    for a place whose record is too long or has Poisson numbers, for the Mersenne twisters, and near the end of the
    sequence. What it found in a record is kept for the next draw, which mostly begins where this one ends.
    """
    name, made_for = place.kind, place.ordering
    kind = KINDS[name]
    slots, points, is_quasi = slots_of(place), kind.points, kind.is_quasi
    entry = recorded(name, draw, count, 0.0) if slots and draw != POISSON else None
    if entry is None and not is_quasi:
        return _unknown_step
    cheap, numbers, _ = entry or Entry(draw, count)
    words = 0 if entry is None else _words(name, entry)
    per_unit = 1 if entry is None else _per_unit(name, entry)
    units, far = numbers // per_unit, points // 2
    known: tuple[Entry, ...] = ()
    others = known
    in_all: int | None = 0

    def behind(place: Place, bounds: Bounds) -> Place | None:
        nonlocal known, others, in_all
        _, ordering, seed, dims, offset, record = place
        if is_quasi:
            offset += count // dims
            return _new(Place, (name, ordering, seed, dims, offset, record)) if offset < points else None
        if ordering != made_for:
            return None
        if not record and words == 1:
            offset += units
            return _new(Place, (name, ordering, seed, dims, offset, record)) if offset < points else None
        if offset >= far:
            return None
        goes_on = bool(record) and record[-1][0] == cheap
        if record is not known:
            known, others = record, record[:-1] if goes_on else record
            in_all = _numbers(others)
        if in_all is None or (words == 1 and not others):
            return None
        in_units = (record[-1][1] + numbers if goes_on else numbers) // per_unit
        rest = in_units % slots
        kept = rest * per_unit
        record = (*others, _new(Entry, (cheap, kept, 0.0))) if kept else others
        if len(record) > bounds.entries or in_all + kept > bounds.numbers:
            return None
        known = record
        return _new(Place, (name, ordering, seed, dims, offset + words * (in_units - rest), record))

    return behind


def _unknown_step(place: Place, bounds: Bounds) -> None:
    """Return None: `drawn` has to be asked."""


def _numbers(record: tuple[Entry, ...]) -> int | None:
    """Return how many numbers there are in a record; None if Poisson numbers are among them."""
    numbers = [many for draw, many, _ in record if draw != POISSON]
    return sum(numbers) if len(numbers) == len(record) else None


def _fits(place: Place, bounds: Bounds) -> bool:
    record = place.record
    return len(record) <= bounds.entries and sum(entry.numbers for entry in record) <= bounds.numbers


def _moved_on(place: Place) -> Place:
    """Return the first round that no slot has reached."""
    slots = slots_of(place)
    begun, slot = divmod(place.offset, slots)
    most = sum(-(-_units(place.kind, entry) // slots) * _words(place.kind, entry) for entry in place.record)
    return place._replace(offset=(begun + (slot > 0) + most) * slots, record=())


def _folded(place: Place) -> Place:
    """Return the same place with as much of the last draw in its offset as can be. The others were last before."""
    slots, record = slots_of(place), place.record
    if not slots or not record or any(entry.draw == POISSON for entry in record):
        return place
    *others, last = record
    units, words = _units(place.kind, last), _words(place.kind, last)
    rest = 0 if words == 1 and not others else units % slots
    kept = last._replace(numbers=rest * _per_unit(place.kind, last))
    return place._replace(offset=place.offset + words * (units - rest), record=_joined(tuple(others), kept))


def _joined(record: tuple[Entry, ...], entry: Entry) -> tuple[Entry, ...]:
    """Return a record with one more entry. One draw of many is the same as several of some."""
    if not entry.numbers:
        return record
    if record and (record[-1].draw, record[-1].lam) == (entry.draw, entry.lam):
        return (*record[:-1], entry._replace(numbers=record[-1].numbers + entry.numbers))
    return (*record, entry)


def recorded(kind: str, draw: str, count: int, lam: float) -> Entry:
    """Return a draw as it is recorded."""
    facts = KINDS[kind]
    if draw == POISSON and (not facts.slots or (kind != "philox" and lam >= _REGULAR_POISSON)):
        return Entry(POISSON, count, lam)
    if draw == UNIFORM32 or (draw == POISSON and facts.slots):
        draw = WORDS
    words = facts.words.get(draw, 1)
    if facts.slots and draw != WORDS:
        units = count // facts.per_unit if draw in (NORMAL32, NORMAL64) else count
        cheap = next(each for each in (WORDS, UNIFORM64, NORMAL32, NORMAL64) if facts.words.get(each, 1) == words)
        draw, count = cheap, units * (facts.per_unit if cheap in (NORMAL32, NORMAL64) else 1)
    return Entry(draw, count)


def _per_unit(kind: str, entry: Entry) -> int:
    return KINDS[kind].per_unit if entry.draw in (NORMAL32, NORMAL64) else 1


def _units(kind: str, entry: Entry) -> int:
    return entry.numbers // _per_unit(kind, entry)


def _words(kind: str, entry: Entry) -> int:
    """Return the words that a unit takes, and at most takes where it is irregular."""
    return 2 if entry.draw == POISSON else KINDS[kind].words.get(entry.draw, 1)
