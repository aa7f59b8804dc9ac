"""The table of the driver against the library that is installed."""

from __future__ import annotations

import ctypes
import os

from atomr_cuda import driver


def test_the_installed_driver_has_every_function_of_its_version():
    version = ctypes.c_int()
    driver.cuDriverGetVersion(version)
    assert version.value >= 12000
    for function in driver.library.functions.values():
        major, minor = function.since or (12, 0)
        if 1000 * major + 10 * minor <= version.value:
            function.bind()
    assert driver.library.path is not None
    assert os.path.exists(driver.library.path)
    assert str(driver.library.error(700, "cuInit")).startswith("cuInit: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
