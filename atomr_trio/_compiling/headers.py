"""Which header files a compile reads, so that a cached result is used as long as none of them has changed.

The options of a compile say where headers may be, not which of them it reads, and NVRTC has no option that tells.
Scanning for `#include` alone does not do: a header of CUB reaches four times as many files that way as a compile opens,
and some are named by macros. So NVRTC's front end is asked for its listing (`-Xcudafe=--list=`, in 12.x and 13.x), in
which it notes each file as it enters it. Where it writes none, what includes files from disk is not cached.

The files that were read do not say everything:

* A file may appear where the compiler looked before it found the right one. From the text of what was read come the
  names that it includes. Each is looked for in the compiler's order (headers in memory, the includer's folder unless
  ``--no-source-include``, then the include paths), and the places before the right one have to stay empty.
* `__has_include` decides by a file that need not be read. Each place it looks at has to stay as it is.
* The front end skips a file that it knows to be guarded, whatever name it is included by, without noting it. A name
  that leads to a file that was read is followed all the same, and is noted.

What remains is decided by content: as long as these files hold these bytes, and these places are empty or not as they
were, the preprocessor takes the same turns. Whatever cannot be known so makes a compile that is not cached: a name in
`__has_include` that is a macro (one that only hands on what it is given, as libcu++ has it, is looked through), options
that read or write other files, a file that changed while it was compiled.
Not noticed is a guarded header that was read, is included again by a macro under another name, and is then hidden by a
new file of that name.

CUDA's own headers are left out of all this. They are in a folder that only we write to, by a name that says what is in
it, and that name is part of the key.

A `Snapshot` records each file with its SHA-256 and with what `stat` says, so that seeing that all is as it was costs
one call a file. A file that changed less than two seconds before it was recorded may change again without a new time;
it is read again until it is older. This file knows nothing of caches, and blocks.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import os
import re
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeAlias

import attrs

from atomr_trio._compiling.bundled_headers import is_kept
from atomr_trio._compiling.compiler import NOWHERE
from atomr_trio._compiling.options import NvrtcOptions

__all__ = [
    "Dependence",
    "Listing",
    "Snapshot",
    "Unknowable",
    "dependence",
    "pack",
    "take_snapshot",
    "unpack",
]

# ---------------------------------------------------------------------------------------------------- directives

_FILE_OPTIONS: Final = ("I", "include", "pre-include", "preinclude", "use-bundled-headers", "pch", "create", "use-pch")
_OUTPUT_OPTIONS: Final = ("time", "fdevice-time-trace", "Xcudafe")
"""How the names of extra options begin that read files, and that write them."""

# A search holds the interpreter's lock until it is through with a text, and some headers have half a megabyte. So these
# patterns begin with a letter that is searched for quickly, and other spellings become that one first.
_OTHER_SPELLINGS: Final = ((b"??/", b"\\"), (b"??=", b"#"), (b"%:", b"#"))
_SPLICE = re.compile(rb"\\[ \t]*\r?\n")
_SPACE = rb"(?:[ \t\f\v]|/\*.*?\*/)*"
_NAME = rb'(?:<([^>\n]+)>|"([^"\n]+)")?'
_DIRECTIVE = re.compile(rb"#" + _SPACE + rb"(include_next|include|import|embed)\b" + _SPACE + _NAME, re.DOTALL)
_HAS_INCLUDE = re.compile(rb"__has_(include_next|include|embed)" + _SPACE + rb"\(\s*" + _NAME, re.DOTALL)
_DEFINED_HAS_INCLUDE = re.compile(rb"\bdefine\s+__has_(?:include|embed)")
_WRAPPER = re.compile(
    rb"#" + _SPACE + rb"define[ \t]+(\w+)\([ \t]*(\w+)[ \t]*\)[ \t]+"
    rb"__has_(?:include|embed)[ \t]*\([ \t]*\2[ \t]*\)[ \t]*(?=\n|$|//)"
)
"""A macro that hands what it is given to `__has_include`, and does nothing else."""
_NO_USE = rb"(?:\bdefined?\s*\(?\s*|\bundef\s+|\bifn?def\s+)"
_RENAMED_HAS_INCLUDE = re.compile(
    rb"#" + _SPACE + rb"define\b[^\n]*\s__has_(?:include|embed)(?:_next)?\b(?!\s*\(\s*[<\"])"
)


class Unknowable(Exception):
    """It cannot be known what a compile depends on; the text says why."""


class Dependence(enum.Enum):
    """What decides the result of a compile, beside its source, its options and its target."""

    NOTHING = "nothing"
    """No file."""
    HEADERS = "headers"
    """The headers that it includes."""
    UNKNOWN = "unknown"
    """Files that are not looked for, or that it has to write."""


@attrs.frozen
class _Include:
    """One `#include` by name."""

    name: str
    quoted: bool
    next: bool


@attrs.frozen
class _Directives:
    """What a text says of other files, in whatever branch of an `#if` or in a comment."""

    includes: frozenset[_Include]
    probes: frozenset[tuple[str, bool]]
    """What `__has_include` asks for: the name, and whether it is quoted."""
    computed: bool
    """Whether an `#include` names its file by a macro."""
    problem: str
    """Why nobody can tell what it asks for; empty when one can."""


def dependence(source: str, options: NvrtcOptions) -> Dependence:
    """Tell what a compile depends on. It errs on the safe side: an `#include` in a comment counts."""
    if any(option.lstrip("-").startswith(_FILE_OPTIONS + _OUTPUT_OPTIONS) for option in options.extra_options):
        return Dependence.UNKNOWN
    in_memory = {name for name, _ in options.headers}
    texts = [_usual(text.encode()) for text in (source, *(text for _, text in options.headers))]
    wrappers = _wrappers(texts)
    for text in texts:
        found = _directives(text, wrappers)
        outside = any(include.name not in in_memory for include in found.includes)
        if outside or found.probes or found.computed or found.problem:
            return Dependence.HEADERS
    return Dependence.NOTHING


def _usual(text: bytes) -> bytes:
    """The text with one spelling of each mark, and with whole lines."""
    for spelling, usual in _OTHER_SPELLINGS:
        text = text.replace(spelling, usual)
    return _SPLICE.sub(b"", text)


def _wrappers(texts: Iterable[bytes]) -> frozenset[bytes]:
    """The names of the macros that stand for `__has_include` with whatever they are given."""
    return frozenset(match[1] for text in texts if b"__has_" in text for match in _WRAPPER.finditer(text))


def _directives(text: bytes, wrappers: frozenset[bytes]) -> _Directives:
    """What a text in its usual spelling says."""
    includes, computed, problem = set(), False, ""
    for kind, angled, quoted in _DIRECTIVE.findall(text):
        if kind in (b"embed", b"import"):
            problem = f"there is an #{kind.decode()}"
        elif angled or quoted:
            includes.add(_Include(os.fsdecode(angled or quoted), bool(quoted), kind == b"include_next"))
        else:
            computed = True
    probes, unclear = _probes(text, wrappers)
    problem = problem or unclear
    return _Directives(frozenset(includes), frozenset(probes), computed, problem)


def _probes(text: bytes, wrappers: frozenset[bytes]) -> tuple[set[tuple[str, bool]], str]:
    """What a text asks for by `__has_include`, and why that cannot be told; empty when it can."""
    asked: list[tuple[bytes, bytes]] = []
    problem = ""
    if wrappers:
        asked, problem = _asked_by(wrappers, text)
    if b"__has_" in text:
        text = _WRAPPER.sub(b"", text)
        found = [match[1:] for match in _HAS_INCLUDE.findall(text)]
        asked += found
        if sum(not any(name) for name in found) > len(_DEFINED_HAS_INCLUDE.findall(text)):
            problem = "a macro names the file in __has_include"
        elif _RENAMED_HAS_INCLUDE.search(text):
            problem = "a macro stands for __has_include"
    return {(os.fsdecode(angled or quoted), bool(quoted)) for angled, quoted in asked if angled or quoted}, problem


def _asked_by(wrappers: frozenset[bytes], text: bytes) -> tuple[list[tuple[bytes, bytes]], str]:
    """The same for the macros that stand for it."""
    asked, problem = [], ""
    for no_use, _, angled, quoted in _uses_of(wrappers).findall(text):
        if angled or quoted:
            asked.append((angled, quoted))
        elif not no_use:
            problem = "a macro names the file in __has_include"
    return asked, problem


@functools.lru_cache(maxsize=16)
def _uses_of(wrappers: frozenset[bytes]) -> re.Pattern[bytes]:
    names = b"|".join(sorted(wrappers))
    return re.compile(rb"(" + _NO_USE + rb")?\b(" + names + rb")\b" + _SPACE + rb"(?:\(\s*" + _NAME + rb")?", re.DOTALL)


# ---------------------------------------------------------------------------------------------------- the listing


class Listing:
    """What the front end writes as it compiles, in memory; a context manager.

    `flag` is the option that NVRTC gets, `files()` what it entered.
    """

    def __init__(self) -> None:
        self._descriptor = -1

    def __enter__(self) -> Self:
        self._descriptor = os.memfd_create("atomr-trio-listing", os.MFD_CLOEXEC)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    @property
    def flag(self) -> str:
        return f"-Xcudafe=--list=/proc/self/fd/{self._descriptor}"

    def refused(self, log: str) -> bool:
        """Tell from the log of a compile that failed whether it failed for the flag."""
        return any(problem in log for problem in ("Xcudafe", "Command-line error", "raw listing"))

    def files(self) -> tuple[str, ...]:
        """Return the files that were entered, in order. Raises `Unknowable` when nothing was written."""
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            entered = [match[1] for match in map(_ENTERED.fullmatch, file) if match]
        if not entered:
            raise Unknowable("this NVRTC does not tell which files it reads")
        return tuple(map(os.fsdecode, dict.fromkeys(entered)))


_ENTERED = re.compile(rb'L \d+ "(.*)" 1\r?\n?')
"""Line number, name, and a 1 where a file begins; 2 where one is come back to, nothing for `#line`. Every other line
of a listing begins with another letter."""


def _is_own(name: str) -> bool:
    """Whether NVRTC brings a file itself; those have names without a folder."""
    return name.startswith("__nv_") and "/" not in name


# ---------------------------------------------------------------------------------------------------- snapshots

_Stamp: TypeAlias = tuple[int, int, int, int, int]
_UNTRUSTED: Final[_Stamp] = (0, 0, 0, 0, 0)
_RACY_NS: Final = 2_000_000_000
_HASH_BYTES: Final = 32
_CLOCK_SECONDS: Final = 0.05
"""How far the clock of a file system may be behind the clock of the process."""


class _Place(enum.IntEnum):
    """What is at a path that a compiler looks at."""

    NOTHING = 0
    FILE = 1
    OTHER = 2


class _File(NamedTuple):
    """A file that was read."""

    path: str
    stamp: _Stamp
    """What `stat` said; `_UNTRUSTED` when that is too young to be relied on."""
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
    """What `stat` said of each; `_UNTRUSTED` for what is too young to be relied on."""
    hashes: bytes
    """The SHA-256 of each, one after the other."""
    places: tuple[str, ...]
    """Paths that were not read. Below one with nothing there is nothing."""
    found: bytes
    """What was at each, a `_Place`."""

    @property
    def digest(self) -> bytes:
        """What belongs into a key: a hash of the names, of what the files hold, and of what is at the places."""
        # Names hold no NUL, and the counts say which of them are what.
        names = os.fsencode("\0".join(self.paths + self.places))
        counts = struct.pack("<2Q", len(self.paths), len(self.places))
        return hashlib.sha256(b"".join((counts, self.hashes, self.found, names))).digest()

    def renewed(self) -> Snapshot | None:
        """Return the snapshot if everything is still as it says, with new times for files whose times alone changed.

        None when anything differs.
        """
        if bytes(map(_place, self.places)) != self.found:
            return None
        stamps = list(self.stamps)
        try:
            for index in self._touched():
                file, _, _ = _read(self.paths[index])
                if file.sha256 != self.hashes[index * _HASH_BYTES : (index + 1) * _HASH_BYTES]:
                    return None
                stamps[index] = file.stamp
        except (OSError, ValueError):
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


def _changed_at(stamp: _Stamp) -> int:
    """When a file changed last, by what cannot be set back."""
    return max(stamp[1], stamp[2])


def _place(path: str) -> _Place:
    try:
        # Most places are empty, and an exception would cost more than the question.
        if not os.access(path, os.F_OK):
            return _Place.NOTHING
        return _Place.FILE if stat.S_ISREG(os.stat(path).st_mode) else _Place.OTHER
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


@attrs.define
class _Reading:
    """What is found out after a compile."""

    started_ns: int
    paths: tuple[str, ...]
    in_memory: frozenset[str]
    read_paths: set[str] = attrs.Factory(set)
    files: dict[str, _File] = attrs.Factory(dict)
    """What was read, without CUDA's own headers: those are known by the name of their set."""
    places: dict[str, _Place] = attrs.Factory(dict)
    inodes: set[tuple[int, int]] = attrs.Factory(set)
    computed: dict[str, None] = attrs.Factory(dict)
    """Folders of headers with an `#include` that a macro names."""

    def read(self, path: str) -> bytes:
        """Note a file that the compiler read; its text."""
        try:
            file, text, stamp = _read(path)
        except (OSError, ValueError) as error:
            raise Unknowable(f"a header cannot be read again: {error}") from error
        self._check_older(path, stamp)
        if not is_kept(path):
            self.files[path] = file
        self.read_paths.add(path)
        self.inodes.add(stamp[3:])
        return text

    def follow(self, folder: str, found: _Directives) -> None:
        """Note the places where the names in a text of `folder` are looked for."""
        if found.problem:
            raise Unknowable(found.problem)
        if found.computed:
            self.computed[folder] = None
        for include in found.includes:
            if include.name not in self.in_memory:
                self._follow_include(self._candidates(folder, include.name, include.quoted), include.next)
        for name, quoted in found.probes:
            for path in self._candidates(folder, name, quoted):
                if self._look(path):
                    break

    def follow_computed(self) -> None:
        """Note where files that were read would have been found earlier, if it was a macro that named them."""
        if not self.computed:
            return
        for file in sorted(self.read_paths):
            for index, path in enumerate(self.paths):
                name = file.removeprefix(path + "/")
                if name != file:
                    for earlier in (*self.computed, *self.paths[:index]):
                        self._look(f"{earlier}/{name}")

    def _candidates(self, folder: str, name: str, quoted: bool) -> Iterator[str]:
        if os.path.isabs(name):
            yield name
            return
        if quoted:
            yield os.path.join(folder, name)
        yield from (f"{path}/{name}" for path in self.paths)

    def _follow_include(self, candidates: Iterable[str], further: bool) -> None:
        """Note the places before the file that is found, if that was read; else the `#include` was never reached."""
        before: list[str] = []
        for path in candidates:
            try:
                status = os.stat(path)
            except (OSError, ValueError):
                before.append(path)
                continue
            if not stat.S_ISREG(status.st_mode):
                before.append(path)
                continue
            self._check_older(path, _stamp(status))
            if (status.st_ino, status.st_dev) in self.inodes:
                for place in before:
                    self._look(place)
                before.clear()
                if path not in self.read_paths:
                    self.read(path)
            if not further:
                return

    def _look(self, path: str) -> bool:
        place = _place(path)
        if place is _Place.FILE:
            self._check_older(path, _stamp(os.stat(path)))
        if place is _Place.NOTHING:
            path = self._top_of_nothing(path)
        if path not in self.read_paths and not is_kept(path):
            self.places[path] = place
        return place is _Place.FILE

    def _top_of_nothing(self, path: str) -> str:
        """The highest folder on the way to `path` that is not there: one for all that would be in it."""
        parent = os.path.dirname(path)
        while parent != path and _place(parent) is _Place.NOTHING:
            path, parent = parent, os.path.dirname(parent)
        return path

    def _check_older(self, path: str, stamp: _Stamp) -> None:
        if _changed_at(stamp) >= self.started_ns - _CLOCK_SECONDS * 1e9 and not is_kept(path):
            raise Unknowable(f"{path} changed while it was compiled")


def take_snapshot(
    source: str, options: NvrtcOptions, flags: Sequence[str], entered: Iterable[str], started_ns: int
) -> Snapshot:
    """Record what a compile depended on, right after it.

    `flags` are what NVRTC got, `entered` is what its listing names, `started_ns` is when it began by `time.time_ns`.
    Raises `Unknowable` when that cannot be told, which is also the case when a file changed since it began.
    """
    in_memory = frozenset(name for name, _ in options.headers)
    reading = _Reading(started_ns, _search_paths(flags), in_memory)
    texts = [(NOWHERE, text.encode()) for text in (source, *(text for _, text in options.headers))]
    on_disk = (name for name in entered if not (name in in_memory or name.startswith(NOWHERE) or _is_own(name)))
    texts += [(os.path.dirname(path), reading.read(path)) for path in on_disk]
    texts = [(folder, _usual(text)) for folder, text in texts]
    wrappers = _wrappers(text for _, text in texts)
    for folder, text in texts:
        reading.follow(folder, _directives(text, wrappers))
    reading.follow_computed()
    files = reading.files.values()
    places = sorted(reading.places.items())
    return Snapshot(
        paths=tuple(file.path for file in files),
        stamps=tuple(file.stamp for file in files),
        hashes=b"".join(file.sha256 for file in files),
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
"""How many files, how many places, and how many bytes the names take."""
_STAMP = struct.Struct("<5Q")


def pack(snapshots: Iterable[Snapshot]) -> bytes:
    """Return snapshots as bytes, for `unpack`."""
    return b"".join(map(_packed, snapshots))


def _packed(snapshot: Snapshot) -> bytes:
    names = os.fsencode("\0".join(snapshot.paths + snapshot.places))
    head = _HEAD.pack(len(snapshot.paths), len(snapshot.places), len(names))
    stamps = (_STAMP.pack(*stamp) for stamp in snapshot.stamps)
    return b"".join((head, *stamps, snapshot.hashes, snapshot.found, names))


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
        found = hashes + files * _HASH_BYTES
        names = found + places
        position = names + name_bytes
        if position > len(content):
            raise ValueError("a record of headers is cut off")
        paths = tuple(os.fsdecode(content[names:position]).split("\0")) if name_bytes else ()
        if len(paths) != files + places:
            raise ValueError("a record of headers has the wrong number of names")
        stamps = tuple(_STAMP.iter_unpack(content[table:hashes]))
        snapshots.append(Snapshot(paths[:files], stamps, content[hashes:found], paths[files:], content[found:names]))
    return tuple(snapshots)
