"""Where CUDA's own headers are: those that NVRTC carries, or those of installed wheels.

NVRTC carries headers since 13.3 and unpacks them into a folder, 26 MB. That folder is beside the cached kernels, since
it has to be as safe as they are: whoever can change a header decides what runs. Where it cannot be had, this process
makes a folder of its own, and removes it when it ends.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Final

from atomr_cuda import nvrtc
from atomr_trio._compiling.architectures import dotted
from atomr_trio._compiling.nvrtc_library import nvrtc_errors, nvrtc_version
from atomr_trio._errors import LibraryNotFound

__all__ = ["bundled_header_folders"]

_CARRIED_SINCE: Final = (13, 3)
_WHEELS: Final = (("cudart", "cuda_runtime_api.h", "runtime"), ("cccl", "cuda/std/version", "cccl"))
"""Which headers there are: their name for cuda-pathfinder, a file among them, and the package's name."""
_VERSION = re.compile(r"^#define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)

_lock = threading.Lock()
_unpacked: dict[str, str] = {}
"""The folder of the headers that this process uses, by what identifies them."""


def bundled_header_folders() -> tuple[str, ...]:
    """Return the folders to search for CUDA's headers with the installed NVRTC. Unpacks them when that is needed.

    Raises `LibraryNotFound` when there is no NVRTC, or when it carries no headers and no wheel that fits is installed.
    """
    with nvrtc_errors():
        version = nvrtc_version()
        if version >= _CARRIED_SINCE:
            info = nvrtc.nvrtcBundledHeadersInfo()
            nvrtc.nvrtcGetBundledHeadersInfo(ctypes.byref(info), None)
            if info.available:
                folder = _unpack(f"headers-{dotted(version)}-{info.numFiles}-{info.uncompressedSize}")
                return folder, os.path.join(folder, "cccl")
    return _folders_of_wheels(version)


def _unpack(name: str) -> str:
    """Unpack NVRTC's headers, once for a process, and return where they are.

    NVRTC itself takes a lock in the folder, and leaves headers alone that are there.
    """
    with _lock:
        if not os.path.isdir(_unpacked.get(name, "")):
            _unpacked[name] = _unpack_beside_the_cache(name) or _unpack_for_this_process()
        return _unpacked[name]


def _unpack_beside_the_cache(name: str) -> str | None:
    from atomr_trio._compiling.cache import NvrtcCache
    from atomr_trio._compiling.cache_folder import SUPPORTED, CacheFolder, Unusable, warn_once

    cache = NvrtcCache.default_directory()
    if cache is None or not SUPPORTED:
        return None
    folder = cache / name
    try:
        CacheFolder(folder, 0).ensure()
    except (Unusable, OSError) as problem:
        warn_once(str(folder), "headers", f"cannot keep CUDA's headers beside the kernel cache: {problem}")
        return None
    return str(folder) if not _install(folder) else None


def _unpack_for_this_process() -> str:
    folder = Path(tempfile.mkdtemp(prefix="atomr-trio-headers-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    problem = _install(folder)
    if problem:
        raise LibraryNotFound(
            f"NVRTC carries CUDA's headers and cannot unpack them: {problem}",
            library="nvrtc",
            operation="nvrtc.compile",
            advice="name a folder for them by the environment variable ATOMR_TRIO_CACHE_DIR or TMPDIR.",
        )
    return str(folder)


def _install(folder: Path) -> str:
    """Have NVRTC unpack its headers; what went wrong, in its words."""
    log = ctypes.c_char_p()
    flags = nvrtc.NVRTC_INSTALL_HEADERS_SKIP_IF_EXISTS
    status = nvrtc.nvrtcInstallBundledHeaders.status(os.fsencode(folder), flags, ctypes.byref(log))
    return "" if not status else (log.value or b"status %d" % status).decode(errors="replace")


# ---------------------------------------------------------------------------------------------------- wheels


def _folders_of_wheels(version: tuple[int, int]) -> tuple[str, ...]:
    """The folders of the installed packages with headers, which have to be of the compiler's major version."""
    found = {package: _find(header, file) for header, file, package in _WHEELS}
    missing = [package for package, folder in found.items() if folder is None]
    if missing:
        _refuse(version, missing, f"no {' and no '.join(missing)} headers are installed")
    folders = tuple(folder for folder in found.values() if folder is not None)
    theirs = _version_of(folders[0])
    if theirs[0] != version[0]:
        _refuse(version, list(found), f"the installed headers are of CUDA {dotted(theirs)}")
    return folders


def _find(header: str, file: str) -> str | None:
    """The folder that cuda-pathfinder knows for a set of headers, when it has the file that they are known by."""
    try:
        from cuda import pathfinder  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None
    find = getattr(pathfinder, "find_nvidia_header_directory", lambda name: None)  # not in its first versions
    folder = find(header)
    return folder if folder and os.path.exists(os.path.join(folder, file)) else None


def _version_of(folder: str) -> tuple[int, int]:
    """The version of CUDA that its runtime's header says; 12090 is 12.9."""
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
