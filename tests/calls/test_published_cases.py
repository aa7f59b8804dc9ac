"""Cases of dense linear algebra that were published together with their results, in both forms of every verb."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import Device
from support.blas import fresh_random, random
from support.linear import FORMS, ask

DEADLINE = 60
"""Seconds in which even a decomposition that went astray must have ended."""


@pytest.fixture(params=FORMS)
def call(dev: Device, request: pytest.FixtureRequest) -> Callable[..., Awaitable[Any]]:
    """Calls a verb in one of its forms."""
    return functools.partial(ask, dev, FORMS[request.param])


def single(*rows: Any) -> np.ndarray:
    return np.array(rows, np.float32)


async def test_a_matrix_times_the_identity_is_that_matrix(dev, call):
    a = single([1, 2], [3, 4])
    product = await call("blas.gemm", await dev.to_device(a), await dev.to_device(np.eye(2, dtype=np.float32)))
    assert (await product.to_host() == a).all()


async def test_a_product_of_zeros_is_zero(dev, call):
    product = await call("blas.gemm", dev.zeros((64, 64), np.float32), dev.zeros((64, 64), np.float32))
    assert not (await product.to_host()).any()


async def test_a_product_of_random_matrices_is_that_of_double_precision(dev, call):
    rng = fresh_random()
    a, b = random(rng, (64, 64), "float32"), random(rng, (64, 64), "float32")
    product = await call("blas.gemm", await dev.to_device(a), await dev.to_device(b))
    expected = a.astype(np.float64) @ b
    assert np.abs(await product.to_host() - expected).max() <= 1e-5 * np.abs(expected).max()


async def test_a_million_elements_are_added_and_summed_exactly(dev, call):
    count = 1 << 20
    x, y = dev.full(count, np.float32(1)), dev.full(count, np.float32(2))
    assert await call("blas.axpy", x, y, 1.5) is y
    assert (await y.to_host() == 3.5).all()
    assert await call("blas.dot", x, x) == count
    # Both can be used again.
    assert (await x.to_host() == 1).all()
    await call("blas.axpy", y, x, 2)
    assert (await x.to_host() == 8).all()


async def test_a_million_elements_in_one_batch(dev):
    count = 1 << 20
    x, y = dev.full(count, np.float32(1)), dev.full(count, np.float32(2))
    async with dev.batch() as batch:
        batch.blas.axpy(x, y, 1.5)
        answer = batch.blas.dot(x, x)
        batch.blas.axpy(y, x, 2)
    assert answer == count
    assert (await y.to_host() == 3.5).all()
    assert (await x.to_host() == 8).all()


async def test_singular_values_of_a_diagonal_matrix_come_in_their_order(dev, call):
    with trio.fail_after(DEADLINE):
        u, s, vh = await call("solver.gesvd", await dev.to_device(single([3, 0], [0, 5])))
        np.testing.assert_allclose(await s.to_host(), [5, 3], atol=1e-3)
        product = await u.to_host() * [5, 3] @ await vh.to_host()
    np.testing.assert_allclose(product, [[3, 0], [0, 5]], atol=1e-3)


async def test_eigenvalues_of_a_symmetric_matrix_come_in_their_order(dev, call):
    a = single([2, 1], [1, 2])
    with trio.fail_after(DEADLINE):
        w, v = await call("solver.syevd", await dev.to_device(a))
        np.testing.assert_allclose(await w.to_host(), [1, 3], atol=1e-3)
        vectors = await v.to_host()
    np.testing.assert_allclose(a @ vectors, vectors * [1, 3], atol=1e-3)


async def test_singular_values_of_a_stack_belong_each_to_its_matrix(dev, call):
    stack = np.stack([np.diag(single(2, 5)), np.diag(single(3, 7))])
    with trio.fail_after(DEADLINE):
        _, s, _ = await call("solver.gesvdj", await dev.to_device(stack))
        np.testing.assert_allclose(await s.to_host(), [[5, 2], [7, 3]], atol=1e-4)
