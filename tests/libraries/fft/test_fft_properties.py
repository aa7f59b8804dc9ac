"""Transforms of arrays of any shape, dtype and layout, along any axes, against numpy in double precision."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np

from support import SWEEP
from support.fft import COMPLEX, Case, Shift, assert_near, cases, exact, numbers, plain, result_dtype, shifts
from support.linear import ask
from support.strategies import check_on_device, same

SHARE = 20 if SWEEP else 1
seeds = st.integers(0, 99)


@check_on_device(SHARE, cases(), st.booleans(), seeds)
async def test_a_transform_is_that_of_numpy_and_touches_nothing_else(
    dev: Any, case: Case, batched: bool, seed: int
) -> None:
    before = numbers(case.view.whole(case.shape), case.dtype, seed)
    x, whole = case.view.of(before), await dev.to_device(before)
    expected = exact(case.name, x, **case.keywords)
    dtype, keywords, target = result_dtype(case.name, case.dtype), dict(case.keywords), case.target or plain(x.ndim)
    around = numbers(target.whole(expected.shape), dtype, seed + 1)
    there = await dev.to_device(around)
    if case.target is not None:
        keywords["out"] = target.of(there)
    result = await ask(dev, batched, f"fft.{case.name}", case.view.of(whole), **keywords)
    found = await result.to_host()
    assert found.dtype.name == dtype
    assert_near(found, expected, case.points)
    assert same(await whole.to_host(), before)
    if case.target is not None:
        assert result is keywords["out"]
        target.of(around)[...] = found
    assert same(await there.to_host(), around)


@check_on_device(SHARE / 4, cases().filter(lambda case: case.name in COMPLEX), seeds)
async def test_a_transform_in_place_is_that_of_one_that_is_not(dev: Any, case: Case, seed: int) -> None:
    keywords = {name: value for name, value in case.keywords.items() if name not in ("n", "s")}
    before = numbers(case.view.whole(case.shape), "complex64" if seed % 2 else "complex128", seed)
    whole, apart = await dev.to_device(before), await dev.to_device(np.zeros_like(before))
    x, out = case.view.of(whole), case.view.of(apart)
    await getattr(dev.fft, case.name)(x, out=out, **keywords)
    assert await getattr(dev.fft, case.name)(x, out=x, **keywords) is x
    found, expected = await whole.to_host(), await out.to_host()
    assert_near(case.view.of(found), expected, case.points)
    case.view.of(before)[...] = case.view.of(found)
    assert same(found, before)


@check_on_device(SHARE / 4, shifts(), seeds)
async def test_a_shift_moves_the_bits_of_every_dtype(dev: Any, shift: Shift, seed: int) -> None:
    before = numbers(shift.view.whole(shift.shape), shift.dtype, seed)
    x = shift.view.of(before)
    result = await getattr(dev.fft, shift.name)(shift.view.of(await dev.to_device(before)), shift.axes)
    assert same(await result.to_host(), getattr(np.fft, shift.name)(x, shift.axes))
