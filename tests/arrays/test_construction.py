"""The short way to an array is the long way, only shorter: what is checked at once is checked as everything is."""

from __future__ import annotations

import math
import re
import sys

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from atomr_trio import InvalidArgument
from atomr_trio._arrays.arrays import check_shape, contiguous
from atomr_trio._arrays.layout import MAX_AXES, contiguous_strides
from atomr_trio._values.dtypes import DTYPES, check_dtype

lengths = st.one_of(
    st.integers(-1, 5),
    st.sampled_from(
        [True, False, 1.0, 2.5, "3", None, np.int64(3), np.float32(1), sys.maxsize, sys.maxsize + 1, 2**40]
    ),
)
shapes = st.one_of(lengths, st.lists(lengths, max_size=4), st.lists(lengths, max_size=4).map(tuple))


@given(shapes, st.sampled_from([1, 2, 4, 8, 16]))
def test_shape_strides_and_bytes_are_those_of_the_checks_one_by_one(shape, itemsize):
    try:
        checked = check_shape(shape, itemsize)
    except InvalidArgument as error:
        with pytest.raises(InvalidArgument, match=f"^{re.escape(str(error))}$"):
            contiguous(shape, itemsize)
        return
    made, strides, nbytes = contiguous(shape, itemsize)
    assert (made, strides) == (checked, contiguous_strides(checked, itemsize))
    assert nbytes == math.prod(checked) * itemsize
    assert {type(each) for each in (*made, *strides, nbytes)} == {int}


@given(st.lists(st.integers(1, 4), max_size=5).map(tuple), st.sampled_from(DTYPES))
def test_strides_and_bytes_are_numpys(shape, dtype):
    host = np.empty(shape, dtype)
    assert contiguous(shape, dtype.itemsize) == (host.shape, host.strides, host.nbytes)


@pytest.mark.parametrize("axes", [MAX_AXES, MAX_AXES + 1])
def test_more_axes_than_numpy_has_are_refused(axes):
    if axes > MAX_AXES:
        with pytest.raises(InvalidArgument, match="axes"):
            contiguous((1,) * axes, 4)
    else:
        assert contiguous((1,) * axes, 4) == ((1,) * axes, (4,) * axes, 4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_dtype_is_the_same_however_it_is_named(dtype):
    for name in (dtype, dtype.type, dtype.str, dtype.name, np.dtype(dtype, metadata={"unit": "m"})):
        assert check_dtype(name) == dtype


def test_what_python_calls_a_number_is_numpys_dtype_for_it():
    assert [check_dtype(kind) for kind in (None, float, int, bool, complex)] == ["f8", "f8", "i8", "?", "c16"]


@pytest.mark.parametrize(
    "dtype", [">f4", np.dtype(">i8"), "U3", object, [("x", "f4")], ["f4"], {"a": 1}, 1, True, "no"]
)
def test_what_is_no_dtype_of_an_array_is_refused(dtype):
    with pytest.raises(InvalidArgument):
        check_dtype(dtype)
