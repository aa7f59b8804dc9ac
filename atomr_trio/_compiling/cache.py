"""The cache of compiled programs: in memory, and on disk for the next process.

An entry is a whole `CompiledProgram`: the images, the names, the parameters of each kernel, the log. It is found by
`NvrtcCacheKey`, a hash of everything that decides what the compiler makes. A file holds a table in JSON and the
unchanged images; it contains no Python code.

This file knows the parts of a program and of its key. `cache_folder` writes the files and checks who may have written
them. This file may not depend on devices, tasks or the compiler library.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import attrs

from atomr_trio._compiling.cache_folder import SUPPORTED, CacheFolder, Unusable, warn_once
from atomr_trio._compiling.compiler import CompiledProgram, CompressedText
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._compiling.told import of_plain, plain
from atomr_trio._values.errors import InvalidArgument
from atomr_trio._values.long_texts import cuts
from atomr_trio._values.parameters import Elements, Parameter, ParameterKind
from atomr_trio._values.signatures import KernelSignature

__all__ = ["CachedKernel", "NvrtcCache", "NvrtcCacheKey"]

_FORMAT: Final = 6
"""Part of every key. It changes with what an entry holds, and with how we read what the compiler wrote."""

_DIRECTORY_VARIABLE: Final = "ATOMR_TRIO_CACHE_DIR"
_LIMIT_VARIABLE: Final = "ATOMR_TRIO_CACHE_MAX_BYTES"
_DEFAULT_MAX_BYTES: Final = 1 << 30

_MEMORY_BYTES: Final = 256 << 20
_MEMORY_KERNELS: Final = 1024

_KERNEL: Final = ".kernel"
_MANIFEST: Final = ".manifest"

_IMAGES: Final = ("ptx", "cubin", "ltoir")
_DIGEST_BYTES: Final = 32


# ---------------------------------------------------------------------------------------------------- keys


@attrs.frozen
class NvrtcCacheKey:
    """The key of one compile: a hash of everything that decides its result. Made by `NvrtcCacheKey.of`."""

    digest: bytes
    """SHA-256, 32 bytes."""

    def __str__(self) -> str:
        return self.digest.hex()

    @classmethod
    def of(
        cls,
        source: str,
        options: NvrtcOptions,
        target: str,
        nvrtc_version: tuple[int, int],
        nvrtc_build: str,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> NvrtcCacheKey:
        """Return the key of one compile.

        `source` is the text, `options` are all of its options, and `target` is the architecture they come to:
        "compute_80", "sm_90". `nvrtc_version` is the compiler's version, major and minor; `nvrtc_build` tells builds of
        one version apart. `headers` are the files that the compiler reads, each by the name that is included and the
        SHA-256 of its content. The hash is that of all of it as JSON, which differs for any two compiles.

        Raises nothing.
        """
        # The bundled headers' folder would have to be asked of the library; what is read there is among the headers.
        flags = attrs.evolve(options, bundled_headers=False).flags(target)
        read = [(name, content.hex()) for name, content in headers]
        parts = (options.identity(), flags, target, nvrtc_version, nvrtc_build, read)
        written = hashlib.sha256(f'[{_FORMAT}, "'.encode())
        for piece in cuts(source):
            written.update(_as_bytes(piece)[1:-1])
        written.update(b'", ' + _as_bytes(parts)[1:])
        return cls(written.digest())


def _as_bytes(value: object) -> bytes:
    """Return lists, texts, numbers and None as bytes, different for any two values. Raises TypeError for others."""
    # Not escaped: half of a surrogate pair could not be written otherwise.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


# ---------------------------------------------------------------------------------------------------- entries


@attrs.frozen(eq=False)
class CachedKernel:
    """An entry of an `NvrtcCache`. Two of them are equal only when they are the same object."""

    key: NvrtcCacheKey
    """The key of the compile."""
    program: CompiledProgram
    """The result of the compile: images, names, parameters, log."""
    nbytes: int
    """The size of its images and tables, in bytes."""
    created: float
    """The time of the compile, in seconds since the epoch."""


def _encode(program: CompiledProgram, created: float) -> list[bytes]:
    """An entry's parts: a table in JSON, and the images. One that is not there is empty and named in the table.

    PTX is compressed if there is machine code, because then it is seldom needed. A parameter that several kernels have
    alike is written once, since a program may have hundreds of kernels with the same few: to read them is most of what
    a hit costs.
    """
    images = [getattr(program, name) for name in _IMAGES]
    if program.cubin is not None:
        images[0] = CompressedText.of(program.ptx).compressed
    parameters: dict[Parameter, int] = {}
    entries = {name: _plain_signature(signature, parameters) for name, signature in program.entries.items()}
    table = {
        "created": created,
        "missing": [name for name, image in zip(_IMAGES, images, strict=True) if image is None],
        "lowered_names": dict(program.lowered_names),
        "parameters": list(map(_plain_parameter, parameters)),
        "entries": entries,
        "told": plain(program.told),
        "log": program.log,
        "target": program.target,
        "nvrtc_version": program.nvrtc_version,
    }
    return [json.dumps(table, separators=(",", ":")).encode(), *(image or b"" for image in images)]


def _decode(key: NvrtcCacheKey, parts: list[bytes]) -> CachedKernel:
    """Read what `_encode` wrote. Raises ValueError or a similar error for anything else."""
    table = json.loads(parts[0])
    images: dict[str, Any] = {**dict(zip(_IMAGES, parts[1:], strict=True)), **dict.fromkeys(table["missing"])}
    if images["cubin"] is not None:
        images["ptx"] = CompressedText(images["ptx"])
    parameters = list(map(_parameter, table["parameters"]))
    program = CompiledProgram(
        **images,
        lowered_names=MappingProxyType(table["lowered_names"]),
        entries=MappingProxyType({name: _signature(fields, parameters) for name, fields in table["entries"].items()}),
        told=MappingProxyType(of_plain(table["told"])),
        log=table["log"],
        target=table["target"],
        nvrtc_version=tuple(table["nvrtc_version"]),
    )
    return CachedKernel(key, program, sum(map(len, parts)), table["created"])


def _plain_signature(signature: KernelSignature, parameters: dict[Parameter, int]) -> list[Any]:
    """Return a signature as `_signature` reads it. New parameters are added to `parameters`, each with its number."""
    numbers = [parameters.setdefault(each, len(parameters)) for each in signature.parameters]
    return [signature.name, numbers, signature.bytes]


def _signature(fields: list[Any], parameters: list[Parameter]) -> KernelSignature:
    name, numbers, size = fields
    return KernelSignature(name, tuple([parameters[number] for number in numbers]), size)


def _plain_parameter(parameter: Parameter) -> list[Any]:
    return [each.value if isinstance(each, enum.Enum) else each for each in attrs.astuple(parameter)]


def _parameter(fields: list[Any]) -> Parameter:
    index, kind, size, alignment, offset, type_name, declaration, elements, scalars, reads = fields
    if elements is not None:
        dtypes, *rest = elements
        elements = Elements(tuple(dtypes), *rest)
    scalars = scalars if scalars is None else tuple(scalars)
    kind = ParameterKind(kind)
    return Parameter(index, kind, size, alignment, offset, type_name, declaration, elements, scalars, reads)


# ---------------------------------------------------------------------------------------------------- the cache


def _absolute(path: str | os.PathLike[str]) -> Path | None:
    """Return the folder of a cache as an absolute path; None if it is relative to a deleted working directory."""
    try:
        return Path(os.path.abspath(path))
    except FileNotFoundError:
        text = "there is no kernel cache: %s is relative to the working directory, which has been deleted"
        warn_once("", "directory", text % os.fspath(path))
        return None


class NvrtcCache:
    """Compiled kernels, in memory and in a folder that processes share.

    `directory` is the folder, made with mode 0700 when it is first needed; None stands for
    `NvrtcCache.default_directory()`. `max_bytes` limits the sum of its files, in bytes: when there are more, those
    that were not used for longest are deleted. None stands for ``ATOMR_TRIO_CACHE_MAX_BYTES`` in the environment or
    1 GiB, and 0 for no files. In memory there are at most 256 MiB.

    The methods block, so call them from a thread; many threads and processes may. Every problem with the folder or a
    file (full, read-only, damaged, written by another user) costs time and one warning in the log ``atomr_trio.nvrtc``.
    It is never an error.

    Raises `InvalidArgument` for a limit that is no number of bytes.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, max_bytes: int | None = None) -> None:
        limit = _limit_of_environment() if max_bytes is None else _checked_limit("max_bytes", max_bytes)
        place = self.default_directory() if directory is None else _absolute(directory)
        self._max_bytes = limit
        self._folder = CacheFolder(place, limit) if place is not None and limit and SUPPORTED else None
        self._lock = threading.Lock()
        self._recent: OrderedDict[NvrtcCacheKey, CachedKernel] = OrderedDict()
        self._recent_bytes = 0

    @staticmethod
    def default_directory() -> Path | None:
        """Return the folder that a cache uses when none is named, or None when there is to be none.

        ``ATOMR_TRIO_CACHE_DIR`` names it; empty or "0" switches the cache on disk off. Otherwise it is the user's
        cache folder, ``~/.cache/atomr_trio/nvrtc`` on most systems, and None when the user has no home.
        """
        chosen = os.environ.get(_DIRECTORY_VARIABLE)
        if chosen is not None:
            return None if chosen in ("", "0") else _absolute(os.path.expanduser(chosen))
        import platformdirs  # here, because few processes need it

        with contextlib.suppress(RuntimeError):  # what it raises, or did not yet, for a user without a home
            directory = platformdirs.user_cache_path("atomr_trio", appauthor=False) / "nvrtc"
            if directory.is_absolute():
                return directory
        warn_once("", "home", f"there is no home for a kernel cache, and {_DIRECTORY_VARIABLE} names no folder")
        return None

    @property
    def directory(self) -> Path | None:
        """The folder; None when nothing is kept on disk."""
        return None if self._folder is None else self._folder.path

    @property
    def max_bytes(self) -> int:
        """The limit of the folder, in bytes."""
        return self._max_bytes

    def get(self, key: NvrtcCacheKey) -> CachedKernel | None:
        """Return the program that was compiled under `key`, from memory or from disk; None when there is no valid one.

        Raises nothing.
        """
        with self._lock:
            kernel = self._recent.get(key)
            if kernel is not None:
                self._recent.move_to_end(key)
                return kernel
        parts = self._read_file(f"{key}{_KERNEL}")
        if parts is None:
            return None
        try:
            kernel = _decode(key, parts)
        except _UNREADABLE as error:
            warn_once(str(self.directory), "unreadable", f"the kernel cache {self.directory}: {key}: {error!r}")
            return None
        self._remember(kernel)
        return kernel

    def insert(self, key: NvrtcCacheKey, program: CompiledProgram) -> CachedKernel:
        """Keep `program` under `key`, and return the entry. Raises nothing."""
        created = time.time()
        parts = _encode(program, created)
        kernel = CachedKernel(key, program, sum(map(len, parts)), created)
        self._remember(kernel)
        if self._folder is not None:
            self._folder.write(f"{key}{_KERNEL}", *parts)
        return kernel

    def get_manifest(self, digest: bytes) -> bytes | None:
        """Return what `put_manifest` kept under `digest`, 32 bytes; None when there is nothing good.

        Raises `InvalidArgument` for a digest of another length.
        """
        parts = self._read_file(_manifest_name(digest))
        return None if parts is None else parts[0]

    def put_manifest(self, digest: bytes, content: bytes) -> None:
        """Keep `content` on disk under `digest`, 32 bytes, beside the kernels and as safely as they.

        Raises `InvalidArgument` for a digest of another length.
        """
        name = _manifest_name(digest)
        if self._folder is not None:
            self._folder.write(name, content)

    def clear_in_memory(self) -> None:
        """Forget the kernels in memory; those on disk stay."""
        with self._lock:
            self._recent.clear()
            self._recent_bytes = 0

    def clear(self) -> int:
        """Forget the kernels in memory, delete the files on disk, and return the number of files deleted.

        CUDA's own headers go too, uncounted, unless a compile reads them now; they are unpacked again for the next one
        that wants them.
        Files in the folder that are no cache's stay.
        """
        self.clear_in_memory()
        return 0 if self._folder is None else self._folder.clear()

    def entries(self) -> Iterator[CachedKernel]:
        """Read the kernels on disk, the last used first. A file that is not good is left out."""
        for name in self._names(_KERNEL):
            with contextlib.suppress(OSError, *_UNREADABLE):
                yield self._read(name)

    def verify(self, progress: Callable[[int, int], object] | None = None) -> dict[Path, str]:
        """Read all files on disk, and CUDA's headers there; return the damaged ones, each with its problem.

        `progress` is called after each file with two numbers: how many were read, and how many there are. What it
        raises passes through.

        Raises nothing by itself.
        """
        names = self._names("")
        problems = {} if self._folder is None else self._folder.refusal()
        if self._folder is not None and not problems:
            problems |= self._folder.headers()
        for done, name in enumerate(names, start=1):
            problem = self._problem(name)
            if problem is not None:
                assert self._folder is not None
                problems[self._folder.path / name] = problem
            if progress is not None:
                progress(done, len(names))
        return problems

    def _read_file(self, name: str) -> list[bytes] | None:
        return None if self._folder is None else self._folder.read(name)

    def _names(self, suffix: str) -> list[str]:
        files = [] if self._folder is None else self._folder.files()
        return [file.name for file in files if file.name.endswith(suffix)]

    def _read(self, name: str) -> CachedKernel:
        assert self._folder is not None
        return _decode(NvrtcCacheKey(bytes.fromhex(name.removesuffix(_KERNEL))), self._folder.load(name))

    def _problem(self, name: str) -> str | None:
        """Describe the problem of a file; a file that is gone by now has none."""
        assert self._folder is not None
        try:
            self._read(name) if name.endswith(_KERNEL) else self._folder.load(name)
        except FileNotFoundError:
            pass
        except Unusable as problem:
            return problem.cause
        except (OSError, *_UNREADABLE) as error:
            return f"cannot be read: {error!r}"
        return None

    def _remember(self, kernel: CachedKernel) -> None:
        with self._lock:
            self._forget(kernel.key)
            self._recent[kernel.key] = kernel
            self._recent_bytes += kernel.nbytes
            while self._recent_bytes > _MEMORY_BYTES or len(self._recent) > _MEMORY_KERNELS:
                self._forget(next(iter(self._recent)))

    def _forget(self, key: NvrtcCacheKey) -> None:
        kernel = self._recent.pop(key, None)
        if kernel is not None:
            self._recent_bytes -= kernel.nbytes


_UNREADABLE: Final = (Unusable, ValueError, LookupError, TypeError, AttributeError, struct.error)
"""Errors of reading a file that is whole, but is not a valid entry."""


def _manifest_name(digest: bytes) -> str:
    if len(digest) != _DIGEST_BYTES:
        raise InvalidArgument(f"digest is {digest!r}; it must be {_DIGEST_BYTES} bytes")
    return digest.hex() + _MANIFEST


def _checked_limit(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidArgument(f"{name} is {value!r}; it must be a number of bytes, 0 or more")
    return value


def _limit_of_environment() -> int:
    text = os.environ.get(_LIMIT_VARIABLE, "").strip()
    return _checked_limit(_LIMIT_VARIABLE, int(text) if text.isdecimal() else text) if text else _DEFAULT_MAX_BYTES
