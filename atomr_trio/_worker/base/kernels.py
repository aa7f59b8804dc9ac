"""Kernels that an engine brings along: PTX of our own, which the driver compiles at its first use.

They do what a library's functions leave out. Every parameter of such a kernel is a word of 64 bits. A kernel takes any
number of threads: each does every n-th part of the work.
"""

from __future__ import annotations

import threading
from ctypes import addressof, byref, c_char_p, c_uint64, c_void_p, cast
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_THREADS: Final = 256
_MOST_BLOCKS: Final = 4096
"""About twice what the largest GPU runs at once."""


class Kernel(NamedTuple):
    """One kernel."""

    text: str
    """The PTX of a module with this kernel, whose name is that in the table of kernels."""
    parameters: int
    """The number of its parameters."""


class Kernels:
    """The kernels of one engine, in its context."""

    def __init__(self, driver: Any, known: Mapping[str, Kernel]) -> None:
        self.known: Mapping[str, Kernel] = known
        self._driver = driver
        self._lock = threading.Lock()  # lanes call from threads of their own
        self._modules: list[Any] = []
        self._functions: dict[str, Any] = {}

    def prepare(self, name: str, threads: int) -> Callable[..., int]:
        """Return a function that launches the kernel with its words and a stream, and returns the driver's status."""
        function, launch = self._function(name), self._driver.cuLaunchKernel.bind()
        blocks = min(max(-(-threads // _THREADS), 1), _MOST_BLOCKS)
        count = self.known[name].parameters
        words_of, pointers_of = c_uint64 * count, c_void_p * count

        def call(*arguments: Any) -> int:
            *words, stream = arguments
            values = words_of(*words)
            first = addressof(values)
            pointers = pointers_of(*range(first, first + 8 * count, 8))
            status: int = launch(function, blocks, 1, 1, _THREADS, 1, 1, 0, stream, addressof(pointers), None)
            return status

        return call

    def close(self) -> None:
        """Unload all kernels. What was prepared must not be launched any more."""
        with self._lock:
            modules, self._modules, self._functions = self._modules, [], {}
        for module in modules:
            self._driver.cuModuleUnload(module)

    def _function(self, name: str) -> Any:
        with self._lock:
            function = self._functions.get(name)
            if function is None:
                function = self._functions[name] = self._load(name)
            return function

    def _load(self, name: str) -> Any:
        driver, module = self._driver, self._driver.CUmodule()
        driver.cuModuleLoadData(byref(module), cast(c_char_p(self.known[name].text.encode()), c_void_p))
        function = driver.CUfunction()
        try:
            driver.cuModuleGetFunction(byref(function), module, name.encode())
        except BaseException:
            driver.cuModuleUnload.status(module)
            raise
        self._modules.append(module)
        return function
