"""The simulated cuRAND through its table: by the real library where it is installed, and by the models without it.

Every result lies in a buffer of junk that must stay as it was.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from ctypes import POINTER, byref, c_int, c_uint, c_uint64, c_void_p

import numpy as np
import pytest

import atomr_sim
from atomr_cuda import curand, driver
from atomr_cuda.curand import curandOrdering_t as Ordering, curandRngType_t as Kind, curandStatus_t as Status
from atomr_sim.libraries.curand import host
from atomr_sim.libraries.curand.functions import counterpart
from atomr_sim.libraries.curand.kinds import DRAWS
from atomr_sim.libraries.curand.philox import philox
from support import sim_process as helper
from support.curand import PSEUDO, QUASI, first_tables, without_a_generator, wrong_statuses
from support.sim_process import run_in_process

pytestmark = pytest.mark.sim_only

JUNK, GUARD = 0xA5, 64
XORWOW, MRG, MTGP = Kind.CURAND_RNG_PSEUDO_XORWOW, Kind.CURAND_RNG_PSEUDO_MRG32K3A, Kind.CURAND_RNG_PSEUDO_MTGP32
MT19937, PHILOX = Kind.CURAND_RNG_PSEUDO_MT19937, Kind.CURAND_RNG_PSEUDO_PHILOX4_32_10
SOBOL32, SOBOL64 = Kind.CURAND_RNG_QUASI_SOBOL32, Kind.CURAND_RNG_QUASI_SOBOL64
SCRAMBLED32, SCRAMBLED64 = Kind.CURAND_RNG_QUASI_SCRAMBLED_SOBOL32, Kind.CURAND_RNG_QUASI_SCRAMBLED_SOBOL64
DEFAULT, LEGACY = Ordering.CURAND_ORDERING_PSEUDO_DEFAULT, Ordering.CURAND_ORDERING_PSEUDO_LEGACY
QUICK = {MRG: LEGACY}
"""The ordering of a kind that begins slowly in its own: half a second on the host."""
UNSUPPORTED = Status.CURAND_STATUS_ARCH_MISMATCH
ACTIVE, VOID = (
    driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE,
    driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED,
)

WORDS, UNIFORM, UNIFORM64 = "curandGenerate", "curandGenerateUniform", "curandGenerateUniformDouble"
NORMAL, NORMAL64, POISSON = "curandGenerateNormal", "curandGenerateNormalDouble", "curandGeneratePoisson"
STANDARD = {name: (4.0,) if draw.is_poisson else (0.0, 1.0) if draw.is_normal else () for name, draw in DRAWS.items()}
"""Parameters of each function."""


@pytest.fixture(autouse=True)
def context():
    handle = helper.begin()
    yield handle
    driver.cuCtxSetCurrent(handle)
    while driver.cuDevicePrimaryCtxRelease.status(0) == 0:
        pass
    driver.cuCtxSetCurrent(None)


@pytest.fixture
def library() -> host.HostLibrary:
    """The real library; a test that needs it is skipped without."""
    found = host.installed()
    if found is None:
        pytest.skip("cuRAND is not installed")
    return found


@pytest.fixture
def hidden(monkeypatch) -> None:
    """The real library is not found."""
    monkeypatch.setattr(host, "installed", lambda: None)


@pytest.fixture(params=["library", "hidden"])
def either(request) -> str:
    """Both sources, one after the other."""
    request.getfixturevalue(request.param)
    return request.param


def words_of(kind: int) -> str:
    """The function that gives the words of a kind."""
    return "curandGenerateLongLong" if kind in (SOBOL64, SCRAMBLED64) else WORDS


class Generator:
    """A generator on a stream of its own."""

    def __init__(
        self,
        kind: int,
        seed: int = 1234,
        *,
        offset: int = 0,
        ordering: int | None = None,
        dimensions: int = 1,
        stream: c_void_p | None = None,
    ) -> None:
        self.kind, self.number = kind, c_void_p()
        self.stream = helper.stream() if stream is None else stream
        curand.curandCreateGenerator(byref(self.number), kind)
        curand.curandSetStream(self.number, self.stream)
        if kind >= 200:
            curand.curandSetQuasiRandomGeneratorDimensions(self.number, dimensions)
        else:
            curand.curandSetPseudoRandomGeneratorSeed(self.number, seed)
        if ordering is not None:
            curand.curandSetGeneratorOrdering(self.number, ordering)
        if offset:
            curand.curandSetGeneratorOffset(self.number, offset)

    def status(self, name: str, address: int, count: int, *parameters: float) -> int:
        return curand.library.functions[name].status(self.number, address, count, *(parameters or STANDARD[name]))

    def draw(self, name: str, count: int, *parameters: float) -> np.ndarray:
        """The next numbers, after a check that nothing was written around them."""
        dtype = DRAWS[name].dtype
        room = GUARD + count * dtype.itemsize + GUARD
        base = helper.allocate(room)
        helper.write(base, bytes([JUNK]) * room)
        assert self.status(name, base + GUARD, count, *parameters) == 0
        driver.cuStreamSynchronize(self.stream)
        found = helper.read(base, room)
        assert found[:GUARD] == found[-GUARD:] == bytes([JUNK]) * GUARD
        driver.cuMemFree(base)
        return np.frombuffer(found[GUARD:-GUARD], dtype)

    def words(self, count: int) -> np.ndarray:
        return self.draw(words_of(self.kind), count)

    def end(self) -> None:
        curand.curandDestroyGenerator(self.number)
        driver.cuStreamDestroy(self.stream)


def drawn(kind: int, name: str, count: int, **options) -> np.ndarray:
    """The first numbers of a new generator."""
    generator = Generator(kind, **options)
    found = generator.draw(name, count)
    generator.end()
    return found


# Known answers.

FIRST = {
    XORWOW: (624778773, 3522650202, 2363946744, 1266286439),
    MRG: (3379073520, 653317650, 4012281984, 4237272334),
    MTGP: (2501053709, 1991185121, 2644103708, 4279383218),
    PHILOX: (546353992, 3665621163, 1140953199, 3419031310),
    SOBOL32: (0, 2147483648, 3221225472, 1073741824),
    SCRAMBLED32: (3792201470, 201647173, 1428682187, 3140188016),
    SOBOL64: (0, 1 << 63, 3 << 62, 1 << 62),
    SCRAMBLED64: (0xE20866FE27BEC92A, 0x0C04E445976CFF16, 0x5527F5CBAAAF4D2A, 0xBB2B77701A7D7B16),
}
"""The first words of seed 1234, as a host generator and an H200 give them."""


@pytest.mark.parametrize("kind", FIRST, ids=lambda kind: kind.name)
def test_the_first_words_of_every_kind(kind, library):
    assert tuple(drawn(kind, words_of(kind), 4)) == FIRST[kind]


@pytest.mark.sweep
def test_the_first_words_of_a_kind_that_begins_slowly(library):
    assert tuple(drawn(MT19937, WORDS, 4)) == (822569775, 292421642, 643530888, 2825097111)


@pytest.mark.parametrize("kind", [PHILOX, SOBOL32], ids=lambda kind: kind.name)
def test_the_first_words_without_the_library(kind, hidden):
    assert tuple(drawn(kind, WORDS, 4)) == FIRST[kind]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0_A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_by_the_answers_of_its_authors(counter, key, expected):
    words = tuple(np.array([each], np.uint64) for each in counter)
    assert tuple(philox(words, key)[0]) == expected


def test_a_seed_that_is_not_given_is_zero(either):
    generator = c_void_p()
    curand.curandCreateGenerator(byref(generator), PHILOX)
    place = helper.allocate(16)
    curand.curandGenerate(generator, place, 4)
    driver.cuCtxSynchronize()
    assert tuple(np.frombuffer(helper.read(place, 16), np.uint32)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "parted"), [(MRG, 4096), (MTGP, 16384), (XORWOW, None), (PHILOX, None)])
def test_where_the_legacy_ordering_parts_from_the_default_one(kind, parted, library):
    """As on an H200."""
    usual, legacy = (drawn(kind, WORDS, 1 << 17, ordering=each) for each in (DEFAULT, LEGACY))
    different = np.flatnonzero(usual != legacy)
    assert (different[0] if different.size else None) == parted
    best, dynamic = (drawn(kind, WORDS, 1 << 17, ordering=each) for each in (100, 104))
    assert usual.tobytes() == best.tobytes() == dynamic.tobytes()


def test_the_seeded_ordering_is_another_one(library):
    seeded = drawn(XORWOW, WORDS, 4096, ordering=Ordering.CURAND_ORDERING_PSEUDO_SEEDED)
    assert np.count_nonzero(seeded != drawn(XORWOW, WORDS, 4096)) > 4000


# The models against the library.

T = {PHILOX: 262144, XORWOW: 4096, MRG: 81920}
BOUNDS = {
    NORMAL: 3e-6,
    NORMAL64: 3e-15,
    "curandGenerateLogNormal": 2e-4,
    "curandGenerateLogNormalDouble": 5e-13,
}
"""How far numbers may be off; those of other functions must be equal."""


def assert_alike(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    if name in BOUNDS:
        assert abs(found - expected).max() <= BOUNDS[name]
    else:
        assert found.tobytes() == expected.tobytes()


MIXED = [
    (WORDS, 7),
    (UNIFORM64, 9),
    (UNIFORM, 5),
    (NORMAL, 11),
    (NORMAL64, 3),
    (WORDS, 1),
    ("curandGenerateLogNormal", 2),
    (NORMAL64, 262144),
    ("curandGenerateLogNormalDouble", 6),
    (WORDS, 300000),
    (UNIFORM64, 262143),
    (UNIFORM, 2),
    (NORMAL, 300001),
]


@pytest.mark.parametrize("seed", [0, 1234, 2**64 - 3])
@pytest.mark.parametrize("offset", [0, 1, 262143, 262144 * 3 + 777, (1 << 40) + 5, (1 << 60) + 6])
def test_the_model_of_philox_is_the_library(seed, offset, library, monkeypatch):
    """Every function, mixed, in calls that end anywhere in a round, and for more than a round."""
    expected = [Generator(PHILOX, seed, offset=offset)]
    drawn_by_library = [expected[0].draw(name, count) for name, count in MIXED]
    monkeypatch.setattr(host, "installed", lambda: None)
    model = Generator(PHILOX, seed, offset=offset)
    for (name, count), wanted in zip(MIXED, drawn_by_library, strict=True):
        assert_alike(name, model.draw(name, count), wanted)


@pytest.mark.parametrize("name", [each for each, draw in DRAWS.items() if draw.is_normal])
def test_the_model_has_the_librarys_mean_and_deviation(name, library, monkeypatch):
    expected = Generator(PHILOX).draw(name, 1000, 1.5, 0.25)
    monkeypatch.setattr(host, "installed", lambda: None)
    found = Generator(PHILOX).draw(name, 1000, 1.5, 0.25)
    assert_alike(name, found, expected)
    assert 1.4 < np.mean(np.log(found) if "Log" in name else found) < 1.6


@pytest.mark.parametrize(("dimensions", "offset"), [(1, 0), (2, 1), (3, 1000), (1000, 7)])
@pytest.mark.parametrize("name", [each for each in DRAWS if each not in ("curandGenerateLongLong", POISSON)])
def test_the_model_of_sobol_is_the_library(name, dimensions, offset, library, monkeypatch):
    options, counts = {"dimensions": dimensions, "offset": offset}, [5 * dimensions, dimensions, 300 * dimensions]
    if not offset and DRAWS[name].is_normal:
        options["offset"] = 1  # a library of the host and one of the device need not agree on the tail at 0
    generator = Generator(SOBOL32, **options)
    expected = [generator.draw(name, count) for count in counts]
    monkeypatch.setattr(host, "installed", lambda: None)
    model = Generator(SOBOL32, **options)
    for count, wanted in zip(counts, expected, strict=True):
        assert_alike(name, model.draw(name, count), wanted)


def test_a_quasi_result_is_one_dimension_after_the_other(either):
    points = drawn(SOBOL32, WORDS, 12, dimensions=3).reshape(3, 4)
    assert tuple(points[0]) == FIRST[SOBOL32]
    assert points[:, 1].tolist() == [1 << 31] * 3


@pytest.mark.parametrize("kind", [each for each in Kind if each not in (0, PHILOX, SOBOL32, 200)], ids=lambda k: k.name)
def test_a_kind_that_needs_the_library_is_refused_by_name_without_it(kind, hidden, capfd):
    number = c_void_p(7)
    assert curand.curandCreateGenerator.status(byref(number), kind) == UNSUPPORTED
    assert number.value == 7
    name = "CURAND_RNG_PSEUDO_XORWOW" if kind == 100 else kind.name
    assert capfd.readouterr().err.startswith(f"atomr simulated GPU: {name} is not supported")


@pytest.mark.parametrize("kind", [PHILOX, SOBOL32])
def test_poisson_numbers_need_the_library(kind, hidden, capfd):
    generator, place = Generator(kind), helper.allocate(64)
    helper.write(place, bytes([JUNK]) * 64)
    assert generator.status(POISSON, place, 4, 3.0) == UNSUPPORTED
    assert f"curandGeneratePoisson of {kind.name}" in capfd.readouterr().err
    assert generator.status(POISSON, place, 4, -3.0) == Status.CURAND_STATUS_OUT_OF_RANGE
    assert helper.read(place, 64) == bytes([JUNK]) * 64
    assert tuple(generator.words(4)) == FIRST[kind]


def test_the_library_is_found_as_everywhere_and_a_wrong_place_is_as_none():
    code = """
        from atomr_cuda import curand
        begin()
        number = c_void_p()
        print(curand.curandCreateGenerator.status(byref(number), 101), curand.curandCreateGenerator.status(number, 161))
    """
    done = run_in_process(code, ATOMR_TRIO_CURAND_PATH="/nowhere")
    assert done.stdout.split() == [str(int(UNSUPPORTED)), "0"]


# Positions.

ROWS = {
    (XORWOW, DEFAULT): {
        WORDS: (1, 1),
        UNIFORM: (1, 1),
        UNIFORM64: (1, 2),
        NORMAL: (2, 2),
        NORMAL64: (2, 4),
        POISSON: (1, 1),
    },
    (MRG, DEFAULT): {
        WORDS: (1, 1),
        UNIFORM: (1, 1),
        UNIFORM64: (1, 1),
        NORMAL: (2, 2),
        NORMAL64: (2, 2),
        POISSON: (1, 1),
    },
    (PHILOX, DEFAULT): {
        WORDS: (1, 1),
        UNIFORM: (1, 1),
        UNIFORM64: (1, 2),
        NORMAL: (1, 1),
        NORMAL64: (1, 2),
        POISSON: (1, 1),
    },
}
ROWS[XORWOW, LEGACY] = ROWS[XORWOW, DEFAULT]
ROWS[MRG, LEGACY] = ROWS[MRG, DEFAULT]
"""Numbers that a unit gives, and words that it takes of its slot."""


_SLOW = [pytest.mark.sweep]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "ordering"), [pytest.param(*each, marks=_SLOW if each == (MRG, DEFAULT) else ()) for each in ROWS]
)
def test_an_offset_restores_a_stream_where_every_slot_has_moved_alike(kind, ordering, library):
    """Behind a round of units; behind a part of one where a unit is a word. Otherwise it is wrong from one place on."""
    slots = 4096 if (kind, ordering) == (MRG, LEGACY) else T[kind]
    for name, (numbers, words) in ROWS[kind, ordering].items():
        for units in (1, slots - 1, slots, slots + slots // 2):
            generator = Generator(kind, ordering=ordering)
            generator.draw(name, units * numbers)
            rounds, slot = divmod(units, slots)
            following = generator.draw(name, (slots + 64) * numbers)
            restored = Generator(kind, ordering=ordering, offset=words * rounds * slots + slot)
            found = restored.draw(name, (slots + 64) * numbers)
            different = np.flatnonzero(found != following)
            # The four slots of a thread of Philox move together, when the last one is taken.
            alike = slot == 0 or (kind is PHILOX and slot < 4)
            if words == 1 or alike:
                assert different.size == 0, (name, units)
            else:
                assert different[0] == (slots - slot) * numbers, (name, units)
            generator.end()
            restored.end()


@pytest.mark.parametrize("kind", [XORWOW, MRG, MTGP, PHILOX], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", [WORDS, UNIFORM, UNIFORM64, NORMAL, NORMAL64, POISSON])
def test_two_calls_give_the_numbers_of_one(kind, name, library):
    whole = drawn(kind, name, 10_000, ordering=QUICK.get(kind))
    for cut in (2, 1000, 4096):
        generator = Generator(kind, ordering=QUICK.get(kind))
        pieces = [generator.draw(name, cut), generator.draw(name, 10_000 - cut)]
        assert np.concatenate(pieces).tobytes() == whole.tobytes()


@pytest.mark.parametrize("name", [WORDS, UNIFORM, UNIFORM64, NORMAL, NORMAL64])
def test_two_calls_of_philox_give_the_numbers_of_one_at_any_cut(name, either):
    whole = drawn(PHILOX, name, 263_000)
    for cut in (1, 2, 3, 5, 262_143, 262_145):
        generator = Generator(PHILOX)
        pieces = [generator.draw(name, cut), generator.draw(name, 263_000 - cut)]
        assert np.concatenate(pieces).tobytes() == whole.tobytes()


@pytest.mark.parametrize("kind", [SOBOL32, SCRAMBLED32, SOBOL64, SCRAMBLED64], ids=lambda kind: kind.name)
def test_an_offset_of_a_quasi_kind_counts_points(kind, library):
    generator = Generator(kind, dimensions=3)
    generator.draw(UNIFORM, 3 * 1000)
    restored = Generator(kind, dimensions=3, offset=1000)
    assert restored.draw(UNIFORM64, 300).tobytes() == generator.draw(UNIFORM64, 300).tobytes()


def test_a_setting_begins_anew_at_the_offset(either):
    generator = Generator(PHILOX, offset=100)
    first = generator.words(50)
    curand.curandSetPseudoRandomGeneratorSeed(generator.number, 1234)
    assert generator.words(50).tobytes() == first.tobytes()
    curand.curandSetGeneratorOrdering(generator.number, LEGACY)
    assert generator.words(50).tobytes() == first.tobytes()
    curand.curandGenerateSeeds(generator.number)
    assert generator.words(50).tobytes() != first.tobytes(), "it has a state, and goes on"
    curand.curandSetGeneratorOffset(generator.number, 0)
    assert generator.words(150)[100:].tobytes() == first.tobytes()


def test_a_mersenne_twister_keeps_its_place_behind_a_new_seed(library):
    """As two H100s have it: it begins as many numbers late as it has drawn, whatever these were."""
    fresh = drawn(MTGP, UNIFORM, 100)
    generator = Generator(MTGP)
    for name in (UNIFORM64, NORMAL, NORMAL64):
        generator.draw(name, 2)
    curand.curandSetPseudoRandomGeneratorSeed(generator.number, 1234)
    assert generator.draw(UNIFORM, 40).tobytes() == fresh[6:46].tobytes()
    curand.curandSetPseudoRandomGeneratorSeed(generator.number, 1234)
    curand.curandGenerateSeeds(generator.number)
    assert generator.draw(UNIFORM, 40).tobytes() == fresh[46:86].tobytes()
    generator.end()


# What is refused.


def test_the_statuses_are_those_of_the_librarys_own_generators(library):
    place = helper.allocate(64)
    functions = curand.library.functions
    kinds = PSEUDO + QUASI
    assert (
        wrong_statuses(
            curand.curandCreateGenerator.status, lambda name, *rest: functions[name].status(*rest), place, kinds
        )
        == []
    )


def test_the_statuses_without_the_library(hidden, capfd):
    """The same, but for what is not supported."""
    place, functions = helper.allocate(64), curand.library.functions

    def status(name: str, *rest: object) -> int:
        found = functions[name].status(*rest)
        return 0 if found == UNSUPPORTED and name == POISSON else found

    kinds = (PHILOX, SOBOL32, Kind.CURAND_RNG_QUASI_DEFAULT)
    assert wrong_statuses(curand.curandCreateGenerator.status, status, place, kinds) == []


def test_a_generator_that_is_none_is_refused_by_every_function():
    functions = curand.library.functions
    assert without_a_generator(lambda name, *rest: functions[name].status(*rest)) == []
    generator = Generator(PHILOX)
    generator.end()
    assert generator.status(WORDS, helper.allocate(16), 4) == Status.CURAND_STATUS_NOT_INITIALIZED


def test_what_is_refused_writes_nothing_and_takes_no_numbers(library):
    generator, place = Generator(XORWOW), helper.allocate(64)
    helper.write(place, bytes([JUNK]) * 64)
    refused = [
        generator.status("curandGenerateLongLong", place, 4),
        generator.status(NORMAL, place, 3),
        generator.status(POISSON, place, 4, 0.0),
        generator.status(POISSON, place, 4, float("nan")),
    ]
    assert refused == [103, 105, 104, 104]
    driver.cuCtxSynchronize()
    assert helper.read(place, 64) == bytes([JUNK]) * 64
    assert tuple(generator.words(4)) == FIRST[XORWOW]


def test_no_numbers_are_always_drawn():
    """The library looks at nothing else."""
    for kind in (XORWOW, SOBOL64) if host.installed() else (PHILOX,):
        generator = Generator(kind)
        assert {generator.status(name, 0, 0) for name in DRAWS} == {0}


@pytest.mark.parametrize("kind", [MTGP, MT19937], ids=lambda kind: kind.name)
def test_a_twister_has_no_offset(kind, library):
    number = c_void_p()
    curand.curandCreateGenerator(byref(number), kind)
    assert curand.curandSetGeneratorOffset.status(number, 5) == Status.CURAND_STATUS_TYPE_ERROR
    accepted = {each: curand.curandSetGeneratorOrdering.status(number, each) for each in (100, 101, 102, 103, 104)}
    assert accepted == {100: 0, 101: 0, 102: 104, 103: 0, 104: 104 if kind is MT19937 else 0}


WILD = """
    from atomr_cuda import curand
    begin()
    number, on, place = c_void_p(), stream(), allocate(4096)
    curand.curandCreateGenerator(byref(number), {kind})
    curand.curandSetGeneratorOrdering(number, {ordering})
    curand.curandSetStream(number, on)
    curand.curandGenerateSeeds(number)
    def draw(address):
        print(curand.{name}.status(number, address, {count}, *{parameters}), cuStreamSynchronize.status(on), end=" ")
    draw(place + 2 * {size})
    draw({address})
    draw(place)
    print(curand.curandCreateGenerator.status(byref(number), {kind}))
"""


def wild(kind: int, name: str, address: str) -> list[int]:
    draw = DRAWS[name]
    size, ordering = draw.dtype.itemsize, int(QUICK.get(kind, DEFAULT))
    text = WILD.format(
        kind=int(kind),
        ordering=ordering,
        name=name,
        count=10,
        parameters=STANDARD[name],
        size=size,
        address=address,
    )
    return [*map(int, run_in_process(text).stdout.split())]


@pytest.mark.parametrize("name", [each for each, draw in DRAWS.items() if draw.is_normal])
@pytest.mark.parametrize("kind", [XORWOW, MRG], ids=lambda kind: kind.name)
def test_normal_numbers_that_are_stored_in_pairs_cost_the_context_at_an_odd_element(kind, name, library):
    """As on an H200: the call succeeds, and the fault comes with the stream."""
    odd = f"place + {DRAWS[name].dtype.itemsize}"
    assert wild(kind, name, odd) == [0, 0, 0, 716, 201, 716, 203]


@pytest.mark.parametrize(
    ("kind", "name"), [(XORWOW, WORDS), (XORWOW, UNIFORM64), (PHILOX, NORMAL), (PHILOX, NORMAL64), (MTGP, NORMAL)]
)
def test_other_numbers_may_lie_at_any_element(kind, name, library):
    generator, size = Generator(kind), DRAWS[name].dtype.itemsize
    place = helper.allocate(1024)
    assert generator.status(name, place + size, 10) == 0
    driver.cuCtxSynchronize()
    found = np.frombuffer(helper.read(place + size, 10 * size), DRAWS[name].dtype)
    assert found.tobytes() == drawn(kind, name, 10).tobytes()


@pytest.mark.parametrize(("address", "fault"), [("place + 2", 716), ("0", 700), ("place + 4088", 700)])
def test_a_wild_address_costs_the_context(address, fault):
    assert wild(PHILOX, WORDS, address) == [0, 0, 0, fault, 201, fault, 203]


# Streams.


@contextlib.contextmanager
def held(stream: c_void_p) -> Iterator[None]:
    """Nothing that is queued on the stream inside is done before the end."""
    word, other = helper.allocate(8), helper.stream()
    driver.cuStreamWaitValue64(stream, word, 1, driver.CU_STREAM_WAIT_VALUE_GEQ)
    try:
        yield
    finally:
        driver.cuStreamWriteValue64(other, word, 1, 0)
        driver.cuStreamSynchronize(stream)


def test_numbers_are_those_of_the_call_and_come_when_the_stream_comes_to_it(either):
    """Two streams that finish in the other order, and copies before and behind."""
    late, early = Generator(PHILOX), helper.stream()
    curand.curandGenerateSeeds(late.number)
    places = [helper.allocate(16) for _ in range(3)]
    for place in places:
        helper.write(place, bytes(16))
    with held(late.stream):
        driver.cuMemsetD8Async(places[0], 0xFF, 16, late.stream)
        assert late.status(WORDS, places[0], 4) == 0
        driver.cuMemcpyDtoDAsync(places[2], places[0], 16, late.stream)
        assert driver.cuStreamQuery.status(late.stream) == driver.CUresult.CUDA_ERROR_NOT_READY
        curand.curandSetStream(late.number, early)
        assert late.status(WORDS, places[1], 4) == 0
        driver.cuStreamSynchronize(early)
        assert helper.read(places[0], 16) == bytes(16)
        second = helper.read(places[1], 16)
    words = drawn(PHILOX, WORDS, 8).tobytes()
    assert second == words[16:]
    assert [helper.read(places[each], 16) for each in (0, 2)] == [words[:16]] * 2


def test_a_destroyed_generator_still_finishes_its_draws(either):
    generator, place = Generator(SOBOL32), helper.allocate(16)
    with held(generator.stream):
        assert generator.status(WORDS, place, 4) == 0
        curand.curandDestroyGenerator(generator.number)
    assert tuple(np.frombuffer(helper.read(place, 16), np.uint32)) == FIRST[SOBOL32]


@pytest.mark.parametrize("what", ["a new offset", "a new seed", "another lambda"])
def test_a_draw_behind_a_setting_waits_for_the_stream(what, library):
    """A plain draw does not, as its return inside of ``held`` shows."""
    generator, place = Generator(PHILOX), helper.allocate(16)
    generator.draw(POISSON, 4, 3.0)
    order, called, context = [], threading.Event(), c_void_p()
    driver.cuCtxGetCurrent(byref(context))
    settings = {
        "a new offset": (curand.curandSetGeneratorOffset, 8, 3.0),
        "a new seed": (curand.curandSetPseudoRandomGeneratorSeed, 8, 3.0),
        "another lambda": (None, 0, 5.0),
    }
    setting, value, mean = settings[what]

    def draw() -> None:
        driver.cuCtxSetCurrent(context)
        called.set()
        assert generator.status(POISSON, place, 4, mean) == 0
        order.append("drawn")

    with held(generator.stream):
        assert generator.status(POISSON, place, 4, 3.0) == 0
        if setting is not None:
            setting(generator.number, value)
        thread = threading.Thread(target=draw)
        thread.start()
        called.wait()
        order.append("released")
    thread.join()
    assert order == ["released", "drawn"]


def begin_capture(stream: c_void_p) -> None:
    driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)


def state(stream: c_void_p) -> int:
    status = c_int(-1)
    driver.cuStreamIsCapturing(stream, byref(status))
    return status.value


def end_capture(stream: c_void_p) -> c_void_p:
    graph, executable = c_void_p(), c_void_p()
    driver.cuStreamEndCapture(stream, byref(graph))
    driver.cuGraphInstantiate(byref(executable), graph, 0)
    return executable


def launched(executable: c_void_p, place: int, size: int) -> bytes:
    driver.cuGraphLaunch(executable, None)
    driver.cuStreamSynchronize(None)
    return helper.read(place, size)


@pytest.mark.parametrize("name", [WORDS, NORMAL])
@pytest.mark.parametrize("kind", [XORWOW, MRG, MTGP, PHILOX], ids=lambda kind: kind.name)
def test_a_captured_draw_gives_its_numbers_once_and_others_from_then_on(kind, name, library):
    generator, place = Generator(kind, ordering=QUICK.get(kind)), helper.allocate(400)
    expected = drawn(kind, name, 400, ordering=QUICK.get(kind))
    helper.write(place, bytes(400))
    curand.curandGenerateSeeds(generator.number)
    begin_capture(generator.stream)
    assert generator.status(name, place, 100) == 0
    executable = end_capture(generator.stream)
    assert helper.read(place, 400) == bytes(400)
    found = [launched(executable, place, 400) for _ in range(3)]
    assert found[0] == expected[:100].tobytes()
    assert len({*found, *(part.tobytes() for part in expected.reshape(4, 100))}) == 6
    assert generator.draw(name, 100).tobytes() == expected[100:200].tobytes(), "the draw behind goes on"


def test_a_captured_draw_of_a_quasi_kind_gives_the_same_numbers_each_time(either):
    generator, place = Generator(SOBOL32), helper.allocate(400)
    expected = drawn(SOBOL32, WORDS, 200)
    begin_capture(generator.stream)
    assert generator.status(WORDS, place, 100) == 0
    executable = end_capture(generator.stream)
    assert {launched(executable, place, 400) for _ in range(3)} == {expected[:100].tobytes()}
    assert generator.words(100).tobytes() == expected[100:].tobytes()


@pytest.mark.parametrize(
    ("kind", "offset", "status"),
    [(PHILOX, None, 102), (XORWOW, None, 102), (MRG, None, 102), (MTGP, None, 201), (PHILOX, 8, 201), (XORWOW, 8, 201)],
)
def test_a_draw_that_must_make_its_state_voids_a_capture(kind, offset, status, library):
    """As on an H200: without a state it cannot allocate, and with another offset it must wait."""
    generator, place = Generator(kind), helper.allocate(64)
    helper.write(place, bytes(64))
    if offset is not None:
        curand.curandGenerateSeeds(generator.number)
    begin_capture(generator.stream)
    if offset is not None:
        curand.curandSetGeneratorOffset(generator.number, offset)
        assert state(generator.stream) == ACTIVE
    assert generator.status(WORDS, place, 4) == status
    assert state(generator.stream) == VOID
    graph = c_void_p()
    assert driver.cuStreamEndCapture.status(generator.stream, byref(graph)) == 901
    assert helper.read(place, 64) == bytes(64)
    first = generator.words(4)
    assert tuple(first) == (FIRST[kind] if offset is None else tuple(drawn(kind, WORDS, 12)[8:]))


# Generators.


@pytest.mark.parametrize(("kind", "size"), [(PHILOX, 4 << 20), (XORWOW, 48 * 4096)], ids=lambda each: str(each))
def test_a_state_takes_memory_from_the_first_draw_on(kind, size, library):
    """An H200 showed 32 MiB for eight generators of Philox, and 2 for eight of XORWOW."""
    free = helper.free_memory()
    number = c_void_p()
    curand.curandCreateGenerator(byref(number), kind)
    assert helper.free_memory() == free
    curand.curandGenerateSeeds(number)
    assert helper.free_memory() == free - size
    curand.curandSetPseudoRandomGeneratorSeed(number, 5)
    curand.curandGenerateSeeds(number)
    assert helper.free_memory() == free - size
    curand.curandDestroyGenerator(number)
    assert helper.free_memory() == free


def test_a_state_that_has_no_room_is_refused():
    code = """
        from atomr_cuda import curand
        begin()
        numbers = [c_void_p() for _ in range(3)]
        for number in numbers:
            curand.curandCreateGenerator(number, 161)
        print(*(curand.curandGenerateSeeds.status(number) for number in numbers))
        curand.curandDestroyGenerator(numbers[0])
        print(curand.curandGenerateSeeds.status(numbers[2]))
    """
    assert run_in_process(code, ATOMR_TRIO_SIM_MEMORY=str(9 << 20)).stdout.split() == ["0", "0", "102", "0"]


def test_a_generator_ends_with_its_context(context):
    generator, free = Generator(PHILOX), helper.free_memory()
    curand.curandGenerateSeeds(generator.number)
    driver.cuDevicePrimaryCtxRelease(0)
    assert generator.status(WORDS, 0, 4) == Status.CURAND_STATUS_NOT_INITIALIZED
    driver.cuCtxSetCurrent(None)
    assert curand.curandCreateGenerator.status(byref(c_void_p()), PHILOX) == Status.CURAND_STATUS_INITIALIZATION_FAILED
    helper.begin()
    assert helper.free_memory() == free


def test_a_generator_is_for_the_context_in_which_it_was_created(context):
    generator, place = Generator(PHILOX), helper.allocate(64)
    driver.cuCtxCreate_v2(other := c_void_p(), 0, 0)
    there = generator.status(WORDS, place, 4), curand.curandGenerateSeeds.status(generator.number)
    driver.cuCtxDestroy(other)
    driver.cuCtxSetCurrent(context)
    assert there == (Status.CURAND_STATUS_LAUNCH_FAILURE,) * 2
    assert tuple(generator.words(4)) == FIRST[PHILOX]


def test_a_generator_of_the_host_writes_to_the_host_at_once(either):
    number, words = c_void_p(), (c_uint * 6)()
    driver.cuCtxSetCurrent(None)
    curand.curandCreateGeneratorHost(byref(number), PHILOX)
    curand.curandSetPseudoRandomGeneratorSeed(number, 1234)
    curand.curandGenerate(number, ctypes.addressof(words), 4)
    assert tuple(words) == (*FIRST[PHILOX], 0, 0)
    curand.curandDestroyGenerator(number)
    assert curand.curandGenerateSeeds.status(number) == Status.CURAND_STATUS_NOT_INITIALIZED


# The library.


def test_the_library_says_who_it_is():
    version, part, parts = c_int(), c_int(), []
    for each in range(3):
        curand.curandGetProperty(each, part)
        parts.append(part.value)
    curand.curandGetVersion(version)
    assert version.value == parts[0] * 1000 + parts[1] * 100 + parts[2]


def test_every_function_of_the_table_is_there():
    assert set(counterpart._implementations) == set(curand.library.functions)


def test_tables_in_host_memory_are_the_librarys(library):
    functions = curand.library.functions
    assert first_tables(lambda name, *rest: functions[name].status(*rest)) == first_tables(
        lambda name, *rest: library[name](*rest)
    )


def test_tables_need_the_library_and_those_of_kernels_are_not_supported(hidden, capfd):
    vectors, table = POINTER(curand.curandDirectionVectors32_t)(), c_void_p()
    assert curand.curandGetDirectionVectors32.status(byref(vectors), 101) == UNSUPPORTED
    assert curand.curandCreatePoissonDistribution.status(3.0, byref(table)) == UNSUPPORTED
    assert curand.curandDestroyDistribution.status(None) == Status.CURAND_STATUS_NOT_INITIALIZED
    assert capfd.readouterr().err.count("is not supported") == 2


def test_calls_are_counted_and_faults_come_to_functions_by_name(either):
    generator, place = Generator(PHILOX), helper.allocate(64)
    before = atomr_sim.calls().get(WORDS, 0)
    atomr_sim.inject("curandGenerate:201:2")
    assert [generator.status(WORDS, place, 4) for _ in range(3)] == [0, 201, 0]
    assert atomr_sim.calls()[WORDS] == before + 3
    driver.cuCtxSynchronize()
    assert helper.read(place, 16) == drawn(PHILOX, WORDS, 8)[4:].tobytes(), "a call that failed took no numbers"


def test_words_of_other_processes_and_of_later_ones_are_the_same(either):
    word = c_uint64()
    first = drawn(PHILOX, WORDS, 2, seed=99)
    ctypes.memmove(byref(word), first.ctypes.data, 8)
    code = """
        from atomr_cuda import curand
        begin()
        number, place = c_void_p(), allocate(16)
        curand.curandCreateGenerator(number, 161)
        curand.curandSetPseudoRandomGeneratorSeed(number, 99)
        curand.curandGenerate(number, place, 2)
        cuCtxSynchronize()
        print(word(place))
    """
    assert int(run_in_process(code).stdout) == word.value
