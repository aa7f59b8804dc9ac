"""Workers of the simulator that are copies of one process which has loaded everything: starts in a tenth of the time.

Most tests are about what a worker does, not about how its program is loaded, and half of the suite's time was loading.
The template is a child of the test's process. It copies itself by clone(2) with CLONE_PARENT, so a worker is a child of
the test's process too, which waits for it as for any other. A copy goes on in `main` of the worker's program, with the
arguments, descriptors and variables that the program would have been started with.

A worker is started as users start it where anything differs that a program inherits (see `_inherited`), in tests with
the mark ``program_starts``, on a GPU, and in every run of `make sweep`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import platform
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from atomr_trio._generation import process
from atomr_trio._wire.backends import LIBRARIES_VARIABLE
from atomr_trio._wire.starting import command, environment

CLONES = {"x86_64": 56, "aarch64": 220}
"""The number of clone(2) by machine."""
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_PR_GET_TID_ADDRESS = 40
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_AS, resource.RLIMIT_DATA)
_OF_ONE_WORKER = (
    "ATOMR_TRIO_BACKEND",
    "ATOMR_TRIO_CACHE_DIR",
    "ATOMR_TRIO_CHECK",
    "ATOMR_TRIO_SIM_",
    LIBRARIES_VARIABLE,
    "PYTEST_CURRENT_TEST",
)
"""The beginnings of the names of variables that a copy is told; nothing that is loaded has read them."""
_MOST_BYTES = 1 << 16

start_program = process.start_child
"""The way of users."""


def _inherited(variables: Mapping[str, str]) -> tuple[object, ...]:
    """What a worker takes over from the process that starts it."""
    common = {name: value for name, value in variables.items() if not name.startswith(_OF_ONE_WORKER)}
    limits = [resource.getrlimit(limit) for limit in _LIMITS]
    return (os.getcwd(), command("x"), common, limits, os.sched_getaffinity(0), os.getpid())


class Forked:
    """As much of `subprocess.Popen` as a start needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self.pid, 0)


class Template:
    """The process that is copied."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._like = _inherited(environment())
        with theirs:
            program = f"from support.template import serve; serve({theirs.fileno()})"
            started = [*command("x")[:-2], "-c", program]
            self._process = subprocess.Popen(started, env=environment(), pass_fds=[theirs.fileno()])
        self.pid: int = self._process.pid

    def start_child(self, arguments: Sequence[str], output: int, variables: Mapping[str, str]) -> Any:
        """Stands for `process.start_child`."""
        if _inherited(variables) != self._like:
            return start_program(arguments, output, variables)
        own = {name: value for name, value in variables.items() if name.startswith(_OF_ONE_WORKER)}
        wanted = json.dumps({"arguments": arguments[1:], "variables": own}).encode()
        with self._lock:
            socket.send_fds(self._sock, [wanted], [int(arguments[0]), output])
            answer = self._sock.recv(_MOST_BYTES)
        return Forked(int(answer))

    def close(self) -> None:
        self._sock.close()
        self._process.kill()
        self._process.wait()


@functools.cache
def template() -> Template | None:
    """The template of this process, or None where there can be none."""
    if platform.system() != "Linux" or platform.machine() not in CLONES or _tid_address() is None:
        return None
    return Template()


def end() -> None:
    """End the template of this process, if there is one: the interpreter would find its socket and process open."""
    made = template() if template.cache_info().currsize else None
    template.cache_clear()
    if made is not None:
        made.close()


def own() -> set[int]:
    """The process that is copied, if there is one."""
    made = template() if template.cache_info().currsize else None
    return set() if made is None else {made.pid}


def _tid_address() -> int | None:
    """Where the C library notes the thread's number, which a copy must correct: it sends signals to itself by it."""
    libc, address = ctypes.PyDLL(None), ctypes.c_void_p()
    return None if libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) else address.value


def serve(descriptor: int) -> None:
    """The template's program: copy this process for each request."""
    import atomr_cuda
    import atomr_sim
    from atomr_trio._worker import main as worker, registry

    registry.load()
    for package in (atomr_cuda, atomr_sim):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for name in ("numpy.ctypeslib", "scipy.linalg.blas", "scipy.linalg.lapack"):  # the simulator imports them when used
        importlib.import_module(name)
    sock = socket.socket(fileno=descriptor)
    clone, libc = CLONES[platform.machine()], ctypes.PyDLL(None)  # the interpreter's lock is not given up meanwhile
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    note = ctypes.c_void_p(_tid_address())
    order = (note, None) if platform.machine() == "x86_64" else (None, note)
    gc.freeze()
    while True:
        wanted, descriptors, _, _ = socket.recv_fds(sock, _MOST_BYTES, 2)
        if not wanted:
            os._exit(0)
        pid = libc.syscall(clone, ctypes.c_long(flags), None, None, *order)
        if pid == 0:
            with contextlib.suppress(BaseException):
                sock.close()
                _become(worker, json.loads(wanted), *descriptors)
            os._exit(1)
        for each in descriptors:
            os.close(each)
        sock.send(str(pid).encode())


def _become(worker: Any, wanted: dict[str, Any], descriptor: int, output: int) -> None:
    """Be the worker's program."""
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    for name in [name for name in os.environ if name.startswith(_OF_ONE_WORKER)]:
        del os.environ[name]
    os.environ.update(wanted["variables"])
    sys.argv = [worker.__file__, str(descriptor), *wanted["arguments"]]
    try:
        worker.main(sys.argv[1:])
    except BaseException as bug:
        worker.exit_by(bug)
