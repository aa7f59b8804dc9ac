"""Many compiles at once: `CompileService` runs them in threads, and shares their results among tasks.

What decides the result of a compile is the source, the options, the target and nothing else, with one exception:
headers on disk. A source that includes nothing from disk is cached by its text; a source that does is compiled again
each time, because a header may have been edited since.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, TypeAlias

import attrs
import outcome
import trio

from atomr_trio._compiler import CompiledProgram, check_source, compile_program
from atomr_trio._errors import AtomrInternalError, DeviceError, InvalidArgument, fresh
from atomr_trio._nvrtc_options import NvrtcOptions

__all__ = ["CompileService", "CompileStatistics"]

_log = logging.getLogger("atomr_trio.nvrtc")

Compile: TypeAlias = Callable[[str, NvrtcOptions, str], CompiledProgram]
Deliver: TypeAlias = Callable[["outcome.Outcome[CompiledProgram]"], None]
_Key: TypeAlias = tuple[str, NvrtcOptions, str]

_FILE_OPTIONS: Final = ("I", "include", "pre-include", "use-bundled-headers", "pch", "create-pch", "use-pch")
_OUTPUT_OPTIONS: Final = ("time", "fdevice-time-trace")
"""How the names of extra options begin that read files, and that write them."""

_LINE_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_DIRECTIVE = re.compile(
    r"""(?:\#|%:|\?\?=) (?:\s|/\*.*?\*/)* (?:include|include_next|import|embed)\b [ \t]* (?:[<"]([^>"\n]+)[>"])?
        | __has_(?:include|embed)""",
    re.VERBOSE | re.DOTALL,
)


def depends_on_files(source: str, options: NvrtcOptions) -> bool:
    """Tell whether a compile may read or write a file, so that its key does not say all about it.

    Errs on the safe side: an `#include` in a comment counts.
    """
    if any(option.lstrip("-").startswith(_FILE_OPTIONS + _OUTPUT_OPTIONS) for option in options.extra_options):
        return True
    in_memory = {name for name, _ in options.headers}
    texts = (source, *(text for _, text in options.headers))
    directives = (match for text in texts for match in _DIRECTIVE.finditer(_LINE_SPLICE.sub("", text)))
    return any(match[1] not in in_memory for match in directives)


@attrs.frozen
class CompileStatistics:
    """What a `CompileService` is doing and has done."""

    in_flight: int
    """Compiles that run in a thread now."""
    waiting: int
    """Compiles that wait for a thread."""
    cached: int
    """Programs in the cache."""
    hits: int
    """Requests answered from the cache."""
    joined: int
    """Requests that joined a compile of the same key."""
    misses: int
    """Requests that started a compile of their own."""


@attrs.define(eq=False)
class _Flight:
    """One compile that runs or waits, and everyone who wants its result."""

    key: _Key
    token: trio.lowlevel.TrioToken
    waiters: list[Deliver]
    cacheable: bool


class CompileService:
    """Compiles in threads of its own; asks NVRTC once per key however many ask, and remembers what came out.

    It outlives the generations of a device, since what it holds depends on no context. A caller that is cancelled just
    ignores what is delivered: the compile goes on and fills the cache. All methods belong to the trio thread.
    """

    def __init__(
        self, *, threads: int | None = None, capacity: int = 256, compile_with: Compile = compile_program
    ) -> None:
        self._compile = compile_with
        self._threads = min(4, os.cpu_count() or 1) if threads is None else threads
        self._capacity = capacity
        self._cache: OrderedDict[_Key, CompiledProgram] = OrderedDict()
        self._flights: dict[_Key, _Flight] = {}
        self._queue: deque[_Flight] = deque()
        self._running = self._hits = self._joined = self._misses = 0

    @trio.lowlevel.enable_ki_protection
    def submit(self, source: str, options: NvrtcOptions, target: str, deliver: Deliver) -> None:
        """Have `source` compiled and `deliver` called with the outcome, in the trio thread.

        `deliver` is called before `submit` returns when the result is in the cache or `source` is no source text, and
        later otherwise. Failures of every kind are delivered, not raised, each waiter getting an exception object of
        its own; they are not cached.
        """
        try:
            check_source(source)
        except InvalidArgument as error:
            deliver(outcome.Error(error))
            return
        key = (source, options, target)
        program = self._cache.get(key)
        if program is not None:
            self._hits += 1
            self._cache.move_to_end(key)
            deliver(outcome.Value(program))
            return
        flight = self._flights.get(key)
        if flight is not None:
            self._joined += 1
            flight.waiters.append(deliver)
            return
        self._misses += 1
        token = trio.lowlevel.current_trio_token()
        flight = _Flight(key, token, [deliver], not depends_on_files(source, options))
        self._flights[key] = flight
        self._queue.append(flight)
        self._start_waiting()

    def statistics(self) -> CompileStatistics:
        """Return what the service is doing and has done."""
        return CompileStatistics(
            self._running, len(self._queue), len(self._cache), self._hits, self._joined, self._misses
        )

    def clear(self) -> None:
        """Forget every cached program; compiles under way are not touched."""
        self._cache.clear()

    def _start_waiting(self) -> None:
        """Give threads to the compiles that wait, first come first served."""
        while self._queue and self._running < self._threads:
            flight = self._queue.popleft()
            self._running += 1
            try:
                self._start(flight)
            except RuntimeError as error:  # the system has no thread left
                flight.token.run_sync_soon(self._finish, flight, outcome.Error(error))

    def _start(self, flight: _Flight) -> None:
        def compile_it() -> CompiledProgram:
            return self._compile(*flight.key)

        def done(result: outcome.Outcome[CompiledProgram]) -> None:
            # Runs in the thread. When the run is over, nobody is left to tell.
            with contextlib.suppress(trio.RunFinishedError):
                flight.token.run_sync_soon(self._finish, flight, result)

        trio.lowlevel.start_thread_soon(compile_it, done, name="nvrtc")

    @trio.lowlevel.enable_ki_protection
    def _finish(self, flight: _Flight, result: outcome.Outcome[CompiledProgram]) -> None:
        """Settle everyone who waits for a compile. It may not raise: trio would end the whole run."""
        self._running -= 1
        del self._flights[flight.key]
        if isinstance(result, outcome.Value) and flight.cacheable:
            self._remember(flight.key, result.value)
        for deliver in flight.waiters:
            try:
                deliver(_own_copy(result))
            except Exception:
                _log.exception("a receiver of a compiled program failed")
        self._start_waiting()

    def _remember(self, key: _Key, program: CompiledProgram) -> None:
        self._cache[key] = program
        while len(self._cache) > self._capacity:
            self._cache.popitem(last=False)


def _own_copy(result: outcome.Outcome[CompiledProgram]) -> outcome.Outcome[CompiledProgram]:
    """Return an outcome for one waiter: a value can be unwrapped once, and an exception belongs to one task."""
    if isinstance(result, outcome.Value):
        return outcome.Value(result.value)
    assert isinstance(result, outcome.Error)
    if isinstance(result.error, DeviceError):
        return outcome.Error(fresh(result.error))
    error = AtomrInternalError(f"a compile failed in an unforeseen way: {result.error!r}")
    error.__cause__ = result.error
    return outcome.Error(error)
