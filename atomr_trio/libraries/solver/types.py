"""The arguments of cuSOLVER, and the meaning of its ``info``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from atomr_cuda.constants import cublas
from atomr_cuda.constants.cusolver import CUSOLVER_EIG_RANGE_I

from ..._arrays.arrays import DeviceArray
from ..._calls.library_types import DATA_TYPES
from ..._calls.verbs import Answer, Argument, CallRequest
from ..._values.errors import (
    CommandFailed,
    ConvergenceError,
    DeviceError,
    InvalidArgument,
    NotFiniteError,
    NotPositiveDefiniteError,
    RequestError,
    SingularMatrixError,
)
from ..._wire.records.calls import CallTable
from ..blas.records import BLAS
from .records import FUNCTIONS, OPTIONS, SOLVER, Function, symbol
from .records_finite import INFINITY, NAN

Kind = tuple[tuple[int, ...], npt.DTypeLike]
"""The shape and dtype of a result."""
PairOut = tuple[DeviceArray | None, DeviceArray | None]
"""The `out` of two results; None for new memory."""
TripleOut = tuple[DeviceArray | None, DeviceArray | None, DeviceArray | None]

REAL: Final[Mapping[str, str]] = MappingProxyType(
    {"float32": "float32", "float64": "float64", "complex64": "float32", "complex128": "float64"}
)
"""The dtype of singular values and eigenvalues, by the name of the matrix's."""

LOWER, UPPER = cublas.CUBLAS_FILL_MODE_LOWER, cublas.CUBLAS_FILL_MODE_UPPER
"""``cublasFillMode_t``."""
LEFT, RIGHT = cublas.CUBLAS_SIDE_LEFT, cublas.CUBLAS_SIDE_RIGHT
"""``cublasSideMode_t``."""
INDEX_RANGE: Final = CUSOLVER_EIG_RANGE_I
"""``CUSOLVER_EIG_RANGE_I``."""

INFOS: Final = 1024
"""The most infos in the answer of a call; a larger stack is several calls."""
JACOBI_BATCH: Final = 32
"""The largest matrix whose singular values the library computes as one of a stack."""
FACTOR_BATCH: Final = 256
"""The largest matrices that are factored many at once: larger ones keep the GPU busy one by one."""
MAX_SWEEPS: Final = 10_000
QUICK: Final = frozenset(map("cusolverDn{}".format, ("Xgetrf", "Xgetrs", "Xpotrf", "Xpotrs")))
"""Functions that return at once: on an H200 in as long with 4 ms of work before them in the stream as with none."""
QUICK_ORDER: Final = 512
"""The largest matrices of which the thread that serves all lanes calls those: it takes 50 us at most."""

_OF_BLAS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "getrfBatched": "n A lda ipiv info batch",
        "getrsBatched": "trans n nrhs A lda ipiv B ldb refused batch",
    }
)
"""Functions of cuBLAS, with their words. ``refused`` is the number of a wrong argument, on the host."""

_LEFT_TO_WORKER: Final = frozenset({"work", "lwork", "host", "lhost", "niter", "meig", "refused", *OPTIONS})
"""Words whose value the worker sets, unless one is given."""
_SIZES: Final = frozenset({"m", "n", "k", "nrhs", "rank", "batch", "lda", "ldb", "ldc", "ldu", "ldv", "ldx"})


def function_of(name: str, letter: str) -> tuple[Function, CallTable]:
    """Return the function for the type with this letter, and the library that has it."""
    if name in _OF_BLAS:
        return Function(f"cublas{letter}{name}", tuple(_OF_BLAS[name].split()), 1), BLAS
    return FUNCTIONS[symbol(name, letter)], SOLVER


def operation_of(name: str) -> str:
    """Return LAPACK's name of a function's operation, which is the user's verb."""
    return name.removeprefix("X").removesuffix("Batched").removesuffix("Strided")


def arguments_of(function: Function, dtype: np.dtype[Any], values: Mapping[str, Argument]) -> list[Argument]:
    """Return the values of a function's words in their order. Raises `InvalidArgument` for sizes beyond 32 bits."""
    unknown = values.keys() - set(function.words)
    if unknown:
        raise ValueError(f"{function.name} has no words {sorted(unknown)}")
    if "compute" not in function.words and "typeA" not in function.words:
        for word in _SIZES & values.keys():
            if isinstance(size := values[word], int) and size >= 1 << 31:
                raise InvalidArgument(f"{function.name} takes sizes below 2**31, not {size}")
    return [values[word] if word in values else _known(word, dtype) for word in function.words]


def _known(word: str, dtype: np.dtype[Any]) -> Argument:
    """Return the value of a word that follows from the type, or that the worker sets."""
    if word == "info":
        return Answer()
    if word in ("typeS", "typeW"):
        return DATA_TYPES[REAL[dtype.name]]
    if word == "compute" or word.startswith("type"):
        return DATA_TYPES[dtype.name]
    if word in _LEFT_TO_WORKER:
        return 0
    raise ValueError(f"nothing was given for {word}")


# --- info -------------------------------------------------------------------------------------------------------------


class _Finding(NamedTuple):
    """The meaning of a positive info."""

    error: type[RequestError]
    text: str
    fields: dict[str, Any]


def _zero_pivot(info: int, _order: int) -> _Finding:
    text = f"the matrix is singular: pivot {info - 1}, counted from 0, is exactly zero"
    return _Finding(SingularMatrixError, text, {"pivot": info - 1})


def _minor(info: int, _order: int) -> _Finding:
    text = f"the matrix is not positive definite: its leading minor of order {info} is not positive"
    return _Finding(NotPositiveDefiniteError, text, {"minor": info})


def _elements_left(info: int, _order: int) -> _Finding:
    text = f"the iteration did not converge: {info} off-diagonal elements are left"
    return _Finding(ConvergenceError, text, {"unconverged": info})


def _sweeps_spent(_info: int, _order: int) -> _Finding:
    return _Finding(ConvergenceError, "the Jacobi method did not converge within its `max_sweeps`", {})


def _of_two_matrices(info: int, order: int) -> _Finding:
    if info <= order:
        return _elements_left(info, order)
    found = _minor(info - order, order)
    return found._replace(text=f"b: {found.text}")


_FINDINGS: Final[Mapping[str, Callable[[int, int], _Finding]]] = MappingProxyType(
    {
        "getrf": _zero_pivot,
        "potri": _zero_pivot,
        "gels": _zero_pivot,
        "potrf": _minor,
        "syevd": _elements_left,
        "syevdx": _elements_left,
        "gesvd": _elements_left,
        "sygvd": _of_two_matrices,
        **dict.fromkeys(("syevj", "gesvdj", "gesvda"), _sweeps_spent),
    }
)
"""The meanings of infos by the operation."""

ITERATIONS: Final = frozenset({"syevd", "syevdx", "syevj", "sygvd", "gesvd", "gesvdj", "gesvda"})
"""Operations that go on until they converge."""


def error_of(
    operation: str, info: int, order: int, *, matrix: tuple[int, ...] | None, device: int
) -> DeviceError | None:
    """Return the error that an info means for a matrix of this order; None if all is well."""
    if info == 0:
        return None
    name = f"solver.{operation}"
    if info < 0 or operation not in _FINDINGS:
        return CommandFailed(f"cuSOLVER reports info {info}", library="cusolver", device=device, operation=name)
    found = _FINDINGS[operation](info, order)
    where = "" if matrix is None else f" (matrix {matrix} of the stack)"
    fields = {"matrix": matrix, **found.fields}
    return found.error(found.text + where, device=device, operation=name, **fields)


# --- NaN and infinities -----------------------------------------------------------------------------------------------

_NAMES: Final = {NAN: "NaN", INFINITY: "infinity", NAN | INFINITY: "NaN and infinity"}


@attrs.frozen(eq=False)
class Sight:
    """What a look at the matrices of an operand has found, and what that means. It keeps no array alive."""

    verb: str
    operand: str
    stack: tuple[int, ...]
    spoils: int
    """Which findings leave a matrix without an answer."""
    refuses: bool
    """True if that is an error, and not an answer of NaN."""
    found: npt.NDArray[np.int32]
    """For each matrix what it holds, as bits; it is there when the call's own answer is."""

    def spoilt(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        """Which of so many matrices have no answer, of which an info may be anything."""
        spoilt: npt.NDArray[np.bool_] = self.found[first : first + count] & self.spoils != 0
        return spoilt

    def error(self, first: int, count: int, device: int) -> NotFiniteError | None:
        """Return the error to raise for so many matrices, or None."""
        wrong = np.flatnonzero(self.spoilt(first, count))
        if not (self.refuses and wrong.size):
            return None
        number = first + int(wrong[0])
        matrix = tuple(int(index) for index in np.unravel_index(number, self.stack)) if self.stack else None
        found = _NAMES[int(self.found[number])]
        where = "" if matrix is None else f" in matrix {matrix} of the stack"
        expected = "finite numbers" if self.spoils & INFINITY else "no NaN"
        return NotFiniteError(
            f"{self.operand} holds {found}{where}; {self.verb} takes {expected}",
            operand=self.operand,
            found=found,
            matrix=matrix,
            device=device,
            operation=f"solver.{self.verb}",
        )


@attrs.frozen(eq=False)
class Look:
    """A look at the matrices of an operand, beside the call."""

    sight: Sight
    on_device: DeviceArray | None = None
    """What it finds, for who writes NaN over the results, or stops a call."""
    request: CallRequest | None = None
    """The call that looks, if it is one."""


@attrs.frozen(eq=False)
class Infos:
    """What the infos of a call mean. It keeps no array alive, because repetitions of the call have it as well."""

    operation: str
    order: int
    """The order of the matrix."""
    stack: tuple[int, ...]
    device: int
    sights: tuple[Sight, ...]
    """What looks beside the call have found; their answers are there when an info is."""
    first: int
    """The number of the matrix of the first info."""

    def __call__(self, infos: npt.NDArray[Any]) -> Exception | None:
        """Return the error that infos, or looks before them, report, or None."""
        says = infos != 0
        for sight in self.sights:
            error = sight.error(self.first, infos.size, self.device)
            if error is not None:
                return error
            says &= ~sight.spoilt(self.first, infos.size)
        wrong = np.flatnonzero(says)
        if not wrong.size:
            return None
        number = self.first + int(wrong[0])
        matrix = tuple(int(index) for index in np.unravel_index(number, self.stack)) if self.stack else None
        return error_of(self.operation, int(infos[wrong[0]]), self.order, matrix=matrix, device=self.device)
