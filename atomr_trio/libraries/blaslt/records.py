"""Records of cuBLASLt: its plans, and what they are known by: the problem of a product, and its addresses."""

from __future__ import annotations

import struct
from typing import NamedTuple

from ..._wire.records.plans import PlanTable
from .registration import REGISTRATION

_LAYOUT = struct.Struct("<HQQQQ")
_PROBLEM = struct.Struct("<HHBBHHIQQQ")
SCALAR_BYTES = 16
"""The size of alpha or beta of any type, in bytes."""


class Layout(NamedTuple):
    """A matrix of the library in column-major order, or a batch of such matrices; sizes are counted in elements."""

    type: int
    """``cudaDataType``."""
    rows: int
    columns: int
    leading: int
    distance: int
    """The distance from one matrix of the batch to the next."""


def pack_layouts(*layouts: Layout) -> bytes:
    """Return layouts as bytes."""
    return b"".join(_LAYOUT.pack(*layout) for layout in layouts)


class Problem(NamedTuple):
    """A product without its addresses, alpha and beta: ``D = epilogue(alpha op(A) op(B) + beta C)``."""

    compute: int
    """``cublasComputeType_t``."""
    scale: int
    """The ``cudaDataType`` of alpha and beta."""
    operation_a: int
    operation_b: int
    epilogue: int
    """``cublasLtEpilogue_t``."""
    bias_type: int
    """The ``cudaDataType`` of the bias, or of its gradient."""
    batch: int
    bias_distance: int
    aux_leading: int
    """The leading dimension in elements; these are bits where the auxiliary matrix is a mask."""
    aux_distance: int
    layouts: tuple[Layout, ...]
    """The layouts of A, B, C and D."""

    def pack(self) -> bytes:
        """Return the problem as bytes, which are equal only for equal problems."""
        return _PROBLEM.pack(*self[:-1]) + pack_layouts(*self.layouts)


class Addresses(NamedTuple):
    """The addresses on the device; 0 for what a call does not have."""

    a: int
    b: int
    c: int
    d: int
    bias: int = 0
    aux: int = 0
    scale_a: int = 0
    scale_b: int = 0
    scale_c: int = 0
    scale_d: int = 0
    amax: int = 0


Key = tuple[object, ...]
_MAX_ALIGNMENT = 256


def alignment(address: int) -> int:
    """Return the largest power of two, up to 256, that divides an address; 0 for no address."""
    return min(address & -address, _MAX_ALIGNMENT)


def plan_key(problem: bytes, addresses: Addresses) -> Key:
    """Return the key of a plan: all that it depends on."""
    return (problem, addresses.c == addresses.d, *map(alignment, addresses))


WORKSPACE_BYTES = 32 << 20
"""The most bytes of workspace that an algorithm may need. NVIDIA recommends this size for Hopper."""

BLASLT = PlanTable(
    REGISTRATION.name,
    REGISTRATION.number,
    (
        *("cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", "cublasLtMatmulDescSetAttribute"),
        *("cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", "cublasLtMatrixLayoutSetAttribute"),
        *("cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy"),
        *("cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"),
        *("cublasLtMatrixTransformDescCreate", "cublasLtMatrixTransformDescDestroy"),
        *("cublasLtMatrixTransformDescSetAttribute", "cublasLtMatrixTransform"),
    ),
)
