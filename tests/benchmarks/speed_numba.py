"""The kernels of the speed benchmark as numba-cuda wants them, in Python. Imported where numba-cuda is measured."""

from __future__ import annotations

from typing import Any

from numba import cuda


@cuda.jit
def empty() -> None:
    """Nothing."""


@cuda.jit
def saxpy(a: Any, x: Any, y: Any, n: Any) -> None:
    """Four arguments."""
    i = cuda.grid(1)
    if i < n:
        y[i] = a * x[i] + y[i]


@cuda.jit
def sixteen(
    a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any,
    i: Any, j: Any, k: Any, l: Any, m: Any, n: Any, o: Any, p: Any,  # noqa: E741
) -> None:  # fmt: skip
    """Sixteen arguments, eight of them arrays."""
