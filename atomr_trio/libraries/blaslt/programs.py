"""What the plans of cuBLASLt do: programs for the engine of plans, from the problem of a product.

A plan of a product consists of cuBLASLt's descriptors, and of the algorithm that its heuristics propose for them. The
addresses of a bias and its like are attributes of a descriptor, and are set again where they have changed. cuBLASLt
copies what running work needs of its descriptors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from atomr_cuda.constants import cublas, cublaslt as lt, library_types

from ..._wire.programs import (
    OF_LANE,
    Address,
    Argument,
    Bytes,
    Call,
    Create,
    Destroy,
    Handle,
    Out,
    Program,
    Query,
    Ref,
    Require,
    Room,
    RoomOf,
    Scalars,
    Set,
    Slot,
    Step,
    Stream,
    Words,
)
from .records import SCALAR_BYTES, WORKSPACE_BYTES, Addresses, Layout, Problem, alignment

_POINTERS = {
    "bias": lt.CUBLASLT_MATMUL_DESC_BIAS_POINTER,
    "aux": lt.CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
    "scale_a": lt.CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
    "scale_b": lt.CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
    "scale_c": lt.CUBLASLT_MATMUL_DESC_C_SCALE_POINTER,
    "scale_d": lt.CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
    "amax": lt.CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
}
"""The attributes of ``cublasLtMatmulDescAttributes_t`` that are addresses."""
_ALIGNMENTS = (
    lt.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
    lt.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    lt.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
    lt.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
)
_BIAS_BITS = (
    lt.CUBLASLT_EPILOGUE_BIAS
    | (lt.CUBLASLT_EPILOGUE_DRELU_BGRAD & ~lt.CUBLASLT_EPILOGUE_DRELU)
    | lt.CUBLASLT_EPILOGUE_BGRADA
    | lt.CUBLASLT_EPILOGUE_BGRADB
)
_AUX_BIT = lt.CUBLASLT_EPILOGUE_RELU_AUX & ~lt.CUBLASLT_EPILOGUE_RELU
_PRODUCT, _FIRST_MATRIX, _PREFERENCE, _RESULT, _COUNT = 0, 1, 5, 6, 7
"""Slots; those of the four matrices follow each other."""
_MANY = 2**31 - 1
_ZERO = Bytes(bytes(SCALAR_BYTES))


def matmul_program(problem: Problem, addresses: Addresses) -> Program:
    """Return the program of a product; of the addresses only the alignments matter, and which are 0."""
    places = {name: place for place, name in enumerate(Addresses._fields) if getattr(addresses, name)}
    pointers = [(number, Words((Address(places[name]),))) for name, number in _POINTERS.items() if name in places]
    matrices = {
        name: (Address(places[name]) if name in places else None, Slot(_FIRST_MATRIX + at))
        for at, name in enumerate("abcd")
    }
    a, b, c, d = matrices.values()
    algorithm = (Ref(_RESULT, "algo"), RoomOf(0), Slot(_RESULT, "workspaceSize"), Stream())
    product = (Handle(), Slot(_PRODUCT), Scalars(0), *a, *b, Scalars(SCALAR_BYTES), *c, *d, *algorithm)
    return Program(
        make=(
            Create(
                "cublasLtMatmulDescCreate",
                (Out(_PRODUCT), problem.compute, problem.scale),
                "cublasLtMatmulDescDestroy",
            ),
            *_described(problem),
            *(_set_pointer(Call, number, words) for number, words in pointers),
            *_matrices(problem.layouts, problem.batch, _FIRST_MATRIX),
            *_algorithm(addresses),
        ),
        execute=(*(_set_pointer(Set, number, words) for number, words in pointers), Call("cublasLtMatmul", product)),
        addresses=len(addresses),
        scalars=2 * SCALAR_BYTES,
        texts={cublas.CUBLAS_STATUS_NOT_SUPPORTED: f"cuBLASLt has no algorithm for {_words(problem)}"},
    )


def _set_pointer(kind: type[Call | Set], number: int, words: Words) -> Call | Set:
    return kind("cublasLtMatmulDescSetAttribute", (Slot(_PRODUCT), number, words, struct.calcsize("Q")))


def _attribute(function: str, slot: int, number: int, form: str, value: int) -> Call:
    content = struct.pack(f"<{form}", value)
    return Call(function, (Slot(slot), number, Bytes(content), len(content)))


def _described(problem: Problem) -> Iterator[Step]:
    values = [
        (lt.CUBLASLT_MATMUL_DESC_TRANSA, "i", problem.operation_a),
        (lt.CUBLASLT_MATMUL_DESC_TRANSB, "i", problem.operation_b),
        (lt.CUBLASLT_MATMUL_DESC_EPILOGUE, "I", problem.epilogue),
    ]
    if problem.epilogue & _BIAS_BITS:
        values.append((lt.CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, "i", problem.bias_type))
        values.append((lt.CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, "q", problem.bias_distance))
    if problem.epilogue & _AUX_BIT:
        values.append((lt.CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, "q", problem.aux_leading))
        values.append((lt.CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, "q", problem.aux_distance))
    for number, form, value in values:
        yield _attribute("cublasLtMatmulDescSetAttribute", _PRODUCT, number, form, value)


def _matrices(layouts: tuple[Layout, ...], batch: int, first: int) -> Iterator[Step]:
    function = "cublasLtMatrixLayoutSetAttribute"
    for slot, layout in enumerate(layouts, first):
        described = (layout.type, layout.rows, layout.columns, layout.leading)
        yield Create("cublasLtMatrixLayoutCreate", (Out(slot), *described), "cublasLtMatrixLayoutDestroy")
        yield _attribute(function, slot, lt.CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, "i", batch)
        yield _attribute(function, slot, lt.CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, "q", layout.distance)


def _algorithm(addresses: Addresses) -> Iterator[Step]:
    """Yield the steps that take the best algorithm by the heuristics, and its workspace."""
    a, b, c, d, *_ = addresses
    function = "cublasLtMatmulPreferenceSetAttribute"
    yield Create("cublasLtMatmulPreferenceCreate", (Out(_PREFERENCE),), "cublasLtMatmulPreferenceDestroy")
    for number, address in zip(_ALIGNMENTS, (a, b, c or d, d), strict=True):  # a C that is not read may have none
        yield _attribute(function, _PREFERENCE, number, "I", alignment(address))
    yield _attribute(function, _PREFERENCE, lt.CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, "Q", WORKSPACE_BYTES)
    matrices = (Slot(_FIRST_MATRIX + at) for at in range(4))
    problem: tuple[Argument, ...] = (Handle(), Slot(_PRODUCT), *matrices, Slot(_PREFERENCE))
    yield Query("cublasLtMatmulAlgoGetHeuristic", (*problem, 1, Out(_RESULT), Out(_COUNT)))
    yield Destroy(_PREFERENCE)
    yield Require(Slot(_COUNT), 1, _MANY, cublas.CUBLAS_STATUS_NOT_SUPPORTED)
    yield Require(Slot(_RESULT, "state"), 0, 0, 0)
    yield Room((Slot(_RESULT, "workspaceSize"),), OF_LANE)


def transform_program(scale: int, operation: int, batch: int, layouts: tuple[Layout, Layout]) -> Program:
    """Return the program that copies matrices to others with another layout. The addresses are theirs."""
    given, wanted = Slot(1), Slot(2)
    set_operation = "cublasLtMatrixTransformDescSetAttribute"
    operands = (Scalars(0), Address(0), given, _ZERO, None, None, Address(1), wanted)
    return Program(
        make=(
            Create("cublasLtMatrixTransformDescCreate", (Out(0), scale), "cublasLtMatrixTransformDescDestroy"),
            _attribute(set_operation, 0, lt.CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA, "i", operation),
            *_matrices(layouts, batch, given.slot),
        ),
        execute=(Call("cublasLtMatrixTransform", (Handle(), Slot(0), *operands, Stream())),),
        addresses=2,
        scalars=SCALAR_BYTES,
    )


def _words(problem: Problem) -> str:
    """Return a problem in the words of the library's header."""
    operations = ("N", "T", "C")
    done = (operations[problem.operation_a], operations[problem.operation_b], "N", "N")
    matrices = (
        f"{name} {_name(vars(library_types), 'CUDA_', layout.type)} {layout.rows} x {layout.columns} {operation}"
        f" (ld {layout.leading}, stride {layout.distance})"
        for name, layout, operation in zip("ABCD", problem.layouts, done, strict=True)
    )
    return ", ".join(
        (
            _name(vars(lt), "CUBLASLT_EPILOGUE_", problem.epilogue),
            _name(vars(cublas), "CUBLAS_COMPUTE_", problem.compute),
            *matrices,
            f"batch {problem.batch}",
        )
    )


def _name(constants: dict[str, object], prefix: str, number: int) -> str:
    """Return the name of a number of an enumeration."""
    return next(name for name, value in constants.items() if name.startswith(prefix) and value == number)
