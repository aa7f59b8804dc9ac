"""A matrix and vectors: every verb of level 2 with every dtype and layout, held against numpy in double precision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from atomr_trio import CommandFailed, InvalidArgument
from atomr_trio.testing import ReturnStatus, inject
from support.blas import (
    ARCH_MISMATCH,
    DTYPES,
    MATRICES,
    SCATTERED,
    VECTORS,
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

OPERATIONS = {"N": lambda a: a, "T": lambda a: a.T, "C": lambda a: a.conj().T}
SHAPES = ((0, 0), (1, 1), (0, 3), (3, 0), (5, 1), (9, 17))
ORDERS = (0, 1, 17)
REAL_DTYPES = ("float32", "float64")

FACTORS = ((1, 0), (2, 1), (-0.5, 0.25))
COMPLEX_FACTORS = (*FACTORS, (0.5 - 1j, 0.25 + 2j), (1j, 0))


def factors(dtype: str) -> Iterator[tuple[complex, complex]]:
    """Values of alpha and beta, in turn."""
    return itertools.cycle(COMPLEX_FACTORS if dtype.startswith("c") else FACTORS)


def vector_layouts() -> Iterator[Layout]:
    """Layouts of vectors in turn. Nothing that turns too has five turns, so each layout meets everything."""
    return itertools.cycle(VECTORS)


@pytest.fixture
def rng() -> np.random.Generator:
    return fresh_random()


# --- products ---------------------------------------------------------------------------------------------------------


class Products:
    """Makes products ``alpha * a @ x + beta * out`` by a verb, and holds them against numpy's."""

    def __init__(self, dev: Any, rng: np.random.Generator, dtype: str) -> None:
        self._dev, self._rng, self._dtype = dev, rng, dtype
        self._call, self._factors, self._layouts = Caller(dev), factors(dtype), vector_layouts()

    async def check(self, verb: str, a: npt.NDArray[Any], operand: Place, *arguments: Any, **keywords: Any) -> None:
        """Multiply the matrix `a`, which the operand describes, into a new array and into a given one."""
        (alpha, beta), (rows, columns) = next(self._factors), a.shape
        x, y = random(self._rng, columns, self._dtype), random(self._rng, rows, self._dtype)
        product, size = alpha * a @ exact(x), np.abs(alpha * a) @ np.abs(x)
        source = await place(self._dev, next(self._layouts), x)
        result = await self._call(verb, operand.array, source.array, *arguments, alpha=alpha, **keywords)
        assert result.dtype == self._dtype
        assert_close(await result.to_host(), product, size, columns)
        target = await place(self._dev, next(self._layouts), y if beta else np.full_like(y, np.nan))
        out, keywords = target.array, {**keywords, "alpha": alpha, "beta": beta}
        assert await self._call(verb, operand.array, source.array, *arguments, out=out, **keywords) is out
        assert_close(await target.read(), product + beta * exact(y), size + np.abs(beta * y), columns)
        assert (await source.read() == x).all()


@pytest.mark.parametrize("dtype", DTYPES)
async def test_gemv_multiplies_a_matrix_of_any_layout(dev, rng, dtype):
    products = Products(dev, rng, dtype)
    for layout, op_a in shared(itertools.product((*MATRICES, *SCATTERED), OPERATIONS), dtype):
        for shape in SHAPES:
            a = random(rng, shape, dtype)
            operand = await place(dev, layout, a)
            await products.check("gemv", OPERATIONS[op_a](exact(a)), operand, op_a=op_a)
            assert (await operand.read() == a).all()


def one_triangle(a: npt.NDArray[Any], lower: bool, *, diagonal: bool = True) -> npt.NDArray[Any]:
    """The same with NaN where nothing must be read."""
    keep = np.tri(len(a), k=0 if diagonal else -1, dtype=bool)
    return np.where(keep if lower else keep.T, a, a.dtype.type(np.nan))


def symmetric(rng: np.random.Generator, order: int, dtype: str, hermitian: bool) -> npt.NDArray[Any]:
    a = random(rng, (order, order), dtype)
    return (a + (a.conj().T if hermitian else a.T)) / dtype_of(dtype)(2)


def dtype_of(name: str) -> Any:
    return np.dtype(name).type


def garbage_diagonal(a: npt.NDArray[Any], hermitian: bool) -> npt.NDArray[Any]:
    """The same with imaginary parts on the diagonal of a Hermitian matrix, which are to be taken for zero."""
    return a + np.diag(np.full(len(a), 7j)).astype(a.dtype) if hermitian and a.dtype.kind == "c" else a


@pytest.mark.parametrize("dtype", DTYPES)
async def test_symmetric_and_hermitian_products_read_one_triangle(dev, rng, dtype):
    products, kinds = Products(dev, rng, dtype), itertools.product(("symv", "hemv"), (*MATRICES, *SCATTERED))
    for (verb, layout), lower, order in shared(itertools.product(kinds, (True, False), ORDERS), dtype):
        hermitian = verb == "hemv"
        a = symmetric(rng, order, dtype, hermitian)
        operand = await place(dev, layout, one_triangle(garbage_diagonal(a, hermitian), lower))
        await products.check(verb, exact(a), operand, lower=lower, deterministic=bool(rng.integers(2)))


@pytest.mark.sim_only
@pytest.mark.parametrize(("verb", "dtype"), [("symv", "float32"), ("hemv", "complex128")])
async def test_atomics_are_for_the_calls_that_allow_them(dev, verb, dtype):
    """The handle is told when that changes, and only then; here the next time fails."""
    a, x = (await dev.to_device(np.eye(3, dtype=dtype))).T, await dev.to_device(np.arange(3).astype(dtype))

    async def multiply(deterministic: bool) -> Any:
        return (await (await getattr(dev.blas, verb)(a, x, deterministic=deterministic)).to_host()).tolist()

    for before, after in ((True, False), (False, True)):
        assert await multiply(before) == [0, 1, 2]
        inject(dev, "cublasSetAtomicsMode", ReturnStatus(ARCH_MISMATCH))
        assert await multiply(before) == [0, 1, 2]
        with pytest.raises(CommandFailed):
            await multiply(after)
        assert await multiply(after) == [0, 1, 2]


def to_band(a: npt.NDArray[Any], below: int, above: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The matrix of these diagonals of `a` alone, and their storage with NaN where there are none."""
    rows, columns = a.shape
    ab = np.full((below + above + 1, columns), np.nan, a.dtype)
    for i, j in itertools.product(range(rows), range(columns)):
        if -above <= i - j <= below:
            ab[above + i - j, j] = a[i, j]
    return np.triu(np.tril(a, above), -below), ab


@pytest.mark.parametrize("dtype", DTYPES)
async def test_gbmv_multiplies_a_band(dev, rng, dtype):
    products = Products(dev, rng, dtype)
    for layout, op_a in shared(itertools.product((*MATRICES, *SCATTERED), OPERATIONS), dtype):
        for shape in ((7, 7), (5, 9), (9, 5), (1, 1), (0, 3), (3, 0)):
            kl, ku = map(int, rng.integers(0, 4, 2))
            a, ab = to_band(random(rng, shape, dtype), kl, ku)
            operand = await place(dev, layout, ab)
            rows = {} if shape == (7, 7) else {"rows": shape[0]}
            await products.check("gbmv", OPERATIONS[op_a](exact(a)), operand, kl, ku, op_a=op_a, **rows)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_symmetric_and_hermitian_bands_are_stored_by_one_triangle(dev, rng, dtype):
    products, verbs = Products(dev, rng, dtype), ("sbmv", "hbmv") if dtype in REAL_DTYPES else ("hbmv",)
    kinds = itertools.product(verbs, (*MATRICES, *SCATTERED), (True, False))
    for (verb, layout, lower), order, k in shared(itertools.product(kinds, (0, 1, 9), (0, 2)), dtype):
        a = symmetric(rng, order, dtype, hermitian=True)
        full = to_band(a, k, k)[0]
        ab = to_band(garbage_diagonal(a, True), *((k, 0) if lower else (0, k)))[1]
        await products.check(verb, exact(full), await place(dev, layout, ab), lower=lower)


# --- updates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
async def test_ger_adds_an_outer_product(dev, rng, dtype):
    call, alphas, layouts = Caller(dev), factors(dtype), vector_layouts()
    for layout, conjugate, shape in shared(itertools.product(MATRICES, (False, True), SHAPES), dtype):
        a, (x, y) = random(rng, shape, dtype), (random(rng, length, dtype) for length in shape)
        first, second = [await place(dev, next(layouts), each) for each in (x, y)]
        target, (alpha, _) = await place(dev, layout, a), next(alphas)
        out = target.array
        assert await call("ger", first.array, second.array, out, alpha, conjugate=conjugate) is out
        product = alpha * np.outer(exact(x), exact(y).conj() if conjugate else exact(y))
        assert_close(await target.read(), exact(a) + product, np.abs(a) + np.abs(product), 2)
        assert (await second.read() == y).all()


UPDATES = {
    "syr": lambda alpha, x: alpha * np.outer(x, x),
    "her": lambda alpha, x: alpha * np.outer(x, x.conj()),
    "syr2": lambda alpha, x, y: alpha * (np.outer(x, y) + np.outer(y, x)),
    "her2": lambda alpha, x, y: alpha * np.outer(x, y.conj()) + np.conj(alpha) * np.outer(y, x.conj()),
}


@pytest.mark.parametrize("dtype", DTYPES)
async def test_an_update_writes_one_triangle(dev, rng, dtype):
    call, layouts, kinds = Caller(dev), vector_layouts(), itertools.product(UPDATES, MATRICES)
    any_alphas, real_alphas = factors(dtype), factors("float64")
    for (verb, layout), lower, order in shared(itertools.product(kinds, (True, False), ORDERS), dtype):
        count, hermitian = 2 if verb.endswith("2") else 1, verb.startswith("her") and dtype.startswith("c")
        alphas = real_alphas if verb == "her" else any_alphas
        a = symmetric(rng, order, dtype, hermitian)
        # NaN in the other triangle is a guard: it would be seen to be read, and to be written.
        before = one_triangle(garbage_diagonal(a, hermitian), lower)
        target, vectors = await place(dev, layout, before), [random(rng, order, dtype) for _ in range(count)]
        sources, (alpha, _) = [await place(dev, next(layouts), each) for each in vectors], next(alphas)
        out = target.array
        assert await call(verb, *(each.array for each in sources), out, alpha, lower=lower) is out
        update, inside = UPDATES[verb](alpha, *map(exact, vectors)), np.tri(order, dtype=bool)
        inside = inside if lower else inside.T
        after = await target.read()
        bound = np.abs(a) + 2 * np.abs(alpha) * np.outer(np.abs(vectors[0]), np.abs(vectors[-1]))
        bound += bound.T
        assert_close(after[inside], (exact(a) + update)[inside], bound[inside], 4)
        assert np.isnan(after[~inside]).all()
        if hermitian:
            assert (np.diagonal(after).imag == 0).all()


# --- triangular matrices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("verb", ["trmv", "trsv"])
async def test_a_triangular_matrix_multiplies_and_solves(dev, rng, dtype, verb):
    call, layouts, turns = Caller(dev), vector_layouts(), itertools.cycle(("new", "in place", "out"))
    kinds = itertools.product((*MATRICES, *SCATTERED), (True, False), OPERATIONS, (False, True))
    for (layout, lower, op_a, unit), order in shared(itertools.product(kinds, ORDERS), dtype):
        # Small beside the diagonal, so that solving magnifies no error.
        a = random(rng, (order, order), dtype) / dtype_of(dtype)(max(order, 1))
        a += np.diag(np.full(order, 0 if unit else 2)).astype(dtype)
        whole = np.tril(a) if lower else np.triu(a)
        if unit:
            whole = whole - np.diag(np.diagonal(whole)) + np.eye(order)
        matrix = OPERATIONS[op_a](exact(whole))
        operand = await place(dev, layout, one_triangle(a, lower, diagonal=not unit))
        x = random(rng, order, dtype)
        source, turn = await place(dev, next(layouts), x), next(turns)
        target = source if turn == "in place" else await place_poisoned(dev, next(layouts), x.shape, dtype)
        out = {} if turn == "new" else {"out": target.array}
        given = source.array if turn != "in place" else target.array
        result = await call(verb, operand.array, given, lower=lower, op_a=op_a, unit_diagonal=unit, **out)
        after = await (result.to_host() if turn == "new" else target.read())
        expected = matrix @ exact(x) if verb == "trmv" else np.linalg.solve(matrix, exact(x))
        magnitude = np.abs(matrix) @ (np.abs(x) if verb == "trmv" else np.abs(expected))
        assert_close(after, expected, 4 * np.max(magnitude, initial=0), order)
        if turn != "in place":
            assert (await source.read() == x).all()


async def test_a_zero_on_the_diagonal_is_no_error(dev):
    a, x = await dev.to_device(np.array([[1.0, 0], [1, 0]])), await dev.to_device(np.array([1.0, 2]))
    assert (await (await dev.blas.trsv(a, x)).to_host()).tolist() == [1, np.inf]


# --- layouts that BLAS has not ----------------------------------------------------------------------------------------


async def test_a_matrix_that_is_larger_than_what_is_copied_piece_by_piece_is_transposed_by_the_library(dev, rng):
    ab = random(rng, (3, 1000), "complex64")
    for given in (ab, np.repeat(np.repeat(ab, 2, axis=0), 2, axis=1)):
        array = await dev.to_device(given)
        x = random(rng, 1000, "complex64")
        band = array if given is ab else array[::2, ::2]
        y = await dev.blas.gbmv(band, await dev.to_device(x), 1, 1)
        expected = exact(ab[1] * x)
        expected[:-1] += exact(ab[0, 1:]) * x[1:]
        expected[1:] += exact(ab[2, :-1]) * x[:-1]
        assert_close(await y.to_host(), expected, np.full(1000, 6), 6)


async def test_what_is_scattered_is_copied(dev):
    a, x = random(np.random.default_rng(1), (600, 600), "float32"), dev.full(600, 1.0, "float32")
    out = await (await dev.blas.gemv((await dev.to_device(a))[::-1], x)).to_host()
    np.testing.assert_allclose(out, a[::-1].astype(float).sum(axis=1), rtol=0, atol=1e-3)


async def test_what_is_too_scattered_is_refused_and_nothing_is_sent(dev):
    a, x = dev.empty((600, 600), "float32"), dev.empty(600, "float32")
    before = submitted(dev)
    for call in (dev.blas.gemv(a[::-1, ::-1], x), dev.blas.syr(x[:300], a[598::-2, 598::-2])):
        with pytest.raises(InvalidArgument):
            await call
    assert submitted(dev) == before


# --- wrong calls ------------------------------------------------------------------------------------------------------


def wrong_calls(dev: Any, other: Any) -> dict[str, tuple[Any, ...]]:
    a, x, y = dev.empty((4, 6), "float32"), dev.empty(6, "float32"), dev.empty(4, "float32")
    square, double = dev.empty((6, 6), "float32"), dev.empty((6, 6), "float64")
    double_x, single = dev.empty(6, "float64"), dev.empty((6, 6), "complex64")
    whole, whole_x, single_x = dev.empty((6, 6), "int32"), dev.empty(6, "int32"), dev.empty(6, "complex64")
    band, freed, freed_x = dev.empty((3, 6), "float32"), dev.empty((6, 6), "float32"), dev.empty(6, "float32")
    freed.free()
    freed_x.free()
    elsewhere, elsewhere_x = other.empty((6, 6), "float32"), other.empty(6, "float32")
    long = dev.empty(7, "float32")
    products = {"gemv": (), "gbmv": (3, 2), "symv": (), "hemv": (), "sbmv": (), "hbmv": ()}
    matrix_first = products | {"trmv": (), "trsv": ()}
    bad = {
        "dtypes": (double, x),
        "integers": (whole, whole_x),
        "length": (square, y),
        "axes of the matrix": (x, x),
        "axes of the vector": (square, square),
        "numpy": (np.zeros((6, 6), np.float32), x),
        "freed": (freed, x),
        "freed vector": (square, freed_x),
        "another device": (elsewhere, x),
        "another device's vector": (square, elsewhere_x),
    }
    bad_outs = {
        "dtype": {"out": double_x},
        "length": {"out": y},
        "axes": {"out": square},
        "numpy": {"out": np.zeros(6, np.float32)},
        "freed": {"out": freed_x},
        "another device": {"out": elsewhere_x},
        "matrix": {"out": square[1]},
        "part of x": {"out": long[1:]},
    }
    bad_factors = {
        "beta alone": {"beta": 1},
        "complex alpha": {"alpha": 1j},
        "complex beta": {"beta": 1j, "out": dev.empty(6, "float32")},
        "no number": {"alpha": "1"},
    }
    calls = {
        f"{verb}: {name}": (verb, *pair, *rest) for verb, rest in matrix_first.items() for name, pair in bad.items()
    }
    for verb, rest in matrix_first.items():
        calls |= {f"{verb}: out's {name}": (verb, square, long[:6], *rest, out) for name, out in bad_outs.items()}
    for verb, rest in products.items():
        calls |= {f"{verb}: {name}": (verb, square, x, *rest, given) for name, given in bad_factors.items()}
        calls[f"{verb}: out is x"] = (verb, square, x, *rest, {"out": x})
    for verb in ("gemv", "trmv", "trsv"):
        calls[f"{verb}: operation"] = (verb, square, x, {"op_a": "H"})
    for verb in ("symv", "hemv", "trmv", "trsv"):
        calls[f"{verb}: not square"] = (verb, a, x)
    for verb in ("sbmv", "hbmv"):
        calls[f"{verb}: no diagonal"] = (verb, dev.empty((0, 6), "float32"), x)
    one, two = ("syr", "her"), ("syr2", "her2", "ger")
    for verb, vectors in [(verb, (x,)) for verb in one] + [(verb, (x, x)) for verb in two]:
        calls |= {
            f"{verb}: dtypes": (verb, *vectors, double),
            f"{verb}: integers": (verb, *(whole_x for _ in vectors), whole),
            f"{verb}: length": (verb, *vectors[:-1], y, square),
            f"{verb}: shape": (verb, *vectors, a),
            f"{verb}: axes": (verb, *vectors, x),
            f"{verb}: a vector's axes": (verb, *vectors[:-1], square, square),
            f"{verb}: freed": (verb, *vectors, freed),
            f"{verb}: freed vector": (verb, *vectors[:-1], freed_x, square),
            f"{verb}: another device": (verb, *vectors, elsewhere),
            f"{verb}: another device's vector": (verb, *vectors[:-1], elsewhere_x, square),
            f"{verb}: overlap": (verb, *vectors[:-1], square[:, 2], square),
            f"{verb}: scattered": (verb, *vectors, dev.empty((12, 12), "float32")[::2, ::2]),
            f"{verb}: complex alpha": (verb, *vectors, square, 1j),
        }
    return calls | {
        "her: complex alpha of complex ones": ("her", single_x, single, 1j),
        "sbmv: complex": ("sbmv", single, single_x),
        "gbmv: wider": ("gbmv", band, x, 2, 1),
        "gbmv: negative": ("gbmv", band, x, -1, 3),
        "gbmv: no number": ("gbmv", band, x, 1.0, 1),
        "gbmv: rows": ("gbmv", band, x, 1, 1, {"rows": -1}),
        "gbmv: operation": ("gbmv", band, x, 1, 1, {"op_a": 0}),
    }


async def test_a_wrong_call_is_refused_before_anything_is_sent(dev, open_test_device):
    async with open_test_device() as other:
        await assert_refused(dev, wrong_calls(dev, other))
