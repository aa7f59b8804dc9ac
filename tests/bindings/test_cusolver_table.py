"""cuSOLVER's table: its families, its errors, and the real library where it is installed. No GPU is needed.

Widths and numbers are held against the headers in ``bindings/test_abi.py``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from ctypes import c_double, c_float

import pytest

from atomr_cuda import cusolver

FAMILY = re.compile(r"cusolverDn([SDCZ])((?:po|ge|or|un|sy|he)\w+)")


def families(letter: str) -> dict[str, tuple[object, ...]]:
    """The arguments of the functions for one type of matrices, by what follows the letter."""
    matches = {function: FAMILY.fullmatch(function.symbol) for function in cusolver.library}
    return {m[2]: function.argtypes for function, m in matches.items() if m is not None and m[1] == letter}


def test_double_precision_takes_what_single_precision_takes_with_bounds_in_its_own_precision():
    for single, double in ("SD", "CZ"):
        widened = {
            name: tuple(c_double if kind is c_float else kind for kind in kinds)
            for name, kinds in families(single).items()
        }
        assert widened
        assert families(double) == widened


def test_complex_matrices_have_every_function_that_real_ones_have():
    """Hermitian stands for symmetric and unitary for orthogonal; ``sytrf`` and ``sytri`` are symmetric for both."""
    complex_names = {"sy": "he", "or": "un"}
    expected = {
        name if name.startswith(("sytrf", "sytri")) else complex_names.get(name[:2], name[:2]) + name[2:]: kinds
        for name, kinds in families("S").items()
    }
    assert families("C") == expected


def test_a_query_for_a_workspace_stands_beside_its_function():
    declared = {function.symbol for function in cusolver.library}
    queries = {symbol for symbol in declared if symbol.endswith("_bufferSize")}
    assert queries
    assert {symbol.removesuffix("_bufferSize") for symbol in queries} <= declared


def test_an_error_has_the_name_of_its_status():
    status = cusolver.cusolverStatus_t.CUSOLVER_STATUS_INVALID_VALUE
    error = cusolver.library.error(status, "cusolverDnXpotrf")
    assert str(error) == "cusolverDnXpotrf: CUSOLVER_STATUS_INVALID_VALUE (3): invalid value"


def test_a_status_that_is_not_in_the_header_has_a_name_too():
    assert str(cusolver.library.error(99, "cusolverDnNew")) == "cusolverDnNew: CUSOLVER_STATUS_UNKNOWN (99): unknown"


REAL = """
from ctypes import byref, c_int, c_void_p
from atomr_cuda import LibraryMissing, cusolver

try:
    cusolver.library.load()
except LibraryMissing:
    raise SystemExit(77)
version, parts = c_int(), []
for part in range(3):
    cusolver.cusolverGetProperty(part, byref(version))
    parts.append(version.value)
cusolver.cusolverGetVersion(byref(version))
assert version.value == parts[0] * 1000 + parts[1] * 100 + parts[2], (version.value, parts)
for function in cusolver.library:
    if function.since is None or function.since <= tuple(parts):
        function.bind()
params, jacobi = c_void_p(), c_void_p()
cusolver.cusolverDnCreateParams(byref(params))
cusolver.cusolverDnSetAdvOptions(params, cusolver.cusolverDnFunction_t.CUSOLVERDN_GETRF, 1)
cusolver.cusolverDnDestroyParams(params)
cusolver.cusolverDnCreateSyevjInfo(byref(jacobi))
cusolver.cusolverDnXsyevjSetTolerance(jacobi, 1e-7)
cusolver.cusolverDnDestroySyevjInfo(jacobi)
"""
"""A process of its own, in which nothing stands in the library's place; 77 when the library is not installed."""


def test_the_library_has_every_function_of_its_version():
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("cuSOLVER is not installed")
    assert (done.returncode, done.stderr) == (0, "")
