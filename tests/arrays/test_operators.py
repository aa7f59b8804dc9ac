"""What would mislead, or is a habit from elsewhere: operators, and names that ours do not have, say what to write."""

from __future__ import annotations

import copy
import operator
import pickle

import numpy as np
import pytest

import atomr_trio
from atomr_trio._values.habits import ARRAY, DEVICE

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


ARITHMETIC = {
    **{sign: getattr(operator, name) for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"))},
    **{sign: getattr(operator, name) for name, sign in (("floordiv", "//"), ("mod", "%"), ("pow", "**"))},
    **{sign: getattr(operator, name) for name, sign in (("and_", "&"), ("or_", "|"), ("xor", "^"))},
    **{sign: getattr(operator, name) for name, sign in (("lshift", "<<"), ("rshift", ">>"), ("matmul", "@"))},
    "divmod": divmod,
    "+=": operator.iadd,
    "@=": operator.imatmul,
}


@pytest.mark.parametrize("other", ["itself", "a numpy array", "a number", "a number of numpy", "None"])
@pytest.mark.parametrize("sign", ARITHMETIC)
async def test_arrays_have_no_arithmetic_and_say_what_has(dev, sign, other):
    array = dev.zeros(4)
    given = {**OTHERS, "a number of numpy": lambda array: np.float64(2)}[other](array)
    with pytest.raises(
        TypeError, match=r"no operator \S+: write it as a kernel \(`@atomr_trio.kernel`.*axpy"
    ) as caught:
        ARITHMETIC[sign](array, given)
    assert f"no operator {sign.rstrip('=')}:" in str(caught.value)
    with pytest.raises(TypeError, match="await"):
        ARITHMETIC[sign](given, array)


@pytest.mark.parametrize("sign", [operator.neg, operator.pos, operator.abs, operator.invert])
async def test_arrays_have_no_signs(dev, sign):
    with pytest.raises(TypeError, match=r"no operator .*`await x.to_host"):
        sign(dev.zeros(4))


async def test_numpy_computes_nothing_with_an_array_of_the_device(dev):
    host = np.ones(4)
    for compute in (np.sin, np.sum, lambda array: np.add(host, array), lambda array: np.multiply(host, 2, out=array)):
        with pytest.raises(TypeError):
            compute(dev.zeros(4))


@pytest.mark.parametrize("name", ARRAY)
async def test_a_name_that_arrays_have_elsewhere_says_what_it_is_here(dev, name):
    array = dev.zeros(4)
    with pytest.raises(AttributeError, match=f"'DeviceArray' object has no attribute '{name}': ") as caught:
        getattr(array, name)
    assert str(caught.value).endswith(ARRAY[name])
    assert not hasattr(array, name)
    assert name not in dir(array)


async def test_what_is_said_instead_is_what_there_is(dev):
    array = dev.zeros(4)
    for name in ("to_host", "copy_from", "copy_to", "address", "reshape"):
        assert hasattr(array, name)
        assert name in dir(array)
        assert any(name in said for said in ARRAY.values())
    with pytest.raises(AttributeError, match=r"^'DeviceArray' object has no attribute 'unheard_of'$"):
        _ = array.unheard_of


@pytest.mark.parametrize("name", DEVICE)
async def test_a_name_that_modules_of_arrays_have_says_what_a_device_has(dev, name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}': "):
        getattr(dev, name)
    assert name not in dir(dev)
    assert "to_device" in dir(dev)


async def test_a_kernel_that_is_called_as_elsewhere_says_how_it_is_launched(dev):
    kernel = await dev.nvrtc.compile('extern "C" __global__ void add(int *x) { x[0] += 1; }', "add")
    for call in (lambda: kernel((1,), (1,), (dev.zeros(1, np.int32),)), lambda: kernel[1, 1]):
        with pytest.raises(TypeError, match=r"`await kernel.launch\(grid, block, \*arguments\)`"):
            call()


def test_a_device_that_is_opened_without_async_says_so():
    for opening in (atomr_trio.open_device(0), atomr_trio.open_devices()):
        with pytest.raises(TypeError, match=r"`async with`.*`atomr_trio.start`"), opening:
            raise AssertionError("the block was entered")


@pytest.mark.parametrize("name", ["asarray", "arange", "RawKernel", "zeros", "batch"])
def test_the_module_says_what_to_write_instead_of_a_name_that_others_have(name):
    with pytest.raises(AttributeError, match=rf"module 'atomr_trio' has no attribute '{name}': .*dev\."):
        getattr(atomr_trio, name)
    for unknown in ("nothing_like_it", "_private"):
        with pytest.raises(AttributeError, match=rf"'{unknown}'$"):
            getattr(atomr_trio, unknown)


async def test_a_block_that_waits_is_not_entered_by_with(dev):
    for block in (dev.batch(), dev.lane()):
        with pytest.raises(TypeError, match="entered by `async with`"):
            with block:
                raise AssertionError("it was entered")
