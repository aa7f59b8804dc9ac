"""CUDA's own headers: those that NVRTC carries, or those of installed wheels, in a folder that nobody edits.

NVRTC carries headers since 13.3 and unpacks them, 26 MB; for an older one those of the wheels are copied. The folder is
beside the cached kernels, since it has to be as safe as they are: whoever can change a header decides what runs. Where
it cannot be had, this process makes a folder of its own, and removes it when it ends.

A set of headers has a name, which says which NVRTC or which installation of the wheels they are of. So a cached kernel
need not look at hundreds of files to know that it is good: the name is enough (`CudaHeaders`). A compile does look: the
set has to be whole, and stay so until NVRTC is through (whole_folder.py). What is edited in the wheels' own folders
counts from their next installation on.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

import attrs

from atomr_cuda import nvrtc
from atomr_trio._compiling.architectures import dotted
from atomr_trio._compiling.cache_folder import HEADERS, SUPPORTED, CacheFolder, Unusable, warn_once
from atomr_trio._compiling.nvrtc_library import nvrtc_errors, nvrtc_version
from atomr_trio._compiling.whole_folder import Fill, held, is_as_seen, make_whole, seen
from atomr_trio._values.errors import LibraryNotFound

__all__ = [
    "CudaHeaders",
    "HeadersInUse",
    "bundled_header_folders",
    "cuda_headers",
    "headers_in_use",
    "is_kept",
    "stamp",
]

_CARRIED_SINCE: Final = (13, 3)
_WHEELS: Final = (("cudart", "cuda_runtime_api.h", "runtime"), ("cccl", "cuda/std/version", "cccl"))
"""The sets of headers: each set's name for cuda-pathfinder, a file in it, and the package's name."""
_VERSION = re.compile(r"^#define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)

_ATTEMPTS: Final = 10

_lock = threading.Lock()
_kept: dict[str, str] = {}
"""The folder of the headers that this process uses, by their name."""
_own_folders: set[str] = set()
"""Those of them that no other process uses."""


@attrs.frozen
class CudaHeaders:
    """A set of CUDA's headers. Two sets with the same name have the same content."""

    name: str
    marks: tuple[str, ...]
    """Files that are written again whenever the set is installed."""
    folders: tuple[str, ...]
    """The folders to search, relative to the folder that holds the set."""
    fill: Fill = attrs.field(eq=False, repr=False)


def stamp(path: str) -> list[int]:
    """Return a value that changes when a file is installed again. Raises `OSError`."""
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def cuda_headers() -> CudaHeaders:
    """Return the set of headers for the installed NVRTC. Asks the file system, and loads NVRTC.

    Raises `LibraryNotFound` when there is no NVRTC, or when it carries no headers and no wheel that fits is installed.
    """
    with nvrtc_errors():
        version = nvrtc_version()
        if version >= _CARRIED_SINCE:
            info = nvrtc.nvrtcBundledHeadersInfo()
            nvrtc.nvrtcGetBundledHeadersInfo(ctypes.byref(info), None)
            if info.available:
                name = f"{HEADERS}{dotted(version)}-{info.numFiles}-{info.uncompressedSize}"
                return CudaHeaders(name, _the_library_itself(), ("", "cccl"), _install)
    return _headers_of_wheels(version)


def _the_library_itself() -> tuple[str, ...]:
    return () if nvrtc.library.path is None else (nvrtc.library.path,)


@attrs.frozen
class HeadersInUse:
    """A set of CUDA's headers that nobody deletes, as long as it is in use."""

    folder: str
    """The folder that holds the set; empty when none was asked for."""
    folders: tuple[str, ...]
    """What to search."""
    _seen: object = None
    """How the folder was found whole."""

    def intact(self) -> bool:
        """Tell whether no header has vanished or appeared since, not even one that another thread has put back."""
        return not self.folder or (is_as_seen(self.folder) and seen(self.folder) == self._seen)


@contextlib.contextmanager
def headers_in_use(wanted: bool = True) -> Iterator[HeadersInUse]:
    """Hold CUDA's headers for the installed NVRTC, whole. Unpacks them when that is needed; none if not `wanted`.

    Raises what `cuda_headers` does, and `LibraryNotFound` when there is no room for them anywhere.
    """
    if not wanted:
        yield HeadersInUse("", ())
        return
    headers = cuda_headers()
    with contextlib.ExitStack() as stack:
        with _lock:
            folder = _hold(headers, stack)
            found = seen(folder)
        yield HeadersInUse(folder, tuple(os.path.join(folder, name).rstrip("/") for name in headers.folders), found)


def bundled_header_folders() -> tuple[str, ...]:
    """Return the folders to search for CUDA's headers with the installed NVRTC. Raises as `headers_in_use` does."""
    with headers_in_use() as headers:
        return headers.folders


def _hold(headers: CudaHeaders, stack: contextlib.ExitStack) -> str:
    """Hold the folder of a set, and fill it. Somebody may have taken it away."""
    for _ in range(_ATTEMPTS):
        folder = _kept.get(headers.name, "")
        if not os.path.isdir(folder):
            folder = _kept[headers.name] = _folder_beside_the_cache(headers) or _folder_of_this_process()
        problem = _whole_and_held(folder, headers, stack)
        if problem is None:
            continue
        if problem and folder not in _own_folders:
            # Not there, then: no space, or only to be read.
            folder = _kept[headers.name] = _folder_of_this_process()
            problem = _whole_and_held(folder, headers, stack)
        if problem:
            _refuse_place(problem)
        return folder
    _refuse_place("another process deletes them again and again")


def _whole_and_held(folder: str, headers: CudaHeaders, stack: contextlib.ExitStack) -> str | None:
    """Return the problem in words; None when the folder was taken away."""
    try:
        if not stack.enter_context(held(folder)):
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error)
    return make_whole(folder, headers.fill)


def is_kept(path: str) -> bool:
    """Tell whether a file is in a set that this process uses, so that its folder's name determines its content."""
    folders = [folder for folder in _kept.values() if path.startswith(f"{folder}/")]
    if folders and "/../" in path:
        path = os.path.realpath(path)
        return any(path.startswith(f"{os.path.realpath(folder)}/") for folder in folders)
    return bool(folders)


def _folder_beside_the_cache(headers: CudaHeaders) -> str | None:
    from atomr_trio._compiling.cache import NvrtcCache

    cache = NvrtcCache.default_directory()
    if cache is None or not SUPPORTED:
        return None
    folder = cache / headers.name
    try:
        CacheFolder(folder, 0).ensure()
    except (Unusable, OSError) as problem:
        warn_once(str(folder), "headers", f"cannot keep CUDA's headers beside the kernel cache: {problem}")
        return None
    return str(folder)


def _folder_of_this_process() -> str:
    try:
        folder = tempfile.mkdtemp(prefix="atomr-trio-headers-")
    except OSError as problem:
        _refuse_place(str(problem))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _own_folders.add(folder)
    return folder


def _refuse_place(problem: str) -> NoReturn:
    raise LibraryNotFound(
        f"there is no folder for CUDA's headers: {problem}",
        library="nvrtc",
        operation="nvrtc.compile",
        advice="name a folder for them by the environment variable ATOMR_TRIO_CACHE_DIR or TMPDIR.",
    )


def _install(folder: Path) -> str:
    """Have NVRTC unpack its headers into an empty folder."""
    log = ctypes.c_char_p()
    flags = nvrtc.NVRTC_INSTALL_HEADERS_SKIP_IF_EXISTS
    status = nvrtc.nvrtcInstallBundledHeaders.status(os.fsencode(folder), flags, ctypes.byref(log))
    return "" if not status else (log.value or b"status %d" % status).decode(errors="replace")


# ---------------------------------------------------------------------------------------------------- wheels


def _headers_of_wheels(version: tuple[int, int]) -> CudaHeaders:
    """Return the headers of the installed packages, which must be of the compiler's major version."""
    found = {package: _find(header, file) for header, file, package in _WHEELS}
    missing = [package for package, folder in found.items() if folder is None]
    if missing:
        _refuse(version, missing, f"no {' and no '.join(missing)} headers are installed")
    origins = {package: folder for package, folder in found.items() if folder is not None}
    theirs = _version_of(origins["runtime"])
    if theirs[0] != version[0]:
        _refuse(version, list(found), f"the installed headers are of CUDA {dotted(theirs)}")
    marks = tuple(os.path.join(origins[package], file) for _, file, package in _WHEELS)
    installed = json.dumps([(mark, stamp(mark)) for mark in marks])
    name = f"{HEADERS}{dotted(theirs)}-{hashlib.sha256(installed.encode()).hexdigest()[:16]}"
    return CudaHeaders(name, marks, tuple(origins), functools.partial(_copy, origins))


def _copy(origins: dict[str, str], folder: Path) -> str:
    """Copy the packages' headers, each into its own folder. One that is inside another is copied once."""

    def leave_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if os.path.join(folder, name) in origins.values()]

    try:
        for package, origin in origins.items():
            shutil.copytree(origin, folder / package, ignore=leave_out)
    except (OSError, shutil.Error) as problem:
        return str(problem)
    return ""


def _find(header: str, file: str) -> str | None:
    """Return the folder that cuda-pathfinder knows for a set of headers, if it has the file that identifies them."""
    try:
        from cuda import pathfinder  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None
    find = getattr(pathfinder, "find_nvidia_header_directory", lambda name: None)  # not in its first versions
    folder = find(header)
    return folder if folder and os.path.exists(os.path.join(folder, file)) else None


def _version_of(folder: str) -> tuple[int, int]:
    """Return the version of CUDA that its runtime's header states; 12090 is 12.9."""
    match = _VERSION.search(Path(folder, "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace"))
    number = int(match[1]) if match else 0
    return number // 1000, number % 1000 // 10


def _refuse(version: tuple[int, int], packages: list[str], problem: str) -> None:
    suffix = "-cu12" if version[0] == 12 else ""
    wheels = " ".join(f"'nvidia-cuda-{package}{suffix}=={dotted(version)}.*'" for package in packages)
    raise LibraryNotFound(
        f"bundled_headers: NVRTC {dotted(version)} carries no CUDA headers, and {problem}",
        library="nvrtc",
        operation="nvrtc.compile",
        advice=f"pip install {wheels}, or use NVRTC {dotted(_CARRIED_SINCE)} or newer, which brings its own.",
    )
