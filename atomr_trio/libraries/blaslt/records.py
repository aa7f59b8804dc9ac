"""Records of cuBLASLt: the problem of a product, and its addresses."""

from __future__ import annotations

import struct
from typing import NamedTuple

from ..._wire.protocol import Mode, VerbTable
from .registration import REGISTRATION

_LAYOUT = struct.Struct("<HQQQQ")
_PROBLEM = struct.Struct("<HHBBHHIQQQ")
MATRICES = ("a", "b", "c", "d")
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
    """The layouts in a record."""
    return b"".join(_LAYOUT.pack(*layout) for layout in layouts)


def unpack_layouts(content: bytes) -> tuple[Layout, ...]:
    return tuple(Layout(*each) for each in _LAYOUT.iter_unpack(content))


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
        """Return the problem in the form of a record."""
        return _PROBLEM.pack(*self[:-1]) + pack_layouts(*self.layouts)

    @classmethod
    def unpack(cls, content: bytes) -> Problem:
        """Return the problem that `pack` wrote."""
        return cls._make((*_PROBLEM.unpack_from(content), unpack_layouts(content[_PROBLEM.size :])))


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
    """Return the key of a plan. It is the same on both sides of the process boundary."""
    return (problem, addresses.c == addresses.d, *map(alignment, addresses))


BLASLT = VerbTable(REGISTRATION.name, REGISTRATION.number)

PLACE_OF_ADDRESSES = _PROBLEM.size + len(MATRICES) * _LAYOUT.size
"""The offset of the addresses, which are 64-bit words, in the tail of a product's record."""

_FIELDS = {
    "problem": f"{PLACE_OF_ADDRESSES}s",
    **dict.fromkeys(Addresses._fields, "Q"),
    **dict.fromkeys(("alpha", "beta"), f"{SCALAR_BYTES}s"),
}

MATMUL = BLASLT.verb("matmul", Mode.ENQUEUES, _FIELDS)

FIRST_MATMUL = BLASLT.verb("first_matmul", Mode.BLOCKS, _FIELDS)
"""The same product, when its plan must be made and its kernels must be loaded."""

TRANSFORM = BLASLT.verb(
    "transform",
    Mode.BLOCKS,
    {"scale": "H", "operation": "H", "batch": "I", "layouts": f"{2 * _LAYOUT.size}s", "source": "Q", "target": "Q"}
    | {"alpha": f"{SCALAR_BYTES}s"},
)
"""Copy matrices to others with another layout, transposed where `operation` says so; `alpha` is 1."""

OPEN = BLASLT.verb("open", Mode.BLOCKS, {})
"""Load the library and make its handle before the first product: a standby worker has the time."""


PLANS = 256
"""The number of plans that a lane keeps: those used last."""

WORKSPACE_BYTES = 32 << 20
"""The size of a lane's one workspace, the limit for an algorithm. NVIDIA recommends this size for Hopper."""
