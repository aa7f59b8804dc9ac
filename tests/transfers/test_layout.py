"""Cutting strided arrays into boxes of bytes, against numpy as the judge of what goes where."""

from __future__ import annotations

import itertools
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from atomr_trio._arrays import layout as _layout
from atomr_trio._arrays.layout import (
    MAX_AXES,
    MAX_PITCH,
    Box,
    boxes,
    contiguous_strides,
    cut,
    gather,
    indexed,
    is_contiguous,
    packing,
    reshaped,
    rows,
    shadow,
    spans,
)
from support.strategies import examples, slices

DTYPES = (np.uint8, np.float16, np.int32, np.float64, np.complex128)


@st.composite
def views(draw, max_axes=4):
    """A numpy array, and the index of a strided view of it as slicing makes them."""
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=max_axes)))
    dtype = draw(st.sampled_from(DTYPES))
    count = math.prod(shape)
    raw = np.arange(1, count * np.dtype(dtype).itemsize + 1, dtype=np.uint8)
    base = raw.view(dtype).reshape(shape) if count else np.empty(shape, dtype)
    return base, (*(draw(slices(length)) for length in shape), ...)


def memory_of(base: np.ndarray) -> np.ndarray:
    return base.reshape(-1).view(np.uint8)


def distance(view: np.ndarray, base: np.ndarray) -> int:
    """Bytes from the first element of `base` to that of `view`."""
    return view.__array_interface__["data"][0] - base.__array_interface__["data"][0]


def move(box: Box, target: np.ndarray, at: int, source: np.ndarray, other_at: int) -> None:
    """What a three-dimensional copy does, byte by byte; every byte must exist."""
    start, pitch, plane_rows = box.side(at)
    other, other_pitch, other_plane_rows = box.other_side(other_at)
    assert box.depth == 1 or min(plane_rows, other_plane_rows) >= box.height
    assert box.height == box.depth == 1 or box.width <= min(pitch, other_pitch) <= max(pitch, other_pitch) <= MAX_PITCH
    for plane, row in itertools.product(range(box.depth), range(box.height)):
        to = start + (plane * plane_rows + row) * pitch
        origin = other + (plane * other_plane_rows + row) * other_pitch
        assert 0 <= to <= to + box.width <= target.size
        assert 0 <= origin <= origin + box.width <= source.size
        target[to : to + box.width] = source[origin : origin + box.width]


def turned(box: Box) -> Box:
    """The same copy with its sides exchanged."""
    here, there = (box.offset, box.pitch, box.plane), (box.other_offset, box.other_pitch, box.other_plane)
    return Box(box.width, box.height, box.depth, *there, *here)


# --- strides ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 7), max_size=5).map(tuple), st.sampled_from(DTYPES))
def test_contiguous_strides_are_numpys(shape, dtype):
    itemsize = np.dtype(dtype).itemsize
    strides = contiguous_strides(shape, itemsize)
    if math.prod(shape):
        assert strides == np.empty(shape, dtype).strides
    assert is_contiguous(shape, strides, itemsize)


@given(views())
def test_contiguous_is_what_numpy_calls_so(drawn):
    base, index = drawn
    view = base[index]
    assert is_contiguous(view.shape, view.strides, view.itemsize) == view.flags.c_contiguous


@given(views())
def test_a_shadow_tells_where_a_view_begins_without_being_read(drawn):
    base, index = drawn
    view = base[index]
    shadow = _layout.shadow(base.shape, base.strides, base.itemsize)
    assert (shadow.shape, shadow.strides) == (base.shape, base.strides)
    assert _layout.offset_of(shadow[index], shadow) == distance(view, base)
    assert (shadow[index].shape, shadow[index].strides) == (view.shape, view.strides)


# --- packing ----------------------------------------------------------------------------------------------------------


@given(views())
def test_packing_can_be_undone(drawn):
    base, index = drawn
    view = base[index]
    packed = packing(view.shape, view.strides)
    assert packed.undo(packed.apply(view)).tobytes() == view.tobytes()
    assert packed.apply(view).shape == packed.shape


@given(views())
def test_packing_walks_memory_forwards(drawn):
    base, index = drawn
    view = base[index]
    packed = packing(view.shape, view.strides)
    seen = packed.apply(view)
    assert list(packed.strides) == sorted(packed.strides, reverse=True)
    assert all(stride >= 0 for stride in packed.strides)
    if view.size:
        assert distance(seen, view) == packed.offset
        assert all(
            stride == wanted
            for stride, wanted, length in zip(seen.strides, packed.strides, seen.shape, strict=True)
            if length > 1
        )


@given(views(), st.data())
def test_another_array_can_follow_a_packing(drawn, data):
    base, index = drawn
    view = base[index]
    packed = packing(view.shape, view.strides)
    other = np.arange(view.size).reshape(view.shape)
    flip = tuple(slice(None, None, data.draw(st.sampled_from([1, -1]))) for _ in view.shape)
    other = other[(*flip, ...)]
    walk, offset = packed.follow(other.shape, other.strides)
    expected = packed.apply(other)
    if other.size:
        assert offset == distance(expected, other)
        assert all(a == b for a, b, length in zip(walk, expected.strides, expected.shape, strict=True) if length > 1)


# --- boxes ------------------------------------------------------------------------------------------------------------


@given(views(), st.integers(16, 64))
@examples(3)
def test_boxes_and_pieces_bring_every_element_to_its_place(drawn, limit):
    base, index = drawn
    view = base[index]
    if not base.size:
        return
    packed = packing(view.shape, view.strides)
    strides = contiguous_strides(packed.shape, view.itemsize)
    memory, expected = memory_of(base), np.ascontiguousarray(packed.apply(view)).reshape(-1).view(np.uint8)
    start = distance(view, base)
    whole = list(boxes(packed.shape, view.itemsize, packed.strides, strides))
    planes = list(rows(packed.shape, view.itemsize, packed.strides, strides))
    small = [part for each in whole for part in cut(each, limit)]
    assert sum(each.size for each in whole) == view.nbytes
    assert all(plane.depth == 1 for plane in planes)
    assert all(part.size <= limit for part in small)
    for parts in (whole, planes, small):
        packed_again = np.zeros(view.nbytes, np.uint8)
        for part in parts:
            move(turned(part), packed_again, 0, memory, start + packed.offset)
        assert np.array_equal(packed_again, expected)
        target, wanted = np.zeros_like(base), np.zeros_like(base)
        wanted[index] = view
        for part in parts:
            move(part, memory_of(target), start + packed.offset, expected, 0)
        assert target.tobytes() == wanted.tobytes()


@given(views(), st.integers(16, 64), st.integers(1, 5))
def test_boxes_that_travel_together_lie_one_behind_the_other(drawn, limit, most):
    base, index = drawn
    view = base[index]
    packed = packing(view.shape, view.strides)
    strides = contiguous_strides(packed.shape, view.itemsize)
    parts = [part for each in boxes(packed.shape, view.itemsize, packed.strides, strides) for part in cut(each, limit)]
    pieces = list(gather(parts, limit, most))
    assert [box for piece in pieces for box in piece.boxes] == parts
    at = 0
    for piece in pieces:
        assert piece.start == at
        assert piece.size == sum(box.size for box in piece.boxes) <= limit
        assert 1 <= len(piece.boxes) <= most
        for box in piece.boxes:
            assert box.other_offset == at
            at += box.size
    assert at == view.nbytes
    # None of them could have taken in the next one's first box.
    for piece, following in itertools.pairwise(pieces):
        assert len(piece.boxes) == most or piece.size + following.boxes[0].size > limit


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5).map(tuple), st.data())
def test_spans_are_the_elements_in_order(shape, data):
    array = np.arange(math.prod(shape)).reshape(shape)
    first = data.draw(st.integers(0, array.size - 1))
    last = data.draw(st.integers(first + 1, array.size))
    parts = [array[index] for index in spans(shape, first, last)]
    assert all(part.size for part in parts)
    assert np.concatenate([part.reshape(-1) for part in parts]).tolist() == list(range(first, last))
    assert len(parts) <= 2 * len(shape) - 1


@given(views(), st.data())
@examples(2)
def test_any_two_views_of_one_shape_are_copied_element_by_element(drawn, data):
    base, index = drawn
    view = base[index]
    if not view.size:
        return
    flip = tuple(slice(None, None, data.draw(st.sampled_from([1, -1, 2, -2]))) for _ in view.shape)
    wide = np.zeros([2 * length for length in view.shape], view.dtype)
    target = wide[(*flip, ...)][(*(slice(length) for length in view.shape), ...)]
    at, other = distance(target, wide), distance(view, base)
    for piece in boxes(target.shape, target.itemsize, target.strides, view.strides):
        move(piece, memory_of(wide), at, memory_of(base), other)
    assert target.tobytes() == view.tobytes()


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (np.s_[:], 1),
        (np.s_[3:7], 1),
        (np.s_[:, :, :], 1),
        (np.s_[:, :, 2:5], 1),
        (np.s_[::2], 1),
        (np.s_[::2, ::2], 1),
        (np.s_[::3, ::4], 3),
        (np.s_[::2, 1:4:2, 3], 1),
        (np.s_[::2, ::2, ::2], 4),
        (np.s_[:, 1:3], 1),
        (np.s_[:, :, ::2], 1),
        (np.s_[2, 3, 1], 1),
        (np.s_[::-1, ::-1, ::-1], 1),
        (np.s_[0:0], 0),
    ],
)
def test_regular_views_take_few_copies(index, expected):
    view = np.empty((8, 6, 10), np.float32)[index]
    packed = packing(view.shape, view.strides)
    pieces = list(boxes(packed.shape, 4, packed.strides, contiguous_strides(packed.shape, 4)))
    assert len(pieces) == expected


def test_planes_that_are_no_whole_number_of_rows_apart_are_walked_one_by_one():
    view = np.empty((8, 7, 10), np.float32)[:, ::2]
    assert 280 % 80
    assert len(list(boxes(view.shape, 4, view.strides, contiguous_strides(view.shape, 4)))) == 8


def test_a_pitch_that_the_driver_does_not_take_is_walked_row_by_row():
    for pitch, expected in ((MAX_PITCH, 1), (MAX_PITCH + 1, 3)):
        pieces = list(boxes((3, 16), 1, (pitch, 1), (16, 1)))
        assert len(pieces) == expected
        assert [piece.offset for piece in pieces] == [number * pitch for number in range(expected)]
        assert [piece.other_offset for piece in pieces] == [number * 16 for number in range(expected)]


def test_an_array_without_axes_is_one_item():
    assert list(boxes((), 8, (), ())) == [Box(8, 1, 1, 0, 8, 8, 0, 8, 8)]
    assert packing((), ()).offset == 0


def test_an_empty_array_is_no_copy():
    assert list(boxes((3, 0, 2), 4, (0, 8, 4), (0, 8, 4))) == []
    assert list(gather([], 10, 10)) == []


def test_pieces_are_as_large_as_the_limit_allows():
    assert [piece.width for piece in cut(Box(10, 1, 1, 0, 10, 10, 0, 10, 10), 4)] == [4, 4, 2]
    assert [piece.height for piece in cut(Box(4, 7, 1, 0, 100, 700, 0, 4, 28), 12)] == [3, 3, 1]
    assert [piece.depth for piece in cut(Box(4, 2, 5, 0, 100, 300, 0, 4, 8), 16)] == [2, 2, 1]
    assert [(piece.depth, piece.height) for piece in cut(Box(4, 3, 2, 0, 100, 300, 0, 4, 12), 8)] == [
        (1, 2),
        (1, 1),
        (1, 2),
        (1, 1),
    ]
    long_rows = list(cut(Box(5, 2, 1, 1, 50, 100, 2, 5, 10), 4))
    assert [(piece.width, piece.offset, piece.other_offset) for piece in long_rows] == [
        (4, 1, 2),
        (1, 5, 6),
        (4, 51, 7),
        (1, 55, 11),
    ]


# --- indices and shapes without numpy ---------------------------------------------------------------------------------

PARTS = st.one_of(
    st.integers(-8, 8), slices(6), st.slices(9), st.none(), st.just(Ellipsis), st.booleans(), st.just(np.int64(1))
)


@examples(4)
@given(drawn=views(), index=st.lists(PARTS, max_size=6).map(tuple))
def test_an_index_means_what_it_means_to_numpy_or_is_left_to_it(drawn, index):
    base, way = drawn
    view = base[way]
    stand_in = shadow(view.shape, view.strides, view.itemsize)
    found = indexed(view.shape, view.strides, index)
    try:
        expected = stand_in[(*index, ...)] if Ellipsis not in index else stand_in[index]
    except IndexError:
        assert found is None
        return
    if found is None:
        assert any(type(part) not in (int, slice, type(None), type(...)) for part in index)
        return
    offset, shape, strides = found
    assert (offset, shape, strides) == (distance(expected, stand_in), expected.shape, expected.strides)


@pytest.mark.parametrize("part", [slice(5, 2), slice(9, 20), slice(2, 9, -1), slice(-1, 0, 3), slice(None, None, -2)])
@pytest.mark.parametrize("length", [0, 1, 4, 5])
def test_an_empty_slice_begins_where_numpys_does(part, length):
    stand_in = shadow((length, 3), (24, 8), 8)
    expected = stand_in[part]
    assert indexed((length, 3), (24, 8), (part,)) == (distance(expected, stand_in), expected.shape, expected.strides)


def test_an_index_of_more_axes_than_numpy_has_is_left_to_it():
    shape = (1,) * MAX_AXES
    assert indexed(shape, (4,) * MAX_AXES, (0, None)) == (0, shape, (0, *(4,) * (MAX_AXES - 1)))
    assert indexed(shape, (4,) * MAX_AXES, (None,)) is None
    with pytest.raises(IndexError):
        shadow(shape, (4,) * MAX_AXES, 4)[None]


@given(
    shape=st.lists(st.integers(0, 6), max_size=4).map(tuple),
    wanted=st.lists(st.one_of(st.integers(-2, 12), st.just(True), st.just(2**70)), max_size=4),
)
def test_a_new_shape_is_numpys_or_left_to_it(shape, wanted):
    found = reshaped(math.prod(shape), wanted)
    try:
        expected = np.empty(shape, np.uint8).reshape(wanted).shape
    except (ValueError, TypeError, OverflowError):
        assert found is None
        return
    assert found in (None, expected)
    assert found is not None or 0 in shape or any(type(length) is not int for length in wanted)


@given(shape=st.lists(st.integers(0, 3), max_size=4), step=st.lists(st.integers(-30, 30), min_size=4, max_size=4))
def test_contiguous_is_what_numpy_calls_contiguous(shape, step):
    strides = tuple(step[: len(shape)])
    assert is_contiguous(tuple(shape), strides, 2) is shadow(tuple(shape), strides, 2).flags.c_contiguous
