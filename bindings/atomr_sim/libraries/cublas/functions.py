"""The simulated cuBLAS: the functions of ``atomr_cuda.cublas``, on numpy and on scipy's BLAS and LAPACK.

The files that this one imports fill the table. scipy is imported by the first call that needs it: for a triangular
matrix, or for a factorization.
"""

from __future__ import annotations

from . import batched, handle, level1, level2, level3
from .handle import counterpart as counterpart

_PARTS = (handle, level1, level2, level3, batched)
