"""The tests of compiling and linking once more, with the libraries of CUDA 12.9: nothing may lean on 13 alone.

In an ordinary run every other case of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import SWEEP

pytestmark = pytest.mark.sim_only

DEADLINE = 300
LIBRARIES = {
    "ATOMR_TRIO_NVRTC_PATH": "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
    "ATOMR_TRIO_NVJITLINK_PATH": "nvidia/nvjitlink/lib/libnvJitLink.so.12",
}
"""By the variables that name a library to load; `make test` installs them for these tests alone."""


@pytest.fixture(scope="module")
def libraries() -> dict[str, str]:
    folder = os.environ.get("ATOMR_TRIO_TEST_CUDA12")
    assert folder, "ATOMR_TRIO_TEST_CUDA12 names the folder that CUDA 12's libraries are installed in"
    paths = {variable: Path(folder, library) for variable, library in LIBRARIES.items()}
    assert all(path.is_file() for path in paths.values()), paths
    return {variable: str(path) for variable, path in paths.items()}


@pytest.mark.long
def test_the_same_tests_pass_with_cuda_12(libraries: dict[str, str]) -> None:
    names = ("nvrtc_options", "compiler", "linker", "signatures", "reads")
    chosen = [] if SWEEP else ["-k", "not debug"]  # code with -G is tried with CUDA 13 in every run
    tests = [str(Path(__file__).with_name(f"test_{name}.py")) for name in names]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--tb=short",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            *chosen,
            *tests,
        ],
        env={**os.environ, **libraries, "ATOMR_TRIO_TEST_HALVED": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
