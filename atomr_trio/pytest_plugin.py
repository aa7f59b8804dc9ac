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
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import pytest

if TYPE_CHECKING:
    from . import ContextWasLost, Device, DeviceEvent, Devices, Finding, plain
    from .testing import PoolStatistics, WorkerPool, WorkerPools

HANG_TIMEOUT = 60.0
"""Seconds that one command may run in a test, unless ``--gpu-hang-timeout`` says otherwise."""

MARKERS = (
    "gpu_faults: the test loses the context of its device, or of one of a group, on purpose, and does not fail by that",
    "gpus(count): the test needs so many GPUs, which devices and plain_devices open; it is skipped with fewer",
)

_CLOSE_TIMEOUT = 5.0
"""Seconds; nothing runs any more by then, but a busy machine may take long to reset a worker."""

_EVENTS = 1000
"""The most events of one test that are kept."""

_COLLECTING = logging.INFO - 1
"""The level of the devices' log while it is collected; no test would choose it."""

_AWAITED = {"gpu_device": "plain_gpu_device", "devices": "plain_devices"}
"""The fixtures of async tests, and those that a test without async takes instead."""
_OPENING = {*_AWAITED, *_AWAITED.values()}
"""The fixtures that open devices."""

Face = TypeVar("Face", bound="Device | Devices")
PlainFace = TypeVar("PlainFace", bound="plain.Device | plain.Devices")


class _Record:
    """What the devices of one test have told."""

    def __init__(self) -> None:
        self.losses: list[str] = []
        """The lost contexts, in words."""
        self.findings: list[Finding] = []
        """What the simulator's checks have found."""
        self.ends: list[Callable[[], None]] = []
        """What is to be called at the end of the test itself, before its fixtures end."""
        self.no_device: str | None = None
        """The error of a machine that has no device to open."""
        self.is_cut_off = False
        """True if the user has interrupted the test: what it has started is not waited for."""


_record: pytest.StashKey[_Record] = pytest.StashKey()
_without: pytest.StashKey[str] = pytest.StashKey()
"""The first test that found no device to open."""
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
    and every later test that asks for it fails too. Where a machine has no device, the first test tells it.
    """
    ours = _ours(item)
    for name in ours:
        if name in _AWAITED and not _is_run_by_trio(item):
            _refuse_awaited(name)
    wanted = _wanted_gpus(item)
    if wanted is not None:
        count = _count_once(item.config)
        if count < wanted:
            pytest.skip(f"{item.name} needs {wanted} GPUs, and {count} {'is' if count == 1 else 'are'} there")
    if _without in item.config.stash and not _OPENING.isdisjoint(ours):
        pytest.fail(f"no device can be opened: {item.config.stash[_without]} tells why", pytrace=False)
    item.stash[_record] = _Record()


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
    from . import open_device

    async with _awaited(request.node, open_device(gpu_worker_pool.index, **_options(request, gpu_worker_pool))) as dev:
        yield dev


@pytest.fixture
async def devices(request: pytest.FixtureRequest, gpu_worker_pools: WorkerPools) -> AsyncIterator[Devices]:
    """A group of devices for one test: as many as its mark ``gpus`` says, or all that there are.

    They are opened like `gpu_device`, and with the strategy `"one_for_one"`.
    """
    from . import open_devices

    async with _awaited(
        request.node, open_devices(_indices(request), **_group_options(request, gpu_worker_pools))
    ) as group:
        yield group


@pytest.fixture
def plain_gpu_device(request: pytest.FixtureRequest, gpu_worker_pool: WorkerPool) -> Iterator[plain.Device]:
    """The device of `gpu_device` for a test without async: its verbs are those of `atomr_trio.start`."""
    from . import start

    options = _options(request, gpu_worker_pool)
    yield from _blocking(request.node, "plain_gpu_device", lambda: start(gpu_worker_pool.index, **options))


@pytest.fixture
def plain_devices(request: pytest.FixtureRequest, gpu_worker_pools: WorkerPools) -> Iterator[plain.Devices]:
    """The group of `devices` for a test without async: its verbs are those of `atomr_trio.start_devices`."""
    from . import start_devices

    options = _group_options(request, gpu_worker_pools)
    yield from _blocking(request.node, "plain_devices", lambda: start_devices(_indices(request), **options))


def _options(request: pytest.FixtureRequest, pool: WorkerPool | WorkerPools) -> dict[str, Any]:
    """Return how the devices of tests are opened."""
    from . import RestartPolicy

    return {
        "backend": pool.backend,
        "workers": pool,
        "hang_timeout": request.config.getoption("gpu_hang_timeout"),
        "close_timeout": _CLOSE_TIMEOUT,
        "restart_policy": RestartPolicy(intensity=math.inf),
        "guarded": True,
    }


def _group_options(request: pytest.FixtureRequest, pools: WorkerPools) -> dict[str, Any]:
    options = _options(request, pools)
    return {**options, "group_policy": options["restart_policy"]}


def _indices(request: pytest.FixtureRequest) -> range:
    """Return the indices of the devices of a group."""
    from ._generation.process import MAX_DEVICES

    count = _wanted_gpus(request.node) or min(_count_once(request.config), MAX_DEVICES)
    return range(max(1, count))


@contextlib.asynccontextmanager
async def _awaited(item: pytest.Item, opening: AbstractAsyncContextManager[Face]) -> AsyncIterator[Face]:
    """Open a device or a group for a test of trio, and note what it loses."""
    with _collected_output(item, "call"), contextlib.ExitStack() as stack, _own_advice(item):
        async with opening as face:
            events = stack.enter_context(face.events(buffer=_EVENTS))
            yield face
            await _come_to_rest(face)
        _note_losses(item, events._take_waiting())


def _blocking(item: pytest.Item, name: str, opening: Callable[[], PlainFace]) -> Iterator[PlainFace]:
    """Open a device or a group for a test without async, and note what it loses.

    pytest reports such a test before its fixtures end. So the device is closed at the end of the test itself, unless
    another fixture is built on it, whose end may need it.
    """
    from . import DeviceError

    record = _record_of(item)
    with _collected_output(item, "teardown") as show_output:
        try:
            with _own_advice(item):
                face = opening()
        except DeviceError:
            if record.no_device is not None:
                raise pytest.fail.Exception(record.no_device, pytrace=False) from None
            raise
        with face:
            events = face.events(buffer=_EVENTS).__enter__().awaited
            asked = [definition.argnames for definition in _definitions(item)]
            stays_open = name not in getattr(item, "fixturenames", ()) or any(name in names for names in asked)

            def rest(*, closes: bool) -> None:
                try:
                    with contextlib.suppress(DeviceError):  # the test has closed it, or it has failed
                        if not record.is_cut_off:
                            face.run(_come_to_rest, face)
                    if closes:
                        face.close()
                finally:
                    _note_losses(item, events._take_waiting())

            def end_test() -> None:
                rest(closes=not stays_open)
                show_output("call")

            record.ends.append(end_test)
            yield face
            before = len(record.losses)
            rest(closes=True)
        _fail_by(item, record.losses[before:])


@contextlib.contextmanager
def _own_advice(item: pytest.Item) -> Iterator[None]:
    """Have an error that advises the simulator name the option of pytest, and note that the machine has no device."""
    from . import DeviceError
    from ._wire.machine import IN_PYTHON

    try:
        yield
    except DeviceError as error:
        if error.advice is not None and IN_PYTHON in error.advice:
            error.advice = error.advice.replace(IN_PYTHON, "pytest --gpu-backend=sim")
            _record_of(item).no_device = str(error)
            item.config.stash.setdefault(_without, item.nodeid)
        raise


async def _come_to_rest(face: Device | Devices) -> None:
    """Wait for work that the test has left unfinished: a fault in it belongs to this test."""
    from . import Device, DeviceState
    from ._supervision.realtime import RealTimer

    with RealTimer(0.002) as timer:
        for device in [face] if isinstance(face, Device) else face:
            while device.state is DeviceState.RUNNING and any(lane.unfinished for lane in device.statistics().lanes):
                await timer.tick()


def _note_losses(item: pytest.Item, events: Iterable[DeviceEvent]) -> None:
    """Note the contexts that the devices of a test have lost, other than by a restart that it asked for."""
    from . import ContextWasLost, MemberEvent
    from ._device.device import RESTARTER

    record = _record_of(item)
    for event in events:
        told, whose = (event.event, f"device {event.device}: ") if isinstance(event, MemberEvent) else (event, "")
        if isinstance(told, ContextWasLost) and told.reported_by != RESTARTER:
            record.losses.append(whose + _in_full(told))
            record.findings.extend(told.findings)


def _record_of(item: pytest.Item) -> _Record:
    return item.stash.setdefault(_record, _Record())


@contextlib.contextmanager
def _collected_output(item: pytest.Item, when: str) -> Iterator[Callable[[str], None]]:
    """Show the device's output in the report of a part of a test, in addition to the usual log.

    Yields a function that shows it before the end, for another part.
    """
    logger = logging.getLogger("atomr_trio.device")
    level = logging.NOTSET if logger.level == _COLLECTING else logger.level
    logger.setLevel(level)
    threshold = logger.getEffectiveLevel()
    lines: list[str] = []

    def show(when: str) -> None:
        if lines:
            item.add_report_section(when, "gpu output", "\n".join(lines))
            lines.clear()

    def collect(record: logging.LogRecord) -> bool:
        lines.append(record.getMessage())
        return logger.level != _COLLECTING or record.levelno >= threshold

    logger.addFilter(collect)
    if threshold > logging.INFO:
        logger.setLevel(_COLLECTING)
    try:
        yield show
    finally:
        logger.removeFilter(collect)
        if logger.level == _COLLECTING:  # otherwise the test has set another
            logger.setLevel(level)
        show(when)


def _ours(item: pytest.Item) -> list[str]:
    """Return the fixtures of this file that a test asks for, itself or through other fixtures, by name."""
    return [each.argname for each in _definitions(item) if each.func.__module__ == __name__]


def _definitions(item: pytest.Item) -> Iterator[pytest.FixtureDef[Any]]:
    """Return the definitions of the fixtures that a test asks for, itself or through other fixtures."""
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    for name in getattr(item, "fixturenames", ()):
        for definition in reversed(known.get(name, ())):
            yield definition
            if name not in definition.argnames:
                break  # else it is one that asks for the fixture of the same name that it hides


def _is_run_by_trio(item: pytest.Item) -> bool:
    plugins = item.config.pluginmanager
    installed = plugins.has_plugin("trio") or plugins.has_plugin("pytest_trio.plugin")
    return installed and item.get_closest_marker("trio") is not None


def _refuse_awaited(name: str) -> NoReturn:
    pytest.fail(
        f"{name} is for async tests that pytest-trio runs: install pytest-trio, and set trio_mode = true in pytest's "
        f"settings, or mark the test with @pytest.mark.trio. A test without async takes {_AWAITED[name]}.",
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
    record = _record_of(item)
    try:
        try:
            result = yield
        except (KeyboardInterrupt, pytest.exit.Exception):
            record.is_cut_off = True
            raise
        finally:
            for end in record.ends:
                end()
    except Exception:
        if record.no_device is not None:
            raise pytest.fail.Exception(record.no_device, pytrace=False) from None
        raise
    finally:
        if record.losses:
            item.add_report_section("call", "gpu faults", "\n".join(record.losses))
    _fail_by(item, record.losses)
    if record.findings:  # and the test is marked to lose contexts, and has passed
        from ._values.findings import expect_findings

        expect_findings(record.findings)
    return result


def _fail_by(item: pytest.Item, losses: Sequence[str]) -> None:
    """Fail a test that has passed and has lost contexts, unless it is marked to lose them."""
    if losses and item.get_closest_marker("gpu_faults") is None:
        text = "the test passed, but its device did not:"
        advice = "if it is meant to do that, mark it with @pytest.mark.gpu_faults"
        pytest.fail("\n".join((text, *losses, advice)), pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the number of processes that the tests have used."""
    if _summary in config.stash:
        terminalreporter.write_sep("-", "gpu workers")
        for line in config.stash[_summary]:
            terminalreporter.write_line(line)


def _in_full(loss: ContextWasLost) -> str:
    from ._values.errors import in_flight_in_words

    in_flight = in_flight_in_words(loss.in_flight)
    others = "".join(f"\n  {finding}" for finding in loss.findings[1:])
    return f"generation {loss.generation} was lost: {loss.reason} (in flight: {in_flight}){others}"


def _in_words(now: PoolStatistics) -> str:
    return f"{now.started} started, {now.reused} reused; devices that waited for a start: {now.missed}"
