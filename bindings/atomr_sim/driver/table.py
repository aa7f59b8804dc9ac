"""The table of Python functions that replace the functions of libcuda.

``entry`` marks the implementation of a C symbol; ``build`` makes the whole table, with one gate in front of every
function. An injected fault, a lost process, a missing cuInit or context end the call there, and an exception never
crosses into C. A declared function without an implementation returns "not supported", with a message.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from atomr_cuda import driver

from .._environment import complain
from .._status import INVALID_CONTEXT, NOT_INITIALIZED, NOT_SUPPORTED, SUCCESS, UNKNOWN, Refused, require
from .process import Process

if TYPE_CHECKING:
    from atomr_cuda._library import Function

Implementation = Callable[..., "int | None"]
Entry = Callable[..., int]


class Needs(Enum):
    """The condition for a function to do its work. CONTEXT also means that a lost process refuses it."""

    NOTHING = "callable at any time"
    INIT = "cuInit was called"
    LIFE = "cuInit was called, and the process is not lost"
    CONTEXT = "a context is current, and the process is not lost"


_implementations: dict[str, tuple[Implementation, Needs]] = {}
_unsafe: set[str] = set()


def entry(
    function: Function, needs: Needs = Needs.CONTEXT, *, unsafe: bool = False
) -> Callable[[Implementation], Implementation]:
    """Mark the implementation of a declared function. It gets the process first, then the arguments of the C function,
    and returns a status; None is success. An ``unsafe`` function is refused while streams are captured, see
    ``Captures.forbid_unsafe``."""

    def mark(implementation: Implementation) -> Implementation:
        if function.symbol in _implementations:
            raise ValueError(f"{function.symbol} is implemented twice")
        _implementations[function.symbol] = (implementation, needs)
        if unsafe:
            _unsafe.add(function.symbol)
        return implementation

    return mark


def implemented() -> frozenset[str]:
    """Return the C symbols that the simulator implements."""
    return frozenset(_implementations)


def build(process: Process) -> dict[str, Entry]:
    """Return the table for ``Library.replace``."""
    table: dict[str, Entry] = {}
    for symbol in driver.library.functions:
        implementation, needs = _implementations.get(symbol) or (_unsupported(symbol), Needs.LIFE)
        table[symbol] = _gate(process, symbol, implementation, needs)
    return table


def _gate(process: Process, symbol: str, implementation: Implementation, needs: Needs) -> Entry:
    fate, faults = process.fate, process.faults
    mortal = needs in (Needs.LIFE, Needs.CONTEXT)
    unsafe = symbol in _unsafe

    def call(*arguments: Any) -> int:
        try:
            injected = faults.strike(symbol)
            if injected is not None:
                return injected
            if mortal and fate.status:
                return fate.status
            if needs is not Needs.NOTHING and not process.initialised:
                return NOT_INITIALIZED
            if needs is Needs.CONTEXT and not process.stack:
                return INVALID_CONTEXT
            if unsafe:
                process.captures.forbid_unsafe()
            return implementation(process, *arguments) or SUCCESS
        except Refused as refused:
            return refused.status
        except BaseException:
            # The caller of this frame is C code: an exception would be swallowed and the call would seem to succeed.
            complain(f"{symbol} failed inside the simulator")
            traceback.print_exc()
            return UNKNOWN

    return call


def _unsupported(symbol: str) -> Implementation:
    told = False

    def refuse(process: Process, *arguments: Any) -> int:
        nonlocal told
        if not told:
            told = True
            complain(f"{symbol} is not supported by the simulated driver")
        return NOT_SUPPORTED

    return refuse


def give(pointer: Any, value: Any) -> None:
    """Write a result through a pointer argument; a null pointer is an invalid value."""
    require(pointer)
    pointer[0] = value
