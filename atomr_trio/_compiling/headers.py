"""Which header files a compile reads, so that a cached result is used as long as none of them has changed.

The options of a compile say where headers may be, not which of them it reads. Scanning for `#include` alone does not
do: a header of CUB reaches four times as many files that way as a compile opens, and some are named by macros. So
NVRTC's front end is asked for its listing (listing.py), in which it notes each file as it enters it and each directive
that it follows. Where it writes none, what includes files from disk is not cached.

The files that were read do not say everything:

* A file may appear where the compiler looked before it found the right one. Each name of an `#include` is looked for in
  the compiler's order (headers in memory, the includer's folder unless ``--no-source-include``, then the include
  paths), and the places before the right one have to stay empty. What is found so has to be what the listing says.
* `__has_include` decides by a file that need not be read. Each place it looks at has to stay as it is.
* A file with `#pragma once` is read once by all names that lead to it. Which names lead to one file has to stay so.

What remains is decided by content: as long as these files hold these bytes, and these places are empty or not as they
were, the preprocessor takes the same turns. Whatever is not understood exactly makes a compile that is not cached.

The snapshot is taken after the compile, and the compiler read the files before that. So what a compile may read is
looked at before it, too (`look_before`): a file or a place that was another one then makes the result uncached. No
clock is asked for that, since those of a file server and of this process may differ. A name that only a macro knows is
not found beforehand; what it leads to has to be older than a minute. A header that is younger than the compile is never
trusted.

CUDA's own headers are left out of all this. They are in a folder that only we write to, by a name that says what is in
it, and that name is part of the key; `bundled_headers.py` sees to it that they are whole.

A `Snapshot` records each file with its SHA-256 and with what `stat` says, so that seeing that all is as it was costs
one call a file. A file that changed a few seconds before it was recorded may change again without a new time; it is
read again until it is older. This file knows nothing of caches, and blocks.
"""

from __future__ import annotations

import enum
import hashlib
import os
import stat
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import attrs

from atomr_trio._compiling.compiler import NOWHERE
from atomr_trio._compiling.directives import (
    ASKS,
    Include,
    computes_names,
    included_names,
    may_ask,
    may_tell_the_time,
    names_in,
    usual,
)
from atomr_trio._compiling.flags import parse_flags
from atomr_trio._compiling.listing import Account, Unknowable, Use
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._values.long_texts import in_turn, pieces

__all__ = ["Dependence", "Looks", "Snapshot", "dependence", "look_before", "pack", "take_snapshot", "unpack"]

_FILE_OPTIONS: Final = ("I", "include", "pre-include", "preinclude", "use-bundled-headers", "pch", "create", "use-pch")
_OUTPUT_OPTIONS: Final = ("time", "fdevice-time-trace", "Xcudafe")
"""The beginnings of the names of extra options that read files, and of those that write them."""


class Dependence(enum.Enum):
    """The files and places that decide the result of a compile, beside its source, its options and its target."""

    NOTHING = "nothing"
    """No file."""
    HEADERS = "headers"
    """The headers that it includes, or what only a compile can tell."""
    UNKNOWN = "unknown"
    """Files that are not looked for, or that it has to write."""


def dependence(source: str, options: NvrtcOptions) -> Dependence:
    """Tell what a compile depends on. It errs on the safe side: an `#include` in a comment counts."""
    if any(option.lstrip("-").startswith(_FILE_OPTIONS + _OUTPUT_OPTIONS) for option in options.extra_options):
        return Dependence.UNKNOWN
    whole = (source, *(text for _, text in options.headers))
    texts = [usual(piece.encode()) for text in whole for piece in pieces(text)]
    macros = [text.encode() for text in _macros(options)]
    if may_ask((*texts, *macros)) or may_tell_the_time((*texts, *macros)) or any(map(ASKS.search, macros)):
        return Dependence.HEADERS
    if any("\n" in each for each in options.name_expressions):
        return Dependence.HEADERS
    in_memory = {name for name, _ in options.headers}
    for text in in_turn(texts):
        if included_names(text) - in_memory or computes_names(text) or ASKS.search(text):
            return Dependence.HEADERS
    return Dependence.NOTHING


def _macros(options: NvrtcOptions) -> Iterator[str]:
    """Texts of the options that the preprocessor sees."""
    yield from options.extra_options
    yield from options.name_expressions
    for name, text in options.defines:
        yield f"{name} {text or ''}"


# ---------------------------------------------------------------------------------------------------- snapshots

_Stamp: TypeAlias = tuple[int, int, int, int, int]
_UNTRUSTED: Final[_Stamp] = (0, 0, 0, 0, 0)
_RACY_NS: Final = 5_000_000_000
_HASH_BYTES: Final = 32
_CLOCK_SECONDS: Final = 0.05
"""The most that the clock of a local file system is behind the clock of the process."""
_APART_SECONDS: Final = 60.0
"""The most that the clocks of two machines are apart."""


class _Place(enum.IntEnum):
    """The state of a path that a compiler looks at."""

    NOTHING = 0
    FILE = 1
    OTHER = 2
    UNREADABLE = 3


class _File(NamedTuple):
    """A file that was read."""

    path: str
    stamp: _Stamp
    """The result of `stat`; `_UNTRUSTED` when that is too young to be relied on."""
    sha256: bytes


@attrs.frozen
class Snapshot:
    """The files that a compile read, and the places that it looked at, as they were.

    It is kept by columns: finding one kernel can take hundreds of files, and an object for each would cost as much time
    as asking the system about it.
    """

    paths: tuple[str, ...]
    """The files that were read."""
    stamps: tuple[_Stamp, ...]
    """The result of `stat` for each; `_UNTRUSTED` for one that is too young to be relied on."""
    hashes: bytes
    """The SHA-256 of each, one after the other."""
    twins: tuple[int, ...]
    """For each the number of the first that is the same file, by a link: what was read by one name may not be by
    another."""
    places: tuple[str, ...]
    """Paths that were not read. Below one with nothing there is nothing."""
    found: bytes
    """The state of each, a `_Place`."""

    @property
    def digest(self) -> bytes:
        """Return the part of a key: a hash of the names, the contents of the files, and the states of the places."""
        # Names hold no NUL, and the counts say which of them are what.
        names = os.fsencode("\0".join(self.paths + self.places))
        counts = struct.pack("<2Q", len(self.paths), len(self.places))
        twins = struct.pack(f"<{len(self.twins)}I", *self.twins)
        return hashlib.sha256(b"".join((counts, self.hashes, twins, self.found, names))).digest()

    def renewed(self) -> Snapshot | None:
        """Return the snapshot if everything is still as it says, with new times for files whose times alone changed.

        None when anything differs.
        """
        if bytes(map(_place, self.places)) != self.found:
            return None
        stamps = list(self.stamps)
        now = list(self.stamps)
        try:
            for index in self._touched():
                file, _, now[index] = _read(self.paths[index])
                if file.sha256 != self.hashes[index * _HASH_BYTES : (index + 1) * _HASH_BYTES]:
                    return None
                stamps[index] = file.stamp
        except (OSError, ValueError):
            return None
        if now != list(self.stamps) and _twins(now) != self.twins:
            return None
        renewed = tuple(stamps)
        return self if renewed == self.stamps else attrs.evolve(self, stamps=renewed)

    def _touched(self) -> list[int]:
        """The numbers of the files of which `stat` says something else now. Raises `OSError`."""
        look = os.stat
        touched = []
        for index, (path, stamp) in enumerate(zip(self.paths, self.stamps, strict=True)):
            # As `_stamp`, written out: here a call costs as much as the rest.
            now = look(path)
            if (now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino, now.st_dev) != stamp:
                touched.append(index)
        return touched


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def _twins(stamps: Iterable[_Stamp]) -> tuple[int, ...]:
    first: dict[tuple[int, int], int] = {}
    return tuple(first.setdefault(stamp[3:], index) for index, stamp in enumerate(stamps))


def _changed_at(stamp: _Stamp) -> int:
    """When a file changed last, by what cannot be set back."""
    return max(stamp[1], stamp[2])


def _place(path: str) -> _Place:
    try:
        # Most places are empty, and an exception would cost more than the question.
        if not os.access(path, os.F_OK):
            return _Place.NOTHING
        if not stat.S_ISREG(os.stat(path).st_mode):
            return _Place.OTHER
        return _Place.FILE if os.access(path, os.R_OK, effective_ids=True) else _Place.UNREADABLE
    except (OSError, ValueError):
        return _Place.NOTHING


def _read(path: str) -> tuple[_File, bytes, _Stamp]:
    """Read a file: what to remember of it, its text, and its stamp. Raises `OSError`."""
    now = time.time_ns()
    with open(path, "rb") as file:
        stamp = _stamp(os.fstat(file.fileno()))
        text = file.read()
    trusted = _changed_at(stamp) < now - _RACY_NS
    return _File(path, stamp if trusted else _UNTRUSTED, hashlib.sha256(text).digest()), text, stamp


class _Look(NamedTuple):
    """The state and the content of a path."""

    place: _Place
    stamp: _Stamp
    """Of the file; `_UNTRUSTED` for everything else."""
    top: str
    """The path, or the highest folder on the way to it that is not there: one for all that would be in it."""


@attrs.define
class Looks:
    """The states of the paths where a compile looks for files. Each path is looked at once."""

    files: dict[str, tuple[_File, _Stamp]] = attrs.Factory(dict)
    """The contents that were read."""
    places: dict[str, _Look] = attrs.Factory(dict)
    folders: dict[str, _Stamp] = attrs.Factory(dict)
    """The folders of the tops. What `stat` says of one changes whenever something appears or vanishes in it."""

    def at(self, path: str) -> _Look:
        """Return what is at a path. The folder is asked before the place."""
        look = self.places.get(path)
        if look is None:
            self.folder(os.path.dirname(path))
            place = _place(path)
            top = path
            if place is _Place.NOTHING:
                while _place(os.path.dirname(top)) is _Place.NOTHING and os.path.dirname(top) != top:
                    top = os.path.dirname(top)
                self.folder(os.path.dirname(top))
                place = _place(path)
            look = self.places[path] = _Look(place, _stamp_of(path) if place is _Place.FILE else _UNTRUSTED, top)
        return look

    def folder(self, path: str) -> None:
        """Note what `stat` says of a folder."""
        if path not in self.folders:
            stamp = _stamp_of(path)
            if stamp != _UNTRUSTED:
                self.folders[path] = stamp

    def read(self, path: str) -> bytes | None:
        """Read a file, and return its text; None when it cannot be read or was read before."""
        if path in self.files:
            return None
        try:
            file, text, stamp = _read(path)
        except (OSError, ValueError):
            return None
        self.files[path] = file, stamp
        return text


def _stamp_of(path: str) -> _Stamp:
    try:
        return _stamp(os.stat(path))
    except (OSError, ValueError):
        return _UNTRUSTED


@attrs.frozen
class _Search:
    """The search order of the compiler for included files."""

    paths: tuple[str, ...]
    in_memory: frozenset[str]
    beside: bool
    """True if it looks beside the includer."""

    @classmethod
    def of(cls, options: NvrtcOptions, flags: Sequence[str]) -> _Search:
        beside = all(each.flag.name != "--no-source-include" for each in parse_flags(options.extra_options))
        return cls(_search_paths(flags), frozenset(name for name, _ in options.headers), beside)

    def candidates(self, file: str, include: Include) -> Iterator[str]:
        """The places for a name on disk, for an `#include` in `file`."""
        if os.path.isabs(include.name):
            yield include.name
            return
        if include.quoted and self.beside and self.is_on_disk(file):
            yield os.path.join(os.path.dirname(file), include.name)
        yield from (os.path.join(path, include.name) for path in self.paths)

    def is_on_disk(self, file: str) -> bool:
        """Tell whether a file that the listing names is one; the others are in memory, or NVRTC brings them itself."""
        return not (file in self.in_memory or file.startswith(NOWHERE) or is_brought(file))


def is_brought(name: str) -> bool:
    """Tell whether NVRTC brings a file itself; those have names without a folder."""
    return name.startswith("__nv_") and "/" not in name


def look_before(source: str, options: NvrtcOptions, flags: Sequence[str], is_kept: Callable[[str], bool]) -> Looks:
    """Look at what a compile may read: at all that is named in what it may read, in whatever branch or comment.

    `flags` are what NVRTC will get, `is_kept` tells CUDA's own headers from others. Raises nothing.
    """
    looks = Looks()
    search = _Search.of(options, flags)
    for path in search.paths:
        looks.folder(path)
    texts = deque((NOWHERE, text.encode()) for text in (source, *(text for _, text in options.headers)))
    texts += [(NOWHERE, b"#define " + text.encode()) for text in _macros(options)]
    known: set[tuple[str, Include]] = set()
    while texts:
        file, text = texts.popleft()
        for include in names_in(usual(text)):
            # An angled name leads to the same file wherever it is included.
            folder = os.path.dirname(file) if include.quoted else ""
            if include.name in search.in_memory or (folder, include) in known:
                continue
            known.add((folder, include))
            for path in search.candidates(file, include):
                if is_kept(path):
                    if not include.next and os.path.isfile(path):
                        break
                elif looks.at(path).place is _Place.FILE:
                    found = looks.read(path)
                    if found is not None:
                        texts.append((path, found))
                    if not include.next:
                        break
    return looks


@attrs.define
class _Reading:
    """The findings after a compile."""

    started_ns: int
    search: _Search
    before: Looks
    is_kept: Callable[[str], bool]
    looks: Looks = attrs.Factory(Looks)
    files: dict[str, _File] = attrs.Factory(dict)
    """The files that were read, without CUDA's own headers: the name of their set stands for them."""
    stamps: dict[str, _Stamp] = attrs.Factory(dict)
    places: dict[str, _Place] = attrs.Factory(dict)
    entered: dict[str, tuple[int, int]] = attrs.Factory(dict)
    """Which file it was that was entered by a name."""
    known: set[tuple[int, int]] = attrs.Factory(set)

    def enter(self, path: str) -> None:
        """Note a file that the compiler entered."""
        if self.is_kept(path):
            try:
                stamp = _stamp(os.stat(path))
            except OSError as error:
                raise Unknowable(f"a header cannot be found again: {error}") from error
        else:
            stamp = self.read(path)
        self.entered[path] = stamp[3:]
        self.known.add(stamp[3:])

    def read(self, path: str) -> _Stamp:
        """Note a file that the compiler knows by this name."""
        if path in self.stamps:
            return self.stamps[path]
        try:
            file, _, stamp = _read(path)
        except (OSError, ValueError) as error:
            raise Unknowable(f"a header cannot be read again: {error}") from error
        self._check_age(path, stamp)
        before = self.before.files.get(path)
        if before is None:
            self._check_old(path, stamp)
        elif before[1] != stamp or before[0].sha256 != file.sha256:
            raise _changed(path)
        self.files[path], self.stamps[path] = file, stamp
        return stamp

    def follow(self, use: Use) -> None:
        """Note the places where an `#include` was looked for, and the name by which its file was found.

        One that was not entered is of a file that is known to be guarded, or stands in a comment.
        """
        include = use.include
        if include.name in self.search.in_memory or include.name.startswith(NOWHERE) or is_brought(include.name):
            return
        wanted = None
        if use.entered is not None:
            if not self.search.is_on_disk(use.entered):
                raise Unknowable(f"{include.name} was found in memory as {use.entered}")
            wanted = self.entered[use.entered]
        for path in self.search.candidates(use.file, include):
            look = self._found(path)
            if look.place is _Place.FILE:
                identity = look.stamp[3:]
                if wanted is not None and identity != wanted and not include.next:
                    raise Unknowable(f"{include.name} should be {path}, and is {use.entered}")
                if identity in self.known and not self.is_kept(path):
                    self.read(path)
                if identity == wanted or (wanted is None and not include.next):
                    return
        if wanted is not None:
            raise Unknowable(f"it is not understood how {include.name} leads to {use.entered}")

    def ask(self, file: str, include: Include) -> None:
        """Note the places that a `__has_include` looks at."""
        for path in self.search.candidates(file, include):
            if self._found(path).place is _Place.FILE:
                return

    def _found(self, path: str) -> _Look:
        look = self.looks.at(path)
        if self.is_kept(path) or path in self.files:
            return look
        if look.place is _Place.FILE:
            self._check_age(path, look.stamp)
        before = self.before.places.get(path)
        if before is not None and before != look:
            raise _changed(path)
        if before is None and look.place is _Place.FILE:
            self._check_old(path, look.stamp)
        self.places[look.top] = look.place
        return look

    def check_folders(self) -> None:
        """Raise `Unknowable` if something has appeared or vanished, for however short, where it would count."""
        for folder in {os.path.dirname(top) for top in self.places}:
            stamp = _stamp_of(folder)
            before = self.before.folders.get(folder)
            if before is None:
                self._check_old(folder, stamp)
            elif before != stamp:
                raise _changed(folder)

    def _check_age(self, path: str, stamp: _Stamp) -> None:
        if _changed_at(stamp) >= self.started_ns - _CLOCK_SECONDS * 1e9:
            raise _changed(path)

    def _check_old(self, path: str, stamp: _Stamp) -> None:
        """Check the files that were not looked at before the compile: they must be old."""
        if _changed_at(stamp) >= self.started_ns - _APART_SECONDS * 1e9:
            raise Unknowable(f"{path} is so young that it may have changed while it was compiled")


def _changed(path: str) -> Unknowable:
    return Unknowable(f"{path} changed while it was compiled")


def take_snapshot(
    source: str,
    options: NvrtcOptions,
    flags: Sequence[str],
    listing: bytes,
    before: Looks,
    started_ns: int,
    is_kept: Callable[[str], bool],
) -> Snapshot:
    """Record what a compile depended on, right after it.

    `flags` are what NVRTC got, `listing` is what its front end wrote, `before` is what `look_before` returned,
    `started_ns` is when it began by `time.time_ns`, `is_kept` tells CUDA's own headers from others. Raises `Unknowable`
    when that cannot be told, which is also the case when a file changed since it began.
    """
    search = _Search.of(options, flags)
    account = Account.of(listing, lambda name: is_brought(name) or is_kept(name), _macros(options))
    reading = _Reading(started_ns, search, before, is_kept)
    for path in filter(search.is_on_disk, account.entered):
        reading.enter(path)
    for use in account.uses:
        reading.follow(use)
    for file, include in account.probes:
        reading.ask(file, include)
    reading.check_folders()
    files = reading.files.values()
    places = sorted((path, place) for path, place in reading.places.items() if path not in reading.files)
    return Snapshot(
        paths=tuple(file.path for file in files),
        stamps=tuple(file.stamp for file in files),
        hashes=b"".join(file.sha256 for file in files),
        twins=_twins(reading.stamps[file.path] for file in files),
        places=tuple(path for path, _ in places),
        found=bytes(place for _, place in places),
    )


_BUNDLED: Final = "--use-bundled-headers="


def _search_paths(flags: Iterable[str]) -> tuple[str, ...]:
    """The folders that `#include` looks in, in order. Those of bundled headers come last."""
    paths = [flag.partition("=")[2] for flag in flags if flag.startswith("--include-path=")]
    bundled = [flag.removeprefix(_BUNDLED) for flag in flags if flag.startswith(_BUNDLED)]
    paths += [path for folder in bundled for path in (folder, f"{folder}/cccl")]
    return tuple(dict.fromkeys(path.rstrip("/") or "/" for path in paths))


# ---------------------------------------------------------------------------------------------------- as bytes

_HEAD = struct.Struct("<3I")
"""The numbers of files, of places, and of bytes of the names."""
_STAMP = struct.Struct("<5Q")
_TWIN = struct.Struct("<I")


def pack(snapshots: Iterable[Snapshot]) -> bytes:
    """Return snapshots as bytes, for `unpack`."""
    return b"".join(map(_packed, snapshots))


def _packed(snapshot: Snapshot) -> bytes:
    names = os.fsencode("\0".join(snapshot.paths + snapshot.places))
    head = _HEAD.pack(len(snapshot.paths), len(snapshot.places), len(names))
    stamps = (_STAMP.pack(*stamp) for stamp in snapshot.stamps)
    twins = struct.pack(f"<{len(snapshot.twins)}I", *snapshot.twins)
    return b"".join((head, *stamps, snapshot.hashes, twins, snapshot.found, names))


def unpack(content: bytes) -> tuple[Snapshot, ...]:
    """Return what `pack` made bytes of. Raises ValueError for anything else."""
    snapshots = []
    position = 0
    while position < len(content):
        try:
            files, places, name_bytes = _HEAD.unpack_from(content, position)
        except struct.error as error:
            raise ValueError(f"not a record of headers: {error}") from error
        table = position + _HEAD.size
        hashes = table + files * _STAMP.size
        twins = hashes + files * _HASH_BYTES
        found = twins + files * _TWIN.size
        names = found + places
        position = names + name_bytes
        if position > len(content):
            raise ValueError("a record of headers is cut off")
        paths = tuple(os.fsdecode(content[names:position]).split("\0")) if name_bytes else ()
        if len(paths) != files + places:
            raise ValueError("a record of headers has the wrong number of names")
        stamps = tuple(_STAMP.iter_unpack(content[table:hashes]))
        same = tuple(index for (index,) in _TWIN.iter_unpack(content[twins:found]))
        snapshots.append(
            Snapshot(paths[:files], stamps, content[hashes:twins], same, paths[files:], content[found:names])
        )
    return tuple(snapshots)
