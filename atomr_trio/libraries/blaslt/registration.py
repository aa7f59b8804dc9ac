"""The registration of cuBLASLt."""

from __future__ import annotations

from ..._wire.registration import Registration
from ..._wire.status import StatusClass

REGISTRATION = Registration(
    name="blaslt",
    number=8,
    engine="blaslt_engine",
    uses=("blas",),
    library="cublaslt",
    statuses={  # those of cuBLAS
        StatusClass.REQUEST: (
            1,  # NOT_INITIALIZED: the library could not start
            *(7, 8, 15, 16),  # INVALID_VALUE, ARCH_MISMATCH, NOT_SUPPORTED, LICENSE_ERROR
        ),
        StatusClass.OUT_OF_MEMORY: (3,),  # ALLOC_FAILED
        StatusClass.POISONS: (11, 13, 14),  # MAPPING_ERROR, EXECUTION_FAILED, INTERNAL_ERROR
    },
    verbs="BlasLt",
    batch_verbs="BatchBlasLt",
    recorded_verbs="RecordedBlasLt",
    summary="Products of matrices with epilogues (cuBLASLt)",
    example="matmul(a, b, ...)",
)
