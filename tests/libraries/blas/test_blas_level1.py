"""Vectors: every verb of level 1 with every dtype and layout, held against numpy in double precision."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from atomr_trio import DeviceArray, InvalidArgument
from support.blas import (
    DTYPES,
    LENGTHS,
    REALS,
    VECTORS,
    Caller,
    assert_close,
    assert_refused,
    exact,
    fresh_random,
    place,
    place_poisoned,
    random,
    shared,
    submitted,
)

REAL_DTYPES = ("float32", "float64")
COMPLEX_DTYPES = ("complex64", "complex128")


@pytest.fixture
def rng() -> np.random.Generator:
    return fresh_random()


def pairs(rng: np.random.Generator, dtype: str):
    """Numbers for two vectors of each length, each layout beside itself and beside another."""
    for turn, (index, first), length in shared(itertools.product((0, 2), enumerate(VECTORS), LENGTHS), dtype):
        second = VECTORS[(index + turn) % len(VECTORS)]
        yield first, random(rng, length, dtype), second, random(rng, length, dtype)


def singles(rng: np.random.Generator, dtype: str):
    for layout, length in shared(itertools.product(VECTORS, LENGTHS), dtype):
        yield layout, random(rng, length, dtype)


# --- vectors to vectors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
async def test_axpy_adds_a_multiple(dev, rng, dtype):
    call = Caller(dev)
    for left, a, right, b in pairs(rng, dtype):
        x, y = await place(dev, left, a), await place(dev, right, b)
        alpha = random(rng, (), dtype)[()]
        assert await call("axpy", x.array, (target := y.array), alpha) is target
        expected = exact(alpha) * exact(a) + exact(b)
        assert_close(await y.read(), expected, np.abs(a) + np.abs(b), 1)
        assert (await x.read() == a).all()


@pytest.mark.parametrize("dtype", DTYPES)
async def test_copy_and_swap_move_every_element_and_no_other(dev, rng, dtype):
    call = Caller(dev)
    for left, a, right, b in pairs(rng, dtype):
        x, y = await place(dev, left, a), await place_poisoned(dev, right, b.shape, dtype)
        assert await call("copy", x.array, (target := y.array)) is target
        assert (await y.read() == a).all()
        z = await place(dev, right, b)
        await call("swap", x.array, z.array)
        assert (await x.read() == b).all()
        assert (await z.read() == a).all()


@pytest.mark.parametrize("dtype", DTYPES)
async def test_scal_multiplies_by_a_number_of_either_kind(dev, rng, dtype):
    call = Caller(dev)
    for layout, a in singles(rng, dtype):
        for kind in {dtype, REALS[dtype]}:
            x, alpha = await place(dev, layout, a), random(rng, (), kind)[()]
            assert await call("scal", (target := x.array), alpha) is target
            assert_close(await x.read(), exact(alpha) * exact(a), np.abs(a), 1)


async def test_a_real_factor_is_a_complex_one_to_the_library(dev):
    x = await dev.to_device(np.array([complex(np.inf, 1)], np.complex64))
    await dev.blas.scal(x, 2.0)
    (number,) = await x.to_host()
    assert number.real == np.inf
    assert np.isnan(number.imag)


# --- vectors to a number ----------------------------------------------------------------------------------------------


async def answers(dev: Any, call: Caller, verb: str, *arguments: Any, dtype: str, **keywords: Any) -> list[Any]:
    """What a verb answers on the host and on the device, where it overwrites NaN or nonsense."""
    poison = np.array(np.nan if dtype != "int64" else -7, dtype)
    out = await dev.to_device(poison)
    on_host = await call(verb, *arguments, **keywords)
    assert on_host.shape == ()
    assert on_host.dtype == dtype
    assert await call(verb, *arguments, **keywords, out=out) is out
    return [on_host, await out.to_host()]


@pytest.mark.parametrize("dtype", DTYPES)
async def test_dot_sums_products_on_the_host_and_on_the_device(dev, rng, dtype):
    call = Caller(dev)
    for left, a, right, b in pairs(rng, dtype):
        x, y = await place(dev, left, a), await place(dev, right, b)
        for conjugate in (False, True):
            expected = np.dot(exact(a).conj() if conjugate else exact(a), exact(b))
            for answer in await answers(dev, call, "dot", x.array, y.array, conjugate=conjugate, dtype=dtype):
                assert_close(answer, expected, np.abs(a) @ np.abs(b), len(a))


@pytest.mark.parametrize("dtype", DTYPES)
async def test_norms_sum_what_is_not_negative(dev, rng, dtype):
    call = Caller(dev)
    for layout, a in singles(rng, dtype):
        x = (await place(dev, layout, a)).array
        norm, total = np.sqrt((np.abs(exact(a)) ** 2).sum()), (np.abs(a.real) + np.abs(a.imag)).sum(dtype=float)
        for answer in await answers(dev, call, "nrm2", x, dtype=REALS[dtype]):
            assert_close(answer, norm, norm, len(a))
        for answer in await answers(dev, call, "asum", x, dtype=REALS[dtype]):
            assert_close(answer, total, total, len(a))


@pytest.mark.parametrize("dtype", DTYPES)
async def test_extremes_are_counted_from_zero_and_on_the_device_from_one(dev, rng, dtype):
    call = Caller(dev)
    for layout, length in shared(itertools.product(VECTORS, LENGTHS[1:]), dtype):
        sizes = rng.permutation(length) + 1.0
        a = (sizes * rng.choice([-1, 1], length)).astype(dtype)
        x = (await place(dev, layout, a)).array
        assert await answers(dev, call, "iamax", x, dtype="int64") == [sizes.argmax(), sizes.argmax() + 1]
        assert await answers(dev, call, "iamin", x, dtype="int64") == [sizes.argmin(), sizes.argmin() + 1]


async def test_of_equal_extremes_the_first_is_found_whichever_way_the_vector_runs(dev):
    for layout in VECTORS:
        x = (await place(dev, layout, np.array([2, -3, 1, 3, -1, 2], np.float32))).array
        assert await dev.blas.iamax(x) == 1, layout.name
        assert await dev.blas.iamin(x) == 2, layout.name


async def test_the_size_of_a_complex_number_is_that_of_its_parts(dev):
    x = await dev.to_device(np.array([5, 3 + 3j, -1j], np.complex64))
    assert await dev.blas.iamax(x) == 1
    assert await dev.blas.asum(x) == 12


# --- scalars on the device --------------------------------------------------------------------------------------------


async def test_a_result_that_stayed_on_the_device_is_a_factor_of_the_next_call(dev, rng):
    a, b = random(rng, 33, "complex64"), random(rng, 33, "complex64")
    x, y = await dev.to_device(a), await dev.to_device(b)
    product, norm = dev.empty((), np.complex64), dev.empty((), np.float32)
    async with dev.batch() as batch:
        batch.blas.dot(x, y, out=product)
        batch.blas.nrm2(x, out=norm)
        batch.blas.axpy(x, y, product)
        batch.blas.scal(x, norm)
    factor = np.dot(exact(a), exact(b))
    size = np.abs(a) @ np.abs(b) * np.abs(a) + np.abs(b)
    assert_close(await y.to_host(), factor * exact(a) + exact(b), size, len(a))
    assert_close(await x.to_host(), np.linalg.norm(exact(a)) * exact(a), np.linalg.norm(a) * np.abs(a), len(a))


# --- rotations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_device", [False, True], ids=["numbers", "on the device"])
@pytest.mark.parametrize("dtype", DTYPES)
async def test_rot_turns_two_vectors(dev, rng, dtype, on_device):
    call = Caller(dev)
    for left, a, right, b in pairs(rng, dtype):
        for kind in {dtype, REALS[dtype]}:
            x, y = await place(dev, left, a), await place(dev, right, b)
            c, s = random(rng, (), REALS[dtype])[()], random(rng, (), kind)[()]
            given = [await dev.to_device(np.asarray(each)) for each in (c, s)] if on_device else [c, s]
            await call("rot", x.array, y.array, *given)
            size, c, s = np.abs(a) + np.abs(b), exact(c), exact(s)
            assert_close(await x.read(), c * exact(a) + s * exact(b), size, 2)
            assert_close(await y.read(), c * exact(b) - s.conj() * exact(a), size, 2)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_rotg_finds_the_rotation_that_makes_the_second_zero(dev, rng, dtype):
    call = Caller(dev)
    for numbers in [random(rng, 2, dtype) for _ in range(6)] + [np.array(each, dtype) for each in [(1, 0), (0, 1)]]:
        x, y = [await dev.to_device(numbers[index : index + 1]) for index in (0, 1)]
        a, b = [await dev.to_device(np.array(number)) for number in numbers]
        c, s = await call("rotg", a, b)
        assert (c.dtype, s.dtype, c.shape, s.shape) == (REALS[dtype], dtype, (), ())
        await call("rot", x, y, c, s)
        length = np.linalg.norm(exact(numbers))
        assert_close(await y.to_host(), [0], length, 4)
        assert_close(await x.to_host(), [exact(await a.to_host())], length, 4)
        assert_close(np.abs(await a.to_host()), length, length, 4)


def as_matrix(param: np.ndarray) -> np.ndarray:
    """The rotation that parameters describe."""
    flag, h11, h21, h12, h22 = exact(param)
    return np.array(
        {
            -2: [[1, 0], [0, 1]],
            -1: [[h11, h12], [h21, h22]],
            0: [[1, h12], [h21, 1]],
            1: [[h11, 1], [-1, h22]],
        }[int(flag)]
    )


@pytest.mark.parametrize("dtype", REAL_DTYPES)
async def test_rotm_applies_what_the_flag_says_of_its_parameters(dev, rng, dtype):
    call = Caller(dev)
    for flag, (left, a, right, b) in zip(itertools.cycle((-2, -1, 0, 1)), pairs(rng, dtype), strict=False):
        numbers = np.array([flag, *random(rng, 4, dtype)], dtype)
        param = await dev.to_device(numbers)
        x, y = await place(dev, left, a), await place(dev, right, b)
        await call("rotm", x.array, y.array, param)
        expected, size = as_matrix(numbers) @ [exact(a), exact(b)], np.abs(a) + np.abs(b)
        assert_close(await x.read(), expected[0], size, 2)
        assert_close(await y.read(), expected[1], size, 2)


@pytest.mark.parametrize("dtype", REAL_DTYPES)
async def test_rotmg_finds_the_modified_rotation_that_makes_the_second_zero(dev, rng, dtype):
    call = Caller(dev)
    for _ in range(12):
        numbers = rng.uniform(0.1, 1, 4).astype(dtype)
        d1, d2, x1, y1 = [await dev.to_device(np.array(number)) for number in numbers]
        param = await call("rotmg", d1, d2, x1, y1)
        assert param.shape == (5,)
        matrix = as_matrix(await param.to_host())
        first, second, end = [exact(await each.to_host()) for each in (d1, d2, x1)]
        assert_close(
            np.array(matrix @ exact(numbers[2:]), dtype), [end, 0], numbers[2:].sum() * np.abs(matrix).max(), 4
        )
        # The length that the weights d1 and d2 give is kept.
        length = exact(numbers[0]) * exact(numbers[2]) ** 2 + exact(numbers[1]) * exact(numbers[3]) ** 2
        assert_close(np.array(first * end**2, dtype), length, length, 16)
        assert second > 0
        assert await y1.to_host() == numbers[3]


async def test_a_plane_rotation_of_two_columns_of_one_matrix_is_no_overlap(dev, rng):
    a = random(rng, (7, 4), "float64")
    matrix = await dev.to_device(a)
    await dev.blas.rot(matrix[:, 1], matrix[:, 2], 0.6, 0.8)
    expected = a.copy()
    expected[:, 1], expected[:, 2] = 0.6 * a[:, 1] + 0.8 * a[:, 2], 0.6 * a[:, 2] - 0.8 * a[:, 1]
    assert_close(await matrix.to_host(), expected, np.ones_like(a), 2)


# --- layouts that BLAS has not ----------------------------------------------------------------------------------------


def strided(array: DeviceArray, shape: tuple[int, ...], strides: tuple[int, ...]) -> DeviceArray:
    """A view of any strides, which no public way makes."""
    return DeviceArray._create(array._storage, array._offset, shape, strides, array.dtype)


@pytest.mark.parametrize("stride", [0, 4, 12], ids=["all in one", "half an element", "one and a half"])
async def test_inputs_of_odd_strides_are_copied_first_and_outputs_refused(dev, rng, stride):
    # Any two neighbouring words are a number between 0.5 and 2: none is infinite or not a number.
    numbers = rng.integers(0x3FE00000, 0x40000000, 24, np.uint32).view(np.float64)
    base, y = await dev.to_device(numbers), await dev.to_device(np.ones(3))
    odd = strided(base, (3,), (stride,))
    expected = np.lib.stride_tricks.as_strided(numbers, (3,), (stride,))
    assert_close(await dev.blas.dot(odd, y), expected.sum(), np.abs(expected).sum(), 3)
    await dev.blas.axpy(odd, y, 2)
    assert_close(await y.to_host(), 1 + 2 * expected, 1 + 2 * np.abs(expected), 1)
    before = submitted(dev)
    with pytest.raises(InvalidArgument, match="y cannot be written"):
        await dev.blas.axpy(y, odd)
    assert submitted(dev) == before


# --- wrong calls ------------------------------------------------------------------------------------------------------


def wrong_calls(dev: Any, other: Any) -> dict[str, tuple[Any, ...]]:
    """Calls that must be refused: the verb and its arguments, and the arguments by name last."""
    x, y, single = dev.empty(6, "float32"), dev.empty(6, "float32"), dev.empty(6, "complex64")
    short, double, whole = dev.empty(5, "float32"), dev.empty(6, "float64"), dev.empty(6, "int32")
    matrix, point, point64 = dev.empty((6, 6), "float32"), dev.empty((), "float32"), dev.empty((), "float64")
    freed, elsewhere, none = dev.empty(6, "float32"), other.empty(6, "float32"), dev.empty(0, "float32")
    freed.free()
    five, four = dev.empty(5, "float32"), dev.empty(4, "float32")
    two = [("axpy", ()), ("copy", ()), ("swap", ()), ("dot", ()), ("rot", (0.6, 0.8)), ("rotm", (five,))]
    one = [("scal", (2,)), ("nrm2", ()), ("asum", ()), ("iamax", ()), ("iamin", ())]
    bad_pairs = {
        "lengths": (x, short),
        "dtypes": (x, double),
        "integers": (whole, whole),
        "axes": (matrix, y),
        "numpy": (x, np.zeros(6, np.float32)),
        "freed": (freed, y),
        "freed target": (x, freed),
        "another device": (elsewhere, y),
        "another device's target": (x, elsewhere),
    }
    bad_singles = {"integers": whole, "axes": matrix, "none": None, "freed": freed, "another device": elsewhere}
    calls = {f"{verb}: {name}": (verb, *bad, *rest) for verb, rest in two for name, bad in bad_pairs.items()}
    calls |= {f"{verb}: {name}": (verb, bad, *rest) for verb, rest in one for name, bad in bad_singles.items()}
    calls |= {f"{verb}: overlap": (verb, x, x, *rest) for verb, rest in two if verb != "dot"}
    calls |= {f"{verb}: partly": (verb, x[:4], x[2:], *rest) for verb, rest in two if verb != "dot"}
    calls |= {f"{verb}: out's dtype": (verb, x, {"out": point64}) for verb, _ in one if verb != "scal"}
    calls |= {f"{verb}: out's axes": (verb, x, {"out": y}) for verb, _ in one if verb != "scal"}
    calls |= {f"{verb}: out is an input": (verb, x, {"out": x[0]}) for verb, _ in one if verb in ("nrm2", "asum")}
    return calls | {
        "axpy: complex factor": ("axpy", x, y, 1j),
        "axpy: no number": ("axpy", x, y, "2"),
        "axpy: too large": ("axpy", x, y, 1e300),
        "axpy: factor changes": ("axpy", x, y, y[0]),
        "scal: factor changes": ("scal", x, x[0]),
        "axpy: factor's dtype": ("axpy", x, y, point64),
        "axpy: factor's axes": ("axpy", x, y, short),
        "scal: complex factor": ("scal", x, 2j),
        "scal: no number": ("scal", single, None),
        "dot: out": ("dot", x, y, {"out": point64}),
        "iamax: empty": ("iamax", none),
        "iamin: empty": ("iamin", none),
        "rot: complex c": ("rot", x, y, 1j, 0),
        "rot: complex s": ("rot", x, y, 1, 1j),
        "rot: one on the device": ("rot", x, y, point, 1),
        "rot: scalars change": ("rot", x, y, x[0], x[1]),
        "rotg: axes": ("rotg", x, y),
        "rotg: dtypes": ("rotg", point, point64),
        "rotg: overlap": ("rotg", point, point),
        "rotm: complex": ("rotm", single, dev.empty(6, "complex64"), five),
        "rotm: too few": ("rotm", x, y, four),
        "rotm: scattered": ("rotm", x, y, dev.empty(10, "float32")[::2]),
        "rotmg: complex": ("rotmg", *(dev.empty((), "complex64") for _ in range(4))),
        "rotmg: overlap": ("rotmg", x[0], x[1], x[2], x[1]),
        "rotmg: axes": ("rotmg", *(dev.empty(1, "float32") for _ in range(4))),
    }


async def test_a_wrong_call_is_refused_before_anything_is_sent(dev, open_test_device):
    async with open_test_device() as other:
        await assert_refused(dev, wrong_calls(dev, other))
