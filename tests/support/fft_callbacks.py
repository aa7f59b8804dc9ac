"""Sources of callbacks of cuFFT: one that multiplies what is read by a window, one that multiplies what is written."""

from __future__ import annotations

from typing import Any

import numpy as np

TYPES = {"float32": "float", "float64": "double", "complex64": "float2", "complex128": "double2"}
"""The type of an element in C++ by its dtype."""
REALS = {"float32": "float32", "float64": "float64", "complex64": "float32", "complex128": "float64"}


def _product(dtype: str, factor: str) -> str:
    if dtype.startswith("complex"):
        return f"element.x *= {factor}; element.y *= {factor};"
    return f"element *= {factor};"


def window(dtype: str, row: int, name: str = "window", index: str = "at % ROW") -> str:
    """A load callback: the element in column `index` of rows of so many elements is multiplied by info[index]."""
    kind, real = TYPES[dtype], TYPES[REALS[dtype]]
    return f"""
#define ROW {row}
__device__ {kind} {name}(void *data, unsigned long long at, void *info, void *shared)
{{
    {kind} element = ((const {kind} *)data)[at];
    {real} factor = ((const {real} *)info)[{index}];
    {_product(dtype, "factor")}
    return element;
}}
"""


def scaled(dtype: str, factor: str = "*(const REAL *)info", name: str = "scaled", more: str = "") -> str:
    """A store callback: the element is multiplied, by default by info[0]. `more` is C++ that is done as well."""
    kind, real = TYPES[dtype], TYPES[REALS[dtype]]
    return f"""
#define REAL {real}
__device__ void {name}(void *data, unsigned long long at, {kind} element, void *info, void *shared)
{{
    {_product(dtype, f"({factor})")}
    ((({kind} *)data))[at] = element;
    {more}
}}
"""


def weights(count: int, dtype: str) -> Any:
    """Numbers to multiply elements of this dtype by."""
    return np.random.default_rng(7).uniform(0.5, 2, count).astype(REALS[dtype])
