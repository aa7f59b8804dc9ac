"""Matrix products with epilogues (cuBLASLt) as a ctypes table.

Names, numbers and layouts are those of ``cublasLt.h`` 13.10; every function of 12.x is here, except one that no library
exports (``cublasLtDisableCpuInstructionsSetMask``). A function that is newer than 12.4 has its version (``since``);
calling it on an older library raises ``SymbolMissing``.

An attribute is set by the address and the size of a value; the header gives the type of each. The tiles, stages, inner
shapes and cluster shapes of an algorithm are plain numbers here: a heuristic chooses them, and each version of the
library has more of them.

A descriptor is made by ``Create``, in memory of the library, or by ``Init_internal``, in memory of the caller: one of
the structures that end in ``Opaque_t``, and its size (the header's ``Init`` adds the size). An older library needs less
of such a structure and does not use the rest.

This file declares, and does nothing else: no library is loaded before the first call.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import Final

from ._library import Function, Library, ValueFunction
from .cublas import (
    cublasComputeType_t as cublasComputeType_t,
    cublasFillMode_t as cublasFillMode_t,
    cublasOperation_t as cublasOperation_t,
    cublasStatus_t as cublasStatus_t,
    cudaStream_t as cudaStream_t,
    describe_status,
)
from .library_types import (
    cudaDataType as cudaDataType,
    cudaEmulationMantissaControl as cudaEmulationMantissaControl,
    cudaEmulationSpecialValuesSupport as cudaEmulationSpecialValuesSupport,
    cudaEmulationStrategy as cudaEmulationStrategy,
    libraryPropertyType as libraryPropertyType,
)

cublasLtHandle_t = c_void_p
cublasLtMatrixLayout_t = c_void_p
cublasLtMatmulDesc_t = c_void_p
cublasLtMatrixTransformDesc_t = c_void_p
cublasLtEmulationDesc_t = c_void_p
cublasLtMatmulPreference_t = c_void_p

# void callback(int level, const char *function, const char *message). The caller keeps the object alive.
cublasLtLoggerCallback_t: Final = CFUNCTYPE(None, c_int, c_char_p, c_char_p)

# The implementation of an algorithm: an operation, an accumulator and an input type, each a byte of flags.
CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA = 0x01
CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA = 0x02
CUBLASLT_NUMERICAL_IMPL_FLAGS_IMMA = 0x04
CUBLASLT_NUMERICAL_IMPL_FLAGS_DMMA = 0x08
CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK = 0xFE
CUBLASLT_NUMERICAL_IMPL_FLAGS_OP_TYPE_MASK = 0xFF
CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F = 0x01 << 8
CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F = 0x02 << 8
CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_64F = 0x04 << 8
CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32I = 0x08 << 8
CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_TYPE_MASK = 0xFF << 8
CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F = 0x01 << 16
CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF = 0x02 << 16
CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32 = 0x04 << 16
CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_32F = 0x08 << 16
CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_64F = 0x10 << 16
CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8I = 0x20 << 16
CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8F_E4M3 = 0x40 << 16
CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8F_E5M2 = 0x80 << 16
CUBLASLT_NUMERICAL_IMPL_FLAGS_OP_INPUT_TYPE_MASK = 0xFF << 16
CUBLASLT_NUMERICAL_IMPL_FLAGS_GAUSSIAN = 0x01 << 32


class cublasLtMatmulMatrixScale_t(IntEnum):
    """The form of an operand's scales: one number, or one for every vector (VEC) or block (BLK) of elements."""

    CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F = 0
    CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 = 1
    CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 = 2
    CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F = 3
    CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F = 4
    CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F = 5
    CUBLASLT_MATMUL_MATRIX_SCALE_PER_BATCH_SCALAR_32F = 6
    CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_MN_K4_UE8M0 = 12
    CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_MN_K4_UE8M0 = 13
    CUBLASLT_MATMUL_MATRIX_SCALE_RESERVED = 127


class cublasLtPointerMode_t(IntEnum):
    """The place of alpha and beta, and their form: one number, or one for every row of D."""

    CUBLASLT_POINTER_MODE_HOST = 0
    CUBLASLT_POINTER_MODE_DEVICE = 1
    CUBLASLT_POINTER_MODE_DEVICE_VECTOR = 2
    CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_ZERO = 3
    CUBLASLT_POINTER_MODE_ALPHA_DEVICE_VECTOR_BETA_HOST = 4


class cublasLtPointerModeMask_t(IntEnum):
    """A mask of pointer modes that an algorithm supports."""

    CUBLASLT_POINTER_MODE_MASK_HOST = 1
    CUBLASLT_POINTER_MODE_MASK_DEVICE = 2
    CUBLASLT_POINTER_MODE_MASK_DEVICE_VECTOR = 4
    CUBLASLT_POINTER_MODE_MASK_ALPHA_DEVICE_VECTOR_BETA_ZERO = 8
    CUBLASLT_POINTER_MODE_MASK_ALPHA_DEVICE_VECTOR_BETA_HOST = 16


class cublasLtOrder_t(IntEnum):
    """The order of a matrix's elements in memory."""

    CUBLASLT_ORDER_COL = 0
    CUBLASLT_ORDER_ROW = 1
    CUBLASLT_ORDER_COL32 = 2
    CUBLASLT_ORDER_COL4_4R2_8C = 3
    CUBLASLT_ORDER_COL32_2R_4R4 = 4


class cublasLtBatchMode_t(IntEnum):
    """The way the matrices of a batch are given: at equal distances, or by an array of their addresses."""

    CUBLASLT_BATCH_MODE_STRIDED = 0
    CUBLASLT_BATCH_MODE_POINTER_ARRAY = 1
    CUBLASLT_BATCH_MODE_GROUPED = 2


class cublasLtIntegerWidth_t(IntEnum):
    """The width of the integers in an array of sizes."""

    CUBLASLT_INTEGER_WIDTH_32 = 0
    CUBLASLT_INTEGER_WIDTH_64 = 1


class cublasLtMatrixLayoutAttribute_t(IntEnum):
    """The attributes of a matrix layout."""

    CUBLASLT_MATRIX_LAYOUT_TYPE = 0
    CUBLASLT_MATRIX_LAYOUT_ORDER = 1
    CUBLASLT_MATRIX_LAYOUT_ROWS = 2
    CUBLASLT_MATRIX_LAYOUT_COLS = 3
    CUBLASLT_MATRIX_LAYOUT_LD = 4
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
    CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET = 7
    CUBLASLT_MATRIX_LAYOUT_BATCH_MODE = 8
    CUBLASLT_GROUPED_MATRIX_LAYOUT_ROWS_ARRAY = 9
    CUBLASLT_GROUPED_MATRIX_LAYOUT_COLS_ARRAY = 10
    CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY = 11
    CUBLASLT_GROUPED_MATRIX_LAYOUT_ROWS_COLS_ARRAY_INTEGER_WIDTH = 12
    CUBLASLT_GROUPED_MATRIX_LAYOUT_LD_ARRAY_INTEGER_WIDTH = 13


class cublasLtMatmulDescAttributes_t(IntEnum):
    """The attributes of a product. 13 has removed the four of ATOMIC_SYNC."""

    CUBLASLT_MATMUL_DESC_COMPUTE_TYPE = 0
    CUBLASLT_MATMUL_DESC_SCALE_TYPE = 1
    CUBLASLT_MATMUL_DESC_POINTER_MODE = 2
    CUBLASLT_MATMUL_DESC_TRANSA = 3
    CUBLASLT_MATMUL_DESC_TRANSB = 4
    CUBLASLT_MATMUL_DESC_TRANSC = 5
    CUBLASLT_MATMUL_DESC_FILL_MODE = 6
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8
    CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE = 10
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE = 13
    CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE = 14
    CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET = 15
    CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17
    CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18
    CUBLASLT_MATMUL_DESC_C_SCALE_POINTER = 19
    CUBLASLT_MATMUL_DESC_D_SCALE_POINTER = 20
    CUBLASLT_MATMUL_DESC_AMAX_D_POINTER = 21
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE = 22
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER = 23
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER = 24
    CUBLASLT_MATMUL_DESC_FAST_ACCUM = 25
    CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26
    CUBLASLT_MATMUL_DESC_ATOMIC_SYNC_NUM_CHUNKS_D_ROWS = 27
    CUBLASLT_MATMUL_DESC_ATOMIC_SYNC_NUM_CHUNKS_D_COLS = 28
    CUBLASLT_MATMUL_DESC_ATOMIC_SYNC_IN_COUNTERS_POINTER = 29
    CUBLASLT_MATMUL_DESC_ATOMIC_SYNC_OUT_COUNTERS_POINTER = 30
    CUBLASLT_MATMUL_DESC_A_SCALE_MODE = 31
    CUBLASLT_MATMUL_DESC_B_SCALE_MODE = 32
    CUBLASLT_MATMUL_DESC_C_SCALE_MODE = 33
    CUBLASLT_MATMUL_DESC_D_SCALE_MODE = 34
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE = 35
    CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER = 36
    CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE = 37
    CUBLASLT_MATMUL_DESC_EMULATION_DESCRIPTOR = 38
    CUBLASLT_MATMUL_DESC_ALPHA_BATCH_STRIDE = 39
    CUBLASLT_MATMUL_DESC_BETA_BATCH_STRIDE = 40
    CUBLASLT_MATMUL_DESC_BATCH_INVARIANCE_FLAGS = 41


class cublasLtMatmulBatchInvarianceFlags_t(IntEnum):
    """The alignment for which the bits of a product must not depend on its neighbours in the batch."""

    CUBLASLT_BATCH_INVARIANCE_DISABLED = 0
    CUBLASLT_BATCH_INVARIANCE_ALIGN_2B = 1
    CUBLASLT_BATCH_INVARIANCE_ALIGN_4B = 2
    CUBLASLT_BATCH_INVARIANCE_ALIGN_8B = 3
    CUBLASLT_BATCH_INVARIANCE_ALIGN_16B = 4
    CUBLASLT_BATCH_INVARIANCE_AUTO = 8
    CUBLASLT_BATCH_INVARIANCE_UNSET = 32768


class cublasLtMatrixTransformDescAttributes_t(IntEnum):
    """The attributes of a change of layout."""

    CUBLASLT_MATRIX_TRANSFORM_DESC_SCALE_TYPE = 0
    CUBLASLT_MATRIX_TRANSFORM_DESC_POINTER_MODE = 1
    CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA = 2
    CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSB = 3


class cublasLtEmulationDescAttributes_t(IntEnum):
    """The attributes of how a product is emulated by another arithmetic."""

    CUBLASLT_EMULATION_DESC_STRATEGY = 0
    CUBLASLT_EMULATION_DESC_SPECIAL_VALUES_SUPPORT = 1
    CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_CONTROL = 2
    CUBLASLT_EMULATION_DESC_FIXEDPOINT_MAX_MANTISSA_BIT_COUNT = 3
    CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_BIT_OFFSET = 4
    CUBLASLT_EMULATION_DESC_FIXEDPOINT_MANTISSA_BIT_COUNT_POINTER = 5


class cublasLtReductionScheme_t(IntEnum):
    """A mask of the ways to add the parts of a product that was split along k."""

    CUBLASLT_REDUCTION_SCHEME_NONE = 0
    CUBLASLT_REDUCTION_SCHEME_INPLACE = 1
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2
    CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4
    CUBLASLT_REDUCTION_SCHEME_MASK = 7


class cublasLtEpilogue_t(IntEnum):
    """The operation on a product before it is stored; AUX stores what the gradient needs."""

    CUBLASLT_EPILOGUE_DEFAULT = 1
    CUBLASLT_EPILOGUE_RELU = 2
    CUBLASLT_EPILOGUE_BIAS = 4
    CUBLASLT_EPILOGUE_RELU_BIAS = 6
    CUBLASLT_EPILOGUE_GELU = 32
    CUBLASLT_EPILOGUE_GELU_BIAS = 36
    CUBLASLT_EPILOGUE_RELU_AUX = 130
    CUBLASLT_EPILOGUE_RELU_AUX_BIAS = 134
    CUBLASLT_EPILOGUE_DRELU = 136
    CUBLASLT_EPILOGUE_DRELU_BGRAD = 152
    CUBLASLT_EPILOGUE_GELU_AUX = 160
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 164
    CUBLASLT_EPILOGUE_DGELU = 192
    CUBLASLT_EPILOGUE_DGELU_BGRAD = 208
    CUBLASLT_EPILOGUE_BGRADA = 256
    CUBLASLT_EPILOGUE_BGRADB = 512


class cublasLtMatmulSearch_t(IntEnum):
    """The modes of the search by the heuristics."""

    CUBLASLT_SEARCH_BEST_FIT = 0
    CUBLASLT_SEARCH_LIMITED_BY_ALGO_ID = 1
    CUBLASLT_SEARCH_RESERVED_02 = 2
    CUBLASLT_SEARCH_RESERVED_03 = 3
    CUBLASLT_SEARCH_RESERVED_04 = 4
    CUBLASLT_SEARCH_RESERVED_05 = 5
    CUBLASLT_SEARCH_RESERVED_06 = 6
    CUBLASLT_SEARCH_RESERVED_07 = 7
    CUBLASLT_SEARCH_RESERVED_08 = 8
    CUBLASLT_SEARCH_RESERVED_09 = 9


class cublasLtMatmulPreferenceAttributes_t(IntEnum):
    """The attributes of the search: the limits of an algorithm, and the alignment of the operands."""

    CUBLASLT_MATMUL_PREF_SEARCH_MODE = 0
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
    CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT = 9
    CUBLASLT_MATMUL_PREF_IMPL_MASK = 12
    CUBLASLT_MATMUL_PREF_GROUPED_AVERAGE_REDUCTION_DIM = 13
    CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_ROWS = 14
    CUBLASLT_MATMUL_PREF_GROUPED_DESC_D_AVERAGE_COLS = 15


class cublasLtMatmulAlgoCapAttributes_t(IntEnum):
    """The capabilities of an algorithm. 13 has removed ATOMIC_SYNC."""

    CUBLASLT_ALGO_CAP_SPLITK_SUPPORT = 0
    CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK = 1
    CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT = 2
    CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT = 3
    CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT = 4
    CUBLASLT_ALGO_CAP_UPLO_SUPPORT = 5
    CUBLASLT_ALGO_CAP_TILE_IDS = 6
    CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX = 7
    CUBLASLT_ALGO_CAP_CUSTOM_MEMORY_ORDER = 10
    CUBLASLT_ALGO_CAP_POINTER_MODE_MASK = 11
    CUBLASLT_ALGO_CAP_EPILOGUE_MASK = 12
    CUBLASLT_ALGO_CAP_STAGES_IDS = 13
    CUBLASLT_ALGO_CAP_LD_NEGATIVE = 14
    CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS = 15
    CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES = 16
    CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES = 17
    CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES = 18
    CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES = 19
    CUBLASLT_ALGO_CAP_ATOMIC_SYNC = 20
    CUBLASLT_ALGO_CAP_POINTER_ARRAY_BATCH_SUPPORT = 21
    CUBLASLT_ALGO_CAP_FLOATING_POINT_EMULATION_SUPPORT = 22
    CUBLASLT_ALGO_CAP_POINTER_ARRAY_GROUPED_SUPPORT = 23


class cublasLtMatmulAlgoConfigAttributes_t(IntEnum):
    """The choices in the configuration of an algorithm."""

    CUBLASLT_ALGO_CONFIG_ID = 0
    CUBLASLT_ALGO_CONFIG_TILE_ID = 1
    CUBLASLT_ALGO_CONFIG_SPLITK_NUM = 2
    CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME = 3
    CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING = 4
    CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION = 5
    CUBLASLT_ALGO_CONFIG_STAGES_ID = 6
    CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID = 7
    CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID = 8


class cublasLtMatrixLayoutOpaque_t(Structure):
    """Memory for the layout of a matrix."""

    _fields_ = [("data", c_uint64 * 14)]
    _grows_ = True  # an older header has less of it


class cublasLtMatmulDescOpaque_t(Structure):
    """Memory for the description of a product."""

    _fields_ = [("data", c_uint64 * 32)]


class cublasLtMatrixTransformDescOpaque_t(Structure):
    """Memory for the description of a change of layout."""

    _fields_ = [("data", c_uint64 * 8)]


class cublasLtEmulationDescOpaque_t(Structure):
    """Memory for the description of an emulation."""

    _fields_ = [("data", c_uint64 * 8)]


class cublasLtMatmulPreferenceOpaque_t(Structure):
    """Memory for the preferences of the search for an algorithm."""

    _fields_ = [("data", c_uint64 * 12)]
    _grows_ = True  # an older header has less of it


class cublasLtMatmulAlgo_t(Structure):
    """An algorithm with its configuration; its bytes are valid only for the same version of the library."""

    _fields_ = [("data", c_uint64 * 8)]


class cublasLtMatmulHeuristicResult_t(Structure):
    """An algorithm that the heuristics propose, its workspace in bytes, and how full it makes the GPU.

    The other fields mean something only where ``state`` is 0. ``wavesCount`` 1.0 fills the GPU once.
    """

    _fields_ = [
        ("algo", cublasLtMatmulAlgo_t),
        ("workspaceSize", c_size_t),
        ("state", c_int),
        ("wavesCount", c_float),
        ("reserved", c_int * 4),
    ]


_cublaslt = Library(
    "cublaslt",
    pathfinder_name="cublasLt",
    sonames=("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"),
    extra="cu13",
    describe=describe_status,
)
library: Library = _cublaslt

# The functions that every kind of descriptor has. An attribute is its number, the address of a value, the size of the
# value, and the size that was written or is needed.
_set_attribute = (c_void_p, c_int, c_void_p, c_size_t)
_get_attribute = (c_void_p, c_int, c_void_p, c_size_t, POINTER(c_size_t))

# The library itself.
cublasLtGetVersion: ValueFunction = _cublaslt.value("cublasLtGetVersion", restype=c_size_t)
cublasLtGetCudartVersion: ValueFunction = _cublaslt.value("cublasLtGetCudartVersion", restype=c_size_t)
cublasLtGetProperty: Function = _cublaslt("cublasLtGetProperty", c_int, POINTER(c_int))
cublasLtGetStatusName: ValueFunction = _cublaslt.value("cublasLtGetStatusName", c_int, restype=c_char_p)
cublasLtGetStatusString: ValueFunction = _cublaslt.value("cublasLtGetStatusString", c_int, restype=c_char_p)
cublasLtHeuristicsCacheGetCapacity: Function = _cublaslt("cublasLtHeuristicsCacheGetCapacity", POINTER(c_size_t))
cublasLtHeuristicsCacheSetCapacity: Function = _cublaslt("cublasLtHeuristicsCacheSetCapacity", c_size_t)

# The log.
cublasLtLoggerSetCallback: Function = _cublaslt("cublasLtLoggerSetCallback", cublasLtLoggerCallback_t)
cublasLtLoggerSetFile: Function = _cublaslt("cublasLtLoggerSetFile", c_void_p)
cublasLtLoggerOpenFile: Function = _cublaslt("cublasLtLoggerOpenFile", c_char_p)
cublasLtLoggerSetLevel: Function = _cublaslt("cublasLtLoggerSetLevel", c_int)
cublasLtLoggerSetMask: Function = _cublaslt("cublasLtLoggerSetMask", c_int)
cublasLtLoggerForceDisable: Function = _cublaslt("cublasLtLoggerForceDisable")

# A handle.
cublasLtCreate: Function = _cublaslt("cublasLtCreate", POINTER(cublasLtHandle_t))
cublasLtDestroy: Function = _cublaslt("cublasLtDestroy", cublasLtHandle_t)

# The layout of a matrix: type, rows, columns, leading dimension. That of a group: type, number, arrays of the others.
_layout = (c_int, c_uint64, c_uint64, c_int64)
_grouped_layout = (c_int, c_int, c_void_p, c_void_p, c_void_p)
cublasLtMatrixLayoutCreate: Function = _cublaslt(
    "cublasLtMatrixLayoutCreate", POINTER(cublasLtMatrixLayout_t), *_layout
)
cublasLtMatrixLayoutInit_internal: Function = _cublaslt(
    "cublasLtMatrixLayoutInit_internal", cublasLtMatrixLayout_t, c_size_t, *_layout
)
cublasLtGroupedMatrixLayoutCreate: Function = _cublaslt(
    "cublasLtGroupedMatrixLayoutCreate", POINTER(cublasLtMatrixLayout_t), *_grouped_layout, since=(13, 2)
)
cublasLtGroupedMatrixLayoutInit_internal: Function = _cublaslt(
    "cublasLtGroupedMatrixLayoutInit_internal", cublasLtMatrixLayout_t, c_size_t, *_grouped_layout, since=(13, 2)
)
cublasLtMatrixLayoutDestroy: Function = _cublaslt("cublasLtMatrixLayoutDestroy", cublasLtMatrixLayout_t)
cublasLtMatrixLayoutSetAttribute: Function = _cublaslt("cublasLtMatrixLayoutSetAttribute", *_set_attribute)
cublasLtMatrixLayoutGetAttribute: Function = _cublaslt("cublasLtMatrixLayoutGetAttribute", *_get_attribute)

# A product: its arithmetic and the type of alpha and beta.
cublasLtMatmulDescCreate: Function = _cublaslt("cublasLtMatmulDescCreate", POINTER(cublasLtMatmulDesc_t), c_int, c_int)
cublasLtMatmulDescInit_internal: Function = _cublaslt(
    "cublasLtMatmulDescInit_internal", cublasLtMatmulDesc_t, c_size_t, c_int, c_int
)
cublasLtMatmulDescDestroy: Function = _cublaslt("cublasLtMatmulDescDestroy", cublasLtMatmulDesc_t)
cublasLtMatmulDescSetAttribute: Function = _cublaslt("cublasLtMatmulDescSetAttribute", *_set_attribute)
cublasLtMatmulDescGetAttribute: Function = _cublaslt("cublasLtMatmulDescGetAttribute", *_get_attribute)

# Emulation of a product by another arithmetic; an attribute of the product points to it.
cublasLtEmulationDescCreate: Function = _cublaslt(
    "cublasLtEmulationDescCreate", POINTER(cublasLtEmulationDesc_t), since=(13, 1)
)
cublasLtEmulationDescInit_internal: Function = _cublaslt(
    "cublasLtEmulationDescInit_internal", cublasLtEmulationDesc_t, c_size_t, since=(13, 1)
)
cublasLtEmulationDescDestroy: Function = _cublaslt(
    "cublasLtEmulationDescDestroy", cublasLtEmulationDesc_t, since=(13, 1)
)
cublasLtEmulationDescSetAttribute: Function = _cublaslt(
    "cublasLtEmulationDescSetAttribute", *_set_attribute, since=(13, 1)
)
cublasLtEmulationDescGetAttribute: Function = _cublaslt(
    "cublasLtEmulationDescGetAttribute", *_get_attribute, since=(13, 1)
)

# A change of layout: the type of alpha and beta.
cublasLtMatrixTransformDescCreate: Function = _cublaslt(
    "cublasLtMatrixTransformDescCreate", POINTER(cublasLtMatrixTransformDesc_t), c_int
)
cublasLtMatrixTransformDescInit_internal: Function = _cublaslt(
    "cublasLtMatrixTransformDescInit_internal", cublasLtMatrixTransformDesc_t, c_size_t, c_int
)
cublasLtMatrixTransformDescDestroy: Function = _cublaslt(
    "cublasLtMatrixTransformDescDestroy", cublasLtMatrixTransformDesc_t
)
cublasLtMatrixTransformDescSetAttribute: Function = _cublaslt(
    "cublasLtMatrixTransformDescSetAttribute", *_set_attribute
)
cublasLtMatrixTransformDescGetAttribute: Function = _cublaslt(
    "cublasLtMatrixTransformDescGetAttribute", *_get_attribute
)

# The preferences of the search for an algorithm.
cublasLtMatmulPreferenceCreate: Function = _cublaslt(
    "cublasLtMatmulPreferenceCreate", POINTER(cublasLtMatmulPreference_t)
)
cublasLtMatmulPreferenceInit_internal: Function = _cublaslt(
    "cublasLtMatmulPreferenceInit_internal", cublasLtMatmulPreference_t, c_size_t
)
cublasLtMatmulPreferenceDestroy: Function = _cublaslt("cublasLtMatmulPreferenceDestroy", cublasLtMatmulPreference_t)
cublasLtMatmulPreferenceSetAttribute: Function = _cublaslt("cublasLtMatmulPreferenceSetAttribute", *_set_attribute)
cublasLtMatmulPreferenceGetAttribute: Function = _cublaslt("cublasLtMatmulPreferenceGetAttribute", *_get_attribute)

# Algorithms: by the heuristics, best first (product; layouts of A, B, C, D; preference; room for how many; results; how
# many there are), or by their numbers (arithmetic; types of alpha, A, B, C, D).
_problem = (cublasLtHandle_t, cublasLtMatmulDesc_t, *(cublasLtMatrixLayout_t,) * 4)
_proposals = (cublasLtMatmulPreference_t, c_int, POINTER(cublasLtMatmulHeuristicResult_t), POINTER(c_int))
_verdict = (POINTER(cublasLtMatmulAlgo_t), POINTER(cublasLtMatmulHeuristicResult_t))
_types = (cublasLtHandle_t, *(c_int,) * 6)
cublasLtMatmulAlgoGetHeuristic: Function = _cublaslt("cublasLtMatmulAlgoGetHeuristic", *_problem, *_proposals)
cublasLtMatmulAlgoGetHeuristicForStream: Function = _cublaslt(
    "cublasLtMatmulAlgoGetHeuristicForStream", *_problem, *_proposals, cudaStream_t, since=(13, 5)
)
cublasLtMatmulAlgoCheck: Function = _cublaslt("cublasLtMatmulAlgoCheck", *_problem, *_verdict)
cublasLtMatmulAlgoCheckForStream: Function = _cublaslt(
    "cublasLtMatmulAlgoCheckForStream", *_problem, *_verdict, cudaStream_t, since=(13, 5)
)
cublasLtMatmulAlgoGetIds: Function = _cublaslt(
    "cublasLtMatmulAlgoGetIds", *_types, c_int, POINTER(c_int), POINTER(c_int)
)
cublasLtMatmulAlgoInit: Function = _cublaslt("cublasLtMatmulAlgoInit", *_types, c_int, POINTER(cublasLtMatmulAlgo_t))
cublasLtMatmulAlgoCapGetAttribute: Function = _cublaslt("cublasLtMatmulAlgoCapGetAttribute", *_get_attribute)
cublasLtMatmulAlgoConfigSetAttribute: Function = _cublaslt("cublasLtMatmulAlgoConfigSetAttribute", *_set_attribute)
cublasLtMatmulAlgoConfigGetAttribute: Function = _cublaslt("cublasLtMatmulAlgoConfigGetAttribute", *_get_attribute)

# The work itself: D = epilogue(alpha op(A) op(B) + beta C), then the algorithm (None lets the heuristics choose), the
# workspace, its size and the stream; and C = alpha op(A) + beta op(B), then the stream.
_operand = (c_void_p, cublasLtMatrixLayout_t)
cublasLtMatmul: Function = _cublaslt(
    "cublasLtMatmul",
    *(cublasLtHandle_t, cublasLtMatmulDesc_t),
    *(c_void_p, *_operand, *_operand, c_void_p, *_operand, *_operand),
    *(c_void_p, c_void_p, c_size_t, cudaStream_t),
)
cublasLtMatrixTransform: Function = _cublaslt(
    "cublasLtMatrixTransform",
    *(cublasLtHandle_t, cublasLtMatrixTransformDesc_t),
    *(c_void_p, *_operand, c_void_p, *_operand, *_operand, cudaStream_t),
)
