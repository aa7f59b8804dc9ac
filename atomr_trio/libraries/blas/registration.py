"""The registration of cuBLAS."""

from __future__ import annotations

from ..._wire.registration import Registration
from ..._wire.status import StatusClass

REGISTRATION = Registration(
    name="blas",
    number=6,
    engine="blas_engine",
    library="cublas",
    statuses={
        StatusClass.REQUEST: (
            1,  # NOT_INITIALIZED: the library could not start
            *(7, 8, 15, 16),  # INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED, LICENSE_ERROR
        ),
        StatusClass.OUT_OF_MEMORY: (3,),  # ALLOC_FAILED
        StatusClass.POISONS: (11, 13, 14),  # MAPPING_ERROR, EXECUTION_FAILED, INTERNAL_ERROR
    },
    verbs="Blas",
    batch_verbs="BatchBlas",
    recorded_verbs="RecordedBlas",
    summary="Dense linear algebra (cuBLAS)",
    example="gemm(a, b)",
)
