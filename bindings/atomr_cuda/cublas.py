"""The dense linear algebra of one GPU (cuBLAS) as a ctypes table.

Names, numbers and layouts are those of ``cublas_v2.h`` 13.10, and agree with 12.9 in everything that both have. The
header maps some names to versioned symbols (``cublasSaxpy_64`` to ``cublasSaxpy_v2_64``). Here the plain name is used,
and its line has the symbol. A function that is newer than 12.4 has its version (``since``); calling it on an older
library raises ``SymbolMissing``.

If a function has a form with 64-bit sizes (``_64``), only that form is here. Packed matrices are left out. So are
batched products of one type: ``cublasGemmStridedBatchedEx_64`` and ``cublasGemmBatchedEx_64`` do the same for all
types.

The functions of a family differ only in the letters of their element type: S and D are real, C and Z complex, of single
and double precision. They share one list of parameters; the comment above them has the header's names, without strides
and leading dimensions. A vector is its address and stride, a matrix its address and leading dimension. Every matrix is
column-major. Scalars are pointers to host or device memory, by the handle's pointer mode.

This file declares, and does nothing else: no library is loaded before the first call.
"""

from __future__ import annotations

from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from enum import IntEnum

from ._library import Function, Library, ValueFunction
from .library_types import (
    cudaDataType as cudaDataType,
    cudaEmulationMantissaControl as cudaEmulationMantissaControl,
    cudaEmulationSpecialValuesSupport as cudaEmulationSpecialValuesSupport,
    libraryPropertyType as libraryPropertyType,
)

cublasHandle_t = c_void_p
cudaStream_t = c_void_p  # a CUstream of the driver


class cublasStatus_t(IntEnum):
    """The status that a function of cuBLAS or cuBLASLt returns; 0 is success."""

    CUBLAS_STATUS_SUCCESS = 0
    CUBLAS_STATUS_NOT_INITIALIZED = 1
    CUBLAS_STATUS_ALLOC_FAILED = 3
    CUBLAS_STATUS_INVALID_VALUE = 7
    CUBLAS_STATUS_ARCH_MISMATCH = 8
    CUBLAS_STATUS_MAPPING_ERROR = 11
    CUBLAS_STATUS_EXECUTION_FAILED = 13
    CUBLAS_STATUS_INTERNAL_ERROR = 14
    CUBLAS_STATUS_NOT_SUPPORTED = 15
    CUBLAS_STATUS_LICENSE_ERROR = 16


class cublasFillMode_t(IntEnum):
    """The triangle of a matrix that is read and written."""

    CUBLAS_FILL_MODE_LOWER = 0
    CUBLAS_FILL_MODE_UPPER = 1
    CUBLAS_FILL_MODE_FULL = 2


class cublasDiagType_t(IntEnum):
    """The use of a triangular matrix's diagonal: it is read, or assumed to be all ones."""

    CUBLAS_DIAG_NON_UNIT = 0
    CUBLAS_DIAG_UNIT = 1


class cublasSideMode_t(IntEnum):
    """The side on which the special matrix of a product is."""

    CUBLAS_SIDE_LEFT = 0
    CUBLAS_SIDE_RIGHT = 1


class cublasOperation_t(IntEnum):
    """The operation on an operand before its use: none, transposed, conjugate-transposed, conjugated."""

    CUBLAS_OP_N = 0
    CUBLAS_OP_T = 1
    CUBLAS_OP_C = 2
    CUBLAS_OP_HERMITAN = 2
    CUBLAS_OP_CONJG = 3


class cublasPointerMode_t(IntEnum):
    """The memory of a call's scalars, inputs and results."""

    CUBLAS_POINTER_MODE_HOST = 0
    CUBLAS_POINTER_MODE_DEVICE = 1


class cublasAtomicsMode_t(IntEnum):
    """Permission for a function to add with atomics, which is faster and not repeatable."""

    CUBLAS_ATOMICS_NOT_ALLOWED = 0
    CUBLAS_ATOMICS_ALLOWED = 1


class cublasGemmAlgo_t(IntEnum):
    """The algorithm of a product. Since the Ampere generation every choice means the library's own."""

    CUBLAS_GEMM_DFALT = -1
    CUBLAS_GEMM_DEFAULT = -1
    CUBLAS_GEMM_ALGO0 = 0
    CUBLAS_GEMM_ALGO1 = 1
    CUBLAS_GEMM_ALGO2 = 2
    CUBLAS_GEMM_ALGO3 = 3
    CUBLAS_GEMM_ALGO4 = 4
    CUBLAS_GEMM_ALGO5 = 5
    CUBLAS_GEMM_ALGO6 = 6
    CUBLAS_GEMM_ALGO7 = 7
    CUBLAS_GEMM_ALGO8 = 8
    CUBLAS_GEMM_ALGO9 = 9
    CUBLAS_GEMM_ALGO10 = 10
    CUBLAS_GEMM_ALGO11 = 11
    CUBLAS_GEMM_ALGO12 = 12
    CUBLAS_GEMM_ALGO13 = 13
    CUBLAS_GEMM_ALGO14 = 14
    CUBLAS_GEMM_ALGO15 = 15
    CUBLAS_GEMM_ALGO16 = 16
    CUBLAS_GEMM_ALGO17 = 17
    CUBLAS_GEMM_ALGO18 = 18
    CUBLAS_GEMM_ALGO19 = 19
    CUBLAS_GEMM_ALGO20 = 20
    CUBLAS_GEMM_ALGO21 = 21
    CUBLAS_GEMM_ALGO22 = 22
    CUBLAS_GEMM_ALGO23 = 23
    CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99
    CUBLAS_GEMM_DFALT_TENSOR_OP = 99
    CUBLAS_GEMM_ALGO0_TENSOR_OP = 100
    CUBLAS_GEMM_ALGO1_TENSOR_OP = 101
    CUBLAS_GEMM_ALGO2_TENSOR_OP = 102
    CUBLAS_GEMM_ALGO3_TENSOR_OP = 103
    CUBLAS_GEMM_ALGO4_TENSOR_OP = 104
    CUBLAS_GEMM_ALGO5_TENSOR_OP = 105
    CUBLAS_GEMM_ALGO6_TENSOR_OP = 106
    CUBLAS_GEMM_ALGO7_TENSOR_OP = 107
    CUBLAS_GEMM_ALGO8_TENSOR_OP = 108
    CUBLAS_GEMM_ALGO9_TENSOR_OP = 109
    CUBLAS_GEMM_ALGO10_TENSOR_OP = 110
    CUBLAS_GEMM_ALGO11_TENSOR_OP = 111
    CUBLAS_GEMM_ALGO12_TENSOR_OP = 112
    CUBLAS_GEMM_ALGO13_TENSOR_OP = 113
    CUBLAS_GEMM_ALGO14_TENSOR_OP = 114
    CUBLAS_GEMM_ALGO15_TENSOR_OP = 115
    CUBLAS_GEMM_AUTOTUNE = 999


class cublasMath_t(IntEnum):
    """The arithmetic of a handle; 16 is a flag that combines with the others."""

    CUBLAS_DEFAULT_MATH = 0
    CUBLAS_TENSOR_OP_MATH = 1
    CUBLAS_PEDANTIC_MATH = 2
    CUBLAS_TF32_TENSOR_OP_MATH = 3
    CUBLAS_FP32_EMULATED_BF16X9_MATH = 4
    CUBLAS_FP64_EMULATED_FIXEDPOINT_MATH = 8
    CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16


class cublasComputeType_t(IntEnum):
    """The arithmetic of a product. FAST may round the inputs; PEDANTIC is exactly as the name says."""

    CUBLAS_COMPUTE_16F = 64
    CUBLAS_COMPUTE_16F_PEDANTIC = 65
    CUBLAS_COMPUTE_32F = 68
    CUBLAS_COMPUTE_32F_PEDANTIC = 69
    CUBLAS_COMPUTE_64F = 70
    CUBLAS_COMPUTE_64F_PEDANTIC = 71
    CUBLAS_COMPUTE_32I = 72
    CUBLAS_COMPUTE_32I_PEDANTIC = 73
    CUBLAS_COMPUTE_32F_FAST_16F = 74
    CUBLAS_COMPUTE_32F_FAST_16BF = 75
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77
    CUBLAS_COMPUTE_32F_EMULATED_16BFX9 = 78
    CUBLAS_COMPUTE_64F_EMULATED_FIXEDPOINT = 79


class cublasEmulationStrategy_t(IntEnum):
    """When an arithmetic is emulated: by the library's default, where that is faster, or wherever possible."""

    CUBLAS_EMULATION_STRATEGY_DEFAULT = 0
    CUBLAS_EMULATION_STRATEGY_PERFORMANT = 1
    CUBLAS_EMULATION_STRATEGY_EAGER = 2


_TEXTS = {
    cublasStatus_t.CUBLAS_STATUS_SUCCESS: "no error",
    cublasStatus_t.CUBLAS_STATUS_NOT_INITIALIZED: "the library was not initialized, or the handle was not created",
    cublasStatus_t.CUBLAS_STATUS_ALLOC_FAILED: "the library could not allocate what it needs",
    cublasStatus_t.CUBLAS_STATUS_INVALID_VALUE: "an argument has a value that is not allowed",
    cublasStatus_t.CUBLAS_STATUS_ARCH_MISMATCH: "the device lacks a feature that the function needs",
    cublasStatus_t.CUBLAS_STATUS_MAPPING_ERROR: "the library could not reach memory of the device",
    cublasStatus_t.CUBLAS_STATUS_EXECUTION_FAILED: "a kernel could not be launched, or failed",
    cublasStatus_t.CUBLAS_STATUS_INTERNAL_ERROR: "an operation inside the library failed",
    cublasStatus_t.CUBLAS_STATUS_NOT_SUPPORTED: "the library does not offer this combination of arguments",
    cublasStatus_t.CUBLAS_STATUS_LICENSE_ERROR: "the license of the function could not be checked",
}


def describe_status(status: int) -> tuple[str, str]:
    """Return the name and the meaning of a status of cuBLAS or cuBLASLt, without a call of the library."""
    if status not in _TEXTS:
        return "CUBLAS_STATUS_UNKNOWN", "unknown status"
    known = cublasStatus_t(status)
    return known.name, _TEXTS[known]


_cublas = Library(
    "cublas",
    pathfinder_name="cublas",
    sonames=("libcublas.so.13", "libcublas.so.12", "libcublas.so"),
    extra="cu13",
    describe=describe_status,
)
library: Library = _cublas

# Operands: a scalar, or something as small, is passed by address; the Ex forms have its type (a cudaDataType) too.
_scalar = c_void_p
_typed_scalar = (c_void_p, c_int)
_vector = _matrix = (c_void_p, c_int64)
_typed_vector = _typed_matrix = (c_void_p, c_int, c_int64)
_typed_matrices = (c_void_p, c_int, c_int64, c_int64)  # the last is the distance from one to the next, in elements

# The library itself.
cublasGetProperty: Function = _cublas("cublasGetProperty", c_int, POINTER(c_int))
cublasGetCudartVersion: ValueFunction = _cublas.value("cublasGetCudartVersion", restype=c_size_t)
cublasGetStatusName: ValueFunction = _cublas.value("cublasGetStatusName", c_int, restype=c_char_p)
cublasGetStatusString: ValueFunction = _cublas.value("cublasGetStatusString", c_int, restype=c_char_p)

# A handle, and how it works.
cublasCreate: Function = _cublas("cublasCreate_v2", POINTER(cublasHandle_t))
cublasDestroy: Function = _cublas("cublasDestroy_v2", cublasHandle_t)
cublasGetVersion: Function = _cublas("cublasGetVersion_v2", cublasHandle_t, POINTER(c_int))
cublasSetStream: Function = _cublas("cublasSetStream_v2", cublasHandle_t, cudaStream_t)
cublasGetStream: Function = _cublas("cublasGetStream_v2", cublasHandle_t, POINTER(cudaStream_t))
cublasSetWorkspace: Function = _cublas("cublasSetWorkspace_v2", cublasHandle_t, c_void_p, c_size_t)
cublasSetPointerMode: Function = _cublas("cublasSetPointerMode_v2", cublasHandle_t, c_int)
cublasGetPointerMode: Function = _cublas("cublasGetPointerMode_v2", cublasHandle_t, POINTER(c_int))
cublasSetAtomicsMode: Function = _cublas("cublasSetAtomicsMode", cublasHandle_t, c_int)
cublasGetAtomicsMode: Function = _cublas("cublasGetAtomicsMode", cublasHandle_t, POINTER(c_int))
cublasSetMathMode: Function = _cublas("cublasSetMathMode", cublasHandle_t, c_int)
cublasGetMathMode: Function = _cublas("cublasGetMathMode", cublasHandle_t, POINTER(c_int))
cublasSetSmCountTarget: Function = _cublas("cublasSetSmCountTarget", cublasHandle_t, c_int)
cublasGetSmCountTarget: Function = _cublas("cublasGetSmCountTarget", cublasHandle_t, POINTER(c_int))

# Emulation of an arithmetic by another one.
cublasSetEmulationStrategy: Function = _cublas("cublasSetEmulationStrategy", cublasHandle_t, c_int, since=(12, 9))
cublasGetEmulationStrategy: Function = _cublas(
    "cublasGetEmulationStrategy", cublasHandle_t, POINTER(c_int), since=(12, 9)
)
cublasSetEmulationSpecialValuesSupport: Function = _cublas(
    "cublasSetEmulationSpecialValuesSupport", cublasHandle_t, c_int, since=(13, 1)
)
cublasGetEmulationSpecialValuesSupport: Function = _cublas(
    "cublasGetEmulationSpecialValuesSupport", cublasHandle_t, POINTER(c_int), since=(13, 1)
)
cublasSetFixedPointEmulationMantissaControl: Function = _cublas(
    "cublasSetFixedPointEmulationMantissaControl", cublasHandle_t, c_int, since=(13, 1)
)
cublasGetFixedPointEmulationMantissaControl: Function = _cublas(
    "cublasGetFixedPointEmulationMantissaControl", cublasHandle_t, POINTER(c_int), since=(13, 1)
)
cublasSetFixedPointEmulationMaxMantissaBitCount: Function = _cublas(
    "cublasSetFixedPointEmulationMaxMantissaBitCount", cublasHandle_t, c_int, since=(13, 1)
)
cublasGetFixedPointEmulationMaxMantissaBitCount: Function = _cublas(
    "cublasGetFixedPointEmulationMaxMantissaBitCount", cublasHandle_t, POINTER(c_int), since=(13, 1)
)
cublasSetFixedPointEmulationMantissaBitOffset: Function = _cublas(
    "cublasSetFixedPointEmulationMantissaBitOffset", cublasHandle_t, c_int, since=(13, 1)
)
cublasGetFixedPointEmulationMantissaBitOffset: Function = _cublas(
    "cublasGetFixedPointEmulationMantissaBitOffset", cublasHandle_t, POINTER(c_int), since=(13, 1)
)
cublasSetFixedPointEmulationMantissaBitCountPointer: Function = _cublas(
    "cublasSetFixedPointEmulationMantissaBitCountPointer", cublasHandle_t, c_void_p, since=(13, 1)
)
cublasGetFixedPointEmulationMantissaBitCountPointer: Function = _cublas(
    "cublasGetFixedPointEmulationMantissaBitCountPointer", cublasHandle_t, POINTER(c_void_p), since=(13, 1)
)

# Level 1: vectors -----------------------------------------------------------------------------------------------------

# y = alpha x + y: n, alpha, x, y
_axpy = (cublasHandle_t, c_int64, _scalar, *_vector, *_vector)
cublasSaxpy_64: Function = _cublas("cublasSaxpy_v2_64", *_axpy)
cublasDaxpy_64: Function = _cublas("cublasDaxpy_v2_64", *_axpy)
cublasCaxpy_64: Function = _cublas("cublasCaxpy_v2_64", *_axpy)
cublasZaxpy_64: Function = _cublas("cublasZaxpy_v2_64", *_axpy)

# x . y, and conj(x) . y: n, x, y, result
_dot = (cublasHandle_t, c_int64, *_vector, *_vector, _scalar)
cublasSdot_64: Function = _cublas("cublasSdot_v2_64", *_dot)
cublasDdot_64: Function = _cublas("cublasDdot_v2_64", *_dot)
cublasCdotu_64: Function = _cublas("cublasCdotu_v2_64", *_dot)
cublasZdotu_64: Function = _cublas("cublasZdotu_v2_64", *_dot)
cublasCdotc_64: Function = _cublas("cublasCdotc_v2_64", *_dot)
cublasZdotc_64: Function = _cublas("cublasZdotc_v2_64", *_dot)

# The Euclidean norm, the sum of |re| + |im|, and the first place of the largest or smallest |re| + |im|, an int64_t
# from 1: n, x, result
_reduce = (cublasHandle_t, c_int64, *_vector, _scalar)
cublasSnrm2_64: Function = _cublas("cublasSnrm2_v2_64", *_reduce)
cublasDnrm2_64: Function = _cublas("cublasDnrm2_v2_64", *_reduce)
cublasScnrm2_64: Function = _cublas("cublasScnrm2_v2_64", *_reduce)
cublasDznrm2_64: Function = _cublas("cublasDznrm2_v2_64", *_reduce)
cublasSasum_64: Function = _cublas("cublasSasum_v2_64", *_reduce)
cublasDasum_64: Function = _cublas("cublasDasum_v2_64", *_reduce)
cublasScasum_64: Function = _cublas("cublasScasum_v2_64", *_reduce)
cublasDzasum_64: Function = _cublas("cublasDzasum_v2_64", *_reduce)
cublasIsamax_64: Function = _cublas("cublasIsamax_v2_64", *_reduce)
cublasIdamax_64: Function = _cublas("cublasIdamax_v2_64", *_reduce)
cublasIcamax_64: Function = _cublas("cublasIcamax_v2_64", *_reduce)
cublasIzamax_64: Function = _cublas("cublasIzamax_v2_64", *_reduce)
cublasIsamin_64: Function = _cublas("cublasIsamin_v2_64", *_reduce)
cublasIdamin_64: Function = _cublas("cublasIdamin_v2_64", *_reduce)
cublasIcamin_64: Function = _cublas("cublasIcamin_v2_64", *_reduce)
cublasIzamin_64: Function = _cublas("cublasIzamin_v2_64", *_reduce)

# y = x, and x <-> y: n, x, y
_move = (cublasHandle_t, c_int64, *_vector, *_vector)
cublasScopy_64: Function = _cublas("cublasScopy_v2_64", *_move)
cublasDcopy_64: Function = _cublas("cublasDcopy_v2_64", *_move)
cublasCcopy_64: Function = _cublas("cublasCcopy_v2_64", *_move)
cublasZcopy_64: Function = _cublas("cublasZcopy_v2_64", *_move)
cublasSswap_64: Function = _cublas("cublasSswap_v2_64", *_move)
cublasDswap_64: Function = _cublas("cublasDswap_v2_64", *_move)
cublasCswap_64: Function = _cublas("cublasCswap_v2_64", *_move)
cublasZswap_64: Function = _cublas("cublasZswap_v2_64", *_move)

# x = alpha x, the factor being real in Cs and Zd: n, alpha, x
_scal = (cublasHandle_t, c_int64, _scalar, *_vector)
cublasSscal_64: Function = _cublas("cublasSscal_v2_64", *_scal)
cublasDscal_64: Function = _cublas("cublasDscal_v2_64", *_scal)
cublasCscal_64: Function = _cublas("cublasCscal_v2_64", *_scal)
cublasZscal_64: Function = _cublas("cublasZscal_v2_64", *_scal)
cublasCsscal_64: Function = _cublas("cublasCsscal_v2_64", *_scal)
cublasZdscal_64: Function = _cublas("cublasZdscal_v2_64", *_scal)

# x, y = c x + s y, c y - conj(s) x, with c real, and s too in Cs and Zd: n, x, y, c, s
_rot = (cublasHandle_t, c_int64, *_vector, *_vector, _scalar, _scalar)
cublasSrot_64: Function = _cublas("cublasSrot_v2_64", *_rot)
cublasDrot_64: Function = _cublas("cublasDrot_v2_64", *_rot)
cublasCrot_64: Function = _cublas("cublasCrot_v2_64", *_rot)
cublasZrot_64: Function = _cublas("cublasZrot_v2_64", *_rot)
cublasCsrot_64: Function = _cublas("cublasCsrot_v2_64", *_rot)
cublasZdrot_64: Function = _cublas("cublasZdrot_v2_64", *_rot)

# The rotation that makes b zero: a, b, c, s
_rotg = (cublasHandle_t, _scalar, _scalar, _scalar, _scalar)
cublasSrotg: Function = _cublas("cublasSrotg_v2", *_rotg)
cublasDrotg: Function = _cublas("cublasDrotg_v2", *_rotg)
cublasCrotg: Function = _cublas("cublasCrotg_v2", *_rotg)
cublasZrotg: Function = _cublas("cublasZrotg_v2", *_rotg)

# The modified rotation, of five parameters: n, x, y, param
_rotm = (cublasHandle_t, c_int64, *_vector, *_vector, _scalar)
cublasSrotm_64: Function = _cublas("cublasSrotm_v2_64", *_rotm)
cublasDrotm_64: Function = _cublas("cublasDrotm_v2_64", *_rotm)

# The modified rotation that makes y1 zero: d1, d2, x1, y1, param
_rotmg = (cublasHandle_t, _scalar, _scalar, _scalar, _scalar, _scalar)
cublasSrotmg: Function = _cublas("cublasSrotmg_v2", *_rotmg)
cublasDrotmg: Function = _cublas("cublasDrotmg_v2", *_rotmg)

# The same with an element type for every operand, and one for the arithmetic (the last parameter).
cublasAxpyEx_64: Function = _cublas(
    "cublasAxpyEx_64", cublasHandle_t, c_int64, *_typed_scalar, *_typed_vector, *_typed_vector, c_int
)
_dot_ex = (cublasHandle_t, c_int64, *_typed_vector, *_typed_vector, *_typed_scalar, c_int)
cublasDotEx_64: Function = _cublas("cublasDotEx_64", *_dot_ex)
cublasDotcEx_64: Function = _cublas("cublasDotcEx_64", *_dot_ex)
_sum_ex = (cublasHandle_t, c_int64, *_typed_vector, *_typed_scalar, c_int)
cublasNrm2Ex_64: Function = _cublas("cublasNrm2Ex_64", *_sum_ex)
cublasAsumEx_64: Function = _cublas("cublasAsumEx_64", *_sum_ex)
cublasIamaxEx_64: Function = _cublas("cublasIamaxEx_64", cublasHandle_t, c_int64, *_typed_vector, _scalar)
cublasIaminEx_64: Function = _cublas("cublasIaminEx_64", cublasHandle_t, c_int64, *_typed_vector, _scalar)
cublasCopyEx_64: Function = _cublas("cublasCopyEx_64", cublasHandle_t, c_int64, *_typed_vector, *_typed_vector)
cublasSwapEx_64: Function = _cublas("cublasSwapEx_64", cublasHandle_t, c_int64, *_typed_vector, *_typed_vector)
cublasScalEx_64: Function = _cublas("cublasScalEx_64", cublasHandle_t, c_int64, *_typed_scalar, *_typed_vector, c_int)
# c and s have one type, which is given once, after both; so have a and b.
cublasRotEx_64: Function = _cublas(
    "cublasRotEx_64", cublasHandle_t, c_int64, *_typed_vector, *_typed_vector, _scalar, *_typed_scalar, c_int
)
cublasRotgEx: Function = _cublas(
    "cublasRotgEx", cublasHandle_t, _scalar, *_typed_scalar, _scalar, *_typed_scalar, c_int
)
cublasRotmEx_64: Function = _cublas(
    "cublasRotmEx_64", cublasHandle_t, c_int64, *_typed_vector, *_typed_vector, *_typed_scalar, c_int
)
cublasRotmgEx: Function = _cublas("cublasRotmgEx", cublasHandle_t, *(_typed_scalar * 5), c_int)

# Level 2: a matrix and vectors ----------------------------------------------------------------------------------------

# y = alpha op(A) x + beta y: trans, m, n, alpha, A, x, beta, y
_gemv = (cublasHandle_t, c_int, c_int64, c_int64, _scalar, *_matrix, *_vector, _scalar, *_vector)
cublasSgemv_64: Function = _cublas("cublasSgemv_v2_64", *_gemv)
cublasDgemv_64: Function = _cublas("cublasDgemv_v2_64", *_gemv)
cublasCgemv_64: Function = _cublas("cublasCgemv_v2_64", *_gemv)
cublasZgemv_64: Function = _cublas("cublasZgemv_v2_64", *_gemv)

# The same for a band matrix: trans, m, n, kl, ku, alpha, A, x, beta, y
_gbmv = (cublasHandle_t, c_int, c_int64, c_int64, c_int64, c_int64, _scalar, *_matrix, *_vector, _scalar, *_vector)
cublasSgbmv_64: Function = _cublas("cublasSgbmv_v2_64", *_gbmv)
cublasDgbmv_64: Function = _cublas("cublasDgbmv_v2_64", *_gbmv)
cublasCgbmv_64: Function = _cublas("cublasCgbmv_v2_64", *_gbmv)
cublasZgbmv_64: Function = _cublas("cublasZgbmv_v2_64", *_gbmv)

# The same for a symmetric or Hermitian matrix: uplo, n, alpha, A, x, beta, y
_symv = (cublasHandle_t, c_int, c_int64, _scalar, *_matrix, *_vector, _scalar, *_vector)
cublasSsymv_64: Function = _cublas("cublasSsymv_v2_64", *_symv)
cublasDsymv_64: Function = _cublas("cublasDsymv_v2_64", *_symv)
cublasCsymv_64: Function = _cublas("cublasCsymv_v2_64", *_symv)
cublasZsymv_64: Function = _cublas("cublasZsymv_v2_64", *_symv)
cublasChemv_64: Function = _cublas("cublasChemv_v2_64", *_symv)
cublasZhemv_64: Function = _cublas("cublasZhemv_v2_64", *_symv)

# The same for a symmetric or Hermitian band matrix: uplo, n, k, alpha, A, x, beta, y
_sbmv = (cublasHandle_t, c_int, c_int64, c_int64, _scalar, *_matrix, *_vector, _scalar, *_vector)
cublasSsbmv_64: Function = _cublas("cublasSsbmv_v2_64", *_sbmv)
cublasDsbmv_64: Function = _cublas("cublasDsbmv_v2_64", *_sbmv)
cublasChbmv_64: Function = _cublas("cublasChbmv_v2_64", *_sbmv)
cublasZhbmv_64: Function = _cublas("cublasZhbmv_v2_64", *_sbmv)

# A = alpha x y^T + A, and with y^H in gerc: m, n, alpha, x, y, A
_ger = (cublasHandle_t, c_int64, c_int64, _scalar, *_vector, *_vector, *_matrix)
cublasSger_64: Function = _cublas("cublasSger_v2_64", *_ger)
cublasDger_64: Function = _cublas("cublasDger_v2_64", *_ger)
cublasCgeru_64: Function = _cublas("cublasCgeru_v2_64", *_ger)
cublasZgeru_64: Function = _cublas("cublasZgeru_v2_64", *_ger)
cublasCgerc_64: Function = _cublas("cublasCgerc_v2_64", *_ger)
cublasZgerc_64: Function = _cublas("cublasZgerc_v2_64", *_ger)

# A = alpha x x^T + A, and with x^H and a real alpha in her: uplo, n, alpha, x, A
_syr = (cublasHandle_t, c_int, c_int64, _scalar, *_vector, *_matrix)
cublasSsyr_64: Function = _cublas("cublasSsyr_v2_64", *_syr)
cublasDsyr_64: Function = _cublas("cublasDsyr_v2_64", *_syr)
cublasCsyr_64: Function = _cublas("cublasCsyr_v2_64", *_syr)
cublasZsyr_64: Function = _cublas("cublasZsyr_v2_64", *_syr)
cublasCher_64: Function = _cublas("cublasCher_v2_64", *_syr)
cublasZher_64: Function = _cublas("cublasZher_v2_64", *_syr)

# A = alpha (x y^T + y x^T) + A, and alpha x y^H + conj(alpha) y x^H + A in her2: uplo, n, alpha, x, y, A
_syr2 = (cublasHandle_t, c_int, c_int64, _scalar, *_vector, *_vector, *_matrix)
cublasSsyr2_64: Function = _cublas("cublasSsyr2_v2_64", *_syr2)
cublasDsyr2_64: Function = _cublas("cublasDsyr2_v2_64", *_syr2)
cublasCsyr2_64: Function = _cublas("cublasCsyr2_v2_64", *_syr2)
cublasZsyr2_64: Function = _cublas("cublasZsyr2_v2_64", *_syr2)
cublasCher2_64: Function = _cublas("cublasCher2_v2_64", *_syr2)
cublasZher2_64: Function = _cublas("cublasZher2_v2_64", *_syr2)

# x = op(A) x, and the x of op(A) x = b, for a triangular matrix: uplo, trans, diag, n, A, x
_trmv = (cublasHandle_t, c_int, c_int, c_int, c_int64, *_matrix, *_vector)
cublasStrmv_64: Function = _cublas("cublasStrmv_v2_64", *_trmv)
cublasDtrmv_64: Function = _cublas("cublasDtrmv_v2_64", *_trmv)
cublasCtrmv_64: Function = _cublas("cublasCtrmv_v2_64", *_trmv)
cublasZtrmv_64: Function = _cublas("cublasZtrmv_v2_64", *_trmv)
cublasStrsv_64: Function = _cublas("cublasStrsv_v2_64", *_trmv)
cublasDtrsv_64: Function = _cublas("cublasDtrsv_v2_64", *_trmv)
cublasCtrsv_64: Function = _cublas("cublasCtrsv_v2_64", *_trmv)
cublasZtrsv_64: Function = _cublas("cublasZtrsv_v2_64", *_trmv)

# The same for a triangular band matrix: uplo, trans, diag, n, k, A, x
_tbmv = (cublasHandle_t, c_int, c_int, c_int, c_int64, c_int64, *_matrix, *_vector)
cublasStbmv_64: Function = _cublas("cublasStbmv_v2_64", *_tbmv)
cublasDtbmv_64: Function = _cublas("cublasDtbmv_v2_64", *_tbmv)
cublasCtbmv_64: Function = _cublas("cublasCtbmv_v2_64", *_tbmv)
cublasZtbmv_64: Function = _cublas("cublasZtbmv_v2_64", *_tbmv)
cublasStbsv_64: Function = _cublas("cublasStbsv_v2_64", *_tbmv)
cublasDtbsv_64: Function = _cublas("cublasDtbsv_v2_64", *_tbmv)
cublasCtbsv_64: Function = _cublas("cublasCtbsv_v2_64", *_tbmv)
cublasZtbsv_64: Function = _cublas("cublasZtbsv_v2_64", *_tbmv)

# Level 3: matrices ----------------------------------------------------------------------------------------------------

# C = alpha op(A) op(B) + beta C: transa, transb, m, n, k, alpha, A, B, beta, C
_gemm = (cublasHandle_t, c_int, c_int, c_int64, c_int64, c_int64, _scalar, *_matrix, *_matrix, _scalar, *_matrix)
cublasSgemm_64: Function = _cublas("cublasSgemm_v2_64", *_gemm)
cublasDgemm_64: Function = _cublas("cublasDgemm_v2_64", *_gemm)
cublasCgemm_64: Function = _cublas("cublasCgemm_v2_64", *_gemm)
cublasZgemm_64: Function = _cublas("cublasZgemm_v2_64", *_gemm)

# Products of any supported types: transa, transb, m, n, k, alpha, A, B, beta, C, then the number of products if there
# are several, the arithmetic (a cublasComputeType_t) and the algorithm. Batched takes arrays of addresses,
# StridedBatched matrices at equal distances.
_sizes = (c_int, c_int, c_int64, c_int64, c_int64)
_product = (_scalar, *_typed_matrix, *_typed_matrix, _scalar, *_typed_matrix)
_products = (_scalar, *_typed_matrices, *_typed_matrices, _scalar, *_typed_matrices)
cublasGemmEx_64: Function = _cublas("cublasGemmEx_64", cublasHandle_t, *_sizes, *_product, c_int, c_int)
cublasGemmBatchedEx_64: Function = _cublas(
    "cublasGemmBatchedEx_64", cublasHandle_t, *_sizes, *_product, c_int64, c_int, c_int
)
cublasGemmStridedBatchedEx_64: Function = _cublas(
    "cublasGemmStridedBatchedEx_64", cublasHandle_t, *_sizes, *_products, c_int64, c_int, c_int
)
# Groups of products, each with its own sizes, factors and leading dimensions: arrays of these in host memory, and
# arrays of the matrices' addresses in device memory; group_count, group_size and the arithmetic are the last.
_grouped_matrix = (c_void_p, c_int, c_void_p)
cublasGemmGroupedBatchedEx_64: Function = _cublas(
    "cublasGemmGroupedBatchedEx_64",
    *(cublasHandle_t, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    *(c_void_p, *_grouped_matrix, *_grouped_matrix, c_void_p, *_grouped_matrix),
    *(c_int64, c_void_p, c_int),
    since=(12, 5),
)

# C = alpha A B + beta C or alpha B A + beta C, A being symmetric or Hermitian: side, uplo, m, n, alpha, A, B, beta, C
_symm = (cublasHandle_t, c_int, c_int, c_int64, c_int64, _scalar, *_matrix, *_matrix, _scalar, *_matrix)
cublasSsymm_64: Function = _cublas("cublasSsymm_v2_64", *_symm)
cublasDsymm_64: Function = _cublas("cublasDsymm_v2_64", *_symm)
cublasCsymm_64: Function = _cublas("cublasCsymm_v2_64", *_symm)
cublasZsymm_64: Function = _cublas("cublasZsymm_v2_64", *_symm)
cublasChemm_64: Function = _cublas("cublasChemm_v2_64", *_symm)
cublasZhemm_64: Function = _cublas("cublasZhemm_v2_64", *_symm)

# C = alpha op(A) op(A)^T + beta C, and with ^H and real factors in herk: uplo, trans, n, k, alpha, A, beta, C
_syrk = (cublasHandle_t, c_int, c_int, c_int64, c_int64, _scalar, *_matrix, _scalar, *_matrix)
cublasSsyrk_64: Function = _cublas("cublasSsyrk_v2_64", *_syrk)
cublasDsyrk_64: Function = _cublas("cublasDsyrk_v2_64", *_syrk)
cublasCsyrk_64: Function = _cublas("cublasCsyrk_v2_64", *_syrk)
cublasZsyrk_64: Function = _cublas("cublasZsyrk_v2_64", *_syrk)
cublasCherk_64: Function = _cublas("cublasCherk_v2_64", *_syrk)
cublasZherk_64: Function = _cublas("cublasZherk_v2_64", *_syrk)

# C = alpha (op(A) op(B)^T + op(B) op(A)^T) + beta C (2k), or alpha op(A) op(B)^T + beta C where that is known to be
# symmetric (kx), and with ^H and a real beta in her2k and herkx: uplo, trans, n, k, alpha, A, B, beta, C
_syr2k = (cublasHandle_t, c_int, c_int, c_int64, c_int64, _scalar, *_matrix, *_matrix, _scalar, *_matrix)
cublasSsyr2k_64: Function = _cublas("cublasSsyr2k_v2_64", *_syr2k)
cublasDsyr2k_64: Function = _cublas("cublasDsyr2k_v2_64", *_syr2k)
cublasCsyr2k_64: Function = _cublas("cublasCsyr2k_v2_64", *_syr2k)
cublasZsyr2k_64: Function = _cublas("cublasZsyr2k_v2_64", *_syr2k)
cublasCher2k_64: Function = _cublas("cublasCher2k_v2_64", *_syr2k)
cublasZher2k_64: Function = _cublas("cublasZher2k_v2_64", *_syr2k)
cublasSsyrkx_64: Function = _cublas("cublasSsyrkx_64", *_syr2k)
cublasDsyrkx_64: Function = _cublas("cublasDsyrkx_64", *_syr2k)
cublasCsyrkx_64: Function = _cublas("cublasCsyrkx_64", *_syr2k)
cublasZsyrkx_64: Function = _cublas("cublasZsyrkx_64", *_syr2k)
cublasCherkx_64: Function = _cublas("cublasCherkx_64", *_syr2k)
cublasZherkx_64: Function = _cublas("cublasZherkx_64", *_syr2k)

# C = alpha op(A) B or alpha B op(A), A being triangular; C may be B: side, uplo, trans, diag, m, n, alpha, A, B, C
_trmm = (cublasHandle_t, c_int, c_int, c_int, c_int, c_int64, c_int64, _scalar, *_matrix, *_matrix, *_matrix)
cublasStrmm_64: Function = _cublas("cublasStrmm_v2_64", *_trmm)
cublasDtrmm_64: Function = _cublas("cublasDtrmm_v2_64", *_trmm)
cublasCtrmm_64: Function = _cublas("cublasCtrmm_v2_64", *_trmm)
cublasZtrmm_64: Function = _cublas("cublasZtrmm_v2_64", *_trmm)

# The X of op(A) X = alpha B or X op(A) = alpha B, in the place of B: side, uplo, trans, diag, m, n, alpha, A, B
_trsm = (cublasHandle_t, c_int, c_int, c_int, c_int, c_int64, c_int64, _scalar, *_matrix, *_matrix)
cublasStrsm_64: Function = _cublas("cublasStrsm_v2_64", *_trsm)
cublasDtrsm_64: Function = _cublas("cublasDtrsm_v2_64", *_trsm)
cublasCtrsm_64: Function = _cublas("cublasCtrsm_v2_64", *_trsm)
cublasZtrsm_64: Function = _cublas("cublasZtrsm_v2_64", *_trsm)

# The same for many, A and B being arrays of addresses in device memory: ..., A, B, batchCount
_trsm_batched = (cublasHandle_t, c_int, c_int, c_int, c_int, c_int64, c_int64, _scalar, *_matrix, *_matrix, c_int64)
cublasStrsmBatched_64: Function = _cublas("cublasStrsmBatched_64", *_trsm_batched)
cublasDtrsmBatched_64: Function = _cublas("cublasDtrsmBatched_64", *_trsm_batched)
cublasCtrsmBatched_64: Function = _cublas("cublasCtrsmBatched_64", *_trsm_batched)
cublasZtrsmBatched_64: Function = _cublas("cublasZtrsmBatched_64", *_trsm_batched)

# C = alpha op(A) + beta op(B): transa, transb, m, n, alpha, A, beta, B, C
_geam = (cublasHandle_t, c_int, c_int, c_int64, c_int64, _scalar, *_matrix, _scalar, *_matrix, *_matrix)
cublasSgeam_64: Function = _cublas("cublasSgeam_64", *_geam)
cublasDgeam_64: Function = _cublas("cublasDgeam_64", *_geam)
cublasCgeam_64: Function = _cublas("cublasCgeam_64", *_geam)
cublasZgeam_64: Function = _cublas("cublasZgeam_64", *_geam)

# C = A diag(x) or diag(x) A: mode, m, n, A, x, C
_dgmm = (cublasHandle_t, c_int, c_int64, c_int64, *_matrix, *_vector, *_matrix)
cublasSdgmm_64: Function = _cublas("cublasSdgmm_64", *_dgmm)
cublasDdgmm_64: Function = _cublas("cublasDdgmm_64", *_dgmm)
cublasCdgmm_64: Function = _cublas("cublasCdgmm_64", *_dgmm)
cublasZdgmm_64: Function = _cublas("cublasZdgmm_64", *_dgmm)

# Factorizations of many small matrices -------------------------------------------------------------------------------

# These have only 32-bit sizes. Matrices, and tau, are arrays of addresses in device memory; a leading dimension is for
# all of them. An info with one number for each matrix is in device memory. An info that is a POINTER is a single number
# in host memory, and only says which argument is wrong.
_matrices = (c_void_p, c_int)

# P A = L U, which replaces A, without pivoting if P is NULL: n, A, P, info, batchSize
_getrf_batched = (cublasHandle_t, c_int, *_matrices, c_void_p, c_void_p, c_int)
cublasSgetrfBatched: Function = _cublas("cublasSgetrfBatched", *_getrf_batched)
cublasDgetrfBatched: Function = _cublas("cublasDgetrfBatched", *_getrf_batched)
cublasCgetrfBatched: Function = _cublas("cublasCgetrfBatched", *_getrf_batched)
cublasZgetrfBatched: Function = _cublas("cublasZgetrfBatched", *_getrf_batched)

# The X of op(A) X = B in the place of B, from P and L U: trans, n, nrhs, A, P, B, info, batchSize
_getrs_batched = (cublasHandle_t, c_int, c_int, c_int, *_matrices, c_void_p, *_matrices, POINTER(c_int), c_int)
cublasSgetrsBatched: Function = _cublas("cublasSgetrsBatched", *_getrs_batched)
cublasDgetrsBatched: Function = _cublas("cublasDgetrsBatched", *_getrs_batched)
cublasCgetrsBatched: Function = _cublas("cublasCgetrsBatched", *_getrs_batched)
cublasZgetrsBatched: Function = _cublas("cublasZgetrsBatched", *_getrs_batched)

# C = the inverse of A, from P and L U: n, A, P, C, info, batchSize
_getri_batched = (cublasHandle_t, c_int, *_matrices, c_void_p, *_matrices, c_void_p, c_int)
cublasSgetriBatched: Function = _cublas("cublasSgetriBatched", *_getri_batched)
cublasDgetriBatched: Function = _cublas("cublasDgetriBatched", *_getri_batched)
cublasCgetriBatched: Function = _cublas("cublasCgetriBatched", *_getri_batched)
cublasZgetriBatched: Function = _cublas("cublasZgetriBatched", *_getri_batched)

# C = the inverse of A, which is not changed, for n up to 32: n, A, C, info, batchSize
_matinv_batched = (cublasHandle_t, c_int, *_matrices, *_matrices, c_void_p, c_int)
cublasSmatinvBatched: Function = _cublas("cublasSmatinvBatched", *_matinv_batched)
cublasDmatinvBatched: Function = _cublas("cublasDmatinvBatched", *_matinv_batched)
cublasCmatinvBatched: Function = _cublas("cublasCmatinvBatched", *_matinv_batched)
cublasZmatinvBatched: Function = _cublas("cublasZmatinvBatched", *_matinv_batched)

# A = Q R in the place of A, with the reflectors' factors in tau: m, n, A, tau, info, batchSize
_geqrf_batched = (cublasHandle_t, c_int, c_int, *_matrices, c_void_p, POINTER(c_int), c_int)
cublasSgeqrfBatched: Function = _cublas("cublasSgeqrfBatched", *_geqrf_batched)
cublasDgeqrfBatched: Function = _cublas("cublasDgeqrfBatched", *_geqrf_batched)
cublasCgeqrfBatched: Function = _cublas("cublasCgeqrfBatched", *_geqrf_batched)
cublasZgeqrfBatched: Function = _cublas("cublasZgeqrfBatched", *_geqrf_batched)

# The X of least |C - op(A) X| in the place of C: trans, m, n, nrhs, A, C, info, one number a matrix, batchSize
_gels_batched = (cublasHandle_t, *(c_int,) * 4, *_matrices, *_matrices, POINTER(c_int), c_void_p, c_int)
cublasSgelsBatched: Function = _cublas("cublasSgelsBatched", *_gels_batched)
cublasDgelsBatched: Function = _cublas("cublasDgelsBatched", *_gels_batched)
cublasCgelsBatched: Function = _cublas("cublasCgelsBatched", *_gels_batched)
cublasZgelsBatched: Function = _cublas("cublasZgelsBatched", *_gels_batched)
