"""The folder through which the user's process and a checked worker of the simulator exchange what they know.

The worker finds the folder and the list of checks in its environment. The folder holds two files of JSON, one object a
line. The user's process writes ``arrays``: which memory belongs to an array, and which has been freed. The worker
writes ``findings``. Each worker has its own folder, whichever devices it serves. The folder is deleted with the worker,
except for findings that the environment asks to keep.

An array is written to ``arrays`` before any request that uses it is sent. So a worker that records which bytes were
written reads ``arrays`` before each launch, each copy and each fill. Otherwise it would learn of an array only after
its bytes had been copied.

Imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DEFAULT_VARIABLE = "ATOMR_TRIO_CHECK"
"""The variable that names the checks of every device that is opened without any."""
CHECK_VARIABLE = "ATOMR_TRIO_SIM_CHECK"
FOLDER_VARIABLE = "ATOMR_TRIO_SIM_CHECK_FOLDER"
KEEP_VARIABLE = "ATOMR_TRIO_CHECK_KEEP"
"""The variable that names a folder in which the findings of every worker are kept, each in its own folder."""
ARRAYS = "arrays"
FINDINGS = "findings"
_EXPECTED = "expected-"
"""The beginning of the names of files in the folder of `KEEP_VARIABLE`: findings that a test suite has asked for."""


class CheckFolder:
    """The folder of one worker that checks."""

    def __init__(self, checks: Sequence[str]) -> None:
        """Make the folder; raises `OSError` if the system has no room for it."""
        kept_in = os.environ.get(KEEP_VARIABLE)
        self._checks = ",".join(checks)
        self._keeps = bool(kept_in)
        parent = os.path.abspath(kept_in) if kept_in else None
        self.path: Path = Path(tempfile.mkdtemp(prefix="atomr-trio-check-", dir=parent))
        self._arrays = os.open(self.path / ARRAYS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._read = 0

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the worker's environment that describe the folder."""
        return {CHECK_VARIABLE: self._checks, FOLDER_VARIABLE: str(self.path)}

    def tell(self, *events: dict[str, Any]) -> None:
        """Write what became of arrays, in one piece; do nothing once the worker is gone. Raises `OSError`."""
        if self._arrays >= 0 and events:
            text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
            before = os.fstat(self._arrays).st_size
            written = os.write(self._arrays, text)
            if written < len(text):  # half a line would make the next one unreadable
                os.ftruncate(self._arrays, before + text.rfind(b"\n", 0, written) + 1)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def findings(self) -> list[dict[str, Any]]:
        """Return what the worker has found since the last call."""
        try:
            with open(self.path / FINDINGS, "rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]  # a worker that was killed may have left half a line
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def close(self) -> None:
        """Delete the folder when the worker is gone; findings that are to be kept stay.

        An empty file of findings then says that a worker has checked.
        """
        self.forget()
        if self._keeps:
            with contextlib.suppress(OSError):
                (self.path / FINDINGS).touch()
                os.unlink(self.path / ARRAYS)
        else:
            shutil.rmtree(self.path, ignore_errors=True)

    def forget(self) -> None:
        """Forget the folder in a forked child: it belongs to the parent."""
        if self._arrays >= 0:
            os.close(self._arrays)
            self._arrays = -1


def kept_lines(folder: Path) -> list[dict[str, Any]]:
    """Return what workers have left in the folder that `KEEP_VARIABLE` named, the oldest file first."""
    return _lines(folder, f"*/{FINDINGS}")


def expect(findings: Sequence[dict[str, Any]]) -> None:
    """Note in the folder that `KEEP_VARIABLE` names that findings were expected; without a folder do nothing.

    Raises `OSError`.
    """
    kept_in = os.environ.get(KEEP_VARIABLE)
    if kept_in and findings:
        descriptor, _ = tempfile.mkstemp(prefix=_EXPECTED, dir=kept_in)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(finding) + "\n" for finding in findings)


def expected_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the findings that `expect` has noted in a folder."""
    return _lines(folder, f"{_EXPECTED}*")


def _lines(folder: Path, pattern: str) -> list[dict[str, Any]]:
    files = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
    lines = (line for path in files for line in path.read_bytes().splitlines(keepends=True))
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
