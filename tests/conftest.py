"""The suite runs on one backend at a time, chosen by ATOMR_TRIO_TEST_BACKEND (sim, the default, or gpu).

On the GPU a missing device ends the run with a failure: a suite that skips everything would look green.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import trio

import support
from atomr_trio._generation import process
from atomr_trio._supervision.mailbox import Request
from atomr_trio._supervision.states import RequestState, check_change
from atomr_trio._transfers import reading
from support import halves, template

if TYPE_CHECKING:
    from atomr_trio import Device
    from atomr_trio.testing import WorkerPool

# The same examples in every run, so that a change is blamed for what it broke and for nothing else. To look further:
# `make sweep` draws more, HYPOTHESIS_PROFILE=default others each time, and =thorough twenty times as many as those two.
# How long an example takes, and how fast they are drawn, depends on what else the machine does.
UNHURRIED = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("default", UNHURRIED)
hypothesis.settings.register_profile(
    "deterministic", UNHURRIED, derandomize=True, max_examples=100 if support.SWEEP else 40
)
hypothesis.settings.register_profile("thorough", UNHURRIED, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "deterministic"))

collect_ignore = [*([] if support.ON_GPU else ["gpu"]), *([] if support.WHEEL else ["repository/test_wheel.py"])]

UNCOUNTED = {"bindings", "repository", "simulator"}
"""Folders whose tests are not about the package whose branches are counted: that takes as long again as they do."""

# Arrays of tests are small, and a thread for each core would cost every worker a tenth of a second of them all.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# What a test compiles is neither taken from the user's disk nor left there; tests of the cache name a folder.
os.environ["ATOMR_TRIO_CACHE_DIR"] = ""


class CheckedState:
    """Stands for the slot of a request's state, and refuses every change that the table of states does not have."""

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, request: Any, owner: type | None = None) -> Any:
        return self if request is None else self._slot.__get__(request, owner)

    def __set__(self, request: Any, state: RequestState) -> None:
        try:
            before = self._slot.__get__(request)
        except AttributeError:
            before = None
        check_change(before, state)
        self._slot.__set__(request, state)


def pytest_configure() -> None:
    """Check each change of a request's state; and hear Ctrl-C, which several tests press, also in the background.

    A shell that starts this in the background has it ignored.
    """
    setattr(Request, "state", CheckedState(Request.__dict__["state"]))  # noqa: B010  a slot is no attribute to mypy
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """Leave nothing open at the end of the interpreter."""
    template.end()


def pytest_report_header() -> list[str]:
    package = support.WHEEL or "as it is found, not the wheel of `make test`"
    return [f"atomr_trio backend: {support.chosen_backend()}", f"atomr_trio package: {package}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how much of the failure matrix was run, here or in processes of pytest-xdist."""
    passed = [dict(report.user_properties) for report in terminalreporter.stats.get("passed", ())]
    sizes = [properties["cells"] for properties in passed if "cells" in properties]
    if sizes:
        terminalreporter.write_line(f"matrix: {len(sizes)} of {sizes[0]} cells")


def is_halved_away(item: pytest.Item) -> bool:
    """Whether a case is left out of an ordinary run because it is a black square of its test's chessboard."""
    if support.SWEEP or not (support.HALVED or item.get_closest_marker("halved")) or not hasattr(item, "callspec"):
        return False
    marks = list(item.iter_markers("parametrize"))
    return halves.is_black(marks, item.callspec.params, fewest=1 if support.HALVED else 2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, on the GPU, what can only be asked of the simulator, and what is for `make sweep` elsewhere."""
    unwanted = [
        name
        for name, wanted in (("sim_only", not support.ON_GPU), ("sweep", support.SWEEP), ("long", support.LONG))
        if not wanted
    ]
    left_out = [item for item in items if any(map(item.get_closest_marker, unwanted)) or is_halved_away(item)]
    if left_out:
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Have no collection of garbage look through what thousands of tests are, which stays to the end."""
    gc.collect()
    gc.freeze()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Open the GPU once before anything is collected, so that its absence is one clear failure."""
    if not support.ON_GPU or session.config.option.collectonly:
        return

    async def open_once() -> None:
        async with support.open_test_device():
            pass

    try:
        trio.run(open_once)
    except Exception as error:
        pytest.exit(f"the GPU suite needs a working NVIDIA GPU: {type(error).__name__}: {error}", returncode=1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Count no branches in tests of `UNCOUNTED`: the mark of pytest-cov does nothing in processes of pytest-xdist."""
    counting = sys.gettrace()
    if item.path.relative_to(Path(__file__).parent).parts[0] in UNCOUNTED:
        sys.settrace(None)
    try:
        return (yield)
    finally:
        if sys.gettrace() is not counting:
            sys.settrace(counting)


@pytest.fixture
def backend() -> str:
    """The backend of this run, as `open_device` names it: "sim" or "cuda"."""
    return support.chosen_backend()


@pytest.fixture
def open_test_device() -> Callable[..., AbstractAsyncContextManager[Device]]:
    """`open_device` with the backend filled in, for a test that needs options or several devices."""
    return support.open_test_device


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies go the ways that they go where workers cannot read the memory of this process."""
    monkeypatch.setattr(reading, "is_of_numpy", lambda _: False)


@pytest.fixture
def kept_compiles(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test compiles is kept for the others of this run that ask for this: it is not about compiling.

    Without a folder, a source that includes headers is compiled anew for each device. All processes of a run have one.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", str(base / "kept-compiles"))


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    """Workers for the tests of the whole run; one that a test has lost is started anew for the next."""
    from atomr_trio.testing import WorkerPool

    with WorkerPool(backend=support.chosen_backend(), spares=0) as made:
        yield made


@pytest.fixture
async def dev(pool: WorkerPool) -> AsyncIterator[Device]:
    """One open device with every option at its default, whose worker may have served another test.

    To start a worker for each test takes longer than most tests do.
    """
    async with support.open_test_device(workers=None if support.FRESH else pool) as device:
        yield device


@pytest.fixture(autouse=True)
def started_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make the simulator's workers as copies of one process, but for a test with the mark ``program_starts``."""
    copied = None if support.ON_GPU or support.FRESH else template.template()
    if copied is None or request.node.get_closest_marker("program_starts"):
        yield
        return
    process.start_child = copied.start_child
    yield
    process.start_child = template.start_program


@pytest.fixture(autouse=True)
def used_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have every device of a marked test take a worker that may have served another one."""
    if request.node.get_closest_marker("used_workers") and not support.FRESH:
        support.used_workers = request.getfixturevalue("pool")
    yield
    support.used_workers = None
