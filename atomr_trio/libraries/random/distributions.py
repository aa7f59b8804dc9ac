"""Distributions of our own kernels: their parameters, which are checked here, and what a kernel is given.

Parameters have numpy's names and meanings. Each is one number; the probabilities of `discrete` and `multinomial` are a
sequence on the host.
"""

from __future__ import annotations

import functools
import math
import operator
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

import attrs
import numpy as np
import numpy.typing as npt

from ..._arrays.arrays import DeviceArray
from ..._calls.library_types import name_of
from ..._values.dtypes import check_dtype
from ..._values.errors import InvalidArgument
from ..._values.util import shown

MOST: Final = (1 << 64) - 1
"""The largest key and the largest position."""
MOST_CATEGORIES: Final = 1 << 16
_SLOTS: Final = 1 << 18
"""The slots of a round of cuRAND's Philox generator."""
_TOLERANCE: Final = 1e-8
"""The most by which the sum of probabilities may differ from 1."""

_REALS: Final = ("float32", "float64")
_WHOLES: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@attrs.frozen
class Drawing:
    """A distribution with its parameters: which kernel makes the elements, and what it is given."""

    distribution: str
    dtype: np.dtype[Any]
    """That of the elements."""
    source: str
    """The source of the kernel, one of `SOURCES`."""
    kernel: str
    formats: str
    """The kernel's parameters behind the position, each as a ``struct`` format; a "P" is the address of the table."""
    values: bytes
    """Those parameters, but for the table, in 8 bytes each."""
    table: npt.NDArray[np.uint64] | None = None
    tail: tuple[int, ...] = ()
    """The shape of one draw, behind the `size` of all."""
    share: int = 1
    """The number of draws that one thread makes at a time."""
    units: int = 1
    """The positions that one draw takes."""
    halves: bool = False
    """True if a draw takes half a block of cuRAND's generator, as its float64 numbers do."""

    def advanced(self, position: int, count: int) -> int:
        """Return the position behind `count` draws from a position on.

        In cuRAND's distributions of two words, slots of the generator count: 262,144 draws are two rounds.
        """
        if not self.halves:
            return position + count * self.units
        turns, slot = divmod(position % _SLOTS + count, _SLOTS)
        return (position // _SLOTS + 2 * turns) * _SLOTS + slot

    def threads(self, count: int) -> int:
        """Return the number of threads that are useful for so many draws. Blocks may be begun at both ends."""
        return count if self.share == 1 else count * self.units // self.share + 2


def drawing_of(distribution: object, dtype: npt.DTypeLike | None, parameters: Mapping[str, object]) -> Drawing:
    """Return the drawing of a distribution, by its name, with its parameters by theirs. Raises `InvalidArgument`.

    `dtype` is that of the elements, by default the one that numpy has.
    """
    # Most draws have the same few numbers. 0.0 and -0.0 are equal, but different numbers.
    is_plain = all(type(each) is int or (type(each) is float and each) for each in parameters.values())
    if is_plain and type(distribution) is str and isinstance(dtype, np.dtype | type | str | None):
        given: Any = tuple((name, type(value), value) for name, value in parameters.items())
        return _known_drawing(distribution, cast("Any", dtype), given)
    return _drawing_of(distribution, dtype, parameters)


@functools.lru_cache(256, typed=True)
def _known_drawing(
    distribution: str, dtype: npt.DTypeLike | None, parameters: tuple[tuple[str, type[Any], object], ...]
) -> Drawing:
    return _drawing_of(distribution, dtype, {name: value for name, _, value in parameters})


def _drawing_of(distribution: object, dtype: npt.DTypeLike | None, parameters: Mapping[str, object]) -> Drawing:
    known = DISTRIBUTIONS.get(distribution) if isinstance(distribution, str) else None
    if known is None:
        raise InvalidArgument(f"distribution is one of {', '.join(DISTRIBUTIONS)}, not {shown(distribution)}")
    unknown = [name for name in parameters if name not in known.parameters]
    if unknown:
        raise InvalidArgument(
            f"{distribution} has no parameter {unknown[0]}; it has {', '.join(known.parameters) or 'none'}"
        )
    given = {**known.parameters, **parameters}
    missing = [name for name, value in given.items() if value is _REQUIRED]
    if missing:
        raise InvalidArgument(f"{distribution} needs {missing[0]}")
    checked = check_dtype(known.dtypes[0] if dtype is None else dtype)
    if name_of(checked) not in known.dtypes:
        raise InvalidArgument(
            f"{distribution} has no elements of dtype {name_of(checked)}; it has {', '.join(known.dtypes)}"
        )
    return known.check(checked, **given)


# --- numbers ----------------------------------------------------------------------------------------------------------


def index_of(value: object, name: str, least: int, most: int) -> int:
    """Return an integer from `least` to `most`. Raises `InvalidArgument` for anything else."""
    _refuse_arrays(value, name)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"{name} is an integer, not {shown(value)}") from None
    if not least <= number <= most:
        raise InvalidArgument(f"{name} is at least {least} and at most {most}, not {shown(number)}")
    return number


def _refuse_arrays(value: object, name: str) -> None:
    if isinstance(value, DeviceArray | list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        raise InvalidArgument(
            f"{name} is one number, not {shown(value)}: arrays of parameters are not supported",
            advice="draw with each parameter, or transform numbers that were drawn with one",
        )


def _real(value: object, name: str, dtype: np.dtype[Any] | None = None) -> float:
    """Return a finite number; one that is finite in `dtype` as well, where that is float32."""
    _refuse_arrays(value, name)
    if isinstance(value, str | bytes | complex | np.complexfloating):
        raise InvalidArgument(f"{name} is a real number, not {shown(value)}")
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise InvalidArgument(f"{name} is too large: {shown(value)}") from None
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} is a real number, not {shown(value)}") from None
    if not math.isfinite(number):
        raise InvalidArgument(f"{name} is a finite number, not {number}")
    if dtype is not None and abs(number) > float(np.finfo(dtype).max):
        raise InvalidArgument(f"{name} is too large for {dtype.name}: {number}")
    return number


def _not_negative(value: object, name: str, dtype: np.dtype[Any] | None = None) -> float:
    number = _real(value, name, dtype)
    if number < 0:
        raise InvalidArgument(f"{name} is at least 0, not {number}")
    return abs(number)  # -0.0 is 0


def _positive(value: object, name: str) -> float:
    number = _real(value, name)
    if number <= 0:
        raise InvalidArgument(f"{name} is greater than 0, not {number}")
    return number


def _probability(value: object, name: str) -> float:
    number = _real(value, name)
    if not 0 <= number <= 1:
        raise InvalidArgument(f"{name} is a probability, at least 0 and at most 1, not {number}")
    return abs(number)


def _probabilities(values: object) -> npt.NDArray[np.float64]:
    """Return probabilities whose sum is 1 but for rounding."""
    if isinstance(values, DeviceArray):
        raise InvalidArgument("pvals is a sequence of numbers on the host, not an array on the device")
    try:
        given = np.asarray(values)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"pvals is a sequence of probabilities, not {shown(values)}") from None
    if given.dtype.kind not in "biuf" or given.ndim != 1:
        raise InvalidArgument(f"pvals is a sequence of probabilities, not {shown(values)}")
    found = given.astype(np.float64)
    if not 1 <= found.size <= MOST_CATEGORIES:
        raise InvalidArgument(f"pvals has at least 1 and at most {MOST_CATEGORIES} probabilities, not {found.size}")
    if not ((found >= 0) & (found <= 1)).all():  # NaN is neither
        raise InvalidArgument("pvals are probabilities: each is at least 0 and at most 1")
    total = math.fsum(found)
    if abs(total - 1) > _TOLERANCE:
        raise InvalidArgument(f"the sum of pvals is 1, not {total}")
    return np.abs(found) / total


def _packed(formats: str, *values: float) -> bytes:
    return b"".join(
        struct.pack("<" + form, value) for form, value in zip(formats.replace("P", ""), values, strict=True)
    )


def _most_of(dtype: np.dtype[Any]) -> int:
    return 1 if dtype.kind == "b" else int(np.iinfo(dtype).max)


# --- the distributions of cuRAND --------------------------------------------------------------------------------------


def _bits(dtype: np.dtype[Any]) -> Drawing:
    units = dtype.itemsize // 4
    return Drawing("bits", dtype, "uniform", "philox_bits", "", b"", share=4, units=units)


def _of_curand(source: str, name: str, dtype: np.dtype[Any], first: float, second: float) -> Drawing:
    halves = dtype.itemsize == 8
    kernel, values = f"philox_{name}_{dtype.name}", _packed("dd", first, second)
    return Drawing(name, dtype, source, kernel, "dd", values, share=2 if halves else 4, halves=halves)


def _uniform(dtype: np.dtype[Any], low: object, high: object) -> Drawing:
    first, last = _real(low, "low", dtype), _real(high, "high", dtype)
    if abs(last - first) > float(np.finfo(dtype).max):
        raise InvalidArgument(f"the distance of low and high is too large for {dtype.name}: {first} and {last}")
    return _of_curand("uniform", "uniform", dtype, first, last)


def _normal(dtype: np.dtype[Any], loc: object, scale: object) -> Drawing:
    return _of_curand("normal", "normal", dtype, _real(loc, "loc", dtype), _not_negative(scale, "scale", dtype))


def _lognormal(dtype: np.dtype[Any], mean: object, sigma: object) -> Drawing:
    return _of_curand("normal", "lognormal", dtype, _real(mean, "mean", dtype), _not_negative(sigma, "sigma", dtype))


# --- those of our own -------------------------------------------------------------------------------------------------


def _own(source: str, name: str, dtype: np.dtype[Any], formats: str, *values: float, **more: Any) -> Drawing:
    """Return the drawing of a kernel whose first parameter is the size of an element."""
    packed = _packed("Q" + formats, dtype.itemsize, *values)
    return Drawing(name, dtype, source, f"philox_{name}", "Q" + formats, packed, **more)


def _exponential(dtype: np.dtype[Any], scale: object) -> Drawing:
    return _own("inversion", "exponential", dtype, "d", _not_negative(scale, "scale", dtype), share=2)


def _cauchy(dtype: np.dtype[Any], loc: object, scale: object) -> Drawing:
    values = _real(loc, "loc", dtype), _not_negative(scale, "scale", dtype)
    return _own("inversion", "cauchy", dtype, "dd", *values, share=2)


def _gamma(dtype: np.dtype[Any], shape: object, scale: object) -> Drawing:
    values = _not_negative(shape, "shape", dtype), _not_negative(scale, "scale", dtype)
    return _own("gamma", "gamma", dtype, "dd", *values)


def _beta(dtype: np.dtype[Any], a: object, b: object) -> Drawing:
    return _own("beta", "beta", dtype, "dd", _positive(a, "a"), _positive(b, "b"))


def _standard_t(dtype: np.dtype[Any], df: object) -> Drawing:
    return _own("standard_t", "standard_t", dtype, "d", _positive(df, "df"))


def _integers(dtype: np.dtype[Any], low: object, high: object, endpoint: object) -> Drawing:
    if not isinstance(endpoint, bool | np.bool_):
        raise InvalidArgument(f"endpoint is True or False, not {shown(endpoint)}")
    least, most = (0 if dtype.kind in "bu" else int(np.iinfo(dtype).min)), _most_of(dtype)
    first: object = low
    last: object = high
    if high is None:
        first, last = 0, low
    behind = 0 if endpoint else 1
    name = "low" if high is None else "high"
    lowest = index_of(first, "low", least, most)
    highest = index_of(last, name, least, most + behind) - behind
    if lowest > highest:
        raise InvalidArgument(
            f"there are no integers from {lowest} {'to' if endpoint else 'up to, and without,'} {highest + behind}"
        )
    span = (highest - lowest + 1) % (1 << 64)
    return _own("integers", "integers", dtype, "QQ", lowest % (1 << 64), span, share=2)


def _bernoulli(dtype: np.dtype[Any], p: object) -> Drawing:
    return _own("integers", "bernoulli", dtype, "d", _probability(p, "p"), share=2)


def _discrete(dtype: np.dtype[Any], pvals: object) -> Drawing:
    table = alias_table(_probabilities(pvals))
    categories = len(table) // 2
    if categories - 1 > _most_of(dtype):
        raise InvalidArgument(f"pvals has {categories} probabilities, and {dtype.name} has no number for the last")
    return _own("integers", "discrete", dtype, "PQ", categories, share=2, table=table)


def _poisson(dtype: np.dtype[Any], lam: object) -> Drawing:
    most = _most_of(dtype)
    # So that no number is too large; numpy has the same bound, for int64.
    mean, largest = _not_negative(lam, "lam"), most - 10 * math.sqrt(most)
    if mean > largest:
        raise InvalidArgument(f"lam is at most {largest:.6g} for {dtype.name}, not {mean}")
    return _own("poisson", "poisson", dtype, "d", mean)


def _binomial(dtype: np.dtype[Any], n: object, p: object) -> Drawing:
    return _own("binomial", "binomial", dtype, "qd", _trials(dtype, n), _probability(p, "p"))


def _trials(dtype: np.dtype[Any], n: object) -> int:
    return index_of(n, "n", 0, min(_most_of(dtype), (1 << 63) - 1))


def _multinomial(dtype: np.dtype[Any], n: object, pvals: object) -> Drawing:
    trials, chances = _trials(dtype, n), _probabilities(pvals)
    behind = np.cumsum(chances[::-1])[::-1]  # those of each category and of all behind it
    table = np.minimum(np.divide(chances, behind, out=np.zeros_like(chances), where=behind > 0), 1.0)
    categories = len(table)
    words = table.view(np.uint64)
    return _own("binomial", "multinomial", dtype, "PqQ", trials, categories, table=words, tail=(categories,))


def alias_table(chances: npt.NDArray[np.float64]) -> npt.NDArray[np.uint64]:
    """Return the table of Walker's method: which part of each column is kept, of 2**64, and what is taken otherwise.

    It is filled in the order of Huebschle-Schneider and Sanders, "Parallel weighted random sampling", 2019: the heavy
    categories give to the light ones, each until it has less than 1, and the rest of it is then filled by the next.
    """
    count = len(chances)
    weights = chances * count
    light, heavy = np.flatnonzero(weights < 1), np.flatnonzero(weights >= 1)
    kept, other = np.ones(count), np.arange(count)
    if len(light) and len(heavy):
        # In integers, whose sums are exact.
        missing, given = (
            np.cumsum(np.rint(each * 2.0**46).astype(np.int64)) for each in (1 - weights[light], weights[heavy] - 1)
        )
        giver = np.searchsorted(given, np.concatenate(([0], missing[:-1])), side="left")
        kept[light], other[light] = weights[light], heavy[np.minimum(giver, len(heavy) - 1)]
        # A heavy one ends with the first light one that needs more than is left.
        last = np.searchsorted(missing, given, side="right")
        ends = np.flatnonzero((last < len(light)) & (np.arange(len(heavy)) < len(heavy) - 1))
        kept[heavy[ends]] = np.clip(1 - (missing[last[ends]] - given[ends]) * 2.0**-46, 0, 1)
        other[heavy[ends]] = heavy[ends + 1]
    whole = kept >= 1
    other[whole] = np.flatnonzero(whole)
    bounds = np.where(whole, 0, kept * 2.0**64).astype(np.uint64)
    return np.concatenate((bounds, other.astype(np.uint64)))


# --- all --------------------------------------------------------------------------------------------------------------

_REQUIRED: Final = object()


@attrs.frozen
class Distribution:
    """A distribution: its parameters with their defaults, the dtypes of its elements, and the check of both."""

    check: Callable[..., Drawing]
    dtypes: tuple[str, ...]
    """The first is the default."""
    parameters: Mapping[str, Any]


_DOUBLE_FIRST: Final = ("float64", "float32")
_LONG_FIRST: Final = ("int64", *(name for name in _WHOLES if name != "int64"))

DISTRIBUTIONS: Final[Mapping[str, Distribution]] = MappingProxyType(
    {
        "bits": Distribution(_bits, ("uint32", "uint64"), {}),
        "integers": Distribution(
            _integers, (*_LONG_FIRST, "bool"), {"low": _REQUIRED, "high": None, "endpoint": False}
        ),
        "uniform": Distribution(_uniform, _DOUBLE_FIRST, {"low": 0.0, "high": 1.0}),
        "normal": Distribution(_normal, _DOUBLE_FIRST, {"loc": 0.0, "scale": 1.0}),
        "lognormal": Distribution(_lognormal, _DOUBLE_FIRST, {"mean": 0.0, "sigma": 1.0}),
        "poisson": Distribution(_poisson, _LONG_FIRST, {"lam": 1.0}),
        "exponential": Distribution(_exponential, _DOUBLE_FIRST, {"scale": 1.0}),
        "gamma": Distribution(_gamma, _DOUBLE_FIRST, {"shape": _REQUIRED, "scale": 1.0}),
        "beta": Distribution(_beta, _DOUBLE_FIRST, {"a": _REQUIRED, "b": _REQUIRED}),
        "cauchy": Distribution(_cauchy, _DOUBLE_FIRST, {"loc": 0.0, "scale": 1.0}),
        "binomial": Distribution(_binomial, _LONG_FIRST, {"n": _REQUIRED, "p": _REQUIRED}),
        "standard_t": Distribution(_standard_t, _DOUBLE_FIRST, {"df": _REQUIRED}),
        "multinomial": Distribution(_multinomial, _LONG_FIRST, {"n": _REQUIRED, "pvals": _REQUIRED}),
        "bernoulli": Distribution(_bernoulli, ("bool", *_LONG_FIRST), {"p": _REQUIRED}),
        "discrete": Distribution(_discrete, _LONG_FIRST, {"pvals": _REQUIRED}),
    }
)
"""By the names of the verbs."""

SOURCE_OF: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("bits", "uniform"), "uniform"),
        **dict.fromkeys(("normal", "lognormal"), "normal"),
        **dict.fromkeys(("exponential", "cauchy"), "inversion"),
        **dict.fromkeys(("integers", "bernoulli", "discrete"), "integers"),
        **{name: name for name in ("gamma", "beta", "standard_t", "poisson")},
        **dict.fromkeys(("binomial", "multinomial"), "binomial"),
    }
)
"""The source of each distribution's kernel."""
OWN: Final = frozenset(DISTRIBUTIONS) - {"bits", "uniform", "normal", "lognormal", "poisson"}
"""Those that cuRAND does not have. `poisson` is ours in the stateless form alone."""
