"""The tables of cuBLAS and cuBLASLt: families, errors, and the real libraries where they are installed. No GPU is
needed.

Widths and numbers are held against the headers in ``bindings/test_abi.py``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from ctypes import c_int64

import pytest

from atomr_cuda import Function, cublas, cublaslt

FAMILY = re.compile(
    r"cublas(I?)([sdczSDCZ]|Sc|Dz)((?:a[sm]|nrm|copy|swap|scal|axpy|rotg|g[eb]m|sy|t[rb]|geam|dgmm)\w*)"
)
FUNCTIONS = {name: value for name, value in vars(cublas).items() if isinstance(value, Function)}


def families(letter: str) -> dict[str, tuple[object, ...]]:
    """The arguments of the functions for one element type, by what stands around the letter."""
    found = {FAMILY.fullmatch(name): function.argtypes for name, function in FUNCTIONS.items()}
    return {m[1] + m[3]: argtypes for m, argtypes in found.items() if m and m[2][-1].upper() == letter}


def test_every_element_type_has_the_same_functions():
    """Norms and sums of complex vectors are called after both types (``cublasScnrm2_64``)."""
    single = families("S")
    assert len(single) > 25
    assert families("D") == single
    assert families("C") == families("Z") == {name: single[name] for name in single if name != "sbmv_64"}


@pytest.mark.parametrize("what", ["mv_64", "r_64", "r2_64", "mm_64", "rk_64", "r2k_64", "rkx_64"])
def test_hermitian_matrices_have_what_symmetric_ones_have(what):
    for letter in "CZ":
        of_its_type = families(letter)
        assert FUNCTIONS[f"cublas{letter}he{what}"].argtypes == of_its_type[f"sy{what}"]


def test_sizes_have_64_bits_and_are_said_by_the_name():
    assert {name for name, function in FUNCTIONS.items() if c_int64 in function.argtypes} == {
        name for name, function in FUNCTIONS.items() if name.endswith("_64") and function.symbol.endswith("_64")
    }


@pytest.mark.parametrize(
    ("library", "function"), [(cublas.library, "cublasGemmEx_64"), (cublaslt.library, "cublasLtMatmul")]
)
def test_an_error_has_the_name_of_its_status_and_says_what_it_means(library, function):
    status = cublas.cublasStatus_t.CUBLAS_STATUS_NOT_SUPPORTED
    assert str(library.error(status, function)) == (
        f"{function}: CUBLAS_STATUS_NOT_SUPPORTED (15): the library does not offer this combination of arguments"
    )
    assert library.error(status, function).library == library.name


def test_every_status_is_described_by_its_own_name_and_another_text():
    described = [cublas.describe_status(status) for status in cublas.cublasStatus_t]
    assert [name for name, _ in described] == [status.name for status in cublas.cublasStatus_t]
    assert len({text for _, text in described}) == len(described)


def test_a_status_that_is_not_in_the_header_has_a_name_too():
    assert str(cublas.library.error(99, "cublasNew")) == "cublasNew: CUBLAS_STATUS_UNKNOWN (99): unknown status"


REAL = """
from ctypes import byref, c_int, c_ubyte, c_size_t, c_void_p, sizeof
from atomr_cuda import LibraryMissing, cublas, cublaslt

try:
    cublas.library.load()
    cublaslt.library.load()
except LibraryMissing:
    raise SystemExit(77)

# Every function is there under its symbol, unless the library is older.
version = []
for part in range(3):
    cublas.cublasGetProperty(part, byref(number := c_int()))
    version.append(number.value)
assert cublaslt.cublasLtGetVersion() == version[0] * 10000 + version[1] * 100 + version[2], version
for library in (cublas.library, cublaslt.library):
    for function in library:
        if function.since is None or function.since <= tuple(version):
            function.bind()

# The library gives a status the name that it has here.
for status in cublas.cublasStatus_t:
    assert cublas.cublasGetStatusName(status).decode() == cublaslt.cublasLtGetStatusName(status).decode() == status.name

# The room for descriptors is large enough, for an older library too, and nothing is written behind it.
for initialise, room, arguments in (
    (cublaslt.cublasLtMatrixLayoutInit_internal, cublaslt.cublasLtMatrixLayoutOpaque_t, (0, 4, 4, 4)),
    (cublaslt.cublasLtMatmulDescInit_internal, cublaslt.cublasLtMatmulDescOpaque_t, (68, 0)),
    (cublaslt.cublasLtMatrixTransformDescInit_internal, cublaslt.cublasLtMatrixTransformDescOpaque_t, (0,)),
    (cublaslt.cublasLtMatmulPreferenceInit_internal, cublaslt.cublasLtMatmulPreferenceOpaque_t, ()),
):
    size = sizeof(room)
    memory = (c_ubyte * (size + 256))(*[0xAB] * (size + 256))
    initialise(memory, size, *arguments)
    assert bytes(memory[:size]) != b"\\xab" * size, initialise
    assert bytes(memory[size:]) == b"\\xab" * 256, initialise

# An attribute comes back as it was set.
cublaslt.cublasLtMatmulDescCreate(byref(product := c_void_p()), cublas.cublasComputeType_t.CUBLAS_COMPUTE_32F, 0)
epilogue = cublaslt.cublasLtMatmulDescAttributes_t.CUBLASLT_MATMUL_DESC_EPILOGUE
gelu = cublaslt.cublasLtEpilogue_t.CUBLASLT_EPILOGUE_GELU_AUX_BIAS
cublaslt.cublasLtMatmulDescSetAttribute(product, epilogue, byref(c_int(gelu)), 4)
answer, written = c_int(), c_size_t()
cublaslt.cublasLtMatmulDescGetAttribute(product, epilogue, byref(answer), 4, byref(written))
assert (answer.value, written.value) == (gelu, 4)
cublaslt.cublasLtMatmulDescDestroy(product)
"""
"""A process of its own, in which nothing stands in the libraries' place; 77 when one of them is not installed."""


def test_the_libraries_are_what_the_tables_say():
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("cuBLAS is not installed")
    assert (done.returncode, done.stderr) == (0, "")
