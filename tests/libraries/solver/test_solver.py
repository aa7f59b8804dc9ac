"""The solver's verbs with LAPACK's names: every dtype and layout, held against double precision by residuals."""

from __future__ import annotations

import itertools
from ctypes import POINTER, c_int, c_size_t
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import trio

from atomr_cuda import cusolver
from atomr_trio import (
    CommandFailed,
    ContextLost,
    ConvergenceError,
    InvalidArgument,
    NotPositiveDefiniteError,
    RequestError,
    RestartPolicy,
    SingularMatrixError,
)
from atomr_trio._calls.verbs import Answer
from atomr_trio._wire.records.calls import SIZE
from atomr_trio.libraries.solver.records import FUNCTIONS, SOLVER
from atomr_trio.libraries.solver.types import arguments_of, error_of
from support.blas import DTYPES, MATRICES, REALS, SCATTERED, exact, fresh_random, place, random, shared, submitted
from support.rogue import WILD, compile_rogue, gated, kill_worker, next_generation, until
from support.solver import (
    SHAPES,
    SIZES,
    STACKS,
    TALL,
    Solving,
    adjoint,
    assert_orthonormal,
    assert_refused,
    assert_small,
    functions_of,
    half,
    hermitian,
    paired,
    positive,
    steepness,
    whole,
)

pytestmark = pytest.mark.used_workers

LAYOUTS = MATRICES + SCATTERED
OPERATIONS = {"N": lambda a: a, "T": np.transpose, "C": adjoint}
SIZES_ASKED = (POINTER(c_int), POINTER(c_size_t))
DEADLINE = 60


@pytest.fixture
def rng() -> np.random.Generator:
    return fresh_random()


def permuted(pivots: np.ndarray, rows: int) -> np.ndarray:
    """The order of rows that the exchanges of `getrf` make."""
    order = np.arange(rows)
    for row, other in enumerate(pivots - 1):
        order[[row, other]] = order[[other, row]]
    return order


# --- LU ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
async def test_getrf_gives_lower_and_upper_factors_of_the_permuted_matrix(dev, rng, dtype):
    call = Solving(dev)
    for layout, (rows, columns) in shared(paired(LAYOUTS, SHAPES), dtype):
        a = random(rng, (rows, columns), dtype)
        x = await place(dev, layout, a)
        factors, pivots = await call("getrf", x.array)
        smaller = min(rows, columns)
        assert (factors.shape, pivots.shape, pivots.dtype) == ((rows, columns), (smaller,), np.int64)
        lower = np.tril(exact(factors), -1)[:, :smaller] + np.eye(rows, smaller)
        upper = np.triu(exact(factors))[:smaller]
        assert_small(lower @ upper - exact(a)[permuted(pivots, rows)], a, dtype, max(rows, columns))
        # LAPACK chooses a complex pivot by the sum of its parts, not by its absolute value.
        assert np.abs(lower).max() <= (1 if REALS[dtype] == dtype else 1.5)
        assert (await x.read() == a).all()


@pytest.mark.parametrize("dtype", DTYPES)
async def test_getrs_solves_by_the_factors_for_vectors_matrices_and_every_operation(dev, rng, dtype):
    call = Solving(dev)
    for (layout, order), (op, operate) in shared(
        itertools.product(paired(LAYOUTS, (1, 9, 4)), OPERATIONS.items()), dtype
    ):
        a = random(rng, (order, order), dtype) + np.eye(order, dtype=dtype) * 3
        factors = await call.on_device("getrf", await dev.to_device(a))
        b = random(rng, (order, 3), dtype)
        sides = await place(dev, layout, b)
        x = await call("getrs", *factors, sides.array, op=op)
        assert_small(operate(exact(a)) @ exact(x) - exact(b), np.abs(a).sum() * np.abs(x).max(), dtype, 1)
        assert (await sides.read() == b).all()
        y = await call("getrs", *factors, await dev.to_device(b[:, 0]), op=op)
        assert y.shape == (order,)
        assert_small(operate(exact(a)) @ exact(y) - exact(b)[:, 0], np.abs(a).sum() * np.abs(y).max(), dtype, 1)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_getri_inverts_a_stack_by_its_factors(dev, rng, dtype):
    call = Solving(dev)
    a = random(rng, (2, 3, 7, 7), dtype) + 3 * np.eye(7, dtype=dtype)
    factors, pivots = await call.on_device("getrf", await dev.to_device(a))
    inverse = await call("getri", factors, pivots)
    assert_small(exact(a) @ exact(inverse) - np.eye(7), 1, dtype, 7)


async def test_a_zero_pivot_is_named_and_the_factors_are_complete(dev):
    call = Solving(dev)
    a = np.array([[2.0, 1, 0, 4], [0, 3, 0, 1], [0, 0, 0, 5], [0, 0, 0, 7]])
    x = await dev.to_device(np.asfortranarray(a).T)  # so that it is overwritten where it is
    error = await call.fails(SingularMatrixError, "getrf", await dev.to_device(a))
    assert (error.pivot, error.matrix, error.operation, error.device) == (2, None, "solver.getrf", 0)
    assert isinstance(error, RequestError)
    assert "pivot 2" in str(error)
    with pytest.raises(SingularMatrixError):
        await dev.solver.getrf(x.T, overwrite_a=True)
    assert (np.diag(await x.T.to_host()) == [2, 3, 0, 7]).all()


async def test_which_matrix_of_a_stack_fails_is_told(dev):
    call = Solving(dev)
    stack = np.broadcast_to(np.eye(3), (2, 4, 3, 3)).copy()
    stack[1, 2, 1, 1] = 0
    singular = await dev.to_device(stack)
    for verb in ("getrf", "inv"):
        error = await call.fails(SingularMatrixError, verb, singular)
        assert (error.pivot, error.matrix) == (1, (1, 2))
    stack[1, 2, 1, 1] = -1
    error = await call.fails(NotPositiveDefiniteError, "potrf", await dev.to_device(stack))
    assert (error.minor, error.matrix) == (2, (1, 2))


# --- LU of many at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
async def test_a_stack_is_factored_and_its_systems_solved_in_every_layout(dev, rng, dtype):
    call = Solving(dev)
    for layout, order in shared(itertools.product(STACKS, (1, 2, 7)), dtype):
        a = np.asarray(random(rng, (5, order, order), dtype) + 3 * np.eye(order), dtype)[:, ::-1]
        b = random(rng, (5, order, 2), dtype)
        x, y = await place(dev, layout, a), await place(dev, layout, b)
        factors, pivots = await call.on_device("getrf", x.array)
        lower_upper, exchanges = await factors.to_host(), await pivots.to_host()
        assert (exchanges.dtype, exchanges.shape) == (np.int64, (5, order))
        for matrix, both, rows in zip(exact(a), exact(lower_upper), exchanges, strict=True):
            product = (np.tril(both, -1) + np.eye(order)) @ np.triu(both)
            assert_small(product - matrix[permuted(rows, order)], matrix, dtype, order)
        for op, operate in OPERATIONS.items():
            solution = await call("getrs", factors, pivots, y.array, op=op)
            for matrix, sides, found in zip(exact(a), exact(b), exact(solution), strict=True):
                size = np.abs(matrix).sum() * np.abs(found).max()
                assert_small(operate(matrix) @ found - sides, size, dtype, order)
        inverse = await call("getri", factors, pivots)
        assert_small(exact(a) @ exact(inverse) - np.eye(order), np.abs(inverse).max() * order, dtype, order)
        assert (await x.read() == a).all()
        assert (await y.read() == b).all()


async def test_a_stack_is_overwritten_where_it_lies_by_columns(dev, rng):
    call = Solving(dev)
    for layout in STACKS[1:3]:
        a = random(rng, (4, 6, 6), "complex64") + 8 * np.eye(6, dtype="complex64")
        b = random(rng, (4, 6, 2), "complex64")
        x, y = await place(dev, layout, a), await place(dev, layout, b)
        target = y.array
        factors, pivots = await call.on_device("getrf", x.array, overwrite_a=True)
        assert await call.on_device("getrs", factors, pivots, target, overwrite_b=True) is target
        assert_small(exact(a) @ exact(await y.read()) - exact(b), 20, "complex64", 6)
        determinants = np.linalg.det(np.triu(exact(await x.read()))) / np.linalg.det(exact(a))
        assert_small(np.abs(determinants) - 1, 1, "complex64", 100)


async def test_one_factored_matrix_serves_a_stack_of_right_hand_sides_and_the_reverse(dev, rng):
    call = Solving(dev)
    for of_matrix, of_sides in (((), (3,)), ((2, 1), (3,)), ((3,), ()), ((2, 3), (1, 3))):
        a = random(rng, (*of_matrix, 4, 4), "float64") + 8 * np.eye(4)
        b = random(rng, (*of_sides, 4, 2), "float64")
        factors, pivots = await call.on_device("getrf", await dev.to_device(a))
        solution = await call("getrs", factors, pivots, await dev.to_device(b))
        expected = np.linalg.solve(a, b)
        assert solution.shape == expected.shape
        assert_small(solution - expected, expected, np.float64, 16)


@pytest.mark.parametrize("layout", STACKS[:2], ids=lambda layout: layout.name)
async def test_a_stack_of_a_hundred_is_one_call(dev, layout):
    for letter, dtype in zip("SDCZ", DTYPES, strict=True):
        shape = (100, 8, 8)
        x, y = (layout.view(*shape)(dev.empty(layout.whole(*shape), dtype)) for _ in range(2))
        pivots = dev.empty(shape[:-1], np.int64)
        factor, solve = f"cublas{letter}getrfBatched", f"cublas{letter}getrsBatched"
        for verb, arguments, names in (
            ("getrf", (x,), (factor,)),
            ("getrs", (x, pivots, y), (solve,)),
            ("getri", (x, pivots), (solve,)),
            ("solve", (x, y), (factor, solve)),
            ("inv", (x,), (factor, solve)),
            ("det", (x,), (factor,)),
            ("slogdet", (x,), (factor,)),
        ):
            calls = functions_of(dev, verb, *arguments)
            assert [calls.pop(name) for name in names] == [1] * len(names), verb
            assert {calls.pop(name, 1) for name in ("look", "taint")} == {1}
            # What is left only moves numbers: no call is made for each matrix.
            assert all("copy" in name or "geam" in name for name in calls)
            assert calls.total() <= 8, calls


async def test_large_matrices_wide_ones_and_a_single_one_are_factored_one_by_one(dev):
    for shape, count in (((3, 257, 257), 3), ((3, 4, 5), 3), ((1, 4, 4), 1), ((4, 4), 1)):
        calls = functions_of(dev, "getrf", dev.empty(shape, np.float32))
        assert calls["cusolverDnXgetrf"] == count
        assert "cublasSgetrfBatched" not in calls
    assert "cublasSgetrfBatched" in functions_of(dev, "getrf", dev.empty((3, 256, 256), np.float32))


@pytest.mark.long
async def test_a_singular_matrix_among_more_than_one_call_answers_for_is_named(dev, rng):
    call = Solving(dev)
    stack = np.broadcast_to(np.eye(2), (11, 100, 2, 2)).copy()
    stack[10, 90] = [[1, 2], [2, 4]]
    singular, b = await dev.to_device(stack), await dev.to_device(np.ones(2))
    for arguments in (("getrf", singular), ("solve", singular, b), ("inv", singular)):
        assert functions_of(dev, *arguments)["cublasDgetrfBatched"] == 2
        error = await call.fails(SingularMatrixError, *arguments)
        assert (error.pivot, error.matrix, error.operation) == (1, (10, 90), "solver.getrf")
    determinants = await call("det", singular)
    assert determinants[10, 90] == 0
    assert determinants.sum() == 1099
    sign, logarithm = await call("slogdet", singular)
    assert (sign[10, 90], logarithm[10, 90], sign.sum()) == (0, -np.inf, 1099)


# --- Cholesky ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
async def test_potrf_reads_and_writes_one_triangle(dev, rng, dtype):
    call = Solving(dev)
    for (layout, order), lower in shared(itertools.product(paired(LAYOUTS, SIZES), (True, False)), dtype):
        a = positive(rng, (order, order), dtype)
        x = await place(dev, layout, half(a, lower))
        factor = await call("potrf", x.array, lower=lower)
        triangle = exact(np.tril(factor) if lower else np.triu(factor))
        product = triangle @ adjoint(triangle) if lower else adjoint(triangle) @ triangle
        assert_small(product - exact(a), a, dtype, order)
        other = np.triu(factor, 1) if lower else np.tril(factor, -1)
        assert np.count_nonzero(np.isnan(other)) == order * (order - 1) // 2


@pytest.mark.parametrize("dtype", DTYPES)
async def test_potrs_and_potri_go_on_from_the_factor(dev, rng, dtype):
    call = Solving(dev)
    for stack, order, lower in shared(itertools.product(((), (3,), (2, 2)), (1, 6), (True, False)), dtype):
        a = positive(rng, (*stack, order, order), dtype)
        factor = await call.on_device("potrf", await dev.to_device(a), lower=lower)
        for count in (1, 4):
            b = random(rng, (*stack, order, count), dtype)
            x = await call("potrs", factor, await dev.to_device(b), lower=lower)
            assert_small(exact(a) @ exact(x) - exact(b), b, dtype, order)
        vector = random(rng, (order,), dtype)
        y = await call("potrs", factor, await dev.to_device(vector), lower=lower)
        assert_small((exact(a) @ exact(y)[..., None])[..., 0] - exact(vector), vector, dtype, order)
        inverse = await call("potri", factor, lower=lower)
        assert_small(exact(a) @ whole(exact(inverse), lower) - np.eye(order), 1, dtype, order)


async def test_the_first_minor_that_is_not_positive_is_named(dev):
    call = Solving(dev)
    for order, minor in ((1, 1), (5, 3), (33, 33)):
        a = np.eye(order, dtype=np.complex64)
        a[minor - 1, minor - 1] = -1
        error = await call.fails(NotPositiveDefiniteError, "potrf", await dev.to_device(a))
        assert (error.minor, error.matrix, error.operation) == (minor, None, "solver.potrf")
    assert np.isnan(await call("potri", await dev.to_device(np.diag([1.0, 0, 1])))).any()


# --- QR and least squares ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
async def test_geqrf_orgqr_and_ormqr_agree(dev, rng, dtype):
    call = Solving(dev)
    for layout, (rows, columns) in shared(paired(LAYOUTS, TALL), dtype):
        a = random(rng, (rows, columns), dtype)
        reflectors, scales = await call.on_device("geqrf", (await place(dev, layout, a)).array)
        q = await call("orgqr", reflectors, scales)
        r = np.triu(exact(await reflectors.to_host()))[:columns]
        assert_orthonormal(q)
        assert_small(exact(q) @ r - exact(a), a, dtype, rows)
        c = random(rng, (rows, 3), dtype)
        product = exact(await call("ormqr", reflectors, scales, await dev.to_device(c), op="C"))
        assert_small(product[:columns] - adjoint(exact(q)) @ exact(c), c, dtype, rows)
        d = random(rng, (2, rows), dtype)
        product = exact(await call("ormqr", reflectors, scales, await dev.to_device(d), left=False))
        assert_small(product[:, :columns] - exact(d) @ exact(q), d, dtype, rows)


async def test_q_without_reflectors_is_the_identity(dev):
    q = await Solving(dev)("orgqr", dev.zeros((2, 4, 3), np.float32), dev.zeros((2, 0), np.float32))
    assert (q == np.eye(4, 3)).all()


@pytest.mark.parametrize("dtype", DTYPES)
async def test_gels_is_the_least_squares_solution_and_keeps_what_it_is_given(dev, rng, dtype):
    call = Solving(dev)
    for layout, (rows, columns) in shared(paired(LAYOUTS, TALL), dtype):
        a = random(rng, (rows, columns), dtype) + 3 * np.eye(rows, columns, dtype=dtype)
        x, b = await place(dev, layout, a), random(rng, (rows, 2), dtype)
        sides = await dev.to_device(b)
        solution = await call("gels", x.array, sides)
        assert_small(exact(solution) - np.linalg.lstsq(exact(a), exact(b))[0], b, dtype, 4 * rows * steepness(a))
        assert (await x.read() == a).all()
        assert (await sides.to_host() == b).all()
        assert (await call("gels", x.array, await dev.to_device(b[:, 0]))).shape == (columns,)


# --- eigenvalues ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("verb", ["syevd", "syevj"])
async def test_eigenpairs_of_one_triangle(dev, rng, dtype, verb):
    call = Solving(dev)
    for (layout, order), lower in shared(itertools.product(paired(LAYOUTS, SIZES), (True, False)), dtype):
        a = hermitian(rng, (order, order), dtype)
        x = await place(dev, layout, half(a, lower))
        values, vectors = await call(verb, x.array, lower=lower)
        assert values.dtype == REALS[dtype]
        assert (np.diff(values) >= 0).all()
        assert_orthonormal(vectors)
        assert_small(exact(a) @ exact(vectors) - exact(vectors) * exact(values), np.abs(a).max() * order, dtype, order)
        alone, nothing = await call(verb, x.array, lower=lower, vectors=False)
        assert nothing is None
        assert_small(exact(alone) - exact(values), np.abs(a).max() * order, dtype, order)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_syevdx_computes_some_of_the_eigenvalues(dev, rng, dtype):
    call = Solving(dev)
    a = hermitian(rng, (2, 9, 9), dtype)
    expected = np.linalg.eigvalsh(exact(a))
    for first, last in ((0, 9), (0, 1), (3, 7), (8, 9)):
        values, vectors = await call("syevdx", await dev.to_device(a), first, last)
        assert (values.shape, vectors.shape) == ((2, last - first), (2, 9, last - first))
        assert_small(values - expected[:, first:last], 9, dtype, 9)
        assert_small(exact(a) @ exact(vectors) - exact(vectors) * exact(values)[:, None, :], 9, dtype, 9)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_sygvd_solves_each_kind_of_generalized_problem(dev, rng, dtype):
    call = Solving(dev)
    for kind, lower, stack in shared(itertools.product((1, 2, 3), (True, False), ((), (2,))), dtype):
        a, b = hermitian(rng, (*stack, 6, 6), dtype), positive(rng, (*stack, 6, 6), dtype)
        pair = await dev.to_device(half(a, lower)), await dev.to_device(half(b, lower))
        values, vectors = await call("sygvd", *pair, kind=kind, lower=lower)
        a, b, x = exact(a), exact(b), exact(vectors)
        left = {1: a @ x, 2: a @ b @ x, 3: b @ a @ x}[kind]
        right = (b @ x if kind == 1 else x) * values[..., None, :]
        assert_small(left - right, np.abs(a).max() * np.abs(b).max() * np.abs(x).max() * 36, dtype, 6)
    bad = np.diag([1.0, 1, -1]).astype(dtype)
    error = await call.fails(
        NotPositiveDefiniteError, "sygvd", await dev.to_device(np.eye(3, dtype=dtype)), (await dev.to_device(bad))
    )
    assert error.minor == 3
    assert "b: " in str(error)


# --- singular values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
async def test_gesvd_decomposes_tall_matrices(dev, rng, dtype):
    call = Solving(dev)
    for (layout, (rows, columns)), full in shared(itertools.product(paired(LAYOUTS, TALL), (True, False)), dtype):
        a = random(rng, (rows, columns), dtype)
        x = await place(dev, layout, a)
        u, s, vh = await call("gesvd", x.array, full_matrices=full)
        assert u.shape == (rows, rows if full else columns)
        assert_decomposed(a, u, s, adjoint(vh))
        _, alone, _ = await call("gesvd", x.array, compute_uv=False)
        assert_small(exact(alone) - exact(s), np.abs(s).max(), dtype, rows)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_gesvdj_decomposes_matrices_and_stacks(dev, rng, dtype):
    call = Solving(dev)
    for stack, shape, full in shared(itertools.product(((), (1,), (2, 3)), SHAPES, (True, False)), dtype):
        a = random(rng, (*stack, *shape), dtype)
        x = await dev.to_device(a)
        u, s, v = await call("gesvdj", x, full_matrices=full)
        smaller = min(shape)
        assert u.shape == (*stack, shape[0], shape[0] if full else smaller)
        assert v.shape == (*stack, shape[1], shape[1] if full else smaller)
        assert_decomposed(a, u, s, v)
        left, alone, right = await call("gesvdj", x, full_matrices=full, compute_uv=False)
        assert left is right is None
        assert_small(exact(alone) - exact(s), np.abs(s).max(), dtype, max(shape))
        assert (await x.to_host() == a).all()


def assert_decomposed(a: np.ndarray, u: np.ndarray, s: np.ndarray, v: np.ndarray) -> None:
    """Fail unless ``a = u @ diag(s) @ v^H``, and the rest holds that singular values promise."""
    smaller = s.shape[-1]
    assert s.dtype == REALS[a.dtype.name]
    assert (s >= 0).all()
    assert (np.diff(s) <= 0).all()
    assert_orthonormal(u)
    assert_orthonormal(v)
    product = (exact(u)[..., :smaller] * exact(s)[..., None, :]) @ adjoint(exact(v)[..., :smaller])
    assert_small(product - exact(a), s, a.dtype, max(a.shape[-2:]))


@pytest.mark.parametrize("dtype", DTYPES)
async def test_gesvda_approximates_the_largest_singular_values(dev, rng, dtype):
    call = Solving(dev)
    for stack in ((), (3,)):
        left, _ = np.linalg.qr(random(rng, (*stack, 40, 5), dtype))
        right, _ = np.linalg.qr(random(rng, (*stack, 5, 5), dtype))
        a = ((left * np.array([9, 7, 5, 2, 1])) @ right).astype(dtype)
        for rank in (1, 3, 5):
            u, s, v = await call("gesvda", await dev.to_device(a), rank)
            assert (u.shape, s.shape, v.shape) == ((*stack, 40, rank), (*stack, rank), (*stack, 5, rank))
            assert_small(s - np.array([9, 7, 5, 2, 1])[:rank], 9, dtype, 400)
            assert_small(exact(a) @ exact(v) - exact(u) * exact(s)[..., None, :], 9, dtype, 400)
    for layout in STACKS:
        u, s, v = await call("gesvda", (await place(dev, layout, a)).array, 2)
        assert_small(exact(a) @ exact(v) - exact(u) * exact(s)[..., None, :], 9, dtype, 400)


async def test_too_few_sweeps_are_an_error_and_the_next_call_has_the_usual_number(dev, rng):
    call = Solving(dev)
    numbers = random(rng, (24, 24), "float64")
    for verb, a in (("gesvdj", numbers), ("syevj", numbers + adjoint(numbers))):
        x = await dev.to_device(a)
        error = await call.fails(ConvergenceError, verb, x, max_sweeps=1)
        assert (error.unconverged, error.matrix) == (None, None)
        await call(verb, x)
        await call(verb, await dev.to_device(np.stack([a] * 3)), max_sweeps=1)  # of many in one call nobody is told


async def test_a_stack_of_more_matrices_than_one_call_answers_for(dev, rng):
    call = Solving(dev)
    a = hermitian(rng, (1100, 2, 2), "float32")
    a[1090] = np.diag([5, 4])
    values, _ = await call("syevj", await dev.to_device(a))
    assert_small(values - np.linalg.eigvalsh(exact(a)), 4, np.float32, 4)
    good = positive(rng, (1100, 2, 2), "float32")
    factors = await call("potrf", await dev.to_device(good))
    assert_small(np.tril(factors) - np.linalg.cholesky(exact(good)), 8, np.float32, 4)
    good[1050, 0, 0] = -1
    error = await call.fails(NotPositiveDefiniteError, "potrf", await dev.to_device(good))
    assert (error.minor, error.matrix) == (1, (1050,))


# --- in place, and what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
async def test_what_lies_by_columns_is_overwritten_where_it_is(dev, rng, dtype):
    call = Solving(dev)
    layout = MATRICES[3]
    a, b = positive(rng, (6, 6), dtype), random(rng, (6, 2), dtype)
    x = await place(dev, layout, a)
    view = x.array
    assert (await call.on_device("potrf", view, overwrite_a=True))._block is view._block
    factor = np.tril(exact(await x.read()))
    assert_small(factor @ adjoint(factor) - exact(a), a, dtype, 6)
    sides = await place(dev, layout, b)
    target = sides.array
    assert await call.on_device("potrs", view, target, overwrite_b=True) is target
    assert_small(exact(a) @ exact(await sides.read()) - exact(b), b, dtype, 6)
    y = await place(dev, layout, a)
    values, vectors = await call("syevd", y.array, overwrite_a=True)
    assert (await y.read() == vectors).all()
    assert_small(exact(values) - np.linalg.eigvalsh(exact(a)), a, dtype, 6)


async def test_wrong_calls_are_refused_and_nothing_is_sent(dev, open_test_device):
    square, wide = dev.zeros((4, 4), np.float32), dev.zeros((3, 5), np.float32)
    double, vector = dev.zeros((4, 4), np.float64), dev.zeros(4, np.float32)
    pivots, stack = dev.zeros(4, np.int64), dev.zeros((2, 4, 4), np.float32)
    freed = dev.zeros((4, 4), np.float32)
    freed.free()
    columns = square.T
    calls: dict[str, tuple[Any, ...]] = {
        "no array": ("getrf", np.zeros((2, 2), np.float32)),
        "freed": ("getrf", freed),
        "no type of cuSOLVER": ("getrf", dev.zeros((4, 4), np.float16)),
        "a vector": ("potrf", vector),
        "not square": ("potrf", wide),
        "rows cannot be overwritten": ("getrf", square, {"overwrite_a": True}),
        "eigenvalues of no square": ("syevd", wide),
        "different types": ("getrs", square, pivots, double),
        "pivots of another type": ("getrs", square, dev.zeros(4, np.int32), vector),
        "too few pivots": ("getrs", square, dev.zeros(3, np.int64), vector),
        "another operation": ("getrs", square, pivots, vector, {"op": "X"}),
        "too many rows": ("getrs", square, pivots, dev.zeros(5, np.float32)),
        "stacks that do not fit": ("potrs", stack, dev.zeros((3, 4, 1), np.float32)),
        "what is overwritten is read": ("potrs", columns, columns, {"overwrite_b": True}),
        "a side that would have to grow": ("potrs", stack, vector, {"overwrite_b": True}),
        "wide for gesvd": ("gesvd", wide),
        "wide for gels": ("gels", wide, dev.zeros(3, np.float32)),
        "wide for gesvda": ("gesvda", wide, 2),
        "no such rank": ("gesvda", square, 5),
        "no such eigenvalues": ("syevdx", square, 2, 5),
        "eigenvalues in another order": ("syevdx", square, 2, 1),
        "bounds that are no numbers": ("syevdx", square, None, "2"),
        "no sweeps": ("syevj", square, {"max_sweeps": 0}),
        "half a sweep": ("gesvdj", square, {"max_sweeps": 0.5}),
        "no such kind": ("sygvd", square, square, {"kind": 4}),
        "pairs of other shapes": ("sygvd", square, stack),
        "more reflectors than columns": ("orgqr", square, dev.zeros(5, np.float32)),
        "transposed complex Q": (
            "ormqr",
            dev.zeros((4, 4), np.complex64),
            dev.zeros(4, np.complex64),
            dev.zeros((4, 2), np.complex64),
            {"op": "T"},
        ),
        "c of another height": ("ormqr", square, vector, wide),
    }
    await assert_refused(dev, calls)
    async with open_test_device() as other:
        await assert_refused(dev, {"another device": ("getrf", other.zeros((4, 4), np.float32))})


@pytest.mark.parametrize("dtype", DTYPES)
async def test_empty_matrices_are_sent_to_nobody(dev, dtype):
    call, real = Solving(dev), REALS[dtype]
    nothing, none = dev.zeros((0, 0), dtype), dev.zeros((0, 3, 3), dtype)
    before = submitted(dev)
    for a in (nothing, none):
        factors, pivots = await call.on_device("getrf", a)
        assert (factors.shape, pivots.shape) == (a.shape, a.shape[:-1])
        assert (await call.on_device("getrs", factors, pivots, a)).shape == a.shape
        assert (await call.on_device("potrs", await call.on_device("potrf", a), a)).shape == a.shape
        values, _ = await call.on_device("syevd", a)
        assert (values.shape, values.dtype) == (a.shape[:-1], real)
    assert submitted(dev) == before


async def test_bits_may_be_allowed_to_differ(dev, rng):
    call = Solving(dev)
    a = positive(rng, (12, 12), "float64")
    x = await dev.to_device(a)
    for verb in ("geqrf", "syevd", "gesvd", "gesvdj"):
        strict = await call(verb, x)
        loose = await call(verb, x, deterministic=False)
        for one, other in zip(strict, loose, strict=True):
            assert_small(np.abs(one) - np.abs(other), a, np.float64, 144)
        for one, other in zip(strict, await call(verb, x), strict=True):
            assert one.tobytes() == other.tobytes()


# --- what a call is made of -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_words_of_a_function_and_of_its_query_are_those_of_the_bindings(name):
    function, workspace = FUNCTIONS[name], SOLVER.workspaces.get(name)
    declared = getattr(cusolver, name)
    assert len(declared.argtypes) == 1 + len(function.words)
    assert ("work" in function.words) is (workspace is not None)
    if workspace is not None:
        query = getattr(cusolver, workspace.query)
        kinds = [None if place == SIZE else declared.argtypes[1 + place] for place in workspace.takes]
        asked = [None if kind in SIZES_ASKED else kind for kind in query.argtypes[1:]]
        assert asked == kinds


def test_arguments_are_refused_that_are_no_words_of_the_function():
    potri = FUNCTIONS["cusolverDnDpotri"]
    words: dict[str, Any] = {"uplo": 0, "n": 3, "A": 4096, "lda": 3}
    assert arguments_of(potri, np.dtype(float), words) == [0, 3, 4096, 3, 0, 0, Answer()]
    with pytest.raises(ValueError, match="pivots"):
        arguments_of(potri, np.dtype(float), {**words, "pivots": 0})
    with pytest.raises(ValueError, match="nothing was given for lda"):
        arguments_of(potri, np.dtype(float), {"uplo": 0, "n": 3, "A": 4096})
    with pytest.raises(InvalidArgument, match="below 2\\*\\*31"):
        arguments_of(potri, np.dtype(float), {**words, "n": 1 << 31})


def test_an_info_becomes_the_error_of_its_operation():
    def found(operation: str, info: int) -> Any:
        return error_of(operation, info, 4, matrix=None, device=0)

    assert found("getrf", 0) is None
    assert found("getrf", 3).pivot == 2
    assert found("potrf", 3).minor == 3
    assert found("syevd", 3).unconverged == 3
    assert found("gesvdj", 5).unconverged is None
    assert found("sygvd", 4).unconverged == 4
    assert found("sygvd", 5).minor == 1
    for operation, info in (("getrf", -2), ("getrs", 1)):
        error = found(operation, info)
        assert (type(error), error.library) == (CommandFailed, "cusolver")
        assert f"info {info}" in str(error)


# --- many at once, and faults -----------------------------------------------------------------------------------------


async def factor_in_several_ways(dev: Any, a: Any) -> list[bytes]:
    """The bits of what several verbs make of a positive definite matrix."""
    solver = dev.solver
    results = [*await solver.getrf(a), await solver.potrf(a), *await solver.geqrf(a), *await solver.syevd(a)]
    results += [await solver.inv(a), *await solver.svd(a)]
    return [(await result.to_host()).tobytes() for result in results]


async def test_eight_tasks_at_once_get_each_its_own_answers(dev, rng):
    a = [positive(rng, (20, 20), DTYPES[number % 4]) for number in range(8)]
    arrays = [await dev.to_device(each) for each in a]
    alone = [await factor_in_several_ways(dev, array) for array in arrays]
    together: dict[int, list[bytes]] = {}

    async def run(number: int) -> None:
        together[number] = await factor_in_several_ways(dev, arrays[number])

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(run, number)
    assert [together[number] for number in range(8)] == alone


@pytest.mark.parametrize("cause", ["kill", "wild"])
async def test_after_a_fault_in_the_middle_the_same_factorizations_give_the_same_bits(open_test_device, rng, cause):
    outcomes: dict[int, Any] = {}
    with trio.fail_after(DEADLINE):
        async with open_test_device(restart_policy=RestartPolicy(intensity=3)) as dev:
            (wild,) = await compile_rogue(dev, "wild")
            arrays = [await dev.to_device(positive(rng, (20, 20), DTYPES[number % 4])) for number in range(8)]
            before = [await factor_in_several_ways(dev, array) for array in arrays]

            async def run(number: int) -> None:
                try:
                    outcomes[number] = await factor_in_several_ways(dev, arrays[number])
                except ContextLost as error:
                    outcomes[number] = error

            async with trio.open_nursery() as nursery:
                async with gated(dev):
                    if cause == "wild":
                        wild.launch_nowait(1, 1, WILD)
                    begun = sum(submitted(dev))
                    for number in range(8):
                        nursery.start_soon(run, number)
                    await until(lambda: sum(submitted(dev)) >= begun + 8)
                    if cause == "kill":
                        kill_worker(dev)
                await next_generation(dev, 1)
            for number in range(8):
                assert isinstance(outcomes[number], ContextLost) or outcomes[number] == before[number]
            assert any(isinstance(outcome, ContextLost) for outcome in outcomes.values())
            assert [await factor_in_several_ways(dev, array) for array in arrays] == before


async def test_scipy_reads_the_factors_as_its_own(dev, rng):
    a, b = random(rng, (12, 12), "float64"), random(rng, (12,), "float64")
    factors, pivots = await Solving(dev)("getrf", await dev.to_device(a))
    x = scipy.linalg.lu_solve((factors, pivots - 1), b)
    assert_small(a @ x - b, np.abs(x).max() * 12, np.float64, 12)
