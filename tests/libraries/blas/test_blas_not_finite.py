"""NaN and infinities in what `dev.blas` is given: where numpy's arithmetic gives NaN, so does every verb.

A library may do more than numpy to an element, so that there may be more NaN, and never fewer. What BLAS does not
read at all is said by the last tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from atomr_trio import Batch, Device
from support import ON_GPU
from support.blas import DTYPES, exact, fresh_random, random

Numbers = npt.NDArray[Any]

SIZES = (1, 2, 5, 33)
REAL, COMPLEX = ("float32", "float64"), ("complex64", "complex128")


def below(a: Numbers) -> Numbers:
    return np.tri(len(a), dtype=bool)


def product(a: Numbers, b: Numbers, kept: Numbers | bool = True) -> Numbers:
    """The sum of the products of those elements of `a` that are kept."""
    columns = b if b.ndim > 1 else b[:, None]
    terms = a[:, :, None] * columns[None]
    mask = np.broadcast_to(kept, a.shape)[:, :, None]
    result = np.where(mask, terms, 0).sum(axis=1)
    return np.asarray(result if b.ndim > 1 else result[:, 0])


def whole(a: Numbers, *, conjugated: bool = False) -> Numbers:
    """The symmetric or Hermitian matrix of which the lower triangle is given."""
    upper = a.conj().T if conjugated else a.T
    result = np.where(below(a), a, upper)
    if conjugated:
        np.fill_diagonal(result, a.diagonal().real)
    return result


def solution(a: Numbers, b: Numbers) -> Numbers:
    """By substitution, of a lower triangle."""
    x = np.array(b, copy=True)
    for row in range(len(a)):
        x[row] = (b[row] - sum((a[row, k] * x[k] for k in range(row)), np.zeros_like(b[row]))) / a[row, row]
    return x


def added(a: Numbers, more: Numbers) -> Numbers:
    """One triangle of a sum."""
    return np.where(below(a), a + more, a)


def banded(ab: Numbers, x: Numbers) -> Numbers:
    """The product of a matrix of one diagonal."""
    return ab[0] * x


def hermitian_band(ab: Numbers, x: Numbers) -> Numbers:
    return ab[0].real * x


def by_parts(function: Callable[..., tuple[Numbers, ...]], *vectors: Numbers) -> tuple[Numbers, ...]:
    """What a function with real factors gives for the real and imaginary parts, each by itself."""
    if vectors[0].dtype.kind != "c":
        return function(*vectors)
    parts = function(*(np.ascontiguousarray(vector).view(vector.real.dtype) for vector in vectors))
    return tuple(part.view(vectors[0].dtype) for part in parts)


def adjoint(a: Numbers) -> Numbers:
    return a.conj().T


@attrs.frozen
class Case:
    """A verb with the operands ``a b c`` (matrices), ``d`` (a band of one diagonal) and ``x y`` (vectors)."""

    verb: str
    operands: str
    reference: Callable[..., Any]
    keywords: dict[str, Any] = attrs.field(factory=dict)
    more: tuple[Any, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    lists: bool = False
    infinite: bool = True
    """Whether numpy and the library must agree on what infinities become."""

    def make(self, batch: Batch, arrays: dict[str, Any]) -> Any:
        operands = [[arrays[name]] if self.lists else arrays[name] for name in self.operands.split()]
        keywords = {key: arrays[value] if key == "out" else value for key, value in self.keywords.items()}
        return getattr(batch.blas, self.verb)(*operands, *self.more, **keywords)

    @property
    def names(self) -> list[str]:
        """The operands that are read."""
        return [*self.operands.split(), *((self.keywords["out"],) if "out" in self.keywords else ())]


CASES = (
    Case("axpy", "x y", lambda x, y: x + y),
    Case("copy", "x y", lambda x, y: x),
    Case("swap", "x y", lambda x, y: (y, x)),
    Case("scal", "x", lambda x: 2 * x, more=(2,)),
    Case("dot", "x y", lambda x, y: (x * y).sum()),
    Case("nrm2", "x", lambda x: np.sqrt((np.abs(x) ** 2).sum())),
    Case("asum", "x", lambda x: (np.abs(x.real) + np.abs(x.imag)).sum()),
    Case("rot", "x y", lambda x, y: by_parts(lambda x, y: (0.6 * x + 0.8 * y, 0.6 * y - 0.8 * x), x, y),
         more=(0.6, 0.8)),
    Case("gemv", "a x", product),
    Case("gemv", "a x", lambda a, x, y: product(a, x) + y, keywords={"beta": 1, "out": "y"}),
    Case("gbmv", "d x", banded, more=(0, 0)),
    Case("symv", "a x", lambda a, x: product(whole(a), x)),
    Case("hemv", "a x", lambda a, x: product(whole(a, conjugated=True), x), dtypes=COMPLEX),
    Case("sbmv", "d x", banded, dtypes=REAL),
    Case("hbmv", "d x", hermitian_band, dtypes=COMPLEX),
    Case("trmv", "a x", lambda a, x: product(a, x, below(a))),
    Case("trsv", "a x", solution, infinite=False),
    Case("ger", "x y a", lambda x, y, a: a + np.outer(x, y)),
    Case("syr", "x a", lambda x, a: added(a, np.outer(x, x))),
    Case("her", "x a", lambda x, a: added(a, np.outer(x, x.conj())), dtypes=COMPLEX, infinite=False),
    Case("syr2", "x y a", lambda x, y, a: added(a, np.outer(x, y) + np.outer(y, x))),
    Case("her2", "x y a", lambda x, y, a: added(a, np.outer(x, y.conj()) + np.outer(y, x.conj())), dtypes=COMPLEX,
         infinite=False),
    Case("gemm", "a b", product),
    Case("gemm", "a b", lambda a, b, c: product(a, b) + c, keywords={"beta": 1, "out": "c"}),
    Case("gemm_batched", "a b", product, lists=True),
    Case("symm", "a b", lambda a, b: product(whole(a), b)),
    Case("hemm", "a b", lambda a, b: product(whole(a, conjugated=True), b), dtypes=COMPLEX),
    Case("syrk", "a", lambda a: np.tril(product(a, a.T))),
    Case("herk", "a", lambda a: np.tril(product(a, adjoint(a))), dtypes=COMPLEX, infinite=False),
    Case("syr2k", "a b", lambda a, b: np.tril(product(a, b.T) + product(b, a.T))),
    Case("her2k", "a b", lambda a, b: np.tril(product(a, adjoint(b)) + product(b, adjoint(a))), dtypes=COMPLEX,
         infinite=False),
    Case("trmm", "a b", lambda a, b: product(a, b, below(a))),
    Case("trsm", "a b", solution, infinite=False),
    Case("trsm_batched", "a b", solution, lists=True, infinite=False),
    Case("geam", "a b", lambda a, b: a + b),
    Case("dgmm", "a x", lambda a, x: a * x),
)  # fmt: skip


def spoilt(numbers: Numbers, value: float) -> Numbers:
    """The same with such a number at the end of a vector or of the first column, which is in the lower triangle."""
    result = numbers.copy()
    result[(-1,) if numbers.ndim == 1 else (-1, 0)] = value
    return result


async def on_host(result: Any) -> tuple[Numbers, ...]:
    parts = result if isinstance(result, tuple | list) else (result,)
    return tuple([np.asarray(each) if isinstance(each, np.ndarray) else await each.to_host() for each in parts])


def expected_of(case: Case, numbers: dict[str, Numbers]) -> tuple[Numbers, ...]:
    with np.errstate(all="ignore"):
        result = case.reference(*(exact(numbers[name]) for name in case.names))
    return tuple(map(np.asarray, result)) if isinstance(result, tuple) else (np.asarray(result),)


async def test_no_verb_makes_a_number_of_what_is_nan(dev: Device) -> None:
    rng = fresh_random()
    lost, invented = [], []
    for dtype, order, value in itertools.product(DTYPES, SIZES, (np.nan, np.inf)):
        numbers = {name: random(rng, (order, order), dtype) for name in "abc"}
        numbers |= {"d": random(rng, (1, order), dtype), "x": random(rng, order, dtype), "y": random(rng, order, dtype)}
        results = []
        async with dev.batch() as batch:
            for case in (each for each in CASES if dtype in each.dtypes and (each.infinite or np.isnan(value))):
                for name in case.names:
                    given = {each: numbers[each] for each in case.names} | {name: spoilt(numbers[name], value)}
                    result = case.make(batch, {each: batch.to_device(array) for each, array in given.items()})
                    results.append((case, name, given, result))
        for case, name, given, result in results:
            expected = expected_of(case, given)
            for reference, found in zip(expected, await on_host(result), strict=True):
                what = (case.verb, name, dtype, order, value)
                lost += [what] * bool((np.isnan(reference) & ~np.isnan(found)).any())
                if np.isfinite(found).all() and case.verb not in ("copy", "swap"):
                    invented += [what] * (not np.isfinite(reference).all())
    assert not lost, "numpy's arithmetic gives NaN, the library does not"
    assert not invented, "numpy's arithmetic gives NaN or infinity, the library gives numbers"


async def test_rotations_of_nan_are_nan(dev: Device) -> None:
    dtype = np.float64
    for place in range(2):
        a, b = [await dev.to_device(np.array(np.nan if place == each else 3, dtype)) for each in range(2)]
        c, s = await dev.blas.rotg(a, b)
        assert np.isnan(await c.to_host()) | np.isnan(await s.to_host())
    x, y = await dev.to_device(np.array([np.nan, 1], dtype)), await dev.to_device(np.ones(2, dtype))
    param = await dev.to_device(np.array([-1, 2, 3, 4, 5], dtype))
    for found in await dev.blas.rotm(x, y, param):
        assert np.isnan(await found.to_host()).tolist() == [True, False]


# --- what BLAS does not read ------------------------------------------------------------------------------------------


async def test_what_a_factor_of_zero_takes_away_is_not_read(dev: Device) -> None:
    for dtype in DTYPES:
        nan, matrix = dev.full((5, 5), np.nan, dtype), dev.full((5, 5), 1, dtype)
        vector, out, short = dev.full(5, 1, dtype), dev.full((5, 5), np.nan, dtype), dev.full(5, np.nan, dtype)
        async with dev.batch() as batch:
            kept = batch.blas.gemm(matrix, matrix, beta=0, out=out), batch.blas.gemv(matrix, vector, beta=0, out=short)
            gone = batch.blas.gemm(nan, matrix, alpha=0), batch.blas.gemv(nan, vector, alpha=0)
        for expected, results in ((5, kept), (0, gone)):
            for result in results:
                assert (await result.to_host() == expected).all(), (dtype, expected)


async def test_the_largest_among_nan_is_a_number_of_the_vector(dev: Device) -> None:
    """Which, is the library's choice; numpy's is the first NaN."""
    x = await dev.to_device(np.array([1, np.nan, 3, 2], np.float32))
    for verb in ("iamax", "iamin"):
        index = int(await getattr(dev.blas, verb)(x))
        assert 0 <= index < 4
        assert ON_GPU or index in (1, 2 if verb == "iamax" else 0)
