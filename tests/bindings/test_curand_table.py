"""cuRAND's table: its families, its errors, and the real library where it is installed. No GPU is needed.

Widths and numbers are held against the headers in ``bindings/test_abi.py``.
"""

from __future__ import annotations

import subprocess
import sys
from ctypes import c_double, c_float, c_size_t, c_void_p

import pytest

from atomr_cuda import curand
from support import child_environment


def test_every_function_that_draws_takes_a_generator_a_place_and_a_count_first():
    drawing = {
        name.removeprefix("curandGenerate"): function.argtypes
        for name, function in curand.library.functions.items()
        if name.startswith("curandGenerate") and name != "curandGenerateSeeds"
    }
    assert {kinds[:3] for kinds in drawing.values()} == {(c_void_p, c_void_p, c_size_t)}
    more = {name: kinds[3:] for name, kinds in drawing.items() if kinds[3:]}
    single, double = (c_float, c_float), (c_double, c_double)
    assert more == {
        "Normal": single,
        "LogNormal": single,
        "NormalDouble": double,
        "LogNormalDouble": double,
        "Poisson": (c_double,),
    }


def test_every_status_is_described_by_its_own_name_and_another_text():
    described = [curand.describe_status(status) for status in curand.curandStatus_t]
    assert [name for name, _ in described] == [status.name for status in curand.curandStatus_t]
    assert len({text for _, text in described}) == len(described)


def test_an_error_has_the_name_of_its_status_and_says_what_it_means():
    error = curand.library.error(curand.curandStatus_t.CURAND_STATUS_OUT_OF_RANGE, "curandGeneratePoisson")
    assert str(error) == "curandGeneratePoisson: CURAND_STATUS_OUT_OF_RANGE (104): an argument is out of its range"
    assert error.library == "curand"


def test_a_status_that_is_not_in_the_header_has_a_name_too():
    assert str(curand.library.error(99, "curandNew")) == "curandNew: CURAND_STATUS_UNKNOWN (99): unknown status"


REAL = """
import ctypes
from ctypes import byref, c_int
from atomr_cuda import LibraryMissing, curand
from support.curand import PSEUDO, QUASI, first_tables, without_a_generator, wrong_statuses

try:
    curand.library.load()
except LibraryMissing:
    raise SystemExit(77)

# Every function is there under its symbol.
number, parts = c_int(), []
for part in range(3):
    curand.curandGetProperty(part, byref(number))
    parts.append(number.value)
curand.curandGetVersion(byref(number))
assert number.value == parts[0] * 1000 + parts[1] * 100 + parts[2], (number.value, parts)
for function in curand.library:
    function.bind()

# What host generators take and refuse, which is what the simulated ones of the device do.
def status(name, *arguments):
    return curand.library.functions[name].status(*arguments)

place = ctypes.create_string_buffer(64 + 16)
aligned = -(-ctypes.addressof(place) // 16) * 16
wrong = wrong_statuses(curand.curandCreateGeneratorHost.status, status, aligned, PSEUDO + QUASI)
assert wrong == [], wrong
assert without_a_generator(status) == []
first = first_tables(status)
assert first[:4] == [1 << 31, 1 << 30, 1 << 29, 1 << 28], first
"""
"""A process of its own, in which nothing stands in the library's place; 77 when the library is not installed."""


def test_the_library_is_what_the_table_says():
    command = [sys.executable, "-c", REAL]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("cuRAND is not installed")
    assert (done.returncode, done.stderr) == (0, "")
