"""One call of a function of the dense solver library: its arguments by name, checked, and its operands.

The functions of cuSOLVER differ in the order of their arguments, in whether sizes have 32 or 64 bits, and in whether
they work on one matrix or on many; what is the same everywhere is what an argument means. So each argument has a word
(``cusolver`` has the table), a word says how the argument is checked, and an operation of ``lapack_operations`` sees a
``Call``: words and operands, whatever the function that was called.

The words are those of LAPACK. Further ones: ``typeA`` is the data type of A; ``strideA`` the distance from one A of a
batch to the next, in elements; ``*A`` an array of addresses of matrices; ``infos`` an info for each problem where
``info`` is one number; ``lwork`` a workspace's length in elements, ``lbytes`` and ``dbytes`` one in bytes, ``hbytes``
that of the workspace on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from atomr_cuda.cusolver import cusolverEigRange_t, cusolverStatus_t
from atomr_cuda.library_types import cudaDataType

from ..dense import ELEMENTS, Counterpart, Element, Operand, host_values, matrix, vector

if TYPE_CHECKING:
    from ...driver.process import Process
    from ...engine.memory import AddressSpace, Array

LETTERS = {
    "S": cudaDataType.CUDA_R_32F,
    "D": cudaDataType.CUDA_R_64F,
    "C": cudaDataType.CUDA_C_32F,
    "Z": cudaDataType.CUDA_C_64F,
}
"""The data types of matrices, by the letters that name them."""

_LETTER_OF: dict[int, str] = {data_type: letter for letter, data_type in LETTERS.items()}

REAL = {
    LETTERS["S"]: LETTERS["S"],
    LETTERS["D"]: LETTERS["D"],
    LETTERS["C"]: LETTERS["S"],
    LETTERS["Z"]: LETTERS["D"],
}
"""The type of singular values, eigenvalues and norms."""

INVALID_VALUE = int(cusolverStatus_t.CUSOLVER_STATUS_INVALID_VALUE)

# The values that an argument may have, and those that it may not be below.
_CHOICES: dict[str, Container[int]] = {
    "uplo": (0, 1),
    "trans": (0, 1, 2),
    "side": (0, 1),
    "diag": (0, 1),
    "jobz": (0, 1),
    "econ": (0, 1),
    "itype": (1, 2, 3),
    "range": tuple(cusolverEigRange_t),
    "jobu": frozenset(b"ASON"),
    "jobvt": frozenset(b"ASON"),
    "jobv": frozenset(b"SN"),
}
_SIZES = ("m", "n", "k", "p", "nrhs", "niters", "rank", "batch")

# What a call means that has no such argument. A query may lack arguments that its function has.
_DEFAULTS = {
    **dict.fromkeys(("m", "nrhs", "jobz", "econ", "ipiv", "syevj", "gesvdj", "work", "hwork", "info", "infos")),
    **dict.fromkeys(("jobu", "jobvt"), ord("N")),
    "batch": 1,
    "range": int(cusolverEigRange_t.CUSOLVER_EIG_RANGE_ALL),
    "uplo": 0,
    "itype": 1,
}

# How many columns the workspace of a blocked algorithm holds.
_BLOCK = 32


class Params:
    """Options of the functions with 64-bit sizes. No choice of an algorithm changes what the simulator computes."""


class Jacobi:
    """Options of a Jacobi method, and what its last run tells.

    The simulator computes by other means. It guesses the number of sweeps: one where there is nothing to rotate, else a
    number that grows with the logarithm of the order, as the method converges quadratically. Where fewer are allowed,
    the run ends as one that did not converge.
    """

    def __init__(self) -> None:
        self.tolerance: float = 0.0
        self.max_sweeps: int = 100
        self.sort: bool = True
        self.residual: float = 0.0
        self.sweeps: int = 0
        self.batched: bool = False

    def run(self, coupling: float, order: int, residual: float, element: Element) -> bool:
        """Note a run; whether it converged. ``coupling`` is the share of a matrix's norm that is to be rotated away."""
        tolerance = self.tolerance or float(np.finfo(element.number).eps)
        needed = 1 if coupling <= tolerance else 3 + math.ceil(math.log2(order))
        self.sweeps, self.residual = min(needed, self.max_sweeps), residual
        return needed <= self.max_sweeps


class SyevjInfo(Jacobi):
    """Of ``syevj`` and ``sygvj``."""


class GesvdjInfo(Jacobi):
    """Of ``gesvdj``."""


_OBJECTS: dict[str, type[Any]] = {"params": Params, "syevj": SyevjInfo, "gesvdj": GesvdjInfo}


@dataclass(frozen=True)
class Argument:
    """An operand of a call: one array, or one for each problem of a batch, at equal distances or by their addresses."""

    space: AddressSpace
    first: Operand
    distance: int = 0
    addresses: Operand | None = None

    def of(self, problem: int) -> Operand:
        """The array of one problem."""
        if self.addresses is not None:
            address = int(self.addresses.read(self.space)[problem])
        else:
            address = self.first.address + problem * self.distance * self.first.element.size
        return Operand(self.first.element, address, self.first.shape, self.first.strides)

    def read(self, problem: int) -> Array:
        """A copy of the array of one problem."""
        return self.of(problem).read(self.space)

    def write(self, problem: int, values: Any, where: Any = True) -> None:
        """Write the array of one problem, or the part of it for which the mask ``where`` is true."""
        self.of(problem).write(self.space, values, where)

    def spoil(self, problem: int) -> None:
        """Mark a matrix that a function uses up: its content is not to be used any more."""
        self.write(problem, np.nan)


Run = Callable[[int], int]
"""Computes one problem of a batch when the stream gets there; returns its info."""


@dataclass
class Call:
    """A call with its arguments by their words. Making one checks all that can be checked without the operation."""

    library: Counterpart
    process: Process
    given: dict[str, Any]
    data_type: int
    pointers: frozenset[str] = frozenset()
    """The words of operands that are given as arrays of addresses."""
    host: dict[tuple[str, int], Any] = field(default_factory=dict)
    """The results of the call for variables of the host, by word and index; the call waits for them."""

    def __post_init__(self) -> None:
        given = self.given
        self.space: AddressSpace = self.process.space
        self.data_type = given.get("typeA", self.data_type)
        self.require(self.data_type in REAL)
        self.element: Element = ELEMENTS[self.data_type]
        self.real: Element = ELEMENTS[REAL[cudaDataType(self.data_type)]]
        wide = "typeA" in given
        self.index: Element = ELEMENTS[cudaDataType.CUDA_R_64I if wide else cudaDataType.CUDA_R_32I]
        for word, value in given.items():
            self.require(word not in _CHOICES or value in _CHOICES[word])
            self.require(word not in _SIZES or value >= 0)
            self.require(not (word.startswith("type") or word == "compute") or value == self._type_of(word))
        for word, kind in _OBJECTS.items():
            if word in given:
                given[word] = self.process.handles.get(given[word], kind, INVALID_VALUE)

    def _type_of(self, word: str) -> int:
        return REAL[cudaDataType(self.data_type)] if word in ("typeS", "typeW") else self.data_type

    def __getattr__(self, word: str) -> Any:
        """The argument with this word."""
        if word in self.given:
            return self.given[word]
        if word in _DEFAULTS:
            return _DEFAULTS[word]
        raise AttributeError(f"the call has no argument {word}")

    def require(self, condition: object) -> None:
        """Refuse the call unless the condition holds."""
        self.library.require(condition)

    @property
    def lower(self) -> bool:
        return bool(self.uplo == 0)

    @property
    def jacobi(self) -> Jacobi | None:
        """The options of a Jacobi method, and its results."""
        return self.syevj or self.gesvdj

    @property
    def empty(self) -> bool:
        """Tell whether there is nothing to compute."""
        return 0 in (self.m, self.n, self.nrhs)

    # Operands.

    def matrix(self, word: str, rows: int, columns: int) -> Argument:
        """A matrix argument; refuses a leading dimension below the number of rows."""
        leading = self.given.get(f"ld{word.lower()}")
        self.require(leading is None or leading >= max(1, rows))
        leading = leading or max(1, rows)
        first = matrix(self.element, self.given.get(word), rows, columns, leading)
        return self._argument(word, first, leading * columns)

    def vector(self, word: str, count: int, element: Element | None = None) -> Argument:
        """A vector argument, of the type of the matrices where no other is named."""
        return self._argument(word, vector(element or self.element, self.given.get(word), max(0, count)), count)

    def _argument(self, word: str, first: Operand, length: int) -> Argument:
        distance = self.given.get(f"stride{word}", length)
        self.require(distance >= length)
        if word not in self.pointers:
            return Argument(self.space, first, distance)
        addresses = vector(ELEMENTS[cudaDataType.CUDA_R_64I], self.given.get(word), self.batch)
        return Argument(self.space, first, addresses=addresses)

    def bound(self, word: str) -> float:
        """A bound of an interval, which the functions with 64-bit sizes find in memory of the host."""
        value = self.given[word]
        if "typeA" not in self.given:
            return float(value)
        self.require(value)
        return float(host_values(self.real, value, 1)[0])

    def asks_for(self, word: str, value: Any = 0) -> bool:
        """Tell whether the caller has variables on the host for results of this name; they get ``value`` at first."""
        wanted = bool(self.given.get(word))
        if wanted:
            self.host.update({(word, problem): value for problem in range(self.batch)})
        return wanted

    def tell(self, word: str, value: Any, problem: int = 0) -> None:
        """Give a result to the variable on the host, where there is one."""
        if (word, problem) in self.host:
            self.host[word, problem] = value

    # LAPACK.

    def lapack(self, name: str) -> Callable[..., Any]:
        """LAPACK's function of this name for the type of the matrices."""
        from scipy.linalg import lapack  # type: ignore[import-untyped, unused-ignore]

        letter = _LETTER_OF[self.data_type].lower()
        found: Callable[..., Any] = getattr(lapack, letter + spelled(name, self.element.is_complex))
        return found

    # Workspaces.

    def sizes(self, squares: int) -> dict[str, int]:
        """Return the lengths of the workspaces, by their words. ``squares`` are copies of the smaller square part."""
        m, n = self.given.get("m", self.n), self.n
        elements = (_BLOCK * max(1, m, n) + squares * min(m, n) ** 2) * max(1, self.batch)
        size = elements * self.element.size
        return {"lwork": elements, "lbytes": size, "dbytes": size, "hbytes": 8 * max(1, m, n)}

    def submit(self, stream: int | None, run: Run, sizes: dict[str, int]) -> None:
        """Check the workspaces and queue the computation; wait for it where the host gets results."""
        for word in sizes.keys() & self.given.keys():
            self.require(self.given[word] >= sizes[word])
        self.require("work" not in self.given or self.work)
        self.require("hwork" not in self.given or self.hwork)
        self.library.submit(self.process, stream, lambda: self._compute(run, sizes["dbytes"]), wait=bool(self.host))
        for (word, problem), value in self.host.items():
            self.given[word][problem] = value

    def _compute(self, run: Run, work_bytes: int) -> None:
        space = self.space
        if self.work:
            # What a workspace held is lost, also where it is memory that something else still needs.
            space.view(self.work, work_bytes)[:] = 0xFF
        infos = [0 if self.empty else run(problem) for problem in range(self.batch)]
        if self.infos is not None:
            vector(ELEMENTS[cudaDataType.CUDA_R_32I], self.infos, self.batch).write(space, infos)
        else:
            vector(ELEMENTS[cudaDataType.CUDA_R_32I], self.info, 1).write(space, max(infos, default=0))


def spelled(name: str, is_complex: bool) -> str:
    """LAPACK's name of a function for real or complex matrices, from the one for real matrices."""
    if not is_complex or name.startswith("sytr"):
        return name
    return {"sy": "he", "or": "un"}.get(name[:2], name[:2]) + name[2:]
