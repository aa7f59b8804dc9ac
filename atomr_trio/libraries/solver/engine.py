"""Dense solvers by cuSOLVER: its functions with the words that they take, and the settings of its handles.

A function is written down once, by its words, which are LAPACK's. From them follow where its workspaces and options
are and what the query for its workspaces takes; the facade gives a value for each word by its name. Further calls are
kernels of our own, which look at the matrices beside a call (`finite`).
"""

from __future__ import annotations

import struct
from ctypes import byref
from typing import TYPE_CHECKING, Any

from ..._worker.base.calls import Bound, Handles
from ..._worker.base.native_calls import Word
from ..._worker.base.sequences import LeftOut, SequenceEngine
from . import engine_kernels as finite
from .records_finite import WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..._worker.base.calls import LaneHandle
    from ..._worker.base.lanes import Command, Lane, NativeCall, WorkerServices
from .records import DEFAULT_SWEEPS, NONDETERMINISTIC, OPTIONS, PART, SOLVER, TOGETHER


class _Handles(Handles):
    flags = NONDETERMINISTIC

    def __init__(self, cusolver: Any) -> None:
        self._cusolver = cusolver
        self.streams: dict[int, Any] = {}
        """By a handle, the stream of its lane."""

    def create(self, lane: Lane) -> Any:
        handle = self._cusolver.cusolverDnHandle_t()
        self._cusolver.cusolverDnCreate(byref(handle))
        try:
            self._cusolver.cusolverDnSetStream(handle, lane.stream)
        except BaseException:
            self._cusolver.cusolverDnDestroy.status(handle)
            raise
        self.streams[handle.value] = lane.stream
        return handle

    def configure(self, handle: Any, flags: int) -> None:
        modes = self._cusolver.cusolverDeterministicMode_t
        loose = modes.CUSOLVER_ALLOW_NON_DETERMINISTIC_RESULTS
        strict = modes.CUSOLVER_DETERMINISTIC_RESULTS
        self._cusolver.cusolverDnSetDeterministicMode(handle, loose if flags & NONDETERMINISTIC else strict)

    def create_option(self, kind: str) -> Any:
        option = self._cusolver.cusolverDnParams_t()  # as all of them a pointer
        getattr(self._cusolver, f"cusolverDnCreate{OPTIONS[kind]}")(byref(option))
        return option

    def set_option(self, kind: str, option: Any, setting: int) -> None:
        if self.has_settings(kind):
            getattr(self._cusolver, f"cusolverDnX{kind}SetMaxSweeps")(option, setting or DEFAULT_SWEEPS)

    def has_settings(self, kind: str) -> bool:
        return kind != "params"

    def destroy_option(self, kind: str, option: Any) -> None:
        getattr(self._cusolver, f"cusolverDnDestroy{OPTIONS[kind]}")(option)

    def destroy(self, handle: Any) -> None:
        self.streams.pop(handle.value, None)
        self._cusolver.cusolverDnDestroy(handle)


class _OwnBound(Bound):
    """A kernel of our own, in the place of a function of the library."""

    __slots__ = ()

    def __init__(self, name: str, call: Callable[..., int]) -> None:
        self.call = call
        self.symbol = name
        self.entries = 3
        self.words = struct.Struct(f"<{len(WORDS[name])}q")
        self.option = self.workspace = self.query = None
        self.numbers_on_host = ()

    @property
    def is_of_library(self) -> bool:
        """It has nothing of the library."""
        return False

    @property
    def takes_words_alone(self) -> bool:
        """It is several calls of the driver, which raise what is wrong."""
        return False


class SolverEngine(SequenceEngine):
    """The engine of cuSOLVER, with the kernels that look at its matrices."""

    def __init__(self, services: WorkerServices, cusolver: Any, handles: _Handles) -> None:
        super().__init__(services, SOLVER, cusolver, handles)
        self._kernels = finite.FiniteKernels(self._driver)
        self._streams = handles.streams
        self.calls[TOGETHER.number] = self._together

    def _together(self, command: Command, lane: Lane) -> None:
        payload, place = command.payload, 0
        try:
            while place < len(payload):
                (size,) = PART.unpack_from(payload, place)
                place += PART.size
                self._make(payload[place : place + size], command.ticket, lane)
                place += size
        except LeftOut:
            pass

    def _bind(self, number: int) -> Bound:
        name = self.table.functions[number]
        if name not in WORDS:
            return super()._bind(number)
        streams, kernels = self._streams, self._kernels

        def stop(handle: Any, *words: int) -> int:
            kernels.stop(streams[handle.value], words)
            return 0

        def launch(handle: Any, *words: int) -> int:
            getattr(kernels, name)(words).make(streams[handle.value])
            return 0

        bound = self._bound[number] = _OwnBound(name, stop if name == "stop" else launch)
        return bound

    def ready(self, bound: Bound, handle: Any, words: list[Any], changing: Sequence[int]) -> Callable[[], int]:
        """Return a call of a function with these words; those at the places `changing` are read each time."""
        if bound.symbol not in WORDS or bound.symbol == "stop":
            return super().ready(bound, handle, words, changing)
        launches, stream = getattr(self._kernels, bound.symbol)(words), self._streams[handle.value]

        def again() -> int:
            for place in changing:
                launches.change(place, words[place])
            launches.make(stream)
            return 0

        return again

    def native(self, bound: Bound, handle: LaneHandle, words: Sequence[Any]) -> NativeCall | None:
        """Return a call for native code, with words of a record among its own; None if that cannot be."""
        if bound.symbol not in WORDS:
            return super().native(bound, handle, words)
        if bound.symbol == "stop":
            return None
        numbers = [0 if isinstance(each, Word) else each for each in words]
        places = {place: each for place, each in enumerate(words) if isinstance(each, Word)}
        launches = getattr(self._kernels, bound.symbol)(numbers)
        native: NativeCall | None = launches.native(self._streams[handle.value.value], places, self._services.give_up)
        return native

    def refused(self, bound: Bound, status: int, lane: Lane) -> Exception:
        """Return the error of a step of a sequence."""
        if bound.symbol in WORDS:
            return self._kernels.error(bound.symbol, status)
        return super().refused(bound, status, lane)

    def _open_ahead(self, command: Command, lane: Lane) -> None:
        super()._open_ahead(command, lane)
        self._kernels.load()

    def close(self) -> None:
        """Give everything back."""
        super().close()
        self._kernels.unload()


def solver_engine(services: WorkerServices) -> SolverEngine:
    """The engine of cuSOLVER. Nothing is loaded before its first call."""
    from atomr_cuda import cusolver

    return SolverEngine(services, cusolver, _Handles(cusolver))
