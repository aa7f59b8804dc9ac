"""Programs that make it hard to keep a worker: what they do to their children, their modules and their descriptors."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import trio

from atomr_trio import CompileError, DeviceFailed, InvalidArgument, NvrtcCache, NvrtcOptions, StandbyReady, link
from atomr_trio.__main__ import main
from atomr_trio._cli import doctor
from atomr_trio._compiling import linker
from atomr_trio._generation.process import NUMBER_VARIABLE, WorkerProcess
from atomr_trio._wire.starting import environment
from atomr_trio.testing import WorkerPool
from support import chosen_backend, open_test_device
from support.rogue import compile_rogue, kill_worker, next_generation, until, worker_pid

pytestmark = pytest.mark.program_starts

DEADLINE = 300
HOST = np.arange(5)
UNKNOWN = "unknown status"

# --- children ---------------------------------------------------------------------------------------------------------


def reap_every_child(*_: object) -> None:
    """The handler of many a program."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@pytest.fixture(params=[signal.SIG_IGN, reap_every_child], ids=["ignored", "handled"])
def sigchld(request: pytest.FixtureRequest) -> Iterator[None]:
    """A program that leaves no child to be waited for."""
    before = signal.signal(signal.SIGCHLD, request.param)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.fixture
def no_child_left() -> Iterator[None]:
    """The kernel reaps every child of the program, so nobody can ask for its status."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


def wait_for_end(process: WorkerProcess) -> None:
    poll = select.poll()
    poll.register(process.pidfd, select.POLLIN)
    assert poll.poll(DEADLINE * 1000)


@pytest.mark.usefixtures("sigchld")
async def test_a_device_is_lost_rebuilt_and_closed_in_a_program_that_reaps_every_child(open_test_device):
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            x = await dev.to_device(HOST)
            kill_worker(dev)
            await next_generation(dev, 1)
            assert UNKNOWN in (dev.statistics().last_error or "")
            assert (await x.to_host() == HOST).all()


@pytest.mark.usefixtures("no_child_left")
def test_a_pool_of_workers_is_used_and_closed_in_a_program_that_reaps_every_child():
    async def use(pool: WorkerPool) -> int:
        with trio.fail_after(DEADLINE):
            async with open_test_device(workers=pool) as dev:
                assert (await (await dev.to_device(HOST)).to_host() == HOST).all()
                return worker_pid(dev)

    with WorkerPool(backend=chosen_backend(), spares=0) as pool:
        first = trio.run(use, pool)
        pool._idle[0].process.kill()
        wait_for_end(pool._idle[0].process)
        assert trio.run(use, pool) != first


def test_a_worker_that_somebody_else_has_reaped_is_gone_and_is_not_killed_again(backend):
    process = WorkerProcess(backend, 0)
    assert not process.reap()
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    process.kill()
    assert process.reap()
    assert UNKNOWN in process.end_text()
    assert UNKNOWN in repr(process)
    process.kill()
    process.close()


def test_how_a_worker_ended_is_told_by_whoever_reaps_it(backend):
    process = WorkerProcess(backend, 13)
    wait_for_end(process)
    assert process.reap()
    assert process.reap()
    assert process.end_text().startswith("exited with status 70")
    process.close()


@pytest.mark.usefixtures("no_child_left")
def test_a_linker_that_dies_in_a_program_that_ignores_its_children_is_no_success(monkeypatch):
    """`subprocess` says of such a child that it has ended with 0."""
    monkeypatch.setattr(linker, "command", lambda *_: [sys.executable, "-c", "import os; os.abort()"])
    with pytest.raises(CompileError, match="its answer is not whole"):
        link([".version 8.0\n.target sm_80\n.address_size 64\n"], arch="sm_80")


@pytest.mark.usefixtures("no_child_left")
def test_the_check_command_tells_the_status_of_a_program_although_children_were_ignored(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit(3)")
    assert main(["check", str(program)]) == 3


# --- what a worker prints while it starts -----------------------------------------------------------------------------

PRINT_MUCH = """
import sys
if any(each.endswith("_worker/begin.py") for each in sys.orig_argv):
    for _ in range(1000):
        sys.stderr.write("more than any pipe has room for, " * 25 + "\\n")
"""


@pytest.fixture
def talkative(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every worker prints 800 KiB before it does anything."""
    (tmp_path / "sitecustomize.py").write_text(PRINT_MUCH)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("talkative")
async def test_workers_that_print_much_while_they_start_open_stand_by_and_rebuild(open_test_device, caplog):
    caplog.set_level(logging.INFO, "atomr_trio.device")
    with trio.fail_after(DEADLINE):
        async with open_test_device(standby=1) as dev, dev.events() as events:
            x = await dev.to_device(HOST)
            while not isinstance(await anext(events), StandbyReady):
                pass
            kill_worker(dev)
            await next_generation(dev, 1)
            assert (await x.to_host() == HOST).all()
            kill_worker(dev)
            await next_generation(dev, 2)
            assert (await x.to_host() == HOST).all()
    assert len(printed(caplog)) >= 3000
    assert set(map(len, printed(caplog))) == {825}


def printed(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "atomr_trio.device"]


@pytest.mark.usefixtures("talkative")
def test_spares_of_a_pool_that_print_much_while_they_start_serve():
    async def use(pool: WorkerPool) -> int:
        with trio.fail_after(DEADLINE):
            async with open_test_device(workers=pool) as dev:
                return worker_pid(dev)

    with WorkerPool(backend=chosen_backend()) as pool:
        first = trio.run(use, pool)
        pool._idle.rotate()
        assert trio.run(use, pool) != first


async def test_what_a_kernel_prints_without_a_newline_is_logged_in_parts(open_test_device, caplog):
    caplog.set_level(logging.INFO, "atomr_trio.device")
    source = f'extern "C" __global__ void dots(int n) {{ while (n--) printf("{"." * 40}"); }}'
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            dots = await dev.nvrtc.compile(source, "dots")
            await dots.launch(1, 1, 1000)
            await until(lambda: len(printed(caplog)) == 2)
    lengths = [len(part) for part in printed(caplog)]
    assert lengths == [16384, 16384, 40000 - 2 * 16384]


# --- modules and interpreters -----------------------------------------------------------------------------------------


async def works(**options: Any) -> None:
    with trio.fail_after(DEADLINE):
        async with open_test_device(**options) as dev:
            assert (await (await dev.to_device(HOST)).to_host() == HOST).all()


async def test_entries_of_the_module_path_that_python_passes_over_do_no_harm(monkeypatch):
    entries: list[Any] = [pathlib.Path("/somewhere"), None, b"/bytes", 5, "/null\0byte", "/lone\ud800surrogate", "/a:b"]
    monkeypatch.setattr(sys, "path", [*entries, *sys.path, *entries])
    listed = environment()["PYTHONPATH"].split(os.pathsep)
    assert not {"/somewhere", "None", "/bytes", "/a", "b"}.intersection(listed)
    await works()


def test_modules_that_were_found_in_the_current_folder_are_found_by_a_worker(monkeypatch):
    import atomr_cuda
    import atomr_sim
    import atomr_trio

    homes = [str(pathlib.Path(module.__file__ or "").parents[1]) for module in (atomr_trio, atomr_cuda, atomr_sim)]
    monkeypatch.setattr(sys, "path", ["", *(path for path in sys.path if os.path.abspath(path) not in homes)])
    assert environment()["PYTHONPATH"].split(os.pathsep)[-len(set(homes)) :] == list(dict.fromkeys(homes))


@pytest.mark.parametrize("executable", [None, "", "/no/such/python", "/", 5])
async def test_without_an_interpreter_the_error_says_what_is_missing(monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(DeviceFailed, match=r"sys\.executable is .*must be the path of the Python interpreter"):
        await works()
    with pytest.raises(CompileError, match=r"could not be started: sys\.executable is"):
        link([".version 8.0\n.target sm_80\n.address_size 64\n"], arch="sm_80")


async def test_an_executable_that_is_no_interpreter_is_quoted(monkeypatch, tmp_path):
    (tmp_path / "program").write_text("#!/bin/sh\necho the program has no option $1\nexit 2\n")
    (tmp_path / "program").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "program"))
    words = "exited with status 2 while it started; its last words: the program has no option -P"
    with pytest.raises(DeviceFailed, match=words):
        await works()


async def test_a_frozen_program_is_not_started_as_its_own_worker(monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(DeviceFailed, match="this program is frozen"):
        await works()


async def test_a_worker_does_not_open_devices_and_so_on_for_ever(monkeypatch):
    """As where the program itself is taken for the interpreter, or a sitecustomize opens a device."""
    monkeypatch.setenv(NUMBER_VARIABLE, "1")
    with pytest.raises(DeviceFailed, match="this process is a worker itself"):
        await works()


async def test_warnings_that_are_errors_and_a_sitecustomize_that_raises_do_no_harm_to_a_worker(monkeypatch, tmp_path):
    warn = "import warnings\nwarnings.warn('an error, if PYTHONWARNINGS says so')\nimport no_such_module_at_all"
    (tmp_path / "sitecustomize.py").write_text(warn)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:strict")
    monkeypatch.setitem(os.environ, "ODD", "\udcff\udcfe")
    assert "PYTHONWARNINGS" not in environment()
    await works()


# --- folders and files ------------------------------------------------------------------------------------------------


@pytest.fixture
def deleted_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is none any more."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()


@pytest.mark.usefixtures("deleted_folder")
async def test_a_working_directory_that_was_deleted_does_no_harm(monkeypatch):
    monkeypatch.setattr(sys, "path", ["relative", *sys.path, "."])
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", "relative")
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            (touch,) = await compile_rogue(dev, "touch")
            x = dev.zeros(1, np.int32)
            await touch.launch(1, 1, x, 1)
            assert await x.to_host() == 1
    assert NvrtcCache().directory is None
    assert NvrtcCache("kernels").directory is None
    with pytest.raises(InvalidArgument, match=r"include_paths: .* working directory, and that has been deleted"):
        NvrtcOptions(include_paths=["headers"])
    assert {library["name"] for library in doctor.ask_libraries()} >= {"cuda", "nvrtc"}


@contextlib.contextmanager
def file_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_limit_of_file_sizes_that_leaves_no_room_is_named():
    with file_limit(0), pytest.raises(DeviceFailed, match="RLIMIT_FSIZE"):
        await works()


async def test_a_limit_of_file_sizes_that_is_reached_by_a_later_worker_is_named(open_test_device):
    """And the device goes on when it is lifted."""
    with trio.fail_after(DEADLINE):
        async with open_test_device() as dev:
            x = await dev.to_device(HOST)
            with file_limit(4096):
                kill_worker(dev)
                await until(lambda: "RLIMIT_FSIZE" in (dev.statistics().last_error or ""))
            await next_generation(dev, 1)
            assert (await x.to_host() == HOST).all()


# --- programs ---------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
sys.path[:0] = {path!r}
import numpy as np, trio, atomr_trio
{first}

async def main():
    {inside}
    async with atomr_trio.open_device(0, backend={backend!r}) as dev:
        x = await dev.to_device(np.arange(5))
        print("this is no record and no memory of ours", flush=True)
        os.system("echo neither is this >&1; echo nor this >&2")
        assert not any("memfd" in os.readlink(f"/proc/self/fd/{{number}}") for number in (0, 1, 2))
        assert (await x.to_host() == np.arange(5)).all()
        assert dev.generation == 1

trio.run(main)
os._exit(42)
"""


def run_program(*flags: str, first: str = "", inside: str = "pass", env: dict[str, str] | None = None) -> None:
    path = [path for path in sys.path if path]
    program = PROGRAM.format(path=path, first=first, inside=inside, backend=chosen_backend())
    command = [sys.executable, *flags, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=DEADLINE, env=env)
    assert done.returncode == 42, done.stderr


def test_a_program_that_closes_its_standard_streams_prints_into_nothing_of_ours():
    run_program("-I", "-W", "error", inside="[os.close(number) for number in (0, 1, 2)]")


READS_WHILE_IT_IS_IMPORTED = """
class Reader(importlib.abc.MetaPathFinder):
    kept = []

    def find_spec(self, name, path, target=None):
        if threading.current_thread() is not threading.main_thread():
            self.kept.append(open("/dev/zero", "rb"))

sys.meta_path.insert(0, Reader())
"""


def test_what_is_open_during_an_import_gets_the_number_of_no_standard_stream():
    """Modules are imported in a thread, beside the opening."""
    first = "import importlib.abc, threading" + READS_WHILE_IT_IS_IMPORTED
    run_program("-W", "ignore", first=first, inside="[os.close(number) for number in (0, 1, 2)]")


def test_a_program_that_is_run_without_its_environment_or_site_has_workers_like_it():
    """Which the environment would not let start."""
    run_program("-E", "-S", "-s", env={**os.environ, "PYTHONHOME": "/nonexistent", "PYTHONUTF8": "neither 0 nor 1"})


def test_a_program_in_ascii_has_workers_like_it():
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONFAULTHANDLER": "1"}
    run_program("-B", first="sys.path.append('/f\\u00fcr')", env={**os.environ, **locale})
