"""Records of cuRAND: which of its functions programs may call."""

from __future__ import annotations

from ..._wire.records.plans import PlanTable
from .registration import REGISTRATION

RANDOM = PlanTable(
    REGISTRATION.name,
    REGISTRATION.number,
    (
        *("curandCreateGenerator", "curandDestroyGenerator", "curandSetStream", "curandSetGeneratorOrdering"),
        *("curandSetPseudoRandomGeneratorSeed", "curandSetQuasiRandomGeneratorDimensions"),
        *("curandSetGeneratorOffset", "curandGenerateSeeds"),
        *("curandGenerate", "curandGenerateLongLong", "curandGenerateUniform", "curandGenerateUniformDouble"),
        *("curandGenerateNormal", "curandGenerateNormalDouble"),
        *("curandGenerateLogNormal", "curandGenerateLogNormalDouble", "curandGeneratePoisson"),
    ),
)
