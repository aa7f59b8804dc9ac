"""A function of the driver that only notes its calls, for tests of what the worker's engines have made ready."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any


class NotedFunction:
    """Stands for a declared function; `made` are the arguments of its calls, of which each returns `answer`."""

    restype = ctypes.c_int
    library = SimpleNamespace(error=lambda status, symbol: (status, symbol))

    def __init__(self, function: Any) -> None:
        self.argtypes = function.argtypes
        self.symbol: str = function.symbol
        self.made: list[Any] = []
        self.answer = 0

    def status(self, *arguments: Any) -> int:
        """Note a call, and return its status."""
        self.made.append(self.noted(*arguments))
        return self.answer

    __call__ = status

    def noted(self, *arguments: Any) -> Any:
        """Return what is noted of a call."""
        return tuple(getattr(each, "value", each) for each in arguments)

    def bind(self) -> Any:
        """Return the function that is called."""
        return self.status
