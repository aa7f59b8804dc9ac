"""The descriptors of the simulated cuBLASLt: numbered attributes, each a value of fixed size.

A descriptor is in the structure that the header reserves for it, in memory of the library or of the caller. So its
bytes can be copied, like the algorithms of the real library. The tables at the end of this file have the attributes of
each kind of descriptor, their types and their defaults.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_float, c_int8, c_int32, c_int64, c_uint16, c_uint32, c_uint64, sizeof
from enum import IntEnum
from typing import Any

from atomr_cuda import cublaslt
from atomr_cuda.cublaslt import cublasStatus_t

from ..._status import Refused, require

Descriptor = Any
"""The attributes by their names in lower case, and their numbers."""

INVALID_VALUE = int(cublasStatus_t.CUBLAS_STATUS_INVALID_VALUE)
_ALLOC_FAILED = int(cublasStatus_t.CUBLAS_STATUS_ALLOC_FAILED)
NOT_SUPPORTED = int(cublasStatus_t.CUBLAS_STATUS_NOT_SUPPORTED)
_NULL = c_uint64(0)


class Kind:
    """One kind of descriptor.

    ``attributes`` gives each attribute its default, which also determines its type. A name that begins with an
    underscore is not an attribute, but is kept beside them.
    """

    _marks = 0x5EED_0000_0000_0000

    def __init__(
        self, opaque: type[Structure], numbers: type[IntEnum], prefix: str, fixed: str = "", **attributes: Any
    ) -> None:
        Kind._marks += 1
        self._mark = Kind._marks
        named = [name for name in attributes if not name.startswith("_")]
        self._names = {int(numbers[prefix + name.upper()]): name for name in named}
        self._fixed = fixed
        """The attribute that can be read alone."""
        self._defaults = {name: default.value for name, default in attributes.items()}
        by_size = sorted(attributes.items(), key=lambda item: -sizeof(item[1]))
        fields = [("mark", c_uint64), *((name, type(default)) for name, default in by_size)]
        self._structure: type[Structure] = type(opaque.__name__, (Structure,), {"_fields_": fields})
        if sizeof(self._structure) > sizeof(opaque):
            raise ValueError(f"{opaque.__name__} is too small for its attributes")
        self._created: dict[int, Structure] = {}

    def create(self, result: Any, **values: int) -> None:
        """Make a descriptor in memory of the library, and write its address to ``result``."""
        require(result, INVALID_VALUE)
        memory = self._structure()
        address = ctypes.addressof(memory)
        self._created[address] = memory
        self.initialise(address, sizeof(memory), **values)
        result[0] = address

    def destroy(self, address: int | None) -> None:
        """Give back a descriptor of ``create``; one in memory of the caller needs nothing."""
        if address in self._created:
            self._created.pop(address)

    def initialise(self, address: int | None, size: int, **values: int) -> None:
        """Make a descriptor in memory of the caller, which must be large enough."""
        require(address, INVALID_VALUE)
        require(size >= sizeof(self._structure), _ALLOC_FAILED)
        memory = self._structure.from_address(address or 0)
        memory.mark = self._mark
        for name, default in {**self._defaults, **values}.items():
            setattr(memory, name, default)

    def read(self, address: int | None) -> Descriptor:
        """Return a copy of a descriptor as it is now, so that queued work does not see later changes. Refuses anything
        else."""
        return self._structure.from_buffer_copy(self._at(address))

    def set(self, address: int | None, number: int, value: int | None, size: int) -> None:
        """Set an attribute from the memory at ``value``."""
        start, length = self._place(address, number)
        require(value and size == length and self._names[number] != self._fixed, INVALID_VALUE)
        ctypes.memmove(start, value or 0, length)

    def get(self, address: int | None, number: int, value: int | None, size: int, written: Any) -> None:
        """Copy an attribute to ``value``; with a size of 0 only give its size."""
        start, length = self._place(address, number)
        put_attribute(ctypes.string_at(start, length), value, size, written)

    def _at(self, address: int | None) -> Structure:
        require(address, INVALID_VALUE)
        memory = self._structure.from_address(address or 0)
        require(getattr(memory, "mark", 0) == self._mark, INVALID_VALUE)
        return memory

    def _place(self, address: int | None, number: int) -> tuple[int, int]:
        """Return the place and the size of an attribute's value."""
        memory = self._at(address)
        if number not in self._names:
            raise Refused(INVALID_VALUE)
        field = getattr(self._structure, self._names[number])
        return ctypes.addressof(memory) + field.offset, field.size


def put_attribute(data: bytes, value: int | None, size: int, written: Any) -> None:
    """Answer a query for an attribute as every ``GetAttribute`` does: its bytes, or with a size of 0 their number."""
    require(written if size == 0 else value and size == len(data), INVALID_VALUE)
    if size:
        ctypes.memmove(value or 0, data, size)
    if written:
        written[0] = len(data)


LAYOUT: Kind = Kind(
    cublaslt.cublasLtMatrixLayoutOpaque_t,
    cublaslt.cublasLtMatrixLayoutAttribute_t,
    "CUBLASLT_MATRIX_LAYOUT_",
    type=c_uint32(),
    order=c_int32(),
    rows=c_uint64(),
    cols=c_uint64(),
    ld=c_int64(),
    batch_count=c_int32(1),
    strided_batch_offset=c_int64(),
    plane_offset=c_int64(),
    batch_mode=c_uint32(),
)
"""The layout of a matrix in memory."""

MATMUL: Kind = Kind(
    cublaslt.cublasLtMatmulDescOpaque_t,
    cublaslt.cublasLtMatmulDescAttributes_t,
    "CUBLASLT_MATMUL_DESC_",
    compute_type=c_int32(),
    scale_type=c_int32(),
    pointer_mode=c_int32(),
    transa=c_int32(),
    transb=c_int32(),
    transc=c_int32(),
    fill_mode=c_int32(cublaslt.cublasFillMode_t.CUBLAS_FILL_MODE_FULL),
    epilogue=c_uint32(cublaslt.cublasLtEpilogue_t.CUBLASLT_EPILOGUE_DEFAULT),
    bias_pointer=_NULL,
    bias_batch_stride=c_int64(),
    epilogue_aux_pointer=_NULL,
    epilogue_aux_ld=c_int64(),
    epilogue_aux_batch_stride=c_int64(),
    alpha_vector_batch_stride=c_int64(),
    sm_count_target=c_int32(),
    a_scale_pointer=_NULL,
    b_scale_pointer=_NULL,
    c_scale_pointer=_NULL,
    d_scale_pointer=_NULL,
    amax_d_pointer=_NULL,
    epilogue_aux_data_type=c_int32(-1),
    epilogue_aux_scale_pointer=_NULL,
    epilogue_aux_amax_pointer=_NULL,
    fast_accum=c_int8(),
    bias_data_type=c_int32(-1),
    a_scale_mode=c_int32(),
    b_scale_mode=c_int32(),
    c_scale_mode=c_int32(),
    d_scale_mode=c_int32(),
    epilogue_aux_scale_mode=c_int32(),
    d_out_scale_pointer=_NULL,
    d_out_scale_mode=c_int32(),
    emulation_descriptor=_NULL,
)
"""A product with its epilogue."""

TRANSFORM: Kind = Kind(
    cublaslt.cublasLtMatrixTransformDescOpaque_t,
    cublaslt.cublasLtMatrixTransformDescAttributes_t,
    "CUBLASLT_MATRIX_TRANSFORM_DESC_",
    scale_type=c_int32(),
    pointer_mode=c_int32(),
    transa=c_int32(),
    transb=c_int32(),
)
"""A change of layout."""

EMULATION: Kind = Kind(
    cublaslt.cublasLtEmulationDescOpaque_t,
    cublaslt.cublasLtEmulationDescAttributes_t,
    "CUBLASLT_EMULATION_DESC_",
    strategy=c_int32(),
    special_values_support=c_int32(
        cublaslt.cudaEmulationSpecialValuesSupport.CUDA_EMULATION_SPECIAL_VALUES_SUPPORT_DEFAULT
    ),
    fixedpoint_mantissa_control=c_int32(),
    fixedpoint_max_mantissa_bit_count=c_int32(),
    fixedpoint_mantissa_bit_offset=c_int32(),
    fixedpoint_mantissa_bit_count_pointer=_NULL,
)
"""The emulation of a product by another arithmetic. The simulator keeps it, and always computes in the real one."""

PREFERENCE: Kind = Kind(
    cublaslt.cublasLtMatmulPreferenceOpaque_t,
    cublaslt.cublasLtMatmulPreferenceAttributes_t,
    "CUBLASLT_MATMUL_PREF_",
    search_mode=c_uint32(),
    max_workspace_bytes=c_uint64(),
    reduction_scheme_mask=c_uint32(cublaslt.cublasLtReductionScheme_t.CUBLASLT_REDUCTION_SCHEME_MASK),
    min_alignment_a_bytes=c_uint32(256),
    min_alignment_b_bytes=c_uint32(256),
    min_alignment_c_bytes=c_uint32(256),
    min_alignment_d_bytes=c_uint32(256),
    max_waves_count=c_float(),
    impl_mask=c_uint64(2**64 - 1),
)
"""The preferences for an algorithm, and the alignment of its operands."""

ALGORITHM: Kind = Kind(
    cublaslt.cublasLtMatmulAlgo_t,
    cublaslt.cublasLtMatmulAlgoConfigAttributes_t,
    "CUBLASLT_ALGO_CONFIG_",
    fixed="id",
    id=c_int32(),
    tile_id=c_uint32(),
    splitk_num=c_int32(1),
    reduction_scheme=c_uint32(),
    cta_swizzling=c_uint32(),
    custom_option=c_uint32(),
    stages_id=c_uint32(),
    inner_shape_id=c_uint16(),
    cluster_shape_id=c_uint16(),
    _alignment=c_uint32(),
    _numerical_flags=c_uint64(),
)
"""The algorithm of a product."""
