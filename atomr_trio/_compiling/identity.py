"""Which NVRTC a compile would use, known without loading it where that is on record.

Loading NVRTC takes longer than reading a compiled kernel from the disk. So what a process found out is kept beside the
kernels, under a hash of what the search for the library depends on: the environment, the folders of packages, the
loader's cache. A record counts while the library's file and its folder are as they were.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import uuid
from typing import Final

import attrs

from atomr_cuda import nvrtc
from atomr_trio._compiling.build import nvrtc_build
from atomr_trio._compiling.bundled_headers import cuda_headers, stamp
from atomr_trio._compiling.cache import NvrtcCache
from atomr_trio._compiling.nvrtc_library import nvrtc_errors, nvrtc_version

__all__ = ["NvrtcIdentity", "installed_headers", "installed_nvrtc"]

_VARIABLES: Final = (nvrtc.library.override_variable, "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")
_PACKAGES: Final = ("site-packages", "dist-packages")
_FIXED_PLACES: Final = ("/etc/ld.so.cache",)


@attrs.frozen
class NvrtcIdentity:
    """What tells one compiler from another."""

    version: tuple[int, int]
    """Major and minor version."""
    build: str
    """What tells builds of one version apart."""


def installed_nvrtc(cache: NvrtcCache) -> NvrtcIdentity:
    """Return which NVRTC compiles here, from what `cache` has on record or by loading it. Blocks.

    Raises `LibraryNotFound` when there is none.
    """
    if nvrtc.library.path is not None or nvrtc.library.replaced:
        return _loaded(nvrtc.library.path)
    place = _place_of("library")
    known = _recorded(cache.get_manifest(place))
    if known is not None:
        return known
    with nvrtc_errors():
        nvrtc.library.load()
    path = str(nvrtc.library.path)
    identity = _loaded(path)
    record = {"path": path, "times": _times(path), "version": identity.version, "build": identity.build}
    cache.put_manifest(place, json.dumps(record).encode())
    return identity


def installed_headers(cache: NvrtcCache) -> str:
    """Return the name of the set of CUDA's headers that a compile with `bundled_headers` reads, likewise. Blocks.

    Raises `LibraryNotFound` when there are none.
    """
    place = _place_of("headers")
    try:
        record = json.loads(cache.get_manifest(place) or b"null")
        if record is not None and all(stamp(path) == known for path, known in record["marks"]):
            return str(record["name"])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    headers = cuda_headers()
    record = {"name": headers.name, "marks": [(path, stamp(path)) for path in headers.marks]}
    cache.put_manifest(place, json.dumps(record).encode())
    return headers.name


@functools.cache
def _loaded(path: str | None) -> NvrtcIdentity:
    with nvrtc_errors():
        version = nvrtc_version()
    try:
        return NvrtcIdentity(version, nvrtc_build(path or ""))
    except OSError:
        # Nobody can tell what it is, so that nothing it makes is for another process.
        return NvrtcIdentity(version, f"of one process: {uuid.uuid4()}")


def _recorded(record: bytes | None) -> NvrtcIdentity | None:
    if record is None:
        return None
    try:
        fields = json.loads(record)
        if fields["times"] != _times(fields["path"]):
            return None
        return NvrtcIdentity((fields["version"][0], fields["version"][1]), fields["build"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _times(path: str) -> list[list[int]]:
    """What changes when the library at `path`, or what lies beside it, is replaced."""
    states = [os.stat(each) for each in (path, os.path.dirname(os.path.realpath(path)))]
    return [[state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino] for state in states]


def _place_of(what: str) -> bytes:
    """Where it is on record what is installed."""
    return hashlib.sha256(json.dumps([what, *_search_depends_on()]).encode()).digest()


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
