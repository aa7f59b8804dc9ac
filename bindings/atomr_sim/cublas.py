"""The simulated cuBLAS: the functions of ``atomr_cuda.cublas``, on numpy and on scipy's BLAS and LAPACK.

The files that this one imports fill the table. scipy is imported by the first call that needs it: for a triangular
matrix, or for a factorization.
"""

from __future__ import annotations

from . import blas_batched, blas_handle, blas_level1, blas_level2, blas_level3
from .blas_handle import counterpart as counterpart

_PARTS = (blas_handle, blas_level1, blas_level2, blas_level3, blas_batched)
