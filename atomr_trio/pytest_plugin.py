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
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from . import ContextWasLost, Device, Devices
    from .testing import PoolStatistics, WorkerPool, WorkerPools

HANG_TIMEOUT = 60.0
"""Seconds that one command may run in a test, unless ``--gpu-hang-timeout`` says otherwise."""

MARKERS = (
    "gpu_faults: the test loses the context of its gpu_device or devices on purpose, and does not fail by that alone",
    "gpus(count): the test needs so many GPUs, which the fixture devices opens; it is skipped where there are fewer",
)

_CLOSE_TIMEOUT = 5.0
"""Seconds; nothing runs any more by then, but a busy machine may take long to reset a worker."""

_EVENTS = 1000
"""The most events of one test that are kept."""

_COLLECTING = logging.INFO - 1
"""The level of the devices' log while it is collected; no test would choose it."""

_AWAITED = ("gpu_device", "devices")
"""The fixtures of async tests."""

_losses: pytest.StashKey[list[str]] = pytest.StashKey()
_summary: pytest.StashKey[list[str]] = pytest.StashKey()
_count: pytest.StashKey[int] = pytest.StashKey()


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
    """Register the markers."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


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


def _count_once(config: pytest.Config) -> int:
    """Return the number of devices, which is asked for once in a session."""
    if _count not in config.stash:
        from ._values.backends import chosen_backend

        config.stash[_count] = _count_devices(chosen_backend(config.getoption("gpu_backend")))
    return config.stash[_count]


def _wanted_gpus(item: Any) -> int | None:
    """Return the number of GPUs that a test is marked with; None without a mark."""
    marker = item.get_closest_marker("gpus")
    if marker is None:
        return None
    match marker.args:
        case (int(count),) if count >= 1 and not marker.kwargs and not isinstance(count, bool):
            return count
    raise pytest.UsageError(f"{item.nodeid}: the mark gpus takes a number of GPUs, as in @pytest.mark.gpus(2)")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that is marked with more GPUs than there are, and refuse one that cannot have its fixtures.

    It is refused before any fixture is set up: where one fails in pytest-trio's hands, pytest keeps finalizers of it,
    and every later test that asks for it fails too.
    """
    for name in _ours(item):
        if name in _AWAITED and not _is_run_by_trio(item):
            _refuse_awaited(name)
    wanted = _wanted_gpus(item)
    if wanted is not None:
        count = _count_once(item.config)
        if count < wanted:
            pytest.skip(f"{item.name} needs {wanted} GPUs, and {count} {'is' if count == 1 else 'are'} there")


# --- fixtures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def gpu_worker_pool(pytestconfig: pytest.Config) -> Iterator[WorkerPool]:
    """The `atomr_trio.testing.WorkerPool` of the session, for tests that open devices themselves."""
    from ._values.backends import chosen_backend
    from .testing import WorkerPool

    backend = chosen_backend(pytestconfig.getoption("gpu_backend"))
    with WorkerPool(_device_index(pytestconfig.getoption("gpu_index"), backend), backend) as pool:
        yield pool
        line = f"device {pool.index} ({backend}): {_in_words(pool.statistics())}"
        pytestconfig.stash.setdefault(_summary, []).append(line)


@pytest.fixture(scope="session")
def gpu_worker_pools(pytestconfig: pytest.Config) -> Iterator[WorkerPools]:
    """The `atomr_trio.testing.WorkerPools` of the session, for tests that open groups of devices themselves."""
    from ._values.backends import chosen_backend
    from .testing import WorkerPools

    backend = chosen_backend(pytestconfig.getoption("gpu_backend"))
    with WorkerPools(backend) as pools:
        yield pools
        lines = [f"device {index} of groups: {_in_words(now)}" for index, now in pools.statistics().items()]
        pytestconfig.stash.setdefault(_summary, []).extend(lines)


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
        told = [_in_full(loss) for loss in losses if loss.reported_by != RESTARTER]
        request.node.stash.setdefault(_losses, []).extend(told)


@pytest.fixture
async def devices(request: pytest.FixtureRequest, gpu_worker_pools: WorkerPools) -> AsyncIterator[Devices]:
    """A group of devices for one test: as many as its mark ``gpus`` says, or all that there are.

    They are opened like `gpu_device`, and with the strategy `"one_for_one"`.
    """
    from . import ContextWasLost, MemberEvent, RestartPolicy, open_devices
    from ._device.device import RESTARTER
    from ._generation.process import MAX_DEVICES

    count = _wanted_gpus(request.node) or min(_count_once(request.config), MAX_DEVICES)
    never = RestartPolicy(intensity=math.inf)
    with _collected_output(request.node), contextlib.ExitStack() as stack, _own_advice():
        async with open_devices(
            range(max(1, count)),
            backend=gpu_worker_pools.backend,
            workers=gpu_worker_pools,
            hang_timeout=request.config.getoption("gpu_hang_timeout"),
            close_timeout=_CLOSE_TIMEOUT,
            restart_policy=never,
            group_policy=never,
            guarded=True,
        ) as group:
            events = stack.enter_context(group.events(buffer=_EVENTS))
            yield group
            for device in group:
                await _come_to_rest(device)
        found = [event async for event in events if isinstance(event, MemberEvent)]
        losses = [(each.device, each.event) for each in found if isinstance(each.event, ContextWasLost)]
        told = [f"device {index}: {_in_full(loss)}" for index, loss in losses if loss.reported_by != RESTARTER]
        request.node.stash.setdefault(_losses, []).extend(told)


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


def _ours(item: pytest.Item) -> list[str]:
    """Return the fixtures of this file that a test asks for, itself or through other fixtures, by name."""
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    asked: list[str] = getattr(item, "fixturenames", [])
    return [name for name in asked if _leads_here(name, known.get(name, ()))]


def _leads_here(name: str, definitions: Sequence[pytest.FixtureDef[Any]]) -> bool:
    """Return whether a fixture is that of this file, or a user's of the same name that asks for it."""
    for definition in reversed(definitions):
        if definition.func.__module__ == __name__:
            return True
        if name not in definition.argnames:
            break
    return False


def _is_run_by_trio(item: pytest.Item) -> bool:
    plugins = item.config.pluginmanager
    installed = plugins.has_plugin("trio") or plugins.has_plugin("pytest_trio.plugin")
    return installed and item.get_closest_marker("trio") is not None


def _refuse_awaited(name: str) -> NoReturn:
    pytest.fail(
        f"{name} is for async tests that pytest-trio runs: install pytest-trio, and set trio_mode = true in pytest's "
        "settings, or mark the test with @pytest.mark.trio",
        pytrace=False,
    )


@pytest.hookimpl(tryfirst=True)  # before pytest-trio, whose error helps less
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> None:
    """Refuse what `pytest_runtest_setup` could not see: a test without async that asks by `request.getfixturevalue`."""
    ours = fixturedef.argname in _AWAITED and fixturedef.func.__module__ == __name__
    if ours and not _is_run_by_trio(request.node):
        try:
            _refuse_awaited(fixturedef.argname)
        except pytest.fail.Exception as refused:
            # As pytest does when a fixture fails: without it the fixture would be broken for the tests that follow.
            key = getattr(request, "param", None)
            fixturedef.cached_result = (None, key, (refused, refused.__traceback__))
            raise


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
        for line in config.stash[_summary]:
            terminalreporter.write_line(line)


def _in_full(loss: ContextWasLost) -> str:
    in_flight = ", ".join(loss.in_flight) or "nothing"
    others = "".join(f"\n  {finding}" for finding in loss.findings[1:])
    return f"generation {loss.generation} was lost: {loss.reason} (in flight: {in_flight}){others}"


def _in_words(now: PoolStatistics) -> str:
    return f"{now.started} started, {now.reused} reused; devices that waited for a start: {now.missed}"
