"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Awaits, Enqueues
from .lib_blaslt_matmul import MatmulVerbs

if TYPE_CHECKING:
    import atomr_trio


class BatchBlasLt(Enqueues, MatmulVerbs):
    """The verbs of `BlasLt` in a batch, without waiting: `batch.blaslt`."""

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.BatchBlasLt:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.BatchBlasLt = self._awaited
        return value


class BlasLt(Awaits, MatmulVerbs):
    """Products of matrices on the device's compute lane: `dev.blaslt`."""

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.BlasLt:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.BlasLt = self._awaited
        return value


class RecordedBlasLt(Enqueues, MatmulVerbs):
    """The verbs of `BlasLt` as nodes of a graph: `graph.blaslt` of a `GraphRecorder`."""

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.RecordedBlasLt:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.RecordedBlasLt = self._awaited
        return value
