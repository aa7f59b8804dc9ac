"""What the tests of `dev.fft` share: numpy's answer in double precision, the bound of the error, and views."""

from __future__ import annotations

import math
from typing import Any

import attrs
import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt

COMPLEX = ("fft", "ifft", "fft2", "ifft2", "fftn", "ifftn")
FORWARD_REAL = ("rfft", "rfft2", "rfftn", "ihfft")
TO_REAL = ("irfft", "irfft2", "irfftn", "hfft")
TRANSFORMS = (*COMPLEX, *FORWARD_REAL, *TO_REAL)
ONE_AXIS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")

PRECISIONS = {
    **dict.fromkeys(("bool", "int8", "uint16", "int64", "float64", "complex128"), "float64"),
    **dict.fromkeys(("float16", "bfloat16", "float32", "complex64"), "float32"),
}
"""By the dtype of the input, that of the real numbers in which is computed."""


def result_dtype(name: str, dtype: str) -> str:
    """The dtype of a result."""
    real = PRECISIONS[dtype]
    return real if name in TO_REAL else {"float32": "complex64", "float64": "complex128"}[real]


def exact(name: str, x: npt.NDArray[Any], *arguments: Any, **keywords: Any) -> Any:
    """What numpy computes in double precision."""
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    return getattr(np.fft, name)(wide, *arguments, **keywords)


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> npt.NDArray[Any]:
    """Random numbers: integers are small, complex numbers have both parts."""
    import ml_dtypes

    rng = np.random.default_rng(seed)
    values = rng.uniform(-9, 9, shape)
    if dtype.startswith("complex"):
        return (values + 1j * rng.uniform(-9, 9, shape)).astype(dtype)
    return (values > 0 if dtype == "bool" else abs(values) if dtype.startswith("u") else values).astype(
        ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    )


def assert_near(result: npt.NDArray[Any], expected: Any, points: int, *, bluestein: bool = False) -> None:
    """Hold a result against one of double precision: shape, and the relative error of the whole, in the 2-norm."""
    assert result.shape == expected.shape
    bound = 2 * float(np.finfo(result.dtype).eps) * max(math.log2(points), 1) * (4 if bluestein else 1)
    error, size = float(np.linalg.norm(result - expected)), float(np.linalg.norm(expected))
    assert error <= bound * size, f"an error of {error / (size or 1):.3g}, and {bound:.3g} is allowed"


@attrs.frozen
class View:
    """How an array lies in a larger one: for each axis a step and what lies before it, and the order of the axes."""

    steps: tuple[int, ...]
    leads: tuple[int, ...]
    order: tuple[int, ...]

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the larger array."""
        return tuple(shape[axis] * abs(self.steps[axis]) + self.leads[axis] for axis in self.order)

    def of(self, whole: Any) -> Any:
        """The array in the larger one."""
        cut = []
        for axis in self.order:
            step, lead = self.steps[axis], self.leads[axis]
            cut.append(slice(lead, None, step) if step > 0 else slice(None, lead - 1 if lead else None, step))
        return whole[(*cut, ...)].transpose(*(self.order.index(axis) for axis in range(len(self.order))))


def plain(axes: int) -> View:
    """The array itself."""
    return View((1,) * axes, (0,) * axes, tuple(range(axes)))


@st.composite
def views(draw: st.DrawFn, axes: int) -> View:
    """Any order of the axes; now and then steps, also backwards, and something before the first element."""
    if draw(st.booleans()):
        return plain(axes)
    steps = st.sampled_from([1, 1, 1, 2, -1, -2])
    return View(
        tuple(draw(steps) for _ in range(axes)),
        tuple(draw(st.sampled_from([0, 0, 1])) for _ in range(axes)),
        tuple(draw(st.permutations(range(axes)))),
    )


@attrs.frozen
class Case:
    """One call of a transform."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    keywords: dict[str, Any]
    view: View
    target: View | None
    """How the array lies that the result is written to; None for a new one."""

    @property
    def points(self) -> int:
        """The points of all transforms together."""
        if self.name in ONE_AXIS:
            length = self.shape[self.keywords["axis"]]
            default = 2 * (length - 1) if self.name in TO_REAL else length
            return int(self.keywords.get("n", default))
        axes = self.keywords.get("axes") or range(len(self.shape))
        given = self.keywords.get("s") or [-1] * len(axes)
        return math.prod(
            2 * self.shape[axis] if length == -1 else length for axis, length in zip(axes, given, strict=True)
        )


LENGTHS = st.sampled_from([2, 3, 4, 5, 6, 7, 8, 11, 1])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Transforms that numpy makes too, of arrays of up to five axes."""
    name = draw(st.sampled_from(TRANSFORMS))
    axes = draw(st.integers(1 if name in ONE_AXIS or name.endswith("n") else 2, 5))
    shape = tuple(draw(LENGTHS) for _ in range(axes))
    real = st.sampled_from(["float32", "float64", "bool", "int8", "uint16", "int64", "float16", "bfloat16"])
    dtype = draw(real if name in FORWARD_REAL else st.sampled_from(["complex64", "complex128"]) | real)
    keywords: dict[str, Any] = {}
    if draw(st.booleans()):
        keywords["norm"] = draw(st.sampled_from(["ortho", "forward", "backward", None]))
    if name in ONE_AXIS:
        keywords["axis"] = draw(st.integers(-axes, axes - 1))
        length = shape[keywords["axis"]]
        if draw(st.booleans()) or (length == 1 and name in TO_REAL):
            keywords["n"] = draw(LENGTHS)
    else:
        each = st.integers(-axes, axes - 1)
        repeated = draw(st.sampled_from([False, False, False, True]))
        distinct = st.permutations(range(axes)).flatmap(lambda every: st.integers(1, axes).map(lambda n: every[:n]))
        chosen = draw(st.lists(each, min_size=1, max_size=4) if repeated else distinct)
        keywords["axes"] = tuple(chosen)
        if draw(st.booleans()) or (shape[chosen[-1]] == 1 and name in TO_REAL):
            keywords["s"] = tuple(draw(LENGTHS | st.just(-1)) for _ in chosen)
    target = draw(views(axes)) if draw(st.booleans()) else None
    return Case(name, shape, dtype, keywords, draw(views(axes)), target)


@attrs.frozen
class Shift:
    """A call of ``fftshift`` or its inverse."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: Any
    view: View


@st.composite
def shifts(draw: st.DrawFn) -> Shift:
    """Shifts along any axes of arrays of up to five."""
    axes = draw(st.integers(1, 5))
    shape = tuple(draw(st.integers(0 if axes == 1 else 1, 5)) for _ in range(axes))
    each = st.integers(-axes, axes - 1)
    chosen = st.none() | each | st.lists(each, min_size=1, max_size=4).map(tuple)
    dtype = st.sampled_from(["bool", "uint16", "float16", "bfloat16", "float32", "int64", "complex128"])
    name = st.sampled_from(["fftshift", "ifftshift"])
    return Shift(draw(name), shape, draw(dtype), draw(chosen), draw(views(axes)))
