"""The table of the driver against the library that is installed."""

from __future__ import annotations

import ctypes
import os

from atomr_cuda import driver


def test_the_installed_driver_has_every_declared_function():
    for function in driver.library.functions.values():
        function.bind()
    version = ctypes.c_int()
    driver.cuDriverGetVersion(version)
    assert version.value >= 12080
    assert driver.library.path is not None
    assert os.path.exists(driver.library.path)
    assert str(driver.library.error(700, "cuInit")).startswith("cuInit: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
