"""The registration of cuRAND."""

from __future__ import annotations

from ..._wire.registration import Registration
from ..._wire.status import StatusClass

REGISTRATION = Registration(
    name="random",
    number=10,
    engine="random_engine",
    library="curand",
    statuses={
        StatusClass.REQUEST: (
            *(100, 101),  # VERSION_MISMATCH, NOT_INITIALIZED
            *(103, 104, 105, 106),  # TYPE_ERROR, OUT_OF_RANGE, LENGTH_NOT_MULTIPLE, DOUBLE_PRECISION_REQUIRED
            204,  # ARCH_MISMATCH
        ),
        StatusClass.OUT_OF_MEMORY: (102,),  # ALLOCATION_FAILED
        StatusClass.UNCERTAIN: (203, 999),  # INITIALIZATION_FAILED, INTERNAL_ERROR: after a fault, or by themselves
        StatusClass.POISONS: (201, 202),  # LAUNCH_FAILURE, PREEXISTING_FAILURE
    },
    verbs="Random",
    batch_verbs="BatchRandom",
    recorded_verbs="RecordedRandom",
    summary="Random numbers (cuRAND)",
    example="normal(size=1000)",
)
