"""Functions of libraries as pointers for native code, those of a simulated library too."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int, c_size_t, c_void_p, cast
from typing import Any, Final

_INTEGERS: Final = frozenset("bBhHiIlLqQ?")
"""The codes of ctypes for the integer types."""
_POINTERS: Final = frozenset("PzZ")
FLOATS: Final = frozenset("fd")
"""The codes of the types of floating-point numbers that have registers of their own."""


def _as_word(kind: Any) -> Any:
    """The type of an argument, an address as a number; None for what does not fit in a register."""
    code = getattr(kind, "_type_", None)
    if code in _INTEGERS or code in FLOATS:
        return kind
    is_pointer = code in _POINTERS or (isinstance(kind, type) and issubclass(kind, ctypes._Pointer))
    return c_size_t if is_pointer else None


def pointer_to(function: Any, give_up: Callable[[BaseException], object]) -> Any:
    """Return a declared function as a pointer that native code can call; None if it takes what has no register.

    A function of Python, of a simulated library, becomes one that leads back. `give_up` gets what it raises.
    """
    kinds = [_as_word(kind) for kind in function.argtypes]
    if None in kinds or function.restype is not c_int:
        return None
    call, kind = function.bind(), CFUNCTYPE(c_int, *kinds)
    if isinstance(call, ctypes._CFuncPtr):  # type: ignore[attr-defined]
        return cast(call, kind)

    def back(*arguments: int) -> int:
        try:
            status: int = call(*arguments)
        except BaseException as bug:  # ctypes would only print it, and go on with 0
            give_up(bug)
            raise
        return status

    return kind(back)


def address_of_pointer(pointer: Any) -> int:
    """Return the address to which a pointer leads."""
    return cast(pointer, c_void_p).value or 0
