"""Convolutions by transforms, against scipy."""

from __future__ import annotations

from typing import Any

import attrs
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.signal  # type: ignore[import-untyped, unused-ignore]

from atomr_trio import InvalidArgument
from support import SWEEP
from support.blas import submitted
from support.fft import PRECISIONS, View, numbers, views
from support.linear import FORMS, ask, call
from support.strategies import check_on_device, same

pytestmark = pytest.mark.used_workers

MODES = ("full", "valid", "same")
DTYPES = ("float32", "float64", "complex64", "complex128", "int8", "float16")


def assert_convolved(found: Any, a: Any, b: Any, mode: str, axes: Any) -> None:
    wide = [each.astype(np.complex128 if each.dtype.kind == "c" else np.float64) for each in (a, b)]
    expected = scipy.signal.fftconvolve(*wide, mode, axes)
    real = max(PRECISIONS[each.dtype.name] for each in (a, b))
    assert found.shape == expected.shape
    assert found.dtype == np.result_type(real, np.complex64 if "c" in (a.dtype.kind, b.dtype.kind) else real)
    # Each element is a sum of products, and its error is one of the largest sums.
    bound = 60 * np.finfo(found.dtype).eps * np.linalg.norm(wide[0]) * np.linalg.norm(wide[1])
    assert np.abs(found - expected).max(initial=0) <= bound


@attrs.frozen
class Case:
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    views: tuple[View, View]
    mode: str
    axes: Any


@st.composite
def cases(draw: st.DrawFn) -> Case:
    axes = draw(st.integers(1, 4))
    mode, length = draw(st.sampled_from(MODES)), st.integers(1, 6)
    some = st.permutations(range(axes)).flatmap(lambda order: st.integers(1, axes).map(lambda n: order[:n]))
    convolved = draw(st.none() | some)
    first = [draw(length) for _ in range(axes)]
    second = [draw(length) for _ in range(axes)]
    for axis in range(axes):
        if convolved is not None and axis not in convolved:
            second[axis] = draw(st.sampled_from([1, first[axis]]))
    if mode == "valid":
        pairs = [sorted(pair) for pair in zip(first, second, strict=True)]
        first, second = [pair[1] for pair in pairs], [pair[0] for pair in pairs]
        if draw(st.booleans()):
            first, second = second, first
    dtypes = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(DTYPES))
    chosen = None if convolved is None else tuple(convolved)
    return Case((tuple(first), tuple(second)), dtypes, (draw(views(axes)), draw(views(axes))), mode, chosen)


@check_on_device(5 if SWEEP else 0.6, cases(), st.integers(0, 99))
async def test_a_convolution_is_that_of_scipy_and_reads_alone(dev: Any, case: Case, seed: int) -> None:
    wholes = [
        numbers(view.whole(shape), dtype, seed + at)
        for at, (view, shape, dtype) in enumerate(zip(case.views, case.shapes, case.dtypes, strict=True))
    ]
    given = [await dev.to_device(each) for each in wholes]
    parts, arrays = ([view.of(each) for view, each in zip(case.views, side, strict=True)] for side in (wholes, given))
    result = await dev.fft.fftconvolve(*arrays, case.mode, case.axes)
    assert_convolved(await result.to_host(), *parts, case.mode, case.axes)
    for before, array in zip(wholes, given, strict=True):
        assert same(await array.to_host(), before)


@pytest.mark.parametrize("batched", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("mode", MODES)
async def test_a_convolution_of_images_in_both_forms(dev, mode, batched):
    image, kernel = numbers((3, 20, 31), "float32"), numbers((1, 5, 4), "float32", 1)
    a, b = [await dev.to_device(each) for each in (image, kernel)]
    for axes in (None, (1, 2), 2):
        if axes == 2:
            b = await dev.to_device(kernel[:, :1])
        result = await ask(dev, batched, "fft.fftconvolve", a, b, mode=mode, axes=axes)
        assert_convolved(await result.to_host(), image, kernel[:, :1] if axes == 2 else kernel, mode, axes)


async def test_an_array_is_convolved_with_itself(dev):
    x = numbers((50,), "complex64")
    given = await dev.to_device(x)
    for _ in range(2):
        assert_convolved(await (await dev.fft.fftconvolve(given, given)).to_host(), x, x, "full", None)


async def test_a_wrong_convolution_is_refused_and_nothing_is_sent(dev, open_test_device):
    a, b = dev.zeros((4, 6), "float32"), dev.zeros((3, 3), "float32")
    async with open_test_device() as other, dev.batch() as batch:
        before = submitted(dev)
        for match, arguments in (
            ('mode is "full", "valid" or "same", not', (a, b, "all")),
            ("a is an array on the device", (np.zeros((4, 6)), b)),
            ("b is an array on the device", (a, None)),
            ("as many axes", (a, a[0])),
            ("as many axes, at least 1", (dev.zeros((), "float32"), dev.zeros((), "float32"))),
            ("a and b have elements", (a, b[:0])),
            ("axes names at least 1 axis, and each once", (a, b, "full", (0, 0))),
            ("axes names at least 1 axis, and each once", (a, b, "full", ())),
            ("axis 2 is out of range", (a, b, "full", 2)),
            ("along axis 1, which is not convolved", (a, b, "full", 0)),
            ('with mode "valid", one of a and b is at least as long', (a, dev.zeros((5, 2), "float32"), "valid")),
            ("float8_e5m2 is not supported", (a, dev.zeros((3, 3), "float8_e5m2"))),
            ("belongs to another device", (a, other.zeros((3, 3), "float32"))),
        ):
            for owner in (dev, batch):
                with pytest.raises(InvalidArgument, match=match):
                    await call(owner, "fft.fftconvolve", *arguments)
        assert submitted(dev) == before
