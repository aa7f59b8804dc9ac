"""A folder of checksummed files that only this user can have written.

This file handles names, bytes and file systems, and does not interpret the bytes.

Compiled code from a cache is executed. So the folder and every file in it must belong to this user, must not be
writable by others, and must not be symbolic links. That is checked on what has been opened, and everything in the
folder is reached through its descriptor, so that nothing can be exchanged between check and use. Of the folders above,
those that everybody may write to have to be sticky, as /tmp is.

A file is written under a temporary name, flushed to the disk and renamed. So a name always leads to a whole file, even
when several processes write it or one of them dies. SHA-256 over the name and the parts protects against disks, crashes
and file managers, not against attackers: anyone who can write here can make checksums too.

Nothing that the disk does is raised to the user of a cache. It costs time, and one warning per folder and cause.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import logging
import os
import re
import secrets
import shutil
import stat
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

from atomr_trio._compiling.whole_folder import problem_of, take_away

__all__ = ["HEADERS", "CacheFolder", "StoredFile", "Unusable", "warn_once"]

_log = logging.getLogger("atomr_trio.nvrtc")

_MAGIC: Final = b"atomr\x89\r\n"
_FORMAT: Final = 1
_PARTS: Final = 4
_HEAD = struct.Struct(f"<8sI{_PARTS}Q")
"""Magic, version of this format, length of each part in bytes. The checksum follows, then the parts."""
_HASH_BYTES: Final = 32

_NAME = re.compile(r"[0-9a-f]{64}\.[a-z]+")
_TEMPORARY: Final = ".unfinished-"
HEADERS: Final = "headers-"
"""The prefix of the folders with CUDA's own headers, which can be made again."""

_STALE_SECONDS: Final = 3600.0
"""Seconds after which a temporary file has lost its writer, and a file that was used again gets a new time."""
_SLACK: Final = 32
"""The part of the limit (one 32nd) that is written between two looks at the whole folder."""

SUPPORTED: Final = os.name == "posix" and os.open in os.supports_dir_fd
"""True where the owner of a file can be determined; on other systems there is no cache on disk."""


class Unusable(Exception):
    """A folder or a file that exists, and that the cache does not use."""

    def __init__(self, path: str, cause: str) -> None:
        super().__init__(path, cause)
        self.path = path
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.path} {self.cause}"


@attrs.frozen
class StoredFile:
    """A file of the folder, without its content."""

    name: str
    """Its name in the folder."""
    bytes: int
    """Its size on the disk."""
    used: float
    """When it was written or read, to the hour; seconds since the epoch."""


_warned: set[tuple[str, str]] = set()
_warned_lock = threading.Lock()


def warn_once(place: str, cause: str, text: str) -> None:
    """Log a warning, the first time in this process for this place and cause."""
    with _warned_lock:
        if (place, cause) in _warned:
            return
        _warned.add((place, cause))
    _log.warning("%s", text)


class CacheFolder:
    """Files by name, with a limit on their sum. Its methods block, may be called by any thread, and raise nothing.

    Only `load` and `ensure` raise; what they raise is what the others warn of.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        # Looking through a large folder takes a second. A process that writes little does it in proportion.
        self._until_eviction = secrets.randbelow(max_bytes // _SLACK + 1)
        self._tidy = False

    def ensure(self) -> None:
        """Make the folder where there is none. Raises `Unusable` and `OSError` for one that is not safe to use."""
        with self._opened(create=True):
            pass

    def read(self, name: str) -> list[bytes] | None:
        """Return the parts of a file, and note that it was used; None when there is none that is good."""
        parts = None
        with self._tolerated("read"), contextlib.suppress(FileNotFoundError), self._opened() as folder:
            parts, status = self._load(folder, name)
            self._touch(folder, name, status)
        return parts

    def load(self, name: str) -> list[bytes]:
        """Return the parts of a file. Raises `Unusable` and `OSError`."""
        with self._opened() as folder:
            return self._load(folder, name)[0]

    def write(self, name: str, *parts: bytes) -> None:
        """Put a file of up to four parts there, in place of one that has the name, if that can be done.

        It is read as four parts; those that were not given are empty. They are apart so that each can be read into an
        object of its own, and large images are never copied.
        """
        sealed = _seal(name, [*parts, *[b""] * (_PARTS - len(parts))])
        if len(sealed) > self._max_bytes:
            return
        with self._tolerated("write"), self._opened(create=True) as folder:
            _replace(folder, name, sealed)
            self._tidy_up(folder)
            self._until_eviction -= len(sealed)
            if self._until_eviction < 0:
                self._evict(folder)

    def files(self) -> list[StoredFile]:
        """Return what is in the folder, the last used first."""
        found: list[StoredFile] = []
        with self._tolerated("list"), contextlib.suppress(FileNotFoundError), self._opened() as folder:
            found = _files(folder)
        return found

    def refusal(self) -> dict[Path, str]:
        """Return the folder with what is wrong with it, or nothing when it is good or not there."""
        try:
            with self._opened():
                return {}
        except FileNotFoundError:
            return {}
        except Unusable as problem:
            return {self.path: problem.cause}
        except OSError as error:
            return {self.path: f"cannot be opened: {error}"}

    def clear(self) -> int:
        """Delete all files that a cache made, finished or not, and no others but `HEADERS`. Return how many.

        A set of headers that somebody compiles with stays.
        """
        deleted = 0
        with self._tolerated("clear"), contextlib.suppress(FileNotFoundError), self._opened() as folder:
            for name in os.listdir(folder):
                if name.startswith(HEADERS):
                    self._take_away(name)
                elif name.startswith(_TEMPORARY) and (self.path / name).is_dir():
                    shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
                elif _NAME.fullmatch(name) or name.startswith(_TEMPORARY):
                    deleted += _unlink(folder, name)
        return deleted

    def _take_away(self, name: str) -> None:
        with contextlib.suppress(OSError):
            if not take_away(str(self.path / name), str(self.path / f"{_TEMPORARY}{secrets.token_hex(16)}")):
                _log.info("%s stays, because it is in use", self.path / name)

    def headers(self) -> dict[Path, str]:
        """Return what is wrong with the sets of headers, by their folders; nothing for those that are good."""
        with self._tolerated("read"), contextlib.suppress(FileNotFoundError), self._opened() as folder:
            names = sorted(name for name in os.listdir(folder) if name.startswith(HEADERS))
            problems = {self.path / name: problem_of(str(self.path / name), by_content=True) for name in names}
            return {path: problem for path, problem in problems.items() if problem}
        return {}

    @contextlib.contextmanager
    def _tolerated(self, doing: str) -> Iterator[None]:
        """Turn what went wrong into a warning."""
        try:
            yield
        except Unusable as problem:
            cause, text = problem.cause, f"the kernel cache: {problem}"
        except OSError as error:
            cause, text = f"errno {error.errno}", f"cannot {doing} the kernel cache {self.path}: {error}"
        else:
            return
        warn_once(str(self.path), cause, f"{text}; kernels are compiled again instead")

    @contextlib.contextmanager
    def _opened(self, *, create: bool = False) -> Iterator[int]:
        """Open the folder for one operation, so that deleting it and forking hurt nobody."""
        try:
            if create:
                _make(self.path)
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise _link_error(error, str(self.path), "is no folder, or a symbolic link") from None
        try:
            _check_owner(str(self.path), os.fstat(folder))
            _check_parents(self.path)
            yield folder
        finally:
            os.close(folder)

    def _load(self, folder: int, name: str) -> tuple[list[bytes], os.stat_result]:
        path = str(self.path / name)
        # O_NONBLOCK: opening a named pipe would wait for a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=folder)
        except OSError as error:
            raise _link_error(error, path, "is a symbolic link") from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise Unusable(path, "is no regular file")
            _check_owner(path, status)
            if status.st_size > self._max_bytes:
                raise Unusable(path, "is larger than the whole cache may be")
            return _unseal(path, name, descriptor, status.st_size), status
        finally:
            os.close(descriptor)

    def _touch(self, folder: int, name: str, status: os.stat_result) -> None:
        """Note a use, at most once in a while: the order of eviction need not be finer."""
        if abs(time.time() - status.st_mtime) > _STALE_SECONDS:
            with contextlib.suppress(OSError):  # a folder that is only read has no eviction either
                os.utime(name, dir_fd=folder, follow_symlinks=False)

    def _tidy_up(self, folder: int) -> None:
        """Delete what dead writers left, once in a process."""
        if not self._tidy:
            self._tidy = True
            _delete_stale(folder)

    def _evict(self, folder: int) -> None:
        """When there is too much, delete the files that were not used for longest, until there is room for more."""
        self._until_eviction = self._max_bytes // _SLACK
        files = _files(folder)
        excess = sum(file.bytes for file in files) - self._max_bytes
        if excess <= 0:
            return
        excess += self._until_eviction
        for file in reversed(files):
            if excess <= 0:
                break
            excess -= file.bytes
            _unlink(folder, file.name)


# ---------------------------------------------------------------------------------------------------- one file


def _seal(name: str, parts: Sequence[bytes]) -> bytes:
    head = _HEAD.pack(_MAGIC, _FORMAT, *map(len, parts))
    return b"".join((head, _checksum(head, name, parts), *parts))


def _unseal(path: str, name: str, descriptor: int, size: int) -> list[bytes]:
    """Read the parts of an open file of so many bytes, or raise `Unusable`."""
    head, checksum = os.read(descriptor, _HEAD.size), os.read(descriptor, _HASH_BYTES)
    if len(head) == _HEAD.size:
        magic, version, *lengths = _HEAD.unpack(head)
        if (magic, version, size) == (_MAGIC, _FORMAT, _HEAD.size + _HASH_BYTES + sum(lengths)):
            parts = [os.read(descriptor, length) for length in lengths]
            if checksum == _checksum(head, name, parts):
                return parts
    raise Unusable(path, "is damaged")


def _checksum(head: bytes, name: str, parts: Iterable[bytes]) -> bytes:
    """The name is part of it: a file that was renamed is no entry of its new name."""
    checksum = hashlib.sha256(head)
    for piece in (name.encode(), *parts):
        checksum.update(piece)
    return checksum.digest()


def _replace(folder: int, name: str, sealed: bytes) -> None:
    temporary = f"{_TEMPORARY}{secrets.token_hex(16)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        try:
            _write_all(descriptor, sealed)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        _unlink(folder, temporary)
        raise
    with contextlib.suppress(OSError):  # some file systems have no such thing; the file is there in any case
        os.fsync(folder)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


# ---------------------------------------------------------------------------------------------------- the folder


def _make(path: Path) -> None:
    """Create the folder and what is missing above it, for this user alone."""
    missing = itertools.takewhile(lambda folder: not os.path.lexists(folder), (path, *path.parents))
    for folder in reversed(list(missing)):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def _link_error(error: OSError, path: str, cause: str) -> Exception:
    """The exception for a path that O_NOFOLLOW did not open."""
    return Unusable(path, cause) if error.errno in (errno.ELOOP, errno.ENOTDIR) else error


def _check_owner(path: str, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise Unusable(path, "belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unusable(path, f"can be written by others (mode {stat.S_IMODE(status.st_mode):o})")


def _check_parents(path: Path) -> None:
    """Refuse a place from which anybody could take the folder away.

    Folders above that a group may write are accepted: a group of one user is common. The worst result is a folder that
    does not belong to this user.
    """
    parent = Path(os.path.realpath(path.parent))
    for above in (parent, *parent.parents):
        mode = os.stat(above).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise Unusable(str(path), f"is not safe, because everybody can write to {above}")


def _files(folder: int) -> list[StoredFile]:
    """The files of a folder, the last used first. One that vanishes meanwhile is none."""
    found = []
    with os.scandir(folder) as listing:
        for each in listing:
            if _NAME.fullmatch(each.name):
                with contextlib.suppress(FileNotFoundError):
                    status = each.stat(follow_symlinks=False)
                    found.append(StoredFile(each.name, status.st_size, status.st_mtime))
    return sorted(found, key=lambda file: (-file.used, file.name))


def _delete_stale(folder: int) -> None:
    """Delete the temporary files of writers that are gone."""
    oldest = time.time() - _STALE_SECONDS
    for name in os.listdir(folder):
        if name.startswith(_TEMPORARY):
            with contextlib.suppress(FileNotFoundError):
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < oldest:
                    _unlink(folder, name)


def _unlink(folder: int, name: str) -> bool:
    """Delete a file and tell whether it was there and could be deleted."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True
