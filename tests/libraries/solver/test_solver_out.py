"""The solver's results in arrays that are given: of any layout, with what lies around unharmed, and wrong ones."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import pytest

from atomr_trio import NotPositiveDefiniteError, SingularMatrixError
from atomr_trio._calls.linear import broadcast
from atomr_trio._calls.outgoing import Outgoing
from support.blas import (
    DTYPES,
    MATRICES,
    SCATTERED,
    VECTORS,
    Layout,
    Place,
    exact,
    fresh_random,
    place_poisoned,
    random,
)
from support.solver import (
    STACKS,
    Solving,
    adjoint,
    assert_orthonormal,
    assert_refused,
    assert_small,
    hermitian,
    positive,
    steepness,
)

pytestmark = pytest.mark.used_workers

LAYOUTS = {1: VECTORS[:4], 2: (*MATRICES, *SCATTERED), 3: STACKS}
"""By the number of a result's axes, how it may lie."""

Numbers = np.ndarray[Any, Any]


@pytest.fixture
def rng() -> np.random.Generator:
    return fresh_random()


# --- what each verb gives ---------------------------------------------------------------------------------------------


@attrs.frozen
class Case:
    """A verb with arguments, and what must hold of its results, which are NaN where they were not written."""

    verb: str
    make: Callable[..., Iterator[Numbers]]
    """The arguments that are arrays, from a generator of random numbers, a dtype and leading axes."""
    check: Callable[..., None]
    """Gets the arguments, in double precision, and the results."""
    options: dict[str, Any] = attrs.field(factory=dict)
    arguments: tuple[Any, ...] = ()
    """Those that are no arrays."""


def general(rows: int, columns: int, *sides: int) -> Callable[..., Iterator[Numbers]]:
    """Matrices far from singular, and right-hand sides: so many, or a vector for 0."""

    def make(rng: np.random.Generator, dtype: str, stack: tuple[int, ...]) -> Iterator[Numbers]:
        yield np.asarray(random(rng, (*stack, rows, columns), dtype) + 8 * np.eye(rows, columns), dtype)
        for count in sides:
            yield random(rng, (*stack, rows, count) if count else (rows,), dtype)

    return make


def definite(rng: np.random.Generator, dtype: str, stack: tuple[int, ...]) -> Iterator[Numbers]:
    yield positive(rng, (*stack, 6, 6), dtype)


def symmetric(rng: np.random.Generator, dtype: str, stack: tuple[int, ...]) -> Iterator[Numbers]:
    yield hermitian(rng, (*stack, 6, 6), dtype)


def a_pair(rng: np.random.Generator, dtype: str, stack: tuple[int, ...]) -> Iterator[Numbers]:
    yield from symmetric(rng, dtype, stack)
    yield from definite(rng, dtype, stack)


def as_columns(b: Numbers) -> Numbers:
    return b[:, None] if b.ndim == 1 else b


def solves(a: Numbers, b: Numbers, x: Numbers) -> None:
    product = a @ exact(x if b.ndim > 1 else x[..., None])
    assert_small(product - as_columns(b), 20, x.dtype, 10)


def solves_best(a: Numbers, b: Numbers, x: Numbers) -> None:
    expected = np.linalg.pinv(a) @ as_columns(b)
    assert_small(exact(x if b.ndim > 1 else x[..., None]) - expected, 1, x.dtype, 400 * steepness(a))


def inverts(a: Numbers, x: Numbers) -> None:
    assert_small(a @ exact(x) - np.eye(a.shape[-1]), 1, x.dtype, 100)


def is_cholesky(upper: bool) -> Callable[..., None]:
    def check(a: Numbers, x: Numbers) -> None:
        assert (x == (np.triu(x) if upper else np.tril(x))).all()
        product = adjoint(exact(x)) @ exact(x) if upper else exact(x) @ adjoint(exact(x))
        assert_small(product - a, a, x.dtype, 6)

    return check


def is_qr(a: Numbers, q: Numbers | None, r: Numbers) -> None:
    assert (r == np.triu(r)).all()
    if q is None:
        assert_small(adjoint(exact(r)) @ exact(r) - adjoint(a) @ a, 30, r.dtype, 10)
        return
    assert_orthonormal(q)
    assert_small(exact(q) @ exact(r) - a, a, r.dtype, 10)


def is_svd(a: Numbers, u: Numbers | None, s: Numbers, vh: Numbers | None) -> None:
    count = s.shape[-1]
    assert_small(exact(s) - np.linalg.svd(a, compute_uv=False)[..., :count], a, s.dtype, 20)
    if u is not None and vh is not None:
        assert_orthonormal(u)
        assert_orthonormal(adjoint(vh))
        product = (exact(u)[..., :count] * exact(s)[..., None, :]) @ exact(vh)[..., :count, :]
        assert_small(product - a, a, s.dtype, 20)


def is_svd_with_v(a: Numbers, u: Numbers | None, s: Numbers, v: Numbers | None) -> None:
    is_svd(a, u, s, None if v is None else adjoint(v))


def is_part_of_svd(a: Numbers, u: Numbers, s: Numbers, v: Numbers) -> None:
    assert_small(a @ exact(v) - exact(u) * exact(s)[..., None, :], a, s.dtype, 400)


def is_eigen(a: Numbers, *results: Numbers | None) -> None:
    *others, w, v = (*results, None) if len(results) == 1 else results
    assert w is not None
    metric = exact(others[0]) if others else np.eye(a.shape[-1])
    if v is None:
        assert_small(exact(w) - np.linalg.eigvalsh(np.linalg.inv(metric) @ a if others else a), a, w.dtype, 20)
    else:
        assert_small(a @ exact(v) - metric @ exact(v) * exact(w)[..., None, :], np.abs(a).max() * 6, w.dtype, 60)


CASES = (
    Case("solve", general(6, 6, 2), solves),
    Case("solve", general(6, 6, 0), solves),
    Case("inv", general(6, 6), inverts),
    Case("cholesky", definite, is_cholesky(False)),
    Case("cholesky", definite, is_cholesky(True), {"upper": True}),
    Case("qr", general(7, 4), is_qr),
    Case("qr", general(4, 7), is_qr),
    Case("qr", general(7, 4), is_qr, {"mode": "complete"}),
    Case("qr", general(7, 4), is_qr, {"mode": "r"}),
    Case("svd", general(7, 4), is_svd),
    Case("svd", general(4, 7), is_svd),
    Case("svd", general(4, 7), is_svd, {"full_matrices": False}),
    Case("svd", general(4, 7), is_svd, {"compute_uv": False}),
    Case("eigh", symmetric, is_eigen),
    Case("eigvalsh", symmetric, is_eigen),
    Case("lstsq", general(7, 4, 2), solves_best),
    Case("lstsq", general(4, 7, 2), solves_best),
    Case("lstsq", general(6, 6, 0), solves_best),
    Case("gels", general(7, 4, 2), solves_best),
    Case("gels", general(7, 4, 0), solves_best),
    Case("gesvd", general(7, 4), is_svd),
    Case("gesvd", general(7, 4), is_svd, {"full_matrices": False, "overwrite_a": False}),
    Case("gesvdj", general(4, 7), is_svd_with_v),
    Case("gesvdj", general(4, 7), is_svd_with_v, {"full_matrices": False}),
    Case("gesvda", general(7, 4), is_part_of_svd, arguments=(2,)),
    Case("syevd", symmetric, is_eigen),
    Case("syevd", symmetric, is_eigen, {"vectors": False}),
    Case("syevj", symmetric, is_eigen),
    Case("syevdx", symmetric, is_eigen, arguments=(1, 4)),
    Case("syevdx", symmetric, is_eigen, arguments=(0, 6)),
    Case("sygvd", a_pair, is_eigen),
)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: f"{CASES[number].verb}-{number}")
async def test_results_are_written_to_what_is_given_in_every_layout(dev, rng, number):
    call, case = Solving(dev), CASES[number]
    for stack, dtype in (((), DTYPES[number % 4]), ((3,), DTYPES[(number + 2) % 4])):
        arrays = list(case.make(rng, dtype, stack))
        given = [await dev.to_device(array) for array in arrays]
        plain = await call(case.verb, *given, *case.arguments, **case.options)
        kinds = plain if isinstance(plain, tuple) else (plain,)
        for turn in range(5):
            places = [await poisoned(dev, kind, turn + place) for place, kind in enumerate(kinds)]
            outs = tuple(place and place.array for place in places)
            out = outs if isinstance(plain, tuple) else outs[0]
            found = await call.on_device(case.verb, *given, *case.arguments, out=out, **case.options)
            assert all(map(operator.is_, found if isinstance(plain, tuple) else (found,), outs))
            case.check(*map(exact, arrays), *[place and await place.read() for place in places])
        for array, device in zip(arrays, given, strict=True):
            assert (await device.to_host() == array).all()


async def poisoned(dev: Any, kind: Numbers | None, turn: int) -> Place | None:
    """Room for a result, full of NaN, in one layout in each turn."""
    if kind is None:
        return None
    layouts: tuple[Layout, ...] = LAYOUTS[kind.ndim]
    return await place_poisoned(dev, layouts[turn % len(layouts)], kind.shape, kind.dtype.name)


async def test_what_lies_as_the_library_writes_is_written_without_a_copy(dev):
    def out(*shape: int) -> Any:
        return dev.empty((shape[1], shape[0]), np.float64).T

    a, b, tall = (dev.empty(shape, np.float64) for shape in ((6, 6), (6, 2), (7, 4)))
    vector, rows = dev.empty(6, np.float64), dev.empty((6, 6), np.float64)
    for verb, arguments, given in (
        ("solve", (a, b), out(6, 2)),
        ("solve", (a, vector), dev.empty(6, np.float64)),
        ("inv", (a,), rows),
        ("inv", (a.T,), out(6, 6)),
        ("cholesky", (a,), rows),
        ("cholesky", (a.T,), out(6, 6)),
        ("lstsq", (a, b), out(6, 2)),
        ("lstsq", (tall.T, dev.empty((4, 2), np.float64)), out(7, 2)),
        ("gels", (tall, dev.empty((7, 2), np.float64)), out(4, 2)),
        ("qr", (tall,), (out(7, 4), out(4, 4))),
        ("svd", (tall,), (out(7, 7), dev.empty(4, np.float64), out(4, 4))),
        ("svd", (tall.T,), (dev.empty((4, 4), np.float64), dev.empty(4, np.float64), dev.empty((7, 7), np.float64))),
        ("eigh", (a,), (dev.empty(6, np.float64), out(6, 6))),
        ("eigvalsh", (a,), dev.empty(6, np.float64)),
    ):
        assert sent_by(dev, verb, *arguments, out=given) == sent_by(dev, verb, *arguments), verb


def sent_by(dev: Any, verb: str, *arguments: Any, **options: Any) -> int:
    """How many commands a verb comes to, without those that keep an `out` as it was. It is not sent."""
    planner = dev.solver._planner()
    getattr(type(planner), verb).plan(planner, *arguments, **options)
    kept = ("solver.keep", "solver.restore")
    return sum(request.operation not in kept for request in Outgoing(planner._requests).take())


# --- which are given --------------------------------------------------------------------------------------------------


async def test_some_results_may_be_given_and_others_not(dev, rng):
    call = Solving(dev)
    a = random(rng, (5, 3), "float32")
    x, s = await dev.to_device(a), dev.full(3, np.float32(np.nan))
    u, given, vh = await call.on_device("svd", x, out=(None, s, None))
    assert given is s
    is_svd(exact(a), await u.to_host(), await s.to_host(), await vh.to_host())
    nothing, given, none = await call.on_device("svd", x, compute_uv=False, out=[None, s, None])
    assert (nothing, given, none) == (None, s, None)
    q, r = await call.on_device("qr", x, out=(None, None))
    is_qr(exact(a), await q.to_host(), await r.to_host())


async def test_empty_results_are_what_was_given(dev):
    call = Solving(dev)
    none, nothing = dev.zeros((0, 0), np.float64), dev.zeros((0, 2), np.float64)
    assert await call.on_device("solve", none, dev.zeros((0, 2), np.float64), out=nothing) is nothing
    assert await call.on_device("inv", dev.zeros((0, 0), np.float64), out=none) is none
    zeros = dev.full((3, 2), np.nan)
    assert await call.on_device("lstsq", dev.zeros((0, 3), np.float64), nothing, out=zeros) is zeros
    assert (await zeros.to_host() == 0).all()
    u = dev.full((3, 3), np.nan)
    await call.on_device("svd", dev.zeros((3, 0), np.float64), out=(u, None, None))
    assert (await u.to_host() == np.eye(3)).all()


async def test_an_array_with_room_around_it_may_be_part_of_an_input(dev, rng):
    """Columns of one array: b, and behind it the solution."""
    numbers = random(rng, (4, 9), "float64")
    whole = await dev.to_device(np.asfortranarray(numbers).T.copy())
    a, b, x = whole[:4].T, whole[4:6].T, whole[6:8].T
    assert await dev.solver.solve(a, b, out=x) is x
    after = (await whole.to_host()).T
    solves(exact(numbers[:, :4]), exact(numbers[:, 4:6]), after[:, 6:8])
    after[:, 6:8] = numbers[:, 6:8]
    assert (after == numbers).all()


# --- errors -----------------------------------------------------------------------------------------------------------


async def test_wrong_outs_are_refused_and_nothing_is_sent(dev, open_test_device):
    a, b = dev.zeros((4, 4), np.float32), dev.zeros((4, 2), np.float32)
    tall, stack = dev.zeros((5, 3), np.float32), dev.zeros((2, 4, 4), np.float32)
    w, v, other = dev.zeros(4, np.float32), dev.zeros((4, 4), np.float32), dev.zeros((5, 4), np.float32)
    freed = dev.zeros((4, 4), np.float32)
    freed.free()
    columns, pivots = a.T, dev.zeros(4, np.int64)
    calls: dict[str, tuple[Any, ...]] = {
        "no array": ("inv", a, {"out": np.zeros((4, 4), np.float32)}),
        "a number": ("solve", a, b, {"out": 3}),
        "freed": ("inv", a, {"out": freed}),
        "another shape": ("solve", a, b, {"out": w}),
        "a matrix for a vector": ("solve", a, w, {"out": dev.zeros((4, 1), np.float32)}),
        "a stack for a matrix": ("inv", a, {"out": stack}),
        "another type": ("cholesky", a, {"out": dev.zeros((4, 4), np.float64)}),
        "complex eigenvalues": ("eigvalsh", dev.zeros((4, 4), np.complex64), {"out": dev.zeros(4, np.complex64)}),
        "the input": ("inv", a, {"out": a}),
        "the input, transposed": ("cholesky", a, {"out": columns}),
        "the right-hand sides": ("solve", a, b, {"out": b}),
        "elements in one place": ("inv", a, {"out": broadcast(w, (4, 4))}),
        "a part of the input": ("inv", other[:4], {"out": other[1:]}),
        "one array for two results": ("eigh", a, {"out": (w, w)}),
        "two results in one place": ("gesvdj", a, {"out": (v, None, v[:])}),
        "an array alone for two results": ("eigh", a, {"out": v}),
        "too few": ("svd", a, {"out": (v, w)}),
        "too many": ("qr", a, {"out": (v, None, None)}),
        "for vectors that are not computed": ("svd", a, {"compute_uv": False, "out": (v, w, None)}),
        "for q that is not computed": ("qr", a, {"mode": "r", "out": (v, None)}),
        "for vectors of eigenvalues alone": ("syevd", a, {"vectors": False, "out": (w, v)}),
        "vectors in two places": ("syevd", columns, {"overwrite_a": True, "out": (None, v)}),
        "all columns of q": ("qr", tall, {"out": (dev.zeros((5, 5), np.float32), None)}),
        "the wrong v of a wide matrix": ("svd", tall.T, {"out": (None, None, dev.zeros((3, 3), np.float32))}),
        "of another height": ("gels", tall, dev.zeros((5, 2), np.float32), {"out": dev.zeros((5, 2), np.float32)}),
        "of all eigenvalues": ("syevdx", a, 1, 3, {"out": (w, None)}),
        "the factors": ("getri", a, pivots, {"out": a}),
        "more values than the rank": ("gesvda", a, 2, {"out": (None, w, None)}),
    }
    await assert_refused(dev, calls)
    async with open_test_device() as another:
        await assert_refused(dev, {"another device": ("inv", a, {"out": another.zeros((4, 4), np.float32)})})


async def test_a_singular_matrix_leaves_the_out_of_an_awaited_call_as_it_was(dev, rng):
    singular, b = await dev.to_device(np.diag([1.0, 0, 1])), await dev.to_device(np.ones((3, 3)))
    before = random(rng, (3, 3), "float64")
    for verb, arguments in (("solve", (singular, b)), ("inv", (singular,)), ("lstsq", (singular, b))):
        for columns in (False, True):
            out = await dev.to_device(before)
            with pytest.raises(SingularMatrixError):
                await getattr(dev.solver, verb)(*arguments, out=out.T if columns else out)
            assert (await out.to_host() == before).all()


async def test_what_an_error_left_is_overwritten_by_the_next_call(dev):
    call = Solving(dev)
    whole = dev.full((2, 3, 3), np.nan)
    out = whole[0].T
    good, bad = await dev.to_device(np.eye(3) * 4), await dev.to_device(np.diag([1.0, 1, -1]))
    for _ in range(2):
        error = await call.fails(NotPositiveDefiniteError, "cholesky", bad, out=out)
        assert (error.minor, error.matrix) == (3, None)
        assert (await call("cholesky", good, out=out) == np.eye(3) * 2).all()
    assert np.isnan((await whole.to_host())[1]).all()
