"""Copies between layouts: the worker's kernels, launched through the driver of this run and held against numpy.

A case is a layout of the source and one of the target, in buffers of random bytes. numpy makes the same copy between
views of the same buffers, and the whole buffer of the target is compared. So a byte that is written beside an element
fails the test.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from ctypes import c_void_p
from dataclasses import dataclass, field
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from atomr_cuda import driver
from atomr_trio._compiling.linker import link
from atomr_trio._worker.base import arrange
from atomr_trio._worker.base.arrange import HALVES, SOURCES, TARGETS, Arrange, ArrangeKernels
from support import ON_GPU, SWEEP, set_constant, sim_process
from support.sim_process import allocate, read, stream, write
from support.strategies import examples

SPARE = 32
"""Bytes before and behind what a copy reads and writes."""

CONVERTED = [name for name in TARGETS if not name.startswith("bits")]
PAIRS = [
    (source, target)
    for source, target in itertools.product(SOURCES, TARGETS)
    if (source == target if "bits" in source + target else target in CONVERTED)
    and not (source.startswith("complex") and target.startswith("float"))
]


def dtype_of(name: str) -> np.dtype[Any]:
    if name.startswith("bits"):
        return np.dtype(f"V{name[4:]}")
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def part_of(name: str) -> int:
    """The alignment that a target of this type needs, in bytes."""
    return SOURCES[name].part


class Machine:
    """The driver of this run in this process, with a stream and the kernels under test."""

    def __init__(self) -> None:
        if ON_GPU:
            driver.cuInit(0)
            context = c_void_p()
            driver.cuDevicePrimaryCtxRetain(context, 0)
            driver.cuCtxSetCurrent(context)
        else:
            sim_process.begin()
        self.stream = stream()
        self.kernels = ArrangeKernels(driver)

    def copy(
        self, description: Any, source: np.ndarray, source_at: int, target: np.ndarray, target_at: int
    ) -> np.ndarray:
        """Make a copy between buffers, whose first elements are at these places; the target's bytes afterwards."""
        prepared = self.kernels.prepare(description)
        room, result = allocate(max(source.nbytes, 1)), allocate(max(target.nbytes, 1))
        try:
            write(room, source.tobytes())
            write(result, target.tobytes())
            driver.cuCtxSynchronize()  # the copies may still be under way, on a stream that ours does not wait for
            assert prepared.launch(room + source_at, result + target_at, self.stream) == 0
            driver.cuStreamSynchronize(self.stream)
            return np.frombuffer(read(result, target.nbytes), np.uint8)
        finally:
            driver.cuMemFree(room)
            driver.cuMemFree(result)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.kernels.close()


@dataclass
class Layout:
    """Bytes, and a view of them by a place and strides."""

    data: np.ndarray
    at: int
    strides: tuple[int, ...]

    @classmethod
    def holding(cls, extents: tuple[int, ...], strides: tuple[int, ...], size: int, lead: int, seed: int) -> Layout:
        """Random bytes that hold all elements of `size` bytes, `lead` bytes behind an aligned address."""
        reaches = [(extent - 1) * stride for extent, stride in zip(extents, strides, strict=True) if extent]
        first = -sum(min(reach, 0) for reach in reaches)
        first += SPARE + -first % 16 + lead
        length = first + sum(max(reach, 0) for reach in reaches) + size + SPARE
        return cls(np.random.default_rng(seed).integers(0, 256, length, np.uint8), first, strides)

    def view(self, extents: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.ndarray(extents, dtype, self.data.data, self.at, self.strides)


@dataclass
class Case:
    """A copy with its buffers."""

    source: str
    target: str
    extents: tuple[int, ...]
    source_extents: tuple[int, ...]
    read: Layout
    written: Layout
    shifts: tuple[int, ...] = ()
    scale: float = 1.0
    conjugate: bool = False
    fields: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.fields = {
            "source": self.source,
            "target": self.target,
            "extents": list(self.extents),
            "source_extents": list(self.source_extents),
            "source_strides": list(self.read.strides),
            "target_strides": list(self.written.strides),
            "shifts": list(self.shifts),
            "scale": self.scale,
            "conjugate": self.conjugate,
        }

    def of_source(self, extents: tuple[int, ...]) -> np.ndarray:
        """The source as numpy has it, of these extents; a bool is any byte."""
        found = self.read.view(extents, np.uint8 if self.source == "bool" else dtype_of(self.source))
        return found != 0 if self.source == "bool" else found

    def expected(self) -> np.ndarray:
        """The bytes of the target afterwards, by numpy."""
        result = Layout(self.written.data.copy(), self.written.at, self.written.strides)
        result.view(self.extents, dtype_of(self.target))[...] = self.values()
        return result.data

    def values(self) -> np.ndarray:
        dtype = dtype_of(self.target)
        inside = tuple(map(min, self.extents, self.source_extents))
        known = self.of_source(inside)
        for axis, shift in enumerate(self.shifts):
            known = np.roll(known, -shift, axis)
        padded: np.ndarray = np.zeros(self.extents, dtype)
        with np.errstate(all="ignore"):
            padded[tuple(map(slice, inside))] = known.astype(dtype)
        if dtype.kind == "V":
            return padded
        parts = padded.reshape(-1).view(self.component)
        factor = self.component.type(self.scale)
        with np.errstate(all="ignore"):
            if factor != 1:
                parts = parts * factor
        if self.conjugate and dtype.kind == "c":
            np.negative(parts[1::2], out=parts[1::2])
        return parts.view(dtype).reshape(self.extents)

    @property
    def component(self) -> np.dtype[Any]:
        return np.dtype(f"f{part_of(self.target)}")

    def same_bits(self) -> bool:
        """Whether the components are of one type on both sides, and not scaled."""
        source, target = SOURCES[self.source], SOURCES[self.target]
        same = (source.kind, source.part) == (target.kind, target.part)
        return same and (target.kind == "b" or self.component.type(self.scale) == 1)


def check(machine: Machine, case: Case) -> None:
    """Hold a copy against numpy: every byte, but for the bits of a NaN that is new."""
    found = machine.copy(case.fields, case.read.data, case.read.at, case.written.data, case.written.at)
    expected = case.expected()
    if not case.same_bits():
        found = found.copy()
        numbers = np.dtype((case.component, (SOURCES[case.target].parts,)))
        shape = (*case.extents, SOURCES[case.target].parts)
        strides = (*case.written.strides, case.component.itemsize)
        views = [np.ndarray(shape, numbers.base, data.data, case.written.at, strides) for data in (found, expected)]
        unknown = np.isnan(views[1])
        assert (np.isnan(views[0]) == unknown).all()
        for view in views:
            view[unknown] = 0
    assert (found == expected).all(), case.fields


# -- random copies -----------------------------------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 2.0**-149, -(2.0**-24), 2.0**-1074, 65504.0, 3.5e38]


def nested(draw: Callable[[Any], Any], extents: tuple[int, ...], size: int, unit: int) -> tuple[int, ...]:
    """Strides of elements that do not overlap: axes in any order and direction, with gaps of whole units."""
    strides, reach = [0] * len(extents), size
    gaps = draw(st.sampled_from([[0], [0, 0, unit, 3 * unit]]))
    for axis in draw(st.sampled_from([range(len(extents))[::-1], draw(st.permutations(range(len(extents))))])):
        step = reach + draw(st.sampled_from(gaps))
        strides[axis] = step * draw(st.sampled_from([1, 1, 1, -1]))
        reach = step * max(extents[axis], 1)
    return tuple(strides)


@st.composite
def cases(draw: Any, pairs: Any = PAIRS) -> Case:
    source, target = draw(st.sampled_from(pairs))
    axes = draw(st.sampled_from([0, 1, 2, 2, 3, 3, 4, 5, 8]))
    largest = {0: 1, 1: 300, 2: 20, 3: 7, 4: 5, 5: 3, 8: 2}[axes]
    least = draw(st.sampled_from([1, 1, 1, 1, 0]))
    extents = tuple(draw(st.integers(least, largest)) for _ in range(axes))
    changes = draw(st.sampled_from([["same"], ["same", "shift"], ["same", "pad", "crop", "shift"]]))
    inside, shifts = list(extents), [0] * axes
    for axis in range(axes):
        change = draw(st.sampled_from(changes))
        if change == "shift":
            shifts[axis] = draw(st.integers(-9, 9))
        elif change != "same":
            inside[axis] = draw(st.integers(0, extents[axis]) if change == "pad" else st.integers(0, largest + 2))
    source_extents = tuple(inside)

    size, part = SOURCES[source].size, part_of(source)
    unit = draw(st.sampled_from([size, part, part, 1]))
    overlapping = st.tuples(*(st.integers(-20, 20).map(lambda number: number * unit) for _ in range(axes)))
    strides = draw(overlapping) if draw(st.sampled_from([False, False, True])) else None
    # It may be a part of an array with the target's extents.
    around = draw(st.sampled_from([source_extents, tuple(map(max, extents, source_extents))]))
    strides = strides or nested(draw, around, size, unit)
    lead = draw(st.integers(0, 15)) // unit * unit
    read_at = Layout.holding(source_extents, strides, size, lead, draw(st.integers(0, 99)))
    if source not in ("bool", "bits1", "bits2", "bits4", "bits8", "bits16") and math.prod(source_extents):
        view = read_at.view(source_extents, dtype_of(source))
        chosen = np.random.default_rng(draw(st.integers(0, 99)))
        with np.errstate(all="ignore"):
            if view.dtype.kind in "iu":
                limits = np.iinfo(view.dtype)
                pool = np.array([0, 1, limits.min, limits.max, limits.max // 2 + 1], view.dtype)
            else:
                pool = np.array(SPECIAL).astype(view.dtype)
        places = chosen.random(source_extents) < 0.5
        view[places] = chosen.choice(pool, np.count_nonzero(places))

    unit = draw(st.sampled_from([SOURCES[target].size, part_of(target)]))
    target_strides = nested(draw, extents, SOURCES[target].size, unit)
    lead = draw(st.integers(0, 15)) // unit * unit
    written = Layout.holding(extents, target_strides, SOURCES[target].size, lead, draw(st.integers(0, 99)))
    moved = target.startswith("bits")
    return Case(
        source,
        target,
        extents,
        source_extents,
        read_at,
        written,
        tuple(shifts),
        1.0 if moved else draw(st.sampled_from([1.0, 1.0, -1.0, 0.1, 1 / 3, 2.0**-140, 0.0])),
        False if moved else draw(st.booleans()),
    )


def many(ordinary: int, sweeping: int) -> Any:
    return settings(
        max_examples=sweeping if SWEEP else ordinary,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def test_a_copy_is_what_numpy_makes(machine: Machine) -> None:
    @many(100, 5000)
    @given(cases())
    def each(case: Case) -> None:
        check(machine, case)

    each()


@pytest.mark.long
def test_a_copy_that_counts_in_64_bits_is_what_numpy_makes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    set_constant(monkeypatch, arrange, "_NARROW_MOST", 0)

    @many(100, 2000)
    @given(cases())
    def each(case: Case) -> None:
        check(machine, case)

    each()


# -- every pair of types -----------------------------------------------------------------------------------------------


def specials(name: str) -> np.ndarray:
    """Numbers of a type, among them all that are at some limit of it."""
    dtype = dtype_of(name)
    random = np.random.default_rng(7)
    if name.startswith("bits") or name == "bool":
        return random.integers(0, 256, 256 * SOURCES[name].size, np.uint8)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        near = [
            sign * (1 << bits) + step for bits in range(8 * dtype.itemsize) for step in (-1, 0, 1) for sign in (1, -1)
        ]
        # Rounding to 53 bits first would make these even numbers of 24 bits halfway, and then wrong.
        near += [(1 << 61) + (1 << 37) + 1, (1 << 61) + (3 << 37) - 1, (1 << 53) + 1, (1 << 24) + 1, (1 << 24) + 3]
        near += [limits.min, limits.min + 1, limits.max, limits.max - 1]
        return np.array([number for number in near if limits.min <= number <= limits.max], dtype).view(np.uint8)
    part = np.dtype(f"u{part_of(name)}")
    bits = random.integers(0, np.iinfo(part).max, 400, part, endpoint=True)
    mantissa, exponent = {"float16": (10, 5), "bfloat16": (7, 8)}.get(
        name, {4: (23, 8), 8: (52, 11)}.get(part.itemsize)
    )
    top = ((1 << exponent) - 1) << mantissa
    wanted = [top, top + 1, top + (1 << (mantissa - 1)), top + 5, 0, 1, (1 << mantissa) - 1, 1 << mantissa, top - 1]
    signs = 1 << (exponent + mantissa)
    if name in ("float64", "complex128"):  # halfway between two float32, at its limits, and among its subnormals
        near = [1 + 2.0**-24, 1 + 3 * 2.0**-24, 2.0**-149, 2.0**-150, 3 * 2.0**-151, 2.0**128, 2.0**128 - 2.0**103]
        wanted += np.array(near).view(np.uint64).tolist()
    found = np.array([*wanted, *(signs | each for each in wanted)], part)
    return np.concatenate([found, bits, bits & part.type(signs | ((1 << mantissa) - 1))]).view(np.uint8)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_number_is_converted_as_numpy_does(machine: Machine, source: str, target: str) -> None:
    """Aligned, by components, and byte by byte; bits survive where the type of the components stays."""
    size = SOURCES[source].size
    numbers = specials(source)
    count = numbers.size // size
    for lead in sorted({0, part_of(source) % size, 1 % part_of(source)}):
        data = np.concatenate([np.zeros(SPARE + lead, np.uint8), numbers[: count * size], np.zeros(SPARE, np.uint8)])
        written = Layout.holding((count,), (SOURCES[target].size,), SOURCES[target].size, 0, 3)
        check(machine, Case(source, target, (count,), (count,), Layout(data, SPARE + lead, (size,)), written))


def one_row(source: str, target: str, numbers: np.ndarray, **options: Any) -> Case:
    """A contiguous copy of these numbers, whose target has the same number of elements."""
    data = np.concatenate([np.zeros(SPARE, np.uint8), np.ascontiguousarray(numbers).view(np.uint8).reshape(-1)])
    count = numbers.size
    written = Layout.holding((count,), (SOURCES[target].size,), SOURCES[target].size, 0, 3)
    return Case(source, target, (count,), (count,), Layout(data, SPARE, (SOURCES[source].size,)), written, **options)


def result_of(machine: Machine, case: Case) -> np.ndarray:
    """The elements of a contiguous target."""
    found = machine.copy(case.fields, case.read.data, case.read.at, case.written.data, case.written.at)
    return np.ndarray(case.extents, dtype_of(case.target), found.data, case.written.at)


@pytest.mark.parametrize("source", ["int64", "uint64"])
def test_a_large_integer_is_rounded_once(machine: Machine, source: str) -> None:
    """Against exact arithmetic, not numpy: the nearest number of 24 bits, the even one of two."""
    numbers = specials(source).view(source)
    result = result_of(machine, one_row(source, "float32", numbers))
    for number, found in zip(numbers.tolist(), result.tolist(), strict=True):
        unit = 1 << max(abs(number).bit_length() - 24, 0)
        assert found == round(Fraction(number, unit)) * unit


def test_an_infinity_that_is_scaled_has_no_new_nan_beside_it(machine: Machine) -> None:
    numbers = np.array([complex(math.inf, 1.0), complex(-2.0, -math.inf), complex(-0.0, 0.0)], np.complex64)
    found = result_of(machine, one_row("complex64", "complex64", numbers, scale=-0.5, conjugate=True))
    assert found.view(np.float32).tolist() == [-math.inf, 0.5, 1.0, -math.inf, 0.0, 0.0]
    assert np.signbit(found.view(np.float32)).tolist() == [True, False, False, True, False, False]


HALF_PAIRS = [
    *((name, name) for name in HALVES),
    ("float16", "complex_float16"),
    ("bfloat16", "complex_bfloat16"),
]


@pytest.mark.parametrize(
    ("scale", "conjugate"), [(1.0, False), (1.0, True), (0.3, True), (-3.0, False), (2.0**-20, False)]
)
@pytest.mark.parametrize(("source", "target"), HALF_PAIRS)
def test_halves_are_moved_scaled_and_conjugated_in_pairs_as_in_float32(
    machine: Machine, source: str, target: str, scale: float, conjugate: bool
) -> None:
    """Every number of 16 bits, padded by one element; those that are not scaled keep their bits."""
    parts = [2 if name.startswith("complex") else 1 for name in (source, target)]
    dtype = np.dtype(np.float16 if "float16" in source.split("_")[-1][:7] else ml_dtypes.bfloat16)
    numbers = np.arange(1 << 16, dtype=np.uint16)
    count = numbers.size // parts[0]
    sizes = [2 * each for each in parts]
    found = machine.copy(
        (source, target, (count + 1,), (count,), sizes[:1], sizes[1:], (), scale, conjugate),
        *(numbers.view(np.uint8), 0, np.full((count + 1) * sizes[1], 0xEE, np.uint8), 0),
    ).view(np.uint16)
    with np.errstate(all="ignore"):
        scaled = (numbers.view(dtype).astype(np.float32) * np.float32(scale)).astype(dtype).view(np.uint16)
    expected = np.full((count + 1, parts[1]), 0x8000 if scale < 0 else 0, np.uint16)
    expected[:count, : parts[0]] = (numbers if scale == 1 else scaled).reshape(count, parts[0])
    if conjugate and parts[1] == 2:
        expected[:, 1] ^= 0x8000
    expected = expected.ravel()
    if scale != 1:
        unknown = np.isnan(expected.view(dtype).astype(np.float32))
        assert (np.isnan(found.view(dtype).astype(np.float32)) == unknown).all()
        expected, found = np.where(unknown, 0, expected), np.where(unknown, 0, found)
    assert (found == expected).all()


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_a_pair_of_halves_may_lie_anywhere_and_its_target_at_any_half(machine: Machine, lead: int) -> None:
    numbers = np.arange(40, dtype=np.uint16)
    source = np.concatenate([np.zeros(lead, np.uint8), numbers.view(np.uint8)])
    description = ("complex_float16", "complex_float16", (4, 5), (4, 5), (4, 16), (20, 4), (), 1.0, False)
    found = machine.copy(description, source, lead, np.zeros(84, np.uint8), 2)
    assert (found[2:82].view(np.uint32).reshape(4, 5) == numbers.view(np.uint32).reshape(5, 4).T).all()
    assert not found[[0, 1, 82, 83]].any()


def test_a_factor_is_rounded_to_the_type_of_the_components(machine: Machine) -> None:
    numbers = np.array([3.0, 1e30, 7.0], np.float32)
    found = result_of(machine, one_row("float32", "float32", numbers, scale=0.1))
    assert (found == numbers * np.float32(0.1)).all()
    found = result_of(machine, one_row("float32", "float64", numbers, scale=0.1))
    assert (found == numbers.astype(np.float64) * 0.1).all()
    # It is 1 after rounding, so that nothing is multiplied, and a NaN keeps its bits.
    signalling = np.array([0x7F800001, 0xFFC12345], np.uint32)
    found = result_of(machine, one_row("float32", "float32", signalling.view(np.float32), scale=1 + 1e-12))
    assert (found.view(np.uint32) == signalling).all()


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wide", [False, True])
def test_more_elements_than_threads_are_all_copied(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, wide: bool
) -> None:
    """Each thread takes several, in the last round not all of them do."""
    set_constant(monkeypatch, arrange, "_MOST_BLOCKS", 3)
    set_constant(monkeypatch, arrange, "_NARROW_MOST", 0 if wide else 1 << 31)
    extents = (7, 701)
    read_at = Layout.holding(extents, (2, 14), 2, 0, 5)
    written = Layout.holding(extents, (4 * 710, 4), 4, 0, 6)
    check(machine, Case("int16", "float32", extents, extents, read_at, written))


@pytest.mark.parametrize(
    ("extents", "wide"),
    [
        (((1 << 31) // 305, 5, 61), False),
        (((1 << 31) // 305 + 1, 5, 61), True),
        (((1 << 32) // 305 + 7, 5, 61), True),
        (((1 << 60) // 305, 5, 61), True),
        ((3, 5, (1 << 27) + 3), False),
        ((3, 5, (1 << 56) + 1), True),
        ((3, 5, 1 << 56), True),
        ((5, (1 << 57) - 1), True),
    ],
)
def test_elements_of_large_numbers_are_right(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, extents: tuple[int, ...], wide: bool
) -> None:
    """The kernel begins near the end of a target of which only the end is there; each thread takes two elements.

    The innermost axis is read backwards, the one before is shifted, and the outermost is padded by one.
    """
    copied, axes = 512, len(extents)
    first = math.prod(extents) - copied
    set_constant(monkeypatch, arrange, "_MOST_BLOCKS", 1)
    text = arrange._text
    begin = f"add.u{64 if wide else 32} %i, %i, {first};\nNEXT:\n"
    monkeypatch.setattr(arrange, "_text", lambda key: text(key).replace("NEXT:\n", begin))

    strides = (1860, 304, -4)[-axes:]
    shifts = (0,) * (axes - 2) + (2,) + (0,) if axes > 2 else (0, 0)
    inside = (extents[0] - 1, *extents[1:])
    target_strides = tuple(4 * math.prod(extents[axis + 1 :]) for axis in range(axes))
    kernels = ArrangeKernels(driver)
    prepared = kernels.prepare(("bits4", "bits4", extents, inside, strides, target_strides, shifts, 1.0, False))
    assert [key.wide for key in kernels._functions] == [wide]

    places: list[int | None] = []
    for number in range(first, first + copied):
        index = []
        for extent in reversed(extents):
            number, rest = divmod(number, extent)
            index.insert(0, rest)
        turned = [(at + shift) % extent for at, shift, extent in zip(index, shifts, extents, strict=True)]
        known = index[0] < inside[0]
        places.append(sum(map(int.__mul__, turned, strides)) if known else None)
    known_places = [place for place in places if place is not None] or [0]
    low, high = min(known_places), max(known_places)
    source = np.random.default_rng(2).integers(1, 1 << 32, (high - low) // 4 + 1, np.uint32)
    expected = [0 if place is None else int(source[(place - low) // 4]) for place in places]

    room, result = allocate(source.nbytes), allocate(4 * copied)
    write(room, source.tobytes())
    write(result, b"\xff" * 4 * copied)
    modulus = 1 << 64
    assert prepared.launch((room - low) % modulus, (result - 4 * first) % modulus, machine.stream) == 0
    driver.cuStreamSynchronize(machine.stream)
    assert np.frombuffer(read(result, 4 * copied), np.uint32).tolist() == expected
    assert any(expected) == (axes > 2 and extents[2] == 61)
    driver.cuMemFree(room)
    driver.cuMemFree(result)
    kernels.close()


@pytest.mark.parametrize("bits", [31, 63])
def test_dividing_by_multiplying_is_exact(bits: int) -> None:
    """Near all multiples, where an error would show; and the factor fits its word."""
    numbers = st.integers(0, (1 << bits) - 1)
    divisors = st.integers(2, 1 << 8) | st.integers(2, (1 << bits) - 1) | st.integers(1, bits).map(lambda n: 1 << n)

    @settings(max_examples=2000 if SWEEP else 300)
    @given(divisors, numbers)
    def each(divisor: int, number: int) -> None:
        divisor = min(divisor, (1 << bits) - 1)
        magic, down = arrange._division(divisor, bits)
        assert magic < 1 << (bits + 1)
        assert 0 <= down - (64 if bits == 63 else 32) < bits
        near = number // divisor * divisor
        for n in (number, near, near - 1, near + divisor - 1, (1 << bits) - 1):
            if 0 <= n < 1 << bits:
                assert n * magic >> down == n // divisor

    each()


def test_a_target_without_elements_needs_no_launch(machine: Machine) -> None:
    kernels = ArrangeKernels(driver)
    prepared = kernels.prepare(Arrange("int8", "float32", (3, 0), (3, 5), (5, 1), (20, 4)))
    assert prepared.launch(0, 0, machine.stream) == 0
    assert kernels._functions == {}


@pytest.mark.parametrize("extents", [(1,), (1, 1, 1), (4, 3)])
def test_a_source_without_elements_makes_zeros(machine: Machine, extents: tuple[int, ...]) -> None:
    """Its address is not used."""
    target_strides = tuple(8 * math.prod(extents[axis + 1 :]) for axis in range(len(extents)))
    none = (0,) * len(extents)
    prepared = machine.kernels.prepare(("int8", "float64", extents, none, none, target_strides, (), 2.0, False))
    size = 8 * math.prod(extents)
    result = allocate(size)
    write(result, b"\xff" * size)
    assert prepared.launch(0, result, machine.stream) == 0
    driver.cuStreamSynchronize(machine.stream)
    assert read(result, size) == bytes(size)
    driver.cuMemFree(result)


# -- where a copy lies -------------------------------------------------------------------------------------------------


def test_a_copy_may_change_numbers_in_place(machine: Machine) -> None:
    numbers = np.arange(600, dtype=np.float32).view(np.complex64)
    room = allocate(numbers.nbytes)
    write(room, numbers.tobytes())
    prepared = machine.kernels.prepare(("complex64", "complex64", (300,), (300,), (8,), (8,), (), 0.25, True))
    assert prepared.launch(room, room, machine.stream) == 0
    driver.cuStreamSynchronize(machine.stream)
    assert (np.frombuffer(read(room, numbers.nbytes), np.complex64) == 0.25 * numbers.conj()).all()
    driver.cuMemFree(room)


def test_a_target_that_is_not_aligned_for_its_components_is_refused(machine: Machine) -> None:
    prepared = machine.kernels.prepare(("complex64", "complex64", (3,), (3,), (8,), (8,), (), 1.0, False))
    with pytest.raises(ValueError, match=r"the target's address 0x1006 is not a multiple of 4"):
        prepared.launch(0x1000, 0x1006, machine.stream)


def test_a_status_of_the_driver_is_returned(machine: Machine) -> None:
    prepared = machine.kernels.prepare(("int8", "float32", (3,), (3,), (1,), (4,), (), 1.0, False))
    unknown = c_void_p(0x1230)
    if not ON_GPU:  # a real driver does not look whether a stream is one
        assert prepared.launch(0x1000, 0x2000, unknown) != 0


# -- descriptions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "extents", "strides"),
    [
        # (extents, source extents, source strides, target strides, shifts)
        (((4, 5, 6), (4, 5, 6), (120, 24, 4), (120, 24, 4), ()), (120,), (4,)),
        (((4, 5, 6), (4, 5, 6), (4, 16, 80), (4, 16, 80), ()), (120,), (4,)),
        (((4, 1, 6), (4, 1, 6), (24, 7, 4), (24, 8, 4), ()), (24,), (4,)),
        (((4, 5, 6), (3, 5, 6), (120, 24, 4), (120, 24, 4), ()), (120,), (4,)),
        (((4, 5), (4, 4), (20, 4), (20, 4), ()), (4, 5), (20, 4)),
        (((4, 5, 6), (4, 4, 6), (96, 24, 4), (120, 24, 4), ()), (4, 30), (96, 4)),
        (((4, 5, 6), (4, 5, 6), (120, 24, 4), (120, 24, 4), (1, 0, 0)), (120,), (4,)),
        (((4, 5, 6), (4, 5, 6), (120, 24, 4), (120, 24, 4), (0, 1, 0)), (4, 30), (120, 4)),
        (((4, 5, 6), (4, 5, 6), (120, 24, 4), (120, 24, 4), (4, -5, 12)), (120,), (4,)),
        (((4, 5), (4, 5), (-20, -4), (-20, -4), ()), (20,), (-4,)),
        (((4, 5), (4, 5), (-20, 4), (20, 4), ()), (4, 5), (-20, 4)),
        (((4, 5), (4, 5), (0, 0), (20, 4), ()), (20,), (0,)),
        (((), (), (), (), ()), (), ()),
        (((1, 1), (1, 1), (3, 5), (4, 4), ()), (), ()),
        (((1, 1), (1, 0), (3, 5), (4, 4), ()), (1,), (0,)),
        (((4, 5), (4, 0), (3, 5), (20, 4), ()), (20,), (0,)),
        (((4, 0), (4, 2), (3, 5), (20, 4), ()), (0,), (0,)),
    ],
)
def test_axes_are_merged_where_they_can_be(given: Any, extents: tuple[int, ...], strides: tuple[int, ...]) -> None:
    found = Arrange.of(["float32", "float32", *given, 1.0, False])
    assert (found.extents, found.source_strides) == (extents, strides)
    assert found.elements == math.prod(given[0])


def test_a_description_that_is_simple_stays_as_it_is() -> None:
    @examples(1)
    @given(cases())
    def each(case: Case) -> None:
        simple = Arrange.of(case.fields)
        assert simple.elements == math.prod(case.extents)
        assert Arrange.of(simple) == Arrange.of(list(simple)) == Arrange.of(simple._asdict()) == simple

    each()


GOOD: dict[str, Any] = {
    "source": "float32",
    "target": "complex64",
    "extents": [4, 5],
    "source_extents": [4, 5],
    "source_strides": [20, 4],
    "target_strides": [40, 8],
}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"source": "float8"}, "'float8' is not a type of a source; use one of bool, int8"),
        ({"source": 3}, "3 is not a type of a source"),
        ({"source": ["bool"]}, r"\['bool'\] is not a type of a source"),
        ({"target": "float8"}, "'float8' is not a type of a target; use one of float32"),
        ({"target": "float16"}, "cannot become float16: halves stay what they are"),
        ({"source": "bfloat16", "target": "float16"}, "bfloat16 cannot become float16"),
        ({"source": "complex_float16", "target": "float16"}, "complex_float16 cannot become float16"),
        ({"source": "complex_float16", "target": "complex64"}, "complex_float16 cannot become complex64"),
        ({"source": "complex_float16", "target": "complex_bfloat16"}, "halves stay what they are"),
        ({"source": "complex64", "target": "float32"}, "complex64 cannot become float32; a complex source needs"),
        ({"source": "bits4", "target": "float32"}, "bits4 cannot become float32: bits are moved as they are"),
        ({"target": "bits4"}, "float32 cannot become bits4"),
        ({"source": "bits8", "target": "bits8", "scale": 2.0}, "bits8 is moved bit by bit, and not scaled"),
        ({"source": "bits8", "target": "bits8", "conjugate": True}, "bits8 is moved bit by bit, and not conjugated"),
        ({"extents": 4}, "extents is int; give a list of integers"),
        ({"extents": [4, -1]}, r"extents has -1; give integers from 0 to 2\*\*63 - 1"),
        ({"extents": [4, True]}, "extents has True"),
        ({"extents": [4, 5.0]}, r"extents has 5\.0"),
        ({"extents": [4, 1 << 63]}, "extents has 9223372036854775808"),
        ({"extents": [1] * 9}, "there are 9 axes; at most 8 are possible"),
        ({"source_extents": [4]}, "source_extents has 1 numbers for 2 axes"),
        ({"source_extents": [4, -5]}, "source_extents has -5"),
        ({"source_strides": [1 << 63, 4]}, r"source_strides has 9223372036854775808; .* from -9223372036854775808"),
        ({"target_strides": [40, 8, 1]}, "target_strides has 3 numbers for 2 axes"),
        ({"shifts": [1]}, "shifts has 1 numbers for 2 axes"),
        ({"shifts": ["1", 0]}, "shifts has '1'"),
        ({"source_extents": [4, 3], "shifts": [1, 1]}, "axis 1 is shifted, so its extents .* are 3 and 5"),
        ({"extents": [1 << 32, 1 << 31]}, r"the extents make 2\*\*63 elements or more"),
        ({"source_strides": [1 << 62, 4]}, r"the source's strides reach over 2\*\*63 bytes"),
        ({"target_strides": [1 << 62, 8]}, r"the target's strides reach over 2\*\*63 bytes"),
        ({"target_strides": [40, 10]}, "the target has the stride 10; it has to be a multiple of 4 bytes"),
        ({"target_strides": [0, 8]}, "elements of the target overlap: its stride 0 is below 8 bytes"),
        ({"target_strides": [36, 8]}, "elements of the target overlap: its stride 36 is below 40 bytes"),
        ({"target_strides": [40, 4]}, "elements of the target overlap: its stride 4 is below 8 bytes"),
        ({"scale": math.nan}, "the scale is nan; give a finite number"),
        ({"scale": -math.inf}, "the scale is -inf; give a finite number"),
        ({"scale": 10**400}, "the scale is 10+; give a finite number"),
        ({"scale": "1"}, "the scale is '1'; give a real number"),
        ({"scale": True}, "the scale is True; give a real number"),
        ({"scale": 1j}, "the scale is 1j; give a real number"),
        ({"scale": 1e39}, r"the scale 1e\+39 is beyond the range of float32, in which complex64 is scaled"),
        ({"scale": 1e-60}, "the scale 1e-60 is beyond the range of float32"),
        ({"conjugate": 1}, "conjugate is 1; give True or False"),
        ({"axes": 2}, "a copy has no field 'axes'"),
        ({5: 2}, "a copy has no field 5"),
    ],
)
def test_a_description_that_is_wrong_is_refused(changed: dict[Any, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Arrange.of(GOOD | changed)


@pytest.mark.parametrize("given", [None, 3, "float32", [], ["float32"] * 8, ["float32"] * 10])
def test_what_is_no_description_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match="a copy is a dictionary, or a list of 9 fields"):
        Arrange.of(given)


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"a copy needs the field extents, source_extents$"):
        Arrange.of({name: value for name, value in GOOD.items() if not name.endswith("extents")})
    assert Arrange.of(GOOD) == Arrange.of(GOOD | {"shifts": [0, 0], "scale": 1, "conjugate": False})


# -- loading -----------------------------------------------------------------------------------------------------------


class CountingDriver:
    """Stands for the driver, and notes which modules are loaded and unloaded."""

    CUmodule = CUfunction = c_void_p

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.unloaded: list[int] = []
        self.broken = False
        self.cuLaunchKernel = SimpleNamespace(bind=lambda: None)
        self.cuModuleUnload = SimpleNamespace(status=self.unload)

    def cuModuleLoadData(self, module: Any, text: Any) -> None:
        module._obj.value = len(self.loaded) + 1
        self.loaded.append(module._obj.value)

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> None:
        if self.broken:
            raise OSError(name.decode())

    def unload(self, module: Any) -> int:
        self.unloaded.append(module.value)
        return 0


def test_kernels_of_a_kind_are_loaded_once_by_any_number_of_threads() -> None:
    counting: Any = CountingDriver()
    kernels = ArrangeKernels(counting)
    begin = threading.Barrier(8)

    def prepare() -> None:
        begin.wait()
        for extent in range(2, 9):
            kernels.prepare(["int8", "float32", [extent], [extent], [1], [4], [], 1.0, False])
            kernels.prepare(["int8", "float32", [extent], [extent], [1], [4], [], 0.5, False])

    threads = [threading.Thread(target=prepare) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert counting.loaded == [1, 2]
    counting.cuModuleUnload = counting.unload
    kernels.close()
    kernels.close()
    assert counting.unloaded == [1, 2]


def test_a_module_without_its_kernels_is_unloaded() -> None:
    counting: Any = CountingDriver()
    kernels = ArrangeKernels(counting)
    counting.broken = True
    for _ in range(2):
        with pytest.raises(OSError, match="atomr_arrange_whole"):
            kernels.prepare(GOOD)
    assert counting.unloaded == counting.loaded == [1, 2]
    counting.broken = False
    kernels.prepare(GOOD)
    assert counting.loaded == [1, 2, 3]


@pytest.mark.parametrize("arch", ["sm_75", *(["sm_90", "sm_100", "sm_120"] if SWEEP else [])])
def test_the_arranging_kernels_are_ptx_that_the_real_assembler_takes(arch: str) -> None:
    """Kernels of each pair of types in one text; the other properties of a kernel change with the pair."""
    options = itertools.cycle(itertools.product([0, 1, 2, 3, 8], [False, True], [False, True], [False, True]))
    texts = []
    for (source, target), (axes, wide, padded, shifted) in zip(PAIRS, options, strict=False):
        scaled = not target.startswith("bits")
        conjugate = target.startswith("complex")
        key = arrange._Key(source, target, axes, wide, padded and axes > 0, shifted and axes > 0, scaled, conjugate)
        text = arrange._text(key)
        head, entry = text.index(".visible"), f"{source}_{target}"
        texts.append((text if not texts else text[head:]).replace("atomr_arrange", entry))
    assert link(["".join(texts).encode()], arch=arch).startswith(b"\x7fELF")
