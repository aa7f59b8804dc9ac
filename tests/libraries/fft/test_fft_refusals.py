"""A wrong call of `dev.fft` is refused by a typed error in both forms, and nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from atomr_trio import InvalidArgument
from support.blas import submitted
from support.fft import COMPLEX, ONE_AXIS, TRANSFORMS
from support.linear import call
from support.verbs import noting

pytestmark = pytest.mark.used_workers


def rows(dev: Any, other: Any) -> Iterator[tuple[Any, ...]]:
    """Wrong calls: the verb, what is said of it, the arguments, and those by name last."""
    x, z, wide = dev.zeros((4, 6), "float32"), dev.zeros((4, 6), "complex64"), dev.zeros((4, 12), "complex64")
    gone = dev.empty((4, 6), "float32")
    gone.free()
    for name in TRANSFORMS:
        yield name, "x is an array on the device", np.zeros((4, 6))
        yield name, "x is an array on the device", None
        yield name, "the array was freed", gone
        yield name, "belongs to another device", other.zeros((4, 6), "float32")
        yield name, "float8_e5m2 is not supported; use", dev.zeros((4, 6), "float8_e5m2")
        yield name, 'norm is "backward", "ortho" or "forward", not', x, {"norm": "both"}
        yield name, 'norm is "backward", "ortho" or "forward", not', x, {"norm": ["ortho"]}
        yield name, "out is an array on the device", x, {"out": np.zeros((4, 6), complex)}
        yield name, "out has shape", x, {"out": dev.zeros((9, 9), "complex64")}
        yield name, "out has shape .* and dtype float16", x, {"out": dev.zeros((4, 6), "float16")}
        if name in ONE_AXIS:
            for axis in (2, -3):
                yield name, f"axis {axis} is out of range for an array of 2 axes", x, {"axis": axis}
            for length in (0, -1):
                yield name, f"at least 1 point; along axis 1 it has {length}", x, {"n": length}
            for wrong in (2.0, "2", [2], np.float64(2)):
                yield name, "n is an integer, not", x, {"n": wrong}
                yield name, "axis is an integer, not", x, {"axis": wrong}
            yield name, "axis is an integer, not", x, {"axis": None}
            yield name, "out of range", dev.zeros((), "float32")
            yield name, "at least 1 point", dev.zeros((4, 0), "float32")
            yield name, "too many", x, {"n": 1 << 60}
        else:
            yield name, "axis 2 is out of range", x, {"axes": (0, 2)}
            yield name, "at least 1 axis", x, {"axes": ()}
            yield name, "s has 1 lengths, and axes has 2 axes", x, {"s": (4,), "axes": (0, 1)}
            yield name, "at least 1 point; along axis 0 it has 0", x, {"s": (0, 4)}
            yield name, "at least 1 point; along axis 1 it has -2", x, {"s": (4, -2)}
            yield name, "at least 1 point", dev.zeros((4, 0, 6), "float32"), {"axes": (0, 1)}
            yield name, "axes has 65 axes; at most 64", x, {"axes": (0,) * 65}
            for wrong in (4, 2.0, "44", {4: 4}):
                yield name, "s is a sequence of integers, not", x, {"s": wrong}
                yield name, "axes is a sequence of integers, not", x, {"axes": wrong}
            for wrong in ((4, None), (4, 2.0), ("4", 4)):
                yield name, "each of s is an integer", x, {"s": wrong}
                yield name, "each of axes is an integer", x, {"axes": wrong}
            yield name, "too many", x, {"s": (1 << 31, 1 << 31)}
    for name in ("rfft", "rfft2", "rfftn", "ihfft"):
        yield name, f"{name} takes real numbers, not complex64", z
    for name in ("irfft", "hfft"):
        yield name, "at least 1 point; along axis 1 it has 0", z[:, :1]
        yield name, "shares memory with an input", x, {"n": 6, "out": x}
    for name in COMPLEX:
        yield name, "shares memory with an input", wide[:, :6], {"out": wide[:, 1:7]}
        yield name, "shares memory with an input", wide[:, :6], {"out": wide[::-1, :6]}
    yield "fft", "shares memory with an input", wide[:, :6], {"n": 12, "out": wide}
    yield "rfft", "shares memory with an input", z[:, :3].view("float32"), {"n": 4, "out": z[:, :3]}
    yield "fftshift", "x is an array on the device", [1]
    yield "fftshift", "axis 2 is out of range", x, 2
    yield "ifftshift", "axis -3 is out of range", x, (0, -3)
    yield "ifftshift", "axes is an integer", x, 1.5
    yield "fftshift", "the array was freed", gone
    yield "ifftshift", "belongs to another device", other.zeros((4, 6), "float32")
    yield "run", "plan is made by", "fft", x


async def test_each_wrong_call_says_what_is_wrong_and_nothing_is_sent(dev, open_test_device):
    async with open_test_device() as other:
        before = submitted(dev)
        async with dev.batch() as batch:
            for name, message, *given in rows(dev, other):
                keywords = given.pop() if isinstance(given[-1], dict) else {}
                for owner in (dev, batch):
                    with noting((name, message, keywords)), pytest.raises(InvalidArgument, match=message):
                        await call(owner, f"fft.{name}", *given, **keywords)
            assert submitted(dev) == before


async def test_numbers_of_points_are_checked_on_the_host(dev):
    for function in (dev.fft.fftfreq, dev.fft.rfftfreq, dev.fft.next_fast_len):
        for wrong in (0, -1, 1 << 63):
            with pytest.raises(InvalidArgument, match="n is a number of points"):
                function(wrong)
        with pytest.raises(InvalidArgument, match="n is an integer"):
            function(2.5)
    with pytest.raises(InvalidArgument, match="d is the distance"):
        dev.fft.fftfreq(4, "1 s")


@pytest.mark.parametrize("n", [1, 2, 7, 8])
async def test_frequencies_are_those_of_numpy(dev, n):
    assert (dev.fft.fftfreq(n, 0.5) == np.fft.fftfreq(n, 0.5)).all()
    assert (dev.fft.rfftfreq(n) == np.fft.rfftfreq(n)).all()
    assert dev.fft.fftfreq(np.int64(n)).dtype == np.float64


async def test_a_fast_length_has_small_factors_alone_and_none_is_shorter(dev):
    def is_fast(n: int) -> bool:
        for factor in (2, 3, 5, 7):
            while n % factor == 0:
                n //= factor
        return n == 1

    fast = [n for n in range(1, 600) if is_fast(n)]
    assert [dev.fft.next_fast_len(n) for n in range(1, 540)] == [min(m for m in fast if m >= n) for n in range(1, 540)]
    assert dev.fft.next_fast_len(10**9 + 1) == 1_000_188_000
