"""The arguments of a transform, checked and made plain: which transforms along which axes, by what it is multiplied.

The rules are those of ``numpy.fft`` 2: defaults, negative axes, axes that are named several times, the order of the
transforms, and the three ways of scaling.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, SupportsIndex

import attrs

from ..._values.errors import InvalidArgument
from ..._values.util import named, shown
from .records import Operation

Norm = Literal["backward", "ortho", "forward"]
"""Which transforms are multiplied: the inverse by 1/n, both by the square root of that, or the forward by 1/n."""

Kind = Literal[
    "fft",
    "ifft",
    "fft2",
    "ifft2",
    "fftn",
    "ifftn",
    "rfft",
    "irfft",
    "rfft2",
    "irfft2",
    "rfftn",
    "irfftn",
    "hfft",
    "ihfft",
]
"""The name of a transform."""


@attrs.frozen
class _Rules:
    """What distinguishes a transform from the others."""

    real: str
    """The letter of the transform along the last axis: see `Operation`."""
    inverse: bool
    several: bool
    """True if it takes several axes."""
    conjugated: str = ""
    """The side that is conjugated. Such a transform is scaled as one of the other direction."""


_RULES: Final[Mapping[str, _Rules]] = MappingProxyType(
    {
        **{
            f"{prefix}{middle}fft{suffix}": _Rules(
                {"": "c", "r": "h" if prefix else "r"}[middle], bool(prefix), bool(suffix)
            )
            for prefix in ("", "i")
            for middle in ("", "r")
            for suffix in ("", "2", "n")
        },
        "hfft": _Rules("h", inverse=True, several=False, conjugated="source"),
        "ihfft": _Rules("r", inverse=False, several=False, conjugated="target"),
    }
)
_REALS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))), "float64"),
        **dict.fromkeys(("float16", "bfloat16", "float32", "complex64"), "float32"),
        **dict.fromkeys(("float64", "complex128"), "float64"),
    }
)
"""The precision of the transform of each dtype, as the dtype of a real number."""
COMPLEX: Final[Mapping[str, str]] = MappingProxyType(
    {
        "float32": "complex64",
        "float64": "complex128",
        "float16": "complex_float16",
        "bfloat16": "complex_bfloat16",
    }
)
"""The complex dtype of each precision. numpy has none of half precision: such a number is a pair in an axis of its own.
"""
HALVES: Final = ("float16", "bfloat16")
PAIRS: Final[Mapping[str, str]] = MappingProxyType({COMPLEX[real]: real for real in HALVES})
"""The dtype of the two numbers of such a pair."""

_NORMS: Final = {name: name for name in ("backward", "ortho", "forward")}

_MOST_AXES: Final = 64
_MOST_ELEMENTS: Final = 1 << 58
"""More would be 2**62 bytes."""
_MOST_HALVES: Final = 1 << 32
"""The most elements of a transform in half precision."""


@attrs.frozen
class Transform:
    """A transform of an array of one shape and dtype."""

    name: str
    operations: tuple[Operation, ...]
    scale: float
    conjugated: str
    shape: tuple[int, ...]
    """That of the result."""
    dtype: str
    """That of the result."""
    precision: str
    """The dtype of its real numbers."""

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The lengths of an array that holds the result, with the axis of pairs."""
        return (*self.shape, 2) if self.makes_pairs else self.shape

    @property
    def array_dtype(self) -> str:
        """The dtype of such an array."""
        return PAIRS.get(self.dtype, self.dtype)

    @property
    def takes_pairs(self) -> bool:
        """True if the input is an array of pairs."""
        return self.precision in HALVES and takes_pairs(self.name)

    @property
    def makes_pairs(self) -> bool:
        """True if the result is an array of pairs."""
        return self.dtype in PAIRS

    @property
    def reads_half(self) -> bool:
        """True for a transform from complex to real."""
        return any(each.kind == "h" for each in self.operations)

    @property
    def is_complex(self) -> bool:
        """True for a transform from complex to complex."""
        return all(each.kind == "c" for each in self.operations)


def integer(value: object, name: str) -> int:
    """Return an integer. Raises `InvalidArgument` for anything else."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"{name} is an integer, not {shown(value)}") from None


def integers(values: object, name: str) -> tuple[int, ...]:
    """Return several integers. Raises `InvalidArgument` for anything else."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise InvalidArgument(f"{name} is a sequence of integers, not {shown(values)}")
    return tuple(integer(value, f"each of {name}") for value in values)


def axis_of(value: int, axes: int) -> int:
    """Return an axis from 0 on. Raises `InvalidArgument` if the array has no such axis."""
    if not -axes <= value < axes:
        raise InvalidArgument(f"axis {value} is out of range for an array of {axes} axes")
    return value % axes


def axes_of(values: object, shape: tuple[int, ...], name: str = "axes") -> tuple[int, ...]:
    """Return axes from 0 on: all of them for None, and one for an integer."""
    if values is None:
        return tuple(range(len(shape)))
    given = integers(values, name) if isinstance(values, Sequence) else (integer(values, name),)
    return tuple(axis_of(value, len(shape)) for value in given)


def check_kind(kind: object) -> bool:
    """Return whether a transform takes several axes. Raises `InvalidArgument` if there is none of this name."""
    rules = named(_RULES, kind)
    if rules is None:
        raise InvalidArgument(f"kind is one of {', '.join(_RULES)}, not {shown(kind)}")
    return rules.several


def precision_of(dtype: str) -> str:
    """Return the real dtype in which a dtype is transformed. Raises `InvalidArgument` if it is not supported."""
    precision = _REALS.get(dtype)
    if precision is None:
        raise InvalidArgument(f"{dtype} is not supported; use {', '.join(_REALS)}")
    return precision


def transform_of(
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    lengths: SupportsIndex | Sequence[SupportsIndex] | None,
    axes: SupportsIndex | Sequence[SupportsIndex] | None,
    norm: object,
    *,
    pairs: bool = False,
) -> Transform:
    """Return a transform by its name, and the arguments `n` and `axis` or `s` and `axes` of ``numpy.fft``.

    `dtype` and `shape` are those of the input. With `pairs` it is in half precision, and the last axis of a complex
    input is that of the pairs. Raises `InvalidArgument`.
    """
    if pairs:
        dtype, shape = _of_pairs(name, dtype, shape)
    if _RULES[name].several:
        s = None if lengths is None else integers(lengths, "s")
        chosen: Any = None if axes is None else integers(axes, "axes")
    else:
        s = None if lengths is None else (integer(lengths, "n"),)
        chosen = (integer(axes, "axis"),)
    scaled = "backward" if norm is None else named(_NORMS, norm)
    if scaled is None:
        raise InvalidArgument(f'norm is "backward", "ortho" or "forward", not {shown(norm)}')
    return _transform(name, dtype, shape, s, chosen, scaled)


def takes_pairs(name: str) -> bool:
    """Return whether the input of a transform of this name is complex, so that it is pairs in half precision."""
    return _RULES[name].real != "r"


def _of_pairs(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the dtype of the numbers of an input in half precision, and its shape without the axis of pairs."""
    if _RULES[name].conjugated:
        raise InvalidArgument(f"{name} is not there in half precision: use irfft or rfft, and conjugate")
    if dtype not in HALVES:
        raise InvalidArgument(f"pairs=True is for {' and '.join(HALVES)}, not {dtype}")
    if not takes_pairs(name):
        return f"real_{dtype}", shape
    if not shape or shape[-1] != 2:
        raise InvalidArgument(
            f"with pairs=True the last axis of x has the 2 parts of each number; its shape is {shape}"
        )
    return COMPLEX[dtype], shape[:-1]


@functools.lru_cache(512)
def _transform(
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    lengths: tuple[int, ...] | None,
    chosen: tuple[int, ...] | None,
    norm: str,
) -> Transform:
    rules = _RULES[name]
    is_half = dtype.endswith(HALVES) and dtype not in HALVES
    precision = dtype.partition("_")[2] if is_half else precision_of(dtype)
    if rules.real == "r" and dtype.startswith("complex"):
        raise InvalidArgument(f"{name} takes real numbers, not {dtype}: use fft for complex numbers")
    axes, points = _cooked(rules, shape, lengths, chosen)
    for axis, count in zip(axes, points, strict=True):
        if count < 1:
            raise InvalidArgument(f"{name} needs at least 1 point; along axis {axis} it has {count}")
        if is_half and count & (count - 1):
            raise InvalidArgument(
                f"in half precision cuFFT has transforms of powers of two alone; along axis {axis} {name} has {count} "
                "points: convert to float32 for others"
            )
    operations = tuple(_ordered(rules, list(zip(axes, points, strict=True))))
    result = list(shape)
    for each in operations:
        result[each.axis] = each.result
        if math.prod(result) > _MOST_ELEMENTS:
            raise InvalidArgument(f"{name} along axis {each.axis} makes {math.prod(result):,} elements: too many")
        if is_half and max(math.prod(shape), math.prod(result)) > _MOST_HALVES:
            raise InvalidArgument(f"{name} in half precision takes {_MOST_HALVES:,} elements at most: use float32")
    return Transform(
        name,
        operations,
        _scale(rules, norm, math.prod(points)),
        rules.conjugated,
        tuple(result),
        precision if rules.real == "h" else COMPLEX[precision],
        precision,
    )


def _cooked(
    rules: _Rules, shape: tuple[int, ...], lengths: tuple[int, ...] | None, chosen: tuple[int, ...] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes, and the number of points along each."""
    if chosen is None:
        chosen = tuple(range(-len(shape if lengths is None else lengths), 0))
    axes = tuple(axis_of(axis, len(shape)) for axis in chosen)
    if not axes:
        raise InvalidArgument("a transform needs at least 1 axis; the array has none, or axes is empty")
    if len(axes) > _MOST_AXES:
        raise InvalidArgument(f"axes has {len(axes)} axes; at most {_MOST_AXES} are possible")
    if lengths is None:
        points = [shape[axis] for axis in axes]
        if rules.real == "h":
            points[-1] = (points[-1] - 1) * 2
        return axes, tuple(points)
    if len(lengths) != len(axes):
        raise InvalidArgument(f"s has {len(lengths)} lengths, and axes has {len(axes)} axes: give as many of both")
    if rules.several:
        lengths = tuple(shape[axis] if length == -1 else length for length, axis in zip(lengths, axes, strict=True))
    return axes, lengths


def _ordered(rules: _Rules, pairs: list[tuple[int, int]]) -> list[Operation]:
    """Return the transforms in numpy's order, which matters only if an axis is named several times."""
    last = Operation(rules.real, *pairs[-1], rules.inverse)
    others = [Operation("c", axis, length, rules.inverse) for axis, length in pairs[:-1]]
    return [*others, last] if rules.real == "h" else [last, *reversed(others)]


def _scale(rules: _Rules, norm: str, points: int) -> float:
    if norm == "ortho":
        return 1 / math.sqrt(points)
    is_scaled = rules.inverse != bool(rules.conjugated)
    return 1 / points if is_scaled != (norm == "forward") else 1.0
