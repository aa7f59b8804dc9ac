"""Level 3 beside general products: symmetric, Hermitian, triangular and diagonal matrices, updates, and sums."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atomr_trio import CommandFailed, Device, DeviceArray, InvalidArgument
from atomr_trio._calls.verbs import Library
from atomr_trio.libraries.blas.verbs import Blas
from atomr_trio.testing import ReturnStatus, inject
from support.blas import (
    ARCH_MISMATCH,
    DTYPES,
    MATRICES,
    SCATTERED,
    Caller,
    Layout,
    Place,
    assert_close,
    assert_refused,
    exact,
    fresh_random,
    place,
    place_poisoned,
    random,
    shared,
    submitted,
)

COMPLEX = ("complex64", "complex128")
ANY = (*MATRICES, *SCATTERED)
Array = npt.NDArray[Any]


@pytest.fixture
def rng() -> np.random.Generator:
    return fresh_random()


def after(operation: str, matrix: Array) -> Array:
    """What "N", "T" and "C" mean."""
    turned = matrix if operation == "N" else np.swapaxes(matrix, -1, -2)
    return turned.conj() if operation == "C" else turned


def triangle(matrix: Array, lower: bool) -> Array:
    return np.tril(matrix) if lower else np.triu(matrix)


def with_nan(matrix: Array, lower: bool, *, diagonal: bool = False) -> Array:
    """A matrix with NaN where nothing may be read: in the other triangle, and on the diagonal if that means ones."""
    kept = triangle(np.ones(matrix.shape, bool), lower)
    if diagonal:
        kept &= ~np.eye(matrix.shape[0], dtype=bool)
    return np.where(kept, matrix, np.nan).astype(matrix.dtype)


def real_diagonal(matrix: Array) -> Array:
    result = matrix.copy()
    np.fill_diagonal(result, result.diagonal().real)
    return result


def layouts(rng: np.random.Generator, *choices: tuple[Layout, ...]) -> Iterator[tuple[Layout, ...]]:
    """Each combination of the first and the last choice, which an operand and the output have; others at random."""
    for first, last in itertools.product(choices[0], choices[-1]):
        yield (first, *(some[rng.integers(len(some))] for some in choices[1:-1]), last)


def factors(dtype: str, *, real: bool = False) -> tuple[complex, complex]:
    return (-0.5, 1.5) if real or dtype not in COMPLEX else (-0.5 + 1j, 1.5 - 0.25j)


async def poisoned_or(
    dev: Device, rng: np.random.Generator, layout: Layout, shape: tuple[int, int], dtype: str, beta: complex
) -> tuple[Place, Array]:
    """An output, of NaN if it is not to be read, and what is added of it."""
    if beta == 0:
        return await place_poisoned(dev, layout, shape, dtype), np.zeros(shape)
    content = random(rng, shape, dtype)
    return await place(dev, layout, content), exact(content)


# ---------------------------------------------------------------------------------------------------- symm, hemm


def full(verb: str, matrix: Array, lower: bool) -> Array:
    """The matrix of which one triangle is given."""
    matrix = exact(matrix)
    half = triangle(matrix, lower)
    other = after("C" if verb == "hemm" else "T", half)
    whole = half + other
    diagonal = matrix.diagonal().real if verb == "hemm" else matrix.diagonal()
    np.fill_diagonal(whole, diagonal)
    return whole


@pytest.mark.parametrize(
    ("verb", "dtype"), [*(("symm", dtype) for dtype in DTYPES), *(("hemm", dtype) for dtype in COMPLEX)]
)
@pytest.mark.parametrize("left", [True, False])
async def test_products_with_a_symmetric_or_hermitian_matrix(
    dev: Device, rng: np.random.Generator, verb: str, dtype: str, left: bool
) -> None:
    call, (alpha, beta) = Caller(dev), factors(dtype)
    shapes = itertools.cycle(((5, 3), (1, 4), (3, 1), (4, 5), (0, 2)))
    for lower in (True, False):
        for special, other, result in shared(layouts(rng, ANY, ANY, MATRICES), dtype):
            m, n = next(shapes)
            order = m if left else n
            a, b = random(rng, (order, order), dtype), random(rng, (m, n), dtype)
            on_device = await place(dev, special, with_nan(a, lower)), await place(dev, other, b)
            factor = beta if rng.integers(2) else 0
            out, added = await poisoned_or(dev, rng, result, (m, n), dtype, factor)
            given: Any = {"left": left, "lower": lower, "alpha": alpha, "beta": factor, "out": (view := out.array)}
            assert await call(verb, on_device[0].array, on_device[1].array, **given) is view
            whole, b = full(verb, a, lower), exact(b)
            wanted = alpha * (whole @ b if left else b @ whole) + factor * added
            absolute = np.abs(whole) @ np.abs(b) if left else np.abs(b) @ np.abs(whole)
            assert_close(await out.read(), wanted, abs(alpha) * absolute + abs(factor) * np.abs(added), order + 2)


# ---------------------------------------------------------------------------------------------------- updates


def update(verb: str, a: Array, b: Array | None, op: str, alpha: complex) -> tuple[Array, Array]:
    """What is added to the output, and the same of absolute values."""
    turn = "C" if verb.startswith("her") else "T"
    first = exact(a) if op == "N" else after(turn, exact(a))
    if b is None:
        return alpha * (first @ after(turn, first)), abs(alpha) * (np.abs(first) @ np.abs(first).T)
    second = exact(b) if op == "N" else after(turn, exact(b))
    half, absolute = alpha * (first @ after(turn, second)), abs(alpha) * (np.abs(first) @ np.abs(second).T)
    return half + after(turn, half), absolute + absolute.T


@pytest.mark.parametrize(
    ("verb", "dtype"),
    [
        *itertools.product(("syrk", "syr2k"), DTYPES),
        *itertools.product(("herk", "her2k"), COMPLEX),
    ],
)
async def test_updates_of_one_triangle(dev: Device, rng: np.random.Generator, verb: str, dtype: str) -> None:
    call, hermitian = Caller(dev), verb.startswith("her")
    alpha, beta = factors(dtype)[0] if verb != "herk" else -0.5, factors(dtype, real=hermitian)[1]
    operations = "NC" if hermitian else "NT" if dtype in COMPLEX else "NTC"
    shapes = itertools.cycle(((4, 3), (1, 2), (3, 1), (5, 4), (3, 0), (3, 6), (0, 2)))
    for lower, op in itertools.product((True, False), operations):
        for first, second, result in shared(layouts(rng, ANY[1:], ANY, MATRICES[1:3]), dtype):
            n, k = next(shapes)
            shape = (n, k) if op == "N" else (k, n)
            a, b = random(rng, shape, dtype), random(rng, shape, dtype)
            inputs = [(await place(dev, first, a)).array]
            if "2" in verb:
                inputs.append((await place(dev, second, b)).array)
            factor = beta if rng.integers(2) else 0
            before = random(rng, (n, n), dtype)
            before = real_diagonal(before) if hermitian else before
            if not factor:
                before = np.where(triangle(np.ones((n, n), bool), lower), np.nan, before).astype(dtype)
            out = await place(dev, result, before)
            given: Any = {"lower": lower, "op": op, "alpha": alpha, "beta": factor, "out": (view := out.array)}
            assert await call(verb, *inputs, **given) is view
            added, absolute = update(verb, a, b if "2" in verb else None, op, alpha)
            now, inside = await out.read(), triangle(np.ones((n, n), bool), lower)
            old = exact(before) if factor else np.zeros((n, n))
            wanted, size = added + factor * old, absolute + abs(factor) * np.abs(old)
            assert_close(now[inside], wanted[inside], size[inside], 2 * k + 2)
            assert now[~inside].tobytes() == before[~inside].tobytes(), "the other triangle was written"
            if hermitian:
                assert not now.diagonal().imag.any()


@pytest.mark.parametrize("verb", ["syrk", "herk", "syr2k", "her2k"])
async def test_a_new_result_of_an_update_has_zeros_in_the_other_triangle(
    dev: Device, rng: np.random.Generator, verb: str
) -> None:
    a = random(rng, (4, 3), "complex64")
    on_device = await dev.to_device(a)
    for lower in (True, False):
        result = await getattr(dev.blas, verb)(*[on_device] * (1 + ("2" in verb)), lower=lower)
        wanted, absolute = update(verb, a, a if "2" in verb else None, "N", 1)
        assert_close(await result.to_host(), triangle(wanted, lower), triangle(absolute, lower), 8)


# ---------------------------------------------------------------------------------------------------- trmm, trsm


def triangular_case(rng: np.random.Generator, order: int, dtype: str, lower: bool, unit: bool) -> tuple[Array, Array]:
    """A triangular matrix that is well-conditioned, and as it is given: NaN where it must not be read."""
    matrix = random(rng, (order, order), dtype) / max(order, 1)
    matrix = (matrix + 2 * np.eye(order)).astype(dtype)
    given = with_nan(matrix, lower, diagonal=unit)
    meant = triangle(exact(matrix), lower)
    if unit:
        np.fill_diagonal(meant, 1)
    return meant, given


def hold_product(
    result: Array, a: Array, b: Array, op: str, left: bool, alpha: complex, *, epsilon: float | None = None
) -> None:
    a, b = after(op, a), exact(b)
    wanted = alpha * (a @ b if left else b @ a)
    absolute = np.abs(a) @ np.abs(b) if left else np.abs(b) @ np.abs(a)
    assert_close(result, wanted, abs(alpha) * absolute, a.shape[-1] + 1, epsilon=epsilon)


def hold_solution(
    x: Array, a: Array, b: Array, op: str, left: bool, alpha: complex, *, epsilon: float | None = None
) -> None:
    """The residual is small beside what it is the difference of."""
    a, b = after(op, a), exact(b)
    product = (a @ exact(x) if left else exact(x) @ a).astype(x.dtype)
    absolute = np.abs(a) @ np.abs(x) if left else np.abs(x) @ np.abs(a)
    assert_close(product, alpha * b, absolute + abs(alpha) * np.abs(b), a.shape[-1] + 2, epsilon=epsilon)


HOLD = {"trmm": hold_product, "trsm": hold_solution}


@pytest.mark.parametrize("verb", HOLD)
@pytest.mark.parametrize("dtype", DTYPES)
async def test_triangular_matrices(dev: Device, rng: np.random.Generator, verb: str, dtype: str) -> None:
    call, alpha = Caller(dev), factors(dtype)[0]
    shapes = itertools.cycle(((4, 3), (1, 5), (6, 1), (3, 4), (2, 0)))
    for left, lower, op, unit in shared(itertools.product((True, False), (True, False), "NTC", (False, True)), dtype):
        m, n = next(shapes)
        for special, other, result in layouts(rng, ANY[:2], ANY, MATRICES[1:3]):
            meant, given = triangular_case(rng, m if left else n, dtype, lower, unit)
            b = random(rng, (m, n), dtype)
            a, in_place = await place(dev, special, given), rng.integers(2)
            source = await place(dev, result if in_place else other, b)
            out = source if in_place else await place_poisoned(dev, result, (m, n), dtype)
            words: Any = {"left": left, "lower": lower, "op_a": op, "unit_diagonal": unit, "alpha": alpha}
            await call(verb, a.array, source.array, **words, out=out.array)
            HOLD[verb](await out.read(), meant, b, op, left, alpha)
            assert (await a.read()).tobytes() == given.tobytes()
            assert in_place or (await source.read()).tobytes() == b.tobytes()


STACKS = [((3,), (3,)), ((), (2, 3)), ((3,), ()), ((2, 1), (1, 2)), ((1,), (1, 1)), ((0,), (0,))]


@pytest.mark.parametrize("dtype", DTYPES)
async def test_stacks_of_triangular_systems(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    call, alpha = Caller(dev), factors(dtype)[0]
    for (first, second), (op, left) in itertools.product(STACKS, (("N", True), ("C", True), ("C", False))):
        meant, given = np.empty((2, *first, 3, 3), np.complex128 if dtype in COMPLEX else np.float64)
        for index in np.ndindex(first):
            meant[index], given[index] = triangular_case(rng, 3, dtype, True, False)
        b = random(rng, (*second, 3, 2) if left else (*second, 2, 3), dtype)
        on_device = await dev.to_device(given.astype(dtype)), await dev.to_device(b)
        result = await call("trsm", *on_device, op_a=op, left=left, alpha=alpha)
        host, stack = await result.to_host(), np.broadcast_shapes(first, second)
        assert host.shape == (*stack, *b.shape[-2:])
        meant, b = (np.broadcast_to(each, (*stack, *each.shape[-2:])) for each in (meant, b))
        for index in np.ndindex(stack):
            hold_solution(host[index], meant[index], b[index], op, left, alpha)


async def test_a_stack_is_solved_where_it_lies(dev: Device, rng: np.random.Generator) -> None:
    """Matrices of a larger array, the second axis first: no one distance leads from each to the next."""
    a, whole = 2 * np.eye(3) + random(rng, (3, 3), "float64") / 3, random(rng, (4, 5, 6, 7), "float64")
    view = lambda frame: frame.transpose(1, 0, 3, 2)[1:4, 2:, :2, 1:4]  # noqa: E731
    on_device = await dev.to_device(whole)
    await dev.blas.trsm(await dev.to_device(a), view(on_device), left=False, lower=False, out=view(on_device))
    now = await on_device.to_host()
    for index in np.ndindex(3, 2):
        hold_solution(view(now)[index], np.triu(a), view(whole)[index], "N", False, 1)
    view(now)[...] = view(whole)
    assert now.tobytes() == whole.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
async def test_lists_of_triangular_systems(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    call = Caller(dev)
    for left, lower, op, unit in itertools.product((True, False), (True, False), "NC", (False, True)):
        cases = [triangular_case(rng, 4, dtype, lower, unit) for _ in range(3)]
        b = [random(rng, (4, 2) if left else (2, 4), dtype) for _ in range(3)]
        a = [(await place(dev, ANY[rng.integers(len(ANY))], given)).array for _, given in cases]
        sources = [await place(dev, MATRICES[2], each) for each in b]
        arrays = [each.array for each in sources]
        words: Any = {"left": left, "lower": lower, "op_a": op, "unit_diagonal": unit}
        for index, result in enumerate(await call("trsm_batched", a, arrays, **words)):
            hold_solution(await result.to_host(), cases[index][0], b[index], op, left, 1)
        await call("trsm_batched", a, arrays, **words, out=arrays)
        for index, source in enumerate(sources):
            hold_solution(await source.read(), cases[index][0], b[index], op, left, 1)


async def test_a_system_is_solved_beside_its_right_hand_side(dev: Device, rng: np.random.Generator) -> None:
    whole, a = random(rng, (4, 6), "float32"), np.eye(4, dtype=np.float32)
    on_device = await dev.to_device(whole)
    await dev.blas.trsm(await dev.to_device(a), on_device[:, :3], out=on_device[:, 3:])
    now = await on_device.to_host()
    assert (now[:, 3:] == whole[:, :3]).all()
    assert (now[:, :3] == whole[:, :3]).all()


async def test_a_zero_on_the_diagonal_is_no_error(dev: Device) -> None:
    a, b = await dev.to_device(np.diag([1.0, 0.0])), await dev.to_device(np.ones((2, 1)))
    result = await (await dev.blas.trsm(a, b)).to_host()
    assert not np.isfinite(result[1, 0])


# ---------------------------------------------------------------------------------------------------- geam, dgmm


@pytest.mark.parametrize("dtype", DTYPES)
async def test_sums(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    call, (alpha, beta) = Caller(dev), factors(dtype)
    shapes = itertools.cycle(((3, 4), (1, 3), (5, 1), (0, 3)))
    for op_a, op_b in shared(itertools.product("NTC", "NTC"), dtype):
        for first, second, result in layouts(rng, ANY[:2], ANY, MATRICES[1:3]):
            m, n = next(shapes)
            a = random(rng, (m, n) if op_a == "N" else (n, m), dtype)
            b = random(rng, (m, n) if op_b == "N" else (n, m), dtype)
            left, right = (await place(dev, first, a)).array, (await place(dev, second, b)).array
            out = await place_poisoned(dev, result, (m, n), dtype)
            await call("geam", left, right, alpha=alpha, beta=beta, op_a=op_a, op_b=op_b, out=out.array)
            one, other = after(op_a, exact(a)), after(op_b, exact(b))
            size = abs(alpha) * np.abs(one) + abs(beta) * np.abs(other)
            assert_close(await out.read(), alpha * one + beta * other, size, 2)
            alone = await (await call("geam", left, alpha=alpha, op_a=op_a)).to_host()
            assert_close(alone, alpha * one, abs(alpha) * np.abs(one), 1)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_a_sum_in_the_place_of_a_term(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    for layout in MATRICES:
        a, b = random(rng, (4, 3), dtype), random(rng, (4, 3), dtype)
        left, right = await place(dev, layout, a), await place(dev, MATRICES[0], b)
        await dev.blas.geam(left.array, right.array, alpha=2, out=left.array)
        assert_close(await left.read(), 2 * exact(a) + exact(b), 2 * np.abs(a) + np.abs(b), 2)
        await dev.blas.geam(right.array, right.array, beta=-3, out=right.array)
        assert_close(await right.read(), -2 * exact(b), 4 * np.abs(b), 2)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_products_with_a_diagonal_matrix(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    call = Caller(dev)
    shapes, steps = itertools.cycle(((3, 4), (1, 3), (5, 1), (0, 3), (2, 7))), itertools.cycle((1, 3, -1, -2))
    for left in (True, False):
        for first, result in shared(layouts(rng, ANY, MATRICES), dtype):
            (m, n), step, in_place = next(shapes), next(steps), rng.integers(2)
            a, x = random(rng, (m, n), dtype), random(rng, (abs(step) * (m if left else n),), dtype)
            source = await place(dev, result if in_place else first, a)
            out = source if in_place else await place_poisoned(dev, result, (m, n), dtype)
            await call("dgmm", source.array, (await dev.to_device(x))[::step], left=left, out=out.array)
            meant = exact(a) * (exact(x[::step])[:, np.newaxis] if left else exact(x[::step]))
            assert_close(await out.read(), meant, np.abs(meant), 1)


@pytest.mark.parametrize("dtype", COMPLEX)
async def test_many_rows_are_brought_into_another_order(dev: Device, rng: np.random.Generator, dtype: str) -> None:
    """More than the copy engine would turn round."""
    a, b = random(rng, (300, 300), dtype), random(rng, (300, 2), dtype)
    result = await dev.blas.hemm((await dev.to_device(a)).T, await dev.to_device(b))
    whole = full("hemm", a.T, True)
    assert_close(await result.to_host(), whole @ exact(b), np.abs(whole) @ np.abs(b), 302)


# ---------------------------------------------------------------------------------------------------- math modes


TF32 = 2.0**-10
"""The distance of 1 from its neighbour."""
COMPUTES = ("tf32", None, "tf32", "pedantic", None)
LARGE, SMALL = 9, 6

Hold = Callable[..., None]
"""Takes a result, and the `epsilon` of the arithmetic where it is not that of the dtype."""


def product_problem(rng: np.random.Generator, verb: str, dtype: str) -> tuple[list[Array], Hold]:
    a, b = random(rng, (LARGE, LARGE), dtype), random(rng, (LARGE, SMALL), dtype)
    whole = full(verb, a, True)
    size = np.abs(whole) @ np.abs(b)
    return [a, b], partial(assert_close, expected=whole @ exact(b), size=size, growth=LARGE + 2)


def update_problem(rng: np.random.Generator, verb: str, dtype: str) -> tuple[list[Array], Hold]:
    a, b = random(rng, (SMALL, LARGE), dtype), random(rng, (SMALL, LARGE), dtype)
    wanted, absolute = update(verb, a, b if "2" in verb else None, "N", 1)
    expected, size = triangle(wanted, True), triangle(absolute, True)
    return [a, b][: 1 + ("2" in verb)], partial(assert_close, expected=expected, size=size, growth=2 * LARGE + 2)


def triangular_problem(rng: np.random.Generator, verb: str, dtype: str) -> tuple[list[Array], Hold]:
    (meant, a), b = triangular_case(rng, LARGE, dtype, True, False), random(rng, (LARGE, SMALL), dtype)
    return [a, b], partial(HOLD[verb], a=meant, b=b, op="N", left=True, alpha=1)


PROBLEMS = {
    **dict.fromkeys(("symm", "hemm"), product_problem),
    **dict.fromkeys(("syrk", "herk", "syr2k", "her2k"), update_problem),
    **dict.fromkeys(("trmm", "trsm"), triangular_problem),
}


@pytest.mark.parametrize(
    ("verb", "dtype"),
    [(verb, dtype) for verb in PROBLEMS for dtype in (COMPLEX if verb.startswith("he") else DTYPES)],
)
async def test_what_is_rounded_first(dev: Device, rng: np.random.Generator, verb: str, dtype: str) -> None:
    """The calls that ask for it, and none after them."""
    inputs, hold = PROBLEMS[verb](rng, verb, dtype)
    computes = [each for each in COMPUTES if each != "tf32" or dtype in ("float32", "complex64")]
    arguments = [await dev.to_device(each) for each in inputs]
    results = [await getattr(dev.blas, verb)(*arguments, compute=each) for each in computes]
    async with dev.batch() as batch:
        results += [getattr(batch.blas, verb)(*arguments, compute=each) for each in computes]
    await hold_each(dev, hold, zip(computes * 2, results, strict=True))


@pytest.mark.parametrize("verb", ["trsm", "trsm_batched"])
async def test_what_is_rounded_first_in_many_systems(dev: Device, rng: np.random.Generator, verb: str) -> None:
    (a, b), hold = triangular_problem(rng, "trsm", "float32")
    if verb == "trsm":
        arguments: list[Any] = [await dev.to_device(np.stack([each, each])) for each in (a, b)]
    else:
        arguments = [[await dev.to_device(each) for _ in range(2)] for each in (a, b)]
    results = [(each, await getattr(dev.blas, verb)(*arguments, compute=each)) for each in COMPUTES]
    await hold_each(dev, hold, [(compute, result[index]) for compute, result in results for index in range(2)])


async def hold_each(dev: Device, hold: Hold, results: Iterable[tuple[str | None, DeviceArray]]) -> None:
    """Hold results, each with how it was computed; the same is done to the same bits."""
    bits: dict[str | None, bytes] = {}
    for compute, result in results:
        host = await result.to_host()
        hold(host, epsilon=TF32 if compute == "tf32" else None)
        assert bits.setdefault(compute, host.tobytes()) == host.tobytes()
    if dev.backend == "sim":
        assert bits.get("tf32") != bits[None] == bits["pedantic"]


async def test_each_lane_has_its_own_way(dev: Device) -> None:
    """What is asked for on one is nothing to the other, nor to the products of `gemm`."""
    fine = 1 + 2.0**-12
    x, one = dev.full((1, 1), fine, np.float32), dev.full((1, 1), 1, np.float32)
    async with dev.lane() as lane, dev.batch(lane=lane) as first, dev.batch() as second:
        fast = [(first.blas.symm(x, one, compute="tf32"), second.blas.symm(x, one)) for _ in range(3)]
        same = first.blas.gemm(x, one)
    for rounded, exact_one in fast:
        assert await exact_one.to_host() == fine
        assert abs(await rounded.to_host() - fine) <= TF32
        assert dev.backend != "sim" or await rounded.to_host() == 1
    assert await same.to_host() == fine


@pytest.mark.sim_only
async def test_a_handle_is_set_when_something_changes_and_only_then(dev: Device) -> None:
    """Here the next time fails: what the handle does then is not known, and it is set anew."""
    fine = 1 + 2.0**-12
    x, one = dev.full((1, 1), fine, np.float32), dev.full((1, 1), 1, np.float32)

    async def multiply(compute: Any) -> float:
        return float((await (await dev.blas.symm(x, one, compute=compute)).to_host()).item())

    for (before, kept), (after, wanted) in itertools.permutations([(None, fine), ("tf32", 1)], 2):
        assert await multiply(before) == kept
        inject(dev, "cublasSetMathMode", ReturnStatus(ARCH_MISMATCH))
        assert await multiply(before) == kept
        with pytest.raises(CommandFailed):
            await multiply(after)
        assert await multiply(after) == wanted
    inject(dev, "cublasSetAtomicsMode", ReturnStatus(ARCH_MISMATCH))
    assert await dev.blas.dot(x[0], one[0]) == np.float32(fine)  # the scalars' place changes, and nothing else
    assert await multiply("tf32") == 1


# ---------------------------------------------------------------------------------------------------- what is refused


async def test_wrong_calls_are_refused_and_nothing_is_sent(dev: Device) -> None:
    def zeros(*shape: int, dtype: str = "float32") -> Any:
        return dev.zeros(shape, dtype)

    a, b, z, freed = zeros(3, 3), zeros(3, 4), zeros(3, 3, dtype="complex64"), zeros(3, 3)
    whole = zeros(6, 9)
    freed.free()
    stack = zeros(2, 3, 3)
    calls: dict[str, tuple[Any, ...]] = {
        "symm of a matrix that is not square": ("symm", b, b),
        "symm of another order": ("symm", a, zeros(4, 3)),
        "symm on the right of another order": ("symm", a, b, {"left": False}),
        "symm with an out of another shape": ("symm", a, b, {"out": a}),
        "symm with an out of another dtype": ("symm", a, b, {"out": zeros(3, 4, dtype="float64")}),
        "symm to a scattered out": ("symm", a, b, {"out": zeros(6, 8)[::2, ::2]}),
        "symm to an input": ("symm", a, b, {"out": b}),
        "symm with a factor of nothing": ("symm", a, b, {"beta": 1}),
        "syrk with a factor of nothing": ("syrk", a, {"beta": 1}),
        "symm of bytes": ("symm", zeros(3, 3, dtype="int8"), zeros(3, 3, dtype="int8")),
        "symm of a freed array": ("symm", freed, b),
        "symm of two dtypes": ("symm", z, b),
        "symm with a complex factor": ("symm", a, b, {"alpha": 1j}),
        "symm in a way of gemm": ("symm", a, b, {"compute": "fast_float16"}),
        "hemm in no way": ("hemm", z, z, {"compute": "TF32"}),
        "syrk of double precision rounded first": ("syrk", zeros(3, 3, dtype="float64"), {"compute": "tf32"}),
        "her2k of complex128 rounded first": ("her2k", *[zeros(3, 3, dtype="complex128")] * 2, {"compute": "tf32"}),
        "trmm of no matrices, rounded first": ("trmm", *[zeros(0, 0, dtype="float64")] * 2, {"compute": "tf32"}),
        "trsm of double precision rounded first": ("trsm", *[zeros(3, 3, dtype="float64")] * 2, {"compute": "tf32"}),
        "trsm_batched in no way": ("trsm_batched", [a], [zeros(3, 3)], {"compute": "emulated"}),
        "hemm of real matrices": ("hemm", a, b),
        "syrk with an operation of herk": ("syrk", z, {"op": "C"}),
        "syrk to its input": ("syrk", a, {"out": a}),
        "syrk to an out that is not square": ("syrk", a, {"out": b}),
        "syr2k of two shapes": ("syr2k", a, b),
        "syr2k of two dtypes": ("syr2k", a, zeros(3, 3, dtype="float64")),
        "herk of real matrices": ("herk", a),
        "herk with an operation of syrk": ("herk", z, {"op": "T"}),
        "herk with a complex factor": ("herk", z, {"alpha": 1j}),
        "her2k with a complex beta": ("her2k", z, z, {"beta": 1j, "out": zeros(3, 3, dtype="complex64")}),
        "trmm of a matrix that is not square": ("trmm", b, b),
        "trmm with no operation": ("trmm", a, b, {"op_a": "X"}),
        "trmm to a part of its input": ("trmm", a, whole[:3, :4], {"out": whole[1:4, :4]}),
        "trmm to its triangle": ("trmm", a, zeros(3, 3), {"out": a}),
        "trmm of stacks": ("trmm", stack, stack),
        "trsm of another order": ("trsm", a, zeros(4, 3)),
        "trsm of stacks that do not fit": ("trsm", stack, zeros(3, 3, 2)),
        "trsm of a vector": ("trsm", a, zeros(3)),
        "trsm of lists": ("trsm", [a], [b]),
        "trsm to a part of its input": ("trsm", a, whole[:3, :4], {"out": whole[:3, 1:5]}),
        "trsm to a stack of another shape": ("trsm", stack, b, {"out": b}),
        "trsm_batched of arrays": ("trsm_batched", stack, stack),
        "trsm_batched of lists of two lengths": ("trsm_batched", [a, a], [b]),
        "trsm_batched to one array twice": ("trsm_batched", [a, a], [b, b], {"out": [b, b]}),
        "trsm_batched to its triangles": ("trsm_batched", [a], [zeros(3, 3)], {"out": [a]}),
        "geam of two shapes": ("geam", a, b),
        "geam of two shapes after op_b": ("geam", b, b, {"op_b": "T"}),
        "geam to a term that is transposed": ("geam", a, {"op_a": "T", "out": a}),
        "geam of half precision": ("geam", zeros(3, 3, dtype="float16")),
        "dgmm with too short a diagonal": ("dgmm", b, zeros(3)),
        "dgmm on the left with too long a diagonal": ("dgmm", b, zeros(4), {"left": True}),
        "dgmm with a matrix for a diagonal": ("dgmm", a, a),
        "dgmm to its diagonal": ("dgmm", whole[:3, :4], whole[0, :4], {"out": whole[:3, :4]}),
    }
    await assert_refused(dev, calls)


async def test_arrays_of_another_device_are_refused(dev: Device, open_test_device: Any) -> None:
    async with open_test_device() as other:
        theirs = other.zeros((3, 3), np.float32)
        before = submitted(dev)
        for verb, count in (("symm", 2), ("syrk", 1), ("syr2k", 2), ("trmm", 2), ("trsm", 2), ("geam", 2)):
            with pytest.raises(InvalidArgument, match="another device"):
                await getattr(dev.blas, verb)(*[theirs] * count)
            mine = [dev.zeros((3, 3), np.float32) for _ in range(count)]
            with pytest.raises(InvalidArgument, match="another device"):
                await getattr(dev.blas, verb)(*mine, out=theirs)
        assert submitted(dev) == before


async def test_verbs_on_empty_matrices_send_nothing(dev: Device) -> None:
    empty, nothing = dev.zeros((0, 0), np.float32), dev.zeros((0, 3), np.float32)
    before = submitted(dev)
    for verb, *arguments in (
        ("symm", empty, nothing),
        ("syrk", nothing),
        ("trmm", empty, nothing),
        ("trsm", empty, nothing),
        ("geam", nothing, nothing),
        ("dgmm", nothing, dev.zeros(3, np.float32)),
    ):
        assert (await getattr(dev.blas, verb)(*arguments)).size == 0
    assert submitted(dev) == before


# ---------------------------------------------------------------------------------------------------- between commands


@pytest.mark.sim_only
async def test_a_result_that_was_begun_and_not_finished_is_torn(dev: Device, rng: np.random.Generator) -> None:
    """The solution is computed in the place of a copy, which is nothing that anybody may take for it."""
    a, b, out = await dev.to_device(np.eye(3)), await dev.to_device(random(rng, (3, 2), "float64")), dev.zeros((3, 2))
    inject(dev, "cublasDtrsm_64", ReturnStatus(ARCH_MISMATCH))
    with pytest.raises(CommandFailed):
        await dev.blas.trsm(a, b, out=out)
    assert (b.state, out.state) == ("ready", "torn")
    assert await dev.blas.trsm(a, b, out=out) is out
    assert (await out.to_host()).tobytes() == (await b.to_host()).tobytes()


@pytest.mark.sim_only
async def test_a_result_is_good_where_only_a_copy_of_an_input_was_made(dev: Device) -> None:
    a, out = dev.zeros((4, 4), np.complex64), dev.full((4, 4), 7, np.complex64)
    inject(dev, "cublasChemm_64", ReturnStatus(ARCH_MISMATCH))
    with pytest.raises(CommandFailed):
        await dev.blas.hemm(a.T, a, out=out)
    assert out.state == "ready"
    assert ((await out.to_host()) == 7).all()


async def test_tables_of_addresses_of_any_size(
    dev: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They pass through the staging area in pieces, here of two addresses."""
    monkeypatch.setattr("atomr_trio._calls.verbs.LARGE_SLOT", 16)
    a, b = 2 + random(rng, (5, 1, 1), "float64"), random(rng, (5, 1, 1), "float64")
    result = await dev.blas.trsm(await dev.to_device(a), await dev.to_device(b))
    assert_close(await result.to_host(), b / a, np.abs(b / a), 1)


def test_no_helper_of_one_file_hides_that_of_another() -> None:
    """All verbs are methods of one class."""
    bases = [each for each in Blas.__mro__ if issubclass(each, Library) and each not in (Blas, Library)]
    names = [name for each in bases for name in vars(each) if not name.startswith("__") and name != "_table"]
    assert len(names) > 40
    assert sorted(names) == sorted(set(names))
