"""Start, kill and reap a worker: the life of one child process, on the side of the user's process.

Imports the standard library alone. Everything here is synchronous and quick. To wait for the end of the process, wait
until ``pidfd`` is readable.

A worker is a child of the user's program, and the program may reap it. The program may ignore SIGCHLD, so that the
kernel reaps its children, or have a handler that reaps every child. Then the number of an ended worker may soon belong
to another process. So the number is used once, to get the ``pidfd``, and everything else goes through the ``pidfd``.
Only the ``pidfd`` tells that the process has ended. The exit status is read afterwards, and may be unknown.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from .._wire import channel
from .._wire.backends import LIBRARIES_VARIABLE
from .._wire.checking import CheckFolder
from .._wire.starting import end_of, environment, worker_command
from .out_of_memory import OomWatch

NUMBER_VARIABLE = "ATOMR_TRIO_SIM_WORKER"
ADDRESS_STRIDE = 8 << 40
FIRST_ADDRESS = 16 << 40
ADDRESS_EXTENT = 1 << 40
MAX_DEVICES = 14
"""So many ranges of addresses have room below 2^47, where those of a process end."""


def address_range(device: int) -> tuple[int, int]:
    """The range of addresses of a device's memory in every process: base and extent in bytes."""
    return FIRST_ADDRESS + device * ADDRESS_STRIDE, ADDRESS_EXTENT


OUTPUT_BYTES = 256 << 10
"""The most bytes that the pipe for a worker's output holds. Nobody reads the pipe of an idle worker of a pool, which
may be starting, with ``PYTHONVERBOSE`` set."""


class WorkerProcess:
    """A worker process: its channel, its output, and its end."""

    started: ClassVar[int] = 0
    """The number of workers that this process has started. Each gets its number, for faults of some workers alone."""

    def __init__(self, backend: str, device: int, checks: Sequence[str] = (), libraries: Sequence[str] = ()) -> None:
        """Start it. It loads the `libraries`, named by their folders, while it starts."""
        self.checks: tuple[str, ...] = tuple(checks)
        """The checks of the simulator in this worker."""
        self.check_folder: CheckFolder | None = CheckFolder(self.checks) if self.checks else None
        try:
            self._start(backend, device, libraries)
        except BaseException:
            self._close_folder()
            raise

    def _start(self, backend: str, device: int, libraries: Sequence[str]) -> None:
        if NUMBER_VARIABLE in os.environ:
            raise OSError(
                f"this process is a worker itself ({NUMBER_VARIABLE} is set), and cannot open a device; sitecustomize "
                f"must not open one, and sys.executable, {sys.executable!r}, must be the Python interpreter"
            )
        ours, theirs = channel.open_pair()
        base, extent = address_range(device)
        try:
            output, output_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        self._oom = OomWatch()
        try:
            os.set_blocking(output_end, True)
            ours.setblocking(False)
            arguments = [str(theirs.fileno()), str(os.getpid()), backend, str(device), str(base), str(extent)]
            WorkerProcess.started += 1
            self.moments: dict[str, float] = {"asked for": time.monotonic()}
            """The ends of the steps of its start, on the clock of `time.monotonic`."""
            _set_pipe_size(output_end, OUTPUT_BYTES)
            variables = {NUMBER_VARIABLE: str(WorkerProcess.started), LIBRARIES_VARIABLE: ",".join(libraries)}
            child = start_child(arguments, output_end, environment(**variables, **self._check_variables()))
        except BaseException:
            ours.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(output_end)
        self.moments["started"] = time.monotonic()
        self.backend = backend
        self.greeted: bool = False
        """Tell whether its ``hello`` has been read, so that it can be adopted."""
        self.sock = ours
        self.output: int = output
        self.pid: int = child.pid
        self._ended: bool = False
        self._killed: bool = False
        """True if this process sent SIGKILL."""
        self._oom_count: str | None = None
        """The kernel's count of processes that its OOM killer has ended."""
        self._code: int | None = None
        """Its exit status, numbered as by `subprocess`; None while it runs, and when other code has reaped it."""
        try:
            self.pidfd: int = os.pidfd_open(self.pid)
        except BaseException as error:
            child.kill()
            child.wait()
            ours.close()
            os.close(output)
            if isinstance(error, ProcessLookupError):
                raise OSError("the worker ended at once, and other code in this program reaped it") from None
            raise
        child.returncode = 0  # wait for the pidfd instead

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.pid} {self.end_text() if self._ended else 'running'}>"

    def _check_variables(self) -> dict[str, str]:
        return {} if self.check_folder is None else self.check_folder.variables

    def findings(self) -> list[dict[str, Any]]:
        """Return what its checks have found since the last call."""
        return [] if self.check_folder is None else self.check_folder.findings()

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if not self._ended and self.pidfd >= 0:
            self._killed = self._killed or not _is_readable(self.pidfd)
            with contextlib.suppress(ProcessLookupError):  # it has, and somebody else has reaped it
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    @property
    def ending(self) -> bool:
        """True while the system takes the process apart: with a context of a busy GPU that may take seconds."""
        try:
            return is_ending(self._stat())
        except OSError:
            return False

    @property
    def stopped(self) -> bool:
        """True while a signal, or a debugger, keeps the process from running."""
        try:
            return self._stat().rpartition(")")[2].split()[0] in ("T", "t")
        except OSError:
            return False

    def _stat(self) -> str:
        with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read()

    def reap(self) -> bool:
        """Tell whether the process has ended. Reads its exit status, unless other code has reaped it."""
        if self._ended:
            return True
        try:
            end = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            self._ended = _is_readable(self.pidfd)
            return self._ended
        if end is None:
            return False
        self._ended = True
        self._code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        if self._code == -signal.SIGKILL and not self._killed:
            self._oom_count = self._oom.explained()
        return True

    def end_text(self) -> str:
        """Describe how the process ended."""
        if not self._ended:
            return "is still running"
        if self._code is None:
            return "ended with an unknown status: this program ignores SIGCHLD, or reaps every child itself"
        return end_of(self._code) + self._killer()

    def _killer(self) -> str:
        """Return who has ended it, if that was not this process."""
        if self._code != -signal.SIGKILL or self._killed:
            return ""
        if self._oom_count is None:
            return " from outside"
        return f": the kernel's OOM killer, for want of host memory (oom_kill in {self._oom_count} has risen)"

    def close(self) -> None:
        """Close every descriptor; the process must have been reaped. Can be called twice."""
        if self.pidfd >= 0:
            self.sock.close()
            os.close(self.output)
            os.close(self.pidfd)
            self.output = self.pidfd = -1
            self._close_folder()

    def _close_folder(self) -> None:
        if self.check_folder is not None:
            self.check_folder.close()

    def forget(self) -> None:
        """Close the copies of the descriptors in a forked child, which must not wait for the process."""
        folder, self.check_folder = self.check_folder, None
        if folder is not None:
            folder.forget()
        self.close()
        self._ended = True


def start_child(arguments: Sequence[str], output: int, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the program of a worker, whose first argument is a descriptor that it inherits. Raises `OSError`."""
    return subprocess.Popen(
        worker_command(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[int(arguments[0])],
        env=variables,
        process_group=0,  # the terminal's Ctrl-C is for the parent alone
    )


_EXITING, _DUMPING, _SIGNALED = 0x4, 0x200, 0x400
"""``PF_EXITING``, ``PF_DUMPCORE`` and ``PF_SIGNALED`` of Linux's ``sched.h``."""


def is_ending(stat: str) -> bool:
    """Return whether a process is on its way out, by the text of its ``/proc/<pid>/stat`` (proc(5), field 9)."""
    fields = stat.rpartition(")")[2].split()
    return len(fields) > 6 and bool(int(fields[6]) & (_EXITING | _DUMPING | _SIGNALED))


def _set_pipe_size(pipe: int, size: int) -> None:
    import fcntl  # not on every system that can import this package

    with contextlib.suppress(OSError):  # more than a user may have in all their pipes together
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, size)


def _is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
