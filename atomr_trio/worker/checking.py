"""The folder through which the user's process and a checked worker of the simulator tell each other what they know.

The worker finds it, and what it is to check, in its environment. Two files lie in it, of JSON, one object a line: the
user's process writes ``arrays``, which memory belongs to an array and which has been freed, and the worker writes
``findings``. Each worker has a folder of its own, whichever devices it serves, and it goes with the worker, but for
findings that the environment asks to keep.

An array stands in ``arrays`` before anything that uses it is sent. So a worker that keeps accounts of what was written
reads on before each copy and each fill, as it does before each launch: else it would hear of an array after its bytes
have come.

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

CHECK_VARIABLE = "ATOMR_TRIO_SIM_CHECK"
FOLDER_VARIABLE = "ATOMR_TRIO_SIM_CHECK_FOLDER"
KEEP_VARIABLE = "ATOMR_TRIO_CHECK_KEEP"
"""Names a folder in which the findings of every worker stay, each in a folder of its own."""
ARRAYS = "arrays"
FINDINGS = "findings"


class CheckFolder:
    """The folder of one worker that is to check."""

    def __init__(self, checks: Sequence[str]) -> None:
        """Make it; raises `OSError` if the system has no room for it."""
        kept_in = os.environ.get(KEEP_VARIABLE)
        self._checks = ",".join(checks)
        self._keeps = bool(kept_in)
        parent = os.path.abspath(kept_in) if kept_in else None
        self.path: Path = Path(tempfile.mkdtemp(prefix="atomr-trio-check-", dir=parent))
        self._arrays = os.open(self.path / ARRAYS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._read = 0

    @property
    def variables(self) -> dict[str, str]:
        """What the worker's environment says of it."""
        return {CHECK_VARIABLE: self._checks, FOLDER_VARIABLE: str(self.path)}

    def tell(self, *events: dict[str, Any]) -> None:
        """Write what became of arrays, in one piece; nothing once the worker is gone. Raises `OSError`."""
        if self._arrays >= 0 and events:
            text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
            before = os.fstat(self._arrays).st_size
            written = os.write(self._arrays, text)
            if written < len(text):  # half a line would spoil the next one
                os.ftruncate(self._arrays, before + text.rfind(b"\n", 0, written) + 1)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def findings(self) -> list[dict[str, Any]]:
        """What the worker has found since this was asked last."""
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
        """The worker is gone: delete the folder, or all of it but findings that are to be kept.

        Where they are to be kept, the file of one that has found nothing says that there was a worker that checked.
        """
        self.forget()
        if self._keeps:
            with contextlib.suppress(OSError):
                (self.path / FINDINGS).touch()
                os.unlink(self.path / ARRAYS)
        else:
            shutil.rmtree(self.path, ignore_errors=True)

    def forget(self) -> None:
        """In a forked child: the folder is the parent's."""
        if self._arrays >= 0:
            os.close(self._arrays)
            self._arrays = -1


def kept_lines(folder: Path) -> list[dict[str, Any]]:
    """What workers have left in the folder that `KEEP_VARIABLE` named, those first that began first."""
    files = sorted(folder.glob(f"*/{FINDINGS}"), key=lambda path: path.stat().st_mtime)
    lines = (line for path in files for line in path.read_bytes().splitlines(keepends=True))
    return [json.loads(line) for line in lines if line.endswith(b"\n")]
