"""What test files share: which backend and which package this run is for, and a way to open a device.

A test does not know which backend runs.
It asks for the fixtures `dev` or `open_test_device` (see conftest.py), or imports the function of that name from here
when it has no fixtures at hand, as a `trio.run` of its own has not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atomr_trio import Device

ROOT = Path(__file__).resolve().parent.parent

VARIABLE = "ATOMR_TRIO_TEST_BACKEND"
CHOICES = {"sim": "sim", "gpu": "cuda"}

ON_GPU = os.environ.get(VARIABLE, "sim") == "gpu"
"""Whether this run of the suite is for a real GPU."""

WHEEL = os.environ.get("ATOMR_TRIO_TEST_WHEEL")
"""The wheel that the package under test was installed from, as `make test` says; None where it is the source tree."""


def chosen_backend() -> str:
    """The value of `open_device`'s `backend` argument in this run: "sim" or "cuda"."""
    choice = os.environ.get(VARIABLE, "sim")
    if choice not in CHOICES:
        raise ValueError(f"{VARIABLE} is {choice!r}; it must be one of {', '.join(CHOICES)}")
    return CHOICES[choice]


def child_environment(**variables: str) -> dict[str, str]:
    """The environment of a Python process that finds the modules which this one finds, in the places where it does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **variables}


def coverage_environment() -> dict[str, str]:
    """What has a child process count its branches too, in a run of `make coverage`, and its workers in vain."""
    measured = "COVERAGE_FILE" in os.environ
    return {"COVERAGE_PROCESS_START": str(ROOT / "pyproject.toml")} if measured else {}


def open_test_device(index: int = 0, **options: Any) -> AbstractAsyncContextManager[Device]:
    """`atomr_trio.open_device` on the backend of this run; any option may be given, the backend too."""
    import atomr_trio

    return atomr_trio.open_device(index, **{"backend": chosen_backend(), **options})


async def next_event(events: Any) -> Any:
    """The next event of a subscription that is none of the compiler's."""
    from atomr_trio import CompileFinished, CompileStarted

    while True:
        event = await anext(events)
        if not isinstance(event, CompileStarted | CompileFinished):
            return event


def gpu_memory() -> float:
    """MiB in use on the GPU, as nvidia-smi says."""
    if not ON_GPU:
        return 0.0
    query = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return float(subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout)
