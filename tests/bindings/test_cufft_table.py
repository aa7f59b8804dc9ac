"""cuFFT's table: its families, its errors, and the real library where it is installed. No GPU is needed.

Widths and numbers are held against the headers in ``bindings/test_abi.py``.
"""

from __future__ import annotations

import subprocess
import sys
from ctypes import c_int, c_longlong

import pytest

from atomr_cuda import cufft
from support import child_environment

SUFFIXES = ("1d", "2d", "3d", "Many")


def arguments(name: str) -> tuple[object, ...]:
    return cufft.library.functions[f"cufft{name}"].argtypes


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_transform_is_described_alike_wherever_it_is(suffix):
    """``cufftPlan`` takes a place for a plan in front, the others a plan, or nothing, and a place for a size behind."""
    described = arguments(f"Plan{suffix}")[1:]
    for verb in ("MakePlan", "GetSize"):
        assert arguments(verb + suffix)[0] is cufft.cufftHandle
        assert arguments(verb + suffix)[1:-1] == described
    assert arguments(f"Estimate{suffix}")[:-1] == described


def test_what_has_64_bits_differs_in_nothing_else():
    for verb in ("MakePlan", "GetSize"):
        narrow, wide = arguments(f"{verb}Many"), arguments(f"{verb}Many64")
        assert len(narrow) == len(wide)
        assert {(a, b) for a, b in zip(narrow, wide, strict=True) if a != b} >= {(c_int, c_longlong)}
        assert [place for place, kind in enumerate(wide) if kind is c_longlong] == [4, 5, 7, 8, 10]
    assert arguments("XtMakePlanMany") == arguments("XtGetSizeMany")


def test_complex_transforms_take_a_direction_and_real_ones_none():
    executions = {name.name[6:]: arguments(f"Exec{name.name[6:]}") for name in cufft.cufftType}
    assert {name for name, kinds in executions.items() if len(kinds) == 4} == {"C2C", "Z2Z"}
    assert {name for name, kinds in executions.items() if len(kinds) == 3} == {"R2C", "C2R", "D2Z", "Z2D"}


def test_every_status_is_described_by_its_own_name_and_another_text():
    described = [cufft.describe_status(status) for status in cufft.cufftResult]
    assert [name for name, _ in described] == [status.name for status in cufft.cufftResult]
    assert len({text for _, text in described}) == len(described)


def test_an_error_has_the_name_of_its_status_and_says_what_it_means():
    error = cufft.library.error(cufft.cufftResult.CUFFT_NO_WORKSPACE, "cufftExecC2C")
    assert str(error) == "cufftExecC2C: CUFFT_NO_WORKSPACE (13): the plan needs a work area and has none"
    assert error.library == "cufft"


def test_a_status_that_is_not_in_the_header_has_a_name_too():
    assert str(cufft.library.error(99, "cufftNew")) == "cufftNew: CUFFT_UNKNOWN (99): unknown status"


REAL = """
from ctypes import byref, c_int
from atomr_cuda import LibraryMissing, cufft
from support.cufft import wrong_statuses

try:
    cufft.library.load()
except LibraryMissing:
    raise SystemExit(77)

# Every function is there under its symbol, unless the library is older.
number, parts = c_int(), []
for part in range(3):
    cufft.cufftGetProperty(part, byref(number))
    parts.append(number.value)
cufft.cufftGetVersion(byref(number))
assert number.value == parts[0] * 1000 + parts[1] * 100 + parts[2], (number.value, parts)
for function in cufft.library:
    if function.since is None or function.since <= tuple(parts):
        function.bind()

# What the library looks at before it looks for a plan.
assert wrong_statuses() == [], wrong_statuses()
assert cufft.cufftDestroy.status(cufft.CUFFT_PLAN_NULL) == (0 if parts[0] >= 12 else 1)
"""
"""A process of its own, in which nothing stands in the library's place; 77 when the library is not installed."""


def test_the_library_is_what_the_table_says():
    command = [sys.executable, "-c", REAL]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("cuFFT is not installed")
    assert (done.returncode, done.stderr) == (0, "")
