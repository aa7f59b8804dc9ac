"""What the kinds of generators have in common and what sets them apart: what may be set, what they draw, their state.

The statuses are those of the library, which the host generators of 10.4 return too. This file draws no number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from atomr_cuda.curand import curandOrdering_t as Ordering, curandRngType_t as Kind, curandStatus_t as Status

TYPE_ERROR: Final = int(Status.CURAND_STATUS_TYPE_ERROR)
OUT_OF_RANGE: Final = int(Status.CURAND_STATUS_OUT_OF_RANGE)
LENGTH_NOT_MULTIPLE: Final = int(Status.CURAND_STATUS_LENGTH_NOT_MULTIPLE)
NOT_SUPPORTED: Final = int(Status.CURAND_STATUS_ARCH_MISMATCH)
"""The library's nearest word for what the simulator does not have: the GPU does not support what was asked for."""

MOST_DIMENSIONS: Final = 20_000
LARGEST_LAMBDA: Final = 400_000.0
SEED: Final = 0
"""The seed of a generator that was given none."""

ALIASES: Final = {
    int(Kind.CURAND_RNG_PSEUDO_DEFAULT): Kind.CURAND_RNG_PSEUDO_XORWOW,
    int(Kind.CURAND_RNG_QUASI_DEFAULT): Kind.CURAND_RNG_QUASI_SOBOL32,
}
XORWOW: Final = Kind.CURAND_RNG_PSEUDO_XORWOW
MRG32K3A: Final = Kind.CURAND_RNG_PSEUDO_MRG32K3A
MTGP32: Final = Kind.CURAND_RNG_PSEUDO_MTGP32
MT19937: Final = Kind.CURAND_RNG_PSEUDO_MT19937
PHILOX: Final = Kind.CURAND_RNG_PSEUDO_PHILOX4_32_10
SOBOL32: Final = Kind.CURAND_RNG_QUASI_SOBOL32
SCRAMBLED_SOBOL32: Final = Kind.CURAND_RNG_QUASI_SCRAMBLED_SOBOL32
SOBOL64: Final = Kind.CURAND_RNG_QUASI_SOBOL64
SCRAMBLED_SOBOL64: Final = Kind.CURAND_RNG_QUASI_SCRAMBLED_SOBOL64

_QUASI = frozenset({SOBOL32, SCRAMBLED_SOBOL32, SOBOL64, SCRAMBLED_SOBOL64})
_WIDE = frozenset({SOBOL64, SCRAMBLED_SOBOL64})
_TWISTERS = frozenset({MTGP32, MT19937})
_IN_PAIRS = frozenset({XORWOW, MRG32K3A})

_USUAL = frozenset(
    {
        Ordering.CURAND_ORDERING_PSEUDO_BEST,
        Ordering.CURAND_ORDERING_PSEUDO_DEFAULT,
        Ordering.CURAND_ORDERING_PSEUDO_LEGACY,
    }
)
_DYNAMIC = frozenset({Ordering.CURAND_ORDERING_PSEUDO_DYNAMIC})
_ORDERINGS: dict[Kind, frozenset[Ordering]] = {
    XORWOW: _USUAL | _DYNAMIC | {Ordering.CURAND_ORDERING_PSEUDO_SEEDED},
    MRG32K3A: _USUAL | _DYNAMIC,
    MTGP32: _USUAL | _DYNAMIC,
    MT19937: _USUAL,
    PHILOX: _USUAL | _DYNAMIC,
    **dict.fromkeys(_QUASI, frozenset({Ordering.CURAND_ORDERING_QUASI_DEFAULT})),
}

# Bytes of one state, and how many there are. That of Philox and XORWOW together was measured on a GPU; the others are
# the structures of the headers, times the sequences.
_STATES = {
    XORWOW: 48 * 4096,
    MRG32K3A: 48 * 81920,
    PHILOX: 64 * 65536,
    MTGP32: 4112 * 192,
    MT19937: 4 * 624 * 8192,
}


@dataclass(frozen=True)
class Draw:
    """One of the functions ``curandGenerate`` and its like: what it writes, and how it is called."""

    name: str
    dtype: np.dtype[Any]
    is_normal: bool = False

    @property
    def is_poisson(self) -> bool:
        return self.name == "curandGeneratePoisson"


def _draws() -> dict[str, Draw]:
    words = ("", np.uint32, False), ("LongLong", np.uint64, False), ("Poisson", np.uint32, False)
    uniforms = ("Uniform", np.float32, False), ("UniformDouble", np.float64, False)
    normals = (
        (f"{prefix}Normal{suffix}", word, True)
        for prefix in ("", "Log")
        for suffix, word in (("", np.float32), ("Double", np.float64))
    )
    return {
        f"curandGenerate{suffix}": Draw(f"curandGenerate{suffix}", np.dtype(word), is_normal)
        for suffix, word, is_normal in (*words, *uniforms, *normals)
    }


DRAWS: Final = _draws()
"""The functions that draw, by their names."""


@dataclass(frozen=True)
class Settings:
    """What a generator begins with. An offset counts numbers, or for the quasi kinds points."""

    kind: Kind
    seed: int = SEED
    offset: int = 0
    ordering: int | None = None
    """As it was set; None for the kind's own."""
    dimensions: int = 1

    @property
    def is_quasi(self) -> bool:
        return self.kind in _QUASI

    @property
    def has_offset(self) -> bool:
        return self.kind not in _TWISTERS

    @property
    def has_state_at_once(self) -> bool:
        """True if the memory of the state is allocated when the generator is created."""
        return self.kind in _TWISTERS

    @property
    def state_bytes(self) -> int:
        """Bytes of device memory of its state. The tables of the quasi kinds are not counted."""
        return _STATES.get(self.kind, 0)

    def takes(self, ordering: int) -> bool:
        """Tell whether the kind has an ordering."""
        return ordering in _ORDERINGS[self.kind]

    def alignment(self, draw: Draw) -> int:
        """The multiple of bytes at which a result must begin, or the GPU faults: some kinds store normals in pairs."""
        return draw.dtype.itemsize * (2 if draw.is_normal and self.kind in _IN_PAIRS else 1)

    def status(self, draw: Draw, count: int, parameters: tuple[float, ...]) -> int:
        """The status with which the library refuses a draw of more than no numbers; 0 for a valid one."""
        if draw.name == "curandGenerateLongLong" and self.kind not in _WIDE:
            return TYPE_ERROR
        if draw.name == "curandGenerate" and self.kind in _WIDE:
            return TYPE_ERROR
        if draw.is_poisson and not 0 < parameters[0] <= LARGEST_LAMBDA:
            return OUT_OF_RANGE
        if self.is_quasi and count % self.dimensions:
            return LENGTH_NOT_MULTIPLE
        if draw.is_normal and self.kind in _IN_PAIRS and count % 2:
            return LENGTH_NOT_MULTIPLE
        return 0
