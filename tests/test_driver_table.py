"""The driver's table: layouts, names, and what a machine without the driver says. No GPU is needed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from atomr_cuda import Function, driver

# Sizes and offsets by the C compiler from cuda.h 13.0 on x86-64; aarch64 has the same.
SIZES = {
    "CUuuid": 16,
    "CUmemLocation": 8,
    "CUmemAllocationProp": 32,
    "CUmemAccessDesc": 12,
    "CUlaunchAttributeValue": 64,
    "CUlaunchAttribute": 72,
    "CUlaunchConfig": 56,
    "CUDA_MEMCPY2D": 128,
}
OFFSETS = {
    ("CUmemAllocationProp", "location"): 8,
    ("CUmemAllocationProp", "win32HandleMetaData"): 16,
    ("CUmemAllocationProp", "allocFlags"): 24,
    ("CUmemAccessDesc", "flags"): 8,
    ("CUlaunchAttribute", "value"): 8,
    ("CUlaunchConfig", "sharedMemBytes"): 24,
    ("CUlaunchConfig", "hStream"): 32,
    ("CUlaunchConfig", "attrs"): 40,
    ("CUlaunchConfig", "numAttrs"): 48,
    ("CUDA_MEMCPY2D", "srcHost"): 24,
    ("CUDA_MEMCPY2D", "dstMemoryType"): 72,
    ("CUDA_MEMCPY2D", "dstDevice"): 88,
    ("CUDA_MEMCPY2D", "Height"): 120,
}


@pytest.mark.parametrize("name", SIZES)
def test_structures_have_the_size_of_the_header(name):
    assert ctypes.sizeof(getattr(driver, name)) == SIZES[name]


@pytest.mark.parametrize(("name", "field"), OFFSETS)
def test_fields_lie_where_the_header_puts_them(name, field):
    assert getattr(getattr(driver, name), field).offset == OFFSETS[name, field]


@pytest.mark.parametrize(
    ("number", "name"),
    [(1, "INVALID_VALUE"), (2, "OUT_OF_MEMORY"), (218, "INVALID_PTX"), (700, "ILLEGAL_ADDRESS"), (999, "UNKNOWN")],
)
def test_statuses_have_their_names(number, name):
    assert driver.CUresult(number).name == f"CUDA_ERROR_{name}"


def test_every_function_is_declared_under_the_name_of_the_header():
    names = {name for name in vars(driver) if name.startswith("cu")}
    declared = {value.symbol for name, value in vars(driver).items() if isinstance(value, Function)}
    assert declared == set(driver.library.functions)
    for name in names:
        symbol = getattr(driver, name).symbol
        assert symbol == name or symbol.removeprefix(name) in ("_v2",)


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("cuMemAlloc", "cuMemAlloc_v2"),
        ("cuStreamWriteValue64", "cuStreamWriteValue64_v2"),
        ("cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"),
        ("cuMemsetD8Async", "cuMemsetD8Async"),
        ("cuMemHostRegister", "cuMemHostRegister_v2"),
        ("cuLaunchKernelEx", "cuLaunchKernelEx"),
    ],
)
def test_plain_names_stand_for_versioned_symbols(name, symbol):
    assert getattr(driver, name).symbol == symbol


def test_a_machine_without_the_driver_is_told_so():
    code = """
from atomr_cuda import LibraryMissing, driver
try:
    driver.cuInit(0)
except LibraryMissing as error:
    print(error)
"""
    environment = {**os.environ, "ATOMR_TRIO_CUDA_PATH": "/nowhere/libcuda.so.1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "comes with the NVIDIA driver" in done.stdout
    assert "ATOMR_TRIO_CUDA_PATH=/nowhere/libcuda.so.1" in done.stdout


def test_a_status_that_the_driver_cannot_explain_still_has_a_name():
    code = """
from atomr_cuda import driver
driver.library.replace({"cuGetErrorName": lambda status, p: 1, "cuGetErrorString": lambda status, p: 1,
                        "cuInit": lambda flags: flags})
for status in (719, 12345):
    print(driver.library.error(status, "cuInit"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("cuInit: CUDA_ERROR_LAUNCH_FAILED (719)")
    assert second.startswith("cuInit: unknown status (12345)")
