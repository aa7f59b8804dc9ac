"""What test files share: which backend and which package this run is for, and a way to open a device.

A test does not know which backend runs.
It asks for the fixtures `dev` or `open_test_device` (see conftest.py), or imports the function of that name from here
when it has no fixtures at hand, as a `trio.run` of its own has not.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from atomr_trio import Device, Devices
    from atomr_trio._device.supervisor import Supervisor
    from atomr_trio.testing import WorkerPool

ROOT = Path(__file__).resolve().parent.parent.parent

VARIABLE = "ATOMR_TRIO_TEST_BACKEND"
CHOICES = {"sim": "sim", "gpu": "cuda"}

ON_GPU = os.environ.get(VARIABLE, "sim") == "gpu"
"""Whether this run of the suite is for a real GPU."""

WHEEL = os.environ.get("ATOMR_TRIO_TEST_WHEEL")
"""The wheel that the package under test was installed from, as `make test` says; None where it is the source tree."""

SWEEP = bool(os.environ.get("ATOMR_TRIO_TEST_SWEEP"))
"""Whether this is a run of `make sweep`: it takes every case and many random ones, where `make test` takes some."""

LONG = ON_GPU or SWEEP or bool(os.environ.get("ATOMR_TRIO_TEST_LONG"))
"""Whether the tests run that take longest, as a change has to pass them: of `make test`, those with LONG=yes alone."""

HALVED = bool(os.environ.get("ATOMR_TRIO_TEST_HALVED"))
"""Whether every other case of each test is left out, as of tests with the mark `halved`."""

FRESH = SWEEP or bool(os.environ.get("ATOMR_TRIO_TEST_FRESH"))
"""Whether each device of a test starts a worker of its own, and none takes one that has served another test."""


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


used_workers: WorkerPool | None = None
"""While a test runs that is marked with `used_workers`: where its devices get their workers from."""


def open_test_device(index: int = 0, **options: Any) -> AbstractAsyncContextManager[Device]:
    """`atomr_trio.open_device` on the backend of this run; any option may be given, the backend too."""
    import atomr_trio

    defaults: dict[str, Any] = {"backend": chosen_backend()}
    if index == 0 and not {"backend", "check"} & options.keys() and "ATOMR_TRIO_SIM_FAULTS" not in os.environ:
        defaults["workers"] = used_workers  # one that has served others may have had the faults of this test already
    return atomr_trio.open_device(index, **{**defaults, **options})


@functools.cache
def gpu_count() -> int:
    """How many GPUs this machine shows to its programs."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(listed.splitlines()) if visible is None else len([each for each in visible.split(",") if each])


def skip_without(devices: int) -> None:
    """Skip the running test on a machine with fewer GPUs; the simulator has as many as `open_test_devices` wants."""
    import pytest

    if ON_GPU and gpu_count() < devices:
        pytest.skip(
            f"needs {devices} GPUs, and {gpu_count()} is there" if gpu_count() == 1 else f"needs {devices} GPUs"
        )


def open_test_devices(devices: Sequence[int | str], **options: Any) -> AbstractAsyncContextManager[Devices]:
    """`atomr_trio.open_devices` on the backend of this run; skips the test where there are not so many.

    The simulator must have been told of its devices, as the fixture `several` does.
    """
    import atomr_trio

    skip_without(len(devices))
    return atomr_trio.open_devices(devices, **{"backend": chosen_backend(), **options})


def set_constant(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, value: object) -> None:
    """Give a module's constant another value for one test.

    Fails where no function of that module reads it, as when the constant or its reader has moved: the test would go on
    with the usual value, and prove nothing.
    """
    if name not in _globals_read(module):
        raise AssertionError(f"no function of {module.__name__} reads {name}: set it in the module whose functions do")
    monkeypatch.setattr(module, name, value)


@functools.cache
def _globals_read(module: ModuleType) -> frozenset[str]:
    """The global names that the functions of a module read when they are called, not when the module is imported."""
    pending: list[CodeType] = [compile(inspect.getsource(module), module.__name__, "exec")]
    found: set[str] = set()
    while pending:
        code = pending.pop()
        found |= {each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL"}
        pending += [each for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(found)


async def next_event(events: Any) -> Any:
    """The next event of a subscription that is none of the compiler's."""
    from atomr_trio import CompileFinished, CompileStarted

    while True:
        event = await anext(events)
        if not isinstance(event, CompileStarted | CompileFinished):
            return event


def gpu_memory() -> float:
    """MiB that workers of this process hold of the machine's GPUs, as nvidia-smi says; others may use them meanwhile.

    All GPUs are asked, because nvidia-smi counts them in another order than CUDA, and sees also those that are hidden
    from this process. 0 on the simulator, NaN where the driver does not tell what a process holds.
    """
    if not ON_GPU:
        return 0.0
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    listed = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout.split("\n")
    rows = [line.split(", ") for line in listed if line]
    ours = [size for pid, size in rows if _is_descendant(int(pid))]
    return sum(float(size) if size.isdigit() else math.nan for size in ours)


def _is_descendant(pid: int) -> bool:
    """Whether a process is a child of this one, or a child's child."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            return False
        if pid == os.getpid():
            return True
    return False


def set_constant_in(monkeypatch: pytest.MonkeyPatch, modules: Sequence[ModuleType], name: str, value: object) -> None:
    """Set a constant in each of these modules that has it. Fails where no function of one that has it reads it."""
    having = [module for module in modules if hasattr(module, name)]
    assert having, f"none of these modules has {name}"
    for module in having:
        set_constant(monkeypatch, module, name, value)


def describe_registered_statuses() -> None:
    """Say what the statuses of all libraries mean, as a worker does."""
    from atomr_trio._wire import status
    from atomr_trio.libraries.registered import FOLDERS

    for folder in FOLDERS:
        registration = importlib.import_module(f"atomr_trio.libraries.{folder}.registration").REGISTRATION
        if registration.statuses is not None:
            status.describe(registration.library, registration.statuses)


def supervisor_of(dev: Device) -> Supervisor:
    """The supervisor of an open device."""
    from atomr_trio._device import lifetime
    from atomr_trio._device.device import core_of

    return next(each for each in lifetime.open_now if each.core is core_of(dev))
