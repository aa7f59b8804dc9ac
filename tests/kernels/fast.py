"""References of `fast.cu`.

Bounds are those of the table of intrinsic functions in the CUDA C++ Programming Guide: absolute errors near the places
where a result is zero or the function is steep, units in the last place elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .case import Arguments, Family, Given, Result, near

Generator = np.random.Generator

family = Family("fast.cu")
throughout = Family("fast.cu", {"use_fast_math": True}, "fast-math")

GUIDE = "CUDA C++ Programming Guide, table of intrinsic functions"
PI = np.pi

LINES: dict[str, tuple[tuple[float, float], Callable[[np.ndarray], Any], dict[str, Any]]] = {
    "__sinf": ((-PI, PI), np.sin, {"absolute": 2.0**-21.41}),
    "__cosf": ((-PI, PI), np.cos, {"absolute": 2.0**-21.19}),
    "__tanf": ((-1.2, 1.2), np.tan, {"absolute": 2.0**-17}),  # __sinf / __cosf, with the errors of both
    "__expf": ((-20, 20), np.exp, {"ulps": 2 + 23}),
    "__exp10f": ((-9, 9), lambda x: 10.0**x, {"ulps": 2 + 26}),
    "__logf": ((0.01, 100), np.log, {"absolute": 2.0**-21.41, "ulps": 3}),
    "__log2f": ((0.01, 100), np.log2, {"absolute": 2.0**-22, "ulps": 2}),
    "__log10f": ((0.01, 100), np.log10, {"absolute": 2.0**-24, "ulps": 3}),
    "__frsqrt_rn": ((1e-10, 1e10), lambda x: 1 / np.sqrt(x), {}),
    "__frcp_rn": ((1e-10, 1e10), lambda x: 1 / x, {}),
}
"""Where each function is tried, its reference and its bounds; without bounds the result is rounded correctly."""


def add_line(name: str, domain: tuple[float, float], reference: Callable[[np.ndarray], Any], bounds: Any) -> None:
    @family.case(grid=2, block=128, kernel=f"{name}_of", name=name)
    def function_of_one(rng: Generator) -> Arguments:
        low, high = domain
        spread = rng.uniform(low, high, 128) if low < 0 else np.exp(rng.uniform(np.log(low), np.log(high), 128))
        x = np.append(spread, rng.uniform(low, high, 128)).astype(np.float32)
        check = near(reference(x.astype(np.longdouble)), why=GUIDE, **bounds)
        return Given(x), Result(np.zeros_like(x), check), x.size


for _name, _line in LINES.items():
    add_line(_name, *_line)


def pair(rng: Generator, first: tuple[float, float], second: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(rng.uniform(*ends, 256).astype(np.float32) for ends in (first, second))


@family.case(grid=2, block=128, kernel="__fdividef_of")
def fast_quotient(rng: Generator) -> Arguments:
    a, b = pair(rng, (-1e5, 1e5), (-1e5, 1e5))
    return Given(a), Given(b), Result(np.zeros_like(a), near(a / b.astype(np.float64), ulps=2, why=GUIDE)), a.size


@family.case(grid=2, block=128, kernel="__powf_of")
def fast_power(rng: Generator) -> Arguments:
    a, b = pair(rng, (0.5, 4), (-6, 6))
    exact = np.power(a.astype(np.float64), b)
    why = "exp2 of y * log2 x: an error of 2 ** -22, or two units, in a logarithm below 2, times 6, and two units"
    return Given(a), Given(b), Result(np.zeros_like(a), near(exact, relative=6 * 2.0**-20, why=why)), a.size


@throughout.case(grid=2, block=128)
def ordinary(rng: Generator) -> Arguments:
    x = rng.uniform(0.1, 3.1, 256).astype(np.float32)
    wide = x.astype(np.float64)
    columns = [np.sin(wide), np.cos(wide), np.exp(wide), np.log(wide), wide / np.float32(3.3), np.sqrt(wide)]
    check = near(np.stack(columns, axis=1), absolute=2.0**-21.19, ulps=5, why=f"{GUIDE}; expf below 3.1")
    return Given(x), Result(np.zeros((256, 6), np.float32), check), x.size
