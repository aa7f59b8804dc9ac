"""The dense part of the solver library (cuSOLVER) as a ctypes table.

Names and numbers are those of ``cusolverDn.h`` 12.4, of CUDA 13. Every function of 11.6, which CUDA 12.4 has, is here,
with these exceptions: functions that 12.0 has removed (such as ``cusolverDnPotrf``, now ``cusolverDnXpotrf``),
iterative refinement with parameters (IRS), reductions to a condensed form (``gebrd``, ``sytrd`` and the functions that
apply their reflectors), ``lauum``, ``laswp``, ``Xstedc``, and the logger. A function that is newer than 11.6 has its
version (``since``); calling it on an older library raises ``SymbolMissing``.

The letter after ``cusolverDn`` is the type of the matrices: S and D are float32 and float64, C and Z complex64 and
complex128. The functions with an X take the type as an argument, and 64-bit sizes. All matrices are column-major.

This file declares, and does nothing else: no library is loaded before the first call.
"""

from __future__ import annotations

from ctypes import POINTER, c_byte, c_double, c_float, c_int, c_int64, c_longlong, c_size_t, c_void_p
from enum import IntEnum

from ._library import Function, Library

cusolverDnHandle_t = c_void_p
cusolverDnParams_t = c_void_p
syevjInfo_t = c_void_p
gesvdjInfo_t = c_void_p
cudaStream_t = c_void_p  # a CUstream of the driver


class cusolverStatus_t(IntEnum):
    """The status that a cuSOLVER function returns; 0 is success."""

    CUSOLVER_STATUS_SUCCESS = 0
    CUSOLVER_STATUS_NOT_INITIALIZED = 1
    CUSOLVER_STATUS_ALLOC_FAILED = 2
    CUSOLVER_STATUS_INVALID_VALUE = 3
    CUSOLVER_STATUS_ARCH_MISMATCH = 4
    CUSOLVER_STATUS_MAPPING_ERROR = 5
    CUSOLVER_STATUS_EXECUTION_FAILED = 6
    CUSOLVER_STATUS_INTERNAL_ERROR = 7
    CUSOLVER_STATUS_MATRIX_TYPE_NOT_SUPPORTED = 8
    CUSOLVER_STATUS_NOT_SUPPORTED = 9
    CUSOLVER_STATUS_ZERO_PIVOT = 10
    CUSOLVER_STATUS_INVALID_LICENSE = 11
    CUSOLVER_STATUS_IRS_PARAMS_NOT_INITIALIZED = 12
    CUSOLVER_STATUS_IRS_PARAMS_INVALID = 13
    CUSOLVER_STATUS_IRS_PARAMS_INVALID_PREC = 14
    CUSOLVER_STATUS_IRS_PARAMS_INVALID_REFINE = 15
    CUSOLVER_STATUS_IRS_PARAMS_INVALID_MAXITER = 16
    CUSOLVER_STATUS_IRS_INTERNAL_ERROR = 20
    CUSOLVER_STATUS_IRS_NOT_SUPPORTED = 21
    CUSOLVER_STATUS_IRS_OUT_OF_RANGE = 22
    CUSOLVER_STATUS_IRS_NRHS_NOT_SUPPORTED_FOR_REFINE_GMRES = 23
    CUSOLVER_STATUS_IRS_INFOS_NOT_INITIALIZED = 25
    CUSOLVER_STATUS_IRS_INFOS_NOT_DESTROYED = 26
    CUSOLVER_STATUS_IRS_MATRIX_SINGULAR = 30
    CUSOLVER_STATUS_INVALID_WORKSPACE = 31


class cusolverEigType_t(IntEnum):
    """The generalized problem: 1 is A x = w B x, 2 is A B x = w x, 3 is B A x = w x."""

    CUSOLVER_EIG_TYPE_1 = 1
    CUSOLVER_EIG_TYPE_2 = 2
    CUSOLVER_EIG_TYPE_3 = 3


class cusolverEigMode_t(IntEnum):
    """Compute the values alone, or the vectors too."""

    CUSOLVER_EIG_MODE_NOVECTOR = 0
    CUSOLVER_EIG_MODE_VECTOR = 1


class cusolverEigRange_t(IntEnum):
    """The eigenvalues to compute: all, those of a range of indices, or those in an interval."""

    CUSOLVER_EIG_RANGE_ALL = 1001
    CUSOLVER_EIG_RANGE_I = 1002
    CUSOLVER_EIG_RANGE_V = 1003


class cusolverStorevMode_t(IntEnum):
    """The storage of the vectors of block reflectors. The header gives these names the prefix of cuBLAS."""

    CUBLAS_STOREV_COLUMNWISE = 0
    CUBLAS_STOREV_ROWWISE = 1


class cusolverDirectMode_t(IntEnum):
    """The order in which reflectors are multiplied. The header gives these names the prefix of cuBLAS."""

    CUBLAS_DIRECT_FORWARD = 0
    CUBLAS_DIRECT_BACKWARD = 1


class cusolverAlgMode_t(IntEnum):
    """The algorithm that ``cusolverDnSetAdvOptions`` chooses; 0 is the default."""

    CUSOLVER_ALG_0 = 0
    CUSOLVER_ALG_1 = 1
    CUSOLVER_ALG_2 = 2


class cusolverDnFunction_t(IntEnum):
    """The function to which ``cusolverDnSetAdvOptions`` applies."""

    CUSOLVERDN_GETRF = 0
    CUSOLVERDN_POTRF = 1
    CUSOLVERDN_SYEVBATCHED = 2
    CUSOLVERDN_GEQRF = 3
    CUSOLVERDN_SYEVD = 4
    CUSOLVERDN_GESVD = 5
    CUSOLVERDN_GEEV = 6


class cusolverDeterministicMode_t(IntEnum):
    """The repeatability of a function: the same bits in every run, or not."""

    CUSOLVER_DETERMINISTIC_RESULTS = 1
    CUSOLVER_ALLOW_NON_DETERMINISTIC_RESULTS = 2


class cusolverMathMode_t(IntEnum):
    """Permission to emulate wider types with the tensor cores."""

    CUSOLVER_DEFAULT_MATH = 1
    CUSOLVER_FP32_EMULATED_BF16X9_MATH = 2
    CUSOLVER_FP64_EMULATED_FIXEDPOINT_MATH = 4
    CUSOLVER_FP32_FP64_EMULATED_MATH = 6


def _describe(status: int) -> tuple[str, str]:
    """Return the name of a status; the library has no function for it."""
    known = {int(member): member.name for member in cusolverStatus_t}
    name = known.get(status, "CUSOLVER_STATUS_UNKNOWN")
    return name, name.removeprefix("CUSOLVER_STATUS_").replace("_", " ").lower()


_cusolver = Library(
    "cusolver",
    pathfinder_name="cusolver",
    sonames=("libcusolver.so.12", "libcusolver.so.11", "libcusolver.so"),
    extra="cu13",
    describe=_describe,
)
library: Library = _cusolver

# The library itself.
cusolverGetVersion: Function = _cusolver("cusolverGetVersion", POINTER(c_int))
cusolverGetProperty: Function = _cusolver("cusolverGetProperty", c_int, POINTER(c_int))

# A handle, and its settings.
cusolverDnCreate: Function = _cusolver("cusolverDnCreate", POINTER(cusolverDnHandle_t))
cusolverDnDestroy: Function = _cusolver("cusolverDnDestroy", cusolverDnHandle_t)
cusolverDnSetStream: Function = _cusolver("cusolverDnSetStream", cusolverDnHandle_t, cudaStream_t)
cusolverDnGetStream: Function = _cusolver("cusolverDnGetStream", cusolverDnHandle_t, POINTER(cudaStream_t))
cusolverDnSetDeterministicMode: Function = _cusolver("cusolverDnSetDeterministicMode", cusolverDnHandle_t, c_int)
cusolverDnGetDeterministicMode: Function = _cusolver(
    "cusolverDnGetDeterministicMode", cusolverDnHandle_t, POINTER(c_int)
)
cusolverDnSetMathMode: Function = _cusolver("cusolverDnSetMathMode", cusolverDnHandle_t, c_int, since=(12, 0))
cusolverDnGetMathMode: Function = _cusolver("cusolverDnGetMathMode", cusolverDnHandle_t, POINTER(c_int), since=(12, 0))
cusolverDnSetEmulationStrategy: Function = _cusolver(
    "cusolverDnSetEmulationStrategy", cusolverDnHandle_t, c_int, since=(12, 0)
)
cusolverDnGetEmulationStrategy: Function = _cusolver(
    "cusolverDnGetEmulationStrategy", cusolverDnHandle_t, POINTER(c_int), since=(12, 0)
)
cusolverDnSetEmulationSpecialValuesSupport: Function = _cusolver(
    "cusolverDnSetEmulationSpecialValuesSupport", cusolverDnHandle_t, c_int, since=(12, 1)
)
cusolverDnGetEmulationSpecialValuesSupport: Function = _cusolver(
    "cusolverDnGetEmulationSpecialValuesSupport", cusolverDnHandle_t, POINTER(c_int), since=(12, 1)
)
cusolverDnSetFixedPointEmulationMantissaControl: Function = _cusolver(
    "cusolverDnSetFixedPointEmulationMantissaControl", cusolverDnHandle_t, c_int, since=(12, 1)
)
cusolverDnGetFixedPointEmulationMantissaControl: Function = _cusolver(
    "cusolverDnGetFixedPointEmulationMantissaControl", cusolverDnHandle_t, POINTER(c_int), since=(12, 1)
)
cusolverDnSetFixedPointEmulationMaxMantissaBitCount: Function = _cusolver(
    "cusolverDnSetFixedPointEmulationMaxMantissaBitCount", cusolverDnHandle_t, c_int, since=(12, 1)
)
cusolverDnGetFixedPointEmulationMaxMantissaBitCount: Function = _cusolver(
    "cusolverDnGetFixedPointEmulationMaxMantissaBitCount", cusolverDnHandle_t, POINTER(c_int), since=(12, 1)
)
cusolverDnSetFixedPointEmulationMantissaBitOffset: Function = _cusolver(
    "cusolverDnSetFixedPointEmulationMantissaBitOffset", cusolverDnHandle_t, c_int, since=(12, 1)
)
cusolverDnGetFixedPointEmulationMantissaBitOffset: Function = _cusolver(
    "cusolverDnGetFixedPointEmulationMantissaBitOffset", cusolverDnHandle_t, POINTER(c_int), since=(12, 1)
)

# Options of the functions with 64-bit sizes.
cusolverDnCreateParams: Function = _cusolver("cusolverDnCreateParams", POINTER(cusolverDnParams_t))
cusolverDnDestroyParams: Function = _cusolver("cusolverDnDestroyParams", cusolverDnParams_t)
cusolverDnSetAdvOptions: Function = _cusolver("cusolverDnSetAdvOptions", cusolverDnParams_t, c_int, c_int)

# Options of the Jacobi methods, and their results.
cusolverDnCreateSyevjInfo: Function = _cusolver("cusolverDnCreateSyevjInfo", POINTER(syevjInfo_t))
cusolverDnDestroySyevjInfo: Function = _cusolver("cusolverDnDestroySyevjInfo", syevjInfo_t)
cusolverDnXsyevjSetTolerance: Function = _cusolver("cusolverDnXsyevjSetTolerance", syevjInfo_t, c_double)
cusolverDnXsyevjSetMaxSweeps: Function = _cusolver("cusolverDnXsyevjSetMaxSweeps", syevjInfo_t, c_int)
cusolverDnXsyevjSetSortEig: Function = _cusolver("cusolverDnXsyevjSetSortEig", syevjInfo_t, c_int)
cusolverDnXsyevjGetResidual: Function = _cusolver(
    "cusolverDnXsyevjGetResidual", cusolverDnHandle_t, syevjInfo_t, POINTER(c_double)
)
cusolverDnXsyevjGetSweeps: Function = _cusolver(
    "cusolverDnXsyevjGetSweeps", cusolverDnHandle_t, syevjInfo_t, POINTER(c_int)
)
cusolverDnCreateGesvdjInfo: Function = _cusolver("cusolverDnCreateGesvdjInfo", POINTER(gesvdjInfo_t))
cusolverDnDestroyGesvdjInfo: Function = _cusolver("cusolverDnDestroyGesvdjInfo", gesvdjInfo_t)
cusolverDnXgesvdjSetTolerance: Function = _cusolver("cusolverDnXgesvdjSetTolerance", gesvdjInfo_t, c_double)
cusolverDnXgesvdjSetMaxSweeps: Function = _cusolver("cusolverDnXgesvdjSetMaxSweeps", gesvdjInfo_t, c_int)
cusolverDnXgesvdjSetSortEig: Function = _cusolver("cusolverDnXgesvdjSetSortEig", gesvdjInfo_t, c_int)
cusolverDnXgesvdjGetResidual: Function = _cusolver(
    "cusolverDnXgesvdjGetResidual", cusolverDnHandle_t, gesvdjInfo_t, POINTER(c_double)
)
cusolverDnXgesvdjGetSweeps: Function = _cusolver(
    "cusolverDnXgesvdjGetSweeps", cusolverDnHandle_t, gesvdjInfo_t, POINTER(c_int)
)

# Words for arguments, so that a signature reads like LAPACK's. Arrays are on the device, and so is ``info``: one
# number, or one for each problem. A ``POINTER`` is on the host: the size of a workspace, ``niters``, ``meig``.
_handle = cusolverDnHandle_t
_uplo = _trans = _side = _itype = _jobz = _range = c_int  # enumerations
_jobu = _jobvt = c_byte  # letters, as in LAPACK
_m = _n = _k = _nrhs = _rank = _econ = _batch = c_int
_A = _B = _C = _X = _U = _V = (c_void_p, c_int)  # a matrix, or an array of pointers to matrices; its leading dimension
_A_strided = _U_strided = _V_strided = (c_void_p, c_int, c_longlong)  # and the distance to the next matrix
_S_strided = (c_void_p, c_longlong)
_tau = _ipiv = _S = _W = _rwork = _info = c_void_p
_work = (c_void_p, c_int)  # a workspace and its length in elements
_lwork = POINTER(c_int)
_interval32 = (c_float, c_float, c_int, c_int, POINTER(c_int))  # vl, vu, il, iu, meig
_interval64 = (c_double, c_double, c_int, c_int, POINTER(c_int))

# Cholesky factorization A = L L^H (potrf), and from it solutions (potrs) and the inverse (potri).
_potrf_size = _potri_size = (_handle, _uplo, _n, *_A, _lwork)
_potrf = _potri = (_handle, _uplo, _n, *_A, *_work, _info)
_potrs = (_handle, _uplo, _n, _nrhs, *_A, *_B, _info)
_potrfBatched = (_handle, _uplo, _n, *_A, _info, _batch)
_potrsBatched = (_handle, _uplo, _n, _nrhs, *_A, *_B, _info, _batch)
cusolverDnSpotrf_bufferSize: Function = _cusolver("cusolverDnSpotrf_bufferSize", *_potrf_size)
cusolverDnSpotrf: Function = _cusolver("cusolverDnSpotrf", *_potrf)
cusolverDnDpotrf_bufferSize: Function = _cusolver("cusolverDnDpotrf_bufferSize", *_potrf_size)
cusolverDnDpotrf: Function = _cusolver("cusolverDnDpotrf", *_potrf)
cusolverDnCpotrf_bufferSize: Function = _cusolver("cusolverDnCpotrf_bufferSize", *_potrf_size)
cusolverDnCpotrf: Function = _cusolver("cusolverDnCpotrf", *_potrf)
cusolverDnZpotrf_bufferSize: Function = _cusolver("cusolverDnZpotrf_bufferSize", *_potrf_size)
cusolverDnZpotrf: Function = _cusolver("cusolverDnZpotrf", *_potrf)
cusolverDnSpotri_bufferSize: Function = _cusolver("cusolverDnSpotri_bufferSize", *_potri_size)
cusolverDnSpotri: Function = _cusolver("cusolverDnSpotri", *_potri)
cusolverDnDpotri_bufferSize: Function = _cusolver("cusolverDnDpotri_bufferSize", *_potri_size)
cusolverDnDpotri: Function = _cusolver("cusolverDnDpotri", *_potri)
cusolverDnCpotri_bufferSize: Function = _cusolver("cusolverDnCpotri_bufferSize", *_potri_size)
cusolverDnCpotri: Function = _cusolver("cusolverDnCpotri", *_potri)
cusolverDnZpotri_bufferSize: Function = _cusolver("cusolverDnZpotri_bufferSize", *_potri_size)
cusolverDnZpotri: Function = _cusolver("cusolverDnZpotri", *_potri)
cusolverDnSpotrs: Function = _cusolver("cusolverDnSpotrs", *_potrs)
cusolverDnDpotrs: Function = _cusolver("cusolverDnDpotrs", *_potrs)
cusolverDnCpotrs: Function = _cusolver("cusolverDnCpotrs", *_potrs)
cusolverDnZpotrs: Function = _cusolver("cusolverDnZpotrs", *_potrs)
cusolverDnSpotrfBatched: Function = _cusolver("cusolverDnSpotrfBatched", *_potrfBatched)
cusolverDnDpotrfBatched: Function = _cusolver("cusolverDnDpotrfBatched", *_potrfBatched)
cusolverDnCpotrfBatched: Function = _cusolver("cusolverDnCpotrfBatched", *_potrfBatched)
cusolverDnZpotrfBatched: Function = _cusolver("cusolverDnZpotrfBatched", *_potrfBatched)
cusolverDnSpotrsBatched: Function = _cusolver("cusolverDnSpotrsBatched", *_potrsBatched)
cusolverDnDpotrsBatched: Function = _cusolver("cusolverDnDpotrsBatched", *_potrsBatched)
cusolverDnCpotrsBatched: Function = _cusolver("cusolverDnCpotrsBatched", *_potrsBatched)
cusolverDnZpotrsBatched: Function = _cusolver("cusolverDnZpotrsBatched", *_potrsBatched)

# LU factorization with partial pivoting. It takes no length of its workspace; without ``ipiv`` it does not pivot.
_getrf_size = (_handle, _m, _n, *_A, _lwork)
_getrf = (_handle, _m, _n, *_A, c_void_p, _ipiv, _info)
_getrs = (_handle, _trans, _n, _nrhs, *_A, _ipiv, *_B, _info)
cusolverDnSgetrf_bufferSize: Function = _cusolver("cusolverDnSgetrf_bufferSize", *_getrf_size)
cusolverDnSgetrf: Function = _cusolver("cusolverDnSgetrf", *_getrf)
cusolverDnDgetrf_bufferSize: Function = _cusolver("cusolverDnDgetrf_bufferSize", *_getrf_size)
cusolverDnDgetrf: Function = _cusolver("cusolverDnDgetrf", *_getrf)
cusolverDnCgetrf_bufferSize: Function = _cusolver("cusolverDnCgetrf_bufferSize", *_getrf_size)
cusolverDnCgetrf: Function = _cusolver("cusolverDnCgetrf", *_getrf)
cusolverDnZgetrf_bufferSize: Function = _cusolver("cusolverDnZgetrf_bufferSize", *_getrf_size)
cusolverDnZgetrf: Function = _cusolver("cusolverDnZgetrf", *_getrf)
cusolverDnSgetrs: Function = _cusolver("cusolverDnSgetrs", *_getrs)
cusolverDnDgetrs: Function = _cusolver("cusolverDnDgetrs", *_getrs)
cusolverDnCgetrs: Function = _cusolver("cusolverDnCgetrs", *_getrs)
cusolverDnZgetrs: Function = _cusolver("cusolverDnZgetrs", *_getrs)

# QR factorization (geqrf), its Q as a matrix (orgqr, ungqr), and products with Q (ormqr, unmqr).
_geqrf_size = (_handle, _m, _n, *_A, _lwork)
_geqrf = (_handle, _m, _n, *_A, _tau, *_work, _info)
_orgqr_size = _ungqr_size = (_handle, _m, _n, _k, *_A, _tau, _lwork)
_orgqr = _ungqr = (_handle, _m, _n, _k, *_A, _tau, *_work, _info)
_ormqr_size = _unmqr_size = (_handle, _side, _trans, _m, _n, _k, *_A, _tau, *_C, _lwork)
_ormqr = _unmqr = (_handle, _side, _trans, _m, _n, _k, *_A, _tau, *_C, *_work, _info)
cusolverDnSgeqrf_bufferSize: Function = _cusolver("cusolverDnSgeqrf_bufferSize", *_geqrf_size)
cusolverDnSgeqrf: Function = _cusolver("cusolverDnSgeqrf", *_geqrf)
cusolverDnDgeqrf_bufferSize: Function = _cusolver("cusolverDnDgeqrf_bufferSize", *_geqrf_size)
cusolverDnDgeqrf: Function = _cusolver("cusolverDnDgeqrf", *_geqrf)
cusolverDnCgeqrf_bufferSize: Function = _cusolver("cusolverDnCgeqrf_bufferSize", *_geqrf_size)
cusolverDnCgeqrf: Function = _cusolver("cusolverDnCgeqrf", *_geqrf)
cusolverDnZgeqrf_bufferSize: Function = _cusolver("cusolverDnZgeqrf_bufferSize", *_geqrf_size)
cusolverDnZgeqrf: Function = _cusolver("cusolverDnZgeqrf", *_geqrf)
cusolverDnSorgqr_bufferSize: Function = _cusolver("cusolverDnSorgqr_bufferSize", *_orgqr_size)
cusolverDnSorgqr: Function = _cusolver("cusolverDnSorgqr", *_orgqr)
cusolverDnDorgqr_bufferSize: Function = _cusolver("cusolverDnDorgqr_bufferSize", *_orgqr_size)
cusolverDnDorgqr: Function = _cusolver("cusolverDnDorgqr", *_orgqr)
cusolverDnCungqr_bufferSize: Function = _cusolver("cusolverDnCungqr_bufferSize", *_ungqr_size)
cusolverDnCungqr: Function = _cusolver("cusolverDnCungqr", *_ungqr)
cusolverDnZungqr_bufferSize: Function = _cusolver("cusolverDnZungqr_bufferSize", *_ungqr_size)
cusolverDnZungqr: Function = _cusolver("cusolverDnZungqr", *_ungqr)
cusolverDnSormqr_bufferSize: Function = _cusolver("cusolverDnSormqr_bufferSize", *_ormqr_size)
cusolverDnSormqr: Function = _cusolver("cusolverDnSormqr", *_ormqr)
cusolverDnDormqr_bufferSize: Function = _cusolver("cusolverDnDormqr_bufferSize", *_ormqr_size)
cusolverDnDormqr: Function = _cusolver("cusolverDnDormqr", *_ormqr)
cusolverDnCunmqr_bufferSize: Function = _cusolver("cusolverDnCunmqr_bufferSize", *_unmqr_size)
cusolverDnCunmqr: Function = _cusolver("cusolverDnCunmqr", *_unmqr)
cusolverDnZunmqr_bufferSize: Function = _cusolver("cusolverDnZunmqr_bufferSize", *_unmqr_size)
cusolverDnZunmqr: Function = _cusolver("cusolverDnZunmqr", *_unmqr)

# Symmetric indefinite factorization (sytrf; complex matrices are symmetric, not Hermitian) and its inverse (sytri).
_sytrf_size = (_handle, _n, *_A, _lwork)
_sytrf = _sytri = (_handle, _uplo, _n, *_A, _ipiv, *_work, _info)
_sytri_size = (_handle, _uplo, _n, *_A, _ipiv, _lwork)
cusolverDnSsytrf_bufferSize: Function = _cusolver("cusolverDnSsytrf_bufferSize", *_sytrf_size)
cusolverDnSsytrf: Function = _cusolver("cusolverDnSsytrf", *_sytrf)
cusolverDnDsytrf_bufferSize: Function = _cusolver("cusolverDnDsytrf_bufferSize", *_sytrf_size)
cusolverDnDsytrf: Function = _cusolver("cusolverDnDsytrf", *_sytrf)
cusolverDnCsytrf_bufferSize: Function = _cusolver("cusolverDnCsytrf_bufferSize", *_sytrf_size)
cusolverDnCsytrf: Function = _cusolver("cusolverDnCsytrf", *_sytrf)
cusolverDnZsytrf_bufferSize: Function = _cusolver("cusolverDnZsytrf_bufferSize", *_sytrf_size)
cusolverDnZsytrf: Function = _cusolver("cusolverDnZsytrf", *_sytrf)
cusolverDnSsytri_bufferSize: Function = _cusolver("cusolverDnSsytri_bufferSize", *_sytri_size)
cusolverDnSsytri: Function = _cusolver("cusolverDnSsytri", *_sytri)
cusolverDnDsytri_bufferSize: Function = _cusolver("cusolverDnDsytri_bufferSize", *_sytri_size)
cusolverDnDsytri: Function = _cusolver("cusolverDnDsytri", *_sytri)
cusolverDnCsytri_bufferSize: Function = _cusolver("cusolverDnCsytri_bufferSize", *_sytri_size)
cusolverDnCsytri: Function = _cusolver("cusolverDnCsytri", *_sytri)
cusolverDnZsytri_bufferSize: Function = _cusolver("cusolverDnZsytri_bufferSize", *_sytri_size)
cusolverDnZsytri: Function = _cusolver("cusolverDnZsytri", *_sytri)

# Linear systems and least squares with iterative refinement: the second letter is the lowest precision that the
# factorization may use (real D, S, X: TF32, B: bfloat16, H: float16; complex Z, C, Y, E, K). The workspace is in bytes.
_gesv_size = (_handle, _n, _nrhs, *_A, _ipiv, *_B, *_X, c_void_p, POINTER(c_size_t))
_gesv = (_handle, _n, _nrhs, *_A, _ipiv, *_B, *_X, c_void_p, c_size_t, POINTER(c_int), _info)  # niters, info
_gels_size = (_handle, _m, _n, _nrhs, *_A, *_B, *_X, c_void_p, POINTER(c_size_t))
_gels = (_handle, _m, _n, _nrhs, *_A, *_B, *_X, c_void_p, c_size_t, POINTER(c_int), _info)
cusolverDnSSgesv_bufferSize: Function = _cusolver("cusolverDnSSgesv_bufferSize", *_gesv_size)
cusolverDnSSgesv: Function = _cusolver("cusolverDnSSgesv", *_gesv)
cusolverDnSXgesv_bufferSize: Function = _cusolver("cusolverDnSXgesv_bufferSize", *_gesv_size)
cusolverDnSXgesv: Function = _cusolver("cusolverDnSXgesv", *_gesv)
cusolverDnSBgesv_bufferSize: Function = _cusolver("cusolverDnSBgesv_bufferSize", *_gesv_size)
cusolverDnSBgesv: Function = _cusolver("cusolverDnSBgesv", *_gesv)
cusolverDnSHgesv_bufferSize: Function = _cusolver("cusolverDnSHgesv_bufferSize", *_gesv_size)
cusolverDnSHgesv: Function = _cusolver("cusolverDnSHgesv", *_gesv)
cusolverDnDDgesv_bufferSize: Function = _cusolver("cusolverDnDDgesv_bufferSize", *_gesv_size)
cusolverDnDDgesv: Function = _cusolver("cusolverDnDDgesv", *_gesv)
cusolverDnDSgesv_bufferSize: Function = _cusolver("cusolverDnDSgesv_bufferSize", *_gesv_size)
cusolverDnDSgesv: Function = _cusolver("cusolverDnDSgesv", *_gesv)
cusolverDnDXgesv_bufferSize: Function = _cusolver("cusolverDnDXgesv_bufferSize", *_gesv_size)
cusolverDnDXgesv: Function = _cusolver("cusolverDnDXgesv", *_gesv)
cusolverDnDBgesv_bufferSize: Function = _cusolver("cusolverDnDBgesv_bufferSize", *_gesv_size)
cusolverDnDBgesv: Function = _cusolver("cusolverDnDBgesv", *_gesv)
cusolverDnDHgesv_bufferSize: Function = _cusolver("cusolverDnDHgesv_bufferSize", *_gesv_size)
cusolverDnDHgesv: Function = _cusolver("cusolverDnDHgesv", *_gesv)
cusolverDnCCgesv_bufferSize: Function = _cusolver("cusolverDnCCgesv_bufferSize", *_gesv_size)
cusolverDnCCgesv: Function = _cusolver("cusolverDnCCgesv", *_gesv)
cusolverDnCYgesv_bufferSize: Function = _cusolver("cusolverDnCYgesv_bufferSize", *_gesv_size)
cusolverDnCYgesv: Function = _cusolver("cusolverDnCYgesv", *_gesv)
cusolverDnCEgesv_bufferSize: Function = _cusolver("cusolverDnCEgesv_bufferSize", *_gesv_size)
cusolverDnCEgesv: Function = _cusolver("cusolverDnCEgesv", *_gesv)
cusolverDnCKgesv_bufferSize: Function = _cusolver("cusolverDnCKgesv_bufferSize", *_gesv_size)
cusolverDnCKgesv: Function = _cusolver("cusolverDnCKgesv", *_gesv)
cusolverDnZZgesv_bufferSize: Function = _cusolver("cusolverDnZZgesv_bufferSize", *_gesv_size)
cusolverDnZZgesv: Function = _cusolver("cusolverDnZZgesv", *_gesv)
cusolverDnZCgesv_bufferSize: Function = _cusolver("cusolverDnZCgesv_bufferSize", *_gesv_size)
cusolverDnZCgesv: Function = _cusolver("cusolverDnZCgesv", *_gesv)
cusolverDnZYgesv_bufferSize: Function = _cusolver("cusolverDnZYgesv_bufferSize", *_gesv_size)
cusolverDnZYgesv: Function = _cusolver("cusolverDnZYgesv", *_gesv)
cusolverDnZEgesv_bufferSize: Function = _cusolver("cusolverDnZEgesv_bufferSize", *_gesv_size)
cusolverDnZEgesv: Function = _cusolver("cusolverDnZEgesv", *_gesv)
cusolverDnZKgesv_bufferSize: Function = _cusolver("cusolverDnZKgesv_bufferSize", *_gesv_size)
cusolverDnZKgesv: Function = _cusolver("cusolverDnZKgesv", *_gesv)
cusolverDnSSgels_bufferSize: Function = _cusolver("cusolverDnSSgels_bufferSize", *_gels_size)
cusolverDnSSgels: Function = _cusolver("cusolverDnSSgels", *_gels)
cusolverDnSXgels_bufferSize: Function = _cusolver("cusolverDnSXgels_bufferSize", *_gels_size)
cusolverDnSXgels: Function = _cusolver("cusolverDnSXgels", *_gels)
cusolverDnSBgels_bufferSize: Function = _cusolver("cusolverDnSBgels_bufferSize", *_gels_size)
cusolverDnSBgels: Function = _cusolver("cusolverDnSBgels", *_gels)
cusolverDnSHgels_bufferSize: Function = _cusolver("cusolverDnSHgels_bufferSize", *_gels_size)
cusolverDnSHgels: Function = _cusolver("cusolverDnSHgels", *_gels)
cusolverDnDDgels_bufferSize: Function = _cusolver("cusolverDnDDgels_bufferSize", *_gels_size)
cusolverDnDDgels: Function = _cusolver("cusolverDnDDgels", *_gels)
cusolverDnDSgels_bufferSize: Function = _cusolver("cusolverDnDSgels_bufferSize", *_gels_size)
cusolverDnDSgels: Function = _cusolver("cusolverDnDSgels", *_gels)
cusolverDnDXgels_bufferSize: Function = _cusolver("cusolverDnDXgels_bufferSize", *_gels_size)
cusolverDnDXgels: Function = _cusolver("cusolverDnDXgels", *_gels)
cusolverDnDBgels_bufferSize: Function = _cusolver("cusolverDnDBgels_bufferSize", *_gels_size)
cusolverDnDBgels: Function = _cusolver("cusolverDnDBgels", *_gels)
cusolverDnDHgels_bufferSize: Function = _cusolver("cusolverDnDHgels_bufferSize", *_gels_size)
cusolverDnDHgels: Function = _cusolver("cusolverDnDHgels", *_gels)
cusolverDnCCgels_bufferSize: Function = _cusolver("cusolverDnCCgels_bufferSize", *_gels_size)
cusolverDnCCgels: Function = _cusolver("cusolverDnCCgels", *_gels)
cusolverDnCYgels_bufferSize: Function = _cusolver("cusolverDnCYgels_bufferSize", *_gels_size)
cusolverDnCYgels: Function = _cusolver("cusolverDnCYgels", *_gels)
cusolverDnCEgels_bufferSize: Function = _cusolver("cusolverDnCEgels_bufferSize", *_gels_size)
cusolverDnCEgels: Function = _cusolver("cusolverDnCEgels", *_gels)
cusolverDnCKgels_bufferSize: Function = _cusolver("cusolverDnCKgels_bufferSize", *_gels_size)
cusolverDnCKgels: Function = _cusolver("cusolverDnCKgels", *_gels)
cusolverDnZZgels_bufferSize: Function = _cusolver("cusolverDnZZgels_bufferSize", *_gels_size)
cusolverDnZZgels: Function = _cusolver("cusolverDnZZgels", *_gels)
cusolverDnZCgels_bufferSize: Function = _cusolver("cusolverDnZCgels_bufferSize", *_gels_size)
cusolverDnZCgels: Function = _cusolver("cusolverDnZCgels", *_gels)
cusolverDnZYgels_bufferSize: Function = _cusolver("cusolverDnZYgels_bufferSize", *_gels_size)
cusolverDnZYgels: Function = _cusolver("cusolverDnZYgels", *_gels)
cusolverDnZEgels_bufferSize: Function = _cusolver("cusolverDnZEgels_bufferSize", *_gels_size)
cusolverDnZEgels: Function = _cusolver("cusolverDnZEgels", *_gels)
cusolverDnZKgels_bufferSize: Function = _cusolver("cusolverDnZKgels_bufferSize", *_gels_size)
cusolverDnZKgels: Function = _cusolver("cusolverDnZKgels", *_gels)

# Singular values by QR (gesvd, which gives V^H), by the Jacobi method (gesvdj) and approximately (gesvda, both give V).
_gesvd_size = (_handle, _m, _n, _lwork)
_gesvd = (_handle, _jobu, _jobvt, _m, _n, *_A, _S, *_U, *_V, *_work, _rwork, _info)
_gesvdj_size = (_handle, _jobz, _econ, _m, _n, *_A, _S, *_U, *_V, _lwork, gesvdjInfo_t)
_gesvdj = (_handle, _jobz, _econ, _m, _n, *_A, _S, *_U, *_V, *_work, _info, gesvdjInfo_t)
_gesvdjBatched_size = (_handle, _jobz, _m, _n, *_A, _S, *_U, *_V, _lwork, gesvdjInfo_t, _batch)
_gesvdjBatched = (_handle, _jobz, _m, _n, *_A, _S, *_U, *_V, *_work, _info, gesvdjInfo_t, _batch)
_gesvda_arrays = (*_A_strided, *_S_strided, *_U_strided, *_V_strided)
_gesvda_size = (_handle, _jobz, _rank, _m, _n, *_gesvda_arrays, _lwork, _batch)
_gesvda = (_handle, _jobz, _rank, _m, _n, *_gesvda_arrays, *_work, _info, POINTER(c_double), _batch)  # residuals' norms
cusolverDnSgesvd_bufferSize: Function = _cusolver("cusolverDnSgesvd_bufferSize", *_gesvd_size)
cusolverDnSgesvd: Function = _cusolver("cusolverDnSgesvd", *_gesvd)
cusolverDnDgesvd_bufferSize: Function = _cusolver("cusolverDnDgesvd_bufferSize", *_gesvd_size)
cusolverDnDgesvd: Function = _cusolver("cusolverDnDgesvd", *_gesvd)
cusolverDnCgesvd_bufferSize: Function = _cusolver("cusolverDnCgesvd_bufferSize", *_gesvd_size)
cusolverDnCgesvd: Function = _cusolver("cusolverDnCgesvd", *_gesvd)
cusolverDnZgesvd_bufferSize: Function = _cusolver("cusolverDnZgesvd_bufferSize", *_gesvd_size)
cusolverDnZgesvd: Function = _cusolver("cusolverDnZgesvd", *_gesvd)
cusolverDnSgesvdj_bufferSize: Function = _cusolver("cusolverDnSgesvdj_bufferSize", *_gesvdj_size)
cusolverDnSgesvdj: Function = _cusolver("cusolverDnSgesvdj", *_gesvdj)
cusolverDnDgesvdj_bufferSize: Function = _cusolver("cusolverDnDgesvdj_bufferSize", *_gesvdj_size)
cusolverDnDgesvdj: Function = _cusolver("cusolverDnDgesvdj", *_gesvdj)
cusolverDnCgesvdj_bufferSize: Function = _cusolver("cusolverDnCgesvdj_bufferSize", *_gesvdj_size)
cusolverDnCgesvdj: Function = _cusolver("cusolverDnCgesvdj", *_gesvdj)
cusolverDnZgesvdj_bufferSize: Function = _cusolver("cusolverDnZgesvdj_bufferSize", *_gesvdj_size)
cusolverDnZgesvdj: Function = _cusolver("cusolverDnZgesvdj", *_gesvdj)
cusolverDnSgesvdjBatched_bufferSize: Function = _cusolver("cusolverDnSgesvdjBatched_bufferSize", *_gesvdjBatched_size)
cusolverDnSgesvdjBatched: Function = _cusolver("cusolverDnSgesvdjBatched", *_gesvdjBatched)
cusolverDnDgesvdjBatched_bufferSize: Function = _cusolver("cusolverDnDgesvdjBatched_bufferSize", *_gesvdjBatched_size)
cusolverDnDgesvdjBatched: Function = _cusolver("cusolverDnDgesvdjBatched", *_gesvdjBatched)
cusolverDnCgesvdjBatched_bufferSize: Function = _cusolver("cusolverDnCgesvdjBatched_bufferSize", *_gesvdjBatched_size)
cusolverDnCgesvdjBatched: Function = _cusolver("cusolverDnCgesvdjBatched", *_gesvdjBatched)
cusolverDnZgesvdjBatched_bufferSize: Function = _cusolver("cusolverDnZgesvdjBatched_bufferSize", *_gesvdjBatched_size)
cusolverDnZgesvdjBatched: Function = _cusolver("cusolverDnZgesvdjBatched", *_gesvdjBatched)
cusolverDnSgesvdaStridedBatched_bufferSize: Function = _cusolver(
    "cusolverDnSgesvdaStridedBatched_bufferSize", *_gesvda_size
)
cusolverDnSgesvdaStridedBatched: Function = _cusolver("cusolverDnSgesvdaStridedBatched", *_gesvda)
cusolverDnDgesvdaStridedBatched_bufferSize: Function = _cusolver(
    "cusolverDnDgesvdaStridedBatched_bufferSize", *_gesvda_size
)
cusolverDnDgesvdaStridedBatched: Function = _cusolver("cusolverDnDgesvdaStridedBatched", *_gesvda)
cusolverDnCgesvdaStridedBatched_bufferSize: Function = _cusolver(
    "cusolverDnCgesvdaStridedBatched_bufferSize", *_gesvda_size
)
cusolverDnCgesvdaStridedBatched: Function = _cusolver("cusolverDnCgesvdaStridedBatched", *_gesvda)
cusolverDnZgesvdaStridedBatched_bufferSize: Function = _cusolver(
    "cusolverDnZgesvdaStridedBatched_bufferSize", *_gesvda_size
)
cusolverDnZgesvdaStridedBatched: Function = _cusolver("cusolverDnZgesvdaStridedBatched", *_gesvda)

# Symmetric and Hermitian eigenvalues: divide and conquer (syevd), a subset (syevdx), Jacobi (syevj).
_syevd_size = _heevd_size = (_handle, _jobz, _uplo, _n, *_A, _W, _lwork)
_syevd = _heevd = (_handle, _jobz, _uplo, _n, *_A, _W, *_work, _info)
_syevj_size = _heevj_size = (*_syevd_size, syevjInfo_t)
_syevj = _heevj = (*_syevd, syevjInfo_t)
_syevjBatched_size = _heevjBatched_size = (*_syevj_size, _batch)
_syevjBatched = _heevjBatched = (*_syevj, _batch)
_evdx = (_handle, _jobz, _range, _uplo, _n, *_A)
_evdx32_size, _evdx32 = (*_evdx, *_interval32, _W, _lwork), (*_evdx, *_interval32, _W, *_work, _info)
_evdx64_size, _evdx64 = (*_evdx, *_interval64, _W, _lwork), (*_evdx, *_interval64, _W, *_work, _info)
cusolverDnSsyevd_bufferSize: Function = _cusolver("cusolverDnSsyevd_bufferSize", *_syevd_size)
cusolverDnSsyevd: Function = _cusolver("cusolverDnSsyevd", *_syevd)
cusolverDnDsyevd_bufferSize: Function = _cusolver("cusolverDnDsyevd_bufferSize", *_syevd_size)
cusolverDnDsyevd: Function = _cusolver("cusolverDnDsyevd", *_syevd)
cusolverDnCheevd_bufferSize: Function = _cusolver("cusolverDnCheevd_bufferSize", *_heevd_size)
cusolverDnCheevd: Function = _cusolver("cusolverDnCheevd", *_heevd)
cusolverDnZheevd_bufferSize: Function = _cusolver("cusolverDnZheevd_bufferSize", *_heevd_size)
cusolverDnZheevd: Function = _cusolver("cusolverDnZheevd", *_heevd)
cusolverDnSsyevdx_bufferSize: Function = _cusolver("cusolverDnSsyevdx_bufferSize", *_evdx32_size)
cusolverDnSsyevdx: Function = _cusolver("cusolverDnSsyevdx", *_evdx32)
cusolverDnDsyevdx_bufferSize: Function = _cusolver("cusolverDnDsyevdx_bufferSize", *_evdx64_size)
cusolverDnDsyevdx: Function = _cusolver("cusolverDnDsyevdx", *_evdx64)
cusolverDnCheevdx_bufferSize: Function = _cusolver("cusolverDnCheevdx_bufferSize", *_evdx32_size)
cusolverDnCheevdx: Function = _cusolver("cusolverDnCheevdx", *_evdx32)
cusolverDnZheevdx_bufferSize: Function = _cusolver("cusolverDnZheevdx_bufferSize", *_evdx64_size)
cusolverDnZheevdx: Function = _cusolver("cusolverDnZheevdx", *_evdx64)
cusolverDnSsyevj_bufferSize: Function = _cusolver("cusolverDnSsyevj_bufferSize", *_syevj_size)
cusolverDnSsyevj: Function = _cusolver("cusolverDnSsyevj", *_syevj)
cusolverDnDsyevj_bufferSize: Function = _cusolver("cusolverDnDsyevj_bufferSize", *_syevj_size)
cusolverDnDsyevj: Function = _cusolver("cusolverDnDsyevj", *_syevj)
cusolverDnCheevj_bufferSize: Function = _cusolver("cusolverDnCheevj_bufferSize", *_heevj_size)
cusolverDnCheevj: Function = _cusolver("cusolverDnCheevj", *_heevj)
cusolverDnZheevj_bufferSize: Function = _cusolver("cusolverDnZheevj_bufferSize", *_heevj_size)
cusolverDnZheevj: Function = _cusolver("cusolverDnZheevj", *_heevj)
cusolverDnSsyevjBatched_bufferSize: Function = _cusolver("cusolverDnSsyevjBatched_bufferSize", *_syevjBatched_size)
cusolverDnSsyevjBatched: Function = _cusolver("cusolverDnSsyevjBatched", *_syevjBatched)
cusolverDnDsyevjBatched_bufferSize: Function = _cusolver("cusolverDnDsyevjBatched_bufferSize", *_syevjBatched_size)
cusolverDnDsyevjBatched: Function = _cusolver("cusolverDnDsyevjBatched", *_syevjBatched)
cusolverDnCheevjBatched_bufferSize: Function = _cusolver("cusolverDnCheevjBatched_bufferSize", *_heevjBatched_size)
cusolverDnCheevjBatched: Function = _cusolver("cusolverDnCheevjBatched", *_heevjBatched)
cusolverDnZheevjBatched_bufferSize: Function = _cusolver("cusolverDnZheevjBatched_bufferSize", *_heevjBatched_size)
cusolverDnZheevjBatched: Function = _cusolver("cusolverDnZheevjBatched", *_heevjBatched)

# The same for generalized problems (sygvd, sygvdx, sygvj).
_sygvd_size = _hegvd_size = (_handle, _itype, _jobz, _uplo, _n, *_A, *_B, _W, _lwork)
_sygvd = _hegvd = (_handle, _itype, _jobz, _uplo, _n, *_A, *_B, _W, *_work, _info)
_sygvj_size = _hegvj_size = (*_sygvd_size, syevjInfo_t)
_sygvj = _hegvj = (*_sygvd, syevjInfo_t)
_gvdx = (_handle, _itype, _jobz, _range, _uplo, _n, *_A, *_B)
_gvdx32_size, _gvdx32 = (*_gvdx, *_interval32, _W, _lwork), (*_gvdx, *_interval32, _W, *_work, _info)
_gvdx64_size, _gvdx64 = (*_gvdx, *_interval64, _W, _lwork), (*_gvdx, *_interval64, _W, *_work, _info)
cusolverDnSsygvd_bufferSize: Function = _cusolver("cusolverDnSsygvd_bufferSize", *_sygvd_size)
cusolverDnSsygvd: Function = _cusolver("cusolverDnSsygvd", *_sygvd)
cusolverDnDsygvd_bufferSize: Function = _cusolver("cusolverDnDsygvd_bufferSize", *_sygvd_size)
cusolverDnDsygvd: Function = _cusolver("cusolverDnDsygvd", *_sygvd)
cusolverDnChegvd_bufferSize: Function = _cusolver("cusolverDnChegvd_bufferSize", *_hegvd_size)
cusolverDnChegvd: Function = _cusolver("cusolverDnChegvd", *_hegvd)
cusolverDnZhegvd_bufferSize: Function = _cusolver("cusolverDnZhegvd_bufferSize", *_hegvd_size)
cusolverDnZhegvd: Function = _cusolver("cusolverDnZhegvd", *_hegvd)
cusolverDnSsygvdx_bufferSize: Function = _cusolver("cusolverDnSsygvdx_bufferSize", *_gvdx32_size)
cusolverDnSsygvdx: Function = _cusolver("cusolverDnSsygvdx", *_gvdx32)
cusolverDnDsygvdx_bufferSize: Function = _cusolver("cusolverDnDsygvdx_bufferSize", *_gvdx64_size)
cusolverDnDsygvdx: Function = _cusolver("cusolverDnDsygvdx", *_gvdx64)
cusolverDnChegvdx_bufferSize: Function = _cusolver("cusolverDnChegvdx_bufferSize", *_gvdx32_size)
cusolverDnChegvdx: Function = _cusolver("cusolverDnChegvdx", *_gvdx32)
cusolverDnZhegvdx_bufferSize: Function = _cusolver("cusolverDnZhegvdx_bufferSize", *_gvdx64_size)
cusolverDnZhegvdx: Function = _cusolver("cusolverDnZhegvdx", *_gvdx64)
cusolverDnSsygvj_bufferSize: Function = _cusolver("cusolverDnSsygvj_bufferSize", *_sygvj_size)
cusolverDnSsygvj: Function = _cusolver("cusolverDnSsygvj", *_sygvj)
cusolverDnDsygvj_bufferSize: Function = _cusolver("cusolverDnDsygvj_bufferSize", *_sygvj_size)
cusolverDnDsygvj: Function = _cusolver("cusolverDnDsygvj", *_sygvj)
cusolverDnChegvj_bufferSize: Function = _cusolver("cusolverDnChegvj_bufferSize", *_hegvj_size)
cusolverDnChegvj: Function = _cusolver("cusolverDnChegvj", *_hegvj)
cusolverDnZhegvj_bufferSize: Function = _cusolver("cusolverDnZhegvj_bufferSize", *_hegvj_size)
cusolverDnZhegvj: Function = _cusolver("cusolverDnZhegvj", *_hegvj)

# The interface with 64-bit sizes. A matrix is its data type, address and leading dimension, a vector its data type and
# address; there are two workspaces, on the device and on the host, in bytes, and two sizes to ask for.
_x = (cusolverDnHandle_t, cusolverDnParams_t)
_x_m = _x_n = _x_k = _x_p = _x_nrhs = _x_niters = _x_batch = c_int64
_x_A = _x_B = _x_U = _x_V = _x_T = _x_H = (c_int, c_void_p, c_int64)
_x_A_strided = _x_B_strided = (c_int, c_void_p, c_int64, c_int64)  # and the distance to the next matrix
_x_tau = _x_S = _x_W = (c_int, c_void_p)
_x_W_strided = (c_int, c_void_p, c_int64)
_x_interval = (c_void_p, c_void_p, c_int64, c_int64, POINTER(c_int64))  # vl, vu, il, iu, meig: pointers to the host
_x_norms = (c_void_p, c_void_p, c_void_p)  # of the residual, of A, and the condition's reciprocal
_compute = _diag = _direct = _storev = c_int
_sizes = (POINTER(c_size_t), POINTER(c_size_t))
_works = (c_void_p, c_size_t, c_void_p, c_size_t)

# Factorizations, solutions and inverses.
_Xpotrf = (*_x, _uplo, _x_n, *_x_A, _compute)
cusolverDnXpotrf_bufferSize: Function = _cusolver("cusolverDnXpotrf_bufferSize", *_Xpotrf, *_sizes)
cusolverDnXpotrf: Function = _cusolver("cusolverDnXpotrf", *_Xpotrf, *_works, _info)
cusolverDnXpotrs: Function = _cusolver("cusolverDnXpotrs", *_x, _uplo, _x_n, _x_nrhs, *_x_A, *_x_B, _info)
_Xgetrf_size = (*_x, _x_m, _x_n, *_x_A, _compute, *_sizes)
_Xgetrf = (*_x, _x_m, _x_n, *_x_A, _ipiv, _compute, *_works, _info)
cusolverDnXgetrf_bufferSize: Function = _cusolver("cusolverDnXgetrf_bufferSize", *_Xgetrf_size)
cusolverDnXgetrf: Function = _cusolver("cusolverDnXgetrf", *_Xgetrf)
cusolverDnXgetrs: Function = _cusolver("cusolverDnXgetrs", *_x, _trans, _x_n, _x_nrhs, *_x_A, _ipiv, *_x_B, _info)
_Xgeqrf = (*_x, _x_m, _x_n, *_x_A, *_x_tau, _compute)
cusolverDnXgeqrf_bufferSize: Function = _cusolver("cusolverDnXgeqrf_bufferSize", *_Xgeqrf, *_sizes)
cusolverDnXgeqrf: Function = _cusolver("cusolverDnXgeqrf", *_Xgeqrf, *_works, _info)
_Xsytrf = (*_x, _uplo, _x_n, *_x_A, _ipiv, _compute)
cusolverDnXsytrf_bufferSize: Function = _cusolver("cusolverDnXsytrf_bufferSize", *_Xsytrf, *_sizes, since=(12, 3))
cusolverDnXsytrf: Function = _cusolver("cusolverDnXsytrf", *_Xsytrf, *_works, _info, since=(12, 3))
_Xhetrf = (*_x, _uplo, _x_n, *_x_A, _ipiv, _compute)
cusolverDnXhetrf_bufferSize: Function = _cusolver("cusolverDnXhetrf_bufferSize", *_Xhetrf, *_sizes, since=(12, 3))
cusolverDnXhetrf: Function = _cusolver("cusolverDnXhetrf", *_Xhetrf, *_works, _info, since=(12, 3))
_Xsytrs = (_handle, _uplo, _x_n, _x_nrhs, *_x_A, _ipiv, *_x_B)
cusolverDnXsytrs_bufferSize: Function = _cusolver("cusolverDnXsytrs_bufferSize", *_Xsytrs, *_sizes)
cusolverDnXsytrs: Function = _cusolver("cusolverDnXsytrs", *_Xsytrs, *_works, _info)
_Xhetrs = (*_x, _uplo, _x_n, _x_nrhs, *_x_A, _ipiv, *_x_B)
cusolverDnXhetrs_bufferSize: Function = _cusolver("cusolverDnXhetrs_bufferSize", *_Xhetrs, *_sizes, since=(12, 3))
cusolverDnXhetrs: Function = _cusolver("cusolverDnXhetrs", *_Xhetrs, *_works, _info, since=(12, 3))
_Xtrtri = (_handle, _uplo, _diag, _x_n, *_x_A)
cusolverDnXtrtri_bufferSize: Function = _cusolver("cusolverDnXtrtri_bufferSize", *_Xtrtri, *_sizes)
cusolverDnXtrtri: Function = _cusolver("cusolverDnXtrtri", *_Xtrtri, *_works, _info)
_Xlarft = (*_x, _direct, _storev, _x_n, _x_k, *_x_V, *_x_tau, *_x_T, _compute)
cusolverDnXlarft_bufferSize: Function = _cusolver("cusolverDnXlarft_bufferSize", *_Xlarft, *_sizes)
cusolverDnXlarft: Function = _cusolver("cusolverDnXlarft", *_Xlarft, *_works)
_Xpolar = (*_x, _uplo, _x_m, _x_n, *_x_A, *_x_H, _compute)
cusolverDnXpolar_bufferSize: Function = _cusolver("cusolverDnXpolar_bufferSize", *_Xpolar, *_sizes, since=(12, 2))
cusolverDnXpolar: Function = _cusolver("cusolverDnXpolar", *_Xpolar, *_works, *_x_norms, _info, since=(12, 2))

# Eigenvalues.
_Xsyevd = (*_x, _jobz, _uplo, _x_n, *_x_A, *_x_W, _compute)
cusolverDnXsyevd_bufferSize: Function = _cusolver("cusolverDnXsyevd_bufferSize", *_Xsyevd, *_sizes)
cusolverDnXsyevd: Function = _cusolver("cusolverDnXsyevd", *_Xsyevd, *_works, _info)
_Xsyevdx = (*_x, _jobz, _range, _uplo, _x_n, *_x_A, *_x_interval, *_x_W, _compute)
cusolverDnXsyevdx_bufferSize: Function = _cusolver("cusolverDnXsyevdx_bufferSize", *_Xsyevdx, *_sizes)
cusolverDnXsyevdx: Function = _cusolver("cusolverDnXsyevdx", *_Xsyevdx, *_works, _info)
_XsyevBatched = (*_x, _jobz, _uplo, _x_n, *_x_A, *_x_W, _compute)
cusolverDnXsyevBatched_bufferSize: Function = _cusolver(
    "cusolverDnXsyevBatched_bufferSize", *_XsyevBatched, *_sizes, _x_batch, since=(11, 7)
)
cusolverDnXsyevBatched: Function = _cusolver(
    "cusolverDnXsyevBatched", *_XsyevBatched, *_works, _info, _x_batch, since=(11, 7)
)
_Xgeev = (*_x, _jobz, _jobz, _x_n, *_x_A, *_x_W, *_x_V, *_x_V, _compute)
cusolverDnXgeev_bufferSize: Function = _cusolver("cusolverDnXgeev_bufferSize", *_Xgeev, *_sizes, since=(11, 7))
cusolverDnXgeev: Function = _cusolver("cusolverDnXgeev", *_Xgeev, *_works, _info, since=(11, 7))
_Xsygvd = (*_x, _itype, _jobz, _uplo, _x_n, *_x_A, *_x_B, *_x_W, _compute)
cusolverDnXsygvd_bufferSize: Function = _cusolver("cusolverDnXsygvd_bufferSize", *_Xsygvd, *_sizes, since=(12, 1))
cusolverDnXsygvd: Function = _cusolver("cusolverDnXsygvd", *_Xsygvd, *_works, _info, since=(12, 1))
_Xsygvdx_size = (*_x, _itype, _jobz, _uplo, _x_n, *_x_A, *_x_B, *_x_interval, *_x_W, _compute, *_sizes)
_Xsygvdx = (*_x, _itype, _jobz, _range, _uplo, _x_n, *_x_A, *_x_B, *_x_interval, *_x_W, _compute, *_works, _info)
cusolverDnXsygvdx_bufferSize: Function = _cusolver("cusolverDnXsygvdx_bufferSize", *_Xsygvdx_size, since=(12, 1))
cusolverDnXsygvdx: Function = _cusolver("cusolverDnXsygvdx", *_Xsygvdx, since=(12, 1))
_XsygvStridedBatched = (
    *_x,
    _itype,
    _jobz,
    _uplo,
    _x_n,
    *_x_A_strided,
    *_x_B_strided,
    *_x_W_strided,
    _compute,
    _x_batch,
)
cusolverDnXsygvStridedBatched_bufferSize: Function = _cusolver(
    "cusolverDnXsygvStridedBatched_bufferSize", *_XsygvStridedBatched, *_sizes, since=(12, 4)
)
cusolverDnXsygvStridedBatched: Function = _cusolver(
    "cusolverDnXsygvStridedBatched", *_XsygvStridedBatched, *_works, _info, since=(12, 4)
)

# Singular values: by QR (gesvd), by polar decomposition (gesvdp), the largest ones by randomization (gesvdr).
_Xgesvd = (*_x, _jobu, _jobvt, _x_m, _x_n, *_x_A, *_x_S, *_x_U, *_x_V, _compute)
cusolverDnXgesvd_bufferSize: Function = _cusolver("cusolverDnXgesvd_bufferSize", *_Xgesvd, *_sizes)
cusolverDnXgesvd: Function = _cusolver("cusolverDnXgesvd", *_Xgesvd, *_works, _info)
_Xgesvdp = (*_x, _jobz, _econ, _x_m, _x_n, *_x_A, *_x_S, *_x_U, *_x_V, _compute)
cusolverDnXgesvdp_bufferSize: Function = _cusolver("cusolverDnXgesvdp_bufferSize", *_Xgesvdp, *_sizes)
cusolverDnXgesvdp: Function = _cusolver("cusolverDnXgesvdp", *_Xgesvdp, *_works, _info, POINTER(c_double))
_Xgesvdr = (*_x, _jobu, _jobvt, _x_m, _x_n, _x_k, _x_p, _x_niters, *_x_A, *_x_S, *_x_U, *_x_V, _compute)
cusolverDnXgesvdr_bufferSize: Function = _cusolver("cusolverDnXgesvdr_bufferSize", *_Xgesvdr, *_sizes)
cusolverDnXgesvdr: Function = _cusolver("cusolverDnXgesvdr", *_Xgesvdr, *_works, _info)
