"""The driver's table as a module, and what a machine without the driver says. No GPU is needed.

Widths, numbers and layouts are held against the headers in ``bindings/test_abi.py``.
"""

from __future__ import annotations

import enum
import importlib
import os
import pkgutil
import subprocess
import sys
from ctypes import c_void_p

import pytest

from atomr_cuda import _driver_enums, driver


def run_python(code: str, **variables: str) -> str:
    """Run code in a fresh interpreter; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_enumerations_of_a_topic_are_made_when_one_is_used():
    code = """
import sys
from atomr_cuda import driver
made = lambda: [name.rpartition(".")[2] for name in sys.modules if name.startswith("atomr_cuda._driver_enums.")]
assert made() == []
print(driver.CUlimit.CU_LIMIT_STACK_SIZE.value, *made())
"""
    assert run_python(code).split() == ["0", "device"]


@pytest.mark.parametrize("file", sorted(set(_driver_enums.FILES.values())))
def test_the_index_names_every_enumeration_of_a_file(file):
    module = importlib.import_module(f"atomr_cuda._driver_enums.{file}")
    there = {name for name, value in vars(module).items() if isinstance(value, type) and value is not enum.IntEnum}
    assert there == {name for name, where in _driver_enums.FILES.items() if where == file}


def test_every_file_of_enumerations_is_in_the_index():
    files = {module.name for module in pkgutil.iter_modules(_driver_enums.__path__)}
    assert files == set(_driver_enums.FILES.values())


def test_every_enumeration_is_among_the_names_of_the_module():
    assert {"CUresult", "CUgraphNodeType", "CUjit_option", "cuInit", "CUlaunchConfig"} <= set(dir(driver))


@pytest.mark.parametrize("name", ["CUnothing", "cuNothing", "nothing"])
def test_an_unknown_name_is_no_attribute(name):
    with pytest.raises(AttributeError, match=f"'atomr_cuda.*' has no attribute '{name}'"):
        getattr(driver, name)


def test_a_copy_between_contexts_is_a_copy_with_two_more_fields():
    shape = driver.CUDA_MEMCPY3D_PEER(srcContext=1, dstContext=2, Depth=3)
    plain = driver.CUDA_MEMCPY3D.from_buffer(shape)
    assert (plain.reserved0, plain.reserved1, plain.Depth) == (1, 2, 3)


def test_the_value_of_an_operation_on_memory_can_be_seen_as_32_bits():
    operation = driver.CUstreamBatchMemOpParams()
    operation.writeValue.value64 = 0x1_0000_0002
    assert operation.writeValue.value == 2


def test_callbacks_can_be_functions_of_python_and_addresses():
    called = []
    function = driver.CUhostFn(called.append)
    address = c_void_p.from_buffer(function).value
    parameters = driver.CUDA_HOST_NODE_PARAMS(fn=driver.CUhostFn(address), userData=7)
    parameters.fn(parameters.userData)
    assert called == [7]


def test_a_machine_without_the_driver_is_told_so():
    code = """
from atomr_cuda import LibraryMissing, driver
try:
    driver.cuInit(0)
except LibraryMissing as error:
    print(error)
"""
    printed = run_python(code, ATOMR_TRIO_CUDA_PATH="/nowhere/libcuda.so.1")
    assert "comes with the NVIDIA driver" in printed
    assert "ATOMR_TRIO_CUDA_PATH=/nowhere/libcuda.so.1" in printed


def test_a_driver_without_a_newer_function_is_told_when_it_came():
    code = """
from atomr_cuda import SymbolMissing, driver
driver.library.replace({}, found_by="an old driver")
for function in (driver.cuMemcpyBatchAsync_v2, driver.cuInit):
    try:
        function.bind()
    except SymbolMissing as error:
        print(error, error.since)
"""
    newer, oldest = run_python(code).splitlines()
    assert newer == (
        "the library 'cuda' (an old driver) has no function cuMemcpyBatchAsync_v2: "
        "it needs version 13.0 or newer (13, 0)"
    )
    assert oldest.endswith("cuInit: the installed version is too old or too new; install another one None")


def test_a_structure_is_passed_by_value():
    code = """
from atomr_cuda import driver
def prefetch(address, size, location, flags, stream):
    print(address, size, location.type, location.id, flags, stream)
    return 0
driver.library.replace({"cuMemPrefetchAsync_v2": prefetch})
driver.cuMemPrefetchAsync_v2(4096, 64, driver.CUmemLocation(1, 3), 0, None)
"""
    assert run_python(code).split() == ["4096", "64", "1", "3", "0", "None"]


def test_a_status_that_the_driver_cannot_explain_still_has_a_name():
    code = """
from atomr_cuda import driver
driver.library.replace({"cuGetErrorName": lambda status, p: 1, "cuGetErrorString": lambda status, p: 1,
                        "cuInit": lambda flags: flags})
for status in (719, 12345):
    print(driver.library.error(status, "cuInit"))
"""
    first, second = run_python(code).splitlines()
    assert first.startswith("cuInit: CUDA_ERROR_LAUNCH_FAILED (719)")
    assert second.startswith("cuInit: unknown status (12345)")
