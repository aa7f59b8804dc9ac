"""What holds for every array, every view and every value, drawn by hypothesis and held against plain numpy."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from atomr_trio import InvalidArgument
from atomr_trio._transfers.memory import pattern_of
from atomr_trio._transfers.staging import LARGE_SLOT
from atomr_trio._values.dtypes import DTYPES
from support.strategies import (
    EVERY_DTYPE,
    FLOAT_CODES,
    LAYOUTS,
    Indexed,
    Way,
    check_on_device,
    common_parts,
    complexes,
    dtypes,
    examples,
    follow,
    hosts,
    layouts,
    numbers,
    numpy_dtypes,
    reals,
    same,
    seeds,
    sent,
    shapes,
    shapes_of_size,
    until_idle,
    views,
    writable_layouts,
)

pytestmark = pytest.mark.used_workers

SMALL_PIECES = 15
"""Bytes of a piece of a copy, when small arrays are to be cut as large ones are: through wide elements, too."""


@pytest.fixture(params=[LARGE_SLOT, SMALL_PIECES])
def piece_size(request, monkeypatch):
    """Run a test twice: with copies as they are, and with copies that are cut into small pieces."""
    monkeypatch.setattr("atomr_trio._transfers.copy_plan.LARGE_SLOT", request.param)


# --- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("piece_size")
@check_on_device(0.5, hosts(), layouts, writable_layouts)
async def test_what_is_copied_in_comes_back_bit_for_bit_whatever_lies_how(dev, host, layout, out_layout):
    source = LAYOUTS[layout](host)
    with await dev.to_device(source) as array:
        assert (array.shape, array.dtype, array.size, array.nbytes) == (host.shape, host.dtype, host.size, host.nbytes)
        seen = await array.to_host()
        assert same(seen, host)
        assert seen.flags.c_contiguous
        assert seen.flags.writeable
        assert same(source, host)
        out = LAYOUTS[out_layout](numbers(host.shape, host.dtype, seed=1))
        await array.copy_to(out)
        assert same(out, host)
    await until_idle(dev)


@pytest.mark.usefixtures("piece_size")
@check_on_device(1, views(), layouts, writable_layouts)
async def test_views_are_read_and_written_where_numpy_does(dev, drawn, layout, out_layout):
    host, way = drawn
    expected = host.copy()
    wanted = follow(way, expected)
    with await dev.to_device(host) as array:
        view = follow(way, array)
        assert same(await view.to_host(), wanted)
        out = LAYOUTS[out_layout](numbers(wanted.shape, host.dtype, seed=1))
        await view.copy_to(out)
        assert same(out, wanted)
        wanted[...] = numbers(wanted.shape, host.dtype, seed=2)
        await view.copy_from(LAYOUTS[layout](wanted))
        assert same(await array.to_host(), expected)
    await until_idle(dev)


DIFFERENCES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "swapped bytes": lambda host: host.astype(host.dtype.newbyteorder()),
    "another dtype": lambda host: numbers(host.shape, EVERY_DTYPE[EVERY_DTYPE.index(host.dtype) - 1]),
    "an axis more": lambda host: host[None],
    "axes in another order": lambda host: host.T,
    "one axis": lambda host: host.reshape(-1),
}


@check_on_device(0.5, hosts(), st.sampled_from(list(DIFFERENCES)))
async def test_a_host_of_another_shape_or_dtype_is_refused_and_nothing_is_sent(dev, host, difference):
    other = DIFFERENCES[difference](host)
    differs = (other.shape, other.dtype) != (host.shape, host.dtype)
    with dev.empty(host.shape, host.dtype) as array:
        before = sent(dev)
        for call in (array.copy_from, array.copy_to) if differs else ():
            with pytest.raises(InvalidArgument, match="differ"):
                await call(other)
        if not other.dtype.isnative:
            with pytest.raises(InvalidArgument, match="native byte order"):
                await dev.to_device(other)
            with pytest.raises(InvalidArgument, match="native byte order"):
                dev.empty(other.shape, other.dtype)
        assert sent(dev) == before
        if not differs:
            await array.copy_from(other)
            assert same(await array.to_host(), other)


# --- making and filling -----------------------------------------------------------------------------------------------


def spellings_of(dtype: np.dtype) -> st.SearchStrategy[Any]:
    """Ways to name a dtype. To numpy the letters of ml_dtypes' mean other things."""
    letters = [dtype.char, dtype.str] if dtype in DTYPES else []
    return st.sampled_from([dtype, dtype.type, dtype.name, *letters])


def spellings_of_shape(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Ways to name a shape."""
    others = [shape[0], np.int64(shape[0]), np.uint8(shape[0])] if len(shape) == 1 else []
    return st.sampled_from([shape, list(shape), tuple(map(np.int32, shape)), *others])


@st.composite
def orders(draw: st.DrawFn) -> tuple[Any, ...]:
    """A shape and a dtype, each in plain form and as somebody may spell it, and an element."""
    shape, dtype = draw(shapes()), draw(dtypes)
    element = numbers((), dtype, draw(seeds))[()]
    return shape, draw(spellings_of_shape(shape)), dtype, draw(spellings_of(dtype)), element


@check_on_device(0.5, orders())
async def test_new_arrays_hold_what_was_asked_for_however_it_is_spelled(dev, order):
    shape, shape_spelled, dtype, dtype_spelled, element = order
    before = sent(dev)
    zeros, full = dev.zeros(shape_spelled, dtype_spelled), dev.full(shape_spelled, element)
    empty = dev.empty(shape_spelled, dtype_spelled)
    assert sent(dev) == before
    with zeros, full, empty:
        for array in (zeros, full, empty):
            assert (array.shape, array.dtype) == (shape, dtype)
        assert same(await zeros.to_host(), np.zeros(shape, dtype))
        assert same(await full.to_host(), np.full(shape, element))
        await empty.copy_from(full)
        assert same(await empty.to_host(), np.full(shape, element))
    await until_idle(dev)


@check_on_device(1.0, views(), seeds)
async def test_a_fill_sets_the_elements_of_a_view_and_no_other_byte(dev, drawn, seed):
    host, way = drawn
    element = numbers((), host.dtype, seed)[()]
    expected = host.copy()
    follow(way, expected)[...] = element
    with await dev.to_device(host) as array:
        await follow(way, array).fill(element)
        assert same(await array.to_host(), expected)
    await until_idle(dev)


FLOAT_DIGITS = {2: 11, 4: 24, 8: 53}


def nearest_float(number: float, itemsize: int) -> float:
    """The float of so many bytes that is nearest to a number, ties to even. Raises `OverflowError` if there is none."""
    if isinstance(number, int) and abs(number) < 2**64:
        # Exactly, since float() and a second rounding would not always end at the nearest.
        below, rest = divmod(abs(number), unit := 1 << max(0, abs(number).bit_length() - FLOAT_DIGITS[itemsize]))
        up = 2 * rest > unit or (2 * rest == unit and below % 2 == 1)
        number = int(math.copysign(1, number)) * (below + up) * unit
    code = FLOAT_CODES[itemsize]
    nearest: float = struct.unpack(code, struct.pack(code, float(number)))[0]
    return nearest


def element_of(value: Any, dtype: np.dtype) -> Any:
    """What a fill with `value` writes, as a Python number; None where the dtype cannot hold it."""
    if np.ndim(value):
        return None
    number = value.item() if isinstance(value, np.generic | np.ndarray) else value
    try:
        match dtype.kind:
            case "b":  # an int of more bits than 64 is a float to numpy
                return bool(number) if isinstance(number, int) and -(2**63) <= number < 2**64 else None
            case "i" | "u":
                limits = np.iinfo(dtype)
                return number if isinstance(number, int) and limits.min <= number <= limits.max else None
            case "f":
                return nearest_float(number, dtype.itemsize) if isinstance(number, int | float) else None
            case "c":
                half = dtype.itemsize // 2
                if isinstance(number, complex):
                    return complex(nearest_float(number.real, half), nearest_float(number.imag, half))
                return complex(nearest_float(number, half)) if isinstance(number, int | float) else None
    except OverflowError:
        return None
    raise AssertionError(f"no rule for {dtype}")


def around(*centres: int) -> st.SearchStrategy[int]:
    """Integers near some others."""
    return st.builds(int.__add__, st.sampled_from(centres), st.integers(-2, 2))


powers = [2**bits for bits in (7, 8, 15, 16, 24, 31, 32, 53, 63, 64, 70, 128, 1024)]
edges = around(0, *powers, *(-power for power in powers))
integers = st.integers(-300, 300) | edges | st.integers(-(2**64), 2**64) | st.sampled_from([65504, 65519, 65520])
plain_numbers = integers | reals | complexes | st.booleans()
numpy_numbers = st.builds(lambda dtype, seed: numbers((), dtype, seed)[()], numpy_dtypes, seeds)
no_numbers = st.sampled_from(
    [None, "1", b"\1", [1], (), object(), {}, np.zeros(1), np.array("a"), np.datetime64(1, "s")]
)


@given(plain_numbers | numpy_numbers | numpy_numbers.map(np.array) | no_numbers, numpy_dtypes)
@examples(5)
def test_a_value_becomes_the_nearest_element_or_is_refused(value, dtype):
    expected = element_of(value, dtype)
    if expected is None:
        with pytest.raises(InvalidArgument, match="cannot fill"):
            pattern_of(value, dtype)
        return
    (seen,) = np.frombuffer(pattern_of(value, dtype), dtype).tolist()
    np.testing.assert_array_equal(seen, expected)
    assert np.copysign(1, np.real(seen)) == np.copysign(1, np.real(expected)) or math.isnan(np.real(expected))


# --- views, which send nothing ----------------------------------------------------------------------------------------


@check_on_device(1.5, views())
async def test_a_view_has_numpys_shape_and_strides_and_begins_where_numpys_does(dev, drawn):
    host, way = drawn
    wanted = follow(way, host)
    before = sent(dev)
    with dev.empty(host.shape, host.dtype) as array:
        view = follow(way, array)
        assert (view.shape, view.ndim, view.size) == (wanted.shape, wanted.ndim, wanted.size)
        assert (view.dtype, view.itemsize, view.nbytes) == (wanted.dtype, wanted.itemsize, wanted.nbytes)
        assert view.contiguous == wanted.flags.c_contiguous
        if wanted.size:
            assert view.strides == wanted.strides
            assert view.address - array.address == address_of(wanted) - address_of(host)
        if wanted.shape:
            assert len(view) == len(wanted)
    assert view.state == "freed"
    assert sent(dev) == before


def address_of(host: np.ndarray) -> int:
    return host.__array_interface__["data"][0]


lengths = st.none() | st.integers(-9, 9) | st.sampled_from([2**63, -(2**63) - 1, 10**30])
anything_plain = st.one_of(
    st.integers(-6, 6), st.builds(np.int8, st.integers(-6, 6)), lengths.filter(lambda length: length is not None),
    st.builds(slice, lengths, lengths, lengths), st.sampled_from([..., None, slice(0.5, None), slice("a")]),
)  # fmt: skip
no_index = st.sampled_from([True, np.False_, 1.0, "a", [0], np.array([0]), np.array(0), np.array([True]), (0,), {}])


def outcome_of(call: Callable[[], Any]) -> Any:
    """The shape of what a call gives, or the type of what it raises."""
    try:
        return call().shape
    except Exception as error:
        return type(error)


@check_on_device(1.5, shapes(), st.lists(anything_plain, max_size=7).map(tuple))
async def test_an_index_of_plain_parts_is_taken_or_refused_as_numpy_does(dev, shape, index):
    with dev.empty(shape, np.int8) as array:
        host = np.zeros(shape, np.int8)
        assert outcome_of(lambda: array[index]) == outcome_of(lambda: host[index])
        if len(index) == 1:
            assert outcome_of(lambda: array[index[0]]) == outcome_of(lambda: host[index[0]])


def is_no_wrong_slice(part: object) -> bool:
    """False for a slice that raises what it does with numpy, which may come before what is said of another part."""
    return type(part) is not slice or isinstance(outcome_of(lambda: np.empty(0)[part]), tuple)


@check_on_device(
    0.5, shapes(), st.lists(anything_plain.filter(is_no_wrong_slice), max_size=3), no_index, st.integers(0, 3)
)
async def test_an_index_with_any_other_part_is_refused_with_our_error(dev, shape, plain, other, place):
    with dev.empty(shape, np.int8) as array:
        with pytest.raises(InvalidArgument, match="an index is made of"):
            array[(*plain[:place], other, *plain[place:])]


@st.composite
def reshapings(draw: st.DrawFn) -> tuple[np.ndarray, list[Any], tuple[int, ...]]:
    """An array, a way to a view of it, and a shape to see that in, which is often one of the right size."""
    host, way = draw(views())
    lengths = st.integers(-2, 9) | st.sampled_from([2**31, 2**62, 2**70])
    return host, way, draw(shapes_of_size(follow(way, host).size) | st.lists(lengths, max_size=6).map(tuple))


@check_on_device(1.5, reshapings())
async def test_an_array_is_reshaped_exactly_where_numpy_needs_no_copy(dev, drawn):
    host, way, shape = drawn
    wanted = outcome_of(lambda: follow(way, host).reshape(shape, copy=False))
    with dev.empty(host.shape, host.dtype) as array:
        view = follow(way, array)
        assert outcome_of(lambda: view.reshape(shape)) == (InvalidArgument if wanted is ValueError else wanted)
        assert outcome_of(lambda: view.reshape(*shape)) == (InvalidArgument if wanted is ValueError else wanted)


# --- copies on the device ---------------------------------------------------------------------------------------------


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, tuple[Way, Way]]:
    """An array, and ways to two views of it that have one shape; often parts of two halves."""
    host = draw(hosts(max_axes=4, max_length=6))
    ways: list[Way] = [[], []]
    long_axes = [axis for axis, length in enumerate(host.shape) if length > 1]
    if long_axes and draw(st.booleans()):
        axis = draw(st.sampled_from(long_axes))
        cut = draw(st.integers(1, host.shape[axis] - 1))
        ways = [[Indexed((*axis * (slice(None),), half, ...))] for half in (slice(cut), slice(cut, None))]
        ways = draw(st.permutations(ways))
    parts = draw(common_parts(*(follow(way, host) for way in ways)))
    return host, tuple(way + part for way, part in zip(ways, parts, strict=True))


@check_on_device(1, pairs())
async def test_a_view_is_copied_to_another_view_of_its_array_unless_they_may_share_memory(dev, drawn):
    host, (to, origin) = drawn
    with await dev.to_device(host) as array:
        target, source = follow(to, host), follow(origin, host)
        if np.may_share_memory(target, source):
            before = sent(dev)
            with pytest.raises(InvalidArgument, match="share memory"):
                await follow(to, array).copy_from(follow(origin, array))
            assert sent(dev) == before
        else:
            target[...] = source
            await follow(to, array).copy_from(follow(origin, array))
        assert same(await array.to_host(), host)
    await until_idle(dev)


@check_on_device(1, pairs())
async def test_a_view_is_copied_to_a_view_of_another_array(dev, drawn):
    host, (to, origin) = drawn
    expected = numbers(host.shape, host.dtype, seed=1)
    with await dev.to_device(host) as array, await dev.to_device(expected) as other:
        follow(to, expected)[...] = follow(origin, host)
        await follow(to, other).copy_from(follow(origin, array))
        assert same(await other.to_host(), expected)
        assert same(await array.to_host(), host)
    await until_idle(dev)
