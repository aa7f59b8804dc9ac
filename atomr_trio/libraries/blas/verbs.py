"""Dense linear algebra: verbs of cuBLAS on arrays in numpy's order.

One file for each of BLAS's three levels; the third has two more, `products` and `triangular`. `vectors` and `matrices`
prepare operands, and `types` has the shared tables.
"""

from __future__ import annotations

from ..._calls.recorded import Recorded
from ..._calls.verbs import Awaited, Batched
from .level1 import VectorVerbs
from .level2 import MatrixVectorVerbs
from .level3 import MatrixVerbs
from .products import ProductVerbs
from .records import BLAS
from .triangular import TriangularVerbs
from .types import Compute, MathMode

__all__ = ["BatchBlas", "Blas", "Compute", "MathMode", "RecordedBlas"]


class _BlasVerbs(VectorVerbs, MatrixVectorVerbs, MatrixVerbs, ProductVerbs, TriangularVerbs):
    __slots__ = ()

    _table = BLAS


class Blas(_BlasVerbs, Awaited):
    """Dense linear algebra on the device's compute lane: `dev.blas`."""

    __slots__ = ()


class BatchBlas(_BlasVerbs, Batched):
    """The verbs of `Blas` in a batch, without ``await``: `batch.blas`."""

    __slots__ = ()


class RecordedBlas(_BlasVerbs, Recorded):
    """The verbs of `Blas` as nodes of a graph: `graph.blas` of a `GraphRecorder`.

    Each is one node. It returns its result as in a batch: the arrays that it was given, or new ones. The graph writes
    them anew with each launch, and keeps them alive.
    """

    __slots__ = ()
