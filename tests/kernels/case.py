"""What a case is: launches of kernels, the arrays that they are given, and what must be in those arrays afterwards.

Inputs come from a generator that is seeded by the case's name, so that a case is the same in every run. A reference is
numpy; where a result need not be equal to it bit for bit, the check says why.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Check = Callable[[np.ndarray], None]
"""Looks at an array that a kernel has written, and fails with an assertion."""

Extent = int | tuple[int, ...]

FOLDER = Path(__file__).parent


# --- what a kernel is given -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Given:
    """An array that the kernels only read."""

    values: np.ndarray


@dataclass(frozen=True, eq=False)
class Result:
    """An array that the kernels write: its values before the first launch, and what must be true after the last."""

    start: np.ndarray
    check: Check


@dataclass(frozen=True)
class Launch:
    """One launch. An array that stands in several launches of a case is the same array in all of them."""

    kernel: str
    grid: Extent
    block: Extent
    arguments: Sequence[Any]
    shared: int = 0
    cooperative: bool = False
    """All blocks are there at once, and may wait for each other."""


# --- checks -----------------------------------------------------------------------------------------------------------


def equals(expected: Any) -> Check:
    """The same values, NaN for NaN."""
    wanted = np.asarray(expected)

    def check(got: np.ndarray) -> None:
        np.testing.assert_array_equal(got, wanted.reshape(got.shape), strict=got.dtype == wanted.dtype)

    return check


def identical(expected: Any) -> Check:
    """The same values, and the same signs of zeros; NaN for NaN, whatever its bits."""
    wanted = np.asarray(expected)

    def check(got: np.ndarray) -> None:
        np.testing.assert_array_equal(got, wanted.reshape(got.shape), strict=True)
        signs = np.signbit(got) == np.signbit(wanted.reshape(got.shape))
        assert (signs | np.isnan(got)).all(), f"signs of zeros differ at {np.flatnonzero(~signs)}"

    return check


def near(expected: Any, *, why: str, ulps: float = 0, relative: float = 0, absolute: float = 0) -> Check:
    """Off by no more than the sum of the bounds: units in the last place of the result, relative error, absolute error.

    `expected` should be more precise than the result; it is rounded once. Infinities and NaN must be equal. `why` says
    where the bounds come from.
    """
    wanted = np.asarray(expected)
    assert why

    def check(got: np.ndarray) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = wanted.reshape(got.shape).astype(got.dtype)
            error = np.abs(got.astype(np.longdouble) - rounded)
            bound = ulps * np.spacing(np.abs(rounded)) + relative * np.abs(rounded) + absolute
        good = (got == rounded) | (np.isnan(got) & np.isnan(rounded)) | (error <= bound)
        if not good.all():
            worst = np.unravel_index(np.argmax(np.where(good, 0, np.nan_to_num(error, nan=np.inf))), got.shape)
            raise AssertionError(
                f"{np.count_nonzero(~good)} of {got.size} values are off; the worst at {worst}: got {got[worst]!r}, "
                f"wanted {rounded[worst]!r} within {ulps} ulps, {relative} relative, {absolute} absolute ({why})"
            )

    return check


def same_items(expected: Any) -> Check:
    """The same values in any order: the order is the hardware's to choose."""
    wanted = np.sort(np.asarray(expected), axis=None)

    def check(got: np.ndarray) -> None:
        np.testing.assert_array_equal(np.sort(got, axis=None), wanted)

    return check


def satisfies(what: str, predicate: Callable[[np.ndarray], Any]) -> Check:
    """A condition that every element, or the array as a whole, must meet."""

    def check(got: np.ndarray) -> None:
        assert np.all(predicate(got)), f"not true: {what}\n{got}"

    return check


def anything(got: np.ndarray) -> None:
    """Scratch memory: its contents are nobody's business."""


# --- the table --------------------------------------------------------------------------------------------------------

Arguments = Sequence[Any]
Build = Callable[[np.random.Generator], Sequence[Launch]]


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    family: Family
    name: str
    build: Build
    since: tuple[int, int] = (7, 5)
    """The compute capability that has the instructions."""

    def __str__(self) -> str:
        return f"{self.family.name}-{self.name}"

    @functools.cache  # noqa: B019 - the cases are as old as the module
    def launches(self) -> Sequence[Launch]:
        """The launches, with inputs and references; the same ones for every architecture."""
        with np.errstate(all="ignore"):
            return self.build(np.random.default_rng(zlib.crc32(str(self).encode())))


@dataclass(eq=False)
class Family:
    """The cases of one CUDA C++ file, compiled with one set of options."""

    file: str
    options: dict[str, Any] = field(default_factory=dict)
    """What `NvrtcOptions` takes."""
    label: str = ""
    """Tells two families of one file apart."""
    headers: bool = False
    """The file includes headers of CUDA, such as `cuda_fp16.h`."""
    curand: bool = False
    """The file includes `curand_kernel.h`, which comes with cuRAND."""
    slow: bool = False
    """Compiling takes seconds, for each architecture: the headers are large."""
    cases: list[Case] = field(default_factory=list)
    expressions: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.label or Path(self.file).stem

    @property
    def source(self) -> str:
        return (FOLDER / self.file).read_text(encoding="utf-8")

    def add(self, name: str, build: Build, since: tuple[int, int] = (7, 5)) -> None:
        """Add a line to the table."""
        assert all(case.name != name for case in self.cases), f"{self.name} has two cases called {name}"
        self.cases.append(Case(self, name, build, since))

    def instance(self, expression: str) -> str:
        """A kernel that is named by a C++ expression, such as the instance of a template."""
        if expression not in self.expressions:
            self.expressions.append(expression)
        return expression

    def case(
        self,
        grid: Extent,
        block: Extent,
        *,
        kernel: str = "",
        name: str = "",
        shared: int = 0,
        since: tuple[int, int] = (7, 5),
    ) -> Callable[[Callable[[np.random.Generator], Arguments]], None]:
        """Add a case of one launch. The function below returns the arguments; kernel and case have its name."""

        def add(arguments: Callable[[np.random.Generator], Arguments]) -> None:
            launched = kernel or arguments.__name__
            self.add(
                name or arguments.__name__,
                lambda rng: [Launch(launched, grid, block, arguments(rng), shared)],
                since,
            )

        return add

    def program(self, build: Build) -> Build:
        """Add a case of several launches, which the function returns."""
        self.add(build.__name__, build)
        return build
