"""The registration of cuSOLVER."""

from __future__ import annotations

from ..._wire.registration import Registration
from ..._wire.status import StatusClass

REGISTRATION = Registration(
    name="solver",
    number=7,
    engine="solver_engine",
    uses=("blas",),
    library="cusolver",
    statuses={
        StatusClass.REQUEST: (
            1,  # NOT_INITIALIZED: the library could not start
            *(3, 4, 8, 9, 10, 11),  # INVALID_VALUE, ARCH_MISMATCH, *_NOT_SUPPORTED, ZERO_PIVOT, INVALID_LICENSE
        ),
        StatusClass.OUT_OF_MEMORY: (2,),  # ALLOC_FAILED
        StatusClass.POISONS: (5, 6, 7),  # MAPPING_ERROR, EXECUTION_FAILED, INTERNAL_ERROR
    },
    verbs="Solver",
    batch_verbs="BatchSolver",
    summary="Factorizations, linear systems, eigenvalues, singular values (cuSOLVER)",
    example="solve(a, b)",
)
