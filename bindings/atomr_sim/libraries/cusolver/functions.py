"""cuSOLVER's dense functions for the simulated GPU: handles, options, and which words each function takes.

What a function computes is in ``operations``, what its arguments mean in ``call``. The library says that
it is 12.0; a function that came later is missing from it, and so is every function that is in no table of this file.

It holds the library's contracts rather than its numbers: which triangle is read, what is overwritten, what an info
says, and that a workspace has the size which was asked for. A matrix that a function uses up is left as NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from atomr_cuda import cusolver
from atomr_cuda.cusolver import (
    cusolverAlgMode_t,
    cusolverDeterministicMode_t,
    cusolverDnFunction_t,
    cusolverMathMode_t,
    cusolverStatus_t,
)
from atomr_cuda.library_types import cudaEmulationStrategy, libraryPropertyType

from ..dense import Counterpart, Statuses
from .call import INVALID_VALUE, LETTERS, Call, GesvdjInfo, Jacobi, Params, SyevjInfo, spelled
from .operations import OPERATIONS

if TYPE_CHECKING:
    from atomr_cuda._library import Symbol

    from ...driver.process import Process

VERSION = (12, 0, 4)

counterpart: Counterpart = Counterpart(
    cusolver.library,
    Statuses(
        not_initialized=cusolverStatus_t.CUSOLVER_STATUS_NOT_INITIALIZED,
        invalid_value=INVALID_VALUE,
        execution_failed=cusolverStatus_t.CUSOLVER_STATUS_EXECUTION_FAILED,
        internal_error=cusolverStatus_t.CUSOLVER_STATUS_INTERNAL_ERROR,
        not_supported=cusolverStatus_t.CUSOLVER_STATUS_NOT_SUPPORTED,
    ),
)
_entry, _require = counterpart.entry, counterpart.require


# The library itself.


@_entry(cusolver.cusolverGetVersion)
def _get_version(process: Process, version: Any) -> None:
    major, minor, patch = VERSION
    counterpart.give(version, major * 1000 + minor * 100 + patch)


@_entry(cusolver.cusolverGetProperty)
def _get_property(process: Process, part: int, value: Any) -> None:
    _require(part in tuple(libraryPropertyType))
    counterpart.give(value, VERSION[part])


# Handles, and the objects that hold options.


class Handle:
    """A handle: the stream that it computes on, and options, none of which changes what the simulator computes."""

    def __init__(self) -> None:
        self.stream: int | None = None
        self.deterministic_mode: int = cusolverDeterministicMode_t.CUSOLVER_DETERMINISTIC_RESULTS
        self.math_mode: int = cusolverMathMode_t.CUSOLVER_DEFAULT_MATH
        self.emulation_strategy: int = cudaEmulationStrategy.CUDA_EMULATION_STRATEGY_DEFAULT


def _handle(process: Process, number: int | None) -> Handle:
    return counterpart.handle(process, number, Handle)


@_entry(cusolver.cusolverDnCreate)
def _create(process: Process, result: Any) -> None:
    _require(result)
    counterpart.give(result, counterpart.add_handle(process, Handle()))


@_entry(cusolver.cusolverDnDestroy)
def _destroy(process: Process, number: int | None) -> None:
    _handle(process, number)
    counterpart.drop_handle(process, number)


def _define_property(name: str, attribute: str, values: type[IntEnum] | None = None) -> None:
    """The functions that set and get something of a handle, which may be one of ``values``."""

    @_entry(cusolver.library.functions[f"cusolverDnSet{name}"])
    def assign(process: Process, number: int | None, value: Any) -> None:
        handle = _handle(process, number)
        _require(values is None or value in tuple(values))
        setattr(handle, attribute, value)

    @_entry(cusolver.library.functions[f"cusolverDnGet{name}"])
    def tell(process: Process, number: int | None, value: Any) -> None:
        counterpart.give(value, getattr(_handle(process, number), attribute))


_define_property("Stream", "stream")
_define_property("DeterministicMode", "deterministic_mode", cusolverDeterministicMode_t)
_define_property("MathMode", "math_mode", cusolverMathMode_t)
_define_property("EmulationStrategy", "emulation_strategy", cudaEmulationStrategy)


def _define_options(kind: type[Params | Jacobi], name: str) -> None:
    """The functions that make and end an object with options. It needs no context, and belongs to none."""

    @_entry(cusolver.library.functions[f"cusolverDnCreate{name}"])
    def create(process: Process, result: Any) -> None:
        counterpart.give(result, process.handles.add(kind()))

    @_entry(cusolver.library.functions[f"cusolverDnDestroy{name}"])
    def destroy(process: Process, number: int | None) -> None:
        process.handles.get(number, kind, INVALID_VALUE)
        process.handles.pop(number)


_define_options(Params, "Params")
_define_options(SyevjInfo, "SyevjInfo")
_define_options(GesvdjInfo, "GesvdjInfo")


@_entry(cusolver.cusolverDnSetAdvOptions)
def _set_advanced_options(process: Process, number: int | None, function: int, algorithm: int) -> None:
    process.handles.get(number, Params, INVALID_VALUE)
    _require(function in tuple(cusolverDnFunction_t) and algorithm in tuple(cusolverAlgMode_t))


def _define_jacobi(kind: type[Jacobi], prefix: str) -> None:
    """The functions that set the options of a Jacobi method, and that tell of its last run."""
    functions = cusolver.library.functions

    def setter(name: str, attribute: str, lowest: float) -> None:
        @_entry(functions[prefix + name])
        def assign(process: Process, number: int | None, value: Any) -> None:
            options = process.handles.get(number, kind, INVALID_VALUE)
            _require(value >= lowest)
            setattr(options, attribute, value)

    def getter(name: str, attribute: str) -> None:
        @_entry(functions[prefix + name])
        def tell(process: Process, number: int | None, info: int | None, value: Any) -> None:
            handle, run = _handle(process, number), process.handles.get(info, kind, INVALID_VALUE)
            _require(not process.stream(handle.stream).synchronize(), counterpart.statuses.execution_failed)
            _require(not run.batched, counterpart.statuses.not_supported)
            counterpart.give(value, getattr(run, attribute))

    setter("SetTolerance", "tolerance", 0.0)
    setter("SetMaxSweeps", "max_sweeps", 1)
    setter("SetSortEig", "sort", 0)
    getter("GetResidual", "residual")
    getter("GetSweeps", "sweeps")


_define_jacobi(SyevjInfo, "cusolverDnXsyevj")
_define_jacobi(GesvdjInfo, "cusolverDnXgesvdj")


# The functions that compute.


@dataclass(frozen=True)
class Form:
    """A function's name without its prefix, its words after the handle, and those of the query for its workspace.

    ``operation`` is the operation where that is not the name, ``letters`` stand before the name.
    """

    name: str
    words: str
    query: str = ""
    operation: str = ""
    letters: tuple[str, ...] = tuple(LETTERS)

    def functions(self) -> Iterator[tuple[str, int]]:
        """Symbols, and the data type of their matrices."""
        for letter in self.letters:
            yield f"cusolverDn{letter}{spelled(self.name, letter[:1] in ('C', 'Z'))}", LETTERS.get(letter[:1], -1)


_WORK = "work lwork info"
_SYMM = "jobz uplo n A lda W"
_SYGV = "itype jobz uplo n A lda B ldb W"
_PART = "vl vu il iu meig W"
_SVD = "m n A lda S U ldu V ldv"
_SVDA = "m n A lda strideA S strideS U ldu strideU V ldv strideV"

_ONE_TYPE = (
    Form("potrf", f"uplo n A lda {_WORK}", "uplo n A lda lwork"),
    Form("potri", f"uplo n A lda {_WORK}", "uplo n A lda lwork"),
    Form("potrs", "uplo n nrhs A lda B ldb info"),
    Form("potrfBatched", "uplo n *A lda infos batch"),
    Form("potrsBatched", "uplo n nrhs *A lda *B ldb info batch"),
    Form("getrf", "m n A lda work ipiv info", "m n A lda lwork"),
    Form("getrs", "trans n nrhs A lda ipiv B ldb info"),
    Form("geqrf", f"m n A lda tau {_WORK}", "m n A lda lwork"),
    Form("orgqr", f"m n k A lda tau {_WORK}", "m n k A lda tau lwork"),
    Form("ormqr", f"side trans m n k A lda tau C ldc {_WORK}", "side trans m n k A lda tau C ldc lwork"),
    Form("sytrf", f"uplo n A lda ipiv {_WORK}", "n A lda lwork"),
    Form("sytri", f"uplo n A lda ipiv {_WORK}", "uplo n A lda ipiv lwork"),
    Form("gesvd", "jobu jobvt m n A lda S U ldu VT ldvt work lwork rwork info", "m n lwork"),
    Form("gesvdj", f"jobz econ {_SVD} {_WORK} gesvdj", f"jobz econ {_SVD} lwork gesvdj"),
    Form("gesvdjBatched", f"jobz {_SVD} work lwork infos gesvdj batch", f"jobz {_SVD} lwork gesvdj batch"),
    Form(
        "gesvdaStridedBatched",
        f"jobz rank {_SVDA} work lwork infos residuals batch",
        f"jobz rank {_SVDA} lwork batch",
        operation="gesvda",
    ),
    Form("syevd", f"{_SYMM} {_WORK}", f"{_SYMM} lwork"),
    Form("syevj", f"{_SYMM} {_WORK} syevj", f"{_SYMM} lwork syevj"),
    Form("syevjBatched", f"{_SYMM} work lwork infos syevj batch", f"{_SYMM} lwork syevj batch"),
    Form("syevdx", f"jobz range uplo n A lda {_PART} {_WORK}", f"jobz range uplo n A lda {_PART} lwork"),
    Form("sygvd", f"{_SYGV} {_WORK}", f"{_SYGV} lwork"),
    Form("sygvj", f"{_SYGV} {_WORK} syevj", f"{_SYGV} lwork syevj"),
    Form(
        "sygvdx",
        f"itype jobz range uplo n A lda B ldb {_PART} {_WORK}",
        f"itype jobz range uplo n A lda B ldb {_PART} lwork",
    ),
)

# The second letter of these is the lowest precision that the library may use.
_REFINED = ("SS", "SX", "SB", "SH", "DD", "DS", "DX", "DB", "DH")
_REFINED_COMPLEX = ("CC", "CY", "CE", "CK", "ZZ", "ZC", "ZY", "ZE", "ZK")
_REFINEMENT = (
    Form(
        "gesv",
        "n nrhs A lda ipiv B ldb X ldx work lbytes niter info",
        "n nrhs A lda ipiv B ldb X ldx work lbytes",
        letters=_REFINED + _REFINED_COMPLEX,
    ),
    Form(
        "gels",
        "m n nrhs A lda B ldb X ldx work lbytes niter info",
        "m n nrhs A lda B ldb X ldx work lbytes",
        letters=_REFINED + _REFINED_COMPLEX,
    ),
)

_WORKS = "work dbytes hwork hbytes"
_BYTES = "dbytes hbytes"
_A, _B, _U, _V = "typeA A lda", "typeB B ldb", "typeU U ldu", "typeV V ldv"
_S, _W, _VT = "typeS S", "typeW W", "typeVT VT ldvt"
_XPART = f"vl vu il iu meig {_W}"


def _wide(name: str, words: str, *, behind: str = "info") -> Form:
    """A function with 64-bit sizes and two workspaces. ``behind`` are the words behind those, which its query lacks."""
    batch = " batch" if "batch" in behind else ""
    return Form(f"X{name}", f"{words} {_WORKS} {behind}", f"{words} {_BYTES}{batch}", name, ("",))


_ANY_TYPE = (
    _wide("potrf", f"params uplo n {_A} compute"),
    Form("Xpotrs", f"params uplo n nrhs {_A} {_B} info", operation="potrs", letters=("",)),
    Form(
        "Xgetrf",
        f"params m n {_A} ipiv compute {_WORKS} info",
        f"params m n {_A} compute {_BYTES}",
        operation="getrf",
        letters=("",),
    ),
    Form("Xgetrs", f"params trans n nrhs {_A} ipiv {_B} info", operation="getrs", letters=("",)),
    _wide("geqrf", f"params m n {_A} typetau tau compute"),
    _wide("sytrs", f"uplo n nrhs {_A} ipiv {_B}"),
    _wide("trtri", f"uplo diag n {_A}"),
    _wide("syevd", f"params jobz uplo n {_A} {_W} compute"),
    _wide("syevdx", f"params jobz range uplo n {_A} {_XPART} compute"),
    _wide("syevBatched", f"params jobz uplo n {_A} {_W} compute", behind="infos batch"),
    _wide("gesvd", f"params jobu jobvt m n {_A} {_S} {_U} {_VT} compute"),
    _wide("gesvdp", f"params jobz econ m n {_A} {_S} {_U} {_V} compute", behind="info error"),
    _wide("gesvdr", f"params jobu jobv m n k p niters {_A} {_S} {_U} {_V} compute"),
)


def _define(form: Form) -> None:
    """Put the functions of a form, and the queries for their workspaces, into the table."""
    functions = cusolver.library.functions
    for symbol, data_type in form.functions():
        _compute(form, functions[symbol], data_type)
        if form.query:
            _tell_sizes(form, functions[f"{symbol}_bufferSize"], data_type)


def _reader(function: Symbol, words: str, data_type: int) -> Callable[[Process, tuple[Any, ...]], Call]:
    """Return a function that makes a ``Call`` from the arguments of a function."""
    names = words.replace("*", "").split()
    pointers = frozenset(word[1:] for word in words.split() if word.startswith("*"))
    if len(names) + 1 != len(function.argtypes):
        raise ValueError(f"{function.symbol} takes {len(function.argtypes) - 1} arguments, not {' '.join(names)}")

    def read(process: Process, arguments: tuple[Any, ...]) -> Call:
        given = dict(zip(names, arguments, strict=True))
        return Call(counterpart, process, given, data_type, pointers)

    return read


def _compute(form: Form, function: Symbol, data_type: int) -> None:
    operation, read = OPERATIONS[form.operation or form.name], _reader(function, form.words, data_type)

    @_entry(function)
    def compute(process: Process, number: int | None, *arguments: Any) -> None:
        handle, call = _handle(process, number), read(process, arguments)
        call.submit(handle.stream, operation.prepare(call), call.sizes(operation.squares))


def _tell_sizes(form: Form, function: Symbol, data_type: int) -> None:
    operation, read = OPERATIONS[form.operation or form.name], _reader(function, form.query, data_type)

    @_entry(function)
    def tell(process: Process, number: int | None, *arguments: Any) -> None:
        _handle(process, number)
        call = read(process, arguments)
        operation.prepare(call)
        for word, size in call.sizes(operation.squares).items():
            if word in call.given:
                _require(word != "lwork" or size < 1 << 31)
                counterpart.give(call.given[word], size)


for _form in (*_ONE_TYPE, *_REFINEMENT, *_ANY_TYPE):
    _define(_form)
