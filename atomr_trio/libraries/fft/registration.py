"""The registration of cuFFT."""

from __future__ import annotations

from ..._wire.registration import Registration
from ..._wire.status import StatusClass

REGISTRATION = Registration(
    name="fft",
    number=9,
    engine="fft_engine",
    library="cufft",
    statuses={
        StatusClass.REQUEST: (
            *(1, 3, 4, 7),  # INVALID_PLAN, INVALID_TYPE, INVALID_VALUE, SETUP_FAILED: the library could not start
            *(8, 9, 10, 11, 12, 13, 14),  # INVALID_SIZE to NOT_IMPLEMENTED
            *(15, 16, 17, 18, 19, 20),  # LICENSE_ERROR, NOT_SUPPORTED, and what the library needs and has not found
        ),
        StatusClass.OUT_OF_MEMORY: (2,),  # ALLOC_FAILED
        StatusClass.UNCERTAIN: (5,),  # INTERNAL_ERROR: after a fault, and for a plan that cannot be made
        StatusClass.POISONS: (6,),  # EXEC_FAILED
    },
    verbs="Fft",
    batch_verbs="BatchFft",
    recorded_verbs="RecordedFft",
    summary="Fourier transforms (cuFFT)",
    example="rfft(x)",
)
