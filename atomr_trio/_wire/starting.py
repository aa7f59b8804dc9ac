"""The command line and the environment of a process of this package, and the words for its end."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

from .protocol import EXIT_TEXTS


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of this package. -P: the current folder must not shadow a module.

    Raises `OSError` when there is no interpreter to run it.
    """
    return [*_python(site=not sys.flags.no_site), "-m", module, *arguments]


def worker_command(*arguments: str) -> list[str]:
    """Return the command line of a worker. Raises `OSError` as `command` does."""
    # By its path, which spares the import of the package, and of what runs modules, before its first line. What
    # ``site`` does comes later, so that it takes no time of its own.
    program = str(Path(__file__).parents[1] / "_worker" / "begin.py")
    return [*_python(site=False), program, *arguments, "" if sys.flags.no_site else "site"]


def _python(*, site: bool) -> list[str]:
    flags = [flag for flag, wanted in (("-S", not site), ("-s", sys.flags.no_user_site)) if wanted]
    return [_interpreter(), "-P", *flags, "-X", "faulthandler"]


def _interpreter() -> str:
    found: object = sys.executable  # an embedding program, or any other code, may set it to anything
    if getattr(sys, "frozen", False):
        raise OSError(f"workers need a Python interpreter, but this program is frozen: {found} is the program itself")
    if not isinstance(found, str) or shutil.which(found) is None:
        raise OSError(f"sys.executable is {found!r}; it must be the path of the Python interpreter that runs workers")
    return found


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of this process with `variables`, and with this process's search path for modules."""
    # A warning that is an error would end a worker, and a worker is not the program under test.
    left_out = ("PYTHON",) if sys.flags.ignore_environment else ("PYTHONWARNINGS",)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {**inherited, "PYTHONPATH": os.pathsep.join(_module_folders()), **variables}


def _module_folders() -> list[str]:
    """Return the folders where this process looks for modules, and the folders of our packages."""
    folders: list[str] = []
    entries: list[object] = list(sys.path)
    for entry in entries:
        # Entries that this process cannot use either: not text, no encoding, relative to a folder that was deleted.
        with contextlib.suppress(UnicodeEncodeError, FileNotFoundError):
            if isinstance(entry, str) and entry and not {0, ord(os.pathsep)}.intersection(os.fsencode(entry)):
                folders.append(os.path.abspath(entry))
    for name in ("atomr_trio", "atomr_cuda", "atomr_sim"):
        with contextlib.suppress(OSError, ValueError):  # a path that Python itself cannot use
            spec = importlib.util.find_spec(name)
            home = str(Path(spec.origin).parents[1]) if spec is not None and spec.origin is not None else ""
            folders += [home] if home and home not in folders else []
    return folders


def end_of(code: int) -> str:
    """Describe how a process ended, from the status of `subprocess`."""
    if code >= 0:
        meaning = EXIT_TEXTS.get(code)
        return f"exited with status {code}" + (f": {meaning}" if meaning else "")
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
