"""Operators that would mislead: an array on the device says that it is not compared, and what to write instead."""

from __future__ import annotations

import copy
import operator
import pickle

import numpy as np
import pytest

OTHERS = {
    "itself": lambda array: array,
    "a view": lambda array: array[:],
    "a numpy array": lambda array: np.zeros(4),
    "a number": lambda array: 1.0,
    "None": lambda array: None,
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
async def test_arrays_are_not_compared(dev, compare, other):
    array = dev.zeros(4)
    for first, second in ((array, other(array)), (other(array), array)):
        with pytest.raises(TypeError, match="to_host"):
            compare(first, second)


@pytest.mark.parametrize("convert", [bool, int, float, complex])
async def test_an_array_is_no_number_and_no_truth(dev, convert):
    for array in (dev.zeros(1), dev.zeros(()), dev.zeros(0)):
        with pytest.raises(TypeError, match="to_host"):
            convert(array)


async def test_an_array_is_not_searched(dev):
    with pytest.raises(TypeError, match="to_host"):
        assert 1.0 in dev.zeros(4)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_an_array_is_not_pickled_or_copied_behind_the_device_s_back(dev, way):
    array = dev.zeros(4)
    with pytest.raises(TypeError, match="to_host"):
        way(array)
    if way is not copy.copy:
        with pytest.raises(TypeError, match="to_host"):
            way({"weights": [array]})
    assert (await array.to_host() == 0).all()


async def test_what_goes_by_identity_works(dev):
    first, second = dev.zeros(4), dev.zeros(4)
    names = {first: "first", second: "second"}
    assert (names[first], names[second], len({first, second, first}), len(first)) == ("first", "second", 2, 4)
    assert first in [first, second]
    assert first is not second
    assert first[1:3] not in names
