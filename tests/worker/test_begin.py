"""The first lines of a worker's program: the context that the driver makes while Python imports."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from ctypes import c_int
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_cuda import cublas, driver, nccl
from atomr_cuda._library import LibraryMissing
from atomr_trio._device.device import core_of
from atomr_trio._wire.starting import worker_command
from atomr_trio._worker import begin, main, registry
from atomr_trio._worker.begin import ContextAhead
from support import child_environment, chosen_backend


class FakeDriver:
    """The three functions of the driver; each call is noted with its thread, and answered by a status."""

    def __init__(self, **statuses: int) -> None:
        self.called: list[str] = []
        self.threads: set[int] = set()
        self.devices: list[int] = []
        self.cuInit = self._function("cuInit", statuses)
        self.cuDeviceGet = self._function("cuDeviceGet", statuses)
        self.cuDevicePrimaryCtxRetain = self._function("cuDevicePrimaryCtxRetain", statuses)

    def _function(self, name: str, statuses: dict[str, int]) -> Any:
        def call(*arguments: object) -> int:
            self.called.append(name)
            self.threads.add(threading.get_ident())
            if name == "cuDeviceGet":
                self.devices.append(int(arguments[1]))  # type: ignore[call-overload]
            return statuses.get(name, 0)

        return call


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeDriver]:
    def make(**statuses: int) -> FakeDriver:
        fake = FakeDriver(**statuses)
        monkeypatch.setattr(begin, "_driver", lambda: fake)
        return fake

    return make


def test_the_names_of_the_driver_are_those_of_its_table() -> None:
    library = driver.library
    assert (*library.sonames, *library.known_files) == begin.LIBRARIES
    assert library.override_variable == begin.CHOSEN_LIBRARY


def test_the_context_is_retained_in_another_thread(install: Callable[..., FakeDriver]) -> None:
    fake = install()
    ahead = ContextAhead(3)
    assert ahead.wait()
    assert ahead.wait(), "it can be asked again"
    assert fake.called == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    assert fake.devices == [3]
    assert threading.get_ident() not in fake.threads


@pytest.mark.parametrize(("refusing", "calls"), [("cuInit", 1), ("cuDeviceGet", 2), ("cuDevicePrimaryCtxRetain", 3)])
def test_what_the_driver_refuses_is_left_to_the_calls_that_report_it(
    install: Callable[..., FakeDriver], refusing: str, calls: int
) -> None:
    fake = install(**{refusing: 100})
    assert not ContextAhead(0).wait()
    assert len(fake.called) == calls


def test_without_a_driver_or_with_a_foreign_one_nothing_happens_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin, "LIBRARIES", ("libatomr-is-not-there.so.1",))
    assert not ContextAhead(0).wait()
    monkeypatch.setattr(begin, "LIBRARIES", ("libc.so.6",))  # it has none of the functions
    assert not ContextAhead(0).wait()


def test_without_a_thread_nothing_happens_ahead(
    install: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install()

    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(begin._thread, "start_new_thread", none_left)
    assert not ContextAhead(0).wait()
    assert fake.called == []


@pytest.fixture
def limits() -> Any:
    """The limit of descriptors and the handler of SIGCHLD, which `_begin` sets, are set back."""
    limit, handler = resource.getrlimit(resource.RLIMIT_NOFILE), signal.getsignal(signal.SIGCHLD)
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    signal.signal(signal.SIGCHLD, handler)


@pytest.mark.parametrize("soft", [256, None])
def test_the_driver_begins_with_descriptors_enough_and_not_too_many_and_with_its_children(
    install: Callable[..., FakeDriver], limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch, soft: int | None
) -> None:
    monkeypatch.delenv(begin.CHOSEN_LIBRARY, raising=False)
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, soft or hard), hard))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    install()
    ahead = begin._begin("cuda", "0")
    assert ahead is not None
    assert ahead.wait()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, begin.FEW_DESCRIPTORS), hard)
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL


@pytest.mark.parametrize(("backend", "chosen"), [("sim", ""), ("cuda", "/some/libcuda.so.1")])
@pytest.mark.usefixtures("limits")
def test_nothing_happens_ahead_on_the_simulator_and_with_a_driver_that_the_user_names(
    install: Callable[..., FakeDriver], monkeypatch: pytest.MonkeyPatch, backend: str, chosen: str
) -> None:
    monkeypatch.setenv(begin.CHOSEN_LIBRARY, chosen)
    fake = install()
    assert begin._begin(backend, "0") is None
    assert fake.called == []


@pytest.mark.parametrize("retained", [True, False])
def test_a_context_that_was_retained_ahead_is_released_once(monkeypatch: pytest.MonkeyPatch, retained: bool) -> None:
    done: list[str] = []

    def context(*_: object) -> Any:
        done.append("retain")
        return SimpleNamespace(release=lambda: done.append("release"))

    monkeypatch.setattr(main, "Context", context)
    ahead: Any = SimpleNamespace(wait=lambda: retained, moments={"begun": 1.0})
    nothing: Any = None
    main.Worker(nothing, chosen_backend(), 0, 0, 0).open_context(ahead)
    assert done == ["retain", *(["release"] if retained else [])]


@pytest.mark.sim_only
def test_the_simulated_driver_counts_who_has_retained_the_context() -> None:
    from support import sim_process as helper

    handle = helper.begin()
    active, flags, context = c_int(), driver.c_uint(), driver.CUcontext()
    driver.cuDevicePrimaryCtxRetain(context, 0)
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuDevicePrimaryCtxGetState(0, flags, active)
    assert active.value, "the first one has it still"
    driver.cuCtxSetCurrent(handle)
    driver.cuDevicePrimaryCtxRelease(0)
    driver.cuCtxSetCurrent(None)


@pytest.mark.program_starts
def test_a_program_that_is_started_loads_nothing_of_the_library_before_the_driver_begins() -> None:
    code = (
        "import ctypes, resource, struct, sys, types\n"
        "before = set(sys.modules)\n"
        f"exec(open({worker_command()[-2]!r}).read(), {{'__name__': 'begin'}})\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=child_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [], "beside these, which the driver's binding needs"


def test_the_tables_of_all_libraries_are_loaded_with_the_engines_and_not_when_a_worker_is_adopted() -> None:
    code = (
        "import sys\n"
        "from atomr_trio._worker import registry\n"
        "libraries = [registration.library for registration, _ in registry.load().values()]\n"
        "print(*[name for name in libraries if name and f'atomr_cuda.{name}' not in sys.modules], len(libraries))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=child_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(len(registry.load()))]


def test_libraries_are_loaded_ahead_and_one_that_is_missing_is_left_to_its_first_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[str] = []

    def missing() -> None:
        raise LibraryMissing("cublas", "cu13", ())

    monkeypatch.setattr(cublas, "library", SimpleNamespace(functions={"one": SimpleNamespace(bind=missing)}))
    found = SimpleNamespace(bind=lambda: loaded.append("nccl"))
    monkeypatch.setattr(nccl, "library", SimpleNamespace(functions={"one": found, "two": found}))
    registry.load_libraries(["blas", "nccl"])
    assert loaded == ["nccl"]


@pytest.mark.program_starts
async def test_the_steps_of_a_start_are_noted_on_both_sides(open_test_device) -> None:
    begun = time.monotonic()
    async with open_test_device(workers=None) as dev:
        moments = core_of(dev).current.process.moments
    assert list(moments)[:3] == ["asked for", "started", "greeting read"]
    steps = ["asked for", "imported", "engines imported", "addresses reserved", "adopted", "host memory registered"]
    steps += ["lanes opened", "engines made", "memory imported", "self-test", "facts asked", "ready read"]
    times = [moments[step] for step in steps]
    assert begun <= times[0]
    assert times == sorted(times)
    assert times[-1] <= time.monotonic()


PROGRAM = """
import sys
{before}
sys.argv = ["begin.py", "7", "8", "sim", "0", "9", "10", {last!r}]
import atomr_trio._worker.main as worker
worker.main = lambda arguments, ahead: print(arguments, ahead)
exec(open({begin!r}).read())
print("site" in sys.modules, sys.flags.no_site)
"""


@pytest.mark.parametrize("last", [begin.WITH_SITE, ""])
def test_a_worker_makes_up_for_the_settings_of_the_site_unless_its_parent_has_none(last: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    code = PROGRAM.format(before="", last=last, begin=str(begin.__file__))
    environment = child_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-P", "-S", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    expected = ["customized"] * bool(last) + ["['7', '8', 'sim', '0', '9', '10'] None", f"{bool(last)} 1"]
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("flags", [[], ["-S"], ["-s"]])
def test_the_command_of_a_worker_leaves_out_the_site_and_says_whether_it_is_wanted(flags: list[str]) -> None:
    code = "from atomr_trio._wire.starting import worker_command; print(*worker_command('x'), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-P", *flags, "-c", code], env=child_environment(), capture_output=True, text=True, check=True
    )
    _, *command = done.stdout.split("\n")[:-1]
    user = ["-s"] * ("-s" in flags)
    wanted = "" if "-S" in flags else begin.WITH_SITE
    assert command == ["-P", "-S", *user, "-X", "faulthandler", str(begin.__file__), "x", wanted]
