"""Other systems and odd machines: the package can be imported, errors say where it works, and doctor reports on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import atomr_trio
import support
from atomr_cuda import LibraryMissing
from atomr_trio.__main__ import main
from atomr_trio._cli import doctor
from atomr_trio._compiling import linker, nvrtc_library
from atomr_trio._memory import arena
from atomr_trio._wire import limits, machine

AWAY = """
import asyncio, ctypes, os, platform, signal, subprocess, sys
import numpy, pytest, trio

sys.platform, system, machine, modules, attributes, signals = {fake}
platform.system, platform.machine = (lambda: system), (lambda: machine)
for name in modules:
    sys.modules[name] = None
for module, names in ((os, attributes), (signal, signals)):
    for name in names:
        delattr(module, name)
whole = ctypes.CDLL
if sys.platform == "win32":
    def loaded(name, *arguments, **named):
        if name is None:
            raise TypeError("a library has a name there")
        return whole(name, *arguments, **named)
    ctypes.CDLL = loaded

import atomr_cuda, atomr_trio, atomr_trio.pytest_plugin
for name in atomr_trio.__all__:
    getattr(atomr_trio, name)

async def opened(way, *arguments):
    async with way(*arguments, backend="sim"):
        pass

for begin in (
    lambda: trio.run(opened, atomr_trio.open_device, 0),
    lambda: trio.run(opened, atomr_trio.open_devices, [0, 1]),
    lambda: atomr_trio.start(0),
    lambda: atomr_trio.start_devices([0, 1]),
):
    try:
        begin()
    except atomr_trio.DeviceFailed as error:
        print(*str(error).splitlines())
from atomr_trio.__main__ import main
print(main(["demo"]))
"""
LINUX_ALONE = (
    "memfd_create",
    "eventfd",
    "eventfd_read",
    "pidfd_open",
    "sched_getaffinity",
    "MFD_CLOEXEC",
    "EFD_CLOEXEC",
)
UNIX_ALONE = ("register_at_fork", "uname", "fork", "getuid", "sysconf", "WNOHANG", "WEXITED", "set_blocking", "P_PIDFD")
SYSTEMS = {
    "macOS": ("darwin", "Darwin", "arm64", ("cuda", "cuda.pathfinder"), LINUX_ALONE, ()),
    "Windows": (
        "win32",
        "Windows",
        "AMD64",
        ("cuda", "cuda.pathfinder", "resource", "fcntl", "termios", "pwd", "grp"),
        (*LINUX_ALONE, *UNIX_ALONE),
        ("SIGCHLD", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGALRM", "pthread_sigmask"),
    ),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_elsewhere_everything_can_be_imported_and_opening_says_where_it_works(system):
    """The system is faked, as far as a program can: its name, and what Python does not have there."""
    command = [sys.executable, "-P", "-c", AWAY.format(fake=SYSTEMS[system])]
    done = subprocess.run(command, env=support.child_environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    name, _, machine, *_ = SYSTEMS[system]
    said = (
        f"devices can be opened on Linux, x86-64 or aarch64, and this is {name} on {machine} "
        "What to do: run the program on Linux; on Windows, in WSL2"
    )
    assert done.stdout.splitlines() == [*[said] * 4, "1"]
    assert done.stderr == f"error: demo needs Linux, and this is {name}; on Windows, use WSL2\n"


@pytest.mark.parametrize(
    "command", [["demo"], ["run", "x.cu", "--kernel=k", "--grid=1", "--block=1"], ["check", "x.py"], ["cache", "list"]]
)
def test_elsewhere_a_command_says_that_it_needs_linux(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(command) == 1
    assert capsys.readouterr().err == f"error: {command[0]} needs Linux, and this is darwin; on Windows, use WSL2\n"


def test_elsewhere_the_doctor_says_what_to_do_and_looks_no_further(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "Devices can be opened on Linux (x86_64, aarch64) only" in printed
    assert "simulator works here" not in printed


@pytest.mark.parametrize("errors", [nvrtc_library.nvrtc_errors, linker._nvjitlink_errors])
def test_elsewhere_a_compiler_that_is_missing_is_not_to_be_installed(errors, monkeypatch):
    def fail():
        with errors():
            raise LibraryMissing("nvrtc", "sim", ("nowhere",))

    with pytest.raises(atomr_trio.LibraryNotFound, match="pip install"):
        fail()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(atomr_trio.LibraryNotFound, match="is loaded on Linux alone, and this is darwin") as caught:
        fail()
    assert "pip install" not in str(caught.value)
    assert "run the program on Linux" in str(caught.value)


# -- odd machines ------------------------------------------------------------------------------------------------------


def test_without_proc_all_memory_counts_as_available(monkeypatch, tmp_path):
    told = limits.available_memory()
    support.set_constant(monkeypatch, limits, "_MEMORY_FACTS", str(tmp_path / "none"))
    assert limits.available_memory() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >= told


def test_without_proc_open_descriptors_are_tried_one_by_one(monkeypatch, tmp_path):
    support.set_constant(monkeypatch, limits, "_DESCRIPTORS", str(tmp_path / "none"))
    before = limits.open_descriptors(4096)
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    try:
        assert limits.open_descriptors(4096) == before + 3
        assert limits.open_descriptors(max(held)) < before + 3
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_the_doctor_outlives_a_cache_whose_folder_may_not_be_searched(monkeypatch, capsys, tmp_path):
    def forbidden(path, **_):
        if path.is_relative_to(tmp_path / "home"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    def unseen(path):
        return not Path(path).is_relative_to(tmp_path / "home") and seen(path)

    real, seen = Path.exists, os.path.exists
    monkeypatch.setattr(Path, "exists", forbidden)
    monkeypatch.setattr(os.path, "exists", unseen)
    monkeypatch.setenv("ATOMR_TRIO_CACHE_DIR", str(tmp_path / "home" / "cache"))
    doctor.describe_disk(doctor.Report())
    assert f"kernel cache {tmp_path / 'home' / 'cache'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lacks", "said"), [([], "works here"), (["scipy"], "scipy is installed"), (["a", "b"], "a and b are installed")]
)
def test_what_the_simulator_lacks_is_named(lacks, said):
    assert said in machine.use_simulator(lacks)


@pytest.mark.parametrize(("enabled", "said"), [(False, ", free-threaded, without the GIL"), (True, "")])
def test_the_doctor_tells_whether_the_interpreter_has_its_lock(enabled, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: enabled, raising=False)
    doctor.describe_machine(doctor.Report())
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  python ")]
    assert line.endswith(f"{sys.executable}{said}")


@pytest.mark.parametrize(
    ("python", "version", "flags", "counted"),
    [
        ("cpython", (3, 11), "", 3),
        ("cpython", (3, 13), "", 3),
        ("cpython", (3, 13), "d", 3),
        ("cpython", (3, 13), "t", -1),
        ("cpython", (3, 14), "", -1),
        ("pypy", (3, 11), "", -1),
    ],
)
def test_references_decide_about_memory_only_where_python_counts_all_of_them(python, version, flags, counted):
    assert arena.known_here_alone(python, version, flags) == counted


def test_the_package_has_a_version_that_is_a_string():
    assert isinstance(atomr_trio.__version__, str)
    assert atomr_trio.__version__[0].isdigit()
