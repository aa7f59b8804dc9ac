"""Random numbers, as verbs."""

from __future__ import annotations

from ..._calls.verbs import Awaited, Batched, Library, Recorded
from .records import RANDOM


class _RandomVerbs(Library):
    """The verbs, in all forms."""

    __slots__ = ()

    _table = RANDOM


class Random(_RandomVerbs, Awaited):
    """Random numbers on the device's compute lane: `dev.random`."""

    __slots__ = ()


class BatchRandom(_RandomVerbs, Batched):
    """The verbs of `Random` in a batch, without ``await``: `batch.random`."""

    __slots__ = ()


class RecordedRandom(_RandomVerbs, Recorded):
    """The stateless verbs of `Random` as nodes of a graph: `graph.random` of a `GraphRecorder`."""

    __slots__ = ()
