"""The registration of NCCL."""

from __future__ import annotations

from ..._wire.registration import Registration
from ..._wire.status import StatusClass

REGISTRATION = Registration(
    name="nccl",
    number=11,
    engine="NcclEngine",
    uses=("lanes",),
    library="nccl",
    statuses={
        # Each of them ends the communicator. Whether the context is lost too, the driver says when it is asked.
        StatusClass.REQUEST: (2, 3, 4, 5, 6, 7, 8),
        StatusClass.UNCERTAIN: (1,),  # UnhandledCudaError
    },
)
