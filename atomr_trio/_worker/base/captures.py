"""Capturing the calls of libraries: a lane that no command runs on, and whose stream takes calls into graphs.

An engine keeps what it needs for a lane by the lane's number: a handle whose stream is the lane's, a workspace. So a
graph that has such a lane of its own also has handles and workspaces of its own, and no other work ever uses them.

A capture is *thread-local*. The driver then forbids unsafe calls, such as allocating, only to the thread that captures;
other lanes go on as ever. A relaxed capture would allow them here as well, and hide a library that allocates during a
call: the memory would be the graph's without anybody knowing. That the first call of a function loads its kernel is no
unsafe call to a driver that loads lazily.

Captures and calls that synchronise the context take turns (`capture_turns`).
"""

from __future__ import annotations

import itertools
import threading
from ctypes import byref
from typing import TYPE_CHECKING, Any, cast

from atomr_cuda.constants.driver import (
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CU_STREAM_NON_BLOCKING,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
)

from ..._wire.protocol import Verb
from ..._wire.status import StatusClass, classify
from .lanes import CapturableEngine, Command

if TYPE_CHECKING:
    from .lanes import Lane, WorkerServices

_FATAL = (StatusClass.POISONS, StatusClass.GONE)
_FIRST_INDEX = 1 << 16
"""The numbers of these lanes begin here, far beyond those of the lanes in records."""


class CaptureLane:
    """A stream for captures, with the part of a `Lane` that engines use. Nothing ever waits in it, or has a ticket."""

    _indices = itertools.count(_FIRST_INDEX)

    finished: int = 0
    submitted: int = 0
    accepted: int = 0

    def __init__(self, services: WorkerServices) -> None:
        from atomr_cuda import driver

        self.index: int = next(self._indices)
        self.calling: threading.Lock = threading.Lock()
        self.stream: Any = driver.CUstream()
        self._driver = driver
        self._services = services
        driver.cuStreamCreateWithPriority(byref(self.stream), CU_STREAM_NON_BLOCKING, 0)

    def weigh(self, ticket: int, entries: int) -> None:
        """Do nothing: a captured call takes no room in a queue."""

    def prepare(self, verb: Verb, payload: bytes, allowed: int, *, launches: bool = True) -> None:
        """Let the engine of a record make what its call needs, before anything is captured.

        All workspaces of the worker may take `allowed` bytes of device memory. `launches` is false if the graph is not
        to be launched.
        """
        engine = self._services.engines[verb.engine_number]
        if isinstance(engine, CapturableEngine):
            engine.prepare_capture(verb.number, payload, self._as_lane(), allowed, launches=launches)

    def capture(self, verb: Verb, payload: bytes) -> Any:
        """Make the call of a record, and return the graph that it became, for the caller to destroy.

        Raises the error of the call, or of the driver if it refuses the capture. No capture goes on after that.
        """
        call = self._services.engines[verb.engine_number].calls[verb.number]
        command = Command(verb, call, 0, (), payload, [])
        begin, end, graph = self._driver.cuStreamBeginCapture, self._driver.cuStreamEndCapture, self._driver.CUgraph()
        with self._services.capture_turns.capture():
            begin(self.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            try:
                call(command, self._as_lane())
            except BaseException as error:
                status = self._end(graph)
                if graph.value:
                    self._driver.cuGraphDestroy.status(graph)
                if isinstance(error, self._services.cuda_error):
                    raise self._refusal(error, status) from None
                raise
            status = self._end(graph)
        if status:
            raise self._named(end.library.error(status, end.symbol), f" ({verb.operation})")
        return graph

    def _end(self, graph: Any) -> int:
        """End the capture. A capture that goes on would forbid this thread what other work needs: ask twice."""
        end = self._driver.cuStreamEndCapture
        status: int = end.status(self.stream, byref(graph))
        return status and (end.status(self.stream, byref(graph)) and status)

    def _refusal(self, error: Any, ended: int) -> Exception:
        """Return the error of a call that failed while it was captured.

        Libraries report a call of the driver that a capture forbids as a failure of the GPU, which would cost the
        context. But nothing ran: unless the driver itself says that the context is lost, only this call has failed.
        """
        query = self._driver.cuStreamQuery
        status = query.status(self.stream)
        if status and classify(status) in _FATAL:
            lost: Exception = query.library.error(status, error.function)
            return lost
        if classify(error.status, error.library) not in _FATAL:
            return self._named(error, "")
        refused = query.library.error(ended or CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, error.function)
        return self._named(refused, f" ({error.name})")

    def _named(self, error: Any, more: str) -> Exception:
        text = f"{error.text}{more}; the call was being captured into a graph"
        named: Exception = self._services.cuda_error(error.status, error.name, text, error.library, error.function)
        return named

    def _as_lane(self) -> Lane:
        return cast("Lane", self)  # as far as the call of a record uses one

    def destroy(self) -> None:
        """Give the stream back, when no engine has anything for the lane any more."""
        self._driver.cuStreamDestroy(self.stream)
