"""Many compiles at once: `CompileService` runs them in threads, and shares their results among tasks.

Everything that may block (reading headers, the cache on disk, NVRTC) happens in the threads. The trio thread itself
answers only requests that it has answered before and that depend on no file. A request for a program that is being
compiled joins that compile. If files decide the result, one of them may have been edited since the compile began. So
requests that joined late are made again when it is over, which is quick if nothing has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, TypeAlias

import attrs
import outcome
import trio

from atomr_trio._compiling.caching import Answer, CachingCompiler, Job
from atomr_trio._compiling.compiler import check_source
from atomr_trio._compiling.headers import Dependence
from atomr_trio._compiling.options import NvrtcOptions
from atomr_trio._values.errors import AtomrInternalError, DeviceError, InvalidArgument, OutOfHostMemory, fresh
from atomr_trio._values.long_texts import cuts
from atomr_trio._values.shortage import shortage_of

__all__ = ["CompileService", "CompileStatistics", "Waiter", "digest_of_long", "is_long"]

_log = logging.getLogger("atomr_trio.nvrtc")

Deliver: TypeAlias = Callable[["outcome.Outcome[Answer]"], None]
_Key: TypeAlias = tuple[str | bytes, NvrtcOptions, str]
"""The source, or the digest of a long one; the options; the target."""

_LONG: Final = 1 << 20
"""The characters of a source that is checked, and made a digest of, in a thread."""


def is_long(source: object) -> bool:
    """Return whether the digest of a source should be made in a thread."""
    return isinstance(source, str) and len(source) >= _LONG


def digest_of_long(source: str) -> bytes | None:
    """Check a source, and return the digest that stands for it if it is long. Raises as `check_source` does."""
    check_source(source)
    if not is_long(source):
        return None
    content = hashlib.sha256()
    for piece in cuts(source):
        content.update(piece.encode())
    return content.digest()


@attrs.frozen
class CompileStatistics:
    """The state and the counters of the compiler's service. All devices of a `trio.run` share it."""

    in_flight: int
    """Compiles that run in a thread now."""
    waiting: int
    """Compiles that wait for a thread."""
    remembered: int
    """The number of programs that are available without a thread."""
    hits: int
    """Requests answered from memory."""
    disk_hits: int
    """Requests answered from the disk."""
    joined: int
    """Requests that joined a compile of the same source and options."""
    misses: int
    """Requests that NVRTC compiled, or that failed."""
    cancelled: int
    """The number of compiles that were abandoned because no task waited for them any more."""


@attrs.define(eq=False)
class Waiter:
    """One request, from `CompileService.submit` to the delivery."""

    deliver: Deliver
    flight: _Flight | None = None
    late: bool = False
    """True if the compile ran already when it was joined."""
    wanted: bool = True


@attrs.define(eq=False)
class _Flight:
    """One compile that runs or waits, and everyone who wants its result."""

    key: _Key
    job: Job
    token: trio.lowlevel.TrioToken
    waiters: list[Waiter]
    running: bool = False
    over: bool = False


class CompileService:
    """Compiles in its own threads; asks NVRTC once for each key, however many ask, and remembers the results.

    It outlives the generations of a device, since its results depend on no context. All methods belong to the trio
    thread.
    """

    def __init__(
        self, *, threads: int | None = None, capacity: int = 256, compiler: CachingCompiler | None = None
    ) -> None:
        self._compiler = CachingCompiler() if compiler is None else compiler
        self._threads = min(4, os.cpu_count() or 1) if threads is None else threads
        self._capacity = capacity
        self._cache: OrderedDict[_Key, Answer] = OrderedDict()
        self._flights: dict[_Key, _Flight] = {}
        self._queue: deque[_Flight] = deque()
        self._running = self._hits = self._disk_hits = self._joined = self._misses = self._cancelled = 0

    @classmethod
    def of_this_run(cls) -> CompileService:
        """Return the service that all devices of this `trio.run` share."""
        try:
            return _service.get()
        except LookupError:
            service = cls()
            _service.set(service)
            return service

    @trio.lowlevel.enable_ki_protection
    def submit(
        self, source: str, options: NvrtcOptions, target: str, deliver: Deliver, digest: bytes | None = None
    ) -> Waiter:
        """Have `source` compiled and `deliver` called with the outcome, in the trio thread.

        `deliver` is called before `submit` returns when the result is at hand or `source` is no source text, and later
        otherwise. Failures of every kind are delivered, not raised, each waiter getting an exception object of its own;
        they are not cached. `abandon` takes what is returned. `digest` is that of a long source, which was checked.
        """
        waiter = Waiter(deliver)
        try:
            if digest is None:
                check_source(source)
        except InvalidArgument as error:
            deliver(outcome.Error(error))
            return waiter
        key = (source if digest is None else digest, options, target)
        answer = self._cache.get(key)
        if answer is not None:
            self._hits += 1
            self._cache.move_to_end(key)
            deliver(outcome.Value(answer))
            return waiter
        flight = self._flights.get(key)
        if flight is None:
            self._depart(key, source, [waiter])
        else:
            self._joined += 1
            waiter.flight, waiter.late = flight, flight.running
            flight.waiters.append(waiter)
        return waiter

    def compile_now(self, source: str, options: NvrtcOptions, target: str) -> Answer:
        """Compile in this thread, which waits for NVRTC if the result is neither in memory nor on the disk.

        For the few callers that cannot await. Raises what `submit` delivers.
        """
        digest = digest_of_long(source)
        key = (source if digest is None else digest, options, target)
        answer = self._cache.get(key)
        if answer is not None:
            self._hits += 1
            self._cache.move_to_end(key)
            return answer
        job = Job(source, options, target)
        try:
            result: outcome.Outcome[Answer] = outcome.Value(self._compiler.answer(job))
        except Exception as error:
            result = _own_copy(outcome.Error(error))
        self._count(result)
        if job.dependence is Dependence.NOTHING and not options.include_paths:
            self._remember(key, result)
        return result.unwrap()

    @trio.lowlevel.enable_ki_protection
    def abandon(self, waiter: Waiter) -> None:
        """Deliver nothing to `waiter`. A compile that nobody waits for is not begun, or ended where NVRTC can do that.

        Harmless when it has been delivered, and when it has been abandoned. Raises nothing.
        """
        flight = waiter.flight
        waiter.wanted = False
        if flight is None or flight.over or any(each.wanted for each in flight.waiters):
            return
        flight.over = True
        self._cancelled += 1
        # Who asks from now on needs a compile of his own.
        del self._flights[flight.key]
        flight.job.cancellation.request()
        if not flight.running:
            self._queue.remove(flight)

    def statistics(self) -> CompileStatistics:
        """Return the state and the counters of the service."""
        return CompileStatistics(
            in_flight=self._running,
            waiting=len(self._queue),
            remembered=len(self._cache),
            hits=self._hits,
            disk_hits=self._disk_hits,
            joined=self._joined,
            misses=self._misses,
            cancelled=self._cancelled,
        )

    def clear(self) -> None:
        """Forget the results in memory; the disk and running compiles are not affected."""
        self._cache.clear()
        self._compiler.forget()

    def _depart(self, key: _Key, source: str, waiters: list[Waiter]) -> None:
        flight = _Flight(key, Job(source, *key[1:]), trio.lowlevel.current_trio_token(), waiters)
        for waiter in waiters:
            waiter.flight, waiter.late = flight, False
        self._flights[key] = flight
        self._queue.append(flight)
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Give threads to the compiles that wait, first come first served."""
        while self._queue and self._running < self._threads:
            flight = self._queue.popleft()
            flight.running = True
            self._running += 1
            try:
                self._start(flight)
            except RuntimeError as error:  # the system has no thread left
                flight.token.run_sync_soon(self._finish, flight, outcome.Error(error))

    def _start(self, flight: _Flight) -> None:
        def answer() -> Answer:
            return self._compiler.answer(flight.job)

        def done(result: outcome.Outcome[Answer]) -> None:
            # Runs in the thread. When the trio run is over, there is nobody to notify.
            with contextlib.suppress(trio.RunFinishedError):
                flight.token.run_sync_soon(self._finish, flight, result)

        trio.lowlevel.start_thread_soon(answer, done, name="nvrtc")

    @trio.lowlevel.enable_ki_protection
    def _finish(self, flight: _Flight, result: outcome.Outcome[Answer]) -> None:
        """Settle everyone who waits for a compile. It may not raise: trio would end the whole run."""
        self._running -= 1
        if not flight.over:
            flight.over = True
            del self._flights[flight.key]
        self._count(result)
        # An include path that has been removed is refused, whether or not anything is read there.
        by_files = flight.job.dependence is not Dependence.NOTHING or bool(flight.job.options.include_paths)
        if not by_files:
            self._remember(flight.key, result)
        for waiter in flight.waiters:
            if not (by_files and waiter.late):
                self._settle(waiter, result)
        late = [waiter for waiter in flight.waiters if by_files and waiter.late and waiter.wanted]
        if late:
            self._ask_again(flight.key, flight.job.source, late)
        self._start_waiting()

    def _ask_again(self, key: _Key, source: str, waiters: list[Waiter]) -> None:
        flight = self._flights.get(key)
        if flight is None:
            self._depart(key, source, waiters)
            return
        for waiter in waiters:
            waiter.flight, waiter.late = flight, flight.running
        flight.waiters += waiters

    def _settle(self, waiter: Waiter, result: outcome.Outcome[Answer]) -> None:
        if not waiter.wanted:
            return
        waiter.wanted = False
        try:
            waiter.deliver(_own_copy(result))
        except Exception:
            _log.exception("a receiver of a compiled program failed")

    def _count(self, result: outcome.Outcome[Answer]) -> None:
        match result:
            case outcome.Value(Answer(origin="memory")):
                self._hits += 1
            case outcome.Value(Answer(origin="disk")):
                self._disk_hits += 1
            case _:
                self._misses += 1

    def _remember(self, key: _Key, result: outcome.Outcome[Answer]) -> None:
        if isinstance(result, outcome.Value):
            self._cache[key] = attrs.evolve(result.value, origin="memory")
            while len(self._cache) > self._capacity:
                self._cache.popitem(last=False)


_service: trio.lowlevel.RunVar[CompileService] = trio.lowlevel.RunVar("atomr_trio.compile_service")


def _own_copy(result: outcome.Outcome[Answer]) -> outcome.Outcome[Answer]:
    """Return an outcome for one waiter: a value can be unwrapped once, and an exception belongs to one task."""
    if isinstance(result, outcome.Value):
        return outcome.Value(result.value)
    assert isinstance(result, outcome.Error)
    if isinstance(result.error, DeviceError):
        return outcome.Error(fresh(result.error))
    words = shortage_of(result.error)
    if words is not None:
        short = OutOfHostMemory(f"the program cannot be compiled: {words}", operation="nvrtc.compile")
        short.__cause__ = result.error
        return outcome.Error(short)
    error = AtomrInternalError(f"a compile failed in an unforeseen way: {result.error!r}")
    error.__cause__ = result.error
    return outcome.Error(error)
