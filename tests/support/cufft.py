"""Calls of cuFFT that need no plan, no GPU and no driver, and the status of each.

The library of each version that is installed is asked (``bindings/test_cufft_table.py``), and so is the simulator: they
show what the library looks at first.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref, c_int, c_longlong, c_size_t
from typing import Any

from atomr_cuda import cufft
from atomr_cuda.cufft import cufftResult, cufftType

NOBODY = 5
"""The number of no plan."""

_INVALID_PLAN = cufftResult.CUFFT_INVALID_PLAN
_INVALID_TYPE = cufftResult.CUFFT_INVALID_TYPE
_INVALID_VALUE = cufftResult.CUFFT_INVALID_VALUE

_C2C = int(cufftType.CUFFT_C2C)
_NO_TYPE = 0x30
_DIMENSIONS = {"1d": ((8,), (1,)), "2d": ((8, 8), ()), "3d": ((8, 8, 8), ())}


def without_a_plan() -> Iterator[tuple[str, tuple[Any, ...], int]]:
    """Function, arguments and status."""
    work = byref(c_size_t())
    for suffix, (lengths, batch) in _DIMENSIONS.items():
        for verb in ("MakePlan", "GetSize"):
            name = f"cufft{verb}{suffix}"
            yield name, (NOBODY, *lengths, _C2C, *batch, work), _INVALID_PLAN
            yield name, (NOBODY, *[0] * len(lengths), _C2C, *batch, work), _INVALID_PLAN
            yield name, (NOBODY, *lengths, _NO_TYPE, *batch, work), _INVALID_TYPE
            yield name, (NOBODY, *lengths, _C2C, *batch, None), _INVALID_VALUE
        yield f"cufftPlan{suffix}", (None, *lengths, _C2C, *batch), _INVALID_VALUE
    for suffix, kind in (("Many", c_int), ("Many64", c_longlong)):
        lengths = (kind * 4)(8, 8, 8, 8)

        def many(rank: int, batch: int, of: Any = _C2C, stride: int = 1, n: Any = lengths) -> tuple[Any, ...]:
            return (NOBODY, rank, n, n, stride, stride, n, stride, stride, of, batch)

        for verb, first in (("MakePlan", _INVALID_VALUE), ("GetSize", _INVALID_PLAN)):
            name = f"cufft{verb}{suffix}"
            yield name, (*many(1, 1), work), _INVALID_PLAN
            yield name, (*many(3, 0), work), _INVALID_PLAN
            yield name, (*many(3, 1, stride=0), work), _INVALID_PLAN
            yield name, (*many(0, 1), work), first
            yield name, (*many(4, 1), work), first
            yield name, (*many(4, 1, _NO_TYPE), work), _INVALID_TYPE
            yield name, (*many(1, 1, n=None), work), first
            yield name, (*many(1, 1), None), _INVALID_VALUE
    lengths64 = (c_longlong * 4)(8, 8, 8, 8)
    for verb, first in (("MakePlan", _INVALID_VALUE), ("GetSize", _INVALID_PLAN)):
        for rank, kind, status in ((1, 4, _INVALID_PLAN), (1, 99, _INVALID_PLAN), (4, 4, first)):
            side = (None, 1, 1, kind)
            yield f"cufftXt{verb}Many", (NOBODY, rank, lengths64, *side, *side, 1, work, 4), status
    for name, arguments in {
        "cufftDestroy": (),
        "cufftSetStream": (None,),
        "cufftSetAutoAllocation": (0,),
        "cufftSetWorkArea": (None,),
        "cufftGetSize": (work,),
        "cufftXtSetWorkAreaPolicy": (0, work),
        "cufftSetPlanPropertyInt64": (1, 1),
        "cufftGetPlanPropertyInt64": (1, byref(c_longlong())),
        "cufftResetPlanProperty": (1,),
        "cufftExecC2C": (None, None, 0),
        "cufftExecZ2Z": (None, None, 0),
        **{f"cufftExec{name}": (None, None) for name in ("R2C", "C2R", "D2Z", "Z2D")},
        "cufftXtExec": (None, None, 0),
    }.items():
        for number in (NOBODY, 0, -7):
            yield name, (number, *arguments), _INVALID_PLAN
    yield "cufftGetSize", (NOBODY, None), _INVALID_VALUE
    yield "cufftCreate", (None,), _INVALID_VALUE
    yield "cufftGetProperty", (0, None), _INVALID_VALUE
    yield "cufftGetProperty", (3, byref(c_int())), _INVALID_TYPE
    yield "cufftGetProperty", (-1, byref(c_int())), _INVALID_TYPE


def wrong_statuses() -> list[str]:
    """Make all those calls; return what was not as expected."""
    found = []
    for name, arguments, expected in without_a_plan():
        status = cufft.library.functions[name].status(*arguments)  # type: ignore[attr-defined]
        if status != expected:
            found.append(f"{name}{arguments}: {status}, not {int(expected)}")
    return found
