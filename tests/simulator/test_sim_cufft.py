"""The simulated cuFFT through its table, against numpy in double precision.

Every array lies at its own places in a buffer of junk that must stay as it was, and so does every work area.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator
from ctypes import byref, c_int, c_longlong, c_size_t, c_void_p
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

import atomr_sim
from atomr_cuda import cufft, driver
from atomr_cuda.cufft import cufftProperty, cufftResult as Status, cufftType, cufftXtWorkAreaPolicy as Policy
from atomr_cuda.library_types import cudaDataType as Type
from atomr_sim.libraries.cufft.functions import counterpart
from support import sim_process as helper
from support.cufft import wrong_statuses
from support.sim_process import run_in_process
from support.strategies import examples

pytestmark = pytest.mark.sim_only

FORWARD, INVERSE = cufft.CUFFT_FORWARD, cufft.CUFFT_INVERSE
JUNK, GUARD = 0xA5, 64


@dataclass(frozen=True)
class Kind:
    """The types of a transform."""

    name: str
    word: type
    source: int
    target: int

    @property
    def wide(self) -> int:
        """The complex type, which is that of the computation."""
        return max(self.source, self.target, key=lambda each: Type(each).name.startswith("CUDA_C"))

    @property
    def complex_source(self) -> bool:
        return self.source == self.wide

    @property
    def complex_target(self) -> bool:
        return self.target == self.wide

    @property
    def is_real(self) -> bool:
        return self.source != self.target

    @property
    def plain(self) -> int | None:
        """The number of the type for the functions that take one; None for half precision."""
        return cufftType.__members__.get(f"CUFFT_{self.name}")

    @property
    def granule(self) -> int:
        return 2 * np.dtype(self.word).itemsize

    @property
    def tolerance(self) -> float:
        """How far a result may be off: as much as one rounding, and a little for what is computed before it."""
        return {"f": 2.0**-24, "d": 1e-14, "e": 2.0**-11}.get(np.dtype(self.word).char, 2.0**-8) * 1.01

    def room(self, lengths: tuple[int, ...], *, source: bool) -> tuple[int, ...]:
        """The lengths of the input or of the output."""
        is_complex = self.complex_source if source else self.complex_target
        return (*lengths[:-1], lengths[-1] // 2 + 1) if is_complex and self.is_real else lengths


def _kinds(names: tuple[str, str, str], word: type, real: int, wide: int) -> dict[str, Kind]:
    sides = ((wide, wide), (real, wide), (wide, real))
    return {name: Kind(name, word, *types) for name, types in zip(names, sides, strict=True)}


FULL = {
    **_kinds(("C2C", "R2C", "C2R"), np.float32, Type.CUDA_R_32F, Type.CUDA_C_32F),
    **_kinds(("Z2Z", "D2Z", "Z2D"), np.float64, Type.CUDA_R_64F, Type.CUDA_C_64F),
}
HALF = {
    **_kinds(("half C2C", "half R2C", "half C2R"), np.float16, Type.CUDA_R_16F, Type.CUDA_C_16F),
    **_kinds(("brain C2C", "brain R2C", "brain C2R"), ml_dtypes.bfloat16, Type.CUDA_R_16BF, Type.CUDA_C_16BF),
}
KINDS = FULL | HALF


@dataclass(frozen=True)
class Side:
    """Where a side lies: embedding lengths, stride, distance."""

    embedding: tuple[int, ...]
    stride: int
    distance: int

    def places(self, lengths: tuple[int, ...], batch: int, is_complex: bool) -> np.ndarray:
        """The place of each real number, by the formula of the documentation."""
        axes = np.ix_(*map(np.arange, (batch, *lengths)))
        index = axes[1]
        for axis, room in zip(axes[2:], self.embedding[1:], strict=True):
            index = index * room + axis
        index = axes[0] * self.distance + index * self.stride
        return index[..., None] * 2 + [0, 1] if is_complex else index


class Memory:
    """Real numbers on the device: those of arrays at their places, junk between and around them."""

    def __init__(self, word: type, *places: np.ndarray) -> None:
        self.places = [each + GUARD for each in places]
        size = max(each.max() for each in self.places) + 1 + GUARD
        self.bytes = np.full(size * np.dtype(word).itemsize, JUNK, np.uint8)
        self.words = self.bytes.view(word)
        self.base = helper.allocate(self.bytes.size)
        self.address = self.base + GUARD * self.words.itemsize
        helper.write(self.base, self.bytes.tobytes())

    def put(self, values: np.ndarray) -> np.ndarray:
        """Round values and write them as the first array; returns what was written, in double precision."""
        words = np.ascontiguousarray(values).view(np.float64).reshape(self.places[0].shape)
        self.words[self.places[0]] = words
        helper.write(self.base, self.bytes.tobytes())
        return joined(self.words[self.places[0]], is_complex=values.dtype.kind == "c")

    def get(self) -> np.ndarray:
        """The words of the last array, after a check that nothing was written but the arrays."""
        now = np.frombuffer(helper.read(self.base, self.bytes.size), self.words.dtype)
        beside = np.ones(now.shape, bool)
        for places in self.places:
            beside[places] = False
        assert now[beside].tobytes() == self.words[beside].tobytes(), "bytes outside of the layout were written"
        return now[self.places[-1]]

    def free(self) -> None:
        driver.cuMemFree(self.base)


def joined(words: np.ndarray, *, is_complex: bool) -> np.ndarray:
    """Numbers in double precision from the words that they consist of."""
    wide = np.ascontiguousarray(words, np.float64)
    return wide.view(np.complex128)[..., 0] if is_complex else wide


def expected(kind: Kind, values: np.ndarray, lengths: tuple[int, ...], direction: int = FORWARD) -> np.ndarray:
    axes = range(1, values.ndim)
    if not kind.complex_source:
        return np.fft.rfftn(values, axes=axes)
    if not kind.complex_target:
        return np.fft.irfftn(values, lengths, axes, norm="forward")
    return np.fft.fftn(values, axes=axes) if direction == FORWARD else np.fft.ifftn(values, axes=axes, norm="forward")


def random(rng: np.random.Generator, kind: Kind, lengths: tuple[int, ...], batch: int) -> np.ndarray:
    shape = (batch, *kind.room(lengths, source=True))
    values = rng.uniform(-1, 1, shape)
    if kind.complex_source and not kind.complex_target:
        return np.fft.rfftn(rng.uniform(-1, 1, (batch, *lengths)), axes=range(1, len(lengths) + 1), norm="ortho")
    return values + 1j * rng.uniform(-1, 1, shape) if kind.complex_source else values


class Plan:
    """A plan on a stream of its own. It has a work area of its own only if ``auto`` is set."""

    def __init__(
        self,
        kind: Kind,
        lengths: tuple[int, ...],
        batch: int = 1,
        sides: tuple[Side, Side] | None = None,
        *,
        auto: bool = False,
    ) -> None:
        self.kind, self.lengths, self.batch, self.sides = kind, lengths, batch, sides
        self.number, self.work, self.stream = c_int(-7), c_size_t(), helper.stream()
        cufft.cufftCreate(self.number)
        cufft.cufftSetStream(self.number, self.stream)
        cufft.cufftSetAutoAllocation(self.number, auto)
        self.status = self.describe("MakePlan")

    def describe(self, verb: str) -> int:
        """Call the function of this name with 64-bit sizes that describes the transform; returns the status."""
        count = len(self.lengths)
        numbers = c_longlong * count
        source, target = (
            (numbers(*side.embedding), side.stride, side.distance) if side else (None, 0, 0)
            for side in self.sides or (None, None)
        )
        first = (self.number, count, numbers(*self.lengths))
        if self.kind.plain is not None:
            function = cufft.library.functions[f"cufft{verb}Many64"]
            return function.status(*first, *source, *target, self.kind.plain, self.batch, byref(self.work))
        function, types = cufft.library.functions[f"cufftXt{verb}Many"], (self.kind.source, self.kind.target)
        sides = (*source, types[0], *target, types[1])
        return function.status(*first, *sides, self.batch, byref(self.work), self.kind.wide)

    def places(self, *, in_place: bool = False) -> list[np.ndarray]:
        """The places of the input and of the output."""
        found = []
        for number in (0, 1):
            is_complex = self.kind.complex_source if number == 0 else self.kind.complex_target
            room = embedding = self.kind.room(self.lengths, source=number == 0)
            if in_place and not is_complex:
                embedding = (*room[:-1], 2 * (room[-1] // 2 + 1))
            side = self.sides[number] if self.sides else Side(embedding, 1, math.prod(embedding))
            found.append(side.places(room, self.batch, is_complex))
        return found

    def execute(self, source: int, target: int, direction: int = FORWARD) -> int:
        if self.kind.plain is None:
            return cufft.cufftXtExec.status(self.number, source, target, direction)
        function = cufft.library.functions[f"cufftExec{self.kind.name}"]
        return function.status(self.number, source, target, *([] if self.kind.is_real else [direction]))

    @contextlib.contextmanager
    def area(self) -> Iterator[None]:
        """A work area of exactly the size that the plan asked for; all of it is used, and nothing around it."""
        if not self.work.value:
            yield
            return
        memory = Memory(np.uint8, np.arange(self.work.value))
        cufft.cufftSetWorkArea(self.number, memory.address)
        yield
        assert memory.get().min() == 0xFF
        memory.free()

    def run(self, values: np.ndarray, direction: int = FORWARD, *, in_place: bool = False) -> np.ndarray:
        """Transform values; check the result, what became of the input, and all that lies beside.

        Returns the words of the result.
        """
        assert self.status == 0
        places = self.places(in_place=in_place)
        memories = [Memory(self.kind.word, *each) for each in ([places] if in_place else [[side] for side in places])]
        source, target = memories[0], memories[-1]
        read = source.put(values)
        with self.area():
            assert self.execute(source.address, target.address, direction) == 0
            driver.cuStreamSynchronize(self.stream)
        words = target.get()
        result = joined(words, is_complex=self.kind.complex_target)
        wanted = expected(self.kind, read, self.lengths, direction)
        assert np.linalg.norm(result - wanted) <= self.kind.tolerance * np.linalg.norm(wanted)
        if not in_place:
            lost = self.kind.complex_source and not self.kind.complex_target
            left, before = source.get(), source.words[source.places[0]]
            assert left.tobytes() == (b"\xff" * before.nbytes if lost else before.tobytes())
        for memory in memories:
            memory.free()
        return words

    def end(self) -> None:
        cufft.cufftDestroy(self.number)
        driver.cuStreamDestroy(self.stream)


@pytest.fixture(autouse=True)
def context():
    handle = helper.begin()
    yield handle
    driver.cuCtxSetCurrent(handle)
    while driver.cuDevicePrimaryCtxRelease.status(0) == 0:
        pass
    driver.cuCtxSetCurrent(None)


@pytest.fixture
def rng(request):
    return np.random.default_rng(sum(request.node.name.encode()))


# Results.

LENGTHS = st.one_of(st.integers(1, 9), st.sampled_from([12, 16, 131]))
POWERS = st.sampled_from([1, 2, 4, 8, 16])


@st.composite
def sides(draw: st.DrawFn, room: tuple[int, ...], batch: int, *, strided: bool = True) -> Side:
    """A side whose elements have places of their own: transforms one behind the other, or interleaved."""
    embedding = (draw(st.integers(-1, 9)), *(length + draw(st.integers(0, 2)) for length in room[1:]))
    stride = draw(st.integers(1, 3)) if strided else 1
    span = room[0] * math.prod(embedding[1:])
    if strided and draw(st.booleans()):
        return Side(embedding, stride * batch, stride)
    return Side(embedding, stride, span * stride + draw(st.integers(0, 5)))


@st.composite
def described(draw: st.DrawFn, kind: Kind) -> tuple[tuple[int, ...], int, tuple[Side, Side]]:
    """Lengths, a number of transforms, and the layouts of both sides."""
    half = kind.plain is None
    lengths = draw(st.lists(POWERS if half else LENGTHS, min_size=1, max_size=3).filter(lambda n: math.prod(n) < 2000))
    batch = draw(st.integers(1, 3))
    layouts = (
        draw(sides(kind.room(tuple(lengths), source=source), batch, strided=not half or is_complex))
        for source, is_complex in ((True, kind.complex_source), (False, kind.complex_target))
    )
    return tuple(lengths), batch, tuple(layouts)


@examples(0.25)
@given(st.data())
@pytest.mark.parametrize("name", KINDS)
def test_every_layout(name, data):
    kind = KINDS[name]
    lengths, batch, layouts = data.draw(described(kind))
    direction = data.draw(st.sampled_from([FORWARD, INVERSE]))
    values = random(np.random.default_rng(data.draw(st.integers(0, 9))), kind, lengths, batch)
    plan = Plan(kind, lengths, batch, layouts)
    plan.run(values, direction)
    plan.end()


SHAPES = [(1,), (2,), (7,), (8,), (300,), (131,), (4, 6), (5, 3), (1, 1), (2, 3, 4), (3, 2, 5), (4, 4, 1)]


@pytest.mark.parametrize("direction", [FORWARD, INVERSE])
@pytest.mark.parametrize("name", FULL)
def test_packed_arrays_in_place_and_out_of_place(name, rng, direction):
    """In place, each row of the real side has room for the complex elements, also in a batch."""
    kind = FULL[name]
    for lengths, batch, in_place in itertools.product(SHAPES, (1, 3), (False, True)):
        plan = Plan(kind, lengths, batch)
        plan.run(random(rng, kind, lengths, batch), direction, in_place=in_place)
        plan.end()


@pytest.mark.parametrize("name", KINDS)
def test_given_layouts_in_place(name, rng):
    """Real and complex elements of one transform begin at one address, and rows are as far apart."""
    kind = KINDS[name]
    for lengths, batch in itertools.product([(8,), (4, 8), (2, 4, 2)], (1, 2)):
        half = lengths[-1] // 2 + 1 if kind.is_real else lengths[-1]
        wide = Side((*lengths[:-1], half + 1), 1, math.prod(lengths[:-1]) * (half + 1) + 2)
        real = Side((*lengths[:-1], 2 * (half + 1)), 1, 2 * wide.distance)
        layouts = tuple(wide if flag else real for flag in (kind.complex_source, kind.complex_target))
        plan = Plan(kind, lengths, batch, layouts)
        plan.run(random(rng, kind, lengths, batch), in_place=True)
        plan.end()


@pytest.mark.parametrize("name", FULL)
def test_nothing_is_scaled(name):
    """A transform of ones is their number, at the first place."""
    kind, lengths = FULL[name], (6, 10)
    values = np.zeros((1, *kind.room(lengths, source=True)), np.complex128 if kind.complex_source else np.float64)
    values[...] = 1 if kind.complex_target else 0
    values[0, 0, 0] = 1
    result = joined(Plan(kind, lengths).run(values), is_complex=kind.complex_target)
    if kind.complex_target:
        assert (result[0, 0, 0], np.count_nonzero(result)) == (60, 1)
    else:
        assert np.array_equal(result, np.ones((1, *lengths)))


@pytest.mark.parametrize("name", ["C2R", "Z2D"])
@pytest.mark.parametrize("lengths", [(8,), (9,), (4, 6), (3, 4, 5)])
def test_the_result_of_half_a_spectrum_that_is_not_one_of_real_numbers_is_not_that_of_numpy(name, lengths, rng):
    kind = FULL[name]
    values = random(rng, kind, lengths, 2)
    for place in {0, -1} if lengths[-1] % 2 == 0 else {0}:
        for index, added in (((0,) * (len(lengths) - 1), 5j), ((-1,) * (len(lengths) - 1), 1 + 2j)):
            wrong = values.copy()
            wrong[(1, *index, place)] += added
            with pytest.raises(AssertionError):
                Plan(kind, lengths, 2).run(wrong)


def test_single_precision_is_rounded_once(rng):
    """numpy's own result in double precision, rounded: equal but for ties that fall to the other side."""
    kind, lengths = FULL["C2C"], (1024,)
    values = random(rng, kind, lengths, 1).astype(np.complex64).astype(np.complex128)
    found = Plan(kind, lengths).run(values)
    wanted = np.fft.fft(values).astype(np.complex64).view(np.float32).reshape(found.shape)
    assert np.count_nonzero(found != wanted) <= 2


@pytest.mark.parametrize("name", FULL)
def test_the_function_that_takes_the_types_gives_the_same_bits(name, rng):
    kind, lengths = FULL[name], (6, 15)
    values = random(rng, kind, lengths, 2)
    of_xt = Kind(f"xt {name}", kind.word, kind.source, kind.target)
    assert of_xt.plain is None
    assert Plan(of_xt, lengths, 2).run(values).tobytes() == Plan(kind, lengths, 2).run(values).tobytes()


# Work areas.


def sizes(plan: Plan) -> list[int]:
    """The size from every function that tells it and describes the transform in full."""
    found = [plan.work.value]
    assert plan.describe("GetSize") == 0
    found.append(plan.work.value)
    cufft.cufftGetSize(plan.number, plan.work)
    return [*found, plan.work.value]


@pytest.mark.parametrize("name", KINDS)
def test_the_size_of_a_work_area_depends_on_the_transform_alone(name):
    """Nothing for short lengths, a copy of the data for long ones, more for a large prime."""
    kind = KINDS[name]
    for batch in (1, 3):
        half = 257 if kind.is_real else 512
        assert set(sizes(Plan(kind, (256,), batch))) == {0}
        assert set(sizes(Plan(kind, (64, 128), batch))) == {0}
        assert set(sizes(Plan(kind, (512,), batch))) == {half * batch * kind.granule}
        assert set(sizes(Plan(kind, (2, 512), batch))) == {2 * half * batch * kind.granule}
        if kind.plain is not None:
            prime = 66 if kind.is_real else 131
            assert set(sizes(Plan(kind, (131,), batch))) == {4 * prime * batch * kind.granule}
            assert set(sizes(Plan(kind, (127,), batch))) == {0}


NARROW = {
    "1d": ((512, cufftType.CUFFT_C2C, 3), 512 * 3 * 8),
    "2d": ((512, 2, cufftType.CUFFT_D2Z), 512 * 2 * 16),
    "3d": ((2, 512, 3, cufftType.CUFFT_C2R), 2 * 512 * 2 * 8),
}


@pytest.mark.parametrize("suffix", [*NARROW, "Many"])
def test_every_function_that_describes_a_transform_says_the_same(suffix):
    """A plan of one step has its work area."""
    n = (c_int * 2)(512, 2)
    of_many = (2, n, n, 2, 2100, n, 1, 1100, int(cufftType.CUFFT_C2C), 3)
    described, expected_size = NARROW.get(suffix, (of_many, 512 * 2 * 3 * 8))
    functions, plan, told = cufft.library.functions, c_int(), []
    cufft.cufftCreate(plan)
    for name, first in (("Estimate", ()), ("GetSize", (plan,)), ("MakePlan", (plan,))):
        functions[f"cufft{name}{suffix}"](*first, *described, byref(work := c_size_t()))
        told.append(work.value)
    free = helper.free_memory()
    functions[f"cufftPlan{suffix}"](byref(plan), *described)
    assert free - helper.free_memory() == expected_size
    cufft.cufftGetSize(plan, work)
    assert [*told, work.value] == [expected_size] * 4


def test_a_plan_of_one_step_computes(rng):
    plan, values = c_int(), rng.uniform(-1, 1, (3, 512)).astype(np.float32)
    cufft.cufftPlan1d(plan, 512, cufftType.CUFFT_R2C, 3)
    source, target = helper.allocate(values.nbytes), helper.allocate(3 * 257 * 8)
    helper.write(source, values.tobytes())
    cufft.cufftExecR2C(plan, source, target)
    driver.cuCtxSynchronize()
    found = np.frombuffer(helper.read(target, 3 * 257 * 8), np.complex64).reshape(3, 257)
    assert np.allclose(found, np.fft.rfft(values), rtol=0, atol=1e-5)


def test_a_plan_that_is_not_made_in_one_step_is_gone_and_its_number_not_given():
    before, plan, after = Plan(FULL["C2C"], (8,)), c_int(-7), c_int()
    assert cufft.cufftPlan1d.status(plan, 0, cufftType.CUFFT_C2C, 1) == Status.CUFFT_INVALID_SIZE
    assert plan.value == -7
    cufft.cufftCreate(after)
    between = range(before.number.value + 1, after.value)
    assert {cufft.cufftSetStream.status(number, None) for number in between} == {Status.CUFFT_INVALID_PLAN}


def test_a_plan_allocates_its_work_area_and_frees_it_once_it_has_another(rng):
    kind, free = FULL["C2C"], helper.free_memory()
    plan = Plan(kind, (512,), auto=True)
    assert free - helper.free_memory() == plan.work.value == 4096
    source, target = (Memory(kind.word, each) for each in plan.places())
    source.put(random(rng, kind, (512,), 1))
    assert plan.execute(source.address, target.address) == 0
    cufft.cufftDestroy(plan.number)
    assert np.isfinite(target.get()).all()
    source.free()
    target.free()
    assert helper.free_memory() == free
    plan = Plan(kind, (512,), auto=True)
    cufft.cufftSetWorkArea(plan.number, None)
    assert helper.free_memory() == free


def test_a_work_area_that_does_not_fit_is_refused_and_the_plan_can_still_be_made():
    kind = FULL["Z2Z"]
    plan = Plan(kind, (1 << 30,), 100, auto=True)
    assert plan.status == Status.CUFFT_ALLOC_FAILED
    plan.lengths, plan.batch = (512,), 1
    assert plan.describe("MakePlan") == 0
    assert Plan(kind, (1 << 30,), 100).work.value == 100 << 34


def test_a_plan_without_the_work_area_that_it_needs_is_not_executed():
    kind = FULL["C2C"]
    plan, area = Plan(kind, (512,)), helper.allocate(4096)
    place = helper.allocate(4096)
    assert plan.execute(place, place) == Status.CUFFT_NO_WORKSPACE
    cufft.cufftSetWorkArea(plan.number, area)
    assert plan.execute(place, place) == 0
    cufft.cufftSetWorkArea(plan.number, None)
    assert plan.execute(place, place) == Status.CUFFT_NO_WORKSPACE
    assert Plan(kind, (256,)).execute(place, place) == 0


@pytest.mark.parametrize("overlapped", ["input", "output", "neither"])
def test_an_array_in_the_work_area_is_lost(overlapped, rng):
    kind, size = FULL["C2C"], 512 * 8
    plan, base = Plan(kind, (512,)), helper.allocate(3 * size)
    helper.write(base, np.ones(3 * 512, np.complex64).tobytes())
    source, target, area = {
        "input": (base + size, base, base + 2 * size - 8),
        "output": (base, base + size, base + 2 * size - 8),
        "neither": (base, base + size, base + 2 * size),
    }[overlapped]
    cufft.cufftSetWorkArea(plan.number, area)
    assert plan.execute(source, target) == 0
    driver.cuStreamSynchronize(plan.stream)
    found = np.frombuffer(helper.read(target, size), np.complex64)
    assert np.isnan(found).any() == (overlapped != "neither")


def test_a_shared_work_area_serves_plans_of_one_stream(rng):
    """Each execution leaves junk in it, which the next one does not need."""
    kinds = [FULL[name] for name in ("C2C", "Z2D", "R2C")]
    plans = [Plan(kind, (600,), 2) for kind in kinds]
    area = helper.allocate(max(plan.work.value for plan in plans))
    for kind, plan in zip(kinds, plans, strict=True):
        cufft.cufftSetStream(plan.number, plans[0].stream)
        cufft.cufftSetWorkArea(plan.number, area)
        source, target = (Memory(kind.word, each) for each in plan.places())
        read = source.put(random(rng, kind, (600,), 2))
        assert plan.execute(source.address, target.address) == 0
        driver.cuStreamSynchronize(plans[0].stream)
        result = joined(target.get(), is_complex=kind.complex_target)
        assert np.allclose(result, expected(kind, read, (600,)), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("lengths", "policy", "limit", "status"),
    [
        ((512,), Policy.CUFFT_WORKAREA_MINIMAL, 0, Status.CUFFT_INVALID_SIZE),
        ((512,), Policy.CUFFT_WORKAREA_USER, 4095, Status.CUFFT_INVALID_SIZE),
        ((512,), Policy.CUFFT_WORKAREA_USER, 4096, 0),
        ((512,), Policy.CUFFT_WORKAREA_PERFORMANCE, 0, 0),
        ((256,), Policy.CUFFT_WORKAREA_MINIMAL, 0, 0),
        ((512,), 3, 0, Status.CUFFT_INVALID_VALUE),
    ],
)
def test_a_policy_that_would_need_another_algorithm_is_refused(lengths, policy, limit, status):
    plan, size = Plan(FULL["C2C"], lengths), c_size_t(limit)
    assert cufft.cufftXtSetWorkAreaPolicy.status(plan.number, policy, size) == status
    assert size.value == (limit if status else plan.work.value)


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


def test_a_transform_is_done_when_the_stream_comes_to_it():
    """It keeps its place among copies, with the work area that the plan had at the call."""
    plan = Plan(FULL["D2Z"], (512,))
    source, target, areas = helper.allocate(4096), helper.allocate(257 * 16), [helper.allocate(257 * 16) for _ in "ab"]
    with held(plan.stream):
        driver.cuMemsetD8Async(source, 0, 4096, plan.stream)
        cufft.cufftSetWorkArea(plan.number, areas[0])
        assert plan.execute(source, target) == 0
        driver.cuMemsetD8Async(source, 0xFF, 4096, plan.stream)
        cufft.cufftSetWorkArea(plan.number, areas[1])
        cufft.cufftSetStream(plan.number, helper.stream())
        helper.write(source, np.ones(512).tobytes())
        helper.write(target, b"\1" * 257 * 16)
        assert driver.cuStreamQuery.status(plan.stream) == driver.CUresult.CUDA_ERROR_NOT_READY
        assert helper.read(target, 1) == b"\1"
    assert not np.frombuffer(helper.read(target, 257 * 16)).any()
    assert helper.read(source, 8) == b"\xff" * 8
    assert [helper.read(area, 8) for area in areas] == [b"\xff" * 8, bytes(8)]


def test_a_destroyed_plan_still_finishes_its_work():
    plan = Plan(FULL["C2C"], (8,))
    place = helper.allocate(64)
    helper.write(place, np.ones(8, np.complex64).tobytes())
    with held(plan.stream):
        assert plan.execute(place, place) == 0
        cufft.cufftDestroy(plan.number)
        assert plan.execute(place, place) == Status.CUFFT_INVALID_PLAN
    assert np.frombuffer(helper.read(place, 64), np.complex64)[0] == 8


# What is refused.


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("R2C", 4, 0),
        ("C2R", 0, 4),
        ("C2C", 4, 0),
        ("C2C", 0, 4),
        ("D2Z", 8, 0),
        ("Z2D", 0, 8),
        ("Z2Z", 8, 0),
        ("half R2C", 2, 0),
        ("brain C2R", 0, 2),
    ],
)
@pytest.mark.parametrize("lengths", [(8,), (4, 4), (2, 2, 2)])
def test_an_array_that_is_not_aligned_to_a_complex_element_is_refused_and_nothing_is_computed(
    name, source, target, lengths
):
    plan, base = Plan(KINDS[name], lengths), helper.allocate(2048)
    helper.write(base, bytes([JUNK]) * 2048)
    assert plan.execute(base + source, base + 1024 + target) == Status.CUFFT_INVALID_VALUE
    driver.cuCtxSynchronize()
    assert helper.read(base, 2048) == bytes([JUNK]) * 2048
    granule = plan.kind.granule
    assert plan.execute(base + granule, base + 1024 + granule) == 0


def test_only_the_first_of_many_real_arrays_must_be_aligned(rng):
    layouts = Side((1024,), 1, 1025), Side((513,), 1, 513)
    kind = FULL["R2C"]
    Plan(kind, (1024,), 8, layouts).run(random(rng, kind, (1024,), 8))


GOOD, WORD = Side((8, 8), 1, 64), FULL["C2C"]
SIZE, VALUE, TYPE = Status.CUFFT_INVALID_SIZE, Status.CUFFT_INVALID_VALUE, Status.CUFFT_INVALID_TYPE
NOT_SUPPORTED = Status.CUFFT_NOT_SUPPORTED


@pytest.mark.parametrize("verb", ["MakePlan", "GetSize"])
@pytest.mark.parametrize(
    ("kind", "lengths", "batch", "sides", "status"),
    [
        (WORD, (0,), 1, None, SIZE),
        (WORD, (-1, 8), 1, None, SIZE),
        (WORD, (8, 8), 0, None, SIZE),
        (WORD, (8, 8), -1, (GOOD, GOOD), SIZE),
        (WORD, (8, 8, 8, 8), 1, None, VALUE),
        (WORD, (8, 8), 1, (Side((8, 8), 0, 64), GOOD), VALUE),
        (WORD, (8, 8), 1, (GOOD, Side((8, 8), -1, 64)), VALUE),
        (WORD, (8, 8), 1, (GOOD, Side((8, 8), 1, 0)), VALUE),
        (WORD, (8, 8), 1, (Side((8, 8), 1, -64), GOOD), VALUE),
        (WORD, (8, 8), 1, (None, GOOD), VALUE),
        (WORD, (8, 8), 1, (GOOD, None), VALUE),
        (WORD, (8, 8), 1, (Side((8, 7), 1, 64), GOOD), SIZE),
        (WORD, (8, 8), 1, (GOOD, Side((8, -8), 1, 64)), SIZE),
        (WORD, (8, 8), 1, (Side((0, 8), 1, 64), GOOD), 0),
        (FULL["R2C"], (8, 8), 1, (GOOD, Side((8, 5), 1, 40)), 0),
        (FULL["R2C"], (8, 8), 1, (GOOD, Side((8, 4), 1, 40)), SIZE),
        (FULL["C2R"], (8, 8), 1, (Side((8, 4), 1, 40), GOOD), SIZE),
        (WORD, (1 << 40, 1 << 40), 1, None, SIZE),
        (WORD, (2,), 2, (Side((2,), 1, 1 << 60), Side((2,), 1, 2)), SIZE),
        (HALF["half C2C"], (8, 6), 1, None, SIZE),
        (HALF["brain R2C"], (12,), 1, None, SIZE),
        (HALF["half R2C"], (8,), 1, (Side((8,), 2, 16), Side((5,), 2, 10)), NOT_SUPPORTED),
        (HALF["half R2C"], (8,), 1, (Side((8,), 1, 8), Side((5,), 2, 10)), 0),
        (HALF["brain C2R"], (8,), 1, (Side((5,), 1, 5), Side((8,), 3, 24)), NOT_SUPPORTED),
        (HALF["half C2C"], (1 << 20, 1 << 13), 1, None, NOT_SUPPORTED),
        (Kind("no", np.float32, Type.CUDA_R_32F, Type.CUDA_R_32F), (8,), 1, None, TYPE),
        (Kind("no", np.float32, Type.CUDA_C_32F, Type.CUDA_C_64F), (8,), 1, None, TYPE),
        (Kind("no", np.float32, Type.CUDA_R_16F, Type.CUDA_C_16BF), (8,), 1, None, TYPE),
        (Kind("no", np.float32, Type.CUDA_C_8I, Type.CUDA_C_8I), (8,), 1, None, TYPE),
    ],
)
def test_transforms_that_the_library_does_not_have(verb, kind, lengths, batch, sides, status):
    free = helper.free_memory()
    plan = Plan(WORD, (8,)) if verb == "GetSize" else Plan(kind, lengths, batch, sides, auto=True)
    if verb == "GetSize":
        plan.kind, plan.lengths, plan.batch, plan.sides = kind, lengths, batch, sides
        plan.status = plan.describe(verb)
    assert plan.status == status
    assert helper.free_memory() == free


def test_the_type_of_the_computation_is_that_of_the_complex_side():
    plan, n, work = c_int(), (c_longlong * 1)(8), c_size_t()
    cufft.cufftCreate(plan)
    for computed, status in ((Type.CUDA_C_64F, TYPE), (Type.CUDA_R_32F, TYPE), (Type.CUDA_C_32F, 0)):
        arguments = (1, n, None, 1, 1, Type.CUDA_R_32F, None, 1, 1, Type.CUDA_C_32F, 1, work, computed)
        assert cufft.cufftXtMakePlanMany.status(plan, *arguments) == status


def test_what_is_looked_at_before_a_plan_is_looked_for():
    assert wrong_statuses() == []


@pytest.mark.parametrize("name", FULL)
def test_a_plan_is_for_the_functions_of_its_type(name):
    place = helper.allocate(1024)
    plan = Plan(FULL[name], (8,))
    for other in FULL.values():
        plan.kind = other
        assert plan.execute(place, place) == (0 if other.name == name else TYPE)
    assert cufft.cufftXtExec.status(plan.number, place, place, INVERSE) == 0


@pytest.mark.parametrize("name", KINDS)
def test_directions_and_addresses_that_are_none(name):
    kind = KINDS[name]
    plan, place = Plan(kind, (8,)), helper.allocate(1024)
    assert [plan.execute(*each) for each in ((0, place), (place, 0), (place, place))] == [VALUE, VALUE, 0]
    # A real transform has one direction, and does not look at what it is given.
    expected_status = 0 if kind.is_real else VALUE
    assert [cufft.cufftXtExec.status(plan.number, place, place, wrong) for wrong in (0, 2)] == [expected_status] * 2


# Plans.


def test_a_plan_gets_one_transform():
    plan = Plan(WORD, (8,))
    assert plan.describe("MakePlan") == Status.CUFFT_INVALID_PLAN
    assert plan.describe("GetSize") == 0
    assert plan.execute(place := helper.allocate(64), place) == 0


def test_a_plan_without_a_transform_has_no_work_area_and_is_not_executed():
    plan, size = c_int(), c_size_t(7)
    cufft.cufftCreate(plan)
    place = helper.allocate(64)
    assert {
        cufft.cufftGetSize.status(plan, size),
        cufft.cufftSetWorkArea.status(plan, place),
        cufft.cufftXtSetWorkAreaPolicy.status(plan, Policy.CUFFT_WORKAREA_MINIMAL, size),
        cufft.cufftExecC2C.status(plan, place, place, FORWARD),
        cufft.cufftXtExec.status(plan, place, place, FORWARD),
    } == {Status.CUFFT_INVALID_PLAN}
    assert size.value == 7


def test_numbers_of_plans_are_small_and_never_used_twice(context):
    numbers = []
    for _ in range(5):
        cufft.cufftCreate(plan := c_int())
        numbers.append(plan.value)
        cufft.cufftDestroy(plan)
        assert cufft.cufftDestroy.status(plan) == Status.CUFFT_INVALID_PLAN
    assert len({*numbers}) == 5
    assert all(number > 0 for number in numbers)
    cufft.cufftDestroy(cufft.CUFFT_PLAN_NULL)
    assert cufft.cufftDestroy.status(context.value & 0x7FFF_FFFF) == Status.CUFFT_INVALID_PLAN


def test_a_plan_ends_with_its_context(context):
    plan = Plan(WORD, (512,), auto=True)
    driver.cuDevicePrimaryCtxRelease(0)
    assert cufft.cufftDestroy.status(plan.number) == Status.CUFFT_INVALID_PLAN
    driver.cuCtxSetCurrent(None)
    assert cufft.cufftCreate.status(c_int()) == Status.CUFFT_INTERNAL_ERROR
    assert cufft.cufftEstimate1d.status(8, cufftType.CUFFT_C2C, 1, c_size_t()) == Status.CUFFT_INTERNAL_ERROR


def test_a_plan_is_for_the_context_in_which_it_was_created(context):
    made, new, place = Plan(WORD, (8,)), c_int(), helper.allocate(64)
    cufft.cufftCreate(new)
    driver.cuCtxCreate_v2(other := c_void_p(), 0, 0)
    work = c_size_t()
    assert made.execute(place, place) == Status.CUFFT_INVALID_DEVICE
    made_there = cufft.cufftMakePlan1d.status(new, 8, cufftType.CUFFT_C2C, 1, work)
    driver.cuCtxDestroy(other)
    driver.cuCtxSetCurrent(context)
    assert made_there == Status.CUFFT_INVALID_DEVICE
    assert cufft.cufftMakePlan1d.status(new, 8, cufftType.CUFFT_C2C, 1, work) == 0
    assert made.execute(place, place) == 0


JIT, THREADS = (
    cufftProperty.NVFFT_PLAN_PROPERTY_INT64_PATIENT_JIT,
    cufftProperty.NVFFT_PLAN_PROPERTY_INT64_MAX_NUM_HOST_THREADS,
)


def test_properties_are_kept_until_the_plan_has_its_transform():
    plan, value = c_int(), c_longlong()
    cufft.cufftCreate(plan)

    def told() -> list[int]:
        return [cufft.cufftGetPlanPropertyInt64(plan, each, value) or value.value for each in (JIT, THREADS)]

    assert told() == [0, 1]
    cufft.cufftSetPlanPropertyInt64(plan, JIT, 1)
    cufft.cufftSetPlanPropertyInt64(plan, THREADS, 8)
    assert told() == [1, 8]
    cufft.cufftResetPlanProperty(plan, THREADS)
    assert told() == [1, 1]
    for name, wrong in ((JIT, 2), (JIT, -1), (THREADS, 0), (3, 1), (0, 0)):
        assert cufft.cufftSetPlanPropertyInt64.status(plan, name, wrong) == VALUE
    assert cufft.cufftGetPlanPropertyInt64.status(plan, 3, value) == VALUE
    assert cufft.cufftResetPlanProperty.status(plan, 3) == VALUE
    cufft.cufftMakePlan1d(plan, 8, cufftType.CUFFT_C2C, 1, c_size_t())
    assert cufft.cufftSetPlanPropertyInt64.status(plan, JIT, 0) == NOT_SUPPORTED
    assert cufft.cufftResetPlanProperty.status(plan, JIT) == NOT_SUPPORTED
    assert told() == [1, 1]


# The library.


def test_the_library_says_who_it_is():
    version, part, parts = c_int(), c_int(), []
    for each in range(3):
        cufft.cufftGetProperty(each, part)
        parts.append(part.value)
    cufft.cufftGetVersion(version)
    assert version.value == parts[0] * 1000 + parts[1] * 100 + parts[2]


def test_every_function_of_the_table_is_there_and_callbacks_are_refused():
    assert set(counterpart._implementations) == set(cufft.library.functions)
    plan = Plan(WORD, (8,))
    code = b"ltoir"
    callback = (plan.number, b"load", code, len(code), cufft.cufftXtCallbackType.CUFFT_CB_LD_COMPLEX, None)
    assert cufft.cufftXtSetJITCallback.status(*callback) == NOT_SUPPORTED
    assert cufft.cufftXtSetJITCallback.status(5, *callback[1:]) == Status.CUFFT_INVALID_PLAN


def test_calls_are_counted_and_faults_come_to_functions_by_name():
    plan, place = Plan(WORD, (8,)), helper.allocate(64)
    before = atomr_sim.calls().get("cufftExecC2C", 0)
    atomr_sim.inject("cufftExecC2C:6:2")
    atomr_sim.inject("cufftMakePlanMany64:2:1")
    assert [plan.execute(place, place) for _ in range(3)] == [0, 6, 0]
    assert atomr_sim.calls()["cufftExecC2C"] == before + 3
    assert [Plan(WORD, (8,)).status for _ in range(2)] == [2, 0]


LOST = """
    from atomr_cuda import cufft
    begin()
    cufft.cufftPlan1d(plan := c_int(), 512, cufft.cufftType.CUFFT_C2C, 1)
    cufft.cufftCreate(new := c_int())
    place, work = allocate(4096), c_size_t()
    def run(source, target):
        print(cufft.cufftExecC2C.status(plan, source, target, -1), cuCtxSynchronize.status(), end=" ")
    run(place, place)
    {wild}
    run(place, place)
    print(cufft.cufftCreate.status(c_int()), cufft.cufftMakePlan1d.status(new, 8, 0x29, 1, work), end=" ")
    print(cufft.cufftDestroy.status(plan), cufft.cufftDestroy.status(new))
"""


@pytest.mark.parametrize(
    ("wild", "fault", "destroyed"),
    [
        ("run(place + 8, place)", 700, 5),  # a plan cannot free its own work area any more
        ("cufft.cufftSetWorkArea(plan, 0xBAD00); run(place, place)", 700, 0),
        ("cufft.cufftSetWorkArea(plan, place + 4); run(place, place)", 716, 0),
    ],
    ids=["array", "work area", "work area not aligned"],
)
def test_a_wild_address_costs_the_context(wild, fault, destroyed):
    done = run_in_process(LOST.format(wild=wild))
    assert [*map(int, done.stdout.split())] == [0, 0, 0, fault, 6, fault, 5, 5, destroyed, 0]


def test_without_scipy_the_library_is_missing():
    done = run_in_process("""
        import importlib.util
        from atomr_cuda import LibraryMissing, cufft
        begin()
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *rest: None if name == "scipy" else find(name, *rest)
        try:
            cufft.cufftGetVersion(c_int())
        except LibraryMissing as error:
            print(error.library, error.extra)
    """)
    assert done.stdout.split() == ["scipy", "sim"]
