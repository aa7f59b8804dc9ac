"""The random numbers of CUDA (cuRAND) as a ctypes table.

Names and numbers are those of ``curand.h`` 10.4, of CUDA 13. CUDA 12 has cuRAND 10.3 from 12.0 on, with all functions
that are here. What is left out: ``curandGenerateBinomial`` and ``curandGenerateBinomialMethod``, which the header
declares and no library exports, ``curandGeneratePoissonMethod``, which the header calls internal, and what is compiled
into kernels (``curand_kernel.h``).

A generator is made for a kind of numbers, and is used from one thread at a time. The functions ``curandGenerate`` and
their like draw the next numbers. Those of ``curandCreateGenerator`` write device memory, in the order of their stream;
those of ``curandCreateGeneratorHost`` write host memory, on the calling thread.

This file declares, and does nothing else: no library is loaded before the first call.
"""

from __future__ import annotations

from ctypes import POINTER, Array, c_double, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from enum import IntEnum

from ._library import Function, Library

curandGenerator_t = c_void_p
curandDiscreteDistribution_t = c_void_p
curandDirectionVectors32_t: type[Array[c_uint]] = c_uint * 32
curandDirectionVectors64_t: type[Array[c_ulonglong]] = c_ulonglong * 64
cudaStream_t = c_void_p  # a CUstream of the driver


class curandStatus_t(IntEnum):
    """The status that a cuRAND function returns; 0 is success."""

    CURAND_STATUS_SUCCESS = 0
    CURAND_STATUS_VERSION_MISMATCH = 100
    CURAND_STATUS_NOT_INITIALIZED = 101
    CURAND_STATUS_ALLOCATION_FAILED = 102
    CURAND_STATUS_TYPE_ERROR = 103
    CURAND_STATUS_OUT_OF_RANGE = 104
    CURAND_STATUS_LENGTH_NOT_MULTIPLE = 105
    CURAND_STATUS_DOUBLE_PRECISION_REQUIRED = 106
    CURAND_STATUS_LAUNCH_FAILURE = 201
    CURAND_STATUS_PREEXISTING_FAILURE = 202
    CURAND_STATUS_INITIALIZATION_FAILED = 203
    CURAND_STATUS_ARCH_MISMATCH = 204
    CURAND_STATUS_INTERNAL_ERROR = 999


class curandRngType_t(IntEnum):
    """The kinds of generators. The numbers of a pseudo kind look random; those of a quasi kind fill a space evenly."""

    CURAND_RNG_TEST = 0
    CURAND_RNG_PSEUDO_DEFAULT = 100
    CURAND_RNG_PSEUDO_XORWOW = 101
    CURAND_RNG_PSEUDO_MRG32K3A = 121
    CURAND_RNG_PSEUDO_MTGP32 = 141
    CURAND_RNG_PSEUDO_MT19937 = 142
    CURAND_RNG_PSEUDO_PHILOX4_32_10 = 161
    CURAND_RNG_QUASI_DEFAULT = 200
    CURAND_RNG_QUASI_SOBOL32 = 201
    CURAND_RNG_QUASI_SCRAMBLED_SOBOL32 = 202
    CURAND_RNG_QUASI_SOBOL64 = 203
    CURAND_RNG_QUASI_SCRAMBLED_SOBOL64 = 204


class curandOrdering_t(IntEnum):
    """How the numbers of a generator's parallel sequences are interleaved in its results."""

    CURAND_ORDERING_PSEUDO_BEST = 100
    CURAND_ORDERING_PSEUDO_DEFAULT = 101
    CURAND_ORDERING_PSEUDO_SEEDED = 102
    CURAND_ORDERING_PSEUDO_LEGACY = 103
    CURAND_ORDERING_PSEUDO_DYNAMIC = 104
    CURAND_ORDERING_QUASI_DEFAULT = 201


class curandDirectionVectorSet_t(IntEnum):
    """The tables of direction vectors for the four Sobol kinds, of 20,000 dimensions each."""

    CURAND_DIRECTION_VECTORS_32_JOEKUO6 = 101
    CURAND_SCRAMBLED_DIRECTION_VECTORS_32_JOEKUO6 = 102
    CURAND_DIRECTION_VECTORS_64_JOEKUO6 = 103
    CURAND_SCRAMBLED_DIRECTION_VECTORS_64_JOEKUO6 = 104


_TEXTS = {
    curandStatus_t.CURAND_STATUS_SUCCESS: "no error",
    curandStatus_t.CURAND_STATUS_VERSION_MISMATCH: "the header and the library are of different versions",
    curandStatus_t.CURAND_STATUS_NOT_INITIALIZED: "there is no such generator, or CUDA cannot be used",
    curandStatus_t.CURAND_STATUS_ALLOCATION_FAILED: "the library got no memory, of the host or of the device",
    curandStatus_t.CURAND_STATUS_TYPE_ERROR: "a generator of this kind does not have this function or value",
    curandStatus_t.CURAND_STATUS_OUT_OF_RANGE: "an argument is out of its range",
    curandStatus_t.CURAND_STATUS_LENGTH_NOT_MULTIPLE: (
        "the count is not a multiple of the dimensions, or not even where normal numbers come in pairs"
    ),
    curandStatus_t.CURAND_STATUS_DOUBLE_PRECISION_REQUIRED: "the GPU does not have the double precision of MRG32k3a",
    curandStatus_t.CURAND_STATUS_LAUNCH_FAILURE: "a kernel of the library could not be launched",
    curandStatus_t.CURAND_STATUS_PREEXISTING_FAILURE: "something had failed on the GPU before the call",
    curandStatus_t.CURAND_STATUS_INITIALIZATION_FAILED: "CUDA could not be initialized",
    curandStatus_t.CURAND_STATUS_ARCH_MISMATCH: "the GPU does not support what was asked for",
    curandStatus_t.CURAND_STATUS_INTERNAL_ERROR: "an internal error of the library",
}


def describe_status(status: int) -> tuple[str, str]:
    """Return the name of a status and its meaning; the library has no function for either."""
    if status not in _TEXTS:
        return "CURAND_STATUS_UNKNOWN", "unknown status"
    return curandStatus_t(status).name, _TEXTS[curandStatus_t(status)]


_curand = Library(
    "curand",
    pathfinder_name="curand",
    sonames=("libcurand.so.10", "libcurand.so"),
    extra="cu13",
    describe=describe_status,
)
library: Library = _curand

# The library itself.
curandGetVersion: Function = _curand("curandGetVersion", POINTER(c_int))
curandGetProperty: Function = _curand("curandGetProperty", c_int, POINTER(c_int))

# A generator, and what is set before its first numbers. The kind is a curandRngType_t.
curandCreateGenerator: Function = _curand("curandCreateGenerator", POINTER(curandGenerator_t), c_int)
curandCreateGeneratorHost: Function = _curand("curandCreateGeneratorHost", POINTER(curandGenerator_t), c_int)
curandDestroyGenerator: Function = _curand("curandDestroyGenerator", curandGenerator_t)
curandSetStream: Function = _curand("curandSetStream", curandGenerator_t, cudaStream_t)
curandSetPseudoRandomGeneratorSeed: Function = _curand(
    "curandSetPseudoRandomGeneratorSeed", curandGenerator_t, c_ulonglong
)
curandSetGeneratorOffset: Function = _curand("curandSetGeneratorOffset", curandGenerator_t, c_ulonglong)
curandSetGeneratorOrdering: Function = _curand("curandSetGeneratorOrdering", curandGenerator_t, c_int)
curandSetQuasiRandomGeneratorDimensions: Function = _curand(
    "curandSetQuasiRandomGeneratorDimensions", curandGenerator_t, c_uint
)
curandGenerateSeeds: Function = _curand("curandGenerateSeeds", curandGenerator_t)

# The next numbers: where they go, and how many; then the mean and the standard deviation, of the logarithm for the
# lognormal ones, or the lambda of Poisson's.
_numbers = (curandGenerator_t, c_void_p, c_size_t)
_normal32 = (*_numbers, c_float, c_float)
_normal64 = (*_numbers, c_double, c_double)

curandGenerate: Function = _curand("curandGenerate", *_numbers)
curandGenerateLongLong: Function = _curand("curandGenerateLongLong", *_numbers)
curandGenerateUniform: Function = _curand("curandGenerateUniform", *_numbers)
curandGenerateUniformDouble: Function = _curand("curandGenerateUniformDouble", *_numbers)
curandGenerateNormal: Function = _curand("curandGenerateNormal", *_normal32)
curandGenerateNormalDouble: Function = _curand("curandGenerateNormalDouble", *_normal64)
curandGenerateLogNormal: Function = _curand("curandGenerateLogNormal", *_normal32)
curandGenerateLogNormalDouble: Function = _curand("curandGenerateLogNormalDouble", *_normal64)
curandGeneratePoisson: Function = _curand("curandGeneratePoisson", *_numbers, c_double)

# Tables for kernels that draw numbers of their own. Those of the Sobol kinds are in host memory and are the library's.
curandCreatePoissonDistribution: Function = _curand(
    "curandCreatePoissonDistribution", c_double, POINTER(curandDiscreteDistribution_t)
)
curandDestroyDistribution: Function = _curand("curandDestroyDistribution", curandDiscreteDistribution_t)
curandGetDirectionVectors32: Function = _curand(
    "curandGetDirectionVectors32", POINTER(POINTER(curandDirectionVectors32_t)), c_int
)
curandGetDirectionVectors64: Function = _curand(
    "curandGetDirectionVectors64", POINTER(POINTER(curandDirectionVectors64_t)), c_int
)
curandGetScrambleConstants32: Function = _curand("curandGetScrambleConstants32", POINTER(POINTER(c_uint)))
curandGetScrambleConstants64: Function = _curand("curandGetScrambleConstants64", POINTER(POINTER(c_ulonglong)))
