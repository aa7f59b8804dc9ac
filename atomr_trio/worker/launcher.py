"""Start, kill and reap a worker: the life of one child process, seen from the user's process.

Imports the standard library alone. Everything here is synchronous and quick; who waits for the process to end waits for
``pidfd`` to become readable.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

from . import channel
from .checking import CheckFolder
from .protocol import EXIT_TEXTS

NUMBER_VARIABLE = "ATOMR_TRIO_SIM_WORKER"
ADDRESS_STRIDE = 8 << 40
FIRST_ADDRESS = 16 << 40
ADDRESS_EXTENT = 1 << 40


def address_range(device: int) -> tuple[int, int]:
    """Where the memory of a device lives in every process: base and extent in bytes."""
    return FIRST_ADDRESS + device * ADDRESS_STRIDE, ADDRESS_EXTENT


def command(module: str, *arguments: str) -> list[str]:
    """How a module of ours is run. -P: the current folder must not shadow a module."""
    return [sys.executable, "-P", "-X", "faulthandler", "-m", module, *arguments]


def environment(**variables: str) -> dict[str, str]:
    """Ours, with `variables`, and with the modules that this process would find."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **variables}


def end_of(code: int) -> str:
    """How a process ended, in words, by what `subprocess` says of it."""
    if code >= 0:
        meaning = EXIT_TEXTS.get(code)
        return f"exited with status {code}" + (f": {meaning}" if meaning else "")
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


class WorkerProcess:
    """A worker process: its channel, its output, and its end."""

    started: ClassVar[int] = 0
    """How many this process has started; each is told its number, for faults that are asked of some of them alone."""

    def __init__(self, backend: str, device: int, checks: Sequence[str] = ()) -> None:
        self.checks: tuple[str, ...] = tuple(checks)
        """What the simulator checks in it."""
        self.check_folder: CheckFolder | None = CheckFolder(self.checks) if self.checks else None
        try:
            self._start(backend, device)
        except BaseException:
            self._close_folder()
            raise

    def _start(self, backend: str, device: int) -> None:
        ours, theirs = channel.open_pair()
        base, extent = address_range(device)
        try:
            output, output_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        try:
            os.set_blocking(output_end, True)
            ours.setblocking(False)
            arguments = [str(theirs.fileno()), str(os.getpid()), backend, str(device), str(base), str(extent)]
            WorkerProcess.started += 1
            self._popen = subprocess.Popen(
                command("atomr_trio.worker.main", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output_end,
                stderr=output_end,
                pass_fds=[theirs.fileno()],
                env=environment(**{NUMBER_VARIABLE: str(WorkerProcess.started)}, **self._check_variables()),
                process_group=0,  # the terminal's Ctrl-C is for this process alone
            )
        except BaseException:
            ours.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(output_end)
        self.backend = backend
        self.greeted: bool = False
        """Whether its ``hello`` has been read: it waits to be adopted."""
        self.sock = ours
        self.output: int = output
        self.pid: int = self._popen.pid
        try:
            self.pidfd: int = os.pidfd_open(self.pid)
        except BaseException:
            self._popen.kill()
            self._popen.wait()
            ours.close()
            os.close(output)
            raise

    def __repr__(self) -> str:
        ended = "running" if self._popen.returncode is None else self.end_text()
        return f"<WorkerProcess {self.pid} {ended}>"

    def _check_variables(self) -> dict[str, str]:
        return {} if self.check_folder is None else self.check_folder.variables

    def findings(self) -> list[dict[str, Any]]:
        """What its checks have found since this was asked last."""
        return [] if self.check_folder is None else self.check_folder.findings()

    def kill(self) -> None:
        """SIGKILL, unless the process has been reaped."""
        if self._popen.returncode is None:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> bool:
        """Collect the exit status if the process has ended; false while it runs."""
        return self._popen.poll() is not None

    def end_text(self) -> str:
        """How the process ended, in words."""
        code = self._popen.returncode
        return "is still running" if code is None else end_of(code)

    def close(self) -> None:
        """Close every descriptor; the process must have been reaped. Closing twice is fine."""
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
        """In a forked child: close our copies of the descriptors; the process is not ours to wait for."""
        folder, self.check_folder = self.check_folder, None
        if folder is not None:
            folder.forget()
        self.close()
        self._popen.returncode = 0
