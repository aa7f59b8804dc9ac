"""A folder of files that are all there as they were put there, or are put there anew.

What somebody unpacked into a cache may lose a file to a cleaner of old files, or to a copy that was cut off. A name
does not tell. So a list stands beside the files, with the size, the times and the SHA-256 of each. `make_whole`
compares the two, and `is_as_seen` tells at the cost of one call a folder whether a file has appeared or vanished since.

Readers hold the folder (`held`), and who deletes it asks whether anybody does (`take_away`). What is missing is
unpacked beside and moved in file by file, so that a reader finds one whole file or another. The locks are `flock`; a
file system without it has none, and then only the list protects.

This file knows folders and locks, and not what the files are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

if sys.platform != "win32":  # where this package can be imported, and nothing is compiled
    import fcntl

__all__ = ["Fill", "held", "is_as_seen", "make_whole", "problem_of", "seen", "take_away"]

_LIST: Final = ".whole"
_LOCK: Final = ".filling"
_NEW: Final = ".new-"

Fill: TypeAlias = Callable[[Path], str]
"""Puts the files into an empty folder; what went wrong, in words."""
_Entry: TypeAlias = list[object]
"""Size, time of the content, time of the inode, SHA-256."""
_Stamps: TypeAlias = dict[str, tuple[int, int]]

_seen: dict[str, _Stamps] = {}
"""What this process has found whole: the folders in it, as they were."""


@contextlib.contextmanager
def held(folder: str) -> Iterator[bool]:
    """Keep others from taking a folder away; False when it was taken away meanwhile. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            there = os.path.samestat(os.stat(folder), os.fstat(descriptor))
        except FileNotFoundError:
            there = False
        yield there
    finally:
        os.close(descriptor)


def take_away(folder: str, aside: str) -> bool:
    """Delete a folder, by way of the name `aside`; False when somebody holds it. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
        os.rename(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)
        return True
    finally:
        os.close(descriptor)


def make_whole(folder: str, fill: Fill) -> str:
    """See to it that a folder holds what `fill` puts there, and nothing else; what went wrong, in words."""
    if is_as_seen(folder):
        return ""
    try:
        stamps = _folders(folder)
        if problem_of(folder, by_content=False):
            with open(os.path.join(folder, _LOCK), "wb") as lock:
                with contextlib.suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_EX)
                problem = problem_of(folder, by_content=False) and _fill_anew(folder, fill)
                stamps = _folders(folder)
            if problem:
                return problem
    except (OSError, shutil.Error) as error:
        return str(error)
    _seen[folder] = stamps
    return ""


def seen(folder: str) -> object:
    """Return how this process has found the folder whole; it is equal only as long as nobody had to repair it."""
    return _seen.get(folder)


def is_as_seen(folder: str) -> bool:
    """Tell whether no file has appeared or vanished since this process found the folder whole."""
    try:
        return folder in _seen and _folders_again(_seen[folder]) == _seen[folder]
    except OSError:
        return False


def problem_of(folder: str, *, by_content: bool) -> str:
    """Say what is wrong with a folder; nothing when it is whole. Files are read where their times have changed.

    With `by_content` all are read.
    """
    try:
        listed = json.loads(Path(folder, _LIST).read_bytes())
        found = dict(_files(folder))
        for name in sorted(listed.keys() | found.keys()):
            if name not in found:
                return f"{name} is missing"
            if name not in listed:
                return f"{name} does not belong there"
            *times, sha256 = listed[name]
            if (by_content or times != found[name]) and _sha256(os.path.join(folder, name)) != sha256:
                return f"{name} was changed"
    except FileNotFoundError as error:
        return f"{os.path.basename(error.filename or _LIST)} is missing"
    except (OSError, ValueError, AttributeError, TypeError) as error:
        return f"cannot be read: {error!r}"
    return ""


def _fill_anew(folder: str, fill: Fill) -> str:
    for name in os.listdir(folder):
        if name.startswith(_NEW):  # of a process that died; nobody else fills
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    unfinished = tempfile.mkdtemp(prefix=_NEW, dir=folder)
    try:
        problem = fill(Path(unfinished))
        if not problem:
            _move_in(unfinished, folder)
        return problem
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _move_in(unfinished: str, folder: str) -> None:
    """Move in what differs, delete what does not belong there, and write the list."""
    listed: dict[str, _Entry] = {}
    hashes = {name: _sha256(os.path.join(unfinished, name)) for name, _ in _files(unfinished)}
    for name, sha256 in hashes.items():
        target = os.path.join(folder, name)
        if not os.path.isfile(target) or os.path.islink(target) or _sha256(target) != sha256:
            os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
            os.replace(os.path.join(unfinished, name), target)
    for name, times in list(_files(folder)):
        if name in hashes:
            listed[name] = [*times, hashes[name]]
        else:
            os.unlink(os.path.join(folder, name))
    content = os.path.join(unfinished, _LIST)
    Path(content).write_text(json.dumps(listed))
    os.replace(content, os.path.join(folder, _LIST))


def _files(folder: str) -> Iterator[tuple[str, list[int]]]:
    """The files by their names in the folder, without those at its top that begin with a dot: size and times."""
    above = [""]
    while above:
        inside = above.pop()
        with os.scandir(os.path.join(folder, inside)) as entries:
            for entry in entries:
                name = os.path.join(inside, entry.name)
                if not inside and entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    above.append(name)
                    continue
                status = entry.stat(follow_symlinks=False)
                yield name, [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _folders(folder: str) -> _Stamps:
    names = [folder, *(os.path.join(inside, name) for inside, names, _ in os.walk(folder) for name in names)]
    return _folders_again(dict.fromkeys((name for name in names if f"/{_NEW}" not in name), (0, 0)))


def _folders_again(names: _Stamps) -> _Stamps:
    states = ((name, os.stat(name)) for name in names)
    return {name: (state.st_mtime_ns, state.st_ino) for name, state in states}


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
