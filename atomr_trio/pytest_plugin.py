"""The pytest plugin: a device for each test, from a pool of workers that outlives the tests.

It is installed with the package, so pytest loads it in every suite of that environment. Therefore importing this file
imports pytest and nothing heavier; the rest is imported by the first test that asks for a device.

Only the test that loses the context fails, with the device's own error: by the `ContextLost` that it raises, or, if it
caught that, by the event that the plugin has received from the device.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from . import ContextWasLost, Device
    from .testing import PoolStatistics, WorkerPool

HANG_TIMEOUT = 60.0
"""Seconds that one command may run in a test, unless ``--gpu-hang-timeout`` says otherwise."""

MARKER = "gpu_faults: the test loses the context of its gpu_device on purpose, and does not fail by that alone"

_CLOSE_TIMEOUT = 5.0
"""Seconds; nothing runs any more by then, but a busy machine may take long to reset a worker."""

_EVENTS = 1000
"""The most events of one test that are kept."""

_COLLECTING = logging.INFO - 1
"""The level of the devices' log while it is collected; no test would choose it."""

_losses: pytest.StashKey[list[str]] = pytest.StashKey()
_summary: pytest.StashKey[str] = pytest.StashKey()


# --- options ----------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the device of the tests."""
    from ._wire.backends import BACKENDS

    group = parser.getgroup("gpu", "tests on a GPU (atomr_trio)")
    group.addoption(
        "--gpu-backend",
        choices=tuple(BACKENDS),
        help="cuda (gpu means the same), or sim, the simulator; by default the value of ATOMR_TRIO_BACKEND, else cuda",
    )
    group.addoption(
        "--gpu-index",
        type=lambda text: text if text == "auto" else int(text),
        default=0,
        metavar="N|auto",
        help="number of the device; auto spreads the processes of pytest-xdist over all of them (default: 0)",
    )
    group.addoption(
        "--gpu-hang-timeout",
        type=float,
        default=HANG_TIMEOUT,
        metavar="SECONDS",
        help=f"seconds that one command may run before its worker is killed (default: {HANG_TIMEOUT:g})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


def _device_index(wanted: int | str, backend: str) -> int:
    """Return the index of the device for this process: the given one, or with auto one of all devices."""
    if isinstance(wanted, int):
        return wanted
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return int(worker) % max(1, _count_devices(backend))


def _count_devices(backend: str) -> int:
    if backend == "sim":
        text = os.environ.get("ATOMR_TRIO_SIM_DEVICES") or "1"
        if not text.isdecimal():
            raise pytest.UsageError(f"ATOMR_TRIO_SIM_DEVICES is {text!r}; it is a number of devices, such as 2")
        return int(text)
    from ._cli.doctor import ask_libraries

    return sum(library.get("devices", 0) for library in ask_libraries())  # in a process of its own


# --- fixtures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def gpu_worker_pool(pytestconfig: pytest.Config) -> Iterator[WorkerPool]:
    """The `atomr_trio.testing.WorkerPool` of the session, for tests that open devices themselves."""
    from ._values.backends import chosen_backend
    from .testing import WorkerPool

    backend = chosen_backend(pytestconfig.getoption("gpu_backend"))
    with WorkerPool(_device_index(pytestconfig.getoption("gpu_index"), backend), backend) as pool:
        yield pool
        pytestconfig.stash[_summary] = f"device {pool.index} ({backend}): {_in_words(pool.statistics())}"


@pytest.fixture
async def gpu_device(request: pytest.FixtureRequest, gpu_worker_pool: WorkerPool) -> AsyncIterator[Device]:
    """A device for one test, whose worker comes from `gpu_worker_pool`; for async tests that pytest-trio runs.

    Its arrays are guarded, it never gives up, and each command may run for ``--gpu-hang-timeout`` seconds.
    """
    from . import ContextWasLost, RestartPolicy, open_device
    from ._device.device import RESTARTER

    with _collected_output(request.node), contextlib.ExitStack() as stack, _own_advice():
        async with open_device(
            gpu_worker_pool.index,
            backend=gpu_worker_pool.backend,
            workers=gpu_worker_pool,
            hang_timeout=request.config.getoption("gpu_hang_timeout"),
            close_timeout=_CLOSE_TIMEOUT,
            restart_policy=RestartPolicy(intensity=math.inf),
            guarded=True,
        ) as device:
            events = stack.enter_context(device.events(buffer=_EVENTS))
            yield device
            await _come_to_rest(device)
        losses = [event async for event in events if isinstance(event, ContextWasLost)]
        request.node.stash[_losses] = [_in_full(loss) for loss in losses if loss.reported_by != RESTARTER]


@contextlib.contextmanager
def _own_advice() -> Iterator[None]:
    """Have an error that advises the simulator name the option of pytest."""
    from . import DeviceError
    from ._wire.machine import IN_PYTHON

    try:
        yield
    except DeviceError as error:
        if error.advice is not None:
            error.advice = error.advice.replace(IN_PYTHON, "pytest --gpu-backend=sim")
        raise


async def _come_to_rest(device: Device) -> None:
    """Wait for work that the test has left unfinished: a fault in it belongs to this test."""
    from . import DeviceState
    from ._supervision.realtime import RealTimer

    with RealTimer(0.002) as timer:
        while device.state is DeviceState.RUNNING and any(lane.unfinished for lane in device.statistics().lanes):
            await timer.tick()


@contextlib.contextmanager
def _collected_output(item: pytest.Item) -> Iterator[None]:
    """Show the device's output in the report of a test, in addition to the usual log."""
    logger = logging.getLogger("atomr_trio.device")
    level = logging.NOTSET if logger.level == _COLLECTING else logger.level
    logger.setLevel(level)
    threshold = logger.getEffectiveLevel()
    lines: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        lines.append(record.getMessage())
        return logger.level != _COLLECTING or record.levelno >= threshold

    logger.addFilter(collect)
    if threshold > logging.INFO:
        logger.setLevel(_COLLECTING)
    try:
        yield
    finally:
        logger.removeFilter(collect)
        if logger.level == _COLLECTING:  # otherwise the test has set another
            logger.setLevel(level)
        if lines:
            item.add_report_section("call", "gpu output", "\n".join(lines))


@pytest.hookimpl(tryfirst=True)  # before pytest-trio, whose error helps less
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> None:
    """Refuse a `gpu_device` in a test that is not an async test of pytest-trio."""
    ours = fixturedef.argname == "gpu_device" and fixturedef.func.__module__ == __name__
    if ours and request.node.get_closest_marker("trio") is None:
        pytest.fail(
            "gpu_device is for async tests that pytest-trio runs: install pytest-trio, and set trio_mode = true in "
            "pytest's settings, or mark the test with @pytest.mark.trio",
            pytrace=False,
        )


# --- reports -----------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test whose device has lost a context, if it does not fail by itself."""
    try:
        result = yield
    finally:
        losses = item.stash.get(_losses, [])
        if losses:
            item.add_report_section("call", "gpu faults", "\n".join(losses))
    if losses and item.get_closest_marker("gpu_faults") is None:
        text = "the test passed, but its device did not:"
        advice = "if it is meant to do that, mark it with @pytest.mark.gpu_faults"
        pytest.fail("\n".join((text, *losses, advice)), pytrace=False)
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the number of processes that the tests have used."""
    if _summary in config.stash:
        terminalreporter.write_sep("-", "gpu workers")
        terminalreporter.write_line(config.stash[_summary])


def _in_full(loss: ContextWasLost) -> str:
    in_flight = ", ".join(loss.in_flight) or "nothing"
    others = "".join(f"\n  {finding}" for finding in loss.findings[1:])
    return f"generation {loss.generation} was lost: {loss.reason} (in flight: {in_flight}){others}"


def _in_words(now: PoolStatistics) -> str:
    return f"{now.started} started, {now.reused} reused; devices that waited for a start: {now.missed}"
