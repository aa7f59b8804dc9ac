"""Products of matrices with all that is done to them: the verb of cuBLASLt on arrays that lie as numpy's do.

`matmul` has the verb, `plan` what comes of a call, `extras` what a product takes and gives beside its matrices, `types`
the tables.
"""

from __future__ import annotations

from ..._calls import Awaited, Batched
from .matmul import MatmulVerbs
from .types import Compute, Epilogue

__all__ = ["BatchBlasLt", "BlasLt", "Compute", "Epilogue"]


class BlasLt(MatmulVerbs, Awaited):
    """Products of matrices on the device's compute lane: `dev.blaslt`."""

    __slots__ = ()


class BatchBlasLt(MatmulVerbs, Batched):
    """The verbs of `BlasLt` in a batch, without ``await``: `batch.blaslt`."""

    __slots__ = ()
