"""The solver's verbs with numpy's names, held against numpy: shapes, stacks, empty matrices; numbers by residuals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from atomr_trio import ContextLost, NotPositiveDefiniteError, SingularMatrixError
from support.blas import DTYPES, MATRICES, REALS, SCATTERED, exact, fresh_random, place, random, shared
from support.solver import (
    SHAPES,
    SIZES,
    Solving,
    adjoint,
    assert_orthonormal,
    assert_refused,
    assert_small,
    half,
    hermitian,
    paired,
    positive,
    steepness,
)

LAYOUTS = MATRICES + SCATTERED
STACKS = ((3,), (2, 3), (40,))
"""Leading axes; the last are more than a matrix has columns, so that they are turned round in another way."""


@pytest.fixture
def rng() -> np.random.Generator:
    return fresh_random()


def well_conditioned(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.asarray(random(rng, shape, dtype) + 3 * np.eye(*shape[-2:]) * shape[-1] ** 0.5, dtype)


# --- linear systems ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
async def test_solve_takes_every_layout(dev, rng, dtype):
    call = Solving(dev)
    for (number, layout), order in shared(itertools.product(enumerate(LAYOUTS), SIZES), dtype):
        a, b = random(rng, (order, order), dtype), random(rng, (order, 3), dtype)
        x = await place(dev, layout, a)
        y = await place(dev, LAYOUTS[number - 2], b)
        solution = await call("solve", x.array, y.array)
        assert_small(exact(a) @ exact(solution) - exact(b), np.abs(a).sum() * np.abs(solution).max(), dtype, 1)
        assert (await x.read() == a).all()
        assert (await y.read() == b).all()


@pytest.mark.parametrize("dtype", DTYPES)
async def test_solve_broadcasts_stacks_as_numpy_does(dev, rng, dtype):
    call = Solving(dev)
    shapes = [
        ((4, 4), (4,)),
        ((2, 4, 4), (4,)),
        ((2, 4, 4), (2, 4, 3)),
        ((4, 4), (5, 4, 2)),
        ((3, 1, 4, 4), (2, 4, 1)),
        ((40, 4, 4), (4, 2)),
    ]
    for left, right in shapes:
        a, b = well_conditioned(rng, left, dtype), random(rng, right, dtype)
        expected = np.linalg.solve(exact(a), exact(b))
        for transposed in (False, True):
            x = await dev.to_device(np.ascontiguousarray(np.swapaxes(a, -1, -2)) if transposed else a)
            axes = (*range(a.ndim - 2), a.ndim - 1, a.ndim - 2)
            solution = await call("solve", x.transpose(*axes) if transposed else x, await dev.to_device(b))
            assert solution.shape == expected.shape
            assert_small(exact(solution) - expected, expected, dtype, 16)


async def test_what_is_too_scattered_for_one_copy_is_copied_in_parts(dev, rng):
    call = Solving(dev)
    a, b = well_conditioned(rng, (300, 3, 3), "float64"), random(rng, (3,), "float64")
    solution = await call("solve", await dev.to_device(a), await dev.to_device(b))
    assert_small(solution - np.linalg.solve(a, np.broadcast_to(b[:, None], (300, 3, 1)))[..., 0], 1, np.float64, 100)
    large = well_conditioned(rng, (600, 600), "float64")
    inverse = await call("inv", (await dev.to_device(large))[::2, ::2])
    assert_small(large[::2, ::2] @ inverse - np.eye(300), 1, np.float64, 300)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_inv_keeps_the_layout_and_what_it_is_given(dev, rng, dtype):
    call = Solving(dev)
    for layout, order in shared(paired(LAYOUTS, SIZES), dtype):
        a = well_conditioned(rng, (order, order), dtype)
        x = await place(dev, layout, a)
        inverse = await call("inv", x.array)
        assert_small(exact(a) @ exact(inverse) - np.eye(order), 1, dtype, order)
        assert (await x.read() == a).all()
    for stack in STACKS:
        a = well_conditioned(rng, (*stack, 4, 4), dtype)
        inverse = await call("inv", await dev.to_device(a))
        assert_small(exact(a) @ exact(inverse) - np.eye(4), 1, dtype, 4)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_lstsq_is_least_squares_for_tall_and_least_norm_for_wide_matrices(dev, rng, dtype):
    call = Solving(dev)
    for layout, (rows, columns) in shared(paired(LAYOUTS, SHAPES), dtype):
        a = random(rng, (rows, columns), dtype) + 3 * np.eye(rows, columns, dtype=dtype)
        x = await place(dev, layout, a)
        for shape in ((rows,), (rows, 3)):
            b = random(rng, shape, dtype)
            solution = await call("lstsq", x.array, await dev.to_device(b))
            expected = np.linalg.lstsq(exact(a), exact(b))[0]
            assert solution.shape == expected.shape
            assert_small(exact(solution) - expected, 1, dtype, 20 * max(rows, columns) * steepness(a))
        assert (await x.read() == a).all()
    for shape in ((3, 6, 4), (3, 4, 6)):
        a, b = random(rng, shape, dtype) + 3 * np.eye(*shape[1:], dtype=dtype), random(rng, (*shape[:2], 2), dtype)
        solution = await call("lstsq", await dev.to_device(a), await dev.to_device(b))
        for each, side, found in zip(exact(a), exact(b), exact(solution), strict=True):
            assert_small(found - np.linalg.lstsq(each, side)[0], 1, dtype, 100 * steepness(each))


async def test_lstsq_refuses_a_matrix_that_is_not_of_full_rank(dev, rng):
    call = Solving(dev)
    a = random(rng, (7, 3), "float64")
    a[:, 2] = a[:, 0] + a[:, 1]
    for matrix, sides in ((a, 7), (a.T.copy(), 3)):
        error = await call.fails(
            SingularMatrixError, "lstsq", await dev.to_device(matrix), await dev.to_device(np.ones(sides))
        )
        assert (error.pivot, error.matrix, error.operation) == (2, None, "solver.lstsq")
    stack = np.stack([random(rng, (7, 3), "float64"), a])
    error = await call.fails(SingularMatrixError, "lstsq", await dev.to_device(stack), await dev.to_device(np.ones(7)))
    assert (error.pivot, error.matrix) == (2, (1,))


async def test_singular_and_indefinite_matrices_are_typed_errors(dev):
    call = Solving(dev)
    singular = await dev.to_device(np.diag([1.0, 1, 0, 1]))
    for arguments in (("solve", singular, await dev.to_device(np.ones(4))), ("inv", singular)):
        error = await call.fails(SingularMatrixError, *arguments)
        assert (error.pivot, error.matrix) == (2, None)
    for upper in (False, True):
        indefinite = await dev.to_device(np.diag([1.0, 1, 1, -1]).astype(np.complex64))
        error = await call.fails(NotPositiveDefiniteError, "cholesky", indefinite, upper=upper)
        assert (error.minor, error.matrix) == (4, None)


# --- factorizations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
async def test_cholesky_reads_one_triangle_and_clears_the_other(dev, rng, dtype):
    call = Solving(dev)
    for (layout, order), upper in shared(itertools.product(paired(LAYOUTS, (*SIZES, 21)), (False, True)), dtype):
        a = positive(rng, (order, order), dtype)
        x = await place(dev, layout, half(a, not upper))
        factor = await call("cholesky", x.array, upper=upper)
        assert (factor == (np.triu(factor) if upper else np.tril(factor))).all()
        assert (factor.diagonal().real > 0).all()
        product = adjoint(exact(factor)) @ exact(factor) if upper else exact(factor) @ adjoint(exact(factor))
        assert_small(product - exact(a), a, dtype, order)
    for stack, upper in itertools.product(STACKS, (False, True)):
        a = positive(rng, (*stack, 5, 5), dtype)
        factor = await call("cholesky", await dev.to_device(a), upper=upper)
        assert_small(exact(factor) - np.linalg.cholesky(exact(a), upper=upper), a, dtype, 5)


async def test_the_triangle_of_a_large_matrix_is_cleared_by_few_commands(dev, rng):
    a = await dev.to_device(np.eye(1000, dtype=np.float32) * 4 + 1e-3)
    before = sum(lane.submitted for lane in dev.statistics().lanes)
    factor = await dev.solver.cholesky(a)
    assert sum(lane.submitted for lane in dev.statistics().lanes) - before < 120
    assert (np.triu(await factor.to_host(), 1) == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
async def test_qr_in_every_mode(dev, rng, dtype):
    call = Solving(dev)
    cases = [((), layout, shape) for layout, shape in paired(LAYOUTS, SHAPES)]
    cases += [(stack, None, shape) for stack, shape in itertools.product(STACKS, ((5, 3), (3, 5)))]
    for stack, layout, shape in shared(cases, dtype):
        a = random(rng, (*stack, *shape), dtype)
        x = await dev.to_device(a) if layout is None else (await place(dev, layout, a)).array
        for mode in ("reduced", "complete", "r"):
            q, r = await call("qr", x, mode=mode)
            height = shape[0] if mode == "complete" else min(shape)
            assert r.shape == (*stack, height, shape[1])
            assert (r == np.triu(r)).all()
            if mode == "r":
                assert q is None
                assert_small(adjoint(exact(r)) @ exact(r) - adjoint(exact(a)) @ exact(a), shape[0], dtype, shape[0])
            else:
                assert q.shape == (*stack, shape[0], height)
                assert_orthonormal(q)
                assert_small(exact(q) @ exact(r) - exact(a), a, dtype, max(shape))


@pytest.mark.parametrize("dtype", DTYPES)
async def test_svd_of_tall_and_wide_matrices(dev, rng, dtype):
    call = Solving(dev)
    cases = [((), layout, shape) for layout, shape in paired(LAYOUTS, SHAPES)]
    cases += [(stack, None, shape) for stack, shape in itertools.product(STACKS, ((5, 3), (3, 5)))]
    for stack, layout, (rows, columns) in shared(cases, dtype):
        a = random(rng, (*stack, rows, columns), dtype)
        x = await dev.to_device(a) if layout is None else (await place(dev, layout, a)).array
        smaller = min(rows, columns)
        for full in (True, False):
            u, s, vh = await call("svd", x, full_matrices=full)
            assert (u.shape, s.shape) == ((*stack, rows, rows if full else smaller), (*stack, smaller))
            assert vh.shape == (*stack, columns if full else smaller, columns)
            assert_orthonormal(u)
            assert_orthonormal(adjoint(vh))
            product = (exact(u)[..., :smaller] * exact(s)[..., None, :]) @ exact(vh)[..., :smaller, :]
            assert_small(product - exact(a), s, dtype, max(rows, columns))
            assert_small(exact(s) - np.linalg.svd(exact(a), compute_uv=False), s, dtype, max(rows, columns))
        nothing, s, none = await call("svd", x, compute_uv=False)
        assert nothing is none is None
        assert s.dtype == REALS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
async def test_eigh_and_eigvalsh_of_stacks(dev, rng, dtype):
    call = Solving(dev)
    for stack, lower in shared(itertools.product(((), *STACKS), (True, False)), dtype):
        a = hermitian(rng, (*stack, 5, 5), dtype)
        x = await dev.to_device(half(a, lower))
        values, vectors = await call("eigh", x, lower=lower)
        assert_small(exact(a) @ exact(vectors) - exact(vectors) * exact(values)[..., None, :], 5, dtype, 5)
        assert_orthonormal(vectors)
        alone = await call("eigvalsh", x, lower=lower)
        assert_small(exact(alone) - np.linalg.eigvalsh(exact(a)), 5, dtype, 5)


# --- determinants -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
async def test_determinants_have_the_right_sign_and_size(dev, rng, dtype):
    call = Solving(dev)
    for stack, order in shared(itertools.product(((), *STACKS), (1, 2, 5)), dtype):
        a = random(rng, (*stack, order, order), dtype)
        x = await dev.to_device(a)
        expected, size = np.linalg.det(exact(a)), np.abs(a).sum(axis=-1).prod(axis=-1)
        result = await call("det", x)
        assert (result.shape, result.dtype) == (stack, dtype)
        assert_small((exact(result) - expected) / size, 1, dtype, order)
        sign, logarithm = await call("slogdet", x)
        assert (sign.dtype, logarithm.dtype) == (dtype, REALS[dtype])
        assert_small((exact(sign) * np.exp(exact(logarithm)) - expected) / size, 1, dtype, 10 * order)


async def test_the_determinant_of_a_large_matrix_is_read_in_parts(dev):
    order = 600  # the diagonal is more than one call answers
    values = 1 + np.arange(order) / order
    a = await dev.to_device(np.roll(np.diag(values.astype(complex)), 1, axis=0))
    sign, logarithm = await dev.solver.slogdet(a)
    np.testing.assert_allclose(logarithm, np.log(values).sum(), rtol=1e-12)
    np.testing.assert_allclose(sign, -1)  # one cycle of an even length is an odd permutation


async def test_a_singular_matrix_has_no_determinant_but_zero(dev):
    call = Solving(dev)
    stack = await dev.to_device(np.stack([np.diag([2.0, 0, 3]), np.eye(3)]))
    assert (await call("det", stack) == [0, 1]).all()
    sign, logarithm = await call("slogdet", stack)
    assert (sign == [0, 1]).all()
    assert (logarithm == [-np.inf, 0]).all()


# --- what numpy does with nothing, and what is refused ----------------------------------------------------------------

EMPTY = {
    "solve": [((0, 0), (0,)), ((0, 0), (0, 3)), ((4, 4), (4, 0)), ((0, 4, 4), (0, 4, 2)), ((0, 4, 4), (4,))],
    "inv": [((0, 0),), ((0, 3, 3),), ((2, 0, 0),)],
    "cholesky": [((0, 0),), ((0, 3, 3),)],
    "qr": [((0, 0),), ((3, 0),), ((0, 3),), ((0, 3, 2),), ((2, 3, 0),)],
    "svd": [((0, 0),), ((3, 0),), ((0, 3),), ((0, 3, 2),)],
    "eigh": [((0, 0),), ((0, 3, 3),)],
    "eigvalsh": [((0, 0),)],
    "det": [((0, 0),), ((0, 3, 3),), ((2, 0, 0),)],
    "slogdet": [((0, 0),), ((2, 0, 0),)],
}


@pytest.mark.parametrize("verb", EMPTY)
async def test_empty_matrices_give_what_numpy_gives(dev, verb):
    call = Solving(dev)
    for shapes in EMPTY[verb]:
        arrays = [np.ones(shape, np.float32) * (np.eye(*shape[-2:]) if len(shape) > 1 else 1) for shape in shapes]
        arrays = [array.astype(np.float32) for array in arrays]
        if verb == "qr":
            keywords: list[dict[str, Any]] = [{"mode": mode} for mode in ("reduced", "complete")]
        else:
            keywords = [{"full_matrices": full} for full in (True, False)] if verb == "svd" else [{}]
        for options in keywords:
            expected = getattr(np.linalg, verb)(*arrays, **options)
            found = await call(verb, *[await dev.to_device(array) for array in arrays], **options)
            pairs = zip(expected, found, strict=True) if isinstance(found, tuple) else [(expected, found)]
            for wanted, given in pairs:
                assert (given.shape, given.dtype) == (np.shape(wanted), np.asarray(wanted).dtype), shapes
                assert (given == wanted).all(), shapes


async def test_lstsq_of_empty_matrices_is_zero(dev):
    call = Solving(dev)
    for shape, sides in (((3, 0), (3,)), ((0, 3), (0,)), ((0, 3), (0, 2)), ((3, 2), (3, 0))):
        expected = np.linalg.lstsq(np.zeros(shape), np.zeros(sides))[0]
        found = await call("lstsq", dev.zeros(shape, np.float64), dev.zeros(sides, np.float64))
        assert found.shape == expected.shape
        assert (found == 0).all()


async def test_wrong_calls_are_refused_and_nothing_is_sent(dev):
    square, wide, vector = dev.zeros((4, 4), np.float32), dev.zeros((3, 5), np.float32), dev.zeros(4, np.float32)
    freed = dev.zeros((4, 4), np.float32)
    freed.free()
    calls: dict[str, tuple[Any, ...]] = {
        "no array": ("inv", np.eye(3)),
        "freed": ("det", freed),
        "integers": ("eigh", dev.zeros((4, 4), np.int32)),
        "a number": ("solve", square, dev.zeros((), np.float32)),
        "not square": ("solve", wide, vector),
        "different types": ("solve", square, dev.zeros(4, np.float64)),
        "too few rows": ("solve", square, dev.zeros(3, np.float32)),
        "stacks that do not fit": ("solve", dev.zeros((2, 4, 4), np.float32), dev.zeros((3, 4, 1), np.float32)),
        "a vector to invert": ("inv", vector),
        "no square to factor": ("cholesky", wide),
        "no such mode": ("qr", wide, {"mode": "raw"}),
        "a vector's values": ("svd", vector),
        "no square's determinant": ("slogdet", wide),
        "sides of another height": ("lstsq", wide, vector),
    }
    await assert_refused(dev, calls)


@pytest.mark.long
async def test_an_input_that_a_fault_has_torn_is_stale_and_others_go_on(dev):
    from atomr_trio import StaleArray
    from support.rogue import WILD, compile_rogue, next_generation

    (wild,) = await compile_rogue(dev, "wild")
    spared, torn = await dev.to_device(np.eye(3) * 2), await dev.to_device(np.eye(3))
    with pytest.raises(ContextLost):
        await wild.launch(1, 1, WILD, touches=[torn])
    await next_generation(dev, 1)
    with pytest.raises(StaleArray):
        await dev.solver.inv(torn)
    assert (await (await dev.solver.inv(spared)).to_host() == np.eye(3) / 2).all()
