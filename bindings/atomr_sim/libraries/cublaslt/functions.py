"""The simulated cuBLASLt: handles, descriptors, heuristics, products and changes of layout.

Descriptors are in ``descriptors``; products and their computation are in ``matmul``. There is one
algorithm, which the heuristics propose in two configurations. One has the sums cut in two, with the parts in the
workspace, if that is allowed and the sums are long. The other has whole sums and no workspace. The log, the cache of
the heuristics, arrays of pointers and groups of matrices are not simulated.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from ctypes import c_uint32, c_uint64
from typing import TYPE_CHECKING, Any

import numpy as np

from atomr_cuda import cublas, cublaslt
from atomr_cuda.cublaslt import (
    cublasComputeType_t as Compute,
    cublasLtMatmulAlgoCapAttributes_t as Capability,
    cublasLtMatmulSearch_t,
    cublasLtPointerMode_t as PointerMode,
    cublasLtReductionScheme_t as Reduction,
)
from atomr_cuda.library_types import cudaDataType as Type

from ..._status import require
from ...driver.device import DRIVER_VERSION, MULTIPROCESSORS
from ..cublas.handle import VERSION, Handle, counterpart as blas
from ..dense import Counterpart
from .descriptors import (
    ALGORITHM,
    EMULATION,
    INVALID_VALUE,
    LAYOUT,
    MATMUL,
    NOT_SUPPORTED,
    PREFERENCE,
    TRANSFORM,
    Descriptor,
    Kind,
    put_attribute,
)
from .matmul import Multiplication, scaled, store, transposed
from .problem import BIAS_TYPES, ELEMENT_TYPES, Factor, Problem, check_layout, granule, placed, shape_of

if TYPE_CHECKING:
    from ...driver.process import Process
    from ...engine.memory import AddressSpace

counterpart: Counterpart = Counterpart(cublaslt.library, blas.statuses)
_entry = counterpart.entry

_NOT_INITIALIZED = counterpart.statuses.not_initialized
_WORKSPACE_ALIGNMENT = 256


# The library itself.


@_entry(cublaslt.cublasLtGetVersion)
def _get_version(process: Process) -> int:
    major, minor, patch = VERSION
    return major * 10000 + minor * 100 + patch


@_entry(cublaslt.cublasLtGetCudartVersion)
def _get_cudart_version(process: Process) -> int:
    return DRIVER_VERSION


@_entry(cublaslt.cublasLtGetProperty)
def _get_property(process: Process, part: int, result: Any) -> None:
    require(result and 0 <= part < len(VERSION), INVALID_VALUE)
    result[0] = VERSION[part]


@functools.cache
def _string(status: int, which: int) -> Any:
    """Return the name of a status, or its meaning, in memory that stays."""
    return ctypes.create_string_buffer(cublas.describe_status(status)[which].encode())


@_entry(cublaslt.cublasLtGetStatusName)
def _get_status_name(process: Process, status: int) -> int:
    return ctypes.addressof(_string(status, 0))


@_entry(cublaslt.cublasLtGetStatusString)
def _get_status_string(process: Process, status: int) -> int:
    return ctypes.addressof(_string(status, 1))


class _Light:
    """The object that cublasLtCreate makes. A handle of cuBLAS can be used everywhere but in cublasLtDestroy."""


@_entry(cublaslt.cublasLtCreate)
def _create(process: Process, result: Any) -> None:
    require(result, INVALID_VALUE)
    result[0] = counterpart.add_handle(process, _Light())


@_entry(cublaslt.cublasLtDestroy)
def _destroy(process: Process, number: int | None) -> None:
    counterpart.handle(process, number, _Light)
    counterpart.drop_handle(process, number)


def _check_handle(process: Process, number: int | None) -> None:
    require(isinstance(counterpart.handle(process, number, object), _Light | Handle), _NOT_INITIALIZED)


# Descriptors.


def _define_descriptor(kind: Kind, prefix: str, *given: str) -> None:
    """The functions of one kind of descriptor; ``given`` are the attributes with which it is made."""

    @_entry(getattr(cublaslt, f"{prefix}Create"))
    def create(process: Process, result: Any, *values: int) -> None:
        kind.create(result, **dict(zip(given, values, strict=True)))

    @_entry(getattr(cublaslt, f"{prefix}Init_internal"))
    def initialise(process: Process, address: int | None, size: int, *values: int) -> None:
        kind.initialise(address, size, **dict(zip(given, values, strict=True)))

    @_entry(getattr(cublaslt, f"{prefix}Destroy"))
    def destroy(process: Process, address: int | None) -> None:
        kind.destroy(address)

    @_entry(getattr(cublaslt, f"{prefix}SetAttribute"))
    def set_attribute(process: Process, address: int | None, number: int, value: int | None, size: int) -> None:
        kind.set(address, number, value, size)

    @_entry(getattr(cublaslt, f"{prefix}GetAttribute"))
    def get_attribute(
        process: Process, address: int | None, number: int, value: int | None, size: int, written: Any
    ) -> None:
        kind.get(address, number, value, size, written)


_define_descriptor(LAYOUT, "cublasLtMatrixLayout", "type", "rows", "cols", "ld")
_define_descriptor(MATMUL, "cublasLtMatmulDesc", "compute_type", "scale_type")
_define_descriptor(TRANSFORM, "cublasLtMatrixTransformDesc", "scale_type")
_define_descriptor(PREFERENCE, "cublasLtMatmulPreference")
_define_descriptor(EMULATION, "cublasLtEmulationDesc")


# Algorithms.

_ALGORITHM = 0
_PARTS, _CUT_FROM = 2, 32  # the number of parts of long sums, and the length from which a sum is long
_TILE = 128  # rows and columns of D that a multiprocessor computes at once

# The type of an element of A for the hardware, and the instructions that multiply it.
_INPUTS: dict[int, str] = {
    Type.CUDA_R_16F: "16F",
    Type.CUDA_R_16BF: "16BF",
    Type.CUDA_R_32F: "32F",
    Type.CUDA_C_32F: "32F",
    Type.CUDA_R_64F: "64F",
    Type.CUDA_C_64F: "64F",
    Type.CUDA_R_8I: "8I",
    Type.CUDA_R_8F_E4M3: "8F_E4M3",
    Type.CUDA_R_8F_E5M2: "8F_E5M2",
}
_FAST_INPUTS: dict[int, str] = {
    Compute.CUBLAS_COMPUTE_32F_FAST_16F: "16F",
    Compute.CUBLAS_COMPUTE_32F_FAST_16BF: "16BF",
    Compute.CUBLAS_COMPUTE_32F_FAST_TF32: "TF32",
    Compute.CUBLAS_COMPUTE_32F_EMULATED_16BFX9: "16BF",
}
_INSTRUCTIONS = {"32F": "FMA", "64F": "DMMA", "8I": "IMMA"}


def _numerical_flags(types: tuple[int, ...]) -> int:
    """Return the instruction, the accumulator and the type of its inputs, on which the numerical result depends."""
    arithmetic, _, a, *_ = types
    accumulator = Compute(arithmetic).name.split("_")[2]
    inputs = _FAST_INPUTS.get(arithmetic, _INPUTS[a])
    parts = _INSTRUCTIONS.get(inputs, "HMMA"), f"ACCUMULATOR_{accumulator}", f"INPUT_{inputs}"
    return sum(int(getattr(cublaslt, f"CUBLASLT_NUMERICAL_IMPL_FLAGS_{part}")) for part in parts)


def _make_algorithm(address: int | None, types: tuple[int, ...], parts: int = 1) -> None:
    """Write the algorithm, which cuts sums into this number of parts."""
    scheme = Reduction.CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE if parts > 1 else 0
    room = ctypes.sizeof(cublaslt.cublasLtMatmulAlgo_t)
    beside = {"_alignment": granule(types), "_numerical_flags": _numerical_flags(types)}
    ALGORITHM.initialise(address, room, splitk_num=parts, reduction_scheme=scheme, **beside)


def _parts_of(problem: Problem, algorithm: int | None) -> int:
    """Return the number of parts into which an algorithm cuts the sums; refuse an algorithm that does not fit the
    problem."""
    configured = ALGORITHM.read(algorithm)
    parts = int(configured.splitk_num)
    require(configured.id == _ALGORITHM and 1 <= parts <= problem.shape[2], INVALID_VALUE)
    require(configured._numerical_flags == _numerical_flags(problem.types), INVALID_VALUE)
    scheme = Reduction.CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
    require(parts == 1 or configured.reduction_scheme == scheme, INVALID_VALUE)
    return parts


def _report(problem: Problem, parts: int, result: Any) -> None:
    result.workspaceSize = problem.workspace(parts)
    result.state = 0
    result.wavesCount = _waves(problem, parts)


def _waves(problem: Problem, parts: int) -> float:
    rows, cols, _ = problem.shape
    tiles = math.ceil(rows / _TILE) * math.ceil(cols / _TILE) * problem.d.batch_count * parts
    return tiles / MULTIPROCESSORS


def _proposals(problem: Problem, wanted: Descriptor) -> list[int]:
    """Return the numbers of parts that a preference allows, the best first."""
    require(wanted.search_mode == cublasLtMatmulSearch_t.CUBLASLT_SEARCH_BEST_FIT, NOT_SUPPORTED)
    for name, layout in zip("abcd", problem.layouts, strict=True):
        aligned = getattr(wanted, f"min_alignment_{name}_bytes")
        require(aligned >= max(problem.granule, ELEMENT_TYPES[layout.type].size), NOT_SUPPORTED)
    require(_numerical_flags(problem.types) & ~wanted.impl_mask == 0, NOT_SUPPORTED)
    cuts = wanted.reduction_scheme_mask & Reduction.CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
    long = cuts and problem.shape[2] >= _CUT_FROM
    return [
        parts
        for parts in ((_PARTS, 1) if long else (1,))
        if problem.workspace(parts) <= wanted.max_workspace_bytes
        and (not wanted.max_waves_count or _waves(problem, parts) <= wanted.max_waves_count)
    ]


@_entry(cublaslt.cublasLtMatmulAlgoGetHeuristic)
def _get_heuristic(process: Process, handle: int | None, *arguments: Any) -> None:
    *descriptors, preference, room, results, count = arguments
    _check_handle(process, handle)
    require(room > 0 and results and count, INVALID_VALUE)
    count[0] = 0
    problem = Problem.read(*descriptors)
    proposals = _proposals(problem, PREFERENCE.read(preference))[:room]
    require(proposals, NOT_SUPPORTED)
    for number, parts in enumerate(proposals):
        _make_algorithm(ctypes.addressof(results[number].algo), problem.types, parts)
        _report(problem, parts, results[number])
    count[0] = len(proposals)


@_entry(cublaslt.cublasLtMatmulAlgoCheck)
def _check_algorithm(process: Process, handle: int | None, *arguments: Any) -> None:
    *descriptors, algorithm, result = arguments
    _check_handle(process, handle)
    require(algorithm and result, INVALID_VALUE)
    problem = Problem.read(*descriptors)
    _report(problem, _parts_of(problem, ctypes.addressof(algorithm[0])), result[0])


@_entry(cublaslt.cublasLtMatmulAlgoGetIds)
def _get_ids(process: Process, handle: int | None, *arguments: Any) -> None:
    *types, room, numbers, count = arguments
    _check_handle(process, handle)
    require(room > 0 and numbers and count, INVALID_VALUE)
    count[0] = int(tuple(types) in BIAS_TYPES)
    if count[0]:
        numbers[0] = _ALGORITHM


@_entry(cublaslt.cublasLtMatmulAlgoInit)
def _init_algorithm(process: Process, handle: int | None, *arguments: Any) -> None:
    *types, number, algorithm = arguments
    _check_handle(process, handle)
    require(algorithm and number == _ALGORITHM, INVALID_VALUE)
    require(tuple(types) in BIAS_TYPES, NOT_SUPPORTED)
    _make_algorithm(ctypes.addressof(algorithm[0]), tuple(types))


@_entry(cublaslt.cublasLtMatmulAlgoConfigSetAttribute)
def _set_configuration(process: Process, algorithm: int | None, number: int, value: int | None, size: int) -> None:
    ALGORITHM.set(algorithm, number, value, size)


@_entry(cublaslt.cublasLtMatmulAlgoConfigGetAttribute)
def _get_configuration(
    process: Process, algorithm: int | None, number: int, value: int | None, size: int, written: Any
) -> None:
    ALGORITHM.get(algorithm, number, value, size, written)


_EPILOGUES = functools.reduce(int.__or__, (int(each) for each in cublaslt.cublasLtEpilogue_t))
_ALIGNMENTS = tuple(Capability[f"CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_{name}_BYTES"] for name in "ABCD")

# Attributes that are not named here are 0: the algorithm does not support them.
_CAPABILITIES: dict[int, int] = {
    Capability.CUBLASLT_ALGO_CAP_SPLITK_SUPPORT: 1,
    Capability.CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK: Reduction.CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
    Capability.CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT: 1,
    Capability.CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT: 1,
    Capability.CUBLASLT_ALGO_CAP_POINTER_MODE_MASK: sum(1 << mode for mode in PointerMode),
    Capability.CUBLASLT_ALGO_CAP_EPILOGUE_MASK: _EPILOGUES,
    Capability.CUBLASLT_ALGO_CAP_FLOATING_POINT_EMULATION_SUPPORT: 1,
}


@_entry(cublaslt.cublasLtMatmulAlgoCapGetAttribute)
def _get_capability(
    process: Process, algorithm: int | None, number: int, value: int | None, size: int, written: Any
) -> None:
    configured = ALGORITHM.read(algorithm)
    require(number in set(Capability), INVALID_VALUE)
    if number == Capability.CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS:
        answer: Any = c_uint64(configured._numerical_flags)
    else:
        answer = c_uint32(configured._alignment if number in _ALIGNMENTS else _CAPABILITIES.get(number, 0))
    put_attribute(bytes(answer), value, size, written)


# The work itself.


@_entry(cublaslt.cublasLtMatmul)
def _matmul(
    process: Process,
    handle: int | None,
    product: int | None,
    alpha: int | None,
    a: int | None,
    a_layout: int | None,
    b: int | None,
    b_layout: int | None,
    beta: int | None,
    c: int | None,
    c_layout: int | None,
    d: int | None,
    d_layout: int | None,
    algorithm: int | None,
    workspace: int | None,
    size: int,
    stream: int | None,
) -> None:
    _check_handle(process, handle)
    problem = Problem.read(product, a_layout, b_layout, c_layout, d_layout)
    problem.check_pointers(a, b, c, d)
    parts = _parts_of(problem, algorithm) if algorithm else 1
    needed = problem.workspace(parts)
    require((workspace or 0) % _WORKSPACE_ALIGNMENT == 0, INVALID_VALUE)
    require(size >= needed and (workspace or not needed), INVALID_VALUE)
    factors = problem.factors(alpha, beta)
    require(c or factors[1].is_zero, INVALID_VALUE)
    call = Multiplication(problem, a or 0, b or 0, c or 0, d or 0, *factors, parts, workspace or 0)
    space = process.space
    counterpart.submit(process, stream, lambda: call.run(space))


@_entry(cublaslt.cublasLtMatrixTransform)
def _matrix_transform(
    process: Process,
    handle: int | None,
    transform: int | None,
    alpha: int | None,
    a: int | None,
    a_layout: int | None,
    beta: int | None,
    b: int | None,
    b_layout: int | None,
    c: int | None,
    c_layout: int | None,
    stream: int | None,
) -> None:
    _check_handle(process, handle)
    wanted, result = TRANSFORM.read(transform), LAYOUT.read(c_layout)
    require(c, INVALID_VALUE)
    _check_result(wanted, result)
    terms = [
        term
        for term in (
            _term(wanted, wanted.transa, alpha, a, a_layout, result),
            _term(wanted, wanted.transb, beta, b, b_layout, result),
        )
        if term is not None
    ]
    to, number = placed(result, c), ELEMENT_TYPES[wanted.scale_type].number
    space = process.space

    def work() -> None:
        total = sum((term(space) for term in terms), np.zeros(to.shape, number))
        store(to, space, total)

    counterpart.submit(process, stream, work)


# The types of a matrix with which a change of layout computes, by the type of its scale.
_TRANSFORMED: dict[int, tuple[int, ...]] = {
    Type.CUDA_R_32F: (
        Type.CUDA_R_8I,
        Type.CUDA_R_32I,
        Type.CUDA_R_16F,
        Type.CUDA_R_16BF,
        Type.CUDA_R_32F,
    ),
    Type.CUDA_R_64F: (Type.CUDA_R_64F,),
    Type.CUDA_R_32I: (Type.CUDA_R_8I, Type.CUDA_R_32I),
    Type.CUDA_C_32F: (Type.CUDA_C_32F,),
    Type.CUDA_C_64F: (Type.CUDA_C_64F,),
}


def _check_result(wanted: Descriptor, result: Descriptor) -> None:
    known = PointerMode.CUBLASLT_POINTER_MODE_HOST, PointerMode.CUBLASLT_POINTER_MODE_DEVICE
    require(wanted.pointer_mode in known, NOT_SUPPORTED)
    require(result.type in _TRANSFORMED.get(wanted.scale_type, ()), NOT_SUPPORTED)
    check_layout(result)


def _term(
    wanted: Descriptor,
    operation: int,
    factor: int | None,
    matrix: int | None,
    layout_at: int | None,
    result: Descriptor,
) -> Callable[[AddressSpace], Any] | None:
    """Return a matrix times its factor, or None if there is no matrix: then its factor must be 0 or missing."""
    element = ELEMENT_TYPES[wanted.scale_type]
    on_host = wanted.pointer_mode == PointerMode.CUBLASLT_POINTER_MODE_HOST
    scale = (Factor.on_host if on_host else Factor.on_device)(element, factor) if factor else Factor()
    if not matrix:
        require(scale.is_zero, INVALID_VALUE)
        return None
    require(factor, INVALID_VALUE)
    layout = LAYOUT.read(layout_at)
    check_layout(layout)
    require(layout.type in _TRANSFORMED[wanted.scale_type], NOT_SUPPORTED)
    require(shape_of(operation, layout) == (result.rows, result.cols), INVALID_VALUE)
    require(layout.batch_count == result.batch_count, INVALID_VALUE)
    operand = placed(layout, matrix)

    def value(space: AddressSpace) -> Any:
        return scaled(scale.read(space), transposed(operation, operand.read(space)).astype(element.number))

    return value
