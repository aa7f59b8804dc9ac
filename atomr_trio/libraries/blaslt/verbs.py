"""Products of matrices with epilogues: the verb of cuBLASLt on arrays in numpy's order.

`matmul` has the verb, `plan` the plan of a call, `extras` the operands beside the matrices, `types` the tables.
"""

from __future__ import annotations

from ..._calls.recorded import Recorded
from ..._calls.verbs import Awaited, Batched
from .matmul import MatmulVerbs
from .types import Compute, Epilogue

__all__ = ["BatchBlasLt", "BlasLt", "Compute", "Epilogue", "RecordedBlasLt"]


class BlasLt(MatmulVerbs, Awaited):
    """Products of matrices on the device's compute lane: `dev.blaslt`."""

    __slots__ = ()


class BatchBlasLt(MatmulVerbs, Batched):
    """The verbs of `BlasLt` in a batch, without ``await``: `batch.blaslt`."""

    __slots__ = ()


class RecordedBlasLt(MatmulVerbs, Recorded):
    """The verbs of `BlasLt` as nodes of a graph: `graph.blaslt` of a `GraphRecorder`."""

    __slots__ = ()
