"""References of `functions.cu`, for both types.

Bounds are those of the table of mathematical functions in the CUDA C++ Programming Guide, in units in the last place;
where its editions differ, the larger one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import precise
from .case import Arguments, Family, Given, Result, equals, identical, near, satisfies

Generator = np.random.Generator
Wide = np.longdouble

GUIDE = "CUDA C++ Programming Guide, table of mathematical functions"
PI = Wide("3.14159265358979323846264338327950288")

TYPES = (
    (Family("functions.cu", {"defines": {"REAL": "float", "F(name)": "name##f"}}, "functions-float"), np.float32),
    (Family("functions.cu", {"defines": {"REAL": "double", "F(name)": "name"}}, "functions-double"), np.float64),
)
FAMILIES = tuple(family for family, _ in TYPES)


def sin_pi(x: np.ndarray) -> np.ndarray:
    whole = np.rint(x)
    return np.where(whole % 2, -1, 1) * np.sin(PI * (x - whole))


# --- functions of one number, within bounds ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A function: where it is tried, its reference in higher precision, and the bound for floats and for doubles."""

    name: str
    domain: tuple[float, float]
    reference: Callable[[Any], Any]
    bounds: tuple[int, int]


LINES = (
    Line("sqrt", (1e-30, 1e30), np.sqrt, (0, 0)),
    Line("rsqrt", (1e-20, 1e20), lambda x: 1 / np.sqrt(x), (2, 1)),
    Line("cbrt", (-1e6, 1e6), np.cbrt, (1, 1)),
    Line("rcbrt", (1e-3, 1e6), lambda x: 1 / np.cbrt(x), (2, 1)),
    Line("exp", (-80, 80), np.exp, (2, 1)),
    Line("exp2", (-120, 120), np.exp2, (2, 1)),
    Line("exp10", (-36, 38), lambda x: np.power(Wide(10), x), (2, 1)),
    Line("expm1", (-3, 5), np.expm1, (1, 1)),
    Line("log", (1e-30, 1e30), np.log, (1, 1)),
    Line("log2", (1e-3, 1e3), np.log2, (1, 1)),
    Line("log10", (1e-3, 1e3), np.log10, (2, 1)),
    Line("log1p", (-0.9, 10), np.log1p, (1, 1)),
    Line("sin", (-1e6, 1e6), np.sin, (2, 2)),
    Line("cos", (-1e6, 1e6), np.cos, (2, 2)),
    Line("tan", (-20, 20), np.tan, (4, 2)),
    Line("sinpi", (-9, 9), sin_pi, (2, 2)),
    Line("cospi", (-9, 9), lambda x: sin_pi(x + Wide(0.5)), (2, 2)),
    Line("asin", (-1, 1), np.arcsin, (4, 2)),
    Line("acos", (-1, 1), np.arccos, (3, 2)),
    Line("atan", (-1e3, 1e3), np.arctan, (2, 2)),
    Line("sinh", (-80, 80), np.sinh, (3, 2)),
    Line("cosh", (-80, 80), np.cosh, (2, 1)),
    Line("tanh", (-10, 10), np.tanh, (2, 1)),
    Line("asinh", (-1e4, 1e4), np.arcsinh, (3, 3)),
    Line("acosh", (1, 1e4), np.arccosh, (4, 3)),
    Line("atanh", (-0.999, 0.999), np.arctanh, (3, 2)),
    Line("erf", (-4, 4), precise.erf, (2, 2)),
    Line("erfc", (-3, 9), precise.erfc, (4, 5)),
    Line("tgamma", (0.01, 30), precise.gamma, (11, 10)),
    Line("lgamma", (0.01, 200), precise.log_gamma, (6, 4)),
)


def points(rng: Generator, domain: tuple[float, float], dtype: Any, n: int = 200) -> np.ndarray:
    """Numbers from a domain: half of them spread evenly, half of them over all magnitudes."""
    low, high = domain
    smallest = low if low > 0 else max(-low, high) * 1e-6
    magnitudes = np.exp(rng.uniform(np.log(smallest), np.log(max(-low, high)), n // 2))
    signs = rng.choice([-1, 1] if low < 0 else [1], n // 2)
    return np.clip(np.append(rng.uniform(low, high, n - n // 2), signs * magnitudes), low, high).astype(dtype)


def add_line(family: Family, dtype: Any, line: Line) -> None:
    @family.case(grid=2, block=128, kernel=f"{line.name}_of", name=line.name)
    def function_of_one(rng: Generator) -> Arguments:
        x = points(rng, line.domain, dtype)
        check = near(line.reference(x.astype(Wide)), ulps=line.bounds[dtype is np.float64], why=GUIDE)
        return Given(x), Result(np.zeros_like(x), check), x.size


# --- functions with one right answer ----------------------------------------------------------------------------------

SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, 3.7, -3.7, 8388607.5, 2.0**23 + 1, 2.0**40,
    -(2.0**31), 1e-30, 1e-40, -1e-44, 3e38, math.inf, -math.inf, math.nan, 0.1, 2.0**-126, 127.0,
)  # fmt: skip
"""Signs, halves, numbers around the last that can have a fraction, subnormal ones, and what is no number."""


def specials(dtype: Any) -> np.ndarray:
    return np.array(SPECIAL).astype(dtype)


def special_pairs(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(specials(dtype), specials(dtype))
    return a.ravel(), b.ravel()


def rounded_away(x: np.ndarray) -> np.ndarray:
    """Halves go away from zero. One more bit is enough to add a half without rounding."""
    return np.copysign(np.floor(np.abs(x.astype(Wide)) + Wide(0.5)), x).astype(x.dtype)


EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": rounded_away,
    "rint": np.rint,
    "nearbyint": np.rint,
    "fabs": np.abs,
    "logb": lambda x: np.where(x == 0, -np.inf, np.where(np.isfinite(x), np.frexp(x)[1] - 1, np.abs(x))).astype(
        x.dtype
    ),
}


def add_exact(family: Family, dtype: Any, name: str, reference: Callable[[np.ndarray], np.ndarray]) -> None:
    @family.case(grid=2, block=128, kernel=f"{name}_of", name=name)
    def exact_function(rng: Generator) -> Arguments:
        x = np.append(specials(dtype), points(rng, (-50, 50), dtype))
        return Given(x), Result(np.zeros_like(x), identical(reference(x))), x.size


# --- functions of two numbers -----------------------------------------------------------------------------------------


@np.vectorize
def remainder(a: float, b: float) -> float:
    """IEEE's remainder, which is exact."""
    return math.remainder(a, b) if math.isfinite(a) and b and not math.isnan(b) else math.nan


PAIRS: tuple[tuple[str, tuple[float, float], tuple[float, float], Callable[..., Any], tuple[int, int]], ...] = (
    ("pow", (0.01, 100), (-8, 8), np.power, (8, 2)),
    ("atan2", (-10, 10), (-10, 10), np.arctan2, (3, 2)),
    ("hypot", (-1e10, 1e10), (-1e10, 1e10), np.hypot, (3, 2)),
)
EXACT_PAIRS: dict[str, Callable[..., Any]] = {
    "fmod": np.fmod,
    "remainder": remainder,
    "fdim": lambda a, b: np.where(np.isnan(a + b) & (np.isnan(a) | np.isnan(b)), np.nan, np.where(a > b, a - b, 0)),
    "fmin": np.fmin,
    "fmax": np.fmax,
    "copysign": np.copysign,
    "nextafter": np.nextafter,
}


def add_pair(family: Family, dtype: Any, name: str, *line: Any) -> None:
    first, second, reference, bounds = line

    @family.case(grid=2, block=128, kernel=f"{name}_of", name=name)
    def function_of_two(rng: Generator) -> Arguments:
        a, b = points(rng, first, dtype), rng.permutation(points(rng, second, dtype))
        check = near(reference(a.astype(Wide), b.astype(Wide)), ulps=bounds[dtype is np.float64], why=GUIDE)
        return Given(a), Given(b), Result(np.zeros_like(a), check), a.size


def add_exact_pair(family: Family, dtype: Any, name: str, reference: Callable[..., Any]) -> None:
    @family.case(grid=6, block=128, kernel=f"{name}_of", name=name)
    def exact_function_of_two(rng: Generator) -> Arguments:
        a, b = special_pairs(dtype)
        check = equals(reference(a, b).astype(dtype))
        return Given(a), Given(b), Result(np.zeros_like(a), check), a.size


# --- functions with several results -----------------------------------------------------------------------------------


def add_others(family: Family, dtype: Any) -> None:
    @family.case(grid=2, block=128)
    def taken_apart(rng: Generator) -> Arguments:
        x = np.append(specials(dtype), points(rng, (-1e6, 1e6), dtype))
        x = x[np.isfinite(x)]
        powers = rng.integers(-160, 120, x.size).astype(np.int32)
        significand, exponent = np.frexp(x)
        fraction, whole = np.modf(x)
        parts = [significand, fraction, whole, np.ldexp(x, powers), np.ldexp(x, -powers)]
        exponents = np.stack([exponent, np.where(x == 0, 0, exponent - 1)], axis=1).astype(np.int32)
        return (
            *(Given(x), Given(powers), Result(np.zeros((x.size, 5), dtype), identical(np.stack(parts, axis=1)))),
            *(Result(np.zeros_like(exponents), equals(exponents)), x.size),
        )

    @family.case(grid=6, block=128)
    def both_parts_of_quotients(rng: Generator) -> Arguments:
        a, b = special_pairs(dtype)
        sound = np.isfinite(a) & np.isfinite(b) & (b != 0) & (np.abs(a) < 1e9 * np.abs(b))
        a, b = a[sound], b[sound]
        rest = remainder(a, b)
        quotients = np.rint((a.astype(Wide) - rest) / b).astype(np.int64)
        lowest = satisfies(
            "three bits at least, and the sign, of the quotient",
            lambda got: (np.abs(got) % 8 == np.abs(quotients) % 8) & (got * quotients >= 0),
        )
        return (
            *(Given(a), Given(b), Result(np.zeros_like(a), equals(rest.astype(dtype)))),
            *(Result(np.zeros(a.size, np.int32), lowest), a.size),
        )

    @family.case(grid=6, block=128)
    def classes(rng: Generator) -> Arguments:
        a, b = special_pairs(dtype)
        flags = [
            np.isnan(a),
            np.isinf(a),
            np.isfinite(a),
            np.signbit(a),
            a < b,
            a <= b,
            a == b,
            a != b,
            ~(a > b),
            ~(a >= b),
        ]
        # The sign of NaN is that of the input: numpy's NaN is positive.
        masks = sum(flag.astype(np.int32) << np.int32(at) for at, flag in enumerate(flags))
        return Given(a), Given(b), Result(np.zeros(a.size, np.int32), equals(masks)), a.size

    @family.case(grid=2, block=128)
    def sine_and_cosine(rng: Generator) -> Arguments:
        x = points(rng, (-1e4, 1e4), dtype)
        checks = [near(function(x.astype(Wide)), ulps=2, why=GUIDE) for function in (np.sin, np.cos)]
        return Given(x), *(Result(np.zeros_like(x), check) for check in checks), x.size

    @family.case(grid=4, block=128)
    def fused(rng: Generator) -> Arguments:
        a, b = points(rng, (-1e3, 1e3), dtype, 400), points(rng, (-1e3, 1e3), dtype, 400)
        c = -(a * b) * (1 + rng.integers(-3, 4, 400) * np.finfo(dtype).eps).astype(dtype)  # nearly all cancels
        c[::3] = points(rng, (-1e9, 1e9), dtype, 400)[::3]
        # Results around the smallest normal number, and products that are tiny or huge.
        tiny = np.finfo(dtype).tiny
        a[300:340] = (points(rng, (0.5, 4), dtype, 40) * tiny * 2**10).astype(dtype)
        b[300:340], c[300:320] = dtype(2.0**-10), dtype(tiny / 4)
        a[340:370], b[340:370] = np.sqrt(tiny) / dtype(16), np.sqrt(tiny) * rng.uniform(1, 16, 30).astype(dtype)
        a[370:400], b[370:400] = np.finfo(dtype).max / dtype(3), rng.uniform(0.1, 4, 30).astype(dtype)
        expected = np.array([precise.fused(*row, dtype) for row in zip(a, b, c, strict=True)])
        return Given(a), Given(b), Given(c), Result(np.zeros_like(a), identical(expected)), a.size


for _family, _dtype in TYPES:
    for _line in LINES:
        add_line(_family, _dtype, _line)
    for _name, _reference in EXACT.items():
        add_exact(_family, _dtype, _name, _reference)
    for _pair in PAIRS:
        add_pair(_family, _dtype, *_pair)
    for _name, _reference in EXACT_PAIRS.items():
        add_exact_pair(_family, _dtype, _name, _reference)
    add_others(_family, _dtype)
