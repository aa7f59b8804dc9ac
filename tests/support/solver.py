"""How the verbs of `dev.solver` are tested: in both forms, by residuals of double precision, with data of each kind."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from atomr_trio import Device, DeviceArray, InvalidArgument
from atomr_trio._calls.outgoing import Outgoing
from atomr_trio._calls.verbs import CallRequest, JoinedRequest
from support.blas import Layout, exact, random, submitted

SIZES = (1, 2, 33)
SHAPES = ((1, 1), (1, 4), (4, 1), (9, 4), (4, 9), (33, 33))
TALL = tuple((rows, columns) for rows, columns in SHAPES if rows >= columns)

Numbers = npt.NDArray[Any]
T = TypeVar("T")


def paired(layouts: Sequence[Layout], shapes: Sequence[T]) -> list[tuple[Layout, T]]:
    """Each shape in two or three layouts, so that together they are in all."""
    step = 2 if len(shapes) > 2 else 1
    return [(layout, shape) for number, shape in enumerate(shapes) for layout in layouts[number % step :: step]]


STACKS = (
    Layout("by rows", lambda s, m, n: (s, m, n), lambda *_: lambda w: w),
    Layout("by columns", lambda s, m, n: (s, n, m), lambda *_: lambda w: w.transpose(0, 2, 1)),
    Layout(
        "parts by columns",
        lambda s, m, n: (2 * s, n + 3, m + 2),
        lambda s, m, n: lambda w: w[: 2 * s : 2, 2 : 2 + n, 1 : 1 + m].transpose(0, 2, 1),
    ),
    Layout("in each other", lambda s, m, n: (n, s, m), lambda *_: lambda w: w.transpose(1, 2, 0)),
    Layout("every other", lambda s, m, n: (s, 2 * m, 2 * n), lambda *_: lambda w: w[:, ::2, ::2]),
)
"""How a stack of matrices lies."""


def functions_of(dev: Device, verb: str, *arguments: Any, **keywords: Any) -> collections.Counter[str]:
    """How often a verb, which is not sent, calls each function of the libraries."""
    planner = dev.solver._planner()
    getattr(type(planner), verb).plan(planner, *arguments, **keywords)
    return collections.Counter(call._table.functions[call._function] for call in calls_of(planner))


def calls_of(planner: Any) -> Iterator[CallRequest]:
    """The calls that a verb has planned, each by itself."""
    for request in Outgoing(planner._requests).take():
        if isinstance(request, JoinedRequest):
            yield from request.parts
        elif isinstance(request, CallRequest):
            yield request


class Solving:
    """Calls verbs of `dev.solver`, in turn awaited and in a batch, and brings what they return to the host."""

    def __init__(self, dev: Device) -> None:
        self._dev = dev
        self._turns: Iterator[bool] = itertools.cycle((False, True))

    async def __call__(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        result = await self.on_device(verb, *arguments, **keywords)
        if isinstance(result, tuple):
            return tuple([await _on_host(each) for each in result])
        return await _on_host(result)

    async def on_device(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        """The same without bringing it to the host."""
        if next(self._turns):
            async with self._dev.batch() as batch:
                return getattr(batch.solver, verb)(*arguments, **keywords)
        return await getattr(self._dev.solver, verb)(*arguments, **keywords)

    async def fails(self, error: type[Exception], verb: str, *arguments: Any, **keywords: Any) -> Any:
        """Make a call in both forms that must fail alike; the exception of the second, out of its group."""
        found = []
        for _ in range(2):
            with pytest.raises(error) as caught:
                await self.on_device(verb, *arguments, **keywords)
            found.append(caught.value)
        first, second = found
        assert repr(first) == repr(second)
        return second


async def _on_host(result: Any) -> Any:
    return await result.to_host() if isinstance(result, DeviceArray) else result


def adjoint(matrix: Numbers) -> Numbers:
    """Transposed and conjugated."""
    return np.conj(np.swapaxes(matrix, -1, -2))


def hermitian(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Numbers:
    """Matrices that are their adjoints, exactly."""
    numbers = random(rng, shape, dtype)
    return np.asarray(numbers + adjoint(numbers), dtype)


def positive(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Numbers:
    """Hermitian matrices whose eigenvalues are at least 1."""
    order = shape[-1]
    numbers = hermitian(rng, shape, dtype)
    numbers[..., range(order), range(order)] += 4 * order
    return numbers


def half(matrix: Numbers, lower: bool) -> Numbers:
    """One triangle of a matrix, and NaN in the other, which must not be read."""
    mask = np.tri(matrix.shape[-1], dtype=bool)
    return np.where(mask if lower else mask.T, matrix, np.array(np.nan, matrix.dtype))


def whole(triangle: Numbers, lower: bool) -> Numbers:
    """The Hermitian matrix of which one triangle is given."""
    kept = np.tril(triangle) if lower else np.triu(triangle)
    order = kept.shape[-1]
    both = kept + adjoint(kept)
    both[..., range(order), range(order)] = kept[..., range(order), range(order)].real
    return both


def assert_small(residual: npt.ArrayLike, of: npt.ArrayLike, dtype: npt.DTypeLike, growth: float) -> None:
    """Hold a residual, computed in double precision, against the size of what it is one of."""
    size = max(np.abs(of).max(initial=0.0), np.finfo(np.float64).tiny)
    largest = np.abs(residual).max(initial=0.0)
    bound = 20 * max(growth, 1) * np.finfo(dtype).eps * size
    assert largest <= bound, f"the residual is {largest}, and may be {bound}"


def assert_orthonormal(columns: Numbers) -> None:
    """Fail unless the columns of each matrix are orthogonal and of length 1."""
    given = exact(columns)
    count = given.shape[-1]
    assert_small(adjoint(given) @ given - np.eye(count), 1, columns.dtype, given.shape[-2])


async def assert_refused(dev: Device, calls: dict[str, tuple[Any, ...]]) -> None:
    """Make calls in both forms that must be refused, and see that nothing is sent.

    Each is a verb and its arguments; those by name are a dict, which is the last.
    """
    before = submitted(dev)
    for name, (verb, *arguments) in calls.items():
        keywords = arguments.pop() if isinstance(arguments[-1], dict) else {}
        print(name)
        with pytest.raises(InvalidArgument):
            await getattr(dev.solver, verb)(*arguments, **keywords)
        async with dev.batch() as batch:
            with pytest.raises(InvalidArgument):
                getattr(batch.solver, verb)(*arguments, **keywords)
    assert submitted(dev) == before


def steepness(a: np.ndarray) -> float:
    """How much least-squares problems make of a rounding error, at most: the largest condition, squared."""
    return float(np.linalg.cond(exact(a)).max()) ** 2 if a.size else 1.0
