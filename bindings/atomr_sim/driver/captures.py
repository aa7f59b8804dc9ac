"""Captures of the simulated driver: what is put into a stream becomes nodes of a graph, instead of running.

A capture begins in one stream, its *origin*. Another stream joins it when it waits for an event that was recorded in
it, and must be waited for by the origin before the end. What the driver forbids meanwhile is refused with its status,
and *invalidates* the capture: from then on every use of its streams is refused, until it is ended.

This file knows streams and the driver's numbers. A node is a function here; ``graphs`` makes the graph.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn

from atomr_cuda.driver import CUgraphNodeType, CUresult, CUstreamCaptureMode

from .._status import Refused, require

if TYPE_CHECKING:
    from .streams import Stream

UNSUPPORTED = int(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
INVALIDATED = int(CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
MERGE = int(CUresult.CUDA_ERROR_STREAM_CAPTURE_MERGE)
UNMATCHED = int(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
UNJOINED = int(CUresult.CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
ISOLATION = int(CUresult.CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
IMPLICIT = int(CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
CAPTURED_EVENT = int(CUresult.CUDA_ERROR_CAPTURED_EVENT)
WRONG_THREAD = int(CUresult.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
ILLEGAL_STATE = int(CUresult.CUDA_ERROR_ILLEGAL_STATE)

_GLOBAL = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
_RELAXED = CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


class NodeForm(NamedTuple):
    """The kind of a captured node, and the property that an instantiated one cannot change."""

    kind: CUgraphNodeType
    extent: tuple[int, ...] = ()


KERNEL_NODE: NodeForm = NodeForm(CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL)


class CapturedNode:
    """One captured piece of work, and those that it comes after."""

    def __init__(self, form: NodeForm, work: Callable[[], None], before: tuple[CapturedNode, ...]) -> None:
        self.form = form
        self.work = work
        self.before = before


class Capture:
    """One capture: its nodes in the order of the calls, and the last ones of each stream that takes part."""

    _numbers: ClassVar[Iterator[int]] = itertools.count(1)

    def __init__(self, origin: Stream, mode: CUstreamCaptureMode) -> None:
        self.origin = origin
        self.mode = mode
        self.thread: int = threading.get_ident()
        self.number: int = next(self._numbers)
        self.valid: bool = True
        self.ended: bool = False
        self.nodes: list[CapturedNode] = []
        self._last: dict[Stream, tuple[CapturedNode, ...]] = {origin: ()}
        origin.capture = self

    def record(self, stream: Stream, form: NodeForm, work: Callable[[], None]) -> None:
        """Add a node behind the last ones of a stream."""
        self.check()
        node = CapturedNode(form, work, self._last[stream])
        self.nodes.append(node)
        self._last[stream] = (node,)

    def last(self, stream: Stream) -> tuple[CapturedNode, ...]:
        """Return the nodes that an event of this stream stands for."""
        self.check()
        return self._last[stream]

    def wait(self, stream: Stream, nodes: Iterable[CapturedNode]) -> None:
        """Let a stream go on after these nodes; it takes part from now on."""
        self.check()
        if stream.capture is not None and stream.capture is not self:
            stream.capture.valid = False
            self.forbid(MERGE)
        stream.capture = self
        self._last[stream] = tuple(dict.fromkeys((*self._last.get(stream, ()), *nodes)))

    def check(self) -> None:
        """Refuse unless it is valid."""
        require(self.valid, INVALIDATED)

    def forbid(self, status: int) -> NoReturn:
        """Refuse a call that its streams do not allow, which invalidates it."""
        self.valid = False
        raise Refused(status)

    @property
    def joined(self) -> bool:
        """Tell whether the origin waits for the last nodes of all other streams."""
        reached: set[CapturedNode] = set()
        ahead = list(self._last[self.origin])
        while ahead:
            node = ahead.pop()
            if node not in reached:
                reached.add(node)
                ahead += node.before
        return all(node in reached for nodes in self._last.values() for node in nodes)

    def leave(self) -> None:
        """End it: its streams run their work again."""
        self.ended = True
        for stream in self._last:
            stream.capture = None


class Captures:
    """The captures that are under way in the process, and what they forbid."""

    def __init__(self) -> None:
        self._active: list[Capture] = []
        self._lock = threading.Lock()
        self._thread = threading.local()

    def begin(self, stream: Stream, mode: int) -> None:
        """Begin a capture in a stream."""
        require(mode in tuple(CUstreamCaptureMode))
        with self._lock:
            require(stream.capture is None, ILLEGAL_STATE)
            self._active = [*self._active, Capture(stream, CUstreamCaptureMode(mode))]

    def end(self, stream: Stream) -> Capture:
        """End the capture that began in a stream, or refuse it."""
        capture = stream.capture
        if capture is None:
            raise Refused(ILLEGAL_STATE)
        require(capture.origin is stream, UNMATCHED)
        require(capture.mode is _RELAXED or capture.thread == threading.get_ident(), WRONG_THREAD)
        self._drop(capture)
        capture.check()
        require(capture.joined, UNJOINED)
        return capture

    def destroyed(self, stream: Stream) -> None:
        """Note that a stream is destroyed: its capture ends with it."""
        if stream.capture is not None:
            self._drop(stream.capture)

    def _drop(self, capture: Capture) -> None:
        with self._lock:
            self._active = [each for each in self._active if each is not capture]
        capture.leave()

    def exchange_mode(self, mode: int) -> int:
        """Set how much this thread cares about captures; return what it was."""
        require(mode in tuple(CUstreamCaptureMode))
        before, self._thread.mode = self._mode, CUstreamCaptureMode(mode)
        return before

    @property
    def _mode(self) -> CUstreamCaptureMode:
        mode: CUstreamCaptureMode = getattr(self._thread, "mode", _GLOBAL)
        return mode

    def forbid_unsafe(self) -> None:
        """Refuse a call that may wait for streams, as allocating does, while it is forbidden.

        That is while this thread has a capture that is not relaxed, or another thread has a global one.
        """
        if not self._active or self._mode is _RELAXED:
            return
        here = threading.get_ident()
        for capture in self._active:
            is_own = capture.thread == here and capture.mode is not _RELAXED
            if is_own or (self._mode is _GLOBAL and capture.mode is _GLOBAL):
                capture.forbid(UNSUPPORTED)

    def forbid(self, streams: Iterable[Stream], status: int) -> None:
        """Refuse a call that concerns all of these streams while one is captured."""
        captured = [stream.capture for stream in streams if stream.capture is not None] if self._active else []
        for capture in captured:
            capture.valid = False
        require(not captured, status)
