"""What holds in linear algebra for every shape, every layout and all numbers, drawn by hypothesis.

Results are held against numpy's of double precision, with a bound of the dtype's epsilon times what the sums let it
grow. Outputs that are given hold NaN first unless they are read, and around each operand lies NaN that must stay.
"""

from __future__ import annotations

from typing import Any

import attrs
import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest

from atomr_trio import Device, DeviceArray
from atomr_trio._calls.linear import broadcast
from support.blas import DTYPES, REALS, Layout, Place, View, assert_close, exact, place, random
from support.linear import ask
from support.solver import adjoint, assert_orthonormal, assert_small, half, hermitian, positive
from support.strategies import check_on_device, seeds

pytestmark = pytest.mark.used_workers

Numbers = npt.NDArray[Any]
Shape = tuple[int, ...]

SHARE = 0.25
"""Of the examples of the profile, for each property; twice as many for products, of which there is the most to say."""

COMPLEX = ("complex64", "complex128")

flags = st.booleans()

# --- how operands lie -------------------------------------------------------------------------------------------------


@attrs.frozen
class Axis:
    """How the elements along an axis lie: so many before the first, every so many, so many behind the last.

    A step of 0 is one element for all, as arrays of other libraries may have it.
    """

    before: int
    step: int
    after: int

    def extent(self, length: int) -> int:
        return self.before + length * (abs(self.step) or 1) + self.after

    def part(self, length: int) -> tuple[slice, slice]:
        """What to take of the extent, and then of that."""
        return slice(self.before, self.extent(length) - self.after), slice(None, None, self.step or 1)


@attrs.frozen
class Way:
    """How an array of up to four axes lies in a larger one."""

    axes: tuple[Axis, Axis, Axis, Axis]
    """In memory, of which an array has the last ones. The last of all are a matrix's rows, or else its columns."""
    by_rows: bool = True

    def whole(self, *lengths: int) -> Shape:
        """The shape of the larger array."""
        return tuple(axis.extent(length) for axis, length in self._of(lengths))

    def view(self, *lengths: int) -> View:
        """Takes the operand from that, on the host or on the device."""
        first, then = zip(*(axis.part(length) for axis, length in self._of(lengths)), strict=True)
        return lambda array: self._turned(array[first][then])

    def held(self, numbers: Numbers) -> Numbers:
        """The numbers that are stored: of those along an axis of step 0 the first alone."""
        parts = tuple(slice(None if axis.step else 1) for axis, _ in self._of(numbers.shape))
        return np.asarray(self._turned(self._turned(numbers)[parts]))

    def _of(self, lengths: Shape) -> list[tuple[Axis, int]]:
        """The axes in memory, with their lengths."""
        in_memory = lengths if self.by_rows else (*lengths[:-2], *lengths[:-3:-1])
        return list(zip(self.axes[-len(lengths) :], in_memory, strict=True))

    def _turned(self, array: Any) -> Any:
        """An array with its last two axes exchanged, if it lies so."""
        if self.by_rows or array.ndim < 2:
            return array
        return array.transpose(*range(array.ndim - 2), array.ndim - 1, array.ndim - 2)


def axes(*steps: int, after: tuple[int, ...] = (0, 1, 3)) -> st.SearchStrategy[Axis]:
    return st.builds(Axis, st.sampled_from([0, 1, 2]), st.sampled_from(steps), st.sampled_from(after))


FAR = (0, 1, 3, 70)
"""What is behind the rows of a matrix, or behind its columns: its leading dimension may be large."""


def input_ways(*unusual: int) -> st.SearchStrategy[Way]:
    """Ways that an operand may lie that is only read, of usual steps and of these."""
    stack = axes(1, 2, *unusual), axes(1, 2, *unusual)
    return st.builds(Way, st.tuples(*stack, axes(1, 1, 2, 3, *unusual), axes(1, 1, 1, 2, *unusual, after=FAR)), flags)


inputs = input_ways(-1, 0)
stored = input_ways(-1, -2)
"""Those of which each element has a place of its own."""
outputs = st.builds(Way, st.tuples(axes(1, 2, -1), axes(1, 2, -1), axes(1, 2, 3), axes(1, after=FAR)), flags)
"""Of which the libraries write the matrices where they are."""
vectors = st.builds(lambda axis: Way((axis,) * 4), axes(1, 2, 3, -1, -2, 0))
written_vectors = st.builds(lambda axis: Way((axis,) * 4), axes(1, 2, 3, -1, -2))


@attrs.frozen
class Operand:
    """An array on the device, and the numbers that it has."""

    array: DeviceArray
    numbers: Numbers
    place: Place

    async def result(self) -> Numbers:
        """The numbers now. Fails if anything around them was written."""
        return await self.place.read()

    async def check_kept(self) -> None:
        """Fail if it was written."""
        assert (await self.place.whole.to_host()).tobytes() == self.place.before.tobytes(), "an input was written"


async def put(dev: Device, way: Way, numbers: Numbers) -> Operand:
    """Put numbers on the device in such a way."""
    held = way.held(numbers)
    stored = await place(dev, Layout("drawn", way.whole, way.view), held)
    array = stored.array
    return Operand(
        array if array.shape == numbers.shape else broadcast(array, numbers.shape),
        np.broadcast_to(held, numbers.shape),
        stored,
    )


async def put_output(dev: Device, way: Way, numbers: Numbers, beta: complex) -> Operand:
    """Put an output there: one of NaN if it is not read."""
    return await put(dev, way, numbers if beta else np.full_like(numbers, np.nan))


# --- what is drawn ----------------------------------------------------------------------------------------------------

dtypes = st.sampled_from(DTYPES)
sizes = st.sampled_from([3, 1, 0, 2, 4, 5, 7, 8, 13, 16, 17, 31])
orders = st.integers(0, 9)
numbers_of_the_host = st.sampled_from([1, 0, -1, 0.5, -2.25])
operations = st.sampled_from("NTC")
stacks = st.sampled_from([(), (3,), (2, 3), (1,), (2, 1), (0,)])

OPERATIONS = {"N": lambda a: a, "T": lambda a: np.swapaxes(a, -1, -2), "C": adjoint}


@attrs.frozen
class Factors:
    """Alpha and beta: complex ones where the dtype has such."""

    alpha: complex
    beta: complex
    turn: bool

    def of(self, dtype: str) -> tuple[complex, complex]:
        if dtype in COMPLEX and self.turn:
            return self.alpha * (0.6 + 0.8j), self.beta * (0.8 - 0.6j)
        return self.alpha, self.beta


factors = st.builds(Factors, numbers_of_the_host, numbers_of_the_host, flags)


def shape_before(operation: str, rows: int, columns: int) -> Shape:
    """The shape of a matrix that has these after the operation."""
    return (rows, columns) if operation == "N" else (columns, rows)


# --- vectors ----------------------------------------------------------------------------------------------------------


@check_on_device(SHARE, flags, dtypes, sizes, vectors, written_vectors, factors, seeds)
async def test_axpy_adds_a_multiple_of_any_vector_to_any_other(dev, batched, dtype, n, x_way, y_way, scalars, seed):
    rng, (alpha, _) = np.random.default_rng(seed), scalars.of(dtype)
    x, y = await put(dev, x_way, random(rng, n, dtype)), await put(dev, y_way, random(rng, n, dtype))
    assert await ask(dev, batched, "blas.axpy", x.array, target := y.array, alpha) is target
    one, other = exact(x.numbers), exact(y.numbers)
    assert_close(await y.result(), alpha * one + other, abs(alpha) * np.abs(one) + np.abs(other), 2)
    await x.check_kept()


@check_on_device(SHARE, flags, dtypes, sizes, vectors, vectors, flags, seeds)
async def test_dot_and_nrm2_sum_any_vectors(dev, batched, dtype, n, x_way, y_way, conjugate, seed):
    rng = np.random.default_rng(seed)
    x, y = await put(dev, x_way, random(rng, n, dtype)), await put(dev, y_way, random(rng, n, dtype))
    product = await ask(dev, batched, "blas.dot", x.array, y.array, conjugate=conjugate)
    one, other = exact(x.numbers), exact(y.numbers)
    expected = np.vdot(one, other) if conjugate else np.dot(one, other)
    assert_close(product, expected, np.abs(one) @ np.abs(other), n + 2)
    out = dev.full((), np.dtype(REALS[dtype]).type(np.nan))
    assert await ask(dev, batched, "blas.nrm2", x.array, out=out) is out
    length = np.linalg.norm(one)
    assert_close(await out.to_host(), length, length, n + 2)
    await x.check_kept()
    await y.check_kept()


# --- a matrix and vectors ---------------------------------------------------------------------------------------------


@check_on_device(SHARE, flags, dtypes, sizes, sizes, operations, inputs, vectors, written_vectors, factors, seeds)
async def test_gemv_multiplies_any_matrix_and_any_vector(
    dev, batched, dtype, m, n, op, a_way, x_way, y_way, scalars, seed
):
    rng, (alpha, beta) = np.random.default_rng(seed), scalars.of(dtype)
    a = await put(dev, a_way, random(rng, shape_before(op, m, n), dtype))
    x = await put(dev, x_way, random(rng, n, dtype))
    y = await put_output(dev, y_way, before := random(rng, m, dtype), beta)
    scalars = {"alpha": alpha, "beta": beta}
    assert await ask(dev, batched, "blas.gemv", a.array, x.array, out=(out := y.array), op_a=op, **scalars) is out
    matrix, vector, added = OPERATIONS[op](exact(a.numbers)), exact(x.numbers), exact(before)
    size = abs(alpha) * (np.abs(matrix) @ np.abs(vector)) + abs(beta) * np.abs(added)
    assert_close(await y.result(), alpha * (matrix @ vector) + beta * added, size, n + 2)
    await a.check_kept()
    await x.check_kept()


@check_on_device(SHARE, flags, dtypes, sizes, sizes, vectors, vectors, outputs, flags, factors, seeds)
async def test_ger_adds_the_product_of_any_two_vectors(
    dev, batched, dtype, m, n, x_way, y_way, a_way, conjugate, scalars, seed
):
    rng, (alpha, _) = np.random.default_rng(seed), scalars.of(dtype)
    x, y = await put(dev, x_way, random(rng, m, dtype)), await put(dev, y_way, random(rng, n, dtype))
    a = await put(dev, a_way, random(rng, (m, n), dtype))
    given = x.array, y.array, (target := a.array)
    assert await ask(dev, batched, "blas.ger", *given, alpha, conjugate=conjugate) is target
    one, other, added = exact(x.numbers), exact(y.numbers), exact(a.numbers)
    expected = alpha * np.outer(one, other.conj() if conjugate else other) + added
    assert_close(await a.result(), expected, abs(alpha) * np.abs(np.outer(one, other)) + np.abs(added), 2)
    await x.check_kept()
    await y.check_kept()


# --- matrices ---------------------------------------------------------------------------------------------------------

PAIRS = (
    ((), ()), ((3,), ()), ((), (2,)), ((2,), (2,)), ((1,), (3,)), ((2, 1), (3,)), ((2, 3), (2, 3)), ((0,), ()),
)  # fmt: skip
"""Leading axes of two stacks, which broadcast."""


@attrs.frozen
class Product:
    """What there is to say of a product of matrices, or of stacks of such."""

    dtype: str
    m: int
    n: int
    k: int
    op_a: str
    op_b: str
    leading: tuple[Shape, Shape]
    factors: Factors
    seed: int

    def numbers(self) -> tuple[Numbers, Numbers, Numbers]:
        """Both factors, and what is added."""
        rng, (a, b) = np.random.default_rng(self.seed), self.leading
        shapes = (*a, *shape_before(self.op_a, self.m, self.k)), (*b, *shape_before(self.op_b, self.k, self.n))
        first, second = (random(rng, shape, self.dtype) for shape in shapes)
        return first, second, random(rng, (*np.broadcast_shapes(a, b), self.m, self.n), self.dtype)

    def expected(self, a: Numbers, b: Numbers, c: Numbers) -> tuple[Numbers, Numbers]:
        """The result, and the sum of the absolute values that are added to each element of it."""
        alpha, beta = self.factors.of(self.dtype)
        first, second, added = OPERATIONS[self.op_a](exact(a)), OPERATIONS[self.op_b](exact(b)), exact(c)
        size = abs(alpha) * (np.abs(first) @ np.abs(second)) + abs(beta) * np.abs(added)
        return alpha * (first @ second) + beta * added, size

    def words(self) -> dict[str, Any]:
        alpha, beta = self.factors.of(self.dtype)
        return {"alpha": alpha, "beta": beta, "op_a": self.op_a, "op_b": self.op_b}


def products(leading: tuple[tuple[Shape, Shape], ...]) -> st.SearchStrategy[Product]:
    pairs = st.sampled_from(leading)
    return st.builds(Product, dtypes, sizes, sizes, sizes, operations, operations, pairs, factors, seeds)


@check_on_device(2 * SHARE, flags, products(PAIRS), inputs, inputs, outputs)
async def test_gemm_multiplies_any_matrices_and_stacks_of_such(dev, batched, product, a_way, b_way, c_way):
    first, second, added = product.numbers()
    a, b = await put(dev, a_way, first), await put(dev, b_way, second)
    c = await put_output(dev, c_way, added, product.factors.beta)
    for _ in range(1 if product.factors.beta else 3):  # what is only overwritten may be so again and again
        assert await ask(dev, batched, "blas.gemm", a.array, b.array, out=(out := c.array), **product.words()) is out
    assert_close(await c.result(), *product.expected(a.numbers, b.numbers, added), product.k + 2)
    await a.check_kept()
    await b.check_kept()


@check_on_device(SHARE, flags, products(PAIRS), stored, stored)
async def test_the_same_product_again_has_the_same_bits_in_a_new_place(dev, batched, product, a_way, b_way):
    product = attrs.evolve(product, factors=attrs.evolve(product.factors, beta=0))
    first, second, added = product.numbers()
    a, b = await put(dev, a_way, first), await put(dev, b_way, second)
    results = [await ask(dev, batched, "blas.gemm", a.array, b.array, **product.words()) for _ in range(3)]
    one, *others = [await each.to_host() for each in results]
    assert_close(one, *product.expected(first, second, added), product.k + 2)
    assert all(other.tobytes() == one.tobytes() for other in others)
    assert not one.size or len({each.address for each in results}) == 3


near_stacks = st.builds(attrs.evolve, outputs, axes=st.tuples(axes(1), axes(1, 2), axes(1, 2, 3), axes(1, after=FAR)))
"""Matrices that lie at one distance."""


@check_on_device(2 * SHARE, flags, products(PAIRS[:5]), inputs, inputs, near_stacks, near_stacks, flags, flags)
async def test_matmul_multiplies_adds_a_bias_and_cuts_off_what_is_negative(
    dev, batched, product, a_way, b_way, c_way, out_way, with_bias, with_relu
):
    is_real = product.dtype not in COMPLEX
    epilogue = "_".join(["relu"] * (with_relu and is_real) + ["bias"] * (with_bias and is_real)) or None
    first, second, added = product.numbers()
    a, b, c = await put(dev, a_way, first), await put(dev, b_way, second), await put(dev, c_way, added)
    by_rows = out_way.by_rows or (epilogue is not None and "bias" in epilogue)
    out = await put_output(dev, attrs.evolve(out_way, by_rows=by_rows), added, 0)
    bias = random(np.random.default_rng(product.seed), product.n, product.dtype)
    given: dict[str, Any] = {"c": c.array, "out": (target := out.array), "epilogue": epilogue, **product.words()}
    if epilogue is not None and "bias" in epilogue:
        given["bias"] = await dev.to_device(bias)
    assert await ask(dev, batched, "blaslt.matmul", a.array, b.array, **given) is target
    expected, size = product.expected(a.numbers, b.numbers, c.numbers)
    if "bias" in given:
        expected, size = expected + bias, size + np.abs(bias)
    if with_relu and is_real:
        expected = np.maximum(expected, 0)
    assert_close(await out.result(), expected, size, product.k + 3)
    for each in (a, b, c):
        await each.check_kept()


@check_on_device(SHARE, flags, st.sampled_from(["syrk", "herk"]), dtypes, sizes, sizes, flags, flags, inputs, outputs,
                 factors, seeds)  # fmt: skip
async def test_syrk_and_herk_write_one_triangle(
    dev, batched, verb, dtype, n, k, lower, turned, a_way, c_way, scalars, seed
):
    rng, hermit = np.random.default_rng(seed), verb == "herk"
    dtype = f"complex{2 * np.finfo(dtype).bits}" if hermit and dtype not in COMPLEX else dtype
    alpha, beta = (scalars.alpha, scalars.beta) if hermit else scalars.of(dtype)
    op = "N" if not turned else "C" if hermit else "T"
    a = await put(dev, a_way, random(rng, shape_before(op, n, k), dtype))
    added = hermitian(rng, (n, n), dtype) if hermit else random(rng, (n, n), dtype)
    written = np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T
    # Where it is not to be read there is NaN, and what is not to be written must stay.
    c = await put(dev, c_way, np.where(written & (beta == 0), np.nan, added).astype(dtype))
    words = {"lower": lower, "op": op, "alpha": alpha, "beta": beta}
    assert await ask(dev, batched, f"blas.{verb}", a.array, out=(out := c.array), **words) is out
    first = OPERATIONS[op](exact(a.numbers))
    second = adjoint(first) if hermit else first.T
    size = abs(alpha) * (np.abs(first) @ np.abs(second)) + abs(beta) * np.abs(added)
    result, expected = await c.result(), alpha * (first @ second) + beta * exact(added)
    assert_close(result[written], expected[written], size[written], k + 2)
    assert result[~written].tobytes() == added[~written].tobytes()
    if hermit:
        assert not result.diagonal().imag.any()
    await a.check_kept()


def triangles(
    rng: np.random.Generator, shape: Shape, dtype: str, lower: bool, unit_diagonal: bool
) -> tuple[Numbers, Numbers]:
    """Triangular matrices that are well-conditioned; and as they are given: NaN where they must not be read."""
    order = shape[-1]
    whole = (random(rng, shape, dtype) / max(order, 1) + 2 * np.eye(order)).astype(dtype)
    given = half(whole, lower)
    if unit_diagonal:
        whole[..., range(order), range(order)] = 1
        given[..., range(order), range(order)] = np.nan
    return exact(np.tril(whole) if lower else np.triu(whole)), given


@check_on_device(SHARE, flags, dtypes, sizes, orders, st.sampled_from(PAIRS), flags, flags, flags, operations, stored,
                 inputs, outputs, factors, seeds)  # fmt: skip
async def test_trsm_solves_by_any_triangle_on_either_side(
    dev, batched, dtype, order, count, leading, left, lower, unit, op, a_way, b_way, x_way, scalars, seed
):
    rng, (alpha, _) = np.random.default_rng(seed), scalars.of(dtype)
    triangle, given = triangles(rng, (*leading[0], order, order), dtype, lower, unit)
    shape = (order, count) if left else (count, order)
    a, b = await put(dev, a_way, given), await put(dev, b_way, random(rng, (*leading[1], *shape), dtype))
    result_shape = (*np.broadcast_shapes(*leading), *shape)
    x = await put_output(dev, x_way, np.zeros(result_shape, dtype), 0)
    words = {"left": left, "lower": lower, "op_a": op, "unit_diagonal": unit, "alpha": alpha}
    assert await ask(dev, batched, "blas.trsm", a.array, b.array, out=(out := x.array), **words) is out
    inverse, turned = np.linalg.inv(OPERATIONS[op](triangle)), np.abs(OPERATIONS[op](triangle))
    sides = alpha * exact(b.numbers)
    expected = inverse @ sides if left else sides @ inverse
    grown = np.abs(inverse) @ turned if left else turned @ np.abs(inverse)
    size = grown @ np.abs(expected) if left else np.abs(expected) @ grown
    assert_close(await x.result(), expected, size, order + 2)
    await a.check_kept()
    await b.check_kept()


@check_on_device(
    SHARE, flags, dtypes, sizes, sizes, operations, operations, inputs, inputs, outputs, factors, flags, seeds
)
async def test_geam_adds_any_two_matrices_and_is_added_to_one_in_its_place(
    dev, batched, dtype, m, n, op_a, op_b, a_way, b_way, c_way, scalars, in_place, seed
):
    rng, (alpha, beta) = np.random.default_rng(seed), scalars.of(dtype)
    op_b = "N" if in_place else op_b
    a = await put(dev, a_way, random(rng, shape_before(op_a, m, n), dtype))
    second = random(rng, shape_before(op_b, m, n), dtype)
    b = await put(dev, c_way if in_place else b_way, second)
    c = b if in_place else await put_output(dev, c_way, np.zeros((m, n), dtype), 0)
    out = c.array
    words = {"op_a": op_a, "op_b": op_b, "alpha": alpha, "beta": beta, "out": out}
    assert await ask(dev, batched, "blas.geam", a.array, out if in_place else b.array, **words) is out
    first, second = OPERATIONS[op_a](exact(a.numbers)), OPERATIONS[op_b](exact(b.numbers))
    size = abs(alpha) * np.abs(first) + abs(beta) * np.abs(second)
    assert_close(await c.result(), alpha * first + beta * second, size, 2)
    await a.check_kept()
    if not in_place:
        await b.check_kept()


# --- solvers ----------------------------------------------------------------------------------------------------------


def regular(rng: np.random.Generator, shape: Shape, dtype: str) -> Numbers:
    """Matrices that are well-conditioned, with rows in an order that makes pivots necessary."""
    order = shape[-1]
    whole = random(rng, shape, dtype) + 2 * order * np.eye(order)
    return np.asarray(whole[..., rng.permutation(order), :], dtype)


async def results(dev: Device, batched: bool, verb: str, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
    """What a verb returns, on the host."""
    returned = await ask(dev, batched, verb, *arguments, **keywords)
    several = returned if isinstance(returned, tuple) else (returned,)
    return tuple([await each.to_host() if isinstance(each, DeviceArray) else each for each in several])


@check_on_device(SHARE, flags, dtypes, orders, orders, st.sampled_from(PAIRS), flags, stored, inputs, seeds)
async def test_solve_solves_any_stack_of_systems(
    dev, batched, dtype, order, count, leading, is_vector, a_way, b_way, seed
):
    rng = np.random.default_rng(seed)
    a = await put(dev, a_way, regular(rng, (*leading[0], order, order), dtype))
    b = await put(dev, b_way, random(rng, (order,) if is_vector else (*leading[1], order, count), dtype))
    (x,) = await results(dev, batched, "solver.solve", a.array, b.array)
    assert x.shape == np.linalg.solve(exact(a.numbers), exact(b.numbers)).shape
    product = (exact(a.numbers) @ exact(x)[..., None])[..., 0] if is_vector else exact(a.numbers) @ exact(x)
    assert_small(product - exact(b.numbers), b.numbers, dtype, 8 * order)
    await a.check_kept()
    await b.check_kept()


@check_on_device(SHARE, flags, dtypes, orders, stacks, flags, stored, seeds)
async def test_cholesky_gives_a_triangle_whose_square_is_the_matrix(
    dev, batched, dtype, order, stack, upper, a_way, seed
):
    numbers = positive(np.random.default_rng(seed), (*stack, order, order), dtype)
    a = await put(dev, a_way, half(numbers, not upper))
    (factor,) = await results(dev, batched, "solver.cholesky", a.array, upper=upper)
    assert factor.shape == numbers.shape
    assert (np.triu(factor) if upper else np.tril(factor)).tobytes() == factor.tobytes()
    triangle = exact(factor)
    product = adjoint(triangle) @ triangle if upper else triangle @ adjoint(triangle)
    assert_small(product - exact(numbers), numbers, dtype, order)
    await a.check_kept()


@check_on_device(
    SHARE, flags, dtypes, orders, orders, stacks, st.sampled_from(["reduced", "complete", "r"]), inputs, seeds
)
async def test_qr_gives_orthonormal_columns_and_a_triangle(dev, batched, dtype, m, n, stack, mode, a_way, seed):
    a = await put(dev, a_way, random(np.random.default_rng(seed), (*stack, m, n), dtype))
    q, r = await results(dev, batched, "solver.qr", a.array, mode=mode)
    given = exact(a.numbers)
    assert np.triu(r).tobytes() == r.tobytes()
    if mode == "r":
        assert q is None
        assert r.shape == np.linalg.qr(given, mode="r").shape
        q = exact((await results(dev, batched, "solver.qr", a.array))[0])
        assert_small(q @ exact(r) - given, given, dtype, max(m, n))
    else:
        assert (q.shape, r.shape) == tuple(each.shape for each in np.linalg.qr(given, mode=mode))
        assert_orthonormal(q)
        assert_small(exact(q) @ exact(r) - given, given, dtype, max(m, n))
    await a.check_kept()


@check_on_device(SHARE, flags, dtypes, orders, orders, stacks, flags, inputs, seeds)
async def test_svd_takes_any_matrix_apart_and_numpy_puts_it_together(
    dev, batched, dtype, m, n, stack, full, a_way, seed
):
    a = await put(dev, a_way, random(np.random.default_rng(seed), (*stack, m, n), dtype))
    u, s, vh = await results(dev, batched, "solver.svd", a.array, full_matrices=full)
    given, smaller = exact(a.numbers), min(m, n)
    expected = np.linalg.svd(given, full_matrices=full)
    assert (u.shape, s.shape, vh.shape) == tuple(each.shape for each in expected)
    assert (s >= 0).all()
    assert (np.diff(s) <= 0).all()
    assert_orthonormal(u)
    assert_orthonormal(adjoint(vh))
    assert_small(exact(s) - expected[1], expected[1], dtype, max(m, n))
    product = (exact(u)[..., :smaller] * exact(s)[..., None, :]) @ exact(vh)[..., :smaller, :]
    assert_small(product - given, expected[1], dtype, max(m, n))
    await a.check_kept()


@check_on_device(SHARE, flags, dtypes, orders, stacks, flags, stored, seeds)
async def test_eigh_gives_what_a_matrix_only_stretches(dev, batched, dtype, order, stack, lower, a_way, seed):
    numbers = hermitian(np.random.default_rng(seed), (*stack, order, order), dtype)
    a = await put(dev, a_way, half(numbers, lower))
    w, v = await results(dev, batched, "solver.eigh", a.array, lower=lower)
    given = exact(numbers)
    expected = np.linalg.eigvalsh(given)
    assert (w.shape, w.dtype, v.shape) == (expected.shape, np.dtype(REALS[dtype]), numbers.shape)
    assert (np.diff(w) >= 0).all()
    assert_orthonormal(v)
    assert_small(exact(w) - expected, expected, dtype, 2 * order)
    assert_small(given @ exact(v) - exact(v) * exact(w)[..., None, :], expected, dtype, 2 * order)
    await a.check_kept()


def exchanged(numbers: Numbers, pivots: Numbers) -> Numbers:
    """One matrix with its rows in the order that the exchanges of LU make."""
    moved = numbers.copy()
    for row, other in enumerate(pivots - 1):
        moved[[row, other]] = moved[[other, row]]
    return moved


@check_on_device(SHARE, flags, dtypes, orders, orders, stacks, stored, seeds)
async def test_getrf_factors_any_matrix_with_its_rows_exchanged(dev, batched, dtype, m, n, stack, a_way, seed):
    numbers = random(np.random.default_rng(seed), (*stack, m, n), dtype)
    a = await put(dev, a_way, numbers)
    factors, pivots = await results(dev, batched, "solver.getrf", a.array)
    smaller = min(m, n)
    assert (factors.shape, pivots.shape, pivots.dtype) == (numbers.shape, (*stack, smaller), np.int64)
    lower = np.tril(exact(factors), -1)[..., :smaller] + np.eye(m, smaller)
    product = lower @ np.triu(exact(factors))[..., :smaller, :]
    for index in np.ndindex(stack):
        assert_small(product[index] - exchanged(exact(numbers)[index], pivots[index]), numbers, dtype, 2 * max(m, n))
    await a.check_kept()


@check_on_device(SHARE, flags, dtypes, orders, orders, stacks, operations, inputs, seeds)
async def test_getrs_solves_by_the_factors_of_getrf(dev, batched, dtype, order, count, stack, op, b_way, seed):
    rng = np.random.default_rng(seed)
    numbers = regular(rng, (*stack, order, order), dtype)
    factors, pivots = await ask(dev, batched, "solver.getrf", await dev.to_device(numbers))
    b = await put(dev, b_way, random(rng, (*stack, order, count), dtype))
    (x,) = await results(dev, batched, "solver.getrs", factors, pivots, b.array, op=op)
    assert_small(OPERATIONS[op](exact(numbers)) @ exact(x) - exact(b.numbers), b.numbers, dtype, 8 * order)
    await b.check_kept()


@check_on_device(SHARE, flags, dtypes, orders, orders, orders, stacks, flags, inputs, inputs, seeds)
async def test_ormqr_multiplies_by_the_q_of_geqrf_from_either_side(
    dev, batched, dtype, m, n, count, stack, left, a_way, c_way, seed
):
    rng = np.random.default_rng(seed)
    a = await put(dev, a_way, random(rng, (*stack, m, n), dtype))
    reflectors, scales = await ask(dev, batched, "solver.geqrf", a.array)
    assert scales.shape == (*stack, min(m, n))
    # Q R is the matrix.
    r = np.triu(await reflectors.to_host())
    (product,) = await results(dev, batched, "solver.ormqr", reflectors, scales, await dev.to_device(r))
    assert_small(exact(product) - exact(a.numbers), a.numbers, dtype, 4 * max(m, n))
    # Q is unitary: what it has done its adjoint undoes, and no length is another.
    c = await put(dev, c_way, random(rng, (*stack, m, count) if left else (*stack, count, m), dtype))
    there = await ask(dev, batched, "solver.ormqr", reflectors, scales, c.array, left=left)
    (back,) = await results(dev, batched, "solver.ormqr", reflectors, scales, there, left=left, op="C")
    assert_small(exact(back) - exact(c.numbers), c.numbers, dtype, 8 * max(m, 1))
    axis = -2 if left else -1
    norms = [np.linalg.norm(exact(each), axis=axis) for each in (await there.to_host(), c.numbers)]
    assert_small(norms[0] - norms[1], norms[1], dtype, 8 * max(m, 1))
    await a.check_kept()
    await c.check_kept()
