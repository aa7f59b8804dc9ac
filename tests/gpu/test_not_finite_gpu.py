"""The answers of cuSOLVER itself to NaN and infinities: each call ends, and none costs the context.

Every verb is called without the look at its matrices. `pytest -s` prints the answers. Of larger matrices `svd` is left
out: with NaN it takes seconds, and longer than this test waits where others use the GPU too. That is why it begins only
when the look has found nothing.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import DeviceError

DEADLINE = 20
DTYPES = (np.float32, np.float64, np.complex128)
ORDERS = (1, 2, 5, 33, 300)
LARGEST_SVD = 33
BY_MATRIX = (
    *("svd", "eigh", "eigvalsh", "gesvdj", "syevj", "qr", "cholesky"),
    *("getrf", "geqrf", "inv", "det", "slogdet", "potri"),
)
IN_STACKS = ("gesvdj", "syevj", "getrf", "inv", "cholesky", "det")
WITH_SIDES = ("solve", "lstsq", "gels", "potrs")
UNLOOKED = ("potri", "potrs")
"""These have no `check_finite`."""


def kind(values: Any) -> str:
    values = np.asarray(values)
    if np.isnan(values).any():
        return "all NaN" if np.isnan(values).all() else "NaN"
    return "infinite" if np.isinf(values).any() else "FINITE"


async def answer(dev: Any, verb: str, *arguments: Any) -> str:
    options = {} if verb in UNLOOKED else {"check_finite": False}
    try:
        with trio.fail_after(DEADLINE):
            results = await getattr(dev.solver, verb)(*arguments, **options)
            several = results if isinstance(results, tuple) else (results,)
            given = [await each.to_host() if hasattr(each, "to_host") else each for each in several if each is not None]
    except DeviceError as error:
        return type(error).__name__
    return ", ".join(map(kind, given))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
async def test_a_library_call_with_what_is_not_finite_ends(dev: Any, dtype: type, value: float) -> None:
    rng = np.random.default_rng(1)
    for order, last in itertools.product(ORDERS, (False, True)):
        good = rng.normal(size=(order, order))
        good = (good + good.T + 4 * order * np.eye(order)).astype(dtype)
        bad = good.copy()
        bad[-1, order - 1 if last else 0] = value
        a, fine, stack = [await dev.to_device(each) for each in (bad, good, np.stack([good, bad]))]
        sides = await dev.to_device(np.ones((order, 2), dtype))
        verbs = [verb for verb in BY_MATRIX if verb != "svd" or order <= LARGEST_SVD]
        answers = {verb: await answer(dev, verb, a) for verb in verbs}
        answers |= {f"{verb} of a stack": await answer(dev, verb, stack) for verb in IN_STACKS}
        answers |= {verb: await answer(dev, verb, a, sides) for verb in WITH_SIDES}
        answers["gesvda"] = await answer(dev, "gesvda", a, 1)
        answers["sygvd of a"] = await answer(dev, "sygvd", a, fine)
        answers["sygvd of b"] = await answer(dev, "sygvd", fine, a)
        where = "the last element" if last else "the first element of the last row"
        print(f"{np.dtype(dtype).name}, order {order}, {value} in {where}:", answers)
        assert dev.generation == 1
        assert (await answer(dev, "inv", fine)) == "FINITE"
