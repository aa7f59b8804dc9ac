"""The NVRTC that a compile would use, from a record if there is one, without loading the library.

Loading NVRTC takes longer than reading a compiled kernel from the disk. So what a process found out is kept beside the
kernels, under a hash of what the search for the library depends on: the environment, the folders of packages, the
loader's cache. A record counts while the library's file and its folder are as they were, and so is the folder of links
that leads there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterable
from typing import Any, Final

import attrs

from atomr_cuda import nvrtc
from atomr_trio._compiling.build import builtins_beside, nvrtc_build
from atomr_trio._compiling.bundled_headers import cuda_headers, stamp
from atomr_trio._compiling.cache import NvrtcCache
from atomr_trio._compiling.nvrtc_library import nvrtc_errors, nvrtc_version

__all__ = ["NvrtcIdentity", "installed_nvrtc"]

_VARIABLES: Final = (nvrtc.library.override_variable, "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")
_PACKAGES: Final = ("site-packages", "dist-packages")
_FIXED_PLACES: Final = ("/etc/ld.so.cache",)


@attrs.frozen
class NvrtcIdentity:
    """The properties that distinguish one compiler from another."""

    version: tuple[int, int]
    """Major and minor version."""
    build: str
    """The identity of the build, which distinguishes builds of one version."""
    headers: str | None = None
    """The name of the set of CUDA's headers that `bundled_headers` stands for; None if it was not requested."""


def installed_nvrtc(cache: NvrtcCache, *, headers: bool = False) -> NvrtcIdentity:
    """Return the identity of the NVRTC that compiles here, from the record in `cache` or by loading it. Blocks.

    With `headers` the result also names CUDA's own headers that a compile with `bundled_headers` reads.

    Raises `LibraryNotFound` when there is no NVRTC, or when there are none of the headers.
    """
    loaded = nvrtc.library.path is not None or nvrtc.library.replaced
    if loaded and not headers:
        return _loaded(nvrtc.library.path)
    place = hashlib.sha256(json.dumps(_search_depends_on()).encode()).digest()
    record = _record(cache.get_manifest(place))
    library = _known_library(record)
    name = _known_headers(record) if headers else None
    if library is None or (headers and name is None):
        with nvrtc_errors():
            nvrtc.library.load()
        library = _loaded(nvrtc.library.path)
        name = _put_on_record(cache, place, library, headers)
    elif loaded:
        library = _loaded(nvrtc.library.path)
    return attrs.evolve(library, headers=name)


def _put_on_record(cache: NvrtcCache, place: bytes, library: NvrtcIdentity, headers: bool) -> str | None:
    """Record the present state for other processes; return the name of the headers."""
    path = nvrtc.library.path
    record: dict[str, Any] = {}
    if path is not None:
        record |= {"path": path, "times": _times(_files_of(path)), "version": library.version, "build": library.build}
    found = cuda_headers() if headers else None
    if found is not None:
        record |= {"headers": found.name, "marks": [(mark, stamp(mark)) for mark in found.marks]}
    cache.put_manifest(place, json.dumps(record).encode())
    return None if found is None else found.name


@functools.cache
def _loaded(path: str | None) -> NvrtcIdentity:
    with nvrtc_errors():
        version = nvrtc_version()
    with contextlib.suppress(OSError):
        if path is None or _is_loaded_from(path):
            return NvrtcIdentity(version, nvrtc_build(path or ""))
    # Its identity cannot be determined, so its results are not for other processes.
    return NvrtcIdentity(version, f"of one process: {os.urandom(16).hex()}")


def _is_loaded_from(path: str) -> bool:
    """Return whether `path` leads to the files that are loaded: a link may lead elsewhere by now."""
    if not os.path.isabs(path):
        return True
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        mapped = {"/" + line.rstrip("\n").partition("/")[2] for line in maps if "libnvrtc" in line}
    builtins = {each for each in mapped if os.path.basename(each).startswith("libnvrtc-builtins")}
    return os.path.realpath(path) in mapped and builtins <= set(builtins_beside(path))


def _record(content: bytes | None) -> dict[str, Any]:
    try:
        return dict(json.loads(content or b"{}"))
    except (ValueError, TypeError):
        return {}


def _known_library(record: dict[str, Any]) -> NvrtcIdentity | None:
    """Return the library of the record, if its file is unchanged."""
    try:
        if record["times"] != _times(path for path, _ in record["times"]):
            return None
        return NvrtcIdentity((record["version"][0], record["version"][1]), record["build"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _known_headers(record: dict[str, Any]) -> str | None:
    """Return the headers of the record, if they have not been installed again."""
    try:
        known = all(stamp(path) == before for path, before in record["marks"])
        return str(record["headers"]) if known else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _files_of(path: str) -> tuple[str, ...]:
    """Return the files that change when the library at `path`, or a file beside it, is replaced."""
    folders = (os.path.dirname(path), os.path.dirname(os.path.realpath(path)))
    return (path, *dict.fromkeys(folders), *builtins_beside(path))


def _times(paths: Iterable[str]) -> list[list[object]]:
    states = ((path, os.stat(path)) for path in paths)
    return [[path, [state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino]] for path, state in states]


def _search_depends_on() -> list[object]:
    variables = [os.environ.get(name, "") for name in _VARIABLES]
    packages = [path for path in sys.path if os.path.basename(path) in _PACKAGES]
    places = [*packages, *(f"{path}/nvidia" for path in packages), *_FIXED_PLACES]
    places += [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    return [sys.prefix, variables, [(path, _changed(path)) for path in places]]


def _changed(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
