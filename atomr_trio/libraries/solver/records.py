"""The functions of cuSOLVER that a record may name."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ..._wire.protocol import Mode
from ..._wire.records.calls import SIZE, Option, Workspace
from ..._wire.records.sequences import SequenceTable
from . import records_finite as finite
from .registration import REGISTRATION

if TYPE_CHECKING:
    from collections.abc import Iterator


class Function(NamedTuple):
    """A function of the library: its name, its words behind the handle, and the bytes of an element of its type."""

    name: str
    words: tuple[str, ...]
    itemsize: int


_ITEMSIZES: Final = {"S": 4, "D": 8, "C": 8, "Z": 16}

_A, _B, _U, _VT = "typeA A lda", "typeB B ldb", "typeU U ldu", "typeVT VT ldvt"
_ROOMS = "work lwork host lhost info"
_OF_ALL_TYPES: Final = {
    "Xpotrf": f"params uplo n {_A} compute {_ROOMS}",
    "Xpotrs": f"params uplo n nrhs {_A} {_B} info",
    "Xgetrf": f"params m n {_A} ipiv compute {_ROOMS}",
    "Xgetrs": f"params trans n nrhs {_A} ipiv {_B} info",
    "Xgeqrf": f"params m n {_A} typetau tau compute {_ROOMS}",
    "Xsyevd": f"params jobz uplo n {_A} typeW W compute {_ROOMS}",
    "Xsyevdx": f"params jobz range uplo n {_A} vl vu il iu meig typeW W compute {_ROOMS}",
    "Xgesvd": f"params jobu jobvt m n {_A} typeS S {_U} {_VT} compute {_ROOMS}",
}
"""The functions with 64-bit sizes, which are told the type of their matrices."""

_ROOM = "work lwork info"
_SVD = "m n A lda S U ldu V ldv"
_OF_ONE_TYPE: Final = {
    "potri": f"uplo n A lda {_ROOM}",
    "potrfBatched": "uplo n A lda info batch",
    "potrsBatched": "uplo n nrhs A lda B ldb info batch",
    "orgqr": f"m n k A lda tau {_ROOM}",
    "ormqr": f"side trans m n k A lda tau C ldc {_ROOM}",
    "gels": "m n nrhs A lda B ldb X ldx work lwork niter info",
    "gesvdj": f"jobz econ {_SVD} {_ROOM} gesvdj",
    "gesvdjBatched": f"jobz {_SVD} {_ROOM} gesvdj batch",
    "gesvdaStridedBatched": "jobz rank m n A lda strideA S strideS U ldu strideU V ldv strideV "
    f"{_ROOM} residuals batch",
    "syevj": f"jobz uplo n A lda W {_ROOM} syevj",
    "syevjBatched": f"jobz uplo n A lda W {_ROOM} syevj batch",
    "sygvd": f"itype jobz uplo n A lda B ldb W {_ROOM}",
}
"""The functions that exist once for each type, with 32-bit sizes."""


def symbol(name: str, letter: str) -> str:
    """The C name of a function for the type with this letter."""
    if name.startswith("X"):
        return f"cusolverDn{name}"
    if name == "gels":
        return f"cusolverDn{letter}{letter}{name}"  # the second letter is the lowest precision that it may use
    if letter in "CZ":
        name = {"sy": "he", "or": "un"}.get(name[:2], name[:2]) + name[2:]
    return f"cusolverDn{letter}{name}"


def _functions() -> Iterator[Function]:
    for name, words in _OF_ALL_TYPES.items():
        yield Function(symbol(name, "X"), tuple(words.split()), 1)
    for name, words in _OF_ONE_TYPE.items():
        for letter, itemsize in _ITEMSIZES.items():
            yield Function(symbol(name, letter), tuple(words.split()), 1 if name == "gels" else itemsize)


FUNCTIONS: Final = {function.name: function for function in _functions()}

_NOT_ASKED: Final = ("lwork", "lhost", "info", "ipiv", "niter", "residuals")
"""Words that a query does not take."""


def _workspace(function: Function) -> Workspace | None:
    words = function.words
    if "work" not in words:
        return None
    sizes = ("host", "lwork") if function.name.endswith("gels") else ("work", "host")
    left_out = set(_NOT_ASKED) - set(sizes)
    takes = tuple(SIZE if word in sizes else place for place, word in enumerate(words) if word not in left_out)
    return Workspace(f"{function.name}_bufferSize", takes, words.index("work"), function.itemsize)


def _workspaces() -> dict[str, Workspace]:
    found = ((name, _workspace(function)) for name, function in FUNCTIONS.items())
    return {name: workspace for name, workspace in found if workspace is not None}


OPTIONS: Final = {"params": "Params", "syevj": "SyevjInfo", "gesvdj": "GesvdjInfo"}
"""The library's objects that hold options, by the words that stand for them; the value of such a word is a setting."""


def _options() -> dict[str, Option]:
    return {
        name: Option(place, word)
        for name, function in FUNCTIONS.items()
        for place, word in enumerate(function.words)
        if word in OPTIONS
    }


SOLVER = SequenceTable(
    REGISTRATION.name,
    REGISTRATION.number,
    (*FUNCTIONS, *finite.WORDS),
    workspaces=_workspaces(),
    options=_options(),
)

PART = struct.Struct("<I")
"""The size in bytes of the call that follows, in a record of several."""

TOGETHER = SOLVER.verb("together", Mode.BLOCKS, {})
"""Several calls, one after the other, as one command: each is as the tail of a single one has it, behind its size."""

NONDETERMINISTIC = 2
"""A flag: the bits of a result may differ from one run to the next (``cusolverDnSetDeterministicMode``)."""

DEFAULT_SWEEPS = 100
"""Sweeps that a Jacobi method may make, as the library has it."""
