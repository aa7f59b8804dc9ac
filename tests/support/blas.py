"""How the verbs of `dev.blas` are tested: operands of every layout inside larger arrays, and numbers to hold against.

Around each operand lie numbers that must neither be read (they are NaN) nor written (their bits are compared). What a
call is to overwrite is NaN before. Data are new in each run; a failure prints the seed that they came from.
"""

from __future__ import annotations

import itertools
import os
import random as _random
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import attrs
import numpy as np
import numpy.typing as npt
import pytest

from atomr_trio import Device, DeviceArray, InvalidArgument
from support import SWEEP

DTYPES = ("float32", "float64", "complex64", "complex128")
REALS = {"float32": "float32", "float64": "float64", "complex64": "float32", "complex128": "float64"}
"""By a dtype, that of its real parts."""
LENGTHS = (0, 1, 33)
ARCH_MISMATCH = 8
"""A status of cuBLAS that says nothing bad of the context."""

T = TypeVar("T")
View = Callable[[Any], Any]
"""Takes a part of an array, of numpy's or on the device."""


def shared(cases: Iterable[T], dtype: str) -> list[T]:
    """The cases that a test tries with a dtype: all in `make sweep`, else a half.

    Each case is tried with a real dtype and a complex one, one of single precision and one of double precision. The
    halves are drawn, the same in each run, so that every part of a case comes in each.
    """
    every = list(cases)
    if SWEEP:
        return every
    drawn = _random.Random(0).sample(range(len(every)), len(every))
    half = dtype in ("float64", "complex64")
    return [every[at] for at in sorted(drawn[half::2])]


@attrs.frozen
class Layout:
    """How an operand lies in a larger array."""

    name: str
    whole: Callable[..., tuple[int, ...]]
    """The shape of the larger array, by the lengths of the operand's axes."""
    view: Callable[..., View]
    """The operand in it, by the same."""


VECTORS = (
    Layout("by itself", lambda n: (n,), lambda n: lambda w: w),
    Layout("every third", lambda n: (3 * n + 5,), lambda n: lambda w: w[2 : 2 + 3 * n : 3]),
    Layout("backwards", lambda n: (n + 4,), lambda n: lambda w: w[2 : 2 + n][::-1]),
    Layout("backwards by twos", lambda n: (2 * n + 3,), lambda n: lambda w: w[1 : 1 + 2 * n][::-2]),
    Layout("a column", lambda n: (n, 3), lambda n: lambda w: w[:, 1]),
)
MATRICES = (
    Layout("by rows", lambda m, n: (m, n), lambda m, n: lambda w: w),
    Layout("by columns", lambda m, n: (n, m), lambda m, n: lambda w: w.transpose()),
    Layout("a part by rows", lambda m, n: (m + 3, n + 5), lambda m, n: lambda w: w[1 : 1 + m, 2 : 2 + n]),
    Layout(
        "a part by columns", lambda m, n: (n + 3, m + 2), lambda m, n: lambda w: w[2 : 2 + n, 1 : 1 + m].transpose()
    ),
)
"""Those that a library takes where they are, and writes."""
SCATTERED = (Layout("every other", lambda m, n: (2 * m, 2 * n), lambda m, n: lambda w: w[::2, ::2]),)
"""Those that are copied first."""


def fresh_random() -> np.random.Generator:
    """Random numbers of a new seed, which a failing test prints; ATOMR_TRIO_TEST_SEED has them be those of a run."""
    seed = int(os.environ.get("ATOMR_TRIO_TEST_SEED") or secrets.randbits(32))
    print(f"ATOMR_TRIO_TEST_SEED={seed}")
    return np.random.default_rng(seed)


def random(rng: np.random.Generator, shape: int | tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Numbers between -1 and 1, and complex ones of such parts."""
    numbers = rng.uniform(-1, 1, shape)
    return (numbers + 1j * rng.uniform(-1, 1, shape) if dtype.startswith("c") else numbers).astype(dtype)


def exact(numbers: npt.ArrayLike) -> npt.NDArray[Any]:
    """The same in double precision."""
    array = np.asarray(numbers)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def assert_close(
    result: npt.ArrayLike,
    expected: npt.ArrayLike,
    size: npt.ArrayLike,
    growth: float,
    *,
    epsilon: float | None = None,
) -> None:
    """Hold a result against one of double precision.

    `size` is the sum of the absolute values that were added to each element, `growth` how many they were, `epsilon`
    that of the arithmetic where it is not that of the result's dtype.
    """
    given = np.asarray(result)
    assert given.shape == np.shape(expected)
    rounding = np.finfo(given.dtype).eps if epsilon is None else epsilon
    bound = 8 * (growth + 1) * rounding * np.asarray(size, float)
    difference = np.abs(exact(given) - expected)
    assert np.all(difference <= bound), (difference.max(), bound)


@attrs.frozen
class Place:
    """An operand on the device, inside a larger array."""

    whole: DeviceArray
    before: npt.NDArray[Any]
    """The larger array as it was when it was copied there."""
    view: View

    @property
    def array(self) -> DeviceArray:
        """The operand."""
        array: DeviceArray = self.view(self.whole)
        return array

    async def read(self) -> npt.NDArray[Any]:
        """The operand's numbers now. Fails if anything around it was written."""
        after = await self.whole.to_host()
        values: npt.NDArray[Any] = np.array(self.view(after))
        self.view(after)[...] = self.view(self.before)
        assert after.tobytes() == self.before.tobytes(), "the surroundings of an operand were written"
        return values


async def place(dev: Device, layout: Layout, numbers: npt.NDArray[Any]) -> Place:
    """Put numbers on the device in such a layout, with NaN around them, or the smallest integers."""
    poison = np.iinfo(numbers.dtype).min if numbers.dtype.kind in "iu" else np.nan
    whole = np.full(layout.whole(*numbers.shape), poison, numbers.dtype)
    view = layout.view(*numbers.shape)
    view(whole)[...] = numbers
    return Place(await dev.to_device(whole), whole, view)


async def place_poisoned(dev: Device, layout: Layout, shape: tuple[int, ...], dtype: str) -> Place:
    """An operand that holds NaN, to be overwritten."""
    return await place(dev, layout, np.full(shape, np.nan, dtype))


class Caller:
    """Calls verbs of `dev.blas`, awaited and in batches. A failing test prints which they were."""

    def __init__(self, dev: Device) -> None:
        self._dev = dev
        self._batched: Iterator[bool] = itertools.cycle((False, True, True))

    async def __call__(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        print(verb, *map(_shown, arguments), {name: _shown(value) for name, value in keywords.items()})
        if next(self._batched):
            async with self._dev.batch() as batch:
                return getattr(batch.blas, verb)(*arguments, **keywords)
        return await getattr(self._dev.blas, verb)(*arguments, **keywords)


def _shown(argument: object) -> str:
    if isinstance(argument, DeviceArray):
        return f"{argument.dtype.name}{argument.shape} by {argument.strides}"
    return repr(argument)


def submitted(dev: Device) -> list[int]:
    """How many commands each lane has been given so far."""
    return [lane.submitted for lane in dev.statistics().lanes]


async def assert_refused(dev: Device, calls: dict[str, tuple[Any, ...]]) -> None:
    """Make calls in both forms that must be refused, and see that nothing is sent.

    Each is a verb and its arguments; those by name are a dict, which is the last.
    """
    before = submitted(dev)
    for name, (verb, *arguments) in calls.items():
        keywords = arguments.pop() if isinstance(arguments[-1], dict) else {}
        print(name)
        with pytest.raises(InvalidArgument):
            await getattr(dev.blas, verb)(*arguments, **keywords)
        async with dev.batch() as batch:
            with pytest.raises(InvalidArgument):
                getattr(batch.blas, verb)(*arguments, **keywords)
    assert submitted(dev) == before
