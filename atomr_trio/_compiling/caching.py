"""One compile, unless it was made before: memory, disk, NVRTC, in this order, in the calling thread.

A source that includes nothing from disk is found by its own text. For one that does, what it read is found first, in
the snapshots that are kept under its text; the headers of the one that still holds complete the key. NVRTC is loaded
when there is nothing to be found. This file knows no task and no trio.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

import attrs

from atomr_cuda import LibraryMissing, nvrtc
from atomr_trio._compiling import headers as _headers
from atomr_trio._compiling.bundled_headers import is_kept
from atomr_trio._compiling.cache import CachedKernel, NvrtcCache, NvrtcCacheKey
from atomr_trio._compiling.compiler import CompiledProgram, check_include_paths, compile_program
from atomr_trio._compiling.headers import Dependence, Snapshot
from atomr_trio._compiling.identity import NvrtcIdentity, installed_nvrtc
from atomr_trio._compiling.listing import Listing, Unknowable
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._errors import CompileError

__all__ = ["Answer", "CachingCompiler", "Cancellation", "Job", "Origin", "shared_cache"]

_log = logging.getLogger("atomr_trio.nvrtc")

Origin: TypeAlias = Literal["memory", "disk"]

_MOST_SNAPSHOTS: Final = 8
"""How many states of its headers are remembered for one source: the branches that one changes between."""
_MOST_SOURCES: Final = 256


class Compile(Protocol):
    """What compiles: `compile_program`, or what stands for it in a test."""

    def __call__(
        self,
        source: str,
        options: NvrtcOptions,
        target: str,
        *,
        extra_flags: tuple[str, ...] = (),
        prepare: Callable[[ctypes.c_void_p], None] | None = None,
    ) -> CompiledProgram: ...


class Identify(Protocol):
    """What says which NVRTC compiles: `installed_nvrtc`, or what stands for it in a test."""

    def __call__(self, cache: NvrtcCache, *, headers: bool = False) -> NvrtcIdentity: ...


class Cancellation:
    """Ends a compile from another thread, where NVRTC can be told to.

    NVRTC asks a C function some ten thousand times per compile, from its own threads, whether to stop. A Python
    function would need the interpreter's lock for each, against the loop of the program. So the function is `atoi`, and
    what it reads is a text of ours: "0", or "1" to stop.
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(b"0")

    @property
    def requested(self) -> bool:
        return self._text.value != b"0"

    def request(self) -> None:
        """Have the compile end soon. May be called from any thread, at any time."""
        self._text.value = b"1"

    def attach(self, program: ctypes.c_void_p) -> None:
        """Make it count for an NVRTC program, if this NVRTC has the means; `self` has to live as long as that."""
        with contextlib.suppress(LibraryMissing):
            nvrtc.nvrtcSetFlowCallback(program, _atoi(), ctypes.addressof(self._text))


@functools.cache
def _atoi() -> Callable[..., int]:
    address = ctypes.cast(ctypes.CDLL(None).atoi, ctypes.c_void_p).value
    assert address is not None
    return nvrtc.nvrtcFlowCallback(address)


@attrs.define(eq=False)
class Job:
    """What is to be compiled."""

    source: str
    options: NvrtcOptions
    target: str
    cancellation: Cancellation = attrs.Factory(Cancellation)
    dependence: Dependence | None = None
    """What decides the result beside these; None until it is known."""
    compiler: NvrtcIdentity | None = None
    """Which NVRTC is to compile it; None until it is known."""


@attrs.frozen
class Answer:
    """What came of a job."""

    program: CompiledProgram
    origin: Origin | None
    """Where it was found; None when it was compiled."""


@functools.lru_cache(maxsize=4)
def _cache_of(directory: str, limit: str) -> NvrtcCache:
    return NvrtcCache()


def shared_cache() -> NvrtcCache:
    """Return the cache that all devices of the process share, as the environment says now."""
    directory = NvrtcCache.default_directory()
    return _cache_of(str(directory), os.environ.get("ATOMR_TRIO_CACHE_MAX_BYTES", ""))


class CachingCompiler:
    """Answers jobs. Its methods block, and may be called from many threads at once."""

    def __init__(
        self,
        cache: Callable[[], NvrtcCache] = shared_cache,
        compile_with: Compile = compile_program,
        identify: Identify = installed_nvrtc,
    ) -> None:
        self._cache = cache
        self._compile = compile_with
        self._identify = identify
        self._lock = threading.Lock()
        self._snapshots: OrderedDict[NvrtcCacheKey, tuple[Snapshot, ...]] = OrderedDict()
        self._handed_out: weakref.WeakSet[CachedKernel] = weakref.WeakSet()

    def answer(self, job: Job) -> Answer:
        """Find or compile. Raises what `compile_program` raises."""
        check_include_paths(job.options)
        job.dependence = _headers.dependence(job.source, job.options)
        cache = self._cache()
        job.compiler = identity = self._identify(cache, headers=job.options.bundled_headers)
        name = identity.headers
        headers = [] if name is None else [(name, hashlib.sha256(name.encode()).digest())]
        key = NvrtcCacheKey.of(job.source, job.options, job.target, identity.version, identity.build, headers)
        match job.dependence:
            case Dependence.UNKNOWN:
                return Answer(self._run(job), None)
            case Dependence.HEADERS:
                return self._with_headers(job, cache, key)
            case Dependence.NOTHING:
                return self._found(cache, key) or self._keep(job, cache, key, self._run(job))

    def forget(self) -> None:
        """Forget what is in memory; what is on disk stays."""
        with self._lock:
            self._snapshots.clear()
            self._handed_out.clear()
        self._cache().clear_in_memory()

    def _with_headers(self, job: Job, cache: NvrtcCache, key: NvrtcCacheKey) -> Answer:
        snapshots = self._recall(cache, key)
        for index, snapshot in enumerate(snapshots):
            renewed = snapshot.renewed()
            answer = renewed and self._found(cache, _completed(key, renewed))
            if renewed and answer:
                if index or renewed is not snapshot:
                    self._record(cache, key, renewed, snapshots)
                return answer
        return self._compile_with_headers(job, cache, key, snapshots)

    def _compile_with_headers(
        self, job: Job, cache: NvrtcCache, key: NvrtcCacheKey, others: tuple[Snapshot, ...]
    ) -> Answer:
        """Compile, and note what was read if that can be known."""
        flags = job.options.flags(job.target)  # before the compile, since CUDA's headers may have to be unpacked for it
        kept = is_kept if job.options.bundled_headers else _none_is_kept
        before = _headers.look_before(job.source, job.options, flags, kept)
        started = time.time_ns()
        with Listing() as listing:
            program = self._run_listed(job, listing)
            try:
                snapshot = _headers.take_snapshot(
                    job.source, job.options, flags, listing.content(), before, started, kept
                )
            except Unknowable as reason:
                _log.info("a compile of %s is not cached: %s", job.options.name, reason)
                return Answer(program, None)
        self._record(cache, key, snapshot, others)
        return self._keep(job, cache, _completed(key, snapshot), program)

    def _run_listed(self, job: Job, listing: Listing) -> CompiledProgram:
        try:
            return self._run(job, listing.flag)
        except CompileError as error:
            if not listing.refused(error.log):
                raise
        return self._run(job)

    def _run(self, job: Job, *flags: str) -> CompiledProgram:
        if job.cancellation.requested:
            raise CompileError("the compile was cancelled", log="")
        attach = job.cancellation.attach
        return self._compile(job.source, job.options, job.target, extra_flags=flags, prepare=attach)

    def _found(self, cache: NvrtcCache, key: NvrtcCacheKey) -> Answer | None:
        kernel = cache.get(key)
        if kernel is None:
            return None
        with self._lock:
            origin: Origin = "memory" if kernel in self._handed_out else "disk"
            self._handed_out.add(kernel)
        return Answer(kernel.program, origin)

    def _keep(self, job: Job, cache: NvrtcCache, key: NvrtcCacheKey, program: CompiledProgram) -> Answer:
        if self._identify(cache, headers=job.options.bundled_headers) != job.compiler:
            # It was on record as another one until it was loaded. The next compile knows better.
            return Answer(program, None)
        kernel = cache.insert(key, program)
        with self._lock:
            self._handed_out.add(kernel)
        return Answer(kernel.program, None)

    def _recall(self, cache: NvrtcCache, key: NvrtcCacheKey) -> tuple[Snapshot, ...]:
        """The snapshots that are known for a source, the last used first."""
        with self._lock:
            if key in self._snapshots:
                self._snapshots.move_to_end(key)
                return self._snapshots[key]
        try:
            return _headers.unpack(cache.get_manifest(key.digest) or b"")
        except ValueError as error:
            _log.warning("a record of headers in the kernel cache is not good: %s", error)
            return ()

    def _record(self, cache: NvrtcCache, key: NvrtcCacheKey, newest: Snapshot, others: tuple[Snapshot, ...]) -> None:
        """Put a snapshot before the others, in place of the one that says the same."""
        rest = (other for other in others if other.digest != newest.digest)
        snapshots = (newest, *rest)[:_MOST_SNAPSHOTS]
        with self._lock:
            self._snapshots[key] = snapshots
            self._snapshots.move_to_end(key)
            while len(self._snapshots) > _MOST_SOURCES:
                self._snapshots.popitem(last=False)
        cache.put_manifest(key.digest, _headers.pack(snapshots))


def _none_is_kept(path: str) -> bool:
    return False


def _completed(key: NvrtcCacheKey, snapshot: Snapshot) -> NvrtcCacheKey:
    """The key of a source together with the headers that it reads."""
    return NvrtcCacheKey(hashlib.sha256(key.digest + snapshot.digest).digest())
