"""Blocking forms of the awaited face. Made by `make plain`: not to be edited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._twins import Awaits, Enqueues
from .lib_blas_level1 import VectorVerbs
from .lib_blas_level2 import MatrixVectorVerbs
from .lib_blas_level3 import MatrixVerbs
from .lib_blas_products import ProductVerbs
from .lib_blas_triangular import TriangularVerbs

if TYPE_CHECKING:
    import atomr_trio


class BatchBlas(Enqueues, VectorVerbs, MatrixVectorVerbs, MatrixVerbs, ProductVerbs, TriangularVerbs):
    """The verbs of `Blas` in a batch, without waiting: `batch.blas`."""

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.BatchBlas:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.BatchBlas = self._awaited
        return value


class Blas(Awaits, VectorVerbs, MatrixVectorVerbs, MatrixVerbs, ProductVerbs, TriangularVerbs):
    """Dense linear algebra on the device's compute lane: `dev.blas`."""

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.Blas:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.Blas = self._awaited
        return value


class RecordedBlas(Enqueues, VectorVerbs, MatrixVectorVerbs, MatrixVerbs, ProductVerbs, TriangularVerbs):
    """The verbs of `Blas` as nodes of a graph: `graph.blas` of a `GraphRecorder`.

    Each is one node. It returns its result as in a batch: the arrays that it was given, or new ones. The graph writes
    them anew with each launch, and keeps them alive.
    """

    __slots__ = ()

    @property
    def awaited(self) -> atomr_trio.RecordedBlas:
        """The same object of the awaited face, for functions that `Device.run` runs."""
        value: atomr_trio.RecordedBlas = self._awaited
        return value
