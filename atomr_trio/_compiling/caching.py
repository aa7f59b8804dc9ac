"""One compile, or its result from the cache: memory, disk, NVRTC, in this order, in the calling thread.

A source that includes nothing from disk is found by its own text. For one that does, what it read is found first, in
the snapshots that are kept under its text; the headers of the one that still holds complete the key. NVRTC is loaded
when nothing is found. This file does not depend on tasks or trio.
"""

from __future__ import annotations

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

from atomr_trio._compiling import headers as _headers
from atomr_trio._compiling.bundled_headers import is_kept
from atomr_trio._compiling.cache import CachedKernel, NvrtcCache, NvrtcCacheKey
from atomr_trio._compiling.cancellation import Cancellation
from atomr_trio._compiling.compiler import CompiledProgram, check_include_paths, compile_program
from atomr_trio._compiling.headers import Dependence, Snapshot
from atomr_trio._compiling.identity import NvrtcIdentity, installed_nvrtc
from atomr_trio._compiling.listing import Listing, Unknowable
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._compiling.probe import probe
from atomr_trio._compiling.probing import Probe, Probing
from atomr_trio._values.errors import CompileError

__all__ = ["Answer", "CachingCompiler", "Job", "Origin", "shared_cache"]

_log = logging.getLogger("atomr_trio.nvrtc")

Origin: TypeAlias = Literal["memory", "disk"]

_MOST_SNAPSHOTS: Final = 8
"""The number of states of its headers that are remembered for one source, for example one for each branch in use."""
_MOST_SOURCES: Final = 256


class Compile(Protocol):
    """The function that compiles: `compile_program`, or its replacement in a test."""

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
    """The function that identifies the NVRTC: `installed_nvrtc`, or its replacement in a test."""

    def __call__(self, cache: NvrtcCache, *, headers: bool = False) -> NvrtcIdentity: ...


@attrs.define(eq=False)
class Job:
    """The input of a compile."""

    source: str
    options: NvrtcOptions
    target: str
    cancellation: Cancellation = attrs.Factory(Cancellation)
    dependence: Dependence | None = None
    """The other data that decides the result; None until it is known."""
    compiler: NvrtcIdentity | None = None
    """The NVRTC that is to compile it; None until it is known."""


@attrs.frozen
class Answer:
    """The outcome of a job."""

    program: CompiledProgram
    origin: Origin | None
    """The place where it was found; None when it was compiled."""


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
        probe: Probe = probe,
    ) -> None:
        self._cache = cache
        self._compile = compile_with
        self._identify = identify
        self._probe = probe
        self._lock = threading.Lock()
        self._snapshots: OrderedDict[NvrtcCacheKey, tuple[Snapshot, ...]] = OrderedDict()
        self._handed_out: weakref.WeakSet[CachedKernel] = weakref.WeakSet()

    def answer(self, job: Job) -> Answer:
        """Find the result, or compile. Raises what `compile_program` raises."""
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
        """Forget the results in memory; those on disk stay."""
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
        """Compile, and record what was read, if that can be known."""
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
            raise _cancelled()
        attach = job.cancellation.attach
        with Probing(job.source, job.options, job.target, self._probe, job.cancellation) as probing:
            program = self._compile(job.source, job.options, job.target, extra_flags=flags, prepare=attach)
            program = probing.applied(program)
        if job.cancellation.may_have_ended:  # or a probe that was cut off would be kept as one that found nothing
            raise _cancelled()
        return program

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
            # The record had another identity until the library was loaded. The next compile has the right one.
            return Answer(program, None)
        kernel = cache.insert(key, program)
        with self._lock:
            self._handed_out.add(kernel)
        return Answer(kernel.program, None)

    def _recall(self, cache: NvrtcCache, key: NvrtcCacheKey) -> tuple[Snapshot, ...]:
        """Return the snapshots that are known for a source, the last used first."""
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
        """Put a snapshot before the others; it replaces an equal one."""
        rest = (other for other in others if other.digest != newest.digest)
        snapshots = (newest, *rest)[:_MOST_SNAPSHOTS]
        with self._lock:
            self._snapshots[key] = snapshots
            self._snapshots.move_to_end(key)
            while len(self._snapshots) > _MOST_SOURCES:
                self._snapshots.popitem(last=False)
        cache.put_manifest(key.digest, _headers.pack(snapshots))


def _cancelled() -> CompileError:
    return CompileError("the compile was cancelled", log="")


def _none_is_kept(path: str) -> bool:
    return False


def _completed(key: NvrtcCacheKey, snapshot: Snapshot) -> NvrtcCacheKey:
    """Return the key of a source together with the headers that it reads."""
    return NvrtcCacheKey(hashlib.sha256(key.digest + snapshot.digest).digest())
