"""References of `float8.cu`, by ml_dtypes, for both formats of eight bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from .case import Arguments, Family, Given, Result, equals, near

Generator = np.random.Generator

family = Family("float8.cu", headers=True)

FORMATS: dict[str, tuple[Any, float]] = {
    "e4m3": (ml_dtypes.float8_e4m3fn, 448),
    "e5m2": (ml_dtypes.float8_e5m2, 57344),
}
"""The type of each format, and its largest number."""


def floats(rng: Generator, largest: float, n: int) -> np.ndarray:
    """Of every size, ties of the rounding and numbers that are too large among them."""
    x = (rng.standard_normal(n) * 2.0 ** rng.integers(-18, 18, n)).astype(np.float32)
    x[:8] = 0, -0.0, largest, -largest * 2, 17 / 16, 19 / 16, np.inf, 2.0**-10
    return x


def add_format(name: str, kind: Any, largest: float) -> None:
    def small(x: np.ndarray) -> np.ndarray:
        return np.clip(x, -largest, largest).astype(kind)

    @family.case(grid=2, block=128, kernel=family.instance(f"there_and_back<__nv_fp8_{name}>"), name=f"single_{name}")
    def there_and_back(rng: Generator) -> Arguments:
        x = floats(rng, largest, 256)
        expected = small(x)
        bits = Result(np.zeros(256, np.uint8), equals(expected.view(np.uint8)))
        return Given(x), bits, Result(np.full(256, -1, np.float32), equals(expected.astype(np.float32)))

    @family.case(grid=1, block=64, kernel=family.instance(f"four_at_once<__nv_fp8x4_{name}>"), name=f"four_{name}")
    def four_at_once(rng: Generator) -> Arguments:
        x = floats(rng, largest, 256)
        expected = small(x)
        bits = Result(np.zeros(64, np.uint32), equals(expected.view(np.uint32)))
        return Given(x), bits, Result(np.full(256, -1, np.float32), equals(expected.astype(np.float32)))

    @family.case(grid=2, block=128, kernel=family.instance(f"through_halves<__NV_{name.upper()}>"), name=f"half_{name}")
    def through_halves(rng: Generator) -> Arguments:
        bits = np.arange(256, dtype=np.uint8)
        bits[~np.isfinite(bits.view(kind).astype(np.float32))] = 0
        halves = Result(np.full(256, -1, np.float16), equals(bits.view(kind).astype(np.float16)))
        return Given(bits), halves, Result(np.full(256, 255, np.uint8), equals(bits))

    @family.case(
        grid=1, block=(8, 8), kernel=family.instance(f"scaled_product<__nv_fp8_{name}>"), name=f"product_{name}"
    )
    def scaled_product(rng: Generator) -> Arguments:
        n = 24
        a, b = (small(rng.standard_normal((8, n))) for _ in range(2))
        scales = rng.uniform(0.5, 2, 8).astype(np.float32)
        exact = a.astype(np.float64) @ b.astype(np.float64).T * np.outer(scales, scales.astype(np.float64))
        check = near(exact, absolute=1e-4, why="24 roundings of sums below 60, scaled by 4 at most")
        given = (Given(m.view(np.uint8)) for m in (a, b))
        return *given, Given(scales), Result(np.zeros((8, 8), np.float32), check), n


for _name, (_kind, _largest) in FORMATS.items():
    add_format(_name, _kind, _largest)
